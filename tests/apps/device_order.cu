// CUDA_VISIBLE_DEVICES says which devices a program sees, and in which order: numbers, UUIDs or
// their beginnings. An entry that names no device, or several, ends the list; a device that is
// named twice leaves none. Programs of its own tell what they see.
#include <unistd.h>

#include <string>

#include "common.h"

namespace {

using Uuids = std::vector<std::string>;

std::string uuidOf(int device) {
  cudaDeviceProp properties;
  RUNTIME_OK(cudaGetDeviceProperties(&properties, device));
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += two;
  }
  return text;
}

// A kernel runs on each, too.
int list() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaErrorNoDevice) return 0;
  for (int device = 0; device < count; ++device) {
    void* memory = nullptr;
    RUNTIME_OK(cudaSetDevice(device));
    RUNTIME_OK(cudaMalloc(&memory, 1 << 20));
    apps::fill(memory, 1 << 20, uint32_t(device));
    apps::verify(memory, 1 << 20, uint32_t(device), 0, "memory of one device");
    std::printf("device %s\n", uuidOf(device).c_str());
  }
  return 0;
}

Uuids seen(const std::string& self, const char* visible) {
  const std::string setting = visible != nullptr
                                  ? "CUDA_VISIBLE_DEVICES='" + std::string(visible) + "' '"
                                  : std::string("env -u CUDA_VISIBLE_DEVICES '");
  FILE* const output = popen((setting + self + "' list").c_str(), "r");
  CHECK(output != nullptr, "%s", "no program can be started");
  Uuids found;
  char line[256];
  while (std::fgets(line, sizeof line, output) != nullptr) {
    std::string text = line;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (text.rfind("device ", 0) == 0) found.push_back(text.substr(7));
  }
  CHECK(pclose(output) == 0, "the program that sees %s failed",
        visible != nullptr ? visible : "all");
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "list") == 0) return list();
  (void)apps::parse(argc, argv);
  char path[4096] = {};
  CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0, "%s",
        "the program does not know its file");
  const Uuids all = seen(path, nullptr);
  if (all.size() < 3) apps::skip("fewer than three devices");
  const std::string shared_beginning = all[0].substr(0, 4);
  const struct {
    std::string visible;
    std::vector<size_t> expected;
  } cases[] = {
      {"0,1,2", {0, 1, 2}},
      {"2,1,0", {2, 1, 0}},
      {"1,2,0", {1, 2, 0}},
      {"2, 0", {2, 0}},
      {"1", {1}},
      {all[2] + "," + all[0] + "," + all[1], {2, 0, 1}},
      {all[1].substr(0, all[1].size() - 1) + "," + all[0], {1, 0}},
      {"2,7,0", {2}},
      {"1,-1,0", {1}},
      {"2,nothing,0", {2}},
      {all[1] + "," + shared_beginning + "," + all[0], {1}},
      {"0,1,0", {}},
      {"7,0", {}},
      {"", {}},
  };
  for (const auto& one : cases) {
    Uuids expected;
    for (const size_t index : one.expected) expected.push_back(all[index]);
    const Uuids found = seen(path, one.visible.c_str());
    std::string text;
    for (const std::string& uuid : found) text += " " + uuid;
    CHECK(found == expected, "CUDA_VISIBLE_DEVICES=%s shows%s", one.visible.c_str(), text.c_str());
  }
  return apps::ok("%zu ways to choose devices", std::size(cases));
}
