// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/shadow/mirror_file.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "codec/cl_numbers.hpp"
#include "codec/commands/table.hpp"
#include "codec/decode.hpp"
#include "mirror/log/entry_builder.hpp"
#include "mirror/log/packed_stream.hpp"
#include "mirror/shadow/host_order.hpp"
#include "mirror/shadow/mark_table.hpp"
#include "mirror/shadow/mirror_catalog.hpp"

namespace kagemusha::mirror {

namespace {

using namespace codec;

constexpr std::uint32_t word_bytes = sizeof(std::uint64_t);

constexpr const char* over_budget =
    "the guest has more objects or program sources than the host remembers for a standby "
    "(max_catalog_bytes); the file is mirrored no more until it is closed";

constexpr const char* variable_out_of_reach = "a CUDA module of the guest has a variable that the GPU's "
                                              "driver gives no address of, so a standby can't get its "
                                              "content; the file is mirrored no more until it is closed";

template <class Command>
std::span<const std::uint64_t> words_of(const Command* c) {
    return {reinterpret_cast<const std::uint64_t*>(c), c->cmd.bytes / 8};
}

shared_bytes copy_of(const byte_pieces& pieces) {
    std::size_t bytes = 0;
    for (const auto& piece : pieces.pieces) {
        bytes += piece.size();
    }
    auto copy = std::make_shared<std::vector<std::byte>>();
    copy->reserve(bytes);
    for (const auto& piece : pieces.pieces) {
        copy->insert(copy->end(), piece.begin(), piece.end());
    }
    return copy;
}

const vgpu_cmd& header_of_command(std::span<const std::byte> command) {
    return *reinterpret_cast<const vgpu_cmd*>(command.data());
}

// Whether a kernel that gets the object as an argument may not write it. A sub-buffer without access flags
// has those of its buffer.
bool only_read(std::uint64_t flags, const catalog_item* parent) {
    if ((flags & cl_mem_device_access_flags) == 0 && parent) {
        return parent->memory->kernels_only_read;
    }
    return (flags & cl_mem_read_only) != 0;
}

} // namespace

struct mirror_file::impl {
    impl(catalog_budget* shared, std::uint64_t hash_seed, const std::vector<std::string>* named)
        : budget(shared ? *shared : own_budget)
        , catalog(hash_seed, budget)
        , marks(hash_seed)
        , order(hash_seed)
        , names(named ? *named : no_names) {}

    catalog_budget own_budget;
    catalog_budget& budget;
    mirror_catalog catalog;
    mark_table marks; // every memory object that the guest can name
    const char* failure = nullptr;
    // Those of them that have an address which kernels may know: CUDA's arenas and variables, and images
    // that a surface shows.
    std::vector<guest_id> addressed;
    std::vector<std::uint64_t> unanswered_variables; // tokens of calls that make some
    host_order order;
    std::vector<guest_id> awaited;    // a member so that its memory is used again
    std::vector<catalog_item*> needs; // of a call: the same

    // Kernels that give something else each time, if they were named: whatever kernels and copies write from
    // the launch of one on may depend on it, until all of that was shipped.
    const std::vector<std::string> no_names;
    const std::vector<std::string>& names;
    bool has_named = false; // the guest has made one, ever
    bool launched = false;  // and run it
    bool in_doubt = false;

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
    // Arguments of its launches whose marks are set: most launches of a request name the same few objects.
    std::array<guest_id, 16> seen_ids{};
    bool seen_addressed = false;    // the same for all of those
    std::vector<stretch> stretches; // while the entry is packed

    void fail(const char* why) {
        failure = failure ? failure : why;
        catalog.clear();
        marks.clear();
        addressed.clear();
        unanswered_variables.clear();
        order.stop();
    }

    // ---- what the guest's host code waited for

    void follow_mode(mirror_mode next) {
        mode = next;
        if ((mode == mirror_mode::on) == order.running()) {
            return;
        }
        if (mode != mirror_mode::on) {
            return order.stop();
        }
        order.start();
        for (const catalog_item* i = catalog.first_of(VGPU_OBJECT_QUEUE); i; i = i->kind_next) {
            if (i->live) {
                order.queue_made(i->id, is_out_of_order(*i));
            }
        }
    }
    static bool is_out_of_order(const catalog_item& queue) {
        const auto& c = *reinterpret_cast<const vgpu_cmd_create_queue*>(queue.command.data());
        return (c.properties & cl_queue_out_of_order) != 0;
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
        if (!any || !order.holds(one_queue ? queue : 0)) {
            return;
        }
        awaited.clear();
        order.take(one_queue ? queue : 0, awaited);
        entry.await(awaited);
    }

    // ---- dirty marks

    void mark(guest_id id) {
        if (memory_info* info = marks.find(id).info) {
            info->dirty_for_sync = info->dirty_for_digest = true;
        }
    }

    // By a kernel, or from memory that may have come from one.
    void mark_computed(memory_info& info) const {
        info.dirty_for_sync = info.dirty_for_digest = true;
        info.computed = info.computed || in_doubt || names.empty();
    }
    void mark_copy(guest_id id) {
        if (memory_info* info = marks.find(id).info) {
            mark_computed(*info);
        }
    }

    void note_launch(const vgpu_cmd_launch& c) {
        if (!has_named || in_doubt) {
            return;
        }
        if (const catalog_item* kernel = catalog.find(c.kernel); kernel && kernel->named) {
            launched = in_doubt = true;
            forget_seen(); // what has a mark may need the other one now
        }
    }

    void forget_seen() {
        seen_ids.fill(0);
        seen_addressed = false;
    }

    // The memory of a buffer that was destroyed can be named through what was made of it only.
    static void hand_marks_down(catalog_item& root) {
        memory_info& info = root.memory->info;
        for (catalog_item* alias : root.memory->aliases) {
            alias->memory->info.dirty_for_sync |= info.dirty_for_sync;
            alias->memory->info.dirty_for_digest |= info.dirty_for_digest;
            alias->memory->info.computed |= info.computed;
            alias->memory->info.repaired |= info.repaired;
        }
        info.dirty_for_sync = info.dirty_for_digest = info.computed = info.repaired = false;
    }

    // By the row of the command. What it copies from other memory may have come from a kernel.
    template <class Op>
    void written_by(const Op& o) {
        commands::with_row(o, [&]<class Row>() {
            commands::for_each_written<Row>(
                o, [&](guest_id id) { commands::reads_memory<Row> ? mark_copy(id) : mark(id); });
        });
    }
    // By hand: a flag says whether it does, and what kernels write is among their arguments.
    void written_by(const op_migrate& o) {
        if ((o.c->flags & cl_migrate_content_undefined) != 0) {
            for (const guest_id id : o.objects) {
                mark(id);
            }
        }
    }
    void written_by(const op_launch& o) {
        note_launch(*o.c);
        written_by_address();
        written_by(o.arguments);
    }
    void written_by(const argument_list& arguments) {
        arguments.for_each([this](const launch_argument& a) {
            if (a.kind == VGPU_ARGUMENT_MEMORY && a.object != 0) {
                written_by_launch(a.object);
            }
        });
    }
    // Kernels may write wherever they know an address.
    void written_by_address() {
        if (std::exchange(seen_addressed, true)) {
            return;
        }
        for (const guest_id id : addressed) {
            if (memory_info* info = marks.find(id).info) {
                mark_computed(*info);
            }
        }
    }
    void written_by_launch(const vgpu_cmd_launch& c) {
        written_by_address();
        const auto* word = reinterpret_cast<const std::uint64_t*>(&c + 1) + c.enqueue.wait_count;
        for (std::uint32_t i = 0; i < c.argument_count; ++i) {
            const auto& a = *reinterpret_cast<const vgpu_argument*>(word);
            static_assert(sizeof(a) == 2 * sizeof(*word));
            word += 2;
            if (a.kind == VGPU_ARGUMENT_MEMORY) {
                if (*word != 0) {
                    written_by_launch(*word);
                }
                ++word;
            } else if (a.kind == VGPU_ARGUMENT_BYTES) {
                word += rounded_up(a.bytes) / sizeof(*word);
            } else if (a.kind == VGPU_ARGUMENT_SAMPLER) {
                ++word;
            }
        }
    }
    void written_by_launch(guest_id id) {
        guest_id& seen = seen_ids[id % seen_ids.size()];
        if (seen == id) {
            return;
        }
        seen = id;
        const mark_table::target t = marks.find(id);
        if (t.info && !t.kernels_only_read) {
            mark_computed(*t.info);
        }
    }

    // ---- enqueued commands

    void note_event(const vgpu_enqueue& enqueue) {
        if (order.tracks()) {
            order.enqueued(enqueue.queue, enqueue.event);
        }
    }

    // What most streams consist of: it crosses as it is, and what must be known of it lies in plain sight.
    bool crosses_unread(const vgpu_cmd& header) {
        if (mode != mirror_mode::on) {
            return false;
        }
        switch (header.opcode) {
        case VGPU_CMD_LAUNCH: {
            const auto& c = reinterpret_cast<const vgpu_cmd_launch&>(header);
            note_event(c.enqueue);
            note_launch(c);
            written_by_launch(c);
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
        if (!order.tracks() && !run.objects.any()) {
            return;
        }
        for (; !commands.empty(); commands = commands.subspan(run.words)) {
            note_event(reinterpret_cast<const vgpu_cmd_launch*>(commands.data())->enqueue);
            run.objects.for_each([&](std::size_t word) {
                if (commands[word] != 0) {
                    written_by_launch(commands[word]);
                }
            });
        }
    }

    // ---- where the request's commands are in the entry, as far as they cross as they are

    void crosses_from(std::uint32_t from) {
        const auto to = static_cast<std::uint32_t>(entry.stream_bytes() / word_bytes);
        if (stretches.empty() || to - from != stretches.back().to - stretches.back().from) {
            stretches.push_back({from, to});
        }
    }
    std::uint32_t place_of(std::uint32_t word) const {
        const auto behind = std::upper_bound(stretches.begin(), stretches.end(), word,
                                             [](std::uint32_t w, const stretch& s) { return w < s.from; });
        assert(behind != stretches.begin());
        return behind[-1].to + (word - behind[-1].from);
    }

    template <class Op>
    void enqueued(const Op& o, std::span<const std::byte> command) {
        written_by(o);
        note_event(o.c->enqueue);
        constexpr bool is_sync = std::is_same_v<Op, op_sync>;
        bool crosses = is_sync || mode == mirror_mode::on || std::is_same_v<Op, op_migrate>;
        if constexpr (requires { o.write(); }) {
            crosses = crosses && o.write();
        }
        if constexpr (requires { o.write(); }) {
            if (!o.write() && *reads_into && o.data.index < VGPU_PAYLOAD_NONE) {
                (*reads_into)(o.data.index);
            }
        }
        if (!crosses) {
            // A read, or a write whose outcome comes with the state transfer. Who waits for its event, or
            // comes behind it in its queue, still waits for what it waited for.
            if (o.c->enqueue.event != 0 || o.c->enqueue.wait_count != 0) {
                entry.marker(o.c->enqueue, o.waits);
            }
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

    // ---- calls. What each makes or changes goes into the catalog, by its row.

    // Null if there is no room.
    template <class Op>
    catalog_item* made(const Op& o, shared_bytes content = {}) {
        using row = commands::row_of<Op>;
        needs.clear();
        catalog_item* changed = nullptr;
        const auto look = [&]<class Part>(const Part& part) {
            if constexpr (requires { part.how; }) {
                catalog_item* const item = catalog.find((*o.c).*part.id);
                if (part.how == commands::access::change) {
                    changed = item;
                } else {
                    needs.push_back(item);
                }
            } else if constexpr (requires {
                                     part.count;
                                     part.kind;
                                 }) {
                for (const guest_id id : o.*part.view) {
                    needs.push_back(catalog.find(id));
                }
            } else if constexpr (requires { part.id; } && !commands::is_creates<Part>) { // may use
                if (const guest_id id = (*o.c).*part.id) {
                    needs.push_back(catalog.find(id));
                }
            }
        };
        std::apply([&](const auto&... part) { (look(part), ...); }, row::parts);
        const auto& c = without_content(o);
        catalog_item* item = nullptr;
        if constexpr (commands::creates_object<row>) {
            item = catalog.create(o.c->id, commands::created_kind<row>, words_of(&c), std::move(content),
                                  needs, request->token);
        } else {
            item = catalog.change(*changed, words_of(&c), needs, request->token);
        }
        if (item) {
            describe(*item, o);
        }
        return item;
    }

    // What the mirror needs to know about an object beside the command that made it.
    void describe(catalog_item&, const op_create_queue& o) {
        order.queue_made(o.c->id, (o.c->properties & cl_queue_out_of_order) != 0);
    }
    void describe(catalog_item& item, const op_create_kernel& o) {
        if (std::find(names.begin(), names.end(), o.name) != names.end()) {
            item.named = has_named = true;
        }
    }
    void describe(catalog_item& item, const op_create_buffer& o) {
        item.memory->info.flags = o.c->flags;
        item.memory->info.bytes = o.c->bytes;
        set_written(item.memory->info, o.content.bytes != 0);
        markable(item, only_read(o.c->flags, nullptr));
    }
    void describe(catalog_item& item, const op_create_arena& o) {
        item.memory->info.bytes = o.c->bytes;
        set_written(item.memory->info, false);
        markable(item, false);
        addressed.push_back(o.c->id);
        seen_addressed = false;
    }
    // It has content from the beginning, and kernels may have changed it before anybody named it.
    void describe(catalog_item& item, const op_create_variable& o) {
        item.memory->info.bytes = o.c->bytes;
        set_written(item.memory->info, true);
        markable(item, false);
        addressed.push_back(o.c->id);
        unanswered_variables.push_back(request->token);
        seen_addressed = false;
    }
    // Launches write what a surface shows without naming it.
    void describe(catalog_item&, const op_create_texture& o) {
        if (o.c->kind == VGPU_TEXTURE_SURFACE &&
            std::find(addressed.begin(), addressed.end(), o.c->memory) == addressed.end()) {
            addressed.push_back(o.c->memory);
            seen_addressed = false;
        }
    }
    void describe(catalog_item& item, const op_create_sub_buffer& o) {
        item.memory->info.flags = o.c->flags;
        item.memory->info.bytes = o.c->bytes;
        markable(item, only_read(o.c->flags, catalog.find(o.c->buffer)));
    }
    void describe(catalog_item& item, const op_create_image& o) {
        item.memory->info.flags = o.c->flags;
        item.memory->info.image = without_content(o);
        set_written(item.memory->info, o.content.bytes != 0);
        markable(item, only_read(o.c->flags, o.c->buffer != 0 ? catalog.find(o.c->buffer) : nullptr));
    }
    void describe(catalog_item&, const auto&) {}

    // Memory of the guest's, whose marks can be set from here on.
    void markable(catalog_item& item, bool kernels_only_read) {
        item.memory->kernels_only_read = kernels_only_read;
        marks.insert(item.id, {&item.memory->root->memory->info, kernels_only_read});
    }

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
        if (c.buffer == 0) {
            c.row_pitch = c.slice_pitch = 0;
        }
        return c;
    }
    static const auto& without_content(const auto& o) { return *o.c; }

    // The call as an entry of its own.
    template <class Op>
    void call(const Op& o, std::span<const std::byte> command) {
        if (mode != mirror_mode::off) {
            entry.finish(*out);
        }
        if constexpr (std::is_same_v<Op, op_create_program>) {
            const bool in_table = o.content.index < VGPU_PAYLOAD_NONE;
            shared_bytes content;
            if (in_table) {
                if (o.content.bytes > budget.limit || budget.used > budget.limit - o.content.bytes) {
                    return fail(over_budget);
                }
                content = copy_of((*payloads)(o.content.index));
            }
            if (!made(o, content)) {
                return fail(over_budget);
            }
            if (in_table && mode != mirror_mode::off) {
                return finish_call(command, &o.c->content, o.content.bytes, {{std::span(*content)}, content});
            }
        } else if constexpr (std::is_same_v<Op, op_create_buffer> || std::is_same_v<Op, op_create_image>) {
            if (!made(o)) {
                return fail(over_budget);
            }
            if (mode == mirror_mode::on && o.content.index < VGPU_PAYLOAD_NONE) {
                return finish_call(command, &o.c->content, o.content.bytes, (*payloads)(o.content.index));
            }
            if (mode == mirror_mode::syncing && o.content.bytes != 0) {
                const catalog_item* item = catalog.find(o.c->id);
                entry.command(std::as_bytes(std::span(item->command)));
                entry.finish(*out, call_flags(header_of_command(command).opcode));
                return;
            }
        } else if constexpr (!std::is_same_v<Op, op_create_user_event>) {
            if (!made(o)) {
                return fail(over_budget);
            }
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
                    if (o.c->kind == VGPU_OBJECT_MEMORY) {
                        marks.erase(o.c->id);
                        std::erase(addressed, o.c->id);
                    } else if (o.c->kind == VGPU_OBJECT_QUEUE) {
                        order.queue_gone(o.c->id);
                    }
                    catalog.destroy(o.c->id);
                    if (mode != mirror_mode::off) {
                        entry.command(command);
                    }
                } else if constexpr (std::is_same_v<type, op_set_user_event>) {
                    if (mode != mirror_mode::off) {
                        entry.command(command);
                    }
                } else if constexpr (!commands::is_query<commands::row_of<type>> &&
                                     !std::is_same_v<type, op_flush> && !std::is_same_v<type, op_await> &&
                                     !std::is_same_v<type, op_built>) {
                    call(o, command);
                }
            },
            any);
    }
};

mirror_file::mirror_file(catalog_budget* budget, std::uint64_t hash_seed,
                         const std::vector<std::string>* named)
    : impl_(std::make_unique<impl>(budget, hash_seed, named)) {}
mirror_file::~mirror_file() = default;

void mirror_file::make_over(const worker::request_view& request, mirror_mode mode,
                            const payload_reader& payloads, std::vector<log_entry>& out,
                            const make_over_hints& hints, const payload_note& reads_into) {
    impl& self = *impl_;
    if (self.failure) {
        return;
    }
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
    if (self.order.tracks()) {
        self.await_what_is_known(request.stream, hints.repeats);
    }
    self.forget_seen();
    self.stretches.clear();

    codec::stream_decoder decoder(request.stream, {request.payloads});
    const std::span words(reinterpret_cast<const std::uint64_t*>(request.stream.data()),
                          request.stream.size() / sizeof(std::uint64_t));
    // During a state transfer each launch becomes something else. And what a launch repeats may have run
    // before a named kernel, so its memory may need a mark that the first one did not set.
    core::launch_runs repeats =
        mode == mirror_mode::syncing || self.has_named ? core::launch_runs{} : hints.repeats;
    std::uint32_t at = 0;
    std::uint32_t kept_from = 0; // commands from here to `at` cross as they are
    std::uint32_t kept = 0;
    const auto copy_kept = [&] {
        if (kept == 0) {
            return;
        }
        if (packs) {
            self.crosses_from(kept_from / word_bytes);
        }
        self.entry.commands(request.stream.subspan(kept_from, at - kept_from), std::exchange(kept, 0));
    };
    codec::op o;
    while (at < request.stream.size()) {
        if (!repeats.empty() && at == repeats.front().at * word_bytes) {
            const core::launch_run& run = repeats.front();
            const auto commands = words.subspan(run.at, std::size_t{run.words} * run.count);
            if (mode == mirror_mode::on) {
                self.cross_unread(run, commands);
            }
            if (packs) {
                copy_kept();
                self.crosses_from(run.at);
                self.entry.launches(run, self.place_of(run.at - run.back), commands);
            }
            decoder.skip(static_cast<std::uint32_t>(commands.size_bytes()));
            at += static_cast<std::uint32_t>(commands.size_bytes());
            if (packs || mode == mirror_mode::off) {
                kept_from = at;
            } else {
                kept += run.count;
            }
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
    if (mode != mirror_mode::off) {
        self.entry.finish(out);
    }
}

void mirror_file::on_completion(guest_id event, bool failed) {
    impl_->order.completed(event, failed);
}

void mirror_file::on_done(std::uint64_t token, std::int32_t result) {
    if (const guest_id memory = impl_->catalog.done(token, result)) {
        impl_->marks.erase(memory);
        std::erase(impl_->addressed, memory);
    }
    if (std::erase(impl_->unanswered_variables, token) != 0 && result != cl_success) {
        impl_->fail(variable_out_of_reach);
    }
}

std::vector<guest_id> mirror_file::contexts() const {
    std::vector<guest_id> out;
    for (const catalog_item* i = impl_->catalog.first_of(VGPU_OBJECT_CONTEXT); i; i = i->kind_next) {
        if (i->live && !i->pending) {
            out.push_back(i->id);
        }
    }
    return out;
}

bool mirror_file::queue_is_in_order(guest_id queue) const {
    const catalog_item* item = impl_->catalog.find(queue);
    return item && item->opcode == VGPU_CMD_CREATE_QUEUE && !impl::is_out_of_order(*item);
}

std::vector<guest_id> mirror_file::queues(guest_id context) const {
    std::vector<guest_id> out;
    const catalog_item* owner = impl_->catalog.find(context);
    for (const catalog_item* i = impl_->catalog.first_of(VGPU_OBJECT_QUEUE); i && owner; i = i->kind_next) {
        if (i->live && !i->pending && i->needs.front() == owner) {
            out.push_back(i->id);
        }
    }
    return out;
}

namespace {

// The context that a memory object was made in, if the guest can still name it.
guest_id live_context(const catalog_item* item) {
    while (item && item->kind != VGPU_OBJECT_CONTEXT) {
        item = item->needs.front();
    }
    return item && item->live ? item->id : 0;
}

memory_info& told_of(catalog_item& item) {
    item.memory->info.id = item.id;
    item.memory->info.context = live_context(&item);
    item.memory->info.unconfirmed = item.pending;
    return item.memory->info;
}

} // namespace

void mirror_file::for_each_memory(const std::function<void(memory_info&)>& f) {
    for (catalog_item* i = impl_->catalog.first_of(VGPU_OBJECT_MEMORY); i; i = i->kind_next) {
        catalog_item& root = *i->memory->root;
        if (&root == i && !i->live) {
            impl::hand_marks_down(root);
        }
        if (i->live && (&root == i || !root.live)) {
            f(told_of(*i));
        }
    }
}

memory_info* mirror_file::find_memory(guest_id id) {
    catalog_item* item = impl_->catalog.find(id);
    if (!item || !item->memory) {
        return nullptr;
    }
    catalog_item& root = *item->memory->root;
    if (root.live) {
        return &told_of(root);
    }
    impl::hand_marks_down(root);
    return &told_of(*item);
}

std::uint64_t mirror_file::queues_created() const {
    return impl_->catalog.queues_created();
}

bool mirror_file::memory_is_pending() const {
    return impl_->catalog.memory_is_pending();
}

bool mirror_file::launched_named() const {
    return impl_->launched;
}

void mirror_file::note_shipped() {
    if (!impl_->in_doubt) {
        return;
    }
    bool left = false;
    for_each_memory([&](const memory_info& m) { left |= m.computed; });
    impl_->in_doubt = left;
}

std::uint64_t mirror_file::catalog_bytes() const {
    return impl_->catalog.bytes();
}

const char* mirror_file::failure() const {
    return impl_->failure;
}

void mirror_file::recreate(const core::object_table& objects, std::vector<log_entry>& out,
                           std::vector<recreated_call>& calls) const {
    recreate_all(impl_->catalog, objects, out, calls);
}

} // namespace kagemusha::mirror
