// The private driver tables against known answers and a fake host.
#include "interpose/private_tables/private_tables.h"

#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include <pthread.h>
#include <unistd.h>

#include "interpose/private_tables/compile_cache.h"
#include "interpose/private_tables/md2.h"
#include "tests/catch.h"

using namespace olpager::interpose;

namespace {

std::vector<uint8_t> unhex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::vector<uint8_t> bytesOf(const std::string& text) { return {text.begin(), text.end()}; }

class FakeHost : public PrivateTableHost {
 public:
  int driverVersion() override { return 13000; }
  std::vector<DeviceIdentity> devices() override {
    return {{{0xa0, 0xa1}, 0, 2, 0}, {{0xb0}, 0, 3, 0}};
  }
  CUcontext currentContext() override { return current; }
  CUresult primaryContextHandle(CUdevice device, CUcontext* context) override {
    if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
    *context = handle(7);
    return CUDA_SUCCESS;
  }
  CUresult contextId(CUcontext, uint64_t* id) override {
    *id = 42;
    return CUDA_SUCCESS;
  }
  CUresult streamId(CUcontext, CUstream stream, uint64_t* id) override {
    *id = reinterpret_cast<uint64_t>(stream) * 10;
    return CUDA_SUCCESS;
  }
  CUresult moduleFunctions(CUmodule, std::vector<CUfunction>* functions) override {
    functions->assign(3, reinterpret_cast<CUfunction>(uintptr_t{0x99}));
    return CUDA_SUCCESS;
  }
  void unsupportedCalled(const char* table, int slot) override {
    told += std::string(table) + std::to_string(slot);
  }

  static CUcontext handle(uintptr_t value) { return reinterpret_cast<CUcontext>(value); }

  CUcontext current = nullptr;
  std::string told;
};

CUuuid uuid(const std::string& text) {
  CUuuid id;
  std::memcpy(id.bytes, unhex(text).data(), sizeof(id.bytes));
  return id;
}

const void* const* table(PrivateTables& tables, const std::string& text) {
  const CUuuid id = uuid(text);
  const void* found = nullptr;
  REQUIRE(tables.find(&id, &found) == CUDA_SUCCESS);
  return static_cast<const void* const*>(found);
}

template <typename F>
F* slot(const void* const* words, int index) {
  return reinterpret_cast<F*>(const_cast<void*>(words[index]));
}

}  // namespace

TEST_CASE("MD2 gives the digests of RFC 1319") {
  CHECK(hex(md2({})) == "8350e5a3e24c153df2275c9f80692773");
  CHECK(hex(md2(bytesOf("a"))) == "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  CHECK(hex(md2(bytesOf("abc"))) == "da853b0d3f88d99b30283a69e6ded6bb");
  CHECK(hex(md2(bytesOf("message digest"))) == "ab4f496bfb2a530b219ff33031fe06b0");
  CHECK(hex(md2(bytesOf(
            "12345678901234567890123456789012345678901234567890123456789012345678901234567890"))) ==
        "d5976f79d83d3a0dc9806c3c66f3efd8");
}

TEST_CASE("the integrity digest of a recorded message") {
  const auto message = unhex(
      "c8320000ca3200003412000000109cf7408295f6ff7f0000208295f6ff7f0000a0f4aaf2ff7f0000ee9c2b680000"
      "0000a0a1a2a3a4a5a6a7"
      "a8a9aaabacadaeaf000000000200000000000000");
  CHECK(hex(integrityDigest(message)) == "9d9819450f4b4b584a24d647b94e1bb6");

  IntegrityHeader header{0x32c8,         0x32ca,         0x1234,         0xf79c1000,
                         0x7ffff6958240, 0x7ffff6958220, 0x7ffff2aaf4a0, 0x682b9cee};
  DeviceIdentity device{{}, 0, 2, 0};
  for (size_t i = 0; i < 16; ++i) device.uuid[i] = static_cast<uint8_t>(0xa0 + i);
  CHECK(hex(integrityDigest(header, std::span(&device, 1))) == "9d9819450f4b4b584a24d647b94e1bb6");
}

TEST_CASE("the integrity check signs its own addresses, thread and devices") {
  FakeHost host;
  PrivateTables tables(host);
  const auto* cudart = table(tables, "6bd5fb6c5bf4e74a8987d93912fd9df9");
  const auto* integrity = table(tables, "d4082055bde6704b8d34ba123c66e1f2");
  auto* check = slot<CUresult(uint32_t, uint64_t, uint64_t*)>(integrity, 1);
  uint64_t out[2] = {};
  CHECK(check(13000, 5, out) == CUDA_SUCCESS);
  CHECK(out[0] == 0x3341181C03CB675Cu);
  CHECK(out[1] == 0x8ED383AA1F4CD1E8u);
  CHECK(check(13001, 5, out) == CUDA_SUCCESS);
  CHECK(out[0] == 0x1841181C03CB675Cu);
  CHECK(check(13002, 5, out) == CUDA_SUCCESS);
  const IntegrityHeader header{13000,
                               13002,
                               static_cast<uint32_t>(getpid()),
                               static_cast<uint32_t>(pthread_self()),
                               reinterpret_cast<uint64_t>(cudart),
                               reinterpret_cast<uint64_t>(integrity),
                               reinterpret_cast<uint64_t>(integrity[1]),
                               5};
  const auto expected = integrityDigest(header, host.devices());
  CHECK(std::memcmp(expected.data(), out, 16) == 0);
}

TEST_CASE("tables hold what the runtime checks before it uses them") {
  FakeHost host;
  PrivateTables tables(host);
  const auto* hooks = table(tables, "a094798c2e742e7493f20800200c0a66");
  CHECK(reinterpret_cast<uintptr_t>(hooks[0]) >= 56);
  uint32_t* flags = nullptr;
  size_t count = 0;
  slot<void(uint32_t**, size_t*)>(hooks, 2)(&flags, &count);
  CHECK(count >= 523);
  for (size_t i = 0; i < count; ++i) REQUIRE(flags[i] == 0);
  slot<void(uint32_t**, size_t*)>(hooks, 6)(&flags, &count);
  CHECK(count >= 14);

  CUcontext context = nullptr;
  const auto* cudart = table(tables, "6bd5fb6c5bf4e74a8987d93912fd9df9");
  CHECK(slot<CUresult(CUcontext*, CUdevice)>(cudart, 2)(&context, 0) == CUDA_SUCCESS);
  CHECK(context == FakeHost::handle(7));
  CHECK(slot<CUresult(CUcontext*, CUdevice)>(cudart, 2)(&context, 9) == CUDA_ERROR_INVALID_DEVICE);

  host.current = FakeHost::handle(3);
  CHECK(slot<CUresult(CUcontext*)>(table(tables, "42d85a8123f6cb478298f6e78a3aecdc"),
                                   2)(&context) == CUDA_SUCCESS);
  CHECK(context == FakeHost::handle(3));

  const auto* contexts = table(tables, "21318c60971432488ca641ff7324c8f2");
  uint64_t id = 0;
  CHECK(slot<CUresult(CUcontext, uint64_t*)>(contexts, 4)(nullptr, &id) == CUDA_SUCCESS);
  CHECK(id == 42);
  void* object = nullptr;
  CHECK(slot<CUresult(CUcontext, CUstream, void**)>(contexts, 51)(nullptr, nullptr, &object) ==
        CUDA_SUCCESS);
  CHECK(slot<CUresult(CUcontext, void*, uint64_t*)>(contexts, 39)(nullptr, object, &id) ==
        CUDA_SUCCESS);
  CHECK(id == 10);

  int seen = 0;
  auto count_one = [](void* user, CUfunction, void*) { ++*static_cast<int*>(user); };
  using Callback = void (*)(void*, CUfunction, void*);
  const auto* functions = table(tables, "6e163fbeb958444d835ce182aff1991e");
  CHECK(slot<int(CUcontext, CUmodule, Callback, void*)>(functions, 7)(nullptr, nullptr, count_one,
                                                                      &seen) == 3);
  CHECK(seen == 3);

  // An unknown slot is a named error, told once.
  auto* unknown = slot<CUresult()>(contexts, 20);
  CHECK(unknown() == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(unknown() == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(host.told == "21318c6020");

  const CUuuid strange = uuid("0ca50b8c1004929a89a7d0df10e77286");
  const void* found = nullptr;
  CHECK(tables.find(&strange, &found) == CUDA_ERROR_INVALID_VALUE);
  CHECK(found == nullptr);
}

TEST_CASE(
    "context-local storage keeps a value for each context and key and runs destructors when the "
    "context goes") {
  static std::vector<uintptr_t> destroyed;
  destroyed.clear();
  const auto destructor = [](CUcontext, void* key, void* value) {
    destroyed.push_back(reinterpret_cast<uintptr_t>(key) * 100 +
                        reinterpret_cast<uintptr_t>(value));
  };
  const auto pointer = [](uintptr_t value) { return reinterpret_cast<void*>(value); };
  FakeHost host;
  PrivateTables tables(host);
  const auto* storage = table(tables, "c693336e1121df11a8c368f355d89593");
  auto* put = slot<CUresult(CUcontext, void*, void*, ContextStorage::Destructor)>(storage, 0);
  auto* erase = slot<CUresult(CUcontext, void*)>(storage, 1);
  auto* get = slot<CUresult(void**, CUcontext, void*)>(storage, 2);
  CHECK(storage[3] == nullptr);

  void* value = nullptr;
  CHECK(get(&value, nullptr, pointer(1)) != CUDA_SUCCESS);  // no current context
  host.current = FakeHost::handle(5);
  CHECK(get(&value, nullptr, pointer(1)) != CUDA_SUCCESS);
  CHECK(put(nullptr, pointer(1), pointer(11), destructor) == CUDA_SUCCESS);
  CHECK(put(nullptr, pointer(2), pointer(22), destructor) == CUDA_SUCCESS);
  CHECK(put(FakeHost::handle(6), pointer(1), pointer(61), destructor) == CUDA_SUCCESS);
  CHECK(get(&value, nullptr, pointer(1)) == CUDA_SUCCESS);
  CHECK(value == pointer(11));
  CHECK(get(&value, reinterpret_cast<CUcontext>(intptr_t{-1}), pointer(2)) == CUDA_SUCCESS);
  CHECK(value == pointer(22));
  CHECK(get(&value, FakeHost::handle(6), pointer(1)) == CUDA_SUCCESS);
  CHECK(value == pointer(61));
  CHECK(erase(nullptr, pointer(2)) == CUDA_SUCCESS);
  CHECK(erase(nullptr, pointer(2)) != CUDA_SUCCESS);
  CHECK(destroyed.empty());
  tables.contextGone(FakeHost::handle(5));
  CHECK(destroyed == std::vector<uintptr_t>{111});
  CHECK(get(&value, nullptr, pointer(1)) != CUDA_SUCCESS);
  CHECK(get(&value, FakeHost::handle(6), pointer(1)) == CUDA_SUCCESS);
}

TEST_CASE("what a compiler made is found again, by this process and by the next") {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("olpager-compiled-" + std::to_string(getpid()));
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  const std::string key = CompileCache::keyOf(2, bytes("source"), "-arch=sm_90", "build 1");
  CHECK(key == CompileCache::keyOf(2, bytes("source"), "-arch=sm_90", "build 1"));
  CHECK(key != CompileCache::keyOf(1, bytes("source"), "-arch=sm_90", "build 1"));
  CHECK(key != CompileCache::keyOf(2, bytes("sourc"), "e-arch=sm_90", "build 1"));
  CHECK(key != CompileCache::keyOf(2, bytes("source"), "-arch=sm_90", "build 2"));
  {
    CompileCache cache(folder.string(), 1 << 20);
    CHECK(cache.find(key) == nullptr);
    cache.store(key, bytes("compiled"));
    REQUIRE(cache.find(key) != nullptr);
    CHECK(cache.find(key)->size() == 8);
  }
  {
    CompileCache next(folder.string(), 1 << 20);
    REQUIRE(next.find(key) != nullptr);
    CHECK(std::memcmp(next.find(key)->data(), "compiled", 8) == 0);
  }
  // A file that is cut, or has other bytes in it, is no answer.
  fs::resize_file(folder / key, fs::file_size(folder / key) - 1);
  CHECK(CompileCache(folder.string(), 1 << 20).find(key) == nullptr);
  {
    CompileCache cache(folder.string(), 1 << 20);
    cache.store(key, bytes("compiled"));
    std::fstream file(folder / key, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end).put('x');
  }
  CHECK(CompileCache(folder.string(), 1 << 20).find(key) == nullptr);
  // Beyond the limit the oldest go.
  const std::string large(4000, 'x');
  for (int i = 0; i < 10; ++i)
    CompileCache(folder.string(), 10000)
        .store(CompileCache::keyOf(1, bytes(std::to_string(i)), "", ""), bytes(large));
  uint64_t total = 0;
  for (const auto& entry : fs::directory_iterator(folder)) total += entry.file_size();
  CHECK(total <= 10000);
  CHECK(CompileCache(folder.string(), 10000).find(CompileCache::keyOf(1, bytes("9"), "", "")) !=
        nullptr);
  // A folder that others may write to is left alone.
  fs::permissions(folder, fs::perms::others_write, fs::perm_options::add);
  const auto strange = CompileCache::keyOf(1, bytes("strange"), "", "");
  CompileCache(folder.string(), 1 << 20).store(strange, bytes("x"));
  CHECK(CompileCache(folder.string(), 1 << 20).find(strange) == nullptr);
  // Nor is what lies there believed.
  const auto last = CompileCache::keyOf(1, bytes("9"), "", "");
  CHECK(fs::exists(folder / last));
  CHECK(CompileCache(folder.string(), 10000).find(last) == nullptr);
  fs::remove_all(folder);
}

TEST_CASE("compilers ask through their table") {
  setenv("CUDA_CACHE_DISABLE", "1", 1);
  const void* const* words = static_cast<const void* const*>(compileCacheTable());
  CHECK(reinterpret_cast<size_t>(words[0]) == 56);
  auto* ask = reinterpret_cast<CUresult (*)(void**, uint32_t, const void*, size_t, const char*,
                                            const char*)>(const_cast<void*>(words[1]));
  auto* over = reinterpret_cast<CUresult (*)(void*)>(const_cast<void*>(words[2]));
  auto* answer = reinterpret_cast<CUresult (*)(void*, uint32_t, void**, uint32_t*)>(
      const_cast<void*>(words[3]));
  auto* keep = reinterpret_cast<CUresult (*)(void*, uint32_t, const void*, size_t)>(
      const_cast<void*>(words[4]));
  auto* give_back = reinterpret_cast<CUresult (*)(void*)>(const_cast<void*>(words[6]));
  void* question = nullptr;
  void* data = nullptr;
  uint32_t bytes = 0;
  REQUIRE(ask(&question, 2, "abc", 3, "-x", "HOST64") == CUDA_SUCCESS);
  CHECK(answer(question, 0, &data, &bytes) == CUDA_ERROR_NOT_FOUND);
  CHECK(keep(question, 0, "PTX", 3) == CUDA_SUCCESS);
  CHECK(over(question) == CUDA_SUCCESS);
  REQUIRE(ask(&question, 2, "abc", 3, "-x", "HOST64") == CUDA_SUCCESS);
  REQUIRE(answer(question, 0, &data, &bytes) == CUDA_SUCCESS);
  CHECK(bytes == 3);
  CHECK(std::memcmp(data, "PTX", 3) == 0);
  CHECK(give_back(data) == CUDA_SUCCESS);
  CHECK(over(question) == CUDA_SUCCESS);
}
