// SPDX-License-Identifier: GPL-2.0-or-later
// roles: the two roles that a device's replication can have, and what they share. Internal to replicator/ffi.
// A standby has a primary in it: what it becomes by a takeover. It keeps the record of the live objects from
// the beginning, so that another standby can follow.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ffi/device_impl.hpp"
#include "mirror/capture/primary_shadow.hpp"
#include "mirror/log/limits.hpp"
#include "mirror/protocol/agreement.hpp"
#include "mirror/standby/vm_state.hpp"
#include "net/link.hpp"
#include "pair/primary_driver.hpp"

namespace kagemusha::ffi {

inline std::uint64_t random_number() {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
}

template <std::size_t n>
void put(char (&to)[n], const std::string& text) {
    const std::size_t bytes = std::min(text.size(), n - 1);
    std::memcpy(to, text.data(), bytes);
    to[bytes] = 0;
}

// One processor copies or encrypts less than a link can carry. One lane at least, so that heartbeats and
// commands never wait behind content.
inline std::uint32_t default_lanes() {
    return std::clamp(std::thread::hardware_concurrency() / 2, 1u, mirror::max_lanes);
}

inline net::link_options link_options(const kagemusha_device_config& c, const std::string& address) {
    net::link_options out;
    out.address = address;
    out.tls = {text_of(c.tls_directory), text_of(c.vm_id), net::link_part::qemu};
    out.lanes = default_lanes();
    return out;
}

// The log of both ends: lines go out on the device's thread.
inline auto logger(const kagemusha_device_config& c) {
    return [name = text_of(c.name), log = c.callbacks.log, user_data = c.user_data](kagemusha_log_level level,
                                                                                    const std::string& text) {
        if (log)
            log(user_data, level, (name + ": " + text).c_str());
    };
}

// What both state machines are told (mirror::primary_config, mirror::standby_config).
template <class Config>
void configure(Config& fsm, const kagemusha_device_config& c, const kagemusha_device& device,
               const core::device_limits& of_guest) {
    fsm.limits = {of_guest.max_files, of_guest.max_memory_bytes, of_guest.file.max_memory_bytes};
    fsm.vm = text_of(c.vm_id);
    fsm.gpu = device.gpu_name;
    fsm.instance = random_number();
    fsm.heartbeat_ms = or_default(c.heartbeat_ms, mirror::default_heartbeat_ms);
    fsm.heartbeat_budget_ms = or_default(c.heartbeat_budget_ms, mirror::default_heartbeat_budget_ms);
    fsm.compression = c.compression != 0;
    if (const std::string backend = text_of(c.backend); backend == "opencl")
        fsm.built_capability = (mirror::built_capability + device.gpu_name).substr(0, mirror::max_text_bytes);
    else if (backend == "cuda")
        fsm.gpu_capabilities = {mirror::cuda_capability, mirror::cuda_only_capability};
    else if (backend == "null")
        fsm.gpu_capabilities = {mirror::cuda_capability};
}

// One descriptor over the device's and the role's own.
class with_descriptor : public replication {
public:
    ~with_descriptor() override {
        if (epoll_ >= 0)
            close(epoll_);
    }
    int poll_fd() const override { return epoll_; }

protected:
    std::string watch(std::initializer_list<int> descriptors) {
        epoll_ = epoll_create1(EPOLL_CLOEXEC);
        for (const int fd : descriptors) {
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

class primary_endpoint final : public with_descriptor {
public:
    // Adds a region to the workers. Null with a sentence in `error`.
    static std::unique_ptr<primary_endpoint> create(const kagemusha_device_config& c,
                                                    kagemusha_device& device,
                                                    const core::device_limits& of_guest, std::string& error);
    primary_endpoint(kagemusha_device& device, const kagemusha_device_config& c);
    ~primary_endpoint() override;

    std::string attach() override;
    // Without a descriptor of its own: part of another role.
    void attach_tap();
    // Who changes what its checkpoints say of the guest's files, if anybody.
    void set_amend(std::function<void(std::vector<core::file_checkpoint>&)> amend) {
        amend_ = std::move(amend);
    }
    int event_fd() const { return side_->event_fd(); }

    bool standby() const override { return false; }
    bool reserved(std::uint32_t region) const override;
    void add_region(std::uint32_t region, void* base, std::uint64_t bytes) override;
    void dispatch(std::uint64_t now_ms) override;
    void refuse_guest(std::uint64_t) override {}
    bool take_request(const kagemusha_request& request) override;
    bool event_space() override { return true; }
    void reset() override;
    bool congested() const override { return side_->congested(); }
    bool protects() const override {
        return checkpoints_ && side_->status().state == mirror::primary_state::protecting;
    }
    int replicate_to(const std::string& address, std::string& error) override;
    int request_digest(bool everything) override;
    void status(kagemusha_replication_status& out) const override;
    const char* standby_address() const override { return ""; }

    int use_checkpoints(bool on, std::string& error) override;
    int begin_close_epoch(std::string&) override {
        side_->begin_close_epoch();
        return 0;
    }
    int close_epoch(std::uint32_t wait_ms, std::string& error) override;
    int wait_epoch(std::uint32_t wait_ms, std::string& error) override;
    void end_waits() override { side_->end_waits(); }
    std::span<const std::byte> save_state() override;
    int check_state(std::span<const std::byte>, std::string& error) override { return no_standby(error); }
    int commit_state(std::span<const std::byte>, std::string& error) override { return no_standby(error); }
    int take_over(std::string& error) override { return no_standby(error); }

private:
    static int no_standby(std::string& error) {
        error = "this device is no standby";
        return -ENOTSUP;
    }
    mirror::vm_state state_now() const;

    kagemusha_device& device_;
    const std::uint32_t digest_interval_ms_;
    const std::uint32_t transfer_wait_ms_;
    const bool cuda_; // the backend
    const bool ship_;
    const std::vector<std::string> ship_kernels_;
    const std::function<void(kagemusha_log_level, const std::string&)> log_;
    std::uint64_t instance_ = 0;
    std::unique_ptr<pair::primary_driver> side_;
    std::vector<mirror::region_address> regions_;
    std::unique_ptr<mirror::primary_shadow> mirror_;
    std::function<void(std::vector<core::file_checkpoint>&)> amend_;

    // Checkpoints; the thread that has the device, but for wait_epoch().
    bool closed_ = false;      // state_ is of now
    bool checkpoints_ = false; // are in use
    std::vector<std::byte> state_;
    std::atomic<std::uint64_t> last_closed_ = 0, wait_ns_ = 0;

    mutable std::mutex mutex_; // what follows: copies for status()
    mirror::agent_counters counters_;
    std::uint64_t registry_bytes_ = 0;
    std::string waiting_; // why a state transfer does not go on
};

// ffi/standby_endpoint.cpp
std::unique_ptr<replication> make_standby_endpoint(const kagemusha_device_config& c, kagemusha_device& device,
                                                   core::device_config& core, std::string& error);

} // namespace kagemusha::ffi
