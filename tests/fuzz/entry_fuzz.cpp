// SPDX-License-Identifier: GPL-2.0-or-later
// What an authenticated but hostile primary can send: an `entries` message and the streams behind it, taken
// the way a standby does: decoded, made a request over the arena, validated by the files' state machines,
// decoded again as a worker does, answered.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "codec/decode.hpp"
#include "core/session_fsm.hpp"
#include "fuzz_input.hpp"
#include "messages/messages.hpp"
#include "mirror/log/packed_stream.hpp"
#include "mirror/standby/replay_request.hpp"

using namespace kagemusha;

namespace {

constexpr std::uint64_t arena_size = std::uint64_t{1} << 40;
constexpr std::size_t max_files = 4;

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

// A file, and the same once more, which looks at every launch: what the first one knows of launches that
// repeat others must not change a decision.
struct standby_file {
    standby_file(std::uint32_t number, core::device_usage& u, core::device_usage& of_every)
        : usage(u)
        , usage_of_every(of_every)
        , one(number, limits, usage, 1)
        , every(number, limits, usage_of_every, 1) {
        every.look_at_every_launch();
    }
    ~standby_file() {
        for (core::session_fsm* f : {&one, &every})
            f->end_all(VGPU_STATUS_CANCELED, [](std::uint64_t, const vgpu_response&) {});
    }
    static constexpr core::file_limits limits{64, 64, 100, 1u << 20};
    core::device_usage &usage, &usage_of_every;
    core::session_fsm one, every;

    core::submit_decision on_submit(const kagemusha_request& request,
                                    std::span<const std::uint64_t> regions) {
        const core::submit_decision d =
            one.on_submit(request, regions, true); // the log has ids of the mirror
        const core::submit_decision e = every.on_submit(request, regions, true);
        require(d.what == e.what && d.response.status == e.response.status &&
                    d.response.result == e.response.result &&
                    d.response.failed_offset == e.response.failed_offset && d.broken_rule == e.broken_rule &&
                    std::ranges::equal(d.request.stream, e.request.stream) &&
                    d.work.commands == e.work.commands && d.work.launches == e.work.launches,
                "what is known of launches changes no decision");
        require(one.objects().size() == every.objects().size() &&
                    one.objects().pending_events() == every.objects().pending_events() &&
                    usage.memory_bytes == usage_of_every.memory_bytes,
                "nor what is known of the objects");
        if (d.what == core::submit_decision::action::forward)
            pack(d);
        return d;
    }
    bool on_done(std::uint64_t token) {
        return !one.on_done(token, {}).violation && !every.on_done(token, {}).violation;
    }

    // As a primary would make it over to the next one.
    void pack(const core::submit_decision& d) {
        const std::span stream(reinterpret_cast<const std::uint64_t*>(d.request.stream.data()),
                               d.request.stream.size() / 8);
        packer.begin();
        std::size_t at = 0;
        for (const core::launch_run& run : d.repeats) {
            packer.add_literal(stream.subspan(at, run.at - at));
            packer.add_run(run, run.back, stream.subspan(run.at, std::size_t{run.words} * run.count));
            at = run.end();
        }
        packer.add_literal(stream.subspan(at));
        unpacked.resize(stream.size());
        mirror::unpack_stream(packer.packed(), unpacked);
        require(std::ranges::equal(unpacked, stream), "a stream comes back as it was");
    }
    mirror::stream_packer packer;
    std::vector<std::uint64_t> unpacked;
};

struct standby {
    core::device_usage usage{1000, 1u << 20, 0, 0, 0}, usage_of_every = usage;
    std::map<std::uint32_t, std::unique_ptr<standby_file>> files;
    std::uint64_t arena_used = 0;
    std::uint64_t token = 0;
    mirror::replay_request replay;

    void end(std::uint32_t file) {
        if (const auto f = files.find(file); f != files.end())
            files.erase(f);
    }
    void run(const mirror::entries::entry& e, std::span<const std::byte> stream);
    void submit(const mirror::entries::entry& e, standby_file& f, std::span<const std::byte> stream);
};

void standby::submit(const mirror::entries::entry& e, standby_file& f, std::span<const std::byte> stream) {
    const std::uint64_t bytes = mirror::arena_bytes(e.payloads);
    require(bytes >= e.meta.content_bytes, "the arena's range has room for the content");
    if (bytes > arena_size - arena_used)
        return; // a standby that is full does not take it
    replay.place(e.payloads, 0, arena_used);
    arena_used += bytes;
    const std::uint64_t regions[] = {arena_size};
    const kagemusha_request request = replay.request(e.meta.file, ++token, stream);
    require(request.payload_count == 0 || bytes != 0 || e.meta.content_bytes == 0, "content lies somewhere");
    const core::submit_decision d = f.on_submit(request, regions);
    if (d.what != core::submit_decision::action::forward)
        return;
    codec::stream_decoder worker(d.request.stream, {d.request.payloads});
    codec::op o;
    std::uint32_t ops = 0;
    codec::decode_status status;
    while ((status = worker.next(o)) == codec::decode_status::op)
        ++ops;
    require(status == codec::decode_status::end, "what was validated can be executed");
    require(ops <= stream.size() / sizeof(vgpu_cmd), "a command has a head");
    // Half of them stay in flight.
    if (token % 2 == 0)
        require(f.on_done(d.request.token), "an honest answer is taken");
}

void standby::run(const mirror::entries::entry& e, std::span<const std::byte> stream) {
    switch (e.meta.kind) {
    case mirror::entry_kind::open_file:
        if (files.size() < max_files && !files.contains(e.meta.file))
            files[e.meta.file] = std::make_unique<standby_file>(e.meta.file, usage, usage_of_every);
        break;
    case mirror::entry_kind::close_file:
    case mirror::entry_kind::lose_session:
        end(e.meta.file);
        break;
    case mirror::entry_kind::reset:
        while (!files.empty())
            end(files.begin()->first);
        break;
    case mirror::entry_kind::submit:
        if (const auto f = files.find(e.meta.file); f != files.end())
            submit(e, *f->second, stream);
        break;
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in({data, size});
    const auto protobuf = in.array<std::uint8_t>(in.value<std::uint16_t>());
    const auto bytes = std::as_bytes(std::span(protobuf));
    messages::frame_header header{messages::frame_magic, static_cast<std::uint32_t>(bytes.size()), 0};
    mirror::message m;
    if (!messages::decode(header, bytes, m).empty()) {
        if (!messages::check(m).empty())
            return 0;
        header.payload_bytes = messages::payload_bytes_of(m);
        if (!messages::decode(header, bytes, m).empty())
            return 0;
    }
    const auto* batch = std::get_if<mirror::entries>(&m);
    if (batch == nullptr)
        return 0;
    standby s;
    for (const auto& e : batch->list) {
        // A private, aligned copy of each stream, as a standby has it; 0 where the input ends.
        std::vector<std::uint64_t> stream(e.meta.stream_bytes / 8);
        const auto part = in.array<std::uint8_t>(e.meta.stream_bytes);
        if (!part.empty())
            std::memcpy(stream.data(), part.data(), part.size());
        s.run(e, std::as_bytes(std::span(stream)));
        if (in.empty())
            break; // the rest is zeros: no commands
    }
    while (!s.files.empty())
        s.end(s.files.begin()->first);
    require(s.usage.requests_in_flight == 0, "a file that ended leaves nothing");
    return 0;
}
