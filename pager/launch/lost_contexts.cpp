#include "pager/launch/lost_contexts.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "base/format.h"
#include "base/log.h"

namespace olpager::pager {

void RecentKernels::note(const char* name) {
  auto at = static_cast<size_t>(std::find(places_.begin(), places_.end(), name) - places_.begin());
  if (at == places_.size()) {
    at = static_cast<size_t>(std::min_element(noted_.begin(), noted_.end()) - noted_.begin());
    places_[at] = name;
    std::strncpy(names_[at].data(), name, names_[at].size() - 1);
  }
  noted_[at] = ++notes_;
}

std::string RecentKernels::list() const {
  std::array<size_t, std::tuple_size_v<decltype(noted_)>> order{};
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [this](size_t a, size_t b) { return noted_[a] > noted_[b]; });
  std::string text;
  for (const size_t at : order)
    if (noted_[at] != 0) text += (text.empty() ? "" : ", ") + std::string(names_[at].data());
  return text;
}

void LostContexts::tellUnmapped(CUcontext context, CUdevice device, Reach reach, bool seals) {
  if (!told_.insert(context).second) return;
  const char* why =
      "it follows pointers that no scan finds (marks in their upper bits, offsets, halves that lie "
      "apart): OL_REACH=all (olrun --reach all) maps everything for every launch";
  if (reach == Reach::kLearned)
    why =
        "it went beyond the pieces of an arena that it was taken to use (reach = learned): "
        "OL_REACH=traced or OL_REACH=all (olrun --reach all) does not take that risk";
  else if (seals)
    why =
        "it writes to a tensor that it was not given and that was constant so far (arenas = "
        "streamed): OL_ARENAS=in-place does not take that risk. Or it follows pointers that no "
        "scan finds: OL_REACH=all";
  const std::string kernels = recent.list();
  base::logError(
      "%sthe context is lost (CUDA error %d): a kernel touched memory that was not mapped for it. "
      "If it works without the pager, %s%s%s",
      device >= 0 ? base::format("device {}: ", device).c_str() : "",
      static_cast<int>(CUDA_ERROR_ILLEGAL_ADDRESS), why,
      kernels.empty() ? "" : ". Launched of late: ", kernels.c_str());
}

}  // namespace olpager::pager
