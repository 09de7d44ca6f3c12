// SPDX-License-Identifier: GPL-2.0-or-later
// primary_shadow: what a request of the guest becomes in the log, and the guest memory that its entries use.
#include "mirror/capture/primary_shadow_impl.hpp"

namespace kagemusha::mirror {

guest_memory primary_shadow::impl::memory_of(const worker::request_view& request, std::uint32_t index) const {
    const kagemusha_payload& payload = request.payloads[index];
    guest_memory out;
    for (const kagemusha_segment& s :
         request.segments.subspan(payload.first_segment, payload.segment_count)) {
        assert(s.region < regions.size() && s.offset + s.bytes <= regions[s.region].bytes);
        const std::span<const std::byte> piece(regions[s.region].base + s.offset, s.bytes);
        if (!out.empty() && out.back().data() + out.back().size() == piece.data())
            out.back() = {out.back().data(), out.back().size() + piece.size()};
        else
            out.push_back(piece);
    }
    return out;
}

byte_pieces primary_shadow::impl::copied(const guest_memory& memory) {
    auto copy = gathered(memory);
    return {{std::span<const std::byte>(*copy)}, copy};
}

byte_pieces primary_shadow::impl::content_of(file& f, const worker::request_view& request,
                                             std::uint32_t index, bool may_come_late) {
    guest_memory memory = memory_of(request, index);
    if (may_come_late && f.late.is_read_into(memory))
        return {std::move(memory), nullptr, index};
    return request.payloads[index].bytes <= copy_content_bytes ? copied(memory)
                                                               : byte_pieces{std::move(memory), nullptr};
}

void primary_shadow::impl::submit(file& f, const worker::request_view& request, core::launch_runs repeats,
                                  const core::object_table& objects) {
    entries.clear();
    payloads_read.clear();
    // A read that waits for a user event may wait for ever, and a checkpoint, which needs the content,
    // with it. The next digest finds what is old then.
    const bool may_come_late = f.mode == mirror_mode::on && objects.unset_user_events() == 0;
    const struct { // one reference, for which a std::function needs no memory
        impl& self;
        file& f;
        const worker::request_view& request;
        bool may_come_late;
    } in_hand{*this, f, request, may_come_late};
    f.state->rewrite(
        request, f.mode,
        [&in_hand](std::uint32_t index) {
            return in_hand.self.content_of(in_hand.f, in_hand.request, index, in_hand.may_come_late);
        },
        entries, {true, repeats},
        [&in_hand](std::uint32_t index) {
            in_hand.f.late.reads_into(in_hand.request.token, in_hand.self.memory_of(in_hand.request, index));
            in_hand.self.payloads_read.push_back(index);
        });
    bool in_guest = false;
    for (log_entry& entry : entries) {
        const bool is_late = (entry.meta.flags & entry_late_content) != 0;
        const bool in_guest_memory = entry.content_in_guest && !is_late;
        const bool is_call = (entry.meta.flags & entry_awaits_outcome) != 0;
        if ((entry.meta.flags & entry_may_fail) != 0) // what a compiler does
            f.build_in_hand = request.token;
        std::vector<byte_pieces> late;
        if (is_late) {
            late = std::exchange(entry.content, {});
            entry.content_in_guest = false;
        }
        memory_ranges used;
        if (in_guest_memory) {
            for (const byte_pieces& c : entry.content)
                if (!c.keep)
                    used.add(c.pieces);
        }
        log_sequence sequence = 0;
        if (!entry.packed.empty()) {
            entry.meta.file = f.number;
            last = sequence = log.append_packed(entry.meta, entry.packed);
        } else {
            sequence = append(f.number, std::move(entry));
        }
        for (std::uint32_t i = 0; i < late.size(); ++i) {
            if (late[i].to_come) {
                f.late.add(
                    {request.token, *late[i].to_come, sequence, i, std::move(late[i].pieces), {}, 0, {}});
            } else if (!late[i].pieces.empty()) {
                log.late_content(sequence, i, late[i].keep ? late[i] : copied(late[i].pieces));
            }
        }
        if (is_call)
            f.calls[request.token] = sequence;
        if (in_guest_memory) {
            f.content.add(request.token, sequence, std::move(used));
            in_guest = true;
        }
    }
    if (in_guest || !f.content.empty())
        f.content.note_events(request.stream);
    bool is_free = true;
    for (std::size_t i = 0; i < payloads_read.size() && !f.content.empty(); ++i)
        is_free &= f.content.on_overwrite(memory_of(request, payloads_read[i]), log);
    if (!is_free)
        device.hold_requests(f.number);
    if (!f.late.empty()) {
        f.late.note_events(request.token, request.stream, request.payloads,
                           [&](guest_id queue) { return f.state->queue_is_in_order(queue); });
    }
    if (f.state->failure())
        note_failure(f.state->failure());
}

} // namespace kagemusha::mirror
