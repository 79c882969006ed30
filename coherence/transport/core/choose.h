// Chooses the transport for a pair of nodes: the one place that knows, for both ends.
//
// Each end has a set of kinds: those that its setting allows and its host has. The connector says
// its set, the acceptor takes the best one of both sets, the connector checks that the answer is in
// its own. If the chosen kind can't be had after all (a socket that is in another container, a
// device without a path), the connector takes it out of its set and connects anew.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "coherence/transport/core/address.h"
#include "coherence/transport/transport.h"

namespace olpager::transport {

/// A set of LinkKinds; on the wire its bits.
class Kinds {
 public:
  constexpr Kinds() = default;
  constexpr Kinds(std::initializer_list<LinkKind> kinds) {
    for (const LinkKind kind : kinds) bits_ |= bitOf(kind);
  }
  static constexpr Kinds fromBits(uint8_t bits) {
    Kinds kinds;
    kinds.bits_ = bits;
    return kinds;
  }
  constexpr uint8_t bits() const { return bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool has(LinkKind kind) const { return (bits_ & bitOf(kind)) != 0; }
  constexpr void remove(LinkKind kind) { bits_ &= static_cast<uint8_t>(~bitOf(kind)); }
  constexpr Kinds operator&(Kinds other) const { return fromBits(bits_ & other.bits_); }
  constexpr bool operator==(const Kinds&) const = default;
  /// The only one in it.
  std::optional<LinkKind> single() const;
  /// "shm, tcp"
  std::string text() const;

 private:
  static constexpr uint8_t bitOf(LinkKind kind) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(kind));
  }
  uint8_t bits_ = 0;
};

/// The kinds that a setting allows.
Kinds allowedBy(Choice choice);

/// The kinds that an end has for a pair, before it knows more of the other end.
struct OwnKinds {
  Kinds kinds;
  std::string no_verbs;  // one line: why RDMA is not among them; "" where it is, or the setting
                         // does not want it
};
/// `local`: this end's address of the pair's first connection; `tls`: what is to be encrypted, as
/// far as is known; `rails`: this end's cards, if they count (both ends have some).
OwnKinds ownKinds(Choice choice, const SocketAddress& local, Tls tls,
                  std::span<const SocketAddress> rails);
/// The best that both sets have; none where they have nothing in common.
std::optional<LinkKind> choose(Kinds one, Kinds other);

}  // namespace olpager::transport
