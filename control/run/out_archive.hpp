// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a job of `kage run --out` leaves: a tar archive that comes from the guest, unpacked while it comes.
// The guest may be hostile, so nothing is unpacked but plain files and directories, below one directory, in
// bounded number and size. No program reads the archive, and it is never on the disk itself.
//
// One thread at a time.
#pragma once

#include "control/base/process.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control {

struct out_limits {
    std::uint64_t max_bytes = std::uint64_t{4} << 30; // of all files together
    std::uint32_t max_entries = 100'000;              // of the archive: files, directories, long names
};

// The parts of an entry's name, "./a/b" → {"a", "b"}, and none for the directory itself. Nothing: the name is
// absolute, leads out of the directory, is too long, or has characters that a terminal would act on. Pure.
std::optional<std::vector<std::string>> out_name_parts(std::string_view name);

class out_archive {
public:
    // `directory`: exists, or is made. What is in it stays, but for files of the same names.
    out_archive(const std::string& directory, const out_limits& limits);
    ~out_archive();

    // Takes the next bytes, of any number. After a problem they are dropped.
    void feed(std::string_view bytes);
    // No more will come. "", or why not all of it was unpacked, as the end of a sentence. What came before
    // the problem is there.
    std::string finish();

private:
    enum class state { header, long_name, content, padding, ended };

    void fail(std::string why);
    void header();
    void entry(char type, const std::string& name, std::uint64_t bytes, unsigned mode);
    void content_ended();
    bool make_file(const std::vector<std::string>& parts, unsigned mode);
    // The directory that the parts lead to, each made if it is not there.
    std::optional<unique_fd> open_directory(const std::vector<std::string>& parts, std::size_t count);

    const out_limits limits_;
    unique_fd directory_, file_;
    state state_ = state::header;
    std::string block_;     // of a header or a long name, as far as it came
    std::string long_name_; // of the next entry
    std::uint64_t left_ = 0, padding_ = 0;
    std::uint64_t bytes_ = 0;
    std::uint32_t entries_ = 0, zero_blocks_ = 0;
    std::string problem_;
};

} // namespace kagemusha::control
