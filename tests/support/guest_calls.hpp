// SPDX-License-Identifier: GPL-2.0-or-later
// guest_calls: what a guest's driver asks of its device, checked: objects are made, transfers and markers
// waited for. Whoever plays a guest (guest, mirrored_pair) says how a request is handed in and waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "codec/encode.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::test {

class guest_calls {
public:
    std::uint64_t new_id() { return next_id_++; }

    virtual std::uint64_t submit(const codec::stream_builder& b) = 0; // its token
    virtual bool answered(std::uint64_t token) const = 0;
    virtual vgpu_response answer(std::uint64_t token) const = 0;
    virtual bool completed(std::uint64_t event) const = 0;
    virtual std::int32_t status_of(std::uint64_t event) const = 0;

    vgpu_response run(const codec::stream_builder& b); // waits for the answer
    void ok(const codec::stream_builder& b);           // a call that must succeed
    std::int32_t complete(std::uint64_t event);        // waits for it

    std::uint64_t context();
    std::uint64_t queue(std::uint64_t context, std::uint64_t properties = 0);
    std::uint64_t buffer(std::uint64_t context, std::uint64_t bytes, std::uint64_t flags = 1);
    std::uint64_t kernel(std::uint64_t context, std::string_view source, std::string_view name);
    // Between a buffer and guest memory, waited for.
    void write(std::uint64_t queue, std::uint64_t buffer, std::uint64_t memory_offset, std::uint64_t bytes,
               std::uint64_t buffer_offset = 0);
    void read(std::uint64_t queue, std::uint64_t buffer, std::uint64_t memory_offset, std::uint64_t bytes);
    void finish(std::uint64_t queue);
    void destroy(vgpu_object_kind kind, std::uint64_t id);

protected:
    ~guest_calls() = default;
    // False, and the test has failed, when that takes too long.
    virtual bool wait_until(const std::function<bool()>& done, const char* what) = 0;

    std::uint64_t next_id_ = 1;
};

} // namespace kagemusha::test
