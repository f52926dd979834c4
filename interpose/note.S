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

// Opens the writable segment, on a page of its own: what the loader writes at each exec (.dynamic, .got, .got.plt)
// and .data beside it would else straddle two by chance, and each page copied is microseconds of a start.
  .section .data.rel.ro.first,"awR",@progbits
  .balign 4096
  .quad 0

  .section .note.GNU-stack,"",@progbits
