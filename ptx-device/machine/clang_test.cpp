// SPDX-License-Identifier: GPL-2.0-or-later
// The same C, testdata/kernels.c, by clang as PTX on this device and by the host's compiler on the host: the
// same bits.
#include "kernel_bed.hpp"

#include <cmath>
#include <fstream>
#include <sstream>

extern "C" {
unsigned kernel_index;
void integers(unsigned* out, const unsigned* in, unsigned n);
void control(unsigned* out, const unsigned* in, unsigned n);
void calls(unsigned* out, const unsigned* in, unsigned n);
void floats(float* out, const float* in, unsigned n);
void doubles(double* out, const float* in, unsigned n);
}

namespace kagemusha::machine {
namespace {

constexpr unsigned count = 1500;

std::vector<std::uint32_t> words() {
    std::vector<std::uint32_t> v(count);
    std::uint32_t x = 12345;
    for (std::uint32_t& w : v) {
        x = x * 1664525 + 1013904223;
        w = x;
    }
    v[7] = 0;
    v[8] = 0x80000000;
    v[9] = 0xffffffff;
    return v;
}

std::vector<float> reals() {
    std::vector<float> v;
    for (std::uint32_t w : words())
        v.push_back(static_cast<float>(static_cast<std::int32_t>(w)) * 1e-6f);
    return v;
}

class clang_kernels : public testing::Test {
protected:
    static std::string text() {
        std::ifstream file(KAGEMUSHA_CLANG_PTX);
        EXPECT_TRUE(file) << KAGEMUSHA_CLANG_PTX;
        std::stringstream all;
        all << file.rdbuf();
        // The bed writes these three lines itself, for kernels that are part of a test.
        std::string t = all.str();
        for (const char* line : {".version", ".target", ".address_size"}) {
            const std::size_t at = t.find(line);
            EXPECT_NE(at, std::string::npos);
            t.erase(at, t.find('\n', at) - at);
        }
        return t;
    }

    template <class O, class I>
    void same(const char* name, void (*host)(O*, const I*, unsigned), const std::vector<I>& in) {
        O* out = bed.memory(std::vector<O>(count));
        I* from = bed.memory(in);
        const auto r = bed.run(name, (count + 127) / 128, 128, out, from, std::uint32_t{count});
        ASSERT_EQ(r.fault, fault_kind::none) << "line " << r.line;
        std::vector<O> wanted(count);
        for (kernel_index = 0; kernel_index < count; kernel_index++)
            host(wanted.data(), in.data(), count);
        unsigned different = 0;
        for (unsigned i = 0; i < count; i++) {
            different += std::memcmp(&wanted[i], &out[i], sizeof(O)) != 0;
            if (different == 1 && std::memcmp(&wanted[i], &out[i], sizeof(O)) != 0)
                ADD_FAILURE() << name << " of " << i << ": host " << wanted[i] << ", device " << out[i];
        }
        EXPECT_EQ(different, 0u);
    }

    kernel_bed bed{text()};
};

TEST_F(clang_kernels, Integers) {
    same("integers", &integers, words());
}
TEST_F(clang_kernels, Control) {
    same("control", &control, words());
}
TEST_F(clang_kernels, Calls) {
    same("calls", &calls, words());
}
TEST_F(clang_kernels, Floats) {
    same("floats", &floats, reals());
}
TEST_F(clang_kernels, Doubles) {
    same("doubles", &doubles, reals());
}

} // namespace
} // namespace kagemusha::machine
