// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kage metrics`: what `kage status` tells, for Prometheus. The VMs are asked when Prometheus asks.
#pragma once

#include "control/share/share_status.hpp"
#include "control/status/replication_status.hpp"
#include "control/status/status.hpp"

#include <string>
#include <vector>

namespace prometheus {
struct MetricFamily; // NOLINT(readability-identifier-naming): its name is not ours
}

namespace kagemusha::control {

// Pure: one family per figure, one metric per VM and device. Units are in the names, as Prometheus wants
// them.
std::vector<prometheus::MetricFamily> metric_families(const std::vector<vm_reading>& vms,
                                                      const std::vector<shared_gpu>& gpus = {});

// Serves http://LISTEN/metrics until a signal ends it. Exit status of the tool.
int run_metrics(const std::string& listen, const status_options& options);

} // namespace kagemusha::control
