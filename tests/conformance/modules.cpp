// Modules, libraries, kernels: lookups, parameter layout, errors; and launch arguments.
#include <cstring>

#include "record.h"

namespace conformance {

void sectionModules() {
  const Base base;
  CUmodule module = nullptr;
  record("modules.load_text_that_is_no_ptx", api.cuModuleLoadData(&module, "this is no PTX"));
  record("modules.load_empty", api.cuModuleLoadData(&module, ""));
  record("modules.load_unknown_instruction",
         api.cuModuleLoadData(&module,
                              ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry f() "
                              "{ frobnicate.u32; ret; }\n"));
  char log[1024] = "";
  CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  record("modules.load_with_log",
         api.cuModuleLoadDataEx(&module,
                                ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry "
                                "f() { frobnicate.u32; ret; }\n",
                                2, names, values));
  recordBool("modules.load_log_says_something", log[0] != 0);
  record("modules.load", api.cuModuleLoadData(&module, kPtx));
  CUfunction many = nullptr, function = nullptr;
  record("modules.function_absent", api.cuModuleGetFunction(&function, module, "absent"));
  record("modules.function", api.cuModuleGetFunction(&many, module, "many"));
  api.cuModuleGetFunction(&function, module, "many");
  recordBool("modules.function_same_handle", function == many);
  unsigned count = 0;
  const CUresult counted = api.cuModuleGetFunctionCount(&count, module);
  recordNumberOr("modules.function_count", counted, count);
  CUdeviceptr global = 0;
  size_t bytes = 0;
  record("modules.global", api.cuModuleGetGlobal(&global, &bytes, module, "table"));
  recordNumber("modules.global.bytes", int64_t(bytes));
  record("modules.global_constant", api.cuModuleGetGlobal(&global, &bytes, module, "limit"));
  recordNumber("modules.global_constant.bytes", int64_t(bytes));
  record("modules.global_absent", api.cuModuleGetGlobal(&global, &bytes, module, "absent"));
  record("modules.global_size_only", api.cuModuleGetGlobal(nullptr, &bytes, module, "table"));
  record("modules.global_address_only", api.cuModuleGetGlobal(&global, nullptr, module, "table"));
  record("modules.global_of_function", api.cuModuleGetGlobal(&global, &bytes, module, "many"));
  // A global starts with zeros.
  uint32_t word = 9;
  api.cuModuleGetGlobal(&global, &bytes, module, "table");
  record("modules.global_read", api.cuMemcpyDtoH(&word, global, 4));
  recordNumber("modules.global_initially", word);

  for (size_t i = 0; i <= 6; ++i) {
    size_t offset = 999, size = 999;
    const CUresult rc = api.cuFuncGetParamInfo(many, i, &offset, &size);
    record("modules.param." + std::to_string(i),
           rc == CUDA_SUCCESS ? "offset " + std::to_string(offset) + " size " + std::to_string(size)
                              : text(rc));
  }
  size_t offset = 0;
  record("modules.param_size_null", api.cuFuncGetParamInfo(many, 0, &offset, nullptr));
  const char* name = nullptr;
  record("modules.function_name", api.cuFuncGetName(&name, many));
  record("modules.function_name.value", name == nullptr ? "null" : name);
  CUmodule owner = nullptr;
  record("modules.function_module", api.cuFuncGetModule(&owner, many));
  recordBool("modules.function_module.same", owner == module);
  int value = -1;
  const CUresult threads =
      api.cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, many);
  recordNumberOr("modules.attribute.max_threads", threads, value);
  const CUresult shared = api.cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, many);
  recordNumberOr("modules.attribute.shared", shared, value);
  record("modules.attribute_99", api.cuFuncGetAttribute(&value, CUfunction_attribute(99), many));
  record("modules.set_attribute_shared_48k",
         api.cuFuncSetAttribute(many, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 48 << 10));
  record("modules.set_attribute_shared_16m",
         api.cuFuncSetAttribute(many, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 16 << 20));
  record("modules.set_attribute_read_only",
         api.cuFuncSetAttribute(many, CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
  int blocks = -1;
  const CUresult occupied = api.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, many, 256, 0);
  recordBoolOr("modules.occupancy_positive", occupied, blocks > 0);
  record("modules.unload", api.cuModuleUnload(module));

  CUlibrary library = nullptr;
  record("modules.library_load",
         api.cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  record("modules.library_kernel", api.cuLibraryGetKernel(&kernel, library, "many"));
  CUkernel absent = nullptr;
  record("modules.library_kernel_absent", api.cuLibraryGetKernel(&absent, library, "absent"));
  const CUresult kernels = api.cuLibraryGetKernelCount(&count, library);
  recordNumberOr("modules.library_kernel_count", kernels, count);
  for (size_t i = 4; i <= 5; ++i) {
    size_t at = 999, size = 999;
    const CUresult rc = api.cuKernelGetParamInfo(kernel, i, &at, &size);
    record("modules.kernel_param." + std::to_string(i),
           rc == CUDA_SUCCESS ? "offset " + std::to_string(at) + " size " + std::to_string(size)
                              : text(rc));
  }
  CUfunction from_kernel = nullptr;
  record("modules.kernel_function", api.cuKernelGetFunction(&from_kernel, kernel));
  record("modules.kernel_name", api.cuKernelGetName(&name, kernel));
  CUmodule of_library = nullptr;
  record("modules.library_module", api.cuLibraryGetModule(&of_library, library));
  record("modules.library_global", api.cuLibraryGetGlobal(&global, &bytes, library, "table"));
  CUkernel nothing = nullptr;
  api.cuLibraryGetKernel(&nothing, library, "nothing");
  record("modules.launch_kernel_handle", launchOne(reinterpret_cast<CUfunction>(nothing), {}));
  record("modules.synchronize", api.cuCtxSynchronize());
  record("modules.library_unload", api.cuLibraryUnload(library));
}

void sectionLaunch() {
  const Base base;
  const Kernels kernels;
  CUdeviceptr p = 0;
  need(api.cuMemAlloc(&p, 4096), "cuMemAlloc");
  uint32_t value = 0x77665544;
  void* parameters[] = {&p, &value};
  const auto launch = [&](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void** list, void** extra) {
    return api.cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, nullptr, list, extra);
  };
  record("launch.plain", launch(kernels.store, 1, 1, 1, 1, 1, 1, 0, parameters, nullptr));
  record("launch.null_function", launch(nullptr, 1, 1, 1, 1, 1, 1, 0, parameters, nullptr));
  record("launch.grid_0", launch(kernels.nothing, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr));
  record("launch.block_0", launch(kernels.nothing, 1, 1, 1, 0, 1, 1, 0, nullptr, nullptr));
  record("launch.block_1025", launch(kernels.nothing, 1, 1, 1, 1025, 1, 1, 0, nullptr, nullptr));
  record("launch.block_2048_by_product",
         launch(kernels.nothing, 1, 1, 1, 32, 32, 2, 0, nullptr, nullptr));
  record("launch.block_z_65", launch(kernels.nothing, 1, 1, 1, 1, 1, 65, 0, nullptr, nullptr));
  record("launch.grid_y_65536", launch(kernels.nothing, 1, 65536, 1, 1, 1, 1, 0, nullptr, nullptr));
  record("launch.shared_48k",
         launch(kernels.nothing, 1, 1, 1, 1, 1, 1, 48 << 10, nullptr, nullptr));
  record("launch.shared_48k_and_1",
         launch(kernels.nothing, 1, 1, 1, 1, 1, 1, (48 << 10) + 1, nullptr, nullptr));
  record("launch.no_parameters_given",
         launch(kernels.store, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr));
  struct {
    CUdeviceptr address;
    uint32_t value;
  } packed{p + 64, 0x11223344};
  size_t bytes = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  record("launch.extra", launch(kernels.store, 1, 1, 1, 1, 1, 1, 0, nullptr, extra));
  record("launch.extra_and_parameters",
         launch(kernels.store, 1, 1, 1, 1, 1, 1, 0, parameters, extra));
  bytes = 8;
  record("launch.extra_too_short", launch(kernels.store, 1, 1, 1, 1, 1, 1, 0, nullptr, extra));
  bytes = 16;
  record("launch.extra_padded", launch(kernels.store, 1, 1, 1, 1, 1, 1, 0, nullptr, extra));
  void* swapped[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_BUFFER_POINTER, &packed,
                     CU_LAUNCH_PARAM_END};
  bytes = 12;
  record("launch.extra_size_first", launch(kernels.store, 1, 1, 1, 1, 1, 1, 0, nullptr, swapped));
  void* bad[] = {reinterpret_cast<void*>(uintptr_t{77}), &packed, CU_LAUNCH_PARAM_END};
  record("launch.extra_unknown_key", launch(kernels.store, 1, 1, 1, 1, 1, 1, 0, nullptr, bad));
  void* only_end[] = {CU_LAUNCH_PARAM_END};
  record("launch.extra_empty", launch(kernels.nothing, 1, 1, 1, 1, 1, 1, 0, nullptr, only_end));
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY =
      config.blockDimZ = 1;
  record("launch.ex", api.cuLaunchKernelEx(&config, kernels.store, parameters, nullptr));
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  record("launch.ex_cooperative",
         api.cuLaunchKernelEx(&config, kernels.store, parameters, nullptr));
  attribute.id = CUlaunchAttributeID(999);
  record("launch.ex_attribute_999",
         api.cuLaunchKernelEx(&config, kernels.store, parameters, nullptr));
  record("launch.cooperative",
         api.cuLaunchCooperativeKernel(kernels.store, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters));
  record("launch.cooperative_too_large",
         api.cuLaunchCooperativeKernel(kernels.nothing, 1000000, 1, 1, 1024, 1, 1, 0, nullptr,
                                       nullptr));
  record("launch.synchronize", api.cuCtxSynchronize());
  uint32_t got[17] = {};
  need(api.cuMemcpyDtoH(got, p, sizeof got), "cuMemcpyDtoH");
  recordBool("launch.plain_wrote", got[0] == value);
  recordBool("launch.extra_wrote", got[16] == packed.value);
  // Nobody is hurt by a pointer that is passed but not followed.
  CUdeviceptr wild = 0x123456789000ull;
  record("launch.unused_wild_pointer",
         api.cuLaunchKernel(
             kernels.many, 1, 1, 1, 1, 1, 1, 0, nullptr,
             [&] {
               static uint8_t structure[24];
               static void* list[] = {&structure, nullptr, &structure, &structure, &structure};
               list[1] = &wild;
               return list;
             }(),
             nullptr));
  record("launch.unused_wild_pointer_synchronize", api.cuCtxSynchronize());
}

/// Null arguments and handles of the wrong kind, the likeliest to end a process last.
void sectionNulls() {
  const Base base;
  const Kernels kernels;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  size_t offset = 0, bytes = 0;
  record("nulls.function_of_null_module", api.cuModuleGetFunction(&function, nullptr, "many"));
  record("nulls.param_info_of_null", api.cuFuncGetParamInfo(nullptr, 0, &offset, &bytes));
  record("nulls.module_unload", api.cuModuleUnload(nullptr));
  record("nulls.function_name", api.cuModuleGetFunction(&function, kernels.module, nullptr));
  record("nulls.load_data", api.cuModuleLoadData(&module, nullptr));
  record("nulls.copy_2d", api.cuMemcpy2D(nullptr));
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  need(api.cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
       "cuLibraryLoadData");
  need(api.cuLibraryGetKernel(&kernel, library, "many"), "cuLibraryGetKernel");
  record("nulls.function_params_of_kernel",
         api.cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), 0, &offset, &bytes));
  record("nulls.kernel_params_of_function",
         api.cuKernelGetParamInfo(reinterpret_cast<CUkernel>(kernels.many), 0, &offset, &bytes));
}

}  // namespace conformance
