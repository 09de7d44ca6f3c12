// SPDX-License-Identifier: GPL-2.0-or-later
// decoder_agreement: whether the decoder that comes from the command table and the one written by hand agree
// about streams that are nearly right. Each input is a request of the sample session with up to four changes
// that know what a command looks like: fields set to numbers at the edges, lengths and counts changed, words
// added and taken out, opcodes exchanged, commands of different requests put together, payload tables
// damaged. Bytes without a structure are decode_fuzz's part, which compares the same two decoders.
//
//   decoder_agreement [--inputs N] [--seed S] [--first I]
//
// An input follows from S and its number alone. A difference prints the command line that repeats it. The run
// also fails if it proves less than it should: if an opcode was never accepted, or never refused.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "agreement.hpp"
#include "codec/commands/table.hpp"
#include "codec/sample_session.hpp"
#include "decode_by_hand.hpp"

using namespace kagemusha;

namespace {

// splitmix64: few instructions, and a new one for each input.
struct generator {
    std::uint64_t state;
    std::uint64_t operator()() {
        std::uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    std::uint64_t below(std::uint64_t n) { return (*this)() % n; }
};

struct input {
    std::vector<std::uint64_t> words;
    std::vector<kagemusha_payload> payloads;

    vgpu_cmd& header(std::size_t word) { return reinterpret_cast<vgpu_cmd&>(words[word]); }
};

// Numbers at the edges of something.
std::uint64_t interesting(generator& random) {
    // clang-format off
    constexpr std::array<std::uint64_t, 34> numbers{
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 64, 65, 127, 128, 129, 256,
        VGPU_MAX_WAIT_COUNT, VGPU_MAX_WAIT_COUNT + 1, VGPU_MAX_OPTIONS_BYTES, VGPU_MAX_INLINE_PAYLOAD_BYTES,
        VGPU_MAX_INLINE_PAYLOAD_BYTES + 1, VGPU_MAX_PROGRAM_BYTES + 1, VGPU_PAYLOAD_NONE, VGPU_PAYLOAD_INLINE,
        VGPU_HOST_ID_BIT, 0x10f1, 0x10f4, 0x1130, 0x1141, UINT64_MAX - 7, UINT64_MAX};
    // clang-format on
    const std::uint64_t pick = random.below(numbers.size() + 6);
    return pick < numbers.size()       ? numbers[pick]
           : pick < numbers.size() + 3 ? std::uint64_t{1} << random.below(64)
                                       : random();
}

// Where the commands of a stream begin, as far as their lengths make sense.
std::vector<std::uint32_t> commands_of(const input& in) {
    std::vector<std::uint32_t> at;
    for (std::size_t word = 0; word < in.words.size();) {
        at.push_back(static_cast<std::uint32_t>(word));
        const std::uint32_t bytes = codec::command_bytes(const_cast<input&>(in).header(word));
        if (bytes == 0 || bytes % 8 != 0) {
            break;
        }
        word += bytes / 8;
    }
    return at;
}

void set_length(vgpu_cmd& header, std::uint64_t words) {
    if (header.opcode == VGPU_CMD_WRITE_RUNS) {
        header.flags = static_cast<__u16>(words);
    } else {
        header.bytes = static_cast<__u32>(words * 8);
    }
}

void change(generator& random, input& in, const std::vector<codec::sample_request>& session) {
    const std::vector<std::uint32_t> commands = commands_of(in);
    if (commands.empty()) {
        return;
    }
    const std::size_t which = random.below(commands.size());
    const std::size_t from = commands[which];
    const std::size_t to = which + 1 < commands.size() ? commands[which + 1] : in.words.size();
    const std::size_t word = from + random.below(to - from);
    switch (random.below(12)) {
    case 0: // a field of 64 bits
    case 1:
        in.words[word] = interesting(random);
        return;
    case 2: // of 32 bits
    case 3:
        reinterpret_cast<std::uint32_t*>(&in.words[word])[random.below(2)] =
            static_cast<std::uint32_t>(interesting(random));
        return;
    case 4: // a bit
        in.words[word] ^= std::uint64_t{1} << random.below(64);
        return;
    case 5: // one more or less than it was
        reinterpret_cast<std::uint32_t*>(&in.words[word])[random.below(2)] += random.below(2) ? 1u : ~0u;
        return;
    case 6: { // an octet
        auto* octets = reinterpret_cast<std::uint8_t*>(&in.words[word]);
        octets[random.below(8)] = static_cast<std::uint8_t>(interesting(random));
        return;
    }
    case 7: // another opcode over the same bytes
        in.header(from).opcode = static_cast<__u16>(random.below(VGPU_OPCODE_COUNT + 2));
        return;
    case 8: { // words added or taken out, with the length or without
        vgpu_cmd& header = in.header(from);
        if (random.below(2)) {
            const std::size_t n = 1 + random.below(3);
            if (random.below(4)) {
                set_length(header, to - from + n);
            }
            in.words.insert(in.words.begin() + static_cast<std::ptrdiff_t>(word) + 1, n,
                            random.below(3) ? interesting(random) : 0);
        } else if (to - from > 1) {
            if (random.below(4)) {
                set_length(header, to - from - 1);
            }
            in.words.erase(in.words.begin() + static_cast<std::ptrdiff_t>(std::max(word, from + 1)));
        }
        return;
    }
    case 9: { // commands of another request, before or behind these
        const codec::stream_builder& other = session[random.below(session.size())].builder;
        const auto bytes = other.stream();
        if (bytes.size() > 4096) {
            return;
        }
        std::vector<std::uint64_t> more(bytes.size() / 8);
        std::memcpy(more.data(), bytes.data(), bytes.size());
        in.words.insert(random.below(4) ? in.words.begin() : in.words.end(), more.begin(), more.end());
        return;
    }
    case 10: // the payload table
        if (!in.payloads.empty()) {
            kagemusha_payload& p = in.payloads[random.below(in.payloads.size())];
            switch (random.below(4)) {
            case 0:
                p.writable ^= 1;
                return;
            case 1:
                p.bytes = interesting(random);
                return;
            case 2: { // of the table and, where they were the same, of the command
                const std::uint64_t old = p.bytes;
                p.bytes = interesting(random);
                std::replace(in.words.begin(), in.words.end(), old, std::uint64_t{p.bytes});
                return;
            }
            default:
                in.payloads.push_back(p);
            }
        }
        return;
    default: // a number that two fields have in common, in both
        std::replace(in.words.begin() + static_cast<std::ptrdiff_t>(from),
                     in.words.begin() + static_cast<std::ptrdiff_t>(to), std::uint64_t{in.words[word]},
                     interesting(random));
    }
}

struct counts {
    std::uint64_t accepted = 0, refused = 0; // commands
};

int run(std::uint64_t seed, std::uint64_t first, std::uint64_t inputs) {
    const auto session = codec::sample_session();
    std::array<counts, VGPU_OPCODE_COUNT> opcodes{};
    std::map<std::string_view, std::uint64_t> sentences;
    std::uint64_t without_error = 0;
    input in;
    for (std::uint64_t i = first; i < first + inputs; ++i) {
        generator random{seed * 0xd1342543de82ef95 + i};
        random();
        const codec::stream_builder& base = session[random.below(session.size())].builder;
        if (base.stream().size() > 4096 && random.below(64)) {
            continue; // a long batch of one command over and over: worth few inputs
        }
        in.words.resize(base.stream().size() / 8);
        std::memcpy(in.words.data(), base.stream().data(), base.stream().size());
        in.payloads.assign(base.payloads().begin(), base.payloads().end());
        for (std::uint64_t changes = random.below(5); changes > 0; --changes) {
            change(random, in, session);
        }
        // An allocation of exactly this length would cost more than the decoders; decode_fuzz has that.
        const std::span<const std::byte> stream = std::as_bytes(std::span(in.words));
        const fuzz::walked w = fuzz::walk_both<codec::stream_decoder, fuzz::hand_decoder>(
            stream, in.payloads, [&](const codec::op& o) { ++opcodes[codec::header_of(o).opcode].accepted; });
        if (w.difference) {
            std::printf("input %" PRIu64 ": %s\nagain: decoder_agreement --seed %" PRIu64 " --first %" PRIu64
                        " --inputs 1\n",
                        i, w.difference, seed, i);
            return 1;
        }
        if (w.status == codec::decode_status::error) {
            ++sentences[w.error.message];
            if (w.error.offset < stream.size()) {
                const std::uint16_t opcode = in.header(w.error.offset / 8).opcode;
                if (opcode < opcodes.size()) {
                    ++opcodes[opcode].refused;
                }
            }
        } else {
            ++without_error;
        }
    }
    std::printf("%" PRIu64 " inputs, seed %" PRIu64 ": the decoders agree; %" PRIu64
                " without an error, %zu different sentences\n",
                inputs, seed, without_error, sentences.size());
    bool enough = true;
    if (inputs >= 100'000) {
        codec::commands::all_rows::for_each([&]<class Row>() {
            const counts& n = opcodes[Row::opcode];
            // AWAIT is in no request of a guest: only as another opcode over the same bytes
            if (n.accepted == 0 || n.refused == 0) {
                std::printf("%s: %" PRIu64 " accepted, %" PRIu64 " refused: too few to prove anything\n",
                            Row::name, n.accepted, n.refused);
                enough = false;
            }
        });
    }
    if (std::getenv("KAGEMUSHA_SENTENCES")) {
        for (const auto& [sentence, n] : sentences) {
            std::printf("%10" PRIu64 "  %.*s\n", n, static_cast<int>(sentence.size()), sentence.data());
        }
    }
    return enough ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
    std::uint64_t seed = 1, first = 0, inputs = 1'000'000;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string_view option = argv[i];
        const std::uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
        (option == "--seed" ? seed : option == "--first" ? first : inputs) = value;
        if (option != "--seed" && option != "--first" && option != "--inputs") {
            std::fprintf(stderr, "usage: decoder_agreement [--inputs N] [--seed S] [--first I]\n");
            return 2;
        }
    }
    return run(seed, first, inputs);
}
