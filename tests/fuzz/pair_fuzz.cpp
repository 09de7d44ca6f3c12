// SPDX-License-Identifier: GPL-2.0-or-later
// A standby's end of a pair, from the bytes of the connection to what its device is given: frame_reader,
// standby_hold with its arena, replication_standby_fsm; without threads and sockets, as pair/standby_driver
// joins them. The peer has proved who it is and keeps no rule: frames near what would be right, cut anywhere,
// some with a byte changed; connections come and go; checkpoints with any in-flight requests; a takeover.
//
// Whatever it says: what is held is what the state machine holds, and keeps its bounds; an entry runs with
// the bytes that were sent for it; nothing is left when all is over.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "mirror/protocol/agreement.hpp"
#include "mirror/standby/replication_standby_fsm.hpp"
#include "net/frame_reader.hpp"
#include "pair/arena.hpp"
#include "pair/standby_hold.hpp"
#include "peer_messages.hpp"

using namespace kagemusha;
using fuzz::require;

namespace {

constexpr std::uint64_t hold_bytes = 4096, hold_entries = 16, arena_bytes = 64 << 10;
constexpr std::uint32_t region = 1;

pair::arena& memory() {
    static std::string error;
    static const std::unique_ptr<pair::arena> one = pair::arena::create("fuzz", arena_bytes, region, error);
    require(one != nullptr, "there is memory for the arena");
    return *one;
}

// The bytes behind a message, different for each message.
std::vector<std::byte> payload_of(const mirror::message& m, std::uint8_t seed) {
    std::vector<std::byte> out(messages::payload_bytes_of(m));
    for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<std::byte>(i * 7 + seed);
    return out;
}

struct world final : net::frame_sink {
    // What was sent of an entry.
    struct sent_entry {
        std::vector<std::byte> stream, content;
    };

    mirror::standby_config config;
    std::uint64_t now = 1000;
    mirror::replication_standby_fsm fsm;
    pair::standby_hold hold{memory(), region, hold_bytes};
    std::optional<net::frame_reader> reader; // of the connection
    bool forgetting = false;
    std::map<mirror::log_sequence, std::unique_ptr<pair::held_entry>> running;
    std::vector<std::unique_ptr<pair::held_entry>> resumed;
    std::map<mirror::log_sequence, sent_entry> sent; // of this connection's entries that were taken
    std::vector<std::byte> behind;                   // the message that is read just now
    bool changed = false;                            // a byte of it was
    std::uint64_t token = 0;

    explicit world(bool commit_at_marker) : config(make_config(commit_at_marker)), fsm(config, now) {}

    static mirror::standby_config make_config(bool commit_at_marker) {
        mirror::standby_config c;
        c.vm = "vm";
        c.gpu = "null";
        c.hold_bytes = hold_bytes;
        c.hold_entries = hold_entries;
        c.heartbeat_budget_ms = 100;
        c.running_per_file = 2;
        c.commit_at_marker = commit_at_marker;
        c.compression = true;
        c.built_capability = std::string(mirror::built_capability) + "fuzz";
        return c;
    }

    // ---- net::frame_sink, as pair/standby_driver has it
    net::receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) override {
        return hold.on_payload(m, bytes);
    }
    void on_message(const mirror::message& m) override {
        if (const std::string wrong = hold.on_message(m); !wrong.empty())
            return close(wrong);
        const mirror::log_sequence before = fsm.received();
        fsm.on_message(m, now);
        if (const auto* e = std::get_if<mirror::entries>(&m)) {
            hold.keep(before, fsm.received());
            note(*e, before);
        }
        act();
    }
    bool wants_more() const override { return reader.has_value(); }

    void note(const mirror::entries& m, mirror::log_sequence before) {
        std::size_t stream = 0, content = 0;
        for (const auto& e : m.list)
            content += e.meta.stream_bytes; // all streams come first
        for (const auto& e : m.list) {
            const bool late = (e.meta.flags & mirror::entry_late_content) != 0;
            const std::uint64_t inline_bytes = late ? 0 : e.meta.content_bytes;
            if (e.meta.sequence > before && e.meta.sequence <= fsm.received() &&
                content + inline_bytes <= behind.size()) {
                const auto at = behind.begin();
                const auto from = [&](std::size_t first, std::uint64_t bytes) {
                    return std::vector<std::byte>(at + static_cast<long>(first),
                                                  at + static_cast<long>(first + bytes));
                };
                sent[e.meta.sequence] = {from(stream, e.meta.stream_bytes), from(content, inline_bytes)};
            }
            stream += e.meta.stream_bytes;
            content += inline_bytes;
        }
    }

    void close(const std::string& why) {
        if (!reader)
            return;
        closing = true; // the reader is on the stack perhaps
        hold.abandon();
        fsm.on_closed(why, now);
        act();
    }
    bool closing = false;

    void act() {
        mirror::standby_action a;
        while (fsm.next(a))
            std::visit([this](const auto& x) { on(x); }, a);
        const mirror::standby_status s = fsm.status(now);
        require(s.held_bytes <= hold_bytes && s.held_entries <= hold_entries, "what is held is bounded");
        require(forgetting || hold.entries() + running.size() == s.held_entries,
                "what is held is what the state machine holds");
        require(hold.stream_bytes() <= hold_bytes, "streams keep their bound");
    }
    void on(const mirror::act_send& a) { fuzz::require_sendable(a.what); }
    void on(const mirror::act_close_link&) {
        closing = true;
        hold.abandon();
    }
    void on(const mirror::act_run& a) {
        auto e = hold.take(a.sequence);
        check(*e, a.sequence);
        require(running.emplace(a.sequence, std::move(e)).second, "nothing runs twice");
    }
    void on(const mirror::act_skip& a) { hold.skip(a.sequence); }
    void on(const mirror::act_resume& a) {
        for (const mirror::log_sequence s : a.entries) {
            require(s > a.request.after && s <= a.request.last, "entries of the request, and no others");
            resumed.push_back(hold.take(s));
            require(resumed.back()->meta.file == a.request.file, "of its file");
        }
    }
    void on(const mirror::act_live&) {}
    void on(const mirror::act_forget_all&) {
        hold.clear();
        running.clear();
        sent.clear();
        forgetting = true;
    }
    void on(const mirror::act_store_built& a) {
        mirror::agent_memory::block pack;
        if (hold.take_pack(pack))
            require(pack.bytes.size() >= a.what.bytes, "all of a pack is there");
        fsm.on_built_stored(a.what.bytes);
    }
    void on(const mirror::act_standby_state&) {}

    void check(const pair::held_entry& e, mirror::log_sequence sequence) {
        require(e.meta.sequence == sequence, "the entry that was meant");
        if (e.meta.kind != mirror::entry_kind::submit)
            return;
        const kagemusha_request r = e.as_request(sequence);
        require(r.stream_bytes == e.meta.stream_bytes && r.payload_count == e.payloads.size(), "all of it");
        for (std::uint32_t i = 0; i < r.segment_count; ++i) {
            const kagemusha_segment& s = r.segments[i];
            require(s.region == region && s.bytes <= arena_bytes && s.offset <= arena_bytes - s.bytes,
                    "its payloads lie in the arena");
        }
        const auto at = sent.find(sequence);
        if (at == sent.end())
            return;
        require(std::ranges::equal(e.stream(), at->second.stream), "its own stream");
        require(at->second.content.empty() ||
                    std::ranges::equal(e.memory.bytes.first(at->second.content.size()), at->second.content),
                "its own content");
    }

    // ---- the peer
    void connect() {
        if (!reader) {
            reader.emplace();
            closing = false;
            fsm.on_connected(now);
            act();
            drop_closed();
        }
    }
    void drop_closed() {
        if (std::exchange(closing, false))
            reader.reset();
    }
    void send(const mirror::message& m, fuzz::reader& in) {
        const auto how = in.value<std::uint8_t>();
        if (!reader || !messages::check(m).empty() || messages::payload_bytes_of(m) > 1 << 20)
            return;
        std::vector<std::byte> wire;
        messages::encode(m, wire);
        behind = payload_of(m, how);
        wire.insert(wire.end(), behind.begin(), behind.end());
        if (how >= 0xf8) { // any byte of the frame
            wire[in.value<std::uint16_t>() % wire.size()] ^= in.value<std::byte>();
            behind.clear();
        }
        std::span<const std::byte> rest = wire;
        if (how >= 0xf0 && how < 0xf8) // and no more of it, ever
            rest = rest.first(in.value<std::uint16_t>() % rest.size());
        while (reader && !rest.empty()) {
            std::array<std::span<std::byte>, net::frame_reader::max_pieces> pieces;
            const std::size_t count = reader->prepare(pieces);
            std::size_t done = 0, most = how % 8 == 7 ? 13 : SIZE_MAX;
            for (std::size_t i = 0; i < count && most != 0; ++i) {
                const std::size_t n = std::min({pieces[i].size(), rest.size(), most});
                std::copy_n(rest.begin(), n, pieces[i].begin());
                rest = rest.subspan(n);
                most -= n;
                done += n;
                if (n < pieces[i].size())
                    break;
            }
            if (const std::string why = reader->commit(done, *this); !why.empty())
                close(why);
            drop_closed();
        }
    }

    // ---- the device
    void finish_one(std::uint8_t which, std::int32_t result) {
        if (running.empty())
            return;
        const auto at = std::next(running.begin(), static_cast<long>(which % running.size()));
        const auto sequence = at->first;
        running.erase(at);
        fsm.on_executed(sequence, result, now);
        act();
        drop_closed();
    }
    // Of the VM's state, as pair/standby_driver checks it.
    void commit(fuzz::reader& in) {
        const mirror::standby_status s = fsm.status(now);
        if (config.commit_at_marker || s.complete_epoch <= s.committed_epoch)
            return;
        fuzz::peer_messages peer(in);
        std::vector<mirror::open_request> open;
        for (unsigned left = in.value<std::uint8_t>() % 4; left != 0; --left) {
            mirror::open_request r;
            r.token = ++token;
            r.file = in.value<std::uint8_t>() % 4;
            r.last = std::min(peer.near(s.received), s.received);
            r.after = r.last - std::min<std::uint64_t>(in.value<std::uint8_t>() % 8, r.last);
            open.push_back(r);
        }
        fsm.commit(s.complete_epoch, now, open);
        act();
    }
};

void step(world& w, fuzz::reader& in) {
    fuzz::peer_messages peer(in);
    const mirror::standby_status s = w.fsm.status(w.now);
    const mirror::log_sequence oldest = s.executed + 1;
    switch (in.value<std::uint8_t>() % 20) {
    case 0:
        w.connect();
        {
            mirror::hello h = peer.hello(mirror::role::primary);
            h.capabilities.push_back(w.config.built_capability);
            return w.send(h, in);
        }
    case 1:
    case 2:
    case 3:
    case 4:
        return w.send(peer.entries(s.received + 1), in);
    case 5:
    case 6: {
        mirror::content c;
        c.sequence = peer.near(oldest);
        c.payload = in.value<std::uint8_t>() % 4;
        c.offset = peer.near(0);
        c.bytes = peer.near(in.value<std::uint16_t>() / 16);
        c.compressed_bytes = in.value<std::uint8_t>() % 8 == 0 ? c.bytes / 2 : 0;
        return w.send(c, in);
    }
    case 7: {
        mirror::outcome o;
        o.sequence = peer.near(oldest);
        o.canceled = in.value<std::uint8_t>() % 4 == 0;
        o.result = o.canceled || in.value<std::uint8_t>() % 2 == 0 ? 0 : -5;
        return w.send(o, in);
    }
    case 8:
    case 9:
        return w.send(
            mirror::marker{peer.near(s.epoch + 1), peer.near(s.received), in.value<std::uint8_t>() % 2 == 0},
            in);
    case 10:
        return w.send(mirror::synced{peer.near(s.received)}, in);
    case 11:
        return w.send(mirror::digests{peer.near(oldest), {in.value<std::uint8_t>()}}, in);
    case 12:
        if (in.value<std::uint8_t>() % 4 == 0) {
            w.close("the link ended");
            w.drop_closed();
        }
        return;
    case 13:
        w.now += in.value<std::uint8_t>();
        w.fsm.on_tick(w.now);
        w.act();
        return w.drop_closed();
    case 14:
    case 15:
    case 16:
        return w.finish_one(in.value<std::uint8_t>(), in.value<std::uint8_t>() % 8 == 0 ? -5 : 0);
    case 17:
        if (std::exchange(w.forgetting, false)) {
            w.fsm.on_forgotten(w.now);
            w.act();
            w.drop_closed();
        }
        return;
    case 18:
        return w.commit(in);
    case 19:
        if (const auto how = in.value<std::uint8_t>() % 8; how == 1) {
            return w.send(mirror::built{1, 16u + in.value<std::uint16_t>()}, in);
        } else if (how == 0) {
            w.fsm.takeover(w.now);
            w.act();
            w.drop_closed();
        }
        return;
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    {
        world w(in.value<std::uint8_t>() % 2 == 0);
        for (unsigned steps = 0; steps < 300 && !in.empty(); ++steps)
            step(w, in);
        while (!w.running.empty())
            w.finish_one(0, 0);
    }
    require(memory().used() == 0, "all memory came back");
    return 0;
}
