#include "coherence/transport/core/choose.h"

#include <algorithm>

#include "coherence/transport/verbs/card.h"

namespace olpager::transport {
namespace {

// Shared memory is one copy and no network.
constexpr LinkKind kBestFirst[] = {LinkKind::kShm, LinkKind::kVerbs, LinkKind::kTcp};

}  // namespace

std::optional<LinkKind> Kinds::single() const {
  for (const LinkKind kind : kBestFirst) {
    if (*this == Kinds{kind}) return kind;
  }
  return std::nullopt;
}

std::string Kinds::text() const {
  std::string all;
  for (const LinkKind kind : kBestFirst) {
    if (has(kind)) all += (all.empty() ? "" : ", ") + std::string(linkKindName(kind));
  }
  return all.empty() ? "nothing" : all;
}

Kinds allowedBy(Choice choice) {
  switch (choice) {
    case Choice::kAuto:
      return {LinkKind::kShm, LinkKind::kVerbs, LinkKind::kTcp};
    case Choice::kTcp:
      return {LinkKind::kTcp};
    case Choice::kShm:
      return {LinkKind::kShm};
    case Choice::kVerbs:
      return {LinkKind::kVerbs};
  }
  return {};
}

OwnKinds ownKinds(Choice choice, const SocketAddress& local, Tls tls,
                  std::span<const SocketAddress> rails) {
  OwnKinds own{allowedBy(choice), ""};
  if (!own.kinds.has(LinkKind::kVerbs)) return own;
  if (tls == Tls::kAll) {
    own.no_verbs =
        "with tls = all everything is encrypted, which RDMA can't; tls = control allows it";
  } else if (std::none_of(rails.begin(), rails.end(), [](const SocketAddress& rail) {
               return verbs::whyNoCardAt(rail).empty();
             })) {
    own.no_verbs = verbs::whyNoCardAt(local);
  }
  if (!own.no_verbs.empty()) own.kinds.remove(LinkKind::kVerbs);
  return own;
}

std::optional<LinkKind> choose(Kinds one, Kinds other) {
  for (const LinkKind kind : kBestFirst) {
    if ((one & other).has(kind)) return kind;
  }
  return std::nullopt;
}

}  // namespace olpager::transport
