// SPDX-License-Identifier: GPL-2.0-or-later
// build: see build.hpp. Names of all modules first, then content of variables, then the functions' code.
#include "build.hpp"

#include "assembler.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kagemusha::machine {

using ptx::linkage;
using ptx::quoted;
using ptx::refuse;

namespace {

builtin builtin_of(std::string_view name, const ptx::prototype& p) {
    const auto like = [&](std::size_t params, std::size_t results) {
        if (p.params.size() != params || p.returns.size() != results)
            return false;
        for (const auto& list : {p.params, p.returns}) {
            for (const ptx::variable& v : list)
                if (v.where != ptx::space::param || v.array)
                    return false;
        }
        return true;
    };
    if (name == "vprintf" && like(2, 1))
        return builtin::vprintf;
    if (name == "__assertfail" && like(5, 0))
        return builtin::assertfail;
    if (name == "malloc" && like(1, 1))
        return builtin::malloc;
    return name == "free" && like(1, 0) ? builtin::free : builtin::none;
}

class linker {
public:
    linker(std::span<const ptx::module> modules, const placer& place) : modules_(modules), place_(place) {
        names_.resize(modules.size());
    }

    program link() {
        for (const ptx::module& m : modules_) {
            made_.ptx_version = std::max(made_.ptx_version, m.version);
            made_.target = std::max(made_.target, m.target);
        }
        for (std::size_t k = 0; k < modules_.size(); k++)
            define(k);
        for (std::size_t k = 0; k < modules_.size(); k++)
            resolve(k);
        for (const auto& [v, address, module] : contents_)
            fill(*v, address, names_[module]);
        for (job& j : jobs_)
            j.code.prepare();
        for (job& j : jobs_) {
            if (j.source->has_body) {
                j.out->shared_bytes = j.out->entry ? common_shared_ : 0;
                j.code.assemble();
                check_shared(j);
            }
        }
        return std::move(made_);
    }

private:
    struct job {
        const ptx::function* source;
        function* out;
        assembler code;
    };
    struct content {
        const ptx::variable* v;
        std::uint64_t address;
        std::size_t module;
    };

    static bool shared_by_modules(linkage l) { return l != linkage::own; }

    // A function's own shared variables lie behind those of all modules, in an entry. In other functions they
    // would lie at the same place in each: no compiler puts them there.
    static void check_shared(const job& j) {
        if (!j.out->entry && j.out->shared_bytes != 0)
            refuse(j.source->line, "shared variables of a function that is no entry are not supported");
    }

    void define(std::size_t module) {
        const ptx::module& m = modules_[module];
        for (const ptx::variable& v : m.variables)
            if (v.link != linkage::external)
                define_variable(v, module);
        for (const ptx::function& f : m.functions)
            if (f.has_body)
                define_function(f, module);
    }

    void define_variable(const ptx::variable& v, std::size_t module) {
        symbol s;
        s.what = symbol::kind::variable;
        s.of = v.of;
        s.where = v.where;
        const bool everywhere = shared_by_modules(v.link);
        if (everywhere) {
            if (const auto it = exported_.find(v.name); it != exported_.end()) {
                if (v.link == linkage::visible && it->second.first == linkage::visible)
                    refuse(v.line, quoted(v.name) + " is defined twice");
                names_[module][v.name] = it->second.second; // the first of weak ones counts
                return;
            }
        }
        if (v.where == ptx::space::shared) {
            s.value = (common_shared_ + v.alignment() - 1) / v.alignment() * v.alignment();
            if (v.bytes() > shared_limit || s.value + v.bytes() > shared_limit)
                refuse(v.line, "a block has 227 KiB of shared memory");
            common_shared_ = static_cast<std::uint32_t>(s.value + v.bytes());
        } else if (v.where == ptx::space::global || v.where == ptx::space::constant) {
            s.value =
                place_(std::max<std::uint64_t>(v.bytes(), 1), std::max<std::uint64_t>(v.alignment(), 8));
            if (s.value == 0)
                refuse(v.line, "the device has no memory for " + quoted(v.name));
            contents_.push_back({&v, s.value, module});
            made_.globals.emplace(std::string(v.name), global_variable{s.value, v.bytes()});
        } else {
            refuse(v.line, "a variable of a module lies in .global, .const or .shared");
        }
        names_[module][v.name] = s;
        if (everywhere)
            exported_[v.name] = {v.link, s};
    }

    void define_function(const ptx::function& f, std::size_t module) {
        symbol s;
        s.what = symbol::kind::function;
        const bool everywhere = shared_by_modules(f.link);
        if (const auto it = exported_.find(f.name); everywhere && it != exported_.end()) {
            if (f.link == linkage::visible && it->second.first == linkage::visible)
                refuse(f.line, quoted(f.name) + " is defined twice");
            names_[module][f.name] = it->second.second;
            return;
        }
        s.value = add_function(f, module);
        names_[module][f.name] = s;
        if (everywhere)
            exported_[f.name] = {f.link, s};
    }

    std::uint64_t add_function(const ptx::function& f, std::size_t module) {
        auto out = std::make_unique<function>();
        out->name = f.name;
        out->entry = f.entry;
        std::copy(f.max_threads, f.max_threads + 3, out->max_threads);
        out->exact_threads = f.exact_threads;
        out->native = f.has_body ? builtin::none : builtin_of(f.name, f.interface);
        made_.uses_heap = made_.uses_heap || out->native == builtin::malloc;
        jobs_.push_back({&f, out.get(), assembler(made_, names_[module], f, *out)});
        if (f.entry)
            made_.entries.emplace(out->name, out.get());
        made_.functions.push_back(std::move(out));
        return made_.functions.size() - 1;
    }

    // What a module declares and another one defines.
    void resolve(std::size_t module) {
        const ptx::module& m = modules_[module];
        for (const ptx::function& f : m.functions) {
            if (f.has_body || names_[module].contains(f.name))
                continue;
            if (const auto it = exported_.find(f.name); it != exported_.end()) {
                names_[module][f.name] = it->second.second;
            } else if (builtin_of(f.name, f.interface) != builtin::none) {
                symbol s;
                s.what = symbol::kind::function;
                s.value = add_function(f, module);
                names_[module][f.name] = s;
                exported_[f.name] = {linkage::weak, s};
            }
        }
        for (const ptx::variable& v : m.variables) {
            if (v.link != linkage::external || names_[module].contains(v.name))
                continue;
            if (const auto it = exported_.find(v.name); it != exported_.end()) {
                names_[module][v.name] = it->second.second;
            } else if (v.where == ptx::space::shared) {
                symbol s;
                s.what = symbol::kind::dynamic_shared;
                s.where = ptx::space::shared;
                names_[module][v.name] = s;
            }
        }
    }

    static std::uint64_t address_in(const ptx::initial& i, const ptx::variable& v, const scope& names) {
        const auto it = names.find(i.symbol);
        if (it == names.end())
            refuse(v.line, "there is no " + quoted(i.symbol));
        const symbol& s = it->second;
        if (s.what == symbol::kind::function)
            return (window::code | s.value) + i.bits;
        if (s.what != symbol::kind::variable || (s.where == ptx::space::shared && i.generic))
            refuse(v.line, quoted(i.symbol) + " has no address that content can name");
        return s.value + i.bits;
    }

    static void fill(const ptx::variable& v, std::uint64_t address, const scope& names) {
        const std::uint32_t bytes = ptx::size_of(v.of);
        auto* out = reinterpret_cast<std::uint8_t*>(address);
        for (const ptx::initial& i : v.content) {
            std::uint64_t bits = i.bits;
            if (i.what == ptx::initial::kind::symbol)
                bits = address_in(i, v, names) >> i.shift;
            else if (i.what == ptx::initial::kind::real64 && v.of == type::f32)
                bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(i.bits)));
            std::memcpy(out, &bits, bytes);
            out += bytes;
        }
    }

    static constexpr std::uint32_t shared_limit = 227u << 10;

    std::span<const ptx::module> modules_;
    const placer& place_;
    program made_;
    std::vector<scope> names_; // of each module
    std::unordered_map<std::string_view, std::pair<linkage, symbol>> exported_;
    std::vector<job> jobs_;
    std::vector<content> contents_;
    std::uint32_t common_shared_ = 0;
};

} // namespace

ptx::result<program> build(std::span<const ptx::module> modules, const placer& place) {
    ptx::result<program> r;
    try {
        r.value = linker(modules, place).link();
        r.ok = true;
    } catch (ptx::refusal& why) {
        r.why = std::move(why);
    }
    return r;
}

} // namespace kagemusha::machine
