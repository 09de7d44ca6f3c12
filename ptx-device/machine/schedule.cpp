// SPDX-License-Identifier: GPL-2.0-or-later
// schedule: see schedule.hpp, and warp.hpp for the order in which groups of lanes run.
#include "schedule.hpp"

namespace kagemusha::machine {

namespace {

// Instructions of a group after which other groups of its warp get their turn: a lane may wait in a loop for
// one that stands behind the loop.
constexpr std::uint32_t group_turn = 4096;

// Lanes that run together, and the pc at which they meet others of their frame.
struct group {
    mask m = 0;
    std::uint32_t pc = 0;
    std::uint32_t meets = ~0u;
};

group pick(warp& w) {
    mask candidates = w.alive & ~w.waiting & ~w.parked;
    if (candidates == 0 && w.parked != 0) {
        // Nobody is left who could come: those that are there go on without the others.
        candidates = w.parked;
    }
    if ((candidates & ~w.avoided) != 0)
        candidates &= ~w.avoided;
    else
        w.avoided = 0;
    group g;
    if (candidates == 0)
        return g;
    std::uint32_t first = static_cast<std::uint32_t>(__builtin_ctz(candidates));
    for_lanes(candidates, [&](std::uint32_t l) {
        if (w.at[l]->depth > w.at[first]->depth ||
            (w.at[l]->depth == w.at[first]->depth && w.pc[l] < w.pc[first])) {
            first = l;
        }
    });
    g.pc = w.pc[first];
    w.now = w.at[first];
    w.constants = w.now->code->constants.data();
    for_lanes(w.alive & ~w.waiting, [&](std::uint32_t l) {
        if (w.at[l] != w.now)
            return;
        if (w.pc[l] == g.pc && (candidates >> l & 1) != 0)
            g.m |= mask{1} << l;
        else if (w.pc[l] > g.pc)
            g.meets = std::min(g.meets, w.pc[l]);
    });
    return g;
}

void store_pc(warp& w, mask m, std::uint32_t pc) {
    for_lanes(m, [&](std::uint32_t l) { w.pc[l] = pc; });
}

void exit_lanes(warp& w, mask m) {
    for_lanes(m, [&](std::uint32_t l) {
        for (frame* f = w.at[l]; f != nullptr;) {
            frame* caller = f->caller;
            w.leave(f, mask{1} << l);
            f = caller;
        }
        w.at[l] = nullptr;
    });
    w.alive &= ~m;
    w.parked &= ~m;
    w.in->threads_alive -= static_cast<std::uint32_t>(__builtin_popcount(m));
    open_barriers(*w.in);
}

// Arguments and results between the memory or registers of two frames.
void pass(warp& w, frame& caller, frame& callee, const std::vector<passing>& list, mask m, bool in) {
    for (const passing& p : list) {
        for_lanes(m, [&](std::uint32_t l) {
            std::uint8_t* there = p.callee_slot
                                      ? reinterpret_cast<std::uint8_t*>(&callee.slots[p.callee].v[l])
                                      : &callee.params[l * callee.code->param_bytes + p.callee];
            if (p.caller_slot && in) {
                const slot s{p.caller};
                const std::uint64_t value =
                    (s.id & slot::where) == slot::in_frame   ? caller.slots[s.index()].v[l]
                    : (s.id & slot::where) == slot::constant ? caller.code->constants[s.index()].v[l]
                                                             : w.special[s.index()].v[l];
                std::memcpy(there, &value, p.bytes);
                return;
            }
            if (p.caller_slot) {
                std::uint64_t value = 0;
                std::memcpy(&value, there, p.bytes);
                caller.slots[p.caller].v[l] = value;
                return;
            }
            std::uint8_t* here = &caller.params[l * caller.code->param_bytes + p.caller];
            std::memcpy(in ? there : here, in ? here : there, p.bytes);
        });
    }
}

// Whether an address that a lane calls is a function with parameters like the site's.
const function* callee_of(warp& w, const call_site& site, mask& m) {
    if (site.callee != nullptr)
        return site.callee;
    const std::uint64_t* address = w.get(site.target);
    const std::uint64_t first = address[__builtin_ctz(m)];
    mask same = 0;
    for_lanes(m, [&](std::uint32_t l) { same |= address[l] == first ? mask{1} << l : 0; });
    m = same;
    const auto& all = w.of->request->code->functions;
    const std::uint64_t index = first - window::code;
    if ((first & window::where) != window::code || index >= all.size() || all[index]->entry)
        return nullptr;
    const function* f = all[index].get();
    if (f->params.size() != site.arguments.size() || f->results.size() != site.results.size())
        return nullptr;
    for (std::size_t k = 0; k < f->params.size() + f->results.size(); k++) {
        const bool result = k >= f->params.size();
        const parameter& p = result ? f->results[k - f->params.size()] : f->params[k];
        const passing& q = result ? site.results[k - f->params.size()] : site.arguments[k];
        if (p.in_slot || p.offset != q.callee || p.bytes != q.bytes)
            return nullptr;
    }
    return f;
}

void call(warp& w, const instruction& i, mask m) {
    frame* caller = w.now;
    const call_site& site = caller->code->sites[i.target];
    const function* f = callee_of(w, site, m); // lanes that call another one come again
    if (f == nullptr) {
        w.fail(fault_kind::bad_call, i);
        return;
    }
    const std::uint32_t back = static_cast<std::uint32_t>(&i - caller->code->code.data()) + 1;
    frame* callee = w.enter(*f, caller, m, i);
    if (callee == nullptr)
        return;
    callee->site = &site;
    callee->return_pc = back;
    pass(w, *caller, *callee, site.arguments, m, true);
    if (f->native != builtin::none) {
        run_builtin(w, i, *callee, m);
        pass(w, *caller, *callee, site.results, m, false);
        w.leave(callee, m);
        store_pc(w, m, back);
        return;
    }
    for_lanes(m, [&](std::uint32_t l) {
        w.at[l] = callee;
        w.pc[l] = 0;
    });
}

void give_back(warp& w, mask m) {
    frame* f = w.now;
    if (f->caller == nullptr) {
        exit_lanes(w, m);
        return;
    }
    pass(w, *f->caller, *f, f->site->results, m, false);
    for_lanes(m, [&](std::uint32_t l) {
        w.at[l] = f->caller;
        w.pc[l] = f->return_pc;
    });
    w.leave(f, m);
}

// bar.sync, bar.red (option: 1 popc, 2 and, 3 or), bar.arrive.
void arrive(warp& w, const instruction& i, mask m) {
    const std::uint64_t number = w.get(i.from[0])[__builtin_ctz(m)];
    const std::uint64_t threads = i.from[1].none() ? 0 : w.get(i.from[1])[__builtin_ctz(m)];
    if (number > 15) {
        w.fail(fault_kind::trap, i);
        return;
    }
    barrier& b = w.in->barriers[number];
    b.expected = static_cast<std::uint32_t>(threads);
    b.arrived += static_cast<std::uint32_t>(__builtin_popcount(m));
    if (!i.from[2].none()) {
        const std::uint64_t* p = w.get(i.from[2]);
        for_lanes(m, [&](std::uint32_t l) { b.votes += (p[l] & 1) != i.bits; });
    }
    const std::uint32_t pc = static_cast<std::uint32_t>(&i - w.now->code->code.data()) + 1;
    store_pc(w, m, pc);
    if (i.leads == flow::barrier) {
        w.waiting |= m;
        for_lanes(m, [&](std::uint32_t l) { w.waits_at[l] = &i; });
    }
    open_barriers(*w.in);
}

void branch_indexed(warp& w, const instruction& i, mask m) {
    const auto& list = w.now->code->lists[i.target];
    const std::uint64_t* index = w.get(i.from[0]);
    for_lanes(m, [&](std::uint32_t l) {
        const auto at = static_cast<std::uint32_t>(index[l]);
        if (at < list.size())
            w.pc[l] = list[at];
        else
            w.fail(fault_kind::trap, i);
    });
}

// Instructions after which the lanes must be grouped anew.
void leave_straight(warp& w, const instruction& i, mask m, std::uint32_t pc) {
    switch (i.leads) {
    case flow::branch:
        store_pc(w, m, i.target);
        break;
    case flow::indexed:
        branch_indexed(w, i, m);
        break;
    case flow::call:
        call(w, i, m);
        break;
    case flow::ret:
        give_back(w, m);
        break;
    case flow::exit:
        exit_lanes(w, m);
        break;
    case flow::barrier:
    case flow::arrive:
        arrive(w, i, m);
        break;
    case flow::trap:
        w.fail(fault_kind::trap, i, pc);
        break;
    case flow::next:
        break;
    }
}

mask guarded(warp& w, const instruction& i, mask m) {
    if (i.guard.none())
        return m;
    const std::uint64_t* p = w.get(i.guard);
    mask yes = 0;
    for_lanes(m, [&](std::uint32_t l) { yes |= static_cast<mask>((p[l] & 1) != i.guard_negated) << l; });
    return yes;
}

// At a *.sync: whether the lanes that it names are all here. If not, those here wait.
bool together(warp& w, const instruction& i, mask& m, group& g) {
    const mask arrived = m;
    mask named = 0;
    const std::uint64_t* members = w.get(i.from[3]);
    for_lanes(arrived, [&](std::uint32_t l) { named |= static_cast<mask>(members[l]); });
    for_lanes(w.parked, [&](std::uint32_t l) {
        if (w.at[l] == w.now && w.pc[l] == g.pc) {
            m |= mask{1} << l;
            g.m |= mask{1} << l;
        }
    });
    if ((named & w.alive & ~w.waiting & ~m) != 0 && (arrived & w.parked) == 0) {
        w.parked |= m;
        return false;
    }
    w.parked &= ~m;
    return true;
}

// Runs one group until it must be grouped anew. `steps` are left.
void run_group(warp& w, group g, std::uint32_t& steps) {
    const std::vector<instruction>& code = w.now->code->code;
    while (steps > 0 && !w.of->failed && g.pc < g.meets) {
        const instruction& i = code[g.pc];
        steps--;
        if (++w.since_rotation >= group_turn && (w.alive & ~w.waiting & ~g.m) != 0) {
            w.since_rotation = 0;
            w.avoided = g.m;
            break;
        }
        mask m = guarded(w, i, g.m);
        if (i.leads == flow::next) {
            if (i.converges && m != 0 && !together(w, i, m, g)) {
                store_pc(w, g.m & ~m, g.pc + 1);
                store_pc(w, m, g.pc);
                return;
            }
            if (m != 0)
                i.run(w, i, m);
            g.pc++;
        } else if (m == 0) {
            g.pc++;
        } else if (i.leads == flow::branch && m == g.m) {
            g.pc = i.target;
        } else {
            store_pc(w, g.m & ~m, g.pc + 1);
            store_pc(w, m, g.pc); // a lane that does not get on comes here again
            leave_straight(w, i, m, g.pc);
            return;
        }
    }
    store_pc(w, g.m, g.pc);
}

} // namespace

bool run_warp(warp& w, std::uint32_t turn) {
    std::uint32_t left = turn;
    while (left > 0 && !w.of->failed) {
        const group g = pick(w);
        if (g.m == 0)
            break;
        run_group(w, g, left);
    }
    w.of->steps += turn - left;
    const std::uint64_t limit = w.of->request->max_steps;
    if (limit != 0 && w.of->steps > limit && !w.of->failed) {
        w.of->failed = true;
        w.of->result.fault = fault_kind::too_long;
    }
    return left != turn;
}

void open_barriers(block& b) {
    for (std::uint64_t number = 0; number < b.barriers.size(); number++) {
        barrier& bar = b.barriers[number];
        const std::uint32_t wanted = bar.expected != 0 ? bar.expected : b.threads_alive;
        if (bar.arrived == 0 || bar.arrived < wanted)
            continue;
        for (const auto& w : b.warps) {
            for_lanes(w->waiting, [&](std::uint32_t l) {
                frame* const was = w->now;
                w->now = w->at[l];
                w->constants = w->now->code->constants.data();
                const instruction& i = *w->waits_at[l];
                if (w->get(i.from[0])[l] == number) {
                    if (!i.to[0].none()) {
                        const std::uint64_t all = bar.votes == bar.arrived;
                        w->set(i.to[0])[l] = i.option == 1 ? bar.votes : i.option == 2 ? all : bar.votes != 0;
                    }
                    w->waits_at[l] = nullptr;
                    w->waiting &= ~(mask{1} << l);
                }
                w->now = was;
                w->constants = was != nullptr ? was->code->constants.data() : nullptr;
            });
        }
        bar = barrier{};
    }
}

} // namespace kagemusha::machine
