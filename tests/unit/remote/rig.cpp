#include "tests/unit/remote/rig.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace olpager::pager::test {
namespace {
uint64_t wordAt(uint64_t seed, uint64_t index) {
  return (seed * 0x9e3779b97f4a7c15ull + index) * 0xd6e8feb86659fd93ull | 1;
}
}  // namespace

Bytes::Bytes(uint64_t bytes) : length(bytes) {
  void* got = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();  // not an assertion: several threads make some
  base = static_cast<std::byte*>(got);
}

Bytes::~Bytes() { munmap(base, length); }

void Bytes::fill(uint64_t seed) {
  auto* words = reinterpret_cast<uint64_t*>(base);
  for (uint64_t i = 0; i < length / 8; ++i) words[i] = wordAt(seed, i);
}

bool Bytes::holds(uint64_t seed) const {
  const auto* words = reinterpret_cast<const uint64_t*>(base);
  for (uint64_t i = 0; i < length / 8; ++i) {
    if (words[i] != wordAt(seed, i)) return false;
  }
  return true;
}

void Bytes::clear() { std::memset(base, 0, length); }

namespace {
memserver::TierOptions optionsFor(const std::vector<const Server*>& servers, unsigned replicas) {
  memserver::TierOptions options;
  for (const Server* server : servers) options.memservers.push_back(server->address());
  options.replicas = replicas;
  options.transport = memserver::test::optionsFor(servers[0]->choice);
  return options;
}
}  // namespace

Caller::Caller(const std::vector<const Server*>& servers, unsigned replicas,
               const memserver::EndpointMaker& make)
    : Caller(optionsFor(servers, replicas), make) {}

Caller::Caller(memserver::TierOptions options, const memserver::EndpointMaker& make) {
  options.label = "test";
  auto connected = make ? memserver::connectTier(options, make) : memserver::connectTier(options);
  INFO((connected.ok() ? "" : connected.error().message));
  REQUIRE(connected.ok());
  tier = std::move(connected.value());
  tier->setWake([this] {
    ++wakes;
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
}

void Caller::send(uint64_t id, const Bytes& bytes, const ContentHash* hash) {
  {
    std::lock_guard lock(mutex_);
    memory_[id] = bytes.base;
  }
  tier->send(id, bytes.base, bytes.length, hash);
}

void Caller::receive(uint64_t id, Bytes& bytes, bool urgent) {
  {
    std::lock_guard lock(mutex_);
    memory_[id] = bytes.base;
  }
  tier->receive(id, bytes.base, bytes.length, urgent);
}

LowerTier::Finished Caller::await(uint64_t id) {
  const auto end = std::chrono::steady_clock::now() + memserver::test::kLong;
  std::unique_lock lock(mutex_);
  for (;;) {
    for (const LowerTier::Finished& one : tier->take()) {
      if (!finished_.emplace(one.address, one).second) std::abort();  // twice
      changed_.notify_all();
    }
    if (const auto found = finished_.find(id); found != finished_.end()) {
      const LowerTier::Finished result = found->second;
      finished_.erase(found);
      const void* const memory = memory_.at(id);
      lock.unlock();
      tier->letGo(memory);
      return result;
    }
    if (changed_.wait_until(lock, end) == std::cv_status::timeout)
      throw std::runtime_error("a transfer does not end");
  }
}

LowerTier::Outcome Caller::sent(uint64_t id, const Bytes& bytes) {
  send(id, bytes);
  return await(id).outcome;
}

LowerTier::Outcome Caller::received(uint64_t id, Bytes& bytes) {
  receive(id, bytes, true);
  return await(id).outcome;
}

}  // namespace olpager::pager::test
