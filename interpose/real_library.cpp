// SPDX-License-Identifier: Apache-2.0
#include "interpose/real_library.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "interpose/syscalls.h"

namespace hook {
namespace {

using Path = char[kPathBytes];

// A file the loader could load as this architecture's library, and none of ours.
bool usable(const char* path) {
  const long file = system_call(SYS_openat, AT_FDCWD, as_long(path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  ElfW(Ehdr) header;
  const long bytes = system_call(SYS_read, file, as_long(&header), sizeof header);
  system_call(SYS_close, file);
  // The loader passes over libraries of other architectures too.
  const bool loadable = bytes == sizeof header && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
                        header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_machine == EM_X86_64;
  return loadable && ours_in_file(path) == Ours::kNo;
}

bool copy_if_usable(const char* path, Path& out) {
  const size_t bytes = strlen(path) + 1;
  if (bytes > sizeof out || !usable(path)) return false;
  memcpy(out, path, bytes);
  return true;
}

bool usable_in(const char* directory, const char* name, Path& out) {
  const size_t left = strlen(directory);
  const size_t right = strlen(name) + 1;
  if (left == 0 || left + 1 + right > sizeof out) return false;
  memcpy(out, directory, left);
  out[left] = '/';
  memcpy(out + left + 1, name, right);
  return usable(out);
}

// A mapped file or scratch memory, for the length of a scope.
class Mapping {
 public:
  Mapping(size_t bytes, int protection, int flags, int file)
      : address_(mmap(nullptr, bytes, protection, flags, file, 0)), bytes_(bytes) {}
  ~Mapping() {
    if (*this) munmap(address_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  explicit operator bool() const { return address_ != MAP_FAILED; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(address_);
  }

 private:
  void* const address_;
  const size_t bytes_;
};

// The loader's built-in directories, searched after its cache.
bool is_system_directory(const char* directory) {
  static constexpr char kDirectories[][32] = {
      "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"};
  for (const auto& known : kDirectories) {
    if (strcmp(directory, known) == 0) return true;
  }
  return false;
}

// /etc/ld.so.cache, in the layout of glibc since 2.2 (behind an older table on some systems).
struct CacheHeader {
  char magic[20];
  uint32_t entries;
  uint32_t strings_bytes;
  uint32_t unused[5];
};
struct CacheEntry {
  int32_t flags;
  uint32_t name;  // offsets from the header
  uint32_t path;
  uint32_t os_version;
  uint64_t hwcap;
};
static_assert(sizeof(CacheHeader) == 48 && sizeof(CacheEntry) == 24);
constexpr char kCacheMagic[] = "glibc-ld.so.cache1.1";
constexpr char kOldCacheMagic[] = "ld.so-1.7.0";
constexpr int32_t kX8664Library = 0x0303;

bool find_in_cache(const char* name, Path& out) {
  const long file = system_call(SYS_openat, AT_FDCWD, as_long("/etc/ld.so.cache"), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const long length = system_call(SYS_lseek, file, 0, SEEK_END);
  if (length < static_cast<long>(sizeof(CacheHeader))) {
    system_call(SYS_close, file);
    return false;
  }
  const size_t bytes = static_cast<size_t>(length);
  const Mapping cache(bytes, PROT_READ, MAP_PRIVATE, static_cast<int>(file));
  system_call(SYS_close, file);
  if (!cache) return false;

  const char* start = cache.as<const char>();
  size_t offset = 0;
  if (memcmp(start, kOldCacheMagic, sizeof kOldCacheMagic - 1) == 0) {
    uint32_t old_entries;
    memcpy(&old_entries, start + 12, sizeof old_entries);
    offset = (16 + size_t{old_entries} * 12 + 7) & ~size_t{7};
    if (offset > bytes - sizeof(CacheHeader)) return false;
  }
  const char* base = start + offset;
  const size_t left = bytes - offset;
  CacheHeader header;
  memcpy(&header, base, sizeof header);
  if (memcmp(header.magic, kCacheMagic, sizeof header.magic) != 0) return false;
  if (header.entries > (left - sizeof header) / sizeof(CacheEntry)) return false;
  for (uint32_t i = 0; i < header.entries; i++) {
    CacheEntry entry;
    memcpy(&entry, base + sizeof header + i * sizeof entry, sizeof entry);
    if (entry.flags != kX8664Library || entry.name >= left || entry.path >= left) continue;
    if (strncmp(base + entry.name, name, left - entry.name) != 0) continue;
    if (memchr(base + entry.path, 0, left - entry.path) == nullptr) continue;
    if (copy_if_usable(base + entry.path, out)) return true;
  }
  return false;
}

// The directories that the loader searches on behalf of an object: RPATH, LD_LIBRARY_PATH (as it was at the
// start, whatever the program has done to the variable), RUNPATH, then the system's.
bool find_in_directories(const char* name, const void* caller, Path& out) {
  const link_map* on_behalf_of = caller != nullptr ? map_of_address(caller) : nullptr;
  if (on_behalf_of == nullptr) on_behalf_of = program();
  auto* dlinfo = true_loader().dlinfo;
  void* handle = const_cast<link_map*>(on_behalf_of);
  Dl_serinfo size;
  if (handle == nullptr || dlinfo == nullptr || dlinfo(handle, RTLD_DI_SERINFOSIZE, &size) != 0) {
    return find_in_cache(name, out);
  }
  const Mapping scratch(size.dls_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (!scratch) return find_in_cache(name, out);
  auto* list = scratch.as<Dl_serinfo>();
  *list = size;
  if (dlinfo(handle, RTLD_DI_SERINFO, list) != 0) return find_in_cache(name, out);

  unsigned system = list->dls_cnt;  // where the system's directories begin
  while (system > 0 && is_system_directory(list->dls_serpath[system - 1].dls_name)) system--;
  for (unsigned i = 0; i < system; i++) {
    if (usable_in(list->dls_serpath[i].dls_name, name, out)) return true;
  }
  if (find_in_cache(name, out)) return true;
  for (unsigned i = system; i < list->dls_cnt; i++) {
    if (usable_in(list->dls_serpath[i].dls_name, name, out)) return true;
  }
  return false;
}

// glibc crashes when something is opened globally in a namespace that dlmopen() made.
bool in_first_namespace() {
  Lmid_t id = LM_ID_BASE;
  void* own = const_cast<link_map*>(map_of_address(own_object().dynamic));
  auto* dlinfo = true_loader().dlinfo;
  return own == nullptr || dlinfo == nullptr || dlinfo(own, RTLD_DI_LMID, &id) != 0 || id == LM_ID_BASE;
}

}  // namespace

bool RealLibrary::find(const char* hint, const void* caller, Path& path) const {
  if (hint != nullptr && strchr(hint, '/') != nullptr) {
    if (copy_if_usable(hint, path)) return true;
    // A path that is not there fails, as it would without us; one to our own file stands for the library.
    if (ours_in_file(hint) == Ours::kNo) return false;
  }
  return find_in_directories(soname_, caller, path);
}

const link_map* RealLibrary::open(const char* path) {
  if (const link_map* open = map()) return open;
  // Globally, so that a program can bind to functions that we don't export. Constructors of the library run
  // in here and may come back through our hooks: nothing is held.
  void* handle = true_loader().dlopen(path, RTLD_LAZY | (in_first_namespace() ? RTLD_GLOBAL : 0));
  return handle != nullptr ? keep(static_cast<const link_map*>(handle)) : nullptr;
}

const link_map* RealLibrary::adopt() {
  if (const link_map* open = map()) return open;
  const link_map* loaded = loaded_other(soname_);
  // Only what dlopen() has returned can be looked up in.
  return loaded != nullptr ? open(loaded->l_name) : nullptr;
}

const link_map* RealLibrary::keep(const link_map* map) {
  const link_map* expected = nullptr;
  // release; pairs with the acquire in map().
  if (map_.compare_exchange_strong(expected, map, std::memory_order_acq_rel)) return map;
  return expected;
}

}  // namespace hook
