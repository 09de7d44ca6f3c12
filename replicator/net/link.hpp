// SPDX-License-Identifier: GPL-2.0-or-later
// link: frames over one TCP connection (mutual TLS between hosts), with Boost.Asio. It decides nothing: it
// connects or accepts, sends what it is given, gives what arrives, says when and why it ended.
//
// Threads: everything, the constructor's executor included, runs on the one thread that runs the io_context;
// the sink is called on it. No Boost header is needed to use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mirror/protocol/message.hpp"
#include "net/identity.hpp"

namespace kagemusha::net {

// The thread's event loop with what thin code needs besides links: timers, and tasks from other threads.
class event_loop {
public:
    event_loop();
    ~event_loop();
    void run();                            // until stop(); the calling thread becomes the loop's
    void stop();                           // any thread
    void post(std::function<void()> task); // any thread; order is kept; wakes the loop
    void call_at(std::uint64_t at_ms,
                 std::function<void()> task); // one timer: replaces the last; of now_ms()
    static std::uint64_t now_ms();            // steady clock
    struct impl;
    impl& native();

private:
    std::unique_ptr<impl> impl_;
};

// The keys of one VM's link. Who connects is its primary, who listens its standby, and each wants the other
// one's certificate: another VM's, or one for the wrong role or part, is refused at both ends.
struct tls_files {
    // ca.pem, crl.pem, {primary,standby}-{cert,key}.pem as `kage keys --vm` makes them; read again when they
    // change. Empty: no TLS. Allowed only for unix: addresses.
    std::string directory;
    std::string vm;
    link_part part = link_part::qemu;
};

// "HOST:PORT", "[V6]:PORT" or "unix:PATH".
struct link_options {
    std::string address;
    tls_files tls;
    std::uint32_t connect_timeout_ms = 2000; // with the TLS handshake; of the latter for a listener
    std::uint32_t write_timeout_ms = 10000;  // without a byte that the peer takes: the link ends
    // Beyond it can_send() is false. Far beyond it (twice and a large frame or two) the link ends.
    std::uint64_t max_queued_bytes = std::uint64_t{16} << 20;
    // Further connections for large pieces of content, each with a thread at both ends (lane.hpp). Who connects
    // opens as many as the peer takes, who listens takes as many. At most mirror::max_lanes.
    std::uint32_t lanes = 0;
    std::function<void(const std::string&)> note = {}; // what people should know and what ends nothing
};

// Where the bytes of a message go. The pieces add up to their number.
struct receive_buffers {
    std::vector<std::span<std::byte>> pieces;
    // Of a piece of content: keeps that memory, for a lane that still writes there when its user has let go.
    std::shared_ptr<const void> keep = {};
};

class link_sink {
public:
    // First; for accepted links too. `peer`: its name if it has proved one, and its address.
    virtual void on_connected(const std::string& peer) = 0;
    // A message with bytes: where to put them. Empty: no room for it, the link ends. Not called for messages
    // without. The buffers stay valid until on_message, on_closed, finish() or the link's destructor, or as long
    // as their `keep`. on_message of a piece that comes over a lane comes when its bytes have, behind other
    // messages perhaps; pieces keep their order, and a message that calls an entry off its place behind them.
    virtual receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) = 0;
    virtual void on_message(const mirror::message& m) = 0; // its bytes have arrived
    virtual void on_sent(std::uint64_t bytes) = 0;         // room for more; since the last call
    // Once, last. A sentence; no call follows.
    virtual void on_closed(const std::string& why) = 0;

protected:
    ~link_sink() = default;
};

// Links and listeners die before their loop, on its thread (or while nobody runs it). Any of a sink's
// functions may destroy its link.
class link {
public:
    virtual ~link() = default; // closes at once, without on_closed
    // Queues a frame. `payload` stays valid until it was sent, by `keep` (released on the loop's thread, when
    // the last byte was handed to the kernel or the link ends). After the end nothing is sent.
    virtual void send(const mirror::message& m, std::vector<std::span<const std::byte>> payload = {},
                      std::shared_ptr<const void> keep = {}) = 0;
    virtual bool can_send() const = 0;
    virtual std::uint64_t queued_bytes() const = 0;
    // Sends what is queued, then closes; on_closed follows. Messages that still arrive are dropped.
    virtual void finish() = 0;
};

// Returns at once; on_connected or on_closed follows.
std::unique_ptr<link> connect(event_loop& loop, const link_options& options, link_sink& sink);

// Listens; each connection that passed the handshake is offered to `accepted` with its peer's name. The
// callee takes it by giving a sink, or refuses with null. A peer that fails costs its connection and one
// (rate-limited) line by `log`. Null with a sentence in `error`.
class listener {
public:
    virtual ~listener() = default;
    virtual std::string address() const = 0; // with the real port
};
using accept_function = std::function<link_sink*(std::unique_ptr<link> connection, const std::string& peer)>;
std::unique_ptr<listener> listen(event_loop& loop, const link_options& options, accept_function accepted,
                                 std::function<void(const std::string&)> log, std::string& error);

} // namespace kagemusha::net
