// Kernels' printf: formats as the host's printf has them, its return value, when the text is there,
// a buffer that is too small; an assertion that fails, and a trap. Standard output and error are
// files of the program's own meanwhile.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <set>
#include <string>

#include "common.h"

namespace {

constexpr unsigned kMany = 20000;

__device__ int g_returned[8];
__device__ const char g_name[] = "of the device";

__global__ void formats(int number, double real, const void* address) {
  g_returned[0] = printf("plain\n");
  g_returned[1] = printf("%d|%5d|%-5d|%+d|%05d|%u|%x|%#X|%o|%c|%%\n", number, number, number,
                         number, number, 4000000000u, 48879u, 48879u, 8u, 'c');
  g_returned[2] = printf("%ld|%lld|%llu|%lx\n", -5000000000L, -5000000000000LL,
                         18000000000000000000ULL, 0x123456789aL);
  g_returned[3] = printf("%f|%.2f|%10.3f|%-10.1f|%e|%g|%G|%a\n", real, real, real, real, real, real,
                         real * 1e20, real);
  g_returned[4] = printf("%s|%10s|%-20s|%.2s\n", "text", "right", g_name, "cut");
  g_returned[5] = printf("%p\n", address);
}

__global__ void each(uint32_t seed) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  printf("line %u is %u\n", i, apps::word(i, seed));
}

__global__ void asserts(const int* numbers) { assert(numbers[threadIdx.x] == 0); }

__global__ void traps(int number) {
  if (number != 0) __trap();
}

// Captures the output to one of the program's descriptors until text() is asked for.
class Captured {
 public:
  Captured(int descriptor, FILE* stream)
      : descriptor_(descriptor), stream_(stream), file_(std::tmpfile()) {
    if (file_ == nullptr) apps::fail("no temporary file");
    std::fflush(stream_);
    before_ = dup(descriptor_);
    dup2(fileno(file_), descriptor_);
  }
  std::string text() {
    std::fflush(stream_);
    dup2(before_, descriptor_);
    close(before_);
    std::string all;
    std::rewind(file_);
    char piece[4096];
    for (size_t got; (got = std::fread(piece, 1, sizeof piece, file_)) != 0;)
      all.append(piece, got);
    std::fclose(file_);
    return all;
  }

 private:
  int descriptor_;
  FILE* stream_;
  FILE* file_;
  int before_ = -1;
};

std::string onHost(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

void checkFormats(int number) {
  const double real = 1234.5678;
  void* address = nullptr;
  RUNTIME_OK(cudaMalloc(&address, 1 << 20));
  Captured out(STDOUT_FILENO, stdout);
  formats<<<1, 1>>>(number, real, address);
  RUNTIME_OK(cudaDeviceSynchronize());
  const std::string got = out.text();
  const std::string expected =
      "plain\n" +
      onHost("%d|%5d|%-5d|%+d|%05d|%u|%x|%#X|%o|%c|%%\n", number, number, number, number, number,
             4000000000u, 48879u, 48879u, 8u, 'c') +
      onHost("%ld|%lld|%llu|%lx\n", -5000000000L, -5000000000000LL, 18000000000000000000ULL,
             0x123456789aL) +
      onHost("%f|%.2f|%10.3f|%-10.1f|%e|%g|%G|%a\n", real, real, real, real, real, real,
             real * 1e20, real) +
      onHost("%s|%10s|%-20s|%.2s\n", "text", "right", "of the device", "cut") +
      onHost("%p\n", address);
  CHECK(got == expected, "the kernel printed\n%sexpected\n%s", got.c_str(), expected.c_str());
  int returned[8];
  RUNTIME_OK(cudaMemcpyFromSymbol(returned, g_returned, sizeof returned));
  const int counts[] = {0, 10, 4, 8, 4, 1};
  for (int i = 0; i < 6; ++i)
    CHECK(returned[i] == counts[i], "printf %d returned %d", i, returned[i]);
  RUNTIME_OK(cudaFree(address));
}

// Lines come whole, in any order, each at most once; how many there are.
size_t countLines(const std::string& text, uint32_t seed, unsigned most) {
  std::set<unsigned> seen;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    CHECK(end != std::string::npos, "a line without an end");
    const std::string line = text.substr(at, end - at);
    unsigned index = 0, value = 0;
    CHECK(std::sscanf(line.c_str(), "line %u is %u", &index, &value) == 2 && index < most &&
              value == apps::word(index, seed),
          "a line that no thread printed: %s", line.c_str());
    CHECK(seen.insert(index).second, "thread %u printed twice", index);
    at = end + 1;
  }
  return seen.size();
}

// Behind every kind of wait the text of what is before it is there.
void checkWaits(uint32_t seed) {
  cudaStream_t stream;
  cudaEvent_t event;
  char *there, here = 0;
  RUNTIME_OK(cudaStreamCreate(&stream));
  RUNTIME_OK(cudaEventCreate(&event));
  RUNTIME_OK(cudaMalloc(&there, 64));
  for (int wait = 0; wait < 4; ++wait) {
    Captured out(STDOUT_FILENO, stdout);
    const cudaStream_t where = wait < 2 ? stream : nullptr;
    each<<<2, 64, 0, where>>>(seed + wait);
    RUNTIME_OK(cudaGetLastError());
    if (wait == 0) RUNTIME_OK(cudaStreamSynchronize(stream));
    if (wait == 1) RUNTIME_OK(cudaEventRecord(event, stream));
    if (wait == 1) RUNTIME_OK(cudaEventSynchronize(event));
    if (wait == 2) RUNTIME_OK(cudaMemcpy(&here, there, 1, cudaMemcpyDeviceToHost));
    if (wait == 3) RUNTIME_OK(cudaDeviceSynchronize());
    const std::string text = out.text();
    CHECK(countLines(text, seed + wait, 128) == 128, "not every line was there behind wait %d",
          wait);
  }
  RUNTIME_OK(cudaFree(there));
  RUNTIME_OK(cudaEventDestroy(event));
  RUNTIME_OK(cudaStreamDestroy(stream));
}

void checkLimit(uint32_t seed) {
  size_t limit = 0;
  RUNTIME_OK(cudaDeviceGetLimit(&limit, cudaLimitPrintfFifoSize));
  CHECK(limit >= size_t{1} << 20, "room for %zu bytes only", limit);
  Captured out(STDOUT_FILENO, stdout);
  for (uint32_t from = 0; from < kMany; from += 4000) {  // each fits
    each<<<40, 100>>>(seed);
    RUNTIME_OK(cudaDeviceSynchronize());
  }
  const std::string text = out.text();
  size_t lines = 0;
  for (const char c : text) lines += c == '\n';
  CHECK(lines == kMany, "%zu lines of %u", lines, kMany);
}

// Before anything else: the limit can be set until something has printed.
void checkSmallBuffer(uint32_t seed) {
  constexpr size_t kRoom = size_t{64} << 10;
  RUNTIME_OK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, kRoom));
  size_t limit = 0;
  RUNTIME_OK(cudaDeviceGetLimit(&limit, cudaLimitPrintfFifoSize));
  CHECK(limit >= kRoom, "a limit of %zu bytes", limit);
  Captured out(STDOUT_FILENO, stdout);
  each<<<kMany / 100, 100>>>(seed);
  RUNTIME_OK(cudaDeviceSynchronize());
  const std::string text = out.text();
  // Nobody promises the contents of a line then: hardware writes over what was not read yet.
  const auto lines = size_t(std::count(text.begin(), text.end(), '\n'));
  CHECK(lines > 0 && lines < kMany, "%zu lines of %u from a buffer of 64 KiB", lines, kMany);
}

void checkAssertion() {
  int* numbers = nullptr;
  std::vector<int> here(64, 0);
  here[40] = 1;
  RUNTIME_OK(cudaMalloc(&numbers, here.size() * sizeof(int)));
  RUNTIME_OK(cudaMemcpy(numbers, here.data(), here.size() * sizeof(int), cudaMemcpyHostToDevice));
  Captured errors(STDERR_FILENO, stderr);
  asserts<<<1, 64>>>(numbers);
  const cudaError_t first = cudaDeviceSynchronize();
  const cudaError_t second = cudaMemcpy(here.data(), numbers, 4, cudaMemcpyDeviceToHost);
  const std::string text = errors.text();
  CHECK(first == cudaErrorAssert && second == cudaErrorAssert, "a failed assertion: %d, then %d",
        int(first), int(second));
  const size_t at =
      text.find("block: [0,0,0], thread: [40,0,0] Assertion `numbers[threadIdx.x] == 0` failed.");
  CHECK(at != std::string::npos && text.find("prints.cu:") < at,
        "no line of the assertion on stderr: %s", text.c_str());
}

int trapped() {
  traps<<<1, 32>>>(0);
  if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  traps<<<1, 32>>>(1);
  if (cudaDeviceSynchronize() != cudaErrorLaunchFailure) return 2;
  return cudaDeviceSynchronize() == cudaErrorLaunchFailure ? 0 : 3;
}

// In a process of its own: a device that trapped is not to be had again.
void checkTrap() {
  const pid_t child = fork();
  if (child == 0) {
    const int status = trapped();
    std::fflush(stdout);
    std::exit(status);
  }
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child, "no child");
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a trap: the child ended with status %#x",
        unsigned(status));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const auto seed = uint32_t(options.seed);
  checkTrap();
  checkSmallBuffer(seed);
  RUNTIME_OK(cudaDeviceReset());
  checkFormats(-42 - int(seed));
  checkWaits(seed);
  checkLimit(seed);
  checkAssertion();
  return apps::ok("prints: formats, waits, %u lines, an assertion, a trap", kMany);
}
