#!/usr/bin/env python3
"""olpagestat over a real program: paged by the real library on the simulated GPU.

olpagestat.py --olpagestat P --olrun P --olmemserver P --program P trace|report|watch|live|screen|plain|killed|memserver
"""
import argparse
import atexit
import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

LONG = 60  # what has to happen happens within


def fail(text):
    sys.exit(f"FAILED: {text}")


def check(condition, text):
    if not condition:
        fail(text)


def until(what, text, seconds=LONG):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.01)
    fail(f"not within {seconds} s: {text}")


class Program:
    """The CUDA program, stopped as soon as it has counters: what it does happens between go() and halt()."""

    def __init__(self, options, scratch, size=64 << 20, more=()):
        self.folder = os.path.join(scratch, "olpager")
        self.others = set(os.listdir(self.folder)) if os.path.isdir(self.folder) else set()
        env = dict(os.environ, XDG_RUNTIME_DIR=scratch, XDG_CONFIG_HOME=scratch)
        self.process = subprocess.Popen(
            [options.olrun, "--driver", "sim", "--vram", "16MiB", *more, "--", options.program, "--bytes", str(size)], env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        atexit.register(self.process.kill)  # a check that fails leaves no stopped program behind
        self.file = until(self.find, "counters of the program")
        self.halt()

    def find(self):
        check(self.process.poll() is None, "the program ended early")
        if not os.path.isdir(self.folder):
            return None
        for name in os.listdir(self.folder):
            if not name.endswith(".counters") or name in self.others:  # a memserver's socket; another program
                continue
            with open(os.path.join(self.folder, name), "rb") as file:
                if file.read(8) == b"OLCOUNT\0":
                    return os.path.join(self.folder, name)
        return None

    @property
    def pid(self):
        return int(os.path.basename(self.file).split("-")[0])

    def halt(self):
        os.kill(self.pid, signal.SIGSTOP)

    def go(self):
        os.kill(self.pid, signal.SIGCONT)

    def value(self, offset):
        with open(self.file, "rb") as file:
            file.seek(offset)
            return struct.unpack("<Q", file.read(8))[0]

    def end(self):
        self.go()
        out, _ = self.process.communicate(timeout=LONG)
        check(self.process.returncode == 0 and "OK" in out, f"the program: {self.process.returncode}\n{out}")


def stat(options, scratch, *arguments, **more):
    # Other programs of the user may have counters of their own under /tmp.
    return subprocess.Popen([options.olpagestat, "--folder", os.path.join(scratch, "olpager"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **more)


def trace(options, scratch):
    """What is traced is what is counted; events have the shape that viewers ask for."""
    program = Program(options, scratch)
    check(program.value(256 + 40) == 0, "events are put into the ring though nobody asked")
    path = os.path.join(scratch, "out.json")
    tracer = stat(options, scratch, "--trace", path, "--pid", str(program.pid))
    until(lambda: program.value(256 + 40), "the tracer asks for events")
    program.end()
    _, errors = tracer.communicate(timeout=LONG)
    check(tracer.returncode == 0, f"olpagestat --trace: {tracer.returncode}\n{errors}")
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    begun, found, spans = {}, {}, {}
    for event in data["traceEvents"]:
        phase = event["ph"]
        check(event["pid"] == program.pid, f"another's event: {event}")
        if phase == "X":
            check(event["dur"] >= 0 and event["ts"] > 0 and event["tid"] > 0, f"no span: {event}")
            spans.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
            found[event["name"]] = found.get(event["name"], 0) + 1
        elif phase == "b":
            key = event["cat"], event["id"]
            check(key not in begun, f"begun twice: {event}")
            begun[key] = event
        elif phase == "e":
            start = begun.pop((event["cat"], event["id"]), None)
            check(start is not None and start["name"] == event["name"], f"an end without a beginning: {event}")
            check(event["ts"] >= start["ts"], f"ended before it began: {event}")
            found[event["name"]] = found.get(event["name"], 0) + 1
        else:
            check(phase in ("M", "C"), f"an event of kind {phase}")
    check(not begun, f"begun and never ended: {begun}")
    for thread, events in spans.items():
        events.sort(key=lambda span: (span[0], -span[1]))
        within = []  # spans that the next one may lie in
        for span in events:
            while within and within[-1][1] <= span[0] + 0.001:
                within.pop()
            check(not within or span[1] <= within[-1][1] + 0.001, f"thread {thread}: {within} and {span} overlap")
            within.append(span)
    # What the engine does for an extent that comes and one that goes. Of a thread of its own, which sleeps between.
    names = {event["args"]["name"]: event["tid"] for event in data["traceEvents"] if event["name"] == "thread_name"}
    steps = {name for _, _, name in spans.get(names.get("pager of device 0"), [])}
    check({"sleep", "serve", "copy in", "choose", "pass", "found", "unmap", "poll"} <= steps, f"steps: {steps}")
    mappers = [lane for lane, events in spans.items() if "map" in (done := {name for _, _, name in events}) and done <= {"map", "lock", "take"}]
    check(mappers, f"what comes is mapped by a thread of its own: {found}")
    summary = data["otherData"][str(program.pid)]
    check(summary["lost"] == 0, f"lost events: {summary}")
    names = {"launches": "launch", "copies": "copy", "faults": "fault", "fetches": "fetch", "prefetches": "prefetch",
             "written": "write back", "clean": "eviction, clean"}
    for figure, name in names.items():
        counted = summary["counted"][figure]
        check(found.get(name, 0) == summary["traced"][figure], f"{figure}: {found} in the file, {summary}")
        # The program was stopped and may have been between an event and its counter.
        check(abs(counted - found.get(name, 0)) <= 1, f"{figure}: counted {counted}, traced {found.get(name, 0)}")
    check(found.get("launch", 0) >= 20 and found.get("fetch", 0) + found.get("prefetch", 0) >= 20, f"too little: {found}")
    check(not os.path.exists(program.file), "the program's file is still there")


def report_data(path):
    with open(path, encoding="utf-8") as file:
        return json.loads(re.search(r'id="data">(.*?)</script>', file.read(), re.S).group(1))


def report(options, scratch):
    """One page, whole in itself, with the data of each plot."""
    program = Program(options, scratch)
    path = os.path.join(scratch, "out.html")
    reporter = stat(options, scratch, "--report", path, "--trace", os.path.join(scratch, "also.json"), "--pid", str(program.pid))
    until(lambda: program.value(256 + 40), "olpagestat is at it")
    program.end()
    _, errors = reporter.communicate(timeout=LONG)
    check(reporter.returncode == 0, f"olpagestat --report: {reporter.returncode}\n{errors}")
    with open(path, encoding="utf-8") as file:
        page = file.read()
    # The drawing library names its origin in a comment; olpagestat-browser looks at what a browser does.
    addresses = re.findall(r"https?://\S+", page)
    check(addresses == ["https://github.com/leeoniya/uPlot"], f"the page names {addresses}")
    check(re.search(r"(src|href)\s*=|url\(|@import", page) is None, "the page asks for something else")
    check("The MIT License" in page and "Leon Sorokin" in page, "the licence of what the page has inside is not there")
    for heading in ("Why it is slow", "Residency over time", "by path", "found all in place", "Fault latency", "address space over time",
                    "moved most", "Settings"):
        check(f"<h3>{heading}" in page or re.search(f"<h3>[^<]*{heading}", page), f"no {heading}")
    plots = re.findall(r'data-plot="([a-z]+)"', page)
    check(plots == ["residency", "bytes", "extents", "hits", "waits", "map"], f"plots: {plots}")
    one = next(each for each in report_data(path) if each["pid"] == program.pid)
    count = len(one["seconds"])
    check(count >= 2 and one["seconds"] == sorted(one["seconds"]), f"moments: {one['seconds']}")
    for group, series in (("residency_bytes", ("VRAM", "host memory in place", "host memory", "remote")),
                          ("extents_per_second", ("fetched on demand", "prefetched", "evicted clean", "evicted, written")),
                          ("bytes_per_second", ("in", "out", "from memservers", "to memservers"))):
        check(list(one[group]) == list(series), f"{group}: {list(one[group])}")
        for name in series:
            check(len(one[group][name]) == count, f"{group}, {name}: not one for each moment")
            # Of the time before the first moment nobody knows a rate.
            check((one[group][name][0] is None) == (group != "residency_bytes"), f"{group}, {name}: {one[group][name][0]}")
    check(one["settings"]["OL_VRAM"] == "16MiB" and "" not in one["settings"].values(), f"settings: {one['settings']}")
    check(set(one["vram_budget_bytes"]) - {None} == {16 << 20}, f"budget: {one['vram_budget_bytes']}")
    check(len(one["hit_rate"]) == count and all(rate is None or 0 <= rate <= 1 for rate in one["hit_rate"]), f"hit rate: {one['hit_rate']}")
    check(max(one["residency_bytes"]["VRAM"]) > 0 and max(one["residency_bytes"]["host memory"]) > 0, "no tiers")
    check(max(one["bytes_per_second"]["in"][1:]) > 0 and sum(one["fault_wait_log2_ns"]) > 0, "no traffic, no faults")
    # 32 pages of 2 MiB, 8 of them in VRAM at most; the map says so too. On a busy machine some are used in place.
    full = [row for row in one["places"] if len(row) == 32]
    check(full and set("".join(full)) <= set("123456789") and "2" in "".join(full) and "4" in "".join(full),
          f"places: {one['places']}")
    import html.parser

    class Balanced(html.parser.HTMLParser):
        stack = []

        def handle_starttag(self, tag, attrs):
            if tag != "meta":
                self.stack.append(tag)

        def handle_startendtag(self, tag, attrs):
            pass

        def handle_endtag(self, tag):
            check(self.stack and self.stack.pop() == tag, f"</{tag}> does not fit")

    parser = Balanced()
    parser.feed(page)
    check(not parser.stack, f"left open: {parser.stack}")


def watch(options, scratch):
    """Plain lines, one for each program each time."""
    program = Program(options, scratch, 256 << 20)
    program.go()
    watcher = stat(options, scratch, "--watch", "0.2", "--duration", "1", "--pid", str(program.pid))
    out, errors = watcher.communicate(timeout=LONG)
    program.halt()
    check(watcher.returncode == 0, f"--watch: {watcher.returncode} {errors}")
    lines = out.splitlines()
    check("\x1b" not in out and len(lines) >= 3, f"lines: {out}")
    head = lines[0].split()
    check(head[:3] == ["time", "pid", "program"] and head[-1] == "wait99", f"head: {lines[0]}")
    for line in lines[1:]:
        fields = line.split()
        check(len(fields) == len(head) and fields[1] == str(program.pid), f"line: {line}")
    moved = [head.index(name) for name in ("launch", "fault", "written", "in/s", "out/s")]
    check(any(line.split()[at] != "0" for line in lines[1:] for at in moved), f"nothing moved: {out}")
    objects = stat(options, scratch, "--watch", "0.2", "--duration", "0.5", "--json", "--pid", str(program.pid))
    out, _ = objects.communicate(timeout=LONG)
    decoder, count = json.JSONDecoder(), 0
    while out.strip():
        value, end = decoder.raw_decode(out.lstrip())
        out = out.lstrip()[end:]
        check(value["processes"][0]["pid"] == program.pid, "another process")
        count += 1
    check(count >= 2, f"{count} objects")
    program.end()


class Screen:
    """A terminal: what olpagestat may send, and nothing else."""

    def __init__(self, rows, columns, unicode=False):
        self.more = "".join(map(chr, range(0x2801, 0x2900))) if unicode else ""  # braille, with a dot at least
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.resize(rows, columns)
        self.stale = False  # what comes was drawn for the size before
        self.alternate = self.hidden = False
        self.cleared = self.bytes = 0

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        self.stale = True

    def feed(self, data):
        self.bytes += len(data)
        text = self.decoder.decode(data)
        while text:
            code = re.match(r"\x1b\[(\??)([0-9;]*)([A-Za-z])", text)
            if code:
                private, numbers, letter = code.groups()
                if private:
                    check((numbers, letter) in (("1049", "h"), ("1049", "l"), ("25", "h"), ("25", "l")), f"mode {code.group(0)!r}")
                    if numbers == "1049":
                        self.alternate = letter == "h"
                    else:
                        self.hidden = letter == "l"
                elif letter == "H":
                    self.row, self.column = (int(n) - 1 for n in numbers.split(";"))
                    check(self.stale or self.row < self.rows and self.column < self.columns, f"outside: {code.group(0)!r}")
                elif letter == "K":
                    for column in range(self.column, 0 if self.stale else self.columns):
                        self.cells[self.row][column] = " "
                elif letter == "J":
                    check(numbers == "2", "J")
                    self.cleared += 1
                    self.stale = False
                    self.cells = [[" "] * self.columns for _ in range(self.rows)]
                else:
                    check(letter == "m", f"sent {code.group(0)!r}")
                text = text[code.end():]
                continue
            check(" " <= text[0] <= "~" or text[0] in self.more, f"sent {text[:20]!r}")
            if self.stale:
                text = text[1:]
                continue
            check(self.column < self.columns, f"row {self.row} is longer than the screen")
            self.cells[self.row][self.column] = text[0]
            self.column += 1
            text = text[1:]

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)


class Live:
    def __init__(self, options, scratch, rows=40, columns=150, more=(), language="C"):
        self.screen = Screen(rows, columns, "UTF-8" in language)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execve(options.olpagestat, [options.olpagestat, "--folder", os.path.join(scratch, "olpager"), *more],
                      dict(os.environ, TERM="xterm-256color", NO_COLOR="", XDG_CONFIG_HOME=scratch, LC_ALL=language))
        self.held = b""

    def resize(self, rows, columns):
        self.drain(0.2)
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def drain(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.fd], [], [], left)[0]:
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                return False
            if not data:
                return False
            data = self.held + data
            cut = data.rfind(b"\x1b")
            whole = cut < 0 or re.match(rb"\x1b\[\??[0-9;]*[A-Za-z]", data[cut:])
            self.held = b"" if whole else data[cut:]
            self.screen.feed(data if whole else data[:cut])
        return True

    def shows(self, pattern, text):
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            if re.search(pattern, self.screen.text(), re.M):
                return
            check(self.drain(0.1), f"it ended; the screen was\n{self.screen.text()}")
        fail(f"{text}; the screen is\n{self.screen.text()}")

    def key(self, keys):
        os.write(self.fd, keys)

    def ended(self):
        while self.drain(0.2):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def live(options, scratch):
    """The screen: what it shows, keys, another size, the end."""
    first = Program(options, scratch, 256 << 20)  # it still runs when the screen shows its allocations
    first.go()
    live = Live(options, scratch)
    live.shows(rf"^ *{first.pid} saxpy_oversubsc ", "the program's line")
    live.shows(r"gpu0 +VRAM \[#+\.*\] +\S+ of +16\.0M", "the device's line")
    live.shows(r"^map  a cell: 2MiB", "the map")
    live.shows(r"^0x[0-9a-f]{12} [Vhp.<>~]+$", "cells")
    live.shows(r"hottest allocations of", "allocations")
    first.halt()
    check(live.screen.alternate and live.screen.hidden, "not a screen of its own")
    live.key(b"h")
    live.drain(2.5)  # nothing moves, but for the history, which is not shown: what differs between pictures is the clock
    cleared, sent = live.screen.cleared, live.screen.bytes
    live.drain(3.2)
    check(live.screen.cleared == cleared, "it clears the screen between pictures")
    check(live.screen.bytes - sent < 5 * 400, f"{live.screen.bytes - sent} bytes for pictures that hardly differ")
    live.key(b"h")
    # A second program; choose it, sort by pid, look at one device. It is stopped when the screen shows what it has
    # allocated, and is too large to end before.
    second = Program(options, scratch, 4 << 30)
    second.go()
    live.key(b"sss")
    live.shows(r"sort: pid", "the order by pid")
    live.shows(rf"^ *{second.pid} saxpy", "the second program")
    pids = sorted([first.pid, second.pid])
    live.shows(rf"(?s)^ *{pids[0]} saxpy.*^ *{pids[1]} saxpy", "both in order")
    live.key(b"\x1b[A\x1b[B")  # up, down
    live.shows(rf"hottest allocations of {pids[1]}", "the second one's allocations")
    live.key(b"k")
    live.shows(rf"hottest allocations of {pids[0]}", "the first one's")
    second.halt()
    live.key(b"n")
    live.shows(r"  gpu0$", "one device")
    live.key(b"n")
    live.shows(r"all devices$", "all devices")
    live.key(b"m")
    until(lambda: live.drain(0.1) and not re.search(r"^map  ", live.screen.text(), re.M), "the map goes")
    live.key(b" ")
    live.shows(r"\(paused\)", "a pause")
    live.key(b" +")
    live.shows(r"every 2s", "another interval")
    live.key(b"-m")
    live.shows(r"^map  a cell", "the map again")
    # Smaller, tiny, and large again: never a character outside (the screen checks that).
    for rows, columns in ((12, 60), (3, 20), (1, 5), (50, 200)):
        live.resize(rows, columns)
        live.shows(r"^olpag", "the first line")
        live.drain(0.3)
    live.shows(rf"^ *{second.pid} saxpy.*", "all of it again")
    os.kill(second.pid, signal.SIGKILL)
    second.process.wait(timeout=LONG)
    until(lambda: live.drain(0.1) and str(second.pid) not in live.screen.text(), "the killed program goes")
    check(not os.path.exists(second.file), "its file is still there")
    live.key(b"q")
    check(live.ended() == 0, "q ends it with another status")
    check(not live.screen.alternate and not live.screen.hidden, "the terminal is not given back")
    for end in (signal.SIGTERM, signal.SIGINT):
        again = Live(options, scratch)
        again.shows(r"^olpagestat", "the first line")
        os.kill(again.pid, end)
        check(again.ended() == 0 and not again.screen.alternate and not again.screen.hidden, f"{end}: not given back")
    first.end()


BRAILLE = "[\u2801-\u28ff]"


def screen(options, scratch):
    """History, help, sorts and a filter, in terminals of several sizes and while programs come and go."""
    one = Program(options, scratch, 2 << 30)  # it is killed before it ends
    one.go()
    live = Live(options, scratch, rows=24, columns=80, language="C.UTF-8")
    plots = r"^traffic \S+, most \S+ .* +stalls \S+ +hit rate \S+$"
    live.shows(r"^traffic [1-9]\S*/s, most [1-9]\S* ", "traffic in a terminal of 80 columns")
    live.shows(r"  stalls [1-9]\d*% +hit rate \d+%$", "stalls and the hit rate")
    live.shows(rf"^ *{BRAILLE}+.* {BRAILLE}+ .* {BRAILLE}+ *$", "columns of all three")
    live.shows(rf"^ *{one.pid} saxpy", "the program's line")
    live.shows(r"^map  a cell", "the map has room too")
    check(len(live.screen.text().splitlines()) <= 24, "more lines than the screen")
    # Help instead of all else, and back by any key. It fits.
    live.key(b"?")
    live.shows(r"^olpagestat: keys", "help")
    live.shows(r"^  stalls +time in which a launch waited", "the last line of help")
    check(str(one.pid) not in live.screen.text(), "help beside other things")
    live.key(b"x")
    live.shows(rf"^ *{one.pid} saxpy", "back from help")
    live.key(b"h")
    until(lambda: live.drain(0.1) and not re.search(r"^traffic ", live.screen.text(), re.M), "the history goes")
    live.key(b"h")
    live.shows(plots, "the history comes, with what it had")
    # Wide: the map beside the allocations, the plots wider, and all columns.
    live.resize(50, 200)
    live.shows(r"^hottest allocations of \d+ +map  a cell: \S+ ", "the map beside the allocations")
    live.shows(r"^  0x[0-9a-f]{12} .* out +\S+ +0x[0-9a-f]{12} [Vhpr.<>~]+$", "both in one line")
    live.shows(r"^ *PID PROGRAM {20,}VRAM .* CLEAN .* R-OUT/s .* WAIT99$", "all columns, and room for names")
    rows = [line for line in live.screen.text().splitlines() if re.search(BRAILLE, line)]
    check(len(rows) >= 3 and max(line.rfind(last) for line in rows for last in line[-1]) > 190, f"the plots are not as wide as the terminal: {rows}")
    live.shows(rf"^ *{one.pid} saxpy_oversubscribed ", "the whole name")
    one.halt()
    # Sorting: back by one, all the way round, the other way.
    for name in ("waits", "hit rate", "launches", "remote", "host", "program", "pid"):
        live.key(b"S")
        live.shows(rf"sort: {name}  ", f"sorted by {name}")
    two = Program(options, scratch, 4 << 30)
    two.go()
    live.shows(rf"^ *{two.pid} saxpy", "the second program")
    until(lambda: two.value(256 + 112) > 8 << 20, "some of what it has was evicted")
    two.halt()
    first, last = sorted([one.pid, two.pid])
    live.shows(rf"(?s)^ *{first} saxpy.*^ *{last} saxpy", "by pid")
    live.key(b"r")
    live.shows(r"sort: pid, reversed  ", "the other way")
    live.shows(rf"(?s)^ *{last} saxpy.*^ *{first} saxpy", "by pid, the other way")
    # A filter: by pid, by a part of the name in capitals, by nothing that is there; dropped and kept.
    live.key(f"/{two.pid}".encode())
    live.shows(rf"^filter: {two.pid}_ ", "what is typed")
    live.shows(r"1 of 2 programs .* filter: \d+  all devices$", "one of two")
    check(not re.search(rf"^ *{one.pid} saxpy", live.screen.text(), re.M), "the other one is there")
    live.key(b"\r")
    live.shows(r"^\? help", "the keys again")
    live.shows(r"1 of 2 programs", "the filter stays")
    live.key(b"\x1b")
    live.shows(r"^olpagestat \S+  2 programs ", "the filter goes")
    live.key(b"fOVERSUBx")
    live.shows(r'^no name or process id of the programs has "OVERSUBx" in it', "none")
    live.key(b"\x7f\r")
    live.shows(r"2 of 2 programs", "both, by a part of the name")
    live.key(b"fq\x1b")  # q is a letter here
    live.shows(r"^olpagestat \S+  2 programs ", "no filter")
    # Tiny, and back; never a character outside (the screen checks that).
    for rows, columns in ((24, 59), (5, 30), (1, 1), (2, 200), (60, 12), (24, 80)):
        live.resize(rows, columns)
        live.shows(r"^o", "the first line")
        live.drain(0.2)
    live.shows(plots, "the history again")
    live.key(b"?")
    live.resize(3, 20)
    live.shows(r"^olpagestat: keys", "help where it does not fit")
    live.key(b"?")
    live.resize(30, 120)
    # The shown one ends: the other one is shown instead.
    live.key(b"jjjj")
    live.shows(rf"hottest allocations of {first}", "the last one is chosen")
    shown, other = (one, two) if first == one.pid else (two, one)
    os.kill(shown.pid, signal.SIGKILL)
    shown.process.wait(timeout=LONG)
    until(lambda: live.drain(0.1) and str(shown.pid) not in live.screen.text(), "the killed program goes")
    live.shows(rf"^ *{other.pid} saxpy", "the other one")
    live.shows(plots, "the other one's history")
    os.kill(other.pid, signal.SIGKILL)
    other.process.wait(timeout=LONG)
    live.shows(r"^no program of yours uses a GPU under olpager now$", "none is left")
    check(not re.search(BRAILLE, live.screen.text()), "the history of nobody")
    live.key(b"q")
    check(live.ended() == 0 and not live.screen.alternate and not live.screen.hidden, "the terminal is not given back")


def plain(options, scratch):
    """No terminal, or one that can't: one table."""
    program = Program(options, scratch)
    one = stat(options, scratch)
    out, _ = one.communicate(timeout=LONG)
    check(one.returncode == 0 and f"pid {program.pid}" in out and "\x1b" not in out, f"plain: {out}")
    control, terminal = pty.openpty()
    dumb = subprocess.run([options.olpagestat], env=dict(os.environ, XDG_RUNTIME_DIR=scratch, TERM="dumb"), stdin=terminal,
                          stdout=terminal, stderr=subprocess.PIPE, timeout=LONG, check=False)
    out = os.read(control, 65536)
    check(dumb.returncode == 0 and b"\x1b" not in out and str(program.pid).encode() in out, f"dumb: {out}")
    data = json.loads(stat(options, scratch, "--json", "--pid", str(program.pid)).communicate(timeout=LONG)[0])
    check(data["processes"][0]["pid"] == program.pid, "json")
    for bad in (("--trace", os.path.join(scratch, "x"), "--json"), ("--report", os.path.join(scratch, "x"), "--once"),
                ("--duration", "never")):
        one = stat(options, scratch, *bad)
        check("olpagestat: " in one.communicate(timeout=LONG)[1] and one.returncode == 2, f"{bad}: {one.returncode}")
    one = stat(options, scratch, "--trace", os.path.join(scratch, "no", "where.json"))
    check("No such file" in one.communicate(timeout=LONG)[1] and one.returncode == 1, "a folder that is not there")
    program.end()
    one = stat(options, scratch, "--trace", os.path.join(scratch, "none.json"), "--pid", str(program.pid))
    check("no program" in one.communicate(timeout=LONG)[1] and one.returncode == 1, "nothing to trace")


def killed(options, scratch):
    """One that traces is killed: the program stops putting events into the ring by itself, and ends well."""
    program = Program(options, scratch)
    tracer = stat(options, scratch, "--trace", os.path.join(scratch, "out.json"), "--pid", str(program.pid))
    until(lambda: program.value(256 + 40), "the tracer asks for events")
    tracer.kill()
    tracer.communicate()
    time.sleep(3.2)
    asked = program.value(256 + 40)
    head = program.value(583360)
    program.go()
    until(lambda: not os.path.exists(program.file) or program.value(256 + 40) == 0, "the program forgets who asked")
    if os.path.exists(program.file):
        check(program.value(583360) == head, "events for nobody")
    check(asked != 0, "nobody had asked")
    program.end()


class Memserver:
    """One on loopback, for the program that more() is given to."""

    def __init__(self, options, scratch):
        env = dict(os.environ, XDG_RUNTIME_DIR=scratch, XDG_CONFIG_HOME=scratch)
        self.process = subprocess.Popen([options.olmemserver, "--listen", "127.0.0.1:0", "--memory", "512MiB", "--reserve", "64MiB", "--cgroup", "none"],
                                        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        atexit.register(self.process.kill)  # nor a memserver
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if at := re.search(r"listening on ([0-9.]+:[0-9]+)", line):
                self.address = at.group(1)
                break
        else:
            fail(f"olmemserver: {lines}")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()  # it is not to wait for who reads

    def more(self):
        return "--host", "32MiB", "--memserver", self.address

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=LONG)


def memserver(options, scratch):
    """A program that has memory at a memserver: every view shows how much, and what goes there and comes back."""
    server = Memserver(options, scratch)
    program = Program(options, scratch, 384 << 20, server.more())  # it still runs when the screen shows what it does
    path = os.path.join(scratch, "out.html")
    reporter = stat(options, scratch, "--report", path, "--trace", os.path.join(scratch, "out.json"), "--pid", str(program.pid))
    until(lambda: program.value(256 + 40), "olpagestat is at it")
    watcher = stat(options, scratch, "--watch", "0.2", "--pid", str(program.pid))
    live = Live(options, scratch, columns=160, more=("--node", server.address))
    program.go()
    live.shows(r"^  remote RAM  \[#+\.*\] +[1-9]\S* of +[1-9]\S*   in +[1-9]\S*/s   out +[1-9]\S*/s", "the line of what is at memservers")
    live.shows(r"^node memserver \S+  " + re.escape(server.address), "the memserver")
    live.shows(r"^  RAM +\[#+\.*\] +[1-9]\S* of +512M .*   1 session$", "its memory; who asks is no session of it")
    live.shows(r"^ *PID PROGRAM .* PLACE REMOTE .* OUT/s  R-IN/s R-OUT/s ", "the columns of memservers")
    live.shows(r"^0x[0-9a-f]{12} [Vhpr.<>~]*r", "cells at memservers")
    program.halt()
    at_memserver = program.value(256 + 168)  # remote_bytes
    check(at_memserver > 0 and program.value(216) >= at_memserver, "the counters of memservers")
    # What does not fit goes, whole columns of it, the least important ones first.
    for columns, there, gone in ((160, ("CLEAN", "PLACE", "REMOTE", "WAIT99"), ()), (120, ("REMOTE", "R-IN/s", "R-OUT/s", "LAUNCH"), ("PLACE", "CLEAN")),
                                 (80, ("VRAM", "HOST", "REMOTE", "FAULT", "IN/s", "OUT/s", "WAIT99"), ("R-IN/s", "PLACE", "LAUNCH"))):
        if columns != live.screen.columns:
            live.resize(40, columns)
        until(lambda: live.drain(0.1) and re.search(r"^ *PID .* WAIT99$", live.screen.text(), re.M), f"whole columns at {columns}")
        names = re.search(r"^ *PID (.*)$", live.screen.text(), re.M).group(1).split()
        check(set(there) <= set(names) and not set(gone) & set(names), f"{columns} columns: {names}")
        check(re.search(r"^  remote RAM .* in +\S+/s   out +\S+/s$", live.screen.text(), re.M), f"cut at {columns}:\n{live.screen.text()}")
        row = re.search(rf"^ *{program.pid} saxpy.*$", live.screen.text(), re.M).group(0).split()
        check(len(row) == len(names) + 1, f"{names}\n{row}")
    live.key(b"q")
    check(live.ended() == 0, "q ends it with another status")
    program.end()
    out, errors = watcher.communicate(timeout=LONG)
    check(watcher.returncode == 0, f"--watch: {watcher.returncode} {errors}")
    head = out.splitlines()[0].split()
    lines = [line.split() for line in out.splitlines() if str(program.pid) in line.split()]
    for name in ("remote", "r-in/s", "r-out/s"):
        check(any(line[head.index(name)] not in ("0", "-") for line in lines), f"--watch: no {name}\n{out}")
    _, errors = reporter.communicate(timeout=LONG)
    check(reporter.returncode == 0, f"--report: {reporter.returncode} {errors}")
    one = next(each for each in report_data(path) if each["pid"] == program.pid)
    check(max(one["residency_bytes"]["remote"]) >= at_memserver / 2, f"--report: {one['residency_bytes']}")
    for series in ("from memservers", "to memservers"):
        check(max(one["bytes_per_second"][series][1:]) > 0, f"--report: nothing {series}")
    with open(os.path.join(scratch, "out.json"), encoding="utf-8") as file:
        tiers = [event["args"] for event in json.load(file)["traceEvents"] if event["ph"] == "C"]
    check(any(tier["remote"] > 0 for tier in tiers), f"--trace: {tiers[-1]}")
    server.end()


def main():
    parser = argparse.ArgumentParser()
    for name in ("olpagestat", "olrun", "olmemserver", "program"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("case", choices=["trace", "report", "watch", "live", "screen", "plain", "killed", "memserver"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpagestat-") as scratch:
        globals()[options.case](options, scratch)
    print(f"OK {options.case}")


main()
