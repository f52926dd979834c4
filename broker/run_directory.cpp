// SPDX-License-Identifier: Apache-2.0
#include "broker/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace broker {
namespace {

Status make_directory(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) == 0) {
    // mkdir's mode is cut by the umask, which is the user's and not ours to rely on.
    chmod(path.c_str(), mode);
    return {};
  }
  if (errno == EEXIST) return {};
  return fail(Failure::kSystem, "cannot make " + path + ": " + strerror(errno));
}

}  // namespace

std::string default_run_directory() {
  if (const char* set = getenv("CUSLICE_RUN_DIR"); set != nullptr && set[0] != 0) return set;
  if (geteuid() == 0) return "/run/cuslice";
  if (const char* runtime = getenv("XDG_RUNTIME_DIR"); runtime != nullptr && runtime[0] != 0) {
    return std::string(runtime) + "/cuslice";
  }
  return {};
}

Status resolve_run_directory(const std::string& given, std::string* path) {
  if (given.empty()) {
    return fail(Failure::kInvalid, "no run directory: set --run-dir, CUSLICE_RUN_DIR or XDG_RUNTIME_DIR");
  }
  std::error_code error;
  *path = std::filesystem::absolute(given, error).string();
  if (error) return fail(Failure::kInvalid, "run directory " + given + ": " + error.message());
  while (path->size() > 1 && path->back() == '/') path->pop_back();
  if (path->find(':') != std::string::npos) {
    return fail(Failure::kInvalid, "run directory " + *path +
                                       ": a ':' separates the slices in CUSLICE_SLICE and cannot be in their "
                                       "paths; use another --run-dir");
  }
  if (const size_t at = path->find_first_of("%#?"); at != std::string::npos) {
    return fail(Failure::kInvalid,
                "run directory " + *path + ": a '" + (*path)[at] +
                    "' has a meaning of its own in the address of the broker's socket; use "
                    "another --run-dir");
  }
  const std::string socket = RunDirectory(*path).socket();
  constexpr size_t kLimit = sizeof sockaddr_un::sun_path - 1;
  if (socket.size() > kLimit) {
    return fail(Failure::kInvalid, "run directory " + *path + ": the broker's socket would be " + socket +
                                       ", " + std::to_string(socket.size()) +
                                       " bytes, and the path of a socket has at "
                                       "most " +
                                       std::to_string(kLimit) + "; use a shorter --run-dir");
  }
  return {};
}

Status RunDirectory::make() const {
  for (size_t slash = path_.find('/', 1); slash != std::string::npos; slash = path_.find('/', slash + 1)) {
    if (Status made = make_directory(path_.substr(0, slash), 0755); !made.ok()) return made;
  }
  if (Status made = make_directory(path_, 0755); !made.ok()) return made;
  if (Status made = make_directory(slices(), 0755); !made.ok()) return made;
  return make_directory(records(), 0700);
}

Status lock_file(const std::string& path, bool wait, UniqueFd* lock) {
  for (;;) {
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd) return fail(Failure::kSystem, "cannot open " + path + ": " + strerror(errno));
    if (flock(fd.get(), LOCK_EX | (wait ? 0 : LOCK_NB)) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return fail(Failure::kExists, path + " is held by another process");
      return fail(Failure::kSystem, "cannot lock " + path + ": " + strerror(errno));
    }
    // A holder that ends may have removed the file between our open and our lock; then this lock is worth
    // nothing.
    struct stat ours, current;
    if (fstat(fd.get(), &ours) == 0 && stat(path.c_str(), &current) == 0 && ours.st_dev == current.st_dev &&
        ours.st_ino == current.st_ino) {
      *lock = std::move(fd);
      return {};
    }
  }
}

}  // namespace broker
