// SPDX-License-Identifier: GPL-2.0-or-later
//
// The implementation of `kage run` and `kage standby`: one class, whose files are by whom it serves.
//
//   supervisor.cpp           itself: how it starts, its loop, its end
//   supervisor_reports.cpp   the supervisor_loop and QEMU: orders of the one, reports of the other, the disks' marks
//   supervisor_commands.cpp  people: the socket's commands, the status, signals
#pragma once

#include "control/base/json_text.hpp"
#include "control/pilot/qemu_controller.hpp"
#include "control/relay/relayed_links.hpp"
#include "control/share/vm_share.hpp"
#include "control/supervise/control_socket.hpp"
#include "control/supervise/gate.hpp"
#include "control/supervise/inbox.hpp"
#include "control/supervise/log_keeper.hpp"
#include "control/supervise/supervisor.hpp"
#include "control/supervise/supervisor_loop.hpp"
#include "control/supervise/takeover_drill.hpp"
#include "control/vm/prepare.hpp"
#include "control/vm/vm_registry.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kagemusha::control {

using json = nlohmann::json;

// When something happened: for people, and for what several processes of one machine tell of one story.
struct moment {
    std::chrono::system_clock::time_point time = std::chrono::system_clock::now();
    std::uint64_t ns = boot_ns();
};

class supervisor {
public:
    supervisor(const supervisor_options& options, vm_description vm)
        : options_(options), vm_(std::move(vm)) {}
    ~supervisor() { remove_sockets(); }
    supervisor(const supervisor&) = delete;
    supervisor& operator=(const supervisor&) = delete;
    int run();

private:
    bool prepare();
    supervisor_loop_options supervisor_loop_settings() const;
    pilot_config pilot_settings();
    bool confine(std::string& error);
    bool make_room(const vm_places& places, std::string& error);
    void keep_files();
    std::string use_files(const ha::description_parts& parts);
    std::string confinement_text() const;
    void replicate(std::uint64_t replication, const std::string& replica, bool page_changes);
    bool encrypted() const;
    void look_at_links(bool ended);
    void remove_sockets() const;
    void loop();
    void log(const std::string& event, const std::string& text, const moment& when = {});
    json answer(const json& request);
    json begin_drill();
    json status();
    json certificates() const;
    void watch_keys();
    pilot_events pilot_reports();
    supervisor_loop_orders orders();
    void finish(bool in_order, const std::string& why);
    bool use_address(const std::string& address, std::string& error);
    std::string look_at_images();
    void begin_mark();
    void finish_mark(std::string problem);
    void state_changed(const std::string& state);
    void asked_by_signal(int number);
    void hand_over_failed(const std::string& why);
    void stop_instead();

    const supervisor_options& options_;
    const vm_description vm_;
    inbox inbox_;
    std::optional<vm_registration> registration_;
    vm_places places_;
    kept_files kept_; // of the guest's files
    std::optional<prepared_vm> prepared_;
    ha::description_parts in_use_; // what the VM is made of here, with the files that it was started with
    std::unique_ptr<gate> gate_;
    std::optional<control_socket> socket_;
    std::optional<log_keeper> logs_;
    std::optional<qemu_controller> pilot_;
    std::unique_ptr<supervisor_loop> loop_;
    std::optional<relayed_links> links_; // of a confined QEMU
    std::unique_ptr<share_lease> share_; // of a GPU that others use, too
    std::string state_address_, gpu_address_, directory_;
    std::string qemu_log() const { return directory_ + "/qemu.log"; }
    std::set<std::string> qemus_sockets_; // a QEMU that is killed leaves them behind
    std::string warning_;                 // what does not get on
    std::string gpu_lost_;            // a standby's GPU has no copy, or the last takeover had none, and why
    std::vector<std::string> images_; // of the writable disks
    bool switching_over_ = false;     // and the standby has not said that it runs the VM
    bool moving_out_ = false;         // a switchover that becomes a stop if it fails
    takeover_drill drill_;
    std::chrono::steady_clock::time_point keys_watched_at_{};
    ha::disk_mark image_mark_; // what they said at the beginning
    struct mark_order {
        ha::disk_mark mark;
        bool flush;
    };
    std::deque<mark_order> marks_; // the first one is under way
    bool over_ = false, quitting_ = false;
    int status_ = 0;
    std::uint64_t running_ns_ = 0, committed_ns_ = 0, completed_ns_ = 0; // of the last takeover
};

} // namespace kagemusha::control
