// A ring of nodes of which the launch names the first alone, and each has the address of the next
// in another form than a whole aligned word: odd_pointers FORM. Memory beside it is used so that
// the nodes leave VRAM. A lost context is told as "LOST <form>", with exit status 3. Forms:
//   plain  a whole word                    mark      a mark in the lowest bits (trees with colours)
//   tag    a counter in the upper 16 bits  halves    the halves in two arrays
//   shift  address >> 4 in 40 bits         packed    a word at an odd address (packed structures)
//   offset from a base that the launch is given as well          key    xored with a key
#include <string>

#include "common.h"

typedef unsigned long long Word;
constexpr int kNodes = 48;
constexpr size_t kBytes = 1 << 20;
constexpr Word kMark = 5, kTag = 0xbeefull << 48, kAddress = 0xffffffffffffull,
               kKey = 0x5555555555555555ull;

enum Form { kPlain, kMarked, kTagged, kHalves, kShifted, kPacked, kOffset, kKeyed };
const char* const kForms[] = {"plain", "mark", "tag", "halves", "shift", "packed", "offset", "key"};

struct Node {
  uint32_t low[8];
  char between[64];
  uint32_t high[8];
  Word word;
  char packed[32];
  int value;
};

void put(Node* node, Form form, Word next, Word base) {
  switch (form) {
    case kPlain:
      node->word = next;
      break;
    case kMarked:
      node->word = next | kMark;
      break;
    case kTagged:
      node->word = next | kTag;
      break;
    case kHalves:
      node->low[3] = uint32_t(next), node->high[3] = uint32_t(next >> 32);
      break;
    case kShifted:
      node->word = next >> 4 | 0xabcull << 48;
      break;
    case kPacked:
      std::memcpy(node->packed + 3, &next, sizeof next);
      break;
    case kOffset:
      node->word = next - base;
      break;
    case kKeyed:
      node->word = next ^ kKey;
      break;
  }
}

__device__ Word get(const Node* node, Form form, Word base) {
  switch (form) {
    case kPlain:
      return node->word;
    case kMarked:
      return node->word & ~Word{7};
    case kTagged:
      return node->word & kAddress;
    case kHalves:
      return Word(node->high[3]) << 32 | node->low[3];
    case kShifted:
      return (node->word << 4) & kAddress;
    case kPacked: {
      Word next = 0;
      for (int i = 7; i >= 0; --i)
        next = next << 8 | static_cast<unsigned char>(node->packed[3 + i]);
      return next;
    }
    case kOffset:
      return node->word + base;
    case kKeyed:
      return node->word ^ kKey;
  }
  return 0;
}

__global__ void walkRing(const Node* first, Form form, Word base, int steps, int* out) {
  const Node* node = first;
  int sum = 0;
  for (int i = 0; i < steps; ++i) {
    sum += node->value;
    node = reinterpret_cast<const Node*>(get(node, form, base));
  }
  *out = sum;
}

int main(int argc, char** argv) {
  CHECK(argc == 2, "a form is wanted");
  int which = 0;
  while (which < 8 && std::string(argv[1]) != kForms[which]) ++which;
  CHECK(which < 8, "no form %s", argv[1]);
  const Form form = Form(which);
  std::vector<char*> nodes(kNodes);
  for (char*& node : nodes) RUNTIME_OK(cudaMalloc(&node, kBytes));
  int* out;
  RUNTIME_OK(cudaMalloc(&out, sizeof *out));
  const Word base = Word(nodes[0]);
  int expected = 0;
  for (int i = 0; i < kNodes; ++i) {
    Node node{};
    node.value = i + 1;
    expected += i + 1;
    put(&node, form, Word(nodes[(i + 1) % kNodes]), base);
    RUNTIME_OK(cudaMemset(nodes[i], 0, kBytes));
    RUNTIME_OK(cudaMemcpy(nodes[i], &node, sizeof node, cudaMemcpyHostToDevice));
  }
  apps::Pressure pressure(24 << 20, 1 << 20);
  for (int round = 0; round < 3; ++round) {
    pressure.apply();
    walkRing<<<1, 1>>>(reinterpret_cast<const Node*>(nodes[0]), form, base, kNodes, out);
    RUNTIME_OK(cudaGetLastError());
    int got = 0;
    const cudaError_t told = cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost);
    if (told == cudaErrorIllegalAddress) {
      std::printf("LOST %s\n", argv[1]);
      return 3;
    }
    RUNTIME_OK(told);
    CHECK(got == expected, "%s: %d, not %d", argv[1], got, expected);
  }
  return apps::ok("odd_pointers %s", argv[1]);
}
