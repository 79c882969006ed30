"""CuPy over the toolkit's libraries: what each part computed, rounded or hashed, so that runs can be compared.

cupy_suite.py [PART...]   without any: all of them
"""
import hashlib
import sys

import cupy
import numpy


def digest(array):
    return hashlib.sha256(cupy.asnumpy(array).tobytes()).hexdigest()[:16]


def rounded(value):
    return f"{float(value):.5e}"


def inputs(shape, seed, dtype=numpy.float32):
    return cupy.asarray(numpy.random.default_rng(seed).standard_normal(shape).astype(dtype))


def fft():
    signal = inputs((8, 4096), 1) + 1j * inputs((8, 4096), 2)
    there = cupy.fft.fft(signal)
    back = cupy.fft.ifft(there)
    assert float(cupy.abs(back - signal).max()) < 1e-4
    image = inputs((256, 384), 3)
    spectrum = cupy.fft.rfft2(image)
    assert float(cupy.abs(cupy.fft.irfft2(spectrum, s=image.shape) - image).max()) < 1e-4
    expected = numpy.fft.rfft2(cupy.asnumpy(image).astype(numpy.float64))
    assert float(numpy.abs(cupy.asnumpy(spectrum) - expected).max()) < 1e-2
    return rounded(cupy.abs(there).sum()), rounded(cupy.abs(spectrum).sum())


def linalg():
    matrix = inputs((300, 200), 4, numpy.float64)
    u, s, vt = cupy.linalg.svd(matrix, full_matrices=False)
    assert float(cupy.abs((u * s) @ vt - matrix).max()) < 1e-9
    square = inputs((400, 400), 5, numpy.float64) + 20 * cupy.eye(400)
    right = inputs((400, 7), 6, numpy.float64)
    x = cupy.linalg.solve(square, right)
    assert float(cupy.abs(square @ x - right).max()) < 1e-9
    return rounded(s.sum()), rounded(s[-1]), rounded(cupy.abs(x).sum())


def random():
    said = []
    for generator in (cupy.random.XORWOW, cupy.random.Philox4x3210):
        first = cupy.random.Generator(generator(11)).random(1 << 20, dtype=numpy.float32)
        again = cupy.random.Generator(generator(11)).random(1 << 20, dtype=numpy.float32)
        assert bool((first == again).all()) and abs(float(first.mean()) - 0.5) < 0.01
        said.append(digest(first))
    cupy.random.seed(5)
    said.append(digest(cupy.random.standard_normal(1 << 18, dtype=numpy.float32)))
    return said


def kernel():
    """Compiled by NVRTC; the second run of the program finds it in the library's own cache."""
    scale = cupy.RawKernel(r"""
        extern "C" __global__ void scale(const float* in, float* out, float factor, int n) {
          const int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) out[i] = in[i] * factor + i % 7;
        }""", "scale")
    count = 1 << 20
    source = inputs(count, 7)
    out = cupy.empty_like(source)
    scale((count // 256,), (256,), (source, out, numpy.float32(1.5), numpy.int32(count)))
    expected = cupy.asnumpy(source) * numpy.float32(1.5) + (numpy.arange(count) % 7).astype(numpy.float32)
    assert numpy.allclose(cupy.asnumpy(out), expected, rtol=1e-6, atol=1e-6)
    fused = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x > y ? x - y : y * 2", "fused")
    return digest(out), digest(fused(source, out)), rounded(cupy.sort(source)[:1000].sum()), rounded(source.std())


def matmul():
    said = []
    for dtype, bound in ((numpy.float16, 0.5), (numpy.float32, 1e-2)):
        a, b = inputs((512, 768), 8, dtype), inputs((768, 640), 9, dtype)
        c = a @ b
        expected = cupy.asnumpy(a).astype(numpy.float64) @ cupy.asnumpy(b).astype(numpy.float64)
        assert float(numpy.abs(cupy.asnumpy(c) - expected).max()) < bound
        said.append(rounded(cupy.abs(c.astype(numpy.float64)).sum()))
    return said


def streams():
    """Copies of pinned memory and products on two streams, ordered by events."""
    pinned = cupy.cuda.alloc_pinned_memory(4 << 20)
    host = numpy.frombuffer(pinned, numpy.float32, 1 << 20)
    host[:] = numpy.random.default_rng(10).standard_normal(1 << 20).astype(numpy.float32)
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    there = cupy.empty((1024, 1024), numpy.float32)
    with first:
        there.set(host.reshape(1024, 1024), stream=first)
        squared = there @ there
        done = first.record()
    second.wait_event(done)
    with second:
        result = squared.sum(axis=0)
        back = result.get(stream=second)
    second.synchronize()
    return [rounded(numpy.abs(back.astype(numpy.float64)).sum())]


PARTS = {part.__name__: part for part in (fft, linalg, random, kernel, matmul, streams)}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        print(name, *PARTS[name](), flush=True)
