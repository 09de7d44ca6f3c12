// SPDX-License-Identifier: GPL-2.0-or-later
// mirror::replication_primary_fsm with its pair::op_log against a hostile standby that is authenticated:
// acknowledgements, results and faults in any order, connections that come and go, beside a device that does
// its work. Whatever the peer says, nothing crashes, entries leave in order and once, never more than the
// standby has room for, only valid messages are sent, with the bytes that they say, and nothing is left in
// the log that is dropped.
#include <algorithm>
#include <map>
#include <vector>

#include "mirror/primary/replication_primary_fsm.hpp"
#include "mirror/protocol/agreement.hpp"
#include "pair/op_log.hpp"
#include "peer_messages.hpp"

using namespace kagemusha;
using fuzz::require;

namespace {

struct world {
    enum class device : std::uint8_t { off, on, stopping };
    enum class link : std::uint8_t { down, connecting, up };
    struct open_entry {
        std::uint32_t file = 0;
        std::uint64_t late_bytes = 0;
        bool wants_outcome = false, wants_digests = false;
    };

    mirror::primary_config config;
    std::uint64_t now = 1000;
    mirror::replication_primary_fsm fsm;
    pair::op_log log;
    std::vector<pair::log_event> events;
    device dev = device::off;
    link state = link::down;
    mirror::log_sequence last = 0; // appended, ever
    mirror::log_sequence first = 0, sent = 0;
    std::map<mirror::log_sequence, open_entry> open;     // the device has to tell more of them
    std::map<mirror::log_sequence, std::uint64_t> costs; // of this run
    std::uint64_t outstanding = 0;                       // sent, in bytes of the standby's hold
    mirror::ack acked;                                   // what the standby said last
    std::uint64_t hold_bytes = 0;
    bool synced = false;

    explicit world(std::uint32_t epoch_ms)
        : config(make_config(epoch_ms))
        , fsm(config, now)
        , log({config.log_bytes, config.log_entries}, {[] {}, [](mirror::log_sequence) {}, [] {}}) {}

    static mirror::primary_config make_config(std::uint32_t epoch_ms) {
        mirror::primary_config c;
        c.vm = "vm";
        c.gpu = "null";
        c.log_bytes = 8192;
        c.log_entries = 32;
        c.epoch_ms = epoch_ms;
        c.heartbeat_budget_ms = 100;
        c.built_capability = std::string(mirror::built_capability) + "fuzz";
        return c;
    }

    void act() {
        mirror::primary_action a;
        while (fsm.next(a))
            std::visit([this](const auto& x) { on(x); }, a);
        const mirror::primary_status s = fsm.status(now);
        require(s.executed <= s.received && s.received <= s.sent && s.sent <= s.appended,
                "numbers are in order");
        require(s.degraded.size() <= 4096, "a reason is a sentence");
    }

    // What the device has told, as pair/primary_driver passes it on.
    void pump() {
        log.take_events(events);
        for (pair::log_event& e : events) {
            switch (e.what) {
            case pair::log_event::kind::entry:
                fsm.on_entry(e.meta, now);
                break;
            case pair::log_event::kind::outcome:
                fsm.on_outcome(e.sequence, false, e.result);
                break;
            case pair::log_event::kind::cancel:
                fsm.on_outcome(e.sequence, true, 0);
                break;
            case pair::log_event::kind::late_content:
                fsm.on_late_content(e.sequence, e.payload, e.bytes);
                break;
            case pair::log_event::kind::digests:
                fsm.on_digests(e.sequence, std::move(e.hashes), now);
                break;
            case pair::log_event::kind::built:
                fsm.on_built(e.meta.file, e.bytes);
                break;
            case pair::log_event::kind::synced:
                fsm.on_synced(e.sequence);
                break;
            case pair::log_event::kind::failed:
                fsm.on_mirror_failed(e.text, now);
                break;
            case pair::log_event::kind::stopped:
                log.drop(UINT64_MAX);
                require(log.bytes() == 0 && log.entries() == 0, "nothing is left of what was dropped");
                fsm.on_mirror_stopped(now);
                break;
            }
        }
        act();
    }
    static void require_frame(const pair::outgoing& o) {
        fuzz::require_sendable(o.what);
        std::uint64_t bytes = 0;
        for (const auto& piece : o.payload)
            bytes += piece.size();
        require(bytes == messages::payload_bytes_of(o.what), "a frame has the bytes that it says");
    }

    void on(const mirror::act_connect&) {
        require(state == link::down, "one link at a time");
        state = link::connecting;
    }
    void on(const mirror::act_close_link&) { state = link::down; }
    void on(const mirror::act_send& a) {
        require(state == link::up, "messages need a link");
        fuzz::require_sendable(a.what);
        if (const auto* m = std::get_if<mirror::marker>(&a.what))
            require(m->sequence <= sent, "an epoch has nothing that was not sent");
    }
    void on(const mirror::act_send_entries& a) {
        require(state == link::up && a.first == (sent == 0 ? first : sent + 1) && a.last >= a.first &&
                    a.last <= last,
                "entries leave in order and once");
        for (mirror::log_sequence s = a.first; s <= a.last; ++s)
            outstanding += costs.at(s);
        sent = a.last;
        pair::outgoing o;
        for (mirror::log_sequence next = a.first; next <= a.last && log.take_entries(next, a.last, o);)
            require_frame(o);
        require(outstanding - acked.freed_bytes <= hold_bytes, "the standby has room for what is sent");
    }
    void on(const mirror::act_send_content& a) {
        fuzz::require_sendable(a.what);
        require(state == link::up && a.what.sequence <= sent, "content follows its entry");
        if (pair::outgoing o; log.take_content(a.what, o))
            require_frame(o);
    }
    void on(const mirror::act_drop_log& a) { log.drop(a.up_to); }
    void on(const mirror::act_drop_content& a) { log.drop_content(a.sequence); }
    void on(const mirror::act_start_sync&) {
        require(dev == device::off, "a state transfer begins when the last one is over");
        dev = device::on;
        first = sent = 0;
        outstanding = 0;
        acked = {};
        synced = false;
        costs.clear();
        open.clear();
    }
    void on(const mirror::act_stop_mirror&) {
        require(dev == device::on, "only what runs is stopped");
        dev = device::stopping;
    }
    void on(const mirror::act_epoch_wanted&) { require(config.epoch_ms == 0, "the timer closes epochs"); }
    void on(const mirror::act_congestion&) {}
    void on(const mirror::act_digest_result& a) {
        require(a.what.sequence <= sent, "a result is of an entry that was sent");
    }
    void on(const mirror::act_built& a) {
        require(!a.send || (state == link::up && dev == device::on), "packs go to a standby that is there");
        fuzz::require_sendable(a.what);
    }
    void on(const mirror::act_lagging&) {}
    void on(const mirror::act_state&) {}

    void tell(const mirror::message& m) {
        if (state != link::up)
            return;
        if (!messages::check(m).empty()) {
            state = link::down;
            fsm.on_closed("the peer broke a rule", now);
            return act();
        }
        if (const auto* h = std::get_if<mirror::hello>(&m))
            hold_bytes = h->hold_bytes;
        if (const auto* a = std::get_if<mirror::ack>(&m))
            acked = *a;
        fsm.on_message(m, now);
        act();
    }

    void end_file(std::uint32_t file, bool all) {
        std::erase_if(open, [&](const auto& e) { return all || e.second.file == file; });
    }

    void append(fuzz::reader& in) {
        if (dev == device::off || last - sent > 64)
            return;
        mirror::entry_meta m;
        m.sequence = ++last;
        if (first == 0 && dev == device::on) {
            first = m.sequence;
            m.kind = mirror::entry_kind::reset;
        } else {
            const auto what = in.value<std::uint8_t>();
            m.kind = static_cast<mirror::entry_kind>(what % 16 < 5 ? 1 + what % 16 : 3);
            m.file = m.kind == mirror::entry_kind::reset ? 0 : what / 16 % 4;
        }
        if (m.kind == mirror::entry_kind::submit) {
            m.flags = in.value<std::uint8_t>() & mirror::entry_all_flags;
            if ((m.flags & mirror::entry_compare) == 0)
                m.flags &= ~std::uint32_t{mirror::entry_hash_content}; // our device keeps the rules
            m.op_count = 1;
            m.stream_bytes = 8 * (1 + in.value<std::uint8_t>() % 64);
            m.content_bytes = in.value<std::uint8_t>() % 8 * 64;
            open_entry o;
            o.file = m.file;
            o.wants_outcome = (m.flags & mirror::entry_awaits_outcome) != 0;
            o.wants_digests = (m.flags & mirror::entry_compare) != 0;
            o.late_bytes = (m.flags & mirror::entry_late_content) != 0 ? m.content_bytes : 0;
            if (dev == device::on && (o.wants_outcome || o.wants_digests || o.late_bytes != 0))
                open[m.sequence] = o;
        } else if (m.kind != mirror::entry_kind::open_file) {
            end_file(m.file, m.kind == mirror::entry_kind::reset);
        }
        costs[m.sequence] = m.stream_bytes + m.content_bytes;
        mirror::log_entry e;
        e.meta = m;
        e.stream.resize(m.stream_bytes / 8);
        if (m.content_bytes != 0) {
            e.payloads.push_back({m.content_bytes, false});
            e.content.emplace_back();
            if ((m.flags & mirror::entry_late_content) == 0)
                e.content[0] = content(m.content_bytes);
        }
        require(log.append(std::move(e)) == m.sequence, "numbers are without a gap");
        pump();
    }

    static mirror::byte_pieces content(std::uint64_t bytes) {
        const auto memory = std::make_shared<std::vector<std::byte>>(bytes);
        return {{*memory}, memory};
    }

    void follow_up(fuzz::reader& in) {
        if (open.empty())
            return;
        const auto at = std::next(open.begin(), static_cast<long>(in.value<std::uint8_t>() % open.size()));
        const mirror::log_sequence sequence = at->first;
        open_entry& o = at->second;
        const auto how = in.value<std::uint8_t>();
        if (how % 16 == 1)
            log.built(1, std::make_shared<const std::vector<std::byte>>(4096));
        if (how % 16 == 0) {
            open.erase(at);
            log.cancel(sequence);
            return pump();
        }
        if (o.wants_outcome) {
            o.wants_outcome = false;
            log.outcome(sequence, how % 2 == 0 ? 0 : -5);
        } else if (o.late_bytes != 0) {
            const std::uint64_t bytes = how % 2 == 0 ? o.late_bytes : 8;
            o.late_bytes -= bytes;
            log.late_content(sequence, 0, content(bytes));
        } else if (o.wants_digests) {
            o.wants_digests = false;
            log.digests(sequence, std::vector<std::uint64_t>(how % 4, how));
        }
        if (!o.wants_outcome && !o.wants_digests && o.late_bytes == 0)
            open.erase(at);
        pump();
    }
};

void step(world& w, fuzz::reader& in) {
    fuzz::peer_messages peer(in);
    const mirror::primary_status s = w.fsm.status(w.now);
    switch (in.value<std::uint8_t>() % 24) {
    case 0:
    case 1:
        if (w.state == world::link::connecting) {
            w.state = world::link::up;
            w.fsm.on_connected(w.now);
            w.act();
        }
        {
            mirror::hello h = peer.hello(mirror::role::standby);
            h.capabilities.push_back(w.config.built_capability);
            return w.tell(h);
        }
    case 2:
    case 3:
    case 4:
    case 5:
        return w.append(in);
    case 6:
    case 7:
    case 8:
        return w.follow_up(in);
    case 9:
    case 10:
    case 11: {
        mirror::ack a;
        a.received = peer.near(s.sent);
        a.executed = peer.near(in.value<std::uint8_t>() % 2 == 0 ? s.executed : s.sent);
        a.committed_epoch = peer.near(in.value<std::uint8_t>() % 2 == 0 ? s.committed_epoch : s.epoch);
        a.freed_bytes = peer.near(in.value<std::uint8_t>() % 2 == 0 ? w.acked.freed_bytes : w.outstanding);
        a.freed_entries = peer.near(in.value<std::uint8_t>() % 2 == 0 ? w.acked.freed_entries
                                    : w.sent == 0                     ? 0
                                                                      : w.sent - w.first + 1);
        return w.tell(a);
    }
    case 12: {
        mirror::digest_result r;
        r.sequence = peer.near(s.sent);
        for (unsigned i = in.value<std::uint8_t>() % 4; i != 0; --i)
            r.different.push_back(r.different.size() + in.value<std::uint8_t>() % 2);
        return w.tell(r);
    }
    case 13:
        return w.tell(mirror::heartbeat{in.value<std::uint64_t>(), peer.near(w.now)});
    case 14:
        return w.tell(mirror::close_epoch{});
    case 15:
        switch (in.value<std::uint8_t>() % 8) {
        case 0:
            return w.tell(peer.goodbye());
        case 1:
            return w.tell(mirror::unknown_message{});
        case 2:
            return w.tell(mirror::marker{1, 1});
        case 3:
            return w.tell(mirror::fault{peer.near(s.sent), "an entry failed"});
        case 4:
            return w.tell(mirror::outcome{1, false, 0});
        default:
            if (w.state != world::link::down) {
                w.state = world::link::down;
                w.fsm.on_closed("the link ended", w.now);
            }
            return w.act();
        }
    case 16:
    case 17:
        w.now += std::uint64_t{in.value<std::uint8_t>()} * 4;
        w.fsm.on_tick(w.now);
        return w.act();
    case 18:
        if (w.dev == world::device::on && !w.synced && w.first != 0 &&
            s.state == mirror::primary_state::syncing) {
            w.synced = true;
            w.log.synced(w.last);
            w.pump();
        }
        return;
    case 19:
    case 20:
        if (w.dev == world::device::stopping) {
            w.dev = world::device::off;
            w.log.stopped();
            w.pump();
        }
        return;
    case 21:
        w.fsm.close_epoch(w.now);
        return w.act();
    case 22:
        w.fsm.on_sent(in.value<std::uint8_t>() % 2 == 0 ? 0 : in.value<std::uint32_t>());
        return w.act();
    case 23:
        switch (in.value<std::uint8_t>() % 32) {
        case 0:
            w.fsm.on_shutdown(w.now);
            return w.act();
        case 1:
            w.log.failed("the device can't go on");
            return w.pump();
        default:
            return;
        }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    world w(in.value<std::uint8_t>() % 2 == 0 ? 0 : 50);
    w.fsm.on_tick(w.now);
    w.act();
    for (unsigned steps = 0; steps < 500 && !in.empty(); ++steps)
        step(w, in);
    return 0;
}
