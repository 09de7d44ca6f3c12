// SPDX-License-Identifier: GPL-2.0-or-later
//
// One request to an OpenID provider (libcurl): https alone, its certificate checked, no redirects, so many bytes,
// so many seconds. Threads: any; it waits.
#pragma once

#include <optional>
#include <string>

namespace kagemusha::control::login {

struct https_limits {
    static constexpr long whole_ms = 8000, connect_ms = 4000;
    static constexpr std::size_t header_bytes = 32 << 10; // of all lines
};

struct https_request {
    std::string url;
    std::string ca_file{}; // "": the system's
    bool is_form = false;  // a POST of `body`
    std::string body{}, authorization{};
};

struct https_answer {
    unsigned status = 0;
    std::string body;
};
// Nothing and a sentence in `why`: nobody answered, or too much, or too late.
std::optional<https_answer> ask_https(const https_request& request, std::string& why);

} // namespace kagemusha::control::login
