#include "forwarding/visible_devices.h"

#include <algorithm>
#include <charconv>

namespace olpager::forward {

std::vector<uint32_t> visibleDevices(const std::vector<std::string>& uuids, std::string_view text) {
  std::vector<uint32_t> visible;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string_view word = text.substr(at, end - at);
    at = end + 1;
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    uint32_t index = 0, found = UINT32_MAX;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), index);
    if (error == std::errc() && rest == word.data() + word.size()) {
      if (index < uuids.size()) found = index;
    } else if (word.size() > 4 && word.starts_with("GPU-")) {
      for (uint32_t i = 0; i < uuids.size(); ++i) {
        if (!uuids[i].starts_with(word)) continue;
        if (found != UINT32_MAX) return visible;  // names more than one
        found = i;
      }
    }
    if (found == UINT32_MAX) return visible;
    if (std::find(visible.begin(), visible.end(), found) != visible.end())
      return {};  // CUDA sees none then
    visible.push_back(found);
  }
  return visible;
}

bool hidesAll(std::string_view text) { return text.empty() || text == "-1"; }

}  // namespace olpager::forward
