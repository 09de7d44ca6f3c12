// SPDX-License-Identifier: GPL-2.0-or-later
// guest_memory: memory of a guest as a VM has it: with a dirty log that sees what the guest's processors
// store, and nothing of what others write through mappings of their own. A checkpoint has the pages that the
// log has; so what the device forgot to report as written is missing from it, as in a real VM.
//
// Two mappings of one file: the guest's, write-protected after each look at the log until it is stored into
// (SIGSEGV), and the device's, where nobody looks.
//
// Threads: the guest's mapping is written by one thread. Signals: the first object installs a handler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kagemusha::test {

class guest_memory {
public:
    explicit guest_memory(std::uint64_t bytes);
    ~guest_memory();
    guest_memory(const guest_memory&) = delete;
    guest_memory& operator=(const guest_memory&) = delete;

    std::uint64_t bytes() const { return bytes_; }
    int fd() const { return fd_; }
    std::byte* guest() const { return guest_; }   // as the guest's processors see it
    std::byte* device() const { return device_; } // as the device and its workers do

    // The device's report: QEMU's address_space_unmap().
    void mark(std::uint64_t offset, std::uint64_t bytes);

    // The pages that are dirty since the last look (at first all are) go into `copy`, which has this length
    // or is empty.
    void send(std::vector<std::byte>& copy);
    // The VM goes on from this copy.
    void load(const std::vector<std::byte>& copy);

private:
    friend bool stored_into(void* address);
    bool note_store(const std::byte* at);

    const std::uint64_t bytes_;
    int fd_;
    std::byte* guest_;
    std::byte* device_;
    std::vector<char> dirty_; // by page
};

} // namespace kagemusha::test
