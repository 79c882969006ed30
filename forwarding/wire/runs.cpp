#include "forwarding/wire/runs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/own_memory.h"

namespace olpager::forward {
namespace {

constexpr size_t kWordBits = 64;
constexpr size_t kWords = kGrain / kWordBits;

uint64_t bitsOfTail(const std::byte* one, const std::byte* other, size_t count) {
  uint64_t bits = 0;
  for (size_t i = 0; i < count; ++i) bits |= static_cast<uint64_t>(one[i] != other[i]) << i;
  return bits;
}

// A bit for each of 64 bytes that differ.
uint64_t bitsOf(const std::byte* one, const std::byte* other) {
#if defined(__SSE2__)
  constexpr size_t kPart = sizeof(__m128i);
  uint64_t same = 0;
  for (size_t at = 0; at < kWordBits; at += kPart) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(one + at));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(other + at));
    same |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(a, b))))
            << at;
  }
  return ~same;
#else
  return bitsOfTail(one, other, kWordBits);
#endif
}

// The places where two pieces of the same length differ.
struct Difference {
  uint64_t words[kWords] = {};
  size_t changed = 0;    // bytes
  size_t stretches = 0;  // of neighbours

  Difference(const std::byte* one, const std::byte* other, size_t count) {
    uint64_t last = 0;  // the bit before
    for (size_t at = 0, word = 0; at < count; at += kWordBits, ++word) {
      const size_t left = count - at;
      const uint64_t bits =
          left >= kWordBits ? bitsOf(one + at, other + at) : bitsOfTail(one + at, other + at, left);
      words[word] = bits;
      changed += static_cast<size_t>(std::popcount(bits));
      stretches += static_cast<size_t>(std::popcount(bits & ~(bits << 1 | last)));
      last = bits >> (kWordBits - 1);
    }
  }
  /// Behind the last byte that differs.
  size_t end() const {
    size_t word = kWords;
    while (word > 0 && words[word - 1] == 0) --word;
    return word * kWordBits -
           (word > 0 ? static_cast<size_t>(std::countl_zero(words[word - 1])) : 0);
  }
  bool at(size_t byte) const { return (words[byte / kWordBits] >> (byte % kWordBits) & 1) != 0; }
};

constexpr size_t maskBytes(size_t length) { return (length + 7) / 8; }

// Calls `each` for the places of the bits of a word, lowest first.
template <typename Each>
void forEachBit(uint64_t word, Each each) {
  for (; word != 0; word &= word - 1) each(static_cast<size_t>(std::countr_zero(word)));
}

void append(std::vector<std::byte>& into, const void* from, size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(from);
  into.insert(into.end(), begin, begin + bytes);
}

void appendStretches(uint64_t base, const std::byte* bytes, size_t count,
                     const Difference& difference, std::vector<std::byte>& into) {
  for (size_t at = 0; at < count;) {
    // Nearly all words are empty.
    if (at % kWordBits == 0 && difference.words[at / kWordBits] == 0) {
      at += kWordBits;
      continue;
    }
    if (!difference.at(at)) {
      ++at;
      continue;
    }
    size_t stop = at;
    while (stop < count && difference.at(stop)) ++stop;
    const RunHead head{base + at, static_cast<uint32_t>(stop - at), 0};
    append(into, &head, sizeof head);
    append(into, bytes + at, stop - at);
    at = stop;
  }
}

// Up to the last byte that differs: the other end's memory may be shorter.
void appendMasked(uint64_t base, const std::byte* bytes, const Difference& difference,
                  std::vector<std::byte>& into) {
  const size_t count = difference.end();
  const RunHead head{base, static_cast<uint32_t>(count), 1};
  append(into, &head, sizeof head);
  append(into, difference.words, maskBytes(count));
  std::byte packed[kGrain];
  size_t used = 0;
  for (size_t word = 0; word < kWords; ++word) {
    forEachBit(difference.words[word],
               [&](size_t bit) { packed[used++] = bytes[word * kWordBits + bit]; });
  }
  append(into, packed, used);
}

}  // namespace

void Run::copyTo(std::byte* to) const {
  if (mask.empty()) {
    std::memcpy(to, bytes.data(), bytes.size());
    return;
  }
  size_t used = 0;
  for (size_t at = 0; at < mask.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, mask.data() + at, std::min(sizeof word, mask.size() - at));
    forEachBit(word, [&](size_t bit) { to[at * 8 + bit] = bytes[used++]; });
  }
}

void Run::eachPiece(
    const std::function<void(size_t at, std::span<const std::byte> bytes)>& visit) const {
  if (mask.empty()) return visit(0, bytes);
  const auto follows = [this](size_t at) {
    return (std::to_integer<unsigned>(mask[at / 8]) >> at % 8 & 1) != 0;
  };
  size_t used = 0;
  for (size_t at = 0; at < length;) {
    size_t stop = at;
    while (stop < length && follows(stop)) ++stop;
    if (stop > at) visit(at, bytes.subspan(used, stop - at));
    used += stop - at;
    at = stop + 1;
  }
}

bool readRun(Reader& reader, Run* run) {
  const auto head = reader.value<RunHead>();
  *run = {head.address, head.length, {}, {}};
  if (head.length == 0 || head.length > kGrain || head.masked > 1) reader.fail();
  if (head.masked == 0) {
    run->bytes = reader.raw(head.length);
    return reader.ok();
  }
  run->mask = reader.raw(maskBytes(head.length));
  if (!reader.ok()) return false;
  size_t count = 0;
  for (const std::byte bits : run->mask)
    count += static_cast<size_t>(std::popcount(std::to_integer<unsigned>(bits)));
  // No bits beyond the end.
  if (head.length % 8 != 0 && std::to_integer<unsigned>(run->mask.back()) >> (head.length % 8) != 0)
    reader.fail();
  run->bytes = reader.raw(count);
  return reader.ok();
}

void appendChanges(uint64_t base, const std::byte* now, std::span<std::byte> agreed,
                   std::vector<std::byte>& into) {
  for (size_t grain = 0; grain < agreed.size(); grain += kGrain) {
    const size_t count = std::min(kGrain, agreed.size() - grain);
    std::byte* const before = agreed.data() + grain;
    if (std::memcmp(now + grain, before, count) == 0) continue;
    // The bytes that go are those agreed on from now on, whatever becomes of the memory meanwhile.
    std::byte bytes[kGrain];
    std::memcpy(bytes, now + grain, count);
    const Difference difference(bytes, before, count);
    if (difference.stretches * sizeof(RunHead) <= sizeof(RunHead) + maskBytes(count)) {
      appendStretches(base + grain, bytes, count, difference, into);
    } else {
      appendMasked(base + grain, bytes, difference, into);
    }
    std::memcpy(before, bytes, count);
  }
}

void appendChangesUnlessGone(uint64_t base, uint64_t here, std::span<std::byte> agreed,
                             std::vector<std::byte>& into) {
  constexpr uint64_t kPiece = 64 * kGrain;
  const auto now =
      std::make_unique_for_overwrite<std::byte[]>(std::min<uint64_t>(kPiece, agreed.size()));
  const auto piece = [&](uint64_t at, uint64_t bytes) {
    if (!olpager::base::readUnlessGone(now.get(), here + at, bytes)) return false;
    appendChanges(base + at, now.get(), agreed.subspan(at, bytes), into);
    return true;
  };
  for (uint64_t at = 0; at < agreed.size(); at += kPiece) {
    const uint64_t bytes = std::min(kPiece, agreed.size() - at);
    if (piece(at, bytes)) continue;
    for (uint64_t page = at; page < at + bytes;) {
      const uint64_t next = std::min((here + page) / kGrain * kGrain + kGrain - here, at + bytes);
      (void)piece(page, next - page);
      page = next;
    }
  }
}

void eachPart(std::span<const std::byte> runs,
              const std::function<void(std::span<const std::byte> part)>& send) {
  if (runs.empty()) return send(runs);
  for (Reader reader(runs); reader.left() > 0;) {
    const size_t begin = runs.size() - reader.left();
    size_t end = begin;
    for (Run run; end - begin < kMostBytes / 2 && reader.left() > 0 && readRun(reader, &run);)
      end = runs.size() - reader.left();
    if (!reader.ok()) return;
    send(runs.subspan(begin, end - begin));
  }
}

}  // namespace olpager::forward
