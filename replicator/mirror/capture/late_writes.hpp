// SPDX-License-Identifier: GPL-2.0-or-later
// late_writes: writes of a file out of guest memory that an earlier read may still read into. Internal to
// primary_shadow.
//
// A guest may enqueue a read and, behind it, a write from the same memory, without waiting in between. What
// the write is to write is there when the read has ended, not when the device takes its request. So the entry
// of such a write is in the log without its content, which is given when
//   - all requests are answered that read into this memory, or
//   - the guest is about to hear that the write has ended, because then it may use the memory for something
//     else: by the answer of its request, its event, or that of a later command of its queue, if that one is
//     in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "codec/decode.hpp"
#include "mirror/capture/memory_ranges.hpp"
#include "mirror/log/log_entry.hpp"

namespace kagemusha::mirror {

class late_writes {
public:
    struct write {
        std::uint64_t token = 0;           // of its request
        std::uint32_t request_payload = 0; // which names the memory there
        log_sequence entry = 0;
        std::uint32_t payload = 0; // of the entry
        guest_memory from;
        // --- how its end can be known
        std::vector<std::uint64_t> reads; // tokens
        codec::guest_id queue = 0;        // in order; else 0
        std::vector<codec::guest_id> events;
    };

    bool empty() const { return writes_.empty(); }

    // A read of the request `token`, which is not answered.
    void reads_into(std::uint64_t token, const guest_memory& to) {
        reads_.push_back({token, {}});
        reads_.back().to.add(to);
    }

    bool is_read_into(const guest_memory& from) {
        return std::any_of(reads_.begin(), reads_.end(), [&](read& r) { return r.to.overlap(from); });
    }

    // is_read_into(w.from)
    void add(write w) {
        for (read& r : reads_)
            if (r.to.overlap(w.from))
                w.reads.push_back(r.token);
        writes_.push_back(std::move(w));
    }

    // The request in hand, when its writes were added: events that tell the end of a write.
    // queue_is_in_order(id).
    template <class F>
    void note_events(std::uint64_t token, std::span<const std::byte> stream,
                     std::span<const kagemusha_payload> payloads, F&& queue_is_in_order) {
        codec::stream_decoder decoder(stream, {payloads});
        codec::op o;
        while (decoder.next(o) == codec::decode_status::op) {
            const vgpu_enqueue* e = codec::enqueue_of(o);
            if (!e)
                continue;
            const std::uint32_t payload = written_payload(o);
            for (write& w : writes_) {
                const bool is_it = w.token == token && w.request_payload == payload;
                if (is_it && queue_is_in_order(e->queue))
                    w.queue = e->queue;
                if (e->event != 0 && (is_it || w.queue == e->queue))
                    w.events.push_back(e->event);
            }
        }
    }

    // The guest is about to be told. give(write): its content is to be taken now.
    template <class F>
    void on_done(std::uint64_t token, F&& give) {
        std::erase_if(reads_, [&](const read& r) { return r.token == token; });
        std::erase_if(writes_, [&](write& w) {
            const bool any = std::erase(w.reads, token) != 0;
            const bool due = w.token == token || (any && w.reads.empty());
            if (due)
                give(w);
            return due;
        });
    }
    template <class F>
    void on_completion(codec::guest_id event, F&& give) {
        std::erase_if(writes_, [&](write& w) {
            const bool due = std::find(w.events.begin(), w.events.end(), event) != w.events.end();
            if (due)
                give(w);
            return due;
        });
    }

    // Nothing of them comes any more.
    std::vector<write> give_up() {
        reads_.clear();
        return std::exchange(writes_, {});
    }

private:
    struct read {
        std::uint64_t token;
        memory_ranges to;
    };

    // The payload that a write command reads; VGPU_PAYLOAD_NONE: none.
    static std::uint32_t written_payload(const codec::op& any) {
        return std::visit(
            [](const auto& o) -> std::uint32_t {
                if constexpr (requires { o.write(); })
                    return o.write() ? o.data.index : VGPU_PAYLOAD_NONE;
                else
                    return VGPU_PAYLOAD_NONE;
            },
            any);
    }

    std::vector<read> reads_; // as many as the file has requests in flight
    std::vector<write> writes_;
};

} // namespace kagemusha::mirror
