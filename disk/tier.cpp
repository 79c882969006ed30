#include "disk/tier.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "base/held_signals.h"
#include "base/log.h"
#include "pager/clock.h"
#include "pager/counters/counters.h"
#include "pager/kernels/hash_and_scan.h"

namespace olpager::disk {
namespace {

constexpr unsigned kDepth = 4;                // pages of a worker at a time
constexpr unsigned kMostAttempts = 8;         // of a request that moves nothing
constexpr std::chrono::seconds kPatience{2};  // with a disk, at the end
constexpr uint32_t kAlignment = 4096;         // of what O_DIRECT moves

unsigned workersHere() { return std::clamp(std::thread::hardware_concurrency() / 2, 2u, 4u); }

// Before a request that moved nothing is made again: 1 ms, and twice as long each time.
void pauseBefore(unsigned attempt) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1u << (attempt - 1)));
}

}  // namespace

struct DiskTier::Worker {
  Worker() = default;
  ~Worker() {
    if (memory != nullptr) munmap(memory, kDepth * kPlaceBytes);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Not in a forked child, where a disk would write to what the child has instead.
  Status open(const TierOptions& options, const CipherKey* key) {
    void* const got = mmap(nullptr, kDepth * kPlaceBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) return Error{"disk: no host RAM is left for what goes to disks"};
    memory = static_cast<std::byte*>(got);
    (void)madvise(memory, kDepth * kPlaceBytes, MADV_DONTFORK);
    (void)madvise(memory, kDepth * kPlaceBytes, MADV_DONTDUMP);
    for (unsigned i = 0; i < kDepth; ++i) {
      pages[i].memory = memory + i * kPlaceBytes;
      free.push_back(i);
    }
    ends.reserve(kDepth);
    came.reserve(kDepth);
    queue = options.queues(kDepth);
    if (key == nullptr) return {};
    auto made = PageCipher::make(*key);
    if (!made.ok()) return made.error();
    cipher = std::move(made).value();
    return {};
  }

  std::byte* memory = nullptr;
  std::unique_ptr<IoQueue> queue;
  std::unique_ptr<PageCipher> cipher;
  Moving pages[kDepth];
  std::vector<unsigned> free;  // of `pages`
  Moving* in_hand = nullptr;   // neither free nor with the queue
  std::vector<IoEnd> ends;     // that are not looked at yet, the next one last
  std::vector<IoEnd> came;
  std::thread thread;
  // Under the tier's mutex_:
  bool runs = false;
  bool at_disk = false;
};

// While a worker is with the kernel, which may not let it go.
class DiskTier::AtDisk {
 public:
  AtDisk(DiskTier& tier, Worker& worker) : tier_(tier), worker_(worker) { set(true); }
  ~AtDisk() { set(false); }
  AtDisk(const AtDisk&) = delete;
  AtDisk& operator=(const AtDisk&) = delete;

 private:
  void set(bool is) {
    std::lock_guard lock(tier_.mutex_);
    worker_.at_disk = is;
    if (tier_.closing_) tier_.left_.notify_all();
  }
  DiskTier& tier_;
  Worker& worker_;
};

Status DiskTier::open() {
  if (Status opened = files_.open(options_.folders); !opened.ok()) return opened;
  if (options_.encrypt) {
    auto key = CipherKey::make();
    if (!key.ok()) return key.error();
    key_ = std::move(key).value();
  }
  const unsigned count = options_.workers != 0 ? options_.workers : workersHere();
  for (unsigned i = 0; i < count; ++i) {
    auto worker = std::make_unique<Worker>();
    if (Status opened = worker->open(options_, key_.get()); !opened.ok()) return opened;
    workers_.push_back(std::move(worker));
  }
  publish();
  try {
    for (const auto& worker : workers_) {
      worker->runs = true;
      worker->thread = base::ownThread([this, at = worker.get()] { work(*at); });
    }
  } catch (const std::system_error& error) {
    for (const auto& worker : workers_) worker->runs = worker->thread.joinable();
    if (!workers_.front()->thread.joinable())
      return Error{std::string("disk: no thread can be started: ") + error.what()};
    // With those that there are.
  }
  return {};
}

DiskTier::DiskTier(const TierOptions& options) : options_(options) {}

DiskTier::~DiskTier() = default;

bool DiskTier::close() {
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    const auto all = [&](auto is) { return std::all_of(workers_.begin(), workers_.end(), is); };
    const auto hasEnded = [](const auto& worker) { return !worker->runs; };
    if (!left_.wait_for(lock, kPatience, [&] { return all(hasEnded); })) {
      // Others are soon through with memory of transfers.
      left_.wait(lock, [&] {
        return all([](const auto& worker) { return !worker->runs || worker->at_disk; });
      });
      abandoned_ = !all(hasEnded);
    }
  }
  if (abandoned_)
    base::logError(
        "disk: a disk does not answer: what it was told to read and write is left to it, and its "
        "threads stay until the process ends. Is it well (dmesg)?");
  for (const auto& worker : workers_) {
    if (!worker->thread.joinable()) continue;
    abandoned_ ? worker->thread.detach() : worker->thread.join();
  }
  return !abandoned_;
}

// ---- what callers do

void DiskTier::setWake(std::function<void()> wake) {
  std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
  if (wake_) wake_();  // what ended before
}

void DiskTier::send(uint64_t address, const void* memory, uint64_t bytes,
                    const pager::ContentHash* hash) {
  std::lock_guard lock(mutex_);
  if (closing_) return;
  forget(address);
  auto places = files_.take(bytes / kPlaceBytes, pager::nowNs());
  if (!places) return finish(address, true, Outcome::kNoRoom, {});
  for (Place& place : *places) place.number = ++writings_;
  Copy& copy = copies_[address];
  copy.bytes = bytes;
  copy.places = std::move(*places);
  if (hash != nullptr) copy.hash = *hash;
  Transfer& transfer = transfers_[address];
  transfer.address = address;
  transfer.send = true;
  transfer.memory = static_cast<std::byte*>(const_cast<void*>(memory));  // read only
  transfer.copy = &copy;
  transfer.hash_known = hash != nullptr;
  transfer.hashes.resize(bytes / kPlaceBytes);
  wait(transfer, false);
}

void DiskTier::receive(uint64_t address, void* memory, uint64_t bytes, bool urgent) {
  std::lock_guard lock(mutex_);
  if (closing_) return;
  const auto found = copies_.find(address);
  if (found == copies_.end() || found->second.bytes != bytes)
    return finish(address, false, Outcome::kLost, {});
  Transfer& transfer = transfers_[address];
  transfer.address = address;
  transfer.memory = static_cast<std::byte*>(memory);
  transfer.copy = &found->second;
  transfer.hashes.resize(bytes / kPlaceBytes);
  wait(transfer, urgent);
}

// A send that a launch waits for is of no use to anybody: the bytes are wanted where they are.
void DiskTier::raise(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = transfers_.find(address);
  if (found == transfers_.end() || !found->second.waits) return;
  if (found->second.send) return stop(found->second);
  unqueue(found->second);
  wait(found->second, true);
}

void DiskTier::giveUp(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = transfers_.find(address);
  if (found != transfers_.end() && !found->second.send && found->second.waits) stop(found->second);
}

bool DiskTier::holds(uint64_t address, const pager::ContentHash& hash) const {
  std::lock_guard lock(mutex_);
  const auto found = copies_.find(address);
  return found != copies_.end() && found->second.whole && found->second.hash == hash;
}

std::vector<uint64_t> DiskTier::heldAddresses() const {
  std::lock_guard lock(mutex_);
  std::vector<uint64_t> held;
  held.reserve(copies_.size());
  for (const auto& [address, copy] : copies_)
    if (copy.whole) held.push_back(address);
  return held;
}

bool DiskTier::drop(uint64_t address) {
  std::lock_guard lock(mutex_);
  const bool held = copies_.contains(address);
  forget(address);
  publish();
  return held;
}

std::vector<pager::LowerTier::Finished> DiskTier::take() {
  std::vector<Finished> all;
  std::lock_guard lock(mutex_);
  all.reserve(transfers_.size());
  all.swap(finished_);
  return all;
}

pager::TierFigures DiskTier::figures() const {
  std::lock_guard lock(mutex_);
  pager::TierFigures now = figures_;
  now.disk_bytes = now.capacity_bytes = files_.capacity(pager::nowNs()) * kPlaceBytes;
  return now;
}

// ---- transfers, under mutex_

void DiskTier::wait(Transfer& transfer, bool first) {
  // A worker needs no memory to end it.
  const size_t ends = finished_.size() + transfers_.size();
  if (finished_.capacity() < ends) finished_.reserve(2 * ends);
  (first ? urgent_ : waiting_).push_back(&transfer);
  transfer.waits = true;
  changed_.notify_all();
}

void DiskTier::unqueue(Transfer& transfer) {
  if (!std::exchange(transfer.waits, false)) return;
  std::erase(urgent_, &transfer);
  std::erase(waiting_, &transfer);
}

void DiskTier::stop(Transfer& transfer) {
  unqueue(transfer);
  transfer.stopped = true;
  if (transfer.under_way == 0) end(transfer, false);
}

// All that was begun is over. `right`: of a receive, the bytes are.
void DiskTier::end(Transfer& transfer, bool right) {
  Copy& copy = *transfer.copy;
  const uint64_t address = transfer.address;
  const bool sent = transfer.send, whole = transfer.allBegun() && !transfer.failed;
  const bool lost = !sent && (transfer.lost || (whole && !right));
  const pager::ContentHash hash = copy.hash;
  transfers_.erase(address);
  if (sent && whole) {
    copy.whole = true;
    figures_.held_bytes += copy.bytes;
  } else if (sent || lost) {
    if (lost) figures_.lost_bytes += copy.bytes;
    forget(address);
  }
  if (sent) return finish(address, true, whole ? Outcome::kDone : Outcome::kNoRoom, hash);
  finish(address, false, lost ? Outcome::kLost : whole ? Outcome::kDone : Outcome::kNotNow, hash);
}

void DiskTier::forget(uint64_t address) {
  const auto found = copies_.find(address);
  if (found == copies_.end()) return;
  if (found->second.whole) figures_.held_bytes -= found->second.bytes;
  files_.give(found->second.places);
  copies_.erase(found);
}

// A worker rings: whoever calls may have locks that wake_ takes.
void DiskTier::finish(uint64_t address, bool sent, Outcome outcome,
                      const pager::ContentHash& hash) {
  finished_.push_back({address, sent, outcome, hash});
  must_wake_ = true;
  publish();
  changed_.notify_one();
}

void DiskTier::publish() {
  pager::DiskCounters& disk = pager::counters().disk;
  pager::set(disk.capacity_bytes, files_.capacity(pager::nowNs()) * kPlaceBytes);
  pager::set(disk.held_bytes, figures_.held_bytes);
}

// ---- workers

void DiskTier::work(Worker& worker) {
  for (;;) {
    try {
      if (!step(worker)) break;
    } catch (const std::exception& error) {
      leave(worker, error.what());
    }
  }
  // Notified under the lock: the tier may be gone right after it.
  std::lock_guard lock(mutex_);
  worker.runs = false;
  left_.notify_all();
}

// False: the tier ends.
bool DiskTier::step(Worker& worker) {
  bool rings = false;
  {
    std::unique_lock lock(mutex_);
    const auto isIdle = [&] { return worker.free.size() == kDepth && worker.ends.empty(); };
    changed_.wait(lock, [&] {
      return closing_ || must_wake_ || !isIdle() || !urgent_.empty() || !waiting_.empty();
    });
    if (abandoned_ || (closing_ && isIdle())) return false;
    rings = std::exchange(must_wake_, false);
    auto& from = urgent_.empty() ? waiting_ : urgent_;
    if (!closing_ && !from.empty() && !worker.free.empty()) {
      Transfer& transfer = *from.front();
      Moving& next = worker.pages[worker.free.back()];
      worker.free.pop_back();
      next = {.transfer = &transfer, .page = transfer.next++, .memory = next.memory};
      next.place = transfer.copy->places[next.page];
      worker.in_hand = &next;
      ++transfer.under_way;
      if (transfer.allBegun()) unqueue(transfer);
    }
  }
  if (rings) {
    std::lock_guard lock(wake_mutex_);
    if (wake_) wake_();
  }
  bool goes_on = true;
  if (worker.in_hand != nullptr) {
    goes_on = begin(worker, *worker.in_hand);
  } else if (!worker.ends.empty()) {
    const IoEnd end = worker.ends.back();
    worker.ends.pop_back();
    worker.in_hand = &worker.pages[end.tag];
    goes_on = ended(worker, *worker.in_hand, end.result);
  } else if (worker.free.size() < kDepth) {
    worker.came.clear();
    {
      const AtDisk at_disk(*this, worker);
      worker.queue->wait(worker.came);
    }
    worker.ends.assign(worker.came.rbegin(), worker.came.rend());
  }
  if (!goes_on) worker.free.push_back(static_cast<unsigned>(worker.in_hand - worker.pages));
  worker.in_hand = nullptr;
  return true;
}

// Memory was refused, to the tier or to what wake_ calls.
void DiskTier::leave(Worker& worker, const char* why) {
  base::logError(
      "disk: a thread could not go on (%s): what it moved stays where it is for now. Is memory "
      "short?",
      why);
  if (Moving* const moving = std::exchange(worker.in_hand, nullptr); moving != nullptr) {
    pageOver(*moving, Over::kNotNow);
    worker.free.push_back(static_cast<unsigned>(moving - worker.pages));
  }
  pauseBefore(kMostAttempts);
}

// False, as of ended(): it is over already.
bool DiskTier::begin(Worker& worker, Moving& moving) {
  Transfer& transfer = *moving.transfer;
  if (transfer.send) {
    const std::byte* const from = transfer.memory + moving.page * kPlaceBytes;
    if (!transfer.hash_known) transfer.hashes[moving.page] = kernels::hashPage(from);
    if (worker.cipher == nullptr) {
      std::memcpy(moving.memory, from, kPlaceBytes);
    } else if (!worker.cipher->encrypt(moving.place.number, from, moving.memory, kPlaceBytes)) {
      return failed(worker, moving, ENOMEM);
    }
  }
  go(worker, moving);
  return true;
}

void DiskTier::go(Worker& worker, const Moving& moving) {
  Io io;
  io.fd = files_.descriptorOf(moving.place.file);
  io.file = files_.identityOf(moving.place.file);
  io.write = moving.transfer->send;
  io.offset = moving.place.page * kPlaceBytes + moving.done;
  io.memory = moving.memory + moving.done;
  io.bytes = static_cast<uint32_t>(kPlaceBytes) - moving.done;
  io.tag = static_cast<uint64_t>(&moving - worker.pages);
  const AtDisk at_disk(*this, worker);
  worker.queue->begin(io);
}

DiskTier::Failure DiskTier::failureOf(int error) {
  switch (error) {
    case EINTR:
    case EAGAIN:
    case ENOMEM:
      return Failure::kPassing;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Failure::kFull;
    case EBADF:
      return Failure::kGone;
    default:
      return Failure::kBroken;
  }
}

bool DiskTier::ended(Worker& worker, Moving& moving, int64_t result) {
  const bool send = moving.transfer->send;
  pager::DiskCounters& disk = pager::counters().disk;
  if (result > 0)
    pager::add(send ? disk.written_bytes : disk.read_bytes, static_cast<uint64_t>(result));
  int error = result < 0 ? static_cast<int>(-result) : 0;
  if (result == 0) error = EIO;  // the file ends here, and it was longer
  const auto goAgain = [&] {
    go(worker, moving);
    return true;
  };
  if (result > 0 && moving.done + result < static_cast<int64_t>(kPlaceBytes)) {
    const uint32_t more = static_cast<uint32_t>(result) & ~(kAlignment - 1);
    moving.done += more;
    moving.attempts = more > 0 ? 0 : moving.attempts + 1;
    if (moving.attempts < kMostAttempts) return goAgain();
    error = EIO;
  } else if (error != 0 && failureOf(error) == Failure::kPassing) {
    if (++moving.attempts < kMostAttempts) {
      pauseBefore(moving.attempts);
      return goAgain();
    }
  }
  if (error != 0 && !send && failureOf(error) == Failure::kBroken &&
      !std::exchange(moving.again, true))
    return goAgain();
  if (error == 0 && !send && !arrived(worker, moving)) error = ENOMEM;
  if (error != 0) return failed(worker, moving, error);
  pageOver(moving, Over::kWell);
  return false;
}

bool DiskTier::arrived(Worker& worker, const Moving& moving) {
  Transfer& transfer = *moving.transfer;
  std::byte* const to = transfer.memory + moving.page * kPlaceBytes;
  if (worker.cipher == nullptr) {
    std::memcpy(to, moving.memory, kPlaceBytes);
  } else if (!worker.cipher->decrypt(moving.place.number, moving.memory, to, kPlaceBytes)) {
    return false;
  }
  transfer.hashes[moving.page] = kernels::hashPage(to);
  return true;
}

// False, as of ended(): it is over. Else it is written to another file.
bool DiskTier::failed(Worker& worker, Moving& moving, int error) {
  tellFailure(moving, error);
  const bool passing = failureOf(error) == Failure::kPassing;
  if (moving.transfer->send && !passing && goesElsewhere(moving)) return begin(worker, moving);
  pageOver(moving, passing ? Over::kNotNow : Over::kFailed);
  return false;
}

void DiskTier::tellFailure(const Moving& moving, int error) {
  const char* const path = files_.pathOf(moving.place.file).c_str();
  const char* const text = std::strerror(error);
  const bool send = moving.transfer->send;
  const Failure failure = failureOf(error);
  bool first = true;
  if (failure == Failure::kGone || (send && failure != Failure::kPassing)) {
    std::lock_guard lock(mutex_);
    failure == Failure::kFull ? files_.full(moving.place.file, pager::nowNs())
                              : void(first = files_.broken(moving.place.file));
  }
  if (failure == Failure::kGone) {
    if (first)
      base::logError(
          "disk: the program has closed the descriptor of olpager's file in %s; its memory that "
          "lay there is lost, and nothing more is written there. Let closefrom() and its like "
          "spare descriptors that the program has not opened",
          path);
  } else if (failure == Failure::kPassing) {
    base::logWarn("disk: %s in %s is refused for now: %s; it is tried again. Is memory short?",
                  send ? "writing" : "reading", path, text);
  } else if (!send) {
    base::logError(
        "disk: reading in %s failed: %s; the program's memory that lay there is lost. Is the disk "
        "well (dmesg)?",
        path, text);
  } else if (failure == Failure::kFull) {
    base::warnOnce(std::string("disk is full ") + path,
                   "disk: %s has no room left: %s; what has no other room stays in RAM. Free some, "
                   "or name a smaller size",
                   path, text);
  } else {
    base::logError(
        "disk: writing in %s failed: %s; nothing more is written there, and what has no "
        "other room stays in RAM",
        path, text);
  }
}

// A page that its file did not take gets a place in another one. False: there is none, or nobody
// wants it any more.
bool DiskTier::goesElsewhere(Moving& moving) {
  std::lock_guard lock(mutex_);
  Transfer& transfer = *moving.transfer;
  if (closing_ || transfer.stopped || ++moving.moves > options_.folders.size()) return false;
  const auto places = files_.take(1, pager::nowNs());
  if (!places) return false;
  Place& place = transfer.copy->places[moving.page];
  place.has_room = false;  // whatever it had: the file system gives it none now
  files_.give(place);
  place = places->front();
  place.number = ++writings_;
  moving.place = place;
  moving.done = 0;
  moving.attempts = 0;
  return true;
}

void DiskTier::tellWrong(const Copy& copy) const noexcept {
  std::string all;
  try {
    std::set<std::string> folders;
    for (const Place& place : copy.places) folders.insert(files_.pathOf(place.file));
    for (const std::string& folder : folders) all += (all.empty() ? "" : ", ") + folder;
  } catch (const std::exception&) {
    all.clear();  // memory is short
  }
  base::logError(
      "disk: wrong bytes came back for %llu MiB in %s; the program's memory that lay there is "
      "lost. Is the disk well (dmesg)?",
      static_cast<unsigned long long>(copy.bytes >> 20),
      all.empty() ? "one of the folders" : all.c_str());
}

void DiskTier::pageOver(const Moving& moving, Over how) {
  Transfer& transfer = *moving.transfer;
  bool right = false;
  {
    std::unique_lock lock(mutex_);
    Place& place = transfer.copy->places[moving.page];
    if (how == Over::kWell) {
      if (transfer.send) place.has_room = true;
      (transfer.send ? figures_.sent_bytes : figures_.received_bytes) += kPlaceBytes;
    } else {
      transfer.failed = transfer.stopped = true;
      if (how == Over::kFailed && !transfer.send) transfer.lost = place.bad = true;
      unqueue(transfer);
    }
    --transfer.under_way;
    if (transfer.under_way > 0 || (!transfer.allBegun() && !transfer.stopped)) return;
    if (transfer.failed || !transfer.allBegun()) return end(transfer, false);
    // Counted as under way: nobody else ends it.
    ++transfer.under_way;
  }
  const auto& hashes = transfer.hashes;
  if (transfer.send && !transfer.hash_known)
    transfer.copy->hash = kernels::combineHashes(hashes.data(), hashes.size());
  if (!transfer.send) {
    right = kernels::combineHashes(hashes.data(), hashes.size()) == transfer.copy->hash;
    if (!right) tellWrong(*transfer.copy);
  }
  std::lock_guard lock(mutex_);
  --transfer.under_way;
  if (!transfer.send && !right)
    for (Place& place : transfer.copy->places) place.bad = true;
  end(transfer, right);
}

}  // namespace olpager::disk
