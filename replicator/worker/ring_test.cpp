// SPDX-License-Identifier: GPL-2.0-or-later
// Tests of the rings: order, wrap-around, bounds, wake-ups, and a peer that lies.
#include "worker/ring.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "worker/look_for.hpp"

namespace kagemusha::worker {
namespace {

constexpr std::size_t test_ring_bytes = 256;

struct ring_fixture : ::testing::Test {
    alignas(8) std::byte data[test_ring_bytes]{};
    ring_control control{};
    ring_writer writer{{&control, data}};
    ring_reader reader{{&control, data}, 128};

    ring_status write(std::span<const std::byte> bytes, record_type type = record_type::guest) {
        return writer.write(type, {&bytes, 1});
    }
    // The next record, or an empty one.
    std::vector<std::byte> read() {
        record_type type;
        std::span<const std::byte> record;
        if (reader.read(type, record) != ring_status::ok)
            return {};
        return {record.begin(), record.end()};
    }
    ring_status read_status() {
        record_type type;
        std::span<const std::byte> record;
        return reader.read(type, record);
    }
};

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
    std::vector<std::byte> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        out[i] = static_cast<std::byte>(seed + i);
    return out;
}

TEST_F(ring_fixture, starts_empty) {
    EXPECT_EQ(read_status(), ring_status::nothing);
    EXPECT_EQ(writer.backlog(), 0u);
}

TEST_F(ring_fixture, keeps_order_and_content_over_many_rounds) {
    for (unsigned i = 0; i < 1000; ++i) {
        const auto a = pattern(i % 97, i), b = pattern((i * 7) % 97, i + 1);
        ASSERT_EQ(write(a), ring_status::ok);
        ASSERT_EQ(write(b), ring_status::ok);
        ASSERT_EQ(read(), a);
        ASSERT_EQ(read(), b);
        ASSERT_EQ(read_status(), ring_status::nothing);
    }
}

TEST_F(ring_fixture, gathers_parts) {
    const auto a = pattern(3, 1), b = pattern(0, 0), c = pattern(14, 9);
    const std::span<const std::byte> all[] = {a, b, c};
    ASSERT_EQ(writer.write(record_type::done, all), ring_status::ok);
    record_type type;
    std::span<const std::byte> record;
    ASSERT_EQ(reader.read(type, record), ring_status::ok);
    EXPECT_EQ(type, record_type::done);
    ASSERT_EQ(record.size(), 17u);
    EXPECT_EQ(std::memcmp(record.data(), a.data(), 3), 0);
    EXPECT_EQ(std::memcmp(record.data() + 3, c.data(), 14), 0);
}

TEST_F(ring_fixture, a_full_ring_takes_nothing_and_loses_nothing) {
    const auto record = pattern(56, 3); // 64 bytes with its frame: four fit
    for (int i = 0; i < 4; ++i)
        ASSERT_EQ(write(record), ring_status::ok);
    EXPECT_EQ(write(record), ring_status::nothing);
    EXPECT_EQ(writer.backlog(), test_ring_bytes);
    EXPECT_EQ(read(), record);
    EXPECT_EQ(write(record), ring_status::ok);
    for (int i = 0; i < 4; ++i)
        EXPECT_EQ(read(), record);
    EXPECT_EQ(read_status(), ring_status::nothing);
}

TEST_F(ring_fixture, wakes_only_a_sleeping_reader_and_only_once) {
    EXPECT_FALSE(writer.reader_needs_wake());
    ASSERT_TRUE(reader.prepare_sleep());
    ASSERT_EQ(write(pattern(8, 0)), ring_status::ok);
    EXPECT_TRUE(writer.reader_needs_wake());
    EXPECT_FALSE(writer.reader_needs_wake());
    EXPECT_FALSE(reader.prepare_sleep()) << "there is a record";
    EXPECT_FALSE(writer.reader_needs_wake());
}

TEST_F(ring_fixture, reader_refuses_an_index_beyond_the_ring) {
    control.written = test_ring_bytes + 8;
    EXPECT_EQ(read_status(), ring_status::broken);
    control.written = ~std::uint64_t{0};
    EXPECT_EQ(read_status(), ring_status::broken);
}

TEST_F(ring_fixture, reader_refuses_a_crooked_index) {
    control.written = 12;
    EXPECT_EQ(read_status(), ring_status::broken);
}

TEST_F(ring_fixture, reader_refuses_an_index_that_goes_back) {
    ASSERT_EQ(write(pattern(8, 0)), ring_status::ok);
    ASSERT_EQ(read().size(), 8u);
    control.written = 0;
    EXPECT_EQ(read_status(), ring_status::broken);
}

TEST_F(ring_fixture, reader_refuses_a_record_longer_than_what_was_written) {
    ASSERT_EQ(write(pattern(8, 0)), ring_status::ok);
    const std::uint32_t lie = 9;
    std::memcpy(data, &lie, sizeof lie);
    EXPECT_EQ(read_status(), ring_status::broken);
}

TEST_F(ring_fixture, reader_refuses_a_record_above_its_bound) {
    ASSERT_EQ(write(pattern(129, 0)), ring_status::ok);
    EXPECT_EQ(read_status(), ring_status::broken);
}

TEST_F(ring_fixture, reader_refuses_a_length_that_overflows) {
    ASSERT_EQ(write(pattern(8, 0)), ring_status::ok);
    const std::uint32_t lie = UINT32_MAX;
    std::memcpy(data, &lie, sizeof lie);
    EXPECT_EQ(read_status(), ring_status::broken);
}

TEST_F(ring_fixture, writer_refuses_a_reader_that_read_the_future) {
    control.read = 8;
    EXPECT_EQ(write(pattern(8, 0)), ring_status::broken);
}

TEST_F(ring_fixture, writer_refuses_a_reader_that_goes_back) {
    for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(write(pattern(56, 0)), ring_status::ok);
        ASSERT_EQ(read().size(), 56u);
    }
    control.read = 0;
    EXPECT_EQ(write(pattern(56, 0)), ring_status::broken);
}

TEST_F(ring_fixture, a_reader_that_never_reads_only_fills_the_ring) {
    int written = 0;
    while (write(pattern(24, 0)) == ring_status::ok)
        ++written;
    EXPECT_EQ(written, 8);
}

// Random scribbling over everything that is shared: the reader says broken or gives records within the bound.
TEST_F(ring_fixture, reader_survives_garbage) {
    std::mt19937_64 random(42);
    int records = 0, broken = 0;
    for (int round = 0; round < 20000; ++round) {
        for (auto& byte : data)
            byte = static_cast<std::byte>(random() % 3 == 0 ? random() % 64 : 0);
        control.written = control.read + 8 * (random() % 40);
        ring_reader fresh({&control, data}, 128);
        control.written = 8 * (random() % 40);
        record_type type;
        std::span<const std::byte> record;
        for (;;) {
            const ring_status status = fresh.read(type, record);
            if (status != ring_status::ok) {
                broken += status == ring_status::broken;
                break;
            }
            ASSERT_LE(record.size(), 128u);
            ++records;
        }
    }
    EXPECT_GT(records, 0);
    EXPECT_GT(broken, 0);
}

TEST(ring, two_threads_pass_everything_in_order) {
    auto memory = std::make_unique<channel_memory>();
    constexpr std::uint64_t count = 200000;
    std::thread producer([&] {
        ring_writer writer(memory->completion_ring());
        for (std::uint64_t i = 0; i < count;) {
            const std::uint64_t words[3] = {i, ~i, i * i};
            const std::span<const std::byte> part = std::as_bytes(std::span(words, 1 + i % 3));
            const ring_status status = writer.write(record_type::guest, {&part, 1});
            ASSERT_NE(status, ring_status::broken);
            if (status == ring_status::ok)
                ++i;
            else
                std::this_thread::yield();
        }
    });
    ring_reader reader(memory->completion_ring(), max_answer_bytes);
    for (std::uint64_t i = 0; i < count;) {
        record_type type;
        std::span<const std::byte> record;
        const ring_status status = reader.read(type, record);
        if (status == ring_status::nothing) {
            std::this_thread::yield();
            continue;
        }
        const bool good = status == ring_status::ok && record.size() == 8 * (1 + i % 3) &&
                          std::memcmp(record.data(), &i, 8) == 0;
        if (!good) {
            ADD_FAILURE() << "record " << i;
            break;
        }
        ++i;
    }
    producer.join();
}

TEST_F(ring_fixture, has_news_until_everything_was_read) {
    EXPECT_FALSE(reader.has_news());
    const std::uint64_t value = 1;
    ASSERT_EQ(write(std::as_bytes(std::span(&value, 1))), ring_status::ok);
    EXPECT_TRUE(reader.has_news());
    EXPECT_EQ(read().size(), sizeof value);
    EXPECT_FALSE(reader.has_news());
    control.written = 12345; // a liar's: the next read says that the ring is broken
    EXPECT_TRUE(reader.has_news());
}

TEST(look_for, ends_with_what_is_found_or_with_the_time) {
    int asked = 0;
    const auto tenth = [&] { return ++asked == 10; };
    EXPECT_TRUE(look_for(std::chrono::hours(1), tenth));
    EXPECT_FALSE(look_for(std::chrono::nanoseconds(1), [] { return false; }));
    EXPECT_FALSE(look_for(std::chrono::nanoseconds(0), tenth));
    EXPECT_EQ(asked, 10) << "without time nobody is asked";
}

} // namespace
} // namespace kagemusha::worker
