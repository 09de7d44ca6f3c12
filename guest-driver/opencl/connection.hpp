// SPDX-License-Identifier: GPL-2.0-or-later
//
// One open file of the device and everything that goes through it: the batch of commands that were not sent
// yet, calls that wait for their answer, and a thread that reads what the device tells by itself
// (completions, printf output, errors).
//
// A process has one connection to each device at a time. It is opened at the first use, replaced when it was
// lost (contexts made before stay lost, new ones work) and never used by the child of a fork, which opens its
// own.
//
// Locks, outermost first: batch_mutex_ (batch, order of submission), pending_mutex_ (events and queues by
// id), destroys_mutex_. None of them is held while user code runs or while an answer is awaited. The
// completion thread never takes batch_mutex_, nor does who reads in its place: whoever holds it may be waiting
// for the completions that this thread delivers.
#pragma once

#include "batch.hpp"
#include "flush_order.hpp"
#include "object.hpp"
#include "reading_turn.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace kagemusha::opencl {

class event;
class queue;
struct profiling_times;

// Batches go out when they hold this much, whatever the program does.
inline constexpr std::size_t batch_commands_threshold = 128;
inline constexpr std::size_t batch_bytes_threshold = std::size_t{96} << 10;

// Data up to this size travels inside the command; copying it costs less than pinning its page.
inline constexpr std::size_t max_inline_bytes = 4096;

// Counts the forks between this process and the one that loaded the driver: what was made under another
// number belongs to a parent.
std::uint64_t fork_generation() noexcept;

class connection : public std::enable_shared_from_this<connection> {
public:
    // The process' connection to the device of this name; opened or reopened if need be. Null with a reason
    // if that is not possible.
    static std::shared_ptr<connection> current(const std::string& name, std::string* error = nullptr);

    // Over this transport; start() begins the threads.
    explicit connection(std::unique_ptr<transport> device);
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;
    ~connection();

    void start();

    // Ends the threads and fails what is pending. For tests and for a process that gives up its device.
    void close();

    // False once the file is lost or belongs to the parent of a fork.
    bool usable() const noexcept;

    const transport_limits& limits() const noexcept { return limits_; }

    std::uint64_t new_id() noexcept { return next_id_.fetch_add(1, std::memory_order_relaxed); }

    // A call: everything before it is sent, then its answer is awaited. Gives the OpenCL error of the call.
    cl_int call(const outgoing& command, vgpu_response* answer = nullptr);

    // The two halves of call(), to have several on their way. `ticket` is only valid after CL_SUCCESS.
    cl_int begin_call(const outgoing& command, std::uint64_t& ticket);
    cl_int finish_call(std::uint64_t ticket, vgpu_response* answer);

    // Appends an enqueued command to the batch. If `completes` is given, its id is in the command and it
    // stays pending until the device's record.
    // Which command it is, in `number` (event::command_number).
    cl_int append(const outgoing& command, event* completes, queue& where, std::uint64_t* number = nullptr);

    // Sends the batch. With a queue: also tells the host to flush it, if something was enqueued since the
    // last time.
    cl_int flush(queue* where = nullptr);

    // The host's object goes when the commands before this are executed. Never blocks, never fails.
    void destroy(vgpu_object_kind kind, std::uint64_t id) noexcept;

    // Sent at once, past the batch: what is held back there may be waiting for room that only this event
    // makes.
    cl_int set_user_event(std::uint64_t id, cl_int status);

    // Memory of the VRAM window that shows a buffer, see transport.hpp.
    window_view map_window(const window_request& wanted);
    void unmap_window(std::byte* address) noexcept;
    // What is stored into mapped memory of the context goes to this queue, which has nothing else.
    void add_flush_queue(std::uint64_t context, std::uint64_t queue);
    void remove_flush_queue(std::uint64_t context) noexcept;

    // KAGEMUSHA_FLUSH_MS: what is stored is also flushed every so many milliseconds, for kernels that wait
    // for it. 0: it is not.
    unsigned flush_interval_ms() const noexcept { return flush_interval_ms_; }

    void discard_window(const std::byte* address, std::uint64_t bytes) noexcept {
        transport_->discard_window(address, bytes);
    }

    bool wrote_window(const std::byte* address) const noexcept { return transport_->wrote_window(address); }

    void add_user_event() noexcept { unset_user_events_.fetch_add(1, std::memory_order_relaxed); }
    void remove_user_event() noexcept { unset_user_events_.fetch_sub(1, std::memory_order_relaxed); }
    bool has_unset_user_events() const noexcept {
        return unset_user_events_.load(std::memory_order_relaxed) > 0;
    }

    // A command that is not over and reads into some of these bytes of the program's; null: there is none.
    ref<event> read_in_flight(std::span<const std::byte> bytes);
    void end_read() noexcept { reads_in_flight_.fetch_sub(1, std::memory_order_release); } // by its event

    // Reads what the device tells until this event is over, if it is this thread's turn to read.
    void read_until_over(const event& awaited);

    // The event of this id; null: it is over.
    ref<event> pending_event(std::uint64_t id);

    void add_queue(queue& added);
    void remove_queue(queue& removed) noexcept;

    // Commands that were enqueued so far, in any queue.
    std::uint64_t command_count() const noexcept { return commands_.load(std::memory_order_acquire); }

    // For the tests: requests sent so far.
    std::uint64_t request_count() const noexcept { return requests_.load(std::memory_order_relaxed); }

    // In the child of a fork.
    void abandon_after_fork() noexcept;

private:
    using lock = std::unique_lock<std::mutex>;

    // batch_mutex_ held
    void append_locked(lock& held, const outgoing& command, std::uint64_t event_id, std::uint64_t queue_id);
    void drain_destroys_locked(lock& held);
    cl_int send_locked(lock& held, bool waitable = false, std::uint64_t* sequence = nullptr);
    int submit_locked(lock& held, const submission& request, std::uint64_t& sequence);
    template <class Attempt>
    int with_patience_locked(lock& held, Attempt attempt);
    int flush_apart_locked(lock& held, std::uint64_t context, std::uint64_t queue);
    int send_one_by_one_locked(lock& held, bool waitable, std::uint64_t& sequence);
    void wait_for_sender_locked(lock& held);

    // any context
    void fail_command(const batch::entry& failed, cl_int error);
    void fail_pending(cl_int error);
    void lose() noexcept;
    cl_int error_of(const vgpu_response& answer);

    void deliver(std::uint64_t id, cl_int status, const profiling_times& times);
    bool next_complete(std::uint64_t id, queue*& where, ref<event>& next);

    // completion thread, the keeper: see reading_turn.hpp
    void read_records();
    void rest_locked(lock& held);
    void wake_keeper_locked();

    // whose turn it is to read
    bool read_some(int timeout_ms);
    void handle_record(const vgpu_record& header, const std::byte* body);

    // flush thread
    void flush_periodically();
    void flush_by_time();

    const std::unique_ptr<transport> transport_;
    const transport_limits limits_;
    const std::uint64_t fork_generation_;
    const unsigned flush_interval_ms_;
    std::atomic<std::uint64_t> next_id_{1};
    std::atomic<bool> lost_{false};
    std::atomic<std::uint64_t> requests_{0};
    std::atomic<std::uint64_t> commands_{0}; // changed with batch_mutex_
    std::atomic<std::int64_t> unset_user_events_{0};
    std::atomic<std::int64_t> windows_{0};         // mapped
    std::atomic<std::int64_t> reads_in_flight_{0}; // events that say what they read into

    std::mutex batch_mutex_;
    std::condition_variable sender_done_; // sending_ became false
    bool sending_ = false; // a sender waits for room with batch_mutex_ released; nobody else may append
    batch batch_;
    static constexpr std::size_t first_full_at = 16;
    std::size_t full_at_ = first_full_at; // commands with which the batch goes out
    send_pace pace_;
    flush_order flush_order_;
    std::condition_variable timed_flush_; // closing
    bool batch_is_old_ = false;           // the flush thread saw it before
    bool flusher_sleeps_ = true;
    std::condition_variable flusher_wakes_;

    std::mutex pending_mutex_;
    std::unordered_map<std::uint64_t, ref<event>> pending_;
    std::unordered_map<std::uint64_t, queue*> queues_;
    std::condition_variable progress_; // with pending_mutex_: something completed
    std::uint64_t completions_ = 0;
    reading_turn turn_;
    std::condition_variable keeper_rests_;

    std::vector<std::byte> records_; // whose turn it is to read

    std::mutex destroys_mutex_;
    std::vector<std::pair<vgpu_object_kind, std::uint64_t>> destroys_;
    std::vector<std::pair<vgpu_object_kind, std::uint64_t>> draining_; // batch_mutex_
    std::atomic<bool> destroys_wait_{false};

    // The threads are detached and hold the connection, so that neither a fork nor the exit of the process
    // has to wait for them; close() does, through this count (pending_mutex_, progress_).
    std::atomic<bool> closing_{false};
    unsigned running_threads_ = 0;
};

} // namespace kagemusha::opencl
