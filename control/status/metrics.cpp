// SPDX-License-Identifier: GPL-2.0-or-later
//
// See metrics.hpp.
#include "control/status/metrics.hpp"

#include "control/base/process.hpp"

#include <fmt/format.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <cstdio>
#include <iterator>
#include <memory>
#include <mutex>
#include <poll.h>
#include <utility>

namespace kagemusha::control {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

struct figure {
    const char* name;
    const char* help;
    MetricType type;
    std::uint64_t replication_status::* where;
    double unit; // what one of it is in the metric's unit
};

constexpr auto gauge = MetricType::Gauge;
constexpr auto counter = MetricType::Counter;
using status = replication_status;

constexpr figure figures[] = {
    {"epoch", "Epochs closed.", gauge, &status::epoch, 1},
    {"committed_epoch", "Last epoch that the standby has whole.", gauge, &status::committed_epoch, 1},
    {"lag_entries", "Log entries that the standby has not executed yet.", gauge, &status::lag_entries, 1},
    {"lag_bytes", "Bytes logged that the standby has not received yet.", gauge, &status::lag_bytes, 1},
    {"lag_seconds", "Age of the oldest log entry that the standby has not received.", gauge, &status::lag_ms,
     1e-3},
    {"sent_bytes_total", "Bytes sent to the other end.", counter, &status::sent_bytes, 1},
    {"received_bytes_total", "Bytes received from the other end.", counter, &status::received_bytes, 1},
    {"compression_saved_bytes_total", "Bytes that compression kept off the link.", counter,
     &status::compression_saved_bytes, 1},
    {"digests_compared_total", "Chunks of GPU memory whose digests were compared.", counter,
     &status::digests_compared, 1},
    {"digests_different_total", "Chunks of GPU memory whose digests differed.", counter,
     &status::digests_different, 1},
    {"digests_repaired_total", "Chunks of GPU memory that were sent again because they differed.", counter,
     &status::digests_repaired, 1},
    {"shipped_objects", "Memory objects sent after each launch because they differed repeatedly.", gauge,
     &status::memory_shipped, 1},
    {"held_bytes", "Bytes that the standby has received and not executed.", gauge, &status::held_bytes, 1},
    {"registry_bytes", "Host memory with the record of the guest's live objects.", gauge,
     &status::registry_bytes, 1},
    {"transferred_bytes_total", "Content sent by state transfers.", counter, &status::transferred_bytes, 1},
    {"held_back_seconds_max", "Longest time that guest commands were held back by a state transfer.", gauge,
     &status::held_back_ns, 1e-9},
    {"connections_total", "Connections to the other end.", counter, &status::connections, 1},
    {"faults_total", "Log entries that failed on the standby and not on the primary.", counter,
     &status::faults, 1},
    {"round_trip_seconds", "Time of a heartbeat there and back.", gauge, &status::round_trip_ms, 1e-3},
    {"behind_seconds", "How long the standby's GPU is behind the primary's.", gauge, &status::behind_ms,
     1e-3},
    {"unexecuted_seconds", "For how long the standby could have executed what it has not.", gauge,
     &status::unexecuted_ms, 1e-3},
    {"built_bytes_total", "Compiled programs sent to the standby, or received from the primary.", counter,
     &status::built_bytes, 1},
    {"built_dropped_total", "Packs of compiled programs that were left out.", counter, &status::built_dropped,
     1},
    {"takeovers_total", "Takeovers by this device.", counter, &status::takeovers, 1},
};

// Of the supervisor of a VM that runs here; all begin anew with each standby.
struct supervised_figure {
    const char* name;
    const char* help;
    MetricType type;
    const char* key;
    double unit;
};

constexpr supervised_figure supervised_figures[] = {
    {"checkpoints_total", "Checkpoints of the VM that its standby has.", counter, "checkpoints", 1},
    {"checkpoints_early_total", "Of these, taken early because output waited.", counter, "early_checkpoints",
     1},
    {"checkpoints_paused_seconds_total", "Time that the VM stood still for checkpoints.", counter,
     "total_pause_us", 1e-6},
    {"checkpoint_pause_seconds", "How long the VM stood still for the last checkpoint.", gauge, "pause_us",
     1e-6},
    {"checkpoint_epoch_seconds", "How long the VM had run before the last checkpoint.", gauge, "epoch_us",
     1e-6},
    {"checkpoint_age_seconds", "Since when the standby got no checkpoint; 0 without checkpoints.", gauge,
     "checkpoint_age_ms", 1e-3},
    {"unprotected_seconds", "Since when no standby would go on with the VM; 0: one would.", gauge,
     "unprotected_ms", 1e-3},
};

// The same: what a person has to look at.
struct alarm {
    const char* name;
    const char* help;
    const char* key; // its reason; empty: it is not the case
};

constexpr alarm alarms[] = {
    {"standby_problem", "1: a takeover would have to wait, because the standby does not reach the arbiter.",
     "standby_problem"},
    {"warning", "1: something of this VM's host does not get on.", "warning"},
};

// Of a VM that shares its GPU with others.
struct share_figure {
    const char* name;
    const char* help;
    MetricType type;
    double (*read)(const share_row&);
};

constexpr share_figure share_figures[] = {
    {"seconds_total", "Time that commands of the VM were on the GPU.", counter,
     [](const share_row& r) { return static_cast<double>(r.gpu_ns) * 1e-9; }},
    {"waiting_seconds_total", "Time that the VM waited for its turn on the GPU.", counter,
     [](const share_row& r) { return static_cast<double>(r.waited_ns) * 1e-9; }},
    {"turns_total", "Turns that the VM had on the GPU.", counter,
     [](const share_row& r) { return static_cast<double>(r.turns); }},
    {"tasks_total", "Requests of the VM with commands for the GPU.", counter,
     [](const share_row& r) { return static_cast<double>(r.tasks); }},
    {"stuck_total", "Times that the VM did not give the GPU back within a second.", counter,
     [](const share_row& r) { return static_cast<double>(r.times_stuck); }},
    {"share_asked_ratio", "Part of the GPU's time that the VM asked for; 0: of what is left.", gauge,
     [](const share_row& r) { return r.share_permille * 1e-3; }},
    {"share_entitled_ratio", "Part of the GPU's time that the VM gets when all have work.", gauge,
     [](const share_row& r) { return r.weight_permille * 1e-3; }},
    {"memory_quota_bytes", "The VM's quota of the GPU's memory; 0: it has none of its own.", gauge,
     [](const share_row& r) { return static_cast<double>(r.memory_bytes); }},
};

using labels = std::vector<ClientMetric::Label>;

void add(MetricFamily& family, labels who, double value) {
    ClientMetric metric;
    metric.label = std::move(who);
    if (family.type == counter)
        metric.counter.value = value;
    else
        metric.gauge.value = value;
    family.metric.push_back(std::move(metric));
}

MetricFamily family(std::string name, std::string help, MetricType type) {
    return {std::move(name), std::move(help), type, {}};
}

template <class Each>
void each_replicated(const std::vector<vm_reading>& vms, Each each) {
    for (const auto& vm : vms)
        for (const auto& device : vm.devices)
            if (device.replication && device.replication->role != "none")
                each(labels{{"vm", vm.name}, {"device", device.name}}, *device.replication);
}

template <class Each>
void each_running(const std::vector<vm_reading>& vms, Each each) {
    for (const auto& vm : vms)
        if (vm.supervisor.is_object() && vm.supervisor.value("role", "") == "primary")
            each(labels{{"vm", vm.name}}, vm.supervisor);
}

// Asks when it is asked. Prometheus' server calls it on threads of its own.
class vm_collector : public prometheus::Collectable {
public:
    explicit vm_collector(status_options options) : options_(std::move(options)) {}

    std::vector<MetricFamily> Collect() const override {
        const std::lock_guard lock(one_at_a_time_); // a QMP monitor serves one client
        std::string error;
        std::vector<vm_reading> readings;
        for (const auto& vm : chosen_vms(options_, error))
            readings.push_back(read_vm(vm));
        return metric_families(readings, read_shared_gpus(true));
    }

private:
    const status_options options_;
    mutable std::mutex one_at_a_time_;
};

} // namespace

std::vector<MetricFamily> metric_families(const std::vector<vm_reading>& vms,
                                          const std::vector<shared_gpu>& gpus) {
    std::vector<MetricFamily> out;
    // References into it stay valid.
    out.reserve(5 + std::size(figures) + std::size(share_figures) + std::size(supervised_figures) +
                std::size(alarms));
    auto& up = out.emplace_back(
        family("kagemusha_vm_up", "1: QEMU answers. 0: the VM is registered and it does not.", gauge));
    for (const auto& vm : vms)
        add(up, {{"vm", vm.name}}, vm.problem.empty() ? 1 : 0);
    auto& is_protected = out.emplace_back(
        family("kagemusha_vm_protected", "1: a standby would go on with the VM. 0: none would.", gauge));
    each_running(vms, [&](labels who, const nlohmann::json& said) {
        add(is_protected, std::move(who), said.value("protected", false) ? 1 : 0);
    });
    auto& days = out.emplace_back(family("kagemusha_vm_certificate_days_left",
                                         "Until a certificate of the VM ends, or the cluster's CA.", gauge));
    for (const auto& vm : vms)
        if (vm.supervisor.is_object())
            for (const auto& one : vm.supervisor.value("certificates", nlohmann::json::array()))
                add(days, {{"vm", vm.name}, {"certificate", one.value("name", "")}},
                    static_cast<double>(one.value("days_left", std::int64_t{0})));
    for (const auto& f : supervised_figures) {
        auto& one = out.emplace_back(family(std::string("kagemusha_vm_") + f.name, f.help, f.type));
        each_running(vms, [&](labels who, const nlohmann::json& said) {
            add(one, std::move(who), static_cast<double>(said.value(f.key, std::uint64_t{0})) * f.unit);
        });
    }
    for (const auto& a : alarms) {
        auto& one = out.emplace_back(family(std::string("kagemusha_vm_") + a.name, a.help, gauge));
        each_running(vms, [&](labels who, const nlohmann::json& said) {
            const auto reason = said.value(a.key, std::string());
            who.push_back({"reason", reason});
            add(one, std::move(who), reason.empty() ? 0 : 1);
        });
    }
    auto& info = out.emplace_back(family("kagemusha_replication_info",
                                         "1; the labels say which role and state the device is in.", gauge));
    auto& degraded =
        out.emplace_back(family("kagemusha_replication_degraded",
                                "1: the VM is to be protected and is not; the reason is a label.", gauge));
    each_replicated(vms, [&](labels who, const replication_status& r) {
        auto with_state = who;
        with_state.insert(with_state.end(), {{"role", r.role}, {"state", r.state}});
        add(info, std::move(with_state), 1);
        who.push_back({"reason", r.degraded});
        add(degraded, std::move(who), r.degraded.empty() ? 0 : 1);
    });
    for (const auto& f : figures) {
        auto& one = out.emplace_back(family(std::string("kagemusha_replication_") + f.name, f.help, f.type));
        each_replicated(vms, [&](labels who, const replication_status& r) {
            add(one, std::move(who), static_cast<double>(r.*f.where) * f.unit);
        });
    }
    for (const auto& f : share_figures) {
        auto& one = out.emplace_back(family(std::string("kagemusha_gpu_") + f.name, f.help, f.type));
        for (const auto& gpu : gpus)
            for (const auto& vm : gpu.vms)
                add(one, {{"gpu", gpu.name}, {"vm", vm.row.vm}}, f.read(vm.row));
    }
    return out;
}

int run_metrics(const std::string& listen, const status_options& options) {
    const auto collector = std::make_shared<vm_collector>(options);
    std::unique_ptr<prometheus::Exposer> server;
    try {
        server = std::make_unique<prometheus::Exposer>(listen);
    } catch (const std::exception& failed) {
        fmt::print(stderr, "kage: cannot listen at {}: {}\n", listen, failed.what());
        return 125;
    }
    server->RegisterCollectable(collector);
    // With the real port, if it was given as 0.
    fmt::print(stderr, "http://{}:{}/metrics\n", listen.substr(0, listen.rfind(':')),
               server->GetListeningPorts().at(0));
    pollfd wait{interrupt_fd(), POLLIN, 0};
    while (!interrupted_by())
        ::poll(&wait, 1, -1);
    return 0;
}

} // namespace kagemusha::control
