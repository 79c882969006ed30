// The home of a unified view and executors of the test's, each with the product's own agent: what
// goes between them are records, and bytes are copied from frame to frame. Programs of several
// streams, by chance; each page is compared with what the same operations make of it one after the
// other.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "base/space/pages.h"
#include "coherence/directory/agent.h"
#include "coherence/pages/batch.h"
#include "coherence/status/unified_counters.h"
#include "interpose/unified/home.h"
#include "tests/catch.h"
#include "tests/unit/unified/records.h"

using namespace olpager;
using directory::Action;
using directory::ActionKind;
using directory::Age;
using directory::ExtentId;
using directory::Message;
using forward::PagesHead;
using forward::PagesKind;
using forward::RegionRecord;
using space::kPageBytes;
using unified::Home;
using unified::Named;
using unified::test::recordOf;

namespace {

constexpr uint64_t kBase = 0x7c01'0000'0000;
constexpr uint64_t addressOf(uint64_t page) { return kBase + page * kPageBytes; }

using Record = std::vector<std::byte>;

/// The operation's effect on its pages: each becomes a number of all of them and of the operation.
struct Operation {
  size_t number = 0;
  unsigned stream = 0;
  std::vector<uint64_t> pages;  // named, and then those that are only reached
  size_t named = 0;
  Home::Sent sent{};
  unsigned executor = 0;
  enum class State { kArrived, kNeeding, kRunnable, kSubmitted, kComplete } state = State::kArrived;
};

template <typename Get, typename Set>
void run(const Operation& operation, Get get, Set set) {
  uint64_t sum = operation.number;
  for (const uint64_t page : operation.pages) sum = sum * 0x9e3779b97f4a7c15u + get(page);
  for (const uint64_t page : operation.pages) set(page, ++sum);
}

class Executor {
 public:
  explicit Executor(unsigned number) : agent_(static_cast<directory::AgentId>(number)) {}

  struct Fetch {
    ExtentId extent;
    directory::AgentId from;
    directory::Number number;
  };

  void hear(const Record& record) {
    PagesHead head;
    REQUIRE(record.size() > sizeof head);
    std::memcpy(&head, record.data(), sizeof head);
    const auto body = std::span(record).subspan(sizeof head);
    if (head.kind == PagesKind::kRegions) {
      REQUIRE(body.size() == head.count * sizeof(RegionRecord));
      for (uint32_t i = 0; i < head.count; ++i) {
        RegionRecord region;
        std::memcpy(&region, body.data() + i * sizeof region, sizeof region);
        agent_.resize(region.first + region.pages);
        extents_ = std::max(extents_, region.first + region.pages);
        for (uint32_t page = 0; page < region.pages; ++page)
          extent_of_[(region.base - kBase) / kPageBytes + page] = region.first + page;
        ++regions;
      }
      return;
    }
    std::vector<Message> messages;
    REQUIRE(pages::decode(body, extents_, messages).ok());
    for (const Message& message : messages) step([&](auto& out) { agent_.receive(message, out); });
  }

  void begin(Operation& operation) {
    REQUIRE(regions >= operation.sent.regions);
    operations_[operation.sent.age] = &operation;
    operation.state = Operation::State::kNeeding;
    std::vector<directory::Need> needs;
    for (const uint64_t page : operation.pages)
      needs.push_back({extent_of_.at(page), directory::Mode::kOwn});
    step([&](auto& out) { agent_.begin(operation.sent.age, needs, operation.sent.oldest, out); });
  }
  void submit(Operation& operation) {
    if (!agent_.submit(operation.sent.age)) {
      operation.state = Operation::State::kNeeding;
      return;
    }
    operation.state = Operation::State::kSubmitted;
    run(
        operation, [&](uint64_t page) { return at(page); },
        [&](uint64_t page, uint64_t value) { at(page) = value; });
  }
  void complete(Operation& operation) {
    operation.state = Operation::State::kComplete;
    step([&](auto& out) { agent_.complete(operation.sent.age, out); });
  }
  void land(std::vector<std::unique_ptr<Executor>>& all) {
    const Fetch fetch = fetches.front();
    fetches.pop_front();
    frames_[fetch.extent] = all[fetch.from]->frames_.at(fetch.extent);
    step([&](auto& out) { agent_.landed(fetch.extent, fetch.number, out); });
  }
  uint64_t valueOf(uint64_t page) const { return frames_.at(extent_of_.at(page)); }

  std::deque<Message> said;
  std::deque<Fetch> fetches;
  uint64_t regions = 0;

 private:
  uint64_t& at(uint64_t page) {
    const ExtentId extent = extent_of_.at(page);
    REQUIRE(mapped_.contains(extent));
    return frames_.at(extent);
  }

  template <typename Step>
  void step(Step&& step) {
    directory::Actions actions;
    step(actions);
    for (const Action& action : actions) carryOut(action);
  }
  void carryOut(const Action& action) {
    switch (action.kind) {
      case ActionKind::kSend:
        return said.push_back(action.message);
      case ActionKind::kMap:
        mapped_.insert(action.extent);
        return;
      case ActionKind::kUnmap:
        mapped_.erase(action.extent);
        return;
      case ActionKind::kFetch:
        return fetches.push_back({action.extent, action.peer, action.number});
      case ActionKind::kClear:
        frames_[action.extent] = 0;
        return;
      case ActionKind::kFree:
        frames_.erase(action.extent);
        return;
      case ActionKind::kRunnable:
        operations_.at(action.age)->state = Operation::State::kRunnable;
        return;
      case ActionKind::kClaimLost:
        return;
      default:
        FAIL("action " << static_cast<int>(action.kind));
    }
  }

  directory::Agent agent_;
  ExtentId extents_ = 0;
  std::map<uint64_t, ExtentId> extent_of_;
  std::map<ExtentId, uint64_t> frames_;
  std::set<ExtentId> mapped_;
  std::map<Age, Operation*> operations_;
};

/// A program by chance, over so many executors.
class World {
 public:
  World(uint64_t seed, std::vector<uint64_t> rooms) : random_(seed), home_(rooms, kBase) {
    for (unsigned i = 0; i < rooms.size(); ++i) {
      all_.push_back(std::make_unique<Executor>(i));
      rooms_ += rooms[i];
    }
  }

  void go(unsigned streams, size_t operations) {
    // Each stream has pages of its own, in regions of one to three.
    std::vector<std::vector<uint64_t>> pages(streams);
    std::map<uint64_t, uint64_t> regions;
    uint64_t next = 0;
    for (uint64_t left = rooms_; left != 0;) {
      const uint64_t count = std::min(left, 1 + below(3));
      REQUIRE(home_.add(addressOf(next), count * kPageBytes));
      regions[addressOf(next)] = count;
      auto& of = pages[below(streams)];
      for (uint64_t page = 0; page < count; ++page) of.push_back(next + page);
      next += count + 1;
      left -= count;
    }
    CHECK(home_.freePages() == 0);
    CHECK_FALSE(home_.add(addressOf(next), kPageBytes));

    std::vector<std::deque<Operation*>> queues(streams);
    std::deque<Operation> made;
    std::map<uint64_t, uint64_t> expected;
    for (;;) {
      const bool moved = moves(queues);
      if (made.size() == operations) {
        if (!moved) break;
      } else if (!moved || below(4) == 0) {
        const auto stream = static_cast<unsigned>(below(streams));
        if (!pages[stream].empty()) issue(made, stream, pages[stream], queues[stream], expected);
      }
    }
    std::set<unsigned> used;
    for (const Operation& operation : made) {
      CHECK(operation.state == Operation::State::kComplete);
      CHECK(home_.complete(operation.sent.age));
      used.insert(operation.executor);
    }
    CHECK(used.size() == all_.size());
    for (const auto& [page, value] : expected) {
      const auto owner = home_.ownerOf(addressOf(page));
      REQUIRE(owner.has_value());
      CHECK(all_[*owner]->valueOf(page) == value);
    }
    for (const auto& [base, count] : regions) home_.remove(base);
    while (moves(queues)) {
    }
    CHECK(home_.released().size() == regions.size());
    CHECK_FALSE(home_.hasRecords());
    CHECK(home_.freePages() == rooms_);
    for (unsigned i = 0; i < all_.size(); ++i) CHECK(home_.placed(i) == 0);
    // The region's addresses and numbers serve again, with nothing of what was there.
    CHECK(home_.add(addressOf(0), rooms_ * kPageBytes));
    CHECK_FALSE(home_.ownerOf(addressOf(0)).has_value());
  }

 private:
  uint64_t below(uint64_t limit) { return random_() % limit; }

  void issue(std::deque<Operation>& made, unsigned stream, const std::vector<uint64_t>& pages,
             std::deque<Operation*>& queue, std::map<uint64_t, uint64_t>& expected) {
    Operation operation{.number = made.size(), .stream = stream, .pages = {}};
    std::set<uint64_t> chosen;
    while (chosen.size() < std::min<size_t>(pages.size(), 1 + below(4)))
      chosen.insert(pages[below(pages.size())]);
    operation.pages.assign(chosen.begin(), chosen.end());
    operation.named = 1 + below(operation.pages.size());
    std::vector<Named> named;
    for (size_t i = 0; i < operation.named; ++i)
      named.push_back({addressOf(operation.pages[i]) + below(kPageBytes - 8), 8});
    const unsigned at = at_[stream];
    operation.executor = home_.route(named, at);
    // A stream moves when all of it is done.
    if (operation.executor != at && !queue.empty()) return;
    at_[stream] = operation.executor;
    const auto in_place =
        operation.executor == at && below(4) != 0 ? home_.sendInPlace(at, named) : std::nullopt;
    operation.sent = in_place ? *in_place : home_.send(operation.executor, named, below(4) != 0);
    run(
        operation, [&](uint64_t page) { return expected[page]; },
        [&](uint64_t page, uint64_t value) { expected[page] = value; });
    made.push_back(operation);
    queue.push_back(&made.back());
  }

  /// Something happens; false: nothing can.
  bool moves(std::vector<std::deque<Operation*>>& queues) {
    std::vector<std::function<void()>> can;
    for (unsigned i = 0; i < all_.size(); ++i) {
      Executor& executor = *all_[i];
      const bool has_records = home_.hasRecords();
      if (Record record = home_.take(i); !record.empty()) {
        CHECK(has_records);
        way_[i].push_back(std::move(record));
      }
      if (!way_[i].empty())
        can.emplace_back([this, i, &executor] {
          executor.hear(way_[i].front());
          way_[i].pop_front();
        });
      if (!executor.said.empty())
        can.emplace_back([this, i, &executor] {
          const size_t count = 1 + below(executor.said.size());
          const std::vector<Message> some(executor.said.begin(),
                                          executor.said.begin() + static_cast<ptrdiff_t>(count));
          executor.said.erase(executor.said.begin(),
                              executor.said.begin() + static_cast<ptrdiff_t>(count));
          REQUIRE(home_.receive(i, recordOf(some)).ok());
        });
      if (!executor.fetches.empty()) can.emplace_back([this, &executor] { executor.land(all_); });
    }
    for (auto& queue : queues) {
      bool before = true;  // whatever is before it is submitted
      for (Operation* const one : queue) {
        Executor& executor = *all_[one->executor];
        if (one->state == Operation::State::kArrived && before &&
            executor.regions >= one->sent.regions)
          can.emplace_back([one, &executor] { executor.begin(*one); });
        if (one->state == Operation::State::kRunnable)
          can.emplace_back([one, &executor] { executor.submit(*one); });
        if (one->state == Operation::State::kSubmitted && one == queue.front())
          can.emplace_back([one, &queue, &executor] {
            executor.complete(*one);
            queue.pop_front();
          });
        before = one->state == Operation::State::kSubmitted;
        if (!before) break;
      }
    }
    if (can.empty()) return false;
    can[below(can.size())]();
    return true;
  }

  std::mt19937_64 random_;
  Home home_;
  uint64_t rooms_ = 0;
  std::vector<std::unique_ptr<Executor>> all_;
  std::map<unsigned, std::deque<Record>> way_;  // to executors
  std::map<unsigned, unsigned> at_;             // where streams are
};

TEST_CASE("programs over several executors") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    const std::vector<uint64_t> rooms(2 + seed % 3, 4 + seed % 5);
    World(seed, rooms).go(static_cast<unsigned>(1 + seed % 4), 120);
  }
}

TEST_CASE("programs over as many executors as there can be, and over others beyond 32") {
  for (const unsigned executors : {33u, 48u, unsigned{directory::kMostAgents}}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      INFO(executors << " executors, seed " << seed);
      World(seed, std::vector<uint64_t>(executors, 4)).go(executors, size_t{30} * executors);
    }
  }
}

/// All that waits for an executor.
std::vector<Message> messagesFor(Home& home, unsigned executor, ExtentId extents) {
  std::vector<Message> found;
  for (Record record = home.take(executor); !record.empty(); record = home.take(executor)) {
    PagesHead head;
    std::memcpy(&head, record.data(), sizeof head);
    if (head.kind == PagesKind::kMessages)
      REQUIRE(pages::decode(std::span(record).subspan(sizeof head), extents, found).ok());
  }
  return found;
}

TEST_CASE("an operation goes where the fewest pages have to move") {
  Home home({4, 4}, kBase);
  for (const uint64_t page : {0, 10, 20, 30}) CHECK(home.add(addressOf(page), 2 * kPageBytes));
  const auto whole = [](uint64_t page) { return Named{addressOf(page), 0}; };
  // Pages that nobody has stay where the stream is, until that is full.
  for (const uint64_t page : {0, 10}) {
    const Named named[] = {whole(page)};
    CHECK(home.route(named, 0) == 0);
    (void)home.send(0, named, true);
  }
  CHECK(home.placed(0) == 4);
  const Named third[] = {whole(20)};
  REQUIRE(home.route(third, 0) == 1);
  (void)home.send(1, third, true);
  // By what was sent, though nobody has answered.
  const Named all_at_0[] = {whole(0), whole(10)};
  CHECK(home.route(all_at_0, 1) == 0);
  // Named twice, a page counts once. Here 0 would have too many.
  const Named both[] = {whole(0), whole(0), {addressOf(1), 1}, whole(20)};
  CHECK(home.route(both, 0) == 1);
  // One page more than half decides where there is room.
  const Named part[] = {{addressOf(0), kPageBytes}, whole(20)};
  CHECK(home.route(part, 0) == 1);
  // An address in no region is nobody's.
  const Named elsewhere[] = {{addressOf(2), 1}, {addressOf(100), 8}, {16, 8}};
  CHECK(home.route(elsewhere, 1) == 1);
}

TEST_CASE("all moves only for more pages than a move costs") {
  Home home({4096, 4096}, kBase);
  REQUIRE(home.add(addressOf(0), 20 * kPageBytes));
  REQUIRE(home.add(addressOf(100), kPageBytes));
  const Named many[] = {{addressOf(0), 0}}, one[] = {{addressOf(100), 0}};
  (void)home.send(0, many, true);
  (void)home.send(1, one, true);
  // A page that is elsewhere comes; so do twelve, the price of a move in all. Thirteen don't.
  CHECK(home.route(one, 0) == 0);
  const Named twelve[] = {{addressOf(0), 12 * kPageBytes}};
  CHECK(home.route(twelve, 1) == 1);
  const Named thirteen[] = {{addressOf(0), 13 * kPageBytes}};
  CHECK(home.route(thirteen, 1) == 0);
}

TEST_CASE("new pages leave some room to what comes and goes") {
  Home home({64, 64}, kBase);
  REQUIRE(home.add(addressOf(0), 61 * kPageBytes));
  for (const uint64_t page : {100, 101, 102, 103}) REQUIRE(home.add(addressOf(page), kPageBytes));
  const auto one = [](uint64_t page) { return Named{addressOf(page), 0}; };
  const Named most[] = {one(0)}, next[] = {one(100)}, beyond[] = {one(101)}, known[] = {one(102)};
  (void)home.send(0, most, true);
  CHECK(home.route(next, 0) == 0);
  (void)home.send(0, next, true);
  // 62 of 64, two of which are not for what is new. Pages that another executor has may come.
  CHECK(home.route(beyond, 0) == 1);
  (void)home.send(1, known, true);
  const Named two[] = {one(100), one(102)};
  CHECK(home.route(two, 0) == 0);
}

TEST_CASE("what operations name wherever they run comes along") {
  Home home({4, 4}, kBase);
  for (const uint64_t page : {0, 10, 20}) REQUIRE(home.add(addressOf(page), kPageBytes));
  const Named first[] = {{addressOf(0), 0}}, second[] = {{addressOf(10), 0}};
  const Named both[] = {first[0], second[0]}, third[] = {{addressOf(20), 0}};
  (void)home.send(0, both, true);
  CHECK(home.placed(0) == 2);
  // To 1, one after the other, and back.
  (void)home.send(1, first, true);
  (void)home.send(1, second, true);
  (void)home.send(0, both, true);
  // The second time both come at once, with the first operation.
  const Home::Sent again = home.send(1, first, true);
  CHECK(home.placed(1) == 1);
  home.arrive(1, again.age, first);
  CHECK(home.placed(1) == 2);
  // A page that no operation names then is not expected again; a freed one never is.
  (void)home.send(0, both, true);
  const Home::Sent later = home.send(1, third, true);
  home.arrive(1, later.age, third);
  CHECK(home.placed(1) == 2);
  (void)home.send(0, both, true);
  home.remove(addressOf(0));
  const Home::Sent last = home.send(1, third, true);
  home.arrive(1, last.age, third);
  CHECK(home.placed(1) == 1);
}

/// One stream over two executors, each of whose operations ends before the next one is sent.
class Line {
 public:
  explicit Line(std::vector<uint64_t> rooms) : home(std::move(rooms), kBase) {}
  Line(std::vector<uint64_t> rooms, const std::vector<uint64_t>& holds)
      : home(std::move(rooms), holds, kBase,
             std::accumulate(holds.begin(), holds.end(), uint64_t{0})) {}

  /// By number of the first page: a region of so many, which is at that executor.
  void add(uint64_t page, uint64_t pages, unsigned executor) {
    REQUIRE(home.add(addressOf(page), pages * kPageBytes));
    pages_[page] = pages;
    touch(page, executor);
  }
  /// An operation there names it.
  void touch(uint64_t page, unsigned executor) {
    at_ = executor;
    const Named named[] = {{addressOf(page), 0}};
    send({page}, named, std::nullopt);
    send({page}, named, std::nullopt);  // which finds it there
  }
  void remove(uint64_t page) {
    home.remove(addressOf(page));
    pump();
    REQUIRE(home.released().size() == 1);
  }
  /// An operation that names these regions. Returns true if all has moved for it.
  bool run(const std::vector<uint64_t>& regions) {
    std::vector<Named> named;
    for (const uint64_t page : regions) named.push_back({addressOf(page) + 8, 0});
    if (home.sendInPlace(at_, named)) return false;
    const Home::Routed routed = home.routed(named, at_);
    const bool moves = routed.executor != at_;
    at_ = routed.executor;
    send(regions, named, routed.united, moves);
    return moves;
  }
  /// An operation is sent to executor 0 that names the first of these pages and reaches them all:
  /// it is submitted if it can be, and does not end.
  Operation& begin(const std::vector<uint64_t>& pages) {
    Operation& operation = made_.emplace_back();
    operation.pages = pages;
    const Named named[] = {{addressOf(pages.front()), kPageBytes}};
    operation.sent = home.send(0, named, true);
    pump();
    all_[0]->begin(operation);
    pump();
    if (operation.state == Operation::State::kRunnable) all_[0]->submit(operation);
    return operation;
  }
  void end(Operation& operation) {
    all_[0]->complete(operation);
    pump();
  }
  bool makeRoom(std::span<const Named> named) {
    const bool begun = home.makeRoom(0, named);
    pump();
    return begun;
  }

  Home home;

 private:
  void send(const std::vector<uint64_t>& regions, std::span<const Named> named,
            std::optional<uint64_t> united, bool moves = false) {
    Operation& operation = made_.emplace_back();
    operation.executor = at_;
    for (const uint64_t first : regions)
      for (uint64_t page = first; page < first + pages_.at(first); ++page)
        operation.pages.push_back(page);
    for (uint64_t steps = home.steps(); home.makeRoom(at_, named); steps = home.steps()) {
      pump();
      REQUIRE(home.steps() == steps + 1);
    }
    operation.sent = home.send(at_, named, true, united);
    if (moves) home.arrive(at_, operation.sent.age, named);
    pump();
    all_[at_]->begin(operation);
    pump();
    REQUIRE(operation.state == Operation::State::kRunnable);
    all_[at_]->submit(operation);
    all_[at_]->complete(operation);
    pump();
  }
  /// Until nobody has anything to say.
  void pump() {
    for (bool more = true; more;) {
      more = false;
      for (unsigned i = 0; i < all_.size(); ++i) {
        for (Record record = home.take(i); !record.empty(); record = home.take(i)) {
          all_[i]->hear(record);
          more = true;
        }
        for (; !all_[i]->fetches.empty(); more = true) all_[i]->land(all_);
        if (all_[i]->said.empty()) continue;
        const std::vector<Message> said(all_[i]->said.begin(), all_[i]->said.end());
        all_[i]->said.clear();
        REQUIRE(home.receive(i, recordOf(said)).ok());
        more = true;
      }
    }
  }

  // Vectors as World has them.
  std::vector<std::unique_ptr<Executor>> all_ = [] {
    std::vector<std::unique_ptr<Executor>> all;
    for (unsigned i = 0; i < 2; ++i) all.push_back(std::make_unique<Executor>(i));
    return all;
  }();
  std::deque<Operation> made_;
  std::map<uint64_t, uint64_t> pages_;  // of regions, by first page
  unsigned at_ = 0;
};

/// A round over twelve matrices of 20 pages, all of which use one more page: how often all moves.
/// A digit for each gives its place as the program was loaded.
size_t movesOfRound(Line& line, size_t matrices) {
  size_t moves = 0;
  for (size_t i = 0; i < matrices; ++i)
    for (int times = 0; times < 3; ++times) moves += line.run({100 * (i + 1), 1}) ? 1 : 0;
  return moves;
}
void load(Line& line, const std::string& at) {
  line.add(1, 1, 0);
  for (size_t i = 0; i < at.size(); ++i)
    line.add(100 * (i + 1), 20, static_cast<unsigned>(at[i] - '0'));
}

TEST_CASE("pages of short turns come, where all would move for them again and again") {
  Line line({4096, 4096});
  const std::string at = "001000110111";
  load(line, at);
  const uint64_t first = line.home.placed(0);
  CHECK(movesOfRound(line, at.size()) >= 5);
  size_t moves = 6;
  for (int round = 0; round < 8; ++round) moves = movesOfRound(line, at.size());
  // All of it has room at one, and its turns were short ones.
  CHECK(moves == 0);
  CHECK(line.home.placed(0) != first);
  const uint64_t moved = line.home.moved();
  CHECK(movesOfRound(line, at.size()) == 0);
  CHECK(line.home.moved() == moved);
}

TEST_CASE("pages of short turns stay where they are where there is no room for them") {
  // Pages are so few that none of them counts, and no turn is short.
  Line small({150, 150});
  load(small, "001000110111");
  size_t moves = 0;
  for (int round = 0; round < 8; ++round) moves = movesOfRound(small, 12);
  CHECK(moves >= 4);
  // Executor 0 is full; what is single at it goes to 1, until there are two turns.
  Line line({3072, 3440});
  load(line, "000100110111");
  line.add(10'000, 3020, 0);
  line.add(20'000, 3250, 1);
  for (int round = 0; round < 20; ++round) moves = movesOfRound(line, 12);
  CHECK(moves == 2);
  // Nothing moves then but the page that all use.
  const uint64_t moved = line.home.moved();
  CHECK(movesOfRound(line, 12) == 2);
  CHECK(line.home.moved() == moved + 2);
  CHECK(line.home.placed(0) <= 3072 + 3072 / 32);
  CHECK(line.home.placed(1) <= 3440);
}

TEST_CASE("what lies where memory of a short turn was does not come for it") {
  Line line({3072, 3072});
  load(line, "0010");
  line.add(10'000, 2980, 0);
  line.add(350, 2, 1);
  const auto round = [&] {
    for (const auto& regions : {std::vector<uint64_t>{100, 1}, {200, 1}, {300, 350, 1}, {400, 1}})
      for (int times = 0; times < 3; ++times) (void)line.run(regions);
  };
  for (int i = 0; i < 2; ++i) round();
  REQUIRE(line.home.placedAt(addressOf(300)) == 1u);
  // There was room for 22 pages, and there is none for 60.
  line.remove(350);
  line.add(350, 40, 1);
  for (int i = 0; i < 3; ++i) round();
  CHECK(line.home.placedAt(addressOf(300)) == 1u);
  CHECK(line.home.placed(0) <= 3072);
}

TEST_CASE("what has stayed with an executor does not travel any more") {
  Home home({64, 64}, kBase);
  for (const uint64_t page : {0, 10, 20}) REQUIRE(home.add(addressOf(page), kPageBytes));
  const Named stays[] = {{addressOf(0), 0}}, at_0[] = {{addressOf(10), 0}};
  const Named at_1[] = {{addressOf(20), 0}};
  const auto turn = [&](unsigned executor, std::span<const Named> named) {
    home.arrive(executor, home.send(executor, named, true).age, named);
  };
  turn(0, stays);
  turn(1, at_1);
  (void)home.send(1, stays, true);  // it came, and might travel
  turn(0, at_0);
  turn(1, at_1);
  CHECK(home.placedAt(addressOf(0)) == 1u);
  // The page is wanted elsewhere once, and stays there.
  (void)home.send(0, stays, true);
  turn(0, at_0);
  turn(1, at_1);
  CHECK(home.placedAt(addressOf(0)) == 0u);
}

TEST_CASE("what no operation has named for longest makes room where all executors are full") {
  Line line({4, 4}, {10, 10});
  for (const uint64_t region : {0, 4, 8}) line.add(region, region == 8 ? 2 : 4, 0);
  for (const uint64_t region : {10, 14, 18}) line.add(region, region == 18 ? 2 : 4, 1);
  REQUIRE(line.home.placed(0) == 10);
  REQUIRE(line.home.placed(1) == 10);
  line.run({4, 14});
  const unsigned there = *line.home.placedAt(addressOf(4));
  const uint64_t coldest = there == 0 ? 0 : 10;
  for (uint64_t page = 0; page < 4; ++page) {
    CHECK(line.home.placedAt(addressOf(4 + page)) == there);
    CHECK(line.home.placedAt(addressOf(14 + page)) == there);
    CHECK(line.home.placedAt(addressOf(coldest + page)) == 1 - there);
  }
  CHECK(line.home.placed(0) == 10);
  CHECK(line.home.placed(1) == 10);
}

TEST_CASE("operations by chance go on where all executors are full") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Line line({4, 4}, {20, 20});
    for (uint64_t region = 0; region < 40; region += 4) line.add(region, 4, region < 20 ? 0 : 1);
    for (int i = 0; i < 500; ++i) {
      std::vector<uint64_t> regions;
      for (uint64_t n = 1 + random() % 4; regions.size() < n;) {
        const uint64_t region = random() % 10 * 4;
        if (std::find(regions.begin(), regions.end(), region) == regions.end())
          regions.push_back(region);
      }
      line.run(regions);
      REQUIRE(line.home.placed(0) <= 20);
      REQUIRE(line.home.placed(1) <= 20);
    }
    CHECK(line.home.steps() > 0);
  }
}

TEST_CASE("a region that is freed ends the step that moves it") {
  Line line({4, 4}, {10, 10});
  line.add(0, 6, 0);
  line.add(6, 4, 0);
  line.add(10, 4, 1);
  const Named named[] = {{addressOf(6), 0}, {addressOf(10), 0}};
  const uint64_t steps = line.home.steps();
  REQUIRE(line.home.makeRoom(0, named));
  CHECK_FALSE(line.home.makeRoom(0, named));  // one at a time
  CHECK(line.home.steps() == steps);
  line.remove(0);
  CHECK(line.home.steps() == steps + 1);
  CHECK_FALSE(line.home.makeRoom(0, named));  // there is room now
}

TEST_CASE("what makes room keeps no page from an operation that needs it") {
  using State = Operation::State;
  constexpr uint64_t kHolds = 64;  // a step is two pages
  for (const bool gives_up : {false, true}) {
    CAPTURE(gives_up);
    Line line({kHolds, kHolds}, {kHolds, kHolds});
    for (uint64_t page = 0; page < kHolds; ++page) line.add(page, 1, 0);
    for (uint64_t page = kHolds; page < kHolds + 8; ++page) line.add(page, 1, 1);
    for (uint64_t page = 2; page < kHolds; ++page) line.touch(page, 0);
    // A kernel that waits for what the second operation does: it holds page 0.
    Operation& spins = line.begin({5, 0});
    REQUIRE(spins.state == State::kSubmitted);
    const Named two[] = {{addressOf(kHolds), kPageBytes}, {addressOf(kHolds + 1), kPageBytes}};
    const uint64_t steps = line.home.steps();
    REQUIRE(line.makeRoom(two));  // pages 0 and 1 are to go, and page 1 has gone
    REQUIRE(line.home.ownerOf(addressOf(1)) == 1u);
    if (gives_up) line.home.giveUpStep();
    CHECK(line.home.steps() == steps + (gives_up ? 1 : 0));
    Operation& ends = line.begin({1, 0});
    REQUIRE(ends.state == State::kSubmitted);
    line.end(ends);
    line.end(spins);
    CHECK(line.home.steps() == steps + 1);
    // Room is made as ever.
    REQUIRE(line.makeRoom(two));
    CHECK(line.home.steps() == steps + 2);
  }
}

TEST_CASE("what is asked for ahead") {
  Home home({4, 4}, kBase);
  REQUIRE(home.add(addressOf(0), 3 * kPageBytes));
  const Named named[] = {{addressOf(0) + 5, kPageBytes}};
  const Home::Sent sent = home.send(1, named, true);
  CHECK(sent.regions == 1);
  CHECK(messagesFor(home, 0, 3).empty());
  const auto asked = messagesFor(home, 1, 3);
  REQUIRE(asked.size() == 2);  // it begins in one page and ends in the next
  for (const Message& one : asked) {
    CHECK(one.kind == directory::MessageKind::kFirst);
    CHECK(one.served == sent.age);
  }
  // A later operation there asks for what it lacks.
  std::vector<Message> done;
  done.reserve(asked.size());
  for (const Message& one : asked) {
    done.push_back({.kind = directory::MessageKind::kDone,
                    .from = 1,
                    .extent = one.extent,
                    .number = one.number});
  }
  REQUIRE(home.receive(1, recordOf(done)).ok());
  CHECK(home.ownerOf(addressOf(1)) == 1u);
  const Named all[] = {{addressOf(0), 0}};
  (void)home.send(1, all, true);
  CHECK(messagesFor(home, 1, 3).size() == 1);
  // One that is not to be asked for, or will not come.
  const Home::Sent other = home.send(0, all, false);
  CHECK(messagesFor(home, 1, 3).empty());
  home.cancel(other.age);
  CHECK(home.complete(other.age));
  CHECK_FALSE(home.complete(sent.age));
}

TEST_CASE("regions are told to all, and first") {
  Home home({4, 4}, kBase);
  REQUIRE(home.add(addressOf(0), 2 * kPageBytes));
  const Named named[] = {{addressOf(0), 0}};
  (void)home.send(0, named, true);
  REQUIRE(home.add(addressOf(3), kPageBytes));
  for (unsigned executor = 0; executor < 2; ++executor) {
    const Record record = home.take(executor);
    PagesHead head;
    REQUIRE(record.size() == sizeof head + 2 * sizeof(RegionRecord));
    std::memcpy(&head, record.data(), sizeof head);
    CHECK(head.kind == PagesKind::kRegions);
    CHECK(head.count == 2);
    RegionRecord second;
    std::memcpy(&second, record.data() + sizeof head + sizeof second, sizeof second);
    CHECK(second.base == addressOf(3));
    CHECK(second.pages == 1);
    CHECK(second.first == 2);
  }
  CHECK_FALSE(home.take(0).empty());
  CHECK(home.take(0).empty());
  CHECK(home.take(1).empty());
}

TEST_CASE("what an operation reaches without naming it is found where it went") {
  Home home({4, 4}, kBase);
  REQUIRE(home.add(addressOf(0), kPageBytes));
  const Home::Sent sent = home.send(1, {}, true);
  const Message get[] = {{.kind = directory::MessageKind::kGet,
                          .from = 1,
                          .mode = directory::Mode::kOwn,
                          .age = sent.age}};
  REQUIRE(home.receive(1, recordOf(get)).ok());
  const auto first = messagesFor(home, 1, 1);
  REQUIRE(first.size() == 1);
  const Named named[] = {{addressOf(0), 0}};
  CHECK(home.placed(1) == 0);
  CHECK(home.route(named, 0) == 0);
  const Message done[] = {
      {.kind = directory::MessageKind::kDone, .from = 1, .number = first.front().number}};
  REQUIRE(home.receive(1, recordOf(done)).ok());
  CHECK(home.placed(1) == 1);
  CHECK(home.route(named, 0) == 1);
  // In place, as soon as an operation has named it all there and found it so.
  CHECK_FALSE(home.sendInPlace(1, named).has_value());
  const Home::Sent found = home.send(1, named, true);
  const Named part[] = {{addressOf(0) + 8, 8}, {addressOf(5), 0}};
  const auto again = home.sendInPlace(1, part);
  REQUIRE(again.has_value());
  CHECK(again->age == found.age + 1);
  CHECK(home.sendInPlace(1, {}).has_value());
  CHECK_FALSE(home.sendInPlace(0, part).has_value());
  for (const unsigned executor : {0u, 1u})
    while (home.hasRecords() && !home.take(executor).empty()) {
    }
  CHECK_FALSE(home.hasRecords());
  (void)home.send(0, part, true);
  CHECK(home.hasRecords());
  CHECK_FALSE(home.sendInPlace(1, part).has_value());
}

TEST_CASE("a region that is removed is nobody's") {
  Home home({4, 4}, kBase);
  REQUIRE(home.add(addressOf(0), 2 * kPageBytes));
  const Named named[] = {{addressOf(0), 0}};
  home.remove(addressOf(0));
  std::vector<Message> forgotten[2];
  for (unsigned executor = 0; executor < 2; ++executor) {
    for (const Message& one : messagesFor(home, executor, 2)) {
      CHECK(one.kind == directory::MessageKind::kForget);
      forgotten[executor].push_back({.kind = directory::MessageKind::kForgotten,
                                     .from = static_cast<directory::AgentId>(executor),
                                     .extent = one.extent,
                                     .number = one.number});
    }
    CHECK(forgotten[executor].size() == 2);
  }
  // Until all have forgotten it nothing of it serves again.
  (void)home.send(1, named, true);
  CHECK(home.placed(1) == 0);
  REQUIRE(home.receive(0, recordOf(forgotten[0])).ok());
  CHECK(home.released().empty());
  CHECK(home.freePages() == 6);
  REQUIRE(home.receive(1, recordOf(forgotten[1])).ok());
  CHECK(home.released() == std::vector<uint64_t>{addressOf(0)});
  CHECK(home.freePages() == 8);
  (void)home.send(1, named, true);
  CHECK(home.placed(1) == 0);
  // The extents are another region's now.
  REQUIRE(home.add(addressOf(10), 2 * kPageBytes));
  (void)home.send(1, named, true);
  CHECK(home.placed(1) == 0);
}

TEST_CASE("what decides where an operation goes has a name") {
  using status::RouteReason;
  const auto whole = [](uint64_t page) { return Named{addressOf(page), 0}; };
  Home home({4, 4}, {6, 8}, kBase, 14);
  for (const uint64_t page : {0, 10, 20, 30}) REQUIRE(home.add(addressOf(page), 2 * kPageBytes));
  const Named a[] = {whole(0)}, b[] = {whole(10)}, c[] = {whole(20)};
  CHECK(home.routed(a, 0).reason == RouteReason::kInPlace);  // nobody's
  (void)home.send(0, a, true);
  (void)home.send(0, b, true);
  const Home::Routed full = home.routed(c, 0);
  CHECK(full.executor == 1);
  CHECK(full.reason == RouteReason::kRoom);
  CHECK(full.there == 0);
  CHECK(full.coming == 0);
  (void)home.send(1, c, true);
  const Home::Routed back = home.routed(b, 1);
  CHECK(back.executor == 0);
  CHECK(back.reason == RouteReason::kPages);
  CHECK(back.there == 2);
  CHECK(back.coming == 0);
  // As much is at each: nothing moves but the pages.
  const Named mixed[] = {whole(0), {addressOf(20), kPageBytes}, {addressOf(21), kPageBytes}};
  const Home::Routed stays = home.routed(mixed, 1);
  CHECK(stays.executor == 1);
  CHECK(stays.reason == RouteReason::kPagesCome);
  CHECK(stays.there == 2);
  CHECK(stays.coming == 2);
  const Named all[] = {whole(0), whole(10), whole(20), whole(30)};
  const Home::Routed large = home.routed(all, 0);
  CHECK(large.executor == 1);
  CHECK(large.reason == RouteReason::kCapacity);
  CHECK(large.there == 2);
  CHECK(large.coming == 4);
}

TEST_CASE("an operation goes where it is asked to go, if that can hold what it names") {
  using status::RouteReason;
  const auto whole = [](uint64_t page) { return Named{addressOf(page), 0}; };
  Home home({4, 4}, {4, 8}, kBase, 12);
  for (const uint64_t page : {0, 10, 20}) REQUIRE(home.add(addressOf(page), 2 * kPageBytes));
  const Named a[] = {whole(0)}, b[] = {whole(10)}, all[] = {whole(0), whole(10), whole(20)};
  (void)home.send(0, a, true);
  const Home::Routed away = home.routed(a, 0, 1);
  CHECK(away.executor == 1);
  CHECK(away.reason == RouteReason::kAsked);
  CHECK(away.there == 0);
  CHECK(away.coming == 2);
  CHECK(home.routed(a, 0, 0).reason == RouteReason::kInPlace);
  (void)home.send(1, b, true);
  const Home::Routed stays = home.routed(b, 0, 0);
  CHECK(stays.executor == 0);
  CHECK(stays.reason == RouteReason::kPagesCome);
  CHECK(stays.coming == 2);
  const Home::Routed too_much = home.routed(all, 0, 0);  // three regions, and room for two
  CHECK(too_much.executor == 1);
  CHECK(too_much.reason == RouteReason::kCapacity);
}

TEST_CASE("the home counts what each executor owns, and whole pages that move") {
  const auto counters = std::make_unique<status::UnifiedCounters>();
  Home home({4, 4}, {8, 8}, kBase, 16, counters.get());
  REQUIRE(home.add(addressOf(0), 2 * kPageBytes));
  const auto pages = [&](unsigned executor) {
    const status::ExecutorCounters& one = counters->executors[executor];
    return std::array<uint64_t, 3>{one.owned_bytes / kPageBytes, one.bytes_in / kPageBytes,
                                   one.bytes_out / kPageBytes};
  };
  const auto takes = [&](unsigned executor) {
    const Named named[] = {{addressOf(0), 0}};
    (void)home.send(executor, named, true);
    std::vector<Message> done;
    for (const unsigned each : {0u, 1u}) {
      for (const Message& one : messagesFor(home, each, 2))
        done.push_back({.kind = directory::MessageKind::kDone,
                        .from = static_cast<directory::AgentId>(executor),
                        .extent = one.extent,
                        .number = one.number});
    }
    CHECK(done.size() == 2);
    REQUIRE(home.receive(executor, recordOf(done)).ok());
    (void)messagesFor(home, 1 - executor, 2);  // it may forget them
  };
  using Pages = std::array<uint64_t, 3>;
  CHECK(pages(0) == Pages{0, 0, 0});
  takes(0);  // they are new: nothing moves
  CHECK(pages(0) == Pages{2, 0, 0});
  takes(1);
  CHECK(pages(0) == Pages{0, 0, 2});
  CHECK(pages(1) == Pages{2, 2, 0});
  takes(0);
  CHECK(pages(0) == Pages{2, 2, 2});
  CHECK(pages(1) == Pages{0, 2, 2});
  home.remove(addressOf(0));
  for (const unsigned executor : {0u, 1u}) {
    std::vector<Message> forgotten;
    for (const Message& one : messagesFor(home, executor, 2))
      forgotten.push_back({.kind = directory::MessageKind::kForgotten,
                           .from = static_cast<directory::AgentId>(executor),
                           .extent = one.extent,
                           .number = one.number});
    REQUIRE(home.receive(executor, recordOf(forgotten)).ok());
  }
  CHECK(home.released().size() == 1);
  CHECK(pages(0) == Pages{0, 2, 2});
  CHECK(pages(1) == Pages{0, 2, 2});
}

TEST_CASE("records that no executor sends") {
  Home home({4, 4}, kBase);
  REQUIRE(home.add(addressOf(0), kPageBytes));
  const Message get{.kind = directory::MessageKind::kGet, .from = 0};
  const auto refuses = [&](unsigned executor, const Record& record, const char* why) {
    const Status heard = home.receive(executor, record);
    REQUIRE_FALSE(heard.ok());
    INFO(heard.error().message);
    CHECK(heard.error().message.starts_with("executor " + std::to_string(executor) + ": "));
    CHECK(heard.error().message.find(why) != std::string::npos);
  };
  const Message one[] = {get};
  refuses(0, Record(3), "without a head");
  refuses(1, recordOf(one), "speaks for executor 0");
  Record regions = recordOf(one);
  regions[0] = std::byte{static_cast<uint8_t>(PagesKind::kRegions)};
  refuses(0, regions, "no executor sends");
  Record cut = recordOf(one);
  cut.pop_back();
  refuses(0, cut, "refused");
  Message far = get;
  far.extent = 1;
  const Message beyond[] = {far};
  refuses(0, recordOf(beyond), "refused");
  Message ready{.kind = directory::MessageKind::kReady, .from = 0, .to = 2, .taker = 2};
  const Message to_nobody[] = {ready};
  refuses(0, recordOf(to_nobody), "speaks to executor 2");
  REQUIRE(home.receive(0, recordOf(one)).ok());
}

}  // namespace
