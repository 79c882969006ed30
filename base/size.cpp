#include "base/size.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/format.h"
#include "base/size_words.h"

namespace olpager::base {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

// The power of 1024 that a unit stands for: "", B, K, KB, KiB, ...
std::optional<unsigned> powerOf(std::string_view unit) {
  if (unit.empty()) return 0;
  std::string lower;
  for (char c : unit) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "b" || lower == "bytes") return 0;
  const auto power = std::string_view("kmgtp").find(lower[0]);
  const std::string_view rest = std::string_view(lower).substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib"))
    return std::nullopt;
  return static_cast<unsigned>(power) + 1;
}

// Unsigned decimal number (no exponent, no sign), from_chars so that no locale changes what it
// means.
std::optional<double> decimal(std::string_view text) {
  double value = 0;
  const auto [end, failure] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (failure != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value < 0)
    return std::nullopt;
  return value;
}

Error notASize(std::string_view text, std::string_view forms) {
  return Error{base::format("'{}' is not a size; allowed: {}", text, forms)};
}

Result<uint64_t> parse(std::string_view given, std::string_view forms) {
  const std::string_view text = trimmed(given);
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  if (hex) {
    uint64_t value = 0;
    const auto [end, failure] =
        std::from_chars(text.data() + 2, text.data() + text.size(), value, 16);
    if (failure != std::errc() || end != text.data() + text.size()) return notASize(given, forms);
    return value;
  }
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
    digits++;
  const std::string_view number = text.substr(0, digits);
  const auto power = powerOf(trimmed(text.substr(digits)));
  if (number.empty() || !power) return notASize(given, forms);

  const uint64_t unit = 1ull << (10 * *power);
  uint64_t whole = 0;
  const auto [end, failure] = std::from_chars(number.data(), number.data() + number.size(), whole);
  if (failure == std::errc() && end == number.data() + number.size()) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(whole, unit, &bytes))
      return Error{base::format("'{}' is larger than 2^64 bytes", given)};
    return bytes;
  }
  const auto value = decimal(number);
  if (!value) return notASize(given, forms);
  const double bytes = *value * static_cast<double>(unit);
  if (bytes >= 18446744073709551616.0)
    return Error{base::format("'{}' is larger than 2^64 bytes", given)};
  return static_cast<uint64_t>(bytes);
}

}  // namespace

Result<uint64_t> parseSize(std::string_view text) { return parse(text, kSizeForms); }

Result<Budget> parseBudget(std::string_view given) {
  const std::string_view text = trimmed(given);
  if (text.ends_with('%')) {
    const auto percent = decimal(trimmed(text.substr(0, text.size() - 1)));
    if (!percent) return notASize(given, kBudgetForms);
    if (*percent <= 0 || *percent > 100)
      return Error{base::format("'{}' is not above 0% and at most 100%", given)};
    return Budget{.bytes = 0, .percent = *percent};
  }
  auto bytes = parse(given, kBudgetForms);
  if (!bytes.ok()) return bytes.error();
  if (bytes.value() == 0)
    return Error{base::format("'{}' is no memory at all; allowed: {}", given, kBudgetForms)};
  return Budget{.bytes = bytes.value(), .percent = 0};
}

bool isUnit(std::string_view word) { return !word.empty() && powerOf(word).has_value(); }

Error belowPage(std::string_view text, uint64_t page_bytes) {
  if (text.find_first_not_of("0123456789.") != std::string_view::npos)
    return Error{
        base::format("'{}' is below one page; allowed: {} or more", text, exactSize(page_bytes))};
  return Error{base::format(
      "'{}' means bytes, less than one page ({}); say the unit in the same word, such as {}GiB",
      text, exactSize(page_bytes), text)};
}

std::string formatSize(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  unsigned power = 0;
  while (power < 6 && (bytes >> (10 * (power + 1))) != 0) power++;
  // Rounding up may reach the next unit: 1023.999 KiB is 1 MiB.
  double value = static_cast<double>(bytes) / static_cast<double>(1ull << (10 * power));
  double rounded = std::round(value * 100) / 100;
  if (rounded >= 1024 && power < 6) {
    rounded /= 1024;
    power++;
  }
  std::string text = base::format("{:.2f}", rounded);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + kUnits[power];
}

std::string exactSize(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  unsigned power = 0;
  while (power < 4 && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    power++;
  }
  return base::format("{}{}", bytes, kUnits[power]);
}

std::string exactBudget(const Budget& budget) {
  if (budget.percent != 0) return base::format("{}%", budget.percent);
  return budget.bytes == 0 ? std::string() : exactSize(budget.bytes);
}

}  // namespace olpager::base
