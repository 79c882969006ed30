"""Several hosts on one machine: network namespaces joined by a bridge, in a user namespace of the test's own.

No root is needed and nothing outside is touched: namespaces, links and every process in them end with the test, however it
ends. Where the kernel does not allow it, enter() ends the test with status 77 (skipped) and says why.
"""
import os
import subprocess
import sys

INSIDE = "OL_TEST_INSIDE_NAMESPACES"
UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
PREFIX = "10.87.0."


def skip(why):
    print(f"skipped: no network namespaces of the test's own: {why}")
    sys.exit(77)


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stdout.strip()}")


def enter():
    """Runs this script again in namespaces of its own; returns there."""
    if os.environ.get(INSIDE):
        return
    try:
        run(*UNSHARE, "sh", "-c", "mount -t tmpfs none /run && ip netns add probe && ip link add name probe type bridge && "
            "ip link add probe0 type veth peer name probe1 && ip netns exec probe true")
    except OSError as why:
        skip(why)
    os.environ[INSIDE] = "1"
    sys.stdout.flush()
    os.execvp("unshare", UNSHARE + [sys.executable] + sys.argv)


class Host:
    """One of the hosts: its programs see no other network than the bridge."""

    def __init__(self, name, address):
        self.name, self.address, self.port = name, address, "to-" + name

    def command(self, *argv):
        return ["ip", "netns", "exec", self.name, *argv]

    def cable(self, plugged):
        """At the bridge's end: the host loses its carrier, connections stay."""
        run("ip", "link", "set", self.port, "up" if plugged else "down")

    def interface(self, up):
        """At the host's end: its routes go as well."""
        run("ip", "-n", self.name, "link", "set", "eth0", "up" if up else "down")

    def whole_packets(self):
        """Before it connects: what it sends is never longer than its MTU on the way to the next host."""
        run("ip", "-n", self.name, "link", "set", "dev", "eth0", "gso_max_segs", "1")

    def narrow(self, mtu):
        """Packets that are longer are lost on the way, to it and from it, and nobody is told. Both ends believe in their own MTU."""
        run("ip", "link", "set", "dev", self.port, "mtu", str(mtu))

    def shape(self, rate):
        """Both directions, as a slower card would be."""
        for place in (["-n", self.name, "qdisc", "add", "dev", "eth0"], ["qdisc", "add", "dev", self.port]):
            run("tc", *place, "root", "tbf", "rate", rate, "burst", "128kb", "latency", "20ms")


class Hosts:
    """To be made inside enter()."""

    def __init__(self):
        run("mount", "-t", "tmpfs", "none", "/run")
        run("ip", "link", "add", "name", "bridge", "type", "bridge")
        run("ip", "link", "set", "bridge", "up")
        self.count = 0

    def add(self, name):
        self.count += 1
        host = Host(name, PREFIX + str(self.count))
        run("ip", "netns", "add", name)
        run("ip", "link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", host.port, "master", "bridge", "up")
        run("ip", "-n", name, "address", "add", host.address + "/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        return host
