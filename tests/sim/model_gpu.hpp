// SPDX-License-Identifier: GPL-2.0-or-later
// model_gpu: what a GPU is to the simulator: files with a few objects that hold one number each, and commands
// that are functions of those numbers. Both sides use it, with native handles that differ on purpose: whoever
// mixed up guest ids and native handles would compute something else.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mirror/log/log_entry.hpp"

namespace kagemusha::sim {

inline constexpr std::uint32_t objects_per_file = 6;
inline constexpr std::uint32_t max_words = 5; // of content

enum class op_kind : std::uint8_t {
    nothing,        // a marker in place of what is not mirrored
    create,         // a
    build,          // a: a program; exists whether it succeeded or not
    destroy,        // a
    write,          // a: the content
    put,            // a: the content's first word as it is (an agent ships a value)
    launch,         // a = f(b, c, value)
    race,           // a = f(b, what this GPU makes of it)
    write_at_event, // a: the content, as soon as the user event is set
    set_event,
    digest,
};

struct command {
    op_kind kind = op_kind::nothing;
    std::uint8_t a = 0, b = 0, c = 0;
    std::uint64_t value = 0;
};

// The bytes of a log entry.
struct body {
    mirror::entry_meta meta;
    std::array<command, 2> commands;
    std::array<std::uint64_t, max_words> words{};
    std::uint32_t word_count = 0;
    std::uint32_t words_here = 0; // late content that has arrived
    std::int32_t result = 0;      // of the call, on the primary
    std::uint64_t cost() const { return meta.stream_bytes + meta.content_bytes; }
};

class model_gpu {
public:
    explicit model_gpu(std::uint64_t salt) : salt_(salt) {}

    struct object {
        bool alive = false, program = false;
        std::uint64_t native = 0; // key into memory_
    };
    struct pending_write {
        std::uint8_t a;
        std::uint64_t value;
        mirror::log_sequence entry;
    };
    struct file {
        std::array<object, objects_per_file> objects;
        std::vector<pending_write> pending; // wait for the user event
    };

    void open(std::uint32_t number) { files_[number]; }
    void close(std::uint32_t number);
    void reset();
    bool has(std::uint32_t number) const { return files_.count(number) != 0; }
    // The call's result. An entry that waits for the user event is in `pending` afterwards.
    std::int32_t execute(const body& b);
    std::vector<std::uint64_t> digests(std::uint32_t number) const; // of all objects, dead ones too
    bool waits(std::uint32_t number, mirror::log_sequence entry) const;
    bool waits(std::uint32_t number) const;

    bool alive(std::uint32_t number, std::uint8_t a) const { return files_.at(number).objects[a].alive; }
    std::uint64_t value(std::uint32_t number, std::uint8_t a) const;
    const std::map<std::uint32_t, file>& files() const { return files_; }
    std::map<std::uint32_t, file>& files() { return files_; }
    std::size_t memory() const { return memory_.size(); }

private:
    std::uint64_t get(const file& f, std::uint8_t a) const;
    void set(file& f, std::uint8_t a, std::uint64_t v);

    std::uint64_t salt_;
    std::uint64_t natives_ = 0;
    std::map<std::uint32_t, file> files_;
    std::map<std::uint64_t, std::uint64_t> memory_; // by native handle
};

// Empty, or what differs. `except`: bits (file, object) of what nobody can know.
std::string difference(const model_gpu& primary, const model_gpu& standby,
                       const std::vector<std::pair<std::uint32_t, std::uint8_t>>& except = {});

} // namespace kagemusha::sim
