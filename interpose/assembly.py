# SPDX-License-Identifier: Apache-2.0
"""The assembly of generated exports (x86-64, System V): each text defines a macro, which generate.py
then calls once per export, in the order of the indices."""

HEAD = """
#if !defined(__x86_64__)
#error "this library's exports are x86-64 assembly"
#endif
#if defined(__CET__) && (__CET__ & 1)
#define BRANCH_TARGET endbr64
#else
#define BRANCH_TARGET
#endif
  .section .note.GNU-stack,"",@progbits
"""

# The arguments are where the caller put them: nothing is touched but r11, which belongs to nobody.
THUNKS = """
  .hidden {slots}
  .globl {slots}
  .type {slots}, @object
  .bss
  .p2align 6
{slots}:
  .zero 8 * {count}
  .size {slots}, 8 * {count}

  .macro thunk name, index
  .globl \\name
  .type \\name, @function
  .p2align 5
\\name:
  .cfi_startproc
  BRANCH_TARGET
  movq {slots} + 8 * \\index(%rip), %r11
  testq %r11, %r11
  je 1f
  jmp *%r11
1:
  movl $\\index, %r11d
  jmp {resolve}
  .cfi_endproc
  .size \\name, . - \\name
  .endm

  .text
// The first call of a function: asks for its address with every argument register saved, then goes there.
  .hidden {resolve}
  .globl {resolve}
  .type {resolve}, @function
  .p2align 5
{resolve}:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  subq $192, %rsp
  movq %rdi, (%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movq %rax, 48(%rsp)
  movaps %xmm0, 64(%rsp)
  movaps %xmm1, 80(%rsp)
  movaps %xmm2, 96(%rsp)
  movaps %xmm3, 112(%rsp)
  movaps %xmm4, 128(%rsp)
  movaps %xmm5, 144(%rsp)
  movaps %xmm6, 160(%rsp)
  movaps %xmm7, 176(%rsp)
  movl %r11d, %edi
  .hidden {resolver}
  call {resolver}
  movq %rax, %r11
  movq (%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  movq 48(%rsp), %rax
  movaps 64(%rsp), %xmm0
  movaps 80(%rsp), %xmm1
  movaps 96(%rsp), %xmm2
  movaps 112(%rsp), %xmm3
  movaps 128(%rsp), %xmm4
  movaps 144(%rsp), %xmm5
  movaps 160(%rsp), %xmm6
  movaps 176(%rsp), %xmm7
  leave
  .cfi_def_cfa %rsp, 8
  .cfi_restore %rbp
  jmp *%r11
  .cfi_endproc
  .size {resolve}, . - {resolve}

"""

# An export of the simulator: to sim_<name> if somebody wrote it, else to the one that says so. The exports'
# addresses and the implementations are tables of their own, for cuGetProcAddress.
SIM_EXPORTS = """
  .section .data.rel.ro.exports,"aw",@progbits
  .hidden {table}_exports
  .globl {table}_exports
  .p2align 3
{table}_exports:
  .section .data.rel.ro.entries,"aw",@progbits
  .hidden {table}_entries
  .globl {table}_entries
  .p2align 3
{table}_entries:
  .hidden {unimplemented}

  .macro entry name, index
  .weak sim_\\name
  .hidden sim_\\name
  .section .data.rel.ro.entries,"aw",@progbits
  .quad sim_\\name
  .section .data.rel.ro.exports,"aw",@progbits
  .quad sim_export_\\name
  .text
  .globl \\name
  .type \\name, @function
  .globl sim_export_\\name
  .hidden sim_export_\\name
  .type sim_export_\\name, @function
  .p2align 5
\\name:
sim_export_\\name:
  .cfi_startproc
  BRANCH_TARGET
  movq {table}_entries + 8 * \\index(%rip), %r11
  testq %r11, %r11
  je 1f
  jmp *%r11
1:
  movl $\\index, %edi
  jmp {unimplemented}
  .cfi_endproc
  .size \\name, . - \\name
  .endm

"""

# An export of the driver that costs nothing: succeeds at once unless null_<name> was written by hand.
NULL_EXPORTS = """
  .section .data.rel.ro.exports,"aw",@progbits
  .hidden null_driver_exports
  .globl null_driver_exports
  .p2align 3
null_driver_exports:

  .macro entry name, index
  .section .data.rel.ro.exports,"aw",@progbits
  .quad 2f
  .text
  .globl \\name
  .type \\name, @function
  .weak null_\\name
  .hidden null_\\name
  .type null_\\name, @function
  .p2align 4
\\name:
2:
  BRANCH_TARGET
  jmp null_\\name
  .size \\name, . - \\name
null_\\name:
  BRANCH_TARGET
  xorl %eax, %eax
  ret
  .size null_\\name, . - null_\\name
  .endm

"""
