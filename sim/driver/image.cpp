// SPDX-License-Identifier: Apache-2.0
#include "sim/driver/image.h"

#include <elf.h>
#include <gelf.h>
#include <libelf.h>
#include <lz4.h>

#include <algorithm>
#include <cstring>

namespace sim {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kFatbinMagic = 0xba55ed50;

struct FatbinWrapper {
  uint32_t magic;
  uint32_t version;
  const void* fatbin;
  const void* unused;
};

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t body_bytes;
};

struct FatbinEntry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t body_bytes;
  uint32_t compressed_bytes;
  uint32_t options_offset;
  uint16_t minor, major;
  uint32_t architecture;
  uint32_t name_offset;
  uint32_t name_bytes;
  uint64_t flags;
  uint64_t unused;
  uint64_t unpacked_bytes;
};
constexpr uint16_t kEntryPtx = 1;
constexpr uint16_t kEntryElf = 2;
constexpr uint64_t kPackedLz4 = 0x2000;
constexpr uint64_t kPackedOther = 0x1000 | 0x8000;  // an old form, and zstd

// An image is passed without its length; the ELF header says where its last table ends.
size_t elf_bytes(const void* data) {
  const auto* header = static_cast<const Elf64_Ehdr*>(data);
  const auto* start = static_cast<const unsigned char*>(data);
  size_t end = std::max<size_t>(header->e_shoff + size_t{header->e_shentsize} * header->e_shnum,
                                header->e_phoff + size_t{header->e_phentsize} * header->e_phnum);
  for (int i = 0; i < header->e_shnum; ++i) {
    Elf64_Shdr section;
    memcpy(&section, start + header->e_shoff + size_t{header->e_shentsize} * static_cast<size_t>(i),
           sizeof section);
    if (section.sh_type != SHT_NOBITS) end = std::max<size_t>(end, section.sh_offset + section.sh_size);
  }
  return end;
}

// `.nv.info.<kernel>`: attributes, each a format byte, an attribute byte and two bytes of value or of length.
std::vector<KernelParameter> read_parameters(const Elf_Data& info) {
  constexpr unsigned char kSized = 4;
  constexpr unsigned char kParameterInfo = 0x17;
  struct ParameterInfo {
    uint32_t index;
    uint16_t ordinal;
    uint16_t offset;
    uint32_t layout;  // the size in bytes is in its upper 14 bits
  };
  std::map<unsigned, KernelParameter> parameters;
  const auto* at = static_cast<const unsigned char*>(info.d_buf);
  const auto* end = at + info.d_size;
  while (at != nullptr && at + 4 <= end) {
    uint16_t length;
    memcpy(&length, at + 2, sizeof length);
    if (at[0] != kSized) length = 0;
    if (at + 4 + length > end) break;
    if (at[0] == kSized && at[1] == kParameterInfo && length >= sizeof(ParameterInfo)) {
      ParameterInfo parameter;
      memcpy(&parameter, at + 4, sizeof parameter);
      parameters[parameter.ordinal] = {parameter.offset, parameter.layout >> 18};
    }
    at += 4 + length;
  }
  std::vector<KernelParameter> result;
  for (const auto& [ordinal, parameter] : parameters) result.push_back(parameter);
  return result;
}

void read_symbols(Elf* elf, Elf_Scn* section, const GElf_Shdr& header, Image* image) {
  Elf_Data* data = elf_getdata(section, nullptr);
  if (data == nullptr || header.sh_entsize == 0) return;
  for (size_t i = 0; i < header.sh_size / header.sh_entsize; ++i) {
    GElf_Sym symbol;
    if (gelf_getsym(data, static_cast<int>(i), &symbol) == nullptr || symbol.st_shndx == SHN_UNDEF) continue;
    const char* name = elf_strptr(elf, header.sh_link, symbol.st_name);
    if (name == nullptr || name[0] == '\0') continue;
    // A __device__ variable may be local to its image and is looked up all the same.
    // An entry point has flag 0x10 in st_other; other functions are called by kernels only.
    if (GELF_ST_TYPE(symbol.st_info) == STT_FUNC && (symbol.st_other & 0x10) != 0) image->kernels[name];
    if (GELF_ST_TYPE(symbol.st_info) == STT_OBJECT) image->variables[name] = symbol.st_size;
  }
}

bool starts_with(const char* text, const char* prefix, const char** rest) {
  const size_t length = strlen(prefix);
  *rest = text + length;
  return strncmp(text, prefix, length) == 0;
}

bool read_cubin(const void* data, Image* image) {
  static const unsigned version = elf_version(EV_CURRENT);
  if (version == EV_NONE) return false;
  const auto* header = static_cast<const unsigned char*>(data);
  if (memcmp(header, ELFMAG, SELFMAG) != 0 || header[EI_CLASS] != ELFCLASS64) return false;
  Elf* elf = elf_memory(static_cast<char*>(const_cast<void*>(data)), elf_bytes(data));
  if (elf == nullptr) return false;
  size_t names = 0;
  const bool named = elf_getshdrstrndx(elf, &names) == 0;
  for (Elf_Scn* section = nullptr; named && (section = elf_nextscn(elf, section)) != nullptr;) {
    GElf_Shdr section_header;
    if (gelf_getshdr(section, &section_header) != nullptr && section_header.sh_type == SHT_SYMTAB) {
      read_symbols(elf, section, section_header, image);
    }
  }
  for (Elf_Scn* section = nullptr; named && (section = elf_nextscn(elf, section)) != nullptr;) {
    GElf_Shdr section_header;
    if (gelf_getshdr(section, &section_header) == nullptr) continue;
    const char* name = elf_strptr(elf, names, section_header.sh_name);
    const char* kernel = nullptr;
    if (name == nullptr) continue;
    if (starts_with(name, ".text.", &kernel)) {
      const auto found = image->kernels.find(kernel);
      const int registers = static_cast<int>(section_header.sh_info >> 24);
      if (found != image->kernels.end() && registers > 0) found->second.registers = registers;
    } else if (starts_with(name, ".nv.shared.", &kernel)) {
      const auto found = image->kernels.find(kernel);
      if (found != image->kernels.end())
        found->second.shared_bytes = static_cast<int>(section_header.sh_size);
    } else if (starts_with(name, ".nv.info.", &kernel)) {
      const auto found = image->kernels.find(kernel);
      const Elf_Data* info = elf_getdata(section, nullptr);
      if (found == image->kernels.end() || info == nullptr) continue;
      found->second.parameters = read_parameters(*info);
      found->second.parameters_known = true;
    }
  }
  elf_end(elf);
  image->kernels_known = true;
  image->variables_known = true;
  return true;
}

// PTX is text: every kernel is declared as `.entry name(`. Its variables are not read.
void read_ptx(const std::string& text, Image* image) {
  constexpr char kEntry[] = ".entry";
  for (size_t at = text.find(kEntry); at != std::string::npos; at = text.find(kEntry, at)) {
    at += sizeof kEntry - 1;
    const size_t name = text.find_first_not_of(" \t\r\n", at);
    if (name == std::string::npos || name == at) continue;
    const size_t end = text.find_first_of(" \t\r\n({;", name);
    if (end == std::string::npos) break;
    image->kernels[text.substr(name, end - name)];
  }
  image->kernels_known = true;
}

// The body of an entry, unpacked where it is packed. False: in a form that is not read here.
bool entry_body(const FatbinEntry& entry, const unsigned char* body, std::string* content) {
  if ((entry.flags & kPackedOther) != 0) return false;
  if ((entry.flags & kPackedLz4) != 0) {
    if (entry.unpacked_bytes > LZ4_MAX_INPUT_SIZE || entry.compressed_bytes > entry.body_bytes) return false;
    content->resize(entry.unpacked_bytes);
    const int unpacked_bytes =
        LZ4_decompress_safe(reinterpret_cast<const char*>(body), content->data(),
                            static_cast<int>(entry.compressed_bytes), static_cast<int>(entry.unpacked_bytes));
    return unpacked_bytes >= 0 && static_cast<uint64_t>(unpacked_bytes) == entry.unpacked_bytes;
  }
  content->assign(reinterpret_cast<const char*>(body), entry.body_bytes);
  return true;
}

bool read_fatbin(const void* data, Image* image) {
  const auto* header = static_cast<const FatbinHeader*>(data);
  if (header->magic != kFatbinMagic) return false;
  const auto* at = static_cast<const unsigned char*>(data) + header->header_bytes;
  const auto* end = at + header->body_bytes;
  bool cubins_read = true;
  std::vector<std::string> ptx;
  while (at + sizeof(FatbinEntry) <= end) {
    const auto* entry = reinterpret_cast<const FatbinEntry*>(at);
    if (entry->header_bytes < sizeof(FatbinEntry) || entry->body_bytes == 0) break;
    const unsigned char* body = at + entry->header_bytes;
    if (body + entry->body_bytes > end) break;
    std::string content;
    const bool readable = entry_body(*entry, body, &content);
    if (entry->kind == kEntryElf) cubins_read = readable && read_cubin(content.data(), image) && cubins_read;
    if (entry->kind == kEntryPtx && readable) ptx.push_back(std::move(content));
    at = body + entry->body_bytes;
  }
  // The PTX of a fatbin repeats its cubins.
  if (!image->kernels_known) {
    for (const std::string& text : ptx) read_ptx(text, image);
  }
  if (!cubins_read) image->kernels_known = image->variables_known = false;
  return true;
}

bool looks_like_ptx(const char* text) {
  text += strspn(text, " \t\r\n");
  return strncmp(text, "//", 2) == 0 || strncmp(text, ".version", 8) == 0;
}

}  // namespace

bool read_image(const void* data, Image* image) {
  if (data == nullptr) return false;
  uint32_t magic;
  memcpy(&magic, data, sizeof magic);
  if (magic == kWrapperMagic) return read_image(static_cast<const FatbinWrapper*>(data)->fatbin, image);
  if (magic == kFatbinMagic) return read_fatbin(data, image);
  if (read_cubin(data, image)) return true;
  const auto* text = static_cast<const char*>(data);
  if (!looks_like_ptx(text)) return false;
  read_ptx(text, image);
  return true;
}

}  // namespace sim
