// SPDX-License-Identifier: Apache-2.0
//
// What a process in a slice is shown by the preloaded NVML where others use the GPU too. The true library is
// many_tenants_nvml.cpp.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nvml.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "limiter/ledger.h"
#include "shm/segment.h"

namespace {

constexpr uint64_t kGiB = 1ull << 30;
constexpr uint32_t kSharePercent = 25;
constexpr uint32_t kStranger =
    4'000'001;  // no pid: they end below 2^22 = 4'194'304, but nobody gets this far
constexpr unsigned kNotAvailable = static_cast<unsigned>(NVML_VALUE_NOT_AVAILABLE);

// One for all tests, as the library looks for it only once.
shm::Limits* limits;
shm::State* state;

uint64_t own_pid_namespace() {
  struct stat status = {};
  stat("/proc/self/ns/pid", &status);
  return status.st_ino;
}

uint64_t own_start_time() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string field;
  for (int number = 3; number <= 22; number++) fields >> field;
  return std::stoull(field);
}

uint64_t monotonic_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec);
}

template <typename Function>
Function* nvml(const char* name) {
  static void* const library = dlopen(CUSLICE_NVML_LIBRARY, RTLD_NOW);
  void* const function = library != nullptr ? dlsym(library, name) : nullptr;
  if (function == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    abort();
  }
  return reinterpret_cast<Function*>(function);
}
#define NVML(function) nvml<decltype(function)>(#function)

class OneSlice : public testing::Environment {
 public:
  void SetUp() override {
    char directory[] = "/dev/shm/nvml_views.XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    shm::GpuTerms gpu = {{}, 10 * kGiB, 80 * kGiB, 0};
    for (uint8_t i = 0; i < 16; i++) gpu.uuid[i] = i;
    const shm::SliceTerms terms = {"views", &gpu, 1, kSharePercent, 100, 0};
    ASSERT_TRUE(shm::create(directory, terms, &limits, &state));
    setenv("CUSLICE_SLICE", directory, 1);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

 private:
  std::string directory_;
};
const auto* const kOneSlice = testing::AddGlobalTestEnvironment(new OneSlice);

class NvmlViewsTest : public testing::Test {
 protected:
  void SetUp() override {
    limits->share.rates_at_s = 0;
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &gpu_), NVML_SUCCESS);
  }
  void TearDown() override {
    for (const limiter::SlotRef slot : slots_) {
      limits->slots[slot.slot].host_pid = 0;
      limiter::reap_slot(*state, slot.slot, slot.generation);
    }
  }

  // A process of the slice that holds `bytes`.
  void join(uint32_t own_pid, uint32_t host_pid, uint64_t bytes, uint64_t pid_namespace = own_pid_namespace(),
            uint64_t start_time = 1) {
    limiter::SlotRef slot;
    ASSERT_TRUE(limiter::take_slot(*state, {own_pid, pid_namespace, start_time, "tenant"}, &slot));
    limits->slots[slot.slot].generation = slot.generation;
    limits->slots[slot.slot].start_time = start_time;
    limits->slots[slot.slot].host_pid = host_pid;
    ASSERT_EQ(limiter::reserve(*limits, *state, 0, slot, bytes), limiter::Reservation::kGranted);
    slots_.push_back(slot);
  }

  static void list(const std::string& pids) { setenv("TENANTS", pids.c_str(), 1); }

  std::vector<unsigned> shown_pids() const {
    nvmlProcessInfo_t infos[8];
    unsigned count = 8;
    EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(gpu_, &count, infos), NVML_SUCCESS);
    std::vector<unsigned> pids;
    for (unsigned i = 0; i < count; i++) pids.push_back(infos[i].pid);
    return pids;
  }

  nvmlDevice_t gpu_ = nullptr;
  std::vector<limiter::SlotRef> slots_;
};

using Pids = std::vector<unsigned>;

TEST_F(NvmlViewsTest, processes_of_others_are_not_shown) {
  join(11, 1011, 2 * kGiB);
  list("4000001 1011");
  EXPECT_EQ(shown_pids(), Pids({11}));
  list("4000001");
  EXPECT_EQ(shown_pids(), Pids());
}

TEST_F(NvmlViewsTest, pids_are_understood_as_the_host_or_this_namespace_has_them) {
  join(11, 1011, 2 * kGiB);
  join(12, 1012, kGiB);
  list("1012 1011");
  EXPECT_EQ(shown_pids(), Pids({12, 11}));
  list("12 11");
  EXPECT_EQ(shown_pids(), Pids({12, 11}));
}

TEST_F(NvmlViewsTest, a_stranger_whose_pid_on_the_host_is_one_of_ours_here_is_not_shown) {
  join(11, 1011, 2 * kGiB);
  for (const char* order : {"11 1011", "1011 11"}) {
    list(order);
    EXPECT_EQ(shown_pids(), Pids({11})) << order;
  }
  // A process of ours that holds nothing is not on the GPU: who is has only the same number.
  join(13, 1013, 0);
  list("1011 13");
  EXPECT_EQ(shown_pids(), Pids({11}));
}

TEST_F(NvmlViewsTest, a_process_that_this_namespace_does_not_see_is_not_shown) {
  join(11, kStranger, kGiB, own_pid_namespace() + 1);
  // Another process has its host pid here.
  join(12, static_cast<uint32_t>(getpid()), kGiB, own_pid_namespace() + 1, own_start_time() + 1);
  list("4000001 " + std::to_string(getpid()));
  EXPECT_EQ(shown_pids(), Pids());
}

TEST_F(NvmlViewsTest, a_process_in_a_namespace_below_is_shown_by_its_pid_here) {
  join(11, static_cast<uint32_t>(getpid()), kGiB, own_pid_namespace() + 1, own_start_time());
  list(std::to_string(getpid()));
  EXPECT_EQ(shown_pids(), Pids({static_cast<unsigned>(getpid())}));
}

TEST_F(NvmlViewsTest, what_processes_are_shown_to_use_adds_up_to_what_is_used) {
  join(11, 1011, 2 * kGiB);
  join(12, 1012, kGiB);
  list("1011 1012");
  nvmlProcessInfo_t infos[2];
  unsigned count = 2;
  ASSERT_EQ(NVML(nvmlDeviceGetMPSComputeRunningProcesses_v3)(gpu_, &count, infos), NVML_SUCCESS);
  EXPECT_EQ(infos[0].usedGpuMemory, 2 * kGiB);
  EXPECT_EQ(infos[1].usedGpuMemory, kGiB);
  nvmlMemory_t memory;
  ASSERT_EQ(NVML(nvmlDeviceGetConfComputeProtectedMemoryUsage)(gpu_, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.total, 10 * kGiB);
  EXPECT_EQ(memory.used, 3 * kGiB);
  EXPECT_EQ(memory.free, 7 * kGiB);
}

TEST_F(NvmlViewsTest, lists_tell_what_room_they_need) {
  join(11, 1011, kGiB);
  join(12, 1012, kGiB);
  list("1011 4000001 1012");
  nvmlProcessInfo_t infos[1];
  unsigned count = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetGraphicsRunningProcesses_v3)(gpu_, &count, nullptr),
            NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2u);
  count = 1;
  EXPECT_EQ(NVML(nvmlDeviceGetGraphicsRunningProcesses_v3)(gpu_, &count, infos),
            NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2u);
  std::string many = "1011 1012";
  for (int i = 0; i < 500; i++) many += " 4000001";
  list(many);
  EXPECT_EQ(shown_pids(), Pids({11, 12}));
}

TEST_F(NvmlViewsTest, the_detail_list_holds_the_slices_processes) {
  join(11, 1011, 2 * kGiB);
  list("4000001 1011");
  nvmlProcessDetail_v1_t details[4];
  nvmlProcessDetailList_t all = {};
  all.version = nvmlProcessDetailList_v1;
  all.numProcArrayEntries = 4;
  all.procArray = details;
  ASSERT_EQ(NVML(nvmlDeviceGetRunningProcessDetailList)(gpu_, &all), NVML_SUCCESS);
  ASSERT_EQ(all.numProcArrayEntries, 1u);
  EXPECT_EQ(details[0].pid, 11u);
  EXPECT_EQ(details[0].usedGpuMemory, 2 * kGiB);
  all.version = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetRunningProcessDetailList)(gpu_, &all), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

TEST_F(NvmlViewsTest, video_sessions_and_their_means_are_the_slices) {
  join(11, 1011, kGiB);
  join(12, 1013, kGiB);
  list("4000001 1011 1013");
  unsigned count = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetEncoderSessions)(gpu_, &count, nullptr), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
  nvmlFBCSessionInfo_t captures[2];
  EXPECT_EQ(NVML(nvmlDeviceGetFBCSessions)(gpu_, &count, captures), NVML_SUCCESS);
  EXPECT_EQ(captures[1].pid, 12u);
  unsigned fps, latency;
  EXPECT_EQ(NVML(nvmlDeviceGetEncoderStats)(gpu_, &count, &fps, &latency), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(latency, 1012u);
  nvmlFBCStats_t stats;
  EXPECT_EQ(NVML(nvmlDeviceGetFBCStats)(gpu_, &stats), NVML_SUCCESS);
  EXPECT_EQ(stats.sessionsCount, 2u);
}

TEST_F(NvmlViewsTest, accounting_tells_of_the_slices_processes_only) {
  join(11, 1011, kGiB);
  list("4000001 1011");
  unsigned pids[4];
  unsigned count = 4;
  ASSERT_EQ(NVML(nvmlDeviceGetAccountingPids)(gpu_, &count, pids), NVML_SUCCESS);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(pids[0], 11u);
  nvmlAccountingStats_t stats;
  ASSERT_EQ(NVML(nvmlDeviceGetAccountingStats)(gpu_, 11, &stats), NVML_SUCCESS);
  EXPECT_EQ(stats.gpuUtilization, 80u);
  EXPECT_EQ(stats.memoryUtilization, kNotAvailable);
  EXPECT_EQ(NVML(nvmlDeviceGetAccountingStats)(gpu_, kStranger, &stats), NVML_ERROR_NOT_FOUND);
  nvmlAccountingStats_v2_t second = {};
  second.pid = 11;
  ASSERT_EQ(NVML(nvmlDeviceGetAccountingStats_v2)(gpu_, &second), NVML_SUCCESS);
  EXPECT_EQ(second.pid, 11u);
  EXPECT_EQ(second.memoryUtilization, 40u);
  // A driver that translates knows it by that pid.
  list("11");
  EXPECT_EQ(NVML(nvmlDeviceGetAccountingStats)(gpu_, 11, &stats), NVML_SUCCESS);
}

// A fifth of the GPU is 80 % of a quarter.
TEST_F(NvmlViewsTest, use_is_of_the_slices_share) {
  join(11, 1011, kGiB);
  list("4000001 1011 4000002");
  nvmlUtilization_t rates;
  ASSERT_EQ(NVML(nvmlDeviceGetUtilizationRates)(gpu_, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 80u);
  EXPECT_EQ(rates.memory, 40u);
  nvmlGpuDynamicPstatesInfo_t pstates;
  ASSERT_EQ(NVML(nvmlDeviceGetDynamicPstatesInfo)(gpu_, &pstates), NVML_SUCCESS);
  EXPECT_EQ(pstates.utilization[NVML_GPU_UTILIZATION_DOMAIN_GPU].percentage, 80u);
  EXPECT_EQ(pstates.utilization[NVML_GPU_UTILIZATION_DOMAIN_FB].percentage, 40u);
  EXPECT_EQ(pstates.utilization[NVML_GPU_UTILIZATION_DOMAIN_BUS].percentage, 7u);

  list("4000001 4000002");
  ASSERT_EQ(NVML(nvmlDeviceGetUtilizationRates)(gpu_, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 0u);
  EXPECT_EQ(rates.memory, 0u);
}

TEST_F(NvmlViewsTest, use_never_passes_100_percent) {
  join(11, 1011, kGiB);
  join(12, 1012, kGiB);
  list("1011 1012");
  nvmlUtilization_t rates;
  ASSERT_EQ(NVML(nvmlDeviceGetUtilizationRates)(gpu_, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 100u);
}

TEST_F(NvmlViewsTest, what_the_broker_measured_of_late_comes_before_the_drivers_figure) {
  join(11, 1011, kGiB);
  list("4000001 1011");
  limits->share.received_rates = shm::rates_word({1240, 9900, 9900});
  limits->share.rates_at_s = static_cast<uint32_t>(monotonic_s());
  nvmlUtilization_t rates;
  ASSERT_EQ(NVML(nvmlDeviceGetUtilizationRates)(gpu_, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 48u);
  limits->share.rates_at_s = static_cast<uint32_t>(monotonic_s() - 60);
  ASSERT_EQ(NVML(nvmlDeviceGetUtilizationRates)(gpu_, &rates), NVML_SUCCESS);
  EXPECT_EQ(rates.gpu, 80u);
}

TEST_F(NvmlViewsTest, samples_of_use_are_the_slices) {
  join(11, 1011, kGiB);
  list("4000001 1011");
  nvmlValueType_t type;
  unsigned count = 0;
  ASSERT_EQ(NVML(nvmlDeviceGetSamples)(gpu_, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, nullptr),
            NVML_SUCCESS);
  ASSERT_EQ(count, 1u);
  nvmlSample_t sample;
  ASSERT_EQ(NVML(nvmlDeviceGetSamples)(gpu_, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, &sample),
            NVML_SUCCESS);
  EXPECT_EQ(type, NVML_VALUE_TYPE_UNSIGNED_INT);
  EXPECT_EQ(sample.sampleValue.uiVal, 80u);
  EXPECT_EQ(NVML(nvmlDeviceGetSamples)(gpu_, NVML_GPU_UTILIZATION_SAMPLES, sample.timeStamp + 60'000'000,
                                       &type, &count, &sample),
            NVML_ERROR_NOT_FOUND);
  // Power is the board's.
  EXPECT_EQ(NVML(nvmlDeviceGetSamples)(gpu_, NVML_TOTAL_POWER_SAMPLES, 0, &type, &count, nullptr),
            NVML_SUCCESS);
  EXPECT_EQ(count, 120u);
}

TEST_F(NvmlViewsTest, use_by_process_is_the_slices_and_of_its_share) {
  join(11, 1011, kGiB);
  list("4000001 1011");
  nvmlProcessUtilizationSample_t samples[4];
  unsigned count = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetProcessUtilization)(gpu_, nullptr, &count, 0), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 1u);
  ASSERT_EQ(NVML(nvmlDeviceGetProcessUtilization)(gpu_, samples, &count, 0), NVML_SUCCESS);
  EXPECT_EQ(samples[0].pid, 11u);
  EXPECT_EQ(samples[0].smUtil, 80u);
  nvmlProcessUtilizationInfo_v1_t entries[4];
  nvmlProcessesUtilizationInfo_t info = {};
  info.version = nvmlProcessesUtilizationInfo_v1;
  info.processSamplesCount = 4;
  info.procUtilArray = entries;
  ASSERT_EQ(NVML(nvmlDeviceGetProcessesUtilizationInfo)(gpu_, &info), NVML_SUCCESS);
  EXPECT_EQ(info.processSamplesCount, 1u);
  EXPECT_EQ(entries[0].pid, 11u);
  EXPECT_EQ(entries[0].memUtil, 40u);
  list("4000001");
  count = 4;
  EXPECT_EQ(NVML(nvmlDeviceGetProcessUtilization)(gpu_, samples, &count, 0), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(count, 0u);
}

TEST_F(NvmlViewsTest, sizes_that_are_not_usage_are_the_slices_too) {
  join(11, 1011, 2 * kGiB);
  nvmlBAR1Memory_t window;
  ASSERT_EQ(NVML(nvmlDeviceGetBAR1MemoryInfo)(gpu_, &window), NVML_SUCCESS);
  EXPECT_EQ(window.bar1Total, 10 * kGiB);
  EXPECT_EQ(window.bar1Used, 2 * kGiB);
  EXPECT_EQ(window.bar1Free, 8 * kGiB);
  nvmlDeviceAttributes_t attributes;
  ASSERT_EQ(NVML(nvmlDeviceGetAttributes_v2)(gpu_, &attributes), NVML_SUCCESS);
  EXPECT_EQ(attributes.memorySizeMB, 10u << 10);
  EXPECT_EQ(attributes.multiprocessorCount, 132u);
  nvmlConfComputeMemSizeInfo_t sizes;
  ASSERT_EQ(NVML(nvmlDeviceGetConfComputeMemSizeInfo)(gpu_, &sizes), NVML_SUCCESS);
  EXPECT_EQ(sizes.protectedMemSizeKib, 10u << 20);
}

TEST_F(NvmlViewsTest, use_past_the_quota_leaves_nothing_free) {
  join(11, 1011, 4 * kGiB);
  limits->gpus[0].quota_bytes = kGiB;
  nvmlMemory_t memory;
  ASSERT_EQ(NVML(nvmlDeviceGetConfComputeProtectedMemoryUsage)(gpu_, &memory), NVML_SUCCESS);
  limits->gpus[0].quota_bytes = 10 * kGiB;
  EXPECT_EQ(memory.total, kGiB);
  EXPECT_EQ(memory.used, kGiB);
  EXPECT_EQ(memory.free, 0u);
}

TEST_F(NvmlViewsTest, performance_counters_of_everybodys_work_are_not_there) {
  nvmlGpmSupport_t support = {};
  ASSERT_EQ(NVML(nvmlGpmQueryDeviceSupport)(gpu_, &support), NVML_SUCCESS);
  EXPECT_EQ(support.isSupportedDevice, 0u);
  EXPECT_EQ(NVML(nvmlGpmSampleGet)(gpu_, nullptr), NVML_ERROR_NOT_SUPPORTED);
}

}  // namespace
