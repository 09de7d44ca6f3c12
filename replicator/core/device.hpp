// SPDX-License-Identifier: GPL-2.0-or-later
// device: carries out what session_fsm decides. It owns the open files and their ports, one epoll descriptor
// over them and a timer, and calls QEMU's callbacks. It decides nothing about a request itself.
//
// Threads: one thread calls everything but stats(). Nothing here locks or blocks.
//
// Ends of workers. A worker that was killed may stay for seconds, or for ever if its GPU's driver is stuck,
// and may touch memory as long as it stays. Nobody waits for that:
//   - a lost worker is told to the loss holder at once. Requests of the guest that name guest memory are
//   answered
//     when the worker is gone, and the guest hears of the loss then; if there are none it hears at once;
//   - CLOSE of the guest, and what the file had in flight, are answered when the worker is gone;
//   - requests of a mirror's log are answered at once, and their memory (set_memory_keeper()) is kept;
//   - after a reset everything is answered, and reset() tells of workers in memory that the guest has got
//   back.
// Until it is gone it counts as one of the device's files (max_files), which bounds how many there can be.
#pragma once

#include <kagemusha/device.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/port.hpp"
#include "base/rate_limiter.hpp"
#include "core/counter.hpp"
#include "core/file_checkpoint.hpp"
#include "core/hang_watchdog.hpp"
#include "core/mirror_tap.hpp"
#include "core/object_table.hpp"
#include "core/session_fsm.hpp"
#include "core/unsupported_functions.hpp"
#include "core/worker_starts.hpp"

namespace kagemusha::core {

struct device_limits {
    std::uint32_t max_files = 0;
    file_limits file;
    std::uint64_t max_memory_bytes = 0; // of all files
};

struct device_config : device_limits { // the guest's
    std::string name;                  // of the VM, for log lines
    // Of a standby: what comes by its primary's log, which may need more than the guest
    // (session_fsm::on_submit). A guest that goes on here has the limits above; what it has beyond them it
    // keeps, and gets no more. Nothing: the guest's.
    std::optional<device_limits> of_log;
    std::uint32_t hang_timeout_ms = 0; // 0: never
    std::uint32_t end_timeout_ms = 0;  // 0: never; core/hang_watchdog.hpp
    // Starts of workers for the guest's files (core/worker_starts.hpp); a burst of 0: no bound. What comes by
    // a primary's log starts at once: it has waited there.
    std::uint32_t worker_start_burst = 0, worker_starts_per_second = 1;
    std::uint64_t hash_seed = 0; // random
    kagemusha_callbacks callbacks{};
    void* user_data = nullptr;
};

// Makes the port of a file that got its first request. Null with a sentence in `error` if there can't be one.
using port_factory = std::function<std::unique_ptr<worker::port>(std::uint32_t file, std::string& error)>;

class device final : public mirror_port {
public:
    // Null with a sentence in `error` if the system has no descriptors left.
    static std::unique_ptr<device> create(device_config config, port_factory factory, std::string& error);
    ~device();
    device(const device&) = delete;
    device& operator=(const device&) = delete;

    // A region number is used once; before the first file is opened.
    void add_region(std::uint32_t region, std::uint64_t bytes);
    bool has_region(std::uint32_t region) const { return region < regions_.size() && regions_[region] != 0; }
    bool had_files() const { return files_total_.get() != 0; }

    // Asked when the worker of a file was lost or hung, with a sentence. True: the guest is not told, and
    // nothing of the file goes on, until report_losses(): somebody may still go on with the guest elsewhere, as
    // it was before. A worker that can't be started is told at once.
    void set_loss_holder(std::function<bool(const std::string& why)> holder) {
        hold_loss_ = std::move(holder);
    }
    void report_losses();

    // Asked for the memory, other than the guest's, of a request that is answered although its worker is not
    // gone: what it returns is held until then. It outlives the device.
    using memory_keeper = std::function<std::shared_ptr<const void>(std::uint64_t token)>;
    void set_memory_keeper(memory_keeper keeper) { memory_of_ = std::move(keeper); }

    // Whoever mirrors this device; before the first file is opened. It outlives the device.
    void set_tap(mirror_tap* tap);

    // Whose request it is: of this device's guest; of the log of another device, guest's or mirror's there
    // (ids with VGPU_HOST_ID_BIT and AWAIT are allowed; of the mirror's, the tap does not hear).
    enum class origin : std::uint8_t { guest, log, log_of_mirror };
    void open_file(std::uint32_t file, std::uint64_t token, origin from = origin::guest);
    void close_file(std::uint32_t file, std::uint64_t token, origin from = origin::guest);
    void submit(const kagemusha_request& request, std::uint64_t now_ms, origin from = origin::guest);

    // The file's next request goes to the worker when these events of it have completed, and what comes
    // behind it waits with it: whoever made the request knew that they had. What names no command in flight
    // is passed over.
    void await_events(std::uint32_t file, std::span<const guest_id> events);

    int poll_fd() const { return epoll_; }
    void dispatch(std::uint64_t now_ms);
    void event_space();
    // Closes every file and answers everything. Returns how many workers may still write memory of the guest;
    // writers() tells later, and asks the workers.
    std::size_t reset();
    std::size_t writers();

    // What the guest knows of each open file, in the order of their numbers.
    std::vector<file_checkpoint> checkpoint() const;
    // A file that is open and lost for the guest, which hears of it now (tell) or has before.
    void add_lost_file(std::uint32_t file, bool tell);
    void add_refused(std::uint32_t file, const file_checkpoint::refused_event& event);

    void stats(kagemusha_device_stats& out) const; // any thread
    // Functions that programs of the guest called and that its driver does not have; any thread.
    std::string unsupported() const { return unsupported_.text(); }
    const device_config& config() const { return config_; }
    const device_limits& limits_of_log() const { return config_.of_log ? *config_.of_log : config_; }

    void log(kagemusha_log_level level, const std::string& message) const;

    // mirror_port
    bool inject(std::uint32_t file, const worker::request_view& request) override;
    const object_table* objects(std::uint32_t file) const override;
    void release_answer(std::uint32_t file, std::uint64_t token) override;
    void release_records(std::uint32_t file) override;
    void hold_requests(std::uint32_t file) override;
    void release_requests(std::uint32_t file) override;
    void lose_session(std::uint32_t file, std::uint32_t after_ms, const std::string& why) override;
    void set_tick_period(std::uint32_t period_ms) override;
    void keep_until_gone(std::uint32_t file, std::shared_ptr<const void> memory) override;

private:
    struct file_entry;
    struct waiting_request;
    struct ending_worker;

    device(device_config config, port_factory factory, int epoll, int timer);

    bool start_worker(file_entry& f);
    bool start_or_wait(file_entry& f, origin from);
    void start_due();
    void forward(file_entry& f, const submit_decision& d);
    void hand_over(file_entry& f, const worker::request_view& request,
                   std::span<const awaited_event> awaited = {});
    hang observe(file_entry& f);
    bool may_wait(const file_entry& f) const;
    void add_waiting(file_entry& f, std::size_t bytes);
    void remove_waiting(file_entry& f, std::size_t bytes);
    void flush_waiting(file_entry& f);
    void drain(file_entry& f);
    void lose(file_entry& f, vgpu_lost_reason reason, std::uint32_t detail, const std::string& why);
    void report_loss(file_entry& f, vgpu_lost_reason reason, std::uint32_t detail, const std::string& why);
    void settle_loss(file_entry& f);
    void end_port(file_entry& f);
    void end_requests(file_entry& f, vgpu_status status);
    void forget_records(file_entry& f);
    void check_ending(std::uint64_t key);
    void on_gone(std::uint64_t key);
    bool sweep_ending();
    bool warn_of_slow_ends();
    std::size_t workers_without_file() const;
    void check_watchdogs();
    void watch(bool on);
    std::uint32_t watchdog_timeout_ms() const;
    void update_timer();
    void answer_held(file_entry& f);
    void deliver(file_entry& f);
    bool deliver_some(file_entry& f, unsigned at_most);
    void answer(std::uint64_t token, const vgpu_response& response);
    void answer(std::uint64_t token, vgpu_status status);
    void report_written(std::span<const kagemusha_segment> ranges);
    void log_broken_rule(std::uint32_t file, const char* who, const char* rule, std::uint64_t now_ms);
    void publish();

    const device_config config_;
    const port_factory factory_;
    const int epoll_;
    const int timer_;
    mirror_tap* tap_ = nullptr;
    std::function<bool(const std::string&)> hold_loss_;
    bool watching_ = false;             // for hangs
    std::uint32_t tick_ms_ = 0;         // what the tap wants
    std::uint32_t timer_period_ms_ = 0; // 0: not armed
    std::vector<std::uint64_t> regions_;
    device_usage usage_;
    std::unordered_map<std::uint32_t, std::unique_ptr<file_entry>> files_;
    std::map<std::uint64_t, std::unique_ptr<ending_worker>> ending_; // by keys above every file's number
    std::uint64_t last_ending_ = UINT32_MAX;
    memory_keeper memory_of_;
    std::deque<std::uint32_t> undelivered_; // files with records, when the guest had no room
    bool no_room_ = false;                  // until event_space()
    std::size_t waiting_bytes_ = 0;
    base::rate_limiter guest_log_;
    worker_starts starts_;
    std::uint64_t now_ms_ = 0; // of the entry in hand

    counter files_open_, files_total_, requests_, requests_in_flight_, requests_refused_, commands_,
        launches_, calls_, bytes_to_gpu_, bytes_from_gpu_, events_completed_, events_failed_, objects_,
        memory_bytes_, workers_started_, workers_lost_, workers_killed_hung_, workers_ending_,
        workers_delayed_, workers_waiting_, text_bytes_, text_dropped_bytes_, doorbells_;
    unsupported_functions unsupported_;
};

} // namespace kagemusha::core
