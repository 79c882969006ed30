"""Steps of bench-h200 in the unified view: a program over several GPUs of this machine, of an olgpunode each or of one (needs root)."""
import os
import re
from contextlib import nullcontext

from forwarded import HERE, Gpunode, one_each, outcome, run, shaped, verdict

DECODE = ["python3", os.path.join(HERE, "workloads", "decode_13b.py")]
# What an olgpunode keeps between programs would make the second transport's start faster than the first one's.
ALONE = ["--cache", "none"]


def over(context, gpus, vram, program, transport, env=None, inside=(), of_one=False):
    """What the program prints over so many GPUs with `vram` each: of an olgpunode each, or all `of_one`."""
    options = ["--vram", vram, "--memory", "64GiB", *ALONE]
    devices = ",".join(map(str, range(gpus)))
    with Gpunode(context.build, context.log, ["--device", devices, *options], inside) if of_one else one_each(context, gpus, options, inside) as all_of_them:
        return run(context, all_of_them, program, transport, env, options=["--view", "unified"])


def told(output):
    """Seconds a token, and the tokens."""
    return float(re.search(r"s/token (\S+)", output).group(1)), re.search(r"tokens (\[.*\])", output).group(1)


def decode(failed, gpunodes, vram, layers=40, tokens=24, transports=("shm", "tcp"), env=None, rate=None, of_one=False):
    """decode_13b.py over `gpunodes` olgpunodes with `vram` each, beside one that holds it all, which runs first and last (the faster one counts):
    the tokens have to be the same. And beside what Hugging Face accelerate makes of the same GPUs with the same limits, without olpager. `rate`: what
    loopback carries at most where gpunodes are several, as tc names it."""
    def action(context):
        program = [*DECODE, str(layers), str(tokens)]
        what = f"{gpunodes} x {vram}{' of one gpunode' if of_one else ''} {layers} layers {rate or ''} {' '.join(env or ())}"

        def alone():
            with Gpunode(context.build, context.log, ["--device", "0", *ALONE]) as node:
                return told(run(context, node, program, "shm", env))

        first, right = alone()
        took = {}
        for transport in transports:
            with shaped(rate) if rate else nullcontext(()) as inside:
                took[transport], tokens_there = told(over(context, gpunodes, vram, program, transport, env, inside, of_one))
            if tokens_there != right:
                raise failed(f"{transport}: other tokens than on one GPU")
        failure = ""
        try:
            gpus = {"ACCELERATE": vram, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpunodes)))}
            took["accelerate natively"], _ = told(context.run(program, {**gpus, **(env or {})}))
        except failed as error:
            failure = f", accelerate natively: {error}"
        last, _ = alone()
        seconds = min(first, last)
        for how, its in took.items():
            context.results[f"{what} {how}"] = its / seconds
        return (f"one {first} and {last} s, " + ", ".join(f"{how} {its} s ({its / seconds:.2f} times)" for how, its in took.items()) + failure)
    return action


def programs(failed, gpunodes, vram, names, size, transports=("shm", "tcp"), of_one=False):
    """Programs of tests/apps, which check themselves, with `size` bytes over gpunodes none of which holds that."""
    def action(context):
        bad, good = [], 0
        for name in names:
            argv = [os.path.join(context.build, "tests", "apps", name), "--bytes", str(size), "--seed", "3"]
            for transport in transports:
                said = verdict(failed, lambda: over(context, gpunodes, vram, argv, transport, of_one=of_one))
                if said.startswith("OK"):
                    good += 1
                else:
                    bad.append(f"{name} over {transport}: {said[:200]}")
        return outcome(failed, good, bad)
    return action


def managed(failed, gpunodes, vram, mib):
    """Managed memory in turns: natively, and over several gpunodes."""
    def action(context):
        argv = ["python3", os.path.join(HERE, "workloads", "managed_turns.py"), str(mib)]
        said = {"natively": context.run(argv)}
        for transport in ("shm", "tcp"):
            said[f"{gpunodes} gpunodes, {transport}"] = over(context, gpunodes, vram, argv, transport)
        for how, figures in said.items():
            context.results[f"managed {how}"] = figures.strip()
        return "; ".join(f"{how}: {figures.strip()}" for how, figures in said.items())
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
