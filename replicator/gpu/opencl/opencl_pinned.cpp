// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_pinned: large reads and writes through pinned memory, in pieces: while the bus carries one, several threads
// copy the next one from or to guest memory (copy_crew). Of reads, event_poller's thread copies each piece when it
// has come (transfer_rest::advance). Small reads also come through it: NVIDIA's runtime takes 8 us to put one of a few
// bytes into its queue, 3 if the memory is pinned, and the GPU is done 5 us earlier.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/opencl/box_transfer.hpp"
#include "gpu/opencl/staging.hpp"

namespace kagemusha::gpu {

// A write takes its bytes now. What an earlier read has yet to bring is not there then: a guest's driver waits for
// it, unless the read may depend on a user event (G-19 in docs/limitations.md).
bool opencl_device::goes_pinned(const box_transfer& t) const {
    if (smallest_pinned_bytes_ == 0 || !t.linear() || t.shape.row_bytes < smallest_pinned_bytes_)
        return false;
    return !t.write || counts_.reads->load() == 0 || counts_.unset_user_events->load() == 0;
}

std::unique_ptr<staging> opencl_device::small_pinned(opencl_queue& queue, const box_transfer& t) const {
    const bool fits = !t.write && t.linear() && t.shape.row_bytes <= pinned_pool::small_piece_bytes;
    return queue.pinned && fits ? queue.pinned->take_small() : nullptr;
}

std::int32_t opencl_device::transfer_pinned(opencl_queue& queue, const box_transfer& t, wait_list waits,
                                            enqueued& out) {
    const std::uint64_t bytes = t.shape.row_bytes;
    auto memory = queue.pinned->take(bytes);
    if (memory.empty())
        return CL_OUT_OF_HOST_MEMORY;
    auto rest = std::make_unique<staged_rest>(t.data, t.write, counts_);
    rest->piece_for_each_part = true;
    std::vector<event_handle> events;
    std::int32_t error = CL_SUCCESS;
    for (std::uint64_t at = 0; at < bytes; at += staging_piece_bytes) {
        const std::uint64_t here = std::min(bytes - at, staging_piece_bytes);
        auto& piece = memory[at / staging_piece_bytes];
        if (t.write && !t.data->read(at, piece->data(), here)) {
            error = CL_OUT_OF_RESOURCES;
            break;
        }
        box_transfer part = t;
        part.offset += at;
        part.shape.row_bytes = here;
        cl_event event = nullptr;
        error = enqueue_box(queue.native.get(), part, piece->data(), {}, waits, &event);
        if (error != CL_SUCCESS)
            break;
        events.emplace_back(api_, event);
        rest->pieces.push_back({std::move(piece), {here, 1, 1}, {}, at});
        if (at + here < bytes)
            api_.clFlush(queue.native.get());
    }
    return join_parts(queue, std::move(events), std::move(rest), error, !t.write, out);
}

} // namespace kagemusha::gpu
