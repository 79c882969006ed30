// What the unified view stands on: a record means the same at every executor. executors GPUNODE
// GPUNODE opens a session with each, as two executors of one program, and sends both the same
// records, byte for byte. What the records make has the same numbers at both, and the numbers do at
// both what they should; memory has the same addresses. "OK", or what differs, and status 1.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "forwarding/wire/launch_wire.h"
#include "tests/integration/forward/raw_session.h"

namespace {

using namespace olpager;
using forward::Writer;
using test::lastWord;
using test::Operation;
using test::RawSession;

constexpr const char* kModule = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry one()
{
  ret;
}
.visible .entry other()
{
  ret;
}
)";

void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// Both executors of the view.
class Executors {
 public:
  void open(const std::string& first, const std::string& second) {
    both_[0].open(first, "executors", 0, 2, true);
    both_[1].open(second, "executors", 1, 2, true);
  }

  // The record that `write` writes goes to both; their answers.
  template <typename Function, typename Write>
  std::vector<std::vector<std::byte>> ask(Function function, uint16_t flags, Write write) {
    std::vector<std::vector<std::byte>> answers;
    for (RawSession& one : both_) {
      Writer record = one.begin(function, true, flags);
      write(record);
      check(sent(record), "the record is another one");
      answers.push_back(one.ask(record));
    }
    sent_.clear();
    return answers;
  }
  template <typename Function, typename Write>
  void tell(Function function, Write write) {
    for (RawSession& one : both_) {
      Writer record = one.begin(function, false);
      write(record);
      check(sent(record), "the record is another one");
      one.send(record);
    }
    sent_.clear();
  }
  // Both answer with this error.
  template <typename Function, typename Write>
  void refuse(Function function, CUresult error, Write write) {
    for (RawSession& one : both_) {
      Writer record = one.begin(function, true, 0);
      write(record);
      std::string answer = "no error";
      try {
        (void)one.ask(record);
      } catch (const std::exception& failure) {
        answer = failure.what();
      }
      check(answer.find(std::to_string(error)) != std::string::npos,
            "an executor was to answer " + std::to_string(error) + ": " + answer);
    }
  }
  // The handle that both name so, which is to have this number.
  template <typename Function, typename Write>
  void make(const char* what, uint64_t number, Function function, Write write) {
    const auto answers = ask(function, forward::kNames, [&](Writer& record) {
      record.value(forward::Names{number, 1});
      write(record);
    });
    for (size_t i = 0; i < answers.size(); ++i)
      check(lastWord(answers[i]) == number,
            std::string(what) + " has another number at executor " + std::to_string(i));
  }

 private:
  bool sent(const Writer& record) {
    if (sent_.empty()) sent_ = record.bytes;
    return sent_ == record.bytes;
  }

  RawSession both_[2];
  std::vector<std::byte> sent_;  // to the first
};

void putName(Writer& record, const char* name) {
  record.value(uint8_t{1});  // there is one
  record.text(name);
}

void run(const std::string& first, const std::string& second) {
  Executors executors;
  executors.open(first, second);
  // A page is to have one address at both: they have the same range, of which the program's side
  // gives out the first part.
  forward::Description described[2];
  const auto told = executors.ask(Operation::kDescribe, 0, [](Writer&) {});
  for (unsigned i = 0; i < 2; ++i) {
    check(told[i].size() >= sizeof described[i], "a description is short");
    std::memcpy(&described[i], told[i].data(), sizeof described[i]);
  }
  check(
      described[0].va_base == described[1].va_base && described[0].va_size == described[1].va_size,
      "the executors have different ranges");
  check(described[0].placed == described[1].placed && described[0].placed_bytes != 0,
        "the executors have different addresses to give out");
  (void)executors.ask(Operation::kPrimaryRetain, 0, [](Writer& record) { record.value(0); });

  const uint64_t address = described[0].placed, bytes = 6u << 20;
  (void)executors.ask(Operation::kAllocateAt, 0, [&](Writer& record) {
    record.value(address);
    record.value(bytes);
  });
  const auto ranges = executors.ask(api::Symbol::kCuMemGetAddressRange_v2, 0, [&](Writer& record) {
    record.value(address + bytes / 2);
    record.value(uint8_t{1});
    record.value(uint8_t{1});
  });
  for (const auto& range : ranges)
    check(lastWord(range) == bytes, "an allocation is of another size at one executor");
  (void)executors.ask(api::Symbol::kCuMemFree_v2, forward::kMayWait,
                      [&](Writer& record) { record.value(address); });

  // By calls that are answered.
  uint64_t next = forward::firstNumber(forward::kCommonSlot);
  const uint64_t module = next++, kernel = next++;
  executors.make("a module", module, Operation::kLoadModule, [](Writer& record) {
    record.value(uint32_t{0});  // options
    record.value(forward::ImageForm::kBytes);
    const std::string text = kModule;
    record.value(static_cast<uint64_t>(text.size() + 1));
    record.raw(text.c_str(), text.size() + 1);
  });
  const auto find = [&](Writer& record, const char* name) {
    record.value(module);
    record.value(uint8_t{1});  // it wants the function
    putName(record, name);
  };
  executors.make("a kernel", kernel, api::Symbol::kCuModuleGetFunction,
                 [&](Writer& record) { find(record, "one"); });
  // What is known keeps its number, whatever a later call offers.
  const auto again =
      executors.ask(api::Symbol::kCuModuleGetFunction, forward::kNames, [&](Writer& record) {
        record.value(forward::Names{next, 1});
        find(record, "one");
      });
  check(lastWord(again[0]) == kernel && lastWord(again[1]) == kernel, "a kernel has two numbers");
  // What nobody has numbered ahead: each executor's own, and no two the same.
  const auto unnamed = executors.ask(api::Symbol::kCuModuleGetFunction, 0,
                                     [&](Writer& record) { find(record, "other"); });
  for (unsigned i = 0; i < 2; ++i) {
    const uint64_t number = lastWord(unnamed[i]);
    check((number & forward::kWorkersHandle) != 0 && forward::slotOf(number) == i,
          "executor " + std::to_string(i) + " gives a number that is not its own");
  }

  // By calls that nobody waits for; the kernel is launched in the stream that they make.
  const uint64_t stream = next++;
  executors.tell(api::Symbol::kCuStreamCreate, [&](Writer& record) {
    record.value(unsigned{CU_STREAM_NON_BLOCKING});
    record.value(stream);
  });
  forward::LaunchHead head;
  head.function = kernel;
  head.stream = stream;
  for (uint32_t& one : head.grid) one = 1;
  for (uint32_t& one : head.block) one = 1;
  (void)executors.ask(Operation::kLaunch, forward::kMayWait,
                      [&](Writer& record) { record.value(head); });
  (void)executors.ask(api::Symbol::kCuStreamSynchronize, forward::kMayWait,
                      [&](Writer& record) { record.value(stream); });
  // The answer of cuStreamGetCtx is the context's number, which is the same everywhere.
  const auto context = executors.ask(api::Symbol::kCuStreamGetCtx, 0, [&](Writer& record) {
    record.value(stream);
    record.value(uint8_t{1});
  });
  for (const auto& answer : context)
    check(lastWord(answer) == forward::primaryHandle(forward::kCommonSlot, 0),
          "the primary context has another number");

  // What is gone is so at both.
  executors.tell(api::Symbol::kCuStreamDestroy_v2, [&](Writer& record) { record.value(stream); });
  executors.refuse(api::Symbol::kCuStreamQuery, CUDA_ERROR_INVALID_HANDLE,
                   [&](Writer& record) { record.value(stream); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("OK\n");
  return 0;
}
