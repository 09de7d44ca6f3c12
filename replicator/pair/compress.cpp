// SPDX-License-Identifier: GPL-2.0-or-later
#include "pair/compress.hpp"

#include <zstd.h>

#include <memory>
#include <variant>
#include <vector>

namespace kagemusha::pair {

namespace {

// The fastest: a link that needs more is too slow for replication.
constexpr int level = 1;

struct context_end {
    void operator()(ZSTD_CCtx* c) const { ZSTD_freeCCtx(c); }
    void operator()(ZSTD_DCtx* c) const { ZSTD_freeDCtx(c); }
};

} // namespace

void compress(outgoing& o) {
    auto& message = std::get<mirror::content>(o.what);
    thread_local const std::unique_ptr<ZSTD_CCtx, context_end> context(ZSTD_createCCtx());
    if (!context)
        return; // as it is, then
    const std::size_t most = message.bytes - message.bytes / 8;
    auto out = std::make_shared<std::vector<std::byte>>(most);
    ZSTD_CCtx_reset(context.get(), ZSTD_reset_session_and_parameters);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setPledgedSrcSize(context.get(), message.bytes);
    ZSTD_outBuffer to{out->data(), out->size(), 0};
    for (std::size_t i = 0; i < o.payload.size(); ++i) {
        const bool last = i + 1 == o.payload.size();
        ZSTD_inBuffer from{o.payload[i].data(), o.payload[i].size(), 0};
        for (;;) {
            const std::size_t left =
                ZSTD_compressStream2(context.get(), &to, &from, last ? ZSTD_e_end : ZSTD_e_continue);
            if (ZSTD_isError(left))
                return;
            if (last ? left == 0 : from.pos == from.size)
                break;
            if (to.pos == to.size)
                return; // does not pay
        }
    }
    out->resize(to.pos);
    message.compressed_bytes = to.pos;
    o.payload = {std::span<const std::byte>(*out)};
    o.keep = std::move(out);
}

bool decompress(std::span<const std::byte> from, std::span<std::byte> to) {
    thread_local const std::unique_ptr<ZSTD_DCtx, context_end> context(ZSTD_createDCtx());
    if (!context)
        return false;
    const std::size_t got =
        ZSTD_decompressDCtx(context.get(), to.data(), to.size(), from.data(), from.size());
    return !ZSTD_isError(got) && got == to.size();
}

} // namespace kagemusha::pair
