#!/usr/bin/env python3
"""A daemon as its image starts it (tools/packaging/image.py), without the image: its command, with its environment, as process 1 of a PID
namespace of its own. Paths of the image are folders of the test's, its port is any, and the GPU is the simulated one.

  olgpunode    a program is forwarded to it; orphans are reaped; SIGTERM ends it
  olmemserver  it lends; orphans are reaped; SIGTERM ends it

Exit status 77: this kernel makes no such namespace for who asks.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

LONG = 60
SKIPPED = 77
UNSHARE = ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def said_of(sources, daemon):
    """What its image is started with, and its environment."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(sources / "tools/packaging"))
    import image
    (said,) = [one for one in image.IMAGES.values() if one["command"][0] == daemon]
    return said["command"], said["environment"]


def placed(text, folder):
    """A path of the image as one of the test's; the port as any."""
    if text.startswith("/"):
        return folder + text
    return re.sub(r"^(\S+):\d+$", r"\1:0", text)


class Image:
    def __init__(self, options, folder):
        command, environment = said_of(options.sources, options.image)
        assert os.path.basename(options.daemon) == command[0], f"the image starts {command[0]}"
        arguments = [placed(argument, folder) for argument in command[1:]]
        self.key = arguments[arguments.index("--key") + 1]
        self.env = {"PATH": os.environ["PATH"], "HOME": folder, "XDG_CONFIG_HOME": folder + "/config"}
        own = {name: placed(value, folder) for name, value in environment.items()}
        for path in [os.path.dirname(self.key), *own.values(), *arguments]:
            if path.startswith(folder) and path != self.key:
                os.makedirs(path, mode=0o700, exist_ok=True)
        subprocess.run([options.olctl, "keygen", "--name", "image", "--out", self.key], check=True, capture_output=True, timeout=LONG)
        self.log = open(os.path.join(folder, "log"), "w+")
        # What the image's machine would have: the donation's size and a GPU. An empty file in place of the machine's own settings.
        empty = os.path.join(folder, "empty.toml")
        open(empty, "w").close()
        extra = {"olgpunode": ["--driver", "sim"], "olmemserver": ["--memory", "16MiB", "--reserve", "16MiB", "--cgroup", "none"]}
        self.command = [options.daemon, "--config", empty, *arguments, *extra[options.image]]
        self.process = subprocess.Popen([*UNSHARE, *self.command], env={**self.env, **own}, stdout=self.log, stderr=self.log)

    def said(self):
        with open(self.log.name) as text:
            return text.read()

    def address(self):
        end = time.monotonic() + LONG
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(r"listening (?:on|at) \S+:(\d+)$", self.said(), re.M)
            if found:
                return "127.0.0.1:" + found.group(1)
            time.sleep(0.05)
        raise AssertionError(f"{self.command} does not listen: {self.said()}")

    def first(self):
        """Its process 1, as this namespace counts."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])

    def children(self, pid):
        found = []
        for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append((int(status.parent.name), fields[0]))
        return found

    def reaps_orphans(self):
        """One who is left behind by what was run in the container beside it (docker exec) goes when it ends."""
        first = self.first()
        before = {pid for pid, _ in self.children(first)}
        beside = ["nsenter", "--user", "--preserve-credentials", "--pid", "--mount", "--target", str(first)]
        subprocess.run([*beside, "sh", "-c", "sh -c 'sleep 1' >/dev/null 2>&1 & exit 0"], check=True, timeout=LONG)
        orphans = {pid for pid, _ in self.children(first)} - before
        assert orphans, "the orphan did not come to process 1"
        end = time.monotonic() + LONG
        while orphans & {pid for pid, _ in self.children(first)}:
            assert time.monotonic() < end, f"nobody waits for {orphans}"
            time.sleep(0.1)

    def ends(self):
        os.kill(self.first(), signal.SIGTERM)
        status = self.process.wait(timeout=LONG)
        assert status == 0, (status, self.said())


def run_olgpunode(options, image, folder):
    client = {**image.env, "XDG_RUNTIME_DIR": folder}
    for _ in range(2):
        done = subprocess.run([options.olrun, "--gpunode", image.address(), "--key", image.key, "--", options.program],
                              env=client, capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 0, (done, image.said())
    # The image's cache is where the modules went.
    assert any(pathlib.Path(folder + "/var/cache/olpager").rglob("*")), "nothing is in the cache"


def run_olmemserver(options, image, folder):
    done = subprocess.run([options.daemon, "--config", folder + "/empty.toml", "--state", "--json", "--listen", image.address(), "--key", image.key],
                          env=image.env, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0 and json.loads(done.stdout)["donated"] == 16 << 20, (done, image.said())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=pathlib.Path, required=True)
    for name in ("--daemon", "--olrun", "--olctl", "--program"):
        parser.add_argument(name, required=True)
    parser.add_argument("image", choices=["olgpunode", "olmemserver"])
    options = parser.parse_args()
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=LONG)
    if tried.returncode != 0:
        print(f"skipped: no PID namespace can be had here: {tried.stderr.strip()}")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="olpager-image-") as folder:
        image = Image(options, folder)
        try:
            {"olgpunode": run_olgpunode, "olmemserver": run_olmemserver}[options.image](options, image, folder)
            image.reaps_orphans()
            image.ends()
        except BaseException:
            print(image.said())
            raise
        finally:
            image.process.kill()
            image.process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
