// SPDX-License-Identifier: GPL-2.0-or-later
// The device's part of a VM's checkpoint, which a standby's QEMU loads from the stream of the VM's state:
// messages::decode of bytes that a peer made. What it takes keeps every bound, and is the same when it is
// encoded and decoded again; memory keeps to a small multiple of the bytes (libFuzzer's -malloc_limit_mb).
#include <algorithm>

#include "core/limits.hpp"
#include "messages/vm_state.hpp"
#include "mirror/log/limits.hpp"
#include "peer_messages.hpp"

using namespace kagemusha;
using fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    mirror::vm_state state;
    const std::string why = messages::decode(std::as_bytes(std::span(data, size)), state);
    if (!why.empty()) {
        require(why.size() <= mirror::max_text_bytes && state == mirror::vm_state{},
                "what is refused has a sentence, and leaves nothing");
        return 0;
    }
    std::uint64_t requests = 0, refused = 0;
    require(state.files.size() <= mirror::max_mirrored_files, "files are bounded");
    for (const core::file_checkpoint& f : state.files) {
        requests += f.requests.size();
        refused += f.refused.size();
        require(f.records.size() <= size, "records are bounded");
        for (const auto& r : f.requests) {
            require(r.entries.after <= r.entries.last && r.entries.last <= mirror::max_sequence,
                    "a request ends behind its begin");
            require(std::ranges::is_sorted(r.progress.written) && std::ranges::is_sorted(r.progress.refused),
                    "places ascend");
        }
    }
    require(requests <= messages::max_open_requests && refused <= messages::max_refused_events,
            "requests and events are bounded");
    require(mirror::open_requests(state).size() == requests, "each of them once");
    std::vector<std::byte> again;
    messages::encode(state, again);
    mirror::vm_state back;
    require(messages::decode(again, back).empty() && back == state, "there and back");
    return 0;
}
