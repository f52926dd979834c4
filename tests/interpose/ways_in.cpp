// SPDX-License-Identifier: Apache-2.0
//
// ways_in WAY [FILE]: comes to the driver by one way and says what it got, a line each. The test compares the
// lines of a run with the preload to those without.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using Init = int(unsigned);
using GetProcAddress = int(const char*, void**, int, uint64_t);
using GetProcAddressV2 = int(const char*, void**, int, uint64_t, int*);

// Whose code it is: "ours" for a cuslice library, else "real".
const char* owner(const void* function) {
  Dl_info info;
  if (function == nullptr) return "nobody";
  if (dladdr(function, &info) == 0) return "unknown";
  return strstr(info.dli_fname, "cuslice") != nullptr ? "ours" : "real";
}

void show(const char* what, const void* function) {
  Dl_info info = {};
  const char* name = function != nullptr && dladdr(function, &info) != 0 ? info.dli_sname : nullptr;
  printf("%s: %s of %s\n", what, name != nullptr ? name : "nothing", owner(function));
}

void show_failure(const char* what) {
  const char* error = dlerror();
  printf("%s: fails: %s\n", what, error != nullptr ? error : "without a word");
}

void* open_or_say(const char* file, int mode) {
  void* handle = dlopen(file, mode);
  if (handle == nullptr) {
    show_failure(file);
  } else {
    printf("%s: opens\n", file);
  }
  return handle;
}

int by_dlopen(const char* file) {
  void* handle = open_or_say(file, RTLD_NOW);
  if (handle == nullptr) return 1;
  for (const char* name : {"cuInit", "cuMemAlloc_v2", "cuMemcpy", "cuNoSuchFunction", "cuDriverGetVersion",
                           "cuCtxCreate_v4", "cuMemcpyBatchAsync_v2"}) {
    dlerror();
    void* function = dlsym(handle, name);
    show(name, function);
    if (function == nullptr && strstr(dlerror(), name) == nullptr) printf("the error does not name it\n");
  }
  show("cuInit by dlvsym", dlvsym(handle, "cuInit", "NO_SUCH_VERSION"));
  printf("cuInit gives %d\n", reinterpret_cast<Init*>(dlsym(handle, "cuInit"))(0));
  show("cuInit by default", dlsym(RTLD_DEFAULT, "cuInit"));
  printf("malloc is there: %d\n", dlsym(handle, "malloc") != nullptr);
  return dlclose(handle);
}

int by_noload() {
  printf("before: %d\n", dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW) != nullptr);
  dlerror();
  printf("cuInit before: %d\n", dlsym(RTLD_DEFAULT, "cuInit") != nullptr);
  printf("it has an error: %d\n", dlerror() != nullptr);
  void* handle = open_or_say("libcuda.so.1", RTLD_NOW);
  void* again = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  printf("the same after: %d\n", handle != nullptr && handle == again);
  return 0;
}

int by_namespace() {
  void* handle = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
  if (handle == nullptr) {
    show_failure("dlmopen");
    return 1;
  }
  void* init = dlsym(handle, "cuInit");
  show("cuInit", init);
  printf("cuInit gives %d\n", reinterpret_cast<Init*>(init)(0));
  return 0;
}

// The addresses of the loader's own functions, got from the C library's handle.
int by_c_library() {
  void* handle = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  auto* open = reinterpret_cast<decltype(&dlopen)>(dlsym(handle, "dlopen"));
  if (open == nullptr) open = &dlopen;  // in glibc before 2.34 it is not in there
  void* cuda = open("libcuda.so.1", RTLD_NOW);
  auto* symbol = reinterpret_cast<decltype(&dlsym)>(dlsym(handle, "dlsym"));
  if (symbol == nullptr) symbol = &dlsym;
  show("cuInit", symbol(cuda, "cuInit"));
  return 0;
}

int by_get_proc_address() {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (handle == nullptr) return 1;
  auto* v2 = reinterpret_cast<GetProcAddressV2*>(dlsym(handle, "cuGetProcAddress_v2"));
  auto* v1 = reinterpret_cast<GetProcAddress*>(dlsym(handle, "cuGetProcAddress"));
  for (const char* name : {"cuInit", "cuMemAlloc", "cuCtxCreate", "cuLaunchKernel", "cuMemcpy",
                           "cuGetProcAddress", "cuMemFreeAsync", "cuNoSuchFunction", ""}) {
    for (const int version : {2000, 3020, 4000, 7000, 11030, 11040, 11070, 12000, 12050, 13000}) {
      for (const uint64_t flags : {0, 1, 2}) {
        const std::string what =
            std::string(name) + " " + std::to_string(version) + " " + std::to_string(flags);
        void* function = nullptr;
        int status = -1;
        printf("%d %d ", v2(name, &function, version, flags, &status), status);
        show(what.c_str(), function);
        function = nullptr;
        printf("%d ", v1(name, &function, version, flags));
        show(what.c_str(), function);
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  if (way == "dlopen" && argc > 2) return by_dlopen(argv[2]);
  if (way == "noload") return by_noload();
  if (way == "namespace") return by_namespace();
  if (way == "c_library") return by_c_library();
  if (way == "get_proc_address") return by_get_proc_address();
  fprintf(stderr, "usage: ways_in dlopen FILE | noload | namespace | c_library | get_proc_address\n");
  return 2;
}
