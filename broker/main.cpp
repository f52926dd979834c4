// SPDX-License-Identifier: Apache-2.0
//
// cusliced: the broker of a node.
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>

#include "broker/clock.h"
#include "broker/service.h"

namespace {

// Also for the first slice, which is about to be asked for; who comes too late starts another.
constexpr uint64_t kTransientLingerNs = 2'000'000'000;

int stop_with(const broker::Status& status) {
  spdlog::critical("{}", status.text);
  return 1;
}

// Ends the loop if there is no slice then, and has been none since the call.
void end_if_empty(broker::EventLoop& loop, const broker::Slices& slices, uint64_t linger_ns) {
  const uint64_t since_ns = slices.empty_since_ns();
  loop.call_at(broker::now_ns() + linger_ns, [&loop, &slices, since_ns] {
    if (since_ns != 0 && slices.empty_since_ns() == since_ns) loop.stop();
  });
}

// Every attached process costs a descriptor.
void raise_descriptor_limit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("cusliced: owns the slices of this node's GPUs and hands out their time", "cusliced");
  std::string run_dir = broker::default_run_directory();
  bool transient = false;
  uint64_t quantum_us = 5000;
  std::string log_level = "info";
  app.add_option("--run-dir", run_dir, "where slices and sockets are")->capture_default_str();
  app.add_flag("--transient", transient, "end after 2 s without a slice, and leave nothing behind");
  app.add_option("--quantum-us", quantum_us, "length of a turn")
      ->check(CLI::Range(500, 100'000))
      ->capture_default_str();
  app.add_option("--log-level", log_level, "what is written to stderr")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.set_version_flag("--version", CUSLICE_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  spdlog::set_level(spdlog::level::from_str(log_level));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e cusliced %l: %v");
  raise_descriptor_limit();

  std::string run_path;
  if (broker::Status status = broker::resolve_run_directory(run_dir, &run_path); !status.ok()) {
    return stop_with(status);
  }
  const broker::RunDirectory run(run_path);
  if (broker::Status status = run.make(); !status.ok()) return stop_with(status);
  broker::UniqueFd lock;
  if (broker::Status status = broker::lock_file(run.lock_file(), false, &lock); !status.ok()) {
    return stop_with({status.failure, "another broker serves " + run.path() + ": " + status.text});
  }
  // Again: one that was just ending may have removed them before it gave the lock up.
  if (broker::Status status = run.make(); !status.ok()) return stop_with(status);
  std::unique_ptr<broker::Nvml> nvml;
  if (broker::Status status = broker::Nvml::open(&nvml); !status.ok()) return stop_with(status);

  // Blocked before there are threads, so that signals come through the descriptor only.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const broker::UniqueFd signal_fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));

  broker::EventLoop loop;
  broker::Arbitration::Settings settings;
  settings.arbiter.quantum_ns = quantum_us * 1000;
  broker::Slices slices(loop, run, *nvml, settings);
  slices.take_over();
  std::unique_ptr<broker::Service> service;
  if (broker::Status status = broker::Service::start(run.socket(), loop, slices, transient, &service);
      !status.ok()) {
    return stop_with(status);
  }
  spdlog::info("serving {} with {} GPUs, driver {}", run.path(), nvml->gpus().size(), nvml->driver_version());

  bool told_to_end = false;
  loop.watch(signal_fd.get(), [&] {
    told_to_end = true;
    loop.stop();
  });
  if (transient) {
    slices.when_emptied([&] { end_if_empty(loop, slices, kTransientLingerNs); });
    end_if_empty(loop, slices, kTransientLingerNs);
  }
  loop.run();
  service.reset();

  // Told to end: the slices' programs live on, and so do the slices.
  if (!told_to_end) {
    std::error_code ignored;
    for (const std::string& path : {run.socket(), run.slices(), run.records(), run.log_file(),
                                    run.start_lock_file(), run.lock_file()}) {
      std::filesystem::remove_all(path, ignored);
    }
    std::filesystem::remove(run.path(), ignored);
  }
  return 0;
}
