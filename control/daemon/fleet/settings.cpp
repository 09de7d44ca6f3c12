// SPDX-License-Identifier: GPL-2.0-or-later
//
// See settings.hpp.
#include "control/daemon/fleet/settings.hpp"

#include "control/base/whole_file.hpp"
#include "control/cluster/assignment.hpp"
#include "control/keys/certificates.hpp"
#include "control/vm/toml_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <unistd.h>

namespace kagemusha::control::daemon {

namespace {

constexpr std::uint32_t etcd_limit_ms = 9000; // etcd_client waits for a third of it
constexpr std::uint16_t most_first_port = 65535 - cluster::ports_of_a_slot * cluster::slots_of_a_host;

// It is a part of etcd's keys, of folders' names and of certificates.
bool is_fleet_name(const std::string& name) {
    return !name.empty() && name.size() <= 63 &&
           name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") == std::string::npos &&
           name.front() != '-' && name.front() != '.';
}

} // namespace

std::string host_and_port(const std::string& address, std::uint16_t port) {
    const bool is_v6 = address.find(':') != std::string::npos;
    return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", address, is_v6 ? "]" : "", port);
}

std::string fleet_settings::at(std::uint16_t own_port) const {
    return host_and_port(address, own_port);
}

described_arbiter fleet_settings::etcd() const {
    described_arbiter out;
    out.what = described_arbiter::kind::etcd;
    out.endpoints = endpoints;
    out.tls = tls;
    out.lease_ms = etcd_limit_ms;
    return out;
}

std::optional<fleet_settings> parse_settings(std::string_view text, const std::string& file,
                                             std::vector<std::string>& errors) {
    toml_reader reader(file, std::filesystem::path(file).parent_path().string(), errors);
    toml::table root;
    try {
        root = toml::parse(text, file);
    } catch (const toml::parse_error& error) {
        reader.complain(error.source(), std::string(error.description()));
        return std::nullopt;
    }
    fleet_settings out;
    char host[65] = "";
    ::gethostname(host, sizeof host - 1);
    out.name = host;
    {
        toml_table top(reader, root, "a daemon's settings");
        for (const char* key : {"address", "tls", "endpoints"})
            top.missing(key, "");
        top.text("name", out.name);
        top.text("address", out.address);
        top.path("tls", out.tls);
        top.texts("endpoints", out.endpoints);
        top.number("port", out.port, 1, 65535);
        top.number("first-port", out.first_port, 1024, most_first_port);
        top.number("lease-ms", out.lease_ms, 3000, 600'000);
        if (!is_fleet_name(out.name))
            top.complain("name", "'name' must be small letters, digits, '-' and '.', at most 63 of them");
        if (top.has("address") && !is_address(out.address))
            top.complain("address", "'address' must be an IP address of this host");
        for (const auto& url : out.endpoints)
            if (const auto why = why_not_an_endpoint(url); !why.empty())
                top.complain("endpoints", why);
        if (top.has("endpoints") && out.endpoints.empty())
            top.complain("endpoints", "'endpoints' must name at least one member of etcd");
    }
    return errors.empty() ? std::optional(out) : std::nullopt;
}

std::optional<fleet_settings> read_settings(const std::string& file, std::vector<std::string>& errors) {
    std::error_code error;
    if (!std::filesystem::exists(file, error))
        return std::nullopt;
    const auto text = read_whole_file(file);
    if (!text) {
        errors.push_back(fmt::format("cannot read {}", file));
        return std::nullopt;
    }
    return parse_settings(*text, file, errors);
}

} // namespace kagemusha::control::daemon
