// SPDX-License-Identifier: GPL-2.0-or-later
// event_loop_impl: the Asio side of event_loop (link.hpp), for the sources of this folder only.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "net/link.hpp"

namespace kagemusha::net {

struct event_loop::impl {
    // One thread runs it: Asio may leave out what only several need.
    impl() : io(1), work(io.get_executor()), timer(io) {}

    boost::asio::io_context io;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work; // run() waits for stop()
    boost::asio::steady_timer timer;
    std::uint64_t timer_number = 0; // a handler of an older one that is on its way already does nothing
};

} // namespace kagemusha::net
