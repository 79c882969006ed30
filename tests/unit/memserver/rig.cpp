#include "tests/unit/memserver/rig.h"

#include <sys/mman.h>

#include <cstdlib>
#include <iostream>

namespace olpager::memserver::test {

transport::Options optionsFor(Choice choice) {
  transport::Options options;
  options.choice = choice;
  options.lanes = 2;
  return options;
}

Server::Server(Choice transport, uint64_t memory, ServiceOptions service_options)
    : options(std::move(service_options)),
      choice(transport),
      bytes(memory),
      address_("127.0.0.1:0") {
  start();
}

Server::~Server() { stop(); }

void Server::start() {
  SlabOptions slabs;
  slabs.bytes = kSlab;
  slabs.lock = false;
  store = std::make_unique<SlabStore>(slabs, arena, [] {});
  store->setTarget(bytes);
  REQUIRE(store
              ->fill(choice == Choice::kShm ? SlabKind::kShared : SlabKind::kPrivate,
                     [](uint64_t) { return true; })
              .ok());
  transport::Options transport_options = optionsFor(choice);
  transport_options.silent_ms = 0;
  transport_options.limits.links = this->options.most_sessions + kSpareLinks;
  auto made = transport::makeEndpoint(transport_options);
  REQUIRE(made.ok());
  endpoint = std::move(made.value());
  service = std::make_unique<Service>(options, *store, arena, endpoint->makeQueue());
  auto heard = endpoint->listen(address_, [this](const transport::PeerInfo& peer) {
    auto accepted = service->accept(peer);
    std::lock_guard lock(domains_mutex_);
    if (accepted.ok()) domains_.push_back(accepted.value().domain);
    return accepted;
  });
  INFO((heard.ok() ? "" : heard.error().message));
  REQUIRE(heard.ok());
  listener = std::move(heard.value());
  address_ = listener->address();
}

transport::DomainPtr Server::domain(size_t number) const {
  std::lock_guard lock(domains_mutex_);
  return domains_.at(number);
}

size_t Server::accepted() const {
  std::lock_guard lock(domains_mutex_);
  return domains_.size();
}

void Server::stop() {
  listener.reset();
  service.reset();
  endpoint.reset();
  store.reset();
}

Buffer::Buffer(const transport::DomainPtr& domain, uint64_t bytes) : length(bytes) {
  void* got = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(got != MAP_FAILED);
  base = static_cast<std::byte*>(got);
  auto registered = transport::registerMemory(domain, {base, length, -1, 0}, transport::kLocalOnly);
  REQUIRE(registered.ok());
  region = std::move(registered.value());
}

Buffer::~Buffer() {
  region.reset();
  munmap(base, length);
}

namespace {
uint64_t wordAt(uint64_t seed, uint64_t index) {
  return (seed * 0x9e3779b97f4a7c15ull + index) * 0xd6e8feb86659fd93ull | 1;  // never 0
}
}  // namespace

void Buffer::fill(uint64_t seed) {
  auto* words = reinterpret_cast<uint64_t*>(base);
  for (uint64_t i = 0; i < length / 8; ++i) words[i] = wordAt(seed, i);
}

bool Buffer::holds(uint64_t seed) const {
  const auto* words = reinterpret_cast<const uint64_t*>(base);
  for (uint64_t i = 0; i < length / 8; ++i) {
    if (words[i] != wordAt(seed, i)) return false;
  }
  return true;
}

bool Buffer::isZero() const {
  const auto* words = reinterpret_cast<const uint64_t*>(base);
  for (uint64_t i = 0; i < length / 8; ++i) {
    if (words[i] != 0) return false;
  }
  return true;
}

Session::Session(std::string where, Choice choice, const transport::FaultPlan* faults)
    : address(std::move(where)) {
  auto made = transport::makeEndpoint(sessionTransport(optionsFor(choice)));
  REQUIRE(made.ok());
  endpoint = std::move(made.value());
  if (faults != nullptr) endpoint = transport::makeFaulty(std::move(endpoint), *faults);
  options.endpoint = endpoint.get();
  options.domain = domain;
  options.address = address;
  options.label = "test";
}

Session::~Session() {
  client.reset();
  endpoint.reset();
}

void Session::open() {
  auto connected = Client::connect(options, *this);
  INFO((connected.ok() ? "" : connected.error().message));
  REQUIRE(connected.ok());
  client = std::move(connected.value());
}

void Session::transferDone(uint64_t context, TransferResult result) {
  std::lock_guard lock(mutex_);
  if (!results_.emplace(context, result).second) std::abort();  // twice
  changed_.notify_all();
}

void Session::happened(const Event& event) {
  std::lock_guard lock(mutex_);
  if (event.kind == Event::Kind::kRecall) last_recall_ = event.bytes;
  events_.push_back(event);
  changed_.notify_all();
}

TransferResult Session::await(uint64_t context) {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(lock, kLong, [&] { return results_.count(context) != 0; });
  REQUIRE(came);
  const TransferResult result = results_.at(context);
  results_.erase(context);
  return result;
}

Event Session::await(Event::Kind kind) {
  std::unique_lock lock(mutex_);
  const auto find = [&] {
    return std::find_if(events_.begin(), events_.end(),
                        [&](auto& event) { return event.kind == kind; });
  };
  INFO("waiting for: " << eventName(kind));
  const bool came = changed_.wait_for(lock, kLong, [&] { return find() != events_.end(); });
  REQUIRE(came);
  const auto place = find();
  Event event = *place;
  events_.erase(place);
  return event;
}

bool Session::saw(Event::Kind kind) {
  std::lock_guard lock(mutex_);
  return std::any_of(events_.begin(), events_.end(),
                     [&](auto& event) { return event.kind == kind; });
}

TransferResult Session::read(const Buffer& into, const FrameRange& from, Class klass) {
  const uint64_t context = next_context.fetch_add(1);
  const transport::LocalRange range = into.range();
  client->read({&range, 1}, from, klass, context);
  return await(context);
}

TransferResult Session::write(const Buffer& from, const FrameRange& into, Class klass) {
  const uint64_t context = next_context.fetch_add(1);
  const transport::LocalRange range = from.range();
  client->write({&range, 1}, into, klass, context);
  return await(context);
}

std::vector<Slab> Session::lease(uint64_t bytes) {
  auto leased = client->lease(bytes);
  INFO((leased.ok() ? "" : leased.error().message));
  REQUIRE(leased.ok());
  return leased.value();
}

std::mt19937_64 seededRandom(const char* test) {
  const char* given = std::getenv("OL_TEST_SEED");
  const uint64_t seed = given != nullptr && *given != '\0' ? std::strtoull(given, nullptr, 0)
                                                           : std::random_device()();
  std::cout << test << ": OL_TEST_SEED=" << seed << std::endl;
  return std::mt19937_64(seed);
}

}  // namespace olpager::memserver::test
