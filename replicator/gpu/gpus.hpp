// SPDX-License-Identifier: GPL-2.0-or-later
// gpus: the list of the host's GPUs as a person reads it, for `kage gpus` and kagemusha-gpus.
#pragma once

#include <string>

#include "gpu/backend.hpp"

namespace kagemusha::gpu {

// A table with a heading, one line per GPU, the default one marked.
std::string gpu_table(const gpu_list& list);

// {"gpus": [{…}], "error": "…"}; error only where there are none.
std::string gpu_json(const gpu_list& list);

} // namespace kagemusha::gpu
