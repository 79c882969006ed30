#!/usr/bin/env python3
"""The documents hold together: every relative link of a Markdown file leads to a file, and to a heading where it names one;
what is installed links to nothing that is not; every docs/*.md that a source file or a man page names is there; no line of
Markdown has more than 100 columns outside of code and tables, the targets of links not counted.

documents.py ROOT
"""
import os
import re
import sys

COLUMNS = 100
# What the top meson.build installs below share/doc/olpager beside docs/ itself.
INSTALLED = {"README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "LICENSE"}
SOURCES = (".md", ".h", ".cpp", ".cu", ".py", ".api", ".build", ".m", ".supp", ".1", ".8", ".toml", ".sh", "")
LINK = re.compile(r"\[[^\]\[]*\]\(([^()\s]+)\)")
# docs/reference/functions.md is made by the build.
NAMED = re.compile(r"\bdocs/(?!reference/functions\.md)[\w./-]*\w\.md\b")


def files(root):
    """Every file of the project; no folder that a build has made, nor one that begins with a dot."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and
                            not os.path.exists(os.path.join(folder, name, "meson-private")) and name != "__pycache__")
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)


def prose(text):
    """(number, line) of each line that is no code; code spans inside are kept."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
        elif not fenced and not re.match(r" {4,}(?![-*\d])", line):
            yield number, line


def anchors(text):
    """What a link's fragment may name: headings as GitHub makes anchors of them."""
    found = set()
    for _, line in prose(text):
        heading = re.match(r"#+ +(.*?)\s*$", line)
        if heading:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower()
            found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def main():
    root = os.path.abspath(sys.argv[1])
    read = {}
    for path in files(root):
        if os.path.splitext(path)[1] in SOURCES:
            try:
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    read[path] = file.read()
            except UnicodeDecodeError:
                pass  # no text
    wrong = []
    documents = {path: text for path, text in read.items() if path.endswith(".md")}
    links = 0
    for path, text in documents.items():
        for number, line in prose(text):
            where = f"{path}:{number}"
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", target):
                    continue
                links += 1
                name, _, fragment = target.partition("#")
                to = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
                if not os.path.exists(os.path.join(root, to)):
                    wrong.append(f"{where}: {target}: there is no {to}")
                elif fragment and fragment not in anchors(documents.get(to, "")):
                    wrong.append(f"{where}: {target}: {to} has no such heading")
                elif path.startswith("docs/") and not to.startswith("docs/") and to not in INSTALLED:
                    wrong.append(f"{where}: {target}: {to} is not installed where this document is")
            shown = re.sub(r"\]\([^()\s]+\)", "]", line)
            if len(shown) > COLUMNS and not line.lstrip().startswith("|"):
                wrong.append(f"{where}: {len(shown)} columns, {COLUMNS} at most")
    for path, text in read.items():
        for number, line in enumerate(text.splitlines(), 1):
            for name in NAMED.findall(line.replace("\\-", "-")):
                if not os.path.exists(os.path.join(root, name)):
                    wrong.append(f"{path}:{number}: there is no {name}")
    assert len(documents) > 10 and links > 50, f"{len(documents)} documents with {links} links: is {root} the project?"
    print("\n".join(wrong) if wrong else f"{len(documents)} documents, {links} links")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
