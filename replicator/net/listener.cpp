// SPDX-License-Identifier: GPL-2.0-or-later
// listen (link.hpp): offers whoever a door (door.hpp) has let in, on the loop's thread.
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>

#include <atomic>
#include <utility>

#include "net/connection.hpp"
#include "net/door.hpp"
#include "net/endpoint.hpp"
#include "net/event_loop_impl.hpp"
#include "net/laned_link.hpp"
#include "net/tls.hpp"

namespace kagemusha::net {

namespace asio = boost::asio;

namespace {

// Peers that have proved who they are and that the loop has not looked at: only while it is held up.
constexpr unsigned max_waiting = 16;

// What the door and the tasks that it gives to the loop share; they do nothing once it was closed.
class reception : public std::enable_shared_from_this<reception> {
public:
    reception(event_loop& loop, const link_options& options, std::shared_ptr<tls_keys> keys,
              accept_function accepted, std::function<void(const std::string&)> log)
        : loop_(loop)
        , options_(options)
        , keys_(std::move(keys))
        , accepted_(std::move(accepted))
        , log_(std::move(log)) {}

    // ---- the door's thread
    void on_admitted(admitted_peer peer) {
        if (waiting_.fetch_add(1) >= max_waiting) {
            --waiting_;
            if (!std::exchange(reported_busy_, true))
                on_log("closed the connection of " + peer.from + ": this host has not looked at the last " +
                       std::to_string(max_waiting) + " that came");
            return;
        }
        reported_busy_ = false;
        asio::post(loop_.native().io,
                   [self = shared_from_this(), peer = std::make_shared<admitted_peer>(std::move(peer))] {
                       --self->waiting_;
                       if (!self->closed_)
                           self->arrive(std::move(*peer));
                   });
    }
    void on_log(const std::string& line) {
        asio::post(loop_.native().io, [self = shared_from_this(), line] {
            if (!self->closed_)
                self->log_(line);
        });
    }

    // ---- the loop's thread
    void close() { closed_ = true; }

private:
    // A lane of the connection that is there, perhaps.
    void arrive(admitted_peer peer) {
        const auto mat = mat_.lock();
        const auto otherwise = [weak = weak_from_this()](admitted_peer p) {
            if (const auto self = weak.lock(); self && !self->closed_)
                self->offer(std::move(p));
        };
        if (!mat || !mat->take(peer, otherwise))
            offer(std::move(peer));
    }

    void offer(admitted_peer admitted) {
        const auto from = admitted.from;
        std::shared_ptr<connection> c;
        try {
            c = make_admitted_connection(loop_, options_, keys_, std::move(admitted));
        } catch (const boost::system::system_error& failed) { // no descriptors or watches left
            log_("cannot take the connection of " + from + ": " + failed.what());
            return;
        }
        const auto name = c->proven_name();
        const auto peer = name.empty() ? from : name + " (" + from + ")";
        auto laned = std::make_unique<laned_receiver>(loop_, options_, c);
        laned_receiver& there = *laned;
        const auto mat = there.mat();
        // Null: refused. Then the link is gone already, or closes with the last handle.
        auto* const user = accepted_(std::move(laned), peer);
        if (!user || mat.expired()) {
            c->abandon();
            return;
        }
        there.set_user(user);
        // Who is refused with a sentence has no lanes, so the mat stays that of the one who was here before.
        if (const auto before = mat_.lock(); !before || !before->owner || before->owner->is_over())
            mat_ = mat;
        if (c->is_closed())
            return;
        c->set_sink(&there.sink());
        c->opened(peer);
    }

    event_loop& loop_;
    const link_options options_;
    const std::shared_ptr<tls_keys> keys_; // the loop's; the door has its own
    const accept_function accepted_;
    const std::function<void(const std::string&)> log_;
    std::atomic<unsigned> waiting_ = 0;
    bool reported_busy_ = false; // the door's thread
    bool closed_ = false;
    std::weak_ptr<laned_receiver::door_mat> mat_; // of the connection that may get lanes
};

class open_listener final : public listener {
public:
    open_listener(std::shared_ptr<reception> r, std::unique_ptr<door> d, std::string address)
        : reception_(std::move(r)), door_(std::move(d)), address_(std::move(address)) {}
    ~open_listener() override {
        reception_->close();
        door_.reset();
    }
    std::string address() const override { return address_; }

private:
    std::shared_ptr<reception> reception_;
    std::unique_ptr<door> door_;
    std::string address_;
};

} // namespace

std::unique_ptr<listener> listen(event_loop& loop, const link_options& options, accept_function accepted,
                                 std::function<void(const std::string&)> log, std::string& error) {
    const auto at = parse_address(options.address, error);
    if (!at)
        return nullptr;
    const auto endpoint = numeric_endpoint(*at);
    if (!endpoint) {
        error =
            "cannot listen at " + options.address + ": the host must be a numeric address of this machine";
        return nullptr;
    }
    std::shared_ptr<tls_keys> keys, door_keys;
    if (!options.tls.directory.empty()) {
        keys = tls_keys::open(options.tls, mirror::role::standby, error);
        if (keys)
            door_keys = tls_keys::open(options.tls, mirror::role::standby, error);
        if (!door_keys)
            return nullptr;
    } else if (!is_local(*endpoint)) {
        error = needs_tls(options.address);
        return nullptr;
    }
    auto r = std::make_shared<reception>(loop, options, std::move(keys), std::move(accepted), std::move(log));
    auto d = open_door(
        *at, *endpoint, std::move(door_keys), options.connect_timeout_ms,
        [r](admitted_peer peer) { r->on_admitted(std::move(peer)); },
        [r](const std::string& line) { r->on_log(line); }, error);
    if (!d)
        return nullptr;
    auto where = at->is_unix() ? at->text() : d->where();
    return std::make_unique<open_listener>(std::move(r), std::move(d), std::move(where));
}

} // namespace kagemusha::net
