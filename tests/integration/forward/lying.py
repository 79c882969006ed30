#!/usr/bin/env python3
"""A gpunode that lies to its programs: they get errors, and nothing of their memory is read or written that they did not give to CUDA.

lying.py --olgpunode OLGPUNODE --olrun OLRUN --lying-worker WORKER --lied-to PROGRAM [--app PROGRAM]... SCENARIO [tcp|shm]
"""
import os
import shutil
import subprocess

import sessions

UNKNOWN, NOT_SUPPORTED, INVALID_VALUE = 999, 801, 1
EVERY = 300, 3000  # bytes of answers: one has another bit
PATIENCE = 20  # seconds for a program that hears nonsense: it may wait in vain


class Bench(sessions.Bench):
    """Its gpunode is a copy of the build's, with the worker that lies."""

    def begin(self, listen="127.0.0.1:0"):
        build = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(self.options.olgpunode))))
        self.folder = os.path.join(self.scratch.name, "build")
        os.makedirs(os.path.join(self.folder, "gpunode/supervisor"))
        os.makedirs(os.path.join(self.folder, "gpunode/worker"))
        open(os.path.join(self.folder, "build.ninja"), "w", encoding="utf-8").close()
        self.supervisor = shutil.copy(self.options.olgpunode, os.path.join(self.folder, "gpunode/supervisor/olgpunode"))
        os.symlink(os.path.abspath(self.options.lying_worker), os.path.join(self.folder, "gpunode/worker/olgpunode-worker"))
        os.symlink(os.path.join(build, "interpose"), os.path.join(self.folder, "interpose"))
        os.symlink(os.path.join(build, "gpunode/simgpu"), os.path.join(self.folder, "gpunode/simgpu"))

    def node_that(self, lie, at="0"):
        node = self.start([self.supervisor, "--listen", "127.0.0.1:0", "--driver", "sim", "--grace", "3", "--cache", "none"],
                          OL_TEST_LIE=lie, OL_TEST_AT=at)
        return node, node.wait_log(r"listening at (\S+)").group(1)

    def lied_to(self, lie, aims=False):
        """What the program says at each step, and the node's log. The address of the program's word is told to the node that aims at it."""
        program = self.options.lied_to
        # Without random addresses the word is where it was before.
        plain = ["setarch", "-R", self.options.olrun, "--transport", self.options.transport]
        at = "0"
        if aims:
            _, address = self.node_that("none")
            first = self.start([*plain, "--gpunode", address, "--", program])
            at = first.line()
            first.process.kill()
        node, address = self.node_that(lie, at)
        child = self.start([*plain, "--gpunode", address, "--", program])
        assert child.line() == at or not aims, "the word is elsewhere"
        child.tell("go")
        said = {}
        for _ in range(5):
            step, result = child.line().split()
            said[step] = result
        assert child.process.wait(PATIENCE) == 0, child.log
        return said, "\n".join(node.log), "\n".join(child.log)


def honest(bench):
    """What the others differ from."""
    said, log, _ = bench.lied_to("none")
    assert said == {"launch": "0", "one": "0", "two": "0", "pinned": str(INVALID_VALUE), "word": "same"}, said
    assert "a launch brought" not in log


def parameters(bench):
    """A kernel takes no more than its code says."""
    said, log, told = bench.lied_to("parameters")
    assert said["launch"] == str(UNKNOWN), said
    assert "a launch brought" not in log, log
    assert "what the kernel's code does not" in told, told


def variable(bench):
    """Managed memory that wraps round covers nothing."""
    said, _, told = bench.lied_to("variable", aims=True)
    assert said["one"] == str(NOT_SUPPORTED) and said["pinned"] == str(INVALID_VALUE), said
    assert said["word"] == "same", said
    assert "where no variable can be" in told, told


def place(bench):
    """What the program has at a variable's place stays the program's."""
    said, _, told = bench.lied_to("place", aims=True)
    assert said["one"] == str(NOT_SUPPORTED) and said["pinned"] == str(INVALID_VALUE) and said["word"] == "same", said
    assert "memory of its own" in told, told


def bits(bench):
    """Of nonsense a program hears errors, or waits: it does not die of it."""
    for seed, app in enumerate(bench.options.app * 2):
        _, address = bench.node_that(f"bits {seed + 1} {EVERY[seed % 2]}")
        command = [bench.options.olrun, "--gpunode", address, "--transport", bench.options.transport, "--", app, "--bytes", str(1 << 20)]
        try:
            done = subprocess.run(command, env=bench.env, capture_output=True, text=True, errors="replace", timeout=PATIENCE, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            continue
        print(os.path.basename(app), done.returncode, done.stdout[-80:].strip())
        assert 0 <= done.returncode < 128, (app, seed, done)


SCENARIOS = [honest, parameters, variable, place, bits]

if __name__ == "__main__":
    sessions.run(SCENARIOS, __doc__, ("--olgpunode", "--olrun", "--lying-worker", "--lied-to"), Bench)
