#include "gpunode/simgpu/context.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>

#include "gpunode/simgpu/array.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/mem_pool.h"
#include "gpunode/simgpu/texture_objects.h"

namespace olpager::simgpu {

uint64_t RunningKernels::begin() {
  const std::lock_guard lock(mutex_);
  running_.insert(next_);
  return next_++;
}

void RunningKernels::end(uint64_t number) {
  const std::lock_guard lock(mutex_);
  running_.erase(number);
  changed_.notify_all();
}

void RunningKernels::wait() {
  std::unique_lock lock(mutex_);
  const uint64_t later = next_;
  changed_.wait(lock, [&] { return running_.empty() || *running_.begin() >= later; });
}

void PrintfSink::write(std::string_view text) {
  std::scoped_lock lock(mutex_);
  if (text.size() > capacity_) return;
  for (bytes_ += text.size(); bytes_ > capacity_; messages_.pop_front())
    bytes_ -= messages_.front().size();
  messages_.emplace_back(text);
}

void PrintfSink::assertion(std::string_view text) {
  std::scoped_lock lock(mutex_);
  assertions_.append(text);
}

void PrintfSink::setCapacity(size_t bytes) {
  std::scoped_lock lock(mutex_);
  capacity_ = bytes;
}

void PrintfSink::flush() {
  std::scoped_lock in_order(flush_mutex_);
  std::deque<std::string> messages;
  std::string assertions;
  {
    std::scoped_lock lock(mutex_);
    messages.swap(messages_);
    assertions.swap(assertions_);
    bytes_ = 0;
  }
  for (const std::string& text : messages) std::fwrite(text.data(), 1, text.size(), stdout);
  if (!messages.empty()) std::fflush(stdout);
  if (!assertions.empty()) std::fwrite(assertions.data(), 1, assertions.size(), stderr);
}

Context::Context(Device& device, CUcontext handle, uint64_t id, unsigned context_flags,
                 bool primary)
    : flags(context_flags), device_(device), handle_(handle), id_(id), primary_(primary) {}

Context::~Context() = default;

Context& Context::memoryOwner() { return green != nullptr ? *device_.primary : *this; }

void Context::activate() {
  std::scoped_lock lock(submit_mutex, mutex_);
  static std::atomic<uint64_t> ids{1};
  id_ = ids.fetch_add(1);
  error_ = CUDA_SUCCESS;
  cancel = false;
  legacy_ = std::make_shared<Stream>(weak_from_this(), CU_STREAM_LEGACY, newStreamId(),
                                     CU_STREAM_DEFAULT, 0);
  limits_.fill(0);
  limits_[CU_LIMIT_STACK_SIZE] = 1024;
  limits_[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
  printf_.setCapacity(limits_[CU_LIMIT_PRINTF_FIFO_SIZE]);
  limits_[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
  limits_[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  limits_[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  active = true;
}

void Context::fail(CUresult error) {
  CUresult none = CUDA_SUCCESS;
  error_.compare_exchange_strong(none, error, std::memory_order_acq_rel);
  cancel = true;
  device_.lost = error;
}

std::shared_ptr<Stream> Context::stream(CUstream handle, bool per_thread) {
  if (handle == nullptr) return per_thread ? perThread() : legacy();
  if (handle == CU_STREAM_LEGACY) return legacy();
  if (handle == CU_STREAM_PER_THREAD) return perThread();
  return Driver::get().streams.find(handle);
}

std::shared_ptr<Stream> Context::legacy() {
  std::scoped_lock lock(submit_mutex);
  return legacy_;
}

std::shared_ptr<Stream> Context::perThread() {
  ThreadState& thread = ThreadState::get();
  std::erase_if(thread.streams_, [](const auto& entry) {
    auto context = entry.context.lock();
    return context == nullptr || context->id() != entry.context_id;
  });
  for (const auto& entry : thread.streams_)
    if (entry.context.lock().get() == this) return entry.stream;
  auto stream = std::make_shared<Stream>(weak_from_this(), CU_STREAM_PER_THREAD, newStreamId(),
                                         CU_STREAM_DEFAULT, 0);
  {
    std::scoped_lock lock(submit_mutex);
    streams_.push_back(stream);
  }
  thread.streams_.push_back({weak_from_this(), id(), stream});
  return stream;
}

std::shared_ptr<Stream> Context::createStream(unsigned stream_flags, int priority) {
  const uint64_t value = newHandleValue(HandleKind::kStream);
  auto stream = std::make_shared<Stream>(weak_from_this(), reinterpret_cast<CUstream>(value),
                                         newStreamId(), stream_flags, priority);
  std::scoped_lock lock(submit_mutex);
  streams_.push_back(stream);
  Driver::get().streams.set(value, stream);
  return stream;
}

void Context::forgetStream(Stream& stream) {
  std::scoped_lock lock(submit_mutex);
  stream.forgotten = true;
  std::erase_if(streams_, [](const auto& entry) { return entry->forgotten && entry->idle(); });
}

std::vector<StreamPoint> Context::pendingLocked(bool blocking_only) {
  std::vector<StreamPoint> out;
  std::erase_if(streams_, [](const auto& entry) { return entry->forgotten && entry->idle(); });
  for (const auto& entry : streams_)
    if (!(blocking_only && entry->nonBlocking()) && !entry->idle()) out.push_back(entry->last());
  return out;
}

std::vector<StreamPoint> Context::pending() {
  std::scoped_lock lock(submit_mutex);
  auto out = pendingLocked(false);
  if (legacy_ != nullptr && !legacy_->idle()) out.push_back(legacy_->last());
  return out;
}

StreamPoint Context::submit(Stream& stream, std::unique_ptr<StreamOp> op,
                            std::vector<StreamPoint> dependencies) {
  std::scoped_lock lock(submit_mutex);
  if (&stream == legacy_.get()) {
    for (auto& point : pendingLocked(true)) dependencies.push_back(std::move(point));
  } else if (!stream.nonBlocking() && legacy_ != nullptr && !legacy_->idle()) {
    dependencies.push_back(legacy_->last());
  }
  Device::Connections& connections = device_.connections;
  if (connections.last.empty()) return stream.enqueue(std::move(op), std::move(dependencies));
  std::scoped_lock shared(connections.mutex);
  StreamPoint& last = connections.last[stream.id() % connections.last.size()];
  dependencies.push_back(std::move(last));
  return last = stream.enqueue(std::move(op), std::move(dependencies));
}

CUresult Context::submitOrCapture(Stream& stream, const CaptureNode& node,
                                  const std::function<std::unique_ptr<StreamOp>()>& make,
                                  StreamPoint* out) {
  if (stream.inCapture()) return captureNode(stream, node);
  if (stream.handle() == CU_STREAM_LEGACY)
    if (const CUresult result = checkLegacyCapture()) return result;
  StreamPoint point = submit(stream, make());
  if (out != nullptr) *out = std::move(point);
  return CUDA_SUCCESS;
}

std::vector<std::shared_ptr<Stream>> Context::allStreams() {
  std::scoped_lock lock(submit_mutex);
  std::vector<std::shared_ptr<Stream>> out{legacy_};
  for (const auto& entry : streams_)
    if (!entry->forgotten) out.push_back(entry);
  return out;
}

std::shared_ptr<Stream> Context::barrierStream() {
  std::scoped_lock lock(submit_mutex);
  if (barrier_ == nullptr) {
    barrier_ = std::make_shared<Stream>(weak_from_this(), nullptr, newStreamId(),
                                        CU_STREAM_NON_BLOCKING, 0);
    streams_.push_back(barrier_);
  }
  return barrier_;
}

bool Context::capturing(bool invalidate) {
  std::vector<std::shared_ptr<CaptureSession>> sessions;
  {
    std::scoped_lock lock(submit_mutex);
    for (const auto& entry : streams_)
      if (auto session = entry->captureSession()) sessions.push_back(std::move(session));
  }
  if (invalidate)
    for (auto& session : sessions) session->invalidate();
  return !sessions.empty();
}

CUresult Context::checkLegacyCapture(bool invalidate) {
  if (!anyCapture()) return CUDA_SUCCESS;
  std::vector<std::shared_ptr<CaptureSession>> sessions;
  {
    std::scoped_lock lock(submit_mutex);
    for (const auto& entry : streams_)
      if (!entry->nonBlocking())
        if (auto session = entry->captureSession()) sessions.push_back(std::move(session));
  }
  if (invalidate)
    for (auto& session : sessions) session->invalidate();
  return sessions.empty() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult Context::synchronize() {
  for (const StreamPoint& point : pending()) point.wait();
  printf_.flush();
  MemPool::trimAll(device_);
  return error();
}

CUresult Context::synchronize(const StreamPoint& point) {
  point.wait();
  printf_.flush();
  MemPool::trimAll(device_);
  return error();
}

void Context::atTeardown(std::function<void()> hook) {
  std::scoped_lock lock(mutex_);
  hooks_.push_back(std::move(hook));
}

void Context::teardown() {
  (void)synchronize();
  std::vector<std::function<void()>> hooks;
  {
    std::scoped_lock lock(mutex_);
    hooks.swap(hooks_);
    peers_.clear();
  }
  for (auto& hook : hooks) hook();
  std::vector<std::shared_ptr<Stream>> streams;
  {
    std::scoped_lock lock(submit_mutex);
    active = false;
    streams.swap(streams_);
    barrier_ = nullptr;
  }
  for (auto& stream : streams) Driver::get().streams.remove(stream->handle());
  Driver::get().arrays.removeIf([this](const Array& array) { return array.context == handle(); });
  forgetTextures(handle());
  Driver::get().memory.freeContext(*this);
  error_ = CUDA_SUCCESS;
  cancel = false;
}

size_t Context::limit(CUlimit limit) const {
  std::scoped_lock lock(mutex_);
  return limits_.at(limit);
}

CUresult Context::setLimit(CUlimit limit, size_t value) {
  std::scoped_lock lock(mutex_);
  limits_.at(limit) = value;
  if (limit == CU_LIMIT_PRINTF_FIFO_SIZE) printf_.setCapacity(value);
  return CUDA_SUCCESS;
}

bool Context::peerEnabled(const Context& peer) const {
  std::scoped_lock lock(mutex_);
  return std::find(peers_.begin(), peers_.end(), peer.handle()) != peers_.end();
}

CUresult Context::enablePeer(Context& peer) {
  if (!Driver::get().settings.peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  {
    std::scoped_lock lock(mutex_);
    if (std::find(peers_.begin(), peers_.end(), peer.handle()) != peers_.end())
      return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    peers_.push_back(peer.handle());
  }
  Driver::get().memory.setPeer(peer.device(), device_, true);
  return CUDA_SUCCESS;
}

CUresult Context::disablePeer(Context& peer) {
  {
    std::scoped_lock lock(mutex_);
    if (std::erase(peers_, peer.handle()) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  }
  Driver::get().memory.setPeer(peer.device(), device_, false);
  return CUDA_SUCCESS;
}

uint64_t newStreamId() {
  static std::atomic<uint64_t> ids{1};
  return ids.fetch_add(1);
}

namespace {

// A plain pointer, so that it can still be read while the process exits; the key's destructor runs
// when a thread ends. initial-exec: found without a call, and the loader keeps all of the library's
// thread-locals in static blocks. Those that it allocates, LeakSanitizer mistakes for something
// else, and dies of it (see CONTRIBUTING.md).
__attribute__((tls_model("initial-exec"))) thread_local ThreadState* t_state = nullptr;

pthread_key_t threadKey() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    pthread_key_create(&made, [](void* state) {
      t_state = nullptr;
      delete static_cast<ThreadState*>(state);
    });
    return made;
  }();
  return key;
}

}  // namespace

ThreadState& ThreadState::get() {
  if (t_state == nullptr) {
    t_state = new ThreadState;
    pthread_setspecific(threadKey(), t_state);
  }
  return *t_state;
}

ThreadState::~ThreadState() {
  if (requireInit() != CUDA_SUCCESS) return;  // a forked child: the streams are the parent's
  for (auto& entry : streams_)
    if (auto context = entry.context.lock()) context->forgetStream(*entry.stream);
}

std::shared_ptr<Context> currentContext() {
  const auto& stack = ThreadState::get().stack;
  return stack.empty() ? nullptr : stack.back();
}

CallLock::CallLock(Context& context)
    : held_(Driver::get().settings.context_lock ? &context : nullptr) {
  if (held_ != nullptr) held_->call_lock.lock();
}
CallLock::~CallLock() {
  if (held_ != nullptr) held_->call_lock.unlock();
}

void Context::waitForCallLock() {
  if (!Driver::get().settings.context_lock) return;
  const std::lock_guard lock(call_lock);
}

CUresult requireContext(std::shared_ptr<Context>* out) {
  if (const CUresult result = requireInit()) return result;
  ThreadState& thread = ThreadState::get();
  if (thread.in_callback) return CUDA_ERROR_NOT_PERMITTED;
  if (thread.stack.empty() || thread.stack.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto context = thread.stack.back();
  context->waitForCallLock();
  if (!context->active) {
    // A lost device's primary context stays unusable after its reset.
    return context->device().lost != CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT
                                                  : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (const CUresult error = context->error()) return error;
  *out = std::move(context);
  return CUDA_SUCCESS;
}

CUresult requireOwnStream(CUstream handle, bool per_thread, std::shared_ptr<Context>* context,
                          std::shared_ptr<Stream>* stream) {
  if (const CUresult result = requireInit()) return result;
  if (currentContext() != nullptr || isDefaultStream(handle))
    return requireStream(handle, per_thread, context, stream);
  if (ThreadState::get().in_callback) return CUDA_ERROR_NOT_PERMITTED;
  *stream = Driver::get().streams.find(handle);
  if (*stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = (*stream)->context();
  if (*context != nullptr) (*context)->waitForCallLock();
  if (*context == nullptr || !(*context)->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return (*context)->error();
}

CUresult requireStream(CUstream handle, bool per_thread, std::shared_ptr<Context>* context,
                       std::shared_ptr<Stream>* stream) {
  if (const CUresult result = requireContext(context)) return result;
  *stream = (*context)->stream(handle, per_thread);
  if (*stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto own = (*stream)->context();
  if (own == nullptr || !own->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (const CUresult error = own->error()) return error;
  *context = std::move(own);
  return CUDA_SUCCESS;
}

}  // namespace olpager::simgpu
