// SPDX-License-Identifier: GPL-2.0-or-later
// Where control goes: branches, calls, the end, barriers of a block.
#include "op_pick.hpp"

namespace kagemusha::machine {

namespace {

void nothing(warp&, const instruction&, mask) {}

// Where an argument or a result of a call lies with the caller.
passing passed(assembler& a, const operand& o, const parameter& callee, bool result) {
    passing p;
    p.callee_slot = callee.in_slot;
    p.callee = callee.offset;
    p.bytes = callee.bytes;
    const symbol* s = o.what == operand::kind::name ? a.find(o.name) : nullptr;
    if (s != nullptr && s->what == symbol::kind::variable && s->where == ptx::space::param) {
        if ((s->value & window::frame_param) == 0)
            a.fail("a kernel's parameter is passed on by its value");
        p.caller = static_cast<std::uint32_t>(s->value);
        if (p.caller + std::uint64_t{p.bytes} > a.out().param_bytes || (p.callee_slot && p.bytes > 8))
            a.fail("an argument is smaller than the parameter");
        return p;
    }
    if (p.bytes != 1 && p.bytes != 2 && p.bytes != 4 && p.bytes != 8)
        a.fail("an array is passed in .param");
    p.caller_slot = true;
    const type t = p.bytes == 1 && s != nullptr && s->of == type::pred ? type::pred : bits_type(p.bytes);
    p.caller = result ? a.to(o, t, true).id : a.from(o, t, true).id;
    return p;
}

// The parameters of a prototype, laid out as declare_interface() does it.
void lay_out(const ptx::prototype& p, std::vector<parameter>& results, std::vector<parameter>& params) {
    std::uint64_t end = 0;
    for (const bool result : {true, false}) {
        for (const ptx::variable& v : result ? p.returns : p.params) {
            if (v.where == ptx::space::reg) {
                (result ? results : params).push_back({0, ptx::size_of(v.of), true});
                continue;
            }
            end = (end + v.alignment() - 1) / v.alignment() * v.alignment();
            (result ? results : params)
                .push_back({static_cast<std::uint32_t>(end), static_cast<std::uint32_t>(v.bytes()), false});
            end += v.bytes();
        }
    }
}

const std::vector<operand>& list_of(assembler& a, std::size_t i) {
    static const std::vector<operand> none;
    if (i >= a.count())
        return none;
    if (a.arg(i).what != operand::kind::list)
        a.fail("arguments stand in parentheses");
    return a.arg(i).parts;
}

} // namespace

void op_bra(assembler& a) {
    a.want(1);
    a.ignore({"uni"});
    if (a.arg(0).what != operand::kind::name)
        a.fail("wants a label");
    a.emit_branch(a.arg(0).name);
}

void op_brx(assembler& a) {
    a.want(2);
    if (!a.has("idx"))
        a.fail("wants .idx");
    a.ignore({"uni"});
    const slot index = a.from(a.arg(0), type::u32);
    const symbol& list = a.known(a.arg(1).name);
    if (list.what != symbol::kind::targets)
        a.fail("wants a list of targets");
    const std::uint32_t number = a.add_list(list.value);
    instruction& i = a.emit_flow(flow::indexed);
    i.from[0] = index;
    i.target = number;
}

// call (results), function, (arguments), prototype;  results and arguments may be missing
void op_call(assembler& a) {
    a.want(1, 4);
    a.ignore({"uni"});
    const std::size_t at = a.arg(0).what == operand::kind::list ? 1 : 0;
    if (at >= a.count() || a.arg(at).what != operand::kind::name)
        a.fail("wants a function");
    static const std::vector<operand> none;
    const std::vector<operand>& results = at == 1 ? a.arg(0).parts : none;
    const std::vector<operand>& arguments = list_of(a, at + 1);
    const symbol& callee = a.known(a.arg(at).name);
    call_site site;
    std::vector<parameter> wanted_results;
    std::vector<parameter> wanted;
    if (callee.what == symbol::kind::function) {
        site.callee = a.whole().functions[callee.value].get();
        if (site.callee->entry)
            a.fail("a kernel cannot be called");
        wanted_results = site.callee->results;
        wanted = site.callee->params;
    } else {
        site.target = a.from(a.arg(at), type::u64);
        if (a.count() != at + 3)
            a.fail("a call through a register needs a prototype");
        const symbol& p = a.known(a.arg(at + 2).name);
        if (p.what != symbol::kind::prototype)
            a.fail("a call through a register needs a prototype");
        lay_out(a.prototype_at(p.value), wanted_results, wanted);
    }
    if (results.size() != wanted_results.size() || arguments.size() != wanted.size()) {
        a.fail("the function has " + std::to_string(wanted.size()) + " parameters and " +
               std::to_string(wanted_results.size()) + " results");
    }
    for (std::size_t k = 0; k < results.size(); k++)
        site.results.push_back(passed(a, results[k], wanted_results[k], true));
    for (std::size_t k = 0; k < arguments.size(); k++)
        site.arguments.push_back(passed(a, arguments[k], wanted[k], false));
    const std::uint32_t number = a.add_site(std::move(site));
    a.emit_flow(flow::call).target = number;
}

void op_ret(assembler& a) {
    a.want(0);
    a.ignore({"uni"});
    a.emit_flow(flow::ret);
}
void op_exit(assembler& a) {
    a.want(0);
    a.emit_flow(flow::exit);
}
void op_trap(assembler& a) {
    a.want(0);
    a.emit_flow(flow::trap);
}

// bar.sync a{, b}; bar.arrive a, b; bar.red.popc.u32 d, a{, b}, p; bar.warp.sync m; barrier is the same.
void op_bar(assembler& a) {
    a.ignore({"cta", "aligned"});
    if (a.has("warp")) {
        a.ignore({"sync"});
        a.want(1);
        const slot members = a.from(a.arg(0), type::u32);
        instruction& i = a.emit(&nothing);
        i.from[3] = members;
        i.converges = true;
        return;
    }
    const bool red = a.has("red");
    const bool arrives = a.has("arrive");
    if (!red && !arrives && !a.has("sync"))
        a.fail("wants .sync, .arrive or .red");
    const std::uint8_t option = a.has("popc") ? 1 : a.has("and") ? 2 : a.has("or") ? 3 : 0;
    std::size_t at = 0;
    slot d;
    slot p;
    bool negated = false;
    std::size_t end = a.count();
    if (red) {
        a.want(3, 4);
        if (option == 0)
            a.fail("wants .popc, .and or .or");
        d = a.to(a.arg(at++), option == 1 ? type::u32 : type::pred);
        p = a.from(a.arg(--end), type::pred);
        negated = a.arg(end).negated;
    } else {
        a.want(arrives ? 2 : 1, 2);
    }
    const slot number = a.from(a.arg(at), type::u32);
    const slot threads = at + 1 < end ? a.from(a.arg(at + 1), type::u32) : slot{};
    instruction& i = a.emit_flow(arrives ? flow::arrive : flow::barrier);
    i.to[0] = d;
    i.from[0] = number;
    i.from[1] = threads;
    i.from[2] = p;
    i.bits = negated ? 1 : 0;
    i.option = option;
}

// Lanes of a block share one thread of the host, so memory has one order: there is nothing to wait for.
void op_fence(assembler& a) {
    a.ignore({"sc", "acq_rel", "cta", "gl", "sys", "gpu", "cluster", "level", "acquire", "release"});
    a.want(0);
    a.emit(&nothing);
}

void op_hint(assembler& a) { // prefetch, discard, applypriority, nanosleep, brkpt: change no value
    for (std::string_view modifier : a.in().modifiers)
        a.has(modifier);
    if (a.in().opcode == "nanosleep") {
        a.want(1);
        a.from(a.arg(0), type::u32);
    }
    a.emit(&nothing);
}

} // namespace kagemusha::machine
