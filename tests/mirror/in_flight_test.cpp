// SPDX-License-Identifier: GPL-2.0-or-later
// Guest memory that requests in flight write: what the guest was told of is in the checkpoint, and who goes
// on from it does not write it again. The primary dies with many requests open, each a case of its own: every
// sequence of reads, writes and fills, held up by a user event at every place, so that the checkpoint falls
// between any completion and its request's answer; on one in-order queue, on two, or on an out-of-order one;
// with reads into memory and into the window, of buffers and of images; whether or not the guest stores into
// the memory when it was told.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codec/cl_numbers.hpp"
#include "tests/support/protected_guest.hpp"

namespace kagemusha::test {
namespace {

const backend_case cases[] = {
    {"null", "null", "memory=1", true, false},
    {"pocl", "opencl", "", false, true},
};

enum class kind : std::uint8_t { read, silent_read, fill, write };
enum class queues : std::uint8_t { one, two, out_of_order };

constexpr std::uint64_t page = 4096, words = page / 4, length = 3;
constexpr std::uint32_t of_guest = 0xee000000;
constexpr std::uint64_t side = 32; // of an image of a page
constexpr codec::box nowhere{{0, 0, 0}}, everything{{side, side, 1}};

struct one_case {
    kind commands[length];
    std::size_t gate; // this command and those behind it wait for the user event
    queues order;
    bool stores; // the guest stores into memory that it was told of
    bool images = false;
    std::uint64_t at = 0;
    std::uint32_t region = 0;
    std::uint64_t queue[2] = {}, buffer = 0, image = 0, gate_event = 0, event[length] = {};

    std::uint64_t slot(std::size_t i) const { return at + i * page; }
    bool reads(std::size_t i) const { return commands[i] == kind::read || commands[i] == kind::silent_read; }
    // What the buffer holds when command i is executed.
    std::uint32_t value_at(std::size_t i) const {
        std::uint32_t value = 0;
        for (std::size_t k = 0; k < i; ++k)
            if (!reads(k))
                value = static_cast<std::uint32_t>(at + k + 1);
        return value;
    }
    // Whether the guest can know at the checkpoint that command i is over.
    bool known(std::size_t i) const {
        for (std::size_t k = i; k < gate; ++k)
            if (event[k] != 0)
                return k == i || order != queues::two || k > i; // each waits for the one before it
        return false;
    }
    std::string text() const {
        std::string out;
        for (const kind k : commands) {
            out += k == kind::read          ? "read "
                   : k == kind::silent_read ? "silent "
                   : k == kind::fill        ? "fill "
                                            : "write ";
        }
        return out + "gate " + std::to_string(gate) + " queues " + std::to_string(static_cast<int>(order)) +
               (stores ? " stores" : "") + (images ? " images" : "") + " region " + std::to_string(region);
    }

    void prepare(guest& g, std::uint64_t context) {
        const bool out_of_order = order == queues::out_of_order;
        queue[0] = g.queue(context, out_of_order ? codec::cl_queue_out_of_order : 0);
        queue[1] = order == queues::two ? g.queue(context) : queue[0];
        buffer = g.buffer(context, length * page); // an image is filled from its pages
        gate_event = g.new_id();
        codec::stream_builder b;
        g.ok(b.create_user_event(gate_event, context));
        b = {};
        const std::uint32_t zero = 0;
        if (!images) // these fills have no order
            b.fill_buffer({queue[0], 0, {}}, buffer, 0, page, std::as_bytes(std::span(&zero, 1)));
        for (std::size_t i = 0; i < length && images; ++i) {
            const auto value = static_cast<std::uint32_t>(at + i + 1);
            b.fill_buffer({queue[0], 0, {}}, buffer, i * page, page, std::as_bytes(std::span(&value, 1)));
        }
        g.ok(b);
        if (images) {
            image = g.new_id();
            b = {};
            g.ok(b.create_image_2d(image, context, side, side));
            b = {};
            g.ok(b.fill_image({queue[0], 0, {}}, image, nowhere, everything)); // with 0
        }
        g.finish(queue[0]);
        for (std::size_t i = 0; i < length; ++i) { // what stands there before
            std::fill_n(g.memory_as<std::uint32_t>(slot(i), region), words, 0xdead0000u);
            if (commands[i] == kind::write) {
                std::fill_n(g.memory_as<std::uint32_t>(slot(i), region), words,
                            static_cast<std::uint32_t>(at + i + 1));
            }
        }
    }
    void submit(guest& g) {
        codec::stream_builder b;
        std::uint64_t before = 0;
        for (std::size_t i = 0; i < length; ++i) {
            event[i] = commands[i] == kind::silent_read && order == queues::one ? 0 : g.new_id();
            codec::enqueue_ref e{queue[i % 2], event[i], {}};
            if (before != 0 && order != queues::one)
                e.waits.push_back(before);
            if (i == gate)
                e.waits.push_back(gate_event);
            before = event[i];
            const std::uint32_t value = static_cast<std::uint32_t>(at + i + 1);
            if (images) {
                submit_image(b, e, i);
                continue;
            }
            switch (commands[i]) {
            case kind::read:
            case kind::silent_read:
                b.read_buffer(e, buffer, 0, b.payload(true, region, slot(i), page));
                break;
            case kind::write:
                b.write_buffer(e, buffer, 0, b.payload(false, region, slot(i), page));
                break;
            case kind::fill:
                b.fill_buffer(e, buffer, 0, page, std::as_bytes(std::span(&value, 1)));
                break;
            }
        }
        g.submit(b);
    }
    void submit_image(codec::stream_builder& b, const codec::enqueue_ref& e, std::size_t i) const {
        if (commands[i] == kind::fill) {
            b.copy_image_buffer(false, e, image, buffer, nowhere, everything, i * page);
        } else {
            b.transfer_image(!reads(i), e, image, nowhere, everything, side * 4, 0,
                             b.payload(reads(i), region, slot(i), page));
        }
    }
    void wait_reported(const guest& g) const {
        for (std::size_t i = 0; i < gate && i < length; ++i)
            if (event[i] != 0)
                host::wait([&] { return g.completed(event[i]); }, "what is before the gate");
    }
    void store(guest& g) const {
        for (std::size_t i = 0; i < length && stores; ++i) {
            if (known(i)) {
                std::fill_n(g.memory_as<std::uint32_t>(slot(i), region), words,
                            of_guest + static_cast<std::uint32_t>(i));
            }
        }
    }
    void check(const guest& g, bool over, const char* when) const {
        for (std::size_t i = 0; i < length; ++i) {
            if (!reads(i) || !(over || known(i)))
                continue;
            const std::uint32_t expected =
                stores && known(i) ? of_guest + static_cast<std::uint32_t>(i) : value_at(i);
            const auto* const slot_words = g.memory_as<std::uint32_t>(slot(i), region);
            for (const std::uint64_t w : {std::uint64_t{0}, words - 1}) {
                ASSERT_EQ(slot_words[w], expected)
                    << when << ": word " << w << " of command " << i << " of: " << text();
            }
        }
    }
};

class in_flight : public testing::TestWithParam<backend_case>, protected protected_guest {
protected:
    in_flight() : protected_guest(GetParam(), 32u << 20, 32u << 20, 64 << 20) {}

    // At most `at_once` requests are open at once; with those that set their events, twice as many, which is
    // less than a file may have.
    void run(const std::vector<one_case>& all, std::size_t at_once) {
        for (std::size_t first = 0; first < all.size() && !HasFailure(); first += at_once) {
            start();
            ASSERT_TRUE(take());
            const auto end = std::min(all.size(), first + at_once);
            std::vector<one_case> some(all.begin() + static_cast<std::ptrdiff_t>(first),
                                       all.begin() + static_cast<std::ptrdiff_t>(end));
            const std::uint64_t context = primary->context();
            std::uint64_t at = page;
            for (one_case& c : some) {
                c.at = at;
                at += length * page;
                c.prepare(*primary, context);
                if (kagemusha_device_congested(primary->device()))
                    take_next();
            }
            take_next(); // memory is as it was before the requests
            for (one_case& c : some)
                c.submit(*primary);
            for (const one_case& c : some) {
                c.wait_reported(*primary);
                c.store(*primary);
            }
            take_next();
            fail_over();
            for (const one_case& c : some)
                c.check(*primary, false, "after the takeover");
            for (const one_case& c : some) {
                codec::stream_builder b;
                b.set_user_event(c.gate_event, 0);
                primary->submit(b);
            }
            host::wait([this] { return primary->open_requests() == 0; }, "every answer");
            for (const one_case& c : some) {
                for (const std::uint64_t event : c.event)
                    EXPECT_TRUE(event == 0 || primary->complete(event) == 0) << c.text();
                c.check(*primary, true, "when all is over");
            }
        }
    }

    static std::vector<one_case> every_case() {
        std::vector<one_case> out;
        constexpr kind kinds[] = {kind::read, kind::silent_read, kind::fill, kind::write};
        for (const kind a : kinds) {
            for (const kind b : kinds) {
                for (const kind c : kinds) {
                    for (std::size_t gate = 0; gate <= length; ++gate) {
                        for (const queues order : {queues::one, queues::two, queues::out_of_order}) {
                            for (const bool stores : {false, true}) {
                                out.push_back({{a, b, c}, gate, order, stores});
                                out.back().region = out.size() / 2 % 2;
                            }
                        }
                    }
                }
            }
        }
        return out;
    }
};

TEST_P(in_flight, what_the_guest_was_told_of_is_there_and_stays) {
    std::vector<one_case> all = every_case();
    if (!GetParam().executes)
        return run(all, 250);
    std::vector<one_case> some; // queues cost threads there
    for (std::size_t i = 0; i < all.size(); i += 19)
        some.push_back(all[i]);
    run(some, 41);
}

TEST_P(in_flight, an_image_too) {
    if (!GetParam().executes)
        GTEST_SKIP() << "this backend has no images";
    std::vector<one_case> some;
    const std::vector<one_case> all = every_case();
    for (std::size_t i = 0; i < all.size(); i += 23) {
        some.push_back(all[i]);
        some.back().images = true;
    }
    run(some, 41);
}

// A request of which the guest was told that one command failed, while another one is still to come: what it
// was told stays true, and the rest is executed.
TEST_P(in_flight, what_was_refused_stays_refused) {
    start();
    const std::uint64_t context = primary->context(), queue = primary->queue(context);
    const std::uint64_t buffer = primary->buffer(context, page), gate = primary->new_id();
    {
        codec::stream_builder b;
        primary->ok(b.create_user_event(gate, context));
    }
    std::fill_n(primary->memory_as<std::uint32_t>(page), words, 1u);
    primary->write(queue, buffer, page, page);
    ASSERT_TRUE(take());
    const std::uint64_t refused = primary->new_id(), destroyed = primary->new_id(), read = primary->new_id();
    const std::uint32_t two = 2;
    codec::stream_builder b;
    const auto pattern = std::as_bytes(std::span(&two, 1));
    b.fill_buffer({queue, refused, {}}, buffer, 0, 2 * page, pattern); // beyond the buffer
    b.fill_buffer({queue, 0, {}}, buffer, 0, 2 * page, pattern);
    b.fill_buffer({queue, destroyed, {}}, buffer, 0, 2 * page, pattern);
    b.destroy(VGPU_OBJECT_EVENT, destroyed);
    b.fill_buffer({queue, 0, {}}, buffer, 0, page, pattern);
    b.read_buffer({queue, read, {gate}}, buffer, 0, b.payload(true, 0, 2 * page, page));
    const std::uint64_t token = primary->submit(b);
    ASSERT_LT(primary->complete(refused), 0);
    ASSERT_LT(primary->complete(destroyed), 0);
    take_next();
    ASSERT_EQ(last.open.size(), 1u);
    fail_over();
    b = {};
    b.set_user_event(gate, 0);
    b.marker({queue, 0, {}});
    primary->submit(b);
    EXPECT_EQ(primary->complete(read), 0);
    host::wait([&] { return primary->answered(token); }, "the answer");
    EXPECT_EQ(primary->answer(token).status, std::uint32_t{VGPU_STATUS_OK});
    EXPECT_EQ(*primary->memory_as<std::uint32_t>(2 * page), 2u);
    primary->destroy(VGPU_OBJECT_EVENT, refused); // it still exists
}

INSTANTIATE_TEST_SUITE_P(backends, in_flight, testing::ValuesIn(cases),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace kagemusha::test
