// SPDX-License-Identifier: GPL-2.0-or-later
//
// Pinned memory that kernels reach. A kernel of the host's GPU has no way to the guest's pages, so a piece that a
// launch names gets an arena of the same size: from then on it is *shown*, and both copies are kept equal by
// ordinary commands, which a standby executes too (mapped_bytes.hpp says which bytes go where):
//
//   to the GPU     what the program stored: before a launch or a copy, and when it begins to wait
//   to the program what commands wrote: when a wait ends, and before its own functions
//
// That is as much as CUDA promises without fences of the whole system, and enough for a kernel that is held until
// the program waits for it (as JAX's timers have one). A loop without calls, on either side, sees nothing new. The
// address is that of the program's memory for what cuMemHostAlloc gave, and another for what was registered.
//
// Programs whose pinned memory no kernel reaches pay for none of it: only copies use it, in place.
#pragma once

#include "driver.hpp"
#include "mapped_bytes.hpp"

#include <atomic>
#include <functional>
#include <span>

namespace kagemusha::cuda {

struct pinned {
    std::uint64_t program = 0; // address
    std::size_t bytes = 0;
    unsigned flags = 0;
    bool registered = false;  // the program's own, not made here
    bool is_mapping = false;  // made here by mmap, otherwise by the allocator
    context* owner = nullptr; // null: it ended
    device* gpu = nullptr;

    // Addresses that a kernel is given; 0: there were none left.
    std::uint64_t on_gpu = 0;
    std::uint64_t reserved = 0, reserved_bytes = 0; // what they lie in

    // While it is shown.
    context* home = nullptr; // that the arena is in; null: it is not shown
    std::vector<std::byte> known;
    unfetched_commands unfetched;
};

// How many pieces are shown, and between which addresses kernels are given pinned memory: with none of either,
// nothing below has anything to do.
extern std::atomic<unsigned> pinned_shown;
extern std::atomic<std::uint64_t> pinned_low, pinned_high;

// The piece that an address of the program's or a kernel's is in; null if there is none. The mutex is held as long
// as the answer is used. Before context::mutex.
extern std::mutex pinned_mutex;
pinned* find_pinned(std::uint64_t address);
void for_each_pinned(const std::function<void(pinned&)>& body);
// The address that the program has for this one, which may be a kernel's.
std::uint64_t program_address(const pinned& in, std::uint64_t address);
std::uint64_t gpu_address(const pinned& in, std::uint64_t address);

// Shows it to kernels of this context's device. pinned_mutex is held; waits for what was sent to the context.
CUresult show_pinned(pinned& one, context& where);
// The same for what this address is in, if that is pinned memory.
CUresult show_pinned_at(context& where, std::uint64_t address);
// Ends that; the program's bytes are left as they are. pinned_mutex is held, and nothing may be in flight.
void hide_pinned(pinned& one);
// The context ends: nothing is shown in it any more.
void end_pinned(context& dead);

// Where the bytes at this address are for a command of the context: on the GPU if their piece is shown there,
// otherwise in the program's memory. Any other address stays as it is.
std::uint64_t resolve_pinned(context& where, std::uint64_t address, std::uint64_t bytes);
// Whether the address is one of pinned memory that is shown in the context.
bool is_shown(context& where, std::uint64_t address);

// Whether the address is one of pinned memory, shown or not.
bool is_known_pinned(std::uint64_t address);

// Commands of a stream that may read or write pinned memory. Nothing is done unless some is shown.
class pinned_use {
public:
    explicit pinned_use(stream& where) : where_(where) {}
    ~pinned_use() { sent(); }
    pinned_use(const pinned_use&) = delete;
    pinned_use& operator=(const pinned_use&) = delete;

    // All that a launch with these parameters may reach: everything that is shown, and what it names.
    CUresult launch(std::span<const std::byte> parameters) {
        return pinned_high.load(std::memory_order_relaxed) == 0 ? CUDA_SUCCESS : begin_launch(parameters);
    }
    // Bytes at an address of the GPU's. To be called for each range before the commands are sent.
    CUresult range(std::uint64_t address, std::uint64_t bytes) {
        return pinned_shown.load(std::memory_order_relaxed) == 0 ? CUDA_SUCCESS : begin_range(address, bytes);
    }
    // The commands were sent, or will not be.
    void sent() {
        if (!used_.empty())
            end();
    }

private:
    CUresult begin_launch(std::span<const std::byte> parameters);
    CUresult begin_range(std::uint64_t address, std::uint64_t bytes);
    CUresult use(pinned& one, byte_range where);
    CUresult wait_for_uploads(context& home);
    void end();

    stream& where_;
    std::vector<std::uint64_t> used_; // pieces, by the program's address
};

// The program waits from here on: what it stored goes to kernels that run, which may wait for it.
CUresult send_pinned(context& where);
inline CUresult pinned_waits(context& where) {
    return pinned_shown.load(std::memory_order_acquire) == 0 ? CUDA_SUCCESS : send_pinned(where);
}

// The program may look: fetches what commands wrote. Of these queues they are known to be over so far.
CUresult fetch_pinned(std::span<const queue_place> over);
inline CUresult pinned_arrived(queue_place over) {
    return pinned_shown.load(std::memory_order_acquire) == 0 ? CUDA_SUCCESS : fetch_pinned({&over, 1});
}

} // namespace kagemusha::cuda
