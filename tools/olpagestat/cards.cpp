#include "tools/olpagestat/cards.h"

#include <dlfcn.h>

#include <algorithm>

#include "base/format.h"
#include "base/text.h"
#include "interpose/api/nvml_abi.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

using namespace nvml;

constexpr unsigned kMostCards = 64;
constexpr unsigned kMostProcesses = 256;  // of a card
constexpr unsigned long long kNotAvailable = ~0ull;

class Library {
 public:
  Library() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      const char* const why = dlerror();
      why_none_ = "NVML can't be loaded: ";
      why_none_ += why != nullptr ? base::printable(why) : "libnvidia-ml.so.1";
      return;
    }
    auto* const init = symbol<int()>("nvmlInit_v2");
    const int result = init != nullptr ? init() : -1;
    if (result == kSuccess) return;
    why_none_ = init == nullptr ? std::string("the NVML that is there has no nvmlInit_v2")
                                : base::format("NVML does not start (error {})", result);
    dlclose(library_);
    library_ = nullptr;
  }

  Cards read() const {
    Cards cards{{}, why_none_};
    if (library_ == nullptr) return cards;
    unsigned count = 0;
    auto* const ask = symbol<int(unsigned*)>("nvmlDeviceGetCount_v2");
    auto* const find = symbol<int(unsigned, DeviceHandle*)>("nvmlDeviceGetHandleByIndex_v2");
    if (ask != nullptr && find != nullptr && ask(&count) == kSuccess) {
      for (unsigned number = 0; number < std::min(count, kMostCards); number++) {
        DeviceHandle handle = nullptr;
        if (find(number, &handle) == kSuccess) cards.all.push_back(of(number, handle));
      }
    }
    if (cards.all.empty()) cards.why_none = "NVML tells of no card";
    return cards;
  }

 private:
  template <typename Function>
  Function* symbol(const char* name) const {
    return library_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library_, name));
  }

  std::string text(const char* function, DeviceHandle handle) const {
    constexpr unsigned kRoom = 96;
    char words[kRoom + 1] = {};
    auto* const ask = symbol<int(DeviceHandle, char*, unsigned)>(function);
    return ask != nullptr && ask(handle, words, kRoom) == kSuccess ? printableName(words) : "";
  }

  Card of(unsigned number, DeviceHandle handle) const {
    Card card{.number = number,
              .name = text("nvmlDeviceGetName", handle),
              .uuid = text("nvmlDeviceGetUUID", handle),
              .total = {},
              .used = {},
              .gpu_percent = {},
              .processes = {}};
    Memory memory{};
    auto* const ask_memory = symbol<int(DeviceHandle, Memory*)>("nvmlDeviceGetMemoryInfo");
    if (ask_memory != nullptr && ask_memory(handle, &memory) == kSuccess) {
      card.total = memory.total;
      card.used = memory.used;
    }
    Utilization use{};
    auto* const ask_use = symbol<int(DeviceHandle, Utilization*)>("nvmlDeviceGetUtilizationRates");
    if (ask_use != nullptr && ask_use(handle, &use) == kSuccess) card.gpu_percent = use.gpu;
    std::vector<ProcessInfo> running(kMostProcesses);
    unsigned count = kMostProcesses;
    auto* const ask_running = symbol<int(DeviceHandle, unsigned*, ProcessInfo*)>(
        "nvmlDeviceGetComputeRunningProcesses_v3");
    if (ask_running != nullptr && ask_running(handle, &count, running.data()) == kSuccess) {
      running.resize(std::min(count, kMostProcesses));
      card.processes.emplace();
      for (const ProcessInfo& one : running)
        card.processes->push_back({one.pid, one.used != kNotAvailable
                                                ? std::optional<uint64_t>(one.used)
                                                : std::nullopt});
    }
    return card;
  }

  void* library_ = nullptr;
  std::string why_none_;
};

}  // namespace

Cards readCards() {
  static const Library library;
  return library.read();
}

std::string cardText(const Card& card, const std::vector<uint32_t>& own) {
  std::string text = base::format("card {}: {}", card.number, card.name.empty() ? "?" : card.name);
  const auto size = [](uint64_t bytes) { return bytesText(static_cast<double>(bytes)); };
  if (card.used && card.total)
    text += base::format(", {} of {} used", size(*card.used), size(*card.total));
  if (card.gpu_percent) text += base::format(", busy {}%", *card.gpu_percent);
  if (!card.processes) return text;
  size_t others = 0;
  std::optional<uint64_t> bytes = 0;
  for (const Card::Process& one : *card.processes) {
    if (std::find(own.begin(), own.end(), one.pid) != own.end()) continue;
    others++;
    bytes = bytes && one.bytes ? std::optional(*bytes + *one.bytes) : std::nullopt;
  }
  if (others == 0) return text;
  text += base::format("; {} process{} beside these", others, others == 1 ? "" : "es");
  if (bytes) text += base::format(" {} {}", others == 1 ? "has" : "have", size(*bytes));
  return text;
}

}  // namespace olpager::tools
