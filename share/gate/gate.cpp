// SPDX-License-Identifier: GPL-2.0-or-later
// gate: see gate.hpp.
#include "share/gate/gate.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace kagemusha::share {

namespace {

// An arbiter that is stopped must not stop its VMs.
constexpr std::uint64_t silence_ns = 2 * second;
// Signs of life are given so often while a task waits.
constexpr std::uint64_t look_ns = 100 * ms;

constexpr std::uint64_t give_back_flags = SHARE_GRANTED | SHARE_SHARED | SHARE_TAKE_BACK;

std::uint64_t now_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * second + static_cast<std::uint64_t>(t.tv_nsec);
}

// Counts what a task waits for the grant.
class wait_clock {
public:
    explicit wait_clock(share_page& page) : page_(page) {}
    ~wait_clock() { count(); }
    wait_clock(const wait_clock&) = delete;
    wait_clock& operator=(const wait_clock&) = delete;

    void count() {
        const std::uint64_t now = now_ns();
        page_.waited_ns.fetch_add(now - from_ns_, std::memory_order_relaxed);
        from_ns_ = now;
    }

private:
    share_page& page_;
    std::uint64_t from_ns_ = now_ns();
};

} // namespace

gate::gate(share_page& page, int socket, log_line log) : page_(page), socket_(socket), log_(std::move(log)) {
    fcntl(socket_, F_SETFL, O_NONBLOCK);
    signal(SIGPIPE, SIG_IGN); // a worker's sandbox has no send(), which could do without the signal
}

void gate::begin(bool may_need_guest) {
    lock held(mutex_);
    if (!open()) {
        if (page_.bounded.load(std::memory_order_relaxed) != 0)
            wait_for_window(held, may_need_guest);
        if (!take())
            wait_for_grant(held, may_need_guest);
    }
    const std::uint64_t now = now_ns();
    if (++in_flight_ == 1) {
        busy_since_ns_ = now;
        page_.busy_since_ns.store(now, std::memory_order_relaxed);
    }
    window_.began(in_flight_, now);
    page_.needs_guest.store(may_need_guest, std::memory_order_relaxed);
    page_.tasks.fetch_add(1, std::memory_order_relaxed);
}

void gate::end() {
    const lock held(mutex_);
    const std::uint64_t now = now_ns();
    ++ends_;
    if (loose_ != 0) {
        --loose_;
        page_.loose_ns.fetch_add(window_.cost_ns(), std::memory_order_relaxed);
    } else {
        uncount(1);
    }
    window_.ended(now);
    if (--in_flight_ == 0) {
        page_.busy_ns.fetch_add(now - busy_since_ns_, std::memory_order_relaxed);
        page_.busy_since_ns.store(0, std::memory_order_relaxed);
    }
    if (beginning_)
        ended_.notify_one();
}

// ---- waiting

void gate::wait_for_window(lock& held, bool may_need_guest) {
    if (!exact_timer_) { // else the kernel adds 50 us to a wait for the time at which the window opens
        exact_timer_ = true;
        prctl(PR_SET_TIMERSLACK, 1);
    }
    beginning_ = true;
    bool ended = false;
    while (in_flight_ - loose_ >= window_.tasks() && !open()) {
        const std::uint64_t now = now_ns(), opens = window_.opens_ns(in_flight_ - loose_, now);
        if (now >= opens)
            break;
        const std::uint64_t seen = ends_, patience = may_need_guest ? stall_ns : look_ns;
        ended = ended_.wait_for(held, std::chrono::nanoseconds(std::min(patience, opens - now)),
                                [&] { return ends_ != seen; });
        if (!ended && may_need_guest && opens - now > patience)
            loosen();
    }
    if (ended)
        window_.refilled(now_ns());
    beginning_ = false;
}

void gate::wait_for_grant(lock& held, bool may_need_guest) {
    alive_seen_ = page_.alive.load(std::memory_order_relaxed);
    alive_at_ns_ = now_ns();
    wait_clock waits(page_);
    std::uint64_t seen = ends_, seen_at_ns = now_ns();
    while (!open()) {
        // Set again whenever it is not: a grant may have been taken back before it was used.
        const bool asked = (page_.word.fetch_or(SHARE_WAITING) & SHARE_WAITING) != 0;
        if (take())
            return;
        if (!asked)
            say(SHARE_WANTS);
        const bool may_stall = may_need_guest && in_flight_ != loose_;
        hear(held, may_stall ? stall_ns : look_ns);
        waits.count();
        if (ends_ != seen) {
            seen = ends_;
            seen_at_ns = now_ns();
        } else if (may_stall && now_ns() - seen_at_ns >= stall_ns) {
            loosen();
        }
        if (is_silent())
            break; // this one task; the next one asks again
    }
}

// Counts the task that begins, if it may begin.
bool gate::take() {
    std::uint64_t word = page_.word.load(std::memory_order_acquire);
    do {
        if ((word & SHARE_GRANTED) == 0 || (word & SHARE_TAKE_BACK) != 0)
            return false;
    } while (!page_.word.compare_exchange_weak(word, (word & ~std::uint64_t{SHARE_WAITING}) + 1));
    return true;
}

bool gate::is_silent() {
    const std::uint64_t alive = page_.alive.load(std::memory_order_relaxed), now = now_ns();
    if (alive != alive_seen_) {
        alive_seen_ = alive;
        alive_at_ns_ = now;
        return false;
    }
    if (now - alive_at_ns_ < silence_ns)
        return false;
    log_("the share arbiter of this GPU (kagemusha-gpu) does not answer: going on without it for now");
    page_.word.fetch_add(1);
    return true;
}

void gate::hear(lock& held, std::uint64_t patience_ns) {
    held.unlock();
    waits_.fetch_add(1, std::memory_order_relaxed);
    pollfd fd{socket_, POLLIN, 0};
    const timespec patience{0, static_cast<long>(patience_ns)};
    ppoll(&fd, 1, &patience, nullptr);
    bool lost = false;
    if (fd.revents != 0) {
        share_message message{};
        const ssize_t got = read(socket_, &message, sizeof message);
        lost = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    }
    held.lock();
    if (lost)
        fall_open("has ended");
}

// ---- giving back

void gate::loosen() {
    const std::uint32_t counted = in_flight_ - loose_;
    loose_ = in_flight_;
    uncount(counted);
}

void gate::uncount(std::uint32_t tasks) {
    if (tasks == 0)
        return;
    // Never below 0, whatever somebody wrote there.
    std::uint64_t word = page_.word.load(), less;
    do {
        const std::uint64_t count = word & SHARE_COUNT;
        less = word - (count < tasks ? count : tasks);
    } while (!page_.word.compare_exchange_weak(word, less));
    if ((less & SHARE_COUNT) == 0)
        give_back();
}

void gate::give_back() {
    std::uint64_t word = page_.word.load();
    do {
        const bool due = (word & SHARE_TAKE_BACK) != 0 || ((word & SHARE_SHARED) != 0 && !beginning_);
        if ((word & SHARE_GRANTED) == 0 || !due || (word & SHARE_COUNT) != 0)
            return;
    } while (!page_.word.compare_exchange_weak(word, word & ~give_back_flags));
    say(SHARE_RELEASED);
}

// A queue that is full has messages that say the same: the arbiter looks at the page.
void gate::say(share_message_kind kind) {
    const share_message message{static_cast<std::uint32_t>(kind), 0};
    if (write(socket_, &message, sizeof message) < 0 && errno != EAGAIN && errno != EINTR)
        fall_open("has ended");
}

void gate::fall_open(const char* why) {
    if (!open_.exchange(true))
        log_(std::string("the share arbiter of this GPU (kagemusha-gpu) ") + why +
             ": this program's commands are not scheduled any more");
    ended_.notify_all();
}

} // namespace kagemusha::share
