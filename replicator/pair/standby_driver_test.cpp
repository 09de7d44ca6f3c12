// SPDX-License-Identifier: GPL-2.0-or-later
// A standby's end with a primary that has all the keys and keeps no rule: what is left of it when it is gone.
// The device's thread does nothing here: nothing of these logs ever runs.
#include "pair/standby_driver.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "net/test_helpers.hpp"

namespace kagemusha::pair {
namespace {

using mirror::entry_kind;

mirror::entries::entry plain(mirror::log_sequence sequence, entry_kind kind, std::uint32_t file) {
    mirror::entries::entry e;
    e.meta.sequence = sequence;
    e.meta.kind = kind;
    e.meta.file = file;
    return e;
}

mirror::entries::entry submit(mirror::log_sequence sequence, std::uint64_t stream_bytes) {
    mirror::entries::entry e = plain(sequence, entry_kind::submit, 1);
    e.meta.op_count = 1;
    e.meta.stream_bytes = stream_bytes;
    return e;
}

class hostile_primary : public testing::Test {
protected:
    static constexpr std::uint64_t hold_bytes = 64 << 10, stream_bytes = 48 << 10;

    void SetUp() override {
        standby_driver::options o;
        o.fsm.vm = "vm";
        o.fsm.hold_bytes = hold_bytes;
        o.fsm.heartbeat_budget_ms = 60'000; // nobody here is silent on purpose
        o.listen.address = "unix:" + directory_.path() + "/standby";
        o.log = [](kagemusha_log_level, const std::string&) {};
        std::string error;
        standby = standby_driver::create(std::move(o), error);
        ASSERT_TRUE(standby) << error;
    }
    void TearDown() override {
        link.reset();
        standby.reset();
    }

    // A new connection that has greeted and was greeted.
    void greet() {
        link.reset();
        sink = net::test::recording_sink{};
        net::link_options options;
        options.address = standby->address();
        link = net::connect(loop, options, sink);
        mirror::hello h = net::test::a_hello();
        h.vm = "vm";
        h.heartbeat_budget_ms = 60'000;
        link->send(h);
        ASSERT_TRUE(until([this] { return has<mirror::hello>(); })) << sink.why;
    }
    void send(std::vector<mirror::entries::entry> list) {
        std::uint64_t bytes = 0;
        for (const auto& e : list)
            bytes += e.meta.stream_bytes;
        payload.assign(bytes, std::byte{0});
        link->send(mirror::entries{std::move(list)}, {payload});
    }
    bool until(const std::function<bool()>& done) {
        net::test::run_until(loop, [&] { return done() || sink.closed != 0; });
        return done();
    }
    template <class M>
    bool has() const {
        return find<M>().has_value();
    }
    template <class M>
    std::optional<M> find() const {
        for (const auto& m : sink.messages)
            if (const auto* found = std::get_if<M>(&m))
                return *found;
        return {};
    }
    std::string farewell() {
        EXPECT_TRUE(until([this] { return has<mirror::goodbye>(); })) << sink.why;
        const auto bye = find<mirror::goodbye>();
        return bye ? bye->why : "";
    }

    net::test::temporary_directory directory_;
    std::unique_ptr<standby_driver> standby;
    net::event_loop loop;
    net::test::recording_sink sink;
    std::unique_ptr<net::link> link;
    std::vector<std::byte> payload;
};

TEST_F(hostile_primary, what_was_refused_takes_no_room_from_the_next_primary) {
    for (int i = 0; i < 3; ++i) {
        greet();
        send({plain(1, entry_kind::open_file, 1), submit(2, stream_bytes)});
        EXPECT_NE(farewell().find("its log does not begin with a reset"), std::string::npos) << farewell();
    }
    greet();
    send({plain(1, entry_kind::reset, 0), plain(2, entry_kind::open_file, 1), submit(3, stream_bytes)});
    ASSERT_TRUE(until([this] { return has<mirror::ack>(); })) << sink.why;
    EXPECT_EQ(find<mirror::ack>()->received, 3u);
}

// Who takes over walks what such a request has left in the log.
TEST_F(hostile_primary, a_checkpoints_open_request_ends_within_the_log) {
    greet();
    send({plain(1, entry_kind::reset, 0), plain(2, entry_kind::open_file, 1), submit(3, 16)});
    link->send(mirror::marker{.epoch = 1, .sequence = 3, .checkpoint = true});
    ASSERT_TRUE(until([this] { return has<mirror::ack>() && standby->status().complete_checkpoint == 1; }));
    mirror::vm_state state;
    state.instance = standby->status().primary_instance;
    state.epoch = 1;
    state.files.emplace_back().file = 1;
    state.files[0].requests.push_back({7, {2, 3}, {}});
    EXPECT_EQ(standby->check(state), "");
    state.files[0].requests[0].entries.last = 4;
    EXPECT_EQ(standby->check(state),
              "an in-flight request of the checkpoint ends at entry 4, and this standby has "
              "the log up to entry 3");
}

} // namespace
} // namespace kagemusha::pair
