#!/usr/bin/env python3
"""What the programs say to people: --help, --version, and one line with what to do for each thing that is wrong.

messages.py --olrun OLRUN --olpagestat ... --olbench ... --olctl ... --olmemserver ... --olgpunode ... --cuda-program PROGRAM [CASE...]
"""
import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

LONG = 60
PROGRAMS = ("olrun", "olpagestat", "olbench", "olctl", "olmemserver", "olgpunode")
# What people know; a choice is spelt out (on|off).
TYPES = {"SIZE", "SECONDS", "NUMBER", "NUMBER,...", "FILE", "FILE|sim", "FOLDER", "HOST:PORT", "HOST:PORT,...", "FOLDER:SIZE,...", "NAME", "NAME=SIZE", "PERCENT", "ADDRESS", "ADDRESS,...",
         "on|off", "LEVEL", "HOW", "WHAT", "NODE", "REACH", "REPORT", "VIEW", "OWNER", "WHERE"}


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OL_") and k != "CREDENTIALS_DIRECTORY"}
        self.env.update(XDG_CONFIG_HOME=folder, XDG_RUNTIME_DIR=folder, XDG_CACHE_HOME=folder, OL_SIM_VRAM="256MiB")

    def run(self, program, *arguments, env=None):
        return subprocess.run([getattr(self.options, program), *arguments], env={**self.env, **(env or {})}, capture_output=True, text=True,
                              timeout=LONG, stdin=subprocess.DEVNULL)

    def refused(self, words, program, *arguments, status=2, env=None):
        """One line of the program's with these words."""
        done = self.run(program, *arguments, env=env)
        lines = done.stderr.splitlines()
        assert done.returncode == status and done.stdout == "", done
        assert len(lines) == 1 and re.match(rf"{program}( \w+)?: ", lines[0]), done.stderr
        for word in words:
            assert word in lines[0], (word, lines[0])
        print(lines[0])
        return lines[0]

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path

    def daemon(self, program):
        """A daemon's options that keep it small and to itself."""
        own = ["--config", self.file("empty.toml", "")]
        return own + (["--memory", "16MiB", "--reserve", "16MiB", "--cgroup", "none"] if program == "olmemserver" else ["--driver", "sim"])


def helps(bench):
    """In groups, with types that people know and three to five examples; the version too."""
    for program in PROGRAMS:
        told = bench.run(program, "--version")
        assert told.returncode == 0 and re.fullmatch(rf"{program} \d+\.\d+\.\d+(\+\d+\.g[0-9a-f]+(\.changed)?)?\n", told.stdout), told
        told = bench.run(program, "--help")
        assert told.returncode == 0 and told.stderr == "", told
        text = told.stdout
        assert all(len(line) <= 100 for line in text.splitlines()), [line for line in text.splitlines() if len(line) > 100]
        assert f"\nUsage: {program} " in text, text
        head, examples = text.split("\nExamples:\n")
        commands = re.findall(rf"^  {program}\b.*$", examples, re.M)
        assert 3 <= len(commands) <= 5, commands
        groups = re.findall(r"^(\w[^:\n]*):$", head, re.M)
        assert len(groups) >= 2 and groups[-1] == "This program" and "Options" not in groups, groups
        options = re.findall(r"^  (?:-\w,)?--[a-z-]+(?: (\S+))?(?:  .*)?$", head, re.M)
        known = {kind for kind in options if kind}
        assert len(options) >= 2 and known <= TYPES, known - TYPES
        # An example is one that the program understands: without its program, file or daemon it says so, and no option is unknown.
        for command in commands:
            names = re.findall(r" (--[a-z-]+)", command.split(" -- ")[0])
            told = text + (bench.run(program, command.split()[1], "--help").stdout if program == "olctl" else "")
            told += bench.run(program, "transport", "--help").stdout if program == "olbench" else ""
            assert all(re.search(rf"^  (-\w,)?{name}\b", told, re.M) for name in names), (command, names)
    told = bench.run("olctl", "keygen", "--help").stdout
    assert "--out FILE" in told and "--name NAME" in told and "Usage: olctl keygen" in told, told


def unknown_options(bench):
    for program, wrong, meant in (("olrun", "--vrma", "--vram"), ("olrun", "--memservers", "--memserver"), ("olrun", "--gpu-node", "--gpunode"),
                                  ("olpagestat", "--wach", "--watch"), ("olpagestat", "--noed=x:1", "--node"),
                                  ("olmemserver", "--leasetime", "--lease-time"), ("olmemserver", "--promethus", "--prometheus"),
                                  ("olgpunode", "--sesions", "--sessions"), ("olgpunode", "--lisen", "--listen"),
                                  ("olbench", "--round", "--rounds"), ("olctl", "--hlep", "--help")):
        bench.refused([f"unknown option {wrong.split('=')[0]}; did you mean {meant}?", f"{program} --help"], program, wrong, "1")
    bench.refused(["unknown option --nmae; did you mean --name?", "olctl keygen --help"], "olctl", "keygen", "--nmae", "a", "--out", "x")
    bench.refused(["unknown option --lane; did you mean --lanes?"], "olbench", "transport", "--lane", "1")
    assert "--route" not in bench.refused(["unknown option --rout"], "olrun", "--rout", "rr", "--", "true")  # works, and is for tests
    bench.refused(["unknown option --quite-another (olrun"], "olrun", "--quite-another", "--", "true")  # none is near
    bench.refused(["there is no command genkey; there are: keygen"], "olctl", "genkey")
    bench.refused(["there is no command genkey; there are: keygen"], "olctl", "genkey", "--name", "a", "--out", "x")
    bench.refused(["there is no command lanch; there are: launch, "], "olbench", "lanch")
    for program in ("olbench", "olctl"):
        bench.refused(["no command is given"], program)
    bench.refused(["'extra' belongs to no option"], "olmemserver", "extra")


def values(bench):
    bench.refused(["--watch: 'abc' is not allowed; allowed: a number from 0.1 to 86400"], "olpagestat", "--watch", "abc")
    bench.refused(["--watch: '0'"], "olpagestat", "--watch", "0")
    bench.refused(["--pid: 'me' is not allowed; allowed: a whole number"], "olpagestat", "--pid", "me")
    bench.refused(["--rounds: '-1' is not allowed"], "olbench", "launch", "--rounds=-1")
    bench.refused(["--bytes: '8 gigs' is not a size"], "olbench", "swap", "--bytes", "8 gigs")
    bench.refused(["--vram: given 2 times (1GiB, 2GiB); give it once"], "olrun", "--vram", "1GiB", "--vram", "2GiB", "--", "true")
    bench.refused(["olctl keygen: --name: given 2 times (a, b); give it once"], "olctl", "keygen", "--name", "a", "--name", "b", "--out", "x")
    bench.refused(["--trace: given 3 times"], "olpagestat", "--trace", "a", "--trace", "b", "--trace=c")
    bench.refused(["--lanes: given 2 times (1, 2)"], "olbench", "transport", "--lanes", "1", "--lanes", "2")
    bench.refused(["--vram: its SIZE is missing; name it behind the option"], "olrun", "--vram")
    bench.refused(["--folder: its FOLDER is missing"], "olpagestat", "--folder", "a", "--folder")
    bench.refused(["--listen: its HOST:PORT,... is missing"], "olmemserver", "--listen")
    for program, option in (("olrun", "--vram"), ("olrun", "--host"), ("olmemserver", "--memory"), ("olmemserver", "--reserve"), ("olmemserver", "--quota"),
                            ("olgpunode", "--vram"), ("olgpunode", "--cache-size")):
        rest = ["--", "true"] if program == "olrun" else []
        bench.refused([f"{option}: '8' means bytes, less than one page (2MiB)", "in the same word, such as 8GiB"], program, option, "8", *rest)
    bench.refused(["such as 8GiB"], "olrun", "--vram", "8", "GB", "--", "true")
    bench.refused(["'GB' belongs to no option; a size is one word, such as 8GiB"], "olmemserver", "--memory", "8", "GB")
    bench.refused(["--replicas 2", "no memserver", "--memserver HOST:PORT"], "olrun", "--driver", "sim", "--replicas", "2", "--", "true")
    bench.refused(["--replicas 2"], "olrun", "--driver", "sim", "--replicas", "2", "--memserver", "none", "--", "true")


def addresses(bench):
    """No port, no number, no host: said with how it would be right, before anybody is asked."""
    bench.refused(["--gpunode: 'gpubox' names no port, such as gpubox:7071"], "olrun", "--gpunode", "gpubox", "--", "true")
    bench.refused(["--memserver: 'box' names no port, such as box:7070"], "olrun", "--memserver", "box", "--", "true")
    bench.refused(["--memserver: '[::1]' names no port, such as [::1]:7070"], "olrun", "--memserver", "[::1]", "--", "true")
    bench.refused(["'fe80::1' is ambiguous", "[fe80::1]:7071"], "olrun", "--gpunode", "fe80::1", "--", "true")
    bench.refused(["'7071' names no host, such as 127.0.0.1:7071"], "olrun", "--gpunode", "7071", "--", "true")
    bench.refused(["the port 'http'"], "olrun", "--gpunode", "gpubox:http", "--", "true")
    bench.refused(["--node: 'box' names no port, such as box:7070"], "olpagestat", "--node", "box")
    for program, port in (("olmemserver", 7070), ("olgpunode", 7071)):
        own = bench.daemon(program)
        bench.refused([f"--listen: 'box' names no port, such as box:{port}"], program, *own, "--listen", "box")
        bench.refused(["--listen: ':7000' names no host, such as 127.0.0.1:7000; for every network: [::]:7000"], program, *own, "--listen", ":7000")
        bench.refused(["--prometheus: 'figures' names no port"], program, *own, "--prometheus", "figures")
    for address, meant in (("http://box:7071", "box:7071"), ("https://box:7071/path", "box:7071")):
        bench.refused([f"--gpunode: '{address}' is a URL; say {meant} alone"], "olrun", "--gpunode", address, "--", "true")
    bench.refused(["is a URL; say box:7070 alone"], "olrun", "--memserver", "tcp://box", "--", "true")
    bench.refused(["is a URL; say box:7070 alone"], "olpagestat", "--node", "http://box:7070")
    bench.refused(["'local:7071': local has no port", "127.0.0.1:7071"], "olrun", "--gpunode", "local:7071", "--", "true")
    bench.refused([":1: memserver: 'box' names no port"], "olrun", "--config", bench.file("address.toml", "memserver = 'box'\n"), "--", "true")


def listening(bench):
    """What is in the way of listening is told with how to see whose it is; for figures too, and before memory is made."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for program in ("olmemserver", "olgpunode"):
            own = bench.daemon(program)
            by_whom = [f"127.0.0.1:{port}: Address already in use", f"ss -ltnp 'sport = :{port}'"]
            listen = ["--log", "warn", *own, "--listen", f"127.0.0.1:{port}"]
            bench.refused(by_whom, program, *listen)
            figures = ["--log", "warn", *own, "--listen", "127.0.0.1:0", "--prometheus"]
            bench.refused(["--prometheus: ", *by_whom], program, *figures, f"127.0.0.1:{port}")
            bench.refused(["--prometheus: ", "not without a token", "--prometheus-token"], program, *figures, "192.0.2.1:9109")
            bench.refused(["--prometheus: ", "no-such-host.invalid:9109"], program, *figures, "no-such-host.invalid:9109")
            bench.refused(["--prometheus: ", "names the port 'x'"], program, *figures, "127.0.0.1:x")
            bench.refused(["no interface of this machine has it"], program, "--log", "warn", *own, "--key", key(bench), "--listen", "192.0.2.1:7000")
        # At the level that tells of memory: there is no word of any.
        for wrong in (f"127.0.0.1:{port}", "192.0.2.1:9109"):
            done = bench.run("olmemserver", *bench.daemon("olmemserver"), "--listen", "127.0.0.1:0", "--prometheus", wrong)
            assert done.returncode == 2 and "slabs of" not in done.stderr and "listening on" not in done.stdout, done
        if shutil.which("ss"):
            seen = subprocess.run(["ss", "-ltnp", f"sport = :{port}"], capture_output=True, text=True, timeout=LONG)
            assert seen.returncode == 0 and f"127.0.0.1:{port}" in seen.stdout, seen


def unix_sockets(bench):
    """A path that nothing listens at, and one where nothing can listen."""
    missing = os.path.join(bench.folder, "missing", "x.sock")
    bench.refused([f"gpunode unix:{missing}: No such file or directory", "start the daemon"], "olrun", "--gpunode", "unix:" + missing, "--", "true")
    bench.refused([f"memserver unix:{missing}: No such file or directory", "start the daemon"], "olrun", "--driver", "sim", "--memserver", "unix:" + missing,
                  "--", "true")
    taken = bench.file("taken", "")
    for program in ("olmemserver", "olgpunode"):
        listen = ["--log", "warn", *bench.daemon(program), "--listen"]
        bench.refused([f"unix:{missing}: its folder is not there; make it"], program, *listen, "unix:" + missing)
        bench.refused([f"unix:{taken}: something that is no socket is there"], program, *listen, "unix:" + taken)


def silent(bench):
    """A port that takes a connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening_one:
        address = f"127.0.0.1:{listening_one.getsockname()[1]}"
        said = [f"{address}: no answer in time, though something listens there", "name the address that the daemon printed"]
        bench.refused(said, "olrun", "--gpunode", address, "--", "true")
        bench.refused(said, "olrun", "--driver", "sim", "--memserver", address, "--", "true")
        bench.refused(said, "olpagestat", "--once", "--node", address, status=1)


def rdma_on_loopback(bench):
    """No card is there: said before the program runs, which would only find no device."""
    for program, option, more in (("olmemserver", "--memserver", ["--driver", "sim"]), ("olgpunode", "--gpunode", [])):
        daemon = subprocess.Popen([getattr(bench.options, program), *bench.daemon(program), "--listen", "127.0.0.1:0"], env=bench.env,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            address = next(found[1] for found in (re.search(r"listening (?:at|on) (127\S+)", line) for line in daemon.stdout) if found)
            bench.refused([f"{address}: no RDMA card is on loopback", "transport = auto"], "olrun", *more, option, address, "--transport", "verbs", "--", "true")
        finally:
            daemon.terminate()
            daemon.communicate(timeout=LONG)


def drivers(bench):
    """A driver that is named and not there, or no driver, is refused; the loader's may be installed later."""
    for path, why in (("/no/such/libcuda.so.1", "No such file"), (bench.file("no-library", "text"), "")):
        for program, rest in (("olrun", ["--", "true"]), ("olgpunode", ["--log", "warn", "--config", bench.file("empty.toml", ""), "--listen", "127.0.0.1:0"])):
            bench.refused([f"driver: {path}: ", why, "--driver takes the path of a libcuda.so.1, or sim"], program, "--driver", path, *rest)


def scripts(bench):
    """What the kernel starts for a script is not there, or is not what the script's line seems to say."""
    for text, *words in (("#!/no/such/interpreter -x\n", "its interpreter /no/such/interpreter: No such file"),
                         ("#!/bin/sh\r\necho\r\n", "its first line ends as Windows ends lines", r"tr -d '\r'"),
                         ("#! /usr/bin/env python3\r\n", "its first line ends as Windows ends lines")):
        path = bench.file("script", text)
        os.chmod(path, 0o700)
        bench.refused([path, *words], "olrun", "--driver", "sim", "--", path, status=126)
    for text in ("#!/bin/sh\necho ran\n", "#! /usr/bin/env sh\necho ran\n", "#!\necho ran\n", "echo ran\n"):
        path = bench.file("script", text)
        os.chmod(path, 0o700)
        done = bench.run("olrun", "--driver", "sim", "--", path)
        assert done.returncode == 0 and done.stdout == "ran\n" and done.stderr == "", done


def folders(bench):
    """A folder that is named and not there is a slip, not a machine without programs."""
    missing, no_folder = os.path.join(bench.folder, "missing"), bench.file("no-folder", "")
    for more in ([], ["--json"], ["--forget"], ["--pid", "1"]):
        bench.refused([f"--folder: {missing}: No such file or directory"], "olpagestat", "--folder", missing, *more)
        bench.refused([f"--folder: {no_folder}: it is no folder"], "olpagestat", "--folder", no_folder, *more)
    bench.refused([f"--folder: {no_folder}: it is no folder"], "olpagestat", "--folder", no_folder, "--watch", "1")
    # Who watches may have begun before the program that makes the folder.
    done = bench.run("olpagestat", "--folder", missing, "--watch", "0.1", "--duration", "0.2")
    assert done.returncode == 0 and done.stderr == "", done


def key(bench):
    path = os.path.join(bench.folder, "some.key")
    if not os.path.exists(path):
        assert bench.run("olctl", "keygen", "--name", "some", "--out", path).returncode == 0
    return path


def keys(bench):
    """A key that is not there is told with where one is looked for; systemd's folder is one of these places."""
    places = ["No such file or directory", "--key", ".toml", "$CREDENTIALS_DIRECTORY", "olctl keygen"]
    bench.refused(["/none.key", *places], "olrun", "--driver", "sim", "--memserver", "127.0.0.1:1", "--key", "/none.key", "--", "true")
    bench.refused(["/none.key", *places], "olmemserver", *bench.daemon("olmemserver"), "--listen", "127.0.0.1:0", "--key", "/none.key")
    bench.refused(["/none.key", *places], "olgpunode", *bench.daemon("olgpunode"), "--listen", "127.0.0.1:0", "--key", "/none.key")
    for program in ("olmemserver", "olgpunode"):
        bench.refused(["not without a key", *places[1:]], program, *bench.daemon(program), "--listen", "0.0.0.0:0")
    bench.refused(["beyond loopback a key is needed", *places[1:]], "olrun", "--gpunode", "192.0.2.1:7071", "--", "true")
    # As the ways that files are carried leave it; and nothing of what is in it is told.
    with open(key(bench)) as file:
        good = file.read().strip()
    for text, words in ((good + "\r\n", ["as Windows ends lines (CR LF)", r"tr -d '\r' mends it"]), ("\ufeff" + good + "\n", ["a byte-order mark"]),
                        ("-----BEGIN PRIVATE KEY-----\nMII\n", ["PEM"]), ("ssh-ed25519 AAAA\n", ["SSH"]), (good[:-1] + "\n", []), (good.split(":")[1], [])):
        path = bench.file("carried.key", text)
        os.chmod(path, 0o600)
        said = bench.refused([f"key file {path}:1: ", "NAME:64 hexadecimal digits, as olctl keygen writes it", *words], "olrun", "--driver", "sim",
                             "--memserver", "127.0.0.1:1", "--key", path, "--", "true")
        assert good[5:20] not in said, said
    # From the folder, as LoadCredential= puts it there. A broken one shows that it was read.
    folder = os.path.join(bench.folder, "credentials")
    for program, name, arguments in (("olmemserver", "olmemserver.key", [*bench.daemon("olmemserver"), "--listen", "0.0.0.0:0"]),
                                     ("olgpunode", "olgpunode.key", [*bench.daemon("olgpunode"), "--listen", "0.0.0.0:0"]),
                                     ("olrun", "olpager.key", ["--gpunode", "192.0.2.1:7071", "--", "true"])):
        path = bench.file(f"credentials/{name}", "no key\n")
        os.chmod(path, 0o400)
        bench.refused([f"key file {path}:1: not NAME:"], program, *arguments, env={"CREDENTIALS_DIRECTORY": folder})


def files(bench):
    """A key of a file that there is not: which there are, the nearest first."""
    for program, wrong, first in (("olrun", "vrom", "vram"), ("olmemserver", "lease_tine", "lease_time"), ("olgpunode", "key_sesions", "key_sessions")):
        path = bench.file("wrong.toml", f"\n{wrong} = '1'\n")
        arguments = ["--", "true"] if program == "olrun" else ["--listen", "127.0.0.1:0"]
        line = bench.refused([f"{path}:2: ", f"unknown key '{wrong}'; allowed, the nearest first: {first}, "], program, "--config", path, *arguments)
        assert line.count(", ") > 12, line
    for program, wrong, meant in (("olmemserver", "quota_of", "the only one is [quotas]"), ("olgpunode", "gpu", "take the line [gpu] out"),
                                  ("olrun", "olpager", "take the line [olpager] out")):
        path = bench.file("wrong.toml", f"[{wrong}]\na = 1\n")
        arguments = ["--", "true"] if program == "olrun" else []
        bench.refused([f"{path}:1: ", f"unknown table '{wrong}'", meant], program, "--config", path, *arguments)
    path = bench.file("wrong.toml", "[gpunode]\nvram = '1GiB'\n")
    bench.refused([f'{path}:1: [gpunode] makes a table, and gpunode is a setting; say gpunode = "..."'], "olrun", "--config", path, "--", "true")
    done = bench.run("olrun", "--driver", "sim", "--", bench.options.cuda_program, env={"OL_VRMA": "64MiB"})
    assert "OL_VRMA=64MiB: no such setting, ignored; did you mean OL_VRAM?" in done.stderr, done


def unused(bench):
    """A program that used no CUDA says so at its end where it logs that much; its helpers don't, nor does one that did."""
    said = "used no CUDA"

    def told(*command, level=("--log", "info"), env=None):
        done = bench.run("olrun", "--driver", "sim", *level, "--", *command, env=env)
        assert done.returncode == 0, done
        return [line for line in done.stderr.splitlines() if said in line]

    lines = told(sys.executable, "-c", "import subprocess; subprocess.run(['true'], check=True)")
    assert len(lines) == 1 and "python" in lines[0], lines
    assert told("true", level=("--log", "warn")) == [] and told("true", level=()) == []
    assert len(told("true", level=(), env={"OL_CONFIG": bench.file("info.toml", "log = 'info'\n")})) == 1
    assert told(bench.options.cuda_program) == []
    assert len(told("true", level=("--log", "info", "--stats"))) == 1


CASES = {case.__name__: case for case in (helps, unknown_options, values, addresses, listening, unix_sockets, silent, rdma_on_loopback, drivers, scripts,
                                          folders, keys, files, unused)}


def main():
    parser = argparse.ArgumentParser()
    for name in (*PROGRAMS, "cuda-program"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("case", choices=CASES, nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-messages-") as folder:
        for name in options.case or CASES:
            CASES[name](Bench(options, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
