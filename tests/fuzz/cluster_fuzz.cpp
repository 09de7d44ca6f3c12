// SPDX-License-Identifier: GPL-2.0-or-later
// What clusters read of others: a declaration in a request, and the bytes of nodes that are connected
// to their switch. What is accepted must be the same when it is written and read again; the switch must keep
// its bounds, give no frame back to its sender, and lose none of those that it has not counted.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "control/cluster/declaration.hpp"
#include "control/lan/ethernet_switch.hpp"
#include "control/lan/frames.hpp"

using namespace kagemusha::control;

namespace {

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

void read_declaration(std::string_view text) {
    std::vector<std::string> errors;
    const auto declared = cluster::parse_json_text(text, errors);
    require(declared.has_value() == errors.empty(), "there is a sentence for each refusal, and no other");
    if (!declared)
        return;
    require(cluster::is_cluster_name(declared->name), "a name is one");
    require(declared->nodes >= 1 && declared->nodes <= cluster::most_nodes, "nodes are bounded");
    const auto again = cluster::parse_json_text(cluster::to_json(*declared).dump(), errors);
    require(again == declared, "it is the same when it is read again");
}

// Of each four bytes one step; ports 1 to 4 have a reader each.
void run_switch(std::string_view script) {
    lan::ethernet_switch s;
    std::map<lan::ethernet_switch::port, lan::ethernet_reader> readers;
    std::uint64_t now = 0;
    std::vector<lan::ethernet_switch::output> out;
    const auto take = [&](lan::ethernet_switch::port from) {
        for (const auto& one : out) {
            require(one.to <= 4 && (from == 0 || one.to != from),
                    "a frame has a receiver, and not its sender");
            require(one.frame.size() >= lan::least_ethernet && one.frame.size() <= lan::most_ethernet,
                    "a frame is one");
        }
        out.clear();
    };
    while (script.size() >= 4) {
        const auto step = static_cast<unsigned char>(script[0]),
                   number = static_cast<unsigned char>(script[1]);
        const auto length =
            std::min<std::size_t>(static_cast<unsigned char>(script[2]) * 8u, script.size() - 4);
        const lan::ethernet_switch::port port = 1 + number % 4;
        const auto bytes = script.substr(4, length);
        script.remove_prefix(4 + length);
        switch (step % 5) {
        case 0:
            s.add(port);
            break;
        case 1:
            s.remove(port);
            readers.erase(port);
            break;
        case 2:
            s.set_shape({number * 100'000ull, number % 7 * 1000ull});
            break;
        case 3:
            now += number * 97ull;
            s.due(now, out);
            take(0);
            break;
        default:
            readers[port].feed(bytes);
            while (const auto frame = readers[port].next()) {
                s.receive(port, frame->payload, now, out);
                take(port);
            }
            break;
        }
    }
    s.due(now + 1'000'000'000, out);
    take(0);
    require(!s.next_us(), "nothing stays for ever");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    if (all.starts_with('\0'))
        run_switch(all.substr(1));
    else
        read_declaration(all);
    return 0;
}
