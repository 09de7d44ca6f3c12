// SPDX-License-Identifier: GPL-2.0-or-later
//
// Where the daemon of this host keeps what it has to find again:
//
//   $KAGEMUSHA_STATE_DIR, else of an installation's root /var/lib/kagemusha,
//   else $XDG_STATE_HOME/kagemusha, else ~/.local/state/kagemusha (mode 0700)
//     lock                      of the daemon that runs
//     daemon.toml               written by a person: this host is one of several (fleet/settings.hpp)
//     etcd-id                   of the etcd whose clusters are here
//     keys/                     for etcd, made at the first start
//     etcd/                     etcd's data: the state itself
//     login.toml                who logs in by PAM and OpenID Connect (control/login/settings.hpp)
//     ways/NAME.nodeN           to agents of nodes on other hosts (fleet/peers.hpp)
//     kept/                     files of guests (vm/kept_files.hpp), unless the VMs have a runtime folder of their own
//     clusters/NAME/net/        its network (lan/lan.hpp)
//     clusters/NAME/keys/       of its links between hosts (fleet/cluster_keys.hpp)
//     clusters/NAME/nodeN/      vm.toml, job.sh, secret, started, the supervisors' logs and sockets
// and its own socket is in the directory of this user's VMs: daemon.socket (vm/vm_registry.hpp).
#pragma once

#include <string>

namespace kagemusha::control::daemon {

class state_folder {
public:
    // Made if it is not there. Nothing and a sentence in `error`.
    static state_folder open(std::string& error);

    const std::string& path() const { return path_; }
    std::string lock() const { return path_ + "/lock"; }
    std::string keys() const { return path_ + "/keys"; }
    std::string etcd() const { return path_ + "/etcd"; }
    std::string
    login() const; // the settings of control/login; of an installation's root /etc/kagemusha/login.toml
    std::string clusters() const { return path_ + "/clusters"; }
    std::string cluster(const std::string& name) const { return clusters() + "/" + name; }
    std::string network(const std::string& name) const { return cluster(name) + "/net"; }
    std::string keys_of(const std::string& name) const { return cluster(name) + "/keys"; }
    std::string settings() const { return path_ + "/daemon.toml"; }
    std::string ways() const { return path_ + "/ways"; }
    std::string etcd_id() const { return path_ + "/etcd-id"; }
    std::string node(const std::string& name, unsigned number) const;

private:
    std::string path_;
};

// "" and a sentence.
std::string daemon_socket(std::string& error);

} // namespace kagemusha::control::daemon
