// Page faults of this process's own threads that this process serves itself: userfaultfd as an
// interface, and the kernel's implementation of it. A range is enlisted. A thread that then touches
// a page of it which is not published waits until it is, and so does a thread that writes a page
// which is published for reading.
//
// Thread-safety: any thread, without a lock of ours. Ownership: the descriptor, with it every range
// that is still enlisted.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace olpager::cpu {

/// One that waits.
struct UserFault {
  uint64_t address = 0;
  bool write = false;
  pid_t thread = 0;  // 0: not known
};

class UserFaults {
 public:
  /// Faults that are reported.
  enum class Reach : uint8_t {
    kAll,       // of threads, and of system calls that touch the range for them
    kUserMode,  // of threads alone: a system call gets EFAULT instead
  };

  virtual ~UserFaults() = default;

  virtual Reach reach() const = 0;
  /// For kUserMode: why not all, and what to do. One line.
  virtual const std::string& why() const = 0;
  /// Readable while faults wait to be read.
  virtual int descriptor() const = 0;
  /// Never waits. Returns how many have been read.
  virtual size_t read(std::span<UserFault> to) = 0;

  virtual Status enlist(uint64_t address, uint64_t bytes) = 0;
  /// Threads that wait there repeat their access, with the mapping of that moment.
  virtual void dismiss(uint64_t address, uint64_t bytes) = 0;
  /// True if the kernel can publish for reading.
  virtual bool protects() const = 0;
  /// Maps the file's pages that lie behind the range, of `base_page` bytes each, and wakes the
  /// threads that wait there. `writable`: false only where protects(); a write is a fault then.
  /// Pages that are mapped already stay as they are; in a range that is gone nothing is mapped.
  /// False: the file has a hole there.
  virtual bool publish(uint64_t address, uint64_t bytes, uint64_t base_page, bool writable) = 0;
  /// Pages published for reading may be written from now on.
  virtual void allowWrites(uint64_t address, uint64_t bytes) = 0;
  /// Threads that wait there repeat their access.
  virtual void wake(uint64_t address, uint64_t bytes) = 0;
};

/// The kernel's. `at_most`: kUserMode leaves out what would reach further. An error says why it is
/// not to be had, and what to do.
Result<std::unique_ptr<UserFaults>> openUserFaults(
    UserFaults::Reach at_most = UserFaults::Reach::kAll);

}  // namespace olpager::cpu
