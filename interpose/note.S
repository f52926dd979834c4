// SPDX-License-Identifier: Apache-2.0
//
// How one of our libraries is known, under whatever name it is mounted or loaded: see ours_in_file() in loader.cpp.
// CUSLICE_LIBRARY is 1 for the driver's, 2 for NVML's.
  .section .note.cuslice,"a",@note
  .p2align 2
  .long 8
  .long 4
  .long 1
  .asciz "cuslice"
  .long CUSLICE_LIBRARY
  .section .note.GNU-stack,"",@progbits
