// SPDX-License-Identifier: GPL-2.0-or-later
//
// See reconciler.hpp.
#include "control/daemon/reconciler.hpp"

#include <pthread.h>

#include <algorithm>
#include <set>

namespace kagemusha::control::daemon {

using namespace std::chrono_literals;

namespace {

constexpr std::chrono::milliseconds pause_while_working = 300ms, pause_when_settled = 2s;
constexpr auto pause_when_watched = 100ms; // a page shows what happened within twice that
constexpr int share_of_time = 4;           // a round that took long is not begun again at once

} // namespace

reconciler::reconciler(etcd_process& etcd, const state_folder& folder, const std::string& tool, logger log)
    : etcd_(etcd), store_(etcd), nodes_(folder, tool), log_(std::move(log)), thread_([this] { run(); }) {}

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
    {
        const std::lock_guard lock(mutex_);
        problem_ = records ? std::string() : store_.problem();
        reached_ = reached_ || records;
    }
    changed_.notify_all();
    if (!records) {
        if (reached_) // it needs a moment to start
            say({}, store_.problem());
        return false;
    }
    if (const auto why = nodes_.look(); !why.empty())
        say("(host)", why);
    for (const auto& name : store_.of_another_release())
        say(name, "its record is of another release, or damaged: this daemon leaves it alone");
    bool settled = true;
    std::set<std::string> names;
    for (const auto& record : *records) {
        names.insert(record.declared.name);
        settled = carry_out(record) && settled;
    }
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(seen_, [&](const auto& one) { return !names.contains(one.first); });
    }
    const std::lock_guard lock(listener_mutex_);
    if (listener_)
        listener_(*records);
    return settled;
}

bool reconciler::carry_out(const cluster_record& record) {
    const auto& name = record.declared.name;
    auto plan = cluster::make_plan(record.declared, record.wanted, nodes_.observe(record));
    const bool settled = plan.settled;
    const auto steps = plan.steps;
    const auto before = look(name);
    for (const auto& text : cluster::differences(before ? before->plan : cluster::plan{}, plan))
        if (before) // what a new daemon finds has not happened now
            log_(name, text);
    {
        const std::lock_guard lock(mutex_);
        seen_.insert_or_assign(name, seen{record.revision, std::move(plan)});
    }
    std::string complaint;
    for (const auto& step : steps) {
        if (step.kind != cluster::step_kind::stop_slot) // which is said again until it is done
            log_(name, cluster::to_text(step));
        if (auto why = nodes_.perform(step, record); !why.empty())
            complaint = cluster::to_text(step) + ": " + why;
        else if (step.kind == cluster::step_kind::remove_cluster &&
                 store_.remove(name, record.revision) == stored::done)
            log_(name, "deleted");
    }
    say(name, complaint);
    return settled;
}

} // namespace kagemusha::control::daemon
