// SPDX-License-Identifier: GPL-2.0-or-later
#include "scenario/ha_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "scenario/ha_text.hpp"

namespace kagemusha::scenario {

using namespace ha;
using kind = arbiter_request::kind;
using verdict = arbiter_answer::verdict;

namespace {

constexpr const char* at_time = "@ ";
constexpr const char* no_way = "no way to the other host";

// The first 15 digits of an instance are zeroes.
std::string with_short_instances(std::string text) {
    static const std::string zeroes(15, '0');
    for (auto at = text.find(zeroes); at != std::string::npos; at = text.find(zeroes, at))
        text.erase(at, zeroes.size());
    return text;
}

// What happens at one time.
struct moment {
    std::string time; // a line; empty: that of the command
    std::vector<std::string> lines;
};

// What is repeated moment after moment is told once.
std::string without_repetitions(const std::vector<moment>& moments) {
    std::string out;
    for (std::size_t i = 0; i < moments.size();) {
        out += moments[i].time;
        for (const auto& line : moments[i].lines)
            out += line + "\n";
        const auto first = i++;
        while (i < moments.size() && moments[i].lines == moments[first].lines)
            ++i;
        if (i - first > 1)
            out +=
                fmt::format("    … and {} times more, the last one {}", i - first - 1, moments[i - 1].time);
    }
    return out;
}

} // namespace

ha_pair::ha_pair(const pair_options& options)
    : options_(options)
    , arbiter_(options.fences, options.fence_check, [this](const std::string& line) { say(line); }) {
    for (std::size_t i = 0; i < 2; ++i)
        hosts_[i].image = options.images[i];
}

// ---- text

void ha_pair::say(const std::string& line) {
    if (now_ != said_at_)
        lines_.push_back(fmt::format("{}{} ms", at_time, now_));
    said_at_ = now_;
    lines_.push_back(with_short_instances(line));
}

std::string ha_pair::take_text() {
    for (int i = 0; i < 2; ++i)
        if (auto& h = hosts_[at(i)]; std::exchange(h.extended, false) && h.gate > now_)
            say(fmt::format("{}: the gate is open until {}", i == 0 ? "primary" : "survivor", h.gate));
    std::vector<moment> moments;
    for (auto& line : lines_) {
        const bool is_time = line.starts_with(at_time);
        if (is_time || moments.empty())
            moments.emplace_back();
        if (is_time)
            moments.back().time = line + "\n";
        else
            moments.back().lines.push_back(std::move(line));
    }
    lines_.clear();
    return without_repetitions(moments);
}

void ha_pair::say_status() {
    const auto gate = [&](int i) {
        const auto until = hosts_[at(i)].gate;
        return until <= now_         ? std::string("gate closed")
               : until == UINT64_MAX ? std::string("gate open for good")
                                     : fmt::format("gate open until {}", until);
    };
    const auto reason = [](const char* name, const std::string& why) {
        return why.empty() ? std::string() : fmt::format("\n    {}{}", name, quoted(why));
    };
    const auto of_primary = [&](const char* name, const primary_fsm& p, int i) {
        say(fmt::format("{}: {}, term {}, {}{}{}{}", name, ha::to_text(p.state()), p.term(), gate(i),
                        reason("degraded", p.degraded()), reason("waiting for", p.waiting_for(now_)),
                        reason("standby problem", p.standby_problem())));
    };
    said_at_ = now_;
    say(fmt::format("time: {} ms", now_));
    if (primary_)
        of_primary("primary", *primary_, 0);
    else
        say("primary: ended");
    if (survivor_)
        of_primary("survivor", *survivor_, 1);
    else if (standby_)
        say(fmt::format("standby: {}, term {}{}", ha::to_text(standby_->state()), standby_->term(),
                        reason("waiting for", standby_->waiting_for())));
    else
        say("standby: ended");
    if (options_.disks)
        say(fmt::format("disks: {} and {}", ha::to_text(hosts_[0].image), ha::to_text(hosts_[1].image)));
    say("record: " + arbiter_.text(now_));
}

// ---- supervisors

primary_config ha_pair::primary_config_of(int i) const {
    primary_config c;
    c.vm = "vm";
    c.description = "d";
    c.parts = {{mirror::part_rule::equal, "machine", "pc"}};
    c.instance = static_cast<std::uint64_t>(i == 0 ? 10 : 11) + 2 * (hosts_[at(i)].processes - 1);
    c.heartbeat_ms = 100;
    c.heartbeat_budget_ms = 500;
    c.renew_ms = 1000;
    c.policy = options_.policy;
    c.has_standby = i == 0 && options_.has_standby;
    c.disks = options_.disks;
    c.mark = hosts_[at(i)].image;
    c.image = "vm.img";
    c.shared_record = !options_.fences;
    return c;
}

void ha_pair::start_primary(bool anew) {
    auto& h = hosts_[0];
    h.process = fmt::format("primary{}", ++h.processes == 1 ? "" : fmt::format(" {}", h.processes));
    auto c = primary_config_of(0);
    c.anew = anew;
    primary_.emplace(std::move(c));
    primary_->start(now_);
}

void ha_pair::start_standby(bool overwrite) {
    auto& h = hosts_[1];
    h.process = fmt::format("standby{}", ++h.processes == 1 ? "" : fmt::format(" {}", h.processes));
    h.image = options_.disks ? waits(h.image) : h.image;
    const auto p = primary_config_of(1);
    standby_config c;
    c.vm = p.vm;
    c.description = p.description;
    c.parts = {{mirror::part_rule::equal, "machine", options_.standby_machine}};
    c.instance = p.instance;
    c.heartbeat_budget_ms = p.heartbeat_budget_ms;
    c.retry_ms = 1000;
    c.shared_record = p.shared_record;
    c.disks = p.disks;
    c.mark = p.mark;
    c.overwrite = overwrite;
    standby_.emplace(std::move(c));
}

void ha_pair::end(int i, bool power_lost) {
    auto& h = hosts_[at(i)];
    if (power_lost)
        connected_ = false;
    else
        hang_up(i);
    if (i == 0) {
        primary_.reset();
        connecting_ = false;
    } else {
        standby_.reset();
        survivor_.reset();
    }
    h.link = h.frozen = h.extended = false;
    h.gate = 0;
    h.inbox.clear();
    h.marks.clear();
    arbiter_.process_ended(i, power_lost);
    if (power_lost)
        unreported_asks_[at(i)].clear();
}

// ---- what was decided

template <class Action>
void ha_pair::carry_out(int host, const char* name, Action& action) {
    bool told = true; // heartbeats come all the time; gates and what is asked have lines of their own
    std::visit(
        [&](const auto& a) {
            using type = std::decay_t<decltype(a)>;
            if constexpr (std::is_same_v<type, act_gate>) {
                told = false;
                open_gate(host, name, a.until_ms);
            } else if constexpr (std::is_same_v<type, act_send> || std::is_same_v<type, act_standby_send>) {
                told = !std::holds_alternative<mirror::heartbeat>(a.what);
            } else if constexpr (std::is_same_v<type, act_ask> || std::is_same_v<type, act_standby_ask>) {
                // What is asked again and again is told if the answer is not the usual one.
                told = !routine_ || (a.request.what != kind::renew && a.request.what != kind::look);
                unreported_asks_[at(host)].push_back(told ? ""
                                                          : fmt::format("{}: {}", name, to_text(action)));
            }
        },
        action);
    if (told)
        say(fmt::format("{}: {}", name, to_text(action)));
    std::visit([&](const auto& a) { do_on(host, a); }, action);
}

void ha_pair::drain() {
    bool more = true;
    while (more) {
        more = false;
        primary_action p;
        standby_action s;
        while (primary_ && primary_->next(p)) {
            carry_out(0, "primary", p);
            more = true;
        }
        while (standby_ && standby_->next(s)) {
            carry_out(1, "standby", s);
            more = true;
        }
        while (survivor_ && survivor_->next(p)) {
            carry_out(1, "survivor", p);
            more = true;
        }
        if (primary_ && primary_->state() == primary_state::ended) {
            primary_.reset();
            hosts_[0].gate = 0; // QEMU and its gate end with it
        }
        if (standby_ && standby_->state() == standby_state::ended)
            standby_.reset();
        if (running_) {
            standby_.reset();
            auto c = primary_config_of(1);
            c.mark = running_->mark;
            survivor_.emplace(std::move(c));
            survivor_->start_after_takeover(running_->term, running_->lease_until, now_);
            running_.reset();
            more = true;
        }
        more = write_marks() || more;
    }
}

void ha_pair::open_gate(int host, const char* name, std::uint64_t until) {
    auto& h = hosts_[at(host)];
    if (until == 0 || h.gate <= now_)
        say(fmt::format("{}: {}", name, to_text(primary_action(act_gate{until}))));
    h.extended = until != 0 && (h.extended || h.gate > now_);
    h.gate = until;
}

void ha_pair::ask(int host, const arbiter_request& q) {
    arbiter_.ask(host, hosts_[at(host)].process, q);
}

void ha_pair::mark(int host, const disk_mark& mark) {
    hosts_[at(host)].marks.push_back(mark);
}

bool ha_pair::write_marks() {
    bool any = false;
    for (int i = 0; i < 2; ++i)
        if (auto& h = hosts_[at(i)]; h.disk != disk_mood::slow && !h.frozen && !h.marks.empty()) {
            marked(i, h.disk == disk_mood::full ? "vm.img.kagemusha: no space left" : "");
            any = true;
        }
    return any;
}

void ha_pair::marked(int host, const std::string& problem) {
    auto& h = hosts_[at(host)];
    if (h.marks.empty())
        return say(fmt::format("the {} writes no mark", host_names[host]));
    if (problem.empty())
        h.image = h.marks.front();
    h.marks.pop_front();
    if (host == 0 && primary_)
        primary_->on_marked(problem, now_);
    else if (host == 1 && survivor_)
        survivor_->on_marked(problem, now_);
    else if (host == 1 && standby_)
        standby_->on_marked(problem, now_);
}

// ---- the connection

void ha_pair::send(int host, mirror::message m) {
    auto& from = hosts_[at(host)];
    if (!from.link || !connected_ || swallowed[at(host)])
        return;
    if (auto* hello = std::get_if<mirror::hello>(&m); hello && options_.older) {
        hello->capabilities = {"supervision"};
        hello->version = 1;
    }
    inbox_of(1 - host).emplace_back(std::move(m));
}

// After what was sent.
void ha_pair::hang_up(int host) {
    auto& from = hosts_[at(host)];
    if (from.link && connected_ && !swallowed[at(host)])
        inbox_of(1 - host).emplace_back(closed{});
    from.link = false;
    from.inbox.clear();
}

void ha_pair::connect() {
    if (!primary_ || !std::exchange(connecting_, false))
        return say("the primary does not want to connect");
    const char* const problem = parted           ? no_way
                                : !standby_      ? "nobody listens there"
                                : hosts_[1].link ? "the standby has a connection already"
                                                 : nullptr;
    if (problem) {
        primary_->on_link_closed(problem, now_);
        return drain();
    }
    connected_ = true;
    for (auto& h : hosts_) {
        h.link = true;
        h.inbox.clear();
    }
    standby_->on_link_up(now_);
    primary_->on_link_up(now_);
    drain();
}

void ha_pair::cut(bool primary_notices, bool standby_notices) {
    connected_ = false;
    for (auto& h : hosts_)
        h.inbox.clear();
    if (primary_notices)
        arrive(0, closed{});
    if (standby_notices)
        arrive(1, closed{});
}

void ha_pair::arrive(int host, const item& what) {
    auto& h = hosts_[at(host)];
    if (!h.link)
        return;
    const auto* const m = std::get_if<mirror::message>(&what);
    h.link = m != nullptr;
    const std::string why = "the connection was closed";
    if (host == 0 && primary_)
        m ? primary_->on_message(*m, now_) : primary_->on_link_closed(why, now_);
    if (host == 1 && standby_)
        m ? standby_->on_message(*m, now_) : standby_->on_link_closed(why, now_);
    drain();
}

void ha_pair::deliver(std::uint64_t most) {
    bool more = true;
    while (more) {
        more = false;
        for (const int to : {1, 0}) {
            if (most == 0 || inbox_of(to).empty() || hosts_[at(to)].frozen)
                continue;
            const auto what = std::move(inbox_of(to).front());
            inbox_of(to).pop_front();
            arrive(to, what);
            --most;
            more = true;
        }
    }
}

// ---- the arbiter

void ha_pair::answer(int host) {
    if (!arbiter_.is_asked(host))
        return say(fmt::format("the {} does not ask", host_names[host]));
    auto& unreported = unreported_asks_[at(host)];
    const std::string asked = unreported.front();
    const auto before = lines_.size();
    const auto said_at = said_at_;
    const auto a = arbiter_.answer(host, now_);
    if (!arbiter_.is_commanding(host))
        unreported.pop_front();
    if (!asked.empty() && a && a->what == verdict::granted) {
        lines_.resize(before);
        said_at_ = said_at;
    } else if (!asked.empty() && a) {
        const auto time = said_at == said_at_ ? 0 : 1; // a line of its own
        lines_.insert(lines_.begin() + static_cast<std::ptrdiff_t>(before) + time, asked);
    }
    answered(host, a);
}

void ha_pair::command_ended(int host, const std::string& problem) {
    if (!arbiter_.is_commanding(host))
        return say(fmt::format("the {}'s host runs no command", host_names[host]));
    if (problem.empty() && !arbiter_.is_checking(host)) {
        say(fmt::format("fence: the {}'s host is off", host_names[1 - host]));
        end(1 - host, true);
    }
    unreported_asks_[at(host)].pop_front();
    answered(host, arbiter_.command_ended(host, problem, now_));
}

void ha_pair::answered(int host, const std::optional<arbiter_answer>& a) {
    if (!a)
        return;
    if (host == 0 && primary_)
        primary_->on_arbiter(*a, now_);
    else if (host == 1 && survivor_)
        survivor_->on_arbiter(*a, now_);
    else if (host == 1 && standby_)
        standby_->on_arbiter(*a, now_);
    drain();
}

// ---- time

void ha_pair::settle() {
    for (bool more = true; more;) {
        more = false;
        if (connecting_ && primary_ && !hosts_[0].frozen) {
            connect();
            more = true;
        }
        for (int i = 0; i < 2; ++i) {
            if (!hosts_[at(i)].frozen && !inbox_of(i).empty()) {
                deliver();
                more = true;
            }
            if (!hosts_[at(i)].frozen && arbiter_.can_answer(i)) {
                answer(i);
                more = true;
            }
        }
    }
}

void ha_pair::tick() {
    if (primary_ && !hosts_[0].frozen && now_ >= primary_->deadline())
        primary_->on_tick(now_);
    drain();
    if (standby_ && !hosts_[1].frozen && now_ >= standby_->deadline())
        standby_->on_tick(now_);
    drain();
    if (survivor_ && !hosts_[1].frozen && now_ >= survivor_->deadline())
        survivor_->on_tick(now_);
    drain();
}

void ha_pair::look_at_gates() {
    for (int i = 0; i < 2; ++i)
        if (hosts_[at(i)].gate == now_)
            say(fmt::format("{}: the gate has closed by itself", i == 0 ? "primary" : "survivor"));
}

std::uint64_t ha_pair::next_event() const {
    std::uint64_t next = UINT64_MAX;
    if (primary_ && !hosts_[0].frozen)
        next = std::min(next, primary_->deadline());
    if (standby_ && !hosts_[1].frozen)
        next = std::min(next, standby_->deadline());
    if (survivor_ && !hosts_[1].frozen)
        next = std::min(next, survivor_->deadline());
    next = std::max(next, now_ + 1);
    for (const auto& h : hosts_)
        if (h.gate > now_)
            next = std::min(next, h.gate);
    return next;
}

void ha_pair::pass(std::uint64_t ms, bool all_else_goes) {
    const auto end = now_ + ms;
    routine_ = all_else_goes;
    tick();
    if (all_else_goes)
        settle();
    while (now_ < end) {
        now_ = std::min(next_event(), end);
        tick();
        if (all_else_goes)
            settle();
        look_at_gates();
    }
    routine_ = false;
}

} // namespace kagemusha::scenario
