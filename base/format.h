// Text from format strings of fmt, which are checked at compile time. fmt itself is compiled once,
// in format.cpp: a file that includes <fmt/format.h> takes two seconds longer to compile, and a
// library inside somebody else's program has no other program's libfmt under it.
//
// Thread-safety: any thread. Errors: std::bad_alloc; print() also throws std::system_error when the
// stream can't be written to.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>

namespace olpager::base {

std::string formatArguments(fmt::string_view text, fmt::format_args values);
void printArguments(std::FILE* file, fmt::string_view text, fmt::format_args values);

template <typename... Value>
[[nodiscard]] std::string format(fmt::format_string<Value...> text, Value&&... values) {
  return formatArguments(text, fmt::make_format_args(values...));
}

/// To `file`, or to standard output.
template <typename... Value>
void print(std::FILE* file, fmt::format_string<Value...> text, Value&&... values) {
  printArguments(file, text, fmt::make_format_args(values...));
}
template <typename... Value>
void print(fmt::format_string<Value...> text, Value&&... values) {
  printArguments(stdout, text, fmt::make_format_args(values...));
}

}  // namespace olpager::base
