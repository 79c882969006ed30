// An executor of the unified view: what olgpunode's worker says to the pager (forwarding/agent.h).
#include <array>
#include <optional>

#include "base/log.h"
#include "forwarding/agent.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::pager::ContentHash;
using olpager::pager::Pool;

namespace {

constexpr CUdevice kDevice = 0;  // of an executor: its pages are on one device

// In which the pager's engine runs: the primary one, which is the program's as well, and stays.
struct Primary {
  CUcontext context = nullptr;
  CUresult result = driver().cuDevicePrimaryCtxRetain(&context, kDevice);
};
const Primary& primary() {
  static const Primary retained;
  return retained;
}

// A hash, as it goes to the worker.
class Words {
 public:
  explicit Words(const std::optional<ContentHash>& hash)
      : words_{hash ? hash->low : 0, hash ? hash->high : 0}, known_(hash.has_value()) {}
  const uint64_t* get() const { return known_ ? words_.data() : nullptr; }

 private:
  std::array<uint64_t, 2> words_;
  bool known_;
};

// The worker's functions, as the pager calls them.
class Link final : public olpager::pager::AwayLink {
 public:
  explicit Link(const OlpagerAgentLink& link) : link_(link) {}
  void post(std::span<const std::byte> batch) override {
    link_.post(link_.worker, batch.data(), batch.size());
  }
  void given(uint32_t extent, uint64_t number, uint8_t taker, const void* bytes,
             std::optional<ContentHash> hash) override {
    link_.given(link_.worker, extent, number, taker, bytes, Words(hash).get());
  }
  void takenBack(uint32_t extent, uint64_t number) override {
    link_.taken_back(link_.worker, extent, number);
  }
  void fetch(uint32_t extent, uint64_t number, uint8_t from, void* into,
             std::optional<ContentHash> has) override {
    link_.fetch(link_.worker, extent, number, from, into, Words(has).get());
  }
  void failed(const char* why) override { link_.failed(link_.worker, why); }

 private:
  const OlpagerAgentLink& link_;
};

}  // namespace

CUresult olpager_agent_start(const OlpagerAgentLink* link, uint8_t agent) {
  Pool* const running = pool();
  if (running == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  static Link worker(*link);  // there is one agent
  return running->becomeExecutor(worker, agent);
}

CUresult olpager_agent_prepare() {
  Pool* const running = pool();
  if (running == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (primary().result != CUDA_SUCCESS) return primary().result;
  noteContext(primary().context);
  const RelaxedCapture relaxed;  // a stream of the program's may capture meanwhile
  running->prepare(primary().context, kDevice);
  return CUDA_SUCCESS;
}

CUresult olpager_agent_region(CUdeviceptr base, uint32_t pages, uint32_t first) {
  Pool* const running = pool();
  if (running == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (primary().result != CUDA_SUCCESS) return primary().result;
  noteContext(primary().context);
  const RelaxedCapture relaxed;  // as above
  const Within within(primary().context);
  return running->addRegion(primary().context, kDevice, base, pages, first);
}

CUresult olpager_agent_receive(const void* batch, size_t bytes) {
  Pool* const running = pool();
  if (running == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return running->receive({static_cast<const std::byte*>(batch), bytes});
}

void olpager_agent_landed(uint32_t extent, uint64_t number, const uint64_t* hash) {
  Pool* const running = pool();
  if (running == nullptr) return;
  running->landed(extent, number,
                  hash != nullptr ? std::optional(ContentHash{hash[0], hash[1]}) : std::nullopt);
}

CUresult olpager_agent_finish() {
  Pool* const running = pool();
  return running != nullptr ? running->finishWork() : CUDA_ERROR_NOT_SUPPORTED;
}

uint64_t olpager_agent_retained() {
  Pool* const running = pool();
  return running != nullptr ? running->retainedBytes() : 0;
}
