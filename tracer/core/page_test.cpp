// SPDX-License-Identifier: GPL-2.0-or-later
//
// Copies of pages, and whether each byte of them differs, against loops over bytes.
#include "tracer/core/page.h"

#include <array>
#include <gtest/gtest.h>
#include <random>

namespace {

struct alignas(KVT_PAGE_BYTES) page : std::array<u8, KVT_PAGE_BYTES> {};

page random_page(std::mt19937& random) {
    page p;
    for (u8& byte : p)
        byte = static_cast<u8>(random());
    return p;
}

// Each byte another one.
page inverted(const page& of) {
    page p = of;
    for (u8& byte : p)
        byte = static_cast<u8>(~byte);
    return p;
}

TEST(page, a_copy_is_the_same_and_all_of_it_differs_or_one_byte_does_not) {
    std::mt19937 random(2);
    static std::array<page, 3> to{};
    const page from = random_page(random);
    page before = inverted(from);
    EXPECT_TRUE(kvt_page_copy_differs(to[1].data(), from.data(), before.data()));
    EXPECT_EQ(to[1], from);
    for (u32 i = 0; i < KVT_PAGE_BYTES; ++i) {
        before[i] = from[i];
        to[1].fill(0);
        ASSERT_FALSE(kvt_page_copy_differs(to[1].data(), from.data(), before.data())) << "byte " << i;
        ASSERT_EQ(to[1], from);
        before[i] = static_cast<u8>(~from[i]);
    }
    EXPECT_FALSE(kvt_page_copy_differs(to[1].data(), from.data(), from.data()));
    EXPECT_EQ(to[0], page{});
    EXPECT_EQ(to[2], page{});
}

// It may be wrong about what it does not look at, but never says that a page can't differ when it does.
TEST(page, a_look_never_denies_a_difference) {
    std::mt19937 random(3);
    const page from = random_page(random);
    page before = inverted(from);
    EXPECT_TRUE(kvt_page_may_differ(from.data(), before.data()));
    EXPECT_FALSE(kvt_page_may_differ(from.data(), from.data()));
    u32 seen = 0;
    for (u32 i = 0; i < KVT_PAGE_BYTES; ++i) {
        before[i] = from[i];
        seen += !kvt_page_may_differ(from.data(), before.data());
        if (i == 0 || i == KVT_PAGE_BYTES - 1)
            EXPECT_FALSE(kvt_page_may_differ(from.data(), before.data())) << "byte " << i;
        before[i] = static_cast<u8>(~from[i]);
    }
    EXPECT_GE(seen, 8u);
}

} // namespace
