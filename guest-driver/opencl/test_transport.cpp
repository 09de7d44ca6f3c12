// SPDX-License-Identifier: GPL-2.0-or-later
//
// The unit tests' device; test_transport.hpp has the idea.
#include "test_transport.hpp"

#include "opencl_headers.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace kagemusha::opencl {
namespace {

// Devices live to the end of the process: objects of earlier tests may still refer to theirs.
std::vector<test_device*>& devices() {
    static auto* const all = new std::vector<test_device*>;
    return *all;
}

class test_transport final : public transport {
public:
    explicit test_transport(test_device& device) : device_(device) {}
    transport_limits limits() const override { return device_.limits; }
    int submit(const submission& request, std::uint64_t& sequence) override {
        return device_.submit(request, sequence);
    }
    int wait(std::uint64_t sequence, vgpu_response& answer) override {
        return device_.wait(sequence, answer);
    }
    std::ptrdiff_t read_records(std::span<std::byte> buffer, int timeout_ms) override {
        return device_.read_records(buffer, timeout_ms);
    }
    void shut_down() override { device_.shut_down(); }
    window_view map_window(const window_request& wanted) override { return device_.map_window(wanted); }
    void unmap_window(std::byte* address) noexcept override { device_.unmap_window(address); }
    int flush_window(const flush_target& target, std::uint64_t& flushed_bytes) override {
        return device_.flush_window(target, flushed_bytes);
    }
    void discard_window(const std::byte* address, std::uint64_t bytes) noexcept override {
        device_.discard_window(address, bytes);
    }
    void note_device_write(const void* address, std::uint64_t) noexcept override {
        device_.note_device_write(address);
    }
    bool wrote_window(const std::byte* address) const noexcept override {
        return device_.wrote_window(address);
    }
    void abandon_after_fork() noexcept override {}

private:
    test_device& device_;
};

template <class Value>
std::vector<std::byte> bytes_of(const Value& value) {
    std::vector<std::byte> result(sizeof value);
    std::memcpy(result.data(), &value, sizeof value);
    return result;
}

std::vector<std::byte> bytes_of(const std::string& text) {
    std::vector<std::byte> result(text.size() + 1);
    std::memcpy(result.data(), text.c_str(), result.size());
    return result;
}

std::vector<std::uint64_t> wait_list(const recorded_command& command, std::size_t fixed,
                                     std::uint32_t count) {
    std::vector<std::uint64_t> ids(count);
    if (count > 0)
        std::memcpy(ids.data(), command.bytes.data() + fixed, count * sizeof ids[0]);
    return ids;
}

} // namespace

std::vector<std::string> device_names() {
    return {test_device::first_name, test_device::second_name};
}

std::unique_ptr<transport> make_transport(const std::string& name, std::string&) {
    return std::make_unique<test_transport>(name == test_device::second_name ? test_device::second()
                                                                             : test_device::current());
}

test_device& test_device::fresh() {
    devices().push_back(new test_device);
    return *devices().back();
}

test_device& test_device::current() {
    return devices().empty() ? fresh() : *devices().back();
}

test_device& test_device::second() {
    static auto* const only = new test_device;
    return *only;
}

std::vector<recorded_command> test_device::commands() {
    const std::lock_guard held(mutex_);
    return commands_;
}

std::vector<recorded_command> test_device::commands(vgpu_opcode opcode) {
    std::vector<recorded_command> result = commands();
    std::erase_if(result, [&](const recorded_command& one) { return one.opcode != opcode; });
    return result;
}

std::size_t test_device::request_count() {
    const std::lock_guard held(mutex_);
    return requests_;
}

void test_device::forget() {
    const std::lock_guard held(mutex_);
    commands_.clear();
}

bool test_device::has_read(std::thread::id thread) {
    const std::lock_guard held(mutex_);
    return readers_.contains(thread);
}

void test_device::hold_completions() {
    const std::lock_guard held(mutex_);
    holding_ = true;
}

void test_device::release_completions() {
    const std::lock_guard held(mutex_);
    holding_ = false;
    run_enqueued();
}

void test_device::release_completions_backwards() {
    const std::lock_guard held(mutex_);
    holding_ = false;
    run_enqueued();
    std::reverse(records_.begin(), records_.end());
}

void test_device::fail_next(vgpu_opcode opcode, std::int32_t error) {
    const std::lock_guard held(mutex_);
    failure_ = {opcode, error};
}

void test_device::refuse_requests(unsigned count) {
    const std::lock_guard held(mutex_);
    refusals_ = count;
}

void test_device::refuse_address(const void* address) {
    const std::lock_guard held(mutex_);
    refused_addresses_.insert(address);
}

void test_device::offer_window(bool traced) {
    const std::lock_guard held(mutex_);
    has_window_ = true;
    window_traced_ = traced;
}

std::map<const std::byte*, test_device::window> test_device::windows() {
    const std::lock_guard held(mutex_);
    return windows_;
}

std::map<std::uint64_t, flush_target> test_device::flush_targets() {
    const std::lock_guard held(mutex_);
    return flush_targets_;
}

std::vector<test_device::flush> test_device::flushes() {
    const std::lock_guard held(mutex_);
    return flushes_;
}

void test_device::set_dirty_bytes(std::uint64_t bytes) {
    const std::lock_guard held(mutex_);
    dirty_bytes_ = bytes;
}

int test_device::flush_window(const flush_target& target, std::uint64_t& flushed_bytes) {
    const std::lock_guard held(mutex_);
    flushes_.push_back({target, requests_});
    flushed_bytes = std::exchange(dirty_bytes_, 0);
    return 0;
}

window_view test_device::map_window(const window_request& wanted) {
    const std::lock_guard held(mutex_);
    if (!has_window_)
        return {};
    window made;
    made.memory = wanted.memory;
    made.bytes.resize(wanted.bytes);
    std::byte* const address = made.bytes.data();
    windows_.emplace(address, std::move(made));
    return {address, window_traced_};
}

void test_device::unmap_window(std::byte* address) noexcept {
    const std::lock_guard held(mutex_);
    windows_.erase(address);
}

void test_device::discard_window(const std::byte* address, std::uint64_t bytes) noexcept {
    const std::lock_guard held(mutex_);
    auto found = windows_.upper_bound(address);
    if (found != windows_.begin())
        (--found)->second.discarded.emplace_back(static_cast<std::uint64_t>(address - found->first), bytes);
}

void test_device::note_device_write(const void* address) noexcept {
    const std::lock_guard held(mutex_);
    auto found = windows_.upper_bound(static_cast<const std::byte*>(address));
    if (found != windows_.begin())
        (--found)->second.device_wrote = true;
}

bool test_device::wrote_window(const std::byte* address) noexcept {
    const std::lock_guard held(mutex_);
    auto found = windows_.upper_bound(address);
    return found != windows_.begin() && (--found)->second.device_wrote;
}

void test_device::send_text(const std::string& text) {
    vgpu_record_text record{};
    record.text_bytes = static_cast<__u32>(text.size());
    record.record.type = VGPU_RECORD_TEXT;
    record.record.bytes = static_cast<__u32>(sizeof record + (text.size() + 7) / 8 * 8);
    std::vector<std::byte> bytes(record.record.bytes);
    std::memcpy(bytes.data(), &record, sizeof record);
    std::memcpy(bytes.data() + sizeof record, text.data(), text.size());
    const std::lock_guard held(mutex_);
    records_.push_back(std::move(bytes));
    changed_.notify_all();
}

void test_device::send_queue_error(std::uint64_t queue, std::int32_t error) {
    vgpu_record_queue_error record{};
    record.record.type = VGPU_RECORD_QUEUE_ERROR;
    record.record.bytes = sizeof record;
    record.queue = queue;
    record.error = error;
    const std::lock_guard held(mutex_);
    records_.push_back(bytes_of(record));
    changed_.notify_all();
}

void test_device::lose() {
    vgpu_record_lost record{};
    record.record.type = VGPU_RECORD_LOST;
    record.record.bytes = sizeof record;
    record.reason = VGPU_LOST_CRASHED;
    const std::lock_guard held(mutex_);
    records_.push_back(bytes_of(record));
    lost_ = true;
    changed_.notify_all();
}

int test_device::submit(const submission& request, std::uint64_t& sequence) {
    const std::lock_guard held(mutex_);
    if (lost_)
        return -ENODEV;
    if (refusals_ > 0) {
        --refusals_;
        return -EAGAIN;
    }
    for (const payload& one : request.payloads)
        if (refused_addresses_.contains(one.address))
            return -EFAULT;
    sequence = ++requests_;
    flush_targets_[sequence] = request.flush;
    vgpu_response answer{};
    std::uint32_t completions = 0;
    for (std::size_t at = 0; at < request.stream.size();) {
        vgpu_cmd header;
        std::memcpy(&header, request.stream.data() + at, sizeof header);
        if (header.bytes < sizeof header || header.bytes % 8 != 0 ||
            header.bytes > request.stream.size() - at) {
            answer.status = VGPU_STATUS_MALFORMED;
            answer.failed_offset = static_cast<__u32>(at);
            break;
        }
        recorded_command command;
        command.opcode = static_cast<vgpu_opcode>(header.opcode);
        command.request = sequence;
        command.bytes.assign(request.stream.begin() + static_cast<std::ptrdiff_t>(at),
                             request.stream.begin() + static_cast<std::ptrdiff_t>(at + header.bytes));
        if (command.opcode >= VGPU_FIRST_ENQUEUE) {
            vgpu_enqueue enqueue_part;
            std::memcpy(&enqueue_part, command.bytes.data() + sizeof header, sizeof enqueue_part);
            completions += enqueue_part.event != 0;
            commands_.push_back(command);
            enqueue(command, request.payloads);
        } else {
            commands_.push_back(command);
            answer.result = execute(command, request.payloads, answer);
        }
        at += header.bytes;
    }
    if (completions != request.completion_count)
        answer.status = VGPU_STATUS_MALFORMED;
    if (request.waitable)
        answers_[sequence] = answer;
    else if (answer.status != VGPU_STATUS_OK)
        records_.push_back(bytes_of(vgpu_record{VGPU_RECORD_OVERFLOW, sizeof(vgpu_record), 0, 0}));
    run_enqueued();
    changed_.notify_all();
    return 0;
}

int test_device::wait(std::uint64_t sequence, vgpu_response& answer) {
    const std::lock_guard held(mutex_);
    const auto found = answers_.find(sequence);
    if (found == answers_.end())
        return lost_ ? -ENODEV : -ENOENT;
    answer = found->second;
    answers_.erase(found);
    return 0;
}

std::ptrdiff_t test_device::read_records(std::span<std::byte> buffer, int timeout_ms) {
    std::unique_lock held(mutex_);
    const auto something = [this] { return !records_.empty() || lost_ || shut_down_; };
    if (timeout_ms < 0)
        changed_.wait(held, something);
    else if (!changed_.wait_for(held, std::chrono::milliseconds(timeout_ms), something))
        return -EAGAIN;
    std::size_t used = 0;
    readers_.insert(std::this_thread::get_id());
    while (!records_.empty() && records_.front().size() <= buffer.size() - used) {
        std::copy(records_.front().begin(), records_.front().end(),
                  buffer.begin() + static_cast<std::ptrdiff_t>(used));
        used += records_.front().size();
        records_.pop_front();
    }
    return static_cast<std::ptrdiff_t>(used);
}

void test_device::shut_down() {
    const std::lock_guard held(mutex_);
    shut_down_ = true;
    changed_.notify_all();
}

std::int32_t test_device::execute(const recorded_command& command, std::span<const payload> payloads,
                                  vgpu_response& answer) {
    if (failure_ && failure_->first == command.opcode) {
        const std::int32_t error = failure_->second;
        failure_.reset();
        return error;
    }
    switch (command.opcode) {
    case VGPU_CMD_INFO:
        return answer_query(command, payloads, answer);
    case VGPU_CMD_SUGGESTED_GROUP_SIZE: {
        const auto asked = command.as<vgpu_cmd_suggested_group_size>();
        const std::uint64_t size[3] = {asked.global[0] / 2, asked.work_dim, 1};
        std::memcpy(payloads[asked.result.index].address, size, sizeof size);
        answer.result_bytes = sizeof size;
        break;
    }
    case VGPU_CMD_CREATE_BUFFER: {
        const auto create = command.as<vgpu_cmd_create_buffer>();
        auto& bytes = content(create.id);
        bytes.resize(create.bytes);
        if (create.content.index == VGPU_PAYLOAD_INLINE)
            std::memcpy(bytes.data(), command.bytes.data() + sizeof create, create.bytes);
        else if (create.content.index != VGPU_PAYLOAD_NONE)
            std::memcpy(bytes.data(), payloads[create.content.index].address, create.bytes);
        break;
    }
    case VGPU_CMD_CREATE_IMAGE:
        create_image(command.as<vgpu_cmd_create_image>(), payloads);
        break;
    case VGPU_CMD_CREATE_KERNEL: {
        const auto create = command.as<vgpu_cmd_create_kernel>();
        kernel_names_[create.id] = std::string(
            reinterpret_cast<const char*>(command.bytes.data()) + sizeof create, create.name_bytes);
        if (!kernels.contains(kernel_names_[create.id]))
            return CL_INVALID_KERNEL_NAME;
        break;
    }
    case VGPU_CMD_SET_USER_EVENT: {
        const auto set = command.as<vgpu_cmd_set_user_event>();
        finished_events_[set.event] = set.status;
        break;
    }
    default:
        break;
    }
    return CL_SUCCESS;
}

std::int32_t test_device::answer_query(const recorded_command& command, std::span<const payload> payloads,
                                       vgpu_response& answer) {
    const auto info = command.as<vgpu_cmd_info>();
    std::vector<std::byte> value;
    switch (info.subject) {
    case VGPU_INFO_PLATFORM:
        if (info.name != VGPU_PLATFORM_COMMANDS || !tells_commands)
            return CL_INVALID_VALUE;
        value = bytes_of(std::uint64_t{1} << VGPU_CMD_SUGGESTED_GROUP_SIZE);
        break;
    case VGPU_INFO_DEVICE:
        if (info.name == CL_DEVICE_TYPE)
            value = bytes_of(cl_device_type{CL_DEVICE_TYPE_GPU});
        else if (info.name == CL_DEVICE_VERSION)
            value = bytes_of(std::string("OpenCL 3.0 test"));
        else if (info.name == CL_DEVICE_EXTENSIONS)
            value = bytes_of(std::string(
                "cl_khr_fp64 cl_khr_gl_sharing cl_khr_command_buffer cl_khr_suggested_local_work_size"));
        else if (info.name == CL_DEVICE_IMAGE_SUPPORT)
            value = bytes_of(cl_bool{CL_TRUE});
        else if (info.name == CL_DEVICE_MAX_MEM_ALLOC_SIZE)
            value = bytes_of(cl_ulong{1} << 40);
        else if (info.name == CL_DEVICE_MAX_WORK_GROUP_SIZE)
            value = bytes_of(std::size_t{256});
        else if (info.name == CL_DEVICE_MAX_WORK_ITEM_SIZES)
            value = bytes_of(std::array<std::size_t, 3>{256, 256, 64});
        else if (info.name == CL_DEVICE_MEM_BASE_ADDR_ALIGN)
            value = bytes_of(cl_uint{1024});
        else
            return CL_INVALID_VALUE;
        break;
    case VGPU_INFO_KERNEL:
        if (info.name != CL_KERNEL_NUM_ARGS)
            return CL_INVALID_VALUE;
        value = bytes_of(static_cast<cl_uint>(kernels[kernel_names_[info.object]].size()));
        break;
    case VGPU_INFO_KERNEL_ARG: {
        if (!argument_info_available)
            return CL_KERNEL_ARG_INFO_NOT_AVAILABLE;
        const argument& one = kernels[kernel_names_[info.object]].at(info.index);
        value = info.name == CL_KERNEL_ARG_ADDRESS_QUALIFIER ? bytes_of(one.address)
                : info.name == CL_KERNEL_ARG_TYPE_QUALIFIER  ? bytes_of(one.qualifiers)
                                                             : bytes_of(one.type);
        break;
    }
    case VGPU_INFO_KERNEL_WORK_GROUP:
        if (info.name == CL_KERNEL_WORK_GROUP_SIZE && max_work_group != 0)
            value = bytes_of(max_work_group);
        else if (info.name == CL_KERNEL_COMPILE_WORK_GROUP_SIZE && max_work_group != 0)
            value = bytes_of(required_group);
        else
            return CL_INVALID_VALUE;
        break;
    case VGPU_INFO_PROGRAM_BUILD: // longer than a first try has room for
        value = bytes_of(std::string(5000, 'x'));
        break;
    default:
        return CL_INVALID_VALUE;
    }
    answer.result_bytes = value.size();
    if (info.result.index != VGPU_PAYLOAD_NONE)
        std::memcpy(payloads[info.result.index].address, value.data(),
                    std::min<std::size_t>(value.size(), info.result.bytes));
    return CL_SUCCESS;
}

void test_device::enqueue(const recorded_command& command, std::span<const payload> payloads) {
    vgpu_enqueue header;
    std::memcpy(&header, command.bytes.data() + sizeof(vgpu_cmd), sizeof header);
    enqueued one;
    one.event = header.event;
    one.waits = {};
    switch (command.opcode) {
    case VGPU_CMD_WRITE_BUFFER:
    case VGPU_CMD_READ_BUFFER: {
        const auto transfer = command.as<vgpu_cmd_transfer_buffer>();
        one.waits = wait_list(command, sizeof transfer, header.wait_count);
        if (transfer.data.index == VGPU_PAYLOAD_INLINE) {
            const auto start =
                command.bytes.begin() + static_cast<std::ptrdiff_t>(sizeof transfer + 8 * header.wait_count);
            std::vector<std::byte> data(start, start + static_cast<std::ptrdiff_t>(transfer.data.bytes));
            one.run = [this, transfer, data] {
                std::copy(data.begin(), data.end(),
                          content(transfer.buffer).begin() + static_cast<std::ptrdiff_t>(transfer.offset));
            };
        } else {
            auto* const place = static_cast<std::byte*>(payloads[transfer.data.index].address);
            one.run = [this, transfer, place, reads = command.opcode == VGPU_CMD_READ_BUFFER] {
                std::byte* const inside = content(transfer.buffer).data() + transfer.offset;
                std::memcpy(reads ? place : inside, reads ? inside : place, transfer.data.bytes);
            };
        }
        break;
    }
    case VGPU_CMD_WRITE_IMAGE:
    case VGPU_CMD_READ_IMAGE: {
        const auto transfer = command.as<vgpu_cmd_transfer_image>();
        const bool reads = command.opcode == VGPU_CMD_READ_IMAGE;
        one.waits = wait_list(command, sizeof transfer, header.wait_count);
        if (transfer.data.index == VGPU_PAYLOAD_INLINE) {
            const std::byte* const start = command.bytes.data() + sizeof transfer + 8 * header.wait_count;
            std::vector<std::byte> data(start, start + transfer.data.bytes);
            one.run = [this, transfer, data]() mutable { transfer_image(transfer, data.data(), false); };
        } else {
            auto* const place = static_cast<std::byte*>(payloads[transfer.data.index].address);
            one.run = [this, transfer, place, reads] { transfer_image(transfer, place, reads); };
        }
        break;
    }
    case VGPU_CMD_LAUNCH:
        one.waits = wait_list(command, sizeof(vgpu_cmd_launch), header.wait_count);
        break;
    case VGPU_CMD_MARKER:
    case VGPU_CMD_BARRIER:
        one.waits = wait_list(command, sizeof(vgpu_cmd_sync), header.wait_count);
        break;
    default:
        break;
    }
    enqueued_.push_back(std::move(one));
}

void test_device::create_image(const vgpu_cmd_create_image& create, std::span<const payload> payloads) {
    const bool layers_are_rows = create.image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
    const std::uint64_t rows =
        layers_are_rows ? create.array_size : std::max<std::uint64_t>(1, create.height);
    const std::uint64_t slices =
        std::max<std::uint64_t>(1, layers_are_rows ? 1 : create.depth + create.array_size);
    images_[create.id] = {create.width, rows};
    content(create.id).resize(create.width * rows * slices * 4);
    if (create.content.index == VGPU_PAYLOAD_NONE)
        return;
    vgpu_cmd_transfer_image whole{};
    whole.image = create.id;
    whole.region[0] = create.width;
    whole.region[1] = rows;
    whole.region[2] = slices;
    whole.row_pitch = layers_are_rows ? create.slice_pitch : create.row_pitch;
    whole.slice_pitch = create.slice_pitch;
    transfer_image(whole, static_cast<std::byte*>(payloads[create.content.index].address), false);
}

void test_device::transfer_image(const vgpu_cmd_transfer_image& transfer, std::byte* place, bool reads) {
    const image_size size = images_.at(transfer.image);
    auto& pixels = content(transfer.image);
    for (std::uint64_t z = 0; z < transfer.region[2]; ++z)
        for (std::uint64_t y = 0; y < transfer.region[1]; ++y) {
            const std::uint64_t at =
                ((transfer.origin[2] + z) * size.rows + transfer.origin[1] + y) * size.width +
                transfer.origin[0];
            std::byte* const inside = &pixels.at(at * 4);
            std::byte* const outside = place + z * transfer.slice_pitch + y * transfer.row_pitch;
            std::memcpy(reads ? outside : inside, reads ? inside : outside, transfer.region[0] * 4);
        }
}

void test_device::run_enqueued() {
    while (!holding_ && !enqueued_.empty()) {
        enqueued& next = enqueued_.front();
        std::int32_t status = CL_COMPLETE;
        for (const std::uint64_t id : next.waits) {
            const auto found = finished_events_.find(id);
            if (found == finished_events_.end())
                return;
            if (found->second < 0)
                status = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
        }
        if (status == CL_COMPLETE && next.run)
            next.run();
        if (next.event)
            complete(next.event, status);
        enqueued_.pop_front();
    }
}

void test_device::complete(std::uint64_t event, std::int32_t status) {
    finished_events_[event] = status;
    vgpu_record_completion record{};
    record.record.type = VGPU_RECORD_COMPLETION;
    record.record.bytes = sizeof record;
    record.event = event;
    record.status = status;
    record.queued_ns = 1;
    record.submit_ns = 2;
    record.start_ns = 3;
    record.end_ns = 4;
    records_.push_back(bytes_of(record));
    changed_.notify_all();
}

} // namespace kagemusha::opencl
