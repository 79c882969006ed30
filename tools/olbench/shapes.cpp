// Programs with the shapes of a model's decode and training, larger than VRAM: the order in which
// launches name memory, and how large its pieces are, without the arithmetic. Each launch checks
// the words that it reads.
#include <stdexcept>

#include "base/format.h"
#include "tools/olbench/driver.h"
#include "tools/olbench/measure.h"
#include "tools/olbench/paging.h"

namespace olpager::tools::bench {
namespace {

// Between two words of an allocation that a kernel touches: on a GPU all of it crosses the link
// where it is used in place, as with a program's kernels. The simulated one interprets each access.
constexpr uint32_t kStride = 64, kSimulatedStride = 4096;
constexpr unsigned kMostTensors = 4;

/// A kernel over `tensors` allocations of as many bytes: of each it reads the words that are
/// `stride` bytes apart, counts in `wrong` those that are not as expected, and adds to them where
/// `add` is not 0. Parameters: addresses, expected words, what is added, bytes, wrong, stride.
std::string visitPtx(unsigned tensors) {
  std::string parameters, body;
  for (unsigned i = 0; i < tensors; ++i) parameters += base::format(".param .u64 at{}, ", i);
  for (unsigned i = 0; i < tensors; ++i) parameters += base::format(".param .u32 expected{}, ", i);
  for (unsigned i = 0; i < tensors; ++i) parameters += base::format(".param .u32 add{}, ", i);
  for (unsigned i = 0; i < tensors; ++i)
    body += base::format(R"(
  ld.param.u64 %d4, [at{0}];
  ld.param.u32 %r5, [expected{0}];
  ld.param.u32 %r6, [add{0}];
  add.u64 %d4, %d4, %d3;
  ld.volatile.global.u32 %r7, [%d4];
  setp.eq.u32 %p1, %r7, %r5;
  @%p1 bra right{0};
  atom.global.add.u32 %r8, [%d5], 1;
right{0}:
  setp.eq.u32 %p2, %r6, 0;
  @%p2 bra next{0};
  add.u32 %r7, %r7, %r6;
  st.volatile.global.u32 [%d4], %r7;
next{0}:)",
                         i);
  return base::format(R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry visit({}.param .u64 bytes, .param .u64 wrong, .param .u32 stride)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<10>;
  .reg .b64 %d<6>;
  ld.param.u64 %d2, [bytes];
  ld.param.u64 %d5, [wrong];
  ld.param.u32 %r9, [stride];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %d3, %r4, %r9;
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 bra done;
{}
done:
  ret;
}}
)",
                      parameters, body);
}

/// An allocation whose words all hold a value.
struct Tensor {
  CUdeviceptr at = 0;
  uint64_t bytes = 0;
  uint32_t value = 0;
};

/// One that a launch names, and what it adds to each word.
struct Touch {
  Tensor* tensor;
  uint32_t add = 0;
};

class Shape {
 public:
  explicit Shape(const Options& options) : driver_(options.driver) {
    if (driver_.deviceName().find("simulated") != std::string::npos) stride_ = kSimulatedStride;
    driver_.check(driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    driver_.check(driver_.cuMemAlloc(&wrong_, 4), "cuMemAlloc");
    driver_.check(driver_.cuMemsetD32(wrong_, 0, 1), "cuMemsetD32");
  }

  Tensor make(uint64_t bytes) {
    Tensor tensor{0, bytes, ++made_ * 2654435761u};
    driver_.check(driver_.cuMemAlloc(&tensor.at, bytes), "cuMemAlloc");
    driver_.check(driver_.cuMemsetD32(tensor.at, tensor.value, bytes / 4), "cuMemsetD32");
    bytes_ += bytes;
    return tensor;
  }

  /// As make(), of each of these sizes, in one allocation.
  std::vector<Tensor> makeInOne(const std::vector<uint64_t>& sizes) {
    constexpr uint64_t kAlignment = 256;
    const auto placed = [](uint64_t bytes) {
      return (bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    uint64_t total = 0;
    for (const uint64_t bytes : sizes) total += placed(bytes);
    CUdeviceptr at = 0;
    driver_.check(driver_.cuMemAlloc(&at, total), "cuMemAlloc");
    std::vector<Tensor> tensors;
    std::vector<uint32_t> words;
    for (const uint64_t bytes : sizes) {
      tensors.push_back({at, bytes, ++made_ * 2654435761u});
      words.assign(bytes / 4, tensors.back().value);
      driver_.check(driver_.cuMemcpyHtoD(at, words.data(), bytes), "cuMemcpyHtoD");
      at += placed(bytes);
      bytes_ += bytes;
    }
    return tensors;
  }

  /// A launch that names the tensors, all of one size.
  void launch(const std::vector<Touch>& touches) {
    const size_t count = touches.size();
    if (kernels_[count - 1] == nullptr)
      kernels_[count - 1] = driver_.function(visitPtx(static_cast<unsigned>(count)), "visit");
    std::vector<void*> parameters;
    uint32_t adds[kMostTensors] = {};
    for (const Touch& touch : touches) parameters.push_back(&touch.tensor->at);
    for (const Touch& touch : touches) parameters.push_back(&touch.tensor->value);
    for (size_t i = 0; i < count; ++i) parameters.push_back(&(adds[i] = touches[i].add));
    uint64_t bytes = touches[0].tensor->bytes;
    parameters.insert(parameters.end(), {&bytes, &wrong_, &stride_});
    constexpr unsigned kThreads = 256;
    const auto blocks = static_cast<unsigned>((bytes / stride_ + kThreads - 1) / kThreads);
    driver_.check(driver_.cuLaunchKernel(kernels_[count - 1], blocks, 1, 1, kThreads, 1, 1, 0,
                                         stream_, parameters.data(), nullptr),
                  "cuLaunchKernel");
    for (const Touch& touch : touches) touch.tensor->value += touch.add;
  }

  /// So many passes teach the order, then options.passes are measured. `pass` makes the launches.
  template <typename Pass>
  nlohmann::json measure(unsigned passes, Pass pass, unsigned teach = 2) {
    // The copies that fill the memory are in another stream.
    driver_.check(driver_.cuCtxSynchronize(), "cuCtxSynchronize");
    for (unsigned i = 0; i < teach; ++i) pass();
    finish();
    const Counted counted;
    for (unsigned i = 0; i < passes; ++i) pass();
    finish();
    nlohmann::json result = counted.sinceThen();
    uint32_t wrong = 0;
    driver_.check(driver_.cuMemcpyDtoH(&wrong, wrong_, 4), "cuMemcpyDtoH");
    if (wrong != 0) throw std::runtime_error(base::format("{} words were wrong", wrong));
    result["passes"] = passes;
    result["bytes"] = bytes_;
    return result;
  }

 private:
  void finish() { driver_.check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

  const Driver driver_;
  CUstream stream_ = nullptr;
  CUfunction kernels_[kMostTensors] = {};
  CUdeviceptr wrong_ = 0;
  uint32_t stride_ = kStride;
  uint32_t made_ = 0;
  uint64_t bytes_ = 0;
};

uint64_t inWholeStrides(uint64_t bytes) { return bytes / kSimulatedStride * kSimulatedStride; }

}  // namespace

nlohmann::json measureDecode(const Options& options) {
  Shape shape(options);
  // A layer of a Llama-style model: four matrices for attention, and three of 2.7 times the size.
  const uint64_t small = inWholeStrides(options.allocation),
                 large = inWholeStrides(small / 10 * 27);
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 0; bytes < options.bytes; bytes += 4 * small + 3 * large)
    sizes.insert(sizes.end(), {small, small, small, small, large, large, large});
  std::vector<Tensor> weights;
  if (options.one_buffer)
    weights = shape.makeInOne(sizes);
  else
    for (const uint64_t size : sizes) weights.push_back(shape.make(size));
  // A part of an allocation is constant once it has left VRAM three times.
  constexpr unsigned kTeachOne = 12, kTeach = 2;
  return shape.measure(
      options.passes,
      [&] {
        for (Tensor& weight : weights) shape.launch({{&weight}});
      },
      options.one_buffer ? kTeachOne : kTeach);
}

nlohmann::json measureTrain(const Options& options) {
  Shape shape(options);
  struct Layer {
    Tensor weight, gradient, first_moment, second_moment;
  };
  const uint64_t size = inWholeStrides(options.allocation);
  std::vector<Layer> layers(options.bytes / (4 * size));
  if (layers.empty()) throw std::runtime_error("--bytes has to hold four allocations at least");
  for (Layer& layer : layers) layer.weight = shape.make(size);
  for (Layer& layer : layers)
    for (Tensor* tensor : {&layer.gradient, &layer.first_moment, &layer.second_moment})
      *tensor = shape.make(size);
  return shape.measure(options.passes, [&] {
    for (Layer& layer : layers) shape.launch({{&layer.weight}});
    for (size_t i = layers.size(); i-- > 0;)
      shape.launch({{&layers[i].weight}, {&layers[i].gradient, 1}});
    for (Layer& layer : layers)
      shape.launch({{&layer.weight, 1},
                    {&layer.gradient, 1},
                    {&layer.first_moment, 1},
                    {&layer.second_moment, 1}});
  });
}

}  // namespace olpager::tools::bench
