// SPDX-License-Identifier: GPL-2.0-or-later
//
// primary_fsm and standby_fsm: marks of disks, which of two hosts has the newer ones, and who may start.
#include "control/ha/ha_test_helpers.hpp"

#include "mirror/protocol/agreement.hpp"

namespace kagemusha::ha {
namespace {

using namespace test;

constexpr std::uint64_t a = 0xa, b = 0xb;

std::string text_of(disk_state state, std::vector<lineage::run> runs) {
    return to_text(disk_mark{state, lineage_of(std::move(runs))});
}

struct primary_disks : primary_test {
    primary_disks() { disks = true; }
    // A host that had a standby when it ended, with the generation 2.a.
    void compare(bool has_standby = true) {
        disk = {disk_state::protected_, lineage_of({{a, 1, 2}})};
        auto c = config();
        c.has_standby = has_standby;
        c.instance = 0xaa;
        c.opening_ms = 15000;
        fsm.emplace(c);
        fsm->start(now);
    }
};

struct standby_disks : standby_test {
    void begin_with(disk_mark mark, bool overwrite = false) {
        standby_config c;
        c.vm = "vm";
        c.description = "d";
        c.instance = b;
        c.heartbeat_budget_ms = 100;
        c.retry_ms = 30;
        c.look_ms = 1000;
        c.disks = true;
        c.mark = std::move(mark);
        c.overwrite = overwrite;
        fsm.emplace(c);
        fsm->on_qemu_ready(fsm->qemu(), now);
        greet();
    }
    // To the state synced, with a primary of the generation 2.a.
    void sync() {
        begin_with({});
        word(supervision_kind::lineage, 0, text_of(disk_state::newest, {{a, 1, 2}}));
        fsm->on_marked({}, now);
        word(supervision_kind::pair, 2);
        take();
        seen(1, false);
        fsm->on_marked({}, now);
        take();
        ASSERT_EQ(fsm->state(), standby_state::synced);
    }
};

// ---- a primary's

TEST_F(primary_disks, a_vm_is_started_when_its_generation_is_durable) {
    disk = {disk_state::newest, lineage_of({{b, 1, 4}})};
    open();
    auto actions = done();
    EXPECT_EQ(to_text(the<act_mark>(actions).mark), text_of(disk_state::newest, {{b, 1, 4}, {a, 5, 5}}));
    EXPECT_TRUE(the<act_mark>(actions).flush) << "a life before may have left it in the cache";
    EXPECT_FALSE(any<act_start_qemu>(actions));
    now += 50;
    fsm->on_tick(now);
    EXPECT_EQ(the<act_ask>(done()).request.what, kind::renew) << "the lease is kept meanwhile";
    granted(1, now + 300);
    fsm->on_marked({}, now);
    EXPECT_TRUE(any<act_start_qemu>(done()));
}

TEST_F(primary_disks, an_image_of_which_nothing_is_known_is_not_started_where_another_has_the_vm) {
    fsm.emplace(config());
    fsm->start(now);
    done();
    fsm->on_arbiter({verdict::held, asked, 0, now + 100, "another has a lease"}, now);
    const auto actions = done();
    EXPECT_EQ(the<act_mark>(actions).mark.state, disk_state::waiting);
    EXPECT_EQ(the<act_ended>(actions).why.find("another has a lease; the VM ran elsewhere"), 0u);
}

TEST_F(primary_disks, a_vm_whose_disks_cannot_be_marked_is_not_started) {
    open();
    done();
    fsm->on_marked("cannot write a.img.kagemusha: no space", now);
    auto actions = done();
    EXPECT_FALSE(any<act_start_qemu>(actions));
    EXPECT_EQ(the<act_ended>(actions).why, "cannot write a.img.kagemusha: no space");
}

TEST_F(primary_disks, what_a_standby_is_told_is_durable) {
    protect();
    fsm->on_qemu_replication_lost(fsm->replication(), "broken pipe", now);
    done();
    auto actions = record_alone();
    EXPECT_EQ(to_text(the<act_mark>(actions).mark), text_of(disk_state::newest, {{a, 1, 2}}));
    EXPECT_EQ((reported_lineage<act_send>(actions)), "");
    word(supervision_kind::ready);
    now += 2000;
    fsm->on_tick(now);
    EXPECT_FALSE(any<act_replicate>(done())) << "a standby must not have it before this host knows it";
    fsm->on_marked({}, now);
    actions = done();
    EXPECT_EQ((reported_lineage<act_send>(actions)), text_of(disk_state::newest, {{a, 1, 2}}));
    EXPECT_TRUE(any<act_replicate>(actions));
}

// Who is not sure to have the VM could otherwise have the only newest disks overwritten: those of a standby
// that took it over, and whose release then wrote no lineages, or none that this host knows.
TEST_F(primary_disks, who_may_have_lost_the_vm_does_not_tell_its_lineage) {
    for (const bool hands_over : {true, false}) {
        protect();
        if (hands_over)
            fsm->on_qemu_handed_over(fsm->replication(), now);
        fsm->on_link_closed("cut", now);
        now += 20;
        fsm->on_tick(now);
        done();
        greet();
        EXPECT_EQ((reported_lineage<act_send>(done())), "");
        word(supervision_kind::belief, 0); // a new supervisor's
        EXPECT_EQ(fsm->state(), hands_over ? primary_state::reclaiming : primary_state::unpairing);
        EXPECT_EQ((reported_lineage<act_send>(done())), "");
        record_alone();
        fsm->on_marked({}, now);
        EXPECT_EQ((reported_lineage<act_send>(done())), text_of(disk_state::newest, {{a, 1, 2}}));
    }
}

// No standby was told PAIR in it, so the generation goes on. Who waits for the lineage is told it.
TEST_F(primary_disks, the_lineage_is_told_also_when_nothing_has_to_be_marked) {
    shared_record = false;
    begin_telling();
    done();
    fsm->on_link_closed("cut", now);
    granted(1, UINT64_MAX);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    now += 500;
    fsm->on_tick(now);
    done();
    greet();
    EXPECT_EQ((reported_lineage<act_send>(done())), "");
    const auto actions = record_alone();
    EXPECT_FALSE(any<act_mark>(actions));
    EXPECT_EQ((reported_lineage<act_send>(actions)), text_of(disk_state::newest, {{a, 1, 1}}));
}

TEST_F(primary_disks, a_mark_that_fails_is_written_again_before_there_is_another_standby) {
    protect();
    fsm->on_qemu_replication_lost(fsm->replication(), "broken pipe", now);
    done();
    record_alone();
    fsm->on_marked("no space", now);
    word(supervision_kind::ready);
    EXPECT_EQ(fsm->waiting_for(now), "no space");
    EXPECT_FALSE(any<act_replicate>(done()));
    now += 1000;
    EXPECT_LE(fsm->deadline(), now);
    fsm->on_tick(now);
    EXPECT_EQ(to_text(the<act_mark>(done()).mark), text_of(disk_state::newest, {{a, 1, 2}}));
    fsm->on_marked({}, now);
    EXPECT_TRUE(any<act_replicate>(done()));
}

TEST_F(primary_disks, a_standby_that_was_told_its_term_is_of_an_older_generation_afterwards) {
    tell();
    word(supervision_kind::lost);
    EXPECT_EQ(to_text(the<act_mark>(done()).mark), text_of(disk_state::newest, {{a, 1, 2}}));
}

// It has marked its images *paired* with the present generation, and may be another one than the next.
TEST_F(primary_disks, a_standby_that_said_paired_is_of_an_older_generation_if_there_was_no_pair) {
    tell();
    word(supervision_kind::paired, 2);
    done();
    fsm->on_marked("no space", now);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    done();
    granted(1, now + 300);
    EXPECT_EQ(to_text(the<act_mark>(done()).mark), text_of(disk_state::newest, {{a, 1, 2}}));
    fsm->on_marked({}, now);
    word(supervision_kind::ready);
    EXPECT_EQ(fsm->state(), primary_state::replicating);
    word(supervision_kind::lost);
    EXPECT_FALSE(any<act_mark>(done())) << "this one was not told its term";
}

// Found by kagemusha_world with three hosts (seeds 1800717169 and 1200946853): the standby had marked its
// images with this generation, another one took the VM over in it, and the first one then said that nobody
// had.
TEST_F(primary_disks, a_generation_ends_when_a_standby_that_was_told_pair_is_lost) {
    tell();
    word(supervision_kind::paired, 2);
    fsm->on_marked("no space", now);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    done();
    granted(1, now + 300);
    EXPECT_EQ(to_text(the<act_mark>(done()).mark), text_of(disk_state::newest, {{a, 1, 2}}));
    shared_record = false;
    tell();
    fsm->on_link_closed("cut", now);
    EXPECT_EQ(fsm->state(), primary_state::unpairing);
    done();
    granted(1, UINT64_MAX);
    EXPECT_EQ(to_text(the<act_mark>(done()).mark), text_of(disk_state::newest, {{a, 1, 2}}));
}

TEST_F(primary_disks, a_stop_leaves_the_newest_disks) {
    protect();
    fsm->on_stop(now);
    done();
    const auto actions = record_alone();
    EXPECT_EQ(to_text(the<act_mark>(actions).mark), text_of(disk_state::newest, {{a, 1, 2}}));
    EXPECT_TRUE(the<act_ended>(actions).alone);
}

TEST_F(primary_disks, one_that_had_a_standby_asks_it_and_nobody_else) {
    compare();
    auto actions = done();
    EXPECT_EQ(fsm->state(), primary_state::comparing);
    EXPECT_TRUE(any<act_connect>(actions));
    EXPECT_FALSE(any<act_ask>(actions));
    greet();
    actions = done();
    const auto sent = the<act_send>(std::vector<primary_action>{actions.front()}).what;
    EXPECT_TRUE(mirror::has_capability(std::get<mirror::hello>(sent), mirror::only_compares_capability));
    EXPECT_FALSE(says<act_send>(actions, supervision_kind::belief)) << "it would give the VM's state up";
    now += 200;
    fsm->on_tick(now);
    for (const auto& action : done()) {
        const auto* m = std::get_if<act_send>(&action);
        EXPECT_FALSE(m && std::holds_alternative<mirror::heartbeat>(m->what))
            << "that would hold a takeover up";
    }
    EXPECT_GT(fsm->deadline(), now);
    fsm->on_stop(now);
    EXPECT_FALSE(says<act_send>(done(), supervision_kind::unpaired));
}

TEST_F(primary_disks, both_hosts_were_off_and_the_standby_had_not_gone_on) {
    compare();
    greet();
    done();
    word(supervision_kind::lineage, 0, text_of(disk_state::paired, {{a, 1, 2}}));
    auto actions = done();
    EXPECT_EQ(the<act_ask>(actions).request.what, kind::open);
    EXPECT_TRUE(the<act_ask>(actions).request.anew) << "the record may say that there is a pair";
    granted(7, now + 300);
    EXPECT_EQ(to_text(the<act_mark>(done()).mark), text_of(disk_state::newest, {{a, 1, 2}, {0xaa, 3, 3}}));
    fsm->on_marked({}, now);
    EXPECT_TRUE(any<act_start_qemu>(done()));
}

TEST_F(primary_disks, both_hosts_were_off_and_the_standby_had_gone_on) {
    compare();
    greet();
    done();
    word(supervision_kind::lineage, 0, text_of(disk_state::newest, {{a, 1, 2}, {b, 3, 3}}));
    const auto actions = done();
    EXPECT_FALSE(any<act_ask>(actions));
    EXPECT_EQ(the<act_ended>(actions).why.find("the standby's host has newer disks: generation "
                                               "3.000000000000000b, and 2.000000000000000a here"),
              0u);
}

TEST_F(primary_disks, the_other_host_comes_later) {
    compare();
    EXPECT_NE(fsm->waiting_for(now).find("may have gone on with newer disks than a.img"), std::string::npos);
    done();
    fsm->on_link_closed("connection refused", now);
    now += 600;
    fsm->on_tick(now);
    EXPECT_TRUE(any<act_connect>(done()));
    greet();
    word(supervision_kind::lineage, 0, text_of(disk_state::paired, {{a, 1, 2}}));
    EXPECT_EQ(fsm->state(), primary_state::opening);
}

TEST_F(primary_disks, the_other_host_does_not_come) {
    compare();
    done();
    fsm->on_link_closed("connection refused", now);
    now += 15000;
    EXPECT_LE(fsm->deadline(), now);
    fsm->on_tick(now);
    EXPECT_NE(the<act_ended>(done()).why.find("--force-new"), std::string::npos);
    compare(false);
    EXPECT_NE(the<act_ended>(done()).why.find("--force-new"), std::string::npos) << "nobody to ask";
}

TEST_F(primary_disks, a_standby_that_may_take_over_is_left_alone) {
    compare();
    greet();
    done();
    word(supervision_kind::lineage, 2, text_of(disk_state::paired, {{a, 1, 2}}));
    EXPECT_EQ(fsm->state(), primary_state::comparing);
    EXPECT_TRUE(any<act_close_link>(done())) << "and asked again";
}

// While it stood still a person may have started the VM on the other host, and stopped it there: an arbiter
// with a record grants it to this one then.
TEST_F(primary_disks, what_is_compared_while_it_stood_still_is_asked_again) {
    for (const bool timer_first : {false, true}) {
        compare();
        greet();
        done();
        now += 1000;
        if (timer_first)
            fsm->on_tick(now);
        word(supervision_kind::lineage, 0, text_of(disk_state::paired, {{a, 1, 2}}));
        EXPECT_EQ(fsm->state(), primary_state::comparing);
        EXPECT_TRUE(any<act_close_link>(done()));
        now += 500;
        EXPECT_LE(fsm->deadline(), now) << "it looks whether it stands still";
        for (int i = 0; i < 10 && fsm->state() == primary_state::comparing; ++i, now += 500) {
            fsm->on_tick(now);
            if (any<act_connect>(done())) {
                greet();
                word(supervision_kind::lineage, 0, text_of(disk_state::paired, {{a, 1, 2}}));
            }
        }
        EXPECT_EQ(fsm->state(), primary_state::opening);
    }
}

TEST_F(primary_disks, what_was_compared_before_it_stood_still_is_asked_again) {
    for (const bool timer_first : {false, true}) {
        compare();
        greet();
        word(supervision_kind::lineage, 0, text_of(disk_state::paired, {{a, 1, 2}}));
        EXPECT_EQ(the<act_ask>(done()).request.what, kind::open);
        fsm->on_arbiter({verdict::held, asked, 0, now + 300, "its lease of the life before"}, now);
        now += 50;
        fsm->on_tick(now);
        EXPECT_EQ(the<act_ask>(done()).request.what, kind::open);
        now += 1000;
        if (timer_first)
            fsm->on_tick(now);
        granted(8, now + 300);
        const auto actions = done();
        EXPECT_EQ(fsm->state(), primary_state::comparing);
        EXPECT_FALSE(any<act_mark>(actions));
        EXPECT_TRUE(any<act_connect>(actions));
    }
}

TEST_F(primary_disks, a_person_may_start_it_anew) {
    disk = {disk_state::protected_, lineage_of({{a, 1, 2}})};
    auto c = config();
    c.anew = true;
    fsm.emplace(c);
    fsm->start(now);
    EXPECT_TRUE(the<act_ask>(done()).request.anew);
}

TEST_F(primary_disks, a_copy_is_not_started) {
    disk = {disk_state::paired, lineage_of({{b, 1, 2}})};
    fsm.emplace(config());
    fsm->start(now);
    EXPECT_EQ(the<act_ended>(done()).why.find("a.img is the copy of a standby"), 0u);
}

// ---- a standby's

TEST_F(standby_disks, is_ready_when_its_disks_are_older_and_marked) {
    begin_with({disk_state::protected_, lineage_of({{b, 1, 1}})});
    auto actions = take();
    EXPECT_EQ((reported_lineage<act_standby_send>(actions)), text_of(disk_state::protected_, {{b, 1, 1}}));
    EXPECT_FALSE(any<act_standby_mark>(actions)) << "nobody has said that they may be overwritten";
    word(supervision_kind::lineage, 0, text_of(disk_state::newest, {{b, 1, 1}, {a, 2, 2}}));
    actions = take();
    EXPECT_EQ(to_text(the<act_standby_mark>(actions).mark), text_of(disk_state::copy, {{b, 1, 1}}));
    EXPECT_FALSE(says<act_standby_send>(actions, supervision_kind::ready));
    fsm->on_marked({}, now);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::ready));
}

TEST_F(standby_disks, newer_disks_are_not_overwritten) {
    const disk_mark newer{disk_state::newest, lineage_of({{a, 1, 1}, {b, 2, 3}})};
    for (const auto& theirs :
         {text_of(disk_state::newest, {{a, 1, 1}, {b, 2, 2}}), text_of(disk_state::newest, {{a, 1, 2}})}) {
        begin_with(newer);
        take();
        word(supervision_kind::lineage, 0, theirs);
        const auto actions = take();
        EXPECT_FALSE(any<act_standby_mark>(actions));
        EXPECT_FALSE(says<act_standby_send>(actions, supervision_kind::ready));
        EXPECT_TRUE(any<act_standby_close_link>(actions));
        EXPECT_NE(fsm->waiting_for().find("--discard-replica"), std::string::npos);
        EXPECT_EQ(the<act_standby_state>(actions).why, fsm->waiting_for());
        greet();
        word(supervision_kind::lineage, 0, theirs);
        EXPECT_FALSE(any<act_standby_state>(take())) << "it is logged once";
    }
    begin_with(newer, true);
    word(supervision_kind::lineage, 0, text_of(disk_state::newest, {{a, 1, 2}}));
    EXPECT_EQ(the<act_standby_mark>(take()).mark.state, disk_state::copy) << "a person said so";
}

TEST_F(standby_disks, a_primary_that_only_compares_changes_nothing) {
    sync();
    const auto heard = now;
    fsm->on_link_closed("cut", now);
    now += 60;
    auto hello = hello_of(mirror::role::primary);
    hello.capabilities.emplace_back(mirror::only_compares_capability);
    fsm->on_link_up(now);
    fsm->on_message(hello, now);
    word(supervision_kind::description, 0, "d");
    word(supervision_kind::lineage, 0, text_of(disk_state::protected_, {{a, 1, 2}}));
    EXPECT_EQ((reported_lineage<act_standby_send>(take())), text_of(disk_state::paired, {{a, 1, 2}}));
    EXPECT_EQ(fsm->state(), standby_state::synced);
    now = heard + 100;
    fsm->on_tick(now);
    EXPECT_EQ(fsm->state(), standby_state::claiming) << "the one that runs the VM is silent";
    begin_with({disk_state::newest, lineage_of({{b, 1, 1}})});
    fsm->on_link_closed("closed", now);
    fsm->on_link_up(now);
    fsm->on_message(hello, now);
    word(supervision_kind::description, 0, "d");
    word(supervision_kind::lineage, 0, text_of(disk_state::newest, {{b, 1, 1}, {a, 2, 2}}));
    EXPECT_FALSE(any<act_standby_mark>(take()));
}

TEST_F(standby_disks, it_is_paired_when_the_generation_of_its_disks_is_durable) {
    begin_with({});
    word(supervision_kind::lineage, 0, text_of(disk_state::newest, {{a, 1, 2}}));
    fsm->on_marked({}, now);
    take();
    word(supervision_kind::pair, 2);
    take();
    seen(1, false);
    auto actions = take();
    EXPECT_EQ(to_text(the<act_standby_mark>(actions).mark), text_of(disk_state::paired, {{a, 1, 2}}));
    EXPECT_FALSE(says<act_standby_send>(actions, supervision_kind::paired));
    fsm->on_marked("no space", now);
    EXPECT_EQ(fsm->waiting_for(), "no space");
    take();
    now += 30;
    fsm->on_tick(now);
    take();
    seen(1, false);
    EXPECT_TRUE(any<act_standby_mark>(take())) << "again";
    fsm->on_marked({}, now);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::paired));
}

TEST_F(standby_disks, a_mark_that_comes_late_is_not_another_pairs) {
    begin_with({});
    word(supervision_kind::lineage, 0, text_of(disk_state::newest, {{a, 1, 2}}));
    fsm->on_marked({}, now);
    word(supervision_kind::pair, 2);
    take();
    seen(1, false);
    take(); // `paired` is being written
    fsm->on_link_closed("cut", now);
    fsm->on_qemu_ready(fsm->qemu(), now);
    greet();
    word(supervision_kind::lineage, 0, text_of(disk_state::newest, {{a, 1, 3}}));
    EXPECT_FALSE(says<act_standby_send>(take(), supervision_kind::ready));
    fsm->on_marked({}, now);
    auto actions = take();
    EXPECT_EQ(to_text(the<act_standby_mark>(actions).mark), text_of(disk_state::copy, {{a, 1, 2}}));
    EXPECT_FALSE(says<act_standby_send>(actions, supervision_kind::ready));
    fsm->on_marked({}, now);
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::ready));
}

TEST_F(standby_disks, ready_says_what_the_present_qemus_images_have) {
    const auto said = [](const std::vector<standby_action>& actions) {
        const auto sent = the<act_standby_send>(actions);
        const auto* m = std::get_if<supervision>(&sent.what);
        return m != nullptr && m->kind == supervision_kind::ready ? m->text : std::string("no READY");
    };
    sync();
    fsm->on_qemu_died("killed", fsm->qemu(), now);
    take();
    fsm->on_qemu_ready(fsm->qemu(), now, "two one");
    fsm->on_marked({}, now); // `copy`
    EXPECT_EQ(said(take()), "two one");
    fsm->on_qemu_died("killed", fsm->qemu(), now);
    take();
    fsm->on_qemu_ready(fsm->qemu(), now);
    EXPECT_EQ(said(take()), "");
}

TEST_F(standby_disks, half_a_disk_is_overwritten_by_whoever_runs_the_vm) {
    begin_with({disk_state::copy, lineage_of({{b, 1, 9}})});
    word(supervision_kind::lineage, 0, text_of(disk_state::newest, {{a, 1, 1}}));
    EXPECT_TRUE(says<act_standby_send>(take(), supervision_kind::ready));
}

TEST_F(standby_disks, nothing_leaves_before_the_generation_of_a_takeover_is_durable) {
    sync();
    word(supervision_kind::died, 2);
    take();
    fsm->on_qemu_running(now);
    EXPECT_FALSE(any<act_standby_mark>(take())) << "the arbiter may still refuse it";
    fsm->on_arbiter({verdict::granted, asked, 3, now + 300, {}}, now);
    auto actions = take();
    EXPECT_EQ(to_text(the<act_standby_mark>(actions).mark),
              text_of(disk_state::newest, {{a, 1, 2}, {b, 3, 3}}));
    EXPECT_TRUE(the<act_standby_mark>(actions).flush) << "the guest had flushed it where it ran";
    EXPECT_FALSE(any<act_running>(actions));
    fsm->on_marked("it hangs", now);
    EXPECT_FALSE(any<act_running>(take()));
    EXPECT_EQ(fsm->waiting_for(), "it hangs");
    now += 30;
    EXPECT_LE(fsm->deadline(), now);
    fsm->on_tick(now);
    EXPECT_TRUE(the<act_standby_mark>(take()).flush);
    fsm->on_marked({}, now);
    EXPECT_EQ(to_text(the<act_running>(take()).mark), text_of(disk_state::newest, {{a, 1, 2}, {b, 3, 3}}));
}

TEST_F(standby_disks, an_older_release_overwrites_what_is_not_the_newest) {
    auto hello = hello_of(mirror::role::primary);
    hello.capabilities = {"supervision"};
    for (const auto state : {disk_state::newest, disk_state::protected_}) {
        begin_with({state, lineage_of({{b, 1, 1}})});
        fsm->on_link_closed("closed", now);
        take();
        fsm->on_link_up(now);
        fsm->on_message(hello, now);
        word(supervision_kind::description, 0, "d");
        EXPECT_EQ(any<act_standby_mark>(take()), state == disk_state::protected_);
    }
}

// ---- both, as after a loss of power: what each has on its disk decides

struct both_disks : testing::Test {
    // Which of both may start. A standby's supervisor runs on the other host each time.
    static bool starts(const disk_mark& ours, const disk_mark& theirs) {
        return why_not_start(ours, "a.img").empty() ||
               (ours.state == disk_state::protected_ && why_not_start(ours, theirs, false).empty());
    }
};

TEST_F(both_disks, at_each_step_of_a_takeover_one_host_starts_and_it_has_all_that_was_told) {
    disk_mark first = started({}, a), second; // a VM that runs, and a new standby
    EXPECT_TRUE(starts(first, second));
    second.state = disk_state::copy; // it is filled
    EXPECT_TRUE(starts(first, second));
    EXPECT_FALSE(starts(second, first));
    second = {disk_state::paired, first.of};
    EXPECT_TRUE(starts(first, second));
    EXPECT_FALSE(starts(second, first));
    first.state = disk_state::protected_; // and the pair is recorded
    EXPECT_TRUE(starts(first, second)) << "nothing left the other one";
    EXPECT_FALSE(starts(second, first));
    second = gone_on(second, b); // a takeover
    EXPECT_FALSE(starts(first, second));
    EXPECT_TRUE(starts(second, first));
    EXPECT_EQ(why_not_overwrite(first, second), "");
    EXPECT_NE(why_not_overwrite(second, started(first, a)), "") << "the other one was started anew";
    first = {disk_state::paired, second.of}; // it is the standby now
    second.state = disk_state::protected_;
    second = gone_on(second, b); // and was lost
    EXPECT_FALSE(starts(first, second));
    EXPECT_TRUE(starts(second, first));
    EXPECT_EQ(why_not_overwrite(first, second), "");
}

} // namespace
} // namespace kagemusha::ha
