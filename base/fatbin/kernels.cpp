#include "base/fatbin/kernels.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "base/fatbin/cubin.h"
#include "base/fatbin/fatbin.h"

namespace olpager::fatbin {
namespace {

using Sizes = std::vector<uint32_t>;

void note(KernelTable& table, std::string_view name, Sizes sizes) {
  const auto [found, fresh] = table.kernels.try_emplace(std::string(name), sizes);
  if (fresh) return;
  Sizes& known = found->second;
  if (known.size() < sizes.size()) known.swap(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) known[i] = std::max(known[i], sizes[i]);
}

void fromCubin(Bytes elf, KernelTable& table) {
  const auto cubin = readCubin(elf);
  if (!cubin.ok()) {
    table.whole = false;
    return;
  }
  for (const Kernel& kernel : cubin.value().kernels) {
    Sizes sizes;
    for (const Parameter& one : kernel.parameters) {
      if (one.ordinal != sizes.size()) break;
      sizes.push_back(one.size);
    }
    // A block without a record for each parameter does not tell the parameters.
    if (sizes.size() != kernel.parameters.size() || (sizes.empty() && kernel.parameter_bytes != 0))
      table.whole = false;
    else
      note(table, kernel.name, std::move(sizes));
  }
}

constexpr std::string_view kBlank = " \t\r\n", kMarks = "()[]{},;";

// The words of PTX text and its marks, without comments. Empty: the end.
class Words {
 public:
  explicit Words(std::string_view text) : left_(text) {}
  std::string_view next() {
    skipBlank();
    if (left_.empty()) return {};
    const bool mark = kMarks.find(left_.front()) != std::string_view::npos;
    const size_t end = mark ? 1 : std::min(left_.find_first_of(" \t\r\n()[]{},;/"), left_.size());
    const std::string_view word = left_.substr(0, std::max<size_t>(end, 1));
    left_.remove_prefix(word.size());
    return word;
  }

 private:
  void skipBlank() {
    for (;;) {
      left_.remove_prefix(std::min(left_.find_first_not_of(kBlank), left_.size()));
      if (left_.starts_with("//"))
        skipTo("\n");
      else if (left_.starts_with("/*"))
        skipTo("*/");
      else
        return;
    }
  }
  void skipTo(std::string_view end) {
    const size_t at = left_.find(end, 2);
    left_.remove_prefix(at == std::string_view::npos ? left_.size() : at + end.size());
  }

  std::string_view left_;
};

std::optional<uint32_t> numberIn(std::string_view digits) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// Bytes of a value of a type: ".u64" has 8. 0: the word is no type that a parameter has.
uint32_t bytesOfType(std::string_view word) {
  if (word == ".texref" || word == ".samplerref" || word == ".surfref") return 8;
  if (word.size() < 3 || std::string_view("busf").find(word[1]) == std::string_view::npos) return 0;
  const auto bits = numberIn(word.substr(2));
  return bits && *bits >= 8 && *bits <= 128 && *bits % 8 == 0 ? *bits / 8 : 0;
}

// Behind ".entry": the name and, in parentheses, ".param .align 8 .b8 name[24], ...". False: it is
// written as no compiler does.
bool readEntry(std::string_view text, KernelTable& table) {
  Words words(text);
  const std::string_view name = words.next();
  if (name.empty() || kMarks.find(name.front()) != std::string_view::npos) return false;
  Sizes sizes;
  if (words.next() != "(") {  // no parameters
    note(table, name, {});
    return true;
  }
  uint64_t bytes = 0, count = 1;
  std::string_view word = words.next();
  if (word == ")") {
    note(table, name, {});
    return true;
  }
  for (;; word = words.next()) {
    if (word.empty()) return false;
    if (word == ".align") {
      (void)words.next();
    } else if (word == "[") {
      const auto elements = numberIn(words.next());
      if (!elements || words.next() != "]") return false;
      count *= *elements;
      if (count > UINT16_MAX) return false;
    } else if (word == "," || word == ")") {
      if (bytes == 0) return false;
      sizes.push_back(static_cast<uint32_t>(bytes * count));
      bytes = 0, count = 1;
      if (word == ")") break;
    } else if (const uint32_t type = word.front() == '.' ? bytesOfType(word) : 0; type != 0) {
      bytes = type;
    }
  }
  note(table, name, std::move(sizes));
  return true;
}

void fromPtx(std::string_view text, KernelTable& table) {
  constexpr std::string_view kEntry = ".entry";
  for (size_t at = text.find(kEntry); at != std::string_view::npos; at = text.find(kEntry, at)) {
    const bool word = at == 0 || kBlank.find(text[at - 1]) != std::string_view::npos;
    at += kEntry.size();
    if (!word || at == text.size() || kBlank.find(text[at]) == std::string_view::npos) continue;
    if (!readEntry(text.substr(at), table)) table.whole = false;
  }
}

}  // namespace

// A cubin and PTX text by themselves are entries that are not packed.
KernelReader::KernelReader(Bytes code) {
  const auto found = identify(code);
  table_.whole = found.ok();
  if (!found.ok()) return;
  const Image& image = found.value();
  if (image.form != Image::Form::container) {
    entries_.push_back({.kind = image.form == Image::Form::elf ? Kind::elf : Kind::ptx,
                        .uncompressed_size = image.bytes.size(),
                        .payload = image.bytes});
    return;
  }
  auto all = entries(image.bytes);
  table_.whole = all.ok();
  if (!all.ok()) return;
  entries_ = std::move(all).value();
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& one, const Entry& other) {
    return one.payload.size() < other.payload.size();
  });
}

bool KernelReader::readNext() {
  if (allRead()) return false;
  read(entries_[next_++]);
  return true;
}

void KernelReader::read(const Entry& entry) {
  if (entry.compression == Compression::none && entry.kind == Kind::elf)
    return fromCubin(entry.payload, table_);
  if (entry.kind == Kind::elf) {
    if (const auto elf = contents(entry); elf.ok()) return fromCubin(elf.value(), table_);
  } else if (entry.kind == Kind::ptx) {
    if (const auto text = ptxText(entry); text.ok()) return fromPtx(text.value(), table_);
  }
  table_.whole = false;
}

KernelTable kernelsOf(Bytes image) {
  KernelReader reader(image);
  while (reader.readNext()) {
  }
  return reader.table();
}

}  // namespace olpager::fatbin
