// SPDX-License-Identifier: Apache-2.0
//
// The hooks of launches that have their stream on the stack. They are what gate::passes() and a jump compile to
// elsewhere; but here compilers move the stack arguments out and back in before they jump, which costs twice the rest.
//
// Budget: 12 instructions when the first comparison hits.
#if !defined(__x86_64__)
#error "this library's exports are x86-64 assembly"
#endif
#if defined(__CET__) && (__CET__ & 1)
#define BRANCH_TARGET endbr64
#else
#define BRANCH_TARGET
#endif
  .section .note.GNU-stack,"",@progbits

#define DRIVER_FUNCTION(index, name, base, policy) .set index_of_##name, index
#include "generated/interpose/functions.inc"

#define STREAM 24   /* the ninth argument, seen from the callee: 8 is the seventh */
#define PER_THREAD_FORM 61  /* gate::StreamName::kPerThreadForm */

  .hidden cuslice_gate_word_distance, cuslice_gate_unattached_word, cuslice_gate_noted, cuslice_driver_slots

  .macro launch_on_stack name, per_thread
  .hidden slow_\name
  .globl \name
  .type \name, @function
  .p2align 5
\name:
  .cfi_startproc
  BRANCH_TARGET
  movq cuslice_gate_word_distance(%rip), %rax
  leaq cuslice_gate_unattached_word(%rip), %r10
  movq (%r10, %rax), %rax
  xorq STREAM(%rsp), %rax
  .if \per_thread
  btcq $PER_THREAD_FORM, %rax
  .endif
  movq cuslice_gate_noted@gottpoff(%rip), %r10
  cmpq %fs:(%r10), %rax
  jne 2f
1:
  jmp *cuslice_driver_slots + 8 * index_of_\name(%rip)
2:
  cmpq %fs:8(%r10), %rax
  je 1b
  cmpq %fs:16(%r10), %rax
  je 1b
  cmpq %fs:24(%r10), %rax
  je 1b
  jmp slow_\name
  .cfi_endproc
  .size \name, . - \name
  .endm

  .text
  launch_on_stack cuLaunchKernel, 0
  launch_on_stack cuLaunchKernel_ptsz, 1
  launch_on_stack cuLaunchCooperativeKernel, 0
  launch_on_stack cuLaunchCooperativeKernel_ptsz, 1
