// Modules and libraries: the image that a pointer names is found and sent as it is (a container, a
// cubin, PTX); options of the compiler go along as far as they are numbers, its logs come back.
#include <memory>
#include <string>
#include <utility>

#include "base/fatbin/fatbin.h"
#include "base/log.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/code_state.h"
#include "interpose/forward/images.h"
#include "interpose/forward/jit_options.h"
#include "interpose/forward/known_kernels.h"
#include "interpose/forward/libraries.h"
#include "interpose/forward/program.h"
#include "interpose/forward/variables.h"

namespace olpager::forward {
namespace {

/// An image on its way, with the compiler's options.
struct Load {
  std::span<const std::byte> image;
  std::string owned;   // where the image had to be made
  bool stays = false;  // the program does not change it, or take it away, until it is unloaded
  JitOptions options;
  bool links = false;  // the driver would link more to it (nvcc -rdc=true): that is not sent
};

CUresult locate(const void* code, Load& load) {
  if (code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = fatbin::locate(code);
  if (!found.ok()) {
    base::logDebug("an image that can't be read: %s", found.error().message.c_str());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const fatbin::Image& image = found.value();
  load.links = !image.linked.empty();
  if (image.form == fatbin::Image::Form::ptx) {
    load.owned.assign(reinterpret_cast<const char*>(image.bytes.data()), image.bytes.size());
    load.owned.push_back('\0');
    load.image = std::as_bytes(std::span(load.owned));
  } else {
    load.image = {reinterpret_cast<const std::byte*>(image.bytes.data()), image.bytes.size()};
  }
  return CUDA_SUCCESS;
}

// The target of an image, and the number that the library is to have; 0: the worker chooses.
struct To {
  Session* session;
  uint64_t number = 0;
  // In a session of several executors: to this one, under the number that it has at all.
  unsigned executor = 0;
  Names names{};
};

CUresult sendAs(Operation operation, const To& to, const ImageWay& way, const Load& load,
                void** out, bool* unknown) {
  if (to.session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Call call(operation, to.session);
  call.beforeInit();
  if (to.names.count != 0) {
    call.only(to.executor);
    call.names(to.names);
  } else {
    call.names(1);
  }
  if (operation == Operation::kLoadLibrary) call.value(to.number);
  load.options.put(call);
  transport::RegionPtr region;
  if (const CUresult error = putImage(call, way, &region); error != CUDA_SUCCESS) return error;
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  Reader& reply = call.reply();
  const CUresult status = takeStatus(reply, unknown);
  if (*unknown) return status;
  const auto handle = call.takeHandle<uint64_t>();
  load.options.take(reply);
  if (status != CUDA_SUCCESS) return status;
  if (handle == 0) reply.fail();
  *out = reinterpret_cast<void*>(handle);
  return call.taken(status);
}

CUresult sendTo(Operation operation, const To& to, const Load& load, void** out) {
  return sendImage(load.image, [&](const ImageWay& way, bool* unknown) {
    return sendAs(operation, to, way, load, out, unknown);
  });
}

void unloadAt(Session* session, unsigned executor, Operation operation, void* handle) {
  Call call(operation == Operation::kLoadModule ? api::Symbol::kCuModuleUnload
                                                : api::Symbol::kCuLibraryUnload,
            session);
  call.only(executor);
  call.handle(handle);
  call.ofOurOwn();
  (void)call.sync();
}

// One executor may have the image already, and another one not.
CUresult sendToEach(Operation operation, To to, const Load& load, void** out) {
  to.names = {to.session->newNumber(), 1};
  const auto count = static_cast<unsigned>(to.session->executors().size());
  const bool bound = to.session->group()->bound();
  for (unsigned i = bound ? to.session->group()->active() : 0; i < count; ++i) {
    to.executor = i;
    const CUresult result = sendTo(operation, to, load, out);
    if (result == CUDA_SUCCESS && !bound) continue;
    for (unsigned made = 0; made < i && !bound; ++made) unloadAt(to.session, made, operation, *out);
    return result;
  }
  return CUDA_SUCCESS;
}

CUresult send(Operation operation, const To& to, const Load& load, void** out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return to.session != nullptr && to.session->group() != nullptr
             ? sendToEach(operation, to, load, out)
             : sendTo(operation, to, load, out);
}

void noteState(Group& group, Operation operation, uint64_t handle,
               std::span<const std::byte> image) {
  auto state = std::make_shared<CodeState>(stateOf(image));
  if (state->readable && !state->places) return;
  state->kind =
      operation == Operation::kLoadModule ? VariableKind::kModule : VariableKind::kLibrary;
  state->owner = handle;
  group.code().noteState(handle, std::move(state));
}

// While the image is the program's to read.
void noteKernels(const Load& load, const void* owner) {
  program().parts().known_kernels->loaded(
      reinterpret_cast<uint64_t>(owner),
      std::make_shared<KnownCode>(load.image, load.stays && load.owned.empty()));
}

CUresult load(Operation operation, const Load& one, void** out) {
  if (operation == Operation::kLoadLibrary && severalSessions()) {
    const CUresult result = loadEverywhere(
        [&](Session* session, uint64_t number) {
          void* ignored = nullptr;
          return send(operation, {session, number}, one, &ignored);
        },
        out);
    if (result == CUDA_SUCCESS) noteKernels(one, *out);
    return result;
  }
  Session* const session = currentSession();
  const CUresult result = send(operation, {session}, one, out);
  if (result == CUDA_SUCCESS) noteKernels(one, *out);
  if (result == CUDA_SUCCESS && session->group() != nullptr)
    noteState(*session->group(), operation, reinterpret_cast<uint64_t>(*out), one.image);
  if (operation == Operation::kLoadModule && result == CUDA_SUCCESS)
    noteModule(reinterpret_cast<uint64_t>(*out), currentContext());
  return result;
}

CUresult load(Operation operation, const void* code, unsigned count, CUjit_option* options,
              void** values, void** out, bool stays = false) {
  Load one;
  one.stays = stays;
  if (const CUresult error = one.options.read(count, options, values); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = locate(code, one); error != CUDA_SUCCESS) return error;
  const CUresult result = load(operation, one, out);
  if (result == CUDA_ERROR_NO_BINARY_FOR_GPU && one.links)
    base::warnOnce("code to be linked",
                   "forwarded, code that is linked when it is loaded (nvcc -rdc=true, without "
                   "machine code for the GPU) can't be used: build it for the gpunode's GPU (nvcc "
                   "-arch=native there)");
  return result;
}

// True if a library's options say that its code stays where it is until the library is unloaded.
bool isPreserved(const CUlibraryOption* options, void* const* values, unsigned count) {
  for (unsigned i = 0; options != nullptr && values != nullptr && i < count; ++i) {
    if (options[i] == CU_LIBRARY_BINARY_IS_PRESERVED) return values[i] != nullptr;
  }
  return false;
}

CUresult loadFile(Operation operation, const char* path, unsigned count, CUjit_option* options,
                  void** values, void** out) {
  std::string bytes;
  if (const CUresult error = readImageFile(path, &bytes); error != CUDA_SUCCESS) return error;
  return load(operation, bytes.data(), count, options, values, out);
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = ol_forward_generated_cuModuleGetFunction(function, module, name);
  if (result == CUDA_SUCCESS)
    program().parts().known_kernels->named(reinterpret_cast<uint64_t>(*function),
                                           reinterpret_cast<uint64_t>(module), name);
  return result;
}

CUresult ol_forward_cuModuleLoadData(CUmodule* module, const void* image) {
  return load(Operation::kLoadModule, image, 0, nullptr, nullptr, reinterpret_cast<void**>(module));
}
CUresult ol_forward_cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load(Operation::kLoadModule, image, 0, nullptr, nullptr, reinterpret_cast<void**>(module));
}
CUresult ol_forward_cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count,
                                       CUjit_option* options, void** values) {
  return load(Operation::kLoadModule, image, count, options, values,
              reinterpret_cast<void**>(module));
}
CUresult ol_forward_cuModuleLoad(CUmodule* module, const char* path) {
  return loadFile(Operation::kLoadModule, path, 0, nullptr, nullptr,
                  reinterpret_cast<void**>(module));
}

CUresult ol_forward_cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options,
                                      void** values, unsigned count,
                                      CUlibraryOption* library_options, void** library_values,
                                      unsigned library_count) {
  return load(Operation::kLoadLibrary, code, count, options, values,
              reinterpret_cast<void**>(library),
              isPreserved(library_options, library_values, library_count));
}
CUresult ol_forward_cuLibraryLoadFromFile(CUlibrary* library, const char* path,
                                          CUjit_option* options, void** values, unsigned count,
                                          CUlibraryOption* /*library_options*/,
                                          void** /*library_values*/, unsigned /*library_count*/) {
  return loadFile(Operation::kLoadLibrary, path, count, options, values,
                  reinterpret_cast<void**>(library));
}

}  // extern "C"
