#include "interpose/forward/devices.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "forwarding/visible_devices.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/program.h"
#include "interpose/forward/session.h"

namespace olpager::forward {
namespace {

using Place = DeviceList::Place;

std::vector<Place>& places() { return program().parts().devices->places; }

std::string uuidOf(const Place& place) {
  Call call(api::Symbol::kCuDeviceGetUuid_v2, place.session);
  call.needsNoContext();
  CUuuid uuid{};
  call.value(place.at_worker);
  call.wants(&uuid);
  if (call.sync() == CUDA_SUCCESS) call.take(&uuid, 1);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += two;
  }
  return text;
}

}  // namespace

Status findDevices(std::span<Session* const> all) {
  std::vector<Place> found;
  for (Session* const session : all) {
    for (CUdevice device = 0; device < session->executor().description().devices; ++device)
      found.push_back({session, device});
  }
  // One gpunode shows only those that are named.
  const char* const visible = all.size() > 1 ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
  if (visible != nullptr) {
    std::vector<std::string> uuids;
    uuids.reserve(found.size());
    for (const Place& place : found) uuids.push_back(uuidOf(place));
    std::vector<Place> seen;
    for (const uint32_t index : visibleDevices(uuids, visible)) seen.push_back(found[index]);
    if (seen.empty())
      return Error{"CUDA_VISIBLE_DEVICES=" + std::string(visible).substr(0, 64) +
                   " names none of the " + std::to_string(found.size()) +
                   " devices of the gpunodes"};
    found = std::move(seen);
  }
  places() = std::move(found);
  return {};
}

void forgetDevices() { places().clear(); }

int deviceCount() { return existingSessions().empty() ? 0 : static_cast<int>(places().size()); }

bool placeOf(CUdevice device, Session** session, CUdevice* at_worker) {
  const auto& all = places();
  if (device < 0 || static_cast<size_t>(device) >= all.size()) return false;
  *session = all[static_cast<size_t>(device)].session;
  *at_worker = all[static_cast<size_t>(device)].at_worker;
  return true;
}

CUdevice deviceOf(const Session& session, CUdevice at_worker) {
  if (!severalSessions()) return at_worker;
  const auto& all = places();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Place& place) {
    return place.session == &session && place.at_worker == at_worker;
  });
  return found != all.end() ? static_cast<CUdevice>(found - all.begin()) : CU_DEVICE_INVALID;
}

bool toWorker(const Session& session, CUdevice& device) {
  if (!severalSessions() || device < 0)
    return true;  // the worker says what is wrong with it, or it is the CPU
  Session* of = nullptr;
  return placeOf(device, &of, &device) && of == &session;
}

bool toWorker(const Session& session, CUmemLocation& location) {
  return location.type != CU_MEM_LOCATION_TYPE_DEVICE || toWorker(session, location.id);
}

bool toWorker(const Session& session, CUarrayMapInfo& info) {
  unsigned at_worker = 0;
  for (CUdevice device = 0; device < 32; ++device) {
    if ((info.deviceBitMask >> device & 1) == 0) continue;
    CUdevice its = device;
    if (!toWorker(session, its) || its < 0 || its >= 32) return false;
    at_worker |= 1u << its;
  }
  info.deviceBitMask = at_worker;
  return true;
}

void fromWorker(const Session& session, CUdevice& device) {
  if (device >= 0) device = deviceOf(session, device);
}

void fromWorker(const Session& session, CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) fromWorker(session, location.id);
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

// Functions about all devices, or two of them.
extern "C" {

CUresult ol_forward_cuDeviceGetCount(int* count) {
  const auto all = sessions();
  if (std::none_of(all.begin(), all.end(), [](const Session* one) { return one->initialized(); }))
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!severalSessions()) return ol_forward_generated_cuDeviceGetCount(count);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = deviceCount();
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuDeviceGet(CUdevice* device, int ordinal) {
  if (!severalSessions()) return ol_forward_generated_cuDeviceGet(device, ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (ordinal < 0 || ordinal >= deviceCount()) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  if (!severalSessions()) return ol_forward_generated_cuDeviceGetPCIBusId(text, length, device);
  if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  int domain = 0, bus = 0, number = 0;
  for (const auto& [attribute, into] : {std::pair{CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, &domain},
                                        {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &bus},
                                        {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, &number}}) {
    if (const CUresult result = ol_forward_cuDeviceGetAttribute(into, attribute, device);
        result != CUDA_SUCCESS)
      return result;
  }
  std::snprintf(text, static_cast<size_t>(length), "%04x:%02x:%02x.0",
                static_cast<unsigned>(domain), static_cast<unsigned>(bus),
                static_cast<unsigned>(number));
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuDeviceGetByPCIBusId(CUdevice* device, const char* wanted) {
  if (!severalSessions()) return ol_forward_generated_cuDeviceGetByPCIBusId(device, wanted);
  if (device == nullptr || wanted == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // [domain:]bus:device[.function], in hexadecimal
  unsigned domain = 0, bus = 0, number = 0;
  if (std::sscanf(wanted, "%x:%x:%x", &domain, &bus, &number) != 3) {
    domain = 0;
    if (std::sscanf(wanted, "%x:%x", &bus, &number) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", domain, bus, number);
  for (CUdevice one = 0; one < deviceCount(); ++one) {
    char its[32] = {};
    if (ol_forward_cuDeviceGetPCIBusId(its, sizeof its, one) != CUDA_SUCCESS ||
        std::string_view(its) != text)
      continue;
    *device = one;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

}  // extern "C"
