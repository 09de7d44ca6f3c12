// SPDX-License-Identifier: GPL-2.0-or-later
// assembler: modifiers and operands of one instruction.
#include "assembler.hpp"

#include "warp.hpp"

#include <bit>

namespace kagemusha::machine {

using ptx::quoted;

namespace {

struct special_name {
    std::string_view name;
    std::string_view suffix;
    special_register s;
};

using s = special_register;
constexpr special_name specials[] = {
    {"%tid", "x", s::tid_x},
    {"%tid", "y", s::tid_y},
    {"%tid", "z", s::tid_z},
    {"%ntid", "x", s::ntid_x},
    {"%ntid", "y", s::ntid_y},
    {"%ntid", "z", s::ntid_z},
    {"%ctaid", "x", s::ctaid_x},
    {"%ctaid", "y", s::ctaid_y},
    {"%ctaid", "z", s::ctaid_z},
    {"%nctaid", "x", s::nctaid_x},
    {"%nctaid", "y", s::nctaid_y},
    {"%nctaid", "z", s::nctaid_z},
    {"%laneid", "", s::laneid},
    {"%warpid", "", s::warpid},
    {"%nwarpid", "", s::nwarpid},
    {"%smid", "", s::smid},
    {"%nsmid", "", s::nsmid},
    {"%gridid", "", s::gridid},
    {"%lanemask_eq", "", s::lanemask_eq},
    {"%lanemask_le", "", s::lanemask_le},
    {"%lanemask_lt", "", s::lanemask_lt},
    {"%lanemask_ge", "", s::lanemask_ge},
    {"%lanemask_gt", "", s::lanemask_gt},
    {"%total_smem_size", "", s::total_smem},
    {"%dynamic_smem_size", "", s::dynamic_smem},
};

// dst = what the frame's local memory begins with + bits
void local_address(warp& w, const instruction& i, mask m) {
    std::uint64_t* d = w.set(i.to[0]);
    const std::uint64_t value = w.now->local_begin + i.bits;
    for_lanes(m, [&](std::uint32_t l) { d[l] = value; });
}

} // namespace

bool assembler::has(std::string_view modifier) {
    for (std::size_t k = 0; k < in_->modifiers.size(); k++) {
        if (in_->modifiers[k] == modifier) {
            used_ |= 1u << k;
            return true;
        }
    }
    return false;
}

std::optional<ptx::space> assembler::take_space() {
    for (std::size_t k = 0; k < in_->modifiers.size(); k++) {
        if (const auto where = ptx::space_of_name(in_->modifiers[k])) {
            used_ |= 1u << k;
            return where;
        }
    }
    return std::nullopt;
}

void assembler::ignore(std::initializer_list<std::string_view> modifiers) {
    for (std::string_view m : modifiers)
        has(m);
}

type assembler::type_at(std::size_t i) {
    if (i >= types_.size())
        fail("a type is missing");
    return types_[i];
}

void assembler::want(std::size_t operands) const {
    want(operands, operands);
}

void assembler::want(std::size_t least, std::size_t most) const {
    if (count() < least || count() > most) {
        fail("has " + std::to_string(count()) + " operands, wants " + std::to_string(least) +
             (most != least ? " to " + std::to_string(most) : ""));
    }
}

slot assembler::constant(std::uint64_t bits) {
    const auto [it, fresh] = constants_.emplace(bits, static_cast<std::uint32_t>(out_.constants.size()));
    if (fresh) {
        lanes all;
        for (std::uint64_t& v : all.v)
            v = bits;
        out_.constants.push_back(all);
    }
    return {slot::constant | it->second};
}

std::uint8_t assembler::width_of(const operand& o, type t) const {
    if (o.what == operand::kind::name) {
        if (const symbol* found = const_cast<assembler*>(this)->find_own(o.name);
            found != nullptr && found->what == symbol::kind::reg) {
            return static_cast<std::uint8_t>(ptx::size_of(found->of));
        }
    }
    return static_cast<std::uint8_t>(ptx::size_of(t));
}

// `wider`: of ld, st and cvt, which take registers that are wider than their type.
static bool register_takes(type wanted, type given, bool wider) {
    if (ptx::takes(wanted, given))
        return true;
    return wider && wanted != type::pred && given != type::pred &&
           ptx::size_of(given) >= ptx::size_of(wanted) &&
           (ptx::is_bits(given) || !ptx::is_float(wanted) || ptx::is_bits(wanted) ||
            (ptx::is_float(given) == ptx::is_float(wanted)));
}

const symbol* assembler::register_of(const operand& o, std::uint32_t& element) {
    const symbol* const found = o.what == operand::kind::name && o.offset == 0 ? find_own(o.name) : nullptr;
    if (found == nullptr || found->what != symbol::kind::reg)
        return nullptr;
    element = 0;
    if (found->elements == 1)
        return o.suffix.empty() ? found : nullptr;
    for (const std::string_view names : {"xyzw", "rgba"}) {
        const std::size_t place = o.suffix.size() == 1 ? names.find(o.suffix[0]) : std::string_view::npos;
        if (place < found->elements) {
            element = static_cast<std::uint32_t>(place);
            return found;
        }
    }
    return nullptr;
}

slot assembler::to(const operand& o, type t, bool wider) {
    if (o.what == operand::kind::sink)
        return scratch();
    std::uint32_t element = 0;
    const symbol* const found = register_of(o, element);
    if (found == nullptr)
        fail(quoted(o.name) + " is no register");
    if (!register_takes(t, found->of, wider)) {
        fail(quoted(o.name) + " is a register of ." + std::string(ptx::name_of(found->of)) + ", ." +
             std::string(ptx::name_of(t)) + " is wanted");
    }
    return {static_cast<std::uint32_t>(found->value) + element};
}

std::optional<slot> assembler::special_of(const operand& o, type t) {
    for (const special_name& n : specials) {
        if (n.name == o.name && n.suffix == o.suffix) {
            if (ptx::is_float(t) || t == type::pred || ptx::size_of(t) < 2)
                fail_type(t);
            return special(n.s);
        }
    }
    if (o.name.starts_with("%envreg") || o.name.starts_with("%pm"))
        return constant(0);
    return std::nullopt;
}

std::optional<std::uint64_t> assembler::immediate(const operand& o, type t) const {
    const std::uint64_t bits = ptx::size_of(t) == 8 ? ~0ull : (1ull << (8 * ptx::size_of(t))) - 1;
    switch (o.what) {
    case operand::kind::integer:
        if (t == type::pred)
            return o.bits != 0;
        if (t == type::f32 || t == type::f64)
            fail("an integer stands where a float is wanted");
        return o.bits & bits;
    case operand::kind::real32:
        if (t == type::f64) {
            return std::bit_cast<std::uint64_t>(
                static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(o.bits))));
        }
        return o.bits & bits;
    case operand::kind::real64:
        if (t == type::f32)
            return std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(o.bits)));
        return o.bits & bits;
    default:
        return std::nullopt;
    }
}

slot assembler::from(const operand& o, type t, bool wider) {
    if (const auto value = immediate(o, t))
        return constant(*value);
    if (o.what != operand::kind::name)
        fail("an operand is neither a register nor a number");
    if (const symbol* found = find_own(o.name); found != nullptr && found->what == symbol::kind::reg) {
        std::uint32_t element = 0;
        if (register_of(o, element) == nullptr || !register_takes(t, found->of, wider)) {
            fail(quoted(o.name) + " is a register of ." + std::string(ptx::name_of(found->of)) + ", ." +
                 std::string(ptx::name_of(t)) + " is wanted");
        }
        return {static_cast<std::uint32_t>(found->value) + element};
    }
    if (o.name.starts_with("%")) {
        if (const auto found = special_of(o, t))
            return *found;
    }
    if (o.name == "WARP_SZ")
        return constant(warp_lanes);
    const symbol& found = known(o.name);
    if (ptx::size_of(t) < 4 || ptx::is_float(t))
        fail_type(t);
    if (found.what == symbol::kind::variable) {
        symbol moved = found;
        moved.value += static_cast<std::uint64_t>(o.offset);
        return address_of(moved);
    }
    if (o.offset != 0)
        fail("only the address of a variable has an offset here");
    return address_of(found);
}

slot assembler::address_of(const symbol& found) {
    switch (found.what) {
    case symbol::kind::dynamic_shared:
        return special(special_register::dynamic_begin);
    case symbol::kind::function:
        return constant(window::code | found.value);
    case symbol::kind::variable:
        if (found.where == ptx::space::local) {
            const slot place = scratch();
            instruction& i = emit(&local_address);
            i.guard = slot{};
            i.to[0] = place;
            i.bits = found.value;
            return place;
        }
        return constant(found.value);
    default:
        fail("a name has no address");
    }
}

slot assembler::base_of(const operand& o, std::optional<ptx::space>& where) {
    if (o.what != operand::kind::address)
        fail("an address in brackets is wanted");
    if (o.name.empty())
        return constant(0);
    if (const symbol* found = find_own(o.name); found != nullptr && found->what == symbol::kind::reg) {
        const std::uint32_t bytes = ptx::size_of(found->of);
        if (bytes < 4 || found->of == type::f32 || found->of == type::f64)
            fail(quoted(o.name) + " cannot be an address");
        return {static_cast<std::uint32_t>(found->value)};
    }
    const symbol& found = known(o.name);
    where = found.what == symbol::kind::dynamic_shared ? ptx::space::shared : found.where;
    return address_of(found);
}

type bits_type(std::uint32_t bytes) {
    return bytes == 1 ? type::b8 : bytes == 2 ? type::b16 : bytes == 4 ? type::b32 : type::b64;
}

} // namespace kagemusha::machine
