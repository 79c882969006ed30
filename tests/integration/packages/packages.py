#!/usr/bin/env python3
"""The packages of tools/package, installed in a clean Debian 12, and in a clean Debian 13, in namespaces of their own: deb.sh and wheel.sh
beside this file are what happens in there. Ubuntu 24.04 lies between the two (glibc 2.36, 2.39, 2.41); what the files need of a system is
looked at besides: symbols of glibc no newer than 2.34, and no packages but those that both have.

packages.py --sources FOLDER --program SAXPY --scripts FOLDER [--dist FOLDER] [--root FOLDER]

  --dist   packages that are there already   --root   a clean system that is there already (it is changed)
Exit status 77: there is no root here, no mmdebstrap, or no archive.
"""
import argparse
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
SUITES = ("bookworm", "trixie")
OLDEST_GLIBC = (2, 34)
# What packages here may depend on: it is in Debian 12 and 13 and in Ubuntu 24.04.
GRANTED = {"libc6", "libtbb12", "systemd", "systemd-standalone-sysusers", "systemd-sysusers", "olpager"}
# A clean system is what each Debian has, what the packages depend on, and what a venv takes.
INCLUDED = "libtbb12,passwd,systemd,python3-venv"


def skip(why):
    print(f"skipped: {why}")
    raise SystemExit(SKIPPED)


def sources(suite):
    """Of this machine; of another suite than its own Debian's archive alone."""
    paths = [path for path in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*.list"), *glob.glob("/etc/apt/sources.list.d/*.sources")]
             if os.path.exists(path)]
    if suite == "bookworm":
        return paths
    mirrors = [found for path in paths for found in re.findall(r"https?://\S+/debian\b(?=/?\s)", pathlib.Path(path).read_text())]
    return [f"deb {mirrors[0]} {suite} main"] if mirrors else []


def clean_system(root, suite):
    """"", or why there is none."""
    archives = sources(suite)
    if not archives:
        return f"no clean Debian ({suite}) could be made: this machine's sources name no archive of Debian"
    made = subprocess.run(["mmdebstrap", "--variant=apt", "--mode=root", f"--include={INCLUDED}", suite, root, *archives],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    return "" if made.returncode == 0 else f"no clean Debian ({suite}) could be made: " + made.stderr.strip().splitlines()[-1]


def needs(packages, scratch):
    """What the packages take for granted of a system."""
    newest, others = (0, 0), set()
    for path in packages:
        depends = subprocess.run(["dpkg-deb", "-f", path, "Depends"], check=True, capture_output=True, text=True, timeout=60).stdout
        others |= {re.split(r"[ (:]", one.strip())[0] for group in depends.split(",") for one in group.split("|") if one.strip()}
        unpacked = scratch / path.name
        subprocess.run(["dpkg-deb", "-x", path, unpacked], check=True, timeout=300)
        for file in unpacked.rglob("*"):
            if file.is_symlink() or not file.is_file() or file.open("rb").read(4) != b"\x7fELF":
                continue
            symbols = subprocess.run(["objdump", "-T", file], check=True, capture_output=True, text=True, timeout=60).stdout
            of_glibc = [tuple(map(int, one.split("."))) for one in re.findall(r"\bGLIBC_(2\.[0-9.]+)\b", symbols)]
            newest = max([newest, *of_glibc])
        shutil.rmtree(unpacked)
    assert newest <= OLDEST_GLIBC, f"symbols of glibc {newest} are needed"
    assert others and others <= GRANTED, f"packages are needed that are not everywhere: {others - GRANTED}"
    print(f"needed: glibc {'.'.join(map(str, newest))}; {', '.join(sorted(others))}", flush=True)


def before(package, folder):
    """The same package with a version before it."""
    with tempfile.TemporaryDirectory() as unpacked:
        subprocess.run(["dpkg-deb", "-R", package, unpacked], check=True, timeout=300)
        control = pathlib.Path(unpacked, "DEBIAN/control")
        version = next(line.split()[1] for line in control.read_text().splitlines() if line.startswith("Version: "))
        control.write_text(control.read_text().replace(version, "0.0.1"))
        subprocess.run(["dpkg-deb", "-b", "-Znone", "--root-owner-group", unpacked, folder], check=True, timeout=300, capture_output=True)
    return version


def tried(root, packages, dist, options):
    """0: all went well in the system `root`."""
    inside = root / "test"
    (inside / "before").mkdir(parents=True, exist_ok=True)
    for path in packages:
        version = before(path, inside / "before")
        shutil.copy(path, inside)
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"olpager-{version}-py3-none-manylinux_2_34_x86_64.whl", wheel
    shutil.copy(wheel, inside)
    shutil.copy(options.program, inside / "saxpy")
    for script in ("deb.sh", "wheel.sh", "common.sh"):
        shutil.copy(options.scripts / script, inside)
    # Processes, network and mounts of its own: all of it ends with the script.
    enter = ('mount --bind "$1" "$1" && mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" && mount -t tmpfs tmpfs "$1/run" && '
             'ip link set lo up && exec chroot "$1" /bin/sh "/test/$2" "$3"')
    system = (root / "etc/debian_version").read_text().strip()
    failed = 0
    for script in ("deb.sh", "wheel.sh"):
        done = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c", enter, "sh", root, script, version],
                              stdin=subprocess.DEVNULL, timeout=1200, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})
        print(f"Debian {system}, {script}: {'passed' if done.returncode == 0 else 'failed'}", flush=True)
        failed |= done.returncode
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--sources", "--program", "--scripts", "--dist", "--root"):
        parser.add_argument(name, type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        skip("a system in a folder of one's own takes root")

    if shutil.which("mmdebstrap") is None and not options.root:
        skip("mmdebstrap is missing: apt-get install mmdebstrap")

    # Not below /tmp where that is memory.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        scratch = pathlib.Path(scratch)
        roots = [options.root] if options.root else []
        for suite in [] if options.root else SUITES:
            root = scratch / suite
            if not (why := clean_system(root, suite)):
                roots.append(root)
            elif suite == SUITES[0]:
                skip(why)
            else:
                print(f"not tried: {why}", flush=True)
        if not options.dist:
            # As a run leaves it that was ended: nothing of it is packed, and no step counts as done.
            stale = options.sources / "debian/tmp/usr/share/doc/olpager/stale"
            stale.parent.mkdir(parents=True, exist_ok=True)
            stale.write_text("stale\n")
            (options.sources / "debian/debhelper-build-stamp").touch()
            subprocess.run([options.sources / "tools/package"], check=True, stdin=subprocess.DEVNULL, timeout=3000)
        dist = options.dist or options.sources / "dist"
        packages = sorted(dist.glob("*.deb"))
        assert [path.name.split("_")[0] for path in packages] == ["olpager-gpunode", "olpager-memserver", "olpager-simgpu", "olpager"], packages
        needs(packages, scratch)
        return max(tried(root, packages, dist, options) for root in roots)


if __name__ == "__main__":
    sys.exit(main())
