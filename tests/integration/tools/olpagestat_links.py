#!/usr/bin/env python3
"""What olpagestat tells of links is what crossed them: of a forwarded program's to its gpunodes, of a
worker's to its program and to the workers of other gpunodes; in the table, as JSON, on the screen, in
the report and for Prometheus.

olpagestat_links.py --olpagestat P --olrun P --olgpunode P CASE TRANSPORT
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

MIB = 1 << 20
LONG = 60  # seconds: what has to happen happens within
SLACK = 4 * MIB  # of messages beside what is copied

# Copies --in times SIZE to the first GPU and --out times back, and --across times from it to the
# second; then waits. The bytes are checked.
SCRIPT = """
import ctypes, sys
size, into, out, across = (int(word) for word in sys.argv[1:])
cuda = ctypes.CDLL("libcuda.so.1")
def ok(done):
    assert done == 0, done
ok(cuda.cuInit(0))
contexts, memory = [], []
for device in range(2 if across else 1):
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    ok(cuda.cuCtxSetCurrent(context))
    ok(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
    contexts.append(context)
    memory.append(address)
ok(cuda.cuCtxSetCurrent(contexts[0]))
data = bytes(range(256)) * (size // 256)
back = ctypes.create_string_buffer(size)
for i in range(into):
    ok(cuda.cuMemcpyHtoD_v2(memory[0], data, ctypes.c_size_t(size)))
for i in range(out):
    ok(cuda.cuMemcpyDtoH_v2(back, memory[0], ctypes.c_size_t(size)))
    assert back.raw == data
for i in range(across):
    ok(cuda.cuMemcpyPeer(memory[1], contexts[1], memory[0], contexts[0], ctypes.c_size_t(size)))
ok(cuda.cuCtxSynchronize())
print("ready", flush=True)
sys.stdin.read()
"""


def check(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


class Bench:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.env = dict(os.environ, XDG_RUNTIME_DIR=scratch, XDG_CONFIG_HOME=scratch)
        self.children = []

    def start(self, *words, **more):
        child = subprocess.Popen(words, text=True, env={**self.env, **more.pop("env", {})}, **more)
        self.children.append(child)
        return child

    def gpunode(self):
        node = self.start(self.options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim",
                          "--vram", "128MiB", "--memory", "256MiB", "--cache", "none",
                          stderr=subprocess.PIPE)
        return next(found.group(1) for line in node.stderr
                    if (found := re.search(r"listening at (\S+)", line)))

    def program(self, nodes, size, into, out, across):
        named = [word for node in nodes for word in ("--gpunode", node)]
        program = self.start(self.options.olrun, "--transport", self.options.transport, *named,
                             "--", sys.executable, "-c", SCRIPT, str(size), str(into), str(out),
                             str(across), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env={"OL_COUNTERS_KEEP": "7"})
        check(program.stdout.readline() == "ready\n", "the program came to its end")
        return program

    def stat(self, *words):
        return subprocess.run([self.options.olpagestat, *words], capture_output=True, text=True,
                              env=self.env, check=True, timeout=LONG).stdout

    def links(self, pid=None):
        """By (is a worker's, whom it leads to): of this bench's processes."""
        folder = os.path.join(self.scratch, "olpager")
        told = json.loads(self.stat("--json", "--folder", folder))
        return [(one["program"].startswith("worker: "), link) for one in told["processes"]
                for link in one["links"] if pid is None or one["pid"] == pid]

    def until(self, what, find):
        """What is told is half a second old."""
        end = time.monotonic() + LONG
        while True:
            links = self.links()
            if found := find(links):
                return found
            check(time.monotonic() < end, f"{what}: {links}")
            time.sleep(0.1)

    def end(self):
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            child.wait(LONG)


def carried(link, way, least):
    return link["sent_bytes" if way == "sent" else "received_bytes"] >= least


def check_bytes(link, way, bytes_copied):
    told = link[way + "_bytes"]
    check(bytes_copied <= told <= bytes_copied + SLACK, f"{way}: {told}, copied {bytes_copied}: {link}")


def program(bench):
    """A program and one gpunode."""
    size, into, out = 16 * MIB, 3, 2
    node = bench.gpunode()
    child = bench.program([node], size, into, out, 0)
    own = bench.until("the program's link", lambda links: next(
        (link for worker, link in links if not worker and link["to"] == "gpunode" and
         carried(link, "sent", into * size) and carried(link, "received", out * size)), None))
    worker = bench.until("the worker's link", lambda links: next(
        (link for is_worker, link in links if is_worker and link["to"] == "program" and
         carried(link, "received", into * size) and carried(link, "sent", out * size)), None))
    check(own["peer"] == node and own["transport"] == bench.options.transport, own)
    check(worker["transport"] == bench.options.transport and "python" in worker["peer"], worker)
    for link, sent, received in ((own, into, out), (worker, out, into)):
        check_bytes(link, "sent", sent * size)
        check_bytes(link, "received", received * size)
        check(link["rails"] == [], f"rails without RDMA: {link}")
        check(link["pinned_sent_bytes"] == 0, f"nothing is pinned: {link}")
    folder = os.path.join(bench.scratch, "olpager")
    table = bench.stat("--once", "--folder", folder)
    line = rf"^  link +{re.escape(node)} \(gpunode, {bench.options.transport}\): 48\S*MiB sent, " \
           r"32\S*MiB received$"
    check(re.search(line, table, re.M), table)
    check(re.search(r"^  link +\S+ \(program, \S+\): 32\S*MiB sent, 48\S*MiB received$", table, re.M),
          table)
    # Both have the link in the report, and its figures with it.
    report = os.path.join(bench.scratch, "report.html")
    bench.stat("--report", report, "--duration", "0.5", "--folder", folder)
    with open(report, encoding="utf-8") as file:
        page = file.read()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    check({link["to"] for one in data for link in one["links"]} == {"gpunode", "program"}, data)
    check(page.count("<h3>Links</h3>") == 2 and f">{node}<" in page, "the report has the links")
    # For Prometheus.
    exporter = bench.start(bench.options.olpagestat, "--prometheus", "127.0.0.1:0", "--folder", folder,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    url = next(found.group(1) for line in exporter.stdout
               if (found := re.search(r"figures at (\S+)", line)))
    with urllib.request.urlopen(url, timeout=LONG) as answer:
        text = answer.read().decode()
    figure = re.search(r'^olpager_link_sent_bytes_total\{[^}]*to="gpunode",peer="%s",link="0"\} (\d+)$'
                       % re.escape(node), text, re.M)
    check(figure and into * size <= int(figure.group(1)) <= into * size + SLACK, text)
    check(re.search(r'^olpager_link_received_bytes_total\{[^}]*to="program"', text, re.M), text)
    # Counters that are kept have the whole of it, goodbye and all.
    child.stdin.close()
    check(child.wait(LONG) == 0, "the program ends well")
    kept = next(link for worker, link in bench.links() if not worker and link["to"] == "gpunode")
    check_bytes(kept, "sent", into * size)
    check_bytes(kept, "received", out * size)
    check(kept["sent_bytes"] >= own["sent_bytes"], f"{kept} after {own}")


def workers(bench):
    """What goes from one gpunode to another goes over their workers' link, and not over the program's."""
    size, into, across = 8 * MIB, 1, 4
    nodes = [bench.gpunode(), bench.gpunode()]
    bench.program(nodes, size, into, 0, across)

    def both(links):
        between = [link for worker, link in links if worker and link["to"] == "worker"]
        sent = [link for link in between if carried(link, "sent", across * size)]
        received = [link for link in between if carried(link, "received", across * size)]
        return (sent[0], received[0]) if len(sent) == len(received) == 1 else None

    giver, taker = bench.until("the link between the workers", both)
    check_bytes(giver, "sent", across * size)
    check_bytes(taker, "received", across * size)
    for link in (giver, taker):
        check(link["transport"] in ("shm", "tcp") and link["peer"], link)

    def ends(links):
        own = {link["peer"]: link for worker, link in links if not worker}
        return own if set(own) == set(nodes) and carried(own[nodes[0]], "sent", into * size) else None

    own = bench.until("the program's links", ends)
    first, second = (own[node] for node in nodes)
    check_bytes(first, "sent", into * size)
    check_bytes(second, "sent", 0)
    check_bytes(first, "received", 0)


def main():
    cases = {case.__name__: case for case in (program, workers)}
    parser = argparse.ArgumentParser()
    for name in ("--olpagestat", "--olrun", "--olgpunode"):
        parser.add_argument(name, required=True)
    parser.add_argument("case", choices=cases)
    parser.add_argument("transport", choices=("tcp", "shm"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-links-") as scratch:
        bench = Bench(options, scratch)
        try:
            cases[options.case](bench)
        finally:
            bench.end()
    print("OK")


if __name__ == "__main__":
    main()
