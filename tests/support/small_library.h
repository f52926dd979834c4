// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <elf.h>

#include <cstring>
#include <string>
#include <vector>

namespace test {

struct LibraryShape {
  bool gnu_hash = true;   // else the older hash table
  bool versions = false;  // and then cuOfNoVersion is not exported
  Elf64_Half machine = EM_X86_64;
  Elf64_Half type = ET_DYN;
};

// A shared library with these functions, without sections, as a file. It has other symbols too, none of which
// anybody can look up: cuUndefined, cuHidden, cuObject, cuLocal.
inline std::string small_library(const std::vector<std::string>& functions, const LibraryShape& shape = {}) {
  std::string strings(1, '\0');
  std::vector<Elf64_Sym> symbols(1);
  std::vector<Elf64_Half> versions(1);
  const auto add = [&](const std::string& name, int binding, int type, int visibility, Elf64_Half section,
                       Elf64_Half version) {
    Elf64_Sym symbol = {};
    symbol.st_name = static_cast<Elf64_Word>(strings.size());
    symbol.st_info = static_cast<unsigned char>(ELF64_ST_INFO(binding, type));
    symbol.st_other = static_cast<unsigned char>(visibility);
    symbol.st_shndx = section;
    symbol.st_value = section != SHN_UNDEF ? 0x40 : 0;
    symbols.push_back(symbol);
    versions.push_back(version);
    strings += name + '\0';
  };
  add("cuLocal", STB_LOCAL, STT_FUNC, STV_DEFAULT, 1, VER_NDX_LOCAL);
  add("cuUndefined", STB_GLOBAL, STT_FUNC, STV_DEFAULT, SHN_UNDEF, VER_NDX_GLOBAL);
  const auto first_hashed = static_cast<Elf64_Word>(symbols.size());
  add("cuHidden", STB_GLOBAL, STT_FUNC, STV_HIDDEN, 1, VER_NDX_GLOBAL);
  add("cuObject", STB_GLOBAL, STT_OBJECT, STV_DEFAULT, 1, VER_NDX_GLOBAL);
  add("cuOfNoVersion", STB_GLOBAL, STT_FUNC, STV_DEFAULT, 1, VER_NDX_LOCAL);
  for (const std::string& name : functions) add(name, STB_GLOBAL, STT_FUNC, STV_DEFAULT, 1, VER_NDX_GLOBAL);

  const auto count = static_cast<Elf64_Word>(symbols.size());
  std::vector<Elf64_Word> hash;
  if (shape.gnu_hash) {
    // One bucket, and a filter that lets everything through. The last word of its chain is odd, no other.
    hash = {1, first_hashed, 1, 0, 0xffffffff, 0xffffffff, first_hashed};
    for (Elf64_Word i = first_hashed; i < count; ++i) hash.push_back(i + 1 == count ? 1 : 0);
  } else {
    hash = {1, count, 1};
    for (Elf64_Word i = 0; i < count; ++i) hash.push_back(i + 1 < count ? i + 1 : 0);
  }

  // Everything at an offset of the file is 0x1000 further on in memory.
  constexpr Elf64_Addr kBase = 0x1000;
  std::string bytes(sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Phdr), '\0');
  const auto append = [&bytes](const void* data, size_t size) {
    bytes.resize((bytes.size() + 7) & ~size_t{7});
    const size_t at = bytes.size();
    bytes.append(static_cast<const char*>(data), size);
    return at;
  };
  const size_t symbol_offset = append(symbols.data(), symbols.size() * sizeof symbols[0]);
  const size_t string_offset = append(strings.data(), strings.size());
  const size_t hash_offset = append(hash.data(), hash.size() * sizeof hash[0]);
  const size_t version_offset = append(versions.data(), versions.size() * sizeof versions[0]);
  std::vector<Elf64_Dyn> dynamic = {{DT_SYMTAB, {kBase + symbol_offset}},
                                    {DT_STRTAB, {kBase + string_offset}},
                                    {DT_STRSZ, {strings.size()}},
                                    {shape.gnu_hash ? DT_GNU_HASH : DT_HASH, {kBase + hash_offset}}};
  if (shape.versions) dynamic.push_back({DT_VERSYM, {kBase + version_offset}});
  dynamic.push_back({DT_NULL, {0}});
  const size_t dynamic_offset = append(dynamic.data(), dynamic.size() * sizeof dynamic[0]);

  Elf64_Ehdr header = {};
  memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = shape.type;
  header.e_machine = shape.machine;
  header.e_version = EV_CURRENT;
  header.e_ehsize = sizeof header;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  Elf64_Phdr segments[2] = {};
  segments[0] = {PT_LOAD, PF_R, 0, kBase, kBase, bytes.size(), bytes.size(), 0x1000};
  segments[1] = {PT_DYNAMIC,
                 PF_R,
                 dynamic_offset,
                 kBase + dynamic_offset,
                 kBase + dynamic_offset,
                 dynamic.size() * sizeof dynamic[0],
                 dynamic.size() * sizeof dynamic[0],
                 8};
  memcpy(bytes.data(), &header, sizeof header);
  memcpy(bytes.data() + sizeof header, segments, sizeof segments);
  return bytes;
}

}  // namespace test
