// SPDX-License-Identifier: GPL-2.0-or-later
//
// A program of CUDA's runtime as others write it, for nvcc: variables of the module, two streams, events, pinned memory.
// It prints what it has computed, step by step.
//
//     runtime STEPS [STOP]    STOP: a file whose existence ends it
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

static const int count = 1 << 18;
__device__ unsigned data[2][count];
__device__ unsigned long long total;
__constant__ unsigned factor;

__global__ void mix(int half, unsigned step)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned value = data[half][i] + step;
    for (int round = 0; round < 64; round++)
        value = (value ^ (value >> 15)) * factor + i;
    data[half][i] = value;
    atomicAdd(&total, (unsigned long long)value);
}

static void must(cudaError_t status, int line)
{
    if (status != cudaSuccess) {
        std::printf("FAILED in line %d: %s\n", line, cudaGetErrorString(status));
        std::exit(1);
    }
}
#define MUST(call) must(call, __LINE__)

int main(int argc, char **argv)
{
    unsigned prime = 2654435761u;
    MUST(cudaMemcpyToSymbol(factor, &prime, sizeof prime));
    cudaStream_t streams[2];
    cudaEvent_t done;
    unsigned long long *result;
    for (int i = 0; i < 2; i++)
        MUST(cudaStreamCreate(&streams[i]));
    MUST(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    MUST(cudaMallocHost(&result, sizeof *result));
    std::printf("ready\n");
    for (int step = 0; step < std::atoi(argv[1]); step++) {
        mix<<<count / 256, 256, 0, streams[0]>>>(0, step);
        mix<<<count / 256, 256, 0, streams[1]>>>(1, step + 1);
        MUST(cudaGetLastError());
        MUST(cudaEventRecord(done, streams[1]));
        MUST(cudaStreamWaitEvent(streams[0], done, 0));
        void *place;
        MUST(cudaGetSymbolAddress(&place, total));
        MUST(cudaMemcpyAsync(result, place, sizeof *result, cudaMemcpyDeviceToHost, streams[0]));
        MUST(cudaStreamSynchronize(streams[0]));
        std::printf("step %d result %llx\n", step, *result);
        std::fflush(stdout);
        if (argc > 2 && access(argv[2], F_OK) == 0)
            break;
        usleep(1000);
    }
    return 0;
}
