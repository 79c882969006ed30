#include "tools/olpagestat/text.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>

#include "base/format.h"

namespace olpager::tools {

std::string bytesText(double bytes) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    unit++;
  }
  return base::format("{:.{}f}{}", bytes, unit == 0 || bytes >= 99.95 ? 0 : 1, kUnits[unit]);
}

std::string durationText(double nanoseconds) {
  if (nanoseconds < 1e3) return base::format("{:.0f}ns", nanoseconds);
  if (nanoseconds < 1e6) return base::format("{:.1f}us", nanoseconds / 1e3);
  if (nanoseconds < 1e9) return base::format("{:.1f}ms", nanoseconds / 1e6);
  return base::format("{:.1f}s", nanoseconds / 1e9);
}

std::string printableName(const char* name) {
  std::string text;
  for (; *name != '\0'; name++) text += *name >= 0x20 && *name < 0x7f ? *name : '?';
  return text;
}

std::string bar(double part, double whole, size_t width) {
  const size_t full = whole > 0 ? std::min(width, static_cast<size_t>(std::lround(
                                                      part / whole * static_cast<double>(width))))
                                : 0;
  return "[" + std::string(full, '#') + std::string(width - full, '.') + "]";
}

std::string clockText() {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  return base::format("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

}  // namespace olpager::tools
