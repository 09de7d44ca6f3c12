// SPDX-License-Identifier: GPL-2.0-or-later
#include "pair/standby_runner.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "codec/cl_numbers.hpp"
#include "codec/decode.hpp"
#include "codec/encode.hpp"
#include "mirror/sync/digest.hpp"

namespace kagemusha::pair {

namespace {

// A launch that takes longer than this is in the way of its file only on a standby that is far slower than
// its primary; then the call's failure is told.
constexpr std::uint64_t try_ms = 60'000;

constexpr std::int32_t cl_invalid_operation = -59;

// Tokens of packs.
constexpr std::uint64_t pack_bit = std::uint64_t{1} << 62;

codec::stream_decoder decoder_of(const kagemusha_request& r) {
    return {std::span(static_cast<const std::byte*>(r.stream), r.stream_bytes),
            {std::span(r.payloads, r.payload_count)}};
}

// What an error may come from that ends when commands do which still run here. A user event needs nothing
// that they hold: a device that refuses one (PoCL's without threads has none) refuses it every time.
bool may_pass(std::uint16_t opcode, std::int32_t error) {
    switch (error) {
    case cl_invalid_operation: // kernels of the program are in use
    case codec::cl_mem_object_allocation_failure:
    case codec::cl_out_of_resources:
    case codec::cl_out_of_host_memory:
        return opcode != VGPU_CMD_CREATE_USER_EVENT;
    default:
        return false;
    }
}

// The call of a request, or 0 if it has none.
std::uint16_t call_of(const kagemusha_request& r) {
    codec::stream_decoder decoder = decoder_of(r);
    std::uint16_t call = 0;
    codec::op o;
    while (decoder.next(o) == codec::decode_status::op)
        if (const std::uint16_t opcode = codec::header_of(o).opcode; codec::is_call(opcode))
            call = opcode;
    return call;
}

// Whether an entry is a call of a compiler; calls are entries of their own.
bool builds(std::span<const std::byte> stream) {
    vgpu_cmd head;
    if (stream.size() < sizeof(head))
        return false;
    std::memcpy(&head, stream.data(), sizeof(head));
    return head.opcode == VGPU_CMD_BUILD_PROGRAM || head.opcode == VGPU_CMD_COMPILE_PROGRAM ||
           head.opcode == VGPU_CMD_LINK_PROGRAM;
}

// The event of the last command that has one.
codec::guest_id last_event_of(const kagemusha_request& r) {
    codec::stream_decoder decoder = decoder_of(r);
    codec::guest_id last = 0;
    codec::op o;
    while (decoder.next(o) == codec::decode_status::op)
        if (const vgpu_enqueue* e = codec::enqueue_of(o); e && e->event != 0)
            last = e->event;
    return last;
}

std::string refusal(const vgpu_response& response) {
    const char* what = response.status == VGPU_STATUS_MALFORMED   ? "broke a rule"
                       : response.status == VGPU_STATUS_LIMIT     ? "exceeded a limit"
                       : response.status == VGPU_STATUS_NO_MEMORY ? "needed more memory than there was"
                                                                  : "could not be executed";
    return std::string("a request that the primary executed ") + what + " (status " +
           std::to_string(response.status) + ", at offset " + std::to_string(response.failed_offset) +
           " of its stream)";
}

} // namespace

void standby_runner::run(core::device& device, std::unique_ptr<held_entry> entry, std::uint64_t now_ms) {
    now_ms_ = now_ms;
    const std::uint32_t file = entry->meta.file;
    const auto at = calling_.find(file);
    if (at != calling_.end() && entry->meta.kind == mirror::entry_kind::submit) {
        at->second.waiting.push_back(std::move(entry));
        return;
    }
    begin(device, std::move(entry));
    go_on(device);
}

void standby_runner::resume(core::device& device, std::unique_ptr<held_entry> request, std::uint64_t now_ms) {
    request->meta.kind = mirror::entry_kind::submit;
    request->meta.file = request->guest->file();
    run(device, std::move(request), now_ms);
}

void standby_runner::begin_guest(core::device& device, std::unique_ptr<held_entry> entry) {
    for (const auto& own : entry->own) {
        std::vector<kagemusha_segment> content;
        for (std::size_t i = 0; i < own->payloads.size(); ++i) {
            const mirror::entry_payload& p = own->payloads[i];
            const bool has = !p.writable && p.bytes != 0;
            content.push_back(
                has ? kagemusha_segment{own->request.offset_of(i), p.bytes, own->memory.segment.region, 0}
                    : kagemusha_segment{});
        }
        entry->guest->take_content(own->stream(), content);
    }
    if (watch_)
        watch_(entry->guest->file(), entry->guest->stream());
    const kagemusha_request request = entry->guest->request();
    device.await_events(request.file, entry->guest->awaited());
    resumed_[request.token] = std::move(entry);
    device.submit(request, now_ms_);
}

std::vector<std::uint64_t> standby_runner::forget_waiting_guest() {
    std::vector<std::uint64_t> tokens;
    for (auto& [file, c] : calling_) {
        std::erase_if(c.waiting, [&](const auto& entry) {
            if (entry->guest)
                tokens.push_back(entry->guest->request().token);
            return entry->guest != nullptr;
        });
    }
    return tokens;
}

void standby_runner::destroy_agents_objects(core::device& device, std::uint64_t now_ms) {
    for (const core::file_checkpoint& f : device.checkpoint()) {
        const core::object_table* objects = device.objects(f.file);
        std::vector<vgpu_cmd_destroy> commands;
        objects->for_each([&](codec::guest_id id, const core::object& o) {
            if ((id & VGPU_HOST_ID_BIT) != 0 && !o.destroyed) {
                vgpu_cmd_destroy c{};
                c.cmd.opcode = VGPU_CMD_DESTROY;
                c.cmd.bytes = sizeof(c);
                c.kind = o.kind;
                c.id = id;
                commands.push_back(c);
            }
        });
        constexpr std::size_t at_once = VGPU_MAX_STREAM_BYTES / sizeof(vgpu_cmd_destroy);
        for (std::size_t first = 0; first < commands.size(); first += at_once) {
            const std::size_t count = std::min(at_once, commands.size() - first);
            kagemusha_request r{};
            r.token = token_bit; // nobody waits for it
            r.file = f.file;
            r.stream = commands.data() + first;
            r.stream_bytes = static_cast<std::uint32_t>(count * sizeof(vgpu_cmd_destroy));
            device.submit(r, now_ms, core::device::origin::log_of_mirror);
        }
    }
}

void standby_runner::begin(core::device& device, std::unique_ptr<held_entry> entry) {
    if (entry->guest)
        return begin_guest(device, std::move(entry));
    const mirror::entry_meta meta = entry->meta;
    running_entry& r = running_[meta.sequence];
    assert(!r.entry && "nothing runs twice");
    r.entry = std::move(entry);
    switch (meta.kind) {
    case mirror::entry_kind::open_file:
        r.entry->first_try_ms = now_ms_;
        return open(device, *r.entry);
    case mirror::entry_kind::close_file:
    case mirror::entry_kind::lose_session:
        drop_packs(meta.file);
        device.close_file(meta.file, meta.sequence | token_bit, core::device::origin::log);
        end_waiting(meta.file);
        return end_calls(meta.file);
    case mirror::entry_kind::reset:
        while (!packs_.empty())
            drop_packs(packs_.begin()->first);
        device.reset();
        while (!waiting_.empty())
            end_waiting(waiting_.begin()->first.first);
        while (!calling_.empty())
            end_calls(calling_.begin()->first);
        return end(meta.sequence, 0);
    case mirror::entry_kind::submit:
        return submit(device, r);
    }
}

void standby_runner::open(core::device& device, const held_entry& e) {
    calling_[e.meta.file].call = e.meta.sequence;
    device.open_file(e.meta.file, e.meta.sequence | token_bit, core::device::origin::log);
}

void standby_runner::submit(core::device& device, running_entry& r) {
    held_entry& e = *r.entry;
    const kagemusha_request request = e.as_request(e.meta.sequence | token_bit);
    if ((e.meta.flags & mirror::entry_compare) != 0) {
        r.last_event = last_event_of(request);
        if (r.last_event != 0)
            waiting_[{e.meta.file, r.last_event}] = e.meta.sequence;
    }
    // A worker has its builds one by one: what the primary's compiler has made of a later one may come meanwhile.
    if ((e.meta.flags & (mirror::entry_awaits_outcome | mirror::entry_may_fail)) != 0 || builds(e.stream())) {
        calling_[e.meta.file].call = e.meta.sequence;
        if (e.first_try_ms == 0)
            e.first_try_ms = now_ms_;
    }
    give_packs(device, e.meta.file);
    const bool of_agent = (e.meta.flags & mirror::entry_agent) != 0;
    if (watch_)
        watch_(e.meta.file, e.stream());
    device.submit(request, now_ms_,
                  of_agent ? core::device::origin::log_of_mirror : core::device::origin::log);
}

// What waited for calls that have ended. Not from inside the device's callbacks.
void standby_runner::go_on(core::device& device) {
    if (busy_)
        return;
    busy_ = true;
    while (!answered_.empty()) {
        const std::uint32_t file = answered_.back();
        answered_.pop_back();
        const auto at = calling_.find(file);
        if (at == calling_.end() || at->second.call != 0)
            continue;
        auto waiting = std::exchange(at->second.waiting, {});
        calling_.erase(at);
        while (!waiting.empty()) {
            begin(device, std::move(waiting.front()));
            waiting.pop_front();
            if (const auto next = calling_.find(file); next != calling_.end()) {
                next->second.waiting = std::move(waiting); // another call
                break;
            }
        }
    }
    busy_ = false;
}

// Its file has ended.
void standby_runner::end_calls(std::uint32_t file) {
    const auto at = calling_.find(file);
    if (at == calling_.end())
        return;
    calling_file ended = std::move(at->second);
    calling_.erase(at);
    if (ended.call != 0 && running_.contains(ended.call))
        end(ended.call, 0);
    for (auto& entry : ended.waiting) {
        if (entry->guest) {
            answered_.push_back(file); // it finds that its file is gone, and is answered so
            calling_[file].waiting.push_back(std::move(entry));
            continue;
        }
        report_({run_result::kind::executed, entry->meta.sequence, file, 0});
    }
}

bool standby_runner::to_be_tried_again(const running_entry& r, const vgpu_response& response) {
    const held_entry& e = *r.entry;
    if (now_ms_ >= e.first_try_ms + try_ms)
        return false;
    if (e.meta.kind == mirror::entry_kind::open_file)
        return response.status == VGPU_STATUS_LIMIT; // files that were closed before it are still open here
    return response.status == VGPU_STATUS_OK && response.result != 0 && !e.failed_there &&
           may_pass(call_of(e.as_request(0)), response.result);
}

void standby_runner::retry(core::device& device, std::uint64_t now_ms) {
    now_ms_ = now_ms;
    for (auto& [file, c] : calling_) {
        if (std::exchange(c.again, false)) {
            running_entry& r = running_.at(c.call);
            if (r.entry->meta.kind == mirror::entry_kind::open_file)
                open(device, *r.entry);
            else
                submit(device, r);
        }
    }
    go_on(device);
}

void standby_runner::store(core::device& device, std::uint32_t file, built_pack pack, std::uint64_t now_ms) {
    now_ms_ = now_ms;
    pack.file = file;
    packs_[file].push_back(std::move(pack));
    if (device.objects(file))
        give_packs(device, file);
}

void standby_runner::give_packs(core::device& device, std::uint32_t file) {
    const auto waiting = packs_.extract(file);
    if (waiting.empty())
        return;
    for (built_pack& p : waiting.mapped()) {
        const std::uint64_t token = token_bit | pack_bit | ++last_pack_;
        const kagemusha_segment where{p.memory.segment.offset, p.bytes, p.memory.segment.region, 0};
        codec::stream_builder stream;
        stream.store_built(stream.payload(false, {where}));
        storing_[token] = std::make_shared<built_pack>(std::move(p));
        device.submit(stream.request(file, token), now_ms_, core::device::origin::log_of_mirror);
    }
}

// Nobody compiles for this file any more.
void standby_runner::drop_packs(std::uint32_t file) {
    const auto waiting = packs_.extract(file);
    if (!waiting.empty())
        for (const built_pack& p : waiting.mapped())
            report_({.what = run_result::kind::stored, .bytes = p.bytes});
}

void standby_runner::on_request_done(std::uint64_t marked, const vgpu_response& response) {
    if ((marked & pack_bit) != 0) {
        if (const auto stored = storing_.extract(marked); !stored.empty())
            report_({.what = run_result::kind::stored, .bytes = stored.mapped()->bytes});
        return;
    }
    const std::uint64_t token = marked & ~token_bit;
    const auto at = running_.find(token);
    if (at == running_.end())
        return; // forgotten
    running_entry& r = at->second;
    const mirror::entry_meta& meta = r.entry->meta;
    if (const auto c = calling_.find(meta.file); c != calling_.end() && c->second.call == token) {
        if (to_be_tried_again(r, response)) {
            c->second.again = true;
            report_({run_result::kind::retry});
            return;
        }
        c->second.call = 0;
        answered_.push_back(meta.file);
    }
    switch (response.status) {
    case VGPU_STATUS_OK:
        r.answered = true;
        if (r.last_event != 0)
            return; // its digests are not there yet
        if ((meta.flags & mirror::entry_compare) != 0)
            collect(*r.entry);
        return end(token, response.result);
    case VGPU_STATUS_CANCELED: // its file ended
    case VGPU_STATUS_LOST:     // was told by a record
        return end(token, 0);
    case VGPU_STATUS_NO_FILE:
        // A file that was lost here or there is closed only once.
        if (meta.kind == mirror::entry_kind::submit)
            lose(meta.file, "a request for a file that is not open");
        return end(token, 0);
    default:
        lose(meta.file, refusal(response));
        return end(token, 0);
    }
}

void standby_runner::on_record(std::span<const std::byte> record) {
    vgpu_record head;
    std::memcpy(&head, record.data(), sizeof(head));
    if (head.type == VGPU_RECORD_LOST) {
        vgpu_record_lost lost;
        std::memcpy(&lost, record.data(), sizeof(lost));
        lose(head.file, "the worker of file " + std::to_string(head.file) +
                            " on the standby was lost (reason " + std::to_string(lost.reason) + ", detail " +
                            std::to_string(lost.detail) + ")");
        return end_waiting(head.file);
    }
    if (head.type != VGPU_RECORD_COMPLETION)
        return; // what kernels printed was told by the primary
    vgpu_record_completion completion;
    std::memcpy(&completion, record.data(), sizeof(completion));
    const auto at = waiting_.find({head.file, completion.event});
    if (at == waiting_.end())
        return;
    const log_sequence sequence = at->second;
    waiting_.erase(at);
    running_entry& r = running_.at(sequence);
    r.last_event = 0;
    if (completion.status < 0) {
        lose(head.file,
             "digests could not be read on the standby (error " + std::to_string(completion.status) + ")");
    } else if (r.answered) {
        collect(*r.entry);
    }
    if (r.answered)
        end(sequence, 0);
}

// Compare entries whose last completion does not come any more.
void standby_runner::end_waiting(std::uint32_t file) {
    for (auto at = waiting_.lower_bound({file, 0}); at != waiting_.end() && at->first.first == file;) {
        const log_sequence sequence = at->second;
        at = waiting_.erase(at);
        const auto r = running_.find(sequence);
        if (r != running_.end()) {
            r->second.last_event = 0;
            if (r->second.answered)
                end(sequence, 0);
        }
    }
}

void standby_runner::collect(const held_entry& e) {
    run_result out{run_result::kind::digests, e.meta.sequence};
    const bool content = (e.meta.flags & mirror::entry_hash_content) != 0;
    for (std::size_t i = 0; i < e.payloads.size(); ++i) {
        if (!e.payloads[i].writable || e.payloads[i].bytes == 0)
            continue;
        const std::span<std::byte> bytes = e.payload(i);
        if (content) {
            out.hashes.push_back(mirror::chunk_hash(bytes));
        } else {
            const std::size_t at = out.hashes.size();
            out.hashes.resize(at + bytes.size() / 8);
            std::memcpy(out.hashes.data() + at, bytes.data(), bytes.size() / 8 * 8);
        }
    }
    report_(std::move(out));
}

void standby_runner::end(log_sequence sequence, std::int32_t result) {
    const auto at = running_.find(sequence);
    assert(at != running_.end());
    const std::uint32_t file = at->second.entry->meta.file;
    if (at->second.last_event != 0)
        waiting_.erase({file, at->second.last_event});
    running_.erase(at);
    report_({run_result::kind::executed, sequence, file, result});
}

std::shared_ptr<const void> standby_runner::memory_of(std::uint64_t token) const {
    if ((token & pack_bit) != 0) {
        const auto at = storing_.find(token);
        return at == storing_.end() ? nullptr : at->second;
    }
    if ((token & token_bit) != 0) {
        const auto at = running_.find(token & ~token_bit);
        return at == running_.end() ? nullptr : at->second.entry;
    }
    const auto at = resumed_.find(token);
    return at == resumed_.end() ? nullptr : at->second;
}

void standby_runner::lose(std::uint32_t file, std::string why) {
    report_({run_result::kind::file_lost, 0, file, 0, {}, std::move(why)});
}

void standby_runner::forget_all(core::device& device) {
    // Its answers find nothing; but workers use the entries' memory until the device has ended them.
    for (const auto& [sequence, r] : running_)
        device.keep_until_gone(r.entry->meta.file, r.entry);
    for (const auto& [token, pack] : storing_)
        device.keep_until_gone(pack->file, pack);
    for (const auto& [token, entry] : resumed_)
        device.keep_until_gone(entry->meta.file, entry);
    const auto ending = std::exchange(running_, {});
    packs_.clear();
    storing_.clear();
    waiting_.clear();
    calling_.clear();
    answered_.clear();
    resumed_.clear();
    device.reset();
    report_({run_result::kind::forgotten});
}

} // namespace kagemusha::pair
