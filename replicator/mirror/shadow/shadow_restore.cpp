// SPDX-License-Identifier: GPL-2.0-or-later
// shadow_restore: a registry as log entries that make its objects in an empty file.
#include <algorithm>
#include <cassert>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "codec/cl_numbers.hpp"
#include "mirror/log/entry_builder.hpp"
#include "mirror/shadow/shadow_registry.hpp"

namespace kagemusha::mirror {

namespace {

// Commands that are no calls, packed into as few entries as the format allows.
class silent_commands {
public:
    explicit silent_commands(std::vector<log_entry>& out) : out_(out) { entry_.begin(0); }
    template <class Command>
    void add(std::uint16_t opcode, Command c) {
        c.cmd.opcode = opcode;
        c.cmd.flags = 0;
        c.cmd.bytes = sizeof(c);
        if (entry_.stream_bytes() + sizeof(c) > VGPU_MAX_STREAM_BYTES)
            flush();
        entry_.command(std::as_bytes(std::span(&c, 1)));
    }
    void destroy(const registry_item& item) {
        vgpu_cmd_destroy c{};
        c.kind = item.kind;
        c.id = item.id;
        add(VGPU_CMD_DESTROY, c);
    }
    void flush() {
        entry_.finish(out_);
        entry_.begin(0);
    }

private:
    std::vector<log_entry>& out_;
    entry_builder entry_;
};

struct live_event {
    guest_id id;
    guest_id context;
    std::uint64_t serial;
    bool unset;
    std::int32_t status;
};

std::size_t content_reference(const registry_item& item) {
    assert(item.opcode == VGPU_CMD_CREATE_PROGRAM);
    return offsetof(vgpu_cmd_create_program, content);
}

} // namespace

// Every item in the order of time. An object that the guest has destroyed is made too where something needs
// it, and destroyed again as soon as its id is wanted, or at the end: whatever needs it is older than the
// next object of the same id.
void restore_all(const shadow_registry& registry, const core::object_table& objects,
                 std::vector<log_entry>& out, std::vector<restored_call>& calls) {
    std::unordered_map<guest_id, const registry_item*> doomed;
    silent_commands silent(out);
    entry_builder entry;
    for (const registry_item* i = registry.first(); i; i = i->next) {
        if (i->id != 0) {
            if (const auto same = doomed.find(i->id); same != doomed.end()) {
                silent.destroy(*same->second);
                silent.flush();
                doomed.erase(same);
            }
            if (!i->live)
                doomed.emplace(i->id, i);
        }
        entry.begin(i->command.size() * 8);
        const auto command = std::as_bytes(std::span(i->command));
        if (i->content) {
            entry.command_with_payload(command, content_reference(*i), i->content->size(),
                                       {{std::span(*i->content)}, i->content});
        } else {
            entry.command(command);
        }
        const bool noted = i->pending || i->result != codec::cl_success;
        if (noted)
            calls.push_back({out.size(), i->pending, i->token, i->result});
        entry.finish(out, noted ? call_flags(i->opcode) : 0);
    }

    // Events know their context by its serial.
    std::unordered_map<std::uint64_t, guest_id> context_of_serial;
    std::vector<live_event> events;
    objects.for_each([&](guest_id id, const core::object& o) {
        if (o.kind == VGPU_OBJECT_CONTEXT) {
            context_of_serial[o.context] = id;
        } else if (o.kind == VGPU_OBJECT_QUEUE) {
            if (const registry_item* queue = registry.find(id))
                context_of_serial[o.context] = queue->needs.front()->id;
        } else if (o.kind == VGPU_OBJECT_EVENT && !o.destroyed && o.event != core::event_state::refused) {
            const bool done = o.event == core::event_state::done;
            events.push_back(
                {id, o.context, o.serial, o.event == core::event_state::user_unset, done ? o.status : 0});
        }
    });
    std::sort(events.begin(), events.end(),
              [](const live_event& a, const live_event& b) { return a.serial < b.serial; });

    std::vector<const registry_item*> last; // destroyed contexts, which events may need
    for (const auto& [id, item] : doomed)
        item->kind == VGPU_OBJECT_CONTEXT ? last.push_back(item) : silent.destroy(*item);
    silent.flush();
    entry.begin(0);
    for (const live_event& e : events) {
        const auto context = context_of_serial.find(e.context);
        if (context == context_of_serial.end())
            continue; // no queue is left on which anybody could wait for it
        vgpu_cmd_create_user_event create{};
        create.cmd = {VGPU_CMD_CREATE_USER_EVENT, 0, sizeof(create)};
        create.id = e.id;
        create.context = context->second;
        entry.command(std::as_bytes(std::span(&create, 1)));
        entry.finish(out);
        entry.begin(0);
        if (!e.unset) {
            vgpu_cmd_set_user_event set{};
            set.cmd = {VGPU_CMD_SET_USER_EVENT, 0, sizeof(set)};
            set.event = e.id;
            set.status = e.status;
            entry.command(std::as_bytes(std::span(&set, 1))); // in front of the next one's creation
        }
    }
    entry.finish(out);
    for (const registry_item* context : last)
        silent.destroy(*context);
    silent.flush();
}

} // namespace kagemusha::mirror
