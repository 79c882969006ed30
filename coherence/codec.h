// Fields of messages between nodes, little-endian, one after the other; texts and lists with their
// length (16 bits) before them. A message's fields are written down once, as a function of either:
// io(m.first), io(m.second), ...
//
// The Reader is for bytes from elsewhere: it never reads beyond them, bounds every length, and
// after the first thing that is wrong yields zeros. Texts come out as printable ASCII, since they
// go to logs and terminals. Thread-safety: none shared.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace olpager::codec {

inline constexpr size_t kMaxText = 256;  // longer ones are cut by the Writer, refused by the Reader

class Writer {
 public:
  template <typename T>
  requires std::is_unsigned_v<T>
  void operator()(const T& value) {
    for (size_t i = 0; i < sizeof value; ++i)
      bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  template <size_t N>
  void operator()(const std::array<uint8_t, N>& bytes) {
    for (const uint8_t byte : bytes) bytes_.push_back(std::byte{byte});
  }
  void operator()(const std::string& text) {
    const auto length = static_cast<uint16_t>(std::min(text.size(), kMaxText));
    (*this)(length);
    for (size_t i = 0; i < length; ++i) bytes_.push_back(static_cast<std::byte>(text[i]));
  }
  /// `each(item)` writes one. More than `most` is a mistake of ours.
  template <typename T, typename Each>
  void list(const std::vector<T>& items, size_t most, Each&& each) {
    if (items.size() > most) std::abort();
    (*this)(static_cast<uint16_t>(items.size()));
    for (const T& item : items) each(item);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  requires std::is_unsigned_v<T>
  void operator()(T& value) {
    value = 0;
    if (!have(sizeof value)) return;
    for (size_t i = 0; i < sizeof value; ++i) {
      value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(bytes_[i]) << (8 * i)));
    }
    bytes_ = bytes_.subspan(sizeof value);
  }
  template <size_t N>
  void operator()(std::array<uint8_t, N>& bytes) {
    if (!have(N)) return;
    for (size_t i = 0; i < N; ++i) bytes[i] = std::to_integer<uint8_t>(bytes_[i]);
    bytes_ = bytes_.subspan(N);
  }
  void operator()(std::string& text) {
    uint16_t length = 0;
    (*this)(length);
    if (length > kMaxText) fail("a text that is too long");
    if (!have(length)) return;
    text.assign(reinterpret_cast<const char*>(bytes_.data()), length);
    for (char& c : text) {
      if (c < ' ' || c > '~') c = '?';
    }
    bytes_ = bytes_.subspan(length);
  }
  template <typename T, typename Each>
  void list(std::vector<T>& items, size_t most, Each&& each) {
    uint16_t count = 0;
    (*this)(count);
    if (count > most) fail("a list that is too long");
    for (size_t i = 0; i < count && wrong_.empty(); ++i) {
      items.emplace_back();
      each(items.back());
    }
  }

  /// The first thing that was wrong; "" while nothing is.
  const std::string& wrong() const { return wrong_; }
  size_t left() const { return bytes_.size(); }

 private:
  bool have(size_t count) {
    if (wrong_.empty() && bytes_.size() < count) fail("it ends too early");
    return wrong_.empty();
  }
  void fail(const char* why) {
    if (wrong_.empty()) wrong_ = why;
  }
  std::span<const std::byte> bytes_;
  std::string wrong_;
};

/// Either of both, with a message's type: `auto& m` is const for a Writer.
template <typename Io, typename M>
concept Is = std::is_same_v<std::remove_const_t<Io>, M>;

}  // namespace olpager::codec
