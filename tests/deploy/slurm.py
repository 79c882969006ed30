#!/usr/bin/env python3
"""deploy/slurm with a real slurmctld, slurmd and munged on this machine, in a network and a process namespace of their
own: jobs that take remote memory and a remote GPU as licenses, on the simulated GPU.

slurm.py --olrun OLRUN --olmemserver OLMEMSERVER --olgpunode OLGPUNODE --program PROGRAM --source SOURCE
Exit: 77 where it can't be tried: it is not root, or Slurm is not installed.
"""
import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

LONG = 120  # seconds: what has to happen happens within
USER = "nobody"
NEEDED = ("slurmctld", "slurmd", "sbatch", "scontrol", "munged", "setpriv", "unshare", "ip")


def eventually(true, what, within=LONG):
    end = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < end, f"not within {within} s: {what() if callable(what) else what}"
        time.sleep(0.2)
    return found


class Cluster:
    """One node that is controller and worker."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.children = []
        os.chmod(folder, 0o755)
        self.node = socket.gethostname()
        for name in ("state", "spool", "jobs", "deploy", "bin"):
            os.mkdir(os.path.join(folder, name), 0o755)
        for program in (options.olrun, options.olmemserver, options.olgpunode):
            os.symlink(os.path.abspath(program), self.path(os.path.join("bin", os.path.basename(program))))
        os.chmod(self.path("jobs"), 0o777)
        for name in ("common", "prolog", "epilog", "task_prolog"):
            shutil.copy(os.path.join(options.source, "deploy/slurm", name), self.path("deploy"))
        self.write("deploy/secret", "x" * 64, 0o400)
        self.run_folder = self.path("run")
        self.settings = self.write("settings", f"""
OLPAGER_BIN={self.path('bin')}
OLPAGER_STATE={self.run_folder}
OLPAGER_SECRET={self.path('deploy/secret')}
OLPAGER_MEMSERVER_OPTIONS="--reserve 64MiB --lock off --cgroup none --pressure-some 100 --pressure-full 100 --config {self.write('empty.toml', '')}"
OLPAGER_GPUNODE_OPTIONS="--driver sim --vram 64MiB --config {self.path('empty.toml')}"
""", 0o644)
        # slurmd's scripts have an environment of their own.
        common = self.path("deploy/common")
        with open(common) as text:
            changed = text.read().replace("/etc/olpager/slurm/settings", self.settings)
        with open(common, "w") as text:
            text.write(changed)
        lines = open(os.path.join(options.source, "deploy/slurm/slurm.conf")).read()
        lines = lines.replace("/etc/olpager/slurm/", self.path("deploy") + "/")
        self.conf = self.write("slurm.conf", f"""
ClusterName=olpager
SlurmctldHost={self.node}(192.0.2.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={self.path('munge.sock')}
CredType=cred/munge
StateSaveLocation={self.path('state')}
SlurmdSpoolDir={self.path('spool')}
SlurmctldPidFile={self.path('slurmctld.pid')}
SlurmdPidFile={self.path('slurmd.pid')}
SlurmctldLogFile={self.path('slurmctld.log')}
SlurmdLogFile={self.path('slurmd.log')}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
PropagateResourceLimits=NONE
ReturnToService=2
MailProg=/bin/true
KillWait=5
NodeName={self.node} NodeAddr=192.0.2.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
{lines}
""", 0o644)
        self.env = {**os.environ, "SLURM_CONF": self.conf}

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def start(self, *command):
        log = open(self.path(os.path.basename(command[0]) + ".out"), "w")
        self.children.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.env))

    def begin(self):
        self.write("munge.key", "k" * 64, 0o400)
        self.start("munged", "--foreground", "--force", "--key-file", self.path("munge.key"), "--socket", self.path("munge.sock"), "--pid-file",
                   self.path("munge.pid"), "--log-file", self.path("munge.log"), "--seed-file", self.path("munge.seed"))
        eventually(lambda: os.path.exists(self.path("munge.sock")), "munged listens")
        self.start("slurmctld", "-D", "-i")
        self.start("slurmd", "-D", "-N", self.node)
        eventually(self.is_idle, lambda: "the node is idle: " + self.logs())

    def is_idle(self):
        gone = [child.args[0] for child in self.children if child.poll() is not None]
        assert not gone, f"ended: {gone}"
        return "State=IDLE" in self.scontrol("show", "node", self.node)

    def logs(self):
        text = ""
        for name in os.listdir(self.folder):
            if name.endswith((".log", ".out")):
                with open(self.path(name), errors="replace") as file:
                    text += f"\n== {name}\n" + "".join(file.readlines()[-25:])
        return text

    def scontrol(self, *words):
        return subprocess.run(["scontrol", *words], capture_output=True, text=True, env=self.env).stdout

    def job(self, licenses, script):
        """Submits it as an ordinary user, and returns its number."""
        file = self.write("job.sh", "#!/bin/bash\n" + script, 0o755)
        said = subprocess.run(["setpriv", "--reuid", USER, "--regid", "nogroup", "--clear-groups", "sbatch", "--parsable", *(["-L", licenses] if licenses else []),
                               "--output", self.path("jobs/%j.out"), "--chdir", self.path("jobs"), file], capture_output=True, text=True,
                              env={"PATH": "/usr/bin:/bin", "HOME": self.path("jobs"), "SLURM_CONF": self.conf})
        assert said.returncode == 0, said.stderr + self.logs()
        return int(said.stdout.strip())

    def state(self, number):
        found = re.search(r"JobState=(\w+)", self.scontrol("show", "job", str(number)))
        return found.group(1) if found else "?"

    def done(self, number):
        """What the job printed. It has ended well, and prolog's daemons with it."""
        eventually(lambda: self.state(number) in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
                   lambda: f"job {number} is {self.state(number)}: {self.logs()}")
        with open(self.path(f"jobs/{number}.out"), errors="replace") as file:
            text = file.read()
        assert self.state(number) == "COMPLETED", f"{self.state(number)}: {text}{self.logs()}"
        eventually(lambda: not os.path.exists(os.path.join(self.run_folder, str(number))), f"epilog of job {number} removes its folder")
        eventually(self.is_idle, lambda: "the node is idle again: " + self.logs())
        assert not daemons(), daemons()
        return text

    def drained(self, number, *reasons):
        """The job does not run, and slurmd's log says why."""
        eventually(lambda: "DRAIN" in self.scontrol("show", "node", self.node), lambda: "the node is drained: " + self.logs())
        assert any(reason in self.logs() for reason in reasons), self.logs()
        assert not os.path.exists(self.path(f"jobs/{number}.out")), "the job has run"

    def end(self):
        for child in reversed(self.children):
            child.terminate()
        for child in reversed(self.children):
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def daemons():
    """olmemserver and olgpunode in this process namespace."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            continue
        if name in ("olmemserver", "olgpunode", "olgpunode-worker"):
            found.append((int(pid), name))
    return found


def inside(options):
    with tempfile.TemporaryDirectory(prefix="olpager-slurm-") as folder:
        cluster = Cluster(options, folder)
        try:
            cluster.begin()
            licenses = cluster.scontrol("show", "license")
            assert re.search(r"LicenseName=olpager_gib\s+Total=512", licenses) and "olpager_gpu" in licenses, licenses
            olrun = cluster.path("bin/olrun")

            # Without a license nothing is started, and nothing is set.
            text = cluster.done(cluster.job("", "env | grep ^OL_ ; srun env | grep ^OL_ ; true"))
            assert text == "", text
            print("without a license: nothing")

            # A GiB of the node's RAM for a program that has little memory of its own.
            script = (f"srun {olrun} --driver sim --vram 16MiB --host 64MiB --stats -- {options.program} --bytes 268435456\n"
                      "srun bash -c 'echo memserver $OL_MEMSERVER key $OL_KEY $(stat -c %a $OL_KEY)'\n"
                      # What root reads and writes in the folder the job can't change.
                      f"stat -c 'folder %u %a' {cluster.run_folder}/$SLURM_JOB_ID\n"
                      f"for name in memserver.pid memserver.log other; do ln -sf /etc/passwd {cluster.run_folder}/$SLURM_JOB_ID/$name && echo changed; done; true\n")
            number = cluster.job("olpager_gib:1", script)
            held = eventually(lambda: re.search(r"LicenseName=olpager_gib\s+Total=512 Used=1", cluster.scontrol("show", "license"))
                              or cluster.state(number) == "COMPLETED", "the license is taken")
            text = cluster.done(number)
            assert "OK saxpy_oversubscribed" in text, text + cluster.logs()
            remote = re.search(r"at memservers +\S+ .*peak (\S+)", text)
            assert remote and not remote.group(1).startswith("0"), text
            port = 27000 + number % 2000
            assert "folder 0 711" in text and "changed" not in text, text
            assert f"memserver {cluster.node}:{port} key {cluster.run_folder}/{number}/key 600" in text, text
            print(f"olpager_gib:1: {remote.group(1)} at a memserver; license seen taken: {bool(held)}")

            # A GPU by a gpunode, with a memserver behind it.
            script = (f"srun {olrun} -- {options.program} --bytes 33554432\n"
                      "srun bash -c 'echo gpunode $OL_GPUNODE memserver ${OL_MEMSERVER-none}'\n")
            number = cluster.job("olpager_gpu:1,olpager_gib:1", script)
            text = cluster.done(number)
            assert "OK saxpy_oversubscribed" in text, text + cluster.logs()
            assert f"gpunode {cluster.node}:{29000 + number % 2000} memserver none" in text, text
            print("olpager_gpu:1: forwarded")

            # A number that is another user's process by now: epilog leaves that alone.
            other = subprocess.Popen([cluster.path("bin/olmemserver"), "--config", cluster.path("empty.toml"), "--listen", "127.0.0.1:0", "--memory", "64MiB",
                                      "--reserve", "64MiB", "--lock", "off", "--cgroup", "none"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            cluster.children.append(other)
            os.makedirs(os.path.join(cluster.run_folder, "9999"))
            cluster.write(f"{cluster.run_folder}/9999/memserver.pid", f"{other.pid}\n")
            subprocess.run([cluster.path("deploy/epilog")], check=True, env={**cluster.env, "SLURM_JOB_ID": "9999", "SLURM_JOB_UID": "65534"})
            assert not os.path.exists(os.path.join(cluster.run_folder, "9999")), "the folder is left"
            assert other.poll() is None, "epilog has ended another user's memserver"
            cluster.children.remove(other)
            other.kill()
            other.wait()
            print("another user's process: left alone")

            # Without the secret no key is made up.
            os.rename(cluster.path("deploy/secret"), cluster.path("deploy/away"))
            cluster.drained(cluster.job("olpager_gib:1", "echo it ran\n"), "has to hold a secret")
            os.rename(cluster.path("deploy/away"), cluster.path("deploy/secret"))
            cluster.scontrol("update", f"NodeName={cluster.node}", "State=RESUME")
            eventually(cluster.is_idle, lambda: "the node is idle again: " + cluster.logs())
            print("no secret: drained")

            # What can't be lent ends in a drained node with the reason in slurmd's log, not in a job that is slow.
            cluster.write("settings", open(cluster.settings).read() + "OLPAGER_MEMSERVER_OPTIONS='--memory 1000TiB'\n")
            number = cluster.job("olpager_gib:1", "echo it ran\n")
            cluster.drained(number, "are available", "--memory")
            print("what can't be lent: drained")
        except AssertionError:
            print(cluster.logs(), file=sys.stderr)
            raise
        finally:
            cluster.end()


def main():
    parser = argparse.ArgumentParser()
    for name in ("--olrun", "--olmemserver", "--olgpunode", "--program", "--source"):
        parser.add_argument(name, required=True)
    parser.add_argument("--inside", action="store_true")
    options = parser.parse_args()
    options.program = os.path.abspath(options.program)  # jobs run elsewhere
    if options.inside:
        # Slurm's daemons look for an address that is not loopback's: one end of a pair of their own has it.
        for command in ("link set lo up", "link add olslurm0 type veth peer name olslurm1", "address add 192.0.2.1/30 dev olslurm0",
                        "link set olslurm0 up", "link set olslurm1 up"):
            subprocess.run(["ip", *command.split()], check=True)
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hosts:
            hosts.write(f"127.0.0.1 localhost\n192.0.2.1 {socket.gethostname()}\n")
            hosts.flush()
            os.chmod(hosts.name, 0o644)
            subprocess.run(["mount", "--bind", hosts.name, "/etc/hosts"], check=True)  # of this mount namespace
            return inside(options)
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        print("not tried: " + (f"not installed: {' '.join(missing)} (tools/setup --test)" if missing else "not root"))
        return 77
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv, "--inside"]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
