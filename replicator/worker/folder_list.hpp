// SPDX-License-Identifier: GPL-2.0-or-later
// folder_list: a list of folders in an environment variable, as the loader of libraries reads it. What is not
// absolute in it (an empty entry, too) means the working directory: QEMU's, which nobody chose for kernels of
// a guest to read, and in a worker its private directory, where a kernel could put a library for the linker
// beside it. So a worker does without. Pure.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::worker {

struct folder_list {
    std::vector<std::string> absolute;
    std::vector<std::string> left_out;

    explicit folder_list(std::string_view list) {
        for (std::size_t begin = 0; begin <= list.size();) {
            const std::size_t end = std::min(list.find_first_of(":;", begin), list.size());
            const std::string_view folder = list.substr(begin, end - begin);
            (folder.starts_with('/') ? absolute : left_out).emplace_back(folder);
            begin = end + 1;
        }
    }

    // As the variable has to be.
    std::string text() const {
        std::string out;
        for (const std::string& folder : absolute)
            out += (out.empty() ? "" : ":") + folder;
        return out;
    }

    // Why something is missing, for a person; empty: nothing is.
    std::string complaint(std::string_view variable) const {
        if (left_out.empty())
            return {};
        std::string out = "workers don't look into";
        for (const std::string& folder : left_out)
            out += (&folder == &left_out.front() ? " '" : ", '") + folder + "'";
        return out + " of " + std::string(variable) + ": name folders by their absolute paths";
    }
};

} // namespace kagemusha::worker
