// SPDX-License-Identifier: GPL-2.0-or-later
//
// One thing again and again: transfers, launches that nothing waits for, stores into a mapped buffer.
#include "suite/program.hpp"

#include <cstring>

namespace suite {
namespace {

// ---- transfers: 16 MiB there, one pass over them, 16 MiB back ----

const char* transfer_source = R"(
kernel void invert(global uint* values)
{
    values[get_global_id(0)] = ~values[get_global_id(0)];
}
)";

std::vector<cl_uint> words(std::size_t count, std::uint64_t seed) {
    numbers random(seed);
    std::vector<cl_uint> all(count);
    for (cl_uint& one : all)
        one = random.next();
    return all;
}

class transfer final : public work {
public:
    transfer(const gpu& device, std::size_t scale)
        : gpu_(device)
        , there_(words((std::size_t{4} << 20) * scale, 31))
        , back_(there_.size())
        , values_(device.make(there_.size() * sizeof(cl_uint)))
        , kernels_(device.build(transfer_source, {"invert"})) {
        kernels_[0].with(values_);
    }

    void once() override {
        gpu_.write(values_, there_.data());
        gpu_.launch(kernels_[0], there_.size());
        gpu_.read(values_, back_.data());
    }

    std::string check() override {
        for (std::size_t i = 0; i < there_.size(); ++i)
            if (back_[i] != ~there_[i])
                return "word " + std::to_string(i) + " came back wrong";
        return {};
    }

private:
    const gpu& gpu_;
    std::vector<cl_uint> there_, back_;
    buffer values_;
    std::vector<kernel> kernels_;
};

// ---- launches of next to nothing, each of which depends on the one before ----

constexpr std::size_t items = 64, burst = 1000;

const char* launch_source = R"(
kernel void advance(global uint* values, uint add)
{
    values[get_global_id(0)] = values[get_global_id(0)] * 1664525u + add;
}
)";

class launches final : public work {
public:
    launches(const gpu& device, std::size_t scale)
        : gpu_(device)
        , expected_(words(items, 32))
        , values_(device.upload(expected_))
        , kernels_(device.build(launch_source, {"advance"}))
        , burst_(burst * scale) {}

    void once() override {
        for (std::size_t i = 0; i < burst_; ++i) {
            kernels_[0].with(values_, static_cast<cl_uint>(i));
            gpu_.launch(kernels_[0], items);
        }
        gpu_.finish();
        ++done_;
    }

    std::string check() override {
        for (; done_ > 0; --done_)
            for (std::size_t i = 0; i < burst_; ++i)
                for (cl_uint& value : expected_)
                    value = value * 1664525u + static_cast<cl_uint>(i);
        return gpu_.download<cl_uint>(values_) == expected_ ? "" : "a launch is missing, or was made twice";
    }

private:
    const gpu& gpu_;
    std::vector<cl_uint> expected_;
    buffer values_;
    std::vector<kernel> kernels_;
    std::size_t burst_, done_ = 0;
};

// ---- stores into a mapped buffer: some words of every page, and every sixteenth page as a whole ----

constexpr std::size_t page_words = 1024, sums = 256;

const char* mapped_source = R"(
kernel void add_up(global const uint* values, global uint* sum, uint each)
{
    uint total = 0;
    for (uint i = 0; i < each; ++i)
        total = total * 31u + values[get_global_id(0) * each + i];
    sum[get_global_id(0)] = total;
}
)";

class mapped final : public work {
public:
    mapped(const gpu& device, std::size_t scale)
        : gpu_(device)
        , expected_((std::size_t{1} << 20) * scale)
        , sums_(sums)
        , values_(device.make(expected_.size() * sizeof(cl_uint), CL_MEM_READ_ONLY | CL_MEM_ALLOC_HOST_PTR))
        , sum_(device.make(sums * sizeof(cl_uint)))
        , kernels_(device.build(mapped_source, {"add_up"})) {
        device.write(values_, expected_.data());
        kernels_[0].with(values_, sum_, static_cast<cl_uint>(expected_.size() / sums));
    }

    void once() override {
        cl_int error;
        auto* memory =
            static_cast<cl_uint*>(clEnqueueMapBuffer(gpu_.queue(), values_.get(), CL_TRUE, CL_MAP_WRITE, 0,
                                                     values_.bytes(), 0, nullptr, nullptr, &error));
        need(error, "clEnqueueMapBuffer");
        ++round_;
        for (std::size_t page = 0; page < expected_.size() / page_words; ++page) {
            const std::size_t step = (page + round_) % 16 == 0 ? 1 : page_words / 8;
            for (std::size_t i = round_ % step; i < page_words; i += step) {
                const auto value = static_cast<cl_uint>(page * 2654435761u + i + round_);
                memory[page * page_words + i] = value;
                expected_[page * page_words + i] = value;
            }
        }
        need(clEnqueueUnmapMemObject(gpu_.queue(), values_.get(), memory, 0, nullptr, nullptr),
             "clEnqueueUnmapMemObject");
        gpu_.launch(kernels_[0], sums);
        gpu_.read(sum_, sums_.data());
    }

    std::string check() override {
        const std::size_t each = expected_.size() / sums;
        for (std::size_t i = 0; i < sums; ++i) {
            cl_uint total = 0;
            for (std::size_t j = 0; j < each; ++j)
                total = total * 31u + expected_[i * each + j];
            if (total != sums_[i])
                return "the kernel did not see a store into part " + std::to_string(i);
        }
        return {};
    }

private:
    const gpu& gpu_;
    std::vector<cl_uint> expected_, sums_;
    buffer values_, sum_;
    std::vector<kernel> kernels_;
    std::size_t round_ = 0;
};

constexpr program programs[] = {
    {"transfer", "transfer", "16 MiB to the GPU and back", made<transfer>},
    {"launches", "launch", "1,000 launches of 64 items, then a wait", made<launches>},
    {"mapped", "mapped", "stores into every page of a mapped buffer of 4 MiB", made<mapped>},
};

} // namespace

std::span<const program> loop_programs() {
    return programs;
}

} // namespace suite
