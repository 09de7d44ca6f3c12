// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/packed_stream.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "codec/encode.hpp"

namespace kagemusha::mirror {
namespace {

using words = std::vector<std::uint64_t>;

words words_of(const codec::stream_builder& b) {
    words out(b.stream().size() / 8);
    std::memcpy(out.data(), b.stream().data(), b.stream().size());
    return out;
}

std::uint64_t differing(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        mask |= std::uint64_t{a[i] != b[i]} << i;
    }
    return mask;
}

// Packs, unpacks, compares; gives the length in between. Each command in `literal` is given as words.
std::size_t there_and_back(
    stream_packer& packer, const words& stream,
    const std::function<bool(std::size_t)>& literal = [](std::size_t) { return false; }) {
    packer.begin();
    std::array<std::span<const std::uint64_t>, stream_packer::kinds> last{};
    std::size_t n = 0;
    for (std::size_t at = 0; at < stream.size(); ++n) {
        vgpu_cmd header;
        std::memcpy(&header, &stream[at], sizeof(header));
        const auto command = std::span(stream).subspan(at, header.bytes / 8);
        at += command.size();
        if (literal(n)) {
            const words copy(command.begin(), command.end()); // gone before it is unpacked
            packer.add_literal(copy);
            continue;
        }
        const auto like = packer.add(command);
        if (like.differs != UINT64_MAX) {
            EXPECT_EQ(last[like.kind].size(), command.size());
            EXPECT_EQ(like.differs, differing(command, last[like.kind]));
        }
        last[like.kind] = command;
    }
    EXPECT_EQ(packer.stream_words(), stream.size());
    words back(stream.size(), 0x5a5a5a5a5a5a5a5a);
    unpack_stream(packer.packed(), back);
    EXPECT_EQ(back, stream);
    EXPECT_LE(packer.packed().size(), stream.size() + 1 + n) << "at most an item for each command";
    return packer.packed().size();
}
std::size_t there_and_back(const words& stream) {
    stream_packer packer;
    return there_and_back(packer, stream);
}

codec::launch_size one_dimension() {
    codec::launch_size size;
    size.global[0] = 64;
    return size;
}

TEST(packed_stream, nothing_is_nothing) {
    EXPECT_EQ(there_and_back({}), 0u);
}

TEST(packed_stream, launches_that_differ_in_a_word_are_short) {
    codec::stream_builder b;
    for (std::uint32_t n = 0; n < 64; ++n) {
        b.launch({1, 0, {}}, 7, one_dimension(),
                 codec::argument_builder{}.memory(0, 3).memory(1, 4).scalar(2, 3u).scalar(3, n));
    }
    const words stream = words_of(b);
    EXPECT_EQ(there_and_back(stream), 1 + stream.size() / 64 + 63 * 3);
}

// Two kernels in turn, each with arguments of its own.
TEST(packed_stream, each_kernel_has_its_own_last_launch) {
    codec::stream_builder b;
    for (std::uint32_t n = 0; n < 32; ++n) {
        b.launch({1, 0, {}}, 7, one_dimension(), codec::argument_builder{}.memory(0, 3).scalar(1, n));
        b.launch({1, 0, {}}, 8, one_dimension(), codec::argument_builder{}.memory(0, 9).scalar(1, ~n));
    }
    const words stream = words_of(b);
    EXPECT_LE(there_and_back(stream), stream.size() / 4);
}

TEST(packed_stream, what_is_all_different_grows_by_one_word) {
    std::mt19937_64 random(1);
    words stream;
    for (int n = 0; n < 64; ++n) {
        const vgpu_cmd header{VGPU_CMD_LAUNCH, 0, 40 * 8};
        stream.emplace_back();
        std::memcpy(&stream.back(), &header, sizeof(header));
        for (int i = 1; i < 40; ++i) {
            stream.push_back(random());
        }
    }
    EXPECT_EQ(there_and_back(stream), stream.size() + 1);
}

// Commands of all lengths that are alike in some, all or no words.
TEST(packed_stream, random_streams) {
    std::mt19937_64 random(3);
    stream_packer packer;
    for (int run = 0; run < 3000; ++run) {
        words stream;
        std::vector<words> kinds;
        for (std::uint64_t commands = random() % 40; commands != 0; --commands) {
            words c;
            if (kinds.empty() || random() % 4 == 0) {
                c.resize(random() % 10 == 0 ? 1 + random() % 600 : 1 + random() % 40);
                for (std::uint64_t& w : c) {
                    w = random();
                }
                const vgpu_cmd header{static_cast<std::uint16_t>(random() % 90), 0,
                                      static_cast<std::uint32_t>(c.size() * 8)};
                std::memcpy(c.data(), &header, sizeof(header));
                kinds.push_back(c);
            } else {
                c = kinds[random() % kinds.size()];
                for (std::uint64_t changes = random() % (random() % 2 ? 3 : c.size() + 1); changes != 0;
                     --changes) {
                    if (const std::size_t at = random() % c.size(); at != 0) {
                        c[at] ^= random() % 3 == 0 ? random() : random() % 2 ? 1 : std::uint64_t{1} << 63;
                    }
                }
            }
            stream.insert(stream.end(), c.begin(), c.end());
        }
        there_and_back(packer, stream, [&](std::size_t) { return random() % 8 == 0; });
        if (HasFailure()) {
            FAIL() << "in run " << run;
        }
    }
}

} // namespace
} // namespace kagemusha::mirror
