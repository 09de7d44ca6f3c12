// SPDX-License-Identifier: GPL-2.0-or-later
// A standby is attached to a guest that goes on launching kernels, one after the other; then all memory is
// compared.
#include <algorithm>
#include <cstdio>
#include <string>

#include "bed.hpp"

namespace kagemusha::bench {

namespace {

constexpr const char* source = R"(
    kernel void stir(global uint* out, uint seed) {
        uint i = get_global_id(0);
        uint v = (i + seed) * 2654435761u;
        out[i] = v ^ (v >> 15);
    })";
constexpr std::uint64_t mib = std::uint64_t{1} << 20, small_bytes = mib;

struct computing_guest {
    protected_guest g;
    std::uint64_t queue = 0, kernel = 0, small = 0;
    std::vector<std::uint64_t> pieces = {};
    std::uint64_t piece_bytes = 0;
    std::uint32_t launches = 0;

    void prepare(std::uint64_t bytes) {
        test::guest& guest = *g.guest;
        const auto context = guest.context();
        queue = guest.queue(context);
        kernel = guest.kernel(context, source, "stir");
        small = guest.buffer(context, small_bytes);
        piece_bytes = std::min(bytes / 4, 256 * mib);
        for (std::uint64_t done = 0; done < bytes; done += piece_bytes) {
            pieces.push_back(guest.buffer(context, piece_bytes));
            launch(pieces.back(), piece_bytes);
        }
        launch(small, small_bytes);
    }
    // Milliseconds from the request to the completion.
    double launch(std::uint64_t buffer, std::uint64_t bytes) {
        test::guest& guest = *g.guest;
        const auto event = guest.new_id();
        codec::launch_size size;
        size.global[0] = bytes / 4;
        codec::stream_builder b;
        b.launch({queue, event, {}}, kernel, size,
                 codec::argument_builder{}.memory(0, buffer).scalar(1, ++launches));
        const auto start = clock::now();
        guest.ok(b);
        guest.complete(event);
        const double ms = seconds_since(start) * 1e3;
        guest.destroy(VGPU_OBJECT_EVENT, event);
        return ms;
    }
    double next(bool much) {
        return much ? launch(pieces[launches % pieces.size()], piece_bytes) : launch(small, small_bytes);
    }
};

void compare(const options&, report& r, const computing_guest& c, std::uint64_t bytes) {
    test::guest& guest = *c.g.guest;
    for (int i = 0; i < 3; ++i) {
        const auto before = guest.status();
        const auto start = clock::now();
        kagemusha_device_request_digest(guest.device(), 1);
        const bool all = until(
            [&] {
                return (guest.status().digests_compared - before.digests_compared) * digest_chunk_bytes >=
                       bytes;
            },
            60);
        const double seconds = seconds_since(start);
        const auto after = guest.status();
        r.figure("digest of everything: time", seconds * 1e3, all ? "ms" : "ms, NOT COMPLETE");
        r.figure(
            "digest of everything: rate",
            static_cast<double>((after.digests_compared - before.digests_compared) * digest_chunk_bytes) /
                seconds / 1e9,
            "GB/s");
        r.figure("digest of everything: differences",
                 static_cast<double>(after.digests_different - before.digests_different), "");
    }
}

void transfer(const options& o, report& r, std::uint64_t bytes, bool much) {
    r.heading("transfer of " + std::to_string(bytes / mib) + " MiB, the guest writes " +
              (much ? "all of it again and again" : "1 MiB again and again"));
    computing_guest c{make_guest(o, protection::standby_later)};
    c.prepare(bytes);
    test::guest& guest = *c.g.guest;
    std::vector<double> alone, during;
    for (auto start = clock::now(); seconds_since(start) < 1 || alone.size() < 20;)
        alone.push_back(c.next(much));
    char error[512] = "";
    const auto start = clock::now();
    if (kagemusha_device_replicate_to(guest.device(), c.g.address.c_str(), error, sizeof error) != 0) {
        std::fprintf(stderr, "pair_bench: %s\n", error);
        return;
    }
    double longest = 0, longest_at = 0;
    while (!guest.is(KAGEMUSHA_REPLICATION_PROTECTING) && seconds_since(start) < 100) {
        const double at = seconds_since(start) * 1e3;
        during.push_back(c.next(much));
        if (during.back() > longest) {
            longest = during.back();
            longest_at = at;
        }
    }
    const double seconds = seconds_since(start);
    const auto s = guest.status();
    const bool done = s.state == KAGEMUSHA_REPLICATION_PROTECTING;
    r.figure("until protected", seconds, done ? "s" : "s, NOT DONE");
    if (!done)
        std::printf("  %s\n", s.degraded);
    const double shipped = static_cast<double>(s.transferred_bytes);
    r.figure("shipped", shipped / static_cast<double>(mib), "MiB");
    r.figure("shipped : memory", shipped / static_cast<double>(bytes + small_bytes), "");
    r.figure("rate", shipped / seconds / 1e9, "GB/s");
    r.figure("held back", static_cast<double>(s.held_back_ns) / 1e6, "ms");
    r.figure("launches meanwhile", static_cast<double>(during.size()), "");
    r.figure("a launch, alone: p50", quantile(alone, 0.5), "ms");
    r.figure("a launch, alone: longest", quantile(alone, 1), "ms");
    r.figure("a launch, meanwhile: p50", quantile(during, 0.5), "ms");
    r.figure("a launch, meanwhile: longest", quantile(during, 1), "ms");
    r.figure("a launch, meanwhile: second longest", during.size() > 1 ? during[during.size() - 2] : 0,
             "ms"); // quantile() has sorted
    r.figure("the longest one: after the beginning of the transfer", longest_at, "ms");
    if (done) {
        c.g.wait_executed();
        compare(o, r, c, bytes + small_bytes);
    }
}

} // namespace

void measure_transfer(const options& o, report& r) {
    for (const std::uint64_t size : o.transfer_mib)
        for (const bool much : {false, true})
            transfer(o, r, size * mib, much);
}

} // namespace kagemusha::bench
