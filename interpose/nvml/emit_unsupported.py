"""usage: emit_unsupported.py names out   Writes a C++ file with a function for each name that says that it is not supported."""

import sys

names_file, out = sys.argv[1:]
with open(names_file, encoding="utf-8") as stream:
    names = [line.strip() for line in stream if line.strip() and not line.startswith("#")]
assert len(names) == len(set(names)), f"{names_file}: a name twice"
with open(out, "w", encoding="utf-8") as stream:
    stream.write('#include "interpose/nvml/unsupported.h"\n\n')
    for name in names:
        stream.write(f'extern "C" __attribute__((visibility("default"))) int {name}() '
                     f'{{ return olpager::nvml::unsupported("{name}"); }}\n')
