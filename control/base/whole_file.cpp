// SPDX-License-Identifier: GPL-2.0-or-later
//
// See whole_file.hpp.
#include "control/base/whole_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace kagemusha::control {

std::optional<std::string> read_whole_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file)
        return std::nullopt;
    std::ostringstream text;
    if (file.peek() != std::ifstream::traits_type::eof())
        text << file.rdbuf(); // of an empty file it would fail
    if (file.bad() || text.fail())
        return std::nullopt;
    return text.str();
}

std::string write_whole_file(const std::string& path, std::string_view text) {
    std::error_code error;
    const auto there = std::filesystem::status(path, error);
    const bool direct = std::filesystem::exists(there) && !std::filesystem::is_regular_file(there);
    const auto made = direct ? path : path + ".new";
    std::ofstream file(made, std::ios::binary | std::ios::trunc);
    file << text;
    file.close();
    if (!file) {
        const auto why = std::strerror(errno);
        if (!direct)
            std::filesystem::remove(made, error);
        return fmt::format("cannot write {}: {}", path, why);
    }
    if (direct)
        return {};
    std::filesystem::rename(made, path, error);
    return error ? fmt::format("cannot write {}: {}", path, error.message()) : std::string();
}

} // namespace kagemusha::control
