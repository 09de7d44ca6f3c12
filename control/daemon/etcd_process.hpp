// SPDX-License-Identifier: GPL-2.0-or-later
//
// The daemon's etcd: that of its settings, or else Debian's program as a child, one member, with its data in the state folder. It listens on
// loopback only, and speaks with nobody who has no certificate of the daemon's own CA: any user of this
// machine may connect to a port.
//
// It ends with the daemon (the kernel kills it), and starts again with the daemon: what it has acknowledged is
// on the disk. When it dies alone it is started again.
//
// One thread owns it; url() may be asked by any.
#pragma once

#include "control/base/process.hpp"
#include "control/vm/description.hpp"

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

namespace kagemusha::control::daemon {

class etcd_process {
public:
    // `keys`: a directory for make_keys(); `data`: etcd's. Both may be there.
    // `elsewhere`: there is a cluster of etcd already, and nothing is started.
    etcd_process(std::string keys, std::string data,
                 std::optional<described_arbiter> elsewhere = std::nullopt)
        : keys_(std::move(keys)), data_(std::move(data)), elsewhere_(std::move(elsewhere)) {}

    // Starts it unless it runs; not more often than once a second. A sentence when there is something to say.
    std::string keep_running();

    // How to reach it; nothing before the first start.
    std::optional<described_arbiter> described() const;

private:
    std::string make_certificates();
    std::string start();

    const std::string keys_, data_;
    const std::optional<described_arbiter> elsewhere_;
    std::optional<child_process> child_;
    std::chrono::steady_clock::time_point tried_at_{};
    mutable std::mutex mutex_;
    std::string url_; // under the mutex
};

} // namespace kagemusha::control::daemon
