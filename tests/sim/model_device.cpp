// SPDX-License-Identifier: GPL-2.0-or-later
#include "sim/model_device.hpp"

#include <algorithm>
#include <cassert>

namespace kagemusha::sim {

using mirror::entry_kind;

namespace {

// A guest that holds more of them than its standby may have running would be held up by its own device.
constexpr std::size_t most_pending_writes = 5;

template <class T>
T taken(std::vector<T>& v, std::size_t i) {
    T out = std::move(v[i]);
    v[i] = std::move(v.back());
    v.pop_back();
    return out;
}

} // namespace

body model_device::make(std::uint32_t file) const {
    body b;
    b.meta.kind = entry_kind::submit;
    b.meta.file = file;
    b.meta.op_count = 1;
    b.meta.stream_bytes = 16;
    return b;
}

void model_device::append(body b) {
    b.meta.sequence = ++last_;
    b.result = 0; // the standby is told by an outcome
    out.push_back(reported_entry{std::move(b)});
}

void model_device::append(entry_kind kind, std::uint32_t file) {
    body b;
    b.meta.kind = kind;
    b.meta.file = file;
    append(std::move(b));
}

// A stream of the guest: executed here, and told as it is, or as a marker where a state transfer will bring
// what it writes.
void model_device::submit(body b, bool writes) {
    const std::uint32_t file = b.meta.file;
    b.meta.sequence = last_ + 1;
    if (mode_ == mode::off) {
        gpu_.execute(b);
        return;
    }
    if (mode_ == mode::syncing && writes) {
        body marker = make(file);
        for (const command& c : b.commands) {
            if (c.kind == op_kind::set_event) // what waited for it is written now
                for (const auto& p : gpu_.files().at(file).pending)
                    dirty_.insert({file, p.a});
            else if (c.kind != op_kind::nothing)
                dirty_.insert({file, c.a});
        }
        gpu_.execute(b);
        append(std::move(marker));
        return;
    }
    gpu_.execute(b);
    append(std::move(b));
}

bool model_device::guest_step() {
    if (congested_ || out.size() >= options_.device_queue)
        return false;
    const std::uint32_t what = random_.below(100);
    if (gpu_.files().empty() || (what < 4 && gpu_.files().size() < options_.files)) {
        const std::uint32_t file = next_file_++;
        gpu_.open(file);
        if (may_append())
            append(entry_kind::open_file, file);
        return true;
    }
    const std::uint32_t file = some_file();
    const bool lost = lost_.count(file) != 0;
    if (what < 7 || lost) {
        end_work(file);
        gpu_.close(file);
        lost_.erase(file);
        if (may_append())
            append(entry_kind::close_file, file);
        return true;
    }
    if (what < 8 && options_.losses) {
        end_work(file);
        gpu_.close(file);
        gpu_.open(file); // it stays open, and has nothing
        lost_.insert(file);
        if (may_append())
            append(entry_kind::lose_session, file);
        return true;
    }
    if (what < 9 && options_.resets) {
        while (!gpu_.files().empty()) {
            const std::uint32_t f = gpu_.files().begin()->first;
            end_work(f);
            gpu_.close(f);
        }
        lost_.clear();
        if (may_append())
            append(entry_kind::reset, 0);
        return true;
    }
    body b = make(file);
    const auto object = [&] { return static_cast<std::uint8_t>(random_.below(objects_per_file)); };
    b.commands[0].a = object();
    b.commands[0].value = random_.next();
    const std::uint8_t a = b.commands[0].a;
    if (!gpu_.alive(file, a)) {
        const bool build = random_.chance(3000);
        b.commands[0].kind = build ? op_kind::build : op_kind::create;
        b.meta.flags = mirror::entry_awaits_outcome;
        if (build)
            b.meta.flags |= mirror::entry_may_fail;
        else if (random_.chance(2000))
            b.result = -4;
        b.meta.sequence = last_ + 1;
        const std::int32_t result = gpu_.execute(b);
        if (may_append()) {
            append(b);
            calls_.push_back({last_, file, result});
        }
        return true;
    }
    const auto& f = gpu_.files().at(file);
    if (what < 15) {
        b.commands[0].kind = op_kind::destroy;
        if (std::any_of(f.pending.begin(), f.pending.end(), [&](const auto& p) { return p.a == a; })) {
            b.commands[0].kind = op_kind::set_event; // a command keeps its objects
            submit(b, true);
            return true;
        }
        dirty_.erase({file, a});
        gpu_.execute(b);
        if (may_append())
            append(b);
        return true;
    }
    if (what < 50) {
        const bool at_event =
            options_.events && random_.chance(1500) && f.pending.size() < most_pending_writes;
        b.commands[0].kind = at_event ? op_kind::write_at_event : op_kind::write;
        b.word_count = b.words_here = random_.between(1, max_words);
        for (std::uint32_t i = 0; i < b.word_count; ++i)
            b.words[i] = random_.next();
        b.meta.content_bytes = b.word_count * 8;
        b.meta.stream_bytes = random_.between(2, 6) * 8;
        if (mode_ == mode::on && options_.late_content && !at_event && random_.chance(3000)) {
            b.meta.sequence = last_ + 1;
            gpu_.execute(b);
            b.meta.flags = mirror::entry_late_content;
            b.words_here = 0;
            append(b);
            b.meta.sequence = last_;
            contents_.push_back({b, 0});
            return true;
        }
        submit(b, true);
        return true;
    }
    if (what < 55 && !f.pending.empty()) {
        b.commands[0].kind = op_kind::set_event;
        submit(b, true);
        return true;
    }
    if (what < 58 && options_.digests && mode_ == mode::on) {
        digest(file);
        return true;
    }
    b.commands[0].kind = options_.nondeterminism && random_.chance(1000) ? op_kind::race : op_kind::launch;
    b.commands[0].b = object();
    b.commands[0].c = object();
    if (random_.chance(2000)) {
        b.commands[1] = b.commands[0];
        b.commands[1].a = object();
        b.commands[1].kind = op_kind::launch;
        b.meta.stream_bytes = 32;
        b.meta.op_count = 2;
    }
    submit(b, true);
    return true;
}

std::uint32_t model_device::some_file() {
    auto f = gpu_.files().begin();
    std::advance(f, random_.below(static_cast<std::uint32_t>(gpu_.files().size())));
    return f->first;
}

// No outcome, no content and no digest comes of a file that has ended.
void model_device::end_work(std::uint32_t file) {
    std::erase_if(calls_, [&](const auto& c) { return c.file == file; });
    std::erase_if(contents_, [&](const auto& c) { return c.entry.meta.file == file; });
    std::erase_if(hashes_, [&](const auto& h) { return h.file == file; });
    std::erase_if(comparing_, [&](const auto& c) { return c.second == file; });
    std::erase_if(dirty_, [&](const auto& d) { return d.first == file; });
}

void model_device::work_step() {
    const std::uint32_t what = random_.below(4);
    if (what == 0 && !calls_.empty()) {
        const pending_call c = taken(calls_, random_.below(static_cast<std::uint32_t>(calls_.size())));
        out.push_back(reported_outcome{c.entry, false, c.result});
    } else if (what == 1 && !contents_.empty()) {
        const std::uint32_t i = random_.below(static_cast<std::uint32_t>(contents_.size()));
        pending_content& c = contents_[i];
        if (mode_ == mode::syncing && random_.chance(200)) {
            // The agent gives up; a later round brings the object.
            const body given_up = taken(contents_, i).entry;
            out.push_back(reported_outcome{given_up.meta.sequence, true, 0});
            if (gpu_.alive(given_up.meta.file, given_up.commands[0].a))
                dirty_.insert({given_up.meta.file, given_up.commands[0].a});
            return;
        }
        const std::uint32_t words = random_.between(1, c.entry.word_count - c.reported_words);
        out.push_back(reported_content{c.entry.meta.sequence, c.reported_words, words, c.entry.word_count,
                                       c.entry.words});
        c.reported_words += words;
        if (c.reported_words == c.entry.word_count)
            taken(contents_, i);
    } else if (what == 2 && !hashes_.empty()) {
        pending_hashes h = taken(hashes_, random_.below(static_cast<std::uint32_t>(hashes_.size())));
        out.push_back(reported_digests{h.entry, std::move(h.hashes)});
    } else if (what == 3 && mode_ == mode::syncing) {
        const bool waits = std::any_of(gpu_.files().begin(), gpu_.files().end(),
                                       [&](const auto& f) { return !f.second.pending.empty(); });
        if (dirty_.size() > 2) {
            auto d = dirty_.begin();
            std::advance(d, random_.below(static_cast<std::uint32_t>(dirty_.size())));
            const auto which = *d;
            dirty_.erase(d);
            ship(which.first, which.second);
        } else if (!waits) {
            // The last round: nothing of the guest comes between.
            for (const auto& which : std::exchange(dirty_, {}))
                ship(which.first, which.second);
            out.push_back(reported_synced{last_});
            mode_ = mode::on;
        }
    }
}

void model_device::settle() {
    for (const auto& [file, f] : gpu_.files()) {
        if (!f.pending.empty() && out.size() < options_.device_queue) {
            body b = make(file);
            b.commands[0].kind = op_kind::set_event;
            submit(b, true);
        }
    }
}

// The object's value as it is at this point of the order; it is read while the guest goes on.
void model_device::ship(std::uint32_t file, std::uint8_t a) {
    if (!gpu_.alive(file, a))
        return;
    body b = make(file);
    b.meta.flags = mirror::entry_agent | mirror::entry_late_content;
    b.commands[0].kind = op_kind::put;
    b.commands[0].a = a;
    b.word_count = 1;
    b.words[0] = gpu_.value(file, a);
    b.meta.content_bytes = 8;
    append(b);
    b.meta.sequence = last_;
    contents_.push_back({b, 0});
}

void model_device::digest(std::uint32_t file) {
    body b = make(file);
    b.meta.flags = mirror::entry_agent | mirror::entry_compare;
    b.commands[0].kind = op_kind::digest;
    append(b);
    hashes_.push_back({last_, file, gpu_.digests(file)});
    comparing_[last_] = file;
}

void model_device::take_digests() {
    for (const auto& [file, f] : gpu_.files())
        if (lost_.count(file) == 0)
            digest(file);
}

void model_device::on_digest_result(mirror::log_sequence entry, const std::vector<std::uint64_t>& different) {
    const auto c = comparing_.find(entry);
    if (c == comparing_.end())
        return;
    const std::uint32_t file = c->second;
    comparing_.erase(c);
    ++comparisons_;
    differences_ += different.size();
    if (mode_ != mode::on)
        return;
    for (const std::uint64_t a : different)
        ship(file, static_cast<std::uint8_t>(a));
}

void model_device::start_sync() {
    assert(mode_ == mode::off);
    mode_ = mode::syncing;
    append(entry_kind::reset, 0);
    for (const auto& [file, f] : gpu_.files()) {
        append(entry_kind::open_file, file);
        if (lost_.count(file) != 0) {
            append(entry_kind::lose_session, file);
            continue;
        }
        for (std::uint8_t a = 0; a < objects_per_file; ++a) {
            if (!f.objects[a].alive)
                continue;
            body b = make(file);
            b.meta.flags = f.objects[a].program ? std::uint32_t{mirror::entry_may_fail} : 0;
            b.commands[0].kind = f.objects[a].program ? op_kind::build : op_kind::create;
            b.commands[0].a = a;
            b.commands[0].value = gpu_.value(file, a); // a program's source
            append(b);
            dirty_.insert({file, a});
        }
    }
}

void model_device::stop() {
    mode_ = mode::off;
    calls_.clear();
    contents_.clear();
    hashes_.clear();
    comparing_.clear();
    dirty_.clear();
    out.push_back(reported_stopped{});
}

} // namespace kagemusha::sim
