// SPDX-License-Identifier: GPL-2.0-or-later
// The primary's role: joins the core device with the mirror and the side that has the link.
#include <chrono>

#include "ffi/roles.hpp"
#include "messages/vm_state.hpp"
#include "worker/limits.hpp"

namespace kagemusha::ffi {

namespace {

// The last number: guest memory begins at 0.
constexpr std::uint32_t agent_region = worker::max_regions - 1;

// Memory that agents read into on the primary: some digests and pieces of a state transfer at once.
constexpr std::uint64_t agent_bytes = std::uint64_t{256} << 20;

// Of a list with commas; empty ones are none.
std::vector<std::string> names_of(const std::string& list) {
    std::vector<std::string> names;
    for (std::size_t at = 0; at <= list.size();) {
        const std::size_t end = std::min(list.find(',', at), list.size());
        if (end != at)
            names.push_back(list.substr(at, end - at));
        at = end + 1;
    }
    return names;
}

} // namespace

std::unique_ptr<primary_endpoint> primary_endpoint::create(const kagemusha_device_config& c,
                                                           kagemusha_device& device,
                                                           const core::device_limits& of_guest,
                                                           std::string& error) {
    auto made = std::make_unique<primary_endpoint>(device, c);
    pair::primary_driver::options o;
    configure(o.fsm, c, device, of_guest);
    made->instance_ = o.fsm.instance;
    o.fsm.log_bytes = or_default(c.log_bytes, mirror::default_log_bytes);
    o.fsm.epoch_ms = or_default(c.epoch_ms, mirror::default_epoch_ms);
    o.fsm.max_behind_ms = c.max_behind_ms;
    o.link = link_options(c, text_of(c.replicate_to));
    o.agent_bytes = agent_bytes;
    o.agent_region = agent_region;
    o.log = logger(c);
    if (c.callbacks.room)
        o.room = [room = c.callbacks.room, user_data = c.user_data] { room(user_data); };
    if (c.callbacks.epoch_wanted)
        o.epoch_wanted = [wanted = c.callbacks.epoch_wanted, user_data = c.user_data] { wanted(user_data); };
    made->side_ = pair::primary_driver::create(std::move(o), error);
    if (!made->side_)
        return nullptr;
    pair::arena& memory = made->side_->memory();
    device.add_worker_region(agent_region, memory.fd(), memory.capacity(), memory.base());
    return made;
}

primary_endpoint::primary_endpoint(kagemusha_device& device, const kagemusha_device_config& c)
    : device_(device)
    , digest_interval_ms_(c.digest_interval_ms)
    , transfer_wait_ms_(c.transfer_wait_ms)
    , cuda_(text_of(c.backend) == "cuda")
    , ship_(c.differences == KAGEMUSHA_DIFFERENCES_SHIP)
    , ship_kernels_(names_of(text_of(c.ship_kernels)))
    , log_(logger(c)) {}

primary_endpoint::~primary_endpoint() {
    mirror_.reset(); // it uses the side's log and memory
}

std::string primary_endpoint::attach() {
    attach_tap();
    return watch({device_.core->poll_fd(), side_->event_fd()});
}

void primary_endpoint::attach_tap() {
    mirror::agent_options agent;
    agent.now_ns = now_ns;
    agent.ship = ship_;
    agent.cuda = cuda_;
    if (cuda_)
        agent.max_reads_in_flight = mirror::agent_options::cuda_reads_in_flight;
    // So that they are none of those of another host that had this VM before.
    agent.first_id = (random_number() & 0x3fffff) << 40;
    mirror::primary_shadow_options options;
    options.digest_interval_ms = digest_interval_ms_;
    options.transfer_wait_ms = transfer_wait_ms_;
    options.built_memory = &side_->memory();
    options.ship = ship_;
    options.ship_kernels = ship_kernels_;
    options.hash_seed = random_number();
    mirror_ = std::make_unique<mirror::primary_shadow>(
        *device_.core, side_->log(), mirror::make_agent_factory(side_->memory(), agent), regions_, options);
    device_.core->set_tap(mirror_.get());
}

bool primary_endpoint::reserved(std::uint32_t region) const {
    return region == agent_region;
}

void primary_endpoint::add_region(std::uint32_t region, void* base, std::uint64_t bytes) {
    regions_.resize(std::max<std::size_t>(regions_.size(), region + 1));
    regions_[region] = {static_cast<const std::byte*>(base), bytes};
}

void primary_endpoint::dispatch(std::uint64_t) {
    closed_ = false;
    side_->dispatch(*mirror_);
    for (const std::string& what : mirror_->take_notes())
        log_(KAGEMUSHA_LOG_WARNING, "replication: " + what);
    // Each time: nobody knows whether another one comes before somebody asks.
    const std::lock_guard lock(mutex_);
    counters_ = mirror_->counters();
    registry_bytes_ = mirror_->registry_bytes();
    waiting_ = mirror_->waiting();
}

bool primary_endpoint::take_request(const kagemusha_request&) {
    closed_ = false;
    return false;
}

void primary_endpoint::reset() {
    closed_ = false;
    device_.core->reset();
}

int primary_endpoint::replicate_to(const std::string& address, std::string& error) {
    if (address.empty()) {
        error = "the address of a standby must be given: HOST:PORT or unix:PATH";
        return -EINVAL;
    }
    if (!side_->replicate_to(address)) {
        error = "this device is replicated to " + side_->address() + " already";
        return -EALREADY;
    }
    return 0;
}

int primary_endpoint::request_digest(bool everything) {
    if (mirror_->mode() != mirror::mirror_mode::on)
        return -ENOTCONN;
    mirror_->request_digest(everything);
    return 0;
}

void primary_endpoint::status(kagemusha_replication_status& out) const {
    const mirror::primary_status s = side_->status();
    out.role = KAGEMUSHA_ROLE_PRIMARY;
    using enum mirror::primary_state;
    out.state = side_->address().empty()  ? KAGEMUSHA_REPLICATION_OFF
                : s.state == disconnected ? KAGEMUSHA_REPLICATION_DISCONNECTED
                : s.state == greeting     ? KAGEMUSHA_REPLICATION_GREETING
                : s.state == syncing      ? KAGEMUSHA_REPLICATION_SYNCING
                : s.state == protecting   ? KAGEMUSHA_REPLICATION_PROTECTING
                                          : KAGEMUSHA_REPLICATION_ENDED;
    out.epoch = s.epoch;
    out.committed_epoch = s.committed_epoch;
    out.appended = side_->log().appended();
    out.sent = s.sent;
    out.received = s.received;
    out.executed = s.executed;
    out.lag_entries = s.appended - std::min(s.appended, s.executed);
    out.lag_bytes = s.log_bytes;
    out.lag_ms = s.lag_ms;
    out.behind_ms = s.behind_ms;
    out.unexecuted_ms = s.unexecuted_ms;
    out.built_packs = s.built_sent;
    out.built_bytes = s.built_bytes;
    out.built_dropped = s.built_dropped;
    out.sent_bytes = s.sent_bytes;
    out.compression_saved_bytes = side_->compression_saved_bytes();
    out.digests_compared = s.digests_compared;
    out.digests_different = s.digests_different;
    out.checkpoint_epoch = last_closed_;
    out.checkpoint_wait_ns = wait_ns_;
    out.connections = s.connections;
    out.round_trip_ms = s.round_trip_ms;
    put(out.peer_gpu, s.standby_gpu);
    const std::lock_guard lock(mutex_);
    put(out.degraded, out.state == KAGEMUSHA_REPLICATION_OFF ? std::string()
                      : s.state == syncing && !waiting_.empty()
                          ? "the standby's copy does not become complete: " + waiting_
                          : s.degraded);
    out.digests_repaired = counters_.chunks_repaired;
    out.memory_shipped = counters_.memory_shipped;
    out.transferred_bytes = counters_.content_bytes;
    out.held_back_ns = counters_.final_round_ns;
    out.registry_bytes = registry_bytes_;
}

// ---- checkpoints
// ---------------------------------------------------------------------------------------------------------

int primary_endpoint::use_checkpoints(bool on, std::string& error) {
    const mirror::primary_status s = side_->status();
    if (on && s.state != mirror::primary_state::protecting) {
        error = "no standby has a complete copy of the GPU's state" +
                (s.degraded.empty() ? std::string() : ": " + s.degraded);
        return -ENOTCONN;
    }
    side_->use_checkpoints(on);
    checkpoints_ = on;
    return 0;
}

mirror::vm_state primary_endpoint::state_now() const {
    mirror::vm_state state;
    state.instance = instance_;
    state.files = device_.core->checkpoint();
    if (amend_)
        amend_(state.files);
    for (core::file_checkpoint& f : state.files) {
        for (core::file_checkpoint::request& r : f.requests)
            if (mirror_->guest_knows_nothing_of(f.file, r.entries))
                r.progress.written.clear(); // it is not the guest's yet, and is read again
    }
    return state;
}

int primary_endpoint::close_epoch(std::uint32_t wait_ms, std::string& error) {
    mirror::vm_state state = state_now();
    const pair::primary_driver::closed closed = side_->close_epoch();
    if (closed.epoch == 0) {
        error = closed.why;
        return -ENOTCONN;
    }
    for (const mirror::open_request& r : mirror::open_requests(state)) {
        if (r.after + 1 < closed.checkpoints_from) {
            error = "a request of the guest's has no answer since before checkpoints were in use; it will be "
                    "protected when that has ended";
            return -EPROTO;
        }
    }
    state.epoch = closed.epoch;
    messages::encode(state, state_);
    closed_ = true;
    last_closed_ = closed.epoch;
    return wait_ms == 0 ? 0 : wait_epoch(wait_ms, error);
}

int primary_endpoint::wait_epoch(std::uint32_t wait_ms, std::string& error) {
    const auto begin = std::chrono::steady_clock::now();
    const int result = side_->wait_epoch(last_closed_, wait_ms, error);
    wait_ns_ = static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
    return result;
}

std::span<const std::byte> primary_endpoint::save_state() {
    if (!closed_)
        messages::encode(state_now(), state_);
    return state_;
}

} // namespace kagemusha::ffi
