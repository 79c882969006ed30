"""olpager runs unmodified CUDA programs whose memory does not fit the GPU, or that have no GPU at all.

A program runs under it from its start: "olrun --vram 8GiB -- python3 generate.py" in a shell, or here for what this process starts:

    import subprocess, sys, olpager
    with olpager.configured(vram="8GiB"):
        subprocess.run([sys.executable, "generate.py"], check=True)

This process itself stays as it is.
"""
import contextlib
import os
import subprocess
import sys

from olpager._version import version as __version__

__all__ = ["Refused", "configured", "environment", "program"]

# The process that olrun starts is one that tells its environment.
_TELL = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(k + b'=' + v for k, v in os.environb.items()))"


class Refused(RuntimeError):
    """olrun's line: what can't be, and what to do."""


def program(name):
    """The path of a program of olpager's: olrun, olctl, olpagestat, olgpunode, olmemserver."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)


def _arguments(options):
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            yield f"--{name.replace('_', '-')}={one}"


def environment(**options):
    """The environment of programs under olpager. Options are olrun's: vram="8GiB", memserver=["box:7070"], key="KEYFILE".

    olrun checks them, and the machine, first. Raises Refused with its line. Flags (--check, --stats) are of a single run, and
    gpunode="local" is started for a single program: give these to olrun.
    """
    gpunodes = options.get("gpunode", "")
    gpunodes = gpunodes.split(",") if isinstance(gpunodes, str) else gpunodes
    if "local" in [str(one).strip() for one in gpunodes]:
        raise Refused("gpunode local ends with the program that it was started for: olrun --gpunode local -- PROGRAM")
    command = [program("olrun"), *_arguments(options), "--", sys.executable, "-I", "-S", "-c", _TELL]
    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    if told.returncode != 0:
        raise Refused(told.stderr.decode(errors="replace").strip() or f"olrun ended with {told.returncode}")
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in (entry.partition(b"=") for entry in told.stdout.split(b"\0"))}


@contextlib.contextmanager
def configured(**options):
    """While this lasts, what this process starts runs under olpager: os.environ is environment(**options), and is put back behind it.

    os.environ is the whole process's: one thread at a time.
    """
    before = dict(os.environ)
    inside = environment(**options)

    def become(wanted):
        for name in set(os.environ) - set(wanted):
            del os.environ[name]
        os.environ.update(wanted)

    become(inside)
    try:
        yield
    finally:
        become(before)
