// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

namespace shm {
namespace {

constexpr int kPathBytes = 4096;

// "<directory>/<file>" into out. false: too long.
bool join(const char* directory, const char* file, char (&out)[kPathBytes]) {
  const size_t left = strlen(directory);
  const size_t right = strlen(file);
  if (left + 1 + right + 1 > kPathBytes) {
    errno = ENAMETOOLONG;
    return false;
  }
  memcpy(out, directory, left);
  out[left] = '/';
  memcpy(out + left + 1, file, right + 1);
  return true;
}

// What limits and state have at their start, in the same places.
struct Preamble {
  uint64_t magic;
  uint32_t version;
  uint32_t gpu_count;  // of limits
  uint64_t length_bytes;
  uint64_t ignored;
  char slice_id[kSliceIdBytes];  // of limits
  uint64_t rest[4];
};
static_assert(sizeof(Preamble) == sizeof(LimitsHeader) && sizeof(Preamble) == sizeof(StateHeader));
static_assert(offsetof(Preamble, version) == offsetof(LimitsHeader, version));
static_assert(offsetof(Preamble, version) == offsetof(StateHeader, version));
static_assert(offsetof(Preamble, gpu_count) == offsetof(LimitsHeader, gpu_count));
static_assert(offsetof(Preamble, length_bytes) == offsetof(LimitsHeader, length_bytes));
static_assert(offsetof(Preamble, length_bytes) == offsetof(StateHeader, length_bytes));
static_assert(offsetof(Preamble, slice_id) == offsetof(LimitsHeader, slice_id));

struct Format {
  char file[8];  // no pointer: the preloaded libraries are to need no relocation
  uint64_t magic;
  size_t bytes;
};
constexpr Format kLimitsFormat = {"limits", kLimitsMagic, sizeof(Limits)};
constexpr Format kStateFormat = {"state", kStateMagic, sizeof(State)};

AttachResult result_of_errno() {
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
      return AttachResult::kNotThere;
    case EACCES:
    case EPERM:
    case EROFS:
      return AttachResult::kDenied;
    default:
      return AttachResult::kFailed;
  }
}

// Whether the file is one of this format, whole and finished. Read and not mapped: a file that is cut at the
// same time is a short answer here, and a SIGBUS there. The version comes before the length, which another
// version may have of its own.
AttachResult check_header(int file, const Format& format) {
  Preamble preamble;
  const ssize_t bytes = pread(file, &preamble, sizeof preamble, 0);
  if (bytes < 0) return AttachResult::kFailed;
  if (bytes == 0) return AttachResult::kNotReady;
  if (static_cast<size_t>(bytes) < sizeof preamble) return AttachResult::kTooShort;
  // acquire; pairs with the release at the end of create(): what was written before the version is seen after
  // this.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (preamble.version == 0) return AttachResult::kNotReady;
  if (preamble.magic != format.magic) return AttachResult::kNotASlice;
  if (preamble.version != kVersion) return AttachResult::kWrongVersion;
  if (preamble.length_bytes != format.bytes) return AttachResult::kNotASlice;
  if (format.magic == kLimitsMagic && (preamble.gpu_count < 1 || preamble.gpu_count > kMaxGpus ||
                                       memchr(preamble.slice_id, 0, sizeof preamble.slice_id) == nullptr)) {
    return AttachResult::kNotASlice;
  }
  struct stat status;
  if (fstat(file, &status) != 0) return AttachResult::kFailed;
  return static_cast<uint64_t>(status.st_size) < format.bytes ? AttachResult::kTooShort
                                                              : AttachResult::kReady;
}

AttachResult map(const char* directory, const Format& format, bool writable, void** mapping) {
  char path[kPathBytes];
  if (!join(directory, format.file, path)) return AttachResult::kFailed;
  const int file = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return result_of_errno();
  struct stat status;
  AttachResult result = AttachResult::kFailed;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode)) result = check_header(file, format);
  if (result == AttachResult::kReady) {
    void* const address =
        mmap(nullptr, format.bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, file, 0);
    if (address == MAP_FAILED) {
      result = AttachResult::kFailed;
    } else {
      *mapping = address;
    }
  }
  const int failure = errno;
  close(file);
  errno = failure;
  return result;
}

AttachResult map_limits(const char* directory, bool writable, Limits** limits) {
  void* mapping = nullptr;
  const AttachResult result = map(directory, kLimitsFormat, writable, &mapping);
  if (result == AttachResult::kReady) *limits = static_cast<Limits*>(mapping);
  return result;
}

AttachResult map_state(const char* directory, bool writable, State** state) {
  void* mapping = nullptr;
  const AttachResult result = map(directory, kStateFormat, writable, &mapping);
  if (result == AttachResult::kReady) *state = static_cast<State*>(mapping);
  return result;
}

// A new file of `bytes` zeros with exactly `mode`, mapped. nullptr: errno says why, no file is left.
void* make_file(const char* path, size_t bytes, mode_t mode) {
  const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return nullptr;
  void* address = MAP_FAILED;
  // fchmod: the umask of whoever runs the broker does not apply to it.
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0 && fchmod(file, mode) == 0) {
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const int failure = errno;
  close(file);
  if (address == MAP_FAILED) {
    unlink(path);
    errno = failure;
    return nullptr;
  }
  return address;
}

bool valid(const SliceTerms& terms) {
  const size_t id_bytes = terms.id == nullptr ? 0 : strnlen(terms.id, kSliceIdBytes);
  return id_bytes >= 1 && id_bytes < kSliceIdBytes && terms.gpus != nullptr && terms.gpu_count >= 1 &&
         terms.gpu_count <= kMaxGpus;
}

}  // namespace

const char* describe(AttachResult result) {
  switch (result) {
    case AttachResult::kReady:
      return "ready";
    case AttachResult::kNotThere:
      return "its files are not there";
    case AttachResult::kNotReady:
      return "it is not ready: the broker has not finished making it";
    case AttachResult::kWrongVersion:
      return "its format is of another cuslice version";
    case AttachResult::kNotASlice:
      return "its files are not a slice's, or damaged";
    case AttachResult::kTooShort:
      return "a file of it is shorter than the format";
    case AttachResult::kDenied:
      return "permission denied";
    case AttachResult::kFailed:
      return "it could not be mapped";
  }
  return "unknown";
}

AttachResult attach_limits(const char* directory, const Limits** limits) {
  Limits* mapped = nullptr;
  const AttachResult result = map_limits(directory, false, &mapped);
  if (result == AttachResult::kReady) *limits = mapped;
  return result;
}

AttachResult attach_limits_writable(const char* directory, Limits** limits) {
  return map_limits(directory, true, limits);
}

AttachResult attach_state(const char* directory, State** state) { return map_state(directory, true, state); }

AttachResult attach_state_read_only(const char* directory, const State** state) {
  State* mapped = nullptr;
  const AttachResult result = map_state(directory, false, &mapped);
  if (result == AttachResult::kReady) *state = mapped;
  return result;
}

void detach(const Limits* limits) { munmap(const_cast<Limits*>(limits), sizeof(Limits)); }
void detach(const State* state) { munmap(const_cast<State*>(state), sizeof(State)); }

bool create(const char* directory, const SliceTerms& terms, Limits** limits_out, State** state_out) {
  if (!valid(terms)) {
    errno = EINVAL;
    return false;
  }
  char limits_path[kPathBytes];
  char state_path[kPathBytes];
  if (!join(directory, kLimitsFormat.file, limits_path) || !join(directory, kStateFormat.file, state_path)) {
    return false;
  }
  auto* limits = static_cast<Limits*>(make_file(limits_path, sizeof(Limits), 0644));
  if (limits == nullptr) return false;
  auto* state = static_cast<State*>(make_file(state_path, sizeof(State), 0666));
  if (state == nullptr) {
    const int failure = errno;
    detach(limits);
    unlink(limits_path);
    errno = failure;
    return false;
  }

  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  limits->header.magic = kLimitsMagic;
  limits->header.length_bytes = sizeof(Limits);
  limits->header.created_ns = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  limits->header.gpu_count = static_cast<uint32_t>(terms.gpu_count);
  memcpy(limits->header.slice_id, terms.id, strlen(terms.id));
  limits->gate.gate.store(kGateShut, std::memory_order_relaxed);
  limits->gate.mode.store(kParked, std::memory_order_relaxed);
  limits->share.compute_percent.store(terms.compute_percent, std::memory_order_relaxed);
  limits->share.compute_limit_percent.store(terms.compute_limit_percent, std::memory_order_relaxed);
  limits->share.priority.store(terms.priority, std::memory_order_relaxed);
  for (int i = 0; i < terms.gpu_count; i++) {
    GpuLimits& gpu = limits->gpus[i];
    memcpy(gpu.uuid, terms.gpus[i].uuid, sizeof gpu.uuid);
    gpu.quota_bytes.store(terms.gpus[i].quota_bytes, std::memory_order_relaxed);
    gpu.device_bytes.store(terms.gpus[i].device_bytes, std::memory_order_relaxed);
    gpu.context_bytes.store(terms.gpus[i].context_bytes, std::memory_order_relaxed);
  }
  state->header.magic = kStateMagic;
  state->header.length_bytes = sizeof(State);

  // release; pairs with the acquire in map(). limits last: a tenant looks at it first.
  state->header.version.store(kVersion, std::memory_order_release);
  limits->header.version.store(kVersion, std::memory_order_release);
  *limits_out = limits;
  *state_out = state;
  return true;
}

}  // namespace shm
