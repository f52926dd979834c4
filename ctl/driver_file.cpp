// SPDX-License-Identifier: Apache-2.0
#include "ctl/driver_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gelf.h>
#include <libelf.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "broker/unique_fd.h"

namespace ctl {
namespace {

using broker::fail;
using broker::Failure;
using broker::Status;

constexpr unsigned char kClass = ELFCLASS64;
#if defined(__x86_64__)
constexpr GElf_Half kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr GElf_Half kMachine = EM_AARCH64;
#endif

struct ElfEnd {
  void operator()(Elf* elf) const { elf_end(elf); }
};
using ElfHandle = std::unique_ptr<Elf, ElfEnd>;

// What a file has at addresses: as much of it as it is sure to have. Whatever a damaged file claims, libelf
// hands out nothing beyond its end.
class Image {
 public:
  explicit Image(Elf* elf) : elf_(elf) {
    size_t count = 0;
    elf_getphdrnum(elf, &count);
    for (size_t i = 0; i < count; ++i) {
      GElf_Phdr header;
      if (gelf_getphdr(elf, static_cast<int>(i), &header) != nullptr) headers_.push_back(header);
    }
  }

  const GElf_Phdr* find(GElf_Word type) const {
    const auto found = std::find_if(headers_.begin(), headers_.end(),
                                    [type](const GElf_Phdr& header) { return header.p_type == type; });
    return found != headers_.end() ? &*found : nullptr;
  }

  // Bytes of the file from that address to the end of its segment; 0: none.
  uint64_t bytes_at(GElf_Addr address) const {
    const GElf_Phdr* const segment = segment_of(address);
    return segment != nullptr ? segment->p_filesz - (address - segment->p_vaddr) : 0;
  }

  // nullptr: the file has no such bytes.
  Elf_Data* at(GElf_Addr address, uint64_t bytes, Elf_Type type) const {
    const GElf_Phdr* const segment = segment_of(address);
    if (segment == nullptr || bytes == 0 || bytes > bytes_at(address)) return nullptr;
    const uint64_t offset = segment->p_offset + (address - segment->p_vaddr);
    if (offset < segment->p_offset || offset > INT64_MAX) return nullptr;
    return elf_getdata_rawchunk(elf_, static_cast<int64_t>(offset), bytes, type);
  }

  std::optional<uint32_t> word_at(GElf_Addr address) const {
    const Elf_Data* const data = at(address, sizeof(uint32_t), ELF_T_WORD);
    if (data == nullptr) return std::nullopt;
    uint32_t word;
    memcpy(&word, data->d_buf, sizeof word);
    return word;
  }

  Elf* elf() const { return elf_; }

 private:
  const GElf_Phdr* segment_of(GElf_Addr address) const {
    const auto found = std::find_if(headers_.begin(), headers_.end(), [address](const GElf_Phdr& header) {
      return header.p_type == PT_LOAD && address >= header.p_vaddr &&
             address - header.p_vaddr < header.p_filesz;
    });
    return found != headers_.end() ? &*found : nullptr;
  }

  Elf* const elf_;
  std::vector<GElf_Phdr> headers_;
};

// The addresses in a library's dynamic section that lead to its symbols; 0: not there.
struct Dynamic {
  GElf_Addr symbols = 0, strings = 0, hash = 0, gnu_hash = 0, versions = 0;
  uint64_t string_bytes = 0;
};

bool read_dynamic(const Image& image, Dynamic* dynamic) {
  const GElf_Phdr* const header = image.find(PT_DYNAMIC);
  if (header == nullptr || header->p_offset > INT64_MAX) return false;
  Elf_Data* const data =
      elf_getdata_rawchunk(image.elf(), static_cast<int64_t>(header->p_offset), header->p_filesz, ELF_T_DYN);
  if (data == nullptr) return false;
  GElf_Dyn entry;
  for (int i = 0; gelf_getdyn(data, i, &entry) != nullptr && entry.d_tag != DT_NULL; ++i) {
    if (entry.d_tag == DT_SYMTAB) dynamic->symbols = entry.d_un.d_ptr;
    if (entry.d_tag == DT_STRTAB) dynamic->strings = entry.d_un.d_ptr;
    if (entry.d_tag == DT_STRSZ) dynamic->string_bytes = entry.d_un.d_val;
    if (entry.d_tag == DT_HASH) dynamic->hash = entry.d_un.d_ptr;
    if (entry.d_tag == DT_GNU_HASH) dynamic->gnu_hash = entry.d_un.d_ptr;
    if (entry.d_tag == DT_VERSYM) dynamic->versions = entry.d_un.d_ptr;
  }
  return dynamic->symbols != 0 && dynamic->strings != 0;
}

// Nothing says how many symbols there are but the tables that find them: the last bucket's chain ends at the
// last symbol.
std::optional<uint64_t> count_by_gnu_hash(const Image& image, GElf_Addr table) {
  const auto buckets = image.word_at(table), first = image.word_at(table + 4),
             filters = image.word_at(table + 8);
  if (!buckets || !first || !filters || *buckets == 0) return std::nullopt;
  const GElf_Addr bucket_table = table + 16 + uint64_t{*filters} * 8;
  Elf_Data* const data = image.at(bucket_table, uint64_t{*buckets} * 4, ELF_T_WORD);
  if (data == nullptr) return std::nullopt;
  uint32_t last = 0;
  for (uint64_t i = 0; i < *buckets; ++i) {
    uint32_t bucket;
    memcpy(&bucket, static_cast<const char*>(data->d_buf) + i * sizeof bucket, sizeof bucket);
    last = std::max(last, bucket);
  }
  if (last < *first) return *first;  // all chains are empty
  const GElf_Addr chain_table = bucket_table + uint64_t{*buckets} * 4 + uint64_t{last - *first} * 4;
  const uint64_t words = image.bytes_at(chain_table) / 4;
  Elf_Data* const chain = image.at(chain_table, words * 4, ELF_T_WORD);
  for (uint64_t i = 0; chain != nullptr && i < words; ++i) {
    uint32_t word;
    memcpy(&word, static_cast<const char*>(chain->d_buf) + i * sizeof word, sizeof word);
    if (word & 1) return last + i + 1;
  }
  return std::nullopt;
}

std::optional<uint64_t> count_symbols(const Image& image, const Dynamic& dynamic) {
  if (dynamic.gnu_hash != 0) return count_by_gnu_hash(image, dynamic.gnu_hash);
  if (dynamic.hash != 0) return image.word_at(dynamic.hash + 4);
  return std::nullopt;
}

bool is_exported_function(const GElf_Sym& symbol) {
  const int binding = GELF_ST_BIND(symbol.st_info), type = GELF_ST_TYPE(symbol.st_info);
  const int visibility = GELF_ST_VISIBILITY(symbol.st_other);
  return symbol.st_shndx != SHN_UNDEF && binding != STB_LOCAL &&
         (visibility == STV_DEFAULT || visibility == STV_PROTECTED) &&
         // Functions in assembly may have no type.
         (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_NOTYPE);
}

Status check_header(Elf* elf, const std::string& name) {
  GElf_Ehdr header;
  if (elf == nullptr || elf_kind(elf) != ELF_K_ELF || gelf_getehdr(elf, &header) == nullptr) {
    return fail(Failure::kInvalid,
                name + " is no ELF file; give the driver's libcuda.so.1, as in `ldconfig -p | grep libcuda`");
  }
  if (header.e_ident[EI_CLASS] != kClass || header.e_machine != kMachine) {
    return fail(Failure::kInvalid, name + " is for another machine (ELF class " +
                                       std::to_string(header.e_ident[EI_CLASS]) + ", machine " +
                                       std::to_string(header.e_machine) + "); give the driver of this one");
  }
  if (header.e_type != ET_DYN) {
    return fail(Failure::kInvalid, name + " is no shared library; give the driver's libcuda.so.1");
  }
  return {};
}

Status read_exports(Elf* elf, const std::string& name, std::vector<std::string>* names) {
  if (Status status = check_header(elf, name); !status.ok()) return status;
  const auto damaged = [&name](const char* what) {
    return fail(Failure::kSystem, name + ": " + what + "; the file is cut or damaged");
  };
  const Image image(elf);
  Dynamic dynamic;
  if (!read_dynamic(image, &dynamic)) return damaged("no dynamic symbols can be found in it");
  const auto count = count_symbols(image, dynamic);
  if (!count) return damaged("its hash table cannot be read");
  if (*count > image.bytes_at(dynamic.symbols) / sizeof(Elf64_Sym)) {
    return damaged("it claims more symbols than it has");
  }
  Elf_Data* const symbols = image.at(dynamic.symbols, *count * sizeof(Elf64_Sym), ELF_T_SYM);
  Elf_Data* const strings = image.at(dynamic.strings, dynamic.string_bytes, ELF_T_BYTE);
  if (symbols == nullptr || strings == nullptr) return damaged("its symbols or their names are not there");
  Elf_Data* const versions =
      dynamic.versions != 0 ? image.at(dynamic.versions, *count * sizeof(Elf64_Half), ELF_T_HALF) : nullptr;

  const char* const text = static_cast<const char*>(strings->d_buf);
  for (uint64_t i = 0; i < *count; ++i) {
    GElf_Sym symbol;
    GElf_Versym version = VER_NDX_GLOBAL;
    if (gelf_getsym(symbols, static_cast<int>(i), &symbol) == nullptr || !is_exported_function(symbol))
      continue;
    if (versions != nullptr) gelf_getversym(versions, static_cast<int>(i), &version);
    if (version == VER_NDX_LOCAL) continue;
    if (symbol.st_name >= strings->d_size ||
        memchr(text + symbol.st_name, 0, strings->d_size - symbol.st_name) == nullptr) {
      return damaged("a symbol's name lies outside of it");
    }
    names->emplace_back(text + symbol.st_name);
  }
  std::sort(names->begin(), names->end());
  names->erase(std::unique(names->begin(), names->end()), names->end());
  return {};
}

}  // namespace

void* open_driver(std::string* path) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  link_map* map = nullptr;
  if (library != nullptr) dlinfo(library, RTLD_DI_LINKMAP, &map);
  *path = map != nullptr ? map->l_name : "";
  return library;
}

Status read_exports(const std::string& path, std::vector<std::string>* names) {
  const auto unreadable = [&path](const char* why) { return fail(Failure::kSystem, path + ": " + why); };
  // Without waiting: a named pipe would have us wait for its other end.
  const broker::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) return unreadable(strerror(errno));
  if (!S_ISREG(status.st_mode)) return unreadable("not a file; give the driver's libcuda.so.1");
  elf_version(EV_CURRENT);
  const ElfHandle elf(elf_begin(file.get(), ELF_C_READ, nullptr));
  return read_exports(elf.get(), path, names);
}

Status read_exports(const char* bytes, size_t size, const std::string& name,
                    std::vector<std::string>* names) {
  elf_version(EV_CURRENT);
  // libelf takes it as writable, but writes only where it was told to update.
  const ElfHandle elf(elf_memory(const_cast<char*>(bytes), size));
  return read_exports(elf.get(), name, names);
}

}  // namespace ctl
