// SPDX-License-Identifier: GPL-2.0-or-later
//
// `kagemusha-k8s kubevirt-hook`: a hook sidecar of KubeVirt (API v1alpha3), until virt-launcher or a signal ends it.
#pragma once

#include "kubernetes/kubevirt/domain_hook.hpp"

#include <string>

namespace kagemusha::kubernetes {

struct kubevirt_options {
    hook_options hook;
    std::string folder = "/var/run/kubevirt-hooks"; // shared with virt-launcher
};

// The program's exit status.
int run_kubevirt_hook(const kubevirt_options& options);

} // namespace kagemusha::kubernetes
