// A link whose bytes are moved by network cards, one-sided: neither the peer's processors nor its
// program take part. Otherwise it is a tcp link: signs of life and keys go by its first connection,
// and bytes that a card can't reach (memory that can't be pinned, on either side) go by its lane,
// told once for each region and counted (LinkStats::bounced_bytes).
//
// Messages, and the room for them, have a queue pair of their own (message_pair.h) where nothing is
// encrypted; else they go by the first connection, which is. A thread that waits in the queue takes
// them by itself, as it takes those of a socket.
//
// A slice is one list of work requests in its class's queue pair, of which the last is signalled.
// Behind a write stands a small read: when that is answered, the bytes are in place. Completions of
// a queue pair come in order, so that a queue of slices is all that is kept of them.
//
// A link has a rail for each pair of cards (Options::rails): queue pairs, what is under way on
// them, and what is known of the peer's keys there. A slice takes the rail with the fewest bytes
// under way; where that one's card, or the peer's, can't have the memory, the next. States of a
// rail, moved by the home reactor but for the first step:
//   up
//   failing  setAside(), any thread: a queue pair has failed, or the peer has ended the rail.
//            Nothing new is posted.
//   ended    endRail(): the queue pairs are destroyed, and the peer is told (kRailEnded). Transfers
//            that were under way are kept: their memory is the transport's until the rail is over.
//   over     overRail(): the peer has ended its queue pairs, too. No transfer can land any more, on
//            either side: what was under way is repeated on other rails.
// The last rail that is up is not set aside: its failure is the link's. The rail that messages take
// (the first) ends for them in the same steps: what the peer has not taken of them, and all others,
// go by the first connection from when the rail is over.
//
// Lent memory that the card knows (lendMemory) is opened by windows (windows.h): the peer is
// answered when the queue pair of each class has its own.
//
// The peer's key is asked for once (core/peer_keys.h). A region whose key was given away is taken
// from the card when it ends, the peer is told (kUnmap), and asks the owner from then on; a
// transfer that is under way at that moment ends the link.
//
// The end: the queue pairs are destroyed on the home reactor, under `posting_`, before the link
// says that it is stopped. From then on no card touches memory on the link's behalf. Before that
// the messages that were sent have a moment to arrive.
//
// Locks: posting_ is held shared by users of a rail's queue pairs, and alone to take them away. In
// this order: starting_ -> control_in_ -> posting_ -> messages_in_ -> messages_out_ -> Queue::mutex
// -> (LinkCore::mutex_ | PeerKeys' | RegionEntry::registering | the queue's).
#pragma once

#include <deque>
#include <shared_mutex>

#include "coherence/transport/core/peer_keys.h"
#include "coherence/transport/tcp/tcp_link.h"
#include "coherence/transport/verbs/queue_pairs.h"

namespace olpager::transport::verbs {

// Many members: a step for each end of a request of the card.
class VerbsLink final : public TcpLink, public KeyWatcher {
 public:
  /// `rails`: queue pairs that are connected; at least one.
  static Result<std::shared_ptr<VerbsLink>> make(LinkSetup setup, Stream control,
                                                 std::vector<Stream> lanes,
                                                 std::vector<std::unique_ptr<QueuePairs>> rails,
                                                 const std::vector<Reactor*>& reactors);
  ~VerbsLink() override;

 private:
  using Keys = PeerKeys<Slice, wire::Reach>;
  /// The opening of one window.
  struct Opening {
    Opening(Pin of, const Window& by, uint64_t named, const wire::Reach& told)
        : pin(std::move(of)), window(by), key(named), reach(told) {}
    Pin pin;  // of what is lent: it does not end meanwhile
    const Window& window;
    const uint64_t key;
    const wire::Reach reach;
    std::atomic<size_t> missing{kClasses};
  };
  /// The slices of one class that are under way.
  struct Queue {
    struct Flight {
      Slice slice;
      uint32_t requests = 0;
      std::shared_ptr<Opening> opening = {};  // instead of a slice
    };
    std::mutex mutex;
    std::deque<Flight> flights;  // posted, in this order
    // For room.
    std::deque<Slice> waiting;
    std::deque<std::shared_ptr<Opening>> openings;
    uint32_t room = 0;  // requests
  };

  struct Rail {
    explicit Rail(std::unique_ptr<QueuePairs> queue_pairs)
        : number(queue_pairs->rail()),
          device(queue_pairs->cardName()),
          port(queue_pairs->port()),
          pairs(std::move(queue_pairs)) {}
    const uint32_t number;
    const std::string device;  // this side's card, and its port
    const uint8_t port;
    std::unique_ptr<QueuePairs> pairs;  // under posting_; null: ended
    std::array<Queue, kClasses> queues;
    Keys keys;
    std::atomic<bool> up{true};
    std::atomic<uint64_t> under_way{0};  // bytes that are posted or wait for room
    std::atomic<uint64_t> moved{0};      // bytes
    // The home reactor's.
    int64_t cut_ms = 0;  // when the peer's card was heard to have ended it; 0: not
    std::string cut_why;
    int64_t port_down_ms = 0;  // since when its port is seen to be down; 0: it is not
    bool ended = false;
    bool over = false;
    std::optional<uint64_t> peer_took;  // the peer has ended it: bytes of messages that came there
  };

  VerbsLink(LinkSetup setup, Stream control, std::vector<std::unique_ptr<QueuePairs>> rails)
      : TcpLink(std::move(setup), std::move(control)) {
    for (auto& pairs : rails) rails_.push_back(std::make_unique<Rail>(std::move(pairs)));
    rails_up_ = static_cast<uint32_t>(rails_.size());
  }

  uint32_t sliceBytes(bool write, Class klass, uint64_t length, uint64_t under_way) const override;
  bool reachesDevices() const override { return true; }
  bool messagesByControl() const override { return !messages_on_rail_; }
  void begin() override;
  void listen() override;
  void transmit(const wire::Header& header, std::span<const std::byte> head,
                std::span<const std::byte> body) override;
  bool take(const Slice& slice) override;
  std::string frame(const wire::Header& header, std::span<const std::byte> payload,
                    std::vector<Completion>& completions) override;
  std::string standstill(int64_t now_ms, bool late) override;
  void stop(bool tell) override;
  void keyRevoked(uint64_t key) override;
  void cutOff(const std::string& why) override;

  class MessageSource;
  bool postMessages(MessagePair& pair);
  void messagesWent(size_t bytes);
  bool messagesSent();
  void sendWaiting();
  bool takeMessages(std::string& why, std::string& broke);
  bool receiveMessages();
  bool armMessages();
  void finish(bool tell);
  void addStats(LinkStats& into) const override;

  MessagePair* messagePair();
  Rail* railOf(uint32_t number);
  Rail* emptiest(uint32_t tried = 0);
  void lookAtPorts(int64_t now_ms);
  void setAside(Rail& rail, const std::string& why);
  void endRail(Rail& rail, const std::string& why);
  std::string railEnded(const wire::Header& header);
  void overRail(Rail& rail);
  bool resumeMessages(uint64_t peer_took);
  void dropOpenings(Rail& rail);

  bool submit(Rail& rail, const Slice& slice, const wire::Reach& reach);
  bool fitsLane(const Slice& slice);
  void goOn(const std::vector<Slice>& slices);
  std::string reachAsked(const wire::Header& header);
  void tellReach(const Rail& rail, uint64_t key, const wire::Reach& reach);
  void refuseReach(const Rail& rail, uint64_t key, Outcome outcome);
  bool open(Rail& rail, const std::shared_ptr<Opening>& opening, Class klass);
  void opened(const Rail& rail, const std::shared_ptr<Opening>& opening);
  std::string reachArrived(const wire::Header& header, std::span<const std::byte> payload);
  void tellTakenBack(uint64_t key);
  void completionEvents(Rail& rail);
  void drain(Rail& rail);
  void connectionEvents(Rail& rail);
  void takeMessageBytes(std::span<const std::byte> bytes, std::string& broke,
                        std::vector<Completion>& completions);
  void broken(const std::string& why);

  std::shared_mutex posting_;
  std::vector<std::unique_ptr<Rail>> rails_;  // as many as there were at first
  std::atomic<uint32_t> rails_up_{0};
  int64_t ports_looked_at_ms_ = 0;                 // the home reactor's
  std::atomic<uint64_t> repeated_{0};              // bytes
  bool messages_on_rail_ = false;                  // the first: at first
  std::shared_ptr<MessageSource> message_source_;  // under starting_
  std::mutex messages_in_;
  std::vector<std::byte> message_bytes_;  // of a frame that has not arrived whole
  uint64_t message_bytes_taken_ = 0;      // from the rail, in all
  bool rail_had_messages_ = false;        // and has ended here: what it left may come
  std::mutex messages_out_;
  enum class MessageWay : uint8_t { kRail, kNone, kControl };
  MessageWay message_way_ = MessageWay::kControl;
  MessagePair::Unsure unsure_;       // in kNone: what the peer may not have
  std::vector<std::byte> messages_;  // for which the queue pair had no room
  uint64_t messages_begin_ = 0;      // where they begin in all that were ever there
  std::deque<uint64_t> replies_;     // ends of those that are replies
  std::atomic<bool> messages_wait_{false};
  bool pumping_ = false;  // the home reactor looks for room
  // Read by this side's flushes, and by the peer's: 8 bytes each.
  std::array<uint64_t, 2> flush_words_{};
  RegionPtr flushed_into_, flushed_from_;
};

}  // namespace olpager::transport::verbs
