// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "broker/nvml.h"
#include "broker/process.h"
#include "ctl/client.h"
#include "ctl/commands.h"
#include "ctl/driver_file.h"
#include "ctl/snapshot.h"

namespace ctl {
namespace {

using nlohmann::json;

struct Check {
  std::string what;
  enum class Verdict : unsigned char { kOk, kFail, kSkipped } verdict;
  std::string detail;
  std::string advice;  // on kFail
};
using Verdict = Check::Verdict;

// What `probe` reports, what it is called here, and what to do when it fails.
struct ProbeCheck {
  const char* key;
  const char* what;
  const char* advice;
};

constexpr char kPreloadAdvice[] =
    "the library was not preloaded: is the program static, setuid, or LD_PRELOAD cleared?";
constexpr std::array<ProbeCheck, 12> kProbeChecks = {{
    {"dlopen", "way in: dlopen(\"libcuda.so.1\")", kPreloadAdvice},
    {"dlsym", "way in: dlsym(RTLD_DEFAULT)", kPreloadAdvice},
    {"dlopen_path", "way in: dlopen of the driver's path", kPreloadAdvice},
    {"cuGetProcAddress", "way in: cuGetProcAddress", kPreloadAdvice},
    {"nvml", "way in: dlopen(\"libnvidia-ml.so.1\")", kPreloadAdvice},
    {"attach", "the process attaches to its slice", "see what it printed on stderr"},
    {"context", "a context can be made", "is the GPU in use exclusively, or out of memory?"},
    {"total", "limit seen: cuDeviceTotalMem", "report this with the driver's version"},
    {"mem_get_info", "limit seen: cuMemGetInfo", "report this with the driver's version"},
    {"nvml_memory", "limit seen: NVML", "report this with the driver's version"},
    {"refusal", "memory is refused at the quota", "report this with the driver's version"},
    {"share", "share seen: launches are held to the limit", "is the broker alive? See its log"},
}};

Check check_driver(std::string* path) {
  void* const library = open_driver(path);
  if (library == nullptr) {
    return {"driver", Verdict::kFail, dlerror(),
            "install NVIDIA's driver, or add its folder to the loader's path"};
  }
  int version = 0;
  const auto driver_version =
      reinterpret_cast<decltype(&::cuDriverGetVersion)>(dlsym(library, "cuDriverGetVersion"));
  if (driver_version == nullptr || driver_version(&version) != CUDA_SUCCESS) {
    return {"driver", Verdict::kFail, *path + " does not tell its version", "reinstall NVIDIA's driver"};
  }
  return {"driver", Verdict::kOk,
          *path + ", CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10), ""};
}

Check check_nvml(std::unique_ptr<broker::Nvml>* nvml) {
  if (const Status status = broker::Nvml::open(nvml); !status.ok()) {
    return {"NVML", Verdict::kFail, status.text, "install the driver's libnvidia-ml.so.1"};
  }
  std::string gpus;
  for (const broker::NodeGpu& gpu : (*nvml)->gpus()) {
    gpus += (gpus.empty() ? "" : "; ") + std::to_string(gpu.index) + ": " + gpu.name + ", " +
            broker::format_bytes(gpu.device_bytes);
  }
  return {"NVML", Verdict::kOk, "driver " + (*nvml)->driver_version() + ", GPU " + gpus, ""};
}

Check check_broker(const broker::RunDirectory& run) {
  v1::Node node;
  const Status asked = Client(run).get_node(&node);
  if (asked.failure == Failure::kNoBroker) {
    return {"broker", Verdict::kOk, "none on " + run.socket() + "; `cuslicectl run` starts its own", ""};
  }
  if (!asked.ok()) return {"broker", Verdict::kFail, asked.text, "until then no slice can be made here"};
  return {"broker", Verdict::kOk,
          "process " + std::to_string(node.broker_pid()) + ", version " + node.broker_version() + " on " +
              run.socket() + (node.transient() ? ", ends with its last slice" : ""),
          ""};
}

// Processes on a GPU that are in no slice: what they use, no slice can count on.
Check check_unmanaged(const broker::RunDirectory& run) {
  constexpr char kWhat[] = "processes outside of slices";
  v1::Node node;
  if (!Client(run).get_node(&node).ok()) return {kWhat, Verdict::kSkipped, "only a broker can tell", ""};
  std::string found;
  for (const v1::Gpu& gpu : node.gpus()) {
    for (const v1::UnmanagedProcess& process : gpu.unmanaged()) {
      found += (found.empty() ? "" : "; ") + std::to_string(process.pid()) + " (" +
               printable(process.name()) + ") holds " + broker::format_bytes(process.used_bytes()) +
               " on GPU " + std::to_string(gpu.index());
    }
  }
  return {kWhat, Verdict::kOk, found.empty() ? "none" : found, ""};
}

// Runs this program with arguments to its end.
int run_self(std::vector<std::string> arguments, std::string* output, std::string* errors) {
  arguments.insert(arguments.begin(), program_directory() + "/cuslicectl");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  int out[2], err[2];
  if (pipe(out) != 0 || pipe(err) != 0) return -1;
  const pid_t pid = fork();
  if (pid < 0) return -1;
  if (pid == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const int fd : {out[0], out[1], err[0], err[1]}) close(fd);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  // One after the other: what goes to stderr is a few lines and fits its pipe.
  const auto drain = [](int fd, std::string* text) {
    std::array<char, 4096> buffer;
    for (ssize_t got; (got = read(fd, buffer.data(), buffer.size())) > 0;) text->append(buffer.data(), got);
    close(fd);
  };
  drain(out[0], output);
  drain(err[0], errors);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// false: some failed.
bool add_probe_checks(const json& seen, std::vector<Check>* checks) {
  bool all_ok = true;
  for (const ProbeCheck& check : kProbeChecks) {
    if (!seen.contains(check.key)) continue;
    const json& result = seen[check.key];
    const bool ok = result.value("ok", false);
    all_ok &= ok;
    checks->push_back(
        {check.what, ok ? Verdict::kOk : Verdict::kFail, result.value("detail", ""), check.advice});
  }
  return all_ok;
}

void check_slice(const broker::RunDirectory& run, const std::string& lib_dir, const std::string& driver_path,
                 std::vector<Check>* checks) {
  std::vector<std::string> arguments = {
      "--run-dir", run.path(), "run",       "--name", "doctor-" + std::to_string(getpid()),
      "--memory",  "1GiB",     "--compute", "5",      "--compute-limit",
      "20"};
  if (!lib_dir.empty()) arguments.insert(arguments.end(), {"--lib-dir", lib_dir});
  arguments.insert(arguments.end(), {"--", program_directory() + "/cuslicectl", "probe"});
  if (!driver_path.empty()) arguments.insert(arguments.end(), {"--driver", driver_path});

  std::string output, errors;
  const int status = run_self(arguments, &output, &errors);
  const json seen = json::parse(output, nullptr, false);
  if (status == 0 && seen.is_object()) {
    const bool all_ok = add_probe_checks(seen, checks);
    // The probe's own refusal is printed there too; it is of interest only if something is wrong.
    if (!all_ok) std::cerr << errors;
    return;
  }
  const std::string reason =
      errors.empty() ? "exit status " + std::to_string(status) : errors.substr(0, errors.find('\n'));
  if (errors.find("do not fit") != std::string::npos || errors.find("free") != std::string::npos) {
    checks->push_back({"test slice", Verdict::kSkipped, "no GPU has 1 GiB and 5 % free: " + reason, ""});
  } else {
    checks->push_back({"test slice", Verdict::kFail, reason, "make `cuslicectl run -- true` work first"});
  }
}

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kFail:
      return "FAIL";
    case Verdict::kSkipped:
      break;
  }
  return "skipped";
}

void print(const std::vector<Check>& checks, bool as_json) {
  if (as_json) {
    json all = json::array();
    for (const Check& check : checks) {
      json one = {{"what", check.what}, {"verdict", name_of(check.verdict)}, {"detail", check.detail}};
      if (check.verdict == Verdict::kFail) one["advice"] = check.advice;
      all.push_back(one);
    }
    std::cout << all.dump(2) << "\n";
    return;
  }
  for (const Check& check : checks) {
    std::cout << std::string(7 - std::string(name_of(check.verdict)).size(), ' ') << name_of(check.verdict)
              << "  " << check.what << ": " << check.detail << "\n";
    if (check.verdict == Verdict::kFail) std::cout << "         -> " << check.advice << "\n";
  }
}

}  // namespace

int doctor(const broker::RunDirectory& directory, const std::string& lib_dir, bool as_json) {
  std::vector<Check> checks;
  std::string driver_path;
  std::unique_ptr<broker::Nvml> nvml;
  checks.push_back(check_driver(&driver_path));
  checks.push_back(check_nvml(&nvml));
  checks.push_back(check_broker(directory));
  checks.push_back(check_unmanaged(directory));
  if (nvml != nullptr) check_slice(directory, lib_dir, driver_path, &checks);
  print(checks, as_json);
  for (const Check& check : checks) {
    if (check.verdict == Verdict::kFail) return 1;
  }
  return 0;
}

}  // namespace ctl
