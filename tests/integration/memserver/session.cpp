// A session of a memserver that does what it is told on standard input, a command a line, and says
// what came of it on standard output, a line each. Events meanwhile are said as "event KIND BYTES".
// For the tests of the daemon.
//
//   lease BYTES | fill SEED | verify SEED | zero | hammer SEED | rest | release COUNT | behind
//   BYTES | figures | quit
//
// fill writes a pattern of the seed over everything leased; verify tells how much of it holds, is
// lost, is wrong; hammer fills again and again until rest; behind reads a piece on demand, again
// and again: alone, behind so much write-back that is under way, and behind so much prefetch, and
// tells how long each took. With --obey a recall is followed by releases.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/format.h"
#include "base/size.h"
#include "coherence/transport/trust/keys.h"
#include "memserver/client.h"

namespace {

using namespace olpager;
using namespace olpager::memserver;

constexpr uint64_t kPiece = 2ull << 20;

void say(const std::string& line) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  base::print("{}\n", line);
  std::fflush(stdout);
}

uint64_t wordAt(uint64_t seed, uint64_t slab, uint64_t index) {
  return ((seed * 0x9e3779b97f4a7c15ull) ^ (slab << 40) ^ index) * 0xd6e8feb86659fd93ull |
         1;  // never 0
}

class Program final : public Observer {
 public:
  void transferDone(uint64_t context, TransferResult result) override {
    std::lock_guard lock(mutex_);
    results_[context] = result;
    changed_.notify_all();
  }
  void happened(const Event& event) override {
    say(base::format("event {} {}", eventName(event.kind), event.bytes));
    base::print(stderr, "{}\n", event.text);
    if (event.kind != Event::Kind::kRecall || !obey) return;
    for (const Slab& slab : client->slabs()) {
      if (released_ >= event.bytes) break;
      client->release(slab.id);
      released_ += slab.bytes;
    }
    released_ = 0;
  }

  /// One piece, here to there or back.
  TransferResult move(bool write, const FrameRange& frame) {
    const transport::LocalRange range{region.get(), 0, frame.bytes};
    const uint64_t context = next_++;
    if (write) {
      client->write({&range, 1}, frame, transport::Class::kWriteBack, context);
    } else {
      client->read({&range, 1}, frame, transport::Class::kDemand, context);
    }
    return await(context);
  }
  /// Takes the result of a transfer, when it is there.
  TransferResult await(uint64_t context) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return results_.count(context) != 0; });
    const TransferResult result = results_[context];
    results_.erase(context);
    return result;
  }
  template <typename Each>
  void pieces(Each&& each) {
    for (const Slab& slab : client->slabs()) {
      for (uint64_t at = 0; at < slab.bytes; at += kPiece) each(FrameRange{slab.id, at, kPiece});
    }
  }
  uint64_t fill(uint64_t seed) {
    uint64_t done = 0;
    pieces([&](const FrameRange& frame) {
      for (uint64_t i = 0; i < kPiece / 8; ++i)
        words[i] = wordAt(seed, frame.slab, frame.offset / 8 + i);
      if (move(true, frame) == TransferResult::kOk) done += frame.bytes;
    });
    return done;
  }
  void verify(uint64_t seed, bool zero) {
    uint64_t good = 0, lost = 0, wrong = 0;
    pieces([&](const FrameRange& frame) {
      std::memset(words, 0x5a, kPiece);
      if (move(false, frame) != TransferResult::kOk) {
        lost += frame.bytes;
        return;
      }
      bool same = true;
      for (uint64_t i = 0; i < kPiece / 8 && same; ++i) {
        same = words[i] == (zero ? 0 : wordAt(seed, frame.slab, frame.offset / 8 + i));
      }
      (same ? good : wrong) += frame.bytes;
    });
    say(base::format("verified good={} lost={} wrong={}", good, lost, wrong));
  }

  /// Says "behind alone US write-back US prefetch US": of nine reads each the third fastest, which
  /// a busy machine changes least.
  void behind(const transport::DomainPtr& domain, uint64_t bytes) {
    std::vector<FrameRange> frames;
    pieces([&](const FrameRange& frame) { frames.push_back(frame); });
    if (frames.size() * kPiece < bytes + kPiece) return say("error too little is leased");
    const FrameRange asked = frames[bytes / kPiece];
    frames.resize(bytes / kPiece);
    for (uint64_t i = 0; i < kPiece / 8; ++i) words[i] = wordAt(1, asked.slab, i);
    if (move(true, asked) != TransferResult::kOk) return say("error the piece can't be written");
    std::vector<uint64_t> got(kPiece / 8), sink(kPiece / 8);
    auto into =
        transport::registerMemory(domain, {got.data(), kPiece, -1, 0}, transport::kLocalOnly);
    auto away =
        transport::registerMemory(domain, {sink.data(), kPiece, -1, 0}, transport::kLocalOnly);
    if (!into.ok() || !away.ok()) return say("error no memory can be registered");
    const transport::LocalRange from{region.get(), 0, kPiece}, to{into.value().get(), 0, kPiece},
        aside{away.value().get(), 0, kPiece};
    bool good = true;
    const auto timeReads = [&] {
      std::vector<int64_t> took;
      for (int i = 0; i < 9; ++i) {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(50));  // so that what is behind runs at its full rate again
        std::memset(got.data(), 0, kPiece);
        const uint64_t context = next_++;
        const auto begin = std::chrono::steady_clock::now();
        client->read({&to, 1}, asked, transport::Class::kDemand, context);
        good = await(context) == TransferResult::kOk &&
               std::memcmp(got.data(), words, kPiece) == 0 && good;
        took.push_back(std::chrono::duration_cast<std::chrono::microseconds>(
                           std::chrono::steady_clock::now() - begin)
                           .count());
      }
      std::nth_element(took.begin(), took.begin() + 2, took.end());
      return took[2];
    };
    std::string line = base::format("behind alone {}", timeReads());
    for (const bool write : {true, false}) {
      const uint64_t first = next_.fetch_add(frames.size());
      for (uint64_t i = 0; i < frames.size(); ++i) {
        if (write) {
          client->write({&from, 1}, frames[i], transport::Class::kWriteBack, first + i);
        } else {
          client->read({&aside, 1}, frames[i], transport::Class::kPrefetch, first + i);
        }
      }
      good = await(first + 8) == TransferResult::kOk && good;
      line += base::format(" {} {}", write ? "write-back" : "prefetch", timeReads());
      {
        std::lock_guard lock(mutex_);
        good = results_.size() + 1 < frames.size() && good;  // there was something to be behind of
      }
      for (uint64_t i = 0; i < frames.size(); ++i)
        good = (i == 8 || await(first + i) == TransferResult::kOk) && good;
    }
    say(good ? line : "error a piece was wrong, or nothing was under way");
  }

  std::unique_ptr<Client> client;
  transport::RegionPtr region;
  uint64_t* words = nullptr;
  bool obey = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, TransferResult> results_;
  std::atomic<uint64_t> next_{1};
  uint64_t released_ = 0;
};

void tellFigures(const Client& client) {
  const Figures figures = client.figures();
  say(nlohmann::json{{"up", figures.up},
                     {"stalled", figures.stalled},
                     {"total", figures.total_bytes},
                     {"free", figures.free_bytes},
                     {"available", figures.available_bytes},
                     {"leased", figures.leased_bytes},
                     {"recalled", figures.recalled_bytes},
                     {"connects", figures.connects},
                     {"lost", figures.slabs_lost},
                     {"read_bytes_per_s", figures.read_bytes_per_s},
                     {"transport", transport::linkKindName(figures.transport)}}
          .dump());
}

int run(const transport::Options& network, const ClientOptions& wanted, bool obey) {
  auto endpoint = transport::makeEndpoint(sessionTransport(network));
  if (!endpoint.ok()) return say("error " + endpoint.error().message), 1;
  Program program;
  program.obey = obey;
  ClientOptions options = wanted;
  options.endpoint = endpoint.value().get();
  options.domain = transport::makeDomain();
  void* memory = mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  program.words = static_cast<uint64_t*>(memory);
  auto region =
      transport::registerMemory(options.domain, {memory, kPiece, -1, 0}, transport::kLocalOnly);
  if (!region.ok()) return say("error " + region.error().message), 1;
  program.region = std::move(region.value());
  auto client = Client::connect(options, program);
  if (!client.ok()) return say("error " + client.error().message), 1;
  program.client = std::move(client.value());
  say("connected");

  std::atomic<bool> hammering{false};
  std::thread hammer;
  const auto rest = [&] {
    hammering = false;
    if (hammer.joinable()) hammer.join();
  };
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    uint64_t number = 0;
    words >> command >> number;
    if (command == "lease") {
      const auto leased = program.client->lease(number);
      say(leased.ok() ? base::format("leased {}", leased.value().size())
                      : "error " + leased.error().message);
    } else if (command == "fill") {
      say(base::format("filled {}", program.fill(number)));
    } else if (command == "verify") {
      program.verify(number, false);
    } else if (command == "zero") {
      program.verify(0, true);
    } else if (command == "hammer") {
      hammering = true;
      hammer = std::thread([&, number] {
        while (hammering) program.fill(number);
      });
      say("hammering");
    } else if (command == "rest") {
      rest();
      say("resting");
    } else if (command == "release") {
      for (const Slab& slab : program.client->slabs()) {
        if (number-- == 0) break;
        program.client->release(slab.id);
      }
      say("released");
    } else if (command == "behind") {
      program.behind(options.domain, number);
    } else if (command == "figures") {
      tellFigures(*program.client);
    } else if (command == "quit") {
      break;
    } else {
      say("error an unknown command");
    }
  }
  rest();
  program.client.reset();
  program.region.reset();
  munmap(memory, kPiece);
  say("closed");
  return 0;
}

// One client after the other, or all at once until it is killed: what a daemon keeps of them.
int churn(const transport::Options& network, const ClientOptions& wanted, unsigned count,
          bool stay) {
  auto endpoint = transport::makeEndpoint(sessionTransport(network));
  if (!endpoint.ok()) return say("error " + endpoint.error().message), 1;
  std::vector<std::unique_ptr<Program>> staying;
  for (unsigned i = 0; i < count; ++i) {
    auto one = std::make_unique<Program>();
    Program& program = *one;
    ClientOptions options = wanted;
    options.endpoint = endpoint.value().get();
    options.domain = transport::makeDomain();
    auto client = Client::connect(options, program);
    for (int tries = 0; !client.ok() && tries < 100;
         ++tries) {  // a daemon bounds handshakes a second
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      client = Client::connect(options, program);
    }
    if (!client.ok()) return say("error " + client.error().message), 1;
    program.client = std::move(client.value());
    if (const auto leased = program.client->lease(kPiece); !leased.ok())
      return say("error " + leased.error().message), 1;
    if (stay) {
      staying.push_back(std::move(one));
    } else {
      program.client.reset();
    }
  }
  say(base::format("churned {}", count));
  if (stay) std::cin.get();
  for (auto& each : staying) each->client.reset();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string address, key, kind = "auto";
  bool obey = false, stay = false, clear = false;
  unsigned churns = 0;
  ClientOptions options;
  options.label = "session";
  CLI::App app("A session of a memserver, told what to do on standard input", "session");
  app.add_option("--connect", options.address)->required();
  app.add_option("--key", key);
  app.add_option("--transport", kind);
  app.add_flag("--clear", clear, "Nothing is encrypted but the handshake");
  app.add_option("--label", options.label);
  app.add_option("--stall-ms", options.stall_ms);
  app.add_option("--churn", churns);
  app.add_flag("--stay", stay);
  app.add_flag("--obey", obey);
  CLI11_PARSE(app, argc, argv);
  transport::Options network;
  network.lanes = 2;
  network.choice = kind == "tcp"     ? transport::Choice::kTcp
                   : kind == "shm"   ? transport::Choice::kShm
                   : kind == "verbs" ? transport::Choice::kVerbs
                                     : transport::Choice::kAuto;
  if (clear) network.tls = transport::Tls::kOff;
  if (!key.empty()) {
    auto keys = transport::loadKeys(key);
    if (!keys.ok()) return say("error " + keys.error().message), 1;
    network.keys = keys.value();
  }
  return churns != 0 ? churn(network, options, churns, stay) : run(network, options, obey);
}
