#!/usr/bin/env python3
"""Runs a program under libolpager.so and says whether what came of it is right.

usage: preload.py --library libolpager.so [--fake libfake_driver.so] CHECK [argument...]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

LIBC = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libdl.so.2", "libpthread.so.0"}
NEWEST_GLIBC = (2, 34)


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(1)


def environment(options, **more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OL_") and k != "LD_PRELOAD"}
    kept.update({"LD_PRELOAD": options.library, "OL_DRIVER": options.fake, "XDG_CONFIG_HOME": "/nonexistent"})  # nobody's own settings
    kept.update(more)
    return {k: v for k, v in kept.items() if v}


def run(command, env, **more):
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, **more)


def check_library(options):
    """Needs libc alone, nothing newer than glibc 2.34, and shows nothing of its insides."""
    dynamic = run(["readelf", "-dW", options.library], dict(os.environ)).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    if needed - LIBC:
        fail(f"needs {sorted(needed - LIBC)}")
    if "[libcuda.so.1]" not in dynamic:
        fail("its SONAME is not libcuda.so.1")
    symbols = run(["readelf", "--dyn-syms", "-W", options.library], dict(os.environ)).stdout
    for name, version in re.findall(r"(\S+)@+GLIBC_([0-9.]+)", symbols):
        # A system with a newer libc puts C23's variants in: what is built there needs it.
        if tuple(map(int, version.split(".")))[:2] > NEWEST_GLIBC and not name.startswith("__isoc23_"):
            fail(f"needs {name} of GLIBC_{version}")
    own = {"dlopen", "dlmopen", "olpager_interposer_marker", "olpager_set_placed", "olpager_allocate_at", "olpager_room", "olpager_figures", "olpager_links", "olpager_stop",
           "olpager_set_vram_budget", "olpager_set_host_limit", "olpager_set_log", "olpager_set_connect", "olpager_on_wait", "olpager_agent_start",
           "olpager_agent_prepare", "olpager_agent_region", "olpager_agent_receive", "olpager_agent_landed", "olpager_agent_finish", "olpager_agent_retained",
           "olpager_operation_new", "olpager_operation_delete", "olpager_operation_enter", "olpager_operation_uses", "olpager_operation_alone",
           "olpager_operation_suspended", "olpager_operation_again", "olpager_operation_over"}
    for line in symbols.splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] == "UND" or not fields[0].rstrip(":").isdigit():
            continue
        name = fields[7].split("@")[0]
        if name and name not in own and not re.match(r"cu[A-Z]|cudbg", name):
            fail(f"exports {name}")


def check_program(options):
    """A program without CUDA does what it does alone, and nothing is said."""
    command = options.arguments
    bare = {k: v for k, v in environment(options).items() if k != "LD_PRELOAD"}
    alone = run(command, bare)
    preloaded = run(command, environment(options, OL_LOG="debug"))
    for what in ("returncode", "stdout", "stderr"):
        if getattr(alone, what) != getattr(preloaded, what):
            fail(f"{command}: {what} is {getattr(preloaded, what)!r}, alone {getattr(alone, what)!r}")


def check_host(options):
    """The host program's own test, `late ok` from its destructors where it has any."""
    done = run(options.arguments, environment(options))
    print(done.stdout, done.stderr)
    if done.returncode != 0 or "ok" not in done.stdout:
        fail(f"exit {done.returncode}")
    if "destructors" in options.arguments and "late ok" not in done.stdout:
        fail("the destructor did not come to its end")


def check_refused(options):
    """Settings that can't be: cuInit's answer, one line that names the setting, and the program lives on."""
    host, expected, text, *settings = options.arguments
    more = dict(setting.split("=", 1) for setting in settings)
    done = run([host, "refused", expected], environment(options, **more))
    print(done.stdout, done.stderr)
    if done.returncode != 0:
        fail(f"exit {done.returncode}")
    lines = [line for line in done.stderr.splitlines() if line]
    if len(lines) != 1 or text not in lines[0]:
        fail(f"expected one line with {text!r}")


def check_search(options):
    """Without OL_DRIVER: the first libcuda.so.1 of LD_LIBRARY_PATH that is neither us, nor a copy of us, nor a stub."""
    with tempfile.TemporaryDirectory() as folder:
        for name, target in (("link", options.library), ("stubs", options.fake), ("driver", options.fake)):
            os.mkdir(os.path.join(folder, name))
            os.symlink(target, os.path.join(folder, name, "libcuda.so.1"))
        os.mkdir(os.path.join(folder, "copy"))
        shutil.copy(options.library, os.path.join(folder, "copy", "libcuda.so.1"))
        path = ":".join(os.path.join(folder, name) for name in ("link", "copy", "stubs", "absent", "driver"))
        driver = os.path.join(folder, "driver", "libcuda.so.1")
        done = run(options.arguments, environment(options, OL_DRIVER="", LD_LIBRARY_PATH=path, FAKE_DRIVER=options.fake,
                                                  OL_LOG="info"))
        print(done.stdout, done.stderr)
        if done.returncode != 0 or f"local mode: driver {driver} " not in done.stderr:
            fail(f"exit {done.returncode}")


# Functions of the driver that get an address of the range as it is, and why that is right.
PASSED_ADDRESSES = {
    "cuIpcCloseMemHandle": "closes what cuIpcOpenMemHandle gave: another process's memory, the driver's",
    "cuTensorMapEncodeIm2col": "writes the address into a descriptor, which launches name",
    "cuTensorMapEncodeIm2colWide": "as above",
    "cuTensorMapEncodeTiled": "as above",
    "cuTensorMapReplaceAddress": "as above",
}


def check_addresses(options):
    """Every function that is given an address makes it resident or answers for it; the library has each of these."""
    sys.dont_write_bytecode = True
    (folder,) = options.arguments
    sys.path.insert(0, folder)
    import specification  # pylint: disable=import-error,import-outside-toplevel

    spec = specification.read_files(sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".api")))
    defined = set(re.findall(r"\bol_local_(\w+)", run(["nm", options.library], dict(os.environ)).stdout))
    loose, missing, checked = [], [], 0
    for symbol in spec.symbols():
        form = symbol.form
        given = [p for p in form.parameters
                 if any(a.word in ("read", "write", "readwrite", "ranges") or
                        (a.word == "address" and not p.get("out")) for a in p.annotations)]
        if not given:
            continue
        checked += 1
        if symbol.local == "pass":
            # Addresses of 32 bits lie below the range.
            if symbol.name not in PASSED_ADDRESSES and "_v1" not in form.types():
                loose.append(symbol.name)
        elif symbol.name not in defined:
            missing.append(symbol.name)
    if loose or missing or checked < 150:
        fail(f"reach the driver as they are: {loose}; not in the library: {missing}; checked {checked}")


CHECKS = {"addresses": check_addresses, "search": check_search, "library": check_library, "program": check_program, "host": check_host, "refused": check_refused}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--fake", default="")
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.library = os.path.abspath(options.library)
    CHECKS[options.check](options)


if __name__ == "__main__":
    main()
