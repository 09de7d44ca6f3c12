// SPDX-License-Identifier: GPL-2.0-or-later
// What a program that computes loses: to a standby, and to digests every second. Guests take turns.
#include <algorithm>
#include <string>

#include "bed.hpp"

namespace kagemusha::bench {

namespace {

constexpr const char* source = R"(
    kernel void work(global uint* out, uint rounds) {
        size_t i = get_global_id(0);
        uint v = out[i];
        for (uint n = 0; n < rounds; ++n)
            v = v * 1664525u + 1013904223u;
        out[i] = v;
    })";
constexpr std::uint64_t program_bytes = 256u << 20;
constexpr std::uint32_t turns = 3;

struct program {
    const char* name;
    protected_guest g;
    std::uint64_t queue = 0, out = 0, kernel = 0;
    double seconds = 0;

    void prepare() {
        test::guest& guest = *g.guest;
        const auto context = guest.context();
        queue = guest.queue(context);
        out = guest.buffer(context, program_bytes);
        kernel = guest.kernel(context, source, "work");
        run(1);
    }
    // Few launches are in flight at a time, as in a program that looks at its results.
    double run(std::uint32_t launches) {
        test::guest& guest = *g.guest;
        codec::launch_size size;
        size.global[0] = program_bytes / 4;
        const auto start = clock::now();
        for (std::uint32_t i = 1; i <= launches; ++i) {
            codec::stream_builder b;
            b.launch({queue, 0, {}}, kernel, size,
                     codec::argument_builder{}.memory(0, out).scalar(1, std::uint32_t{64}));
            guest.ok(b);
            if (i % 8 == 0 || i == launches)
                guest.finish(queue);
        }
        return seconds_since(start);
    }
};

} // namespace

void measure_program(const options& o, report& r) {
    r.heading("a program that computes on 256 MiB");
    program programs[] = {{"no standby", make_guest(o, protection::none)},
                          {"standby", make_guest(o, protection::standby)},
                          {"standby, digests every second", make_guest(o, protection::standby, 1000)}};
    for (program& p : programs) {
        p.prepare();
        p.run(8);
    }
    const auto launches =
        static_cast<std::uint32_t>(std::max(8.0, o.seconds / (programs[0].run(16) / 16))) / 8 * 8;
    for (std::uint32_t turn = 0; turn < turns; ++turn) {
        for (std::size_t i = 0; i < std::size(programs); ++i) {
            program& p = programs[(i + turn) % std::size(programs)];
            p.seconds += p.run(launches);
            if (p.g.standby)
                p.g.wait_executed(); // else it would compute in the next one's time
        }
    }
    r.figure("launches in a piece", launches, "");
    for (const program& p : programs)
        r.figure(std::string(p.name) + ": a piece", p.seconds / turns, "s");
    r.figure("standby : none", programs[1].seconds / programs[0].seconds, "");
    r.figure("standby with digests : standby", programs[2].seconds / programs[1].seconds, "");
    const auto s = programs[2].g.guest->status();
    r.figure("compared", static_cast<double>(s.digests_compared * digest_chunk_bytes) / (1u << 20), "MiB");
    r.figure("differences", static_cast<double>(s.digests_different), "chunks");
}

} // namespace kagemusha::bench
