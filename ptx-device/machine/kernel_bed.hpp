// SPDX-License-Identifier: GPL-2.0-or-later
// kernel_bed: a kernel from its text, memory for it, and its run: for tests.
#pragma once

#include "build.hpp"
#include "launch.hpp"

#include "ptx-device/ptx/parser.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace kagemusha::machine {

class kernel_bed {
public:
    // The text without .version, .target and .address_size.
    explicit kernel_bed(const std::string& body)
        : text_(".version 7.0\n.target sm_70\n.address_size 64\n" + body) {
        auto parsed = ptx::parse(text_);
        EXPECT_TRUE(parsed.ok) << parsed.why.text();
        if (!parsed.ok)
            return;
        const ptx::module modules[] = {std::move(parsed.value)};
        auto built = build(modules, [this](std::uint64_t bytes, std::uint64_t) { return take(bytes); });
        EXPECT_TRUE(built.ok) << built.why.text();
        program_ = std::move(built.value);
    }

    // Memory of the device with these values.
    template <class T>
    T* memory(const std::vector<T>& values) {
        auto* p = reinterpret_cast<T*>(take(values.size() * sizeof(T)));
        std::copy(values.begin(), values.end(), p);
        return p;
    }

    const program& made() const { return program_; }

    template <class... A>
    outcome run(const std::string& kernel, std::uint32_t blocks, std::uint32_t threads, A... arguments) {
        launch_request r;
        r.grid[0] = blocks;
        r.threads[0] = threads;
        return launch(r, kernel, arguments...);
    }

    template <class... A>
    outcome launch(launch_request r, const std::string& kernel, A... arguments) {
        const auto it = program_.entries.find(kernel);
        EXPECT_NE(it, program_.entries.end()) << kernel;
        if (it == program_.entries.end())
            return {};
        r.code = &program_;
        r.kernel = it->second;
        r.memory = &map_;
        std::vector<std::uint8_t> params(it->second->entry_param_bytes);
        std::size_t k = 0;
        [[maybe_unused]] const auto put = [&](auto value) {
            ASSERT_LT(k, it->second->params.size());
            ASSERT_EQ(it->second->params[k].bytes, sizeof value);
            std::memcpy(params.data() + it->second->params[k++].offset, &value, sizeof value);
        };
        (put(arguments), ...);
        r.params = params;
        return run_grid(r);
    }

private:
    std::uint64_t take(std::uint64_t bytes) {
        storage_.push_back(std::make_unique<std::uint64_t[]>(bytes / 8 + 2));
        const auto address = reinterpret_cast<std::uint64_t>(storage_.back().get());
        const std::uint64_t begin = (address + 15) / 16 * 16;
        map_.add({begin, begin + bytes, true});
        return begin;
    }

    std::string text_;
    program program_;
    memory_map map_;
    std::vector<std::unique_ptr<std::uint64_t[]>> storage_;
};

} // namespace kagemusha::machine
