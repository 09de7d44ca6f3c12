// SPDX-License-Identifier: GPL-2.0-or-later
// A supervisor's process: `kage run` or `kage standby`. The state machines in it are the real ones; what is
// around them does as control/supervise does: the supervisor_loop's thread carries out at once, the main thread works
// off its orders one after the other (QEMU's and the marks), and the pilot looks at QEMU now and then.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "control/ha/primary_fsm.hpp"
#include "control/ha/standby_fsm.hpp"
#include "world/events.hpp"
#include "world/options.hpp"

namespace kagemusha::world {

class world;
class host;
struct unit;

// How long checkpoints may make no progress before their standby is given up.
constexpr std::uint32_t watchdog_ms = 3000;

class supervisor {
public:
    supervisor(world& w, host& h) : w_(w), host_(h) {}

    void start(const unit& how);
    void kill(const char* why); // SIGKILL; the kernel ends its QEMU
    void end_with_host();

    bool alive() const { return alive_; }
    std::uint32_t generation() const { return generation_; }
    bool frozen() const;
    time_us thaws() const;
    time_us frozen_until = 0;

    // ---- people (kage stop, switchover, protect)
    void stop();
    bool switch_over();
    void protect(std::uint8_t standby);

    // ---- for people and checkers (kage status)
    const ha::primary_fsm* primary() const { return primary_ ? &*primary_ : nullptr; }
    const ha::standby_fsm* standby() const { return standby_ ? &*standby_ : nullptr; }
    std::int8_t standby_host() const { return peer_; }
    bool is_protecting() const { return primary_ && primary_->state() == ha::primary_state::protecting; }
    bool gate_is_open() const;
    std::uint64_t identity() const { return identity_; }
    bool had_vm() const { return had_vm_; } // this process, or the one that has ended
    const std::string& why_it_ended() const { return ended_why_; }

    // ---- the network's
    bool takes_connection() const { return alive_ && standby_ && line_ < 0; }
    void connected(std::uint32_t id, int end);
    void connect_failed();
    std::uint32_t attempt() const { return attempt_; } // to connect, the present one
    void arrived(std::uint32_t id, const mirror::message& m);
    void closed(std::uint32_t id, const std::string& why);

    // ---- the arbiter's
    void answered(const ha::arbiter_answer& answer);

    // ---- QEMU's
    void qemu_ready();
    void qemu_ended();
    void qemu_running();
    void takeover_failed(const std::string& why);
    void replication_lost(const std::string& why);
    void checkpoint_committed();
    void checkpoint_loaded();
    void look_soon();
    void watch_frozen_qemu();

    void happen(const event& e);

private:
    template <class F>
    void tell(F&& f) { // a state machine, then do what it decided
        f();
        settle();
    }
    void settle();
    void order(time_us takes, std::function<void()> what);
    void next_order();
    void order_mark(const ha::disk_mark& m, bool flush);
    std::string mark(ha::disk_mark m, bool flush = false); // a sentence when it failed
    void tick();
    static constexpr std::uint64_t periodic_look = 0, look_once = 1, look_for_ping = 2;
    void look(std::uint64_t what);
    ha::primary_config config_of_primary() const;
    void finish(bool in_order, const std::string& why);
    void exit(bool in_order, const std::string& why);
    void send(const mirror::message& m);
    void close_link();

    void carry_out(ha::act_state& a);
    void carry_out(ha::act_ask& a);
    void carry_out(ha::act_gate& a);
    void carry_out(ha::act_connect& a);
    void carry_out(ha::act_close_link& a);
    void carry_out(ha::act_send& a);
    void carry_out(ha::act_start_qemu& a);
    void carry_out(ha::act_replicate& a);
    void carry_out(ha::act_go_on_alone& a);
    void carry_out(ha::act_report_gpu_failure& a);
    void carry_out(ha::act_kill_qemu& a);
    void carry_out(ha::act_ended& a);
    void carry_out(ha::act_mark& a);
    void carry_out(ha::act_standby_state& a);
    void carry_out(ha::act_standby_ask& a);
    void carry_out(ha::act_standby_send& a);
    void carry_out(ha::act_standby_close_link& a);
    void carry_out(ha::act_standby_mark& a);
    void carry_out(ha::act_standby_use_files& a);
    void carry_out(ha::act_take_over& a);
    void carry_out(ha::act_restart_qemu& a);
    void carry_out(ha::act_running& a);
    void carry_out(ha::act_standby_ended& a);

    world& w_;
    host& host_;
    bool alive_ = false;
    std::uint32_t generation_ = 0;
    std::uint64_t qemu_ = 1, died_ = 0; // its number, as a standby counts them; of the last one that died
    std::uint64_t identity_ = 0;        // random, of this process: the arbiter's owner
    std::optional<ha::primary_fsm> primary_, successor_;
    std::optional<ha::standby_fsm> standby_;
    bool settling_ = false;
    std::int64_t line_ = -1; // the present connection
    int line_end_ = 0;
    bool line_speaks_version_1_ = false; // its hello said no newer capability
    std::uint32_t attempt_ = 0;
    std::int8_t peer_ = -1;
    std::uint64_t gate_until_ms_ = 0;
    time_us tick_at_ = never;

    struct main_order {
        time_us takes;
        std::function<void()> what;
    };
    std::deque<main_order> orders_;
    bool main_busy_ = false;

    bool had_vm_ = false, quitting_ = false, in_order_ = false;
    bool expects_death_ = false; // of a QEMU that it replaces itself
    std::string killed_why_, ended_why_;
    std::uint64_t replication_ = 0; // of which the pilot reports
    bool reported_protecting_ = false, reported_lost_ = false, reported_copy_lost_ = false, looks_ = false;
    bool anew_ = false, connected_before_ = false;
};

} // namespace kagemusha::world
