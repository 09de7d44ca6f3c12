// SPDX-License-Identifier: GPL-2.0-or-later
//
// See share_lease.hpp.
#include "control/share/share_lease.hpp"

#include "control/share/arbiter_process.hpp"
#include "worker/share_join.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

constexpr int again_after_ms = 1000;

} // namespace

std::unique_ptr<share_lease> share_lease::take(const std::string& socket, const share_hello& hello,
                                               says report, std::string& error) {
    std::unique_ptr<share_lease> lease(new share_lease(socket, hello, std::move(report)));
    if (!lease->join(error))
        return nullptr;
    lease->keeper_ = std::thread([raw = lease.get()] { raw->keep(); });
    return lease;
}

share_lease::share_lease(std::string socket, const share_hello& hello, says report)
    : socket_(std::move(socket))
    , hello_(hello)
    , report_(std::move(report))
    , stop_(::eventfd(0, EFD_CLOEXEC)) {}

share_lease::~share_lease() {
    const std::uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof one);
    if (keeper_.joinable())
        keeper_.join();
}

// Once more where nobody answered: an arbiter without VMs may end between two of these lines.
bool share_lease::join(std::string& error) {
    for (int tries = 0; tries < 2; ++tries) {
        if (!share_arbiter_answers(socket_))
            if (error = start_share_arbiter(socket_); !error.empty())
                return false;
        auto joined = worker::join_share(socket_, hello_);
        error = joined.refusal;
        if (error.empty())
            connection_ = std::move(joined.socket);
        if (joined.answer.magic == SHARE_MAGIC)
            break;
    }
    return error.empty();
}

// What is wanted: a place. What is: a connection, or none. One step a second until both agree.
void share_lease::keep() {
    ::pthread_setname_np(::pthread_self(), "share");
    std::string said;
    for (;;) {
        pollfd events[] = {{stop_.get(), POLLIN, 0}, {connection_.get(), POLLIN, 0}};
        ::poll(events, connection_ ? 2 : 1, connection_ ? -1 : again_after_ms);
        if (events[0].revents != 0)
            return;
        if (connection_ && events[1].revents == 0)
            continue;
        if (connection_) {
            connection_.reset();
            report_(
                "kagemusha-gpu has ended: programs that run now are not scheduled any more; it is started "
                "again for those that come");
            said.clear();
            continue; // a moment later, in case that somebody stops it on purpose
        }
        std::string error;
        if (join(error))
            report_("kagemusha-gpu runs again");
        else if (std::exchange(said, error) != error)
            report_(error);
    }
}

} // namespace kagemusha::control
