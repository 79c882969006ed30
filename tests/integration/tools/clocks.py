#!/usr/bin/env python3
"""How often the library asks for the time for what olpagestat tells: not at all for a launch that finds
all in VRAM, and some times for one that waits for pages.

clocks.py --olrun P --counter LIBRARY --program P
"""
import argparse
import os
import re
import subprocess
import tempfile

MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser()
    for name in ("--olrun", "--counter", "--program"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-clocks-") as scratch:
        env = dict(os.environ, XDG_RUNTIME_DIR=scratch, XDG_CONFIG_HOME=scratch,
                   LD_PRELOAD=os.path.abspath(options.counter))

        def asked(vram, size, rounds):
            """On the first thread, and on others."""
            done = subprocess.run(
                [options.olrun, "--driver", "sim", "--vram", f"{vram}MiB", "--", options.program,
                 "stream", "--bytes", str(size * MIB), "--rounds", str(rounds)],
                env=env, capture_output=True, text=True, timeout=200, check=False)
            assert done.returncode == 0 and "OK" in done.stdout, done
            counts = re.findall(r"clocks: (\d+) on the first thread, (\d+) on others", done.stderr)
            assert len(counts) == 1, done.stderr
            return tuple(int(count) for count in counts[0])

        few, many = 100, 5100
        first, others = (b - a for a, b in zip(asked(64, 4, few), asked(64, 4, many)))
        launches = many - few
        print(f"all in VRAM: {first / launches:.4f} on the launching thread a launch, "
              f"{others / launches:.4f} on the pager's threads")
        assert first < launches / 100, f"{first} for {launches} launches"
        few, many, blocks = 2, 6, 16
        first, others = (b - a for a, b in zip(asked(32, 4 * blocks, few), asked(32, 4 * blocks, many)))
        launches = (many - few) * blocks
        print(f"through half the room: {first / launches:.1f} on the launching thread a launch, "
              f"{others / launches:.0f} on the pager's threads")
        assert first > 0, "launches that wait note how long"
    print("OK")


if __name__ == "__main__":
    main()
