// SPDX-License-Identifier: GPL-2.0-or-later
// op_rounding: the rounding modes of PTX (.rn, .rz, .rm, .rp), as the two low bits of instruction::option.
// Files that use it are compiled with -frounding-math.
#pragma once

#include <cfenv>
#include <cstdint>

namespace kagemusha::machine {

// The calling thread rounds as `option` says for as long as this lives, then to the nearest again. What is
// computed meanwhile must be read and written meanwhile, too: the compiler may move arithmetic, not memory.
class rounding {
public:
    explicit rounding(std::uint8_t option) : mode_(modes[option & mode_bits]) {
        if (mode_ != FE_TONEAREST)
            std::fesetround(mode_);
    }
    ~rounding() {
        if (mode_ != FE_TONEAREST)
            std::fesetround(FE_TONEAREST);
    }
    rounding(const rounding&) = delete;
    rounding& operator=(const rounding&) = delete;

private:
    static constexpr std::uint8_t mode_bits = 3;
    static constexpr int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    int mode_;
};

} // namespace kagemusha::machine
