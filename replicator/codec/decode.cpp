// SPDX-License-Identifier: GPL-2.0-or-later
// What the parts of a row mean to the decoder: one overload for each kind of part. A rule that is broken ends
// the walk with a static sentence, so that a hostile stream costs no allocation.
//
// Written by hand are the parts whose bytes are not fields: a launch's arguments and all of a WRITE_RUNS.
#include "codec/decode.hpp"

#include <algorithm>
#include <cassert>
#include <functional>
#include <tuple>

#include "base/checked.hpp"
#include "codec/command_reader.hpp"
#include "codec/commands/table.hpp"
#include "codec/launch_size.hpp"
#include "codec/rect.hpp"
#include "codec/stream_walk.hpp"

namespace kagemusha::codec {

namespace {

using namespace commands;
using base::checked_u64;
using reader = command_reader;

// A field: a member of the fixed structure, or a function of it. By reference, because some are arrays.
template <class Wire, class Field>
decltype(auto) get(const Wire& c, const Field& field) {
    return std::invoke(field, c);
}

// ---- ids

template <class Op, class... A>
bool read(reader& r, Op& o, const creates_part<A...>& p) {
    return r.id(get(*o.c, p.id));
}
template <class Op, class... A>
bool read(reader& r, Op& o, const uses_part<A...>& p) {
    return r.id(get(*o.c, p.id));
}
template <class Op, class... A>
bool read(reader&, Op&, const may_use_part<A...>&) {
    return true;
}
template <class Op, class... A>
bool read(reader& r, Op& o, const destroys_part<A...>& p) {
    return r.id(get(*o.c, p.id));
}

// ---- what is checked by itself

template <class Op, class... A>
bool read(reader& r, Op& o, const flags_part<A...>& p) {
    return r.flags(get(*o.c, p.flags), p.known);
}
template <class Op, class... A>
bool read(reader& r, Op& o, const pad_part<A...>& p) {
    return r.pad(get(*o.c, p.pad));
}
template <class Op, class... A>
bool read(reader& r, Op& o, const between_part<A...>& p) {
    const std::uint64_t value = get(*o.c, p.value);
    return r.require(value >= p.first && value <= p.last, p.sentence);
}
template <class Op, class... A>
bool read(reader& r, Op& o, const rule_part<A...>& p) {
    return r.require(p.holds(*o.c), p.sentence);
}
template <class Op, class... A>
bool read(reader& r, Op& o, const rules_part<A...>& p) {
    const char* why = p.broken(*o.c);
    return !why || r.refuse(why);
}
// A row may have two of those with always_inline, which a compiler would make one function of that reads the
// offsets of the fields from memory.
template <class Op, class... A>
[[gnu::always_inline]] inline bool read(reader& r, Op& o, const range_part<A...>& p) {
    return r.require((checked_u64(get(*o.c, p.offset)) + get(*o.c, p.bytes)).ok(), p.sentence);
}

bool sides_are_given(reader& r, const wire_triple& region) {
    return r.require(region[0] != 0 && region[1] != 0 && region[2] != 0, "a region has a side of 0");
}
template <class Op, class... A>
bool read(reader& r, Op& o, const region_part<A...>& p) {
    return sides_are_given(r, get(*o.c, p.region));
}
template <class Op, class... A>
[[gnu::always_inline]] inline bool read(reader& r, Op& o, const pitches_part<A...>& p) {
    const wire_triple& region = get(*o.c, p.region);
    const std::uint64_t row = get(*o.c, p.row);
    return r.require(row >= region[0], "a row pitch is shorter than a row") &&
           r.require((checked_u64(region[1]) * row).within(get(*o.c, p.slice)),
                     "a slice pitch is shorter than a slice");
}
template <class Op, class... A>
[[gnu::always_inline]] inline bool read(reader& r, Op& o, const rect_part<A...>& p) {
    return r.require(
        rect_end(get(*o.c, p.origin), get(*o.c, p.region), get(*o.c, p.row), get(*o.c, p.slice)).ok(),
        "a rectangle's end overflows");
}
template <class Op, class... A>
[[gnu::always_inline]] inline bool read(reader& r, Op& o, const box_part<A...>& p) {
    const wire_triple& origin = get(*o.c, p.origin);
    const wire_triple& region = get(*o.c, p.region);
    return sides_are_given(r, region) &&
           r.require((checked_u64(origin[0]) + region[0]).ok() && (checked_u64(origin[1]) + region[1]).ok() &&
                         (checked_u64(origin[2]) + region[2]).ok(),
                     "origin + region of an image overflow");
}

// ---- what follows the fixed structure

template <class Op, class... A>
bool read(reader& r, Op& o, const ids_part<A...>& p) {
    return r.ids(get(*o.c, p.count), o.*p.view);
}
template <class Op, class... A>
bool read(reader& r, Op& o, const text_part<A...>& p) {
    return r.c_text(get(*o.c, p.bytes), p.limit, o.*p.view);
}
template <class Op, class... A>
bool read(reader& r, Op& o, const names_part<A...>& p) {
    std::string_view& names = o.*p.view;
    if (!r.text(get(*o.c, p.bytes), p.limit, names))
        return false;
    const auto ends = static_cast<std::uint64_t>(std::count(names.begin(), names.end(), '\0'));
    return r.require(ends == get(*o.c, p.count) && (names.empty() || names.back() == '\0'), p.sentence);
}
template <class Op, class... A>
bool read(reader& r, Op& o, const octets_part<A...>& p) {
    return r.bytes(get(*o.c, p.bytes), o.*p.view);
}
template <class Op, class... A>
bool read(reader& r, Op& o, const payload_part<A...>& p) {
    return p.way == direction::in ? r.payload_in(get(*o.c, p.ref), o.*p.view)
                                  : r.payload_out(get(*o.c, p.ref), o.*p.view);
}

// Walks the arguments of a launch once, so that argument_list::for_each can't fail later.
bool walk_arguments(reader& r, std::span<const std::byte> bytes, std::uint32_t count) {
    std::int64_t last_index = -1;
    for (std::uint32_t i = 0; i < count; ++i) {
        if (bytes.size() < sizeof(vgpu_argument))
            return r.refuse("fewer argument bytes than arguments");
        const auto& a = *reinterpret_cast<const vgpu_argument*>(bytes.data());
        bytes = bytes.subspan(sizeof(vgpu_argument));
        if (a.index >= VGPU_MAX_ARGUMENTS || std::int64_t{a.index} <= last_index)
            return r.refuse("the indices of arguments do not ascend or are too large");
        last_index = a.index;
        if (a.bytes == 0)
            return r.refuse("an argument of 0 bytes");
        std::uint64_t value_bytes = 0;
        switch (a.kind) {
        case VGPU_ARGUMENT_BYTES:
            value_bytes = a.bytes;
            break;
        case VGPU_ARGUMENT_MEMORY:
        case VGPU_ARGUMENT_SAMPLER:
            if (a.bytes != sizeof(guest_id))
                return r.refuse("an argument that names an object is not 8 bytes long");
            value_bytes = sizeof(guest_id);
            break;
        case VGPU_ARGUMENT_LOCAL:
            break;
        default:
            return r.refuse("an unknown kind of argument");
        }
        // bytes.size() is a multiple of 8, so a value that fits has room for its padding too.
        if (value_bytes > bytes.size())
            return r.refuse("an argument is longer than the command");
        if (!reader::zeros(bytes.subspan(value_bytes, padded(value_bytes) - value_bytes)))
            return r.refuse("padding is not 0");
        if (a.kind == VGPU_ARGUMENT_SAMPLER && *reinterpret_cast<const guest_id*>(bytes.data()) == 0)
            return r.refuse("an id that must name an object is 0");
        bytes = bytes.subspan(padded(value_bytes));
    }
    return r.require(bytes.empty(), "more argument bytes than arguments");
}

template <class Op, class... A>
bool read(reader& r, Op& o, const arguments_part<A...>& p) {
    const std::uint32_t count = get(*o.c, p.count);
    const std::uint32_t length = get(*o.c, p.bytes);
    std::span<const std::byte> bytes;
    if (!r.require(count <= VGPU_MAX_ARGUMENTS, "more arguments than VGPU_MAX_ARGUMENTS") ||
        !r.require(length % 8 == 0, "argument_bytes is not a multiple of 8") || !r.bytes(length, bytes) ||
        !walk_arguments(r, bytes, count)) {
        return false;
    }
    o.*p.view = argument_list(bytes, count);
    return true;
}

// ---- rows

bool read_packed(reader& r, op_write_runs& o) {
    const auto command = r.all();
    write_runs_fields& f = o.c.value;
    f = {{VGPU_CMD_WRITE_RUNS, 0, static_cast<std::uint32_t>(command.size())}, {}, 0};
    std::size_t at = offsetof(vgpu_cmd_write_runs, body);
    std::uint64_t queue = 0, run_bytes = 0;
    for (std::uint64_t* number : {&queue, &f.buffer, &run_bytes})
        if (const char* why = read_number(command, at, *number))
            return r.refuse(why);
    f.enqueue.queue = queue;
    if (!r.id(queue) || !r.id(f.buffer) ||
        !r.require(run_bytes != 0 && run_bytes <= VGPU_MAX_RUN_BYTES,
                   "a write has no runs, or more bytes of them than VGPU_MAX_RUN_BYTES") ||
        !r.require(run_bytes <= command.size() - at, "the runs of a write are longer than the command")) {
        return false;
    }
    const auto encoded = command.subspan(at, run_bytes);
    const auto rest = command.subspan(at + run_bytes);
    run_walk walk(encoded, static_cast<std::uint32_t>(
                               std::min<std::size_t>(rest.size(), VGPU_MAX_INLINE_PAYLOAD_BYTES)));
    buffer_run run{};
    while (walk.next(run)) {
    }
    if (walk.error())
        return r.refuse(walk.error());
    o.bytes = rest.first(walk.bytes());
    o.runs = run_list(encoded, walk.bytes());
    o.end = walk.end();
    const auto padding = rest.subspan(walk.bytes());
    return r.require(padding.size() < 8, "the runs of a write are shorter than their data") &&
           r.require(reader::zeros(padding), "padding is not 0");
}

template <class Row>
bool read_parts(reader& r, typename Row::op& o) {
    if constexpr (is_packed<Row>) {
        return read_packed(r, o);
    } else {
        if (!r.fixed(o.c))
            return false;
        if constexpr (Row::answers == answer::enqueued) {
            if (!r.enqueue(o.c->enqueue, o.waits))
                return false;
        }
        return std::apply([&](const auto&... part) { return (read(r, o, part) && ...); }, Row::parts);
    }
}

// Null, or the sentence of the rule that was broken. The reader is made here, not where the row is chosen, so
// that it can be in registers.
template <class Row>
const char* read_row(std::span<const std::byte> command, const stream_context& context,
                     std::uint64_t* payload_used, op& out) {
    reader r(command, context, payload_used);
    if (read_parts<Row>(r, out.emplace<typename Row::op>()))
        r.done();
    return r.message;
}

using row_reader = decltype(&read_row<launch>);
constexpr auto readers = [] {
    std::array<row_reader, VGPU_OPCODE_COUNT> of{};
    all_rows::for_each([&]<class Row>() { of[Row::opcode] = &read_row<Row>; });
    return of;
}();

const char* read_command(std::span<const std::byte> command, const stream_context& context,
                         std::uint64_t* payload_used, op& out) {
    const std::uint16_t opcode = reinterpret_cast<const vgpu_cmd*>(command.data())->opcode;
    const row_reader read = opcode < readers.size() ? readers[opcode] : nullptr;
    return read ? read(command, context, payload_used, out) : "an unknown opcode";
}

} // namespace

const char* launch_size_error(const vgpu_cmd_launch& c) {
    if (c.work_dim < 1 || c.work_dim > 3)
        return launch_size_errors[0];
    const bool local_given = (c.flags & VGPU_LAUNCH_LOCAL_SIZE) != 0;
    for (std::uint32_t d = 0; d < 3; ++d) {
        const bool unused = d >= c.work_dim;
        if (unused && (c.offset[d] != 0 || c.global[d] != 1 || (local_given && c.local[d] != 1)))
            return launch_size_errors[1];
        if (!(checked_u64(c.offset[d]) + c.global[d]).ok())
            return launch_size_errors[2];
        if (local_given && c.local[d] == 0)
            return launch_size_errors[3];
    }
    return nullptr;
}

bool is_call(std::uint16_t opcode) {
    return opcode < answers.size() && answers[opcode] == answer::call;
}

const vgpu_cmd& header_of(const op& o) {
    return std::visit([](const auto& x) -> const vgpu_cmd& { return x.c->cmd; }, o);
}

const vgpu_enqueue* enqueue_of(const op& o) {
    return std::visit(
        [](const auto& x) -> const vgpu_enqueue* {
            if constexpr (requires { x.c->enqueue; })
                return &x.c->enqueue;
            else
                return nullptr;
        },
        o);
}

guest_id queue_of(const vgpu_cmd& header) {
    struct enqueued { // every other enqueued command begins so
        vgpu_cmd cmd;
        vgpu_enqueue enqueue;
    };
    if (header.opcode != VGPU_CMD_WRITE_RUNS)
        return reinterpret_cast<const enqueued&>(header).enqueue.queue;
    std::size_t at = offsetof(vgpu_cmd_write_runs, body);
    guest_id queue = 0;
    [[maybe_unused]] const char* const why =
        read_number({reinterpret_cast<const std::byte*>(&header), command_bytes(header)}, at, queue);
    assert(!why);
    return queue;
}

id_list waits_of(const op& o) {
    return std::visit(
        [](const auto& x) -> id_list {
            if constexpr (requires { x.waits; })
                return x.waits;
            else
                return {};
        },
        o);
}

stream_decoder::stream_decoder(std::span<const std::byte> stream, const stream_context& context)
    : stream_(stream), context_(context) {
    assert(reinterpret_cast<std::uintptr_t>(stream.data()) % 8 == 0);
}

decode_status stream_decoder::next(op& out) {
    return next_by(out, read_command);
}

} // namespace kagemusha::codec
