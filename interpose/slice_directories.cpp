// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/attach.h"
#include "interpose/loader.h"
#include "interpose/real_library.h"
#include "interpose/syscalls.h"
#include "interpose/text.h"

namespace hook {
namespace {

// Where a container finds its slices, one directory each.
constexpr char kMounted[] = "/run/cuslice/slice";
// Outside of containers: slice directories, separated by ':'.
constexpr char kVariable[] = "CUSLICE_SLICE";
// A library from here was put into a container that is meant to have a slice.
constexpr char kInstalled[] = "/var/lib/cuslice/";

void say_closed(const char* why) {
  Line line;
  line << "cuslice: the GPU is refused to this process: " << why;
  line.write_to_stderr();
}

struct DirectoryEntry {  // as the kernel writes it
  uint64_t inode;
  int64_t next;
  uint16_t bytes;
  uint8_t type;
  char name[];
};

Membership each_mounted(long directory, VisitDirectory* visit, void* context) {
  alignas(8) char buffer[4096];
  bool any = false;
  for (;;) {
    const long bytes = system_call(SYS_getdents64, directory, as_long(buffer), sizeof buffer);
    if (bytes < 0) {
      say_closed("/run/cuslice/slice cannot be read; mount it readable for this user");
      return Membership::kClosed;
    }
    if (bytes == 0) break;
    for (long at = 0; at < bytes;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      at += entry->bytes;
      if (entry->name[0] == '.') continue;
      char path[sizeof kMounted + 256];
      const size_t name_bytes = strlen(entry->name) + 1;
      memcpy(path, kMounted, sizeof kMounted - 1);
      path[sizeof kMounted - 1] = '/';
      memcpy(path + sizeof kMounted, entry->name, name_bytes);
      any = true;
      if (!visit(path, context)) return Membership::kAttached;
    }
  }
  if (!any) {
    say_closed("/run/cuslice/slice is empty; the container was given no slice, or its mount is missing");
    return Membership::kClosed;
  }
  return Membership::kAttached;
}

Membership each_in_variable(const char* value, VisitDirectory* visit, void* context) {
  char path[kPathBytes];
  bool any = false;
  for (const char* at = value; *at != 0;) {
    const char* colon = strchr(at, ':');
    const size_t bytes = colon != nullptr ? static_cast<size_t>(colon - at) : strlen(at);
    if (bytes >= sizeof path) {
      say_closed("CUSLICE_SLICE names a directory with a path that is too long");
      return Membership::kClosed;
    }
    if (bytes != 0) {
      memcpy(path, at, bytes);
      path[bytes] = 0;
      any = true;
      if (!visit(path, context)) return Membership::kAttached;
    }
    at += bytes + (colon != nullptr ? 1 : 0);
  }
  return any ? Membership::kAttached : Membership::kTransparent;
}

bool is_installed_for_slices() {
  const link_map* own = map_of_address(own_object().dynamic);
  return own != nullptr && own->l_name != nullptr &&
         strncmp(own->l_name, kInstalled, sizeof kInstalled - 1) == 0;
}

}  // namespace

Membership each_slice_directory(VisitDirectory* visit, void* context, bool* in_container) {
  const long directory =
      system_call(SYS_openat, AT_FDCWD, as_long(kMounted), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
  if (in_container != nullptr) *in_container = directory >= 0;
  if (directory >= 0) {
    const Membership result = each_mounted(directory, visit, context);
    system_call(SYS_close, directory);
    return result;
  }
  if (directory != -ENOENT && directory != -ENOTDIR) {
    say_closed("/run/cuslice/slice cannot be opened; mount it readable for this user");
    return Membership::kClosed;
  }
  if (const char* value = secure_getenv(kVariable)) {
    const Membership result = each_in_variable(value, visit, context);
    if (result != Membership::kTransparent) return result;
  }
  if (is_installed_for_slices()) {
    say_closed("cuslice is installed here, but neither /run/cuslice/slice nor CUSLICE_SLICE names a slice");
    return Membership::kClosed;
  }
  return Membership::kTransparent;
}

}  // namespace hook
