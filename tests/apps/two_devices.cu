// Two devices, each with a working set of its own: copies between them without and with peer
// access, kernels of one that read and write the other's memory, and all of it verified after each
// device has used everything else it has.
#include "common.h"

__global__ void addFrom(uint4* out, const uint4* in, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint4 v = out[i];
  const uint4 w = in[i];
  v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
  out[i] = v;
}

namespace {

constexpr size_t kPiece = size_t{2} << 20;
constexpr int kDevices = 2;

struct Side {
  std::vector<void*> own;     // filled with seedOf(device, piece)
  std::vector<void*> copied;  // from the other device's `own`
};
Side sides[kDevices];
uint32_t seed;

uint32_t seedOf(int device, size_t piece) {
  return seed + uint32_t(device) * 1000 + uint32_t(piece);
}

void use(int device) { RUNTIME_OK(cudaSetDevice(device)); }

/// Everything on both devices is read and written once: what was in VRAM leaves it.
void walk(uint32_t value) {
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    for (void* piece : sides[d].own) apps::add(piece, kPiece, value);
    for (void* piece : sides[d].copied) apps::add(piece, kPiece, value);
  }
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    RUNTIME_OK(cudaDeviceSynchronize());
  }
}

void copyAcross(const char* how) {
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    for (size_t p = 0; p < sides[d].own.size(); ++p)
      RUNTIME_OK(cudaMemcpyPeer(sides[d].copied[p], d, sides[1 - d].own[p], 1 - d, kPiece));
  }
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    for (size_t p = 0; p < sides[d].own.size(); ++p)
      apps::verify(sides[d].copied[p], kPiece, seedOf(1 - d, p), 0, how);
  }
}

void fillOwn() {
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    for (size_t p = 0; p < sides[d].own.size(); ++p)
      apps::fill(sides[d].own[p], kPiece, seedOf(d, p));
    RUNTIME_OK(cudaDeviceSynchronize());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  seed = uint32_t(options.seed);
  apps::needTwoDevices();
  const size_t pieces = options.bytes / kPiece / 2 > 1 ? options.bytes / kPiece / 2 : 2;
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    sides[d].own.resize(pieces);
    sides[d].copied.resize(pieces);
    for (size_t p = 0; p < pieces; ++p) {
      RUNTIME_OK(cudaMalloc(&sides[d].own[p], kPiece));
      RUNTIME_OK(cudaMalloc(&sides[d].copied[p], kPiece));
      RUNTIME_OK(cudaMemset(sides[d].copied[p], 0, kPiece));
    }
  }
  fillOwn();
  copyAcross("without peer access");
  walk(7);
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    for (size_t p = 0; p < pieces; ++p)
      apps::verify(sides[d].own[p], kPiece, seedOf(d, p), 7, "after a walk");
  }

  int can = 0;
  RUNTIME_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  if (can != 0) {
    for (int d = 0; d < kDevices; ++d) {
      use(d);
      RUNTIME_OK(cudaDeviceEnablePeerAccess(1 - d, 0));
    }
    fillOwn();
    copyAcross("with peer access");
    // Kernels on each device read and write the other's memory, which the other has parked in part.
    for (int d = 0; d < kDevices; ++d) {
      use(d);
      for (size_t p = 0; p < pieces; ++p)
        addFrom<<<apps::blocks(kPiece / 16), 256>>>(static_cast<uint4*>(sides[1 - d].copied[p]),
                                                    static_cast<const uint4*>(sides[1 - d].own[p]),
                                                    kPiece / 16);
      RUNTIME_OK(cudaGetLastError());
      RUNTIME_OK(cudaDeviceSynchronize());
    }
    walk(0);
    for (int d = 0; d < kDevices; ++d) {
      use(d);
      std::vector<uint32_t> got(kPiece / 4);
      for (size_t p = 0; p < pieces; ++p) {
        RUNTIME_OK(cudaMemcpy(got.data(), sides[d].copied[p], kPiece, cudaMemcpyDefault));
        for (size_t i = 0; i < got.size(); ++i) {
          const uint32_t expected = apps::word(uint32_t(i / 4), seedOf(1 - d, p)) +
                                    apps::word(uint32_t(i / 4), seedOf(d, p)) + 2 * uint32_t(i % 4);
          CHECK(got[i] == expected, "device %d, piece %zu: word %zu is %#x, expected %#x", d, p, i,
                got[i], expected);
        }
      }
    }
  }
  // Memory that one device gives back the other can have.
  use(0);
  for (void* piece : sides[0].copied) RUNTIME_OK(cudaFree(piece));
  use(1);
  for (size_t p = 0; p < pieces; ++p) {
    void* more = nullptr;
    RUNTIME_OK(cudaMalloc(&more, kPiece));
    apps::fill(more, kPiece, seed + uint32_t(p));
    apps::verify(more, kPiece, seed + uint32_t(p), 0, "new memory");
    RUNTIME_OK(cudaFree(more));
  }
  return apps::ok("two devices, %zu MiB on each%s", 2 * pieces * kPiece >> 20,
                  can != 0 ? ", peers" : "");
}
