// SPDX-License-Identifier: GPL-2.0-or-later
// The C interface of kagemusha/device.h over core::device: configuration, regions, which port a file gets,
// the clock, and the catch-all at each entry. No exception leaves this file; one that reaches it means that
// memory ran out or a bug, and a device that has lost track of its requests must not go on.
#include <kagemusha/device.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "core/limits.hpp"
#include "ffi/device_impl.hpp"
#include "worker/in_process_port.hpp"
#include "worker/limits.hpp"
#include "worker/share_join.hpp"

using namespace kagemusha;
using ffi::or_default;
using ffi::owned_fd;
using ffi::text_of;

namespace {

// Opening a GPU starts its runtime; the slowest seen is a minute, on a loaded host with a cold compiler
// cache.
constexpr std::uint32_t probe_timeout_ms = 120'000;

// What is done in-process instead of in a worker: nobody to report to.
class no_sink final : public gpu::executor_sink {
public:
    void on_done(std::uint64_t, const vgpu_response&) override {}
    void on_written(std::uint64_t, std::uint32_t) override {}
    void on_record(std::span<const std::byte>) override {}
    void on_gpu_lost(std::uint32_t) override {}
};

void write_error(char* error, std::size_t error_bytes, const std::string& text) {
    if (error && error_bytes != 0)
        std::snprintf(error, error_bytes, "%s", text.c_str());
}

} // namespace

std::unique_ptr<worker::port> kagemusha_device::make_port(std::string& error) {
    return executors ? worker::make_in_process_port(executors, views, error)
                     : worker::start_worker(worker, error);
}

void kagemusha_device::add_worker_region(std::uint32_t region, int fd, std::uint64_t bytes, std::byte* base) {
    if (executors) {
        views.resize(std::max<std::size_t>(views.size(), region + 1));
        views[region] = {base, bytes};
    } else {
        worker.regions.resize(std::max<std::size_t>(worker.regions.size(), region + 1));
        worker.regions[region] = {fd, 0, bytes};
    }
}

namespace {

// Why the configuration can't be used; empty if it can.
std::string complaint(const kagemusha_device_config& c) {
    if (c.api_version != KAGEMUSHA_DEVICE_API_VERSION || c.struct_bytes != sizeof(kagemusha_device_config)) {
        return "the program was built for another version of libkagemusha_device (version " +
               std::to_string(c.api_version) + ", configuration of " + std::to_string(c.struct_bytes) +
               " bytes; this library: " + std::to_string(KAGEMUSHA_DEVICE_API_VERSION) + ", " +
               std::to_string(sizeof(kagemusha_device_config)) + "): build both from the same source";
    }
    if (!c.callbacks.request_done || !c.callbacks.record)
        return "the callbacks request_done and record must be given";
    const std::string backend = text_of(c.backend);
    if (backend != "opencl" && backend != "cuda" && backend != "null" && backend != "faulty")
        return "there is no backend '" + backend + "': choose opencl, cuda, null or faulty";
    if (c.in_process > 1 || (c.in_process == 1 && (backend == "opencl" || backend == "cuda"))) {
        return "the backend '" + backend +
               "' can't run inside this process, because it executes code of the guest";
    }
    if (c.sandbox > 2)
        return "sandbox must be 0 (required), 1 (best effort) or 2 (off)";
    if (c.window_reserved != 0)
        return "window_reserved must be 0";
    struct {
        const char* name;
        std::uint32_t value, most;
    } const limits[] = {
        {"max_files", c.max_files, core::hard_max_files},
        {"max_requests_per_file", c.max_requests_per_file, core::hard_max_requests_per_file},
        {"max_events_per_file", c.max_events_per_file, core::hard_max_events_per_file},
        {"max_objects_per_file", c.max_objects_per_file, core::hard_max_objects_per_file},
        {"worker_start_burst", c.worker_start_burst, core::hard_worker_start_burst},
        {"worker_starts_per_second", c.worker_starts_per_second, core::hard_worker_starts_per_second},
    };
    for (const auto& limit : limits) {
        if (limit.value > limit.most) {
            return std::string(limit.name) + " is " + std::to_string(limit.value) + " and can be at most " +
                   std::to_string(limit.most);
        }
    }
    return ffi::replication::complaint(c);
}

core::device_config core_config(const kagemusha_device_config& c) {
    core::device_config out;
    out.name = text_of(c.name);
    out.max_files = or_default(c.max_files, core::default_max_files);
    out.file.max_requests = or_default(c.max_requests_per_file, core::default_max_requests_per_file);
    out.file.max_events = or_default(c.max_events_per_file, core::default_max_events_per_file);
    out.file.max_objects = or_default(c.max_objects_per_file, core::default_max_objects_per_file);
    out.max_memory_bytes = or_default(c.max_memory_bytes, core::default_max_memory_bytes);
    out.file.max_memory_bytes = std::min(
        or_default(c.max_file_memory_bytes, core::default_max_file_memory_bytes), out.max_memory_bytes);
    out.hang_timeout_ms = c.hang_timeout_ms;
    out.end_timeout_ms = c.end_timeout_ms;
    if (!c.in_process) { // where no process is started nothing has to be bounded
        out.worker_start_burst = or_default(c.worker_start_burst, core::default_worker_start_burst);
        out.worker_starts_per_second =
            or_default(c.worker_starts_per_second, core::default_worker_starts_per_second);
    }
    std::random_device random;
    out.hash_seed = std::uint64_t{random()} << 32 | random();
    out.callbacks = c.callbacks;
    out.user_data = c.user_data;
    return out;
}

// The name of the GPU, or empty with a sentence in `error`.
std::string probe(kagemusha_device& device, std::string& error) {
    if (!device.executors) {
        worker::probed_gpu probed = worker::probe_gpu(device.worker, probe_timeout_ms, error);
        if (!probed.own_selector.empty())
            device.worker.gpu = std::move(probed.own_selector);
        return std::move(probed.name);
    }
    no_sink sink;
    worker::opened_executor opened = device.executors({}, sink);
    error = opened.error;
    return opened.executor ? opened.gpu_name : std::string();
}

int create(const kagemusha_device_config& config, kagemusha_device** out, std::string& error) {
    error = complaint(config);
    if (!error.empty())
        return -EINVAL;
    auto device = std::make_unique<kagemusha_device>();
    kagemusha_device* const self = device.get();
    worker::worker_options& w = device->worker;
    w.name = text_of(config.name);
    w.backend = text_of(config.backend);
    w.gpu = text_of(config.gpu);
    w.options = text_of(config.options);
    w.worker_path = text_of(config.worker_path);
    w.sandbox = static_cast<worker::sandbox_mode>(config.sandbox);
    if (const char* share = std::getenv(worker::share_variable))
        w.share = share; // whoever started this QEMU has said so
    w.max_worker_bytes = or_default(config.max_worker_bytes, core::default_max_worker_bytes);
    w.log = [log = config.callbacks.log, user_data = config.user_data](kagemusha_log_level level,
                                                                       const std::string& line) {
        if (log)
            log(user_data, level, line.c_str());
    };
    if (config.callbacks.room)
        device->room = [room = config.callbacks.room, user_data = config.user_data] { room(user_data); };
    if (config.in_process)
        device->executors = worker::gpu_executor_factory(w.backend, w.gpu, w.options);
    core::device_config core = core_config(config);
    device->limits.max_files = core.max_files;
    device->limits.max_requests_per_file = core.file.max_requests;
    device->limits.max_events_per_file = core.file.max_events;
    device->limits.max_stream_bytes = VGPU_MAX_STREAM_BYTES;
    device->limits.max_segments = VGPU_MAX_SEGMENTS;
    device->gpu_name = probe(*device, error);
    if (device->gpu_name.empty())
        return -ENODEV;
    if (ffi::replication::wanted(config)) {
        device->replication = ffi::replication::create(config, *device, core, error);
        if (!device->replication)
            return -EINVAL;
    }
    device->core = core::device::create(
        std::move(core), [self](std::uint32_t, std::string& e) { return self->make_port(e); }, error);
    if (!device->core)
        return -EMFILE;
    if (device->replication) {
        error = device->replication->attach();
        if (!error.empty())
            return -EMFILE;
    }
    *out = device.release();
    return 0;
}

int add_region(kagemusha_device& device, std::uint32_t region, int fd, std::uint64_t file_offset,
               std::uint64_t bytes, void* base, std::string& error) {
    if (device.core->had_files()) {
        error = "memory can only be added before the first file is opened";
        return -EBUSY;
    }
    if (device.replication && !base) {
        error = "a device that is replicated needs the address of each region";
        return -EINVAL;
    }
    if (device.replication && device.replication->reserved(region)) {
        error = "region " + std::to_string(region) + " is the replication's own";
        return -E2BIG;
    }
    if (region >= worker::max_regions) {
        error = "there can be at most " + std::to_string(worker::max_regions) + " regions of memory";
        return -E2BIG;
    }
    if (bytes == 0 || !(base::checked_u64(file_offset) + bytes).within(INT64_MAX) ||
        device.core->has_region(region)) {
        error = "region " + std::to_string(region) + " is empty, too large, or was added before";
        return -EINVAL;
    }
    if (device.executors) {
        if (!base) {
            error = "a backend inside this process needs the address of each region";
            return -EINVAL;
        }
        device.views.resize(std::max<std::size_t>(device.views.size(), region + 1));
        device.views[region] = {static_cast<std::byte*>(base), bytes};
    } else {
        struct stat st{};
        if (fd < 0 || fstat(fd, &st) != 0) {
            error =
                "a worker needs each region as a file (guest RAM from memory-backend-memfd with share=on): " +
                std::string(fd < 0 ? "none was given" : std::strerror(errno));
            return -EINVAL;
        }
        if (S_ISREG(st.st_mode) && static_cast<std::uint64_t>(st.st_size) < file_offset + bytes) {
            error = "the file of region " + std::to_string(region) + " is shorter than the region";
            return -EINVAL;
        }
        owned_fd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
        if (copy.get() < 0) {
            error = std::string("a descriptor can't be duplicated: ") + std::strerror(errno);
            return -EMFILE;
        }
        auto& regions = device.worker.regions;
        regions.resize(std::max<std::size_t>(regions.size(), region + 1));
        regions[region] = {copy.get(), file_offset, bytes};
        device.region_files.push_back(std::move(copy));
    }
    device.core->add_region(region, bytes);
    if (device.replication)
        device.replication->add_region(region, base, bytes);
    return 0;
}

// Runs an entry that can report an error. A failed allocation while a device is set up is the caller's to
// handle.
template <class F>
int guarded(char* error_text, std::size_t error_bytes, F&& f) noexcept {
    std::string error;
    int result = -ENOMEM;
    try {
        result = f(error);
    } catch (const std::bad_alloc&) {
        write_error(error_text, error_bytes, "out of memory");
        return -ENOMEM;
    } catch (const std::exception& e) {
        error = e.what();
        result = -EIO;
    }
    write_error(error_text, error_bytes, result == 0 ? std::string() : error);
    return result;
}

// A standby has no guest: whoever asks has made a mistake, and is told at once.
bool refused(kagemusha_device& device, std::uint64_t token) {
    if (!device.replication || !device.replication->standby())
        return false;
    device.replication->refuse_guest(token);
    return true;
}

template <class F>
int with_replication(kagemusha_device* device, char* error, std::size_t error_bytes, F&& f) noexcept {
    return guarded(error, error_bytes, [&](std::string& e) {
        if (device->replication)
            return f(*device->replication, e);
        e = "this device was made without replication (replicate_to, replicable or standby_listen)";
        return -ENOTSUP;
    });
}

// Runs an entry that can't.
template <class F>
auto guarded(F&& f) noexcept {
    return f(); // noexcept: what is thrown ends the program with its message
}

} // namespace

extern "C" {

void kagemusha_device_config_init(kagemusha_device_config* config) {
    *config = {};
    config->api_version = KAGEMUSHA_DEVICE_API_VERSION;
    config->struct_bytes = sizeof(*config);
    config->name = "vm";
    config->backend = "opencl";
    config->gpu = "";
    config->options = "";
    config->max_files = core::default_max_files;
    config->max_requests_per_file = core::default_max_requests_per_file;
    config->max_events_per_file = core::default_max_events_per_file;
    config->max_objects_per_file = core::default_max_objects_per_file;
    config->max_memory_bytes = core::default_max_memory_bytes;
    config->max_file_memory_bytes = core::default_max_file_memory_bytes;
    config->max_worker_bytes = core::default_max_worker_bytes;
    config->hang_timeout_ms = core::default_hang_timeout_ms;
    config->end_timeout_ms = core::default_end_timeout_ms;
    config->worker_start_burst = core::default_worker_start_burst;
    config->worker_starts_per_second = core::default_worker_starts_per_second;
    ffi::replication::init(*config);
}

int kagemusha_device_create(const kagemusha_device_config* config, kagemusha_device** device, char* error,
                            size_t error_bytes) {
    *device = nullptr;
    return guarded(error, error_bytes, [&](std::string& e) { return create(*config, device, e); });
}

void kagemusha_device_destroy(kagemusha_device* device) {
    guarded([&] { delete device; });
}

int kagemusha_device_add_region(kagemusha_device* device, uint32_t region, int fd, uint64_t file_offset,
                                uint64_t bytes, void* base, char* error, size_t error_bytes) {
    return guarded(error, error_bytes, [&](std::string& e) {
        return add_region(*device, region, fd, file_offset, bytes, base, e);
    });
}

void kagemusha_device_open_file(kagemusha_device* device, uint32_t file, uint64_t token) {
    guarded([&] {
        if (!refused(*device, token))
            device->core->open_file(file, token);
    });
}

void kagemusha_device_close_file(kagemusha_device* device, uint32_t file, uint64_t token) {
    guarded([&] {
        if (!refused(*device, token))
            device->core->close_file(file, token);
    });
}

void kagemusha_device_submit(kagemusha_device* device, const kagemusha_request* request) {
    if (reinterpret_cast<std::uintptr_t>(request->stream) % 8 != 0)
        std::abort(); // the caller's error, not the guest's
    guarded([&] {
        if (!refused(*device, request->token) &&
            !(device->replication && device->replication->take_request(*request))) {
            device->core->submit(*request, ffi::now_ms());
        }
    });
}

int kagemusha_device_poll_fd(kagemusha_device* device) {
    return device->replication ? device->replication->poll_fd() : device->core->poll_fd();
}

void kagemusha_device_dispatch(kagemusha_device* device) {
    guarded([&] {
        const std::uint64_t now = ffi::now_ms();
        device->core->dispatch(now);
        if (device->replication)
            device->replication->dispatch(now);
    });
}

void kagemusha_device_event_space(kagemusha_device* device) {
    guarded([&] {
        if (!device->replication || device->replication->event_space())
            device->core->event_space();
    });
}

uint32_t kagemusha_device_reset(kagemusha_device* device) {
    return guarded([&] {
        if (device->replication)
            device->replication->reset();
        else
            device->core->reset();
        return kagemusha_device_writers(device);
    });
}

uint32_t kagemusha_device_writers(kagemusha_device* device) {
    return guarded([&] { return static_cast<uint32_t>(device->core->writers()); });
}

void kagemusha_device_get_limits(kagemusha_device* device, kagemusha_device_limits* limits) {
    *limits = device->limits;
}

void kagemusha_device_get_stats(kagemusha_device* device, kagemusha_device_stats* stats) {
    kagemusha_device_stats full{};
    full.struct_bytes = std::min<std::uint64_t>(stats->struct_bytes, sizeof(full));
    device->core->stats(full);
    std::memcpy(stats, &full, full.struct_bytes);
}

int kagemusha_device_congested(kagemusha_device* device) {
    return device->failed || (device->replication && device->replication->congested());
}

int kagemusha_device_hold_failures(kagemusha_device* device, int on) {
    return guarded(nullptr, 0, [&](std::string&) {
        if (!device->replication)
            return -ENOTSUP;
        std::function<bool(const std::string&)> holder;
        if (on) {
            holder = [device](const std::string& why) {
                if (!device->failed && !device->replication->protects())
                    return false;
                const std::lock_guard lock(device->failure_mutex);
                if (!device->failed.exchange(true))
                    device->failure = why;
                return true;
            };
        }
        device->core->set_loss_holder(std::move(holder));
        device->replication->keep_copy(on != 0);
        return 0;
    });
}

int kagemusha_device_failure(kagemusha_device* device, char* text, size_t text_bytes) {
    const std::lock_guard lock(device->failure_mutex);
    write_error(text, text_bytes, device->failure);
    return device->failed;
}

void kagemusha_device_report_failures(kagemusha_device* device) {
    guarded([&] {
        {
            const std::lock_guard lock(device->failure_mutex);
            device->failure.clear();
            if (!device->failed.exchange(false))
                return;
        }
        device->core->report_losses();
        if (device->room)
            device->room();
    });
}

int kagemusha_device_replicate_to(kagemusha_device* device, const char* address, char* error,
                                  size_t error_bytes) {
    return guarded(error, error_bytes, [&](std::string& e) {
        if (device->replication)
            return device->replication->replicate_to(ffi::text_of(address), e);
        e = "this device was made without replication (replicate_to, or replicable)";
        return -ENOTSUP;
    });
}

int kagemusha_device_use_checkpoints(kagemusha_device* device, int on, char* error, size_t error_bytes) {
    return with_replication(device, error, error_bytes, [&](ffi::replication& r, std::string& e) {
        return r.use_checkpoints(on != 0, e);
    });
}

int kagemusha_device_begin_close_epoch(kagemusha_device* device, char* error, size_t error_bytes) {
    return with_replication(device, error, error_bytes,
                            [&](ffi::replication& r, std::string& e) { return r.begin_close_epoch(e); });
}

int kagemusha_device_close_epoch(kagemusha_device* device, uint32_t wait_ms, char* error,
                                 size_t error_bytes) {
    return with_replication(device, error, error_bytes,
                            [&](ffi::replication& r, std::string& e) { return r.close_epoch(wait_ms, e); });
}

int kagemusha_device_wait_epoch(kagemusha_device* device, uint32_t wait_ms, char* error, size_t error_bytes) {
    return with_replication(device, error, error_bytes,
                            [&](ffi::replication& r, std::string& e) { return r.wait_epoch(wait_ms, e); });
}

void kagemusha_device_end_waits(kagemusha_device* device) {
    guarded([&] {
        if (device->replication)
            device->replication->end_waits();
    });
}

void kagemusha_device_save_state(kagemusha_device* device, const void** state, size_t* bytes) {
    guarded([&] {
        const auto saved =
            device->replication ? device->replication->save_state() : std::span<const std::byte>();
        *state = saved.data();
        *bytes = saved.size();
    });
}

int kagemusha_device_check_state(kagemusha_device* device, const void* state, size_t bytes, char* error,
                                 size_t error_bytes) {
    return with_replication(device, error, error_bytes, [&](ffi::replication& r, std::string& e) {
        return r.check_state({static_cast<const std::byte*>(state), bytes}, e);
    });
}

int kagemusha_device_commit_state(kagemusha_device* device, const void* state, size_t bytes, char* error,
                                  size_t error_bytes) {
    return with_replication(device, error, error_bytes, [&](ffi::replication& r, std::string& e) {
        return r.commit_state({static_cast<const std::byte*>(state), bytes}, e);
    });
}

int kagemusha_device_take_over(kagemusha_device* device, char* error, size_t error_bytes) {
    return with_replication(device, error, error_bytes,
                            [&](ffi::replication& r, std::string& e) { return r.take_over(e); });
}

int kagemusha_device_request_digest(kagemusha_device* device, int everything) {
    return guarded(nullptr, 0, [&](std::string&) {
        return device->replication ? device->replication->request_digest(everything != 0) : -ENOTCONN;
    });
}

void kagemusha_device_get_replication_status(kagemusha_device* device, kagemusha_replication_status* status) {
    guarded([&] {
        kagemusha_replication_status full{};
        full.struct_bytes = std::min<std::uint64_t>(status->struct_bytes, sizeof(full));
        if (device->replication)
            device->replication->status(full);
        std::memcpy(status, &full, full.struct_bytes);
    });
}

const char* kagemusha_device_standby_address(kagemusha_device* device) {
    return device->replication ? device->replication->standby_address() : "";
}

void kagemusha_device_unsupported(kagemusha_device* device, char* text, size_t bytes) {
    if (bytes == 0)
        return;
    text[0] = 0;
    try {
        const std::string all = device->core->unsupported();
        const std::size_t length = std::min(all.size(), bytes - 1);
        std::memcpy(text, all.data(), length);
        text[length] = 0;
    } catch (const std::bad_alloc&) { // then nothing is told
    }
}

const char* kagemusha_device_gpu_name(kagemusha_device* device) {
    return device->gpu_name.c_str();
}

} // extern "C"
