// SPDX-License-Identifier: GPL-2.0-or-later
// See link.hpp.
#include "net/event_loop_impl.hpp"

#include <boost/asio/post.hpp>

#include <chrono>
#include <utility>

namespace kagemusha::net {

namespace {

// A time further away than a year is none: it would not fit the clock's nanoseconds.
constexpr std::uint64_t never_ms = std::uint64_t{365} * 24 * 3600 * 1000;

} // namespace

event_loop::event_loop() : impl_(std::make_unique<impl>()) {}

event_loop::~event_loop() = default;

void event_loop::run() {
    impl_->io.run();
    impl_->io.restart();
}

void event_loop::stop() {
    impl_->io.stop();
}

void event_loop::post(std::function<void()> task) {
    boost::asio::post(impl_->io, std::move(task));
}

void event_loop::call_at(std::uint64_t at_ms, std::function<void()> task) {
    auto& loop = *impl_;
    if (at_ms > now_ms() + never_ms) {
        ++loop.timer_number;
        loop.timer.cancel();
        return;
    }
    loop.timer.expires_at(std::chrono::steady_clock::time_point(std::chrono::milliseconds(at_ms)));
    const auto number = ++loop.timer_number;
    loop.timer.async_wait([&loop, number, task = std::move(task)](const boost::system::error_code& failed) {
        if (!failed && number == loop.timer_number)
            task();
    });
}

std::uint64_t event_loop::now_ms() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

event_loop::impl& event_loop::native() {
    return *impl_;
}

} // namespace kagemusha::net
