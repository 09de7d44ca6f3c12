// SPDX-License-Identifier: GPL-2.0-or-later
// shadow_registry: the commands that made the live objects of one open file, in the order in which they ran.
// Run again in this order they make the same objects elsewhere. Internal to session_shadow.
//
// The mental model: every kept command is an item. An item is kept as long as somebody uses it: the guest,
// which can name the object; an item that was made of it (a kernel of its program, a sub-buffer of its
// buffer, a linked program of its inputs); a program, of its last build and its last specialisation
// constants. So a program that was destroyed stays while a kernel of it lives, and a build that was
// superseded stays while something linked from it lives. Items that nobody uses go at once, and take with
// them what only they used.
//
// A call's item is pending until its result is known; a call that failed is taken back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "mirror/shadow/id_hash.hpp"
#include "mirror/shadow/session_shadow.hpp"

namespace kagemusha::mirror {

using shared_bytes = std::shared_ptr<const std::vector<std::byte>>;

struct registry_item {
    registry_item *previous = nullptr, *next = nullptr;           // in the order of all items
    registry_item *kind_previous = nullptr, *kind_next = nullptr; // among the objects of a kind
    std::uint64_t users = 0;
    std::uint64_t bytes = 0; // that it counts for in the budget
    guest_id id = 0;         // 0: changes a program, makes nothing
    std::uint16_t opcode = 0;
    std::uint8_t kind = 0; // enum vgpu_object_kind of what it makes
    bool live = false;     // the guest can name it
    bool pending = false;
    bool named = false;      // a kernel whose results are shipped
    std::int32_t result = 0; // of the call, when it is not pending
    std::uint64_t token = 0; // of the request, while it is pending
    std::vector<std::uint64_t> command;
    shared_bytes content; // of a program
    std::vector<registry_item*> needs;

    // Of memory. Marks are kept by whoever owns the memory, `root`.
    struct memory_part {
        registry_item* root = nullptr;
        bool kernels_only_read = false;
        memory_info info;
        // Of a root: what was made of it, in no order, and where this one stands in the list of its root.
        std::vector<registry_item*> aliases;
        std::size_t place = 0;
    };
    std::unique_ptr<memory_part> memory;

    // Of a program: what a kernel or a link made now would depend on.
    struct program_part {
        registry_item* build = nullptr;
        std::vector<std::pair<std::uint32_t, registry_item*>> constants;
    };
    std::unique_ptr<program_part> program;
};

class shadow_registry {
public:
    shadow_registry(std::uint64_t hash_seed, registry_budget& budget);
    ~shadow_registry();
    shadow_registry(const shadow_registry&) = delete;
    shadow_registry& operator=(const shadow_registry&) = delete;

    registry_item* find(guest_id id) const {
        const auto at = named_.find(id);
        return at == named_.end() ? nullptr : at->second;
    }

    // An object of the guest. Null, with nothing changed, if the budget has no room.
    registry_item* create(guest_id id, vgpu_object_kind kind, std::span<const std::uint64_t> command,
                          shared_bytes content, std::span<registry_item* const> needs, std::uint64_t token);
    // A build or a specialisation constant: current once done() said that it succeeded.
    registry_item* change(registry_item& program, std::span<const std::uint64_t> command,
                          std::span<registry_item* const> needs, std::uint64_t token);
    void destroy(guest_id id);
    // Gives the id of a memory object that does not exist after all, or 0.
    guest_id done(std::uint64_t token, std::int32_t result);
    bool memory_is_pending() const { return pending_memory_ != 0; }
    void clear();
    std::uint64_t queues_created() const { return queues_created_; } // and confirmed

    const registry_item* first() const { return first_; }
    registry_item* first_of(vgpu_object_kind kind) const { return first_of_kind_[kind]; }
    std::uint64_t bytes() const { return bytes_; }

    // What exists for certain and the guest can name.
    std::vector<guest_id> contexts() const;
    std::vector<guest_id> queues(guest_id context) const;
    // See session_shadow.
    void for_each_memory(const std::function<void(memory_info&)>& f);
    memory_info* find_memory(guest_id id);

private:
    registry_item* add(std::span<const std::uint64_t> command, shared_bytes content,
                       std::span<registry_item* const> needs, std::uint64_t token, bool pending);
    void need(registry_item& item, registry_item& other);
    void need_builds(registry_item& item);
    void make_current(registry_item& change);
    void forget(registry_item& item); // by the guest
    void release(registry_item& item);
    void erase(registry_item& item);
    void end_pending(registry_item& item);
    void charge(registry_item& item);

    registry_budget& budget_;
    std::unordered_map<guest_id, registry_item*, id_hash> named_;
    std::unordered_map<std::uint64_t, registry_item*> pending_;
    registry_item *first_ = nullptr, *last_ = nullptr;
    registry_item* first_of_kind_[VGPU_OBJECT_EVENT + 1] = {};
    registry_item* last_of_kind_[VGPU_OBJECT_EVENT + 1] = {};
    std::uint64_t pending_memory_ = 0;
    std::uint64_t queues_created_ = 0;
    std::uint64_t bytes_ = 0;
    std::vector<registry_item*> unused_; // of release(), a member so that its memory is used again
};

bool is_out_of_order(const registry_item& queue);
// Whether a kernel that gets memory with these flags as an argument may not write it. A sub-buffer without
// access flags has those of its buffer, `parent`.
bool only_read(std::uint64_t flags, const registry_item* parent);

// See session_shadow::restore().
void restore_all(const shadow_registry& registry, const core::object_table& objects,
                 std::vector<log_entry>& out, std::vector<restored_call>& calls);

} // namespace kagemusha::mirror
