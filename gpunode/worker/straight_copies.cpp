// Copies to and from the workers of the program's other sessions. The end that sends has the GPU
// write pieces of pinned memory and offers them; the end that takes reads them into pieces of its
// own and has its GPU read those: GPU, network and GPU each have some of the pieces at once.
//
// A copy that fails leaves nothing behind that could write later: each end returns when its GPU and
// its reads are done with all pieces.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "base/log.h"
#include "forwarding/wire/peer_keys.h"
#include "forwarding/wire/straight.h"
#include "gpunode/worker/peers.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;
using forward::Straight;
using Event = Peer::Event;

constexpr size_t kWindow = 16;  // pieces of one copy under way at one end
constexpr auto kAnswer = 5s;    // for the other end to be over as well

// One end of a copy: what both have in common.
class End {
 public:
  End(Invocation& in, const forward::StraightHead& head, CUstream stream, PeerPtr peer)
      : in_(in),
        driver_(in.driver()),
        worker_(in.worker()),
        head_(head),
        stream_(stream),
        peer_(std::move(peer)),
        copy_(peer_->begin(head.copy)) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  /// The other end waits for nothing that does not come.
  ~End() {
    if (copy_ == nullptr) return;
    if (!done_) (void)peer_->say({PeerSays::kOver, 0, head_.copy, 0, 0, 0, {}});
    peer_->end(copy_);
  }
  bool begun() const { return copy_ != nullptr; }

 protected:
  uint64_t pieceAt(uint64_t at) const { return std::min(Staging::kPieceBytes, head_.bytes - at); }
  Staging& staging() { return peer_->staging(); }
  // The next event, if one comes soon or `wait`; what ends the copy is noted. False: there is none.
  bool next(Event& event, bool wait) {
    while (!ended_ && !peer_->next(copy_, event, wait ? kSlice : 0ms)) {
      if (worker_.ended()) ended_ = true, how_ = Straight::kStopped;
      if (!wait) return false;
    }
    return !ended_;
  }
  // Takes an event that only ends the copy, or that makes no sense here.
  void end(const Event& event) {
    ended_ = true;
    if (event.kind == Event::Kind::kLost) link_down_ = true;
    if (event.kind == Event::Kind::kOver) settled_ = true;
    how_ = link_down_ ? Straight::kNoLink : Straight::kStopped;
    if (event.kind == Event::Kind::kOffer || event.kind == Event::Kind::kTaken) refuse();
  }
  void refuse() {
    base::logWarn("the worker of session %u offers what was not agreed to: the link to it ends",
                  peer_->slot());
    ended_ = true;
    how_ = Straight::kNoLink;
    peer_->close("nonsense: what was not agreed to");
  }
  void lost() { ended_ = true, how_ = Straight::kNoLink; }
  CUresult over(CUresult result) {
    if (result != CUDA_SUCCESS) return result;
    done_ = !ended_;
    in_.results().value(ended_ ? how_ : Straight::kDone);
    return CUDA_SUCCESS;
  }

  Invocation& in_;
  const api::DriverTable& driver_;
  Worker& worker_;
  const forward::StraightHead head_;
  const CUstream stream_;
  const PeerPtr peer_;
  const Peer::CopyPtr copy_;
  bool ended_ = false;  // before it was done
  bool link_down_ = false;
  bool settled_ = false;  // the other end reads no more
  bool done_ = false;
  Straight how_ = Straight::kDone;
};

// --- the end that sends --------------------------------------------------------------------------

class Sender : public End {
 public:
  using End::End;

  CUresult run() {
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && !ended_ &&
           (asked_ < head_.bytes || !copying_.empty() || !offered_.empty())) {
      while (result == CUDA_SUCCESS && asked_ < head_.bytes &&
             copying_.size() + offered_.size() < kWindow)
        result = enqueue();
      if (result != CUDA_SUCCESS) break;
      if (!copying_.empty()) result = offer();
      Event event;
      const bool full = copying_.empty() && (asked_ == head_.bytes || offered_.size() == kWindow);
      for (bool wait = full; result == CUDA_SUCCESS && !offered_.empty() && next(event, wait);
           wait = false)
        hear(event);
    }
    // Waits for pieces that the other end may still read, and that the GPU still writes.
    if (!offered_.empty() && !settled_ && !link_down_)
      peer_->settle(copy_, worker_.ended() ? 0s : kAnswer);
    for (const Part& part : copying_) {
      const bool done = driver_.cuEventSynchronize(part.piece->event) == CUDA_SUCCESS;
      done ? staging().give(part.piece) : staging().leave(part.piece);
    }
    for (const auto& [at, piece] : offered_) giveBack(piece);
    return over(result);
  }

 private:
  struct Part {
    Staging::Piece* piece;
    uint64_t at;
  };

  CUresult enqueue() {
    Staging::Piece* const piece = staging().take(driver_, in_.head().context);
    if (piece == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = driver_.cuMemcpyDtoHAsync_v2(piece->bytes, head_.address + asked_,
                                                   pieceAt(asked_), stream_);
    if (result != CUDA_SUCCESS) {
      staging().give(piece);
      return result;
    }
    result = staging().mark(driver_, piece, stream_);
    if (result != CUDA_SUCCESS) {
      staging().leave(piece);
      return result;
    }
    copying_.push_back({piece, asked_});
    asked_ += pieceAt(asked_);
    return result;
  }

  // The GPU's oldest.
  CUresult offer() {
    const Part part = copying_.front();
    const CUresult result = driver_.cuEventSynchronize(part.piece->event);
    if (result != CUDA_SUCCESS) return result;
    copying_.pop_front();
    const uint64_t bytes = pieceAt(part.at);
    if (bytes <= kInlineBytes) {
      // The part is the last. The other end has to say that it has come.
      if (!peer_->say({PeerSays::kBytes, 0, head_.copy, part.at, bytes, 0, {}},
                      {part.piece->bytes, bytes}))
        lost();
      worker_.peers().sent.fetch_add(bytes, std::memory_order_relaxed);
      staging().give(part.piece);
      return result;
    }
    offered_.emplace(part.at, part.piece);
    if (!peer_->say({PeerSays::kOffer, 0, head_.copy, part.at, pieceAt(part.at), 0,
                     part.piece->region->key()}))
      lost();
    return result;
  }

  void hear(const Event& event) {
    if (event.kind != Event::Kind::kTaken) return end(event);
    const auto found = offered_.find(event.said.at);
    if (found == offered_.end()) return refuse();
    worker_.peers().sent.fetch_add(pieceAt(found->first), std::memory_order_relaxed);
    if (!giveBack(found->second)) refuse();
    offered_.erase(found);
  }

  // The other end has read it, or reads it no more. A piece that it reads all the same stays used.
  bool giveBack(Staging::Piece* piece) {
    if (!piece->region->waitIdle(kAnswer)) return false;
    staging().give(piece);
    return true;
  }

  uint64_t asked_ = 0;        // of the GPU
  std::deque<Part> copying_;  // by the GPU
  std::map<uint64_t, Staging::Piece*> offered_;
};

// --- the end that takes --------------------------------------------------------------------------

class Taker : public End {
 public:
  using End::End;

  CUresult run() {
    CUresult result = CUDA_SUCCESS;
    Event event;
    while (result == CUDA_SUCCESS && !ended_ && taken_ < head_.bytes) {
      if (next(event, true)) result = hear(event);
    }
    // Pieces of reads are the transport's until the reads are over: at the latest when the link is
    // down.
    while (!reading_.empty() && !link_down_) {
      if (!peer_->next(copy_, event, kSlice)) continue;
      if (event.kind == Event::Kind::kRead && event.read < pieces_.size()) {
        reading_.erase(event.read);
        staging().give(pieces_[event.read]);
      }
      if (event.kind == Event::Kind::kLost) link_down_ = true;
    }
    const CUresult done = driver_.cuStreamSynchronize(stream_);
    for (const auto& [read, at] : reading_) staging().give(pieces_[read]);
    for (Staging::Piece* const piece : with_driver_)
      done == CUDA_SUCCESS ? staging().give(piece) : staging().leave(piece);
    return over(result != CUDA_SUCCESS ? result : done);
  }

 private:
  CUresult hear(const Event& event) {
    switch (event.kind) {
      case Event::Kind::kOffer:
        return event.said.says == PeerSays::kBytes ? take(event) : read(event.said);
      case Event::Kind::kRead:
        if (event.good) return enqueue(event.read);
        reading_.erase(event.read);
        staging().give(pieces_[event.read]);
        lost();
        return CUDA_SUCCESS;
      default:
        end(event);
        return CUDA_SUCCESS;
    }
  }

  // Pieces come one after the other, as they were agreed to.
  CUresult read(const PeerMessage& offer) {
    if (reading_.size() >= kWindow ||
        !isNextOffer(offer, head_.bytes, offered_, Staging::kPieceBytes)) {
      refuse();
      return CUDA_SUCCESS;
    }
    Staging::Piece* piece = nullptr;
    if (const CUresult result = takePiece(&piece); result != CUDA_SUCCESS) return result;
    const uint64_t number = pieces_.size();
    pieces_.push_back(piece);
    reading_.insert({number, offer.at});
    offered_ += offer.bytes;
    if (peer_->read(copy_, number, {piece->region.get(), 0, offer.bytes},
                    {offer.region, offer.offset, offer.bytes}))
      return CUDA_SUCCESS;
    reading_.erase(number);
    staging().give(piece);
    lost();
    return CUDA_SUCCESS;
  }

  CUresult take(const Event& event) {
    if (!isNextOffer(event.said, head_.bytes, offered_, Staging::kPieceBytes)) {
      refuse();
      return CUDA_SUCCESS;
    }
    Staging::Piece* piece = nullptr;
    if (const CUresult result = takePiece(&piece); result != CUDA_SUCCESS) return result;
    std::memcpy(piece->bytes, event.bytes.data(), event.bytes.size());
    offered_ += event.said.bytes;
    return enqueue(piece, event.said.at);
  }

  CUresult takePiece(Staging::Piece** piece) {
    if (with_driver_.size() >= kWindow) {
      const CUresult result = driver_.cuEventSynchronize(with_driver_.front()->event);
      if (result != CUDA_SUCCESS) return result;
      *piece = with_driver_.front();
      with_driver_.pop_front();
      return CUDA_SUCCESS;
    }
    *piece = staging().take(driver_, in_.head().context);
    return *piece != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }

  // A piece that was read.
  CUresult enqueue(uint64_t number) {
    const uint64_t at = reading_.at(number);
    reading_.erase(number);
    const CUresult result = enqueue(pieces_[number], at);
    if (result == CUDA_SUCCESS &&
        !peer_->say({PeerSays::kTaken, 0, head_.copy, at, pieceAt(at), 0, {}}))
      lost();
    return result;
  }

  CUresult enqueue(Staging::Piece* piece, uint64_t at) {
    CUresult result =
        driver_.cuMemcpyHtoDAsync_v2(head_.address + at, piece->bytes, pieceAt(at), stream_);
    if (result != CUDA_SUCCESS) {
      staging().give(piece);
      return result;
    }
    result = staging().mark(driver_, piece, stream_);
    if (result != CUDA_SUCCESS) {
      staging().leave(piece);
      return result;
    }
    with_driver_.push_back(piece);
    taken_ += pieceAt(at);
    worker_.peers().taken.fetch_add(pieceAt(at), std::memory_order_relaxed);
    return result;
  }

  uint64_t offered_ = 0, taken_ = 0;
  std::vector<Staging::Piece*> pieces_;   // by the number of their read
  std::map<uint64_t, uint64_t> reading_;  // number of the read -> where in the copy
  std::deque<Staging::Piece*> with_driver_;
};

// The stream that a copy is made in.
class InStream {
 public:
  InStream(Invocation& in, const forward::StraightHead& head) : in_(in), own_(head.now != 0) {
    if (own_) {
      result_ = in.worker().peers().takeStream(in.driver(), in.head().context, &stream_);
    } else {
      stream_ = in.streamOf(head.stream, head.per_thread != 0);
    }
  }
  ~InStream() {
    if (own_ && result_ == CUDA_SUCCESS)
      in_.worker().peers().giveStream(in_.head().context, stream_);
  }
  InStream(const InStream&) = delete;
  InStream& operator=(const InStream&) = delete;
  CUresult result() const { return result_; }
  CUstream get() const { return stream_; }

 private:
  Invocation& in_;
  const bool own_;
  CUresult result_ = CUDA_SUCCESS;
  CUstream stream_ = nullptr;
};

// Says to the other end that this one is over, where it has not begun for whatever reason.
class Unbegun {
 public:
  Unbegun(Peer& peer, uint64_t copy) : peer_(peer), copy_(copy) {}
  ~Unbegun() {
    if (!begun_) (void)peer_.say({PeerSays::kOver, 0, copy_, 0, 0, 0, {}});
  }
  Unbegun(const Unbegun&) = delete;
  Unbegun& operator=(const Unbegun&) = delete;
  void begun() { begun_ = true; }

 private:
  Peer& peer_;
  const uint64_t copy_;
  bool begun_ = false;
};

template <typename Which>
CUresult straight(Invocation& in) {
  const auto head = in.value<forward::StraightHead>();
  if (head.slot >= forward::kMostSlots || head.bytes == 0) in.arguments().fail();
  if (!in.ok()) return in.refusal();
  const PeerPtr peer = in.worker().peers().find(head.slot);
  if (peer == nullptr) {
    in.results().value(Straight::kNoLink);
    return CUDA_SUCCESS;
  }
  Unbegun unbegun(*peer, head.copy);
  const InStream stream(in, head);
  if (!in.ok()) return in.refusal();
  if (stream.result() != CUDA_SUCCESS) return stream.result();
  Which end(in, head, stream.get(), peer);
  unbegun.begun();
  if (!end.begun()) {
    in.arguments().fail();  // a number that is in use
    return in.refusal();
  }
  return end.run();
}

}  // namespace

CUresult straightOut(Invocation& in) { return straight<Sender>(in); }
CUresult straightIn(Invocation& in) { return straight<Taker>(in); }

CUresult straightStop(Invocation& in) {
  const auto head = in.value<forward::StraightStopHead>();
  if (!in.ok()) return in.refusal();
  in.worker().peers().stop(head.slot, head.copy);
  return CUDA_SUCCESS;
}

CUresult peerLink(Invocation& in) {
  const auto head = in.value<forward::PeerLinkHead>();
  const std::string address(in.arguments().text());
  if (head.slot >= forward::kMostSlots || head.slot == in.worker().options().slot ||
      head.tls > static_cast<uint32_t>(transport::Tls::kAll) || address.size() > 256)
    in.arguments().fail();
  if (!in.ok()) return in.refusal();
  transport::NamedKey key{forward::peerKeyName(in.worker().options().slot), {}};
  std::copy(std::begin(head.key), std::end(head.key), key.secret.begin());
  auto linked =
      in.worker().peers().connect(head.slot, address, head.route, key,
                                  static_cast<transport::Tls>(head.tls), head.tcp_only != 0);
  if (!linked.ok()) {
    in.results().value(forward::PeerLinked::kNo);
    in.results().text(linked.error().message);
    return CUDA_SUCCESS;
  }
  in.results().value(linked.value()->is(transport::LinkKind::kShm) ? forward::PeerLinked::kShm
                                                                   : forward::PeerLinked::kTcp);
  in.results().text(linked.value()->describe());
  return CUDA_SUCCESS;
}

}  // namespace olpager::gpunode
