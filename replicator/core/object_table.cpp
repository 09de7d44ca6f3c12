// SPDX-License-Identifier: GPL-2.0-or-later
#include "core/object_table.hpp"

#include <cassert>
#include <utility>

namespace kagemusha::core {

std::size_t object_table::hash::operator()(guest_id id) const {
    // The finalizer of splitmix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators") over
    // a seeded id.
    std::uint64_t x = id ^ seed;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

object_table::object_table(const quota& q, const quota& of_log, device_usage& usage, std::uint64_t hash_seed)
    : quota_(q), log_quota_(of_log), usage_(usage), objects_(0, hash{hash_seed}) {}

object_table::~object_table() {
    clear();
}

void object_table::clear() {
    usage_.objects -= objects_.size();
    usage_.memory_bytes -= memory_bytes_;
    objects_.clear();
    allocations_.clear();
    free_allocations_.clear();
    freed_.clear();
    journal_.clear();
    in_change_ = false;
    memory_bytes_ = unset_user_events_ = pending_events_ = 0;
    pending_log_events_ = destroyed_log_events_ = 0;
}

void object_table::begin(bool of_log) {
    assert(!in_change_ && journal_.empty() && freed_.empty());
    in_change_ = true;
    log_change_ = of_log;
}

void object_table::commit() {
    in_change_ = false;
    journal_.clear();
    free_allocations_.insert(free_allocations_.end(), freed_.begin(), freed_.end());
    freed_.clear();
}

void object_table::rollback() {
    in_change_ = false;
    while (!journal_.empty()) {
        change c = std::move(journal_.back());
        journal_.pop_back();
        const auto at = objects_.find(c.id);
        if (at != objects_.end())
            erase(at);
        if (c.before) {
            if (c.before->kind == VGPU_OBJECT_MEMORY) {
                allocation& a = allocations_[c.before->allocation];
                if (a.references++ == 0)
                    add_memory(a.bytes);
            }
            count(*c.before, +1);
            objects_.emplace(c.id, *c.before);
        }
    }
    // Some were taken into use again, others were made since begin(): only those without references are free.
    for (const std::uint32_t slot : freed_)
        if (allocations_[slot].references == 0)
            free_allocations_.push_back(slot);
    freed_.clear();
}

const object* object_table::find(guest_id id, vgpu_object_kind kind) const {
    const auto at = objects_.find(id);
    return at != objects_.end() && at->second.kind == kind && !at->second.destroyed ? &at->second : nullptr;
}

std::uint64_t object_table::pending_serial(guest_id id) const {
    const auto at = objects_.find(id);
    const bool pending = at != objects_.end() && at->second.kind == VGPU_OBJECT_EVENT &&
                         at->second.event == event_state::pending;
    return pending ? at->second.serial : 0;
}

bool object_table::room_for_object(std::uint64_t above_quota) const {
    // An event that the guest has destroyed is gone for it; here it stays until its command has ended.
    const std::uint64_t most =
        log_change_ ? log_quota_.max_objects : quota_.max_objects + destroyed_log_events_;
    return objects_.size() < most + above_quota && usage_.objects < usage_.max_objects + above_quota;
}

bool object_table::room_for_memory(std::uint64_t bytes) const {
    const std::uint64_t most = (log_change_ ? log_quota_ : quota_).max_memory_bytes;
    const std::uint64_t of_device = log_change_ ? usage_.max_log_memory_bytes : usage_.max_memory_bytes;
    return bytes <= most && memory_bytes_ <= most - bytes && bytes <= of_device &&
           usage_.memory_bytes <= of_device - bytes;
}

void object_table::add_memory(std::uint64_t bytes) {
    memory_bytes_ += bytes;
    usage_.memory_bytes += bytes;
}

// Counters that follow from the objects that are there.
void object_table::count(const object& o, int sign) {
    const auto n = static_cast<std::uint64_t>(static_cast<std::int64_t>(sign));
    usage_.objects += n;
    if (o.kind == VGPU_OBJECT_EVENT) {
        unset_user_events_ += o.event == event_state::user_unset ? n : 0;
        const bool pending = o.event == event_state::pending;
        pending_events_ += pending ? n : 0;
        pending_log_events_ += pending && o.of_log ? n : 0;
        destroyed_log_events_ += pending && o.of_log && o.destroyed ? n : 0;
    }
}

void object_table::note(guest_id id, const object* before) {
    if (in_change_)
        journal_.push_back({id, before ? std::optional<object>(*before) : std::nullopt});
}

std::uint64_t object_table::insert(guest_id id, object o) {
    assert(!taken(id));
    note(id, nullptr);
    o.serial = next_serial_++;
    o.of_log = log_change_;
    if (o.kind == VGPU_OBJECT_CONTEXT)
        o.context = o.serial;
    count(o, +1);
    objects_.emplace(id, o);
    return o.serial;
}

std::uint64_t object_table::insert_memory(guest_id id, object o, std::uint64_t charge) {
    if (free_allocations_.empty()) {
        o.allocation = static_cast<std::uint32_t>(allocations_.size());
        allocations_.push_back({charge, 1});
    } else {
        o.allocation = free_allocations_.back();
        free_allocations_.pop_back();
        allocations_[o.allocation] = {charge, 1};
    }
    add_memory(charge);
    return insert(id, o);
}

std::uint64_t object_table::insert_shared_memory(guest_id id, object o, const object& owner) {
    o.allocation = owner.allocation;
    ++allocations_[o.allocation].references;
    return insert(id, o);
}

void object_table::release_memory(const object& o) {
    allocation& a = allocations_[o.allocation];
    if (--a.references == 0) {
        memory_bytes_ -= a.bytes;
        usage_.memory_bytes -= a.bytes;
        // Inside a change the slot must keep its size for a rollback, so it is not given to another object
        // yet.
        freed_.push_back(o.allocation);
        if (!in_change_ && journal_.empty()) {
            free_allocations_.push_back(freed_.back());
            freed_.pop_back();
        }
    }
}

void object_table::erase(map::iterator at) {
    if (at->second.kind == VGPU_OBJECT_MEMORY)
        release_memory(at->second);
    count(at->second, -1);
    objects_.erase(at);
}

void object_table::destroy(guest_id id) {
    const auto at = objects_.find(id);
    assert(at != objects_.end() && !at->second.destroyed);
    note(id, &at->second);
    if (at->second.kind == VGPU_OBJECT_EVENT && at->second.event == event_state::pending) {
        at->second.destroyed = true;
        destroyed_log_events_ += at->second.of_log;
    } else {
        erase(at);
    }
}

void object_table::set_user_event(guest_id id, std::int32_t status) {
    const auto at = objects_.find(id);
    assert(at != objects_.end() && at->second.event == event_state::user_unset);
    note(id, &at->second);
    at->second.event = event_state::done;
    at->second.status = status;
    --unset_user_events_;
}

bool object_table::complete_event(guest_id id, std::int32_t status) {
    assert(!in_change_);
    const auto at = objects_.find(id);
    if (at == objects_.end() || at->second.kind != VGPU_OBJECT_EVENT ||
        at->second.event != event_state::pending) {
        return false;
    }
    if (at->second.destroyed) {
        erase(at);
    } else {
        at->second.event = event_state::done;
        at->second.status = status;
        --pending_events_;
        pending_log_events_ -= at->second.of_log;
    }
    return true;
}

void object_table::take_back(guest_id id, std::uint64_t serial) {
    assert(!in_change_);
    const auto at = objects_.find(id);
    if (at != objects_.end() && at->second.serial == serial)
        erase(at);
}

bool object_table::set_error_undelivered(guest_id queue, bool value) {
    assert(!in_change_);
    const auto at = objects_.find(queue);
    if (at == objects_.end() || at->second.kind != VGPU_OBJECT_QUEUE)
        return false;
    at->second.error_undelivered = value;
    return true;
}

bool object_table::error_undelivered(guest_id queue) const {
    const object* q = find(queue, VGPU_OBJECT_QUEUE);
    return q && q->error_undelivered;
}

} // namespace kagemusha::core
