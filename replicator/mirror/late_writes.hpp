// SPDX-License-Identifier: GPL-2.0-or-later
// late_writes: writes of a file out of guest memory that an earlier read may still read into. Internal to
// mirror_primary.
//
// A guest may enqueue a read and, behind it, a write from the same memory, without waiting in between. What
// the write is to write is there when the read has ended, not when the device takes its request. So the entry
// of such a write is in the log without its content, which is given when
//   - all requests are answered that read into this memory, or
//   - the guest is about to hear that the write has ended, because then it may use the memory for something
//     else: by the answer of its request, its event, or that of a later command of its queue, if that one is
//     in order.
#ifndef KAGEMUSHA_MIRROR_LATE_WRITES_HPP
#define KAGEMUSHA_MIRROR_LATE_WRITES_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "codec/decode.hpp"
#include "mirror/log_entry.hpp"

namespace kagemusha::mirror {

class late_writes {
public:
    using memory = std::vector<std::span<const std::byte>>;

    struct write {
        std::uint64_t token = 0;           // of its request
        std::uint32_t request_payload = 0; // which names the memory there
        log_sequence entry = 0;
        std::uint32_t payload = 0; // of the entry
        memory from;
        // --- how its end can be known
        std::vector<std::uint64_t> reads; // tokens
        codec::guest_id queue = 0;        // in order; else 0
        std::vector<codec::guest_id> events;
    };

    bool empty() const { return writes_.empty(); }

    // A read of the request `token`, which is not answered.
    void reads_into(std::uint64_t token, memory to) {
        read r{token, nullptr, nullptr, {}, false};
        for (const auto& piece : to) {
            const range one{piece.data(), piece.data() + piece.size()};
            r.low = r.low ? std::min(r.low, one.begin) : one.begin;
            r.high = std::max(r.high, one.end);
            r.ranges.push_back(one);
        }
        reads_.push_back(std::move(r));
    }

    bool is_read_into(const memory& from) {
        return std::any_of(reads_.begin(), reads_.end(), [&](read& r) { return overlaps(r, from); });
    }

    // is_read_into(w.from)
    void add(write w) {
        for (read& r : reads_) {
            if (overlaps(r, w.from)) {
                w.reads.push_back(r.token);
            }
        }
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
            if (!e) {
                continue;
            }
            const std::uint32_t payload = written_payload(o);
            for (write& w : writes_) {
                const bool is_it = w.token == token && w.request_payload == payload;
                if (is_it && queue_is_in_order(e->queue)) {
                    w.queue = e->queue;
                }
                if (e->event != 0 && (is_it || w.queue == e->queue)) {
                    w.events.push_back(e->event);
                }
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
            if (due) {
                give(w);
            }
            return due;
        });
    }
    template <class F>
    void on_completion(codec::guest_id event, F&& give) {
        std::erase_if(writes_, [&](write& w) {
            const bool due = std::find(w.events.begin(), w.events.end(), event) != w.events.end();
            if (due) {
                give(w);
            }
            return due;
        });
    }

    // Nothing of them comes any more.
    std::vector<write> give_up() {
        reads_.clear();
        return std::exchange(writes_, {});
    }

private:
    struct range {
        const std::byte* begin;
        const std::byte* end;
    };
    struct read {
        std::uint64_t token;
        const std::byte *low, *high; // around all of it
        std::vector<range> ranges;
        bool sorted; // ascending and apart: only when somebody asks, as hardly anybody does
    };

    static void sort(read& r) {
        if (std::exchange(r.sorted, true)) {
            return;
        }
        std::sort(r.ranges.begin(), r.ranges.end(),
                  [](const range& a, const range& b) { return a.begin < b.begin; });
        std::size_t last = 0;
        for (const range& one : r.ranges) {
            if (one.begin <= r.ranges[last].end) { // also the first one itself
                r.ranges[last].end = std::max(r.ranges[last].end, one.end);
            } else {
                r.ranges[++last] = one;
            }
        }
        r.ranges.resize(r.ranges.empty() ? 0 : last + 1);
    }

    static bool overlaps(read& r, const memory& from) {
        return std::any_of(from.begin(), from.end(), [&](const auto& piece) {
            const std::byte *const begin = piece.data(), *const end = begin + piece.size();
            if (end <= r.low || begin >= r.high) {
                return false;
            }
            sort(r);
            const auto behind =
                std::lower_bound(r.ranges.begin(), r.ranges.end(), end,
                                 [](const range& a, const std::byte* at) { return a.begin < at; });
            return behind != r.ranges.begin() && std::prev(behind)->end > begin;
        });
    }

    // The payload that a write command reads; VGPU_PAYLOAD_NONE: none.
    static std::uint32_t written_payload(const codec::op& any) {
        return std::visit(
            [](const auto& o) -> std::uint32_t {
                if constexpr (requires { o.write(); }) {
                    return o.write() ? o.data.index : VGPU_PAYLOAD_NONE;
                } else {
                    return VGPU_PAYLOAD_NONE;
                }
            },
            any);
    }

    std::vector<read> reads_; // as many as the file has requests in flight
    std::vector<write> writes_;
};

} // namespace kagemusha::mirror

#endif
