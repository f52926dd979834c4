// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "driver_fixture.h"

namespace {

void* look_up(const char* name, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  void* function = nullptr;
  EXPECT_OK(cuGetProcAddress_v2(name, &function, version, flags, status));
  return function;
}

void* exported(const char* name) { return dlsym(RTLD_DEFAULT, name); }

// Runs in a child that has not initialised the driver. Its exit status is what `body` returns.
template <typename Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST(Lookup, a_version_gets_the_form_that_it_knows) {
  CUdriverProcAddressQueryResult status;
  EXPECT_EQ(look_up("cuCtxGetDevice", 12000, 0, &status), exported("cuCtxGetDevice"));
  EXPECT_EQ(look_up("cuCtxGetDevice", 13000, 0, &status), exported("cuCtxGetDevice_v2"));
  EXPECT_EQ(look_up("cuMemAlloc", 3020, 0, &status), exported("cuMemAlloc_v2"));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
}

TEST(Lookup, the_per_thread_flag_gets_the_twin_where_there_is_one) {
  CUdriverProcAddressQueryResult status;
  const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  EXPECT_EQ(look_up("cuLaunchKernel", 13000, per_thread, &status), exported("cuLaunchKernel_ptsz"));
  EXPECT_EQ(look_up("cuMemAlloc", 13000, per_thread, &status), exported("cuMemAlloc_v2"));
}

TEST(Lookup, a_miss_says_why) {
  CUdriverProcAddressQueryResult status;
  EXPECT_EQ(look_up("cuNoSuchThing", 13000, 0, &status), nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(look_up("cuMemAllocAsync", 11000, 0, &status), nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  void* function = &status;
  EXPECT_EQ(cuGetProcAddress("cuNoSuchThing", &function, 13000, 0), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(function, nullptr);
}

TEST(Lookup, an_old_driver_has_no_newer_functions) {
  EXPECT_EQ(in_child([] {
              setenv("SIMGPU_DRIVER", "12.9", 1);
              CUdriverProcAddressQueryResult status;
              int version = 0;
              if (cuDriverGetVersion(&version) != CUDA_SUCCESS || version != 12090) return 1;
              if (look_up("cuCtxSynchronize", 13000, 0, &status) != exported("cuCtxSynchronize")) return 2;
              return look_up("cuMemGetDefaultMemPool", 13000, 0, &status) == nullptr ? 0 : 3;
            }),
            0);
}

TEST(Lookup, what_is_not_simulated_says_so) {
  setenv("SIMGPU_QUIET", "1", 1);
  ASSERT_OK(cuInit(0));
  CUlinkState link;
  EXPECT_EQ(cuLinkCreate_v2(0, nullptr, nullptr, &link), CUDA_ERROR_NOT_SUPPORTED);
}

TEST(Lookup, an_unknown_export_table_is_not_found) {
  setenv("SIMGPU_QUIET", "1", 1);
  const CUuuid unknown = {{1, 2, 3}};
  const void* table = nullptr;
  EXPECT_EQ(cuGetExportTable(&table, &unknown), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(table, nullptr);
}

TEST(Initialisation, nothing_works_before_it) {
  CUdeviceptr memory;
  int count;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuMemAlloc_v2(&memory, 1), CUDA_ERROR_NOT_INITIALIZED);
  ASSERT_OK(cuInit(0));
  EXPECT_EQ(cuMemAlloc_v2(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(Initialisation, a_child_of_an_initialised_process_gets_an_error) {
  ASSERT_OK(cuInit(0));
  EXPECT_EQ(in_child([] {
              int count;
              if (cuInit(0) != CUDA_ERROR_NOT_INITIALIZED) return 1;
              return cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 2;
            }),
            0);
}

TEST(Initialisation, visible_devices_are_chosen_and_ordered) {
  setenv("SIMGPU_COUNT", "4", 1);
  EXPECT_EQ(in_child([] {
              setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
              int count = 0;
              char first[16], third[16];
              if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS || count != 2)
                return 1;
              cuDeviceGetPCIBusId(first, sizeof first, 0);
              cuDeviceGetPCIBusId(third, sizeof third, 1);
              return std::string(first) > std::string(third) ? 0 : 2;
            }),
            0);
  EXPECT_EQ(in_child([] {
              setenv("CUDA_VISIBLE_DEVICES", "", 1);
              return cuInit(0) == CUDA_ERROR_NO_DEVICE ? 0 : 1;
            }),
            0);
}

TEST(Contexts, the_primary_one_is_inactive_until_it_is_retained) {
  ASSERT_OK(cuInit(0));
  unsigned flags;
  int active = -1;
  CUcontext context, current;
  ASSERT_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 0);
  ASSERT_OK(cuDevicePrimaryCtxRetain(&context, 0));
  ASSERT_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 1);
  ASSERT_OK(cuCtxPushCurrent_v2(context));
  ASSERT_OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, context);
  ASSERT_OK(cuDevicePrimaryCtxRelease_v2(0));
  CUdeviceptr memory;
  EXPECT_EQ(cuMemAlloc_v2(&memory, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
}
