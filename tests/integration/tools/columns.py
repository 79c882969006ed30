#!/usr/bin/env python3
"""tools/columns: no line of the project's is longer than it may be, and one that is is found.

columns.py PROJECT real|planted
"""
import pathlib
import subprocess
import sys
import tempfile

project, case = pathlib.Path(sys.argv[1]), sys.argv[2]


def run(*files):
    return subprocess.run([sys.executable, "-B", project / "tools/columns", *files], capture_output=True, text=True, timeout=60)


def real():
    done = run()
    print(done.stdout, done.stderr)
    sys.exit(done.returncode)


def planted():
    with tempfile.TemporaryDirectory() as folder:
        def says(name, text, *lines):
            path = pathlib.Path(folder) / name
            path.write_text(text, encoding="utf-8")
            done = run(path)
            assert done.returncode == (1 if lines else 0), (text, done)
            assert [int(line.split(":")[1]) for line in done.stdout.splitlines()] == list(lines), (text, done)

        long = "x " * 50 + "y"
        says("fine.h", "// " + "\u00e4" * 97 + "\n")  # columns, not bytes
        says("long.h", f"int a;\n// {long}\n", 2)
        says("raw.cpp", f'auto text = R"(\n{long}\n)";\n// {long}\n', 4)
        says("named.cpp", f'auto text = R"end(\n)"\n{long}\n)end";\n')
        says("page.md", f"{long}\n\n| {long} |\n\n```\n{long}\n```\n{long}\n", 1, 8)
        says("nested.md", f"````\n```\n{long}\n````\n{long}\n", 5)
        says("link.md", f"See [the page](https://{'a' * 100}) there.\n`{'b' * 101}`\n[x](y) {long}\n", 3)
        says("indented.md", f"    {long}\n  {long}\n", 2)


{"real": real, "planted": planted}[case]()
