// SPDX-License-Identifier: Apache-2.0
#include "ctl/broker_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "broker/unique_fd.h"
#include "ctl/commands.h"

namespace ctl {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kStartDeadline(15);
constexpr std::chrono::milliseconds kRetry(20);

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string line, last;
  while (std::getline(file, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

// In its own session, so that a Ctrl-C for the command does not end the arbiter of its neighbours.
Status spawn_broker(const broker::RunDirectory& run, pid_t* pid) {
  const std::string program = program_directory() + "/cusliced";
  std::string path = run.path();
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>("--transient"),
                             const_cast<char*>("--run-dir"), path.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, run.log_file().c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  const int error = posix_spawn(pid, program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return broker::fail(Failure::kSystem, "cannot start " + program + ": " + strerror(error));
  return {};
}

// Until some broker answers. Precondition: the caller holds the start lock.
Status start_broker(const broker::RunDirectory& run) {
  const Clock::time_point deadline = Clock::now() + kStartDeadline;
  pid_t pid = 0;
  while (Clock::now() < deadline) {
    v1::Node node;
    if (Client(run).get_node(&node).ok()) return {};
    if (pid == 0) {
      if (Status status = run.make(); !status.ok()) return status;
      if (Status status = spawn_broker(run, &pid); !status.ok()) return status;
    }
    std::this_thread::sleep_for(kRetry);
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) != pid) continue;
    // One that ends because another still holds the lock is tried again until that one answers or is gone.
    broker::UniqueFd lock;
    if (broker::lock_file(run.lock_file(), false, &lock).ok()) {
      return broker::fail(Failure::kSystem, "the broker ended at its start: " + last_line(run.log_file()));
    }
    pid = 0;
  }
  return broker::fail(Failure::kNoBroker,
                      "no broker answers on " + run.socket() + " after its start; see " + run.log_file());
}

}  // namespace

Status call_with_broker(const broker::RunDirectory& run, const std::function<Status(Client&)>& call) {
  const Clock::time_point deadline = Clock::now() + kStartDeadline;
  for (;;) {
    Client client(run);
    Status called = call(client);
    if (called.failure != Failure::kNoBroker || Clock::now() > deadline) return called;

    if (Status status = run.make(); !status.ok()) return status;
    broker::UniqueFd start_lock;
    if (Status status = broker::lock_file(run.start_lock_file(), true, &start_lock); !status.ok())
      return status;
    if (Status status = start_broker(run); !status.ok()) return status;
  }
}

}  // namespace ctl
