// SPDX-License-Identifier: GPL-2.0-or-later
// laned_link: a connection with its lanes (lane.hpp), or without any. Its users see a link: who sends gives it content, and who receives
// is asked for a place and told when the piece is there, as without lanes. Only the order is another one: a
// large piece is told when its bytes have come, behind messages that were sent after it perhaps.
//
//   primary                                            standby
//     hello ─────────────────────────────────────────────▶
//     ◀──────────────────────────────── hello with a token     laned_receiver, in this file
//     ══ lane 1: greeting with the token ════════════════▶
//     ◀═══════════════════════════════════════════ answer ══
//     content, lane 1 ───────────────────────────────────▶     on_payload(): the place
//     ══ lane 1: the bytes ══════════════════════════════▶     on_message(): they are there
//
// A standby of a release without lanes gives no token, and a primary without them opens none. A lane that does
// not open makes a link slower; one that ends takes the link with it, because content is lost then.
//
// For the sources of this folder only. One thread: the loop's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/connection.hpp"
#include "net/lane.hpp"

namespace kagemusha::net {

// Of who listens; who connects gets its counterpart from connect() of link.hpp. The listener offers it to its user, and brings whoever else comes to take() first.
class laned_receiver final : public link, link_sink {
public:
    laned_receiver(event_loop& loop, const link_options& options, std::shared_ptr<connection> c);
    ~laned_receiver() override;

    void set_user(link_sink* user) { user_ = user; }
    link_sink& sink() { return *this; } // the connection's

    // Somebody who may be a lane. False: it is not; `peer` is as it was. Who turns out to be none comes to
    // `otherwise`, later.
    using newcomer = std::function<void(admitted_peer)>;
    struct door_mat {
        laned_receiver* owner; // null: gone
        bool take(admitted_peer& peer, newcomer otherwise) { return owner && owner->take(peer, otherwise); }
    };
    std::weak_ptr<door_mat> mat() const { return mat_; }
    bool is_over() const { return over_ || connection_->is_closed(); }

    void send(const mirror::message& m, std::vector<std::span<const std::byte>> payload,
              std::shared_ptr<const void> keep) override;
    bool can_send() const override { return connection_->can_send(); }
    std::uint64_t queued_bytes() const override { return connection_->queued_bytes(); }
    void finish() override;

private:
    struct lane {
        std::uint32_t number = 0; // 0: has not greeted
        std::unique_ptr<lane_receiver> receiver;
    };
    // A piece whose bytes have not come, or a message that must not overtake one.
    struct pending {
        mirror::message what;
        std::uint32_t lane = 0; // 0: it only waits for its turn
        bool arrived = false;
    };

    std::uint32_t most_lanes() const { return std::min(options_.lanes, mirror::max_lanes); }
    bool take(admitted_peer& peer, const newcomer& otherwise);
    void on_greeting(lane& l, const lane_greeting& greeting);
    void on_lane_ended(lane& l, const std::string& why);
    void drop(lane& l);
    void announced(const mirror::content& piece);
    void arrived(std::uint32_t number);
    void deliver();
    void refuse(const std::string& why);
    void closed();

    // link_sink, of the connection
    void on_connected(const std::string& peer) override { user_->on_connected(peer); }
    receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) override {
        return user_->on_payload(m, bytes);
    }
    void on_message(const mirror::message& m) override;
    void on_sent(std::uint64_t bytes) override { user_->on_sent(bytes); }
    void on_closed(const std::string& why) override;

    event_loop& loop_;
    const link_options options_;
    const std::shared_ptr<connection> connection_;
    link_sink* user_ = nullptr;
    std::shared_ptr<door_mat> mat_;
    std::string token_;      // empty: not told yet
    bool over_ = false;      // the user wants nothing more, or was told of the end
    bool refused_ = false;   // by this end
    std::string why_closed_; // the user hears of it when the lanes have been read
    std::vector<std::unique_ptr<lane>> lanes_;
    std::deque<pending> pending_;
};

} // namespace kagemusha::net
