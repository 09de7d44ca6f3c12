// SPDX-License-Identifier: GPL-2.0-or-later
#include "net/admission.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace kagemusha::net {

std::string source_of(const sockaddr& peer) {
    if (peer.sa_family == AF_INET) {
        in_addr ip{};
        std::memcpy(&ip, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, sizeof ip);
        return {reinterpret_cast<const char*>(&ip), sizeof ip};
    }
    if (peer.sa_family != AF_INET6)
        return {};
    in6_addr ip{};
    std::memcpy(&ip, &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, sizeof ip);
    const auto* const bytes = reinterpret_cast<const char*>(&ip);
    if (IN6_IS_ADDR_V4MAPPED(&ip))
        return {bytes + 12, 4};
    return {bytes, 8};
}

bool admission::may_try(source_state& s, std::uint64_t now_ms) {
    if (now_ms > s.counted_ms) {
        const std::uint64_t gained = (now_ms - s.counted_ms) / try_interval_ms;
        s.tries = static_cast<std::uint32_t>(std::min<std::uint64_t>(try_burst, s.tries + gained));
        s.counted_ms += gained * try_interval_ms;
    }
    if (s.tries == 0)
        return false;
    --s.tries;
    return true;
}

admission::decision admission::on_arrival(const std::string& source, std::uint64_t id, std::uint64_t now_ms) {
    if (sources_.size() >= max_sources && !sources_.contains(source))
        std::erase_if(sources_, [](const auto& s) { return s.second.half_open == 0; });
    const auto [at, is_new] = sources_.try_emplace(source);
    source_state& s = at->second;
    if (is_new)
        s.counted_ms = now_ms;
    if (!may_try(s, now_ms))
        return {};
    decision d{.admitted = true};
    if (s.half_open >= max_per_source) {
        d.ends = end_oldest(source);
    } else if (half_open_.size() >= max_half_open) {
        // By their age, so that of two sources with the same number the older connection goes.
        const connection* most = &half_open_.front();
        for (const connection& c : half_open_)
            if (sources_.at(c.source).half_open > sources_.at(most->source).half_open)
                most = &c;
        d.ends = end_oldest(std::string(most->source));
    }
    half_open_.push_back({id, source});
    ++s.half_open;
    return d;
}

std::uint64_t admission::end_oldest(const std::string& source) {
    const auto at = std::find_if(half_open_.begin(), half_open_.end(),
                                 [&](const connection& c) { return c.source == source; });
    const std::uint64_t id = at->id;
    on_end(id, false);
    return id;
}

void admission::on_end(std::uint64_t id, bool proved) {
    const auto at =
        std::find_if(half_open_.begin(), half_open_.end(), [id](const connection& c) { return c.id == id; });
    if (at == half_open_.end())
        return;
    source_state& s = sources_.at(at->source);
    --s.half_open;
    if (proved)
        s.tries = std::min(try_burst, s.tries + 1);
    half_open_.erase(at);
}

} // namespace kagemusha::net
