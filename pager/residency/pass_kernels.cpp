#include "pager/residency/pass_kernels.h"

#include <algorithm>

#include "pager/space/extents.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kSmallRoot = 1ull << 20;  // a larger one is worth a launch of its own
constexpr unsigned kPinned = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
}  // namespace

CUresult PassKernels::makeObjects(uint64_t pages) {
  CUresult result = driver_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, -5);
  if (result == CUDA_SUCCESS) result = driver_.cuModuleLoadData(&module_, kernels::pagePassPtx());
  if (result == CUDA_SUCCESS)
    result = driver_.cuModuleGetFunction(&pass_, module_, kernels::kPagePassKernel);
  if (result == CUDA_SUCCESS)
    result = driver_.cuModuleGetFunction(&scan_, module_, kernels::kScanKernel);
  if (result == CUDA_SUCCESS)
    result = driver_.cuModuleGetFunction(&scan_roots_, module_, kernels::kScanRangesKernel);
  for (Scratch& scratch : scratch_) {
    void* memory = nullptr;
    const uint64_t bytes = kFoundBytes +
                           pages * (sizeof(ContentHash) + sizeof(kernels::PagePassJob)) +
                           kRootJobs * sizeof(kernels::ScanJob);
    if (result == CUDA_SUCCESS) result = driver_.cuMemHostAlloc(&memory, bytes, kPinned);
    if (result != CUDA_SUCCESS) return result;
    scratch.pages = pages;
    scratch.hashes = static_cast<ContentHash*>(memory);
    scratch.found = reinterpret_cast<uint32_t*>(scratch.hashes + pages);
    scratch.jobs = reinterpret_cast<kernels::PagePassJob*>(reinterpret_cast<char*>(scratch.found) +
                                                           kFoundBytes);
    scratch.roots = reinterpret_cast<kernels::ScanJob*>(scratch.jobs + pages);
  }
  void* memory = nullptr;
  constexpr size_t kHashes = size_t{kFetchHashes} * space::kLargestArenaExtentPages;
  result = driver_.cuMemHostAlloc(
      &memory, kHashes * sizeof(ContentHash) + kFetchHashes * sizeof(kernels::PagePassJob),
      kPinned);
  if (result != CUDA_SUCCESS) return result;
  hashes_ = static_cast<ContentHash*>(memory);
  hash_jobs_ = reinterpret_cast<kernels::PagePassJob*>(hashes_ + kHashes);
  for (int slot = 0; slot < kFetchHashes; ++slot) free_hashes_.push_back(slot);
  return result;
}

void PassKernels::destroyObjects() {
  for (Scratch& scratch : scratch_) {
    if (scratch.hashes != nullptr) driver_.cuMemFreeHost(scratch.hashes);
    scratch = {};
  }
  if (hashes_ != nullptr) driver_.cuMemFreeHost(hashes_);
  hashes_ = nullptr;
  hash_jobs_ = nullptr;
  free_hashes_.clear();
  if (stream_ != nullptr) driver_.cuStreamDestroy_v2(stream_);
  stream_ = nullptr;
  if (module_ != nullptr) driver_.cuModuleUnload(module_);
  module_ = nullptr;
}

PassKernels::Scratch* PassKernels::freeScratch() {
  Scratch* found = nullptr;
  for (Scratch& candidate : scratch_)
    if (!candidate.busy) found = &candidate;
  return found;
}

CUresult PassKernels::launchPass(const Scratch& scratch, size_t first, size_t count,
                                 const kernels::ScanScope& scope, CUevent event) const {
  uint32_t widest = 1;
  const size_t end = first + count;
  for (size_t i = first; i < end; ++i) widest = std::max(widest, scratch.jobs[i].pages);
  kernels::PagePassParameters parameters{reinterpret_cast<uint64_t>(scratch.jobs), scope,
                                         reinterpret_cast<uint64_t>(scratch.hashes)};
  void* pointers[] = {&parameters.jobs, &parameters.scope, &parameters.hashes};
  CUresult result = CUDA_SUCCESS;
  constexpr size_t kGridY = 65535;
  for (size_t at = first; at < end && result == CUDA_SUCCESS; at += kGridY) {
    parameters.jobs = reinterpret_cast<uint64_t>(scratch.jobs + at);
    result =
        driver_.cuLaunchKernel(pass_, widest, static_cast<unsigned>(std::min(kGridY, end - at)), 1,
                               kernels::kPagePassThreads, 1, 1, 0, stream_, pointers, nullptr);
  }
  if (result == CUDA_SUCCESS && event != nullptr) result = driver_.cuEventRecord(event, stream_);
  return result;
}

CUresult PassKernels::launchScans(const Scratch& scratch, size_t first,
                                  const std::vector<kernels::ScanJob>& jobs,
                                  const kernels::ScanScope& scope) const {
  constexpr unsigned kThreads = kernels::kPagePassThreads;
  CUresult result = CUDA_SUCCESS;
  size_t end = first;
  for (const kernels::ScanJob& job : jobs) {
    if (result != CUDA_SUCCESS) return result;
    if (job.words <= kSmallRoot / 8 && end < kRootJobs) {
      scratch.roots[end++] = job;
      continue;
    }
    kernels::ScanParameters scan{job.address, job.words, scope, job.found};
    void* pointers[] = {&scan.address, &scan.words, &scan.scope, &scan.found};
    const auto blocks =
        static_cast<unsigned>(std::clamp<uint64_t>(job.words / (uint64_t{16} * kThreads), 1, 2048));
    result =
        driver_.cuLaunchKernel(scan_, blocks, 1, 1, kThreads, 1, 1, 0, stream_, pointers, nullptr);
  }
  if (end == first || result != CUDA_SUCCESS) return result;
  auto shared = reinterpret_cast<uint64_t>(scratch.roots + first);
  kernels::ScanScope wanted = scope;
  void* pointers[] = {&shared, &wanted};
  return driver_.cuLaunchKernel(scan_roots_, 4, static_cast<unsigned>(end - first), 1, kThreads, 1,
                                1, 0, stream_, pointers, nullptr);
}

int PassKernels::takeHashSlot() {
  if (free_hashes_.empty()) return -1;
  const int slot = free_hashes_.back();
  free_hashes_.pop_back();
  return slot;
}

bool PassKernels::launchHash(const Extent& extent, CUevent copied, int slot) const {
  const auto first = static_cast<uint32_t>(slot) * space::kLargestArenaExtentPages;
  kernels::PagePassJob* const job = hash_jobs_ + slot;
  *job = {extent.vram->alias, 0, 1u << extent.order, first};
  kernels::PagePassParameters parameters{
      reinterpret_cast<uint64_t>(job), {}, reinterpret_cast<uint64_t>(hashes_)};
  void* pointers[] = {&parameters.jobs, &parameters.scope, &parameters.hashes};
  CUresult result = driver_.cuStreamWaitEvent(stream_, copied, 0);
  if (result == CUDA_SUCCESS)
    result = driver_.cuLaunchKernel(pass_, job->pages, 1, 1, kernels::kPagePassThreads, 1, 1, 0,
                                    stream_, pointers, nullptr);
  // The wait has its state by now.
  if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(copied, stream_);
  return result == CUDA_SUCCESS;
}

ContentHash PassKernels::takeHash(const Extent& extent, int slot) {
  const ContentHash* pages = hashes_ + static_cast<size_t>(slot) * space::kLargestArenaExtentPages;
  free_hashes_.push_back(slot);
  return kernels::combineHashes(pages, 1u << extent.order);
}

}  // namespace olpager::pager
