// SPDX-License-Identifier: Apache-2.0
#include "interpose/loader.h"

#include <fcntl.h>
#include <string.h>

#include <atomic>

#include "interpose/syscalls.h"

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker defines them.
[[gnu::visibility("hidden")]] extern const ElfW(Ehdr) __ehdr_start;
// Under a name of its own: link.h's declaration is not hidden, and would be reached through a relocation.
[[gnu::visibility("hidden")]] extern const ElfW(Dyn) own_dynamic_section[] asm("_DYNAMIC");
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}

namespace hook {
namespace {

// The parts of a dynamic section that a lookup needs. Every pointer may be nullptr.
struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* gnu_hash = nullptr;
  const uint32_t* sysv_hash = nullptr;
  const ElfW(Versym) * versions = nullptr;
  const ElfW(Dyn) * soname = nullptr;
};

// The loader relocates these entries in place, except in objects it maps read-only (the vdso).
template <typename T>
const T* address_in(const Object& object, const ElfW(Dyn) & entry) {
  const uintptr_t value = entry.d_un.d_ptr;
  return reinterpret_cast<const T*>(value >= object.base ? value : object.base + value);
}

Tables tables_of(const Object& object) {
  Tables tables;
  for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; entry++) {
    switch (entry->d_tag) {
      case DT_SYMTAB:
        tables.symbols = address_in<ElfW(Sym)>(object, *entry);
        break;
      case DT_STRTAB:
        tables.strings = address_in<char>(object, *entry);
        break;
      case DT_GNU_HASH:
        tables.gnu_hash = address_in<uint32_t>(object, *entry);
        break;
      case DT_HASH:
        tables.sysv_hash = address_in<uint32_t>(object, *entry);
        break;
      case DT_VERSYM:
        tables.versions = address_in<ElfW(Versym)>(object, *entry);
        break;
      case DT_SONAME:
        tables.soname = entry;
        break;
      default:
        break;
    }
  }
  return tables;
}

constexpr ElfW(Versym) kHiddenVersion = 0x8000;  // not the default version of its name

void* symbol_if(const Object& object, const Tables& tables, uint32_t index, const char* name) {
  const ElfW(Sym)& symbol = tables.symbols[index];
  if (symbol.st_shndx == SHN_UNDEF || symbol.st_value == 0) return nullptr;
  if (tables.versions != nullptr && (tables.versions[index] & kHiddenVersion) != 0) return nullptr;
  const unsigned type = ELF64_ST_TYPE(symbol.st_info);
  if (type == STT_TLS || type == STT_GNU_IFUNC) return nullptr;
  if (strcmp(tables.strings + symbol.st_name, name) != 0) return nullptr;
  return reinterpret_cast<void*>(object.base + symbol.st_value);
}

void* find_by_gnu_hash(const Object& object, const Tables& tables, const char* name) {
  uint32_t hash = 5381;
  for (const char* c = name; *c != 0; c++) hash = hash * 33 + static_cast<unsigned char>(*c);
  const uint32_t buckets = tables.gnu_hash[0];
  const uint32_t first_symbol = tables.gnu_hash[1];
  const uint32_t bloom_words = tables.gnu_hash[2];
  const uint32_t bloom_shift = tables.gnu_hash[3];
  if (buckets == 0 || bloom_words == 0) return nullptr;
  const auto* bloom = reinterpret_cast<const uint64_t*>(tables.gnu_hash + 4);
  const uint64_t word = bloom[hash / 64 % bloom_words];
  if ((word >> hash % 64 & word >> (hash >> bloom_shift) % 64 & 1) == 0) return nullptr;
  const auto* bucket = reinterpret_cast<const uint32_t*>(bloom + bloom_words);
  const uint32_t* chain = bucket + buckets;
  uint32_t index = bucket[hash % buckets];
  if (index < first_symbol) return nullptr;
  for (;; index++) {
    const uint32_t entry = chain[index - first_symbol];
    if ((entry | 1) == (hash | 1)) {
      if (void* found = symbol_if(object, tables, index, name)) return found;
    }
    if ((entry & 1) != 0) return nullptr;
  }
}

void* find_by_sysv_hash(const Object& object, const Tables& tables, const char* name) {
  uint32_t hash = 0;
  for (const char* c = name; *c != 0; c++) {
    hash = (hash << 4) + static_cast<unsigned char>(*c);
    const uint32_t high = hash & 0xf0000000;
    hash = (hash ^ high >> 24) & ~high;
  }
  const uint32_t buckets = tables.sysv_hash[0];
  if (buckets == 0) return nullptr;
  const uint32_t* bucket = tables.sysv_hash + 2;
  const uint32_t* chain = bucket + buckets;
  for (uint32_t index = bucket[hash % buckets]; index != 0; index = chain[index]) {
    if (void* found = symbol_if(object, tables, index, name)) return found;
  }
  return nullptr;
}

// Runs `visit(object, info)` for each loaded object of our namespace until it returns true.
template <typename Visit>
bool any_object(Visit visit) {
  return dl_iterate_phdr(
             [](struct dl_phdr_info* info, size_t, void* context) -> int {
               Object object = {info->dlpi_addr, nullptr};
               for (int i = 0; i < info->dlpi_phnum; i++) {
                 if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
                   object.dynamic =
                       reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
                 }
               }
               return object.dynamic != nullptr && (*static_cast<Visit*>(context))(object, *info) ? 1 : 0;
             },
             &visit) != 0;
}

// The note that interpose/note.S puts into our libraries: one word of description, an Ours.
struct Note {
  uint32_t name_bytes;
  uint32_t description_bytes;
  uint32_t type;
  char name[8];
  uint32_t which;
};
constexpr char kNoteName[8] = "cuslice";

Ours ours_in_notes(const void* notes, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(notes);
  for (size_t offset = 0; bytes >= sizeof(Note) && offset <= bytes - sizeof(Note); offset += 4) {
    Note note;
    memcpy(&note, at + offset, sizeof note);
    if (note.name_bytes == sizeof kNoteName && note.description_bytes == sizeof note.which &&
        memcmp(note.name, kNoteName, sizeof kNoteName) == 0 && (note.which == 1 || note.which == 2)) {
      return static_cast<Ours>(note.which);
    }
  }
  return Ours::kNo;
}

Ours ours_in_memory(const struct dl_phdr_info& info) {
  for (int i = 0; i < info.dlpi_phnum; i++) {
    const ElfW(Phdr)& header = info.dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const auto* notes = reinterpret_cast<const void*>(info.dlpi_addr + header.p_vaddr);
    if (const Ours which = ours_in_notes(notes, header.p_memsz); which != Ours::kNo) return which;
  }
  return Ours::kNo;
}

template <typename Matches>
const link_map* first_object(Matches matches) {
  Object found;
  any_object([&](const Object& object, const struct dl_phdr_info& info) {
    if (!matches(object, info)) return false;
    found = object;
    return true;
  });
  return found ? map_of_address(found.dynamic) : nullptr;
}

void* find_in(const char* library, const char* name) {
  void* found = nullptr;
  any_object([&](const Object& object, const struct dl_phdr_info&) {
    if (strcmp(soname(object), library) != 0) return false;
    found = find_symbol(object, name);
    return found != nullptr;
  });
  return found;
}

// glibc before 2.34 keeps the loader's interface in libdl.so.2, and a program that does not need it may not
// have it.
void load_libdl() {
  constexpr int kInternalDlopen = static_cast<int>(0x80000000);
  using Open = void*(const char*, int);
  auto* open = reinterpret_cast<Open*>(find_in("libc.so.6", "__libc_dlopen_mode"));
  if (open != nullptr) open("libdl.so.2", RTLD_NOW | kInternalDlopen);
}

template <typename Function>
void find_loader_function(Function** function, const char* name) {
  void* found = find_in("libc.so.6", name);
  if (found == nullptr) found = find_in("libdl.so.2", name);
  *function = reinterpret_cast<Function*>(found);
}

bool fill(TrueLoader* loader) {
  find_loader_function(&loader->dlopen, "dlopen");
  find_loader_function(&loader->dlmopen, "dlmopen");
  find_loader_function(&loader->dlsym, "dlsym");
  find_loader_function(&loader->dlvsym, "dlvsym");
  find_loader_function(&loader->dlinfo, "dlinfo");
  find_loader_function(&loader->dladdr1, "dladdr1");
  return loader->dlopen != nullptr;
}

constinit TrueLoader the_loader = {};
constinit std::atomic<bool> the_loader_is_known = false;

}  // namespace

Object own_object() { return {reinterpret_cast<uintptr_t>(&__ehdr_start), own_dynamic_section}; }

void* find_symbol(const Object& object, const char* name) {
  const Tables tables = tables_of(object);
  if (tables.symbols == nullptr || tables.strings == nullptr) return nullptr;
  if (tables.gnu_hash != nullptr) return find_by_gnu_hash(object, tables, name);
  if (tables.sysv_hash != nullptr) return find_by_sysv_hash(object, tables, name);
  return nullptr;
}

const char* soname(const Object& object) {
  const Tables tables = tables_of(object);
  if (tables.soname == nullptr || tables.strings == nullptr) return "";
  return tables.strings + tables.soname->d_un.d_val;
}

bool anything_needs(const char* library) {
  return any_object([&](const Object& object, const struct dl_phdr_info&) {
    const Tables tables = tables_of(object);
    if (tables.strings == nullptr) return false;
    for (const ElfW(Dyn)* entry = object.dynamic; entry->d_tag != DT_NULL; entry++) {
      if (entry->d_tag == DT_NEEDED && strcmp(tables.strings + entry->d_un.d_val, library) == 0) return true;
    }
    return false;
  });
}

Ours ours_in_file(const char* path) {
  const long file = system_call(SYS_openat, AT_FDCWD, as_long(path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return Ours::kNo;
  alignas(8) char head[4096];  // the linker puts notes right behind the program headers
  const long bytes = system_call(SYS_read, file, as_long(head), sizeof head);
  system_call(SYS_close, file);
  return bytes > 0 ? ours_in_notes(head, static_cast<size_t>(bytes)) : Ours::kNo;
}

const link_map* loaded_ours(Ours which) {
  return first_object(
      [&](const Object&, const struct dl_phdr_info& info) { return ours_in_memory(info) == which; });
}

const link_map* loaded_other(const char* name) {
  return first_object([&](const Object& object, const struct dl_phdr_info& info) {
    return strcmp(soname(object), name) == 0 && ours_in_memory(info) == Ours::kNo;
  });
}

const link_map* program() {
  return first_object([](const Object&, const struct dl_phdr_info&) { return true; });
}

const link_map* map_of_address(const void* address) {
  Dl_info info;
  void* map = nullptr;
  auto* dladdr1 = true_loader().dladdr1;
  if (dladdr1 == nullptr || dladdr1(address, &info, &map, RTLD_DL_LINKMAP) == 0) return nullptr;
  return static_cast<const link_map*>(map);
}

const TrueLoader& true_loader() {
  // acquire; pairs with the release below. Threads that are first together write the same values.
  if (!the_loader_is_known.load(std::memory_order_acquire)) {
    TrueLoader loader;
    if (!fill(&loader)) {
      load_libdl();
      fill(&loader);
    }
    the_loader = loader;
    the_loader_is_known.store(true, std::memory_order_release);
  }
  return the_loader;
}

void* find_in_c_library(const char* name) {
  void* found = find_in("libc.so.6", name);
  return found != nullptr ? found : find_in("libpthread.so.0", name);
}

}  // namespace hook
