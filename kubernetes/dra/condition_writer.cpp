// SPDX-License-Identifier: GPL-2.0-or-later
//
// See condition_writer.hpp.
#include "kubernetes/dra/condition_writer.hpp"

#include "control/base/json_text.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <utility>

namespace kagemusha::kubernetes {

using control::text_in;
using nlohmann::json;

namespace {

constexpr int claims_of_page = 500, max_pages = 200;

// As a part of a URL's query: the server's own text, which is base64 as a rule.
std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        const bool plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
                           (byte >= 'A' && byte <= 'Z') || byte == '-' || byte == '_';
        out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
    }
    return out;
}

std::string now() {
    const auto seconds = std::time(nullptr);
    std::tm utc{};
    ::gmtime_r(&seconds, &utc);
    return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", utc);
}

} // namespace

std::string condition_writer::list(std::vector<json>& claims) {
    std::string from;
    for (int page = 0; page < max_pages; ++page) {
        const auto listed =
            server_.get(fmt::format("/apis/resource.k8s.io/v1/resourceclaims?limit={}{}", claims_of_page,
                                    from.empty() ? "" : "&continue=" + escaped(from)));
        if (!listed.ok())
            return listed.error;
        if (const auto items = listed.body.find("items"); items != listed.body.end() && items->is_array())
            for (const auto& claim : *items)
                if (has_our_device(claim))
                    claims.push_back(claim);
        const auto metadata = listed.body.find("metadata");
        from = metadata == listed.body.end() ? std::string() : text_in(*metadata, "continue");
        if (from.empty())
            return {};
    }
    return fmt::format("the cluster has more than {} claims", max_pages * claims_of_page);
}

std::string condition_writer::step(const own_node& node) {
    std::vector<json> claims;
    if (auto error = list(claims); !error.empty())
        return error;
    std::string first;
    for (const auto& claim : claims_to_write(claims, node, now())) {
        const auto& metadata = claim["metadata"];
        const auto space = text_in(metadata, "namespace"), name = text_in(metadata, "name");
        if (!is_dns_name(space) || !is_dns_name(name))
            continue;
        // Refused if somebody has changed it since: then the next step looks again. Other claims go on.
        const auto done = server_.put(
            fmt::format("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}/status", space, name),
            claim);
        if (!done.ok() && done.status != 404 && done.status != 409 && first.empty())
            first = done.error;
    }
    return first;
}

} // namespace kagemusha::kubernetes
