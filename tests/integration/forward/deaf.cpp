// A client that stops to take what its worker sends: deaf GPUNODE copies|prints. The client gets a
// session, says "ready", and when it is told to (a line of standard input) makes calls whose
// answers, and kernels' prints, are far more than a session keeps for a client; from there on it
// takes nothing more. "deaf" when all calls are on their way. The client stays until it is killed.
// Else what went wrong, and status 1.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "forwarding/wire/copies.h"
#include "forwarding/wire/launch_wire.h"
#include "tests/integration/forward/raw_session.h"

namespace {

using namespace olpager;
using test::lastWord;
using test::Operation;

constexpr uint64_t kCopyBytes = 1 << 20;
constexpr int kCopies = 400;
constexpr int kLaunches = 400;

constexpr int kLine = 4096;
constexpr uint32_t kLines = 64;  // of each launch

// A kernel that prints a line of kLine bytes: much text, and little work for a simulated GPU.
std::string moduleText() {
  std::string text = R"(
.version 7.0
.target sm_75
.address_size 64
.extern .func (.param .b32 printed) vprintf(.param .b64 text, .param .b64 values);
.global .align 1 .b8 line[)" +
                     std::to_string(kLine + 1) + "] = {";
  for (int i = 1; i < kLine; ++i) text += "45, ";  // a dash
  return text + R"(10};
.visible .entry say()
{
  .reg .b32 %r;
  .reg .b64 %d<3>;
  mov.u64 %d1, line;
  cvta.global.u64 %d2, %d1;
  {
    .param .b64 text;
    st.param.b64 [text+0], %d2;
    .param .b64 values;
    st.param.b64 [values+0], 0;
    .param .b32 printed;
    call.uni (printed), vprintf, (text, values);
    ld.param.b32 %r, [printed+0];
  }
  ret;
}
)";
}

int run(const std::string& gpunode, bool prints) {
  test::RawSession session;
  session.open(gpunode, "deaf");
  const auto described = session.ask(session.begin(Operation::kDescribe, true));
  forward::Description description{};
  std::memcpy(&description, described.data(), std::min(sizeof description, described.size()));
  auto retain = session.begin(Operation::kPrimaryRetain, true);
  retain.value(CUdevice{0});
  (void)session.ask(retain);
  auto allocate = session.begin(Operation::kAllocateAt, true);
  allocate.value(description.placed);
  allocate.value(kCopyBytes);
  (void)session.ask(allocate);
  auto load = session.begin(Operation::kLoadModule, true);
  load.value(uint32_t{0});  // options
  load.value(forward::ImageForm::kBytes);
  const std::string module_text = moduleText();
  load.value(static_cast<uint64_t>(module_text.size()));
  load.raw(module_text.data(), module_text.size());
  const uint64_t module = lastWord(session.ask(load));
  auto find = session.begin(api::Symbol::kCuModuleGetFunction, true);
  find.value(module);
  find.value(uint8_t{1});  // it wants the function
  find.value(uint8_t{1});  // there is a name
  find.text("say");
  const uint64_t function = lastWord(session.ask(find));
  std::printf("ready\n");
  std::fflush(stdout);
  char line[16];
  if (std::fgets(line, sizeof line, stdin) == nullptr) return 1;
  for (int i = 0; !prints && i < kCopies; ++i) {
    auto copy = session.begin(Operation::kCopyOut, true, forward::kMayWait);
    forward::CopyHead head;
    head.device = description.placed;
    head.bytes = kCopyBytes;
    copy.value(head);
    session.send(copy);
  }
  for (int i = 0; prints && i < kLaunches; ++i) {
    auto launch = session.begin(Operation::kLaunch, false);
    forward::LaunchHead head;
    head.function = function;
    for (uint32_t& one : head.grid) one = 1;
    for (uint32_t& one : head.block) one = 1;
    head.block[0] = kLines;
    launch.value(head);
    session.send(launch);
    session.send(session.begin(api::Symbol::kCuCtxSynchronize, true, forward::kMayWait));
  }
  session.send(session.begin(api::Symbol::kCuCtxSynchronize, true, forward::kMayWait), true);
  std::printf("deaf\n");
  std::fflush(stdout);
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    return run(argv[1], std::string(argv[2]) == "prints");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
