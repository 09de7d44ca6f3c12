// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a described VM's QEMU has of this host: a user of its own, a root directory in which only what it
// needs has a name, and a network of its own where it can do without the host's. Here it is decided, in pure
// code; enter.hpp carries it out, in the process that becomes QEMU.
//
// An own user comes with an own root only: it could not reach what lies below a folder of its caller's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kagemusha::control {

// [confinement] of a description.
struct described_confinement {
    bool described = false; // what can't be had is an error; else the VM does without
    enum class user_kind { own, caller, given };
    enum class network_kind { automatic, host, own };
    user_kind user = user_kind::own;
    std::uint32_t id = 0; // given
    bool root = true;
    network_kind network = network_kind::automatic;
    std::vector<std::string> paths; // shown as well, and written as far as their rights go
};

// What this host gives to whoever asks.
struct host_offers {
    std::uint32_t user = 0, group = 0; // the caller's
    bool privileged = false;           // root, with what belongs to it: other users, mounts, owners of files
    bool own_ids = false;              // the users of VMs exist in the caller's user namespace
    bool user_namespaces = false;      // and mounts in them
    std::string why_not;               // neither: a few words
    std::vector<std::string> gpu_nodes;
};

// What QEMU, its launcher and its workers use.
struct confinement_needs {
    std::string vm;
    std::string directory;                     // the VM's own, where the root is built; QEMU does not see it
    std::vector<std::string> programs;         // and folders with what they load
    std::vector<std::string> images;           // that are only read: the guest's kernel, read-only disks
    std::vector<std::string> writable;         // images
    std::vector<std::string> own_files;        // that the supervisor made, and QEMU reads
    std::string console_log;                   // made for it, and written
    std::string keys;                          // directory of its copies; "": none
    std::string to_peers;                      // directory of the sockets that it connects to
    std::string of_qemu;                       // and of those that it makes; made for it
    std::string share;                         // directory of the GPUs' share arbiters; "": none
    std::string status_socket, console_socket; // at which others find it
    std::vector<std::string> netdevs;
    std::vector<std::string> options; // of its owner
    bool gpu = false, kvm = false;
    bool sandboxed = false; // it starts no program
};

struct shown_path {
    std::string path;
    bool writable = false;
    bool given = false;    // its owner becomes QEMU's user: it is the supervisor's, made for QEMU
    bool optional = false; // not every host has it
    bool operator==(const shown_path&) const = default;
};

// Opened outside, under this number in QEMU.
struct handed_descriptor {
    enum class kind { listener, tap };
    kind what = kind::listener;
    std::string name; // path of a Unix socket; a network interface
    int fd = -1;
    bool operator==(const handed_descriptor&) const = default;
};

struct confinement {
    std::optional<std::uint32_t> user; // and group of the same number; nothing: the caller's
    bool user_namespace = false;       // of the caller's own identity: what gives the rest to who is not root
    bool network = false;              // of its own
    std::string place;                 // an empty directory: the root is built on it
    std::vector<shown_path> paths;     // folders before what is in them
    std::vector<std::string> devices;
    std::vector<handed_descriptor> descriptors;
    bool operator==(const confinement&) const = default;
};

struct confinement_decision {
    std::optional<confinement> what; // nothing: as the caller
    std::string says;                // for the log and the VM's status
    std::string refusal;             // the description wants what can't be had
};

// What its owner has not asked for must not keep a VM from starting.
confinement_decision without_confinement(std::string why);

confinement_decision decide_confinement(const described_confinement& wanted, const confinement_needs& needs,
                                        const host_offers& offers);

// The same number for a name on every host and at every start, far from those of people and services.
std::uint32_t user_of_vm(std::string_view vm);
inline constexpr std::uint32_t first_vm_user = 0x70000000, vm_users = 1 << 20;

// "tap,ifname=vm0,script=no" → "vm0"; empty: no interface that can be opened before QEMU.
std::string tap_of(std::string_view netdev);
// The same netdev with an open interface.
std::string netdev_with_tap(std::string_view netdev, int fd);

// Numbers under which QEMU finds what was opened outside.
inline constexpr int status_listener_fd = 200, console_listener_fd = 201, first_tap_fd = 210;

// Between the supervisor and the process that becomes QEMU.
std::string to_text(const confinement& what);
std::optional<confinement> parse_confinement(const std::string& text);

} // namespace kagemusha::control
