#include "interpose/forward/kept_call.h"

#include <algorithm>
#include <cstring>

#include "interpose/forward/executor.h"
#include "interpose/forward/session.h"

namespace olpager::forward {
namespace {

CallHead headOf(const std::vector<std::byte>& record) {
  CallHead head;
  std::memcpy(&head, record.data(), sizeof head);
  return head;
}

}  // namespace

// All arguments are searched, at any byte: there are few addresses, and records are short.
void AddressesInRecord::translate(std::vector<std::byte>& record, unsigned to) {
  if (addresses_.empty()) return;
  if (!placed_) {
    const auto begin = record.begin() + static_cast<ptrdiff_t>(argumentsAt(headOf(record)));
    for (Address& one : addresses_) {
      const auto* const word = reinterpret_cast<const std::byte*>(&one.theirs);
      for (auto at = begin;
           (at = std::search(at, record.end(), word, word + sizeof one.theirs)) != record.end();
           at += sizeof one.theirs)
        one.places.push_back(static_cast<size_t>(at - record.begin()));
    }
    placed_ = true;
  }
  for (const Address& one : addresses_) {
    const uint64_t there = one.variable->there(one.theirs, to);
    for (const size_t place : one.places) std::memcpy(record.data() + place, &there, sizeof there);
  }
}

bool hasAge(const std::vector<std::byte>& record) { return (headOf(record).flags & kAged) != 0; }

void putAge(std::vector<std::byte>& record, const Aged& aged) {
  if (hasAge(record)) std::memcpy(record.data() + sizeof(CallHead), &aged, sizeof aged);
}

void KeptCall::send(Session& session, unsigned executor, const Aged& aged) {
  putAge(record, aged);
  addresses.translate(record, executor);
  (void)session.executors()[executor]->post(record, bulk, false);
}

}  // namespace olpager::forward
