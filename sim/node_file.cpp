// SPDX-License-Identifier: Apache-2.0
#include "sim/node_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <string_view>

#include "sim/process.h"

namespace sim {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

std::string why(const std::string& what, int error) { return what + ": " + strerror(error); }

NodeFile* map(int fd) {
  void* at = mmap(nullptr, sizeof(NodeFile), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<NodeFile*>(at);
}

uint64_t hash(std::string_view text) {
  uint64_t value = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return value;
}

// Makes a node of the empty file. The file must not be found by others before this is done.
NodeFile* fill(int fd, const NodeSettings& settings, uint64_t identity) {
  if (ftruncate(fd, sizeof(NodeFile)) != 0) return nullptr;
  NodeFile* file = map(fd);
  if (!file) return nullptr;
  file->magic = kNodeMagic;
  file->version = kNodeVersion;
  file->size_bytes = sizeof(NodeFile);
  file->identity = identity;
  file->settings = settings;
  file->host_namespace = pid_namespace();
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  for (int i = 0; i < settings.device_count; ++i) pthread_mutex_init(&file->devices[i].lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
  return file;
}

template <typename T>
bool number_from_environment(const char* name, uint64_t max, T* out, std::string* error) {
  const char* text = getenv(name);
  if (!text) return true;
  uint64_t value;
  const char* end = text + strlen(text);
  const auto [stopped, code] = std::from_chars(text, end, value);
  if (code != std::errc() || stopped != end || value > max) {
    *error = std::string(name) + "='" + text + "': give a whole number from 0 to " + std::to_string(max);
    return false;
  }
  *out = static_cast<T>(value);
  return true;
}

}  // namespace

bool parse_driver_version(const char* text, uint32_t* version) {
  uint32_t major, minor;
  const char* end = text + strlen(text);
  auto result = std::from_chars(text, end, major);
  if (result.ec != std::errc() || result.ptr == end || *result.ptr != '.') return false;
  result = std::from_chars(result.ptr + 1, end, minor);
  if (result.ec != std::errc() || result.ptr != end || major > 99 || minor > 99) return false;
  *version = major * 1000 + minor * 10;
  return true;
}

bool check_settings(const NodeSettings& settings, std::string* error) {
  if (settings.device_count < 1 || settings.device_count > kMaxDevices) {
    *error = "a node of " + std::to_string(settings.device_count) + " GPUs: give 1 to " +
             std::to_string(kMaxDevices);
    return false;
  }
  const GpuModel* model = find_gpu_model(settings.gpu);
  if (!model) {
    *error = std::string("no GPU model '") + settings.gpu + "': give one of";
    for (int i = 0; i < gpu_model_count(); ++i) *error += std::string(i ? ", " : " ") + gpu_model(i).key;
    return false;
  }
  if (settings.driver_version < 11000 || settings.driver_version > 19990) {
    *error = "driver " + std::to_string(settings.driver_version / 1000) + "." +
             std::to_string(settings.driver_version % 1000 / 10) + ": give 11.0 to 19.99, as in 13.0";
    return false;
  }
  if (settings.time_slice_ns == 0) {
    *error = "a time slice of 0: give at least 1 ns";
    return false;
  }
  if (settings.context_bytes > model->memory_bytes) {
    *error = "a context would take more memory than the GPU has";
    return false;
  }
  return true;
}

bool settings_from_environment(NodeSettings* settings, std::string* error) {
  if (const char* gpu = getenv("SIMGPU_GPU")) {
    if (strlen(gpu) >= sizeof(settings->gpu)) {
      *error = std::string("SIMGPU_GPU='") + gpu + "': no such GPU model";
      return false;
    }
    memcpy(settings->gpu, gpu, strlen(gpu) + 1);
  }
  if (const char* driver = getenv("SIMGPU_DRIVER")) {
    if (!parse_driver_version(driver, &settings->driver_version)) {
      *error = std::string("SIMGPU_DRIVER='") + driver + "': give major.minor, as in 13.0";
      return false;
    }
  }
  constexpr uint64_t kHourNs = 3'600'000'000'000;
  return number_from_environment("SIMGPU_COUNT", kMaxDevices, &settings->device_count, error) &&
         number_from_environment("SIMGPU_TIME_SLICE_NS", kHourNs, &settings->time_slice_ns, error) &&
         number_from_environment("SIMGPU_SWITCH_NS", kHourNs, &settings->context_switch_ns, error) &&
         number_from_environment("SIMGPU_CONTEXT_BYTES", 1ull << 40, &settings->context_bytes, error) &&
         number_from_environment("SIMGPU_KERNEL_NS", kHourNs, &settings->default_kernel_ns, error) &&
         number_from_environment("SIMGPU_COPY_BYTES_PER_US", 1ull << 40, &settings->copy_bytes_per_us,
                                 error) &&
         check_settings(*settings, error);
}

NodeFile* open_node(const std::string& directory, std::string* error) {
  error->clear();
  const std::string path = directory + "/node";
  const Descriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.ok()) {
    if (errno != ENOENT) *error = why("cannot open the node file " + path, errno);
    return nullptr;
  }
  struct stat status;
  NodeFile* file = nullptr;
  if (fstat(fd.get(), &status) == 0 && status.st_size == static_cast<off_t>(sizeof(NodeFile))) {
    file = map(fd.get());
    if (!file) {
      *error = why("cannot map the node file " + path, errno);
      return nullptr;
    }
    if (file->magic == kNodeMagic && file->version == kNodeVersion && file->size_bytes == sizeof(NodeFile))
      return file;
    unmap_node(file);
  }
  *error =
      path +
      " is not a node file of this version of the simulator: remove it, and run no two versions on a node";
  return nullptr;
}

NodeFile* open_or_create_node(const std::string& directory, const NodeSettings& settings,
                              std::string* error) {
  if (NodeFile* file = open_node(directory, error)) return file;
  if (!error->empty()) return nullptr;

  const std::string path = directory + "/node";
  std::string made = directory + "/node.XXXXXX";
  const Descriptor fd(mkostemp(made.data(), O_CLOEXEC));
  // For users of all kinds, those of other user namespaces too.
  if (!fd.ok() || fchmod(fd.get(), 0666) != 0) {
    *error = why("cannot make a node in " + directory, errno);
    return nullptr;
  }
  char resolved[PATH_MAX];
  const bool is_resolved = realpath(directory.c_str(), resolved) != nullptr;
  NodeFile* file = fill(fd.get(), settings, hash(is_resolved ? resolved : directory.c_str()));
  if (!file) {
    *error = why("cannot make a node in " + directory, errno);
    unlink(made.c_str());
    return nullptr;
  }
  // Published whole, and only if nobody was faster.
  const int linked = link(made.c_str(), path.c_str());
  const int link_error = errno;
  unlink(made.c_str());
  if (linked == 0) return file;
  unmap_node(file);
  if (link_error == EEXIST) return open_node(directory, error);
  *error = why("cannot make a node in " + directory, link_error);
  return nullptr;
}

NodeFile* create_private_node(const NodeSettings& settings, std::string* path, std::string* error) {
  const Descriptor fd(memfd_create("simgpu-node", MFD_CLOEXEC));
  NodeFile* file = fd.ok() ? fill(fd.get(), settings, hash("private node")) : nullptr;
  // Stays open, out of the way of programs that count on low numbers.
  const int kept = file ? fcntl(fd.get(), F_DUPFD_CLOEXEC, 900) : -1;
  if (kept < 0) {
    *error = why("cannot make a node in memory", errno);
    if (file) unmap_node(file);
    return nullptr;
  }
  *path = "/proc/self/fd/" + std::to_string(kept);
  return file;
}

void unmap_node(NodeFile* file) { munmap(file, sizeof(NodeFile)); }

}  // namespace sim
