// SPDX-License-Identifier: GPL-2.0-or-later
//
// What clients of the measured service say and hear: HTTP/1.1 (RFC 9112; a GET, a PUT with Content-Length)
// and as much of RESP2 (redis.io/docs/latest/develop/reference/protocol-spec) as redis-benchmark and redis-cli
// need. Pure: bytes in, requests out. A request that is too long or makes no sense is answered and is the
// connection's last.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace service {

constexpr std::size_t longest_key_bytes = 31;
constexpr std::size_t longest_value_bytes = 63;
constexpr std::size_t longest_request_bytes = 8192;

enum class verb {
    get,
    set,
    increase, // RESP only: the value as a number, one more
    ping,
    other,   // understood, and not ours: answered with an error, the connection stays
    invalid, // not understood: answered, the connection ends
};

struct request {
    verb what = verb::invalid;
    std::string key, value; // `value` of set; of `other` and `invalid`: what is wrong
    bool keeps_connection = true;
    std::size_t bytes = 0; // how much of the input it was
};

// The first request in `in`, or nothing while it is not complete. `in` must not grow beyond
// longest_request_bytes before this is asked: then the request is `invalid`.
std::optional<request> read_http(std::string_view in);
std::optional<request> read_resp(std::string_view in);

// The answer to a request; `value`: what its key has now, nothing if it has none. A set that was refused
// because the table is full has none either.
std::string http_answer(const request& asked, const std::optional<std::string>& value);
std::string resp_answer(const request& asked, const std::optional<std::string>& value);

} // namespace service
