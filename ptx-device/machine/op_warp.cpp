// SPDX-License-Identifier: GPL-2.0-or-later
// What lanes of a warp do together: shfl, vote, match, redux, activemask. The forms with .sync wait for the
// lanes that their mask names (schedule.cpp); the older forms take who is there.
#include "op_pick.hpp"

namespace kagemusha::machine {

namespace {

// option: 0 up, 1 down, 2 bfly, 3 idx. from: a, b, c (segment mask and clamp).
void shuffle(warp& w, const instruction& i, mask m) {
    const lanes a =
        *reinterpret_cast<const lanes*>(w.get(i.from[0])); // a copy: the result may be its own source
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = w.get(i.from[2]);
    std::uint64_t results[warp_lanes] = {};
    std::uint64_t inside[warp_lanes] = {};
    for_lanes(m, [&](std::uint32_t l) {
        const std::uint32_t by = b[l] & 31;
        const std::uint32_t clamp = c[l] & 31;
        const std::uint32_t segment = c[l] >> 8 & 31;
        const std::uint32_t most = (l & segment) | (clamp & ~segment);
        const std::uint32_t least = l & segment;
        std::int64_t from = 0;
        bool ok = false;
        switch (i.option) {
        case 0:
            from = std::int64_t{l} - by;
            ok = from >= most;
            break;
        case 1:
            from = l + by;
            ok = from <= most;
            break;
        case 2:
            from = l ^ by;
            ok = from <= most;
            break;
        default:
            from = least | (by & ~segment);
            ok = from <= most;
            break;
        }
        from = ok ? from : l;
        // A lane that is not here has no value; its register's is given, as devices do.
        results[l] = a.v[from & 31];
        inside[l] = ok;
    });
    std::uint64_t* d = w.set(i.to[0]);
    std::uint64_t* p = i.to[1].none() ? nullptr : w.set(i.to[1]);
    for_lanes(m, [&](std::uint32_t l) {
        d[l] = results[l];
        if (p != nullptr)
            p[l] = inside[l];
    });
}

// option: 0 all, 1 any, 2 uni, 3 ballot. bits: the predicate is negated.
void vote(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    mask yes = 0;
    for_lanes(m, [&](std::uint32_t l) { yes |= static_cast<mask>((a[l] & 1) != i.bits) << l; });
    const std::uint64_t results[] = {yes == m, yes != 0, yes == m || yes == 0, yes};
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = results[i.option & 3]; });
}

void active(warp& w, const instruction& i, mask m) {
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = m; });
}

// option 1: all. Which lanes have the same value.
void match(warp& w, const instruction& i, mask m) {
    const lanes a = *reinterpret_cast<const lanes*>(w.get(i.from[0]));
    std::uint64_t* d = w.set(i.to[0]);
    std::uint64_t* p = i.to[1].none() ? nullptr : w.set(i.to[1]);
    mask same_as[warp_lanes] = {};
    bool all = true;
    for_lanes(m, [&](std::uint32_t l) {
        for_lanes(m, [&](std::uint32_t k) { same_as[l] |= static_cast<mask>(a.v[k] == a.v[l]) << k; });
        all &= same_as[l] == m;
    });
    for_lanes(m, [&](std::uint32_t l) {
        d[l] = i.option == 1 ? (all ? m : 0) : same_as[l];
        if (p != nullptr)
            p[l] = all;
    });
}

template <class T, auto F>
void reduce(warp& w, const instruction& i, mask m) {
    const std::uint64_t* a = w.get(i.from[0]);
    T r{};
    bool first = true;
    for_lanes(m, [&](std::uint32_t l) {
        const T v = value_of<T>(a[l]);
        r = first ? v : F(r, v);
        first = false;
    });
    std::uint64_t* d = w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) { d[l] = bits_of(r); });
}

constexpr auto sum = [](auto a, auto b) {
    return static_cast<decltype(a)>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
};
constexpr auto least = [](auto a, auto b) { return b < a ? b : a; };
constexpr auto most = [](auto a, auto b) { return a < b ? b : a; };
constexpr auto both = [](auto a, auto b) { return a & b; };
constexpr auto either = [](auto a, auto b) { return a | b; };
constexpr auto differ = [](auto a, auto b) { return a ^ b; };

template <auto F>
run_function reduce_as(type t, bool bits) {
    using s = std::int32_t;
    using u = std::uint32_t;
    if (bits)
        return t == type::b32 ? &reduce<u, F> : nullptr;
    return t == type::u32   ? &reduce<u, F>
           : t == type::s32 ? &reduce<s, F>
                            : static_cast<run_function>(nullptr);
}

// The destination, and the predicate behind '|'.
void destinations(assembler& a, slot (&to)[2], type t) {
    to[0] = a.to(a.arg(0), t);
    if (!a.arg(0).second.empty()) {
        operand second;
        second.what = a.arg(0).second == "_" ? operand::kind::sink : operand::kind::name;
        second.name = a.arg(0).second;
        to[1] = a.to(second, type::pred);
    }
}

} // namespace

void op_shfl(assembler& a) {
    const bool sync = a.has("sync");
    a.want(sync ? 5 : 4);
    const std::uint8_t option = a.has("up")     ? 0
                                : a.has("down") ? 1
                                : a.has("bfly") ? 2
                                : a.has("idx")  ? 3
                                                : 4;
    if (option == 4 || a.type_at(0) != type::b32)
        a.fail("wants .up, .down, .bfly or .idx, and .b32");
    const slot x = a.from(a.arg(1), type::b32);
    const slot y = a.from(a.arg(2), type::b32);
    const slot z = a.from(a.arg(3), type::b32);
    const slot members = sync ? a.from(a.arg(4), type::b32) : slot{};
    slot to[2];
    destinations(a, to, type::b32);
    instruction& i = a.emit(&shuffle);
    i.to[0] = to[0];
    i.to[1] = to[1];
    i.from[0] = x;
    i.from[1] = y;
    i.from[2] = z;
    i.from[3] = members;
    i.converges = sync;
    i.option = option;
}

void op_vote(assembler& a) {
    const bool sync = a.has("sync");
    a.want(sync ? 3 : 2);
    const std::uint8_t option = a.has("all")      ? 0
                                : a.has("any")    ? 1
                                : a.has("uni")    ? 2
                                : a.has("ballot") ? 3
                                                  : 4;
    if (option == 4 || a.type_at(0) != (option == 3 ? type::b32 : type::pred))
        a.fail("wants .all, .any or .uni with .pred, or .ballot with .b32");
    const slot x = a.from(a.arg(1), type::pred);
    const slot members = sync ? a.from(a.arg(2), type::b32) : slot{};
    const slot d = a.to(a.arg(0), a.type_at(0));
    instruction& i = a.emit(&vote);
    i.to[0] = d;
    i.from[0] = x;
    i.from[3] = members;
    i.converges = sync;
    i.option = option;
    i.bits = a.arg(1).negated ? 1 : 0;
}

void op_activemask(assembler& a) {
    a.want(1);
    if (a.type_at(0) != type::b32)
        a.fail_type(a.type_at(0));
    const slot d = a.to(a.arg(0), type::b32);
    a.emit(&active).to[0] = d;
}

void op_match(assembler& a) {
    a.want(3);
    const bool all = a.has("all");
    const type t = a.type_at(0);
    if (!a.has("sync") || (!all && !a.has("any")) || (t != type::b32 && t != type::b64))
        a.fail("wants .any.sync or .all.sync, and .b32 or .b64");
    const slot x = a.from(a.arg(1), t);
    const slot members = a.from(a.arg(2), type::b32);
    slot to[2];
    destinations(a, to, type::b32);
    instruction& i = a.emit(&match);
    i.to[0] = to[0];
    i.to[1] = to[1];
    i.from[0] = x;
    i.from[3] = members;
    i.converges = true;
    i.option = all ? 1 : 0;
}

void op_redux(assembler& a) {
    a.want(3);
    const type t = a.type_at(0);
    run_function run = nullptr;
    if (a.has("add"))
        run = reduce_as<sum>(t, false);
    else if (a.has("min"))
        run = reduce_as<least>(t, false);
    else if (a.has("max"))
        run = reduce_as<most>(t, false);
    else if (a.has("and"))
        run = reduce_as<both>(t, true);
    else if (a.has("or"))
        run = reduce_as<either>(t, true);
    else if (a.has("xor"))
        run = reduce_as<differ>(t, true);
    if (run == nullptr || !a.has("sync"))
        a.fail_type(t);
    const slot x = a.from(a.arg(1), t);
    const slot members = a.from(a.arg(2), type::b32);
    const slot d = a.to(a.arg(0), t);
    instruction& i = a.emit(run);
    i.to[0] = d;
    i.from[0] = x;
    i.from[3] = members;
    i.converges = true;
}

} // namespace kagemusha::machine
