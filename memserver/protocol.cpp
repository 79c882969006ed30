#include "memserver/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <type_traits>

namespace olpager::memserver {

std::string LeaseId::text() const {
  return fmt::format("{:02x}{:02x}{:02x}{:02x}", bytes[0], bytes[1], bytes[2], bytes[3]);
}

namespace protocol {
namespace {

// The number of a type on the wire is its place in Body, from 1.
constexpr const char* kNames[] = {"hello",   "hello reply", "lease",   "lease reply",   "attach", "attach reply",
                                  "renew",   "renew reply", "release", "release reply", "state",  "state reply",
                                  "refusal", "recall",      "revoked", "goodbye"};
static_assert(std::size(kNames) == std::variant_size_v<Body>);

class Writer {
 public:
  template <typename T>
  requires std::is_unsigned_v<T>
  void operator()(const T& value) {
    for (size_t i = 0; i < sizeof value; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void operator()(const LeaseId& id) {
    for (const uint8_t byte : id.bytes) bytes_.push_back(std::byte{byte});
  }
  void operator()(const std::string& text) {
    const auto length = static_cast<uint16_t>(std::min(text.size(), kMaxText));
    (*this)(length);
    for (size_t i = 0; i < length; ++i) bytes_.push_back(static_cast<std::byte>(text[i]));
  }
  template <typename T>
  void list(const std::vector<T>& items, size_t most);
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// After the first thing that is wrong it yields zeros and says so.
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
  void operator()(LeaseId& id) {
    if (!have(id.bytes.size())) return;
    for (size_t i = 0; i < id.bytes.size(); ++i) id.bytes[i] = std::to_integer<uint8_t>(bytes_[i]);
    bytes_ = bytes_.subspan(id.bytes.size());
  }
  void operator()(std::string& text) {
    uint16_t length = 0;
    (*this)(length);
    if (length > kMaxText) fail("a text that is too long");
    if (!have(length)) return;
    text.assign(reinterpret_cast<const char*>(bytes_.data()), length);
    // It goes to logs and terminals.
    for (char& c : text) {
      if (c < ' ' || c > '~') c = '?';
    }
    bytes_ = bytes_.subspan(length);
  }
  template <typename T>
  void list(std::vector<T>& items, size_t most);

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

// Each type's fields, once for both directions.
template <typename Io, typename M>
concept Is = std::is_same_v<std::remove_const_t<Io>, M>;

template <typename Io>
void fields(Io& io, Is<Capacity> auto& m) {
  io(m.total), io(m.free), io(m.available), io(m.recalled), io(m.deadline_ms);
}
template <typename Io>
void fields(Io& io, Is<LeasedSlab> auto& m) {
  io(m.lease), io(m.bytes), io(m.key);
}
template <typename Io>
void fields(Io& io, Is<LeaseId> auto& m) {
  io(m);
}
template <typename Io>
void fields(Io& io, Is<StateRow> auto& m) {
  io(m.session), io(m.key_name), io(m.node), io(m.label), io(m.address), io(m.leases), io(m.bytes), io(m.recalled);
  io(m.connected), io(m.heard_ms), io(m.left_ms);
}
template <typename Io>
void fields(Io& io, Is<Hello> auto& m) {
  io(m.label);
}
template <typename Io>
void fields(Io& io, Is<HelloReply> auto& m) {
  io(m.instance), io(m.lease_ms), io(m.slab_bytes), fields(io, m.capacity);
}
template <typename Io>
void fields(Io& io, Is<Lease> auto& m) {
  io(m.bytes);
}
template <typename Io>
void fields(Io& io, Is<LeaseReply> auto& m) {
  io.list(m.slabs, kMaxLeases), io(m.why), fields(io, m.capacity);
}
template <typename Io>
void fields(Io& io, Is<Attach> auto& m) {
  io.list(m.leases, kMaxLeases);
}
template <typename Io>
void fields(Io& io, Is<AttachReply> auto& m) {
  io.list(m.slabs, kMaxLeases);
}
template <typename Io>
void fields(Io&, Is<Renew> auto&) {}
template <typename Io>
void fields(Io& io, Is<RenewReply> auto& m) {
  fields(io, m.capacity);
}
template <typename Io>
void fields(Io& io, Is<Release> auto& m) {
  io.list(m.leases, kMaxLeases);
}
template <typename Io>
void fields(Io& io, Is<ReleaseReply> auto& m) {
  fields(io, m.capacity);
}
template <typename Io>
void fields(Io& io, Is<State> auto& m) {
  io(m.first);
}
template <typename Io>
void fields(Io& io, Is<StateReply> auto& m) {
  io(m.donated), io(m.free), io(m.lent), io(m.cleaning), io(m.returned), io(m.uptime_ms), io(m.sessions);
  io(m.lending), io.list(m.rows, kMaxRows), io(m.next);
}
template <typename Io>
void fields(Io& io, Is<Refusal> auto& m) {
  io(m.why);
}
template <typename Io>
void fields(Io& io, Is<Recall> auto& m) {
  io(m.bytes), io(m.deadline_ms), io(m.why);
}
template <typename Io>
void fields(Io& io, Is<Revoked> auto& m) {
  io.list(m.leases, kMaxLeases), io(m.why);
}
template <typename Io>
void fields(Io&, Is<Goodbye> auto&) {}

template <typename T>
void Writer::list(const std::vector<T>& items, size_t most) {
  if (items.size() > most) std::abort();  // ours to keep
  (*this)(static_cast<uint16_t>(items.size()));
  for (const T& item : items) fields(*this, item);
}

template <typename T>
void Reader::list(std::vector<T>& items, size_t most) {
  uint16_t count = 0;
  (*this)(count);
  if (count > most) fail("a list that is too long");
  for (size_t i = 0; i < count && wrong_.empty(); ++i) {
    items.emplace_back();
    fields(*this, items.back());
  }
}

template <size_t I = 0>
void decodeBody(Reader& reader, size_t type, Body& body) {
  if constexpr (I < std::variant_size_v<Body>) {
    if (type == I) {
      fields(reader, body.template emplace<I>());
    } else {
      decodeBody<I + 1>(reader, type, body);
    }
  }
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Writer writer;
  writer(kVersion);
  writer(static_cast<uint16_t>(message.body.index() + 1));
  writer(message.number);
  std::visit([&](const auto& body) { fields(writer, body); }, message.body);
  return writer.take();
}

Result<Message> decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  uint16_t version = 0, type = 0;
  Message message;
  reader(version), reader(type), reader(message.number);
  if (!reader.wrong().empty()) return Error{"a message without a head"};
  if (version != kVersion) return Error{fmt::format("a message of version {}; this is version {}", version, kVersion)};
  if (type == 0 || type > std::variant_size_v<Body>) return Error{fmt::format("a message of unknown type {}", type)};
  decodeBody(reader, type - 1u, message.body);
  if (!reader.wrong().empty()) return Error{fmt::format("a {} message: {}", kNames[type - 1], reader.wrong())};
  if (reader.left() != 0) {
    return Error{fmt::format("a {} message with {} bytes too many", kNames[type - 1], reader.left())};
  }
  return message;
}

const char* bodyName(const Body& body) { return kNames[body.index()]; }

}  // namespace protocol
}  // namespace olpager::memserver
