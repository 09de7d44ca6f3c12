// SPDX-License-Identifier: GPL-2.0-or-later
//
// See qemu_pilot.hpp.
#include "control/supervise/qemu_pilot.hpp"

#include "control/vm_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace kagemusha::control {

namespace {

using namespace std::chrono_literals;
using json = nlohmann::json;

constexpr auto ping_period = 500ms;
constexpr auto quit_time = 15s;
constexpr auto look_period = 100ms; // at how checkpoints go; while the first ones are waited for, more often
constexpr auto first_look_period = 10ms;
constexpr auto hand_over_period = 2ms; // the VM stands still meanwhile
// At a GPU after a takeover: its guest may compute at once, or not for hours.
constexpr auto first_takeover_period = 10ms, longest_takeover_period = 2000ms;
// The first may have begun before output was held; what left until then is in the second one.
constexpr std::uint64_t checkpoints_until_protected = 2;
constexpr std::uint64_t bandwidth = std::uint64_t{10} << 30; // no limit: what is slow is the link
constexpr std::uint64_t downtime_ms = 20000;

std::string description(const qmp_message& message) {
    const auto found = message.body.find("desc");
    return found != message.body.end() && found->is_string() ? found->get<std::string>() : "without a reason";
}

// Of an answer to query-colo-status; 0: it has counted none.
std::uint64_t committed_in(const qmp_message& colo_status) {
    const auto found = colo_status.body.find("checkpoints");
    return found != colo_status.body.end() && found->is_object() ? found->value("committed", std::uint64_t{0})
                                                                 : 0;
}

// QEMU's word for one of our addresses.
std::string uri(const std::string& address) {
    return address.starts_with("unix:") ? address : "tcp:" + address;
}

std::string how_it_ended(int status) {
    if (status > 128)
        return fmt::format("signal {} ({})", status - 128, ::strsignal(status - 128));
    return fmt::format("status {}", status);
}

} // namespace

void qemu_pilot::start(const std::vector<std::string>& command, bool standby) {
    standby_ = standby;
    negotiated_ = quitting_ = shut_down_ = taking_over_ = abandoned_ = told_ = false;
    killed_why_.clear();
    phase_ = phase::none;
    stream_is_ours_ = false;
    counted_ = {};
    looking_ = gpu_looking_ = lost_told_ = false;
    look_at_takeover_.reset();
    look_at_copy_.reset();
    handing_over_ = 0;
    replicate_to_.clear();
    answers_.clear();
    session_ = {};
    pinged_.reset();
    quit_by_.reset();
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return events_.died(fmt::format("no descriptors left: {}", std::strerror(errno)), false);
    qmp_ = unique_fd(ends[0]);
    const unique_fd theirs(ends[1]);
    const unique_fd log(::open(config_.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    const unique_fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!log || !nothing)
        return events_.died(fmt::format("cannot write {}: {}", config_.log, std::strerror(errno)), false);
    auto words = command;
    words.insert(words.end(), {"-chardev", fmt::format("socket,id=supervisor,fd={}", theirs.get()), "-mon",
                               "chardev=supervisor,mode=control"});
    std::string problem;
    qemu_ = child_process::start(
        {words, config_.environment, nothing.get(), log.get(), log.get(), {theirs.get()}, true}, problem);
    if (!qemu_)
        return events_.died(problem, false);
    ping_at_ = clock::now() + ping_period;
}

qemu_pilot::wanted qemu_pilot::fds() const {
    return {qmp_.get(), qemu_ ? qemu_->pidfd() : -1};
}

qemu_pilot::clock::time_point qemu_pilot::deadline() const {
    auto at = clock::time_point::max();
    if (!qemu_)
        return at;
    if (negotiated_ && pinged_ && config_.answer_budget_ms != 0)
        at = *pinged_ + std::chrono::milliseconds(config_.answer_budget_ms);
    else if (negotiated_ && !pinged_)
        at = ping_at_;
    if (phase_ == phase::checkpointing || phase_ == phase::copying_gpu)
        at = std::min(at, look_at_);
    if (look_at_takeover_)
        at = std::min(at, *look_at_takeover_);
    if (look_at_copy_)
        at = std::min(at, *look_at_copy_);
    return quit_by_ ? std::min(at, *quit_by_) : at;
}

void qemu_pilot::handle(bool qmp, bool ended_now) {
    // The death first: nothing that is still in the socket matters more.
    if (ended_now)
        return ended();
    if (qmp && qmp_) {
        char buffer[65536];
        const auto got = ::recv(qmp_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            qmp_.reset(); // the pidfd tells the rest
        else if (got > 0)
            for (const auto& message : session_.feed({buffer, static_cast<std::size_t>(got)}))
                take(message);
    }
    const auto now = clock::now();
    if (!qemu_)
        return;
    if (quit_by_ && now >= *quit_by_) {
        quit_by_.reset();
        kill(
            fmt::format("it did not end within {} s of QMP's quit", std::chrono::seconds(quit_time).count()));
    }
    if (negotiated_ && pinged_ && config_.answer_budget_ms != 0 &&
        now >= *pinged_ + std::chrono::milliseconds(config_.answer_budget_ms))
        kill(fmt::format("its monitor gave no answer for {} ms", config_.answer_budget_ms));
    else if (negotiated_ && !pinged_ && now >= ping_at_)
        ping();
    if (phase_ == phase::checkpointing && now >= look_at_)
        look();
    else if (phase_ == phase::copying_gpu && now >= look_at_)
        look_at_gpu();
    if (look_at_takeover_ && now >= *look_at_takeover_)
        look_at_takeover();
    if (look_at_copy_ && now >= *look_at_copy_)
        look_at_copy();
}

// Out of band, so that a frozen process is told from a main loop that waits.
void qemu_pilot::ping() {
    pinged_ = clock::now();
    if (config_.copy_keys)
        renew_keys();
    ask_out_of_band("query-yank", {}, [this](const qmp_message&) {
        pinged_.reset();
        ping_at_ = clock::now() + ping_period;
    });
}

// The device reads them by itself. QEMU's stream has objects, which read when they are made; a connection
// that uses one keeps it.
void qemu_pilot::renew_keys() {
    bool changed = false;
    if (auto problem = config_.copy_keys(changed); problem != keys_problem_) {
        keys_problem_ = std::move(problem);
        if (!keys_problem_.empty())
            events_.log("the former keys are still in use: " + keys_problem_);
    }
    if (!changed || !config_.state_encrypted)
        return;
    for (const auto& [id, end] : {std::pair{state_from_id, "server"}, {state_to_id, "client"}}) {
        ask("object-del", {{"id", id}}, {});
        ask("object-add",
            {{"qom-type", "tls-creds-x509"},
             {"id", id},
             {"dir", config_.keys},
             {"endpoint", end},
             {"verify-peer", true},
             {"priority", state_tls_priority}},
            [this, end = std::string(end)](const qmp_message& added) {
                if (added.what == qmp_message::kind::success)
                    events_.log("QEMU has new keys as a " + end);
                else
                    events_.log("QEMU refuses the new keys: " + description(added));
            });
    }
}

void qemu_pilot::ended() {
    const auto status = qemu_->wait_for(0ms);
    if (!status)
        return;
    const bool in_order = *status == 0 && (shut_down_ || quitting_);
    auto how = killed_why_.empty() ? how_it_ended(*status) : fmt::format("killed, because {}", killed_why_);
    forget_process();
    events_.died(how, in_order);
}

void qemu_pilot::forget_process() {
    qemu_.reset();
    qmp_.reset();
    answers_.clear();
    phase_ = phase::none;
    look_at_takeover_.reset();
    look_at_copy_.reset();
}

void qemu_pilot::kill(const std::string& why) {
    if (!qemu_)
        return;
    if (killed_why_.empty())
        killed_why_ = why;
    qemu_->kill();
}

void qemu_pilot::quit() {
    if (!qemu_)
        return;
    quitting_ = true;
    quit_by_ = clock::now() + quit_time;
    if (phase_ == phase::none && negotiated_)
        return ask("quit", {}, {});
    // In the middle of checkpoints its main loop may wait for a peer that is gone; at its start it takes no
    // command.
    kill("the VM is stopped");
}

void qemu_pilot::restart_standby(const std::string& why) {
    if (qemu_) {
        qemu_->kill();
        qemu_->wait_for(-1ms);
        forget_process();
    }
    events_.log("QEMU is started anew: " + why);
    start_standby();
}

// ---- the monitor

void qemu_pilot::send(const std::string& bytes) {
    // Short lines, few at a time; when the socket is full QEMU does not read, and the ping finds that.
    if (qmp_)
        (void)!::send(qmp_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void qemu_pilot::ask(const char* command, json arguments, answer then) {
    std::uint64_t id = 0;
    const auto bytes = session_.command(command, arguments, id);
    answers_[id] = std::move(then);
    send(bytes);
}

void qemu_pilot::ask_out_of_band(const char* command, json arguments, answer then) {
    std::uint64_t id = 0;
    const auto bytes = session_.command(command, arguments, id, true);
    answers_[id] = std::move(then);
    send(bytes);
}

void qemu_pilot::take(const qmp_message& message) {
    switch (message.what) {
    case qmp_message::kind::greeting:
        return ask("qmp_capabilities", {{"enable", json::array({"oob"})}}, [this](const qmp_message& done) {
            if (done.what != qmp_message::kind::success)
                return kill("its monitor has no out-of-band commands");
            negotiated_ = true;
            find_writable_disks();
            auto capabilities = json::array({{{"capability", "events"}, {"state", true}}});
            if (standby_)
                capabilities.push_back({{"capability", "x-colo"}, {"state", true}});
            ask("migrate-set-capabilities", {{"capabilities", capabilities}}, [this](const qmp_message& set) {
                if (set.what != qmp_message::kind::success)
                    return kill("it refuses x-colo: " + description(set));
                if (!standby_)
                    return;
                if (encrypted(config_.state))
                    ask("migrate-set-parameters", {{"tls-creds", state_from_id}},
                        [this](const qmp_message& keys) {
                            if (keys.what != qmp_message::kind::success)
                                kill("it refuses the keys for the VM's state: " + description(keys));
                        });
                ask("migrate-incoming", {{"uri", uri(config_.state)}}, [this](const qmp_message& listening) {
                    if (listening.what != qmp_message::kind::success)
                        return kill("it cannot listen for the VM's state: " + description(listening));
                    if (config_.gpu)
                        look_at_copy_ = clock::now();
                    events_.ready();
                });
            });
            if (!replicate_to_.empty())
                replicate(replication_, std::exchange(replicate_to_, {}), gpu_to_);
        });
    case qmp_message::kind::event:
        return on_event(message);
    case qmp_message::kind::success:
    case qmp_message::kind::failure:
        if (const auto found = answers_.find(message.id); found != answers_.end()) {
            const auto then = std::move(found->second);
            answers_.erase(found);
            if (then)
                then(message);
        }
        return;
    case qmp_message::kind::broken:
        return kill("its monitor does not speak QMP");
    }
}

// Those of the description are in the checkpoints, but QEMU's own options are its owner's. At the start,
// before the guest has written.
void qemu_pilot::find_writable_disks() {
    ask("query-block", {}, [this](const qmp_message& a) {
        disks_.clear();
        for (const auto& disk : a.body.is_array() ? a.body : json::array()) {
            const auto inserted = disk.find("inserted");
            if (inserted == disk.end() || !inserted->is_object() || inserted->value("ro", true))
                continue;
            if (inserted->value("drv", std::string()) == "checkpoint-disk") {
                disks_.push_back(inserted->value("node-name", std::string()));
                continue;
            }
            if (config_.may_be_protected)
                return kill(fmt::format(
                    "its disk '{}' ({}) is writable: after a takeover it would hold writes that the VM "
                    "has not made. Describe it as a [[disk]] with writable = true, or add readonly=on to it "
                    "in 'qemu-options'; a VM that is not to be protected has no [arbiter]",
                    disk.value("device", std::string()), inserted->value("file", std::string())));
        }
    });
}

void qemu_pilot::on_event(const qmp_message& message) {
    const auto text = [&](const char* key) {
        const auto found = message.body.find(key);
        return found != message.body.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    if (message.name == "MIGRATION" && !standby_) {
        const auto status = text("status");
        if (status == "setup" && phase_ == phase::migrating)
            stream_is_ours_ = true;
        if (!stream_is_ours_)
            return;
        if (status == "colo" && phase_ == phase::migrating) {
            phase_ = phase::checkpointing;
            on_checkpointing();
        } else if ((status == "failed" || status == "cancelled") && phase_ != phase::none && !abandoned_) {
            abandoned_ = true;
            ask("query-migrate", {}, [this](const qmp_message& a) {
                const auto why =
                    a.body.is_object() ? a.body.value("error-desc", std::string()) : std::string();
                events_.replication_lost(replication_, "QEMU's stream to the standby ended" +
                                                           (why.empty() ? std::string() : ": " + why));
            });
        }
    } else if (message.name == "COLO_EXIT" && text("reason") == "error" && !standby_ && stream_is_ours_ &&
               !abandoned_) {
        abandoned_ = true;
        events_.replication_lost(replication_, "the checkpoints to the standby's QEMU failed");
    } else if (message.name == "RESUME" && taking_over_) {
        taking_over_ = false;
        standby_ = false;
        phase_ = phase::none;
        look_at_copy_.reset();
        if (config_.gpu) {
            takeover_period_ = first_takeover_period;
            look_at_takeover_ = clock::now() + takeover_period_;
        }
        events_.running();
    } else if (message.name == "SHUTDOWN") {
        shut_down_ = true;
        // -no-shutdown keeps it. While a standby has the VM, that has to be told first: else it would go on
        // from its last checkpoint, and the guest would end a second time.
        if (phase_ == phase::none)
            quit();
        else
            events_.guest_ended();
    }
}

// ---- a primary

void qemu_pilot::replicate(std::uint64_t replication, const std::string& state_address,
                           const std::string& gpu_address) {
    replication_ = replication;
    if (!negotiated_) { // it has only just been started
        replicate_to_ = state_address;
        gpu_to_ = gpu_address;
        return;
    }
    abandoned_ = told_ = looking_ = gpu_looking_ = stream_is_ours_ = false;
    disks_looking_ = disks_complete_ = false;
    disk_missing_bytes_ = 0;
    handing_over_ = 0;
    last_ = {};
    paused_ = {};
    state_to_ = state_address;
    if (!config_.gpu)
        return send_state();
    // A checkpoint names a state of the GPU that the standby must have.
    phase_ = phase::copying_gpu;
    look_at_ = clock::now();
    gpu_to_ = gpu_address;
    name_standby_of_gpu();
}

// Refused while it is connected somewhere: to the same place, or to a standby that is gone, which it notices.
void qemu_pilot::name_standby_of_gpu() {
    ask("qom-set", {{"path", gpu_qom_path}, {"property", "replicate-to"}, {"value", gpu_to_}}, {});
}

void qemu_pilot::look_at_gpu() {
    look_at_ = clock::now() + look_period;
    if (looking_)
        return;
    looking_ = true;
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "replication"}}, [this](const qmp_message& a) {
        looking_ = false;
        if (phase_ != phase::copying_gpu || a.what != qmp_message::kind::success || !a.body.is_object())
            return;
        const auto state = a.body.value("state", std::string());
        if (state == "protecting")
            send_state();
        else if (state == "disconnected" || state == "off")
            name_standby_of_gpu();
    });
}

// A Unix socket is this machine's own, and has no name that a certificate could have.
bool qemu_pilot::encrypted(const std::string& state_address) const {
    return config_.state_encrypted && !state_address.starts_with("unix:");
}

void qemu_pilot::send_state() {
    phase_ = phase::migrating;
    const auto failed = [this](const qmp_message& answer, const char* what) {
        if (answer.what == qmp_message::kind::success)
            return false;
        if (!abandoned_) {
            abandoned_ = true;
            events_.replication_lost(replication_,
                                     fmt::format("QEMU refuses {}: {}", what, description(answer)));
        }
        return true;
    };
    ask("migrate-set-capabilities",
        {{"capabilities", json::array({{{"capability", "x-colo"}, {"state", true}}})}},
        [failed](const qmp_message& a) { failed(a, "x-colo"); });
    // That was accepted only if no stream is under way, so the count is final.
    ask("query-colo-status", {}, [this](const qmp_message& a) { counted_.begin(committed_in(a)); });
    ask("migrate-set-parameters",
        {{"x-checkpoint-delay", config_.max_epoch_ms},
         {"max-bandwidth", bandwidth},
         {"downtime-limit", downtime_ms},
         {"tls-creds", encrypted(state_to_) ? state_to_id : ""}},
        [this, failed, state_address = state_to_](const qmp_message& a) {
            if (failed(a, "the times of checkpoints") || abandoned_)
                return;
            ask("migrate", {{"uri", uri(state_address)}},
                [failed](const qmp_message& b) { failed(b, "to send the VM's state"); });
        });
}

// Output is held from here on (filter-buffer does it by itself).
void qemu_pilot::on_checkpointing() {
    look_at_ = clock::now();
}

void qemu_pilot::look() {
    look_at_ = clock::now() + (handing_over_ != 0 ? hand_over_period
                               : told_            ? look_period
                                                  : first_look_period);
    if (config_.gpu)
        look_at_protected_gpu();
    if (!disks_looking_) {
        disks_looking_ = true;
        look_at_disks(0, 0, true);
    }
    if (looking_)
        return;
    looking_ = true;
    ask("query-colo-status", {}, [this](const qmp_message& a) {
        looking_ = false;
        const auto found = a.body.find("checkpoints");
        if (phase_ != phase::checkpointing || found == a.body.end() || !found->is_object())
            return;
        const auto number = [found](const char* key) { return found->value(key, std::uint64_t{0}); };
        last_ = {counted_.read(number("committed")), number("early"), number("pause-us"), number("epoch-us"),
                 number("total-pause-us")};
        paused_.read(clock::now(), std::chrono::microseconds(last_.total_pause_us));
        if (handing_over_ != 0 && last_.checkpoints >= handing_over_ && !abandoned_) {
            handing_over_ = 0;
            events_.handed_over(replication_);
        }
        if (last_.checkpoints >= checkpoints_until_protected && disks_complete_ && !told_ && !abandoned_) {
            told_ = true;
            events_.protecting(replication_);
        }
    });
}

// One after the other. A standby is one when it has all of every disk; and a disk of which no checkpoint can
// be taken would hold the VM's output for ever.
void qemu_pilot::look_at_disks(std::size_t index, std::uint64_t missing, bool complete) {
    if (index == disks_.size()) {
        disks_looking_ = false;
        disks_complete_ = complete;
        disk_missing_bytes_ = missing;
        return;
    }
    const auto read = [this, path = "/objects/" + disks_[index]](const char* property, answer then) {
        ask("qom-get", {{"path", path}, {"property", property}},
            [this, then = std::move(then)](const qmp_message& a) {
                if (phase_ == phase::checkpointing && !abandoned_)
                    then(a);
            });
    };
    read("failure", [this](const qmp_message& a) {
        if (!a.body.is_string() || a.body.get<std::string>().empty())
            return;
        abandoned_ = true;
        events_.replication_lost(replication_, "no checkpoint can be taken: " + a.body.get<std::string>());
    });
    read("missing-bytes", [this, read, index, missing, complete](const qmp_message& a) {
        const auto bytes = a.body.is_number_unsigned() ? a.body.get<std::uint64_t>() : 0;
        read("complete", [this, index, sum = missing + bytes, complete](const qmp_message& b) {
            look_at_disks(index + 1, sum, complete && b.body.is_boolean() && b.body.get<bool>());
        });
    });
}

// Both GPUs must be well: ours, and the standby's, without whose copy no checkpoint is one.
void qemu_pilot::look_at_protected_gpu() {
    if (gpu_looking_ || abandoned_)
        return;
    gpu_looking_ = true;
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "failure"}}, [this](const qmp_message& a) {
        if (phase_ == phase::checkpointing && a.body.is_string() && !a.body.get<std::string>().empty())
            events_.gpu_failed(a.body.get<std::string>());
    });
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "replication"}}, [this](const qmp_message& a) {
        gpu_looking_ = false;
        if (phase_ != phase::checkpointing || abandoned_ || !a.body.is_object() ||
            a.body.value("state", std::string("protecting")) == "protecting")
            return;
        abandoned_ = true;
        events_.replication_lost(replication_, "the standby has no copy of the GPU any more: " +
                                                   a.body.value("degraded", std::string()));
    });
}

// The VM stops, and the checkpoint after that has everything. One that was under way may not.
void qemu_pilot::hand_over() {
    if (!qemu_ || phase_ != phase::checkpointing)
        return events_.hand_over_failed("no checkpoints reach a standby");
    ask("stop", {}, [this](const qmp_message& a) {
        if (a.what != qmp_message::kind::success)
            return events_.hand_over_failed(description(a));
        events_.stopped();
        ask("query-colo-status", {}, [this](const qmp_message& b) {
            if (phase_ != phase::checkpointing)
                return;
            handing_over_ = counted_.read(committed_in(b)) + 2;
            told_ = true;
            // Setting it asks for a checkpoint at once; the interval is short until both are through.
            ask("migrate-set-parameters", {{"x-checkpoint-delay", 1}}, {});
            look_at_ = clock::now();
        });
    });
}

void qemu_pilot::tell_gpu_failure() {
    if (qemu_ && config_.gpu)
        ask("qom-set", {{"path", gpu_qom_path}, {"property", "tell-failures"}, {"value", true}}, {});
}

void qemu_pilot::go_on_alone() {
    replicate_to_.clear();
    tell_gpu_failure();
    if (!qemu_ || phase_ == phase::none)
        return;
    abandoned_ = true;
    const bool checkpointing = phase_ == phase::checkpointing;
    const bool sends = phase_ != phase::copying_gpu;
    phase_ = phase::none;
    if (!sends)
        return;
    // The channel first: the main loop may wait in it.
    ask_out_of_band("yank", {{"instances", json::array({{{"type", "migration"}}})}}, {});
    const auto on = [this](const qmp_message&) { run_if_stopped(); };
    if (checkpointing)
        ask("x-colo-lost-heartbeat", {}, on);
    else
        ask("migrate_cancel", {}, on);
}

// An error in the middle of a checkpoint may leave the VM stopped.
void qemu_pilot::run_if_stopped() {
    ask("query-status", {}, [this](const qmp_message& a) {
        if (a.what != qmp_message::kind::success || a.body.value("running", true) || phase_ != phase::none)
            return;
        ask("cont", {}, [this](const qmp_message& b) {
            // Refused while the checkpoint thread has not ended yet: look again.
            if (b.what != qmp_message::kind::success && qemu_)
                run_if_stopped();
        });
    });
}

// ---- a standby

void qemu_pilot::take_over() {
    if (!qemu_)
        return events_.takeover_failed("it does not run");
    taking_over_ = true;
    ask_out_of_band("yank", {{"instances", json::array({{{"type", "migration"}}})}}, {});
    ask("x-colo-lost-heartbeat", {}, [this](const qmp_message& a) {
        if (a.what != qmp_message::kind::success && taking_over_) {
            taking_over_ = false;
            events_.takeover_failed(description(a));
        }
    });
}

// Whether there is still something to take over with. (A connection that was cut costs nothing: the copy is
// kept.)
void qemu_pilot::look_at_copy() {
    look_at_copy_.reset(); // until the answer
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "replication"}}, [this](const qmp_message& a) {
        if (!standby_ || a.what != qmp_message::kind::success || !a.body.is_object())
            return; // unplugged
        tell_lost_copy(a.body);
        if (!lost_told_)
            look_at_copy_ = clock::now() + look_period;
    });
}

void qemu_pilot::tell_lost_copy(const json& replication) {
    if (lost_told_ || replication.value("copy-lost", std::uint64_t{0}) == 0)
        return;
    lost_told_ = true;
    events_.gpu_lost(replication.value("degraded", std::string()));
}

// The device notes the times; here they are only fetched.
void qemu_pilot::look_at_takeover() {
    takeover_period_ = std::min(takeover_period_ * 2, std::chrono::milliseconds(longest_takeover_period));
    look_at_takeover_.reset(); // until the answer
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "replication"}}, [this](const qmp_message& a) {
        if (a.what != qmp_message::kind::success || !a.body.is_object())
            return; // unplugged
        tell_lost_copy(a.body);
        const auto completed = a.body.value("first-completion-at-ns", std::uint64_t{0});
        if (completed != 0)
            return events_.gpu_computes(a.body.value("committed-at-ns", std::uint64_t{0}), completed);
        look_at_takeover_ = clock::now() + takeover_period_;
    });
}

} // namespace kagemusha::control
