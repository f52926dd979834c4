// SPDX-License-Identifier: Apache-2.0
#include "storm.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "limiter/ledger.h"
#include "shm/segment.h"

namespace stress {

void fail(const std::string& what) {
  printf("%s\n", what.c_str());
  exit(1);
}

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void sleep_until(uint64_t time_ns) {
  const timespec time = {static_cast<time_t>(time_ns / 1'000'000'000),
                         static_cast<long>(time_ns % 1'000'000'000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
  }
}

Options parse(int argc, char** argv, const char* usage) {
  if (argc != 6) {
    fprintf(stderr, "usage: %s\n", usage);
    exit(2);
  }
  Options options = {argv[1], argv[2], argv[3], strtoull(argv[4], nullptr, 10),
                     strtoull(argv[5], nullptr, 10)};
  if (options.amount == 0) fail("the last argument must be a number above 0");
  return options;
}

Tenant::Tenant(const Options& options, uint64_t seed) : report_fd_(memfd_create("report", 0)) {
  if (report_fd_ < 0 || ftruncate(report_fd_, sizeof(Report)) != 0) fail("memfd_create failed");
  void* const shared = mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED, report_fd_, 0);
  if (shared == MAP_FAILED) fail("mmap failed");
  report_ = static_cast<Report*>(shared);

  std::string fd = std::to_string(report_fd_);
  std::string seed_text = std::to_string(seed);
  std::string program = options.tenant;
  char* const arguments[] = {program.data(), fd.data(), seed_text.data(), nullptr};
  std::string preload = "LD_PRELOAD=" + options.preload;
  std::string slice = "CUSLICE_SLICE=" + options.slice;
  std::vector<char*> environment = {preload.data(), slice.data()};
  for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
  environment.push_back(nullptr);
  const int failure = posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environment.data());
  if (failure != 0) fail(program + ": " + strerror(failure));
}

Tenant::~Tenant() {
  if (!reaped_) {
    kill();
    waitpid(pid_, nullptr, 0);
  }
  munmap(report_, sizeof(Report));
  close(report_fd_);
}

bool Tenant::ended() {
  if (!reaped_ && waitpid(pid_, nullptr, WNOHANG) == pid_) reaped_ = true;
  return reaped_;
}

void Tenant::pause() const { ::kill(pid_, SIGUSR1); }
void Tenant::kill() { ::kill(pid_, SIGKILL); }

bool Tenant::wait_until(uint64_t deadline_ns) {
  while (!ended()) {
    if (now_ns() > deadline_ns) return false;
    usleep(200);
  }
  return true;
}

Scene::Scene(const std::string& slice) {
  if (const broker::Status status = broker::Nvml::open(&nvml_); !status.ok()) fail(status.text);
  shm::AttachResult result = shm::attach_limits(slice.c_str(), &limits_);
  if (result == shm::AttachResult::kReady) result = shm::attach_state_read_only(slice.c_str(), &state_);
  if (result != shm::AttachResult::kReady) fail(slice + ": " + shm::describe(result));
  for (const broker::NodeGpu& gpu : nvml_->gpus()) {
    if (std::equal(gpu.uuid.begin(), gpu.uuid.end(), limits_->gpus[0].uuid)) node_gpu_ = gpu.index;
  }
  if (node_gpu_ < 0) fail("the slice's GPU is not on this node");
  others_bytes_ = nvml_->used_bytes(node_gpu_);
}

uint64_t Scene::quota_bytes() const { return limits_->gpus[0].quota_bytes.load(); }
uint64_t Scene::charged_bytes() const { return limiter::usage(*limits_, *state_, 0).used_bytes(); }

uint64_t Scene::used_bytes() const {
  const uint64_t used = nvml_->used_bytes(node_gpu_);
  return used - std::min(used, others_bytes_);
}

bool Scene::lists(pid_t pid) const {
  std::vector<broker::ProcessMemory> processes;
  if (!nvml_->processes(node_gpu_, &processes)) fail("NVML does not list the processes");
  return std::any_of(processes.begin(), processes.end(), [&](const broker::ProcessMemory& process) {
    return process.pid == static_cast<uint32_t>(pid);
  });
}

bool Scene::empty() const {
  for (uint32_t slot = 0; slot < std::min<uint32_t>(state_->header.slots_high, shm::kMaxSlots); ++slot) {
    if (shm::slot_state(state_->slots[slot].owner) != shm::kSlotFree) return false;
  }
  return charged_bytes() == 0 && used_bytes() == 0;
}

uint64_t Scene::error_bytes() const {
  const uint64_t charged = charged_bytes();
  const uint64_t used = used_bytes();
  return charged > used ? charged - used : used - charged;
}

std::string Scene::describe() const {
  std::string text = "charged " + std::to_string(charged_bytes()) + ", in use " +
                     std::to_string(used_bytes()) + ", orphaned " +
                     std::to_string(limits_->gpus[0].orphaned_bytes.load());
  for (uint32_t slot = 0; slot < std::min<uint32_t>(state_->header.slots_high, shm::kMaxSlots); ++slot) {
    const uint32_t owner = state_->slots[slot].owner;
    if (shm::slot_state(owner) == shm::kSlotFree) continue;
    const limiter::SlotUse use = limiter::slot_use(*state_, 0, slot);
    text += "\n  slot " + std::to_string(slot) + ": owner " + std::to_string(owner) + ", host pid " +
            std::to_string(limits_->slots[slot].host_pid.load()) + ", held " +
            std::to_string(use.held_bytes) + ", managed " + std::to_string(use.managed_bytes) + ", pooled " +
            std::to_string(use.pooled_bytes) + ", floor " + std::to_string(use.floor_bytes) + ", overhead " +
            std::to_string(limits_->overhead_bytes[0][slot].load()) + ", calls under way " +
            std::to_string(use.calls & shm::kCallsInFlightMask);
  }
  std::vector<broker::ProcessMemory> processes;
  nvml_->processes(node_gpu_, &processes);
  for (const broker::ProcessMemory& process : processes) {
    text += "\n  the driver lists pid " + std::to_string(process.pid) + " with " +
            std::to_string(process.used_bytes);
  }
  return text;
}

}  // namespace stress
