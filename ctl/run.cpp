// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "broker/bypass.h"
#include "broker/unique_fd.h"
#include "ctl/broker_process.h"
#include "ctl/commands.h"
#include "ctl/visible_devices.h"

namespace ctl {
namespace {

constexpr int kCannotExecute = 126;
constexpr int kNotFound = 127;

// Where a container's slices are mounted: whoever sees this is in one.
constexpr char kMountedSlices[] = "/run/cuslice/slice";

bool inside_a_slice() {
  struct stat mounted;
  return getenv("CUSLICE_SLICE") != nullptr || stat(kMountedSlices, &mounted) == 0;
}

std::string default_name(const std::string& command) {
  std::string name = command.substr(command.rfind('/') + 1).substr(0, 40);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !isalnum(c) && c != '_' && c != '-'; }, '_');
  return (name.empty() ? "run" : name) + "-" + std::to_string(getpid());
}

Status find_libraries(const std::string& lib_dir, std::string* preload) {
  const std::string directory = lib_dir.empty() ? program_directory() + "/../lib" : lib_dir;
  char* const resolved = realpath(directory.c_str(), nullptr);
  const std::string absolute = resolved != nullptr ? resolved : directory;
  free(resolved);
  if (absolute.find_first_of(" :") != std::string::npos) {
    return broker::fail(Failure::kInvalid, absolute +
                                               ": the loader splits preloaded paths at blanks and colons; "
                                               "use --lib-dir with a path that has none");
  }
  for (const char* name : {"libcuslice-cuda.so", "libcuslice-nvml.so"}) {
    const std::string path = absolute + "/" + name;
    if (access(path.c_str(), R_OK) != 0) {
      return broker::fail(Failure::kSystem, path + ": " + strerror(errno) + "; use --lib-dir");
    }
    *preload += (preload->empty() ? "" : ":") + path;
  }
  return {};
}

// All GPUs of the node in the slice: nothing to hide. Else the command sees those of the slice only; of the
// others it would get no memory.
bool has_every_gpu(Client& client, const v1::Slice& slice) {
  v1::Node node;
  return client.get_node(&node).ok() && node.gpus_size() == slice.gpus_size();
}

void set_environment(const v1::Slice& slice, std::string preload, bool hide_others) {
  if (const char* before = getenv("LD_PRELOAD"); before != nullptr && before[0] != 0) {
    preload += std::string(":") + before;
  }
  setenv("LD_PRELOAD", preload.c_str(), 1);
  setenv("CUSLICE_SLICE", slice.directory().c_str(), 1);
  if (!hide_others) return;
  std::string visible;
  for (const v1::SliceGpu& gpu : slice.gpus()) visible += (visible.empty() ? "" : ",") + gpu.uuid();
  setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
}

// Runs the command to its end, as if it had been run without us: what is sent to us is sent on.
class Foreground {
 public:
  Foreground() {
    sigemptyset(&passed_);
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT}) {
      sigaddset(&passed_, signal);
    }
    sigset_t blocked = passed_;
    sigaddset(&blocked, SIGCHLD);
    sigprocmask(SIG_BLOCK, &blocked, &before_);
    signals_.reset(signalfd(-1, &blocked, SFD_CLOEXEC));
  }

  int run(const std::vector<std::string>& command) {
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);

    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &before_);
    pid_t pid = 0;
    const int error = posix_spawnp(&pid, arguments[0], nullptr, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
      std::cerr << "cuslicectl: error: cannot run " << command[0] << ": " << strerror(error) << "\n";
      return error == ENOENT ? kNotFound : kCannotExecute;
    }
    return wait(pid);
  }

 private:
  int wait(pid_t pid) {
    for (;;) {
      int status = 0;
      const pid_t ended = waitpid(pid, &status, WNOHANG);
      if (ended == pid) return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      // Not ours any more: its pid may be another's by now, so nothing is sent to it.
      if (ended < 0 && errno != EINTR) {
        return report(broker::fail(
            Failure::kSystem, std::string("the command has ended, its status is lost: ") + strerror(errno)));
      }
      signalfd_siginfo signal = {};
      if (read(signals_.get(), &signal, sizeof signal) != sizeof signal || signal.ssi_signo == SIGCHLD)
        continue;
      // A terminal signals the whole foreground group: the command has it already.
      if (signal.ssi_code != SI_KERNEL) kill(pid, static_cast<int>(signal.ssi_signo));
    }
  }

  sigset_t passed_;
  sigset_t before_;
  broker::UniqueFd signals_;
};

// As named on the command line; else the one that CUDA_VISIBLE_DEVICES puts first; else any, which is "".
Status choose_gpus(const broker::RunDirectory& directory, const RunOptions& options,
                   std::vector<std::string>* gpus) {
  *gpus = options.gpus;
  if (!gpus->empty()) return {};
  gpus->emplace_back();
  const char* const visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return {};
  v1::Node node;
  const Status status =
      call_with_broker(directory, [&node](Client& client) { return client.get_node(&node); });
  return status.ok() ? first_visible_gpu(visible, node, &gpus->front()) : status;
}

v1::PrepareSliceRequest request_for(const RunOptions& options, const std::vector<std::string>& gpus) {
  v1::PrepareSliceRequest request;
  request.set_id(options.name.empty() ? default_name(options.command[0]) : options.name);
  request.set_owner_pid(static_cast<uint32_t>(getpid()));
  const SliceOptions& slice = options.slice;
  request.set_compute(slice.compute_percent.value_or(0));
  request.set_compute_limit(slice.compute_limit_percent.value_or(0));
  request.set_priority(slice.priority.value_or(false));
  if (slice.bypass) request.set_bypass(broker::bypass_policy(*slice.bypass));
  for (const std::string& gpu : gpus) {
    v1::GpuWish* const wish = request.add_gpus();
    wish->set_gpu(gpu);
    if (!slice.memory) continue;
    if (slice.memory->bytes != 0) {
      wish->mutable_memory()->set_bytes(slice.memory->bytes);
    } else {
      wish->mutable_memory()->set_percent(slice.memory->percent);
    }
  }
  return request;
}

}  // namespace

int run(const broker::RunDirectory& directory, const RunOptions& options) {
  if (inside_a_slice()) {
    return report(broker::fail(Failure::kSystem, "this is inside a slice already; slices can't be nested"));
  }
  std::string preload;
  if (Status status = find_libraries(options.lib_dir, &preload); !status.ok()) return report(status);

  // Blocked before the slice is there: a signal from now on ends the command, not us with the slice left
  // behind.
  Foreground foreground;
  std::vector<std::string> gpus;
  if (Status status = choose_gpus(directory, options, &gpus); !status.ok()) return report(status);
  const v1::PrepareSliceRequest request = request_for(options, gpus);
  v1::Slice slice;
  const Status prepared =
      call_with_broker(directory, [&](Client& client) { return client.prepare(request, &slice); });
  if (!prepared.ok()) return report(prepared);
  Client client(directory);
  set_environment(slice, preload, !has_every_gpu(client, slice));
  const int exit_status = foreground.run(options.command);

  v1::ReleaseSliceResponse released;
  if (Client(directory).release(request.id(), &released).ok() && released.draining_pids_size() > 0) {
    std::cerr << "cuslicectl: slice " << request.id() << " stays until its last "
              << released.draining_pids_size() << " processes have ended\n";
  }
  return exit_status;
}

}  // namespace ctl
