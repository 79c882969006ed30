#!/usr/bin/env python3
"""olpagestat --why and olrun --why over real programs, paged by the real library on the simulated
GPU: what each way to be slow is found to be, and that it is not found where it is not there.

What is slow is slow because a setting or a cable makes it so, ten times as slow as the processor is
on a busy machine: kernels touch few words, links move some MiB a second.

why.py --olpagestat P --olrun P --olmemserver P --olgpunode P --program P CASE
"""
import argparse
import atexit
import glob
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

from olpagestat_executors import Gpunode

MIB = 1 << 20


def fail(text):
    sys.exit(f"FAILED: {text}")


def check(condition, text):
    if not condition:
        fail(text)


class Run:
    """A program that has run to its end, and what its counters say."""

    def __init__(self, options, scratch, way, olrun, size, rounds=4, sim=None, why=False,
                 driver=True, workers=False):
        env = dict(os.environ, XDG_RUNTIME_DIR=scratch, XDG_CONFIG_HOME=scratch,
                   OL_COUNTERS_KEEP="1")
        for name, value in (sim or {}).items():
            env["OL_SIM_" + name] = value
        done = subprocess.run(
            [options.olrun, *(["--driver", "sim"] if driver else []), *olrun,
             *(["--why"] if why else []), "--", options.program, way, "--bytes", str(size * MIB), "--rounds", str(rounds)],
            env=env, capture_output=True, text=True, timeout=200, check=False)
        check(done.returncode == 0 and "OK" in done.stdout, f"{way}: {done.returncode}\n"
              f"{done.stdout}{done.stderr}")
        self.text = done.stderr
        if why:
            return
        self.text = ""
        files = glob.glob(os.path.join(scratch, "olpager", "*.counters"))
        check(workers or len(files) == 1, f"one file of counters: {files}")
        told = [self.read(options, file) for file in files]
        # Of the program, or of the workers that made its calls, together.
        told = [one for one in told if one["program"].startswith("worker: ") == workers]
        check(told, f"whose counters are {files}?")
        self.process = told[0]
        self.found = {finding["id"]: finding for one in told for finding in one["findings"]}
        self.check_findings()

    def read(self, options, file):
        shown = subprocess.run([options.olpagestat, "--why", "--json", file],
                               capture_output=True, text=True, check=False)
        check(shown.returncode == 0, f"olpagestat --why: {shown.stderr}")
        self.text += subprocess.run([options.olpagestat, "--why", file], capture_output=True,
                                    text=True, check=True).stdout
        os.unlink(file)
        return json.loads(shown.stdout)["processes"][0]

    def check_findings(self):
        print(self.text)
        costs = [finding["seconds"] for finding in self.process["findings"]]
        measured = [cost for cost in costs if cost is not None]
        check(measured == sorted(measured, reverse=True), f"the worst first: {costs}")
        check(None not in costs[:len(measured)], f"what is not measured comes last: {costs}")
        for finding in self.process["findings"]:
            check(finding["seconds"] is None or 0 < finding["seconds"],
                  f"a cost that is none: {finding}")
            check(finding["evidence"] and finding["action"], f"not told: {finding}")

    def has(self, *ids):
        for one in ids:
            check(one in self.found, f"{one} is not found:\n{self.text}")

    def lacks(self, *ids):
        for one in ids:
            check(one not in self.found, f"{one} is found:\n{self.text}")


# GB/s: a block of 4 MiB takes 84 ms.
SLOW_LINK = {"BANDWIDTH": "0.05"}


class SlowCable:
    """Forwards 127.0.0.1 at another port to a daemon, at so many bytes a second each way."""

    def __init__(self, port, rate):
        self.port, self.rate = port, rate
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self.listener.getsockname())
        self.free = {True: 0.0, False: 0.0}
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.port))
            for a, b, inward in ((near, far, True), (far, near, False)):
                threading.Thread(target=self.pump, args=(a, b, inward), daemon=True).start()

    def pump(self, a, b, inward):
        try:
            while data := a.recv(1 << 16):
                with self.lock:
                    now = time.monotonic()
                    self.free[inward] = max(now, self.free[inward]) + len(data) / self.rate
                    pause = self.free[inward] - now
                time.sleep(pause)
                b.sendall(data)
        except OSError:
            pass
        a.close()
        b.close()


def budget(options, scratch):
    run = Run(options, scratch, "stream", ["--vram", "32MiB"], 64, sim=SLOW_LINK)
    run.has("budget")
    run.lacks("host-tier", "host-memory", "hops", "reaching-all", "graph", "sparse", "own-thread")
    finding = run.found["budget"]
    check("64MiB allocated; the budget is 32MiB" in finding["evidence"], finding)
    check("--vram" in finding["action"], finding)
    check(finding["seconds"] <= run.process["seconds"], finding)
    gpu = run.process["gpu"]
    check(gpu is not None and gpu["pages"] > 0, f"the GPU waits for pages: {gpu}")
    parts = sum(gpu[part] for part in ("busy", "pages", "host", "hop", "unknown"))
    check(abs(parts - gpu["seconds"]) < 1e-6, f"parts of the time: {gpu}")


def in_order(options, scratch):
    run = Run(options, scratch, "stream", ["--vram", "128MiB"], 64)
    check(not run.found, f"found: {run.text}")
    check("In order" in run.text, run.text)
    check(run.process["gpu"] is None, "the GPU was looked at though nothing was paged")


def olrun(options, scratch):
    text = Run(options, scratch, "stream", ["--vram", "32MiB"], 64, sim=SLOW_LINK, why=True).text
    check("1. " in text and "To do: " in text and "budget" in text, text)
    check(not glob.glob(os.path.join(scratch, "olpager", "*.counters")), "counters are left")
    text = Run(options, scratch, "stream", ["--vram", "128MiB"], 64, why=True).text
    check("In order" in text, text)


def files(options, scratch):
    path = os.path.join(scratch, "nothing")
    shown = subprocess.run([options.olpagestat, "--why", path], capture_output=True, text=True,
                           check=False)
    check(shown.returncode == 1 and path in shown.stderr, f"no file: {shown}")
    with open(path, "wb") as file:
        file.write(b"OLCOUNT\0" + (6).to_bytes(4, "little") + bytes(100))
    shown = subprocess.run([options.olpagestat, "--why", path], capture_output=True, text=True,
                           check=False)
    check(shown.returncode == 1 and "version 6" in shown.stderr, f"an older file: {shown}")
    shown = subprocess.run([options.olpagestat, "--why", path, "more"], capture_output=True,
                           text=True, check=False)
    check(shown.returncode == 2, f"two files: {shown}")
    shown = subprocess.run([options.olpagestat, path], capture_output=True, text=True, check=False)
    check(shown.returncode == 2, f"a file without --why: {shown}")


def host_tier(options, scratch):
    server = subprocess.Popen(
        [options.olmemserver, "--listen", "127.0.0.1:0", "--memory", "256MiB"],
        env=dict(os.environ, XDG_CONFIG_HOME=scratch), stdout=subprocess.PIPE, text=True)
    atexit.register(server.kill)
    for line in server.stdout:
        if "listening" in line:
            break
    port = int(re.search(r"127\.0\.0\.1:(\d+)", line).group(1))
    cable = SlowCable(port, 40 * MIB)
    over = ["--transport", "tcp", "--memserver", cable.address]
    run = Run(options, scratch, "stream", ["--vram", "32MiB", "--host", "32MiB", *over], 96)
    run.has("host-tier", "memservers")
    check(cable.address in run.found["memservers"]["evidence"], "the memserver is named")
    check("--host" in run.found["host-tier"]["action"], run.text)
    # The same pages fit host RAM: nothing has to go elsewhere.
    run = Run(options, scratch, "stream", ["--vram", "32MiB", "--host", "256MiB", *over], 96)
    run.lacks("host-tier", "memservers")


def in_place(options, scratch):
    run = Run(options, scratch, "whole", ["--vram", "32MiB"], 96, rounds=8, sim=SLOW_LINK)
    run.has("in-place")
    check("addKernel" in run.found["in-place"]["evidence"], "the kernel is named")
    run = Run(options, scratch, "whole", ["--vram", "128MiB"], 96, rounds=8)
    run.lacks("in-place")


def graph(options, scratch):
    run = Run(options, scratch, "memory", ["--vram", "32MiB"], 64)
    run.has("graph")
    check("the largest reached 64MiB" in run.found["graph"]["evidence"], run.text)
    check("0 of these were made as their nodes" in run.found["graph"]["evidence"], run.text)
    for way in ("graph", "stream"):  # a graph that fits no VRAM runs as its nodes
        run = Run(options, scratch, way, ["--vram", "32MiB"], 64)
        run.lacks("graph")


def reaching_all(options, scratch):
    run = Run(options, scratch, "pinned", ["--vram", "32MiB"], 64)
    run.has("reaching-all")
    check("addFewBeside" in run.found["reaching-all"]["evidence"], "the kernel is named")
    run = Run(options, scratch, "stream", ["--vram", "32MiB"], 64)
    run.lacks("reaching-all")


def own_thread(options, scratch):
    run = Run(options, scratch, "pauses", ["--vram", "56MiB"], 64, rounds=1)
    run.has("own-thread")
    check(run.process["gpu"]["host"] > 0.2, run.process["gpu"])
    run = Run(options, scratch, "stream", ["--vram", "32MiB"], 64, sim=SLOW_LINK)
    run.lacks("own-thread")


def host_memory(options, scratch):
    slow = {"HOST_MAKING": "0.02"}
    run = Run(options, scratch, "stream", ["--vram", "32MiB"], 96, sim=slow)
    run.has("host-memory")
    check("GB/s" in run.found["host-memory"]["evidence"], run.text)
    # As slow, and none is needed.
    run = Run(options, scratch, "stream", ["--vram", "128MiB"], 96, sim=slow)
    run.lacks("host-memory")


def hops(options, scratch):
    nodes = [Gpunode(options, scratch, name) for name in ("one", "two")]
    for node in nodes:
        atexit.register(node.process.kill)
    over = [word for node in nodes for word in ("--gpunode", node.address)]
    over += ["--view", "unified"]
    run = Run(options, scratch, "stream", over, 48, driver=False)
    run.has("hops")
    check(run.process["not_measured"], "what the gpunodes' pagers count is not measured here")
    run = Run(options, scratch, "stream", over, 16, driver=False)  # one of them has room for all
    run.lacks("hops")


def ping_pong(options, scratch):
    run = Run(options, scratch, "managed", ["--vram", "64MiB"], 32, rounds=12,
              sim={"BANDWIDTH": "0.2"})
    run.has("ping-pong", "copies")  # the GPU waits for what the CPU had, too
    check("the CPU wrote it" in run.found["ping-pong"]["evidence"], run.text)
    run = Run(options, scratch, "sides", ["--vram", "64MiB"], 32, rounds=12)
    run.lacks("ping-pong")


def mapping(options, scratch):
    run = Run(options, scratch, "stream", ["--vram", "32MiB"], 64, sim={"MAPPING": "30000"})
    run.has("mapping")
    check(re.search(r"[1-9]\d* extents came, of 4MiB on average",
                    run.found["mapping"]["evidence"]), run.text)
    # As slow, and nothing is mapped while launches wait.
    run = Run(options, scratch, "stream", ["--vram", "128MiB"], 64, sim={"MAPPING": "30000"})
    run.lacks("mapping")


def busy(options, scratch):
    # Launches wait until kernels are over that have what is to leave; the GPU runs all the time.
    run = Run(options, scratch, "busy", ["--vram", "32MiB"], 64, rounds=2)
    gpu = run.process["gpu"]
    check(gpu["busy"] > 0.5 * gpu["seconds"], f"the GPU is busy: {gpu}")
    idle = gpu["pages"] + gpu["hop"] + gpu["unknown"]
    for finding in run.process["findings"]:
        check(finding["id"] == "own-thread" or finding["seconds"] is None or
              finding["seconds"] <= 1.01 * idle, f"it costs more than the GPU was idle: {finding}")
    # The same, and nothing has to leave.
    run = Run(options, scratch, "busy", ["--vram", "128MiB"], 64, rounds=1)
    run.lacks("kernels", "budget", "hash")


def others(options, scratch):
    # Two GPUs that are one device. By turns, each launch uses a block that the other one has.
    sim = {"DEVICES": "2", "BANDWIDTH": "0.1"}
    over = ["--gpunode", "local", "--view", "unified", "--vram", "64MiB", "--host", "256MiB"]
    run = Run(options, scratch, "stream", [*over, "--route", "rr"], 20, rounds=6, sim=sim,
              workers=True)
    run.has("others")
    check("waited" in run.found["others"]["evidence"], run.text)
    # Each launch goes to where its block is.
    run = Run(options, scratch, "stream", over, 20, rounds=6, sim=sim, workers=True)
    run.lacks("others")


def hashing(options, scratch):
    # One thread hashes 4 MiB of a victim, and copies are as fast as the machine.
    run = Run(options, scratch, "stream", ["--vram", "32MiB"], 64, sim={"THREADS": "1"})
    run.has("hash")
    check("were hashed" in run.found["hash"]["evidence"], run.text)
    # As slow, and none has to leave.
    run = Run(options, scratch, "stream", ["--vram", "128MiB"], 64, sim={"THREADS": "1"})
    run.lacks("hash")


def link(options, scratch):
    run = Run(options, scratch, "shares", ["--vram", "48MiB"], 64, sim={"BANDWIDTH": "0.2"})
    run.has("link")
    check("of the 0.2" in run.found["link"]["evidence"] or
          "of the 0.1" in run.found["link"]["evidence"], run.text)
    # As slow, and nobody else is on it.
    run = Run(options, scratch, "stream", ["--vram", "48MiB"], 64, sim=SLOW_LINK)
    run.lacks("link")
    run.has("budget")


def pinned(options, scratch):
    node = Gpunode(options, scratch, "one")
    atexit.register(node.process.kill)
    over = ["--gpunode", node.address, "--transport", "tcp"]
    run = Run(options, scratch, "mapped", over, 8, driver=False)
    run.has("pinned")
    found = run.found["pinned"]["evidence"]
    sent, received = (float(word) for word in re.search(
        r"([\d.]+)MiB of pinned or managed memory went .* and ([\d.]+)MiB that", found).groups())
    # Each round the CPU has changed every byte of 8 MiB, and then the kernel.
    check(4 * 8 <= sent <= 4 * 8 + 1 and 4 * 8 <= received <= 4 * 8 + 1, found)
    check(node.address in found, found)
    check(run.process["not_measured"], "what the gpunode's pager counts is not measured here")
    # The same bytes, by copies; and as they are where both have the memory.
    run = Run(options, scratch, "copied", over, 8, driver=False)
    run.lacks("pinned")
    run = Run(options, scratch, "mapped", ["--gpunode", node.address, "--transport", "shm"], 8,
              driver=False)
    run.lacks("pinned")


def sparse(options, scratch):
    # The simulated GPU takes a second for the whole table and some ms at most for a word of it.
    sim = {"SPEED": "60", "THREADS": "1"}
    run = Run(options, scratch, "sparse", ["--vram", "176MiB"], 64, rounds=16, sim=sim)
    run.has("sparse")
    check("128MiB in 1 allocations" in run.found["sparse"]["evidence"], run.text)
    run = Run(options, scratch, "dense", ["--vram", "176MiB"], 64, rounds=1, sim=sim)
    run.lacks("sparse")


def main():
    cases = {case.__name__: case for case in (
        budget, in_order, olrun, files, host_tier, in_place, graph, reaching_all, own_thread,
        host_memory, hops, ping_pong, mapping, busy, others, hashing, link, pinned,
        sparse)}
    parser = argparse.ArgumentParser()
    for program in ("olpagestat", "olrun", "olmemserver", "olgpunode", "program"):
        parser.add_argument("--" + program, required=True)
    parser.add_argument("case", choices=cases)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cases[options.case](options, scratch)
    print("OK")


if __name__ == "__main__":
    main()
