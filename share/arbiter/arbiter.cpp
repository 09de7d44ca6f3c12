// SPDX-License-Identifier: GPL-2.0-or-later
// arbiter: see arbiter.hpp.
#include "share/arbiter/arbiter.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace kagemusha::share {

namespace {

// How often pages are looked at without a message: one may have got lost in a full socket.
constexpr std::uint64_t look_ns = 400 * ms;

constexpr std::uint64_t grant_flags = SHARE_GRANTED | SHARE_SHARED | SHARE_TAKE_BACK;

} // namespace

// ---- who is there

std::string arbiter::admit(const hello& who, vm_id& id, std::uint64_t now_ns) {
    const auto known = std::ranges::find_if(vms_, [&](const auto& v) { return v.second.name == who.vm; });
    // A session says again what its VM's supervisor has said; it comes first when the arbiter is new.
    if (known != vms_.end() && (who.role == SHARE_SESSION || known->second.terms == who.terms)) {
        id = known->first;
        return "";
    }
    if (who.has_policy && has_policy_ && who.policy != scheduler_.kind())
        return "the VMs of this GPU share it by the policy \"" + std::string(name_of(scheduler_.kind())) +
               "\", and this one wants \"" + std::string(name_of(who.policy)) +
               "\": give all of them the same, or choose another GPU";
    const std::uint64_t gpu_bytes = std::max(gpu_memory_bytes_, who.gpu_memory_bytes);
    gpu_ledger ledger{gpu_bytes, 0, 0, 0};
    for (const auto& [other, vm] : vms_)
        if (known == vms_.end() || other != known->first) {
            ledger.memory_taken_bytes += vm.terms.memory_bytes;
            ledger.share_taken_permille += vm.terms.share_permille;
            ++ledger.vms;
        }
    if (auto refusal = why_not_admitted(who.terms, ledger); !refusal.empty())
        return refusal;
    gpu_memory_bytes_ = gpu_bytes;
    if (who.has_policy && !has_policy_) {
        has_policy_ = true;
        scheduler_.set_policy(who.policy, now_ns);
    }
    if (known != vms_.end()) {
        id = known->first;
        known->second.terms = who.terms;
        scheduler_.change(id, who.terms, now_ns);
        return "";
    }
    id = next_vm_++;
    vms_[id] = {who.vm, who.terms};
    scheduler_.add(id, who.terms, now_ns);
    return "";
}

std::string arbiter::join(connection_id id, const hello& who, share_page* page, std::uint64_t now_ns) {
    vm_id vm = 0;
    if (auto refusal = admit(who, vm, now_ns); !refusal.empty())
        return refusal;
    if (page != nullptr && vms_[vm].sessions >= max_sessions_of_vm)
        return "the VM has " + std::to_string(max_sessions_of_vm) + " programs on this GPU already";
    sessions_[id] = {vm, page, false, now_ns, 0};
    ++vms_[vm].connections;
    vms_[vm].sessions += page != nullptr;
    bound_windows();
    carry_out(now_ns);
    return "";
}

void arbiter::gone(connection_id id, std::uint64_t now_ns) {
    const auto at = sessions_.find(id);
    if (at == sessions_.end())
        return;
    const session was = at->second;
    sessions_.erase(at);
    vm& of = vms_[was.vm];
    --of.connections;
    if (was.page != nullptr) {
        --of.sessions;
        of.gpu_ns += gpu_ns(was, now_ns);
        of.tasks += was.page->tasks.load(std::memory_order_relaxed);
    }
    if (of.connections == 0) {
        scheduler_.remove(was.vm, now_ns);
        vms_.erase(was.vm);
        bound_windows();
        if (vms_.empty()) {
            has_policy_ = false;
            gpu_memory_bytes_ = 0;
            scheduler_.set_policy(policy_kind::fair, now_ns);
        }
    } else if (was.page != nullptr) {
        conclude(was.vm, now_ns);
    }
    carry_out(now_ns);
}

// A lone VM may have as much in the GPU's queues as it likes.
void arbiter::bound_windows() {
    for (auto& [id, one] : sessions_)
        if (one.page != nullptr)
            one.page->bounded.store(vms_.size() > 1, std::memory_order_relaxed);
}

// ---- what sessions say

void arbiter::message(connection_id id, std::uint64_t now_ns) {
    const auto at = sessions_.find(id);
    if (at == sessions_.end() || at->second.page == nullptr)
        return;
    charge_loose(at->second, now_ns);
    conclude(at->second.vm, now_ns);
    carry_out(now_ns);
}

void arbiter::is_of(connection_id id, std::uint32_t process) {
    if (const auto at = sessions_.find(id); at != sessions_.end())
        at->second.process = process;
}

void arbiter::advance(std::uint64_t now_ns) {
    ++alive_;
    for (auto& [id, one] : sessions_)
        if (one.page != nullptr)
            one.page->alive.store(alive_, std::memory_order_relaxed);
    scheduler_.advance(now_ns);
    carry_out(now_ns);
    for (const auto& vm : scheduler_.vms(now_ns))
        conclude(vm.id, now_ns);
    carry_out(now_ns);
}

std::uint64_t arbiter::next_ns(std::uint64_t now_ns) const {
    std::uint64_t next = scheduler_.next_ns();
    for (const auto& [id, vm] : vms_)
        if (const vm_state* state = scheduler_.find(id);
            state != nullptr && state->phase != vm_phase::idle && vms_.size() > 1)
            next = std::min(next, now_ns + look_ns);
    return next;
}

void arbiter::conclude(vm_id id, std::uint64_t now_ns) {
    bool granted = false, waiting = false;
    for (auto& [connection, one] : sessions_) {
        if (one.vm != id || one.page == nullptr)
            continue;
        const std::uint64_t word = one.page->word.load();
        one.granted = one.granted && (word & SHARE_GRANTED) != 0;
        granted |= one.granted;
        waiting |= (word & SHARE_WAITING) != 0;
    }
    const vm_state* state = scheduler_.find(id);
    if (state == nullptr)
        return;
    const bool idle = state->phase == vm_phase::idle || state->phase == vm_phase::waiting;
    if (!granted && !idle)
        scheduler_.released(id, waiting, now_ns);
    else if (waiting && state->phase != vm_phase::waiting)
        scheduler_.wants(id, now_ns);
}

void arbiter::charge_loose(session& one, std::uint64_t now_ns) {
    const std::uint64_t loose = one.page->loose_ns.load(std::memory_order_relaxed);
    if (loose <= one.loose_charged_ns)
        return;
    scheduler_.charge(one.vm, std::min(loose - one.loose_charged_ns, now_ns - one.joined_ns), now_ns);
    one.loose_charged_ns = loose;
}

// ---- what the scheduler says

void arbiter::carry_out(std::uint64_t now_ns) {
    while (const auto a = scheduler_.next_action()) {
        switch (a->what) {
        case action::kind::grant:
            if (!grant(a->vm, a->shared)) // nobody wants it any more
                scheduler_.released(a->vm, false, now_ns);
            break;
        case action::kind::take_back:
            take_back(a->vm, SHARE_TAKE_BACK, now_ns);
            break;
        case action::kind::share:
            take_back(a->vm, SHARE_SHARED, now_ns);
            break;
        }
    }
}

// To its sessions that wait; one that asks later gets it then. Whether any of them has the GPU now. A page is
// looked at once: its process may set the flag again and again.
bool arbiter::grant(vm_id id, bool shared) {
    bool any = false;
    for (auto& [connection, one] : sessions_) {
        if (one.vm != id || one.page == nullptr)
            continue;
        const bool waits = (one.page->word.load() & SHARE_WAITING) != 0;
        any |= one.granted || waits;
        if (!waits)
            continue;
        one.page->word.fetch_and(~(SHARE_TAKE_BACK | SHARE_SHARED | SHARE_WAITING));
        one.page->word.fetch_or(SHARE_GRANTED | (shared ? std::uint64_t{SHARE_SHARED} : 0));
        one.granted = true;
        one.tasks_at_grant = one.page->tasks.load(std::memory_order_relaxed);
        one.page->alive.store(++alive_, std::memory_order_relaxed);
        go_(connection);
    }
    return any;
}

void arbiter::take_back(vm_id id, std::uint64_t flags, std::uint64_t now_ns) {
    bool stalls = false;
    for (auto& [connection, one] : sessions_)
        if (one.vm == id && one.granted) {
            one.page->word.fetch_or(flags);
            one.granted = !reclaim(one, flags == SHARE_TAKE_BACK);
            stalls |= one.granted && one.page->needs_guest.load(std::memory_order_relaxed) != 0;
        }
    if (stalls && flags == SHARE_TAKE_BACK)
        scheduler_.hurry(id, now_ns);
    conclude(id, now_ns);
}

// What has nothing in flight does not need to be asked: not even to end a turn. A grant of which it has made
// nothing stays until then: its thread is on the way, and would have lost its turn to whoever asks meanwhile,
// and with the turn what it was behind. So many attempts and no more: somebody may write there all the time.
bool arbiter::reclaim(session& one, bool unused_too) {
    const bool used = one.page->tasks.load(std::memory_order_relaxed) != one.tasks_at_grant;
    std::uint64_t word = one.page->word.load();
    for (int i = 0; i < 100; ++i) {
        if ((word & SHARE_GRANTED) == 0)
            return true;
        if (!used && !unused_too)
            return false;
        if ((word & SHARE_COUNT) != 0 || one.page->word.compare_exchange_weak(word, word & ~grant_flags))
            return (word & SHARE_COUNT) == 0;
    }
    return false;
}

// ---- accounts

std::uint64_t arbiter::gpu_ns(const session& one, std::uint64_t now_ns) {
    const std::uint64_t since = one.page->busy_since_ns.load(std::memory_order_relaxed);
    const std::uint64_t busy = one.page->busy_ns.load(std::memory_order_relaxed);
    const std::uint64_t running = since != 0 && since < now_ns ? now_ns - since : 0;
    const std::uint64_t most = now_ns - one.joined_ns;
    return std::min(busy, most) + std::min(running, most - std::min(busy, most));
}

std::vector<share_row> arbiter::rows(std::uint64_t now_ns) {
    std::vector<share_row> out;
    for (const vm_state& state : scheduler_.vms(now_ns)) {
        const vm& of = vms_[state.id];
        share_row row{};
        put_name(row.vm, of.name);
        row.sessions = of.sessions;
        row.phase = static_cast<std::uint32_t>(state.phase);
        row.share_permille = of.terms.share_permille;
        row.cap_permille = of.terms.cap_permille;
        row.weight_permille = state.weight_permille;
        row.priority = of.terms.priority;
        row.standby = of.terms.standby;
        row.times_stuck = static_cast<std::uint32_t>(state.times_stuck);
        row.memory_bytes = of.terms.memory_bytes;
        row.held_ns = state.held_ns;
        row.waited_ns = state.waited_ns + (state.phase == vm_phase::waiting ? now_ns - state.since_ns : 0);
        row.longest_turn_ns = state.longest_turn_ns;
        row.turns = state.turns;
        row.gpu_ns = of.gpu_ns;
        row.tasks = of.tasks;
        for (const auto& [connection, one] : sessions_)
            if (one.vm == state.id && one.page != nullptr) {
                row.gpu_ns += gpu_ns(one, now_ns);
                row.tasks += one.page->tasks.load(std::memory_order_relaxed);
            }
        out.push_back(row);
    }
    return out;
}

std::vector<share_program_row> arbiter::programs(std::uint64_t now_ns) const {
    std::vector<share_program_row> out;
    for (const auto& [connection, one] : sessions_) {
        if (one.page == nullptr)
            continue;
        share_program_row row{};
        put_name(row.vm, vms_.at(one.vm).name);
        row.worker = one.process;
        row.waits = (one.page->word.load(std::memory_order_relaxed) & SHARE_WAITING) != 0;
        row.gpu_ns = gpu_ns(one, now_ns);
        row.waited_ns = std::min(one.page->waited_ns.load(std::memory_order_relaxed), now_ns - one.joined_ns);
        row.tasks = one.page->tasks.load(std::memory_order_relaxed);
        out.push_back(row);
    }
    std::ranges::stable_sort(out, std::greater(), &share_program_row::gpu_ns);
    out.resize(std::min<std::size_t>(out.size(), SHARE_MAX_PROGRAM_ROWS));
    return out;
}

} // namespace kagemusha::share
