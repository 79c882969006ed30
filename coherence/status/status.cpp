#include "coherence/status/status.h"

#include <algorithm>
#include <iterator>

#include "coherence/codec.h"

namespace olpager::status {
namespace {

using codec::Is;
using codec::Reader;
using codec::Writer;

enum class Type : uint16_t { kQuestion = 1, kAnswer = 2 };

// Each type's fields, once for both directions.
template <typename Io>
void fields(Io& io, Is<Tier> auto& m) {
  io(m.name), io(m.total), io(m.used), io(m.free);
}
template <typename Io>
void fields(Io& io, Is<Figure> auto& m) {
  io(m.name), io(m.value);
}
template <typename Io>
void fields(Io& io, Is<Device> auto& m) {
  io(m.name), io(m.uuid), io(m.pci_domain), io(m.pci_bus), io(m.pci_device), io(m.pci_id),
      io(m.pci_subsystem), io(m.minor);
  io(m.compute_major), io(m.compute_minor), io(m.multiprocessors), io(m.peers), io(m.total),
      io(m.used), io(m.free);
  io(m.gpu_percent), io(m.memory_percent), io(m.temperature), io(m.power_mw), io(m.power_limit_mw),
      io(m.sm_mhz), io(m.memory_mhz);
}
template <typename Io>
void fields(Io& io, Is<Session> auto& m) {
  io(m.number), io(m.key_name), io(m.node), io(m.program), io(m.address), io(m.transport);
  io.list(m.bytes, kMaxTiers, [&](auto& bytes) { io(bytes); });
  io.list(m.budgets, kMaxTiers, [&](auto& bytes) { io(bytes); });
  io(m.calls), io(m.process), io(m.state);
  io(m.pieces), io(m.recalled), io(m.moved), io(m.connected), io(m.heard_ms), io(m.left_ms);
}
template <typename Io>
void fields(Io& io, Is<Question> auto& m) {
  io(m.number), io(m.first);
}
template <typename Io>
void fields(Io& io, Is<Answer> auto& m) {
  io(m.number), io(m.status.kind), io(m.status.uptime_ms), io(m.status.serving),
      io(m.status.session_count);
  io(m.status.driver), io(m.status.cuda_version);
  const auto each = [&](auto& item) { fields(io, item); };
  io.list(m.status.devices, kMaxDevices, each);
  io.list(m.status.tiers, kMaxTiers, each);
  io.list(m.status.figures, kMaxFigures, each);
  io.list(m.status.sessions, kMaxRows, each);
  io(m.status.next);
}

template <typename M>
std::vector<std::byte> encoded(Type type, const M& message) {
  Writer writer;
  writer(kMagic), writer(kVersion), writer(static_cast<uint16_t>(type));
  fields(writer, message);
  return writer.take();
}

template <typename M>
Result<M> decoded(Type type, const char* what, std::span<const std::byte> bytes) {
  Reader reader(bytes);
  uint32_t magic = 0;
  uint16_t version = 0, number = 0;
  reader(magic), reader(version), reader(number);
  if (!reader.wrong().empty() || magic != kMagic || number != static_cast<uint16_t>(type))
    return Error{std::string("this is no ") + what};
  if (version != kVersion)
    return Error{std::string(what) + " of version " + std::to_string(version) +
                 "; this is version " + std::to_string(kVersion)};
  M message;
  fields(reader, message);
  if (!reader.wrong().empty()) return Error{std::string(what) + ": " + reader.wrong()};
  if (reader.left() != 0) return Error{std::string(what) + " with bytes too many"};
  return message;
}

}  // namespace

uint64_t Status::figure(std::string_view name) const {
  const auto found = std::find_if(figures.begin(), figures.end(),
                                  [&](const Figure& each) { return each.name == name; });
  return found == figures.end() ? 0 : found->value;
}

bool isQuestion(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  uint32_t magic = 0;
  uint16_t version = 0, type = 0;
  reader(magic), reader(version), reader(type);
  return reader.wrong().empty() && magic == kMagic &&
         type == static_cast<uint16_t>(Type::kQuestion);
}

std::vector<std::byte> encode(const Question& question) {
  return encoded(Type::kQuestion, question);
}
std::vector<std::byte> encode(const Answer& answer) { return encoded(Type::kAnswer, answer); }
Result<Question> decodeQuestion(std::span<const std::byte> bytes) {
  return decoded<Question>(Type::kQuestion, "a question for the status", bytes);
}
Result<Answer> decodeAnswer(std::span<const std::byte> bytes) {
  return decoded<Answer>(Type::kAnswer, "a status", bytes);
}

}  // namespace olpager::status
