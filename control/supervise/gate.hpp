// SPDX-License-Identifier: GPL-2.0-or-later
//
// The gate of a VM's output: a page of memory shared with QEMU (its object filter-lease), in which the
// supervisor says until when packets may leave. QEMU looks at it before each one. A supervisor that is
// frozen, or dead, or has lost its lease, says nothing more, and the gate closes by itself.
//
//   offset  0  8 bytes  "KGMGATE1"
//           8  8 bytes  until when packets may leave: ns of CLOCK_BOOTTIME; 0: not at all
//          16           zero
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace kagemusha::control {

class gate {
public:
    // Null and a sentence in `error`. The file is replaced if it is there, and removed at the end.
    static std::unique_ptr<gate> make(const std::string& path, std::string& error);
    ~gate();
    gate(const gate&) = delete;
    gate& operator=(const gate&) = delete;

    void set_until_ms(std::uint64_t until_ms); // UINT64_MAX: always open
    const std::string& path() const { return path_; }

private:
    struct page {
        std::uint64_t magic;
        std::atomic<std::uint64_t> until_ns;
        std::uint8_t zero[48];
    };
    gate(std::string path, page* mapped) : path_(std::move(path)), page_(mapped) {}
    std::string path_;
    page* page_;
};

} // namespace kagemusha::control
