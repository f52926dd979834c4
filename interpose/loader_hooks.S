// SPDX-License-Identifier: Apache-2.0
//
// dlopen, dlmopen, dlsym and dlvsym. The loader finds the caller by the return address (for its RUNPATH, its
// namespace, RTLD_NEXT), so the true function is jumped to, never called: lookup.cpp decides with which arguments.
//
//   Decision decide(void* arguments[3], const void* caller)    rax: where to jump, 0: nowhere; rdx: then the result

#if defined(__CET__) && (__CET__ & 1)
#define BRANCH_TARGET endbr64
#else
#define BRANCH_TARGET
#endif

  .macro loader_hook name, decide
  .globl \name
  .type \name, @function
  .p2align 5
\name:
  .cfi_startproc
  BRANCH_TARGET
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  subq $32, %rsp  // keeps the stack on 16 bytes, as whatever runs below may rely on
  movq %rdi, (%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rsp, %rdi
  movq 8(%rbp), %rsi
  .hidden \decide
  call \decide
  movq (%rsp), %rdi
  movq 8(%rsp), %rsi
  movq %rdx, %rcx
  movq 16(%rsp), %rdx
  leave
  .cfi_def_cfa %rsp, 8
  testq %rax, %rax
  je 1f
  jmp *%rax
1:
  movq %rcx, %rax
  ret
  .cfi_endproc
  .size \name, . - \name
  .endm

  .text
  loader_hook dlopen, cuslice_decide_dlopen
  loader_hook dlmopen, cuslice_decide_dlmopen
  loader_hook dlsym, cuslice_decide_dlsym
  loader_hook dlvsym, cuslice_decide_dlvsym

  .section .note.GNU-stack,"",@progbits
