// SPDX-License-Identifier: GPL-2.0-or-later
//
// See key_dates.hpp.
#include "control/keys/key_dates.hpp"

#include "control/keys/certificates.hpp"
#include "net/identity.hpp"

#include <fmt/format.h>

namespace kagemusha::control {

namespace {

constexpr std::int64_t day_s = 86400;
constexpr std::int64_t warning_days = 14;

} // namespace

std::int64_t key_date::days_left(std::int64_t now_s) const {
    const auto left = expires_at_s - now_s;
    return left >= 0 ? left / day_s : -((-left + day_s - 1) / day_s);
}

std::vector<key_date> key_dates(const std::string& directory, const std::string& vm) {
    std::vector<key_date> dates;
    const auto add = [&](std::string name, const std::string& file) {
        const auto certificate = read_certificate(file);
        dates.push_back({std::move(name), certificate ? expires_at_s(certificate.get()) : 0});
    };
    for (const auto part : {net::link_part::supervisor, net::link_part::qemu}) {
        const auto keys = net::keys_directory(directory, vm, part);
        for (const auto role : {mirror::role::primary, mirror::role::standby})
            add(net::certificate_subject({vm, role, part}), keys + "/" + net::certificate_file(role));
    }
    add("the cluster's CA", net::keys_directory(directory, vm, net::link_part::supervisor) + "/ca.pem");
    return dates;
}

std::string key_warning(const std::vector<key_date>& dates, std::int64_t now_s) {
    std::string text;
    bool ca = false;
    for (const auto& date : dates) {
        const auto days = date.days_left(now_s);
        if (days >= warning_days)
            continue;
        ca = ca || date.name == dates.back().name;
        text += (text.empty() ? "" : ", ") + date.name +
                (date.expires_at_s == 0 ? " can't be read"
                 : days < 0             ? " has ended"
                                        : fmt::format(" ends in {} days", days));
    }
    if (text.empty())
        return text;
    return text + (ca ? ": make keys with a new CA and copy them to the hosts"
                      : ": renew with `kage keys DIRECTORY --renew` and copy them to the hosts");
}

} // namespace kagemusha::control
