"""usage: add_exports.py version-script out name...   Adds names to the global ones of a linker's version script."""

import sys

source, out, names = sys.argv[1], sys.argv[2], sys.argv[3:]
with open(source, encoding="utf-8") as stream:
    head, middle, rest = stream.read().partition("  global:\n")
assert middle, f"{source}: no `global:` line"
with open(out, "w", encoding="utf-8") as stream:
    stream.write(head + middle + "".join(f"    {name};\n" for name in names) + rest)
