// SPDX-License-Identifier: GPL-2.0-or-later
// The hash of chunks: the kernel on a real device against the reference, and what the reference tells apart.
#include <set>

#include "mirror/sync/digest.hpp"
#include "tests/support/executing_pair.hpp"

namespace kagemusha::mirror::testing {
namespace {

TEST(digest, TheKernelGivesTheReferencesHashForEveryLengthAndWorkGroup) {
    executing_pair p;
    const auto context = p.context(), queue = p.queue(context);
    const auto kernel = p.kernel(context, digest_kernel_source(), digest_kernel_name);
    constexpr std::uint64_t most = 70001;
    const auto hashes = p.buffer(context, 4096 * 8);
    for (const std::uint64_t bytes : {1ull, 3ull, 7ull, 8ull, 9ull, 15ull, 16ull, 255ull, 256ull, 257ull,
                                      4096ull, 65536ull, 65539ull, 70001ull}) {
        const auto data = p.buffer(context, bytes);
        p.fill(queue, data, 0, bytes, static_cast<std::uint32_t>(bytes));
        std::vector<std::byte> content(p.guest(), p.guest() + bytes);
        for (const std::uint64_t chunk : {24ull, 4096ull, 65536ull}) {
            for (const std::uint64_t local : {1ull, 3ull, 64ull, 256ull}) {
                const std::uint64_t chunks = (bytes + chunk - 1) / chunk, first = 5, event = p.new_id();
                codec::launch_size size;
                size.global[0] = chunks * local;
                size.local[0] = local;
                size.local[1] = size.local[2] = 1;
                p.ok(stream_builder().launch({queue, event}, kernel, size,
                                             argument_builder()
                                                 .memory(0, data)
                                                 .scalar(1, bytes)
                                                 .scalar(2, chunk)
                                                 .memory(3, hashes)
                                                 .scalar(4, first)));
                ASSERT_EQ(p.complete(event), 0);
                const auto got = p.on_primary(queue, hashes, (first + chunks) * 8);
                for (std::uint64_t i = 0; i < chunks; ++i) {
                    std::uint64_t hash;
                    std::memcpy(&hash, got.data() + (first + i) * 8, 8);
                    const auto part =
                        std::span(content).subspan(i * chunk, std::min(chunk, bytes - i * chunk));
                    ASSERT_EQ(hash, chunk_hash(part))
                        << bytes << " bytes, chunk " << i << " of " << chunk << ", work-group of " << local;
                }
            }
        }
    }
    static_assert(most < 4096 * 24);
}

TEST(digest, OneByteMoreOrLessOrDifferentOrElsewhereIsAnotherHash) {
    std::vector<std::byte> data(300);
    std::set<std::uint64_t> seen;
    for (std::size_t bytes = 0; bytes <= data.size(); ++bytes)
        EXPECT_TRUE(seen.insert(chunk_hash(std::span(data).first(bytes))).second) << bytes;
    for (std::size_t at = 0; at < data.size(); ++at) {
        for (int bit = 0; bit < 8; ++bit) {
            data[at] ^= static_cast<std::byte>(1 << bit);
            EXPECT_TRUE(seen.insert(chunk_hash(data)).second) << at;
            data[at] ^= static_cast<std::byte>(1 << bit);
        }
    }
}

} // namespace
} // namespace kagemusha::mirror::testing
