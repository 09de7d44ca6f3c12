// SPDX-License-Identifier: GPL-2.0-or-later
// Bytes of whoever connects to the portal, as Beast reads them with the portal's bounds, through the door; and
// what a page sends to a terminal. Nobody is let in without the secret, no reply has a line of the client's among
// its headers, and what a terminal's message becomes is one frame that its agent can read.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "control/access/door.hpp"
#include "control/access/secrets.hpp"
#include "control/portal/console.hpp"
#include "control/portal/http_message.hpp"
#include "control/portal/server.hpp"

using namespace kagemusha::control;

namespace {

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

// One that no input knows: it is never sent.
constexpr char secret[] = "5f3b1a0c9d8e7f60";

void knock(const portal::request& asked) {
    static access::sessions sessions;
    static access::door door(sessions);
    static const access::accounts known = [] {
        access::accounts out;
        out.tokens["ci"] = {access::role::admin, access::digest_of(secret), 100};
        sessions.begin(secret, {"ann", access::role::admin, secret}, 0);
        return out;
    }();
    static double now = 0;
    const auto said = door.admit({asked.method != "GET", asked.websocket, asked.from, asked.cookies,
                                  asked.authorization, asked.origin, asked.host, asked.csrf},
                                 known, {1, 1, now += 1});
    require(said.who.may == access::role::nobody, "nobody is let in without a secret");
    require((said.status == 0) == said.why.empty(), "there is a sentence for each refusal, and no other");
}

void read_http(std::string_view bytes) {
    portal::http::request_parser<portal::http::string_body> parser;
    parser.header_limit(portal::server_limits::header_bytes);
    parser.body_limit(portal::server_limits::body_bytes);
    parser.eager(true);
    boost::system::error_code error;
    while (!bytes.empty() && !error && !parser.is_done()) {
        const auto used = parser.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
        if (error == portal::http::error::need_more)
            error = {};
        if (used == 0)
            break;
        bytes.remove_prefix(used);
    }
    if (error || !parser.is_header_done())
        return;
    require(parser.get().body().size() <= portal::server_limits::body_bytes, "a body is bounded");
    const auto asked = portal::to_request(parser.get(), "192.0.2.1");
    knock(asked);
    const auto answer = portal::to_response({404, "application/json", asked.target, {}},
                                            asked.method == "HEAD", parser.get().keep_alive());
    for (const auto& field : answer)
        require(field.value().find_first_of("\r\n") == std::string_view::npos, "a header is one line");
}

void type_in_terminal(std::string_view message) {
    for (const bool is_text : {false, true}) {
        const auto frames =
            portal::console_frames(message.substr(0, portal::longest_console_message), is_text);
        if (!frames)
            continue;
        lan::exec_reader reader;
        reader.feed(*frames);
        const auto frame = reader.next();
        require(frame && frame->letter == (is_text ? 'W' : 'I'), "a message is a frame");
        require(!reader.next() && !reader.broken(), "and no more than one");
    }
    lan::exec_reader reader;
    reader.feed(message);
    while (const auto frame = reader.next())
        portal::console_text(*frame);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    if (all.starts_with('\0'))
        type_in_terminal(all.substr(1));
    else
        read_http(all);
    return 0;
}
