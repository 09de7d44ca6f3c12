// SPDX-License-Identifier: GPL-2.0-or-later
#include "ffi/replication.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <random>
#include <utility>

#include "core/limits.hpp"
#include "ffi/device_impl.hpp"
#include "mirror/limits.hpp"
#include "mirror/mirror_primary.hpp"
#include "pair/primary_side.hpp"
#include "pair/standby_side.hpp"
#include "worker/limits.hpp"

namespace kagemusha::ffi {

namespace {

// The last number: guest memory begins at 0.
constexpr std::uint32_t agent_region = worker::max_regions - 1;

// Memory that agents read into on the primary: some digests and pieces of a state transfer at once.
constexpr std::uint64_t agent_bytes = std::uint64_t{256} << 20;

std::uint64_t random_number() {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
}

template <std::size_t n>
void put(char (&to)[n], const std::string& text) {
    const std::size_t bytes = std::min(text.size(), n - 1);
    std::memcpy(to, text.data(), bytes);
    to[bytes] = 0;
}

net::link_options link_options(const kagemusha_device_config& c, const std::string& address) {
    net::link_options out;
    out.address = address;
    out.tls.directory = text_of(c.tls_directory);
    return out;
}

// The log of both ends: lines go out on the device's thread.
auto logger(const kagemusha_device_config& c) {
    return [name = text_of(c.name), log = c.callbacks.log, user_data = c.user_data](kagemusha_log_level level,
                                                                                    const std::string& text) {
        if (log) {
            log(user_data, level, (name + ": " + text).c_str());
        }
    };
}

// What both state machines are told (mirror::primary_config, mirror::standby_config).
template <class Config>
void configure(Config& fsm, const kagemusha_device_config& c, const kagemusha_device& device) {
    fsm.vm = text_of(c.vm_id);
    fsm.gpu = device.gpu_name;
    fsm.instance = random_number();
    fsm.heartbeat_ms = or_default(c.heartbeat_ms, mirror::default_heartbeat_ms);
    fsm.heartbeat_budget_ms = or_default(c.heartbeat_budget_ms, mirror::default_heartbeat_budget_ms);
    fsm.compression = c.compression != 0;
}

// What both roles have: one descriptor over the device's and the role's own.
class with_descriptor : public replication {
public:
    ~with_descriptor() override {
        if (epoll_ >= 0) {
            close(epoll_);
        }
    }
    int poll_fd() const override { return epoll_; }

protected:
    std::string watch(int first, int second) {
        epoll_ = epoll_create1(EPOLL_CLOEXEC);
        for (const int fd : {first, second}) {
            epoll_event event{};
            event.events = EPOLLIN;
            event.data.fd = fd;
            if (epoll_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
                return std::string("replication can't have its descriptors: ") + std::strerror(errno) +
                       "; raise the limit of open files";
            }
        }
        return {};
    }

private:
    int epoll_ = -1;
};

// ---- primary
// ------------------------------------------------------------------------------------------------------------

class primary final : public with_descriptor {
public:
    static std::unique_ptr<replication> create(const kagemusha_device_config& c, kagemusha_device& device,
                                               std::string& error) {
        auto made = std::make_unique<primary>(device, c.digest_interval_ms);
        pair::primary_side::options o;
        configure(o.fsm, c, device);
        o.fsm.log_bytes = or_default(c.log_bytes, mirror::default_log_bytes);
        o.fsm.epoch_ms = or_default(c.epoch_ms, mirror::default_epoch_ms);
        o.link = link_options(c, text_of(c.replicate_to));
        o.agent_bytes = agent_bytes;
        o.agent_region = agent_region;
        o.log = logger(c);
        if (c.callbacks.room) {
            o.room = [room = c.callbacks.room, user_data = c.user_data] { room(user_data); };
        }
        made->side_ = pair::primary_side::create(std::move(o), error);
        if (!made->side_) {
            return nullptr;
        }
        pair::arena& memory = made->side_->memory();
        device.add_worker_region(agent_region, memory.fd(), memory.capacity(), memory.base());
        return made;
    }

    primary(kagemusha_device& device, std::uint32_t digest_interval_ms)
        : device_(device), digest_interval_ms_(digest_interval_ms) {}

    ~primary() override {
        mirror_.reset(); // it uses the side's log and memory
    }

    std::string attach() override {
        mirror::agent_options agent;
        agent.now_ns = [] {
            timespec t{};
            clock_gettime(CLOCK_MONOTONIC, &t);
            return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 +
                   static_cast<std::uint64_t>(t.tv_nsec);
        };
        mirror::mirror_primary_options options;
        options.digest_interval_ms = digest_interval_ms_;
        options.hash_seed = random_number();
        mirror_ = std::make_unique<mirror::mirror_primary>(*device_.core, side_->log(),
                                                           mirror::make_agent_factory(side_->memory(), agent),
                                                           regions_, options);
        device_.core->set_tap(mirror_.get());
        return watch(device_.core->poll_fd(), side_->event_fd());
    }

    bool standby() const override { return false; }
    bool reserved(std::uint32_t region) const override { return region == agent_region; }
    void add_region(std::uint32_t region, void* base, std::uint64_t bytes) override {
        regions_.resize(std::max<std::size_t>(regions_.size(), region + 1));
        regions_[region] = {static_cast<const std::byte*>(base), bytes};
    }
    void dispatch(std::uint64_t) override {
        side_->dispatch(*mirror_);
        // Each time: nobody knows whether another one comes before somebody asks.
        const std::lock_guard lock(mutex_);
        counters_ = mirror_->counters();
        catalog_bytes_ = mirror_->catalog_bytes();
    }
    void refuse_guest(std::uint64_t) override {}
    bool congested() const override { return side_->congested(); }
    int replicate_to(const std::string& address, std::string& error) override {
        if (!side_->address().empty()) {
            error = "this device is replicated to " + side_->address() + " already";
            return -EALREADY;
        }
        if (address.empty()) {
            error = "the address of a standby must be given: HOST:PORT or unix:PATH";
            return -EINVAL;
        }
        side_->replicate_to(address);
        return 0;
    }
    int request_digest(bool everything) override {
        if (mirror_->mode() != mirror::mirror_mode::on) {
            return -ENOTCONN;
        }
        mirror_->request_digest(everything);
        return 0;
    }
    void status(kagemusha_replication_status& out) const override {
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
        out.sent_bytes = s.sent_bytes;
        out.digests_compared = s.digests_compared;
        out.digests_different = s.digests_different;
        out.connections = s.connections;
        out.round_trip_ms = s.round_trip_ms;
        put(out.degraded, out.state == KAGEMUSHA_REPLICATION_OFF ? std::string() : s.degraded);
        put(out.peer_gpu, s.standby_gpu);
        const std::lock_guard lock(mutex_);
        out.digests_repaired = counters_.chunks_repaired;
        out.memory_shipped = counters_.memory_shipped;
        out.transferred_bytes = counters_.content_bytes;
        out.held_back_ns = counters_.final_round_ns;
        out.catalog_bytes = catalog_bytes_;
    }
    const char* standby_address() const override { return ""; }

private:
    kagemusha_device& device_;
    const std::uint32_t digest_interval_ms_;
    std::unique_ptr<pair::primary_side> side_;
    std::vector<mirror::region_address> regions_;
    std::unique_ptr<mirror::mirror_primary> mirror_;

    mutable std::mutex mutex_; // what follows: copies for status()
    mirror::agent_counters counters_;
    std::uint64_t catalog_bytes_ = 0;
};

// ---- standby
// ------------------------------------------------------------------------------------------------------------

class standby_role final : public with_descriptor {
public:
    static std::unique_ptr<replication> create(const kagemusha_device_config& c, kagemusha_device& device,
                                               core::device_config& core, std::string& error) {
        auto made = std::make_unique<standby_role>(device, c.callbacks, c.user_data);
        pair::standby_side::options o;
        configure(o.fsm, c, device);
        o.fsm.hold_bytes = or_default(c.hold_bytes, mirror::default_hold_bytes);
        o.listen = link_options(c, text_of(c.standby_listen));
        o.log = logger(c);
        made->side_ = pair::standby_side::create(std::move(o), error);
        if (!made->side_) {
            return nullptr;
        }
        pair::arena& memory = made->side_->memory();
        device.add_worker_region(pair::standby_region, memory.fd(), memory.capacity(), memory.base());

        // Whatever the primary allowed its guest, and what its agents add.
        core.max_files = core::hard_max_files;
        core.file.max_requests = core::hard_max_requests_per_file;
        core.file.max_events = core::hard_max_events_per_file;
        core.file.max_objects = core::hard_max_objects_per_file;
        core.max_memory_bytes = core.file.max_memory_bytes = std::uint64_t{1} << 62;
        core.file.host_ids = true;
        core.user_data = made.get();
        core.callbacks.request_done = [](void* self, std::uint64_t token, const vgpu_response* response) {
            static_cast<standby_role*>(self)->side_->on_request_done(token, *response);
        };
        core.callbacks.record = [](void* self, const void* record, std::size_t bytes) {
            static_cast<standby_role*>(self)->side_->on_record(
                {static_cast<const std::byte*>(record), bytes});
            return 0;
        };
        core.callbacks.log = [](void* self, int level, const char* line) {
            const auto* role = static_cast<standby_role*>(self);
            if (role->guest_.log) {
                role->guest_.log(role->user_data_, level, line);
            }
        };
        return made;
    }

    standby_role(kagemusha_device& device, const kagemusha_callbacks& guest, void* user_data)
        : device_(device), guest_(guest), user_data_(user_data) {}

    std::string attach() override {
        device_.core->add_region(pair::standby_region, side_->memory().capacity());
        return watch(device_.core->poll_fd(), side_->event_fd());
    }
    bool standby() const override { return true; }
    bool reserved(std::uint32_t) const override { return false; }
    void add_region(std::uint32_t, void*, std::uint64_t) override {}
    void dispatch(std::uint64_t now_ms) override { side_->dispatch(*device_.core, now_ms); }
    void refuse_guest(std::uint64_t token) override {
        vgpu_response response{};
        response.status = VGPU_STATUS_LIMIT;
        guest_.request_done(user_data_, token, &response);
    }
    bool congested() const override { return false; }
    int replicate_to(const std::string&, std::string& error) override {
        error = "this device is a standby";
        return -ENOTSUP;
    }
    int request_digest(bool) override { return -ENOTCONN; }
    void status(kagemusha_replication_status& out) const override {
        const mirror::standby_status s = side_->status();
        out.role = KAGEMUSHA_ROLE_STANDBY;
        using enum mirror::standby_state;
        out.state = s.state == listening    ? KAGEMUSHA_REPLICATION_LISTENING
                    : s.state == greeting   ? KAGEMUSHA_REPLICATION_GREETING
                    : s.state == following  ? KAGEMUSHA_REPLICATION_FOLLOWING
                    : s.state == ready      ? KAGEMUSHA_REPLICATION_READY
                    : s.state == taken_over ? KAGEMUSHA_REPLICATION_TAKEN_OVER
                                            : KAGEMUSHA_REPLICATION_ENDED;
        out.epoch = s.epoch;
        out.committed_epoch = s.committed_epoch;
        out.received = s.received;
        out.executed = s.executed;
        out.lag_entries = s.held_entries;
        out.received_bytes = s.received_bytes;
        out.digests_compared = s.digests_compared;
        out.digests_different = s.digests_different;
        out.held_bytes = s.held_bytes;
        out.faults = s.faults;
        put(out.degraded, s.state == ready || s.state == taken_over ? std::string() : s.why);
        put(out.peer_gpu, s.primary_gpu);
    }
    const char* standby_address() const override { return side_->address().c_str(); }

private:
    kagemusha_device& device_;
    const kagemusha_callbacks guest_;
    void* const user_data_;
    std::unique_ptr<pair::standby_side> side_;
};

} // namespace

void replication::init(kagemusha_device_config& c) {
    c.epoch_ms = mirror::default_epoch_ms;
    c.heartbeat_ms = mirror::default_heartbeat_ms;
    c.heartbeat_budget_ms = mirror::default_heartbeat_budget_ms;
    c.digest_interval_ms = mirror::mirror_primary_options{}.digest_interval_ms;
    c.log_bytes = mirror::default_log_bytes;
    c.hold_bytes = mirror::default_hold_bytes;
}

bool replication::wanted(const kagemusha_device_config& c) {
    return !text_of(c.replicate_to).empty() || !text_of(c.standby_listen).empty() || c.replicable != 0;
}

std::string replication::complaint(const kagemusha_device_config& c) {
    const bool is_standby = !text_of(c.standby_listen).empty();
    if (c.replicable > 1 || c.compression > 1) {
        return "replicable and compression are 0 or 1";
    }
    if (!wanted(c)) {
        return {};
    }
    if (is_standby && (!text_of(c.replicate_to).empty() || c.replicable != 0)) {
        return "a device is a primary (replicate_to) or a standby (standby_listen), not both";
    }
    if (text_of(c.vm_id).empty()) {
        return "replication needs the VM's id (vm_id), the same on both sides";
    }
    if (text_of(c.vm_id).size() > mirror::max_text_bytes) {
        return "the VM's id is too long";
    }
    const std::uint32_t heartbeat = or_default(c.heartbeat_ms, mirror::default_heartbeat_ms);
    const std::uint32_t budget = or_default(c.heartbeat_budget_ms, mirror::default_heartbeat_budget_ms);
    if (budget / 3 < heartbeat) {
        return "heartbeat_budget_ms (" + std::to_string(budget) + ") must be three times heartbeat_ms (" +
               std::to_string(heartbeat) + ") at least: one lost heartbeat is no death";
    }
    return {};
}

std::unique_ptr<replication> replication::create(const kagemusha_device_config& config,
                                                 kagemusha_device& device, core::device_config& core,
                                                 std::string& error) {
    return text_of(config.standby_listen).empty() ? primary::create(config, device, error)
                                                  : standby_role::create(config, device, core, error);
}

} // namespace kagemusha::ffi
