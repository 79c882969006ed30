// Measures the home's time for a launch, by how much memory and how many executors there are: the
// times of a launch whose memory is in place, of the question where one goes that names a page
// elsewhere, and of the report that a launch is over. The run fails where memory that is in
// place is not found so.
//   home_growth [ALLOCATIONS [ROUNDS]]     up to so many of a page each (100000), medians of that
//                                          many rounds (3)
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/format.h"
#include "base/space/pages.h"
#include "coherence/pages/batch.h"
#include "interpose/unified/home.h"
#include "tests/unit/unified/records.h"

namespace olpager::unified {
namespace {

using directory::ExtentId;
using directory::Message;
using directory::MessageKind;
using forward::Named;
using forward::PagesHead;
using forward::PagesKind;

constexpr uint64_t kBase = uint64_t{1} << 45;
constexpr unsigned kNamed = 8;  // allocations that a launch names
constexpr unsigned kLaunches = 1 << 14;
constexpr unsigned kReported = 64;  // launches that an executor reports as over at once

uint64_t addressOf(uint64_t page) { return kBase + page * space::kPageBytes; }

/// A home and executors that give the right answers. Allocations are the executors' in turns: page
/// p is that of executor p % executors.
class System {
 public:
  System(uint32_t allocations, unsigned executors)
      : home_(std::vector<uint64_t>(executors, allocations), kBase),
        allocations_(allocations),
        executors_(executors) {
    for (uint32_t page = 0; page < allocations; ++page)
      if (!home_.add(addressOf(page), space::kPageBytes)) throw std::runtime_error("no room");
    for (unsigned executor = 0; executor < executors; ++executor) touch(executor);
  }

  Home& home() { return home_; }
  /// The names of that executor's launches: `kNamed` of its own allocations each, or with `apart`
  /// one of them another's.
  std::vector<Named> launches(unsigned executor, bool apart) {
    const uint32_t own = (allocations_ - executor + executors_ - 1) / executors_;
    std::vector<Named> named;
    for (unsigned i = 0; i < kLaunches * kNamed; ++i) {
      const uint64_t page = uint64_t{random_() % own} * executors_ + executor;
      const bool its = !apart || i % kNamed != 0;
      named.push_back({addressOf(its ? page : (page + 1) % allocations_), 0});
    }
    return named;
  }
  /// The executor says that all its operations are over.
  void complete(unsigned executor, std::span<const directory::Age> ages) {
    std::vector<Message> over;
    for (const directory::Age age : ages)
      over.push_back({.kind = MessageKind::kCompleted,
                      .from = static_cast<directory::AgentId>(executor),
                      .to = directory::kHome,
                      .age = age});
    say(executor, over);
  }

 private:
  void say(unsigned executor, std::span<const Message> messages) {
    while (!messages.empty())
      if (const Status heard = home_.receive(executor, test::takeRecord(messages)); !heard.ok())
        throw std::runtime_error(heard.error().message);
  }
  // An operation names all pages that are to be the executor's. Nobody has them: the home says that
  // they are its own, and it that it has them. A second one finds them in place.
  void touch(unsigned executor) {
    std::vector<Named> all;
    for (uint64_t page = executor; page < allocations_; page += executors_)
      all.push_back({addressOf(page), 0});
    const Home::Sent first = home_.send(executor, all, true);
    std::vector<Message> done;
    for (auto record = home_.take(executor); !record.empty(); record = home_.take(executor)) {
      PagesHead head;
      std::memcpy(&head, record.data(), sizeof head);
      if (head.kind != PagesKind::kMessages) continue;
      std::vector<Message> heard;
      if (!pages::decode(std::span(record).subspan(sizeof head), allocations_, heard).ok())
        throw std::runtime_error("a record that can't be read");
      for (const Message& message : heard)
        done.push_back({.kind = MessageKind::kDone,
                        .from = static_cast<directory::AgentId>(executor),
                        .to = directory::kHome,
                        .extent = message.extent,
                        .number = message.number});
    }
    say(executor, done);
    complete(executor, std::span(&first.age, 1));
    const Home::Sent second = home_.send(executor, all, true);
    complete(executor, std::span(&second.age, 1));
  }

  Home home_;
  uint32_t allocations_;
  unsigned executors_;
  std::mt19937 random_{7};
};

double medianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double now() {
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void measure(uint32_t most_allocations, unsigned rounds) {
  base::print(
      "a launch that names {} allocations, nanoseconds\n{:>12} {:>10} {:>14} {:>18} {:>9}\n",
      kNamed, "allocations", "executors", "all in place", "routed, one away", "its end");
  for (uint32_t allocations = 100; allocations <= most_allocations; allocations *= 10) {
    for (const unsigned executors : {1u, 2u, 4u, 16u, 32u, unsigned{directory::kMostAgents}}) {
      System system(allocations, executors);
      Home& home = system.home();
      const unsigned last = executors - 1;
      const auto own = system.launches(last, false), mixed = system.launches(last, true);
      const auto namedBy = [](const std::vector<Named>& all, unsigned launch) {
        return std::span(all).subspan(size_t{launch} * kNamed, kNamed);
      };
      std::vector<double> in_place, ended, routed;
      for (unsigned round = 0; round < rounds; ++round) {
        double sending = 0, ending = 0;
        std::vector<directory::Age> ages;
        for (unsigned first = 0; first < kLaunches; first += kReported) {
          ages.clear();
          const double begun = now();
          for (unsigned i = first; i < first + kReported; ++i) {
            const auto sent = home.sendInPlace(last, namedBy(own, i));
            if (!sent) throw std::runtime_error("memory that is in place is not found so");
            ages.push_back(sent->age);
          }
          const double sent = now();
          system.complete(last, ages);
          sending += sent - begun;
          ending += now() - sent;
        }
        const double begun = now();
        for (unsigned i = 0; i < kLaunches; ++i)
          if (home.route(namedBy(mixed, i), last) >= executors)
            throw std::runtime_error("an operation goes to no executor");
        routed.push_back((now() - begun) / kLaunches);
        in_place.push_back(sending / kLaunches);
        ended.push_back(ending / kLaunches);
      }
      base::print("{:>12} {:>10} {:>14.0f} {:>18.0f} {:>9.0f}\n", allocations, executors,
                  medianOf(in_place), medianOf(routed), medianOf(ended));
    }
  }
}

}  // namespace
}  // namespace olpager::unified

int main(int argc, char** argv) try {
  const auto argument = [&](int at, unsigned otherwise) {
    return argc > at ? static_cast<unsigned>(std::strtoul(argv[at], nullptr, 10)) : otherwise;
  };
  olpager::unified::measure(argument(1, 100'000), argument(2, 3));
  return 0;
} catch (const std::exception& error) {
  olpager::base::print("home_growth: {}\n", error.what());
  return 1;
}
