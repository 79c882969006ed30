"""Programs over RDMA, by two cards of each end: an oversubscribed one with a memserver, one without a
driver on a gpunode. By one: a program over two gpunodes as one device. What is refused where RDMA is
required and can't be had. For the virtual machine of run-in-guest, with -r 2.

    programs.py --olrun OLRUN --olmemserver OLMEMSERVER --olgpunode OLGPUNODE --olctl OLCTL --olpagestat OLPAGESTAT
                --dma-bufs LIBRARY PROGRAM
"""
import argparse, json, os, re, subprocess, sys, tempfile, threading, time

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


# Cuts the wire of the second rail as soon as the program's link has both, and waits until olpagestat
# says so of it. What olpagestat said last.
def cut_second_rail(olpagestat, pid):
    end = time.monotonic() + PATIENCE
    cut = False
    while time.monotonic() < end:
        told = json.loads(subprocess.run([olpagestat, "--json"], capture_output=True, text=True, timeout=PATIENCE).stdout)
        links = [link for process in told["processes"] for link in process["links"]]
        rails = links[0]["rails"] if links else []
        if not cut and [rail["state"] for rail in rails] == ["in_use", "in_use"]:
            assert [rail["device"] for rail in rails] == ["rxe0", "rxe2"] and {rail["port"] for rail in rails} == {1}, told
            subprocess.run(["ip", "link", "set", "wire2", "down"], check=True)
            cut = True
        if cut and [rail["state"] for rail in rails] == ["in_use", "set_aside"]:
            return links[0]
        assert pid.poll() is None, (told, pid.communicate())
        time.sleep(0.1)
    raise AssertionError(told)


def run(status, *argv, **env):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **env})
    assert done.returncode == status, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


# Pages that go straight between VRAM and a memserver: who requires that is refused where it can't be, and has it where it can.
# Software RDMA has no dma-bufs; a library in front registers the simulated GPU's memfds in their place.
def straight(args, address, required, trust, program):
    said = ["--log", "info", "--driver", "sim", "--vram", str(8 * MIB), "--host", str(HOST), "--stats", "--memserver", address]
    wanted = [*required, "--require", "gpudirect", *said, *program]
    by_memfds = {"OL_SIM_DMA_BUF": "1", "LD_PRELOAD": args.dma_bufs}

    def refused(why, argv=wanted, **env):
        told = run(1, *argv, **env)
        lines = [line for line in told.splitlines() if "require = gpudirect: pages can't go straight" in line]
        assert len(lines) == 1 and why in lines[0] and lines[0].endswith("; leave it out, and they go by host memory"), told

    refused("device 0: the driver gives no dma-bufs")
    refused(": its driver, or the kernel's, registers no dma-bufs (Operation not supported)", OL_SIM_DMA_BUF="1")
    refused("an RDMA card can't have 2097152 bytes of it", OL_TEST_DMA_BUFS_REFUSED="0", **by_memfds)
    by_tcp = [args.olrun, "--transport", "tcp", "--require", "gpudirect", *trust, *said, *program]
    with_tcp = Daemon([args.olmemserver, "--listen", "127.0.0.1:0", "--memory", str(8 * MIB), "--slab", str(4 * MIB), "--reserve", "64MiB",
                       *trust], r"listening on (\S+:\d+)")
    refused("is connected by tcp, not by RDMA", [word.replace(address, with_tcp.address) for word in by_tcp], **by_memfds)
    with_tcp.end()

    moved = re.compile(r"over RDMA +(\S+) in, (\S+) out by host memory; (\S+) in, (\S+) out by VRAM alone")
    told = run(0, *wanted, **by_memfds)
    assert "OK" in told and told.count("pages go straight between VRAM and memservers") == 1, told
    assert all(amount != "0B" for amount in moved.search(told).groups()[2:]), told
    print(moved.search(told).group())
    # A card that can't have more after some chunks: that is told once and counted, and the program goes on.
    told = run(0, *wanted, OL_TEST_DMA_BUFS_REFUSED="2", **by_memfds)
    assert "OK" in told and told.count("a part of the GPU's memory is not for RDMA cards") == 1, told
    assert re.search(r"not for cards +[1-9]\S* of VRAM", told), told


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
        rails = re.search(r"rails +(\S+): rxe0 port 1 in use (\S+), rxe2 port 1 in use (\S+)", said)
        assert rails and rails.group(1) == memserver.address and "0B" not in rails.groups(), said
        assert said.count("pages go between VRAM and memservers by host memory: card rxe") == 1, said
        assert re.search(r"over RDMA +[1-9]\S* in, [1-9]\S* out by host memory; 0B in, 0B out by VRAM alone", said), said
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
        before = time.monotonic()
        straight(args, memserver.address, required, trust, program)
        print(f"straight: {time.monotonic() - before:.1f} s")
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
                            "--memory", str(256 * MIB), "--cache", "none", "--transport", "verbs", "--worker-log", "info", *trust],
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

        # A rail that is lost while a program runs is shown, and the program goes on.
        start = time.monotonic()
        memserver = Daemon([args.olmemserver, "--listen", f"{host}:0", "--memory", str(64 * MIB), "--slab", str(4 * MIB),
                            "--reserve", "64MiB", "--transport", "verbs", *there, *trust], r"listening on (\S+:\d+)")
        waits = subprocess.Popen([*required, *here, "--driver", "sim", "--vram", str(8 * MIB), "--host", str(HOST), "--stats",
                                  "--memserver", memserver.address, *program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        link = cut_second_rail(args.olpagestat, waits)
        assert link["peer"] == memserver.address, link
        said = waits.communicate(timeout=PATIENCE)[0]
        assert waits.returncode == 0 and "OK" in said and re.search(r"rxe2 port 1 set aside", said), said
        memserver.end()
        print(f"a rail set aside: {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--olrun", "--olmemserver", "--olgpunode", "--olctl", "--olpagestat", "--dma-bufs"):
        parser.add_argument(option, required=True)
    parser.add_argument("program")
    sys.exit(main(parser.parse_args()))
