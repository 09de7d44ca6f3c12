// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a VM's GPU device says about its replication, from QMP's answer to text for a person. Pure.
//
// The answer is the property `replication` of the device (qemu-device/virtio-vgpu-replication.c): the members
// of struct kagemusha_replication_status (replicator/include/kagemusha/device.h) under their names, with
// dashes; role and state as words (the header's numbers are understood, too).
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control {

struct replication_status {
    std::string role = "none"; // none, primary, standby
    // off; primary: disconnected, greeting, syncing, protecting; standby: listening, following, ready,
    // taken-over, ended
    std::string state = "off";
    std::string degraded; // why the VM is not protected; "": it is, or nobody asked for it
    std::string peer_gpu;
    std::string standby_address; // where a standby listens
    std::uint64_t epoch = 0, committed_epoch = 0;
    std::uint64_t lag_entries = 0, lag_bytes = 0, lag_ms = 0;
    std::uint64_t sent_bytes = 0, received_bytes = 0, compression_saved_bytes = 0;
    std::uint64_t digests_compared = 0, digests_different = 0, digests_repaired = 0;
    std::uint64_t memory_shipped = 0, held_bytes = 0, registry_bytes = 0, transferred_bytes = 0;
    std::uint64_t held_back_ns = 0, connections = 0, faults = 0, round_trip_ms = 0;
    std::uint64_t takeovers = 0;
    // ns of CLOCK_BOOTTIME, 0: not yet.
    std::uint64_t committed_at_ns = 0, took_over_at_ns = 0, first_completion_at_ns = 0;
    std::uint64_t copy_lost = 0, behind_ms = 0, unexecuted_ms = 0;
    std::uint64_t built_packs = 0, built_bytes = 0, built_dropped = 0;

    bool operator==(const replication_status&) const = default;
};

// Nothing when it is no such answer. A number that is missing (an older QEMU) is 0.
std::optional<replication_status> parse_replication(const nlohmann::json& answer);

struct device_reading {
    std::string name; // of the device in QEMU: vgpu0
    std::string gpu;
    std::optional<replication_status> replication; // nothing: this QEMU's device knows no replication
    // Since the reading before; 0 when there is none.
    double sent_bytes_per_s = 0, received_bytes_per_s = 0;
    std::string
        unsupported{}; // functions that programs called and the guest's driver does not have; "": none
};

struct vm_reading {
    std::string name;
    int pid = 0;         // 0: not known
    std::string problem; // a sentence; the rest is then missing
    std::vector<device_reading> devices;
    nlohmann::json supervisor =
        nullptr;                    // what its supervisor says (supervise/supervisor.cpp); null: it has none
    nlohmann::json share = nullptr; // of its GPU (share/share_status.hpp); null: it shares with nobody
};

// Fills in the rates of `now`, `seconds` after `before`. A counter that went backwards (a new QEMU) gives 0.
void set_rates(device_reading& now, const device_reading& before, double seconds);

std::string status_text(const std::vector<vm_reading>& vms);
nlohmann::json status_json(const std::vector<vm_reading>& vms);
// A VM that was to be protected and is not, or that does not answer.
bool anything_wrong(const std::vector<vm_reading>& vms);

} // namespace kagemusha::control
