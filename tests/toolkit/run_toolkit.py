#!/usr/bin/env python3
"""Runs one program of tests/toolkit on the simulated GPU and says how it went.

run_toolkit.py --run native|fits|tcp|shm --expect ok|"no result" PROGRAM

The simulated GPU is of a compute capability for which the libraries carry PTX. Where they carry none for what the program wants, it has to
end with a verdict of its own and a line of the simulated GPU that says why: no crash, no hang, no wrong numbers.
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration", "apps"))
import run_app  # noqa: E402

MIB = 1 << 20
CAPABILITY = "12.1"
VERDICTS = {"ok": 0, "no result": 3}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=["native", "fits", "tcp", "shm"], required=True)
    parser.add_argument("--expect", choices=list(VERDICTS), required=True)
    parser.add_argument("--olrun", required=True)
    parser.add_argument("--olgpunode", required=True)
    parser.add_argument("--sim-native", required=True)
    parser.add_argument("--timeout", type=float, default=200)
    parser.add_argument("program")
    options = parser.parse_args()
    forwarded = options.run in ("tcp", "shm")
    # What run_app needs beside.
    options.mode, options.transport = ("forward", options.run) if forwarded else (options.run, "auto")
    options.seed, options.sim_vram, options.sim_mode, options.env = 1, 1024 * MIB, "", [f"OL_SIM_CAPABILITY={CAPABILITY}"]
    options.host, options.olctl, options.trust = 512 * MIB, None, []
    return options


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="olpager-toolkit-") as scratch:
        env = run_app.environment(options, scratch)
        gpunode = run_app.Gpunode(options, env, 512 * MIB) if options.mode == "forward" else None
        if gpunode is not None and gpunode.address is None:
            print("the gpunode did not start:\n" + gpunode.text())
            return 1
        argv = [options.program]
        if options.mode == "fits":
            argv = [options.olrun, "--driver", "sim", "--vram", str(512 * MIB), "--host", str(options.host), "--"] + argv
        if gpunode is not None:
            argv = [options.olrun, "--gpunode", gpunode.address, "--transport", options.transport, "--"] + argv
        try:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, errors="replace", timeout=options.timeout)
        except subprocess.TimeoutExpired as late:
            print(f"HUNG: no end within {options.timeout:g} s\n{late.stdout}\n{late.stderr}")
            return 1
        wrong = gpunode.end() if gpunode is not None else None
    print("$ " + " ".join(argv))
    print(done.stdout + done.stderr, end="")
    print(f"exit {done.returncode}")
    if wrong:
        print(wrong)
        return 1
    verdict = (done.stdout.strip().splitlines() or [""])[-1]
    if not verdict.startswith(f"{os.path.basename(options.program)}: {options.expect}") or done.returncode != VERDICTS[options.expect]:
        print(f"expected the verdict '{options.expect}'")
        return 1
    said = [line for line in done.stderr.splitlines() if line.startswith("olsimcuda: ")]
    if len(said) != len(set(said)):
        print("a line was said twice")
        return 1
    if options.expect == "no result" and not said:
        print("nothing says why there is no result")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
