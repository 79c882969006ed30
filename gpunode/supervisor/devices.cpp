#include "gpunode/supervisor/devices.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "gpunode/supervisor/launch_worker.h"
#include "gpunode/supervisor/nvml_source.h"

namespace olpager::gpunode {
namespace {

constexpr int kPatienceMs = 30'000;
constexpr int kLookMs = 100;
constexpr int kReapTries = 300;
constexpr std::chrono::milliseconds kReapPause{10};

std::string uuidText(const uint8_t (&bytes)[16]) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += base::format("{:02x}", bytes[i]);
  }
  return text;
}

status::Device deviceFrom(const DeviceDescription& told) {
  status::Device device;
  device.name = base::printable(std::string_view(told.name, strnlen(told.name, sizeof told.name)));
  device.uuid = uuidText(told.uuid);
  device.pci_domain = static_cast<uint32_t>(told.pci_domain);
  device.pci_bus = static_cast<uint32_t>(told.pci_bus);
  device.pci_device = static_cast<uint32_t>(told.pci_device);
  device.compute_major = static_cast<uint32_t>(told.compute_major);
  device.compute_minor = static_cast<uint32_t>(told.compute_minor);
  device.multiprocessors = static_cast<uint32_t>(told.multiprocessors);
  device.total = device.free = told.total;
  return device;
}

}  // namespace

Devices::Devices() = default;
Devices::~Devices() = default;

Status Devices::find(const std::string& worker, const std::vector<std::string>& environment,
                     const std::string& driver, const std::vector<uint32_t>& chosen,
                     const std::function<bool()>& ends) {
  WorkerSetup setup;
  setup.task = WorkerTask::kDescribe;
  std::strncpy(setup.library, driver.c_str(), sizeof setup.library - 1);
  auto started = launchWorker(worker, environment, setup);
  if (!started.ok()) return started.error();
  NodeDescription node;
  pollfd socket{started.value().socket.get(), POLLIN, 0};
  const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  int ready = 0;
  while ((ready = poll(&socket, 1, kLookMs)) <= 0 && !ends() &&
         std::chrono::steady_clock::now() < patience) {
  }
  const bool told = ready > 0 && recv(socket.fd, &node, sizeof node, MSG_DONTWAIT) ==
                                     static_cast<ssize_t>(sizeof node);
  if (!told) kill(started.value().pid, SIGKILL);
  // One that hangs in the driver can't be waited for: the supervisor reaps it one day.
  bool over = false;
  for (int tries = 0; tries < kReapTries && !over && !ends(); ++tries) {
    over = waitpid(started.value().pid, nullptr, WNOHANG) != 0;
    if (!over) std::this_thread::sleep_for(kReapPause);
  }
  if (!over) kill(started.value().pid, SIGKILL);
  if (!told && ends()) return Error{"the gpunode has been told to end"};
  if (!told)
    return Error{ready > 0 ? "the driver ends the process that starts it"
                           : "the driver does not start within 30 s"};
  node.text[sizeof node.text - 1] = '\0';
  no_driver_ = node.failed == NodeDescription::Failure::kNoDriver;
  if (node.failed != NodeDescription::Failure::kNone) return Error{base::printable(node.text)};
  const uint32_t count = std::min(node.device_count, kMostDevices);
  std::vector<uint32_t> order = chosen;
  if (order.empty()) {
    for (uint32_t i = 0; i < count; ++i) order.push_back(i);
  }
  std::vector<status::Device> found;
  for (const uint32_t index : order) {
    if (index >= count)
      return Error{
          base::format("--device: there is no GPU {}; the driver has 0 to {}", index, count - 1)};
    found.push_back(deviceFrom(node.devices[index]));
    for (size_t other = 0; other < order.size(); ++other) {
      if (order[other] < count && (node.devices[index].peers >> order[other] & 1) != 0)
        found.back().peers |= 1ull << other;
    }
  }
  devices_ = std::move(found);
  cuda_version_ = static_cast<uint32_t>(node.cuda_version);
  nvml_ = std::make_unique<NvmlSource>();
  driver_version_ = nvml_->driverVersion();
  (void)refresh(std::chrono::milliseconds(0));
  return {};
}

bool Devices::refresh(std::chrono::milliseconds age) {
  const auto now = std::chrono::steady_clock::now();
  if (nvml_ == nullptr || !nvml_->there() || devices_.empty()) return false;
  if (now - asked_ < age) return measured_;
  asked_ = now;
  measured_ = true;
  for (auto& device : devices_) measured_ = nvml_->measure(device) && measured_;
  return measured_;
}

void Devices::setMemory(size_t i, uint64_t used) {
  status::Device& device = devices_[i];
  device.used = std::min(used, device.total);
  device.free = device.total - device.used;
}

std::string Devices::names() const {
  std::string text;
  for (size_t first = 0, next = 0; first < devices_.size(); first = next) {
    while (next < devices_.size() && devices_[next].name == devices_[first].name) ++next;
    const std::string count = next - first == 1 ? "" : std::to_string(next - first) + " x ";
    text += (text.empty() ? "" : ", ") + count + devices_[first].name;
  }
  return text;
}

std::vector<std::string> Devices::uuids() const {
  std::vector<std::string> all;
  for (const auto& device : devices_) all.push_back(device.uuid);
  return all;
}

}  // namespace olpager::gpunode
