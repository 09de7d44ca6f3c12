// SPDX-License-Identifier: GPL-2.0-or-later
// A disk's part of a checkpoint as bytes: what the writer writes is read, and each broken rule is refused
// before anything is held for it (qemu-device/checkpoint-disk-stream.h).
#include <gtest/gtest.h>

#include <string>

#include "../fuzz/disk_stream.hpp"

namespace kagemusha::fuzz {

namespace {

constexpr std::uint32_t part = CHECKPOINT_DISK_PART_BYTES;
constexpr std::uint64_t disk_bytes = 100 * std::uint64_t{CHECKPOINT_DISK_ZERO_BYTES};

// Why it is refused; empty: it is taken.
std::string read(disk_reader& in, CheckpointDiskHead& head, std::uint64_t size = disk_bytes) {
    const char* why = checkpoint_disk_read_head(in.source(), &head);
    if (why == nullptr)
        why = checkpoint_disk_read_ranges(in.source(), &head, size);
    return why == nullptr ? "" : why;
}

// Ranges of which only the heads are there
std::string read_heads(std::initializer_list<CheckpointDiskRange> ranges, std::uint64_t size = disk_bytes) {
    std::vector<std::uint8_t> bytes;
    append_head(bytes, {size, false, static_cast<std::uint32_t>(ranges.size())});
    for (const CheckpointDiskRange& r : ranges)
        append_range(bytes, r);
    disk_reader in(bytes);
    CheckpointDiskHead head{};
    std::string why = read(in, head, size);
    // Of data that is refused nothing is held.
    if (!why.empty() && why != "the stream ends in it")
        EXPECT_EQ(in.held_bytes(), 0u);
    return why;
}

TEST(checkpoint_disk_stream, what_is_written_is_read) {
    const std::vector<disk_range> ranges{
        {0, part, std::vector<std::uint8_t>(part, 0x5a)},
        {2 * part, CHECKPOINT_DISK_DATA_BYTES, std::vector<std::uint8_t>(CHECKPOINT_DISK_DATA_BYTES, 0xa5)},
        {64 << 20, CHECKPOINT_DISK_ZERO_BYTES, {}},
        {disk_bytes, 77, std::vector<std::uint8_t>(77, 1)}, // the end of a disk that is not of whole parts
    };
    const auto bytes = disk_stream(disk_bytes + 77, true, ranges);
    EXPECT_EQ(bytes.size(), 13u + 4 * 13 + part + (1 << 20) + 77);
    disk_reader in(bytes);
    CheckpointDiskHead head{};
    EXPECT_EQ(read(in, head, disk_bytes + 77), "");
    EXPECT_EQ(head.size, disk_bytes + 77);
    EXPECT_TRUE(head.complete);
    EXPECT_EQ(in.ranges(), ranges);
}

// Releases of both hosts agree on them: a golden copy
TEST(checkpoint_disk_stream, bytes_are_big_endian) {
    const auto bytes = disk_stream(0x0102030405067000, true, std::vector<disk_range>{{0x1000, 0x2000, {}}});
    const std::vector<std::uint8_t> golden{1, 2, 3, 4, 5, 6, 0x70, 0, 1, 0, 0,    0, 1, //
                                           0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 0};
    EXPECT_EQ(bytes, golden);
}

TEST(checkpoint_disk_stream, a_stream_that_ends_is_refused_at_each_byte) {
    const auto bytes =
        disk_stream(disk_bytes, false,
                    std::vector<disk_range>{{0, part, std::vector<std::uint8_t>(part, 1)}, {part, part, {}}});
    for (std::size_t n = 0; n < bytes.size(); ++n) {
        const std::span all(bytes);
        disk_reader in(all.first(n));
        CheckpointDiskHead head{};
        EXPECT_EQ(read(in, head), "the stream ends in it") << n;
    }
}

TEST(checkpoint_disk_stream, ranges_lie_within_the_disk) {
    const char* why = "a range is not within the disk";
    EXPECT_EQ(read_heads({{disk_bytes - part, part, false}}), "");
    EXPECT_EQ(read_heads({{disk_bytes, part, true}}), why);
    EXPECT_EQ(read_heads({{disk_bytes - part, 2 * part, true}}), why);
    EXPECT_EQ(read_heads({{UINT64_MAX - part + 1, part, true}}), why);
    EXPECT_EQ(read_heads({{std::uint64_t{1} << 63, part, true}}), why);
    EXPECT_EQ(read_heads({{0, part, true}}, 0), why);
}

TEST(checkpoint_disk_stream, ranges_ascend_and_do_not_overlap) {
    const char* why = "its ranges overlap, or do not ascend";
    EXPECT_EQ(read_heads({{0, part, false}, {part, part, false}}), "");
    EXPECT_EQ(read_heads({{0, 2 * part, false}, {part, part, true}}), why);
    EXPECT_EQ(read_heads({{part, part, false}, {0, part, true}}), why);
    EXPECT_EQ(read_heads({{part, part, false}, {part, part, true}}), why);
}

TEST(checkpoint_disk_stream, ranges_have_a_length_within_bounds) {
    const char* why = "a range is empty, or longer than one may be";
    EXPECT_EQ(read_heads({{0, 0, false}}), why);
    EXPECT_EQ(read_heads({{0, CHECKPOINT_DISK_ZERO_BYTES, false}}), "");
    EXPECT_EQ(read_heads({{0, CHECKPOINT_DISK_ZERO_BYTES + part, false}}), why);
    EXPECT_EQ(read_heads({{0, CHECKPOINT_DISK_DATA_BYTES, true}}), "the stream ends in it");
    EXPECT_EQ(read_heads({{0, CHECKPOINT_DISK_DATA_BYTES + part, true}}), why);
}

// Each has memory of its own in whole pages: of one byte each they cost 300 times what was sent.
TEST(checkpoint_disk_stream, ranges_are_of_whole_parts) {
    const char* why = "a range is not of whole parts";
    EXPECT_EQ(read_heads({{0, 1, true}}), why);
    EXPECT_EQ(read_heads({{1, part, true}}), why);
    EXPECT_EQ(read_heads({{part - 1, 1, true}}), why);
    EXPECT_EQ(read_heads({{disk_bytes - 2 * part, part + 1, true}}), why);
    EXPECT_EQ(read_heads({{part, 1, false}}, part + 1), "");
    EXPECT_EQ(read_heads({{part, 1, false}}, part + 2), why);
}

TEST(checkpoint_disk_stream, there_are_no_more_ranges_than_a_checkpoint_can_have) {
    for (const std::uint32_t n : {CHECKPOINT_DISK_MAX_RANGES + 1u, UINT32_MAX}) {
        std::vector<std::uint8_t> bytes;
        append_head(bytes, {disk_bytes, false, n});
        disk_reader in(bytes);
        CheckpointDiskHead head{};
        EXPECT_EQ(read(in, head), "it has more ranges than a checkpoint can have");
    }
}

TEST(checkpoint_disk_stream, flags_are_0_or_1) {
    const auto good = disk_stream(disk_bytes, true, std::vector<disk_range>{{0, part, {}}});
    for (const std::size_t place : {8u, 13u + 12u}) {
        auto bytes = good;
        bytes[place] = 2;
        disk_reader in(bytes);
        CheckpointDiskHead head{};
        EXPECT_EQ(read(in, head), "a flag has another value than 0 and 1");
    }
}

// ---- copies, beside checkpoints

std::vector<std::uint8_t> copy_head(const std::string& name, std::uint64_t size, CheckpointDiskRange range) {
    std::vector<std::uint8_t> bytes(CHECKPOINT_DISK_MAX_COPY_BYTES);
    const CheckpointDiskCopy copy{name.data(), static_cast<std::uint8_t>(name.size()), size, range};
    bytes.resize(checkpoint_disk_write_copy(bytes.data(), &copy));
    return bytes;
}

std::string read_copy(const std::vector<std::uint8_t>& bytes, std::size_t data_bytes) {
    CheckpointDiskCopy copy{};
    const char* why = checkpoint_disk_read_copy(bytes.data(), bytes.size(), data_bytes, &copy);
    return why == nullptr ? "" : why;
}

TEST(checkpoint_disk_copy, what_is_written_is_read) {
    for (const std::string& name : {std::string("disk0"), std::string(), std::string(255, 'x')}) {
        const auto bytes = copy_head(name, disk_bytes, {5 * part, part, true});
        CheckpointDiskCopy copy{};
        ASSERT_EQ(checkpoint_disk_read_copy(bytes.data(), bytes.size(), part, &copy), nullptr);
        EXPECT_EQ(std::string(copy.name, copy.name_bytes), name);
        EXPECT_EQ(copy.size, disk_bytes);
        EXPECT_EQ(copy.range.offset, 5 * part);
        EXPECT_EQ(copy.range.bytes, part);
        EXPECT_TRUE(copy.range.data);
    }
    EXPECT_EQ(read_copy(copy_head("d", disk_bytes, {0, CHECKPOINT_DISK_ZERO_BYTES, false}), 0), "");
    EXPECT_EQ(read_copy(copy_head("d", part + 77, {part, 77, true}), 77), "") << "the end of a disk";
}

TEST(checkpoint_disk_copy, bytes_are_big_endian) {
    const std::vector<std::uint8_t> golden{1, 'd', 1, 2, 3, 4, 5,    6, 0x70, 0, //
                                           0, 0,   0, 0, 0, 0, 0x10, 0, 0,    0, 0x20, 0, 0};
    EXPECT_EQ(copy_head("d", 0x0102030405067000, {0x1000, 0x2000, false}), golden);
}

TEST(checkpoint_disk_copy, each_broken_rule_is_refused) {
    const auto good = copy_head("disk0", disk_bytes, {0, part, true});
    for (std::size_t n = 0; n < good.size(); ++n)
        EXPECT_NE(read_copy({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n)}, part), "") << n;
    auto longer = good;
    longer.push_back(0);
    EXPECT_NE(read_copy(longer, part), "");
    auto flag = good;
    flag.back() = 2;
    EXPECT_EQ(read_copy(flag, part), "a flag has another value than 0 and 1");
    EXPECT_EQ(read_copy(good, part - 1), "its data is not as long as its range");
    EXPECT_EQ(read_copy(good, 0), "its data is not as long as its range");
    const auto refused = [](std::uint64_t size, CheckpointDiskRange r) {
        return read_copy(copy_head("d", size, r), r.data ? r.bytes : 0);
    };
    EXPECT_EQ(refused(part, {part, part, true}), "a range is not within the disk");
    EXPECT_EQ(refused(part, {UINT64_MAX - part + 1, part, true}), "a range is not within the disk");
    EXPECT_EQ(refused(disk_bytes, {0, CHECKPOINT_DISK_DATA_BYTES + part, true}),
              "a range is empty, or longer than one may be");
    EXPECT_EQ(refused(disk_bytes, {0, 0, false}), "a range is empty, or longer than one may be");
    EXPECT_EQ(refused(disk_bytes, {1, part, true}), "a range is not of whole parts");
}

} // namespace

} // namespace kagemusha::fuzz
