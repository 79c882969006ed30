#!/usr/bin/env python3
"""The real olmemserver with real sessions, over loopback TCP, shared memory, and RDMA in a virtual machine:
keys, quotas, dead and stopped sessions, a stopped and a restarted daemon, recalls, the end. Long: each scenario
is one function, and all share the rig.

daemon.py --server OLMEMSERVER --session SESSION --olctl OLCTL --olpagestat OLPAGESTAT SCENARIO [tcp|shm|verbs]
"""
import argparse
import errno
import json
import os
import pty
import queue
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import prometheus

LONG = 30  # seconds: what has to happen happens within
MIB = 1 << 20
SLAB = 4 * MIB


class Child:
    """A program whose lines are collected as they come. Ended, whatever state it is in, at the end."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, bufsize=1, env=env)
        self.lines = queue.Queue()
        self.events = []
        self.log = []
        for stream, take in ((self.process.stdout, self.lines.put), (self.process.stderr, self.log.append)):
            threading.Thread(target=self.collect, args=(stream, take), daemon=True).start()

    def collect(self, stream, take):
        for line in stream:
            line = line.rstrip("\n")
            if stream is self.process.stdout and line.startswith("event "):
                self.events.append(line[6:])
            else:
                take(line)
        if stream is self.process.stdout:
            take(None)

    def line(self):
        line = self.lines.get(timeout=LONG)
        if line is None:
            self.process.wait(LONG)
            raise AssertionError(f"it ended with {self.process.returncode}: {self.log[-5:]}")
        return line

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command):
        self.tell(command)
        return self.line()

    def await_event(self, kind, count=1):
        eventually(lambda: sum(e.startswith(kind) for e in self.events) >= count, f"event {kind}")

    def await_log(self, text):
        eventually(lambda: any(text in line for line in self.log), f"'{text}' in the log")

    def send(self, number):
        self.process.send_signal(number)

    def ended(self):
        return self.process.wait(LONG)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LONG)


class Relay:
    """A TCP relay that can be cut: the connections end, the listener goes on."""

    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.sockets = []
        self.open = True
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            if not self.open:
                near.close()
                continue
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            self.sockets += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=pair, daemon=True).start()

    @staticmethod
    def pump(source, into):
        try:
            while data := source.recv(1 << 16):
                into.sendall(data)
        except OSError:
            pass
        for each in (source, into):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self, stay=False):
        self.open = not stay
        for each in self.sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.sockets = []


def eventually(condition, what, seconds=LONG):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.01)


class Rig:
    def __init__(self, args):
        self.args = args
        self.folder = tempfile.mkdtemp(prefix="olmemserver-test-")
        os.environ["XDG_RUNTIME_DIR"] = self.folder  # of the daemons and sessions: where their sockets are
        self.children = []
        self.port = 0
        # A card's address is beyond loopback, which needs a key; RDMA encrypts nothing.
        self.host, self.server_trust, self.session_trust, self.asker_trust = "127.0.0.1", [], [], []
        # In a virtual machine a process that asks takes seconds, in which what it asks for passes by.
        self.metrics = None
        if args.transport == "verbs":
            self.host, key = os.environ["OL_TEST_RDMA_ADDRESS"], self.key("card")
            self.server_trust, self.session_trust, self.asker_trust = ["--key", key, "--tls", "off"], ["--key", key, "--clear"], ["--key", key, "--tls", "off"]

    def close(self):
        for child in self.children:
            child.kill()
        shutil.rmtree(self.folder)

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".new", "w") as file:
                file.write(text)
            os.rename(path + ".new", path)
        return path

    def key(self, name):
        path = self.path(name + ".key")
        subprocess.run([self.args.olctl, "keygen", "--name", name, "--out", path], check=True, stdout=subprocess.DEVNULL)
        return path

    def command(self, *options, memory=16 * SLAB):
        base = [self.args.server, "--config", self.path("empty.toml", ""), "--memory", str(memory), "--slab", str(SLAB),
                "--reserve", "64MiB", "--lock", "off"]
        if self.args.transport:
            base += ["--transport", self.args.transport, *self.server_trust]
        return base + list(options)

    def server(self, *options, memory=16 * SLAB, listen=None):
        if self.args.transport == "verbs" and "--prometheus" not in options:
            options += ("--prometheus", "127.0.0.1:0")
        child = Child(self.command("--listen", listen or f"{self.host}:{self.port}", *options, memory=memory))
        self.children.append(child)
        line = child.line()
        match = re.match(r"olmemserver: listening on .*:(\d+)$", line)
        assert match, line
        self.port = int(match.group(1))
        if self.args.transport == "verbs":
            self.metrics = figures_of(child)
        return child

    def sockets(self):
        folder = os.path.join(self.folder, "olpager")
        return [name for name in (os.listdir(folder) if os.path.isdir(folder) else []) if name.endswith(".sock")]

    @property
    def address(self):
        return f"{self.host}:{self.port}"

    def session(self, *options, address=None):
        child = Child([self.args.session, "--connect", address or self.address, "--transport", self.args.transport or "auto",
                       *self.session_trust, *options])
        self.children.append(child)
        first = child.line()
        assert first == "connected", first
        return child

    def state(self, *options):
        out = subprocess.run([self.args.server, "--config", self.path("empty.toml", ""), "--listen", self.address, "--state",
                              "--json", *self.asker_trust, *options], check=True, capture_output=True, text=True, timeout=LONG).stdout
        return json.loads(out)

    def nodes(self, *options, status=0):
        """What olpagestat --node says of the server; its one line of refusal with `status`."""
        done = subprocess.run([self.args.olpagestat, "--node", self.address, *self.asker_trust, *options], capture_output=True, text=True, timeout=LONG)
        assert done.returncode == status, done
        if status != 0:
            return done.stderr
        return json.loads(done.stdout) if "--json" in options else done.stdout

    def await_state(self, condition, what, *options):
        eventually(lambda: condition(self.bytes() if self.metrics and not options else self.state(*options)), what)

    def bytes(self):
        figures = prometheus.figures(self.metrics, "olmemserver")
        return {name: figures[name + "_bytes"] for name in ("donated", "free", "lent", "cleaning")}

    def refused(self, *options, **more):
        """The one line of a refusal."""
        out = subprocess.run(self.command(*options, **more), capture_output=True, text=True, timeout=LONG)
        assert out.returncode == 2, out
        lines = [line for line in out.stderr.splitlines() if line.startswith("olmemserver: ")]
        assert len(lines) == 1, out.stderr
        assert out.stdout == "", out.stdout
        return lines[0]


def check_resident(rig, child, most, what):
    """A sanitizer's runtime keeps what was freed: nothing can be said of it there."""
    assert rig.args.sanitized or resident(child) < most, (what, resident(child), most)


def resident(child):
    with open(f"/proc/{child.process.pid}/smaps_rollup") as file:
        return int(re.search(r"^Rss:\s+(\d+) kB", file.read(), re.M).group(1)) * 1024


def verified(line):
    match = re.match(r"verified good=(\d+) lost=(\d+) wrong=(\d+)$", line)
    assert match, line
    return tuple(int(n) for n in match.groups())


def figures_of(server):
    server.await_log("figures at ")
    return next(re.search(r"https?://\S+", line).group(0) for line in server.log if "figures at " in line)


def with_metrics(rig):
    server = rig.server("--prometheus", "127.0.0.1:0")
    return server, figures_of(server)


def basic(rig):
    server, metrics = with_metrics(rig)
    first, second = rig.session("--label", "first program"), rig.session()
    assert first.ask(f"lease {3 * SLAB}") == "leased 3"
    assert second.ask(f"lease {2 * SLAB}") == "leased 2"
    assert first.ask("fill 1") == f"filled {3 * SLAB}"
    assert second.ask("fill 2") == f"filled {2 * SLAB}"
    assert verified(first.ask("verify 1")) == (3 * SLAB, 0, 0)
    assert verified(second.ask("verify 2")) == (2 * SLAB, 0, 0)
    figures = json.loads(first.ask("figures"))
    assert figures["leased"] == 3 * SLAB and figures["transport"] == rig.args.transport, figures
    state = rig.state()
    assert (state["donated"], state["lent"], state["free"]) == (16 * SLAB, 5 * SLAB, 11 * SLAB), state
    rows = {row["program"]: row for row in state["sessions"]}
    if rig.args.transport == "shm":  # the daemon's own user sees all
        assert rows["first program"]["bytes"] == 3 * SLAB and rows["first program"]["connected"], state
    text = subprocess.run([rig.args.server, "--config", rig.path("empty.toml"), "--listen", rig.address, "--state", *rig.asker_trust], check=True,
                          capture_output=True, text=True).stdout
    assert "first program" in text and "lent 20MiB" in text, text
    told = rig.nodes("--json")["nodes"][0]  # olpagestat asks the same over the network
    assert (told["kind"], told["tiers"]) == ("memserver", [{"name": "RAM", "total": 16 * SLAB, "used": 5 * SLAB, "free": 11 * SLAB}]), told
    links = told["figures"]['links{transport="%s"}' % rig.args.transport]
    assert links == 2 and told["figures"]["leases_granted_total"] == 5, told  # who asks is no session
    assert [told["session_count"], told["figures"]["sessions"], told["figures"]["sessions_total"]] == [2, 2, 2], told
    if rig.args.transport == "tcp":
        assert told["figures"]["moved_bytes_total"] == 10 * SLAB, told  # written and read
    rows = {row["program"]: row for row in told["sessions"]}
    assert rows["first program"]["bytes"] == [3 * SLAB] and rows["first program"]["transport"] == rig.args.transport, told
    table = rig.nodes("--once")
    assert "first program" in table and "20MiB of 64MiB in use, 44MiB free" in table, table
    served = prometheus.figures(metrics, "olmemserver")
    assert (served["lent_bytes"], served["configured_bytes"], served["sessions_connected"]) == (5 * SLAB, 16 * SLAB, 2), served
    assert set(served) - set(told["figures"]) == {"configured_bytes"} and set(told["figures"]) <= set(served), (served, told)
    assert prometheus.refused(metrics.replace("/metrics", "/secret")), "another page is served"
    first.tell("quit")
    assert first.line() == "closed" and first.ended() == 0
    rig.await_state(lambda s: s["lent"] == 2 * SLAB and s["free"] == 14 * SLAB, "what the first had is free")
    assert verified(second.ask("verify 2")) == (2 * SLAB, 0, 0)


def metrics(rig):
    """Who drips a request, or sends none, holds up neither others nor the end."""
    server, url = with_metrics(rig)
    prometheus.Drip(url)
    assert prometheus.figures(url, "olmemserver", timeout=5)["sessions"] == 0
    prometheus.Drip(url)
    time.sleep(0.2)
    begun = time.monotonic()
    server.send(signal.SIGTERM)
    assert server.ended() == 0
    assert time.monotonic() - begun < 5, "it waited for who asks for figures"


def keys(rig):
    mine, other = rig.key("mine"), rig.key("other")
    # The same name, another secret.
    forged = rig.path("forged.key", "mine:" + "ab" * 32 + "\n")
    os.chmod(forged, 0o600)
    server = rig.server("--key", mine)
    good = rig.session("--key", mine)
    assert good.ask(f"lease {SLAB}") == "leased 1"
    for wrong in (["--key", other], ["--key", forged], []):
        child = Child([rig.args.session, "--connect", rig.address, "--transport", rig.args.transport, *wrong])
        rig.children.append(child)
        line = child.line()
        assert line.startswith("error ") and rig.address in line, line
        assert child.ended() == 1
    server.await_log("closed:")
    assert good.ask("fill 5") == f"filled {SLAB}"
    assert verified(good.ask("verify 5")) == (SLAB, 0, 0)
    assert rig.state("--key", mine)["lent"] == SLAB
    told = rig.nodes("--json", "--key", mine)["nodes"][0]
    assert told["tiers"][0]["used"] == SLAB, told
    assert "key" in rig.nodes("--once", "--key", forged, status=1)
    asked = subprocess.run([rig.args.server, "--config", rig.path("empty.toml"), "--listen", rig.address, "--state", "--key", other],
                           capture_output=True, text=True, timeout=LONG)
    assert asked.returncode == 1 and asked.stdout == "", asked


def quota(rig):
    anna, bert = rig.key("anna"), rig.key("bert")
    both = rig.path("both.key")
    with open(both, "w") as file:
        os.chmod(both, 0o600)
        file.write(open(anna).read() + open(bert).read())
    rig.server("--key", both, "--quota", str(4 * SLAB), "--key-quota", f"anna={6 * SLAB}")
    first, second, third = rig.session("--key", anna), rig.session("--key", anna), rig.session("--key", bert)
    assert first.ask(f"lease {10 * SLAB}") == "leased 4"
    assert second.ask(f"lease {10 * SLAB}") == "leased 2"
    assert third.ask(f"lease {10 * SLAB}") == "leased 4"
    line = second.ask(f"lease {SLAB}")
    assert line.startswith("error ") and "quota" in line, line
    first.kill()
    third.tell("quit")
    third.ended()
    if rig.args.transport == "tcp":  # over TCP each key sees its own
        rows = rig.state("--key", bert, "--transport", "tcp")["sessions"]
        assert all(row["key"] == "bert" for row in rows), rows


def killed(rig):
    """A killed session's memory is free after the lease time, and holds nothing of it."""
    server = rig.server("--lease-time", "3s", memory=8 * SLAB)
    for round in range(2):
        victim = rig.session()
        assert victim.ask(f"lease {8 * SLAB}") == "leased 8"
        assert verified(victim.ask("zero")) == (8 * SLAB, 0, 0), "a secret of the one before"
        assert victim.ask("fill 12345") == f"filled {8 * SLAB}"
        victim.tell("hammer 6789")
        assert victim.line() == "hammering"
        victim.kill()
        rig.await_state(lambda s: s["free"] == 8 * SLAB, "its memory is free")
    server.await_log("within its lease time")
    check_resident(rig, server, 8 * SLAB + 64 * MIB, "after killed sessions")


def stopped_session(rig):
    """A session is stopped while it writes; its lease runs out; its memory is another's. It goes on: it harms nobody."""
    if rig.args.transport == "tcp":
        rig.server("--lease-time", "3s", memory=8 * SLAB)
        relay = Relay(("127.0.0.1", rig.port))
        writer = rig.session(address=relay.address)
    else:
        proc = fake_proc(rig, available=4096 * MIB)
        rig.server("--recall", "hard", "--recall-time", "500ms", "--calm-time", "1s", "--proc", proc, memory=8 * SLAB)
        writer = rig.session()
    assert writer.ask(f"lease {8 * SLAB}") == "leased 8"
    assert writer.ask("hammer 1") == "hammering"
    time.sleep(0.3)
    writer.send(signal.SIGSTOP)
    if rig.args.transport == "tcp":
        relay.cut(stay=True)
    else:
        fake_proc(rig, available=1 * MIB)
    rig.await_state(lambda s: s["lent"] == 0, "its lease has ended")
    if rig.args.transport != "tcp":
        fake_proc(rig, available=4096 * MIB)
    rig.await_state(lambda s: s["free"] == 8 * SLAB, "there is memory again")
    other = rig.session()
    assert other.ask(f"lease {8 * SLAB}") == "leased 8"
    assert verified(other.ask("zero")) == (8 * SLAB, 0, 0)
    assert other.ask("fill 2") == f"filled {8 * SLAB}"
    if rig.args.transport == "tcp":
        relay.open = True
    writer.send(signal.SIGCONT)
    writer.await_event("slab lost", 8)
    assert writer.ask("rest") == "resting"
    assert verified(other.ask("verify 2")) == (8 * SLAB, 0, 0)
    assert json.loads(writer.ask("figures"))["leased"] == 0


def stopped_long(rig):
    """A session that is stopped but connected keeps what it has, however long."""
    rig.server("--lease-time", "2s", memory=8 * SLAB)
    sleeper = rig.session()
    assert sleeper.ask(f"lease {4 * SLAB}") == "leased 4"
    assert sleeper.ask("fill 3") == f"filled {4 * SLAB}"
    sleeper.send(signal.SIGSTOP)
    time.sleep(5)
    assert rig.state()["lent"] == 4 * SLAB
    sleeper.send(signal.SIGCONT)
    assert verified(sleeper.ask("verify 3")) == (4 * SLAB, 0, 0)
    assert not any(e.startswith("slab lost") for e in sleeper.events), sleeper.events


def stopped_server(rig):
    """A daemon that is stopped for less than the lease time only delays."""
    server = rig.server("--lease-time", "20s", memory=8 * SLAB)
    session = rig.session("--stall-ms", "300")
    assert session.ask(f"lease {8 * SLAB}") == "leased 8"
    assert session.ask("fill 1") == f"filled {8 * SLAB}"
    for seed in range(2, 5):
        session.tell(f"fill {seed}")
        time.sleep(0.005)
        server.send(signal.SIGSTOP)
        session.await_event("stalled", seed - 1)
        server.send(signal.SIGCONT)
        assert session.line() == f"filled {8 * SLAB}"
        assert verified(session.ask(f"verify {seed}")) == (8 * SLAB, 0, 0)
        session.await_event("resumed", seed - 1)
    assert not any(e.startswith("slab lost") for e in session.events), session.events


def restarted(rig):
    """A daemon that was killed and started again at its address is not believed; the session goes on with new memory."""
    server = rig.server("--lease-time", "20s", memory=8 * SLAB)
    session = rig.session()
    assert session.ask(f"lease {4 * SLAB}") == "leased 4"
    assert session.ask("fill 1") == f"filled {4 * SLAB}"
    server.kill()
    left = rig.sockets()
    assert len(left) == (rig.args.transport == "shm"), left
    time.sleep(2)  # a younger socket may be of somebody who is just making it
    rig.server("--lease-time", "20s", memory=8 * SLAB)
    assert len(rig.sockets()) == len(left) and not set(left) & set(rig.sockets()), (left, rig.sockets())
    session.await_event("slab lost", 4)
    assert verified(session.ask("verify 1")) == (0, 0, 0)
    assert session.ask(f"lease {4 * SLAB}") == "leased 4"
    assert verified(session.ask("zero")) == (4 * SLAB, 0, 0)
    assert session.ask("fill 2") == f"filled {4 * SLAB}"
    assert verified(session.ask("verify 2")) == (4 * SLAB, 0, 0)


def unplugged(rig):
    """The wire between the cards is cut while a session writes: the link is lost in its time. Mended: the session goes on
    with what it had. For the virtual machine of tests/guest/."""
    rig.server("--lease-time", "120s", memory=8 * SLAB)
    session = rig.session("--stall-ms", "300")
    assert session.ask(f"lease {4 * SLAB}") == "leased 4"
    assert session.ask("fill 1") == f"filled {4 * SLAB}"
    wire = ["tc", "qdisc", "{}", "dev", "wire0", "root", "netem", "loss", "100%"]
    subprocess.run([word.format("add") for word in wire], check=True)
    session.tell("fill 2")
    session.await_event("stalled")
    session.await_event("down")
    subprocess.run([word.format("del") for word in wire], check=True)
    session.await_event("up", 2)
    assert session.line() == f"filled {4 * SLAB}"
    assert verified(session.ask("verify 2")) == (4 * SLAB, 0, 0)
    assert json.loads(session.ask("figures"))["transport"] == rig.args.transport
    assert not any(e.startswith("slab lost") for e in session.events), session.events


def fake_proc(rig, available, some=0.0, full=0.0):
    rig.path("proc/meminfo", f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {available >> 10} kB\n")
    rig.path("proc/pressure/memory", f"some avg10={some} avg60=0.00 avg300=0.00 total=0\n"
             f"full avg10={full} avg60=0.00 avg300=0.00 total=0\n")
    return rig.path("proc")


def pressure(rig):
    """Short of memory: free slabs go at once, lent ones when their sessions release them; with the pressure over it grows."""
    proc = fake_proc(rig, available=4096 * MIB)
    server = rig.server("--proc", proc, "--cgroup", "none", "--calm-time", "1s")
    willing, deaf = rig.session("--obey"), rig.session()
    assert willing.ask(f"lease {8 * SLAB}") == "leased 8"
    assert deaf.ask(f"lease {4 * SLAB}") == "leased 4"
    assert deaf.ask("fill 9") == f"filled {4 * SLAB}"
    before = resident(server)
    fake_proc(rig, available=64 * MIB - 4 * SLAB)  # four slabs short of the reserve: the free ones
    rig.await_state(lambda s: s["donated"] == 12 * SLAB and s["free"] == 0, "the free slabs are given back")
    assert not willing.events[1:], willing.events
    fake_proc(rig, available=64 * MIB - 6 * SLAB)
    willing.await_event("recall")
    deaf.await_event("recall")
    rig.await_state(lambda s: s["donated"] == s["lent"] == 8 * SLAB, "what is released is given back")
    if rig.args.transport == "tcp":
        check_resident(rig, server, before - 6 * SLAB, "what is given back is the system's")
    assert verified(deaf.ask("verify 9")) == (4 * SLAB, 0, 0), "soft: what is not released stays"
    line = deaf.ask(f"lease {SLAB}")
    assert line.startswith("error "), line
    fake_proc(rig, available=4096 * MIB)
    deaf.await_event("recall 0")
    rig.await_state(lambda s: s["donated"] == 16 * SLAB, "it grows again")
    assert deaf.ask(f"lease {SLAB}") == "leased 1"


def stall_figures(rig):
    """PSI above its threshold: a sixteenth is given back, though memory seems to be there."""
    proc = fake_proc(rig, available=4096 * MIB)
    rig.server("--proc", proc, "--cgroup", "none", "--calm-time", "60s")
    fake_proc(rig, available=4096 * MIB, some=80.0, full=40.0)
    rig.await_state(lambda s: s["donated"] == 15 * SLAB, "a sixteenth is given back")


def cgroup(rig):
    """At the limit of its cgroup it gives back, instead of being killed."""
    proc = fake_proc(rig, available=4096 * MIB)
    for name, text in {"max": "max", "high": str(512 * MIB), "current": str(100 * MIB), "events": "low 0\nhigh 0\nmax 0\noom 0\n",
                       "stat": "anon 1\ninactive_file 0\n"}.items():
        rig.path("group/memory." + name, text + "\n")
    rig.server("--proc", proc, "--cgroup", rig.path("group"), "--calm-time", "60s")
    session = rig.session("--obey")
    assert session.ask(f"lease {16 * SLAB}") == "leased 16"
    # A sixteenth of the limit is to stay free: two slabs too few.
    rig.path("group/memory.current", f"{512 * MIB - 32 * MIB + 2 * SLAB}\n")
    session.await_event("recall")
    rig.await_state(lambda s: s["donated"] <= 14 * SLAB, "two slabs are given back")
    now = rig.state()["donated"]
    rig.path("group/memory.current", f"{100 * MIB}\n")
    rig.path("group/memory.events", "low 0\nhigh 7\nmax 0\noom 0\n")
    rig.await_state(lambda s: s["donated"] < now, "it was throttled: more is given back")
    line = rig.refused("--proc", proc, "--cgroup", rig.path("group"), "--listen", "127.0.0.1:0", memory=600 * MIB)
    assert "are available" in line, line
    # A limit of the group above holds as well.
    now = rig.state()["donated"]
    rig.path("memory.max", f"{1024 * MIB}\n")
    rig.path("memory.current", f"{1024 * MIB - 64 * MIB + 2 * SLAB}\n")
    rig.await_state(lambda s: s["donated"] <= now - 2 * SLAB, "two slabs more are given back")


def ends(rig):
    """Asked to end it recalls everything and waits; sessions that move their pages lose nothing."""
    server = rig.server()
    willing = rig.session("--obey")
    assert willing.ask(f"lease {4 * SLAB}") == "leased 4"
    server.send(signal.SIGTERM)
    assert server.ended() == 0
    willing.await_event("recall")
    willing.await_event("down")
    assert not any(e.startswith("slab lost") for e in willing.events), willing.events

    server = rig.server("--shutdown-timeout", "1s")
    deaf = rig.session()
    assert deaf.ask(f"lease {4 * SLAB}") == "leased 4"
    assert deaf.ask("fill 4") == f"filled {4 * SLAB}"
    server.send(signal.SIGTERM)
    deaf.await_event("recall")
    line = deaf.ask(f"lease {SLAB}")
    assert line.startswith("error "), line
    assert verified(deaf.ask("verify 4")) == (4 * SLAB, 0, 0), "until the end"
    assert server.ended() == 1
    server.await_log("their pages are lost")

    server = rig.server("--shutdown-timeout", "1h")
    deaf = rig.session()
    assert deaf.ask(f"lease {SLAB}") == "leased 1"
    server.send(signal.SIGTERM)
    deaf.await_event("recall")
    server.send(signal.SIGTERM)
    assert server.ended() == 128 + signal.SIGTERM

    server = rig.server()
    server.send(signal.SIGINT)
    assert server.ended() == 0


CLEAN, DYING = 30, 20  # of 50 sessions


def churn(rig):
    """Sessions that come and go, or are killed with what they have leased, leave nothing behind."""
    server = rig.server("--lease-time", "1s", memory=32 * SLAB)
    connect = [rig.args.session, "--connect", rig.address, "--transport", rig.args.transport]

    def some():
        done = subprocess.run([*connect, "--churn", str(CLEAN)], capture_output=True, text=True, timeout=120)
        assert done.stdout.endswith(f"churned {CLEAN}\n"), done
        victim = Child([*connect, "--churn", str(DYING), "--stay"])
        rig.children.append(victim)
        assert victim.line() == f"churned {DYING}", victim.log
        assert rig.state()["lent"] == DYING * SLAB
        victim.kill()
        rig.children.remove(victim)
        rig.await_state(lambda s: s["free"] == 32 * SLAB and not s["sessions"], "all is free, and nobody is kept")

    def held():
        folder = f"/proc/{server.process.pid}/"
        return resident(server), len(os.listdir(folder + "fd")), len(os.listdir(folder + "task"))

    some()  # pools and tables have their size
    some()
    memory, files, threads = held()
    for _ in range(rig.args.sessions // (CLEAN + DYING) - 2):
        some()
    check_resident(rig, server, memory + 24 * MIB, f"after {rig.args.sessions} sessions")
    eventually(lambda: held()[1] <= files + 8, "descriptors are closed")
    assert held()[2] <= threads + 2, (held(), threads)
    told = rig.nodes("--json")["nodes"][0]["figures"]
    rounds = rig.args.sessions // (CLEAN + DYING)
    assert told["sessions_total"] >= rounds * (CLEAN + DYING), told
    assert told["leases_expired_total"] == rounds * DYING, told
    assert told["lent_bytes"] == 0 and told["cleaning_bytes"] == 0 and told["free_bytes"] == 32 * SLAB, told
    print(f"{told['sessions_total']} sessions: {memory >> 20} MiB resident before, {held()[0] >> 20} after; descriptors {files}, {held()[1]}")


def refusals(rig):
    def expect(words, *options, **more):
        line = rig.refused(*options, **more)
        for word in words:
            assert word in line, (word, line)

    expect(["0.0.0.0:0", "key"], "--listen", "0.0.0.0:0")
    expect(["[::]:0", "key"], "--listen", "[::]:0")
    expect(["--listen", "host:port"], "--listen", "nonsense")
    expect(["--memory", "400TiB"], memory="400TiB")
    expect(["--memory"], memory="lots")
    expect(["--slab", "2MiB"], "--slab", "3MiB")
    expect(["--lease-time", "1ms"], "--lease-time", "1ms")
    expect(["--recall", "soft or hard"], "--recall", "maybe")
    expect(["--tls"], "--tls", "some")
    expect(["--key-quota", "NAME=SIZE"], "--key-quota", "anna")
    expect(["keys"], "--listen", "127.0.0.1:0", "--key-quota", "anna=1GiB")
    expect(["--sessions"], "--sessions", "0")
    expect(["--nonsense"], "--nonsense")
    expect(["--key is given nothing"], "--listen", "127.0.0.1:0", "--key", "")
    expect([rig.path("none.toml")], "--config", rig.path("none.toml"))
    expect([rig.path("none.key")], "--listen", "127.0.0.1:0", "--key", rig.path("none.key"))
    open_key = rig.key("open")
    os.chmod(open_key, 0o644)
    expect([open_key], "--listen", "127.0.0.1:0", "--key", open_key)
    expect(["not without a token"], "--listen", "127.0.0.1:0", "--prometheus", "0.0.0.0:0")
    bad = rig.path("bad.toml", "memory = \"64MiB\"\nlease_times = 3\n")
    expect([bad + ":2", "unknown key 'lease_times'", "the nearest first: lease_time, "], "--config", bad)
    broken = rig.path("broken.toml", "memory = \n")
    expect([broken + ":1"], "--config", broken)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        expect(["in use"], "--listen", "127.0.0.1:%d" % taken.getsockname()[1])
    # A file says what the options say, and the options have the last word.
    good = rig.path("good.toml", "listen = [\"127.0.0.1:0\"]\nlease_time = \"5s\"\nhuge = false\nsessions = 7\n[quotas]\nanna = \"1GiB\"\n")
    expect(["keys"], "--config", good)
    out = subprocess.run([rig.args.server, "--version"], capture_output=True, text=True, timeout=LONG)
    assert out.returncode == 0 and out.stdout.startswith("olmemserver "), out
    asked = subprocess.run([rig.args.server, "--config", rig.path("empty.toml", ""), "--listen", "127.0.0.1:1", "--state"],
                           capture_output=True, text=True, timeout=LONG)
    assert asked.returncode == 1 and "127.0.0.1:1" in asked.stderr, asked


def read_until(screen, text):
    """What a terminal shows until this is there: it hands on what was written bit by bit."""
    shown, until = "", time.monotonic() + LONG
    while text not in shown and time.monotonic() < until:
        if select.select([screen], [], [], 1)[0]:
            shown += os.read(screen, 1 << 16).decode()
    assert text in shown, shown
    return shown


class Gate:
    """A file that is read when the test says so: until then who opens it waits."""

    def __init__(self, path):
        self.path = path
        self.pipe = path + ".gate"  # a second name, for when the first is a file's
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkfifo(self.pipe)
        os.link(self.pipe, path)

    def await_reader(self):
        """Returns when somebody has opened it and waits for what is in it."""
        writers = []

        def opened():
            try:
                writers.append(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                assert error.errno == errno.ENXIO, error  # nobody reads
            return writers

        eventually(opened, f"a reader of {self.path}")
        return os.fdopen(writers[0], "w")


def making(rig):
    """While memory is made a signal ends it before the next slab, and it stops where there is no room for more."""
    group = rig.path("group")

    def held(*options):
        """Begun, and held where it looks for room before its first slab; what the cgroup says is the test's to write."""
        gate = Gate(rig.path("group/memory.max"))
        screen, terminal = pty.openpty()
        process = subprocess.Popen(rig.command("--listen", "127.0.0.1:0", "--huge", "off", "--proc", fake_proc(rig, available=4096 * MIB),
                                               "--cgroup", group, "--prometheus", "127.0.0.1:0", *options, memory=1024 * MIB),
                                   text=True, stdout=subprocess.PIPE, stderr=terminal)
        os.close(terminal)
        with gate.await_reader() as file:  # what there may be at most
            file.write("max\n")
        shown = read_until(screen, "memory [")
        # Figures are there from before memory is made: what is wrong with their address is told then.
        told = prometheus.figures(re.search(r"figures at (\S+)", shown).group(1), "olmemserver")
        assert told == {"configured_bytes": 1024 * MIB}, told
        file = gate.await_reader()
        os.unlink(gate.pipe)
        rig.path("group/memory.max", "max\n")  # from the next look on
        return process, screen, file

    process, screen, file = held()
    process.send_signal(signal.SIGTERM)
    file.write("max\n")
    file.close()
    assert process.wait(LONG) == 0
    read_until(screen, "signal 15: ending")
    assert process.stdout.read() == "", "it went on to the end"
    os.close(screen)
    os.unlink(rig.path("group/memory.max"))

    process, screen, file = held("--calm-time", "1s")
    try:
        fake_proc(rig, available=64 * MIB)  # the reserve: others have taken the rest since it looked
        file.write("max\n")
        file.close()
        read_until(screen, "there is room for no more")
        rig.port = int(process.stdout.readline().rsplit(":", 1)[1])
        made = rig.state()["donated"]
        assert 0 < made <= 64 * MIB, made  # it looks again after that much
        fake_proc(rig, available=4096 * MIB)
        rig.await_state(lambda s: s["donated"] > made, "it grows when there is room")
    finally:
        process.kill()
        process.wait()
        os.close(screen)


def progress(rig):
    """On a terminal a bar shows how much memory is there; elsewhere there is none."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(rig.command("--listen", "127.0.0.1:0"), stdout=subprocess.PIPE, stderr=terminal, text=True)
    os.close(terminal)
    try:
        assert process.stdout.readline().startswith("olmemserver: listening")
        shown = read_until(screen, "\r\x1b[K")
        assert re.search(r"\rmemory \[[= ]{40}\] \S+ of 64MiB", shown), shown
        assert "\r\x1b[K" in shown, shown
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
    finally:
        process.kill()
        process.wait()
        os.close(screen)
    server = rig.server()
    server.send(signal.SIGTERM)
    assert server.ended() == 0
    assert not any("memory [" in line for line in server.log), server.log


def logs(rig):
    """At info a session has one line when it begins and one when it ends, with its number and its key; memory is told of while it is made."""
    mine = rig.key("mine")
    server = rig.server("--key", mine, "--log-format", "json")
    session = rig.session("--key", mine, "--label", "a \"program\"")
    assert session.ask(f"lease {2 * SLAB}") == "leased 2"
    rig.nodes("--json", "--key", mine)  # who asks is no session
    session.tell("quit")
    assert session.line() == "closed" and session.ended() == 0
    server.await_log('"ends: ')
    server.send(signal.SIGTERM)
    assert server.ended() == 0
    lines = [json.loads(line) for line in server.log]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), line
        assert (line["level"], line["program"]) == ("info", "olmemserver"), line
    of_session = [line for line in lines if "session" in line]
    assert [line["message"].split(":")[0] for line in of_session] == ["begins", "ends"], lines
    assert {line["key"] for line in of_session} == {"mine"} and len({line["session"] for line in of_session}) == 1, of_session
    assert 'a "program"' in of_session[0]["message"] and "it said goodbye; it had at most 8MiB" in of_session[1]["message"], of_session
    assert lines[0]["message"].startswith("making memory: 64MiB"), lines
    text = rig.server("--key", mine, "--log-format", "text", "--log", "debug")
    session = rig.session("--key", mine)
    assert session.ask(f"lease {SLAB}") == "leased 1"
    text.await_log("key mine: 1 slabs are lent to it")
    assert any(re.match(r"\d{4}-\d\d-\d\dT\S+Z olmemserver: info: session \d+, key mine: begins: ", line) for line in text.log), text.log
    assert any(" olmemserver: debug: link " in line for line in text.log), text.log


SCENARIOS = {f.__name__: f for f in (basic, keys, quota, killed, stopped_session, stopped_long, stopped_server, restarted, unplugged, pressure,
                                     stall_figures, cgroup, ends, churn, refusals, progress, making, metrics, logs)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--session", required=True)
    parser.add_argument("--olpagestat", required=True)
    parser.add_argument("--olctl", required=True)
    parser.add_argument("--sanitized", action="store_true")
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("transport", nargs="?", choices=["tcp", "shm", "verbs"])
    args = parser.parse_args()
    rig = Rig(args)
    try:
        SCENARIOS[args.scenario](rig)
    except BaseException:
        for child in rig.children:
            print(f"--- {child.process.args[0]} {child.process.pid}: events {child.events}", file=sys.stderr)
            print("\n".join(child.log[-30:]), file=sys.stderr)
        raise
    finally:
        rig.close()


if __name__ == "__main__":
    main()
