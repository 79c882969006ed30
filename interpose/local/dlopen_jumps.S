// dlopen and dlmopen (dlopen_hook.cpp says what for). A file of its own: an optimiser of the whole library does not see what assembly inside C++ names.
// rdi: name, rsi: flags. The two pushes and the eight bytes keep the stack aligned for the call.
  .text
  .globl dlopen
  .type dlopen, @function
dlopen:
  .cfi_startproc
  endbr64
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  call olpager_rewrite_dlopen
  popq %rsi
  .cfi_adjust_cfa_offset -8
  movq %rax, %rdi
  movq olpager_next_dlopen(%rip), %r11
  jmp *%r11
  .cfi_endproc
  .size dlopen, . - dlopen

  .globl dlmopen
  .type dlmopen, @function
dlmopen:
  .cfi_startproc
  endbr64
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  movq %rsp, %rdi
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call olpager_rewrite_dlmopen
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  popq %rdx
  .cfi_adjust_cfa_offset -8
  movq %rax, %rsi
  movq olpager_next_dlmopen(%rip), %r11
  jmp *%r11
  .cfi_endproc
  .size dlmopen, . - dlmopen

  .section .note.GNU-stack,"",@progbits
