#!/usr/bin/env python3
"""How olpagestat calls programs: an interpreter with its script, a gpunode's worker with its
program's name, and a forwarded program with its gpunodes, before it has asked for a GPU and after.

olpagestat_names.py --olpagestat P --olrun P --olgpunode P
"""
import argparse
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

LONG = 60  # seconds: what has to happen happens within
SCRIPT = """
import ctypes, sys
print("begun", flush=True)
sys.stdin.readline()
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for done in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
             cuda.cuMemAlloc_v2(ctypes.byref(memory), 8 << 20)):
    assert done == 0, done
print("ready", flush=True)
sys.stdin.read()
"""


def on_screen(options, env, *lines):
    """The live screen, until it has shown all of them."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.execve(options.olpagestat, [options.olpagestat], dict(env, TERM="xterm", LC_ALL="C"))
    text, end = "", time.monotonic() + LONG
    while not all(re.search(line, text) for line in lines):
        assert time.monotonic() < end, f"not on the screen: {lines}\n{text}"
        if select.select([terminal], [], [], 0.1)[0]:
            text += os.read(terminal, 1 << 16).decode()
    os.write(terminal, b"q")
    while True:  # what it still sends goes nowhere
        try:
            if not os.read(terminal, 1 << 16):
                break
        except OSError:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--olpagestat", "--olrun", "--olgpunode"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-names-") as scratch:
        script = os.path.join(scratch, "generate.py")
        with open(script, "w") as file:
            file.write(SCRIPT)
        env = dict(os.environ, XDG_RUNTIME_DIR=scratch, XDG_CONFIG_HOME=scratch)
        node = subprocess.Popen([options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--vram", "64MiB", "--memory", "256MiB", "--cache",
                                 "none"], stderr=subprocess.PIPE, text=True, env=env)
        children = [node]
        try:
            address = next(found.group(1) for line in node.stderr if (found := re.search(r"listening at (\S+)", line)))

            def begin(*settings):
                child = subprocess.Popen([options.olrun, *settings, "--", sys.executable, script,
                                          "an argument"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, env=env)
                children.append(child)
                assert child.stdout.readline() == "begun\n"
                return child

            def ask_for_gpu(child):
                child.stdin.write("go on\n")
                child.stdin.flush()
                assert child.stdout.readline() == "ready\n"
                return child

            def shown(*lines):
                end = time.monotonic() + LONG
                while True:
                    text = subprocess.run([options.olpagestat, "--once"], capture_output=True, text=True, env=env, check=True).stdout
                    missing = [line for line in lines if not re.search(line, text, re.M)]
                    if not missing:
                        return text
                    assert time.monotonic() < end, f"no line like {missing}: {text}"
                    time.sleep(0.1)

            remote = begin("--gpunode", address)
            forwarded = rf"^\S+ generate\.py  pid \d+  forwarded to {re.escape(address)}; olpagestat --node shows it there$"
            shown(forwarded)
            told = json.loads(subprocess.run([options.olpagestat, "--json"], capture_output=True, text=True, env=env, check=True).stdout)
            ours = [one for one in told["forwarded"] if one["gpunodes"] == address]
            assert len(ours) == 1 and ours[0]["program"].endswith(" generate.py"), told["forwarded"]
            pid = ours[0]["pid"]
            assert pid not in [one["pid"] for one in told["processes"]], told
            alone = json.loads(subprocess.run([options.olpagestat, "--json", "--pid", str(pid)], capture_output=True, text=True, env=env,
                                              check=True).stdout)
            assert alone["forwarded"] == ours and alone["processes"] == [], alone
            elsewhere = subprocess.run([options.olpagestat, "--json", "--folder", scratch], capture_output=True, text=True, env=env, check=False)
            assert json.loads(elsewhere.stdout)["forwarded"] is None, elsewhere
            on_screen(options, env, rf"{pid} \S+ generate\.py  forwarded to {re.escape(address)}")
            # From now on it has counters: its link.
            ask_for_gpu(remote)
            link = rf"^  link +{re.escape(address)} \(gpunode, \S+\): \S+ sent, \S+ received$"
            shown(rf"^\S+ generate\.py  pid {pid}  running", link, r"^worker: \S+  pid \d+  running")
            told = json.loads(subprocess.run([options.olpagestat, "--json"], capture_output=True, text=True, env=env, check=True).stdout)
            assert pid not in [one["pid"] for one in told["forwarded"]], told["forwarded"]
            ours = next(one for one in told["processes"] if one["pid"] == pid)
            assert [(one["to"], one["peer"]) for one in ours["links"]] == [("gpunode", address)], ours
            assert any(one["program"].startswith("worker: ") for one in told["processes"]), told
            on_screen(options, env, rf"{pid} \S+ generat", rf"link of {pid} to {re.escape(address)}", r"worker: ")
            local = ask_for_gpu(begin("--driver", "sim", "--vram", "16MiB"))
            text = shown(r"^\S+ generate\.py  pid (?!%d)\d+  running" % pid)
            # Other tests may run beside this one: of their programs there are lines too.
            assert not re.findall(r"generate\.py.* forwarded to " + re.escape(address), text), text
            # Of one process.
            own = [line for line in text.splitlines() if re.match(r"\S+ generate\.py  pid (?!%d)\d+  running" % pid, line)]
            pid = re.search(r"pid (\d+)", own[0]).group(1)
            one = subprocess.run([options.olpagestat, "--once", "--pid", pid], capture_output=True, text=True, env=env, check=True).stdout
            assert "forwarded" not in one and "generate.py" in one, one
            print(own[0].strip())
            local.stdin.close()
            assert local.wait(LONG) == 0
        finally:
            for child in reversed(children):
                child.terminate()
            for child in children:
                child.wait(LONG)


if __name__ == "__main__":
    main()
