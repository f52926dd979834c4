// SPDX-License-Identifier: Apache-2.0
//
// The dynamic loader as it is without us: the true dlopen and dlsym, and what is loaded where.
//
// We export dlopen and dlsym ourselves, and asking the loader for the next ones would be calling ourselves,
// or would allocate while an allocator is being initialised. So symbol tables of loaded objects are read
// directly. Nothing here allocates, takes a lock of ours, or touches dlerror(), unless it says so. Any
// thread, at any time.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace hook {

// A loaded ELF object: where it is, and its dynamic section.
struct Object {
  uintptr_t base = 0;
  const ElfW(Dyn) * dynamic = nullptr;
  explicit operator bool() const { return dynamic != nullptr; }
};

// The library that this code is in.
Object own_object();
inline Object object_of(const link_map* map) { return {map->l_addr, map->l_ld}; }

// The address of a defined, exported symbol (its default version), or nullptr. Of this object only.
void* find_symbol(const Object& object, const char* name);
// DT_SONAME, or "".
const char* soname(const Object& object);
// Whether some loaded object lists `library` as DT_NEEDED.
bool anything_needs(const char* library);

// One of our own libraries is known by a note that it carries, whatever file or name it is mounted under.
enum class Ours : uint8_t { kNo = 0, kCuda = 1, kNvml = 2 };
Ours ours_in_file(const char* path);  // kNo also for what can't be read

// The first loaded object that is our `which` library; the first that has this DT_SONAME and is none of ours;
// the program. Their link maps (which in glibc are their handles too), or nullptr.
const link_map* loaded_ours(Ours which);
const link_map* loaded_other(const char* soname);
const link_map* program();

// The object that contains `address`, or nullptr.
const link_map* map_of_address(const void* address);

// What the C library and the loader export under these names, never our own hooks. In glibc before 2.34 they
// are in libdl.so.2, which is loaded at need (the only case here that allocates).
struct TrueLoader {
  decltype(&::dlopen) dlopen;
  decltype(&::dlmopen) dlmopen;
  decltype(&::dlsym) dlsym;
  decltype(&::dlvsym) dlvsym;
  decltype(&::dlinfo) dlinfo;
  decltype(&::dladdr1) dladdr1;
};
const TrueLoader& true_loader();

// A function of the C library by name: for those whose symbol version is newer than we may import
// (pthread_create has moved from libpthread.so.0). nullptr: not there.
void* find_in_c_library(const char* name);

}  // namespace hook
