#include "interpose/private_tables/compile_cache.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace olpager::interpose {
namespace {

namespace fs = std::filesystem;

// At the head of a file, so that one that was cut or spoilt is known.
struct FileHead {
  char magic[8];
  uint64_t bytes;
  uint64_t hash;
};
constexpr char kMagic[8] = {'o', 'l', 'c', 'o', 'm', 'p', '0', '1'};
constexpr uint64_t kDefaultLimit = 256ull << 20;
constexpr uint64_t kLargest = 64ull << 20;  // of one output

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string defaultFolder() {
  if (environment("CUDA_CACHE_DISABLE") == "1") return {};
  if (const std::string cache = environment("XDG_CACHE_HOME");
      !cache.empty() && cache.front() == '/')
    return cache + "/olpager/compiled";
  const std::string home = environment("HOME");
  return !home.empty() && home.front() == '/' ? home + "/.cache/olpager/compiled" : std::string();
}

uint64_t defaultLimit() {
  const std::string text = environment("CUDA_CACHE_MAXSIZE");
  char* end = nullptr;
  const uint64_t limit = std::strtoull(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0' ? limit : kDefaultLimit;
}

// Compiled code of others is nothing to run.
bool isOurs(const std::string& folder) {
  struct stat about {};
  return lstat(folder.c_str(), &about) == 0 && S_ISDIR(about.st_mode) &&
         about.st_uid == geteuid() && (about.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

CompileCache& CompileCache::instance() {
  static auto* const cache = new CompileCache(defaultFolder(), defaultLimit());
  return *cache;
}

std::string CompileCache::keyOf(uint32_t kind, std::span<const std::byte> input,
                                const char* options, const char* compiler) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  // Each part with its length, so that no two sequences of parts are the same bytes.
  const auto add = [&](const void* from, uint64_t bytes) {
    XXH3_128bits_update(&state, &bytes, sizeof bytes);
    if (bytes != 0) XXH3_128bits_update(&state, from, bytes);
  };
  add(&kind, sizeof kind);
  add(input.data(), input.size());
  add(options, options != nullptr ? std::strlen(options) : 0);
  add(compiler, compiler != nullptr ? std::strlen(compiler) : 0);
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(&state));
  std::string key;
  for (const unsigned char byte : digest.digest) {
    constexpr char kDigits[] = "0123456789abcdef";
    key.push_back(kDigits[byte >> 4]);
    key.push_back(kDigits[byte & 15]);
  }
  return key;
}

CompileCache::Bytes CompileCache::find(const std::string& key) noexcept try {
  {
    std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
  }
  Bytes bytes = read(key);
  if (bytes != nullptr) {
    std::lock_guard lock(mutex_);
    known_.emplace(key, bytes);
  }
  return bytes;
} catch (...) {  // no memory: as if there were none
  return nullptr;
}

void CompileCache::store(const std::string& key, std::span<const std::byte> output) noexcept try {
  if (output.empty() || output.size() > kLargest) return;
  auto bytes = std::make_shared<const std::vector<std::byte>>(output.begin(), output.end());
  {
    std::lock_guard lock(mutex_);
    known_[key] = bytes;
  }
  write(key, *bytes);
} catch (...) {
  return;  // a cache that can't keep something compiles it again
}

CompileCache::Bytes CompileCache::read(const std::string& key) const {
  if (folder_.empty() || !isOurs(folder_)) return nullptr;
  std::ifstream file(folder_ + "/" + key, std::ios::binary);
  FileHead head{};
  if (!file.read(reinterpret_cast<char*>(&head), sizeof head)) return nullptr;
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 || head.bytes == 0 ||
      head.bytes > kLargest)
    return nullptr;
  auto bytes = std::make_shared<std::vector<std::byte>>(head.bytes);
  if (!file.read(reinterpret_cast<char*>(bytes->data()), static_cast<std::streamsize>(head.bytes)))
    return nullptr;
  if (XXH3_64bits(bytes->data(), bytes->size()) != head.hash) return nullptr;
  return bytes;
}

void CompileCache::write(const std::string& key, const std::vector<std::byte>& output) const {
  if (folder_.empty() || output.size() > limit_) return;
  std::error_code error;
  fs::create_directories(fs::path(folder_).parent_path(), error);
  if (mkdir(folder_.c_str(), S_IRWXU) != 0 && errno != EEXIST) return;
  if (!isOurs(folder_)) return;
  std::string beside = folder_ + "/.new-XXXXXX";
  const int file = mkostemp(beside.data(), O_CLOEXEC);
  if (file < 0) return;
  FileHead head{};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  head.bytes = output.size();
  head.hash = XXH3_64bits(output.data(), output.size());
  const auto put = [&](const void* from, size_t bytes) {
    return ::write(file, from, bytes) == static_cast<ssize_t>(bytes);
  };
  const bool whole = put(&head, sizeof head) && put(output.data(), output.size());
  if (close(file) != 0 || !whole || rename(beside.c_str(), (folder_ + "/" + key).c_str()) != 0) {
    unlink(beside.c_str());
    return;
  }
  trim();
}

void CompileCache::trim() const {
  struct Entry {
    fs::path path;
    fs::file_time_type written;
    uint64_t bytes;
  };
  std::vector<Entry> entries;
  uint64_t total = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const uint64_t bytes = entry.file_size(error);
    if (error) continue;
    entries.push_back({entry.path(), entry.last_write_time(error), bytes});
    total += bytes;
  }
  if (total <= limit_) return;
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.written < b.written; });
  for (const Entry& entry : entries) {
    if (total <= limit_) break;
    if (fs::remove(entry.path, error)) total -= entry.bytes;
  }
}

// --- the table -----------------------------------------------------------------------------------

namespace {

struct Question {
  std::string key;
};

CUresult ask(Question** out, uint32_t kind, const void* input, size_t bytes, const char* options,
             const char* compiler) try {
  if (out == nullptr || (input == nullptr && bytes != 0)) return CUDA_ERROR_INVALID_VALUE;
  *out = new Question{
      CompileCache::keyOf(kind, {static_cast<const std::byte*>(input), bytes}, options, compiler)};
  return CUDA_SUCCESS;
} catch (...) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult over(Question* question) {
  delete question;
  return CUDA_SUCCESS;
}

CUresult answer(Question* question, uint32_t /*what*/, void** data, uint32_t* bytes) {
  if (question == nullptr || data == nullptr || bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = CompileCache::instance().find(question->key);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  void* const copy = std::malloc(found->size());
  if (copy == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memcpy(copy, found->data(), found->size());
  *data = copy;
  *bytes = static_cast<uint32_t>(found->size());
  return CUDA_SUCCESS;
}

CUresult keep(Question* question, uint32_t /*what*/, const void* data, size_t bytes) {
  if (question == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CompileCache::instance().store(question->key, {static_cast<const std::byte*>(data), bytes});
  return CUDA_SUCCESS;
}

CUresult unknown() { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult giveBack(void* data) {
  std::free(data);
  return CUDA_SUCCESS;
}

}  // namespace

const void* compileCacheTable() {
  static const void* const words[] = {
      reinterpret_cast<const void*>(sizeof(void*) * 7),
      reinterpret_cast<const void*>(&ask),
      reinterpret_cast<const void*>(&over),
      reinterpret_cast<const void*>(&answer),
      reinterpret_cast<const void*>(&keep),
      reinterpret_cast<const void*>(&unknown),
      reinterpret_cast<const void*>(&giveBack),
  };
  return words;
}

}  // namespace olpager::interpose
