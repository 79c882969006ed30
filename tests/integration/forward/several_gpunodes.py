#!/usr/bin/env python3
"""Programs with two gpunodes, each with a device: one is lost, or not there; devices are chosen among those of both; NVML shows them all.

several_gpunodes.py --olgpunode OLGPUNODE --olrun OLRUN --steps STEPS_ON_DEVICES --probe NVML_PROBE [--env NAME=VALUE]... SCENARIO [tcp|shm]
"""
import os
import re
import signal
import time

import sessions
from sessions import LONG, run


class Pair(sessions.Bench):
    """Two gpunodes and their clients."""

    def __init__(self, options):
        super().__init__(options)
        self.nodes = [self.node, self.start([options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--vram", "64MiB",
                                             "--memory", "256MiB", "--grace", str(sessions.GRACE)])]
        self.addresses = [node.wait_log(r"listening at (\S+)").group(1) for node in self.nodes]

    def program(self, command, more=None, addresses=None):
        self.env.update(more or {})
        named = [word for address in addresses or self.addresses for word in ("--gpunode", address)]
        child = self.start([self.options.olrun] + named + ["--transport", self.options.transport, "--"] + command)
        for name in more or {}:
            del self.env[name]
        return child

    def pair(self, more=None):
        child = self.program([self.options.steps], more)
        said = child.line()
        assert said == "ready", f"{said}: {child.log}"
        return child

    def worker_of(self, number):
        return int(self.nodes[number].wait_log(r"worker (\d+)$").group(1))


def fields(answer):
    assert answer.startswith("ok "), answer
    return dict(word.split("=", 1) for word in answer.split()[1:])


def lost(bench):
    """A worker is killed: its device's calls fail, the other device goes on."""
    client = bench.pair()
    for line in ("step 0", "step 1", "fetch 0", "fetch 1"):
        assert client.ask(line) == "ok", line
    os.kill(bench.worker_of(1), signal.SIGKILL)
    assert client.ask("step 1").startswith("error ")
    client.wait_log(rf"session on gpunode {re.escape(bench.addresses[1])} is lost: .*killed by signal 9")
    for _ in range(3):
        assert client.ask("step 0") == "ok", client.log
    assert client.ask("step 1", 5).startswith("error "), "an error that went away"
    assert client.ask("fetch 0", 10).startswith("error ")
    client.process.stdin.close()
    assert client.process.wait(LONG) == 0


def lost_in_between(bench):
    """What a stream waits for is lost with its gpunode: an error, neither a wait for ever nor success."""
    client = bench.pair()
    assert client.ask("step 0") == "ok" and client.ask("step 1") == "ok"
    assert client.ask("hang 1") == "ok"  # device 0 has to wait for device 1's copy
    os.kill(bench.worker_of(1), signal.SIGKILL)
    said = client.ask("sync 0", 20)
    assert said.startswith("error "), said
    assert client.ask("step 1", 5).startswith("error ")
    client.process.stdin.close()
    client.process.wait(LONG)
    # The gpunodes themselves serve the next program.
    assert bench.pair().ask("fetch 0") == "ok"


def visible(bench):
    """CUDA_VISIBLE_DEVICES counts the devices of all gpunodes."""
    both = bench.pair().ask("devices").split()
    assert both[:2] == ["ok", "2"] and both[2] != both[3], both
    for chosen, expected in (("0", [both[2]]), ("1", [both[3]]), ("1,0", [both[3], both[2]]), ("0,1,5", both[2:])):
        said = bench.pair({"CUDA_VISIBLE_DEVICES": chosen}).ask("devices").split()
        assert said[2:] == expected, (chosen, said, expected)
    none = bench.program([bench.options.steps], {"CUDA_VISIBLE_DEVICES": "7"})
    assert none.line().startswith("error "), none.log
    none.wait_log("CUDA_VISIBLE_DEVICES=7 names none of the 2 devices")


def not_there(bench):
    """A gpunode that can't be reached, or that is named twice: olrun says so and starts nothing."""
    address = "127.0.0.1:1"
    child = bench.program([bench.options.steps], addresses=[bench.addresses[0], address])
    assert child.process.wait(LONG) == 2 and child.line() is None
    child.wait_log(rf"^olrun: .*{address}")
    child = bench.program([bench.options.steps], addresses=[bench.addresses[0], bench.addresses[0]])
    assert child.process.wait(LONG) == 2 and child.line() is None
    child.wait_log("named twice")


def nvml(bench):
    """NVML has the devices of both, in the same order; those of a gpunode that is gone are lost, the others stay."""
    probe = bench.program([bench.options.probe])
    assert probe.ask("load") == "ok" and probe.ask("init") == "ok", probe.log
    assert fields(probe.ask("system"))["count"] == "2"
    cuda = bench.pair().ask("devices").split()[2:]
    for index in (0, 1):
        device = fields(probe.ask(f"device {index}"))
        assert device["index"] == str(index) and device["legacy"] == cuda[index].upper(), (device, cuda)
        assert fields(probe.ask(f"state {index}"))["sums"] == "yes"
    assert probe.ask("pair 0 1") == "ok 5 5 5"
    bench.nodes[1].end()
    time.sleep(0.3)
    assert probe.ask("state 1") == "failed nvmlDeviceGetMemoryInfo 15 GPU is lost"
    assert fields(probe.ask("state 0"))["sums"] == "yes"
    assert fields(probe.ask("device 1"))["index"] == "1", "what a device is was known"


SCENARIOS = [lost, lost_in_between, visible, not_there, nvml]

if __name__ == "__main__":
    run(SCENARIOS, __doc__, ("--olgpunode", "--olrun", "--steps", "--probe"), Pair)
