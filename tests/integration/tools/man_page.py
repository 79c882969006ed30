#!/usr/bin/env python3
"""Every option that a program's --help lists is in its man page, and the page has no other.

man_page.py PROGRAM PAGE [SUBCOMMAND...]
"""
import re
import shutil
import subprocess
import sys

program, page, *subcommands = sys.argv[1:]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def helped(*command):
    done = subprocess.run([program, *command, "--help"], capture_output=True, text=True, timeout=30, check=True)
    # An option's own line begins with it; texts name other programs' options.
    return {name for line in done.stdout.splitlines() for name in re.findall(r"^  (?:-\w,)?(--[a-z-]+)", line)}


has = helped()
for name in subcommands:
    has |= helped(name)
with open(page) as file:
    text = file.read()
# What is defined there: the line after .TP.
defined = set()
for line in re.findall(r"^\.TP\n(.*)$", text.replace("\\-", "-"), re.M):
    defined |= set(OPTION.findall(line))
# Every page may leave out what every program has.
missing, unknown = has - defined - {"--help", "--version"}, defined - has
for name in subcommands:
    assert re.search(rf"^\.SS {name}$", text, re.M), f"no section {name}"
assert len(has) > 2 and not missing and not unknown, f"not in the page: {sorted(missing)}; only in the page: {sorted(unknown)}"
if shutil.which("groff"):
    shown = subprocess.run(["groff", "-man", "-ww", "-Tutf8", page], capture_output=True, text=True, timeout=30, check=True)
    assert shown.stderr == "", shown.stderr
