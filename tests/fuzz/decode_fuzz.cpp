// SPDX-License-Identifier: GPL-2.0-or-later
// Arbitrary bytes as a stream and a payload table into the decoder. Everything that an op points at is read,
// so that the sanitizers see an op that points outside of its stream.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "codec/decode.hpp"
#include "fuzz_input.hpp"

using namespace kagemusha;

namespace {

unsigned touch(std::span<const std::byte> bytes) {
    unsigned sum = 0;
    for (const std::byte b : bytes)
        sum += static_cast<unsigned>(b);
    return sum;
}

// A sum over all that the op's members point at.
unsigned touch(const codec::op& o) {
    unsigned sum = touch(std::as_bytes(codec::waits_of(o)));
    std::visit(
        [&sum](const auto& x) {
            sum += touch(std::as_bytes(std::span(std::to_address(x.c), 1)));
            if constexpr (requires { x.runs; }) {
                sum += touch(x.bytes);
                x.runs.for_each(
                    [&](const codec::buffer_run& r) { sum += touch(x.bytes.subspan(r.from, r.bytes)); });
            }
            if constexpr (requires { x.data; })
                sum += touch(x.data.inline_bytes);
            if constexpr (requires { x.content; })
                sum += touch(x.content.inline_bytes);
            if constexpr (requires { x.input; })
                sum += touch(x.input.inline_bytes);
            if constexpr (requires { x.value; })
                sum += touch(x.value);
            if constexpr (requires { x.options; })
                sum += touch(std::as_bytes(std::span(x.options)));
            if constexpr (requires { x.names; })
                sum += touch(std::as_bytes(std::span(x.names)));
            if constexpr (requires { x.name; })
                sum += touch(std::as_bytes(std::span(x.name)));
            if constexpr (requires { x.objects; })
                sum += touch(std::as_bytes(x.objects));
            if constexpr (requires { x.headers; })
                sum += touch(std::as_bytes(x.headers));
            if constexpr (requires { x.inputs; })
                sum += touch(std::as_bytes(x.inputs));
            if constexpr (requires { x.arguments; }) {
                x.arguments.for_each(
                    [&sum](const codec::launch_argument& a) { sum += a.index + touch(a.value); });
            }
        },
        o);
    return sum;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    const auto payloads = in.array<kagemusha_payload>(in.value<std::uint8_t>());
    // Its own allocation of exactly the stream's length, so that a read behind it is seen.
    std::vector<std::uint64_t> words(in.rest().size() / 8);
    if (!words.empty())
        std::memcpy(words.data(), in.rest().data(), words.size() * 8);
    std::uint64_t bytes = 0;
    volatile unsigned sink = 0;
    codec::stream_decoder decoder(std::as_bytes(std::span(words)), {payloads});
    codec::op o;
    codec::decode_status status;
    while ((status = decoder.next(o)) == codec::decode_status::op) {
        sink = sink + touch(o);
        bytes += codec::header_of(o).bytes;
    }
    // Commands lie one behind the other, and a stream that ends without an error was used up.
    if (status == codec::decode_status::end ? bytes != words.size() * 8 : decoder.error().offset != bytes)
        std::abort();
    return 0;
}
