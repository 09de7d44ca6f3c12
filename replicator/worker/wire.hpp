// SPDX-License-Identifier: GPL-2.0-or-later
// wire: the records that cross between the device and a worker, as bytes. Pure.
//
// Both ends are the same build on the same machine, so structures are used as they lie in memory. What
// arrives is checked like any input all the same: at the device because the worker runs code of the guest, at
// the worker because that code can scribble over the ring before the worker reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/port.hpp"
#include "worker/limits.hpp"

namespace kagemusha::worker {

enum class record_type : std::uint32_t {
    // device to worker
    request = 1,
    // worker to device
    ready = 16,    // the GPU is open; text: its name
    refused = 17,  // the worker can't work; text: a sentence why. It ends after this.
    done = 18,     // answer of a request
    guest = 19,    // a struct vgpu_record for the guest
    gpu_lost = 20, // the GPU's driver lost the device
    written = 21,  // a payload of a request that is not answered yet
    opened = 22,   // before ready, of a probe only; text: the own selector of the GPU
};

// Parts of a record that are written one after another, without being put together in between.
using parts = std::span<const std::span<const std::byte>>;

// Length of the parts together.
std::size_t total_bytes(parts p);

// ---- requests

struct request_header {
    std::uint64_t token;
    std::uint32_t stream_bytes;
    std::uint32_t payload_count;
    std::uint32_t segment_count;
    std::uint32_t pad;
};
static_assert(sizeof(request_header) == request_header_bytes);

class encoded_request {
public:
    // The request must keep the limits of vgpu_protocol.h; it outlives this object.
    explicit encoded_request(const request_view& request);
    encoded_request(const encoded_request&) = delete;
    encoded_request& operator=(const encoded_request&) = delete;
    worker::parts parts() const { return parts_; }

private:
    request_header header_;
    std::array<std::span<const std::byte>, 4> parts_;
};

// `record` is a private copy, 8-byte aligned. The result points into it. Nothing if the record breaks a rule:
// lengths, counts, pads, a payload whose segments are not in the table.
std::optional<request_view> decode_request(std::span<const std::byte> record);

// ---- answers

struct done_record {
    std::uint64_t token;
    vgpu_response response;
};

struct written_record {
    std::uint64_t token;
    std::uint32_t payload;
    std::uint32_t pad;
};

struct gpu_lost_record {
    std::uint32_t detail;
    std::uint32_t pad;
};

std::optional<done_record> decode_done(std::span<const std::byte> record);
std::optional<written_record> decode_written(std::span<const std::byte> record);
std::optional<gpu_lost_record> decode_gpu_lost(std::span<const std::byte> record);
// The rules of port_sink::on_record.
bool valid_guest_record(std::span<const std::byte> record);
// Text of ready and refused, as it came: use escaped() before a person sees it.
std::optional<std::string_view> decode_sentence(std::span<const std::byte> record);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span<const T, 1>(&value, 1));
}

// Text for a person out of bytes that someone hostile may have written: one line, printable ASCII, the rest
// as \xNN. At most `max_bytes` long.
std::string escaped(std::string_view text, std::size_t max_bytes);

} // namespace kagemusha::worker
