#!/usr/bin/env python3
"""tools/sentences: no file of the project's got worse, and one that did is found.

sentences.py PROJECT real|planted
"""
import pathlib
import subprocess
import sys
import tempfile

project, case = pathlib.Path(sys.argv[1]), sys.argv[2]


def run(*arguments):
    return subprocess.run([sys.executable, "-B", project / "tools/sentences", *arguments], capture_output=True, text=True, timeout=60)


def real():
    done = run()
    print(done.stdout, done.stderr)
    sys.exit(done.returncode)


def planted():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        counts = folder / "counts"

        def shown(file, text):
            path = folder / file
            path.write_text(text, encoding="utf-8")
            done = run("--root", folder, "--counts", counts, "--show", path)
            assert done.returncode == 0, done
            return [line.split(":", 2)[1] + ":" + line.split(":", 2)[2].split()[0] for line in done.stdout.splitlines()]

        # Sentences of comments, over lines too; not strings, code, or what ends a line of code as a part of a sentence.
        assert shown("a.h", "// What is here.\n// A page. It is\n// there. Of those, two.\n\n// Who asks?\n") == ["1:What", "2:It", "3:Of"]
        assert shown("b.cpp", 'auto text = "// What is here.";\nint it;  // what it is\n/* Where\n * it is. */\n') == ["3:Where"]
        assert shown("c.h", 'auto text = R"(\n// What is here.\n)";\n// This is told. This page is not, e.g. It.\n') == ["4:This"]
        assert shown("d.h", "// A list:\n// - What is here\n//\n// Whether it is.\n") == ["2:What", "4:Whether"]
        # Pages: no code and no headings; items and cells are sentences.
        assert shown("e.md", "# What\n\nA page (8 GiB.) They go.\n\n```\nWhat\n```\n\n- Which one\n\n| it | Of both |\n") == ["3:They", "9:Which", "11:Of"]
        # A file may have what is listed, and no more of either kind.
        path = folder / "f.md"
        path.write_text("What is. Of it. They go.\n")
        asked = ("--root", folder, "--counts", counts, path)
        done = run(*asked)
        assert done.returncode == 1 and "f.md: 2 sentences begin with question words, of 0 at most" in done.stdout and "1 sentences begin with pronouns" in done.stdout, done
        assert run("--update", *asked).returncode == 0 and counts.read_text() == "2 1 f.md\n", counts.read_text()
        assert run(*asked).returncode == 0
        path.write_text("What is. They go. It goes.\n")
        done = run(*asked)
        assert done.returncode == 1 and "f.md: 2 sentences begin with pronouns, of 1 at most" in done.stdout and "question" not in done.stdout, done


{"real": real, "planted": planted}[case]()
