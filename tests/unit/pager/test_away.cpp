// The pool as an executor of a unified view: with a real home, and another executor that has a real
// agent of the directory, and bytes in place of a GPU.
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "coherence/directory/agent.h"
#include "coherence/pages/batch.h"
#include "forwarding/wire/wire.h"
#include "interpose/unified/home.h"
#include "pager/launch/external_operation.h"
#include "pager/pool_state.h"
#include "tests/unit/pager/fake_remote.h"
#include "tests/unit/pager/rig.h"

using namespace olpager;               // NOLINT(google-build-using-namespace)
using namespace olpager::pager;        // NOLINT(google-build-using-namespace)
using namespace olpager::pager::test;  // NOLINT(google-build-using-namespace)
using directory::ActionKind;
using directory::ExtentId;
using directory::Message;
using directory::Number;

namespace {

constexpr uint64_t kWords = kPageBytes / 8 / kStep;  // that the kernel uses of a page
constexpr unsigned kPool = 0, kOther = 1;
using Bytes = std::vector<std::byte>;
using Key = std::pair<ExtentId, Number>;

/// Home, network and the other executor. One thread moves everything, in the order of its notes.
class View : public AwayLink {
 public:
  explicit View(Rig& rig) : rig_(rig), home_({4096, 4096}, rig.pool().base()) {
    REQUIRE(rig.pool().setPlaced(256 * kMiB) == CUDA_SUCCESS);
    rig.pool().prepare(rig.context(), 0);
    REQUIRE(rig.pool().becomeExecutor(*this, kPool) == CUDA_SUCCESS);
    next_ = rig.pool().base();
    thread_ = std::thread([this] { run(); });
  }
  /// The regions there go: else they would go with the rig's context, which ends a view.
  ~View() override {
    rig_.synchronize();
    while (!first_.empty() && !has_failed_) drop(first_.begin()->first);
    note([](View& self) { self.ends_ = true; });
    thread_.join();
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  uint64_t make(uint64_t pages) {
    return makeAt(std::exchange(next_, next_ + (pages + 1) * kPageBytes), pages);
  }
  uint64_t makeAt(uint64_t base, uint64_t pages) {
    REQUIRE(home_.add(base, pages * kPageBytes));
    settle();
    REQUIRE(first_.contains(base));
    return base;
  }
  void drop(uint64_t base) {
    home_.remove(base);
    first_.erase(base);
    for (int i = 0; std::ranges::count(released_, base) == 0; ++i) {
      REQUIRE(i < 20'000);
      settle();
      for (const uint64_t one : home_.released()) released_.push_back(one);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::erase(released_, base);
  }

  /// Returns while the pool is about it.
  void beginDrop(uint64_t base) {
    home_.remove(base);
    first_.erase(base);
    note([](View&) {});
    for (int i = 0; rig_.pool().residency(base).vram != 0; ++i) {
      REQUIRE(i < 200'000);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  /// `make` makes the calls of an operation at the pool.
  template <typename Make>
  void atPool(std::vector<unified::Named> named, bool ahead, Make make) {
    const auto sent = home_.send(kPool, named, ahead);
    settle();
    ExternalOperation operation(nullptr, nullptr);
    operation.told.emplace(ToldOperation{.age = sent.age, .oldest = sent.oldest});
    ExternalOperation::setCurrent(&operation);
    make();
    ExternalOperation::setCurrent(nullptr);
    if (rig_.pool().operationOver(*operation.told)) return;
    const Message over{.kind = directory::MessageKind::kCompleted, .from = kPool, .age = sent.age};
    note([=](View& self) { self.heard(self.home_.receive(kPool, encoded({over}))); });
  }
  /// The other executor adds to all words of some pages, once `until` is true.
  void atOther(
      uint64_t base, uint64_t first, uint64_t pages, uint64_t add,
      const std::function<bool()>& until = [] { return true; }) {
    const Other operation = sendToOther(base, first, pages, true);
    beginAtOther(operation);
    endAtOther(operation, add, until);
  }
  /// An operation of the other executor, with its place in the order.
  struct Other {
    unified::Home::Sent sent;
    std::vector<directory::Need> needs;
  };
  Other sendToOther(uint64_t base, uint64_t first, uint64_t pages, bool ahead) {
    const unified::Named named{base + first * kPageBytes, pages * kPageBytes};
    Other operation{home_.send(kOther, std::span(&named, 1), ahead), {}};
    for (uint64_t page = first; page < first + pages; ++page)
      operation.needs.push_back(
          {first_[base] + static_cast<ExtentId>(page), directory::Mode::kOwn});
    return operation;
  }
  /// The operation asks for its pages, and nobody waits.
  void beginAtOther(const Other& operation) {
    note([=](View& self) {
      self.agent_.begin(operation.sent.age, operation.needs, operation.sent.oldest, self.actions_);
      self.carryOut();
    });
  }
  void endAtOther(const Other& operation, uint64_t add, const std::function<bool()>& until) {
    bool submitted = false;
    for (int i = 0; !submitted; ++i) {
      REQUIRE(i < 200'000);
      wait([&](View& self) { submitted = self.agent_.submit(operation.sent.age); });
      if (!submitted) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    while (!until()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    wait([&](View& self) {
      for (const directory::Need& need : operation.needs)
        for (uint64_t word = 0; word < kWords; ++word) {
          std::byte* const at = self.bytes_.at(need.extent).data() + word * kStep * 8;
          uint64_t value = 0;
          std::memcpy(&value, at, sizeof value);
          value += add;
          std::memcpy(at, &value, sizeof value);
        }
      self.agent_.complete(operation.sent.age, self.actions_);
      self.carryOut();
    });
  }
  /// Why the pool has ended the view, once it has.
  std::string failure() {
    std::string why;
    for (int i = 0; why.empty(); ++i) {
      REQUIRE(i < 20'000);
      wait([&](View& self) { why = std::exchange(self.wrong_, ""); });
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    has_failed_ = true;
    return why;
  }
  /// Pages that came to the pool and that it still had.
  uint64_t thereAlready() {
    uint64_t pages = 0;
    wait([&](View& self) { pages = self.there_already_; });
    return pages;
  }
  /// The other executor is asked for pages that it has not given yet.
  bool isAskedForPages() {
    bool asked = false;
    wait([&](View& self) { asked = self.agent_.unsettled() > 0; });
    return asked;
  }
  /// When the home has heard all that the pool has said.
  std::optional<unsigned> ownerOf(uint64_t address) {
    settle();
    return home_.ownerOf(address);
  }
  /// All that has been noted is done.
  void settle() {
    wait([](View&) {});
    CHECK(wrong_ == "");
  }

 private:
  // The pool's requests.
  void post(std::span<const std::byte> batch) override {
    note([record = recordOf(batch)](View& self) { self.heard(self.home_.receive(kPool, record)); });
  }
  void given(ExtentId extent, Number number, directory::AgentId, const void* bytes,
             std::optional<ContentHash> hash) override {
    note([=](View& self) {
      self.given_[{extent, number}] = bytes;
      if (hash && *hash != kernels::hashMemory(bytes, kPageBytes))
        self.wrong_ = "a page is given with the hash of other bytes";
    });
  }
  void takenBack(ExtentId extent, Number number) override {
    note([=](View& self) { self.given_.erase({extent, number}); });
  }
  void fetch(ExtentId extent, Number number, directory::AgentId, void* into,
             std::optional<ContentHash> has) override {
    note([=](View& self) {
      const std::byte* const bytes = self.bytes_.at(extent).data();
      const ContentHash hash = kernels::hashMemory(bytes, kPageBytes);
      if (has && *has != kernels::hashMemory(into, kPageBytes))
        self.wrong_ = "what a page was has the hash of other bytes";
      if (has == hash) {
        ++self.there_already_;
      } else {
        std::memcpy(into, bytes, kPageBytes);
      }
      self.rig_.pool().landed(extent, number, hash);
    });
  }
  void failed(const char* why) override {
    note([text = std::string(why)](View& self) { self.wrong_ = text; });
  }

  static Bytes recordOf(std::span<const std::byte> batch) {
    const forward::PagesHead head;
    const auto bytes = std::as_bytes(std::span(&head, 1));
    Bytes record(bytes.begin(), bytes.end());
    record.insert(record.end(), batch.begin(), batch.end());
    return record;
  }
  static Bytes encoded(const std::vector<Message>& messages) {
    std::span<const Message> left = messages;
    return recordOf(pages::encode(left));
  }

  void note(std::function<void(View&)> what) {
    const std::lock_guard lock(mutex_);
    notes_.push_back(std::move(what));
    noted_.notify_one();
  }
  template <typename What>
  void wait(What what) {
    std::mutex mutex;
    std::condition_variable done;
    bool over = false;
    note([&](View& self) {
      what(self);
      const std::lock_guard lock(mutex);
      over = true;
      done.notify_one();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return over; });
  }

  void run() {
    rig_.enterThread();
    std::unique_lock lock(mutex_);
    while (!ends_) {
      noted_.wait(lock, [this] { return !notes_.empty(); });
      const auto next = std::move(notes_.front());
      notes_.pop_front();
      lock.unlock();
      deliver();
      next(*this);
      deliver();
      lock.lock();
    }
  }
  void heard(const Status& status) {
    if (!status.ok()) wrong_ = status.error().message;
  }
  void deliver() {
    // Messages to the other executor make it say something.
    for (const unsigned to : {kOther, kPool}) {
      for (Bytes record = home_.take(to); !record.empty(); record = home_.take(to)) {
        forward::Reader reader(record);
        const auto head = reader.value<forward::PagesHead>();
        for (uint32_t i = 0; i < head.count; ++i) {
          const auto region = reader.value<forward::RegionRecord>();
          known_ = std::max(known_, region.first + region.pages);
          if (to == kOther) {
            agent_.resize(known_);
            first_[region.base] = region.first;
          }
          if (to == kPool && rig_.pool().addRegion(rig_.context(), 0, region.base, region.pages,
                                                   region.first) != CUDA_SUCCESS)
            wrong_ = "a region is refused";
        }
        if (head.kind != forward::PagesKind::kMessages) continue;
        const auto batch = reader.raw(reader.left());
        if (to == kPool) {
          if (rig_.pool().receive(batch) != CUDA_SUCCESS) wrong_ = "a batch is refused";
          continue;
        }
        std::vector<Message> messages;
        if (!pages::decode(batch, known_, messages).ok()) wrong_ = "a batch for the other";
        for (const Message& message : messages) {
          agent_.receive(message, actions_);
          carryOut();
        }
      }
    }
  }
  // The other executor's pager.
  void carryOut() {
    while (!actions_.empty()) {
      const directory::Actions actions = std::exchange(actions_, {});
      for (const directory::Action& action : actions) {
        if (action.kind == ActionKind::kClear) {
          bytes_[action.extent].assign(kPageBytes, std::byte{0});
        } else if (action.kind == ActionKind::kFetch) {
          const auto* const from =
              static_cast<const std::byte*>(given_.at({action.extent, action.number}));
          bytes_[action.extent].assign(from, from + kPageBytes);
          agent_.landed(action.extent, action.number, actions_);
        } else if (action.kind == ActionKind::kSend) {
          heard(home_.receive(kOther, encoded({action.message})));
        } else if (action.kind == ActionKind::kViolation || action.kind == ActionKind::kFailed) {
          wrong_ = "the other executor's agent";
        }
      }
    }
  }

  Rig& rig_;
  unified::Home home_;
  uint64_t next_ = 0;
  std::map<uint64_t, ExtentId> first_;  // by base
  std::vector<uint64_t> released_;
  bool has_failed_ = false;
  std::mutex mutex_;
  std::condition_variable noted_;
  std::deque<std::function<void(View&)>> notes_;
  // State of the thread alone:
  bool ends_ = false;
  std::string wrong_;
  directory::Agent agent_{kOther};
  directory::Actions actions_;
  ExtentId known_ = 0;
  std::map<ExtentId, Bytes> bytes_;
  std::map<Key, const void*> given_;
  uint64_t there_already_ = 0;
  std::thread thread_;
};

/// The other executor adds to a page, and keeps it until give().
class KeptAtOther {
 public:
  KeptAtOther(View& view, uint64_t base, uint64_t add)
      : thread_([this, &view, base, add] {
          view.atOther(base, 0, 1, add, [this] {
            keeps_ = true;
            return gives_.load();
          });
        }) {
    while (!keeps_) std::this_thread::yield();
  }
  void give() {
    gives_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> keeps_{false}, gives_{false};
  std::thread thread_;
};

void addAtPool(Rig& rig, View& view, uint64_t base, uint64_t pages, uint64_t add, bool ahead) {
  view.atPool({{base, 0}}, ahead,
              [&] { rig.launch(CU_STREAM_LEGACY, "addTo", base, pages * kWords, kStep, add); });
}
void checkAtPool(Rig& rig, View& view, uint64_t base, uint64_t page, uint64_t value) {
  std::vector<uint64_t> words(kPageBytes / 8);
  const uint64_t at = base + page * kPageBytes;
  view.atPool({{at, kPageBytes}}, true, [&] {
    mustSucceed(rig.copyOut(CU_STREAM_LEGACY, words.data(), at, kPageBytes), "copyOut");
  });
  rig.synchronize();
  for (uint64_t word = 0; word < kWords; ++word) CHECK(words[word * kStep] == value);
}

}  // namespace

TEST_CASE("a page goes from one executor to another and back", "[pager][away]") {
  Rig rig;
  View view(rig);
  const uint64_t base = view.make(2);
  CHECK(rig.pool().residency(base).other == 2 * kPageBytes);
  view.atOther(base, 0, 2, 5);  // zeros at first
  CHECK(view.ownerOf(base) == kOther);
  checkAtPool(rig, view, base, 0, 5);
  CHECK(view.ownerOf(base) == kPool);
  CHECK(view.ownerOf(base + kPageBytes) == kOther);
  addAtPool(rig, view, base, 2, 3, false);  // which reaches what it was not asked ahead for
  view.atOther(base, 1, 1, 1);
  checkAtPool(rig, view, base, 0, 8);
  checkAtPool(rig, view, base, 1, 9);
  view.drop(base);
  CHECK(rig.pool().residency(base).other == 0);
}

TEST_CASE("an executor has no managed memory of its own", "[pager][away]") {
  Rig rig;
  const View view(rig);
  CUdeviceptr managed = 0;
  CHECK(rig.tryAllocate(kPageBytes, &managed, AllocationKind::kManaged) ==
        CUDA_ERROR_NOT_SUPPORTED);
  CHECK(managed == 0);
}

TEST_CASE("a page that comes back as it left is not brought", "[pager][away]") {
  Rig rig({.host = 256 * kMiB});
  View view(rig);
  const uint64_t base = view.make(1), other = view.make(1);
  // A page that leaves is hashed where other memory was written, which may name it.
  const auto giveTo = [&](uint64_t add) {
    addAtPool(rig, view, other, 1, 1, true);
    view.atOther(base, 0, 1, add);
  };
  view.atOther(base, 0, 1, 0);  // zeros at first
  addAtPool(rig, view, base, 1, 5, true);
  giveTo(0);  // and it comes back with the same bytes
  checkAtPool(rig, view, base, 0, 5);
  CHECK(view.thereAlready() == 1);
  while (rig.pool().residency(base).vram == 0) std::this_thread::yield();
  const uint64_t clean = valueOf(rig.figures().evictions_clean);
  giveTo(0);
  CHECK(valueOf(rig.figures().evictions_clean) > clean);  // its copy in host memory is as good
  addAtPool(rig, view, base, 1, 1, true);
  CHECK(view.thereAlready() == 2);
  giveTo(2);  // with others
  checkAtPool(rig, view, base, 0, 8);
  CHECK(view.thereAlready() == 2);
}

TEST_CASE("what was given away leaves room in host memory", "[pager][away][numa]") {
  constexpr uint64_t kHost = 32 * kMiB, kVram = 8 * kMiB;
  Rig rig({.vram = kVram, .host = kHost, .seconds = 60});
  View view(rig);
  std::vector<uint64_t> pages;  // as many as the pool can hold
  for (uint64_t bytes = 0; bytes < kHost + kVram; bytes += kPageBytes) {
    pages.push_back(view.make(1));
    view.atOther(pages.back(), 0, 1, 0);  // zeros at first
    addAtPool(rig, view, pages.back(), 1, 1, true);
  }
  rig.synchronize();
  const auto isInVram = [&](uint64_t page) { return rig.pool().residency(page).vram != 0; };
  std::ranges::stable_partition(pages, isInVram);
  view.atOther(pages.back(), 0, 1, 1);  // its frame is kept
  REQUIRE(isInVram(pages.front()));
  view.atOther(pages.front(), 0, 1, 2);  // needs a frame
  checkAtPool(rig, view, pages.back(), 0, 2);
  checkAtPool(rig, view, pages.front(), 0, 3);
}

TEST_CASE("a launch without an age that lacks a page of another executor is refused",
          "[pager][away]") {
  Rig rig;
  View view(rig);
  const uint64_t base = view.make(1);
  view.atOther(base, 0, 1, 1);
  CHECK(rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), base, kWords, kStep,
                      uint64_t{1}) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("what is behind a host function asks for pages when that is over", "[pager][away]") {
  Rig rig;
  View view(rig);
  const uint64_t base = view.make(1), other = view.make(1);
  view.atOther(base, 0, 1, 5);
  view.atOther(other, 0, 1, 7);
  const uint64_t number = rig.pool().hostFunctionBegins(rig.key(CU_STREAM_LEGACY), true);
  REQUIRE(number != 0);
  std::atomic<bool> begun{false}, made{false};
  std::thread launches([&] {
    rig.enterThread();
    begun = true;
    addAtPool(rig, view, base, 1, 3, false);
    made = true;
  });
  while (!begun) std::this_thread::yield();
  // The function touches a page: a copy that nothing is before.
  std::vector<uint64_t> words(kPageBytes / 8);
  view.atPool({{other, kPageBytes}}, false, [&] {
    ExternalOperation::current()->told->alone = true;
    mustSucceed(rig.copyOut(CU_STREAM_LEGACY, words.data(), other, kPageBytes), "copyOut");
  });
  rig.synchronize();
  CHECK(words[0] == 7);
  for (int i = 0; i < 20; ++i) {  // whatever the launch would ask for, it would have
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(view.ownerOf(base) == kOther);
  }
  CHECK_FALSE(made);
  rig.pool().hostFunctionEnded(number, CUDA_SUCCESS);
  launches.join();
  checkAtPool(rig, view, base, 0, 8);
}

TEST_CASE("a page that comes along is in VRAM before a launch names it", "[pager][away]") {
  Rig rig;
  View view(rig);
  const uint64_t named = view.make(1), along = view.make(1);
  view.atOther(named, 0, 1, 1);
  view.atOther(along, 0, 1, 2);
  view.atPool({{named, 0}, {along, 0}}, true,
              [&] { rig.launch(CU_STREAM_LEGACY, "addTo", named, kWords, kStep, uint64_t{1}); });
  for (int i = 0; rig.pool().residency(along).vram != kPageBytes; ++i) {
    REQUIRE(i < 20'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  view.settle();  // the home has heard of it
  CHECK(view.ownerOf(along) == kPool);
  const uint64_t faults = valueOf(rig.figures().demand_faults);
  addAtPool(rig, view, along, 1, 3, true);
  rig.synchronize();
  CHECK(valueOf(rig.figures().demand_faults) == faults);
  checkAtPool(rig, view, along, 0, 5);
  checkAtPool(rig, view, named, 0, 2);
}

TEST_CASE("where all is in VRAM no order is learned", "[pager][away]") {
  constexpr uint64_t kVram = 16 * kMiB;
  Rig rig({.vram = kVram, .host = 64 * kMiB});
  View view(rig);
  PoolState& state = PoolInside::of(rig.pool());
  const auto touches = [&] {
    const Lock lock(state.mutex);
    return state.predictor.touches();
  };
  std::vector<uint64_t> pages{view.make(1), view.make(1)};
  const auto useAll = [&] {
    for (const uint64_t page : pages) addAtPool(rig, view, page, 1, 1, true);
    rig.synchronize();
  };
  const uint64_t absent = view.make(4);  // which other executors have
  view.atOther(absent, 0, 4, 1);
  useAll();
  const auto allInVram = [&] {
    return std::ranges::all_of(pages,
                               [&](uint64_t page) { return rig.pool().residency(page).vram != 0; });
  };
  REQUIRE(allInVram());
  const uint64_t before = touches();
  useAll();
  CHECK(touches() == before);
  for (uint64_t bytes = 0; bytes < 2 * kVram; bytes += kPageBytes) pages.push_back(view.make(1));
  useAll();
  useAll();
  CHECK(touches() >= before + pages.size());
}

TEST_CASE("pointers that a copy of unknown bytes has brought are followed", "[pager][away]") {
  Rig rig;
  View view(rig);
  const uint64_t table = view.make(1), target = view.make(1), out = view.make(1);
  view.atOther(target, 0, 1, 4);
  const std::vector<uint64_t> words{target, target + kStep * 8};
  view.atPool({{table, kPageBytes}}, true, [&] {
    mustSucceed(
        rig.copyIn(CU_STREAM_LEGACY, table, words.data(), words.size() * sizeof(uint64_t), false),
        "copyIn");
  });
  rig.synchronize();
  view.atPool({{table, 0}, {out, 0}}, true,
              [&] { rig.launch(CU_STREAM_LEGACY, "gather", out, table, uint64_t{words.size()}); });
  std::vector<uint64_t> found(words.size());
  view.atPool({{out, kPageBytes}}, true, [&] {
    mustSucceed(rig.copyOut(CU_STREAM_LEGACY, found.data(), out, found.size() * sizeof(uint64_t)),
                "copyOut");
  });
  rig.synchronize();
  CHECK(found == std::vector<uint64_t>{4, 4});
}

TEST_CASE("a pointer that was stored before its page left is followed", "[pager][away]") {
  Rig rig;
  View view(rig);
  const uint64_t table = view.make(2), target = view.make(1), out = view.make(1);
  view.atOther(target, 0, 1, 4);
  view.atPool({{table, 0}, {target, 0}}, true,
              [&] { rig.launch(CU_STREAM_LEGACY, "setEntry", table, uint64_t{0}, target); });
  rig.synchronize();
  view.atOther(target, 0, 1, 3);
  view.atPool({{table, 0}, {out, 0}}, true,
              [&] { rig.launch(CU_STREAM_LEGACY, "gather", out, table, uint64_t{1}); });
  uint64_t found = 0;
  view.atPool({{out, kPageBytes}}, true, [&] {
    mustSucceed(rig.copyOut(CU_STREAM_LEGACY, &found, out, sizeof found), "copyOut");
  });
  rig.synchronize();
  CHECK(found == 7);
  CHECK(view.ownerOf(target) == kPool);
}

TEST_CASE("a page stays while a launch is under way that may follow a pointer to it",
          "[pager][away]") {
  Rig rig;
  View view(rig);
  const uint64_t table = view.make(1), target = view.make(1), out = view.make(1);
  view.atOther(target, 0, 1, 4);
  view.atPool({{table, 0}, {target, 0}}, true,
              [&] { rig.launch(CU_STREAM_LEGACY, "setEntry", table, uint64_t{0}, target); });
  view.atPool({{table, 0}, {out, 0}}, true, [&] {
    rig.launch(CU_STREAM_LEGACY, "gatherLate", out, table, uint64_t{1}, uint64_t{300'000});
  });
  view.atOther(target, 0, 1, 3);
  uint64_t found = 0;
  view.atPool({{out, kPageBytes}}, true, [&] {
    mustSucceed(rig.copyOut(CU_STREAM_LEGACY, &found, out, sizeof found), "copyOut");
  });
  rig.synchronize();
  CHECK(found == 4);
  checkAtPool(rig, view, target, 0, 7);
}

TEST_CASE("an operation of several calls keeps all that it uses until it is over",
          "[pager][away]") {
  Rig rig;
  View view(rig);
  constexpr uint64_t kPages = 3;
  const uint64_t base = view.make(kPages);
  view.atOther(base, 0, kPages, 7);
  std::vector<uint64_t> words(kPages * kPageBytes / 8);
  view.atPool({{base, 0}}, false, [&] {
    ExternalOperation::current()->told->uses.emplace_back(base, kPages * kPageBytes);
    for (uint64_t page = 0; page < kPages; ++page)
      mustSucceed(rig.copyOut(CU_STREAM_LEGACY, words.data() + page * kPageBytes / 8,
                              base + page * kPageBytes, kPageBytes),
                  "copyOut");
  });
  rig.synchronize();
  for (uint64_t word = 0; word < kPages * kWords; ++word) CHECK(words[word * kStep] == 7);
  view.atOther(base, 0, kPages, 1);
  checkAtPool(rig, view, base, 2, 8);
}

TEST_CASE("a page that has begun to leave stays for the next call of the operation that has it",
          "[pager][away]") {
  Rig rig({.seconds = 60});
  View view(rig);
  const uint64_t used = view.make(1), later = view.make(1);
  view.atOther(used, 0, 1, 2);
  addAtPool(rig, view, used, 1, 3, true);
  // A launch of another stream uses the page: it can't leave VRAM before that is over.
  const CUstream stream = rig.makeStream();
  std::atomic<bool> launched{false};
  holdUntil(launched, stream);
  view.atPool({{used, 0}}, true,
              [&] { rig.launch(stream, "addTo", used, kWords, kStep, uint64_t{0}); });
  // The other executor has what the operation's first call needs, until the page begins to leave.
  KeptAtOther kept(view, later, 7);
  const View::Other older = view.sendToOther(used, 0, 1, false);
  std::vector<uint64_t> words(kPageBytes / 8), more(kPageBytes / 8);
  std::thread operation([&] {
    rig.enterThread();
    view.atPool({{later, 0}, {used, 0}}, false, [&] {
      for (const uint64_t base : {later, used})
        ExternalOperation::current()->told->uses.emplace_back(base, kPageBytes);
      mustSucceed(rig.copyOut(CU_STREAM_LEGACY, words.data(), later, kPageBytes), "copyOut");
      mustSucceed(rig.copyOut(CU_STREAM_LEGACY, more.data(), used, kPageBytes), "copyOut");
    });
  });
  while (!view.isAskedForPages()) std::this_thread::yield();
  view.beginAtOther(older);
  view.settle();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // its engine has begun with that
  kept.give();
  operation.join();
  launched = true;
  rig.synchronize();
  for (uint64_t word = 0; word < kWords; ++word) {
    CHECK(words[word * kStep] == 7);
    CHECK(more[word * kStep] == 5);
  }
  view.endAtOther(older, 1, [] { return true; });
  checkAtPool(rig, view, used, 0, 6);
}

TEST_CASE("a launch that waits lets go of memory that is freed", "[pager][away]") {
  Rig rig({.seconds = 60});
  View view(rig);
  const uint64_t table = view.make(1), freed = view.make(1), wanted = view.make(1);
  addAtPool(rig, view, freed, 1, 1, true);
  const std::array<uint64_t, 2> pointers{freed, wanted};
  view.atPool({{table, sizeof pointers}}, true, [&] {
    mustSucceed(rig.copyIn(CU_STREAM_LEGACY, table, pointers.data(), sizeof pointers, true),
                "copyIn");
  });
  rig.synchronize();
  // The other executor keeps the page that the launch waits for until the freed one is gone.
  KeptAtOther kept(view, wanted, 1);
  std::atomic<bool> made{false};
  std::thread launch([&] {
    rig.enterThread();
    addAtPool(rig, view, table, 1, 0, true);
    made = true;
  });
  while (!view.isAskedForPages()) std::this_thread::yield();
  CHECK_FALSE(made);
  view.drop(freed);
  CHECK_FALSE(made);
  CHECK(view.makeAt(freed, 1) == freed);  // what is released can be had again at once
  kept.give();
  launch.join();
  checkAtPool(rig, view, wanted, 0, 1);
}

TEST_CASE("a context that goes waits for memory of it that is being freed", "[pager][away]") {
  for (int i = 0; i < 10; ++i) {
    Rig rig({.vram = 224 * kMiB});
    View view(rig);
    constexpr uint64_t kPages = 100;
    const uint64_t base = view.make(kPages);
    addAtPool(rig, view, base, kPages, 1, true);
    rig.synchronize();
    view.beginDrop(base);
    rig.pool().contextGone(rig.context());
    view.settle();
    CHECK(valueOf(rig.figures().allocations) == 0);
  }
}

namespace {

// Pages that both have in turns, with frees; what each holds is checked.
void takeTurns(Rig& rig, View& view, uint64_t seed, unsigned count) {
  std::mt19937_64 random(seedOr(seed));
  struct Region {
    uint64_t base;
    std::vector<uint64_t> values;  // of each page's words
  };
  std::vector<Region> regions;
  const auto make = [&] {
    Region region{0, std::vector<uint64_t>(1 + random() % 3, 0)};
    region.base = view.make(region.values.size());
    view.atOther(region.base, 0, region.values.size(), 1);
    for (uint64_t& value : region.values) value = 1;
    regions.push_back(region);
  };
  for (unsigned i = 0; i < count; ++i) make();
  for (int turn = 0; turn < 250; ++turn) {
    Region& region = regions[random() % regions.size()];
    const uint64_t page = random() % region.values.size();
    const uint64_t add = random() % 3 == 0 ? 0 : random() % 1000;
    switch (random() % 8) {
      case 0:
        checkAtPool(rig, view, region.base, page, region.values[page]);
        break;
      case 1:
        if (random() % 4 != 0) break;
        rig.synchronize();
        view.drop(region.base);
        regions.erase(regions.begin() + (&region - regions.data()));
        make();
        break;
      case 2:
      case 3:
      case 4:
        addAtPool(rig, view, region.base, region.values.size(), add, random() % 2 == 0);
        for (uint64_t& value : region.values) value += add;
        break;
      default:
        view.atOther(region.base, page, region.values.size() - page, add);
        for (uint64_t i = page; i < region.values.size(); ++i) region.values[i] += add;
    }
  }
  for (const Region& region : regions)
    for (uint64_t page = 0; page < region.values.size(); ++page)
      checkAtPool(rig, view, region.base, page, region.values[page]);
}

}  // namespace

TEST_CASE("two executors have more pages in turns than the pool's VRAM holds", "[pager][away]") {
  Rig rig({.vram = 8 * kMiB, .host = 64 * kMiB, .seconds = 240});
  View view(rig);
  takeTurns(rig, view, 31, 8);
  CHECK(view.thereAlready() > 0);
}

TEST_CASE("two executors have more pages in turns than the pool's VRAM and host memory hold",
          "[pager][away]") {
  const auto tier = std::make_shared<FakeRemote>(512 * kMiB, seedOr(32));
  Rig rig({.vram = 8 * kMiB, .host = 16 * kMiB, .seconds = 240, .remote = tier});
  {
    View view(rig);
    takeTurns(rig, view, 33, 20);
    CHECK(valueOf(rig.figures().remote_out) > 0);
    CHECK(valueOf(rig.figures().remote_in) > 0);
  }
  CHECK(tier->broken() == nullptr);
  CHECK(tier->held() == 0);
}

namespace {

constexpr uint64_t kManyPages = 16;  // more than the pool's VRAM and host memory below

// Page i has words of the value i. The first one that a memserver has.
size_t makeMany(Rig& rig, View& view, std::vector<uint64_t>& pages) {
  for (uint64_t i = 0; i < kManyPages; ++i) {
    pages.push_back(view.make(1));
    view.atOther(pages.back(), 0, 1, 0);  // zeros at first
    addAtPool(rig, view, pages.back(), 1, i, true);
  }
  rig.synchronize();
  const auto isRemote = [&](uint64_t page) {
    PoolState& state = PoolInside::of(rig.pool());
    const Lock lock(state.mutex);
    return state.book.extentAt(page)->state == ExtentState::kRemote;
  };
  const auto first = std::ranges::find_if(pages, isRemote);
  REQUIRE(first != pages.end());
  return static_cast<size_t>(first - pages.begin());
}

}  // namespace

TEST_CASE("a page that a memserver has comes back before it leaves", "[pager][away]") {
  const auto tier = std::make_shared<FakeRemote>(512 * kMiB, seedOr(34));
  Rig rig({.vram = 8 * kMiB, .host = 16 * kMiB, .seconds = 60, .remote = tier});
  View view(rig);
  std::vector<uint64_t> pages, more;
  const size_t first = makeMany(rig, view, pages);
  view.atOther(pages[first], 0, 1, 100);
  CHECK(tier->held() > 0);
  checkAtPool(rig, view, pages[first], 0, 100 + first);
  // Copies of what is elsewhere make room at memservers.
  for (const uint64_t page : pages) view.atOther(page, 0, 1, 1);
  CHECK(tier->held() > 0);
  tier->setCapacity(tier->held());
  (void)makeMany(rig, view, more);
  for (uint64_t i = 0; i < kManyPages; ++i) checkAtPool(rig, view, more[i], 0, i);
  for (const uint64_t page : pages) view.atOther(page, 0, 1, 1);
  checkAtPool(rig, view, pages[first], 0, 102 + first);
}

// The pool is of no use any more, and its counters stay as they are: in a process of its own.
TEST_CASE("a page that was lost with a memserver ends the view when another executor wants it",
          "[pager][away][lost][lost page]") {
  const auto tier = std::make_shared<FakeRemote>(512 * kMiB, seedOr(35));
  Rig rig({.vram = 8 * kMiB, .host = 16 * kMiB, .seconds = 60, .remote = tier});
  View view(rig);
  std::vector<uint64_t> pages;
  const size_t first = makeMany(rig, view, pages);
  tier->lost = true;
  view.beginAtOther(view.sendToOther(pages[first], 0, 1, true));
  const std::string why = view.failure();
  INFO(why);
  CHECK(why.find("was lost with a memserver") != std::string::npos);
}
