// SPDX-License-Identifier: GPL-2.0-or-later
// flow_checker: bounded memory. What is under way to a standby or held by it is never more than it said that
// it holds, counted on the primary's end by what was sent and what it was told, and on the standby's end by
// what is really there; the primary's log keeps its bound.
#pragma once

#include <cstdint>
#include <string>

namespace kagemusha::sim {

class flow_checker {
public:
    void on_connection(std::uint64_t hold_bytes, std::uint64_t hold_entries) {
        *this = {};
        hold_bytes_ = hold_bytes;
        hold_entries_ = hold_entries;
    }
    std::string on_sent(std::uint64_t bytes) {
        sent_bytes_ += bytes;
        ++sent_entries_;
        if (sent_bytes_ - freed_bytes_ > hold_bytes_ || sent_entries_ - freed_entries_ > hold_entries_) {
            return "the primary has " + std::to_string(sent_bytes_ - freed_bytes_) + " bytes in " +
                   std::to_string(sent_entries_ - freed_entries_) +
                   " entries outstanding, the standby holds " + std::to_string(hold_bytes_) + " in " +
                   std::to_string(hold_entries_);
        }
        return {};
    }
    void on_ack(std::uint64_t freed_bytes, std::uint64_t freed_entries) {
        freed_bytes_ = freed_bytes;
        freed_entries_ = freed_entries;
    }
    static std::string held(std::uint64_t bytes, std::uint64_t entries, std::uint64_t hold_bytes,
                            std::uint64_t hold_entries) {
        if (bytes > hold_bytes || entries > hold_entries) {
            return "the standby holds " + std::to_string(bytes) + " bytes in " + std::to_string(entries) +
                   " entries, more than it wants";
        }
        return {};
    }
    static std::string logged(std::uint64_t bytes, std::uint64_t entries, std::uint64_t log_bytes,
                              std::uint64_t log_entries, std::uint64_t slack_entries,
                              std::uint64_t largest_entry) {
        if (bytes > log_bytes + slack_entries * largest_entry || entries > log_entries + slack_entries) {
            return "the primary's log has grown to " + std::to_string(bytes) + " bytes in " +
                   std::to_string(entries) + " entries";
        }
        return {};
    }

private:
    std::uint64_t hold_bytes_ = 0, hold_entries_ = 0;
    std::uint64_t sent_bytes_ = 0, sent_entries_ = 0, freed_bytes_ = 0, freed_entries_ = 0;
};

} // namespace kagemusha::sim
