// SPDX-License-Identifier: GPL-2.0-or-later
#include "shared_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace kagemusha::opencl {
namespace {

constexpr std::uint64_t arena_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t payload_bytes = std::uint64_t{2} << 20;
constexpr std::uint64_t smallest_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t page = shared_pages::page_bytes;

std::byte* memory_of_program(std::uint64_t bytes, void* where = nullptr) {
    void* const got = ::mmap(where, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0), -1, 0);
    return got == MAP_FAILED ? nullptr : static_cast<std::byte*>(got);
}

class shared_pages_test : public ::testing::Test {
protected:
    void SetUp() override {
        fd_ = ::memfd_create("shared-pages-test", MFD_CLOEXEC);
        ASSERT_EQ(::ftruncate(fd_, arena_bytes), 0);
        void* const all = ::mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        ASSERT_NE(all, MAP_FAILED);
        arena_ = static_cast<std::byte*>(all);
        pages_ = std::make_unique<shared_pages>(fd_, "shared-pages-test", arena_, ranges_, smallest_bytes);
        program_ = memory_of_program(2 * payload_bytes);
        ASSERT_TRUE(program_);
        for (std::uint64_t i = 0; i < 2 * payload_bytes; ++i)
            program_[i] = std::byte(i / page + i);
    }
    void TearDown() override {
        ::munmap(program_, 2 * payload_bytes);
        ::munmap(arena_, arena_bytes);
        ::close(fd_);
    }
    bool is_free(std::uint64_t bytes) {
        std::uint64_t offset = 0;
        if (!ranges_.allocate(bytes, offset))
            return false;
        ranges_.release(offset, bytes);
        return true;
    }

    int fd_ = -1;
    std::byte* arena_ = nullptr;
    std::byte* program_ = nullptr;
    range_allocator ranges_{arena_bytes};
    std::unique_ptr<shared_pages> pages_;
};

TEST_F(shared_pages_test, what_the_program_writes_is_in_the_arena_and_the_other_way) {
    const auto place = pages_->share(program_, payload_bytes);
    ASSERT_TRUE(place);
    EXPECT_EQ(place->begin, 0u);
    EXPECT_EQ(place->end, payload_bytes);
    EXPECT_TRUE(std::equal(program_, program_ + payload_bytes, arena_ + place->offset));
    program_[page + 7] = std::byte{77};
    EXPECT_EQ(arena_[place->offset + page + 7], std::byte{77});
    arena_[place->offset + payload_bytes - 1] = std::byte{78};
    EXPECT_EQ(program_[payload_bytes - 1], std::byte{78});
}

TEST_F(shared_pages_test, a_part_of_what_is_shared_is_where_the_whole_is) {
    const auto whole = pages_->share(program_, payload_bytes);
    const auto part = pages_->share(program_ + 100, payload_bytes / 2);
    ASSERT_TRUE(whole && part);
    EXPECT_EQ(part->offset, whole->offset + 100);
    EXPECT_EQ(part->end, payload_bytes / 2);
}

TEST_F(shared_pages_test, pages_that_hold_more_than_the_payload_stay_the_programs) {
    const auto place = pages_->share(program_ + 100, payload_bytes);
    ASSERT_TRUE(place);
    EXPECT_EQ(place->begin, page - 100);
    EXPECT_EQ(place->end, payload_bytes - 100);
    EXPECT_TRUE(std::equal(program_ + page, program_ + payload_bytes, arena_ + place->offset + place->begin));
    program_[100] = std::byte{1};
    arena_[place->offset] = std::byte{2};
    EXPECT_EQ(program_[100], std::byte{1});
}

TEST_F(shared_pages_test, a_small_payload_and_one_that_is_shared_in_part_are_to_be_copied) {
    EXPECT_FALSE(pages_->share(program_, smallest_bytes - 1));
    shared_pages all(fd_, "shared-pages-test", arena_, ranges_, 1);
    EXPECT_FALSE(all.share(program_ + 1, 2 * page - 2)); // has no whole page
    ASSERT_TRUE(pages_->share(program_, payload_bytes));
    EXPECT_FALSE(pages_->share(program_ + payload_bytes / 2, payload_bytes));
    EXPECT_TRUE(pages_->share(program_ + payload_bytes, payload_bytes));
}

TEST_F(shared_pages_test, other_memory_at_the_address_is_noticed_and_the_arena_takes_its_pages_back) {
    for (int i = 0; i < 100; ++i) { // more than the arena has room for
        const auto place = pages_->share(program_, payload_bytes);
        ASSERT_TRUE(place) << i;
        ASSERT_TRUE(memory_of_program(payload_bytes, program_));
        program_[page] = std::byte(i + 1);
        const auto other = pages_->share(program_, payload_bytes);
        ASSERT_TRUE(other) << i;
        ASSERT_EQ(arena_[other->offset + page], std::byte(i + 1));
        ASSERT_EQ(arena_[other->offset], std::byte{0});
        ASSERT_TRUE(memory_of_program(payload_bytes, program_));
    }
}

TEST_F(shared_pages_test, a_range_of_which_the_program_keeps_a_part_is_not_used_again) {
    ASSERT_TRUE(pages_->share(program_, payload_bytes));
    const std::uint64_t rest = arena_bytes - payload_bytes - 2 * page;
    EXPECT_TRUE(is_free(rest));
    ASSERT_TRUE(memory_of_program(page, program_));
    const std::byte kept = program_[page];
    EXPECT_FALSE(is_free(arena_bytes));
    ASSERT_TRUE(pages_->share(program_, payload_bytes));
    EXPECT_EQ(program_[0], std::byte{0});
    EXPECT_EQ(program_[page], kept);
    EXPECT_FALSE(is_free(rest));
}

} // namespace
} // namespace kagemusha::opencl
