// A linked list that the CPU builds in memory of its own, with the addresses that the nodes will
// have on the GPU, and copies there as whole buffers: pageable, pinned, and in a stream of its own.
// Half of the buffers are managed memory. A launch names the head only, which is copied last.
#include <algorithm>

#include "common.h"
#include "list_nodes.h"

using apps::Node;

struct Head {
  Node* first;
  unsigned long long sum;
  uint32_t length;
};

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  constexpr size_t kPieces = 8, kNodes = 320, kPerPiece = kNodes / kPieces;
  const size_t piece = (std::max(options.bytes / 2 / kPieces, size_t{512} << 10)) & ~size_t{4095};
  apps::Pressure pressure(options.bytes / 2);
  std::vector<char*> memory(kPieces), host(kPieces);
  for (size_t p = 0; p < kPieces; ++p) {
    RUNTIME_OK(p % 2 == 0 ? cudaMalloc(&memory[p], piece) : cudaMallocManaged(&memory[p], piece));
    if (p % 4 < 2)
      RUNTIME_OK(cudaMallocHost(&host[p], piece));
    else
      host[p] = static_cast<char*>(std::malloc(piece));
    std::memset(host[p], 0, piece);
  }
  char* head;
  RUNTIME_OK(cudaMalloc(&head, piece));
  std::vector<char> head_host(piece);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<std::pair<size_t, size_t>> places;  // piece, offset
  const size_t slot = piece / kPerPiece & ~size_t{15};
  for (size_t i = 0; i < kNodes; ++i) places.emplace_back(i % kPieces, i / kPieces * slot);
  for (uint32_t round = 1; round <= 3; ++round) {
    for (size_t i = kNodes - 1; i > 0; --i) std::swap(places[i], places[random.below(i + 1)]);
    unsigned long long expected = 0;
    const auto nodeAt = [&](size_t i, const std::vector<char*>& where) {
      return reinterpret_cast<Node*>(where[places[i].first] + places[i].second);
    };
    for (size_t i = 0; i < kNodes; ++i) {
      *nodeAt(i, host) = {i + 1 < kNodes ? nodeAt(i + 1, memory) : nullptr, uint32_t(random.next()),
                          0};
      expected = expected * 31 + nodeAt(i, host)->value;
    }
    for (size_t p = 0; p < kPieces; ++p) {
      if (p % 3 == 0)
        RUNTIME_OK(cudaMemcpy(memory[p], host[p], piece, cudaMemcpyDefault));
      else
        RUNTIME_OK(cudaMemcpyAsync(memory[p], host[p], piece, cudaMemcpyDefault, stream));
    }
    const Head begin{nodeAt(0, memory), 0, 0};
    std::memcpy(head_host.data(), &begin, sizeof begin);
    RUNTIME_OK(cudaMemcpyAsync(head, head_host.data(), piece, cudaMemcpyHostToDevice, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    auto* const there = reinterpret_cast<Head*>(head);
    apps::walk<<<1, 1>>>(&there->first, &there->sum, &there->length);
    pressure.apply();
    Head end;
    RUNTIME_OK(cudaMemcpy(&end, head, sizeof end, cudaMemcpyDeviceToHost));
    CHECK(end.length == kNodes && end.sum == expected, "round %u: %u nodes, sum %#llx not %#llx",
          round, end.length, end.sum, expected);
  }
  pressure.check();
  for (size_t p = 0; p < kPieces; ++p) {
    RUNTIME_OK(cudaFree(memory[p]));
    if (p % 4 < 2)
      RUNTIME_OK(cudaFreeHost(host[p]));
    else
      std::free(host[p]);
  }
  RUNTIME_OK(cudaFree(head));
  return apps::ok("a list of %zu nodes, copied", kNodes);
}
