"""The simulated GPU has every version of the functions that it has: what is counted is symbols, not names of functions.

usage: versions.py SPECIFICATION_FOLDER LIBRARY

A function that it does not have is a weak definition, the generated default. Left out are the versions whose addresses have 32 bits.
"""

import glob
import os
import subprocess
import sys

sys.dont_write_bytecode = True
folder, library = sys.argv[1:]
sys.path.insert(0, folder)
import specification  # noqa: E402  (found through the folder)

spec = specification.read_files(sorted(glob.glob(os.path.join(folder, "*.api"))))
symbols = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
kinds = {fields[2]: fields[1] for fields in (line.split() for line in symbols.splitlines())}
assert all(kinds.get(s.name) in ("T", "W") for s in spec.symbols()), "a symbol is not there"
has = {s.name for s in spec.symbols() if kinds[s.name] == "T"}
assert len(has) > 400, len(has)
lacking = [s.name for f in spec.functions for s in f.symbols()
           if s.name not in has and not s.form.short_addresses and any(other.name in has for other in f.symbols())]
if lacking:
    sys.exit("the simulated GPU has another version of these: " + ", ".join(lacking))
