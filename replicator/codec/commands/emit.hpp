// SPDX-License-Identifier: GPL-2.0-or-later
// emit: the encoder. Whoever sends a command gives the numbers of its fixed structure, and a view for each
// variable part of its row, in the order of the parts (an enqueued command's wait list comes first). From the
// row follow opcode, counts, lengths, payload references and pads, which the sender therefore does not write.
//
//   vgpu_cmd_create_kernel c{};
//   c.id = id;
//   c.program = program;
//   emit<create_kernel>(stream, c, std::string_view(name));
//
// A view has the type that the decoder gives for the part (codec/op.hpp), so decoding what was emitted gives
// the same views. It checks nothing: the decoder does. By hand stay the fields that are no parts of their own
// (a fill's pattern, flags) and WRITE_RUNS, which is packed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "codec/commands/table.hpp"

namespace kagemusha::codec {

// What follows a command's fixed structure. In the stream zeros pad it to a multiple of 8 bytes.
struct piece {
    const void* data = nullptr;
    std::size_t bytes = 0;
};

// A payload that gets its entry in the payload table later: `reference` is set to where it is named then.
struct later_payload {
    std::uint64_t bytes = 0;
    vgpu_payload_ref*& reference;
};

namespace commands {

namespace encoding {

// ---- a part that a view belongs to: sets what names it in the fixed structure, and gives its bytes

template <class Wire, class... A>
piece put(Wire& c, const ids_part<A...>& p, id_list ids) {
    c.*p.count = static_cast<std::remove_reference_t<decltype(c.*p.count)>>(ids.size());
    return {ids.data(), ids.size_bytes()};
}
template <class Wire, class... A>
piece put(Wire& c, const text_part<A...>& p, std::string_view text) {
    c.*p.bytes = static_cast<__u32>(text.size());
    return {text.data(), text.size()};
}
template <class Wire, class... A>
piece put(Wire& c, const names_part<A...>& p, std::string_view names) {
    c.*p.bytes = static_cast<__u32>(names.size());
    return {names.data(), names.size()};
}
template <class Wire, class... A>
piece put(Wire& c, const octets_part<A...>& p, std::span<const std::byte> octets) {
    c.*p.bytes = static_cast<__u32>(octets.size());
    return {octets.data(), octets.size()};
}
template <class Wire, class... A>
piece put(Wire& c, const payload_part<A...>& p, const payload_source& data) {
    c.*p.ref = {data.bytes, data.index, 0};
    return {data.inline_bytes.data(), data.inline_bytes.size()};
}
template <class Wire, class... A>
piece put(Wire& c, const payload_part<A...>& p, const vgpu_payload_ref& ref) { // as it is, with its pad
    c.*p.ref = ref;
    return {};
}
template <class Wire, class... A>
piece put(Wire& c, const payload_part<A...>& p, const later_payload& data) {
    c.*p.ref = {data.bytes, VGPU_PAYLOAD_NONE, 0};
    data.reference = &(c.*p.ref);
    return {};
}
template <class Wire, class... A>
piece put(Wire& c, const arguments_part<A...>& p, const argument_list& arguments) {
    c.*p.count = arguments.size();
    c.*p.bytes = static_cast<__u32>(arguments.bytes().size());
    return {arguments.bytes().data(), arguments.bytes().size()};
}

// ---- a part without a view

template <class Wire, class... A>
void put(Wire& c, const pad_part<A...>& p) {
    c.*p.pad = 0;
}
template <class Wire>
void put(Wire&, const auto&) {}

template <class Part>
constexpr bool has_view = requires(const Part& p) { p.view; };

template <class Row>
constexpr std::size_t view_count = [] {
    std::size_t n = Row::answers == answer::enqueued;
    std::apply([&](const auto&... part) { ((n += has_view<std::remove_cvref_t<decltype(part)>>), ...); },
               Row::parts);
    return n;
}();

// The index among the views of what belongs to part `I`.
template <class Row, std::size_t I>
constexpr std::size_t view_of_part = [] {
    std::size_t n = Row::answers == answer::enqueued;
    [&]<std::size_t... Before>(std::index_sequence<Before...>) {
        ((n += has_view<std::tuple_element_t<Before, std::remove_cvref_t<decltype(Row::parts)>>>), ...);
    }(std::make_index_sequence<I>());
    return n;
}();

} // namespace encoding

// Completes the fixed structure and gives the pieces that follow it. They point to what the views point to.
template <class Row, class... View>
std::array<piece, sizeof...(View)> lay_out(typename Row::wire& c, const View&... view) {
    static_assert(!is_packed<Row>, "it has no fixed structure");
    static_assert(sizeof...(View) == encoding::view_count<Row>, "one view for each variable part");
    constexpr std::size_t part_count = std::tuple_size_v<std::remove_cvref_t<decltype(Row::parts)>>;
    const auto views = std::tie(view...);
    std::array<piece, sizeof...(View)> pieces;
    c.cmd.opcode = Row::opcode;
    c.cmd.flags = 0;
    if constexpr (Row::answers == answer::enqueued) {
        const id_list waits = std::get<0>(views);
        c.enqueue.wait_count = static_cast<__u32>(waits.size());
        c.enqueue.pad = 0;
        pieces[0] = {waits.data(), waits.size_bytes()};
    }
    const auto complete = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
        const auto& part = std::get<I>(Row::parts);
        if constexpr (encoding::has_view<std::remove_cvref_t<decltype(part)>>) {
            constexpr std::size_t at = encoding::view_of_part<Row, I>;
            pieces[at] = encoding::put(c, part, std::get<at>(views));
        } else {
            encoding::put(c, part);
        }
    };
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (complete(std::integral_constant<std::size_t, I>()), ...);
    }(std::make_index_sequence<part_count>());
    return pieces;
}

// Appends the command to a stream: `Stream` has append_command(vgpu_cmd&, fixed_bytes, pieces), which writes
// the header's length.
template <class Row, class Stream, class... View>
void emit(Stream& to, typename Row::wire& c, const View&... view) {
    const auto pieces = lay_out<Row>(c, view...);
    to.append_command(c.cmd, sizeof(c), std::span<const piece>(pieces));
}

} // namespace commands

} // namespace kagemusha::codec
