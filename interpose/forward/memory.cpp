// Pinned host memory: blocks in the window, at the same addresses here and at the worker of each
// session. One that a worker shares there is nothing to do for after that. One that is exchanged
// with it has a copy of what both last agreed on (`agreed`); what differs from it is what the
// program changed, or another session's kernels, and goes to the worker before a kernel that may
// reach the block: every one after its address has gone to the GPU ("named"). What a kernel changed
// comes back in stream order behind it (Answer::kHostBytes, session.cpp).
#include "interpose/forward/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "base/log.h"
#include "base/own_memory.h"
#include "forwarding/wire/runs.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/addresses.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/pinned.h"
#include "interpose/forward/shared_mappings.h"
#include "interpose/forward/stand_ins.h"

namespace olpager::forward {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kAlign = 2ull << 20;  // of blocks in the window, with a guard behind each

// What there is of a block in one session.
struct Side {
  // Decided when the worker maps it.
  enum class Kind : uint8_t {
    kNone,       // it has not
    kShared,     // one memory with the worker's
    kExchanged,  // the worker has memory of its own there
  };
  Kind kind = Kind::kNone;
  std::vector<std::byte> agreed;  // kExchanged: empty until it is named
  transport::RegionPtr region;    // null where it can't be had: bytes travel in calls then
};

struct Block {
  uint64_t bytes;
  unsigned flags;
  bool registered;  // memory of the program's own, elsewhere
  bool managed = false;
  bool variable =
      false;           // of a module or a library: not in the window, and not the program's to free
  uint64_t there = 0;  // its address at the workers; 0: they have no such memory (registered, until
                       // it is asked for)
  bool leaving = false;  // the workers are told that it goes: nothing more is said of it
  std::array<Side, kMostSessions> sides{};

  bool isNamed(unsigned slot) const { return !sides[slot].agreed.empty(); }
  bool goesWithLaunches(unsigned slot) const { return isNamed(slot) && !leaving; }
  bool isShared(unsigned slot) const { return sides[slot].kind == Side::Kind::kShared; }
};

// Changes go in the order in which they were seen: send_mutex. It is taken before mutex, and alone
// while something is sent, so that what comes from the worker meanwhile can be put in place.
struct Memory {
  std::mutex send_mutex;
  std::mutex mutex;
  std::map<uint64_t, Block> blocks;      // by address here
  std::map<uint64_t, uint64_t> mirrors;  // of registered blocks: address there -> here
  std::array<std::map<CUdeviceptr, uint64_t>, kMostSessions>
      device;                          // outside of the pools, by slot
  std::map<uint64_t, uint64_t> taken;  // of the window: from, to, with the guards behind
  uint64_t next =
      kWindow;  // where places are looked for first: an address is not given out again soon
  // Of a session: sides of a kind; unnamed: of those that are exchanged.
  struct Counts {
    std::atomic<uint32_t> shared{0}, exchanged{0}, unnamed{0};
  };
  std::array<Counts, kMostSessions> counts;
  std::atomic<uint64_t> variables_from{UINT64_MAX},
      variables_to{0};  // all that ever were lie between
};
Memory& memory() {
  static auto* instance = new Memory;
  return *instance;
}

uint64_t rounded(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

Block* find(Memory& all, uint64_t address, uint64_t* base) {
  auto after = all.blocks.upper_bound(address);
  if (after == all.blocks.begin()) return nullptr;
  --after;
  if (address - after->first >= after->second.bytes) return nullptr;
  *base = after->first;
  return &after->second;
}

// By an address of the workers'.
Block* findThere(Memory& all, uint64_t address, uint64_t* base) {
  auto mirror = all.mirrors.upper_bound(address);
  if (mirror != all.mirrors.begin()) {
    --mirror;
    Block& block = all.blocks.at(mirror->second);
    if (address - mirror->first < block.bytes) {
      *base = mirror->second;
      return &block;
    }
  }
  Block* const block = find(all, address, base);
  return block != nullptr && !block->registered ? block : nullptr;
}

// Memory at `wanted`; with a descriptor where the worker can map it, so that bulk bytes are copied
// once.
void* mapAt(void* wanted, uint64_t bytes, bool shared, base::UniqueFd* fd) {
  if (shared) {
    *fd = base::UniqueFd(memfd_create("olpager-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (*fd &&
        (!base::resizeFile(fd->get(), bytes) || fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0))
      fd->reset();
  }
  const int kind = *fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  return mmap(wanted, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED_NOREPLACE,
              *fd ? fd->get() : -1, 0);
}

void makeRegions(Block& block, void* address, uint64_t bytes, int fd) {
  for (const Session* const session : sessions()) {
    auto region = transport::registerMemory(session->domain(), {address, bytes, fd, 0},
                                            transport::kRemoteReadWrite);
    if (region.ok()) block.sides[session->slot()].region = std::move(region).value();
  }
}

// The same call in several sessions at once. A session that is lost counts for nothing as long as
// another one is there.
class InSessions {
 public:
  void add(std::unique_ptr<Call> call) {
    const CUresult begun = call->begin(true);
    calls_.push_back({std::move(call), begun});
  }
  /// Waits for all. `each` gets each call that succeeded.
  template <typename Each>
  CUresult finish(Each each) {
    CUresult error = CUDA_SUCCESS;
    size_t lost = 0;
    for (auto& [call, begun] : calls_) {
      const CUresult result = begun == CUDA_SUCCESS ? call->finish() : begun;
      if (call->answered()) each(*call);
      if (result == CUDA_ERROR_DEVICE_UNAVAILABLE) {
        ++lost;
      } else if (error == CUDA_SUCCESS) {
        error = result;
      }
    }
    return error == CUDA_SUCCESS && lost != 0 && lost == calls_.size()
               ? CUDA_ERROR_DEVICE_UNAVAILABLE
               : error;
  }

 private:
  struct One {
    std::unique_ptr<Call> call;
    CUresult begun;
  };
  std::vector<One> calls_;
};

// Without a descriptor the memory can't be shared. `registered`: natively it is there, and what is
// asked of it is allowed while a stream captures.
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

// `begin` begins the calls that tell the workers that a block goes. What others have said of it is
// before them, and nothing is behind them.
template <typename Begin>
void leaves(Memory& all, uint64_t address, Begin begin) {
  std::lock_guard order(all.send_mutex);
  {
    std::lock_guard lock(all.mutex);
    if (const auto found = all.blocks.find(address); found != all.blocks.end())
      found->second.leaving = true;
  }
  begin();
}

// It does not after all, or is back.
void stays(Memory& all, uint64_t address) {
  std::lock_guard lock(all.mutex);
  if (const auto found = all.blocks.find(address); found != all.blocks.end())
    found->second.leaving = false;
}

// What was made at some workers, and not at all.
void takeBack(Session* session, uint64_t address) {
  const auto call = freeCall(session, address);
  call->ofOurOwn();
  (void)call->sync();
}

// Under mutex. By an address of the worker's: it is compared at each launch of the session from now
// on. False: there is no such block, or it has been named before.
bool name(Memory& all, unsigned slot, uint64_t address) {
  uint64_t base = 0;
  Block* const block = findThere(all, address, &base);
  if (block == nullptr || block->leaving) return false;
  if (block->sides[slot].kind != Side::Kind::kExchanged || block->isNamed(slot)) return false;
  block->sides[slot].agreed.resize(block->bytes);
  all.counts[slot].unnamed.fetch_sub(1);
  base::logDebug(
      "kernels can reach pinned memory at %p (%llu bytes): it is exchanged with every launch from "
      "now on",
      reinterpret_cast<void*>(base), static_cast<unsigned long long>(block->bytes));
  return true;
}

// Under mutex. Where a session has shared blocks as well, nobody sees what addresses the program,
// or a kernel, puts into them: exchanged ones all count as named.
void nameBesideShared(Memory& all, unsigned slot) {
  if (all.counts[slot].shared.load() == 0 || all.counts[slot].unnamed.load() == 0) return;
  for (const auto& [base, block] : all.blocks) (void)name(all, slot, block.there);
}

// Under mutex. The worker of the session in the slot has mapped the block, or not any more.
void setKind(Memory& all, Block& block, unsigned slot, Side::Kind kind) {
  const auto count = [&](uint32_t by) {
    auto& counts = all.counts[slot];
    Side& side = block.sides[slot];
    if (side.kind == Side::Kind::kShared) counts.shared.fetch_add(by);
    if (side.kind == Side::Kind::kExchanged) counts.exchanged.fetch_add(by);
    if (side.kind == Side::Kind::kExchanged && side.agreed.empty()) counts.unnamed.fetch_add(by);
  };
  count(UINT32_MAX);  // one less
  block.sides[slot].kind = kind;
  block.sides[slot].agreed.clear();
  count(1);
}

Side::Kind kindIn(Call& answered) {
  return answered.reply().value<uint8_t>() != 0 ? Side::Kind::kShared : Side::Kind::kExchanged;
}

// A program may free what it has registered, as long as no kernel uses it.
bool isMapped(uint64_t address, uint64_t bytes) {
  const uint64_t first = address / kPage * kPage;
  const uint64_t length = rounded(address + bytes - first, kPage);
  std::vector<unsigned char> pages(length / kPage);
  return mincore(reinterpret_cast<void*>(first), length, pages.data()) == 0;
}

CUresult registerMemory(void* pointer, uint64_t bytes, unsigned flags) {
  if (pointer == nullptr || bytes == 0 || bytes > kWindowBytes) return CUDA_ERROR_INVALID_VALUE;
  if (!isMapped(reinterpret_cast<uint64_t>(pointer), bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  const auto after = all.blocks.lower_bound(address + bytes);
  if (after != all.blocks.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.bytes > address)
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  Block block{bytes, flags, true};
  makeRegions(block, pointer, bytes, -1);
  all.blocks.insert_or_assign(address, std::move(block));
  return CUDA_SUCCESS;
}

// Under mutex. What the program changed in a block, as runs; agreed on from now on. Whether it
// names blocks that were not named before.
bool takeChanges(Memory& all, unsigned slot, uint64_t base, Block& block,
                 std::vector<std::byte>& runs) {
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
    // A run is what differs: of an address maybe a part. What is agreed on can be read whatever has
    // become of the memory.
    Run run;
    if (!readRun(reader, &run)) break;
    const uint64_t address = run.address - block.there + base, length = run.length;
    const uint64_t begin = std::max(base, (address - (sizeof(uint64_t) - 1)) / 4 * 4);
    const uint64_t end = std::min(base + block.bytes, address + length + sizeof(uint64_t));
    any = eachAddress(agreed.data() + (begin - base), end - begin,
                      [&](uint64_t word) { return name(all, slot, word); }) ||
          any;
  }
  return any;
}

}  // namespace

void sendRuns(Session* session, const std::vector<std::byte>& runs) {
  eachPart(runs, [&](std::span<const std::byte> part) {
    Call call(Operation::kHostBytes, session);
    call.ofOurOwn();
    call.raw(part.data(), part.size());
    (void)call.oneWay();
  });
}

namespace {

// Under mutex. Takes a place in the window; 0: there is none.
uint64_t takePlace(Memory& all, uint64_t bytes) {
  for (const uint64_t start : {all.next, kWindow}) {
    uint64_t at = start;
    auto after = all.taken.upper_bound(at);
    if (after != all.taken.begin()) at = std::max(at, std::prev(after)->second);
    while (after != all.taken.end() && after->first - at < bytes) at = (after++)->second;
    if (at + bytes > kWindow + kWindowBytes) continue;
    all.taken[at] = at + bytes;
    all.next = at + bytes;
    return at;
  }
  return 0;
}

// Of a block that is not made after all, or gone.
void givePlace(uint64_t address) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  all.taken.erase(address);
}

// A pinned block.
CUresult allocate(void** out, uint64_t bytes, unsigned flags) {
  constexpr unsigned kFlags =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (out == nullptr || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0 && currentContext() != 0) {
    *out = nullptr;
    return CUDA_SUCCESS;
  }
  CUdeviceptr address = 0;
  const CUresult result = allocateBlock(bytes, flags, false, &address);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return result;
}

}  // namespace

CUresult allocateBlock(uint64_t bytes, unsigned flags, bool managed, CUdeviceptr* out) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kWindowBytes / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto with = sessions();
  if (with.empty()) return CUDA_ERROR_NOT_INITIALIZED;
  if (with.size() > 1 && currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  const uint64_t mapped = rounded(bytes, kPage);
  uint64_t address = 0;
  {
    Memory& all = memory();
    std::lock_guard lock(all.mutex);
    address = takePlace(all, rounded(mapped, kAlign) + kAlign);
  }
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* const wanted = reinterpret_cast<void*>(address);
  const bool shared =
      std::any_of(with.begin(), with.end(), [](const Session* one) { return one->sharesMemory(); });
  base::UniqueFd fd;
  void* const got = mapAt(wanted, mapped, shared, &fd);
  if (got == MAP_FAILED) {
    givePlace(address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Block block{bytes, flags, false, managed, false, address};
  makeRegions(block, got, mapped, fd ? fd.get() : -1);
  InSessions calls;
  for (Session* const session : with) {
    // Where there is no context yet: mapPinned() when there is one.
    if (with.size() > 1 && contextIn(session) == 0) continue;
    calls.add(allocCall(session, address, mapped, block.sides[session->slot()].region,
                        static_cast<bool>(fd), false));
  }
  std::vector<std::pair<Session*, Side::Kind>> made;
  const CUresult result =
      calls.finish([&](Call& call) { made.emplace_back(call.session(), kindIn(call)); });
  if (result != CUDA_SUCCESS) {
    for (const auto& [session, kind] : made) takeBack(session, address);
    block = Block{0, 0, false};  // its regions end before the memory does
    munmap(got, mapped);
    givePlace(address);
    return result;
  }
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  Block& placed = all.blocks.insert_or_assign(address, std::move(block)).first->second;
  for (const auto& [session, kind] : made) setKind(all, placed, session->slot(), kind);
  for (const auto& [session, kind] : made) {
    nameBesideShared(all, session->slot());
    if (managed) (void)name(all, session->slot(), address);  // it is there for kernels
  }
  *out = address;
  return CUDA_SUCCESS;
}

CUresult releaseBlock(uint64_t address, bool managed) {
  uint64_t mapped = 0;
  std::vector<Session*> with;
  {
    Memory& all = memory();
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (found == all.blocks.end() || found->second.registered || found->second.variable ||
        found->second.managed != managed)
      return CUDA_ERROR_INVALID_VALUE;
    mapped = rounded(found->second.bytes, kPage);
    for (Session* const session : existingSessions()) {
      if (found->second.sides[session->slot()].kind != Side::Kind::kNone) with.push_back(session);
    }
  }
  for (Session* const session : existingSessions()) session->awaitBytes(address, mapped);
  Memory& all = memory();
  InSessions calls;
  leaves(all, address, [&] {
    for (Session* const session : with) calls.add(freeCall(session, address));
  });
  const CUresult result = calls.finish([&](const Call& call) {
    std::lock_guard lock(all.mutex);
    if (const auto found = all.blocks.find(address); found != all.blocks.end())
      setKind(all, found->second, call.session()->slot(), Side::Kind::kNone);
  });
  if (result != CUDA_SUCCESS) {
    stays(all, address);
    return result;
  }
  {
    std::unique_lock lock(all.mutex);
    auto block = all.blocks.extract(address);
    if (block.empty()) return CUDA_ERROR_INVALID_VALUE;      // another thread was here first
    for (const Session* const session : existingSessions())  // those that are lost
      setKind(all, block.mapped(), session->slot(), Side::Kind::kNone);
    lock.unlock();  // its regions end before the memory does, without the lock
  }
  munmap(reinterpret_cast<void*>(address), mapped);
  givePlace(address);
  return result;
}

void addVariable(Session* session, uint64_t address, uint64_t bytes) {
  Block block{bytes, 0, false, true, true, address};
  makeRegions(block, reinterpret_cast<void*>(address), bytes, -1);
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  all.variables_from.store(std::min(all.variables_from.load(), address));
  all.variables_to.store(std::max(all.variables_to.load(), address + bytes));
  Block& placed = all.blocks.insert_or_assign(address, std::move(block)).first->second;
  setKind(all, placed, session->slot(), Side::Kind::kExchanged);
  (void)name(all, session->slot(), address);  // it is there for kernels
}

void putVariable(const Session* session, Reader& runs) {
  for (Run run; runs.left() > 0 && readRun(runs, &run);) takePinned(session->slot(), run);
}

void removeVariable(uint64_t address, Call& gone) {
  Memory& all = memory();
  CUresult begun = CUDA_SUCCESS;
  leaves(all, address, [&] { begun = gone.begin(true); });
  if (begun == CUDA_SUCCESS) (void)gone.finish();
  std::unique_lock lock(all.mutex);
  const auto found = all.blocks.find(address);
  if (found == all.blocks.end() || !found->second.variable) return;
  for (const Session* const session : existingSessions())
    setKind(all, found->second, session->slot(), Side::Kind::kNone);
  const auto block = all.blocks.extract(found);
  lock.unlock();  // its regions end without the lock
}

bool mayBeBlock(uint64_t address) {
  if (address - kWindow < kWindowBytes) return true;
  const Memory& all = memory();
  return address >= all.variables_from.load(std::memory_order_relaxed) &&
         address < all.variables_to.load(std::memory_order_relaxed);
}

void noteDeviceMemory(const Session& session, CUdeviceptr address, uint64_t bytes) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  all.device[session.slot()][address] = bytes;
}

Session* sessionOfNoted(uint64_t address) {
  const auto has = [address](const std::map<CUdeviceptr, uint64_t>& noted) {
    const auto after = noted.upper_bound(address);
    return after != noted.begin() && address - std::prev(after)->first < std::prev(after)->second;
  };
  Session* const current = existingSession();
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  if (current != nullptr && has(all.device[current->slot()])) return current;
  for (Session* const session : existingSessions()) {
    if (has(all.device[session->slot()])) return session;
  }
  return nullptr;
}

bool isDeviceMemory(uint64_t address) {
  if (existingSessions().empty()) return false;
  {
    Memory& all = memory();
    std::lock_guard lock(all.mutex);
    uint64_t base = 0;
    if (find(all, address, &base) != nullptr) return false;
  }
  if (sessionOfAddress(address) != nullptr) return true;
  // Device memory of the driver's own is nothing that this process has mapped.
  unsigned char there = 0;
  const uint64_t page = address / kPage * kPage;
  return mincore(reinterpret_cast<void*>(page), kPage, &there) != 0;
}

bool isPinned(const void* pointer, uint64_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  return block != nullptr && bytes <= block->bytes - (address - base);
}

bool isShared(const Session& session, const void* pointer, uint64_t bytes) {
  Memory& all = memory();
  if (all.counts[session.slot()].shared.load(std::memory_order_relaxed) == 0) return false;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  return block != nullptr && block->isShared(session.slot()) &&
         bytes <= block->bytes - (address - base);
}

bool isExchanged(const Session& session, uint64_t address) {
  Memory& all = memory();
  if (!mayBeBlock(address) ||
      all.counts[session.slot()].exchanged.load(std::memory_order_relaxed) == 0)
    return false;
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = findThere(all, address, &base);
  return block != nullptr && block->sides[session.slot()].kind == Side::Kind::kExchanged;
}

bool isExchanged(uint64_t address) {
  const auto all = existingSessions();
  return std::any_of(all.begin(), all.end(),
                     [&](const Session* one) { return isExchanged(*one, address); });
}

uint64_t hereOf(uint64_t address) {
  if (address - kWindow >= kWindowBytes) return address;
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  if (const Block* const block = findThere(all, address, &base); block != nullptr)
    return address - block->there + base;
  return hereOfStandIn(address);
}

bool blockAt(uint64_t address, BlockInfo* found) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  if (block == nullptr) block = findThere(all, address, &base);
  if (block == nullptr) return false;
  *found = {base, block->bytes, block->managed, block->registered, block->there};
  return true;
}

namespace {
// One mirror is made at a time.
std::mutex& mirroring() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// The workers' memory for what the program registered goes, after all that uses it.
CUresult dropMirror(uint64_t address) {
  std::lock_guard one(mirroring());
  Memory& all = memory();
  uint64_t there = 0;
  std::vector<Session*> with;
  {
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (found == all.blocks.end() || found->second.there == 0) return CUDA_SUCCESS;
    there = found->second.there;
    for (Session* const session : existingSessions()) {
      if (found->second.sides[session->slot()].kind != Side::Kind::kNone) with.push_back(session);
    }
  }
  InSessions calls;
  leaves(all, address, [&] {
    for (Session* const session : with) calls.add(freeCall(session, there));
  });
  // One that was answered is done there, whatever else the call tells: what failed before it.
  size_t answered = 0;
  const CUresult result = calls.finish([&](const Call& call) {
    ++answered;
    std::lock_guard lock(all.mutex);
    setKind(all, all.blocks.at(address), call.session()->slot(), Side::Kind::kNone);
  });
  stays(all, address);
  if (result != CUDA_SUCCESS && answered < with.size()) return result;
  {
    std::lock_guard lock(all.mutex);
    Block& block = all.blocks.at(address);
    for (const Session* const session : existingSessions())
      setKind(all, block, session->slot(), Side::Kind::kNone);
    block.there = 0;
    all.mirrors.erase(there);
  }
  givePlace(there);
  return result;
}
}  // namespace

CUresult mirrored(uint64_t address, CUdeviceptr* out) {
  std::lock_guard one(mirroring());
  Memory& all = memory();
  uint64_t base = 0, there = 0, bytes = 0;
  {
    std::lock_guard lock(all.mutex);
    const Block* const block = find(all, address, &base);
    if (block == nullptr || !block->registered) return CUDA_ERROR_INVALID_VALUE;
    *out = block->there + (address - base);
    if (block->there != 0) return CUDA_SUCCESS;
    bytes = block->bytes;
    there = takePlace(all, rounded(bytes, kAlign) + kAlign);
  }
  if (there == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  InSessions calls;
  for (Session* const session : sessions()) {
    if (severalSessions() && contextIn(session) == 0) continue;  // mapPinned() when there is one
    calls.add(allocCall(session, there, rounded(bytes, kPage), nullptr, false, true));
  }
  std::vector<std::pair<Session*, Side::Kind>> made;
  if (const CUresult result =
          calls.finish([&](Call& call) { made.emplace_back(call.session(), kindIn(call)); });
      result != CUDA_SUCCESS) {
    for (const auto& [session, kind] : made) takeBack(session, there);
    givePlace(there);
    return result;
  }
  std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(base);
  // A program that unregisters what it asks about in another thread has a block at the workers left
  // over.
  if (found == all.blocks.end() || !found->second.registered) return CUDA_ERROR_INVALID_VALUE;
  found->second.there = there;
  all.mirrors[there] = base;
  for (const auto& [session, kind] : made) {
    setKind(all, found->second, session->slot(), kind);
    nameBesideShared(all, session->slot());
  }
  *out = there + (address - base);
  return CUDA_SUCCESS;
}

CUresult pinnedThere(uint64_t address, uint64_t bytes, uint64_t* there) {
  *there = 0;
  address = hereOf(address);
  BlockInfo block;
  if (!blockAt(address, &block) || bytes > block.bytes - (address - block.base))
    return CUDA_SUCCESS;
  if (block.registered) {
    CUdeviceptr mirror = 0;
    const CUresult result = mirrored(address, &mirror);
    *there = mirror;
    return result;
  }
  *there = address;
  return CUDA_SUCCESS;
}

bool pinnedRegion(const Session& session, const void* pointer, uint64_t bytes,
                  transport::RemoteKey* key, uint64_t* offset) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  if (block == nullptr || bytes > block->bytes - (address - base)) return false;
  const auto& region = block->sides[session.slot()].region;
  if (region == nullptr) return false;
  *key = region->key();
  *offset = address - base;
  return true;
}

namespace {
uint64_t blockBytes(uint64_t address) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(address);
  return found != all.blocks.end() ? found->second.bytes : 0;
}
}  // namespace

void mapPinned(Session* session, uint64_t context) {
  if (!severalSessions()) return;
  Memory& all = memory();
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<uint64_t> missing;
  {
    std::lock_guard lock(all.mutex);
    for (auto& [address, block] : all.blocks) {
      const Side& side = block.sides[session->slot()];
      if (block.there == 0 || side.kind != Side::Kind::kNone) continue;
      missing.push_back(address);
      calls.push_back(allocCall(session, block.there, rounded(block.bytes, kPage), side.region,
                                !block.registered, block.registered));
    }
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const uint64_t address = missing[i];
    calls[i]->inContext(context);
    calls[i]->ofOurOwn();
    const CUresult result = calls[i]->sync();
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (calls[i]->answered() && found != all.blocks.end()) {
      setKind(all, found->second, session->slot(), kindIn(*calls[i]));
      nameBesideShared(all, session->slot());
      if (found->second.managed) (void)name(all, session->slot(), found->second.there);
    }
    if (!calls[i]->answered())
      base::logWarn(
          "gpunode %s can't map pinned memory at %p (CUDA error %d): kernels there can't use it",
          session->gpunode().c_str(), reinterpret_cast<void*>(address), static_cast<int>(result));
  }
}

void noteAddresses(const Session* session, const void* words, uint64_t bytes) {
  Memory& all = memory();
  if (session == nullptr ||
      all.counts[session->slot()].unnamed.load(std::memory_order_relaxed) == 0)
    return;
  (void)eachAddress(words, bytes, [&](uint64_t address) {
    std::lock_guard lock(all.mutex);
    return name(all, session->slot(), address);
  });
}

void noteAddressesOf(const Session* to, const Session* from) {
  Memory& all = memory();
  if (to == nullptr || from == nullptr ||
      all.counts[to->slot()].unnamed.load(std::memory_order_relaxed) == 0)
    return;
  std::lock_guard lock(all.mutex);
  for (const auto& [base, block] : all.blocks) {
    // Only of exchanged blocks it is known whether kernels there can reach them.
    if (block.sides[from->slot()].kind != Side::Kind::kExchanged || block.isNamed(from->slot()))
      (void)name(all, to->slot(), block.there);
  }
}

std::vector<uint64_t> sendPinned(Session* session) {
  if (session == nullptr ||
      memory().counts[session->slot()].exchanged.load(std::memory_order_relaxed) == 0)
    return {};
  (void)awaitNamed(*session);
  sendPinnedNow(session);
  return namedBlocks(session);
}

void sendPinnedNow(Session* session) {
  Memory& all = memory();
  if (all.counts[session->slot()].exchanged.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard order(all.send_mutex);
  std::vector<std::byte> runs;
  {
    std::lock_guard lock(all.mutex);
    // What changed may name further blocks.
    for (bool again = true; again;) {
      again = false;
      for (auto& [base, block] : all.blocks) {
        if (block.goesWithLaunches(session->slot()))
          again = takeChanges(all, session->slot(), base, block, runs) || again;
      }
    }
  }
  if (!runs.empty()) sendRuns(session, runs);
}

void noteNamed(const Session* session, uint64_t address) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  if (session != nullptr) (void)name(all, session->slot(), address);
}

std::vector<uint64_t> namedBlocks(const Session* session) {
  std::vector<uint64_t> named;
  Memory& all = memory();
  if (session == nullptr ||
      all.counts[session->slot()].exchanged.load(std::memory_order_relaxed) == 0)
    return named;
  std::lock_guard lock(all.mutex);
  for (const auto& [base, block] : all.blocks) {
    if (block.goesWithLaunches(session->slot())) named.push_back(block.there);
  }
  return named;
}

CUresult awaitNamed(const Session& session) {
  std::vector<std::pair<uint64_t, uint64_t>> named;
  {
    Memory& all = memory();
    std::lock_guard lock(all.mutex);
    for (const auto& [base, block] : all.blocks) {
      if (block.goesWithLaunches(session.slot())) named.emplace_back(base, block.bytes);
    }
  }
  for (const auto& [base, bytes] : named) {
    if (const CUresult result = awaitMemory(base, bytes, session, true); result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

namespace {
CUresult synchronize(Session& session, uint64_t context) {
  Call call(api::Symbol::kCuCtxSynchronize, &session);
  call.inContext(context);
  call.mayWait();
  call.ofOurOwn();
  return call.sync();
}

// Whether kernels of the session can reach the block there.
bool isNamed(const Session& session, uint64_t address) {
  Memory& all = memory();
  if (all.counts[session.slot()].exchanged.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  return block != nullptr && block->isNamed(session.slot());
}
}  // namespace

CUresult awaitMemory(uint64_t address, uint64_t bytes, const Session& reader, bool by_kernel) {
  for (Session* const session : existingSessions()) {
    const bool own = session == &reader;
    // What other threads launch from now on does not count.
    const uint64_t changes =
        !(own && by_kernel) && isNamed(*session, address) ? session->changesExpected() : 0;
    const auto comes = [&] {
      return !session->changesAnswered(changes) || session->bytesOutstanding(address, bytes);
    };
    // What another session's GPU writes into memory that it shares nobody is told of.
    const bool unseen = !own && isShared(*session, reinterpret_cast<const void*>(address), 1);
    if (!unseen && !comes()) continue;
    // Everything of the context, then of others: which stream it comes in nobody noted.
    CUresult result = synchronize(*session, contextIn(session));
    if (unseen && result == CUDA_ERROR_DEVICE_UNAVAILABLE) continue;  // lost: it writes no more
    for (const uint64_t context : contextsOf(*session)) {
      if ((result == CUDA_SUCCESS || contextIn(session) == 0) && comes())
        result = synchronize(*session, context);
    }
    if (result != CUDA_SUCCESS) return result;
    session->awaitBytes(address, bytes);
    if (!comes()) continue;
    base::warnOnce("await",
                   "a copy reads pinned memory into which a kernel of another context is still to "
                   "write: refused");
    return CUDA_ERROR_NOT_READY;
  }
  return CUDA_SUCCESS;
}

CUresult mapThere(Session* session, uint64_t bytes, uint64_t* there) {
  {
    Memory& all = memory();
    std::lock_guard lock(all.mutex);
    *there = takePlace(all, rounded(bytes, kAlign) + kAlign);
  }
  if (*there == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto call = allocCall(session, *there, rounded(bytes, kPage), nullptr, false, true);
  const CUresult result = call->sync();
  if (result == CUDA_SUCCESS) return result;
  if (call->answered()) takeBack(session, *there);
  givePlace(*there);
  return result;
}

void unmapThere(Session* session, uint64_t there) {
  takeBack(session, there);
  givePlace(there);
}

void takePinned(unsigned slot, const Run& run) {
  if (takeStandIn(slot, run)) return;
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  Block* block = findThere(all, run.address, &base);
  if (block == nullptr || block->sides[slot].kind != Side::Kind::kExchanged) return;
  const uint64_t offset = run.address - block->there;
  if (run.length > block->bytes - offset) return;
  if (block->registered) {
    run.eachPiece([&](size_t at, std::span<const std::byte> bytes) {
      (void)base::writeUnlessGone(base + offset + at, bytes.data(), bytes.size());
    });
  } else {
    run.copyTo(reinterpret_cast<std::byte*>(base + offset));
  }
  if (auto& agreed = block->sides[slot].agreed; !agreed.empty()) run.copyTo(agreed.data() + offset);
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return allocate(out, bytes, flags);
}
CUresult ol_forward_cuMemAllocHost_v2(void** out, size_t bytes) { return allocate(out, bytes, 0); }
CUresult ol_forward_cuMemAllocHost(void** out, unsigned bytes) { return allocate(out, bytes, 0); }
CUresult ol_forward_cuMemFreeHost(void* pointer) {
  if (pointer == nullptr && currentContext() != 0) return CUDA_SUCCESS;
  return releaseBlock(reinterpret_cast<uint64_t>(pointer), false);
}

CUresult ol_forward_cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return registerMemory(pointer, bytes, flags);
}
CUresult ol_forward_cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return registerMemory(pointer, bytes, flags);
}
CUresult ol_forward_cuMemHostUnregister(void* pointer) {
  Memory& all = memory();
  const auto address = reinterpret_cast<uint64_t>(pointer);
  const auto find = [&] {
    const auto found = all.blocks.find(address);
    return found != all.blocks.end() && found->second.registered ? found : all.blocks.end();
  };
  {
    std::lock_guard lock(all.mutex);
    uint64_t base = 0;
    if (find() == all.blocks.end())
      return olpager::forward::find(all, address, &base) != nullptr
                 ? CUDA_ERROR_INVALID_VALUE
                 : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  // What asynchronous copies still move: those that bring bytes, and those that the worker has not
  // come to.
  for (Session* const session : existingSessions()) {
    (void)awaitMemory(address, blockBytes(address), *session);
    session->awaitBytes(address, blockBytes(address));  // also behind a fault
  }
  const CUresult told = dropMirror(address);
  InSessions calls;
  for (Session* const session : existingSessions()) {
    auto call = std::make_unique<Call>(Operation::kHostBytes, session);
    call->ofOurOwn();
    calls.add(std::move(call));
  }
  (void)calls.finish([](const Call&) {});
  std::unique_lock lock(all.mutex);
  const auto found = find();
  if (found == all.blocks.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  if (found->second.there != 0) return told;  // it is still at a worker
  const auto block = all.blocks.extract(found);
  lock.unlock();  // its regions end without the lock
  return told;
}

CUresult ol_forward_cuMemHostGetFlags(unsigned* flags, void* pointer) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, reinterpret_cast<uint64_t>(pointer), &base);
  if (block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = block->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer,
                                                 unsigned flags) {
  if (device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  BlockInfo block;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  if (!blockAt(address, &block) || block.managed) return CUDA_ERROR_INVALID_VALUE;
  if (block.registered && isMappedShared(block.base, block.bytes)) {
    // What another process writes while a kernel waits for it would never come: the kernel would
    // wait for ever.
    olpager::base::warnOnce("shared memory of processes",
                            "cuMemHostGetDevicePointer: forwarded, kernels can't use registered "
                            "memory that other processes "
                            "share: CUDA_ERROR_NOT_SUPPORTED; copies can (NCCL: NCCL_P2P_LEVEL=SYS "
                            "lets GPUs of one gpunode reach "
                            "each other, NCCL_SHM_DISABLE=1 does without such memory)");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (block.registered) return mirrored(address, device);
  *device = address;
  return CUDA_SUCCESS;
}

}  // extern "C"
