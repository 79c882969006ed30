#include "interpose/forward/images.h"

#include <fstream>
#include <ios>
#include <iterator>

#include "base/log.h"

namespace olpager::forward {
namespace {

// A smaller image is sent without asking whether the worker has it: that would be another round
// trip.
constexpr size_t kWorthAsking = 32 << 10;

}  // namespace

CUresult sendImage(std::span<const std::byte> image,
                   const std::function<CUresult(const ImageWay& way, bool* unknown)>& make) {
  if (image.size() > kMostImageBytes) return refused("an image of code above 1 GiB", false);
  const ImageForm whole = image.size() > kMostBytes ? ImageForm::kRegion : ImageForm::kKeep;
  ImageWay way{image, ImageForm::kDigest, {}};
  bool unknown = false;
  if (image.size() < kWorthAsking || !calls::digestOf(image, way.digest)) {
    way.form = whole == ImageForm::kRegion ? whole : ImageForm::kBytes;
    return make(way, &unknown);
  }
  const CUresult result = make(way, &unknown);
  if (!unknown) return result;
  way.form = whole;
  return make(way, &unknown);
}

CUresult putImage(Call& call, const ImageWay& way, transport::RegionPtr* region) {
  call.value(way.form);
  if (way.form == ImageForm::kDigest) {
    call.raw(way.digest.data(), way.digest.size());
  } else if (way.form == ImageForm::kRegion) {
    auto made = transport::registerMemory(
        call.session()->domain(),
        {const_cast<std::byte*>(way.image.data()), way.image.size(), -1, 0},
        transport::kRemoteRead);
    if (!made.ok()) {
      base::logError("code of %zu bytes can't be sent: %s", way.image.size(),
                     made.error().message.c_str());
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *region = std::move(made).value();
    call.value((*region)->key());
    call.mayWait();  // the worker reads it meanwhile
  } else {
    call.value(static_cast<uint64_t>(way.image.size()));
    call.bulk(way.image);
  }
  return CUDA_SUCCESS;
}

CUresult takeStatus(Reader& reply, bool* unknown) {
  const auto told = reply.value<int32_t>();
  *unknown = told == kImageUnknown;
  return *unknown ? CUDA_ERROR_FILE_NOT_FOUND : static_cast<CUresult>(told);
}

CUresult readImageFile(const char* path, std::string* bytes) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  try {
    bytes->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  } catch (const std::ios_base::failure&) {  // a folder, or a disk that fails
    return CUDA_ERROR_FILE_NOT_FOUND;
  }
  bytes->push_back('\0');  // PTX text ends so
  return CUDA_SUCCESS;
}

}  // namespace olpager::forward
