// The tier of disks from within.
//
// A copy is in pages of 2 MiB, each in a place of its own (Files): pages of one copy lie on all
// disks. A page on its way is encrypted into memory of the worker that moves it, and written from
// there; or read into that, decrypted to where it belongs, and hashed. So no disk touches memory of
// the program's, and bytes that are wrong are never left as right ones.
//
// States of a copy: as lower_tier.h has them. A transfer is waiting (in urgent_ or waiting_) while
// pages of it are not begun, and ends when all that were begun have ended; a stopped one begins no
// more pages.
//
// Threads. Workers, as many as suit the machine, each with an IoQueue and memory for kDepth pages.
// Each takes the next page of the first transfer that waits, so a single large copy has all of
// them. Callers do what needs no disk themselves. A worker that gets no memory leaves the page that
// it has in hand, as a page that can't be moved now, and goes on.
//
// Failures of a page: what passes (memory that is refused) ends a transfer, and nothing is lost; a
// full or broken file has its pages written to another one; what can't be read in two attempts is
// lost, and so is all in a file whose descriptor the program has closed.
//
// Locks: mutex_, over all but what is a worker's own; nothing blocks under it, and nobody is
// called. wake_mutex_, held while wake_ runs, and by nobody who holds mutex_.
//
// The end. Requests that the kernel has can't be taken back, and a disk may hang for ever: close()
// leaves workers that wait for one where they are. Each is told when it comes back.
//
// Fork: a child closes descriptors and rings (transport::closeInForkedChild()), and has none of the
// threads; it never uses the tier.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "disk/cipher.h"
#include "disk/files.h"
#include "disk/io_queue.h"
#include "disk/open.h"
#include "pager/tiers/lower_tier.h"

namespace olpager::disk {

/// The calls of pager::LowerTier, with its contract.
class DiskTier {
 public:
  explicit DiskTier(const TierOptions& options);
  ~DiskTier();
  Status open();
  /// Ends the workers. False: a disk has not ended its requests within two seconds. Then this
  /// object has to live as long as the process, and none of its threads touches memory of transfers
  /// any more.
  bool close();

  void setWake(std::function<void()> wake);
  void send(uint64_t address, const void* memory, uint64_t bytes, const pager::ContentHash* hash);
  void receive(uint64_t address, void* memory, uint64_t bytes, bool urgent);
  void raise(uint64_t address);
  void giveUp(uint64_t address);
  bool holds(uint64_t address, const pager::ContentHash& hash) const;
  std::vector<uint64_t> heldAddresses() const;
  bool drop(uint64_t address);
  std::vector<pager::LowerTier::Finished> take();
  pager::TierFigures figures() const;

 private:
  using Finished = pager::LowerTier::Finished;
  using Outcome = pager::LowerTier::Outcome;

  struct Copy {
    bool whole = false;  // not while it is sent
    uint64_t bytes = 0;
    pager::ContentHash hash;
    std::vector<Place> places;  // of its pages, in order
  };

  struct Transfer {
    uint64_t address = 0;
    bool send = false;
    std::byte* memory = nullptr;  // of a send: read only
    Copy* copy = nullptr;
    bool hash_known = false;  // of a send: the caller gave it
    std::vector<pager::ContentHash> hashes;
    uint64_t next = 0;       // page that is not begun
    uint64_t under_way = 0;  // pages
    bool waits = false;      // in urgent_ or waiting_
    bool stopped = false;    // raised, given up or failed: no more pages are begun
    bool failed = false;     // a page is not where it belongs
    bool lost = false;       // of a receive: a page can't be read any more
    bool allBegun() const { return next == copy->places.size(); }
  };

  // A page that a worker moves.
  struct Moving {
    Transfer* transfer = nullptr;
    uint64_t page = 0;  // of the copy
    Place place;
    std::byte* memory = nullptr;  // the worker's
    uint32_t done = 0;            // bytes
    unsigned attempts = 0;        // in a row that moved nothing
    bool again = false;           // of a read: it failed once
    size_t moves = 0;             // to another file
  };

  enum class Failure : uint8_t { kPassing, kFull, kBroken, kGone };
  // A page's end.
  enum class Over : uint8_t { kWell, kNotNow, kFailed };

  struct Worker;
  class AtDisk;

  void work(Worker& worker);
  bool step(Worker& worker);
  void leave(Worker& worker, const char* why);
  bool begin(Worker& worker, Moving& moving);
  void go(Worker& worker, const Moving& moving);
  bool ended(Worker& worker, Moving& moving, int64_t result);
  bool arrived(Worker& worker, const Moving& moving);
  static Failure failureOf(int error);
  bool goesElsewhere(Moving& moving);
  void tellFailure(const Moving& moving, int error);
  bool failed(Worker& worker, Moving& moving, int error);
  void pageOver(const Moving& moving, Over how);
  void tellWrong(const Copy& copy) const noexcept;

  void wait(Transfer& transfer, bool first);
  void stop(Transfer& transfer);
  void unqueue(Transfer& transfer);
  void end(Transfer& transfer, bool right);
  void finish(uint64_t address, bool sent, Outcome outcome, const pager::ContentHash& hash);
  void forget(uint64_t address);
  void publish();

  const TierOptions options_;
  std::unique_ptr<CipherKey> key_;  // null: nothing is encrypted

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // for workers
  std::condition_variable left_;     // for close()
  bool closing_ = false;
  bool abandoned_ = false;  // by close(): workers end, and touch nothing more
  Files files_;
  uint64_t writings_ = 0;  // of pages, so far
  std::unordered_map<uint64_t, Copy> copies_;
  std::unordered_map<uint64_t, Transfer> transfers_;
  std::deque<Transfer*> urgent_, waiting_;
  std::vector<Finished> finished_;
  bool must_wake_ = false;
  pager::TierFigures figures_;

  std::mutex wake_mutex_;
  std::function<void()> wake_;

  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace olpager::disk
