// SPDX-License-Identifier: Apache-2.0
//
// A process in a slice as the broker sees one, without CUDA and without a driver: takes a slot, attaches,
// reserves memory, and launches on a GPU that is one word in a shared file (the time at which it is free
// again).
//
//   fake_tenant SLICE [--hold BYTES] [--unanswered BYTES] [--attach 0] [--gpu FILE --kernel-us N --seconds S]
//
// Prints "attached SLOT", then (with --gpu) at its end "busy NS", the GPU time that it got, and one line
// "turn GRANTED_NS FIRST_NS DRAINED_NS" per turn. Without --gpu it holds what it has until it is killed.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "broker/clock.h"
#include "broker/futex.h"
#include "broker/process.h"
#include "limiter/ledger.h"
#include "shm/segment.h"

namespace {

using broker::now_ns;

// Launches are queued this far ahead of the GPU where nobody asks for less.
constexpr uint64_t kOpenRunAheadNs = 5'000'000;

struct Turn {
  uint64_t granted_ns, first_ns, drained_ns;
};

void die(const std::string& what) {
  fprintf(stderr, "fake_tenant: %s: %s\n", what.c_str(), strerror(errno));
  exit(1);
}

void sleep_until(uint64_t time_ns) {
  const timespec time = {static_cast<time_t>(time_ns / 1'000'000'000),
                         static_cast<long>(time_ns % 1'000'000'000)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
}

class Tenant {
 public:
  Tenant(const std::string& directory, bool attach_to_broker) {
    if (shm::attach_limits(directory.c_str(), &limits_) != shm::AttachResult::kReady)
      die(directory + "/limits");
    if (shm::attach_state(directory.c_str(), &state_) != shm::AttachResult::kReady) die(directory + "/state");
    struct stat ns;
    stat("/proc/self/ns/pid", &ns);
    const limiter::ProcessIdentity self = {static_cast<uint32_t>(getpid()), ns.st_ino,
                                           broker::process_start_time(getpid()), "fake_tenant"};
    if (!limiter::take_slot(*state_, self, &slot_)) die("no slot");
    if (attach_to_broker) attach(directory);
  }

  uint32_t slot() const { return slot_.slot; }

  bool hold(uint64_t bytes) {
    limiter::begin_call(*state_, 0, slot_);
    const bool granted =
        limiter::reserve(*limits_, *state_, 0, slot_, bytes) == limiter::Reservation::kGranted;
    limiter::end_call(*state_, 0, slot_);
    return granted;
  }

  // Holds, as far as the ledger knows, and waits with the driver's answer for SIGUSR1.
  bool hold_unanswered(uint64_t bytes) {
    limiter::begin_call(*state_, 0, slot_);
    return limiter::reserve(*limits_, *state_, 0, slot_, bytes) == limiter::Reservation::kGranted;
  }
  void await_answer() {
    sigset_t answer;
    sigemptyset(&answer);
    sigaddset(&answer, SIGUSR1);
    int number;
    sigwait(&answer, &number);
    limiter::end_call(*state_, 0, slot_);
  }

  bool make_context() {
    limiter::begin_call(*state_, 0, slot_);
    const auto reserved = limiter::reserve_context(*limits_, *state_, 0, slot_);
    limiter::end_call(*state_, 0, slot_);
    if (reserved != limiter::Reservation::kGranted) return false;
    work().contexts.store(1);
    ring();
    return true;
  }

  // Saturates the GPU with kernels of one length until `end_ns`.
  void work_until(uint64_t end_ns, std::atomic<uint64_t>& gpu_free_ns, uint64_t kernel_ns) {
    while (now_ns() < end_ns) {
      const uint32_t grant = gate().grant.load();
      const uint32_t mode = gate().mode.load();
      if (mode == shm::kTurn && now_ns() < gate().deadline_ns.load()) {
        take_turn(end_ns, gpu_free_ns, kernel_ns);
      } else if (mode == shm::kOpen) {
        launch(gpu_free_ns, kernel_ns);
        sleep_until(last_end_ns_ - std::min(last_end_ns_, kOpenRunAheadNs));
      } else {
        await_grant(grant);
      }
    }
    work().contexts.store(0);
    ring();
  }

  uint64_t busy_ns() const { return busy_ns_; }
  const std::vector<Turn>& turns() const { return turns_; }

 private:
  const shm::Gate& gate() const { return limits_->gate; }
  shm::Work& work() { return state_->work[slot_.slot]; }

  void attach(const std::string& directory) {
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const int folder = open(directory.c_str(), O_PATH | O_CLOEXEC);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/attach", folder);
    // Nobody there: a slice without a broker, found by the next one.
    if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      const shm::AttachRequest request = {shm::kVersion, slot_.slot, slot_.generation, 0};
      shm::AttachReply reply = {};
      send(socket, &request, sizeof request, 0);
      if (recv(socket, &reply, sizeof reply, 0) != sizeof reply || reply.status != shm::kAttached)
        die("attach");
    }
    close(socket);
    close(folder);
  }

  void ring() {
    state_->doorbell.rings.fetch_add(1);
    broker::futex_wake(state_->doorbell.rings, 1);
  }

  void launch(std::atomic<uint64_t>& gpu_free_ns, uint64_t kernel_ns) {
    uint64_t free_ns = gpu_free_ns.load();
    uint64_t start_ns;
    do {
      start_ns = std::max(now_ns(), free_ns);
    } while (!gpu_free_ns.compare_exchange_weak(free_ns, start_ns + kernel_ns));
    last_start_ns_ = start_ns;
    last_end_ns_ = start_ns + kernel_ns;
    busy_ns_ += kernel_ns;
  }

  void take_turn(uint64_t end_ns, std::atomic<uint64_t>& gpu_free_ns, uint64_t kernel_ns) {
    const uint32_t turn = gate().turn.load();
    Turn log = {now_ns(), 0, 0};
    last_end_ns_ = 0;
    work().active_at_ns.store(log.granted_ns);
    work().outstanding.store(1);
    for (;;) {
      const uint64_t now = now_ns();
      const uint64_t ready_ns = std::max(now, last_end_ns_);
      if (gate().mode.load() != shm::kTurn || gate().turn.load() != turn ||
          ready_ns >= gate().deadline_ns.load() || now >= end_ns) {
        break;
      }
      if (last_end_ns_ > now + gate().run_ahead_ns.load()) {
        sleep_until(last_end_ns_ - gate().run_ahead_ns.load());
        continue;
      }
      launch(gpu_free_ns, kernel_ns);
      work().launches.fetch_add(1);
      if (log.first_ns == 0) log.first_ns = last_start_ns_;
    }
    const uint64_t drained_ns = std::max(last_end_ns_, now_ns());
    work().drain_expected_ns.store(drained_ns);
    work().closing_turn.store(turn);
    work().waiting.store(1);
    ring();
    sleep_until(drained_ns);
    log.drained_ns = now_ns();
    work().occupied_ns.store(busy_ns_);
    work().drained_ns.store(log.drained_ns);
    work().active_ns.fetch_add(log.drained_ns - log.granted_ns);
    work().outstanding.store(0);
    ring();
    if (log.first_ns != 0) turns_.push_back(log);
  }

  void await_grant(uint32_t grant) {
    if (work().waiting.exchange(1) == 0) ring();
    const timespec timeout = {0, 50'000'000};
    syscall(SYS_futex, &gate().grant, FUTEX_WAIT, grant, &timeout, nullptr, 0);
    if (gate().mode.load() != shm::kParked) work().waiting.store(0);
  }

  const shm::Limits* limits_ = nullptr;
  shm::State* state_ = nullptr;
  limiter::SlotRef slot_ = {};
  uint64_t last_start_ns_ = 0;
  uint64_t last_end_ns_ = 0;
  uint64_t busy_ns_ = 0;
  std::vector<Turn> turns_;
};

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_TIMERSLACK, 1'000);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  uint64_t hold_bytes = 0, unanswered_bytes = 0, kernel_us = 1000;
  double seconds = 1;
  bool attach = true;
  std::string gpu_file;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--hold") hold_bytes = strtoull(argv[i + 1], nullptr, 10);
    if (option == "--unanswered") unanswered_bytes = strtoull(argv[i + 1], nullptr, 10);
    if (option == "--gpu") gpu_file = argv[i + 1];
    if (option == "--kernel-us") kernel_us = strtoull(argv[i + 1], nullptr, 10);
    if (option == "--attach") attach = argv[i + 1][0] != '0';
    if (option == "--seconds") seconds = strtod(argv[i + 1], nullptr);
  }
  if (argc < 2) die("usage: fake_tenant SLICE [options]");

  sigset_t answer;
  sigemptyset(&answer);
  sigaddset(&answer, SIGUSR1);
  sigprocmask(SIG_BLOCK, &answer, nullptr);
  Tenant tenant(argv[1], attach);
  if (!tenant.make_context()) die("no room for a context");
  if (hold_bytes != 0 && !tenant.hold(hold_bytes)) die("refused");
  if (unanswered_bytes != 0 && !tenant.hold_unanswered(unanswered_bytes)) die("refused");
  printf("attached %u\n", tenant.slot());
  fflush(stdout);
  if (unanswered_bytes != 0) tenant.await_answer();
  if (gpu_file.empty()) {
    for (;;) pause();
  }

  const int file = open(gpu_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, 4096) != 0) die(gpu_file);
  void* const gpu = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (gpu == MAP_FAILED) die(gpu_file);
  tenant.work_until(now_ns() + static_cast<uint64_t>(seconds * 1e9),
                    *static_cast<std::atomic<uint64_t>*>(gpu), kernel_us * 1000);
  printf("busy %llu\n", static_cast<unsigned long long>(tenant.busy_ns()));
  for (const Turn& turn : tenant.turns()) {
    printf("turn %llu %llu %llu\n", static_cast<unsigned long long>(turn.granted_ns),
           static_cast<unsigned long long>(turn.first_ns), static_cast<unsigned long long>(turn.drained_ns));
  }
  return 0;
}
