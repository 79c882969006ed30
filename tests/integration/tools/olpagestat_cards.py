#!/usr/bin/env python3
"""olpagestat beside NVML: what the cards of the machine tell, nothing where they tell nothing, and
what the programs' own counters tell where there is no NVML.

olpagestat_cards.py --olpagestat P --olrun P --fake-nvml FOLDER
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

SCRIPT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for done in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
             cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
             cuda.cuMemAlloc_v2(ctypes.byref(memory), 8 << 20),
             cuda.cuMemsetD8_v2(memory, 1, ctypes.c_size_t(8 << 20))):
    assert done == 0, done
print("ready", flush=True)
sys.stdin.read()
"""


def lines_of_cards(text):
    return [line for line in text.splitlines() if line.startswith("card")]


def main():
    parser = argparse.ArgumentParser()
    for name in ("--olpagestat", "--olrun", "--fake-nvml"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-cards-") as scratch:

        def told(cards, *words, nvml=options.fake_nvml):
            env = dict(os.environ, XDG_RUNTIME_DIR=scratch, FAKE_NVML_CARDS=str(cards),
                       FAKE_NVML_TOTAL="256", FAKE_NVML_USED="100")
            env["LD_LIBRARY_PATH"] = nvml + ":" + env.get("LD_LIBRARY_PATH", "")
            folder = os.path.join(scratch, "olpager")
            os.makedirs(folder, mode=0o700, exist_ok=True)
            return subprocess.run([options.olpagestat, "--folder", folder, *words],
                                  capture_output=True, text=True, env=env, check=True).stdout

        text = told(2, "--once")
        first, second = lines_of_cards(text)
        assert first == "card 0: ?, 100M of 256M used, busy 10%; 2 processes beside these have " \
                        "7.0M", text
        # Nothing is said of its processes: nobody knows them.
        assert second == "card 1: ?, 100M of 256M used, busy 11%", text
        all_told = json.loads(told(2, "--json"))
        cards = all_told["cards"]
        assert all_told["cards_note"] is None, all_told
        assert [card["number"] for card in cards] == [0, 1] and cards[0]["bytes"] == 256 << 20, cards
        assert cards[0]["used_bytes"] == 100 << 20 and cards[1]["gpu_percent"] == 11, cards
        assert cards[0]["processes"] == [{"pid": 1, "bytes": 3 << 20},
                                         {"pid": 2, "bytes": 4 << 20}], cards
        assert "processes" not in cards[1] and "name" not in cards[0], cards
        assert not lines_of_cards(told(0, "--once")), "cards that are not there"
        all_told = json.loads(told(0, "--json"))
        assert all_told["cards"] == [] and all_told["cards_note"] == "NVML tells of no card", all_told

        # A library that can't be loaded, whatever this machine has.
        without = os.path.join(scratch, "without")
        os.mkdir(without)
        with open(os.path.join(without, "libnvidia-ml.so.1"), "w", encoding="utf-8"):
            pass
        assert not lines_of_cards(told(0, "--once", nvml=without)), "no program uses a GPU"
        program = subprocess.Popen(
            [options.olrun, "--driver", "sim", "--vram", "64MiB", "--", sys.executable, "-c", SCRIPT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=dict(os.environ, XDG_RUNTIME_DIR=scratch, XDG_CONFIG_HOME=scratch))
        try:
            assert program.stdout.readline() == "ready\n"
            lines = lines_of_cards(told(0, "--once", nvml=without))
            assert len(lines) == 1, lines
            assert lines[0].startswith("cards: these programs have 8.0M of VRAM, of budgets of 64.0M; "
                                       "what else is on the cards is not known: NVML can't be "
                                       "loaded: "), lines
            assert "libnvidia-ml.so.1" in lines[0], lines
            note = json.loads(told(0, "--json", nvml=without))["cards_note"]
            assert note.startswith("NVML can't be loaded: "), note
            # With NVML that knows a card, the card tells.
            assert "card 0: ?, 100M of 256M used" in told(1, "--once"), told(1, "--once")
        finally:
            program.stdin.close()
            program.wait()
    print("OK")


main()
