// SPDX-License-Identifier: GPL-2.0-or-later
//
// qemu_controller against a monitor that a script is: what it says to QEMU when a stream does not go as planned. A program of
// its own, because a QEMU's process begins as the program that starts it (control/confine/guard.hpp).
#include "control/pilot/qemu_controller.hpp"

#include "control/confine/guard.hpp"

#include <gtest/gtest.h>

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <unistd.h>

namespace kagemusha::control {
namespace {

using namespace std::chrono_literals;

// A QEMU whose stream takes checkpoints at once, and whose event about that does not come. It refuses the first
// failover, as QEMU does until COLO's thread is ready, and a second stream until the first has ended. Writes each
// command's name, and what it switches on, a line each, onto its log.
constexpr auto silent_qemu = R"(
import json, re, socket, sys
fd = int(re.search(r'fd=(\d+)', ' '.join(sys.argv)).group(1))
end = socket.socket(fileno=fd)
status, asked = 'none', 0
def say(what):
    end.sendall(json.dumps(what).encode() + b'\n')
say({'QMP': {'version': {}, 'capabilities': ['oob']}})
for line in end.makefile('rb'):
    message = json.loads(line)
    name = message.get('execute') or message.get('exec-oob')
    print(name, flush=True)
    for one in message.get('arguments', {}).get('capabilities', []):
        if one['state']:
            print(one['capability'], flush=True)
    answer, error, event = {}, None, None
    if name == 'query-status':
        answer = {'running': True, 'status': 'running'}
    elif name in ('query-block', 'query-yank'):
        answer = []
    elif name == 'query-migrate':
        answer = {'status': status}
    elif name == 'migrate-set-capabilities' and status == 'colo':
        error = "There's a migration process in progress"
    elif name == 'migrate':
        status, event = 'colo', {'status': 'setup'}
    elif name == 'x-colo-lost-heartbeat':
        asked += 1
        if asked == 1:
            error = 'COLO is about to begin: ask again'
        else:
            status = 'completed'
    reply = {'error': {'class': 'GenericError', 'desc': error}} if error else {'return': answer}
    say({**reply, 'id': message['id']})
    if event:
        say({'event': 'MIGRATION', 'data': event, 'timestamp': {'seconds': 0, 'microseconds': 0}})
)";

class qemu_controller_test : public testing::Test {
protected:
    qemu_controller_test() {
        pilot_config config;
        config.command = {"/usr/bin/python3", "-c", silent_qemu};
        config.log = log_;
        pilot_events events;
        events.replication_lost = [this](std::uint64_t, const std::string& why) { lost_.push_back(why); };
        events.log = [](const std::string&) {};
        events.warning = [](const std::string&) {};
        events.died = [](const std::string& how, bool, std::uint64_t) { ADD_FAILURE() << how; };
        qemu_ = std::make_unique<qemu_controller>(std::move(config), std::move(events));
    }

    ~qemu_controller_test() override {
        qemu_.reset();
        std::filesystem::remove(log_);
    }

    auto said(const std::string& command) const {
        std::ifstream log(log_);
        return std::count(std::istream_iterator<std::string>(log), {}, command);
    }

    // The loop of a supervisor. A minute is only there to end a test that hangs.
    template <class Condition>
    bool run_until(Condition condition) {
        for (const auto until = qemu_controller::clock::now() + 60s; !condition();) {
            if (qemu_controller::clock::now() > until)
                return false;
            pollfd fds[] = {{qemu_->fds().qmp, POLLIN, 0}, {qemu_->fds().pidfd, POLLIN, 0}};
            ::poll(fds, 2, 5);
            qemu_->handle(fds[1].revents != 0);
        }
        return true;
    }

    const std::string log_ = testing::TempDir() + "qemu_controller_test." + std::to_string(::getpid());
    std::vector<std::string> lost_;
    std::unique_ptr<qemu_controller> qemu_;
};

// The standby is lost after QEMU has begun its checkpoints and before it has said so. `migrate_cancel` does
// nothing then, and without a failover no standby would ever be accepted again.
TEST_F(qemu_controller_test, a_stream_that_takes_checkpoints_unheard_is_ended) {
    const link_addresses to{.state = "unix:/nowhere", .gpu = {}};
    qemu_->start_primary();
    qemu_->replicate(1, to, false, {}, false);
    ASSERT_TRUE(run_until([this] { return said("migrate") == 1; }));
    qemu_->go_on_alone();
    ASSERT_TRUE(run_until([this] { return said("x-colo-lost-heartbeat") == 2; }));
    EXPECT_GE(said("migrate_cancel"), 1);
    EXPECT_EQ(said("x-colo-delta"), 0) << "an older standby does not decode it";
    qemu_->replicate(2, to, false, {}, true);
    EXPECT_TRUE(run_until([this] { return said("migrate") == 2; }));
    EXPECT_EQ(said("x-colo-delta"), 1);
    EXPECT_TRUE(lost_.empty()) << lost_.front();
}

} // namespace
} // namespace kagemusha::control

int main(int argc, char** argv) {
    kagemusha::control::guard_if_asked(argc, argv);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
