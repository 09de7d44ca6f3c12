// SPDX-License-Identifier: GPL-2.0-or-later
// What the administrator allows a guest holds on the survivor, too: one file, one request, one byte too many
// after a takeover is refused as it was before; and a standby executes no log of a guest that may have more.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "codec/cl_numbers.hpp"
#include "tests/support/guest.hpp"

namespace kagemusha::test {
namespace {

constexpr backend_case null_backend{"null", "null", "memory=1", true, false};
constexpr std::uint64_t memory_bytes = 4u << 20;

class quota : public testing::Test {
protected:
    static kagemusha_device_config config() {
        auto c = config_of(null_backend);
        c.max_files = 3;
        c.max_requests_per_file = 4;
        c.max_events_per_file = 8;
        c.max_objects_per_file = 32;
        c.max_memory_bytes = 3000;
        c.max_file_memory_bytes = 2000;
        return c;
    }
    std::string address() const { return directory_.socket("standby"); }

    void start(const kagemusha_device_config& of_primary, const kagemusha_device_config& of_standby) {
        const std::string at = address();
        auto c = of_standby;
        c.standby_listen = at.c_str();
        standby = std::make_unique<guest>(c, memory_bytes, false);
        c = of_primary;
        c.replicate_to = at.c_str();
        primary = std::make_unique<guest>(c, memory_bytes);
    }
    void protect() {
        host::wait([this] { return primary->is(KAGEMUSHA_REPLICATION_PROTECTING); }, "protection");
        char error[512] = "";
        ASSERT_EQ(kagemusha_device_use_checkpoints(primary->device(), 1, error, sizeof error), 0) << error;
        primary->waits_for_room = false;
    }
    // A checkpoint, and the guest goes on from it.
    void fail_over() {
        char error[512] = "";
        int closed = kagemusha_device_close_epoch(primary->device(), 0, error, sizeof error);
        ASSERT_EQ(closed, 0) << error;
        for (int i = 0; i < 10'000; ++i) { // the primary is stopped, the standby is not
            kagemusha_device_dispatch(standby->device());
            closed = kagemusha_device_wait_epoch(primary->device(), 5, error, sizeof error);
            if (closed != -ETIMEDOUT)
                break;
        }
        ASSERT_EQ(closed, 0) << error;
        const void* state = nullptr;
        std::size_t size = 0;
        kagemusha_device_save_state(primary->device(), &state, &size);
        ASSERT_EQ(kagemusha_device_commit_state(standby->device(), state, size, error, sizeof error), 0)
            << error;
        const guest_state saved = primary->save();
        primary.reset();
        ASSERT_EQ(kagemusha_device_take_over(standby->device(), error, sizeof error), 0) << error;
        survivor = std::move(standby);
        survivor->resume(saved);
        host::wait([this] { return !kagemusha_device_congested(survivor->device()); }, "a live device");
    }
    static std::int32_t make_buffer(guest& g, std::uint64_t context, std::uint64_t bytes) {
        codec::stream_builder b;
        return g.run(b.create_buffer(g.new_id(), context, bytes)).result;
    }
    static std::int32_t make_queue(guest& g, std::uint64_t context) {
        codec::stream_builder b;
        return g.run(b.create_queue(g.new_id(), context)).result;
    }
    static std::uint32_t open(guest& g, std::uint32_t file) {
        constexpr std::uint64_t token = 1'000'000;
        kagemusha_device_open_file(g.device(), file, token + file);
        return g.answered(token + file) ? g.answer(token + file).status : UINT32_MAX;
    }

    temporary_directory directory_; // the devices end first, the primary before the standby
    std::unique_ptr<guest> standby, primary, survivor;
};

TEST_F(quota, after_a_takeover_memory_ends_where_the_administrator_said) {
    start(config(), config());
    protect();
    const std::uint64_t context = primary->context();
    primary->buffer(context, 1500);
    fail_over();
    EXPECT_EQ(make_buffer(*survivor, context, 501), codec::cl_mem_object_allocation_failure)
        << "a byte more than a file may have";
    EXPECT_EQ(make_buffer(*survivor, context, 500), 0) << "and not one less";
    // All files together.
    survivor->open(2);
    const std::uint64_t other = survivor->context();
    EXPECT_EQ(make_buffer(*survivor, other, 1001), codec::cl_mem_object_allocation_failure);
    EXPECT_EQ(make_buffer(*survivor, other, 1000), 0);
}

TEST_F(quota, after_a_takeover_there_is_no_file_too_many) {
    start(config(), config());
    protect();
    primary->context();
    fail_over();
    EXPECT_EQ(open(*survivor, 2), std::uint32_t{VGPU_STATUS_OK});
    EXPECT_EQ(open(*survivor, 3), std::uint32_t{VGPU_STATUS_OK});
    EXPECT_EQ(open(*survivor, 4), std::uint32_t{VGPU_STATUS_LIMIT});
}

TEST_F(quota, after_a_takeover_there_is_no_object_or_event_too_many) {
    start(config(), config());
    protect();
    const std::uint64_t context = primary->context();
    const std::uint64_t queue = primary->queue(context);
    fail_over();
    // Events of commands that wait for a user event that is never set.
    const std::uint64_t user_event = survivor->new_id();
    codec::stream_builder b;
    survivor->ok(b.create_user_event(user_event, context));
    std::vector<std::uint64_t> events;
    b = {};
    for (std::uint32_t i = 0; i <= config().max_events_per_file; ++i) {
        events.push_back(survivor->new_id());
        b.marker({queue, events.back(), {user_event}});
    }
    survivor->submit(b);
    EXPECT_EQ(survivor->complete(events.back()), codec::cl_out_of_resources);
    EXPECT_FALSE(survivor->completed(events.front()));
    std::uint32_t made = 3 + config().max_events_per_file + 1; // the refused one is an object
    while (made < 100 && make_queue(*survivor, context) == 0)
        ++made;
    EXPECT_EQ(made, config().max_objects_per_file);
}

TEST_F(quota, what_a_guest_has_beyond_the_survivors_limits_it_keeps) {
    // Files and memory are compared when a standby comes; these are not.
    auto smaller = config();
    smaller.max_objects_per_file = 12;
    start(config(), smaller);
    protect();
    const std::uint64_t context = primary->context();
    std::uint64_t last = 0;
    for (int i = 0; i < 15; ++i)
        last = primary->queue(context);
    fail_over();
    EXPECT_NE(make_queue(*survivor, context), 0) << "nothing new";
    survivor->destroy(VGPU_OBJECT_QUEUE, last); // what it has is its own
    EXPECT_NE(make_queue(*survivor, context), 0) << "still more than this host allows";
}

TEST_F(quota, a_primary_whose_guest_may_have_more_is_refused_with_a_sentence) {
    struct {
        void (*change)(kagemusha_device_config&);
        const char* sentence;
    } const cases[] = {
        {[](auto& c) { c.max_files = 4; },
         "the guest may have 4 open files on the primary, 3 on the standby"},
        {[](auto& c) { c.max_memory_bytes = 3001; },
         "3001 bytes of GPU memory on the primary, 3000 on the standby"},
        {[](auto& c) { c.max_file_memory_bytes = 2001; },
         "2001 bytes of GPU memory in one file on the primary, 2000 on the standby"},
    };
    for (const auto& one : cases) {
        auto larger = config();
        one.change(larger);
        start(larger, config());
        host::wait([this] { return std::strlen(primary->status().degraded) > 40; }, "a refusal");
        EXPECT_NE(std::strstr(primary->status().degraded, one.sentence), nullptr)
            << primary->status().degraded;
        EXPECT_FALSE(primary->is(KAGEMUSHA_REPLICATION_PROTECTING));
        primary.reset();
        standby.reset();
    }
    auto less = config();
    less.max_files = 2;
    start(less, config());
    protect(); // what the guest may have fits
}

} // namespace
} // namespace kagemusha::test
