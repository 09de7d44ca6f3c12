// SPDX-License-Identifier: GPL-2.0-or-later
#include "sim/model_gpu.hpp"

#include <algorithm>
#include <string>

#include "sim/rng.hpp"

namespace kagemusha::sim {

namespace {

std::uint64_t content_of(const body& b) {
    std::uint64_t v = b.word_count;
    for (std::uint32_t i = 0; i < b.word_count; ++i)
        v = mixed(v, b.words[i]);
    return v;
}

} // namespace

std::uint64_t model_gpu::get(const file& f, std::uint8_t a) const {
    return f.objects[a].alive ? memory_.at(f.objects[a].native) : 0;
}

void model_gpu::set(file& f, std::uint8_t a, std::uint64_t v) {
    if (f.objects[a].alive)
        memory_[f.objects[a].native] = v;
}

void model_gpu::close(std::uint32_t number) {
    const auto f = files_.find(number);
    if (f != files_.end()) {
        for (const object& o : f->second.objects)
            if (o.alive)
                memory_.erase(o.native);
        files_.erase(f);
    }
}

void model_gpu::reset() {
    files_.clear();
    memory_.clear();
}

std::int32_t model_gpu::execute(const body& b) {
    const auto at = files_.find(b.meta.file);
    if (at == files_.end())
        return -9999;
    file& f = at->second;
    for (const command& c : b.commands) {
        object& a = f.objects[c.a];
        switch (c.kind) {
        case op_kind::nothing:
        case op_kind::digest:
            break;
        case op_kind::create:
        case op_kind::build:
            if (c.kind == op_kind::create && b.result != 0) // decided by the primary
                return b.result;
            if (a.alive)
                return -30; // invalid value: the id is taken
            a.alive = true;
            a.program = c.kind == op_kind::build;
            a.native = mixed(salt_, ++natives_);
            memory_[a.native] = a.program ? c.value : 0;
            // The same source builds or fails on both sides.
            if (a.program && c.value % 4 == 0)
                return -11;
            break;
        case op_kind::destroy:
            if (a.alive) {
                memory_.erase(a.native);
                a = {};
            }
            break;
        case op_kind::write:
            set(f, c.a, content_of(b));
            break;
        case op_kind::put:
            set(f, c.a, b.words[0]);
            break;
        case op_kind::launch:
            set(f, c.a, mixed(mixed(get(f, c.b), get(f, c.c)), c.value));
            break;
        case op_kind::race:
            set(f, c.a, mixed(get(f, c.b), salt_));
            break;
        case op_kind::write_at_event:
            f.pending.push_back({c.a, content_of(b), b.meta.sequence});
            break;
        case op_kind::set_event:
            for (const pending_write& p : f.pending)
                set(f, p.a, p.value);
            f.pending.clear();
            break;
        }
    }
    return 0;
}

std::vector<std::uint64_t> model_gpu::digests(std::uint32_t number) const {
    std::vector<std::uint64_t> out;
    const auto f = files_.find(number);
    if (f != files_.end())
        for (std::uint8_t a = 0; a < objects_per_file; ++a)
            out.push_back(f->second.objects[a].alive ? mixed(a + 1, get(f->second, a)) : 0);
    return out;
}

bool model_gpu::waits(std::uint32_t number, mirror::log_sequence entry) const {
    const auto f = files_.find(number);
    return f != files_.end() && std::any_of(f->second.pending.begin(), f->second.pending.end(),
                                            [&](const pending_write& p) { return p.entry == entry; });
}

bool model_gpu::waits(std::uint32_t number) const {
    const auto f = files_.find(number);
    return f != files_.end() && !f->second.pending.empty();
}

std::uint64_t model_gpu::value(std::uint32_t number, std::uint8_t a) const {
    return get(files_.at(number), a);
}

std::string difference(const model_gpu& primary, const model_gpu& standby,
                       const std::vector<std::pair<std::uint32_t, std::uint8_t>>& except) {
    if (primary.files().size() != standby.files().size()) {
        return std::to_string(primary.files().size()) + " files on the primary, " +
               std::to_string(standby.files().size()) + " on the standby";
    }
    for (const auto& [number, f] : primary.files()) {
        if (!standby.has(number))
            return "the standby has no file " + std::to_string(number);
        for (std::uint8_t a = 0; a < objects_per_file; ++a) {
            if (std::find(except.begin(), except.end(), std::pair{number, a}) != except.end())
                continue;
            const std::string object = "object " + std::to_string(a) + " of file " + std::to_string(number);
            if (primary.alive(number, a) != standby.alive(number, a)) {
                return object + (primary.alive(number, a) ? " is missing" : " should not be") +
                       " on the standby";
            }
            if (!primary.alive(number, a))
                continue;
            if (primary.value(number, a) != standby.value(number, a))
                return object + " has another value on the standby";
            if (f.objects[a].native == standby.files().at(number).objects[a].native)
                return object + " has the same native handle on both sides: nothing was shown";
        }
    }
    if (primary.memory() != standby.memory())
        return "the standby has memory that belongs to nothing";
    return {};
}

} // namespace kagemusha::sim
