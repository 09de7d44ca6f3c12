#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Computes with what the linker finds as libcuda.so.1, and asks libnvidia-ml.so.1 for the same device. Nothing but the names of the
two libraries is ours.
"""
import ctypes
import sys

CELLS, THREADS, ROUNDS = 4096, 128, 20
# cells[i] = cells[i] * 1664525 + round
SOURCE = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry step(.param .u64 cells, .param .u32 round)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [cells];
    ld.param.u32 %r1, [round];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    mul.wide.u32 %d2, %r2, 4;
    add.u64 %d1, %d1, %d2;
    ld.global.u32 %r5, [%d1];
    mad.lo.u32 %r5, %r5, 1664525, %r1;
    st.global.u32 [%d1], %r5;
    ret;
}
"""


def caller(library):
    """Calls functions of the library; one that does not return 0 ends the program."""
    def call(name, *arguments):
        status = getattr(library, name)(*arguments)
        if status != 0:
            sys.exit(f"FAILED: {name} returned {status}")
    return call


def name_by_nvml():
    call = caller(ctypes.CDLL("libnvidia-ml.so.1"))
    call("nvmlInit_v2")
    count, handle, name = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
    call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    if count.value != 1:
        sys.exit(f"FAILED: NVML has {count.value} devices")
    call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(handle))
    call("nvmlDeviceGetName", handle, name, len(name))
    call("nvmlShutdown")
    return name.value.decode()


def compute():
    call = caller(ctypes.CDLL("libcuda.so.1"))
    device, context, module, step = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    memory, name = ctypes.c_uint64(), ctypes.create_string_buffer(96)
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceGetName", name, len(name), device)
    print(f"computing on {name.value.decode()}")
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    call("cuModuleLoadData", ctypes.byref(module), SOURCE)
    call("cuModuleGetFunction", ctypes.byref(step), module, b"step")
    expected = list(range(CELLS))
    cells = (ctypes.c_uint32 * CELLS)(*expected)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(ctypes.sizeof(cells)))
    call("cuMemcpyHtoD_v2", memory, cells, ctypes.c_size_t(ctypes.sizeof(cells)))
    for number in range(1, ROUNDS + 1):
        parameter = ctypes.c_uint32(number)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(parameter))
        call("cuLaunchKernel", step, CELLS // THREADS, 1, 1, THREADS, 1, 1, 0, None, parameters, None)
        expected = [(cell * 1664525 + number) % 2**32 for cell in expected]
    call("cuMemcpyDtoH_v2", cells, memory, ctypes.c_size_t(ctypes.sizeof(cells)))
    if list(cells) != expected:
        sys.exit(f"FAILED: {ROUNDS} rounds gave something else than on the processor")
    call("cuMemFree_v2", memory)
    call("cuCtxDestroy_v2", context)
    print(f"{ROUNDS} rounds of {CELLS} cells are right")
    return name.value.decode()


def main():
    computed, listed = compute(), name_by_nvml()
    if computed != listed:
        sys.exit(f"FAILED: CUDA has {computed}, NVML {listed}")


main()
