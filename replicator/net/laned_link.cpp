// SPDX-License-Identifier: GPL-2.0-or-later
// See laned_link.hpp.
#include "net/laned_link.hpp"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "net/endpoint.hpp"

namespace kagemusha::net {

namespace {

// Newcomers of whom it is not known whether they are lanes.
constexpr std::size_t max_newcomers = mirror::max_lanes; // they come together

class laned_sender final : public link, link_sink {
public:
    laned_sender(event_loop& loop, const link_options& options, link_sink& user)
        : loop_(loop), options_(options), user_(user), connection_(dial(loop, options, *this)) {}
    ~laned_sender() override {
        lanes_.clear();
        connection_->abandon();
    }

    void send(const mirror::message& m, std::vector<std::span<const std::byte>> payload,
              std::shared_ptr<const void> keep) override {
        const auto* piece = std::get_if<mirror::content>(&m);
        lane* const l = piece && piece->compressed_bytes == 0 && piece->bytes >= mirror::min_lane_bytes
                            ? least_filled()
                            : nullptr;
        if (!l)
            return connection_->send(m, payload, std::move(keep));
        mirror::content announced = *piece;
        announced.lane = l->number;
        connection_->send(announced, {}, {});
        l->sender->send(std::move(payload), std::move(keep));
    }
    bool can_send() const override {
        return connection_->can_send() &&
               on_lanes() < std::max<std::uint64_t>(open_lanes(), 1) * options_.max_queued_bytes;
    }
    // What the next piece waits for, about: they are spread over the lanes.
    std::uint64_t queued_bytes() const override {
        return connection_->queued_bytes() + on_lanes() / std::max<std::uint64_t>(open_lanes(), 1);
    }
    void finish() override {
        finishing_ = true;
        if (on_lanes() == 0)
            connection_->finish();
    }

private:
    struct lane {
        std::uint32_t number;
        std::unique_ptr<lane_sender> sender;
    };

    std::uint64_t open_lanes() const {
        return static_cast<std::uint64_t>(
            std::count_if(lanes_.begin(), lanes_.end(), [](const auto& l) { return l->sender->is_open(); }));
    }
    std::uint64_t on_lanes() const {
        std::uint64_t bytes = 0;
        for (const auto& l : lanes_)
            bytes += l->sender->queued_bytes();
        return bytes;
    }
    lane* least_filled() {
        lane* best = nullptr;
        for (const auto& l : lanes_)
            if (l->sender->is_open() && (!best || l->sender->queued_bytes() < best->sender->queued_bytes()))
                best = l.get();
        return best;
    }

    void open_lanes(const std::string& token) {
        // Of a Unix socket the name that it has here; of a host the address that answered.
        std::string error;
        const auto named = parse_address(options_.address, error);
        lane_sender::target to;
        if (named && named->is_unix()) {
            to.endpoint = *numeric_endpoint(*named);
        } else {
            boost::system::error_code failed;
            to.endpoint = connection_->socket().remote_endpoint(failed);
            if (failed)
                return; // it has ended, which the connection tells
        }
        to.tls = connection_->tls();
        to.connect_timeout_ms = options_.connect_timeout_ms;
        to.write_timeout_ms = options_.write_timeout_ms;
        std::memcpy(to.greeting.token, token.data(), sizeof(to.greeting.token));
        for (std::uint32_t n = 1; n <= std::min(options_.lanes, mirror::max_lanes); ++n) {
            to.greeting.number = n;
            auto& l = *lanes_.emplace_back(std::make_unique<lane>());
            l.number = n;
            l.sender = std::make_unique<lane_sender>(
                loop_, to,
                lane_sender::events{[this](std::uint64_t bytes) { on_lane_sent(bytes); },
                                    [this, n](const std::string& why) { on_lane_ended(n, why); }});
        }
    }
    void on_lane_sent(std::uint64_t bytes) {
        if (!finishing_)
            user_.on_sent(bytes);
        else if (on_lanes() == 0)
            connection_->finish();
    }
    void on_lane_ended(std::uint32_t number, const std::string& why) {
        const auto at =
            std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& l) { return l->number == number; });
        if ((*at)->sender->is_open()) {
            connection_->fail("a lane of the connection is lost: " + why);
            return;
        }
        lanes_.erase(at);
        if (options_.note)
            options_.note("a further connection to " + options_.address +
                          " did not open, so content has one less: " + why);
    }

    // link_sink, of the connection
    void on_connected(const std::string& peer) override { user_.on_connected(peer); }
    receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) override {
        return user_.on_payload(m, bytes);
    }
    void on_message(const mirror::message& m) override {
        if (finishing_)
            return;
        if (const auto* h = std::get_if<mirror::hello>(&m);
            h && !h->lane_token.empty() && !std::exchange(asked_, true))
            open_lanes(h->lane_token);
        user_.on_message(m);
    }
    void on_sent(std::uint64_t bytes) override {
        if (!finishing_)
            user_.on_sent(bytes);
    }
    void on_closed(const std::string& why) override {
        finishing_ = true; // nothing is told after this
        user_.on_closed(why);
    }

    event_loop& loop_;
    const link_options options_;
    link_sink& user_;
    const std::shared_ptr<connection> connection_;
    bool asked_ = false, finishing_ = false;
    std::vector<std::unique_ptr<lane>> lanes_;
};

} // namespace

std::unique_ptr<link> connect(event_loop& loop, const link_options& options, link_sink& sink) {
    return std::make_unique<laned_sender>(loop, options, sink);
}

// ---- who listens

laned_receiver::laned_receiver(event_loop& loop, const link_options& options, std::shared_ptr<connection> c)
    : loop_(loop)
    , options_(options)
    , connection_(std::move(c))
    , mat_(std::make_shared<door_mat>(door_mat{this})) {}

laned_receiver::~laned_receiver() {
    mat_->owner = nullptr;
    lanes_.clear();
    connection_->abandon();
}

void laned_receiver::send(const mirror::message& m, std::vector<std::span<const std::byte>> payload,
                          std::shared_ptr<const void> keep) {
    const auto* h = std::get_if<mirror::hello>(&m);
    if (!h || !token_.empty() || most_lanes() == 0)
        return connection_->send(m, payload, std::move(keep));
    mirror::hello with_token = *h;
    unsigned char random[mirror::lane_token_bytes];
    if (RAND_bytes(random, sizeof(random)) == 1) {
        token_.assign(reinterpret_cast<const char*>(random), sizeof(random));
        with_token.lane_token = token_;
    }
    connection_->send(with_token, payload, std::move(keep));
}

void laned_receiver::finish() {
    over_ = true;
    pending_.clear(); // messages that still arrive are dropped
    connection_->finish();
}

bool laned_receiver::take(admitted_peer& peer, const newcomer& otherwise) {
    const auto undecided = static_cast<std::size_t>(
        std::count_if(lanes_.begin(), lanes_.end(), [](const auto& l) { return l->number == 0; }));
    if (token_.empty() || over_ || connection_->is_closed() || undecided >= max_newcomers ||
        lanes_.size() - undecided >= most_lanes()) {
        return false;
    }
    auto& l = *lanes_.emplace_back(std::make_unique<lane>());
    l.receiver = std::make_unique<lane_receiver>(
        loop_, std::move(peer), options_.connect_timeout_ms, options_.write_timeout_ms,
        lane_receiver::events{[this, &l](const lane_greeting& g) { on_greeting(l, g); },
                              [this, &l, otherwise](admitted_peer p) {
                                  drop(l);
                                  otherwise(std::move(p));
                              },
                              [this, &l] { arrived(l.number); },
                              [this, &l](const std::string& why) { on_lane_ended(l, why); }});
    return true;
}

void laned_receiver::drop(lane& l) {
    std::erase_if(lanes_, [&](const auto& one) { return one.get() == &l; });
}

void laned_receiver::on_greeting(lane& l, const lane_greeting& greeting) {
    const bool taken = std::any_of(lanes_.begin(), lanes_.end(),
                                   [&](const auto& one) { return one->number == greeting.number; });
    const bool known = CRYPTO_memcmp(greeting.token, token_.data(), sizeof(greeting.token)) == 0;
    if (!known && options_.note)
        options_.note("somebody with the right keys wanted to be a lane of the primary's connection and did "
                      "not know its token");
    // A primary asks for as many as it would like.
    if (!known || taken || greeting.number == 0 || greeting.number > most_lanes())
        return drop(l);
    l.number = greeting.number;
    l.receiver->accept(l.number);
}

void laned_receiver::on_lane_ended(lane& l, const std::string& why) {
    if (l.number == 0)
        return drop(l);
    if (!why_closed_.empty())
        return closed(); // what this lane lacks will not come
    refused_ = true;
    connection_->fail("a lane of the connection is lost: " + why);
}

void laned_receiver::on_message(const mirror::message& m) {
    if (const auto* piece = std::get_if<mirror::content>(&m); piece && piece->lane != 0)
        return announced(*piece);
    const auto* o = std::get_if<mirror::outcome>(&m);
    const bool behind = (o && o->canceled) || std::holds_alternative<mirror::goodbye>(m);
    if (!behind || pending_.empty())
        return user_->on_message(m);
    if (pending_.size() >= mirror::max_lane_pieces)
        return refuse("more is behind content on lanes than may be");
    pending_.push_back({m, 0, true});
}

void laned_receiver::announced(const mirror::content& piece) {
    const auto at =
        std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& l) { return l->number == piece.lane; });
    if (at == lanes_.end())
        return refuse("content was announced for a lane that is not open");
    if (pending_.size() >= mirror::max_lane_pieces)
        return refuse("more content was announced for lanes than may be under way");
    lane_receiver& receiver = *(*at)->receiver;
    const std::weak_ptr<door_mat> alive = mat_;
    receive_buffers where = user_->on_payload(piece, piece.bytes);
    if (alive.expired() || over_ || connection_->is_closed())
        return;
    if (where.pieces.empty())
        return refuse("there is no room for the " + std::to_string(piece.bytes) +
                      " bytes of a piece that a lane brings");
    pending_.push_back({piece, piece.lane, false});
    receiver.expect(std::move(where));
}

void laned_receiver::arrived(std::uint32_t number) {
    const auto at = std::find_if(pending_.begin(), pending_.end(),
                                 [&](const pending& p) { return p.lane == number && !p.arrived; });
    if (at == pending_.end())
        return; // this end has finished
    at->arrived = true;
    deliver();
}

void laned_receiver::deliver() {
    const std::weak_ptr<door_mat> alive = mat_;
    while (!pending_.empty() && pending_.front().arrived) {
        const mirror::message m = std::move(pending_.front().what);
        pending_.pop_front();
        user_->on_message(m);
        if (alive.expired())
            return;
    }
    if (!why_closed_.empty() && pending_.empty())
        closed();
}

void laned_receiver::refuse(const std::string& why) {
    refused_ = true;
    connection_->refuse(why);
}

// The peer may have ended the connection with content still on its way over lanes: as without lanes, that is
// read to its end.
void laned_receiver::on_closed(const std::string& why) {
    why_closed_ = why;
    if (refused_ || over_ || pending_.empty())
        closed();
}

void laned_receiver::closed() {
    over_ = true;
    pending_.clear();
    const std::string why = std::exchange(why_closed_, {});
    user_->on_closed(why);
}

} // namespace kagemusha::net
