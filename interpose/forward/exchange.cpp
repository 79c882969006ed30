#include "interpose/forward/exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/own_memory.h"
#include "interpose/forward/addresses.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/block_table.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/counted_links.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/stand_ins.h"
#include "interpose/forward/streams.h"
#include "interpose/forward/unsent.h"

namespace olpager::forward {
namespace {

// Under mutex. With several executors, another one may be active when a launch is sent: a block
// named for one is named for all. Returns true if it was not named before.
bool nameAtAll(BlockTable& all, const Session& session, uint64_t address) {
  bool any = false;
  for (const unsigned side : session.sides()) any = all.name(side, address) || any;
  return any;
}

// Under mutex. Takes the program's changes in a block, as runs; agreed on from now on. Returns true
// if it names blocks that were not named before.
bool takeChanges(BlockTable& all, const Session& session, unsigned slot, uint64_t base,
                 Block& block, std::vector<std::byte>& runs) {
  const size_t before = runs.size();
  const std::span<std::byte> agreed = block.sides[slot].agreed;
  if (block.registered) {
    appendChangesUnlessGone(block.there, base, agreed, runs);
  } else {
    appendChanges(block.there, reinterpret_cast<const std::byte*>(base), agreed, runs);
  }
  if (all.counts[slot].unnamed.load() == 0) return false;
  bool any = false;
  for (Reader reader(std::span<const std::byte>(runs).subspan(before)); reader.left() > 0;) {
    // A run is what differs: of an address maybe a part. The agreed copy can be read whatever has
    // become of the memory.
    Run run;
    if (!readRun(reader, &run)) break;
    const uint64_t address = run.address - block.there + base, length = run.length;
    const uint64_t begin = std::max(base, (address - (sizeof(uint64_t) - 1)) / 4 * 4);
    const uint64_t end = std::min(base + block.bytes, address + length + sizeof(uint64_t));
    any = eachAddress(agreed.data() + (begin - base), end - begin,
                      [&](uint64_t word) { return nameAtAll(all, session, word); }) ||
          any;
  }
  return any;
}

// True if kernels of the session can reach the block there.
bool isNamed(const Session& session, uint64_t address) {
  BlockTable& all = blocks();
  if (all.counts[session.side()].exchanged.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = all.find(address, &base);
  return block != nullptr && block->isNamed(session.side());
}

}  // namespace

void sendRuns(Session* session, unsigned side, const std::vector<std::byte>& runs) {
  if (status::LinkBytes* const counted = countedLink(side); counted != nullptr) {
    status::count(counted->pinned_sent, runs.size());
    status::count(counted->pinned_sends, 1);
  }
  eachPart(runs, [&](std::span<const std::byte> part) {
    Call call(Operation::kHostBytes, session);
    call.only(side);
    call.ofOurOwn();
    call.raw(part.data(), part.size());
    (void)call.oneWay();
  });
}

void noteAddresses(const Session* session, const void* words, uint64_t bytes) {
  if (session == nullptr) return;
  BlockTable& all = blocks();
  const auto sides = session->sides();
  if (std::none_of(sides.begin(), sides.end(), [&](unsigned side) {
        return all.counts[side].unnamed.load(std::memory_order_relaxed) != 0;
      }))
    return;
  (void)eachAddress(words, bytes, [&](uint64_t address) {
    std::lock_guard lock(all.mutex);
    return nameAtAll(all, *session, address);
  });
}

void noteAddressesOf(const Session* to, const Session* from) {
  BlockTable& all = blocks();
  if (to == nullptr || from == nullptr ||
      all.counts[to->side()].unnamed.load(std::memory_order_relaxed) == 0)
    return;
  std::lock_guard lock(all.mutex);
  for (const auto& [base, block] : all.blocks) {
    // Only of exchanged blocks it is known whether kernels there can reach them.
    if (block.sides[from->side()].kind != BlockSide::Kind::kExchanged ||
        block.isNamed(from->side()))
      (void)all.name(to->side(), block.there);
  }
}

void nameAlsoAt(unsigned to, unsigned from) {
  BlockTable& all = blocks();
  if (all.counts[to].unnamed.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard lock(all.mutex);
  for (const auto& [block, base] : all.named[from]) (void)all.name(to, block->there);
}

std::vector<uint64_t> sendPinned(Session* session) {
  if (session == nullptr ||
      blocks().counts[session->side()].exchanged.load(std::memory_order_relaxed) == 0)
    return {};
  (void)awaitNamed(*session);
  sendPinnedNow(session);
  return namedBlocks(session);
}

void sendPinnedNow(Session* session) {
  BlockTable& all = blocks();
  const unsigned side = session->side();
  if (all.counts[side].exchanged.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard order(all.send_mutex);
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::byte> runs;
  {
    std::lock_guard lock(all.mutex);
    // Changed bytes may name further blocks.
    for (bool again = true; again;) {
      again = false;
      for (const auto& [block, base] : all.named[side]) {
        if (block->goesWithLaunches(side))
          again = takeChanges(all, *session, side, base, *block, runs) || again;
      }
    }
  }
  if (!runs.empty()) sendRuns(session, side, runs);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begun;
  if (status::LinkBytes* const counted = countedLink(side); counted != nullptr)
    status::count(counted->pinned_ns, static_cast<uint64_t>(took.count()));
}

bool hasUnsent(const Session& session) {
  BlockTable& all = blocks();
  const unsigned side = session.side();
  if (all.counts[side].exchanged.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(all.mutex);
  std::vector<std::byte> now(1 << 20);
  return std::any_of(all.named[side].begin(), all.named[side].end(), [&](const auto& named) {
    const auto& [block, base] = named;
    if (!block->goesWithLaunches(side)) return false;
    const std::vector<std::byte>& agreed = block->sides[side].agreed;
    for (size_t at = 0; at < agreed.size(); at += now.size()) {
      const size_t bytes = std::min(now.size(), agreed.size() - at);
      if (!base::readUnlessGone(now.data(), base + at, bytes)) return false;
      if (std::memcmp(now.data(), agreed.data() + at, bytes) != 0) return true;
    }
    return false;
  });
}

void tellUnsent(const Session& session) {
  if (!hasUnsent(session)) return;
  base::warnOnce("unsent",
                 "work at gpunode %s has not ended for %lld s, and the program has changed pinned "
                 "memory meanwhile that kernels reach: over a network that comes to them with the "
                 "next launch. A kernel that waits for it before that waits for ever (on one host "
                 "it does not: --transport shm)",
                 session.executor().name().c_str(), static_cast<long long>(kForUnsent.count()));
}

void noteNamed(const Session* session, uint64_t address) {
  if (session == nullptr) return;
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  (void)nameAtAll(all, *session, address);
}

std::vector<uint64_t> namedBlocks(const Session* session) {
  std::vector<uint64_t> named;
  BlockTable& all = blocks();
  if (session == nullptr ||
      all.counts[session->side()].exchanged.load(std::memory_order_relaxed) == 0)
    return named;
  std::lock_guard lock(all.mutex);
  for (const auto& [block, base] : all.named[session->side()]) {
    if (block->goesWithLaunches(session->side())) named.push_back(block->there);
  }
  return named;
}

CUresult awaitNamed(const Session& session) {
  std::vector<std::pair<uint64_t, uint64_t>> named;
  {
    BlockTable& all = blocks();
    std::lock_guard lock(all.mutex);
    for (const auto& [block, base] : all.named[session.side()]) {
      if (block->goesWithLaunches(session.side())) named.emplace_back(base, block->bytes);
    }
  }
  for (const auto& [base, bytes] : named) {
    if (const CUresult result = awaitMemory(base, bytes, session, true); result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

bool changesAreToCome(const Session& session, const void* memory) {
  return session.arrivals().changesOutstanding() &&
         isNamed(session, reinterpret_cast<uint64_t>(memory));
}

// Nobody noted which stream brings the changes, so each context is waited for once: after that all
// has come that was sent before. Changes outstanding then are of another thread's later launch,
// which nothing orders with this call.
CUresult awaitMemory(uint64_t address, uint64_t bytes, const Session& reader, bool by_kernel) {
  for (Session* const session : existingSessions()) {
    const bool own = session == &reader;
    const bool kernels = !(own && by_kernel) && isNamed(*session, address);
    const auto comes = [&] {
      return (kernels && session->arrivals().changesOutstanding()) ||
             session->arrivals().bytesOutstanding(address, bytes);
    };
    // Another session's GPU writes into memory that it shares without notice.
    const bool unseen = !own && isShared(*session, reinterpret_cast<const void*>(address), 1);
    if (!unseen && !comes()) continue;
    const uint64_t current = contextIn(session);
    CUresult result = finishContext(*session, current);
    if (unseen && result == CUDA_ERROR_DEVICE_UNAVAILABLE) continue;  // lost: it writes no more
    for (const uint64_t context : contextsOf(*session)) {
      if (context != current && (result == CUDA_SUCCESS || current == 0) && comes())
        result = finishContext(*session, context);
    }
    if (result != CUDA_SUCCESS) return result;
    session->arrivals().awaitBytes(address, bytes);
  }
  return CUDA_SUCCESS;
}

void takePinned(const Session& session, unsigned side, const Run& run) {
  if (takeStandIn(session, run)) return;
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  Block* block = all.findThere(run.address, &base);
  if (block == nullptr || block->sides[side].kind != BlockSide::Kind::kExchanged) return;
  const uint64_t offset = run.address - block->there;
  if (run.length > block->bytes - offset) return;
  if (block->registered) {
    run.eachPiece([&](size_t at, std::span<const std::byte> bytes) {
      (void)base::writeUnlessGone(base + offset + at, bytes.data(), bytes.size());
    });
  } else {
    run.copyTo(reinterpret_cast<std::byte*>(base + offset));
  }
  if (auto& agreed = block->sides[side].agreed; !agreed.empty()) run.copyTo(agreed.data() + offset);
}

}  // namespace olpager::forward
