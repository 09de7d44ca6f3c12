// SPDX-License-Identifier: GPL-2.0-or-later
//
// The program of `kage demo --cuda`, for the guest: trains a network on the GPU, with the CUDA driver API alone.
// A perceptron with two hidden layers of 32 learns sin(3x) cos(2y) from 128 points by gradient descent with momentum.
// Everything between two readings of the loss stays in the GPU's memory: a step that is lost or done twice changes
// each loss after it. All sums are made in a fixed order, so the same GPU gives the same bits each time.
//
//   train STEPS FILE
//
// TRAIN_LIBRARY in the environment: another library than libcuda.so.1.
//
// Prints "KAGEMUSHA-DEMO step DONE/STEPS LOSS STEPS-PER-SECOND" now and then (control/demo/guest_lines.hpp) and writes
// to FILE the loss after each of a hundred parts of the run, as "STEP:BITS" in decimal and hexadecimal. Exit status 0:
// it has done all steps.
#include "control/demo/guest/driver_calls.hpp"

#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

// The four things that it has to compute; each thread makes one number.
constexpr char kernels[] = R"(
.version 6.0
.target sm_50
.address_size 64

// c[i][j] = scale * (bias[j] + sum over p of a[i * a_row + p * a_column] * b[p * b_row + j * b_column]), for i < m, j < n,
// p < k in this order; below 0 it is 0 if relu is 1. No bias: its address is 0.
.visible .entry product(.param .u64 c_, .param .u64 a_, .param .u64 b_, .param .u64 bias_, .param .u32 m_, .param .u32 n_,
    .param .u32 k_, .param .u32 a_row_, .param .u32 a_column_, .param .u32 b_row_, .param .u32 b_column_, .param .f32 scale_,
    .param .u32 relu_)
{
    .reg .pred %p<4>;
    .reg .b32 %r<20>;
    .reg .f32 %f<8>;
    .reg .b64 %d<16>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    ld.param.u32 %r2, [m_];
    ld.param.u32 %r3, [n_];
    mul.lo.u32 %r4, %r2, %r3;
    setp.ge.u32 %p1, %r1, %r4;
    @%p1 bra done;
    div.u32 %r5, %r1, %r3;
    mul.lo.u32 %r6, %r5, %r3;
    sub.u32 %r6, %r1, %r6;
    mov.f32 %f1, 0f00000000;
    ld.param.u64 %d1, [bias_];
    setp.eq.u64 %p2, %d1, 0;
    @%p2 bra summed;
    mul.wide.u32 %d2, %r6, 4;
    add.u64 %d1, %d1, %d2;
    ld.global.f32 %f1, [%d1];
summed:
    ld.param.u64 %d3, [a_];
    ld.param.u32 %r7, [a_row_];
    mul.lo.u32 %r8, %r5, %r7;
    mul.wide.u32 %d4, %r8, 4;
    add.u64 %d3, %d3, %d4;
    ld.param.u32 %r9, [a_column_];
    mul.wide.u32 %d5, %r9, 4;
    ld.param.u64 %d6, [b_];
    ld.param.u32 %r10, [b_column_];
    mul.lo.u32 %r11, %r6, %r10;
    mul.wide.u32 %d7, %r11, 4;
    add.u64 %d6, %d6, %d7;
    ld.param.u32 %r12, [b_row_];
    mul.wide.u32 %d8, %r12, 4;
    ld.param.u32 %r13, [k_];
next:
    ld.global.f32 %f2, [%d3];
    ld.global.f32 %f3, [%d6];
    fma.rn.f32 %f1, %f2, %f3, %f1;
    add.u64 %d3, %d3, %d5;
    add.u64 %d6, %d6, %d8;
    sub.u32 %r13, %r13, 1;
    setp.ne.u32 %p3, %r13, 0;
    @%p3 bra next;
    ld.param.f32 %f4, [scale_];
    mul.rn.f32 %f1, %f1, %f4;
    ld.param.u32 %r14, [relu_];
    setp.eq.u32 %p2, %r14, 0;
    @%p2 bra store;
    max.f32 %f1, %f1, 0f00000000;
store:
    ld.param.u64 %d9, [c_];
    mul.wide.u32 %d10, %r1, 4;
    add.u64 %d9, %d9, %d10;
    st.global.f32 [%d9], %f1;
done:
    ret;
}

// Where a unit was 0, its gradient is 0.
.visible .entry mask(.param .u64 gradient_, .param .u64 unit_, .param .u32 count_)
{
    .reg .pred %p<3>;
    .reg .b32 %r<6>;
    .reg .f32 %f<3>;
    .reg .b64 %d<4>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    ld.param.u32 %r4, [count_];
    setp.ge.u32 %p1, %r1, %r4;
    @%p1 bra done;
    mul.wide.u32 %d1, %r1, 4;
    ld.param.u64 %d2, [unit_];
    add.u64 %d2, %d2, %d1;
    ld.global.f32 %f1, [%d2];
    setp.gt.f32 %p2, %f1, 0f00000000;
    @%p2 bra done;
    ld.param.u64 %d3, [gradient_];
    add.u64 %d3, %d3, %d1;
    mov.f32 %f2, 0f00000000;
    st.global.f32 [%d3], %f2;
done:
    ret;
}

// error[i] = (is[i] - due[i])^2, gradient[i] = (is[i] - due[i]) * scale
.visible .entry compare(.param .u64 gradient_, .param .u64 error_, .param .u64 is_, .param .u64 due_, .param .u32 count_,
    .param .f32 scale_)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<6>;
    .reg .b64 %d<8>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    ld.param.u32 %r4, [count_];
    setp.ge.u32 %p1, %r1, %r4;
    @%p1 bra done;
    mul.wide.u32 %d1, %r1, 4;
    ld.param.u64 %d2, [is_];
    add.u64 %d2, %d2, %d1;
    ld.global.f32 %f1, [%d2];
    ld.param.u64 %d3, [due_];
    add.u64 %d3, %d3, %d1;
    ld.global.f32 %f2, [%d3];
    sub.rn.f32 %f1, %f1, %f2;
    mul.rn.f32 %f3, %f1, %f1;
    ld.param.u64 %d4, [error_];
    add.u64 %d4, %d4, %d1;
    st.global.f32 [%d4], %f3;
    ld.param.f32 %f4, [scale_];
    mul.rn.f32 %f1, %f1, %f4;
    ld.param.u64 %d5, [gradient_];
    add.u64 %d5, %d5, %d1;
    st.global.f32 [%d5], %f1;
done:
    ret;
}

// speed[i] = momentum * speed[i] - rate * gradient[i]; weight[i] += speed[i]
.visible .entry descend(.param .u64 weight_, .param .u64 speed_, .param .u64 gradient_, .param .u32 count_,
    .param .f32 momentum_, .param .f32 rate_)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<8>;
    .reg .b64 %d<8>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    ld.param.u32 %r4, [count_];
    setp.ge.u32 %p1, %r1, %r4;
    @%p1 bra done;
    mul.wide.u32 %d1, %r1, 4;
    ld.param.u64 %d2, [speed_];
    add.u64 %d2, %d2, %d1;
    ld.global.f32 %f1, [%d2];
    ld.param.u64 %d3, [gradient_];
    add.u64 %d3, %d3, %d1;
    ld.global.f32 %f2, [%d3];
    ld.param.f32 %f3, [momentum_];
    ld.param.f32 %f4, [rate_];
    mul.rn.f32 %f1, %f1, %f3;
    mul.rn.f32 %f2, %f2, %f4;
    sub.rn.f32 %f1, %f1, %f2;
    st.global.f32 [%d2], %f1;
    ld.param.u64 %d4, [weight_];
    add.u64 %d4, %d4, %d1;
    ld.global.f32 %f5, [%d4];
    add.rn.f32 %f5, %f5, %f1;
    st.global.f32 [%d4], %f5;
done:
    ret;
}
)";

constexpr std::uint32_t points = 128, inputs = 2, hidden = 32, outputs = 1, threads = 128;
constexpr float momentum = 0.9f, rate = 0.05f;
constexpr std::uint32_t parts = 100; // of the run, each with a loss in the file

// In the one piece of memory that has all weights, in floats.
constexpr std::uint32_t weights1 = 0, bias1 = weights1 + inputs * hidden, weights2 = bias1 + hidden,
                        bias2 = weights2 + hidden * hidden, weights3 = bias2 + hidden,
                        bias3 = weights3 + hidden * outputs, weights = bias3 + outputs;

#define FUNCTIONS(X)                                                                                         \
    X(cuInit)                                                                                                \
    X(cuGetErrorName)                                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxSynchronize)                                                                                      \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleGetFunction)                                                                                   \
    X(cuLaunchKernel)                                                                                        \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemcpyHtoD_v2)                                                                                       \
    X(cuMemcpyDtoH_v2)                                                                                       \
    X(cuMemsetD32_v2)

KAGEMUSHA_CUDA_CALLS(cu, FUNCTIONS, "train");
#define NEED(call) cu.need(cu.call, #call)

// The same on each machine: weights and points must not depend on a library's generator.
class generator {
public:
    float next(float from, float to) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return from + (to - from) * static_cast<float>(state_ >> 40) / static_cast<float>(1 << 24);
    }

private:
    std::uint64_t state_ = 0x4b6167656d757368;
};

class network {
public:
    network() {
        CUcontext primary = nullptr;
        CUmodule module = nullptr;
        NEED(cuInit(0));
        NEED(cuDevicePrimaryCtxRetain(&primary, 0));
        NEED(cuCtxSetCurrent(primary));
        NEED(cuModuleLoadData(&module, kernels));
        NEED(cuModuleGetFunction(&product_, module, "product"));
        NEED(cuModuleGetFunction(&mask_, module, "mask"));
        NEED(cuModuleGetFunction(&compare_, module, "compare"));
        NEED(cuModuleGetFunction(&descend_, module, "descend"));
        for (auto* const piece : {&weight_, &speed_, &gradient_})
            *piece = memory(weights);
        for (auto* const piece : {&units1_, &units2_, &slope1_, &slope2_})
            *piece = memory(points * hidden);
        for (auto* const piece : {&input_, &due_, &output_, &slope3_, &error_, &one_, &loss_})
            *piece = memory(points * inputs);
        fill();
    }

    void step() {
        multiply(units1_, input_, weight(weights1), weight(bias1), points, hidden, inputs, {inputs, 1},
                 {hidden, 1}, 1, true);
        multiply(units2_, units1_, weight(weights2), weight(bias2), points, hidden, hidden, {hidden, 1},
                 {hidden, 1}, 1, true);
        multiply(output_, units2_, weight(weights3), weight(bias3), points, outputs, hidden, {hidden, 1},
                 {outputs, 1}, 1);
        float scale = 2.0f / points;
        std::uint32_t count = points;
        void* compared[] = {&slope3_, &error_, &output_, &due_, &count, &scale};
        launch(compare_, points, compared);
        multiply(loss_, one_, error_, 0, 1, 1, points, {0, 0}, {1, 0}, 1.0f / points);

        layer_back(units2_, slope3_, weights3, bias3, hidden, outputs);
        multiply(slope2_, slope3_, weight(weights3), 0, points, hidden, outputs, {outputs, 1}, {1, outputs},
                 1);
        hide(slope2_, units2_);
        layer_back(units1_, slope2_, weights2, bias2, hidden, hidden);
        multiply(slope1_, slope2_, weight(weights2), 0, points, hidden, hidden, {hidden, 1}, {1, hidden}, 1);
        hide(slope1_, units1_);
        layer_back(input_, slope1_, weights1, bias1, inputs, hidden);

        std::uint32_t all = weights;
        float keep = momentum, learn = rate;
        void* descended[] = {&weight_, &speed_, &gradient_, &all, &keep, &learn};
        launch(descend_, weights, descended);
    }

    float loss() {
        float value = 0;
        NEED(cuCtxSynchronize());
        NEED(cuMemcpyDtoH_v2(&value, loss_, sizeof value));
        return value;
    }

private:
    struct strides {
        std::uint32_t row, column;
    };

    static CUdeviceptr memory(std::size_t floats) {
        CUdeviceptr at = 0;
        NEED(cuMemAlloc_v2(&at, floats * sizeof(float)));
        NEED(cuMemsetD32_v2(at, 0, floats));
        return at;
    }
    CUdeviceptr weight(std::uint32_t at) const { return weight_ + at * sizeof(float); }
    CUdeviceptr gradient(std::uint32_t at) const { return gradient_ + at * sizeof(float); }

    void fill() {
        generator random;
        std::vector<float> at(points * inputs), due(points), start(weights);
        for (std::uint32_t i = 0; i < points; ++i) {
            at[2 * i] = random.next(-1, 1);
            at[2 * i + 1] = random.next(-1, 1);
            due[i] = std::sin(3 * at[2 * i]) * std::cos(2 * at[2 * i + 1]);
        }
        const auto begin = [&](std::uint32_t from, std::uint32_t to, std::uint32_t width) {
            const float most = std::sqrt(6.0f / static_cast<float>(width));
            for (auto i = from; i < to; ++i)
                start[i] = random.next(-most, most);
        };
        begin(weights1, bias1, inputs);
        begin(weights2, bias2, hidden);
        begin(weights3, bias3, hidden);
        const float one = 1;
        NEED(cuMemcpyHtoD_v2(input_, at.data(), at.size() * sizeof(float)));
        NEED(cuMemcpyHtoD_v2(due_, due.data(), due.size() * sizeof(float)));
        NEED(cuMemcpyHtoD_v2(weight_, start.data(), start.size() * sizeof(float)));
        NEED(cuMemcpyHtoD_v2(one_, &one, sizeof one));
    }

    static void launch(CUfunction function, std::uint32_t count, void** arguments) {
        NEED(cuLaunchKernel(function, (count + threads - 1) / threads, 1, 1, threads, 1, 1, 0, nullptr,
                            arguments, nullptr));
    }

    void multiply(CUdeviceptr c, CUdeviceptr a, CUdeviceptr b, CUdeviceptr bias, std::uint32_t m,
                  std::uint32_t n, std::uint32_t k, strides of_a, strides of_b, float scale,
                  bool relu = false) {
        std::uint32_t cut = relu ? 1 : 0;
        void* arguments[] = {&c,        &a,           &b,        &bias,        &m,     &n,  &k,
                             &of_a.row, &of_a.column, &of_b.row, &of_b.column, &scale, &cut};
        launch(product_, m * n, arguments);
    }

    // Gradients of a layer's weights and bias, from what went in and the slopes of what came out.
    void layer_back(CUdeviceptr in, CUdeviceptr slope, std::uint32_t to_weights, std::uint32_t to_bias,
                    std::uint32_t width, std::uint32_t out) {
        multiply(gradient(to_weights), in, slope, 0, width, out, points, {1, width}, {out, 1}, 1);
        multiply(gradient(to_bias), one_, slope, 0, 1, out, points, {0, 0}, {out, 1}, 1);
    }

    void hide(CUdeviceptr slope, CUdeviceptr units) {
        std::uint32_t count = points * hidden;
        void* arguments[] = {&slope, &units, &count};
        launch(mask_, count, arguments);
    }

    CUfunction product_ = nullptr, mask_ = nullptr, compare_ = nullptr, descend_ = nullptr;
    CUdeviceptr weight_ = 0, speed_ = 0, gradient_ = 0;
    CUdeviceptr units1_ = 0, units2_ = 0, slope1_ = 0, slope2_ = 0;
    CUdeviceptr input_ = 0, due_ = 0, output_ = 0, slope3_ = 0, error_ = 0, one_ = 0, loss_ = 0;
};

} // namespace

int main(int count, char** arguments) {
    using clock = std::chrono::steady_clock;
    const auto steps = static_cast<std::uint32_t>(count == 3 ? std::strtoul(arguments[1], nullptr, 10) : 0);
    if (steps < parts || steps > 100'000'000) {
        std::fprintf(stderr, "usage: train STEPS FILE, with 100 to 100,000,000 steps\n");
        return 2;
    }
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    std::FILE* const file = std::fopen(arguments[2], "w");
    if (!file || !cu.load(std::getenv("TRAIN_LIBRARY"))) {
        std::printf("train: cannot begin\n");
        return 1;
    }
    network net;
    const auto begin = clock::now();
    auto said = begin;
    for (std::uint32_t done = 1; done <= steps; ++done) {
        net.step();
        // Division without rest comes once for each part.
        const bool part = std::uint64_t{done} * parts / steps != std::uint64_t{done - 1} * parts / steps;
        if (!part && done != 1) // where it begins is shown, too
            continue;
        const float loss = net.loss();
        if (part) {
            std::uint32_t bits = 0;
            std::memcpy(&bits, &loss, sizeof bits);
            std::fprintf(file, "%08" PRIu32 ":%08" PRIx32 "\n", done, bits);
        }
        const auto now = clock::now();
        if (now - said < std::chrono::milliseconds(200) && done != 1 && done != steps)
            continue;
        said = now;
        std::printf("KAGEMUSHA-DEMO step %" PRIu32 "/%" PRIu32 " %.6g %.1f\n", done, steps,
                    static_cast<double>(loss), done / std::chrono::duration<double>(now - begin).count());
    }
    return std::fclose(file) == 0 ? 0 : 1;
}
