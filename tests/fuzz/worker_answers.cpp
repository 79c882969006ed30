// libFuzzer target: what a worker sends for the program's memory, and says of a kernel's
// parameters. Runs of changed bytes stay in the stretch that they name, whichever way they are put
// in place; of parameters nothing is believed that the code does not say. Answers as a whole, to
// programs that run: tests/integration/forward/lying.py.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "forwarding/wire/runs.h"
#include "interpose/forward/known_kernels.h"

namespace {

using namespace olpager;
using namespace olpager::forward;

constexpr std::byte kUntouched{0xa5};

void runsStayInPlace(Reader reader) {
  for (Run run; reader.left() > 0 && readRun(reader, &run);) {
    if (run.length == 0 || run.length > kGrain) std::abort();
    // Exactly as long: AddressSanitizer sees a byte beyond it.
    std::vector<std::byte> whole(run.length, kUntouched), pieces(run.length, kUntouched);
    run.copyTo(whole.data());
    size_t written = 0;
    run.eachPiece([&](size_t at, std::span<const std::byte> bytes) {
      if (at > pieces.size() || bytes.size() > pieces.size() - at) std::abort();
      std::copy(bytes.begin(), bytes.end(), pieces.begin() + static_cast<ptrdiff_t>(at));
      written += bytes.size();
    });
    if (whole != pieces || written != run.bytes.size()) std::abort();
  }
}

KnownKernels::Code code() {
  static const char kText[] =
      ".version 7.0\n.target sm_70\n.entry none() { ret; }\n"
      ".entry some(.param .u32 a, .param .align 8 .b8 b[40], .param .u8 c) { ret; }\n";
  return std::make_shared<KnownCode>(std::as_bytes(std::span(kText)), true);
}

void noMoreThanTheCode(Reader reader) {
  constexpr uint64_t kModule = 1, kSome = 2, kNone = 3;
  constexpr uint32_t kSizes[] = {4, 40, 1};
  KnownKernels known;
  known.loaded(kModule, code());
  known.named(kSome, kModule, "some");
  known.named(kNone, kModule, "none");
  std::vector<ParameterPlace> places;
  while (reader.left() >= sizeof(ParameterPlace)) places.push_back(reader.value<ParameterPlace>());
  if (known.agrees(kNone, places, "some") != places.empty()) std::abort();
  bool fits = places.size() <= std::size(kSizes);
  for (size_t i = 0; fits && i < places.size(); ++i) fits = places[i].bytes <= kSizes[i];
  if (known.agrees(kSome, places, "") != fits) std::abort();
}

// A program's own code may be anything as well.
void anyCode(std::span<const std::byte> bytes) {
  std::vector<std::byte> text(bytes.begin(), bytes.end());
  static const char kHead[] = ".version 7.0\n.entry ";
  text.insert(text.begin(), reinterpret_cast<const std::byte*>(kHead),
              reinterpret_cast<const std::byte*>(kHead) + sizeof kHead - 1);
  text.push_back(std::byte{0});
  (void)KnownCode(text, true).allows("some", {});
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  if (bytes.empty()) return 0;
  switch (std::to_integer<unsigned>(bytes[0]) % 3) {
    case 0:
      runsStayInPlace(Reader(bytes.subspan(1)));
      break;
    case 1:
      noMoreThanTheCode(Reader(bytes.subspan(1)));
      break;
    default:
      anyCode(bytes.subspan(1));
  }
  return 0;
}
