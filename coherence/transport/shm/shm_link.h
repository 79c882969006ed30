// A link between two processes of one host. Messages and answers go through a ring for each
// direction; bytes of registered memory are copied once, by the side that reads or writes, from or
// to its own mapping of the other's memfd. Memory that can't be mapped goes through slots of the
// channel: copied twice, counted, and told once (level info).
//
// Long copies are made by several threads at once, the pumps, which take them from work_. A slot is
// used -> asked (the peer has been told) -> used (its answer is here, the bytes of a read are
// taken) -> free. A slot of the peer's is busy from its question to the answer.
//
// Mappings, under maps_mutex_: kAsked (kMap sent; slices wait in it) -> kMapped | kBounced |
// kRevoked. kMapped -> kRevoked when the owner takes the key back; unmapped when no copy uses it
// any more. askMemory() sends a kMap of its own. A key's answers are all the same, so that any of
// them serves whoever waits for one.
//
// A thread that works on the link holds a share of it (enter/leave). stop() gives back the link's
// own share; the last one to leave has the reactor clean up and report: then no copy is running.
//
// Locks, in this order: starting_ -> in_mutex_ -> (maps_mutex_ | out_mutex_ | LinkCore::mutex_ |
// the queue's).
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <variant>

#include "coherence/transport/core/link_core.h"
#include "coherence/transport/core/region_entry.h"
#include "coherence/transport/shm/channel.h"

namespace olpager::transport {

class ShmLink final : public LinkCore, public KeyWatcher {
 public:
  ShmLink(LinkSetup setup, base::UniqueFd socket, std::unique_ptr<Channel> channel,
          const std::vector<Reactor*>& reactors);
  ~ShmLink() override;
  void start(bool announce);
  Outcome askMemory(const RemoteKey& key, uint64_t context) override;

  /// On the socket, with the memfd: the answer to kMap.
  struct MapAnswer {
    uint64_t key = 0;
    uint64_t length = 0;
    uint64_t fd_offset = 0;
    uint32_t access = 0;
    uint32_t zero = 0;
  };

 private:
  class BellSource;
  class SocketSource;
  struct Mapping {
    enum class State : uint8_t { kAsked, kMapped, kBounced, kRevoked };
    State state = State::kAsked;
    std::byte* bytes = nullptr;  // of the region
    void* base = nullptr;        // of the mapping
    uint64_t mapped = 0, length = 0;
    uint32_t access = 0;
    uint32_t users = 0;
    std::vector<Slice> waiting;
  };
  struct Slot {
    bool used = false;
    bool asked = false;  // its answer may come: the bytes of a write are in it
    Slice slice;
  };
  /// In this slot are the bytes of a read.
  struct Arrived {
    uint32_t slot;
  };
  /// The peer asks for a copy between its slot and memory of this side.
  struct Asked {
    wire::Header question;
    Pin pin;
    Outcome refused = Outcome::kRevoked;  // why there is no pin
  };
  using Work = std::variant<Slice, Arrived, Asked>;

  uint32_t sliceBytes(bool write, Class klass, uint64_t length, uint64_t under_way) const override;
  void issue() override;
  void transmit(const wire::Header& header, std::span<const std::byte> head,
                std::span<const std::byte> body) override;
  void stop(bool tell) override;
  void keyRevoked(uint64_t key) override;
  void addStats(LinkStats& into) const override {
    into.sent += channel_->in.copied(false);
    into.received += channel_->in.copied(true);
  }

  bool enter();
  void leave();
  void cleanUp();

  bool isLong(uint64_t bytes) const;
  void leaveToPumps(Work work);
  bool nextWork(Work& work);
  void startPump();
  void pump();
  void perform(const Slice& slice);
  void perform(const Arrived& arrived) { finishBounce(arrived.slot, Outcome::kOk); }
  void perform(Asked& asked);
  void copy(const Slice& slice, std::byte* there, bool bounced);
  void bounce(const Slice& slice);
  void bounceAnswered(uint32_t slot, Outcome outcome);
  void finishBounce(uint32_t slot, Outcome outcome);
  void unmapIfIdle(Mapping& mapping);

  bool flush();  // out_mutex_ held
  void drive();
  bool consume(bool wait = false);
  bool arm();
  std::string frame(const wire::Header& header, std::span<const std::byte> payload,
                    std::vector<Completion>& completions);
  std::string mapAsked(const wire::Header& header);
  std::string mapRefused(uint64_t key, uint32_t code);
  std::string bounceAsked(const wire::Header& header);
  void socketEvents();
  std::string mapArrived(const MapAnswer& answer, base::UniqueFd fd);
  bool isAsked(uint64_t key);
  bool answerMemory(uint64_t key, Outcome outcome, PeerMemory memory);
  void settle(uint64_t key, Mapping::State state);

  // Held by start() from before anybody hears of the link: one that ends meanwhile is taken apart
  // when it is whole.
  std::mutex starting_;
  base::UniqueFd socket_;
  const std::unique_ptr<Channel> channel_;
  const std::vector<Reactor*> reactors_;
  Reactor* const home_;
  const uint32_t most_pumps_;  // threads that copy at the same time
  std::shared_ptr<BellSource> bell_;
  std::atomic<uint32_t> shares_{1};
  std::atomic<uint32_t> pumps_{0}, next_pump_{0};

  std::mutex in_mutex_;
  std::vector<std::byte> payload_;
  std::atomic<bool> armed_{true};  // the bell may have been rung since it was last silenced

  std::mutex out_mutex_;
  std::deque<std::vector<std::byte>> out_waiting_;    // frames that the ring had no room for
  size_t answers_waiting_ = 0, replies_waiting_ = 0;  // of them

  std::mutex maps_mutex_;
  std::unordered_map<uint64_t, Mapping> maps_;
  std::unordered_map<uint64_t, std::deque<uint64_t>>
      memory_asked_;       // contexts of askMemory(), by key; a kMap was sent for each
  std::deque<Work> work_;  // of the pumps: what somebody came by who should not copy that much
  std::array<Slot, Channel::kSlots> slots_;
  std::array<bool, Channel::kSlots> peer_busy_{};
  std::deque<Slice> slot_waiting_;
  std::atomic<bool> told_bounced_{false};
};

}  // namespace olpager::transport
