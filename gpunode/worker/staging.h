// Pinned memory of the worker through which bulk bytes pass between the network and the GPU: pieces
// of one size, each registered with the driver and with the transport. There are as many as are in
// use at once; those that are free stay, up to kKept.
//
// States of a piece: free -> used (take): its user's alone, who ends that by give (-> free), by
// giveBehind (-> behind, and free or used again when the GPU is done with it, which take() asks the
// driver), or by leave (-> left: the driver may never end its copy). The end of its context frees
// what is behind or left; what a user has is the user's still. Thread-safety: any thread; no lock
// is held while the driver is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "coherence/transport/transport.h"
#include "interpose/api/driver_table.h"

namespace olpager::gpunode {

class Staging {
 public:
  static constexpr uint64_t kPieceBytes = 1ull << 20;
  static constexpr size_t kKept = 128;

  struct Piece {
    std::byte* bytes = nullptr;
    transport::RegionPtr region;
    uint64_t context = 0;     // in which it was used last
    CUevent event = nullptr;  // of that context
    bool pinned = false;      // registered with the driver
    bool used = false;
    bool left = false;  // used, and by the GPU alone
    bool gone = false;  // its context is, since its user has it
  };

  /// `access`: what peers may do with the pieces; with any right they are shared memory to a peer
  /// on this host.
  explicit Staging(uint32_t access = transport::kLocalOnly);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// `may_wait`: asked before a piece goes that is one too many, which the driver may wait in
  /// (client_functions.h). Before the first piece is taken.
  void askBeforeWaits(std::function<bool()> may_wait) { may_wait_ = std::move(may_wait); }

  /// The domain that links have to be made with, so that they can move pieces.
  const transport::DomainPtr& domain() const { return domain_; }
  /// A piece for a copy in `context` (the client's number), which is current; null: no memory.
  /// Never waits.
  Piece* take(const api::DriverTable& driver, uint64_t context);
  /// Records that the GPU is done with the piece when it has come to here in the stream:
  /// piece->event.
  CUresult mark(const api::DriverTable& driver, Piece* piece, CUstream stream);
  /// Nothing moves it any more. Also of one that was left, by who finds that the GPU is done with
  /// it; nothing when its context has gone since.
  void give(Piece* piece);
  /// The GPU is the last to use it, up to its mark.
  void giveBehind(Piece* piece);
  /// The GPU may use it for as long as its context is there.
  void leave(Piece* piece);
  /// The context is gone, and with it what the driver knew of memory that was registered in it; it
  /// calls nobody any more.
  void contextGone(uint64_t context);

 private:
  std::unique_ptr<Piece> make();
  void drop(std::unique_ptr<Piece> piece);
  Piece* takeFree(const api::DriverTable& driver);
  Piece* takeMarked(const api::DriverTable& driver);
  void forget(Piece* piece);
  void release(Piece* piece);

  const transport::DomainPtr domain_;
  const uint32_t access_;
  std::function<bool()> may_wait_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Piece>> all_;
  std::vector<Piece*> free_;
  std::deque<Piece*> behind_;
};

}  // namespace olpager::gpunode
