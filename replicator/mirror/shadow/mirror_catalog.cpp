// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/shadow/mirror_catalog.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "codec/cl_numbers.hpp"

namespace kagemusha::mirror {

namespace {

bool leaves_state(const catalog_item& item, std::int32_t result) {
    if (result == codec::cl_success) {
        return true;
    }
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

mirror_catalog::mirror_catalog(std::uint64_t hash_seed, catalog_budget& budget)
    : budget_(budget), named_(0, id_hash{hash_seed}) {}

mirror_catalog::~mirror_catalog() {
    clear();
}

void mirror_catalog::clear() {
    for (catalog_item* item = first_; item;) {
        delete std::exchange(item, item->next);
    }
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
void mirror_catalog::charge(catalog_item& item) {
    constexpr std::uint64_t table_bytes = 96;
    const std::uint64_t bytes = sizeof(catalog_item) + table_bytes + item.command.size() * 8 +
                                item.needs.capacity() * sizeof(void*) +
                                (item.content ? item.content->size() : 0) +
                                (item.memory ? sizeof(catalog_item::memory_part) + sizeof(void*) : 0) +
                                (item.program ? sizeof(catalog_item::program_part) : 0);
    bytes_ += bytes - item.bytes;
    budget_.used += bytes - item.bytes;
    item.bytes = bytes;
}

catalog_item* mirror_catalog::add(std::span<const std::uint64_t> command, shared_bytes content,
                                  std::span<catalog_item* const> needs, std::uint64_t token, bool pending) {
    auto item = std::make_unique<catalog_item>();
    item->opcode = reinterpret_cast<const vgpu_cmd*>(command.data())->opcode;
    item->command.assign(command.begin(), command.end());
    item->content = std::move(content);
    item->needs.reserve(needs.size());
    item->pending = pending;
    item->token = token;
    const std::uint64_t bytes =
        (command.size() + needs.size()) * 8 + (item->content ? item->content->size() : 0);
    if (bytes > budget_.limit || budget_.used > budget_.limit - bytes) {
        return nullptr;
    }
    for (catalog_item* other : needs) {
        need(*item, *other);
    }
    if (pending) {
        pending_[token] = item.get();
    }
    item->previous = last_;
    (last_ ? last_->next : first_) = item.get();
    last_ = item.get();
    return item.release();
}

void mirror_catalog::need(catalog_item& item, catalog_item& other) {
    item.needs.push_back(&other);
    ++other.users;
}

// What was built of the programs that it needs: known when it is made, and again when its result is known, in
// case a build was under way.
void mirror_catalog::need_builds(catalog_item& item) {
    for (std::size_t i = 0, count = item.needs.size(); i < count; ++i) {
        const catalog_item& other = *item.needs[i];
        catalog_item* build = other.program ? other.program->build : nullptr;
        if (build && std::find(item.needs.begin(), item.needs.end(), build) == item.needs.end()) {
            need(item, *build);
        }
    }
}

catalog_item* mirror_catalog::create(guest_id id, vgpu_object_kind kind,
                                     std::span<const std::uint64_t> command, shared_bytes content,
                                     std::span<catalog_item* const> needs, std::uint64_t token) {
    catalog_item* item = add(command, std::move(content), needs, token, true);
    if (!item) {
        return nullptr;
    }
    item->id = id;
    item->kind = kind;
    item->live = true;
    item->users = 1;
    if (kind == VGPU_OBJECT_MEMORY) {
        item->memory = std::make_unique<catalog_item::memory_part>();
        item->memory->root = item;
        for (const catalog_item* other : needs) {
            if (other->memory) { // a sub-buffer, or an image made of a buffer
                item->memory->root = other->memory->root;
                item->memory->place = item->memory->root->memory->aliases.size();
                item->memory->root->memory->aliases.push_back(item);
            }
        }
        ++pending_memory_;
    } else if (kind == VGPU_OBJECT_PROGRAM) {
        item->program = std::make_unique<catalog_item::program_part>();
    }
    if (kind == VGPU_OBJECT_KERNEL || item->opcode == VGPU_CMD_LINK_PROGRAM) {
        need_builds(*item);
    }
    item->kind_previous = last_of_kind_[kind];
    (last_of_kind_[kind] ? last_of_kind_[kind]->kind_next : first_of_kind_[kind]) = item;
    last_of_kind_[kind] = item;
    named_[id] = item;
    charge(*item);
    return item;
}

catalog_item* mirror_catalog::change(catalog_item& program, std::span<const std::uint64_t> command,
                                     std::span<catalog_item* const> needs, std::uint64_t token) {
    std::vector<catalog_item*> all{&program};
    all.insert(all.end(), needs.begin(), needs.end());
    if (reinterpret_cast<const vgpu_cmd*>(command.data())->opcode != VGPU_CMD_SET_SPEC_CONSTANT) {
        for (const auto& [constant, item] : program.program->constants) {
            all.push_back(item);
        }
    }
    catalog_item* item = add(command, {}, all, token, true);
    if (!item) {
        return nullptr;
    }
    item->users = 1; // of the call under way
    charge(*item);
    return item;
}

// A change whose call succeeded takes the place of the one before it.
void mirror_catalog::make_current(catalog_item& change) {
    catalog_item& target = *change.needs.front();
    if (!target.live) { // destroyed meanwhile
        release(change);
        return;
    }
    catalog_item* before = nullptr;
    if (change.opcode == VGPU_CMD_SET_SPEC_CONSTANT) {
        const auto constant =
            reinterpret_cast<const vgpu_cmd_set_spec_constant*>(change.command.data())->constant;
        auto& all = target.program->constants;
        const auto at =
            std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.first == constant; });
        if (at == all.end()) {
            all.emplace_back(constant, &change);
        } else {
            before = std::exchange(at->second, &change);
        }
    } else {
        before = std::exchange(target.program->build, &change);
    }
    if (before) {
        release(*before);
    }
}

void mirror_catalog::end_pending(catalog_item& item) {
    if (item.pending) {
        item.pending = false;
        pending_.erase(item.token);
        pending_memory_ -= item.kind == VGPU_OBJECT_MEMORY;
    }
}

guest_id mirror_catalog::done(std::uint64_t token, std::int32_t result) {
    const auto at = pending_.find(token);
    if (at == pending_.end()) {
        return 0;
    }
    catalog_item& item = *at->second;
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

void mirror_catalog::destroy(guest_id id) {
    const auto at = named_.find(id);
    if (at == named_.end()) {
        return; // an event
    }
    catalog_item& item = *at->second;
    named_.erase(at);
    forget(item);
}

void mirror_catalog::forget(catalog_item& item) {
    item.live = false;
    if (item.program) {
        // Still needed where something was made of them.
        if (catalog_item* build = std::exchange(item.program->build, nullptr)) {
            release(*build);
        }
        for (const auto& [constant, change] : std::exchange(item.program->constants, {})) {
            release(*change);
        }
    }
    release(item);
}

// Chains of dependencies are as long as the guest makes them, so this does not call itself.
void mirror_catalog::release(catalog_item& item) {
    if (--item.users != 0) {
        return;
    }
    unused_.push_back(&item);
    while (!unused_.empty()) {
        catalog_item* next = unused_.back();
        unused_.pop_back();
        for (catalog_item* other : next->needs) {
            if (--other->users == 0) {
                unused_.push_back(other);
            }
        }
        erase(*next);
    }
}

void mirror_catalog::erase(catalog_item& item) {
    end_pending(item);
    if (item.memory && item.memory->root != &item) {
        // Before its root, which it needs.
        std::vector<catalog_item*>& all = item.memory->root->memory->aliases;
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

} // namespace kagemusha::mirror
