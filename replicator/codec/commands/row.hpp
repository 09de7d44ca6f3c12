// SPDX-License-Identifier: GPL-2.0-or-later
// row: the vocabulary in which the rows of the command table are written. It knows no GPU API.
//
// A row is a struct without data. It says which opcode and which op (codec/op.hpp) it describes, how the
// command answers, and, in `parts`, what the command consists of: the ids it carries and what they mean, its
// flags, pads, ranges, lists and payloads, and the rules that need no object to be checked. The order of the
// parts is the order of the checks, and that of the variable parts behind the fixed structure.
//
// Parts are plain data. What they mean to the decoder is in codec/decode.cpp; another consumer gives
// them another meaning by overloads of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "codec/op.hpp"

namespace kagemusha::codec::commands {

// How a command answers.
enum class answer : std::uint8_t {
    call,     // in vgpu_response.result; the last command of its stream
    silent,   // not at all: it fails only by breaking a rule
    log,      // not at all, and only the log of a mirrored device may contain it
    enqueued, // by a record: COMPLETION, or QUEUE_ERROR
};

// What an id names.
enum class object : std::uint8_t {
    any,
    context,
    queue,
    buffer,
    image,
    memory, // buffer or image
    sampler,
    program,
    kernel,
    event,
    user_event,
};

// What a command does with the object that an id names: memory's content is read or written; another object
// may be changed, so that what is made of it later depends on the command.
enum class access : std::uint8_t { none, read, write, change };

// ---- rows

template <std::uint16_t Opcode, answer Answer, class Op>
struct command {
    static constexpr std::uint16_t opcode = Opcode;
    static constexpr answer answers = Answer;
    using op = Op;
    using wire = std::remove_cvref_t<decltype(*std::to_address(Op{}.c))>; // its fixed structure
};
template <std::uint16_t Opcode, class Op>
using call = command<Opcode, answer::call, Op>;
template <std::uint16_t Opcode, class Op>
using silent = command<Opcode, answer::silent, Op>;
template <std::uint16_t Opcode, class Op>
using log_only = command<Opcode, answer::log, Op>;
// Its first part is implied: queue, event and wait list, as vgpu_enqueue has them.
template <std::uint16_t Opcode, class Op>
using enqueued = command<Opcode, answer::enqueued, Op>;

// Rows of one file, or of all.
template <class... Row>
struct rows {
    static constexpr std::size_t count = sizeof...(Row);
    // Calls f.operator()<Row>() for each.
    template <class F>
    static constexpr void for_each(F&& f) {
        (f.template operator()<Row>(), ...);
    }
};

// ---- parts with an id. None of them is 0 but that of `may_use`.

template <class Field>
struct creates_part {
    object kind;
    Field id;
};
template <class Part>
constexpr bool is_creates = false;
template <class Field>
constexpr bool is_creates<creates_part<Field>> = true;
template <class Field>
constexpr creates_part<Field> creates(object kind, Field id) {
    return {kind, id};
}

template <class Field>
struct uses_part {
    object kind;
    access how;
    Field id;
};
template <class Field>
constexpr uses_part<Field> uses(object kind, Field id) {
    return {kind, access::none, id};
}
template <class Field>
constexpr uses_part<Field> reads(object kind, Field id) {
    return {kind, access::read, id};
}
template <class Field>
constexpr uses_part<Field> writes(object kind, Field id) {
    return {kind, access::write, id};
}
template <class Field>
constexpr uses_part<Field> changes(object kind, Field id) {
    return {kind, access::change, id};
}

// Whether it names something is for a rule of the row.
template <class Field>
struct may_use_part {
    object kind;
    Field id;
};
template <class Field>
constexpr may_use_part<Field> may_use(object kind, Field id) {
    return {kind, id};
}

template <class Field>
struct destroys_part {
    Field id;
};
template <class Field>
constexpr destroys_part<Field> destroys(Field id) {
    return {id};
}

// ---- parts that are checked by themselves. A sentence says what is wrong when the part does not hold.

template <class Field>
struct flags_part {
    Field flags;
    std::uint64_t known;
};
template <class Field>
constexpr flags_part<Field> flags(Field flags, std::uint64_t known) {
    return {flags, known};
}

template <class Field>
struct pad_part {
    Field pad;
};
template <class Field>
constexpr pad_part<Field> pad(Field pad) {
    return {pad};
}

template <class Field>
struct between_part {
    Field value;
    std::uint64_t first, last;
    const char* sentence;
};
template <class Field>
constexpr between_part<Field> between(Field value, std::uint64_t first, std::uint64_t last,
                                      const char* sentence) {
    return {value, first, last, sentence};
}
template <class Field>
constexpr between_part<Field> at_most(Field value, std::uint64_t last, const char* sentence) {
    return {value, 0, last, sentence};
}
template <class Field>
constexpr between_part<Field> not_zero(Field value, const char* sentence) {
    return {value, 1, UINT64_MAX, sentence};
}

// Anything else about the fixed structure: `holds` gets it and gives a truth value.
template <class Holds>
struct rule_part {
    const char* sentence;
    Holds holds;
};
template <class Holds>
constexpr rule_part<Holds> rule(const char* sentence, Holds holds) {
    return {sentence, holds};
}

// The same with several sentences: `broken` gives the one that fits, or null.
template <class Broken>
struct rules_part {
    std::span<const char* const> sentences; // all that it gives: each has a hostile test
    Broken broken;
};
template <class Broken>
constexpr rules_part<Broken> rules(std::span<const char* const> sentences, Broken broken) {
    return {sentences, broken};
}

// [offset, offset + bytes) of what the id `in` names. Here it must not overflow; whether it lies inside the
// object is for whoever knows the object.
template <class In, class Offset, class Bytes>
struct range_part {
    In in;
    Offset offset;
    Bytes bytes;
    const char* sentence;
};
template <class In, class Offset, class Bytes>
constexpr range_part<In, Offset, Bytes> range(In in, Offset offset, Bytes bytes, const char* sentence) {
    return {in, offset, bytes, sentence};
}

// No side of a region is 0.
template <class Triple>
struct region_part {
    Triple region;
};
template <class Triple>
constexpr region_part<Triple> region(Triple region) {
    return {region};
}

// Rows and slices of a region (codec/rect.hpp) do not overlap in linear memory.
template <class Triple, class Pitch>
struct pitches_part {
    Triple region;
    Pitch row, slice;
};
template <class Triple, class Pitch>
constexpr pitches_part<Triple, Pitch> pitches(Triple region, Pitch row, Pitch slice) {
    return {region, row, slice};
}

// As `range`, for a region with pitches.
template <class In, class Triple, class Pitch>
struct rect_part {
    In in;
    Triple origin, region;
    Pitch row, slice;
};
template <class In, class Triple, class Pitch>
constexpr rect_part<In, Triple, Pitch> rect(In in, Triple origin, Triple region, Pitch row, Pitch slice) {
    return {in, origin, region, row, slice};
}

// A box of the image that the id `in` names: no side is 0, and no sum overflows.
template <class In, class Triple>
struct box_part {
    In in;
    Triple origin, region;
};
template <class In, class Triple>
constexpr box_part<In, Triple> box(In in, Triple origin, Triple region) {
    return {in, origin, region};
}

// ---- variable parts: `view` is the op's member that they are given as

// `count` ids, none of which is 0.
template <class View, class Count>
struct ids_part {
    object kind;
    View view;
    Count count;
};
template <class View, class Count>
constexpr ids_part<View, Count> ids(object kind, View view, Count count) {
    return {kind, view, count};
}

// Text without a 0 byte.
template <class View, class Bytes>
struct text_part {
    View view;
    Bytes bytes;
    std::uint64_t limit;
};
template <class View, class Bytes>
constexpr text_part<View, Bytes> text(View view, Bytes bytes, std::uint64_t limit) {
    return {view, bytes, limit};
}

// `count` names, each ended by a 0 byte, `bytes` together.
template <class View, class Bytes, class Count>
struct names_part {
    View view;
    Bytes bytes;
    Count count;
    std::uint64_t limit;
    const char* sentence;
};
template <class View, class Bytes, class Count>
constexpr names_part<View, Bytes, Count> names(View view, Bytes bytes, Count count, std::uint64_t limit,
                                               const char* sentence) {
    return {view, bytes, count, limit, sentence};
}

template <class View, class Bytes>
struct octets_part {
    View view;
    Bytes bytes;
};
template <class View, class Bytes>
constexpr octets_part<View, Bytes> octets(View view, Bytes bytes) {
    return {view, bytes};
}

// Data that the device reads (inline or from the payload table), or writes (never inline).
enum class direction : std::uint8_t { in, out };
template <class View, class Ref>
struct payload_part {
    direction way;
    View view;
    Ref ref;
};
template <class View, class Ref>
constexpr payload_part<View, Ref> payload_in(View view, Ref ref) {
    return {direction::in, view, ref};
}
template <class View, class Ref>
constexpr payload_part<View, Ref> payload_out(View view, Ref ref) {
    return {direction::out, view, ref};
}

// A kernel's arguments, each with a structure of its own.
template <class View, class Count, class Bytes>
struct arguments_part {
    View view;
    Count count;
    Bytes bytes;
};
template <class Part>
constexpr bool is_arguments = false;
template <class... A>
constexpr bool is_arguments<arguments_part<A...>> = true;
template <class View, class Count, class Bytes>
constexpr arguments_part<View, Count, Bytes> arguments(View view, Count count, Bytes bytes) {
    return {view, count, bytes};
}

} // namespace kagemusha::codec::commands
