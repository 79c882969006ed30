#!/usr/bin/env python3
"""A program, its gpunode and a memserver on hosts of their own: network namespaces joined by a bridge (tests/integration/remote/hosts.py).

networks.py --olgpunode OLGPUNODE --olrun OLRUN --olctl OLCTL --olmemserver OLMEMSERVER --steps STEPS --saxpy SAXPY --unchecked UNCHECKED SCENARIO
"""
import json
import os
import random
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "remote"))
import hosts
import sessions
from sessions import GRACE, LONG

SILENT = 1  # seconds: a third of GRACE, after which a client takes a silent worker for lost


class Bench(sessions.Bench):
    """A gpunode on one host, its clients on another."""

    def begin(self):
        self.key = os.path.join(self.scratch.name, "key")
        subprocess.run([self.options.olctl, "keygen", "--name", "test", "--out", self.key], check=True, capture_output=True)
        self.network = hosts.Hosts()
        self.near, self.far = self.network.add("near"), self.network.add("far")
        self.address = f"{self.far.address}:7071"

    def gpunode(self, *options, **env):
        before, self.env = self.env, {**self.env, **env}
        self.node = self.start(self.far.command(
            self.options.olgpunode, "--listen", self.address, "--driver", "sim", "--key", self.key, "--grace", str(GRACE), *options))
        self.env = before
        self.node.wait_log(r"listening at (\S+)")

    def program(self, *command):
        return self.start(self.near.command(self.options.olrun, "--gpunode", self.address, "--transport", "tcp", "--key", self.key, "--",
                                            *command))

    def steps(self):
        child = self.program(self.options.steps)
        said = child.line()
        assert said == "ready", f"{said}: {child.log}"
        return child


def slow(bench):
    """200 Mbit/s and short queues, which drop what does not fit: everything is right, at that pace."""
    try:
        for host in (bench.near, bench.far):
            host.shape("200mbit")
    except OSError as why:
        hosts.skip(why)
    bench.gpunode("--vram", "64MiB", "--memory", "256MiB")
    clients = [bench.steps() for _ in range(2)]
    for client, work in zip(clients, ("step 300", "functions 50")):
        client.tell(work)
    assert clients[0].line() == "ok 300", clients[0].log
    assert clients[1].line() == "ok 0", clients[1].log
    for client, done in zip(clients, (300, 0)):
        assert client.ask("bulk 1", 2 * LONG) == f"ok {done}", client.log
        assert client.ask("copy 2", 2 * LONG) == f"ok {done}", client.log
        client.process.stdin.close()
        assert client.line() == f"OK steps: {done}"
    shown = subprocess.run(["tc", "-s", "-n", "far", "qdisc", "show", "dev", "eth0"], check=True, capture_output=True, text=True).stdout
    print(shown)
    assert int(re.search(r"overlimits (\d+)", shown).group(1)) > 0, "the network was not slow"


def unplugged(bench):
    """A network that is out for less than the grace time, at random moments, with or without a carrier: nothing is lost, nothing comes twice."""
    bench.gpunode("--vram", "64MiB", "--memory", "256MiB")
    chance = random.Random(int(os.environ.get("OL_TEST_SEED", "0")) or 1)
    client, done = bench.steps(), 0
    for _ in range(5):
        work = chance.choice(["step 2000", "copy 20", "bulk 2", "functions 300"])
        link = chance.choice([bench.near.cable, bench.far.cable])
        client.tell(work)
        time.sleep(chance.random() * 0.3)
        link(False)
        time.sleep(chance.uniform(0.2, GRACE + SILENT - 2))  # a second goes by before a neighbour is looked for again
        link(True)
        done += 2000 if work.startswith("step") else 0
        assert client.line() == f"ok {done}", (work, client.log)
    client.process.stdin.close()
    assert client.line() == f"OK steps: {done}"


def unplugged_for_good(bench):
    """For longer: an error and a line on the one side, nothing left on the other."""
    bench.gpunode("--vram", "64MiB", "--memory", "256MiB")
    client = bench.steps()
    client.tell("copy 100000")
    time.sleep(0.3)
    bench.far.cable(False)
    assert client.line().startswith("error "), "a success without a network"
    client.wait_log("session on the gpunode is lost")
    bench.gone(bench.worker(0), LONG)  # 10 s of silence, then the grace time
    bench.far.cable(True)
    again = bench.steps()
    assert again.ask("step 5") == "ok 5"


def memserver_of(bench, *options):
    """Behind the gpunode, on a third host: the host, the memserver's address and its process."""
    third = bench.network.add("third")
    at = f"{third.address}:7070"
    proc = os.path.join(bench.scratch.name, "proc")
    os.makedirs(proc + "/pressure")
    for name, text in (("meminfo", f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {4 << 20} kB\n"),
                       ("pressure/memory", "some avg10=0 avg60=0 avg300=0 total=0\nfull avg10=0 avg60=0 avg300=0 total=0\n")):
        with open(f"{proc}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    server = bench.start(third.command(bench.options.olmemserver, "--listen", at, "--memory", "192MiB", "--key", bench.key, "--cgroup", "none",
                                       "--proc", proc, "--reserve", "64MiB", *options))
    while "listening on" not in server.line():
        pass
    bench.gpunode("--vram", "16MiB", "--memory", "32MiB", OL_MEMSERVER=at, OL_KEY=bench.key)
    return third, at, server


def memserver(bench):
    """A forwarded program's memory goes beyond its gpunode's, to a memserver on a third host."""
    third, at, _ = memserver_of(bench)

    def lent():
        return json.loads(subprocess.run(third.command(bench.options.olmemserver, "--state", "--json", "--listen", at, "--key", bench.key),
                                         check=True, capture_output=True, text=True, env=bench.env).stdout)["lent"]

    for killed in (False, True):
        program = bench.program(bench.options.saxpy, "--bytes", str(128 << 20), "--seed", "5")
        most = 0
        while program.process.poll() is None and not (killed and most > 64 << 20):
            most = max(most, lent())
        assert most > 64 << 20, f"hardly anything was there: {most}"
        if killed:
            program.process.kill()
        else:
            said = program.line()
            assert said is not None and said.startswith("OK"), (said, program.log, bench.node.log[-10:])
        end = time.monotonic() + 5  # and not only when the lease has run out
        while (left := lent()) != 0:
            assert time.monotonic() < end, f"{left} bytes are still lent to a worker that has ended"
            time.sleep(0.1)


def memserver_lost(bench):
    """Likewise, and it is killed: a program that looks at none of its launches is told by its waits, and by a line that says who lost what."""
    _, at, server = memserver_of(bench, "--lease-time", "6s")
    program = bench.program(bench.options.unchecked, "--bytes", str(128 << 20))
    assert program.line() == "filled", program.log
    server.process.kill()
    said = program.line()
    assert said == "OK unchecked: told", (said, program.log, bench.node.log[-10:])
    program.wait_log(f"at the gpunode: .*memserver {at}")
    program.wait_log("at the gpunode: a launch or copy is refused")


SCENARIOS = [slow, unplugged, unplugged_for_good, memserver, memserver_lost]

if __name__ == "__main__":
    hosts.enter()
    sessions.run(SCENARIOS, __doc__, ("--olgpunode", "--olrun", "--olctl", "--olmemserver", "--steps", "--saxpy", "--unchecked"), Bench)
