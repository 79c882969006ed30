// The host memory of one region of managed memory: a frame for each page, as long as the region
// lives. A file in memory, mapped twice:
//
//   view    at the region's global address. The program's own mapping. A page of it is mapped while
//           the CPU has the page; else a touch is a fault (userfaults.h)
//   alias   elsewhere, always mapped. The copy engines' mapping: pinned, and written before the CPU
//           gets a page, read after it has given one up
//
// All of the file has memory from the start: a shortage is an error here, not a SIGBUS later. Huge
// pages where enough are free, else small ones: a huge page is published in 2 us instead of 70.
// Or a frame has memory from fill() to empty() (Memory::kByPage): where pages are elsewhere most of
// the time.
//
// Thread-safety: none for one page; pages don't disturb each other. Ownership: of the file and of
// both mappings; at the end the view is a reserve without access, as it was.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "base/space/pages.h"

namespace olpager::cpu {

class Frames {
 public:
  enum class Memory : uint8_t { kAll, kByPage };

  /// Over a reserve at that address, which is a multiple of kPageBytes. `huge`: whether to try huge
  /// pages; kByPage has small ones.
  static Result<std::unique_ptr<Frames>> make(uint64_t address, uint32_t pages, bool huge = true,
                                              Memory memory = Memory::kAll);
  ~Frames();
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;

  uint64_t address() const { return address_; }
  uint32_t pages() const { return pages_; }
  uint64_t bytes() const { return pages_ * space::kPageBytes; }
  bool holds(uint64_t address) const { return address - address_ < bytes(); }
  uint64_t view(uint32_t page) const { return address_ + page * space::kPageBytes; }
  std::byte* alias(uint32_t page = 0) const { return alias_ + page * space::kPageBytes; }
  /// The file that the alias maps, from its first page on.
  int file() const { return file_.get(); }
  /// The file's kind of memory.
  uint64_t basePage() const { return base_page_; }

  /// True if the CPU may have written the page since forgetWrites(). The CPU's agent says so before
  /// the page can be written; others ask, and forget, while the CPU has not got it. The order of
  /// the two is given by the hand-over of the page.
  bool written(uint32_t page) const { return written_[page].load(std::memory_order_relaxed); }
  void noteWrites(uint32_t page) { written_[page].store(true, std::memory_order_relaxed); }
  void forgetWrites(uint32_t page) { written_[page].store(false, std::memory_order_relaxed); }

  /// These pages' view is mapped no more; on return nobody writes the frames through it. False: the
  /// kernel does not do it.
  bool drop(uint32_t page, uint32_t count = 1);
  /// For kByPage. These frames have memory from now on: zeros where they had none. False: there is
  /// no memory for them.
  bool fill(uint32_t page, uint32_t count);
  /// For kByPage. The frames have no memory from now on; their bytes are gone, and their view has
  /// been dropped.
  void empty(uint32_t page, uint32_t count);
  /// A touch of these pages' view is a SIGSEGV from now on, as where nothing is.
  void close(uint32_t page, uint32_t count);
  /// A touch of these pages' view is a SIGBUS from now on: their bytes are lost. False: SIGSEGV,
  /// since a file for it can't be had.
  bool lose(uint32_t page, uint32_t count = 1);

 private:
  Frames(uint64_t address, uint32_t pages)
      : address_(address), pages_(pages), written_(new std::atomic<bool>[pages] {}) {}
  Status map(bool huge, Memory memory);
  void unmap();

  uint64_t address_;
  uint32_t pages_;
  uint64_t base_page_ = 0;
  base::UniqueFd file_;
  base::UniqueFd nothing_;  // an empty file: a touch of what it is mapped at is a SIGBUS
  std::byte* alias_ = nullptr;
  bool viewed_ = false;
  std::unique_ptr<std::atomic<bool>[]> written_;
};

}  // namespace olpager::cpu
