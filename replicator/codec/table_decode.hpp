// SPDX-License-Identifier: GPL-2.0-or-later
// table_decode: the decoder that comes from the command table (codec/commands). Until it replaces the one
// written by hand (codec/decode.hpp), both give the same ops and the same errors for every stream:
// tests/fuzz/agreement.hpp compares them.
#ifndef KAGEMUSHA_CODEC_TABLE_DECODE_HPP
#define KAGEMUSHA_CODEC_TABLE_DECODE_HPP

#include "codec/decode.hpp"

namespace kagemusha::codec {

class table_decoder : public stream_decoder {
public:
    using stream_decoder::stream_decoder;
    decode_status next(op& out);
};

} // namespace kagemusha::codec

#endif
