#!/usr/bin/env python3
"""Writes a C++ file that holds a PTX text as a NUL-terminated string: embed_ptx.py input.ptx output.cpp ptxas FUNCTION

FUNCTION is what returns it, declared in the header that is named as the input is.

The text becomes an array of numbers: string literals have a length limit in ISO C++.
"""
import os
import subprocess
import sys
import tempfile


def main() -> None:
    source, target, ptxas, function = sys.argv[1:]
    header = os.path.splitext(os.path.basename(source))[0] + ".h"
    with open(source, "rb") as file:
        # Comments and blank lines say nothing to the driver; the build's folder names stay out of the library.
        lines = [line for line in file.read().splitlines() if not line.strip().startswith(b"//") and line.strip()]
    # nvcc stamps the text with its own version, which older drivers refuse to compile. What the kernels use is all in
    # PTX 6.4, the version that knows compute_75 and that every driver since 418 takes; the build checks it with ptxas.
    lines = [b".version 6.4" if line.startswith(b".version ") else line for line in lines]
    text = b"\n".join(lines) + b"\n\0"
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(text[:-1])
        file.flush()
        subprocess.run([ptxas, "-arch=sm_90", "-o", os.devnull, file.name], check=True)
    rows = [", ".join(str(byte) for byte in text[i:i + 32]) for i in range(0, len(text), 32)]
    with open(target, "w", encoding="ascii") as file:
        file.write(f'#include "pager/kernels/{header}"\n\n'
                   "namespace olpager::kernels {\n\n"
                   f"const char* {function}() {{\n"
                   "  alignas(16) static constexpr char kText[] = {\n    " + ",\n    ".join(rows) + "};\n"
                   "  return kText;\n}\n\n"
                   "}  // namespace olpager::kernels\n")


if __name__ == "__main__":
    main()
