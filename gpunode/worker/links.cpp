#include "gpunode/worker/links.h"

#include <algorithm>

#include "base/fatbin/fatbin.h"
#include "gpunode/worker/images.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

constexpr size_t kPiece = 8 << 20;  // of an image, in one answer

// The driver's status and what the linker told so far.
void answer(Invocation& in, const Link& link, CUresult status) {
  in.results().value(static_cast<int32_t>(status));
  link.options.put(in.results());
}

}  // namespace

bool Links::add(uint64_t number, const std::shared_ptr<Link>& link) {
  std::lock_guard lock(mutex_);
  return all_.try_emplace(number, link).second;
}

std::shared_ptr<Link> Links::find(uint64_t number) const {
  std::lock_guard lock(mutex_);
  const auto found = all_.find(number);
  return found != all_.end() ? found->second : nullptr;
}

std::shared_ptr<Link> Links::take(uint64_t number) {
  std::lock_guard lock(mutex_);
  auto found = all_.extract(number);
  return found.empty() ? nullptr : std::move(found.mapped());
}

CUresult linkCreate(Invocation& in) {
  const auto number = in.value<uint64_t>();
  const auto link = std::make_shared<Link>();
  if (!link->options.read(in)) return in.refusal();
  if (in.driver().cuLinkCreate_v2 == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = in.driver().cuLinkCreate_v2(link->options.count(), link->options.names(),
                                                      link->options.values(), &link->state);
  if (result != CUDA_SUCCESS) return result;
  uint64_t bound = 0;
  in.bind(number, link->state);
  if (in.worker().handles().find(number, HandleKind::kLinkState, &bound) &&
      bound == bitsOf(link->state) && in.worker().links().add(number, link))
    return CUDA_SUCCESS;
  (void)in.driver().cuLinkDestroy(link->state);  // a number that is something else's
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult linkAdd(Invocation& in) {
  const auto number = in.value<uint64_t>();
  const auto type = in.value<int32_t>();
  const char* const name = in.string();
  JitOptions plain;
  (void)plain.read(in);
  bool unknown = false;
  auto image = readImage(in, &unknown);
  if (!in.ok()) return in.refusal();
  if (unknown) {
    in.results().value(forward::kImageUnknown);
    return CUDA_SUCCESS;
  }
  if (type < 0 || type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
  // A program registers an image with a pointer in it, which is the client's.
  if (image.empty() || magicOf(image) == fatbin::kWrapperMagic) return CUDA_ERROR_INVALID_IMAGE;
  const auto link = in.worker().links().find(number);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(link->mutex);
  if (link->state == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult status = in.driver().cuLinkAddData_v2(
      link->state, static_cast<CUjitInputType>(type), image.data(), image.size() - 1, name,
      plain.count(), plain.names(), plain.values());
  answer(in, *link, status);
  plain.put(in.results());
  return CUDA_SUCCESS;
}

CUresult linkComplete(Invocation& in) {
  const auto number = in.value<uint64_t>();
  const auto offset = in.value<uint64_t>();
  if (!in.ok()) return in.refusal();
  const auto link = in.worker().links().find(number);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(link->mutex);
  if (link->state == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUresult status = CUDA_SUCCESS;
  if (offset == 0) {
    void* image = nullptr;
    link->image_bytes = 0;
    status = in.driver().cuLinkComplete(link->state, &image, &link->image_bytes);
    link->image = static_cast<const std::byte*>(image);
    if (status != CUDA_SUCCESS || image == nullptr) link->image_bytes = 0;
  }
  if (status == CUDA_SUCCESS && offset >= link->image_bytes) status = CUDA_ERROR_INVALID_VALUE;
  answer(in, *link, status);
  if (status != CUDA_SUCCESS) return CUDA_SUCCESS;
  in.results().value(static_cast<uint64_t>(link->image_bytes));
  in.results().raw(link->image + offset, std::min<uint64_t>(kPiece, link->image_bytes - offset));
  return CUDA_SUCCESS;
}

CUresult linkDestroy(Invocation& in) {
  const auto number = in.value<uint64_t>();
  if (!in.ok()) return in.refusal();
  const auto link = in.worker().links().take(number);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(link->mutex);
  in.gone(number);
  const CUresult result = in.driver().cuLinkDestroy(link->state);
  link->state = nullptr;
  link->image_bytes = 0;
  return result;
}

}  // namespace olpager::gpunode
