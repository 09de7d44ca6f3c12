// SPDX-License-Identifier: GPL-2.0-or-later
// test_device: a core::device with its workers, and what it told its guest. A pair has two of them: the
// primary's takes requests of a guest, the standby's those of a log.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codec/encode.hpp"
#include "core/device.hpp"
#include "mirror/log/log_entry.hpp"

namespace kagemusha::mirror::testing {

using codec::guest_id;
using codec::stream_builder;

// Throws, which fails the test, also where GoogleTest's macros cannot return.
void require(bool condition, const std::string& what);

class test_device {
public:
    enum class role { primary, standby };

    test_device(role r, core::port_factory ports, const std::vector<std::uint64_t>& region_bytes);
    virtual ~test_device() = default;
    test_device(const test_device&) = delete;
    test_device& operator=(const test_device&) = delete;

    std::uint64_t submit(std::uint32_t file, const kagemusha_request& request); // its token
    std::uint64_t submit(std::uint32_t file, const stream_builder& b) {
        return submit(file, b.request(file, 0));
    }
    std::uint64_t open(std::uint32_t file);
    std::uint64_t close(std::uint32_t file);
    void dispatch();

    // Null: not answered yet.
    const vgpu_response* answer_of(std::uint64_t token) const;
    bool completed(std::uint64_t event) const { return events_.contains(event); }
    std::int32_t status(std::uint64_t event) const { return events_.at(event); }

    std::vector<std::vector<std::byte>> records;
    std::vector<std::string> lines;
    std::vector<std::string> failures; // of commands of the replication, and a lost file
    std::uint64_t next_token = 1;
    std::uint64_t now_ms = 1000; // the test moves it
    std::unique_ptr<core::device> device;

private:
    void on_record(const void* bytes, std::size_t length);

    const core::device::origin from_;
    std::map<std::uint64_t, std::vector<vgpu_response>> answers_; // by token
    std::map<std::uint64_t, std::int32_t> events_;
};

} // namespace kagemusha::mirror::testing
