// SPDX-License-Identifier: GPL-2.0-or-later
// assembler: see assembler.hpp. Here: scopes, statements, labels.
#include "assembler.hpp"

#include <algorithm>

namespace kagemusha::machine {

using ptx::quoted;
using ptx::refuse;

namespace {

constexpr std::uint32_t slots_limit = 1u << 16;    // registers of one function
constexpr std::uint32_t local_limit = 512u << 10;  // bytes of a thread
constexpr std::uint32_t shared_limit = 227u << 10; // bytes of a block
constexpr std::uint64_t param_limit = 32764;       // bytes of one function
constexpr std::size_t code_limit = 1u << 22;       // instructions of one function

std::uint64_t aligned(std::uint64_t at, std::uint64_t to) {
    return (at + to - 1) / to * to;
}

} // namespace

void assembler::prepare() {
    scopes_.emplace_back();
    declare_interface();
}

void assembler::assemble() {
    for (const ptx::statement& s : source_.body) {
        switch (s.what) {
        case ptx::statement::kind::open:
            scopes_.emplace_back();
            break;
        case ptx::statement::kind::close:
            scopes_.pop_back();
            break;
        case ptx::statement::kind::variable:
            declare(source_.variables[s.index]);
            break;
        case ptx::statement::kind::label:
            if (!labels_.emplace(s.label, static_cast<std::uint32_t>(out_.code.size())).second)
                refuse(s.line, "the label " + quoted(s.label) + " stands twice");
            break;
        case ptx::statement::kind::targets:
            scopes_.back()[s.label] = {symbol::kind::targets, type::b32, ptx::space::generic, s.index,
                                       nullptr};
            break;
        case ptx::statement::kind::prototype:
            scopes_.back()[s.label] = {symbol::kind::prototype, type::b32, ptx::space::generic, s.index,
                                       nullptr};
            break;
        case ptx::statement::kind::instruction:
            one(source_.instructions[s.index]);
            break;
        }
        if (out_.code.size() > code_limit)
            refuse(s.line, "a function has more than four million instructions");
    }
    instruction end; // a function may end without ret
    end.leads = flow::ret;
    end.line = source_.line;
    out_.code.push_back(end);
    for (const pending_branch& b : branches_)
        out_.code[b.at].target = target_of(b.label, out_.code[b.at].line);
    for (const auto& [list, from] : lists_)
        for (std::string_view label : source_.targets[from])
            out_.lists[list].push_back(target_of(label, source_.line));
}

std::uint32_t assembler::target_of(std::string_view label, std::uint32_t line) {
    const auto it = labels_.find(label);
    if (it == labels_.end())
        refuse(line, "there is no label " + quoted(label));
    return it->second;
}

// A place in the frame's parameters, or in the launch's.
std::uint32_t assembler::param_place(const ptx::variable& v) {
    std::uint32_t& end = declaring_entry_ ? out_.entry_param_bytes : out_.param_bytes;
    const std::uint64_t begin = aligned(end, v.alignment());
    if (begin + v.bytes() > param_limit)
        refuse(v.line, "a function has more than 32764 bytes of parameters");
    end = static_cast<std::uint32_t>(begin + v.bytes());
    return static_cast<std::uint32_t>(begin);
}

void assembler::declare_interface() {
    for (const bool result : {true, false}) {
        for (const ptx::variable& v : result ? source_.interface.returns : source_.interface.params) {
            if (v.numbered != 0)
                refuse(v.line, "a parameter has a name of its own");
            if (v.where == ptx::space::reg) {
                if (out_.entry)
                    refuse(v.line, "an entry has parameters in .param only");
                declare(v);
                const symbol& s = *find_own(v.name);
                (result ? out_.results : out_.params)
                    .push_back({slot{static_cast<std::uint32_t>(s.value)}.index(), ptx::size_of(v.of), true});
                continue;
            }
            declaring_entry_ = out_.entry;
            const std::uint32_t offset = param_place(v);
            declaring_entry_ = false;
            const std::uint64_t address = out_.entry ? offset : window::frame_param | offset;
            scopes_.back()[v.name] = {symbol::kind::variable, v.of, ptx::space::param, address, nullptr};
            (result ? out_.results : out_.params)
                .push_back({offset, static_cast<std::uint32_t>(v.bytes()), false});
        }
    }
}

void assembler::declare(const ptx::variable& v) {
    symbol s;
    s.of = v.of;
    s.where = v.where;
    if (v.where == ptx::space::reg) {
        if (v.vector != 1 && (v.numbered != 0 || v.of == type::pred))
            refuse(v.line, "numbered registers of vectors, or of predicates, are not supported");
        if (v.vector != 1) {
            s.elements = static_cast<std::uint8_t>(v.vector);
            s.value = scratch().id;
            for (std::uint32_t k = 1; k < v.vector; k++)
                scratch();
        } else if (v.numbered != 0) {
            s.what = symbol::kind::numbered;
            s.value = v.numbered;
        } else {
            s.value = scratch().id;
        }
    } else if (v.where == ptx::space::local) {
        s.what = symbol::kind::variable;
        s.value = aligned(out_.local_bytes, v.alignment());
        if (v.bytes() > local_limit || s.value + v.bytes() > local_limit)
            refuse(v.line, "a thread has 512 KiB of local memory");
        out_.local_bytes = static_cast<std::uint32_t>(aligned(s.value + v.bytes(), 16));
    } else if (v.where == ptx::space::shared) {
        if (v.link == ptx::linkage::external) {
            s.what = symbol::kind::dynamic_shared;
        } else {
            s.what = symbol::kind::variable;
            s.value = aligned(out_.shared_bytes, v.alignment());
            if (v.bytes() > shared_limit || s.value + v.bytes() > shared_limit)
                refuse(v.line, "a block has 227 KiB of shared memory");
            out_.shared_bytes = static_cast<std::uint32_t>(s.value + v.bytes());
        }
    } else if (v.where == ptx::space::param && v.numbered != 0) {
        if (v.vector != 1 || v.array || v.align != 0)
            refuse(v.line, "only scalars are numbered");
        s.what = symbol::kind::numbered;
        s.value = v.numbered;
    } else if (v.where == ptx::space::param) {
        s.what = symbol::kind::variable;
        s.value = window::frame_param | param_place(v);
    } else {
        refuse(v.line, "a variable of a function lies in .reg, .local, .shared or .param here");
    }
    scopes_.back()[v.name] = s;
}

symbol* assembler::find_own(std::string_view name) {
    for (std::size_t k = scopes_.size(); k-- > 0;) {
        scope& names = scopes_[k];
        if (const auto it = names.find(name); it != names.end())
            return &it->second;
        // %r12 of .reg %r<20>; a prefix may end in digits, too.
        std::size_t digits = name.size();
        while (digits > 1 && name[digits - 1] >= '0' && name[digits - 1] <= '9' && name.size() - digits < 7) {
            digits--;
            const auto it = names.find(name.substr(0, digits));
            if (it == names.end() || it->second.what != symbol::kind::numbered ||
                (name[digits] == '0' && name.size() - digits > 1)) {
                continue;
            }
            std::uint64_t number = 0;
            for (char c : name.substr(digits))
                number = number * 10 + static_cast<std::uint64_t>(c - '0');
            if (number < it->second.value) {
                symbol s;
                s.of = it->second.of;
                if (it->second.where == ptx::space::param) {
                    ptx::variable one;
                    one.where = s.where = ptx::space::param;
                    one.of = s.of;
                    s.what = symbol::kind::variable;
                    s.value = window::frame_param | param_place(one);
                } else {
                    s.value = scratch().id;
                }
                return &(names[name] = s);
            }
        }
    }
    return nullptr;
}

const symbol* assembler::find(std::string_view name) {
    if (const symbol* own = find_own(name))
        return own;
    const auto it = module_names_.find(name);
    return it != module_names_.end() ? &it->second : nullptr;
}

const symbol& assembler::known(std::string_view name) {
    const symbol* s = find(name);
    if (s == nullptr)
        fail("there is no " + quoted(name));
    return *s;
}

slot assembler::scratch() {
    if (out_.slots >= slots_limit)
        refuse(in_ != nullptr ? in_->line : source_.line, "a function has more than 65536 registers");
    return {slot::in_frame | out_.slots++};
}

const ptx::instruction& assembler::spread(const ptx::instruction& i) {
    const auto elements = [&](const operand& o) -> std::uint32_t {
        const symbol* const s =
            o.what == operand::kind::name && o.suffix.empty() ? find_own(o.name) : nullptr;
        return s != nullptr && s->what == symbol::kind::reg ? s->elements : 1;
    };
    if (std::all_of(i.operands.begin(), i.operands.end(), [&](const operand& o) { return elements(o) == 1; }))
        return i;
    spread_ = i;
    for (operand& o : spread_.operands) {
        const std::uint32_t count = elements(o);
        if (count == 1)
            continue;
        operand group;
        group.what = operand::kind::vector;
        group.line = o.line;
        for (std::uint32_t k = 0; k < count; k++) {
            group.parts.push_back(o);
            group.parts.back().suffix = std::string_view("xyzw").substr(k, 1);
        }
        o = std::move(group);
    }
    return spread_;
}

void assembler::one(const ptx::instruction& written) {
    in_ = &written;
    const ptx::instruction& i = spread(written);
    in_ = &i;
    used_ = 0;
    types_.clear();
    guard_ = slot{};
    for (std::size_t k = 0; k < i.modifiers.size(); k++) {
        if (const auto t = ptx::type_of_name(i.modifiers[k])) {
            types_.push_back(*t);
            used_ |= 1u << k;
        }
    }
    const opcode_function make = find_opcode(i.opcode);
    if (make == nullptr)
        fail("the instruction is not supported");
    if (!i.guard.empty()) {
        operand o;
        o.what = operand::kind::name;
        o.name = i.guard;
        guard_ = from(o, type::pred);
    }
    make(*this);
    finish();
}

void assembler::finish() const {
    for (std::size_t k = 0; k < in_->modifiers.size(); k++)
        if ((used_ >> k & 1) == 0)
            fail("the modifier ." + std::string(in_->modifiers[k].substr(0, 40)) + " is not supported here");
}

void assembler::fail(const std::string& what) const {
    refuse(in_ != nullptr ? in_->line : source_.line,
           (in_ != nullptr ? std::string(in_->opcode.substr(0, 40)) : "") + ": " + what);
}

void assembler::fail_type(type t) const {
    fail("does not take ." + std::string(ptx::name_of(t)));
}

instruction& assembler::emit(run_function run) {
    instruction i;
    i.run = run;
    i.guard = guard_;
    i.guard_negated = in_->guard_negated;
    i.line = in_->line;
    out_.code.push_back(i);
    return out_.code.back();
}

instruction& assembler::emit_flow(flow leads) {
    instruction& i = emit(nullptr);
    i.leads = leads;
    return i;
}

void assembler::emit_branch(std::string_view label) {
    branches_.push_back({out_.code.size(), label});
    emit_flow(flow::branch);
}

std::uint32_t assembler::add_list(std::uint64_t index) {
    out_.lists.emplace_back();
    lists_.emplace_back(static_cast<std::uint32_t>(out_.lists.size() - 1), index);
    return lists_.back().first;
}

std::uint32_t assembler::add_site(call_site site) {
    out_.sites.push_back(std::move(site));
    return static_cast<std::uint32_t>(out_.sites.size() - 1);
}

} // namespace kagemusha::machine
