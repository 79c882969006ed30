#include "gpunode/simgpu/modules/image.h"

#include <cstdio>
#include <mutex>
#include <set>

#include "base/fatbin/cubin.h"
#include "base/fatbin/fatbin.h"
#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {
namespace {

// On stderr once for each text: a library may ask for many images of a kind.
CUresult refuse(JitOptions& options, CUresult error, const std::string& line) {
  options.error(line);
  static std::mutex mutex;
  static auto* const said = new std::set<std::string>;
  constexpr size_t kMost = 1000;
  const std::lock_guard lock(mutex);
  if (said->size() < kMost && said->insert(line).second) report(line);
  return error;
}

// PTX for one exact architecture (sm_90a) or one family (sm_100f) runs there alone.
bool suits(const fatbin::Entry& entry, int capability) {
  const int arch = static_cast<int>(entry.arch);
  if ((entry.flags & fatbin::kFlagArchSpecific) != 0) return arch == capability;
  if ((entry.flags & fatbin::kFlagFamilySpecific) != 0)
    return arch / 10 == capability / 10 && arch <= capability;
  return arch <= capability;
}

CUresult fromContainer(const Device& device, fatbin::Bytes container, JitOptions& options,
                       Code* code) {
  auto all = fatbin::entries(container);
  if (!all) return refuse(options, CUDA_ERROR_INVALID_IMAGE, all.error().message);
  const int capability = computeCapability(device);
  const fatbin::Entry* best = nullptr;
  std::string others;
  for (const fatbin::Entry& entry : all.value()) {
    if (entry.kind == fatbin::Kind::ptx && suits(entry, capability)) {
      if (best == nullptr || entry.arch > best->arch) best = &entry;
    } else {
      others += others.empty() ? "" : ", ";
      others += (entry.kind == fatbin::Kind::ptx ? "PTX for compute_" : "machine code for sm_") +
                std::to_string(entry.arch);
    }
  }
  if (best == nullptr) {
    return refuse(
        options, CUDA_ERROR_NO_BINARY_FOR_GPU,
        "the program's fat binary has no PTX for compute capability " +
            std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
            " or older (it has " + (others.empty() ? "nothing" : others) +
            "); build it with PTX inside, e.g. nvcc -gencode arch=compute_75,code=compute_75");
  }
  auto text = fatbin::ptxText(*best);
  if (!text) return refuse(options, CUDA_ERROR_INVALID_IMAGE, text.error().message);
  code->name = best->name.empty() ? "ptx" : std::string(best->name);
  code->ptx = std::move(text).value();
  code->target = static_cast<int>(best->arch);
  return CUDA_SUCCESS;
}

CUresult fromImage(const Device& device, const fatbin::Image& image, JitOptions& options,
                   Code* code) {
  switch (image.form) {
    case fatbin::Image::Form::container: {
      if (image.linked.empty()) return fromContainer(device, image.bytes, options, code);
      if (image.linked.size() == 1) return fromContainer(device, image.linked[0], options, code);
      return refuse(options, CUDA_ERROR_NO_BINARY_FOR_GPU,
                    "the program links " + std::to_string(image.linked.size()) +
                        " relocatable images at run time, which the simulated GPU cannot do; build "
                        "it without -rdc=true");
    }
    case fatbin::Image::Form::elf: {
      const auto cubin = fatbin::readCubin(image.bytes);
      if (!cubin) return refuse(options, CUDA_ERROR_INVALID_IMAGE, cubin.error().message);
      return refuse(options, CUDA_ERROR_NO_BINARY_FOR_GPU,
                    "the image is machine code for sm_" + std::to_string(cubin.value().arch) +
                        " and the simulated GPU runs PTX; build without -rdc=true and with PTX "
                        "inside, e.g. nvcc "
                        "-gencode arch=compute_75,code=compute_75");
    }
    case fatbin::Image::Form::ptx: {
      code->name = "ptx";
      code->ptx.assign(reinterpret_cast<const char*>(image.bytes.data()), image.bytes.size());
      code->target = 0;
      // Text that is no PTX at all is an image that the driver does not know.
      if (code->ptx.find(".version") == std::string::npos) {
        return refuse(options, CUDA_ERROR_INVALID_IMAGE,
                      "the image is no PTX text, fat binary or cubin");
      }
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_IMAGE;
}

}  // namespace

CUresult findCode(const Device& device, const void* image, JitOptions& options, Code* code) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto located = fatbin::locate(image);
  if (!located) return refuse(options, CUDA_ERROR_INVALID_IMAGE, located.error().message);
  return fromImage(device, located.value(), options, code);
}

CUresult findCode(const Device& device, std::span<const uint8_t> bytes, JitOptions& options,
                  Code* code) {
  auto image = fatbin::identify(bytes);
  if (!image) return refuse(options, CUDA_ERROR_INVALID_IMAGE, image.error().message);
  return fromImage(device, image.value(), options, code);
}

CUresult compileCode(const Device& device, const Code& code, JitOptions& options,
                     std::shared_ptr<ptx::Module>* out) {
  auto module = ptx::compile(code.ptx, {code.name});
  if (!module) return refuse(options, CUDA_ERROR_INVALID_PTX, module.error().message);
  const int capability = computeCapability(device);
  if (module.value()->target() > capability) {
    return refuse(options, CUDA_ERROR_INVALID_PTX,
                  code.name + ": .target sm_" + std::to_string(module.value()->target()) +
                      " is newer than the device's sm_" + std::to_string(capability));
  }
  options.info(code.name + ": compiled for sm_" + std::to_string(capability) + ", " +
               std::to_string(module.value()->kernels().size()) + " kernels");
  *out = std::move(module).value();
  return CUDA_SUCCESS;
}

int computeCapability(const Device& device) {
  int major = 0;
  int minor = 0;
  device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major);
  device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor);
  return 10 * major + minor;
}

void report(const std::string& line) { std::fprintf(stderr, "olsimcuda: %s\n", line.c_str()); }

}  // namespace olpager::simgpu
