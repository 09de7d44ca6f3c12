# SPDX-License-Identifier: GPL-2.0-or-later
#
# The guest of bench/checkpoint/disks: a boot sector that reads or writes 4 KiB of its disk through the BIOS, again and again,
# one after the other, over REGION sectors from 1 MiB on; and counts them at 0x500 (32 bits). OPERATION: 0x42 reads, 0x43 writes,
# 0 does nothing at all. A request that fails is not counted.

    .code16
    .globl start
start:
    cli
    xor %ax, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $0x7c00, %sp
    mov %dl, drive
    movl $0, 0x500
    sti
.if OPERATION == 0
rest:
    hlt
    jmp rest
.else
again:
    movb $OPERATION, %ah
    xor %al, %al
    movb drive, %dl
    mov $packet, %si
    int $0x13
    jc next
    incl 0x500
next:
    mov lba, %eax
    add $8 * STRIDE, %eax
    cmp $2048 + REGION, %eax
    jb in_region
    sub $REGION, %eax
in_region:
    mov %eax, lba
    jmp again
.endif

drive:
    .byte 0
    .balign 4
packet: # EDD's disk address packet: 8 sectors from 0x1000:0
    .byte 16, 0
    .word 8, 0, 0x1000
lba:
    .long 2048, 0

    .org 510
    .word 0xaa55
