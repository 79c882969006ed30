#include "gpunode/worker/agent.h"

#include <sys/prctl.h>

#include <cstring>
#include <span>
#include <thread>

#include "base/log.h"
#include "base/space/pages.h"
#include "coherence/pages/batch.h"
#include "gpunode/worker/relaxed.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;
using space::kPageBytes;
using Read = calls::Channel::Read;

constexpr auto kJoin = 100ms;
constexpr auto kGather = 1ms;        // ages of operations that are over, for one record
constexpr size_t kMostKnown = 4096;  // pages: some 600 bytes each
constexpr double kWorthHashing = 3;  // times what it takes has a page to take
constexpr uint64_t kPaceBytes = 8 << 20;

// A mean of the last few.
void note(double& mean, std::chrono::duration<double, std::nano> time) {
  mean = mean == 0 ? time.count() : mean + (time.count() - mean) / 8;
}

}  // namespace

Status Agent::start(unsigned slot,
                    std::function<bool(calls::Channel&, std::chrono::milliseconds)> joins,
                    std::chrono::milliseconds grace) {
  slot_ = slot;
  grace_ = grace;
  joins_ = std::move(joins);
  const DriverLibrary& library = worker_.library();
  if (!library.find("olpager_agent_start", pager_.start) ||
      !library.find("olpager_agent_prepare", pager_.prepare) ||
      !library.find("olpager_agent_region", pager_.region) ||
      !library.find("olpager_agent_receive", pager_.receive) ||
      !library.find("olpager_agent_landed", pager_.landed) ||
      !library.find("olpager_agent_finish", pager_.finish) ||
      !library.find("olpager_agent_retained", pager_.retained) || !worker_.operations())
    return Error{"libolpager.so is of another version: it is no executor of a unified view"};
  link_ = linkOf(*this);
  if (const CUresult result = pager_.start(&link_, static_cast<uint8_t>(slot));
      result != CUDA_SUCCESS)
    return Error{"the pager can't be an executor of a unified view (CUDA error " +
                 std::to_string(static_cast<int>(result)) + ")"};
  worker_.peers().setPageHearer(this);
  started_ = true;
  std::thread([this] { hear(); }).detach();
  std::thread([this] { work(); }).detach();
  return {};
}

// --- notes ---------------------------------------------------------------------------------------

void Agent::leave(Note note) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(note));
  noted_.notify_one();
}

OlpagerAgentLink Agent::linkOf(Agent& agent) {
  OlpagerAgentLink link{};
  link.worker = &agent;
  link.post = [](void* worker, const void* batch, size_t bytes) {
    const auto* const from = static_cast<const std::byte*>(batch);
    Note note{.kind = Note::Kind::kPost};
    note.batch.assign(from, from + bytes);
    static_cast<Agent*>(worker)->leave(std::move(note));
  };
  link.given = [](void* worker, uint32_t extent, uint64_t number, uint8_t taker, const void* bytes,
                  const uint64_t* hash) {
    Note note{.kind = Note::Kind::kGiven, .key = {extent, number}, .slot = taker};
    note.memory = const_cast<void*>(bytes);  // it is only read
    if (hash != nullptr) note.hash = {hash[0], hash[1]};
    static_cast<Agent*>(worker)->leave(std::move(note));
  };
  link.taken_back = [](void* worker, uint32_t extent, uint64_t number) {
    static_cast<Agent*>(worker)->leave({.kind = Note::Kind::kTakenBack, .key = {extent, number}});
  };
  link.fetch = [](void* worker, uint32_t extent, uint64_t number, uint8_t from, void* into,
                  const uint64_t* has) {
    Note note{.kind = Note::Kind::kFetch, .key = {extent, number}, .slot = from};
    note.memory = into;
    if (has != nullptr) note.hash = {has[0], has[1]};
    static_cast<Agent*>(worker)->leave(std::move(note));
  };
  link.failed = [](void* worker, const char* why) {
    Note note{.kind = Note::Kind::kFailed};
    note.why = why;
    static_cast<Agent*>(worker)->leave(std::move(note));
  };
  return link;
}

// An offer that this worker did not ask for leaves no note: so notes are as many as its requests.
void Agent::offered(unsigned slot, uint64_t link, const PeerMessage& page,
                    std::span<const std::byte> behind) {
  Note note{.kind = Note::Kind::kOffered, .slot = slot};
  note.offer.page = page;
  note.offer.link = link;
  if ((page.hashed & kBlocksHashed) != 0)
    std::memcpy(&note.offer.blocks.emplace(), behind.data(), sizeof(pages::BlockHashes));
  note.key = {static_cast<uint32_t>(page.at), page.copy};
  const std::lock_guard lock(mutex_);
  using Is = PageOffers::Is;
  const bool is_page = page.at == note.key.first;
  const Is is = is_page ? offers_.offer(slot, note.key, note.offer) : Is::kTooMany;
  if (is == Is::kKept || is == Is::kLate || refused_) return;
  if (is == Is::kTooMany) {
    refused_ = true;
    note.kind = Note::Kind::kFailed;
    note.why = "executor " + std::to_string(slot) + " offers pages that nobody can have asked for";
  }
  notes_.push_back(std::move(note));
  noted_.notify_one();
}

void Agent::read(uint64_t read, ReadIs how) {
  Note note{.kind = Note::Kind::kRead};
  note.read = read;
  note.how = how;
  note.at = std::chrono::steady_clock::now();
  leave(std::move(note));
}

void Agent::peerUp(unsigned slot, uint64_t link) {
  Note note{.kind = Note::Kind::kPeerUp, .slot = slot};
  note.link = link;
  leave(std::move(note));
}

// Nothing comes over it after this.
void Agent::peerLost(unsigned slot, uint64_t link, bool refused) {
  {
    const std::lock_guard lock(mutex_);
    offers_.forget(slot, link);
  }
  Note note{.kind = Note::Kind::kPeerLost, .slot = slot};
  note.link = link;
  note.refused = refused;
  leave(std::move(note));
}

// --- operations ----------------------------------------------------------------------------------

bool Agent::awaitRegions(uint64_t count) {
  std::unique_lock lock(mutex_);
  while (regions_ < count && !worker_.ended()) known_.wait_for(lock, kSlice);
  return regions_ >= count;
}

void Agent::made(uint64_t age, bool told) {
  if (told) return;
  const std::lock_guard lock(mutex_);
  over_.push_back(age);
  if (over_.size() == 1) noted_.notify_one();
}

// --- the home ------------------------------------------------------------------------------------

void Agent::hear() {
  std::vector<std::byte> record;
  while (!worker_.ended()) {
    if (!home_.attached()) {
      (void)joins_(home_, kJoin);
      continue;
    }
    if (home_.read(record, kSlice) != Read::kRecord) {
      (void)home_.flush();  // what was taken
      continue;
    }
    if (const Status status = heard(record); !status.ok()) {
      Note note{.kind = Note::Kind::kFailed};
      note.why = status.error().message;
      leave(std::move(note));
      return;
    }
  }
}

Status Agent::heard(const std::vector<std::byte>& record) {
  // The pager's calls from here on (regions, chunks) have nothing to do with a capture.
  const Relaxed relaxed(worker_.driver());
  forward::Reader reader(record);
  const auto head = reader.value<forward::PagesHead>();
  if (head.kind == forward::PagesKind::kMessages && reader.ok() && head.count == 0) {
    const auto batch = reader.raw(reader.left());
    if (pager_.receive(batch.data(), batch.size()) == CUDA_SUCCESS) return {};
  } else if (head.kind == forward::PagesKind::kRegions && reader.ok() &&
             reader.left() == head.count * sizeof(forward::RegionRecord)) {
    for (uint32_t i = 0; i < head.count; ++i) {
      const auto region = reader.value<forward::RegionRecord>();
      if (const CUresult result = pager_.region(region.base, region.pages, region.first);
          result != CUDA_SUCCESS)
        return Error{"a region of the program's memory can't be had here (CUDA error " +
                     std::to_string(static_cast<int>(result)) + ")"};
    }
    const std::lock_guard lock(mutex_);
    regions_ += head.count;
    known_.notify_all();
    return {};
  }
  return Error{"the program's side says what makes no sense of pages"};
}

// --- transfers -----------------------------------------------------------------------------------

void Agent::work() {
  prctl(PR_SET_TIMERSLACK, 1000ul);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!notes_.empty()) {
      Note note = std::move(notes_.front());
      notes_.pop_front();
      lock.unlock();
      take(note);
      lock.lock();
      continue;
    }
    if (!lost_.empty() && std::chrono::steady_clock::now() >= ends_at_) {
      lock.unlock();
      worker_.endNow("the unified view: " + lost_, lost_executor_);
    }
    if (told_ != landed() || told_retained_ != pager_.retained()) {
      lock.unlock();
      tellFigures();
      lock.lock();
      continue;
    }
    if (over_.empty()) {
      // Within a grace time nothing else may wake it.
      if (!lost_.empty()) {
        noted_.wait_until(lock, ends_at_);
      } else {
        noted_.wait(lock);
      }
      continue;
    }
    noted_.wait_for(lock, kGather, [this] { return !notes_.empty(); });
    if (!notes_.empty()) continue;  // what an operation brought goes before word of its end
    const std::vector<uint64_t> ages = std::exchange(over_, {});
    lock.unlock();
    tellOver(ages);
    lock.lock();
  }
}

void Agent::take(Note& note) {
  using Kind = Note::Kind;
  switch (note.kind) {
    case Kind::kPost:
      return write(forward::PagesKind::kMessages, note.batch);
    case Kind::kGiven:
      return give(note);
    case Kind::kTakenBack:
      given_.erase(note.key);
      return;
    case Kind::kFetch: {
      Transfer& transfer = transfers_[note.key];
      transfer = {.from = note.slot, .into = note.memory, .has = note.hash};
      if (Link& link = links_[note.slot]; link.awaited++ == 0) link.in_vain = false;
      {
        const std::lock_guard lock(mutex_);
        transfer.offer = offers_.want(note.slot, note.key);
      }
      if (transfer.offer) start(note.key, transfer);
      return;
    }
    case Kind::kOffered: {
      const auto found = transfers_.find(note.key);
      if (found == transfers_.end() || found->second.from != note.slot) return;
      found->second.offer = note.offer;
      return start(note.key, found->second);
    }
    case Kind::kRead:
      return endRead(note);
    case Kind::kPeerUp:
      return linkUp(note);
    case Kind::kPeerLost:
      return linkLost(note);
    case Kind::kFailed:
      lost_ = note.why;
      lost_executor_ = 0;
      ends_at_ = std::chrono::steady_clock::now();
      failed_ = true;
      return;
  }
}

// --- links ---------------------------------------------------------------------------------------

void Agent::linkUp(const Note& note) {
  Link& link = links_[note.slot];
  if (note.link <= link.up) return;
  if (link.up != 0) base::logWarn("the link to the worker of session %u is made again", note.slot);
  link.up = note.link;
  link.down = false;
  tellEnd();
  for (auto& [key, given] : given_)
    if (given.to == note.slot && given.link < note.link) offer(key, given);
}

// A peer that has been refused is not taken back, by whichever link it comes.
void Agent::linkLost(const Note& note) {
  if (note.refused) {
    if (failed_) return;
    lost_ = "the worker of executor " + std::to_string(note.slot) + " says what makes no sense";
    lost_executor_ = note.slot + 1;
    ends_at_ = std::chrono::steady_clock::now();
    failed_ = true;
    return;
  }
  Link& link = links_[note.slot];
  if (note.link < link.up || link.down) return;  // there is another one
  link.down = true;
  // One that is made again and again and brings nothing of what is waited for gets no more time.
  if (link.awaited == 0 || !link.in_vain) link.ends_at = std::chrono::steady_clock::now() + grace_;
  link.in_vain = true;
  tellEnd();
  worker_.peers().connectAgain(note.slot, grace_);
}

// By when the session ends, and why: the link that was lost first.
void Agent::tellEnd() {
  if (failed_) return;
  lost_.clear();
  lost_executor_ = 0;
  for (const auto& [slot, link] : links_) {
    if (!link.down || (!lost_.empty() && link.ends_at >= ends_at_)) continue;
    lost_ = "the link to the worker of executor " + std::to_string(slot) +
            " is lost, and was not made again for " + std::to_string(grace_.count() / 1000) + " s";
    lost_executor_ = slot + 1;
    ends_at_ = link.ends_at;
  }
}

// --- pages that are given ------------------------------------------------------------------------

void Agent::give(const Note& note) {
  Given& given = given_[note.key];
  given = {.to = note.slot, .memory = note.memory, .hash = note.hash};
  offer(note.key, given);
}

// Over the link that there is now; where there is none, linkUp() does it over the next.
void Agent::offer(const Key& key, Given& given) {
  given.region.reset();
  const PeerPtr peer = worker_.peers().upNow(given.to);
  if (peer == nullptr) return;
  given.link = peer->number();
  auto region = transport::registerMemory(
      peer->staging().domain(),
      {.base = const_cast<void*>(given.memory), .length = kPageBytes},  // it is only read
      transport::kRemoteRead);
  if (!region.ok()) {
    Note failed{.kind = Note::Kind::kFailed};
    failed.why = "a page can't be given: " + region.error().message;
    return leave(std::move(failed));
  }
  PeerMessage offer{.says = PeerSays::kPage, .copy = key.second, .at = key.first};
  offer.bytes = kPageBytes;
  offer.region = region.value()->key();
  offer.hash = given.hash.value_or(Hash{});
  const pages::BlockHashes* const blocks = blocksToGive(key, given, *peer);
  offer.hashed = (given.hash ? kPageHashed : 0) | (blocks != nullptr ? kBlocksHashed : 0);
  given.region = std::move(region.value());
  std::span<const std::byte> behind;
  if (blocks != nullptr) behind = std::as_bytes(std::span(*blocks));
  (void)peer->say(offer, behind);  // it is lost: offered again over the next
}

// The hashes of a page of which the taker may have an older copy: the one that it gave here. Null:
// the taker is to read all.
const pages::BlockHashes* Agent::blocksToGive(const Key& key, const Given& given, Peer& peer) {
  Known& page = known(key.first);
  page.frame = given.memory;
  if (!given.hash || page.hash != given.hash) {
    page.hash = given.hash;
    page.blocks.reset();
  }
  const Giver& taker = givers_[given.to];
  if (page.from != given.to || !peer.is(transport::LinkKind::kTcp) ||
      taker.pages - page.number >= pages::kMostKept)
    return nullptr;
  if (!page.blocks) {
    // Both may have to hash, and some blocks have to come.
    if (taker.page_ns < kWorthHashing * hash_ns_) return nullptr;
    page.blocks = hashBlocks(given.memory);
  }
  return &*page.blocks;
}

// The pieces that have to come of a page that is offered and wanted.
std::vector<pages::Piece> Agent::toRead(const Key& key, const Transfer& transfer) {
  if (!transfer.offer->blocks) return {{0, kPageBytes}};
  const Known& page = known(key.first);
  const bool made = page.blocks && transfer.has && page.hash == transfer.has;
  if (!made && page.frame != transfer.into) return {{0, kPageBytes}};
  return pages::differing(made ? *page.blocks : hashBlocks(transfer.into), *transfer.offer->blocks);
}

pages::BlockHashes Agent::hashBlocks(const void* page) {
  const auto begun = std::chrono::steady_clock::now();
  const pages::BlockHashes hashes = pages::hashBlocks(page);
  note(hash_ns_, std::chrono::steady_clock::now() - begun);
  return hashes;
}

Agent::Known& Agent::known(uint32_t extent) {
  if (known_pages_.size() >= kMostKnown && !known_pages_.contains(extent)) known_pages_.clear();
  return known_pages_[extent];
}

// Begins the transfer of a page that is offered and wanted.
void Agent::start(const Key& key, Transfer& transfer) {
  const PeerMessage& offer = transfer.offer->page;
  const PeerPtr peer = worker_.peers().upNow(transfer.from);
  if (peer == nullptr || peer->number() != transfer.offer->link) return startAgain(key, transfer);
  Note failed{.kind = Note::Kind::kFailed};
  if (offer.bytes != kPageBytes || offer.region.length < kPageBytes ||
      offer.offset > offer.region.length - kPageBytes) {
    failed.why = "executor " + std::to_string(transfer.from) + " offers what is no page";
    return leave(std::move(failed));
  }
  const bool unchanged = (offer.hashed & kPageHashed) != 0 && transfer.has == offer.hash;
  const std::vector<pages::Piece> pieces =
      unchanged ? std::vector<pages::Piece>{} : toRead(key, transfer);
  if (pieces.empty()) {
    unchanged_.fetch_add(1, std::memory_order_relaxed);
    return landed(key);
  }
  auto region = transport::registerMemory(peer->staging().domain(),
                                          {.base = transfer.into, .length = kPageBytes},
                                          transport::kLocalOnly);
  if (!region.ok()) {
    failed.why = "a page can't be had: " + region.error().message;
    return leave(std::move(failed));
  }
  transfer.region = std::move(region.value());
  for (const pages::Piece& piece : pieces) transfer.bytes += piece.bytes;
  Giver& giver = givers_[transfer.from];
  if (giver.reads == 0) giver.since = std::chrono::steady_clock::now(), giver.bytes = 0;
  giver.reads += pieces.size();
  transfer.reads = pieces.size();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const pages::Piece& piece = pieces[i];
    const uint64_t read = next_read_++;
    reads_[read] = {key, piece.bytes};
    if (peer->readPage(read, {transfer.region.get(), piece.offset, piece.bytes},
                       {offer.region, offer.offset + piece.offset, piece.bytes}))
      continue;
    // The link is lost, and these are not under way.
    reads_.erase(read);
    giver.reads -= pieces.size() - i;
    transfer.reads -= pieces.size() - i;
    transfer.good = false;
    if (transfer.reads == 0) startAgain(key, transfer);
    return;
  }
}

// The offered page can't be had: its link is lost, and nothing of the page is under way.
void Agent::startAgain(const Key& key, Transfer& transfer) {
  transfer.region.reset();
  if (transfer.bytes != 0) transfer.has.reset();  // some of it may have come
  transfer.bytes = 0;
  transfer.good = true;
  {
    const std::lock_guard lock(mutex_);
    transfer.offer = offers_.want(transfer.from, key);
  }
  if (transfer.offer) start(key, transfer);
}

void Agent::endRead(const Note& note) {
  const auto read = reads_.extract(note.read);
  if (read.empty()) return;
  const auto [key, bytes] = read.mapped();
  Transfer& transfer = transfers_[key];
  came(givers_[transfer.from], note.how == ReadIs::kGood ? bytes : 0, note.at);
  // A giver lets go of what it offered over a link when it has another link.
  const PeerPtr peer = worker_.peers().upNow(transfer.from);
  const bool current = peer != nullptr && peer->number() == transfer.offer->link;
  if (note.how == ReadIs::kFailed && current) {
    Note failed{.kind = Note::Kind::kFailed};
    failed.why = "executor " + std::to_string(transfer.from) + " offers what it has not got";
    leave(std::move(failed));
  }
  transfer.good = transfer.good && note.how == ReadIs::kGood;
  if (--transfer.reads != 0) return;
  transfer.region.reset();  // nothing touches the memory any more
  if (!transfer.good) return startAgain(key, transfer);
  landed(key);
}

// A read is over. The time counts in which any read was under way, not each read's own time, in
// which it waits for others.
void Agent::came(Giver& giver, uint64_t bytes, std::chrono::steady_clock::time_point now) {
  giver.bytes += bytes;
  --giver.reads;
  if (giver.bytes < kPaceBytes && (giver.reads != 0 || giver.bytes < kPageBytes)) return;
  note(giver.page_ns, (now - giver.since) * static_cast<double>(kPageBytes) /
                          static_cast<double>(std::exchange(giver.bytes, 0)));
  giver.since = now;
}

void Agent::landed(const Key& key) {
  landed_.fetch_add(1, std::memory_order_relaxed);
  const auto transfer = transfers_.extract(key);
  const PeerMessage& offer = transfer.mapped().offer->page;
  const bool hashed = (offer.hashed & kPageHashed) != 0;
  if (const uint64_t bytes = transfer.mapped().bytes; bytes != 0 && bytes != kPageBytes) {
    in_part_.fetch_add(1, std::memory_order_relaxed);
    part_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  Known& page = known(key.first);
  page.from = transfer.mapped().from;
  page.number = ++givers_[transfer.mapped().from].pages;
  Link& link = links_[transfer.mapped().from];
  --link.awaited;
  link.in_vain = false;
  page.hash = hashed ? std::optional(offer.hash) : std::nullopt;
  page.blocks = transfer.mapped().offer->blocks;
  const Relaxed relaxed(worker_.driver());  // as in heard()
  pager_.landed(transfer.key().first, transfer.key().second, hashed ? offer.hash.data() : nullptr);
}

void Agent::write(forward::PagesKind kind, std::span<const std::byte> body) {
  const forward::PagesHead head{.kind = kind};
  (void)home_.write({std::as_bytes(std::span(&head, 1)), body}, true);
}

void Agent::tellOver(const std::vector<uint64_t>& ages) {
  std::vector<directory::Message> messages;
  messages.reserve(ages.size());
  for (const uint64_t age : ages)
    messages.push_back({.kind = directory::MessageKind::kCompleted,
                        .from = static_cast<directory::AgentId>(slot_),
                        .to = directory::kHome,
                        .age = age});
  std::span<const directory::Message> left = messages;
  while (!left.empty()) write(forward::PagesKind::kMessages, pages::encode(left));
}

void Agent::tellFigures() {
  told_ = landed();
  told_retained_ = pager_.retained();
  const uint64_t whole = told_.pages - told_.unchanged - told_.in_part;
  const forward::FiguresRecord figures{.read_bytes = whole * kPageBytes + told_.part_bytes,
                                       .unchanged_bytes = told_.unchanged * kPageBytes,
                                       .in_part_bytes = told_.in_part * kPageBytes,
                                       .retained_bytes = told_retained_};
  write(forward::PagesKind::kFigures, std::as_bytes(std::span(&figures, 1)));
}

}  // namespace olpager::gpunode
