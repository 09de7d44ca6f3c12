// SPDX-License-Identifier: GPL-2.0-or-later
// wire: see wire.hpp.
#include "worker/wire.hpp"

#include <cstring>
#include <string>

namespace kagemusha::worker {

namespace {

// A record that is exactly one structure.
template <class T>
std::optional<T> decode_exactly(std::span<const std::byte> record) {
    T value;
    if (record.size() != sizeof value)
        return std::nullopt;
    std::memcpy(&value, record.data(), sizeof value);
    return value;
}

} // namespace

std::size_t total_bytes(parts p) {
    std::size_t sum = 0;
    for (auto part : p)
        sum += part.size();
    return sum;
}

encoded_request::encoded_request(const request_view& request)
    : header_{request.token, static_cast<std::uint32_t>(request.stream.size()),
              static_cast<std::uint32_t>(request.payloads.size()),
              static_cast<std::uint32_t>(request.segments.size()), 0}
    , parts_{bytes_of(header_), request.stream, std::as_bytes(request.payloads),
             std::as_bytes(request.segments)} {}

std::optional<request_view> decode_request(std::span<const std::byte> record) {
    request_header header;
    if (record.size() < sizeof header)
        return std::nullopt;
    std::memcpy(&header, record.data(), sizeof header);
    if (header.pad != 0 || header.stream_bytes > VGPU_MAX_STREAM_BYTES || header.stream_bytes % 8 != 0 ||
        header.payload_count > VGPU_MAX_PAYLOADS || header.segment_count > VGPU_MAX_SEGMENTS)
        return std::nullopt;
    // None of these can overflow: each factor was bounded above.
    const std::size_t payload_bytes = header.payload_count * sizeof(kagemusha_payload);
    const std::size_t segment_bytes = header.segment_count * sizeof(kagemusha_segment);
    if (record.size() != sizeof header + header.stream_bytes + payload_bytes + segment_bytes)
        return std::nullopt;

    const auto stream = record.subspan(sizeof header, header.stream_bytes);
    const std::byte* payloads = stream.data() + stream.size();
    const std::byte* segments = payloads + payload_bytes;
    request_view view{header.token,
                      stream,
                      {reinterpret_cast<const kagemusha_payload*>(payloads), header.payload_count},
                      {reinterpret_cast<const kagemusha_segment*>(segments), header.segment_count}};
    for (const kagemusha_payload& payload : view.payloads)
        if (payload.first_segment > header.segment_count ||
            payload.segment_count > header.segment_count - payload.first_segment || payload.writable > 1 ||
            payload.pad != 0)
            return std::nullopt;
    return view;
}

std::optional<done_record> decode_done(std::span<const std::byte> record) {
    return decode_exactly<done_record>(record);
}

std::optional<written_record> decode_written(std::span<const std::byte> record) {
    const auto written = decode_exactly<written_record>(record);
    return written && written->pad == 0 ? written : std::nullopt;
}

std::optional<gpu_lost_record> decode_gpu_lost(std::span<const std::byte> record) {
    return decode_exactly<gpu_lost_record>(record);
}

bool valid_guest_record(std::span<const std::byte> record) {
    vgpu_record header;
    if (record.size() < sizeof header || record.size() > VGPU_MAX_RECORD_BYTES || record.size() % 8 != 0)
        return false;
    std::memcpy(&header, record.data(), sizeof header);
    return header.bytes == record.size();
}

std::optional<std::string_view> decode_sentence(std::span<const std::byte> record) {
    if (record.size() > max_sentence_bytes)
        return std::nullopt;
    return std::string_view(reinterpret_cast<const char*>(record.data()), record.size());
}

std::string escaped(std::string_view text, std::size_t max_bytes) {
    static constexpr char hex[] = "0123456789abcdef";
    static constexpr std::string_view cut = "...";
    std::string line;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (line.size() + 4 + cut.size() > max_bytes) {
            line += cut;
            break;
        }
        if (byte >= 0x20 && byte < 0x7f && c != '\\') {
            line += c;
        } else {
            line += "\\x";
            line += hex[byte >> 4];
            line += hex[byte & 15];
        }
    }
    return line;
}

} // namespace kagemusha::worker
