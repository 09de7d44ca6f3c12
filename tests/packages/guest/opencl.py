#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Computes with Debian's PyOpenCL until somebody ends the VM: memory of the GPU lives from the first round on, and each round is
compared with what numpy makes of the same.
"""
import sys
import time

import numpy
import pyopencl

CELLS = 4096
SOURCE = """
kernel void advance(global uint* cells, uint round) {
    const size_t i = get_global_id(0);
    cells[i] = cells[i] * 1664525u + 1013904223u + round;
}
"""


def main():
    names = [platform.name for platform in pyopencl.get_platforms()]
    if names != ["Kagemusha"]:
        sys.exit(f"FAILED: the platforms are {names}")
    device, = pyopencl.get_platforms()[0].get_devices()
    print(f"computing on {device.name}")
    context = pyopencl.Context([device])
    queue = pyopencl.CommandQueue(context)
    program = pyopencl.Program(context, SOURCE).build()
    expected = numpy.arange(CELLS, dtype=numpy.uint32)
    got = numpy.empty_like(expected)
    memory = pyopencl.Buffer(context, pyopencl.mem_flags.READ_WRITE | pyopencl.mem_flags.COPY_HOST_PTR, hostbuf=expected)
    advance = program.advance
    number = 0
    while True:
        number += 1
        advance(queue, (CELLS,), None, memory, numpy.uint32(number))
        pyopencl.enqueue_copy(queue, got, memory)
        expected = expected * numpy.uint32(1664525) + numpy.uint32((1013904223 + number) % 2**32)
        if not numpy.array_equal(got, expected):
            sys.exit(f"FAILED: round {number} is wrong")
        print(f"round {number} is right")
        time.sleep(0.1)


main()
