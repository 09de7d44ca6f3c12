// SPDX-License-Identifier: GPL-2.0-or-later
//
// QMP messages of every kind, chopped and broken.
#include "control/qemu/qmp_session.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

using kind = qmp_message::kind;

TEST(qmp_session, tells_the_kinds_apart) {
    qmp_session session;
    const auto messages =
        session.feed("{\"QMP\": {\"version\": {}}}\r\n"
                     "{\"return\": {\"files-open\": 2}, \"id\": 5}\r\n"
                     "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}, \"id\": 6}\r\n"
                     "{\"timestamp\": {}, \"event\": \"SHUTDOWN\", \"data\": {\"guest\": true}}\r\n");
    ASSERT_EQ(messages.size(), 4u);
    EXPECT_EQ(messages[0].what, kind::greeting);
    EXPECT_EQ(messages[1].what, kind::success);
    EXPECT_EQ(messages[1].id, 5u);
    EXPECT_EQ(messages[1].body["files-open"], 2);
    EXPECT_EQ(messages[2].what, kind::failure);
    EXPECT_EQ(messages[2].body["desc"], "no");
    EXPECT_EQ(messages[3].what, kind::event);
    EXPECT_EQ(messages[3].name, "SHUTDOWN");
    EXPECT_EQ(messages[3].body["guest"], true);
}

TEST(qmp_session, a_line_may_come_in_pieces) {
    qmp_session session;
    EXPECT_TRUE(session.feed("{\"retu").empty());
    EXPECT_TRUE(session.feed("rn\": 7}").empty());
    const auto messages = session.feed("\n\r\n");
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_EQ(messages[0].body, 7);
}

TEST(qmp_session, nonsense_is_broken_and_not_a_crash) {
    for (const std::string line : {"{", "[]", "3", "{}", "{\"event\": 4}", "\xff\xfe"}) {
        qmp_session session;
        const auto messages = session.feed(line + "\n");
        ASSERT_EQ(messages.size(), 1u) << line;
        EXPECT_EQ(messages[0].what, kind::broken) << line;
    }
}

TEST(qmp_session, commands_are_numbered_lines) {
    qmp_session session;
    std::uint64_t first = 0, second = 0;
    EXPECT_EQ(session.command("quit", {}, first), "{\"execute\":\"quit\",\"id\":1}\n");
    const auto line = session.command("qom-get", {{"path", "/a"}}, second);
    EXPECT_EQ(nlohmann::json::parse(line),
              (nlohmann::json{{"execute", "qom-get"}, {"id", 2}, {"arguments", {{"path", "/a"}}}}));
    EXPECT_EQ(first + 1, second);
}

} // namespace
} // namespace kagemusha::control
