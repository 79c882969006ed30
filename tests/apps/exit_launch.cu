// The program's first launch is made by the destructor of a global object, when what libraries have
// destroyed by then is gone. Memory is allocated before.
#include "common.h"

namespace {

constexpr size_t kPiece = size_t{2} << 20;
std::vector<void*>* pieces = nullptr;  // outlives all destructors
uint32_t seed = 0;

struct Last {
  Last() = default;
  Last(const Last&) = delete;
  Last& operator=(const Last&) = delete;
  ~Last() {
    if (pieces == nullptr) return;  // main() has not come to its end
    std::vector<uint32_t> got(kPiece / 4);
    for (size_t i = 0; i < pieces->size(); ++i) {
      apps::fillKernel<<<apps::blocks(kPiece / 16), 256>>>(static_cast<uint4*>((*pieces)[i]),
                                                           kPiece / 16, seed + i);
      check(cudaGetLastError(), "the launch");
    }
    for (size_t i = 0; i < pieces->size(); ++i) {
      check(cudaMemcpy(got.data(), (*pieces)[i], kPiece, cudaMemcpyDeviceToHost), "the copy");
      for (size_t word = 0; word < got.size(); ++word) {
        if (got[word] == apps::word(uint32_t(word / 4), seed + uint32_t(i)) + uint32_t(word % 4))
          continue;
        std::printf("FAILED word %zu of piece %zu is %#x\n", word, i, got[word]);
        end(1);
      }
    }
    std::printf("OK a first launch at exit, over %zu pieces\n", pieces->size());
    end(0);
  }

 private:
  static void check(cudaError_t result, const char* what) {
    if (result == cudaSuccess) return;
    std::printf("FAILED %s: %s\n", what, cudaGetErrorString(result));
    end(1);
  }
  // As fail(), where exit() has been called.
  static void end(int status) {
    std::fflush(stdout);
    if (status != 0) std::_Exit(status);
  }
};
Last last;

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  auto* const made = new std::vector<void*>;
  for (size_t done = 0; done < options.bytes; done += kPiece)
    RUNTIME_OK(cudaMalloc(&made->emplace_back(), kPiece));
  seed = uint32_t(options.seed);
  pieces = made;
  return 0;
}
