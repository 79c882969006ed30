// libFuzzer target: what daemons are asked and answer of themselves (coherence/status). Any bytes
// are either refused, or a message that, encoded and decoded again, is the same.
#include <cstdlib>

#include "coherence/status/status.h"

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  using namespace olpager::status;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto question = decodeQuestion(bytes); question.ok()) {
    if (!isQuestion(bytes) || decodeQuestion(encode(question.value())).value() != question.value())
      std::abort();
  }
  if (const auto answer = decodeAnswer(bytes); answer.ok()) {
    if (isQuestion(bytes) || decodeAnswer(encode(answer.value())).value() != answer.value())
      std::abort();
  }
  return 0;
}
