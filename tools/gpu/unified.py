"""Steps of bench-h200 in the unified view: a program over several olgpunodes of this machine, one for each GPU (needs root)."""
import os
import re
from contextlib import ExitStack

from forwarded import HERE, Gpunode, run

DECODE = ["python3", os.path.join(HERE, "workloads", "decode_13b.py")]


def decode(failed, gpunodes, vram, layers=40, tokens=24, transports=("shm", "tcp")):
    """decode_13b.py over `gpunodes` olgpunodes with `vram` each, beside one that holds it all: the tokens have to be the same."""
    def told(output):
        return re.search(r"s/token (\S+)", output), re.search(r"tokens (\[.*\])", output)

    def action(context):
        program = [*DECODE, str(layers), str(tokens)]
        with Gpunode(context.build, context.log, ["--device", "0", "--cache", "none"]) as node:
            seconds, right = told(run(context, node, program, "shm"))
        said = [f"one {seconds.group(1)} s"]
        for transport in transports:
            with ExitStack() as stack:
                nodes = [stack.enter_context(Gpunode(context.build, context.log, [
                    "--device", str(i), "--vram", vram, "--memory", "64GiB", "--cache", "none"])) for i in range(gpunodes)]
                others = [word for node in nodes[1:] for word in ("--gpunode", node.address)]
                output = context.run([os.path.join(HERE, "without-driver"), context.olrun, "--view", "unified", "--gpunode", nodes[0].address, *others,
                                      "--transport", transport, "--log", "info", "--", *program])
            its, tokens_there = told(output)
            if tokens_there.group(1) != right.group(1):
                raise failed(f"{transport}: other tokens than on one GPU")
            context.results[f"{gpunodes} x {vram} {layers} layers {transport}"] = float(its.group(1)) / float(seconds.group(1))
            said.append(f"{transport} {its.group(1)} s ({float(its.group(1)) / float(seconds.group(1)):.2f} times)")
        return ", ".join(said)
    return action
