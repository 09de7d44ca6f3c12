// SPDX-License-Identifier: GPL-2.0-or-later
// memory_log: the log as a test has it: every entry, and what was told about it afterwards. It refuses what
// the contract of log_sink forbids. replayer takes entries out of it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "mirror/log/log_sink.hpp"

namespace kagemusha::mirror::testing {

class memory_log final : public log_sink {
public:
    struct item {
        log_entry entry;
        std::optional<std::int32_t> outcome;
        bool canceled = false;
        bool sent = false; // content is out of guest memory
        std::vector<std::vector<std::byte>> content;
        std::vector<std::uint64_t> digests; // of the primary
        bool awaits_outcome() const { return (entry.meta.flags & entry_awaits_outcome) != 0; }
        bool is_late() const { return (entry.meta.flags & entry_late_content) != 0; }
        bool all_came() const;
    };
    std::deque<item> items; // number 1 first
    std::vector<log_sequence> synced_at;
    std::vector<std::string> failures;
    std::vector<log_sequence> asked_to_release;
    bool sending = false;        // release_content() says false
    bool copies_at_once = false; // nobody waits for a link: what content lies in is free after append()

    item& at(log_sequence n) { return items.at(n - 1); }

    // Copies content out of where it lies, as a link does.
    void send(log_sequence n);

    log_sequence append(log_entry entry) override;
    bool congested() const override { return false; }
    void outcome(log_sequence n, std::int32_t result) override;
    void late_content(log_sequence n, std::uint32_t payload, byte_pieces bytes) override;
    void cancel(log_sequence n) override;
    void digests(log_sequence n, std::vector<std::uint64_t> hashes) override;
    bool release_content(log_sequence n) override;
    void synced(log_sequence last) override { synced_at.push_back(last); }
    void failed(const std::string& why) override { failures.push_back(why); }
};

} // namespace kagemusha::mirror::testing
