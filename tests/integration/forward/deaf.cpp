// A client that stops to take what its worker sends: deaf GPUNODE copies|prints. It gets a session,
// says "ready", and when it is told to (a line of standard input) makes calls whose answers, and
// what kernels print, are far more than a session keeps for a client; from there on it takes
// nothing more. "deaf" when all calls are on their way. It stays until it is killed. Else what went
// wrong, and status 1.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/process.h"
#include "base/settings.h"
#include "coherence/calls/channel.h"
#include "coherence/calls/greeting.h"
#include "coherence/transport/transport.h"
#include "coherence/transport/trust/keys.h"
#include "forwarding/ask.h"
#include "forwarding/wire/copies.h"
#include "forwarding/wire/launch_wire.h"
#include "forwarding/wire/wire.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/api/forward_functions.h"

namespace {

using namespace olpager;
using namespace std::chrono_literals;
using forward::Operation;

constexpr uint64_t kContext = forward::primaryHandle(0, 0);
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

class Session {
 public:
  void open(const std::string& gpunode) {
    forward::SessionRequest request;
    request.process = static_cast<uint32_t>(getpid());
    request.processes = base::processNamespace();
    request.specification = forward::kSpecification;
    std::strncpy(request.program, "deaf", sizeof request.program - 1);
    const auto reply = need(forward::askGpunode({}, gpunode, request, 5000, 20000));
    if (reply.refused != 0) throw std::runtime_error(forward::textOf(reply));
    transport::NamedKey key{forward::kSessionKeyName, {}};
    std::memcpy(key.secret.data(), reply.key, sizeof reply.key);
    transport::Options options;
    options.tls = transport::Tls::kOff;
    options.keys =
        std::make_shared<const transport::KeyRing>(std::vector<transport::NamedKey>{key});
    options.silent_ms = 0;  // it does not mind when it hears nothing
    if (const char* const choice = std::getenv("OL_TRANSPORT"); choice != nullptr)
      options.choice =
          std::string(choice) == "tcp" ? transport::Choice::kTcp : transport::Choice::kShm;
    node_ = need(transport::makeEndpoint(options));
    auto queue = node_->makeQueue();
    const auto link =
        need(node_->connect(gpunode, {transport::makeDomain(), queue, "", reply.session}));
    const uint64_t taken = need(calls::greet(*link, *queue, 0, 5s));
    if (auto attached = channel_.attach(link, queue, taken); !attached.ok())
      throw std::runtime_error(attached.error().message);
  }

  /// The arguments' place.
  forward::Writer begin(uint16_t function, bool waits, uint16_t flags = 0) {
    forward::Writer call;
    call.value(forward::CallHead{function, flags, waits ? ++number_ : 0, kContext, 1, 0});
    return call;
  }
  forward::Writer begin(Operation operation, bool waits, uint16_t flags = 0) {
    return begin(static_cast<uint16_t>(operation), waits, flags);
  }
  forward::Writer begin(api::Symbol symbol, bool waits, uint16_t flags = 0) {
    return begin(static_cast<uint16_t>(symbol), waits, flags);
  }
  void send(const forward::Writer& call, bool flush = false) {
    if (!channel_.write({call.bytes}, flush)) throw std::runtime_error(channel_.reason());
  }
  /// Sends it and waits for its answer, whose body is returned.
  std::vector<std::byte> ask(const forward::Writer& call) {
    send(call, true);
    std::vector<std::byte> record;
    for (int i = 0; i < 100; ++i) {
      if (channel_.read(record, 300ms) == calls::Channel::Read::kDown)
        throw std::runtime_error(channel_.reason());
      forward::Reader reader(record);
      const auto head = reader.value<forward::AnswerHead>();
      if (!reader.ok() || head.kind != forward::Answer::kReply || head.number != number_) continue;
      if (head.result != CUDA_SUCCESS)
        throw std::runtime_error("a call failed: " + std::to_string(head.result));
      return {record.begin() + sizeof head, record.end()};
    }
    throw std::runtime_error("no answer");
  }

 private:
  template <typename T>
  static T need(Result<T> result) {
    if (!result.ok()) throw std::runtime_error(result.error().message);
    return std::move(result).value();
  }

  std::unique_ptr<transport::Endpoint> node_;
  calls::Channel channel_;
  uint32_t number_ = 0;
};

uint64_t lastWord(const std::vector<std::byte>& body) {
  uint64_t word = 0;
  if (body.size() >= sizeof word)
    std::memcpy(&word, body.data() + body.size() - sizeof word, sizeof word);
  return word;
}

int run(const std::string& gpunode, bool prints) {
  Session session;
  session.open(gpunode);
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
