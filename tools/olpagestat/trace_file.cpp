
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "pager/clock.h"
#include "tools/olpagestat/executors.h"
#include "tools/olpagestat/recording.h"

namespace olpager::tools {
namespace {

using pager::Place;
using pager::TraceKind;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// Microseconds with their nanoseconds, which doubles would round.
std::string microseconds(uint64_t nanoseconds) {
  return base::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

}  // namespace

Result<std::unique_ptr<TraceFile>> TraceFile::create(const std::string& path) {
  std::unique_ptr<TraceFile> made(new TraceFile);
  made->file_ = std::fopen(path.c_str(), "we");
  if (made->file_ == nullptr) return Error{base::format("{}: {}", path, std::strerror(errno))};
  std::fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", made->file_);
  return made;
}

TraceFile::~TraceFile() { close(); }

void TraceFile::put(const std::string& text) {
  if (!first_) std::fputs(",\n", file_);
  first_ = false;
  std::fputs(text.c_str(), file_);
}

void TraceFile::process(uint32_t pid, const std::string& name) {
  put(base::format(R"({{"ph":"M","name":"process_name","pid":{},"tid":0,"args":{{"name":{}}}}})",
                   pid, quoted(name)));
}

void TraceFile::tiers(uint32_t pid, double seconds, const Figures& figures) {
  put(base::format(
      R"({{"ph":"C","name":"bytes","pid":{},"tid":0,"ts":{:.3f},"args":{{"VRAM":{},"in place":{},"host":{},"remote":{}}}}})",
      pid, seconds * 1e6, figures.vram, figures.in_place, figures.host, figures.remote));
}

void TraceFile::nameThread(uint32_t pid, uint32_t thread, const std::string& name) {
  std::string& known = threads_[{pid, thread}];
  if (known == name) return;
  known = name;
  put(base::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                   pid, thread, name));
}

void TraceFile::event(uint32_t pid, const pager::TraceReader::Event& event) {
  Count& count = counts_[pid];
  const auto span = [&](const char* name, const std::string& arguments) {
    if (threads_[{pid, event.thread}].empty())
      nameThread(pid, event.thread, base::format("thread {}", event.thread));
    put(base::format(
        R"({{"ph":"X","cat":"{}","name":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"device":{},{}}}}})",
        event.kind == TraceKind::kStep ? "step" : name, name, pid, event.thread,
        microseconds(event.start_ns),
        microseconds(event.end_ns > event.start_ns ? event.end_ns - event.start_ns : 0),
        event.device, arguments));
  };
  switch (event.kind) {
    case TraceKind::kLaunch:
      count.launches++;
      span("launch", base::format(R"("number":{})", event.value));
      return;
    case TraceKind::kCopy:
      count.copies++;
      span("copy", base::format(R"("number":{})", event.value));
      return;
    case TraceKind::kFault:
      count.faults++;
      span("fault", base::format(R"("number":{},"region":"{:#x}","bytes":{})", event.value,
                                 event.address, event.bytes));
      return;
    case TraceKind::kStep: {
      const auto step = static_cast<pager::TraceStep>(event.value);
      // A program's threads make steps too, where they allocate. These two they don't.
      if (step == pager::TraceStep::kSleep)
        nameThread(pid, event.thread, base::format("pager of device {}", event.device));
      if (step == pager::TraceStep::kMakeHost)
        nameThread(pid, event.thread, base::format("host memory of device {}", event.device));
      span(pager::stepName(step),
           base::format(R"("address":"{:#x}","bytes":{})", event.address, event.bytes));
      return;
    }
    case TraceKind::kState:
      break;
    default:
      return;
  }
  const auto before = static_cast<Place>(event.value & 0xff),
             after = static_cast<Place>(event.value >> 8 & 0xff);
  const bool ahead = (event.value >> 16 & 1) != 0;
  const std::pair key(pid, event.address);
  // A pair of events with an identity of its own: extents move at the same time, so they nest in no
  // thread.
  const auto pair = [&](std::map<std::pair<uint32_t, uint64_t>, Open>& open, const char* category,
                        const char* name) {
    const auto begun = open.find(key);
    if (begun == open.end()) return false;  // it had begun before the trace did
    const std::string common = base::format(R"("cat":"{}","name":"{}","id":{},"pid":{},"tid":{})",
                                            category, name, begun->second.id, pid, event.thread);
    put(base::format(
        R"({{"ph":"b",{},"ts":{},"args":{{"address":"{:#x}","bytes":{},"device":{}}}}})", common,
        microseconds(begun->second.start_ns), event.address, event.bytes, event.device));
    put(base::format(R"({{"ph":"e",{},"ts":{}}})", common, microseconds(event.start_ns)));
    open.erase(begun);
    return true;
  };
  const bool stays = after == Place::kVram || after == Place::kInPlace;
  if (before == Place::kIn) {
    if (after != Place::kVram) {
      coming_.erase(key);  // refused, or freed
    } else if (pair(coming_, "migration", ahead ? "prefetch" : "fetch")) {
      (ahead ? count.prefetches : count.fetches)++;
    }
  }
  if (before == Place::kOut && pair(writing_, "migration", "write back")) count.written++;
  if ((before == Place::kOut || before == Place::kLeaving) && after != Place::kOut &&
      after != Place::kLeaving) {
    const bool taken_back = stays && before == Place::kLeaving;  // by a launch
    if (taken_back || after == Place::kNone) {
      leaving_.erase(key);
    } else if (pair(leaving_, "eviction",
                    before == Place::kOut ? "eviction, written" : "eviction, clean")) {
      if (before == Place::kLeaving) count.clean++;
    }
  }
  if (after == Place::kIn) coming_[key] = {event.start_ns, ++next_id_};
  if (after == Place::kLeaving && before != Place::kLeaving)
    leaving_[key] = {event.start_ns, ++next_id_};
  if (after == Place::kOut) writing_[key] = {event.start_ns, ++next_id_};
}

// An executor's lane is a thread of its program's, with a number that no thread has.
static constexpr uint32_t kFirstLane = 1u << 30;

void TraceFile::activeUntil(uint32_t pid, const Lanes& lanes, uint64_t end_ns) {
  if (!lanes.active || end_ns <= lanes.active_since_ns) return;
  put(base::format(
      R"({{"ph":"X","cat":"executor","name":"active","pid":{},"tid":{},"ts":{},"dur":{},"args":{{}}}})",
      pid, kFirstLane + *lanes.active, microseconds(lanes.active_since_ns),
      microseconds(end_ns - lanes.active_since_ns)));
}

void TraceFile::moves(uint32_t pid, const pager::Counters& counters) {
  const auto found = lanes_.find(pid);
  if (found == lanes_.end()) return;
  Lanes& lanes = found->second;
  const uint64_t moves = pager::valueOf(counters.unified.moves);
  if (moves >= lanes.next + status::kKeptMoves) {  // the first of them have been written over
    lanes.next = moves - (status::kKeptMoves - 1);
    lanes.active.reset();
  }
  for (; lanes.next < moves; ++lanes.next) {
    status::Move move;
    if (!status::moveOf(counters.unified, lanes.next, move)) {
      lanes.active.reset();
      continue;
    }
    activeUntil(pid, lanes, move.begun_ns);
    put(base::format(
        R"({{"ph":"X","cat":"executor","name":"move of all","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"from":{},"reason":{},"pages there":{},"pages to come":{},"finishing_ns":{}}}}})",
        pid, kFirstLane + move.to, microseconds(move.begun_ns),
        microseconds(move.ended_ns > move.begun_ns ? move.ended_ns - move.begun_ns : 0),
        quoted(gpunodeOf(counters, move.from)), quoted(std::string(textOf(move.reason))),
        move.pages_there, move.pages_coming, move.finishing_ns));
    lanes.active = move.to;
    lanes.active_since_ns = move.ended_ns;
  }
}

void TraceFile::executors(uint32_t pid, double seconds, const pager::Counters& counters) {
  const unsigned count = executorsOf(counters);
  if (count == 0) return;
  if (lanes_.count(pid) == 0) {
    lanes_[pid] = {.next = pager::valueOf(counters.unified.moves),
                   .active_since_ns = static_cast<uint64_t>(seconds * 1e9),
                   .active = static_cast<unsigned>(pager::valueOf(counters.unified.active))};
    for (unsigned i = 0; i < count; ++i)
      put(base::format(
          R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", pid,
          kFirstLane + i, quoted("executor " + gpunodeOf(counters, i))));
  }
  std::string owned;
  for (unsigned i = 0; i < count; ++i)
    owned += base::format("{}{}:{}", i == 0 ? "" : ",", quoted(gpunodeOf(counters, i)),
                          pager::valueOf(counters.unified.executors[i].owned_bytes));
  put(base::format(
      R"({{"ph":"C","name":"bytes owned","pid":{},"tid":0,"ts":{:.3f},"args":{{{}}}}})", pid,
      seconds * 1e6, owned));
  moves(pid, counters);
}

bool TraceFile::finish(uint32_t pid, const pager::Counters& before, const pager::Counters& after,
                       uint64_t lost) {
  const auto grown = [&](auto&& of) {
    uint64_t sum = 0;
    for (unsigned device = 0; device < after.devicesInUse(); device++)
      sum += of(after.devices[device]) - of(before.devices[device]);
    return sum;
  };
  const auto waits = [](const pager::DeviceCounters& device) {
    uint64_t sum = 0;
    for (const auto& bucket : device.fault_wait.buckets) sum += pager::valueOf(bucket);
    return sum;
  };
  if (const auto found = lanes_.find(pid); found != lanes_.end()) {
    moves(pid, after);
    activeUntil(pid, found->second, pager::nowNs());
  }
  Count& count = counts_[pid];
  for (const auto* open : {&coming_, &leaving_, &writing_}) {
    for (const auto& [key, begun] : *open) count.open += key.first == pid ? 1 : 0;
  }
  if (!summary_.empty()) summary_ += ",\n";
  summary_ += base::format(
      R"("{}":{{"lost":{},"open":{},"counted":{{"launches":{},"copies":{},"faults":{},"fetches":{},"prefetches":{},"clean":{},"written":{}}},)"
      R"("traced":{{"launches":{},"copies":{},"faults":{},"fetches":{},"prefetches":{},"clean":{},"written":{}}}}})",
      pid, lost, count.open, grown([](auto& d) { return pager::valueOf(d.launches); }),
      grown([](auto& d) { return pager::valueOf(d.copies); }), grown(waits),
      grown([](auto& d) { return pager::valueOf(d.demand_faults); }),
      grown([](auto& d) { return pager::valueOf(d.prefetches_issued); }),
      grown([](auto& d) { return pager::valueOf(d.evictions_clean); }),
      grown([](auto& d) { return pager::valueOf(d.evictions_written); }), count.launches,
      count.copies, count.faults, count.fetches, count.prefetches, count.clean, count.written);
  return std::ferror(file_) == 0;
}

bool TraceFile::close() {
  if (file_ == nullptr) return true;
  std::fprintf(file_, "\n],\n\"otherData\":{%s}}\n", summary_.c_str());
  const bool good = std::ferror(file_) == 0;
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  return good && closed;
}

}  // namespace olpager::tools
