// SPDX-License-Identifier: GPL-2.0-or-later
// Kernels that several parts use.
#pragma once

namespace check {

// bump: at[i] += by + bias for i < n, and calls counts its blocks. shared_sum: the sum of 0 … words - 1, which go
// through that much dynamic shared memory.
inline constexpr char bump_source[] = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .global .align 4 .u32 bias = 5;
.visible .global .align 8 .u64 calls;
.extern .shared .align 4 .b8 room[];

.visible .entry bump(.param .u64 at, .param .u32 n, .param .u32 by)
{
    .reg .pred %p<3>;
    .reg .b32 %r<10>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [by];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ne.u32 %p2, %r5, 0;
    @%p2 bra WORK;
    mov.u64 %d4, 1;
    atom.global.add.u64 %d5, [calls], %d4;
WORK:
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    mul.wide.u32 %d2, %r6, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.u32 %r7, [%d3];
    ld.global.u32 %r8, [bias];
    add.s32 %r7, %r7, %r8;
    add.s32 %r7, %r7, %r2;
    st.global.u32 [%d3], %r7;
END:
    ret;
}

.visible .entry shared_sum(.param .u64 at, .param .u32 words)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [words];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, room;
    mov.u32 %r5, %r2;
FILL:
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra FILLED;
    shl.b32 %r6, %r5, 2;
    add.s32 %r7, %r4, %r6;
    st.shared.u32 [%r7], %r5;
    add.s32 %r5, %r5, %r3;
    bra FILL;
FILLED:
    bar.sync 0;
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra END;
    mov.u32 %r8, 0;
    mov.u32 %r9, 0;
SUM:
    setp.ge.u32 %p3, %r9, %r1;
    @%p3 bra STORE;
    ld.shared.u32 %r10, [%r4];
    add.s32 %r8, %r8, %r10;
    add.s32 %r4, %r4, 4;
    add.s32 %r9, %r9, 1;
    bra SUM;
STORE:
    st.global.u32 [%d1], %r8;
END:
    ret;
}
)";

} // namespace check
