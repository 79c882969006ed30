// cuLink*: the inputs go to the worker as they are given, also those in files, which are of this
// machine; what was linked comes back. The logs and what else the linker tells is written to the
// program's memory by the calls that add inputs and by the one that completes.
//
// States of a linker: there (from cuLinkCreate on) -> gone. The number of a linker is the client's
// own; its images stay until it goes.
#include "interpose/forward/links.h"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/images.h"
#include "interpose/forward/session_parts.h"

namespace olpager::forward {
namespace {

std::shared_ptr<Linker> find(CUlinkState state) {
  const Session* const session = Route().handle(state).session();
  if (session == nullptr) return nullptr;
  Linkers& known = *session->parts().linkers;
  std::lock_guard lock(known.mutex);
  const auto found = known.all.find(state);
  return found != known.all.end() ? found->second : nullptr;
}

CUresult create(unsigned count, const CUjit_option* options, void** values, CUlinkState* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto linker = std::make_shared<Linker>();
  if (const CUresult error = linker->options.read(count, options, values); error != CUDA_SUCCESS)
    return error;
  Call call(Operation::kLinkCreate, Route());
  const auto state = call.number<CUlinkState>();
  linker->options.put(call);
  const CUresult result = call.sync();
  if (result != CUDA_SUCCESS) return result;
  Linkers& known = *call.session()->parts().linkers;
  std::lock_guard lock(known.mutex);
  known.all[state] = std::move(linker);
  *out = state;
  return CUDA_SUCCESS;
}

CUresult add(CUlinkState state, CUjitInputType type, std::span<const std::byte> data,
             const char* name, unsigned count, const CUjit_option* options, void** values) {
  const auto linker = find(state);
  if (linker == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (data.data() == nullptr || data.empty()) return CUDA_ERROR_INVALID_VALUE;
  JitOptions of_input;
  if (const CUresult error = of_input.read(count, options, values); error != CUDA_SUCCESS)
    return error;
  return sendImage(data, [&](const ImageWay& way, bool* unknown) {
    Call call(Operation::kLinkAdd, Route().handle(state));
    call.handle(state);
    call.value(static_cast<int32_t>(type));
    call.string(name);
    of_input.put(call);
    transport::RegionPtr region;
    if (const CUresult error = putImage(call, way, &region); error != CUDA_SUCCESS) return error;
    const CUresult result = call.sync();
    if (!call.answered()) return result;
    const CUresult status = takeStatus(call.reply(), unknown);
    if (*unknown) return status;
    linker->options.take(call.reply());
    of_input.take(call.reply());
    return status;
  });
}

CUresult addFile(CUlinkState state, CUjitInputType type, const char* path, unsigned count,
                 const CUjit_option* options, void** values) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (find(state) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::string bytes;
  if (const CUresult error = readImageFile(path, &bytes); error != CUDA_SUCCESS) return error;
  if (type != CU_JIT_INPUT_PTX) bytes.pop_back();  // only text has the NUL
  return add(state, type, std::as_bytes(std::span(bytes)), path, count, options, values);
}

// The image comes in pieces that a call holds.
CUresult complete(CUlinkState state, void** image, size_t* size) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto linker = find(state);
  if (linker == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<std::byte> whole;
  uint64_t said = 0;  // by the first piece
  do {
    Call call(Operation::kLinkComplete, Route().handle(state));
    call.handle(state);
    call.value(static_cast<uint64_t>(whole.size()));
    const CUresult result = call.sync();
    if (!call.answered()) return result;
    Reader& reply = call.reply();
    const auto status = static_cast<CUresult>(reply.value<int32_t>());
    linker->options.take(reply);
    if (status != CUDA_SUCCESS) return status;
    const auto total = reply.value<uint64_t>();
    const auto piece = reply.raw(reply.left());
    if (whole.empty()) said = total;
    if (!reply.ok() || total != said || total > kMostImageBytes || piece.empty() ||
        piece.size() > total - whole.size())
      return CUDA_ERROR_UNKNOWN;
    if (whole.empty()) whole.reserve(total);
    whole.insert(whole.end(), piece.begin(), piece.end());
    if (whole.size() == total) break;
  } while (true);
  std::lock_guard lock(linker->mutex);
  if (linker->images.empty() || linker->images.back() != whole)
    linker->images.push_back(std::move(whole));
  *image = linker->images.back().data();
  if (size != nullptr) *size = linker->images.back().size();
  return CUDA_SUCCESS;
}

CUresult destroy(CUlinkState state) {
  if (find(state) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Call call(Operation::kLinkDestroy, Route().handle(state));
  {
    Linkers& known = *call.session()->parts().linkers;
    std::lock_guard lock(known.mutex);
    if (known.all.erase(state) == 0) return CUDA_ERROR_INVALID_HANDLE;
  }
  call.handle(state);
  return call.sync();
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

// The first versions differ from the second only in the types of 32-bit programs.
CUresult ol_forward_cuLinkCreate(unsigned count, CUjit_option* options, void** values,
                                 CUlinkState* state) {
  return create(count, options, values, state);
}
CUresult ol_forward_cuLinkCreate_v2(unsigned count, CUjit_option* options, void** values,
                                    CUlinkState* state) {
  return create(count, options, values, state);
}
CUresult ol_forward_cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size,
                                  const char* name, unsigned count, CUjit_option* options,
                                  void** values) {
  return add(state, type, {static_cast<const std::byte*>(data), size}, name, count, options,
             values);
}
CUresult ol_forward_cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data,
                                     size_t size, const char* name, unsigned count,
                                     CUjit_option* options, void** values) {
  return add(state, type, {static_cast<const std::byte*>(data), size}, name, count, options,
             values);
}
CUresult ol_forward_cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path,
                                  unsigned count, CUjit_option* options, void** values) {
  return addFile(state, type, path, count, options, values);
}
CUresult ol_forward_cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                                     unsigned count, CUjit_option* options, void** values) {
  return addFile(state, type, path, count, options, values);
}

CUresult ol_forward_cuLinkComplete(CUlinkState state, void** image, size_t* size) {
  return complete(state, image, size);
}
CUresult ol_forward_cuLinkDestroy(CUlinkState state) { return destroy(state); }

}  // extern "C"
