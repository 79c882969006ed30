// Code on its way to a worker (a container, a cubin, PTX text, what else the linker takes): the
// worker keeps what clients of its key have sent (gpunode/worker/module_cache.h), so what is worth
// it is named by its SHA-256 first, and sent only where the worker does not have it. Thread-safety:
// any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "coherence/calls/digest.h"
#include "coherence/transport/regions.h"
#include "interpose/forward/call.h"

namespace olpager::forward {

/// How an image goes with one call.
struct ImageWay {
  std::span<const std::byte> image;
  ImageForm form = ImageForm::kBytes;
  calls::Digest digest{};
};

/// Has `make` send the image with a call of its own, and again with its bytes where `unknown` was
/// set. CUDA_ERROR_NOT_SUPPORTED above 1 GiB.
CUresult sendImage(std::span<const std::byte> image,
                   const std::function<CUresult(const ImageWay& way, bool* unknown)>& make);

/// The last of the call's arguments. The Region that `*region` gets has to outlive the call.
CUresult putImage(Call& call, const ImageWay& way, transport::RegionPtr* region);

/// The head of the answer: whether the worker does not know the image, else what the driver said of
/// it.
CUresult takeStatus(Reader& reply, bool* unknown);

/// A file of this machine, with a NUL behind it. CUDA_ERROR_FILE_NOT_FOUND where it can't be read.
CUresult readImageFile(const char* path, std::string* bytes);

}  // namespace olpager::forward
