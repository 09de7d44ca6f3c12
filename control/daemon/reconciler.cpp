// SPDX-License-Identifier: GPL-2.0-or-later
//
// See reconciler.hpp.
#include "control/daemon/reconciler.hpp"

#include "control/base/json_text.hpp"
#include "control/base/whole_file.hpp"

#include <fmt/format.h>

#include <pthread.h>

#include <algorithm>

namespace kagemusha::control::daemon {

using namespace std::chrono_literals;

namespace {

constexpr std::chrono::milliseconds pause_while_working = 300ms, pause_when_settled = 2s;
constexpr auto pause_when_watched = 100ms; // a page shows what happened within twice that
constexpr auto between_gauges = 2s;        // of a view that changes in nothing else
constexpr std::uint32_t lease_of_one_ms = 10'000;
constexpr int share_of_time = 4; // a round that took long is not begun again at once

} // namespace

reconciler::reconciler(etcd_process& etcd, const state_folder& folder, const std::string& tool, logger log,
                       host_entry self, const std::optional<fleet_settings>& fleet)
    : etcd_(etcd)
    , store_(etcd)
    , folder_(folder)
    , nodes_(folder, tool, fleet)
    , log_(std::move(log))
    , self_(std::move(self))
    , is_one_of_several_(fleet.has_value())
    , lease_(etcd, fleet ? fleet->lease_ms : lease_of_one_ms)
    , fleet_store_(etcd)
    , view_(std::make_shared<fleet_view>())
    , thread_([this] { run(); }) {}

reconciler::~reconciler() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void reconciler::kick() {
    const std::lock_guard lock(mutex_);
    kicked_ = true;
    changed_.notify_all();
}

std::optional<reconciler::seen> reconciler::look(const std::string& cluster) const {
    const std::lock_guard lock(mutex_);
    const auto found = seen_.find(cluster);
    return found == seen_.end() ? std::nullopt : std::optional(found->second);
}

std::string reconciler::problem() const {
    const std::lock_guard lock(mutex_);
    return problem_;
}

bool reconciler::wait_for_etcd(std::chrono::milliseconds limit) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return reached_; });
}

void reconciler::run() {
    ::pthread_setname_np(::pthread_self(), "reconciler");
    for (;;) {
        const auto begun = std::chrono::steady_clock::now();
        const bool settled = round();
        std::chrono::nanoseconds pause = settled ? pause_when_settled : pause_while_working;
        if (watched_)
            pause = std::clamp<std::chrono::nanoseconds>(
                (std::chrono::steady_clock::now() - begun) * share_of_time, pause_when_watched, pause);
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, pause, [this] { return stop_ || kicked_; });
        kicked_ = false;
        if (stop_)
            return;
    }
}

void reconciler::listen(listener to) {
    const std::lock_guard lock(listener_mutex_); // after this nobody calls the one before
    listener_ = std::move(to);
}

// The same complaint is said once, until something else is.
void reconciler::say(const std::string& cluster, const std::string& text) {
    if (said_[cluster] != text && !text.empty())
        log_(cluster, text);
    said_[cluster] = text;
}

bool reconciler::round() {
    if (const auto said = etcd_.keep_running(); !said.empty())
        log_({}, said);
    const auto records = store_.all();
    const auto state = records ? fleet_store_.read() : std::nullopt;
    {
        const std::lock_guard lock(mutex_);
        problem_ = !records ? store_.problem() : !state ? fleet_store_.problem() : std::string();
        reached_ = reached_ || state;
    }
    changed_.notify_all();
    if (!state) {
        if (reached_) // it needs a moment to start
            say({}, problem());
        return false;
    }
    const bool settled = work_on(*records, *state);
    const std::lock_guard lock(listener_mutex_);
    if (listener_)
        listener_(*records);
    return settled;
}

bool reconciler::work_on(const std::vector<cluster_record>& records, const fleet_state& state) {
    take_part(state);
    if (const auto why = nodes_.look(); !why.empty())
        say("(host)", why);
    std::set<std::string> known;
    for (const auto& name : store_.of_another_release()) {
        say(name, "its record is of another release, or damaged: this daemon leaves it alone");
        known.insert(name);
    }
    own_.clear();
    for (const auto& record : records) {
        known.insert(record.declared.name);
        own_.emplace(record.declared.name, nodes_.observe(record));
    }
    const auto view = view_of(records, state);
    bool settled = true;
    for (const auto& record : records)
        settled = carry_out(record, *view) && settled;
    if (is_known_etcd(state))
        clear_strays(known, *view);
    const std::lock_guard lock(mutex_);
    std::erase_if(seen_, [&](const auto& one) { return !known.contains(one.first); });
    return settled;
}

// ---- one of several

// This host is in etcd as long as it lives, and leads if nobody does.
void reconciler::take_part(const fleet_state& state) {
    const auto lease = lease_.id();
    if (lease.empty())
        return;
    const auto own = state.hosts.find(self_.offer.name);
    const bool is_there = own != state.hosts.end() && own->second.start == self_.start;
    if (lease != joined_ || !is_there) {
        switch (fleet_store_.join(self_, lease)) {
        case stored::done:
            joined_ = lease;
            published_.clear();
            break;
        case stored::conflict:
            say("(fleet)", fmt::format("another host calls itself {}: its daemon.toml, or this one's, needs "
                                       "another name",
                                       self_.offer.name));
            return;
        case stored::unreachable:
            lease_.lost(lease); // or etcd forgot it
            return;
        }
    }
    for (const auto& [name, host] : state.hosts)
        if (!host.is_understood || host.release != self_.release)
            say("(release " + name + ")",
                fmt::format("{} has release {}, this host has {}{}", name, host.release, self_.release,
                            host.is_understood ? ""
                                               : ": nothing is placed there, and its nodes are left alone"));
    if (state.leader.empty())
        fleet_store_.stand(self_.offer.name, lease);
}

std::shared_ptr<const reconciler::fleet_view> reconciler::view_of(const std::vector<cluster_record>& records,
                                                                  const fleet_state& state) {
    auto out = std::make_shared<fleet_view>();
    out->self = self_.offer.name;
    out->is_alone = !is_one_of_several_;
    out->leader = state.leader;
    out->entries = state.hosts;
    out->entries[out->self] = self_; // whatever etcd has heard of it
    std::set<std::string> names;
    for (const auto& [name, entry] : out->entries)
        names.insert(name);
    for (const auto& [name, cluster] : state.clusters) {
        out->places.emplace(name, cluster.places);
        for (const auto& [number, node] : cluster.places)
            for (const auto& place : node.slot)
                if (place)
                    names.insert(place->host);
    }
    for (const auto& name : names) {
        const auto entry = out->entries.find(name);
        const bool is_alive = entry != out->entries.end();
        cluster::fleet_host host{{name, {}}, is_alive, 0};
        if (is_alive && entry->second.is_understood)
            host = {entry->second.offer, true, entry->second.first_port};
        out->hosts.push_back(std::move(host));
    }
    for (const auto& record : records) {
        const auto& name = record.declared.name;
        const auto found = state.views.find(name);
        auto views =
            found == state.views.end() ? std::map<std::string, cluster::cluster_seen>{} : found->second;
        views.insert_or_assign(out->self, own_.at(name));
        for (const auto& [host, seen] : views)
            if (seen.trunk_port != 0)
                out->trunk_ports[name].emplace(host, seen.trunk_port);
        out->seen.emplace(name, cluster::merge(out->places[name], views, out->hosts, out->self));
    }
    place(records, state, *out);
    const std::lock_guard lock(mutex_);
    view_ = out;
    return out;
}

// Everybody sees what the leader would do; it does it.
void reconciler::place(const std::vector<cluster_record>& records, const fleet_state& state,
                       fleet_view& view) {
    std::vector<cluster::assigned_cluster> clusters;
    for (const auto& record : records) {
        const auto& name = record.declared.name;
        clusters.push_back({&record.declared, record.wanted, view.places.at(name), view.seen.at(name)});
    }
    auto wanted = cluster::assign(view.hosts, clusters, view.is_alone);
    no_room_ = std::move(wanted.no_room);
    view.used = std::move(wanted.used);
    view.reserved_cpus = std::move(wanted.reserved_cpus);
    if (state.leader != view.self)
        return;
    for (const auto& [name, places] : wanted.clusters) {
        if (places == view.places.at(name))
            continue;
        if (fleet_store_.place(name, places, state) == stored::done) {
            for (const auto& text : cluster::differences(view.places.at(name), places))
                if (is_one_of_several_)
                    log_(name, text);
            kick(); // the next round has it
        }
    }
}

std::shared_ptr<const reconciler::fleet_view> reconciler::fleet() const {
    const std::lock_guard lock(mutex_);
    return view_;
}

// What the others know is what this host is about to do, before it does it. False: they do not.
bool reconciler::publish(const std::string& cluster, const cluster::cluster_seen& seen) {
    if (joined_.empty())
        return false;
    auto still = seen;
    for (auto& [number, node] : still.nodes)
        for (auto& slot : node.slot)
            slot.gauges = {};
    auto text = as_json_text(cluster::to_json(still));
    const auto now = std::chrono::steady_clock::now();
    const auto found = published_.find(cluster);
    if (found != published_.end() && found->second.text == text && now < found->second.at + between_gauges)
        return true;
    if (fleet_store_.publish(self_.offer.name, joined_, cluster, seen) != stored::done) {
        lease_.lost(joined_); // perhaps it ran out: then there is another one
        joined_.clear();
        return false;
    }
    published_.insert_or_assign(cluster, published{std::move(text), now});
    return true;
}

// ---- one cluster

// Nodes that no host has room for.
void reconciler::add_waiting(const std::string& cluster, cluster::plan& plan) const {
    const auto found = no_room_.find(cluster);
    if (found == no_room_.end())
        return;
    for (const auto& [number, why] : found->second) {
        auto& node = plan.nodes[number];
        if (node.state == "starting")
            node.state = "waiting";
        if (node.text.empty())
            node.text = why;
    }
}

bool reconciler::carry_out(const cluster_record& record, const fleet_view& view) {
    const auto& name = record.declared.name;
    const auto& places = view.places.at(name);
    auto seen = view.seen.at(name);
    const bool takes_part = std::any_of(places.begin(), places.end(),
                                        [&](const auto& one) { return one.second.is_on(view.self); });
    if (!takes_part && record.wanted == cluster::wish::running) {
        seen.network = true; // others have it
        seen.network_has = cluster::network_description(record.declared);
    }
    auto plan = cluster::make_plan(record.declared, record.wanted, seen);
    add_waiting(name, plan);
    const bool settled = plan.settled;
    auto& own = own_.at(name);
    std::vector<cluster::step> steps;
    for (const auto& step : plan.steps)
        if (cluster::is_mine(step, places, own, view.self))
            steps.push_back(step);
    // Of a cluster that is being deleted the plan says when nothing is left anywhere: the record goes then.
    for (const auto& step : cluster::strays(own, &places, view.self))
        if (step.kind != cluster::step_kind::remove_cluster || record.wanted != cluster::wish::deleted)
            steps.push_back(step);
    const auto before = look(name);
    for (const auto& text : cluster::differences(before ? before->plan : cluster::plan{}, plan))
        if (before) // what a new daemon finds has not happened now
            log_(name, text);
    {
        const std::lock_guard lock(mutex_);
        seen_.insert_or_assign(name, reconciler::seen{record.revision, std::move(plan)});
    }
    const auto starts = [](const cluster::step& one) {
        return one.kind == cluster::step_kind::start_primary || one.kind == cluster::step_kind::start_standby;
    };
    for (const auto& step : steps)
        if (starts(step))
            own.nodes[step.node].slot[step.slot].busy = true;
    if (!publish(name, own))
        std::erase_if(steps, starts);
    perform(steps, record, view);
    static const std::map<std::string, std::uint16_t> nobody;
    const auto ports = view.trunk_ports.find(name);
    say("(links of " + name + ")",
        nodes_.connect(record, own, ports == view.trunk_ports.end() ? nobody : ports->second,
                       {places, view.entries}));
    return settled;
}

void reconciler::perform(const std::vector<cluster::step>& steps, const cluster_record& record,
                         const fleet_view& view) {
    const auto& name = record.declared.name;
    static const cluster::assignment nowhere;
    const auto places = view.places.find(name);
    const host_nodes::neighbours around{places == view.places.end() ? nowhere : places->second, view.entries};
    std::string complaint;
    for (const auto& step : steps) {
        if (step.kind != cluster::step_kind::stop_slot) // which is said again until it is done
            log_(name, cluster::to_text(step));
        if (auto why = nodes_.perform(step, record, around); !why.empty())
            complaint = cluster::to_text(step) + ": " + why;
        else if (step.kind == cluster::step_kind::remove_cluster && record.revision != "0" &&
                 record.wanted == cluster::wish::deleted &&
                 store_.remove(name, record.revision) == stored::done)
            log_(name, "deleted");
    }
    say(name, complaint);
}

// ---- what is left of something that is not wanted any more

// An etcd that was made anew knows nothing of what runs: that is no reason to end it.
bool reconciler::is_known_etcd(const fleet_state& state) {
    const auto known = read_whole_file(folder_.etcd_id());
    if (!known) {
        const auto why = write_whole_file(folder_.etcd_id(), state.etcd_id + "\n");
        say("(etcd)", why);
        return why.empty();
    }
    const bool is_same = *known == state.etcd_id + "\n";
    say("(etcd)",
        is_same ? std::string()
                : fmt::format("this etcd is not the one that this host's clusters are from: what it does "
                              "not know is left alone, until {} is removed",
                              folder_.etcd_id()));
    return is_same;
}

// Of a cluster that was deleted while this host was away.
void reconciler::clear_strays(const std::set<std::string>& known, const fleet_view& view) {
    for (const auto& name : nodes_.with_files()) {
        if (known.contains(name))
            continue;
        cluster_record over;
        over.declared.name = name;
        over.wanted = cluster::wish::deleted;
        perform(cluster::strays(nodes_.observe(over), nullptr, view.self), over, view);
    }
    for (auto one = published_.begin(); one != published_.end();) {
        if (known.contains(one->first)) {
            ++one;
            continue;
        }
        fleet_store_.retract(self_.offer.name, one->first);
        one = published_.erase(one);
    }
}

} // namespace kagemusha::control::daemon
