// SPDX-License-Identifier: GPL-2.0-or-later
//
// Dense and sparse linear algebra: a matrix product in tiles, a sparse matrix (CSR) times a vector, an FFT.
#include "suite/program.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdio>

namespace suite {
namespace {

std::string differs(const char* what, std::size_t at, double got, double expected) {
    char text[128];
    std::snprintf(text, sizeof text, "%s %zu is %.8g, not %.8g", what, at, got, expected);
    return text;
}

// ---- dense matrix product ----

constexpr std::size_t tile = 16;

const char* product_source = R"(
kernel void product(global const float* a, global const float* b, global float* c, uint n)
{
    local float tile_a[16][16], tile_b[16][16];
    const uint x = get_global_id(0), y = get_global_id(1), i = get_local_id(0), j = get_local_id(1);
    float sum = 0;
    for (uint k = 0; k < n; k += 16) {
        tile_a[j][i] = a[y * n + k + i];
        tile_b[j][i] = b[(k + j) * n + x];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint l = 0; l < 16; ++l)
            sum += tile_a[j][l] * tile_b[l][i];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[y * n + x] = sum;
}
)";

class dense final : public work {
public:
    dense(const gpu& device, std::size_t scale)
        : gpu_(device)
        , n_(256 * scale)
        , host_a_(floats(n_ * n_, 1))
        , host_b_(floats(n_ * n_, 2))
        , a_(device.upload(host_a_))
        , b_(device.upload(host_b_))
        , c_(device.make(n_ * n_ * sizeof(float)))
        , kernels_(device.build(product_source, {"product"})) {
        kernels_[0].with(a_, b_, c_, static_cast<cl_uint>(n_));
    }

    void once() override {
        gpu_.launch(kernels_[0], n_, n_, tile);
        gpu_.finish();
    }

    // A sample: the CPU of a guest without hardware virtualization is slow.
    std::string check() override {
        const auto c = gpu_.download<float>(c_);
        numbers random(3);
        for (int i = 0; i < 64; ++i) {
            const std::size_t x = random.below(static_cast<std::uint32_t>(n_));
            const std::size_t y = random.below(static_cast<std::uint32_t>(n_));
            double sum = 0;
            for (std::size_t k = 0; k < n_; ++k)
                sum += static_cast<double>(host_a_[y * n_ + k]) * host_b_[k * n_ + x];
            if (!(std::abs(sum - c[y * n_ + x]) < 1e-5 * static_cast<double>(n_)))
                return differs("element", y * n_ + x, c[y * n_ + x], sum);
        }
        return {};
    }

private:
    const gpu& gpu_;
    std::size_t n_;
    std::vector<float> host_a_, host_b_;
    buffer a_, b_, c_;
    std::vector<kernel> kernels_;
};

// ---- sparse matrix times vector ----

const char* sparse_source = R"(
kernel void multiply(global const uint* begin, global const uint* column, global const float* value,
                     global const float* x, global float* y)
{
    const size_t row = get_global_id(0);
    float sum = 0;
    for (uint i = begin[row]; i < begin[row + 1]; ++i)
        sum += value[i] * x[column[i]];
    y[row] = sum;
}
)";

struct rows {
    std::vector<cl_uint> begin{0}, column;

    explicit rows(std::size_t count) {
        numbers random(4);
        begin.reserve(count + 1);
        column.reserve(16 * count + count / 8);
        for (std::size_t row = 0; row < count; ++row) {
            for (std::uint32_t i = 8 + random.below(17); i > 0; --i) // 8 to 24, so rows differ in length
                column.push_back(random.below(static_cast<std::uint32_t>(count)));
            begin.push_back(static_cast<cl_uint>(column.size()));
        }
    }
};

class sparse final : public work {
public:
    sparse(const gpu& device, std::size_t scale)
        : gpu_(device)
        , scale_(scale)
        , count_((std::size_t{1} << 16) * scale)
        , host_(count_)
        , host_values_(floats(host_.column.size(), 5))
        , host_x_(floats(count_, 6))
        , begin_(device.upload(host_.begin))
        , column_(device.upload(host_.column))
        , values_(device.upload(host_values_))
        , x_(device.upload(host_x_))
        , y_(device.make(count_ * sizeof(float)))
        , kernels_(device.build(sparse_source, {"multiply"})) {
        kernels_[0].with(begin_, column_, values_, x_, y_);
    }

    void once() override {
        for (std::size_t i = 0; i < 4 * scale_; ++i)
            gpu_.launch(kernels_[0], count_);
        gpu_.finish();
    }

    std::string check() override {
        const auto y = gpu_.download<float>(y_);
        for (std::size_t row = 0; row < count_; row += 31) {
            double sum = 0;
            for (cl_uint i = host_.begin[row]; i < host_.begin[row + 1]; ++i)
                sum += static_cast<double>(host_values_[i]) * host_x_[host_.column[i]];
            if (!(std::abs(sum - y[row]) < 1e-4))
                return differs("row", row, y[row], sum);
        }
        return {};
    }

private:
    const gpu& gpu_;
    std::size_t scale_, count_;
    rows host_;
    std::vector<float> host_values_, host_x_;
    buffer begin_, column_, values_, x_, y_;
    std::vector<kernel> kernels_;
};

// ---- FFT: Stockham's, radix 2, so that nothing has to be put in order ----

const char* fft_source = R"(
kernel void stage(global const float2* from, global float2* to, uint half_n, uint done)
{
    const uint i = get_global_id(0);
    const uint k = i & (done - 1);
    const float angle = -M_PI_F * (float)k / (float)done;
    const float2 turn = (float2)(cos(angle), sin(angle));
    const float2 a = from[i], b = from[i + half_n];
    const float2 c = (float2)(b.x * turn.x - b.y * turn.y, b.x * turn.y + b.y * turn.x);
    const uint at = ((i - k) << 1) + k;
    to[at] = a + c;
    to[at + done] = a - c;
}
)";

class fft final : public work {
public:
    fft(const gpu& device, std::size_t scale)
        : gpu_(device)
        , n_(power(scale))
        , host_(floats(2 * n_, 7))
        , input_(device.upload(host_))
        , a_(device.make(n_ * 8))
        , b_(device.make(n_ * 8))
        , kernels_(device.build(fft_source, {"stage"}))
        , times_(scale) {}

    void once() override {
        for (std::size_t i = 0; i < times_; ++i) {
            const buffer* from = &input_;
            for (std::size_t done = 1; done < n_; done *= 2) {
                const buffer* to = from == &a_ ? &b_ : &a_;
                kernels_[0].with(*from, *to, static_cast<cl_uint>(n_ / 2), static_cast<cl_uint>(done));
                gpu_.launch(kernels_[0], n_ / 2);
                from = to;
            }
            result_ = from;
        }
        gpu_.finish();
    }

    std::string check() override {
        const auto bins = gpu_.download<std::complex<float>>(*result_);
        numbers random(8);
        // The CPU of a guest without hardware virtualization is slow: fewer bins of more points.
        const std::size_t some = std::max<std::size_t>(4 * least / n_, 1);
        for (std::size_t i = 0; i < some; ++i) {
            const std::size_t k = random.below(static_cast<std::uint32_t>(n_));
            const auto turn = std::polar(1.0, -2 * M_PI * static_cast<double>(k) / static_cast<double>(n_));
            std::complex<double> sum, now(1);
            for (std::size_t j = 0; j < n_; ++j, now *= turn)
                sum += now * std::complex<double>(host_[2 * j], host_[2 * j + 1]);
            // What a bin has of noise grows as its value does, with the root of the number of points.
            const double near = 0.05 * std::sqrt(static_cast<double>(n_) / static_cast<double>(least));
            if (!(std::abs(sum - std::complex<double>(bins[k])) < near))
                return differs("bin", k, bins[k].real(), sum.real());
        }
        return {};
    }

private:
    static constexpr std::size_t least = std::size_t{1} << 16;
    static std::size_t power(std::size_t scale) {
        std::size_t n = least;
        while (n < least * scale)
            n *= 2;
        return n;
    }

    const gpu& gpu_;
    std::size_t n_;
    std::vector<float> host_; // complex: real, imaginary, …
    buffer input_, a_, b_;
    std::vector<kernel> kernels_;
    std::size_t times_;
    const buffer* result_ = nullptr;
};

constexpr program programs[] = {
    {"gemm", "compute", "dense matrix product in tiles", made<dense>},
    {"spmv", "compute", "sparse matrix (CSR) times vector", made<sparse>},
    {"fft", "compute", "FFT of 65,536 points, a launch for each stage", made<fft>},
};

} // namespace

std::span<const program> linear_programs() {
    return programs;
}

} // namespace suite
