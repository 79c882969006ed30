#include "interpose/forward/node_calls.h"

#include <utility>

#include "interpose/forward/session_parts.h"

namespace olpager::forward {

Session* sessionOf(const Target& target) {
  return Route().handle(target.graph).handle(target.node).handle(target.exec).session();
}

void put(Call& call, const Target& target) {
  call.value(target.what);
  call.value(reinterpret_cast<uint64_t>(target.graph));
  call.value(reinterpret_cast<uint64_t>(target.node));
  call.value(reinterpret_cast<uint64_t>(target.exec));
  call.value(static_cast<uint64_t>(target.dependencies != nullptr ? target.count : 0));
  call.array(target.dependencies, target.count);
}

CUresult finish(Call& call, CUgraphNode* made) {
  const CUresult result = call.sync();
  if (!call.answered() || made == nullptr) return result;
  *made = call.takeHandle<CUgraphNode>();
  return call.taken(result);
}

void keepTold(const Session& session, CUgraphNode node, std::unique_ptr<ToldParameters> made) {
  ToldNodes& all = *session.parts().told_nodes;
  const std::lock_guard lock(all.mutex);
  all.of[reinterpret_cast<uint64_t>(node)] = std::move(made);
}

CUresult ask(Call& call, CUgraphNode node, NodeKind kind) {
  constexpr uint64_t kMostHandles = 3;
  call.names(kMostHandles);
  call.value(reinterpret_cast<uint64_t>(node));
  call.value(kind);
  return call.sync();
}

}  // namespace olpager::forward
