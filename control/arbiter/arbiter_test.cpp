// SPDX-License-Identifier: GPL-2.0-or-later
//
// The arbiters' contract (control/ha/arbiter_request.hpp): of `lock` with a clock of ours, of `fence` with
// commands. etcd_arbiter_test.cpp has that of `etcd`.
#include "control/arbiter/arbiter_test_helpers.hpp"
#include "control/arbiter/fence_arbiter.hpp"
#include "control/arbiter/lock_arbiter.hpp"
#include "control/base/process.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>
#include <unistd.h>

namespace kagemusha::control {
namespace {

using kind = ha::arbiter_request::kind;
using verdict = ha::arbiter_answer::verdict;
using namespace std::chrono_literals;
using namespace test;

// ---- lock

struct lock : testing::Test {
    std::unique_ptr<lock_arbiter> open(const char* owner) {
        std::string error;
        auto a = lock_arbiter::open(directory.path + "/lease", 300, {"vm", owner, false}, [](auto) {}, error);
        EXPECT_TRUE(a) << error;
        return a;
    }
    temporary_directory directory;
    std::unique_ptr<lock_arbiter> p = open("p"), s = open("s");
};

TEST_F(lock, one_of_two_primaries_gets_it) {
    EXPECT_EQ(p->decide(request(kind::open), 1000).what, verdict::granted);
    const auto held = s->decide(request(kind::open), 1001);
    EXPECT_EQ(held.what, verdict::held);
    EXPECT_EQ(held.until_ms, 1300u);
    EXPECT_EQ(s->decide(request(kind::open), 1300).what, verdict::granted);
    const auto over = p->decide(request(kind::renew, 1), 1301);
    EXPECT_EQ(over.what, verdict::refused);
    EXPECT_NE(over.why.find("s has term 2"), std::string::npos) << over.why;
}

TEST_F(lock, only_the_paired_standby_claims_and_only_an_expired_lease) {
    p->decide(request(kind::open), 1000);
    EXPECT_EQ(s->decide(request(kind::claim, 1), 5000).what, verdict::refused) << "not paired";
    EXPECT_EQ(p->decide(request(kind::pair, 1, 2), 1100).term, 2u);
    EXPECT_EQ(p->decide(request(kind::pair, 1, 2), 1100).what, verdict::granted) << "an answer can get lost";
    EXPECT_EQ(s->decide(request(kind::claim, 1), 5000).what, verdict::refused) << "another term";
    EXPECT_EQ(s->decide(request(kind::claim, 2), 1399).what, verdict::held);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 1400).term, 3u);
    EXPECT_EQ(p->decide(request(kind::renew, 2), 1400).what, verdict::refused);
    EXPECT_EQ(p->decide(request(kind::alone, 2), 1400).what, verdict::refused);
}

TEST_F(lock, a_late_holder_keeps_what_nobody_claimed) {
    p->decide(request(kind::open), 1000);
    p->decide(request(kind::pair, 1, 2), 1100);
    EXPECT_EQ(p->decide(request(kind::renew, 2), 9000).what, verdict::granted);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 9001).what, verdict::held);
}

TEST_F(lock, who_goes_on_alone_is_not_taken_over) {
    p->decide(request(kind::open), 1000);
    p->decide(request(kind::pair, 1, 2), 1000);
    p->decide(request(kind::alone, 2), 1000);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 9000).what, verdict::refused);
}

TEST_F(lock, proof_needs_no_expired_lease) {
    p->decide(request(kind::open), 1000);
    p->decide(request(kind::pair, 1, 2), 1000);
    auto claim = request(kind::claim, 2);
    claim.proven_dead = true;
    EXPECT_EQ(s->decide(claim, 1001).what, verdict::granted);
}

TEST_F(lock, a_paired_vm_is_started_anew_only_on_demand) {
    p->decide(request(kind::open), 1000);
    p->decide(request(kind::pair, 1, 2), 1000);
    p->decide(request(kind::release, 2), 1001);
    EXPECT_EQ(p->decide(request(kind::open), 1002).what, verdict::refused);
    auto anew = request(kind::open);
    anew.anew = true;
    EXPECT_EQ(p->decide(anew, 1002).what, verdict::granted);
}

// Every claimer of one term at the same time: one gets it.
TEST_F(lock, a_look_changes_nothing) {
    p->decide(request(kind::open), 1000);
    p->decide(request(kind::pair, 1, 2), 1000);
    const auto seen = s->decide(request(kind::look, 2), 1001);
    EXPECT_EQ(seen.what, verdict::granted);
    EXPECT_EQ(seen.term, 2u);
    EXPECT_TRUE(seen.paired);
    EXPECT_FALSE(seen.ours);
    EXPECT_TRUE(p->decide(request(kind::look, 2), 1001).ours);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 1299).what, verdict::held) << "the lease is the primary's";
}
TEST_F(lock, a_record_that_is_gone_is_not_another_ones) {
    EXPECT_EQ(p->decide(request(kind::renew, 5), 1000).what, verdict::gone);
    EXPECT_EQ(s->decide(request(kind::claim, 5), 1000).what, verdict::gone);
    auto again = request(kind::restore, 5);
    again.paired = true;
    EXPECT_EQ(p->decide(again, 1000).term, 5u);
    EXPECT_EQ(p->decide(again, 1001).what, verdict::granted) << "its answer may have been lost";
    EXPECT_EQ(s->decide(again, 1002).what, verdict::refused);
    EXPECT_EQ(s->decide(request(kind::claim, 5), 1400).term, 6u);
    EXPECT_EQ(p->decide(again, 9000).what, verdict::refused);
}
TEST_F(lock, a_record_that_is_older_is_not_another_ones) {
    p->decide(request(kind::open), 1000); // term 1, as it is in a copy that is put back
    for (const auto what : {kind::renew, kind::alone, kind::release, kind::pair, kind::claim})
        EXPECT_EQ(p->decide(request(what, 2, 3), 1001).what, verdict::gone) << ha::to_text(what);
    EXPECT_EQ(s->decide(request(kind::look, 2), 1001).term, 1u);
    auto again = request(kind::restore, 2);
    again.paired = true;
    EXPECT_EQ(p->decide(again, 1002).what, verdict::held) << "by whom, the file does not say for sure";
    EXPECT_EQ(p->decide(again, 1300).term, 2u);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 1600).term, 3u);
}
TEST_F(lock, a_record_that_was_put_back_to_paired_says_alone_again) {
    p->decide(request(kind::open), 1000);
    p->decide(request(kind::pair, 1, 2), 1000); // as it is in a copy that is put back
    EXPECT_EQ(p->decide(request(kind::renew, 2), 1001).what, verdict::granted);
    EXPECT_TRUE(s->decide(request(kind::look, 2), 1001).paired);
    auto renew = request(kind::renew, 2);
    renew.alone = true;
    EXPECT_EQ(p->decide(renew, 1002).what, verdict::granted);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 9000).what, verdict::refused);
}
TEST_F(lock, who_ends_alone_has_that_written_again) {
    p->decide(request(kind::open), 1000);
    p->decide(request(kind::pair, 1, 2), 1000); // as it is in a copy that is put back
    auto release = request(kind::release, 2);
    release.alone = true;
    EXPECT_EQ(p->decide(release, 1002).what, verdict::granted);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 1003).what, verdict::refused);
    EXPECT_EQ(s->decide(request(kind::open), 1003).what, verdict::granted) << "the lease has ended";
}
TEST_F(lock, proof_that_nothing_was_released_counts_more_than_alone) {
    p->decide(request(kind::open), 1000);
    p->decide(request(kind::pair, 1, 2), 1000);
    p->decide(request(kind::alone, 2), 1000); // its answer was lost, and QEMU died
    auto claim = request(kind::claim, 2);
    claim.proven_dead = true;
    EXPECT_EQ(s->decide(claim, 1001).what, verdict::refused);
    claim.unreleased = true;
    EXPECT_EQ(s->decide(claim, 1001).term, 3u);
}
TEST_F(lock, many_claim_and_one_gets_it) {
    for (std::uint64_t round = 0; round < 200; ++round) {
        temporary_directory own;
        std::string error;
        const auto make = [&](const char* owner) {
            return lock_arbiter::open(own.path + "/lease", 300, {"vm", owner, false}, [](auto) {}, error);
        };
        const auto first = make("first");
        first->decide(request(kind::open), 1000);
        first->decide(request(kind::pair, 1, 2), 1000);
        std::atomic<int> granted = 0;
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back([&] {
                const auto one = make("one");
                granted += one->decide(request(kind::claim, 2), 2000).what == verdict::granted;
            });
        for (auto& t : threads)
            t.join();
        EXPECT_EQ(granted, 1);
    }
}

TEST_F(lock, a_file_that_is_something_else_is_refused) {
    std::string error;
    {
        std::ifstream id("/proc/sys/kernel/random/boot_id");
        std::string text;
        std::getline(id, text);
        std::ofstream(directory.path + "/other." + text) << "something else";
    }
    EXPECT_FALSE(lock_arbiter::open(directory.path + "/other", 300, {"vm", "p", false}, [](auto) {}, error));
    EXPECT_NE(error.find("no arbiter's file"), std::string::npos) << error;
}

// A cleaner of temporary files. Whoever notices it leaves the old page, and nobody is granted anything there.
TEST_F(lock, a_file_that_was_unlinked_is_noticed) {
    ASSERT_EQ(p->decide(request(kind::open), 1000).term, 1u);
    ASSERT_EQ(p->decide(request(kind::pair, 1, 2), 1000).term, 2u);
    std::size_t unlinked = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path))
        unlinked += std::filesystem::remove(entry.path());
    ASSERT_EQ(unlinked, 1u);
    EXPECT_EQ(p->decide(request(kind::renew, 2), 1100).what, verdict::gone);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 2000).what, verdict::gone)
        << "its lease is over on the old page";
    auto again = request(kind::restore, 2);
    again.paired = true;
    EXPECT_EQ(p->decide(again, 2000).what, verdict::granted);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 2100).what, verdict::held);
    const auto other = open("another");
    EXPECT_TRUE(other->decide(request(kind::look, 2), 2100).paired);
    EXPECT_EQ(s->decide(request(kind::claim, 2), 3000).term, 3u);
}

// ---- those that take their time

struct fence : testing::Test {
    // Whom it cut off is in a file; a file "broken" makes it fail.
    std::unique_ptr<fence_arbiter> host(const char* name, bool standby, asker& answers) {
        std::string error;
        auto file = fence_file::open(directory.path + "/" + name, "vm", error);
        EXPECT_TRUE(file) << error;
        if (!file)
            return nullptr;
        const auto script = "echo $KAGE_FENCE of $KAGE_VM at \"$KAGE_ADDRESS\" >>" + directory.path +
                            "/log; test ! -e " + directory.path + "/broken";
        return std::make_unique<fence_arbiter>(
            fence_commands{{"sh", "-c", script}, {"sh", "-c", "test ! -e " + directory.path + "/broken"}},
            fence_rules{0, 60000}, std::move(*file), arbiter_identity{"vm", name, standby},
            answers.answers());
    }
    std::string log() const {
        std::ifstream file(directory.path + "/log");
        return {std::istreambuf_iterator<char>(file), {}};
    }
    static ha::arbiter_request heard_now(kind what, std::uint64_t term) {
        auto r = request(what, term);
        r.heard_ms = boot_ms();
        r.whom = what == kind::alone ? "other:7000" : "";
        return r;
    }
    ha::arbiter_answer begin() {
        auto first = request(kind::open);
        first.anew = true;
        return of_p.ask(*p, first);
    }
    temporary_directory directory;
    asker of_p, of_s;
    std::unique_ptr<fence_arbiter> p = host("p", false, of_p), s = host("s", true, of_s);
};

TEST_F(fence, cuts_off_before_anything_is_granted) {
    ASSERT_EQ(begin().what, verdict::granted);
    EXPECT_EQ(of_p.ask(*p, request(kind::pair, 1, 2)).term, 2u);
    EXPECT_EQ(of_s.ask(*s, request(kind::look, 2)).what, verdict::granted);
    EXPECT_EQ(log(), "");
    EXPECT_EQ(of_p.ask(*p, heard_now(kind::alone, 2)).what, verdict::granted);
    EXPECT_EQ(log(), "standby of vm at other:7000\n");
    EXPECT_EQ(of_s.ask(*s, heard_now(kind::claim, 2)).term, 3u);
    EXPECT_EQ(log(), "standby of vm at other:7000\nprimary of vm at \n");
}

TEST_F(fence, a_command_that_fails_is_told_and_pairs_nobody) {
    ASSERT_EQ(begin().what, verdict::granted);
    std::ofstream(directory.path + "/broken") << "x";
    const auto refused = of_p.ask(*p, request(kind::pair, 1, 2));
    EXPECT_EQ(refused.what, verdict::unreachable);
    EXPECT_NE(refused.why.find("the check of the fencing command (sh) failed: it ended with status 1"),
              std::string::npos)
        << refused.why;
    EXPECT_EQ(of_s.ask(*s, request(kind::look, 2)).what, verdict::unreachable);
    const auto failed = of_s.ask(*s, heard_now(kind::claim, 2));
    EXPECT_EQ(failed.what, verdict::unreachable);
    EXPECT_NE(failed.why.find("did not cut the primary off: it ended with status 1"), std::string::npos)
        << failed.why;
    EXPECT_EQ(of_s.ask(*s, heard_now(kind::claim, 2)).what, verdict::held) << "not at once again";
    EXPECT_EQ(log(), "primary of vm at \n");
}

TEST_F(fence, a_supervisor_that_comes_back_makes_no_second_vm) {
    ASSERT_EQ(begin().what, verdict::granted);
    ASSERT_EQ(of_p.ask(*p, request(kind::pair, 1, 2)).term, 2u);
    p.reset();
    p = host("p", false, of_p);
    const auto again = of_p.ask(*p, request(kind::open));
    EXPECT_EQ(again.what, verdict::refused);
    EXPECT_NE(again.why.find("may have gone on"), std::string::npos) << again.why;
    ASSERT_EQ(of_s.ask(*s, heard_now(kind::claim, 2)).term, 3u);
    s.reset();
    s = host("s", false, of_s);
    EXPECT_EQ(of_s.ask(*s, request(kind::open)).term, 4u) << "it ran here last";
}

TEST_F(fence, a_record_belongs_to_one_supervisor) {
    std::string error;
    EXPECT_FALSE(fence_file::open(directory.path + "/p", "vm", error));
    EXPECT_NE(error.find("another supervisor has the fencing record"), std::string::npos) << error;
}

TEST_F(fence, a_persons_word_counts_once) {
    ASSERT_EQ(of_s.ask(*s, request(kind::look, 2)).what, verdict::granted);
    auto late = request(kind::claim, 2);
    EXPECT_EQ(of_s.ask(*s, late).what, verdict::held) << "never heard";
    std::ofstream(directory.path + "/s.confirm") << "7\n";
    EXPECT_EQ(of_s.ask(*s, late).what, verdict::held) << "another term";
    std::ofstream(directory.path + "/s.confirm") << "2\n";
    EXPECT_EQ(of_s.ask(*s, late).term, 3u);
    EXPECT_EQ(log(), "");
    EXPECT_FALSE(std::filesystem::exists(directory.path + "/s.confirm"));
}

} // namespace
} // namespace kagemusha::control
