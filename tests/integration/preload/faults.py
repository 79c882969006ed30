#!/usr/bin/env python3
"""A CUDA program under the pager while the system refuses the pager threads or memory: it goes on, or it is told by a CUDA
error; it is never ended, and it never waits for ever.

faults.py --library LIB --faults LIB --driver LIB threads|memory PROGRAM
"""
import argparse
import os
import random
import re
import subprocess
import sys
import tempfile

TIMEOUT = 60
BYTES = 16 << 20  # twice the VRAM that it has: memory moves


def run(options, scratch, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OL_", "FAULTS_"))}
    env.update(LD_PRELOAD=f"{options.faults} {options.library}", OL_DRIVER=options.driver, OL_VRAM="8MiB", OL_HOST="256MiB",
               OL_SIM_VRAM="64MiB", XDG_CONFIG_HOME=scratch, XDG_RUNTIME_DIR=scratch)
    env.update({k: str(v) for k, v in more.items()})
    try:
        return subprocess.run([options.program, "--bytes", str(BYTES)], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as hung:
        sys.exit(f"{more}: no end within {TIMEOUT} s\n{hung.stdout}\n{hung.stderr}")


def check(done, what, may_fail=True):
    told = f"{what}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    # A line of the pager's own, or the program's that a CUDA call failed.
    if done.returncode < 0 or "terminate called" in done.stderr or "AddressSanitizer" in done.stderr:
        sys.exit("ended: " + told)
    if done.returncode != 0 and (not may_fail or ("olpager: error:" not in done.stderr and "FAILED" not in told and
                                                  "error" not in told)):
        sys.exit("not as it should be: " + told)
    if done.returncode == 0 and "OK" not in done.stdout:
        sys.exit("said nothing: " + told)


def counted(done):
    found = re.search(r"faults: (\d+) allocations, (\d+) threads", done.stderr)
    if not found:
        sys.exit("the faults were not loaded\n" + done.stderr)
    return int(found.group(1)), int(found.group(2))


def main():
    parser = argparse.ArgumentParser()
    for name in ("library", "faults", "driver"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--start", type=int, default=160, help="each of so many allocations fails once")
    parser.add_argument("--runs", type=int, default=20, help="and so many of the later ones")
    parser.add_argument("kind", choices=["threads", "memory"])
    parser.add_argument("program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-faults-") as scratch:
        plain = run(options, scratch)
        check(plain, "without faults", may_fail=False)
        allocations, threads = counted(plain)
        print(f"{allocations} allocations, {threads} threads; seed {options.seed}")
        if options.kind == "threads":
            first = run(options, scratch, FAULTS_THREADS_FROM=1)
            check(first, "no thread at all")
            if first.returncode == 0 or "thread can't be started" not in first.stderr:
                sys.exit(f"no thread at all: exit {first.returncode}\n{first.stdout}{first.stderr}")
            # With its engine the pager does everything, if slower.
            for number in range(2, min(threads, 6) + 2):
                check(run(options, scratch, FAULTS_THREADS_FROM=number), f"threads from {number}", may_fail=False)
            return
        pick = random.Random(options.seed)
        # The first ones are the start, where each is at a place of its own; later ones come while memory moves. The very first is the C++
        # runtime's own, for exceptions thrown when memory is short: without it none can be thrown.
        start = min(allocations, options.start)
        chosen = list(range(2, start + 1))
        if allocations > start:
            chosen += [pick.randint(start + 1, allocations) for _ in range(options.runs)]
        for number in chosen:
            name = pick.choice(["FAULTS_MEMORY_FROM", "FAULTS_MEMORY_AT"])
            check(run(options, scratch, **{name: number}), f"{name}={number}")


if __name__ == "__main__":
    main()
