#include "pager/residency/packed.h"

#include <bit>

#include "pager/clock.h"
#include "pager/kernels/pack.h"
#include "pager/space/extents.h"

namespace olpager::pager {
namespace {

using kernels::Packed;
using kernels::PackedHeader;

const PackedHeader& headerOf(const HostChunk& chunk, uint64_t page) {
  return *reinterpret_cast<const PackedHeader*>(chunk.alias + page * kernels::kPackedPageBytes);
}

CUresult launch(const DriverApi& driver, CUfunction kernel, unsigned x, unsigned y,
                unsigned threads, CUstream stream, uint64_t pages, uint64_t packed) {
  kernels::PackParameters parameters{pages, packed};
  void* pointers[] = {&parameters.pages, &parameters.packed};
  return driver.cuLaunchKernel(kernel, x, y, 1, threads, 1, 1, 0, stream, pointers, nullptr);
}

}  // namespace

CUresult PackedImages::makeObjects() {
  CUresult result = driver_.cuModuleLoadData(&module_, kernels::packPtx());
  if (result == CUDA_SUCCESS)
    result = driver_.cuModuleGetFunction(&pack_, module_, kernels::kPackKernel);
  if (result == CUDA_SUCCESS)
    result = driver_.cuModuleGetFunction(&unpack_, module_, kernels::kUnpackKernel);
  // Before the program's kernels: they wait for what it brings.
  for (CUstream* stream : {&pack_stream_, &copy_stream_, &unpack_stream_})
    if (result == CUDA_SUCCESS)
      result = driver_.cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, -5);
  for (Slot& slot : slots_)
    for (CUevent* event : {&slot.copied, &slot.unpacked})
      if (result == CUDA_SUCCESS) result = driver_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
  return result;
}

void PackedImages::destroyObjects() {
  for (Slot& slot : slots_) {
    for (CUevent* event : {&slot.copied, &slot.unpacked}) {
      if (*event != nullptr) driver_.cuEventDestroy_v2(*event);
      *event = nullptr;
    }
    slot.used = false;
  }
  for (CUstream* stream : {&pack_stream_, &copy_stream_, &unpack_stream_}) {
    if (*stream != nullptr) driver_.cuStreamDestroy_v2(*stream);
    *stream = nullptr;
  }
  if (module_ != nullptr) driver_.cuModuleUnload(module_);
  module_ = nullptr;
}

int PackedImages::slotOrder() const {
  if (unpack_ == nullptr || !chunks_.hostMappable()) return -1;
  const uint64_t pages = chunks_.vramBudget() / options_.slots_share / kSlots / kPageBytes;
  int order = -1;
  constexpr int kMost = std::countr_zero(space::kLargestExtentPages);
  while (order < kMost && pages >= 1ull << (order + 1)) ++order;
  return order;
}

void PackedImages::giveChunk(Image& image) {
  if (image.chunk == nullptr) return;
  host_bytes_ -= kPageBytes << image.chunk->order;
  chunks_.giveHost(image.chunk);
  image.chunk = nullptr;
}

void PackedImages::set(Image& image, unsigned order, State state) {
  if (image.state == State::kWanted) --wanted_[order];
  if (state == State::kWanted) ++wanted_[order];
  image.state = state;
}

bool PackedImages::keep(VramChunk& chunk, uint64_t room) {
  if (slot_count_ == 0) slot_order_ = slotOrder();
  if (slot_count_ == kSlots || static_cast<int>(chunk.order) != slot_order_ || chunk.exported)
    return false;
  if (kSlots * (kPageBytes << chunk.order) > room) return false;
  slots_[slot_count_++].chunk = &chunk;
  return true;
}

bool PackedImages::claim(const Extent& extent, uint64_t spare) {
  if (slot_count_ < kSlots || extent.order > slot_order_ || nowNs() < paused_until_ns_)
    return false;
  const auto [found, is_new] = images_.try_emplace(&extent);
  Image& image = found->second;
  if (!is_new && image.hash == extent.hash && image.state != State::kWanted) return false;
  giveChunk(image);
  if (is_new) ++wanted_[extent.order];
  set(image, extent.order, State::kWanted);
  image.hash = extent.hash;
  image.checked = false;
  // Free ones alone: making one takes milliseconds, in which the engine has better to do. Others
  // make what is wanted.
  if (extent.bytes() > spare) {
    drop(extent);
    return false;
  }
  image.chunk = chunks_.takeFreeHost(extent.order);
  if (image.chunk == nullptr) return false;
  host_bytes_ += extent.bytes();
  set(image, extent.order, State::kMaking);
  return true;
}

CUresult PackedImages::start(const Extent& extent, const HostChunk& image, CUevent event,
                             bool& queued) const {
  const uint64_t slot = slots_[0].chunk->alias;
  CUresult result = launch(driver_, pack_, 1u << extent.order, 1, kernels::kPackThreads,
                           pack_stream_, extent.vram->alias, slot);
  queued = result == CUDA_SUCCESS;
  if (result == CUDA_SUCCESS)
    result = driver_.cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(image.alias), slot,
                                          bytesOf(extent), pack_stream_);
  if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(event, pack_stream_);
  return result;
}

void PackedImages::finish(const Extent& extent) {
  Image& image = images_.at(&extent);
  Packed packed = Packed::kDone;
  for (uint64_t page = 0; page < 1ull << extent.order && packed == Packed::kDone; ++page)
    packed = headerOf(*image.chunk, page).state;
  if (packed != Packed::kDone) giveChunk(image);
  set(image, extent.order, packed == Packed::kDone ? State::kReady : State::kNever);
}

bool PackedImages::isReady(const Extent& extent) const {
  if (slot_count_ < kSlots || extent.order > slot_order_ || !extent.hash_valid ||
      !extent.host_valid)
    return false;
  const auto found = images_.find(&extent);
  return found != images_.end() && found->second.state == State::kReady &&
         found->second.hash == extent.hash && nowNs() >= paused_until_ns_;
}

void PackedImages::checked(const Extent& extent, bool equal) {
  Image& image = images_.at(&extent);
  image.checked = true;
  if (equal) return;
  giveChunk(image);
  set(image, extent.order, State::kNever);
}

uint64_t PackedImages::bytesOf(const Extent& extent) {
  return kernels::kPackedPageBytes << extent.order;
}

CUresult PackedImages::fetch(const Extent& extent, const HostChunk& image, uint64_t target,
                             CUevent event, bool& queued) {
  Slot& slot = slots_[1 + next_slot_++ % (kSlots - 1)];
  CUresult result = CUDA_SUCCESS;
  // The GPU itself waits until the slot is free: any number of copies can be queued.
  if (slot.used) result = driver_.cuStreamWaitEvent(copy_stream_, slot.unpacked, 0);
  if (result == CUDA_SUCCESS)
    result =
        driver_.cuMemcpyHtoDAsync_v2(slot.chunk->alias, reinterpret_cast<const void*>(image.alias),
                                     bytesOf(extent), copy_stream_);
  queued = result == CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(slot.copied, copy_stream_);
  if (result == CUDA_SUCCESS) result = driver_.cuStreamWaitEvent(unpack_stream_, slot.copied, 0);
  if (result == CUDA_SUCCESS)
    result = launch(driver_, unpack_, kernels::kUnpackParts, 1u << extent.order,
                    kernels::kUnpackThreads, unpack_stream_, target, slot.chunk->alias);
  if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(slot.unpacked, unpack_stream_);
  slot.used = true;
  if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(event, unpack_stream_);
  return result;
}

HostChunk* PackedImages::release(const Extent& extent) {
  HostChunk* const chunk = images_.at(&extent).chunk;
  host_bytes_ -= extent.bytes();
  images_.erase(&extent);
  return chunk;
}

void PackedImages::pause() { paused_until_ns_ = nowNs() + options_.late_pause_ns; }

void PackedImages::drop(const Extent& extent) {
  const auto found = images_.find(&extent);
  if (found == images_.end()) return;
  giveChunk(found->second);
  if (found->second.state == State::kWanted) --wanted_[extent.order];
  images_.erase(found);
}

uint64_t PackedImages::drop(uint64_t bytes) {
  uint64_t dropped = 0;
  for (auto one = images_.begin(); one != images_.end() && dropped < bytes;) {
    const Extent& extent = *one->first;
    if (one->second.state != State::kReady || extent.state == ExtentState::kFetching) {
      ++one;
      continue;
    }
    dropped += extent.bytes();
    giveChunk(one->second);
    one = images_.erase(one);
  }
  return dropped;
}

void PackedImages::trimSlots(uint64_t room) {
  if (slot_count_ == 0) return;
  if (slot_order_ <= slotOrder() && slot_count_ * (kPageBytes << slot_order_) <= room) return;
  while (slot_count_ > 0) chunks_.giveVram(slots_[--slot_count_].chunk);
}

void PackedImages::synchronize() const {
  for (CUstream stream : {pack_stream_, copy_stream_, unpack_stream_})
    if (stream != nullptr) driver_.cuStreamSynchronize(stream);
}

void PackedImages::releaseAll() {
  while (slot_count_ > 0) chunks_.giveVram(slots_[--slot_count_].chunk);
  for (auto& [extent, image] : images_) giveChunk(image);
  images_.clear();
  wanted_ = {};
}

}  // namespace olpager::pager
