// SPDX-License-Identifier: GPL-2.0-or-later
// The opcodes that the device knows, each with the function that assembles it. README.md has the same names;
// a test compares them.
#include "assembler.hpp"
#include "build.hpp"

#include <unordered_map>

namespace kagemusha::machine {

#define KAGEMUSHA_PTX_OPCODES(one)                                                                           \
    one(abs) one(activemask) one(add) one(addc) one(and) one(atom) one(bar) one(bfe) one(bfi) one(bfind)     \
        one(bra) one(brev) one(brx) one(call) one(clz) one(cnot) one(copysign) one(cos) one(cvt) one(cvta)   \
            one(div) one(ex2) one(exit) one(fma) one(isspacep) one(ld) one(lg2) one(lop3) one(mad)           \
                one(mad24) one(madc) one(match) one(max) one(min) one(mov) one(mul) one(mul24) one(neg)      \
                    one(not) one(or) one(popc) one(prmt) one(rcp) one(red) one(redux) one(rem) one(ret)      \
                        one(rsqrt) one(sad) one(selp) one(set) one(setp) one(shf) one(shfl) one(shl)         \
                            one(shr) one(sin) one(slct) one(sqrt) one(st) one(suld) one(sust) one(sub)       \
                                one(subc) one(tanh) one(tex) one(testp) one(trap) one(vabsdiff) one(vadd)    \
                                    one(vmax) one(vmin) one(vote) one(vsub) one(xor) one(fence) one(hint)

#define KAGEMUSHA_PTX_DECLARE(name) void op_##name(assembler& a);
KAGEMUSHA_PTX_OPCODES(KAGEMUSHA_PTX_DECLARE)

namespace {

// `and`, `or`, `not` and `xor` are words of C++: as text they are what they were.
#define KAGEMUSHA_PTX_ROW(name) {#name, &op_##name},
// Never destroyed: programs call from exit handlers, too.
const auto& table = *new const std::unordered_map<std::string_view, opcode_function>{
    KAGEMUSHA_PTX_OPCODES(KAGEMUSHA_PTX_ROW)
    // the same by other names
    {"barrier", &op_bar},
    {"ldu", &op_ld},
    {"membar", &op_fence},
    {"prefetch", &op_hint},
    {"prefetchu", &op_hint},
    {"discard", &op_hint},
    {"applypriority", &op_hint},
    {"nanosleep", &op_hint},
    {"brkpt", &op_hint},
    {"pmevent", &op_hint},
};

} // namespace

opcode_function find_opcode(std::string_view name) {
    const auto it = table.find(name);
    return it != table.end() && name != "hint" ? it->second : nullptr;
}

std::vector<std::string_view> opcodes() {
    std::vector<std::string_view> names;
    for (const auto& [name, function] : table)
        if (name != "hint")
            names.push_back(name);
    return names;
}

} // namespace kagemusha::machine
