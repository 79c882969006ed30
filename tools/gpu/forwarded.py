"""Steps of bench-h200 in forwarded mode: an olgpunode with this machine's GPU, and programs that see no driver (needs root)."""
import argparse
import os
import re
import signal
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

HERE = os.path.dirname(os.path.abspath(__file__))


class Gpunode:
    """`with Gpunode(build, log) as node`: an olgpunode on loopback with the machine's GPU; node.address is where. `inside`: a command that runs
    another one in a network of its own, where programs have to run that use it."""

    def __init__(self, build, log, options=(), inside=()):
        self.program = os.path.join(build, "gpunode", "supervisor", "olgpunode")
        self.options, self.log, self.inside = options, log, inside

    def __enter__(self):
        start = self.log.tell()
        self.process = subprocess.Popen([*self.inside, self.program, "--listen", "127.0.0.1:0", *self.options],
                                        stdout=self.log, stderr=self.log, env=os.environ | {"OL_LOG": "info"})
        end = time.monotonic() + 30
        while time.monotonic() < end and self.process.poll() is None:
            with open(self.log.name) as file:
                file.seek(start)
                found = re.search(r"listening at (\S+)", file.read())
            if found:
                self.address = found.group(1)
                return self
            time.sleep(0.1)
        self.__exit__()
        raise RuntimeError("olgpunode did not start: see its log")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def one_each(context, devices, options=(), inside=()):
    """Olgpunodes with one of this machine's GPUs each, as if they were one node: its address names all of them."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(Gpunode(context.build, context.log, ["--device", str(device), *options], inside)) for device in range(devices)]
        yield argparse.Namespace(address=",".join(node.address for node in nodes), inside=inside)


@contextmanager
def shaped(rate):
    """A network of its own, whose loopback carries no more than `rate` (as tc names it) in both directions together: the command
    that runs another one there. Needs iproute2 and the kernel's tbf."""
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo there; exec sleep infinity"], stdout=subprocess.PIPE)
    inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
    try:
        holder.stdout.readline()
        subprocess.check_call([*inside, "ip", "link", "set", "lo", "up"])
        subprocess.check_call([*inside, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate, "burst", "4mb", "latency", "20ms"])
        yield inside
    finally:
        holder.kill()
        holder.wait()


def command(context, node, transport="auto", log="warn", options=()):
    """What a program is put behind to run on that olgpunode, without a driver on its side; `options` of olrun."""
    return [*node.inside, os.path.join(HERE, "without-driver"), context.olrun, "--gpunode", node.address,
            "--transport", transport, "--log", log, *options, "--"]


def run(context, node, argv, transport="auto", env=None, limit=None, check=True, options=()):
    """A program without a driver on its side, on that olgpunode; what it printed."""
    return context.run([*command(context, node, transport, "info", options), *argv], env, limit, check)


def executables(folder):
    """The names of the programs that were built there."""
    return sorted(n for n in os.listdir(folder) if os.access(os.path.join(folder, n), os.X_OK)
                  and os.path.isfile(os.path.join(folder, n)) and "." not in n)


def apps(folder):
    """The programs of tests/apps that run by themselves here: `exhaustion` and `arrays` fill whatever memory there is, driver_ptx_* need a private
    table of the simulated GPU, some are told what to do by tests of sessions."""
    told = ("exhaustion", "arrays", "descriptors", "holder", "late_failures", "launch_blocking", "leftovers", "logs", "steps",
            "steps_on_devices")
    return [n for n in executables(folder) if n not in told and not n.startswith("driver_ptx_")]


def verdict(failed, run_it):
    """The last line that a program prints, or why there is none."""
    try:
        return (run_it().strip().splitlines() or ["no output"])[-1]
    except failed as error:
        return str(error)


def outcome(failed, good, bad):
    """Of a step that has tried many programs."""
    if bad:
        raise failed(f"{good} good; " + "; ".join(bad))
    return f"{good} good"


def programs(failed):
    """Every program of tests/apps, natively and forwarded."""
    def action(context):
        folder = os.path.join(context.build, "tests", "apps")
        names = apps(folder)
        bad, good = [], 0
        with Gpunode(context.build, context.log) as node:
            for name in names:
                argv = [os.path.join(folder, name), "--bytes", str(64 << 20), "--seed", "1"]
                native = context.run(argv, limit=60, check=False)
                if not native.strip().splitlines()[-1:] or not native.strip().splitlines()[-1].startswith("OK"):
                    continue
                said = verdict(failed, lambda: run(context, node, argv, limit=30, check=False))
                if said.startswith(("OK", "SKIPPED")):
                    good += 1
                else:
                    bad.append(f"{name}: {said[:100]}")
        return outcome(failed, good, bad)
    return action


def toolkit(failed, transports=("shm", "tcp")):
    """Every program of tests/toolkit, natively and forwarded over each transport: the same verdict with the same figures."""
    def action(context):
        folder = os.path.join(context.build, "tests", "toolkit")
        names = executables(folder)
        if not names:
            raise failed("no program in tests/toolkit was built: the toolkit's libraries were not there")
        bad, good = [], 0
        with Gpunode(context.build, context.log) as node:
            for name in names:
                program = [os.path.join(folder, name)]
                native = verdict(failed, lambda: context.run(program, limit=60, check=False))
                if not native.startswith(f"{name}: ok"):
                    bad.append(f"{name} natively: {native[:100]}")
                    continue
                for transport in transports:
                    said = verdict(failed, lambda: run(context, node, program, transport, limit=60, check=False))
                    if said == native:
                        good += 1
                    else:
                        bad.append(f"{name} over {transport}: {said[:100]}, natively {native[:100]}")
        if bad:
            raise failed(f"{good} equal; " + "; ".join(bad))
        return f"{len(names)} programs, {good} runs equal to native ones"
    return action


def spread(values, form):
    """Their median; with several, the least and the most as well."""
    middle = form.format(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} [{form.format(min(values))}..{form.format(max(values))}]"


def workload(failed, argv, transports=("shm", "tcp"), env=None, options=(), same=lambda text: text, rounds=1):
    """A program natively and forwarded over each transport, `rounds` times in turns: same(output) has to be equal. Says how long each took."""
    def action(context):
        took, figures, unit, native = {}, {}, "", None
        with Gpunode(context.build, context.log, options) as node:
            for how in ("native", *transports) * rounds:
                begin = time.monotonic()
                out = context.run(argv, env) if how == "native" else run(context, node, argv, how, env)
                took.setdefault(how, []).append(time.monotonic() - begin)
                native = native or out
                if same(out) != same(native):
                    raise failed(f"differs, {how}: {out.split()[-6:]}, natively {native.split()[-6:]}")
                figure = re.search(r"(s/\w+) ([0-9.]+)", out)
                if figure:
                    unit = figure.group(1)
                    figures.setdefault(how, []).append(float(figure.group(2)))
        said = []
        for how, seconds in took.items():
            said.append(f"{how} {spread(seconds, '{:.1f}')} s")
            if how in figures:
                said[-1] += f" ({spread(figures[how], '{:.4f}')} {unit})"
        return "equal; " + ", ".join(said)
    return action


def together(failed, argv, transports=("shm", "tcp"), env=None):
    """The program once over each transport, all at the same time on one olgpunode: each has to say what it says natively."""
    def action(context):
        native = context.run(argv, env)
        with Gpunode(context.build, context.log) as node, ThreadPoolExecutor() as pool:
            begin = time.monotonic()
            outs = [pool.submit(run, context, node, argv, transport, env) for transport in transports]
            for transport, out in zip(transports, outs):
                if out.result() != native:
                    raise failed(f"differs over {transport}: {out.result().split()[-6:]}, natively {native.split()[-6:]}")
        return f"equal; {len(transports)} programs at once in {time.monotonic() - begin:.1f} s"
    return action


def several(failed, argv, devices=2, transports=("shm", "tcp")):
    """A program with a GPU of each of several olgpunodes, each of which has one of this machine's: it has to say what it says natively."""
    def action(context):
        native = context.run(argv)
        with one_each(context, devices) as all_of_them:
            for transport in transports:
                out = run(context, all_of_them, argv, transport)
                if out != native:
                    raise failed(f"differs over {transport}: {out.split()[-8:]}, natively {native.split()[-8:]}")
        return f"equal on {devices} gpunodes: {' '.join(native.split())}"
    return action
