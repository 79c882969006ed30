// The worker as an agent of a unified view of several executors: its link to the home beside the
// calls, and the page bytes that go between executors. The directory's agent in the pager knows the
// owners (forwarding/agent.h); here are only links, transfers, and operations on their way.
// docs/internals/coherence.md, "A launch over two executors", has the whole.
//
// An operation, by age:
//
//   arrived     the leader has taken its record. Behind what is before it in its stream it is in a
//               queue (stream_queues.h), and nobody looks at its pages
//   needing     all before it in its stream is submitted, and as many regions are known as its
//               record says: a thread makes the call. If the pager lacks pages it has told its
//               agent the age and needs, and the operation is suspended, or the thread has left the
//               lead at once
//   runnable    the pager's agent claims all that it needs
//   submitted   the driver has it
//   complete    the stream has passed it
//
//   arrived -> needing     StreamQueues: the thread that owns the queue, or the leader
//   needing -> runnable    an agent's thread, in olpager_agent_receive or _landed
//   runnable -> submitted  the thread that makes the call, which the pager's condition wakes, or
//                          StreamQueues' runner, when the pager says that it is resumable
//   runnable -> needing    an older operation has taken a page: the pager, in that step
//   submitted -> complete  the pager's thread, when somebody waits for its pages; else what found
//                          all in place is told to the home in batches (`over_`)
//
// So the leader never waits for pages, and what comes on the link to the home is heard whatever the
// calls wait for: that link has a connection and threads of its own.
//
// A transfer, by extent and number:
//
//   offered   the giver's frame is named on the link to the taker's worker (Peer), with a key
//   wanted    the pager has asked for it; the offer may come before or after (page_offers.h)
//   reading   both: one-sided, from the giver's frame into the taker's; of a page of which an older
//             one is there still the blocks that differ (coherence/pages/blocks.h), where a whole
//             page takes longer than to find these
//   landed    told to the pager, which says Done; the giver's frame is its pager's again when the
//             home has heard that. A page that the taker has already, by its hash, lands unread
//
//   reading -> wanted   the link is lost: the page is read anew, whole, when it is offered again
//
// A link that is lost is made again (Peers::connectAgain). All else that a transfer needs goes by
// the home, so of what went over the link offers alone are to come again: who gives offers over the
// new link whatever its pager has not had back. An offer of what has landed is nobody's. A link
// that can't be had again within the session's grace time ends the session, and so does one that is
// lost again and again while nothing that is waited for lands, and a peer that says what makes no
// sense. Links to one worker are numbered, each end by itself: what is left of an earlier link (an
// offer, a read, its loss) is known by that.
//
// Owners: the worker owns the agent, for the process. Threads: one hears the home (hear), one does
// what others have left notes for (work): the pager under its mutex, by the calls of
// OlpagerAgentLink; threads of links to other workers, under their locks; threads that have made
// calls. Lock: mutex_, a leaf below all of those: nothing is called under it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "coherence/calls/channel.h"
#include "coherence/pages/blocks.h"
#include "forwarding/agent.h"
#include "forwarding/wire/pages_wire.h"
#include "forwarding/wire/wire.h"
#include "gpunode/worker/page_offers.h"
#include "gpunode/worker/peer.h"

namespace olpager::gpunode {

class Worker;

// Many members: its threads share the pages that are on their way.
class Agent final : private PageHearer {
 public:
  explicit Agent(Worker& worker) : worker_(worker) {}

  /// From now on the session is executor `slot` of a unified view of several. Before the first call
  /// of the client's, and before there are links to other workers. `joins` attaches the next link
  /// that the home makes, if one comes within the time. `grace`: for which a link may be lost.
  Status start(unsigned slot, std::function<bool(calls::Channel&, std::chrono::milliseconds)> joins,
               std::chrono::milliseconds grace);
  bool started() const { return started_; }
  /// Adds what its channel to the home has carried since it was counted last.
  void count(status::LinkBytes& into) { home_.count(into, false); }
  /// Pages that came from other executors' frames.
  struct Landed {
    uint64_t pages = 0;
    uint64_t unchanged = 0;   // of these, here already
    uint64_t in_part = 0;     // of these, an older one was here
    uint64_t part_bytes = 0;  // of those that came in part, what was read
    bool operator==(const Landed&) const = default;
  };
  Landed landed() const { return {landed_, unchanged_, in_part_, part_bytes_}; }

  /// Waits until so many regions are known, without any lock. False: the session has ended.
  bool awaitRegions(uint64_t count);
  /// The calling thread has made the operation of that age. `told`: the home hears by itself when
  /// it is complete.
  void made(uint64_t age, bool told);
  /// A context has been made, in the call that is being decoded.
  CUresult contextMade() const { return started_ ? pager_.prepare() : CUDA_SUCCESS; }
  /// Waits for all that was launched (olpager_agent_finish).
  CUresult finish() const { return started_ ? pager_.finish() : CUDA_ERROR_NOT_SUPPORTED; }

 private:
  using Key = PageOffers::Key;
  using Hash = std::array<uint64_t, 2>;
  struct Note {
    enum class Kind : uint8_t {
      kPost,
      kGiven,
      kTakenBack,
      kFetch,
      kOffered,
      kRead,
      kPeerUp,
      kPeerLost,
      kFailed
    } kind = Kind::kPost;
    Key key{};
    unsigned slot = 0;
    void* memory = nullptr;
    std::vector<std::byte> batch;
    PageOffers::Offer offer;
    std::optional<Hash> hash;  // of what is in the memory
    uint64_t read = 0;
    ReadIs how = ReadIs::kCut;
    std::chrono::steady_clock::time_point at;  // of kRead: when it was over
    uint64_t link = 0;                         // of kPeerUp and kPeerLost
    bool refused = false;
    std::string why;
  };
  /// A page on its way here.
  struct Transfer {
    unsigned from = 0;
    void* into = nullptr;
    std::optional<Hash> has;                 // of what is there
    std::optional<PageOffers::Offer> offer;  // none: not offered yet
    transport::RegionPtr region;             // while it is read
    uint64_t bytes = 0;                      // of it that are read
    size_t reads = 0;                        // that are under way
    bool good = true;                        // so far
  };
  /// A page on its way to another executor, until its frame is the pager's again.
  struct Given {
    unsigned to = 0;
    const void* memory = nullptr;
    std::optional<Hash> hash;
    uint64_t link = 0;            // by which it was last offered; 0: by none yet
    transport::RegionPtr region;  // of that link
  };
  /// The links to another worker, one after the other.
  struct Link {
    uint64_t up = 0;  // the number of the last that was up
    bool down = false;
    std::chrono::steady_clock::time_point ends_at;  // of `down`: the session, by then
    size_t awaited = 0;                             // transfers from there that have not landed
    bool in_vain = false;  // it was lost, and none of these has landed since
  };
  /// A page that came or went.
  struct Known {
    std::optional<unsigned> from;  // who gave it here last
    uint64_t number = 0;           // Giver::pages of that one when it came
    const void* frame = nullptr;   // from which it was given last: what it was then may be there
    // The hash when the page last came or went. A node with a page of this hash has these blocks.
    std::optional<Hash> hash;
    std::optional<pages::BlockHashes> blocks;  // none: not made
  };
  /// An executor that gives pages here, and how fast they come.
  struct Giver {
    uint64_t pages = 0;  // that have come
    size_t reads = 0;    // that are under way
    std::chrono::steady_clock::time_point since;
    uint64_t bytes = 0;  // that have come since then
    double page_ns = 0;  // that a page takes; 0: not known yet
  };
  /// Functions of libolpager.so.
  struct Pager {
    decltype(&olpager_agent_start) start = nullptr;
    decltype(&olpager_agent_prepare) prepare = nullptr;
    decltype(&olpager_agent_region) region = nullptr;
    decltype(&olpager_agent_receive) receive = nullptr;
    decltype(&olpager_agent_landed) landed = nullptr;
    decltype(&olpager_agent_finish) finish = nullptr;
    decltype(&olpager_agent_retained) retained = nullptr;
  };

  void peerUp(unsigned slot, uint64_t link) override;
  void offered(unsigned slot, uint64_t link, const PeerMessage& page,
               std::span<const std::byte> behind) override;
  void read(uint64_t read, ReadIs how) override;
  void peerLost(unsigned slot, uint64_t link, bool refused) override;
  static OlpagerAgentLink linkOf(Agent& agent);
  void leave(Note note);

  // For the thread that hears the home.
  void hear();
  Status heard(const std::vector<std::byte>& record);
  // For the thread that works.
  void work();
  void take(Note& note);
  void give(const Note& note);
  void offer(const Key& key, Given& given);
  void linkUp(const Note& note);
  void linkLost(const Note& note);
  void tellEnd();
  const pages::BlockHashes* blocksToGive(const Key& key, const Given& given, Peer& peer);
  std::vector<pages::Piece> toRead(const Key& key, const Transfer& transfer);
  pages::BlockHashes hashBlocks(const void* page);
  Known& known(uint32_t extent);
  void start(const Key& key, Transfer& transfer);
  void startAgain(const Key& key, Transfer& transfer);
  void endRead(const Note& note);
  void came(Giver& giver, uint64_t bytes, std::chrono::steady_clock::time_point now);
  void landed(const Key& key);
  void write(forward::PagesKind kind, std::span<const std::byte> body);
  void tellOver(const std::vector<uint64_t>& ages);
  void tellFigures();

  Worker& worker_;
  std::function<bool(calls::Channel&, std::chrono::milliseconds)> joins_;
  bool started_ = false;
  unsigned slot_ = 0;
  std::chrono::milliseconds grace_{0};
  Pager pager_;
  OlpagerAgentLink link_{};
  calls::Channel home_;

  std::mutex mutex_;
  std::condition_variable noted_, known_;
  std::deque<Note> notes_;
  PageOffers offers_;
  std::vector<uint64_t> over_;  // ages that the home has not been told
  uint64_t regions_ = 0;
  bool refused_ = false;  // an executor's offers

  // For the thread that works.
  std::atomic<uint64_t> landed_{0}, unchanged_{0}, in_part_{0}, part_bytes_{0};
  // For the thread that works alone:
  std::map<Key, Given> given_;
  std::map<unsigned, Link> links_;  // by slot
  std::map<Key, Transfer> transfers_;
  struct ReadOf {
    Key key;
    uint64_t bytes = 0;
  };
  std::map<uint64_t, ReadOf> reads_;
  std::unordered_map<uint32_t, Known> known_pages_;  // by extent
  std::map<unsigned, Giver> givers_;                 // by slot
  Landed told_;                                      // to the home
  uint64_t told_retained_ = 0;                       // likewise, bytes
  double hash_ns_ = 0;                               // that the blocks of a page take; 0: likewise
  uint64_t next_read_ = 1;
  std::string lost_;            // why the session is about to end
  uint32_t lost_executor_ = 0;  // one more than the executor whose link is lost, if that is why
  std::chrono::steady_clock::time_point ends_at_;
  bool failed_ = false;  // by what no link mends
};

}  // namespace olpager::gpunode
