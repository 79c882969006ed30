// A link whose bytes are moved by network cards, one-sided: neither the peer's processors nor its
// program take part. It is a tcp link otherwise: signs of life and keys go by its first connection,
// and what a card can't reach (memory that can't be pinned, on either side) goes by its lane, told
// once for each region and counted (LinkStats::bounced_bytes).
//
// Messages, and the room for them, have a queue pair of their own (message_pair.h) where nothing is
// encrypted; else they go by the first connection, which is. A thread that waits in the queue takes
// them by itself, as it takes those of a socket.
//
// A slice is one list of work requests in its class's queue pair, of which the last is signalled.
// Behind a write stands a small read: when that is answered, the bytes are in place. Completions of
// a queue pair come in order, so that a queue of slices is all that is kept of them.
//
// What is lent of memory that the card knows (lendMemory) is opened by windows (windows.h): the
// peer is answered when the queue pair of each class has its own.
//
// The peer's key is asked for once (core/peer_keys.h). A region whose key was given away is taken
// from the card when it ends, the peer is told (kUnmap), and asks the owner from then on; a
// transfer that is under way at that moment ends the link.
//
// The end: the queue pairs are destroyed on the home reactor, under `posting_`, before the link
// says that it is stopped. From then on no card touches memory on the link's behalf. Before that
// the messages that were sent have a moment to arrive.
//
// Locks, in this order: starting_ -> control_in_ -> posting_ -> messages_in_ -> messages_out_ ->
// Queue::mutex -> (LinkCore::mutex_ | PeerKeys' | RegionEntry::registering | the queue's).
#pragma once

#include <deque>
#include <shared_mutex>

#include "coherence/transport/core/peer_keys.h"
#include "coherence/transport/tcp/tcp_link.h"
#include "coherence/transport/verbs/queue_pairs.h"

namespace olpager::transport::verbs {

class VerbsLink final : public TcpLink, public KeyWatcher {
 public:
  /// Queue pairs that are connected.
  static Result<std::shared_ptr<VerbsLink>> make(LinkSetup setup, Stream control,
                                                 std::vector<Stream> lanes,
                                                 std::unique_ptr<QueuePairs> pairs,
                                                 const std::vector<Reactor*>& reactors);
  ~VerbsLink() override;

 private:
  using Keys = PeerKeys<Slice, wire::Reach>;
  /// Of a window that is being opened.
  struct Opening {
    Opening(Pin of, const Window& by, uint64_t named, const wire::Reach& told)
        : pin(std::move(of)), window(by), key(named), reach(told) {}
    Pin pin;  // of what is lent: it does not end meanwhile
    const Window& window;
    const uint64_t key;
    const wire::Reach reach;
    std::atomic<size_t> missing{kClasses};
  };
  /// What a class has under way.
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

  VerbsLink(LinkSetup setup, Stream control, std::unique_ptr<QueuePairs> pairs)
      : TcpLink(std::move(setup), std::move(control)), pairs_(std::move(pairs)) {}

  uint32_t sliceBytes(bool write, Class klass, uint64_t length, uint64_t under_way) const override;
  bool reachesDevices() const override { return true; }
  bool messagesByControl() const override { return pairs_->messages() == nullptr; }
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
  bool messagesSent();
  void sendWaiting();
  bool takeMessages(std::string& why, std::string& broke);
  bool receiveMessages();
  bool armMessages();
  void finish(bool tell);

  bool submit(const Slice& slice, const wire::Reach& reach);
  bool fitsLane(const Slice& slice);
  void goOn(const std::vector<Slice>& slices);
  std::string reachAsked(const wire::Header& header);
  void tellReach(uint64_t key, const wire::Reach& reach);
  bool open(const std::shared_ptr<Opening>& opening, Class klass);
  void opened(const std::shared_ptr<Opening>& opening);
  std::string reachArrived(const wire::Header& header, std::span<const std::byte> payload);
  void tellTakenBack(uint64_t key);
  void completionEvents();
  void drain();
  void connectionEvents();
  void broken(const std::string& why);

  Keys keys_;
  // Shared by who posts; `pairs_` goes under it.
  std::shared_mutex posting_;
  std::unique_ptr<QueuePairs> pairs_;
  std::array<Queue, kClasses> queues_;
  std::shared_ptr<MessageSource> message_source_;  // under starting_
  std::mutex messages_in_;
  std::vector<std::byte> message_bytes_;  // of a frame that has not arrived whole
  std::mutex messages_out_;
  std::vector<std::byte> messages_;  // for which the queue pair had no room
  std::atomic<bool> messages_wait_{false};
  bool pumping_ = false;  // the home reactor looks for room
  // Read by this side's flushes, and by the peer's: 8 bytes each.
  std::array<uint64_t, 2> flush_words_{};
  RegionPtr flushed_into_, flushed_from_;
  std::atomic<int64_t> cut_ms_{0};  // when the peer's card was heard to have ended it; 0: not
  std::string cut_why_;             // the home reactor's
};

}  // namespace olpager::transport::verbs
