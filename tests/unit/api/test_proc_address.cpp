// cuGetProcAddress's table against what a CUDA 13.0 runtime asks for at its start.
#include "interpose/api/proc_address.h"

#include <fstream>
#include <sstream>
#include <string>

#include "tests/catch.h"

using olpager::api::lookupProcAddress;
using olpager::api::Symbol;

namespace {

std::string answer(const char* name, int version, uint64_t flags) {
  CUdriverProcAddressQueryResult why;
  const auto symbol = lookupProcAddress(name, version, flags, &why);
  REQUIRE((why == CU_GET_PROC_ADDRESS_SUCCESS) == symbol.has_value());
  if (symbol) return olpager::api::symbolName(*symbol);
  return why == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT ? "VERSION_NOT_SUFFICIENT" : "NOT_FOUND";
}

}  // namespace

TEST_CASE("the requests of cudart 13.0 get the recorded symbols") {
  std::ifstream in(DATA_FOLDER "/cudart13_getprocaddress.txt");
  int requests = 0;
  for (std::string line; std::getline(in, line); ++requests) {
    // The first request is for an empty name.
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    std::istringstream rest(line.substr(space));
    int version = 0;
    uint64_t flags = 0;
    std::string symbol;
    REQUIRE(rest >> version >> flags >> symbol);
    INFO(line);
    CHECK(answer(name.c_str(), version, flags) == symbol);
  }
  CHECK(requests == 440);
}

TEST_CASE("versions and default streams choose the symbol") {
  constexpr uint64_t kDefault = CU_GET_PROC_ADDRESS_DEFAULT;
  constexpr uint64_t kLegacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  constexpr uint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  CHECK(answer("cuGetProcAddress", 11030, kDefault) == "cuGetProcAddress");
  CHECK(answer("cuGetProcAddress", 12000, kDefault) == "cuGetProcAddress_v2");
  CHECK(answer("cuGetProcAddress", 99999, kDefault) == "cuGetProcAddress_v2");
  CHECK(answer("cuGetProcAddress", 11020, kDefault) == "VERSION_NOT_SUFFICIENT");
  CHECK(answer("cuMemAlloc", 2000, kDefault) == "cuMemAlloc");
  CHECK(answer("cuMemAlloc", 3019, kDefault) == "cuMemAlloc");
  CHECK(answer("cuMemAlloc", 3020, kDefault) == "cuMemAlloc_v2");
  CHECK(answer("cuCtxCreate", 13000, kDefault) == "cuCtxCreate_v4");
  CHECK(answer("cuMemcpyHtoD", 13000, kDefault) == "cuMemcpyHtoD_v2");
  CHECK(answer("cuMemcpyHtoD", 13000, kLegacy) == "cuMemcpyHtoD_v2");
  CHECK(answer("cuMemcpyHtoD", 13000, kPerThread) == "cuMemcpyHtoD_v2_ptds");
  CHECK(answer("cuMemcpyHtoD", 3020, kPerThread) == "VERSION_NOT_SUFFICIENT");
  CHECK(answer("cuMemAlloc", 3020, kPerThread) == "cuMemAlloc_v2");
  CHECK(answer("cuStreamGetCaptureInfo", 11030, kPerThread) == "cuStreamGetCaptureInfo_v2_ptsz");
  CHECK(answer("cuMemAlloc", 13000, kPerThread) == "cuMemAlloc_v2");
  CHECK(answer("cuMemAlloc_v2", 13000, kDefault) == "NOT_FOUND");
  CHECK(answer("cuNoSuchFunction", 13000, kDefault) == "NOT_FOUND");
  CHECK(lookupProcAddress("cuInit", 2000, 0, nullptr) == Symbol::kCuInit);
}
