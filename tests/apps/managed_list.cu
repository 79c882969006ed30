// A linked structure in managed memory: built by the CPU, walked and changed by the GPU, walked and
// relinked by the CPU, and back. Launches name the head only; the nodes lie in many allocations,
// device memory among them.
#include <algorithm>

#include "common.h"
#include "list_nodes.h"

using apps::Node;

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  constexpr size_t kPieces = 10, kNodes = 400;
  const size_t piece = std::max(options.bytes / 2 / kPieces, size_t{128} << 10) & ~size_t{4095};
  apps::Pressure pressure(options.bytes / 2);
  std::vector<char*> memory(kPieces);
  for (char*& p : memory) RUNTIME_OK(cudaMallocManaged(&p, piece));
  struct Head {
    Node* first;
    unsigned long long sum;
    uint32_t length;
  };
  Head* head;
  RUNTIME_OK(cudaMallocManaged(&head, size_t{1} << 20));
  std::vector<Node*> places;
  const size_t slot = piece / (kNodes / kPieces) & ~size_t{15};
  for (size_t i = 0; i < kNodes; ++i)
    places.push_back(reinterpret_cast<Node*>(memory[i % kPieces] + (i / kPieces) * slot));
  for (size_t i = kNodes - 1; i > 0; --i) std::swap(places[i], places[random.below(i + 1)]);
  unsigned long long expected = 0;
  head->first = places[0];
  for (size_t i = 0; i < kNodes; ++i) {
    *places[i] = {i + 1 < kNodes ? places[i + 1] : nullptr, uint32_t(random.next()), 0};
    expected = expected * 31 + places[i]->value;
  }
  for (uint32_t round = 1; round <= 4; ++round) {
    apps::walk<<<1, 1>>>(&head->first, &head->sum, &head->length);
    RUNTIME_OK(cudaGetLastError());
    pressure.apply();
    RUNTIME_OK(cudaDeviceSynchronize());
    CHECK(head->length == kNodes && head->sum == expected,
          "round %u: %u nodes, sum %#llx not %#llx", round, head->length, head->sum, expected);
    apps::reverse<<<1, 1>>>(&head->first);
    RUNTIME_OK(cudaDeviceSynchronize());
    // The CPU walks what the GPU has relinked, moves the first node to the end, and changes values.
    expected = 0;
    size_t count = 0;
    Node* const first = head->first;
    Node* last = nullptr;
    for (Node* node = first; node != nullptr; node = node->next) {
      CHECK(node->visits == round, "round %u: node %zu was visited %u times", round, count,
            node->visits);
      node->value += round;
      last = node;
      ++count;
    }
    CHECK(count == kNodes, "round %u: the CPU finds %zu nodes", round, count);
    head->first = first->next;
    first->next = nullptr;
    last->next = first;
    for (Node* node = head->first; node != nullptr; node = node->next)
      expected = expected * 31 + node->value;
  }
  pressure.check();
  for (char* p : memory) RUNTIME_OK(cudaFree(p));
  RUNTIME_OK(cudaFree(head));
  return apps::ok("a list of %zu nodes in managed memory", kNodes);
}
