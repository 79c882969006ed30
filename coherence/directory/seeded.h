// Rules of the protocol that tests break, one at a time, to see that they notice. In the product
// every rule holds, at no cost.
#pragma once

#include <cstddef>
#include <cstdint>
#ifdef OLPAGER_SEEDED_FAULTS
#include <stdexcept>
#endif

namespace olpager::directory {

enum class Rule : uint8_t {
  kAll,                 // nothing is broken
  kOlderClaimHolds,     // 1  a Yield waits for older claims
  kSubmittedHolds,      // 1  a Yield waits for what is submitted
  kUntoldHolds,         // 1  and for what the agent is not told of
  kYoungerClaimYields,  // 1  younger claims do not hold a Yield up
  kPendingBars,         // 1  a pending Yield lets no new younger claim in
  kInvalidateHeedsAge,  // 1  an Invalidate waits for older readers
  kClaimOnArrival,      // 2  operations claim in the step of arrival
  kAllClaimOnArrival,   // 2  all that wait do, not only the one it was fetched for
  kClaimAhead,          // 2  also the one that has not arrived yet, against hints
  kHintsYield,          // 2  and against nobody that needs it: a hint acts with no age
  kHintDeclined,        // 2  and is declined where the extent is claimed
  kUrge,                // 3  an older request lowers the age of the open transaction
  kOldestFirst,         // 3  the home serves the oldest request
  kAcksBeforeYield,     // 5  the replicas are gone before the owner gives
  kGrantOwner,          // 6  an owner's own Get is answered, also where it is a hint
  kDropCompleted,       // 6  a Get of a completed operation is dropped
  kOldNumberIgnored,    // 7  a message with an old number is ignored
  kReleaseMatches,      // 7  a Release matches the present giving
  kRetainedEqual,       // 7  kept bytes are used again only if they are the same
  kDoneBeforeRelease,   // 9  the giver keeps the bytes until the taker has them
  kRules,
};

#ifdef OLPAGER_SEEDED_FAULTS
inline Rule broken_rule = Rule::kAll;
inline bool holds(Rule rule) { return rule != broken_rule; }
/// Without a rule a step may not end.
inline void checkEnds(size_t actions) {
  constexpr size_t kEndless = 100'000;
  if (actions > kEndless) throw std::length_error("a step that does not end");
}
#else
constexpr bool holds(Rule) { return true; }
constexpr void checkEnds(size_t) {}
#endif

}  // namespace olpager::directory
