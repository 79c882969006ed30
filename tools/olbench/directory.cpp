#include "tools/olbench/directory.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "base/format.h"
#include "coherence/directory/agent.h"
#include "coherence/directory/directory.h"

namespace olpager::tools::bench {
namespace {

using namespace directory;
using nlohmann::json;

uint64_t residentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

/// The home and two agents with calls for a network: what local mode has. Every message is carried
/// at once, in order.
class System {
 public:
  explicit System(ExtentId extents) : agents_{Agent(0), Agent(1)}, extents_(extents) {
    const uint64_t before = residentBytes();
    home_.allocate(0, extents);
    home_bytes_ = residentBytes() - before;
    for (Agent& agent : agents_) {
      home_.join(agent.id());
      agent.resize(extents);
    }
  }

  /// An operation of the agent that needs that many extents in a row: it comes, gets them, runs, is
  /// over.
  void run(AgentId id, ExtentId first, ExtentId count, Mode mode) {
    needs_.clear();
    for (ExtentId i = 0; i < count; ++i) needs_.push_back({(first + i) % extents_, mode});
    const Age age = home_.operation();
    home_.sent(age, id);
    ++steps_;
    agents_[id].begin(age, needs_, home_.oldest(), actions_);
    carry();
    if (!agents_[id].submit(age)) throw std::runtime_error("an operation did not get its extents");
    ++steps_;
    agents_[id].complete(age, actions_);
    carry();
  }
  void free() {
    // In parts, as messages are.
    constexpr ExtentId kPart = 4096;
    for (ExtentId first = 0; first < extents_; first += kPart) {
      home_.free(first, std::min(kPart, extents_ - first), actions_);
      carry();
    }
  }

  uint64_t steps() const { return steps_; }
  uint64_t homeSteps() const { return home_steps_; }
  uint64_t homeBytes() const { return home_bytes_; }
  size_t busy() const { return home_.busy() + agents_[0].busy() + agents_[1].busy(); }

 private:
  void carry() {
    take();
    for (size_t next = 0; next < posts_.size(); ++next) {
      const Post post = posts_[next];
      ++steps_;
      if (post.landed) {
        agents_[post.message.to].landed(post.message.extent, post.message.number, actions_);
      } else if (post.message.to == kHome) {
        ++home_steps_;
        home_.receive(post.message, actions_);
      } else {
        agents_[post.message.to].receive(post.message, actions_);
      }
      take(post.message.to);
    }
    posts_.clear();
  }
  void take(AgentId who = kHome) {
    for (const Action& action : actions_) {
      if (action.kind == ActionKind::kSend) posts_.push_back({action.message, false});
      if (action.kind == ActionKind::kFetch) {
        posts_.push_back({{.to = who, .extent = action.extent, .number = action.number}, true});
      }
      if (action.kind == ActionKind::kViolation)
        throw std::runtime_error("the directory and an agent do not agree");
    }
    actions_.clear();
  }

  struct Post {
    Message message;
    bool landed;
  };
  Directory home_;
  Agent agents_[2];
  ExtentId extents_;
  std::vector<Need> needs_;
  Actions actions_;
  std::vector<Post> posts_;
  uint64_t steps_ = 0, home_steps_ = 0, home_bytes_ = 0;
};

double medianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

json measureDirectory(const DirectoryOptions& options) {
  System system(options.extents);
  json rows = json::array();
  const auto timed = [&](const char* what, const char* unit, uint64_t moves, const auto& work) {
    std::vector<double> rates, steps;
    for (unsigned round = 0; round < options.rounds; ++round) {
      const uint64_t before = system.steps();
      const auto begin = std::chrono::steady_clock::now();
      work(round);
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      steps.push_back(static_cast<double>(system.steps() - before) / seconds);
      rates.push_back(static_cast<double>(moves) / seconds);
    }
    rows.push_back({{"what", what},
                    {"unit", unit},
                    {"steps_per_second", medianOf(steps)},
                    {"each_per_second", medianOf(rates)}});
  };
  constexpr ExtentId kOfOne = 256;
  {
    // Once only: afterwards they have an owner.
    const uint64_t before = system.steps();
    const auto begin = std::chrono::steady_clock::now();
    for (ExtentId first = 0; first < options.extents; first += kOfOne)
      system.run(0, first, kOfOne, Mode::kOwn);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    rows.push_back({{"what", "first touch"},
                    {"unit", "extents"},
                    {"steps_per_second", static_cast<double>(system.steps() - before) / seconds},
                    {"each_per_second", options.extents / seconds}});
  }
  const ExtentId moved = std::min<ExtentId>(options.extents, 1u << 20);
  // With an even number of turns each begins as the one before.
  timed("extents change hands", "moves", uint64_t{moved} * 2, [&](unsigned) {
    for (const AgentId agent : {AgentId{1}, AgentId{0}}) {
      for (ExtentId first = 0; first < moved; first += kOfOne)
        system.run(agent, first, kOfOne, Mode::kOwn);
    }
  });
  timed("one extent bounces", "moves", 200000, [&](unsigned) {
    for (unsigned i = 0; i < 100000; ++i) {
      system.run(1, 0, 1, Mode::kOwn);
      system.run(0, 0, 1, Mode::kOwn);
    }
  });
  timed("operations on what is here", "operations", 1000000, [&](unsigned) {
    for (unsigned i = 0; i < 1000000; ++i) system.run(0, i % moved, 1, Mode::kOwn);
  });
  const size_t busy = system.busy();
  const auto begin = std::chrono::steady_clock::now();
  system.free();
  const double freed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {{"measurement", "directory"},
          {"extents", options.extents},
          {"bytes_at_rest", Directory::kBytesAtRest},
          {"resident_bytes_each", static_cast<double>(system.homeBytes()) / options.extents},
          {"busy_at_rest", busy},
          {"free_seconds", freed},
          {"rows", rows}};
}

void printDirectory(const json& result) {
  base::print(
      "directory of {} extents: {} bytes each at rest ({:.1f} resident), {} transactions left "
      "open\n",
      result["extents"].get<uint32_t>(), result["bytes_at_rest"].get<uint64_t>(),
      result["resident_bytes_each"].get<double>(), result["busy_at_rest"].get<uint64_t>());
  base::print("{:<28} {:>14} {:>14}\n", "", "steps/s", "each/s");
  for (const json& row : result["rows"]) {
    base::print("{:<28} {:>14.0f} {:>14.0f} {}\n", row["what"].get<std::string>(),
                row["steps_per_second"].get<double>(), row["each_per_second"].get<double>(),
                row["unit"].get<std::string>());
  }
  base::print("all freed in {:.2f} s\n", result["free_seconds"].get<double>());
}

}  // namespace olpager::tools::bench
