// Modules and libraries from images in the call, or that were sent before. A library's image is
// kept as long as the session: the driver may read it later.
#include <deque>
#include <mutex>

#include "base/fatbin/fatbin.h"
#include "gpunode/worker/images.h"
#include "gpunode/worker/jit_options.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

// The wrapper that a program registers; the driver takes a container by it.
struct Wrapper {
  uint32_t magic = fatbin::kWrapperMagic;
  uint32_t version = 1;
  const void* data = nullptr;
  void* unused = nullptr;
};

struct Image {
  std::vector<std::byte> bytes;
  Wrapper wrapper;
};

bool isContainer(const Image& image) { return magicOf(image.bytes) == fatbin::kContainerMagic; }

// The container's own length has to be within what was sent: the driver believes it.
bool isWhole(const Image& image) {
  const auto found = fatbin::identify(
      {reinterpret_cast<const uint8_t*>(image.bytes.data()), image.bytes.size() - 1});
  return found.ok();
}

void answer(Invocation& in, const JitOptions& options, CUresult status, uint64_t number) {
  in.results().value(static_cast<int32_t>(status));
  in.results().value(number);
  options.put(in.results());
}

// The client's image; null where there is none to load, and `result` says what the call is to
// return.
std::unique_ptr<Image> take(Invocation& in, CUresult* result) {
  bool unknown = false;
  auto image = std::make_unique<Image>();
  image->bytes = readImage(in, &unknown);
  image->wrapper.data = image->bytes.data();
  if (!in.ok()) {
    *result = in.refusal();
    return nullptr;
  }
  if (unknown) {
    in.results().value(forward::kImageUnknown);
    *result = CUDA_SUCCESS;
    return nullptr;
  }
  *result = CUDA_ERROR_INVALID_IMAGE;
  return !image->bytes.empty() && isWhole(*image) ? std::move(image) : nullptr;
}

void keep(std::unique_ptr<Image> image) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::deque<std::unique_ptr<Image>>;
  std::lock_guard lock(*mutex);
  all->push_back(std::move(image));
}

}  // namespace

CUresult loadModule(Invocation& in) {
  JitOptions options;
  (void)options.read(in);
  CUresult refusal = CUDA_SUCCESS;
  auto image = take(in, &refusal);
  if (image == nullptr) return refusal;
  CUmodule module = nullptr;
  const CUresult status =
      options.count() == 0
          ? in.driver().cuModuleLoadData(&module, image->bytes.data())
          : in.driver().cuModuleLoadDataEx(&module, image->bytes.data(), options.count(),
                                           options.names(), options.values());
  answer(in, options, status, status == CUDA_SUCCESS ? in.numberFor(module) : 0);
  if (status == CUDA_SUCCESS) keep(std::move(image));
  return CUDA_SUCCESS;
}

CUresult loadLibrary(Invocation& in) {
  const auto wanted = in.value<uint64_t>();  // the number that it is to have; 0: any
  JitOptions options;
  (void)options.read(in);
  CUresult refusal = CUDA_SUCCESS;
  auto image = take(in, &refusal);
  if (image == nullptr) return refusal;
  CUlibrary library = nullptr;
  const void* const code =
      isContainer(*image) ? static_cast<const void*>(&image->wrapper) : image->bytes.data();
  CUlibraryOption preserved[] = {CU_LIBRARY_BINARY_IS_PRESERVED};
  void* preserved_value[] = {handleFrom<void*>(1)};
  const CUresult status =
      in.driver().cuLibraryLoadData(&library, code, options.names(), options.values(),
                                    options.count(), preserved, preserved_value, 1);
  if (status == CUDA_SUCCESS && wanted != 0) in.bind(wanted, library);
  answer(in, options, status, status == CUDA_SUCCESS ? in.numberFor(library) : 0);
  if (status == CUDA_SUCCESS) keep(std::move(image));
  return CUDA_SUCCESS;
}

CUresult nameKernel(Invocation& in) {
  const auto number = in.value<uint64_t>();
  const auto library = in.handle<CUlibrary>();
  const char* const name = in.string();
  if (!in.ok() || name == nullptr) return in.refusal();
  CUkernel kernel = nullptr;
  const CUresult result = in.driver().cuLibraryGetKernel(&kernel, library, name);
  if (result == CUDA_SUCCESS) in.bind(number, kernel);
  return result;
}

}  // namespace olpager::gpunode
