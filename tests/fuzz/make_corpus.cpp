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

using namespace kagemusha;

namespace {

bool write_file(const std::string& path, const std::vector<std::uint8_t>& bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!out) {
        std::fprintf(stderr, "%s can't be written\n", path.c_str());
    }
    return bool(out);
}

void act(fuzz::writer& out, fuzz::action what, std::uint8_t file = 1) {
    out.value(static_cast<std::uint8_t>(what));
    out.value(file);
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: make_corpus DIRECTORY (with decode/ and device/ in it)\n");
        return 2;
    }
    const std::string root = argv[1];
    const auto session = codec::sample_session();
    bool ok = true;

    fuzz::writer whole;
    act(whole, fuzz::action::open);
    for (std::size_t i = 0; i < session.size(); ++i) {
        const codec::stream_builder& b = session[i].builder;
        fuzz::writer decode;
        decode.value(static_cast<std::uint8_t>(b.payloads().size()));
        decode.array(b.payloads());
        decode.array(b.stream());
        std::string name = session[i].name;
        for (char& c : name) {
            c = c == ' ' ? '-' : c;
        }
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
