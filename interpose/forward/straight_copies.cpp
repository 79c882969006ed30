#include "interpose/forward/straight_copies.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "forwarding/wire/straight.h"
#include "interpose/forward/call.h"
#include "interpose/forward/executor.h"

namespace olpager::forward {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kRetry = 30s;  // a pair that could not be linked

using Pair = PeerLinks::Pair;

// The worker of `from` connects to that of `to`. The answer says how, or why not. `result`: whether
// it could be asked.
PeerLinked connect(Session& from, Session& to, std::string* text, CUresult* result) {
  Call call(Operation::kPeerLink, &from);
  return linkWorker(call, from.slot(), to.executor(), text, result);
}

// The link between them, made if need be; kNo: none.
PeerLinked link(Pair& pair, Session& low, Session& high, uint64_t* number) {
  std::lock_guard lock(pair.mutex);
  if (pair.linked == PeerLinked::kNo && Clock::now() >= pair.retry) {
    std::string how, back;
    CUresult asked = CUDA_SUCCESS;
    pair.linked = connect(low, high, &how, &asked);
    if (pair.linked == PeerLinked::kNo && asked != CUDA_ERROR_DEVICE_UNAVAILABLE) {
      pair.linked = connect(high, low, &back, &asked);
      if (pair.linked != PeerLinked::kNo) how = back;
    }
    if (asked == CUDA_ERROR_DEVICE_UNAVAILABLE)
      return PeerLinked::kNo;  // one of them is lost: whatever is tried says so
    ++pair.link;
    if (pair.linked != PeerLinked::kNo) {
      base::logInfo("copies between gpunodes %s and %s go straight: %s",
                    low.executor().name().c_str(), high.executor().name().c_str(), how.c_str());
    } else {
      pair.retry = Clock::now() + kRetry;
      if (!pair.told)
        base::logWarn(
            "copies between gpunodes %s and %s go through this program: %s; the other way round: "
            "%s",
            low.executor().name().c_str(), high.executor().name().c_str(), how.c_str(),
            back.c_str());
      pair.told = true;
    }
  }
  *number = pair.link;
  return pair.linked;
}

void lost(Pair& pair, uint64_t number) {
  std::lock_guard lock(pair.mutex);
  if (pair.link != number) return;
  if (pair.linked != PeerLinked::kNo)
    base::logWarn("a link between gpunodes is lost: the copy is made through this program");
  pair.linked = PeerLinked::kNo;
}

// The call of one end.
class EndCall {
 public:
  EndCall(Operation operation, const StraightEnd& end, const Session& other, uint64_t copy,
          uint64_t bytes)
      : current_(end.context),
        call_(operation, end.session),
        end_(end),
        copy_(copy),
        other_(other) {
    call_.value(StraightHead{copy, end.address, bytes, reinterpret_cast<uint64_t>(end.stream),
                             other.slot(), static_cast<uint16_t>(end.per_thread),
                             static_cast<uint16_t>(end.now)});
    call_.mayWait();
  }
  EndCall(const EndCall&) = delete;
  EndCall& operator=(const EndCall&) = delete;
  ~EndCall() {
    if (!waits_) return;
    try {  // an exception came between
      stop();
    } catch (const std::exception& failure) {
      base::logError("a copy between gpunodes can't be given up: %s", failure.what());
    }
  }
  CUresult begin() {
    const CUresult result = call_.begin(true);
    waits_ = result == CUDA_SUCCESS;
    return result;
  }
  // The other end of it has failed: this one waits for nothing.
  void stop() {
    Call call(Operation::kStraightStop, end_.session);
    call.ofOurOwn();
    call.value(StraightStopHead{copy_, other_.slot(), 0});
    (void)call.oneWay(true);
  }
  CUresult finish(Straight* how) {
    const CUresult result = call_.finish();
    waits_ = false;
    *how = call_.answered() ? call_.reply().value<Straight>() : Straight::kStopped;
    return result;
  }

 private:
  const WithContext current_;
  Call call_;
  const StraightEnd end_;
  const uint64_t copy_;
  const Session& other_;
  bool waits_ = false;  // for its answer
};

}  // namespace

PeerLinked linkWorker(Call& call, unsigned slot, const Executor& to, std::string* text,
                      CUresult* result) {
  PeerLinkHead head;
  std::string address;
  to.nameToPeer(slot, &head, &address);
  call.value(head);
  call.value(static_cast<uint32_t>(address.size()));
  call.raw(address.data(), address.size());
  call.mayWait();
  *result = call.sync();
  if (!call.answered()) {
    *text = "CUDA error " + std::to_string(*result);
    return PeerLinked::kNo;
  }
  const auto linked = call.reply().value<PeerLinked>();
  *text = call.reply().text();
  return linked;
}

std::optional<CUresult> copyStraight(const StraightEnd& to, const StraightEnd& from,
                                     uint64_t bytes) {
  Session& low = to.session->slot() < from.session->slot() ? *to.session : *from.session;
  Session& high = &low == to.session ? *from.session : *to.session;
  PeerLinks& links = *program().parts().peer_links;
  Pair& pair = links.pairs[low.slot()][high.slot()];
  uint64_t number = 0;
  const PeerLinked linked = link(pair, low, high, &number);
  if (linked == PeerLinked::kNo) return {};
  const uint64_t copy = links.next_copy.fetch_add(1);
  EndCall in(Operation::kStraightIn, to, *from.session, copy, bytes);
  if (const CUresult begun = in.begin(); begun != CUDA_SUCCESS) return begun;
  Straight taken{}, sent{};
  CUresult out_result = CUDA_SUCCESS;
  {
    EndCall out(Operation::kStraightOut, from, *to.session, copy, bytes);
    out_result = out.begin();
    if (out_result == CUDA_SUCCESS) out_result = out.finish(&sent);
  }
  if (out_result != CUDA_SUCCESS || sent != Straight::kDone) in.stop();
  const CUresult in_result = in.finish(&taken);
  // An end that was stopped by the other says nothing of its own.
  if (in_result != CUDA_SUCCESS) return in_result;
  if (out_result != CUDA_SUCCESS) return out_result;
  if (sent == Straight::kDone && taken == Straight::kDone) {
    (linked == PeerLinked::kShm ? program().copies_over_shm : program().copies_over_tcp).add(bytes);
    return CUDA_SUCCESS;
  }
  lost(pair, number);
  return {};
}

void countThroughHere(uint64_t bytes) { program().copies_through_here.add(bytes); }

void tellCopiesBetween() {
  const CopyCount& over_tcp = program().copies_over_tcp;
  const CopyCount& over_shm = program().copies_over_shm;
  const CopyCount& through_here = program().copies_through_here;
  if (over_tcp.copies == 0 && over_shm.copies == 0 && through_here.copies == 0) return;
  const auto number = [](const std::atomic<uint64_t>& value) {
    return static_cast<unsigned long long>(value.load());
  };
  base::logInfo(
      "copies between gpunodes: %llu of %llu bytes straight over tcp, %llu of %llu straight over "
      "shared memory, %llu "
      "of %llu "
      "through this program",
      number(over_tcp.copies), number(over_tcp.bytes), number(over_shm.copies),
      number(over_shm.bytes), number(through_here.copies), number(through_here.bytes));
}

}  // namespace olpager::forward
