// SPDX-License-Identifier: GPL-2.0-or-later
// parser: declarations of variables, with what they contain at first.
#include "parser.hpp"
#include "parser_core.hpp"

namespace kagemusha::ptx {

// .global .align 4 .v2 .u32 and the like, up to the name.
variable parser::read_variable_head() {
    variable v;
    v.line = now_.line;
    const auto where = now_.kind == token_kind::dotted ? space_of_name(now_.text) : std::nullopt;
    if (!where || *where == space::generic)
        fail("expected a state space, found " + quoted(now_.text));
    v.where = *where;
    advance();
    read_variable_type(v);
    return v;
}

void parser::read_variable_type(variable& v) {
    bool has_type = false;
    while (now_.kind == token_kind::dotted) {
        const std::string_view name = now_.text;
        if (name == "align") {
            advance();
            const std::uint64_t align = expect_integer("an alignment");
            if (align == 0 || align > 128 || (align & (align - 1)) != 0)
                fail("an alignment is a power of two up to 128");
            v.align = static_cast<std::uint32_t>(align);
            continue;
        }
        if (name == "v2" || name == "v4") {
            v.vector = name == "v2" ? 2 : 4;
        } else if (name == "ptr" || space_of_name(name)) { // .param .u64 .ptr .global .align 4 p: a hint
            const bool ptr = name == "ptr";
            advance();
            if (ptr && now_.kind == token_kind::dotted && space_of_name(now_.text))
                advance();
            if (now_.is_dotted("align")) {
                advance();
                expect_integer("an alignment");
            }
            continue;
        } else if (const auto t = type_of_name(name); t && !has_type) {
            v.of = *t;
            has_type = true;
        } else {
            fail("the type ." + std::string(name.substr(0, 40)) + " of a variable is not supported");
        }
        advance();
    }
    if (!has_type)
        fail("a variable has no type");
    if (v.of == type::pred && v.where != space::reg)
        fail("a predicate lies in .reg");
}

// name, or %r<8>; GCC has it for arguments of calls, too
void parser::read_variable_name(variable& v) {
    v.name = expect_word("a variable's name");
    if ((v.where == space::reg || v.where == space::param) && accept('<')) {
        const std::uint64_t count = expect_integer("how many variables");
        if (count > limits::numbered)
            fail("more than a million variables");
        v.numbered = static_cast<std::uint32_t>(count);
        expect('>', "behind a number of variables");
    }
}

void parser::read_dimensions(variable& v) {
    while (accept('[')) {
        v.array = true;
        if (accept(']')) {
            v.count = 0; // its content may say how many
            continue;
        }
        const std::uint64_t n = read_expression(0);
        if (__builtin_mul_overflow(v.count, n, &v.count))
            fail("an array is too large");
        expect(']', "behind an array's length");
    }
}

void parser::check_size(const variable& v) const {
    if (v.count > limits::variable / v.element())
        fail("a variable has more than 4 GiB");
    if (v.array && v.where == space::reg)
        fail("a register is no array");
}

initial parser::read_initial() {
    initial i;
    if (now_.kind == token_kind::real32 || now_.kind == token_kind::real64) {
        i.what = now_.kind == token_kind::real32 ? initial::kind::real32 : initial::kind::real64;
        i.bits = now_.bits;
        advance();
        return i;
    }
    if (now_.kind != token_kind::word) {
        const bool minus = accept('-');
        if (now_.kind == token_kind::real32 || now_.kind == token_kind::real64) {
            i = read_initial();
            i.bits ^= minus ? (i.what == initial::kind::real32 ? 1ull << 31 : 1ull << 63) : 0;
            return i;
        }
        i.bits = read_expression(0);
        i.bits = minus ? 0 - i.bits : i.bits;
        if (!now_.is('('))
            return i;
        // 0xFF00(symbol): one byte of its address
        advance();
        if (i.bits == 0 || (i.bits >> (__builtin_ctzll(i.bits) / 8 * 8)) != 0xff)
            fail("a mask of an address is 0xFF and whole bytes of zeros");
        i.shift = static_cast<std::uint32_t>(__builtin_ctzll(i.bits));
        i.bits = 0;
        i.one_byte = true;
        const initial inner = read_initial();
        if (inner.what != initial::kind::symbol || inner.one_byte)
            fail("a mask stands before a variable's name");
        i.what = inner.what;
        i.symbol = inner.symbol;
        i.bits = inner.bits;
        i.generic = inner.generic;
        expect(')', "behind a masked address");
        return i;
    }
    i.what = initial::kind::symbol;
    i.symbol = expect_word("a name");
    if (i.symbol == "generic" && accept('(')) {
        i.generic = true;
        i.symbol = expect_word("a name");
        expect(')', "behind generic(name");
    }
    if (now_.is('+') || now_.is('-')) {
        const bool minus = now_.is('-');
        advance();
        const std::uint64_t offset = read_expression(0);
        i.bits = minus ? 0 - offset : offset;
    }
    return i;
}

// {1, 2, {3, 4}} or a scalar. Inner braces of full rows change nothing; of short ones they would: those are
// refused by the count at the end, unless a row is short, which no compiler writes.
void parser::read_content(variable& v, std::size_t depth) {
    if (depth > 8)
        fail("braces are nested too deeply");
    if (!accept('{')) {
        v.content.push_back(read_initial());
        return;
    }
    while (!now_.is('}')) {
        read_content(v, depth + 1);
        if (!accept(','))
            break;
    }
    expect('}', "behind a variable's content");
}

void parser::read_variables(std::vector<variable>& out, linkage link) {
    const variable head = read_variable_head();
    do {
        variable v = head;
        v.line = now_.line;
        v.link = link;
        read_variable_name(v);
        read_dimensions(v);
        if (accept('=')) {
            if (v.where != space::global && v.where != space::constant)
                fail("only variables in .global and .const have content");
            read_content(v, 0);
            if (v.array && v.count == 0)
                v.count = (v.content.size() + v.vector - 1) / v.vector;
            if (v.content.size() > v.count * v.vector)
                fail("the variable " + quoted(v.name) + " has more content than elements");
        }
        check_size(v);
        out.push_back(std::move(v));
    } while (accept(','));
    expect(';', "behind a variable");
}

} // namespace kagemusha::ptx
