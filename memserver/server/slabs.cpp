#include "memserver/server/slabs.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/size.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace olpager::memserver {
namespace {

constexpr uint64_t kGrain =
    4ull << 20;  // zeroed by one thread at a time; touched before it is said

// On a boundary of huge pages.
std::byte* mapAligned(uint64_t bytes, int fd) {
  const uint64_t room = bytes + kFramePageBytes;
  void* area = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(area);
  const uintptr_t aligned = (start + kFramePageBytes - 1) / kFramePageBytes * kFramePageBytes;
  void* base = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                    MAP_FIXED | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS), fd, 0);
  const int error = errno;
  if (aligned != start) munmap(area, aligned - start);
  if (const uintptr_t end = aligned + bytes; end != start + room) {
    munmap(reinterpret_cast<void*>(end), start + room - end);
  }
  if (base == MAP_FAILED) {
    munmap(reinterpret_cast<void*>(aligned), bytes);
    errno = error;
    return nullptr;
  }
  return static_cast<std::byte*>(base);
}

// By the kernel where it can say that there is no memory; else by hand.
bool touchPiece(std::byte* base, uint64_t bytes) {
  int result = 0;
  do {
    result = madvise(base, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EAGAIN || errno == EINTR));
  if (result == 0) return true;
  if (errno != EINVAL) return false;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t at = 0; at < bytes; at += page)
    reinterpret_cast<volatile std::byte*>(base)[at] = std::byte{0};
  return true;
}

bool touch(std::byte* base, uint64_t bytes, const std::function<void(uint64_t)>& touched) {
  for (uint64_t at = 0; at < bytes; at += kGrain) {
    const uint64_t piece = std::min(kGrain, bytes - at);
    if (!touchPiece(base + at, piece)) return false;
    if (touched) touched(piece);
  }
  return true;
}

}  // namespace

Result<SlabPtr> SlabMemory::make(const SlabOptions& options, SlabKind kind,
                                 const std::function<void(uint64_t)>& touched) {
  SlabPtr slab(new SlabMemory);
  slab->kind_ = kind;
  const auto failed = [&](const char* what) {
    return Error{base::format("{} of memory can't be had: {}: {}", base::formatSize(options.bytes),
                              what, std::strerror(errno))};
  };
  if (kind == SlabKind::kShared) {
    slab->fd_ = base::UniqueFd(memfd_create("olpager-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!slab->fd_) return failed("memfd_create");
    if (!base::resizeFile(slab->fd_.get(), options.bytes)) return failed("ftruncate");
    if (fcntl(slab->fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      return failed("seals");
  }
  slab->base_ = mapAligned(options.bytes, slab->fd_.get());
  if (slab->base_ == nullptr) return failed("mmap");
  slab->bytes_ = options.bytes;
  madvise(slab->base_, slab->bytes_, MADV_DONTDUMP);
  madvise(slab->base_, slab->bytes_, MADV_DONTFORK);
  if (options.huge) madvise(slab->base_, slab->bytes_, MADV_HUGEPAGE);
  if (options.numa_node >= 0 && options.numa_node < 1024) {
    unsigned long nodes[1024 / (8 * sizeof(unsigned long))] = {};
    constexpr int kBits = 8 * sizeof(unsigned long);
    nodes[options.numa_node / kBits] = 1ul << (options.numa_node % kBits);
    if (syscall(SYS_mbind, slab->base_, slab->bytes_, MPOL_PREFERRED, nodes, 1024ul, 0u) != 0) {
      base::warnOnce("mbind", "memory can't be bound to NUMA node %d: %s", options.numa_node,
                     std::strerror(errno));
    }
  }
  if (!touch(slab->base_, slab->bytes_, touched)) return failed("touching it");
  if (options.lock && mlock(slab->base_, slab->bytes_) != 0) {
    base::warnOnce("mlock",
                   "memory can't be locked and may be swapped out: %s (raise the limit: ulimit -l)",
                   std::strerror(errno));
  }
  auto region = transport::registerMemory(options.domain, slab->memory(), transport::kLends);
  if (!region.ok()) return region.error();
  slab->region_ = std::move(region.value());
  return slab;
}

SlabMemory::~SlabMemory() {
  region_.reset();  // no card has it any more
  if (fd_)
    fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_));
  if (base_ != nullptr) munmap(base_, bytes_);
}

SlabStore::SlabStore(const SlabOptions& options, tbb::task_arena& arena,
                     std::function<void()> freed)
    : options_(options), arena_(arena), freed_(std::move(freed)) {}

SlabStore::~SlabStore() {
  Lock lock(mutex_);
  idle_.wait(lock, [&] { return tasks_ == 0; });
}

Status SlabStore::fill(SlabKind kind, const std::function<bool(uint64_t)>& more) {
  uint64_t slabs = 0;
  {
    std::lock_guard lock(mutex_);
    slabs = (figures_.target - std::min(figures_.target, figures_.donated())) / options_.bytes;
  }
  std::mutex ask_mutex, why_mutex;
  std::string why;
  std::atomic<bool> stop{false};
  arena_.execute([&] {
    tbb::parallel_for(tbb::blocked_range<uint64_t>(0, slabs, 1),
                      [&](const tbb::blocked_range<uint64_t>& range) {
                        for (uint64_t i = range.begin(); i != range.end() && !stop.load(); ++i) {
                          {
                            // One at a time: the next caller is told of what this one begins.
                            std::lock_guard asking(ask_mutex);
                            if (stop.load()) return;
                            if (!more(figures().donated())) {
                              stop.store(true);
                              return;
                            }
                            untouched_.fetch_add(options_.bytes);
                          }
                          uint64_t left = options_.bytes;
                          auto made = SlabMemory::make(options_, kind, [&](uint64_t bytes) {
                            left -= bytes;
                            untouched_.fetch_sub(bytes);
                          });
                          if (!made.ok()) {
                            untouched_.fetch_sub(left);
                            std::lock_guard lock(why_mutex);
                            why = made.error().message;
                            stop.store(true);
                            return;
                          }
                          std::lock_guard lock(mutex_);
                          free_.push_back(std::move(made.value()));
                          figures_.free += options_.bytes;
                        }
                      });
  });
  if (!why.empty()) return Error{why};
  return {};
}

bool SlabStore::grow(SlabKind kind) {
  {
    std::lock_guard lock(mutex_);
    if (figures_.donated() + making_ + options_.bytes > figures_.target) return false;
    making_ += options_.bytes;
  }
  auto made = SlabMemory::make(options_, kind);
  {
    std::lock_guard lock(mutex_);
    making_ -= options_.bytes;
  }
  if (!made.ok()) return false;
  put(std::move(made.value()));
  return true;
}

SlabPtr SlabStore::take(SlabKind kind) {
  SlabPtr old;
  {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return nullptr;
    auto place =
        std::find_if(free_.begin(), free_.end(), [&](auto& slab) { return slab->kind() == kind; });
    const bool right = place != free_.end();
    if (!right) place = free_.begin();
    old = std::move(*place);
    free_.erase(place);
    figures_.free -= options_.bytes;
    figures_.lent += options_.bytes;
    if (right) return old;
  }
  old.reset();
  auto made = SlabMemory::make(options_, kind);
  if (made.ok()) return std::move(made.value());
  base::logWarn("%s", made.error().message.c_str());
  std::lock_guard lock(mutex_);
  figures_.lent -= options_.bytes;
  return nullptr;
}

void SlabStore::giveBack(SlabPtr slab, bool handed_out) {
  {
    std::lock_guard lock(mutex_);
    figures_.lent -= options_.bytes;
    figures_.cleaning += options_.bytes;
    ++tasks_;
  }
  auto* raw = slab.release();  // tasks are copied
  arena_.enqueue([this, raw, handed_out] {
    clean(SlabPtr(raw), handed_out);
    // Under the lock: the store is gone once nobody is at work.
    std::lock_guard lock(mutex_);
    if (--tasks_ == 0) idle_.notify_all();
  });
}

void SlabStore::clean(SlabPtr slab, bool handed_out) {
  bool wanted = true;
  {
    std::lock_guard lock(mutex_);
    wanted = figures_.donated() <= figures_.target;
    if (!wanted) figures_.returned += options_.bytes;
  }
  const SlabKind kind = slab->kind();
  if (!wanted || handed_out) slab.reset();
  if (wanted && handed_out) {
    auto made = SlabMemory::make(options_, kind);
    if (made.ok()) {
      slab = std::move(made.value());
    } else {
      base::logWarn("%s", made.error().message.c_str());
    }
  } else if (wanted) {
    tbb::parallel_for(tbb::blocked_range<uint64_t>(0, options_.bytes, kGrain),
                      [&](const tbb::blocked_range<uint64_t>& range) {
                        std::memset(slab->base() + range.begin(), 0, range.size());
                      });
  }
  {
    std::lock_guard lock(mutex_);
    figures_.cleaning -= options_.bytes;
    if (slab) (handed_out ? figures_.replaced : figures_.zeroed) += options_.bytes;
  }
  if (slab) {
    put(std::move(slab));
  } else {
    freed_();
  }
}

void SlabStore::put(SlabPtr slab) {
  {
    std::lock_guard lock(mutex_);
    if (figures_.donated() + options_.bytes <= figures_.target) {
      free_.push_back(std::move(slab));
      figures_.free += options_.bytes;
    } else {
      figures_.returned += options_.bytes;
    }
  }
  slab.reset();
  freed_();
}

void SlabStore::setTarget(uint64_t bytes) {
  std::vector<SlabPtr> surplus;
  {
    std::lock_guard lock(mutex_);
    figures_.target = bytes;
    while (!free_.empty() && figures_.donated() > bytes) {
      surplus.push_back(std::move(free_.back()));
      free_.pop_back();
      figures_.free -= options_.bytes;
      figures_.returned += options_.bytes;
    }
  }
}

SlabStore::Figures SlabStore::figures() const {
  std::lock_guard lock(mutex_);
  return figures_;
}

}  // namespace olpager::memserver
