// SPDX-License-Identifier: GPL-2.0-or-later
// decode_by_hand: the decoder as it was before there was a table of commands, to compare the table's with. It
// knows the commands of stream version 4; who adds one to the table leaves it out of the comparison.
#ifndef KAGEMUSHA_TESTS_FUZZ_DECODE_BY_HAND_HPP
#define KAGEMUSHA_TESTS_FUZZ_DECODE_BY_HAND_HPP

#include "codec/decode.hpp"

namespace kagemusha::fuzz {

class hand_decoder : public codec::stream_decoder {
public:
    using stream_decoder::stream_decoder;
    codec::decode_status next(codec::op& out);
};

} // namespace kagemusha::fuzz

#endif
