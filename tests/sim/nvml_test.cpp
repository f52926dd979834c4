// SPDX-License-Identifier: Apache-2.0
//
// The simulated libnvidia-ml as a program that links to it sees it.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <gtest/gtest.h>
#include <nvml.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "sim/node.h"

namespace {

constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30, kMs = 1'000'000;

class PrivateNode : public testing::Environment {
 public:
  void SetUp() override {
    unsetenv("SIMGPU_NODE");
    setenv("SIMGPU_COUNT", "2", 1);
    setenv("SIMGPU_GPU", "h100", 1);
    setenv("SIMGPU_DRIVER", "12.9", 1);
  }
};

const auto* const kNode = testing::AddGlobalTestEnvironment(new PrivateNode);

class NvmlTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &first_), NVML_SUCCESS);
    ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(1, &second_), NVML_SUCCESS);
  }
  void TearDown() override { nvmlShutdown(); }

  nvmlDevice_t first_, second_;
};

TEST(NvmlSessionTest, answers_only_between_init_and_shutdown) {
  unsigned int count;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlInit(), NVML_SUCCESS);
  EXPECT_EQ(nvmlInitWithFlags(0), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
  EXPECT_STREQ(nvmlErrorString(NVML_ERROR_UNINITIALIZED), "Uninitialized");
}

TEST_F(NvmlTest, versions_are_those_of_the_node) {
  int version;
  EXPECT_EQ(nvmlSystemGetCudaDriverVersion_v2(&version), NVML_SUCCESS);
  EXPECT_EQ(version, 12090);
  char text[80];
  EXPECT_EQ(nvmlSystemGetDriverVersion(text, sizeof(text)), NVML_SUCCESS);
  EXPECT_EQ(std::string(text).substr(0, 4), "575.");
  EXPECT_EQ(nvmlSystemGetDriverVersion(text, 4), NVML_ERROR_INSUFFICIENT_SIZE);
}

TEST_F(NvmlTest, device_is_found_by_each_of_its_names) {
  char uuid[96], serial[30], name[96];
  ASSERT_EQ(nvmlDeviceGetUUID(second_, uuid, sizeof(uuid)), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetSerial(second_, serial, sizeof(serial)), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetName(second_, name, sizeof(name)), NVML_SUCCESS);
  EXPECT_STREQ(name, "NVIDIA H100 80GB HBM3");
  nvmlPciInfo_t pci;
  ASSERT_EQ(nvmlDeviceGetPciInfo_v3(second_, &pci), NVML_SUCCESS);

  nvmlDevice_t found = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByUUID(uuid, &found), NVML_SUCCESS);
  EXPECT_EQ(found, second_);
  EXPECT_EQ(nvmlDeviceGetHandleBySerial(serial, &found), NVML_SUCCESS);
  EXPECT_EQ(found, second_);
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &found), NVML_SUCCESS);
  EXPECT_EQ(found, second_);
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2(pci.busIdLegacy, &found), NVML_SUCCESS);
  EXPECT_EQ(found, second_);
  EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000", &found),
            NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(2, &found), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetName(reinterpret_cast<nvmlDevice_t>(&found), name, 96), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(NvmlTest, older_structures_are_not_written_past_their_end) {
  nvmlPciInfo_t pci;
  memset(&pci, 0x5a, sizeof(pci));
  ASSERT_EQ(nvmlDeviceGetPciInfo(first_, &pci), NVML_SUCCESS);
  EXPECT_EQ(pci.pciSubSystemId, 0x5a5a5a5au);
  ASSERT_EQ(nvmlDeviceGetPciInfo_v2(first_, &pci), NVML_SUCCESS);
  EXPECT_NE(pci.pciSubSystemId, 0x5a5a5a5au);
  EXPECT_EQ(pci.busId[0], 0x5a);

  sim::Node& node = sim::Node::get();
  const sim::ContextId context = node.create_context(0);
  nvmlProcessInfo_v1_t infos[2];
  memset(infos, 0x5a, sizeof(infos));
  unsigned int count = 1;
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses(first_, &count, infos), NVML_SUCCESS);
  EXPECT_EQ(infos[0].pid, static_cast<unsigned int>(getpid()));
  EXPECT_EQ(infos[1].pid, 0x5a5a5a5au);
  node.destroy_context(context);
}

TEST_F(NvmlTest, memory_is_that_of_the_node) {
  sim::Node& node = sim::Node::get();
  ASSERT_TRUE(node.take_memory(0, 7 * kGiB));
  nvmlMemory_t memory;
  ASSERT_EQ(nvmlDeviceGetMemoryInfo(first_, &memory), NVML_SUCCESS);
  const uint64_t reserved = node.model(0).reserved_bytes;
  EXPECT_EQ(memory.total, 81559 * kMiB);  // as nvidia-smi has it for this model
  EXPECT_EQ(memory.used, 7 * kGiB + reserved);
  EXPECT_EQ(memory.free, memory.total - memory.used);

  nvmlMemory_v2_t newer = {};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(first_, &newer), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  newer.version = nvmlMemory_v2;
  ASSERT_EQ(nvmlDeviceGetMemoryInfo_v2(first_, &newer), NVML_SUCCESS);
  EXPECT_EQ(newer.used, 7 * kGiB);
  EXPECT_EQ(newer.reserved, reserved);
  EXPECT_EQ(newer.free + newer.used + newer.reserved, newer.total);

  ASSERT_EQ(nvmlDeviceGetMemoryInfo(second_, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used, reserved);
  node.give_memory(0, 7 * kGiB);
}

TEST_F(NvmlTest, process_is_listed_once_it_has_a_context) {
  sim::Node& node = sim::Node::get();
  unsigned int count = 0;
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(first_, &count, nullptr), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  const sim::ContextId context = node.create_context(0);
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(first_, &count, nullptr), NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(count, 1u);
  nvmlProcessInfo_t info;
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(first_, &count, &info), NVML_SUCCESS);
  EXPECT_EQ(info.pid, static_cast<unsigned int>(getpid()));
  EXPECT_EQ(info.usedGpuMemory, node.settings().context_bytes);
  EXPECT_EQ(info.gpuInstanceId, 0xffffffffu);
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(first_, &count, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetGraphicsRunningProcesses_v3(first_, &count, &info), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  node.destroy_context(context);
}

TEST_F(NvmlTest, utilisation_follows_the_work) {
  sim::Node& node = sim::Node::get();
  const sim::ContextId context = node.create_context(0);
  sim::Work kernel;
  kernel.duration_ns = 400 * kMs;
  const sim::Ticket ticket = node.submit(context, 0, kernel);
  const timespec a_while = {0, 250'000'000};
  nanosleep(&a_while, nullptr);
  nvmlUtilization_t rates;
  ASSERT_EQ(nvmlDeviceGetUtilizationRates(first_, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 100u);
  nvmlProcessUtilizationSample_t samples[4];
  unsigned int count = 0;
  EXPECT_EQ(nvmlDeviceGetProcessUtilization(first_, nullptr, &count, 0), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 1u);
  ASSERT_EQ(nvmlDeviceGetProcessUtilization(first_, samples, &count, 0), NVML_SUCCESS);
  EXPECT_EQ(samples[0].pid, static_cast<unsigned int>(getpid()));
  EXPECT_EQ(samples[0].smUtil, 100u);
  unsigned int busy_mw, idle_mw;
  ASSERT_EQ(nvmlDeviceGetPowerUsage(first_, &busy_mw), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetPowerUsage(second_, &idle_mw), NVML_SUCCESS);
  EXPECT_GT(busy_mw, idle_mw);
  node.wait(context, ticket);
  node.destroy_context(context);
  EXPECT_EQ(nvmlDeviceGetProcessUtilization(first_, samples, &count, 0), NVML_ERROR_NOT_FOUND);
}

TEST_F(NvmlTest, what_is_not_simulated_is_not_supported) {
  nvmlEnableState_t active;
  EXPECT_EQ(nvmlDeviceGetNvLinkState(first_, 0, &active), NVML_ERROR_NOT_SUPPORTED);
  unsigned int speed;
  EXPECT_EQ(nvmlDeviceGetFanSpeed(first_, &speed), NVML_ERROR_NOT_SUPPORTED);
  nvmlFieldValue_t field = {};
  field.fieldId = NVML_FI_DEV_ECC_CURRENT;
  EXPECT_EQ(nvmlDeviceGetFieldValues(first_, 1, &field), NVML_SUCCESS);
  EXPECT_EQ(field.nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
}

TEST_F(NvmlTest, event_wait_ends_with_its_time) {
  nvmlEventSet_t set;
  ASSERT_EQ(nvmlEventSetCreate(&set), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceRegisterEvents(first_, nvmlEventTypeXidCriticalError, set), NVML_SUCCESS);
  nvmlEventData_t data;
  EXPECT_EQ(nvmlEventSetWait_v2(set, &data, 5), NVML_ERROR_TIMEOUT);
  EXPECT_EQ(nvmlEventSetFree(set), NVML_SUCCESS);
}

TEST_F(NvmlTest, an_error_of_a_device_wakes_who_waits_for_it_once) {
  sim::Node& node = sim::Node::get();
  nvmlEventSet_t set;
  ASSERT_EQ(nvmlEventSetCreate(&set), NVML_SUCCESS);
  ASSERT_TRUE(node.report_xid(0, 13, 0));  // before the registration: not told
  ASSERT_EQ(nvmlDeviceRegisterEvents(first_, nvmlEventTypeXidCriticalError, set), NVML_SUCCESS);
  std::thread reporter([&] {
    usleep(20'000);
    node.report_xid(0, 79, 0);
  });
  nvmlEventData_t data;
  EXPECT_EQ(nvmlEventSetWait_v2(set, &data, 10'000), NVML_SUCCESS);
  reporter.join();
  EXPECT_EQ(data.eventData, 79u);
  EXPECT_EQ(data.device, first_);
  EXPECT_EQ(nvmlEventSetWait_v2(set, &data, 1), NVML_ERROR_TIMEOUT);
  EXPECT_EQ(nvmlEventSetFree(set), NVML_SUCCESS);
}

TEST_F(NvmlTest, faults_show_in_the_answers) {
  sim::Node& node = sim::Node::get();
  nvmlMemory_t memory;
  nvmlMemory_v2_t versioned = {};
  versioned.version = nvmlMemory_v2;
  node.set_faults(0, {.no_memory_info = 1});
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(first_, &memory), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(first_, &versioned), NVML_ERROR_NOT_SUPPORTED);
  node.set_faults(0, {.lost = 1});
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(first_, &memory), NVML_ERROR_GPU_IS_LOST);
  node.set_faults(0, {});
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(first_, &memory), NVML_SUCCESS);
}

TEST_F(NvmlTest, fabric_info_fits_the_version_asked_for) {
  nvmlGpuFabricInfoV_t info;
  memset(&info, 0x5a, sizeof(info));
  info.version = nvmlGpuFabricInfo_v2;
  ASSERT_EQ(nvmlDeviceGetGpuFabricInfoV(first_, &info), NVML_SUCCESS);
  EXPECT_EQ(info.state, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED);
  if (sizeof(nvmlGpuFabricInfo_v2_t) <= offsetof(nvmlGpuFabricInfoV_t, healthSummary)) {
    EXPECT_EQ(info.healthSummary, 0x5a);
  }
  info.version = 7;
  EXPECT_EQ(nvmlDeviceGetGpuFabricInfoV(first_, &info), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

}  // namespace
