// The ground of the unified view, with two gpunodes and without the program's side: this opens a
// session with each, as two executors of one program, and is the home. "OK", or what differs, and
// status 1.
//
// executors GPUNODE GPUNODE: a record means the same at every executor. Both get the same records,
// byte for byte. Objects that the records make have the same numbers at both, and the numbers do at
// both what they should; memory has the same addresses.
//
// executors GPUNODE GPUNODE pages SEED PAGES TURNS: memory of so many pages, all in all, is used at
// both in turns, by copies and kernels, and freed and had anew; it holds what the CPU's copy of it
// holds.
//
// executors GPUNODE GPUNODE waits: uses a page at both, says "ready", and reads it at the first at
// each line of standard input; the error's text when that fails.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/space/pages.h"
#include "forwarding/wire/copies.h"
#include "forwarding/wire/launch_wire.h"
#include "forwarding/wire/peer_keys.h"
#include "forwarding/wire/straight.h"
#include "interpose/unified/home.h"
#include "interpose/unified/page_link.h"
#include "tests/integration/forward/raw_session.h"

namespace {

using namespace olpager;
using forward::Writer;
using test::lastWord;
using test::Operation;
using test::RawSession;

constexpr const char* kModule = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry one()
{
  ret;
}
.visible .entry other()
{
  ret;
}
)";

void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// Both executors of the view.
class Executors {
 public:
  void open(const std::string& first, const std::string& second) {
    both_[0].open(first, "executors", 0, 2, true);
    both_[1].open(second, "executors", 1, 2, true);
  }

  // The record that `write` writes goes to both; their answers.
  template <typename Function, typename Write>
  std::vector<std::vector<std::byte>> ask(Function function, uint16_t flags, Write write) {
    std::vector<std::vector<std::byte>> answers;
    for (RawSession& one : both_) {
      Writer record = one.begin(function, true, flags);
      write(record);
      check(sent(record), "the record is another one");
      answers.push_back(one.ask(record));
    }
    sent_.clear();
    return answers;
  }
  template <typename Function, typename Write>
  void tell(Function function, Write write) {
    for (RawSession& one : both_) {
      Writer record = one.begin(function, false);
      write(record);
      check(sent(record), "the record is another one");
      one.send(record);
    }
    sent_.clear();
  }
  // Both answer with this error.
  template <typename Function, typename Write>
  void refuse(Function function, CUresult error, Write write) {
    for (RawSession& one : both_) {
      Writer record = one.begin(function, true, 0);
      write(record);
      std::string answer = "no error";
      try {
        (void)one.ask(record);
      } catch (const std::exception& failure) {
        answer = failure.what();
      }
      check(answer.find(std::to_string(error)) != std::string::npos,
            "an executor was to answer " + std::to_string(error) + ": " + answer);
    }
  }
  // The handle that both name so, which is to have this number.
  template <typename Function, typename Write>
  void make(const char* what, uint64_t number, Function function, Write write) {
    const auto answers = ask(function, forward::kNames, [&](Writer& record) {
      record.value(forward::Names{number, 1});
      write(record);
    });
    for (size_t i = 0; i < answers.size(); ++i)
      check(lastWord(answers[i]) == number,
            std::string(what) + " has another number at executor " + std::to_string(i));
  }

 private:
  bool sent(const Writer& record) {
    if (sent_.empty()) sent_ = record.bytes;
    return sent_ == record.bytes;
  }

  RawSession both_[2];
  std::vector<std::byte> sent_;  // to the first
};

void putName(Writer& record, const char* name) {
  record.value(uint8_t{1});  // there is one
  record.text(name);
}

void run(const std::string& first, const std::string& second) {
  Executors executors;
  executors.open(first, second);
  // A page is to have one address at both: they have the same range, of which the program's side
  // gives out the first part.
  forward::Description described[2];
  const auto told = executors.ask(Operation::kDescribe, 0, [](Writer&) {});
  for (unsigned i = 0; i < 2; ++i) {
    check(told[i].size() >= sizeof described[i], "a description is short");
    std::memcpy(&described[i], told[i].data(), sizeof described[i]);
  }
  check(
      described[0].va_base == described[1].va_base && described[0].va_size == described[1].va_size,
      "the executors have different ranges");
  check(described[0].placed == described[1].placed && described[0].placed_bytes != 0,
        "the executors have different addresses to give out");
  (void)executors.ask(Operation::kPrimaryRetain, 0, [](Writer& record) { record.value(0); });

  const uint64_t address = described[0].placed, bytes = 6u << 20;
  (void)executors.ask(Operation::kAllocateAt, 0, [&](Writer& record) {
    record.value(address);
    record.value(bytes);
  });
  const auto ranges = executors.ask(api::Symbol::kCuMemGetAddressRange_v2, 0, [&](Writer& record) {
    record.value(address + bytes / 2);
    record.value(uint8_t{1});
    record.value(uint8_t{1});
  });
  for (const auto& range : ranges)
    check(lastWord(range) == bytes, "an allocation is of another size at one executor");
  (void)executors.ask(api::Symbol::kCuMemFree_v2, forward::kMayWait,
                      [&](Writer& record) { record.value(address); });

  // By calls that are answered.
  uint64_t next = forward::firstNumber(forward::kCommonSlot);
  const uint64_t module = next++, kernel = next++;
  executors.make("a module", module, Operation::kLoadModule, [](Writer& record) {
    record.value(uint32_t{0});  // options
    record.value(forward::ImageForm::kBytes);
    const std::string text = kModule;
    record.value(static_cast<uint64_t>(text.size() + 1));
    record.raw(text.c_str(), text.size() + 1);
  });
  const auto find = [&](Writer& record, const char* name) {
    record.value(module);
    record.value(uint8_t{1});  // it wants the function
    putName(record, name);
  };
  executors.make("a kernel", kernel, api::Symbol::kCuModuleGetFunction,
                 [&](Writer& record) { find(record, "one"); });
  // A known object keeps its number, whatever a later call offers.
  const auto again =
      executors.ask(api::Symbol::kCuModuleGetFunction, forward::kNames, [&](Writer& record) {
        record.value(forward::Names{next, 1});
        find(record, "one");
      });
  check(lastWord(again[0]) == kernel && lastWord(again[1]) == kernel, "a kernel has two numbers");
  // Objects that nobody has numbered ahead: each executor's own, and no two the same.
  const auto unnamed = executors.ask(api::Symbol::kCuModuleGetFunction, 0,
                                     [&](Writer& record) { find(record, "other"); });
  for (unsigned i = 0; i < 2; ++i) {
    const uint64_t number = lastWord(unnamed[i]);
    check((number & forward::kWorkersHandle) != 0 && forward::slotOf(number) == i,
          "executor " + std::to_string(i) + " gives a number that is not its own");
  }

  // By calls that nobody waits for; the kernel is launched in the stream that they make.
  const uint64_t stream = next++;
  executors.tell(api::Symbol::kCuStreamCreate, [&](Writer& record) {
    record.value(unsigned{CU_STREAM_NON_BLOCKING});
    record.value(stream);
  });
  forward::LaunchHead head;
  head.function = kernel;
  head.stream = stream;
  for (uint32_t& one : head.grid) one = 1;
  for (uint32_t& one : head.block) one = 1;
  (void)executors.ask(Operation::kLaunch, forward::kMayWait,
                      [&](Writer& record) { record.value(head); });
  (void)executors.ask(api::Symbol::kCuStreamSynchronize, forward::kMayWait,
                      [&](Writer& record) { record.value(stream); });
  // The answer of cuStreamGetCtx is the context's number, which is the same everywhere.
  const auto context = executors.ask(api::Symbol::kCuStreamGetCtx, 0, [&](Writer& record) {
    record.value(stream);
    record.value(uint8_t{1});
  });
  for (const auto& answer : context)
    check(lastWord(answer) == forward::primaryHandle(forward::kCommonSlot, 0),
          "the primary context has another number");

  // A destroyed object is gone at both.
  executors.tell(api::Symbol::kCuStreamDestroy_v2, [&](Writer& record) { record.value(stream); });
  executors.refuse(api::Symbol::kCuStreamQuery, CUDA_ERROR_INVALID_HANDLE,
                   [&](Writer& record) { record.value(stream); });
}

// --- pages ---------------------------------------------------------------------------------------

constexpr const char* kPageModule = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry turn(.param .u64 y, .param .u64 x, .param .u32 step, .param .u32 count,
                     .param .u32 add)
{
  .reg .pred %p;
  .reg .b32 %r<10>;
  .reg .b64 %d<8>;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.s32 %r3, %r0, %r1, %r2;
  ld.param.u32 %r4, [count];
  setp.ge.u32 %p, %r3, %r4;
  @%p ret;
  ld.param.u32 %r5, [step];
  ld.param.u32 %r6, [add];
  ld.param.u64 %d0, [y];
  ld.param.u64 %d1, [x];
  mul.wide.u32 %d2, %r3, %r5;
  add.s64 %d3, %d0, %d2;
  add.s64 %d4, %d1, %d2;
  ld.global.u32 %r7, [%d3];
  ld.global.u32 %r8, [%d4];
  mad.lo.s32 %r9, %r7, 1664525, %r8;
  add.s32 %r9, %r9, %r6;
  st.global.u32 [%d3], %r9;
  ret;
}
)";

using space::kPageBytes;
constexpr uint32_t kStep = 4096;  // bytes between the words that the kernel uses
constexpr uint64_t kWords = kPageBytes / kStep;

/// A program of one stream and of memory that both executors have in turns.
class Turns {
 public:
  void open(const std::string& first, const std::string& second, uint64_t room) {
    both_[0].open(first, "executors", 0, 2, true);
    both_[1].open(second, "executors", 1, 2, true);
    for (unsigned i = 0; i < 2; ++i) {
      forward::Description described;
      const auto told = both_[i].ask(both_[i].begin(Operation::kDescribe, true));
      check(told.size() >= sizeof described, "a description is short");
      std::memcpy(&described, told.data(), sizeof described);
      next_ = described.placed;
      Writer retain = both_[i].begin(Operation::kPrimaryRetain, true);
      retain.value(0);
      (void)both_[i].ask(retain);
      load(both_[i]);
    }
    home_.emplace(std::vector<uint64_t>{room, room}, next_);
    links_.emplace(*home_, 2,
                   unified::PageLinks::Hearer{[this](unsigned executor, const std::string& why) {
                                                const std::lock_guard lock(mutex_);
                                                lost_ = "executor " + std::to_string(executor) +
                                                        ": " + why;
                                              },
                                              {}});
    linkWorkers();
    for (unsigned i = 0; i < 2; ++i) {
      const unified::PageRoute route{both_[i].gpunode(), both_[i].session(),
                                     forward::pagesKey(both_[i].key()), both_[i].options(),
                                     both_[i].graceMs()};
      const Status opened = links_->open(i, route);
      check(opened.ok(), opened.ok() ? "" : opened.error().message);
    }
  }
  ~Turns() {
    if (links_) links_->close();
  }

  /// A region whose words are all written.
  uint64_t make(uint64_t pages, uint32_t value) {
    check(home_->add(next_, pages * kPageBytes), "there is no room");
    const uint64_t base = next_;
    next_ += (pages + 1) * kPageBytes;  // a guard
    links_->flush();
    std::vector<uint32_t>& words = held_[base];
    words.resize(pages * kWords);
    for (uint32_t& word : words) word = value++;
    return base;
  }
  void drop(uint64_t base) {
    synchronize();
    home_->remove(base);
    links_->flush();
    for (int i = 0; !contains(released_, base); ++i) {
      check(i < 10'000, "a region that is freed is not released");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (const uint64_t one : home_->released()) released_.push_back(one);
      fine();
    }
    std::erase(released_, base);
    held_.erase(base);
  }
  uint64_t pagesOf(uint64_t base) const { return held_.at(base).size() / kWords; }

  /// All its words, at `executor`.
  void writeAll(unsigned executor, uint64_t base) {
    write(executor, base, 0, pagesOf(base), [this, base](uint64_t at) { return held_[base][at]; });
  }
  void write(unsigned executor, uint64_t base, uint64_t first, uint64_t pages, auto value) {
    for (uint64_t page = first; page < first + pages; ++page) {
      std::vector<uint32_t> bytes(kPageBytes / sizeof(uint32_t));
      for (uint64_t i = 0; i < kWords; ++i) {
        bytes[i * kStep / sizeof(uint32_t)] = held_[base][page * kWords + i] =
            value(page * kWords + i);
      }
      forward::CopyHead head;
      head.in_order = 1;
      head.device = base + page * kPageBytes;
      head.bytes = kPageBytes;
      const unified::Named named{head.device, head.bytes};
      tell(executor, Operation::kCopyIn, std::span(&named, 1), [&](Writer& record) {
        record.value(head);
        record.raw(bytes.data(), kPageBytes);
      });
    }
  }
  /// Reads the bytes there, at `executor`.
  void read(unsigned executor, uint64_t base, uint64_t first, uint64_t pages) {
    forward::CopyHead head;
    head.device = base + first * kPageBytes;
    head.bytes = pages * kPageBytes;
    const unified::Named named{head.device, head.bytes};
    const auto bytes = ask(executor, Operation::kCopyOut, std::span(&named, 1),
                           [&](Writer& record) { record.value(head); });
    check(bytes.size() == head.bytes, "a copy brings another number of bytes");
    for (uint64_t i = 0; i < pages * kWords; ++i) {
      uint32_t word = 0;
      std::memcpy(&word, bytes.data() + i * kStep, sizeof word);
      const uint32_t holds = held_[base][first * kWords + i];
      check(word == holds, "page " + std::to_string(first + i / kWords) + " word " +
                               std::to_string(i % kWords) + " read at executor " +
                               std::to_string(executor) + " is " + std::to_string(word) + ", not " +
                               std::to_string(holds));
    }
  }
  /// A kernel at `executor`: each word of y becomes one of y and x.
  void turn(unsigned executor, uint64_t y, uint64_t x, uint32_t add) {
    const auto count = static_cast<uint32_t>(std::min(pagesOf(y), pagesOf(x)) * kWords);
    forward::LaunchHead head;
    head.function = kKernel;
    head.grid[0] = (count + 63) / 64, head.block[0] = 64;
    head.grid[1] = head.grid[2] = head.block[1] = head.block[2] = 1;
    struct {
      uint64_t y, x;
      uint32_t step, count, add;
    } const parameters{y, x, kStep, count, add};
    head.parameter_bytes = 28;
    const unified::Named named[] = {{y, 0}, {x, 0}};
    tell(executor, Operation::kLaunch, named, [&](Writer& record) {
      record.value(head);
      record.raw(&parameters, head.parameter_bytes);
    });
    for (uint32_t i = 0; i < count; ++i) held_[y][i] = held_[y][i] * 1664525 + held_[x][i] + add;
  }
  unsigned route(std::span<const unified::Named> named) const { return home_->route(named, at_); }
  unsigned at() const { return at_; }
  uint64_t placed(unsigned executor) const { return home_->placed(executor); }

  /// Earlier work in the stream is over.
  void synchronize() {
    Writer record = both_[at_].begin(api::Symbol::kCuStreamSynchronize, true, forward::kMayWait);
    record.value(uint64_t{0});
    (void)both_[at_].ask(record);
    check(both_[at_].failures() == 0, "a call that nobody waited for failed");
  }

 private:
  static constexpr uint64_t kModuleNumber = forward::firstNumber(forward::kCommonSlot);
  static constexpr uint64_t kKernel = kModuleNumber + 1;

  static bool contains(const std::vector<uint64_t>& all, uint64_t one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  }
  void fine() {
    const std::lock_guard lock(mutex_);
    check(lost_.empty(), lost_);
  }
  static void load(RawSession& session) {
    Writer module = session.begin(Operation::kLoadModule, true, forward::kNames);
    module.value(forward::Names{kModuleNumber, 1});
    module.value(uint32_t{0});
    module.value(forward::ImageForm::kBytes);
    const std::string text = kPageModule;
    module.value(static_cast<uint64_t>(text.size() + 1));
    module.raw(text.c_str(), text.size() + 1);
    (void)session.ask(module);
    Writer kernel = session.begin(api::Symbol::kCuModuleGetFunction, true, forward::kNames);
    kernel.value(forward::Names{kKernel, 1});
    kernel.value(kModuleNumber);
    kernel.value(uint8_t{1});
    putName(kernel, "turn");
    (void)session.ask(kernel);
  }
  void linkWorkers() {
    forward::PeerLinkHead head;
    const transport::NamedKey key = forward::peerKey(both_[1].key(), 0);
    std::memcpy(head.key, key.secret.data(), sizeof head.key);
    head.slot = 1;
    head.route = both_[1].session();
    const char* const transport = std::getenv("OL_TRANSPORT");
    head.tcp_only = transport != nullptr && std::string(transport) == "tcp" ? 1 : 0;
    Writer record = both_[0].begin(Operation::kPeerLink, true);
    record.value(head);
    record.text(both_[1].gpunode());
    const auto linked = both_[0].ask(record);
    auto how = forward::PeerLinked::kNo;
    check(linked.size() >= sizeof how, "an answer is short");
    std::memcpy(&how, linked.data(), sizeof how);
    check(how == (head.tcp_only != 0 ? forward::PeerLinked::kTcp : forward::PeerLinked::kShm),
          "the workers are linked in another way");
  }

  // The stream is there from now on: what is before has to be over.
  void move(unsigned executor) {
    if (executor != at_) synchronize();
    at_ = executor;
  }
  Writer record(unsigned executor, Operation operation, bool waits,
                std::span<const unified::Named> named, auto write) {
    fine();
    move(executor);
    const uint16_t flags = forward::kAged | (waits ? forward::kMayWait : 0);
    Writer record = both_[executor].begin(operation, waits, flags);
    const auto sent = home_->send(executor, named, true);
    record.value(forward::Aged{sent.age, sent.oldest, sent.regions});
    links_->flush();
    write(record);
    return record;
  }
  void tell(unsigned executor, Operation operation, std::span<const unified::Named> named,
            auto write) {
    both_[executor].send(record(executor, operation, false, named, write), true);
  }
  std::vector<std::byte> ask(unsigned executor, Operation operation,
                             std::span<const unified::Named> named, auto write) {
    return both_[executor].ask(record(executor, operation, true, named, write));
  }

  RawSession both_[2];
  std::optional<unified::Home> home_;
  std::optional<unified::PageLinks> links_;
  std::mutex mutex_;
  std::string lost_;
  uint64_t next_ = 0;
  unsigned at_ = 0;                                 // where the stream is
  std::map<uint64_t, std::vector<uint32_t>> held_;  // by base: the words of regions
  std::vector<uint64_t> released_;
};

// Thin: each executor writes what the other one reads.
void onePage(Turns& turns) {
  const uint64_t one = turns.make(1, 5);
  turns.writeAll(0, one);
  turns.read(1, one, 0, 1);
  turns.turn(1, one, one, 3);
  turns.read(0, one, 0, 1);
  turns.turn(0, one, one, 4);
  turns.turn(1, one, one, 5);
  turns.read(1, one, 0, 1);
  turns.drop(one);
}

void pages(const std::string& first, const std::string& second, uint64_t seed, uint64_t all,
           uint64_t count) {
  Turns turns;
  const uint64_t room = all * 2 / 3;  // of each: neither holds all
  turns.open(first, second, room);
  onePage(turns);
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t end) { return random() % end; };
  std::vector<uint64_t> bases;
  uint64_t used = 0;
  const auto fill = [&] {
    while (used < all) {
      const uint64_t size = std::min(all - used, 1 + below(4));
      bases.push_back(turns.make(size, static_cast<uint32_t>(random())));
      used += size;
      const unified::Named named{bases.back(), 0};
      turns.writeAll(turns.route(std::span(&named, 1)), bases.back());
    }
  };
  // Now and then a call goes elsewhere than where its pages are, while there is room.
  const auto where = [&](std::initializer_list<uint64_t> named) {
    std::vector<unified::Named> all_named;
    for (const uint64_t base : named) all_named.push_back({base, 0});
    const unsigned best = turns.route(all_named);
    const unsigned other = 1 - best;
    return below(4) == 0 && turns.placed(other) + 8 <= room ? other : best;
  };
  fill();
  for (uint64_t turn = 0; turn < count; ++turn) {
    const uint64_t y = bases[below(bases.size())], x = bases[below(bases.size())];
    switch (below(8)) {
      case 0: {
        const uint64_t at = below(turns.pagesOf(y));
        turns.write(where({y}), y, at, 1 + below(turns.pagesOf(y) - at),
                    [&](uint64_t) { return static_cast<uint32_t>(random()); });
        break;
      }
      case 1: {
        const uint64_t at = below(turns.pagesOf(y));
        turns.read(where({y}), y, at, 1 + below(turns.pagesOf(y) - at));
        break;
      }
      case 2:
        if (below(4) != 0) break;
        used -= turns.pagesOf(y);
        turns.drop(y);
        std::erase(bases, y);
        fill();
        break;
      default:
        turns.turn(where({y, x}), y, x, static_cast<uint32_t>(random()));
    }
  }
  turns.synchronize();
  check(turns.placed(0) != 0 && turns.placed(1) != 0, "all pages are at one executor");
  for (const uint64_t base : bases) turns.read(where({base}), base, 0, turns.pagesOf(base));
}

void waits(const std::string& first, const std::string& second) {
  Turns turns;
  turns.open(first, second, 16);
  const uint64_t one = turns.make(1, 1), two = turns.make(1, 2);
  turns.writeAll(0, one);
  turns.writeAll(0, two);
  // One is at the second executor, the stream at the first.
  const auto part = [&] {
    turns.read(1, one, 0, 1);
    turns.read(0, two, 0, 1);
  };
  part();
  std::printf("ready\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    turns.read(0, one, 0, 1);
    part();
    std::printf("ok\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 3 ? argv[3] : "records";
  try {
    if (argc == 3) {
      run(argv[1], argv[2]);
    } else if (what == "pages" && argc == 7) {
      pages(argv[1], argv[2], std::stoull(argv[4]), std::stoull(argv[5]), std::stoull(argv[6]));
    } else if (what == "waits" && argc == 4) {
      waits(argv[1], argv[2]);
    } else {
      return 2;
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("OK\n");
  return 0;
}
