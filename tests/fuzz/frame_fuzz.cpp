// SPDX-License-Identifier: GPL-2.0-or-later
// Bytes of one connection into net::frame_reader, cut into reads at arbitrary places. What comes out must not
// depend on where they are cut, and every byte behind a message must land where the sink said. The first byte
// says how to cut; the input may begin with a valid hello, so that the fuzzer gets past the first message.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "fuzz_input.hpp"
#include "net/frame_reader.hpp"

using namespace kagemusha;

namespace {

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

// What a connection came to: messages, the bytes behind them, and why it ended.
struct transcript final : net::frame_sink {
    struct item {
        mirror::message what;
        std::vector<std::byte> payload;
    };
    std::vector<item> items;
    std::vector<std::vector<std::byte>> places; // exactly as long as they say, so that a write behind is seen
    std::string end;
    std::uint32_t piece_bytes = 1; // lengths of the places

    net::receive_buffers on_payload(const mirror::message& m, std::uint64_t bytes) override {
        require(bytes == messages::payload_bytes_of(m) && bytes <= mirror::max_frame_payload_bytes,
                "a payload is as long as its message says");
        places.clear();
        if (bytes > (1u << 20))
            return {}; // no room; the input has not so many bytes anyway
        net::receive_buffers out;
        for (std::uint64_t left = bytes; left > 0;) {
            const auto part = std::min<std::uint64_t>(left, piece_bytes);
            out.pieces.push_back(places.emplace_back(part));
            left -= part;
        }
        return out;
    }
    void on_message(const mirror::message& m) override {
        item& i = items.emplace_back(item{m, {}});
        for (const auto& place : places)
            i.payload.insert(i.payload.end(), place.begin(), place.end());
        places.clear();
        require(i.payload.size() == messages::payload_bytes_of(m), "a message comes after its bytes");
    }
    bool wants_more() const override { return true; }
};

transcript read_all(std::span<const std::uint8_t> bytes, std::uint32_t chunk, std::uint32_t piece_bytes) {
    transcript t;
    t.piece_bytes = piece_bytes;
    net::frame_reader reader;
    std::uint32_t random = chunk;
    while (!bytes.empty() && t.end.empty()) {
        std::array<std::span<std::byte>, net::frame_reader::max_pieces> pieces;
        const std::size_t count = reader.prepare(pieces);
        require(count > 0 && count <= pieces.size(), "there is always somewhere to read to");
        random = random * 1664525 + 1013904223;
        std::size_t most = chunk == 0 ? SIZE_MAX : 1 + (random >> 16) % chunk;
        std::size_t committed = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t n = std::min({pieces[i].size(), bytes.size(), most});
            if (n != 0)
                std::memcpy(pieces[i].data(), bytes.data(), n);
            bytes = bytes.subspan(n);
            most -= n;
            committed += n;
            if (n < pieces[i].size())
                break;
        }
        require(committed != 0, "a read makes progress");
        t.end = reader.commit(committed, t);
    }
    require(t.items.empty() || reader.greeted(), "the first message is a greeting");
    return t;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    const auto how = in.value<std::uint8_t>();
    std::vector<std::uint8_t> bytes;
    if (how % 2 != 0) {
        std::vector<std::byte> hello;
        messages::encode(mirror::hello{}, hello);
        const auto* begin = reinterpret_cast<const std::uint8_t*>(hello.data());
        bytes.assign(begin, begin + hello.size());
    }
    bytes.insert(bytes.end(), in.rest().begin(), in.rest().end());

    const transcript whole = read_all(bytes, 0, 1u << 20);
    // A connection that ends for its own reason may say so later when it is cut, never differently.
    const transcript cut = read_all(bytes, 1u << (how / 2 % 16), 1 + how / 32 * 100);
    require(cut.end == whole.end, "the end does not depend on the cuts");
    require(cut.items.size() == whole.items.size(), "messages do not depend on the cuts");
    for (std::size_t i = 0; i < cut.items.size(); ++i) {
        require(cut.items[i].what == whole.items[i].what && cut.items[i].payload == whole.items[i].payload,
                "a message does not depend on the cuts");
    }
    return 0;
}
