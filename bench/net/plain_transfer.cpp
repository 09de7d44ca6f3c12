// SPDX-License-Identifier: GPL-2.0-or-later
// See plain_transfer.hpp.
#include "bench/net/plain_transfer.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

namespace kagemusha::bench {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

double now(clockid_t clock) {
    timespec t{};
    ::clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Errors end the benchmark: every call below throws.
void check(const boost::system::error_code& error) {
    if (error)
        throw boost::system::system_error(error);
}

template <class Stream>
void send_all(asio::io_context& io, Stream& stream, std::vector<std::byte>& memory, std::size_t bytes,
              std::uint64_t count) {
    const std::uint64_t header[2] = {bytes, 0};
    std::function<void()> next = [&] {
        if (count-- == 0)
            return;
        const std::size_t place = count % (memory.size() / bytes);
        const std::array<asio::const_buffer, 2> buffers{asio::buffer(header),
                                                        asio::buffer(memory.data() + place * bytes, bytes)};
        asio::async_write(stream, buffers, [&](const boost::system::error_code& error, std::size_t) {
            check(error);
            next();
        });
    };
    next();
    io.run();
}

template <class Stream>
void receive_all(asio::io_context& io, Stream& stream, std::vector<std::byte>& memory, std::size_t bytes,
                 std::uint64_t count) {
    std::uint64_t header[2] = {};
    std::function<void()> next = [&] {
        if (count-- == 0)
            return;
        asio::async_read(stream, asio::buffer(header),
                         [&](const boost::system::error_code& error, std::size_t) {
                             check(error);
                             const std::size_t place = count % (memory.size() / bytes);
                             asio::async_read(stream, asio::buffer(memory.data() + place * bytes, header[0]),
                                              [&](const boost::system::error_code& failed, std::size_t) {
                                                  check(failed);
                                                  next();
                                              });
                         });
    };
    next();
    io.run();
}

struct both_loops {
    asio::io_context sender_io{1}, receiver_io{1};
};

struct unix_ends : both_loops {
    asio::local::stream_protocol::socket sender{sender_io}, receiver{receiver_io};
    unix_ends() { asio::local::connect_pair(sender, receiver); }
};

struct tcp_ends : both_loops {
    tcp::socket sender{sender_io}, receiver{receiver_io};
    tcp_ends() {
        tcp::acceptor acceptor(receiver_io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
        sender.connect(acceptor.local_endpoint());
        acceptor.accept(receiver);
        sender.set_option(tcp::no_delay(true));
        receiver.set_option(tcp::no_delay(true));
    }
};

template <class Stream>
transfer_cost run(both_loops& ends, Stream& sender, Stream& receiver, std::size_t bytes, std::uint64_t count,
                  std::size_t places) {
    std::vector<std::byte> from(bytes * places, std::byte{0x5a}), to(bytes * places);
    const stopwatch watch;
    std::thread thread([&] { send_all(ends.sender_io, sender, from, bytes, count); });
    receive_all(ends.receiver_io, receiver, to, bytes, count);
    const auto cost = watch.read();
    thread.join();
    return cost;
}

asio::ssl::context keys_of(const std::string& directory, const std::string& role) {
    asio::ssl::context context(asio::ssl::context::tlsv13);
    context.load_verify_file(directory + "/ca.pem");
    context.use_certificate_file(directory + "/" + role + "-cert.pem", asio::ssl::context::pem);
    context.use_private_key_file(directory + "/" + role + "-key.pem", asio::ssl::context::pem);
    context.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
    return context;
}

} // namespace

stopwatch::stopwatch() : wall_(now(CLOCK_MONOTONIC)), cpu_(now(CLOCK_PROCESS_CPUTIME_ID)) {}

transfer_cost stopwatch::read() const {
    return {now(CLOCK_MONOTONIC) - wall_, now(CLOCK_PROCESS_CPUTIME_ID) - cpu_};
}

transfer_cost plain_transfer(const std::string& key_directory, std::size_t bytes, std::uint64_t count,
                             std::size_t places) {
    if (key_directory.empty()) {
        unix_ends ends;
        return run(ends, ends.sender, ends.receiver, bytes, count, places);
    }
    tcp_ends ends;
    auto of_primary = keys_of(key_directory, "primary"), of_standby = keys_of(key_directory, "standby");
    asio::ssl::stream<tcp::socket&> sender(ends.sender, of_primary), receiver(ends.receiver, of_standby);
    std::thread thread([&] { sender.handshake(asio::ssl::stream_base::client); });
    receiver.handshake(asio::ssl::stream_base::server);
    thread.join();
    return run(ends, sender, receiver, bytes, count, places);
}

} // namespace kagemusha::bench
