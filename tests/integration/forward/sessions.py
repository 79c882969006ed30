#!/usr/bin/env python3
"""Sessions of a real olgpunode with real programs, on loopback: several at once, killed on either side, cut and resumed, nonsense.
Long: each scenario is one function, and all share the rig.

sessions.py --olgpunode OLGPUNODE --olrun OLRUN --olctl OLCTL --steps STEPS [--env NAME=VALUE]... SCENARIO [tcp|shm]
"""
import argparse
import glob
import json
import os
import queue
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

LONG = 30  # seconds: what has to happen happens within
GRACE = 3


class Child:
    """A program whose lines are collected as they come."""

    def __init__(self, command, env):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, bufsize=1, env=env)
        self.lines = queue.Queue()
        self.log = []
        self.changed = threading.Condition()
        for stream, take in ((self.process.stdout, self.lines.put), (self.process.stderr, self.note)):
            threading.Thread(target=self.collect, args=(stream, take), daemon=True).start()

    def note(self, line):
        if line is not None:
            with self.changed:
                self.log.append(line)
                self.changed.notify_all()

    @staticmethod
    def collect(stream, take):
        for line in stream:
            take(line.rstrip("\n"))
        take(None)

    def line(self, timeout=LONG):
        try:
            return self.lines.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"nothing for {timeout} s: {self.log[-5:]}") from None

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command, timeout=LONG):
        self.tell(command)
        return self.line(timeout)

    def wait_log(self, pattern, timeout=LONG, after=0):
        """The first line of its log from `after` on that matches."""
        end = time.monotonic() + timeout
        with self.changed:
            while True:
                for line in self.log[after:]:
                    found = re.search(pattern, line)
                    if found:
                        return found
                left = end - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"no line like {pattern} for {timeout} s: {self.log[-8:]}")
                self.changed.wait(left)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LONG)


class Bench:
    """A gpunode and its clients, all ended at the end."""

    def __init__(self, options):
        self.options = options
        self.scratch = tempfile.TemporaryDirectory(prefix="olpager-sessions-")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OL_")}
        self.env.update(XDG_CONFIG_HOME=self.scratch.name, XDG_RUNTIME_DIR=self.scratch.name,
                        XDG_CACHE_HOME=os.path.join(self.scratch.name, "cache"), OL_SIM_VRAM=str(256 << 20))
        self.env.update(pair.split("=", 1) for pair in options.env)
        self.children = []
        self.begin()

    def begin(self, listen="127.0.0.1:0"):
        self.node = self.start([self.options.olgpunode, "--listen", listen, "--driver", "sim", "--vram", "64MiB",
                                "--memory", "256MiB", "--grace", str(GRACE), "--worker-log", "info"])
        self.address = self.node.wait_log(r"listening at (\S+)").group(1)

    def start(self, command, **environment):
        self.children.append(Child(command, {**self.env, **environment}))
        return self.children[-1]

    def client(self, address=None, ready=True, transport=None):
        child = self.start([self.options.olrun, "--gpunode", address or self.address, "--transport",
                            transport or self.options.transport, "--", self.options.steps])
        if ready:
            said = child.line()
            assert said == "ready", f"{said}: {child.log}"
        return child

    def worker(self, number=0):
        """The pid of the worker of the n-th session."""
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            found = [m.group(1) for m in (re.search(r"worker (\d+)$", line) for line in self.node.log) if m]
            if len(found) > number:
                return int(found[number])
            time.sleep(0.02)
        raise AssertionError(f"no worker {number}: {self.node.log}")

    @staticmethod
    def program_pid(client):
        """The pid of a client's program, which olrun may have become, or may be the parent of."""
        children = subprocess.run(["pgrep", "-P", str(client.process.pid)], capture_output=True, text=True).stdout
        return int(children or client.process.pid)

    def begin_anew(self, *options, **environment):
        """Another gpunode, with these options: the one that clients find from now on."""
        self.node = self.start([self.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", *options], **environment)
        self.address = self.node.wait_log(r"listening at (\S+)").group(1)

    def gone(self, pid, within):
        end = time.monotonic() + within
        while time.monotonic() < end:
            if not os.path.exists(f"/proc/{pid}"):
                return
            time.sleep(0.05)
        raise AssertionError(f"worker {pid} is still there after {within} s")

    def close(self):
        for child in self.children:
            child.end()
        self.scratch.cleanup()


class Cable:
    """What is between a client and a gpunode: forwards 127.0.0.2:PORT, or what comes `at` another address, to 127.0.0.1:PORT, and can be cut."""

    def __init__(self, port, at=None):
        self.port = port
        self.pairs = []  # of connections
        self.routes = {}  # what each connection said first: which worker's it is, 0 for the supervisor
        self.held = []  # of which one side is kept, and hears nothing
        self.deaf = threading.Event()  # set: nothing of what comes from the gpunode is read any more
        self.moved = 0  # bytes
        self.lock = threading.Lock()
        self.listener = socket.create_server(at or ("127.0.0.2", port))
        self.address = "{}:{}".format(*self.listener.getsockname())
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                near.close()
                continue
            with self.lock:
                self.pairs.append((near, far))
            for a, b in ((near, far), (far, near)):
                a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.pump, args=(a, b, (near, far)), daemon=True).start()

    def pump(self, a, b, pair):
        try:
            while data := self.receive(a, pair):
                if a is pair[0] and pair not in self.routes and len(data) >= 16:
                    self.routes[pair] = struct.unpack_from("<Q", data, 8)[0]
                self.delay()
                if pair not in self.held:
                    b.sendall(data)
                    self.moved += len(data)
        except OSError:
            pass
        with self.lock:
            if pair in self.pairs:
                self.pairs.remove(pair)
        if pair in self.held:
            return
        for one in (a, b):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def receive(self, a, pair):
        while a is pair[1] and self.deaf.is_set():
            time.sleep(0.02)
        return a.recv(1 << 16)

    def delay(self):
        """How long what has been received takes: no time."""

    def cut_half(self, near, only=None):
        """Ends the connections for one side alone, without a word to the other, which hears nothing more. `only`: these; all."""
        with self.lock:
            pairs = [pair for pair in self.pairs if only is None or pair in only]
            self.pairs = [pair for pair in self.pairs if pair not in pairs]
            self.held += pairs
        cut = 0
        for pair in pairs:
            try:
                pair[0 if near else 1].shutdown(socket.SHUT_RDWR)
                cut += 1
            except OSError:
                pass  # it had ended
        return cut

    def close(self):
        """No connections more; those that there are stay."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def cut(self):
        with self.lock:
            pairs, self.pairs = self.pairs, []
        return self.end(pairs)

    def end(self, pairs):
        for pair in pairs:
            for one in pair:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        return len(pairs)


class RoughCable(Cable):
    """One that delays what goes over it, each way and each connection by itself, so that they overtake each other."""

    def __init__(self, port, seed):
        self.chance = random.Random(seed)
        super().__init__(port)

    def delay(self):
        if self.chance.random() < 0.2:
            time.sleep(self.chance.random() * 0.01)

    def cut_worker(self):
        """The connections to workers alone: a program that can't ask for a session at all has none to keep."""
        with self.lock:
            pairs = [pair for pair in self.pairs if self.routes.get(pair)]
            self.pairs = [pair for pair in self.pairs if pair not in pairs]
        return self.end(pairs)


def client_on_cable(bench):
    """A client whose links to the gpunode and to its worker go over a cable; both."""
    cable = Cable(int(bench.address.split(":")[1]))
    return bench.client(address=cable.address, transport="tcp"), cable


PLAIN, KEYED, LANE = 1, 2, 3


def preamble(kind, route):
    """What a connection begins with (wire::Preamble of the transport)."""
    return struct.pack("<IBBHQ", 0x4F4C5031, 2, kind, 0, route)


def session_number(bench):
    """Of the first session of a node: the route to its worker."""
    return int(bench.node.wait_log(r"session ([0-9a-f]{16}).*: begins: ").group(1), 16)


def seeded():
    """Chance with a seed that is printed; OL_TEST_SEED repeats it."""
    seed = int(os.environ.get("OL_TEST_SEED", "0")) or random.randrange(1 << 32)
    print(f"OL_TEST_SEED={seed}")
    return random.Random(seed)


def several(bench):
    """Eight clients at once, with work of their own; all right, none left."""
    folder = os.path.join(bench.scratch.name, "olpager")
    before = set(os.listdir(folder)) if os.path.isdir(folder) else set()
    clients = [bench.client() for _ in range(8)]
    for client in clients:
        client.tell("step 100")
    for client in clients:
        assert client.line() == "ok 100", client.log
    for client in clients:
        client.process.stdin.close()
        assert client.line() == "OK steps: 100"
        assert client.process.wait(LONG) == 0
    for number in range(8):
        bench.gone(bench.worker(number), 5)
    # Nothing is left of them: counters, sockets.
    end = time.monotonic() + 5
    while (left := set(os.listdir(folder)) - before if os.path.isdir(folder) else set()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left, f"files of workers that have ended: {left}"


def crash(bench):
    """An illegal access ends its own session's context with CUDA's error and touches nobody else's."""
    bad, other = bench.client(), bench.client()
    assert other.ask("step 10") == "ok 10"
    other.tell("step 200")
    assert bad.ask("bad") == "error cudaErrorIllegalAddress", bad.log
    assert bad.ask("step 1") == "error cudaErrorIllegalAddress", "the error is not sticky"
    assert other.line() == "ok 210"
    assert other.ask("step 1") == "ok 211"


def lost_launch(bench):
    """A launch that fails at the gpunode in a thread that is gone: who synchronises hears of it, once."""
    client = bench.client()
    assert client.ask("step 10") == "ok 10"
    for _ in range(3):
        assert client.ask("lost").startswith("error "), "a launch that was not made seems to have ended well"
        assert client.ask("step 5").startswith("ok "), client.log


def kill_worker(bench):
    """The client's next call says that it is so, and why; nobody hangs, the gpunode goes on."""
    for number, (wait, work) in enumerate(((0, None), (0.3, "copy 1000"), (0.3, "bulk 1000"))):
        client = bench.client()
        assert client.ask("step 5") == "ok 5"
        if wait:
            client.tell(work)
            time.sleep(wait)
        os.kill(bench.worker(number), signal.SIGKILL)
        said = client.line() if wait else client.ask("step 5")
        assert said.startswith("error "), said
        client.wait_log(r"session on the gpunode is lost: .*killed by signal 9")
        assert client.ask("step 5", 5).startswith("error "), "an error that went away"
        client.process.stdin.close()
        assert client.process.wait(LONG) == 0
    assert bench.client().ask("step 5") == "ok 5"


def kill_client(bench):
    """Its worker goes, and does not wait for a process of this machine that has ended; others stay."""
    bench.begin_anew("--grace", "60")
    client, other = bench.client(), bench.client()
    pid = bench.program_pid(client)
    client.tell("step 100000")
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    bench.gone(bench.worker(0), 5)
    assert other.ask("step 3") == "ok 3"


def zeroed(bench):
    """Nothing of a program that was killed is in memory that the next one gets, be it VRAM or what pages lie in."""
    for _ in range(2):
        client = bench.client()
        assert client.ask("dirty 150") == "ok 0", client.log  # of 64 MiB of VRAM
        os.kill(bench.program_pid(client), signal.SIGKILL)
        client.process.wait(LONG)
        client = bench.client()
        assert client.ask("scan 150") == "ok 0", client.log
        client.end()


def random_kills(bench):
    """Programs and workers are killed at random moments of random work, again and again: nobody hangs, whoever is left has right results, and
    the daemon keeps nothing of them."""
    chance = seeded()
    daemon = bench.node.process.pid
    held = None
    for first in range(0, 18, 3):  # of each round's workers
        clients = [bench.client() for _ in range(3)]
        asked = [chance.choice(["step 3000", "copy 30", "bulk 3", "threads 40", "functions 500"]) for _ in clients]
        for client, work in zip(clients, asked):
            client.tell(work)
        victim, kills_worker = chance.randrange(3), chance.random() < 0.5
        time.sleep(chance.random() * 0.3)
        os.kill(bench.worker(first + victim) if kills_worker else bench.program_pid(clients[victim]), signal.SIGKILL)
        for number, client in enumerate(clients):
            if number == victim and not kills_worker:
                client.process.wait(LONG)
                continue
            said = client.line()
            count = int(asked[number].split()[1]) if asked[number].split()[0] in ("step", "threads") else 0
            # The victim may have been done.
            right = said == f"ok {count}" or (number == victim and said.startswith("error "))
            assert right, f"{asked[number]}: {said}: {client.log}"
        for client in clients:
            client.end()
        for number in range(3):
            bench.gone(bench.worker(first + number), 5)
        held = held or (descriptors(daemon), resident(daemon))
    until = time.monotonic() + 10
    while descriptors(daemon) > held[0] and time.monotonic() < until:
        time.sleep(0.1)
    assert descriptors(daemon) <= held[0], f"{descriptors(daemon)} descriptors after six rounds, {held[0]} after the first"
    room = 64 if "LD_PRELOAD" in bench.env else 8  # a sanitizer keeps what was freed
    assert resident(daemon) < held[1] + room, f"{resident(daemon):.1f} MiB after six rounds, {held[1]:.1f} after the first"
    assert bench.client().ask("step 5") == "ok 5"


def vanish(bench):
    """Clients that go while their worker starts hold no session: the next gets in at once."""
    node = bench.start([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--sessions", "1", "--log", "debug"])
    address = node.wait_log(r"listening at (\S+)").group(1)
    vanished, seen = 0, 0
    while vanished < 3:
        client = bench.client(address=address, ready=False)
        pid = int(node.wait_log(r"worker (\d+), which starts$", after=seen).group(1))
        os.kill(pid, signal.SIGSTOP)  # it starts slowly
        vanished += not any(": begins: " in line for line in node.log[seen:])
        os.kill(bench.program_pid(client), signal.SIGKILL)
        if any(": begins: " in line for line in node.log[seen:]):
            os.kill(pid, signal.SIGKILL)  # too late: it was ready
        bench.gone(pid, 5)
        node.wait_log("its client left while it started|killed by signal 9", after=seen)
        seen = len(node.log)
    client = bench.client(address=address)
    assert client.ask("step 3") == "ok 3"


def kill_supervisor(bench):
    """Workers die with it; their clients are told, and end."""
    clients = [bench.client() for _ in range(3)]
    workers = [bench.worker(number) for number in range(3)]
    clients[0].tell("copy 1000")
    time.sleep(0.2)
    bench.node.process.kill()
    for pid in workers:
        bench.gone(pid, 5)
    assert clients[0].line().startswith("error ")
    for client in clients[1:]:
        assert client.ask("step 1").startswith("error "), "a success without a worker"


def logs(bench):
    """At info a session has one line when it begins and one when it ends, with its number; a worker that is told to says more, of the same session."""
    for more in ((), ("--worker-log", "info")):
        node = bench.start([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--log-format", "json", *more])
        address = node.wait_log(r"listening at ([\d.:]+)").group(1)
        client = bench.client(address=address)
        assert client.ask("step 5") == "ok 5", client.log
        client.process.stdin.close()
        assert client.process.wait(LONG) == 0
        node.wait_log(r'"ends: ')
        # What libraries in a worker print by themselves goes through as it is.
        lines = [json.loads(line) for line in node.log if not more or line.startswith("{")]
        for line in lines:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) and (line["level"] == "info" or "session" not in line), line
        said = [line["message"].split(":")[0] for line in lines if line["program"] == "olgpunode" and "session" in line]
        assert said == ["begins", "ends"], lines
        assert len({line["session"] for line in lines if "session" in line}) == 1, lines
        assert {line["program"] for line in lines} == {"olgpunode", "olgpunode-worker"} if more else {"olgpunode"}, lines


def gpunode_processes():
    """Those of this test: gpunodes, and workers, of whatever session."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                name, fields = re.match(r"\d+ \((.*)\) (.*)", stat.read()).groups()
        except OSError:
            continue  # it has ended
        state, _, group = fields.split()[:3]
        if name.startswith("olgpunode") and state != "Z" and int(group) == os.getpgrp():
            found[int(pid)] = name
    return found


def await_gpunode_processes(expected):
    """Workers end by themselves; on a machine that is busy that takes a moment."""
    end = time.monotonic() + GRACE
    while sorted(found := gpunode_processes()) != sorted(expected):
        assert time.monotonic() < end, f"processes that are still there: {found}"
        time.sleep(0.05)


def random_supervisor_kills(bench):
    """A gpunode that is killed at random moments of its clients' starts and of random work, again and again: each client hears why, with CUDA's
    error or before it starts, nothing seems to have ended well, nothing stays behind, and the next gpunode at that address serves who comes."""
    chance = seeded()
    for number in range(8):
        clients = [bench.client(ready=False) for _ in range(3)]
        asked = [chance.choice(["step 3000", "copy 30", "bulk 3", "threads 40", "functions 500"]) for _ in clients]
        for client, work in zip(clients, asked):
            client.tell(work)  # it reads that when it is ready
        said = [[] for _ in clients]
        if number % 2 == 0:  # in the middle of the work, or behind it
            said = [[client.line()] for client in clients]
            assert said == [["ready"]] * 3, [client.log for client in clients]
        time.sleep(chance.random() * (0.3 if number % 2 == 0 else 0.8))
        bench.node.process.kill()
        killed = time.monotonic()
        bench.node.process.wait(LONG)
        at_once = chance.random() < 0.5  # the next one is there before the clients have given up
        if at_once:
            bench.begin(bench.address)
        for client, work, lines in zip(clients, asked, said):
            while not lines or lines[-1] == "ready":
                lines.append(client.line())
            if lines[-1] is None:  # olrun has started nothing
                assert client.process.wait(LONG) == 2, lines
                client.wait_log(r"^olrun: gpunode 127\.0\.0\.1:\d+: .")
                continue
            count = work.split()[1] if work.split()[0] in ("step", "threads") else 0
            assert lines[-1] == f"ok {count}" or lines[-1].startswith("error "), f"{work}: {lines}: {client.log}"
            if lines[0] == "ready":
                answer = client.ask("step 1")
                # One that has started late may have come to the next gpunode.
                late = at_once and number % 2 == 1 and answer == f"ok {int(count) + 1}"
                assert late or answer.startswith("error "), f"a success without a worker: {work}: {lines}, then {answer}: {client.log}"
                if not late:
                    client.wait_log(r"the session on the gpunode is lost: \S")
            else:  # it had not got its session yet
                client.wait_log(r"(gpunode|worker at) 127\.0\.0\.1:\d+: .|the session on the gpunode is lost: .")
            client.process.stdin.close()
            client.process.wait(LONG)
        took = time.monotonic() - killed
        assert took < GRACE + 15, f"told after {took:.1f} s"
        if not at_once:
            await_gpunode_processes([])
            bench.begin(bench.address)
        client = bench.client()
        assert client.ask("step 5") == "ok 5", client.log
        client.process.stdin.close()
        assert client.process.wait(LONG) == 0
        bench.gone(bench.worker(0), 5)
        await_gpunode_processes([bench.node.process.pid])
    # Nor anything of theirs in the file system: counters go when the next gpunode starts (of a worker that was killed while it began its file, a
    # minute later), sockets when somebody listens two seconds later.
    bench.node.process.terminate()
    assert bench.node.process.wait(LONG) == 0
    time.sleep(2.2)
    bench.begin(bench.address)
    client = bench.client()
    assert client.ask("step 5") == "ok 5", client.log
    left = [os.path.join(folder, name) for folder, _, names in os.walk(bench.scratch.name) for name in names]
    # What the running worker and the running program have is theirs.
    left = [path for path in left if not re.search(r"/cache/.*/[0-9a-f]{64}$", path)]
    runs = lambda path: (of := re.search(r"/([0-9]+)-[0-9]+\.counters$", path)) is not None and os.path.exists("/proc/" + of.group(1))
    left = [path for path in left if not runs(path)]
    left = [path for path in left if not path.endswith(".counters") or open(path, "rb").read(8).strip(b"\0")]
    assert len(left) <= 1 and all(path.endswith(".sock") for path in left), f"files of a gpunode that was killed: {left}"


def cut(bench):
    """A cut connection is connected again: no call is lost, none is made twice."""
    chance = seeded()
    client, cable = client_on_cable(bench)
    done, cuts = 0, 0
    while cuts < 6:
        count = chance.randrange(50, 400)
        client.tell(f"step {count}" if chance.random() < 0.7 else "copy 3")
        time.sleep(chance.random() * 0.05)
        cuts += cable.cut() > 0
        said = client.line()
        assert said.startswith("ok "), f"{said}: {client.log}"
        now = int(said.split()[1])
        assert now in (done, done + count)  # the program has compared what is in memory with it
        done = now
    client.process.stdin.close()
    assert client.line() == f"OK steps: {done}"
    assert sum("connected again" in line for line in client.log) >= 4, client.log


def cut_bulk(bench):
    """A connection that is cut in the middle of bulk copies, in both directions: every byte is right at the end."""
    chance = seeded()
    client, cable = client_on_cable(bench)
    cuts = 0
    while cuts < 8:
        before = cable.moved
        client.tell("bulk 1")
        time.sleep(chance.random() * 0.2)  # it may be over by then
        cuts += cable.cut() > 0
        assert client.line() == "ok 0", client.log
        assert cable.moved > before, "nothing went over the cable"
    assert client.ask("bulk 1") == "ok 0"
    client.process.stdin.close()
    assert client.line() == "OK steps: 0"
    assert sum("connected again" in line for line in client.log) >= 4, client.log


def cut_idle(bench):
    """A connection that is lost while the program computes is made again by itself, well within the grace time."""
    client, cable = client_on_cable(bench)
    assert client.ask("step 3") == "ok 3"
    time.sleep(0.1)
    assert cable.cut() > 0
    client.wait_log("connected again")
    time.sleep(GRACE + 2)
    assert client.ask("step 3") == "ok 6", client.log


def cut_half(bench):
    """A connection that is lost at one end, while the other hears nothing at all: it is made again whichever end it is."""
    client, cable = client_on_cable(bench)
    done = 0
    for near in (False, True, False, True):
        assert client.ask("step 3") == f"ok {done + 3}"
        seen = len(client.log)
        assert cable.cut_half(near) > 0
        assert client.ask("step 4") == f"ok {done + 7}", client.log
        client.wait_log("connected again", after=seen)
        done += 7
    # And while nobody asks for anything.
    seen = len(client.log)
    assert cable.cut_half(False) > 0
    client.wait_log("connected again", after=seen)
    assert client.ask("step 1") == f"ok {done + 1}", client.log


def rough(bench):
    """Whole programs over a network that delays what goes either way, lets connections overtake each other, and loses them at random moments:
    right results, or an error and a line that says why; nothing stays behind at the gpunode."""
    chance = seeded()
    cable = RoughCable(int(bench.address.split(":")[1]), chance.random())
    supervisor = bench.node.process.pid
    before, again, right = descriptors(supervisor), 0, 0
    for number, app in enumerate(bench.options.app):
        client = bench.start([bench.options.olrun, "--gpunode", cable.address, "--transport", "tcp", "--", app, "--bytes",
                              str(4 << 20), "--seed", str(chance.randrange(1000))])
        end = time.monotonic() + 2 * LONG
        cuts = 0
        while client.process.poll() is None:
            assert time.monotonic() < end, f"{app} hangs: {client.log}"
            time.sleep(0.02 + chance.random() * 0.3)
            if cuts < 8:
                cuts += cable.cut_worker() > 0
        lost = any("the session on the gpunode is lost: " in line for line in client.log)
        said = client.line()
        while said is not None and not said.startswith("OK"):
            said = client.line()
        assert (client.process.returncode == 0 and said is not None) or (client.process.returncode != 0 and lost), (app, client.log)
        right += client.process.returncode == 0
        again += sum("connected again" in line for line in client.log)
        bench.gone(bench.worker(number), 3 * GRACE + 5)
    print(f"{right} of {len(bench.options.app)} ended well, {again} times connected again")
    assert again > 0, "no connection was ever lost"
    assert right > len(bench.options.app) / 2, "most programs lost their session"
    time.sleep(1)
    assert descriptors(supervisor) <= before, "descriptors stay behind at the gpunode"


def cut_free(bench):
    """A connection that is cut while the worker is in a call for longer than the grace time, one that nobody waits for: it is connected
    again all the same."""
    client, cable = client_on_cable(bench)
    client.tell(f"slow {2 * GRACE + 2}")
    assert client.line() == "queued", client.log
    time.sleep(0.5)  # the worker has come to the free
    assert cable.cut() > 0
    assert client.line() == "ok 0", client.log
    client.wait_log("connected again")
    assert client.ask("step 3") == "ok 3", client.log


def cut_for_good(bench):
    """Longer than the grace time: an error and a line, on both sides. The worker waits longer than its client, which tries until the end."""
    client, cable = client_on_cable(bench)
    assert client.ask("step 3") == "ok 3"
    cable.close()
    assert cable.cut() > 0
    begun = time.monotonic()
    assert client.ask("step 3").startswith("error "), "a success over a cut cable"
    took = time.monotonic() - begun
    assert took > GRACE - 0.5, f"given up after {took:.1f} s"
    client.wait_log("session on the gpunode is lost")
    assert os.path.exists(f"/proc/{bench.worker(0)}"), "the worker has gone before its client gave up"
    bench.gone(bench.worker(0), GRACE + 5)


def waits_for_place(bench):
    """Where all places are taken, and one by a session that has lost its client, who comes next waits for that to end; else it is refused."""
    bench.begin_anew("--sessions", "1", "--grace", str(GRACE))
    first, cable = client_on_cable(bench)
    assert first.ask("step 3") == "ok 3"
    refused = bench.client(ready=False)
    assert refused.process.wait(LONG) == 2 and refused.line() is None
    refused.wait_log(r"it has 1 of at most 1 sessions \(--sessions\)")
    cable.close()
    assert cable.cut() > 0
    time.sleep(1.5)  # the worker has told that it has no link
    second = bench.client()
    bench.node.wait_log("waits for the place of a session that has lost its client")
    assert second.ask("step 5") == "ok 5"
    assert first.ask("step 3").startswith("error "), "a success without a worker"


def listeners(pids):
    """The ports of the TCP sockets at which these processes listen, one for each socket."""
    own = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                own.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError:
                pass  # closed meanwhile
    ports = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pids[0]}/net/{table}", encoding="ascii") as file:
            for fields in (line.split() for line in file.readlines()[1:]):
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                    ports.append(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def one_port(bench):
    """A gpunode and all of its workers listen on one port, and who reaches nothing else has all of it: any other port that is forwarded there."""
    port = int(bench.address.split(":")[1])
    direct = bench.client()
    cable = Cable(port, ("127.0.0.1", 0))  # as ssh -L
    client = bench.client(address=cable.address, transport="tcp")
    assert direct.ask("step 3") == "ok 3" and client.ask("step 3") == "ok 3"
    assert not may_look() or listeners([bench.node.process.pid, bench.worker(0), bench.worker(1)]) == [port]
    lanes = [int(m.group(1)) for m in (re.search(r"is up: tcp with (\d+) lanes, key session", line) for line in bench.node.log) if m]
    assert lanes and min(lanes) >= 4, bench.node.log
    end = time.monotonic() + LONG
    while len(cable.pairs) != 1 + lanes[-1]:  # the link to the gpunode itself ends
        assert time.monotonic() < end, cable.pairs
        time.sleep(0.02)
    before = cable.moved
    assert client.ask("bulk 1") == "ok 3"
    assert cable.moved > before + (1 << 20)
    assert cable.cut() == 1 + lanes[-1]
    assert client.ask("step 4") == "ok 7"
    client.wait_log("connected again")
    assert not may_look() or listeners([bench.node.process.pid, bench.worker(0), bench.worker(1)]) == [port]


def unix_socket(bench):
    """A gpunode without any TCP: it and its workers are reached by one Unix socket, over either transport."""
    path = os.path.join(bench.scratch.name, "gpunode.sock")
    bench.node = bench.start([bench.options.olgpunode, "--listen", "unix:" + path, "--driver", "sim", "--worker-log", "info"])
    bench.address = bench.node.wait_log(r"listening at (unix:\S+)").group(1)
    clients = [bench.client() for _ in range(2)]
    assert clients[0].ask("step 5") == "ok 5" and clients[1].ask("bulk 1") == "ok 0"
    bench.node.wait_log(r"is up: shm, key session" if bench.options.transport == "shm" else r"is up: tcp with \d+ lanes, key session")
    assert not may_look() or listeners([bench.node.process.pid, bench.worker(0), bench.worker(1)]) == []


def stopped(bench):
    """A client that is stopped for a while goes on; for longer than its session is kept it is told; nobody waits for it."""
    client, other = bench.client(), bench.client()
    assert client.ask("step 3") == "ok 3"
    pid = bench.program_pid(client)
    for seconds, ends in ((GRACE, "ok "), (17 + GRACE, "error ")):  # 10 s of silence, then what the worker waits, and some
        client.tell("copy 40")
        os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            assert other.ask("step 10").startswith("ok ")
            time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)
        said = client.line()
        assert said.startswith(ends), (said, client.log)
    client.wait_log("session on the gpunode is lost")


def told_to_end(bench):
    """A gpunode that is told to end tells its clients, which do not look for it any more."""
    busy, idle = bench.client(), bench.client()
    busy.tell("copy 100000")
    time.sleep(0.3)
    workers = [bench.worker(number) for number in range(2)]
    begun = time.monotonic()
    bench.node.process.terminate()
    assert busy.line().startswith("error "), busy.log
    assert bench.node.process.wait(LONG) == 0
    assert idle.ask("step 1").startswith("error "), "a success without a worker"
    took = time.monotonic() - begun
    assert took < GRACE - 0.5, f"told after {took:.1f} s"
    for client in (busy, idle):
        client.wait_log("session on the gpunode is lost: the gpunode has been told to end")
    for pid in workers:
        bench.gone(pid, 5)


def threads_that_end(bench):
    """Threads that end leave nothing behind at the worker, and those that stay are a program of one thread again."""
    client = bench.start([bench.options.olrun, "--gpunode", bench.address, "--transport", bench.options.transport, "--log", "debug", "--",
                          bench.options.steps])
    assert client.line() == "ready", client.log
    assert client.ask("threads 5") == "ok 5"
    assert client.ask("step 5") == "ok 10"
    tasks = len(os.listdir(f"/proc/{bench.worker(0)}/task"))
    assert client.ask("threads 200") == "ok 210"
    assert client.ask("step 5") == "ok 215"
    more = len(os.listdir(f"/proc/{bench.worker(0)}/task")) - tasks  # each stream of the simulated GPU has a thread
    assert more < 20, f"{more} threads more at the worker"
    assert client.ask("frees 2000") == "ok 215"
    client.process.stdin.close()
    assert client.line() == "OK steps: 215" and client.process.wait(LONG) == 0
    log = "\n".join(client.log)
    trips = {name: int(count) for name, count in re.findall(r"debug:   (\S.*?) +(\d+)  \d", log)}
    assert trips and trips.get("cuMemFree", 0) + trips.get("cuMemFree_v2", 0) < 50, log


def streams_that_wait(bench):
    """A hundred streams that wait for memory take as many threads of the worker as a hundred that wait for nothing."""
    most = {}
    for number, mebibytes in enumerate((32, 160)):  # of 64 MiB of VRAM
        program = bench.start([bench.options.olrun, "--gpunode", bench.address, "--transport", bench.options.transport, "--",
                               bench.options.waiting_streams, "--bytes", str(mebibytes << 20)])
        worker, looks, simulated = bench.worker(number), [], set()
        while program.process.poll() is None:
            names = thread_names(worker)
            # The simulated GPU has a thread for each stream that is busy. It gets its name a moment after it has begun.
            simulated |= {task for task, name in names.items() if name.startswith("olsim")}
            looks.append(names.keys())
            time.sleep(0.002)
        most[mebibytes] = max(len(look - simulated) for look in looks)
        assert program.line().startswith("OK 100 streams") and program.process.wait(LONG) == 0, program.log
    # Copies to the host, which the program waits for, have one beside the leader's; on a busy machine a few threads more take the lead in
    # turns. A thread for each stream would be 45 more.
    assert 0 < most[160] <= most[32] + 10, f"threads at most: {most}"


def thread_names(pid):
    names = {}
    for path in glob.glob(f"/proc/{pid}/task/*/comm"):
        try:
            with open(path, encoding="utf-8") as name:
                names[path.split("/")[-2]] = name.read()
        except OSError:  # it is over
            pass
    return names


def functions_that_end(bench):
    """What a worker keeps for a host function goes with its call."""
    client = bench.client()
    worker = bench.worker(0)
    for _ in range(5):  # as many as wait at a time there is room for from then on, in the heaps of all its threads
        assert client.ask("functions 4000") == "ok 0"
    before = resident(worker)
    for _ in range(4):
        assert client.ask("functions 4000") == "ok 0"
    grown = resident(worker) - before
    assert grown < 0.8, f"{grown:.2f} MiB more for 16000 host functions"


def late_failures(bench):
    """What is known to have failed late is told once, by the program's own calls, in its own context; nothing is lost with it."""
    bench.begin_anew(OL_SIM_DEVICES="2")
    for what in ("unregister", "questions", "refused", "reset", "retained", "ends", "devices", "streams", "large", "fault", "looping", "rested", "unmapped", "beside", "elsewhere", "successor"):
        said = subprocess.run([bench.options.olrun, "--gpunode", bench.address, "--transport", bench.options.transport, "--",
                               bench.options.late_failures, what], env=bench.env, capture_output=True, text=True, timeout=LONG)
        assert said.returncode == 0 and said.stdout.splitlines()[-1:] == ["OK"], (what, said)


def driver_environment(bench):
    """What a program's environment says to the driver is heeded, and the daemon's own says nothing to it."""
    bench.begin_anew("--confine", "off", OL_SIM_DEVICES="2", CUDA_LAUNCH_BLOCKING="1", CUDA_MODULE_LOADING="EAGER",
                     CUDA_DEVICE_MAX_CONNECTIONS="3")

    def of_worker(pid):
        with open(f"/proc/{pid}/environ", "rb") as file:
            told = dict(entry.split("=", 1) for entry in file.read().decode().split("\0") if "=" in entry)
        return {name: told.get("CUDA_" + name) for name in ("LAUNCH_BLOCKING", "MODULE_LOADING", "DEVICE_MAX_CONNECTIONS")}

    for number, (environment, blocks, eager, there, line) in enumerate((
            ({}, False, False, {}, None),
            ({"CUDA_LAUNCH_BLOCKING": "1"}, True, False, {}, None),
            ({"CUDA_LAUNCH_BLOCKING": "0", "CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "1",
              "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False, True, {"MODULE_LOADING": "EAGER", "DEVICE_MAX_CONNECTIONS": "1"}, None),
            ({"CUDA_LAUNCH_BLOCKING": "1", "CUDA_MODULE_LOADING": "LAZY", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}, True, False,
             {"MODULE_LOADING": "LAZY", "DEVICE_MAX_CONNECTIONS": "32"}, None),
            ({"CUDA_LAUNCH_BLOCKING": "yes"}, False, False, {}, "CUDA_LAUNCH_BLOCKING=yes has no effect"),
            ({"CUDA_MODULE_LOADING": "EAGER\nX=1"}, False, False, {}, "CUDA_MODULE_LOADING=EAGER.X=1 has no effect"),
            ({"CUDA_DEVICE_MAX_CONNECTIONS": "33"}, False, False, {}, "CUDA_DEVICE_MAX_CONNECTIONS=33 has no effect"),
            ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, False, False, {}, "CUDA_DEVICE_ORDER=FASTEST_FIRST has no effect"))):
        client = bench.start([bench.options.olrun, "--gpunode", bench.address, "--transport", bench.options.transport, "--",
                              bench.options.launch_blocking], **environment)
        said = client.line()
        assert said == f"loads {'eagerly' if eager else 'lazily'}", (environment, said, client.log)
        expected = dict.fromkeys(("LAUNCH_BLOCKING", "MODULE_LOADING", "DEVICE_MAX_CONNECTIONS"))
        assert not may_look() or of_worker(bench.worker(number)) == {**expected, **there}, environment
        asked = (("run", "over", "running"), ("graph", "over", "running"), ("thread", "over", "running"), ("fault", "launch", "later"))
        for what, blocking, not_blocking in asked if line is None else asked[-1:]:
            said = client.ask(what)
            assert said == (blocking if blocks else not_blocking), (environment, what, said, client.log)
        if line is not None:
            client.wait_log(line)
        assert (line is None) == (not any("has no effect" in one for one in client.log)), client.log
        client.end()


def leftovers_of(bench, what):
    """The command that looks at it, and tells of its round trips."""
    return [bench.options.olrun, "--gpunode", bench.address, "--transport", bench.options.transport, "--log", "debug", "--", bench.options.leftovers,
            what]


def leftovers(bench):
    """Host functions and captures that are over cost no round trips: copies wait for no stream, and launches are not asked for."""
    trips = {}
    for what in ("compare", "functions", "captures"):
        said = subprocess.run(leftovers_of(bench, what), env=bench.env, capture_output=True, text=True, timeout=LONG)
        assert said.returncode == 0 and said.stdout == "OK\n", (what, said)
        trips[what] = {name: int(count) for name, count in re.findall(r"debug:   (\S.*?) +(\d+)  \d", said.stderr)}
        assert trips[what], said
    for what in ("functions", "captures"):
        for name in ("a launch", "a wait for a stream", "cuStreamIsCapturing"):  # of 400 copies and launches or more
            more = trips[what].get(name, 0) - trips["compare"].get(name, 0)
            assert more < 20, (what, trips)


def quiet(bench):
    """A program that waits, with more calls made than there is room for, needs no processor for it."""
    client = bench.client()
    begun, before = time.monotonic(), spent(client.process.pid)
    client.tell("behind 3")
    assert client.line(LONG) == "queued", client.log
    assert client.line(LONG).startswith("ok "), client.log
    took, used = time.monotonic() - begun, spent(client.process.pid) - before
    # How long the launches take is measured by one of them: beside other work they take less.
    assert took > 1 and used < 0.2 + took / 3, f"{used:.2f} s of processor time in {took:.2f} s"


def spent(pid):
    """Seconds of processor time that a process has had."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(bench):
    """Functions of graphs that do not run are waited for by nobody."""
    said = subprocess.run(leftovers_of(bench, "idle"), env=bench.env, capture_output=True, text=True, timeout=LONG)
    assert said.returncode == 0 and said.stdout == "OK\n", said


def may_look():
    """Daemons and their workers are kept from others of their user: what they have open, and were started with, only root can see."""
    return os.geteuid() == 0


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd")) if may_look() else 0


def resident(pid):
    """MiB of memory that a process has."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) / 1024


class Neighbour:
    """A program beside one that misbehaves: it has to be as fast as it is by itself."""

    def __init__(self, bench):
        self.client = bench.client()
        self.usual = sorted(self.pace() for _ in range(5))[2]

    def pace(self):
        begun = time.monotonic()
        assert self.client.ask("step 300").startswith("ok "), self.client.log
        assert self.client.ask("copy 3").startswith("ok "), self.client.log
        return time.monotonic() - begun

    def works(self, rounds=7):
        """Medians of few rounds, on machines that have other work."""
        took = sorted(self.pace() for _ in range(rounds))
        assert took[rounds // 2] < 3 * self.usual + 0.5, f"{took} beside it, {self.usual:.3f} s by itself"


def deaf(bench):
    """A client that takes nothing any more while its calls have answers, or print, without end: nobody else waits, what is kept for it is bounded,
    and it is gone as soon as its client is."""
    neighbour = Neighbour(bench)
    for number, what in enumerate(("copies", "prints")):
        client = bench.start([bench.options.deaf, bench.address, what], OL_TRANSPORT=bench.options.transport)
        assert client.line() == "ready", client.log
        worker = bench.worker(number + 1)
        before = resident(worker)
        assert client.ask("go") == "deaf", client.log
        most, end = 0, time.monotonic() + 4
        while time.monotonic() < end:
            neighbour.works(3)
            most = max(most, resident(worker) - before)
        # 32 MiB are kept, a few answers are on their way.
        assert most < 64, f"{most:.0f} MiB more for a client that takes nothing"
        if what == "copies":
            assert most > 8, f"only {most:.0f} MiB: nothing is kept for it"
        assert os.path.exists(f"/proc/{worker}")  # it may go on to take them
        client.end()
        bench.gone(worker, 5)
        neighbour.works()


def deaf_socket(bench):
    """A client whose socket is read by nobody, while it goes on to call: its link is lost after the time of silence, and the session with it."""
    neighbour = Neighbour(bench)
    cable = Cable(int(bench.address.split(":")[1]))
    client = bench.start([bench.options.deaf, cable.address, "copies"], OL_TRANSPORT="tcp")
    worker = bench.worker(1)
    assert client.line() == "ready", client.log
    before = resident(worker)
    cable.deaf.set()
    assert client.ask("go") == "deaf", client.log
    most, begun = 0, time.monotonic()
    while os.path.exists(f"/proc/{worker}"):
        neighbour.works(3)
        try:
            most = max(most, resident(worker) - before)
        except (OSError, AttributeError):
            break  # it has ended
        assert time.monotonic() - begun < LONG, "the session is still there"
    assert client.process.poll() is None, "the client has ended"
    assert most < 96, f"{most:.0f} MiB more for a client that reads nothing"  # with what the sockets hold
    bench.node.wait_log("the client is gone")
    neighbour.works()


def deaf_bulk(bench):
    """A client that stops to read in the middle of bulk copies to the host: what was under way is made again when it reads before the grace time is
    over; else it is told, and its session goes."""
    neighbour = Neighbour(bench)
    client, cable = client_on_cable(bench)
    for seconds in (0.3, 2 * GRACE / 3):
        client.tell("bulk 20")
        time.sleep(0.3)
        cable.deaf.set()
        time.sleep(seconds)
        cable.deaf.clear()
        assert client.line(4 * LONG) == "ok 0", client.log  # a sanitizer's kernels take their time
    worker = bench.worker(1)
    client.tell("bulk 1000")
    time.sleep(0.3)
    cable.deaf.set()
    begun = time.monotonic()
    neighbour.works()
    assert client.line().startswith("error "), "a success without a word of the worker"
    assert time.monotonic() - begun < GRACE + 10
    client.wait_log(r"the session on the gpunode is lost: \S")
    bench.gone(worker, LONG)
    neighbour.works()


def callbacks_lost(bench):
    """A lost session's callbacks are called, with an error."""
    client = bench.start(leftovers_of(bench, "callbacks"))
    assert client.line() == "enqueued", client.log
    time.sleep(0.3)
    os.kill(bench.worker(0), signal.SIGKILL)
    assert client.line() == "OK" and client.process.wait(LONG) == 0, client.log


def nonsense(bench):
    """Bytes of no meaning to the gpunode and to a worker: a line in the log at most, everybody goes on."""
    client = bench.client()
    number = session_number(bench)
    chance = random.Random(7)
    port = int(bench.address.split(":")[1])
    for opening in (b"", *(preamble(kind, number) for kind in (PLAIN, KEYED, LANE, 9))):
        for length in (0, 1, 8, 100, 5000):
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.sendall(opening + bytes(chance.randrange(256) for _ in range(length)))
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(opening)
            assert client.ask("step 2").startswith("ok ")  # beside one that says nothing
    assert bench.client().ask("step 2") == "ok 2"


def flood(bench):
    """Strangers who come without end, to the gpunode, to a session that there is and to one that there is not, and say nothing: programs that
    run go on, further ones begin, and what is lost is connected again."""
    client, cable = client_on_cable(bench)
    number = session_number(bench)
    port = int(bench.address.split(":")[1])
    stop = threading.Event()
    opened = [0, 0, 0, 0]

    def come(which, opening):
        open_ones = []
        while not stop.is_set():
            # From an address of their own: who shares one with strangers shares what one address may have.
            one = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.9", 0))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # else the ports are used up
            open_ones.append(one)
            opened[which] += 1
            try:
                one.sendall(opening)
            except OSError:
                pass  # it had to make room
            if opened[which] % 5 == 0:
                time.sleep(0.005)  # some thousand a second in all: what takes all of a processor keeps everybody out
            if len(open_ones) > 300:
                open_ones.pop(0).close()

    openings = (b"", preamble(KEYED, number), preamble(LANE, number), preamble(KEYED, number ^ 1))
    strangers = [threading.Thread(target=come, args=pair) for pair in enumerate(openings)]
    for one in strangers:
        one.start()
    try:
        while min(opened) < 400:
            time.sleep(0.01)
        for _ in range(3):
            assert bench.client().ask("step 5") == "ok 5"
        assert client.ask("step 100") == "ok 100"
        assert cable.cut() > 0
        assert client.ask("step 100") == "ok 200", client.log
        client.wait_log("connected again")
    finally:
        stop.set()
        for one in strangers:
            one.join()
    print("connections of strangers:", opened)


def stranger(bench):
    """Who has a session of the same gpunode is a stranger at another's worker all the same: only the session's own secret opens it."""
    client = bench.client()
    assert client.ask("step 5") == "ok 5"
    said = subprocess.run([bench.options.stranger, bench.address, f"{session_number(bench):016x}"], env=bench.env, capture_output=True,
                          text=True, timeout=LONG).stdout.splitlines()
    assert len(said) == 3 and said[0].startswith("another's: ") and "key" in said[0], said
    assert said[1].startswith("nobody's: ") and "is not here" in said[1] and said[2] == "own: connected", said
    assert client.ask("step 5") == "ok 10"


def silent(bench):
    """A link that asks for nothing does not keep its place; one that has a session does."""
    client = bench.client()
    assert client.ask("step 5") == "ok 5"
    said = subprocess.run([bench.options.stranger, bench.address], env=bench.env, capture_output=True, text=True, timeout=LONG).stdout
    assert "it has not asked for anything for a while" in said, said
    assert client.ask("step 5") == "ok 10"


def nobody(bench):
    """Where no gpunode is, olrun starts nothing; under the bare library one line says so and the program gets CUDA's error."""
    said = subprocess.run([bench.options.olrun, "--gpunode", bench.address, "--", "env"], env=bench.env, check=True,
                          capture_output=True, text=True).stdout
    bare = dict(line.split("=", 1) for line in said.splitlines() if line.startswith(("OL_GPUNODE=", "LD_")))
    bench.node.end()
    client = bench.client(ready=False)
    assert client.process.wait(LONG) == 2 and client.line() is None
    client.wait_log(r"^olrun: gpunode 127\.0\.0\.1:\d+: Connection refused")
    bench.env.update(bare)
    client = bench.start([bench.options.steps])
    assert client.line() == "error cudaErrorNoDevice", client.log
    client.wait_log(r"gpunode 127\.0\.0\.1:\d+: Connection refused")


def keys(bench):
    """With a key everything works encrypted; without it, or with another, one line says so."""
    paths = []
    for name in ("laptop", "stranger"):
        paths.append(os.path.join(bench.scratch.name, name))
        subprocess.run([bench.options.olctl, "keygen", "--name", name, "--out", paths[-1]], check=True, capture_output=True)
    node = bench.start([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--key", paths[0], "--log", "debug"])
    address = node.wait_log(r"listening at (\S+)").group(1)

    def client(*options):
        return bench.start([bench.options.olrun, "--gpunode", address, "--transport", bench.options.transport, *options, "--",
                            bench.options.steps])

    good = client("--key", paths[0])
    assert good.line() == "ready", good.log
    assert good.ask("step 20") == "ok 20"
    assert good.ask("copy 2") == "ok 20"
    node.wait_log("key laptop, everything encrypted")
    for options in ((), ("--key", paths[1])):
        bad = client(*options)
        assert bad.process.wait(LONG) == 2 and bad.line() is None
        bad.wait_log("^olrun: gpunode .* key")
    shown = subprocess.run([bench.options.olgpunode, "--state", "--listen", address, "--key", paths[0]], check=True,
                           capture_output=True, text=True).stdout
    assert re.search(r"^ +1  laptop .* steps .*  running$", shown, re.MULTILINE), shown
    refused = subprocess.run([bench.options.olgpunode, "--state", "--listen", address], capture_output=True, text=True)
    assert refused.returncode == 1 and "key" in refused.stderr, refused


def waits(bench):
    """Calls whose answers are known are not waited for: what is set of one kernel leaves what is known of others."""
    rounds = 50
    said = subprocess.run([bench.options.olrun, "--gpunode", bench.address, "--transport", bench.options.transport, "--log", "debug", "--",
                           bench.options.occupancy], env=bench.env, check=True, capture_output=True, text=True, timeout=LONG).stderr
    trips = {name: int(count) for name, count in re.findall(r"debug:   (\S.*?) +(\d+)  \d", said)}
    # In each round one launch is refused, and one is taken again.
    assert rounds <= trips["a launch"] <= 2 * rounds + 20, said
    assert trips.get("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 0) < rounds, said
    assert trips.get("cuKernelSetAttribute", 0) < rounds, said


SCENARIOS = [several, crash, lost_launch, kill_worker, kill_client, zeroed, random_kills, vanish, logs, kill_supervisor, random_supervisor_kills, cut, cut_bulk, cut_idle, cut_half, rough, cut_free, cut_for_good, waits_for_place, one_port, unix_socket, stopped, told_to_end, threads_that_end, streams_that_wait, functions_that_end, late_failures, leftovers, idle, quiet, callbacks_lost, driver_environment, deaf, deaf_socket, deaf_bulk, nonsense, flood, stranger, silent, nobody, keys, waits]


def run(scenarios, description, programs, make):
    """The command line of a file of scenarios: runs the one it names on make(options). `programs`: options with paths."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in programs:
        parser.add_argument(name, required=True)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for all that is started")
    parser.add_argument("--app", action="append", default=[], help="a program of tests/apps")
    parser.add_argument("scenario", choices=[s.__name__ for s in scenarios])
    parser.add_argument("transport", nargs="?", default="tcp", choices=["tcp", "shm"])
    options = parser.parse_args()
    bench = make(options)
    try:
        next(s for s in scenarios if s.__name__ == options.scenario)(bench)
    except AssertionError:
        for child in bench.children:
            print("\n".join([l for l in child.log if "link" not in l][-60:]), "\n--")
        raise
    finally:
        bench.close()
    print("OK", options.scenario)


if __name__ == "__main__":
    run(SCENARIOS, __doc__, ("--olgpunode", "--olrun", "--olctl", "--steps", "--occupancy", "--stranger", "--deaf", "--late-failures", "--leftovers", "--launch-blocking", "--waiting-streams"), Bench)
