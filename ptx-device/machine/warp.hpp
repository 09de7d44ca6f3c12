// SPDX-License-Identifier: GPL-2.0-or-later
// warp: 32 lanes that execute together, the block they belong to, and the launch. Instructions see these;
// what runs when is decided in schedule.cpp and grid.cpp.
//
// Each lane has its own pc and frame. Lanes with the same frame and pc run as one group; among groups the
// deepest call and in it the lowest pc goes first, so lanes that parted meet again behind the branch.
#pragma once

#include "launch.hpp"
#include "memory_map.hpp"
#include "program.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace kagemusha::machine {

// What a called function has while it runs, for the lanes that called it together.
struct frame {
    const function* code = nullptr;
    frame* caller = nullptr;
    const call_site* site = nullptr;
    std::uint32_t return_pc = 0;
    std::uint32_t depth = 0;
    std::uint32_t local_begin = 0;
    mask lanes_in = 0; // in this frame or in one that it called
    std::vector<lanes> slots;
    std::vector<std::uint8_t> params; // of lane 0, of lane 1, …
};

struct barrier {
    std::uint32_t arrived = 0;
    std::uint32_t expected = 0; // 0: all threads of the block that have not exited
    std::uint32_t votes = 0;    // of bar.red: how many had the predicate
};

struct launch;
struct block;

struct warp {
    launch* of = nullptr;
    block* in = nullptr;
    std::array<lanes, static_cast<std::size_t>(special_register::count)> special;
    std::array<frame*, warp_lanes> at{};
    std::array<std::uint32_t, warp_lanes> pc{};
    std::array<const instruction*, warp_lanes> waits_at{}; // a barrier; else null
    std::array<std::vector<std::uint8_t>, warp_lanes> local;
    mask alive = 0;
    mask waiting = 0; // at a block's barrier
    mask parked = 0;  // at a *.sync, for other lanes of the warp
    mask avoided = 0; // had their turn
    std::uint32_t since_rotation = 0;
    frame* now = nullptr;
    const lanes* constants = nullptr;
    std::vector<std::unique_ptr<frame>> frames;
    std::vector<frame*> free_frames;

    const std::uint64_t* get(slot s) const {
        switch (s.id & slot::where) {
        case slot::in_frame:
            return now->slots[s.index()].v;
        case slot::constant:
            return constants[s.index()].v;
        default:
            return special[s.index()].v;
        }
    }
    std::uint64_t* set(slot s) { return now->slots[s.index()].v; }

    // Ends the launch. The first fault counts.
    void fail(fault_kind kind, const instruction& at_instruction, std::uint64_t address = 0);
    // Memory for one access of one lane, or null when it may not be: then the launch has failed.
    std::uint8_t* memory(const instruction& i, std::uint32_t lane, std::uint64_t address, std::uint32_t bytes,
                         bool write);
    frame* enter(const function& f, frame* caller, mask m, const instruction& at_instruction);
    void leave(frame* f, mask m);
};

struct block {
    std::vector<std::uint8_t> shared;
    std::vector<std::unique_ptr<warp>> warps;
    std::array<barrier, 16> barriers{};
    std::uint32_t threads_alive = 0;
};

struct launch {
    const launch_request* request = nullptr;
    memory_range last{1, 0, false}; // the global memory touched last: most accesses find theirs here
    outcome result;
    std::uint64_t steps = 0;
    std::uint64_t clock = 0; // reads of a clock
    bool failed = false;
};

// ---- values of lanes

template <class T>
inline T value_of(std::uint64_t bits) {
    if constexpr (std::is_same_v<T, float>)
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    else if constexpr (std::is_same_v<T, double>)
        return std::bit_cast<double>(bits);
    else
        return static_cast<T>(bits);
}

template <class T>
inline std::uint64_t bits_of(T value) {
    if constexpr (std::is_same_v<T, float>)
        return std::bit_cast<std::uint32_t>(value);
    else if constexpr (std::is_same_v<T, double>)
        return std::bit_cast<std::uint64_t>(value);
    else if constexpr (std::is_same_v<T, bool>)
        return value ? 1 : 0;
    else
        return static_cast<std::make_unsigned_t<T>>(value);
}

template <class F>
inline void for_lanes(mask m, F f) {
    if (m == ~mask{0}) {
        for (std::uint32_t lane = 0; lane < warp_lanes; lane++)
            f(lane);
        return;
    }
    for (; m != 0; m &= m - 1)
        f(static_cast<std::uint32_t>(__builtin_ctz(m)));
}

// run_functions of one, two and three operands, from a function of values.
template <class A, auto F>
void unary(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = bits_of(F(value_of<A>(a[l]))); });
}
template <class A, class B, auto F>
void binary(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = bits_of(F(value_of<A>(a[l]), value_of<B>(b[l]))); });
}
template <class A, class B, class C, auto F>
void ternary(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = w.get(i.from[2]);
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) {
        d[l] = bits_of(F(value_of<A>(a[l]), value_of<B>(b[l]), value_of<C>(c[l])));
    });
}

} // namespace kagemusha::machine
