// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha-gpu: the share arbiter of one GPU of this host.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "share/arbiter/server.hpp"

namespace {

int usage() {
    std::puts(
        "usage: kagemusha-gpu --socket PATH [--linger SECONDS] [--ready-fd N]\n"
        "Decides which VM of this host has a GPU, and when. `kage` starts it with the first VM that has a\n"
        "share of the GPU; it ends by itself SECONDS (5) after the last one, and with 0 never.");
    return 2;
}

} // namespace

int main(int argc, char** argv) {
    kagemusha::share::server_options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--socket")
            options.socket = argv[i + 1];
        else if (name == "--linger")
            options.linger_s = static_cast<std::uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
        else if (name == "--ready-fd")
            options.ready_fd = std::atoi(argv[i + 1]);
        else
            return usage();
    }
    if (options.socket.empty() || argc % 2 == 0)
        return usage();
    return kagemusha::share::run_server(options);
}
