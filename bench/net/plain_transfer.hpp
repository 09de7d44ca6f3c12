// SPDX-License-Identifier: GPL-2.0-or-later
// plain_transfer: what links are compared with. The least code with which Asio sends large messages on this
// machine, with keys over TCP with TLS, without over a Unix socket, as links do: a length and so many bytes,
// async_write against async_read, nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kagemusha::bench {

struct transfer_cost {
    double wall_s = 0;
    double cpu_s = 0; // of all threads of this process
};

// Cost between the first and the last byte.
class stopwatch {
public:
    stopwatch();
    transfer_cost read() const;

private:
    double wall_, cpu_;
};

// Sends `count` messages of `bytes` bytes from one thread to another. `key_directory`: HOST/vm/VM/qemu of
// `kage keys`, for both ends; empty: no TLS. `places`: how many messages either
// end has memory for, which is used in turn; with one it stays in the processors' caches.
transfer_cost plain_transfer(const std::string& key_directory, std::size_t bytes, std::uint64_t count,
                             std::size_t places = 1);

} // namespace kagemusha::bench
