// SPDX-License-Identifier: GPL-2.0-or-later
// The pool of pinned memory over a driver of two functions, which counts.
#include "gpu/cuda/cuda_staging.hpp"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace kagemusha::gpu {
namespace {

std::set<void*> allocated;
std::size_t allocations;
bool full;

CUresult pin(void* memory, std::size_t bytes, unsigned) {
    if (full)
        return CUDA_ERROR_OUT_OF_MEMORY;
    static_cast<char*>(memory)[bytes - 1] = 1; // it is there
    allocated.insert(memory);
    ++allocations;
    return CUDA_SUCCESS;
}
CUresult unpin(void* memory) {
    EXPECT_EQ(allocated.erase(memory), 1u);
    return CUDA_SUCCESS;
}

class cuda_staging_fixture : public testing::Test {
protected:
    cuda_staging_fixture() {
        allocated.clear();
        allocations = 0;
        full = false;
        api.cuMemHostRegister_v2 = pin;
        api.cuMemHostUnregister = unpin;
    }
    cuda_api api{};
};

TEST_F(cuda_staging_fixture, ABlockServesAgain) {
    {
        cuda_staging pool(api);
        for (int i = 0; i < 100; ++i) {
            const auto a = pool.take(1000), b = pool.take(70000);
            EXPECT_TRUE(a.pinned() && b.pinned());
            EXPECT_EQ(a.size(), 1000u);
            EXPECT_NE(a.data(), b.data());
        }
        EXPECT_EQ(allocations, 2u);
        EXPECT_EQ(allocated.size(), 2u);
    }
    EXPECT_TRUE(allocated.empty());
}

TEST_F(cuda_staging_fixture, NoMoreThanTheLimitIsPinned) {
    cuda_staging pool(api);
    constexpr std::size_t each = cuda_staging::most_pinned_bytes / 4;
    std::vector<cuda_staging::block> held;
    for (int i = 0; i < 4; ++i)
        held.push_back(pool.take(each));
    EXPECT_TRUE(held.back().pinned());
    auto more = pool.take(100);
    EXPECT_FALSE(more.pinned());
    EXPECT_NE(more.data(), nullptr);
    held.pop_back();
    more = pool.take(100); // a larger block is better than none
    EXPECT_TRUE(more.pinned());
    EXPECT_EQ(allocations, 4u);
    EXPECT_FALSE(pool.take(cuda_staging::most_pinned_bytes + 1).pinned());
}

TEST_F(cuda_staging_fixture, AHostWithoutRoomForItStillCopies) {
    cuda_staging pool(api);
    full = true;
    const auto one = pool.take(5);
    EXPECT_FALSE(one.pinned());
    one.data()[4] = std::byte{1};
}

} // namespace
} // namespace kagemusha::gpu
