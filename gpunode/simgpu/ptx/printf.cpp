// Device printf and assert. printf returns the number of its arguments, a width or precision of "*"
// counted. The arguments lie in a buffer in the thread's memory, each aligned to its size: int as 4
// bytes, long and pointers as 8, double as 8.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

constexpr std::size_t kMaxText = 8192;

/// Reads a thread's memory; false once an address was illegal (the warp's fault is set).
class Reader {
 public:
  Reader(Warp& warp, std::uint32_t lane) : warp_(warp), lane_(lane) {}
  bool ok() const { return ok_; }

  template <typename T>
  T read(std::uint64_t address) {
    T value{};
    if (const std::byte* p = ok_ ? warp_.resolve(address, lane_, sizeof(T), false) : nullptr;
        p != nullptr) {
      std::memcpy(&value, p, sizeof value);
    } else {
      ok_ = false;
    }
    return value;
  }

  std::string text(std::uint64_t address) {
    std::string out;
    if (address == 0) return "(null)";
    while (out.size() < kMaxText) {
      const char c = read<char>(address++);
      if (c == 0) break;
      out += c;
    }
    return out;
  }

 private:
  Warp& warp_;
  std::uint32_t lane_;
  bool ok_ = true;
};

template <typename... Args>
void append(std::string& out, const std::string& spec, Args... args) {
  char buffer[1024];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
  // `spec` holds one conversion, put together by format() from checked characters.
  const int n = std::snprintf(buffer, sizeof buffer, spec.c_str(), args...);
#pragma GCC diagnostic pop
  if (n > 0)
    out.append(buffer, std::min<std::size_t>(static_cast<std::size_t>(n), sizeof buffer - 1));
}

std::string format(Reader& reader, const std::string& text, std::uint64_t arguments, int& count) {
  std::string out;
  std::uint64_t at = arguments;
  const auto next4 = [&] {
    at = (at + 3) & ~std::uint64_t{3};
    ++count;
    at += 4;
    return reader.read<std::int32_t>(at - 4);
  };
  const auto next8 = [&] {
    at = (at + 7) & ~std::uint64_t{7};
    ++count;
    at += 8;
    return at - 8;
  };
  for (std::size_t i = 0; i < text.size() && reader.ok(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const std::size_t begin = i++;
    std::string spec = "%";
    while (i < text.size() && std::strchr("-+ #0", text[i]) != nullptr) spec += text[i++];
    const auto number = [&] {
      if (i < text.size() && text[i] == '*') {
        ++i;
        spec += std::to_string(next4());
        return;
      }
      while (i < text.size() && text[i] >= '0' && text[i] <= '9') spec += text[i++];
    };
    number();
    if (i < text.size() && text[i] == '.') {
      spec += text[i++];
      number();
    }
    bool wide = false;
    while (i < text.size() && std::strchr("hljztL", text[i]) != nullptr) {
      wide = wide || std::strchr("ljzt", text[i]) != nullptr;
      ++i;
    }
    if (i >= text.size()) {
      out += text.substr(begin);
      break;
    }
    const char conversion = text[i];
    switch (conversion) {
      case '%':
        out += '%';
        break;
      case 'd':
      case 'i':
        if (wide)
          append(out, spec + "ll" + conversion, reader.read<long long>(next8()));
        else
          append(out, spec + conversion, next4());
        break;
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        if (wide)
          append(out, spec + "ll" + conversion, reader.read<unsigned long long>(next8()));
        else
          append(out, spec + conversion, static_cast<unsigned>(next4()));
        break;
      case 'c':
        append(out, spec + conversion, next4());
        break;
      case 'a':
      case 'A':
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        append(out, spec + conversion, reader.read<double>(next8()));
        break;
      case 'p':
        append(out, spec + "p", reinterpret_cast<void*>(reader.read<std::uint64_t>(next8())));
        break;
      case 's': {
        const std::string string = reader.text(reader.read<std::uint64_t>(next8()));
        if (spec == "%")
          out += string;
        else
          append(out, spec + "s", string.c_str());
        break;
      }
      default:
        out += text.substr(begin, i - begin + 1);
        break;
    }
  }
  return out;
}

template <typename T>
T argument(const Warp& w, const CallSite& site, std::size_t i, std::uint32_t lane) {
  T value{};
  if (i < site.arguments.size()) {
    std::memcpy(&value,
                w.frame->params + std::size_t{lane} * w.frame->function->param_bytes +
                    site.arguments[i].offset,
                std::min<std::size_t>(sizeof value, site.arguments[i].size));
  }
  return value;
}

// The text of a lane's failed assertion, as native CUDA prints it.
std::string assertionText(Warp& w, const CallSite& site, std::uint32_t lane) {
  Reader reader(w, lane);
  const std::string message = reader.text(argument<std::uint64_t>(w, site, 0, lane));
  const std::string file = reader.text(argument<std::uint64_t>(w, site, 1, lane));
  const auto line = argument<std::uint32_t>(w, site, 2, lane);
  const std::string function = reader.text(argument<std::uint64_t>(w, site, 3, lane));
  const Dim3& block = w.block->index;
  char where[128];
  std::snprintf(where, sizeof where, "block: [%u,%u,%u], thread: [%u,%u,%u]", block.x, block.y,
                block.z, w.tid[0][lane], w.tid[1][lane], w.tid[2][lane]);
  return file + ":" + std::to_string(line) + ": " + function + ": " + where + " Assertion `" +
         message + "` failed.\n";
}

}  // namespace

Step devicePrintf(Warp& w, const CallSite& site) {
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(left));
    Reader reader(w, lane);
    int count = -1;  // what printf returns where there is no format
    if (const auto text = argument<std::uint64_t>(w, site, 0, lane); text != 0) {
      count = 0;
      const std::string out =
          format(reader, reader.text(text), argument<std::uint64_t>(w, site, 1, lane), count);
      if (!reader.ok()) return Step::kFault;
      w.block->launch->sink->write(out);
    }
    if (!site.returns.empty()) {
      std::memcpy(w.frame->params + std::size_t{lane} * w.frame->function->param_bytes +
                      site.returns[0].offset,
                  &count, std::min<std::size_t>(sizeof count, site.returns[0].size));
    }
  }
  return Step::kNext;
}

Step deviceAssertFail(Warp& w, const CallSite& site) {
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(left));
    w.block->launch->sink->assertion(assertionText(w, site, lane));
  }
  return w.fail(LaunchStatus::kAssert, "");
}

}  // namespace olpager::simgpu::ptx
