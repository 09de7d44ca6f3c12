// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/support/replayer.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "mirror/sync/digest.hpp"

namespace kagemusha::mirror::testing {

namespace {

std::string name_of(const memory_log::item& i) {
    return "entry " + std::to_string(i.entry.meta.sequence);
}

} // namespace

void replayer::run_to(log_sequence last) {
    while (executed < last && run_one(log_.at(executed + 1)))
        ++executed;
}

void replayer::drop() {
    for (; executed < log_.items.size(); ++executed)
        log_.at(executed + 1).entry.content.clear(); // whose memory is the agents'
    token_ = 0;
    comparing_.clear();
}

// False: not yet.
bool replayer::run_one(memory_log::item& i) {
    if (token_ == 0) {
        const begun b = begin(i);
        if (b != begun::runs)
            return b == begun::skipped;
    }
    if (when_ == answers::at_once)
        standby_.dispatch();
    const vgpu_response* response = standby_.answer_of(token_);
    if (!response && when_ == answers::in_time)
        return false;
    const std::uint64_t token = std::exchange(token_, 0);
    if (response) {
        ended(i, *response);
    } else {
        require(i.entry.meta.kind == entry_kind::submit && !i.awaits_outcome(),
                "the standby did not answer the call, " + name_of(i));
        unanswered_.push_back({i.entry.meta.sequence, token});
    }
    return true;
}

replayer::begun replayer::begin(memory_log::item& i) {
    if (i.awaits_outcome() && !i.outcome && !i.canceled)
        return begun::no;
    switch (i.entry.meta.kind) {
    case entry_kind::reset:
        standby_.device->reset();
        unanswered_.clear();
        return begun::skipped;
    case entry_kind::open_file:
        token_ = standby_.open(i.entry.meta.file);
        return begun::runs;
    case entry_kind::close_file:
    case entry_kind::lose_session:
        token_ = standby_.close(i.entry.meta.file);
        return begun::runs;
    case entry_kind::submit:
        break;
    }
    return begin_submit(i);
}

replayer::begun replayer::begin_submit(memory_log::item& i) {
    const entry_meta& m = i.entry.meta;
    if (!i.canceled && !i.all_came())
        return begun::no;
    const bool may_fail = (m.flags & entry_may_fail) != 0;
    if (i.canceled || (i.awaits_outcome() && *i.outcome != 0 && !may_fail)) {
        i.entry.content.clear();
        return begun::skipped;
    }
    log_.send(m.sequence);
    // A command that waits for a user event still needs its bytes later.
    forget_answered();
    if (unanswered_.empty())
        arena_used_ = 0;
    require(arena_bytes(i.entry.payloads) <= arena_.size() - arena_used_, "the test's arena is too small");
    i.content.resize(i.entry.payloads.size()); // what the GPU writes has none
    require(m.stream_bytes == i.entry.stream.size() * 8, "stream_bytes is not the stream's length");
    replay_.place(i.entry.payloads, 0, arena_used_);
    arena_used_ += arena_bytes(i.entry.payloads);
    std::uint64_t content_bytes = 0;
    for (std::size_t p = 0; p < i.content.size(); ++p) {
        const std::uint64_t wanted = i.entry.payloads[p].writable ? 0 : i.entry.payloads[p].bytes;
        require(i.content[p].size() == wanted, "content of another length");
        if (wanted != 0)
            std::memcpy(arena_.data() + replay_.offset_of(p), i.content[p].data(), wanted);
        content_bytes += rounded_up(wanted);
    }
    require(m.content_bytes == content_bytes, "content_bytes is not the content's length");
    i.content.clear();
    const auto stream = std::as_bytes(std::span(i.entry.stream));
    token_ = standby_.submit(m.file, replay_.request(m.file, 0, stream));
    return begun::runs;
}

void replayer::ended(memory_log::item& i, const vgpu_response& response) {
    const entry_meta& m = i.entry.meta;
    const std::string why = standby_.lines.empty() ? "" : standby_.lines.back();
    require(response.status == VGPU_STATUS_OK, "the standby refused " + name_of(i) + ": " + why);
    if (m.kind != entry_kind::submit)
        return;
    require(response.result == i.outcome.value_or(0),
            name_of(i) + " gave " + std::to_string(response.result) + " on the standby and " +
                std::to_string(i.outcome.value_or(0)) + " on the primary");
    if ((m.flags & entry_compare) == 0 || i.canceled)
        return;
    std::vector<std::uint64_t> hashes;
    for (std::size_t p = 0; p < i.entry.payloads.size(); ++p) {
        const auto bytes = arena_.subspan(replay_.offset_of(p), i.entry.payloads[p].bytes);
        if ((m.flags & entry_hash_content) != 0) {
            hashes.push_back(chunk_hash(bytes));
        } else {
            hashes.resize(bytes.size() / 8);
            std::memcpy(hashes.data(), bytes.data(), bytes.size());
        }
    }
    comparing_[m.sequence] = std::move(hashes);
}

replayer::compared replayer::take_compared() {
    compared out;
    std::erase_if(comparing_, [&](const auto& there) {
        const memory_log::item& i = log_.at(there.first);
        if (i.canceled)
            return true;
        if (i.digests.empty())
            return false;
        require(i.digests.size() == there.second.size(), name_of(i) + " has another number of digests");
        std::vector<std::uint64_t> different;
        for (std::uint64_t n = 0; n < i.digests.size(); ++n)
            if (i.digests[n] != there.second[n])
                different.push_back(n);
        out.emplace_back(there.first, std::move(different));
        return true;
    });
    return out;
}

void replayer::forget_answered() {
    std::erase_if(unanswered_, [this](const auto& u) {
        const vgpu_response* r = standby_.answer_of(u.second);
        require(!r || (r->status == VGPU_STATUS_OK && r->result == 0),
                "entry " + std::to_string(u.first) + " failed");
        return r != nullptr;
    });
}

void replayer::expect_answers() {
    standby_.dispatch();
    forget_answered();
    require(unanswered_.empty(), "an entry was not answered on the standby");
}

} // namespace kagemusha::mirror::testing
