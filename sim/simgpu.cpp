// SPDX-License-Identifier: Apache-2.0
//
// simgpu: runs a command on a simulated node, and shows what goes on there.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "sim/host_pids.h"
#include "sim/node.h"
#include "sim/node_file.h"
#include "sim/simgpu_show.h"

namespace sim {
namespace {

namespace fs = std::filesystem;

constexpr int kUsageError = 2;
constexpr int kCannotRun = 125;  // as of env(1) and its like: this program's own failure, not the command's

// The drivers that are built, oldest first: between two of them no function was added.
constexpr const char* kDrivers[] = {SIMULATED_DRIVERS};

constexpr uint64_t kHourUs = 3'600'000'000, kTiBInMiB = 1 << 20;  // the most that the options take

struct Options {
  std::string node;
  std::string gpu, driver;
  int count = 0;
  uint64_t time_slice_us = 0, switch_us = 0, kernel_us = 0, context_mib = 0;
  std::vector<std::string> kernels;
};

// Ends the program from wherever, by way of the destructors.
struct Failure {
  int status;
  std::string message;
};

[[noreturn]] void fail(int status, const std::string& message) { throw Failure{status, message}; }

// The settings as asked for, on top of these.
NodeSettings apply(const CLI::App& app, const Options& options, NodeSettings settings) {
  const auto given = [&app](const char* name) { return app.count(name) > 0; };
  if (given("--gpu")) {
    if (options.gpu.size() >= sizeof(settings.gpu)) fail(kUsageError, "no GPU model '" + options.gpu + "'");
    memcpy(settings.gpu, options.gpu.c_str(), options.gpu.size() + 1);
  }
  if (given("--driver") && !parse_driver_version(options.driver.c_str(), &settings.driver_version)) {
    fail(kUsageError, "--driver '" + options.driver + "': give major.minor, as in 13.0");
  }
  if (given("--count")) settings.device_count = options.count;
  if (given("--time-slice-us")) settings.time_slice_ns = options.time_slice_us * 1000;
  if (given("--switch-us")) settings.context_switch_ns = options.switch_us * 1000;
  if (given("--kernel-us")) settings.default_kernel_ns = options.kernel_us * 1000;
  if (given("--context-mib")) settings.context_bytes = options.context_mib << 20;
  return settings;
}

bool equal(const NodeSettings& a, const NodeSettings& b) {
  return a.device_count == b.device_count && strcmp(a.gpu, b.gpu) == 0 &&
         a.driver_version == b.driver_version && a.time_slice_ns == b.time_slice_ns &&
         a.context_switch_ns == b.context_switch_ns && a.context_bytes == b.context_bytes &&
         a.default_kernel_ns == b.default_kernel_ns && a.copy_bytes_per_us == b.copy_bytes_per_us;
}

// Sees to it that the directory holds a node, of these settings as far as they are given. Its driver's
// version.
uint32_t prepare_node(const CLI::App& app, const Options& options, const std::string& directory) {
  std::string error;
  NodeFile* file = open_node(directory, &error);
  if (!file && error.empty()) {
    NodeSettings settings;
    if (!settings_from_environment(&settings, &error)) fail(kUsageError, error);
    settings = apply(app, options, settings);
    if (!check_settings(settings, &error)) fail(kUsageError, error);
    file = open_or_create_node(directory, settings, &error);
  }
  if (!file) fail(kCannotRun, error);
  // Another may have made it first.
  const bool as_asked = equal(apply(app, options, file->settings), file->settings);
  const uint32_t driver_version = file->settings.driver_version;
  unmap_node(file);
  if (!as_asked) {
    fail(kUsageError, "the node in " + directory + " has other settings (`simgpu show " + directory +
                          "`): leave the options out to take them, or name another directory");
  }
  return driver_version;
}

// A directory of this run's own; removed with all that is in it when this goes.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const char* asked = getenv("TMPDIR");
    const std::string base = asked && *asked ? asked : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    path_ = base + "/simgpu.XXXXXX";
    // Others have to reach the node too: the command may become another user.
    if (!mkdtemp(path_.data()) || chmod(path_.c_str(), 0755) != 0)
      fail(kCannotRun, "cannot make a directory in " + base + ": " + strerror(errno));
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The folder of the driver that has the functions of that version and none that is newer.
std::string driver_directory(uint32_t driver_version) {
  const char* newest = kDrivers[0];
  for (const char* const driver : kDrivers) {
    uint32_t version = 0;
    if (parse_driver_version(driver, &version) && version <= driver_version) newest = driver;
  }
  return std::string("driver-") + newest;
}

// Where the loader is to look for the libraries, as in LD_LIBRARY_PATH.
std::string library_path(uint32_t driver_version) {
  const fs::path nvml = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" / "sim";
  const fs::path cuda = nvml / driver_directory(driver_version);
  for (const fs::path& library : {cuda / "libcuda.so.1", nvml / "libnvidia-ml.so.1"}) {
    // Without it the command would run on the machine's own driver, if it has one, and say that all is well.
    if (!fs::exists(library)) fail(kCannotRun, "no " + library.string() + ": build it first");
  }
  return cuda.string() + ":" + nvml.string();
}

void check_kernels(const std::vector<std::string>& kernels) {
  for (const std::string& kernel : kernels) {
    const size_t at = kernel.rfind('=');
    const bool is_number = at != std::string::npos && at + 1 < kernel.size() &&
                           kernel.find_first_not_of("0123456789.", at + 1) == std::string::npos;
    if (at == 0 || !is_number || kernel.find(',') != std::string::npos) {
      fail(kUsageError,
           "--kernel '" + kernel + "': give part of a kernel's name and microseconds, as in gemm=250");
    }
  }
}

void prepend(const char* variable, const std::string& value, char separator) {
  const char* had = getenv(variable);
  const std::string all = had && *had ? value + separator + had : value;
  setenv(variable, all.c_str(), 1);
}

void set_environment(const Options& options, const std::string& directory, uint32_t driver_version) {
  setenv("SIMGPU_NODE", directory.c_str(), 1);
  prepend("LD_LIBRARY_PATH", library_path(driver_version), ':');
  // A node has its own /run: brokers of two nodes on one machine do not meet, and slices go when the node
  // does.
  setenv("CUSLICE_RUN_DIR", (directory + "/run").c_str(), 0);
  std::string kernels;
  for (const std::string& kernel : options.kernels) kernels += (kernels.empty() ? "" : ",") + kernel;
  if (!kernels.empty()) prepend("SIMGPU_KERNELS", kernels, ',');
}

// Runs the command to its end; its exit status, or 128 + the signal that ended it.
int run(std::vector<std::string> command) {
  // What ends or pokes us is meant for the command. From the terminal it got it itself, as part of the
  // foreground.
  signal(SIGCHLD, SIG_DFL);  // ignored, as a parent may leave it, it would tell of no end
  sigset_t passed_on, before;
  sigemptyset(&passed_on);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD})
    sigaddset(&passed_on, signal);
  sigprocmask(SIG_BLOCK, &passed_on, &before);

  const pid_t child = fork();
  if (child < 0) fail(kCannotRun, std::string("cannot start a process: ") + strerror(errno));
  if (child == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    fprintf(stderr, "simgpu: cannot run %s: %s\n", arguments[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
  }
  for (;;) {
    siginfo_t info;
    const int signal = sigwaitinfo(&passed_on, &info);
    if (signal != SIGCHLD) {
      if (signal > 0 && info.si_code != SI_KERNEL) kill(child, signal);
      continue;
    }
    int status;
    if (waitpid(child, &status, WNOHANG) == child) {
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
  }
}

// Tells processes in containers their pids here, as long as this lives. Several simgpu on one node: one does.
std::unique_ptr<HostPids> serve_pids(const std::string& directory) {
  std::string error;
  std::unique_ptr<HostPids> server = HostPids::serve(directory, &error);
  if (!error.empty()) fprintf(stderr, "simgpu: %s; containers will show their own pids\n", error.c_str());
  return server;
}

// The directory that was asked for, with a node in it.
std::string make_node(const CLI::App& app, const Options& options, uint32_t* driver_version) {
  std::error_code error;
  fs::create_directories(options.node, error);
  if (error) fail(kCannotRun, "cannot make the directory " + options.node + ": " + error.message());
  std::string directory = fs::canonical(options.node);
  *driver_version = prepare_node(app, options, directory);
  return directory;
}

// Until it is told to end.
int serve(const CLI::App& app, const Options& options) {
  if (options.node.empty()) fail(kUsageError, "serve needs --node DIR");
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) sigaddset(&ends, signal);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  uint32_t driver_version;
  const std::string directory = make_node(app, options, &driver_version);
  std::string error;
  const std::unique_ptr<HostPids> server = HostPids::serve(directory, &error);
  if (!server) fail(kCannotRun, error.empty() ? "another serves " + directory : error);
  printf("serving %s\n", directory.c_str());
  fflush(stdout);
  sigwaitinfo(&ends, nullptr);
  return 0;
}

struct FaultOptions {
  std::string directory, faults;
  int device = 0;
  uint32_t xid = 0, pid = 0;
};

int inject(const FaultOptions& options) {
  std::string error;
  NodeFile* file = open_node(options.directory, &error);
  if (!file) fail(1, error.empty() ? "there is no node in " + options.directory : error);
  const int count = file->settings.device_count;
  unmap_node(file);
  if (options.device < 0 || options.device >= count) {
    fail(kUsageError, "--gpu " + std::to_string(options.device) + ": the node has " + std::to_string(count));
  }
  Faults faults;
  if (!options.faults.empty() && !parse_faults(options.faults, &faults, &error)) fail(kUsageError, error);
  if (options.faults.empty() && options.xid == 0) fail(kUsageError, "name a fault, or --xid");
  setenv("SIMGPU_NODE", options.directory.c_str(), 1);
  Node& node = Node::get();
  if (!options.faults.empty()) node.set_faults(options.device, faults);
  if (options.xid != 0 && !node.report_xid(options.device, options.xid, options.pid)) {
    fail(1,
         "process " + std::to_string(options.pid) + " has nothing on GPU " + std::to_string(options.device));
  }
  return 0;
}

int run_on_node(const CLI::App& app, const Options& options, const std::vector<std::string>& command) {
  check_kernels(options.kernels);
  if (options.node.empty()) {
    const TemporaryDirectory directory;
    const uint32_t driver_version = prepare_node(app, options, directory.path());
    set_environment(options, directory.path(), driver_version);
    const std::unique_ptr<HostPids> server = serve_pids(directory.path());
    return run(command);
  }
  uint32_t driver_version;
  const std::string directory = make_node(app, options, &driver_version);
  set_environment(options, directory, driver_version);
  const std::unique_ptr<HostPids> server = serve_pids(directory);
  return run(command);
}

}  // namespace
}  // namespace sim

int main(int argc, char** argv) {
  using namespace sim;
  Options options;
  CLI::App app("Runs a command on a simulated node of GPUs. What is measured there is simulated.", "simgpu");
  app.footer("The command comes after `--`: simgpu --gpu h200 --count 2 -- python3 train.py");
  app.add_option("--node", options.node,
                 "Directory of a node to share; made if absent. Default: one of its own");
  app.add_option("--gpu", options.gpu, "Model (see simgpu list). Default: h100");
  app.add_option("--count", options.count, "How many GPUs. Default: 1");
  app.add_option("--driver", options.driver, "CUDA version of the driver. Default: 13.0");
  app.add_option("--time-slice-us", options.time_slice_us, "A context's turn on the GPU. Default: 2000")
      ->check(CLI::Range(kHourUs));
  app.add_option("--switch-us", options.switch_us, "Time lost at a change of context. Default: 100")
      ->check(CLI::Range(kHourUs));
  app.add_option("--context-mib", options.context_mib, "Memory that a context takes. Default: 500")
      ->check(CLI::Range(kTiBInMiB));
  app.add_option("--kernel-us", options.kernel_us, "A kernel of which nothing else is known. Default: 10")
      ->check(CLI::Range(kHourUs));
  app.add_option("--kernel", options.kernels, "NAME=US: kernels with NAME in their name. May be repeated")
      ->allow_extra_args(false);
  CLI::App* list = app.add_subcommand("list", "Show the GPU models");
  CLI::App* show = app.add_subcommand("show", "Show what goes on in a node");
  std::string shown;
  bool as_json = false;
  show->add_option("dir", shown, "The node's directory")->required();
  show->add_flag("--json", as_json, "As one JSON object, with exact counters");
  CLI::App* server =
      app.add_subcommand("serve", "Tell processes in containers their pids here; needs --node");
  CLI::App* fault = app.add_subcommand("fault", "Set faults of a device, or report an error of it");
  FaultOptions faults;
  fault->add_option("dir", faults.directory, "The node's directory")->required();
  fault->add_option("faults", faults.faults,
                    "none, or some of lost, no-memory-info, nvml-delay-us=N, refuse-every=N, refuse-at=N");
  fault->add_option("--gpu", faults.device, "Which device. Default: 0");
  fault->add_option("--xid", faults.xid, "An error, as NVML tells it");
  fault->add_option("--pid", faults.pid, "Whose work the error ends. Default: nobody's");
  app.require_subcommand(0, 1);

  // The command's own options are none of ours, so it is taken off before anything is parsed.
  char** const end = argv + argc;
  char** const dashes =
      std::find_if(argv, end, [](const char* argument) { return strcmp(argument, "--") == 0; });
  const std::vector<std::string> command(dashes == end ? end : dashes + 1, end);
  try {
    app.parse(static_cast<int>(dashes - argv), argv);
    if (!list->parsed() && !show->parsed() && !server->parsed() && !fault->parsed()) {
      if (command.empty()) fail(kUsageError, "give the command to run after `--` (see simgpu --help)");
      return run_on_node(app, options, command);
    }
    if (!command.empty()) fail(kUsageError, "list, show, serve and fault run no command");
    if (server->parsed()) return serve(app, options);
    if (fault->parsed()) return inject(faults);
    std::string error;
    if (list->parsed()) {
      list_models();
    } else if (!show_node(shown, as_json, &error)) {
      fail(1, error);
    }
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  } catch (const Failure& failure) {
    fprintf(stderr, "simgpu: %s\n", failure.message.c_str());
    return failure.status;
  } catch (const std::exception& error) {
    fprintf(stderr, "simgpu: %s\n", error.what());
    return kCannotRun;
  }
}
