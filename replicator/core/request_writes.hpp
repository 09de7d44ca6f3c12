// SPDX-License-Identifier: GPL-2.0-or-later
// request_writes: which guest memory the worker writes for one request, and which of it is written. A worker
// writes through its own mapping, where no dirty log of the VM sees it; so the device reports each range, at
// the latest before the guest can know that the bytes are there, and no checkpoint misses them.
//
// Pure.
#pragma once

#include <kagemusha/device.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kagemusha::core {

class request_writes {
public:
    void begin(std::span<const kagemusha_payload> payloads, std::span<const kagemusha_segment> segments) {
        payloads_.clear();
        ranges_.clear();
        for (std::uint32_t i = 0; i < payloads.size(); ++i) {
            const kagemusha_payload& p = payloads[i];
            if (p.writable != 0) {
                payloads_.push_back({i, static_cast<std::uint32_t>(ranges_.size()), p.segment_count, false});
                const auto first = segments.begin() + p.first_segment;
                ranges_.insert(ranges_.end(), first, first + p.segment_count);
            }
        }
    }

    // This payload is written. Its ranges, valid until begin(); nothing if the request writes no such
    // payload, or was told so before.
    std::optional<std::span<const kagemusha_segment>> written(std::uint32_t payload) {
        const auto at = std::lower_bound(payloads_.begin(), payloads_.end(), payload,
                                         [](const one& p, std::uint32_t index) { return p.index < index; });
        if (at == payloads_.end() || at->index != payload || at->written)
            return std::nullopt;
        at->written = true;
        return std::span(ranges_).subspan(at->first, at->count);
    }

    // The ranges of payloads that are not known to be written.
    void append_rest(std::vector<kagemusha_segment>& out) const {
        for (const one& p : payloads_) {
            if (!p.written) {
                const auto first = ranges_.begin() + p.first;
                out.insert(out.end(), first, first + p.count);
            }
        }
    }

    std::vector<std::uint32_t> written() const {
        std::vector<std::uint32_t> out;
        for (const one& p : payloads_)
            if (p.written)
                out.push_back(p.index);
        return out;
    }
    std::vector<std::uint32_t> all() const {
        std::vector<std::uint32_t> out;
        for (const one& p : payloads_)
            out.push_back(p.index);
        return out;
    }
    std::uint64_t range_count() const { return ranges_.size(); }

private:
    struct one {
        std::uint32_t index, first, count;
        bool written;
    };
    std::vector<one> payloads_; // ascending
    std::vector<kagemusha_segment> ranges_;
};

} // namespace kagemusha::core
