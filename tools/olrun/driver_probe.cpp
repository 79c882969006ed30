#include "tools/olrun/driver_probe.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "base/format.h"

namespace olpager::tools {
namespace {

constexpr int kOldestVersion = 12040;     // of CUDA, as cuDriverGetVersion says it
constexpr unsigned kSecondsToStart = 60;  // a driver that hangs must not hang olrun

bool sameFile(const std::string& a, const std::string& b) {
  struct stat x {};
  struct stat y {};
  return stat(a.c_str(), &x) == 0 && stat(b.c_str(), &y) == 0 && x.st_dev == y.st_dev &&
         x.st_ino == y.st_ino;
}

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

std::string nameOf(void* library, CUresult result) {
  const char* name = nullptr;
  if (auto* get = symbol<decltype(cuGetErrorName)>(library, "cuGetErrorName"); get != nullptr)
    get(result, &name);
  return name != nullptr ? name : base::format("error {}", static_cast<int>(result));
}

// cuInit, devices, and whether host memory can be made as the pager makes it.
void start(void* library, nlohmann::json& facts) {
  auto* const init = symbol<decltype(cuInit)>(library, "cuInit");
  auto* const count = symbol<decltype(cuDeviceGetCount)>(library, "cuDeviceGetCount");
  auto* const retain =
      symbol<decltype(cuDevicePrimaryCtxRetain)>(library, "cuDevicePrimaryCtxRetain");
  auto* const make_current = symbol<decltype(cuCtxSetCurrent)>(library, "cuCtxSetCurrent");
  auto* const create = symbol<decltype(cuMemCreate)>(library, "cuMemCreate");
  auto* const release = symbol<decltype(cuMemRelease)>(library, "cuMemRelease");
  if (count == nullptr || retain == nullptr || make_current == nullptr || create == nullptr ||
      release == nullptr) {
    facts["start_problem"] =
        "the driver lacks virtual memory management; olpager needs 550 or newer";
    return;
  }
  if (const CUresult result = init(0); result != CUDA_SUCCESS) {
    facts["start_problem"] = base::format("cuInit says {}", nameOf(library, result));
    return;
  }
  int devices = 0;
  if (const CUresult result = count(&devices); result != CUDA_SUCCESS || devices == 0) {
    facts["start_problem"] = "the driver has no device";
    return;
  }
  facts["devices"] = devices;
  CUcontext context = nullptr;
  CUresult result = retain(&context, 0);
  if (result == CUDA_SUCCESS) result = make_current(context);
  if (result != CUDA_SUCCESS) {
    facts["start_problem"] =
        base::format("the first context on device 0 fails with {}", nameOf(library, result));
    return;
  }
  CUmemAllocationProp properties;
  std::memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle handle = 0;
  result = create(&handle, 2ull << 20, &properties, 0);
  if (result == CUDA_SUCCESS) {
    release(handle);
  } else {
    facts["host_problem"] = nameOf(library, result);
  }
}

// A failed question is not told: the program's own cuInit says why.
void measure(void* library, nlohmann::json& facts) {
  auto* const init = symbol<decltype(cuInit)>(library, "cuInit");
  auto* const count = symbol<decltype(cuDeviceGetCount)>(library, "cuDeviceGetCount");
  auto* const get = symbol<decltype(cuDeviceGet)>(library, "cuDeviceGet");
  auto* const total = symbol<decltype(cuDeviceTotalMem_v2)>(library, "cuDeviceTotalMem_v2");
  int devices = 0;
  if (count == nullptr || get == nullptr || total == nullptr || init(0) != CUDA_SUCCESS ||
      count(&devices) != CUDA_SUCCESS)
    return;
  size_t least = 0;
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    CUdevice device = 0;
    size_t bytes = 0;
    if (get(&device, ordinal) != CUDA_SUCCESS || total(&bytes, device) != CUDA_SUCCESS) continue;
    if (least != 0 && least <= bytes) continue;
    least = bytes;
    facts["least_device"] = ordinal;
  }
  facts["least_vram"] = least;
}

nlohmann::json inspect(const std::string& driver, Probe probe, const std::string& own_library) {
  nlohmann::json facts;
  void* library = dlopen(driver.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    facts["problem"] = why != nullptr ? why : "can't be loaded";
    return facts;
  }
  auto* const init = symbol<decltype(cuInit)>(library, "cuInit");
  if (init == nullptr) {
    facts["problem"] = base::format("{}: is no CUDA driver: it has no cuInit", driver);
    return facts;
  }
  Dl_info about{};
  if (dladdr(reinterpret_cast<void*>(init), &about) != 0 && about.dli_fname != nullptr)
    facts["path"] = about.dli_fname;
  const std::string path = facts.value("path", driver);
  if (sameFile(path, own_library)) {
    facts["problem"] =
        base::format("{}: is olpager itself; name the real driver by its path", path);
    return facts;
  }
  if (path.find("/stubs/") != std::string::npos) {
    facts["problem"] = base::format("{}: is the CUDA Toolkit's stub for linking, no driver", path);
    return facts;
  }
  if (auto* version = symbol<decltype(cuDriverGetVersion)>(library, "cuDriverGetVersion");
      version != nullptr) {
    int number = 0;
    if (version(&number) == CUDA_SUCCESS) facts["version"] = number;
    if (number != 0 && number < kOldestVersion) {
      facts["problem"] = base::format("{}: offers CUDA {}.{}; 12.4 (driver 550) or newer is needed",
                                      path, number / 1000, number % 1000 / 10);
      return facts;
    }
  }
  if (probe == Probe::kStart) start(library, facts);
  if (probe == Probe::kVram) measure(library, facts);
  return facts;
}

}  // namespace

Result<DriverFacts> probeDriver(const std::string& driver, Probe probe,
                                const std::string& own_library) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Error{base::format("pipe: {}", std::strerror(errno))};
  base::UniqueFd from(ends[0]);
  base::UniqueFd to(ends[1]);
  const pid_t child = fork();
  if (child < 0) return Error{base::format("fork: {}", std::strerror(errno))};
  if (child == 0) {
    alarm(kSecondsToStart);
    std::string text;
    try {
      text = inspect(driver, probe, own_library)
                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    } catch (...) {  // the parent sees no answer
    }
    [[maybe_unused]] const ssize_t written = write(to.get(), text.data(), text.size());
    _exit(0);  // no destructor of the driver runs
  }
  to.reset();
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0;
       (n = read(from.get(), buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const auto facts = nlohmann::json::parse(text, nullptr, false);
  if (!facts.is_object() && !facts.is_null()) {
    if (WIFSIGNALED(status)) {
      return Error{base::format("{}: loading it ends the process ({})", driver,
                                strsignal(WTERMSIG(status)))};
    }
    return Error{base::format("{}: loading it ends the process", driver)};
  }
  if (facts.contains("problem")) {
    const std::string problem = facts.value("problem", "");
    return Error{problem.find(driver) == std::string::npos && problem.find('/') == std::string::npos
                     ? base::format("{}: {}", driver, problem)
                     : problem};
  }
  DriverFacts found;
  found.path = facts.value("path", driver);
  found.version = facts.value("version", 0);
  found.devices = facts.value("devices", -1);
  found.start_problem = facts.value("start_problem", "");
  found.host_problem = facts.value("host_problem", "");
  found.least_vram = facts.value("least_vram", uint64_t{0});
  found.least_device = facts.value("least_device", 0);
  return found;
}

}  // namespace olpager::tools
