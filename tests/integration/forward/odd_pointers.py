#!/usr/bin/env python3
"""Addresses in memory in forms that a scan finds, and in forms that it does not: odd_pointers.py MODE [options] PROGRAM

Each form of tests/apps/odd_pointers.cu either works, or ends with one line on standard error that names the kernel and
--reach all. Forms that are found have to work under every reach, and all of them under reach = all.
  MODE  local, tcp, shm
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

FOUND = ["plain", "mark"]
NOT_FOUND = ["tag", "halves", "shift", "packed", "offset", "key"]
VRAM, HOST, SIM_VRAM = "16MiB", "1GiB", "64MiB"


def wait_for(path, pattern, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with open(path) as log:
            found = re.search(pattern, log.read())
        if found:
            return found.group(1)
        time.sleep(0.05)
    raise SystemExit("the gpunode did not listen")


def run(options, env, log, reach, form):
    """The program's status, what it printed, and what came on standard error."""
    env = dict(env, OL_REACH=reach)
    if options.mode == "local":
        command = [options.olrun, "--driver", "sim", "--vram", VRAM, "--host", HOST, "--", options.program, form]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr
    with open(log, "w") as out:
        node = subprocess.Popen([options.olgpunode, "--driver", "sim", "--listen", "127.0.0.1:0", "--vram", VRAM, "--memory", HOST,
                                 "--cache", "none"], env=env, stdout=out, stderr=out)
    try:
        address = wait_for(log, r"listening at (\S+)")
        command = [options.olrun, "--gpunode", address, "--transport", options.mode, "--", options.program, form]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr
    finally:
        node.terminate()
        node.wait()


def check(reach, form, status, out, err):
    """What is wrong with it, or None."""
    if status == 0 and out.startswith("OK"):
        return None
    if reach == "all" or form in FOUND:
        return "has to work"
    if status != 3 or not out.startswith("LOST"):
        return "neither works nor loses its context"
    lines = [line for line in err.splitlines() if "was not mapped for it" in line]
    if len(lines) != 1:
        return f"{len(lines)} lines about it"
    if "walkRing" not in lines[0] or "--reach all" not in lines[0]:
        return "the line names no kernel, or not what to do"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--olrun", required=True)
    parser.add_argument("--olgpunode", required=True)
    parser.add_argument("mode", choices=["local", "tcp", "shm"])
    parser.add_argument("program")
    options = parser.parse_args()
    wrong, lost = 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        env = {k: v for k, v in os.environ.items() if not k.startswith("OL_")}
        env.update(OL_SIM_VRAM=SIM_VRAM, XDG_CONFIG_HOME=scratch, XDG_CACHE_HOME=scratch, XDG_RUNTIME_DIR=scratch)
        for reach in ["traced", "all"]:
            for form in FOUND + NOT_FOUND:
                result = run(options, env, os.path.join(scratch, "log"), reach, form)
                lost += result[0] == 3
                why = check(reach, form, *result)
                print(f"reach = {reach}, {form}: exit {result[0]}, {result[1].strip()}{': ' + why if why else ''}")
                if why:
                    wrong += 1
                    print(result[2])
    if lost == 0:
        print("no form lost its context: nothing was shown")
    return 1 if wrong or lost == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
