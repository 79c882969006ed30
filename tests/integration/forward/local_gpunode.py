#!/usr/bin/env python3
"""olrun --gpunode local: a gpunode for one program, on the simulated GPU. What holds for it, who may use it, and that it ends with the program.

local_gpunode.py --olgpunode OLGPUNODE --olrun OLRUN --olctl OLCTL --olpagestat OLPAGESTAT --steps STEPS --holder HOLDER --vector-add VECTOR_ADD
  --two-devices TWO_DEVICES --fork-child FORK_CHILD --preload LIBOLPAGER [--env NAME=VALUE]... SCENARIO [tcp|shm]
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

import sessions
from sessions import LONG, run

MIB = 1 << 20
SOON = 3  # seconds: a gpunode whose program has ended


class Bench(sessions.Bench):
    """Programs with a gpunode each. Their runtime folder is the test's: by it their gpunodes are known."""

    def begin(self, listen=None):
        self.runtime = os.path.join(self.scratch.name, "olpager")

    def command(self, *program, options=()):
        return [self.options.olrun, "--driver", "sim", "--gpunode", "local", "--transport", self.options.transport, *options, "--", *program]

    def program(self, program, options=(), ready=True, **environment):
        child = self.start(self.command(program, options=options), **environment)
        if ready:
            said = child.line()
            assert said == "ready", f"{said}: {child.log}"
        return child

    def done(self, *program, options=(), **environment):
        return subprocess.run(self.command(*program, options=options), env={**self.env, **environment}, capture_output=True, text=True, timeout=LONG,
                              stdin=subprocess.DEVNULL)

    def refused(self, words, command, **environment):
        """Status 2 and one line of olrun's with these words."""
        done = subprocess.run(command, env={**self.env, **environment}, capture_output=True, text=True, timeout=LONG, stdin=subprocess.DEVNULL)
        lines = done.stderr.splitlines()
        assert (done.returncode, done.stdout, len(lines)) == (2, "", 1) and lines[0].startswith("olrun: "), done
        for word in words:
            assert word in lines[0], (word, lines[0])
        print(lines[0])

    def gpunodes(self):
        """Process by socket."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace").split("\0")
            except OSError:
                continue
            listens = [word.removeprefix("--listen=unix:") for word in words if word.startswith("--listen=unix:" + self.runtime)]
            if listens and words[0] == "olgpunode":
                found[listens[0]] = int(pid)
        return found

    def only_gpunode(self):
        [(path, pid)] = self.gpunodes().items()
        return path, pid

    @staticmethod
    def workers_of(pid):
        return [int(one) for one in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()]

    def none_left(self, workers=(), within=SOON):
        """No gpunode, no socket and no key of one, none of these workers."""
        end = time.monotonic() + within * max(1.0, os.getloadavg()[0] / os.cpu_count())
        while True:
            left = [self.gpunodes(), [pid for pid in workers if alive(pid)],
                    [name for name in os.listdir(self.runtime) if ".sock" in name]]
            if not any(left):
                return
            assert time.monotonic() < end, left
            time.sleep(0.02)

    def state(self, path):
        told = subprocess.run([self.options.olgpunode, "--state", "--json", "--listen", "unix:" + path, "--key", path + ".key"],
                              check=True, capture_output=True, text=True, timeout=LONG, env=self.env)
        return json.loads(told.stdout)

    def close(self):
        for child in self.children:
            child.end()
        for pid in self.gpunodes().values():
            os.kill(pid, signal.SIGKILL)
        super().close()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def views(bench):
    """A program has this machine's GPU by it in either view, and says nothing of it; nobody is its child."""
    for view in ("discrete", "unified"):
        done = bench.done(bench.options.vector_add, "--bytes", str(8 * MIB), options=("--view", view))
        assert done.returncode == 0 and done.stdout.startswith("OK") and done.stderr == "", done
        bench.none_left()
    done = bench.done(sys.executable, "-c", "import os\ntry: print(os.wait())\nexcept ChildProcessError: print('none')")
    assert (done.stdout, done.stderr) == ("none\n", ""), done
    done = bench.done(bench.options.fork_child, "--bytes", str(8 * MIB))
    assert done.returncode == 0 and done.stdout.startswith("OK"), done
    bench.none_left()


def beside(bench):
    """Beside another gpunode, which has no key, or another than its own: each has its device, and copies go between them."""
    key = os.path.join(bench.scratch.name, "other.key")
    subprocess.run([bench.options.olctl, "keygen", "--name", "other", "--out", key], check=True, stdout=subprocess.DEVNULL)
    for keyed in ((), ("--key", key)):
        node = bench.start([bench.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", *keyed])
        address = node.wait_log(r"listening at (\S+)").group(1)
        done = bench.done(bench.options.two_devices, "--bytes", str(8 * MIB), options=("--gpunode", address, *keyed))
        assert done.returncode == 0 and done.stdout.startswith("OK") and done.stderr == "", done
        node.wait_log(r"session \w+.*: ends: two_devices: its program has ended")
        node.end()
        bench.none_left()


def ends(bench):
    """It ends with the program: told, killed, become another by exec; also where that can't be run, or olrun refuses the rest."""
    client = bench.program(bench.options.steps)
    assert client.ask("step 5") == "ok 5"
    _, pid = bench.only_gpunode()
    workers = bench.workers_of(pid)
    assert len(workers) == 1
    client.process.stdin.close()
    assert client.process.wait(LONG) == 0
    bench.none_left([pid, *workers])

    client = bench.program(bench.options.steps)
    assert client.ask("step 5") == "ok 5"
    _, pid = bench.only_gpunode()
    workers = bench.workers_of(pid)
    client.process.kill()
    client.process.wait(LONG)
    bench.none_left([pid, *workers])

    shell = bench.start(bench.command("/bin/sh", "-c", f"read line; exec {bench.options.steps}"))
    shell.tell("go on")
    assert shell.line() == "ready" and shell.ask("step 5") == "ok 5"
    shell.process.kill()
    shell.process.wait(LONG)
    bench.none_left()

    script = os.path.join(bench.scratch.name, "script")
    with open(script, "w") as file:
        file.write("#!/there/is/no/such/interpreter\n")
    os.chmod(script, 0o755)
    done = bench.done(script)
    assert done.returncode == 126 and "its interpreter /there/is/no/such/interpreter: No such file" in done.stderr, done
    bench.none_left()
    bench.refused(["gpunode 127.0.0.1:1"], bench.command("true", options=("--gpunode", "127.0.0.1:1")))
    bench.none_left()


def told(bench):
    """SIGTERM and SIGINT, which go to all of a unit or a terminal, are the program's to obey; killed, it takes the session with it, and what it
    leaves is removed by the next."""
    client = bench.program(bench.options.steps)
    path, pid = bench.only_gpunode()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    time.sleep(0.3)
    assert client.ask("step 5") == "ok 5" and alive(pid)
    workers = bench.workers_of(pid)
    os.kill(pid, signal.SIGKILL)
    assert client.ask("step 5").startswith("error")
    client.wait_log("the session on the gpunode is lost")
    assert not any(alive(one) for one in workers) and os.path.exists(path + ".key")
    client.process.kill()
    client.process.wait(LONG)
    for left in (path, path + ".key"):
        os.utime(left, (time.time() - 3600,) * 2)
    assert bench.done("true").returncode == 0
    bench.none_left()


def background(bench):
    """What a program leaves behind in the background keeps the GPU, and when that has ended the gpunode ends."""
    out = os.path.join(bench.scratch.name, "out")
    late = f"sleep 1; exec {bench.options.vector_add} --bytes {8 * MIB} >{out} 2>&1"
    client = bench.start(bench.command("/bin/sh", "-c", f"setsid /bin/sh -c '{late}' </dev/null >/dev/null 2>&1 & exit 7"))
    assert client.process.wait(LONG) == 7
    _, pid = bench.only_gpunode()
    end = time.monotonic() + LONG
    while not os.path.exists(out) or not open(out).read():
        assert alive(pid) and time.monotonic() < end
        time.sleep(0.02)
    assert open(out).read().startswith("OK"), open(out).read()
    bench.none_left([pid])


def apart(bench):
    """Two runs at a time have a gpunode each; a program that olrun starts within a run has that run's."""
    first, second = bench.program(bench.options.steps), bench.program(bench.options.steps)
    assert first.ask("step 5") == "ok 5" and second.ask("step 4") == "ok 4"
    both = bench.gpunodes()
    assert len(both) == 2
    for path in both:
        assert [row["program"] for row in bench.state(path)["sessions"]] == ["steps"]
    first.process.kill()
    first.process.wait(LONG)
    end = time.monotonic() + LONG
    while len(bench.gpunodes()) != 1:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert second.ask("step 4") == "ok 8"
    second.process.kill()
    second.process.wait(LONG)
    bench.none_left()
    within = bench.start(bench.command("/bin/sh", "-c", f"{bench.options.olrun} -- {bench.options.steps}; exit 3"))
    assert within.line() == "ready", within.log
    path, _ = bench.only_gpunode()
    assert len(bench.state(path)["sessions"]) == 1
    own = bench.start(bench.command("/bin/sh", "-c", f"{bench.options.olrun} --gpunode local -- {bench.options.steps}; exit 3"))
    assert own.line() == "ready", own.log
    assert len(bench.gpunodes()) == 3
    for child in (within, own):
        child.process.stdin.close()
        assert child.process.wait(LONG) == 3
    bench.none_left()


def others(bench):
    """Neither who has no key or another one may use it, nor another user."""
    client = bench.program(bench.options.steps)
    path, _ = bench.only_gpunode()
    assert os.stat(path + ".key").st_mode & 0o777 == 0o600 and os.stat(bench.runtime).st_mode & 0o777 == 0o700
    key = os.path.join(bench.scratch.name, "other.key")
    subprocess.run([bench.options.olctl, "keygen", "--name", "local", "--out", key], check=True, stdout=subprocess.DEVNULL)
    there = [bench.options.olrun, "--gpunode", "unix:" + path]
    bench.refused(["gpunode unix:", "no key was given"], [*there, "--", "true"])
    bench.refused(["gpunode unix:", "the peer's key of that name is another one"], [*there, "--key", key, "--", "true"])
    assert subprocess.run([*there, "--key", path + ".key", "--", "true"], env=bench.env, timeout=LONG, check=False).returncode == 0
    if os.geteuid() == 0:
        knock = ("import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.settimeout(20)\n"
                 "try: s.connect(sys.argv[1])\nexcept PermissionError: sys.exit('not let in')\n"
                 "sys.stdout.buffer.write(s.recv(4096))")

        def other():
            return subprocess.run([sys.executable, "-c", knock, path], user=65534, group=65534, extra_groups=[], capture_output=True, timeout=LONG,
                                  env={}, cwd="/")
        os.chmod(bench.scratch.name, 0o755)
        assert b"not let in" in other().stderr
        os.chmod(bench.runtime, 0o755)
        os.chmod(path, 0o777)
        said = other().stdout
        assert b"user 65534 connects to user 0" in said, said
        os.chmod(bench.runtime, 0o700)
    assert client.ask("step 5") == "ok 5"


def settings(bench):
    """Settings of this machine hold for it, from options and files; so does the choice of devices; olpagestat finds it; --stats, --check."""
    config = os.path.join(bench.scratch.name, "olpager", "olpager.toml")
    os.makedirs(os.path.dirname(config), mode=0o700, exist_ok=True)
    with open(config, "w") as file:
        file.write('gpunode = ["local"]\nvram = "32MiB"\ndriver = "sim"\n')
    client = bench.start([bench.options.olrun, "--host", "64MiB", "--log", "info", "--", bench.options.holder],
                         OL_SIM_DEVICES="3", CUDA_VISIBLE_DEVICES="2,1")
    assert client.line() == "ready", client.log
    assert [uuid[-2:] for uuid in client.ask("devices").split()[2:]] == ["02", "01"]
    assert int(client.ask("memory").split()[2]) == 32 + 64
    assert client.ask("take 40") == "ok" and client.ask("work 1") == "ok"
    told_of = client.wait_log(r"olrun: gpunode local: (olpagestat --node \S+ --key \S+)").group(1).split()
    shown = subprocess.run([bench.options.olpagestat, *told_of[1:]], env=bench.env, capture_output=True, text=True, timeout=LONG, check=True).stdout
    assert "holder" in shown and "olpager simulated GPU" in shown, shown
    path, _ = bench.only_gpunode()
    end = time.monotonic() + LONG
    while True:  # its worker reports now and then
        [row] = bench.state(path)["sessions"]
        if row["vram"] or time.monotonic() > end:
            break
        time.sleep(0.05)
    assert [one["budget"] for one in row["vram"]] == [32 * MIB], row
    client.process.kill()
    client.process.wait(LONG)
    bench.none_left()
    os.unlink(config)

    done = bench.done(bench.options.vector_add, "--bytes", str(8 * MIB), options=("--stats", "--vram", "32MiB"))
    assert done.returncode == 0 and re.search(r"^  VRAM budget +32MiB", done.stderr, re.M), done
    assert re.search(r"^  launches +[1-9]", done.stderr, re.M), done
    bench.none_left()
    assert not [name for name in os.listdir(bench.runtime) if name.endswith(".counters")]
    done = subprocess.run(bench.command("true")[:-2] + ["--check"], env=bench.env, capture_output=True, text=True, timeout=LONG)
    assert re.search(r"^ok +gpunode +local: 0 of at most 64 sessions; olpager simulated GPU$", done.stdout, re.M), done
    assert re.search(r"^ok +devices +1$", done.stdout, re.M), done
    bench.none_left()


def nothing_here(bench):
    """Where there is no GPU, or olrun was not there to start it: one line."""
    broken = bench.command("true")
    broken[broken.index("sim")] = os.path.join(bench.scratch.name, "libcuda.so.1")
    bench.refused(["driver: ", "libcuda.so.1"], broken)
    none = {"OL_SIM_DEVICES": "0"}
    bench.refused(["gpunode local: the driver can't start", "does nvidia-smi work here?"], bench.command("true"), **none)
    bench.none_left()
    done = subprocess.run(bench.command("true")[:-2] + ["--check"], env={**bench.env, **none}, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 1 and re.search(r"^GAP +gpunode +local: ", done.stdout, re.M), done
    bench.refused(["--gpunode: local is named twice"], bench.command("true", options=("--gpunode", "local")))
    alone = subprocess.run([bench.options.vector_add, "--bytes", str(8 * MIB)], capture_output=True, text=True, timeout=LONG,
                           env={**bench.env, "OL_GPUNODE": "local", "LD_PRELOAD": bench.options.preload})
    lines = [line for line in alone.stderr.splitlines() if line.startswith("olpager: ")]
    assert alone.returncode == 1 and len(lines) == 1 and "gpunode = local: olrun starts that gpunode" in lines[0], alone
    done = subprocess.run([bench.options.olgpunode, "--for-program", "--driver", "sim"], env=bench.env, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 2 and "olrun --gpunode local" in done.stderr, done


SCENARIOS = [views, beside, ends, told, background, apart, others, settings, nothing_here]

if __name__ == "__main__":
    run(SCENARIOS, __doc__, ("--olgpunode", "--olrun", "--olctl", "--olpagestat", "--steps", "--holder", "--vector-add", "--two-devices", "--fork-child",
                             "--preload"), Bench)
