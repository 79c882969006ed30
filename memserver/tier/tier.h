// The tier of memservers from within.
//
// Threads. The worker does all the work; everything but the state under mutex_ is its own, so that
// no Client is called under a lock. Callers' requests and Clients' reports are notes to it. The
// lender waits for leases, which may take long.
//
// Locks: mutex_, over the notes, the requests to the lender, the table of hashes that holds()
// reads, the figures, what has ended. Nothing is called under it. wake_mutex_, held while wake_
// runs, and by nobody who holds mutex_.
//
// Ownership of frames. A frame is free in its server's pool, or a copy's (Replica::frames), or a
// move's (Move::target). Frames that are written belong to their writer until the pass has ended;
// frames that are read may be freed meanwhile: the reader then finds another version, or another
// hash, and drops what it has read.
//
// A receive that is late (kLateMs) is read from its other replica as well, into memory of the
// tier's. The first reply wins: if that is the second, the first's memserver is interrupted, so
// that nothing writes the caller's memory any more.
//
// A pass is one transfer of all bytes of a copy between local memory and the frames of one replica:
// some reads or writes of a Client, with the pass' number as context.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "memserver/client.h"
#include "memserver/frame_pool.h"
#include "memserver/tier/connect.h"
#include "memserver/tier/hasher.h"
#include "memserver/tier/kept_regions.h"
#include "pager/counters/busy_time.h"
#include "pager/tiers/lower_tier.h"

namespace olpager::memserver {

/// Memservers of an overloaded machine fall silent for a while as well: for so long nothing is sent
/// with fewer replicas than asked for because one is silent. Transfers to or from the silent one go
/// elsewhere as soon as another one shows that it is better off, or after kStallSureMs.
inline constexpr int64_t kStallBelievedMs = 3000;
inline constexpr int64_t kStallSureMs = 1000;

/// A receive that takes this much longer than what is under way at its memserver lets expect is
/// read elsewhere as well.
inline constexpr int64_t kLateMs = 100;

/// The lender's, for one answer; after one that was late twice as long, so often in a row.
inline constexpr uint32_t kLeaseWaitMs = 500;
inline constexpr unsigned kMostLateLeases = 2;

/// Many members: placement, hedges and upkeep each use most of what the
/// worker knows, and the part of it that other threads may see lies beside it, under mutex_.
class MemserverTier final : public pager::LowerTier {
 public:
  explicit MemserverTier(const TierOptions& options);
  ~MemserverTier() override;
  Status open(const EndpointMaker& make);

  void setWake(std::function<void()> wake) override;

  void send(uint64_t id, const void* memory, uint64_t bytes,
            const pager::ContentHash* hash) override;
  void receive(uint64_t id, void* memory, uint64_t bytes, bool urgent) override;
  void raise(uint64_t id) override;
  void giveUp(uint64_t id) override;
  bool holds(uint64_t id, const pager::ContentHash& hash) const override;
  std::vector<uint64_t> heldAddresses() const override;
  bool drop(uint64_t id) override;
  std::string whyNotDirect() const override;
  Status makeKnown(const void* memory, uint64_t bytes, int dma_buf) override {
    return kept_.keep(memory, bytes, dma_buf);
  }
  void checked(uint64_t id, bool right) override;
  void letGo(const void* memory) override { kept_.letGo(memory); }
  std::vector<Finished> take() override;
  pager::TierFigures figures() const override;

 private:
  using Frames = std::vector<FrameRange>;  // in the order of the bytes

  struct Note {
    enum class Kind : uint8_t {
      kSend,
      kReceive,
      kRaise,
      kGiveUp,
      kDrop,
      kChecked,
      kTransfer,
      kEvent,
      kLeased
    };
    Kind kind = Kind::kDrop;
    uint64_t id = 0;  // of the copy; kTransfer: of the pass
    void* memory = nullptr;
    uint64_t bytes = 0;
    std::optional<pager::ContentHash> hash;
    bool urgent = false;
    bool unwanted = false;  // kReceive: given up already
    unsigned server = 0;
    TransferResult result = TransferResult::kOk;
    Event event;
    std::vector<Slab> slabs;
    bool right = false;  // kChecked
    bool late = false;   // kLeased: no answer came in the time that there was
  };

  /// A memserver. Many members: all that the worker knows of one.
  struct Server final : Observer {
    Server(MemserverTier& of, unsigned number) : tier(of), index(number) {}
    void transferDone(uint64_t context, TransferResult result) override;
    void happened(const Event& event) override;
    bool usable() const { return up && !stalled; }

    MemserverTier& tier;
    const unsigned index;
    std::string address;
    std::unique_ptr<Client> client;
    FramePool pool;
    std::map<SlabId, uint64_t> slabs;  // bytes
    std::set<SlabId> closed;           // being emptied
    std::unordered_map<SlabId, std::unordered_set<uint64_t>> users;
    std::unordered_set<SlabId> lost_early;  // lost before the lender has told of them
    Figures seen;                           // at the last look
    bool up = true, stalled = false;
    bool cut = false;  // interrupted by the tier: its next kDown says nothing about it
    int64_t stalled_at_ms = 0;
    int64_t alive_at_ms = 0;  // a pass ended well
    int64_t believed_until_ms =
        0;  // silent, but taken to come back: replicas are not put elsewhere, or left out, for that
    bool leasing = false;               // the lender is at it
    int64_t dry_until_ms = 0;           // had nothing to lease
    unsigned late_leases = 0;           // in a row: it has room and takes its time
    uint64_t reading = 0, writing = 0;  // bytes of passes
    pager::BusyTime reads, writes;
    uint64_t recalled = 0;
    bool leaving = false;     // everything is wanted back: see turn()
    std::string recall_text;  // for the log; empty: said already that it can't be
    int64_t recalled_at_ms = 0;
    size_t evacuated =
        0;  // of the copies that are to leave: so many have been tried, see evacuate()
    uint64_t lost_bytes = 0;  // not yet in the log
    int64_t log_at_ms = 0;
  };

  struct Replica {
    unsigned server = 0;
    Frames frames;
    bool writing = false;
    bool written = false;
    bool lost = false;  // while it is written
  };

  // Memory of the tier's own for an extent.
  struct Staging {
    explicit Staging(const transport::DomainPtr& domain);
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;
    void* memory = nullptr;  // null: there was none
    transport::RegionPtr region;
  };

  enum class CopyState : uint8_t { kSending, kHeld, kReceiving };
  struct Copy {
    CopyState state = CopyState::kSending;
    uint64_t bytes = 0;
    uint64_t version = 0;  // of its bytes
    pager::ContentHash hash;
    std::vector<Replica> replicas;  // at most two, on different servers
    // The transfer:
    void* memory = nullptr;
    SharedRegion region;
    bool urgent = false;    // a launch waits: for the bytes, or for a send's end
    bool unwanted = false;  // a receive that was given up
    unsigned passes = 0;
    unsigned attempts = 0;
    uint64_t reading = 0;    // number of the pass
    int64_t late_at_ms = 0;  // it is late then
    bool hedged = false;     // and read elsewhere as well
    std::unique_ptr<Staging>
        spare;  // right bytes that came from elsewhere while the pass has not ended
    bool toDevice() const { return region && region->base() == nullptr; }
  };

  struct Pass {
    enum class Kind : uint8_t { kSend, kReceive, kHedge, kMoveRead, kMoveWrite };
    Kind kind = Kind::kSend;
    uint64_t id = 0;  // of the copy; of the hedge; of the move
    unsigned server = 0;
    uint64_t bytes = 0;
    bool of_device = false;  // the memory
    size_t left = 0;
    TransferResult result = TransferResult::kOk;
    std::vector<uint64_t> transfers;
  };

  // A copy's replica made anew elsewhere: read, checked, written, believed.
  struct Move {
    uint64_t id = 0, version = 0, bytes = 0;
    unsigned to = 0;
    std::optional<unsigned> replaced;  // the server whose replica goes then; none: one more replica
    Frames target;
    bool lost = false;  // the target
    std::unique_ptr<Staging> staging;
  };

  // A late receive, read from another replica.
  struct Hedge {
    uint64_t id = 0;
    uint64_t late = 0;  // number of the pass
    std::unique_ptr<Staging> staging;
  };

  struct Demand {  // to the lender
    unsigned server = 0;
    uint64_t bytes = 0;
    uint32_t wait_ms = 0;
  };

  // tier.cpp: threads and transfers
  void put(Note note, bool first);
  void work();
  void workOnce();
  void lend();
  void lease(const Demand& demand);
  template <typename Body>
  bool guarded(Body body) noexcept;
  void handle(Note& note);
  void handleGuarded(Note& note) noexcept;
  void abandon(const Note& note, uint64_t id);
  void startSend(Note& note);
  void continueSend(uint64_t id);
  void startReceive(Note& note);
  void continueReceive(uint64_t id);
  void raiseNow(uint64_t id);
  void giveUpNow(uint64_t id);
  void dropNow(uint64_t id);
  void transferred(uint64_t number, TransferResult result);
  void sendPassed(const Pass& pass);
  void receivePassed(const Pass& pass);
  void wrongBytes(uint64_t id, unsigned server);
  void checkedNow(uint64_t id, bool right);
  uint64_t post(Pass::Kind kind, uint64_t id, unsigned server, const transport::Region& region,
                const Frames& frames, transport::Class klass);
  void finish(uint64_t id, bool sent, Outcome outcome,
              pager::ContentHash hash);  // by value: the copy's own goes with it
  void forget(uint64_t id);              // the copy is no more
  void publish();
  void publishRails() const;
  void publishRates();

  // placement.cpp: which server, which frames, how much there is
  unsigned wantedReplicas() const;
  unsigned usableServers() const;
  uint64_t canLease(const Server& server) const;
  void wantLease(Server& server, uint64_t bytes);
  bool leaseMayHelp(const Copy& copy, uint64_t bytes);
  /// Frames for a replica of the copy at a server that has none, or at `also`; `to_stay`: at none
  /// that wants everything back.
  std::optional<Replica> place(const Copy& copy, std::optional<unsigned> also = std::nullopt,
                               bool to_stay = false);
  bool allocate(Server& server, uint64_t bytes, Frames& frames);
  void freeFrames(Server& server, const Frames& frames);
  void addReplica(uint64_t id, Copy& copy, Replica replica);
  void removeReplica(uint64_t id, Copy& copy, unsigned server);
  void releaseSlab(Server& server, SlabId slab);
  bool turn(Copy& copy);
  static bool isTurningRoom(const Server& server, SlabId slab);
  void releaseEmpty(Server& server);
  void look();
  uint64_t capacity() const;
  static Replica* replicaAt(Copy& copy, unsigned server);

  // hedges.cpp: receives that are late
  int64_t lateAt(const Server& server, uint64_t bytes) const;
  void lookForLate();
  void hedgePassed(const Pass& pass);

  // upkeep.cpp: what memservers do of themselves, and what is done about it
  void happened(Server& server, const Event& event);
  void leased(Server& server, const std::vector<Slab>& slabs, bool late);
  void slabLost(Server& server, SlabId slab);
  void trouble(Server& server);
  void reconsider();
  void cut(Server& server);
  void recall(Server& server, uint64_t bytes, const std::string& text = "");
  void upkeep();
  bool evacuate(Server& server);
  bool startMove(uint64_t id, std::optional<unsigned> replaced);
  void moveRead(const Pass& pass);
  void moveWritten(const Pass& pass);
  void endMove(uint64_t number, bool keep);
  void noteLoss(Server& server, uint64_t bytes);
  void tellLosses(bool all);
  void tellStuck(Server& server);
  void noteReleased(Server& server, uint64_t bytes);
  void tellDegraded();

  const TierOptions options_;

  // The worker's own.
  std::unique_ptr<transport::Endpoint> endpoint_;
  const transport::DomainPtr domain_;
  KeptRegions kept_{domain_};
  Hasher hasher_;  // the worker's
  std::vector<std::unique_ptr<Server>> servers_;
  std::unordered_map<uint64_t, Copy> copies_;
  std::unordered_map<uint64_t, Pass> passes_;
  std::map<uint64_t, Move> moves_;
  std::map<uint64_t, Hedge> hedges_;
  std::set<uint64_t> parked_;
  std::set<uint64_t> under_;  // copies with fewer replicas than there ought to be
  uint64_t next_pass_ = 1, next_move_ = 1, next_hedge_ = 1, next_version_ = 1, next_rebuild_ = 0;
  int64_t look_at_ms_ = 0, upkeep_at_ms_ = 0, late_look_at_ms_ = INT64_MAX;
  bool must_wake_ = false;
  bool told_degraded_ = false;
  std::atomic<bool> device_refused_{false};  // a transfer of a device's memory was
  pager::TierFigures now_;
  std::vector<Finished> ended_;  // told together with the figures

  mutable std::mutex mutex_;
  std::condition_variable changed_, demanded_;
  bool closing_ = false;
  std::deque<Note> first_, notes_;
  std::deque<Demand> demands_;
  std::unordered_map<uint64_t, pager::ContentHash> held_;
  std::unordered_set<uint64_t> raised_;    // transfers under way that are known to be waited for
  std::unordered_set<uint64_t> given_up_;  // receives under way that are known not to be wanted
  std::vector<Finished> finished_;
  pager::TierFigures figures_;

  std::mutex wake_mutex_;
  std::function<void()> wake_;

  std::thread worker_, lender_;
};

/// Room of a Staging: the largest extent.
inline constexpr uint64_t kStagingBytes = FramePool::kPageBytes * FramePool::kBlockPages;

/// Milliseconds of CLOCK_MONOTONIC.
int64_t monotonicMs();

}  // namespace olpager::memserver
