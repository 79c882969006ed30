#include "gpunode/simgpu/capture.h"

#include <algorithm>
#include <atomic>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {

namespace {

// Every capture under way, for the rules of the global mode. A leaf lock.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<CaptureSession>> sessions;
  std::atomic<size_t> count{0};
};

Registry& registry() {
  static Registry* const made = new Registry;
  return *made;
}

void leave(const CaptureSession& session) {
  Registry& all = registry();
  std::scoped_lock lock(all.mutex);
  std::erase_if(all.sessions, [&](const auto& entry) {
    auto held = entry.lock();
    return held == nullptr || held.get() == &session;
  });
  all.count = all.sessions.size();
}

cuuint64_t nextId() {
  static std::atomic<cuuint64_t> ids{1};
  return ids.fetch_add(1);
}

}  // namespace

CaptureSession::CaptureSession(std::unique_ptr<CaptureSink> graph_sink,
                               CUstreamCaptureMode capture_mode)
    : mode(capture_mode),
      id(nextId()),
      owner(std::this_thread::get_id()),
      sink(std::move(graph_sink)) {}

CaptureSession::~CaptureSession() = default;

CaptureSession::Member* CaptureSession::member(const Stream& stream) {
  for (Member& entry : members)
    if (entry.stream.lock().get() == &stream) return &entry;
  return nullptr;
}

void CaptureSession::invalidate() {
  std::scoped_lock lock(mutex);
  invalidated = true;
}

bool anyCapture() { return registry().count.load(std::memory_order_acquire) != 0; }

CUresult captureNode(Stream& stream, const CaptureNode& node, CUgraphNode* out) {
  auto session = stream.captureSession();
  if (session == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  std::scoped_lock lock(session->mutex);
  if (session->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  CaptureSession::Member* member = session->member(stream);
  if (member == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  CUgraphNode added = nullptr;
  const CUresult result = session->sink->addNode(node, member->tail, &added);
  if (result != CUDA_SUCCESS) {
    session->invalidated = true;
    return result;
  }
  for (CUgraphNode before : member->tail) std::erase(session->leaves, before);
  session->leaves.push_back(added);
  member->tail = {added};
  if (out != nullptr) *out = added;
  return CUDA_SUCCESS;
}

CUresult unsafeInCapture() {
  if (!anyCapture()) return CUDA_SUCCESS;
  const CUstreamCaptureMode mode = ThreadState::get().capture_mode;
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::vector<std::shared_ptr<CaptureSession>> forbidding;
  {
    Registry& all = registry();
    std::scoped_lock lock(all.mutex);
    for (const auto& entry : all.sessions) {
      auto session = entry.lock();
      if (session == nullptr || session->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
      const bool own = session->owner == std::this_thread::get_id();
      const bool everybodys =
          mode == CU_STREAM_CAPTURE_MODE_GLOBAL && session->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
      if (own || everybodys) forbidding.push_back(std::move(session));
    }
  }
  for (auto& session : forbidding) session->invalidate();
  return forbidding.empty() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult notInCapture(Stream& stream) {
  auto session = stream.captureSession();
  if (session == nullptr) return CUDA_SUCCESS;
  session->invalidate();
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult beginCapture(Stream& stream, std::unique_ptr<CaptureSink> sink, CUstreamCaptureMode mode,
                      std::vector<CUgraphNode> dependencies) {
  if (stream.handle() == CU_STREAM_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream.inCapture()) return CUDA_ERROR_ILLEGAL_STATE;
  auto session = std::make_shared<CaptureSession>(std::move(sink), mode);
  session->members.push_back({stream.weak_from_this(), std::move(dependencies)});
  {
    Registry& all = registry();
    std::scoped_lock lock(all.mutex);
    all.sessions.push_back(session);
    all.count = all.sessions.size();
  }
  stream.setCapture(std::move(session));
  return CUDA_SUCCESS;
}

CUresult endCapture(Stream& stream, CUgraph* out) {
  auto session = stream.captureSession();
  if (session == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  CUresult result = CUDA_SUCCESS;
  std::vector<std::shared_ptr<Stream>> streams;
  {
    std::scoped_lock lock(session->mutex);
    if (session->members.front().stream.lock().get() != &stream) {
      session->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (session->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        session->owner != std::this_thread::get_id()) {
      session->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    const auto& tail = session->members.front().tail;
    const bool joined = std::all_of(
        session->leaves.begin(), session->leaves.end(),
        [&](CUgraphNode leaf) { return std::find(tail.begin(), tail.end(), leaf) != tail.end(); });
    if (session->invalidated) {
      result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (!joined) {
      result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    session->ended = true;
    *out = result == CUDA_SUCCESS ? session->sink->graph() : nullptr;
    session->sink->finish(result == CUDA_SUCCESS);
    for (const auto& member : session->members)
      if (auto held = member.stream.lock()) streams.push_back(std::move(held));
  }
  for (auto& member : streams) member->setCapture(nullptr);
  leave(*session);
  return result;
}

}  // namespace olpager::simgpu
