#!/usr/bin/env python3
"""A program through the pager with less VRAM and host RAM than it needs, and files on disks for the rest. The program compares
its result with the CPU's.

disk.py --olrun OLRUN --olmemserver OLMEMSERVER --olgpunode OLGPUNODE --program PROGRAM [--env NAME=VALUE]... CASE

  plain      one folder, not encrypted: the right result, pages were there, and nothing is left behind
  encrypted  likewise, encrypted (the default), and nothing of the program's is read in the file while it runs
  two        two folders: both have their part
  sandboxed  io_uring is refused to the program: the right result by threads, and a line that says so
  unnamed    a file system without nameless files: the right result, and nothing is left behind
  forked     PROGRAM forks: it goes on, and its children have none of its descriptors
  both       a memserver that is too small, and a disk: the right result, and both had a part in it
  gpunode    a gpunode whose environment names a disk, and whose workers lose io_uring: the right result, and pages were there
  small      a disk that is too small for the program: an allocation is refused with a line, and no wrong result
  scarce     a file system with less room than was named, and with enough: a line, and the right result
  full       a file system that gets full: launches are refused with a line, or the right result comes, and never a wrong one
  long       files may not be so long (ulimit -f): one line, and no program
  checked    olrun --check: a folder with room, one with less, and one that is not there
  absent     no such folder, and one that is none: one line, and no program
"""
import argparse
import ctypes
import errno
import glob
import mmap
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile

MIB = 1 << 20
WORKING_SET = 128 * MIB
PATIENCE = 120  # seconds: what takes longer hangs
SKIPPED = 77
OPENAT, IO_URING_SETUP = 257, 425


LOAD, EQUAL, ANY_BIT, ANSWER = 0x20, 0x15, 0x45, 0x06  # of classic BPF: BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K
ALLOWED, REFUSED = 0x7fff0000, 0x00050000  # of seccomp; the latter with an errno


def filtered(*steps):
    """For a process between fork and exec: system calls pass a filter from now on. A step: code, and if so and if not so many
    steps are left out, and a value."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0 or libc.prctl(set_seccomp, filter_mode, ctypes.byref(program), 0, 0) != 0:
        os._exit(SKIPPED)


def refuse_io_uring():
    filtered((LOAD, 0, 0, 0), (EQUAL, 0, 1, IO_URING_SETUP), (ANSWER, 0, 0, REFUSED | errno.EPERM), (ANSWER, 0, 0, ALLOWED))


def refuse_nameless():
    """As a file system does that has no files without a name."""
    flags = 16 + 2 * 8  # of openat, in what the filter is given
    filtered((LOAD, 0, 0, 0), (EQUAL, 0, 3, OPENAT), (LOAD, 0, 0, flags), (ANY_BIT, 0, 1, os.O_TMPFILE & ~os.O_DIRECTORY),
             (ANSWER, 0, 0, REFUSED | errno.EOPNOTSUPP), (ANSWER, 0, 0, ALLOWED))


def short_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 * MIB, 16 * MIB))


class Run:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OL_")}
        self.env.update({"OL_SIM_VRAM": "1GiB", "XDG_CONFIG_HOME": scratch, "XDG_RUNTIME_DIR": scratch})
        self.env.update(pair.split("=", 1) for pair in options.env)
        self.folders = [os.path.join(scratch, name) for name in ("a", "b")]
        for folder in self.folders:
            os.mkdir(folder)

    def program(self, *options, before=None, prefix=(), watch=None, sizes=True, stats=True):
        """Status, output and errors; None: it hung. `before` runs in it, `watch` beside it."""
        argv = [*prefix, self.options.olrun, *(["--driver", "sim", "--stats"] if stats else []), *(["--vram", "16MiB", "--host", "32MiB"] if sizes else []),
                *options, "--", self.options.program, *(["--bytes", str(WORKING_SET)] if sizes or not stats else [])]
        process = subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before)
        if watch:
            watch(process)
        try:
            output, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            print("".join(process.communicate()) + "HUNG")
            return None
        print(output + errors + f"exit {process.returncode}")
        return process.returncode, output, errors


def counted(errors, row):
    """Bytes of a row of --stats."""
    found = re.search(rf"^ *{row} +([0-9.]+)(B|KiB|MiB|GiB)$", errors, re.MULTILINE)
    return float(found[1]) * {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB}[found[2]] if found else 0


def is_right(end, row="to disks"):
    return end is not None and end[0] == 0 and end[1].startswith("OK") and counted(end[2], row) > 16 * MIB


def was_told(end, line):
    """A CUDA error (out of memory), never other bytes, and a line."""
    return end is not None and end[0] != 0 and re.search(r"FAILED .*: 2\b", end[1]) is not None and line in end[2]


def left_behind(run):
    return [name for folder in run.folders for name in os.listdir(folder)]


class FileLook:
    """Looks into the nameless file that a process has in a folder, as often as there is time, past the page cache: how many pages
    were in use, and how many of these can be made sense of."""

    def __init__(self, folder):
        self.folder, self.pages, self.readable = folder, 0, 0
        self.block, self.name = mmap.mmap(-1, 4096), ""

    def look(self, process):
        # The child of olrun, which waits for it to show its figures, or of a gpunode.
        try:
            with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
                children = file.read().split()
        except OSError:
            children = []
        for link in [link for child in children for link in glob.glob(f"/proc/{child}/fd/*")]:
            try:
                name = os.readlink(link)
                if not name.startswith(self.folder + "/"):
                    continue
                self.name = name
                file = os.open(link, os.O_RDONLY | os.O_DIRECT)
            except OSError:
                continue  # closed meanwhile
            for page in range(16):
                if os.preadv(file, [self.block], page * 2 * MIB) == 4096 and self.block[:].strip(b"\0"):
                    self.pages += 1
                    self.readable += is_readable(self.block[:])
            os.close(file)


def watching(looks):
    def watch(process):
        while process.poll() is None:
            for look in looks:
                look.look(process)
    return watch


def is_readable(block):
    """Numbers of a simple kind: small floats have few different upper bytes. Encrypted bytes have nearly all of 256."""
    return len(set(block[3::4])) < 100


def plain(run, encrypted=False):
    look = FileLook(run.folders[0])
    end = run.program("--disk", f"{run.folders[0]}:512MiB", "--disk-encrypt", "on" if encrypted else "off", watch=watching([look]))
    print(f"looked at {look.pages} pages in use, {look.readable} of them readable")
    if not is_right(end) or left_behind(run) or look.pages == 0:
        return False
    return look.readable == 0 if encrypted else look.readable > 0


def encrypted(run):
    return plain(run, True)


def two(run):
    looks = [FileLook(folder) for folder in run.folders]
    end = run.program("--disk", f"{run.folders[0]}:256MiB", "--disk", f"{run.folders[1]}:256MiB", watch=watching(looks))
    return is_right(end) and all(look.pages for look in looks) and "of 512MiB," in end[2] and not left_behind(run)


def sandboxed(run):
    end = run.program("--disk", f"{run.folders[0]}:512MiB", "--log", "debug", before=refuse_io_uring)
    if end is not None and end[0] == SKIPPED:
        raise SystemExit(SKIPPED)
    return is_right(end) and "disk: no io_uring (io_uring_setup: Operation not permitted)" in end[2]


def unnamed(run):
    look = FileLook(run.folders[0])
    end = run.program("--disk", f"{run.folders[0]}:512MiB", before=refuse_nameless, watch=watching([look]))
    if end is not None and end[0] == SKIPPED:
        raise SystemExit(SKIPPED)
    return is_right(end) and look.pages > 0 and "/.olpager-" in look.name and not left_behind(run)


def forked(run):
    end = run.program("--vram", "4MiB", "--host", "8MiB", "--disk", f"{run.folders[0]}:64MiB", sizes=False)
    return end is not None and end[0] == 0 and "OK fork_child" in end[1] and counted(end[2], "to disks") > 8 * MIB


def both(run):
    daemon = subprocess.Popen([run.options.olmemserver, "--listen", "127.0.0.1:0", "--memory", "64MiB", "--reserve", "64MiB", "--cgroup", "none"],
                              env=run.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = next((found[1] for line in daemon.stdout if (found := re.search(r"listening on ([0-9.]+:[0-9]+)", line))), None)
        if address is None:
            print("olmemserver did not start")
            return False
        end = run.program("--disk", f"{run.folders[0]}:512MiB", "--memserver", address)
        if not is_right(end, "down from RAM"):
            return False
        written = re.search(r"^  disks .*, ([0-9.]+)MiB written", end[2], re.MULTILINE)
        return written is not None and 0 < float(written[1]) * MIB < counted(end[2], "down from RAM") and "1 by shm" in end[2]
    finally:
        daemon.terminate()
        daemon.communicate()


def gpunode(run):
    run.env.update({"OL_DISK": f"{run.folders[0]}:256MiB"})
    daemon = subprocess.Popen([run.options.olgpunode, "--driver", "sim", "--listen", "127.0.0.1:0", "--vram", "32MiB", "--memory", "32MiB",
                               "--worker-log", "info"], env=run.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    del run.env["OL_DISK"]
    said = []
    try:
        for line in daemon.stdout:
            said.append(line)
            if found := re.search(r"listening at ([0-9.]+:[0-9]+)", line):
                address = found[1]
                break
        else:
            print("".join(said) + "olgpunode did not start")
            return False
        look = FileLook(run.folders[0])

        def watch(process):
            while process.poll() is None:
                look.look(daemon)

        end = run.program("--gpunode", address, watch=watch, sizes=False, stats=False)
    finally:
        daemon.terminate()
        said += daemon.communicate()[0]
    print("".join(said) + f"looked at {look.pages} pages in use, {look.readable} of them readable")
    return (end is not None and end[0] == 0 and end[1].startswith("OK") and look.pages > 0 and look.readable == 0
            and not left_behind(run))


def small(run):
    return was_told(run.program("--disk", f"{run.folders[0]}:16MiB"), "16MiB at disks")


def on_small_file_system(run, size):
    """With a file system of so many bytes in the first folder, in a mount name space of the program's own."""
    mount = f"mount -t tmpfs -o size={size} tmpfs {run.folders[0]} || exit {SKIPPED}; exec \"$@\""
    end = run.program("--disk", f"{run.folders[0]}:512MiB", prefix=["unshare", "-rm", "sh", "-c", mount, "sh"])
    if end is not None and (end[0] == SKIPPED or "unshare" in end[2]):
        raise SystemExit(SKIPPED)
    return end


def scarce(run):
    end = on_small_file_system(run, 160 * MIB)
    return is_right(end) and f"disk: {run.folders[0]} has 160MiB free, less than the 512MiB" in end[2]


def full(run):
    end = on_small_file_system(run, 32 * MIB)
    return was_told(end, f"disk: {run.folders[0]} has no room left: No space left on device")


def long(run):
    end = run.program("--disk", f"{run.folders[0]}:512MiB", before=short_files)
    return end is not None and end[0] != 0 and "ulimit -f" in end[2] and "OK" not in end[1]


def type_of(folder):
    """Of its file system."""
    return subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True).stdout.strip()


def checked(run):
    def found(disk):
        done = subprocess.run([run.options.olrun, "--driver", "sim", "--check", "--disk", disk], env=run.env, capture_output=True, text=True,
                              timeout=PATIENCE)
        print(done.stdout + done.stderr)
        return done.returncode, done.stdout

    # Where temporary files are in RAM, so are these folders.
    in_ram = re.compile(r"^GAP +disk +\S+: its file system is in RAM \(tmpfs\)", re.MULTILINE)
    shared = found("/dev/shm:64MiB") if type_of("/dev/shm") == "tmpfs" else None
    if shared is not None and (shared[0] != 1 or not in_ram.search(shared[1])):
        return False
    if type_of(run.scratch) == "tmpfs":
        return in_ram.search(found(f"{run.folders[0]}:64MiB")[1]) is not None
    good, much, none = (found(disk) for disk in (f"{run.folders[0]}:64MiB", f"{run.folders[0]}:1000000TiB", f"{run.scratch}/none:64MiB"))
    return (re.search(r"^ok +disk +\S+/a: room for 64MiB, and \S+ are free$", good[1], re.MULTILINE) is not None
            and re.search(r"^note +disk +\S+/a: \S+ are free, less than the ", much[1], re.MULTILINE) is not None
            and none[0] == 1 and re.search(r"^GAP +disk +\S+/none: it can't be written to: No such file", none[1], re.MULTILINE) is not None
            and not left_behind(run))


def absent(run):
    file = os.path.join(run.scratch, "file")
    with open(file, "w"):
        pass
    for path in (run.scratch + "/none", file):
        end = run.program("--disk", f"{path}:512MiB")
        if end is None or end[0] != 2 or end[1] or f"the folder {path} of --disk can't be written to" not in end[2]:
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("--olrun", "--olmemserver", "--olgpunode", "--program"):
        parser.add_argument(name, required=True)
    parser.add_argument("--env", action="append", default=[])
    cases = (plain, encrypted, two, sandboxed, unnamed, forked, both, gpunode, small, scarce, full, long, checked, absent)
    parser.add_argument("case", choices=[case.__name__ for case in cases])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-disk-") as scratch:
        if not {case.__name__: case for case in cases}[options.case](Run(options, scratch)):
            print(f"FAILED: {options.case}")
            sys.exit(1)


main()
