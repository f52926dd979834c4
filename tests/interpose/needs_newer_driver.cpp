// SPDX-License-Identifier: Apache-2.0
//
// A program that was linked to a driver newer than our table.
#include <dlfcn.h>

#include <cstdio>

extern "C" int cuFunctionOfTheFuture(int number);
extern "C" int cuInit(unsigned flags);

int main() {
  // First, as a CUDA runtime does.
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  auto* looked_up = reinterpret_cast<int (*)(int)>(dlsym(handle, "cuFunctionOfTheFuture"));
  printf("cuInit %d\n", cuInit(0));
  printf("linked: %d\n", cuFunctionOfTheFuture(1));
  printf("looked up: %d\n", looked_up != nullptr ? looked_up(2) : -1);
  return 0;
}
