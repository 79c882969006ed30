// Pinned host memory: blocks in the window, at the same addresses here and at the worker. Of a shared one there is nothing to do after that.
// An exchanged one has a copy of what both sides last agreed on (`agreed`); what differs from it is what the program changed, and goes to the worker before a kernel that
// may reach the block: every one after its address has gone to the GPU ("named"). What a kernel changed comes back in stream order behind it
// (Answer::kHostBytes, session.cpp).
#include "interpose/forward/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "base/log.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/addresses.h"
#include "interpose/forward/call.h"
#include "interpose/forward/pinned.h"
#include "interpose/forward/runs.h"

namespace olpager::forward {
namespace {

constexpr uint64_t kGrain = 4096;        // of what is compared and sent
constexpr uint64_t kAlign = 2ull << 20;  // of blocks in the window, with a guard behind each

// Decided when the block is made.
enum class Kind : uint8_t {
  kShared,      // of one memory with the worker's
  kExchanged,   // the worker has memory of its own there
  kRegistered,  // memory of the program's own, elsewhere
};

struct Block {
  uint64_t bytes;
  unsigned flags;
  Kind kind;
  bool managed;
  uint64_t there;  // its address at the worker; 0: the worker has no such memory (kRegistered, until it is asked for)
  std::vector<std::byte> agreed;  // empty until it is named
  transport::RegionPtr region;    // null where it can't be had: bytes travel in calls then
};

// Changes go in the order in which they were seen: send_mutex. It is taken before mutex, and alone while something is sent, so that
// what comes from the worker meanwhile can be put in place.
struct Memory {
  std::mutex send_mutex;
  std::mutex mutex;
  std::map<uint64_t, Block> blocks;        // by address here
  std::map<uint64_t, uint64_t> mirrors;    // of registered blocks: address there -> here
  std::map<CUdeviceptr, uint64_t> device;  // outside of the pool
  std::map<uint64_t, uint64_t> taken;      // of the window: from, to, with the guards behind
  uint64_t next = kWindow;                 // where places are looked for first: an address is not given out again soon
  // Blocks: shared ones, those of which the worker has a copy of its own, and of these those that are not named.
  std::atomic<uint32_t> shared{0}, exchanged{0}, unnamed{0};
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

// By an address of the worker's.
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
  return block != nullptr && block->kind != Kind::kRegistered ? block : nullptr;
}

bool isCopied(const Block& block) { return block.kind != Kind::kShared && block.there != 0; }

// Memory at `wanted`; with a descriptor where the worker can map it, so that bulk bytes are copied once.
void* mapAt(void* wanted, uint64_t bytes, bool shared, base::UniqueFd* fd) {
  if (shared) {
    *fd = base::UniqueFd(memfd_create("olpager-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (*fd &&
        (ftruncate(fd->get(), static_cast<off_t>(bytes)) != 0 || fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0))
      fd->reset();
  }
  const int kind = *fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  return mmap(wanted, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED_NOREPLACE, *fd ? fd->get() : -1, 0);
}

transport::RegionPtr makeRegion(void* address, uint64_t bytes, int fd) {
  const Session* const session = Session::get();
  if (session == nullptr) return nullptr;
  auto region = transport::registerMemory(session->domain(), {address, bytes, fd, 0}, transport::kRemoteReadWrite);
  return region.ok() ? std::move(region).value() : nullptr;
}

// Under mutex. By an address of the worker's: it is compared at each launch from now on. False: there is no such block, or it has been named before.
bool name(Memory& all, uint64_t address) {
  uint64_t base = 0;
  Block* const block = findThere(all, address, &base);
  if (block == nullptr || !isCopied(*block) || !block->agreed.empty()) return false;
  block->agreed.resize(block->bytes);
  all.unnamed.fetch_sub(1);
  base::logDebug("kernels can reach pinned memory at %p (%llu bytes): it is exchanged with every launch from now on",
                 reinterpret_cast<void*>(base), static_cast<unsigned long long>(block->bytes));
  return true;
}

// Under mutex. Where there are shared blocks as well, nobody sees what addresses the program, or a kernel, puts into them: exchanged ones all
// count as named.
void nameBesideShared(Memory& all) {
  if (all.shared.load() == 0 || all.unnamed.load() == 0) return;
  for (const auto& [base, block] : all.blocks) (void)name(all, block.there);
}

CUresult registerMemory(void* pointer, uint64_t bytes, unsigned flags) {
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  const auto after = all.blocks.lower_bound(address + bytes);
  if (after != all.blocks.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.bytes > address) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  all.blocks[address] = {bytes, flags, Kind::kRegistered, false, 0, {}, makeRegion(pointer, bytes, -1)};
  return CUDA_SUCCESS;
}

// A program may free what it has registered, as long as no kernel uses it.
bool isMapped(uint64_t address, uint64_t bytes) {
  const uint64_t first = address / kGrain * kGrain;
  const uint64_t length = rounded(address + bytes - first, kGrain);
  std::vector<unsigned char> pages(length / kGrain);
  return mincore(reinterpret_cast<void*>(first), length, pages.data()) == 0;
}

// Under mutex. What the program changed in a block, as runs; agreed on from now on. Whether it names blocks that were not named before.
bool takeChanges(Memory& all, uint64_t base, Block& block, std::vector<std::byte>& runs) {
  const size_t before = runs.size();
  if (block.kind == Kind::kRegistered && !isMapped(base, block.bytes)) return false;
  appendChanges(block.there, reinterpret_cast<const std::byte*>(base), block.agreed, runs);
  if (all.unnamed.load() == 0) return false;
  bool any = false;
  for (Reader reader(std::span<const std::byte>(runs).subspan(before)); reader.left() > 0;) {
    // A run is what differs: of an address maybe a part.
    const uint64_t address = reader.value<uint64_t>() - block.there + base;
    const uint64_t length = reader.raw(reader.value<uint64_t>()).size();
    const uint64_t begin = std::max(base, (address - (sizeof(uint64_t) - 1)) / 4 * 4);
    const uint64_t end = std::min(base + block.bytes, address + length + sizeof(uint64_t));
    any = eachAddress(reinterpret_cast<const void*>(begin), end - begin,
                      [&](uint64_t word) { return name(all, word); }) ||
          any;
  }
  return any;
}

// Whole runs to a call, as many as it holds.
void sendRuns(const std::vector<std::byte>& runs) {
  for (Reader reader(runs); reader.left() > 0;) {
    Call call(Operation::kHostBytes);
    uint64_t sent = 0;
    while (reader.left() > 0 && sent < kMostBytes / 2) {
      const auto address = reader.value<uint64_t>();
      const auto bytes = reader.raw(reader.value<uint64_t>());
      call.value(address);
      call.value(static_cast<uint64_t>(bytes.size()));
      call.raw(bytes.data(), bytes.size());
      sent += bytes.size() + 16;
    }
    (void)call.oneWay();
  }
}

// A pinned block.
CUresult allocate(void** out, uint64_t bytes, unsigned flags) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr address = 0;
  const CUresult result = allocateBlock(bytes, flags, false, &address);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return result;
}

}  // namespace

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

}  // namespace

CUresult allocateBlock(uint64_t bytes, unsigned flags, bool managed, CUdeviceptr* out) {
  if (bytes == 0 || bytes > kWindowBytes / 2) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t mapped = rounded(bytes, kGrain);
  uint64_t address = 0;
  {
    Memory& all = memory();
    std::lock_guard lock(all.mutex);
    address = takePlace(all, rounded(mapped, kAlign) + kAlign);
  }
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* const wanted = reinterpret_cast<void*>(address);
  const Session* const session = Session::get();
  base::UniqueFd fd;
  void* const got = mapAt(wanted, mapped, session != nullptr && session->sharesMemory(), &fd);
  if (got == MAP_FAILED) {
    givePlace(address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto region = makeRegion(got, mapped, fd ? fd.get() : -1);
  Call call(Operation::kHostAlloc);
  call.value(address);
  call.value(mapped);
  call.value(fd && region != nullptr ? region->key() : transport::RemoteKey{});
  const CUresult result = call.sync();
  if (result != CUDA_SUCCESS) {
    region.reset();
    munmap(got, mapped);
    givePlace(address);
    return result;
  }
  const bool shared = call.reply().value<uint8_t>() != 0;
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  if (shared) {
    all.shared.fetch_add(1);
  } else {
    all.exchanged.fetch_add(1);
    all.unnamed.fetch_add(1);
  }
  all.blocks[address] = {
      bytes, flags, shared ? Kind::kShared : Kind::kExchanged, managed, address, {}, std::move(region)};
  nameBesideShared(all);
  if (managed) (void)name(all, address);  // it is there for kernels
  *out = address;
  return CUDA_SUCCESS;
}

CUresult releaseBlock(uint64_t address, bool managed) {
  uint64_t mapped = 0;
  {
    Memory& all = memory();
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (found == all.blocks.end() || found->second.kind == Kind::kRegistered || found->second.managed != managed)
      return CUDA_ERROR_INVALID_VALUE;
    mapped = rounded(found->second.bytes, kGrain);
  }
  Call call(Operation::kHostFree);
  call.value(address);
  call.mayWait();
  const CUresult result = call.sync();
  if (result != CUDA_SUCCESS) return result;
  Memory& all = memory();
  transport::RegionPtr region;  // ends before the memory does, without the lock
  {
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (found == all.blocks.end()) return CUDA_ERROR_INVALID_VALUE;  // another thread was here first
    Block& block = found->second;
    region = std::move(block.region);
    (block.kind == Kind::kShared ? all.shared : all.exchanged).fetch_sub(1);
    if (block.kind == Kind::kExchanged && block.agreed.empty()) all.unnamed.fetch_sub(1);
    all.blocks.erase(found);
  }
  region.reset();
  munmap(reinterpret_cast<void*>(address), mapped);
  givePlace(address);
  return result;
}

void noteDeviceMemory(CUdeviceptr address, uint64_t bytes) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  all.device[address] = bytes;
}

bool isDeviceMemory(uint64_t address) {
  const Session* session = Session::existing();
  if (session == nullptr) return false;
  const Description& description = session->description();
  if (address - description.va_base < description.va_size) return true;
  {
    Memory& all = memory();
    std::lock_guard lock(all.mutex);
    uint64_t base = 0;
    if (find(all, address, &base) != nullptr) return false;
    const auto after = all.device.upper_bound(address);
    if (after != all.device.begin() && address - std::prev(after)->first < std::prev(after)->second) return true;
  }
  // Device memory of the driver's own is nothing that this process has mapped.
  unsigned char there = 0;
  const uint64_t page = address / kGrain * kGrain;
  return mincore(reinterpret_cast<void*>(page), kGrain, &there) != 0;
}

bool isPinned(const void* pointer, uint64_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  return block != nullptr && bytes <= block->bytes - (address - base);
}

bool isShared(const void* pointer, uint64_t bytes) {
  Memory& all = memory();
  if (all.shared.load(std::memory_order_relaxed) == 0) return false;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  return block != nullptr && block->kind == Kind::kShared && bytes <= block->bytes - (address - base);
}

bool isExchanged(uint64_t address) {
  Memory& all = memory();
  if (address - kWindow >= kWindowBytes || all.exchanged.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = findThere(all, address, &base);
  return block != nullptr && isCopied(*block);
}

uint64_t hereOf(uint64_t address) {
  Memory& all = memory();
  if (address - kWindow >= kWindowBytes || all.exchanged.load(std::memory_order_relaxed) == 0) return address;
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = findThere(all, address, &base);
  return block != nullptr ? address - block->there + base : address;
}

bool blockAt(uint64_t address, BlockInfo* found) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  if (block == nullptr) block = findThere(all, address, &base);
  if (block == nullptr) return false;
  *found = {base, block->bytes, block->managed, block->kind == Kind::kRegistered, block->there};
  return true;
}

namespace {
// One mirror is made at a time.
std::mutex& mirroring() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// The worker's memory for what the program registered goes, after all that uses it.
CUresult dropMirror(uint64_t address) {
  std::lock_guard one(mirroring());
  Memory& all = memory();
  uint64_t there = 0;
  {
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (found != all.blocks.end()) there = found->second.there;
  }
  if (there == 0) return CUDA_SUCCESS;
  Call call(Operation::kHostFree);
  call.value(there);
  call.mayWait();
  if (const CUresult result = call.sync(); result != CUDA_SUCCESS) return result;
  {
    std::lock_guard lock(all.mutex);
    Block& block = all.blocks.at(address);
    all.exchanged.fetch_sub(1);
    if (block.agreed.empty()) all.unnamed.fetch_sub(1);
    block.there = 0;
    block.agreed.clear();
    all.mirrors.erase(there);
  }
  givePlace(there);
  return CUDA_SUCCESS;
}
}  // namespace

CUresult mirrored(uint64_t address, CUdeviceptr* out) {
  std::lock_guard one(mirroring());
  Memory& all = memory();
  uint64_t base = 0, there = 0, bytes = 0;
  {
    std::lock_guard lock(all.mutex);
    const Block* const block = find(all, address, &base);
    if (block == nullptr || block->kind != Kind::kRegistered) return CUDA_ERROR_INVALID_VALUE;
    *out = block->there + (address - base);
    if (block->there != 0) return CUDA_SUCCESS;
    bytes = block->bytes;
    there = takePlace(all, rounded(bytes, kAlign) + kAlign);
  }
  if (there == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Call call(Operation::kHostAlloc);
  call.value(there);
  call.value(rounded(bytes, kGrain));
  call.value(transport::RemoteKey{});
  if (const CUresult result = call.sync(); result != CUDA_SUCCESS) {
    givePlace(there);
    return result;
  }
  std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(base);
  // A program that unregisters what it asks about in another thread has a block at the worker left over.
  if (found == all.blocks.end() || found->second.kind != Kind::kRegistered) return CUDA_ERROR_INVALID_VALUE;
  found->second.there = there;
  all.mirrors[there] = base;
  all.exchanged.fetch_add(1);
  all.unnamed.fetch_add(1);
  nameBesideShared(all);
  *out = there + (address - base);
  return CUDA_SUCCESS;
}

bool pinnedRegion(const void* pointer, uint64_t bytes, transport::RemoteKey* key, uint64_t* offset) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  if (block == nullptr || block->region == nullptr || bytes > block->bytes - (address - base)) return false;
  *key = block->region->key();
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

void noteAddresses(const void* words, uint64_t bytes) {
  Memory& all = memory();
  if (all.unnamed.load(std::memory_order_relaxed) == 0) return;
  (void)eachAddress(words, bytes, [&](uint64_t address) {
    std::lock_guard lock(all.mutex);
    return name(all, address);
  });
}

std::vector<uint64_t> sendPinned() {
  if (memory().exchanged.load(std::memory_order_relaxed) == 0) return {};
  (void)awaitNamed();
  sendPinnedNow();
  return namedBlocks();
}

void sendPinnedNow() {
  Memory& all = memory();
  if (all.exchanged.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard order(all.send_mutex);
  std::vector<std::byte> runs;
  {
    std::lock_guard lock(all.mutex);
    // What changed may name further blocks.
    for (bool again = true; again;) {
      again = false;
      for (auto& [base, block] : all.blocks) {
        if (!block.agreed.empty()) again = takeChanges(all, base, block, runs) || again;
      }
    }
  }
  if (!runs.empty()) sendRuns(runs);
}

uint64_t blockOf(uint64_t address, uint64_t bytes) {
  if (address - kWindow >= kWindowBytes) return 0;
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  return block != nullptr && bytes <= block->bytes - (address - base) ? base : 0;
}

void noteNamed(uint64_t address) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  (void)name(all, address);
}

std::vector<uint64_t> namedBlocks() {
  std::vector<uint64_t> named;
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  for (const auto& [base, block] : all.blocks) {
    if (!block.agreed.empty()) named.push_back(block.there);
  }
  return named;
}

CUresult awaitNamed() {
  std::vector<std::pair<uint64_t, uint64_t>> named;
  {
    Memory& all = memory();
    std::lock_guard lock(all.mutex);
    for (const auto& [base, block] : all.blocks) {
      if (!block.agreed.empty()) named.emplace_back(base, block.bytes);
    }
  }
  for (const auto& [base, bytes] : named) {
    if (const CUresult result = awaitMemory(base, bytes, true); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

namespace {
// Whether kernels can reach the block there.
bool isNamed(uint64_t address) {
  Memory& all = memory();
  if (all.exchanged.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = find(all, address, &base);
  return block != nullptr && !block->agreed.empty();
}
}  // namespace

CUresult awaitMemory(uint64_t address, uint64_t bytes, bool by_kernel) {
  Session* const session = Session::existing();
  if (session == nullptr) return CUDA_SUCCESS;
  // What other threads launch from now on does not count.
  const uint64_t changes = !by_kernel && isNamed(address) ? session->changesExpected() : 0;
  const auto comes = [&] { return !session->changesAnswered(changes) || session->bytesOutstanding(address, bytes); };
  if (!comes()) return CUDA_SUCCESS;
  // Everything of the context: which stream it comes in nobody noted.
  if (const CUresult result = ol_forward_generated_cuCtxSynchronize(); result != CUDA_SUCCESS) return result;
  if (!comes()) return CUDA_SUCCESS;
  base::warnOnce("await", "a copy reads pinned memory into which a copy of another context is still to write: refused");
  return CUDA_ERROR_NOT_READY;
}

void takePinned(uint64_t address, std::span<const std::byte> bytes) {
  Memory& all = memory();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  Block* block = findThere(all, address, &base);
  if (block == nullptr || !isCopied(*block)) return;
  const uint64_t offset = address - block->there;
  if (bytes.size() > block->bytes - offset) return;
  std::memcpy(reinterpret_cast<void*>(base + offset), bytes.data(), bytes.size());
  if (!block->agreed.empty()) std::memcpy(block->agreed.data() + offset, bytes.data(), bytes.size());
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are C functions

extern "C" {

CUresult ol_forward_cuMemHostAlloc(void** out, size_t bytes, unsigned flags) { return allocate(out, bytes, flags); }
CUresult ol_forward_cuMemAllocHost_v2(void** out, size_t bytes) { return allocate(out, bytes, 0); }
CUresult ol_forward_cuMemAllocHost(void** out, unsigned bytes) { return allocate(out, bytes, 0); }
CUresult ol_forward_cuMemFreeHost(void* pointer) { return releaseBlock(reinterpret_cast<uint64_t>(pointer), false); }

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
    return found != all.blocks.end() && found->second.kind == Kind::kRegistered ? found : all.blocks.end();
  };
  olpager::transport::RegionPtr region;
  {
    std::lock_guard lock(all.mutex);
    if (find() == all.blocks.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  // What asynchronous copies still move: those that bring bytes, and those that the worker has not come to.
  (void)awaitMemory(address, blockBytes(address));
  if (const CUresult result = dropMirror(address); result != CUDA_SUCCESS) return result;
  Call call(Operation::kHostBytes);
  (void)call.sync();
  std::lock_guard lock(all.mutex);
  const auto found = find();
  if (found == all.blocks.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  region = std::move(found->second.region);
  all.blocks.erase(found);
  return CUDA_SUCCESS;
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

CUresult ol_forward_cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer, unsigned flags) {
  if (device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  BlockInfo block;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  if (!blockAt(address, &block) || block.managed) return CUDA_ERROR_INVALID_VALUE;
  if (block.registered) return mirrored(address, device);
  *device = address;
  return CUDA_SUCCESS;
}

}  // extern "C"
