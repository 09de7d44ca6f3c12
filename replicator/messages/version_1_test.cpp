// SPDX-License-Identifier: GPL-2.0-or-later
// What a release of version 1 says and understands, as bytes: testdata/version_1.txt was recorded with the
// last such release (commit 565465c), by its own encode(). A line is a message's name and its frame in
// hexadecimal. The file is never made anew: whoever breaks these tests breaks upgrades without an outage.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "messages/test_helpers.hpp"
#include "mirror/protocol/agreement.hpp"

namespace kagemusha::messages::test {
namespace {

using mirror::supervision_kind;

mirror::hello hello_of(mirror::role role, const char* gpu, std::vector<std::string> capabilities) {
    mirror::hello h;
    h.version = h.oldest_version = 1;
    h.role = role;
    h.vm = "vm";
    h.instance = 0x1122334455667788;
    h.abi_version = 4;
    h.oldest_abi_version = 0; // it has no such field
    h.gpu = gpu;
    h.capabilities = std::move(capabilities);
    h.heartbeat_budget_ms = 500;
    if (role == mirror::role::standby) {
        h.hold_bytes = 1u << 30;
        h.hold_entries = 1u << 18;
    }
    return h;
}

std::map<std::string, mirror::message> version_1_messages() {
    mirror::entries entries;
    entries.list.push_back(plain_entry(1, mirror::entry_kind::reset, 0));
    entries.list.push_back(plain_entry(2, mirror::entry_kind::open_file, 7));
    entries.list.push_back(submit_entry(3, {{13, false}, {0, false}, {4096, false}}));
    entries.list.push_back(submit_entry(4, {}, mirror::entry_awaits_outcome));
    std::map<std::string, mirror::message> all{
        {"hello-primary", hello_of(mirror::role::primary, "a GPU", {"zstd"})},
        {"hello-standby", hello_of(mirror::role::standby, "a GPU", {"zstd"})},
        {"hello-supervisor-primary", hello_of(mirror::role::primary, "supervisor", {"supervision"})},
        {"hello-supervisor-standby", hello_of(mirror::role::standby, "supervisor", {"supervision"})},
        {"entries", entries},
        {"content", mirror::content{3, 2, 1024, 512, 100}},
        {"outcome", mirror::outcome{4, false, -5}},
        {"marker", mirror::marker{9, 4, true}},
        {"synced", mirror::synced{4}},
        {"ack", mirror::ack{.received = 4,
                            .executed = 3,
                            .committed_epoch = 8,
                            .freed_bytes = 96,
                            .freed_entries = 2,
                            .complete_checkpoint = 7}},
        {"heartbeat", mirror::heartbeat{1234, 1200}},
        {"digests", mirror::digests{4, {1, 2, 3}}},
        {"digest-result", mirror::digest_result{4, {0, 2}}},
        {"close-epoch", mirror::close_epoch{}},
        {"fault", mirror::fault{4, "a sentence"}},
        {"goodbye", mirror::goodbye{mirror::goodbye_reason::refused, "a sentence"}},
    };
    const char* words[] = {"description", "ready", "pair",        "paired",
                           "unpaired",    "died",  "handed-over", "lost"};
    for (std::uint32_t kind = 1; kind <= 8; ++kind) {
        mirror::supervision m;
        m.kind = static_cast<supervision_kind>(kind);
        m.term = kind < 3 ? 0 : 17;
        m.text = kind == 1 ? std::string(64, 'a') : "a sentence";
        all.emplace(words[kind - 1], m);
    }
    return all;
}

std::map<std::string, std::vector<std::byte>> recorded() {
    std::map<std::string, std::vector<std::byte>> frames;
    std::ifstream file(VERSION_1_FRAMES);
    std::string name, hex;
    while (file >> name >> hex)
        for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
            frames[name].push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
    return frames;
}

TEST(version_1, all_that_it_says_is_understood) {
    const auto frames = recorded();
    const auto expected = version_1_messages();
    ASSERT_EQ(frames.size(), expected.size());
    for (const auto& [name, message] : expected) {
        ASSERT_TRUE(frames.contains(name)) << name;
        mirror::message got;
        EXPECT_EQ(decode_frame(frames.at(name), got), "") << name;
        EXPECT_TRUE(got == message) << name;
    }
}

// What this release says to it has the same bytes; hellos have more fields, which it passes over.
TEST(version_1, it_understands_all_that_is_said_to_it) {
    const auto frames = recorded();
    for (const auto& [name, message] : version_1_messages()) {
        ASSERT_TRUE(frames.contains(name)) << name;
        EXPECT_EQ(encoded(message), frames.at(name)) << name;
    }
}

TEST(version_1, forms_a_pair_with_this_release) {
    const auto frames = recorded();
    for (const auto& [name, message] : version_1_messages()) {
        const auto* theirs = std::get_if<mirror::hello>(&message);
        if (!theirs)
            continue;
        mirror::hello mine;
        mine.vm = "vm";
        mine.heartbeat_budget_ms = 500;
        mine.hold_bytes = mine.hold_entries = 1;
        mine.role = theirs->role == mirror::role::primary ? mirror::role::standby : mirror::role::primary;
        mirror::message got;
        ASSERT_EQ(decode_frame(frames.at(name), got), "");
        EXPECT_EQ(mirror::disagreement(mine, std::get<mirror::hello>(got)), "") << name;
        EXPECT_EQ(mirror::common_version(mine, std::get<mirror::hello>(got)), 1u) << name;
    }
}

} // namespace
} // namespace kagemusha::messages::test
