#!/usr/bin/env python3
"""What an olgpunode gives to whom: devices, memory, fair shares of VRAM, limits, its state, and NVML of its devices.

node.py --olgpunode OLGPUNODE --olrun OLRUN --olctl OLCTL --olpagestat OLPAGESTAT --steps STEPS --holder HOLDER --descriptors DESCRIPTORS --probe PROBE
  --fake-nvml FOLDER --hung-driver LIBRARY SCENARIO [tcp|shm]
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import prometheus
import sessions
from sessions import LONG

MIB = 1 << 20
SHARED_WITHIN = 5  # seconds, in which a session that comes late has its share


def uuid_text(plain):
    return f"GPU-{plain[:8]}-{plain[8:12]}-{plain[12:16]}-{plain[16:20]}-{plain[20:]}"


class Bench(sessions.Bench):
    def node_with(self, *options, **env):
        """An olgpunode with these options; what it prints as its address."""
        command = [self.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--grace", "3", *options]
        before, self.env = self.env, {**self.env, **env}
        node = self.start(command)
        self.env = before
        return node, node.wait_log(r"listening at (\S+)").group(1)

    def program(self, program, address, env=None, ready=True, options=()):
        before, self.env = self.env, {**self.env, **(env or {})}
        child = self.start([self.options.olrun, "--gpunode", address, "--transport", self.options.transport, *options, "--",
                            program])
        self.env = before
        if ready:
            said = child.line()
            assert said == "ready", f"{said}: {child.log}"
        return child

    def state(self, address, *options):
        return json.loads(subprocess.run([self.options.olgpunode, "--state", "--json", "--listen", address, *options],
                                         check=True, capture_output=True, text=True, timeout=LONG, env=self.env).stdout)

    def until(self, address, true, within=LONG):
        end = time.monotonic() + within
        while True:
            state = self.state(address)
            if true(state):
                return state
            assert time.monotonic() < end, f"not within {within} s: {json.dumps(state, indent=1)}"
            time.sleep(0.1)

    def soon(self, address, true, within=SHARED_WITHIN):
        """Waits as long as it takes, and says so if a share takes longer than it should on a machine whose processors are not shared."""
        begun = time.monotonic()
        state = self.until(address, true)
        took = time.monotonic() - begun
        print(f"after {took:.1f} s" + (f", which is more than {within} s: load {os.getloadavg()[0]:.1f}" if took > within else ""))
        return state


def budget(state, session):
    """What the n-th session has and uses of GPU 0; None before it uses it."""
    return next((s["vram"][0] for s in state["sessions"] if s["session"] == session and s["vram"]), None)


def within_budgets(state, sessions, most, least):
    """Each of these has at most `most` and is within it, and the last uses `least` or more. MiB."""
    shares = [budget(state, session) for session in sessions]
    return all(share and share["used"] <= share["budget"] <= most * MIB for share in shares) and shares[-1]["used"] >= least * MIB


def fields(line):
    assert line.startswith("ok"), line
    return dict(part.split("=", 1) for part in line.split()[1:])


def nvml(bench):
    """A program on a machine without NVML sees the gpunode's devices, memory and processes by it."""
    _, address = bench.node_with("--vram", "64MiB", OL_SIM_DEVICES="2")
    client = bench.program(bench.options.holder, address)
    assert client.ask("take 16") == "ok"
    uuids = [uuid_text(one) for one in client.ask("devices").split()[2:]]
    probe = bench.program(bench.options.probe, address, ready=False)
    assert probe.ask("load") == "ok", probe.log
    assert probe.ask("early") == "ok 1 1 1"
    assert probe.ask("init") == "ok", probe.log
    system = fields(probe.ask("system"))
    assert (system["count"], system["cuda"], system["driver"]) == ("2", "13000", "0.0"), system
    for index in (0, 1):
        device = fields(probe.ask(f"device {index}"))
        assert device["uuid"] == uuids[index], (device, uuids)
        assert device["name"] == "olpager_simulated_GPU" and device["index"] == str(index)
        assert device["bus"] == f"00000000:0{1 + index}:00.0" and device["legacy"] == f"0000:0{1 + index}:00.0"
        assert device["same"] == "yes" and device["small"] == "7", device
    bench.until(address, lambda state: any(s["vram"] for s in state["sessions"]))
    time.sleep(0.3)
    state = fields(probe.ask("state 0"))
    assert int(state["total"]) == 256 * MIB and state["sums"] == "yes", state
    assert 16 * MIB <= int(state["used"]) <= 64 * MIB, state
    assert state["gpu"] == state["temperature"] == state["power"] == "!3" and state["mode"] == "0", state
    assert int(fields(probe.ask("state 1"))["used"]) == 0
    told = probe.ask("processes 0").split()
    assert told[:2] == ["ok", "1"], told
    pid, name, used = told[2].split(":")
    own = subprocess.run(["pgrep", "-P", str(client.process.pid)], capture_output=True, text=True).stdout.strip()
    assert pid in (own, str(client.process.pid)) and name == "holder" and int(used) >= 16 * MIB, told
    assert probe.ask("processes 1") == "ok 0"
    assert probe.ask("private 0") == (f"ok other=6 bytes=2160 bus=0000:01:00.0 processes=1 {told[2]} processes=0 processes=0 log=0 unknown=3")
    assert probe.ask("private 1") == "ok other=6 bytes=2160 bus=0000:02:00.0 processes=0 processes=0 processes=0 log=0 unknown=3"
    assert probe.ask("pair 0 1").startswith("ok ") and probe.ask("pair 0 0") == "ok 0 0 5"
    lacking = fields(probe.ask("lacking 0"))
    assert lacking == {"ecc": "!3", "link": "!3", "fabric": "!3", "limit": "3", "none": "13", "handle": "2", "beyond": "2"}, lacking
    assert fields(probe.ask("fork 0"))["sums"] == "yes"
    assert probe.ask("threads 0") == "ok"
    assert probe.ask("shutdown") == "ok" and probe.ask("early") == "ok 1 1 1"


def nvml_measured(bench):
    """Where the gpunode has NVML its figures are passed on; its memory counts everybody's."""
    _, address = bench.node_with("--device", "2,0", OL_SIM_DEVICES="3", LD_LIBRARY_PATH=bench.options.fake_nvml)
    probe = bench.program(bench.options.probe, address, ready=False)
    assert probe.ask("load") == "ok" and probe.ask("init") == "ok", probe.log
    system = fields(probe.ask("system"))
    assert (system["count"], system["driver"], system["nvml"]) == ("2", "580.65.06", "13.580.65.06"), system
    for index, number in ((0, 2), (1, 0)):
        state = fields(probe.ask(f"state {index}"))
        assert state["gpu"] == str(10 + number) and state["temperature"] == str(40 + number), state
        assert int(state["used"]) == 100 * MIB and int(state["total"]) == 256 * MIB, state
        assert state["power"] == "123456" and state["limit"] == "!3" and state["sm"] == "1980", state


def nvml_gone(bench):
    """Without a gpunode NVML says so; when it goes, devices are lost; when it is back, they are there again."""
    node, address = bench.node_with()
    probe = bench.program(bench.options.probe, address, ready=False)
    assert probe.ask("load") == "ok" and probe.ask("init") == "ok"
    assert probe.ask("state 0").startswith("ok")
    folders = subprocess.run([bench.options.olrun, "--gpunode", address, "--", "/bin/sh", "-c", "echo $LD_LIBRARY_PATH"], env=bench.env,
                             capture_output=True, text=True, timeout=LONG, check=True).stdout.strip()
    node.end()
    time.sleep(0.3)
    assert probe.ask("state 0") == "failed nvmlDeviceGetMemoryInfo 15 GPU is lost"
    probe.wait_log(r"NVML: gpunode 127\.0\.0\.1")
    assert probe.ask("device 0").startswith("ok"), "what a device is was known"
    # olrun would say so itself: one that was started by something else.
    bench.env.update(OL_GPUNODE=address, LD_LIBRARY_PATH=folders)
    late = bench.start([bench.options.probe])
    for name in ("OL_GPUNODE", "LD_LIBRARY_PATH"):
        del bench.env[name]
    assert late.ask("load") == "ok" and late.ask("init") == "failed nvmlInit_v2 999 Unknown Error"
    again = bench.start([bench.options.olgpunode, "--listen", address, "--driver", "sim"])
    again.wait_log("listening at")
    time.sleep(1.1)
    assert probe.ask("state 0").startswith("ok"), probe.log
    assert late.ask("init") == "ok"


def nvml_local(bench):
    """In local mode the machine's own NVML is the one that programs find, or none."""
    for options in (["--driver", "sim"], []):
        if not options:
            options = ["--gpunode", bench.address]
        said = subprocess.run([bench.options.olrun, *options, "--", "/bin/sh", "-c", "echo $LD_LIBRARY_PATH"], env=bench.env,
                              capture_output=True, text=True, timeout=LONG, check=True).stdout
        assert ("nvml" in said) == ("--gpunode" in options), said
    bare = subprocess.run([bench.options.olrun, "--driver", "sim", "--", bench.options.probe], env=bench.env, input="load\n",
                          capture_output=True, text=True, timeout=LONG, check=True)
    native = subprocess.run([bench.options.probe], env=bench.env, input="load\n", capture_output=True, text=True, timeout=LONG)
    assert bare.stdout == native.stdout, "olpager's NVML in local mode"


def devices(bench):
    """--device chooses GPUs and their order; CUDA_VISIBLE_DEVICES of the program chooses among these."""
    _, address = bench.node_with("--device", "2,0", OL_SIM_DEVICES="3")
    ends = lambda client: [one[-2:] for one in client.ask("devices").split()[2:]]
    assert ends(bench.program(bench.options.holder, address)) == ["02", "00"]
    assert ends(bench.program(bench.options.holder, address, {"CUDA_VISIBLE_DEVICES": "1"})) == ["00"]
    assert ends(bench.program(bench.options.holder, address, {"CUDA_VISIBLE_DEVICES": "1,0"})) == ["00", "02"]
    assert ends(bench.program(bench.options.holder, address, {"CUDA_VISIBLE_DEVICES": "0,7,1"})) == ["02"]
    uuid = bench.state(address)["devices"][1]["uuid"]
    one = bench.program(bench.options.holder, address, {"CUDA_VISIBLE_DEVICES": uuid})
    assert ends(one) == ["00"]
    assert one.ask("take 8") == "ok"
    large = lambda state: [s["vram"][0]["device"] for s in state["sessions"] if s["vram"] and s["vram"][0]["used"] >= 8 * MIB]
    assert large(bench.until(address, large)) == [1]
    for named, says in (("7", "error: .*CUDA_VISIBLE_DEVICES=7 names none of its 2"), ("", "info: CUDA_VISIBLE_DEVICES=: "), ("-1", "info: CUDA_VISIBLE_DEVICES=-1: ")):
        none = bench.program(bench.options.holder, address, {"CUDA_VISIBLE_DEVICES": named, "OL_LOG": "info"}, ready=False)
        assert none.line() == "error cudaErrorNoDevice"
        none.wait_log(says)
    for wrong, why in (("3", "there is no GPU 3; the driver has 0 to 2"), ("0,0", "named twice"), ("x", "not allowed")):
        refused = subprocess.run([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--device", wrong],
                                 env={**bench.env, "OL_SIM_DEVICES": "3"}, capture_output=True, text=True, timeout=LONG)
        assert refused.returncode == 2 and why in refused.stderr, refused


def pinned(bench):
    """--memory bounds pinned memory: CUDA's error, a line at the gpunode, and room again after a free."""
    node, address = bench.node_with("--memory", "64MiB")
    client = bench.program(bench.options.holder, address)
    assert client.ask("pin 40") == "ok"
    assert client.ask("pin 40") == "error cudaErrorMemoryAllocation"
    node.wait_log(r"pinned memory: 40MiB more than the 40MiB that the session has of at most 64MiB \(--memory\) is refused")
    assert client.ask("pin 16") == "ok"
    state = bench.until(address, lambda state: state["sessions"][0]["ram"] >= 56 * MIB)
    assert state["sessions"][0]["ram"] <= 64 * MIB, state
    assert client.ask("unpin") == "ok" and client.ask("pin 60") == "ok"
    other = bench.program(bench.options.holder, address)
    assert other.ask("pin 40") == "ok", "one session's pinned memory is another's"


def fair(bench):
    """A second client has its share of VRAM within 5 s, the first has it all again when the second has gone; nothing is lost."""
    _, address = bench.node_with("--memory", "1GiB")
    first = bench.program(bench.options.holder, address)
    assert first.ask("take 176") == "ok" and first.ask("work 2") == "ok"
    alone = bench.until(address, lambda state: budget(state, 1) is not None and budget(state, 1)["used"] > 100 * MIB)
    assert budget(alone, 1)["budget"] == 192 * MIB, alone
    second = bench.program(bench.options.holder, address)
    told = second.ask("memory").split()
    assert told[2] == told[3] == str(96 + 1024), f"what it is told of is its share, not {told}"
    second.tell("take 160")
    bench.soon(address, lambda state: within_budgets(state, (1, 2), 100, 64))
    assert second.line() == "ok"
    for client in (first, second):
        client.tell("work 3")
    assert first.line() == "ok" and second.line() == "ok"
    second.process.stdin.close()
    assert second.process.wait(LONG) == 0
    bench.until(address, lambda state: budget(state, 1)["budget"] >= 190 * MIB)
    bench.soon(address, lambda state: first.ask("work 2") == "ok" and budget(state, 1)["used"] > 100 * MIB)


def fair_late(bench):
    """Clients that come late, to others that compute all the time, have their shares within 5 s each; nothing is lost; what one that is killed
    had goes back to the others."""
    _, address = bench.node_with("--memory", "1GiB")
    clients, workers, enough = [], [], threading.Event()

    def works(client, ends):
        while not enough.is_set() and client.process.poll() is None:
            try:
                ends.append(client.ask("work 1"))
            except (AssertionError, OSError) as error:
                ends.append(str(error))
                return

    for number, (most, least) in enumerate(((192, 100), (100, 64), (68, 40)), start=1):
        client = bench.program(bench.options.holder, address)
        client.tell("take 160")
        bench.soon(address, lambda state: within_budgets(state, range(1, number + 1), most, least))
        assert client.line() == "ok"
        clients.append(client)
        workers.append((threading.Thread(target=works, args=(client, ends := [])), ends))
        workers[-1][0].start()
    done = [len(ends) for _, ends in workers]
    clients[1].process.kill()
    bench.until(address, lambda state: all(budget(state, n)["budget"] >= 92 * MIB for n in (1, 3)))
    bench.until(address, lambda state: all(len(workers[i][1]) > done[i] + 1 for i in (0, 2)))
    enough.set()
    for thread, _ in workers:
        thread.join(LONG)
        assert not thread.is_alive(), "a client stands still"
    for i in (0, 2):
        assert set(workers[i][1]) == {"ok"}, (workers[i][1], clients[i].log)


def fair_stopped(bench):
    """One that is stopped, and reads nothing of what it is sent, holds up nobody's share; when it goes on it has lost nothing."""
    _, address = bench.node_with("--memory", "1GiB")
    first = bench.program(bench.options.holder, address)
    assert first.ask("take 176") == "ok"
    bench.until(address, lambda state: budget(state, 1) is not None and budget(state, 1)["used"] > 100 * MIB)
    children = subprocess.run(["pgrep", "-P", str(first.process.pid)], capture_output=True, text=True).stdout.split()
    pids = [first.process.pid, *map(int, children)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        second = bench.program(bench.options.holder, address)
        second.tell("take 160")
        bench.soon(address, lambda state: within_budgets(state, (1, 2), 100, 64))
        assert second.line() == "ok" and second.ask("work 2") == "ok"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert first.ask("work 2") == "ok" and second.ask("work 1") == "ok"


def fair_ram(bench):
    """Sessions' pages together stay within the RAM that all may have: each has its share, and who comes late what is left, which grows when others
    give back; nothing is lost."""
    _, address = bench.node_with("--vram", "64MiB", "--total-memory", "256MiB")
    memory = lambda client: tuple(int(part) for part in client.ask("memory").split()[1:3])

    def within(state):
        ram = [s["ram"] for s in state["sessions"] if s["running"]]
        assert sum(ram) <= 256 * MIB, ram
        return True

    first = bench.program(bench.options.holder, address)
    assert memory(first)[1] == 64 + 256
    assert first.ask("take 120") == "ok" and first.ask("work 2") == "ok"
    second = bench.program(bench.options.holder, address)
    assert memory(second)[1] == 64 + 128, "what it is told of is its share"
    assert memory(first)[1] == 64 + 128
    # Both want more than fits VRAM, at the same time.
    second.tell("take 130")
    first.tell("work 5")
    bench.soon(address, lambda state: within(state) and state["sessions"][1]["ram"] >= 66 * MIB)
    assert second.line() == "ok" and first.line() == "ok"
    for client in (first, second):
        client.tell("work 4")
    for _ in range(5):
        within(bench.state(address))
        time.sleep(0.2)
    assert first.line() == "ok" and second.line() == "ok"
    assert second.ask("take 64") == "error cudaErrorMemoryAllocation", "more than its share"
    assert second.ask("work 1") == "error cudaErrorMemoryAllocation"  # the runtime tells once more
    # A third has what they have not parked, and what one had that has gone.
    third = bench.program(bench.options.holder, address)
    total = memory(third)[1]
    assert 64 <= total < 64 + 84, total
    assert third.ask("take 48") == "ok"
    within(bench.state(address))
    first.process.stdin.close()
    assert first.process.wait(LONG) == 0
    end = time.monotonic() + LONG
    while memory(third)[1] < 64 + 120:
        assert time.monotonic() < end, memory(third)
        time.sleep(0.1)
    assert third.ask("take 96") == "ok" and third.ask("work 2") == "ok" and second.ask("work 2") == "ok"
    within(bench.state(address))
    # Pinned memory comes off what there is for pages.
    second.process.kill()
    while memory(third)[1] != 64 + 256:
        assert time.monotonic() < end, memory(third)
        time.sleep(0.1)
    assert third.ask("pin 64") == "ok"
    while memory(third)[1] != 64 + 192:
        assert time.monotonic() < end, memory(third)
        time.sleep(0.1)


def hung_driver(bench):
    """A driver that hangs: the gpunode answers between its attempts, and ends at once when it is told to, also in the middle of one."""
    command = [bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", bench.options.hung_driver]
    node = bench.start(command)
    node.wait_log("no key: listening on loopback only")
    time.sleep(2)
    begun = time.monotonic()
    node.process.terminate()
    assert node.process.wait(LONG) == 0
    assert time.monotonic() - begun < 5, "the end waits for the driver"
    node = bench.start(command)
    address = node.wait_log(r"listening at (\S+)", 60).group(1)
    assert any("does not start within 30 s" in line for line in node.log), node.log
    time.sleep(1.5)
    begun = time.monotonic()
    assert bench.state(address)["devices"] == []
    assert time.monotonic() - begun < 5, "nobody is answered"
    refused = bench.program(bench.options.holder, address, ready=False)
    refused.wait_log("the driver does not start within 30 s")
    node.process.terminate()
    assert node.process.wait(LONG) == 0


def fair_idle(bench):
    """Who uses next to nothing takes next to nothing from the others."""
    _, address = bench.node_with("--memory", "1GiB", OL_SIM_VRAM=str(2 << 30))
    first = bench.program(bench.options.holder, address)
    assert first.ask("take 1400") == "ok"
    second = bench.program(bench.options.holder, address)
    assert second.ask("take 8") == "ok"
    time.sleep(2.5)
    state = bench.state(address)
    assert state["sessions"][0]["vram"][0]["used"] >= 1400 * MIB, state
    assert first.ask("work 1") == "ok" and second.ask("work 1") == "ok"


def limits(bench):
    """Sessions of one key are limited, and so are those of all."""
    keys = []
    for name in ("anna", "bert"):
        path = os.path.join(bench.scratch.name, name)
        subprocess.run([bench.options.olctl, "keygen", "--name", name, "--out", path], check=True, capture_output=True)
        keys.append(path)
    both = os.path.join(bench.scratch.name, "both")
    with open(both, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        for path in keys:
            with open(path, encoding="utf-8") as one:
                out.write(one.read())
    _, address = bench.node_with("--key", both, "--key-sessions", "2", "--sessions", "3")
    annas = [bench.program(bench.options.steps, address, options=("--key", keys[0])) for _ in range(2)]
    third = bench.program(bench.options.steps, address, options=("--key", keys[0]), ready=False)
    assert third.line() != "ready"
    third.wait_log(r"key anna has 2 of at most 2 sessions of one key \(--key-sessions\)")
    bert = bench.program(bench.options.steps, address, options=("--key", keys[1]))
    assert bert.ask("step 3") == "ok 3"
    assert [s["key"] for s in bench.state(address, "--key", keys[1])["sessions"]] == ["bert"]
    assert len(bench.state(address, "--key", keys[0])["sessions"]) == 2
    annas[0].end()
    # The killed one's place is free at once for who comes.
    last = bench.program(bench.options.steps, address, options=("--key", keys[1]))
    assert last.ask("step 2") == "ok 2"
    last.end()
    for _ in range(40):
        if len([s for s in bench.state(address, "--key", keys[0])["sessions"] if s["running"]]) == 1:
            break
        time.sleep(0.5)
    assert bench.program(bench.options.steps, address, options=("--key", keys[0])).ask("step 2") == "ok 2"


def state(bench):
    """--state and olpagestat --node show who uses what."""
    _, address = bench.node_with("--vram", "64MiB")
    client = bench.program(bench.options.holder, address)
    assert client.ask("take 96") == "ok"
    before = bench.until(address, lambda state: state["sessions"][0]["vram"] and state["sessions"][0]["ram"] > 0)
    session = before["sessions"][0]
    assert session["program"] == "holder" and session["state"] == "running" and session["calls"] > 10, session
    assert session["vram"][0]["budget"] == 64 * MIB and session["vram"][0]["used"] <= 64 * MIB, session
    assert client.ask("work 5") == "ok"
    bench.until(address, lambda state: state["sessions"][0]["calls"] > session["calls"])
    shown = subprocess.run([bench.options.olgpunode, "--state", "--listen", address], check=True, capture_output=True, text=True,
                           env=bench.env).stdout
    assert re.search(r"^GPU 0  olpager simulated GPU  GPU-", shown, re.MULTILINE), shown
    assert re.search(r"^ +1  - .* holder +0 +\S+ +64MiB +\S+ +\d+  running$", shown, re.MULTILINE), shown
    for options in (["--once"], ["--json"], ["--watch", "0.5", "--duration", "1.7"]):
        shown = subprocess.run([bench.options.olpagestat, "--node", address, *options], check=True, capture_output=True, text=True,
                               timeout=LONG, env=bench.env).stdout
        if "--json" in options:
            node = json.loads(shown)["nodes"][0]
            assert node["kind"] == "gpunode" and node["devices"][0]["uuid"].startswith("GPU-"), node
            assert node["sessions"][0]["calls"] > 10 and node["sessions"][0]["budgets"][0] == 64 * MIB, node
            assert node["session_count"] == 1 and node["sessions"][0]["transport"] in ("tcp", "shm"), node
            assert [tier["name"] for tier in node["tiers"]] == ["VRAM 0", "RAM"], node
        else:
            assert "gpunode" in shown and (re.search(r"holder +(tcp|shm) ", shown) or "--watch" in options), shown
    client.process.kill()
    gone = bench.until(address, lambda state: not state["sessions"][0]["running"], 15)
    assert gone["sessions"][0]["state"].startswith("ended: "), gone


def metrics(bench):
    """--prometheus serves what the gpunode does, in the format and under the names that olpagestat --node has; who drips holds up nothing."""
    node, address = bench.node_with("--vram", "64MiB", "--sessions", "1", "--prometheus", "127.0.0.1:0", OL_SIM_DEVICES="2")
    url = node.wait_log(r"figures at (\S+)").group(1)
    client = bench.program(bench.options.holder, address)
    assert client.ask("take 96") == "ok" and client.ask("work 2") == "ok"

    def served(true):
        end = time.monotonic() + LONG
        while not true(told := prometheus.figures(url, "olgpunode")):
            assert time.monotonic() < end, told
            time.sleep(0.1)
        return told

    told = served(lambda told: told["calls_total"] > 10 and told['vram_pages_bytes{device="0"}'] > 32 * MIB)
    assert (told["sessions"], told["sessions_total"], told["sessions_ended_total"], told["sessions_refused_total"]) == (1, 1, 0, 0), told
    assert told['vram_bytes{device="0"}'] == told['vram_bytes{device="1"}'] == 256 * MIB, told
    assert told['vram_pages_bytes{device="0"}'] <= told['vram_used_bytes{device="0"}'] <= 64 * MIB, told
    assert told['vram_budget_bytes{device="0"}'] == 64 * MIB and told['vram_budget_bytes{device="1"}'] == 0, told
    assert told["moved_bytes_total"] > 0 and told["host_tier_bytes"] > 0, told
    shown = subprocess.run([bench.options.olpagestat, "--node", address, "--json"], check=True, capture_output=True, text=True,
                           timeout=LONG, env=bench.env).stdout
    assert set(json.loads(shown)["nodes"][0]["figures"]) == set(told), shown
    assert prometheus.refused(url + "/more")
    prometheus.Drip(url)
    prometheus.figures(url, "olgpunode", timeout=5)
    # olrun asks first, and is told there is no room: nobody was refused a session by that.
    subprocess.run([bench.options.olrun, "--gpunode", address, "--check"], capture_output=True, timeout=LONG, env=bench.env)
    client.process.kill()
    told = served(lambda told: told["sessions"] == 0)
    assert (told["sessions_total"], told["sessions_ended_total"], told["sessions_refused_total"]) == (1, 1, 0), told
    assert told["calls_total"] > 10, "what ended sessions have done is forgotten"
    # What a session does between the last of its reports and its end counts.
    rounds, before = 20, told["calls_total"]
    client = bench.program(bench.options.holder, address)
    assert client.ask("take 1") == "ok" and client.ask(f"work {rounds}") == "ok"
    client.process.kill()
    told = served(lambda told: told["sessions_ended_total"] == 2)
    assert told["calls_total"] > before + rounds, f"calls of a session's last moments are lost: {before}, {told}"
    for wrong in ("0.0.0.0:0", "nonsense"):
        refused = subprocess.run([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--prometheus", wrong],
                                 env=bench.env, capture_output=True, text=True, timeout=LONG)
        assert refused.returncode == 2 and wrong in refused.stderr, refused
    prometheus.Drip(url)
    time.sleep(0.2)
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(5) == 0


def cache(bench):
    """A module is sent once for each key: the next session says its hash. What lies in the folder is not believed."""
    folder = os.path.join(bench.scratch.name, "cache")
    _, address = bench.node_with("--cache", folder)

    def sent():
        client = bench.program(bench.options.holder, address)
        assert client.ask("take 8") == "ok" and client.ask("work 2") == "ok"
        number = max(s["session"] for s in bench.state(address)["sessions"])
        mine = lambda state: next(s for s in state["sessions"] if s["session"] == number)
        state = bench.until(address, lambda state: mine(state)["calls"] > 10 and mine(state)["vram"])
        time.sleep(0.6)  # the last report has it all
        client.end()
        return mine(bench.state(address))["moved"]

    first = sent()
    files = os.listdir(os.path.join(folder, "modules", "no-key"))
    assert len(files) == 1 and re.fullmatch("[0-9a-f]{64}", files[0]), files
    path = os.path.join(folder, "modules", "no-key", files[0])
    image = os.path.getsize(path)
    second = sent()
    print(f"image {image}, first session {first}, second {second}")
    assert image > 100000 and first > image and second < first - image * 0.9
    with open(path, "r+b") as out:
        out.seek(1000)
        out.write(b"spoiled")
    assert sent() > image, "a spoiled file was taken"
    assert sent() < image
    assert os.stat(path).st_mode & 0o77 == 0
    # Another key has nothing of it.
    key = os.path.join(bench.scratch.name, "anna")
    subprocess.run([bench.options.olctl, "keygen", "--name", "anna", "--out", key], check=True, capture_output=True)
    _, other = bench.node_with("--cache", folder, "--key", key)
    anna = bench.program(bench.options.holder, other, options=("--key", key))
    assert anna.ask("take 8") == "ok"
    assert sorted(os.listdir(os.path.join(folder, "modules"))) == ["key-anna", "no-key"]
    assert len(os.listdir(os.path.join(folder, "modules", "key-anna"))) == 1


def confined(bench):
    """Workers are confined, work all the same, and are not where that was said."""
    for options, seccomp in ((), "2"), (("--confine", "off"), "0"):
        node, address = bench.node_with(*options)
        client = bench.program(bench.options.steps, address)
        assert client.ask("step 20") == "ok 20" and client.ask("copy 2") == "ok 20"
        pid = node.wait_log(r"worker (\d+)$").group(1)
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            told = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
        assert told["Seccomp"] == seccomp and told["NoNewPrivs"] == "1", (options, told["Seccomp"], told["NoNewPrivs"])
        with open(f"/proc/{pid}/limits", encoding="utf-8") as limits:
            core = next(line.split() for line in limits if line.startswith("Max core file size"))
        assert options or core[4:6] == ["0", "0"], core
        # Root's capability to look into others (number 19) is not a worker's.
        assert int(told["CapPrm"], 16) >> 19 & 1 == 0 and int(told["CapEff"], 16) >> 19 & 1 == 0, told["CapPrm"]
        for process in (pid, node.process.pid):
            hidden(process)


def hidden(pid):
    """Others of its user can't look into a process: its files in /proc are root's."""
    assert os.stat(f"/proc/{pid}/environ").st_uid == 0
    if os.geteuid() != 0:
        for name in ("environ", "mem", "fd"):
            assert not os.access(f"/proc/{pid}/{name}", os.R_OK), name


def unprivileged(bench):
    """The same where the daemon's user is not root: it works, and nobody else of that user can look into it or its workers."""
    if os.geteuid() != 0:
        return confined(bench)
    nobody = 65534
    home = os.path.join(bench.scratch.name, "nobody")
    os.chmod(bench.scratch.name, 0o711)
    os.mkdir(home, 0o700)
    os.chown(home, nobody, nobody)
    as_nobody = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups"]
    try:
        subprocess.run([*as_nobody, bench.options.olgpunode, "--version"], check=True, capture_output=True, timeout=LONG)
    except (OSError, subprocess.CalledProcessError):
        print("SKIPPED: no setpriv, or another user can't run what was built")
        sys.exit(77)
    folders = {name: home for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    # Two users: without a key neither would take the other one for itself. Each has a file of its own.
    key, theirs = os.path.join(bench.scratch.name, "anna.key"), os.path.join(home, "anna.key")
    subprocess.run([bench.options.olctl, "keygen", "--name", "anna", "--out", key], check=True, capture_output=True)
    shutil.copy(key, theirs)
    os.chown(theirs, nobody, nobody)
    node = bench.start([*as_nobody, bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--key", theirs], **folders)
    client = bench.program(bench.options.steps, node.wait_log(r"listening at (\S+)").group(1), options=("--key", key))
    assert client.ask("step 20") == "ok 20" and client.ask("copy 2") == "ok 20"
    look = "import os, sys; sys.exit(sum(os.access(f'/proc/{sys.argv[1]}/{name}', os.R_OK) for name in ('environ', 'mem', 'fd')))"
    for process in (int(node.wait_log(r"worker (\d+)$").group(1)), node.process.pid):
        assert os.stat(f"/proc/{process}").st_uid == nobody
        hidden(process)
        subprocess.run([*as_nobody, sys.executable, "-c", look, str(process)], check=True, timeout=LONG)


def settings(bench):
    """A file of options; the command line wins; what is wrong in it is said with its line."""
    path = os.path.join(bench.scratch.name, "olgpunode.toml")
    with open(path, "w", encoding="utf-8") as out:
        out.write('vram = "32MiB"\nkey_sessions = 1\nconfine = false\nmemory = "1GiB"\n')
    _, address = bench.node_with("--config", path, "--key-sessions", "2")
    clients = [bench.program(bench.options.holder, address) for _ in range(2)]
    assert clients[0].ask("take 8") == "ok"
    third = bench.program(bench.options.holder, address, ready=False)
    third.wait_log("2 of at most 2 sessions of one key")
    state = bench.until(address, lambda state: any(s["vram"] for s in state["sessions"]))
    assert next(s for s in state["sessions"] if s["vram"])["vram"][0]["budget"] <= 32 * MIB, state
    for text, why in (('vram = "much"\n', ":1: vram: "), ("\nnothing = 3\n", ":2: unknown key 'nothing'"),
                      ("vram = 1.5\n", ":1: vram is of type floating-point"), ("vram = 8GiB\n", "a text needs quotes: vram = \"8GiB\"")):
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        refused = subprocess.run([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--config", path],
                                 env=bench.env, capture_output=True, text=True, timeout=LONG)
        assert refused.returncode == 2 and why in refused.stderr, refused


def exporting(bench, address, *options):
    return bench.program(bench.options.descriptors, address, options=options)


def exported(bench):
    """Exported memory goes to programs of the same key, by its descriptor, and to no others; it outlives who exported it where it was imported."""
    paths = []
    for name in ("laptop", "stranger"):
        paths.append(os.path.join(bench.scratch.name, name))
        subprocess.run([bench.options.olctl, "keygen", "--name", name, "--out", paths[-1]], check=True, capture_output=True)
    both = os.path.join(bench.scratch.name, "both")
    with open(os.open(both, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as out:
        for path in paths:
            with open(path, encoding="utf-8") as one:
                out.write(one.read())
    node, address = bench.node_with("--key", both)
    laptop, stranger = ("--key", paths[0]), ("--key", paths[1])
    giver, taker = (exporting(bench, address, *laptop) for _ in range(2))
    other = exporting(bench, address, *stranger)
    assert giver.ask("make 77") == "ok"
    for program, answer in ((taker, "ok"), (other, "error 1")):
        path = os.path.join(bench.scratch.name, f"socket-{answer[0]}")
        assert giver.ask(f"send {path}") == "ok"
        assert program.ask(f"take {path}") == "ok" and giver.line() == "sent"
        assert program.ask("import") == answer, (program.log, node.log)
    other.wait_log("comes with another key")
    node.wait_log("exported memory of another key's, or without its token, and was refused")
    assert taker.ask("read") == "ok 77"
    os.kill(bench.program_pid(giver), signal.SIGKILL)
    end = time.monotonic() + LONG
    while (said := taker.ask("import")) == "ok" and time.monotonic() < end:
        time.sleep(0.1)
    assert said == "error 1", said
    taker.wait_log("the program that exported the memory has ended")


def exported_nowhere(bench):
    """Exported memory is its gpunode's: no other has it. Where the pager moves it, it is not exported, with a line that says what helps."""
    addresses = [bench.node_with()[1] for _ in range(2)]
    giver, taker = (exporting(bench, address) for address in addresses)
    path = os.path.join(bench.scratch.name, "socket")
    assert giver.ask("make 5") == "ok" and giver.ask(f"send {path}") == "ok"
    assert taker.ask(f"take {path}") == "ok" and giver.line() == "sent"
    assert taker.ask("import") == "error 1"
    taker.wait_log("or is on another gpunode")
    paged = exporting(bench, addresses[0], "--exportable", "pager")
    assert paged.ask("make 6") == "ok"
    paged.tell(f"send {path}-2")
    paged.wait_log("olrun --exportable driver")


SCENARIOS = [nvml, nvml_measured, nvml_gone, nvml_local, devices, pinned, fair, fair_late, fair_stopped, fair_ram, fair_idle, hung_driver, limits, state, metrics, cache, confined, unprivileged, settings, exported, exported_nowhere]


if __name__ == "__main__":
    sessions.run(SCENARIOS, __doc__, ("--olgpunode", "--olrun", "--olctl", "--olpagestat", "--steps", "--holder", "--descriptors", "--probe",
                                      "--fake-nvml", "--hung-driver"), Bench)
