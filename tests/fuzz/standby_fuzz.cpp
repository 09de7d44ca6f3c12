// SPDX-License-Identifier: GPL-2.0-or-later
// mirror::replication_standby_fsm against a hostile primary that is authenticated: messages in any order,
// connections that come and go, a device that is slow, fails or loses files, checkpoints, a takeover.
// Whatever the peer says, nothing crashes, what is held keeps its bound, nothing runs before its commit or
// twice, and only valid messages are sent.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "mirror/protocol/agreement.hpp"
#include "mirror/standby/replication_standby_fsm.hpp"
#include "peer_messages.hpp"

using namespace kagemusha;
using fuzz::require;

namespace {

constexpr std::uint64_t hold_bytes = 4096, hold_entries = 16;

struct world {
    mirror::standby_config config;
    std::uint64_t now = 1000;
    mirror::replication_standby_fsm fsm;
    bool connected = false, forgetting = false;
    std::map<mirror::log_sequence, mirror::entry_meta> held; // arrived in this copy, not run or skipped
    std::map<mirror::log_sequence, mirror::entry_meta> running;
    std::set<mirror::log_sequence> compared;             // digests of running ones that were told
    std::map<std::uint32_t, mirror::log_sequence> given; // last one per file
    std::set<std::uint64_t> open;                        // requests without an answer at the last commit
    std::uint64_t requests = 0;
    bool taken_over = false;
    std::vector<std::uint64_t> stores; // without on_built_stored()
    std::uint64_t stored_bytes = 0;

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
        c.built_capability = std::string(mirror::built_capability) + "fuzz";
        return c;
    }

    void act() {
        mirror::standby_action a;
        while (fsm.next(a))
            std::visit([this](const auto& x) { on(x); }, a);
        const mirror::standby_status s = fsm.status(now);
        require(s.held_bytes <= hold_bytes && s.held_entries <= hold_entries, "what is held is bounded");
        require(s.executed <= s.received && s.committed <= s.received, "numbers are in order");
        require(s.committed_epoch <= s.complete_epoch && s.complete_epoch <= s.epoch,
                "only what is complete is committed");
        require(fsm.next_tick_ms() != 0, "a time is wanted, or none");
    }

    void on(const mirror::act_send& a) { fuzz::require_sendable(a.what); }
    void on(const mirror::act_close_link&) { connected = false; }
    void on(const mirror::act_run& a) {
        require(!forgetting, "nothing runs while the last copy goes");
        const auto at = held.find(a.sequence);
        require(at != held.end(), "nothing runs that did not arrive, or twice");
        require(a.sequence <= fsm.status(now).committed, "nothing runs before its commit");
        const mirror::entry_meta meta = at->second;
        if (meta.kind != mirror::entry_kind::reset) {
            require(given[meta.file] < a.sequence, "entries of a file run in their order");
            given[meta.file] = a.sequence;
        }
        running[a.sequence] = meta;
        held.erase(at);
    }
    void on(const mirror::act_resume& a) {
        require(taken_over && open.erase(a.request.token) == 1, "only in-flight requests are resumed, once");
        for (auto at = held.upper_bound(a.request.after);
             at != held.end() && at->first <= a.request.last && at->second.file == a.request.file;) {
            at = held.erase(at);
        }
    }
    void on(const mirror::act_live&) { require(taken_over, "only after a takeover"); }
    void on(const mirror::act_skip& a) { require(held.erase(a.sequence) == 1, "skipped once, and not run"); }
    void on(const mirror::act_forget_all&) {
        held.clear();
        running.clear();
        compared.clear();
        given.clear();
        open.clear();
        stores.clear();
        stored_bytes = 0;
        forgetting = true;
    }
    void on(const mirror::act_store_built& a) {
        stores.push_back(a.what.bytes);
        stored_bytes += a.what.bytes;
        require(stores.size() <= mirror::max_held_built && stored_bytes <= mirror::max_held_built_bytes,
                "what compilers made is bounded");
    }
    void on(const mirror::act_standby_state& a) {
        taken_over = taken_over || a.state == mirror::standby_state::taken_over;
    }

    void tell(const mirror::message& m) {
        if (!connected)
            return;
        if (!messages::check(m).empty()) {
            connected = false;
            fsm.on_closed("the peer broke a rule", now);
            return act();
        }
        if (const auto* batch = std::get_if<mirror::entries>(&m)) {
            // Those that a violation keeps out are given up with the connection's copy, or overwritten.
            const mirror::log_sequence received = fsm.status(now).received;
            for (const auto& e : batch->list)
                if (e.meta.sequence > received)
                    arriving[e.meta.sequence] = e.meta;
            fsm.on_message(m, now);
            const mirror::log_sequence now_received = fsm.status(now).received;
            for (const auto& [sequence, meta] : arriving)
                if (sequence <= now_received)
                    held[sequence] = meta;
            arriving.clear();
        } else {
            fsm.on_message(m, now);
        }
        act();
    }
    std::map<mirror::log_sequence, mirror::entry_meta> arriving;

    std::map<mirror::log_sequence, mirror::entry_meta>::iterator pick(std::uint8_t which) {
        return running.empty() ? running.end()
                               : std::next(running.begin(), static_cast<long>(which % running.size()));
    }
};

void step(world& w, fuzz::reader& in) {
    fuzz::peer_messages peer(in);
    const mirror::standby_status s = w.fsm.status(w.now);
    switch (in.value<std::uint8_t>() % 24) {
    case 0:
    case 1:
        if (!w.connected) {
            w.connected = true;
            w.fsm.on_connected(w.now);
            w.act();
        }
        {
            mirror::hello h = peer.hello(mirror::role::primary);
            if (h.instance % 2 == 0)
                h.capabilities.push_back(w.config.built_capability);
            return w.tell(h);
        }
    case 2:
    case 3:
    case 4:
    case 5:
        return w.tell(peer.entries(s.received + 1));
    case 6:
    case 7: {
        mirror::content c;
        c.sequence = peer.near(w.held.empty() ? 1 : w.held.begin()->first);
        c.payload = in.value<std::uint8_t>() % 4;
        c.offset = peer.near(0);
        c.bytes = peer.near(in.value<std::uint16_t>() / 16);
        return w.tell(c);
    }
    case 8:
    case 9: {
        mirror::outcome o;
        o.sequence = peer.near(w.held.empty() ? 1 : w.held.begin()->first);
        o.canceled = in.value<std::uint8_t>() % 4 == 0;
        o.result = o.canceled || in.value<std::uint8_t>() % 2 == 0 ? 0 : -5;
        return w.tell(o);
    }
    case 10:
    case 11:
        return w.tell(
            mirror::marker{peer.near(s.epoch + 1), peer.near(s.received), in.value<std::uint8_t>() % 4 == 0});
    case 12:
        return w.tell(mirror::synced{peer.near(s.received)});
    case 13:
        return w.tell(mirror::heartbeat{in.value<std::uint64_t>(), peer.near(0)});
    case 14: {
        mirror::digests d;
        d.sequence = peer.near(w.running.empty() ? s.received : w.running.begin()->first);
        d.hashes.assign(in.value<std::uint8_t>() % 4, in.value<std::uint8_t>());
        return w.tell(d);
    }
    case 15:
        switch (in.value<std::uint8_t>() % 8) {
        case 0:
            return w.tell(peer.goodbye());
        case 1:
            return w.tell(mirror::unknown_message{});
        case 2:
            return w.tell(mirror::ack{});
        case 3:
            return w.tell(mirror::close_epoch{});
        case 4:
            return w.tell(mirror::fault{1, "no"});
        case 5:
            return w.tell(mirror::digest_result{1, {}});
        default:
            if (w.connected) {
                w.connected = false;
                w.fsm.on_closed("the link ended", w.now);
            }
            return w.act();
        }
    case 16:
        w.now += in.value<std::uint8_t>();
        w.fsm.on_tick(w.now);
        return w.act();
    case 17:
    case 18:
    case 19:
        if (const auto at = w.pick(in.value<std::uint8_t>()); at != w.running.end()) {
            const auto [sequence, meta] = *at;
            w.running.erase(at);
            w.compared.erase(sequence);
            w.fsm.on_executed(sequence, in.value<std::uint8_t>() % 8 == 0 ? -5 : 0, w.now);
            w.act();
        }
        return;
    case 20:
        if (const auto at = w.pick(in.value<std::uint8_t>());
            at != w.running.end() && (at->second.flags & mirror::entry_compare) != 0 &&
            w.compared.insert(at->first).second) {
            const auto count = in.value<std::uint8_t>() % 4;
            const std::uint64_t hash = in.value<std::uint8_t>();
            w.fsm.on_digests(at->first, std::vector<std::uint64_t>(count, hash), w.now);
            w.act();
        }
        return;
    case 21:
        if (w.forgetting) {
            w.forgetting = false;
            w.fsm.on_forgotten(w.now);
        } else if (in.value<std::uint8_t>() % 8 == 0) {
            w.fsm.on_file_lost(in.value<std::uint8_t>() % 4, "its worker died", w.now);
        }
        return w.act();
    case 22:
        if (!w.config.commit_at_marker) {
            // One request: what its file has sent last, or a query.
            std::vector<mirror::open_request> open;
            const auto which = in.value<std::uint8_t>();
            if (which % 2 != 0 && s.complete_epoch > s.committed_epoch && !w.held.empty()) {
                const auto at = std::next(w.held.begin(), static_cast<long>(which / 2 % w.held.size()));
                if (at->second.kind == mirror::entry_kind::submit)
                    open.push_back({++w.requests, at->second.file, at->first - 1, at->first});
            }
            if (s.complete_epoch > s.committed_epoch) {
                w.open.clear();
                for (const auto& r : open)
                    w.open.insert(r.token);
            }
            w.fsm.commit(s.complete_epoch, w.now, open);
            w.act();
        }
        return;
    case 23:
        switch (in.value<std::uint8_t>() % 16) {
        case 0:
            w.fsm.takeover(w.now);
            return w.act();
        case 1:
            w.fsm.on_shutdown(w.now);
            return w.act();
        case 2:
        case 3:
            return w.tell(
                mirror::built{in.value<std::uint8_t>() % 4u, in.value<std::uint32_t>() % (5u << 20)});
        case 4:
            if (!w.stores.empty()) {
                w.stored_bytes -= w.stores.back();
                w.fsm.on_built_stored(w.stores.back());
                w.stores.pop_back();
            }
            return;
        default:
            return;
        }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    world w(in.value<std::uint8_t>() % 2 == 0);
    for (unsigned steps = 0; steps < 500 && !in.empty(); ++steps)
        step(w, in);
    // A device that finishes what it was given gives everything back.
    while (!w.running.empty()) {
        const auto sequence = w.running.begin()->first;
        w.running.erase(sequence);
        w.fsm.on_executed(sequence, 0, w.now);
        w.act();
    }
    if (w.taken_over) {
        require(w.fsm.status(w.now).held_entries == 0 || !w.fsm.status(w.now).why.empty(),
                "a takeover ends, or says why not");
    }
    return 0;
}
