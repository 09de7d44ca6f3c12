// SPDX-License-Identifier: GPL-2.0-or-later
// The implementation of standby_driver: one class in two files. standby_driver.cpp: its thread, which receives the
// log; standby_takeover.cpp: checkpoints and the takeover, on the device's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/rate_limiter.hpp"
#include "mirror/standby/completion_filter.hpp"
#include "pair/connection.hpp"
#include "pair/inbox.hpp"
#include "pair/standby_driver.hpp"
#include "pair/standby_hold.hpp"
#include "pair/standby_runner.hpp"

namespace kagemusha::pair {

// From the replication thread to the device's.
struct standby_command {
    enum class kind { run, retry, resume, live, store, forget_all, log };
    kind what;
    std::unique_ptr<held_entry> entry = {};
    kagemusha_log_level level = KAGEMUSHA_LOG_INFO;
    std::string text = {};
    std::uint64_t token = 0;
    std::uint32_t file = 0; // store
    built_pack pack = {};
};

class threaded_standby final : public standby_driver, net::link_sink {
public:
    explicit threaded_standby(options o);
    ~threaded_standby() override;

    std::string start(); // empty, or why not

    // ---- device's thread
    arena& memory() override { return *memory_; }
    int event_fd() const override { return inbox_.fd(); }
    void dispatch(core::device& device, std::uint64_t now_ms) override;
    std::shared_ptr<const void> memory_of(std::uint64_t token) const override {
        return runner_.memory_of(token);
    }
    void on_request_done(std::uint64_t token, const vgpu_response& response) override;

    // ---- device's thread, standby_takeover.cpp
    record_owner on_record(std::span<const std::byte> record) override;
    void told(std::span<const std::byte> record) override;
    std::string check(const mirror::vm_state& state) const override;
    void commit(mirror::vm_state state) override;
    void misfit() override;
    void keep_copy(bool on) override;
    std::string take_over(core::device& device) override;
    bool resume(const kagemusha_request& request) override;
    bool live() const override { return live_; }
    std::span<const std::byte> first_record() const override;
    void amend(std::vector<core::file_checkpoint>& files) const override;
    std::vector<std::uint64_t> forget_guest() override;

    // ---- any thread
    mirror::standby_status status() const override;
    const std::string& address() const override { return address_; }

private:
    // ---- device's thread, standby_takeover.cpp
    void resume_now(core::device& device, std::uint64_t token, std::unique_ptr<held_entry> request,
                    std::uint64_t now_ms);
    void become_live(core::device& device, std::uint64_t now_ms);
    void report_completed(core::device& device, bool everything);

    void tell(run_result r); // device's thread

    // ---- replication thread
    // An event for the state machine and what it wants done because of it. A link may call its sink while an
    // action is carried out on it, so a step can begin within a step: the outer one has the lock.
    template <class F>
    void step(F&& event) {
        if (stepping_)
            return step_locked(event);
        const std::lock_guard lock(mutex_);
        stepping_ = true;
        step_locked(event);
        stepping_ = false;
    }
    template <class F>
    void step_locked(F&& event) {
        const std::uint64_t now = net::event_loop::now_ms();
        event(now);
        if (!acting_) // else an action led here: whoever carries it out goes on
            carry_out(now);
    }
    void carry_out(std::uint64_t now_ms);
    void arm();
    void take_results();
    void on_result(run_result& r, std::uint64_t now_ms);
    void act(const mirror::act_send& a, std::uint64_t now_ms);
    void act(const mirror::act_close_link& a, std::uint64_t now_ms);
    void act(const mirror::act_run& a, std::uint64_t now_ms);
    void act(const mirror::act_skip& a, std::uint64_t now_ms);
    void act(const mirror::act_resume& a, std::uint64_t now_ms);
    void act(const mirror::act_live& a, std::uint64_t now_ms);
    void act(const mirror::act_forget_all& a, std::uint64_t now_ms);
    void act(const mirror::act_store_built& a, std::uint64_t now_ms);
    void act(const mirror::act_standby_state& a, std::uint64_t now_ms);
    void say(kagemusha_log_level level, std::string text);
    void shut_down();
    void on_stranger(const std::string& line);
    net::link_sink* accept(std::unique_ptr<net::link> l, const std::string& peer);

    // net::link_sink
    void on_connected(const std::string& peer) override;
    net::receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) override;
    void on_message(const mirror::message& m) override;
    void on_sent(std::uint64_t) override {}
    void on_closed(const std::string& why) override;
    void broken(const std::string& what);

    const options options_;
    net::event_loop loop_;
    std::unique_ptr<arena> memory_;
    inbox<standby_command> inbox_;            // at most what the state machine holds, and lines of the log
    std::unique_ptr<net::listener> listener_; // replication thread, once that runs; null after a takeover
    std::string address_;
    std::thread thread_;

    // device's thread
    standby_runner runner_;
    std::vector<standby_command> commands_;
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

} // namespace kagemusha::pair
