// SPDX-License-Identifier: GPL-2.0-or-later
// The arbiters of control/arbiter, as models: the same record and the same steps, each step of its own time.
//
//   lock   one word of shared memory: asked and answered in one step
//   etcd   a thread in each supervisor makes round trips: read, grant a lease, compare and put; keep alive. A
//          round trip may fail before or after it was done. Leases run out by the cluster's clock. What a
//          record allows is decided by the product's own code (control/arbiter/etcd_record.hpp)
//   fence  the real state machine of each host, its record, and a command that switches the other host off
//
// The record of lock and etcd can be put back to an older one of the same holder, with the lease of then: a
// backup, or a copy of the file. Two things are a person's to make sure of before he does that, because
// nobody else can know them (docs/spec/takeover.md, section 2): that the former holder of an older record is
// gone, so it is put back to none of those; and that nobody claims from it before its holder has looked at
// it. A schedule in which somebody does says nothing, and ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "control/ha/arbiter_request.hpp"
#include "world/events.hpp"
#include "world/network.hpp"
#include "world/options.hpp"

namespace kagemusha::world {

class world;

// What lock and etcd keep.
struct kept_record {
    std::uint64_t revision = 0, term = 0, owner = 0; // revision 0: there is none
    bool paired = false;
    std::uint64_t holder = 0, lease = 0; // etcd: who holds it by which lease. lock: until when
};

// The older ones, as backups have them.
class record_history {
public:
    void put(const kept_record& r);
    void forget() { *this = {}; }
    // Of the same holder as `present`, and another one than that; none: nullptr.
    const kept_record* older(const kept_record& present, std::uint32_t choice);
    // The present one was put back, and nobody has written it since.
    bool was_put_back() const { return put_back_; }

private:
    static constexpr std::size_t most = 8;
    kept_record records_[most];
    std::size_t count_ = 0;
    bool put_back_ = false;
};

class arbiter_model {
public:
    explicit arbiter_model(world& w) : w_(w) {}
    virtual ~arbiter_model() = default;

    virtual void ask(std::uint8_t host, const ha::arbiter_request& request) = 0;
    virtual void happen(const event&) {}
    virtual void client_ended(std::uint8_t) {} // its host has no power
    virtual void rebooted() {}                 // lock: the machine was
    virtual void go_back(std::uint32_t) {}     // to one of its older records, by a number of anybody's choice

    void answer(std::uint8_t host, std::uint32_t generation, time_us at, ha::arbiter_answer a);
    void deliver(const event& e);

    std::uint64_t identities = 0; // given to processes
    bool went_back = false;       // it was put back to an older record once

    // ---- faults
    time_us away_until = 0, parted_until[most_hosts] = {}, forgets_until = 0, slow_until = 0,
            member_dead_until = 0;
    void heal();

protected:
    void say_went_back(const kept_record* to);
    void claimed_too_early();

    world& w_;

private:
    struct pending {
        ha::arbiter_answer what;
        bool used = false;
    };
    std::vector<pending> pending_;
};

std::unique_ptr<arbiter_model> make_arbiter(world& w);

} // namespace kagemusha::world
