# SPDX-License-Identifier: GPL-2.0-or-later
#
# Boot sector of bench/checkpoint: writes one byte of each of PAGES pages from
# 1 MiB on, in order, forever. So PAGES pages are dirty at every checkpoint.

.code16
.globl start
start:
        cli
        xor %ax, %ax
        mov %ax, %ds
        lgdt descriptor
        mov %cr0, %eax
        or $1, %al
        mov %eax, %cr0
        ljmp $8, $protected

.code32
protected:
        mov $16, %ax
        mov %ax, %ds
round:
        mov $0x100000, %edi
        mov $PAGES, %ecx
page:
        incb (%edi)
        add $4096, %edi
        dec %ecx
        jnz page
        jmp round

.balign 8
table:                                  # flat code and data of 4 GiB
        .quad 0
        .quad 0x00cf9a000000ffff
        .quad 0x00cf92000000ffff
descriptor:
        .word descriptor - table - 1
        .long table

.org 510
        .word 0xaa55
