// SPDX-License-Identifier: GPL-2.0-or-later
// simulator: see simulator.hpp.
#include "share/simulator.hpp"

#include <algorithm>
#include <cstdio>

namespace kagemusha::share::sim {

namespace {

// Tasks shorter than this go together: what a window holds of them.
constexpr std::uint64_t unit_ns = window_target_ns / 2;
constexpr std::uint64_t hang_ns = 5 * second;

vm_terms told(const options& o, vm_id vm) {
    vm_terms terms = o.vms[vm].terms;
    if (o.broken == breach::wrong_weight && vm == 0)
        terms.share_permille = std::min(terms.share_permille * 2 + 150, whole_permille);
    if (o.broken == breach::ignores_cap)
        terms.cap_permille = whole_permille;
    if (o.broken == breach::inverts_priorities)
        terms.priority = max_priority - terms.priority;
    return terms;
}

} // namespace

simulator::simulator(const options& o, bool trace)
    : o_(o)
    , trace_(trace)
    , chance_(o.seed ^ 0x5eed)
    , scheduler_(o.broken == breach::gives_unused ? policy_kind::fair : o.policy)
    , workers_(o.vms.size()) {
    record_.vms.resize(o.vms.size());
    limited_ = o.policy == policy_kind::fixed;
    for (vm_id vm = 0; vm < o.vms.size(); ++vm) {
        limited_ |= o.vms[vm].terms.cap_permille < whole_permille;
        post(o.vms[vm].joins_ns, what::joins, vm);
        if (o.vms[vm].turns_ns != UINT64_MAX)
            post(o.vms[vm].turns_ns, what::turns, vm);
    }
}

record simulator::run() {
    while (!events_.empty() && record_.broken_rule.empty()) {
        const event e = events_.top();
        if (e.at_ns >= o_.runs_ns)
            break;
        events_.pop();
        now_ns_ = e.at_ns;
        handle(e);
        look_at_idle();
    }
    now_ns_ = o_.runs_ns;
    if (!gpu_.empty()) { // the part of the unit that ran
        const vm_id vm = gpu_.front().vm;
        record_.vms[vm].used_ns += now_ns_ - std::max(unit_began_ns_, std::min(o_.measured_from_ns, now_ns_));
    }
    for (vm_id vm = 0; vm < workers_.size(); ++vm) {
        record_.used_ns += record_.vms[vm].used_ns;
        if (workers_[vm].alive && workers_[vm].asked)
            record_.vms[vm].longest_wait_ns =
                std::max(record_.vms[vm].longest_wait_ns, now_ns_ - workers_[vm].asked_ns);
    }
    record_.measured_ns = o_.runs_ns - o_.measured_from_ns;
    return record_;
}

void simulator::post(std::uint64_t at_ns, what kind, vm_id vm, action act, bool flag) {
    events_.push({at_ns, ++number_, kind, vm, act, flag});
}

std::uint64_t simulator::latency() {
    return 1 * us + chance_.below(static_cast<std::uint32_t>(o_.max_latency_ns));
}

// Messages of one connection do not overtake each other.
void simulator::say(vm_id vm, what kind, bool flag) {
    worker& w = workers_[vm];
    w.to_arbiter_ns = std::max(w.to_arbiter_ns, now_ns_ + latency());
    if (o_.broken == breach::forgets_waiting && vm == 0 && kind == what::wants && now_ns_ > 100 * ms)
        return;
    post(w.to_arbiter_ns, kind, vm, {}, flag);
}

void simulator::hear(const action& a) {
    worker& w = workers_[a.vm];
    const std::uint64_t late = o_.broken == breach::idles && a.what == action::kind::grant ? 2 * ms : 0;
    w.from_arbiter_ns = std::max(w.from_arbiter_ns, now_ns_ + latency() + late);
    post(w.from_arbiter_ns, what::acted, a.vm, a);
}

void simulator::carry_out() {
    while (const auto a = scheduler_.next_action()) {
        if (trace_)
            std::printf("%12llu  vm %u: %s\n", static_cast<unsigned long long>(now_ns_), a->vm,
                        a->what == action::kind::grant       ? "grant"
                        : a->what == action::kind::take_back ? "take back"
                                                             : "share");
        record_.switches += a->what == action::kind::grant;
        if (o_.broken == breach::never_takes_back && a->what == action::kind::take_back)
            continue;
        hear(*a);
        if (o_.broken == breach::grants_twice && a->what == action::kind::grant && now_ns_ > 300 * ms)
            for (vm_id other = 0; other < workers_.size(); ++other)
                if (other != a->vm && workers_[other].asked) {
                    hear({action::kind::grant, other, true});
                    break;
                }
    }
    if (scheduler_.next_ns() < advance_at_ns_ || advance_at_ns_ <= now_ns_) {
        advance_at_ns_ = scheduler_.next_ns();
        if (advance_at_ns_ != UINT64_MAX)
            post(std::max(advance_at_ns_, now_ns_), what::advance, 0);
    }
}

void simulator::handle(const event& e) {
    if (e.kind != what::joins && e.kind != what::advance && e.kind != what::unit_ends &&
        !workers_[e.vm].alive)
        return;
    switch (e.kind) {
    case what::joins:
        workers_[e.vm].alive = true;
        workers_[e.vm].has_task = true;
        scheduler_.add(e.vm, told(o_, e.vm), now_ns_);
        pump(e.vm);
        break;
    case what::turns:
        if (o_.vms[e.vm].how == conduct::dies)
            dies(e.vm);
        else
            workers_[e.vm].hangs = true;
        break;
    case what::thought:
        workers_[e.vm].has_task = true;
        pump(e.vm);
        return;
    case what::unit_ends:
        end_unit(e.vm);
        return;
    case what::acted:
        acted(e.act);
        return;
    case what::wants:
        scheduler_.wants(e.vm, now_ns_);
        break;
    case what::released:
        scheduler_.released(e.vm, e.flag, now_ns_);
        break;
    case what::advance:
        scheduler_.advance(now_ns_);
        break;
    }
    carry_out();
}

void simulator::acted(const action& a) {
    worker& w = workers_[a.vm];
    switch (a.what) {
    case action::kind::grant:
        w.granted = true;
        w.take_back = false;
        w.shared = a.shared;
        if (w.asked) {
            auto& longest = record_.vms[a.vm].longest_wait_ns;
            longest = std::max(longest, now_ns_ - w.asked_ns);
            w.asked = false;
        }
        break;
    case action::kind::take_back:
        w.take_back = w.granted;
        break;
    case action::kind::share:
        w.shared = true;
        break;
    }
    pump(a.vm);
    give_back_if_due(a.vm);
}

void simulator::pump(vm_id vm) {
    worker& w = workers_[vm];
    const vm_options& is = o_.vms[vm];
    if (!w.alive || !w.has_task)
        return;
    if (!w.granted || w.take_back)
        return ask(vm);
    if (w.hangs) {
        if (w.units == 0) {
            record_.vms[vm].hung = true;
            ++w.units; // it runs beside the others: drivers share the GPU between processes
        }
        return;
    }
    if (is.how == conduct::sleeps || is.how == conduct::steps) {
        if (w.units == 0) {
            w.has_task = false;
            submit(vm, is.task_ns);
        }
        return;
    }
    const std::uint64_t length = std::max(is.task_ns, unit_ns / is.task_ns * is.task_ns);
    const std::uint32_t most = is.task_ns <= unit_ns ? 2 : 1;
    while (w.units < most)
        submit(vm, length);
    if (is.how == conduct::liar) {
        w.granted = false;
        w.asked = true;
        w.asked_ns = now_ns_;
        say(vm, what::released, true);
    }
}

void simulator::ask(vm_id vm) {
    worker& w = workers_[vm];
    if (w.asked || w.granted) // when it gives the GPU back it says that it wants more
        return;
    w.asked = true;
    w.asked_ns = now_ns_;
    say(vm, what::wants);
}

void simulator::give_back_if_due(vm_id vm) {
    worker& w = workers_[vm];
    if (!w.alive || !w.granted || w.units != 0 || !(w.take_back || (w.shared && !w.has_task)))
        return;
    w.granted = w.take_back = false;
    w.asked = w.has_task;
    w.asked_ns = now_ns_;
    say(vm, what::released, w.has_task);
}

void simulator::submit(vm_id vm, std::uint64_t ns) {
    worker& w = workers_[vm];
    if (o_.vms[vm].how != conduct::liar)
        for (const unit& other : gpu_)
            if (other.vm != vm && o_.vms[other.vm].how != conduct::liar)
                record_.broken_rule = "two VMs have the GPU at a time: " + std::to_string(vm) + " and " +
                                      std::to_string(other.vm);
    ++w.units;
    w.units_ns += ns;
    record_.vms[vm].longest_unit_ns = std::max(record_.vms[vm].longest_unit_ns, w.units_ns);
    gpu_.push_back({vm, ns});
    if (gpu_.size() == 1)
        begin_unit();
}

void simulator::begin_unit() {
    if (gpu_.empty())
        return;
    unit_began_ns_ = now_ns_;
    post(now_ns_ + gpu_.front().ns, what::unit_ends, gpu_.front().vm, {}, true);
}

void simulator::end_unit(vm_id vm) {
    if (gpu_.empty() || gpu_.front().vm != vm || now_ns_ != unit_began_ns_ + gpu_.front().ns)
        return; // of a VM that died
    const std::uint64_t from = std::max(unit_began_ns_, o_.measured_from_ns);
    if (now_ns_ > from)
        record_.vms[vm].used_ns += now_ns_ - from;
    worker& w = workers_[vm];
    --w.units;
    w.units_ns -= gpu_.front().ns;
    gpu_.pop_front();
    begin_unit();
    if (o_.vms[vm].how == conduct::steps)
        post(now_ns_ + o_.vms[vm].think_ns, what::thought, vm);
    if (o_.vms[vm].how == conduct::sleeps)
        post(now_ns_ + o_.vms[vm].think_ns / 2 +
                 chance_.below(static_cast<std::uint32_t>(o_.vms[vm].think_ns)),
             what::thought, vm);
    pump(vm);
    give_back_if_due(vm);
}

void simulator::dies(vm_id vm) {
    workers_[vm] = {};
    const bool ran = !gpu_.empty() && gpu_.front().vm == vm;
    std::erase_if(gpu_, [&](const unit& u) { return u.vm == vm; });
    if (ran)
        begin_unit();
    scheduler_.remove(vm, now_ns_);
}

// Work is conserved: no GPU stands still while somebody waits for it, but for gaps.
void simulator::look_at_idle() {
    const bool hung = std::ranges::any_of(record_.vms, [](const vm_record& vm) { return vm.hung; });
    const bool waits = std::ranges::any_of(workers_, [](const worker& w) { return w.asked; });
    const bool idle = gpu_.empty() && waits && !hung && !limited_;
    if (idle && idle_since_ns_ == UINT64_MAX)
        idle_since_ns_ = now_ns_;
    if (!idle && idle_since_ns_ != UINT64_MAX) {
        record_.longest_idle_ns = std::max(record_.longest_idle_ns, now_ns_ - idle_since_ns_);
        idle_since_ns_ = UINT64_MAX;
    }
}

} // namespace kagemusha::share::sim
