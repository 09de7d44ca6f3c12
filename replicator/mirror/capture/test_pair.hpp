// SPDX-License-Identifier: GPL-2.0-or-later
// test_pair: a primary's and a standby's device in one thread, for tests of the mirror. Both execute on the
// null backend with memory, at once and in the caller's thread, so nothing here waits or depends on time. The
// log is a vector; the test says when the standby executes what.
#ifndef KAGEMUSHA_MIRROR_CAPTURE_TEST_PAIR_HPP
#define KAGEMUSHA_MIRROR_CAPTURE_TEST_PAIR_HPP

#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "codec/encode.hpp"
#include "core/device.hpp"
#include "gpu/backend.hpp"
#include "gpu/executor.hpp"
#include "mirror/capture/mirror_primary.hpp"
#include "mirror/standby/replay_request.hpp"

namespace kagemusha::mirror::testing {

using codec::stream_builder;

inline constexpr std::uint64_t guest_bytes = 1u << 20;
inline constexpr std::uint64_t peek_bytes = 1u << 20;

// What the tests' own look at an executor uses; neither the guest nor an agent does.
inline constexpr guest_id peek_queue = agent_id_bit | 0x1234567;

inline void require(bool condition, const std::string& what) {
    if (!condition) {
        throw std::runtime_error(what);
    }
}

// Executes at once; what comes of it waits for drain().
class executor_port final : public worker::port, public gpu::executor_sink {
public:
    explicit executor_port(std::span<const gpu::region_view> regions)
        : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        auto opened = gpu::open_gpu("null", "", "memory=1");
        require(opened.device != nullptr, opened.error);
        executor_ = std::make_unique<gpu::executor>(std::move(opened.device), regions, *this);
    }
    ~executor_port() override {
        executor_.reset();
        close(event_);
    }

    std::function<bool()> is_full = [] { return false; };
    std::vector<std::uint64_t> tokens; // in the order of arrival
    bool dead = false;

    // Runs a request of the test's own; its answer is returned and nobody else hears of it.
    vgpu_response peek(const stream_builder& b) {
        quiet_.emplace();
        const kagemusha_request r = b.request(1, 0);
        executor_->execute({0, b.stream(), {r.payloads, r.payload_count}, {r.segments, r.segment_count}});
        const vgpu_response response = *std::exchange(quiet_, std::nullopt);
        return response;
    }

    void lose() {
        say([](worker::port_sink& s) { s.on_lost(VGPU_LOST_CRASHED, 9); });
    }

    worker::submit_result submit(const worker::request_view& request) override {
        if (is_full()) {
            say([](worker::port_sink&) {}); // there will be room
            return worker::submit_result::full;
        }
        tokens.push_back(request.token);
        executor_->execute(request);
        return worker::submit_result::accepted;
    }
    void kick() override {}
    int event_fd() const override { return event_; }
    void drain(worker::port_sink& sink) override {
        std::uint64_t n = 0;
        if (read(event_, &n, sizeof(n)) < 0) {
            return;
        }
        for (auto said = std::exchange(said_, {}); auto& f : said) {
            f(sink);
        }
    }
    void kill() override {}
    bool gone() override { return true; }
    std::uint64_t progress() const override { return executor_->progress(); }

private:
    void on_done(std::uint64_t token, const vgpu_response& response) override {
        if (quiet_) {
            *quiet_ = response;
            return;
        }
        say([=](worker::port_sink& s) { s.on_done(token, response); });
    }
    void on_written(std::uint64_t token, std::uint32_t payload) override {
        if (!quiet_) {
            say([=](worker::port_sink& s) { s.on_written(token, payload); });
        }
    }
    void on_record(std::span<const std::byte> record) override {
        if (!quiet_) {
            say([r = std::vector<std::byte>(record.begin(), record.end())](worker::port_sink& s) {
                s.on_record(r);
            });
        }
    }
    void on_gpu_lost(std::uint32_t) override {}
    void say(std::function<void(worker::port_sink&)> f) {
        said_.push_back(std::move(f));
        const std::uint64_t one = 1;
        require(write(event_, &one, sizeof(one)) == sizeof(one), "eventfd");
    }

    int event_;
    std::optional<vgpu_response> quiet_;
    std::vector<std::function<void(worker::port_sink&)>> said_;
    std::unique_ptr<gpu::executor> executor_;
};

// A device with its workers, and the memory they share.
struct host {
    struct answer {
        std::uint64_t token;
        vgpu_response response;
    };

    explicit host(bool is_standby, std::uint64_t memory_bytes = guest_bytes)
        : memory(memory_bytes)
        , peeked(peek_bytes)
        , from_(is_standby ? core::device::origin::log : core::device::origin::guest) {
        views = {{memory.data(), memory.size()}, {peeked.data(), peeked.size()}};
        core::device_config c;
        c.name = is_standby ? "standby" : "primary";
        c.max_files = 16;
        c.file = {1024, 4096, 1u << 18, std::uint64_t{1} << 40};
        c.max_memory_bytes = std::uint64_t{1} << 41;
        c.hash_seed = 7;
        c.callbacks.request_done = [](void* self, std::uint64_t token, const vgpu_response* r) {
            static_cast<host*>(self)->answers.push_back({token, *r});
        };
        c.callbacks.record = [](void* self, const void* r, std::size_t bytes) {
            const auto* begin = static_cast<const std::byte*>(r);
            static_cast<host*>(self)->records.emplace_back(begin, begin + bytes);
            return 0;
        };
        c.callbacks.log = [](void* self, int, const char* line) {
            static_cast<host*>(self)->lines.emplace_back(line);
        };
        c.user_data = this;
        std::string error;
        device = core::device::create(
            c,
            [this](std::uint32_t file, std::string&) -> std::unique_ptr<worker::port> {
                auto p = std::make_unique<executor_port>(views);
                p->is_full = is_full;
                ports[file] = p.get();
                return p;
            },
            error);
        require(device != nullptr, error);
        device->add_region(0, memory.size());
    }

    std::vector<std::byte> memory, peeked;
    std::vector<gpu::region_view> views;
    std::function<bool()> is_full = [] { return false; };
    std::map<std::uint32_t, executor_port*> ports; // by file; dangling after the port's end
    std::vector<answer> answers;
    std::vector<std::vector<std::byte>> records;
    std::vector<std::string> lines;
    std::uint64_t next_token = 1;
    std::uint64_t now_ms = 1000;
    const core::device::origin from_;
    std::unique_ptr<core::device> device; // last

    std::uint64_t submit(std::uint32_t file, const kagemusha_request& given) {
        kagemusha_request r = given;
        r.file = file;
        r.token = next_token++;
        device->submit(r, now_ms, from_);
        return r.token;
    }
    std::uint64_t submit(std::uint32_t file, const stream_builder& b) {
        return submit(file, b.request(file, 0));
    }
    void dispatch() {
        for (int i = 0; i < 4; ++i) { // what a dispatch sets off may be ready at once
            device->dispatch(now_ms);
        }
    }
    const vgpu_response* answer_of(std::uint64_t token) const {
        const vgpu_response* found = nullptr;
        for (const answer& a : answers) {
            if (a.token == token) {
                require(!found, "a request was answered twice");
                found = &a.response;
            }
        }
        return found;
    }

    // What lies in a buffer, as its GPU has it now.
    std::vector<std::byte> content(std::uint32_t file, guest_id context, guest_id buffer,
                                   std::uint64_t bytes) {
        executor_port& port = *ports.at(file);
        stream_builder make, read, end;
        make.create_queue(peek_queue, context);
        require(port.peek(make).result == 0, "no queue to look at a buffer with");
        std::fill(peeked.begin(), peeked.end(), std::byte{0xee});
        const vgpu_payload_ref to = read.payload(true, 1, 0, bytes);
        read.read_buffer({peek_queue, 0, {}}, buffer, 0, to);
        require(port.peek(read).status == VGPU_STATUS_OK, "a buffer can't be read");
        end.destroy(VGPU_OBJECT_QUEUE, peek_queue);
        port.peek(end);
        return {peeked.begin(), peeked.begin() + static_cast<std::ptrdiff_t>(bytes)};
    }
};

// The log, and what it was told about its entries.
class memory_log final : public log_sink {
public:
    struct item {
        log_entry entry;
        std::optional<std::int32_t> outcome;
        bool canceled = false;
        bool sent = false; // content is out of guest memory
        std::vector<std::vector<std::byte>> content;
        bool is_late() const { return (entry.meta.flags & entry_late_content) != 0; }
        bool all_came() const {
            for (std::size_t p = 0; is_late() && p < entry.payloads.size(); ++p) {
                if (p >= content.size() || content[p].size() != entry.payloads[p].bytes) {
                    return false;
                }
            }
            return true;
        }
    };
    std::deque<item> items; // number 1 first
    std::vector<log_sequence> synced_at;
    std::vector<std::string> failures;
    std::vector<log_sequence> asked_to_release;
    bool sending = false; // release_content() says false
    bool keep_entries = true;

    item& at(log_sequence n) { return items.at(n - 1); }

    // Copies content out of where it lies, as a link does.
    void send(log_sequence n) {
        item& i = at(n);
        if (i.sent) {
            return;
        }
        i.sent = true;
        require(!i.is_late() || i.entry.content.empty(), "a late entry with content");
        for (const byte_pieces& pieces : i.entry.content) {
            std::vector<std::byte> bytes;
            for (const auto& piece : pieces.pieces) {
                bytes.insert(bytes.end(), piece.begin(), piece.end());
            }
            i.content.push_back(std::move(bytes));
        }
    }

    log_sequence append(log_entry entry) override {
        items.push_back({});
        items.back().entry = std::move(entry);
        items.back().entry.meta.sequence = items.size();
        return items.size();
    }
    bool congested() const override { return false; }
    void outcome(log_sequence n, std::int32_t result) override {
        require((at(n).entry.meta.flags & entry_awaits_outcome) != 0, "an outcome that nobody waits for");
        require(!at(n).outcome && !at(n).canceled, "an outcome told twice");
        at(n).outcome = result;
    }
    void late_content(log_sequence n, std::uint32_t payload, byte_pieces bytes) override {
        item& i = at(n);
        require(i.is_late() && !i.canceled, "content that does not belong to its entry");
        require(bytes.keep != nullptr, "late content in guest memory");
        i.content.resize(i.entry.payloads.size());
        for (const auto& piece : bytes.pieces) {
            i.content.at(payload).insert(i.content[payload].end(), piece.begin(), piece.end());
        }
        require(i.content[payload].size() <= i.entry.payloads[payload].bytes, "too much content");
    }
    void cancel(log_sequence n) override {
        require(!at(n).outcome && !at(n).canceled, "an entry with an outcome was canceled");
        at(n).canceled = true;
    }
    void digests(log_sequence, std::vector<std::uint64_t>) override {}
    bool release_content(log_sequence n) override {
        asked_to_release.push_back(n);
        if (sending && !at(n).sent) {
            return false;
        }
        send(n);
        return true;
    }
    void synced(log_sequence last) override { synced_at.push_back(last); }
    void failed(const std::string& why) override { failures.push_back(why); }
};

// Executes the log on its device, in order.
class replayer {
public:
    replayer(host& standby, memory_log& log) : standby_(standby), log_(log) {}

    log_sequence executed = 0;

    // As far as outcomes are known.
    void run() { run_to(log_.items.size()); }
    void run_to(log_sequence last) {
        while (executed < last && run_one(log_.at(executed + 1))) {
            ++executed;
        }
    }

    // Once no user event is unset any more.
    void expect_answers() {
        standby_.dispatch();
        for (const auto& [sequence, token] : unanswered_) {
            const vgpu_response* r = standby_.answer_of(token);
            require(r && r->status == VGPU_STATUS_OK,
                    "entry " + std::to_string(sequence) + " was not answered well on the standby");
        }
    }

private:
    bool run_one(memory_log::item& i) {
        const entry_meta& m = i.entry.meta;
        const bool waits = (m.flags & entry_awaits_outcome) != 0;
        if (waits && !i.outcome && !i.canceled) {
            return false;
        }
        core::device& d = *standby_.device;
        switch (m.kind) {
        case entry_kind::reset:
            d.reset();
            unanswered_.clear();
            return true;
        case entry_kind::open_file:
            d.open_file(m.file, standby_.next_token++);
            require(standby_.answers.back().response.status == VGPU_STATUS_OK, "a file that can't be opened");
            return true;
        case entry_kind::close_file:
        case entry_kind::lose_file:
            d.close_file(m.file, standby_.next_token++);
            require(standby_.answers.back().response.status == VGPU_STATUS_OK, "a file that can't be closed");
            return true;
        case entry_kind::submit:
            break;
        }
        if (!i.canceled && !i.all_came()) {
            return false;
        }
        const bool may_fail = (m.flags & entry_may_fail) != 0;
        if (i.canceled || (waits && *i.outcome != 0 && !may_fail)) {
            return true;
        }
        log_.send(m.sequence);
        // A command that waits for a user event still needs its bytes later, so none is used twice.
        require(arena_bytes(i.entry.payloads) <= standby_.memory.size() - arena_used_,
                "the test's arena is too small");
        require(i.content.size() == i.entry.payloads.size(), "content that does not fit the payloads");
        require(m.stream_bytes == i.entry.stream.size() * 8, "stream_bytes is not the stream's length");
        replay_.place(i.entry.payloads, 0, arena_used_);
        arena_used_ += arena_bytes(i.entry.payloads);
        std::uint64_t content_bytes = 0;
        for (std::size_t p = 0; p < i.content.size(); ++p) {
            require(i.content[p].size() == i.entry.payloads[p].bytes, "content of another length");
            std::copy(i.content[p].begin(), i.content[p].end(),
                      standby_.memory.begin() + static_cast<std::ptrdiff_t>(replay_.offset_of(p)));
            content_bytes += rounded_up(i.content[p].size());
        }
        require(m.content_bytes == content_bytes, "content_bytes is not the content's length");
        const auto stream = std::as_bytes(std::span(i.entry.stream));
        const std::uint64_t token = standby_.submit(m.file, replay_.request(m.file, 0, stream));
        standby_.dispatch();
        const vgpu_response* response = standby_.answer_of(token);
        if (!response && !waits) {
            unanswered_.push_back({m.sequence, token});
            return true;
        }
        require(response != nullptr, "the standby did not answer the call " + std::to_string(m.sequence));
        const std::string why = standby_.lines.empty() ? "" : standby_.lines.back();
        require(response->status == VGPU_STATUS_OK,
                "the standby refused entry " + std::to_string(m.sequence) + ": " + why);
        require(!waits || response->result == *i.outcome,
                "entry " + std::to_string(m.sequence) + " gave " + std::to_string(response->result) +
                    " on the standby and " + std::to_string(*i.outcome) + " on the primary");
        require(waits || response->result == 0, "entry " + std::to_string(m.sequence) + " failed");
        return true;
    }

    host& standby_;
    memory_log& log_;
    replay_request replay_;
    std::uint64_t arena_used_ = 0;
    std::vector<std::pair<log_sequence, std::uint64_t>> unanswered_;
};

// An agent that can read the GPU's memory without asking anybody. It does all the work in the last round.
class ideal_agent final : public file_agent {
public:
    ideal_agent(host& primary, std::uint32_t file, mirror_file& state, core::mirror_port& device,
                log_sink& log)
        : primary_(primary), file_(file), state_(state), device_(device), log_(log) {}

    bool allowed = true; // to finish
    bool busy = false;   // as idle() says
    bool can_digest = true;
    std::vector<std::string> calls; // of what concerns digests and its own requests
    void fail(const std::string& why) { log_.failed(why); }
    log_sink& log() { return log_; }

    void start_sync() override {
        syncing_ = true;
        calls.push_back("start_sync");
        if (patience > 0 && nothing_waits()) {
            ship_dirty(); // a first round; what is written from here on must be dirty again
        }
    }
    bool ready_to_finish() const override { return syncing_ && allowed && patience <= 0 && nothing_waits(); }
    void finish_sync() override {
        syncing_ = false;
        require(!state_.memory_is_pending(), "memory whose creation is not known to have succeeded");
        ship_dirty();
        calls.push_back("finish_sync");
    }
    void stop() override {
        syncing_ = false;
        calls.push_back("stop");
    }
    void prepare() override { calls.push_back("prepare"); }
    bool take_digest(bool everything) override {
        calls.push_back(everything ? "digest of everything" : "digest");
        counters_.digests += can_digest;
        return can_digest;
    }
    void on_digest_result(log_sequence entry, std::span<const std::uint64_t> different) override {
        calls.push_back("result of " + std::to_string(entry) + ": " + std::to_string(different.size()));
    }
    void before_submit() override {
        calls.push_back("before");
        --patience;
    }
    void after_submit() override { calls.push_back("after"); }
    void on_done(std::uint64_t token, const vgpu_response&) override {
        calls.push_back("done " + std::to_string(token));
    }
    void on_record(std::span<const std::byte>) override { calls.push_back("record"); }
    void on_lost() override { ++*lost; }
    void on_tick() override { calls.push_back("tick"); }
    std::string waiting() const override { return allowed ? "" : "the test says no"; }
    bool waits_for_guest() const override { return syncing_ && !nothing_waits(); }
    bool idle() const override { return !busy; }
    std::shared_ptr<int> lost = std::make_shared<int>(0);
    const agent_counters& counters() const override { return counters_; }

    int patience = 0; // requests of the guest between the first round and the last

private:
    bool nothing_waits() const { return device_.objects(file_)->unset_user_events() == 0; }
    void ship_dirty() {
        state_.for_each_memory([this](memory_info& m) {
            if (m.dirty_for_sync && !m.unconfirmed) {
                ship(m);
                m.dirty_for_sync = false;
            }
        });
    }
    void ship(const memory_info& m) {
        constexpr guest_id queue = agent_id_bit | 1;
        auto content =
            std::make_shared<std::vector<std::byte>>(primary_.content(file_, m.context, m.id, m.bytes));
        append(stream_builder{}.create_queue(queue, m.context), nullptr);
        stream_builder write;
        const vgpu_payload_ref from = write.payload(false, 0, 0, m.bytes);
        write.write_buffer({queue, 0, {}}, m.id, 0, from);
        append(write, content);
        append(stream_builder{}.destroy(VGPU_OBJECT_QUEUE, queue), nullptr);
    }
    void append(const stream_builder& b, std::shared_ptr<std::vector<std::byte>> content) {
        log_entry e;
        e.meta.flags = entry_agent;
        e.meta.op_count = 1;
        e.stream.resize(b.stream().size() / 8);
        std::memcpy(e.stream.data(), b.stream().data(), b.stream().size());
        e.meta.stream_bytes = b.stream().size();
        if (content) {
            e.payloads.push_back({content->size(), false});
            e.meta.content_bytes = rounded_up(content->size());
            e.content.push_back({{std::span<const std::byte>(*content)}, content});
        }
        log_.append(std::move(e));
    }

    host& primary_;
    const std::uint32_t file_;
    mirror_file& state_;
    core::mirror_port& device_;
    log_sink& log_;
    bool syncing_ = false;
    agent_counters counters_;
};

// Everything together.
struct pair {
    explicit pair(bool with_agents = true, mirror_primary_options options = {0, max_catalog_bytes, 5})
        : regions{{primary.memory.data(), primary.memory.size()}} {
        agent_factory agents;
        if (with_agents) {
            agents = [this](std::uint32_t file, mirror_file& state, core::mirror_port& device,
                            log_sink& l) -> std::unique_ptr<file_agent> {
                auto agent = std::make_unique<ideal_agent>(primary, file, state, device, l);
                agent->allowed = agents_may_finish;
                agent->patience = agent_patience;
                made[file] = agent.get();
                return agent;
            };
        }
        mirror = std::make_unique<mirror_primary>(*primary.device, log, std::move(agents), regions, options);
        primary.device->set_tap(mirror.get());
    }
    ~pair() {
        primary.device.reset(); // before its tap
    }

    host primary{false};
    host standby{true, 16 * guest_bytes};
    memory_log log;
    replayer replay{standby, log};
    std::vector<region_address> regions;
    std::map<std::uint32_t, ideal_agent*> made;
    bool agents_may_finish = true;
    int agent_patience = 0;
    std::unique_ptr<mirror_primary> mirror;

    // Submits, lets the worker answer, gives the answer.
    vgpu_response run(std::uint32_t file, const stream_builder& b) {
        const std::uint64_t token = primary.submit(file, b);
        primary.dispatch();
        const vgpu_response* r = primary.answer_of(token);
        require(r != nullptr, "the primary did not answer");
        return *r;
    }
    template <class F>
    vgpu_response run(std::uint32_t file, F&& build)
        requires std::is_invocable_v<F, stream_builder&>
    {
        stream_builder b;
        build(b);
        return run(file, b);
    }
    void open(std::uint32_t file) { primary.device->open_file(file, primary.next_token++); }
    void close(std::uint32_t file) { primary.device->close_file(file, primary.next_token++); }
};

} // namespace kagemusha::mirror::testing

#endif
