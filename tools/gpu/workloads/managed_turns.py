"""Managed memory that the CPU and the GPU use in turns: how fast it gets from the one to the other.

managed_turns.py [MIB]   prints GB/s of each way, the best of three rounds, and checks every word
"""
import ctypes
import sys
import time

import cupy
import numpy

MIB = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
WORDS = (MIB << 20) // 4

memory = cupy.cuda.malloc_managed(WORDS * 4)
there = cupy.ndarray((WORDS,), cupy.uint32, memory)
here = numpy.ctypeslib.as_array(ctypes.cast(memory.ptr, ctypes.POINTER(ctypes.c_uint32)), (WORDS,))
expected = numpy.arange(WORDS, dtype=numpy.uint32)
add = cupy.ElementwiseKernel("uint32 by", "uint32 x", "x += by", "add")
small = cupy.zeros(4, cupy.uint32)
add(cupy.uint32(1), small)  # compiled
cupy.cuda.runtime.deviceSynchronize()


def timed(what):
    begin = time.perf_counter()
    what()
    return time.perf_counter() - begin


def on_gpu():
    add(cupy.uint32(1), there)
    cupy.cuda.runtime.deviceSynchronize()


best = {}


def note(name, seconds):
    best[name] = max(best.get(name, 0), WORDS * 4 / seconds / 1e9)


for turn in range(3):
    here[:] = expected
    note("GPU touches what the CPU wrote", timed(on_gpu))
    note("CPU reads what the GPU wrote", timed(lambda: here[::1024].sum()))
    if not (here == expected + 1).all():
        sys.exit("managed_turns: the CPU reads other words than the GPU wrote")
    note("GPU touches what the CPU read", timed(on_gpu))
    begin = time.perf_counter()
    word = int(here[WORDS // 2])
    best["CPU fault, us"] = min(best.get("CPU fault, us", 1e9), (time.perf_counter() - begin) * 1e6)
    if word != int(expected[WORDS // 2]) + 2:
        sys.exit("managed_turns: a word is another one than the GPU wrote")
print(f"{MIB} MiB: " + ", ".join(f"{name} {value:.1f}" for name, value in best.items()))
