// SPDX-License-Identifier: GPL-2.0-or-later
// A standby that breaks the protocol costs itself the connection, with a sentence that says how.
#include "mirror/primary/replication_primary_fsm_test_fixture.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::replication_primary_fsm_test;
using testing::standby_hello;
using testing::submit;

// ---- a standby that lies

struct lie {
    const char* name;
    message what;
    std::string sentence;
};

// After attach(): 1 reset, 2 open, 3 of 100 bytes with digests of 2, 4 of 100 bytes; epoch 1 ends at 3; all
// of it acknowledged as received, up to 2 as executed.
struct primary_lie_test : replication_primary_fsm_test, ::testing::WithParamInterface<lie> {};

TEST_P(primary_lie_test, costs_it_the_connection) {
    attach(standby_hello(1000, 100));
    write(100, entry_compare);
    fsm->on_digests(3, {1, 2}, now);
    fsm->close_epoch(now);
    actions();
    write(100);
    actions();
    ASSERT_EQ(acks(3, 2, 1, 0, 2), "drop_log 3");
    const std::string why = "the standby broke the protocol: " + GetParam().sentence;
    EXPECT_EQ(says(GetParam().what), "send goodbye protocol_error \"" + why + "\"; close_link \"" + why +
                                         "\"; stop_mirror; drop_log all; state disconnected \"" + why + "\"");
    EXPECT_EQ(says(GetParam().what), "") << "nobody listens to it any more";
}

INSTANTIATE_TEST_SUITE_P(
    , primary_lie_test,
    ::testing::Values(
        lie{"received_beyond_sent",
            ack{.received = 5, .executed = 2, .committed_epoch = 1, .freed_entries = 2},
            "it acknowledged entry 5 as received, the last one sent is 4"},
        lie{"executed_beyond_received",
            ack{.received = 3, .executed = 4, .committed_epoch = 1, .freed_entries = 2},
            "it acknowledged entry 4 as executed and only 3 as received"},
        lie{"executed_beyond_committed",
            ack{.received = 4, .executed = 4, .committed_epoch = 1, .freed_entries = 2},
            "it executed entry 4 before its epoch was committed"},
        lie{"received_backwards", ack{.received = 2, .executed = 2, .committed_epoch = 1, .freed_entries = 2},
            "an acknowledgement went backwards"},
        lie{"executed_backwards", ack{.received = 3, .executed = 1, .committed_epoch = 1, .freed_entries = 2},
            "an acknowledgement went backwards"},
        lie{"committed_backwards", ack{.received = 3, .executed = 2, .freed_entries = 2},
            "an acknowledgement went backwards"},
        lie{"freed_backwards", ack{.received = 3, .executed = 2, .committed_epoch = 1, .freed_entries = 1},
            "an acknowledgement went backwards"},
        lie{"committed_beyond_closed",
            ack{.received = 3, .executed = 2, .committed_epoch = 2, .freed_entries = 2},
            "it committed epoch 2, the last one that was closed is 1"},
        lie{"freed_beyond_sent",
            ack{.received = 4, .executed = 3, .committed_epoch = 1, .freed_bytes = 201, .freed_entries = 3},
            "it freed more than was sent"},
        lie{"freed_entries_beyond_sent",
            ack{.received = 4, .executed = 3, .committed_epoch = 1, .freed_bytes = 100, .freed_entries = 5},
            "it freed more than was sent"},
        lie{"freed_beyond_committed",
            ack{.received = 4, .executed = 3, .committed_epoch = 1, .freed_bytes = 200, .freed_entries = 3},
            "it freed entries before their epoch was committed"},
        lie{"freed_entries_beyond_committed",
            ack{.received = 4, .executed = 3, .committed_epoch = 1, .freed_bytes = 100, .freed_entries = 4},
            "it freed entries before their epoch was committed"},
        lie{"digests_of_what_was_not_sent", digest_result{5, {}},
            "it compared digests of entry 5, which was not sent"},
        lie{"digests_of_nothing", digest_result{0, {}}, "it compared digests of entry 0, which was not sent"},
        lie{"difference_beyond_the_end", digest_result{3, {2}}, "it found a difference in hash 2 of 2"},
        lie{"difference_twice", digest_result{3, {1, 1}}, "it found a difference in hash 1 of 2"},
        lie{"heartbeat_of_the_future", heartbeat{1, 99999}, "it answered a heartbeat of the future"},
        lie{"hello_twice", standby_hello(), "it greeted twice"},
        lie{"entries", entries{}, "it sent a message that only a primary sends"},
        lie{"marker", marker{}, "it sent a message that only a primary sends"},
        lie{"outcome", outcome{}, "it sent a message that only a primary sends"},
        lie{"content", content{}, "it sent a message that only a primary sends"},
        lie{"synced", synced{}, "it sent a message that only a primary sends"},
        lie{"digests", digests{}, "it sent a message that only a primary sends"}),
    [](const auto& info) { return info.param.name; });

} // namespace
} // namespace kagemusha::mirror
