// SPDX-License-Identifier: GPL-2.0-or-later
//
// The guest's OpenCL driver linked to the host's device library in one process: everything of the way of a
// call except the guest kernel, the virtqueue and QEMU. Real programs (clinfo, CLBlast's tests, hashcat) run
// against it in seconds, so most bugs show here and need no VM; and on a machine with a real GPU but no KVM
// it is the honest way to measure the host's side.
//
// A worker sees only shared memory, a program's own memory is not: payloads are copied through an arena (a
// memfd) that is the device's region 0. That copy is the guest kernel's page pinning turned into its plain
// opposite, and the one thing that is not real here. A measurement can do without it (_SHARE, shared_pages.hpp).
//
// Environment: KAGEMUSHA_LOOPBACK_DEVICES (1: how many devices of one kind the program has),
// KAGEMUSHA_LOOPBACK_MAX_PAYLOAD (bytes of the program's memory that one request may carry),
// KAGEMUSHA_LOOPBACK_BACKEND (opencl), _GPU, _OPTIONS, _IN_PROCESS (0), _SANDBOX (0 required, 1
// best effort, 2 off), _HANG_TIMEOUT_MS, _STATS (1: print counters at the end), _SHARE (bytes: a payload
// of so many or more is in pages that program and arena share), _REPLICATE_TO (where a standby of the VM
// "loopback" listens; at the end the program waits until the standby has done everything, and fails if that
// does not protect it any more).
#include "guest-driver/opencl/transport.hpp"

#include <CL/cl.h>
#include <kagemusha/device.h>

#include "base/look_window.hpp"
#include "gpu/copy_crew.hpp"
#include "range_allocator.hpp"
#include "requests.hpp"
#include "shared_pages.hpp"
#include "worker/look_for.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kagemusha::opencl {
namespace {

constexpr std::uint64_t arena_bytes = std::uint64_t{16} << 30; // sparse
constexpr std::uint64_t arena_alignment = 4096;
constexpr std::uint64_t large_read_bytes = 1 << 20;
constexpr std::uint32_t the_file = 1;
constexpr std::uint64_t close_token = ~std::uint64_t{0};

const char* environment(const char* name, const char* fallback) {
    const char* value = std::getenv(name);
    return value ? value : fallback;
}

std::uint32_t number(const char* name, const char* fallback) {
    return static_cast<std::uint32_t>(std::strtoul(environment(name, fallback), nullptr, 10));
}

class loopback_transport final : public transport {
public:
    static std::unique_ptr<transport> open(const std::string& name, std::string& error) {
        auto self = std::unique_ptr<loopback_transport>(new loopback_transport);
        if (!self->start(name, error))
            return nullptr;
        if (self->replicated_ || self->stats_)
            finish_at_exit(self.get());
        return self;
    }

    ~loopback_transport() override {
        finish_at_exit(this, false);
        if (abandoned_)
            return;
        finish();
        if (device_) {
            if (replicated_)
                print_replication();
            print_stats();
            kagemusha_device_destroy(device_);
        }
        if (arena_ != MAP_FAILED)
            ::munmap(arena_, arena_bytes);
        if (arena_fd_ >= 0)
            ::close(arena_fd_);
        if (wake_fd_ >= 0)
            ::close(wake_fd_);
    }

    // A driver may keep its transport to the end of the program, as a process keeps its descriptors: then the
    // end of the program closes it.
    static void finish_at_exit(loopback_transport* one, bool wanted = true) {
        static std::mutex mutex;
        static std::vector<loopback_transport*>& open = *new std::vector<loopback_transport*>;
        const std::lock_guard lock(mutex);
        if (!wanted) {
            std::erase(open, one);
        } else if (open.push_back(one); open.size() == 1) {
            std::atexit([] {
                for (loopback_transport* last : std::exchange(open, {}))
                    if (last->process_ == ::getpid()) { // a child has no thread to wait for
                        last->finish();
                        last->print_stats();
                    }
            });
        }
    }

    // Takes no more, and waits for the standby.
    void finish() {
        {
            std::lock_guard lock(mutex_);
            closing_ = true;
        }
        wake();
        if (thread_.joinable())
            thread_.join();
    }

    transport_limits limits() const override { return limits_; }

    int submit(const submission& request, std::uint64_t& sequence) override {
        auto pending = std::make_unique<pending_request>();
        std::lock_guard lock(mutex_);
        if (lost_ || closing_)
            return -ENODEV;
        if (in_flight_.size() >= limits_.max_requests || credits_ < request.completion_count)
            return -EAGAIN;
        for (const payload& entry : request.payloads) {
            std::optional<shared_pages::place> place;
            if (shared_)
                place = shared_->share(entry.address, entry.bytes);
            if (!place && !arena_ranges_.allocate(rounded(entry.bytes), place.emplace().offset)) {
                release(*pending);
                return -EAGAIN;
            }
            pending->shared.emplace_back(place->begin, place->end);
            pending->table.push_back({entry.bytes, static_cast<std::uint32_t>(pending->segments.size()), 1,
                                      entry.device_writes ? 1u : 0u, 0});
            pending->segments.push_back({place->offset, entry.bytes, 0, 0});
            pending->payloads.push_back(entry);
        }
        pending->stream.resize(request.stream.size() / 8);
        std::memcpy(pending->stream.data(), request.stream.data(), request.stream.size());
        pending->completion_count = request.completion_count;
        pending->waitable = request.waitable;
        pending->sequence = sequence = next_sequence_++;
        note_order(*pending);
        for (std::size_t i = 0; i < pending->payloads.size(); ++i)
            if (!pending->filled[i])
                copy_payload(*pending, i, true);
        credits_ -= request.completion_count;
        inbox_.push_back(pending->sequence);
        in_flight_.emplace(sequence, std::move(pending));
        wake();
        return 0;
    }

    int wait(std::uint64_t sequence, vgpu_response& answer) override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return answers_.contains(sequence) || !in_flight_.contains(sequence); });
        const auto found = answers_.find(sequence);
        if (found == answers_.end())
            return -ENOENT;
        answer = found->second;
        answers_.erase(found);
        return 0;
    }

    std::ptrdiff_t read_records(std::span<std::byte> buffer, int timeout_ms) override {
        std::unique_lock lock(mutex_);
        const auto something = [&] { return !records_.empty() || shut_down_ || lost_; };
        if (timeout_ms < 0)
            changed_.wait(lock, something);
        else if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), something))
            return -EAGAIN;
        std::size_t used = 0;
        while (!records_.empty() && used + records_.front().size() <= buffer.size()) {
            const std::vector<std::byte>& record = records_.front();
            std::memcpy(buffer.data() + used, record.data(), record.size());
            used += record.size();
            if (reinterpret_cast<const vgpu_record*>(record.data())->type == VGPU_RECORD_COMPLETION)
                ++credits_;
            records_.pop_front();
        }
        return static_cast<std::ptrdiff_t>(used);
    }

    void shut_down() override {
        std::lock_guard lock(mutex_);
        shut_down_ = true;
        changed_.notify_all();
    }

    void abandon_after_fork() noexcept override {
        abandoned_ = true;
        ::close(arena_fd_);
        ::close(wake_fd_);
    }

private:
    static std::uint64_t rounded(std::uint64_t bytes) {
        return (bytes + arena_alignment - 1) & ~(arena_alignment - 1);
    }
    std::byte* arena() const { return static_cast<std::byte*>(arena_); }

    // What a VM has not: its time is told at the end, to be taken off. Lock held.
    void copy(void* to, const void* from, std::size_t bytes) {
        if (bytes == 0)
            return;
        const auto begin = std::chrono::steady_clock::now();
        gpu::copy_crew::common().share(bytes, [&](std::uint64_t first, std::uint64_t end) {
            std::memcpy(static_cast<std::byte*>(to) + first, static_cast<const std::byte*>(from) + first,
                        end - first);
        });
        copying_ += std::chrono::steady_clock::now() - begin;
        copied_bytes_ += bytes;
    }

    void copy_payload(const pending_request& pending, std::size_t index, bool into_arena) {
        auto* from = static_cast<std::byte*>(pending.payloads[index].address);
        std::byte* to = arena() + pending.segments[index].offset;
        if (!into_arena)
            std::swap(from, to);
        const auto [first, last] = pending.shared[index];
        copy(to, from, first);
        copy(to + last, from + last, pending.payloads[index].bytes - last);
    }

    void release(const pending_request& pending) {
        for (std::size_t i = 0; i < pending.segments.size(); ++i)
            if (pending.shared[i].second == 0)
                arena_ranges_.release(pending.segments[i].offset, rounded(pending.segments[i].bytes));
    }

    void wake() {
        const std::uint64_t one = 1;
        if (::write(wake_fd_, &one, sizeof one) < 0 && errno != EAGAIN)
            std::abort();
    }

    bool start(const std::string& name, std::string& error) {
        static std::atomic<unsigned> transports{0};
        const std::string arena_name = "kagemusha-loopback-" + std::to_string(transports++);
        arena_fd_ = ::memfd_create(arena_name.c_str(), MFD_CLOEXEC);
        wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (arena_fd_ < 0 || wake_fd_ < 0 || ::ftruncate(arena_fd_, static_cast<off_t>(arena_bytes)) != 0) {
            error = "can't make the loopback's shared memory";
            return false;
        }
        arena_ =
            ::mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena_fd_, 0);
        if (arena_ == MAP_FAILED) {
            error = "can't map the loopback's shared memory";
            return false;
        }
        if (const std::uint32_t smallest_bytes = number("KAGEMUSHA_LOOPBACK_SHARE", "0"))
            shared_.emplace(arena_fd_, arena_name, arena(), arena_ranges_, smallest_bytes);
        // What makes this program find the loopback must not make the worker find it too.
        ::unsetenv("OCL_ICD_VENDORS");
        ::unsetenv("OCL_ICD_FILENAMES");
        kagemusha_device_config config;
        kagemusha_device_config_init(&config);
        config.name = name.c_str();
        config.backend = environment("KAGEMUSHA_LOOPBACK_BACKEND", "opencl");
        config.gpu = environment("KAGEMUSHA_LOOPBACK_GPU", "");
        config.options = environment("KAGEMUSHA_LOOPBACK_OPTIONS", "");
        config.in_process = number("KAGEMUSHA_LOOPBACK_IN_PROCESS", "0") != 0;
        config.sandbox = number("KAGEMUSHA_LOOPBACK_SANDBOX", "0");
        config.hang_timeout_ms = number("KAGEMUSHA_LOOPBACK_HANG_TIMEOUT_MS", "0");
        config.replicate_to = environment("KAGEMUSHA_LOOPBACK_REPLICATE_TO", "");
        config.vm_id = "loopback";
        config.heartbeat_budget_ms = 10000; // of a busy machine
        config.digest_interval_ms = 100;
        replicated_ = *config.replicate_to != 0;
        config.callbacks.request_done = on_request_done;
        config.callbacks.record = on_record;
        config.callbacks.log = on_log;
        config.user_data = this;
        char sentence[1024];
        if (kagemusha_device_create(&config, &device_, sentence, sizeof sentence) < 0 ||
            kagemusha_device_add_region(device_, 0, arena_fd_, 0, arena_bytes, arena_, sentence,
                                        sizeof sentence) < 0) {
            error = sentence;
            return false;
        }
        kagemusha_device_limits host{};
        kagemusha_device_get_limits(device_, &host);
        limits_.max_stream_bytes = host.max_stream_bytes;
        limits_.max_events = host.max_events_per_file;
        limits_.max_requests = host.max_requests_per_file;
        if (const char* bytes = std::getenv("KAGEMUSHA_LOOPBACK_MAX_PAYLOAD"))
            limits_.max_payload_bytes = std::strtoull(bytes, nullptr, 10);
        credits_ = limits_.max_events;
        thread_ = std::thread([this] { run(); });
        return true;
    }

    // The device's one thread.
    void run() {
        // From its first command on, the program has a standby.
        dispatch_until([this] { return replication().state == KAGEMUSHA_REPLICATION_PROTECTING; });
        kagemusha_device_open_file(device_, the_file, close_token);
        std::vector<std::uint64_t> batch;
        // As QEMU's (virtio-vgpu-queue.c).
        base::look_window window(base::longest_look(std::thread::hardware_concurrency()));
        auto came = std::chrono::steady_clock::now();
        for (;;) {
            batch.clear();
            {
                std::lock_guard lock(mutex_);
                if (closing_)
                    break;
                if (!kagemusha_device_congested(device_))
                    batch.swap(inbox_);
            }
            for (const std::uint64_t sequence : batch)
                hand_over(sequence);
            pollfd wait_for[2] = {{wake_fd_, POLLIN, 0}, {kagemusha_device_poll_fd(device_), POLLIN, 0}};
            const auto something = [&] { return ::poll(wait_for, 2, 0) > 0; };
            if (batch.empty() && !worker::look_for(window.now(), something))
                ::poll(wait_for, 2, -1); // a log that is full tells by the device's descriptor
            const auto now = std::chrono::steady_clock::now();
            window.waited(now - std::exchange(came, now));
            std::uint64_t count;
            if (::read(wake_fd_, &count, sizeof count) < 0 && errno != EAGAIN)
                std::abort();
            kagemusha_device_dispatch(device_);
        }
        kagemusha_device_close_file(device_, the_file, close_token);
        dispatch_until([this] {
            const kagemusha_replication_status s = replication();
            return s.executed == s.appended || s.state != KAGEMUSHA_REPLICATION_PROTECTING;
        });
        if (replicated_ && replication().state != KAGEMUSHA_REPLICATION_PROTECTING) {
            std::fprintf(stderr, "kagemusha loopback: the standby does not protect the program at its end\n");
            std::_Exit(1);
        }
    }

    // Of a device that is replicated, and as long as its standby is there.
    template <class Condition>
    void dispatch_until(Condition&& condition) {
        while (replicated_ && !condition()) {
            pollfd wait_for{kagemusha_device_poll_fd(device_), POLLIN, 0};
            ::poll(&wait_for, 1, 5);
            kagemusha_device_dispatch(device_);
        }
    }

    kagemusha_replication_status replication() const {
        kagemusha_replication_status status{};
        status.struct_bytes = sizeof status;
        kagemusha_device_get_replication_status(device_, &status);
        return status;
    }

    void print_replication() const {
        const kagemusha_replication_status s = replication();
        std::fprintf(
            stderr,
            "kagemusha loopback: replication: state %u '%s', %llu entries, %llu chunks compared, %llu "
            "different\n",
            s.state, s.degraded, static_cast<unsigned long long>(s.appended),
            static_cast<unsigned long long>(s.digests_compared),
            static_cast<unsigned long long>(s.digests_different));
    }

    void hand_over(std::uint64_t sequence) {
        pending_request* pending;
        {
            std::lock_guard lock(mutex_);
            pending =
                in_flight_.at(sequence).get(); // stays until on_request_done, which only this thread calls
        }
        kagemusha_request request{};
        request.token = sequence;
        request.file = the_file;
        request.completion_count = pending->completion_count;
        request.stream = pending->stream.data();
        request.stream_bytes = static_cast<std::uint32_t>(pending->stream.size() * 8);
        request.payload_count = static_cast<std::uint32_t>(pending->table.size());
        request.payloads = pending->table.data();
        request.segments = pending->segments.data();
        request.segment_count = static_cast<std::uint32_t>(pending->segments.size());
        kagemusha_device_submit(device_, &request);
    }

    // In a VM a worker writes into the program's memory, so what a read gives is there when the completion of
    // the read, or of any later command that is ordered after it, is told. Here it must be copied just then.
    // So the stream is walked for what the queues' order is: a completion copies the data of the reads before
    // it.
    void note_order(pending_request& pending) {
        pending.copied.resize(pending.payloads.size());
        pending.filled.resize(pending.payloads.size());
        const auto* bytes = reinterpret_cast<const std::byte*>(pending.stream.data());
        const std::size_t end = pending.stream.size() * 8;
        for (std::size_t at = 0; at + sizeof(vgpu_cmd) <= end;) {
            const auto* command = reinterpret_cast<const vgpu_cmd*>(bytes + at);
            if (command->bytes < sizeof(vgpu_cmd) || command->bytes > end - at)
                break; // the device will refuse the stream
            if (command->opcode == VGPU_CMD_CREATE_QUEUE) {
                const auto* create = reinterpret_cast<const vgpu_cmd_create_queue*>(command);
                queues_[create->id].in_order =
                    (create->properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) == 0;
            } else if (command->opcode >= VGPU_FIRST_ENQUEUE) {
                note_enqueue(pending, bytes + at, command->opcode);
            }
            at += command->bytes;
        }
    }

    void note_enqueue(pending_request& pending, const std::byte* command, std::uint16_t opcode) {
        // Every enqueued command begins like this one.
        const vgpu_enqueue& enqueue = reinterpret_cast<const vgpu_cmd_sync*>(command)->enqueue;
        queue_order& queue = queues_[enqueue.queue];
        ++queue.position;
        std::uint32_t payload = VGPU_PAYLOAD_NONE;
        if (opcode == VGPU_CMD_READ_BUFFER)
            payload = reinterpret_cast<const vgpu_cmd_transfer_buffer*>(command)->data.index;
        else if (opcode == VGPU_CMD_READ_BUFFER_RECT)
            payload = reinterpret_cast<const vgpu_cmd_transfer_rect*>(command)->data.index;
        else if (opcode == VGPU_CMD_READ_IMAGE)
            payload = reinterpret_cast<const vgpu_cmd_transfer_image*>(command)->data.index;
        const bool reads = payload < pending.payloads.size();
        // Of what a read leaves as it is, between rows for example, the program must find its own bytes. A large
        // one that writes everything leaves nothing, unless it fails; then its memory is undefined anyway.
        if (reads && opcode == VGPU_CMD_READ_BUFFER)
            pending.filled[payload] = pending.payloads[payload].bytes >= large_read_bytes;
        if (reads)
            queue.reads.push_back({queue.position, pending.sequence, payload});
        const bool all = queue.in_order || (opcode == VGPU_CMD_MARKER && enqueue.wait_count == 0);
        if (enqueue.event && (all || reads))
            completions_[enqueue.event] = {enqueue.queue, queue.position, all};
    }

    // The command of `event` is over.
    void copy_what_is_told(std::uint64_t event) {
        const auto found = completions_.find(event);
        if (found == completions_.end())
            return;
        const told what = found->second;
        completions_.erase(found);
        std::erase_if(queues_[what.queue].reads, [&](const queued_read& read) {
            const auto request = in_flight_.find(read.sequence);
            if (request == in_flight_.end())
                return true; // answered: it was copied then
            if (what.all_before ? read.position > what.position : read.position != what.position)
                return false;
            copy_back(*request->second, read.payload);
            return true;
        });
    }

    void copy_back(pending_request& pending, std::size_t index) {
        const payload& entry = pending.payloads[index];
        if (entry.device_writes && !pending.copied[index]) // once: then the memory is the program's again
            copy_payload(pending, index, false);
        pending.copied[index] = true;
    }

    static void on_request_done(void* user_data, std::uint64_t token, const vgpu_response* response) {
        auto* self = static_cast<loopback_transport*>(user_data);
        if (token == close_token)
            return;
        std::lock_guard lock(self->mutex_);
        const auto found = self->in_flight_.find(token);
        if (found == self->in_flight_.end())
            std::abort(); // the library answered twice
        const std::unique_ptr<pending_request> pending = std::move(found->second);
        self->in_flight_.erase(found);
        if (response->status == VGPU_STATUS_OK)
            for (std::size_t i = 0; i < pending->payloads.size(); ++i)
                self->copy_back(*pending, i);
        self->release(*pending);
        if (response->status != VGPU_STATUS_OK) {
            std::fprintf(stderr, "kagemusha loopback: request %llu: status %u, at offset %u\n",
                         static_cast<unsigned long long>(token), response->status, response->failed_offset);
            self->credits_ += pending->completion_count;
        }
        if (pending->waitable)
            self->answers_[token] = *response;
        else if (response->status != VGPU_STATUS_OK)
            self->push_overflow();
        self->changed_.notify_all();
    }

    void push_overflow() {
        vgpu_record record{VGPU_RECORD_OVERFLOW, sizeof(vgpu_record), the_file, 0};
        const auto* bytes = reinterpret_cast<const std::byte*>(&record);
        records_.emplace_back(bytes, bytes + sizeof record);
    }

    static int on_record(void* user_data, const void* record, std::size_t bytes) {
        auto* self = static_cast<loopback_transport*>(user_data);
        const auto* data = static_cast<const std::byte*>(record);
        std::lock_guard lock(self->mutex_);
        if (static_cast<const vgpu_record*>(record)->type == VGPU_RECORD_COMPLETION)
            self->copy_what_is_told(static_cast<const vgpu_record_completion*>(record)->event);
        self->records_.emplace_back(data, data + bytes);
        if (static_cast<const vgpu_record*>(record)->type == VGPU_RECORD_LOST)
            self->lost_ = true;
        self->changed_.notify_all();
        return 0;
    }

    static void on_log(void*, int level, const char* message) {
        if (level <= KAGEMUSHA_LOG_WARNING || std::getenv("KAGEMUSHA_LOOPBACK_VERBOSE"))
            std::fprintf(stderr, "kagemusha loopback: %s\n", message);
    }

    void print_stats() {
        if (!std::exchange(stats_, false))
            return;
        kagemusha_device_stats stats{};
        stats.struct_bytes = sizeof stats;
        kagemusha_device_get_stats(device_, &stats);
        std::fprintf(
            stderr,
            "kagemusha loopback: %llu requests, %llu commands, %llu launches, %llu calls, %llu bytes to the "
            "GPU, "
            "%llu bytes from it, %llu events, %llu doorbells\n",
            static_cast<unsigned long long>(stats.requests), static_cast<unsigned long long>(stats.commands),
            static_cast<unsigned long long>(stats.launches), static_cast<unsigned long long>(stats.calls),
            static_cast<unsigned long long>(stats.bytes_to_gpu),
            static_cast<unsigned long long>(stats.bytes_from_gpu),
            static_cast<unsigned long long>(stats.events_completed),
            static_cast<unsigned long long>(stats.doorbells));
        std::fprintf(stderr,
                     "kagemusha loopback: %llu bytes copied between the program and the arena in %.1f ms\n",
                     static_cast<unsigned long long>(copied_bytes_),
                     std::chrono::duration<double, std::milli>(copying_).count());
    }

    kagemusha_device* device_ = nullptr;
    transport_limits limits_;
    bool replicated_ = false;
    bool stats_ = number("KAGEMUSHA_LOOPBACK_STATS", "0") != 0; // are to be printed
    int arena_fd_ = -1;
    int wake_fd_ = -1;
    void* arena_ = MAP_FAILED;
    const pid_t process_ = ::getpid();
    bool abandoned_ = false;
    std::thread thread_;

    std::mutex mutex_; // everything below
    std::condition_variable changed_;
    range_allocator arena_ranges_{arena_bytes};
    std::optional<shared_pages> shared_; // where a measurement asked for it
    std::unordered_map<std::uint64_t, std::unique_ptr<pending_request>> in_flight_;
    std::unordered_map<std::uint64_t, queue_order> queues_;
    std::unordered_map<std::uint64_t, told> completions_; // by event
    std::unordered_map<std::uint64_t, vgpu_response> answers_;
    std::vector<std::uint64_t> inbox_;
    std::deque<std::vector<std::byte>> records_;
    std::chrono::steady_clock::duration copying_{};
    std::uint64_t copied_bytes_ = 0;
    std::uint64_t next_sequence_ = 1;
    std::uint64_t credits_ = 0;
    bool closing_ = false;
    bool shut_down_ = false;
    bool lost_ = false;
};

} // namespace

std::vector<std::string> device_names() {
    std::vector<std::string> names{"loopback"};
    const std::uint32_t count = number("KAGEMUSHA_LOOPBACK_DEVICES", "1");
    for (std::uint32_t i = 1; i < count; ++i)
        names.push_back("loopback" + std::to_string(i));
    return names;
}

std::unique_ptr<transport> make_transport(const std::string& name, std::string& error) {
    return loopback_transport::open(name, error);
}

} // namespace kagemusha::opencl
