#!/usr/bin/env python3
"""Runs one program of tests/apps on the simulated GPU, alone or through the pager, and says how it went.

run_app.py --mode native|fits|paged|forward [options] PROGRAM

  native  the program on the simulated GPU alone
  fits    through olrun, with a VRAM budget that holds everything
  paged   through olrun, with a quarter of --bytes; something has to have been in host memory
  forward through olrun --gpunode, on an olgpunode of its own with the simulated GPU and room for everything; the program itself
          has no driver. The session has to be gone from the gpunode soon after the program's end

Exits with the program's status (77: skipped), 1 when it was silent, hung, or did not page in a paged run.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
USUAL_TIMEOUT = 45  # seconds


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["native", "fits", "paged", "forward"], required=True)
    parser.add_argument("--bytes", type=int, default=32 * MIB, help="the program's working set")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reach", default="traced")
    parser.add_argument("--vram", type=int, help="budget in bytes instead of the mode's")
    parser.add_argument("--host", type=int, default=512 * MIB, help="host tier in bytes")
    parser.add_argument("--sim-vram", type=int, default=1024 * MIB, help="VRAM of the simulated GPU")
    parser.add_argument("--sim-mode", default="", help="lazy, jitter, scribble, separated by commas")
    parser.add_argument("--va-base", help="where the pager's range starts")
    parser.add_argument("--va-size", help="its size")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-paging-expected", action="store_true")
    parser.add_argument("--expect", action="append", default=[], metavar="REGEX", help="what through the pager is on a line that is not the program's")
    parser.add_argument("--olrun-option", action="append", default=[], metavar="OPTION", help="in mode forward: of the program's side alone")
    parser.add_argument("--gpunode-option", action="append", default=[], metavar="OPTION", help="in mode forward: of the gpunodes alone")
    parser.add_argument("--timeout", type=float, default=USUAL_TIMEOUT, help="of the program; other patience is longer as this is")
    parser.add_argument("--olrun")
    parser.add_argument("--olgpunode")
    parser.add_argument("--transport", default="auto", help="in mode forward: auto, tcp, shm or verbs")
    parser.add_argument("--listen", default="127.0.0.1", help="in mode forward: the address of gpunodes")
    parser.add_argument("--olctl", help="in mode forward: makes a key for both sides, whose links are then as RDMA needs them (tls = off)")
    parser.add_argument("--gpunodes", type=int, default=1, help="in mode forward: how many, each with one device unless --env says more")
    parser.add_argument("--view", help="in mode forward: discrete or unified, as olrun's")
    parser.add_argument("--route", help="in mode forward: as olrun's, a gpunode by its number, with /N of its GPU N")
    parser.add_argument("--olmemserver", help="in mode forward: the gpunodes borrow RAM of one of these, 256 MiB")
    parser.add_argument("--visible", help="in mode forward: CUDA_VISIBLE_DEVICES of the program alone")
    parser.add_argument("--sim-native", required=True, help="folder with the simulated GPU's libcuda.so.1")
    parser.add_argument("program")
    parser.set_defaults(trust=[])
    return parser.parse_args()


def environment(options, scratch):
    env = {k: v for k, v in os.environ.items() if not k.startswith("OL_")}
    env["OL_SIM_VRAM"] = str(options.sim_vram)
    env["OL_SIM_SEED"] = str(options.seed)
    if options.sim_mode:
        env["OL_SIM_MODE"] = options.sim_mode
    env["XDG_CONFIG_HOME"] = scratch  # nobody's own settings
    env["XDG_CACHE_HOME"] = scratch  # nor compiled code
    env["XDG_RUNTIME_DIR"] = scratch  # and counters that no other test sees
    env.update(pair.split("=", 1) for pair in options.env)
    if options.olctl:
        key = os.path.join(scratch, "key")
        subprocess.run([options.olctl, "keygen", "--name", "pair", "--out", key], check=True, stdout=subprocess.DEVNULL)
        options.trust = ["--key", key, "--tls", "off"]
    if options.mode == "native":
        env["LD_LIBRARY_PATH"] = options.sim_native
    return env


class Daemon:
    """One of this test's own, on loopback."""

    def __init__(self, options, env, listening, *command):
        self.patience = options.timeout / USUAL_TIMEOUT
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log)
        self.address = self.wait_for(listening, 20 * self.patience)

    def text(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def wait_for(self, pattern, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, self.text())
            if found:
                return found.group(1)
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        return None

    def end(self):
        """Ends it; what was wrong with that, or None."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout=10 * self.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"{self.process.args[0]} did not end"
        return f"{self.process.args[0]} ended with {status}" if status else None


class Memserver(Daemon):
    def __init__(self, options, env):
        super().__init__(options, env, r"olmemserver: listening on (\S+)", options.olmemserver, "--listen", "127.0.0.1:0", "--memory", "256MiB", "--reserve", "64MiB", "--log", "debug")

    def end(self):
        borrowed = self.wait_for(r"(session \d+.*: \d+ slabs are lent to it)", 0.1)
        return super().end() or (None if borrowed else "nobody borrowed of the memserver")


class Gpunode(Daemon):
    def __init__(self, options, env, vram, listen="127.0.0.1", more=()):
        """more: further options of olgpunode."""
        super().__init__(options, env, r"listening at (\S+)", options.olgpunode, "--listen", f"{listen}:0", "--driver", "sim",
                         "--vram", str(vram), "--memory", str(options.host), "--cache", "none", *more,
                         *(["--transport", "verbs"] if options.transport == "verbs" else []))  # also to each other

    def end(self):
        gone = self.wait_for(r"(session \S+: ends: .*: its (?:program has ended|worker .*))", 10 * self.patience)
        ended = super().end()
        if ended:
            return ended
        if gone is None:
            return "the session was not gone from the gpunode soon after the program's end"
        return "the worker was killed" if "killed" in gone else None


def budget(options):
    return options.vram or (options.bytes // 4 if options.mode == "paged" else 2 * options.bytes + 64 * MIB)


def command(options, gpunodes=()):
    program = [options.program, "--bytes", str(options.bytes), "--seed", str(options.seed)]
    if options.mode == "native":
        return program
    if options.mode == "forward":
        named = [word for gpunode in gpunodes for word in ("--gpunode", gpunode.address)]
        view = ["--view", options.view] if options.view else []
        if options.route:
            number, slash, gpu = options.route.partition("/")
            view += ["--route", gpunodes[int(number)].address + slash + gpu if number.isdecimal() else options.route]
        return [options.olrun] + named + view + ["--transport", options.transport] + options.trust + options.olrun_option + ["--"] + program
    vram = budget(options)
    run = [options.olrun, "--driver", "sim", "--vram", str(vram), "--host", str(options.host), "--reach", options.reach]
    if options.va_base:
        run += ["--va-base", options.va_base]
    if options.va_size:
        run += ["--va-size", options.va_size]
    return run + ["--stats", "--"] + program


def counted(errors, row):
    """What a row of the table of `olrun --stats` says, over all devices; 0 without it."""
    found = re.search(rf"^\s*{row}((?:\s+\d+)+)\s*$", errors, re.MULTILINE)
    return sum(int(n) for n in found.group(1).split()) if found else 0


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="olpager-app-") as scratch:
        env = environment(options, scratch)
        memservers = [Memserver(options, env)] if options.olmemserver else []
        borrows = {"OL_MEMSERVER": memservers[0].address or "none"} if memservers else {}
        many = range(options.gpunodes if options.mode == "forward" else 0)
        more = options.trust + options.gpunode_option
        gpunodes = [Gpunode(options, env | borrows, budget(options), options.listen, more) for _ in many]
        daemons = gpunodes + memservers
        for daemon in daemons:
            if daemon.address is None:
                print(f"{daemon.process.args[0]} did not start:\n" + daemon.text())
                for one in daemons:
                    one.process.kill()
                return 1
        argv = command(options, gpunodes)
        started = time.monotonic()
        own = dict(env, CUDA_VISIBLE_DEVICES=options.visible) if options.visible is not None else env
        child = subprocess.Popen(argv, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, errors="replace", start_new_session=True)
        try:
            output, errors = child.communicate(timeout=options.timeout)
            hung = False
        except subprocess.TimeoutExpired:
            hung = True
            os.killpg(child.pid, signal.SIGKILL)  # the session that this call started, and nothing else
            output, errors = child.communicate()
        took = time.monotonic() - started
        ends = [daemon.end() for daemon in daemons]
        wrong = next((end for end in ends if end), None)
        for daemon in daemons:
            errors += daemon.text()
    print("$ " + " ".join(argv))
    sys.stdout.write(output)
    sys.stdout.write(errors)
    if hung:
        print(f"HUNG: no end within {options.timeout:g} s")
        return 1
    if wrong:
        print(wrong)
        return 1
    status = child.returncode
    print(f"exit {status} after {took:.2f} s")
    if status == 77:
        return 77
    if status != 0:
        return 1
    if not output.startswith("OK") and "\nOK" not in output:
        print("the program did not say OK")
        return 1
    if "connecting again" in errors:
        print("a link was lost that nobody cut")
        return 1
    if options.mode == "paged" and not options.no_paging_expected:
        parked = re.search(r"^\s*(in host RAM|used in place) .*peak [1-9]", errors, re.MULTILINE)
        if counted(errors, "evictions") + counted(errors, "in place") == 0 and not parked:
            print("nothing was evicted, used in place or kept in host memory: this tested no paging")
            return 1
    for expected in options.expect if options.mode != "native" else []:
        if not re.search(expected, errors, re.MULTILINE):
            print(f"no line has {expected}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
