#include "pager/counters/details.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace olpager::pager {
namespace {

uint64_t mixed(uint64_t key) { return key * 0x9e3779b97f4a7c15 >> 32; }

// The block of `address`, taken up if need be; nullptr when all are others'.
std::atomic<uint8_t>* blockOf(ResidencyMap& map, uint64_t address) noexcept {
  const uint64_t begin = address / ResidencyMap::kBlockBytes * ResidencyMap::kBlockBytes;
  const auto first =
      static_cast<unsigned>(mixed(begin / ResidencyMap::kBlockBytes) % ResidencyMap::kBlocks);
  for (unsigned i = 0; i < ResidencyMap::kBlocks; i++) {
    const unsigned index = (first + i) % ResidencyMap::kBlocks;
    uint64_t owner = valueOf(map.addresses[index]);
    if (owner == 0 &&
        !map.addresses[index].compare_exchange_strong(owner, begin, std::memory_order_relaxed)) {
      // another thread took it: for this block, or for another
    } else if (owner == 0) {
      owner = begin;
    }
    if (owner == begin) return map.pages[index];
  }
  return nullptr;
}

// The first page's byte before; `unknown` when there is no room for it.
uint8_t mark(ResidencyMap& map, uint64_t address, uint64_t bytes, uint8_t value,
             uint8_t unknown) noexcept {
  uint8_t before = unknown;
  bool first = true;
  for (uint64_t page = address / ResidencyMap::kPageBytes, left = bytes / ResidencyMap::kPageBytes;
       left != 0;) {
    const uint64_t offset = page % ResidencyMap::kBlockPages;
    const uint64_t here = std::min(left, ResidencyMap::kBlockPages - offset);
    if (auto* block = blockOf(map, page * ResidencyMap::kPageBytes)) {
      if (first) before = block[offset].load(std::memory_order_relaxed);
      for (uint64_t i = 0; i < here; i++) block[offset + i].store(value, std::memory_order_relaxed);
    } else {
      add(map.unmapped_pages, here);
    }
    first = false;
    page += here;
    left -= here;
  }
  return before;
}

constexpr uint64_t kMostCredit = 64;

// The entry of a region. `make`: if it has none, it takes the place of the one with the least
// credit, once that has lost it: each move gives an entry credit, each one that finds no place
// takes some from the poorest.
HotTable::Entry* entryOf(HotTable& hot, const PlaceChange& change, bool make) noexcept {
  HotTable::Entry* const ways = &hot.entries[mixed(change.region / ResidencyMap::kPageBytes) %
                                             HotTable::kSets * HotTable::kWays];
  HotTable::Entry* poorest = ways;
  for (unsigned way = 0; way < HotTable::kWays; way++) {
    if (valueOf(ways[way].base) == change.region) return &ways[way];
    if (valueOf(ways[way].credit) < valueOf(poorest->credit)) poorest = &ways[way];
  }
  if (!make) return nullptr;
  if (const uint64_t credit = valueOf(poorest->credit); credit != 0) {
    set(poorest->credit, credit - 1);
    return nullptr;
  }
  set(poorest->base, 0);
  for (Counter* figure :
       {&poorest->fetched, &poorest->evicted, &poorest->bytes_in, &poorest->bytes_out}) {
    set(*figure, 0);
  }
  return poorest;
}

}  // namespace

const char* placeName(Place place) noexcept {
  constexpr const char* kNames[kPlaces] = {"none",   "empty", "VRAM", "in place", "host",
                                           "remote", "in",    "out",  "leaving",  "moving"};
  return static_cast<unsigned>(place) < kPlaces ? kNames[static_cast<unsigned>(place)] : "unknown";
}

const char* stepName(TraceStep step) noexcept {
  constexpr const char* kNames[kTraceSteps] = {
      "sleep", "lock",   "poll", "serve", "ahead", "take",     "give", "copy in",
      "map",   "choose", "pass", "found", "unmap", "copy out", "pack", "make host memory"};
  return static_cast<unsigned>(step) < kTraceSteps ? kNames[static_cast<unsigned>(step)]
                                                   : "unknown";
}

Place notePlace(CountersFile& file, const PlaceChange& change) noexcept {
  if (change.address == 0) return change.place;
  const auto device = static_cast<uint8_t>(std::min(change.device, kMaxCountedDevices - 1));
  const auto byte = static_cast<uint8_t>(change.place);
  const auto value = static_cast<uint8_t>(change.place == Place::kNone ? 0 : byte | device << 4);
  const auto before =
      static_cast<Place>(mark(file.map, change.address, change.bytes, value, value) & 0xf);
  if (change.place == Place::kNone) {  // the region goes
    if (HotTable::Entry* entry = entryOf(file.hot, change, false)) {
      set(entry->base, 0);
      set(entry->credit, 0);
    }
    return before;
  }
  const bool came = before == Place::kIn && change.place == Place::kVram;
  const bool clean =
      before == Place::kLeaving && (change.place == Place::kHost || change.place == Place::kRemote);
  const bool written =
      before == Place::kOut && (change.place == Place::kHost || change.place == Place::kRemote);
  if (!came && !clean && !written) return before;
  HotTable::Entry* entry = entryOf(file.hot, change, true);
  if (entry == nullptr) return before;
  set(entry->credit, std::min(valueOf(entry->credit) + 1, kMostCredit));
  set(entry->bytes, change.region_bytes);
  set(entry->device, device);
  if (came) {
    add(entry->fetched);
    add(entry->bytes_in, change.bytes);
  } else {
    add(entry->evicted);
    if (written) add(entry->bytes_out, change.bytes);
  }
  entry->base.store(change.region, std::memory_order_release);
  return before;
}

void putEvent(TraceRing& ring, TraceKind kind, unsigned device, uint64_t start_ns, uint64_t end_ns,
              uint64_t address, uint64_t bytes, uint64_t value) noexcept {
  static thread_local const auto thread = static_cast<uint64_t>(syscall(SYS_gettid));
  const uint64_t number = ring.head.fetch_add(1, std::memory_order_acq_rel);
  TraceRing::Event& event = ring.events[number % TraceRing::kEvents];
  uint64_t before = event.sequence.load(std::memory_order_relaxed);
  // Odd: a writer was overtaken by a whole round. Above: this one was.
  if (before % 2 != 0 || before > 2 * number ||
      !event.sequence.compare_exchange_strong(before, 2 * number + 1, std::memory_order_acquire)) {
    add(ring.dropped);
    return;
  }
  set(event.start_ns, start_ns);
  set(event.end_ns, end_ns);
  set(event.about, static_cast<uint64_t>(kind) | uint64_t{device & 0xff} << 8 | thread << 32);
  set(event.address, address);
  set(event.bytes, bytes);
  set(event.value, value);
  event.sequence.store(2 * number + 2, std::memory_order_release);
}

}  // namespace olpager::pager
