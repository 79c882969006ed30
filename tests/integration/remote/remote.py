#!/usr/bin/env python3
"""A program through the pager with less VRAM and host RAM than it needs, and real memservers for the rest.

remote.py --olrun OLRUN --olmemserver OLMEMSERVER --program PROGRAM --seed N CASE

  spread    three memservers over TCP: the right result, and pages were there
  shared    the same over shared memory
  killed    replicas = 2, one of three memservers is killed at a random moment: the right result
  gone      replicas = 1, all memservers are killed at a random moment: the right result, or a CUDA error and a line that names one
  absent    a memserver that is not there: one line, and the program is told so
"""
import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
WORKING_SET = 128 * MIB


class Memserver:
    def __init__(self, program, env, transport):
        with socket.socket() as probe:  # a port that is free now
            probe.bind(("127.0.0.1", 0))
            self.address = "127.0.0.1:%d" % probe.getsockname()[1]
        self.process = subprocess.Popen(
            [program, "--listen", self.address, "--memory", "192MiB", "--transport", transport], env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            if "listening on" in line and self.address in line:
                return
        raise SystemExit("olmemserver did not start")

    def kill(self):
        self.process.kill()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def counted(errors, row):
    found = re.search(rf"^\s*{row}\s+(\S+)\s*$", errors, re.MULTILINE)
    return found.group(1) if found else "0B"


def main():
    parser = argparse.ArgumentParser()
    for name in ("--olrun", "--olmemserver", "--program"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("case", choices=["spread", "shared", "killed", "gone", "absent"])
    options = parser.parse_args()
    print("seed", options.seed)
    rng = random.Random(options.seed)
    scratch = tempfile.TemporaryDirectory(prefix="olpager-remote-")
    env = {k: v for k, v in os.environ.items() if not k.startswith("OL_")}
    env.update({"OL_SIM_VRAM": "1GiB", "OL_SIM_SEED": str(options.seed), "XDG_CONFIG_HOME": scratch.name,
                "XDG_RUNTIME_DIR": scratch.name})
    transport = "auto" if options.case == "shared" else "tcp"
    count = 0 if options.case == "absent" else 3
    servers = [Memserver(options.olmemserver, env, transport) for _ in range(count)]
    try:
        addresses = [s.address for s in servers] or ["127.0.0.1:1"]
        argv = [options.olrun, "--driver", "sim", "--vram", "16MiB", "--host", "32MiB", "--stats", "--replicas",
                "2" if options.case == "killed" else "1"]
        for address in addresses:
            argv += ["--memserver", address]
        argv += ["--", options.program, "--bytes", str(WORKING_SET), "--seed", str(options.seed % 1000)]
        child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True)
        if options.case in ("killed", "gone"):
            time.sleep(rng.uniform(0.1, 2.5))
            for server in servers if options.case == "gone" else [rng.choice(servers)]:
                server.kill()
        try:
            output, errors = child.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # the session that this call started, and nothing else
            output, errors = child.communicate()
            print(output + errors + "HUNG")
            return 1
    finally:
        for server in servers:
            server.end()
        scratch.cleanup()
    print(output + errors + f"exit {child.returncode}")
    right = child.returncode == 0 and output.startswith("OK")
    if options.case == "absent":
        return 0 if child.returncode != 0 and "127.0.0.1:1" in errors else 1
    if options.case == "gone":
        # Whatever it is told, it is told the truth: a CUDA error, never other bytes ("word ... is ..." is a wrong result).
        told = child.returncode != 0 and re.search(r"FAILED .*: (214|700|2|719|999|46|101)\b", output) is not None
        return 0 if right or (told and "memserver" in errors) else 1
    if not right:
        return 1
    if counted(errors, "to memservers") == "0B":
        print("nothing went to the memservers: this tested nothing")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
