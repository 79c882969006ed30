#!/usr/bin/env python3
"""A program through the pager with less VRAM and host RAM than it needs, and real memservers for the rest. The program compares
its result with the CPU's.

remote.py --olrun OLRUN --olmemserver OLMEMSERVER --program PROGRAM [--olctl OLCTL] [--session SESSION] [--env NAME=VALUE]... --seed N CASE

On loopback:
  spread    three memservers over TCP: the right result, and pages were there
  shared    the same over shared memory
  killed    replicas = 2, one of three memservers is killed: the right result, without waiting for its lease, which outlasts the test
  stopped   likewise, stopped for good
  gone      replicas = 1, all memservers are killed: the right result, or a CUDA error and a line that names one
  unchecked likewise, of a program that looks at no launch's result: it is told by its waits, until it resets the device
  ended     all memservers are ended (SIGTERM), and wait: the right result, and they end with the program
  dismissed likewise, and don't wait: the right result, or a CUDA error and a line that names one, before leases run out
  absent    a memserver that is not there: one line, and no program
  never     a program whose launches can never fit VRAM and host RAM: each is refused at once, and what fits goes on

Each on a host of its own (hosts.py), with a key and TLS; one of three memservers
  host-killed     is killed
  host-paused     is stopped for less than the lease time
  host-stopped    is stopped for longer, and goes on
  host-cut        loses its network for less than the lease time (or the program does)
  host-severed    loses it for longer, and gets it back
  host-restarted  is killed and started again at its address
  host-recalled   runs short of memory, and wants back what it lent
  host-storm      several of these, one after the other
  host-shaped     none of these, but all links at 1 Gbit/s
  host-narrow     loses every large packet from a moment on, and no small one: it renews, and no page comes; replicas = 1. The
                  right answer is a CUDA error and a line that names it, when its lease time is over
  host-behind     likewise; a session reads on demand behind 256 MiB of write-back, and of prefetch: it waits for a few slices of them

at moments that the seed chooses: so many of the program's launches and copies done. What is less than the lease time, or a recall, or happens
with replicas = 2 to one memserver, has to end with the right result. What loses pages (replicas = 1) may end with a CUDA error
and a line that names the memserver instead. Nothing may end with a wrong result, or not at all.
"""
import argparse
import glob
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import hosts

MIB = 1 << 20
WORKING_SET = 128 * MIB
OPERATIONS = 96  # launches and copies of the program with that
LEASE = 6.0
SHORT, LONG = (0.1, 2.0), (LEASE + 1, LEASE + 2)  # seconds
PATIENCE = 120  # seconds: what takes longer hangs


class Memserver:
    """A daemon; its last lines are kept for a failed test."""

    def __init__(self, run, number, host=None, transport="tcp", memory=192 * MIB, lease=LEASE, more=()):
        self.host, self.proc = host, os.path.join(run.scratch, f"proc{number}")
        self.available(4096 * MIB)
        self.address = f"{host.address}:7070" if host else "127.0.0.1:0"  # alone on its host, else any port: start() has it
        self.command = [run.options.olmemserver, "--listen", self.address, "--memory", str(memory), "--transport", transport, "--proc",
                        self.proc, "--reserve", "64MiB", "--cgroup", "none", "--calm-time", "1s", "--lease-time", f"{lease:g}s", *more]
        if host:
            self.command = host.command(*self.command, "--key", run.key)
        self.env = run.env
        self.start()

    def available(self, amount):
        """What it believes that its machine has."""
        os.makedirs(self.proc + "/pressure", exist_ok=True)
        for name, text in (("meminfo", f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {amount >> 10} kB\n"),
                           ("pressure/memory", "some avg10=0 avg60=0 avg300=0 total=0\nfull avg10=0 avg60=0 avg300=0 total=0\n")):
            with open(f"{self.proc}/{name}.new", "w") as file:
                file.write(text)
            os.replace(f"{self.proc}/{name}.new", f"{self.proc}/{name}")

    def start(self):
        self.process = subprocess.Popen(self.command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            at = re.search(r"listening on ([0-9.]+:[0-9]+)", line)
            if at and (self.host is None or at.group(1) == self.address):
                self.address = at.group(1)
                threading.Thread(target=self.drain, args=(self.process.stdout,), daemon=True).start()
                return
        raise SystemExit(f"olmemserver did not start: {' '.join(self.command)}")

    @staticmethod
    def drain(stream):
        for _ in stream:
            pass

    def kill(self):
        self.process.kill()
        self.process.wait()


class Program:
    def __init__(self, run, servers, replicas, host=None):
        argv = [run.options.olrun, "--driver", "sim", "--vram", "16MiB", "--host", "32MiB", "--stats", "--replicas", str(replicas)]
        if host:
            argv += ["--key", run.key]
        for address in [s.address for s in servers] or ["127.0.0.1:1"]:
            argv += ["--memserver", address]
        working_set = WORKING_SET // 2 if run.options.case == "never" else WORKING_SET
        argv += ["--", run.options.program, "--bytes", str(working_set), "--seed", str(run.options.seed % 1000)]
        self.scratch, self.deadline = run.scratch, time.monotonic() + PATIENCE
        self.process = subprocess.Popen(host.command(*argv) if host else argv, env=run.env, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, start_new_session=True)

    def operations(self):
        """Launches and copies so far, from its counters (docs/reference/counters.md)."""
        for path in glob.glob(self.scratch + "/olpager/*.counters"):
            try:
                with open(path, "rb") as file:
                    data = file.read(288)
            except OSError:
                continue
            if len(data) == 288 and data[:7] == b"OLCOUNT":
                return struct.unpack_from("<Q", data, 256)[0] + struct.unpack_from("<Q", data, 280)[0]
        return 0

    def await_operation(self, number):
        """False: it ended before, or takes too long."""
        while self.operations() < number:
            if self.process.poll() is not None or time.monotonic() > self.deadline:
                return False
            time.sleep(0.001)
        return True

    def finish(self):
        """Its status, output and errors; None: it hung."""
        try:
            output, errors = self.process.communicate(timeout=max(1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # the session that was started above, and nothing else
            output, errors = self.process.communicate()
            print(output + errors + "HUNG")
            return None
        print(output + errors + f"exit {self.process.returncode}")
        return self.process.returncode, output, errors


class Run:
    """What a case is given: the seed's choices, a folder, a network."""

    def __init__(self, options, scratch):
        self.options, self.scratch, self.rng = options, scratch, random.Random(f"{options.case} {options.seed}")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OL_")}
        self.env.update({"OL_SIM_VRAM": "1GiB", "OL_SIM_SEED": str(options.seed), "XDG_CONFIG_HOME": scratch, "XDG_RUNTIME_DIR": scratch})
        self.env.update(pair.split("=", 1) for pair in options.env)
        self.key = os.path.join(scratch, "key")
        self.servers = []

    def on_loopback(self, count, transport="tcp", lease=LEASE, more=()):
        self.servers += [Memserver(self, number, transport=transport, lease=lease, more=more) for number in range(count)]

    def on_hosts(self, count=3, rate=None, memory=192 * MIB):
        subprocess.run([self.options.olctl, "keygen", "--name", "test", "--out", self.key], check=True, stdout=subprocess.DEVNULL)
        network = hosts.Hosts()
        self.gpu = network.add("gpu")
        hosts_of_memory = [network.add(f"memory{number}") for number in range(count)]
        for host in [self.gpu, *hosts_of_memory] if rate else []:
            try:
                host.shape(rate)
            except OSError as why:
                hosts.skip(why)
        self.servers += [Memserver(self, number, host, memory=memory) for number, host in enumerate(hosts_of_memory)]

    def moment(self, first=4, last=OPERATIONS - 4):
        return self.rng.randint(first, last)


# ---- what happens to a memserver (or to the program's host: network only). Each returns when it is over.


def killed(_run, server):
    server.kill()


def stop_for(server, seconds):
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    server.process.send_signal(signal.SIGCONT)


def paused(run, server):
    stop_for(server, run.rng.uniform(*SHORT))


def stopped(run, server):
    stop_for(server, run.rng.uniform(*LONG))


def away_for(run, host, seconds):
    link = run.rng.choice([host.cable, host.interface])
    link(False)
    time.sleep(seconds)
    link(True)


def cut(run, server):
    away_for(run, run.rng.choice([server.host, run.gpu]), run.rng.uniform(*SHORT))


def severed(run, server):
    away_for(run, server.host, run.rng.uniform(*LONG))


def restarted(_run, server):
    server.kill()
    server.start()


def recalled(run, server):
    server.available(run.rng.choice([0, 16, 40]) * MIB)  # the reserve is 64 MiB: free slabs go, then lent ones
    time.sleep(run.rng.uniform(1.5, 3))
    server.available(4096 * MIB)


HARMLESS, HARMFUL = [paused, cut, recalled], [killed, stopped, severed, restarted]


# ---- verdicts


def counted(errors, row):
    found = re.search(rf"^\s*{row}\s+(\S+)\s*$", errors, re.MULTILINE)
    return found.group(1) if found else "0B"


def is_right(end):
    """The right result, and memservers had a part in it."""
    if end is None or end[0] != 0 or not end[1].startswith("OK"):
        return False
    if counted(end[2], "to memservers") == "0B":
        print("nothing went to the memservers: this tested nothing")
        return False
    return True


def was_told(end, servers):
    """The truth: a CUDA error, never other bytes ("element ... is ..." is a wrong result), and who lost what."""
    return (end is not None and end[0] != 0 and re.search(r"FAILED .*: (214|700|2|719|999|46|101)\b", end[1]) is not None
            and any(f"memserver {server.address}" in end[2] for server in servers))


# ---- the cases


def loopback_case(run, case):
    one_goes = case in ("killed", "stopped")
    run.on_loopback(0 if case == "absent" else 3, "auto" if case == "shared" else "tcp", 10 * PATIENCE if one_goes else LEASE)
    program = Program(run, run.servers, 2 if one_goes else 1)
    if one_goes or case == "gone":
        program.await_operation(run.moment())
        for server in run.servers if case == "gone" else [run.rng.choice(run.servers)]:
            server.process.send_signal(signal.SIGSTOP) if case == "stopped" else server.kill()
    if case == "unchecked":
        program.await_operation(run.moment(40, 150))  # of 288; it has all its memory by then
        for server in run.servers:
            server.kill()
        end = program.finish()
        return (end is not None and end[:2] == (0, "filled\nOK unchecked: told\n")
                and any(f"memserver {server.address}" in end[2] for server in run.servers))
    end = program.finish()
    if case in ("spread", "shared") and is_right(end):
        chosen = re.search(r"^  memservers +(\d) by tcp, (\d) by shm, ", end[2], re.MULTILINE)
        return chosen is not None and chosen.groups() == (("3", "0") if case == "spread" else ("0", "3"))
    if case == "absent":
        return end is not None and end[0] == 2 and end[1] == "" and "127.0.0.1:1" in end[2]
    if case == "never":
        return is_right(end) and ", 6 launches refused" in end[1] and "fit VRAM and host RAM" in end[2]
    return is_right(end) or (case == "gone" and was_told(end, run.servers))


def ended_case(run, case):
    waits = case == "ended"
    run.on_loopback(run.rng.choice([1, 1, 3]), run.rng.choice(["tcp", "auto"]), 10 * PATIENCE,
                    ["--shutdown-timeout", f"{PATIENCE}s" if waits else "300ms"])
    program = Program(run, run.servers, 1)
    program.await_operation(run.moment(first=OPERATIONS // 2))  # it has all its memory by then
    for server in run.servers:
        server.process.terminate()
        time.sleep(run.rng.uniform(0, 0.3))
    end = program.finish()
    if not waits:
        return is_right(end) or was_told(end, run.servers)
    return is_right(end) and all(server.process.wait(PATIENCE / 10) == 0 for server in run.servers)


def host_case(run, case):
    run.on_hosts(rate="1gbit" if case == "shaped" else None)
    by_name = {event.__name__: event for event in HARMLESS + HARMFUL}
    victim = run.rng.choice(run.servers)
    replicas = run.rng.choice([1, 2])
    if case == "storm":
        # One memserver is harmed, again and again; the others only so that nothing is lost.
        replicas = 2
        events = [(event, victim if event in HARMFUL else run.rng.choice(run.servers))
                  for event in (run.rng.choice(HARMLESS + HARMFUL) for _ in range(4))]
    else:
        events = [(by_name[case], victim)] if case != "shaped" else []
    moments = sorted(run.moment() for _ in events)
    print(f"replicas {replicas};", ", ".join(f"{event.__name__} {server.address} at operation {moment}"
                                             for (event, server), moment in zip(events, moments)) or "nothing happens")
    program = Program(run, run.servers, replicas, run.gpu)
    for (event, server), moment in zip(events, moments):
        if not program.await_operation(moment):
            break
        if event in (restarted, killed) or server.process.poll() is None:
            event(run, server)
    end = program.finish()
    loses = replicas == 1 and any(event in HARMFUL for event, _ in events)
    return is_right(end) or (loses and was_told(end, run.servers))


def narrow_case(run):
    run.on_hosts()
    for host in [run.gpu, *(server.host for server in run.servers)]:
        try:
            host.whole_packets()
        except OSError as why:
            hosts.skip(why)
    victim = run.rng.choice(run.servers)
    program = Program(run, run.servers, 1, run.gpu)
    if not program.await_operation(run.moment(OPERATIONS // 3, OPERATIONS // 2)):
        program.finish()
        return False
    victim.host.narrow(600)
    begun = time.monotonic()
    reached = subprocess.run(run.gpu.command(sys.executable, "-c", "import socket, sys; socket.create_connection((sys.argv[1], 7070), 10)",
                                             victim.host.address)).returncode == 0
    end = program.finish()
    took = time.monotonic() - begun
    print(f"over {took:.1f} s after packets were lost to {victim.address}; small ones {'reach' if reached else 'do not reach'} it")
    # The session counts nine tenths of the lease time; then the program ends, on a machine that may be busy.
    return reached and was_told(end, [victim]) and took < LEASE + 20


def behind_case(run):
    run.on_hosts(count=1, rate="1gbit", memory=272 * MIB)
    session = subprocess.run(run.gpu.command(run.options.session, "--connect", run.servers[0].address, "--key", run.key), env=run.env,
                             input=f"lease {272 * MIB}\nbehind {256 * MIB}\nquit\n", capture_output=True, text=True, timeout=PATIENCE)
    print(session.stdout + session.stderr)
    found = re.search(r"^behind alone (\d+) write-back (\d+) prefetch (\d+)$", session.stdout, re.MULTILINE)
    if session.returncode != 0 or found is None:
        return False
    alone, write_back, prefetch = map(int, found.groups())
    # docs/internals/transport.md, Order and urgency: about one slice; and one for what the system does meanwhile.
    slice_us = (256 << 10) / 125  # at 1 Gbit/s
    late = {"write-back": (write_back - alone) / slice_us, "prefetch": (prefetch - alone) / slice_us}
    print(", ".join(f"{slices:.2f} slices late behind {what}" for what, slices in late.items()))
    return max(late.values()) < 2


LOOPBACK_CASES = ["spread", "shared", "killed", "stopped", "gone", "unchecked", "absent", "never", "ended", "dismissed"]
HOST_CASES = ["host-" + name for name in ("killed", "paused", "stopped", "cut", "severed", "restarted", "recalled", "storm", "shaped",
                                                 "narrow", "behind")]


def main():
    parser = argparse.ArgumentParser()
    for name in ("--olrun", "--olmemserver", "--program"):
        parser.add_argument(name, required=True)
    parser.add_argument("--olctl")
    parser.add_argument("--session")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for all that is started")
    parser.add_argument("case", choices=LOOPBACK_CASES + HOST_CASES)
    options = parser.parse_args()
    if options.case in HOST_CASES:
        hosts.enter()
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
    print("seed", options.seed)
    with tempfile.TemporaryDirectory(prefix="olpager-remote-") as scratch:
        run = Run(options, scratch)
        try:
            if options.case == "host-behind":
                good = behind_case(run)
            elif options.case == "host-narrow":
                good = narrow_case(run)
            elif options.case in HOST_CASES:
                good = host_case(run, options.case.removeprefix("host-"))
            elif options.case in ("ended", "dismissed"):
                good = ended_case(run, options.case)
            else:
                good = loopback_case(run, options.case)
        finally:
            for server in run.servers:
                server.kill()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
