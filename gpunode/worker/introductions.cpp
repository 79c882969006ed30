#include "gpunode/worker/introductions.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "gpunode/worker/named_sockets.h"
#include "gpunode/worker/setup.h"

namespace olpager::gpunode {

void Introductions::askSupervisor(int socket) {
  const std::lock_guard lock(mutex_);
  supervisor_ = socket;
}

void Introductions::came(uint64_t number, base::UniqueFd connection) {
  const std::lock_guard lock(mutex_);
  if (number != asked_) return;  // who asked waits no more
  answer_ = number;
  connection_ = std::move(connection);
  answered_.notify_all();
}

base::UniqueFd Introductions::connectTo(std::string_view name) {
  constexpr std::chrono::seconds kPatience{10};
  const std::lock_guard one(asking_);
  std::unique_lock lock(mutex_);
  if (supervisor_ < 0) return connectToNamed(name);
  ConnectionWanted wanted;
  if (name.size() >= sizeof wanted.name) return {};
  std::memcpy(wanted.name, name.data(), name.size());
  wanted.number = ++asked_;
  connection_.reset();
  if (!sendWith(supervisor_, &wanted, sizeof wanted, -1)) return {};
  (void)answered_.wait_for(lock, kPatience, [&] { return answer_ == wanted.number; });
  return std::move(connection_);
}

Introductions& introductions() {
  static auto* const instance = new Introductions;  // threads that outlive main use it
  return *instance;
}

}  // namespace olpager::gpunode
