// SPDX-License-Identifier: GPL-2.0-or-later
// program: PTX made ready to run: functions as arrays of instructions whose operands are numbered slots.
// build() makes it, run_grid() runs it; neither changes it afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kagemusha::machine {

constexpr std::uint32_t warp_lanes = 32;
using mask = std::uint32_t; // of a warp's lanes

// One value of each lane. A narrow value fills the low bits; the others are zero.
struct lanes {
    alignas(64) std::uint64_t v[warp_lanes];
};

// Where an operand lies: a register of the frame, a constant of the function, a special register of the warp.
struct slot {
    static constexpr std::uint32_t in_frame = 0, constant = 1u << 30, special = 2u << 30, where = 3u << 30;
    std::uint32_t id = ~0u; // ~0: none

    bool none() const { return id == ~0u; }
    std::uint32_t index() const { return id & ~where; }
};

// The special registers that have a slot, in the order of warp::special.
enum class special_register : std::uint32_t {
    tid_x,
    tid_y,
    tid_z,
    ntid_x,
    ntid_y,
    ntid_z,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    laneid,
    warpid,
    nwarpid,
    smid,
    nsmid,
    gridid,
    zero,
    total_smem,
    dynamic_smem,
    dynamic_begin,
    lanemask_eq,
    lanemask_le,
    lanemask_lt,
    lanemask_ge,
    lanemask_gt,
    count,
};

// Where an instruction leads. All but `next` are the scheduler's affair (warp.cpp).
enum class flow : std::uint8_t { next, branch, indexed, call, ret, exit, barrier, arrive, trap };

struct warp;
struct instruction;
using run_function = void (*)(warp&, const instruction&, mask);

struct instruction {
    run_function run = nullptr; // of flow::next
    slot guard;
    slot to[4];
    slot from[4];
    std::uint64_t bits = 0;   // an address' offset, a lookup table, …: what `run` makes of it
    std::uint32_t target = 0; // of a branch; of a call its site; of a list its index
    std::uint32_t line = 0;
    flow leads = flow::next;
    bool guard_negated = false;
    bool converges = false; // waits for the lanes that from[3] names (*.sync)
    std::uint8_t width = 0; // bytes of the register that takes the result
    std::uint8_t count = 1; // elements of a vector
    std::uint8_t option = 0;
};

// An argument's or a result's way between a caller and a function.
struct passing {
    bool caller_slot = false; // else an offset in its frame's parameters
    bool callee_slot = false;
    std::uint32_t caller = 0;
    std::uint32_t callee = 0;
    std::uint32_t bytes = 0;
};

enum class builtin : std::uint8_t { none, vprintf, assertfail, malloc, free };

struct function;
struct call_site {
    const function* callee = nullptr; // null: an address in `target`
    slot target;
    std::vector<passing> arguments;
    std::vector<passing> results;
};

struct parameter {
    std::uint32_t offset = 0;
    std::uint32_t bytes = 0;
    bool in_slot = false; // a .reg parameter of a function: offset is the slot
};

struct function {
    std::string name;
    bool entry = false;
    builtin native = builtin::none;
    std::vector<instruction> code;
    std::vector<lanes> constants;
    std::vector<call_site> sites;
    std::vector<std::vector<std::uint32_t>> lists; // targets of brx.idx
    std::uint32_t slots = 1;                       // 0 is the carry
    std::uint32_t param_bytes = 0;                 // of the frame: results, parameters, .param variables
    std::uint32_t local_bytes = 0;
    std::uint32_t shared_bytes = 0; // static; dynamic memory begins behind it
    std::vector<parameter> params;  // of an entry: in the launch's buffer
    std::vector<parameter> results;
    std::uint32_t entry_param_bytes = 0;
    std::uint32_t max_threads[3] = {0, 1, 1};
    bool exact_threads = false;
};

struct global_variable {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
};

struct program {
    std::vector<std::unique_ptr<function>> functions;
    std::map<std::string, const function*, std::less<>> entries;
    std::map<std::string, global_variable, std::less<>> globals;
    std::uint32_t ptx_version = 0;
    std::uint32_t target = 0;
    bool uses_heap = false; // calls malloc
};

// Addresses of windows in the generic space: no host has memory there. The low bits are the offset.
namespace window {
constexpr std::uint64_t shared = 1ull << 56, local = 2ull << 56, param = 3ull << 56, code = 4ull << 56;
constexpr std::uint64_t where = 0xffull << 56;
constexpr std::uint64_t frame_param = 1ull << 32; // in .param: the frame's, not the kernel's
} // namespace window

} // namespace kagemusha::machine
