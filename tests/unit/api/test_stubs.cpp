// The exported stubs as a library: every name, resolved once, arguments intact.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "interpose/api/driver_symbols.h"
#include "tests/catch.h"

using olpager::api::Symbol;

namespace {

struct Controls {
  std::atomic<void*>* target;
  std::atomic<uint32_t>* last;
  std::atomic<int>* calls;
};

struct Library {
  void* handle = open();
  Controls controls = *static_cast<Controls*>(symbol("cudbgInjectionPath"));

  static void* open() {
    void* opened = dlopen(STUB_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) throw std::runtime_error(dlerror());
    return opened;
  }
  template <typename F = void>
  F* symbol(const char* name) const {
    return reinterpret_cast<F*>(dlsym(handle, name));
  }
};

const Library& library() {
  static const Library kLibrary;
  return kLibrary;
}

std::vector<std::string> recordedExports() {
  std::vector<std::string> names;
  std::ifstream in(DATA_FOLDER "/libcuda_580_exports.txt");
  for (std::string name; in >> name;) names.push_back(name);
  return names;
}

struct Seen {
  uint64_t integers[6];
  double numbers[8];
  uint64_t stacked[2];
} g_seen;

int manyArguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                  uint64_t on_stack, double x0, double x1, double x2, double x3, double x4,
                  double x5, double x6, double x7, uint64_t also_on_stack) {
  g_seen = {{a, b, c, d, e, f}, {x0, x1, x2, x3, x4, x5, x6, x7}, {on_stack, also_on_stack}};
  return 42;
}

}  // namespace

TEST_CASE("every name of the recorded driver is exported, and none of our own") {
  REQUIRE(library().handle != nullptr);
  const std::vector<std::string> names = recordedExports();
  REQUIRE(names.size() == olpager::api::kSymbolCount);
  for (const std::string& name : names) {
    INFO(name);
    CHECK(library().symbol(name.c_str()) != nullptr);
    Symbol symbol;
    CHECK(olpager::api::findSymbol(name.c_str(), &symbol));
  }
  CHECK(library().symbol("olpager_resolve_symbol") == nullptr);
  CHECK(library().symbol("ol_slots") == nullptr);
}

TEST_CASE("a stub asks for its symbol once and passes every argument on") {
  const Controls& controls = library().controls;
  using Many = int(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, double,
                   double, double, double, double, double, double, double, uint64_t);
  Many* stub = library().symbol<Many>("cuMemcpyHtoD_v2_ptds");
  REQUIRE(stub != nullptr);
  *controls.target = reinterpret_cast<void*>(&manyArguments);
  const int before = *controls.calls;
  for (int round = 0; round < 3; ++round) {
    g_seen = {};
    REQUIRE(stub(1, 2, 3, 4, 5, 6, 7, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8) == 42);
    for (uint64_t i = 0; i < 6; ++i) CHECK(g_seen.integers[i] == i + 1);
    for (int i = 0; i < 8; ++i) CHECK(g_seen.numbers[i] == i + 0.5);
    CHECK(g_seen.stacked[0] == 7);
    CHECK(g_seen.stacked[1] == 8);
  }
  CHECK(*controls.calls == before + 1);
  CHECK(static_cast<Symbol>(controls.last->load()) == Symbol::kCuMemcpyHtoD_v2_ptds);
}

TEST_CASE("each stub passes its own index") {
  const Controls& controls = library().controls;
  *controls.target = nullptr;
  for (size_t i = 0; i < olpager::api::kSymbolCount; ++i) {
    const Symbol symbol = static_cast<Symbol>(i);
    if (olpager::api::isObject(symbol) || symbol == Symbol::kCuMemcpyHtoD_v2_ptds) continue;
    int (*stub)() = library().symbol<int()>(olpager::api::symbolName(symbol));
    // A name that can't be had is not remembered: it may be there later.
    REQUIRE(stub() == CUDA_ERROR_NOT_FOUND);
    REQUIRE(*controls.last == i);
  }
  const int before = *controls.calls;
  CHECK(library().symbol<int()>("cuCtxDetach")() == CUDA_ERROR_NOT_FOUND);
  CHECK(*controls.calls == before + 1);
}

TEST_CASE("threads may meet in a stub's first call") {
  const Controls& controls = library().controls;
  *controls.target = reinterpret_cast<void*>(+[](uint64_t a) { return static_cast<int>(a); });
  auto* stub = library().symbol<int(uint64_t)>("cuMemFree_v2");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 1000; ++i) wrong += stub(t) != static_cast<int>(t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  *controls.target = nullptr;
}
