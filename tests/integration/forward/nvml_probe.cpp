// Calls NVML as nvidia-smi, pynvml and NCCL do, by dlopen and dlsym, and tells what it hears;
// commands come a line each.
//   load          "ok" when libnvidia-ml.so.1 can be opened
//   early         a function before nvmlInit
//   init          nvmlInit_v2
//   system        driver version, NVML version, CUDA version, count
//   device N      what device N is
//   state N       memory, utilisation, temperature, power, clocks
//   processes N   "ok COUNT PID:NAME:BYTES..."
//   private N     as nvidia-smi: the private table, bus id and processes of device N by it
//   pair A B      P2P status of reads, writes and NVLink
//   lacking N     functions that have no answer: their results
//   fork N        state N, asked by a forked child
//   threads N     state N from eight threads at once
//   shutdown
// Answers begin with "ok", or are "failed FUNCTION RESULT TEXT".
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

// A function of a table that is handed out as constant.
template <typename Function>
Function functionAt(const void* entry) {
  return reinterpret_cast<Function>(const_cast<void*>(entry));
}

using Device = void*;
void* g_library = nullptr;

template <typename... Arguments>
int call(const char* name, Arguments... arguments) {
  auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(g_library, name));
  return function != nullptr ? function(arguments...) : 13;
}

struct Answer {
  std::string text = "ok";
  bool failed = false;
  template <typename... Arguments>
  bool ask(const char* name, Arguments... arguments) {
    const int result = call(name, arguments...);
    if (result == 0 || failed) return result == 0;
    failed = true;
    auto* const words = reinterpret_cast<const char* (*)(int)>(dlsym(g_library, "nvmlErrorString"));
    text = std::string("failed ") + name + " " + std::to_string(result) + " " +
           (words != nullptr ? words(result) : "?");
    return false;
  }
  void add(const char* name, const std::string& value) {
    if (!failed) text += std::string(" ") + name + "=" + value;
  }
  /// A figure that a device may lack.
  template <typename... Arguments>
  void figure(const char* name, const char* function, Device device, Arguments... before) {
    unsigned value = 0;
    const int result = call(function, device, before..., &value);
    add(name, result == 0 ? std::to_string(value) : "!" + std::to_string(result));
  }
};

Device deviceOf(Answer& answer, unsigned index) {
  Device device = nullptr;
  answer.ask("nvmlDeviceGetHandleByIndex_v2", index, &device);
  return device;
}

struct Pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct Utilization {
  unsigned gpu, memory;
};

std::string system() {
  Answer answer;
  char driver[80] = {}, own[80] = {};
  int cuda = 0;
  unsigned count = 0;
  if (answer.ask("nvmlSystemGetDriverVersion", static_cast<char*>(driver), 80u))
    answer.add("driver", driver);
  if (answer.ask("nvmlSystemGetNVMLVersion", static_cast<char*>(own), 80u)) answer.add("nvml", own);
  if (answer.ask("nvmlSystemGetCudaDriverVersion_v2", &cuda))
    answer.add("cuda", std::to_string(cuda));
  if (answer.ask("nvmlDeviceGetCount_v2", &count)) answer.add("count", std::to_string(count));
  return answer.text;
}

std::string describe(unsigned index) {
  Answer answer;
  const Device device = deviceOf(answer, index);
  char name[96] = {}, uuid[96] = {};
  unsigned number = 0;
  int major = 0, minor = 0;
  Pci pci{};
  Device by_uuid = nullptr, by_bus = nullptr;
  if (answer.ask("nvmlDeviceGetName", device, static_cast<char*>(name), 96u)) {
    for (char& c : name) c = c == ' ' ? '_' : c;
    answer.add("name", name);
  }
  if (answer.ask("nvmlDeviceGetUUID", device, static_cast<char*>(uuid), 80u))
    answer.add("uuid", uuid);
  if (answer.ask("nvmlDeviceGetIndex", device, &number))
    answer.add("index", std::to_string(number));
  if (answer.ask("nvmlDeviceGetCudaComputeCapability", device, &major, &minor))
    answer.add("cc", std::to_string(major) + "." + std::to_string(minor));
  if (answer.ask("nvmlDeviceGetPciInfo_v3", device, &pci)) {
    answer.add("bus", pci.bus_id);
    answer.add("legacy", pci.legacy);
  }
  answer.ask("nvmlDeviceGetHandleByUUID", static_cast<const char*>(uuid), &by_uuid);
  answer.ask("nvmlDeviceGetHandleByPciBusId_v2", static_cast<const char*>(pci.bus_id), &by_bus);
  answer.add("same", by_uuid == device && by_bus == device ? "yes" : "no");
  char little[4];
  answer.add("small",
             std::to_string(call("nvmlDeviceGetUUID", device, static_cast<char*>(little), 4u)));
  return answer.text;
}

std::string state(unsigned index) {
  Answer answer;
  const Device device = deviceOf(answer, index);
  Memory memory{};
  MemoryV2 newer{static_cast<unsigned>(sizeof newer) | 2u << 24, 0, 0, 0, 0};
  if (answer.ask("nvmlDeviceGetMemoryInfo", device, &memory)) {
    answer.add("total", std::to_string(memory.total));
    answer.add("used", std::to_string(memory.used));
    answer.add("free", std::to_string(memory.free));
  }
  if (answer.ask("nvmlDeviceGetMemoryInfo_v2", device, &newer))
    answer.add("sums", newer.total == newer.reserved + newer.free + newer.used ? "yes" : "no");
  Utilization use{};
  const int result = call("nvmlDeviceGetUtilizationRates", device, &use);
  answer.add("gpu", result == 0 ? std::to_string(use.gpu) : "!" + std::to_string(result));
  answer.figure("temperature", "nvmlDeviceGetTemperature", device, 0u);
  answer.figure("power", "nvmlDeviceGetPowerUsage", device);
  answer.figure("limit", "nvmlDeviceGetEnforcedPowerLimit", device);
  answer.figure("sm", "nvmlDeviceGetClockInfo", device, 1u);
  answer.figure("mode", "nvmlDeviceGetComputeMode", device);
  return answer.text;
}

// Words of the private table, as nvidia-smi of driver 580 uses them.
std::string byPrivateTable(unsigned index) {
  Answer answer;
  static const unsigned char id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                       0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
  static const unsigned char other[16] = {1};
  const void* const* table = nullptr;
  answer.add("other", std::to_string(call("nvmlInternalGetExportTable", &table,
                                          static_cast<const void*>(other))));
  if (!answer.ask("nvmlInternalGetExportTable", &table, static_cast<const void*>(id)))
    return answer.text;
  answer.add("bytes", std::to_string(reinterpret_cast<size_t>(table[0])));
  const Device device = deviceOf(answer, index);
  char bus[34] = {};
  const int told =
      functionAt<int (*)(unsigned, char*, unsigned)>(table[81])(index, bus, sizeof bus);
  answer.add("bus", told == 0 ? bus : "!" + std::to_string(told));
  struct Entry {
    unsigned pid, unknown0;
    unsigned long long used;
    unsigned instances[2], unknown1[2];
    char command[4096];
  };
  std::vector<Entry> all(4);
  for (const size_t word : {213, 214, 215}) {
    unsigned count = 4;
    const int result =
        functionAt<int (*)(Device, unsigned*, Entry*)>(table[word])(device, &count, all.data());
    answer.add("processes", result == 0 ? std::to_string(count) : "!" + std::to_string(result));
    for (unsigned i = 0; i < count && i < all.size(); ++i)
      answer.text += " " + std::to_string(all[i].pid) + ":" + all[i].command + ":" +
                     std::to_string(all[i].used);
  }
  answer.add("log", std::to_string(functionAt<int (*)(const char*, ...)>(table[26])("%s", "text")));
  answer.add("unknown", std::to_string(functionAt<int (*)(Device)>(table[100])(device)));
  return answer.text;
}

std::string processes(unsigned index) {
  Answer answer;
  const Device device = deviceOf(answer, index);
  unsigned count = 0;
  const int asked = call("nvmlDeviceGetComputeRunningProcesses_v3", device, &count,
                         static_cast<Process*>(nullptr));
  if (asked != 0 && asked != 7)
    return "failed nvmlDeviceGetComputeRunningProcesses_v3 " + std::to_string(asked);
  std::vector<Process> all(count + 4);
  count += 4;
  if (!answer.ask("nvmlDeviceGetComputeRunningProcesses_v3", device, &count, all.data()))
    return answer.text;
  answer.text += " " + std::to_string(count);
  for (unsigned i = 0; i < count; ++i) {
    char name[64] = {};
    answer.ask("nvmlSystemGetProcessName", all[i].pid, static_cast<char*>(name), 64u);
    answer.text +=
        " " + std::to_string(all[i].pid) + ":" + name + ":" + std::to_string(all[i].used);
  }
  return answer.text;
}

std::string pair(unsigned a, unsigned b) {
  Answer answer;
  const Device one = deviceOf(answer, a), other = deviceOf(answer, b);
  for (const unsigned capability : {0u, 1u, 2u}) {
    unsigned status = 99;
    if (answer.ask("nvmlDeviceGetP2PStatus", one, other, capability, &status))
      answer.text += " " + std::to_string(status);
  }
  return answer.text;
}

std::string lacking(unsigned index) {
  Answer answer;
  const Device device = deviceOf(answer, index);
  answer.figure("ecc", "nvmlDeviceGetEccMode", device);
  answer.figure("link", "nvmlDeviceGetNvLinkState", device, 0u);
  answer.figure("fabric", "nvmlDeviceGetGpuFabricInfoV", device);
  answer.add("limit", std::to_string(call("nvmlDeviceSetPowerManagementLimit", device, 100000u)));
  answer.add("none", std::to_string(call("nvmlDeviceThatIsNot", device)));
  answer.add("handle", std::to_string(call("nvmlDeviceGetName", reinterpret_cast<Device>(0x10),
                                           static_cast<char*>(nullptr), 0u)));
  answer.add("beyond", std::to_string(call("nvmlDeviceGetHandleByIndex_v2", 99u, &index)));
  return answer.text;
}

std::string forked(unsigned index) {
  int ends[2];
  if (pipe(ends) != 0) return "failed pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string told = state(index);
    (void)!write(ends[1], told.data(), told.size());
    _exit(0);
  }
  close(ends[1]);
  char text[1024] = {};
  const ssize_t got = read(ends[0], text, sizeof text - 1);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return got > 0 && status == 0 ? text : "failed child";
}

std::string threads(unsigned index) {
  std::vector<std::string> told(8);
  std::vector<std::thread> all;
  for (auto& one : told) all.emplace_back([&one, index] { one = state(index); });
  for (auto& one : all) one.join();
  for (const auto& one : told) {
    if (one.rfind("ok", 0) != 0) return one;
  }
  return "ok";
}

}  // namespace

int main() {
  char line[128];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    char word[32] = {};
    unsigned a = 0, b = 0;
    (void)std::sscanf(line, "%31s %u %u", word, &a, &b);
    const std::string command = word;
    std::string said = "failed command";
    if (command == "load") {
      g_library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
      said = g_library != nullptr ? "ok" : "failed dlopen";
    } else if (command == "early") {
      unsigned count = 0;
      said = "ok " + std::to_string(call("nvmlDeviceGetCount_v2", &count)) + " " +
             std::to_string(call("nvmlDeviceGetEccMode", &count)) + " " +
             std::to_string(call("nvmlShutdown"));
    } else if (command == "init" || command == "shutdown") {
      Answer answer;
      answer.ask(command == "init" ? "nvmlInit_v2" : "nvmlShutdown");
      said = answer.text;
    } else if (command == "system") {
      said = system();
    } else if (command == "device") {
      said = describe(a);
    } else if (command == "state") {
      said = state(a);
    } else if (command == "processes") {
      said = processes(a);
    } else if (command == "private") {
      said = byPrivateTable(a);
    } else if (command == "pair") {
      said = pair(a, b);
    } else if (command == "lacking") {
      said = lacking(a);
    } else if (command == "fork") {
      said = forked(a);
    } else if (command == "threads") {
      said = threads(a);
    }
    std::printf("%s\n", said.c_str());
    std::fflush(stdout);
  }
  return 0;
}
