// SPDX-License-Identifier: GPL-2.0-or-later
//
// On which hosts a cluster's nodes and their standbys run. Pure, and the same for the same input: hosts in
// the order in which they are given, of equal ones the first.
//
// What never happens, whatever the load:
//   * a host has more memory, GPU or processors given away than it offers;
//   * a node and its standby are on one host, where the pool has two, or is not one host's own;
//   * a death of one host makes another one exceed what it offers: what it would take over is reserved.
// A standby has its node's memory and its part of a GPU all the time, so these count twice. Its processors
// are used only after a takeover, and at most one host is assumed to die at a time, so a host keeps free what
// the worst of its peers would bring.
//
// Beyond that, nodes of one cluster go to hosts that have none of them yet, then to those least full.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control::cluster {

struct resources {
    std::uint64_t cpus = 0, memory_mib = 0, gpu_percent = 0;
};

struct host_offer {
    std::string name;
    resources offers; // cpus: those of guests, which may be more than the host has
};

struct placed_node {
    std::string cluster;
    resources needs;
    std::size_t primary = 0;            // index of its host
    std::optional<std::size_t> standby; // nothing: it has none
};

// What is given away, by host; nodes are known by a number of the caller's.
class placement {
public:
    // `shares`: while there is one host only, it has both, a node and its standby.
    explicit placement(std::vector<host_offer> hosts, bool shares = true);

    struct request {
        std::string cluster;
        resources needs;
        bool is_protected = false;
    };
    // Nothing and a sentence in `why`: what lacks.
    std::optional<placed_node> place(const request& wanted, std::string& why) const;

    // A node is where place() or an earlier run of this program put it. Numbers are not given twice.
    void add(std::uint64_t number, placed_node node);
    void remove(std::uint64_t number);

    // A standby for a node that is there and has none; it is accounted for. Nothing: no host has room.
    std::optional<std::size_t> protect(std::uint64_t number);
    // This host offers nothing from now on; what is there stays accounted for.
    void leave_out(std::size_t host) { loads_[host].alive = false; }

    struct moved {
        std::uint64_t number;
        bool taken_over;                    // its standby is its host now
        std::optional<std::size_t> standby; // the new one; nothing: no host has room, so it is not protected
    };
    // Of every node that had its host or its standby there, in the order of their numbers; nodes that had no
    // standby are lost and are named by `lost`. The host offers nothing from now on.
    std::vector<moved> host_died(std::size_t host, std::vector<std::uint64_t>& lost);

    const std::map<std::uint64_t, placed_node>& nodes() const { return nodes_; }
    const std::vector<host_offer>& hosts() const { return hosts_; }
    // Given away for good; without what is reserved.
    const resources& used(std::size_t host) const { return loads_[host].used; }
    // Processors that a death of one other host would add.
    std::uint64_t reserved_cpus(std::size_t host) const { return loads_[host].reserve(); }

private:
    struct load {
        resources used;
        std::map<std::size_t, std::uint64_t>
            takes_over; // host → processors of its nodes that have a standby here
        bool alive = true;
        std::uint64_t most = 0; // of takes_over
        std::uint64_t reserve() const { return most; }
    };
    std::optional<std::size_t> best(const request& wanted, std::optional<std::size_t> primary) const;
    bool fits(const load& at, const resources& offers, const resources& needs,
              std::optional<std::size_t> primary) const;
    void account(const placed_node& node, bool add);
    std::size_t living() const;

    std::vector<host_offer> hosts_;
    bool shares_;
    std::vector<load> loads_;
    std::map<std::uint64_t, placed_node> nodes_;
    std::map<std::string, std::map<std::size_t, unsigned>> clusters_; // nodes and standbys of each, by host
};

} // namespace kagemusha::control::cluster
