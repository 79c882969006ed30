#!/usr/bin/env python3
"""Compares what `conformance` records with a golden file.

compare.py --golden FILE [--known FILE]... [--section NAME]... (--recorded FILE | -- COMMAND...)

Lines are "key = value". A difference is allowed when a known-differences file has a line "pattern: reason" whose pattern
(with * and ?) matches the key. Prints every difference; exits 1 when one isn't allowed, 77 when there is no golden file.
"""
import argparse
import fnmatch
import os
import subprocess
import sys


def parse(lines):
    answers = {}
    for line in lines:
        key, separator, value = line.rstrip("\n").partition(" = ")
        if separator and not line.startswith("#"):
            answers[key] = value
    return answers


def known_differences(paths):
    known = []
    for path in paths:
        with open(path) as file:
            for number, line in enumerate(file, 1):
                line = line.strip()
                if not line or line.startswith("#"):
                    continue
                pattern, separator, reason = line.partition(": ")
                if not separator or not reason.strip():
                    sys.exit(f"{path}:{number}: a known difference is 'pattern: reason'")
                known.append((pattern.strip(), reason.strip()))
    return known


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", required=True)
    parser.add_argument("--known", action="append", default=[])
    parser.add_argument("--only", action="append", default=[], help="compare keys that match this pattern")
    parser.add_argument("--recorded", help="a file with what was recorded, instead of a command")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if not os.path.exists(options.golden):
        print(f"no golden file {options.golden}: record one with tools/gpu/record-conformance")
        return 77
    with open(options.golden) as file:
        golden = parse(file)
    if options.recorded:
        with open(options.recorded) as file:
            actual = parse(file)
    else:
        done = subprocess.run(options.command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            print(f"{' '.join(options.command)}: exit {done.returncode}")
            return 1
        actual = parse(done.stdout.splitlines())
    known = known_differences(options.known)
    used = set()
    unexpected, allowed, fresh = [], 0, []
    wanted = lambda key: not options.only or any(fnmatch.fnmatchcase(key, pattern) for pattern in options.only)
    for key in sorted(set(golden) | set(actual)):
        if not wanted(key):
            continue
        if key not in golden:
            fresh.append(key)
            continue
        expected, got = golden[key], actual.get(key, "(not recorded)")
        if expected == got:
            continue
        reason = next(((pattern, reason) for pattern, reason in known if fnmatch.fnmatchcase(key, pattern)), None)
        if reason:
            used.add(reason[0])
            allowed += 1
            print(f"known     {key}: {got}, hardware {expected} ({reason[1]})")
        else:
            unexpected.append(f"DIFFERENT {key}: {got}, hardware {expected}")
    for key in fresh:
        print(f"new       {key} = {actual[key]} (not in the golden file)")
    for pattern, reason in known:
        if pattern not in used and not options.only:
            print(f"unused    {pattern} ({reason})")
    for line in unexpected:
        print(line)
    same = sum(1 for key in golden if wanted(key)) - len(unexpected) - allowed
    print(f"{same} answers as on hardware, {allowed} known differences, {len(unexpected)} unexpected, {len(fresh)} new")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
