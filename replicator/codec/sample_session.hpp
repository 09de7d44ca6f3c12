// SPDX-License-Identifier: GPL-2.0-or-later
// sample_session: one file's life from the first context to the last destroy, with every opcode in it, as a
// sequence of requests that are valid in this order. Unit tests corrupt it, the fuzz corpus starts from it.
#pragma once

#include <string>
#include <vector>

#include "codec/encode.hpp"

namespace kagemusha::codec {

struct sample_request {
    std::string name;
    stream_builder builder;
};

// Bytes of region 0 that the payloads of the session lie in.
inline constexpr std::uint64_t sample_region_bytes = 1u << 20;

std::vector<sample_request> sample_session();

} // namespace kagemusha::codec
