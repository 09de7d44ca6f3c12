// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha_ha_scenario: named scenarios of the supervisors as text (README.md has the format and the
// commands): commands, and what both state machines of control/ha decide, in the words of
// docs/spec/takeover.md.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "scenario/ha_pair.hpp"
#include "scenario/text_scenario.hpp"

namespace kagemusha::scenario {

namespace {

constexpr int both = 2;

// "newest,a:1-3,b:4-4", an instance being one digit.
std::optional<ha::disk_mark> mark_of(const std::string& text) {
    std::string full;
    for (std::size_t i = 0; i < text.size(); ++i) {
        full += text[i] == ',' ? ' ' : text[i];
        if (text[i] == ',')
            full += std::string(15, '0');
    }
    return ha::parse_disk_mark(full);
}

class ha_player final : public player {
public:
    std::string execute(const std::string& line) override {
        const arguments a(line);
        if (a.words.empty())
            return "no command\n";
        if (a.words[0] == "start" || a.words[0] == "protected") {
            if (const auto why = start(a); !why.empty())
                return why + "\n";
            if (a.words[0] == "protected")
                protect();
        } else if (!pair_) {
            return "the first command is start\n";
        } else if (!of_the_world(a) && !of_a_side(a)) {
            return "no such command: " + line + "\n";
        }
        pair_->drain();
        return pair_->take_text();
    }

private:
    std::string start(const arguments& a) {
        pair_options o;
        o.fence_check = a.has("fence-check");
        o.fences = a.has("fence") || o.fence_check;
        o.older = a.has("older");
        o.has_standby = !a.has("no-address");
        o.policy = a.has("policy-stop") ? ha::loss_policy::stop : ha::loss_policy::degraded;
        o.disks = a.has("disks") || a.named.count("primary-disk") != 0 || a.named.count("standby-disk") != 0;
        if (const auto m = a.named.find("standby-machine"); m != a.named.end())
            o.standby_machine = m->second;
        for (std::size_t i = 0; i < 2; ++i)
            if (const auto m = a.named.find(fmt::format("{}-disk", host_names[i])); m != a.named.end()) {
                const auto mark = mark_of(m->second);
                if (!mark)
                    return "that is no mark: " + m->second;
                o.images[i] = *mark;
            }
        pair_ = std::make_unique<ha_pair>(o);
        pair_->start_primary(a.has("anew"));
        if (!a.has("no-standby"))
            pair_->start_standby(a.has("overwrite"));
        return {};
    }

    // primary, standby, or both.
    static int hosts_in(const arguments& a, std::size_t i) {
        return a.word(i) == "primary" ? 0 : a.word(i) == "standby" ? 1 : both;
    }
    template <class Do>
    static bool for_hosts(int which, Do&& what) {
        for (int i = 0; i < 2; ++i)
            if (which == i || which == both)
                what(i);
        return true;
    }

    bool of_the_world(const arguments& a) {
        auto& p = *pair_;
        const std::string& c = a.words[0];
        const int hosts = hosts_in(a, 1);
        if (c == "status")
            return p.say_status(), true;
        if (c == "settle")
            return p.settle(), true;
        if (c == "time" || c == "run")
            return p.pass(a.number(1), c == "run"), true;
        if (c == "connect")
            return p.connect(), true;
        if (c == "deliver")
            return p.deliver(a.words.size() > 1 ? a.number(1) : UINT64_MAX), true;
        if (c == "lose")
            return for_hosts(hosts, [&](int i) { p.lose(i); });
        if (c == "cut" && a.word(1) == "silently")
            return p.cut(false, false), true;
        if (c == "cut")
            return p.cut(hosts != 1, hosts != 0), true;
        if (c == "swallow" || c == "hear")
            return for_hosts(hosts,
                             [&](int i) { p.swallowed[static_cast<std::size_t>(i)] = c == "swallow"; });
        if (c == "part") {
            p.parted = true;
            return p.cut(false, false), true;
        }
        if (c == "join")
            return p.parted = false, true;
        if (c == "answer")
            return for_hosts(hosts, [&](int i) {
                if (hosts != both || p.arbiter().can_answer(i))
                    p.answer(i);
            });
        if (c == "command")
            return of_a_command(a, hosts);
        if (c == "arbiter")
            return of_the_arbiter(a);
        if (c == "disk")
            return of_a_disk(a, hosts);
        return false;
    }

    bool of_a_command(const arguments& a, int host) {
        if (host == both || (a.word(2) != "succeeds" && a.word(2) != "fails"))
            return false;
        pair_->command_ended(host, a.word(2) == "succeeds" ? "" : a.rest(3));
        return true;
    }

    bool of_the_arbiter(const arguments& a) {
        using mood = ha_arbiter::mood;
        static const std::map<std::string, mood> moods = {{"answers", mood::answers},
                                                          {"away", mood::away},
                                                          {"silent", mood::silent},
                                                          {"loses-answers", mood::loses_answers}};
        auto& arbiter = pair_->arbiter();
        const std::string what = a.word(1);
        if (const auto m = moods.find(what); m != moods.end())
            return for_hosts(hosts_in(a, 2),
                             [&](int i) { arbiter.moods[static_cast<std::size_t>(i)] = m->second; });
        if (what == "is-confirmed")
            return for_hosts(hosts_in(a, 2),
                             [&](int i) { arbiter.person_confirms[static_cast<std::size_t>(i)] = true; });
        if (what == "forgets")
            return arbiter.forget(), true;
        if (what == "goes-back")
            return arbiter.go_back(pair_->now());
        if (what == "gives-it-to")
            return arbiter.give(a.word(2), pair_->now() + a.number(3)), true;
        if (what == "is-another") // of the standby's host; with the term of its record, 0: the same again
            return arbiter.other_term[1] = a.number(2), true;
        return false;
    }

    bool of_a_disk(const arguments& a, int hosts) {
        using mood = ha_pair::disk_mood;
        static const std::map<std::string, mood> moods = {
            {"fine", mood::fine}, {"slow", mood::slow}, {"full", mood::full}};
        if (hosts == both)
            return false;
        if (a.word(2) == "writes")
            return pair_->marked(hosts, a.rest(3)), true;
        const auto m = moods.find(a.word(2));
        return m != moods.end() && (pair_->set_disk(hosts, m->second), true);
    }

    bool of_a_side(const arguments& a) {
        const int host = hosts_in(a, 0);
        const std::string what = a.word(1);
        if (host == both)
            return false;
        if (what == "freezes" || what == "wakes")
            return pair_->freeze(host, what == "freezes"), true;
        if (what == "dies" || what == "loses-power")
            return pair_->end(host, what == "loses-power"), true;
        if (what == "starts") {
            host == 0 ? pair_->start_primary(a.has("anew")) : pair_->start_standby(a.has("overwrite"));
            return true;
        }
        return host == 0 ? of_the_primary(what, a) : of_the_standby(what, a);
    }

    bool of_the_primary(const std::string& what, const arguments& a) {
        auto* const p = pair_->primary();
        if (!p)
            return pair_->say("the primary has ended"), true;
        const auto now = pair_->now();
        const auto text = a.rest(2);
        const auto replication = a.number("of", p->replication());
        if (what == "checkpoint")
            p->on_qemu_protecting(replication, now);
        else if (what == "loses-replication")
            p->on_qemu_replication_lost(replication, text, now);
        else if (what == "gpu-fails")
            p->on_gpu_failed(text, now);
        else if (what == "qemu-stands-still")
            p->on_qemu_stuck(text, now);
        else if (what == "qemu-dies" || what == "qemu-ends")
            p->on_qemu_died(text, what == "qemu-ends", now);
        else if (what == "hands-over")
            p->on_qemu_handed_over(replication, now);
        else if (what == "cancels")
            p->on_cancel_switchover(now);
        else if (what == "is-to-protect")
            p->on_protect(a.word(2), now);
        else if (what == "is-stopped")
            p->on_stop(now);
        else
            return false;
        return true;
    }

    bool of_the_standby(const std::string& what, const arguments& a) {
        auto* const s = pair_->standby();
        if (!s)
            return pair_->say("the standby has ended"), true;
        const auto now = pair_->now();
        const auto text = a.rest(2);
        const auto qemu = a.number("of", s->qemu());
        if (what == "qemu-ready")
            s->on_qemu_ready(qemu, now);
        else if (what == "qemu-dies")
            s->on_qemu_died(text, qemu, now);
        else if (what == "qemu-stands-still")
            s->on_qemu_stuck(text, now);
        else if (what == "loses-its-gpu")
            s->on_gpu_lost(text, now);
        else if (what == "qemu-runs")
            s->on_qemu_running(now);
        else if (what == "qemu-fails")
            s->on_takeover_failed(text, now);
        else if (what == "is-stopped")
            s->on_stop(now);
        else
            return false;
        return true;
    }

    // From the start to a pair, whose steps protection.txt shows.
    void protect() {
        auto& p = *pair_;
        const auto step = [&] {
            p.drain();
            p.settle();
        };
        step();
        if (p.standby())
            p.standby()->on_qemu_ready(p.standby()->qemu(), p.now());
        step();
        if (p.primary())
            p.primary()->on_qemu_protecting(p.primary()->replication(), p.now());
        step();
        // With `fence` a standby waits for a heartbeat that answers its own.
        for (int beats = 0; beats < 3 && p.standby() && p.standby()->state() == ha::standby_state::proving;
             ++beats)
            p.pass(100, true);
        const bool good = p.primary() && p.primary()->state() == ha::primary_state::protecting &&
                          p.standby() && p.standby()->state() == ha::standby_state::synced;
        const auto text = p.take_text();
        if (good)
            p.say_status();
        else
            p.say("not protected:\n" + text);
    }

    std::unique_ptr<ha_pair> pair_;
};

} // namespace

} // namespace kagemusha::scenario

int main(int argc, char** argv) {
    using namespace kagemusha::scenario;
    return play_files(argc, argv, [] { return std::make_unique<ha_player>(); });
}
