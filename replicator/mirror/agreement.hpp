// SPDX-License-Identifier: GPL-2.0-or-later
// agreement: whether two ends that greeted each other fit together. The same rules and the same sentences on
// both sides, so that an operator reads the reason whichever log he looks at.
#ifndef KAGEMUSHA_MIRROR_AGREEMENT_HPP
#define KAGEMUSHA_MIRROR_AGREEMENT_HPP

#include <string>

#include "mirror/message.hpp"

namespace kagemusha::mirror {

inline constexpr const char* compression_capability = "zstd";

// Empty: they fit. Else why not, as a sentence.
std::string disagreement(const hello& mine, const hello& theirs);

bool has_capability(const hello& h, const std::string& name);

} // namespace kagemusha::mirror

#endif
