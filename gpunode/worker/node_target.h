// The place where a node of a graph is, or goes, as a client says it.
#pragma once

#include "forwarding/wire/launch_wire.h"
#include "gpunode/worker/invocation.h"

namespace olpager::gpunode {

struct NodeTarget {
  forward::NodeCall what{};
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  uint64_t count = 0;
  CUgraphNode* dependencies = nullptr;
};

inline NodeTarget readTarget(Invocation& in) {
  NodeTarget target;
  target.what = in.value<forward::NodeCall>();
  target.graph = in.handle<CUgraph>();
  target.node = in.handle<CUgraphNode>();
  target.exec = in.handle<CUgraphExec>();
  target.count = in.value<uint64_t>();
  target.dependencies = in.handles<CUgraphNode>(target.count);
  if (target.what > forward::NodeCall::kSetExec) in.arguments().fail();
  return target;
}

/// `node`: by reference, since it is made while the arguments are.
inline CUresult made(Invocation& in, const NodeTarget& target, CUresult result,
                     const CUgraphNode& node) {
  if (result == CUDA_SUCCESS && target.what == forward::NodeCall::kAdd)
    in.results().value(in.numberFor(node));
  return result;
}

}  // namespace olpager::gpunode
