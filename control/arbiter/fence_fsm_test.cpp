// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/arbiter/fence_fsm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kagemusha::control {
namespace {

using kind = ha::arbiter_request::kind;
using verdict = ha::arbiter_answer::verdict;
using role = fence_record::role;

constexpr fence_rules rules{5000, 60000, false};
constexpr fence_rules checking{5000, 60000, true};

// One host: carries out what the machine wants; the test says how its command ends.
struct host {
    explicit host(fence_record r = {}, fence_rules with = rules) : record(r), fsm(with, r) {}

    ha::arbiter_answer ask(ha::arbiter_request request, std::uint64_t now, bool by_person = false) {
        auto step = fsm.asked(request, by_person, now);
        for (;;) {
            if (const auto* answer = std::get_if<fence_answer>(&step))
                return answer->what;
            if (const auto* write = std::get_if<fence_write>(&step)) {
                if (disk_problem.empty())
                    record = write->record;
                step = fsm.written(disk_problem);
                continue;
            }
            runs.push_back(std::get<fence_run>(step));
            step = fsm.ended(command_problem, now);
        }
    }
    ha::arbiter_answer ask(kind what, std::uint64_t term, std::uint64_t heard_ms, std::uint64_t now) {
        ha::arbiter_request r;
        r.what = what;
        r.term = term;
        r.new_term = term + 1;
        r.heard_ms = heard_ms;
        return ask(r, now);
    }
    unsigned cut_off() const {
        return static_cast<unsigned>(
            std::count_if(runs.begin(), runs.end(), [](const auto& r) { return !r.check; }));
    }

    fence_record record; // on the disk
    fence_fsm fsm;
    std::string command_problem, disk_problem;
    std::vector<fence_run> runs;
};

host primary(std::uint64_t term = 1) {
    host h({term - 1, role::primary, false});
    EXPECT_EQ(h.ask(kind::open, 0, 0, 0).term, term);
    return h;
}

host paired_primary() {
    auto h = primary();
    EXPECT_EQ(h.ask(kind::pair, 1, 0, 0).term, 2u);
    return h;
}

host standby() {
    host h;
    EXPECT_EQ(h.ask(kind::look, 2, 0, 0).what, verdict::granted);
    return h;
}

} // namespace

TEST(fence_fsm, only_the_host_that_ran_it_last_and_alone_opens_it) {
    const auto open = [](fence_record r) { return host(r).ask(kind::open, 0, 0, 0); };
    EXPECT_EQ(open({4, role::primary, false}).term, 5u);
    EXPECT_EQ(open({4, role::primary, true}).what, verdict::refused);
    EXPECT_EQ(open({4, role::standby, false}).what, verdict::refused);
    EXPECT_EQ(open({}).what, verdict::refused);
    ha::arbiter_request anew;
    anew.anew = true;
    for (const auto& record : {fence_record{4, role::primary, true}, {4, role::standby, false}, {}}) {
        host h(record);
        EXPECT_EQ(h.ask(anew, 0).term, record.term + 1);
        EXPECT_EQ(h.record, (fence_record{record.term + 1, role::primary, false}));
    }
}

TEST(fence_fsm, a_pair_and_a_takeover_are_on_the_disk_before_they_are_granted) {
    auto h = paired_primary();
    EXPECT_EQ(h.record, (fence_record{2, role::primary, true}));
    auto s = standby();
    EXPECT_EQ(s.record, (fence_record{2, role::standby, false}));
    s.disk_problem = "disk full";
    EXPECT_EQ(s.ask(kind::claim, 2, 1000, 7000).what, verdict::unreachable);
    EXPECT_EQ(s.record.is, role::standby);
    s.disk_problem.clear();
    EXPECT_EQ(s.ask(kind::claim, 2, 1000, 7001).term, 3u);
    EXPECT_EQ(s.record, (fence_record{3, role::primary, false}));
    EXPECT_EQ(s.ask(kind::claim, 2, 1000, 7002).term, 3u) << "an answer can get lost";
    EXPECT_EQ(s.cut_off(), 2u);
    EXPECT_EQ(s.ask(kind::renew, 3, 1000, 7003).until_ms, UINT64_MAX);
}

TEST(fence_fsm, who_crashes_while_a_standby_is_told_does_not_open_it_again) {
    auto h = primary();
    ha::arbiter_request announces;
    announces.what = kind::renew;
    announces.term = 1;
    announces.paired = true;
    h.disk_problem = "disk full";
    EXPECT_EQ(h.ask(announces, 0).what, verdict::unreachable);
    h.disk_problem.clear();
    EXPECT_EQ(h.ask(announces, 0).term, 1u);
    EXPECT_EQ(h.record, (fence_record{1, role::primary, true}));
    EXPECT_EQ(h.ask(kind::renew, 1, 0, 0).what, verdict::granted);
    EXPECT_EQ(h.record, (fence_record{1, role::primary, true}));
    host again(h.record);
    EXPECT_EQ(again.ask(kind::open, 0, 0, 0).what, verdict::refused);
}

TEST(fence_fsm, who_never_heard_the_other_one_cuts_nobody_off) {
    auto s = standby();
    const auto early = s.ask(kind::claim, 2, 0, 30000); // soon after a boot
    EXPECT_EQ(early.what, verdict::held);
    EXPECT_NE(early.why.find("was never heard"), std::string::npos) << early.why;
    EXPECT_EQ(s.cut_off(), 0u);
}

TEST(fence_fsm, the_primary_is_first) {
    auto p = paired_primary();
    auto s = standby();
    const auto waits = s.ask(kind::claim, 2, 1000, 1500);
    EXPECT_EQ(waits.what, verdict::held);
    EXPECT_EQ(waits.until_ms, 6000u);
    EXPECT_EQ(s.cut_off(), 0u);
    EXPECT_EQ(p.ask(kind::alone, 2, 1000, 1500).what, verdict::granted);
    EXPECT_EQ(p.runs, (std::vector<fence_run>{{false, false, 59500}}));
    EXPECT_EQ(p.record, (fence_record{2, role::primary, false}));
    EXPECT_EQ(s.ask(kind::claim, 2, 1000, 6000).what, verdict::granted) << "it was not cut off";
}

// A switch's port that cut this host off is opened after an hour; the other one has gone on all the time.
TEST(fence_fsm, nobody_is_cut_off_after_a_long_silence) {
    auto s = standby();
    s.command_problem = "no route";
    EXPECT_EQ(s.ask(kind::claim, 2, 1000, 7000).what, verdict::unreachable);
    s.command_problem.clear();
    const auto late = s.ask(kind::claim, 2, 1000, 3'600'000);
    EXPECT_EQ(late.what, verdict::held);
    EXPECT_NE(late.why.find("the primary was heard 3599 s ago"), std::string::npos) << late.why;
    EXPECT_NE(late.why.find("write the term, 2,"), std::string::npos) << late.why;
    EXPECT_EQ(s.cut_off(), 1u);
    ha::arbiter_request again;
    again.what = kind::claim;
    again.term = 2;
    again.heard_ms = 1000;
    EXPECT_EQ(s.ask(again, 3'600'001, true).term, 3u) << "a person knows";
    EXPECT_EQ(s.cut_off(), 1u);

    auto p = paired_primary();
    EXPECT_EQ(p.ask(kind::alone, 2, 1000, 61000).what, verdict::held);
    EXPECT_EQ(p.cut_off(), 0u);
    EXPECT_TRUE(p.record.paired);
    EXPECT_EQ(p.ask(kind::alone, 2, 61000, 61001).what, verdict::granted) << "it is heard again";
}

TEST(fence_fsm, a_command_does_not_go_on_longer_than_it_may_begin) {
    auto s = standby();
    s.ask(kind::claim, 2, 1000, 60500);
    EXPECT_EQ(s.runs, (std::vector<fence_run>{{false, true, 500}}));
}

TEST(fence_fsm, who_ends_in_order_cuts_nobody_off) {
    auto p = paired_primary();
    ha::arbiter_request alone;
    alone.what = kind::alone;
    alone.term = 2;
    alone.confirmed = true;
    EXPECT_EQ(p.ask(alone, 9000).what, verdict::granted);
    EXPECT_FALSE(p.record.paired);
    auto s = standby();
    ha::arbiter_request claim;
    claim.what = kind::claim;
    claim.term = 2;
    claim.proven_dead = true;
    EXPECT_EQ(s.ask(claim, 9000).term, 3u);
    EXPECT_EQ(p.cut_off() + s.cut_off(), 0u);
}

// Also a standby that was told and whose pair was not recorded yet may claim.
TEST(fence_fsm, alone_cuts_off_whatever_the_record_says) {
    auto p = primary();
    EXPECT_EQ(p.ask(kind::alone, 1, 1000, 1500).what, verdict::granted);
    EXPECT_EQ(p.cut_off(), 1u);
}

TEST(fence_fsm, a_command_that_fails_is_repeated_later_and_later) {
    auto s = standby();
    s.command_problem = "no answer";
    std::uint64_t now = 6000;
    for (const std::uint64_t pause : {1000u, 2000u, 4000u, 8000u}) {
        const auto failed = s.ask(kind::claim, 2, 1000, now);
        EXPECT_EQ(failed.what, verdict::unreachable);
        EXPECT_NE(failed.why.find("no answer"), std::string::npos);
        const auto waits = s.ask(kind::claim, 2, 1000, now + pause - 1);
        EXPECT_EQ(waits.what, verdict::held);
        EXPECT_EQ(waits.until_ms, now + pause);
        now += pause;
    }
    EXPECT_EQ(s.cut_off(), 4u);
    s.command_problem.clear();
    EXPECT_EQ(s.ask(kind::claim, 2, 1000, now).what, verdict::granted);
}

TEST(fence_fsm, a_pair_needs_a_command_that_would_work) {
    host p({0, role::primary, false}, checking);
    p.ask(kind::open, 0, 0, 0);
    p.command_problem = "it ended with status 1";
    EXPECT_EQ(p.ask(kind::pair, 1, 0, 1000).what, verdict::unreachable);
    EXPECT_FALSE(p.record.paired);
    p.command_problem.clear();
    EXPECT_EQ(p.ask(kind::pair, 1, 0, 1001).term, 2u);
    EXPECT_EQ(p.runs, (std::vector<fence_run>{{true, false, 10000}, {true, false, 10000}}));

    host s({}, checking);
    s.command_problem = "it ended with status 1";
    EXPECT_EQ(s.ask(kind::look, 2, 0, 1000).what, verdict::unreachable);
    EXPECT_EQ(s.record.is, role::none);
    s.command_problem.clear();
    const auto seen = s.ask(kind::look, 2, 0, 1001);
    EXPECT_EQ(seen.what, verdict::granted);
    EXPECT_TRUE(seen.paired);
    EXPECT_EQ(seen.term, 2u);
    EXPECT_FALSE(seen.ours);
    EXPECT_EQ(s.ask(kind::look, 2, 0, 31000).what, verdict::granted);
    EXPECT_EQ(s.runs.size(), 2u) << "not for every look";
    EXPECT_EQ(s.ask(kind::look, 2, 0, 31001).what, verdict::granted);
    EXPECT_EQ(s.runs.size(), 3u);
    EXPECT_EQ(s.cut_off() + p.cut_off(), 0u);
}

TEST(fence_fsm, a_look_before_there_is_a_copy_leaves_the_record) {
    host h({7, role::primary, false});
    EXPECT_EQ(h.ask(kind::look, 0, 0, 0).what, verdict::granted);
    EXPECT_EQ(h.record, (fence_record{7, role::primary, false}))
        << "it ran here last, and is not overwritten yet";
}

TEST(fence_fsm, another_runs_term_is_over) {
    host h({7, role::primary, false});
    EXPECT_EQ(h.ask(kind::renew, 7, 0, 0).what, verdict::refused) << "another run had it";
    h.ask(kind::open, 0, 0, 0);
    EXPECT_EQ(h.ask(kind::alone, 7, 0, 0).what, verdict::refused);
    EXPECT_EQ(h.ask(kind::pair, 7, 0, 0).what, verdict::refused);
    EXPECT_EQ(h.ask(kind::renew, 8, 0, 0).what, verdict::granted);
    EXPECT_EQ(h.cut_off(), 0u);
}

TEST(fence_record, is_read_as_it_was_written) {
    std::string error;
    for (const auto& record : {fence_record{1, role::primary, true},
                               {UINT64_MAX, role::primary, false},
                               {3, role::standby, false}})
        EXPECT_EQ(parse_fence_record(fence_record_text("web", record), "web", error), record) << error;
}

TEST(fence_record, anything_else_is_refused) {
    const auto good = fence_record_text("web", {3, role::primary, true});
    std::string error;
    EXPECT_FALSE(parse_fence_record(good, "other", error));
    EXPECT_EQ(error, "is the fencing record of the VM web");
    EXPECT_FALSE(parse_fence_record(good + "more\n", "web", error));
    EXPECT_FALSE(parse_fence_record("", "web", error));
    for (std::size_t size = 0; size + 1 < good.size(); ++size)
        EXPECT_FALSE(parse_fence_record(good.substr(0, size), "web", error)) << size;
    for (const char* wrong : {"3", "-3", "3x", "99999999999999999999"}) {
        auto text = good;
        text.replace(text.find("term 3"), 6, std::string("term ") + wrong);
        EXPECT_EQ(parse_fence_record(text, "web", error).has_value(), std::string(wrong) == "3") << wrong;
    }
}

TEST(fence_record, survives_its_supervisor) {
    auto name = (std::filesystem::temp_directory_path() / "fence-record-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    const auto path = name + "/web";
    std::string error;
    {
        auto file = fence_file::open(path, "web", error);
        ASSERT_TRUE(file) << error;
        EXPECT_EQ(file->record(), fence_record{});
        EXPECT_EQ(file->write({3, role::primary, true}), "");
    }
    EXPECT_EQ(fence_file::open(path, "web", error)->record(), (fence_record{3, role::primary, true}));
    EXPECT_FALSE(fence_file::open(path, "other", error));
    EXPECT_NE(error.find("is the fencing record of the VM web. If the VM runs nowhere"), std::string::npos)
        << error;
    std::ofstream(path) << std::string(5000, 'x');
    EXPECT_FALSE(fence_file::open(path, "web", error));
    EXPECT_FALSE(fence_file::open(name + "/none/web", "web", error));
    EXPECT_NE(error.find("cannot open"), std::string::npos) << error;
    EXPECT_NE(why_not_durable("/dev/shm/web").find("is in memory"), std::string::npos);
    std::filesystem::remove_all(name);
}

} // namespace kagemusha::control
