// SPDX-License-Identifier: GPL-2.0-or-later
// What the tests of links share: a sink that remembers, both ends on one loop, raw peers that are no links.
#pragma once

#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "messages/messages.hpp"
#include "net/event_loop_impl.hpp"
#include "net/link.hpp"

namespace kagemusha::net::test {

using bytes = std::vector<std::byte>;

inline mirror::hello a_hello(mirror::role role = mirror::role::primary) {
    mirror::hello m;
    m.role = role;
    m.vm = "test";
    m.instance = 7;
    return m;
}

inline mirror::content a_content(std::uint64_t length, std::uint64_t offset = 0) {
    mirror::content m;
    m.sequence = 1;
    m.offset = offset;
    m.bytes = length;
    return m;
}

inline bytes pattern(std::size_t size, unsigned seed = 1) {
    bytes out(size);
    for (std::size_t i = 0; i < size; ++i)
        out[i] = static_cast<std::byte>((i * 31 + (i >> 8) * 7 + seed) & 0xff);
    return out;
}

// A frame as it is on the wire.
inline bytes frame(const mirror::message& m, const bytes& payload = {}) {
    bytes out;
    messages::encode(m, out);
    out.insert(out.end(), payload.begin(), payload.end());
    return out;
}

class recording_sink : public link_sink {
public:
    void on_connected(const std::string& name) override {
        connected = true;
        peer = name;
        if (when_connected)
            when_connected();
    }
    receive_buffers on_payload(const mirror::message&, std::uint64_t size) override {
        payload_offered = true;
        if (refuse_payload)
            return {};
        ++places_given;
        if (!one_place || payloads.empty())
            payloads.emplace_back(size);
        auto& place = payloads.back();
        receive_buffers out;
        const std::size_t step = piece_bytes == 0 ? place.size() : piece_bytes;
        for (std::size_t at = 0; at < place.size(); at += step)
            out.pieces.emplace_back(place.data() + at, std::min(step, place.size() - at));
        return out;
    }
    void on_message(const mirror::message& m) override {
        messages.push_back(m);
        if (when_message)
            when_message(m);
    }
    void on_sent(std::uint64_t size) override {
        sent += size;
        if (when_sent)
            when_sent();
    }
    void on_closed(const std::string& sentence) override {
        ++closed;
        why = sentence;
        if (when_closed)
            when_closed();
    }

    bool connected = false, payload_offered = false, refuse_payload = false;
    bool one_place = false; // whoever asks gets the same
    std::size_t places_given = 0;
    unsigned closed = 0;
    std::string peer, why;
    std::vector<mirror::message> messages;
    std::list<bytes> payloads;
    std::size_t piece_bytes = 0; // of the buffers given to the link; 0: one
    std::uint64_t sent = 0;
    std::function<void()> when_connected, when_sent, when_closed;
    std::function<void(const mirror::message&)> when_message;
};

// Drives the loop on this thread until `done`. False: it did not happen in a time that is beyond any doubt.
inline bool run_until(event_loop& loop, const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
        if (std::chrono::steady_clock::now() > end)
            return false;
        loop.native().io.run_one_for(std::chrono::milliseconds(100));
    }
    return true;
}

class temporary_directory {
public:
    temporary_directory() {
        auto name = (std::filesystem::temp_directory_path() / "kagemusha-net-XXXXXX").string();
        if (!::mkdtemp(name.data()))
            ADD_FAILURE() << "no temporary directory";
        path_ = name;
    }
    ~temporary_directory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    temporary_directory(const temporary_directory&) = delete;
    temporary_directory& operator=(const temporary_directory&) = delete;
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// A listener with one sink for whoever comes first; refuses others.
struct server {
    // Null `here.listening` and a sentence in `error` when listening fails.
    server(event_loop& loop, const link_options& options) {
        listening = listen(
            loop, options,
            [this](std::unique_ptr<link> c, const std::string& name) -> link_sink* {
                offered.push_back(name);
                if (connection)
                    return nullptr;
                connection = std::move(c);
                return &sink;
            },
            [this](const std::string& line) { log.push_back(line); }, error);
    }

    std::string error;
    std::vector<std::string> offered, log;
    recording_sink sink;
    std::unique_ptr<link> connection;
    std::unique_ptr<listener> listening;
};

// `sender` has begun to send a payload to `there`, which then finishes: what still comes must not reach the
// memory that its sink gave. With `writing`, `there` has much to say itself at that moment: what.
inline std::shared_ptr<const bytes> finish_in_the_middle_of_a_payload(event_loop& loop, link& sender,
                                                                      server& there, bool writing) {
    const auto data = std::make_shared<const bytes>(pattern(mirror::content_piece_bytes, 77));
    if (writing)
        there.connection->send(a_content(data->size()), {*data}, data);
    sender.send(a_content(data->size()), {*data}, data);
    EXPECT_TRUE(run_until(loop, [&] { return there.sink.payload_offered; }));
    EXPECT_EQ(there.sink.messages.size(), 1u) << "the payload is larger than what one read brings";
    there.connection->send(mirror::goodbye{mirror::goodbye_reason::other, "enough"});
    there.connection->finish();
    const bytes before = there.sink.payloads.front();
    EXPECT_NE(before, *data);
    EXPECT_TRUE(run_until(loop, [&] { return there.sink.closed == 1; }));
    EXPECT_EQ(there.sink.payloads.front(), before);
    EXPECT_EQ(there.sink.messages.size(), 1u);
    return data;
}

// A peer that is no link: a blocking Unix socket.
class raw_peer {
public:
    explicit raw_peer(const std::string& address) {
        const std::string path = address.substr(std::strlen("unix:"));
        fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        path.copy(name.sun_path, sizeof(name.sun_path) - 1);
        EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
    }
    ~raw_peer() { end(); }
    raw_peer(const raw_peer&) = delete;
    raw_peer& operator=(const raw_peer&) = delete;
    // Little enough for the socket's buffer.
    void send(std::span<const std::byte> what) {
        EXPECT_EQ(::send(fd_, what.data(), what.size(), MSG_NOSIGNAL), static_cast<ssize_t>(what.size()));
    }
    // What has arrived so far.
    bytes receive() {
        bytes out(65536);
        const auto size = ::recv(fd_, out.data(), out.size(), MSG_DONTWAIT);
        out.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
        return out;
    }
    bool ended() const { // by the other end
        std::byte one;
        return ::recv(fd_, &one, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
    }
    void end() {
        if (fd_ >= 0)
            ::close(std::exchange(fd_, -1));
    }

private:
    int fd_ = -1;
};

} // namespace kagemusha::net::test
