// SPDX-License-Identifier: Apache-2.0
#include "broker/belonging.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string_view>

#include "broker/process.h"

namespace broker {
namespace {

constexpr char kMounted[] = "/root/run/cuslice/slice";  // under /proc/<pid>
constexpr std::string_view kVariable = "CUSLICE_SLICE=";
constexpr int kMostAncestors = 64;

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether `item` is one of the parts of `list`.
bool contains(std::string_view list, char separator, std::string_view item) {
  while (!list.empty()) {
    const size_t end = list.find(separator);
    if (list.substr(0, end) == item) return true;
    if (end == std::string_view::npos) break;
    list.remove_prefix(end + 1);
  }
  return false;
}

std::optional<uint64_t> by_mount(const std::string& proc, const std::vector<SliceMarks>& slices) {
  const std::string mounted = proc + kMounted;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(mounted.c_str()), closedir);
  while (const dirent* entry = directory != nullptr ? readdir(directory.get()) : nullptr) {
    struct stat limits;
    if (entry->d_name[0] == '.' || stat((mounted + "/" + entry->d_name + "/limits").c_str(), &limits) != 0)
      continue;
    for (const SliceMarks& slice : slices) {
      if (slice.device == limits.st_dev && slice.inode == limits.st_ino) return slice.key;
    }
  }
  return std::nullopt;
}

// Lines of /proc/<pid>/cgroup are "0::/path" or, of version 1, "4:memory:/path".
std::optional<uint64_t> by_cgroup(const std::string& proc, const std::vector<SliceMarks>& slices) {
  if (std::none_of(slices.begin(), slices.end(), [](const SliceMarks& s) { return !s.cgroup.empty(); }))
    return std::nullopt;
  std::istringstream lines(read_whole(proc + "/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':', line.find(':') + 1);
    if (colon == std::string::npos) continue;
    const std::string_view path = std::string_view(line).substr(colon + 1);
    for (const SliceMarks& slice : slices) {
      if (slice.cgroup.empty() || !path.starts_with(slice.cgroup)) continue;
      if (path.size() == slice.cgroup.size() || path[slice.cgroup.size()] == '/') return slice.key;
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> by_environment(const std::string& proc, const std::vector<SliceMarks>& slices) {
  const std::string environment = read_whole(proc + "/environ");
  for (std::string_view rest = environment; !rest.empty();) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view variable = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!variable.starts_with(kVariable)) continue;
    for (const SliceMarks& slice : slices) {
      if (contains(variable.substr(kVariable.size()), ':', slice.directory)) return slice.key;
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> by_ancestors(pid_t pid, const std::vector<SliceMarks>& slices) {
  for (int i = 0; i < kMostAncestors && (pid = parent_of(pid)) > 1; ++i) {
    const SliceMarks* owned = nullptr;
    int owned_count = 0;
    for (const SliceMarks& slice : slices) {
      if (std::find(slice.pids.begin(), slice.pids.end(), pid) != slice.pids.end()) return slice.key;
      if (slice.owner != pid) continue;
      owned = &slice;
      ++owned_count;
    }
    // The children of one that owns several may be in any of them, or in none.
    if (owned_count == 1) return owned->key;
  }
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> slice_of(pid_t pid, const std::vector<SliceMarks>& slices) {
  const std::string proc = "/proc/" + std::to_string(pid);
  std::optional<uint64_t> key = by_mount(proc, slices);
  if (!key) key = by_cgroup(proc, slices);
  if (!key) key = by_environment(proc, slices);
  if (!key) key = by_ancestors(pid, slices);
  return key;
}

}  // namespace broker
