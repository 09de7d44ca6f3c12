// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/shadow/shadow_registry.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "codec/cl_numbers.hpp"

namespace kagemusha::mirror {

namespace {

bool leaves_state(const registry_item& item, std::int32_t result) {
    if (result == codec::cl_success)
        return true;
    switch (item.opcode) { // a program whose compiler said no has a log, and no other executable any more
    case VGPU_CMD_BUILD_PROGRAM:
        return result == codec::cl_build_program_failure;
    case VGPU_CMD_COMPILE_PROGRAM:
        return result == codec::cl_compile_program_failure;
    case VGPU_CMD_LINK_PROGRAM:
        return result == codec::cl_link_program_failure;
    default:
        return false;
    }
}

} // namespace

shadow_registry::shadow_registry(std::uint64_t hash_seed, registry_budget& budget)
    : budget_(budget), named_(0, id_hash{hash_seed}) {}

shadow_registry::~shadow_registry() {
    clear();
}

void shadow_registry::clear() {
    for (registry_item* item = first_; item;)
        delete std::exchange(item, item->next);
    first_ = last_ = nullptr;
    std::fill(std::begin(first_of_kind_), std::end(first_of_kind_), nullptr);
    std::fill(std::begin(last_of_kind_), std::end(last_of_kind_), nullptr);
    named_.clear();
    pending_.clear();
    budget_.used -= bytes_;
    bytes_ = pending_memory_ = 0;
}

// What an item costs with its place in the tables, about. It may go a little beyond the limit: add() has
// looked at what is large.
void shadow_registry::charge(registry_item& item) {
    constexpr std::uint64_t table_bytes = 96;
    const std::uint64_t bytes = sizeof(registry_item) + table_bytes + item.command.size() * 8 +
                                item.needs.capacity() * sizeof(void*) +
                                (item.content ? item.content->size() : 0) +
                                (item.memory ? sizeof(registry_item::memory_part) + sizeof(void*) : 0) +
                                (item.program ? sizeof(registry_item::program_part) : 0);
    bytes_ += bytes - item.bytes;
    budget_.used += bytes - item.bytes;
    item.bytes = bytes;
}

registry_item* shadow_registry::add(std::span<const std::uint64_t> command, shared_bytes content,
                                    std::span<registry_item* const> needs, std::uint64_t token,
                                    bool pending) {
    auto item = std::make_unique<registry_item>();
    item->opcode = reinterpret_cast<const vgpu_cmd*>(command.data())->opcode;
    item->command.assign(command.begin(), command.end());
    item->content = std::move(content);
    item->needs.reserve(needs.size());
    item->pending = pending;
    item->token = token;
    const std::uint64_t bytes =
        (command.size() + needs.size()) * 8 + (item->content ? item->content->size() : 0);
    if (bytes > budget_.limit || budget_.used > budget_.limit - bytes)
        return nullptr;
    for (registry_item* other : needs)
        need(*item, *other);
    if (pending)
        pending_[token] = item.get();
    item->previous = last_;
    (last_ ? last_->next : first_) = item.get();
    last_ = item.get();
    return item.release();
}

void shadow_registry::need(registry_item& item, registry_item& other) {
    item.needs.push_back(&other);
    ++other.users;
}

// What was built of the programs that it needs: known when it is made, and again when its result is known, in
// case a build was under way.
void shadow_registry::need_builds(registry_item& item) {
    for (std::size_t i = 0, count = item.needs.size(); i < count; ++i) {
        const registry_item& other = *item.needs[i];
        registry_item* build = other.program ? other.program->build : nullptr;
        if (build && std::find(item.needs.begin(), item.needs.end(), build) == item.needs.end())
            need(item, *build);
    }
}

registry_item* shadow_registry::create(guest_id id, vgpu_object_kind kind,
                                       std::span<const std::uint64_t> command, shared_bytes content,
                                       std::span<registry_item* const> needs, std::uint64_t token) {
    registry_item* item = add(command, std::move(content), needs, token, true);
    if (!item)
        return nullptr;
    item->id = id;
    item->kind = kind;
    item->live = true;
    item->users = 1;
    if (kind == VGPU_OBJECT_MEMORY) {
        item->memory = std::make_unique<registry_item::memory_part>();
        item->memory->root = item;
        for (const registry_item* other : needs) {
            if (other->memory) { // a sub-buffer, or an image made of a buffer
                item->memory->root = other->memory->root;
                item->memory->place = item->memory->root->memory->aliases.size();
                item->memory->root->memory->aliases.push_back(item);
            }
        }
        ++pending_memory_;
    } else if (kind == VGPU_OBJECT_PROGRAM) {
        item->program = std::make_unique<registry_item::program_part>();
    }
    if (kind == VGPU_OBJECT_KERNEL || item->opcode == VGPU_CMD_LINK_PROGRAM)
        need_builds(*item);
    item->kind_previous = last_of_kind_[kind];
    (last_of_kind_[kind] ? last_of_kind_[kind]->kind_next : first_of_kind_[kind]) = item;
    last_of_kind_[kind] = item;
    named_[id] = item;
    charge(*item);
    return item;
}

registry_item* shadow_registry::change(registry_item& program, std::span<const std::uint64_t> command,
                                       std::span<registry_item* const> needs, std::uint64_t token) {
    std::vector<registry_item*> all{&program};
    all.insert(all.end(), needs.begin(), needs.end());
    if (reinterpret_cast<const vgpu_cmd*>(command.data())->opcode != VGPU_CMD_SET_SPEC_CONSTANT)
        for (const auto& [constant, item] : program.program->constants)
            all.push_back(item);
    registry_item* item = add(command, {}, all, token, true);
    if (!item)
        return nullptr;
    item->users = 1; // of the call under way
    charge(*item);
    return item;
}

// A change whose call succeeded takes the place of the one before it.
void shadow_registry::make_current(registry_item& change) {
    registry_item& target = *change.needs.front();
    if (!target.live) { // destroyed meanwhile
        release(change);
        return;
    }
    registry_item* before = nullptr;
    if (change.opcode == VGPU_CMD_SET_SPEC_CONSTANT) {
        const auto constant =
            reinterpret_cast<const vgpu_cmd_set_spec_constant*>(change.command.data())->constant;
        auto& all = target.program->constants;
        const auto at =
            std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.first == constant; });
        if (at == all.end())
            all.emplace_back(constant, &change);
        else
            before = std::exchange(at->second, &change);
    } else {
        before = std::exchange(target.program->build, &change);
    }
    if (before)
        release(*before);
}

void shadow_registry::end_pending(registry_item& item) {
    if (item.pending) {
        item.pending = false;
        pending_.erase(item.token);
        pending_memory_ -= item.kind == VGPU_OBJECT_MEMORY;
    }
}

guest_id shadow_registry::done(std::uint64_t token, std::int32_t result) {
    const auto at = pending_.find(token);
    if (at == pending_.end())
        return 0;
    registry_item& item = *at->second;
    end_pending(item);
    item.result = result;
    if (!leaves_state(item, result)) {
        const guest_id memory = item.memory && item.live ? item.id : 0;
        if (item.id == 0) {
            release(item);
        } else if (item.live) {
            named_.erase(item.id);
            forget(item);
        }
        return memory;
    }
    queues_created_ += item.kind == VGPU_OBJECT_QUEUE;
    if (item.id == 0) {
        make_current(item);
    } else if (item.kind == VGPU_OBJECT_KERNEL || item.opcode == VGPU_CMD_LINK_PROGRAM) {
        need_builds(item);
        charge(item);
    }
    return 0;
}

void shadow_registry::destroy(guest_id id) {
    const auto at = named_.find(id);
    if (at == named_.end())
        return; // an event
    registry_item& item = *at->second;
    named_.erase(at);
    forget(item);
}

void shadow_registry::forget(registry_item& item) {
    item.live = false;
    if (item.program) {
        // Still needed where something was made of them.
        if (registry_item* build = std::exchange(item.program->build, nullptr))
            release(*build);
        for (const auto& [constant, change] : std::exchange(item.program->constants, {}))
            release(*change);
    }
    release(item);
}

// Chains of dependencies are as long as the guest makes them, so this does not call itself.
void shadow_registry::release(registry_item& item) {
    if (--item.users != 0)
        return;
    unused_.push_back(&item);
    while (!unused_.empty()) {
        registry_item* next = unused_.back();
        unused_.pop_back();
        for (registry_item* other : next->needs)
            if (--other->users == 0)
                unused_.push_back(other);
        erase(*next);
    }
}

void shadow_registry::erase(registry_item& item) {
    end_pending(item);
    if (item.memory && item.memory->root != &item) {
        // Before its root, which it needs.
        std::vector<registry_item*>& all = item.memory->root->memory->aliases;
        all[item.memory->place] = all.back();
        all[item.memory->place]->memory->place = item.memory->place;
        all.pop_back();
    }
    (item.previous ? item.previous->next : first_) = item.next;
    (item.next ? item.next->previous : last_) = item.previous;
    if (item.id != 0) {
        (item.kind_previous ? item.kind_previous->kind_next : first_of_kind_[item.kind]) = item.kind_next;
        (item.kind_next ? item.kind_next->kind_previous : last_of_kind_[item.kind]) = item.kind_previous;
    }
    bytes_ -= item.bytes;
    budget_.used -= item.bytes;
    delete &item;
}

bool is_out_of_order(const registry_item& queue) {
    const auto& c = *reinterpret_cast<const vgpu_cmd_create_queue*>(queue.command.data());
    return (c.properties & codec::cl_queue_out_of_order) != 0;
}

bool only_read(std::uint64_t flags, const registry_item* parent) {
    if ((flags & codec::cl_mem_device_access_flags) == 0 && parent)
        return parent->memory->kernels_only_read;
    return (flags & codec::cl_mem_read_only) != 0;
}

std::vector<guest_id> shadow_registry::contexts() const {
    std::vector<guest_id> out;
    for (const registry_item* i = first_of(VGPU_OBJECT_CONTEXT); i; i = i->kind_next)
        if (i->live && !i->pending)
            out.push_back(i->id);
    return out;
}

std::vector<guest_id> shadow_registry::queues(guest_id context) const {
    std::vector<guest_id> out;
    const registry_item* owner = find(context);
    for (const registry_item* i = first_of(VGPU_OBJECT_QUEUE); i && owner; i = i->kind_next)
        if (i->live && !i->pending && i->needs.front() == owner)
            out.push_back(i->id);
    return out;
}

namespace {

// The context that a memory object was made in, if the guest can still name it.
guest_id live_context(const registry_item* item) {
    while (item && item->kind != VGPU_OBJECT_CONTEXT)
        item = item->needs.front();
    return item && item->live ? item->id : 0;
}

memory_info& reported_of(registry_item& item) {
    item.memory->info.id = item.id;
    item.memory->info.context = live_context(&item);
    item.memory->info.unconfirmed = item.pending;
    return item.memory->info;
}

// The memory of a buffer that was destroyed can be named through what was made of it only.
void hand_marks_down(registry_item& root) {
    memory_info& info = root.memory->info;
    for (registry_item* alias : root.memory->aliases) {
        alias->memory->info.dirty_for_sync |= info.dirty_for_sync;
        alias->memory->info.dirty_for_digest |= info.dirty_for_digest;
        alias->memory->info.computed |= info.computed;
        alias->memory->info.repaired |= info.repaired;
    }
    info.dirty_for_sync = info.dirty_for_digest = info.computed = info.repaired = false;
}

} // namespace

void shadow_registry::for_each_memory(const std::function<void(memory_info&)>& f) {
    for (registry_item* i = first_of(VGPU_OBJECT_MEMORY); i; i = i->kind_next) {
        registry_item& root = *i->memory->root;
        if (&root == i && !i->live)
            hand_marks_down(root);
        if (i->live && (&root == i || !root.live))
            f(reported_of(*i));
    }
}

memory_info* shadow_registry::find_memory(guest_id id) {
    registry_item* item = find(id);
    if (!item || !item->memory)
        return nullptr;
    registry_item& root = *item->memory->root;
    if (root.live)
        return &reported_of(root);
    hand_marks_down(root);
    return &reported_of(*item);
}

} // namespace kagemusha::mirror
