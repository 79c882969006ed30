"""Steps of bench-h200 in the unified view: a program over several olgpunodes of this machine, one for each GPU (needs root)."""
import os
import re

from forwarded import HERE, Gpunode, one_each, run, shaped

DECODE = ["python3", os.path.join(HERE, "workloads", "decode_13b.py")]
# What an olgpunode keeps between programs would make the second transport's start faster than the first one's.
ALONE = ["--cache", "none"]


def over(context, gpunodes, vram, program, transport, env=None, inside=()):
    """What the program prints over so many olgpunodes with `vram` each."""
    with one_each(context, gpunodes, ["--vram", vram, "--memory", "64GiB", *ALONE], inside) as all_of_them:
        return run(context, all_of_them, program, transport, env, options=["--view", "unified"])


def told(output):
    """Seconds a token, and the tokens."""
    return float(re.search(r"s/token (\S+)", output).group(1)), re.search(r"tokens (\[.*\])", output).group(1)


def decode(failed, gpunodes, vram, layers=40, tokens=24, transports=("shm", "tcp")):
    """decode_13b.py over `gpunodes` olgpunodes with `vram` each, beside one that holds it all: the tokens have to be the same. And beside what
    Hugging Face accelerate makes of the same GPUs with the same limits, without olpager."""
    def action(context):
        program = [*DECODE, str(layers), str(tokens)]
        with Gpunode(context.build, context.log, ["--device", "0", *ALONE]) as node:
            seconds, right = told(run(context, node, program, "shm"))
        said = [f"one {seconds} s"]
        for transport in transports:
            its, tokens_there = told(over(context, gpunodes, vram, program, transport))
            if tokens_there != right:
                raise failed(f"{transport}: other tokens than on one GPU")
            context.results[f"{gpunodes} x {vram} {layers} layers {transport}"] = its / seconds
            said.append(f"{transport} {its} s ({its / seconds:.2f} times)")
        try:
            its, _ = told(context.run(program, {"ACCELERATE": vram, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpunodes)))}))
            context.results[f"{gpunodes} x {vram} {layers} layers accelerate"] = its / seconds
            said.append(f"accelerate natively {its} s ({its / seconds:.2f} times)")
        except failed as error:
            said.append(f"accelerate natively: {error}")
        return ", ".join(said)
    return action


def decode_shaped(failed, gpunodes, vram, rate, env, layers=40, tokens=24):
    """decode_13b.py over `gpunodes` olgpunodes whose links carry no more than `rate` all together, beside one that holds it all, by shared memory:
    the tokens have to be the same."""
    def action(context):
        program = [*DECODE, str(layers), str(tokens)]
        with Gpunode(context.build, context.log, ["--device", "0", *ALONE]) as node:
            seconds, right = told(run(context, node, program, "shm", env))
        with shaped(rate) as inside:
            its, tokens_there = told(over(context, gpunodes, vram, program, "tcp", env, inside))
        if tokens_there != right:
            raise failed("other tokens than on one GPU")
        context.results[f"{gpunodes} x {vram} {layers} layers tcp {rate} {env}"] = its / seconds
        return f"one {seconds} s, tcp with {rate} {its} s ({its / seconds:.2f} times)"
    return action


def same(failed, gpunodes, vram, programs, transports=("shm", "tcp")):
    """Programs that have to print what they print natively."""
    def action(context):
        bad, good = [], 0
        for program in programs:
            native = context.run(program)
            for transport in transports:
                try:
                    if over(context, gpunodes, vram, program, transport) != native:
                        raise failed("differs")
                    good += 1
                except failed as error:
                    bad.append(f"{os.path.basename(program[1])} {' '.join(program[2:])} over {transport}: {error}")
        if bad:
            raise failed(f"{good} equal; " + "; ".join(bad))
        return f"{len(programs)} programs, {good} runs equal to native ones"
    return action
