// SPDX-License-Identifier: GPL-2.0-or-later
// What two supervisors find when they compare their hosts, and that releases of two ages form a pair.
#include "control/ha/ha_test_helpers.hpp"
#include "control/ha/peer_identity.hpp"

#include "mirror/log/limits.hpp"
#include "mirror/protocol/agreement.hpp"

namespace kagemusha::ha {
namespace {

using namespace test;
using mirror::part_rule;

description_parts a_host() {
    return {{part_rule::equal, "machine", "pc-i440fx-10.0"},
            {part_rule::equal, "CPU model", "host vendor=GenuineIntel"},
            {part_rule::equal, "CPU features", "aes avx avx2 sse2 sse3"},
            {part_rule::equal, "GPU limits", "max-events-per-file=16384 max-files=64 max-memory=1 window=2"},
            {part_rule::equal, "disk 0", "sha256:11"},
            {part_rule::shown, "QEMU", "10.0.13"},
            {part_rule::shown, "release", "0.1.0 build 11"}};
}

description_parts with(const std::string& name, const std::string& value) {
    auto parts = a_host();
    for (auto& p : parts)
        if (p.name == name)
            p.value = value;
    return parts;
}

description_parts without(const std::string& name) {
    auto parts = a_host();
    std::erase_if(parts, [&](const auto& p) { return p.name == name; });
    return parts;
}

TEST(peer_identity, equal_hosts_fit) {
    EXPECT_EQ(why_not_movable(a_host(), a_host()), "");
    EXPECT_EQ(allowed_differences(a_host(), a_host()), "");
}

TEST(peer_identity, what_the_guest_sees_must_be_equal_and_the_sentence_names_it) {
    const std::string begin = "both hosts describe the VM differently: ";
    EXPECT_EQ(why_not_movable(a_host(), with("machine", "pc-i440fx-10.1")),
              begin +
                  "machine: \"pc-i440fx-10.1\" there, \"pc-i440fx-10.0\" here: name the same 'machine' in "
                  "both hosts' description, one that the older QEMU has");
    EXPECT_EQ(why_not_movable(a_host(), with("CPU features", "aes avx avx512f sse2 sse3")),
              begin +
                  "CPU features: \"avx512f\" only there, \"avx2\" only here: name a model that both hosts "
                  "have as 'cpu' in the description, and start the VM anew");
    EXPECT_EQ(why_not_movable(a_host(), with("GPU limits",
                                             "max-events-per-file=16384 max-files=8 max-memory=1 window=2")),
              begin +
                  "GPU limits: \"max-files=8\" only there, \"max-files=64\" only here: name these limits in "
                  "[gpu.properties], the same on both hosts");
    EXPECT_EQ(why_not_movable(a_host(), with("disk 0", "sha256:22")),
              begin + "disk 0: \"sha256:22\" there, \"sha256:11\" here: use the same files on both");
    EXPECT_EQ(why_not_movable(a_host(), without("disk 0")),
              begin + "disk 0 is missing there: use the same files on both");
    EXPECT_EQ(why_not_movable(without("disk 0"), a_host()),
              begin + "disk 0 is missing here: use the same files on both");
}

TEST(peer_identity, a_part_that_a_later_release_adds_is_compared_when_both_know_it) {
    auto later = a_host();
    later.push_back({part_rule::equal_if_both, "TPM", "2.0"});
    EXPECT_EQ(why_not_movable(a_host(), later), "");
    EXPECT_EQ(why_not_movable(later, a_host()), "");
    auto other = later;
    other.back().value = "1.2";
    EXPECT_NE(why_not_movable(later, other), "");
}

TEST(peer_identity, builds_may_differ_and_people_see_it) {
    const auto later = with("QEMU", "10.0.14");
    EXPECT_EQ(why_not_movable(a_host(), later), "");
    EXPECT_EQ(allowed_differences(a_host(), later), "QEMU: \"10.0.14\" there, \"10.0.13\" here");
}

// The sentence must fit into a message, whatever a hostile peer says.
TEST(peer_identity, a_long_difference_is_shortened) {
    auto long_value = with("CPU features", std::string(4000, 'a') + " b c d e f");
    EXPECT_LE(why_not_movable(a_host(), long_value).size(), mirror::max_text_bytes);
    long_value = with("machine", std::string(4000, 'a'));
    EXPECT_LE(why_not_movable(a_host(), long_value).size(), mirror::max_text_bytes);
}

TEST(peer_identity, the_highest_common_version_counts) {
    const auto mine = supervisor_hello(mirror::role::primary, "vm");
    auto theirs = supervisor_hello(mirror::role::standby, "vm");
    EXPECT_EQ(mirror::common_version(mine, theirs), mirror::protocol_version);
    theirs.version = mirror::protocol_version + 3; // a later release that still speaks ours
    EXPECT_EQ(mirror::common_version(mine, theirs), mirror::protocol_version);
    theirs.oldest_version = mirror::protocol_version + 1;
    EXPECT_EQ(mirror::common_version(mine, theirs), 0u);
    theirs.version = theirs.oldest_version = 1;
    EXPECT_EQ(mirror::common_version(mine, theirs), 1u);
}

// ---- both state machines, one of an older release

primary_config a_primary() {
    primary_config c;
    c.vm = "vm";
    c.description = "same";
    c.parts = a_host();
    c.has_standby = true;
    return c;
}

// A standby at its greeting with a peer that says this hello: what it sends.
std::vector<standby_action> greeted_by(standby_fsm& s, const mirror::hello& h) {
    s.on_qemu_ready(s.qemu(), 0);
    s.on_link_up(0);
    s.on_message(h, 0);
    return actions_of<standby_fsm, standby_action>(s);
}

mirror::supervision description_in(const std::vector<standby_action>& actions) {
    for (const auto& a : actions)
        if (const auto* sent = std::get_if<act_standby_send>(&a))
            if (const auto* s = std::get_if<supervision>(&sent->what);
                s && s->kind == supervision_kind::description)
                return *s;
    ADD_FAILURE() << "no description";
    return {};
}

std::string refusal_in(const std::vector<standby_action>& actions) {
    for (const auto& a : actions)
        if (const auto* sent = std::get_if<act_standby_send>(&a))
            if (const auto* bye = std::get_if<mirror::goodbye>(&sent->what))
                return bye->why;
    return {};
}

standby_fsm a_standby() {
    standby_config c;
    c.vm = "vm";
    c.description = "same";
    c.parts = a_host();
    return standby_fsm(c);
}

mirror::hello older_hello() {
    auto h = supervisor_hello(mirror::role::primary, "vm");
    h.version = h.oldest_version = 1;
    h.capabilities = {"supervision"};
    h.oldest_abi_version = h.checkpoint_version = h.oldest_checkpoint_version = 0;
    h.heartbeat_budget_ms = 500;
    return h;
}

TEST(peer_identity, an_older_primary_is_told_what_it_knows_and_compared_by_it) {
    auto standby = a_standby();
    EXPECT_TRUE(description_in(greeted_by(standby, older_hello())).parts.empty());
    standby.on_message(supervision{supervision_kind::description, 0, "same"}, 0);
    EXPECT_EQ(refusal_in(actions_of<standby_fsm, standby_action>(standby)), "");
    EXPECT_EQ(standby.peer().version(), 1u);
    EXPECT_NE(standby.peer().differences(), "") << "nobody compared the CPU: people see that";
}

TEST(peer_identity, an_older_primary_with_another_description_is_refused) {
    auto standby = a_standby();
    greeted_by(standby, older_hello());
    standby.on_message(supervision{supervision_kind::description, 0, "other"}, 0);
    EXPECT_NE(refusal_in(actions_of<standby_fsm, standby_action>(standby)), "");
}

TEST(peer_identity, parts_decide_between_two_of_this_release) {
    auto h = supervisor_hello(mirror::role::primary, "vm");
    h.heartbeat_budget_ms = 500;
    {
        auto standby = a_standby();
        EXPECT_EQ(description_in(greeted_by(standby, h)).parts, a_host());
        // The text is of no meaning any more: a later release may make another one of the same VM.
        supervision m{supervision_kind::description, 0, "another"};
        m.parts = with("release", "0.2.0 build 22");
        standby.on_message(m, 0);
        EXPECT_EQ(refusal_in(actions_of<standby_fsm, standby_action>(standby)), "");
        EXPECT_EQ(standby.peer().differences(), "release: \"0.2.0 build 22\" there, \"0.1.0 build 11\" here");
    }
    auto standby = a_standby();
    greeted_by(standby, h);
    supervision m{supervision_kind::description, 0, "same"};
    m.parts = with("machine", "pc-q35-10.0");
    standby.on_message(m, 0);
    EXPECT_NE(refusal_in(actions_of<standby_fsm, standby_action>(standby)).find("machine"),
              std::string::npos);
}

TEST(peer_identity, a_peer_that_hides_its_parts_is_refused) {
    auto h = supervisor_hello(mirror::role::primary, "vm");
    h.heartbeat_budget_ms = 500;
    auto standby = a_standby();
    greeted_by(standby, h);
    standby.on_message(supervision{supervision_kind::description, 0, "same"}, 0);
    EXPECT_NE(refusal_in(actions_of<standby_fsm, standby_action>(standby)), "");
}

TEST(peer_identity, with_fence_an_older_release_is_refused_by_both_sides) {
    auto config = standby_config();
    config.vm = "vm";
    config.description = "same";
    config.shared_record = false;
    standby_fsm standby(config);
    standby.on_qemu_ready(standby.qemu(), 0);
    EXPECT_EQ(
        refusal_in(greeted_by(standby, older_hello())),
        "the primary's release is too old for a pair with the arbiter \"fence\": it does not say whether "
        "it runs a VM that was handed over. Stop the VM, install this release there, and start it again");

    auto with_fence = a_primary();
    with_fence.shared_record = false;
    primary_fsm primary(with_fence);
    primary.start(0);
    const auto asked = the<act_ask>(actions_of<primary_fsm, primary_action>(primary)).request.number;
    primary.on_arbiter({verdict::granted, asked, 1, UINT64_MAX, {}}, 0);
    primary.on_link_up(0);
    actions_of<primary_fsm, primary_action>(primary);
    auto old = older_hello();
    old.role = mirror::role::standby;
    old.hold_bytes = old.hold_entries = 1;
    primary.on_message(old, 0);
    bool refused = false;
    for (const auto& a : actions_of<primary_fsm, primary_action>(primary))
        if (const auto* sent = std::get_if<act_send>(&a))
            if (const auto* bye = std::get_if<mirror::goodbye>(&sent->what))
                refused = bye->reason == mirror::goodbye_reason::refused;
    EXPECT_TRUE(refused);
    EXPECT_NE(primary.degraded().find("the standby's release is too old"), std::string::npos)
        << primary.degraded();
}

TEST(peer_identity, another_dialogue_of_checkpoints_is_refused_with_both_ranges) {
    auto h = supervisor_hello(mirror::role::primary, "vm");
    h.heartbeat_budget_ms = 500;
    h.checkpoint_version = 9;
    h.oldest_checkpoint_version = 8;
    auto standby = a_standby();
    EXPECT_EQ(refusal_in(greeted_by(standby, h)),
              "version of QEMU's checkpoints 8 to 9 there, 1 to 2 here: upgrade this host");
}

TEST(peer_identity, a_primary_refuses_a_standby_with_another_cpu) {
    primary_fsm primary(a_primary());
    primary.start(0);
    const auto asked = the<act_ask>(actions_of<primary_fsm, primary_action>(primary)).request.number;
    primary.on_arbiter({verdict::granted, asked, 1, 1000, {}}, 0);
    actions_of<primary_fsm, primary_action>(primary);
    primary.on_link_up(0);
    auto h = supervisor_hello(mirror::role::standby, "vm");
    h.heartbeat_budget_ms = 500;
    h.hold_bytes = h.hold_entries = 1;
    primary.on_message(h, 0);
    actions_of<primary_fsm, primary_action>(primary);
    supervision m{supervision_kind::description, 0, "same"};
    m.parts = with("CPU features", "aes avx sse2 sse3");
    primary.on_message(m, 0);
    std::string why;
    for (const auto& a : actions_of<primary_fsm, primary_action>(primary))
        if (const auto* sent = std::get_if<act_send>(&a))
            if (const auto* bye = std::get_if<mirror::goodbye>(&sent->what))
                why = bye->why;
    EXPECT_NE(why.find("\"avx2\" only here"), std::string::npos) << why;
}

} // namespace
} // namespace kagemusha::ha
