// SPDX-License-Identifier: Apache-2.0
//
// cuslicectl: slices from the command line.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <iostream>
#include <map>

#include "broker/bypass.h"
#include "ctl/commands.h"

namespace ctl {

int report(const broker::Status& status) {
  std::cerr << "cuslicectl: error: " << status.text << "\n";
  return status.failure == broker::Failure::kInvalid ? 2 : 1;
}

std::string program_directory() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  const std::string text(path, length > 0 ? static_cast<size_t>(length) : 0);
  return text.substr(0, text.rfind('/'));
}

}  // namespace ctl

namespace {

void add_memory(CLI::App* command, ctl::SliceOptions* slice, const std::string& help) {
  command
      ->add_option_function<std::string>(
          "--memory",
          [slice](const std::string& text) {
            broker::MemoryAmount amount;
            const broker::Status status = broker::parse_memory(text, &amount);
            if (!status.ok()) throw CLI::ValidationError("--memory", status.text);
            slice->memory = amount;
          },
          help)
      ->type_name("SIZE|PERCENT%");
}

void add_share(CLI::App* command, const std::string& name, std::optional<uint32_t>* share,
               const std::string& help) {
  command
      ->add_option_function<std::string>(
          name,
          [name, share](const std::string& text) {
            uint32_t percent = 0;
            const broker::Status status = broker::parse_share(text, &percent);
            if (!status.ok()) throw CLI::ValidationError(name, status.text);
            *share = percent;
          },
          help)
      ->type_name("PERCENT");
}

void add_bypass(CLI::App* command, std::optional<shm::BypassPolicy>* policy) {
  command
      ->add_option_function<std::string>(
          "--bypass",
          [policy](const std::string& text) {
            for (const shm::BypassPolicy known : {shm::kBypassReport, shm::kBypassBlock, shm::kBypassKill}) {
              if (text == broker::policy_name(known)) *policy = known;
            }
          },
          "what is done about a process that uses the GPU past the slice [report]")
      ->type_name("report|block|kill")
      ->check(CLI::IsMember({"report", "block", "kill"}));
}

// For a value that must not be empty: an unset variable in a script is no choice.
const CLI::Validator kNotEmpty([](const std::string& text) { return text.empty() ? "is empty" : ""; }, "");

// A stdout that is closed stays one that cannot be written to: its number goes to no socket that is opened
// later. Programs that are started find it closed.
void hold_closed_stdout() {
  if (fcntl(STDOUT_FILENO, F_GETFD) >= 0) return;
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || null == STDOUT_FILENO) return;
  dup3(null, STDOUT_FILENO, O_CLOEXEC);
  close(null);
}

int run_command(int argc, char** argv) {
  CLI::App app("Slices of an NVIDIA GPU: so much memory and so much of its time for each program",
               "cuslicectl");
  app.require_subcommand(1);
  app.set_version_flag("--version", CUSLICE_VERSION);
  std::string run_dir = broker::default_run_directory();
  app.add_option("--run-dir", run_dir, "where the broker and the slices are")->capture_default_str();

  ctl::RunOptions run_options;
  CLI::App* const run = app.add_subcommand("run", "Run a command in a slice of its own");
  run->footer(
      "If no broker answers, one is started for as long as there are slices.\n"
      "Compute that is not given is in proportion to the memory, and memory to compute;\n"
      "with neither, the command gets all that is free on one GPU.\n"
      "Without --gpu, CUDA_VISIBLE_DEVICES chooses, if it is set: the first GPU that it names.\n\n"
      "  cuslicectl run --memory 10GiB --compute 25 -- python train.py");
  add_memory(run, &run_options.slice, "GPU memory: 10GiB, 10Gi, 10GB, 512MiB, bytes, or 25% of the GPU");
  add_share(run, "--compute", &run_options.slice.compute_percent,
            "GPU time guaranteed when others want it too");
  add_share(run, "--compute-limit", &run_options.slice.compute_limit_percent,
            "GPU time never passed, even if the GPU is idle [100]");
  run->add_flag_function(
      "--priority", [&](int64_t) { run_options.slice.priority = true; },
      "latency class: goes first while it has credit");
  add_bypass(run, &run_options.slice.bypass);
  run->add_option("--gpu", run_options.gpus,
                  "index or UUID; again for several [CUDA_VISIBLE_DEVICES; any with room]")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false)
      ->check(kNotEmpty);
  run->add_option("--name", run_options.name, "id of the slice [from the command]")->check(kNotEmpty);
  run->add_option("--lib-dir", run_options.lib_dir, "where the preloaded libraries are [../lib]");
  run->add_option("command", run_options.command, "the command and its arguments")->required();
  run->positionals_at_end();

  bool list_json = false;
  CLI::App* const list = app.add_subcommand("ls", "List the slices");
  list->add_flag("--json", list_json, "for machines");

  ctl::TopOptions top_options;
  CLI::App* const top = app.add_subcommand("top", "Watch the slices (q quits)");
  top->add_flag("--once", top_options.once, "print one interval and end");
  top->add_flag("--json", top_options.json,
                "for machines: an object per interval, each on a line of its own");
  top->add_flag("--time", top_options.time,
                "what each wanted and got over 1, 10 and 60 s, and how its turns went (key t)");
  const std::map<std::string, ctl::TopOrder> orders = {{"name", ctl::TopOrder::kName},
                                                       {"memory", ctl::TopOrder::kMemory},
                                                       {"got", ctl::TopOrder::kReceived},
                                                       {"wait", ctl::TopOrder::kWaited}};
  top->add_option("--sort", top_options.sort, "name, memory, got or wait: the greatest first [name] (key s)")
      ->transform(CLI::CheckedTransformer(orders).description(""))
      ->type_name("ORDER");
  top->add_option_function<double>(
         "--interval",
         [&](double seconds) {
           // Not the other way round: no comparison holds for a NaN.
           if (!(seconds >= 0.1 && seconds <= 3600)) {
             throw CLI::ValidationError("--interval", "give 0.1 to 3600 seconds");
           }
           top_options.interval_seconds = seconds;
         },
         "0.1 to 3600 [1]")
      ->type_name("SECONDS");

  std::string slice;
  ctl::SliceOptions set_options;
  CLI::App* const set = app.add_subcommand("set", "Change a slice while its programs run");
  set->add_option("slice", slice, "id of the slice")->required();
  add_memory(set, &set_options, "GPU memory; below what is in use: nothing new until use is under it");
  add_share(set, "--compute", &set_options.compute_percent, "GPU time guaranteed when others want it too");
  add_share(set, "--compute-limit", &set_options.compute_limit_percent, "GPU time never passed");
  set->add_flag_function(
      "--priority{true},--no-priority{false}", [&](int64_t on) { set_options.priority = on > 0; },
      "latency class");
  add_bypass(set, &set_options.bypass);

  CLI::App* const explain = app.add_subcommand("explain", "Who uses what in a slice, and what was refused");
  explain->add_option("slice", slice, "id of the slice")->required();
  bool explain_json = false;
  explain->add_flag("--json", explain_json, "for machines");

  bool doctor_json = false;
  std::string doctor_lib_dir;
  CLI::App* const doctor =
      app.add_subcommand("doctor", "Is it on? Tries everything in a small slice of its own");
  doctor->add_flag("--json", doctor_json, "for machines");
  doctor->add_option("--lib-dir", doctor_lib_dir, "where the preloaded libraries are [../lib]");

  ctl::AuditOptions audit_options;
  CLI::App* const audit = app.add_subcommand("audit", "What is done about each function of a driver");
  audit->footer(
      "The file is read, not loaded. UNKNOWN are functions that are newer than this build.\n"
      "What the slices of this node have seen of such functions, and of processes past their\n"
      "limits, is said too.");
  audit->add_option("libcuda", audit_options.driver, "a driver's libcuda.so.1 [the one that programs get]")
      ->check(kNotEmpty);
  audit->add_flag("--json", audit_options.json, "for machines");
  audit->add_flag("--strict", audit_options.strict,
                  "fail if there are unknown functions, other than new forms of forwarded ones");

  std::string probe_driver;
  CLI::App* const probe = app.add_subcommand("probe", "")->group("");
  probe->add_option("--driver", probe_driver, "");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  if (probe->parsed()) return ctl::probe(probe_driver);
  std::string run_path;
  if (broker::Status status = broker::resolve_run_directory(run_dir, &run_path); !status.ok()) {
    return ctl::report(status);
  }
  const broker::RunDirectory directory(run_path);
  if (run->parsed()) return ctl::run(directory, run_options);
  if (list->parsed()) return ctl::list(directory, list_json);
  if (top->parsed()) return ctl::top(directory, top_options);
  if (explain->parsed()) return ctl::explain(directory, slice, explain_json);
  if (doctor->parsed()) return ctl::doctor(directory, doctor_lib_dir, doctor_json);
  if (audit->parsed()) return ctl::audit(directory, audit_options);
  const bool anything = set_options.memory || set_options.compute_percent ||
                        set_options.compute_limit_percent || set_options.priority || set_options.bypass;
  if (!anything) {
    return ctl::report(
        broker::fail(broker::Failure::kInvalid,
                     "nothing to set: give --memory, --compute, --compute-limit, --priority or --bypass"));
  }
  return ctl::set(directory, slice, set_options);
}

}  // namespace

int main(int argc, char** argv) {
  hold_closed_stdout();
  // Whoever started us may ignore it, and then nothing says when a child has ended.
  signal(SIGCHLD, SIG_DFL);
  const int exit_status = run_command(argc, argv);
  errno = 0;
  if (std::cout.flush()) return exit_status;
  const std::string reason = errno != 0 ? std::string(": ") + strerror(errno) : "";
  return ctl::report(broker::fail(broker::Failure::kSystem, "cannot write to stdout" + reason));
}
