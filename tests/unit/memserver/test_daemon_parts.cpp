// The daemon's own decisions: how much to donate under pressure, what its options mean.
#include "coherence/status/ask.h"
#include "memserver/server/metrics.h"
#include "memserver/server/options.h"
#include "memserver/server/pressure.h"
#include "memserver/server/query.h"
#include "tests/temporary_folder.h"
#include "tests/unit/memserver/rig.h"

namespace olpager::memserver::test {
namespace {

constexpr uint64_t kGiB = 1ull << 30;

PressureOptions pressureOptions() {
  PressureOptions options;
  options.reserve = 4 * kGiB;
  options.configured = 64 * kGiB;
  options.slab = kGiB;
  options.calm_ms = 30'000;
  return options;
}

MemoryStatus plenty() {
  MemoryStatus status;
  status.total = 128 * kGiB;
  status.available = 40 * kGiB;
  return status;
}

}  // namespace

TEST_CASE("with memory to spare all of it is donated", "[pressure]") {
  PressurePolicy policy(pressureOptions());
  for (int64_t now = 0; now < 100'000; now += 1000) {
    const auto decision = policy.decide(plenty(), 64 * kGiB, now);
    CHECK(decision.target == 64 * kGiB);
    CHECK(decision.why.empty());
  }
}

TEST_CASE("what is missing to the reserve is given back, in whole slabs, once", "[pressure]") {
  PressurePolicy policy(pressureOptions());
  MemoryStatus status = plenty();
  status.available = 4 * kGiB - (3 * kGiB / 2);
  for (int64_t now = 0; now < 60'000;
       now += 1000) {  // nobody releases anything: it is not asked for more and more
    const auto decision = policy.decide(status, 64 * kGiB, now);
    CHECK(decision.target == 62 * kGiB);
    CHECK_FALSE(decision.why.empty());
    CHECK_FALSE(decision.calm);
  }
  status.available = 4 * kGiB;  // what was released made it good
  CHECK(policy.decide(status, 62 * kGiB, 61'000).target == 62 * kGiB);
}

TEST_CASE("it grows again a slab at a time after calm, while there is room", "[pressure]") {
  PressurePolicy policy(pressureOptions());
  MemoryStatus status = plenty();
  status.available = kGiB;
  CHECK(policy.decide(status, 64 * kGiB, 0).target == 61 * kGiB);
  status.available = 5 * kGiB;
  uint64_t target = 0;
  for (int64_t now = 1000; now < 100'000; now += 1000)
    target = policy.decide(status, 61 * kGiB, now).target;
  CHECK(target == 61 * kGiB);  // not two slabs above the reserve
  status.available = 40 * kGiB;
  uint64_t donated = 61 * kGiB;
  for (int64_t now = 100'000; now < 103'000; now += 1000) {
    target = policy.decide(status, donated, now).target;
    CHECK(target == donated + kGiB);
    donated = target;
  }
  CHECK(policy.decide(status, donated, 200'000).target == 64 * kGiB);
}

TEST_CASE("what there was no room for at the start comes after the calm time when there is room",
          "[pressure]") {
  PressureOptions options = pressureOptions();
  options.made = 10 * kGiB;
  PressurePolicy policy(options);
  for (int64_t now = 0; now < 30'000; now += 1000)
    CHECK(policy.decide(plenty(), 10 * kGiB, now).target == 10 * kGiB);
  MemoryStatus status = plenty();
  status.available = 5 * kGiB;
  CHECK(policy.decide(status, 10 * kGiB, 30'000).target == 10 * kGiB);
  CHECK(policy.decide(plenty(), 10 * kGiB, 31'000).target == 11 * kGiB);
  CHECK(policy.decide(plenty(), 11 * kGiB, 32'000).target == 12 * kGiB);
}

TEST_CASE("making memory stops at the reserve, with what is begun counted as taken", "[pressure]") {
  using Answer = FillPolicy::Answer;
  FillPolicy policy(4 * kGiB, kGiB);
  MemoryStatus status = plenty();
  status.available = 7 * kGiB;
  const auto next = [&](uint64_t untouched) {
    return policy.next(untouched, [&] { return status; });
  };
  // Nothing of what is begun has been touched: the system shows all of it as available.
  CHECK(next(0) == Answer::kMake);
  CHECK(next(kGiB) == Answer::kMake);
  CHECK(next(2 * kGiB) == Answer::kMake);
  CHECK(next(3 * kGiB) == Answer::kWait);
  status.available = 4 * kGiB;  // all are touched
  CHECK(next(0) == Answer::kFull);
  status.available = 40 * kGiB;
  status.limit = 10 * kGiB;  // the cgroup's room counts likewise
  status.current = 5 * kGiB;
  CHECK(next(0) == Answer::kMake);
  CHECK(next(kGiB) == Answer::kWait);
  CHECK(next(kGiB / 2) == Answer::kWait);
  status.current = 5 * kGiB + kGiB - 1;
  CHECK(next(0) == Answer::kFull);
}

TEST_CASE(
    "while memory is made room is looked at again after some of it, also where slabs are small",
    "[pressure]") {
  using Answer = FillPolicy::Answer;
  constexpr uint64_t kSmall = 4 * kMiB;
  FillPolicy policy(kGiB, kSmall);
  MemoryStatus status;
  status.available = 8 * kGiB;
  unsigned looks = 0;
  const auto next = [&](uint64_t untouched) {
    return policy.next(untouched, [&] {
      ++looks;
      return status;
    });
  };
  constexpr uint64_t kEach = kFillLook / kSmall;
  for (uint64_t i = 0; i < 10 * kEach; ++i) REQUIRE(next(i * kSmall) == Answer::kMake);
  CHECK(looks == 10);
  status.available = kGiB + 3 * kSmall;  // others have taken the rest
  for (int i = 0; i < 3; ++i) CHECK(next(0) == Answer::kMake);
  CHECK(looks == 11);
  status.available = kGiB;
  CHECK(next(kSmall) == Answer::kWait);
  CHECK(next(0) == Answer::kFull);
  // An unreadable file ends nothing.
  CHECK(policy.next(0, [] { return Result<MemoryStatus>(Error{"gone"}); }) == Answer::kMake);
}

TEST_CASE("what was not released in time may stay once nothing presses", "[pressure]") {
  PressurePolicy policy(pressureOptions());
  MemoryStatus status = plenty();
  status.available = 0;
  CHECK(policy.decide(status, 64 * kGiB, 0).target == 60 * kGiB);
  CHECK(policy.decide(plenty(), 64 * kGiB, 10'000).target == 60 * kGiB);
  const auto later = policy.decide(plenty(), 64 * kGiB, 30'000);
  CHECK(later.calm);
  CHECK(later.target == 64 * kGiB);
}

TEST_CASE("stalls on memory give back a sixteenth each 10 s", "[pressure]") {
  PressurePolicy policy(pressureOptions());
  MemoryStatus status = plenty();
  status.some = 20;
  CHECK(policy.decide(status, 64 * kGiB, 0).target == 60 * kGiB);
  for (int64_t now = 1000; now < 10'000; now += 1000)
    CHECK(policy.decide(status, 60 * kGiB, now).target == 60 * kGiB);
  CHECK(policy.decide(status, 60 * kGiB, 10'000).target == 56 * kGiB);
  status.some = 0;
  status.full = 5;
  CHECK(policy.decide(status, 56 * kGiB, 20'000).target == 52 * kGiB);
  status.full = 4.9;
  CHECK(policy.decide(status, 52 * kGiB, 30'000).target == 52 * kGiB);
}

TEST_CASE("a cgroup's limit counts as the machine's end", "[pressure]") {
  PressurePolicy policy(pressureOptions());
  MemoryStatus status = plenty();
  status.limit = 80 * kGiB;
  status.current = 70 * kGiB;
  CHECK(status.room() == 10 * kGiB);
  CHECK(policy.decide(status, 64 * kGiB, 0).target == 64 * kGiB);
  status.current = 79 * kGiB;  // 4 GiB, the reserve, are to stay free
  CHECK(policy.decide(status, 64 * kGiB, 1000).target == 61 * kGiB);
  status.current = 100 * kGiB;
  CHECK(status.room() == 0);
  status.current = 60 * kGiB;
  status.throttled = 5;
  CHECK(policy.decide(status, 61 * kGiB, 2000).target == 57 * kGiB);
}

TEST_CASE("nothing that presses makes the target wrap around", "[pressure]") {
  auto random = seededRandom("pressure");
  for (int round = 0; round < 200; ++round) {
    PressurePolicy policy(pressureOptions());
    uint64_t donated = 64 * kGiB;
    for (int64_t now = 0; now < 200'000; now += 1000) {
      MemoryStatus status;
      status.total = 128 * kGiB;
      status.available = random() % (80 * kGiB);
      if (random() % 2 == 0) status.limit = random() % (128 * kGiB);
      status.current = random() % (160 * kGiB);
      status.some = static_cast<double>(random() % 101);
      status.throttled = random() % 10;
      const auto decision = policy.decide(status, donated, now);
      REQUIRE(decision.target <= 64 * kGiB);
      if (random() % 2 == 0) donated = decision.target;
    }
  }
}

TEST_CASE("memory is read as the system tells it", "[pressure]") {
  olpager::test::TemporaryFolder folder;
  folder.write("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n");
  folder.write(
      "proc/pressure/memory",
      "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=3.25 avg60=0 total=1\n");
  folder.write("group/memory.max", "max\n");
  folder.write("group/memory.high", "300000\n");
  folder.write("group/memory.current", "200000\n");
  folder.write("group/memory.stat", "anon 5\nactive_file 1\ninactive_file 50000\n");
  folder.write("group/memory.events", "low 0\nhigh 2\nmax 3\noom 0\n");
  folder.write("group/memory.pressure", "some avg10=1.00 total=1\nfull avg10=9.00 total=1\n");
  const auto status = MemoryReader(folder.path + "/proc", folder.path + "/group").read();
  REQUIRE(status.ok());
  CHECK(status.value().total == 1024 * 1024);
  CHECK(status.value().available == 512 * 1024);
  CHECK(status.value().some == 12.5);
  CHECK(status.value().full == 9.0);
  CHECK(status.value().limit == uint64_t{300000});
  CHECK(status.value().current == 150000);
  CHECK(status.value().throttled == 5);
  CHECK(status.value().room() == 150000);
  folder.write("memory.max", "90000\n");  // of the group above
  folder.write("memory.current", "80000\n");
  const auto under = MemoryReader(folder.path + "/proc", folder.path + "/group").read();
  REQUIRE(under.ok());
  CHECK(under.value().room() == 10000);
  CHECK(under.value().some == 12.5);
  const auto without = MemoryReader(folder.path + "/proc", "none").read();
  REQUIRE(without.ok());
  CHECK(!without.value().limit);
  CHECK(!MemoryReader(folder.path + "/nothing", "none").read().ok());
  CHECK(MemoryReader("/proc", "").read().ok());
}

TEST_CASE("options say what is allowed", "[options]") {
  DaemonOptions options;
  const auto set = [&](const char* key, const char* text) {
    return optionsOf(options).set(key, text).ok();
  };
  CHECK(set("listen", "10.0.0.1:7070,[::1]:0,unix:/run/x"));
  CHECK(options.listen == std::vector<std::string>{"10.0.0.1:7070", "[::1]:0", "unix:/run/x"});
  CHECK(set("memory", "auto"));
  CHECK(!options.memory.given());
  CHECK(set("memory", "50%"));
  CHECK(options.memory.percent == 50);
  CHECK(set("lease_time", "500ms"));
  CHECK(options.lease_ms == 500);
  CHECK(set("lease_time", "1.5min"));
  CHECK(options.lease_ms == 90'000);
  CHECK(set("lease_time", "20"));
  CHECK(options.lease_ms == 20'000);
  CHECK(set("numa", "none"));
  CHECK(options.numa == -1);
  CHECK(set("recall", "hard"));
  CHECK(options.hard_recall);
  for (const auto& [key, text] :
       std::vector<std::pair<const char*, const char*>>{{"listen", ""},
                                                        {"listen", "host"},
                                                        {"memory", "1MiB"},
                                                        {"memory", "-1"},
                                                        {"slab", "3MiB"},
                                                        {"slab", "0"},
                                                        {"lease_time", "0s"},
                                                        {"lease_time", "5 parsecs"},
                                                        {"lease_time", "nan"},
                                                        {"sessions", "99999999999999999999"},
                                                        {"pressure_some", "101"},
                                                        {"pressure_full", "nan"},
                                                        {"numa", "-1"},
                                                        {"huge", "maybe"},
                                                        {"log", "loud"},
                                                        {"nothing", "1"}}) {
    INFO(key << " = " << text);
    CHECK(!set(key, text));
  }
  CHECK(optionsOf(options).set("key_quota", "anna=1GiB").ok());
  CHECK(options.quotas.at("anna") == kGiB);
  CHECK(!optionsOf(options).set("key_quota", "anna").ok());
  CHECK(!optionsOf(options).set("key_quota", "a b=1GiB").ok());
  CHECK(!optionsOf(options).set("key_quota", "anna=").ok());
}

TEST_CASE("a file of options means what the command line does", "[options]") {
  olpager::test::TemporaryFolder folder;
  const std::string path = folder.path + "/olmemserver.toml";
  const auto failure = [&](const char* text) {
    folder.write("olmemserver.toml", text);
    DaemonOptions options;
    const Status status = optionsOf(options).readFile(path, true);
    return status.ok() ? std::string() : status.error().message;
  };
  folder.write("olmemserver.toml",
               "listen = ['10.0.0.1:7070', 'unix:/run/x']\nsessions = 7\nhuge = "
               "false\n[quotas]\nanna = '1GiB'\n");
  DaemonOptions options;
  REQUIRE(optionsOf(options).readFile(path, true).ok());
  CHECK(options.listen == std::vector<std::string>{"10.0.0.1:7070", "unix:/run/x"});
  CHECK(options.sessions == 7);
  CHECK(!options.huge);
  CHECK(options.quotas.at("anna") == kGiB);
  CHECK(failure("\nmemory = 8GiB\n") ==
        path + ":2: memory = 8GiB: a text needs quotes: memory = \"8GiB\"");
  CHECK(failure("memory = 1.5\n") ==
        path +
            ":1: memory is of type floating-point; allowed: a string or a number that is not "
            "negative");
  CHECK(failure("\nquot = 3\n")
            .starts_with(path + ":2: unknown key 'quot'; allowed, the nearest first: quota, "));
  CHECK(failure("slabs = 3\n").find("slab,") == std::string::npos);  // a setting of tests
  CHECK(failure("slab = '4MiB'\n").empty());
  CHECK(failure("[quotas]\nanna = true\n").starts_with(path + ":2: quotas: 'on' is not"));
  // A folder opens and can't be read: no options are not what it was meant to say.
  CHECK(optionsOf(options).readFile(folder.path, false).error().message ==
        folder.path + ": can't be read: Is a directory");
  CHECK(optionsOf(options).readFile(path + ".none", false).ok());
  CHECK(optionsOf(options).readFile(path + ".none", true).error().message ==
        path + ".none: can't be read: No such file or directory");
}

TEST_CASE("figures are in the format that Prometheus reads", "[metrics]") {
  ServiceFigures service;
  service.sessions = 3;
  service.links = {2, 1, 4};
  SlabStore::Figures store;
  store.free = 10;
  store.lent = 20;
  const std::string text = status::metricsText("olmemserver", metricsOf(service, store));
  CHECK(text.find("# TYPE olmemserver_sessions gauge\nolmemserver_sessions 3\n") !=
        std::string::npos);
  CHECK(
      text.find("\nolmemserver_links{transport=\"tcp\"} 2\nolmemserver_links{transport=\"shm\"} 1\n"
                "olmemserver_links{transport=\"verbs\"} 4\n") != std::string::npos);
  CHECK(text.find("\nolmemserver_donated_bytes 30\n") != std::string::npos);
  std::istringstream lines(text);
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    const size_t space = line.find(' ');
    REQUIRE(space != std::string::npos);
    CHECK(names.insert(line.substr(0, space)).second);
    CHECK(line.find_first_not_of("0123456789", space + 1) == std::string::npos);
  }
  CHECK(names.size() > 15);
}

TEST_CASE("a daemon that listens everywhere is asked here", "[state]") {
  CHECK(askAddress("0.0.0.0:7070") == "127.0.0.1:7070");
  CHECK(askAddress("[::]:7070") == "[::1]:7070");
  CHECK(askAddress("10.0.0.1:7070") == "10.0.0.1:7070");
}

TEST_CASE("a daemon that tells of sessions without end is not listened to without end",
          "[status]") {
  const bool empty = GENERATE(false, true);
  auto endpoint = transport::makeEndpoint(optionsFor(Choice::kTcp));
  REQUIRE(endpoint.ok());
  auto queue = endpoint.value()->makeQueue();
  auto listener = endpoint.value()->listen(
      "127.0.0.1:0", [&](const transport::PeerInfo&) -> Result<transport::Accepted> {
        return transport::Accepted{transport::makeDomain(), queue};
      });
  REQUIRE(listener.ok());
  std::atomic<bool> end{false};
  uint64_t answered = 0;
  std::thread daemon([&] {
    while (!end) {
      transport::Completion one[1];
      if (queue->wait(one, 10ms) == 0 || one[0].kind != transport::Completion::Kind::kMessage)
        continue;
      const auto question = status::decodeQuestion(one[0].message.bytes());
      if (!question.ok()) continue;
      status::Answer answer;
      answer.number = question.value().number;
      answer.status.kind = "memserver";
      answer.status.sessions.resize(empty ? 0 : status::kMaxRows);
      answer.status.next = question.value().first + 1;
      const auto link = one[0].link;
      one[0] = {};
      (void)link->send(transport::MessageClass::kReply, status::encode(answer));
      ++answered;
    }
  });
  auto asker = status::Asker::make(optionsFor(Choice::kTcp), listener.value()->address());
  const auto told = asker.ok() ? asker.value()->ask() : Result<status::Told>(asker.error());
  end = true;
  daemon.join();
  REQUIRE(!told.ok());
  CHECK(told.error().message.find("without end") != std::string::npos);
  CHECK(answered == (empty ? 1 : status::kMaxSessions / status::kMaxRows + 1));
}

}  // namespace olpager::memserver::test
