#!/usr/bin/env python3
"""Programs with two gpunodes, each with a device: one is lost, or not there; devices are chosen among those of both; NVML shows them all.

several_gpunodes.py --olgpunode OLGPUNODE --olrun OLRUN --steps STEPS_ON_DEVICES --probe NVML_PROBE --executors EXECUTORS [--env NAME=VALUE]... SCENARIO [tcp|shm]
"""
import os
import re
import signal
import sys
import time

import sessions
from sessions import LONG, Cable, run, seeded


class Pair(sessions.Bench):
    """Two gpunodes and their clients."""

    def __init__(self, options):
        super().__init__(options)
        self.nodes = [self.node]
        self.addresses = [self.address]
        self.add_node()

    def add_node(self, *more):
        """One more gpunode, or one in place of the second."""
        node = self.start([self.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--vram", "64MiB", "--memory", "256MiB",
                           "--grace", str(sessions.GRACE), "--worker-log", "info", *more])
        self.nodes[1:] = [node]
        self.addresses[1:] = [node.wait_log(r"listening at (\S+)").group(1)]

    def program(self, command, more=None, addresses=None):
        self.env.update(more or {})
        named = [word for address in addresses or self.addresses for word in ("--gpunode", address)]
        child = self.start([self.options.olrun] + named + ["--transport", self.options.transport, "--"] + command)
        for name in more or {}:
            del self.env[name]
        return child

    def on_cables(self, numbers, more=None):
        """A client that reaches these nodes and their workers over cables, the others as they are; it and the cables."""
        addresses = list(self.addresses)
        cables = {}
        for number in numbers:
            cables[number] = Cable(int(self.addresses[number].split(":")[1]))
            addresses[number] = cables[number].address
        client = self.program([self.options.steps], more, addresses)
        assert client.line() == "ready", client.log
        return client, cables

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
    assert client.ask("hang 1") == "ok"  # device 0 has to wait for device 1
    os.kill(bench.worker_of(1), signal.SIGKILL)
    said = client.ask("sync 0", 20)
    assert said.startswith("error "), said
    assert client.ask("step 1", 5).startswith("error ")
    client.process.stdin.close()
    client.process.wait(LONG)
    # The gpunodes themselves serve the next program.
    assert bench.pair().ask("fetch 0") == "ok"


COPY = 4 << 18  # bytes that "fetch" and "pour" copy
TALKS = {"OL_LOG": "info"}  # the client says at its end which way copies went


def ways(client):
    """(copies, bytes) over tcp, over shared memory, through the client, as it counts them; it ends."""
    client.process.stdin.close()
    assert client.process.wait(LONG) == 0, client.log
    said = client.wait_log(r"copies between gpunodes: (\d+) of (\d+) bytes straight over tcp, (\d+) of (\d+) straight over shared memory, "
                           r"(\d+) of (\d+) through this program")
    numbers = [int(n) for n in said.groups()]
    return list(zip(numbers[::2], numbers[1::2]))


def straight_bytes(node):
    """That a node's worker says to have sent and taken, at its session's end."""
    said = node.wait_log(r": (\d+) bytes of copies went straight to other gpunodes, (\d+) came from them")
    return int(said.group(1)), int(said.group(2))


def straight(bench):
    """Copies go from worker to worker, in either direction, and by no other way."""
    client = bench.pair(TALKS)
    assert client.ask("step 0") == "ok" and client.ask("step 1") == "ok"
    for turn in range(8):
        assert client.ask(f"fetch {turn % 2}") == "ok", client.log
    tcp, shm, here = ways(client)
    none, all_of_them = (0, 0), (8, 8 * COPY)
    assert (tcp, shm, here) == ((all_of_them, none, none) if bench.options.transport == "tcp" else (none, all_of_them, none)), client.log
    for node in bench.nodes:
        assert straight_bytes(node) == (4 * COPY, 4 * COPY), node.log


def straight_past_client(bench):
    """What a cable between the client and the sender carries: the copies are not in it, and are where the way is through the client."""
    turns = 24
    for mode, least, most in (("on", 0, 4 * COPY), ("off", turns * COPY, 1 << 62)):
        bench.add_node("--straight", mode)
        bench.nodes[0].end()
        bench.nodes[0] = bench.start([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--vram", "64MiB"])
        bench.addresses[0] = bench.nodes[0].wait_log(r"listening at (\S+)").group(1)
        client, cables = bench.on_cables([0], TALKS)
        assert client.ask("step 0") == "ok"
        for _ in range(turns):
            assert client.ask("fetch 1") == "ok", client.log
        assert least <= cables[0].moved <= most, (mode, cables[0].moved)
        counted = dict(zip(("tcp", "shm", "here"), ways(client)))
        assert counted["tcp" if mode == "on" else "here"] == (turns, turns * COPY), counted


def straight_keys(bench):
    """With a key all is encrypted, between the workers too."""
    key = os.path.join(bench.scratch.name, "key")
    with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("pair:" + os.urandom(32).hex() + "\n")
    bench.nodes = [bench.start([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--key", key, "--log", "debug"]) for _ in range(2)]
    bench.addresses = [node.wait_log(r"listening at (\S+)").group(1) for node in bench.nodes]
    client = bench.pair({"OL_KEY": key, **TALKS})
    assert client.ask("step 1") == "ok" and client.ask("fetch 0") == "ok", client.log
    client.wait_log(r"go straight: tcp with \d+ lanes, key peer-0, everything encrypted")
    assert ways(client)[0] == (1, COPY), client.log
    for node in bench.nodes:
        node.wait_log("key peer-0, everything encrypted")


def straight_refused(bench):
    """A gpunode that makes no such links: copies go through the client with the same result, and it says so once."""
    bench.add_node("--straight", "off")
    client = bench.pair(TALKS)
    assert client.ask("step 0") == "ok" and client.ask("step 1") == "ok"
    for turn in range(6):
        assert client.ask(f"fetch {turn % 2}") == "ok", client.log
    assert ways(client) == [(0, 0), (0, 0), (6, 6 * COPY)], client.log
    assert len([line for line in client.log if "go through this program" in line]) == 1, client.log
    assert not any("went straight" in line for node in bench.nodes for line in node.log)


def straight_unreachable(bench):
    """Neither worker reaches the other, as behind firewalls: as if it were refused."""
    client, cables = bench.on_cables([0, 1], TALKS)
    for cable in cables.values():
        cable.close()
    assert client.ask("step 0") == "ok" and client.ask("step 1") == "ok"
    for turn in range(4):
        assert client.ask(f"fetch {turn % 2}") == "ok", client.log
    assert ways(client) == [(0, 0), (0, 0), (4, 4 * COPY)], client.log
    assert len([line for line in client.log if "go through this program" in line]) == 1, client.log


def straight_cut(bench):
    """Links are cut at any moment, between the workers and to the client: all copies arrive, one way or the other."""
    chance = seeded()
    client, cables = bench.on_cables([0, 1], TALKS)
    done = [0, 0]
    for _ in range(5):
        for device in (0, 1):
            assert client.ask(f"step {device}") == "ok", client.log
            done[device] += 1
        client.tell(f"pour {chance.randrange(2)}")
        time.sleep(chance.random() * 0.1)
        cables[chance.randrange(2)].cut()
        assert client.line() == "ok", client.log
        assert client.ask("sync 0", 60) == "ok" and client.ask("sync 1", 60) == "ok", client.log
        # What came is what was sent.
        for device in (0, 1):
            assert client.ask(f"fetch {device}") == "ok", client.log
    tcp, _, here = ways(client)
    print(f"straight: {tcp[0]} copies, through the client: {here[0]}")
    assert tcp[0] + here[0] == 5 * 402, client.log


def straight_killed(bench):
    """A worker is killed while copies are under way, on either end: the copy says so, the lost device fails, and the other one goes on unless it
    waited for the lost one; no hang; the gpunodes serve the next program."""
    chance = seeded()
    left = []
    for turn in range(4):
        client = bench.pair(TALKS)
        assert client.ask("step 0") == "ok" and client.ask("step 1") == "ok" and client.ask("fetch 1") == "ok"
        workers = [int([found.group(1) for found in (sessions.re.search(r"worker (\d+)$", line) for line in node.log) if found][-1])
                   for node in bench.nodes]
        source = chance.randrange(2)
        client.tell(f"pour {source}")
        time.sleep(chance.random() * 0.03)
        os.kill(workers[turn % 2], signal.SIGKILL)
        poured = client.line()
        assert poured.startswith("error ") or poured == "ok", poured  # all were made before
        lost, other = (client.ask(f"sync {device}", 30) for device in (turn % 2, 1 - turn % 2))
        assert lost.startswith("error "), (turn, source, lost, client.log[-5:])
        # Unless a stream of it waited for an event there.
        waited = any("what a stream waited for at another gpunode failed or is lost" in line for line in client.log)
        assert other.startswith("error ") if waited else other == "ok", (turn, source, other, client.log[-5:])
        client.end()
        left += workers
    for pid in left:
        bench.gone(pid, 10)


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


def unified(bench):
    """The unified view: two gpunodes are one device, and so are two GPUs of one gpunode; CUDA_VISIBLE_DEVICES chooses among them."""
    view = {"OL_VIEW": "unified"}
    both = bench.program([bench.options.steps], view)
    assert both.line() == "ready", both.log
    assert both.ask("devices").split()[:2] == ["ok", "1"]
    assert both.ask("step 0") == "ok", both.log
    bench.env["OL_SIM_DEVICES"] = "2"
    bench.add_node("--total-memory", "256MiB")
    two = bench.program([bench.options.steps], {**view, "OL_LOG": "info"}, bench.addresses[1:])
    assert two.line() == "ready", two.log
    assert two.ask("devices").split()[:2] == ["ok", "1"]
    assert two.ask("step 0") == "ok", two.log
    address = re.escape(bench.addresses[1])
    two.wait_log(rf"unified view: gpunodes {address}/0 and {address}/1: ")
    # Each has half of the gpunode's RAM from the start: 64 MiB of VRAM and 128 MiB, less a sixteenth.
    two.wait_log("unified view: at most 360MiB for the program")
    seen = bench.program([bench.options.steps], None, bench.addresses[1:])
    assert seen.line() == "ready", seen.log
    other = seen.ask("devices").split()[3]
    one = bench.program([bench.options.steps], {**view, "CUDA_VISIBLE_DEVICES": "1"}, bench.addresses[1:])
    assert one.line() == "ready", one.log
    assert one.ask("devices").split() == ["ok", "1", other]
    assert one.ask("step 0") == "ok", one.log
    one.wait_log("CUDA_VISIBLE_DEVICES=1 leaves out 1 of 2 GPUs")
    none = bench.program([bench.options.steps], {**view, "CUDA_VISIBLE_DEVICES": "7"}, bench.addresses[1:])
    assert none.line() == "error cudaErrorNoDevice", none.log
    none.wait_log(r"CUDA_VISIBLE_DEVICES=7 names none of the 2 GPU\(s\) of the gpunodes")
    route = bench.program([bench.options.steps], {**view, "OL_ROUTE": f"{bench.addresses[1]}/2"}, bench.addresses[1:])
    assert route.line() == "error cudaErrorNoDevice", route.log
    route.wait_log(rf"route: the view has no GPU '{address}/2'; it has {address}/0, {address}/1")


def executors(bench):
    """The unified view's ground: the same records, sent to two executors, make the same numbers, which mean the same at both."""
    child = bench.start([bench.options.executors, *bench.addresses], OL_TRANSPORT=bench.options.transport)
    assert child.line() == "OK", child.log
    assert child.process.wait(LONG) == 0


def little_memory(bench, *more):
    """Gpunodes whose VRAM and memory together hold 24 pages each."""
    for number in (0, 1):
        node = bench.start([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--vram", "16MiB", "--memory", "32MiB",
                            "--grace", str(sessions.GRACE), "--worker-log", "info", *more])
        bench.nodes[number] = node
        bench.addresses[number] = node.wait_log(r"listening at (\S+)").group(1)


def pages(bench):
    """Memory that neither executor of the unified view can hold, used at both in turns: what is there is what the CPU works out."""
    little_memory(bench)
    random = seeded()
    for _ in range(3):
        seed = str(random.randrange(1 << 32))
        child = bench.start([bench.options.executors, *bench.addresses, "pages", seed, "28", "60"], OL_TRANSPORT=bench.options.transport)
        assert child.line(60) == "OK", child.log
        assert child.process.wait(LONG) == 0


def executor_lost(bench):
    """An executor's worker is killed: the home hears of it, and the other one ends the session with one line."""
    child = bench.start([bench.options.executors, *bench.addresses, "waits"], OL_TRANSPORT=bench.options.transport)
    assert child.line() == "ready", child.log
    assert child.ask("read") == "ok", child.log
    os.kill(bench.worker_of(1), signal.SIGKILL)
    said = child.ask("read", 30)
    assert re.match(r"executor 1: the link of pages: |the unified view: the link to the worker of executor 1 is lost, and was not made again for \d+ s$", said), said
    assert child.process.wait(LONG) == 1
    # The program may be gone first.
    bench.nodes[0].wait_log(r"the session ends: the unified view: the link to the worker of executor 1 is lost|the session has ended|"
                            r"ends: executors: its program has ended")


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


def nvml_unified(bench):
    """In the unified view NVML has one device, as the driver does: it has the memory of all, and is lost where one is."""
    apart = bench.program([bench.options.probe])
    assert apart.ask("load") == "ok" and apart.ask("init") == "ok", apart.log
    each = [int(fields(apart.ask(f"state {index}"))["total"]) for index in (0, 1)]
    probe = bench.program([bench.options.probe], {"OL_VIEW": "unified"})
    assert probe.ask("load") == "ok" and probe.ask("init") == "ok", probe.log
    assert fields(probe.ask("system"))["count"] == "1"
    assert fields(probe.ask("device 0"))["legacy"] == fields(apart.ask("device 0"))["legacy"]
    state = fields(probe.ask("state 0"))
    assert state["sums"] == "yes" and int(state["total"]) == sum(each), (state, each)
    assert probe.ask("device 1").startswith("failed "), probe.log
    bench.nodes[1].end()
    time.sleep(0.3)
    assert probe.ask("state 0") == "failed nvmlDeviceGetMemoryInfo 15 GPU is lost"


def refused_in_part(bench):
    """A gpunode has no place for all GPUs of a program's: none is taken there, and the other gpunode gets its session back while the program goes on."""
    bench.env["OL_SIM_DEVICES"] = "2"
    bench.add_node("--sessions", "1")
    init = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True); input(); print('over', flush=True)"
    program = bench.program([sys.executable, "-c", init], {"OL_VIEW": "unified"})
    assert program.line() == "100", program.log
    program.wait_log(r"refuses: it has 0 of at most 1 sessions \(--sessions\), and the program would have 2 more, one for each GPU")
    bench.nodes[0].wait_log(r"the session has ended: the program ended")
    discrete = bench.program([bench.options.steps], None, bench.addresses[1:])
    assert discrete.line() == "ready", discrete.log
    assert program.ask("") == "over", program.log


SCENARIOS = [lost, lost_in_between, straight, straight_keys, straight_past_client, straight_refused, straight_unreachable, straight_cut, straight_killed,
             visible, not_there, unified, refused_in_part, executors, pages, executor_lost, nvml, nvml_unified]

if __name__ == "__main__":
    run(SCENARIOS, __doc__, ("--olgpunode", "--olrun", "--steps", "--probe", "--executors"), Pair)
