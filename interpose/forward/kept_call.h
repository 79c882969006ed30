// A call that nobody waits for, as it is kept on the program's side while all moves to another
// executor (Group::Turn::keep). The object owns what its record brings, and is sent by another
// thread later as its own thread would have sent it. Thread-safety: none; belongs to its owner.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "forwarding/wire/wire.h"
#include "interpose/forward/group_code.h"
#include "interpose/forward/named.h"

namespace olpager::forward {

class Session;

/// Addresses of variables in a record, as the program has them: their places, and the address that
/// an executor gets in their place.
class AddressesInRecord {
 public:
  void add(std::shared_ptr<const SharedVariable> variable, uint64_t theirs) {
    addresses_.push_back({.theirs = theirs, .variable = std::move(variable), .places = {}});
  }
  /// The record as that executor gets it: with the addresses at which it has the variables.
  void translate(std::vector<std::byte>& record, unsigned to);

 private:
  struct Address {
    uint64_t theirs = 0;
    std::shared_ptr<const SharedVariable> variable;
    std::vector<size_t> places;
  };
  std::vector<Address> addresses_;
  bool placed_ = false;  // the places have been found
};

struct KeptCall {
  std::vector<std::byte> record;
  std::vector<std::byte> bulk;  // bytes behind the arguments
  std::vector<Named> named;
  std::vector<CodeThere> code;
  AddressesInRecord addresses;
  bool operates = false, launches = false, again = false;  // Group::Uses
  bool everywhere = false;                                 // Goes::kAll
  /// Instead of a call: what is to be done when all before it has been sent.
  std::function<void()> note;

  /// The memory that the object takes.
  size_t bytes() const { return record.size() + bulk.size(); }
  /// To that executor, in the call's turn. The result is of nobody's interest: where a record can't
  /// be sent the session is lost.
  void send(Session& session, unsigned executor, const Aged& aged);
};

/// True if the record has room for an age.
bool hasAge(const std::vector<std::byte>& record);
/// Puts the age into a record that has.
void putAge(std::vector<std::byte>& record, const Aged& aged);

}  // namespace olpager::forward
