#include "interpose/forward/block_calls.h"

#include "interpose/forward/session.h"
#include "interpose/forward/sessions.h"

namespace olpager::forward {

void makeRegions(Block& block, void* address, uint64_t bytes, int fd) {
  for (const Session* const session : sessions()) {
    auto region = transport::registerMemory(session->domain(), {address, bytes, fd, 0},
                                            transport::kRemoteReadWrite);
    // At the session's first side: one key for all of its workers.
    if (region.ok()) block.sides[session->slot()].region = std::move(region).value();
  }
}

std::unique_ptr<Call> allocCall(Session* session, uint64_t address, uint64_t bytes,
                                const transport::RegionPtr& region, bool has_descriptor,
                                bool registered) {
  auto call = std::make_unique<Call>(Operation::kHostAlloc, session);
  call->value(address);
  call->value(bytes);
  call->value(has_descriptor && region != nullptr ? region->key() : transport::RemoteKey{});
  call->value(static_cast<uint8_t>(registered));
  return call;
}

std::unique_ptr<Call> freeCall(Session* session, uint64_t address) {
  auto call = std::make_unique<Call>(Operation::kHostFree, session);
  call->value(address);
  call->mayWait();
  return call;
}

void takeBack(Session* session, uint64_t address) {
  const auto call = freeCall(session, address);
  call->ofOurOwn();
  (void)call->sync();
}

void takeBack(const std::vector<SideMade>& made, uint64_t address) {
  const Session* last = nullptr;
  for (const SideMade& one : made) {  // a session's are behind one another
    if (one.session != last) takeBack(one.session, address);
    last = one.session;
  }
}

namespace {

BlockSide::Kind kindOf(Reader& reply) {
  return reply.value<uint8_t>() != 0 ? BlockSide::Kind::kShared : BlockSide::Kind::kExchanged;
}

}  // namespace

void addSides(Call& answered, std::vector<SideMade>& made) {
  Session* const session = answered.session();
  answered.eachAnswer([&](unsigned executor, Reader reply) {
    made.push_back({session, session->executors()[executor]->slot(), kindOf(reply)});
  });
}

BlockSide::Kind kindIn(Call& answered) { return kindOf(answered.reply()); }

}  // namespace olpager::forward
