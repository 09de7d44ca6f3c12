// SPDX-License-Identifier: GPL-2.0-or-later
// opencl_transfer: reads and writes between guest memory and GPU. Guest memory is scattered in pages; five
// ways:
//
//   direct         one run of guest memory: the native command gets the pointer. One copy, made by the
//                  runtime.
//   native kernel  devices that share the host's memory and run host functions (PoCL): one host function
//                  copies between all runs and the buffer. One copy, one command, and the runtime's own
//                  ordering and events.
//   pinned         large ranges of bytes on GPUs with memory of their own, and small reads: opencl_pinned. A
//                  write has taken its bytes when it returns.
//   staged         small pieces are gathered into (or scattered from) bounded staging memory; long runs in
//                  between go directly. A write has taken the staged bytes when it returns.
//   runs           no staging left: one native command for each run. Slow, but it never waits for the guest.
//
// Images go the same ways except the second and third, in boxes of pixels instead of ranges of bytes: one
// native command takes whole rows that lie in one run or were staged together; without staging, each run of a
// row.
//
// While a read is under way the reads behind it are staged, too, because the bytes of a staged one are in
// guest memory only after the GPU is done: those of a later read into the same memory must not be there
// first.
//
// What is more than one native command ends with the last of them, out of order with a marker that waits for
// all.
#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "codec/image_format.hpp"
#include "gpu/opencl/box_transfer.hpp"
#include "gpu/opencl/run_scatter.hpp"

namespace kagemusha::gpu {

namespace {

// A run at least as long as this goes to the runtime directly: a native command costs a few microseconds,
// which is what copying 64 KiB costs.
constexpr std::uint64_t direct_run_bytes = 64 << 10;

// A host function's work on a buffer (clEnqueueNativeKernel). It belongs to the event, so it lives until the
// command is done or has failed.
class host_job : public transfer_rest {
public:
    std::int32_t finish(std::int32_t status) final { return status; }
    virtual void run(std::byte* buffer) = 0; // on a thread of the runtime
};

cl_int enqueue_host_job(const opencl_api& api, const opencl_queue& queue, const opencl_memory& memory,
                        std::unique_ptr<host_job> job, cl_uint wait_count, const cl_event* waits,
                        enqueued& out) {
    // What OpenCL copies for the host function; it puts the buffer's address in the place of `buffer`.
    struct arguments {
        void* buffer;
        host_job* job;
    } given{nullptr, job.get()};
    const auto run = [](void* raw) CL_CALLBACK {
        arguments a;
        std::memcpy(&a, raw, sizeof(a));
        a.job->run(static_cast<std::byte*>(a.buffer));
    };
    const cl_mem root = memory.root.get();
    const void* where = &given.buffer;
    cl_event event = nullptr;
    if (const cl_int error = api.clEnqueueNativeKernel(queue.native.get(), run, &given, sizeof(given), 1,
                                                       &root, &where, wait_count, waits, &event))
        return error;
    out.event = std::make_unique<opencl_event>(api, event_handle(), event_handle(api, event), std::move(job));
    return CL_SUCCESS;
}

// The box of a transfer, in the pieces that guest memory has.
class copy_job final : public host_job {
public:
    copy_job(payload_ptr data, bool write, box_shape shape, box_pitch host, std::uint64_t offset,
             box_pitch buffer)
        : data_(std::move(data))
        , write_(write)
        , shape_(shape)
        , host_(host)
        , offset_(offset)
        , buffer_(buffer) {}

    void run(std::byte* buffer) override {
        std::byte* const begin = buffer + offset_;
        if (write_)
            data_->read_box(shape_, host_, begin, buffer_);
        else
            data_->write_box(shape_, host_, begin, buffer_);
    }

private:
    payload_ptr data_;
    bool write_;
    box_shape shape_;
    box_pitch host_;
    std::uint64_t offset_;
    box_pitch buffer_;
};

// The runs of a WRITE_RUNS, whose data is a private copy.
class runs_job final : public host_job {
public:
    runs_job(const codec::run_list& runs, payload_ptr data, std::uint64_t origin) : data_(std::move(data)) {
        runs.for_each([&](codec::buffer_run run) {
            run.offset += origin;
            runs_.push_back(run);
        });
    }

    void run(std::byte* buffer) override {
        const std::byte* data = data_->contiguous();
        for (const codec::buffer_run& run : runs_)
            std::memcpy(buffer + run.offset, data + run.from, run.bytes);
    }

private:
    payload_ptr data_;
    std::vector<codec::buffer_run> runs_;
};

} // namespace

// ---- the commands
// -----------------------------------------------------------------------------------------------

std::int32_t opencl_device::enqueue_transfer(opencl_queue& queue,
                                             const resolved<codec::op_transfer_buffer>& r, wait_list waits,
                                             enqueued& out) {
    const auto& [buffer, data] = r.parts;
    box_transfer t{r.op.write(), static_cast<opencl_memory&>(buffer), data, {data->bytes(), 1, 1}, {}};
    t.offset = r.op.c->offset;
    return transfer(queue, t, waits, out);
}

std::int32_t opencl_device::enqueue_transfer(opencl_queue& queue, const resolved<codec::op_transfer_rect>& r,
                                             wait_list waits, enqueued& out) {
    const auto& [buffer, data] = r.parts;
    const vgpu_cmd_transfer_rect& c = *r.op.c;
    box_transfer t{r.op.write(),
                   static_cast<opencl_memory&>(buffer),
                   data,
                   {c.region[0], c.region[1], c.region[2]},
                   {c.host_row_pitch, c.host_slice_pitch}};
    t.buffer = {c.buffer_row_pitch, c.buffer_slice_pitch};
    t.offset = c.buffer_origin[2] * t.buffer.slice + c.buffer_origin[1] * t.buffer.row + c.buffer_origin[0];
    std::copy(std::begin(c.buffer_origin), std::end(c.buffer_origin), t.origin);
    std::copy(std::begin(c.region), std::end(c.region), t.region);
    return transfer(queue, t, waits, out);
}

std::int32_t opencl_device::enqueue_transfer(opencl_queue& queue, const resolved<codec::op_transfer_image>& r,
                                             wait_list waits, enqueued& out) {
    const auto& [image, data] = r.parts;
    const vgpu_cmd_transfer_image& c = *r.op.c;
    auto& memory = static_cast<opencl_memory&>(image);
    const auto row_bytes = (base::checked_u64(c.region[0]) * memory.element_bytes).value();
    // The layers of a 1D array are one below the other; OpenCL calls their distance the slice pitch.
    const bool layers_are_rows = memory.type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
    const std::uint64_t row_pitch = layers_are_rows && c.slice_pitch ? c.slice_pitch : c.row_pitch;
    if (!row_bytes)
        return CL_INVALID_VALUE;
    const auto needed = codec::image_linear_bytes(c.region, static_cast<std::uint32_t>(memory.element_bytes),
                                                  row_pitch, c.slice_pitch)
                            .value();
    if (!needed || *needed > data->bytes() || row_pitch < *row_bytes ||
        (c.region[2] > 1 && c.slice_pitch < *row_bytes))
        return CL_INVALID_VALUE;
    box_transfer t{
        r.op.write(), memory, data, {*row_bytes, c.region[1], c.region[2]}, {row_pitch, c.slice_pitch}};
    std::copy(std::begin(c.origin), std::end(c.origin), t.origin);
    std::copy(std::begin(c.region), std::end(c.region), t.region);
    return transfer(queue, t, waits, out);
}

std::int32_t opencl_device::enqueue_transfer(opencl_queue& queue, const resolved<codec::op_write_runs>& r,
                                             wait_list waits, enqueued& out) {
    const auto& [buffer, data] = r.parts;
    const auto& memory = static_cast<const opencl_memory&>(buffer);
    if (native_kernels_ && mode_ == transfer_mode::automatic)
        return enqueue_host_job(api_, queue, memory,
                                std::make_unique<runs_job>(r.op.runs, data, memory.root_offset), waits.count,
                                waits.events, out);
    if (const std::int32_t error = scatter_runs(queue, r, waits, out); error != CL_SUCCESS || out.event)
        return error;
    std::vector<event_handle> events;
    std::int32_t error = CL_SUCCESS;
    const std::byte* const from = data->contiguous();
    r.op.runs.for_each([&](const codec::buffer_run& run) {
        cl_event event = nullptr;
        if (error == CL_SUCCESS)
            error = api_.clEnqueueWriteBuffer(queue.native.get(), memory.native.get(), CL_FALSE, run.offset,
                                              run.bytes, from + run.from, waits.count, waits.events, &event);
        if (event)
            events.emplace_back(api_, event);
    });
    return join_parts(queue, std::move(events), std::make_unique<staged_rest>(data, true, counts_), error,
                      false, out);
}

std::int32_t opencl_device::scatter_runs(opencl_queue& queue, const resolved<codec::op_write_runs>& r,
                                         wait_list waits, enqueued& out) {
    if (!queue.scatter || !queue.in_order || *queue.queues != 1)
        return CL_SUCCESS;
    const auto& [buffer, data] = r.parts;
    std::vector<codec::buffer_run> runs;
    r.op.runs.for_each([&](const codec::buffer_run& run) { runs.push_back(run); });
    if (runs.size() < run_scatter::fewest_runs)
        return CL_SUCCESS;
    auto done =
        queue.scatter->enqueue(queue.native.get(), static_cast<const opencl_memory&>(buffer).native.get(),
                               runs, data->contiguous(), waits.count, waits.events);
    if (done.events.empty())
        return done.error;
    auto rest = std::make_unique<staged_rest>(nullptr, true, counts_);
    rest->pieces.push_back({std::move(done.memory), {}, {}, 0});
    return join_parts(queue, std::move(done.events), std::move(rest), done.error, false, out);
}

// ---- the four ways
// ------------------------------------------------------------------------------------------------------

std::int32_t opencl_device::transfer(opencl_queue& queue, const box_transfer& t, wait_list waits,
                                     enqueued& out) {
    const bool behind_a_read = !t.write && mode_ != transfer_mode::direct && counts_.reads->load() > 0;
    if (goes_pinned(t)) {
        const std::int32_t error = transfer_pinned(queue, t, waits, out);
        if (error != CL_OUT_OF_HOST_MEMORY)
            return error;
    }
    if (auto memory = small_pinned(queue, t))
        return transfer_through(std::move(memory), queue, t, waits, out);
    const bool has_host_functions = native_kernels_ && mode_ == transfer_mode::automatic;
    if (behind_a_read && !has_host_functions && t.tight().slice * t.shape.slices <= staging_piece_bytes) {
        const std::int32_t error = transfer_staged(queue, t, waits, out);
        if (error != CL_OUT_OF_HOST_MEMORY)
            return error;
    }
    if (t.data->contiguous())
        return transfer_direct(queue, t, waits, out);
    if (has_host_functions && !t.image())
        return transfer_native_kernel(queue, t, waits, out);
    const bool may_stage = mode_ != transfer_mode::direct;
    if (t.image()) {
        const bool one_piece = t.tight().slice * t.shape.slices <= staging_piece_bytes;
        const std::int32_t error =
            may_stage && one_piece ? transfer_staged(queue, t, waits, out) : CL_OUT_OF_HOST_MEMORY;
        return error == CL_OUT_OF_HOST_MEMORY ? transfer_image_runs(queue, t, waits, out) : error;
    }
    if (!t.linear() && may_stage) {
        const std::int32_t error = transfer_staged(queue, t, waits, out);
        if (error != CL_OUT_OF_HOST_MEMORY)
            return error;
    }
    return transfer_runs(queue, t, waits, out);
}

// The whole box between the GPU and one piece of host memory.
std::int32_t opencl_device::enqueue_box(cl_command_queue queue, const box_transfer& t, std::byte* host,
                                        const box_pitch& pitch, wait_list waits, cl_event* event) {
    const cl_mem memory = t.memory.native.get();
    if (t.image()) {
        // Only images with slices (or layers) have a slice pitch.
        const bool sliced =
            t.memory.type == CL_MEM_OBJECT_IMAGE3D || t.memory.type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
        const bool layered = t.memory.type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
        const std::size_t slice = sliced ? pitch.slice : layered ? pitch.row : 0;
        return t.write ? api_.clEnqueueWriteImage(queue, memory, CL_FALSE, t.origin, t.region, pitch.row,
                                                  slice, host, waits.count, waits.events, event)
                       : api_.clEnqueueReadImage(queue, memory, CL_FALSE, t.origin, t.region, pitch.row,
                                                 slice, host, waits.count, waits.events, event);
    }
    if (t.linear())
        return t.write ? api_.clEnqueueWriteBuffer(queue, memory, CL_FALSE, t.offset, t.shape.row_bytes, host,
                                                   waits.count, waits.events, event)
                       : api_.clEnqueueReadBuffer(queue, memory, CL_FALSE, t.offset, t.shape.row_bytes, host,
                                                  waits.count, waits.events, event);
    const std::size_t host_origin[3] = {};
    return t.write ? api_.clEnqueueWriteBufferRect(queue, memory, CL_FALSE, t.origin, host_origin, t.region,
                                                   t.buffer.row, t.buffer.slice, pitch.row, pitch.slice, host,
                                                   waits.count, waits.events, event)
                   : api_.clEnqueueReadBufferRect(queue, memory, CL_FALSE, t.origin, host_origin, t.region,
                                                  t.buffer.row, t.buffer.slice, pitch.row, pitch.slice, host,
                                                  waits.count, waits.events, event);
}

std::int32_t opencl_device::transfer_direct(opencl_queue& queue, const box_transfer& t, wait_list waits,
                                            enqueued& out) {
    cl_event event = nullptr;
    if (const std::int32_t error =
            enqueue_box(queue.native.get(), t, t.data->contiguous(), t.host, waits, &event))
        return error;
    out.event = std::make_unique<opencl_event>(api_, event_handle(), event_handle(api_, event),
                                               std::make_unique<staged_rest>(t.data, t.write, counts_));
    out.payload_busy = true;
    return CL_SUCCESS;
}

std::int32_t opencl_device::transfer_native_kernel(opencl_queue& queue, const box_transfer& t,
                                                   wait_list waits, enqueued& out) {
    const cl_int error =
        enqueue_host_job(api_, queue, t.memory,
                         std::make_unique<copy_job>(t.data, t.write, t.shape, t.host,
                                                    t.memory.root_offset + t.offset, t.buffer),
                         waits.count, waits.events, out);
    out.payload_busy = error == CL_SUCCESS;
    return error;
}

std::int32_t opencl_device::transfer_staged(opencl_queue& queue, const box_transfer& t, wait_list waits,
                                            enqueued& out) {
    auto memory = staging_->take(t.tight().slice * t.shape.slices);
    if (!memory)
        return CL_OUT_OF_HOST_MEMORY;
    return transfer_through(std::move(memory), queue, t, waits, out);
}

std::int32_t opencl_device::transfer_through(std::unique_ptr<staging> memory, opencl_queue& queue,
                                             const box_transfer& t, wait_list waits, enqueued& out) {
    const box_pitch tight = t.tight();
    if (t.write && !t.data->read_box(t.shape, t.host, memory->data(), tight))
        return CL_OUT_OF_RESOURCES;
    cl_event event = nullptr;
    if (const std::int32_t error = enqueue_box(queue.native.get(), t, memory->data(), tight, waits, &event))
        return error;
    auto rest = std::make_unique<staged_rest>(t.data, t.write, counts_);
    rest->pieces.push_back({std::move(memory), t.shape, t.host, 0});
    out.event =
        std::make_unique<opencl_event>(api_, event_handle(), event_handle(api_, event), std::move(rest));
    out.payload_busy = !t.write;
    return CL_SUCCESS;
}

// Buffers only. Goes through the rows and cuts each where guest memory is cut; long pieces go directly, short
// ones that are neighbours in the buffer are staged together as far as there is staging memory.
std::int32_t opencl_device::transfer_runs(opencl_queue& queue, const box_transfer& t, wait_list waits,
                                          enqueued& out) {
    auto rest = std::make_unique<staged_rest>(t.data, t.write, counts_);
    std::vector<event_handle> events;
    std::int32_t error = CL_SUCCESS;
    bool busy = !t.write;

    const auto one = [&](std::uint64_t offset, std::byte* host, std::uint64_t bytes) {
        cl_event event = nullptr;
        error = t.write ? api_.clEnqueueWriteBuffer(queue.native.get(), t.memory.native.get(), CL_FALSE,
                                                    offset, bytes, host, waits.count, waits.events, &event)
                        : api_.clEnqueueReadBuffer(queue.native.get(), t.memory.native.get(), CL_FALSE,
                                                   offset, bytes, host, waits.count, waits.events, &event);
        if (error == CL_SUCCESS)
            events.emplace_back(api_, event);
    };
    const auto staged = [&](std::uint64_t offset, std::uint64_t payload_offset, std::uint64_t bytes) {
        auto memory = mode_ == transfer_mode::direct ? nullptr : staging_->take(bytes);
        if (!memory)
            return false;
        if (t.write && !t.data->read(payload_offset, memory->data(), bytes)) {
            error = CL_OUT_OF_RESOURCES;
            return true;
        }
        one(offset, memory->data(), bytes);
        if (error == CL_SUCCESS)
            rest->pieces.push_back({std::move(memory), {bytes, 1, 1}, {}, payload_offset});
        return true;
    };

    const auto runs = t.data->runs();
    for (std::uint64_t z = 0; z < t.shape.slices && error == CL_SUCCESS; ++z)
        for (std::uint64_t y = 0; y < t.shape.rows && error == CL_SUCCESS; ++y) {
            const std::uint64_t begin = z * t.host.slice + y * t.host.row;
            const std::uint64_t end = begin + t.shape.row_bytes;
            const std::uint64_t in_buffer = t.offset + z * t.buffer.slice + y * t.buffer.row;
            auto run =
                std::upper_bound(runs.begin(), runs.end(), begin,
                                 [](std::uint64_t o, const guest_payload::run& r) { return o < r.offset; }) -
                1;
            for (std::uint64_t at = begin; at < end && error == CL_SUCCESS;) {
                while (run->offset + run->bytes <= at)
                    ++run;
                // How far to stage: until a run is worth a command of its own, or the piece is full.
                std::uint64_t stop = at;
                for (auto next = run; stop < end && next != runs.end(); ++next) {
                    const std::uint64_t run_end = std::min(end, next->offset + next->bytes);
                    if (run_end - stop >= direct_run_bytes || run_end - at > staging_piece_bytes)
                        break;
                    stop = run_end;
                }
                if (stop > at && staged(in_buffer + (at - begin), at, stop - at)) {
                    at = stop;
                    continue;
                }
                const std::uint64_t n = std::min(end, run->offset + run->bytes) - at;
                one(in_buffer + (at - begin), run->base + (at - run->offset), n);
                busy = true;
                at += n;
            }
        }

    return join_parts(queue, std::move(events), std::move(rest), error, busy, out);
}

// Images: row by row, as many at a time as lie in one run or are staged together.
std::int32_t opencl_device::transfer_image_runs(opencl_queue& queue, const box_transfer& t, wait_list waits,
                                                enqueued& out) {
    const std::uint64_t element = t.memory.element_bytes;
    const auto runs = t.data->runs();
    auto rest = std::make_unique<staged_rest>(t.data, t.write, counts_);
    std::vector<event_handle> events;
    std::int32_t error = CL_SUCCESS;
    bool busy = !t.write;

    const auto run_at = [&](std::uint64_t offset) {
        return *(std::upper_bound(runs.begin(), runs.end(), offset,
                                  [](std::uint64_t o, const guest_payload::run& r) { return o < r.offset; }) -
                 1);
    };
    // A box of the image, `x` and `columns` in pixels, between the GPU and `host`.
    const auto one = [&](std::uint64_t x, std::uint64_t y, std::uint64_t z, std::uint64_t columns,
                         std::uint64_t rows, std::byte* host, const box_pitch& pitch) {
        box_transfer part = t;
        part.origin[0] += x;
        part.origin[1] += y;
        part.origin[2] += z;
        part.region[0] = columns;
        part.region[1] = rows;
        part.region[2] = 1;
        cl_event event = nullptr;
        error = enqueue_box(queue.native.get(), part, host, pitch, waits, &event);
        if (error == CL_SUCCESS)
            events.emplace_back(api_, event);
    };
    const auto staged = [&](std::uint64_t x, std::uint64_t y, std::uint64_t z, std::uint64_t columns,
                            std::uint64_t rows, std::uint64_t offset) {
        const box_shape shape{columns * element, rows, 1};
        const box_pitch tight{shape.row_bytes, shape.row_bytes * rows};
        auto memory = staging_->take(tight.slice);
        if (!memory)
            return false;
        if (t.write && !t.data->read_box(shape, t.host, memory->data(), tight, offset)) {
            error = CL_OUT_OF_RESOURCES;
            return true;
        }
        one(x, y, z, columns, rows, memory->data(), tight);
        if (error == CL_SUCCESS)
            rest->pieces.push_back({std::move(memory), shape, t.host, offset});
        return true;
    };
    const auto row_offset = [&](std::uint64_t y, std::uint64_t z) {
        return z * t.host.slice + y * t.host.row;
    };
    // How many rows from here on lie in one run; 0: not even the first.
    const auto rows_in_run = [&](std::uint64_t y, std::uint64_t z) -> std::uint64_t {
        const std::uint64_t begin = row_offset(y, z);
        const guest_payload::run run = run_at(begin);
        const std::uint64_t there = run.offset + run.bytes - begin;
        if (there < t.shape.row_bytes)
            return 0;
        return std::min(t.shape.rows - y, 1 + (there - t.shape.row_bytes) / t.host.row);
    };
    const auto worth_a_command = [&](std::uint64_t rows) {
        return rows != 0 && rows * t.shape.row_bytes >= direct_run_bytes;
    };
    const std::uint64_t rows_of_piece = std::max<std::uint64_t>(1, staging_piece_bytes / t.shape.row_bytes);

    for (std::uint64_t z = 0; z < t.shape.slices; ++z)
        for (std::uint64_t y = 0; y < t.shape.rows && error == CL_SUCCESS;) {
            const std::uint64_t begin = row_offset(y, z);
            const std::uint64_t together = rows_in_run(y, z);
            if (worth_a_command(together)) {
                const guest_payload::run run = run_at(begin);
                one(0, y, z, t.region[0], together, run.base + (begin - run.offset), t.host);
                busy = true;
                y += together;
                continue;
            }
            std::uint64_t rows = 1;
            while (rows < rows_of_piece && y + rows < t.shape.rows &&
                   !worth_a_command(rows_in_run(y + rows, z)))
                ++rows;
            if (mode_ != transfer_mode::direct && staged(0, y, z, t.region[0], rows, begin)) {
                y += rows;
                continue;
            }
            for (std::uint64_t x = 0; x < t.region[0] && error == CL_SUCCESS;) {
                const std::uint64_t at = begin + x * element;
                const guest_payload::run run = run_at(at);
                const std::uint64_t pixels =
                    std::min(t.region[0] - x, (run.offset + run.bytes - at) / element);
                if (pixels != 0) {
                    one(x, y, z, pixels, 1, run.base + (at - run.offset), t.host);
                    busy = true;
                } else if (!staged(x, y, z, 1, 1, at)) { // a pixel that lies in two runs
                    error = CL_OUT_OF_HOST_MEMORY;
                }
                x += std::max<std::uint64_t>(pixels, 1);
            }
            ++y;
        }
    return join_parts(queue, std::move(events), std::move(rest), error, busy, out);
}

// The end of a transfer in parts. Also when a part failed to be enqueued: the parts before it are under way,
// and the command ends, as failed, after them.
std::int32_t opencl_device::join_parts(opencl_queue& queue, std::vector<event_handle> events,
                                       std::unique_ptr<staged_rest> rest, std::int32_t error, bool busy,
                                       enqueued& out) {
    if (events.empty())
        return error;
    event_handle last = std::move(events.back());
    events.pop_back();
    event_handle first;
    if (!events.empty()) {
        api_.clRetainEvent(events.front().get());
        first = event_handle(api_, events.front().get());
    }
    // In order the last part ends last, and a marker that waits for thousands of events costs some runtimes
    // milliseconds.
    if (!events.empty() && !queue.in_order) {
        std::vector<cl_event> list;
        for (const event_handle& event : events)
            list.push_back(event.get());
        list.push_back(last.get());
        cl_event marker = nullptr;
        const cl_int marker_error = api_.clEnqueueMarkerWithWaitList(
            queue.native.get(), static_cast<cl_uint>(list.size()), list.data(), &marker);
        if (marker_error == CL_SUCCESS) {
            events.push_back(std::move(last));
            last = event_handle(api_, marker);
        }
        error = error == CL_SUCCESS ? marker_error : error;
    }
    for (event_handle& event : events) {
        rest->parts.push_back(
            std::make_unique<opencl_event>(api_, event_handle(), std::move(event), nullptr));
        if (holds_events_)
            rest->parts.back()->keep_failed();
    }
    out.event =
        std::make_unique<opencl_event>(api_, std::move(first), std::move(last), std::move(rest), error);
    out.payload_busy = busy;
    return CL_SUCCESS;
}

} // namespace kagemusha::gpu
