#!/usr/bin/env python3
"""What olrun says of the daemons that its settings name, before it starts the program: real memservers and gpunodes, present, absent,
with other keys, and things that are neither.

olrun_daemons.py --olrun OLRUN --olmemserver OLMEMSERVER --olgpunode OLGPUNODE --olctl OLCTL
"""
import argparse
import http.server
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

LONG = 30  # seconds: what has to happen happens within
ASKED = 15  # seconds: a daemon that says nothing


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.daemons = options, folder, []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OL_")}
        self.env.update(XDG_CONFIG_HOME=folder, XDG_RUNTIME_DIR=folder, OL_SIM_VRAM="256MiB")

    def key(self, name):
        path = os.path.join(self.folder, name + ".key")
        subprocess.run([self.options.olctl, "keygen", "--name", name, "--out", path], check=True, stdout=subprocess.DEVNULL)
        return path

    def daemon(self, command, said, **env):
        """Its address, once it is there."""
        log = open(os.path.join(self.folder, f"log{len(self.daemons)}"), "w+")
        process = subprocess.Popen(command, env={**self.env, **env}, stdout=log, stderr=log)
        self.daemons.append(process)
        end = time.monotonic() + LONG
        while time.monotonic() < end and process.poll() is None:
            with open(log.name) as text:
                found = re.search(said, text.read())
            if found:
                return found.group(1)
            time.sleep(0.02)
        raise AssertionError(f"{command} did not start: {open(log.name).read()}")

    def memserver(self, *options):
        return self.daemon([self.options.olmemserver, "--config", self.file("empty.toml", ""), "--listen", "127.0.0.1:0", "--memory",
                            "16MiB", "--reserve", "16MiB", "--cgroup", "none", *options], r"listening on (\S+)\n")

    def gpunode(self, *options):
        return self.daemon([self.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", *options], r"listening at (\S+)\n")

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path

    def run(self, *options, env=None):
        return subprocess.run([self.options.olrun, *options], env={**self.env, **(env or {})}, capture_output=True, text=True, timeout=LONG)

    def starts(self, *options, env=None):
        done = self.run(*options, "--", "echo", "started", env=env)
        assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", ""), done

    def refused(self, words, *options, env=None):
        """Status 2 and one line with these words; the program was not started."""
        begun = time.monotonic()
        done = self.run(*options, "--", "echo", "started", env=env)
        assert done.returncode == 2 and done.stdout == "", done
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("olrun: "), done
        for word in words:
            assert word in lines[0], (word, lines[0])
        assert time.monotonic() - begun < ASKED, "it was waited for too long"
        print(lines[0])

    def check(self, *options):
        done = self.run("--check", *options)
        print(done.stdout)
        return done.returncode, done.stdout


class Nobody:
    """An address at which nobody listens, nor can while this is there: connections are refused."""

    def __init__(self):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.socket.getsockname()[1]


def http_servers(bench, kind, *options):
    """At the port of a daemon's figures, and of somebody else's server, with a key and without: it says what is there."""
    ports = []
    for start in (bench.memserver, bench.gpunode):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append("127.0.0.1:%d" % free.getsockname()[1])
        start("--prometheus", ports[-1])

    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        for key in ((), ("--key", bench.key(f"{kind}-http"))):
            for address in ports:
                bench.refused([f"{kind} {address}: an HTTP server answers there", "--prometheus", "--listen"],
                              *options, f"--{kind}", address, *key)
        # It waits for the end of a line, and is told of no more.
        bench.refused([kind], *options, f"--{kind}", "127.0.0.1:%d" % foreign.server_address[1])
        foreign.shutdown()


def memservers(bench):
    sim = ("--driver", "sim")
    mine, other = bench.key("mine"), bench.key("other")
    good, keyed = bench.memserver(), bench.memserver("--key", mine)
    nobody = Nobody()
    absent = nobody.address
    bench.starts(*sim, "--memserver", good)
    bench.starts(*sim, "--memserver", keyed, "--key", mine)
    bench.refused([f"memserver {absent}: Connection refused", "nothing listens there", "--memserver none"], *sim, "--memserver", absent)
    bench.refused([absent], *sim, "--memserver", good, "--memserver", absent)  # one of several
    bench.refused([f"memserver {keyed}", "no key was given", "--key"], *sim, "--memserver", keyed)
    bench.refused([f"memserver {keyed}", "key other"], *sim, "--memserver", keyed, "--key", other)
    bench.refused([f"memserver {good}", "key"], *sim, "--memserver", good, "--key", mine)
    bench.refused(["key file", "none.key"], *sim, "--memserver", good, "--key", "/none.key")
    bench.refused(["named twice"], *sim, "--memserver", good, "--memserver", good)
    node = bench.gpunode()
    bench.refused([f"memserver {node}: it is no memserver but a gpunode", "--gpunode"], *sim, "--memserver", node)
    http_servers(bench, "memserver", *sim)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = "127.0.0.1:%d" % mute.getsockname()[1]
        bench.refused([f"memserver {address}", "in time"], *sim, "--memserver", address)
    # A run can do without what a file names.
    bench.file("olpager/olpager.toml", f'memserver = ["{absent}"]\n')
    bench.refused([absent], *sim)
    bench.starts(*sim, "--memserver", "none")
    bench.starts(*sim, env={"OL_MEMSERVER": "none"})
    bench.starts(*sim, "--memserver", good)
    status, text = bench.check(*sim)
    assert status == 1 and re.search(rf"^GAP +memserver +memserver {absent}: Connection refused", text, re.M), text
    status, text = bench.check(*sim, "--memserver", good)
    assert re.search(rf"^ok +memserver +{good}: 16MiB of 16MiB free, by (tcp|shm)$", text, re.M), text


def gpunodes(bench):
    mine, other = bench.key("mine"), bench.key("other")
    good, keyed = bench.gpunode("--sessions", "3"), bench.gpunode("--key", mine)
    nobody = Nobody()
    absent = nobody.address
    bench.starts("--gpunode", good)
    bench.starts("--gpunode", keyed, "--key", mine)
    bench.refused([f"gpunode {absent}: Connection refused", "nothing listens there", "--gpunode none"], "--gpunode", absent)
    bench.refused([f"gpunode {keyed}", "no key was given", "--key"], "--gpunode", keyed)
    bench.refused([f"gpunode {keyed}", "key other"], "--gpunode", keyed, "--key", other)
    server = bench.memserver()
    bench.refused([f"gpunode {server}: it is no gpunode but a memserver", "--memserver"], "--gpunode", server)
    http_servers(bench, "gpunode")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = "127.0.0.1:%d" % mute.getsockname()[1]
        bench.refused([f"gpunode {address}", "in time"], "--gpunode", address)
    # Options that only one of the two modes has.
    for option in (("--vram", "64MiB"), ("--host", "1GiB"), ("--reach", "all"), ("--report", "pool"), ("--driver", "sim"),
                   ("--va-base", "0x212340000000"), ("--va-size", "1TiB"), ("--memserver", server), ("--replicas", "2"),
                   ("--pack", "off")):
        bench.refused([f"{option[0]}: of no effect", f"gpunode {good}"], "--gpunode", good, *option)
    bench.starts("--gpunode", good, "--exportable", "driver")  # it reaches the worker
    bench.starts("--gpunode", good, "--memserver", "none")
    bench.starts("--gpunode", good, env={"OL_VRAM": "64MiB", "OL_MEMSERVER": absent})  # those of every run
    bench.refused(["--route: of no effect", "--view unified"], "--gpunode", good, "--route", "rr")
    unified = ("--gpunode", good, "--view", "unified")
    bench.refused([f"--route: '10.0.0.9:1' is not allowed; allowed: owner, rr, or a gpunode as --gpunode names it, with /N for its GPU N where it has several: {good}"],
                  *unified, "--route", "10.0.0.9:1")
    bench.refused(["--route: 'owener' is not allowed; allowed: owner, rr, local, or a gpunode"], *unified, "--route", "owener")
    bench.refused(["OL_ROUTE: '10.0.0.9:1' is not allowed"], *unified, env={"OL_ROUTE": "10.0.0.9:1"})
    bench.refused(["--exportable: 'driver' is not allowed in the unified view"], *unified, "--exportable", "driver")
    bench.refused(["--transport: of no effect", "--gpunode"], "--driver", "sim", "--transport", "tcp")
    bench.refused(["--rails: of no effect", "--gpunode"], "--driver", "sim", "--rails", "10.0.0.1")
    bench.refused(["--rails: 'mlx5_0' is no address of a card"], "--gpunode", good, "--rails", "10.0.0.1,mlx5_0")
    bench.file("olpager/olpager.toml", f'gpunode = "{absent}"\n')
    bench.refused([absent])
    bench.refused(["--vram: of no effect", absent], "--vram", "64MiB")
    bench.starts("--gpunode", "none", "--driver", "sim", "--vram", "64MiB")
    status, text = bench.check()
    assert status == 1 and re.search(rf"^GAP +gpunode +gpunode {absent}: Connection refused", text, re.M), text
    status, text = bench.check("--gpunode", good)
    assert status == 0 and re.search(rf"^ok +gpunode +{good}: 0 of at most 3 sessions; olpager simulated GPU$", text, re.M) and "driver" in text, text
    # One whose driver can't start, for want of a GPU or of a driver: the loader's, which may be installed later.
    library = bench.file("broken/libcuda.so.1", "")
    idle = bench.daemon([bench.options.olgpunode, "--config", bench.file("empty.toml", ""), "--listen", "127.0.0.1:0"], r"listening at (\S+)\n",
                        LD_LIBRARY_PATH=os.path.dirname(library))
    bench.refused([f"gpunode {idle} refuses", library], "--gpunode", idle)
    status, text = bench.check("--gpunode", idle)
    assert status == 1 and re.search(rf"^GAP +gpunode +gpunode {idle} refuses: .*{library}", text, re.M), text


def main():
    parser = argparse.ArgumentParser()
    for name in ("--olrun", "--olmemserver", "--olgpunode", "--olctl"):
        parser.add_argument(name, required=True)
    parser.add_argument("kind", choices=["memservers", "gpunodes"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-olrun-") as folder:
        bench = Bench(options, folder)
        try:
            {"memservers": memservers, "gpunodes": gpunodes}[options.kind](bench)
        finally:
            for process in bench.daemons:
                process.kill()
                process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
