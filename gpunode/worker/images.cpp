#include "gpunode/worker/images.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "coherence/transport/regions.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

// Reads an image out of the client's memory; false: the client is gone, or has no such region.
bool fetch(Worker& worker, const transport::RemoteKey& from, std::vector<std::byte>& into) {
  constexpr uint64_t kPiece = 4ull << 20;
  constexpr size_t kAhead = 4;
  into.resize(from.length);
  const auto region = transport::registerMemory(
      worker.staging().domain(), {into.data(), into.size(), -1, 0}, transport::kLocalOnly);
  if (!region.ok()) return false;
  std::deque<calls::TransferPtr> under_way;
  bool all = true;
  const auto endFirst = [&] {
    all = worker.arrived(*under_way.front()) && all;
    under_way.pop_front();
  };
  for (uint64_t at = 0; at < from.length && all; at += kPiece) {
    const uint64_t bytes = std::min(kPiece, from.length - at);
    under_way.push_back(
        worker.channel().fetch({region.value().get(), at, bytes}, {from, at, bytes}));
    if (under_way.size() == kAhead) endFirst();
  }
  while (!under_way.empty()) endFirst();
  return all;
}

}  // namespace

std::vector<std::byte> readImage(Invocation& in, bool* unknown) {
  std::vector<std::byte> image;
  const auto form = in.value<forward::ImageForm>();
  if (form == forward::ImageForm::kDigest) {
    calls::Digest digest{};
    const auto said = in.arguments().raw(digest.size());
    if (!in.ok()) return {};
    std::memcpy(digest.data(), said.data(), digest.size());
    auto found = in.worker().moduleCache().find(digest);
    *unknown = !found;
    if (!found || found->empty()) return {};
    image = std::move(*found);
  } else if (form == forward::ImageForm::kRegion) {
    const auto region = in.value<transport::RemoteKey>();
    if (region.length == 0 || region.length > forward::kMostImageBytes) in.arguments().fail();
    if (!in.ok() || !fetch(in.worker(), region, image)) return {};
    in.worker().moduleCache().store(image);
  } else {
    const auto bytes = in.arguments().raw(in.value<uint64_t>());
    if (bytes.empty()) return {};
    image.assign(bytes.begin(), bytes.end());
    if (form == forward::ImageForm::kKeep) in.worker().moduleCache().store(bytes);
  }
  image.push_back(std::byte{0});  // text ends with a NUL, whatever was sent
  return image;
}

uint32_t magicOf(const std::vector<std::byte>& image) {
  uint32_t magic = 0;
  if (image.size() > sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
  return magic;
}

}  // namespace olpager::gpunode
