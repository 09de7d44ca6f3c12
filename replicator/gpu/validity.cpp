// SPDX-License-Identifier: GPL-2.0-or-later
// validity: see validity.hpp.
#include "gpu/validity.hpp"

#include <utility>

namespace kagemusha::gpu {

namespace {

std::unique_ptr<validity_witness>& place() {
    static auto* const only = new std::unique_ptr<validity_witness>; // executors use it until _exit()
    return *only;
}

} // namespace

void use_validity_witness(std::unique_ptr<validity_witness> witness) {
    place() = std::move(witness);
}

validity_witness* the_validity_witness() {
    return place().get();
}

} // namespace kagemusha::gpu
