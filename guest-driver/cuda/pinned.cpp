// SPDX-License-Identifier: GPL-2.0-or-later
//
// Pinned memory that kernels reach; pinned.hpp has the idea. What the program stored goes to the GPU in a queue of
// its own, as its stores would: not behind commands that run. A command that may read it waits for that queue.
#include "pinned.hpp"

#include "lasting.hpp"

#include "guest-driver/opencl/transfer.hpp"

#include <algorithm>

namespace kagemusha::cuda {

std::atomic<unsigned> pinned_shown{0};

namespace {

constexpr std::size_t most_exact_runs = 16;    // beside commands that may write between them
constexpr std::size_t gap_bytes = 256;         // what a command of its own costs more than
constexpr std::size_t chunk_bytes = 4ul << 20; // that is fetched at a time

std::byte* program_bytes(const pinned& one) {
    return reinterpret_cast<std::byte*>(one.program);
}

// The memory object of a piece that is shown, and where it begins in it.
opencl::ref<opencl::memory> arena_of(const pinned& one, std::uint64_t& offset) {
    return one.home->arena_of(one.on_gpu, offset);
}

CUresult move(const pinned& one, opencl::direction way, std::uint64_t first, std::uint64_t bytes,
              std::byte* memory, bool waits) {
    std::uint64_t offset = 0;
    const auto arena = arena_of(one, offset);
    if (!arena)
        return CUDA_ERROR_INVALID_CONTEXT;
    const bool write = way == opencl::direction::to_device;
    opencl::enqueueing call(opencl::to_handle<cl_command_queue>(one.home->pinned_copies->native.get()),
                            write ? CL_COMMAND_WRITE_BUFFER : CL_COMMAND_READ_BUFFER, 0, nullptr, nullptr,
                            waits);
    if (call.error() != CL_SUCCESS)
        return cuda_result(call.error());
    return cuda_result(opencl::transfer_buffer(call, *arena, way, offset + first, bytes, memory));
}

// Sends bytes of the program's, which are known from now on. They are taken from `known`: the program may store
// on while they are on their way.
CUresult send_run(pinned& one, std::uint64_t first, std::uint64_t bytes, bool& sent) {
    std::memcpy(one.known.data() + first, program_bytes(one) + first, bytes);
    const bool small = bytes <= opencl::max_inline_bytes;
    sent = sent || small;
    return move(one, opencl::direction::to_device, first, bytes, one.known.data() + first, !small);
}

CUresult fetch(pinned& one) {
    const auto stale = one.unfetched.stale();
    if (!stale)
        return CUDA_SUCCESS;
    if (!(one.registered && one.flags & CU_MEMHOSTREGISTER_READ_ONLY)) {
        auto& got = lasting_of_thread<std::vector<std::byte>, struct fetched_bytes>(); // keeps its memory
        got.resize(std::min<std::uint64_t>(stale->bytes, chunk_bytes));
        for (std::uint64_t done = 0; done < stale->bytes;) {
            const std::uint64_t first = stale->first + done;
            const std::uint64_t here = std::min<std::uint64_t>(stale->bytes - done, chunk_bytes);
            if (const CUresult error = move(one, opencl::direction::to_host, first, here, got.data(), true))
                return error;
            take_differences(program_bytes(one) + first, one.known.data() + first, got.data(), here);
            done += here;
        }
    }
    one.unfetched.fetched();
    return CUDA_SUCCESS;
}

// Everything that was sent to a context's streams is over, and what it wrote is here.
CUresult settle_sent(pinned& one, context& where) {
    const auto sent = where.places();
    if (const CUresult error = where.finish_sent())
        return error;
    for (const queue_place& over : sent)
        one.unfetched.reach(over.queue, over.place);
    return fetch(one);
}

// Sends what the program stored since. Where commands may write other bytes of it, exactly those bytes. `asks`: may
// wait for what this context runs, if that is less work; null: it may not.
CUresult upload(pinned& one, byte_range within, context* asks) {
    std::byte* const program = program_bytes(one) + within.first;
    std::byte* const known = one.known.data() + within.first;
    std::vector<byte_range> runs;
    const auto collect = [&](std::size_t gap, std::size_t most) {
        runs.clear();
        for_each_difference(program, known, within.bytes, gap, [&](std::size_t first, std::size_t bytes) {
            runs.push_back({within.first + first, bytes});
            return runs.size() < most;
        });
    };
    if (!one.unfetched.is_empty()) {
        collect(0, asks ? most_exact_runs + 1 : ~std::size_t{0});
        if (asks && runs.size() > most_exact_runs) {
            for (context* const in : {asks, one.home})
                if (const CUresult error = settle_sent(one, *in))
                    return error;
            collect(one.unfetched.is_empty() ? gap_bytes : 0, ~std::size_t{0});
        }
    } else {
        collect(gap_bytes, ~std::size_t{0});
    }
    bool sent = false;
    for (const byte_range& run : runs)
        if (const CUresult error = send_run(one, run.first, run.bytes, sent))
            return error;
    return sent ? mark(*one.home->pinned_copies, one.home->pinned_sent) : CUDA_SUCCESS;
}

CUresult show_all(std::span<const std::byte> parameters, context& where) {
    CUresult error = CUDA_SUCCESS;
    any_word(parameters, pinned_low.load(std::memory_order_relaxed),
             pinned_high.load(std::memory_order_relaxed), [&](std::uint64_t word) {
                 pinned* const one = find_pinned(word);
                 if (!one || one->home || word - one->on_gpu >= one->bytes)
                     return false;
                 if (one->gpu != where.gpu) {
                     report_unsupported("pinned memory of another GPU");
                     error = CUDA_ERROR_NOT_SUPPORTED;
                 } else {
                     error = show_pinned(*one, where);
                 }
                 return error != CUDA_SUCCESS;
             });
    return error;
}

} // namespace

CUresult show_pinned(pinned& one, context& where) {
    if (one.home)
        return CUDA_SUCCESS;
    if (!one.on_gpu)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!where.pinned_copies) {
        CUresult error = CUDA_SUCCESS;
        where.pinned_copies = make_stream(where, CU_STREAM_NON_BLOCKING, 0, error);
        if (!where.pinned_copies)
            return error;
    }
    // Copies may be on their way to it or from it, past what will be on the GPU.
    if (const CUresult error = where.finish_sent())
        return error;
    one.known.reserve(one.bytes);
    {
        const std::lock_guard held(where.mutex);
        if (const CUresult error = make_arena(where, one.reserved, one.reserved_bytes)) {
            one.known = {};
            return error;
        }
    }
    one.known.assign(program_bytes(one), program_bytes(one) + one.bytes);
    one.home = &where;
    pinned_shown.fetch_add(1, std::memory_order_release);
    const CUresult error = move(one, opencl::direction::to_device, 0, one.bytes, one.known.data(), true);
    if (error)
        hide_pinned(one);
    return error;
}

CUresult show_pinned_at(context& where, std::uint64_t address) {
    if (pinned_high.load(std::memory_order_relaxed) == 0)
        return CUDA_SUCCESS;
    const std::lock_guard held(pinned_mutex);
    pinned* const one = find_pinned(address);
    return !one || one->gpu != where.gpu ? CUDA_SUCCESS : show_pinned(*one, where);
}

void hide_pinned(pinned& one) {
    if (!one.home)
        return;
    {
        const std::lock_guard held(one.home->mutex);
        end_arena(*one.home, one.reserved);
    }
    one.home = nullptr;
    one.known = {};
    one.unfetched = {};
    pinned_shown.fetch_sub(1, std::memory_order_release);
}

std::uint64_t resolve_pinned(context& where, std::uint64_t address, std::uint64_t bytes) {
    if (pinned_high.load(std::memory_order_relaxed) == 0)
        return address;
    const std::lock_guard held(pinned_mutex);
    const pinned* const one = find_pinned(address);
    if (!one || bytes > one->program + one->bytes - program_address(*one, address))
        return address;
    return one->home == &where ? gpu_address(*one, address) : program_address(*one, address);
}

bool is_shown(context& where, std::uint64_t address) {
    if (pinned_shown.load(std::memory_order_relaxed) == 0)
        return false;
    const std::lock_guard held(pinned_mutex);
    const pinned* const one = find_pinned(address);
    return one && one->home == &where;
}

bool is_known_pinned(std::uint64_t address) {
    if (pinned_high.load(std::memory_order_relaxed) == 0)
        return false;
    const std::lock_guard held(pinned_mutex);
    return find_pinned(address) != nullptr;
}

// A kernel may have a pointer from memory, too, so it may reach all that is shown.
CUresult pinned_use::begin_launch(std::span<const std::byte> parameters) {
    context& where = *where_.owner;
    const auto named = [](std::uint64_t) { return true; };
    if (pinned_shown.load(std::memory_order_relaxed) == 0 &&
        !any_word(parameters, pinned_low.load(std::memory_order_relaxed),
                  pinned_high.load(std::memory_order_relaxed), named))
        return CUDA_SUCCESS;
    const std::lock_guard held(pinned_mutex);
    if (const CUresult error = show_all(parameters, where))
        return error;
    CUresult error = CUDA_SUCCESS;
    for_each_pinned([&](pinned& one) {
        if (error || !one.home || one.gpu != where.gpu)
            return;
        if (one.home != &where) // its copies to the program's memory are not those to the GPU's
            error = where.finish_sent();
        if (!error)
            error = use(one, {0, one.bytes});
    });
    return error;
}

CUresult pinned_use::begin_range(std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard held(pinned_mutex);
    pinned* const one = find_pinned(address);
    if (!one || one->home != where_.owner || bytes == 0)
        return CUDA_SUCCESS;
    const std::uint64_t first = gpu_address(*one, address) - one->on_gpu;
    const byte_range within{first, std::min<std::uint64_t>(bytes, one->bytes - first)};
    return use(*one, within);
}

CUresult pinned_use::use(pinned& one, byte_range where) {
    if (const CUresult error = upload(one, where, where_.owner))
        return error;
    used_.push_back(one.program);
    one.unfetched.begin(where_.native->id(), where);
    return wait_for_uploads(*one.home);
}

CUresult pinned_use::wait_for_uploads(context& home) {
    if (!home.pinned_sent)
        return CUDA_SUCCESS;
    if (home.pinned_sent->status() == CL_COMPLETE) {
        home.pinned_sent = {};
        return CUDA_SUCCESS;
    }
    if (&home == where_.owner)
        return wait_in_stream(where_, *home.pinned_sent);
    return cuda_result(opencl::wait_blocking(*home.pinned_sent, *home.pinned_copies->native));
}

void pinned_use::end() {
    const queue_place sent = where_.place();
    const std::lock_guard held(pinned_mutex);
    for (const std::uint64_t one : used_)
        if (pinned* const in = find_pinned(one))
            in->unfetched.sent(sent.queue, sent.place);
    used_.clear();
}

CUresult fetch_pinned(std::span<const queue_place> over) {
    const std::lock_guard held(pinned_mutex);
    CUresult first = CUDA_SUCCESS;
    for_each_pinned([&](pinned& one) {
        if (!one.home)
            return;
        for (const queue_place& part : over)
            one.unfetched.reach(part.queue, part.place);
        if (const CUresult error = fetch(one); error && !first)
            first = error;
    });
    return first;
}

CUresult send_pinned(context& where) {
    const std::lock_guard held(pinned_mutex);
    CUresult first = CUDA_SUCCESS;
    for_each_pinned([&](pinned& one) {
        if (one.home == &where && !one.unfetched.is_empty() && !first)
            first = upload(one, {0, one.bytes}, nullptr);
    });
    return first;
}

void end_pinned(context& dead) {
    const std::lock_guard held(pinned_mutex);
    for_each_pinned([&](pinned& one) {
        if (one.home == &dead)
            hide_pinned(one);
        if (one.owner == &dead)
            one.owner = nullptr;
    });
    dead.pinned_sent = {};
    dead.pinned_copies.reset();
}

} // namespace kagemusha::cuda
