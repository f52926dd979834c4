// SPDX-License-Identifier: Apache-2.0
#include "sim/simgpu_show.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "sim/layout.h"
#include "sim/node.h"
#include "sim/node_file.h"

namespace sim {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

struct DeviceState {
  std::string uuid;
  MemoryInfo memory;
  DeviceUse use;
  std::vector<ProcessUse> processes;
};

DeviceState read_device(Node& node, int device) {
  node.remove_dead_processes(device);
  DeviceState state;
  uint8_t uuid[16];
  node.uuid(device, uuid);
  state.uuid = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", uuid[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) state.uuid += '-';
    state.uuid += digits;
  }
  state.memory = node.memory(device);
  state.use = node.device_use(device);
  state.processes.resize(kMaxProcesses);
  state.processes.resize(node.processes(device, state.processes.data(), kMaxProcesses));
  return state;
}

std::string name_of(uint32_t pid) {
  char path[40];
  snprintf(path, sizeof(path), "/proc/%u/comm", pid);
  char name[64] = "";
  if (FILE* file = fopen(path, "re")) {
    if (!fgets(name, sizeof(name), file)) name[0] = 0;
    fclose(file);
  }
  std::string text = name;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void print_json(Node& node) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  nlohmann::ordered_json all;
  all["now_ns"] = now.tv_sec * kSecondNs + now.tv_nsec;
  all["driver_version"] = node.settings().driver_version;
  all["gpu"] = node.settings().gpu;
  all["devices"] = nlohmann::ordered_json::array();
  for (int device = 0; device < node.device_count(); ++device) {
    const DeviceState state = read_device(node, device);
    nlohmann::ordered_json one = {{"index", device},
                                  {"uuid", state.uuid},
                                  {"name", node.model(device).name},
                                  {"total_bytes", state.memory.total_bytes},
                                  {"reserved_bytes", state.memory.reserved_bytes},
                                  {"used_bytes", state.memory.used_bytes},
                                  {"busy_ns", state.use.busy_ns},
                                  {"switch_ns", state.use.switch_ns},
                                  {"switches", state.use.switches},
                                  {"processes", nlohmann::ordered_json::array()}};
    for (const ProcessUse& use : state.processes) {
      one["processes"].push_back(
          {{"pid", use.pid}, {"used_bytes", use.used_bytes}, {"busy_ns", use.busy_ns}});
    }
    all["devices"].push_back(one);
  }
  printf("%s\n", all.dump(2).c_str());
}

void print_text(Node& node, const std::string& directory) {
  const NodeSettings& settings = node.settings();
  printf("simulated node %s: %d x %s (%s), driver %u.%u\n", directory.c_str(), settings.device_count,
         node.model(0).name, settings.gpu, settings.driver_version / 1000,
         settings.driver_version % 1000 / 10);
  for (int device = 0; device < node.device_count(); ++device) {
    const DeviceState state = read_device(node, device);
    printf("\nGPU %d  %s\n", device, state.uuid.c_str());
    printf("  memory   %llu of %llu MiB used\n",
           static_cast<unsigned long long>(state.memory.used_bytes >> 20),
           static_cast<unsigned long long>(state.memory.total_bytes >> 20));
    printf("  busy     %u %% of the last second, %.3f s in all; %.3f s lost in %llu context switches\n",
           node.utilization_percent(device, kSecondNs), state.use.busy_ns * 1e-9, state.use.switch_ns * 1e-9,
           static_cast<unsigned long long>(state.use.switches));
    if (state.processes.empty()) {
      printf("  no process has a context\n");
      continue;
    }
    printf("  %8s %10s %6s %12s  %s\n", "PID", "MiB", "BUSY %", "BUSY s", "NAME");
    for (const ProcessUse& use : state.processes) {
      printf("  %8u %10llu %6u %12.3f  %s\n", use.pid, static_cast<unsigned long long>(use.used_bytes >> 20),
             node.process_utilization_percent(device, use.pid, kSecondNs), use.busy_ns * 1e-9,
             name_of(use.pid).c_str());
    }
  }
}

}  // namespace

void list_models() {
  printf("%-6s  %-46s %5s %4s %10s\n", "MODEL", "NAME", "CC", "SMs", "MiB");
  for (int i = 0; i < gpu_model_count(); ++i) {
    const GpuModel& model = gpu_model(i);
    printf("%-6s  %-46s %3d.%d %4d %10llu\n", model.key, model.name, model.cc_major, model.cc_minor,
           model.sm_count, static_cast<unsigned long long>(model.memory_bytes >> 20));
  }
}

bool show_node(const std::string& directory, bool as_json, std::string* error) {
  NodeFile* file = open_node(directory, error);
  if (!file) {
    if (error->empty()) *error = "there is no node in " + directory + " (simgpu --node makes one)";
    return false;
  }
  unmap_node(file);
  setenv("SIMGPU_NODE", directory.c_str(), 1);
  if (as_json) {
    print_json(Node::get());
  } else {
    print_text(Node::get(), directory);
  }
  return true;
}

}  // namespace sim
