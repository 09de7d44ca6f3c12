// SPDX-License-Identifier: GPL-2.0-or-later
// connections: the link that a state machine knows of, and those that it has given up and that still send
// their last words. Only for the sources of this folder; everything on the replication thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "net/link.hpp"

namespace kagemusha::pair {

// What a link that was given up may still take to say goodbye. Guest memory that it refers to is held until
// then.
inline constexpr std::uint64_t last_words_ms = 500;

// A sink for one connection; what it hears goes to `user` as long as the state machine knows of it.
class connection final : public net::link_sink {
public:
    explicit connection(net::link_sink* user) : user_(user) {}

    void on_connected(const std::string& peer) override {
        if (user_) {
            user_->on_connected(peer);
        } else if (link) {
            link->send(farewell);
            link->finish();
        }
    }
    net::receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) override {
        return user_ ? user_->on_payload(m, bytes) : net::receive_buffers{};
    }
    void on_message(const mirror::message& m) override {
        if (user_)
            user_->on_message(m);
    }
    void on_sent(std::uint64_t bytes) override {
        if (user_)
            user_->on_sent(bytes);
    }
    void on_closed(const std::string& why) override {
        link.reset();
        closed_ = true;
        if (user_)
            user_->on_closed(why);
    }

    // Nobody listens any more; what was queued is still sent, for a while.
    void give_up(std::uint64_t now_ms) {
        user_ = nullptr;
        expire_after(now_ms);
        if (link)
            link->finish();
    }
    void expire_after(std::uint64_t now_ms) { deadline_ms_ = now_ms + last_words_ms; }
    bool over(std::uint64_t now_ms) const { return closed_ || now_ms >= deadline_ms_; }
    std::uint64_t deadline_ms() const { return deadline_ms_; }

    std::unique_ptr<net::link> link;
    mirror::goodbye farewell; // of a stranger

private:
    net::link_sink* user_;
    bool closed_ = false;
    std::uint64_t deadline_ms_ = UINT64_MAX;
};

class connections {
public:
    connection* current() const { return current_.get(); }
    connection& begin(net::link_sink& user) {
        current_ = std::make_unique<connection>(&user);
        return *current_;
    }
    void give_up(std::uint64_t now_ms) {
        if (current_) {
            current_->give_up(now_ms);
            leaving_.push_back(std::move(current_));
        }
    }
    // A connection that nobody is going to know of: it is told why, and closed.
    connection& add_stranger(mirror::goodbye farewell, std::uint64_t now_ms) {
        leaving_.push_back(std::make_unique<connection>(nullptr));
        leaving_.back()->farewell = std::move(farewell);
        leaving_.back()->expire_after(now_ms);
        return *leaving_.back();
    }
    void sweep(std::uint64_t now_ms) {
        leaving_.remove_if([now_ms](const auto& c) { return c->over(now_ms); });
    }
    std::uint64_t deadline_ms() const {
        std::uint64_t first = UINT64_MAX;
        for (const auto& c : leaving_)
            first = std::min(first, c->deadline_ms());
        return first;
    }
    bool all_said() const { return leaving_.empty(); }
    std::size_t leaving() const { return leaving_.size(); }
    void clear() {
        current_.reset();
        leaving_.clear();
    }

private:
    std::unique_ptr<connection> current_;
    std::list<std::unique_ptr<connection>> leaving_;
};

} // namespace kagemusha::pair
