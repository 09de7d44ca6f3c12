// SPDX-License-Identifier: GPL-2.0-or-later
// Compressed content of a hostile primary: whatever bytes follow a `content` message, decompression writes
// only into the memory that was told before, and all of it or fails. And what a primary compresses comes out
// again. The first two bytes: how long the content should be.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <variant>

#include "fuzz_input.hpp"
#include "messages/messages.hpp"
#include "pair/compress.hpp"

using namespace kagemusha;

namespace {

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    const std::size_t told = in.value<std::uint16_t>();
    // Their own allocations of exactly these lengths, so that an access behind one is seen.
    const std::vector<std::uint8_t> input(in.rest().begin(), in.rest().end());
    const auto bytes = std::as_bytes(std::span(input));
    std::vector<std::byte> to(told);
    (void)pair::decompress(bytes, to);

    if (bytes.empty())
        return 0;
    pair::outgoing o;
    o.what = mirror::content{1, 0, 0, bytes.size(), 0};
    const std::size_t half = std::min(told, bytes.size());
    o.payload = {bytes.first(half), bytes.subspan(half)};
    pair::compress(o);
    require(messages::check(o.what).empty(), "what is compressed can be sent");
    std::vector<std::byte> wire;
    for (const auto& part : o.payload)
        wire.insert(wire.end(), part.begin(), part.end());
    require(wire.size() == messages::payload_bytes_of(o.what), "its length is told");
    if (std::get<mirror::content>(o.what).compressed_bytes != 0) {
        std::vector<std::byte> back(bytes.size());
        require(pair::decompress(wire, back) && std::equal(back.begin(), back.end(), bytes.begin()),
                "content survives");
        back.resize(back.size() - 1);
        require(!pair::decompress(wire, back), "content of another length is refused");
    }
    return 0;
}
