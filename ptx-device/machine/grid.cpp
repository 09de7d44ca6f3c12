// SPDX-License-Identifier: GPL-2.0-or-later
// grid: blocks of a launch; what lanes need of memory and frames.
#include "schedule.hpp"

#include <algorithm>

namespace kagemusha::machine {

namespace {

constexpr std::uint32_t turn = 1u << 14;          // instructions of one warp before the next one's turn
constexpr std::uint32_t local_limit = 512u << 10; // bytes of one thread, as on NVIDIA's devices
constexpr std::size_t frame_limit = 64u << 20;    // bytes of registers of one warp
constexpr std::uint32_t depth_limit = 4096;

void set_special(warp& w, const launch_request& r, const std::uint32_t ctaid[3], std::uint32_t first) {
    const std::uint32_t threads = r.threads[0] * r.threads[1] * r.threads[2];
    const auto put = [&](special_register s, std::uint32_t lane, std::uint64_t value) {
        w.special[static_cast<std::size_t>(s)].v[lane] = value;
    };
    using s = special_register;
    for (std::uint32_t lane = 0; lane < warp_lanes; lane++) {
        const std::uint32_t t = first + lane;
        put(s::tid_x, lane, t % r.threads[0]);
        put(s::tid_y, lane, t / r.threads[0] % r.threads[1]);
        put(s::tid_z, lane, t / r.threads[0] / r.threads[1]);
        for (std::uint32_t d = 0; d < 3; d++) {
            put(static_cast<s>(static_cast<std::uint32_t>(s::ntid_x) + d), lane, r.threads[d]);
            put(static_cast<s>(static_cast<std::uint32_t>(s::ctaid_x) + d), lane, ctaid[d]);
            put(static_cast<s>(static_cast<std::uint32_t>(s::nctaid_x) + d), lane, r.grid[d]);
        }
        put(s::laneid, lane, lane);
        put(s::warpid, lane, first / warp_lanes);
        put(s::nwarpid, lane, (threads + warp_lanes - 1) / warp_lanes);
        put(s::smid, lane, 0);
        put(s::nsmid, lane, 1);
        put(s::gridid, lane, 0);
        put(s::zero, lane, 0);
        put(s::dynamic_begin, lane, r.kernel->shared_bytes);
        put(s::total_smem, lane, r.kernel->shared_bytes + r.dynamic_shared);
        put(s::dynamic_smem, lane, r.dynamic_shared);
        const std::uint32_t one = 1u << lane;
        put(s::lanemask_eq, lane, one);
        put(s::lanemask_le, lane, one | (one - 1));
        put(s::lanemask_lt, lane, one - 1);
        put(s::lanemask_ge, lane, ~(one - 1));
        put(s::lanemask_gt, lane, ~(one | (one - 1)));
    }
}

std::unique_ptr<block> make_block(launch& l, std::uint64_t number) {
    const launch_request& r = *l.request;
    const std::uint32_t ctaid[3] = {static_cast<std::uint32_t>(number % r.grid[0]),
                                    static_cast<std::uint32_t>(number / r.grid[0] % r.grid[1]),
                                    static_cast<std::uint32_t>(number / r.grid[0] / r.grid[1])};
    auto b = std::make_unique<block>();
    b->shared.resize(std::size_t{r.kernel->shared_bytes} + r.dynamic_shared);
    const std::uint32_t threads = r.threads[0] * r.threads[1] * r.threads[2];
    b->threads_alive = threads;
    static const instruction start;
    for (std::uint32_t first = 0; first < threads; first += warp_lanes) {
        auto w = std::make_unique<warp>();
        w->of = &l;
        w->in = b.get();
        const std::uint32_t count = std::min(warp_lanes, threads - first);
        w->alive = count == warp_lanes ? ~mask{0} : (mask{1} << count) - 1;
        set_special(*w, r, ctaid, first);
        frame* f = w->enter(*r.kernel, nullptr, w->alive, start);
        for (std::uint32_t lane = 0; lane < count; lane++)
            w->at[lane] = f;
        b->warps.push_back(std::move(w));
        if (f == nullptr)
            break;
    }
    return b;
}

// Lets each warp have a turn. Whether any of them did anything.
bool run_block(block& b) {
    bool moved = false;
    for (const auto& w : b.warps)
        moved |= run_warp(*w, turn);
    return moved;
}

} // namespace

outcome run_grid(const launch_request& request) {
    launch l;
    l.request = &request;
    const std::uint64_t blocks = std::uint64_t{request.grid[0]} * request.grid[1] * request.grid[2];
    const std::uint64_t resident = request.cooperative ? blocks : 1;
    std::uint64_t next = 0;
    std::vector<std::unique_ptr<block>> running;
    while (!l.failed) {
        while (running.size() < resident && next < blocks && !l.failed)
            running.push_back(make_block(l, next++));
        if (running.empty())
            break;
        bool moved = false;
        for (const auto& b : running)
            moved |= !l.failed && run_block(*b);
        std::erase_if(running, [](const auto& b) { return b->threads_alive == 0; });
        if (!moved && !l.failed && !running.empty()) {
            l.failed = true;
            l.result.fault = fault_kind::deadlock;
            l.result.function = request.kernel->name;
        }
    }
    return l.result;
}

void warp::fail(fault_kind kind, const instruction& at_instruction, std::uint64_t address) {
    if (of->failed)
        return;
    of->failed = true;
    of->result.fault = kind;
    of->result.function = now != nullptr ? now->code->name : of->request->kernel->name;
    of->result.line = at_instruction.line;
    of->result.address = address;
}

frame* warp::enter(const function& f, frame* caller, mask m, const instruction& at_instruction) {
    const std::uint32_t begin = caller != nullptr ? caller->local_begin + caller->code->local_bytes : 0;
    const std::uint32_t depth = caller != nullptr ? caller->depth + 1 : 0;
    std::size_t used = f.slots * sizeof(lanes) + f.param_bytes * warp_lanes;
    for (const frame* c = caller; c != nullptr && depth <= depth_limit; c = c->caller)
        used += c->slots.size() * sizeof(lanes) + c->params.size();
    if (f.local_bytes > local_limit - std::min(begin, local_limit) || depth > depth_limit ||
        (caller != nullptr && used > frame_limit)) {
        fail(fault_kind::stack, at_instruction);
        return nullptr;
    }
    for_lanes(m, [&](std::uint32_t l) {
        if (local[l].size() < begin + f.local_bytes)
            local[l].resize(begin + f.local_bytes);
    });
    if (free_frames.empty()) {
        frames.push_back(std::make_unique<frame>());
        free_frames.push_back(frames.back().get());
    }
    frame* const made = free_frames.back();
    free_frames.pop_back();
    made->code = &f;
    made->caller = caller;
    made->site = nullptr;
    made->depth = depth;
    made->local_begin = begin;
    made->lanes_in = m;
    made->slots.assign(f.slots, lanes{});
    made->params.assign(std::size_t{f.param_bytes} * warp_lanes, 0);
    return made;
}

void warp::leave(frame* f, mask m) {
    f->lanes_in &= ~m;
    if (f->lanes_in == 0)
        free_frames.push_back(f);
}

std::uint8_t* warp::memory(const instruction& i, std::uint32_t lane, std::uint64_t address,
                           std::uint32_t bytes, bool write) {
    if ((address & (bytes - 1)) != 0) {
        fail(fault_kind::misaligned, i, address);
        return nullptr;
    }
    const std::uint64_t offset = address & ~window::where;
    std::uint8_t* begin = nullptr;
    std::uint64_t size = 0;
    switch (address & window::where) {
    case 0:
        if (!of->last.holds(address, bytes)) {
            const memory_range* r = of->request->memory->find(address);
            of->last = r != nullptr ? *r : memory_range{1, 0, false};
        }
        if (of->last.holds(address, bytes) && (of->last.writable || !write))
            return reinterpret_cast<std::uint8_t*>(address);
        break;
    case window::shared:
        begin = in->shared.data();
        size = in->shared.size();
        break;
    case window::local:
        begin = local[lane].data();
        size = local[lane].size();
        break;
    case window::param:
        if ((offset & window::frame_param) != 0) {
            begin = now->params.data() + std::size_t{lane} * now->code->param_bytes;
            size = now->code->param_bytes;
        } else if (!write) {
            begin = const_cast<std::uint8_t*>(of->request->params.data());
            size = of->request->params.size();
        }
        break;
    default:
        break;
    }
    const std::uint64_t at_offset =
        (address & window::where) == window::param ? offset & ~window::frame_param : offset;
    if (begin == nullptr || at_offset > size || bytes > size - at_offset) {
        fail(fault_kind::illegal_address, i, address);
        return nullptr;
    }
    return begin + at_offset;
}

} // namespace kagemusha::machine
