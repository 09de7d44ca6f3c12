// SPDX-License-Identifier: GPL-2.0-or-later
// box_transfer: what the ways of a transfer share (opencl_transfer, opencl_pinned): the box that moves, and what is
// left to do when the GPU is done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/opencl/opencl_device.hpp"

namespace kagemusha::gpu {

// Guest memory has `shape` with pitches `host` and begins at the payload's first byte.
struct opencl_device::box_transfer {
    bool write;
    opencl_memory& memory;
    const payload_ptr& data;
    box_shape shape;
    box_pitch host;
    // Buffers: where the box lies in it.
    std::uint64_t offset = 0;
    box_pitch buffer = {};
    // As the rect and image functions of OpenCL take it; unused for linear transfers.
    std::size_t origin[3] = {};
    std::size_t region[3] = {};

    bool image() const { return memory.type != CL_MEM_OBJECT_BUFFER; }
    bool linear() const { return !image() && shape.rows == 1 && shape.slices == 1; }
    box_pitch tight() const { return {shape.row_bytes, shape.row_bytes * shape.rows}; }
};

// Everything that must stay until the native commands are done, and the scattering of staged reads.
class opencl_device::staged_rest final : public transfer_rest {
public:
    struct piece {
        std::unique_ptr<staging> memory;
        box_shape shape;
        box_pitch host;
        std::uint64_t offset; // in the payload
    };

    staged_rest(payload_ptr data, bool write, const transfer_counts& counts)
        : data_(std::move(data)), write_(write), reading_(write ? nullptr : counts.reads) {}

    std::int32_t finish(std::int32_t status) override {
        for (const auto& event : parts)
            if (const std::int32_t part_status = event->poll(); status >= 0 && part_status < 0)
                status = part_status;
        if (write_ || status < 0)
            return status;
        for (; scattered_ < pieces.size(); ++scattered_)
            scatter(pieces[scattered_]);
        return status;
    }

    bool scatters() const override { return !write_ && !pieces.empty(); }

    bool advance() override {
        if (write_ || !piece_for_each_part)
            return false;
        const std::size_t before = scattered_, most = std::min(parts.size(), pieces.size());
        for (; scattered_ < most && parts[scattered_]->poll() == CL_COMPLETE; ++scattered_) {
            scatter(pieces[scattered_]);
            pieces[scattered_].memory.reset();
        }
        return scattered_ != before;
    }

    std::vector<piece> pieces;
    // The native commands before the last one. When that is done they are, or have failed. Somebody has to
    // hold their events until then: see opencl_device::holds_events_.
    std::vector<std::unique_ptr<opencl_event>> parts;
    bool piece_for_each_part = false; // in their order: a piece is there when its native command is done

private:
    void scatter(const piece& p) const {
        if (p.shape.rows == 1 && p.shape.slices == 1) {
            data_->write(p.offset, p.memory->data(), p.shape.row_bytes);
            return;
        }
        const box_pitch tight{p.shape.row_bytes, p.shape.row_bytes * p.shape.rows};
        data_->write_box(p.shape, p.host, p.memory->data(), tight, p.offset);
    }

    payload_ptr data_;
    bool write_;
    counted reading_; // until its bytes are in guest memory
    std::size_t scattered_ = 0;
};

} // namespace kagemusha::gpu
