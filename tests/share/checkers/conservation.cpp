// SPDX-License-Identifier: GPL-2.0-or-later
// conservation: the GPU does not stand still while a VM waits that may have it, but for the messages of a
// switch: a wish, a grant to one that does not need it any more, its return, the next grant.
#include "share/checkers/bounds.hpp"

namespace kagemusha::share::sim {

std::string check_conservation(const options& o, const record& r) {
    const std::uint64_t bound = 8 * (o.max_latency_ns + 1 * us) + max_gap_ns;
    if (r.longest_idle_ns > bound)
        return "the GPU stood still for " + in_ms(r.longest_idle_ns) +
               " ms while a VM waited for it; a switch and a gap take at most " + in_ms(bound);
    return "";
}

} // namespace kagemusha::share::sim
