// SPDX-License-Identifier: GPL-2.0-or-later
// built_files: what the runtime's compiler keeps in the worker's private directory, from the worker of a
// primary to that of its standby, so that the standby need not compile a guest's programs a second time.
//
// The mental model. A runtime with a compile cache looks for a program by the hash of everything that its
// result depends on: source, options, its own version, the processor. So files of another kind of GPU are
// never found, and a program without its file is compiled: files may come late, be dropped or come twice.
// They take no part in the order of commands.
//
// proto/replication/built_commands.h has the format of a pack of such files.
//
// Who made a pack is not trusted: the guest's kernels can write into the directory that it was taken from.
// It is stored by a worker in its sandbox, below the private directory, and what is in it can do no more than
// the kernels of the same guest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace kagemusha::gpu {

// In front of a larger one there is nothing to gain: programs with such kernels build for minutes.
inline constexpr std::size_t max_built_file_bytes = (std::size_t{4} << 20) - 4096;
inline constexpr std::size_t max_built_name_bytes = 512;
// What one worker stores: a quarter of the private directory, so that its own compiler has room.
inline constexpr std::size_t max_built_entries = 4096; // files and folders
inline constexpr std::uint64_t max_built_bytes = std::uint64_t{64} << 20;

// Whether a pack may name a file so: a path below the directory, of two folders at least, without a component
// that begins with a dot, of a kind that compilers make.
bool is_built_name(std::string_view name);

// The next file of a pack, as views of it; `rest` begins behind the vgpu_built, and becomes what is left.
// False: there is none, or what follows is none.
bool next_built_file(std::span<const std::byte>& rest, std::string_view& name,
                     std::span<const std::byte>& content);

class built_files {
public:
    // The runtime's cache in the private directory; empty: it has none, and packs are empty.
    explicit built_files(std::string directory) : directory_(std::move(directory)) {}

    // A pack of at most `room` bytes with what was not taken yet, or with `everything`, from the beginning.
    // A call looks at the programs that were built last; with `everything`, and until a pack says that there
    // is no more, at all of them.
    std::vector<std::byte> take(bool everything, std::size_t room);
    // Stores the files of a pack that are not there. How many.
    std::size_t store(std::span<const std::byte> pack);

private:
    void look(bool everything);
    void look_at(const std::string& folder, unsigned depth, unsigned& budget);
    void note(const std::string& name);
    bool store_one(std::string_view name, std::span<const std::byte> content);

    const std::string directory_;
    std::map<std::string, std::int64_t> groups_; // folders of programs: changed when, last seen
    std::unordered_set<std::string> programs_;
    std::deque<std::string> recent_;        // programs, the newest first
    std::unordered_set<std::string> known_; // files that were taken, stored, or are in to_take_
    std::deque<std::string> to_take_;
    std::size_t stored_entries_ = 0;
    std::uint64_t stored_bytes_ = 0;
};

} // namespace kagemusha::gpu
