#include "gpunode/simgpu/settings.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace olpager::simgpu {

namespace {

constexpr uint64_t kSharedMemory = 49152,
                   kMostSharedMemory = 232448;  // of a block: without opting in, and at most

Error bad(const char* variable, const char* value, const char* takes) {
  return Error{std::string("olsimcuda: ") + variable + "=" + value + " is not valid: it takes " +
               takes};
}

/// "64MiB", "8GiB", "1024"; K/M/G/T with or without iB or B are powers of 1024.
bool parseSize(const char* text, uint64_t* bytes) {
  char* end = nullptr;
  errno = 0;
  const double number = std::strtod(text, &end);
  if (end == text || errno != 0 || !(number > 0) || number > 1e18) return false;
  double unit = 1;
  switch (*end) {
    case 'k':
    case 'K':
      unit = 1024.0;
      break;
    case 'm':
    case 'M':
      unit = 1048576.0;
      break;
    case 'g':
    case 'G':
      unit = 1073741824.0;
      break;
    case 't':
    case 'T':
      unit = 1099511627776.0;
      break;
    default:
      break;
  }
  if (unit > 1) ++end;
  if (std::strcmp(end, "") != 0 && std::strcmp(end, "iB") != 0 && std::strcmp(end, "B") != 0)
    return false;
  *bytes = static_cast<uint64_t>(number * unit);
  return true;
}

bool parseInteger(const char* text, uint64_t low, uint64_t high, uint64_t* value) {
  char* end = nullptr;
  errno = 0;
  *value = std::strtoull(text, &end, 0);
  return end != text && *end == 0 && errno == 0 && text[0] != '-' && *value >= low &&
         *value <= high;
}

bool parsePositive(const char* text, double most, double* value) {
  char* end = nullptr;
  *value = std::strtod(text, &end);
  return end != text && *end == 0 && *value > 0 && *value <= most;
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? value : nullptr;
}

}  // namespace

Result<Settings> readSettings() {
  Settings s;
  uint64_t number = 0;
  if (const char* v = variable("OL_SIM_DEVICES")) {
    if (!parseInteger(v, 1, 64, &number)) return bad("OL_SIM_DEVICES", v, "a number from 1 to 64");
    s.devices = static_cast<int>(number);
  }
  if (const char* v = variable("OL_SIM_VRAM")) {
    if (!parseSize(v, &s.vram_bytes) || s.vram_bytes < kPageBytes || s.vram_bytes > (4ull << 40))
      return bad("OL_SIM_VRAM", v, "a size from 2MiB to 4TiB, such as 64MiB");
    s.vram_bytes = s.vram_bytes / kPageBytes * kPageBytes;
  }
  if (const char* v = variable("OL_SIM_SEED")) {
    if (!parseInteger(v, 0, ~0ull, &number)) return bad("OL_SIM_SEED", v, "a number");
    s.seed = number;
  }
  if (const char* v = variable("OL_SIM_MODE")) {
    std::string words = v;
    for (size_t at = 0; at <= words.size();) {
      const size_t comma = std::min(words.find(',', at), words.size());
      const std::string word = words.substr(at, comma - at);
      at = comma + 1;
      if (word == "lazy") {
        s.lazy = true;
      } else if (word == "jitter") {
        s.jitter = true;
      } else if (word == "scribble") {
        s.scribble = true;
      } else if (!word.empty()) {
        return bad("OL_SIM_MODE", v, "lazy, jitter and scribble, separated by commas");
      }
    }
  }
  if (const char* v = variable("OL_SIM_CTXLOCK")) {
    if (!parseInteger(v, 0, 1, &number)) return bad("OL_SIM_CTXLOCK", v, "0 or 1");
    s.context_lock = number != 0;
  }
  if (const char* v = variable("OL_SIM_PEERS")) {
    if (!parseInteger(v, 0, 1, &number)) return bad("OL_SIM_PEERS", v, "0 or 1");
    s.peers = number != 0;
  }
  if (const char* v = variable("OL_SIM_HOST_NUMA")) {
    if (!parseInteger(v, 0, 1, &number)) return bad("OL_SIM_HOST_NUMA", v, "0 or 1");
    s.host_numa = number != 0;
  }
  if (const char* v = variable("OL_SIM_PARAM_INFO")) {
    if (!parseInteger(v, 0, 1, &number)) return bad("OL_SIM_PARAM_INFO", v, "0 or 1");
    s.param_info = number != 0;
  }
  if (const char* v = variable("OL_SIM_DMA_BUF")) {
    if (!parseInteger(v, 0, 1, &number)) return bad("OL_SIM_DMA_BUF", v, "0 or 1");
    s.dma_buf = number != 0;
  }
  if (const char* v = variable("OL_SIM_CAPABILITY")) {
    uint64_t major = 0, minor = 0;
    const std::string text = v;
    const size_t dot = text.find('.');
    if (dot == std::string::npos || !parseInteger(text.substr(0, dot).c_str(), 7, 12, &major) ||
        !parseInteger(text.substr(dot + 1).c_str(), 0, 9, &minor))
      return bad("OL_SIM_CAPABILITY", v, "a compute capability from 7.0 to 12.9");
    s.capability = static_cast<int>(10 * major + minor);
  }
  if (const char* v = variable("OL_SIM_SHARED_MEMORY")) {
    s.shared_memory.clear();
    const std::string words = v;
    for (size_t at = 0; at <= words.size();) {
      const size_t comma = std::min(words.find(',', at), words.size());
      if (!parseInteger(words.substr(at, comma - at).c_str(), kSharedMemory, kMostSharedMemory,
                        &number))
        return bad("OL_SIM_SHARED_MEMORY", v,
                   "numbers of bytes from 49152 to 232448, separated by commas");
      s.shared_memory.push_back(static_cast<int>(number));
      at = comma + 1;
    }
  }
  if (const char* v = variable("OL_SIM_SHARED_PINS")) {
    if (!parseInteger(v, 0, 2, &number)) return bad("OL_SIM_SHARED_PINS", v, "0, 1 or 2");
    s.shared_pins = static_cast<unsigned>(number);
  }
  if (const char* v = variable("OL_SIM_BANDWIDTH")) {
    if (!parsePositive(v, 1e6, &s.bandwidth))
      return bad("OL_SIM_BANDWIDTH", v, "GB/s of a device's link to the host, such as 25");
    s.bandwidth *= 1e9;
  }
  if (const char* v = variable("OL_SIM_HOST_MAKING")) {
    if (!parsePositive(v, 1e6, &s.host_making))
      return bad("OL_SIM_HOST_MAKING", v, "GB/s of host memory that is made, such as 1");
    s.host_making *= 1e9;
  }
  if (const char* v = variable("OL_SIM_MAPPING")) {
    if (!parsePositive(v, 1e6, &s.mapping))
      return bad("OL_SIM_MAPPING", v, "microseconds of a call that maps, such as 400");
    s.mapping *= 1e-6;
  }
  if (const char* v = variable("OL_SIM_SPEED")) {
    if (!parsePositive(v, 1e9, &s.speed))
      return bad("OL_SIM_SPEED", v, "how many times as fast events say that it is, such as 1000");
  }
  if (const char* v = variable("OL_SIM_CONNECTIONS")) {
    if (!parseInteger(v, 0, 1024, &number))
      return bad("OL_SIM_CONNECTIONS", v, "a number from 0 to 1024");
    s.connections = static_cast<unsigned>(number);
  }
  if (const char* v = variable("OL_SIM_DEAD_CONTEXTS")) {
    if (!parseInteger(v, 0, 1, &number)) return bad("OL_SIM_DEAD_CONTEXTS", v, "0 or 1");
    s.dead_contexts_end = number != 0;
  }
  if (const char* v = variable("OL_SIM_EXTRAS")) {
    if (!parseInteger(v, 0, 1, &number)) return bad("OL_SIM_EXTRAS", v, "0 or 1");
    s.extras = number != 0;
  }
  if (const char* v = variable("OL_SIM_THREADS")) {
    if (!parseInteger(v, 1, 1024, &number))
      return bad("OL_SIM_THREADS", v, "a number from 1 to 1024");
    s.threads = static_cast<unsigned>(number);
  }
  return s;
}

}  // namespace olpager::simgpu
