// SPDX-License-Identifier: GPL-2.0-or-later
// Which files of a guest a standby uses beside a primary of another release, and when they are dropped.
#include "control/ha/guest_files.hpp"
#include "control/ha/ha_test_helpers.hpp"

namespace kagemusha::ha {
namespace {

using namespace test;
using mirror::part_rule;

std::string digest(char digit) {
    return "sha256:" + std::string(64, digit);
}

// Of a release whose payload and root image have these digits.
description_parts release(char payload, char root) {
    return {{part_rule::equal, "machine", "pc-i440fx-10.0"},
            {part_rule::equal, "kernel", digest('a')},
            {part_rule::equal, "root image", digest(root)},
            {part_rule::equal, "payload", digest(payload)},
            {part_rule::equal, "disk 0", digest('d')},
            {part_rule::shown, "release", std::string("build ") + payload}};
}

description_parts with(description_parts parts, const std::string& name, const std::string& value) {
    for (auto& part : parts)
        if (part.name == name)
            part.value = value;
    return parts;
}

TEST(guest_files, only_whole_digests_are_names) {
    EXPECT_TRUE(is_digest(digest('0')));
    for (const auto& no : {std::string(), std::string("sha256:"), digest('0') + "0", digest('A'),
                           "sha512:" + std::string(64, '0'), "sha256:../" + std::string(61, '0')})
        EXPECT_FALSE(is_digest(no)) << no;
}

TEST(guest_files, the_primarys_are_used_where_they_are_kept) {
    const auto own = release('2', '2'), theirs = release('1', '1');
    const auto parts = parts_beside(own, {digest('1'), digest('7')}, theirs);
    ASSERT_TRUE(parts);
    EXPECT_EQ(*parts, with(with(own, "payload", digest('1')), "root image", digest('1')))
        << "the release that is shown stays this host's";
    EXPECT_EQ(parts_beside(own, {}, own), own);
}

TEST(guest_files, one_that_is_missing_leaves_all_as_it_is) {
    const auto own = release('2', '2');
    EXPECT_FALSE(parts_beside(own, {digest('1')}, release('1', '3')));
    EXPECT_FALSE(parts_beside(own, {digest('1')}, with(release('1', '1'), "machine", "pc-q35-10.0")));
}

TEST(guest_files, nothing_else_is_exchanged) {
    const auto own = release('2', '2');
    EXPECT_FALSE(parts_beside(own, {digest('e')}, with(own, "disk 0", digest('e'))))
        << "a disk is the owner's";
    auto no_root = own;
    std::erase_if(no_root, [](const auto& part) { return part.name == "root image"; });
    EXPECT_FALSE(parts_beside(no_root, {digest('2')}, own)) << "a file that the VM does not have here";
    EXPECT_FALSE(parts_beside(own, {"../../etc/shadow"}, with(own, "payload", "../../etc/shadow")));
}

TEST(guest_files, what_neither_release_nor_run_has_is_dropped) {
    const std::set<std::string> kept{digest('1'), digest('2'), digest('3'), digest('a')};
    EXPECT_EQ(unwanted_files(kept, release('2', '2'), release('1', '1')), std::vector{digest('3')});
    EXPECT_EQ(unwanted_files(kept, release('2', '2'), release('2', '2')),
              (std::vector{digest('1'), digest('3')}));
}

TEST(guest_files, a_refusal_says_what_to_do) {
    const auto why = why_not_movable(release('2', '2'), release('1', '2'));
    EXPECT_NE(why.find("payload"), std::string::npos);
    EXPECT_NE(why.find("copy what the primary's host has kept of it"), std::string::npos) << why;
}

// ---- a standby of release 2

struct files_test : testing::Test {
    void SetUp() override {
        standby_config c;
        c.vm = "vm";
        c.description = "release 2";
        c.parts = release('2', '2');
        c.kept_files = {digest('1'), digest('2'), digest('a')};
        c.heartbeat_budget_ms = 100;
        fsm.emplace(c);
        fsm->on_qemu_ready(fsm->qemu(), now);
        take();
    }
    std::vector<standby_action> take() { return actions_of<standby_fsm, standby_action>(*fsm); }
    std::vector<standby_action> comes(const description_parts& parts, const std::string& text = "other") {
        fsm->on_link_up(now);
        fsm->on_message(hello_of(mirror::role::primary), now);
        supervision m{supervision_kind::description, 0, text};
        m.parts = parts;
        fsm->on_message(m, now);
        return take();
    }
    // Until its QEMU has the files that were wanted.
    void changes() {
        fsm->on_files_ready({});
        EXPECT_TRUE(any<act_restart_qemu>(take()));
        fsm->on_qemu_ready(fsm->qemu(), now);
        take();
    }
    static description_parts described(const std::vector<standby_action>& actions) {
        for (const auto& a : actions)
            if (const auto* sent = std::get_if<act_standby_send>(&a))
                if (const auto* s = std::get_if<supervision>(&sent->what);
                    s && s->kind == supervision_kind::description)
                    return s->parts;
        ADD_FAILURE() << "no description was said";
        return {};
    }
    static bool is_ready(const std::vector<standby_action>& actions) {
        return says<act_standby_send>(actions, supervision_kind::ready);
    }
    std::optional<standby_fsm> fsm;
    std::uint64_t now = 1000;
};

TEST_F(files_test, an_older_primary_finds_its_own_when_it_comes_again) {
    const auto refused = comes(release('1', '1'));
    EXPECT_FALSE(is_ready(refused));
    EXPECT_EQ(guest_files_of(the<act_standby_use_files>(refused).parts), guest_files_of(release('1', '1')));
    EXPECT_TRUE(any<act_standby_close_link>(refused));
    EXPECT_FALSE(any<act_restart_qemu>(refused)) << "before the files were found to be whole";
    changes();
    const auto paired = comes(release('1', '1'));
    EXPECT_TRUE(is_ready(paired));
    EXPECT_EQ(why_not_movable(release('1', '1'), described(paired)), "") << "what an older release compares";
}

TEST_F(files_test, it_asks_once_while_files_are_looked_at) {
    EXPECT_TRUE(any<act_standby_use_files>(comes(release('1', '1'))));
    EXPECT_FALSE(any<act_standby_use_files>(comes(release('1', '1'))));
    EXPECT_FALSE(is_ready(comes(release('2', '2')))) << "its QEMU is about to have others";
    fsm->on_files_ready({});
    const auto restarted = take();
    EXPECT_TRUE(any<act_standby_close_link>(restarted)) << "it was told of the others";
    EXPECT_TRUE(any<act_restart_qemu>(restarted));
}

TEST_F(files_test, what_can_not_be_used_is_not_tried_again) {
    comes(release('1', '1'));
    fsm->on_files_ready("the payload is spoilt");
    EXPECT_FALSE(any<act_restart_qemu>(take()));
    EXPECT_EQ(fsm->waiting_for(), "the payload is spoilt");
    EXPECT_FALSE(any<act_standby_use_files>(comes(release('1', '1'))));
    EXPECT_TRUE(is_ready(comes(release('2', '2'))));
}

TEST_F(files_test, one_that_was_not_kept_is_refused_and_costs_no_qemu) {
    const auto refused = comes(release('3', '3'));
    EXPECT_FALSE(any<act_standby_use_files>(refused));
    EXPECT_FALSE(any<act_restart_qemu>(refused));
    EXPECT_NE(fsm->waiting_for().find("root image"), std::string::npos) << fsm->waiting_for();
}

TEST_F(files_test, a_vm_that_starts_anew_gets_this_release) {
    comes(release('1', '1'));
    changes();
    EXPECT_EQ(the<act_standby_use_files>(comes(release('2', '2'))).parts, release('2', '2'));
    changes();
    EXPECT_TRUE(is_ready(comes(release('2', '2'))));
}

// Which can't say what files it has: it has this host's, or none that are known here.
TEST_F(files_test, version_1_gets_this_release) {
    comes(release('1', '1'));
    changes();
    EXPECT_FALSE(any<act_standby_use_files>(comes({}, "release 1")));
    EXPECT_TRUE(any<act_standby_use_files>(comes({}, "release 2")));
}

TEST_F(files_test, after_a_takeover_the_next_standby_is_told_of_them) {
    comes(release('1', '1'));
    changes();
    comes(release('1', '1'));
    fsm->on_message(supervision{supervision_kind::pair, 2, {}}, now);
    fsm->on_arbiter({verdict::granted, the<act_standby_ask>(take()).request.number, 1, 0, {}, false, false},
                    now);
    ASSERT_EQ(fsm->state(), standby_state::synced);
    take();
    now += 200;
    fsm->on_link_closed("gone", now);
    fsm->on_tick(now);
    fsm->on_arbiter({verdict::granted, the<act_standby_ask>(take()).request.number, 3, now + 300, {}}, now);
    fsm->on_qemu_running(now);
    const auto runs = the<act_running>(take());
    EXPECT_EQ(guest_files_of(runs.parts), guest_files_of(release('1', '1')));
    EXPECT_EQ(runs.description, "") << "what version 1 compares would be the other files'";
}

} // namespace
} // namespace kagemusha::ha
