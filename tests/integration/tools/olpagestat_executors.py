#!/usr/bin/env python3
"""olpagestat over a program that runs under the unified view, over two gpunodes of this test's own.

olpagestat_executors.py --olpagestat P --olrun P --olgpunode P --program P
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
LONG = 60  # seconds: what has to happen happens within
MOVES = ("pages", "room", "capacity", "asked")  # reasons of moves of all that an operation has


def check(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


class Gpunode:
    """Two simulated ones together have room for the program, each alone has not."""

    def __init__(self, options, scratch, name):
        own = os.path.join(scratch, name)
        os.mkdir(own, 0o700)
        # Its workers' counters are not with the program's.
        env = dict(os.environ, XDG_RUNTIME_DIR=own, XDG_CONFIG_HOME=scratch)
        self.log = open(os.path.join(own, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen([options.olgpunode, "--listen", "127.0.0.1:0", "--driver", "sim", "--vram", "32MiB", "--memory", "512MiB",
                                         "--cache", "none"], env=env, stdout=self.log, stderr=self.log)
        end = time.monotonic() + LONG
        found = None
        while not found and time.monotonic() < end:
            time.sleep(0.02)
            self.log.seek(0)
            found = re.search(r"listening at (\S+)", self.log.read())
        check(found, f"gpunode {name} did not start")
        self.address = found.group(1)

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=LONG)


def stat(options, scratch, *arguments):
    return subprocess.run([options.olpagestat, "--folder", os.path.join(scratch, "olpager"), *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=LONG, check=False)


def of_json(process, addresses):
    """What is told of the executors fits together, and both took part."""
    unified = process["unified"]
    executors = unified["executors"]
    check([one["gpunode"] for one in executors] == addresses, f"not both executors: {executors}")
    for one in executors:
        check(one["launches"] > 0, f"no launch there: {one}")
        check(one["launches"] <= one["operations"] == sum(one["operations_by_reason"].values()), f"operations: {one}")
        check(one["retained_bytes"] % (2 * MIB) == 0 and one["retained_bytes"] <= one["bytes_out"], f"retained: {one}")
        check(0 < one["room_bytes"] <= 32 * MIB < one["capacity_bytes"], f"room: {one}")
    check(sum(one["launches"] for one in executors) == 3 * 8, f"launches: {executors}")
    # With two executors, what one gave the other has.
    for one, other in (executors, reversed(executors)):
        check(one["bytes_in"] == other["bytes_out"] and one["bytes_in"] % (2 * MIB) == 0, f"bytes: {executors}")
        check(one["unchanged_bytes"] + one["in_part_bytes"] <= one["bytes_in"] >= one["read_bytes"] > 0, f"read: {one}")
    moved = sum(one["operations_by_reason"][reason] for one in executors for reason in MOVES)
    check(0 < moved == unified["moves"], f"{moved} operations moved all, {unified['moves']} moves")
    last = unified["last_moves"]
    check(len(last) == min(15, moved) and last[0]["number"] == moved - 1, f"last moves: {last}")
    check(last[0]["to"] == unified["active"], f"the active one: {unified}")
    for later, earlier in zip(last, last[1:]):
        check(later["from"] == earlier["to"] and later["begun_ns"] >= earlier["ended_ns"], f"the order of moves: {last}")
    for move in last:
        check(move["reason"] in MOVES and move["from"] != move["to"], f"a move: {move}")
        check(0 <= move["finishing_ns"] <= move["ended_ns"] - move["begun_ns"], f"times: {move}")
    check(sum(move["finishing_ns"] for move in last) <= unified["finishing_ns"], f"waits: {unified}")


def of_table(text, addresses):
    check(re.search(r"^  unified view +one device of 2 executors", text, re.M), f"table: {text}")
    for address in addresses:
        check(re.search(rf"^  {re.escape(address)} .* \S*MiB .* [1-9]\d* ", text, re.M), f"no line of {address}: {text}")
    check(re.search(r"^  moves of all +[1-9]\d*, \S+ a second on average", text, re.M), f"moves: {text}")
    check(re.search(r"^ +[1-9]\d*  none of its pages is elsewhere$", text, re.M), f"reasons: {text}")
    one = "(?:" + "|".join(map(re.escape, addresses)) + ")"
    check(re.search(rf"^ +{one} -> {one}: (more of its pages are there|the former executor's VRAM has no room for its pages)"
                    r"( \(\d+ there, \d+ to come\))?; [0-9.]+[mu]?s$", text, re.M), f"last moves: {text}")


def of_trace(path, pid, addresses, moves):
    """A lane for each executor; on a lane nothing overlaps."""
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["pid"] == pid]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    of_executors = {tid: name for tid, name in lanes.items() if name.startswith("executor ")}
    check(sorted(of_executors.values()) == sorted("executor " + address for address in addresses), f"lanes: {lanes}")
    spans = {tid: [] for tid in of_executors}
    for event in events:
        if event["ph"] == "X" and event["tid"] in spans:
            check(event["dur"] >= 0, f"a span: {event}")
            spans[event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for tid, lane in spans.items():
        lane.sort()
        for one, two in zip(lane, lane[1:]):
            check(one[1] <= two[0] + 0.001, f"{of_executors[tid]}: {one} and {two} overlap")
    found = [event for event in events if event["name"] == "move of all"]
    # It may have moved before the program was found.
    check(0 < len(found) <= moves, f"{len(found)} moves in the trace, {moves} were made")
    check(all(event["args"]["reason"] and event["args"]["from"] in addresses for event in found), f"moves: {found}")
    owned = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "bytes owned"]
    check(any(sum(each.values()) > 0 for each in owned) and sorted(owned[0]) == sorted(addresses), f"owned: {owned}")


def of_report(path, addresses):
    """What each executor owned over time, and no plot of a pager, which the program has not."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    check(re.findall(r'data-plot="([a-z]+)"', page) == ["executors"], "plots of what was not measured")
    (one,) = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    check([each["gpunode"] for each in one["executors"]] == addresses, f"executors: {one['executors']}")
    for each in one["executors"]:
        owned = [value for value in each["owned_bytes"] if value is not None]
        check(len(each["owned_bytes"]) == len(one["seconds"]) and owned and max(owned) > 0, f"owned: {each}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("--olpagestat", "--olrun", "--olgpunode", "--program"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-executors-") as scratch:
        gpunodes = [Gpunode(options, scratch, name) for name in ("first", "second")]
        try:
            addresses = [gpunode.address for gpunode in gpunodes]
            path, page = os.path.join(scratch, "trace.json"), os.path.join(scratch, "report.html")
            tracer = subprocess.Popen([options.olpagestat, "--folder", os.path.join(scratch, "olpager"), "--trace", path, "--report", page,
                                       "--duration", str(LONG)],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            env = dict(os.environ, XDG_RUNTIME_DIR=scratch, XDG_CONFIG_HOME=scratch, XDG_CACHE_HOME=scratch, OL_COUNTERS_KEEP="7")
            named = [word for address in addresses for word in ("--gpunode", address)]
            done = subprocess.run([options.olrun, *named, "--view", "unified", "--transport", "tcp", "--", options.program, "--bytes", str(64 * MIB),
                                   "--seed", "1"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONG, check=False)
            check(done.returncode == 0 and "OK" in done.stdout, f"the program: {done.returncode}\n{done.stdout}")
            tracer.terminate()
            out, _ = tracer.communicate(timeout=LONG)
            check(tracer.returncode == 0, f"olpagestat --trace: {tracer.returncode}\n{out}")
            told = stat(options, scratch, "--json")
            processes = json.loads(told.stdout)["processes"]
            check(len(processes) == 1 and processes[0]["state"] == "ended", f"not the program alone: {told.stdout}")
            of_json(processes[0], addresses)
            table = stat(options, scratch, "--once")
            of_table(table.stdout, addresses)
            of_report(page, addresses)
            of_trace(path, processes[0]["pid"], addresses, processes[0]["unified"]["moves"])
            print(table.stdout)
        finally:
            for gpunode in gpunodes:
                gpunode.end()


if __name__ == "__main__":
    main()
