#include "memserver/protocol.h"

#include "base/format.h"
#include "coherence/codec.h"

namespace olpager::memserver {

std::string LeaseId::text() const {
  return base::format("{:02x}{:02x}{:02x}{:02x}", bytes[0], bytes[1], bytes[2], bytes[3]);
}

namespace protocol {
namespace {

// The number of a type on the wire is its place in Body, from 1.
constexpr const char* kNames[] = {"hello",   "hello reply",   "lease",   "lease reply",
                                  "attach",  "attach reply",  "renew",   "renew reply",
                                  "release", "release reply", "refusal", "recall",
                                  "revoked", "goodbye"};
static_assert(std::size(kNames) == std::variant_size_v<Body>);

using codec::Is;
using codec::Reader;
using codec::Writer;

// Each type's fields, once for both directions.
template <typename Io>
void fields(Io& io, Is<Capacity> auto& m) {
  io(m.total), io(m.free), io(m.available), io(m.recalled), io(m.deadline_ms);
}
template <typename Io>
void fields(Io& io, Is<LeasedSlab> auto& m) {
  io(m.lease.bytes), io(m.bytes), io(m.key);
}
template <typename Io>
void fields(Io& io, Is<LeaseId> auto& m) {
  io(m.bytes);
}
template <typename Io, typename Items>
void listOf(Io& io, Items& items) {
  io.list(items, kMaxLeases, [&](auto& item) { fields(io, item); });
}
template <typename Io>
void fields(Io& io, Is<Hello> auto& m) {
  io(m.label);
}
template <typename Io>
void fields(Io& io, Is<HelloReply> auto& m) {
  io(m.instance.bytes), io(m.lease_ms), io(m.slab_bytes), fields(io, m.capacity);
}
template <typename Io>
void fields(Io& io, Is<Lease> auto& m) {
  io(m.bytes);
}
template <typename Io>
void fields(Io& io, Is<LeaseReply> auto& m) {
  listOf(io, m.slabs), io(m.why), fields(io, m.capacity);
}
template <typename Io>
void fields(Io& io, Is<Attach> auto& m) {
  listOf(io, m.leases);
}
template <typename Io>
void fields(Io& io, Is<AttachReply> auto& m) {
  listOf(io, m.slabs);
}
template <typename Io>
void fields(Io&, Is<Renew> auto&) {}
template <typename Io>
void fields(Io& io, Is<RenewReply> auto& m) {
  fields(io, m.capacity);
}
template <typename Io>
void fields(Io& io, Is<Release> auto& m) {
  listOf(io, m.leases);
}
template <typename Io>
void fields(Io& io, Is<ReleaseReply> auto& m) {
  fields(io, m.capacity);
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
  listOf(io, m.leases), io(m.why);
}
template <typename Io>
void fields(Io&, Is<Goodbye> auto&) {}

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
  if (version != kVersion)
    return Error{base::format("a message of version {}; this is version {}", version, kVersion)};
  if (type == 0 || type > std::variant_size_v<Body>)
    return Error{base::format("a message of unknown type {}", type)};
  decodeBody(reader, type - 1u, message.body);
  if (!reader.wrong().empty())
    return Error{base::format("a {} message: {}", kNames[type - 1], reader.wrong())};
  if (reader.left() != 0) {
    return Error{
        base::format("a {} message with {} bytes too many", kNames[type - 1], reader.left())};
  }
  return message;
}

bool isRenewal(std::span<const std::byte> bytes) {
  constexpr size_t kHeadBytes = 2 * sizeof(uint16_t) + sizeof(uint64_t);  // it has no fields
  if (bytes.size() != kHeadBytes) return false;
  const auto message = decode(bytes);
  return message.ok() && std::holds_alternative<Renew>(message.value().body);
}

const char* bodyName(const Body& body) { return kNames[body.index()]; }

}  // namespace protocol
}  // namespace olpager::memserver
