// An ordinary program whose gpunode may lie: a module with two variables and a kernel of one small
// argument, beside things that it never gives to CUDA. The program says where its word is and, told
// to go on, what each call returned and whether its word is as it was.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>

namespace {

volatile uint64_t g_word = 0x1122334455667788;

const char kPtx[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 one;
.visible .global .align 4 .u32 two;
.visible .entry nothing(.param .u32 argument)
{
  ret;
}
)";

void* g_driver = nullptr;

template <typename... Arguments>
int call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<CUresult (*)(Arguments...)>(dlsym(g_driver, name));
  return function != nullptr ? function(arguments...) : -1;
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("%llx\n", static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(&g_word)));
  if (std::getchar() == EOF) return 2;
  g_driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (g_driver == nullptr) return std::printf("%s\n", dlerror()), 2;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  int result = call("cuInit", 0u);
  if (result == 0) result = call("cuDevicePrimaryCtxRetain", &context, CUdevice{0});
  if (result == 0) result = call("cuCtxSetCurrent", context);
  if (result == 0) result = call("cuModuleLoadData", &module, static_cast<const void*>(kPtx));
  if (result == 0)
    result = call("cuModuleGetFunction", &kernel, module, static_cast<const char*>("nothing"));
  if (result != 0) return std::printf("CUDA error %d\n", result), 2;
  struct {
    uint32_t argument = 1;
    char secret[4096] = "what the program never gives to CUDA";
  } frame;
  void* arguments[] = {&frame.argument};
  result = call("cuLaunchKernel", kernel, 1u, 1u, 1u, 1u, 1u, 1u, 0u, CUstream{}, arguments,
                static_cast<void**>(nullptr));
  std::printf("launch %d\n", result);
  for (const char* name : {"one", "two"}) {
    CUdeviceptr address = 0;
    size_t bytes = 0;
    result = call("cuModuleGetGlobal_v2", &address, &bytes, module, name);
    std::printf("%s %d\n", name, result);
  }
  unsigned flags = 0;
  const auto word = reinterpret_cast<uintptr_t>(&g_word);
  std::printf("pinned %d\n", call("cuMemHostGetFlags", &flags, reinterpret_cast<void*>(word)));
  std::printf("word %s\n", g_word == 0x1122334455667788 ? "same" : "changed");
  return 0;
}
