// SPDX-License-Identifier: GPL-2.0-or-later
#include "pair/primary_driver.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "mirror/primary/primary_text.hpp"
#include "pair/compress.hpp"
#include "pair/connection.hpp"
#include "pair/inbox.hpp"

namespace kagemusha::pair {

namespace {

using net::event_loop;

using clock = std::chrono::steady_clock;

// How long the replication thread spins before it polls, where there are enough processors for that.
constexpr std::chrono::microseconds awake(100);
constexpr unsigned many_processors = 8;

// Then, for so long, it looks every poll_ms, because waking it takes the device's thread longer than all else
// that a request costs it. A standby that is so much later is no matter against an epoch.
constexpr std::chrono::milliseconds polling(20);
constexpr std::uint64_t poll_ms = 1;

constexpr std::uint64_t populate_step_bytes = std::uint64_t{8} << 20;

struct command {
    enum class kind { start_sync, stop, congestion, digest_result, content_released, room, log };
    kind what;
    bool on = false;
    log_sequence sequence = 0;
    std::vector<std::uint64_t> different = {};
    kagemusha_log_level level = KAGEMUSHA_LOG_INFO;
    std::string text = {};
};

class threaded_primary final : public primary_driver, net::link_sink {
public:
    explicit threaded_primary(options o) : options_(std::move(o)) {}

    ~threaded_primary() override {
        if (thread_.joinable()) {
            loop_.post([this] { shut_down(); });
            thread_.join();
            {
                const std::lock_guard lock(copy_mutex_);
                copy_ending_ = true;
            }
            copy_wanted_.notify_one();
            copier_.join();
        }
        connections_.clear();
    }

    std::string start() {
        options_.link.note = [this](const std::string& line) {
            say(KAGEMUSHA_LOG_INFO, "replication: " + line);
        };
        std::string error;
        memory_ = arena::create("kagemusha-agent", options_.agent_bytes, options_.agent_region, error);
        if (!memory_)
            return error;
        // The log may exceed its bound by a request; what finds no room here goes to the heap.
        copies_ = arena::create_private(options_.fsm.log_bytes, error);
        if (!copies_)
            return error;
        log_.emplace(op_log::bounds{options_.fsm.log_bytes, options_.fsm.log_entries},
                     op_log::callbacks{
                         [this] { loop_.post([this] { take_events(); }); },
                         [this](log_sequence n) { inbox_.push({command::kind::content_released, false, n}); },
                         [this] { inbox_.push({command::kind::room}); }, [this] { wake_copier(); }},
                     copies_.get());
        if (!inbox_.ok())
            return "no descriptor is left for replication; raise the limit of open files";
        thread_ = std::thread([this] { loop_.run(); });
        copier_ = std::thread([this] { copy(); });
        return {};
    }

    // ---- device's thread
    op_log& log() override { return *log_; }
    arena& memory() override { return *memory_; }
    int event_fd() const override { return inbox_.fd(); }
    bool congested() const override { return held_back_ || log_->congested(); }
    bool replicate_to(const std::string& address) override {
        {
            const std::lock_guard lock(mutex_);
            if (fsm_ && fsm_->status(event_loop::now_ms()).state != mirror::primary_state::disconnected)
                return false;
            options_.link.address = address;
        }
        loop_.post([this] {
            step([this](std::uint64_t now_ms) {
                if (!fsm_) {
                    fsm_.emplace(options_.fsm, now_ms);
                    fsm_->use_checkpoints(checkpoints_, now_ms);
                }
            });
        });
        return true;
    }
    void use_checkpoints(bool on) override {
        loop_.post([this, on] {
            checkpoints_ = on;
            step([&](std::uint64_t now_ms) {
                if (fsm_)
                    fsm_->use_checkpoints(on, now_ms);
            });
        });
    }
    void begin_close_epoch() override;
    closed close_epoch() override;
    int wait_epoch(std::uint64_t epoch, std::uint32_t wait_ms, std::string& why) override;
    void end_waits() override {
        const std::lock_guard lock(mutex_);
        waits_ended_ = true;
        progress_.notify_all();
    }

    void dispatch(mirror::primary_shadow& mirror) override;

    // ---- any thread
    mirror::primary_status status() const override {
        const std::lock_guard lock(mutex_);
        if (!fsm_) {
            mirror::primary_status none;
            none.degraded = "no standby was named";
            return none;
        }
        mirror::primary_status s = fsm_->status(event_loop::now_ms());
        s.sent_bytes -= saved_bytes_;
        return s;
    }
    std::uint64_t compression_saved_bytes() const override {
        const std::lock_guard lock(mutex_);
        return saved_bytes_;
    }
    std::string address() const override {
        const std::lock_guard lock(mutex_);
        return options_.link.address;
    }

private:
    // ---- replication thread
    // An event for the state machine and what it wants done because of it. A link may call its sink while an
    // action is carried out on it, so a step can begin within a step: the outer one has the lock.
    template <class F>
    void step(F&& event) {
        if (stepping_)
            return step_locked(event);
        {
            const std::lock_guard lock(mutex_);
            stepping_ = true;
            step_locked(event);
            stepping_ = false;
        }
        if (std::exchange(epoch_wanted_, false))
            options_.epoch_wanted();
    }
    template <class F>
    void step_locked(F&& event) {
        const std::uint64_t now = event_loop::now_ms();
        event(now);
        if (!fsm_ || acting_)
            return; // an action led here: whoever carries it out goes on
        acting_ = true;
        mirror::primary_action a;
        while (fsm_->next(a))
            std::visit([&](auto& x) { act(x, now); }, a);
        acting_ = false;
        connections_.sweep(now);
        memory_->trim(now);
        copies_->trim(now);
        arm();
        if (waiting_)
            progress_.notify_all();
    }

    void arm() {
        const std::uint64_t at = std::min({fsm_->next_tick_ms(), connections_.deadline_ms(),
                                           memory_->trim_at_ms(), copies_->trim_at_ms(), poll_at_ms_});
        if (at == armed_ms_)
            return;
        armed_ms_ = at;
        loop_.call_at(at, [this] {
            armed_ms_ = UINT64_MAX;
            if (event_loop::now_ms() >= poll_at_ms_)
                report_events();
            step([this](std::uint64_t now_ms) { fsm_->on_tick(now_ms); });
            if (ending_ && connections_.all_said())
                loop_.stop();
        });
    }

    void take_events() {
        poll_until_ = clock::now() + polling;
        stay_awake();
        report_events();
    }
    void report_events() {
        const auto now = clock::now();
        const bool polls = !awake_ && fsm_ && now < poll_until_;
        poll_at_ms_ = polls ? event_loop::now_ms() + poll_ms : UINT64_MAX;
        log_->take_events(events_, awake_  ? op_log::attention::spins
                                   : polls ? op_log::attention::polls
                                           : op_log::attention::blocks);
        if (!events_.empty())
            poll_until_ = now + polling;
        step([this](std::uint64_t now_ms) {
            if (!fsm_)
                return;
            for (log_event& e : events_)
                tell(e, now_ms);
        });
    }

    // After a request of the guest the next one is soon there, or not. A loop that has a task does not sleep,
    // so nobody has to wake it: a third of what a standby added to a small request.
    void stay_awake() {
        static const bool processors_abound = std::thread::hardware_concurrency() >= many_processors;
        if (!processors_abound)
            return;
        awake_until_ = clock::now() + awake;
        if (!std::exchange(awake_, true))
            loop_.post([this] { look_again(); });
    }
    void look_again() {
        const auto now = clock::now();
        if (log_->has_events())
            awake_until_ = now + awake;
        awake_ = now < awake_until_;
        if (!awake_ || log_->has_events())
            report_events(); // the last look says that this thread looks no longer
        if (awake_)
            loop_.post([this] { look_again(); });
    }

    void tell(log_event& e, std::uint64_t now_ms) {
        switch (e.what) {
        case log_event::kind::entry:
            return fsm_->on_entry(e.meta, now_ms);
        case log_event::kind::outcome:
            return fsm_->on_outcome(e.sequence, false, e.result);
        case log_event::kind::cancel:
            return fsm_->on_outcome(e.sequence, true, 0);
        case log_event::kind::late_content:
            return fsm_->on_late_content(e.sequence, e.payload, e.bytes);
        case log_event::kind::digests:
            return fsm_->on_digests(e.sequence, std::move(e.hashes), now_ms);
        case log_event::kind::built:
            packs_.push_back(std::move(e.pack));
            return fsm_->on_built(e.meta.file, e.bytes);
        case log_event::kind::synced:
            return fsm_->on_synced(e.sequence);
        case log_event::kind::failed:
            return fsm_->on_mirror_failed(e.text, now_ms);
        case log_event::kind::stopped:
            log_->drop(UINT64_MAX); // what came after the state machine had dropped everything
            return fsm_->on_mirror_stopped(now_ms);
        }
    }

    void act(const mirror::act_connect&, std::uint64_t) {
        connection& c = connections_.begin(*this);
        c.link = net::connect(loop_, options_.link, c);
    }
    void act(const mirror::act_close_link&, std::uint64_t now_ms) { connections_.give_up(now_ms); }
    void act(const mirror::act_send& a, std::uint64_t) {
        if (net::link* l = link())
            l->send(a.what);
    }
    void act(const mirror::act_send_entries& a, std::uint64_t) {
        log_sequence first = a.first;
        outgoing o;
        while (first <= a.last && log_->take_entries(first, a.last, o))
            send(o);
    }
    void act(const mirror::act_send_content& a, std::uint64_t) {
        outgoing o;
        if (log_->take_content(a.what, o)) {
            if (options_.fsm.compression && standby_decompresses_) {
                compress(o);
                const auto& c = std::get<mirror::content>(o.what);
                saved_bytes_ += c.compressed_bytes == 0 ? 0 : c.bytes - c.compressed_bytes;
            }
            send(o);
        }
    }
    void act(const mirror::act_drop_log& a, std::uint64_t) { log_->drop(a.up_to); }
    void act(const mirror::act_drop_content& a, std::uint64_t) { log_->drop_content(a.sequence); }
    void act(const mirror::act_start_sync& a, std::uint64_t) {
        populating_ = true;
        built_wanted_ = a.built;
        ++populate_run_;
        populate(0);
    }
    void act(const mirror::act_stop_mirror&, std::uint64_t) {
        populating_ = false;
        inbox_.push({command::kind::stop});
    }
    // The agents' reads must find pages: a GPU's driver that has to wait for them makes the guest's commands
    // wait too. Step by step, so that heartbeats go on.
    void populate(std::uint64_t from) {
        if (!populating_)
            return; // it was stopped
        if (from >= memory_->capacity()) {
            populating_ = false;
            inbox_.push({command::kind::start_sync, built_wanted_});
            return;
        }
        memory_->populate(from, populate_step_bytes);
        loop_.post([this, from, run = populate_run_] {
            const std::lock_guard lock(mutex_);
            if (run == populate_run_)
                populate(from + populate_step_bytes);
        });
    }
    void act(const mirror::act_epoch_wanted&, std::uint64_t) {
        epoch_wanted_ = options_.epoch_wanted != nullptr; // outside the lock: it is somebody else's code
    }
    void act(const mirror::act_congestion& a, std::uint64_t) {
        inbox_.push({command::kind::congestion, a.on});
    }
    void act(mirror::act_digest_result& a, std::uint64_t) {
        inbox_.push({command::kind::digest_result, false, a.what.sequence, std::move(a.what.different)});
    }
    void act(const mirror::act_lagging& a, std::uint64_t) {
        say(a.what != mirror::lag::over ? KAGEMUSHA_LOG_WARNING : KAGEMUSHA_LOG_INFO,
            "replication: " + mirror::sentence(a));
    }
    void act(const mirror::act_built& a, std::uint64_t) {
        if (outgoing o{a.what, {*packs_.front()}, packs_.front()}; a.send)
            send(o);
        packs_.pop_front();
    }
    void act(const mirror::act_state& a, std::uint64_t) {
        // Each try to reach a standby that is not there says the same.
        if (std::exchange(said_, a.degraded) == a.degraded && a.state != mirror::primary_state::protecting)
            return;
        if (!a.degraded.empty()) {
            say(KAGEMUSHA_LOG_WARNING,
                "replication: degraded, the VM runs without protection: " + a.degraded);
        } else if (a.state == mirror::primary_state::protecting) {
            say(KAGEMUSHA_LOG_INFO, "replication: the standby at " + options_.link.address +
                                        " has a complete copy of the GPU's state");
        }
    }

    net::link* link() const { return connections_.current() ? connections_.current()->link.get() : nullptr; }

    void send(outgoing& o) {
        if (net::link* l = link())
            l->send(o.what, std::move(o.payload), std::move(o.keep));
        o = {};
    }

    void say(kagemusha_log_level level, std::string text) {
        inbox_.push({command::kind::log, false, 0, {}, level, std::move(text)});
    }

    void shut_down() {
        if (fsm_) {
            report_events(); // what it was not woken for
            step([this](std::uint64_t now_ms) { fsm_->on_shutdown(now_ms); });
            step([this](std::uint64_t now_ms) { connections_.give_up(now_ms); });
        }
        ending_ = true;
        if (!fsm_ || connections_.all_said())
            loop_.stop();
    }

    // net::link_sink
    void on_connected(const std::string&) override {
        step([this](std::uint64_t now_ms) { fsm_->on_connected(now_ms); });
    }
    net::receive_buffers on_payload(const mirror::message&, std::uint64_t) override {
        return {}; // a standby sends no bytes
    }
    void on_message(const mirror::message& m) override {
        if (const auto* h = std::get_if<mirror::hello>(&m))
            standby_decompresses_ = std::count(h->capabilities.begin(), h->capabilities.end(), "zstd") != 0;
        step([&](std::uint64_t now_ms) { fsm_->on_message(m, now_ms); });
    }
    void on_sent(std::uint64_t) override {
        const net::link* l = link();
        if (l)
            step([&](std::uint64_t) { fsm_->on_sent(l->queued_bytes()); });
    }
    void on_closed(const std::string& why) override {
        step([&](std::uint64_t now_ms) {
            connections_.give_up(now_ms);
            fsm_->on_closed(why, now_ms);
        });
    }

    // ---- the copying thread
    void copy() {
        for (;;) {
            while (log_->copy_ahead()) {
            }
            std::unique_lock lock(copy_mutex_);
            copy_wanted_.wait(lock, [this] { return copy_awake_ || copy_ending_; });
            copy_awake_ = false;
            if (copy_ending_)
                return;
        }
    }
    void wake_copier() {
        {
            const std::lock_guard lock(copy_mutex_);
            copy_awake_ = true;
        }
        copy_wanted_.notify_one();
    }

    options options_;
    net::event_loop loop_;
    std::unique_ptr<arena> memory_, copies_;
    std::optional<op_log> log_; // start() makes it
    inbox<command> inbox_; // at most: one per entry that the link has, and one per message of the standby
    std::thread thread_, copier_;

    std::mutex copy_mutex_;
    std::condition_variable copy_wanted_;
    bool copy_awake_ = false, copy_ending_ = false;

    // device's thread
    std::vector<command> commands_;
    bool held_back_ = false;
    std::future<closed> closing_; // begin_close_epoch() was called, and close_epoch() not yet

    // replication thread; what status() needs is behind the lock
    mutable std::mutex mutex_;
    bool stepping_ = false; // step() has the lock
    bool epoch_wanted_ = false;
    std::optional<mirror::replication_primary_fsm> fsm_;
    bool acting_ = false, ending_ = false, standby_decompresses_ = false;
    bool checkpoints_ = false; // are wanted
    bool waiting_ = false;     // somebody waits for progress
    bool waits_ended_ = false; // nobody does any more
    std::condition_variable progress_;
    bool populating_ = false, built_wanted_ = false; // a state transfer begins when that is done
    std::uint64_t populate_run_ = 0;
    std::uint64_t armed_ms_ = UINT64_MAX;
    std::uint64_t saved_bytes_ = 0; // by compression
    std::vector<log_event> events_;
    std::deque<std::shared_ptr<const std::vector<std::byte>>> packs_; // told, without act_built
    clock::time_point awake_until_{}, poll_until_{};
    bool awake_ = false;
    std::uint64_t poll_at_ms_ = UINT64_MAX;
    std::string said_;
    connections connections_;
};

void threaded_primary::begin_close_epoch() {
    const auto result = std::make_shared<std::promise<closed>>();
    closing_ = result->get_future();
    loop_.post([this, result] {
        take_events(); // the device is stopped, so that this is all
        closed c;
        step([&](std::uint64_t now_ms) {
            if (!fsm_) {
                c.why = "no standby was named";
                return;
            }
            const mirror::primary_status s = fsm_->status(now_ms);
            if (s.state != mirror::primary_state::protecting) {
                c.why = s.degraded.empty() ? "the standby has no complete copy yet" : s.degraded;
            } else if (!s.checkpoints) {
                c.why = "epochs are not closed by checkpoints";
            } else if (s.epoch > s.committed_epoch + mirror::max_pending_markers / 2) {
                c.why = "the standby commits no epoch any more";
            } else {
                c.checkpoints_from = s.checkpoints_from;
                c.epoch = fsm_->close_epoch(now_ms);
            }
        });
        result->set_value(std::move(c));
    });
}

primary_driver::closed threaded_primary::close_epoch() {
    if (!closing_.valid())
        begin_close_epoch();
    return closing_.get();
}

int threaded_primary::wait_epoch(std::uint64_t epoch, std::uint32_t wait_ms, std::string& why) {
    std::unique_lock lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
    mirror::primary_status s;
    waiting_ = true;
    const bool decided = progress_.wait_until(lock, until, [&] {
        s = fsm_->status(event_loop::now_ms());
        return waits_ended_ || s.complete_checkpoint >= epoch || !s.checkpoints ||
               s.state != mirror::primary_state::protecting;
    });
    waiting_ = false;
    if (waits_ended_) {
        why = "this device ends";
        return -ECANCELED;
    }
    if (s.complete_checkpoint >= epoch)
        return 0;
    if (decided && s.state == mirror::primary_state::protecting) {
        why = "epochs are not closed by checkpoints any more";
        return -EPROTO;
    }
    why = decided ? "the standby is gone: " + s.degraded
                  : "the standby has not received the log within " + std::to_string(wait_ms) + " ms (" +
                        std::to_string(s.log_bytes) + " bytes wait)";
    return decided ? -ENOTCONN : -ETIMEDOUT;
}

void threaded_primary::dispatch(mirror::primary_shadow& mirror) {
    inbox_.take(commands_);
    for (const command& c : commands_) {
        switch (c.what) {
        case command::kind::start_sync:
            mirror.start_sync(c.on);
            break;
        case command::kind::stop:
            mirror.stop();
            log_->stopped();
            break;
        case command::kind::congestion:
            held_back_ = c.on;
            [[fallthrough]];
        case command::kind::room:
            if (!c.on && options_.room)
                options_.room();
            break;
        case command::kind::digest_result:
            mirror.on_digest_result(c.sequence, c.different);
            break;
        case command::kind::content_released:
            mirror.on_content_released(c.sequence);
            break;
        case command::kind::log:
            options_.log(c.level, c.text);
            break;
        }
    }
}

} // namespace

std::unique_ptr<primary_driver> primary_driver::create(options o, std::string& error) {
    const std::string address = std::exchange(o.link.address, {});
    auto made = std::make_unique<threaded_primary>(std::move(o));
    error = made->start();
    if (!error.empty())
        return nullptr;
    if (!address.empty())
        made->replicate_to(address);
    return made;
}

} // namespace kagemusha::pair
