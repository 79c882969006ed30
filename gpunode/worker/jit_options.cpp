#include "gpunode/worker/jit_options.h"

#include <algorithm>
#include <cstring>

#include "forwarding/wire/jit_wire.h"

namespace olpager::gpunode {
namespace {

constexpr size_t kLogBytes = 64 << 10;  // a program's log may have more room: it gets no more text

}  // namespace

bool JitOptions::read(Invocation& in) {
  const auto count = in.value<uint32_t>();
  if (count > forward::kMostJitOptions) in.arguments().fail();
  for (uint32_t i = 0; in.arguments().ok() && i < count; ++i) {
    const auto name = static_cast<CUjit_option>(in.value<int32_t>());
    const auto value = in.value<uint64_t>();
    if (!forward::isJitOption(name) || forward::isDeep(name)) {
      in.arguments().fail();
      break;
    }
    names_.push_back(name);
    logs_.emplace_back(forward::isLog(name) && value != 0 ? kLogBytes : 0);
    values_.push_back(forward::isLog(name) ? (logs_.back().empty() ? nullptr : logs_.back().data())
                      : forward::isLogSize(name)
                          ? handleFrom<void*>(std::min<uint64_t>(value & UINT32_MAX, kLogBytes - 1))
                          : handleFrom<void*>(value));
  }
  return in.arguments().ok();
}

void JitOptions::put(forward::Writer& results) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    results.value(forward::isLog(names_[i]) ? uint64_t{0} : bitsOf(values_[i]));
    const auto& log = logs_[i];
    results.text({log.data(), log.empty() ? 0 : strnlen(log.data(), log.size())});
  }
}

}  // namespace olpager::gpunode
