// SPDX-License-Identifier: GPL-2.0-or-later
// A primary that breaks the protocol costs itself the connection, and what it may leave here is bounded.
#include "mirror/standby/replication_standby_fsm_test_fixture.hpp"

namespace kagemusha::mirror {
namespace {

using testing::meta;
using testing::primary_hello;
using testing::replication_standby_fsm_test;
using testing::submit;

// ---- a primary that lies

struct lie {
    const char* name;
    message what;
    std::string rule;
};

entries one(const entry_meta& m, std::vector<entry_payload> payloads = {}) {
    return {{{m, std::move(payloads)}}};
}

// After: 4 of file 1, committed and running; 5 late (payload 0: 16 bytes, 1: written), 8 of them there;
// 6 awaits its outcome; 7 compares.
struct standby_lie_test : replication_standby_fsm_test, ::testing::WithParamInterface<lie> {};

TEST_P(standby_lie_test, costs_it_the_connection) {
    attach();
    write(4);
    mark(2, 4);
    entry(submit(5, 1, 8, entry_late_content, 16), {{16, false}, {8, true}});
    says(content{5, 0, 0, 8, 0});
    write(6, 1, 8, entry_awaits_outcome);
    write(7, 1, 8, entry_compare);
    says(digests{7, {1, 2}});
    EXPECT_EQ(says(GetParam().what), broken(GetParam().rule));
    EXPECT_EQ(says(GetParam().what), "") << "nobody listens to it any more";
    EXPECT_EQ(fsm->status(now).received, 7u);
    EXPECT_EQ(fsm->status(now).held_entries, 4u);
}

INSTANTIATE_TEST_SUITE_P(
    , standby_lie_test,
    ::testing::Values(
        lie{"a_gap", one(submit(9, 1)), "entry 9 came, 8 was next"},
        lie{"a_duplicate", one(submit(7, 1)), "entry 7 came, 8 was next"},
        lie{"a_number_of_the_past", one(submit(1, 1)), "entry 1 came, 8 was next"},
        lie{"more_than_is_held", one(submit(8, 1, 960)),
            "entry 8 of 960 bytes came, there was room for 952 bytes and 36 entries"},
        lie{"more_content_than_is_held", one(submit(8, 1, 8, entry_late_content, 1u << 30)),
            "entry 8 of 1073741832 bytes came, there was room for 952 bytes and 36 entries"},
        lie{"a_file_opened_twice", one(meta(8, entry_kind::open_file, 1)),
            "entry 8 opens file 1, which is open"},
        lie{"a_file_that_is_not_open", one(submit(8, 9)), "entry 8 is of file 9, which is not open"},
        lie{"an_end_of_a_file_that_is_not_open", one(meta(8, entry_kind::close_file, 9)),
            "entry 8 is of file 9, which is not open"},
        lie{"content_twice", content{5, 0, 0, 8, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_that_overlaps", content{5, 0, 7, 9, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_beyond_its_payload", content{5, 0, 8, 9, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_that_overflows", content{5, 0, 8, UINT64_MAX, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_of_no_bytes", content{5, 0, 8, 0, 0},
            "content of entry 5 came out of order, twice or beyond its length"},
        lie{"content_of_no_payload", content{5, 2, 0, 8, 0},
            "content came for payload 2 of entry 5, which has no such one"},
        lie{"content_of_what_the_gpu_writes", content{5, 1, 0, 8, 0},
            "content came for payload 1 of entry 5, which has no such one"},
        lie{"content_of_an_entry_without", content{6, 0, 0, 8, 0},
            "content came for entry 6, which lacks none"},
        lie{"content_of_an_entry_that_will_come", content{8, 0, 0, 8, 0},
            "content came for entry 8, which lacks none"},
        lie{"outcome_of_what_awaits_none", outcome{5, false, 0},
            "an outcome came for entry 5, which awaits none"},
        lie{"outcome_of_what_runs", outcome{4, false, 0}, "an outcome came for entry 4, which awaits none"},
        lie{"outcome_of_what_has_ended", outcome{3, false, 0},
            "an outcome came for entry 3, which awaits none"},
        lie{"outcome_of_what_will_come", outcome{8, false, 0},
            "an outcome came for entry 8, which awaits none"},
        lie{"cancel_of_what_runs", outcome{4, true, 0}, "an outcome came for entry 4, which awaits none"},
        lie{"marker_beyond_what_was_sent", marker{3, 8}, "it closed an epoch at entry 8, which was not sent"},
        lie{"marker_of_an_old_epoch", marker{2, 7}, "epoch 2 was closed at entry 7 after epoch 2 at entry 4"},
        lie{"marker_backwards", marker{3, 3}, "epoch 3 was closed at entry 3 after epoch 2 at entry 4"},
        lie{"synced_beyond_what_was_sent", synced{8},
            "it ended the state transfer twice, or before its last entry"},
        lie{"digests_of_what_compares_none", digests{6, {1}},
            "digests came for entry 6, which compares none"},
        lie{"digests_twice", digests{7, {1, 2}}, "digests came for entry 7, which compares none"},
        lie{"hello_twice", primary_hello(), "it greeted twice"},
        lie{"ack", ack{}, "it sent a message that only a standby sends"},
        lie{"digest_result", digest_result{}, "it sent a message that only a standby sends"},
        lie{"close_epoch", close_epoch{}, "it sent a message that only a standby sends"},
        lie{"fault", fault{}, "it sent a message that only a standby sends"}),
    [](const auto& info) { return info.param.name; });

TEST_F(replication_standby_fsm_test, a_log_begins_with_a_reset) {
    connect();
    says(primary_hello());
    EXPECT_EQ(entry(meta(1, entry_kind::open_file, 1)), broken("its log does not begin with a reset"));
}

TEST_F(replication_standby_fsm_test, a_cancel_after_the_last_piece_comes_too_late) {
    attach();
    entry(submit(4, 1, 8, entry_late_content, 8), {{8, false}});
    says(content{4, 0, 0, 8, 0});
    EXPECT_EQ(says(outcome{4, true, 0}), broken("entry 4 was canceled after it could run"));
}

TEST_F(replication_standby_fsm_test, an_outcome_comes_once) {
    attach();
    write(4, 1, 8, entry_awaits_outcome);
    says(outcome{4, false, 0});
    EXPECT_EQ(says(outcome{4, false, 0}), broken("an outcome came for entry 4, which awaits none"));
}

// A primary lets the standby compare and never says what it has itself.
TEST_F(replication_standby_fsm_test, digests_of_this_side_are_bounded) {
    config.hold_entries = 1000;
    config.hold_bytes = 1 << 20;
    config.running_per_file = 1000;
    make();
    attach();
    const std::vector<std::uint64_t> many(max_hashes_per_message);
    const log_sequence last = 4 + max_pending_hashes / max_hashes_per_message;
    for (log_sequence s = 4; s <= last; ++s)
        ASSERT_EQ(write(s, 1, 8, entry_compare), "");
    mark(2, last);
    for (log_sequence s = 4; s < last; ++s) {
        fsm->on_digests(s, many, now);
        ASSERT_EQ(actions(), "");
    }
    fsm->on_digests(last, {1}, now);
    EXPECT_EQ(actions(), broken("too many digests are open"));
}

TEST_F(replication_standby_fsm_test, payloads_without_bytes_are_bounded) {
    config.hold_entries = max_held_payloads;
    make();
    attach();
    const std::vector<entry_payload> many(VGPU_MAX_PAYLOADS);
    log_sequence s = 4;
    for (std::uint64_t payloads = 0; payloads < max_held_payloads; payloads += many.size()) {
        fsm->on_message(entries{{{submit(s++, 1, 0), many}}}, now);
        ASSERT_EQ(fsm->status(now).received, s - 1);
    }
    actions();
    EXPECT_EQ(write(s), "") << "one without payloads";
    EXPECT_EQ(entry(submit(s + 1, 1, 8), {{0, false}}),
              broken("entry " + std::to_string(s + 1) + " has 1 payloads, there was room for 0"));
}

TEST_F(replication_standby_fsm_test, comparisons_are_bounded) {
    config.hold_entries = 2 * max_pending_comparisons;
    config.hold_bytes = 8 * config.hold_entries;
    make();
    attach();
    log_sequence s = 4;
    for (std::uint32_t i = 0; i < max_pending_comparisons; ++i)
        ASSERT_EQ(write(s++, 1, 8, entry_compare), "");
    EXPECT_EQ(write(s, 1, 8, entry_compare), broken("too many comparisons are open"));
}

TEST_F(replication_standby_fsm_test, payloads_whose_content_is_missing_are_bounded) {
    config.hold_bytes = std::uint64_t{1} << 30;
    config.hold_entries = 1000;
    make();
    attach();
    const std::vector<entry_payload> many(VGPU_MAX_PAYLOADS, {1, false});
    log_sequence s = 4;
    for (std::uint64_t payloads = 0; payloads < max_late_payloads; payloads += many.size())
        ASSERT_EQ(entry(submit(s++, 1, 8, entry_late_content, many.size() * 8), many), "") << payloads;
    EXPECT_EQ(entry(submit(s, 1, 8, entry_late_content, 8), {{1, false}}),
              broken("content of too many payloads is missing"));
}

TEST_F(replication_standby_fsm_test, files_epochs_and_digests_are_bounded) {
    config.hold_entries = 100000;
    make();
    attach();
    std::string last;
    for (std::uint32_t i = 0; i < max_mirrored_files - 1; ++i) {
        ASSERT_EQ(last, "") << i;
        last = entry(meta(4 + i, entry_kind::open_file, 10 + i));
    }
    EXPECT_EQ(last,
              broken("entry 4098 opens more than 4096 files at once, which is what a guest may have here"));
    config.limits.max_files = 3;
    make();
    attach();
    EXPECT_EQ(entry(meta(4, entry_kind::open_file, 10)), "");
    EXPECT_EQ(entry(meta(5, entry_kind::close_file, 10)), "");
    EXPECT_EQ(entry(meta(6, entry_kind::open_file, 11)), "") << "one at a time";
    EXPECT_EQ(entry(meta(7, entry_kind::open_file, 12)),
              broken("entry 7 opens more than 3 files at once, which is what a guest may have here"));
    config.limits = {};
    make();
    attach();
    entry(submit(4, 1, 8, entry_late_content, 8), {{8, false}});
    last.clear();
    for (std::uint64_t i = 0; i <= max_pending_markers; ++i) {
        ASSERT_EQ(last, "") << i;
        last = mark(2 + i, 4);
    }
    EXPECT_EQ(last, broken("too many epochs are open"));
    make();
    attach();
    last.clear();
    const std::vector<std::uint64_t> many(max_hashes_per_message);
    for (log_sequence s = 4; s < 4 + max_pending_hashes / max_hashes_per_message + 1; ++s) {
        ASSERT_EQ(last, "") << s;
        write(s, 1, 8, entry_compare);
        last = says(digests{s, many});
    }
    EXPECT_EQ(last, broken("too many digests are open"));
}

} // namespace
} // namespace kagemusha::mirror
