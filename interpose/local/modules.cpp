// States of an image (a module or a library), moved under ModuleRoots::mutex:
//
//   loaded    its names may not be read yet            -> named     (readNames, at the first launch
//                                                      of a kernel of it)
//   named     the list of its variables is complete    -> registered for a context
//                                                      (registerModuleOf)
//   unloaded  its variables are no roots any more
//
// Names are read from the image itself, because the driver lists kernels but not variables. A
// library whose image the program keeps in place (as the runtime does) is read late; all others
// when they are loaded.
#include "interpose/local/modules.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fatbin/cubin.h"
#include "base/fatbin/fatbin.h"
#include "base/fd.h"
#include "base/log.h"
#include "interpose/local/context.h"
#include "interpose/local/hook.h"
#include "interpose/local/locks.h"
#include "interpose/local/param_layout.h"
#include "interpose/local/relief.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

// A module holds at most a pointer's worth of bytes in 8; smaller variables can't hold an address.
constexpr uint64_t kSmallestRoot = 8;

struct Image {
  const void* kept = nullptr;  // still to be read, in the program's memory
  bool is_library = false;
  bool named = false;
  std::vector<std::string> names;
  std::map<CUcontext, std::vector<CUdeviceptr>> roots;  // registered, by context
};

struct ModuleRoots {
  base::RankedMutex mutex{kModuleRootsMutex};
  std::map<const void*, std::shared_ptr<Image>> images;  // by CUmodule or CUlibrary
  std::map<const void*, CUlibrary>
      aliases;  // a library's module, and functions made of its kernels
};

ModuleRoots& moduleRoots() {
  static auto* instance = new ModuleRoots;
  return *instance;
}

void addUnique(std::vector<std::string>& names, std::string_view name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
}

// Variables of PTX: `.global` and `.const` declarations at module scope, `.align 8 .b8 name[64]`,
// `.u64 name = 0`. Names that are no variables after all do no harm: the driver does not find them.
void namesOfPtx(std::string_view text, std::vector<std::string>& names) {
  const auto isName = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
  };
  for (std::string_view space : {std::string_view(".global"), std::string_view(".const")}) {
    for (size_t at = text.find(space); at != std::string_view::npos;
         at = text.find(space, at + space.size())) {
      // ld.global and st.global are instructions, not declarations.
      const size_t line =
          text.rfind('\n', at) == std::string_view::npos ? 0 : text.rfind('\n', at) + 1;
      const std::string_view before = text.substr(line, at - line);
      if (before.find_first_not_of(" \t") != std::string_view::npos &&
          before.find(".visible") == std::string_view::npos &&
          before.find(".extern") == std::string_view::npos &&
          before.find(".weak") == std::string_view::npos &&
          before.find(".common") == std::string_view::npos) {
        continue;
      }
      const size_t end = std::min(text.find_first_of("[=;{", at), text.size());
      size_t last = end;
      while (last > at && !isName(text[last - 1])) --last;
      size_t first = last;
      while (first > at && isName(text[first - 1])) --first;
      if (first < last && text[first - 1] != '.')
        addUnique(names, text.substr(first, last - first));
    }
  }
}

void namesOfCubin(fatbin::Bytes bytes, std::vector<std::string>& names) {
  const Result<fatbin::Cubin> cubin = fatbin::readCubin(bytes);
  if (!cubin.ok()) return;
  for (const fatbin::Variable& variable : cubin.value().variables) {
    if (variable.size >= kSmallestRoot) addUnique(names, variable.name);
  }
}

// The images of a container are the same code for several devices, and which of them the driver
// takes does not matter: the names are the same. All images of one architecture are read (several
// objects may be linked into one container), PTX only where there is no machine code.
void namesOfContainer(fatbin::Bytes container, std::vector<std::string>& names) {
  const Result<std::vector<fatbin::Entry>> entries = fatbin::entries(container);
  if (!entries.ok()) return;
  const auto& all = entries.value();
  auto first = std::find_if(all.begin(), all.end(),
                            [](const auto& entry) { return entry.kind == fatbin::Kind::elf; });
  if (first == all.end()) {
    first = std::find_if(all.begin(), all.end(),
                         [](const auto& entry) { return entry.kind == fatbin::Kind::ptx; });
  }
  if (first == all.end()) return;
  for (const fatbin::Entry& entry : all) {
    if (entry.kind != first->kind || entry.arch != first->arch || entry.flags != first->flags)
      continue;
    if (entry.kind == fatbin::Kind::elf) {
      const auto bytes = fatbin::contents(entry);
      if (bytes.ok()) namesOfCubin(bytes.value(), names);
    } else {
      const auto text = fatbin::ptxText(entry);
      if (text.ok()) namesOfPtx(text.value(), names);
    }
  }
}

void namesOf(const fatbin::Image& image, std::vector<std::string>& names) {
  switch (image.form) {
    case fatbin::Image::Form::container:
      namesOfContainer(image.bytes, names);
      break;
    case fatbin::Image::Form::elf:
      namesOfCubin(image.bytes, names);
      break;
    case fatbin::Image::Form::ptx:
      namesOfPtx({reinterpret_cast<const char*>(image.bytes.data()), image.bytes.size()}, names);
      break;
  }
  for (const fatbin::Bytes& linked : image.linked) namesOfContainer(linked, names);
}

std::vector<std::string> readNames(const void* code) {
  std::vector<std::string> names;
  try {
    const Result<fatbin::Image> image = fatbin::locate(code);
    if (image.ok()) {
      namesOf(image.value(), names);
    } else {
      base::logDebug("a module's variables can't be listed: %s", image.error().message.c_str());
    }
  } catch (const std::exception& error) {
    base::logDebug("a module's variables can't be listed: %s", error.what());
  }
  return names;
}

std::vector<std::string> readNamesOfFile(const char* path) {
  std::vector<std::string> names;
  const base::UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || status.st_size <= 0) return names;
  try {
    std::vector<uint8_t> bytes(static_cast<size_t>(status.st_size));
    size_t have = 0;
    while (have < bytes.size()) {
      const ssize_t got = ::read(file.get(), bytes.data() + have, bytes.size() - have);
      if (got <= 0) return names;
      have += static_cast<size_t>(got);
    }
    const Result<fatbin::Image> image = fatbin::identify(bytes);
    if (image.ok()) namesOf(image.value(), names);
  } catch (const std::exception& error) {
    base::logDebug("%s: its variables can't be listed: %s", path, error.what());
  }
  return names;
}

void addImage(const void* handle, std::shared_ptr<Image> image) {
  std::lock_guard lock(moduleRoots().mutex);
  moduleRoots().images[handle].swap(image);
}

void addModule(CUmodule module, std::vector<std::string> names) {
  auto image = std::make_shared<Image>();
  image->names = std::move(names);
  image->named = true;
  addImage(module, std::move(image));
}

// Takes an image's roots away; `context` nullptr: in all contexts.
void dropRoots(Image& image, CUcontext context, std::vector<CUdeviceptr>& dropped) {
  for (auto it = image.roots.begin(); it != image.roots.end();) {
    if (context == nullptr || it->first == context) {
      dropped.insert(dropped.end(), it->second.begin(), it->second.end());
      it = image.roots.erase(it);
    } else {
      ++it;
    }
  }
}

void removeRoots(const std::vector<CUdeviceptr>& addresses) {
  pager::Pool* running = pool();
  if (running == nullptr) return;
  for (CUdeviceptr address : addresses) running->removeRoot(address);
}

void imageGone(const void* handle) {
  std::vector<CUdeviceptr> dropped;
  {
    std::lock_guard lock(moduleRoots().mutex);
    const auto found = moduleRoots().images.find(handle);
    if (found != moduleRoots().images.end()) {
      dropRoots(*found->second, nullptr, dropped);
      moduleRoots().images.erase(found);
    }
    std::erase_if(moduleRoots().aliases, [&](const auto& alias) { return alias.second == handle; });
  }
  removeRoots(dropped);
  invalidateParamLayouts();
}

// The module or library that a kernel belongs to.
const void* ownerOf(CUfunction function) {
  const api::DriverTable& functions = driver();
  CUlibrary library = nullptr;
  // A CUkernel first: the driver tells its handles from a CUfunction's.
  if (functions.cuKernelGetLibrary != nullptr &&
      functions.cuKernelGetLibrary(&library, reinterpret_cast<CUkernel>(function)) ==
          CUDA_SUCCESS) {
    return library;
  }
  CUmodule module = nullptr;
  if (functions.cuFuncGetModule != nullptr &&
      functions.cuFuncGetModule(&module, function) == CUDA_SUCCESS)
    return module;
  return nullptr;
}

CUresult variable(const Image& image, const void* handle, const char* name, CUdeviceptr* address,
                  size_t* bytes) {
  void* untyped = const_cast<void*>(
      handle);  // NOLINT(cppcoreguidelines-pro-type-const-cast): the handle is opaque
  return image.is_library
             ? driver().cuLibraryGetGlobal(address, bytes, static_cast<CUlibrary>(untyped), name)
             : driver().cuModuleGetGlobal_v2(address, bytes, static_cast<CUmodule>(untyped), name);
}

void registerImage(const void* handle, const std::shared_ptr<Image>& image, CUcontext context) {
  const void* kept = nullptr;
  {
    std::lock_guard lock(moduleRoots().mutex);
    if (image->roots.count(context) != 0) return;
    if (!image->named) kept = image->kept;
  }
  if (kept != nullptr) {
    std::vector<std::string> names = readNames(kept);
    std::lock_guard lock(moduleRoots().mutex);
    if (!image->named) image->names = std::move(names);
    image->named = true;
  }
  std::vector<std::string> names;
  {
    std::lock_guard lock(moduleRoots().mutex);
    names = image->names;
  }
  pager::Pool* running = pool();
  if (running == nullptr) return;
  std::vector<CUdeviceptr> found;
  for (const std::string& name : names) {
    CUdeviceptr address = 0;
    size_t bytes = 0;
    if (variable(*image, handle, name.c_str(), &address, &bytes) != CUDA_SUCCESS ||
        bytes < kSmallestRoot)
      continue;
    running->addRoot(context, address, bytes, pager::RootKind::kVariable);
    found.push_back(address);
  }
  base::logDebug("a module with %zu names: %zu variables may hold addresses", names.size(),
                 found.size());
  std::lock_guard lock(moduleRoots().mutex);
  image->roots[context] = std::move(found);
}

bool staysInPlace(const CUlibraryOption* options, void** values, unsigned count) {
  for (unsigned i = 0; i < count && options != nullptr; ++i) {
    if (options[i] == CU_LIBRARY_BINARY_IS_PRESERVED) {
      // The value is a boolean in the pointer itself, or absent, which means true.
      return values == nullptr || values[i] != nullptr;
    }
  }
  return false;
}

}  // namespace

namespace {
thread_local bool t_loads_code = false;
}

LoadsCode::LoadsCode(CUcontext context) {
  pager::Pool* const running = pool();
  if (running == nullptr || context == nullptr) return;
  if (!running->hasManaged()) {
    running->awaitHostFunctionsIn(context);
    return;
  }
  if (t_loads_code || deviceOf(context, &device_) != CUDA_SUCCESS) return;
  const pager::CodeLoad load = running->codeLoadBegins(device_);
  t_loads_code = began_ = load != pager::CodeLoad::kPlain;
  if (load == pager::CodeLoad::kAlone) held_.emplace();
}

LoadsCode::~LoadsCode() {
  if (!began_) return;
  t_loads_code = false;
  pool()->codeLoadEnded(device_);
}

void registerModuleOf(CUfunction function, CUcontext context) {
  const void* owner = ownerOf(function);
  std::shared_ptr<Image> image;
  {
    std::lock_guard lock(moduleRoots().mutex);
    auto alias = moduleRoots().aliases.find(function);
    if (alias == moduleRoots().aliases.end()) alias = moduleRoots().aliases.find(owner);
    if (alias != moduleRoots().aliases.end()) owner = alias->second;
    const auto found = moduleRoots().images.find(owner);
    if (found != moduleRoots().images.end()) image = found->second;
  }
  if (image != nullptr) registerImage(owner, image, context);
}

void registerVariable(const void* handle, CUdeviceptr address, size_t bytes, bool managed) {
  pager::Pool* running = pool();
  const CUcontext context = memoryContext();
  if (running == nullptr || context == nullptr) return;
  std::shared_ptr<Image> image;
  {
    std::lock_guard lock(moduleRoots().mutex);
    if (const auto alias = moduleRoots().aliases.find(handle); alias != moduleRoots().aliases.end())
      handle = alias->second;
    const auto found = moduleRoots().images.find(handle);
    if (found == moduleRoots().images.end()) return;  // a kernel's launch will tell of it
    image = found->second;
  }
  registerImage(handle, image, context);
  if (bytes < kSmallestRoot) return;
  {
    std::lock_guard lock(moduleRoots().mutex);
    std::vector<CUdeviceptr>& known = image->roots[context];
    if (std::find(known.begin(), known.end(), address) != known.end()) return;
    known.push_back(address);  // one that the image's own list of names lacks
  }
  running->addRoot(context, address, bytes,
                   managed ? pager::RootKind::kManaged : pager::RootKind::kVariable);
}

void modulesOfContextGone(CUcontext context) {
  std::vector<CUdeviceptr> dropped;
  {
    std::lock_guard lock(moduleRoots().mutex);
    for (auto& [handle, image] : moduleRoots().images) dropRoots(*image, context, dropped);
  }
  removeRoots(dropped);
}

}  // namespace olpager::local

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

namespace {

template <typename Native>
CUresult loadModule(CUmodule* out, const void* code, Native native) {
  const LoadsCode loads(currentContext());
  const CUresult result =
      withRelief(kModuleSteps, native, [&] { return reinterpret_cast<uint64_t>(*out); });
  if (result == CUDA_SUCCESS && pool() != nullptr) addModule(*out, readNames(code));
  return result;
}

}  // namespace

OLPAGER_HOOK(cuModuleLoad)(CUmodule* out, const char* path) {
  const LoadsCode loads(currentContext());
  const CUresult result = withRelief(
      kModuleSteps, [&] { return driver().cuModuleLoad(out, path); },
      [&] { return reinterpret_cast<uint64_t>(*out); });
  if (result == CUDA_SUCCESS && pool() != nullptr) addModule(*out, readNamesOfFile(path));
  return result;
}

OLPAGER_HOOK(cuModuleLoadData)(CUmodule* out, const void* code) {
  return loadModule(out, code, [&] { return driver().cuModuleLoadData(out, code); });
}

OLPAGER_HOOK(cuModuleLoadDataEx)
(CUmodule* out, const void* code, unsigned int count, CUjit_option* options, void** values) {
  return loadModule(out, code,
                    [&] { return driver().cuModuleLoadDataEx(out, code, count, options, values); });
}

OLPAGER_HOOK(cuModuleLoadFatBinary)(CUmodule* out, const void* code) {
  return loadModule(out, code, [&] { return driver().cuModuleLoadFatBinary(out, code); });
}

OLPAGER_HOOK(cuModuleUnload)(CUmodule module) {
  if (pool() != nullptr) imageGone(module);
  const LoadsCode unloads(currentContext());
  const CUresult result = driver().cuModuleUnload(module);
  if (result == CUDA_SUCCESS) loanGone(module);
  return result;
}

OLPAGER_HOOK(cuLibraryLoadData)
(CUlibrary* out, const void* code, CUjit_option* jit, void** jit_values, unsigned int jit_count,
 CUlibraryOption* options, void** values, unsigned int count) {
  const LoadsCode loads(currentContext());
  const CUresult result = withRelief(
      kModuleSteps,
      [&] {
        return driver().cuLibraryLoadData(out, code, jit, jit_values, jit_count, options, values,
                                          count);
      },
      [&] { return reinterpret_cast<uint64_t>(*out); });
  if (result != CUDA_SUCCESS || pool() == nullptr) return result;
  auto image = std::make_shared<Image>();
  image->is_library = true;
  if (staysInPlace(options, values, count)) {
    image->kept = code;
  } else {
    image->names = readNames(code);
    image->named = true;
  }
  addImage(*out, std::move(image));
  return result;
}

OLPAGER_HOOK(cuLibraryLoadFromFile)
(CUlibrary* out, const char* path, CUjit_option* jit, void** jit_values, unsigned int jit_count,
 CUlibraryOption* options, void** values, unsigned int count) {
  const LoadsCode loads(currentContext());
  const CUresult result = withRelief(
      kModuleSteps,
      [&] {
        return driver().cuLibraryLoadFromFile(out, path, jit, jit_values, jit_count, options,
                                              values, count);
      },
      [&] { return reinterpret_cast<uint64_t>(*out); });
  if (result != CUDA_SUCCESS || pool() == nullptr) return result;
  auto image = std::make_shared<Image>();
  image->is_library = true;
  image->names = readNamesOfFile(path);
  image->named = true;
  addImage(*out, std::move(image));
  return result;
}

OLPAGER_HOOK(cuLibraryUnload)(CUlibrary library) {
  if (pool() != nullptr) imageGone(library);
  const LoadsCode unloads(currentContext());
  const CUresult result = driver().cuLibraryUnload(library);
  if (result == CUDA_SUCCESS) loanGone(library);
  return result;
}

// A program that asks where a variable is will copy to it, perhaps before any kernel of the module
// runs.
OLPAGER_HOOK(cuModuleGetGlobal_v2)
(CUdeviceptr* out, size_t* bytes, CUmodule module, const char* name) {
  const CUresult result = driver().cuModuleGetGlobal_v2(out, bytes, module, name);
  size_t size = 0;
  CUdeviceptr address = 0;
  if (result == CUDA_SUCCESS && out != nullptr && pool() != nullptr &&
      driver().cuModuleGetGlobal_v2(&address, &size, module, name) == CUDA_SUCCESS)
    registerVariable(module, address, size, false);
  return result;
}

OLPAGER_HOOK(cuLibraryGetGlobal)
(CUdeviceptr* out, size_t* bytes, CUlibrary library, const char* name) {
  const LoadsCode loads(currentContext());
  const CUresult result = driver().cuLibraryGetGlobal(out, bytes, library, name);
  size_t size = 0;
  CUdeviceptr address = 0;
  if (result == CUDA_SUCCESS && out != nullptr && pool() != nullptr &&
      driver().cuLibraryGetGlobal(&address, &size, library, name) == CUDA_SUCCESS)
    registerVariable(library, address, size, false);
  return result;
}

OLPAGER_HOOK(cuLibraryGetManaged)
(CUdeviceptr* out, size_t* bytes, CUlibrary library, const char* name) {
  const LoadsCode loads(currentContext());
  const CUresult result = driver().cuLibraryGetManaged(out, bytes, library, name);
  size_t size = 0;
  CUdeviceptr address = 0;
  if (result == CUDA_SUCCESS && out != nullptr && pool() != nullptr &&
      driver().cuLibraryGetManaged(&address, &size, library, name) == CUDA_SUCCESS)
    registerVariable(library, address, size, true);
  return result;
}

// The driver gives a library's module and its kernels' functions handles of their own.
OLPAGER_HOOK(cuLibraryGetModule)(CUmodule* out, CUlibrary library) {
  const LoadsCode loads(currentContext());
  const CUresult result = driver().cuLibraryGetModule(out, library);
  if (result == CUDA_SUCCESS && pool() != nullptr) {
    std::lock_guard lock(moduleRoots().mutex);
    moduleRoots().aliases[*out] = library;
  }
  return result;
}

OLPAGER_HOOK(cuKernelGetFunction)(CUfunction* out, CUkernel kernel) {
  const LoadsCode loads(currentContext());
  const CUresult result = driver().cuKernelGetFunction(out, kernel);
  CUlibrary library = nullptr;
  if (result == CUDA_SUCCESS && pool() != nullptr && driver().cuKernelGetLibrary != nullptr &&
      driver().cuKernelGetLibrary(&library, kernel) == CUDA_SUCCESS) {
    std::lock_guard lock(moduleRoots().mutex);
    moduleRoots().aliases[*out] = library;
  }
  return result;
}

OLPAGER_HOOK(cuModuleGetFunction)(CUfunction* out, CUmodule module, const char* name) {
  const LoadsCode loads(currentContext());
  return driver().cuModuleGetFunction(out, module, name);
}

OLPAGER_HOOK(cuFuncLoad)(CUfunction function) {
  const LoadsCode loads(currentContext());
  return driver().cuFuncLoad(function);
}
