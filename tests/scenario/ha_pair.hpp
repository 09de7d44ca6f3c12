// SPDX-License-Identifier: GPL-2.0-or-later
// ha_pair: two hosts with the supervisors' state machines, unchanged, and what lies between them: a
// connection, an arbiter, marks on disks, gates, time. Nothing happens by itself; whatever a state machine
// decides becomes a line of text.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "control/ha/primary_fsm.hpp"
#include "control/ha/standby_fsm.hpp"
#include "scenario/ha_arbiter.hpp"

namespace kagemusha::scenario {

struct pair_options {
    bool fences = false, fence_check = false, disks = false, has_standby = true, overwrite = false,
         anew = false;
    bool older = false; // each takes the other for one of the release before
    ha::loss_policy policy = ha::loss_policy::degraded;
    std::string standby_machine = "pc"; // the primary's is "pc"
    std::array<ha::disk_mark, 2> images;
};

class ha_pair {
public:
    enum class disk_mood { fine, slow, full };

    explicit ha_pair(const pair_options& options);

    void start_primary(bool anew);
    void start_standby(bool overwrite);
    // A supervisor dies, and the kernel ends its connection and its QEMU; or its host loses its power.
    void end(int host, bool power_lost);
    void freeze(int host, bool frozen) { hosts_[at(host)].frozen = frozen; }

    // ---- the connection
    void connect(); // what the primary wants, if it does
    void cut(bool primary_notices, bool standby_notices);
    void deliver(std::uint64_t most = UINT64_MAX);
    void lose(int host) { inbox_of(1 - host).clear(); } // what is under way from it
    std::array<bool, 2> swallowed{};                    // what this host says from now on
    bool parted = false;                                // there is no way from one to the other

    // ---- the arbiter and the disks
    ha_arbiter& arbiter() { return arbiter_; }
    void answer(int host);
    void command_ended(int host, const std::string& problem);
    void marked(int host, const std::string& problem);
    void set_disk(int host, disk_mood mood) { hosts_[at(host)].disk = mood; }

    // ---- time
    void settle();                                   // everything that happens without it
    void pass(std::uint64_t ms, bool all_else_goes); // else nothing arrives, and nobody answers
    std::uint64_t now() const { return now_; }

    ha::primary_fsm* primary() { return primary_ ? &*primary_ : nullptr; }
    ha::standby_fsm* standby() { return standby_ ? &*standby_ : nullptr; }
    void drain(); // what they decided

    void say(const std::string& line);
    void say_status();
    std::string take_text(); // what was said since

private:
    struct closed {};
    using item = std::variant<mirror::message, closed>;
    struct host {
        std::string process; // its supervisor's, as the arbiter knows it
        unsigned processes = 0;
        bool frozen = false, link = false, extended = false;
        std::uint64_t gate = 0;
        std::deque<item> inbox;
        std::deque<ha::disk_mark> marks;
        disk_mood disk = disk_mood::fine;
        ha::disk_mark image;
    };
    static std::size_t at(int host) { return static_cast<std::size_t>(host); }
    std::deque<item>& inbox_of(int host) { return hosts_[at(host)].inbox; }
    bool is_gone(int host) const { return host == 0 ? !primary_ : !standby_ && !survivor_; }
    ha::primary_config primary_config_of(int host) const;

    // What was decided.
    template <class Action>
    void carry_out(int host, const char* name, Action& action);
    void do_on(int, const auto&) {} // nothing but a line
    void do_on(int host, const ha::act_ask& a) { ask(host, a.request); }
    void do_on(int host, const ha::act_standby_ask& a) { ask(host, a.request); }
    void do_on(int host, const ha::act_send& a) { send(host, a.what); }
    void do_on(int host, const ha::act_standby_send& a) { send(host, a.what); }
    void do_on(int host, const ha::act_close_link&) { hang_up(host); }
    void do_on(int host, const ha::act_standby_close_link&) { hang_up(host); }
    void do_on(int host, const ha::act_mark& a) { mark(host, a.mark); }
    void do_on(int host, const ha::act_standby_mark& a) { mark(host, a.mark); }
    void do_on(int, const ha::act_connect&) { connecting_ = true; }
    void do_on(int, const ha::act_running& a) { running_ = a; }
    void ask(int host, const ha::arbiter_request& q);
    void send(int host, mirror::message m);
    void hang_up(int host);
    void mark(int host, const ha::disk_mark& mark);
    void open_gate(int host, const char* name, std::uint64_t until);

    void arrive(int host, const item& what);
    void answered(int host, const std::optional<ha::arbiter_answer>& a);
    bool write_marks();
    void tick();
    void look_at_gates();
    std::uint64_t next_event() const;

    pair_options options_;
    std::uint64_t now_ = 1000, said_at_ = 1000;
    std::array<host, 2> hosts_;
    ha_arbiter arbiter_;
    std::optional<ha::primary_fsm> primary_, survivor_; // who took over goes on beside the standby's disks
    std::optional<ha::standby_fsm> standby_;
    std::optional<ha::act_running> running_;
    bool connecting_ = false, connected_ = false, routine_ = false;
    std::array<std::deque<std::string>, 2> unreported_asks_; // of all under way; empty: it was told
    std::vector<std::string> lines_;
};

} // namespace kagemusha::scenario
