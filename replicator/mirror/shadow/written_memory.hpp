// SPDX-License-Identifier: GPL-2.0-or-later
// written_memory: which GPU memory of a session its commands have written. Sets the dirty marks of what a
// command writes: by its row, by the arguments of a launch, and of all memory whose address kernels may know.
// Internal to session_shadow; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/cl_numbers.hpp"
#include "codec/commands/table.hpp"
#include "codec/decode.hpp"
#include "mirror/shadow/dirty_map.hpp"
#include "mirror/shadow/shadow_registry.hpp"

namespace kagemusha::mirror {

class written_memory {
public:
    // Both are used until this ends. `named`: kernels that give something else each time; null: all may.
    written_memory(std::uint64_t hash_seed, const shadow_registry& registry,
                   const std::vector<std::string>* named)
        : registry_(registry), marks_(hash_seed), names_(named ? *named : no_names_) {}

    // ---- the objects

    // Memory of the guest's, whose marks can be set from here on.
    void insert(registry_item& item, bool kernels_only_read);
    // It is new and has an address which kernels may know: CUDA's arenas and variables.
    void insert_addressed(guest_id id);
    // The same of an image that a surface shows, perhaps another one's, too.
    void insert_shown(guest_id id);
    void erase(guest_id id);
    void clear();
    // Whether it is one of the named.
    bool kernel_made(std::string_view name);

    // ---- named kernels: whatever kernels and copies write from the launch of one on may depend on it, until
    // all of that was shipped

    bool has_named() const { return has_named_; } // the guest has made one, ever
    bool launched_named() const { return launched_; }
    bool in_doubt() const { return in_doubt_; }
    void set_in_doubt(bool in_doubt) { in_doubt_ = in_doubt; }

    // ---- commands

    void begin_request() {
        seen_ids_.fill(0);
        seen_addressed_ = false;
    }

    // By the row of the command. What it copies from other memory may have come from a kernel.
    template <class Op>
    void by(const Op& o) {
        codec::commands::with_row(o, [&]<class Row>() {
            codec::commands::for_each_written<Row>(
                o, [&](guest_id id) { codec::commands::reads_memory<Row> ? mark_copy(id) : mark(id); });
        });
    }
    // By hand: a flag says whether it does, and what kernels write is among their arguments.
    void by(const codec::op_migrate& o) {
        if ((o.c->flags & codec::cl_migrate_content_undefined) != 0)
            for (const guest_id id : o.objects)
                mark(id);
    }
    void by(const codec::op_launch& o) {
        note_launch(*o.c);
        by_address();
        o.arguments.for_each([this](const codec::launch_argument& a) {
            if (a.kind == VGPU_ARGUMENT_MEMORY && a.object != 0)
                by_launch_of(a.object);
        });
    }
    // The same of a launch that nobody decodes.
    void by_launch(const vgpu_cmd_launch& c);
    // A launch has the object as an argument.
    void by_launch_of(guest_id id) {
        guest_id& seen = seen_ids_[id % seen_ids_.size()];
        if (seen == id)
            return;
        seen = id;
        const dirty_map::target t = marks_.find(id);
        if (t.info && !t.kernels_only_read)
            mark_computed(*t.info);
    }

private:
    void mark(guest_id id) {
        if (memory_info* info = marks_.find(id).info)
            info->dirty_for_sync = info->dirty_for_digest = true;
    }
    // By a kernel, or from memory that may have come from one.
    void mark_computed(memory_info& info) const {
        info.dirty_for_sync = info.dirty_for_digest = true;
        info.computed = info.computed || in_doubt_ || names_.empty();
    }
    void mark_copy(guest_id id) {
        if (memory_info* info = marks_.find(id).info)
            mark_computed(*info);
    }
    // Kernels may write wherever they know an address.
    void by_address() {
        if (!std::exchange(seen_addressed_, true))
            mark_addressed();
    }
    void mark_addressed();
    void note_launch(const vgpu_cmd_launch& c) {
        if (has_named_ && !in_doubt_)
            note_named(c);
    }
    void note_named(const vgpu_cmd_launch& c);

    const shadow_registry& registry_;
    dirty_map marks_; // every memory object that the guest can name
    std::vector<guest_id> addressed_;
    const std::vector<std::string> no_names_;
    const std::vector<std::string>& names_;
    bool has_named_ = false, launched_ = false, in_doubt_ = false;
    // Of the request in hand: arguments of its launches whose marks are set, because most launches of a
    // request name the same few objects; and whether those of `addressed_` are.
    std::array<guest_id, 16> seen_ids_{};
    bool seen_addressed_ = false;
};

} // namespace kagemusha::mirror
