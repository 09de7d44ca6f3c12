// SPDX-License-Identifier: GPL-2.0-or-later
// resolved: an op with what its ids and payloads are on this host. The types follow from the op's row in the
// command table (codec/commands), so a new command has no structure of its own here.
//
// The executor makes them (executor_resolve.hpp) and backends get them (backend_module.hpp). An op is
// valid during that call only, and so is what it refers to, except payloads, which are shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "codec/commands/table.hpp"

namespace kagemusha::gpu {

class host_context;
class host_kernel;
class host_memory;
class host_program;
class host_queue;
class host_sampler;
class guest_payload;
using payload_ptr = std::shared_ptr<const guest_payload>;

struct host_argument {
    std::uint32_t index;
    vgpu_argument_kind kind;
    std::uint64_t bytes;              // of value, or of the local memory
    std::span<const std::byte> value; // BYTES
    host_memory* memory;              // MEMORY; nullptr is a null pointer
    host_sampler* sampler;            // SAMPLER
};

// ---- what a part of a row is on the host

template <codec::commands::object Kind>
struct host_object {};
template <>
struct host_object<codec::commands::object::context> {
    using type = host_context;
};
template <>
struct host_object<codec::commands::object::queue> {
    using type = host_queue;
};
template <>
struct host_object<codec::commands::object::buffer> {
    using type = host_memory;
};
template <>
struct host_object<codec::commands::object::image> {
    using type = host_memory;
};
template <>
struct host_object<codec::commands::object::memory> {
    using type = host_memory;
};
template <>
struct host_object<codec::commands::object::sampler> {
    using type = host_sampler;
};
template <>
struct host_object<codec::commands::object::program> {
    using type = host_program;
};
template <>
struct host_object<codec::commands::object::kernel> {
    using type = host_kernel;
};

// A tuple of one type, or of none: flags, rules and ranges are numbers of the op.
template <class Row, std::size_t I, class Part>
struct host_part {
    using type = std::tuple<>;
};
template <class Row, std::size_t I, class... A>
struct host_part<Row, I, codec::commands::uses_part<A...>> {
    using type = std::tuple<typename host_object<std::get<I>(Row::parts).kind>::type&>;
};
// Null where the id is 0.
template <class Row, std::size_t I, class... A>
struct host_part<Row, I, codec::commands::may_use_part<A...>> {
    using type = std::tuple<typename host_object<std::get<I>(Row::parts).kind>::type*>;
};
// The place for the new object: what a backend leaves there is the guest's object when it reports success.
template <class Row, std::size_t I, class... A>
struct host_part<Row, I, codec::commands::creates_part<A...>> {
    using type = std::tuple<std::unique_ptr<typename host_object<std::get<I>(Row::parts).kind>::type>&>;
};
template <class Row, std::size_t I, class... A>
struct host_part<Row, I, codec::commands::ids_part<A...>> {
    using type = std::tuple<std::span<typename host_object<std::get<I>(Row::parts).kind>::type* const>>;
};
// A query's answer goes there when the backend has returned it, so the backend does not see the place.
template <class Row, std::size_t I, class... A>
struct host_part<Row, I, codec::commands::payload_part<A...>> {
    using type = std::conditional_t<codec::commands::is_query<Row>, std::tuple<>, std::tuple<payload_ptr>>;
};
// Those that differ from the last successful launch of this kernel object; the others keep their value. When
// a launch fails the executor sends all of them again.
template <class Row, std::size_t I, class... A>
struct host_part<Row, I, codec::commands::arguments_part<A...>> {
    using type = std::tuple<std::span<const host_argument>>;
};

template <class Row>
constexpr std::size_t part_count = std::tuple_size_v<std::remove_cvref_t<decltype(Row::parts)>>;
template <class Row, std::size_t I>
using part_type = std::tuple_element_t<I, std::remove_cvref_t<decltype(Row::parts)>>;

template <class Row, std::size_t... I>
auto host_parts_of(std::index_sequence<I...>)
    -> decltype(std::tuple_cat(std::declval<typename host_part<Row, I, part_type<Row, I>>::type>()...,
                               // what a packed command writes: a private copy
                               std::declval<std::conditional_t<codec::commands::is_packed<Row>,
                                                               std::tuple<payload_ptr>, std::tuple<>>>()));
template <class Row>
using host_parts = decltype(host_parts_of<Row>(std::make_index_sequence<part_count<Row>>()));

template <class Op>
concept enqueued_op = codec::commands::row_of<Op>::answers == codec::commands::answer::enqueued;
// INFO's object depends on its subject, so it has a structure of its own: info_query.
template <class Op>
concept query_op =
    codec::commands::is_query<codec::commands::row_of<Op>> && !std::is_same_v<Op, codec::op_info>;
// By hand: a program's text and options are changed before a backend gets them, and a link that fails gives
// an object too; a user event has a state that its commands share.
template <class Op>
concept creating_op =
    codec::commands::creates_object<codec::commands::row_of<Op>> &&
    !std::is_same_v<Op, codec::op_create_program> && !std::is_same_v<Op, codec::op_link_program> &&
    !std::is_same_v<Op, codec::op_create_user_event>;

// Of each part that names objects or data: what it is here, in the order of the parts. Rows of one op (a
// write and a read) have the same.
template <class Op>
struct resolved {
    const Op& op;
    host_parts<codec::commands::row_of<Op>> parts;
};

consteval bool rows_of_one_op_resolve_equally() {
    bool right = true;
    codec::commands::all_rows::for_each([&]<class Row>() {
        using first = codec::commands::row_of<typename Row::op>;
        if constexpr (enqueued_op<typename Row::op> || query_op<typename Row::op> ||
                      creating_op<typename Row::op>) {
            right = right && std::is_same_v<host_parts<Row>, host_parts<first>>;
        }
    });
    return right;
}
static_assert(rows_of_one_op_resolve_equally());

// ---- the resolved ops of all rows that are enqueued, are queries, or create an object

template <template <class> class Wanted, class Variant, class... Chosen>
struct choose_ops;
template <template <class> class Wanted, class... Chosen>
struct choose_ops<Wanted, std::variant<>, Chosen...> {
    using type = std::variant<resolved<Chosen>...>;
};
template <template <class> class Wanted, class Op, class... More, class... Chosen>
struct choose_ops<Wanted, std::variant<Op, More...>, Chosen...>
    : std::conditional_t<Wanted<Op>::value, choose_ops<Wanted, std::variant<More...>, Chosen..., Op>,
                         choose_ops<Wanted, std::variant<More...>, Chosen...>> {};

template <class Op>
using is_enqueued_op = std::bool_constant<enqueued_op<Op>>;
template <class Op>
using is_query_op = std::bool_constant<query_op<Op>>;
template <class Op>
using is_creating_op = std::bool_constant<creating_op<Op>>;

using command = choose_ops<is_enqueued_op, codec::op>::type;
using query = choose_ops<is_query_op, codec::op>::type;
using creation = choose_ops<is_creating_op, codec::op>::type;

} // namespace kagemusha::gpu
