#include "gpunode/worker/invocation.h"

#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

const api::DriverTable& Invocation::driver() const { return worker_.driver(); }

void* Invocation::memory(uint64_t bytes) {
  constexpr uint64_t kAlign = 16;
  if (bytes > forward::kMostBytes || memory_bytes_ + bytes > forward::kMostBytes) {
    too_much_ = true;
    return nullptr;
  }
  memory_bytes_ += bytes;
  const size_t room = (bytes + kAlign - 1) / kAlign * kAlign;
  if (room <= sizeof small_ - small_used_) {
    std::byte* const found = small_ + small_used_;
    small_used_ += std::max<size_t>(room, kAlign);
    small_used_ = std::min(small_used_, sizeof small_);
    std::memset(found, 0, room);
    return found;
  }
  memory_.push_back(std::make_unique<std::byte[]>(bytes + 1));
  return memory_.back().get();
}

const char* Invocation::string() {
  if (in_.value<uint8_t>() == 0) return nullptr;
  const auto text = in_.text();
  if (!in_.ok() || text.find('\0') != std::string_view::npos) {
    in_.fail();
    return nullptr;
  }
  auto* const copy = static_cast<char*>(memory(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

CUstream Invocation::streamOf(uint64_t number, bool per_thread) {
  if (number == bitsOf(CU_STREAM_PER_THREAD) || (number == 0 && per_thread)) {
    CUstream stream = nullptr;
    const CUresult result = worker_.threadStreams().find(head_.thread, head_.context, &stream);
    if (result != CUDA_SUCCESS) bad_handle_ = true, no_stream_ = result;
    return stream;
  }
  if (number == 0 || number == bitsOf(CU_STREAM_LEGACY)) return handleFrom<CUstream>(number);
  return translated<CUstream>(number);
}

CUfunction Invocation::kernel(uint64_t number, const ParameterPlaces** places) {
  uint64_t value = 0;
  if (number == 0) return nullptr;
  if (!worker_.handles().find(number, HandleKind::kFunction, &value, places)) bad_handle_ = true;
  return handleFrom<CUfunction>(value);
}

bool Invocation::isMemory(CUdeviceptr address) const {
  CUmemorytype type{};
  const auto ask = driver().cuPointerGetAttribute;
  return ask != nullptr && ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
}

CUresult Invocation::refusal() const {
  if (!in_.ok()) worker_.lead().nonsense(head_);
  if (too_much_ || bad_value_) return CUDA_ERROR_INVALID_VALUE;
  return no_stream_;
}

void Invocation::putText(const char* const* text) {
  if (text == nullptr) return;
  out_.value(static_cast<uint8_t>(*text != nullptr));
  if (*text != nullptr) out_.text(*text);
}

uint64_t Invocation::enterContextOf(CUstream stream) {
  const CUcontext context = worker_.contextOf(stream);
  if (context == Worker::current()) return head_.context;
  worker_.setCurrent(context);
  return numberFor(context);
}

bool Invocation::find(uint64_t number, HandleKind kind, uint64_t* value) const {
  return worker_.handles().find(number, kind, value);
}
uint64_t Invocation::number(HandleKind kind, uint64_t value) {
  const uint64_t number = worker_.handles().numberOf(kind, value, &names_);
  if (kind == HandleKind::kStream)
    worker_.queues().streamIsThere(number, handleFrom<CUstream>(value));
  return number;
}
void Invocation::bindNumber(uint64_t number, HandleKind kind, uint64_t value) {
  if (worker_.handles().bind(number, kind, value) && kind == HandleKind::kStream)
    worker_.queues().streamIsThere(number, handleFrom<CUstream>(value));
}
void Invocation::gone(uint64_t number) {
  worker_.queues().streamIsGone(number);
  worker_.handles().gone(number);
}

}  // namespace olpager::gpunode
