// SPDX-License-Identifier: GPL-2.0-or-later
//
// See guest_files.hpp.
#include "control/ha/guest_files.hpp"

#include <algorithm>
#include <iterator>

namespace kagemusha::ha {

bool is_guest_file(std::string_view name) {
    return std::find(std::begin(guest_file_names), std::end(guest_file_names), name) !=
           std::end(guest_file_names);
}

bool is_digest(std::string_view value) {
    constexpr std::string_view prefix = "sha256:";
    return value.size() == prefix.size() + 64 && value.starts_with(prefix) &&
           value.find_first_not_of("0123456789abcdef", prefix.size()) == value.npos;
}

std::set<std::string> guest_files_of(const description_parts& parts) {
    std::set<std::string> digests;
    for (const auto& part : parts)
        if (is_guest_file(part.name) && is_digest(part.value))
            digests.insert(part.value);
    return digests;
}

std::optional<description_parts> parts_beside(const description_parts& own, const std::set<std::string>& kept,
                                              const description_parts& theirs) {
    auto parts = own;
    for (auto& part : parts) {
        if (!is_guest_file(part.name))
            continue;
        for (const auto& other : theirs)
            if (other.name == part.name && is_digest(other.value) && kept.contains(other.value))
                part.value = other.value;
    }
    if (!why_not_movable(parts, theirs).empty())
        return std::nullopt;
    return parts;
}

std::vector<std::string> unwanted_files(const std::set<std::string>& kept, const description_parts& own,
                                        const description_parts& in_use) {
    auto wanted = guest_files_of(own);
    wanted.merge(guest_files_of(in_use));
    std::vector<std::string> rest;
    std::set_difference(kept.begin(), kept.end(), wanted.begin(), wanted.end(), std::back_inserter(rest));
    return rest;
}

} // namespace kagemusha::ha
