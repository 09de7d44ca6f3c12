// SPDX-License-Identifier: GPL-2.0-or-later
// What kagemusha_device_submit() takes. The guests take turns, a few dozen requests each, so that what else
// the machine does falls on all of them.
#include <array>
#include <string>

#include "bed.hpp"

namespace kagemusha::bench {

namespace {

constexpr const char* source = R"(
    kernel void tiny(global uint* out, global const uint* in, uint a, uint b) {
        size_t i = get_global_id(0);
        out[i] = in[i] * a + b;
    })";
constexpr std::uint32_t launches_of[] = {1, 64}, at_once_of[] = {1, 32};
constexpr std::uint64_t own_tokens = std::uint64_t{1} << 40; // the guest counts its own from 1

struct subject {
    const char* name;
    protected_guest g;
    std::uint64_t queue = 0;
    std::array<codec::stream_builder, 2> requests = {}; // of each number of launches
    std::uint64_t next_token = own_tokens;
    std::vector<double> samples = {};

    void prepare() {
        test::guest& guest = *g.guest;
        const auto context = guest.context();
        queue = guest.queue(context);
        const auto in = guest.buffer(context, 4096), out = guest.buffer(context, 4096);
        const auto kernel = guest.kernel(context, source, "tiny");
        codec::launch_size size;
        size.global[0] = 64;
        for (std::size_t i = 0; i < requests.size(); ++i) {
            for (std::uint32_t n = 0; n < launches_of[i]; ++n) {
                requests[i].launch(
                    {queue, 0, {}}, kernel, size,
                    codec::argument_builder{}.memory(0, out).memory(1, in).scalar(2, 3u).scalar(3, n));
            }
        }
        guest.finish(queue);
    }

    void round(const codec::stream_builder& b, std::uint32_t at_once, std::uint32_t submits) {
        test::guest& guest = *g.guest;
        for (std::uint32_t done = 0; done < submits; done += at_once) {
            for (std::uint32_t i = 0; i < at_once; ++i) {
                test::host::wait([&] { return !kagemusha_device_congested(guest.device()); }, "room");
                const kagemusha_request request = b.request(1, ++next_token);
                const auto start = clock::now();
                kagemusha_device_submit(guest.device(), &request);
                samples.push_back(seconds_since(start) * 1e6);
            }
            test::host::wait([&] { return guest.answered(next_token); }, "an answer");
        }
        guest.finish(queue);
    }
};

} // namespace

void measure_submit(const options& o, report& r) {
    subject subjects[] = {{"no replication", make_guest(o, protection::none)},
                          {"configured, nobody there", make_guest(o, protection::nobody)},
                          {"a standby", make_guest(o, protection::standby)}};
    for (subject& s : subjects)
        s.prepare();
    constexpr std::uint32_t per_round = 64;
    for (std::size_t l = 0; l < std::size(launches_of); ++l) {
        for (const std::uint32_t at_once : at_once_of) {
            r.heading("submit of " + std::to_string(launches_of[l]) + " launches, " +
                      std::to_string(at_once) + " requests at once");
            for (subject& s : subjects) {
                s.round(s.requests[l], at_once, per_round); // caches, pages
                s.samples.clear();
            }
            for (std::uint32_t done = 0, turn = 0; done < o.submits; done += per_round, ++turn) {
                for (std::size_t i = 0; i < std::size(subjects); ++i) {
                    subject& s = subjects[(i + turn) % std::size(subjects)];
                    s.round(s.requests[l], at_once, per_round);
                }
            }
            const double p50 = quantile(subjects[0].samples, 0.5), p99 = quantile(subjects[0].samples, 0.99);
            for (subject& s : subjects) {
                const std::string name = s.name;
                r.figure(name + ": p50", quantile(s.samples, 0.5), "us");
                r.figure(name + ": p99", quantile(s.samples, 0.99), "us");
                if (&s != subjects) {
                    r.figure(name + ": added p50", quantile(s.samples, 0.5) - p50, "us");
                    r.figure(name + ": added p99", quantile(s.samples, 0.99) - p99, "us");
                }
            }
            subjects[2].g.wait_executed();
        }
    }
}

} // namespace kagemusha::bench
