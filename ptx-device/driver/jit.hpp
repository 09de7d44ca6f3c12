// SPDX-License-Identifier: GPL-2.0-or-later
// jit: from texts to a program on the device, for modules and for links.
#pragma once

#include "device.hpp"
#include "image.hpp"

#include "ptx-device/machine/build.hpp"
#include "ptx-device/ptx/parser.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace kagemusha::ptx_driver {

constexpr const char* no_ptx = "the image has no PTX that this device can read: it runs no machine code";

// What a caller wants to read when its PTX is refused: CU_JIT_ERROR_LOG_BUFFER.
struct error_log {
    char* text = nullptr;
    std::size_t bytes = 0;

    error_log() = default;
    error_log(unsigned int count, const CUjit_option* options, void** values) {
        for (unsigned int k = 0; options != nullptr && values != nullptr && k < count; k++)
            if (options[k] == CU_JIT_ERROR_LOG_BUFFER)
                text = static_cast<char*>(values[k]);
            else if (options[k] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
                bytes = static_cast<unsigned int>(reinterpret_cast<std::uintptr_t>(values[k]));
    }
    void write(const std::string& sentence) const {
        static const bool verbose = std::getenv("KAGEMUSHA_VERBOSE") != nullptr;
        if (verbose)
            std::fprintf(stderr, "kagemusha: %s\n", sentence.c_str());
        if (text != nullptr && bytes != 0) {
            const std::size_t n = std::min(sentence.size(), bytes - 1);
            std::memcpy(text, sentence.data(), n);
            text[n] = '\0';
        }
    }
};

inline std::uint64_t hash_of(std::string_view text) { // FNV-1a, 64 bits
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const char octet : text)
        hash = (hash ^ static_cast<unsigned char>(octet)) * 0x100000001b3;
    return hash;
}

// A program and the memory of its variables, which goes with it.
class built_program {
public:
    explicit built_program(device& d) : device_(d) {}
    ~built_program() {
        for (const CUdeviceptr v : variables)
            device_.give_back(v);
    }
    built_program(const built_program&) = delete;
    built_program& operator=(const built_program&) = delete;

    CUresult build(const std::vector<std::string>& texts, const error_log& log) {
        std::vector<ptx::module> modules;
        for (const std::string& text : texts) {
            auto parsed = ptx::parse(text);
            if (!parsed.ok) {
                log.write(parsed.why.text());
                return CUDA_ERROR_INVALID_PTX;
            }
            modules.push_back(std::move(parsed.value));
        }
        std::uint64_t hash = 0;
        for (const std::string& text : texts)
            hash = hash * 31 + hash_of(text);
        auto built = machine::build(modules, [&](std::uint64_t bytes, std::uint64_t) {
            const CUdeviceptr place = device_.take_at(hash + variables.size(), bytes);
            if (place != 0)
                variables.push_back(place);
            return place;
        });
        if (!built.ok) {
            log.write(built.why.text());
            return CUDA_ERROR_INVALID_PTX;
        }
        code = std::move(built.value);
        return CUDA_SUCCESS;
    }

    machine::program code;
    std::vector<CUdeviceptr> variables;

private:
    device& device_;
};

} // namespace kagemusha::ptx_driver
