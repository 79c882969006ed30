// Batches of copies, linear and of boxes, between host and device in all directions and with
// arrays; boxes between contexts.
#include <chrono>
#include <thread>

#include "common.h"

namespace {

constexpr size_t kWords = 16384;

void checkWords(const uint32_t* got, size_t words, uint32_t seed, const char* what) {
  for (size_t i = 0; i < words; ++i) {
    const uint32_t expected = apps::word(uint32_t(i), seed);
    CHECK(got[i] == expected, "%s: word %zu is %#x, expected %#x", what, i, got[i], expected);
  }
}

void fillWords(uint32_t* into, size_t words, uint32_t seed) {
  for (size_t i = 0; i < words; ++i) into[i] = apps::word(uint32_t(i), seed);
}

void tryLinear(cudaStream_t stream, uint32_t seed, bool pinned) {
  uint32_t *device[3], *in[2], *out[2];
  for (auto& buffer : device) RUNTIME_OK(cudaMalloc(&buffer, kWords * 4));
  std::vector<uint32_t> pageable[4];
  for (int i = 0; i < 2; ++i) {
    if (pinned) {
      RUNTIME_OK(cudaMallocHost(&in[i], kWords * 4));
      RUNTIME_OK(cudaMallocHost(&out[i], kWords * 4));
    } else {
      pageable[i].resize(kWords), pageable[2 + i].resize(kWords);
      in[i] = pageable[i].data(), out[i] = pageable[2 + i].data();
    }
    fillWords(in[i], kWords, seed + uint32_t(i));
  }
  // To the device, with two kinds of attributes; then within it; then back.
  cudaMemcpyAttributes attributes[2] = {};
  attributes[0].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes[1].srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
  size_t starts[2] = {0, 1};
  const void* to[2] = {device[0], device[1]};
  const void* from[2] = {in[0], in[1]};
  size_t sizes[2] = {kWords * 4, kWords * 2};
  // A source that is read during the call may change behind it, however late the stream comes to
  // the copy.
  RUNTIME_OK(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));
  RUNTIME_OK(cudaMemcpyBatchAsync(to, from, sizes, 2, attributes, starts, 2, stream));
  std::memset(in[1], 0xee, kWords * 4);
  const void* to_there[2] = {device[2], device[2] + kWords / 2};
  const void* from_there[2] = {device[1], device[0]};
  size_t halves[2] = {kWords * 2, kWords * 2};
  RUNTIME_OK(cudaMemcpyBatchAsync(to_there, from_there, halves, 2, attributes, starts, 1, stream));
  const void* to_host[2] = {out[0], out[1]};
  const void* from_device[2] = {device[0], device[2]};
  size_t whole[2] = {kWords * 4, kWords * 4};
  RUNTIME_OK(cudaMemcpyBatchAsync(to_host, from_device, whole, 2, attributes, starts, 1, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  checkWords(out[0], kWords, seed, "there and back");
  checkWords(out[1], kWords / 2, seed + 1, "by the device, first half");
  checkWords(out[1] + kWords / 2, kWords / 2, seed, "by the device, second half");
  // A batch that makes no sense copies nothing.
  std::memset(out[0], 0, kWords * 4);
  size_t late[2] = {1, 0};
  const cudaError_t refused =
      cudaMemcpyBatchAsync(to_host, from_device, whole, 2, attributes, late, 1, stream);
  CHECK(refused == cudaErrorInvalidValue, "a batch whose first copy has no attributes: %d",
        int(refused));
  const cudaError_t legacy =
      cudaMemcpyBatchAsync(to_host, from_device, whole, 2, attributes, starts, 1, nullptr);
  CHECK(legacy == cudaErrorInvalidValue, "a batch in the default stream: %d", int(legacy));
  (void)cudaGetLastError();
  RUNTIME_OK(cudaDeviceSynchronize());
  CHECK(out[0][0] == 0 && out[0][kWords - 1] == 0, "a refused batch copied");
  for (auto* buffer : device) RUNTIME_OK(cudaFree(buffer));
  for (int i = 0; pinned && i < 2; ++i) {
    RUNTIME_OK(cudaFreeHost(in[i]));
    RUNTIME_OK(cudaFreeHost(out[i]));
  }
}

// A box of 40 x 12 x 3 words out of rows of 64 and layers of 16, to the device, into an array, and
// back.
void tryBoxes(cudaStream_t stream, uint32_t seed) {
  constexpr size_t kWidth = 40, kHeight = 12, kDepth = 3, kRow = 64, kLayer = 16,
                   kAll = kRow * kLayer * kDepth;
  std::vector<uint32_t> in(kAll), out(kAll, 0);
  fillWords(in.data(), kAll, seed);
  uint32_t* device;
  RUNTIME_OK(cudaMalloc(&device, kAll * 4));
  RUNTIME_OK(cudaMemset(device, 0, kAll * 4));
  cudaArray_t array;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
  RUNTIME_OK(
      cudaMalloc3DArray(&array, &format, make_cudaExtent(kWidth + 8, kHeight + 4, kDepth + 1)));
  const auto memory = [](void* at, size_t row_words) {  // in elements of one byte
    cudaMemcpy3DOperand operand{};
    operand.type = cudaMemcpyOperandTypePointer;
    operand.op.ptr.ptr = at;
    operand.op.ptr.rowLength = row_words;
    operand.op.ptr.layerHeight = kLayer;
    return operand;
  };
  cudaMemcpy3DOperand inside{};
  inside.type = cudaMemcpyOperandTypeArray;
  inside.op.array.array = array;
  inside.op.array.offset = {8, 4, 1};
  const auto copy = [&](const cudaMemcpy3DOperand& from, const cudaMemcpy3DOperand& to,
                        size_t width) {
    cudaMemcpy3DBatchOp op{};
    op.src = from, op.dst = to;
    op.extent = make_cudaExtent(width, kHeight, kDepth);
    op.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    return op;
  };
  // Rows in bytes between memory, in elements of the array with it.
  cudaMemcpy3DBatchOp up[] = {
      copy(memory(in.data(), kRow * 4), memory(device, kRow * 4), kWidth * 4)};
  cudaMemcpy3DBatchOp through[] = {copy(memory(device, kRow), inside, kWidth),
                                   copy(inside, memory(out.data(), kRow), kWidth)};
  RUNTIME_OK(cudaMemcpy3DBatchAsync(1, up, 0, stream));
  RUNTIME_OK(cudaMemcpy3DBatchAsync(2, through, 0, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < kAll; ++i) {
    const bool within = i % kRow < kWidth && i / kRow % kLayer < kHeight;
    CHECK(out[i] == (within ? in[i] : 0), "a box through an array: word %zu is %#x", i, out[i]);
  }
  RUNTIME_OK(cudaFreeArray(array));
  RUNTIME_OK(cudaFree(device));
}

// Between two devices where there are two, else within one.
void tryPeer(cudaStream_t stream, uint32_t seed) {
  int devices = 0;
  RUNTIME_OK(cudaGetDeviceCount(&devices));
  const int other = devices > 1 ? 1 : 0;
  constexpr size_t kRow = 128, kHeight = 8, kDepth = 2, kAll = kRow * kHeight * kDepth;
  uint32_t *here, *there;
  RUNTIME_OK(cudaMalloc(&here, kAll * 4));
  RUNTIME_OK(cudaSetDevice(other));
  RUNTIME_OK(cudaMalloc(&there, kAll * 4));
  RUNTIME_OK(cudaMemset(there, 0, kAll * 4));
  RUNTIME_OK(cudaDeviceSynchronize());
  RUNTIME_OK(cudaSetDevice(0));
  std::vector<uint32_t> in(kAll), out(kAll);
  fillWords(in.data(), kAll, seed);
  RUNTIME_OK(cudaMemcpy(here, in.data(), kAll * 4, cudaMemcpyHostToDevice));
  cudaMemcpy3DPeerParms box{};
  box.srcDevice = 0, box.dstDevice = other;
  box.srcPtr = make_cudaPitchedPtr(here, kRow * 4, kRow * 4, kHeight);
  box.dstPtr = make_cudaPitchedPtr(there, kRow * 4, kRow * 4, kHeight);
  box.srcPos = make_cudaPos(16, 1, 0);
  box.extent = make_cudaExtent(64 * 4, 5, 2);
  for (const bool async : {false, true}) {
    if (async) {
      RUNTIME_OK(cudaMemcpy3DPeerAsync(&box, stream));
      RUNTIME_OK(cudaStreamSynchronize(stream));
    } else {
      RUNTIME_OK(cudaMemcpy3DPeer(&box));
      RUNTIME_OK(cudaDeviceSynchronize());
    }
    RUNTIME_OK(cudaMemcpy(out.data(), there, kAll * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < kAll; ++i) {
      const size_t x = i % kRow, y = i / kRow % kHeight, z = i / kRow / kHeight;
      const uint32_t expected = x < 64 && y < 5 ? in[(z * kHeight + y + 1) * kRow + x + 4] : 0;
      CHECK(out[i] == expected, "a box between contexts: word %zu is %#x, expected %#x", i, out[i],
            expected);
    }
    RUNTIME_OK(cudaMemset(there, 0, kAll * 4));
    RUNTIME_OK(cudaDeviceSynchronize());
  }
  RUNTIME_OK(cudaFree(here));
  RUNTIME_OK(cudaFree(there));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const auto seed = uint32_t(options.seed);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  tryLinear(stream, seed, false);
  tryLinear(stream, seed + 10, true);
  tryBoxes(stream, seed + 20);
  tryPeer(stream, seed + 30);
  RUNTIME_OK(cudaStreamDestroy(stream));
  return apps::ok("batch_copies: linear, boxes, between contexts");
}
