// SPDX-License-Identifier: Apache-2.0
//
// A libnvidia-ml.so.1 that says what a test wrote into the file named by FAKE_NVML, read anew at each call:
//
//   gpus 2                 number of GPUs, each of 80 GiB
//   process 0 4711 1000    GPU, pid, bytes: a process with a context
#include <nvml.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr unsigned long long kTotalBytes = 81ull << 30;
constexpr unsigned long long kReservedBytes = 1ull << 30;

struct Script {
  unsigned int gpus = 1;
  struct Process {
    unsigned int gpu, pid;
    unsigned long long bytes;
  };
  std::vector<Process> processes;
};

Script read_script() {
  Script script;
  const char* const path = getenv("FAKE_NVML");
  std::ifstream file(path != nullptr ? path : "/nonexistent");
  for (std::string line, word; std::getline(file, line);) {
    std::istringstream words(line);
    words >> word;
    if (word == "gpus") words >> script.gpus;
    Script::Process process;
    if (word == "process" && words >> process.gpu >> process.pid >> process.bytes)
      script.processes.push_back(process);
  }
  return script;
}

nvmlDevice_t to_handle(unsigned int index) {
  return reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(index) + 1);
}
unsigned int to_index(nvmlDevice_t device) {
  return static_cast<unsigned int>(reinterpret_cast<uintptr_t>(device)) - 1;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }
const char* nvmlErrorString(nvmlReturn_t) { return "fake"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  snprintf(version, length, "580.0");
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = read_script().gpus;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  *device = to_handle(index);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  snprintf(uuid, length, "GPU-00000000-0000-4000-8000-%012x", to_index(device));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t, char* name, unsigned int length) {
  snprintf(name, length, "Fake GPU");
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t* memory) {
  *memory = {kTotalBytes, kTotalBytes, 0};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t* memory) {
  *memory = {nvmlMemory_v2, kTotalBytes, kReservedBytes, kTotalBytes - kReservedBytes, 0};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* infos) {
  const Script script = read_script();
  unsigned int found = 0;
  for (const Script::Process& process : script.processes) {
    if (process.gpu != to_index(device)) continue;
    if (found < *count) infos[found] = {process.pid, process.bytes, 0xffffffff, 0xffffffff};
    ++found;
  }
  const bool fits = found <= *count;
  *count = found;
  return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

}  // extern "C"
