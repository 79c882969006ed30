#include "interpose/forward/code_state.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/fatbin/cubin.h"
#include "base/fatbin/fatbin.h"

namespace olpager::forward {
namespace {

// True for global memory that no kernel changes: literals, by nvcc's names of them (formats of
// printf, expressions of assert), and objects without members that stand for themselves in CUDA's
// C++ libraries (thrust::seq, cuda::std::in_place), which each program that includes their headers
// has.
bool isConstant(std::string_view name) {
  if (name.starts_with("$str") || name.starts_with("__unnamed_")) return true;
  constexpr std::string_view kLibraries[] = {"6thrust", "4cuda3std", "3cub"};  // as mangled
  return name.starts_with("_ZN") &&
         std::any_of(std::begin(kLibraries), std::end(kLibraries), [&](std::string_view library) {
           return name.find(library) != std::string_view::npos;
         });
}

void fromCubin(fatbin::Bytes elf, CodeState& state) {
  const auto cubin = fatbin::readCubin(elf);
  state.readable = cubin.ok();
  if (!cubin.ok()) return;
  state.places = !cubin.value().variables.empty();
  for (const fatbin::Variable& one : cubin.value().variables) {
    if (one.space == fatbin::Space::global && !isConstant(one.name))
      state.names.push_back(one.name);
  }
}

// Declarations are ".global .align 4 .u32 name;", maybe with "[n]" and an initial value behind the
// name; instructions have ".global" behind another word.
void fromPtx(std::string_view text, CodeState& state) {
  constexpr std::string_view kSpace = ".global ", kBlank = " \t\r\n";
  state.places = text.find(".const ") != std::string_view::npos;
  for (size_t at = text.find(kSpace); at != std::string_view::npos;
       at = text.find(kSpace, at + kSpace.size())) {
    if (at != 0 && kBlank.find(text[at - 1]) == std::string_view::npos) continue;
    state.places = true;
    std::string_view declared = text.substr(at + kSpace.size());
    declared = declared.substr(0, declared.find_first_of("[=;{"));
    const size_t last = declared.find_last_not_of(kBlank);
    declared = declared.substr(0, last == std::string_view::npos ? 0 : last + 1);
    const size_t before = declared.find_last_of(kBlank);
    const std::string_view name =
        declared.substr(before == std::string_view::npos ? 0 : before + 1);
    if (!isConstant(name)) state.names.emplace_back(name);
  }
}

}  // namespace

CodeState stateOf(std::span<const std::byte> image) {
  CodeState state;
  const fatbin::Bytes bytes{reinterpret_cast<const uint8_t*>(image.data()), image.size()};
  const auto whole = fatbin::identify(bytes);
  if (whole.ok() && whole.value().form == fatbin::Image::Form::elf) {
    fromCubin(bytes, state);
    return state;
  }
  if (whole.ok() && whole.value().form == fatbin::Image::Form::ptx) {
    fromPtx({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, state);
    return state;
  }
  const auto entries = whole.ok() ? fatbin::entries(whole.value().bytes)
                                  : Result<std::vector<fatbin::Entry>>(whole.error());
  // All are of one source, for several architectures: the first that can be read tells.
  for (const fatbin::Entry& entry : entries.ok() ? entries.value() : std::vector<fatbin::Entry>{}) {
    if (entry.kind == fatbin::Kind::ptx) {
      if (const auto text = fatbin::ptxText(entry); text.ok()) {
        fromPtx(text.value(), state);
        return state;
      }
    } else if (entry.kind == fatbin::Kind::elf) {
      if (const auto elf = fatbin::contents(entry); elf.ok()) {
        fromCubin(elf.value(), state);
        return state;
      }
    }
  }
  state.readable = false;
  return state;
}

}  // namespace olpager::forward
