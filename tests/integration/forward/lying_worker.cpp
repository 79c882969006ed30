// A worker that lies, as the operator of a gpunode could have one: olgpunode-worker, with functions
// of its own in front of some. OL_TEST_LIE says how:
//
//   parameters   every kernel's first parameter has 2048 bytes
//   variable     the first variable that is asked for is managed memory that wraps round, and
//                bytes of the next one come for OL_TEST_AT
//   place        the first variable is managed memory where OL_TEST_AT is
//   bits N EVERY a bit of one in EVERY bytes of answers is another; of which ones N says
//
// The functions are the linker's: --wrap in meson.build.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "coherence/calls/channel.h"
#include "forwarding/wire/launch_wire.h"
#include "forwarding/wire/runs.h"
#include "gpunode/worker/invocation.h"

namespace {

using olpager::calls::Channel;
using olpager::gpunode::Invocation;
using namespace olpager::forward;
using Parts = std::initializer_list<std::span<const std::byte>>;

const std::string& lie() {
  static const std::string said =
      std::getenv("OL_TEST_LIE") != nullptr ? std::getenv("OL_TEST_LIE") : "";
  return said;
}

uint64_t toldAddress() {
  const char* const said = std::getenv("OL_TEST_AT");
  return said != nullptr ? std::strtoull(said, nullptr, 16) : 0;
}

#define OL_REAL(name, symbol) name __asm__("__real_" symbol)
#define OL_LIE(name, symbol) name __asm__("__wrap_" symbol)
#define OL_PARAMETERS "_ZN7olpager7gpunode10parametersERNS0_10InvocationE"
#define OL_LAUNCH "_ZN7olpager7gpunode6launchERNS0_10InvocationE"
#define OL_VARIABLE "_ZN7olpager7gpunode8variableERNS0_10InvocationE"
#define OL_BYTES "_ZN7olpager7gpunode12managedBytesERNS0_10InvocationE"
#define OL_WRITE                                     \
  "_ZN7olpager5calls7Channel5writeESt16initializer_" \
  "listISt4spanIKSt4byteLm18446744073709551615EEEb"

}  // namespace

CUresult OL_REAL(realParameters(Invocation& in), OL_PARAMETERS);
CUresult OL_REAL(realLaunch(Invocation& in), OL_LAUNCH);
CUresult OL_REAL(realVariable(Invocation& in), OL_VARIABLE);
CUresult OL_REAL(realBytes(Invocation& in), OL_BYTES);
bool OL_REAL(realWrite(Channel* channel, Parts parts, bool flush), OL_WRITE);
CUresult OL_LIE(parametersThatLie(Invocation& in), OL_PARAMETERS);
CUresult OL_LIE(launchThatLooks(Invocation& in), OL_LAUNCH);
CUresult OL_LIE(variableThatLies(Invocation& in), OL_VARIABLE);
CUresult OL_LIE(bytesThatLie(Invocation& in), OL_BYTES);
bool OL_LIE(writeThatLies(Channel* channel, Parts parts, bool flush), OL_WRITE);

CUresult parametersThatLie(Invocation& in) {
  const CUresult result = realParameters(in);
  if (result == CUDA_SUCCESS && lie() == "parameters") {
    in.results().bytes.clear();
    in.results().value(uint32_t{1});
    in.results().value(ParameterPlace{0, 2048});
  }
  return result;
}

CUresult launchThatLooks(Invocation& in) {
  if (const uint32_t bytes = in.peek<LaunchHead>().parameter_bytes; bytes > 64)
    std::fprintf(stderr, "a launch brought %u bytes of parameters\n", bytes);
  return realLaunch(in);
}

CUresult variableThatLies(Invocation& in) {
  static std::atomic<int> asked{0};
  const CUresult result = realVariable(in);
  if (result != CUDA_SUCCESS || (lie() != "variable" && lie() != "place")) return result;
  const bool first = asked++ == 0;
  in.results().bytes.clear();
  if (lie() == "place") {
    in.results().value(toldAddress());
    in.results().value(uint64_t{4});
  } else if (first) {
    in.results().value(uint64_t{4096});
    in.results().value(~uint64_t{4096});
  } else {
    in.results().value(uint64_t{0x3000'0000'0000});
    in.results().value(uint64_t{4});
  }
  in.results().value(VariableMemory::kManaged);
  return result;
}

CUresult bytesThatLie(Invocation& in) {
  if (lie() != "variable" && lie() != "place") return realBytes(in);
  const RunHead head{toldAddress(), 8, 0};
  in.results().value(head);
  in.results().raw("changed", 8);
  return CUDA_SUCCESS;
}

bool writeThatLies(Channel* channel, Parts parts, bool flush) {
  static unsigned seed = 0, every = 0;
  static const bool lies = std::sscanf(lie().c_str(), "bits %u %u", &seed, &every) == 2;
  if (!lies) return realWrite(channel, parts, flush);
  thread_local std::minstd_rand chance(seed);
  std::vector<std::byte> record;
  for (const auto part : parts) record.insert(record.end(), part.begin(), part.end());
  // The answer's owner stays: else the program waits.
  constexpr size_t kFrom = 2 * sizeof(uint32_t);
  for (size_t at = kFrom; at < record.size(); ++at)
    if (chance() % every == 0) record[at] ^= std::byte{1} << chance() % 8;
  return realWrite(channel, {record}, flush);
}
