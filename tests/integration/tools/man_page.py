#!/usr/bin/env python3
"""Every option that a program's --help lists is in its man page and in the tables of the reference, and these have no other.

man_page.py PROGRAM PAGE [--command COMMAND] [--reference FILE[#HEADING]]...
"""
import argparse
import re
import shutil
import subprocess

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("page")
parser.add_argument("--command", action="append", default=[])
parser.add_argument("--reference", action="append", default=[])
asked = parser.parse_args()
program, page, subcommands = asked.program, asked.page, asked.command
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
# What tables tell: the first cell of each row.
told = set()
for place in asked.reference:
    path, _, heading = place.partition("#")
    with open(path) as file:
        lines = file.read()
    section = lines.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else lines
    assert section, place
    for cell in re.findall(r"^\| (`--[^|]*)", section, re.M):
        told |= set(OPTION.findall(cell))
missing, unknown = has - told - {"--help", "--version"}, told - has
assert not asked.reference or not missing and not unknown, f"not in the reference: {sorted(missing)}; only there: {sorted(unknown)}"
if shutil.which("groff"):
    shown = subprocess.run(["groff", "-man", "-ww", "-Tutf8", page], capture_output=True, text=True, timeout=30, check=True)
    assert shown.stderr == "", shown.stderr
