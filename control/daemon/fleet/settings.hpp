// SPDX-License-Identifier: GPL-2.0-or-later
//
// What makes this host one of several: STATE/daemon.toml (docs/clusters.md, "Several hosts"). Without the file the
// daemon is alone, and has an etcd of its own.
//
//   name = "hosta"                  # in its certificate; else the host's name
//   address = "192.0.2.1"           # where the other hosts reach it
//   tls = "/etc/kagemusha/hosta"    # of `kage keys DIR --host hosta,192.0.2.1`: ca.pem, cert.pem, key.pem
//   endpoints = ["https://192.0.2.1:2379", …]
#pragma once

#include "control/vm/description.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::daemon {

struct fleet_settings {
    std::string name, address, tls;
    std::vector<std::string> endpoints;
    std::uint16_t port = 7444;       // where other daemons ask this one
    std::uint16_t first_port = 7500; // of standbys: three for each slot
    std::uint32_t lease_ms = 10'000; // who is silent so long is taken for dead

    described_arbiter etcd() const;
    std::string at(std::uint16_t own_port) const; // "192.0.2.1:7500"
};

// `file` is for messages. Nothing and sentences in `errors`.
std::optional<fleet_settings> parse_settings(std::string_view text, const std::string& file,
                                             std::vector<std::string>& errors);
// Nothing and no error: there is no such file.
std::optional<fleet_settings> read_settings(const std::string& file, std::vector<std::string>& errors);

// The name of the only host of a daemon that is alone.
inline constexpr char only_host[] = "localhost";

// "ADDRESS:PORT", with brackets where one needs them.
std::string host_and_port(const std::string& address, std::uint16_t port);

} // namespace kagemusha::control::daemon
