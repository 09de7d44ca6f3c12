// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/standby/standby_comparisons.hpp"

#include <cassert>
#include <utility>

#include "mirror/log/limits.hpp"

namespace kagemusha::mirror {

std::string standby_comparisons::expect(log_sequence entry) {
    if (open_.size() >= max_pending_comparisons)
        return "too many comparisons are open";
    open_.try_emplace(entry);
    return {};
}

std::string standby_comparisons::on_theirs(log_sequence entry, const std::vector<std::uint64_t>& hashes,
                                           std::optional<result>& out) {
    const auto c = open_.find(entry);
    if (c == open_.end() || c->second.theirs)
        return "digests came for entry " + std::to_string(entry) + ", which compares none";
    c->second.theirs = true;
    return compare(c, hashes, out);
}

std::string standby_comparisons::on_own(log_sequence entry, const std::vector<std::uint64_t>& hashes,
                                        std::optional<result>& out) {
    const auto c = open_.find(entry);
    if (c == open_.end())
        return {};
    assert(!c->second.own && "once");
    c->second.own = true;
    return compare(c, hashes, out);
}

void standby_comparisons::on_executed(log_sequence entry) {
    const auto c = open_.find(entry);
    if (c == open_.end() || c->second.own)
        return;
    c->second.own_over = true;
    if (c->second.theirs)
        erase(c);
}

bool standby_comparisons::call_off(log_sequence entry) {
    const auto c = open_.find(entry);
    if (c == open_.end())
        return false;
    erase(c);
    return true;
}

void standby_comparisons::clear() {
    open_.clear();
    pending_hashes_ = 0;
}

void standby_comparisons::erase(iterator c) {
    pending_hashes_ -= c->second.hashes.size();
    open_.erase(c);
}

std::string standby_comparisons::compare(iterator c, const std::vector<std::uint64_t>& hashes,
                                         std::optional<result>& out) {
    comparison& known = c->second;
    if (known.own_over && !known.own) {
        erase(c); // the file ended before its digests were read: nothing to compare with
        return {};
    }
    if (!known.own || !known.theirs) {
        if (pending_hashes_ + hashes.size() > max_pending_hashes) {
            erase(c);
            return "too many digests are open";
        }
        known.hashes = hashes;
        pending_hashes_ += hashes.size();
        return {};
    }
    if (hashes.size() != known.hashes.size()) {
        const std::string sizes =
            std::to_string(hashes.size()) + " and " + std::to_string(known.hashes.size());
        const std::string at = std::to_string(c->first);
        erase(c);
        return "there are " + sizes + " digests of entry " + at;
    }
    result r;
    r.different.sequence = c->first;
    r.compared = hashes.size();
    for (std::uint64_t i = 0; i < hashes.size(); ++i)
        if (hashes[i] != known.hashes[i])
            r.different.different.push_back(i);
    erase(c);
    out = std::move(r);
    return {};
}

} // namespace kagemusha::mirror
