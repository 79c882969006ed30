#include "base/fatbin/fatbin.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <climits>

#include "base/fatbin/cubin.h"

namespace olpager::fatbin {
namespace {

constexpr uint32_t kElfMagic = 0x464c457f;
constexpr uint64_t kMaxContainer = uint64_t{1} << 40;  // bytes; more is a corrupted header
constexpr size_t kMaxLinked = 1 << 16;

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* const*
      linked;  // version 2: containers, ended by null; version 1: not a pointer to anything
};
static_assert(sizeof(Wrapper) == 24);

struct ContainerHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_size;
  uint64_t size;  // of all entries
};
static_assert(sizeof(ContainerHeader) == 16);

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_size;
  uint64_t payload_size;  // padded
  uint32_t compressed_size;
  uint32_t options_offset;
  uint16_t minor;
  uint16_t major;
  uint32_t arch;
  uint32_t name_offset;
  uint32_t name_size;
  uint64_t flags;
  uint64_t reserved;
  uint64_t uncompressed_size;
};
static_assert(sizeof(EntryHeader) == 64);

Error corrupt(const char* what, uint64_t offset) {
  return Error{"fatbin: " + std::string(what) + " at byte " + std::to_string(offset)};
}

Result<Bytes> containerAt(const void* data) {
  if (data == nullptr) return Error{"fatbin: the wrapper has no data"};
  ContainerHeader header;
  std::memcpy(&header, data, sizeof(header));
  if (header.magic != kContainerMagic) return Error{"fatbin: the wrapper's data is no container"};
  if (header.header_size < sizeof(header) || header.size > kMaxContainer)
    return corrupt("bad container header", 0);
  return Bytes(static_cast<const uint8_t*>(data), header.header_size + header.size);
}

}  // namespace

Result<std::vector<Entry>> entries(Bytes container) {
  const auto header = readAt<ContainerHeader>(container, 0);
  if (!header || header->magic != kContainerMagic) return corrupt("no container header", 0);
  if (header->header_size < sizeof(ContainerHeader)) return corrupt("bad container header", 0);
  const auto all = slice(container, header->header_size, header->size);
  if (!all) return corrupt("the container is cut off", container.size());

  std::vector<Entry> result;
  uint64_t at = 0;
  while (at < all->size()) {
    const auto head = readAt<EntryHeader>(*all, at);
    if (!head) return corrupt("an entry is cut off", at);
    if (head->header_size < sizeof(EntryHeader))
      return corrupt("an entry's header is too small", at);
    const auto whole_header = slice(*all, at, head->header_size);
    if (!whole_header) return corrupt("an entry's header is cut off", at);
    const auto padded = slice(*all, at + head->header_size, head->payload_size);
    if (!padded) return corrupt("an entry's payload is cut off", at);

    Entry entry;
    entry.kind = static_cast<Kind>(head->kind);
    entry.arch = head->arch;
    entry.flags = head->flags;
    entry.major = head->major;
    entry.minor = head->minor;
    if (head->name_size != 0) {
      const auto name = slice(*whole_header, head->name_offset, head->name_size);
      if (!name) return corrupt("an entry's name lies outside its header", at);
      entry.name = std::string_view(reinterpret_cast<const char*>(name->data()), name->size());
      entry.name = entry.name.substr(0, entry.name.find('\0'));
    }
    if ((head->flags & kFlagZstd) != 0) {
      entry.compression = Compression::zstd;
    } else if ((head->flags & kFlagLz4) != 0) {
      entry.compression = Compression::lz4;
    }
    if (entry.compression == Compression::none) {
      entry.payload = *padded;
      entry.uncompressed_size = padded->size();
    } else {
      const auto payload = slice(*padded, 0, head->compressed_size);
      if (!payload || payload->empty()) return corrupt("an entry's compressed size is wrong", at);
      entry.payload = *payload;
      entry.uncompressed_size = head->uncompressed_size;
    }
    result.push_back(entry);
    at += head->header_size + padded->size();
  }
  return result;
}

Result<std::vector<uint8_t>> contents(const Entry& entry, uint64_t limit) {
  if (entry.uncompressed_size > limit) {
    return Error{"fatbin: an image of " + std::to_string(entry.uncompressed_size) +
                 " bytes is over the limit of " + std::to_string(limit)};
  }
  if (entry.compression == Compression::none)
    return std::vector<uint8_t>(entry.payload.begin(), entry.payload.end());

  std::vector<uint8_t> out(entry.uncompressed_size);
  size_t made = 0;
  if (entry.compression == Compression::zstd) {
    made = ZSTD_decompress(out.data(), out.size(), entry.payload.data(), entry.payload.size());
    if (ZSTD_isError(made) != 0)
      return Error{std::string("fatbin: zstd: ") + ZSTD_getErrorName(made)};
  } else {
    if (entry.payload.size() > INT_MAX || out.size() > INT_MAX)
      return Error{"fatbin: lz4: the image is over 2 GiB"};
    const int n = LZ4_decompress_safe(
        reinterpret_cast<const char*>(entry.payload.data()), reinterpret_cast<char*>(out.data()),
        static_cast<int>(entry.payload.size()), static_cast<int>(out.size()));
    if (n < 0) return Error{"fatbin: lz4: the payload is corrupt"};
    made = static_cast<size_t>(n);
  }
  if (made != out.size()) return Error{"fatbin: an image has not the size that its header says"};
  return out;
}

Result<std::string> ptxText(const Entry& entry, uint64_t limit) {
  if (entry.kind != Kind::ptx) return Error{"fatbin: the entry is not PTX"};
  auto bytes = contents(entry, limit);
  if (!bytes) return bytes.error();
  const auto end = std::find(bytes.value().begin(), bytes.value().end(), uint8_t{0});
  return std::string(bytes.value().begin(), end);
}

Result<Image> locate(const void* image) {
  if (image == nullptr) return Error{"fatbin: the image is null"};
  // Four bytes are there in every form but an empty or tiny text, which is read up to its NUL.
  const auto* bytes = static_cast<const uint8_t*>(image);
  uint32_t magic = 0;
  for (size_t i = 0; i < sizeof(magic) && (i == 0 || bytes[i - 1] != 0); ++i) {
    magic |= static_cast<uint32_t>(bytes[i]) << (8 * i);
  }
  Image result;
  if (magic == kWrapperMagic) {
    Wrapper wrapper;
    std::memcpy(&wrapper, image, sizeof(wrapper));
    if (wrapper.version != 1 && wrapper.version != 2) {
      return Error{"fatbin: wrapper version " + std::to_string(wrapper.version) +
                   " is not known (1 and 2 are)"};
    }
    result.form = Image::Form::container;
    // The data of a wrapper may point to a cubin or PTX text (relocatable code, old toolchains).
    if (auto container = containerAt(wrapper.data); container) {
      result.bytes = container.value();
    } else if (wrapper.data != nullptr) {
      auto inner = locate(wrapper.data);
      if (!inner) return inner.error();
      result = std::move(inner).value();
    } else if (wrapper.version == 1 || wrapper.linked == nullptr) {
      return container.error();
    }
    if (wrapper.version == 2 && wrapper.linked != nullptr) {
      for (size_t i = 0; wrapper.linked[i] != nullptr; ++i) {
        if (i == kMaxLinked) return Error{"fatbin: the list of linked containers has no end"};
        auto linked = containerAt(wrapper.linked[i]);
        if (!linked) return linked.error();
        result.linked.push_back(linked.value());
      }
    }
    return result;
  }
  if (magic == kContainerMagic) {
    auto container = containerAt(image);
    if (!container) return container.error();
    result.form = Image::Form::container;
    result.bytes = container.value();
    return result;
  }
  if (magic == kElfMagic) {
    auto size = cubinSize(image);
    if (!size) return size.error();
    result.form = Image::Form::elf;
    result.bytes = Bytes(bytes, size.value());
    return result;
  }
  result.form = Image::Form::ptx;
  result.bytes = Bytes(bytes, std::strlen(static_cast<const char*>(image)));
  return result;
}

Result<Image> identify(Bytes bytes) {
  Image result;
  const auto magic = readAt<uint32_t>(bytes, 0);
  if (magic && *magic == kContainerMagic) {
    const auto header = readAt<ContainerHeader>(bytes, 0);
    if (!header || header->header_size < sizeof(ContainerHeader))
      return corrupt("bad container header", 0);
    const auto body = slice(bytes, header->header_size, header->size);
    if (!body) return corrupt("the container is cut off", bytes.size());
    result.form = Image::Form::container;
    result.bytes = bytes.first(header->header_size + body->size());
  } else if (magic && *magic == kElfMagic) {
    result.form = Image::Form::elf;
    result.bytes = bytes;
  } else {
    result.form = Image::Form::ptx;
    const auto end = std::find(bytes.begin(), bytes.end(), uint8_t{0});
    result.bytes = bytes.first(static_cast<size_t>(end - bytes.begin()));
  }
  return result;
}

}  // namespace olpager::fatbin
