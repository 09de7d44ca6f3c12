// SPDX-License-Identifier: GPL-2.0-or-later
// Writes the part of the corpus that is made of valid input: every request of the sample session for the
// decoder, and whole sessions for the device.
//
//   make_corpus tests/fuzz/corpus
#include <cstdio>
#include <fstream>
#include <string>

#include "codec/sample_session.hpp"
#include "fuzz_input.hpp"
#include "make_corpus.hpp"
#include "worker/wire.hpp"

using namespace kagemusha;

bool fuzz::write_file(const std::string& path, const std::vector<std::uint8_t>& bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!out)
        std::fprintf(stderr, "%s can't be written\n", path.c_str());
    return bool(out);
}

namespace {

using fuzz::write_file;

void act(fuzz::writer& out, fuzz::action what, std::uint8_t file = 1) {
    out.value(static_cast<std::uint8_t>(what));
    out.value(file);
}

// A ring with one record.
std::vector<std::uint8_t> ring_with(worker::record_type type, std::span<const std::byte> record) {
    fuzz::writer out;
    out.value(static_cast<std::uint16_t>(worker::ring_frame_bytes + (record.size() + 7) / 8 * 8));
    out.value(std::uint8_t{0});
    out.value(static_cast<std::uint32_t>(record.size()));
    out.value(type);
    out.array(record);
    return out.bytes();
}

template <class Record>
std::vector<std::uint8_t> ring_with_guest_record(Record r, std::uint32_t type) {
    r.record.type = type;
    r.record.bytes = sizeof(r);
    return ring_with(worker::record_type::guest, worker::bytes_of(r));
}

bool write_ring_corpus(const std::string& root) {
    const worker::done_record done{std::uint64_t{1} << 32, {}};
    const worker::gpu_lost_record lost{5, 0};
    vgpu_record_completion completion{};
    completion.event = 10;
    vgpu_record_queue_error error{};
    error.queue = 2;
    error.error = -5;
    error.opcode = VGPU_CMD_LAUNCH;
    vgpu_record_text_dropped dropped{};
    dropped.dropped_bytes = 100;
    struct {
        vgpu_record_text head;
        char text[8];
    } text{{{VGPU_RECORD_TEXT, sizeof(text), 0, 0}, 6, 0}, "hello\n"};
    codec::stream_builder b;
    b.write_buffer({2, 0, {}}, 3, 0, b.payload(false, 0, 0, 64));
    const worker::encoded_request encoded({7, b.stream(), b.payloads(), b.segments()});
    std::vector<std::byte> request;
    for (const auto part : encoded.parts())
        request.insert(request.end(), part.begin(), part.end());
    const std::string name = "GPU";
    return write_file(root + "/ring/valid-done",
                      ring_with(worker::record_type::done, worker::bytes_of(done))) &&
           write_file(root + "/ring/valid-gpu-lost",
                      ring_with(worker::record_type::gpu_lost, worker::bytes_of(lost))) &&
           write_file(root + "/ring/valid-ready",
                      ring_with(worker::record_type::ready, std::as_bytes(std::span(name)))) &&
           write_file(root + "/ring/valid-request", ring_with(worker::record_type::request, request)) &&
           write_file(root + "/ring/valid-completion",
                      ring_with_guest_record(completion, VGPU_RECORD_COMPLETION)) &&
           write_file(root + "/ring/valid-queue-error",
                      ring_with_guest_record(error, VGPU_RECORD_QUEUE_ERROR)) &&
           write_file(root + "/ring/valid-dropped",
                      ring_with_guest_record(dropped, VGPU_RECORD_TEXT_DROPPED)) &&
           write_file(root + "/ring/valid-text",
                      ring_with(worker::record_type::guest, worker::bytes_of(text)));
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: make_corpus DIRECTORY (with decode/, device/, ring/, message/, entry/, "
                             "vm_state/ and disk/ in it)\n");
        return 2;
    }
    const std::string root = argv[1];
    const auto session = codec::sample_session();
    bool ok = write_ring_corpus(root) && fuzz::write_message_corpus(root) && fuzz::write_disk_corpus(root) &&
              fuzz::write_image_corpus(root);

    fuzz::writer whole;
    act(whole, fuzz::action::open);
    for (std::size_t i = 0; i < session.size(); ++i) {
        const codec::stream_builder& b = session[i].builder;
        fuzz::writer decode;
        decode.value(static_cast<std::uint8_t>(b.payloads().size()));
        decode.array(b.payloads());
        decode.array(b.stream());
        std::string name = session[i].name;
        for (char& c : name)
            c = c == ' ' ? '-' : c;
        ok &= write_file(root + "/decode/valid-" + name, decode.bytes());

        act(whole, fuzz::action::submit);
        fuzz::submit_input::write(whole, b.request(1, 0));
        if (i % 8 == 7) {
            act(whole, fuzz::action::dispatch);
            act(whole, fuzz::action::event_space);
        }
    }
    act(whole, fuzz::action::dispatch);
    act(whole, fuzz::action::close);
    ok &= write_file(root + "/device/valid-session", whole.bytes());

    // Short lives, so that the fuzzer has small inputs to mix.
    for (const std::size_t length : {6u, 10u, 20u}) {
        fuzz::writer part;
        act(part, fuzz::action::open, 2);
        for (std::size_t i = 4; i < 4 + length; ++i) {
            act(part, fuzz::action::submit, 2);
            fuzz::submit_input::write(part, session[i].builder.request(2, 0));
        }
        act(part, fuzz::action::no_room);
        act(part, fuzz::action::dispatch, 2);
        act(part, fuzz::action::event_space);
        act(part, length == 6 ? fuzz::action::reset : fuzz::action::close, 2);
        ok &= write_file(root + "/device/valid-begin-" + std::to_string(length), part.bytes());
    }
    return ok ? 0 : 1;
}
