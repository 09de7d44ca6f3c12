/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A guest of 512 bytes that counts, for tests of checkpoints and takeovers: 200 times a second it looks whether all of
 * its pages and its register have the same number, makes it the next one everywhere, and prints it on the first serial
 * port as eight hexadecimal digits. A page that a checkpoint lost, or that is of another moment than the register,
 * prints "BAD" for ever.
 */
    .code16
    .globl _start
    .set first_page, 0x1000 /* segments: 64 KiB to 512 KiB */
    .set last_page, 0x8000
    .set page, 0x100
_start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %ss
    movw $0x7c00, %sp
    ljmp $0, $1f
1:  movb $0x34, %al /* interval timer: 1193182 Hz / 5966 */
    outb %al, $0x43
    movb $0x4e, %al
    outb %al, $0x40
    movb $0x17, %al
    outb %al, $0x40
    xorl %ebx, %ebx
    call write_pages
    sti

next:
    hlt
    movw $first_page, %ax
2:  movw %ax, %es
    cmpl %ebx, %es:(0)
    jne bad
    addw $page, %ax
    cmpw $last_page, %ax
    jb 2b
    incl %ebx
    call write_pages
    movl %ebx, %edx
    movw $8, %cx
3:  roll $4, %edx
    movb %dl, %al
    andb $15, %al
    addb $'0', %al
    cmpb $'9', %al
    jbe 4f
    addb $('a' - '9' - 1), %al
4:  call print
    loop 3b
    movb $'\n', %al
    call print
    jmp next

bad:
    movw $text, %si
5:  lodsb
    testb %al, %al
    jz bad
    call print
    jmp 5b

write_pages:
    movw $first_page, %ax
6:  movw %ax, %es
    movl %ebx, %es:(0)
    addw $page, %ax
    cmpw $last_page, %ax
    jb 6b
    ret

print: /* al */
    pushw %dx
    pushw %ax
    movw $0x3fd, %dx
7:  inb %dx, %al
    testb $0x20, %al
    jz 7b
    popw %ax
    movw $0x3f8, %dx
    outb %al, %dx
    popw %dx
    ret

text:
    .asciz "BAD\n"
    .org 510
    .word 0xaa55
