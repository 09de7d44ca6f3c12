// SPDX-License-Identifier: GPL-2.0-or-later
// What a hostile worker can write, into the code that reads it: rings in shared memory that change between
// two reads, records, messages to the linker broker, lines on standard error. And what a kernel that scribbles
// over the ring can make a worker believe. The first byte says which.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fuzz_input.hpp"
#include "worker/linker_protocol.hpp"
#include "worker/log_lines.hpp"
#include "worker/ring.hpp"

using namespace kagemusha;

namespace {

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

unsigned touch(std::span<const std::byte> bytes) {
    unsigned sum = 0;
    for (const std::byte b : bytes)
        sum += static_cast<unsigned>(b);
    return sum;
}

// Between two reads the other side may change anything.
unsigned fuzz_ring(fuzz::reader& in) {
    constexpr std::size_t ring_bytes = 256, max_record = 128;
    alignas(8) std::byte data[ring_bytes]{};
    worker::ring_control control{};
    worker::ring_reader reader({&control, data}, max_record);
    worker::ring_writer writer({&control, data});
    unsigned sum = 0;
    while (!in.empty()) {
        control.written = in.value<std::uint64_t>() >> (in.value<std::uint8_t>() & 63);
        std::size_t at = in.value<std::uint8_t>();
        for (const auto byte : in.array<std::uint8_t>(in.value<std::uint8_t>()))
            data[at++ % ring_bytes] = static_cast<std::byte>(byte);
        worker::record_type type;
        std::span<const std::byte> record;
        if (reader.read(type, record) == worker::ring_status::ok) {
            require(record.size() <= max_record, "a record keeps its bound");
            sum += touch(record);
            if (const auto done = worker::decode_done(record))
                sum += done->response.status;
            if (const auto lost = worker::decode_gpu_lost(record))
                sum += lost->detail;
            if (worker::valid_guest_record(record))
                require(record.size() >= sizeof(vgpu_record), "a record has a head");
        }
        reader.prepare_sleep();
        control.read = in.value<std::uint64_t>() >> (in.value<std::uint8_t>() & 63);
        const std::byte own[200]{};
        const std::span<const std::byte> part(own, in.value<std::uint8_t>() % sizeof own);
        if (writer.write(worker::record_type::guest, {&part, 1}) == worker::ring_status::ok)
            sum += writer.reader_needs_wake();
        require(writer.backlog() <= ring_bytes, "a backlog is at most the ring");
    }
    return sum;
}

unsigned fuzz_request(fuzz::reader& in) {
    const auto bytes = in.array<std::uint8_t>(in.rest().size());
    std::vector<std::uint64_t> words((bytes.size() + 7) / 8);
    if (!bytes.empty())
        std::memcpy(words.data(), bytes.data(), bytes.size());
    const auto record = std::as_bytes(std::span(words)).first(bytes.size());
    const auto request = worker::decode_request(record);
    if (!request)
        return 0;
    unsigned sum = touch(request->stream) + touch(std::as_bytes(request->payloads)) +
                   touch(std::as_bytes(request->segments));
    for (const auto& payload : request->payloads)
        for (std::uint32_t i = 0; i < payload.segment_count; ++i)
            sum += request->segments[payload.first_segment + i].region;
    return sum;
}

unsigned fuzz_link(fuzz::reader& in) {
    const auto bytes = in.array<char>(in.rest().size());
    const auto arguments = worker::decode_link_request({bytes.data(), bytes.size()});
    if (!arguments)
        return 0;
    const bool obeyed = worker::check_link_request(*arguments, "/mnt").empty();
    if (obeyed) {
        require(worker::names_a_linker(arguments->front()), "only linkers are started");
        bool output = false;
        for (std::size_t i = 1; i < arguments->size(); ++i) {
            const auto argument = (*arguments)[i];
            require(!argument.starts_with('@') && !argument.starts_with("-plugin"),
                    "nothing but a plain link");
            if (argument == "-o") {
                require(i + 1 < arguments->size() && (*arguments)[i + 1].starts_with("/mnt/") && !output,
                        "output is private");
                output = true;
            }
        }
    }
    return obeyed;
}

unsigned fuzz_lines(fuzz::reader& in) {
    std::size_t count = 0;
    worker::log_lines lines([&](const std::string& line) {
        ++count;
        require(line.size() <= worker::max_log_line_bytes, "a line is short");
        for (const char c : line)
            require(c >= 0x20 && c < 0x7f, "a line is printable");
    });
    std::uint64_t now_ms = 0;
    while (!in.empty()) {
        now_ms += in.value<std::uint8_t>();
        const auto text = in.array<char>(in.value<std::uint8_t>());
        lines.add({text.data(), text.size()}, now_ms);
    }
    lines.finish();
    require(count <= 2 * (worker::log_burst_lines + now_ms * worker::log_lines_per_second / 1000) + 3,
            "few lines");
    return static_cast<unsigned>(count);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    volatile unsigned sum = 0; // the compiler must not leave the reads out
    switch (in.value<std::uint8_t>() % 4) {
    case 0:
        sum = fuzz_ring(in);
        break;
    case 1:
        sum = fuzz_request(in);
        break;
    case 2:
        sum = fuzz_link(in);
        break;
    case 3:
        sum = fuzz_lines(in);
        break;
    }
    (void)sum;
    return 0;
}
