// SPDX-License-Identifier: GPL-2.0-or-later
//
// The portal's pages: all files of its folder, and xterm.js of Debian's package, in memory from the start. A
// path that is none of them is nothing, so there is no way to another file.
#pragma once

#include "control/portal/exchange.hpp"

#include <map>
#include <optional>
#include <string>

namespace kagemusha::control::portal {

class web_files {
public:
    // A sentence in `error`: the folder has no page.
    static web_files load(const std::string& folder, std::string& error);

    // Nothing: no file has this path. `if_none_match`: what the browser has of it.
    std::optional<reply> find(std::string_view target, std::string_view if_none_match) const;

private:
    struct file {
        std::string type, body, tag;
    };
    void add(const std::string& path, const std::string& from);
    std::map<std::string, file, std::less<>> files_;
};

} // namespace kagemusha::control::portal
