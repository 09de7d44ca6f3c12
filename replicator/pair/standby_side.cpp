// SPDX-License-Identifier: GPL-2.0-or-later
#include "pair/standby_side.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/rate_limiter.hpp"
#include "mirror/standby/completion_filter.hpp"
#include "pair/connection.hpp"
#include "pair/inbox.hpp"
#include "pair/standby_hold.hpp"
#include "pair/standby_runner.hpp"

namespace kagemusha::pair {

namespace {

using net::event_loop;

// Twice of what is held, so that a large payload finds a range between many small ones. It is sparse.
constexpr std::uint64_t arena_factor = 2;

// Between two tries of a call (standby_runner.hpp).
constexpr std::uint64_t retry_delay_ms = 5;

// Strangers that are being told why they are refused.
constexpr std::size_t max_refusals = 8;

struct command {
    enum class kind { run, retry, resume, live, forget_all, log };
    kind what;
    std::unique_ptr<held_entry> entry = {};
    kagemusha_log_level level = KAGEMUSHA_LOG_INFO;
    std::string text = {};
    std::uint64_t token = 0;
};

class threaded_standby final : public standby_side, net::link_sink {
public:
    explicit threaded_standby(options o)
        : options_(std::move(o))
        , runner_([this](run_result r) { tell(std::move(r)); })
        , fsm_(options_.fsm, event_loop::now_ms()) {}

    ~threaded_standby() override {
        if (thread_.joinable()) {
            loop_.post([this] { shut_down(); });
            thread_.join();
        }
        listener_.reset();
        connections_.clear();
    }

    std::string start() {
        std::string error;
        memory_ =
            arena::create("kagemusha-standby", options_.fsm.hold_bytes * arena_factor, standby_region, error);
        if (!memory_) {
            return error;
        }
        hold_.emplace(*memory_, standby_region, options_.fsm.hold_bytes);
        if (!inbox_.ok()) {
            return "no descriptor is left for replication; raise the limit of open files";
        }
        listener_ = net::listen(
            loop_, options_.listen,
            [this](std::unique_ptr<net::link> l, const std::string& peer) {
                return accept(std::move(l), peer);
            },
            [this](const std::string& line) { on_stranger(line); }, error);
        if (!listener_) {
            return error;
        }
        address_ = listener_->address();
        thread_ = std::thread([this] {
            step([](std::uint64_t) {});
            loop_.run();
        });
        return {};
    }

    // ---- device's thread
    arena& memory() override { return *memory_; }
    int event_fd() const override { return inbox_.fd(); }
    void dispatch(core::device& device, std::uint64_t now_ms) override {
        inbox_.take(commands_);
        for (command& c : commands_) {
            if (given_up_ && c.what != command::kind::log) {
                continue; // of a copy that nobody wants any more
            }
            switch (c.what) {
            case command::kind::run:
                runner_.run(device, std::move(c.entry), now_ms);
                break;
            case command::kind::retry:
                runner_.retry(device, now_ms);
                break;
            case command::kind::resume:
                resume_now(device, c.token, std::move(c.entry), now_ms);
                break;
            case command::kind::live:
                all_given_ = true;
                break;
            case command::kind::forget_all:
                runner_.forget_all(device);
                break;
            case command::kind::log:
                options_.log(c.level, c.text);
                break;
            }
        }
        commands_.clear();
        runner_.go_on(device);
        if (all_given_ && !live_ && runner_.all_begun()) {
            become_live(device, now_ms);
        }
    }
    std::shared_ptr<const void> memory_of(std::uint64_t token) const override {
        return runner_.memory_of(token);
    }
    void on_request_done(std::uint64_t token, const vgpu_response& response) override {
        if ((token & standby_runner::token_bit) != 0) {
            runner_.on_request_done(token, response);
        } else {
            runner_.on_guest_request_done(token);
        }
    }
    record_owner on_record(std::span<const std::byte> record) override;
    void told(std::span<const std::byte> record) override;

    std::string check(const mirror::vm_state& state) const override;
    void commit(mirror::vm_state state) override;
    void misfit() override;
    void keep_copy(bool on) override {
        loop_.post([this, on] { fsm_.keep_copy(on); });
    }
    std::string take_over(core::device& device) override;
    bool resume(const kagemusha_request& request) override;
    bool live() const override { return live_; }
    std::span<const std::byte> first_record() const override {
        return records_.empty() ? std::span<const std::byte>() : std::span<const std::byte>(records_.front());
    }
    std::vector<std::uint64_t> forget_guest() override {
        std::vector<std::uint64_t> tokens = runner_.forget_waiting_guest();
        for (const auto& [token, request] : std::exchange(open_, {})) {
            tokens.push_back(token);
        }
        completions_.clear();
        records_.clear();
        return tokens;
    }

    // ---- any thread
    mirror::standby_status status() const override {
        const std::lock_guard lock(mutex_);
        mirror::standby_status s = fsm_.status(event_loop::now_ms());
        if (!stranger_.empty()) {
            s.why += (s.why.empty() ? "" : "; ") + stranger_;
        }
        return s;
    }
    const std::string& address() const override { return address_; }

private:
    void resume_now(core::device& device, std::uint64_t token, std::unique_ptr<held_entry> request,
                    std::uint64_t now_ms);
    void become_live(core::device& device, std::uint64_t now_ms);
    void tell_completed(core::device& device, bool everything);

    // On the device's thread.
    void tell(run_result r) {
        if (given_up_) {
            return;
        }
        bool first;
        {
            const std::lock_guard lock(results_mutex_);
            first = results_.empty();
            results_.push_back(std::move(r));
        }
        if (first) {
            loop_.post([this] { take_results(); });
        }
    }

    // ---- replication thread
    // An event for the state machine and what it wants done because of it. A link may call its sink while an
    // action is carried out on it, so a step can begin within a step: the outer one has the lock.
    template <class F>
    void step(F&& event) {
        if (stepping_) {
            return step_locked(event);
        }
        const std::lock_guard lock(mutex_);
        stepping_ = true;
        step_locked(event);
        stepping_ = false;
    }
    template <class F>
    void step_locked(F&& event) {
        const std::uint64_t now = event_loop::now_ms();
        event(now);
        if (acting_) {
            return; // an action led here: whoever carries it out goes on
        }
        acting_ = true;
        mirror::standby_action a;
        while (fsm_.next(a)) {
            std::visit([&](auto& x) { act(x, now); }, a);
        }
        acting_ = false;
        connections_.sweep(now);
        memory_->trim(now);
        arm();
    }

    void arm() {
        const std::uint64_t at =
            std::min({fsm_.next_tick_ms(), connections_.deadline_ms(), retry_ms_, memory_->trim_at_ms()});
        if (at == armed_ms_) {
            return;
        }
        armed_ms_ = at;
        loop_.call_at(at, [this] {
            armed_ms_ = UINT64_MAX;
            step([this](std::uint64_t now_ms) {
                if (now_ms >= retry_ms_) {
                    retry_ms_ = UINT64_MAX;
                    inbox_.push({command::kind::retry});
                }
                fsm_.on_tick(now_ms);
            });
            if (ending_ && connections_.all_said()) {
                loop_.stop();
            }
        });
    }

    void take_results() {
        {
            const std::lock_guard lock(results_mutex_);
            std::swap(taken_, results_);
        }
        step([this](std::uint64_t now_ms) {
            for (run_result& r : taken_) {
                on_result(r, now_ms);
            }
        });
        taken_.clear();
    }

    void on_result(run_result& r, std::uint64_t now_ms) {
        if (r.what == run_result::kind::forgotten) {
            forgetting_ = false;
            return fsm_.on_forgotten(now_ms);
        }
        if (forgetting_) {
            return; // of the run that is being forgotten
        }
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
        case run_result::kind::forgotten:
            break;
        }
    }

    void act(const mirror::act_send& a, std::uint64_t) {
        if (connection* c = connections_.current(); c && c->link) {
            c->link->send(a.what);
        }
    }
    void act(const mirror::act_close_link&, std::uint64_t now_ms) {
        connections_.give_up(now_ms);
        hold_->abandon();
    }
    void act(const mirror::act_run& a, std::uint64_t) {
        inbox_.push({command::kind::run, hold_->take(a.sequence)});
    }
    void act(const mirror::act_skip& a, std::uint64_t) { hold_->skip(a.sequence); }
    void act(const mirror::act_resume& a, std::uint64_t) {
        auto request = std::make_unique<held_entry>();
        for (const log_sequence s : a.entries) {
            request->own.push_back(hold_->take(s));
        }
        command c{command::kind::resume, std::move(request)};
        c.token = a.request.token;
        inbox_.push(std::move(c));
    }
    void act(const mirror::act_live&, std::uint64_t) { inbox_.push({command::kind::live}); }
    void act(const mirror::act_forget_all&, std::uint64_t) {
        hold_->clear();
        forgetting_ = true;
        inbox_.push({command::kind::forget_all});
    }
    void act(const mirror::act_standby_state& a, std::uint64_t) {
        using enum mirror::standby_state;
        const bool good = a.state == ready || a.state == following || a.state == greeting;
        const std::string text = a.state == ready       ? "has a complete copy of the primary's GPU state"
                                 : a.state == following ? "a state transfer has begun"
                                                        : a.why;
        if (!text.empty()) {
            say(good ? KAGEMUSHA_LOG_INFO : KAGEMUSHA_LOG_WARNING, "replication, standby: " + text);
        }
    }

    void say(kagemusha_log_level level, std::string text) {
        inbox_.push({command::kind::log, {}, level, std::move(text)});
    }

    void shut_down() {
        step([this](std::uint64_t now_ms) { fsm_.on_shutdown(now_ms); });
        step([this](std::uint64_t now_ms) { connections_.give_up(now_ms); });
        ending_ = true;
        if (connections_.all_said()) {
            loop_.stop();
        }
    }

    // Whoever could not prove who it is, or did not speak as a primary does: in the log, and in the status
    // until somebody comes in. It may be the primary with wrong keys.
    void on_stranger(const std::string& line) {
        say(KAGEMUSHA_LOG_WARNING, "replication: " + line);
        const std::lock_guard lock(mutex_);
        stranger_ = line;
    }

    net::link_sink* accept(std::unique_ptr<net::link> l, const std::string& peer) {
        const std::lock_guard lock(mutex_);
        if (connections_.current() && !ending_) {
            const std::uint64_t now = event_loop::now_ms();
            if (strangers_.allow(now)) {
                say(KAGEMUSHA_LOG_WARNING,
                    "replication: refused " + peer + ", because this standby has a primary already");
            }
            if (connections_.leaving() >= max_refusals) {
                return nullptr;
            }
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

    // net::link_sink
    void on_connected(const std::string&) override {
        step([this](std::uint64_t now_ms) {
            stranger_.clear();
            fsm_.on_connected(now_ms);
        });
    }
    net::receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) override {
        net::receive_buffers where = hold_->on_payload(m, bytes);
        if (where.empty()) {
            say(KAGEMUSHA_LOG_WARNING,
                "replication: the " + std::to_string(bytes) +
                    " bytes behind a message of the primary have no place: nothing that is held wants them, "
                    "or the hold is too small");
        }
        return where;
    }
    void on_message(const mirror::message& m) override {
        if (const std::string wrong = hold_->on_message(m); !wrong.empty()) {
            return broken(wrong);
        }
        step([&](std::uint64_t now_ms) {
            const log_sequence before = fsm_.received();
            fsm_.on_message(m, now_ms);
            hold_->keep(before, fsm_.received());
        });
    }
    void on_sent(std::uint64_t) override {}
    void on_closed(const std::string& why) override {
        step([&](std::uint64_t now_ms) {
            connections_.give_up(now_ms);
            hold_->abandon();
            fsm_.on_closed(why, now_ms);
        });
    }

    void broken(const std::string& what) {
        if (connection* c = connections_.current(); c && c->link) {
            c->link->send(mirror::goodbye{mirror::goodbye_reason::protocol_error, what});
        }
        on_closed("the primary broke the protocol: " + what);
    }

    const options options_;
    net::event_loop loop_;
    std::unique_ptr<arena> memory_;
    inbox<command> inbox_; // at most what the state machine holds, and lines of the log
    std::unique_ptr<net::listener> listener_;
    std::string address_;
    std::thread thread_;

    // device's thread
    standby_runner runner_;
    std::vector<command> commands_;
    mirror::vm_state state_;                     // the VM's, of the last commit
    bool misfit_ = false;                        // and what it was given since does not fit
    bool taken_over_ = false, given_up_ = false; // by take_over()
    bool all_given_ = false, live_ = false;
    std::map<std::uint64_t, std::unique_ptr<mirror::resumed_request>> open_; // submitted, not resumed yet
    std::map<std::uint64_t, core::request_progress> open_progress_;          // not submitted yet, by token
    mirror::completion_filter completions_;
    std::deque<std::vector<std::byte>> records_; // for the guest, before all others

    std::mutex results_mutex_;
    std::vector<run_result> results_;

    // replication thread; what status() needs is behind the lock
    mutable std::mutex mutex_;
    bool stepping_ = false; // step() has the lock
    mirror::replication_standby_fsm fsm_;
    bool acting_ = false, ending_ = false, forgetting_ = false;
    std::uint64_t armed_ms_ = UINT64_MAX, retry_ms_ = UINT64_MAX;
    std::optional<standby_hold> hold_; // start() makes it
    std::vector<run_result> taken_;
    connections connections_;
    std::string stranger_;                    // what the listener said last of one whom it refused
    base::rate_limiter strangers_{5, 10'000}; // lines of the log
};

// ---- checkpoints and takeover, on the device's thread

standby_side::record_owner threaded_standby::on_record(std::span<const std::byte> record) {
    vgpu_record head;
    std::memcpy(&head, record.data(), sizeof(head));
    if (given_up_) {
        return record_owner::guest;
    }
    if (!taken_over_) {
        runner_.on_record(record);
        return record_owner::side;
    }
    if (head.type == VGPU_RECORD_COMPLETION) {
        vgpu_record_completion c;
        std::memcpy(&c, record.data(), sizeof(c));
        if ((c.event & VGPU_HOST_ID_BIT) != 0) {
            runner_.on_record(record);
            return record_owner::side;
        }
        if (!completions_.tells(head.file, c.event)) {
            completions_.over(head.file, c.event);
            return record_owner::nobody;
        }
    } else if (head.type == VGPU_RECORD_QUEUE_ERROR) {
        vgpu_record_queue_error e;
        std::memcpy(&e, record.data(), sizeof(e));
        if ((e.queue & VGPU_HOST_ID_BIT) != 0) {
            return record_owner::nobody;
        }
    } else if (head.type == VGPU_RECORD_LOST) {
        runner_.on_record(record); // nothing of its log is waited for any more
        completions_.forget(head.file);
    }
    return record_owner::guest;
}

void threaded_standby::told(std::span<const std::byte> record) {
    if (!records_.empty() && record.data() == records_.front().data()) {
        records_.pop_front();
        return;
    }
    vgpu_record_completion c;
    if (record.size() == sizeof(c)) {
        std::memcpy(&c, record.data(), sizeof(c));
        if (c.record.type == VGPU_RECORD_COMPLETION) {
            completions_.over(c.record.file, c.event);
        }
    }
}

std::string threaded_standby::check(const mirror::vm_state& state) const {
    const mirror::standby_status s = status();
    if (state.epoch == 0) {
        return "the primary says that nobody can go on from this checkpoint";
    }
    if (state.instance != s.primary_instance) {
        return "the checkpoint belongs to another log than the one that this standby has";
    }
    if (state.epoch > s.complete_checkpoint) {
        return "the checkpoint is of epoch " + std::to_string(state.epoch) +
               ", and this standby has the log up to epoch " + std::to_string(s.complete_checkpoint);
    }
    if (state.epoch <= s.committed_epoch) {
        return "the checkpoint is of epoch " + std::to_string(state.epoch) + ", and epoch " +
               std::to_string(s.committed_epoch) + " was committed already";
    }
    for (const core::file_checkpoint& f : state.files) {
        for (const auto& r : f.requests) {
            if (r.entries.last > s.received) {
                return "an open request of the checkpoint ends at entry " + std::to_string(r.entries.last) +
                       ", and this standby has the log up to entry " + std::to_string(s.received);
            }
        }
    }
    return {};
}

void threaded_standby::misfit() {
    misfit_ = state_.epoch != 0;
    state_ = {};
}

void threaded_standby::commit(mirror::vm_state state) {
    misfit_ = false;
    state_ = std::move(state);
    loop_.post(
        [this, open = mirror::open_requests(state_), epoch = state_.epoch, instance = state_.instance] {
            step([&](std::uint64_t now_ms) {
                // A new primary may have come since it was checked; then a takeover is refused.
                const mirror::standby_status s = fsm_.status(now_ms);
                if (s.primary_instance == instance && epoch <= s.complete_checkpoint) {
                    fsm_.commit(epoch, now_ms, open);
                }
            });
        });
}

std::string threaded_standby::take_over(core::device& device) {
    std::promise<mirror::standby_status> decided;
    loop_.post([this, &decided] {
        step([this](std::uint64_t now_ms) {
            if (state_.epoch != 0) {
                fsm_.takeover(now_ms, state_.epoch);
            } else {
                fsm_.on_shutdown(now_ms);
            }
        });
        decided.set_value(status());
    });
    const mirror::standby_status s = decided.get_future().get();
    if (s.state != mirror::standby_state::taken_over) {
        given_up_ = true;
        runner_.forget_all(device);
        return misfit_             ? "the VM's last checkpoint does not fit the copy of the GPU"
               : state_.epoch == 0 ? "no checkpoint of the VM was ever committed with the GPU's state"
               : s.why.empty()     ? "this standby has ended"
                                   : s.why;
    }
    taken_over_ = true;
    for (const core::file_checkpoint& f : state_.files) {
        for (const auto& r : f.requests) {
            open_progress_.emplace(r.token, r.progress);
        }
        completions_.waited_for(f.file, f.untold);
        for (const auto& e : f.refused) {
            device.add_refused(f.file, e);
        }
        for (std::size_t at = 0; at < f.records.size();) { // checked when they were decoded
            const auto record = std::span(f.records).subspan(at);
            vgpu_record head;
            std::memcpy(&head, record.data(), sizeof(head));
            records_.emplace_back(record.begin(), record.begin() + head.bytes);
            at += head.bytes;
        }
    }
    for (const core::file_checkpoint& f : device.checkpoint()) {
        device.objects(f.file)->for_each([&](codec::guest_id id, const core::object& o) {
            if (o.kind == VGPU_OBJECT_EVENT && o.event == core::event_state::pending) {
                completions_.executed_before(f.file, id);
            }
        });
    }
    runner_.watch([this](std::uint32_t file, std::span<const std::byte> stream) {
        completions_.executed_before(file, stream);
    });
    tell_completed(device, false);
    return {};
}

void threaded_standby::tell_completed(core::device& device, bool everything) {
    for (const core::file_checkpoint& f : state_.files) {
        for (const auto& done : completions_.completed(f.file, device.objects(f.file), everything)) {
            vgpu_record_completion c{};
            c.record = {VGPU_RECORD_COMPLETION, sizeof(c), done.file, 0};
            c.event = done.event;
            c.status = done.status;
            const auto bytes = std::as_bytes(std::span(&c, 1));
            records_.emplace_back(bytes.begin(), bytes.end());
        }
    }
}

bool threaded_standby::resume(const kagemusha_request& request) {
    const auto open = live_ ? decltype(open_progress_)::node_type() : open_progress_.extract(request.token);
    if (!open) {
        return false;
    }
    open_[request.token] = std::make_unique<mirror::resumed_request>(request, open.mapped());
    return true;
}

void threaded_standby::resume_now(core::device& device, std::uint64_t token,
                                  std::unique_ptr<held_entry> request, std::uint64_t now_ms) {
    auto of_guest = open_.extract(token);
    if (of_guest.empty()) {
        return; // the VM's device does not know of it
    }
    request->guest = std::move(of_guest.mapped());
    runner_.resume(device, std::move(request), now_ms);
}

void threaded_standby::become_live(core::device& device, std::uint64_t now_ms) {
    for (const core::file_checkpoint& f : state_.files) {
        if (f.lost) {
            device.add_lost_file(f.file, false);
        }
    }
    while (!open_.empty()) { // of files that the log does not have
        resume_now(device, open_.begin()->first, std::make_unique<held_entry>(), now_ms);
    }
    runner_.watch({});
    tell_completed(device, true);
    runner_.destroy_agents_objects(device, now_ms);
    for (const core::file_checkpoint& f : state_.files) {
        device.await_events(f.file, completions_.known(f.file));
    }
    live_ = true;
    if (options_.live) {
        options_.live();
    }
}

} // namespace

std::unique_ptr<standby_side> standby_side::create(options o, std::string& error) {
    auto made = std::make_unique<threaded_standby>(std::move(o));
    error = made->start();
    return error.empty() ? std::move(made) : nullptr;
}

} // namespace kagemusha::pair
