// SPDX-License-Identifier: GPL-2.0-or-later
// fuzz_input: how the bytes of a fuzzer become the input of the thing under test, and back, so that
// make_corpus writes what the fuzzers read.
//
//   decode_fuzz   payload_count (1 byte), payload_count x struct kagemusha_payload, stream
//   ring_fuzz     index of the writer (2 bytes), whether that is a lie (1 byte), the ring's bytes
//   device_fuzz   actions: kind (1 byte), file (1 byte), and for SUBMIT the tables and the stream, each with
//   its count in front
//   message_fuzz  whether the header is made up (1 byte, odd), else a frame header, then the protobuf part
//   entry_fuzz    length of the protobuf part (2 bytes), the part, the streams
//   frame_fuzz    how to cut (1 byte; odd: behind a hello), the bytes of a connection
//   compress_fuzz length of the content (2 bytes), what follows the message
//   primary_fuzz, standby_fuzz, pair_fuzz   a choice (1 byte), then steps: kind (1 byte) and what the kind
//   wants
//   vm_state_fuzz the message
//   share_fuzz    steps: kind (1 byte), which connection (1), time that passed (4), what the kind wants
//   cluster_fuzz  NUL and steps of four bytes with frames, or a declaration
//   disk_fuzz     size of the image in parts (4 bytes), bytes beyond them (2), the stream
#pragma once

#include <kagemusha/device.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kagemusha::fuzz {

enum class action : std::uint8_t {
    open = 0,
    close = 1,
    submit = 2,
    dispatch = 3, // waits for the worker's thread a little
    reset = 4,
    event_space = 5, // the guest has room for 64 more records
    no_room = 6,
    count = 7,
};

// Eats bytes from the front; behind the end everything is 0.
class reader {
public:
    explicit reader(std::span<const std::uint8_t> bytes) : rest_(bytes) {}
    bool empty() const { return rest_.empty(); }

    template <class T>
    T value() {
        T out{};
        const std::size_t n = std::min(sizeof(T), rest_.size());
        std::memcpy(&out, rest_.data(), n);
        rest_ = rest_.subspan(n);
        return out;
    }

    template <class T>
    std::vector<T> array(std::size_t count) {
        std::vector<T> out(std::min(count, rest_.size() / sizeof(T)));
        if (!out.empty())
            std::memcpy(out.data(), rest_.data(), out.size() * sizeof(T));
        rest_ = rest_.subspan(out.size() * sizeof(T));
        return out;
    }

    std::span<const std::uint8_t> rest() const { return rest_; }

private:
    std::span<const std::uint8_t> rest_;
};

class writer {
public:
    template <class T>
    void value(const T& v) {
        append(&v, sizeof(v));
    }
    template <class T>
    void array(std::span<const T> items) {
        append(items.data(), items.size_bytes());
    }
    const std::vector<std::uint8_t>& bytes() const { return bytes_; }

private:
    void append(const void* data, std::size_t n) {
        const auto* begin = static_cast<const std::uint8_t*>(data);
        bytes_.insert(bytes_.end(), begin, begin + n);
    }
    std::vector<std::uint8_t> bytes_;
};

// A SUBMIT action behind its kind and file.
struct submit_input {
    std::vector<kagemusha_payload> payloads;
    std::vector<kagemusha_segment> segments;
    std::vector<std::uint64_t> stream; // 64-bit words: aligned as the interface promises
    std::uint32_t stream_bytes = 0;
    std::uint32_t completion_count = 0;

    static submit_input read(reader& in) {
        submit_input s;
        s.payloads = in.array<kagemusha_payload>(in.value<std::uint8_t>());
        s.segments = in.array<kagemusha_segment>(in.value<std::uint8_t>());
        s.completion_count = in.value<std::uint16_t>();
        const auto bytes = in.array<std::uint8_t>(in.value<std::uint16_t>());
        s.stream_bytes = static_cast<std::uint32_t>(bytes.size());
        s.stream.resize((bytes.size() + 7) / 8);
        if (!bytes.empty())
            std::memcpy(s.stream.data(), bytes.data(), bytes.size());
        return s;
    }

    static void write(writer& out, const kagemusha_request& r) {
        out.value(static_cast<std::uint8_t>(r.payload_count));
        out.array(std::span(r.payloads, r.payload_count));
        out.value(static_cast<std::uint8_t>(r.segment_count));
        out.array(std::span(r.segments, r.segment_count));
        out.value(static_cast<std::uint16_t>(r.completion_count));
        out.value(static_cast<std::uint16_t>(r.stream_bytes));
        out.array(std::span(static_cast<const std::uint8_t*>(r.stream), r.stream_bytes));
    }
};

} // namespace kagemusha::fuzz
