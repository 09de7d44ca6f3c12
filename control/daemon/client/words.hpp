// SPDX-License-Identifier: GPL-2.0-or-later
//
// The commands that `kagemusha` leaves to `kagemusha-daemon`: the daemon, its clients, and what it starts itself.
// Logins, WebSockets and the network of a cluster are in that program alone, so that whoever runs or protects a VM
// neither builds nor loads them.
#pragma once

#include "control/lan/lan.hpp"
#include "control/login/pam_login.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace kagemusha::control::daemon {

inline constexpr char program_name[] = "kagemusha-daemon";

struct command_word {
    const char* word;
    const char* what; // for the list of all commands
};

inline constexpr command_word daemon_word{"daemon", "own the clusters of this host; VMs outlive it"};
inline constexpr command_word cluster_word{"cluster", "clusters of VMs with a GPU: a client of `daemon`"};
inline constexpr command_word portal_word{"portal",
                                          "clusters in a browser: opens it, and prints where it is"};
inline constexpr command_word job_word{"job", "programs in a VM whose output is followed over takeovers"};

inline constexpr std::array for_people{daemon_word, cluster_word, portal_word, job_word};

// Whether the tool leaves it to that program when it is its first word.
constexpr bool is_left_to_daemon(std::string_view word) {
    return word == lan::lan_word || word == login::pam_word ||
           std::ranges::any_of(for_people, [&](const command_word& one) { return word == one.word; });
}

} // namespace kagemusha::control::daemon
