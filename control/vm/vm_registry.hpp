// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which VMs of this user run: a small file per VM in a directory of the user's own, with where its QMP
// monitor is. Whoever runs a VM holds a lock on its file, so a file without a lock is left over from a killed
// process, and is removed by whoever comes across it.
//
//   $KAGEMUSHA_RUNTIME_DIR, else $XDG_RUNTIME_DIR/kagemusha, else /tmp/kagemusha-UID (mode 0700)
// The directory has a shared lock as long as a VM runs: systemd-tmpfiles, which removes from /tmp what nobody
// has touched for days, leaves a directory alone that somebody has locked.
//
//     NAME.json     {"name", "pid", "qmp", "control", "gpu"}
//     NAME.qmp      QEMU's socket
//     NAME.control  its supervisor's, if it has one (supervise/control_socket.hpp)
#pragma once

#include "control/base/process.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control {

struct registered_vm {
    std::string name;
    int pid = 0;
    std::string qmp_socket;
    std::string control_socket = {}; // "": nobody listens there
    std::string gpu = {}; // as the VM names it: "BACKEND:SELECTOR", with the default as ""; "": it has none
};

// What stands in registered_vm::gpu.
std::string gpu_named_by(const std::string& backend, const std::string& selector);

// Made if it is not there. "" and a sentence in `error` when it cannot be made or belongs to somebody else.
std::string runtime_directory(std::string& error);

// A VM's entry, as long as this object lives.
class vm_registration {
public:
    // Nothing and a sentence in `error` when the name is no name, or taken.
    static std::optional<vm_registration> make(const std::string& name, std::string& error,
                                               bool supervised = false, const std::string& gpu = {});
    vm_registration(vm_registration&&) = default;
    vm_registration& operator=(vm_registration&&) = delete;
    ~vm_registration();

    // Where QEMU is to put its monitor.
    const std::string& qmp_socket() const { return vm_.qmp_socket; }
    const std::string& control_socket() const { return vm_.control_socket; }
    std::string beside(const char* suffix) const { // a file of this VM's in the same directory
        return path_.substr(0, path_.size() - sizeof(".json") + 1) + suffix;
    }

private:
    vm_registration(registered_vm vm, std::string path, unique_fd directory, unique_fd lock)
        : vm_(std::move(vm))
        , path_(std::move(path))
        , directory_(std::move(directory))
        , lock_(std::move(lock)) {}
    registered_vm vm_;
    std::string path_;
    unique_fd directory_; // locked, too
    unique_fd lock_;
};

// By name.
std::vector<registered_vm> running_vms(std::string& error);

} // namespace kagemusha::control
