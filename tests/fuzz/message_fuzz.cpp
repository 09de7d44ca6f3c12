// SPDX-License-Identifier: GPL-2.0-or-later
// What a hostile peer can send: a frame header and the protobuf part behind it. What is taken must keep the
// bounds that its users rely on, must be what comes out again when it is encoded, and must say how many bytes
// follow it. The first byte says whether the header comes from the input too, or is made to fit, so that the
// fuzzer gets past it.
#include <cstdio>
#include <cstdlib>

#include "fuzz_input.hpp"
#include "messages/messages.hpp"
#include "messages/text.hpp"

using namespace kagemusha;

namespace {

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

void check_bounds(const mirror::message& m) {
    require(messages::payload_bytes_of(m) <= mirror::max_frame_payload_bytes, "payload fits into a frame");
    if (const auto* h = std::get_if<mirror::hello>(&m)) {
        require(messages::is_text(h->vm) && messages::is_text(h->gpu), "names can be shown");
        require(h->capabilities.size() <= mirror::max_capabilities, "few capabilities");
    } else if (const auto* b = std::get_if<mirror::entries>(&m)) {
        require(!b->list.empty() && b->list.size() <= mirror::max_entries_per_message,
                "not too many entries");
        messages::entries_budget budget;
        for (const auto& e : b->list) {
            (void)budget.take(e.meta, e.payloads.size());
            require(e.payloads.size() <= VGPU_MAX_PAYLOADS, "not too many payloads");
            require(e.meta.stream_bytes <= VGPU_MAX_STREAM_BYTES && e.meta.stream_bytes % 8 == 0,
                    "a stream is one");
            require(e.meta.content_bytes <= VGPU_MAX_PAYLOADS * mirror::max_payload_bytes,
                    "content has a sane length");
        }
    } else if (const auto* c = std::get_if<mirror::content>(&m)) {
        require(c->bytes <= mirror::content_piece_bytes && c->compressed_bytes < c->bytes, "a piece is one");
    } else if (const auto* f = std::get_if<mirror::fault>(&m)) {
        require(messages::is_text(f->why), "a reason can be shown");
    } else if (const auto* g = std::get_if<mirror::goodbye>(&m)) {
        require(messages::is_text(g->why), "a reason can be shown");
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    const bool made_up = in.value<std::uint8_t>() % 2 != 0;
    messages::frame_header header{};
    if (!made_up)
        header = in.value<messages::frame_header>();
    // Its own allocation of exactly this length, so that a read behind it is seen.
    const std::vector<std::uint8_t> protobuf(in.rest().begin(), in.rest().end());
    const auto bytes = std::as_bytes(std::span(protobuf));
    if (made_up)
        header = {messages::frame_magic, static_cast<std::uint32_t>(bytes.size()), 0};
    mirror::message m;
    std::string refused = messages::decode(header, bytes, m);
    if (made_up && !refused.empty() && messages::check(m).empty()) {
        header.payload_bytes = messages::payload_bytes_of(m);
        refused = messages::decode(header, bytes, m);
    }
    require(messages::is_text(refused), "a refusal can be shown");
    if (!refused.empty())
        return 0;
    require(messages::check(m).empty(), "what was taken keeps the rules");
    require(messages::payload_bytes_of(m) == header.payload_bytes, "what follows a message is known");
    check_bounds(m);

    std::vector<std::byte> frame;
    messages::encode(m, frame);
    messages::frame_header again_header;
    require(frame.size() >= sizeof(again_header), "a frame has a header");
    std::memcpy(&again_header, frame.data(), sizeof(again_header));
    mirror::message again;
    require(messages::decode(again_header, std::span(frame).subspan(sizeof(again_header)), again).empty(),
            "what is encoded can be decoded");
    require(again == m, "a message survives");
    return 0;
}
