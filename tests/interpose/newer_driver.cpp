// SPDX-License-Identifier: Apache-2.0
//
// A libcuda.so.1 of the future: it has a function that no table of ours knows.
extern "C" {
[[gnu::visibility("default")]] int cuInit(unsigned) { return 0; }
[[gnu::visibility("default")]] int cuFunctionOfTheFuture(int number) { return number + 1; }
}
