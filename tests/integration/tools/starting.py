#!/usr/bin/env python3
"""Programs that start while a daemon is away: a second's outage is waited for, and with two replicas one memserver may be away.

starting.py --olrun OLRUN --olmemserver ... --olgpunode ... --program PROGRAM CASE

  memserver   is ended after olrun has asked it, and started again when the program connects
  gpunode     likewise
  replica     one of two memservers is not there, and comes while the program runs
  none        neither of two is there: one line, and no program
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

LONG = 60
MIB = 1 << 20


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.daemons = options, folder, []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OL_")}
        self.env.update(XDG_CONFIG_HOME=folder, XDG_RUNTIME_DIR=folder, XDG_CACHE_HOME=folder, OL_SIM_VRAM="64MiB")
        self.empty = os.path.join(folder, "empty.toml")
        open(self.empty, "w").close()

    def daemon(self, kind, at="127.0.0.1:0"):
        """The daemon and where it listens, once it does."""
        own = ["--memory", "192MiB", "--reserve", "64MiB", "--cgroup", "none"] if kind == "olmemserver" else ["--driver", "sim"]
        command = [getattr(self.options, kind), "--config", self.empty, "--listen", at, *own]
        log = os.path.join(self.folder, f"log{len(self.daemons)}")
        with open(log, "w") as file:
            process = subprocess.Popen(command, env=self.env, stdout=file, stderr=file)
        self.daemons.append(process)
        end = time.monotonic() + LONG
        while time.monotonic() < end and process.poll() is None:
            with open(log) as text:
                found = re.search(r"listening (?:at|on) (127\S+)", text.read())
            if found:
                return process, found.group(1)
            time.sleep(0.02)
        with open(log) as text:
            raise AssertionError(f"{command} did not start: {text.read()}")

    def end(self, process):
        process.kill()
        process.wait(timeout=LONG)

    def start(self, *arguments):
        """olrun with a shell that says when it runs, and becomes the program when told to."""
        command = [self.options.olrun, *arguments, "--", "sh", "-c", 'echo ready; read go; exec "$@"', "sh", self.options.program, "--bytes",
                   str((256 if "--gpunode" not in arguments else 32) * MIB)]
        return subprocess.Popen(command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def late(self, kind, *arguments):
        """Ended between olrun's question and the program's connection; there again a moment after the program has begun."""
        process, address = self.daemon(kind)
        run = self.start(*arguments, address)
        assert run.stdout.readline() == "ready\n", run.communicate()
        self.end(process)
        run.stdin.write("go\n")
        run.stdin.flush()
        time.sleep(0.5)
        assert run.poll() is None, run.communicate()  # it waits
        self.daemon(kind, address)
        return self.passes(run)

    def passes(self, run):
        out, err = run.communicate(timeout=LONG)
        assert run.returncode == 0 and "OK " in out, (run.returncode, out, err)
        return err


def memserver(bench):
    bench.late("olmemserver", "--driver", "sim", "--host", "64MiB", "--memserver")


def gpunode(bench):
    bench.late("olgpunode", "--gpunode")


def replica(bench):
    process, away = bench.daemon("olmemserver")
    bench.end(process)
    _, here = bench.daemon("olmemserver")
    run = bench.start("--driver", "sim", "--host", "128MiB", "--replicas", "2", "--memserver", away, "--memserver", here)
    assert run.stdout.readline() == "ready\n", run.communicate()
    run.stdin.write("go\n")
    run.stdin.flush()
    said = run.stderr.readline()
    assert f"memserver {away}: Connection refused" in said and "until it is there" in said, said
    bench.daemon("olmemserver", away)
    bench.passes(run)


def none(bench):
    addresses = []
    for _ in range(2):
        process, address = bench.daemon("olmemserver")
        bench.end(process)
        addresses += ["--memserver", address]
    run = bench.start("--driver", "sim", "--replicas", "2", *addresses)
    out, err = run.communicate(timeout=LONG)
    assert run.returncode == 2 and out == "" and len(err.splitlines()) == 1 and "Connection refused" in err, (run.returncode, out, err)


CASES = {case.__name__: case for case in (memserver, gpunode, replica, none)}


def main():
    parser = argparse.ArgumentParser()
    for name in ("--olrun", "--olmemserver", "--olgpunode", "--program"):
        parser.add_argument(name, required=True)
    parser.add_argument("case", choices=CASES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-starting-") as folder:
        bench = Bench(options, folder)
        try:
            CASES[options.case](bench)
        finally:
            for process in bench.daemons:
                if process.poll() is None:
                    bench.end(process)
    return 0


if __name__ == "__main__":
    sys.exit(main())
