// SPDX-License-Identifier: GPL-2.0-or-later
// The life of one file: answers, quotas, records, and a worker that lies.
#include "core/session_fsm.hpp"

#include <gtest/gtest.h>

#include "codec/cl_numbers.hpp"
#include "core/limits.hpp"
#include "core/test_helpers.hpp"

namespace kagemusha::core {
namespace {

using namespace codec;
using testing::completion;
using testing::file_harness;
using testing::ok_response;

enum : std::uint64_t { context = 1, queue, buffer, user_event, first_event = 1000 };

struct session_fsm_test : ::testing::Test {
    explicit session_fsm_test(const file_limits& limits = testing::generous) : h(limits) {
        h.run([](auto& b) { b.create_context(context); });
        h.run([](auto& b) { b.create_queue(queue, context); });
    }
    file_harness h;

    submit_decision marker(std::uint64_t event) {
        stream_builder b;
        b.marker({queue, event, {}});
        return h.submit(b);
    }
    void violation(const std::vector<std::byte>& record) {
        EXPECT_NE(h.fsm.on_record(record).broken_rule, nullptr);
        EXPECT_FALSE(h.fsm.has_record());
    }
};

// ---- requests

TEST_F(session_fsm_test, a_request_is_forwarded_with_its_tables_and_answered_once) {
    h.run([](auto& b) { b.create_buffer(buffer, context, 64); });
    stream_builder b;
    b.read_buffer({queue, 0, {}}, buffer, 0, b.payload(true, {{0, 8, 0, 0}, {4096, 16, 0, 0}}));
    const submit_decision d = h.submit(b);
    ASSERT_EQ(d.what, submit_decision::action::forward);
    EXPECT_EQ(d.request.stream.data(), b.stream().data()) << "not copied";
    EXPECT_EQ(d.request.payloads.size(), 1u);
    EXPECT_EQ(d.request.segments.size(), 2u);
    EXPECT_EQ(d.work.commands, 1u);
    EXPECT_EQ(d.work.bytes_from_gpu, 24u);
    const done_decision done = h.fsm.on_done(d.request.token, ok_response());
    EXPECT_FALSE(done.violation);
    EXPECT_EQ(done.token, h.next_token - 1);
    EXPECT_TRUE(h.fsm.on_done(d.request.token, ok_response()).violation) << "twice";
}

TEST_F(session_fsm_test, an_empty_stream_is_answered_at_once) {
    const submit_decision d = h.submit({});
    EXPECT_EQ(d.what, submit_decision::action::answer);
    EXPECT_EQ(d.response.status, VGPU_STATUS_OK);
}

TEST_F(session_fsm_test, a_create_that_fails_is_taken_back) {
    h.run([](auto& b) { b.create_buffer(buffer, context, 64); }, cl_mem_object_allocation_failure);
    EXPECT_FALSE(h.fsm.objects().taken(buffer));
    EXPECT_EQ(h.fsm.objects().memory_bytes(), 0u);
    h.run([](auto& b) { b.create_buffer(buffer, context, 64); });
    EXPECT_TRUE(h.fsm.objects().taken(buffer));
}

TEST_F(session_fsm_test, a_create_whose_status_is_not_ok_is_taken_back) {
    stream_builder b;
    b.create_buffer(buffer, context, 64);
    const submit_decision d = h.submit(b);
    vgpu_response r{};
    r.status = VGPU_STATUS_NO_MEMORY;
    EXPECT_EQ(h.fsm.on_done(d.request.token, r).response.status, VGPU_STATUS_NO_MEMORY);
    EXPECT_FALSE(h.fsm.objects().taken(buffer));
}

TEST_F(session_fsm_test, objects_can_be_used_before_their_create_is_answered) {
    stream_builder create;
    create.create_buffer(buffer, context, 64);
    const submit_decision first = h.submit(create);
    stream_builder use;
    use.fill_buffer({queue, 0, {}}, buffer, 0, 8, std::vector<std::byte>(8))
        .destroy(VGPU_OBJECT_MEMORY, buffer);
    EXPECT_EQ(h.submit(use).what, submit_decision::action::forward);
    EXPECT_FALSE(h.fsm.on_done(first.request.token, ok_response(cl_out_of_resources)).violation);
    EXPECT_EQ(h.fsm.objects().memory_bytes(), 0u);
}

TEST_F(session_fsm_test, a_program_whose_link_failed_exists_for_its_log) {
    h.run([](auto& b) { b.create_program(10, context, "x"); });
    const std::uint64_t inputs[] = {10};
    h.run([&](auto& b) { b.link_program(11, context, inputs); }, cl_link_program_failure);
    EXPECT_TRUE(h.fsm.objects().taken(11));
    h.run([&](auto& b) { b.link_program(12, context, inputs); }, cl_out_of_host_memory);
    EXPECT_FALSE(h.fsm.objects().taken(12));
    h.run([&](auto& b) { b.create_program(13, context, "x"); }, cl_link_program_failure);
    EXPECT_FALSE(h.fsm.objects().taken(13)) << "only for links";
}

TEST_F(session_fsm_test, payload_and_segment_tables_are_checked) {
    h.run([](auto& b) { b.create_buffer(buffer, context, 1u << 30); });
    const auto status = [&](auto&& change) {
        stream_builder b;
        b.read_buffer({queue, 0, {}}, buffer, 0, b.payload(true, {{0, 8, 0, 0}, {64, 8, 0, 0}}));
        std::vector<kagemusha_payload> payloads(b.payloads().begin(), b.payloads().end());
        std::vector<kagemusha_segment> segments(b.segments().begin(), b.segments().end());
        kagemusha_request r = b.request(7, 1);
        change(payloads, segments, r);
        r.payloads = payloads.data();
        r.segments = segments.data();
        const submit_decision d = h.fsm.on_submit(r, testing::regions);
        if (d.what == submit_decision::action::forward)
            h.fsm.on_done(d.request.token, ok_response());
        return d.response.status;
    };
    const std::uint64_t gib = 1u << 30;
    EXPECT_EQ(status([](auto&, auto&, auto&) {}), VGPU_STATUS_OK);
    EXPECT_EQ(status([&](auto&, auto& s, auto&) { s[0].offset = gib - 8; }), VGPU_STATUS_OK);
    EXPECT_EQ(status([&](auto&, auto& s, auto&) { s[0].offset = gib - 7; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([&](auto&, auto& s, auto&) { s[0].offset = UINT64_MAX; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto&, auto& s, auto&) { s[0].region = 1; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto&, auto& s, auto&) { s[0].region = UINT32_MAX; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto&, auto& s, auto&) { s[1].pad = 1; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto& p, auto& s, auto&) {
                  s[0].bytes = 0;
                  p[0].bytes = 8;
              }),
              VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto&, auto& s, auto&) { s[0].bytes = 9; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto& p, auto&, auto&) { p[0].pad = 1; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto& p, auto&, auto&) { p[0].writable = 2; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto& p, auto&, auto&) { p[0].first_segment = 1; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto& p, auto&, auto&) { p[0].first_segment = UINT32_MAX; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto& p, auto&, auto&) {
                  p[0].segment_count = 0;
                  p[0].bytes = 0;
              }),
              VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto& p, auto&, auto& r) {
                  p.push_back(p[0]);
                  r.payload_count = 2;
              }),
              VGPU_STATUS_MALFORMED)
        << "two payloads share segments";
    EXPECT_EQ(status([](auto&, auto&, auto& r) { r.payload_count = VGPU_MAX_PAYLOADS + 1; }),
              VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto&, auto&, auto& r) { r.segment_count = VGPU_MAX_SEGMENTS + 1; }),
              VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto&, auto&, auto& r) { r.pad = 1; }), VGPU_STATUS_MALFORMED);
    EXPECT_EQ(status([](auto&, auto&, auto& r) { r.completion_count = 1; }), VGPU_STATUS_MALFORMED);
}

// ---- quotas

struct small_file_test : session_fsm_test {
    small_file_test() : session_fsm_test({2, 3, 8, 1000}) {}
};

TEST_F(small_file_test, one_request_too_many_is_answered_limit) {
    EXPECT_EQ(marker(0).what, submit_decision::action::forward);
    const submit_decision second = marker(0);
    EXPECT_EQ(second.what, submit_decision::action::forward);
    EXPECT_EQ(marker(0).response.status, VGPU_STATUS_LIMIT);
    h.fsm.on_done(second.request.token, ok_response());
    EXPECT_EQ(marker(0).what, submit_decision::action::forward);
}

TEST_F(small_file_test, memory_beyond_the_quota_is_an_allocation_failure) {
    h.run([](auto& b) { b.create_buffer(buffer, context, 900); });
    stream_builder b;
    b.create_buffer(buffer + 10, context, 101);
    EXPECT_EQ(h.submit(b).response.result, cl_mem_object_allocation_failure);
    h.run([](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, buffer); });
    h.run(b);
}

TEST_F(small_file_test, objects_beyond_the_quota_are_out_of_host_memory) {
    for (std::uint64_t id = 10; id < 16; ++id)
        h.run([&](auto& b) { b.create_sampler(id, context); });
    stream_builder b;
    b.create_sampler(99, context);
    EXPECT_EQ(h.submit(b).response.result, cl_out_of_host_memory);
    stream_builder enqueue;
    enqueue.marker({queue, first_event, {}});
    EXPECT_EQ(h.submit(enqueue).response.status, VGPU_STATUS_OK);
    const auto records = h.take_records();
    ASSERT_EQ(records.size(), 1u);
    EXPECT_EQ(testing::as<vgpu_record_completion>(records[0]).status, cl_out_of_resources);
}

TEST_F(small_file_test, an_event_is_in_flight_until_the_guest_took_its_completion) {
    for (std::uint64_t e = 0; e < 3; ++e)
        h.run([&](auto& b) { b.marker({queue, first_event + e, {}}); });
    EXPECT_EQ(marker(first_event + 3).what, submit_decision::action::answer);
    EXPECT_EQ(testing::as<vgpu_record_completion>(h.take_records().at(0)).status, cl_out_of_resources);
    h.fsm.on_record(completion(first_event));
    EXPECT_EQ(marker(first_event + 4).what, submit_decision::action::answer) << "its record still waits";
    h.take_records();
    EXPECT_EQ(marker(first_event + 5).what, submit_decision::action::forward);
}

TEST_F(small_file_test, failures_that_nobody_fetches_have_a_bound) {
    std::uint32_t answered_ok = 0;
    vgpu_response last{};
    const std::vector<std::byte> eight(8);
    for (std::uint32_t i = 0; i < max_refused_per_file + 100; ++i) {
        last = marker(first_event + i).response; // three are forwarded to a worker that is busy, then refused
        if (last.status == VGPU_STATUS_OK || last.status == VGPU_STATUS_LIMIT)
            answered_ok += last.status == VGPU_STATUS_OK;
        if (h.fsm.requests_in_flight() == 2)
            h.fsm.end_all(VGPU_STATUS_OK, [](std::uint64_t, const vgpu_response&) {});
    }
    EXPECT_EQ(last.status, VGPU_STATUS_LIMIT);
    EXPECT_LE(answered_ok, max_refused_per_file + 3);
    EXPECT_LE(h.fsm.objects().size(), 8u + max_refused_per_file);
    h.take_records();
    std::uint64_t more = 1'000'000;
    do {
        last = marker(first_event + more++).response;
    } while (last.status == VGPU_STATUS_OK && more < 1'010'000);
    EXPECT_EQ(last.status, VGPU_STATUS_LIMIT);
    EXPECT_LE(h.fsm.objects().size(), 8u + max_refused_per_file)
        << "the guest took the records but left the objects";
    stream_builder b;
    for (std::uint32_t i = 10; i < 200; ++i)
        b.destroy(VGPU_OBJECT_EVENT, first_event + i);
    EXPECT_EQ(h.submit(b).response.status, VGPU_STATUS_OK);
    EXPECT_EQ(marker(first_event + 2'000'000).response.status, VGPU_STATUS_OK);
}

// ---- a standby: what the log of a primary may, and a guest that goes on behind it

struct standby_file_test : ::testing::Test {
    testing::file_harness h{{2, 3, 8, 1000}, {100, 100, 100, 1500}};

    submit_decision of_log(const stream_builder& b) {
        return h.fsm.on_submit(b.request(7, h.next_token++), testing::regions, true);
    }
    // Answered, its events pending.
    void log(const stream_builder& b) {
        const submit_decision d = of_log(b);
        ASSERT_EQ(d.what, submit_decision::action::forward);
        h.fsm.on_done(d.request.token, ok_response());
    }
    void SetUp() override {
        stream_builder b;
        b.create_context(context);
        log(b);
        b = {};
        b.create_queue(queue, context);
        log(b);
    }
    static stream_builder marker(std::uint64_t event) {
        stream_builder b;
        b.marker({queue, event, {}});
        return b;
    }
    static stream_builder buffer_of(std::uint64_t id, std::uint64_t bytes) {
        stream_builder b;
        b.create_buffer(id, context, bytes);
        return b;
    }
};

TEST_F(standby_file_test, a_guest_gets_nothing_new_while_it_has_more_than_it_may) {
    log(buffer_of(buffer, 1200));
    EXPECT_EQ(of_log(buffer_of(buffer + 1, 301)).response.result, cl_mem_object_allocation_failure)
        << "a log has a limit, too";
    EXPECT_EQ(h.submit(buffer_of(buffer + 2, 1)).response.result, cl_mem_object_allocation_failure);
    h.run([](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, buffer); });
    EXPECT_EQ(h.submit(buffer_of(buffer + 2, 1001)).response.result, cl_mem_object_allocation_failure);
    h.run(buffer_of(buffer + 2, 1000));
}

TEST_F(standby_file_test, requests_of_the_log_are_none_of_the_guests) {
    std::vector<std::uint64_t> tokens;
    for (int i = 0; i < 20; ++i)
        tokens.push_back(of_log(marker(0)).request.token);
    EXPECT_EQ(h.submit(marker(0)).what, submit_decision::action::forward);
    EXPECT_EQ(h.submit(marker(0)).what, submit_decision::action::forward);
    EXPECT_EQ(h.submit(marker(0)).response.status, VGPU_STATUS_LIMIT);
    for (const std::uint64_t token : tokens)
        h.fsm.on_done(token, ok_response());
    EXPECT_EQ(h.submit(marker(0)).response.status, VGPU_STATUS_LIMIT) << "the guest's two are still there";
    EXPECT_EQ(h.fsm.guests_requests_in_flight(), 2u);
}

// The guest was told on the primary that they had completed, and destroyed some.
TEST_F(standby_file_test, events_of_the_log_that_are_pending_take_no_room_of_the_guests) {
    stream_builder b;
    for (std::uint64_t e = 0; e < 50; ++e)
        b.marker({queue, first_event + e, {}}).destroy(VGPU_OBJECT_EVENT, first_event + e);
    log(b);
    EXPECT_EQ(h.fsm.objects().pending_log_events(), 50u);
    for (std::uint64_t e = 100; e < 103; ++e) {
        EXPECT_EQ(h.submit(marker(first_event + e)).what, submit_decision::action::forward) << e;
        h.fsm.end_all(VGPU_STATUS_OK, [](std::uint64_t, const vgpu_response&) {});
    }
    EXPECT_EQ(h.submit(marker(first_event + 103)).what, submit_decision::action::answer) << "its fourth";
    for (std::uint64_t e = 0; e < 50; ++e)
        h.fsm.on_record(completion(first_event + e));
    h.take_records();
    EXPECT_EQ(h.fsm.objects().pending_log_events(), 0u);
    EXPECT_EQ(h.submit(marker(first_event + 104)).what, submit_decision::action::answer)
        << "no room came of it";
    EXPECT_EQ(h.fsm.objects().size(), 7u);
}

// ---- a worker that lies

TEST_F(session_fsm_test, answers_out_of_bounds_are_violations) {
    const submit_decision d = marker(0);
    const auto violates = [&](auto&& change) {
        vgpu_response r{};
        change(r);
        return h.fsm.on_done(d.request.token, r).violation;
    };
    EXPECT_TRUE(h.fsm.on_done(d.request.token + 1, ok_response()).violation);
    EXPECT_TRUE(h.fsm.on_done(d.request.token ^ (1ull << 32), ok_response()).violation);
    EXPECT_TRUE(h.fsm.on_done(UINT64_MAX, ok_response()).violation);
    EXPECT_TRUE(violates([](auto& r) { r.result = 1; }));
    EXPECT_TRUE(violates([](auto& r) { r.pad = 1; }));
    EXPECT_TRUE(violates([](auto& r) { r.value = 1; }));
    EXPECT_TRUE(violates([](auto& r) { r.result_bytes = VGPU_MAX_RESULT_BYTES + 1; }));
    for (const std::uint32_t status :
         {VGPU_STATUS_NO_FILE, VGPU_STATUS_LIMIT, VGPU_STATUS_LOST, VGPU_STATUS_CANCELED}) {
        EXPECT_TRUE(violates([&](auto& r) { r.status = status; })) << status;
    }
    EXPECT_TRUE(violates([](auto& r) { r.status = 7; }));
    EXPECT_FALSE(violates([](auto&) {})) << "the request is still to be answered";
}

TEST_F(session_fsm_test, only_calls_have_a_result) {
    const submit_decision d = marker(0);
    vgpu_response r = ok_response(-5);
    r.result_bytes = 8;
    const done_decision done = h.fsm.on_done(d.request.token, r);
    EXPECT_EQ(done.response.result, 0);
    EXPECT_EQ(done.response.result_bytes, 0u);
}

TEST_F(session_fsm_test, a_completion_must_be_of_a_pending_event_and_the_only_one) {
    violation(completion(first_event));
    violation(completion(queue));
    marker(first_event);
    EXPECT_EQ(h.fsm.on_record(completion(first_event, -5)).broken_rule, nullptr);
    EXPECT_EQ(testing::as<vgpu_record_completion>(h.take_records().at(0)).status, -5);
    violation(completion(first_event));
    h.run([](auto& b) { b.create_user_event(user_event, context); });
    violation(completion(user_event));
}

TEST_F(session_fsm_test, a_destroyed_event_still_completes_once) {
    marker(first_event);
    h.run([](auto& b) { b.destroy(VGPU_OBJECT_EVENT, first_event); });
    EXPECT_EQ(h.fsm.on_record(completion(first_event)).broken_rule, nullptr);
    EXPECT_EQ(h.take_records().size(), 1u);
    violation(completion(first_event));
}

TEST_F(session_fsm_test, malformed_records_are_violations) {
    marker(first_event);
    const auto with = [](std::vector<std::byte> r, auto&& change) {
        change(r);
        return r;
    };
    const auto header = [](std::vector<std::byte>& r) { return reinterpret_cast<vgpu_record*>(r.data()); };
    violation({});
    violation(std::vector<std::byte>(8));
    violation(std::vector<std::byte>(VGPU_MAX_RECORD_BYTES + 8));
    violation(with(completion(first_event), [&](auto& r) { header(r)->bytes = 8; }));
    violation(with(completion(first_event), [&](auto& r) { header(r)->pad = 1; }));
    violation(with(completion(first_event), [&](auto& r) { header(r)->type = VGPU_RECORD_LOST; }));
    violation(with(completion(first_event), [&](auto& r) { header(r)->type = VGPU_RECORD_OVERFLOW; }));
    violation(with(completion(first_event), [&](auto& r) { header(r)->type = 0; }));
    violation(with(completion(first_event), [&](auto& r) {
        r.resize(r.size() + 8);
        header(r)->bytes += 8;
    }));
    violation(completion(first_event, 1));
    violation(testing::queue_error(queue, 0));
    violation(testing::queue_error(queue, -5, VGPU_CMD_FLUSH));
    violation(testing::queue_error(queue, -5, VGPU_OPCODE_COUNT));
    const auto text = [](std::uint32_t text_bytes, std::size_t body, std::byte last) {
        vgpu_record_text t{};
        t.text_bytes = text_bytes;
        auto r = testing::record_bytes(t, VGPU_RECORD_TEXT, body);
        r.back() = last;
        return r;
    };
    violation(text(0, 8, std::byte{0}));
    violation(text(9, 8, std::byte{0}));
    violation(text(8, 16, std::byte{0}));
    violation(text(7, 8, std::byte{1}));
    violation(text(UINT32_MAX, 8, std::byte{0}));
}

// ---- records

TEST_F(session_fsm_test, text_keeps_its_place_before_the_completion) {
    marker(first_event);
    EXPECT_EQ(h.fsm.on_record(testing::text("hello\n")).text_bytes, 6u);
    h.fsm.on_record(completion(first_event));
    const auto records = h.take_records();
    ASSERT_EQ(records.size(), 2u);
    const auto t = testing::as<vgpu_record_text>(records[0]);
    EXPECT_EQ(t.record.type, VGPU_RECORD_TEXT);
    EXPECT_EQ(t.record.file, 7u);
    EXPECT_EQ(std::memcmp(records[0].data() + sizeof(t), "hello\n\0\0", 8), 0);
}

TEST_F(session_fsm_test, text_beyond_its_bound_is_dropped_and_counted) {
    const std::string line(1000, 'x');
    std::uint64_t kept = 0;
    std::uint64_t dropped = 0;
    for (int i = 0; i < 2000; ++i) {
        const record_decision d = h.fsm.on_record(testing::text(line));
        kept += d.text_bytes;
        dropped += d.dropped_text_bytes;
    }
    EXPECT_LE(kept, max_text_queue_bytes);
    EXPECT_EQ(kept + dropped, 2'000'000u);
    const auto records = h.take_records();
    EXPECT_EQ(testing::as<vgpu_record_text_dropped>(records.back()).record.type, VGPU_RECORD_TEXT_DROPPED);
    EXPECT_EQ(testing::as<vgpu_record_text_dropped>(records.back()).dropped_bytes, dropped);
    EXPECT_EQ(h.fsm.on_record(testing::text(line)).text_bytes, 1000u) << "there is room again";
}

TEST_F(session_fsm_test, one_error_per_queue_waits_for_the_guest) {
    for (int i = 0; i < 5; ++i)
        EXPECT_EQ(h.fsm.on_record(testing::queue_error(queue, -5)).broken_rule, nullptr);
    EXPECT_EQ(h.take_records().size(), 1u);
    h.fsm.on_record(testing::queue_error(queue, -5));
    EXPECT_EQ(h.take_records().size(), 1u);
    h.run([](auto& b) { b.destroy(VGPU_OBJECT_QUEUE, queue); });
    EXPECT_EQ(h.fsm.on_record(testing::queue_error(queue, -5)).broken_rule, nullptr) << "late, not a lie";
    EXPECT_FALSE(h.fsm.has_record());
}

// ---- loss

TEST_F(session_fsm_test, a_lost_file_says_so_last_and_stays_lost) {
    marker(first_event);
    h.fsm.on_record(completion(first_event));
    const submit_decision open = marker(first_event + 1);
    h.fsm.on_lost(VGPU_LOST_CRASHED, 11);
    std::vector<std::uint64_t> ended;
    h.fsm.end_all(VGPU_STATUS_LOST, [&](std::uint64_t token, const vgpu_response& r) {
        EXPECT_EQ(r.status, VGPU_STATUS_LOST);
        ended.push_back(token);
    });
    EXPECT_EQ(ended.size(), 2u) << "both markers were not answered yet";
    EXPECT_EQ(open.what, submit_decision::action::forward);
    const auto records = h.take_records();
    ASSERT_EQ(records.size(), 2u);
    const auto lost = testing::as<vgpu_record_lost>(records[1]);
    EXPECT_EQ(lost.record.type, VGPU_RECORD_LOST);
    EXPECT_EQ(lost.reason, VGPU_LOST_CRASHED);
    EXPECT_EQ(lost.detail, 11u);
    EXPECT_EQ(marker(first_event + 2).response.status, VGPU_STATUS_LOST);
    EXPECT_EQ(h.fsm.objects().size(), 0u);
    EXPECT_FALSE(h.fsm.busy());
}

TEST_F(session_fsm_test, is_busy_with_requests_and_events_but_not_while_the_guest_is_to_move) {
    EXPECT_FALSE(h.fsm.busy());
    h.run([](auto& b) { b.marker({queue, first_event, {}}); });
    EXPECT_TRUE(h.fsm.busy()) << "an event is pending";
    h.run([](auto& b) { b.create_user_event(user_event, context); });
    EXPECT_FALSE(h.fsm.busy()) << "the user event may hold it up";
    h.run([](auto& b) { b.set_user_event(user_event, 0); });
    EXPECT_TRUE(h.fsm.busy());
    h.fsm.on_record(completion(first_event));
    EXPECT_FALSE(h.fsm.busy());
    marker(0);
    EXPECT_TRUE(h.fsm.busy()) << "a request is not answered";
}

// ---- guest memory that the worker writes

std::vector<std::uint64_t> offsets(std::span<const kagemusha_segment> ranges) {
    std::vector<std::uint64_t> out;
    for (const kagemusha_segment& s : ranges)
        out.push_back(s.offset);
    return out;
}

struct writes_harness : file_harness {
    submit_decision read_three() {
        run([](stream_builder& b) { b.create_context(1); });
        run([](stream_builder& b) { b.create_queue(2, 1); });
        run([](stream_builder& b) { b.create_buffer(3, 1, 4096); });
        stream_builder b;
        b.read_buffer({2, 0, {}}, 3, 0, b.payload(true, {{0, 8, 0, 0}, {4096, 8, 0, 0}}));
        b.write_buffer({2, 0, {}}, 3, 0, b.payload(false, 0, 100, 8));
        b.read_buffer({2, 0, {}}, 3, 0, b.payload(true, 0, 8192, 8));
        return submit(b);
    }
};

TEST(session_fsm_writes, each_range_is_told_once_at_the_latest_with_the_answer) {
    writes_harness h;
    const std::uint64_t token = h.read_three().request.token;
    const written_decision w = h.fsm.on_written(token, 0);
    EXPECT_EQ(w.broken_rule, nullptr);
    EXPECT_EQ(offsets(w.written), (std::vector<std::uint64_t>{0, 4096}));
    file_checkpoint state;
    h.fsm.checkpoint(state);
    EXPECT_EQ(state.requests.at(0).progress.written, std::vector<std::uint32_t>{0});
    EXPECT_EQ(offsets(h.fsm.rest_of_writes()), std::vector<std::uint64_t>{8192});
    EXPECT_EQ(h.usage.written_ranges, 3u);
    EXPECT_EQ(offsets(h.fsm.on_done(token, ok_response(0)).written), std::vector<std::uint64_t>{8192});
    EXPECT_EQ(h.fsm.last_progress().written, (std::vector<std::uint32_t>{0, 2}));
    EXPECT_EQ(h.usage.written_ranges, 0u);
}

TEST(session_fsm_writes, a_worker_that_lies_about_them_is_found_out) {
    writes_harness h;
    const std::uint64_t token = h.read_three().request.token;
    EXPECT_NE(h.fsm.on_written(token + 1, 0).broken_rule, nullptr) << "no such request";
    EXPECT_NE(h.fsm.on_written(token, 1).broken_rule, nullptr) << "the GPU only reads it";
    EXPECT_NE(h.fsm.on_written(token, 3).broken_rule, nullptr) << "no such payload";
    EXPECT_EQ(h.fsm.on_written(token, 2).broken_rule, nullptr);
    EXPECT_NE(h.fsm.on_written(token, 2).broken_rule, nullptr) << "twice";
}

// Each of a hostile guest's segments may be all of its memory, and each is reported when it is written.
TEST(session_fsm_writes, a_request_writes_no_more_than_there_is_memory) {
    writes_harness h;
    const auto of = [&](std::uint32_t segments, bool writable) {
        const kagemusha_segment all{0, testing::regions.at(0), 0, 0};
        const std::vector<kagemusha_segment> list(segments, all);
        stream_builder b;
        b.payload(writable, list);
        return h.submit(b);
    };
    EXPECT_EQ(of(1, true).broken_rule, nullptr);
    EXPECT_EQ(of(1000, false).broken_rule, nullptr);
    const submit_decision refused = of(1000, true);
    ASSERT_NE(refused.broken_rule, nullptr);
    EXPECT_NE(std::string(refused.broken_rule).find("all memory of the guest"), std::string::npos);
}

TEST(session_fsm_writes, refused_commands_of_an_open_request_are_named) {
    writes_harness h;
    h.run([](stream_builder& b) { b.create_context(1); });
    h.run([](stream_builder& b) { b.create_queue(2, 1); });
    h.run([](stream_builder& b) { b.create_buffer(3, 1, 4096); });
    stream_builder b;
    b.marker({2, 0, {}});
    b.copy_buffer({2, 9, {}}, 3, 3, 0, 0, 1u << 20);
    b.marker({2, 0, {}});
    b.destroy(VGPU_OBJECT_EVENT, 9);
    h.submit(b);
    file_checkpoint state;
    h.fsm.checkpoint(state);
    EXPECT_EQ(state.requests.at(0).progress.refused, (std::vector<std::uint32_t>{1, 3}));
    EXPECT_TRUE(state.refused.empty());
}

} // namespace
} // namespace kagemusha::core
