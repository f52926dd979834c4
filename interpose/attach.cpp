// SPDX-License-Identifier: Apache-2.0
#include "interpose/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "interpose/process.h"
#include "interpose/real_library.h"
#include "interpose/syscalls.h"
#include "interpose/text.h"
#include "shm/segment.h"

namespace hook {
namespace {

constexpr uint64_t kReadyDeadlineNs = 1'000'000'000;   // for a broker that is just making the slice
constexpr uint64_t kBrokerDeadlineNs = 2'000'000'000;  // for all slices together
constexpr uint64_t kNapNs = 5'000'000;

struct Attaching {
  Session* session;
  limiter::ProcessIdentity self;
  uint64_t broker_deadline_ns;
  bool failed;
};

bool refuse(Attaching* attaching, const char* directory, const char* why, const char* what_to_do) {
  Line line;
  line << "cuslice: the GPU is refused to this process: slice ";
  line.foreign(directory, 300) << ": " << why << "; " << what_to_do;
  line.write_to_stderr();
  attaching->failed = true;
  return false;
}

const char* what_to_do_about(shm::AttachResult result) {
  switch (result) {
    case shm::AttachResult::kDenied:
      return "let this user read its `limits` and write its `state`";
    case shm::AttachResult::kWrongVersion:
      return "use the library and the broker of one cuslice version";
    case shm::AttachResult::kNotThere:
      return "prepare the slice first, or unset CUSLICE_SLICE to run without one";
    default:
      return "release the slice and prepare it again";
  }
}

// Maps `limits`, waiting a moment for a broker that is still writing it.
shm::AttachResult map_limits(const char* directory, const shm::Limits** limits) {
  const uint64_t deadline_ns = now_ns() + kReadyDeadlineNs;
  for (;;) {
    const shm::AttachResult result = shm::attach_limits(directory, limits);
    if (result != shm::AttachResult::kNotReady || now_ns() >= deadline_ns) return result;
    sleep_ns(kNapNs);
  }
}

bool has_gpu(const Session& session, const uint8_t (&uuid)[16]) {
  for (int i = 0; i < session.slice_count; i++) {
    for (int gpu = 0; gpu < session.slices[i].gpu_count; gpu++) {
      if (memcmp(session.slices[i].limits->gpus[gpu].uuid, uuid, sizeof uuid) == 0) return true;
    }
  }
  return false;
}

bool join(const char* directory, const char* file, char (&path)[kPathBytes]) {
  const size_t left = strlen(directory);
  const size_t right = strlen(file) + 1;
  if (left + right > sizeof path) return false;
  memcpy(path, directory, left);
  memcpy(path + left, file, right);
  return true;
}

// A path that fits into a socket address: through a descriptor of the directory if it must.
bool socket_address(const char* directory, long descriptor, struct sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  static constexpr char kSocket[] = "/attach";
  size_t bytes = strlen(directory);
  if (bytes + sizeof kSocket <= sizeof address->sun_path) {
    memcpy(address->sun_path, directory, bytes);
  } else {
    if (descriptor < 0) return false;
    static constexpr char kDescriptors[] = "/proc/self/fd/";
    bytes = sizeof kDescriptors - 1;
    memcpy(address->sun_path, kDescriptors, bytes);
    bytes += write_decimal(static_cast<uint64_t>(descriptor), address->sun_path + bytes);
  }
  memcpy(address->sun_path + bytes, kSocket, sizeof kSocket);
  return true;
}

// Waits until the socket is ready for `events`. false: not before the deadline.
bool wait_for(long socket, short events, uint64_t deadline_ns) {
  for (;;) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) return false;
    struct pollfd polled = {static_cast<int>(socket), events, 0};
    const struct timespec timeout = to_timespec(deadline_ns - now);
    const long ready = system_call(SYS_ppoll, as_long(&polled), 1, as_long(&timeout));
    if (ready > 0) return true;
    if (ready < 0 && ready != -EINTR) return false;
  }
}

long connect_until(long socket, const struct sockaddr_un& address, uint64_t deadline_ns) {
  for (;;) {
    const long result = system_call(SYS_connect, socket, as_long(&address), sizeof address);
    // EAGAIN: the listener's queue is full.
    if ((result != -EAGAIN && result != -EINTR) || now_ns() >= deadline_ns) return result;
    sleep_ns(kNapNs);
  }
}

// A connection to the broker, or below 0. It is there before a slot is taken: if this process is killed
// before it has said which, the broker sees the connection end and looks for it.
long connect_to_broker(const char* directory, uint64_t deadline_ns) {
  const long socket = system_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) return socket;
  const long descriptor =
      system_call(SYS_openat, AT_FDCWD, as_long(directory), O_PATH | O_DIRECTORY | O_CLOEXEC);
  struct sockaddr_un address;
  const bool connected =
      socket_address(directory, descriptor, &address) && connect_until(socket, address, deadline_ns) == 0;
  if (descriptor >= 0) system_call(SYS_close, descriptor);
  if (connected) return socket;
  system_call(SYS_close, socket);
  return -ECONNREFUSED;
}

// Tells the broker which slot is ours; it knows the process by its credentials. false: no broker has
// answered, which the ledger does not need.
bool ask_broker(long socket, limiter::SlotRef slot, uint64_t deadline_ns, shm::AttachReply* reply) {
  if (socket < 0) return false;
  const shm::AttachRequest request = {shm::kVersion, slot.slot, slot.generation, 0};
  const long sent = system_call(SYS_sendto, socket, as_long(&request), sizeof request, MSG_NOSIGNAL);
  return sent == sizeof request && wait_for(socket, POLLIN, deadline_ns) &&
         system_call(SYS_recvfrom, socket, as_long(reply), sizeof *reply) == sizeof *reply;
}

class Descriptor {
 public:
  explicit Descriptor(long number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) system_call(SYS_close, number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  long number() const { return number_; }

 private:
  const long number_;
};

// Frees the slots of dead processes, as far as they can be judged from this pid namespace.
void reap_dead_peers(shm::State& state, const limiter::ProcessIdentity& self) {
  uint32_t slots = state.header.slots_high.load(std::memory_order_acquire);
  if (slots > shm::kMaxSlots) slots = shm::kMaxSlots;
  for (uint32_t index = 0; index < slots; index++) {
    const shm::Slot& slot = state.slots[index];
    const uint32_t owner = slot.owner.load(std::memory_order_acquire);
    if (shm::slot_state(owner) == shm::kSlotFree) continue;
    if (limiter::is_nearly_reaped(slot, owner)) limiter::reap_slot(state, index, shm::slot_generation(owner));
    const uint32_t pid = shm::slot_pid(slot, owner);
    if (pid == 0 || shm::slot_value(slot.pid_namespace, owner) != self.pid_namespace) continue;
    if (process_is_dead(pid, shm::slot_value(slot.start_time, owner))) {
      limiter::reap_slot(state, index, shm::slot_generation(owner));
    }
  }
}

// An exec keeps the process but ends all that it had on the GPU: what its former image held is freed. Not if
// the image is this one, and another copy of this library lives in it (in a namespace of dlmopen), which has
// mapped `state` too.
void reap_former_image(const char* directory, shm::State& state, const limiter::ProcessIdentity& self) {
  uint32_t slots = state.header.slots_high.load(std::memory_order_acquire);
  if (slots > shm::kMaxSlots) slots = shm::kMaxSlots;
  for (uint32_t index = 0; index < slots; index++) {
    const shm::Slot& slot = state.slots[index];
    const uint32_t owner = slot.owner.load(std::memory_order_acquire);
    if (shm::slot_state(owner) != shm::kSlotLive || shm::slot_pid(slot, owner) != self.pid) continue;
    if (shm::slot_value(slot.pid_namespace, owner) != self.pid_namespace) continue;
    if (shm::slot_value(slot.start_time, owner) != self.start_time) continue;
    char path[kPathBytes];
    if (!join(directory, "/state", path) || count_mappings(path) != 1) return;
    limiter::reap_slot(state, index, shm::slot_generation(owner));
  }
}

bool attach_one(const char* directory, void* context) {
  auto* attaching = static_cast<Attaching*>(context);
  Session* session = attaching->session;
  if (session->slice_count == kMaxSlices) {
    return refuse(attaching, directory, "one too many for one process", "give it at most 16");
  }
  AttachedSlice slice = {};
  shm::AttachResult result = map_limits(directory, &slice.limits);
  if (result == shm::AttachResult::kReady) result = shm::attach_state(directory, &slice.state);
  if (result != shm::AttachResult::kReady) {
    return refuse(attaching, directory, shm::describe(result), what_to_do_about(result));
  }
  // Copied once, then checked: the broker could not change these, but the file may be damaged.
  const uint32_t gpus = slice.limits->header.gpu_count;
  if (gpus < 1 || gpus > shm::kMaxGpus) {
    return refuse(attaching, directory, "its number of GPUs is out of range", "prepare it again");
  }
  slice.gpu_count = static_cast<int>(gpus);
  memcpy(slice.id, slice.limits->header.slice_id, sizeof slice.id - 1);
  if ((slice.limits->header.flags.load(std::memory_order_relaxed) & shm::kDraining) != 0) {
    return refuse(attaching, directory, "it is being released", "start the program in another slice");
  }
  for (int gpu = 0; gpu < slice.gpu_count; gpu++) {
    if (has_gpu(*session, slice.limits->gpus[gpu].uuid)) {
      return refuse(attaching, directory, "a GPU of it is in another slice of this process too",
                    "give the process one slice of each GPU");
    }
  }
  reap_former_image(directory, *slice.state, attaching->self);
  const Descriptor broker(connect_to_broker(directory, attaching->broker_deadline_ns));
  if (!limiter::take_slot(*slice.state, attaching->self, &slice.slot)) {
    reap_dead_peers(*slice.state, attaching->self);
    if (!limiter::take_slot(*slice.state, attaching->self, &slice.slot)) {
      return refuse(attaching, directory, "all its 2048 process slots are taken",
                    "end some of its processes");
    }
  }
  shm::AttachReply reply = {};
  if (!ask_broker(broker.number(), slice.slot, attaching->broker_deadline_ns, &reply)) {
    reap_dead_peers(*slice.state, attaching->self);
  } else if (reply.status != shm::kAttached) {
    limiter::reap_slot(*slice.state, slice.slot.slot, slice.slot.generation);
    return refuse(attaching, directory,
                  reply.status == shm::kAttachDraining       ? "the broker is releasing it"
                  : reply.status == shm::kAttachWrongVersion ? "the broker is of another cuslice version"
                                                             : "the broker refused this process",
                  "cuslicectl ls shows its state");
  }
  session->slices[session->slice_count++] = slice;
  return true;
}

}  // namespace

Membership attach_slices(Session* session) {
  *session = {};
  Attaching attaching = {session, {}, now_ns() + kBrokerDeadlineNs, false};
  identify_self(&attaching.self);
  const Membership found = each_slice_directory(&attach_one, &attaching, &session->in_container);
  if (found != Membership::kAttached) return found;
  if (!attaching.failed) return Membership::kAttached;
  // What was taken in other slices must not stay charged to a process that uses none of them.
  for (int i = 0; i < session->slice_count; i++) {
    AttachedSlice& slice = session->slices[i];
    limiter::reap_slot(*slice.state, slice.slot.slot, slice.slot.generation);
  }
  session->slice_count = 0;
  return Membership::kClosed;
}

}  // namespace hook
