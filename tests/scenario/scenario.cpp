// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha_scenario: named scenarios of replication as text: commands, and the actions that they cause in
// both state machines, word for word. README.md has the format. Nothing happens by itself here: messages
// arrive with `deliver`, entries end with `executed`, time passes with `time`.
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "mirror/primary/primary_text.hpp"
#include "mirror/protocol/agreement.hpp"
#include "mirror/protocol/message_text.hpp"
#include "mirror/standby/standby_text.hpp"
#include "scenario/text_scenario.hpp"

namespace {

using namespace kagemusha::mirror;

using kagemusha::scenario::arguments;

class mirror_player final : public kagemusha::scenario::player {
public:
    std::string execute(const std::string& line) override {
        out_.clear();
        const arguments a(line);
        if (a.words.empty())
            return "no command\n";
        if (!primary_ && a.words[0] != "start")
            return "the first command is start\n";
        command(a);
        drain();
        return out_;
    }

private:
    void say(const std::string& who, const std::string& what) { out_ += who + what + "\n"; }

    void command(const arguments& a) {
        const std::string& c = a.words[0];
        if (c == "start") {
            start(a);
        } else if (c == "connect") {
            primary_->on_tick(now_);
            drain();
            if (!connecting_)
                return say("", "the primary does not try to");
            connecting_ = false;
            linked_ = true;
            primary_->on_connected(now_);
            standby_->on_connected(now_);
        } else if (c == "refuse") {
            connecting_ = false;
            primary_->on_closed("nobody listens", now_);
        } else if (c == "entry") {
            entry(a);
        } else if (c == "outcome") {
            primary_->on_outcome(a.number(1), false, a.result(2));
        } else if (c == "cancel") {
            primary_->on_outcome(a.number(1), true, 0);
        } else if (c == "content") {
            primary_->on_late_content(a.number(1), static_cast<std::uint32_t>(a.number(2)), a.number(3));
        } else if (c == "digests") {
            primary_->on_digests(a.number(1), a.numbers(2), now_);
        } else if (c == "standby-digests") {
            standby_->on_digests(a.number(1), a.numbers(2), now_);
        } else if (c == "built") {
            primary_->on_built(static_cast<std::uint32_t>(a.number(1)), a.number(2));
        } else if (c == "stored") {
            standby_->on_built_stored(a.number(1));
        } else if (c == "synced") {
            primary_->on_synced(a.number(1));
        } else if (c == "epoch") {
            primary_->close_epoch(now_);
        } else if (c == "commit") {
            standby_->commit(a.number(1), now_);
        } else if (c == "executed") {
            executed(a);
        } else if (c == "lost") {
            standby_->on_file_lost(static_cast<std::uint32_t>(a.number(1)), "the worker of the file died",
                                   now_);
        } else if (c == "stopped") {
            primary_->on_mirror_stopped(now_);
        } else if (c == "forgotten") {
            standby_->on_forgotten(now_);
        } else if (c == "deliver") {
            deliver(a);
        } else if (c == "time") {
            now_ += a.number(1);
            primary_->on_tick(now_);
            standby_->on_tick(now_);
        } else if (c == "cut") {
            to_standby_.clear();
            to_primary_.clear();
            linked_ = false;
            if (!a.has("silently")) {
                primary_->on_closed("the link was cut", now_);
                standby_->on_closed("the link was cut", now_);
            }
        } else if (c == "takeover") {
            standby_->takeover(now_);
        } else if (c == "shutdown") {
            a.has("primary") ? primary_->on_shutdown(now_) : standby_->on_shutdown(now_);
        } else if (c == "status") {
            status();
        } else {
            say("", "no such command: " + c);
        }
    }

    void start(const arguments& a) {
        primary_config p;
        p.vm = "demo";
        p.epoch_ms = static_cast<std::uint32_t>(a.number("epoch", a.has("checkpoints") ? 0 : 50));
        p.log_bytes = a.number("log", 4096);
        p.max_behind_ms = static_cast<std::uint32_t>(a.number("max_behind", p.max_behind_ms));
        p.keep_up_wait_ms = static_cast<std::uint32_t>(a.number("keep_up_wait", p.keep_up_wait_ms));
        standby_config s;
        s.vm = a.named.count("standby_vm") != 0 ? a.named.at("standby_vm") : p.vm;
        s.hold_bytes = a.number("hold", 1000);
        s.hold_entries = a.number("hold_entries", 100);
        s.commit_at_marker = !a.has("checkpoints");
        if (a.has("built")) {
            p.built_capability = s.built_capability = std::string(built_capability) + "a GPU";
        } else if (a.has("unlike")) {
            p.built_capability = std::string(built_capability) + "a GPU";
            s.built_capability = std::string(built_capability) + "another";
        } else if (a.has("older_standby")) {
            p.built_capability = std::string(built_capability) + "a GPU";
        } else if (a.has("older_primary")) {
            s.built_capability = std::string(built_capability) + "a GPU";
        }
        version_ = static_cast<std::uint32_t>(a.number("standby_version", 0));
        primary_ = std::make_unique<replication_primary_fsm>(p, now_);
        standby_ = std::make_unique<replication_standby_fsm>(s, now_);
    }

    void entry(const arguments& a) {
        entry_meta m;
        m.sequence = ++last_;
        const std::string& kind = a.words.size() > 1 ? a.words[1] : a.words[0];
        m.kind = kind == "reset"   ? entry_kind::reset
                 : kind == "open"  ? entry_kind::open_file
                 : kind == "close" ? entry_kind::close_file
                 : kind == "lose"  ? entry_kind::lose_session
                                   : entry_kind::submit;
        m.file = static_cast<std::uint32_t>(a.number("file", m.kind == entry_kind::reset ? 0 : 1));
        if (m.kind == entry_kind::submit) {
            m.op_count = 1;
            m.stream_bytes = a.number("stream", 64);
            m.content_bytes = a.number("content", 0);
            m.flags = (a.has("awaits") ? std::uint32_t{entry_awaits_outcome} : 0) |
                      (a.has("late") ? std::uint32_t{entry_late_content} : 0) |
                      (a.has("compare") ? std::uint32_t{entry_compare} : 0) |
                      (a.has("may_fail") ? std::uint32_t{entry_may_fail} : 0);
        }
        log_[m.sequence] = m;
        primary_->on_entry(m, now_);
    }

    void executed(const arguments& a) {
        if (a.has("all")) {
            while (!running_.empty()) {
                const log_sequence s = running_.front();
                running_.pop_front();
                standby_->on_executed(s, 0, now_);
                drain();
            }
            return;
        }
        if (std::erase(running_, a.number(1)) == 0)
            return say("", "it does not run");
        standby_->on_executed(a.number(1), a.result(2), now_);
    }

    // Everything under way, and what it causes, until nothing is.
    void deliver(const arguments& a) {
        std::uint64_t left = a.words.size() > 1 ? a.number(1) : UINT64_MAX;
        while (left != 0 && linked_ && (!to_standby_.empty() || !to_primary_.empty())) {
            const bool there = !to_standby_.empty();
            auto& way = there ? to_standby_ : to_primary_;
            const message m = std::move(way.front());
            way.pop_front();
            there ? standby_->on_message(m, now_) : primary_->on_message(m, now_);
            primary_->on_sent(0);
            --left;
            drain();
        }
    }

    void status() {
        const primary_status p = primary_->status(now_);
        const standby_status s = standby_->status(now_);
        say("primary: ", std::string(name_of(p.state)) + (p.degraded.empty() ? "" : " (" + p.degraded + ")") +
                             ", epoch " + std::to_string(p.epoch) + ", committed " +
                             std::to_string(p.committed_epoch) + ", log " + std::to_string(p.log_bytes) +
                             "B/" + std::to_string(p.log_entries) + ", lag " + std::to_string(p.lag_ms) +
                             "ms, digests " + std::to_string(p.digests_different) + "/" +
                             std::to_string(p.digests_compared));
        say("standby: ", std::string(name_of(s.state)) + (s.why.empty() ? "" : " (" + s.why + ")") +
                             ", received " + std::to_string(s.received) + ", committed " +
                             std::to_string(s.committed) + ", executed " + std::to_string(s.executed) +
                             ", holds " + std::to_string(s.held_bytes) + "B/" +
                             std::to_string(s.held_entries));
    }

    void send_entries(const act_send_entries& e) {
        entries m;
        for (log_sequence s = e.first; s <= e.last; ++s) {
            m.list.push_back({log_.at(s), {}});
            if (log_.at(s).content_bytes != 0)
                m.list.back().payloads.push_back({log_.at(s).content_bytes, false});
        }
        to_standby_.push_back(std::move(m));
    }

    void drain() {
        primary_action p;
        while (primary_ && primary_->next(p)) {
            say("primary: ", to_text(p));
            if (auto* m = std::get_if<act_send>(&p))
                to_standby_.push_back(std::move(m->what));
            else if (const auto* e = std::get_if<act_send_entries>(&p))
                send_entries(*e);
            else if (const auto* c = std::get_if<act_send_content>(&p))
                to_standby_.push_back(c->what);
            else if (const auto* b = std::get_if<act_built>(&p); b && b->send)
                to_standby_.push_back(b->what);
            else if (std::holds_alternative<act_connect>(p))
                connecting_ = true;
            else if (std::holds_alternative<act_close_link>(p))
                to_primary_.clear();
        }
        standby_action s;
        while (standby_ && standby_->next(s)) {
            say("standby: ", to_text(s));
            if (auto* m = std::get_if<act_send>(&s)) {
                if (auto* h = std::get_if<hello>(&m->what); h != nullptr && version_ != 0)
                    h->version = h->oldest_version = version_;
                to_primary_.push_back(std::move(m->what));
            } else if (const auto* r = std::get_if<act_run>(&s)) {
                running_.push_back(r->sequence);
            } else if (std::holds_alternative<act_forget_all>(s)) {
                running_.clear();
            } else if (std::holds_alternative<act_close_link>(s)) {
                to_standby_.clear();
            }
        }
    }

    std::uint64_t now_ = 1000;
    std::unique_ptr<replication_primary_fsm> primary_;
    std::unique_ptr<replication_standby_fsm> standby_;
    std::uint32_t version_ = 0; // that the standby pretends to have
    log_sequence last_ = 0;
    std::map<log_sequence, entry_meta> log_;
    std::deque<message> to_standby_, to_primary_;
    std::deque<log_sequence> running_;
    bool connecting_ = false, linked_ = false;
    std::string out_;
};

} // namespace

int main(int argc, char** argv) {
    return kagemusha::scenario::play_files(argc, argv, [] { return std::make_unique<mirror_player>(); });
}
