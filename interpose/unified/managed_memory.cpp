#include "interpose/unified/managed_memory.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "base/format.h"
#include "base/held_signals.h"
#include "base/log.h"
#include "base/size.h"
#include "base/space/pages.h"
#include "coherence/transport/regions.h"
#include "forwarding/wire/copies.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/managed.h"
#include "interpose/forward/session.h"
#include "interpose/unified/unfinished.h"

namespace olpager::unified {

using cpu::Frames;
using cpu::UserFault;
using forward::Call;
using forward::Named;
using space::kPageBytes;

namespace {

using namespace std::chrono_literals;

constexpr uint32_t kPiece = 8;    // pages of one copy
constexpr size_t kUnderWay = 4;   // copies
constexpr uint64_t kFilled = 32;  // pages of frames that keep their memory without a use
constexpr auto kLook = 20ms;      // between looks whether a wait is still of use
constexpr auto kLong = 1s;        // a wait that is told
constexpr auto kLast = 1s;        // for the thread, at the program's end

// Copies of this thread's own: they are no use of managed memory that anybody gives pages for.
thread_local bool t_copies = false;

bool isHere(auto at) { return at == decltype(at)::kRead || at == decltype(at)::kWritten; }

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

ManagedMemory::~ManagedMemory() { stop(); }

bool ManagedMemory::available() {
  const std::lock_guard lock(mutex_);
  if (stopping_) return false;
  if (!std::exchange(tried_, true) && paged_) {
    if (const Status started = start(); !started.ok())
      base::logWarn(
          "unified view: managed memory is in the host memory of the GPU's gpunode, not spread: %s",
          started.error().message.c_str());
  }
  return faults_ != nullptr;
}

Status ManagedMemory::start() {
  auto faults = cpu::openUserFaults();
  if (!faults) return faults.error();
  // The system's reads and writes of the program's memory would fail there.
  if (faults.value()->reach() != cpu::UserFaults::Reach::kAll) return Error{faults.value()->why()};
  bell_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell_) return Error{std::string("no descriptor for it: ") + std::strerror(errno)};
  faults_ = std::move(faults.value());
  base::signalsMatter();
  Status result;
  try {
    thread_ = base::ownThread([this] { serve(); });
  } catch (const std::exception& error) {
    faults_.reset();
    result = Error{std::string("no thread for it: ") + error.what() +
                   " (see ulimit -u and the cgroup's pids.max)"};
  }
  runs_ = result.ok();
  return result;
}

void ManagedMemory::stop() noexcept {
  stopping_ = true;
  if (!runs_) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(bell_.get(), &one, sizeof one);
  if (!thread_.joinable()) return;
  // A copy may be under way, in a session that is at its end: then the thread ends when that has.
  std::unique_lock lock(end_mutex_);
  const bool ended = end_.wait_for(lock, kLast, [&] { return ended_; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

// By the thread, which serves no more.
void ManagedMemory::end() {
  std::unique_lock lock(mutex_);
  for (auto& [base, region] : regions_) {
    const auto pages = static_cast<uint32_t>(region.at.size());
    for (uint32_t page = 0; page < pages; ++page) {
      Run run{page, 0};
      while (page + run.count < pages && region.at[page + run.count] == At::kView) ++run.count;
      if (run.count == 0 || region.untouched) continue;
      (void)region.frames->lose(run.first, run.count);
      page += run.count - 1;
    }
    faults_->dismiss(base, region.frames->bytes());
  }
  base::logInfo("unified view: managed memory: %llu faults of the CPU, %s came to it, %s went back",
                static_cast<unsigned long long>(counters_.cpu_faults),
                base::formatSize(counters_.cpu_bytes_in).c_str(),
                base::formatSize(counters_.cpu_bytes_out).c_str());
  lock.unlock();
  const std::lock_guard end_lock(end_mutex_);
  ended_ = true;
  end_.notify_all();
}

// --- allocations ---------------------------------------------------------------------------------

ManagedMemory::Region* ManagedMemory::find(uint64_t address) {
  const auto after = regions_.upper_bound(address);
  if (after == regions_.begin()) return nullptr;
  Region& region = std::prev(after)->second;
  return region.frames->holds(address) ? &region : nullptr;
}

void ManagedMemory::noteBusy(const Region& region, bool was) {
  if (region.busy() == was) return;
  if (was) {
    busy_.fetch_sub(1, std::memory_order_release);
  } else {
    busy_.fetch_add(1, std::memory_order_release);
  }
}

CUresult ManagedMemory::streamOf(uint64_t context, CUstream* stream) {
  CUstream& its = streams_[context];
  if (its == nullptr) {
    const forward::WithContext with(context);
    const CUresult made = ol_forward_cuStreamCreate(&its, CU_STREAM_NON_BLOCKING);
    if (made != CUDA_SUCCESS) return made;
  }
  *stream = its;
  return CUDA_SUCCESS;
}

Status ManagedMemory::add(uint64_t base, uint64_t bytes, uint64_t context, unsigned flags) {
  const auto pages = static_cast<uint32_t>((bytes + kPageBytes - 1) / kPageBytes);
  // The CPU's view lies where nothing of the program's may be.
  if (mmap(pointer(base), pages * kPageBytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
    return Error{base::format("managed memory of {}: its addresses are in use here ({})",
                              base::formatSize(bytes), std::strerror(errno))};
  auto frames = Frames::make(base, pages, false, Frames::Memory::kByPage);
  if (!frames.ok()) {
    munmap(pointer(base), pages * kPageBytes);
    return frames.error();
  }
  const std::lock_guard lock(mutex_);
  Region region{.bytes = bytes,
                .context = context,
                .attached = flags,
                .frames = std::move(frames.value()),
                .at = std::vector<At>(pages, At::kView),
                .filled = std::vector<bool>(pages)};
  Status status;
  if (const CUresult made = streamOf(context, &region.stream); made != CUDA_SUCCESS) {
    status = Error{base::format("managed memory of {}: no stream for its copies (CUDA error {})",
                                base::formatSize(bytes), static_cast<int>(made))};
  } else {
    status = faults_->enlist(base, region.frames->bytes());
  }
  if (!status.ok()) {
    const uint64_t length = region.frames->bytes();
    region.frames.reset();
    munmap(pointer(base), length);
    return status;
  }
  const Region& added = regions_.emplace(base, std::move(region)).first->second;
  noteBusy(added, false);
  const std::lock_guard ranges_lock(ranges_mutex_);
  ranges_[base] = bytes;
  count_ = ranges_.size();
  return {};
}

void ManagedMemory::remove(uint64_t base) {
  {
    const std::lock_guard lock(ranges_mutex_);
    if (ranges_.erase(base) == 0) return;
    count_ = ranges_.size();
  }
  forward::forgetAdvice(base);
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(base);
  if (found == regions_.end()) return;
  Region& region = found->second;
  if (region.busy()) busy_.fetch_sub(1, std::memory_order_release);
  const uint64_t bytes = region.frames->bytes();
  noteFilled(region, {0, static_cast<uint32_t>(region.at.size())}, false);
  faults_->dismiss(base, bytes);
  region.frames.reset();
  munmap(pointer(base), bytes);
  regions_.erase(found);
}

void ManagedMemory::contextGone(uint64_t context) {
  const std::lock_guard lock(mutex_);
  streams_.erase(context);
}

std::optional<forward::ManagedRange> ManagedMemory::at(uint64_t address) {
  if (!any()) return std::nullopt;
  const std::shared_lock lock(ranges_mutex_);
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return std::nullopt;
  const auto& [base, bytes] = *std::prev(after);
  return address - base < bytes ? std::optional(forward::ManagedRange{base, bytes}) : std::nullopt;
}

void ManagedMemory::attach(uint64_t base, unsigned flags, CUstream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(base);
  if (found == regions_.end()) return;
  found->second.attached = flags;
  found->second.attached_to = stream;
}

// --- from the view to the CPU --------------------------------------------------------------------

void ManagedMemory::serve() {
  pthread_setname_np(pthread_self(), "olpager-faults");
  while (!stopping_) {
    std::array<pollfd, 2> waits{{{bell_.get(), POLLIN, 0}, {faults_->descriptor(), POLLIN, 0}}};
    poll(waits.data(), waits.size(), -1);
    // One at a time: a thread that waits for a published page is not in the queue any more. Served
    // late, its fault would take the page from a launch that was made since.
    UserFault fault;
    if (stopping_ || faults_->read({&fault, 1}) == 0) continue;
    try {
      serve(fault);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      Region* const region = find(fault.address);
      if (region == nullptr) continue;
      const uint64_t offset = fault.address - region->frames->address();
      lose(*region, {static_cast<uint32_t>(offset / kPageBytes), 1}, error.what());
    }
  }
  end();
}

// Launched work may still write what the CPU touches. `stream`: the only one that may use it, in
// that context; null: anything.
void ManagedMemory::awaitWork(uint64_t context, CUstream stream) {
  // To synchronise would end a capture. A function that is not over may be the one that touches.
  const auto isNoUse = [this] {
    return stopping_ || session_.ended() || session_.functions().outstanding();
  };
  if (forward::capturing() || isNoUse()) return;
  session_.group()->awaitKept();
  const auto begun = std::chrono::steady_clock::now();
  // Nobody knows whose the default stream of a thread is.
  if (stream == CU_STREAM_PER_THREAD) stream = nullptr;
  std::vector<uint64_t> contexts{context};
  if (stream == nullptr) contexts = forward::contextsOf(session_);
  for (const uint64_t one_of_them : contexts) {
    Unfinished one(session_, session_.group()->active(), one_of_them, stream, true);
    CUresult result = CUDA_SUCCESS;  // what has failed is for the program's own calls to tell
    while (one.begun && !one.call.finishWithin(kLook, &result)) {
      if (isNoUse()) return;
      if (std::chrono::steady_clock::now() - begun > kLong)
        base::warnOnce("managed touch",
                       "unified view: the CPU touches managed memory while a kernel runs at "
                       "gpunode %s, and waits for its end; synchronise before, or attach the "
                       "memory to the host (cuStreamAttachMemAsync)",
                       session_.executor().name().c_str());
    }
  }
}

void ManagedMemory::serve(const UserFault& fault) {
  const uint64_t place = fault.address / kPageBytes * kPageBytes;
  std::unique_lock lock(mutex_);
  Region* region = find(place);
  const auto pageOf = [&] {
    return static_cast<uint32_t>((place - region->frames->address()) / kPageBytes);
  };
  if (region != nullptr && region->at[pageOf()] == At::kView && !region->untouched &&
      region->attached != CU_MEM_ATTACH_HOST) {
    const uint64_t context = region->context;
    const bool single = region->attached == CU_MEM_ATTACH_SINGLE;
    const CUstream stream = single ? region->attached_to : nullptr;
    lock.unlock();
    awaitWork(context, stream);
    lock.lock();
    region = find(place);
  }
  if (region == nullptr) return faults_->wake(place, kPageBytes);
  status::grow(counters_.cpu_faults);
  const uint32_t page = pageOf();
  At& at = region->at[page];
  if (at == At::kLost) return faults_->wake(place, kPageBytes);
  if (at == At::kView) return bring(*region, page, fault);
  // The page is here: it was published meanwhile, the program has dropped it, or this is the first
  // write.
  if (at == At::kRead && fault.write) {
    at = At::kWritten;
    faults_->allowWrites(place, kPageBytes);
  }
  const bool writable = at == At::kWritten;
  while (!faults_->publish(place, kPageBytes, region->frames->basePage(), writable)) {
    // The program has dropped its bytes (MADV_REMOVE): zeros are in their place.
    if (!fill(*region, {page, 1})) return lose(*region, {page, 1}, "no host memory");
  }
}

directory::ExtentId ManagedMemory::firstOf(const Region& region) const {
  return static_cast<directory::ExtentId>(
      (region.frames->address() - session_.executor().description().placed) / kPageBytes);
}

bool ManagedMemory::fill(Region& region, Run run) {
  if (!region.frames->fill(run.first, run.count)) return false;
  noteFilled(region, run, true);
  return true;
}

void ManagedMemory::noteFilled(Region& region, Run run, bool filled) {
  for (uint32_t page = run.first; page < run.first + run.count; ++page) {
    if (region.filled[page] == filled) continue;
    region.filled[page] = filled;
    filled ? ++filled_ : --filled_;
  }
}

void ManagedMemory::bring(Region& region, uint32_t page, const UserFault& fault) {
  const directory::ExtentId first = firstOf(region);
  const auto pages = static_cast<uint32_t>(region.at.size());
  const auto ahead = touches_.fault(fault.thread, first + page, first + pages);
  Run run{page, 1};
  const uint32_t most = ahead.first == first + page + 1 ? 1 + ahead.count : 1;
  while (run.count < most && region.at[page + run.count] == At::kView) ++run.count;
  for (;;) {
    CUresult result = CUDA_SUCCESS;
    const bool filled = fill(region, run);
    if (filled && !region.untouched) result = copy(region, run, false);
    if (filled && result == CUDA_SUCCESS) break;
    if (run.count == 1)
      return lose(region, run,
                  filled ? base::format("CUDA error {}", static_cast<int>(result))
                         : std::string("no host memory"));
    run.count = 1;  // what was asked for ahead is not needed
  }
  if (!region.untouched) status::grow(counters_.cpu_bytes_in, run.count * kPageBytes);
  const bool writable = fault.write || !faults_->protects();
  std::fill_n(region.at.begin() + run.first, run.count, writable ? At::kWritten : At::kRead);
  const bool was_busy = region.busy();
  region.here += run.count;
  noteBusy(region, was_busy);
  (void)faults_->publish(region.frames->view(run.first), run.count * kPageBytes,
                         region.frames->basePage(), writable);
}

void ManagedMemory::lose(Region& region, Run run, const std::string& because) {
  const std::string why = session_.ended() ? "the session with its gpunodes has ended" : because;
  base::logError(
      "unified view: managed memory at %p can't come to the CPU (%s): to touch it is a "
      "SIGBUS from now on",
      pointer(region.frames->view(run.first)), why.c_str());
  const bool was_busy = region.busy();
  for (uint32_t page = run.first; page < run.first + run.count; ++page)
    region.here -= isHere(region.at[page]) ? 1 : 0;
  std::fill_n(region.at.begin() + run.first, run.count, At::kLost);
  noteBusy(region, was_busy);
  (void)region.frames->lose(run.first, run.count);
  faults_->wake(region.frames->view(run.first), run.count * kPageBytes);
}

// --- from the CPU to the view --------------------------------------------------------------------

bool ManagedMemory::mayUse(const forward::ManagedUse& use, const Region& region) {
  if (use.all || region.attached == CU_MEM_ATTACH_GLOBAL) return true;
  if (region.attached == CU_MEM_ATTACH_SINGLE &&
      use.stream.value_or(region.attached_to) == region.attached_to)
    return true;
  return std::any_of(use.named.begin(), use.named.end(),
                     [&](const Named& one) { return region.frames->holds(one.address); });
}

CUresult ManagedMemory::give(const forward::ManagedUse& use) {
  if (busy_.load(std::memory_order_acquire) == 0 || t_copies) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  for (auto& [base, region] : regions_) {
    if (!region.busy() || !mayUse(use, region)) continue;
    if (const CUresult given = give(region); result == CUDA_SUCCESS) result = given;
  }
  return result;
}

CUresult ManagedMemory::give(Region& region) {
  const bool was_busy = region.busy();
  region.untouched = false;
  const bool keeps = filled_ <= kFilled;
  const auto pages = static_cast<uint32_t>(region.at.size());
  CUresult failed = CUDA_SUCCESS;
  for (uint32_t page = 0; page < pages && region.here != 0; ++page) {
    const At kind = region.at[page];
    if (!isHere(kind)) continue;
    Run run{page, 0};
    while (page + run.count < pages && region.at[page + run.count] == kind) ++run.count;
    page += run.count - 1;
    // On return nobody writes the frames any more.
    if (!region.frames->drop(run.first, run.count)) {
      failed = CUDA_ERROR_OPERATING_SYSTEM;
      continue;
    }
    if (kind == At::kWritten) {
      forward::noteAddresses(&session_, region.frames->alias(run.first), run.count * kPageBytes);
      const CUresult result = copy(region, run, true);
      if (result != CUDA_SUCCESS) {  // a touch maps the frame again
        failed = result;
        continue;
      }
      status::grow(counters_.cpu_bytes_out, run.count * kPageBytes);
    }
    std::fill_n(region.at.begin() + run.first, run.count, At::kView);
    region.here -= run.count;
    if (keeps) continue;
    region.frames->empty(run.first, run.count);
    noteFilled(region, run, false);
  }
  touches_.forget(firstOf(region), pages);
  noteBusy(region, was_busy);
  if (failed != CUDA_SUCCESS)
    base::warnOnce("managed give",
                   "unified view: what the CPU wrote to managed memory can't go back (CUDA error "
                   "%d): operations fail, and the CPU keeps it",
                   static_cast<int>(failed));
  return failed;
}

// Returns when it is over.
CUresult ManagedMemory::copy(const Region& region, Run run, bool to_view) {
  struct Own {
    Own() { t_copies = true; }
    ~Own() { t_copies = false; }
  } const own;
  struct Piece {
    transport::RegionPtr memory;  // after the call: nobody touches it then
    std::unique_ptr<Call> call;
  };
  std::deque<Piece> under_way;
  CUresult first = CUDA_SUCCESS;
  const auto finish = [&] {
    const CUresult result = under_way.front().call->finish();
    under_way.pop_front();
    if (first == CUDA_SUCCESS) first = result;
  };
  for (uint32_t done = 0; done < run.count && first == CUDA_SUCCESS;) {
    const uint32_t page = run.first + done;
    const auto whereIs = [&](uint32_t one) {
      const uint64_t address = region.frames->view(one);
      const std::optional<unsigned> owner = home_.ownerOf(address);
      return owner ? owner : home_.placedAt(address);
    };
    const std::optional<unsigned> executor = whereIs(page);
    uint32_t pages = 1;
    while (pages < std::min(kPiece, run.count - done) && whereIs(page + pages) == executor) ++pages;
    auto memory = transport::registerMemory(
        session_.domain(),
        {region.frames->alias(page), pages * kPageBytes, region.frames->file(), page * kPageBytes},
        to_view ? transport::kRemoteRead : transport::kRemoteWrite);
    if (!memory.ok()) {
      first = CUDA_ERROR_OUT_OF_MEMORY;
      break;
    }
    forward::CopyHead head;
    head.stream = reinterpret_cast<uint64_t>(region.stream);
    head.device = region.frames->view(page);
    head.bytes = pages * kPageBytes;
    head.region = memory.value()->key();
    head.alone = 1;
    auto call = std::make_unique<Call>(
        to_view ? forward::Operation::kCopyIn : forward::Operation::kCopyOut, &session_);
    call->inContext(region.context);
    call->ofOurOwn();
    call->relaxed();
    if (executor) call->operatesAt(*executor);
    call->copy(head);
    call->mayWait();
    if (under_way.size() == kUnderWay) finish();
    if (first == CUDA_SUCCESS) first = call->begin(true);
    if (first == CUDA_SUCCESS) under_way.push_back({std::move(memory.value()), std::move(call)});
    done += pages;
  }
  while (!under_way.empty()) finish();
  return first;
}

}  // namespace olpager::unified
