// SPDX-License-Identifier: GPL-2.0-or-later
//
// Kubernetes' quantities as far as whole numbers go: "25", "2Gi", "1500M". Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kagemusha::kubernetes {

// Nothing: no quantity, a fraction, or more than 64 bits hold.
std::optional<std::uint64_t> parse_quantity(std::string_view text);

} // namespace kagemusha::kubernetes
