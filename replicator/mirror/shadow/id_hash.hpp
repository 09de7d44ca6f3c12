// SPDX-License-Identifier: GPL-2.0-or-later
// id_hash: a seeded hash of ids, for tables whose keys guests choose.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/op.hpp"

namespace kagemusha::mirror {

struct id_hash {
    std::uint64_t seed;
    std::size_t operator()(codec::guest_id id) const {
        std::uint64_t x = (id ^ seed) * 0x9e3779b97f4a7c15;
        x ^= x >> 32;
        return x * 0xd6e8feb86659fd93;
    }
};

} // namespace kagemusha::mirror
