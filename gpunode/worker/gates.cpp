#include "gpunode/worker/gates.h"

#include <sys/mman.h>

#include <atomic>

namespace olpager::gpunode {
namespace {

constexpr size_t kBytes = 64 << 10;
constexpr size_t kWords = kBytes / sizeof(uint32_t);

}  // namespace

struct Gates::Words {
  Words() = default;
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  ~Words() {
    if (memory != nullptr) munmap(memory, kBytes);
  }

  uint32_t* memory = nullptr;  // registered with the driver as long as the context is there
  CUdeviceptr device = 0;
  std::mutex mutex;          // alone
  std::vector<size_t> free;  // indices

  bool take(size_t* index) {
    std::lock_guard lock(mutex);
    if (free.empty()) return false;
    *index = free.back();
    free.pop_back();
    return true;
  }
  void give(size_t index) {
    std::lock_guard lock(mutex);
    free.push_back(index);
  }
  void set(size_t index, uint32_t value) {
    std::atomic_ref(memory[index]).store(value, std::memory_order_seq_cst);
  }
};

std::shared_ptr<Gates::Words> Gates::wordsOf(const api::DriverTable& driver, uint64_t context) {
  {
    std::lock_guard lock(mutex_);
    if (const auto found = words_.find(context); found != words_.end()) return found->second;
  }
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto made = std::make_shared<Words>();
  made->memory = static_cast<uint32_t*>(memory);
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (driver.cuMemHostRegister_v2(memory, kBytes, kFlags) != CUDA_SUCCESS ||
      driver.cuMemHostGetDevicePointer_v2(&made->device, memory, 0) != CUDA_SUCCESS)
    return nullptr;
  for (size_t i = kWords; i > 0; --i) made->free.push_back(i - 1);
  std::lock_guard lock(mutex_);
  return words_.try_emplace(context, std::move(made)).first->second;
}

// The stream is through: the word serves another gate.
void CUDA_CB Gates::passed(void* data) {
  const std::unique_ptr<Word> word(static_cast<Word*>(data));
  word->of->give(word->index);
}

CUresult Gates::put(const api::DriverTable& driver, uint64_t context, CUstream stream,
                    uint32_t number) {
  if (driver.cuStreamWaitValue32_v2 == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const auto words = wordsOf(driver, context);
  size_t index = 0;
  if (words == nullptr || !words->take(&index)) return CUDA_ERROR_OUT_OF_MEMORY;
  words->set(index, 0);
  auto word = std::make_unique<Word>(Word{words, index});
  {
    std::lock_guard lock(mutex_);
    closed_.insert_or_assign(number, *word);
    closed_count_.store(static_cast<uint32_t>(closed_.size()));
  }
  CUresult result = driver.cuStreamWaitValue32_v2(stream, words->device + index * sizeof(uint32_t),
                                                  1, CU_STREAM_WAIT_VALUE_EQ);
  if (result != CUDA_SUCCESS) {
    std::lock_guard lock(mutex_);
    closed_.erase(number);
    closed_count_.store(static_cast<uint32_t>(closed_.size()));
    words->give(index);
    return result;
  }
  result = driver.cuLaunchHostFunc(stream, passed, word.get());
  if (result == CUDA_SUCCESS) (void)word.release();
  return result;
}

bool Gates::isPut(uint32_t number) {
  std::lock_guard lock(mutex_);
  return closed_.contains(number);
}

void Gates::open(uint32_t number) {
  std::lock_guard lock(mutex_);
  const auto found = closed_.find(number);
  if (found == closed_.end()) return;
  found->second.of->set(found->second.index, 1);
  closed_.erase(found);
  closed_count_.store(static_cast<uint32_t>(closed_.size()));
}

void Gates::contextGone(uint64_t context) {
  std::lock_guard lock(mutex_);
  const auto found = words_.find(context);
  if (found == words_.end()) return;
  std::erase_if(closed_, [&](const auto& one) { return one.second.of == found->second; });
  closed_count_.store(static_cast<uint32_t>(closed_.size()));
  words_.erase(found);
}

}  // namespace olpager::gpunode
