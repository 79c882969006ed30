// A link over sockets: one connection for messages and requests, and lanes for bulk. Bytes go
// straight between sockets and registered memory.
//
// Reads: a kPull for each slice goes out on the first connection; the answer comes as kData on
// whichever lane is free at the peer. Writes: slices wait in egress_ and go out as kPush on
// whichever lane is free here; a kAck comes back on the first connection. Data that the peer asks
// for waits in the same egress_.
//
// Threads: each connection is watched by one reactor, which alone receives on a lane. The first
// connection is read by its reactor or by a thread that waits in the queue, under control_in_. Any
// thread may send, under a connection's send lock.
//
// Locks, in this order: starting_ -> control_in_ -> Lane::sending -> (egress_mutex_ | control_out_
// | LinkCore::mutex_ | the queue's).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/format.h"
#include "coherence/transport/core/link_core.h"
#include "coherence/transport/tcp/ack_watch.h"
#include "coherence/transport/tcp/stream.h"

namespace olpager::transport {

class TcpLink : public LinkCore {
 public:
  /// Streams that are connected and agreed on; the lanes in the order of their indices.
  static std::shared_ptr<TcpLink> make(LinkSetup setup, Stream control, std::vector<Stream> lanes,
                                       const std::vector<Reactor*>& reactors);
  ~TcpLink() override;
  /// Begins to receive. `first`: a completion that comes before all others.
  void start(bool announce);

 protected:
  TcpLink(LinkSetup setup, Stream control);
  /// `parts`: what beside the connections says oneStopped().
  void adopt(std::vector<Stream> lanes, const std::vector<Reactor*>& reactors, uint32_t parts);
  /// Before anybody hears of the link; `starting_` is held.
  virtual void begin() {}
  /// The link can be heard from now on: what arrives elsewhere than here is to be taken.
  virtual void listen() {}
  /// True if messages take the first connection: a thread that waits for one receives on it.
  virtual bool messagesByControl() const { return true; }
  /// Moves a slice by itself, or keeps it for later; false: it is for the lanes.
  virtual bool take(const Slice& /*slice*/) { return false; }
  /// A frame on the first connection that is none of tcp's own.
  virtual std::string frame(const wire::Header& header, std::span<const std::byte> payload,
                            std::vector<Completion>& completions) {
    return control(header, payload, completions);
  }
  void byLanes(std::span<const Slice> slices);
  void stop(bool tell) override;
  std::string standstill(int64_t now_ms, bool late) override;
  void issue() final;
  void transmit(const wire::Header& header, std::span<const std::byte> head,
                std::span<const std::byte> body) override;
  /// Hands out the whole frames at the front of `bytes`, until one is `broken`; how many bytes they
  /// are.
  template <typename Each>
  size_t takeFrames(std::span<const std::byte> bytes, std::string& broken, Each&& each) const;
  /// `wait`: also while another thread is at it, so that all arrived bytes have been looked at.
  void readControl(bool wait = false);
  void oneStopped();
  /// Messages take the first connection from now on; the link has started.
  void messagesByControlNow();
  Reactor& home() const { return *control_reactor_; }
  uint32_t sliceBytes(bool write, Class klass, uint64_t length, uint64_t under_way) const override;

  // Held by start() from before anybody hears of the link: one that ends meanwhile is taken apart
  // when it is whole.
  std::mutex starting_;

 private:
  struct Lane;
  class ControlSource;
  struct Egress {
    wire::Header header;  // kData: the answer to the peer's pull; kPush: a slice of ours
    Class klass = Class::kControl;
  };

  std::string halfSent(int64_t now_ms, bool late);
  std::string deadHost(int64_t now_ms, bool late);

  template <typename Next>
  void ask(Next&& next);
  void enqueue(Egress egress);
  void sendOnLanes(uint32_t queued);

  // The first connection.
  std::string controlFrame(const wire::Header& header, std::span<const std::byte> payload,
                           std::vector<Completion>& completions);
  void append(const void* bytes, size_t length);
  void flushControl();
  void watchControl();

  // Lanes.
  void laneEvents(Lane& lane, uint32_t events);
  bool readLane(Lane& lane);
  std::string laneFrame(Lane& lane);
  void laneDone(Lane& lane);
  void sendOnLane(Lane& lane);
  bool beginFrame(Lane& lane);
  void lost(const Stream& stream, ssize_t result, const char* which);

  Stream control_;
  Reactor* control_reactor_ = nullptr;
  AckWatch control_acks_;  // its thread's
  int64_t acks_seen_ms_ = 0;
  std::shared_ptr<ControlSource> control_source_;
  std::mutex control_in_;
  std::vector<std::byte> in_;
  size_t in_used_ = 0;
  std::mutex control_out_;
  std::vector<std::byte> out_;
  size_t out_sent_ = 0;
  uint64_t out_begin_ = 0;            // where out_ begins in all that was ever appended
  std::deque<uint64_t> out_answers_;  // ends of the answers in out_
  std::deque<uint64_t> out_replies_;  // and of the messages that are replies
  bool out_blocked_ = false;          // EPOLLOUT is asked for, under control_out_
  std::atomic<bool> left_to_waiter_{
      false};  // changed under control_out_ as well: both are the epoll flags

  std::vector<std::unique_ptr<Lane>> lanes_;
  std::mutex egress_mutex_;
  EgressQueue<Egress> egress_;
  std::atomic<size_t> egress_size_{0};
  std::atomic<uint32_t> next_lane_{0};
  std::atomic<uint32_t> running_{0};  // connections, and what else there is, not yet stopped
};

template <typename Each>
size_t TcpLink::takeFrames(std::span<const std::byte> bytes, std::string& broken,
                           Each&& each) const {
  size_t done = 0;
  while (broken.empty() && bytes.size() - done >= sizeof(wire::Header)) {
    wire::Header header;
    std::memcpy(&header, bytes.data() + done, sizeof header);
    if (header.format != wire::kFormat) {
      broken =
          base::format("a frame of format {}; this is format {}", header.format, wire::kFormat);
    } else if (header.length > std::max(setup_.options.limits.message_bytes, wire::kMaxGoodbye)) {
      broken = base::format("a frame of {} bytes; the limit is {}", header.length,
                            setup_.options.limits.message_bytes);
    } else if (bytes.size() - done - sizeof header >= header.length) {
      broken = each(header, bytes.subspan(done + sizeof header, header.length));
      done += sizeof header + header.length;
    } else {
      break;
    }
  }
  return done;
}

}  // namespace olpager::transport
