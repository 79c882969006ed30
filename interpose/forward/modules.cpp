// Modules and libraries: the image that a pointer names is found and sent as it is (a container, a cubin, PTX); options of the
// compiler go along as far as they are numbers, its logs come back.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/fatbin/fatbin.h"
#include "base/log.h"
#include "coherence/calls/digest.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/libraries.h"
#include "interpose/forward/memory.h"

namespace olpager::forward {
namespace {

bool isLog(CUjit_option option) { return option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER; }

// Options whose values are pointers to more than a log.
bool isDeep(CUjit_option option) {
  return option == CU_JIT_GLOBAL_SYMBOL_NAMES || option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES ||
         option == CU_JIT_REFERENCED_KERNEL_NAMES || option == CU_JIT_REFERENCED_VARIABLE_NAMES;
}

/// An image on its way, with the compiler's options.
struct Load {
  std::span<const std::byte> image;
  std::string owned;  // where the image had to be made
  unsigned count = 0;
  CUjit_option* options = nullptr;
  void** values = nullptr;
};

CUresult locate(const void* code, Load& load) {
  if (code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = fatbin::locate(code);
  if (!found.ok()) {
    base::logDebug("an image that can't be read: %s", found.error().message.c_str());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const fatbin::Image& image = found.value();
  if (image.form == fatbin::Image::Form::ptx) {
    load.owned.assign(reinterpret_cast<const char*>(image.bytes.data()), image.bytes.size());
    load.owned.push_back('\0');
    load.image = std::as_bytes(std::span(load.owned));
  } else {
    load.image = {reinterpret_cast<const std::byte*>(image.bytes.data()), image.bytes.size()};
  }
  return CUDA_SUCCESS;
}

// A smaller image is sent without asking whether the worker has it: that would be another round trip.
constexpr size_t kWorthAsking = 32 << 10;

// Where an image goes, and the number that the library is to have; 0: the worker chooses.
struct To {
  Session* session;
  uint64_t number = 0;
};

CUresult sendAs(Operation operation, const To& to, ImageForm form, const calls::Digest& digest, const Load& load,
                void** out, bool* unknown) {
  if (to.session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Call call(operation, to.session);
  call.beforeInit();
  if (operation == Operation::kLoadLibrary) call.value(to.number);
  call.value(static_cast<uint32_t>(load.count));
  for (unsigned i = 0; i < load.count; ++i) {
    if (isDeep(load.options[i])) return refused("a module load with names of symbols in its options", false);
    call.value(static_cast<int32_t>(load.options[i]));
    call.value(isLog(load.options[i]) ? uint64_t{0} : reinterpret_cast<uint64_t>(load.values[i]));
  }
  call.value(form);
  transport::RegionPtr region;
  if (form == ImageForm::kDigest) {
    call.raw(digest.data(), digest.size());
  } else if (form == ImageForm::kRegion) {
    auto made = transport::registerMemory(to.session->domain(),
                                          {const_cast<std::byte*>(load.image.data()), load.image.size(), -1, 0},
                                          transport::kRemoteRead);
    if (!made.ok()) {
      base::logError("a module of %zu bytes can't be sent: %s", load.image.size(), made.error().message.c_str());
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    region = std::move(made).value();
    call.value(region->key());
    call.mayWait();  // the worker reads it meanwhile
  } else {
    call.value(static_cast<uint64_t>(load.image.size()));
    call.bulk(load.image);
  }
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  Reader& reply = call.reply();
  const auto told = reply.value<int32_t>();
  if (told == kImageUnknown) {
    *unknown = true;
    return CUDA_ERROR_FILE_NOT_FOUND;
  }
  const auto status = static_cast<CUresult>(told);
  const auto handle = reply.value<uint64_t>();
  for (unsigned i = 0; i < load.count; ++i) {
    const auto value = reply.value<uint64_t>();
    const auto text = reply.text();
    if (isLog(load.options[i])) {
      // Its size is given by the option for it, which may stand anywhere.
      const auto size_option = load.options[i] == CU_JIT_INFO_LOG_BUFFER ? CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES
                                                                         : CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
      uint64_t room = 0;
      for (unsigned j = 0; j < load.count; ++j) {
        if (load.options[j] == size_option) room = reinterpret_cast<uint64_t>(load.values[j]) & UINT32_MAX;
      }
      auto* const into = static_cast<char*>(load.values[i]);
      if (into == nullptr || room == 0) continue;
      const size_t bytes = std::min<size_t>(text.size(), room - 1);
      std::memcpy(into, text.data(), bytes);
      into[bytes] = '\0';
    }
    (void)value;
  }
  if (status == CUDA_SUCCESS) *out = reinterpret_cast<void*>(handle);
  return status;
}

// A client's modules are sent once: the worker keeps those of its key (gpunode/worker/module_cache.h).
CUresult send(Operation operation, const To& to, const Load& load, void** out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (load.image.size() > kMostImageBytes) return refused("a module above 1 GiB", false);
  const ImageForm whole = load.image.size() > kMostBytes ? ImageForm::kRegion : ImageForm::kKeep;
  calls::Digest digest{};
  bool unknown = false;
  if (load.image.size() < kWorthAsking || !calls::digestOf(load.image, digest))
    return sendAs(operation, to, whole == ImageForm::kRegion ? whole : ImageForm::kBytes, digest, load, out, &unknown);
  const CUresult result = sendAs(operation, to, ImageForm::kDigest, digest, load, out, &unknown);
  return unknown ? sendAs(operation, to, whole, digest, load, out, &unknown) : result;
}

CUresult load(Operation operation, const void* code, unsigned count, CUjit_option* options, void** values, void** out) {
  if (count != 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  Load one;
  one.count = count;
  one.options = options;
  one.values = values;
  if (const CUresult error = locate(code, one); error != CUDA_SUCCESS) return error;
  if (operation == Operation::kLoadLibrary && severalSessions())
    return loadEverywhere(
        [&](Session* session, uint64_t number) {
          void* ignored = nullptr;
          return send(operation, {session, number}, one, &ignored);
        },
        out);
  return send(operation, {currentSession()}, one, out);
}

CUresult loadFile(Operation operation, const char* path, unsigned count, CUjit_option* options, void** values,
                  void** out) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  bytes.push_back('\0');  // PTX text ends so
  return load(operation, bytes.data(), count, options, values, out);
}

// A variable of a module or a library: kernels and copies may name its memory from now on.
template <typename Ask, typename Owner>
CUresult findGlobal(Ask ask, CUdeviceptr* address, size_t* bytes, Owner owner, const char* name) {
  CUdeviceptr found = 0;
  size_t size = 0;
  if (const CUresult result = ask(&found, &size, owner, name); result != CUDA_SUCCESS) return result;
  if (const Session* const session = Route().handle(owner).session(); session != nullptr)
    noteDeviceMemory(*session, found, size);
  if (address != nullptr) *address = found;
  if (bytes != nullptr) *bytes = size;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are C functions

extern "C" {

CUresult ol_forward_cuModuleLoadData(CUmodule* module, const void* image) {
  return load(Operation::kLoadModule, image, 0, nullptr, nullptr, reinterpret_cast<void**>(module));
}
CUresult ol_forward_cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load(Operation::kLoadModule, image, 0, nullptr, nullptr, reinterpret_cast<void**>(module));
}
CUresult ol_forward_cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                                       void** values) {
  return load(Operation::kLoadModule, image, count, options, values, reinterpret_cast<void**>(module));
}
CUresult ol_forward_cuModuleLoad(CUmodule* module, const char* path) {
  return loadFile(Operation::kLoadModule, path, 0, nullptr, nullptr, reinterpret_cast<void**>(module));
}

// The library's own options say what may be done with `code` (kept, or copied): here it has been sent when the call returns.
CUresult ol_forward_cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values,
                                      unsigned count, CUlibraryOption* /*library_options*/, void** /*library_values*/,
                                      unsigned /*library_count*/) {
  return load(Operation::kLoadLibrary, code, count, options, values, reinterpret_cast<void**>(library));
}
CUresult ol_forward_cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options, void** values,
                                          unsigned count, CUlibraryOption* /*library_options*/,
                                          void** /*library_values*/, unsigned /*library_count*/) {
  return loadFile(Operation::kLoadLibrary, path, count, options, values, reinterpret_cast<void**>(library));
}

CUresult ol_forward_cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  return findGlobal(ol_forward_generated_cuModuleGetGlobal_v2, address, bytes, module, name);
}

CUresult ol_forward_cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return findGlobal(ol_forward_generated_cuLibraryGetGlobal, address, bytes, library, name);
}

CUresult ol_forward_cuLibraryGetManaged(CUdeviceptr* /*address*/, size_t* /*bytes*/, CUlibrary /*library*/,
                                        const char* name) {
  olpager::base::warnOnce(name != nullptr ? name : "",
                          "__managed__ variable %s: variables in managed memory are not there yet in forwarded mode",
                          name != nullptr ? name : "");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
