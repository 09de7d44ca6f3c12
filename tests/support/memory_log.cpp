// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/support/memory_log.hpp"

#include <utility>

#include "tests/support/test_device.hpp"

namespace kagemusha::mirror::testing {

bool memory_log::item::all_came() const {
    for (std::size_t p = 0; is_late() && p < entry.payloads.size(); ++p) {
        if (!entry.payloads[p].writable &&
            (p >= content.size() || content[p].size() != entry.payloads[p].bytes)) {
            return false;
        }
    }
    return true;
}

void memory_log::send(log_sequence n) {
    item& i = at(n);
    if (i.sent)
        return;
    i.sent = true;
    for (const byte_pieces& pieces : i.entry.content) {
        std::vector<std::byte> bytes;
        for (const auto& piece : pieces.pieces)
            bytes.insert(bytes.end(), piece.begin(), piece.end());
        require(!i.is_late() || bytes.empty(), "a late entry with content");
        if (!i.is_late())
            i.content.push_back(std::move(bytes));
    }
    i.entry.content.clear(); // what kept it alive may go
}

log_sequence memory_log::append(log_entry entry) {
    items.push_back({});
    items.back().entry = std::move(entry);
    items.back().entry.meta.sequence = items.size();
    if (copies_at_once)
        send(items.size());
    return items.size();
}

void memory_log::outcome(log_sequence n, std::int32_t result) {
    require(at(n).awaits_outcome(), "an outcome that nobody waits for");
    require(!at(n).outcome && !at(n).canceled, "an outcome told twice");
    at(n).outcome = result;
}

void memory_log::late_content(log_sequence n, std::uint32_t payload, byte_pieces bytes) {
    item& i = at(n);
    require(i.is_late() && !i.canceled, "content that does not belong to its entry");
    require(bytes.keep != nullptr, "late content in guest memory");
    i.content.resize(i.entry.payloads.size());
    for (const auto& piece : bytes.pieces)
        i.content.at(payload).insert(i.content[payload].end(), piece.begin(), piece.end());
    require(i.content[payload].size() <= i.entry.payloads[payload].bytes, "too much content");
}

void memory_log::cancel(log_sequence n) {
    require(!at(n).outcome && !at(n).canceled, "an entry with an outcome was canceled");
    at(n).canceled = true;
}

void memory_log::digests(log_sequence n, std::vector<std::uint64_t> hashes) {
    require((at(n).entry.meta.flags & entry_compare) != 0, "digests of an entry that is not compared");
    require(at(n).digests.empty() && !at(n).canceled, "digests told twice");
    at(n).digests = std::move(hashes);
}

bool memory_log::release_content(log_sequence n) {
    asked_to_release.push_back(n);
    if (sending && !at(n).sent)
        return false;
    send(n);
    return true;
}

} // namespace kagemusha::mirror::testing
