// SPDX-License-Identifier: GPL-2.0-or-later
//
// A device for unit tests: it reads what the driver submits with the protocol's own structures, keeps the
// commands for the test to look at, and answers as a small but consistent device would: objects exist or do
// not, enqueued commands complete in order unless the test holds them back or one of their events does.
#pragma once

#include "transport.hpp"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace kagemusha::opencl {

// One command as it arrived.
struct recorded_command {
    vgpu_opcode opcode{};
    std::uint64_t request = 0;
    std::vector<std::byte> bytes;

    template <class Command>
    Command as() const {
        Command command;
        std::memcpy(&command, bytes.data(), sizeof command);
        return command;
    }
};

class test_device {
public:
    static constexpr const char* first_name = "first";
    static constexpr const char* second_name = "second";

    // The device that is opened next under the first name; replaces the one before.
    static test_device& fresh();
    static test_device& current();
    // The one behind the second name; never replaced.
    static test_device& second();

    std::vector<recorded_command> commands();
    std::vector<recorded_command> commands(vgpu_opcode opcode);
    std::size_t request_count();
    void forget();
    // Whether this thread has read a record.
    bool has_read(std::thread::id thread);

    // Enqueued commands that come from now on do not complete until released.
    void hold_completions();
    void release_completions();
    // The same, with the records in the wrong order.
    void release_completions_backwards();

    // The next call of this kind answers with this error.
    void fail_next(vgpu_opcode opcode, std::int32_t error);

    // submit() answers -EAGAIN so many times.
    void refuse_requests(unsigned count);

    // submit() answers -EFAULT for requests with a payload at this address.
    void refuse_address(const void* address);

    // From now on buffers can be mapped in a window, `traced` or not.
    void offer_window(bool traced);
    struct window {
        std::uint64_t memory = 0;
        std::vector<std::byte> bytes;
        std::vector<std::pair<std::uint64_t, std::uint64_t>> discarded; // offset, bytes
        bool device_wrote = false;
    };
    // What is mapped now, by address; and where each request's flush goes, by its number.
    std::map<const std::byte*, window> windows();
    std::map<std::uint64_t, flush_target> flush_targets();
    // Flushes without a request: the queue, and how many requests had come before.
    struct flush {
        flush_target target;
        std::uint64_t requests;
    };
    std::vector<flush> flushes();
    // What each of them says that it sent.
    void set_dirty_bytes(std::uint64_t bytes);

    void send_text(const std::string& text);
    void send_queue_error(std::uint64_t queue, std::int32_t error);
    void lose();

    // Kernel arguments that VGPU_INFO_KERNEL_ARG describes: address qualifier, type name, type qualifiers.
    // Empty: not available.
    struct argument {
        std::uint32_t address;
        std::string type;
        std::uint64_t qualifiers = 0;
    };
    std::map<std::string, std::vector<argument>> kernels;
    bool argument_info_available = true;
    bool tells_commands = true; // false: a device from before VGPU_PLATFORM_COMMANDS
    // What VGPU_INFO_KERNEL_WORK_GROUP says of every kernel. 0: nothing.
    std::size_t max_work_group = 0;
    std::array<std::size_t, 3> required_group{};

    // A batch goes by what it holds, not by its age.
    transport_limits limits{.age = {std::chrono::hours(1), std::chrono::hours(1)}};

    // What the transport calls.
    int submit(const submission& request, std::uint64_t& sequence);
    int wait(std::uint64_t sequence, vgpu_response& answer);
    std::ptrdiff_t read_records(std::span<std::byte> buffer, int timeout_ms);
    void shut_down();
    window_view map_window(const window_request& wanted);
    void unmap_window(std::byte* address) noexcept;
    int flush_window(const flush_target& target, std::uint64_t& flushed_bytes);
    void discard_window(const std::byte* address, std::uint64_t bytes) noexcept;
    void note_device_write(const void* address) noexcept;
    bool wrote_window(const std::byte* address) noexcept;

private:
    struct enqueued {
        std::uint64_t event;
        std::vector<std::uint64_t> waits;
        std::function<void()> run;
    };

    std::int32_t execute(const recorded_command& command, std::span<const payload> payloads,
                         vgpu_response& answer);
    std::int32_t answer_query(const recorded_command& command, std::span<const payload> payloads,
                              vgpu_response& answer);
    void enqueue(const recorded_command& command, std::span<const payload> payloads);
    void run_enqueued();
    void complete(std::uint64_t event, std::int32_t status);
    std::vector<std::byte>& content(std::uint64_t memory) { return memories_[memory]; }
    void create_image(const vgpu_cmd_create_image& create, std::span<const payload> payloads);
    // One transfer between an image and the program's memory at `place`.
    void transfer_image(const vgpu_cmd_transfer_image& transfer, std::byte* place, bool reads);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<recorded_command> commands_;
    std::uint64_t requests_ = 0;
    std::map<std::uint64_t, vgpu_response> answers_;
    std::deque<std::vector<std::byte>> records_;
    std::deque<enqueued> enqueued_;
    std::map<std::uint64_t, std::int32_t> finished_events_;
    std::map<std::uint64_t, std::vector<std::byte>> memories_;
    struct image_size {
        std::uint64_t width, rows; // rows of one slice; of an array of 1D images, its layers
    };
    std::map<std::uint64_t, image_size> images_; // elements of four bytes, without gaps in memories_
    std::map<std::uint64_t, std::string> kernel_names_;
    std::optional<std::pair<vgpu_opcode, std::int32_t>> failure_;
    std::set<const void*> refused_addresses_;
    bool has_window_ = false;
    bool window_traced_ = false;
    std::map<const std::byte*, window> windows_;
    std::map<std::uint64_t, flush_target> flush_targets_;
    std::vector<flush> flushes_;
    std::uint64_t dirty_bytes_ = 0;
    unsigned refusals_ = 0;
    bool holding_ = false;
    bool lost_ = false;
    bool shut_down_ = false;
    std::set<std::thread::id> readers_;
};

} // namespace kagemusha::opencl
