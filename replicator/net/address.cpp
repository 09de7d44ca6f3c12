// SPDX-License-Identifier: GPL-2.0-or-later
// See address.hpp.
#include "net/address.hpp"

#include <sys/un.h>

#include <charconv>

namespace kagemusha::net {

namespace {

constexpr std::string_view unix_prefix = "unix:";
// The longest DNS name; longer text is no host.
constexpr std::size_t longest_host = 253;

} // namespace

std::string address::text() const {
    if (is_unix())
        return std::string(unix_prefix) + path;
    const bool v6 = host.find(':') != std::string::npos;
    return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::optional<address> parse_address(const std::string& text, std::string& error) {
    address out;
    if (text.starts_with(unix_prefix)) {
        out.path = text.substr(unix_prefix.size());
        if (out.path.empty() || out.path.size() >= sizeof(sockaddr_un::sun_path) ||
            out.path.find('\0') != std::string::npos) {
            error = "'" + text + "' is no address: the path of a Unix socket has 1 to " +
                    std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes";
            return std::nullopt;
        }
        return out;
    }
    const std::string forms = "'" + text + "' is no address: it must be HOST:PORT, [V6]:PORT or unix:PATH";
    const auto colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) {
        error = forms;
        return std::nullopt;
    }
    out.host = text.substr(0, colon);
    if (out.host.front() == '[' && out.host.back() == ']')
        out.host = out.host.substr(1, out.host.size() - 2);
    else if (out.host.find_first_of(":[]") != std::string::npos) {
        error = forms + " (brackets belong around a V6 address)";
        return std::nullopt;
    }
    if (out.host.empty() || out.host.size() > longest_host || out.host.find('\0') != std::string::npos) {
        error = forms;
        return std::nullopt;
    }
    const char* const first = text.data() + colon + 1;
    const char* const last = text.data() + text.size();
    const auto [end, failed] = std::from_chars(first, last, out.port);
    if (first == last || failed != std::errc{} || end != last) {
        error = forms + ", with a port of 0 to 65535";
        return std::nullopt;
    }
    return out;
}

} // namespace kagemusha::net
