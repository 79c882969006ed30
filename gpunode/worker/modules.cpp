// Modules and libraries from images in the call, or that were sent before. A library's image is kept as long as the session: the driver may read it later.
#include <algorithm>
#include <deque>
#include <mutex>

#include "base/fatbin/fatbin.h"
#include "coherence/transport/regions.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

constexpr uint32_t kMostOptions = 64;
constexpr size_t kLogBytes = 16384;

// What a program registers; the driver takes a container by it.
struct Wrapper {
  uint32_t magic = 0x466243b1;
  uint32_t version = 1;
  const void* data = nullptr;
  void* unused = nullptr;
};

struct Image {
  std::vector<std::byte> bytes;
  Wrapper wrapper;
};

/// Options of the compiler; logs are made here and their texts go back.
struct Options {
  std::vector<CUjit_option> names;
  std::vector<void*> values;
  std::vector<std::vector<char>> logs;
};

bool isLog(CUjit_option option) { return option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER; }
bool isLogSize(CUjit_option option) {
  return option == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES || option == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
}
// Numbers alone; everything else holds pointers.
bool isNumber(CUjit_option option) {
  switch (option) {
    case CU_JIT_GLOBAL_SYMBOL_NAMES:
    case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
    case CU_JIT_REFERENCED_KERNEL_NAMES:
    case CU_JIT_REFERENCED_VARIABLE_NAMES:
      return false;
    default:
      return option >= 0 && option < CU_JIT_NUM_OPTIONS;
  }
}

bool readOptions(Invocation& in, Options& options) {
  const auto count = in.value<uint32_t>();
  if (count > kMostOptions) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const auto name = static_cast<CUjit_option>(in.value<int32_t>());
    const auto value = in.value<uint64_t>();
    if (!isNumber(name)) return false;
    options.names.push_back(name);
    options.logs.emplace_back(isLog(name) ? kLogBytes : 0);
    options.values.push_back(isLog(name)       ? options.logs.back().data()
                             : isLogSize(name) ? handleFrom<void*>(kLogBytes - 1)
                                               : handleFrom<void*>(value));
  }
  return in.ok();
}

// Reads an image out of the client's memory; false: the client is gone, or has no such region.
bool fetch(Worker& worker, const transport::RemoteKey& from, std::vector<std::byte>& into) {
  constexpr uint64_t kPiece = 4ull << 20;
  constexpr size_t kAhead = 4;
  into.resize(from.length);
  const auto region =
      transport::registerMemory(worker.staging().domain(), {into.data(), into.size(), -1, 0}, transport::kLocalOnly);
  if (!region.ok()) return false;
  std::deque<calls::TransferPtr> under_way;
  bool all = true;
  const auto endFirst = [&] {
    all = worker.arrived(*under_way.front()) && all;
    under_way.pop_front();
  };
  for (uint64_t at = 0; at < from.length && all; at += kPiece) {
    const uint64_t bytes = std::min(kPiece, from.length - at);
    under_way.push_back(worker.channel().fetch({region.value().get(), at, bytes}, {from, at, bytes}));
    if (under_way.size() == kAhead) endFirst();
  }
  while (!under_way.empty()) endFirst();
  return all;
}

// An image that the bytes are, whole; null when they are none. `unknown`: the client has to send it.
std::unique_ptr<Image> readImage(Invocation& in, bool* unknown) {
  auto image = std::make_unique<Image>();
  const auto form = in.value<forward::ImageForm>();
  if (form == forward::ImageForm::kDigest) {
    calls::Digest digest{};
    const auto said = in.arguments().raw(digest.size());
    if (!in.ok()) return nullptr;
    std::memcpy(digest.data(), said.data(), digest.size());
    auto found = in.worker().moduleCache().find(digest);
    *unknown = !found;
    if (!found || found->empty()) return nullptr;
    image->bytes = std::move(*found);
  } else if (form == forward::ImageForm::kRegion) {
    const auto region = in.value<transport::RemoteKey>();
    if (region.length == 0 || region.length > forward::kMostImageBytes) in.arguments().fail();
    if (!in.ok() || !fetch(in.worker(), region, image->bytes)) return nullptr;
    in.worker().moduleCache().store(image->bytes);
  } else {
    const auto bytes = in.arguments().raw(in.value<uint64_t>());
    if (bytes.empty()) return nullptr;
    image->bytes.assign(bytes.begin(), bytes.end());
    if (form == forward::ImageForm::kKeep) in.worker().moduleCache().store(bytes);
  }
  image->bytes.push_back(std::byte{0});  // text ends with a NUL, whatever was sent
  image->wrapper.data = image->bytes.data();
  return image;
}

bool isContainer(const Image& image) {
  uint32_t magic = 0;
  if (image.bytes.size() > sizeof magic) std::memcpy(&magic, image.bytes.data(), sizeof magic);
  return magic == 0xba55ed50;
}

// The container's own length has to be within what was sent: the driver believes it.
bool isWhole(const Image& image) {
  const auto found = fatbin::identify({reinterpret_cast<const uint8_t*>(image.bytes.data()), image.bytes.size() - 1});
  return found.ok();
}

void answer(Invocation& in, const Options& options, CUresult status, uint64_t number) {
  in.results().value(static_cast<int32_t>(status));
  in.results().value(number);
  for (size_t i = 0; i < options.names.size(); ++i) {
    in.results().value(isLog(options.names[i]) ? uint64_t{0} : bitsOf(options.values[i]));
    const auto& log = options.logs[i];
    in.results().text({log.data(), log.empty() ? 0 : strnlen(log.data(), log.size())});
  }
}

void keep(std::unique_ptr<Image> image) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::deque<std::unique_ptr<Image>>;
  std::lock_guard lock(*mutex);
  all->push_back(std::move(image));
}

}  // namespace

CUresult loadModule(Invocation& in) {
  Options options;
  if (!readOptions(in, options)) in.arguments().fail();
  bool unknown = false;
  auto image = readImage(in, &unknown);
  if (!in.ok()) return in.refusal();
  if (unknown) {
    in.results().value(forward::kImageUnknown);
    return CUDA_SUCCESS;
  }
  if (image == nullptr || !isWhole(*image)) return CUDA_ERROR_INVALID_IMAGE;
  CUmodule module = nullptr;
  const CUresult status =
      options.names.empty()
          ? in.driver().cuModuleLoadData(&module, image->bytes.data())
          : in.driver().cuModuleLoadDataEx(&module, image->bytes.data(), static_cast<unsigned>(options.names.size()),
                                           options.names.data(), options.values.data());
  answer(in, options, status, status == CUDA_SUCCESS ? in.numberFor(module) : 0);
  if (status == CUDA_SUCCESS) keep(std::move(image));
  return CUDA_SUCCESS;
}

CUresult loadLibrary(Invocation& in) {
  const auto wanted = in.value<uint64_t>();  // the number that it is to have; 0: any
  Options options;
  if (!readOptions(in, options)) in.arguments().fail();
  bool unknown = false;
  auto image = readImage(in, &unknown);
  if (!in.ok()) return in.refusal();
  if (unknown) {
    in.results().value(forward::kImageUnknown);
    return CUDA_SUCCESS;
  }
  if (image == nullptr || !isWhole(*image)) return CUDA_ERROR_INVALID_IMAGE;
  CUlibrary library = nullptr;
  const void* const code = isContainer(*image) ? static_cast<const void*>(&image->wrapper) : image->bytes.data();
  CUlibraryOption preserved[] = {CU_LIBRARY_BINARY_IS_PRESERVED};
  void* preserved_value[] = {handleFrom<void*>(1)};
  const CUresult status =
      in.driver().cuLibraryLoadData(&library, code, options.names.data(), options.values.data(),
                                    static_cast<unsigned>(options.names.size()), preserved, preserved_value, 1);
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
