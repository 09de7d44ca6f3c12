// SPDX-License-Identifier: GPL-2.0-or-later
// Digests of both sides, in any order: those of an entry are compared when the primary's and the standby's own are
// here. How many may be open is bounded. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "mirror/protocol/message.hpp"

namespace kagemusha::mirror {

class standby_comparisons {
public:
    struct result {
        digest_result different;
        std::uint64_t compared = 0; // digests
    };

    // This entry compares. Returns the rule that it breaks, or nothing; so do the next two.
    std::string expect(log_sequence entry);
    // The primary's digests; `out`: the result, if this side's were here.
    std::string on_theirs(log_sequence entry, const std::vector<std::uint64_t>& hashes,
                          std::optional<result>& out);
    // This side's. Those of a comparison that was called off are ignored.
    std::string on_own(log_sequence entry, const std::vector<std::uint64_t>& hashes,
                       std::optional<result>& out);

    // The entry has ended here: if its digests have not come by now, they never will.
    void on_executed(log_sequence entry);
    bool call_off(log_sequence entry); // whether it was open
    void clear();

    std::uint64_t open() const { return open_.size(); }

private:
    struct comparison {
        bool own = false, own_over = false, theirs = false;
        std::vector<std::uint64_t> hashes; // of whoever came first
    };
    using iterator = std::unordered_map<log_sequence, comparison>::iterator;

    void erase(iterator c);
    std::string compare(iterator c, const std::vector<std::uint64_t>& hashes, std::optional<result>& out);

    std::unordered_map<log_sequence, comparison> open_;
    std::uint64_t pending_hashes_ = 0;
};

} // namespace kagemusha::mirror
