// SPDX-License-Identifier: GPL-2.0-or-later
//
// The accounts of the portal, in etcd: one key, changed by transactions that name the revision they were made
// from. What was read last is kept, so that etcd's death logs nobody out; it is read again after a while,
// because another host's daemon may have changed it.
//
// One thread at a time uses it.
#pragma once

#include "control/access/accounts.hpp"
#include "control/arbiter/etcd_client.hpp"
#include "control/daemon/cluster_store.hpp"
#include "control/daemon/etcd_process.hpp"

#include <chrono>
#include <functional>
#include <memory>

namespace kagemusha::control::daemon {

class account_store {
public:
    static constexpr auto good_for = std::chrono::seconds(5);

    explicit account_store(const etcd_process& etcd) : etcd_(etcd) {}

    // As they are now, or as they were when etcd answered last.
    const access::accounts& known();
    // Reads them, lets `edit` change them, and writes them. It may say no, with a sentence in `why`.
    stored change(const std::function<bool(access::accounts&, std::string& why)>& edit, std::string& why);

private:
    bool read();
    etcd_client* client();

    const etcd_process& etcd_;
    std::unique_ptr<etcd_client> client_;
    std::string endpoint_; // of client_
    access::accounts known_;
    std::string revision_ = "0";
    bool has_read_ = false;
    std::chrono::steady_clock::time_point read_at_{};
};

} // namespace kagemusha::control::daemon
