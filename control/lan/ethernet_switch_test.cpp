// SPDX-License-Identifier: GPL-2.0-or-later
//
// The switch: who gets a frame, when, and what a hostile node can't do; and the bytes that arrive in pieces.
#include "control/lan/ethernet_switch.hpp"

#include "control/lan/addresses.hpp"
#include "control/lan/frames.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kagemusha::control::lan {
namespace {

using outputs = std::vector<ethernet_switch::output>;

constexpr mac_address broadcast{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, of_gateway{0x52, 0x55, 10, 77, 0, 2};

mac_address node(unsigned char number) {
    return {0x52, 0x54, 0, 0, 0, number};
}

std::string frame(const mac_address& to, const mac_address& from, std::size_t size = 60) {
    std::string out(to.begin(), to.end());
    out.append(from.begin(), from.end());
    out.resize(size, 'x');
    return out;
}

std::set<ethernet_switch::port> ports(const outputs& out) {
    std::set<ethernet_switch::port> found;
    for (const auto& one : out)
        found.insert(one.to);
    return found;
}

struct cluster_switch : ethernet_switch {
    cluster_switch() {
        for (const port p : {1u, 2u, 3u})
            EXPECT_TRUE(add(p));
    }
    outputs put(port from, const std::string& bytes, std::uint64_t now_us = 0) {
        outputs out;
        receive(from, bytes, now_us, out);
        return out;
    }
    outputs at(std::uint64_t now_us) {
        outputs out;
        due(now_us, out);
        return out;
    }
};

TEST(cluster_switch, between_hosts_nothing_goes_round_and_each_has_its_gateway) {
    cluster_switch s;
    constexpr ethernet_switch::port near = 10, far = 11;
    ASSERT_TRUE(s.add(near, true));
    ASSERT_TRUE(s.add(far, true));
    using ports_set = std::set<ethernet_switch::port>;
    EXPECT_EQ(ports(s.put(1, frame(broadcast, node(1)))), (ports_set{0, 2, 3, near, far}));
    EXPECT_EQ(ports(s.put(near, frame(broadcast, node(7)))), (ports_set{1, 2, 3})) << "nodes of here alone";
    EXPECT_EQ(ports(s.put(1, frame(node(7), node(1)))), (ports_set{near}));
    EXPECT_EQ(ports(s.put(near, frame(node(1), node(7)))), (ports_set{1}));
    EXPECT_EQ(ports(s.put(far, frame(node(7), node(8)))), (ports_set{})) << "from trunk to trunk";
    EXPECT_EQ(ports(s.put(near, frame(of_gateway, node(7)))), (ports_set{})) << "it has one over there";
    EXPECT_EQ(ports(s.put(ethernet_switch::gateway, frame(node(7), of_gateway))), (ports_set{}));
    EXPECT_EQ(ports(s.put(ethernet_switch::gateway, frame(broadcast, of_gateway))), (ports_set{1, 2, 3}));
    // node7 has been taken over: it speaks from elsewhere.
    s.put(far, frame(broadcast, node(7)));
    EXPECT_EQ(ports(s.put(1, frame(node(7), node(1)))), (ports_set{far}));
    s.put(2, frame(broadcast, node(7)));
    EXPECT_EQ(ports(s.put(1, frame(node(7), node(1)))), (ports_set{2}));
}

TEST(cluster_switch, a_trunk_has_no_bandwidth_and_latency_of_its_own) {
    cluster_switch s;
    s.add(10, true);
    s.set_shape({0, 1000});
    EXPECT_TRUE(s.put(1, frame(broadcast, node(1)), 0).empty());
    const auto there = s.at(1000);
    EXPECT_EQ(std::count_if(there.begin(), there.end(), [](const auto& one) { return one.to == 10; }), 1);
    s.put(10, frame(node(1), node(7)), 2000);
    EXPECT_EQ(ports(s.at(2000)), (std::set<ethernet_switch::port>{1}))
        << "the latency was the other host's part";
}

TEST(cluster_switch, unknown_goes_to_all_and_known_to_one) {
    cluster_switch s;
    EXPECT_EQ(ports(s.put(1, frame(broadcast, node(1)))), (std::set<ethernet_switch::port>{0, 2, 3}));
    EXPECT_EQ(ports(s.put(2, frame(node(3), node(2)))), (std::set<ethernet_switch::port>{1, 3}));
    EXPECT_EQ(ports(s.put(2, frame(node(1), node(2)))), (std::set<ethernet_switch::port>{1}));
    EXPECT_EQ(ports(s.put(3, frame(of_gateway, node(3)))), (std::set<ethernet_switch::port>{0}));
    EXPECT_TRUE(s.put(1, frame(node(1), node(1))).empty()); // to itself
}

TEST(cluster_switch, after_a_takeover_frames_go_where_the_node_is_now) {
    cluster_switch s;
    s.put(1, frame(broadcast, node(1)));
    s.put(3, frame(broadcast, node(1))); // the standby announces the address
    EXPECT_EQ(ports(s.put(2, frame(node(1), node(2)))), (std::set<ethernet_switch::port>{3}));
    s.remove(3);
    EXPECT_EQ(s.where(node(1)), std::nullopt);
}

TEST(cluster_switch, nobody_becomes_the_gateway) {
    cluster_switch s;
    s.put(1, frame(broadcast, of_gateway));
    EXPECT_EQ(s.where(of_gateway), std::optional(ethernet_switch::gateway));
    s.put(1, frame(node(2), broadcast)); // no address of one node
    EXPECT_EQ(s.where(broadcast), std::nullopt);
}

TEST(cluster_switch, it_remembers_a_bounded_number_of_addresses) {
    cluster_switch s;
    const auto address = [](unsigned i) {
        return mac_address{0x02, 0, 0, 0, static_cast<unsigned char>(i >> 8), static_cast<unsigned char>(i)};
    };
    s.put(2, frame(broadcast, node(2)));
    for (unsigned i = 0; i < 3 * ethernet_switch::most_addresses; ++i)
        s.put(1, frame(broadcast, address(i)));
    EXPECT_EQ(s.where(address(0)), std::nullopt);
    EXPECT_EQ(s.where(address(3 * ethernet_switch::most_addresses - 1)), std::optional(1u));
    // What was forgotten is sent to all, and learnt again.
    EXPECT_EQ(ports(s.put(1, frame(node(2), node(1)))), (std::set<ethernet_switch::port>{2, 3}));
}

TEST(cluster_switch, what_is_no_frame_goes_nowhere) {
    cluster_switch s;
    EXPECT_TRUE(s.put(1, "").empty());
    EXPECT_TRUE(s.put(1, std::string(13, 'x')).empty());
    EXPECT_TRUE(s.put(1, std::string(most_ethernet + 1, 'x')).empty());
    EXPECT_TRUE(s.put(9, frame(broadcast, node(9))).empty()); // a port that there is not
    EXPECT_EQ(s.counted().frames, 0u);
}

TEST(cluster_switch, it_has_a_bounded_number_of_ports) {
    ethernet_switch s;
    EXPECT_FALSE(s.add(ethernet_switch::gateway));
    for (ethernet_switch::port p = 1; p <= ethernet_switch::most_ports; ++p)
        EXPECT_TRUE(s.add(p));
    EXPECT_FALSE(s.add(ethernet_switch::most_ports + 1));
}

TEST(cluster_switch, a_latency_passes_before_a_frame_arrives) {
    cluster_switch s;
    s.set_shape({0, 5000});
    EXPECT_TRUE(s.put(1, frame(broadcast, node(1)), 1000).empty());
    EXPECT_EQ(s.next_us(), std::optional<std::uint64_t>(6000));
    EXPECT_TRUE(s.at(5999).empty());
    EXPECT_EQ(ports(s.at(6000)), (std::set<ethernet_switch::port>{0, 2, 3}));
    EXPECT_EQ(s.next_us(), std::nullopt);
}

// Each frame of 1,250 bytes takes 100 µs at 100 Mbit/s, in each of the two links.
TEST(cluster_switch, a_bandwidth_is_what_was_asked_for) {
    cluster_switch s;
    s.put(2, frame(broadcast, node(2)));
    s.set_shape({100'000'000, 0});
    constexpr unsigned frames = 500;
    for (unsigned i = 0; i < frames; ++i)
        ASSERT_TRUE(s.put(1, frame(node(2), node(1), 1250), 0).empty());
    std::vector<std::uint64_t> arrived;
    for (std::uint64_t now = 0; now < 200'000; now += 50)
        for (const auto& one : s.at(now)) {
            EXPECT_EQ(one.to, 2u);
            arrived.push_back(now);
        }
    ASSERT_EQ(arrived.size(), frames);
    EXPECT_EQ(arrived.front(), 200u);
    EXPECT_EQ(arrived.back(), 200u + 100u * (frames - 1));
}

TEST(cluster_switch, both_directions_of_a_link_are_its_own) {
    cluster_switch s;
    s.put(1, frame(broadcast, node(1)));
    s.put(2, frame(broadcast, node(2)));
    s.set_shape({100'000'000, 0});
    for (int i = 0; i < 10; ++i) {
        s.put(1, frame(node(2), node(1), 1250), 0);
        s.put(2, frame(node(1), node(2), 1250), 0);
    }
    // Had they shared one, the last of 20 would arrive after 2.1 ms.
    EXPECT_EQ(s.at(1100).size(), 20u);
    EXPECT_EQ(s.counted().dropped, 0u);
}

TEST(cluster_switch, a_full_link_drops_and_holds_no_more_than_its_bound) {
    cluster_switch s;
    s.put(2, frame(broadcast, node(2)));
    s.set_shape({1'000'000, 0}); // 100 ms are 12,500 bytes
    for (unsigned i = 0; i < 1000; ++i)
        s.put(1, frame(node(2), node(1), 1250), 0);
    EXPECT_EQ(s.counted().dropped, 1000u - 11u); // those that begin within 100 ms
    s.set_shape({0, 1'000'000});
    const auto before = s.counted().dropped;
    for (unsigned i = 0; i < 10000; ++i)
        s.put(3, frame(node(2), node(3), 1250), 0);
    EXPECT_EQ(s.counted().dropped - before, 10000 - shaped_queue::most_queued_bytes / 1250);
}

TEST(cluster_switch, a_changed_shape_lets_no_frame_overtake) {
    cluster_switch s;
    s.put(2, frame(broadcast, node(2)));
    s.set_shape({0, 5000});
    s.put(1, frame(node(2), node(1), 100), 0);
    s.set_shape({});
    EXPECT_TRUE(s.put(1, frame(node(2), node(1), 200), 10).empty());
    const auto out = s.at(5000);
    ASSERT_EQ(out.size(), 2u);
    EXPECT_EQ(out[0].frame.size(), 100u);
    EXPECT_EQ(out[1].frame.size(), 200u);
}

// ---- bytes

TEST(cluster_frames, are_put_together_from_any_pieces) {
    std::string bytes;
    for (const std::size_t size : {14u, 60u, 1514u}) {
        put_length(bytes, size);
        bytes += std::string(size, static_cast<char>(size));
    }
    for (std::size_t piece = 1; piece < 100; ++piece) {
        ethernet_reader reader;
        std::vector<std::size_t> sizes;
        for (std::size_t at = 0; at < bytes.size(); at += piece) {
            reader.feed(std::string_view(bytes).substr(at, piece));
            while (const auto one = reader.next())
                sizes.push_back(one->payload.size());
        }
        EXPECT_EQ(sizes, (std::vector<std::size_t>{14, 60, 1514}));
        EXPECT_FALSE(reader.broken());
    }
}

TEST(cluster_frames, a_length_that_none_has_ends_the_stream) {
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{13}, most_ethernet + 1, std::size_t{0xffffffff}}) {
        ethernet_reader reader;
        std::string bytes;
        put_length(bytes, length);
        reader.feed(bytes + std::string(100, 'x'));
        EXPECT_FALSE(reader.next());
        EXPECT_TRUE(reader.broken());
        reader.feed(std::string(100, 'x'));
        EXPECT_FALSE(reader.next());
    }
    exec_reader exec;
    exec.feed(exec_frame('O', "") + exec_frame('S', "0"));
    EXPECT_EQ(exec.next()->letter, 'O');
    EXPECT_EQ(exec.next()->payload, "0");
    std::string bytes(1, 'O');
    put_length(bytes, most_exec_payload + 1);
    exec.feed(bytes);
    EXPECT_FALSE(exec.next());
    EXPECT_TRUE(exec.broken());
}

TEST(cluster_frames, an_exit_status_is_a_number_of_one_byte) {
    EXPECT_EQ(exec_status("0"), 0);
    EXPECT_EQ(exec_status("255"), 255);
    for (const char* text : {"", "256", "-1", "1000", "x", " 1"})
        EXPECT_FALSE(exec_status(text)) << text;
}

TEST(cluster_addresses, nodes_have_their_own) {
    EXPECT_EQ(dotted(node_address(1)), "10.77.0.11");
    EXPECT_EQ(dotted(gateway_address), "10.77.0.2");
    EXPECT_EQ(node_mac("lab", 1).substr(0, 6), "52:54:");
    EXPECT_NE(node_mac("lab", 1), node_mac("lab", 2));
    EXPECT_NE(node_mac("lab", 1), node_mac("bal", 1));
    EXPECT_EQ(node_mac("lab", 64).size(), 17u);
}

} // namespace
} // namespace kagemusha::control::lan
