// SPDX-License-Identifier: GPL-2.0-or-later
// parser_core: the class behind parse(). One token ahead; a method for each construct. Its methods lie in
// three files: parser.cpp (the module and its functions), parser_variable.cpp, parser_instruction.cpp.
#pragma once

#include "lexer.hpp"
#include "refusal.hpp"
#include "syntax.hpp"

#include <optional>

namespace kagemusha::ptx {

class parser {
public:
    explicit parser(std::string_view text) : lexer_(text) { advance(); }

    module read_module();

private:
    // Tokens.
    void advance();
    bool accept(char c);
    void expect(char c, const char* where);
    std::string_view expect_word(const char* what);
    std::uint64_t expect_integer(const char* what);
    [[noreturn]] void fail(const std::string& what) const;

    // The module.
    void read_header(module& m);
    void read_top(module& m);
    bool skip_directive();
    linkage read_linkage();

    // Functions.
    void read_function(module& m, linkage link);
    void read_function_directives(function& f);
    std::vector<variable> read_params(bool in_prototype);
    void read_body(function& f);
    void read_labelled(function& f, token label);
    prototype read_call_prototype();

    // Variables.
    void read_variables(std::vector<variable>& out, linkage link);
    variable read_variable_head();
    void read_variable_type(variable& v);
    void read_variable_name(variable& v);
    void read_dimensions(variable& v);
    void read_content(variable& v, std::size_t depth);
    initial read_initial();
    void check_size(const variable& v) const;

    // Instructions.
    void read_instruction(function& f);
    operand read_operand(std::size_t depth);
    operand read_address();
    operand read_group(char close, operand::kind kind, std::size_t depth);
    std::uint64_t read_expression(std::size_t depth);
    std::uint64_t read_term(std::size_t depth);

    lexer lexer_;
    token now_;
};

} // namespace kagemusha::ptx
