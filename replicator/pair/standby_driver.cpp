// SPDX-License-Identifier: GPL-2.0-or-later
// The standby's thread: link, log, state machine. standby_takeover.cpp has what a takeover is made of.
#include "pair/standby_driver.hpp"

#include <algorithm>

#include "pair/standby_driver_impl.hpp"

namespace kagemusha::pair {

namespace {

using net::event_loop;

// Twice of what is held, so that a large payload finds a range between many small ones. It is sparse.
constexpr std::uint64_t arena_factor = 2;

// Between two tries of a call (standby_runner.hpp).
constexpr std::uint64_t retry_delay_ms = 5;

// Strangers that are being told why they are refused.
constexpr std::size_t max_refusals = 8;

} // namespace

threaded_standby::threaded_standby(options o)
    : options_(std::move(o))
    , runner_([this](run_result r) { tell(std::move(r)); })
    , fsm_(options_.fsm, event_loop::now_ms()) {}

threaded_standby::~threaded_standby() {
    if (thread_.joinable()) {
        loop_.post([this] { shut_down(); });
        thread_.join();
    }
    listener_.reset();
    connections_.clear();
}

std::string threaded_standby::start() {
    std::string error;
    memory_ = arena::create("kagemusha-standby",
                            options_.fsm.hold_bytes * arena_factor + mirror::max_held_built_bytes,
                            standby_region, error); // packs of built programs take no room from entries
    if (!memory_)
        return error;
    hold_.emplace(*memory_, standby_region, options_.fsm.hold_bytes);
    if (!inbox_.ok())
        return "no descriptor is left for replication; raise the limit of open files";
    net::link_options listen = options_.listen;
    listen.note = [this](const std::string& line) { say(KAGEMUSHA_LOG_WARNING, "replication: " + line); };
    listener_ = net::listen(
        loop_, listen,
        [this](std::unique_ptr<net::link> l, const std::string& peer) { return accept(std::move(l), peer); },
        [this](const std::string& line) { on_stranger(line); }, error);
    if (!listener_)
        return error;
    address_ = listener_->address();
    thread_ = std::thread([this] {
        step([](std::uint64_t) {});
        loop_.run();
    });
    return {};
}

// ---- device's thread

void threaded_standby::dispatch(core::device& device, std::uint64_t now_ms) {
    inbox_.take(commands_);
    for (standby_command& c : commands_) {
        if (given_up_ && c.what != standby_command::kind::log)
            continue; // of a copy that nobody wants any more
        switch (c.what) {
        case standby_command::kind::run:
            runner_.run(device, std::move(c.entry), now_ms);
            break;
        case standby_command::kind::retry:
            runner_.retry(device, now_ms);
            break;
        case standby_command::kind::resume:
            resume_now(device, c.token, std::move(c.entry), now_ms);
            break;
        case standby_command::kind::live:
            all_given_ = true;
            break;
        case standby_command::kind::store:
            runner_.store(device, c.file, std::move(c.pack), now_ms);
            break;
        case standby_command::kind::forget_all:
            runner_.forget_all(device);
            break;
        case standby_command::kind::log:
            options_.log(c.level, c.text);
            break;
        }
    }
    commands_.clear();
    runner_.go_on(device);
    if (all_given_ && !live_ && runner_.all_begun())
        become_live(device, now_ms);
}

void threaded_standby::on_request_done(std::uint64_t token, const vgpu_response& response) {
    if ((token & standby_runner::token_bit) != 0)
        runner_.on_request_done(token, response);
    else
        runner_.on_guest_request_done(token);
}

// On the device's thread.
void threaded_standby::tell(run_result r) {
    if (given_up_)
        return;
    bool first;
    {
        const std::lock_guard lock(results_mutex_);
        first = results_.empty();
        results_.push_back(std::move(r));
    }
    if (first)
        loop_.post([this] { take_results(); });
}

// ---- any thread

mirror::standby_status threaded_standby::status() const {
    const std::lock_guard lock(mutex_);
    mirror::standby_status s = fsm_.status(event_loop::now_ms());
    if (!stranger_.empty())
        s.why += (s.why.empty() ? "" : "; ") + stranger_;
    return s;
}

// ---- replication thread

void threaded_standby::carry_out(std::uint64_t now_ms) {
    acting_ = true;
    mirror::standby_action a;
    while (fsm_.next(a))
        std::visit([&](auto& x) { act(x, now_ms); }, a);
    acting_ = false;
    connections_.sweep(now_ms);
    memory_->trim(now_ms);
    arm();
}

void threaded_standby::arm() {
    const std::uint64_t at =
        std::min({fsm_.next_tick_ms(), connections_.deadline_ms(), retry_ms_, memory_->trim_at_ms()});
    if (at == armed_ms_)
        return;
    armed_ms_ = at;
    loop_.call_at(at, [this] {
        armed_ms_ = UINT64_MAX;
        step([this](std::uint64_t now_ms) {
            if (now_ms >= retry_ms_) {
                retry_ms_ = UINT64_MAX;
                inbox_.push({standby_command::kind::retry});
            }
            fsm_.on_tick(now_ms);
        });
        if (ending_ && connections_.all_said())
            loop_.stop();
    });
}

void threaded_standby::take_results() {
    {
        const std::lock_guard lock(results_mutex_);
        std::swap(taken_, results_);
    }
    step([this](std::uint64_t now_ms) {
        for (run_result& r : taken_)
            on_result(r, now_ms);
    });
    taken_.clear();
}

void threaded_standby::on_result(run_result& r, std::uint64_t now_ms) {
    if (r.what == run_result::kind::forgotten) {
        forgetting_ = false;
        return fsm_.on_forgotten(now_ms);
    }
    if (forgetting_)
        return; // of the run that is being forgotten
    switch (r.what) {
    case run_result::kind::executed:
        return fsm_.on_executed(r.sequence, r.result, now_ms);
    case run_result::kind::digests:
        return fsm_.on_digests(r.sequence, std::move(r.hashes), now_ms);
    case run_result::kind::file_lost:
        return fsm_.on_file_lost(r.file, r.why, now_ms);
    case run_result::kind::retry:
        retry_ms_ = std::min(retry_ms_, now_ms + retry_delay_ms);
        return;
    case run_result::kind::stored:
        return fsm_.on_built_stored(r.bytes);
    case run_result::kind::forgotten:
        break;
    }
}

void threaded_standby::act(const mirror::act_send& a, std::uint64_t) {
    if (connection* c = connections_.current(); c && c->link)
        c->link->send(a.what);
}

void threaded_standby::act(const mirror::act_close_link&, std::uint64_t now_ms) {
    connections_.give_up(now_ms);
    hold_->abandon();
}

void threaded_standby::act(const mirror::act_run& a, std::uint64_t) {
    inbox_.push({standby_command::kind::run, hold_->take(a.sequence)});
}

void threaded_standby::act(const mirror::act_skip& a, std::uint64_t) {
    hold_->skip(a.sequence);
}

void threaded_standby::act(const mirror::act_resume& a, std::uint64_t) {
    auto request = std::make_unique<held_entry>();
    for (const log_sequence s : a.entries)
        request->own.push_back(hold_->take(s));
    standby_command c{standby_command::kind::resume, std::move(request)};
    c.token = a.request.token;
    inbox_.push(std::move(c));
}

void threaded_standby::act(const mirror::act_live&, std::uint64_t) {
    inbox_.push({standby_command::kind::live});
}

void threaded_standby::act(const mirror::act_forget_all&, std::uint64_t) {
    hold_->clear();
    forgetting_ = true;
    inbox_.push({standby_command::kind::forget_all});
}

void threaded_standby::act(const mirror::act_store_built& a, std::uint64_t) {
    standby_command c{standby_command::kind::store};
    c.file = a.what.file;
    c.pack.bytes = a.what.bytes;
    if (hold_->take_pack(c.pack.memory))
        inbox_.push(std::move(c));
    else
        fsm_.on_built_stored(a.what.bytes);
}

void threaded_standby::act(const mirror::act_standby_state& a, std::uint64_t) {
    using enum mirror::standby_state;
    const bool good = a.state == ready || a.state == following || a.state == greeting;
    const std::string text = a.state == ready       ? "has a complete copy of the primary's GPU state"
                             : a.state == following ? "a state transfer has begun"
                                                    : a.why;
    if (!text.empty())
        say(good ? KAGEMUSHA_LOG_INFO : KAGEMUSHA_LOG_WARNING, "replication, standby: " + text);
}

void threaded_standby::say(kagemusha_log_level level, std::string text) {
    inbox_.push({standby_command::kind::log, {}, level, std::move(text)});
}

void threaded_standby::shut_down() {
    step([this](std::uint64_t now_ms) { fsm_.on_shutdown(now_ms); });
    step([this](std::uint64_t now_ms) { connections_.give_up(now_ms); });
    ending_ = true;
    if (connections_.all_said())
        loop_.stop();
}

// Whoever could not prove who it is, or did not speak as a primary does: in the log, and in the status
// until somebody comes in. It may be the primary with wrong keys.
void threaded_standby::on_stranger(const std::string& line) {
    say(KAGEMUSHA_LOG_WARNING, "replication: " + line);
    const std::lock_guard lock(mutex_);
    stranger_ = line;
}

net::link_sink* threaded_standby::accept(std::unique_ptr<net::link> l, const std::string& peer) {
    const std::lock_guard lock(mutex_);
    if (connections_.current() && !ending_) {
        const std::uint64_t now = event_loop::now_ms();
        if (strangers_.allow(now)) {
            say(KAGEMUSHA_LOG_WARNING,
                "replication: refused " + peer + ", because this standby has a primary already");
        }
        if (connections_.leaving() >= max_refusals)
            return nullptr;
        connection& c = connections_.add_stranger(
            {mirror::goodbye_reason::refused, "this standby has a primary already; one at a time"}, now);
        c.link = std::move(l);
        arm();
        return &c;
    }
    connection& c = connections_.begin(*this);
    c.link = std::move(l);
    return &c;
}

// ---- net::link_sink

void threaded_standby::on_connected(const std::string&) {
    step([this](std::uint64_t now_ms) {
        stranger_.clear();
        fsm_.on_connected(now_ms);
    });
}

net::receive_buffers threaded_standby::on_payload(const mirror::message& m, std::uint64_t bytes) {
    net::receive_buffers where = hold_->on_payload(m, bytes);
    if (where.pieces.empty()) {
        say(KAGEMUSHA_LOG_WARNING,
            "replication: the " + std::to_string(bytes) +
                " bytes behind a message of the primary have no place: nothing that is held wants them, "
                "or the hold is too small");
    }
    return where;
}

void threaded_standby::on_message(const mirror::message& m) {
    if (const std::string wrong = hold_->on_message(m); !wrong.empty())
        return broken(wrong);
    step([&](std::uint64_t now_ms) {
        const log_sequence before = fsm_.received();
        fsm_.on_message(m, now_ms);
        // Of entries only: those that are just coming keep their places when a lane tells of a piece.
        if (std::holds_alternative<mirror::entries>(m))
            hold_->keep(before, fsm_.received());
    });
}

void threaded_standby::on_closed(const std::string& why) {
    step([&](std::uint64_t now_ms) {
        connections_.give_up(now_ms);
        hold_->abandon();
        fsm_.on_closed(why, now_ms);
    });
}

void threaded_standby::broken(const std::string& what) {
    if (connection* c = connections_.current(); c && c->link)
        c->link->send(mirror::goodbye{mirror::goodbye_reason::protocol_error, what});
    on_closed("the primary broke the protocol: " + what);
}

std::unique_ptr<standby_driver> standby_driver::create(options o, std::string& error) {
    auto made = std::make_unique<threaded_standby>(std::move(o));
    error = made->start();
    return error.empty() ? std::move(made) : nullptr;
}

} // namespace kagemusha::pair
