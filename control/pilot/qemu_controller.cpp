// SPDX-License-Identifier: GPL-2.0-or-later
//
// See qemu_controller.hpp.
#include "control/pilot/qemu_controller.hpp"

#include "control/base/json_text.hpp"
#include "control/qemu/vm_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace kagemusha::control {

namespace {

using namespace std::chrono_literals;
using json = nlohmann::json;

constexpr int most_reads = 256;     // of the monitor in a row, so that nothing else starves
constexpr auto look_period = 100ms; // at a standby's copy
constexpr auto go_on_period = 5s;   // between attempts to let a VM go on that an error has stopped
// At a GPU after a takeover: its guest may compute at once, or not for hours.
constexpr auto first_takeover_period = 10ms, longest_takeover_period = 2000ms;

std::uint64_t ms_of(qemu_controller::clock::time_point at) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(at.time_since_epoch()).count());
}

} // namespace

std::string description(const qmp_message& message) {
    const auto found = message.body.find("desc");
    return found != message.body.end() && found->is_string() ? found->get<std::string>() : "without a reason";
}

std::string uri(const std::string& address) {
    return address.starts_with("unix:") ? address : "tcp:" + address;
}

void qemu_controller::start(const std::vector<std::string>& command, bool standby) {
    standby_ = standby;
    number_ = next_number_;
    life_ = {};
    if (standby)
        own_replica_ = keeper_.begin();
    else
        keeper_.forget();
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return events_.died(fmt::format("no descriptors left: {}", std::strerror(errno)), false, number_);
    qmp_ = unique_fd(ends[0]);
    const unique_fd theirs(ends[1]);
    const unique_fd log(::open(config_.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    const unique_fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!log || !nothing)
        return events_.died(fmt::format("cannot write {}: {}", config_.log, std::strerror(errno)), false,
                            number_);
    auto words = command;
    words.insert(words.end(), {"-chardev", fmt::format("socket,id=supervisor,fd={}", theirs.get()), "-mon",
                               "chardev=supervisor,mode=control"});
    std::string problem;
    qemu_ = child_process::start({words,
                                  config_.environment,
                                  nothing.get(),
                                  log.get(),
                                  log.get(),
                                  {theirs.get()},
                                  true,
                                  true,
                                  config_.confinement},
                                 problem);
    if (!qemu_)
        return events_.died(problem, false, number_);
    tick_at_ = clock::now() + tick_period_;
}

qemu_controller::wanted qemu_controller::fds() const {
    return {qmp_.get(), qemu_ ? qemu_->pidfd() : -1};
}

qemu_controller::clock::time_point qemu_controller::deadline() const {
    auto at = clock::time_point::max();
    if (!qemu_)
        return at;
    if (life_.negotiated || life_.killed_at)
        at = tick_at_;
    if (life_.run_at)
        at = std::min(at, *life_.run_at);
    if (life_.end_stream_at)
        at = std::min(at, *life_.end_stream_at);
    if (life_.hand_over_by)
        at = std::min(at, *life_.hand_over_by);
    if (life_.phase == phase::checkpointing || life_.phase == phase::copying_gpu)
        at = std::min(at, look_at_);
    if (life_.look_at_takeover)
        at = std::min(at, *life_.look_at_takeover);
    if (life_.look_at_copy)
        at = std::min(at, *life_.look_at_copy);
    if (look_at_flush_)
        at = std::min(at, *look_at_flush_);
    return life_.quit_by ? std::min(at, *life_.quit_by) : at;
}

void qemu_controller::handle(bool ended_now) {
    // The death first: nothing that is still in the socket matters more.
    if (ended_now)
        return ended();
    // Then what was said, also what came after poll(): the caller may have been busy, or frozen, since.
    read_answers();
    const auto now = clock::now();
    if (!qemu_)
        return;
    if (life_.killed_at)
        look_at_kill();
    if (!qemu_)
        return;
    if (life_.quit_by && now >= *life_.quit_by) {
        life_.quit_by.reset();
        kill(fmt::format("it did not end within {} s of QMP's quit", quit_time.count()));
    }
    if (now >= tick_at_) {
        tick_at_ = now + tick_period_;
        if (life_.negotiated)
            ping();
    }
    if (life_.negotiated)
        watch();
    if (life_.hand_over_by && now >= *life_.hand_over_by)
        cancel_hand_over(
            fmt::format("the standby did not have all of the VM within {} ms", config_.hand_over_ms));
    if (life_.run_at && now >= *life_.run_at) {
        life_.run_at.reset();
        run_if_stopped();
    }
    if (life_.end_stream_at && now >= *life_.end_stream_at)
        end_stream();
    if (life_.phase == phase::checkpointing && now >= look_at_)
        look();
    else if (life_.phase == phase::copying_gpu && now >= look_at_)
        look_at_gpu();
    if (life_.look_at_takeover && now >= *life_.look_at_takeover)
        look_at_takeover();
    if (life_.look_at_copy && now >= *life_.look_at_copy)
        look_at_copy();
    if (look_at_flush_ && now >= *look_at_flush_)
        look_at_flush();
}

void qemu_controller::read_answers() {
    char buffer[8192]; // most answers are shorter; a large one would have pages of the stack of its own
    for (int i = 0; qmp_ && i < most_reads; ++i) {
        const auto got = ::recv(qmp_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0)
            return qmp_.reset(); // the pidfd tells the rest
        for (const auto& message : life_.session.feed({buffer, static_cast<std::size_t>(got)}))
            take(message);
        if (static_cast<std::size_t>(got) < sizeof buffer)
            return; // that was all; what has come since wakes the caller
    }
}

// Out of band and in band, so that a frozen process is told from a main loop that waits.
void qemu_controller::ping() {
    if (config_.copy_keys)
        renew_keys();
    if (!life_.pinged) {
        life_.pinged = true;
        watch_.asked(question::out_of_band);
        ask_out_of_band("query-yank", {}, [this](const qmp_message&) {
            life_.pinged = false;
            watch_.answered(question::out_of_band);
        });
    }
    if (!life_.pinged_in_band) {
        life_.pinged_in_band = true;
        watch_.asked(question::in_band);
        ask("query-status", {}, [this](const qmp_message& a) {
            life_.pinged_in_band = false;
            watch_.answered(question::in_band);
            if (a.body.is_object())
                look_at_error(!standby_ && a.body.value("status", std::string()) == "io-error");
        });
        if (life_.phase == phase::migrating)
            look_at_transfer();
    }
}

// The device reads them by itself. QEMU's stream has objects, which read when they are made; a connection
// that uses one keeps it.
void qemu_controller::renew_keys() {
    bool changed = false;
    if (auto problem = config_.copy_keys(changed); problem != keys_problem_) {
        keys_problem_ = std::move(problem);
        if (!keys_problem_.empty())
            events_.log("the former keys are still in use: " + keys_problem_);
    }
    if (!changed || !config_.state_has_keys)
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

// The bytes of the first copy.
void qemu_controller::look_at_transfer() {
    ask("query-migrate", {}, [this](const qmp_message& a) {
        if (life_.phase != phase::migrating || a.what != qmp_message::kind::success || !a.body.is_object())
            return;
        const auto ram = a.body.find("ram");
        const auto bytes =
            ram != a.body.end() && ram->is_object() ? ram->value("transferred", std::uint64_t{0}) : 0;
        watch_.progress(bytes + std::hash<std::string>{}(a.body.value("status", std::string())));
    });
}

void qemu_controller::watch() {
    progress_event event;
    while (qemu_ && watch_.look(ms_of(clock::now()), event)) {
        switch (event.what) {
        case progress_event::kind::warn:
            warn(concern::progress, event.why);
            break;
        case progress_event::kind::free_stream:
            events_.log("the stream to the standby is cut: " + event.why);
            yank();
            break;
        case progress_event::kind::replication_lost:
            if (!std::exchange(life_.abandoned, true))
                events_.replication_lost(replication_, event.why);
            break;
        case progress_event::kind::stuck:
            if (life_.killed_why.empty() && !life_.taking_over)
                events_.stuck(event.why);
            break;
        }
    }
}

void qemu_controller::warn(concern what, const std::string& text) {
    if (std::exchange(warnings_[what], text) == text)
        return;
    std::string all;
    for (const auto& [_, one] : warnings_)
        all += (all.empty() || one.empty() ? "" : "; ") + one;
    events_.warning(all);
}

// A device has stopped the VM: an image's file system is full, or workers that may still write the guest's
// memory did not end before the guest reset the device. A standby goes on; without one it is tried again,
// when no worker is left.
void qemu_controller::look_at_error(bool stands_still) {
    if (!stands_still || !life_.killed_why.empty()) {
        go_on_at_.reset();
        return warn(concern::error, {});
    }
    warn(concern::error, "a device has stopped the VM after an error: qemu.log says which");
    const auto now = clock::now();
    if (life_.phase == phase::checkpointing && life_.told && !life_.abandoned)
        return events_.stuck("a device has stopped the VM after an error");
    if (now < go_on_at_.value_or(now) || life_.phase == phase::migrating || life_.hand_over_by ||
        life_.shut_down)
        return;
    const auto go_on = [this] {
        go_on_at_ = clock::now() + go_on_period;
        ask("cont", {}, {});
    };
    if (!config_.gpu)
        return go_on();
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "writers"}}, [go_on](const qmp_message& a) {
        if (a.what == qmp_message::kind::success && a.body == 0)
            go_on(); // else it is asked again
    });
}

// Once for each stream. While the main loop is under suspicion the watch says which of both it was.
void qemu_controller::report_loss(const std::string& why) {
    if (life_.abandoned || !life_.killed_why.empty()) // its end is no fault of the standby's
        return;
    if (watch_.may_report_loss(why)) {
        life_.abandoned = true;
        events_.replication_lost(replication_, why);
    }
}

void qemu_controller::yank() {
    ask_out_of_band("yank", {{"instances", json::array({{{"type", "migration"}}})}}, {});
}

// ---- the monitor

void qemu_controller::send(const std::string& bytes) {
    // Short lines, few at a time; when the socket is full QEMU does not read, and the ping finds that.
    if (qmp_)
        (void)!::send(qmp_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void qemu_controller::ask(const char* command, json arguments, answer then) {
    std::uint64_t id = 0;
    const auto bytes = life_.session.command(command, arguments, id);
    life_.answers[id] = std::move(then);
    send(bytes);
}

void qemu_controller::ask_out_of_band(const char* command, json arguments, answer then) {
    std::uint64_t id = 0;
    const auto bytes = life_.session.command(command, arguments, id, true);
    life_.answers[id] = std::move(then);
    send(bytes);
}

void qemu_controller::take(const qmp_message& message) {
    switch (message.what) {
    case qmp_message::kind::greeting:
        return ask("qmp_capabilities", {{"enable", json::array({"oob"})}}, [this](const qmp_message& done) {
            if (done.what != qmp_message::kind::success)
                return kill("its monitor has no out-of-band commands");
            life_.negotiated = true;
            watch_.started(ms_of(clock::now()));
            tick_at_ = clock::now();
            find_writable_disks();
            auto capabilities = json::array({{{"capability", "events"}, {"state", true}}});
            if (standby_)
                capabilities.push_back({{"capability", "x-colo"}, {"state", true}});
            ask("migrate-set-capabilities", {{"capabilities", capabilities}}, [this](const qmp_message& set) {
                if (set.what != qmp_message::kind::success)
                    return kill("it refuses x-colo: " + description(set));
                if (!standby_)
                    return;
                if (config_.incoming_is_encrypted)
                    ask("migrate-set-parameters", {{"tls-creds", state_from_id}},
                        [this](const qmp_message& keys) {
                            if (keys.what != qmp_message::kind::success)
                                kill("it refuses the keys for the VM's state: " + description(keys));
                        });
                ask("migrate-incoming", {{"uri", uri(config_.state)}}, [this](const qmp_message& listening) {
                    if (listening.what != qmp_message::kind::success)
                        return kill("it cannot listen for the VM's state: " + description(listening));
                    if (config_.gpu)
                        life_.look_at_copy = clock::now();
                    events_.ready(number_, to_text(own_replica_));
                });
            });
            if (std::exchange(life_.replicate, false))
                replicate(replication_, to_, encrypted_, replica_, page_changes_);
        });
    case qmp_message::kind::event:
        return on_event(message);
    case qmp_message::kind::success:
    case qmp_message::kind::failure:
        if (const auto found = life_.answers.find(message.id); found != life_.answers.end()) {
            const auto then = std::move(found->second);
            life_.answers.erase(found);
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
void qemu_controller::find_writable_disks() {
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

void qemu_controller::on_event(const qmp_message& message) {
    const auto text = [&](const char* key) { return text_in(message.body, key); };
    if (message.name == "MIGRATION" && !standby_) {
        const auto status = text("status");
        if (status == "setup" && life_.phase == phase::migrating)
            life_.stream_is_ours = true;
        if (!life_.stream_is_ours)
            return;
        if (status == "colo" && life_.phase == phase::migrating) {
            life_.phase = phase::checkpointing;
            on_checkpointing();
        } else if ((status == "failed" || status == "cancelled") && life_.phase != phase::none &&
                   !life_.abandoned) {
            ask("query-migrate", {}, [this, of = replication_](const qmp_message& a) {
                if (of != replication_)
                    return;
                const auto why =
                    a.body.is_object() ? a.body.value("error-desc", std::string()) : std::string();
                report_loss("QEMU's stream to the standby ended" +
                            (why.empty() ? std::string() : ": " + why));
            });
        }
    } else if (message.name == "COLO_EXIT" && text("reason") == "error" && !standby_ &&
               life_.stream_is_ours) {
        report_loss("the checkpoints to the standby's QEMU failed");
    } else if (message.name == "RESUME" && life_.taking_over) {
        life_.taking_over = false;
        standby_ = false;
        life_.phase = phase::none;
        life_.look_at_copy.reset();
        if (config_.gpu) {
            takeover_period_ = first_takeover_period;
            life_.look_at_takeover = clock::now() + takeover_period_;
        }
        events_.running();
    } else if (message.name == "RESET" && message.body.value("guest", false)) {
        events_.log("the guest starts anew");
    } else if (message.name == "SHUTDOWN") {
        on_shutdown(message.body.value("guest", false), text("reason"));
    }
}

void qemu_controller::on_shutdown(bool by_guest, const std::string& reason) {
    // A signal to QEMU's own process (all of a service's processes may get one when the host shuts down) is
    // no wish of the guest's: who has a standby goes on there.
    if (!by_guest && life_.told && life_.phase == phase::checkpointing && !life_.quitting)
        return kill(fmt::format("it was ended from outside ({})", reason));
    life_.shut_down = true;
    // -no-shutdown keeps it. While a standby has the VM, that has to be told first: else it would go on
    // from its last checkpoint, and the guest would end a second time.
    if (life_.phase == phase::none)
        return quit();
    events_.guest_ended(reason == "guest-panic" ? "the guest has panicked"
                                                : "the guest has switched itself off");
}

// ---- a standby

void qemu_controller::take_over() {
    if (!qemu_)
        return events_.takeover_failed("it does not run");
    life_.taking_over = true;
    keeper_.spoil(); // the guest may write from here on
    yank();
    ask("x-colo-lost-heartbeat", {}, [this](const qmp_message& a) {
        if (a.what != qmp_message::kind::success && life_.taking_over) {
            life_.taking_over = false;
            events_.takeover_failed(description(a));
        }
    });
}

// Whether there is still something to take over with. (A connection that was cut costs nothing: the copy is
// kept.)
void qemu_controller::look_at_copy() {
    life_.look_at_copy.reset(); // until the answer
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "replication"}}, [this](const qmp_message& a) {
        if (!standby_ || a.what != qmp_message::kind::success || !a.body.is_object())
            return; // unplugged
        report_lost_copy(a.body);
        if (!life_.lost_reported)
            life_.look_at_copy = clock::now() + look_period;
    });
}

void qemu_controller::report_lost_copy(const json& replication) {
    if (life_.lost_reported || replication.value("copy-lost", std::uint64_t{0}) == 0)
        return;
    life_.lost_reported = true;
    events_.gpu_lost(replication.value("degraded", std::string()));
}

// The device notes the times; here they are only fetched.
void qemu_controller::look_at_takeover() {
    takeover_period_ = std::min(takeover_period_ * 2, std::chrono::milliseconds(longest_takeover_period));
    life_.look_at_takeover.reset(); // until the answer
    ask("qom-get", {{"path", gpu_qom_path}, {"property", "replication"}}, [this](const qmp_message& a) {
        if (a.what != qmp_message::kind::success || !a.body.is_object())
            return; // unplugged
        report_lost_copy(a.body);
        const auto completed = a.body.value("first-completion-at-ns", std::uint64_t{0});
        if (completed != 0)
            return events_.gpu_computes(a.body.value("committed-at-ns", std::uint64_t{0}), completed);
        life_.look_at_takeover = clock::now() + takeover_period_;
    });
}

} // namespace kagemusha::control
