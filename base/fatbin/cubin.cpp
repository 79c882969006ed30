#include "base/fatbin/cubin.h"

#include <elf.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

namespace olpager::fatbin {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr uint8_t kSymbolEntry = 0x10;   // st_other: a kernel
constexpr uint8_t kSymbolManaged = 0x4;  // st_other: a __managed__ variable

// Records of .nv.info sections.
constexpr uint8_t kFormatBytes = 4;  // the 16-bit field is a byte count and the value follows
constexpr uint8_t kParameterInfo = 0x17;
constexpr uint8_t kParameterBlockSize = 0x19;
constexpr uint8_t kParameterInfoV2 = 0x45;

Error corrupt(const std::string& what) { return Error{"cubin: " + what}; }

class Elf {
 public:
  static Result<Elf> open(Bytes bytes) {
    const auto header = readAt<Elf64_Ehdr>(bytes, 0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
      return corrupt("no ELF header");
    if (header->e_ident[EI_CLASS] != ELFCLASS64) return corrupt("not a 64-bit ELF file");
    if (header->e_machine != kMachineCuda) {
      return corrupt("machine " + std::to_string(header->e_machine) + " is not CUDA's 190");
    }
    Elf elf(bytes, *header);
    if (header->e_shoff == 0) return elf;  // no sections: no symbols
    if (header->e_shentsize != sizeof(Elf64_Shdr)) return corrupt("bad section header size");
    const auto first = readAt<Elf64_Shdr>(bytes, header->e_shoff);
    if (!first) return corrupt("the section headers are cut off");
    const uint64_t count = header->e_shnum != 0 ? header->e_shnum : first->sh_size;
    const uint64_t room = (bytes.size() - header->e_shoff) / sizeof(Elf64_Shdr);
    if (count > room) return corrupt("the section headers are cut off");
    elf.sections_.resize(count);
    if (count != 0)
      std::memcpy(elf.sections_.data(), bytes.data() + header->e_shoff, count * sizeof(Elf64_Shdr));
    const uint64_t names = header->e_shstrndx != SHN_XINDEX ? header->e_shstrndx : first->sh_link;
    if (names >= count) return corrupt("no section names");
    elf.names_ = elf.data(elf.sections_[names]).value_or(Bytes{});
    return elf;
  }

  const Elf64_Ehdr& header() const { return header_; }
  const std::vector<Elf64_Shdr>& sections() const { return sections_; }

  std::optional<Bytes> data(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS) return Bytes{};
    return slice(bytes_, section.sh_offset, section.sh_size);
  }

  std::string_view name(const Elf64_Shdr& section) const { return string(names_, section.sh_name); }

  static std::string_view string(Bytes table, uint64_t offset) {
    if (offset >= table.size()) return {};
    const auto* begin = reinterpret_cast<const char*>(table.data()) + offset;
    const void* end = std::memchr(begin, 0, table.size() - offset);
    if (end == nullptr) return {};
    return {begin, static_cast<size_t>(static_cast<const char*>(end) - begin)};
  }

 private:
  Elf(Bytes bytes, const Elf64_Ehdr& header) : bytes_(bytes), header_(header) {}

  Bytes bytes_;
  Elf64_Ehdr header_;
  std::vector<Elf64_Shdr> sections_;
  Bytes names_;
};

Status readKernelInfo(Bytes info, Kernel& kernel) {
  uint64_t at = 0;
  while (at + 4 <= info.size()) {
    const uint8_t format = info[at];
    const uint8_t attribute = info[at + 1];
    const uint16_t value = static_cast<uint16_t>(info[at + 2] | info[at + 3] << 8);
    at += 4;
    if (format != kFormatBytes) {
      if (attribute == kParameterBlockSize) kernel.parameter_bytes = value;
      continue;
    }
    const auto data = slice(info, at, value);
    if (!data) return corrupt("a record of .nv.info." + kernel.name + " is cut off");
    at += value;
    if ((attribute == kParameterInfo || attribute == kParameterInfoV2) && data->size() >= 12) {
      Parameter parameter;
      parameter.ordinal = *readAt<uint16_t>(*data, 4);
      parameter.offset = *readAt<uint16_t>(*data, 6);
      // Version 1 packs the size into the upper 14 bits of a word; version 2, for blocks over 4 KB,
      // has a field for it.
      parameter.size = attribute == kParameterInfo ? *readAt<uint32_t>(*data, 8) >> 18
                                                   : uint32_t{*readAt<uint16_t>(*data, 8)};
      kernel.parameters.push_back(parameter);
    }
  }
  std::sort(kernel.parameters.begin(), kernel.parameters.end(),
            [](const Parameter& a, const Parameter& b) { return a.ordinal < b.ordinal; });
  return {};
}

// The memory that a variable's section stands for.
std::optional<Space> spaceOf(std::string_view section) {
  if (section == ".nv.global" || section == ".nv.global.init") return Space::global;
  if (section == ".nv.constant3")
    return Space::constant;  // bank 3: the program's __constant__ variables
  return std::nullopt;
}

}  // namespace

Result<Cubin> readCubin(Bytes bytes) {
  auto opened = Elf::open(bytes);
  if (!opened) return opened.error();
  const Elf& elf = opened.value();

  Cubin cubin;
  // From ABI version 8 (CUDA 13) on, the architecture lies in the second byte of the flags.
  const uint32_t flags = elf.header().e_flags;
  cubin.arch = elf.header().e_ident[EI_ABIVERSION] >= 8 ? flags >> 8 & 0xff : flags & 0xff;

  std::map<std::string_view, const Elf64_Shdr*> info_sections;
  constexpr std::string_view kInfo = ".nv.info.";
  for (const Elf64_Shdr& section : elf.sections()) {
    const std::string_view name = elf.name(section);
    if (name.starts_with(kInfo)) info_sections.emplace(name.substr(kInfo.size()), &section);
  }

  for (const Elf64_Shdr& table : elf.sections()) {
    if (table.sh_type != SHT_SYMTAB) continue;
    if (table.sh_link >= elf.sections().size()) return corrupt("the symbol table has no strings");
    const auto symbols = elf.data(table);
    const auto strings = elf.data(elf.sections()[table.sh_link]);
    if (!symbols || !strings) return corrupt("the symbol table is cut off");
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols->size(); at += sizeof(Elf64_Sym)) {
      const auto symbol = *readAt<Elf64_Sym>(*symbols, at);
      const auto type = ELF64_ST_TYPE(symbol.st_info);
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= elf.sections().size()) continue;
      const std::string_view name = Elf::string(*strings, symbol.st_name);
      if (name.empty()) continue;
      if (type == STT_FUNC && (symbol.st_other & kSymbolEntry) != 0) {
        Kernel kernel;
        kernel.name = name;
        if (const auto it = info_sections.find(name); it != info_sections.end()) {
          const auto info = elf.data(*it->second);
          if (!info) return corrupt("section .nv.info." + kernel.name + " is cut off");
          if (auto status = readKernelInfo(*info, kernel); !status) return status.error();
        }
        cubin.kernels.push_back(std::move(kernel));
      } else if (type == STT_OBJECT) {
        const Elf64_Shdr& section = elf.sections()[symbol.st_shndx];
        const auto space = spaceOf(elf.name(section));
        if (!space) continue;
        if (symbol.st_value > section.sh_size ||
            section.sh_size - symbol.st_value < symbol.st_size) {
          return corrupt("variable " + std::string(name) + " lies outside its section");
        }
        Variable variable;
        variable.name = name;
        variable.space = *space;
        variable.offset = symbol.st_value;
        variable.size = symbol.st_size;
        variable.managed = (symbol.st_other & kSymbolManaged) != 0;
        variable.local = ELF64_ST_BIND(symbol.st_info) == STB_LOCAL;
        if (section.sh_type != SHT_NOBITS) {
          const auto data = elf.data(section);
          const auto init = data ? slice(*data, symbol.st_value, symbol.st_size) : std::nullopt;
          if (!init) return corrupt("the bytes of variable " + variable.name + " are cut off");
          variable.init = *init;
        }
        cubin.variables.push_back(std::move(variable));
      }
    }
  }
  return cubin;
}

Result<uint64_t> cubinSize(const void* elf) {
  Elf64_Ehdr header;
  std::memcpy(&header, elf, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) {
    return corrupt("no 64-bit ELF header");
  }
  constexpr uint64_t kMax = uint64_t{1} << 40;
  const auto* base = static_cast<const uint8_t*>(elf);
  uint64_t end = sizeof(header);
  const auto grow = [&end](uint64_t offset, uint64_t size) {
    if (offset > kMax || size > kMax) return false;
    end = std::max(end, offset + size);
    return true;
  };
  if (header.e_shoff != 0) {
    if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > kMax)
      return corrupt("bad section headers");
    Elf64_Shdr section;
    std::memcpy(&section, base + header.e_shoff, sizeof(section));
    const uint64_t count = header.e_shnum != 0 ? header.e_shnum : section.sh_size;
    if (count > kMax / sizeof(section)) return corrupt("bad section headers");
    grow(header.e_shoff, count * sizeof(section));
    for (uint64_t i = 0; i < count; ++i) {
      std::memcpy(&section, base + header.e_shoff + i * sizeof(section), sizeof(section));
      if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
      if (!grow(section.sh_offset, section.sh_size))
        return corrupt("a section lies outside the file");
    }
  }
  if (header.e_phoff != 0 && header.e_phentsize == sizeof(Elf64_Phdr)) {
    if (!grow(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr)))
      return corrupt("bad program headers");
    for (uint64_t i = 0; i < header.e_phnum; ++i) {
      Elf64_Phdr segment;
      std::memcpy(&segment, base + header.e_phoff + i * sizeof(segment), sizeof(segment));
      if (!grow(segment.p_offset, segment.p_filesz))
        return corrupt("a segment lies outside the file");
    }
  }
  return end;
}

}  // namespace olpager::fatbin
