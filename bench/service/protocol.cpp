// SPDX-License-Identifier: GPL-2.0-or-later
//
// See protocol.hpp.
#include "protocol.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

namespace service {

namespace {

constexpr std::size_t most_words = 8; // of a RESP command

request invalid(std::string what, std::string_view in) {
    return {verb::invalid, {}, std::move(what), false, in.size()};
}

// A request that is not complete has no more room than this.
std::optional<request> incomplete(std::string_view in) {
    if (in.size() < longest_request_bytes)
        return std::nullopt;
    return invalid("request too long", in);
}

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

bool same_word(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
        text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t'))
        text.remove_suffix(1);
    return text;
}

// Digits and nothing else, at most `most`.
std::optional<std::size_t> number(std::string_view text, std::size_t most) {
    std::size_t found = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
    if (error != std::errc{} || end != text.data() + text.size() || found > most)
        return std::nullopt;
    return found;
}

bool fits(const request& r) {
    return !r.key.empty() && r.key.size() <= longest_key_bytes && r.value.size() <= longest_value_bytes;
}

struct fields {
    bool keeps_connection;
    std::size_t content_bytes = 0;
    bool valid = true;
};

fields read_fields(std::string_view head, bool keeps_connection) {
    fields found{keeps_connection};
    while (!head.empty()) {
        const auto end = head.find("\r\n");
        const auto line = head.substr(0, end);
        head.remove_prefix(end == head.npos ? head.size() : end + 2);
        const auto colon = line.find(':');
        if (colon == line.npos || colon == 0) {
            found.valid = false;
            break;
        }
        const auto name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
        if (same_word(name, "connection")) {
            found.keeps_connection =
                same_word(value, "keep-alive") || (keeps_connection && !same_word(value, "close"));
        } else if (same_word(name, "content-length")) {
            const auto bytes = number(value, longest_request_bytes);
            found.valid = found.valid && bytes.has_value();
            found.content_bytes = bytes.value_or(0);
        } else if (same_word(name, "transfer-encoding")) {
            found.valid = false; // chunks: nobody needs them for 63 bytes
        }
    }
    return found;
}

} // namespace

std::optional<request> read_http(std::string_view in) {
    const auto end = in.find("\r\n\r\n");
    if (end == in.npos)
        return incomplete(in);
    const auto line = in.substr(0, in.find("\r\n"));
    const auto first = line.find(' '), second = line.rfind(' ');
    if (first == line.npos || first == second || line[first + 1] != '/')
        return invalid("not a request line", in);
    const auto method = line.substr(0, first), version = line.substr(second + 1);
    if (version != "HTTP/1.1" && version != "HTTP/1.0")
        return invalid("HTTP/1.1 only", in);
    const auto head =
        line.size() < end ? in.substr(line.size() + 2, end - line.size() - 2) : std::string_view();
    const auto said = read_fields(head, version == "HTTP/1.1");
    if (!said.valid)
        return invalid("a field makes no sense", in);
    const auto bytes = end + 4 + said.content_bytes;
    if (bytes > longest_request_bytes)
        return invalid("request too long", in);
    if (in.size() < bytes)
        return std::nullopt;
    request found{verb::other,
                  std::string(line.substr(first + 2, second - first - 2)),
                  {},
                  said.keeps_connection,
                  bytes};
    if (method == "PUT")
        found.value = in.substr(end + 4, said.content_bytes);
    if (method == "GET" || method == "PUT")
        found.what = fits(found) ? (method == "GET" ? verb::get : verb::set) : verb::other;
    if (found.what == verb::other)
        found.value = "GET or PUT /key: at most 31 bytes of key, 63 of value";
    return found;
}

std::optional<request> read_resp(std::string_view in) {
    auto rest = in;
    // A line's number after `mark`. Nothing: not complete; most_words or more than allowed: `wrong`.
    bool wrong = false;
    const auto length = [&](char mark, std::size_t most) -> std::optional<std::size_t> {
        if (rest.empty())
            return std::nullopt;
        const auto end = rest.find("\r\n");
        if (rest.front() != mark || (end == rest.npos && rest.size() > 8)) {
            wrong = true;
            return std::nullopt;
        }
        if (end == rest.npos)
            return std::nullopt;
        const auto found = number(rest.substr(1, end - 1), most);
        wrong = !found;
        rest.remove_prefix(end + 2);
        return found;
    };
    const auto stopped = [&]() -> std::optional<request> {
        return wrong ? invalid("Protocol error: an array of at most 8 short bulk strings", in)
                     : incomplete(in);
    };
    const auto count = length('*', most_words);
    if (!count)
        return stopped();
    std::vector<std::string_view> words;
    for (std::size_t i = 0; i < *count; ++i) {
        const auto bytes = length('$', longest_request_bytes);
        if (!bytes)
            return stopped();
        if (rest.size() < *bytes + 2)
            return incomplete(in);
        if (rest.substr(*bytes, 2) != "\r\n")
            return invalid("Protocol error: a bulk string longer than it said", in);
        words.push_back(rest.substr(0, *bytes));
        rest.remove_prefix(*bytes + 2);
    }
    request found{verb::other, {}, {}, true, in.size() - rest.size()};
    const auto is = [&](std::string_view name, std::size_t with) {
        return words.size() == with && same_word(words[0], name);
    };
    if (is("PING", 1)) {
        found.what = verb::ping;
        return found;
    }
    if (is("GET", 2) || is("SET", 3) || is("INCR", 2)) {
        found.key = words[1];
        found.value = words.size() == 3 ? words[2] : std::string_view();
        if (fits(found))
            found.what = is("GET", 2) ? verb::get : is("SET", 3) ? verb::set : verb::increase;
    }
    if (found.what == verb::other)
        found.value = "only PING, GET, SET and INCR; at most 31 bytes of key, 63 of value";
    return found;
}

std::string http_answer(const request& asked, const std::optional<std::string>& value) {
    const char* status = "200 OK";
    std::string body;
    switch (asked.what) {
    case verb::get:
    case verb::set:
        if (value)
            body = *value;
        else
            status = asked.what == verb::get ? "404 Not Found" : "507 Insufficient Storage";
        break;
    case verb::other:
        status = "405 Method Not Allowed";
        body = asked.value;
        break;
    default:
        status = "400 Bad Request";
        body = asked.value;
    }
    std::string answer = std::string("HTTP/1.1 ") + status + "\r\nContent-Type: text/plain\r\n";
    if (!asked.keeps_connection)
        answer += "Connection: close\r\n";
    return answer + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string resp_answer(const request& asked, const std::optional<std::string>& value) {
    switch (asked.what) {
    case verb::get:
        return value ? "$" + std::to_string(value->size()) + "\r\n" + *value + "\r\n" : "$-1\r\n";
    case verb::set:
        return value ? "+OK\r\n" : "-OOM the table is full\r\n";
    case verb::increase:
        return value ? ":" + *value + "\r\n" : "-ERR not a number, or the table is full\r\n";
    case verb::ping:
        return "+PONG\r\n";
    default:
        return "-ERR " + asked.value + "\r\n";
    }
}

} // namespace service
