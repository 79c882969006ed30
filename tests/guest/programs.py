"""Programs over RDMA, by two cards of each end: an oversubscribed one with a memserver, one without a
driver on a gpunode. By one: a program over two gpunodes as one device. What is refused where RDMA is
required and can't be had. For the virtual machine of run-in-guest, with -r 2.

    programs.py --olrun OLRUN --olmemserver OLMEMSERVER --olgpunode OLGPUNODE --olctl OLCTL PROGRAM
"""
import argparse, os, re, subprocess, sys, tempfile, threading, time

MIB = 1 << 20
BYTES = 32 * MIB
HOST = 8 * MIB
PATIENCE = 240  # seconds: a virtual machine's processors may be interpreted, and other tests run beside it


class Daemon:
    def __init__(self, argv, listening):
        self.lines = []
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.address = None
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(listening, line):
                self.address = found.group(1)
                break
        assert self.address, "".join(self.lines)
        threading.Thread(target=self.drain, daemon=True).start()

    def drain(self):
        self.lines += self.process.stdout

    def end(self):
        self.process.terminate()
        status = self.process.wait(PATIENCE)
        assert status == 0, (status, "".join(self.lines))


# What olrun --stats says of memory that cards know: bytes now, and how often some was registered.
def card_memory(said):
    found = re.search(r"RDMA cards +(\S+) registered now, (\d+) registrations so far", said)
    assert found, said
    return found.group(1), int(found.group(2))


def run(status, *argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == status, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def main(args):
    host = os.environ["RDMA_PEER_ADDR"]
    os.environ.update(OL_SIM_VRAM=str(256 * MIB))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
            os.environ[name] = folder
        key = os.path.join(folder, "key")
        run(0, args.olctl, "keygen", "--name", "pair", "--out", key)
        trust = ["--key", key, "--tls", "off"]
        program = ["--", args.program, "--bytes", str(BYTES), "--seed", "1"]
        required = [args.olrun, "--transport", "verbs", *trust]

        # Over both cards of each end.
        here, there = (["--rails", os.environ[name]] for name in ("RDMA_RAILS", "RDMA_PEER_RAILS"))
        start = time.monotonic()
        memserver = Daemon([args.olmemserver, "--listen", f"{host}:0", "--memory", str(64 * MIB), "--slab", str(4 * MIB),
                            "--reserve", "64MiB", "--transport", "verbs", *there, *trust], r"listening on (\S+:\d+)")
        said = run(0, *required, *here, "--log", "info", "--driver", "sim", "--vram", str(8 * MIB), "--host", str(HOST), "--stats",
                   "--memserver", memserver.address, *program)
        assert "OK" in said and "verbs over 2 rails" in said and "set aside" not in said, said
        assert re.search(r"memservers +0 by tcp, 0 by shm, 1 by verbs", said), said
        # Each of the four chunks of 2 MiB is registered once with each of the two cards, and the link's two words are, whatever
        # moves. A chunk that is released and made again is registered again.
        once = 2 * (HOST // (2 * MIB) + 2)
        _, registrations = card_memory(said)
        assert 2 * 2 < registrations <= 2 * once, said
        # Where no more may be pinned than two chunks by either card, it is told, and the rest is registered for each transfer.
        said = run(0, "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", f"--memlock={16 * MIB}", *required,
                   *here, "--driver", "sim", "--vram", str(8 * MIB), "--host", str(HOST), "--stats", "--memserver", memserver.address,
                   *program)
        assert "OK" in said and "the rest is registered for each transfer" in said and card_memory(said)[1] > registrations, said
        print(f"memory registered {registrations} times; with 16 MiB to pin {card_memory(said)[1]} times")
        # Without RDMA on the program's side there is no link: it is said, and nothing starts.
        said = run(2, args.olrun, "--transport", "verbs", *here, "--key", key, "--driver", "sim", "--memserver", memserver.address, *program)
        assert "rails: of no effect with tls = all" in said and "everything is encrypted" in said, said
        said = run(2, args.olrun, "--transport", "tcp", *here, *trust, "--driver", "sim", "--memserver", memserver.address, *program)
        assert re.search("asks for tcp, and with it this node has verbs", said), said
        assert said.count("rails: of no effect with transport = tcp") == 1, said
        memserver.end()
        print(f"memserver: {time.monotonic() - start:.1f} s")

        start = time.monotonic()
        gpunode = Daemon([args.olgpunode, "--listen", f"{host}:0", "--driver", "sim", "--vram", str(64 * MIB),
                          "--memory", str(64 * MIB), "--cache", "none", "--transport", "verbs", *there, *trust],
                         r"listening at (\S+:\d+)")
        said = run(0, *required, *here, "--log", "info", "--gpunode", gpunode.address, *program)
        assert "OK" in said and "connecting again" not in said and "verbs over 2 rails" in said, said
        gpunode.end()
        print(f"gpunode: {time.monotonic() - start:.1f} s")

        # One device over two, neither of which can hold the program: pages go between their workers.
        start = time.monotonic()
        gpunodes = [Daemon([args.olgpunode, "--listen", f"{host}:0", "--driver", "sim", "--vram", str(8 * MIB),
                            "--memory", str(256 * MIB), "--cache", "none", "--transport", "verbs", "--log", "info", *trust],
                           r"listening at (\S+:\d+)") for _ in range(2)]
        named = [word for gpunode in gpunodes for word in ("--gpunode", gpunode.address)]
        said = run(0, *required, "--log", "info", "--view", "unified", *named, *program)
        assert "OK" in said and re.search(r"operations: [1-9]\d* at \S+, [1-9]\d* at .* moved to another GPU [1-9]", said), said
        assert re.search(r"unified view: gpunodes \S+ and \S+: .*verbs", said), said
        for gpunode in gpunodes:
            gpunode.end()
        lines = "".join(line for gpunode in gpunodes for line in gpunode.lines)
        assert re.search(r"[1-9]\d* pages came from other executors", lines) and ": verbs, key peer-" in lines, lines
        print(f"unified view: {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--olrun", "--olmemserver", "--olgpunode", "--olctl"):
        parser.add_argument(option, required=True)
    parser.add_argument("program")
    sys.exit(main(parser.parse_args()))
