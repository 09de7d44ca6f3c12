// SPDX-License-Identifier: GPL-2.0-or-later
// table: the rows of all commands (common.hpp: every API's; opencl.hpp; cuda.hpp), what ties them to the wire
// format and to the ops, and facts by opcode or op that follow from them.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <variant>

#include "codec/commands/common.hpp"
#include "codec/commands/cuda.hpp"
#include "codec/commands/opencl.hpp"
#include "codec/op.hpp"

namespace kagemusha::codec::commands {

template <class... Lists>
struct join;
template <class... A>
struct join<rows<A...>> {
    using type = rows<A...>;
};
template <class... A, class... B, class... More>
struct join<rows<A...>, rows<B...>, More...> {
    using type = typename join<rows<A..., B...>, More...>::type;
};

using all_rows = join<common_rows, opencl_rows, cuda_rows>::type;

// Whether a row has no fixed structure and is read by hand.
template <class Row>
constexpr bool is_packed = requires { Row::packed; };

template <class Row>
constexpr bool creates_object = [] {
    return std::apply(
        [](const auto&... part) { return (is_creates<std::remove_cvref_t<decltype(part)>> || ...); },
        Row::parts);
}();

template <class... A>
constexpr bool gives_data(const payload_part<A...>& part) {
    return part.way == direction::out;
}
constexpr bool gives_data(const auto&) {
    return false;
}
// A call that only asks: it changes nothing, so a standby need not execute it.
template <class Row>
constexpr bool is_query =
    Row::answers == answer::call &&
    std::apply([](const auto&... part) { return (gives_data(part) || ...); }, Row::parts);

// Whether a row says that the command moves memory from one place to another although no part reads it.
template <class Row>
constexpr bool moves_memory = requires { Row::moves; };

// ---- the table and proto/abi/vgpu_protocol.h must say the same

// How many rows have this opcode.
constexpr int rows_with(std::uint16_t opcode) {
    int n = 0;
    all_rows::for_each([&]<class Row>() { n += Row::opcode == opcode; });
    return n;
}
// Calls begin at 1, enqueued commands at VGPU_FIRST_ENQUEUE, without a gap; none is beyond the count.
consteval bool every_opcode_has_one_row() {
    std::size_t used = 0, others = 0;
    all_rows::for_each([&]<class Row>() { others += Row::opcode < VGPU_FIRST_ENQUEUE; });
    for (std::uint16_t opcode = 0; opcode < VGPU_OPCODE_COUNT; ++opcode) {
        const bool wanted = (opcode >= 1 && opcode <= others) || opcode >= VGPU_FIRST_ENQUEUE;
        if (rows_with(opcode) != (wanted ? 1 : 0))
            return false;
        used += wanted;
    }
    return used == all_rows::count;
}
static_assert(every_opcode_has_one_row());

// The header tells by the opcode alone which commands are enqueued.
consteval bool enqueued_ones_are_behind_the_others() {
    bool right = true;
    all_rows::for_each([&]<class Row>() {
        right = right && (Row::answers == answer::enqueued) == (Row::opcode >= VGPU_FIRST_ENQUEUE);
    });
    return right;
}
static_assert(enqueued_ones_are_behind_the_others());

// Ops point into a stream: the fixed structures must be as aligned as that.
consteval bool structures_fit_a_stream() {
    bool right = true;
    all_rows::for_each([&]<class Row>() {
        using wire = typename Row::wire;
        right = right && alignof(wire) <= 8 && sizeof(wire) % 8 == 0 && offsetof(wire, cmd) == 0;
        if constexpr (Row::answers == answer::enqueued)
            right = right && offsetof(wire, enqueue) == sizeof(vgpu_cmd); // queue_of() relies on it
    });
    return right;
}
static_assert(structures_fit_a_stream());

// codec::op is the variant of the rows' ops: none is missing, none is left over.
template <class Rows, class Variant>
struct same_ops;
template <class... Row, class... Op>
struct same_ops<rows<Row...>, std::variant<Op...>> {
    template <class Of, class... Among>
    static constexpr bool among = (std::is_same_v<Of, Among> || ...);
    static constexpr bool value =
        (among<Op, typename Row::op...> && ...) && (among<typename Row::op, Op...> && ...);
};
static_assert(same_ops<all_rows, codec::op>::value);

// What the wire format calls the kind: buffers and images are memory.
constexpr vgpu_object_kind wire_kind(object kind) {
    switch (kind) {
    case object::context:
        return VGPU_OBJECT_CONTEXT;
    case object::queue:
        return VGPU_OBJECT_QUEUE;
    case object::sampler:
        return VGPU_OBJECT_SAMPLER;
    case object::program:
        return VGPU_OBJECT_PROGRAM;
    case object::kernel:
        return VGPU_OBJECT_KERNEL;
    case object::event:
    case object::user_event:
        return VGPU_OBJECT_EVENT;
    default: // buffer, image, memory
        return VGPU_OBJECT_MEMORY;
    }
}

// The kind of what a row creates.
template <class Row>
constexpr vgpu_object_kind created_kind = [] {
    vgpu_object_kind kind{};
    const auto look = [&]<class Part>(const Part& part) {
        if constexpr (is_creates<Part>)
            kind = wire_kind(part.kind);
    };
    std::apply([&](const auto&... part) { (look(part), ...); }, Row::parts);
    return kind;
}();

// ---- facts by opcode, for whoever has only that

inline constexpr auto answers = [] {
    std::array<answer, VGPU_OPCODE_COUNT> of{}; // unknown opcodes: answer::call, nobody asks
    all_rows::for_each([&]<class Row>() { of[Row::opcode] = Row::answers; });
    return of;
}();

// ---- facts by op

// The first row of an op. Rows that share an op (a write and a read) differ in direction only.
template <class Op, class Rows>
struct first_row;
template <class Op, class Row, class... More>
struct first_row<Op, rows<Row, More...>>
    : std::conditional_t<std::is_same_v<Op, typename Row::op>, std::type_identity<Row>,
                         first_row<Op, rows<More...>>> {};
template <class Op>
using row_of = typename first_row<Op, all_rows>::type;

// Calls f.operator()<Row>() for the row of a decoded op: some ops have one for each direction.
template <class Op, class F>
void with_row(const Op& o, F&& f) {
    all_rows::for_each([&]<class Row>() {
        if constexpr (std::is_same_v<typename Row::op, Op>) {
            if (Row::opcode == o.c->cmd.opcode)
                f.template operator()<Row>();
        }
    });
}

template <class Field>
constexpr access access_of(const uses_part<Field>& part) {
    return part.how;
}
constexpr access access_of(const auto&) {
    return access::none;
}

// Whether the command reads memory that an id names.
template <class Row>
constexpr bool reads_memory =
    std::apply([](const auto&... part) { return ((access_of(part) == access::read) || ...); }, Row::parts);

// Calls f(id) for the memory that the command writes, as far as its fixed structure names it.
template <class Row, class F>
void for_each_written(const typename Row::op& o, F&& f) {
    const auto visit = [&](const auto& part) {
        if constexpr (requires { part.how; }) {
            if (part.how == access::write)
                f((*std::to_address(o.c)).*part.id);
        }
    };
    std::apply([&](const auto&... part) { (visit(part), ...); }, Row::parts);
}

} // namespace kagemusha::codec::commands
