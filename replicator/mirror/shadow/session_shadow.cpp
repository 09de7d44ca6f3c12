// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/shadow/session_shadow.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "codec/cl_numbers.hpp"
#include "codec/commands/table.hpp"
#include "codec/decode.hpp"
#include "mirror/log/entry_builder.hpp"
#include "mirror/log/packed_stream.hpp"
#include "mirror/shadow/happens_before.hpp"
#include "mirror/shadow/shadow_registry.hpp"
#include "mirror/shadow/written_memory.hpp"

namespace kagemusha::mirror {

namespace {

using namespace codec;

constexpr std::uint32_t word_bytes = sizeof(std::uint64_t);

constexpr const char* over_budget =
    "the guest has more objects or program sources than the host remembers for a standby "
    "(max_registry_bytes); the file is mirrored no more until it is closed";

constexpr const char* variable_out_of_reach = "a CUDA module of the guest has a variable that the GPU's "
                                              "driver gives no address of, so a standby can't get its "
                                              "content; the file is mirrored no more until it is closed";

template <class Command>
std::span<const std::uint64_t> words_of(const Command* c) {
    return {reinterpret_cast<const std::uint64_t*>(c), c->cmd.bytes / 8};
}

const vgpu_cmd& header_of_command(std::span<const std::byte> command) {
    return *reinterpret_cast<const vgpu_cmd*>(command.data());
}

} // namespace

struct session_shadow::impl {
    impl(registry_budget* shared, std::uint64_t hash_seed, const std::vector<std::string>* named)
        : budget(shared ? *shared : own_budget)
        , registry(hash_seed, budget)
        , written(hash_seed, registry, named)
        , order(hash_seed) {}

    registry_budget own_budget;
    registry_budget& budget;
    shadow_registry registry;
    written_memory written;
    const char* failure = nullptr;
    std::vector<std::uint64_t> unanswered_variables; // tokens of calls that make some
    happens_before order;
    std::vector<guest_id> awaited;     // a member so that its memory is used again
    std::vector<registry_item*> needs; // of a call: the same

    // Commands of the request that lie behind each other in the entry too, from here on, in words.
    struct stretch {
        std::uint32_t from, to;
    };

    // Of the request in hand.
    const worker::request_view* request = nullptr;
    mirror_mode mode = mirror_mode::off;
    const payload_reader* payloads = nullptr;
    const payload_note* reads_into = nullptr;
    std::vector<log_entry>* out = nullptr;
    entry_builder entry;
    std::vector<stretch> stretches; // while the entry is packed

    void fail(const char* why) {
        failure = failure ? failure : why;
        registry.clear();
        written.clear();
        unanswered_variables.clear();
        order.stop();
    }

    // ---- what the guest's host code waited for

    void follow_mode(mirror_mode next) {
        mode = next;
        if ((mode == mirror_mode::on) == order.running())
            return;
        if (mode != mirror_mode::on)
            return order.stop();
        order.start();
        for (const registry_item* i = registry.first_of(VGPU_OBJECT_QUEUE); i; i = i->kind_next)
            if (i->live)
                order.queue_made(i->id, is_out_of_order(*i));
    }

    // Before anything of a request: what it may rely on having run.
    void await_what_is_known(std::span<const std::byte> stream, core::launch_runs repeats) {
        guest_id queue = 0;
        bool any = false, one_queue = true;
        for (std::size_t at = 0; at < stream.size();) {
            if (!repeats.empty() && at == repeats.front().at * word_bytes) {
                at = repeats.front().end() * word_bytes; // in the queue of what they repeat
                repeats = repeats.subspan(1);
                continue;
            }
            const auto& header = *reinterpret_cast<const vgpu_cmd*>(stream.data() + at);
            if (header.opcode >= VGPU_FIRST_ENQUEUE) {
                const guest_id of = queue_of(header);
                one_queue = one_queue && (!any || of == queue);
                queue = of;
                any = true;
            } else if (header.opcode == VGPU_CMD_SET_USER_EVENT) {
                any = true; // whatever waits for it may be anywhere
                one_queue = false;
            }
            at += command_bytes(header);
        }
        if (!any || !order.holds(one_queue ? queue : 0))
            return;
        awaited.clear();
        order.take(one_queue ? queue : 0, awaited);
        entry.await(awaited);
    }

    // ---- enqueued commands

    void note_event(const vgpu_enqueue& enqueue) {
        if (order.tracks())
            order.enqueued(enqueue.queue, enqueue.event);
    }

    // What most streams consist of: it crosses as it is, and what must be known of it lies in plain sight.
    bool crosses_unread(const vgpu_cmd& header) {
        if (mode != mirror_mode::on)
            return false;
        switch (header.opcode) {
        case VGPU_CMD_LAUNCH: {
            const auto& c = reinterpret_cast<const vgpu_cmd_launch&>(header);
            note_event(c.enqueue);
            written.by_launch(c);
            return true;
        }
        case VGPU_CMD_MARKER:
        case VGPU_CMD_BARRIER:
            note_event(reinterpret_cast<const vgpu_cmd_sync&>(header).enqueue);
            return true;
        case VGPU_CMD_SET_USER_EVENT:
            return true;
        default:
            return false;
        }
    }

    // The same of launches that repeat others: what those write has a mark, so what differs is left.
    void cross_unread(const core::launch_run& run, std::span<const std::uint64_t> commands) {
        if (!order.tracks() && !run.objects.any())
            return;
        for (; !commands.empty(); commands = commands.subspan(run.words)) {
            note_event(reinterpret_cast<const vgpu_cmd_launch*>(commands.data())->enqueue);
            run.objects.for_each([&](std::size_t word) {
                if (commands[word] != 0)
                    written.by_launch_of(commands[word]);
            });
        }
    }

    // ---- where the request's commands are in the entry, as far as they cross as they are

    void crosses_from(std::uint32_t from) {
        const auto to = static_cast<std::uint32_t>(entry.stream_bytes() / word_bytes);
        if (stretches.empty() || to - from != stretches.back().to - stretches.back().from)
            stretches.push_back({from, to});
    }
    std::uint32_t place_of(std::uint32_t word) const {
        const auto behind = std::upper_bound(stretches.begin(), stretches.end(), word,
                                             [](std::uint32_t w, const stretch& s) { return w < s.from; });
        assert(behind != stretches.begin());
        return behind[-1].to + (word - behind[-1].from);
    }

    template <class Op>
    void enqueued(const Op& o, std::span<const std::byte> command) {
        written.by(o);
        note_event(o.c->enqueue);
        constexpr bool is_sync = std::is_same_v<Op, op_sync>;
        bool crosses = is_sync || mode == mirror_mode::on || std::is_same_v<Op, op_migrate>;
        if constexpr (requires { o.write(); })
            crosses = crosses && o.write();
        if constexpr (requires { o.write(); }) {
            if (!o.write() && *reads_into && o.data.index < VGPU_PAYLOAD_NONE)
                (*reads_into)(o.data.index);
        }
        if (!crosses) {
            // A read, or a write whose outcome comes with the state transfer. Who waits for its event, or
            // comes behind it in its queue, still waits for what it waited for.
            if (o.c->enqueue.event != 0 || o.c->enqueue.wait_count != 0)
                entry.marker(o.c->enqueue, o.waits);
            return;
        }
        if constexpr (requires { o.data; }) {
            if (o.data.index != VGPU_PAYLOAD_INLINE && o.data.index != VGPU_PAYLOAD_NONE) {
                const auto at = reinterpret_cast<const std::byte*>(&o.c->data) - command.data();
                entry.command_with_payload(command, static_cast<std::size_t>(at), o.data.bytes,
                                           (*payloads)(o.data.index));
                return;
            }
        }
        entry.command(command);
    }

    // ---- calls. What each makes or changes goes into the registry, by its row.

    // Null if there is no room.
    template <class Op>
    registry_item* made(const Op& o, shared_bytes content = {}) {
        using row = commands::row_of<Op>;
        needs.clear();
        registry_item* changed = nullptr;
        const auto look = [&]<class Part>(const Part& part) {
            if constexpr (requires { part.how; }) {
                registry_item* const item = registry.find((*o.c).*part.id);
                if (part.how == commands::access::change)
                    changed = item;
                else
                    needs.push_back(item);
            } else if constexpr (requires {
                                     part.count;
                                     part.kind;
                                 }) {
                for (const guest_id id : o.*part.view)
                    needs.push_back(registry.find(id));
            } else if constexpr (requires { part.id; } && !commands::is_creates<Part>) { // may use
                if (const guest_id id = (*o.c).*part.id)
                    needs.push_back(registry.find(id));
            }
        };
        std::apply([&](const auto&... part) { (look(part), ...); }, row::parts);
        const auto& c = without_content(o);
        registry_item* item = nullptr;
        if constexpr (commands::creates_object<row>) {
            item = registry.create(o.c->id, commands::created_kind<row>, words_of(&c), std::move(content),
                                   needs, request->token);
        } else {
            item = registry.change(*changed, words_of(&c), needs, request->token);
        }
        if (item)
            describe(*item, o);
        return item;
    }

    // What the mirror needs to know about an object beside the command that made it.
    void describe(registry_item&, const op_create_queue& o) {
        order.queue_made(o.c->id, (o.c->properties & cl_queue_out_of_order) != 0);
    }
    void describe(registry_item& item, const op_create_kernel& o) {
        item.named = written.kernel_made(o.name);
    }
    void describe(registry_item& item, const op_create_buffer& o) {
        item.memory->info.flags = o.c->flags;
        item.memory->info.bytes = o.c->bytes;
        set_written(item.memory->info, o.content.bytes != 0);
        written.insert(item, only_read(o.c->flags, nullptr));
    }
    void describe(registry_item& item, const op_create_arena& o) {
        item.memory->info.bytes = o.c->bytes;
        set_written(item.memory->info, false);
        written.insert(item, false);
        written.insert_addressed(o.c->id);
    }
    // It has content from the beginning, and kernels may have changed it before anybody named it.
    void describe(registry_item& item, const op_create_variable& o) {
        item.memory->info.bytes = o.c->bytes;
        set_written(item.memory->info, true);
        written.insert(item, false);
        written.insert_addressed(o.c->id);
        unanswered_variables.push_back(request->token);
    }
    // Launches write what a surface shows without naming it.
    void describe(registry_item&, const op_create_texture& o) {
        if (o.c->kind == VGPU_TEXTURE_SURFACE)
            written.insert_shown(o.c->memory);
    }
    void describe(registry_item& item, const op_create_sub_buffer& o) {
        item.memory->info.flags = o.c->flags;
        item.memory->info.bytes = o.c->bytes;
        written.insert(item, only_read(o.c->flags, registry.find(o.c->buffer)));
    }
    void describe(registry_item& item, const op_create_image& o) {
        item.memory->info.flags = o.c->flags;
        item.memory->info.image = without_content(o);
        set_written(item.memory->info, o.content.bytes != 0);
        written.insert(item, only_read(o.c->flags, o.c->buffer != 0 ? registry.find(o.c->buffer) : nullptr));
    }
    void describe(registry_item&, const auto&) {}

    static void set_written(memory_info& info, bool written) {
        info.dirty_for_sync = info.dirty_for_digest = written;
    }
    // The content of memory comes with a state transfer.
    static vgpu_cmd_create_buffer without_content(const op_create_buffer& o) {
        vgpu_cmd_create_buffer c = *o.c;
        c.cmd.bytes = sizeof(c);
        c.content = {0, VGPU_PAYLOAD_NONE, 0};
        return c;
    }
    // An image without content must not say how its content lies in memory.
    static vgpu_cmd_create_image without_content(const op_create_image& o) {
        vgpu_cmd_create_image c = *o.c;
        c.cmd.bytes = sizeof(c);
        c.content = {0, VGPU_PAYLOAD_NONE, 0};
        if (c.buffer == 0)
            c.row_pitch = c.slice_pitch = 0;
        return c;
    }
    static const auto& without_content(const auto& o) { return *o.c; }

    // The call as an entry of its own.
    template <class Op>
    void call(const Op& o, std::span<const std::byte> command) {
        if (mode != mirror_mode::off)
            entry.finish(*out);
        if constexpr (std::is_same_v<Op, op_create_program>) {
            const bool in_table = o.content.index < VGPU_PAYLOAD_NONE;
            shared_bytes content;
            if (in_table) {
                if (o.content.bytes > budget.limit || budget.used > budget.limit - o.content.bytes)
                    return fail(over_budget);
                content = gathered((*payloads)(o.content.index).pieces);
            }
            if (!made(o, content))
                return fail(over_budget);
            if (in_table && mode != mirror_mode::off)
                return finish_call(command, &o.c->content, o.content.bytes, {{std::span(*content)}, content});
        } else if constexpr (std::is_same_v<Op, op_create_buffer> || std::is_same_v<Op, op_create_image>) {
            if (!made(o))
                return fail(over_budget);
            if (mode == mirror_mode::on && o.content.index < VGPU_PAYLOAD_NONE)
                return finish_call(command, &o.c->content, o.content.bytes, (*payloads)(o.content.index));
            if (mode == mirror_mode::syncing && o.content.bytes != 0) {
                const registry_item* item = registry.find(o.c->id);
                entry.command(std::as_bytes(std::span(item->command)));
                entry.finish(*out, call_flags(header_of_command(command).opcode));
                return;
            }
        } else if constexpr (!std::is_same_v<Op, op_create_user_event>) {
            if (!made(o))
                return fail(over_budget);
        }
        if (mode != mirror_mode::off) {
            entry.command(command);
            entry.finish(*out, call_flags(header_of_command(command).opcode));
        }
    }

    void finish_call(std::span<const std::byte> command, const vgpu_payload_ref* reference,
                     std::uint64_t bytes, byte_pieces content) {
        const auto at = reinterpret_cast<const std::byte*>(reference) - command.data();
        entry.command_with_payload(command, static_cast<std::size_t>(at), bytes, std::move(content));
        entry.finish(*out, call_flags(header_of_command(command).opcode));
    }

    void dispatch(const op& any, std::span<const std::byte> command) {
        std::visit(
            [&](const auto& o) {
                using type = std::decay_t<decltype(o)>;
                if constexpr (requires { o.c->enqueue; }) {
                    enqueued(o, command);
                } else if constexpr (std::is_same_v<type, op_destroy>) {
                    if (o.c->kind == VGPU_OBJECT_MEMORY)
                        written.erase(o.c->id);
                    else if (o.c->kind == VGPU_OBJECT_QUEUE)
                        order.queue_gone(o.c->id);
                    registry.destroy(o.c->id);
                    if (mode != mirror_mode::off)
                        entry.command(command);
                } else if constexpr (std::is_same_v<type, op_set_user_event>) {
                    if (mode != mirror_mode::off)
                        entry.command(command);
                } else if constexpr (!commands::is_query<commands::row_of<type>> &&
                                     !std::is_same_v<type, op_flush> && !std::is_same_v<type, op_await> &&
                                     !std::is_same_v<type, op_built>) {
                    call(o, command);
                }
            },
            any);
    }
};

session_shadow::session_shadow(registry_budget* budget, std::uint64_t hash_seed,
                               const std::vector<std::string>* named)
    : impl_(std::make_unique<impl>(budget, hash_seed, named)) {}
session_shadow::~session_shadow() = default;

void session_shadow::rewrite(const worker::request_view& request, mirror_mode mode,
                             const payload_reader& payloads, std::vector<log_entry>& out,
                             const rewrite_hints& hints, const payload_note& reads_into) {
    impl& self = *impl_;
    if (self.failure)
        return;
    self.request = &request;
    self.follow_mode(mode);
    self.payloads = &payloads;
    self.reads_into = &reads_into;
    self.out = &out;
    // What a command writes from has to be found in its entry's table.
    const bool packs = hints.pack && mode == mirror_mode::on &&
                       std::all_of(request.payloads.begin(), request.payloads.end(),
                                   [](const kagemusha_payload& p) { return p.writable != 0; });
    self.entry.begin(request.stream.size(), packs);
    if (self.order.tracks())
        self.await_what_is_known(request.stream, hints.repeats);
    self.written.begin_request();
    self.stretches.clear();

    codec::stream_decoder decoder(request.stream, {request.payloads});
    const std::span words(reinterpret_cast<const std::uint64_t*>(request.stream.data()),
                          request.stream.size() / sizeof(std::uint64_t));
    // During a state transfer each launch becomes something else. And what a launch repeats may have run
    // before a named kernel, so its memory may need a mark that the first one did not set.
    core::launch_runs repeats =
        mode == mirror_mode::syncing || self.written.has_named() ? core::launch_runs{} : hints.repeats;
    std::uint32_t at = 0;
    std::uint32_t kept_from = 0; // commands from here to `at` cross as they are
    std::uint32_t kept = 0;
    const auto copy_kept = [&] {
        if (kept == 0)
            return;
        if (packs)
            self.crosses_from(kept_from / word_bytes);
        self.entry.commands(request.stream.subspan(kept_from, at - kept_from), std::exchange(kept, 0));
    };
    codec::op o;
    while (at < request.stream.size()) {
        if (!repeats.empty() && at == repeats.front().at * word_bytes) {
            const core::launch_run& run = repeats.front();
            const auto commands = words.subspan(run.at, std::size_t{run.words} * run.count);
            if (mode == mirror_mode::on)
                self.cross_unread(run, commands);
            if (packs) {
                copy_kept();
                self.crosses_from(run.at);
                self.entry.launches(run, self.place_of(run.at - run.back), commands);
            }
            decoder.skip(static_cast<std::uint32_t>(commands.size_bytes()));
            at += static_cast<std::uint32_t>(commands.size_bytes());
            if (packs || mode == mirror_mode::off)
                kept_from = at;
            else
                kept += run.count;
            repeats = repeats.subspan(1);
            continue;
        }
        const auto& header = *reinterpret_cast<const vgpu_cmd*>(request.stream.data() + at);
        const std::uint32_t bytes = command_bytes(header);
        if (self.crosses_unread(header)) {
            decoder.skip();
            at += bytes;
            ++kept;
            continue;
        }
        copy_kept();
        const auto command = request.stream.subspan(at, bytes);
        at += bytes;
        kept_from = at;
        if (mode == mirror_mode::off && header.opcode >= VGPU_FIRST_ENQUEUE) {
            decoder.skip();
            continue;
        }
        [[maybe_unused]] const codec::decode_status status = decoder.next(o);
        assert(status == codec::decode_status::op); // the device has validated it
        self.dispatch(o, command);
        if (self.failure) {
            out.clear();
            return;
        }
    }
    copy_kept();
    if (mode != mirror_mode::off)
        self.entry.finish(out);
}

void session_shadow::on_completion(guest_id event, bool failed) {
    impl_->order.completed(event, failed);
}

void session_shadow::on_done(std::uint64_t token, std::int32_t result) {
    if (const guest_id memory = impl_->registry.done(token, result))
        impl_->written.erase(memory);
    if (std::erase(impl_->unanswered_variables, token) != 0 && result != cl_success)
        impl_->fail(variable_out_of_reach);
}

std::vector<guest_id> session_shadow::contexts() const {
    return impl_->registry.contexts();
}

bool session_shadow::queue_is_in_order(guest_id queue) const {
    const registry_item* item = impl_->registry.find(queue);
    return item && item->opcode == VGPU_CMD_CREATE_QUEUE && !is_out_of_order(*item);
}

std::vector<guest_id> session_shadow::queues(guest_id context) const {
    return impl_->registry.queues(context);
}

void session_shadow::for_each_memory(const std::function<void(memory_info&)>& f) {
    impl_->registry.for_each_memory(f);
}

memory_info* session_shadow::find_memory(guest_id id) {
    return impl_->registry.find_memory(id);
}

std::uint64_t session_shadow::queues_created() const {
    return impl_->registry.queues_created();
}

bool session_shadow::memory_is_pending() const {
    return impl_->registry.memory_is_pending();
}

bool session_shadow::launched_named() const {
    return impl_->written.launched_named();
}

void session_shadow::note_shipped() {
    if (!impl_->written.in_doubt())
        return;
    bool left = false;
    for_each_memory([&](const memory_info& m) { left |= m.computed; });
    impl_->written.set_in_doubt(left);
}

std::uint64_t session_shadow::registry_bytes() const {
    return impl_->registry.bytes();
}

const char* session_shadow::failure() const {
    return impl_->failure;
}

void session_shadow::restore(const core::object_table& objects, std::vector<log_entry>& out,
                             std::vector<restored_call>& calls) const {
    restore_all(impl_->registry, objects, out, calls);
}

} // namespace kagemusha::mirror
