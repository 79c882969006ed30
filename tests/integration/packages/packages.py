#!/usr/bin/env python3
"""The packages of tools/package, installed in a clean Debian 12 in namespaces of its own: deb.sh and wheel.sh beside this file are what
happens in there.

packages.py --sources FOLDER --program SAXPY --scripts FOLDER [--dist FOLDER] [--root FOLDER]

  --dist   packages that are there already   --root   a clean system that is there already (it is changed)
Exit status 77: there is no root here, no mmdebstrap, or no archive.
"""
import argparse
import glob
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
# A clean system is what each Debian has, what the packages depend on, and what a venv takes.
INCLUDED = "libtbb12,systemd,python3-venv"


def skip(why):
    print(f"skipped: {why}")
    raise SystemExit(SKIPPED)


def clean_system(root):
    if shutil.which("mmdebstrap") is None:
        skip("mmdebstrap is missing: apt-get install mmdebstrap")
    sources = [path for path in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*.list"), *glob.glob("/etc/apt/sources.list.d/*.sources")]
               if os.path.exists(path)]
    made = subprocess.run(["mmdebstrap", "--variant=apt", "--mode=root", f"--include={INCLUDED}", "bookworm", root, *sources],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    if made.returncode != 0:
        skip("no clean Debian 12 could be made: " + made.stderr.strip().splitlines()[-1])


def before(package, folder):
    """The same package with a version before it."""
    with tempfile.TemporaryDirectory() as unpacked:
        subprocess.run(["dpkg-deb", "-R", package, unpacked], check=True, timeout=300)
        control = pathlib.Path(unpacked, "DEBIAN/control")
        version = next(line.split()[1] for line in control.read_text().splitlines() if line.startswith("Version: "))
        control.write_text(control.read_text().replace(version, "0.0.1"))
        subprocess.run(["dpkg-deb", "-b", "-Znone", "--root-owner-group", unpacked, folder], check=True, timeout=300, capture_output=True)
    return version


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--sources", "--program", "--scripts", "--dist", "--root"):
        parser.add_argument(name, type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        skip("a system in a folder of one's own takes root")

    # Not below /tmp where that is memory.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        root = options.root or pathlib.Path(scratch, "root")
        if not options.root:
            clean_system(root)
        if not options.dist:
            # As a run leaves it that was ended: nothing of it is packed, and no step counts as done.
            stale = options.sources / "debian/tmp/usr/share/doc/olpager/stale"
            stale.parent.mkdir(parents=True, exist_ok=True)
            stale.write_text("stale\n")
            (options.sources / "debian/debhelper-build-stamp").touch()
            subprocess.run([options.sources / "tools/package"], check=True, stdin=subprocess.DEVNULL, timeout=3000)
        dist = options.dist or options.sources / "dist"

        inside = root / "test"
        (inside / "before").mkdir(parents=True, exist_ok=True)
        packages = sorted(dist.glob("*.deb"))
        assert [path.name.split("_")[0] for path in packages] == ["olpager-gpunode", "olpager-memserver", "olpager-simgpu", "olpager"], packages
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
        failed = 0
        for script in ("deb.sh", "wheel.sh"):
            done = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c", enter, "sh", root, script, version],
                                  stdin=subprocess.DEVNULL, timeout=1200, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})
            print(f"{script}: {'passed' if done.returncode == 0 else 'failed'}", flush=True)
            failed |= done.returncode
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
