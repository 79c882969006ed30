#!/usr/bin/env python3
"""Writes a C++ file that holds the parts of the report's page: embed.py OUTPUT NAME=FILE...

Each NAME is a function of tools/olpagestat/page_parts.h. The texts become arrays of numbers: string
literals have a length limit in ISO C++.
"""
import sys


def main():
    target, *parts = sys.argv[1:]
    with open(target, 'w', encoding='ascii') as file:
        file.write('#include "tools/olpagestat/page_parts.h"\n\nnamespace olpager::tools::page {\n')
        for part in parts:
            name, path = part.split('=', 1)
            with open(path, 'rb') as source:
                text = source.read()
            # These would end the element that the text is put into.
            assert b'</script' not in text and b'</style' not in text and b'<!--' not in text, path
            # Bytes above 127 would be narrowed where char is signed.
            numbers = [str(byte if byte < 128 else byte - 256) for byte in text]
            rows = [', '.join(numbers[i:i + 32]) for i in range(0, len(numbers), 32)]
            file.write(f'\nstd::string_view {name}() {{\n  static constexpr char kText[] = {{\n    '
                       + ',\n    '.join(rows) + '};\n  return {kText, sizeof kText};\n}\n')
        file.write('\n}  // namespace olpager::tools::page\n')


main()
