// SPDX-License-Identifier: GPL-2.0-or-later
// parser: labels, instructions and their operands, constant expressions.
#include "parser.hpp"
#include "parser_core.hpp"

namespace kagemusha::ptx {

void parser::read_instruction(function& f) {
    instruction in;
    in.line = now_.line;
    if (accept('@')) {
        in.guard_negated = accept('!');
        in.guard = expect_word("a predicate");
    }
    const token first = now_;
    in.opcode = expect_word("an instruction");
    if (in.guard.empty() && accept(':')) {
        read_labelled(f, first);
        return;
    }
    while (now_.kind == token_kind::dotted) {
        in.modifiers.push_back(now_.text);
        advance();
        if (in.modifiers.size() > 16)
            fail("an instruction has too many modifiers");
    }
    while (!now_.is(';')) {
        in.operands.push_back(read_operand(0));
        if (!accept(','))
            break;
    }
    expect(';', "behind an instruction");
    statement s;
    s.line = in.line;
    s.index = static_cast<std::uint32_t>(f.instructions.size());
    f.body.push_back(s);
    f.instructions.push_back(std::move(in));
}

operand parser::read_group(char close, operand::kind kind, std::size_t depth) {
    operand o;
    o.what = kind;
    o.line = now_.line;
    advance();
    while (!now_.is(close)) {
        o.parts.push_back(read_operand(depth + 1));
        if (o.parts.size() > limits::params)
            fail("a list of operands is too long");
        if (!accept(','))
            break;
    }
    expect(close, "behind a list of operands");
    return o;
}

operand parser::read_operand(std::size_t depth) {
    if (depth > 2)
        fail("operands are nested too deeply");
    if (now_.is('['))
        return read_address();
    if (now_.is('{'))
        return read_group('}', operand::kind::vector, depth);
    if (now_.is('(') && depth == 0)
        return read_group(')', operand::kind::list, depth);
    operand o;
    o.line = now_.line;
    if (now_.is_word("_")) {
        advance();
        return o;
    }
    o.negated = accept('!');
    const bool minus = !o.negated && now_.is('-');
    if (now_.kind == token_kind::word) {
        o.what = operand::kind::name;
        o.name = expect_word("a name");
        if (now_.kind == token_kind::dotted) {
            o.suffix = now_.text;
            advance();
        }
        if (accept('|'))
            o.second = expect_word("a name behind '|'");
        if (now_.is('+') || now_.is('-')) { // the address of a variable, moved
            const bool back = now_.is('-');
            advance();
            const std::uint64_t offset = read_expression(0);
            o.offset = static_cast<std::int64_t>(back ? 0 - offset : offset);
        }
        return o;
    }
    if (minus)
        advance();
    if (now_.kind == token_kind::real32 || now_.kind == token_kind::real64) {
        o.what = now_.kind == token_kind::real32 ? operand::kind::real32 : operand::kind::real64;
        const std::uint64_t sign = now_.kind == token_kind::real32 ? 1ull << 31 : 1ull << 63;
        o.bits = now_.bits ^ (minus ? sign : 0);
        advance();
        return o;
    }
    o.what = operand::kind::integer;
    o.bits = read_expression(0);
    o.bits = minus ? 0 - o.bits : o.bits;
    return o;
}

// [%rd1+4], [name], [name+4], [64], [texture, {x, y}]
operand parser::read_address() {
    operand o;
    o.what = operand::kind::address;
    o.line = now_.line;
    expect('[', "before an address");
    if (now_.kind == token_kind::word) {
        o.name = expect_word("a name");
        if (now_.is('+') || now_.is('-')) {
            const bool back = now_.is('-');
            advance();
            const std::uint64_t offset = read_expression(0);
            o.offset = static_cast<std::int64_t>(back ? 0 - offset : offset);
        }
    } else {
        o.offset = static_cast<std::int64_t>(read_expression(0));
    }
    while (accept(',')) {
        o.parts.push_back(read_operand(1));
        if (o.parts.size() > 4)
            fail("an address has too many parts");
    }
    expect(']', "behind an address");
    return o;
}

// Sums, differences and products of integers, from left to right with the usual precedence of '*'.
std::uint64_t parser::read_expression(std::size_t depth) {
    if (depth > 32)
        fail("an expression is nested too deeply");
    std::uint64_t sum = read_term(depth);
    while (now_.is('+') || now_.is('-')) {
        const bool minus = now_.is('-');
        advance();
        const std::uint64_t term = read_term(depth);
        sum = minus ? sum - term : sum + term;
    }
    return sum;
}

std::uint64_t parser::read_term(std::size_t depth) {
    std::uint64_t product = 1;
    for (;;) {
        bool minus = false;
        bool inverted = false;
        while (now_.is('-') || now_.is('~') || now_.is('+')) {
            if (now_.is('~') && minus)
                fail("an expression with '-~' is not supported");
            minus ^= now_.is('-');
            inverted ^= now_.is('~');
            advance();
        }
        std::uint64_t factor = 0;
        if (accept('(')) {
            factor = read_expression(depth + 1);
            expect(')', "in an expression");
        } else {
            factor = expect_integer("of an operand");
        }
        factor = minus ? 0 - factor : factor;
        product *= inverted ? ~factor : factor;
        if (!now_.is('*'))
            return product;
        advance();
    }
}

} // namespace kagemusha::ptx
