// SPDX-License-Identifier: GPL-2.0-or-later
// Which role a device has, and whether its configuration can be used.
#include "ffi/replication.hpp"

#include <cstring>

#include "ffi/roles.hpp"
#include "mirror/log/limits.hpp"

namespace kagemusha::ffi {

void replication::init(kagemusha_device_config& c) {
    c.epoch_ms = mirror::default_epoch_ms;
    c.heartbeat_ms = mirror::default_heartbeat_ms;
    c.heartbeat_budget_ms = mirror::default_heartbeat_budget_ms;
    c.digest_interval_ms = mirror::primary_shadow_options{}.digest_interval_ms;
    c.transfer_wait_ms = mirror::default_transfer_wait_ms;
    c.log_bytes = mirror::default_log_bytes;
    c.hold_bytes = mirror::default_hold_bytes;
    c.max_behind_ms = mirror::default_max_behind_ms;
}

bool replication::wanted(const kagemusha_device_config& c) {
    return !text_of(c.replicate_to).empty() || !text_of(c.standby_listen).empty() || c.replicable != 0;
}

std::string replication::complaint(const kagemusha_device_config& c) {
    const bool is_standby = !text_of(c.standby_listen).empty();
    if (c.replicable > 1 || c.compression > 1)
        return "replicable and compression are 0 or 1";
    if (c.differences > KAGEMUSHA_DIFFERENCES_SHIP)
        return "differences are repaired (0) or shipped (1)";
    if (!wanted(c))
        return {};
    if (is_standby && (!text_of(c.replicate_to).empty() || c.replicable != 0))
        return "a device is a primary (replicate_to) or a standby (standby_listen), not both";
    if (text_of(c.vm_id).empty())
        return "replication needs the VM's id (vm_id), the same on both sides";
    if (text_of(c.vm_id).size() > mirror::max_text_bytes)
        return "the VM's id is too long";
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
    if (text_of(config.standby_listen).empty())
        return primary_endpoint::create(config, device, core, error);
    return make_standby_endpoint(config, device, core, error);
}

} // namespace kagemusha::ffi
