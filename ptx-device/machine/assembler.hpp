// SPDX-License-Identifier: GPL-2.0-or-later
// assembler: makes one function of a program from its syntax. The op_*.cpp files have, for each opcode, the
// function that checks one instruction with the methods here, and what it does when it runs.
#pragma once

#include "program.hpp"

#include "ptx-device/ptx/refusal.hpp"
#include "ptx-device/ptx/syntax.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kagemusha::machine {

using ptx::operand;
using ptx::type;

// What a name means.
struct symbol {
    enum class kind : std::uint8_t {
        reg,
        numbered,
        variable,
        dynamic_shared,
        function,
        label,
        targets,
        prototype
    };
    kind what = kind::reg;
    type of = type::b32;                    // of a register
    ptx::space where = ptx::space::generic; // of a variable
    std::uint64_t value = 0;                // slot, how many, address, index of function, list or prototype
    const ptx::prototype* interface = nullptr;
    std::uint8_t elements = 1; // of a register; those of a vector have slots side by side
};
using scope = std::unordered_map<std::string_view, symbol>;

class assembler {
public:
    assembler(program& whole, const scope& module_names, const ptx::function& source, function& out)
        : program_(whole), module_names_(module_names), source_(source), out_(out) {}

    void prepare(); // parameters and results: before any function is assembled that calls this one
    void assemble();

    // ---- the instruction at hand
    const ptx::instruction& in() const { return *in_; }
    std::size_t count() const { return in_->operands.size(); }
    const operand& arg(std::size_t i) const { return in_->operands[i]; }
    bool has(std::string_view modifier);    // and it is dealt with
    std::optional<ptx::space> take_space(); // .global, …
    type type_at(std::size_t i);            // of the types among the modifiers
    std::size_t types() const { return types_.size(); }
    void ignore(std::initializer_list<std::string_view> modifiers);
    void want(std::size_t operands) const; // exactly so many
    void want(std::size_t least, std::size_t most) const;
    [[noreturn]] void fail(const std::string& what) const;
    [[noreturn]] void fail_type(type t) const; // "add does not take .pred"

    // ---- operands
    slot to(const operand& o, type t, bool wider = false); // a register, or a place for what nobody wants
    slot from(const operand& o, type t, bool wider = false);
    slot scratch();
    slot constant(std::uint64_t bits);
    slot special(special_register s) const { return {slot::special | static_cast<std::uint32_t>(s)}; }
    std::uint8_t width_of(const operand& o, type t) const; // bytes of the register
    const symbol* find(std::string_view name);
    const symbol& known(std::string_view name);
    // The base of an address, and the space of the variable that it names.
    slot base_of(const operand& o, std::optional<ptx::space>& where);
    slot address_of(const symbol& s); // of a variable or function
    const ptx::prototype& prototype_at(std::uint64_t index) const { return source_.prototypes[index]; }

    // ---- results
    instruction& emit(run_function run); // with the instruction's guard
    instruction& emit_flow(flow leads);
    void emit_branch(std::string_view label); // and to a list of labels:
    std::uint32_t add_list(std::uint64_t index);
    std::uint32_t add_site(call_site site);
    program& whole() { return program_; }
    function& out() { return out_; }
    const ptx::function& source() const { return source_; }

private:
    void declare_interface();
    void declare(const ptx::variable& v);
    void one(const ptx::instruction& i);
    // A register of a vector without .x is all its elements in braces.
    const ptx::instruction& spread(const ptx::instruction& i);
    // The register that an operand names, and which of its elements; null: it names none.
    const symbol* register_of(const operand& o, std::uint32_t& element);
    void finish() const;
    symbol* find_own(std::string_view name);
    std::uint32_t param_place(const ptx::variable& v);
    std::optional<slot> special_of(const operand& o, type t);
    std::optional<std::uint64_t> immediate(const operand& o, type t) const;
    std::uint32_t target_of(std::string_view label, std::uint32_t line);

    struct pending_branch {
        std::size_t at;
        std::string_view label;
    };

    program& program_;
    const scope& module_names_;
    const ptx::function& source_;
    function& out_;
    std::vector<scope> scopes_;
    std::unordered_map<std::string_view, std::uint32_t> labels_; // → pc
    std::vector<pending_branch> branches_;
    std::vector<std::pair<std::uint32_t, std::uint64_t>> lists_; // of out_, of source_
    std::unordered_map<std::uint64_t, std::uint32_t> constants_;
    const ptx::instruction* in_ = nullptr;
    ptx::instruction spread_; // what in_ is then
    std::vector<type> types_;
    std::uint32_t used_ = 0; // modifiers dealt with, a bit each
    slot guard_;
    bool declaring_entry_ = false; // parameters lie in the launch's memory
};

// The functions behind the opcodes: opcode_table.cpp finds them by name.
using opcode_function = void (*)(assembler&);
opcode_function find_opcode(std::string_view name);

// Whether memory is read or written as this many bytes' type; the value's signedness.
type bits_type(std::uint32_t bytes);

} // namespace kagemusha::machine
