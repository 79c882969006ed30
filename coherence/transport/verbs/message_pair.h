// The queue pair that a link's messages take, beside those of its classes: SEND, in pieces, each
// answered by the peer's card alone. The bytes sent are a stream of frames (core/wire.h), cut
// anywhere.
//
// Bytes that arrive land in pieces of a pool that all links over a card share (a shared receive
// queue), are copied out at once, and the piece is given back: a link that is silent holds nothing.
// A sender for which there is no piece is told so by the card and tries again; that is how a peer
// that is stopped keeps its senders waiting, as a full window does over TCP.
//
// The pool has a protection domain of its own: no key of the program's memory is in it, and none of
// its own is ever told to anybody.
//
// Thread-safety: post() and reap() under one lock of the caller's, take() and arm() under another.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "coherence/transport/verbs/api.h"

namespace olpager::transport::verbs {

/// Memory that is registered for the transport's own use.
class Pieces {
 public:
  static constexpr uint32_t kBytes = 4096;  // of each
  static Result<std::unique_ptr<Pieces>> make(const Api& api, ibv_pd* domain, uint32_t count);
  ~Pieces();
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;
  std::byte* at(uint64_t index) const { return base_ + index * kBytes; }
  ibv_sge place(uint64_t index, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(at(index)), length, region_->lkey};
  }
  uint32_t count() const { return count_; }

 private:
  Pieces(const Api& api, uint32_t count) : api_(api), count_(count) {}
  const Api& api_;
  const uint32_t count_;
  std::byte* base_ = nullptr;
  ibv_mr* region_ = nullptr;
};

/// The receive buffers of a card, shared by all links over it.
class MessagePool {
 public:
  /// The one of this card, made by the first link, gone with the last.
  static Result<std::shared_ptr<MessagePool>> on(const Api& api, ibv_context* card);
  ~MessagePool();
  MessagePool(const MessagePool&) = delete;
  MessagePool& operator=(const MessagePool&) = delete;

  ibv_pd* domain() const { return domain_; }
  ibv_srq* receives() const { return receives_; }
  std::span<const std::byte> arrived(uint64_t piece, uint32_t length) const {
    return {pieces_->at(piece), length};
  }
  bool holds(uint64_t piece) const { return piece < pieces_->count(); }
  /// For what arrives next.
  bool giveBack(uint64_t piece);

 private:
  explicit MessagePool(const Api& api) : api_(api) {}
  Status open(ibv_context* card);
  const Api& api_;
  ibv_pd* domain_ = nullptr;
  ibv_srq* receives_ = nullptr;
  std::unique_ptr<Pieces> pieces_;
};

class MessagePair {
 public:
  /// Makes the queue pair on `id`, which stays the caller's and has to end it before this goes.
  static Result<std::unique_ptr<MessagePair>> make(const Api& api, rdma_cm_id* id);
  ~MessagePair();
  MessagePair(const MessagePair&) = delete;
  MessagePair& operator=(const MessagePair&) = delete;

  int fd() const { return events_->fd; }
  /// Connected: sends the messages that had to wait.
  void settle();
  /// Nothing arrives any more, and unread pieces go back to the pool. Then the id ends the queue
  /// pair, and this can go.
  void end();

  /// Sends as many of these bytes as free pieces hold: `done`. Fewer than all: fd() is rung when a
  /// piece is free again. False: one was lost, or the card takes no more; so it stays, and `done`
  /// bytes are with those that unsure() tells of.
  bool post(std::span<const std::byte> bytes, size_t& done);
  /// True once the peer's card has all that was posted; also when it never will.
  bool reap();
  /// Bytes posted that may not have arrived, of a pair that is to end.
  struct Unsure {
    uint64_t from = 0;  // bytes before it, in all
    std::vector<std::byte> bytes;
  };
  Unsure unsure();

  /// Hands out the messages that have arrived, in order. How many pieces, or -1 and why the queue
  /// pair is lost.
  int take(const std::function<void(std::span<const std::byte>)>& each, std::string& why);
  /// Rings fd() for later arrivals; earlier ones do not ring.
  bool arm();

 private:
  static constexpr uint32_t kPieces = 16;  // on their way to the peer

  explicit MessagePair(const Api& api) : api_(api) {}
  Status open(rdma_cm_id* id);
  void takeSent();

  const Api& api_;
  std::shared_ptr<MessagePool> pool_;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* sent_ = nullptr;
  ibv_cq* arrived_ = nullptr;
  ibv_qp* pair_ = nullptr;  // the id's
  // Asked to ring, and the ring has not been taken.
  std::atomic<bool> sent_armed_{false}, arrived_armed_{false};
  std::unique_ptr<Pieces> pieces_;
  uint32_t inline_bytes_ = 0;
  std::vector<uint64_t> free_;  // pieces
  struct Posted {
    uint64_t piece = 0;
    uint32_t length = 0;
  };
  std::deque<Posted> posted_;   // in order, until the peer's card has it
  uint64_t arrived_there_ = 0;  // bytes before those
  bool broken_ = false;         // nothing is sent any more
};

}  // namespace olpager::transport::verbs
