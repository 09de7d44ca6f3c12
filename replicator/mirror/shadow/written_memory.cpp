// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/shadow/written_memory.hpp"

#include <algorithm>

namespace kagemusha::mirror {

void written_memory::insert(registry_item& item, bool kernels_only_read) {
    item.memory->kernels_only_read = kernels_only_read;
    marks_.insert(item.id, {&item.memory->root->memory->info, kernels_only_read});
}

void written_memory::insert_addressed(guest_id id) {
    addressed_.push_back(id);
    seen_addressed_ = false;
}

void written_memory::insert_shown(guest_id id) {
    if (std::find(addressed_.begin(), addressed_.end(), id) == addressed_.end())
        insert_addressed(id);
}

void written_memory::erase(guest_id id) {
    marks_.erase(id);
    std::erase(addressed_, id);
}

void written_memory::clear() {
    marks_.clear();
    addressed_.clear();
}

bool written_memory::kernel_made(std::string_view name) {
    const bool named = std::find(names_.begin(), names_.end(), name) != names_.end();
    has_named_ = has_named_ || named;
    return named;
}

void written_memory::by_launch(const vgpu_cmd_launch& c) {
    note_launch(c);
    by_address();
    const auto* word = reinterpret_cast<const std::uint64_t*>(&c + 1) + c.enqueue.wait_count;
    for (std::uint32_t i = 0; i < c.argument_count; ++i) {
        const auto& a = *reinterpret_cast<const vgpu_argument*>(word);
        static_assert(sizeof(a) == 2 * sizeof(*word));
        word += 2;
        if (a.kind == VGPU_ARGUMENT_MEMORY) {
            if (*word != 0)
                by_launch_of(*word);
            ++word;
        } else if (a.kind == VGPU_ARGUMENT_BYTES) {
            word += rounded_up(a.bytes) / sizeof(*word);
        } else if (a.kind == VGPU_ARGUMENT_SAMPLER) {
            ++word;
        }
    }
}

void written_memory::mark_addressed() {
    for (const guest_id id : addressed_)
        if (memory_info* info = marks_.find(id).info)
            mark_computed(*info);
}

void written_memory::note_named(const vgpu_cmd_launch& c) {
    if (const registry_item* kernel = registry_.find(c.kernel); kernel && kernel->named) {
        launched_ = in_doubt_ = true;
        begin_request(); // what has a mark may need the other one now
    }
}

} // namespace kagemusha::mirror
