// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/log/packed_stream.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kagemusha::mirror {
namespace {

using words = std::vector<std::uint64_t>;
using core::launch_run;

// A stream that grows, packed at once.
struct packing {
    stream_packer packer;
    words stream;
    std::size_t items = 0; // at most

    void begin() {
        packer.begin();
        stream.clear();
        items = 0;
    }
    void literal(const words& w) {
        stream.insert(stream.end(), w.begin(), w.end());
        packer.add_literal(words(w)); // gone before it is unpacked
        ++items;
    }
    // Each of so many commands is like the one that begins `back` words before it, but for what `change` does
    // to it: change(command, number).
    template <class F>
    void run(std::uint32_t length, std::uint32_t count, std::uint32_t back, const core::word_mask& differs,
             F&& change) {
        launch_run r;
        r.at = static_cast<std::uint32_t>(stream.size());
        r.words = length;
        r.count = count;
        r.back = back;
        r.differs = differs;
        for (std::uint32_t n = 0; n < count; ++n) {
            for (std::uint32_t i = 0; i < length; ++i)
                stream.push_back(stream[stream.size() - back]);
            change(std::span(stream).last(length), n);
        }
        packer.add_run(r, back, std::span(stream).subspan(r.at));
        items += 2;
    }
    // Unpacks, compares; gives the packed length.
    std::size_t unpacked() {
        EXPECT_EQ(packer.stream_words(), stream.size());
        words back(stream.size(), 0x5a5a5a5a5a5a5a5a);
        unpack_stream(packer.packed(), back);
        EXPECT_EQ(back, stream);
        EXPECT_LE(packer.packed().size(), stream.size() + items);
        return packer.packed().size();
    }
};

words some_words(std::size_t count) {
    words out(count);
    for (std::size_t i = 0; i < count; ++i)
        out[i] = 1000 + i;
    return out;
}
core::word_mask mask_of(std::initializer_list<std::size_t> places) {
    core::word_mask out;
    for (const std::size_t p : places)
        out.set(p);
    return out;
}

TEST(packed_stream, nothing_is_nothing) {
    packing p;
    p.begin();
    EXPECT_EQ(p.unpacked(), 0u);
}

TEST(packed_stream, a_run_is_what_differs_in_it) {
    packing p;
    p.begin();
    p.literal(some_words(28));
    p.run(28, 63, 28, mask_of({27}), [](auto c, std::uint32_t n) { c[27] = n; });
    EXPECT_EQ(p.unpacked(), 1 + 28 + 2 + 63u);
}

TEST(packed_stream, a_run_of_the_same_is_two_words) {
    packing p;
    p.begin();
    p.literal(some_words(28));
    p.run(28, 2047, 28, {}, [](auto, std::uint32_t) {});
    EXPECT_EQ(p.unpacked(), 1 + 28 + 2u);
}

TEST(packed_stream, a_long_command_has_a_long_mask) {
    packing p;
    p.begin();
    p.literal(some_words(128));
    p.run(128, 3, 128, mask_of({0, 63, 64, 127}), [](auto c, std::uint32_t n) {
        for (const std::size_t w : {0, 63, 64, 127})
            c[w] = n * w;
    });
    EXPECT_EQ(p.unpacked(), 1 + 128 + 3 + 3 * 4u);
}

TEST(packed_stream, commands_of_one_length_in_turn_are_a_run_too) {
    packing p;
    p.begin();
    p.literal(some_words(60)); // two commands
    p.run(30, 10, 60, mask_of({5}), [](auto c, std::uint32_t n) { c[5] = n; });
    EXPECT_EQ(p.unpacked(), 61 + 2 + 10u);
}

TEST(packed_stream, what_is_all_different_grows_by_no_more_than_an_item) {
    packing p;
    p.begin();
    p.literal(some_words(20));
    core::word_mask all;
    for (std::size_t w = 0; w < 20; ++w)
        all.set(w);
    p.run(20, 5, 20, all, [](auto c, std::uint32_t n) {
        for (auto& w : c)
            w += 7 * n + 1;
    });
    EXPECT_EQ(p.unpacked(), 1 + 6 * 20u);
}

TEST(packed_stream, random_streams) {
    std::mt19937_64 random(3);
    const auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
    packing p;
    for (int n = 0; n < 3000 && !HasFailure(); ++n) {
        SCOPED_TRACE("stream " + std::to_string(n));
        p.begin();
        for (std::uint32_t parts = below(12); parts != 0; --parts) {
            const std::uint32_t length = 1 + below(below(4) ? 40 : 128);
            if (p.stream.size() < length || below(3) == 0) {
                p.literal(some_words(below(200)));
                continue;
            }
            core::word_mask differs;
            for (std::uint32_t changes = below(below(3) ? 4 : 130); changes != 0; --changes)
                differs.set(below(length));
            const std::uint32_t most = static_cast<std::uint32_t>(p.stream.size());
            p.run(length, 1 + below(below(2) ? 2 : 70), length + below(most - length + 1), differs,
                  [&](auto command, std::uint32_t) {
                      differs.for_each([&](std::size_t w) {
                          command[w] = below(2) ? random() : command[w]; // not all of them really do
                      });
                  });
        }
        p.unpacked();
    }
}

} // namespace
} // namespace kagemusha::mirror
