// SPDX-License-Identifier: GPL-2.0-or-later
#include "core/object_table.hpp"

#include <gtest/gtest.h>

namespace kagemusha::core {
namespace {

object of_kind(vgpu_object_kind kind) {
    object o;
    o.kind = kind;
    return o;
}

object pending_event() {
    object o = of_kind(VGPU_OBJECT_EVENT);
    o.event = event_state::pending;
    return o;
}

struct object_table_test : ::testing::Test {
    device_usage usage{1u << 20, 1u << 30, 0, 0, 0};
    object_table table{{200'000, 1000}, usage, 1};
};

TEST_F(object_table_test, an_id_finds_only_its_kind) {
    table.insert(5, of_kind(VGPU_OBJECT_QUEUE));
    EXPECT_NE(table.find(5, VGPU_OBJECT_QUEUE), nullptr);
    EXPECT_EQ(table.find(5, VGPU_OBJECT_MEMORY), nullptr);
    EXPECT_EQ(table.find(6, VGPU_OBJECT_QUEUE), nullptr);
    EXPECT_TRUE(table.taken(5));
}

TEST_F(object_table_test, a_context_is_its_own_context_by_serial) {
    const std::uint64_t first = table.insert(5, of_kind(VGPU_OBJECT_CONTEXT));
    EXPECT_EQ(table.find(5, VGPU_OBJECT_CONTEXT)->context, first);
    table.destroy(5);
    table.insert(5, of_kind(VGPU_OBJECT_CONTEXT));
    EXPECT_NE(table.find(5, VGPU_OBJECT_CONTEXT)->context, first)
        << "an id that is used again is another context";
}

TEST_F(object_table_test, memory_is_charged_and_given_back) {
    table.insert_memory(1, of_kind(VGPU_OBJECT_MEMORY), 600);
    EXPECT_EQ(table.memory_bytes(), 600u);
    EXPECT_EQ(usage.memory_bytes, 600u);
    EXPECT_TRUE(table.room_for_memory(400));
    EXPECT_FALSE(table.room_for_memory(401));
    EXPECT_FALSE(table.room_for_memory(UINT64_MAX));
    table.destroy(1);
    EXPECT_EQ(usage.memory_bytes, 0u);
}

TEST_F(object_table_test, a_sub_buffer_costs_nothing_and_keeps_the_charge) {
    table.insert_memory(1, of_kind(VGPU_OBJECT_MEMORY), 600);
    table.insert_shared_memory(2, of_kind(VGPU_OBJECT_MEMORY), *table.find(1, VGPU_OBJECT_MEMORY));
    EXPECT_EQ(table.memory_bytes(), 600u);
    table.destroy(1);
    EXPECT_EQ(table.memory_bytes(), 600u) << "the native buffer lives as long as its sub-buffer";
    table.destroy(2);
    EXPECT_EQ(table.memory_bytes(), 0u);
}

TEST_F(object_table_test, rollback_restores_objects_memory_and_counters) {
    table.insert_memory(1, of_kind(VGPU_OBJECT_MEMORY), 600);
    table.insert_shared_memory(2, of_kind(VGPU_OBJECT_MEMORY), *table.find(1, VGPU_OBJECT_MEMORY));
    table.insert(3, pending_event());
    object user = of_kind(VGPU_OBJECT_EVENT);
    user.event = event_state::user_unset;
    table.insert(4, user);

    table.begin();
    table.destroy(1);
    table.destroy(2);
    table.destroy(3);
    table.set_user_event(4);
    table.destroy(4);
    table.insert(1, of_kind(VGPU_OBJECT_QUEUE));
    table.insert_memory(9, of_kind(VGPU_OBJECT_MEMORY), 1000);
    EXPECT_EQ(table.memory_bytes(), 1000u);
    table.rollback();

    EXPECT_EQ(table.memory_bytes(), 600u);
    EXPECT_EQ(usage.memory_bytes, 600u);
    EXPECT_EQ(table.size(), 4u);
    EXPECT_EQ(usage.objects, 4u);
    EXPECT_EQ(table.pending_events(), 1u);
    EXPECT_EQ(table.unset_user_events(), 1u);
    EXPECT_NE(table.find(1, VGPU_OBJECT_MEMORY), nullptr);
    EXPECT_NE(table.find(3, VGPU_OBJECT_EVENT), nullptr);
    EXPECT_EQ(table.find(9, VGPU_OBJECT_MEMORY), nullptr);
    // And the allocations are as before: new memory does not share with old.
    table.insert_memory(10, of_kind(VGPU_OBJECT_MEMORY), 300);
    table.destroy(1);
    table.destroy(2);
    EXPECT_EQ(table.memory_bytes(), 300u);
}

TEST_F(object_table_test, memory_freed_in_a_change_can_be_used_in_it) {
    table.insert_memory(1, of_kind(VGPU_OBJECT_MEMORY), 1000);
    table.begin();
    EXPECT_FALSE(table.room_for_memory(1));
    table.destroy(1);
    EXPECT_TRUE(table.room_for_memory(1000));
    table.insert_memory(2, of_kind(VGPU_OBJECT_MEMORY), 1000);
    table.commit();
    EXPECT_EQ(table.memory_bytes(), 1000u);
}

TEST_F(object_table_test, a_pending_event_that_is_destroyed_stays_until_it_completes) {
    table.insert(3, pending_event());
    table.destroy(3);
    EXPECT_EQ(table.find(3, VGPU_OBJECT_EVENT), nullptr);
    EXPECT_TRUE(table.taken(3));
    EXPECT_TRUE(table.complete_event(3));
    EXPECT_FALSE(table.taken(3));
    EXPECT_FALSE(table.complete_event(3));
}

TEST_F(object_table_test, an_event_completes_once_and_stays_until_destroyed) {
    table.insert(3, pending_event());
    EXPECT_TRUE(table.complete_event(3));
    EXPECT_FALSE(table.complete_event(3));
    EXPECT_NE(table.find(3, VGPU_OBJECT_EVENT), nullptr);
    table.destroy(3);
    EXPECT_FALSE(table.taken(3));
}

TEST_F(object_table_test, take_back_spares_an_id_that_was_used_again) {
    const std::uint64_t first = table.insert(1, of_kind(VGPU_OBJECT_QUEUE));
    table.destroy(1);
    table.insert(1, of_kind(VGPU_OBJECT_QUEUE));
    table.take_back(1, first);
    EXPECT_TRUE(table.taken(1));
}

TEST_F(object_table_test, quotas_of_file_and_device_hold) {
    device_usage small{3, 100, 0, 0, 0};
    object_table a({2, 1000}, small, 1);
    object_table b({2, 1000}, small, 1);
    a.insert(1, of_kind(VGPU_OBJECT_QUEUE));
    a.insert(2, of_kind(VGPU_OBJECT_QUEUE));
    EXPECT_FALSE(a.room_for_object()) << "the file's";
    EXPECT_TRUE(a.room_for_object(1));
    b.insert(1, of_kind(VGPU_OBJECT_QUEUE));
    EXPECT_FALSE(b.room_for_object()) << "the device's";
    EXPECT_FALSE(b.room_for_memory(101)) << "the device's";
    a.clear();
    EXPECT_TRUE(b.room_for_object());
}

TEST_F(object_table_test, a_hundred_thousand_objects_live_and_die) {
    for (std::uint64_t id = 1; id <= 100'000; ++id)
        table.insert(id << 20, of_kind(VGPU_OBJECT_SAMPLER));
    EXPECT_EQ(table.size(), 100'000u);
    EXPECT_NE(table.find(99'999ull << 20, VGPU_OBJECT_SAMPLER), nullptr);
    for (std::uint64_t id = 1; id <= 100'000; ++id)
        table.destroy(id << 20);
    EXPECT_EQ(usage.objects, 0u);
}

} // namespace
} // namespace kagemusha::core
