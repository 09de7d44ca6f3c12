// SPDX-License-Identifier: GPL-2.0-or-later
//
// What Boost.Beast has read, as a request of ours, and a reply of ours as what Beast writes, with the headers that
// every reply of the portal has. Pure.
#pragma once

#include "control/portal/exchange.hpp"

#include <boost/beast/http.hpp>

#include <string>

namespace kagemusha::control::portal {

namespace http = boost::beast::http;

// Takes the body of `got`.
request to_request(http::request<http::string_body>& got, const std::string& from);

// `head`: without the body, whose length is said all the same.
http::response<http::string_body> to_response(reply from, bool head, bool keep_alive);

} // namespace kagemusha::control::portal
