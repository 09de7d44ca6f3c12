// SPDX-License-Identifier: GPL-2.0-or-later
//
// qemu_controller: the steps in which a QEMU becomes a primary, a standby, and what it was not before, as QMP
// commands. It owns QEMU's process and monitor and decides nothing about takeovers (control/ha does).
//
// One thread: whoever calls fds() and poll()s them. Orders come from other threads through the supervisor's
// queue.
//
// What is out of band (`yank`, the ping) is answered by a thread of QEMU that needs no lock, also when its
// main loop waits in recv() for a peer that has vanished.
#pragma once

#include "control/base/process.hpp"
#include "control/pilot/checkpoint_count.hpp"
#include "control/pilot/difference_watch.hpp"
#include "control/pilot/paused_share.hpp"
#include "control/pilot/progress_watch.hpp"
#include "control/pilot/replica.hpp"
#include "control/qemu/qmp_session.hpp"
#include "control/relay/relayed_links.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control {

struct pilot_config {
    std::vector<std::string> command;         // of QEMU, without its monitor
    std::vector<std::string> standby_command; // the same for a standby
    std::vector<std::pair<std::string, std::string>> environment;
    std::string confinement;     // spawn_request's
    std::string log;             // what QEMU says
    std::string state;           // where a standby's QEMU listens for the VM's state: HOST:PORT or unix:PATH
    bool state_has_keys = false; // on both command lines
    bool incoming_is_encrypted = false; // what a standby's QEMU gets
    std::string keys;                   // the directory of QEMU's copies
    // Copies them anew. Whether they have changed, or a sentence. Null: there are none.
    std::function<std::string(bool& changed)> copy_keys;
    std::uint32_t max_epoch_ms = 100; // the shortest is on the command lines
    bool gpu = false;                 // the VM has one: the standby's gets its state first
    bool may_be_protected = false;    // a writable disk must be in the checkpoints
    // Its writable disks' images, if what a standby's QEMU leaves in them is of use to the next one.
    std::vector<std::string> replica_images;
    progress_bounds bounds;
    std::uint32_t hand_over_ms = 10000; // for how long hand_over() may hold the VM
};

// What it tells; called inside handle() and the orders.
struct pilot_events {
    // A standby with this number waits for the VM. `replica`: what its images have (control/pilot/replica.hpp).
    std::function<void(std::uint64_t qemu, const std::string& replica)> ready;
    // Of the replication with this number: checkpoints arrive, output is held.
    std::function<void(std::uint64_t replication)> protecting;
    // QEMU asks whether to go on alone.
    std::function<void(std::uint64_t replication, const std::string& why)> replication_lost;
    std::function<void(const std::string& why)> gpu_failed; // and the guest is not told; again and again
    // A standby's GPU has no copy any more; or a takeover found none. Once for each QEMU.
    std::function<void(const std::string& why)> gpu_lost;
    std::function<void()> running; // after take_over()
    // After that, when the VM's GPU has completed the guest's first command here. ns of CLOCK_BOOTTIME: the
    // last checkpoint that this standby had committed, and that command's end.
    std::function<void(std::uint64_t committed_ns, std::uint64_t completed_ns)> gpu_computes;
    std::function<void(const std::string& why)> stuck;    // it stands still; again and again while it does
    std::function<void(const std::string& what)> warning; // what does not get on; empty: it does again
    std::function<void(const std::string& what)> differences; // of GPU memory on the standby
    // The guest has switched itself off, or has panicked, and a standby may have the VM.
    std::function<void(const std::string& how)> guest_ended;
    std::function<void()> stopped; // hand_over() has stopped the VM
    // After hand_over(): the VM stands still, the standby has all of it.
    std::function<void(std::uint64_t replication)> handed_over;
    std::function<void(const std::string& why)> hand_over_failed;
    std::function<void(const std::string& why)> takeover_failed;
    std::function<void(const std::string& how, bool in_order, std::uint64_t qemu)> died;
    std::function<void(const std::string& line)> log;
};

std::string description(const qmp_message& failure); // QEMU's sentence
std::string uri(const std::string& address);         // QEMU's word for one of our addresses

class qemu_controller {
public:
    using clock = std::chrono::steady_clock;

    qemu_controller(pilot_config config, pilot_events events)
        : config_(std::move(config))
        , events_(std::move(events))
        , keeper_(config_.replica_images)
        , watch_(config_.bounds)
        , tick_period_(asking_period_ms(config_.bounds)) {}

    // Orders.
    void start_primary() { start(config_.command, false); }
    void start_standby() { start(config_.standby_command, true); }
    // `replication`: the number that what is reported of it has. `to`: as QEMU finds them. `replica`: what the
    // standby said of its images. `page_changes`: its QEMU knows pages of which only what has changed comes.
    void replicate(std::uint64_t replication, const link_addresses& to, bool encrypted,
                   const std::string& replica, bool page_changes);
    void go_on_alone();
    void report_gpu_failure(); // to the guest
    void take_over();
    // What was written to its disks is durable, then `done`, with a sentence when that failed. One at a time.
    void flush_disks(std::function<void(const std::string& problem)> done);
    void hand_over();
    // Before handed_over: the VM runs on here.
    void cancel_hand_over(const std::string& why);
    // Of later starts, with the rights that these need.
    void use(std::vector<std::string> command, std::vector<std::string> standby_command,
             std::string confinement) {
        config_.command = std::move(command);
        config_.standby_command = std::move(standby_command);
        config_.confinement = std::move(confinement);
    }
    // Kills QEMU, and starts another one with this number as soon as that has ended. The first has 1.
    void restart_standby(const std::string& why, std::uint64_t qemu);
    void kill(const std::string& why);
    void quit(); // in order; killed when that takes too long

    // The loop.
    struct wanted {
        int qmp = -1, pidfd = -1;
    };
    wanted fds() const;
    clock::time_point deadline() const;
    // `ended`: the pidfd is readable. What the monitor has said is read in any case, before anything is
    // judged.
    void handle(bool ended);

    bool alive() const { return qemu_.has_value(); }
    int pid() const { return qemu_ ? qemu_->pid() : 0; }
    // What QEMU said of the checkpoints since the last replicate(); looked at now and then.
    struct figures {
        std::uint64_t checkpoints = 0, early = 0; // that the standby has; taken because output waited
        std::uint64_t pause_us = 0, epoch_us = 0; // the last one stopped the VM; it had run for
        std::uint64_t total_pause_us = 0;
    };
    const figures& last() const { return last_; }
    // Of its writable disks, what the standby has never got
    std::uint64_t disk_missing_bytes() const { return disk_missing_bytes_; }
    // What of that it has got since, without what the guest wrote meanwhile
    std::uint64_t disk_copied_bytes() const { return disk_copied_bytes_; }
    double paused_percent() const { return paused_.percent(); }
    // Since the standby's last checkpoint; 0 without checkpoints.
    std::uint64_t checkpoint_age_ms() const {
        return life_.phase == phase::checkpointing ? watch_.progress_age_ms() : 0;
    }
    // Of the primary's GPU, with checkpoints: for how long the standby's has not done what it has done.
    std::uint64_t gpu_behind_ms() const {
        return life_.phase == phase::checkpointing ? life_.gpu_behind_ms : 0;
    }
    // While the GPU's state is copied: the device's own word about what that waits for.
    const std::string& copy_waits_for() const { return life_.copy_waits_for; }

private:
    using answer = std::function<void(const qmp_message&)>;
    void start(const std::vector<std::string>& command, bool standby);
    void ask(const char* command, nlohmann::json arguments, answer then);
    void ask_out_of_band(const char* command, nlohmann::json arguments, answer then);
    void send(const std::string& bytes);
    void take(const qmp_message& message);
    void on_event(const qmp_message& message);
    void on_shutdown(bool by_guest, const std::string& reason);
    void find_writable_disks();
    void flush_disk(std::size_t index);
    void look_at_flush();
    void flushed(const std::string& problem);
    struct disk_figures {
        std::uint64_t missing = 0, copied = 0;
        bool complete = true;
    };
    void look_at_disks(std::size_t index, disk_figures sum);
    void name_replica();
    void on_checkpointing();
    void send_state();
    void name_standby_of_gpu();
    void look_at_gpu();
    void look_at_takeover();
    void look_at_copy();
    void report_lost_copy(const nlohmann::json& replication);
    void look();
    void look_at_protected_gpu();
    void run_if_stopped();
    void end_stream();
    void read_answers();
    void ping();
    void renew_keys();
    void watch();
    void enter(watched_phase what) { watch_.enter(what); }
    void look_at_transfer();
    void report_loss(const std::string& why);
    void yank();
    void look_at_kill();
    enum class concern { progress, error, kill }; // what may be wrong at the same time
    void warn(concern what, const std::string& text);
    void look_at_error(bool stands_still);
    void ended();
    void forget_process();

    static constexpr std::chrono::seconds quit_time{15}; // then it is killed
    enum class phase { none, copying_gpu, migrating, checkpointing };

    // What is known of one QEMU process, and what it was told.
    struct life {
        qmp_session session;
        std::map<std::uint64_t, answer> answers;
        bool negotiated = false, quitting = false, shut_down = false, taking_over = false, abandoned = false;
        std::string killed_why, restart_why;
        bool replicate = false; // as soon as it takes commands
        qemu_controller::phase phase = qemu_controller::phase::none;
        // QEMU accepted our `migrate`: from its event `setup` on, events of a stream are this one's. Those of
        // the one before have come by then, because QEMU refuses a second stream while one ends.
        bool stream_is_ours = false;
        checkpoint_count counted;
        difference_watch differences;
        std::uint64_t handing_over = 0;                // done with this checkpoint; 0: nobody wants it
        std::optional<clock::time_point> hand_over_by; // somebody does
        bool to_run = false;                           // run_if_stopped() is at it
        std::string copy_waits_for;
        std::uint64_t gpu_behind_ms = 0;
        bool told = false, looking = false, gpu_looking = false, lost_reported = false;
        std::optional<clock::time_point> look_at_takeover; // nothing: told, or there was none
        std::optional<clock::time_point> look_at_copy;     // of a standby's GPU
        std::optional<clock::time_point> quit_by, killed_at, run_at;
        std::optional<clock::time_point> end_stream_at; // look again whether the last one has ended
        bool held = false;                              // killed, and has not ended in time
        bool pinged = false, pinged_in_band = false;
    };

    pilot_config config_;
    pilot_events events_;
    std::optional<child_process> qemu_;
    unique_fd qmp_;
    life life_; // of qemu_
    bool standby_ = false;
    std::string keys_problem_;
    std::uint64_t number_ = 1, next_number_ = 1; // of QEMU: the one that runs, the one that is wanted
    std::uint64_t replication_ = 0;              // the last one that was ordered
    link_addresses to_;                          // the state's when the GPU has been copied
    bool encrypted_ = false;                     // the state, on its way there
    figures last_;
    paused_share paused_;
    std::vector<std::string> disks_; // in the checkpoints, by their nodes
    std::uint64_t disk_missing_bytes_ = 0, disk_copied_bytes_ = 0;
    std::string replica_;       // the standby's, of the last replication
    bool page_changes_ = false; // the same
    bool disks_looking_ = false, disks_complete_ = false;
    std::function<void(const std::string& problem)> flush_done_; // flush_disks(), under way
    std::size_t flushing_ = 0;                                   // which disk
    std::optional<clock::time_point> look_at_flush_;
    clock::time_point look_at_{}, figures_at_{};
    std::chrono::milliseconds takeover_period_{};
    std::map<concern, std::string> warnings_;
    std::optional<clock::time_point> go_on_at_; // a VM that an error of a device has stopped
    replica_keeper keeper_;
    replica own_replica_; // a standby's
    progress_watch watch_{{}};
    const std::chrono::milliseconds tick_period_; // of pings, and of looks at what they say
    clock::time_point tick_at_{};
};

} // namespace kagemusha::control
