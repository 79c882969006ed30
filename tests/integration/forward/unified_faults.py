#!/usr/bin/env python3
"""Programs in the unified view over two and three gpunodes, and faults at random moments of their work: a worker or a gpunode is killed, a worker
is stopped for a while, links are cut, the program is killed. Each program ends soon, with the right result, or with CUDA's error and a line that
names a gpunode and says why; gpunodes that are left keep nothing of it, and serve the next program.

unified_faults.py --olgpunode OLGPUNODE --olrun OLRUN --after PROGRAM --app PROGRAM... [--env NAME=VALUE]... SCENARIO [tcp|shm]

OL_TEST_SEED repeats a run, OL_TEST_FAULTS says how many it has.
"""
import json
import os
import re
import signal
import subprocess
import threading
import time

import sessions
from sessions import GRACE, Cable, descriptors, gpunode_processes, resident, run, seeded

ENDS = 30  # seconds: a program has ended within
FREE = GRACE + 12  # seconds: gpunodes have nothing of a program any more within; a worker waits for its client that long at most
MIB = 1 << 20


def patience(seconds):
    """So many, of a machine whose processors are not shared; longer by as much as they are."""
    return seconds * max(1.0, os.getloadavg()[0] / os.cpu_count())


class Node:
    """A gpunode with little VRAM, with a folder of its own for sockets and counters; over TCP behind a cable."""

    def __init__(self, bench, number):
        self.bench = bench
        self.folder = os.path.join(bench.scratch.name, f"node{number}")
        os.mkdir(self.folder, 0o700)
        self.child = bench.start([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--vram", "6MiB", "--memory", "256MiB",
                                  "--grace", str(GRACE), "--cache", "none"], XDG_RUNTIME_DIR=self.folder)
        self.own = self.child.wait_log(r"listening at (\S+)").group(1)
        self.seen = 0  # of its log, before the program that runs
        self.held = None  # descriptors and MiB after the first program
        self.cable, self.address, self.plugged = None, self.own, True
        self.killed = 0  # when a worker was killed, by time.monotonic()
        if bench.options.transport == "tcp":
            self.cable = Cable(int(self.own.split(":")[1]))
            self.address = self.cable.address

    def worker(self):
        """The pid of the worker of the program that runs; None: it has none yet."""
        found = [m.group(1) for m in (re.search(r"worker (\d+)$", line) for line in self.child.log[self.seen:]) if m]
        return int(found[-1]) if found else None

    def state(self):
        return json.loads(subprocess.run([self.bench.options.olgpunode, "--state", "--json", "--listen", self.own], env=self.bench.env, check=True,
                                         capture_output=True, text=True, timeout=ENDS).stdout)

    def left(self):
        """What it still has of programs, in words; empty: nothing."""
        found = []
        state = self.state()
        found += [f"session {s['session']} ({s['state']})" for s in state["sessions"] if s["running"] or s["vram"] or s["ram"]]
        found += [f"{d['total'] - d['free']} bytes of VRAM" for d in state["devices"] if d["free"] != d["total"]]
        workers = [int(m.group(1)) for m in (re.search(r"worker (\d+)$", line) for line in self.child.log[self.seen:]) if m]
        found += [f"worker {pid}" for pid in workers if os.path.exists(f"/proc/{pid}")]
        files = [os.path.join(folder, name) for folder, _, names in os.walk(self.folder) for name in names]
        # The socket of a worker that was killed goes when somebody listens two seconds later.
        found += [file for file in files if not (self.killed and file.endswith(".sock"))]
        found += [] if self.held is None or descriptors(self.child.process.pid) <= self.held[0] else ["descriptors"]
        return found

    def is_free(self):
        """Soon it has nothing of the program."""
        within = patience(FREE)
        end = time.monotonic() + within
        while left := self.left():
            assert time.monotonic() < end, f"{self.own} still has after {within:.0f} s: {left}"
            time.sleep(0.1)
        pid = self.child.process.pid
        self.held = self.held or (descriptors(pid), resident(pid))
        room = 64 if "LD_PRELOAD" in self.bench.env else 16  # a sanitizer keeps what was freed
        assert resident(pid) < self.held[1] + room, f"{self.own}: {resident(pid):.1f} MiB, {self.held[1]:.1f} after its first program"
        self.seen = len(self.child.log)

    def close(self):
        """No connection more over its cable."""
        self.plugged = False
        if self.cable is not None:
            self.cable.close()

    def unplug(self):
        """Nothing goes over its cable any more."""
        self.close()
        if self.cable is not None:
            self.cable.cut()

    def serves(self):
        return self.plugged and self.child.process.poll() is None


class Cluster(sessions.Bench):
    """Three gpunodes, of which programs use two or all."""

    def begin(self, listen=None):
        self.made = 0
        self.nodes = []
        while len(self.nodes) < 3:
            self.nodes.append(self.another())

    def another(self):
        self.made += 1
        return Node(self, self.made)

    def unified(self, nodes, program, seed, megabytes):
        named = [word for node in nodes for word in ("--gpunode", node.address)]
        return self.start([self.options.olrun, *named, "--view", "unified", "--transport", self.options.transport, "--", program, "--bytes",
                           str(megabytes * MIB), "--seed", str(seed)])


class Round:
    """One program, and one fault."""

    def __init__(self, bench, chance, kind, within):
        self.bench, self.kind = bench, kind
        self.nodes = bench.nodes[: chance.choice((2, 2, 3))]
        chance.shuffle(self.nodes)
        self.victim = chance.choice(self.nodes)
        self.app = chance.choice(bench.options.app)
        self.seed, self.megabytes = chance.randrange(1000), chance.choice((8, 16))
        self.moment = within * chance.random()
        self.pause = chance.choice((0.1, 0.5, 2, 3))  # well within what a link may be silent, and the workers' patience
        self.chance = chance
        self.client = None

    def __str__(self):
        return (f"{os.path.basename(self.app)} of {self.megabytes} MiB, seed {self.seed}, over {' '.join(n.own for n in self.nodes)}: "
                f"{self.kind.__name__} {self.victim.own} at {self.moment:.2f} s")

    def run(self):
        """Whether the fault came before the program's end, and how that went."""
        self.client = self.bench.unified(self.nodes, self.app, self.seed, self.megabytes)
        time.sleep(self.moment)
        self.late = self.client.process.poll() is not None
        hit = not self.late and self.kind(self) is not False
        begun = time.monotonic()
        try:
            status = self.client.process.wait(patience(ENDS))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {time.monotonic() - begun:.0f} s") from None
        took = time.monotonic() - begun
        how = self.judge(status)
        for node in self.nodes:
            if node.child.process.poll() is None:
                node.is_free()
        return hit, f"{how}, {took:.1f} s later"

    def judge(self, status):
        said = []
        while (line := self.client.line(GRACE)) is not None:
            said.append(line)
        if self.kind is kill_client and status == -signal.SIGKILL:
            return "killed"
        # To touch managed memory that is lost is a SIGBUS, and a line has said so.
        touched = status == -signal.SIGBUS and any("to touch it is a SIGBUS from now on" in line for line in self.client.log)
        assert status >= 0 or touched, f"the program was ended by signal {-status}: {said}"
        if status == 0:
            assert any(line.startswith("OK") for line in said), f"ended without a result: {said}"
            return "right"
        assert self.kind not in (kill_client, stop_worker, cut_client, cut_some, cut_workers, cut_workers_again, cut_workers_half), f"lost by what should have been got over: {said}"
        # What went wrong is that CUDA said so, and not what the program found in memory.
        assert touched or status == 2 or any(re.search(r"^FAILED .*: (CUresult \d+|\d+ \S.*)$", line) for line in said), f"a wrong result: {said}"
        why = next((line for line in self.client.log if re.search(r"^(olpager: error|olrun): .*(gpunode|worker at) 127\.0\.0\.[12]:\d+[: ]+\S", line)), None)
        assert why is not None, "no line says which gpunode is lost, and why"
        assert self.kind is cut_workers_for_good or self.victim.address in why, f"another gpunode than that of the fault: {why}"
        assert sum("is lost: " in line and "every CUDA call" in line for line in self.client.log) <= 1, "the loss is told twice"
        return "error: " + why


def pids_of(client):
    children = subprocess.run(["pgrep", "-P", str(client.process.pid)], capture_output=True, text=True).stdout.split()
    return [client.process.pid, *map(int, children)]


def inodes(pids):
    """Of the sockets that these processes have open."""
    found = set()
    for pid in pids:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
                found.update(re.findall(r"^socket:\[(\d+)\]$", link))
        except OSError:
            pass  # closed meanwhile
    return found


def ports_of(pids):
    """From which these processes have connected."""
    own = inodes(pids)
    with open("/proc/self/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[9] in own}


def connections(cable, client, of_client):
    """Over a cable to a worker: those of the client, or those of other workers."""
    ports = ports_of(pids_of(client))
    with cable.lock:
        pairs = [pair for pair in cable.pairs if cable.routes.get(pair)]
    found = []
    for pair in pairs:
        try:
            if (pair[0].getpeername()[1] in ports) == of_client:
                found.append(pair)
        except OSError:
            pass  # it has ended
    return found


# --- faults: False where there was nothing to do it to ---------------------------------------------


def kill_worker(one):
    """A worker is killed."""
    pid = one.victim.worker()
    if pid is None or not os.path.exists(f"/proc/{pid}"):
        return False
    os.kill(pid, signal.SIGKILL)
    one.victim.killed = time.monotonic()
    return True


def kill_supervisor(one):
    """A gpunode is killed; its workers go with it."""
    one.victim.child.process.kill()
    one.victim.child.process.wait(ENDS)


def stop_worker(one):
    """A worker is stopped for a while."""
    pid = one.victim.worker()
    if pid is None or not os.path.exists(f"/proc/{pid}"):
        return False
    os.kill(pid, signal.SIGSTOP)
    time.sleep(one.pause)
    os.kill(pid, signal.SIGCONT)
    return True


def stop_worker_for_long(one):
    """A worker is stopped for longer than its links may be silent: it may be lost, and may be got over."""
    one.pause = 10 + GRACE * one.chance.random() * 2
    return stop_worker(one)


def kill_client(one):
    """The program is killed."""
    for pid in reversed(pids_of(one.client)):
        os.kill(pid, signal.SIGKILL)


def cut_client(one):
    """All connections of the program to a worker are lost, and can be made again."""
    return one.victim.cable.end(connections(one.victim.cable, one.client, True)) > 0


def cut_some(one):
    """Some of them."""
    pairs = connections(one.victim.cable, one.client, True)
    return len(pairs) > 0 and one.victim.cable.end(one.chance.sample(pairs, one.chance.randint(1, len(pairs)))) > 0


def cut_for_good(one):
    """No connection to a gpunode and its worker any more, neither of the program nor of other workers."""
    one.victim.unplug()


def cut_client_for_good(one):
    """No connection of the program to a gpunode and its worker any more; those of other workers stay."""
    one.victim.close()
    return one.victim.cable.end(connections(one.victim.cable, one.client, True)) > 0


def cut_workers(one):
    """The connections between workers are lost, and can be made again."""
    pairs = [pair for node in one.nodes for pair in connections(node.cable, one.client, False)]
    return len(pairs) > 0 and one.victim.cable.end(pairs) > 0


def cut_workers_again(one):
    """The same some times, also while they are being made again."""
    cut = 0
    for _ in range(one.chance.randint(2, 8)):
        cut += cut_workers(one)
        time.sleep(one.chance.choice((0.02, 0.12, 0.3)))
    return cut > 0


def cut_workers_half(one):
    """They are lost for one side alone, and the other one hears nothing."""
    near = one.chance.random() < 0.5
    return sum([node.cable.cut_half(near, connections(node.cable, one.client, False)) for node in one.nodes]) > 0


def cut_workers_for_good(one):
    """They are lost as often as they are made: the program ends with an error, unless all that it waits for comes in between."""
    def cut():
        while one.client.process.poll() is None:
            cut_workers(one)
            time.sleep(0.01)

    threading.Thread(target=cut, daemon=True).start()


KINDS = {"shm": [kill_worker, kill_supervisor, stop_worker, kill_client],
         "tcp": [kill_worker, kill_supervisor, stop_worker, kill_client, cut_client, cut_some, cut_for_good,
                 cut_client_for_good, cut_workers, cut_workers_again, cut_workers_half, cut_workers_for_good]}


def make_faults(bench, count, more=(), only=None):
    """So many that come during a program, of all kinds in turns."""
    chance = seeded()
    count = int(os.environ.get("OL_TEST_FAULTS", count))
    kinds = []
    tried = hits = right = 0
    within = 1.3  # seconds: about as long as the programs run here
    while hits < count:
        assert tried < 6 * count + 6, f"of {tried} faults {hits} came during a program"
        if not kinds:
            kinds = [*(only or KINDS[bench.options.transport]), *more]
            chance.shuffle(kinds)
        one = Round(bench, chance, kinds[-1], within)
        tried += 1
        try:
            hit, how = one.run()
            print(f"{tried}: {one}: {how if hit else 'too early or too late, ' + how}", flush=True)
            next_one(bench, one)
        except AssertionError:
            print(f"{tried}: {one}: FAILED", flush=True)
            raise
        if not hit:
            within = within * 0.8 if one.late else min(3, within * 1.2)
        else:
            within = min(3, within * 1.1)
            kinds.pop()
            hits += 1
            right += how.startswith("right")
        replace_lost(bench)
    print(f"{hits} faults, of {tried}, came during a program; {right} of those ended with the right result")


def next_one(bench, one):
    """The gpunodes that are left serve another program."""
    left = [node for node in one.nodes if node.serves()]
    for node in left:
        time.sleep(max(0, node.killed + 2.2 - time.monotonic()))
        node.killed = 0
    client = bench.unified(left, bench.options.after, one.seed, 8)
    assert client.process.wait(patience(ENDS)) == 0, f"the next program fails: {client.log}"
    for node in left:
        node.is_free()


def replace_lost(bench):
    for index, node in enumerate(bench.nodes):
        if not node.serves():
            if node.plugged:
                node.unplug()
            node.child.end()
            bench.nodes[index] = bench.another()
    bench.children = [child for child in bench.children if child.process.poll() is None]
    alive = {node.child.process.pid for node in bench.nodes}
    assert set(gpunode_processes()) <= alive, f"processes that are still there: {gpunode_processes()}, gpunodes {alive}"


def faults(bench):
    """A few, of unlike kinds."""
    make_faults(bench, 6 if bench.options.transport == "tcp" else 3)


def many_faults(bench):
    """Of all kinds, for long."""
    make_faults(bench, 60, [stop_worker_for_long])


def workers_cut(bench):
    """The links between workers alone, of programs that go on."""
    make_faults(bench, 4, only=[cut_workers, cut_workers_again, cut_workers_half, cut_workers_for_good])


SCENARIOS = [faults, many_faults, workers_cut]

if __name__ == "__main__":
    run(SCENARIOS, __doc__, ("--olgpunode", "--olrun", "--after"), Cluster)
