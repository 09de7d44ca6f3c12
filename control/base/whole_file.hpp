// SPDX-License-Identifier: GPL-2.0-or-later
//
// whole_file: files of ours that are read and written as one text.
//
// Threads: any. Errors: returned. Memory: a file is read whole, so it must be one that we or our user wrote.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control {

// std::nullopt: it cannot be read; errno says why.
std::optional<std::string> read_whole_file(const std::string& path);

// Whole or not at all: what was there stays until all of `text` is in a file beside it. What is no regular
// file, a pipe or /dev/stdout, is written to as it is. Returns an error message, or nothing.
std::string write_whole_file(const std::string& path, std::string_view text);

} // namespace kagemusha::control
