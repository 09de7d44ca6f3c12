// SPDX-License-Identifier: GPL-2.0-or-later
// See run_scatter.hpp.
#include "gpu/opencl/run_scatter.hpp"

#include <cstring>
#include <utility>

namespace kagemusha::gpu {

namespace {

// A table of runs, then their bytes; those of a run lie as in the buffer towards whole words, which are stored as
// one, because a kernel of the guest may look at them.
constexpr const char* source = R"(
kernel void scatter(global uchar* to, global const uchar* from)
{
    const ulong2 run = ((global const ulong2*)from)[get_group_id(0)];
    const uint bytes = (uint)(run.y >> 32), me = get_local_id(0), all = get_local_size(0);
    to += run.x;
    from += (uint)run.y;
    const uint head = min((4u - (uint)(run.x & 3)) & 3u, bytes), words = (bytes - head) / 4;
    const uint tail = head + 4 * words;
    for (uint i = me; i < words; i += all)
        ((global uint*)(to + head))[i] = ((global const uint*)(from + head))[i];
    if (me < head)
        to[me] = from[me];
    if (me < bytes - tail)
        to[tail + me] = from[tail + me];
}
)";

struct table_entry {
    std::uint64_t offset;
    std::uint64_t place; // of its bytes behind the table's begin, and above them how many
};
static_assert(sizeof(table_entry) == 16);

constexpr std::size_t group_items = 32;

constexpr std::uint64_t word = 4;

// Where the bytes of a run go that are put behind `at`.
std::uint64_t place_of(const codec::buffer_run& run, std::uint64_t at) {
    return (at + word - 1) / word * word + run.offset % word;
}

// Of one WRITE_RUNS at most.
constexpr std::uint64_t most_bytes =
    VGPU_MAX_RUNS * (sizeof(table_entry) + word) + VGPU_MAX_INLINE_PAYLOAD_BYTES + word;

constexpr std::size_t most_device_buffers = 64;

} // namespace

// A piece of pinned memory, and one of the GPU's.
class run_scatter::loan final : public staging {
public:
    loan(std::shared_ptr<run_scatter> owner, std::unique_ptr<staging> host, memory_handle there)
        : staging(host->data()), owner_(std::move(owner)), host_(std::move(host)), there_(std::move(there)) {}
    ~loan() override {
        const std::lock_guard held(owner_->mutex_);
        owner_->free_.push_back(std::move(there_));
    }
    cl_mem there() const { return there_.get(); }

private:
    const std::shared_ptr<run_scatter> owner_;
    const std::unique_ptr<staging> host_;
    memory_handle there_;
};

run_scatter::~run_scatter() {
    if (builder_.joinable())
        builder_.join();
}

bool run_scatter::is_built() {
    if (!builder_.joinable() && !built_) {
        builder_ = std::thread([this] { build(); });
        if (waits_)
            builder_.join();
    }
    return built_.load(std::memory_order_acquire) && kernel_;
}

void run_scatter::build() {
    cl_int error = CL_SUCCESS;
    const char* text = source;
    const program_handle program(api_, api_.clCreateProgramWithSource(context_, 1, &text, nullptr, &error));
    if (error == CL_SUCCESS)
        error = api_.clBuildProgram(program.get(), 1, &device_, "", nullptr, nullptr);
    if (error == CL_SUCCESS)
        kernel_ = {api_, api_.clCreateKernel(program.get(), "scatter", &error)};
    built_.store(true, std::memory_order_release);
}

std::unique_ptr<run_scatter::loan> run_scatter::borrow(std::uint64_t bytes) {
    memory_handle there;
    {
        const std::lock_guard held(mutex_);
        if (!free_.empty()) {
            there = std::move(free_.back());
            free_.pop_back();
        }
    }
    if (!there) {
        if (device_buffers_ == most_device_buffers)
            return nullptr;
        cl_int error = CL_SUCCESS;
        there = {api_, api_.clCreateBuffer(context_, CL_MEM_READ_ONLY, most_bytes, nullptr, &error)};
        if (error != CL_SUCCESS)
            return nullptr;
        ++device_buffers_;
    }
    std::unique_ptr<staging> host;
    if (bytes <= pinned_pool::small_piece_bytes)
        host = pinned_->take_small();
    if (!host)
        if (auto pieces = pinned_->take(bytes); !pieces.empty())
            host = std::move(pieces.front());
    if (!host) {
        const std::lock_guard held(mutex_);
        free_.push_back(std::move(there));
        return nullptr;
    }
    return std::make_unique<loan>(shared_from_this(), std::move(host), std::move(there));
}

run_scatter::result run_scatter::enqueue(cl_command_queue queue, cl_mem memory,
                                         const std::vector<codec::buffer_run>& runs, const std::byte* data,
                                         cl_uint wait_count, const cl_event* waits) {
    result out;
    std::uint64_t bytes = runs.size() * sizeof(table_entry);
    for (const codec::buffer_run& run : runs)
        bytes = place_of(run, bytes) + run.bytes;
    if (bytes > most_bytes || !is_built())
        return out;
    auto pieces = borrow(bytes);
    if (!pieces)
        return out;
    std::uint64_t at = runs.size() * sizeof(table_entry);
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const codec::buffer_run& run = runs[i];
        at = place_of(run, at);
        const table_entry entry{run.offset, std::uint64_t{run.bytes} << 32 | at};
        std::memcpy(pieces->data() + i * sizeof(entry), &entry, sizeof(entry));
        std::memcpy(pieces->data() + at, data + run.from, run.bytes);
        at += run.bytes;
    }
    const cl_mem there = pieces->there();
    cl_event event = nullptr;
    out.error = api_.clEnqueueWriteBuffer(queue, there, CL_FALSE, 0, bytes, pieces->data(), wait_count, waits,
                                          &event);
    if (out.error != CL_SUCCESS)
        return out;
    out.events.emplace_back(api_, event);
    out.memory = std::move(pieces);
    out.error = api_.clSetKernelArg(kernel_.get(), 0, sizeof(memory), &memory);
    if (out.error == CL_SUCCESS)
        out.error = api_.clSetKernelArg(kernel_.get(), 1, sizeof(there), &there);
    const std::size_t local = group_items, global = runs.size() * group_items;
    event = nullptr;
    if (out.error == CL_SUCCESS)
        out.error = api_.clEnqueueNDRangeKernel(queue, kernel_.get(), 1, nullptr, &global, &local, 0, nullptr,
                                                &event);
    if (out.error == CL_SUCCESS)
        out.events.emplace_back(api_, event);
    return out;
}

} // namespace kagemusha::gpu
