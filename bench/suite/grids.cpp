// SPDX-License-Identifier: GPL-2.0-or-later
//
// What classical suites take from physics: a stencil over a plane, gravity between bodies.
#include "suite/program.hpp"

#include <cmath>
#include <cstdio>

namespace suite {
namespace {

std::string differs(const char* what, std::size_t at, double got, double expected) {
    char text[128];
    std::snprintf(text, sizeof text, "%s %zu is %.8g, not %.8g", what, at, got, expected);
    return text;
}

// ---- stencil: each cell becomes a mean of itself and its four neighbours; the plane has no border ----

constexpr std::size_t sweeps = 8;

const char* stencil_source = R"(
kernel void sweep(global const float* from, global float* to, uint n)
{
    const uint x = get_global_id(0), y = get_global_id(1), mask = n - 1;
    const float around = from[y * n + ((x - 1) & mask)] + from[y * n + ((x + 1) & mask)] +
                         from[((y - 1) & mask) * n + x] + from[((y + 1) & mask) * n + x];
    to[y * n + x] = 0.5f * from[y * n + x] + 0.125f * around;
}
)";

class stencil final : public work {
public:
    stencil(const gpu& device, std::size_t scale)
        : gpu_(device)
        , times_(scale)
        , n_(side(scale))
        , host_(floats(n_ * n_, 11))
        , input_(device.upload(host_))
        , a_(device.make(n_ * n_ * sizeof(float)))
        , b_(device.make(n_ * n_ * sizeof(float)))
        , kernels_(device.build(stencil_source, {"sweep"})) {}

    void once() override {
        for (std::size_t time = 0; time < times_; ++time) {
            const buffer* from = &input_;
            for (std::size_t i = 0; i < sweeps; ++i) {
                const buffer* to = from == &a_ ? &b_ : &a_;
                kernels_[0].with(*from, *to, static_cast<cl_uint>(n_));
                gpu_.launch(kernels_[0], n_, n_, 16);
                from = to;
            }
        }
        gpu_.finish();
    }

    // A cell depends on those that are at most `sweeps` away.
    std::string check() override {
        const auto got = gpu_.download<float>(sweeps % 2 ? a_ : b_);
        numbers random(12);
        for (int i = 0; i < 32; ++i) {
            const std::size_t x = random.below(static_cast<std::uint32_t>(n_));
            const std::size_t y = random.below(static_cast<std::uint32_t>(n_));
            const double expected = alone(x, y);
            if (!(std::abs(expected - got[y * n_ + x]) < 1e-5))
                return differs("cell", y * n_ + x, got[y * n_ + x], expected);
        }
        return {};
    }

private:
    // A power of two, so that the plane can be closed with a mask: the area grows with the scale.
    static std::size_t side(std::size_t scale) {
        std::size_t n = 512;
        while (n * n < 512 * 512 * scale)
            n *= 2;
        return n;
    }

    double alone(std::size_t x, std::size_t y) const {
        constexpr std::size_t width = 2 * sweeps + 1;
        std::vector<double> now(width * width), next(width * width);
        for (std::size_t j = 0; j < width; ++j)
            for (std::size_t i = 0; i < width; ++i)
                now[j * width + i] =
                    host_[((y + j - sweeps) & (n_ - 1)) * n_ + ((x + i - sweeps) & (n_ - 1))];
        for (std::size_t s = 1; s <= sweeps; ++s) {
            for (std::size_t j = s; j < width - s; ++j)
                for (std::size_t i = s; i < width - s; ++i)
                    next[j * width + i] = 0.5 * now[j * width + i] +
                                          0.125 * (now[j * width + i - 1] + now[j * width + i + 1] +
                                                   now[(j - 1) * width + i] + now[(j + 1) * width + i]);
            now.swap(next);
        }
        return now[sweeps * width + sweeps];
    }

    const gpu& gpu_;
    std::size_t times_, n_;
    std::vector<float> host_;
    buffer input_, a_, b_;
    std::vector<kernel> kernels_;
};

// ---- gravity: what each body is pulled by all others ----

constexpr double softening = 0.01;

const char* bodies_source = R"(
kernel void pull(global const float4* body, global float4* force, uint count)
{
    const float4 me = body[get_global_id(0)];
    float3 sum = 0;
    for (uint i = 0; i < count; ++i) {
        const float4 other = body[i];
        const float3 way = other.xyz - me.xyz;
        const float near = rsqrt(dot(way, way) + 0.01f);
        sum += way * (other.w * near * near * near);
    }
    force[get_global_id(0)] = (float4)(sum, 0);
}
)";

class bodies final : public work {
public:
    bodies(const gpu& device, std::size_t scale)
        : gpu_(device)
        , count_(2048 * scale)
        , host_(floats(4 * count_, 13))
        , body_(device.upload(host_))
        , force_(device.make(4 * count_ * sizeof(float)))
        , kernels_(device.build(bodies_source, {"pull"})) {
        kernels_[0].with(body_, force_, static_cast<cl_uint>(count_));
    }

    void once() override {
        gpu_.launch(kernels_[0], count_);
        gpu_.finish();
    }

    std::string check() override {
        const auto force = gpu_.download<float>(force_);
        // Pulls of many bodies nearly cancel each other out, and what floats lose on the way does not.
        const double usual = 100 * std::sqrt(static_cast<double>(count_) / 2048);
        for (std::size_t me = 5; me < count_; me += count_ / 8) {
            double sum[3] = {};
            for (std::size_t i = 0; i < count_; ++i) {
                double way[3], square = softening;
                for (std::size_t d = 0; d < 3; ++d) {
                    way[d] = static_cast<double>(host_[4 * i + d]) - host_[4 * me + d];
                    square += way[d] * way[d];
                }
                const double pull = host_[4 * i + 3] / (square * std::sqrt(square));
                for (std::size_t d = 0; d < 3; ++d)
                    sum[d] += way[d] * pull;
            }
            for (std::size_t d = 0; d < 3; ++d)
                if (!(std::abs(sum[d] - force[4 * me + d]) < 1e-3 * (std::abs(sum[d]) + usual)))
                    return differs("body", me, force[4 * me + d], sum[d]);
        }
        return {};
    }

private:
    const gpu& gpu_;
    std::size_t count_;
    std::vector<float> host_; // x, y, z, mass, …
    buffer body_, force_;
    std::vector<kernel> kernels_;
};

constexpr program programs[] = {
    {"stencil", "compute", "five-point stencil, eight sweeps", made<stencil>},
    {"nbody", "compute", "gravity between all pairs of bodies", made<bodies>},
};

} // namespace

std::span<const program> grid_programs() {
    return programs;
}

} // namespace suite
