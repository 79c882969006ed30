#!/usr/bin/env python3
"""The images of tools/package --image: what reads images takes them, and they run. Each is unpacked and started as its configuration says, in
namespaces of its own: a memserver, a gpunode on the simulated GPU, and the client, whose program uses both (with a driver in a folder that is
mounted in, and with the image's own simulated one). Then Podman, where it runs, gives a container that has nothing of ours the library by a
file of "olrun --cdi".

images.py --sources FOLDER --program SAXPY [--dist FOLDER]

  --dist   packages and images that are there already
Exit status 77: there is no root here, or no mmdebstrap, skopeo or umoci.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
LONG = 120
BYTES = str(128 << 20)
INSIDE = "OLPAGER_TEST_INSIDE"
OWN = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
# A root folder as an engine makes it, then the process. $1: the folder.
ENTER = """set -e; root=$1; shift
mount --make-rprivate /; mount --bind "$root" "$root"
mkdir -p "$root/dev" "$root/proc"
mount -t tmpfs tmpfs "$root/dev"; mkdir "$root/dev/shm"; mount -t tmpfs tmpfs "$root/dev/shm"
for node in null zero full random urandom; do touch "$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"; done
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$root/$2"; else mkdir -p "$(dirname "$root/$2")"; touch "$root/$2"; fi
  mount --bind "$1" "$root/$2"; mount -o remount,ro,bind "$root/$2"; shift 2
done
shift; mount -t proc proc "$root/proc"; exec chroot "$root" "$@\""""


def run(*command, **more):
    timeout = more.pop("timeout", LONG)
    done = subprocess.run([str(one) for one in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, **more)
    assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


class Container:
    """An image, unpacked."""

    def __init__(self, archive, version, name, scratch):
        said = json.loads(run("skopeo", "inspect", "--config", f"oci-archive:{archive}"))
        assert said["architecture"] == "amd64" and said["config"]["Labels"]["org.opencontainers.image.version"] == version, said
        # The same by Docker's list in it.
        listed = json.loads(run("skopeo", "inspect", "--config", f"docker-archive:{archive}"))
        assert listed["config"]["Cmd"] == said["config"]["Cmd"] and listed["rootfs"] == said["rootfs"], listed
        layout, self.bundle = scratch / name / "layout", scratch / name / "bundle"
        layout.parent.mkdir()
        run("skopeo", "copy", "--quiet", f"oci-archive:{archive}", f"oci:{layout}:here")
        run("umoci", "unpack", "--image", f"{layout}:here", self.bundle)
        self.process = json.loads((self.bundle / "config.json").read_text())["process"]
        self.name = name

    def command(self, arguments, mounts, environment):
        user = self.process["user"]
        variables = [*self.process["env"], *environment]
        paths = [part for host, inside in mounts.items() for part in (host, inside)]
        become = ["setpriv", f"--reuid={user['uid']}", f"--regid={user['gid']}", "--clear-groups", "env", "-i", *variables]
        return [*OWN, "sh", "-c", ENTER, "sh", self.bundle / "rootfs", *paths, "--", *become, *(arguments or self.process["args"])]

    def run(self, *arguments, mounts, environment=()):
        return run(*self.command(arguments, mounts, environment))

    def start(self, log, mounts, environment=()):
        """As its configuration says."""
        with open(log, "w") as out:
            daemon = subprocess.Popen([str(one) for one in self.command(None, mounts, environment)], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        end = time.monotonic() + LONG
        while "listening" not in log.read_text():
            assert daemon.poll() is None and time.monotonic() < end, (self.name, log.read_text())
            time.sleep(0.1)
        return daemon


def settings(folder, owner, key, lines):
    """A folder as it is mounted at /etc/olpager."""
    folder.mkdir()
    (folder / f"{owner[0]}.toml").write_text("".join(line + "\n" for line in lines))
    shutil.copy(key, folder / f"{owner[0][2:]}.key")
    os.chown(folder / f"{owner[0][2:]}.key", owner[1], owner[1])
    return folder


def right(said):
    assert "OK saxpy" in said, said


def with_podman(scratch, host, archive, version, options):
    """A container of an image without the library, and a program that needs it."""
    if shutil.which("podman") is None:
        print("podman is missing: no engine reads the CDI file here")
        return
    # The machine's own are not touched; nor are cgroups, of which crun does not take every form.
    subprocess.run(["umount", "/sys/fs/cgroup/unified"], capture_output=True, timeout=LONG)
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # it leaves a file there
    os.makedirs("/run/cdi")
    podman = ["podman", "--storage-driver=vfs", f"--root={scratch}/storage", f"--runroot={scratch}/running", "--cgroup-manager=cgroupfs"]
    run(*podman, "load", "-i", archive)
    image = f"localhost/{archive.name.split('_')[0]}:{version.replace('+', '-')}"
    start = [*podman, "run", "--rm", "--cgroups=disabled", "--network=host", "--user=0", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
    tried = subprocess.run([*start, image, "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG)
    if tried.returncode != 0:
        print(f"podman runs no container here, so no engine reads the CDI file: {tried.stderr.strip()}")
        return
    environment = {"PATH": os.environ["PATH"], "OL_SIM_VRAM": "64MiB"}
    olrun = host / "usr/bin/olrun"
    key = scratch / "client.key"
    paged = ["--driver", "sim", "--vram", "16MiB", "--host", "48MiB", "--memserver", "127.0.0.1:7070", "--key", key]
    run(olrun, "--cdi", "paged", *paged, "--out", "/run/cdi/olpager-paged.json", env=environment)
    run(olrun, "--cdi", "2far", "--gpunode", "127.0.0.1:7071", "--key", key, "--out", "/run/cdi/olpager-far.json", env=environment)
    program = [image, "/work/saxpy", "--bytes", BYTES]
    mounted = ["-v", f"{options.program}:/work/saxpy:ro"]
    for name in ("paged", "2far"):
        right(run(*start, f"--device=olpager.dev/client={name}", *mounted, *program))
        print(f"podman: olpager.dev/client={name}: passed")
    alone = subprocess.run([*start, *mounted, *program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG)
    assert alone.returncode != 0, "the program ran without the device as well"


def inside(options, dist, scratch):
    run("ip", "link", "set", "lo", "up")
    archives = {path.name.split("_")[0]: path for path in dist.glob("*.oci.tar")}
    version = archives["olpager"].name.split("_")[1]
    host = scratch / "host"
    for package in ("olpager", "olpager-simgpu"):
        run("dpkg-deb", "-x", dist / f"{package}_{version}_amd64.deb", host)
    driver = host / "usr/lib/x86_64-linux-gnu/olpager/libolsimcuda.so"
    key = scratch / "client.key"
    run(host / "usr/bin/olctl", "keygen", "--name", "client", "--out", key)
    containers = {name: Container(archive, version, name, scratch) for name, archive in archives.items()}
    assert sorted(containers) == ["olpager", "olpager-gpunode", "olpager-memserver"], containers
    client = containers["olpager"]
    assert "Usage: olrun" in client.run(mounts={})
    assert client.run("olrun", "--version", mounts={}).strip() == f"olrun {version}"

    sim = ["OL_SIM_VRAM=64MiB"]
    lends = settings(scratch / "lends", ("olmemserver", 7070), key, ['memory = "256MiB"', 'reserve = "16MiB"', 'cgroup = "none"'])
    shares = settings(scratch / "shares", ("olgpunode", 7071), key, ['driver = "sim"', 'memory = "256MiB"'])
    daemons = [containers["olpager-memserver"].start(scratch / "memserver.log", {lends: "etc/olpager"}),
               containers["olpager-gpunode"].start(scratch / "gpunode.log", {shares: "etc/olpager"}, sim)]
    mounts = {options.program: "work/saxpy", key: "key", driver.parent: "driver"}
    job = ["--key", "/key", "--", "/work/saxpy", "--bytes", BYTES]
    right(client.run("olrun", "--driver", "/driver/libolsimcuda.so", "--vram", "16MiB", "--host", "48MiB", "--memserver", "127.0.0.1:7070", *job,
                     mounts=mounts, environment=sim))
    right(client.run("olrun", "--driver", "sim", "--vram", "16MiB", *job, mounts={options.program: "work/saxpy", key: "key"}, environment=sim))
    right(client.run("olrun", "--gpunode", "127.0.0.1:7071", *job, mounts={options.program: "work/saxpy", key: "key"}))
    print("images: passed", flush=True)
    with_podman(scratch, host, archives["olpager-memserver"], version, options)
    for daemon in daemons:
        assert daemon.poll() is None, "a daemon ended"
        daemon.kill()
        daemon.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--sources", "--program", "--dist"):
        parser.add_argument(name, type=pathlib.Path)
    options = parser.parse_args()
    missing = [name for name in ("mmdebstrap", "skopeo", "umoci", "unshare") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        print(f"skipped: {'apt-get install ' + ' '.join(missing) if missing else 'root folders take root'}")
        return SKIPPED
    dist = options.dist or options.sources / "dist"
    if INSIDE in os.environ:
        # Not below /tmp where that is memory.
        with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="olpager-images-") as folder:
            os.chmod(folder, 0o755)
            inside(options, dist, pathlib.Path(folder))
        return 0
    if not options.dist:
        run(options.sources / "tools/package", "--image", timeout=5000)
    # Network, processes and mounts of its own: all of it ends with this.
    again = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
    return subprocess.run(again, stdin=subprocess.DEVNULL, timeout=1800, env={**os.environ, INSIDE: "1", "LC_ALL": "C"}).returncode


if __name__ == "__main__":
    sys.exit(main())
