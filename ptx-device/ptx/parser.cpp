// SPDX-License-Identifier: GPL-2.0-or-later
// parser: see parser.hpp. Here: tokens, the module, its functions.
#include "parser.hpp"

#include "parser_core.hpp"

namespace kagemusha::ptx {

result<module> parse(std::string_view text) {
    result<module> r;
    if (text.size() > limits::text) {
        r.why = {0, "the module has more than 256 MiB"};
        return r;
    }
    try {
        r.value = parser(text).read_module();
        r.ok = true;
    } catch (refusal& why) {
        r.why = std::move(why);
    }
    return r;
}

void parser::advance() {
    now_ = lexer_.next();
}

bool parser::accept(char c) {
    if (!now_.is(c))
        return false;
    advance();
    return true;
}

void parser::fail(const std::string& what) const {
    refuse(now_.line, what);
}

void parser::expect(char c, const char* where) {
    if (!accept(c)) {
        const std::string found = now_.kind == token_kind::end ? "the end" : quoted(now_.text);
        fail(std::string("expected '") + c + "' " + where + ", found " + found);
    }
}

std::string_view parser::expect_word(const char* what) {
    if (now_.kind != token_kind::word)
        fail(std::string("expected ") + what);
    const std::string_view text = now_.text;
    advance();
    return text;
}

std::uint64_t parser::expect_integer(const char* what) {
    if (now_.kind != token_kind::integer)
        fail(std::string("expected a number: ") + what);
    const std::uint64_t bits = now_.bits;
    advance();
    return bits;
}

module parser::read_module() {
    module m;
    read_header(m);
    while (now_.kind != token_kind::end)
        read_top(m);
    if (m.address_size != 64)
        refuse(0, "the module has addresses of 32 bits; this device has 64");
    return m;
}

// .version 8.5  .target sm_70, debug  .address_size 64
void parser::read_header(module& m) {
    if (!now_.is_dotted("version"))
        fail("a module begins with .version");
    advance();
    // The lexer reads 8.5 as a number with a fraction; its text has both parts.
    if (now_.kind != token_kind::real64)
        fail("expected a version like 7.0");
    const std::size_t dot = now_.text.find('.');
    std::uint32_t major = 0;
    std::uint32_t minor = 0;
    for (std::size_t i = 0; i < now_.text.size() && now_.text.size() <= 6; i++) {
        if (i != dot) {
            std::uint32_t& part = i < dot ? major : minor;
            part = part * 10 + static_cast<std::uint32_t>(now_.text[i] - '0');
        }
    }
    m.version = major * 100 + minor;
    if (major < 1 || major > 9 || minor > 99)
        fail("versions 1 to 9 of PTX are known");
    advance();
    if (!now_.is_dotted("target"))
        fail("expected .target behind .version");
    do {
        advance();
        const std::string_view name = expect_word("a target like sm_70");
        if (name.starts_with("sm_")) {
            for (char c : name.substr(3, 4)) {
                m.target =
                    c >= '0' && c <= '9' ? m.target * 10 + static_cast<std::uint32_t>(c - '0') : m.target;
            }
        }
    } while (now_.is(','));
}

linkage parser::read_linkage() {
    linkage link = linkage::own;
    for (;;) {
        if (now_.is_dotted("visible"))
            link = linkage::visible;
        else if (now_.is_dotted("extern"))
            link = linkage::external;
        else if (now_.is_dotted("weak"))
            link = linkage::weak;
        else if (now_.is_dotted("common"))
            link = linkage::common;
        else
            return link;
        advance();
    }
}

// Directives that say something to debuggers and optimisers: nothing of them changes a result.
bool parser::skip_directive() {
    if (now_.is_dotted("file") || now_.is_dotted("loc") || now_.is_dotted("pragma")) {
        const std::uint32_t line = now_.line;
        const bool pragma = now_.is_dotted("pragma");
        advance();
        while (now_.kind != token_kind::end && (pragma ? !now_.is(';') : now_.line == line))
            advance();
        if (pragma)
            expect(';', "behind .pragma");
        return true;
    }
    if (now_.is_dotted("section")) {
        while (now_.kind != token_kind::end && !now_.is('}'))
            advance();
        expect('}', "at the end of .section");
        return true;
    }
    return false;
}

void parser::read_top(module& m) {
    if (accept(';') || skip_directive())
        return;
    if (now_.is_dotted("address_size")) {
        advance();
        const std::uint64_t size = expect_integer("the size of an address");
        if (size != 32 && size != 64)
            fail("an address has 32 or 64 bits");
        m.address_size = static_cast<std::uint32_t>(size);
        return;
    }
    if (now_.is_dotted("alias"))
        fail(".alias is not supported");
    const linkage link = read_linkage();
    if (now_.is_dotted("entry") || now_.is_dotted("func"))
        read_function(m, link);
    else if (now_.kind == token_kind::dotted)
        read_variables(m.variables, link);
    else
        fail("expected a variable or a function, found " + quoted(now_.text));
}

void parser::read_function(module& m, linkage link) {
    function f;
    f.line = now_.line;
    f.entry = now_.is_dotted("entry");
    f.link = link;
    advance();
    read_function_directives(f); // .noreturn may stand here
    if (!f.entry && now_.is('('))
        f.interface.returns = read_params(false);
    f.name = expect_word("a function's name");
    if (now_.is('('))
        f.interface.params = read_params(false);
    read_function_directives(f);
    if (now_.is('{')) {
        f.has_body = true;
        read_body(f);
    } else {
        expect(';', "behind a function without a body");
    }
    m.functions.push_back(std::move(f));
}

void parser::read_function_directives(function& f) {
    while (now_.kind == token_kind::dotted) {
        const std::string_view name = now_.text;
        if (name == "noreturn") {
            f.interface.noreturn = true;
            advance();
        } else if (name == "maxntid" || name == "reqntid") {
            f.exact_threads = name == "reqntid";
            std::uint32_t i = 0;
            do {
                advance();
                const std::uint64_t threads = expect_integer("threads of a block");
                if (i > 2 || threads == 0 || threads > 1024)
                    fail("a block has up to three sizes of 1 to 1024 threads");
                f.max_threads[i++] = static_cast<std::uint32_t>(threads);
            } while (now_.is(','));
        } else if (name == "minnctapersm" || name == "maxnreg" || name == "maxnctapersm" ||
                   name == "maxclusterrank") {
            advance();
            expect_integer("the value of a directive");
        } else if (name == "abi_preserve" || name == "abi_preserve_control") {
            advance();
            expect_integer("the value of a directive");
        } else if (!skip_directive()) {
            fail("the directive ." + std::string(name.substr(0, 40)) + " is not supported here");
        }
    }
}

// (.param .u64 a, .param .align 8 .b8 b[16], .reg .u32 c)
std::vector<variable> parser::read_params(bool in_prototype) {
    std::vector<variable> out;
    std::uint64_t bytes = 0;
    expect('(', "before parameters");
    while (!now_.is(')')) {
        variable v = read_variable_head();
        if (v.where != space::param && v.where != space::reg)
            fail("a parameter lies in .param or .reg");
        read_variable_name(v);
        read_dimensions(v);
        check_size(v);
        if (v.array && v.count == 0 && !in_prototype)
            fail("variable arguments are not supported");
        bytes += v.bytes() + v.alignment();
        if (out.size() >= limits::params || bytes > 2 * limits::param_bytes)
            fail("a function has more than 32764 bytes of parameters");
        out.push_back(std::move(v));
        if (!accept(','))
            break;
    }
    expect(')', "behind parameters");
    return out;
}

prototype parser::read_call_prototype() {
    prototype p;
    if (now_.is('('))
        p.returns = read_params(true);
    expect_word("_ in a prototype");
    if (now_.is('('))
        p.params = read_params(true);
    if (now_.is_dotted("noreturn")) {
        p.noreturn = true;
        advance();
    }
    return p;
}

void parser::read_labelled(function& f, token label) {
    statement s;
    s.line = label.line;
    s.label = label.text;
    if (now_.is_dotted("branchtargets") || now_.is_dotted("calltargets")) {
        advance();
        std::vector<std::string_view> names;
        do {
            names.push_back(expect_word("a label"));
        } while (accept(','));
        s.what = statement::kind::targets;
        s.index = static_cast<std::uint32_t>(f.targets.size());
        f.targets.push_back(std::move(names));
        expect(';', "behind a list of targets");
    } else if (now_.is_dotted("callprototype")) {
        advance();
        s.what = statement::kind::prototype;
        s.index = static_cast<std::uint32_t>(f.prototypes.size());
        f.prototypes.push_back(read_call_prototype());
        expect(';', "behind a prototype");
    } else {
        s.what = statement::kind::label;
    }
    f.body.push_back(s);
}

void parser::read_body(function& f) {
    std::size_t depth = 0;
    do {
        statement s;
        s.line = now_.line;
        if (now_.kind == token_kind::end)
            fail("the function " + quoted(f.name) + " does not end");
        if (now_.is('{') || now_.is('}')) {
            s.what = now_.is('{') ? statement::kind::open : statement::kind::close;
            depth += now_.is('{') ? 1 : -1;
            advance();
            f.body.push_back(s);
        } else if (accept(';') || skip_directive()) {
            continue;
        } else if (now_.kind == token_kind::dotted) {
            std::size_t first = f.variables.size();
            read_variables(f.variables, read_linkage());
            for (; first < f.variables.size(); first++) {
                s.what = statement::kind::variable;
                s.index = static_cast<std::uint32_t>(first);
                f.body.push_back(s);
            }
        } else {
            read_instruction(f);
        }
    } while (depth > 0);
}

} // namespace kagemusha::ptx
