// SPDX-License-Identifier: GPL-2.0-or-later
// mirrored_pair: a primary's and a standby's device with executors in this process, for tests of the agent:
// real content on real backends, the log carried from one to the other by hand. One file, number 1.
//
// The standby executes entries in order, each when all of its content is there and its outcome is known, like
// the real one does after a commit. A failure of a replication's own command there fails the test.
#ifndef KAGEMUSHA_MIRROR_SYNC_MIRRORED_PAIR_HPP
#define KAGEMUSHA_MIRROR_SYNC_MIRRORED_PAIR_HPP

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "codec/encode.hpp"
#include "core/device.hpp"
#include "core/limits.hpp"
#include "mirror/capture/mirror_primary.hpp"
#include "mirror/standby/replay_request.hpp"
#include "mirror/sync/digest.hpp"
#include "worker/gpu_executor.hpp"
#include "worker/in_process_port.hpp"

namespace kagemusha::mirror::testing {

using codec::argument_builder;
using codec::stream_builder;

constexpr std::uint32_t the_file = 1;

class mapping {
public:
    explicit mapping(std::uint64_t bytes)
        : bytes_(bytes)
        , base_(static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
        if (base_ == MAP_FAILED)
            std::abort();
    }
    ~mapping() { munmap(base_, bytes_); }
    mapping(const mapping&) = delete;
    mapping& operator=(const mapping&) = delete;
    std::byte* base() const { return base_; }
    std::uint64_t bytes() const { return bytes_; }

private:
    std::uint64_t bytes_;
    std::byte* base_;
};

// First fit over a mapping, which is all that a test needs.
class test_memory final : public agent_memory {
public:
    test_memory(std::uint32_t region, std::uint64_t bytes) : region_(region), memory_(bytes) {}

    bool allocate(std::uint64_t bytes, block& out) override {
        bytes = std::max<std::uint64_t>(rounded_up(bytes), 8);
        const std::lock_guard lock(state_->mutex);
        std::uint64_t at = 0;
        for (const auto& [offset, length] : state_->used) {
            if (offset - at >= bytes)
                break;
            at = offset + length;
        }
        if (at + bytes > memory_.bytes())
            return false;
        state_->used.emplace(at, bytes);
        out.segment = {at, bytes, region_, 0};
        out.bytes = {memory_.base() + at, bytes};
        out.keep = std::shared_ptr<const void>(memory_.base() + at, [state = state_, at](const void*) {
            const std::lock_guard guard(state->mutex);
            state->used.erase(at);
        });
        return true;
    }
    std::uint64_t capacity() const override { return memory_.bytes(); }
    std::size_t blocks() const {
        const std::lock_guard lock(state_->mutex);
        return state_->used.size();
    }
    gpu::region_view view() const { return {memory_.base(), memory_.bytes()}; }

private:
    struct state {
        std::mutex mutex;
        std::map<std::uint64_t, std::uint64_t> used;
    };
    std::uint32_t region_;
    mapping memory_;
    std::shared_ptr<state> state_ = std::make_shared<state>();
};

// A device with its executor, and what it told.
class side {
public:
    side(const std::string& backend, const std::string& options, std::vector<gpu::region_view> regions,
         bool is_standby)
        : from_(is_standby ? core::device::origin::log : core::device::origin::guest) {
        core::device_config c;
        c.name = is_standby ? "standby" : "primary";
        c.max_files = 4;
        c.file = {512, 65536, 1u << 18, std::uint64_t{1} << 34};
        c.max_memory_bytes = std::uint64_t{1} << 35;
        c.hash_seed = 7;
        c.user_data = this;
        c.callbacks.request_done = [](void* self, std::uint64_t token, const vgpu_response* r) {
            static_cast<side*>(self)->answers_.emplace(token, *r);
        };
        c.callbacks.record = [](void* self, const void* bytes, std::size_t length) {
            static_cast<side*>(self)->on_record(bytes, length);
            return 0;
        };
        c.callbacks.log = [](void* self, int, const char* line) {
            static_cast<side*>(self)->lines.emplace_back(line);
        };
        std::string error;
        // KAGEMUSHA_TEST_GPU chooses the OpenCL device, also the one that the faulty backend wraps.
        const char* selector = std::getenv("KAGEMUSHA_TEST_GPU");
        const bool wraps = backend == "faulty" && selector;
        const auto executor =
            worker::gpu_executor_factory(backend, backend == "opencl" && selector ? selector : "",
                                         wraps ? options + ",gpu=" + selector : options);
        device = core::device::create(
            c,
            [executor, regions](std::uint32_t, std::string& e) {
                return worker::make_in_process_port(executor, regions, e);
            },
            error);
        if (!device) {
            std::fprintf(stderr, "%s\n", error.c_str());
            std::abort();
        }
        for (std::uint32_t i = 0; i < regions.size(); ++i)
            device->add_region(i, regions[i].bytes);
    }

    ~side() { device.reset(); } // it answers what is in flight

    std::uint64_t submit(const kagemusha_request& request) {
        kagemusha_request r = request;
        r.token = ++last_token_;
        device->submit(r, now_ms(), from_);
        return r.token;
    }
    std::uint64_t submit(const stream_builder& b) { return submit(b.request(the_file, 0)); }
    std::uint64_t open() {
        device->open_file(the_file, ++last_token_);
        return last_token_;
    }
    std::uint64_t close() {
        device->close_file(the_file, ++last_token_);
        return last_token_;
    }
    bool answered(std::uint64_t token) const { return answers_.contains(token); }
    vgpu_response answer(std::uint64_t token) const { return answers_.at(token); }
    bool completed(std::uint64_t event) const { return events_.contains(event); }
    std::int32_t status(std::uint64_t event) const { return events_.at(event); }
    static std::uint64_t now_ms() {
        return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                              std::chrono::steady_clock::now().time_since_epoch())
                                              .count());
    }

    std::unique_ptr<core::device> device;
    std::vector<std::string> lines;
    std::vector<std::string> failures; // of commands of the replication
    std::vector<std::int32_t> queue_errors;

private:
    const core::device::origin from_;

    void on_record(const void* bytes, std::size_t length) {
        vgpu_record header;
        std::memcpy(&header, bytes, sizeof(header));
        if (header.type == VGPU_RECORD_COMPLETION && length >= sizeof(vgpu_record_completion)) {
            vgpu_record_completion c;
            std::memcpy(&c, bytes, sizeof(c));
            events_[c.event] = c.status;
            if ((c.event & agent_id_bit) != 0 && c.status < 0)
                failures.push_back("event " + std::to_string(c.event & ~agent_id_bit) + ": " +
                                   std::to_string(c.status));
        } else if (header.type == VGPU_RECORD_QUEUE_ERROR && length >= sizeof(vgpu_record_queue_error)) {
            vgpu_record_queue_error e;
            std::memcpy(&e, bytes, sizeof(e));
            if ((e.queue & agent_id_bit) != 0)
                failures.push_back("opcode " + std::to_string(e.opcode) + ": " + std::to_string(e.error));
            queue_errors.push_back(e.error);
        } else if (header.type == VGPU_RECORD_LOST) {
            failures.push_back("the file was lost");
        }
    }

    std::map<std::uint64_t, vgpu_response> answers_;
    std::map<std::uint64_t, std::int32_t> events_;
    std::uint64_t last_token_ = 0;
};

struct pair_options {
    std::string backend = "opencl", options;
    std::string standby_backend = "opencl", standby_options;
    std::uint64_t agent_bytes = std::uint64_t{16} << 20;
    agent_options agent;
    std::uint32_t digest_interval_ms = 0; // 0: when the test asks
};

class mirrored_pair final : public log_sink {
public:
    explicit mirrored_pair(pair_options options = {})
        : guest_(std::uint64_t{64} << 20)
        , arena_(std::uint64_t{128} << 20)
        , memory(1, options.agent_bytes)
        , primary(options.backend, options.options, {{guest_.base(), guest_.bytes()}, memory.view()}, false)
        , standby(options.standby_backend, options.standby_options, {{arena_.base(), arena_.bytes()}}, true)
        , regions_{{guest_.base(), guest_.bytes()}} {
        mirror_primary_options o;
        o.digest_interval_ms = options.digest_interval_ms;
        mirror = std::make_unique<mirror_primary>(*primary.device, *this,
                                                  make_agent_factory(memory, options.agent), regions_, o);
        primary.device->set_tap(mirror.get());
        wait([this, t = primary.open()] { return primary.answered(t); });
    }
    ~mirrored_pair() {
        primary.device.reset(); // the tap outlives it
    }

    // ---- the guest

    std::uint64_t id() { return ++last_id_; }
    std::byte* guest(std::uint64_t offset = 0) { return guest_.base() + offset; }
    vgpu_response run(const stream_builder& b) {
        const std::uint64_t token = primary.submit(b);
        wait([&] { return primary.answered(token); });
        return primary.answer(token);
    }
    void ok(const stream_builder& b) {
        const vgpu_response r = run(b);
        EXPECT_EQ(r.status, static_cast<std::uint32_t>(VGPU_STATUS_OK));
        EXPECT_EQ(r.result, 0);
    }
    std::uint64_t context() {
        const std::uint64_t c = id();
        ok(stream_builder().create_context(c));
        return c;
    }
    std::uint64_t queue(std::uint64_t context, std::uint64_t properties = 0) {
        const std::uint64_t q = id();
        ok(stream_builder().create_queue(q, context, properties));
        return q;
    }
    std::uint64_t buffer(std::uint64_t context, std::uint64_t bytes, std::uint64_t flags = 1) {
        const std::uint64_t b = id();
        ok(stream_builder().create_buffer(b, context, bytes, flags));
        return b;
    }
    std::uint64_t kernel(std::uint64_t context, std::string_view source, std::string_view name) {
        const std::uint64_t program = id(), k = id();
        ok(stream_builder().create_program(program, context, source));
        ok(stream_builder().build_program(program));
        ok(stream_builder().create_kernel(k, program, name));
        return k;
    }
    // Bytes that depend on `seed`, written through guest memory.
    void fill(std::uint64_t queue, std::uint64_t buffer, std::uint64_t offset, std::uint64_t bytes,
              std::uint32_t seed) {
        for (std::uint64_t i = 0; i < bytes; ++i)
            guest(i)[0] = static_cast<std::byte>((i + offset) * 7 + seed * 13 + i / 255);
        stream_builder b;
        const std::uint64_t event = id();
        const auto data = b.payload(false, 0, 0, bytes);
        ok(b.write_buffer({queue, event}, buffer, offset, data));
        wait_event(event);
    }
    std::int32_t wait_event(std::uint64_t event) {
        wait([&] { return primary.completed(event); });
        return primary.status(event);
    }
    void finish(std::uint64_t queue) {
        const std::uint64_t event = id();
        ok(stream_builder().marker({queue, event}));
        EXPECT_EQ(wait_event(event), 0);
    }
    std::vector<std::byte> on_primary(std::uint64_t queue, std::uint64_t buffer, std::uint64_t bytes) {
        const std::uint64_t event = id();
        stream_builder b;
        const auto data = b.payload(true, 0, std::uint64_t{32} << 20, bytes);
        const std::uint64_t token = primary.submit(b.read_buffer({queue, event}, buffer, 0, data));
        wait([&] { return primary.answered(token) && primary.completed(event); });
        EXPECT_EQ(primary.status(event), 0);
        const std::byte* at = guest(std::uint64_t{32} << 20);
        return {at, at + bytes};
    }

    // ---- the standby, behind the log's back

    std::vector<std::byte> on_standby(std::uint64_t queue, std::uint64_t buffer, std::uint64_t bytes) {
        settle();
        const std::uint64_t event = id(), at = std::uint64_t{64} << 20;
        stream_builder b;
        const auto data = b.payload(true, 0, at, bytes);
        run_on_standby(b.read_buffer({queue, event}, buffer, 0, data), event);
        return {arena_.base() + at, arena_.base() + at + bytes};
    }
    void run_on_standby(const stream_builder& b, std::uint64_t event) {
        const std::uint64_t token = standby.submit(b);
        wait([&] { return standby.answered(token) && standby.completed(event); });
        EXPECT_EQ(standby.status(event), 0);
    }
    // Makes the standby differ.
    void corrupt(std::uint64_t queue, std::uint64_t buffer, std::uint64_t offset, std::uint8_t byte) {
        settle();
        const std::uint64_t event = id();
        run_on_standby(stream_builder().fill_buffer({queue, event}, buffer, offset, 1,
                                                    std::as_bytes(std::span(&byte, 1))),
                       event);
    }

    // ---- the mirror

    void attach() {
        is_synced = false;
        mirror->start_sync();
        wait([&] { return is_synced || !failed_why.empty(); });
        EXPECT_EQ(failed_why, "");
        settle();
    }
    // The link is gone, and what was in it.
    void drop_log() {
        log_.clear();
        comparing_.clear();
        results_.clear();
        EXPECT_TRUE(standby.failures.empty()) << standby.failures.front();
    }
    // Until the log is executed and the agent has nothing left to do.
    void settle() {
        wait([&] { return log_.empty() && mirror->waiting().empty() && comparing_.empty() && quiet(); });
        EXPECT_TRUE(standby.failures.empty()) << standby.failures.front();
        EXPECT_TRUE(standby.lines.empty()) << standby.lines.front();
    }
    agent_counters digest(bool everything = true) {
        const std::uint64_t before = mirror->counters().digests;
        mirror->request_digest(everything);
        wait([&] { return mirror->counters().digests > before; });
        settle();
        return mirror->counters();
    }
    template <class Done>
    void wait(Done&& done) {
        const auto begin = std::chrono::steady_clock::now();
        while (!done()) {
            step();
            if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(60)) {
                std::fprintf(stderr, "nothing happens any more (%zu entries in the log; %s)\n", log_.size(),
                             mirror->waiting().c_str());
                std::abort();
            }
        }
    }
    void step() {
        pollfd fds[] = {{primary.device->poll_fd(), POLLIN, 0}, {standby.device->poll_fd(), POLLIN, 0}};
        poll(fds, 2, 1);
        primary.device->dispatch(side::now_ms());
        standby.device->dispatch(side::now_ms());
        run_log();
        for (auto results = std::exchange(results_, {}); auto& [entry, different] : results)
            mirror->on_digest_result(entry, different);
    }

    bool hold_log = false; // the standby executes nothing
    bool is_synced = false;
    std::string failed_why;
    std::uint64_t entries = 0, canceled = 0;
    std::map<log_sequence, std::vector<std::uint64_t>> differences; // that the standby found

    // ---- log_sink

    log_sequence append(log_entry entry) override {
        ++entries;
        auto l = std::make_unique<logged>();
        l->entry = std::move(entry);
        l->entry.meta.sequence = ++last_sequence_;
        const bool late = (l->entry.meta.flags & entry_late_content) != 0;
        for (std::size_t i = 0; i < l->entry.payloads.size(); ++i) {
            const entry_payload& p = l->entry.payloads[i];
            auto& bytes = l->content.emplace_back();
            for (const auto& piece : l->entry.content[i].pieces)
                bytes.insert(bytes.end(), piece.begin(), piece.end());
            EXPECT_TRUE(p.writable || late || bytes.size() == p.bytes);
            EXPECT_TRUE(!(p.writable || late) || bytes.empty());
            if (late && !p.writable)
                l->missing += p.bytes;
        }
        l->entry.content.clear();
        log_.push_back(std::move(l));
        return last_sequence_;
    }
    bool congested() const override { return false; }
    void outcome(log_sequence entry, std::int32_t result) override { find(entry)->outcome = result; }
    void late_content(log_sequence entry, std::uint32_t payload, byte_pieces bytes) override {
        logged* l = find(entry);
        ASSERT_NE(l, nullptr);
        ASSERT_FALSE(l->canceled);
        ASSERT_NE(l->entry.meta.flags & entry_late_content, 0u);
        for (const auto& piece : bytes.pieces) {
            l->content.at(payload).insert(l->content.at(payload).end(), piece.begin(), piece.end());
            ASSERT_LE(l->content.at(payload).size(), l->entry.payloads.at(payload).bytes);
            l->missing -= piece.size();
        }
    }
    void cancel(log_sequence entry) override {
        ++canceled;
        comparing_.erase(entry);
        if (logged* l = find(entry))
            l->canceled = true;
    }
    void digests(log_sequence entry, std::vector<std::uint64_t> hashes) override {
        comparing_[entry].first = std::move(hashes);
        compare(entry);
    }
    bool release_content(log_sequence) override { return true; } // copied at once
    void synced(log_sequence) override { is_synced = true; }
    void failed(const std::string& why) override { failed_why = why; }

private:
    struct logged {
        log_entry entry;
        std::vector<std::vector<std::byte>> content;
        std::uint64_t missing = 0;
        std::optional<std::int32_t> outcome;
        bool canceled = false;
        std::uint64_t token = 0; // runs
    };

    logged* find(log_sequence sequence) {
        for (const auto& l : log_)
            if (l->entry.meta.sequence == sequence)
                return l.get();
        return nullptr;
    }
    // What the agent has in flight for content or digests has memory.
    bool quiet() const { return results_.empty() && memory.blocks() == 0; }

    void run_log() {
        while (!log_.empty() && !hold_log) {
            logged& l = *log_.front();
            if (l.token == 0 && !start(l))
                return;
            if (l.token != UINT64_MAX) {
                if (!standby.answered(l.token))
                    return;
                ended(l);
            }
            log_.pop_front();
        }
    }
    // False: not yet. token UINT64_MAX: nothing to execute.
    bool start(logged& l) {
        const entry_meta& m = l.entry.meta;
        const bool call = (m.flags & entry_awaits_outcome) != 0;
        l.token = UINT64_MAX;
        if (l.canceled)
            return true;
        if (l.missing != 0 || (call && !l.outcome)) {
            l.token = 0;
            return false;
        }
        switch (m.kind) {
        case entry_kind::reset:
            standby.device->reset();
            return true;
        case entry_kind::open_file:
            l.token = standby.open();
            return true;
        case entry_kind::close_file:
            l.token = standby.close();
            return true;
        case entry_kind::lose_file:
            return true;
        case entry_kind::submit:
            break;
        }
        if (call && *l.outcome != 0 && (m.flags & entry_may_fail) == 0)
            return true;
        replay_.place(l.entry.payloads, 0, 0);
        for (std::size_t i = 0; i < l.content.size(); ++i)
            if (!l.content[i].empty())
                std::memcpy(arena_.base() + replay_.offset_of(i), l.content[i].data(), l.content[i].size());
        l.token = standby.submit(replay_.request(the_file, 0, std::as_bytes(std::span(l.entry.stream))));
        return true;
    }
    void ended(logged& l) {
        const entry_meta& m = l.entry.meta;
        const vgpu_response answer = standby.answer(l.token);
        EXPECT_EQ(answer.status, static_cast<std::uint32_t>(VGPU_STATUS_OK)) << "entry " << m.sequence;
        EXPECT_EQ(answer.result, l.outcome.value_or(0)) << "entry " << m.sequence;
        if ((m.flags & entry_compare) == 0 || l.canceled)
            return;
        std::vector<std::uint64_t> hashes;
        for (std::size_t i = 0; i < l.entry.payloads.size(); ++i) {
            const entry_payload& p = l.entry.payloads[i];
            const std::span<const std::byte> bytes(arena_.base() + replay_.offset_of(i), p.bytes);
            if ((m.flags & entry_hash_content) != 0) {
                hashes.push_back(chunk_hash(bytes));
            } else {
                hashes.resize(p.bytes / 8);
                std::memcpy(hashes.data(), bytes.data(), bytes.size());
            }
        }
        comparing_[m.sequence].second = std::move(hashes);
        compare(m.sequence);
    }
    void compare(log_sequence sequence) {
        auto& [here, there] = comparing_[sequence];
        if (here.empty() || there.empty())
            return;
        EXPECT_EQ(here.size(), there.size());
        std::vector<std::uint64_t> different;
        for (std::uint64_t i = 0; i < here.size(); ++i)
            if (here[i] != there[i])
                different.push_back(i);
        differences[sequence] = different;
        results_.emplace_back(sequence, std::move(different));
        comparing_.erase(sequence);
    }

    mapping guest_, arena_;

public:
    test_memory memory;
    side primary, standby;
    std::unique_ptr<mirror_primary> mirror;

private:
    std::vector<region_address> regions_;
    std::deque<std::unique_ptr<logged>> log_;
    log_sequence last_sequence_ = 0;
    std::map<log_sequence, std::pair<std::vector<std::uint64_t>, std::vector<std::uint64_t>>> comparing_;
    std::vector<std::pair<log_sequence, std::vector<std::uint64_t>>> results_;
    replay_request replay_;
    std::uint64_t last_id_ = 0;
};

} // namespace kagemusha::mirror::testing

#endif
