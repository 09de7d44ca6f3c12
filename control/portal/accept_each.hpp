// SPDX-License-Identifier: GPL-2.0-or-later
//
// A listener's loop: each connection that comes is handed on, until the acceptor is closed. What goes wrong with one
// (no descriptors left, a peer that is gone again) does not end it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/error_code.hpp>

#include <chrono>
#include <functional>
#include <utility>

namespace kagemusha::control {

// `from` lives as long as the coroutine. A socket that `take` does not keep is closed.
template <class Acceptor>
boost::asio::awaitable<void> accept_each(Acceptor& from,
                                         std::function<void(typename Acceptor::protocol_type::socket)> take) {
    namespace asio = boost::asio;
    while (from.is_open()) { // or it was closed during the pause below
        boost::system::error_code error;
        auto socket = co_await from.async_accept(asio::redirect_error(asio::use_awaitable, error));
        if (error == asio::error::operation_aborted)
            co_return;
        if (error) { // no descriptors left: some will be
            asio::steady_timer pause(from.get_executor(), std::chrono::milliseconds(100));
            co_await pause.async_wait(asio::use_awaitable);
            continue;
        }
        take(std::move(socket));
    }
}

} // namespace kagemusha::control
