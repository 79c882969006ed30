// A linked list through many allocations: the launch names only the head. Built by the CPU,
// relinked by the GPU, walked again after its nodes were the victims of evictions.
#include <algorithm>

#include "common.h"
#include "list_nodes.h"

using apps::Node;

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  const size_t pieces = 12, piece = (options.bytes / 2 / pieces) & ~size_t{255};
  constexpr size_t kNodes = 600;
  std::vector<char*> memory(pieces);
  for (char*& p : memory) {
    RUNTIME_OK(cudaMalloc(&p, piece));
    RUNTIME_OK(cudaMemset(p, 0xff, piece));  // words that are no addresses
  }
  std::vector<Node*> places;
  for (size_t i = 0; i < kNodes; ++i) {
    // Distinct slots: each piece is cut into as many as it may get.
    const size_t slot = piece / (kNodes / pieces) & ~size_t{15};
    places.push_back(reinterpret_cast<Node*>(memory[i % pieces] + (i / pieces) * slot));
  }
  for (size_t i = kNodes - 1; i > 0; --i) std::swap(places[i], places[random.below(i + 1)]);
  std::vector<uint32_t> values(kNodes);
  for (size_t i = 0; i < kNodes; ++i) {
    values[i] = uint32_t(random.next());
    const Node node{i + 1 < kNodes ? places[i + 1] : nullptr, values[i], 0};
    RUNTIME_OK(cudaMemcpy(places[i], &node, sizeof node, cudaMemcpyHostToDevice));
  }
  Node** head;
  unsigned long long* sum;
  uint32_t* length;
  RUNTIME_OK(cudaMalloc(&head, sizeof *head));
  RUNTIME_OK(cudaMalloc(&sum, sizeof *sum));
  RUNTIME_OK(cudaMalloc(&length, sizeof *length));
  RUNTIME_OK(cudaMemcpy(head, &places[0], sizeof *head, cudaMemcpyHostToDevice));
  apps::Pressure pressure(options.bytes / 2);
  for (int round = 0; round < 4; ++round) {
    pressure.apply();
    apps::walk<<<1, 1>>>(head, sum, length);
    unsigned long long got, expected = 0;
    uint32_t count;
    RUNTIME_OK(cudaMemcpy(&got, sum, sizeof got, cudaMemcpyDeviceToHost));
    RUNTIME_OK(cudaMemcpy(&count, length, sizeof count, cudaMemcpyDeviceToHost));
    for (uint32_t v : values) expected = expected * 31 + v;
    CHECK(count == kNodes && got == expected,
          "round %d: %u nodes with sum %llu, expected %zu with %llu", round, count, got, kNodes,
          expected);
    pressure.apply();
    apps::reverse<<<1, 1>>>(head);
    std::reverse(values.begin(), values.end());
  }
  RUNTIME_OK(cudaGetLastError());
  for (Node* place : places) {
    Node node;
    RUNTIME_OK(cudaMemcpy(&node, place, sizeof node, cudaMemcpyDeviceToHost));
    CHECK(node.visits == 4, "a node was visited %u times", node.visits);
  }
  pressure.check();
  return apps::ok("linked_list of %zu nodes in %zu allocations", kNodes, pieces);
}
