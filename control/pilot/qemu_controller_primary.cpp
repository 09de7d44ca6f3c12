// SPDX-License-Identifier: GPL-2.0-or-later
//
// qemu_controller: the steps of a primary: its standby gets a copy, then checkpoints, then perhaps the VM.
#include "control/pilot/qemu_controller.hpp"
#include "control/pilot/stream_end.hpp"

#include "control/qemu/vm_config.hpp"

#include <fmt/format.h>

#include <utility>

namespace kagemusha::control {

namespace {

using namespace std::chrono_literals;
using json = nlohmann::json;

constexpr auto run_period = 10ms;   // between attempts to let the VM run again, or to end a stream
constexpr auto look_period = 100ms; // at the GPUs, whose failure makes a takeover
// At how checkpoints and disks go: for the status, and for bounds of seconds.
constexpr auto figures_period = 250ms;
constexpr auto first_look_period = 10ms; // while the first checkpoints are waited for
constexpr auto hand_over_period = 2ms;   // the VM stands still meanwhile
// The first may have begun before output was held; what left until then is in the second one.
constexpr std::uint64_t checkpoints_until_protected = 2;
constexpr std::uint64_t bandwidth = std::uint64_t{10} << 30; // no limit: what is slow is the link
constexpr std::uint64_t downtime_ms = 20000;

// Of an answer to query-colo-status; 0: it has counted none.
std::uint64_t committed_in(const qmp_message& colo_status) {
    const auto found = colo_status.body.find("checkpoints");
    return found != colo_status.body.end() && found->is_object() ? found->value("committed", std::uint64_t{0})
                                                                 : 0;
}

} // namespace

void qemu_controller::replicate(std::uint64_t replication, const link_addresses& to, bool encrypted,
                                const std::string& replica, bool page_changes) {
    replication_ = replication;
    page_changes_ = page_changes;
    to_ = to;
    encrypted_ = encrypted;
    replica_ = replica;
    if (!life_.negotiated) { // it has only just been started
        life_.replicate = true;
        return;
    }
    life_.abandoned = life_.told = life_.looking = life_.gpu_looking = life_.stream_is_ours = false;
    disks_looking_ = disks_complete_ = false;
    disk_missing_bytes_ = disk_copied_bytes_ = 0;
    life_.handing_over = 0;
    life_.hand_over_by.reset();
    life_.end_stream_at.reset();
    enter(watched_phase::none);
    last_ = {};
    paused_ = {};
    if (!config_.gpu)
        return send_state();
    // A checkpoint names a state of the GPU that the standby must have.
    life_.phase = phase::copying_gpu;
    enter(watched_phase::gpu_copy);
    look_at_ = clock::now();
    name_standby_of_gpu();
}

// Refused while it is connected somewhere: to the same place, or to a standby that is gone, which it notices.
void qemu_controller::name_standby_of_gpu() {
    ask("qom-set", {{"path", gpu_qom_path}, {"property", "replicate-to"}, {"value", to_.gpu}}, {});
}

void qemu_controller::look_at_gpu() {
    look_at_ = clock::now() + look_period;
    if (life_.looking)
        return;
    life_.looking = true;
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "replication"}}, [this](const qmp_message& a) {
        life_.looking = false;
        if (life_.phase != phase::copying_gpu || a.what != qmp_message::kind::success || !a.body.is_object())
            return;
        const auto state = a.body.value("state", std::string());
        life_.copy_waits_for = a.body.value("degraded", std::string());
        watch_.progress(std::hash<std::string>{}(state) +
                        a.body.value("transferred-bytes", std::uint64_t{0}) +
                        a.body.value("connections", std::uint64_t{0}));
        if (state == "protecting")
            send_state();
        else if (state == "disconnected" || state == "off")
            name_standby_of_gpu();
    });
}

void qemu_controller::send_state() {
    life_.phase = phase::migrating;
    life_.copy_waits_for.clear();
    enter(watched_phase::transfer);
    const auto failed = [this](const qmp_message& answer, const char* what) {
        if (answer.what == qmp_message::kind::success)
            return false;
        report_loss(fmt::format("QEMU refuses {}: {}", what, description(answer)));
        return true;
    };
    ask("migrate-set-capabilities",
        {{"capabilities", json::array({{{"capability", "x-colo"}, {"state", true}},
                                       {{"capability", "x-colo-delta"}, {"state", page_changes_}}})}},
        [failed](const qmp_message& a) { failed(a, "x-colo and x-colo-delta"); });
    name_replica();
    // That was accepted only if no stream is under way, so the count is final.
    ask("query-colo-status", {}, [this](const qmp_message& a) { life_.counted.begin(committed_in(a)); });
    ask("migrate-set-parameters",
        {{"x-checkpoint-delay", config_.max_epoch_ms},
         {"max-bandwidth", bandwidth},
         {"downtime-limit", downtime_ms},
         {"tls-creds", encrypted_ ? state_to_id : ""}},
        [this, failed, state_address = to_.state](const qmp_message& a) {
            if (failed(a, "the times of checkpoints") || life_.abandoned)
                return;
            ask("migrate", {{"uri", uri(state_address)}},
                [failed](const qmp_message& b) { failed(b, "to send the VM's state"); });
        });
}

// Output is held from here on (filter-buffer does it by itself).
void qemu_controller::on_checkpointing() {
    look_at_ = clock::now();
}

void qemu_controller::look() {
    const auto now = clock::now();
    const bool steady = life_.told && life_.handing_over == 0;
    look_at_ = now + (life_.handing_over != 0 ? hand_over_period
                      : !life_.told           ? first_look_period
                      : config_.gpu           ? look_period
                                              : figures_period);
    if (config_.gpu)
        look_at_protected_gpu();
    if (steady && now < figures_at_)
        return;
    figures_at_ = now + figures_period;
    if (!disks_looking_) {
        disks_looking_ = true;
        look_at_disks(0, {});
    }
    if (life_.looking)
        return;
    life_.looking = true;
    ask("query-colo-status", {}, [this](const qmp_message& a) {
        life_.looking = false;
        const auto found = a.body.find("checkpoints");
        if (life_.phase != phase::checkpointing || found == a.body.end() || !found->is_object())
            return;
        const auto number = [found](const char* key) { return found->value(key, std::uint64_t{0}); };
        last_ = {life_.counted.read(number("committed")), number("early"), number("pause-us"),
                 number("epoch-us"), number("total-pause-us")};
        paused_.read(clock::now(), std::chrono::microseconds(last_.total_pause_us));
        // Whatever is still missing is a sign of progress, too.
        watch_.progress(last_.checkpoints ^ (life_.told ? 0 : disk_missing_bytes_ << 16));
        if (life_.handing_over != 0 && last_.checkpoints >= life_.handing_over && !life_.abandoned) {
            life_.handing_over = 0;
            life_.hand_over_by.reset();
            events_.handed_over(replication_);
        }
        if (last_.checkpoints >= checkpoints_until_protected && disks_complete_ && !life_.told &&
            !life_.abandoned) {
            life_.told = true;
            enter(watched_phase::protected_);
            events_.protecting(replication_);
        }
    });
}

// One after the other. A standby is one when it has all of every disk; and a disk of which no checkpoint can
// be taken would hold the VM's output for ever.
void qemu_controller::look_at_disks(std::size_t index, disk_figures sum) {
    if (index == disks_.size()) {
        disks_looking_ = false;
        disks_complete_ = sum.complete;
        disk_missing_bytes_ = sum.missing;
        disk_copied_bytes_ = sum.copied;
        return;
    }
    const auto read = [this, path = "/objects/" + disks_[index]](const char* property, answer then) {
        ask("qom-get", {{"path", path}, {"property", property}},
            [this, then = std::move(then)](const qmp_message& a) {
                if (life_.phase == phase::checkpointing && !life_.abandoned)
                    then(a);
            });
    };
    read("failure", [this](const qmp_message& a) {
        if (!a.body.is_string() || a.body.get<std::string>().empty())
            return;
        report_loss("no checkpoint can be taken: " + a.body.get<std::string>());
    });
    const auto number = [](const qmp_message& a) {
        return a.body.is_number_unsigned() ? a.body.get<std::uint64_t>() : 0;
    };
    read("missing-bytes", [this, read, number, index, sum](const qmp_message& a) {
        read("copied-bytes", [this, read, number, index, sum, missing = number(a)](const qmp_message& b) {
            read("complete", [this, index, sum, missing, copied = number(b)](const qmp_message& c) {
                look_at_disks(index + 1, {sum.missing + missing, sum.copied + copied,
                                          sum.complete && c.body.is_boolean() && c.body.get<bool>()});
            });
        });
    });
}

// Before the stream: by it each disk knows whether the standby lacks all of it, or what was kept.
void qemu_controller::name_replica() {
    auto theirs = parse_replica(replica_).value_or(replica{});
    // One that is not in the description is in no record of the standby's.
    if (disks_.size() != config_.replica_images.size())
        theirs.base.clear();
    for (const auto& disk : disks_)
        for (const auto& [property, value] :
             {std::pair{"replica", theirs.name}, {"replica-base", theirs.base}})
            ask("qom-set", {{"path", "/objects/" + disk}, {"property", property}, {"value", value}}, {});
}

// Both GPUs must be well: ours, and the standby's, without whose copy no checkpoint is one.
void qemu_controller::look_at_protected_gpu() {
    if (life_.gpu_looking || life_.abandoned)
        return;
    life_.gpu_looking = true;
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "failure"}}, [this](const qmp_message& a) {
        if (life_.phase == phase::checkpointing && a.body.is_string() && !a.body.get<std::string>().empty())
            events_.gpu_failed(a.body.get<std::string>());
    });
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "replication"}}, [this](const qmp_message& a) {
        life_.gpu_looking = false;
        if (life_.phase != phase::checkpointing || life_.abandoned || !a.body.is_object())
            return;
        for (const auto& what :
             life_.differences.read(clock::now(), a.body.value("digests-different", std::uint64_t{0}),
                                    a.body.value("memory-shipped", std::uint64_t{0})))
            events_.differences(what);
        life_.gpu_behind_ms = a.body.value("behind-ms", std::uint64_t{0});
        if (a.body.value("state", std::string("protecting")) == "protecting")
            return;
        report_loss("the standby has no copy of the GPU any more: " +
                    a.body.value("degraded", std::string()));
    });
}

// The VM stops, and the checkpoint after that has everything. One that was under way may not.
void qemu_controller::hand_over() {
    if (!qemu_ || life_.phase != phase::checkpointing || life_.abandoned)
        return events_.hand_over_failed("no checkpoints reach a standby");
    if (life_.hand_over_by)
        return;
    life_.hand_over_by = clock::now() + std::chrono::milliseconds(config_.hand_over_ms);
    ask("stop", {}, [this](const qmp_message& a) {
        if (!life_.hand_over_by)
            return run_if_stopped(); // it was cancelled, or the standby was lost, meanwhile
        if (a.what != qmp_message::kind::success) {
            life_.hand_over_by.reset();
            return events_.hand_over_failed(description(a));
        }
        events_.stopped();
        ask("query-colo-status", {}, [this](const qmp_message& b) {
            if (!life_.hand_over_by || life_.phase != phase::checkpointing)
                return;
            life_.handing_over = life_.counted.read(committed_in(b)) + 2;
            life_.told = true;
            // Setting it asks for a checkpoint at once; the interval is short until both are through.
            ask("migrate-set-parameters", {{"x-checkpoint-delay", 1}}, {});
            look_at_ = clock::now();
        });
    });
}

void qemu_controller::cancel_hand_over(const std::string& why) {
    if (!qemu_ || !life_.hand_over_by)
        return;
    life_.hand_over_by.reset();
    life_.handing_over = 0;
    ask("migrate-set-parameters", {{"x-checkpoint-delay", config_.max_epoch_ms}}, {});
    run_if_stopped();
    events_.hand_over_failed(why);
}

void qemu_controller::report_gpu_failure() {
    if (qemu_ && config_.gpu)
        ask("qom-set", {{"path", gpu_qom_path}, {"property", "report-failures"}, {"value", true}}, {});
}

void qemu_controller::go_on_alone() {
    life_.replicate = false;
    report_gpu_failure();
    if (!qemu_ || life_.phase == phase::none)
        return;
    life_.abandoned = true;
    const bool checkpointing = life_.phase == phase::checkpointing;
    const bool sends = life_.phase != phase::copying_gpu;
    life_.phase = phase::none;
    enter(watched_phase::none);
    life_.copy_waits_for.clear();
    life_.handing_over = 0;
    if (std::exchange(life_.hand_over_by, std::nullopt))
        events_.hand_over_failed("the standby was lost");
    if (!sends)
        return;
    // The channel first: the main loop may wait in it.
    yank();
    ask(checkpointing ? "x-colo-lost-heartbeat" : "migrate_cancel", {},
        [this](const qmp_message&) { run_if_stopped(); });
    end_stream();
}

// Until QEMU says that it has ended: one that stays would refuse every later standby.
void qemu_controller::end_stream() {
    life_.end_stream_at.reset();
    ask("query-migrate", {}, [this, of = replication_](const qmp_message& a) {
        if (of != replication_ || a.what != qmp_message::kind::success || !a.body.is_object())
            return;
        const auto step = end_of_stream(a.body.value("status", std::string()));
        if (step == stream_step::none)
            return;
        if (step == stream_step::fail_over)
            ask("x-colo-lost-heartbeat", {}, [this](const qmp_message&) { run_if_stopped(); });
        life_.end_stream_at = clock::now() + run_period;
    });
}

// An error in the middle of a checkpoint, or a switchover that failed, may leave the VM stopped. While
// checkpoints are taken it is also stopped for a moment by each: `cont` is refused then.
void qemu_controller::run_if_stopped() {
    if (life_.to_run)
        return;
    life_.to_run = true;
    ask("query-status", {}, [this](const qmp_message& a) {
        life_.to_run = false;
        if (a.what != qmp_message::kind::success || a.body.value("running", true) || life_.hand_over_by ||
            life_.phase == phase::migrating || life_.shut_down ||
            a.body.value("status", std::string()) == "io-error")
            return; // look_at_error() knows when that may go on
        ask("cont", {}, [this](const qmp_message& b) {
            // Refused while the checkpoint's thread is at it: look again.
            if (b.what != qmp_message::kind::success && qemu_)
                life_.run_at = clock::now() + run_period;
        });
    });
}

} // namespace kagemusha::control
