// SPDX-License-Identifier: GPL-2.0-or-later
// arbiter: the VMs of one GPU and their sessions, between the scheduler and the sessions' pages. No socket, no
// clock: the server brings packets and time, and sends what it is asked to.
//
// A session's page is memory that a hostile process can write. Whatever is in it, the arbiter only concludes
// things about that session's VM: that it waits, that it has given the GPU back, what it used. The first may
// be wrong at its own cost; for the second the scheduler has its patience; the third is bounded by time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "share/arbiter/hello.hpp"
#include "share/core/scheduler.hpp"

namespace kagemusha::share {

using connection_id = std::uint64_t; // the server's; never used twice

class arbiter {
public:
    // `go`: wake the session of this connection. Called from within the functions below.
    explicit arbiter(std::function<void(connection_id)> go) : go_(std::move(go)) {}

    // A VM or a session. `page`: of a session; it stays until gone(). "" or why not.
    std::string join(connection_id id, const hello& who, share_page* page, std::uint64_t now_ns);
    void message(connection_id id, std::uint64_t now_ns);
    // The process of the session, as the kernel tells it of what it sends.
    void is_of(connection_id id, std::uint32_t process);
    void gone(connection_id id, std::uint64_t now_ns);
    void advance(std::uint64_t now_ns);
    // When advance() is due; UINT64_MAX: not by itself.
    std::uint64_t next_ns(std::uint64_t now_ns) const;

    policy_kind policy() const { return scheduler_.kind(); }
    std::uint64_t gpu_memory_bytes() const { return gpu_memory_bytes_; }
    std::vector<share_row> rows(std::uint64_t now_ns);
    // Those that used the GPU most come first; at most SHARE_MAX_PROGRAM_ROWS.
    std::vector<share_program_row> programs(std::uint64_t now_ns) const;

private:
    struct session {
        vm_id vm = 0;
        share_page* page = nullptr; // nullptr: the connection of the VM itself
        bool granted = false;
        std::uint64_t joined_ns = 0;
        std::uint64_t loose_charged_ns = 0;
        std::uint64_t tasks_at_grant = 0;
        std::uint32_t process = 0;
    };
    struct vm {
        std::string name;
        vm_terms terms;
        std::uint32_t sessions = 0;
        bool described = false; // by its supervisor, not only by a session
        std::uint32_t connections = 0;
        std::uint64_t gpu_ns = 0, tasks = 0; // of sessions that are gone
    };

    std::string admit(const hello& who, vm_id& id, std::uint64_t now_ns);
    void carry_out(std::uint64_t now_ns);
    bool grant(vm_id id, bool shared);
    void take_back(vm_id id, std::uint64_t flags, std::uint64_t now_ns);
    static bool reclaim(session& one, bool unused_too);
    void conclude(vm_id id, std::uint64_t now_ns); // after anything in a page may have changed
    void charge_loose(session& one, std::uint64_t now_ns);
    void bound_windows();
    static std::uint64_t gpu_ns(const session& one, std::uint64_t now_ns);

    const std::function<void(connection_id)> go_;
    scheduler scheduler_{policy_kind::fair};
    bool has_policy_ = false;
    std::uint64_t gpu_memory_bytes_ = 0;
    std::map<connection_id, session> sessions_; // bounded by the server
    std::map<vm_id, vm> vms_;
    vm_id next_vm_ = 1;
    std::uint64_t alive_ = 1;
};

} // namespace kagemusha::share
