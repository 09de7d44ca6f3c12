// SPDX-License-Identifier: GPL-2.0-or-later
//
// See inventory.hpp.
#include "kubernetes/core/inventory.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kagemusha::kubernetes {

std::string known_gpu::trouble() const {
    if (!listed)
        return fmt::format("{} ({}) is gone: its driver does not list it any more", gpu.id, gpu.name);
    if (!arbiter)
        return fmt::format("{} ({}) has no share arbiter: kagemusha-gpu does not answer at its socket",
                           gpu.id, gpu.name);
    return {};
}

void inventory::looked(const std::optional<std::vector<found_gpu>>& listed) {
    failures_ = listed ? 0 : failures_ + 1;
    if (!listed && failures_ < failures_until_gone)
        return;
    bool changed = false;
    for (auto& known : gpus_) {
        const found_gpu* now = nullptr;
        if (listed)
            for (const auto& one : *listed)
                if (one.id == known.gpu.id)
                    now = &one;
        changed |= known.listed != (now != nullptr) || (now && *now != known.gpu);
        known.listed = now != nullptr;
        if (now)
            known.gpu = *now;
    }
    left_out_ = 0;
    if (listed)
        for (const auto& one : *listed) {
            if (find(one.id))
                continue;
            if (!make_room()) {
                ++left_out_;
                continue;
            }
            gpus_.push_back({one, true, false});
            changed = true;
        }
    if (changed)
        ++version_;
}

bool inventory::make_room() {
    if (gpus_.size() < max_gpus)
        return true;
    const auto gone = std::ranges::find_if(gpus_, [](const known_gpu& known) { return !known.listed; });
    if (gone == gpus_.end())
        return false;
    gpus_.erase(gone);
    return true;
}

void inventory::asked(std::string_view id, bool answers) {
    for (auto& known : gpus_)
        if (known.gpu.id == id && known.arbiter != answers) {
            known.arbiter = answers;
            ++version_;
        }
}

const known_gpu* inventory::find(std::string_view id) const {
    const auto at = std::ranges::find_if(gpus_, [&](const known_gpu& known) { return known.gpu.id == id; });
    return at == gpus_.end() ? nullptr : &*at;
}

} // namespace kagemusha::kubernetes
