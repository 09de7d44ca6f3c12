// SPDX-License-Identifier: GPL-2.0-or-later
// Memory: ld, st, atom, red. Every access is checked (warp::memory); a block's lanes share one thread of the
// host, so an atomic is a read and a write.
#include "op_pick.hpp"

#include <cmath>

namespace kagemusha::machine {

namespace {

std::uint64_t window_of(ptx::space s) {
    switch (s) {
    case ptx::space::shared:
        return window::shared;
    case ptx::space::local:
        return window::local;
    case ptx::space::param:
        return window::param;
    default:
        return 0;
    }
}

// An address' parts in an instruction: from[0] the base, bits the offset, target 1 + the window's number of
// the space.
struct access {
    const std::uint64_t* base;
    std::uint64_t offset;
    std::uint64_t window;
    bool windowed;

    access(warp& w, const instruction& i)
        : base(w.get(i.from[0]))
        , offset(i.bits)
        , window(std::uint64_t{i.target} << 56)
        , windowed(i.target != 0) {}
    std::uint64_t at(std::uint32_t lane) const {
        const std::uint64_t a = base[lane] + offset;
        return windowed ? window | (a & ~window::where) : a;
    }
};

void set_address(instruction& i, slot base, const operand& o, std::optional<ptx::space> where) {
    i.from[0] = base;
    i.bits = static_cast<std::uint64_t>(o.offset);
    i.target = where ? static_cast<std::uint32_t>(window_of(*where) >> 56) : 0;
}

// T: the type in memory; narrower than its register it is extended by its sign.
template <class T>
void load(warp& w, const instruction& i, mask m) {
    const access where(w, i);
    const std::uint64_t width = i.width >= 8 ? ~0ull : (1ull << (8 * i.width)) - 1;
    for_lanes(m, [&](std::uint32_t l) {
        const std::uint8_t* p =
            w.memory(i, l, where.at(l), static_cast<std::uint32_t>(sizeof(T)) * i.count, false);
        if (p == nullptr)
            return;
        for (std::uint32_t k = 0; k < i.count; k++) {
            T v;
            std::memcpy(&v, p + k * sizeof(T), sizeof(T));
            w.set(i.to[k])[l] = static_cast<std::uint64_t>(static_cast<std::int64_t>(v)) & width;
        }
    });
}

template <class T>
void store(warp& w, const instruction& i, mask m) {
    const access where(w, i);
    for_lanes(m, [&](std::uint32_t l) {
        std::uint8_t* p = w.memory(i, l, where.at(l), static_cast<std::uint32_t>(sizeof(T)) * i.count, true);
        for (std::uint32_t k = 0; p != nullptr && k < i.count; k++) {
            const T v = static_cast<T>(w.get(slot{i.to[k]})[l]);
            std::memcpy(p + k * sizeof(T), &v, sizeof(T));
        }
    });
}

void ignore_hints(assembler& a) {
    a.ignore({"weak",
              "volatile",
              "relaxed",
              "acquire",
              "release",
              "acq_rel",
              "cta",
              "gpu",
              "sys",
              "cluster",
              "ca",
              "cg",
              "cs",
              "lu",
              "cv",
              "wb",
              "wt",
              "nc",
              "unified",
              "noftz",
              "L1::evict_normal",
              "L1::evict_unchanged",
              "L1::evict_first",
              "L1::evict_last",
              "L1::no_allocate",
              "L2::64B",
              "L2::128B",
              "L2::256B",
              "mmio"});
}

type memory_type(type t) {
    switch (t) {
    case type::f16:
    case type::bf16:
        return type::b16;
    case type::f32:
    case type::f16x2:
    case type::bf16x2:
        return type::b32;
    case type::f64:
        return type::b64;
    default:
        return t;
    }
}

// ld and st: `value` is what is loaded or stored.
void transfer(assembler& a, bool loads) {
    a.want(2);
    ignore_hints(a);
    auto where = a.take_space();
    if (where && (*where == ptx::space::generic || *where == ptx::space::reg))
        a.fail("wants a state space of memory");
    const std::size_t elements = a.has("v2") ? 2 : a.has("v4") ? 4 : 1;
    const type t = a.type_at(0);
    if (t == type::pred || ptx::size_of(t) * elements > 16)
        a.fail_type(t);
    const operand& value = a.arg(loads ? 0 : 1);
    const operand& address = a.arg(loads ? 1 : 0);
    const bool vector = value.what == operand::kind::vector;
    if (vector ? value.parts.size() != elements : elements != 1)
        a.fail("has not as many values as its type");
    std::optional<ptx::space> named;
    const slot base = a.base_of(address, named);
    slot values[4];
    std::uint8_t width = 8;
    for (std::size_t k = 0; k < elements; k++) {
        const operand& o = vector ? value.parts[k] : value;
        values[k] = loads ? a.to(o, t, true) : a.from(o, t, true);
        width = std::min(width, a.width_of(o, t));
    }
    // Without a space the address is generic; a variable's own address then needs its window.
    const auto space = where ? where : named;
    run_function run = with_integer(memory_type(t),
                                    [&]<class T>(T) -> run_function { return loads ? &load<T> : &store<T>; });
    instruction& i = a.emit(run);
    std::copy(values, values + 4, i.to);
    set_address(i, base, address, space);
    i.width = width;
    i.count = static_cast<std::uint8_t>(elements);
}

// ---- atomics: d = old; memory = F(old, b, c)

template <class T>
using unsigned_t = std::make_unsigned_t<T>;

constexpr auto at_add = []<class T>(T a, T b, T) {
    if constexpr (std::is_floating_point_v<T>)
        return a + b;
    else
        return static_cast<T>(static_cast<unsigned_t<T>>(a) + static_cast<unsigned_t<T>>(b));
};
constexpr auto at_min = []<class T>(T a, T b, T) { return b < a ? b : a; };
constexpr auto at_max = []<class T>(T a, T b, T) { return a < b ? b : a; };
constexpr auto at_and = []<class T>(T a, T b, T) { return static_cast<T>(a & b); };
constexpr auto at_or = []<class T>(T a, T b, T) { return static_cast<T>(a | b); };
constexpr auto at_xor = []<class T>(T a, T b, T) { return static_cast<T>(a ^ b); };
constexpr auto at_exch = []<class T>(T, T b, T) { return b; };
constexpr auto at_cas = []<class T>(T a, T b, T c) { return a == b ? c : a; };
constexpr auto at_inc = []<class T>(T a, T b, T) { return a >= b ? T{0} : static_cast<T>(a + 1); };
constexpr auto at_dec = []<class T>(T a, T b, T) { return a == 0 || a > b ? b : static_cast<T>(a - 1); };

template <class T, auto F>
void atomic(warp& w, const instruction& i, mask m) {
    const access where(w, i);
    const std::uint64_t* b = w.get(i.from[1]);
    const std::uint64_t* c = i.from[2].none() ? b : w.get(i.from[2]);
    std::uint64_t* d = i.to[0].none() ? nullptr : w.set(i.to[0]);
    for_lanes(m, [&](std::uint32_t l) {
        std::uint8_t* p = w.memory(i, l, where.at(l), sizeof(T), true);
        if (p == nullptr)
            return;
        T old;
        std::memcpy(&old, p, sizeof(T));
        const T made = F(old, value_of<T>(b[l]), value_of<T>(c[l]));
        std::memcpy(p, &made, sizeof(T));
        if (d != nullptr)
            d[l] = bits_of(old);
    });
}

template <auto F>
run_function any_integer(type t) {
    return with_integer(t, []<class T>(T) -> run_function {
        if constexpr (sizeof(T) < 4)
            return nullptr;
        else
            return &atomic<T, F>;
    });
}

template <auto F>
run_function any_bits(type t) {
    return t == type::b32   ? &atomic<std::uint32_t, F>
           : t == type::b64 ? &atomic<std::uint64_t, F>
           : t == type::b16 ? &atomic<std::uint16_t, F>
                            : nullptr;
}

run_function atomic_of(assembler& a, type t, bool& compares) {
    if (a.has("add")) {
        return t == type::f32   ? &atomic<float, at_add>
               : t == type::f64 ? &atomic<double, at_add>
                                : any_integer<at_add>(t);
    }
    if (a.has("min"))
        return any_integer<at_min>(t);
    if (a.has("max"))
        return any_integer<at_max>(t);
    if (a.has("and"))
        return any_bits<at_and>(t);
    if (a.has("or"))
        return any_bits<at_or>(t);
    if (a.has("xor"))
        return any_bits<at_xor>(t);
    if (a.has("exch"))
        return t == type::f32 ? any_bits<at_exch>(type::b32) : any_integer<at_exch>(t);
    if (a.has("cas")) {
        compares = true;
        return t == type::b16 ? any_bits<at_cas>(t) : any_integer<at_cas>(t);
    }
    const bool inc = a.has("inc");
    if (inc || a.has("dec")) {
        return t != type::u32 ? nullptr
               : inc          ? &atomic<std::uint32_t, at_inc>
                              : &atomic<std::uint32_t, at_dec>;
    }
    a.fail("wants an operation");
}

void atomically(assembler& a, bool gives) {
    ignore_hints(a);
    const auto where = a.take_space();
    if (where && *where != ptx::space::global && *where != ptx::space::shared)
        a.fail("works in .global and .shared");
    const type t = a.type_at(0);
    bool compares = false;
    run_function run = atomic_of(a, t, compares);
    if (run == nullptr)
        a.fail_type(t);
    std::size_t at = gives ? 1 : 0;
    a.want(at + (compares ? 3 : 2));
    std::optional<ptx::space> named;
    const slot base = a.base_of(a.arg(at), named);
    const slot b = a.from(a.arg(at + 1), t);
    const slot c = compares ? a.from(a.arg(at + 2), t) : slot{};
    const slot d = gives ? a.to(a.arg(0), t) : slot{};
    instruction& i = a.emit(run);
    set_address(i, base, a.arg(at), where ? where : named);
    i.to[0] = d;
    i.from[1] = b;
    i.from[2] = c;
}

} // namespace

void op_ld(assembler& a) {
    transfer(a, true);
}
void op_st(assembler& a) {
    transfer(a, false);
}
void op_atom(assembler& a) {
    atomically(a, true);
}
void op_red(assembler& a) {
    atomically(a, false);
}

} // namespace kagemusha::machine
