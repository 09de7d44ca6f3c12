# SPDX-License-Identifier: GPL-2.0-or-later
"""
Programs of JAX, CuPy, numba and cuda.core as others write them, and one of the driver API alone: each keeps something on the GPU,
changes it step by step, and prints a line with what it has become. They know nothing of this project, draw no random numbers from
the machine and leave no sum to chance, so two runs on one kind of GPU print the same.

    arrays.py jax|cupy|numba|core|driver STEPS [STOP]    # STOP: a file whose existence ends it
"""
import ctypes
import hashlib
import os
import sys

KERNEL = r"""
extern "C" __global__ void mix(unsigned *data, unsigned count, unsigned step)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        unsigned value = data[i] + step;
        for (int round = 0; round < 64; round++)
            value = (value ^ (value >> 15)) * 2654435761u + i;
        data[i] = value;
    }
}
"""
# The same loop for GPUs of all generations, for who has no compiler.
PTX = b"""
.version 6.0
.target sm_30
.address_size 64
.visible .entry mix(.param .u64 data, .param .u32 count, .param .u32 step)
{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [data];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [step];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    mul.wide.u32 %d2, %r6, 4;
    add.u64 %d1, %d1, %d2;
    ld.global.u32 %r7, [%d1];
    add.u32 %r7, %r7, %r2;
    mov.u32 %r8, 0;
AGAIN:
    shr.u32 %r9, %r7, 15;
    xor.b32 %r7, %r7, %r9;
    mad.lo.u32 %r7, %r7, 2654435761, %r6;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p2, %r8, 64;
    @%p2 bra AGAIN;
    st.global.u32 [%d1], %r7;
END:
    ret;
}
"""


def digest(content):
    return hashlib.md5(content).hexdigest()


def with_jax():
    """A network of two layers, trained by gradient descent."""
    import jax
    from jax import numpy

    keys = jax.random.split(jax.random.key(1), 4)
    weights = [jax.random.normal(keys[0], (512, 1024)) * 0.05, jax.random.normal(keys[1], (1024, 512)) * 0.05]
    inputs, wanted = jax.random.normal(keys[2], (256, 512)), jax.random.normal(keys[3], (256, 512))

    def loss_of(weights):
        return numpy.mean((numpy.tanh(inputs @ weights[0]) @ weights[1] - wanted) ** 2)

    @jax.jit
    def improved(weights):
        loss, slopes = jax.value_and_grad(loss_of)(weights)
        return loss, [weight - 0.5 * slope for weight, slope in zip(weights, slopes)]

    state = [weights]

    def step(_):
        loss, state[0] = improved(state[0])
        return repr(float(loss))
    return step, f"jax {jax.__version__}, {jax.devices()[0]}"


def with_cupy():
    """Products, kernels that it writes itself, a sum and a kernel of the program's."""
    import cupy

    kernel = cupy.RawKernel(KERNEL, "mix")
    data = cupy.arange(1 << 18, dtype=cupy.uint32)
    matrix = cupy.linspace(-1, 1, 512 * 512, dtype=cupy.float32).reshape(512, 512)
    state = [matrix]

    def step(number):
        kernel((1 << 10,), (256,), (data, cupy.uint32(1 << 18), cupy.uint32(number)))
        state[0] = cupy.tanh(state[0] @ matrix * 0.01 + cupy.sin(matrix + number))
        return f"{int(data.sum())} {float(state[0].sum())!r}"
    return step, f"cupy {cupy.__version__}"


def with_numba():
    """Threads that work together in shared memory, and add to one place."""
    import numpy
    for old, new in (("row_stack", "vstack"), ("trapz", "trapezoid"), ("in1d", "isin")):  # numba asks for them; NumPy 2.5 has the new names
        if not hasattr(numpy, old):
            setattr(numpy, old, getattr(numpy, new))
    import numba
    from numba import cuda

    @cuda.jit
    def mix(data, total, number):
        shared = cuda.shared.array(256, numba.uint32)
        i, own = cuda.grid(1), cuda.threadIdx.x
        shared[own] = data[i]
        cuda.syncthreads()
        data[i] = (shared[own] * numba.uint32(1664525) + shared[255 - own] + number) & numba.uint32(0xFFFFFFFF)
        cuda.atomic.add(total, 0, data[i] & 1023)

    data = cuda.to_device(numpy.arange(1 << 18, dtype=numpy.uint32))
    total = cuda.to_device(numpy.zeros(1, numpy.uint64))
    stream = cuda.stream()

    def step(number):
        mix[1 << 10, 256, stream](data, total, numpy.uint32(number))
        stream.synchronize()
        return f"{int(total.copy_to_host()[0])} {digest(data.copy_to_host().tobytes())}"
    return step, f"numba {numba.__version__}"


def with_core():
    """NVIDIA's Python for the driver API, its kernels by NVRTC."""
    from cuda.bindings import driver
    try:
        from cuda import core
        core.Device  # of 1.x
    except (ImportError, AttributeError):
        from cuda.core import experimental as core

    device = core.Device()
    device.set_current()
    stream = device.create_stream()
    options = core.ProgramOptions(arch="sm_%d%d" % tuple(device.compute_capability))
    kernel = core.Program(KERNEL, code_type="c++", options=options).compile("cubin").get_kernel("mix")
    count = 1 << 18
    data = device.allocate(4 * count, stream=stream)
    content = (ctypes.c_uint32 * count)(*range(count))
    stream.sync()
    driver.cuMemcpyHtoD(int(data.handle), ctypes.addressof(content), 4 * count)

    def step(number):
        core.launch(stream, core.LaunchConfig(grid=count // 256, block=256), kernel, int(data.handle), ctypes.c_uint32(count),
                    ctypes.c_uint32(number))
        stream.sync()
        status, = driver.cuMemcpyDtoH(ctypes.addressof(content), int(data.handle), 4 * count)
        return f"{int(status)} {digest(bytes(content))}"
    return step, f"cuda.core, {device.name}"


def with_driver():
    """libcuda.so.1 by ctypes."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def must(name, *arguments):
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            sys.exit(f"{name}: {status}")

    count = 1 << 12
    context, module, kernel, data = (ctypes.c_void_p() for _ in range(4))
    must("cuInit", 0)
    must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    must("cuCtxSetCurrent", context)
    must("cuModuleLoadData", ctypes.byref(module), PTX)
    must("cuModuleGetFunction", ctypes.byref(kernel), module, b"mix")
    must("cuMemAlloc_v2", ctypes.byref(data), ctypes.c_size_t(4 * count))
    must("cuMemsetD32_v2", data, 1, ctypes.c_size_t(count))
    content = (ctypes.c_uint32 * count)()

    def step(number):
        words = [data, ctypes.c_uint32(count), ctypes.c_uint32(number)]
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(word) for word in words))
        must("cuLaunchKernel", kernel, count // 128, 1, 1, 128, 1, 1, 0, None, pointers, None)
        must("cuMemcpyDtoH_v2", content, data, ctypes.c_size_t(4 * count))
        return digest(bytes(content))
    return step, "libcuda.so.1"


def main():
    step, name = {"jax": with_jax, "cupy": with_cupy, "numba": with_numba, "core": with_core, "driver": with_driver}[sys.argv[1]]()
    print(f"ready, {name}", flush=True)
    for number in range(int(sys.argv[2])):
        print(f"step {number} result {step(number)}", flush=True)
        if len(sys.argv) > 3 and os.path.exists(sys.argv[3]):
            return


main()
