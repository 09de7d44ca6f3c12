// SPDX-License-Identifier: GPL-2.0-or-later
// Links with lanes, over Unix sockets and over TCP with TLS: what comes over a lane is what was sent, in its
// place and turn; a peer without lanes is served as before; what a bad peer does costs it the link.
#include <gtest/gtest.h>

#include <algorithm>

#include "messages/messages.hpp"
#include "mirror/standby/standby_log.hpp"
#include "net/lane.hpp"
#include "net/test_helpers.hpp"
#include "net/tls_test_keys.hpp"

namespace kagemusha::net::test {
namespace {

mirror::content piece_of(std::uint64_t bytes, std::uint64_t sequence) {
    mirror::content m = a_content(bytes);
    m.sequence = sequence;
    return m;
}

class lanes_test : public testing::TestWithParam<const char*> {
protected:
    bool is_unix() const { return GetParam() == std::string("unix"); }

    // Greets, and waits for the lanes if both ends have some.
    bool open_pair(std::uint32_t ours, std::uint32_t theirs) {
        options.address = is_unix() ? "unix:" + directory.path() + "/link" : "127.0.0.1:0";
        if (!is_unix())
            options.tls = {good("alpha"), "web", qemu};
        options.note = [this](const std::string& line) { notes.push_back(line); };
        options.lanes = theirs;
        there = std::make_unique<server>(loop, options);
        EXPECT_EQ(there->error, "");
        options.address = there->listening->address();
        options.lanes = ours;
        here = connect(loop, options, sink);
        here->send(a_hello());
        if (!run_until(loop, [&] { return there->sink.messages.size() == 1; }))
            return false;
        there->connection->send(a_hello(mirror::role::standby));
        if (!run_until(loop, [&] { return sink.messages.size() == 1; }))
            return false;
        // A lane opens when it can: pieces tell.
        const auto lanes = std::min(ours, theirs);
        bool all = lanes == 0;
        while (!all) {
            const std::size_t before = there->sink.messages.size();
            for (std::uint32_t i = 0; i < lanes; ++i)
                here->send(piece_of(small.size(), 1), {small});
            if (!run_until(loop, [&] { return there->sink.messages.size() == before + lanes; }))
                return false;
            std::vector<std::uint32_t> used;
            for (std::size_t i = before; i < there->sink.messages.size(); ++i)
                used.push_back(std::get<mirror::content>(there->sink.messages[i]).lane);
            std::sort(used.begin(), used.end());
            used.erase(std::unique(used.begin(), used.end()), used.end());
            all = used.size() == lanes && used.front() != 0;
        }
        there->sink.messages.clear();
        there->sink.payloads.clear();
        return true;
    }

    std::vector<std::uint64_t> sequences() const {
        std::vector<std::uint64_t> out;
        for (const mirror::message& m : there->sink.messages)
            if (const auto* c = std::get_if<mirror::content>(&m))
                out.push_back(c->sequence);
        return out;
    }

    const bytes small = pattern(mirror::min_lane_bytes, 9);
    temporary_directory directory;
    event_loop loop;
    link_options options;
    std::vector<std::string> notes;
    recording_sink sink;
    std::unique_ptr<server> there;
    std::unique_ptr<link> here;
};

TEST_P(lanes_test, large_pieces_come_over_all_lanes_in_their_turn) {
    ASSERT_TRUE(open_pair(3, mirror::max_lanes));
    there->sink.piece_bytes = 70'000;
    std::vector<bytes> sent;
    auto keep = std::make_shared<int>(0);
    const std::weak_ptr<int> alive = keep;
    std::vector<std::uint64_t> wanted;
    for (unsigned i = 0; i < 24; ++i) {
        // Also smaller ones than a lane takes.
        sent.push_back(pattern(i % 4 == 3 ? 5000 : 300'000 + 100'000 * i, i));
        std::vector<std::span<const std::byte>> pieces;
        for (std::size_t at = 0; at < sent.back().size(); at += 4096)
            pieces.emplace_back(sent.back().data() + at,
                                std::min<std::size_t>(4096, sent.back().size() - at));
        here->send(piece_of(sent.back().size(), i + 1), pieces, keep);
    }
    keep.reset();
    ASSERT_TRUE(
        run_until(loop, [&] { return there->sink.messages.size() == sent.size() && alive.expired(); }));
    EXPECT_EQ(here->queued_bytes(), 0u);
    std::vector<std::uint64_t> large, tiny;
    for (const std::uint64_t s : sequences())
        (s % 4 == 0 ? tiny : large).push_back(s);
    EXPECT_EQ(large.size(), 18u);
    EXPECT_TRUE(std::is_sorted(large.begin(), large.end()));
    EXPECT_TRUE(std::is_sorted(tiny.begin(), tiny.end()));
    // Places were given in the order in which pieces were announced: that of sending.
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), there->sink.payloads.begin()));
    EXPECT_TRUE(notes.empty()) << notes.front();
}

TEST_P(lanes_test, what_calls_an_entry_off_comes_behind_its_content) {
    ASSERT_TRUE(open_pair(2, 2));
    const bytes data = pattern(mirror::content_piece_bytes);
    for (std::uint64_t i = 1; i <= 8; ++i)
        here->send(piece_of(data.size(), i), {data});
    here->send(mirror::outcome{8, true, 0});
    here->send(mirror::outcome{9, false, 0});
    here->send(mirror::goodbye{mirror::goodbye_reason::shutdown, "the end"});
    here->finish(); // at once
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.closed == 1; }));
    EXPECT_EQ(sequences(), (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
    ASSERT_EQ(there->sink.messages.size(), 11u);
    const auto place = [&](const mirror::message& m) {
        return std::find(there->sink.messages.begin(), there->sink.messages.end(), m) -
               there->sink.messages.begin();
    };
    EXPECT_EQ(place(mirror::goodbye{mirror::goodbye_reason::shutdown, "the end"}), 10);
    EXPECT_EQ(place(mirror::outcome{8, true, 0}), 9) << "the other outcome waits for nobody";
}

TEST_P(lanes_test, an_end_without_lanes_gets_its_content_as_before) {
    for (const auto& [ours, theirs] : {std::pair(0u, 4u), std::pair(4u, 0u)}) {
        ASSERT_TRUE(open_pair(ours, theirs));
        const bytes data = pattern(mirror::content_piece_bytes);
        for (std::uint64_t i = 1; i <= 3; ++i)
            here->send(piece_of(data.size(), i), {data});
        ASSERT_TRUE(run_until(loop, [&] { return there->sink.messages.size() == 3; }));
        for (const mirror::message& m : there->sink.messages)
            if (const auto* c = std::get_if<mirror::content>(&m))
                EXPECT_EQ(c->lane, 0u);
        EXPECT_EQ(there->sink.payloads.back(), data);
        here.reset();
        there.reset();
        sink.messages.clear();
    }
}

TEST_P(lanes_test, only_some_lanes_where_one_end_has_fewer) {
    ASSERT_TRUE(open_pair(4, 2));
    ASSERT_TRUE(run_until(loop, [&] { return notes.size() == 2; }));
    EXPECT_NE(notes[0].find("did not open"), std::string::npos) << notes[0];
}

TEST_P(lanes_test, a_link_that_goes_takes_its_lanes_with_it) {
    ASSERT_TRUE(open_pair(2, 2));
    const auto data = std::make_shared<const bytes>(pattern(mirror::content_piece_bytes));
    for (std::uint64_t i = 1; i <= 12; ++i)
        here->send(piece_of(data->size(), i), {*data}, data);
    ASSERT_TRUE(run_until(loop, [&] { return !there->sink.messages.empty(); }));
    there->connection.reset();
    there->sink.payloads.clear(); // nobody writes there any more
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1; }));
    here.reset();
    EXPECT_EQ(data.use_count(), 1);
}

TEST_P(lanes_test, content_without_a_place_ends_the_link) {
    ASSERT_TRUE(open_pair(1, 1));
    there->sink.refuse_payload = true;
    here->send(piece_of(small.size(), 1), {small});
    ASSERT_TRUE(run_until(loop, [&] { return sink.closed == 1 && there->sink.closed == 1; }));
    EXPECT_EQ(there->sink.why, "there is no room for the 65536 bytes of a piece that a lane brings");
}

INSTANTIATE_TEST_SUITE_P(over, lanes_test, testing::Values("unix", "tls"),
                         [](const auto& each) { return std::string(each.param); });

// Who may open the socket's file, and keeps no rule.
class bad_lanes_test : public testing::Test {
protected:
    void SetUp() override {
        options.address = "unix:" + directory.path() + "/link";
        options.lanes = 2;
        options.note = [this](const std::string& line) { notes.push_back(line); };
        there = std::make_unique<server>(loop, options);
        ASSERT_EQ(there->error, "");
        primary = std::make_unique<raw_peer>(options.address);
        primary->send(frame(a_hello()));
        ASSERT_TRUE(run_until(loop, [&] { return there->sink.messages.size() == 1; }));
        there->connection->send(a_hello(mirror::role::standby));
        // Its token.
        bytes got;
        ASSERT_TRUE(run_until(loop, [&] {
            got = primary->receive();
            return !got.empty();
        }));
        messages::frame_header header;
        std::memcpy(&header, got.data(), sizeof(header));
        mirror::message m;
        ASSERT_EQ(messages::decode(header, std::span(got).subspan(sizeof(header)), m), "");
        token = std::get<mirror::hello>(m).lane_token;
        ASSERT_EQ(token.size(), mirror::lane_token_bytes);
    }
    bytes greeting(std::uint32_t number) const {
        lane_greeting g;
        g.number = number;
        std::memcpy(g.token, token.data(), sizeof(g.token));
        const auto raw = std::as_bytes(std::span(&g, 1));
        return {raw.begin(), raw.end()};
    }
    // Else it was closed.
    bool answered(raw_peer& lane) {
        bytes got;
        EXPECT_TRUE(run_until(loop, [&] {
            got = lane.receive();
            return !got.empty() || lane.ended();
        }));
        return got.size() == sizeof(lane_answer);
    }

    temporary_directory directory;
    event_loop loop;
    link_options options;
    std::vector<std::string> notes;
    std::unique_ptr<server> there;
    std::unique_ptr<raw_peer> primary;
    std::string token;
};

TEST_F(bad_lanes_test, a_lane_has_the_token_and_a_number_that_nobody_has) {
    raw_peer first(options.address), again(options.address), beyond(options.address);
    first.send(greeting(1));
    EXPECT_TRUE(answered(first));
    again.send(greeting(1));
    EXPECT_FALSE(answered(again));
    beyond.send(greeting(3));
    EXPECT_FALSE(answered(beyond));
    token[3] = static_cast<char>(token[3] ^ 1);
    raw_peer wrong(options.address);
    wrong.send(greeting(2));
    EXPECT_FALSE(answered(wrong));
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("did not know its token"), std::string::npos);
    EXPECT_EQ(there->sink.closed, 0u);
    EXPECT_EQ(there->offered.size(), 1u);
}

TEST_F(bad_lanes_test, who_is_no_lane_is_offered_as_ever) {
    raw_peer other(options.address);
    other.send(frame(a_hello()));
    ASSERT_TRUE(run_until(loop, [&] { return there->offered.size() == 2; }));
    EXPECT_EQ(there->sink.closed, 0u);
}

TEST_F(bad_lanes_test, content_for_a_lane_that_is_not_open_ends_the_link) {
    auto m = a_content(mirror::min_lane_bytes);
    m.lane = 2;
    primary->send(frame(m));
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.closed == 1; }));
    EXPECT_EQ(there->sink.why, "content was announced for a lane that is not open");
}

TEST_F(bad_lanes_test, a_lane_that_ends_takes_the_link_with_it) {
    auto lane = std::make_unique<raw_peer>(options.address);
    lane->send(greeting(2));
    ASSERT_TRUE(answered(*lane));
    auto m = a_content(mirror::min_lane_bytes);
    m.lane = 2;
    primary->send(frame(m));
    lane->send(pattern(1000)); // and no more
    lane.reset();
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.closed == 1; }));
    EXPECT_EQ(there->sink.why, "a lane of the connection is lost: the peer closed it");
    EXPECT_EQ(there->sink.messages.size(), 1u) << "a piece that did not come is none";
}

// Not bad, but with a raw peer the order is certain: the first piece of a payload is on its way over a lane
// while the rest of it, too small for one, comes over the first connection.
TEST_F(bad_lanes_test, a_standby_takes_a_payload_whose_small_end_comes_before_its_lane) {
    raw_peer lane(options.address);
    lane.send(greeting(1));
    ASSERT_TRUE(answered(lane));
    const bytes first = pattern(mirror::min_lane_bytes), rest = pattern(100);
    auto announced = a_content(first.size());
    announced.lane = 1;
    primary->send(frame(announced));
    primary->send(frame(a_content(rest.size(), first.size()), rest));
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.messages.size() == 2; }));
    lane.send(first);
    ASSERT_TRUE(run_until(loop, [&] { return there->sink.messages.size() == 3; }));

    mirror::standby_config config;
    config.hold_bytes = 1 << 20;
    config.hold_entries = 10;
    mirror::action_queue<mirror::standby_action> actions;
    mirror::standby_log log(config, actions);
    const auto entry = [&](mirror::entry_kind kind, std::uint32_t flags, std::uint64_t content) {
        mirror::entries::entry e;
        e.meta.sequence = log.received() + 1;
        e.meta.kind = kind;
        e.meta.file = kind == mirror::entry_kind::reset ? 0 : 1;
        e.meta.flags = flags;
        e.meta.content_bytes = content;
        if (content != 0)
            e.payloads = {{content, false}};
        return log.on_entry(e);
    };
    ASSERT_EQ(entry(mirror::entry_kind::reset, 0, 0), "");
    ASSERT_EQ(entry(mirror::entry_kind::open_file, 0, 0), "");
    ASSERT_EQ(entry(mirror::entry_kind::submit, mirror::entry_late_content, first.size() + rest.size()), "");
    for (std::size_t i = 1; i < 3; ++i) {
        auto piece = std::get<mirror::content>(there->sink.messages[i]);
        piece.sequence = log.received();
        EXPECT_EQ(log.on_content(piece), "");
    }
    EXPECT_EQ(log.first_incomplete(), UINT64_MAX);
}

TEST_F(bad_lanes_test, announcing_without_sending_has_a_bound) {
    raw_peer lane(options.address);
    lane.send(greeting(1));
    ASSERT_TRUE(answered(lane));
    auto m = a_content(mirror::min_lane_bytes);
    m.lane = 1;
    const bytes one = frame(m);
    bytes many;
    for (int i = 0; i < 64; ++i)
        many.insert(many.end(), one.begin(), one.end());
    there->sink.one_place = true;
    for (std::size_t i = 0; there->sink.closed == 0; ++i) {
        ASSERT_LE(i, mirror::max_lane_pieces / 64 + 1);
        primary->send(many);
        const std::size_t before = there->sink.places_given;
        ASSERT_TRUE(run_until(
            loop, [&] { return there->sink.closed == 1 || there->sink.places_given == before + 64; }));
    }
    EXPECT_EQ(there->sink.why, "more content was announced for lanes than may be under way");
}

} // namespace
} // namespace kagemusha::net::test
