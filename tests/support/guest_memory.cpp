// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/support/guest_memory.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kagemusha::test {

namespace {

constexpr std::uint64_t page_bytes = 4096;

// A fixed table, because a signal handler reads it.
guest_memory* memories[64];
struct sigaction previous;

} // namespace

bool stored_into(void* address) {
    return std::any_of(std::begin(memories), std::end(memories), [&](guest_memory* m) {
        return m && m->note_store(static_cast<const std::byte*>(address));
    });
}

namespace {

void on_fault(int signal, siginfo_t* info, void*) {
    if (!stored_into(info->si_addr))
        sigaction(signal, &previous, nullptr); // happens again, and ends as it would have
}

std::byte* map(int fd, std::uint64_t bytes) {
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED)
        std::abort();
    return static_cast<std::byte*>(at);
}

} // namespace

guest_memory::guest_memory(std::uint64_t bytes)
    : bytes_((bytes + page_bytes - 1) / page_bytes * page_bytes)
    , fd_(memfd_create("test-guest", MFD_CLOEXEC))
    , dirty_(bytes_ / page_bytes, 1) {
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes_)) != 0)
        std::abort();
    guest_ = map(fd_, bytes_);
    device_ = map(fd_, bytes_);
    static const bool installed = [] {
        struct sigaction action{};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO;
        return sigaction(SIGSEGV, &action, &previous) == 0;
    }();
    const auto slot = std::find(std::begin(memories), std::end(memories), nullptr);
    if (!installed || slot == std::end(memories))
        std::abort();
    *slot = this;
}

guest_memory::~guest_memory() {
    *std::find(std::begin(memories), std::end(memories), this) = nullptr;
    munmap(guest_, bytes_);
    munmap(device_, bytes_);
    close(fd_);
}

bool guest_memory::note_store(const std::byte* at) {
    if (at < guest_ || at >= guest_ + bytes_)
        return false;
    const std::uint64_t page = static_cast<std::uint64_t>(at - guest_) / page_bytes;
    if (dirty_[page])
        return false; // no store into protected memory
    dirty_[page] = 1;
    return mprotect(guest_ + page * page_bytes, page_bytes, PROT_READ | PROT_WRITE) == 0;
}

void guest_memory::mark(std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t first = offset / page_bytes, end = (offset + bytes + page_bytes - 1) / page_bytes;
    for (std::uint64_t page = first; page < end; ++page) {
        if (!dirty_.at(page)) {
            dirty_[page] = 1;
            mprotect(guest_ + page * page_bytes, page_bytes, PROT_READ | PROT_WRITE);
        }
    }
}

void guest_memory::send(std::vector<std::byte>& copy) {
    copy.resize(bytes_);
    for (std::uint64_t page = 0; page < dirty_.size(); ++page)
        if (dirty_[page])
            std::memcpy(copy.data() + page * page_bytes, device_ + page * page_bytes, page_bytes);
    std::fill(dirty_.begin(), dirty_.end(), 0);
    mprotect(guest_, bytes_, PROT_READ);
}

void guest_memory::load(const std::vector<std::byte>& copy) {
    std::memcpy(device_, copy.data(), bytes_);
    std::fill(dirty_.begin(), dirty_.end(), 0);
    mprotect(guest_, bytes_, PROT_READ);
}

} // namespace kagemusha::test
