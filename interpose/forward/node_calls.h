// Calls about nodes of graphs whose parameters are written by hand: where a node is or goes, and
// the parameters that a program was told. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "forwarding/wire/launch_wire.h"
#include "interpose/forward/call.h"

namespace olpager::forward {

/// The place in a graph: for kAdd the graph and the dependencies, for the others the node.
struct Target {
  NodeCall what;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
};

Session* sessionOf(const Target& target);
void put(Call& call, const Target& target);
/// Makes it. `made`: where the node goes that was added.
CUresult finish(Call& call, CUgraphNode* made);

/// Parameters of a node that a program was told: a kernel's block and pointers into it, who may use
/// allocated memory, operations of streams.
struct ToldParameters {
  std::vector<std::byte> block;
  std::vector<void*> pointers;  // into the block; of one that was given as such: what `extra` is
  size_t bytes = 0;             // of the block, as `extra` says it
};
/// The told parameters of a session's nodes.
struct ToldNodes {
  std::mutex mutex;  // a leaf
  std::unordered_map<uint64_t, std::unique_ptr<ToldParameters>> of;
};
/// The parameters stay until the program asks for the same node again.
void keepTold(const Session& session, CUgraphNode node, std::unique_ptr<ToldParameters> made);
/// Asks for them. The parameters may have handles: a kernel's function and context, or arrays.
CUresult ask(Call& call, CUgraphNode node, NodeKind kind);

}  // namespace olpager::forward
