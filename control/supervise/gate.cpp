// SPDX-License-Identifier: GPL-2.0-or-later
//
// See gate.hpp.
#include "control/supervise/gate.hpp"

#include "control/base/process.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

constexpr char magic_text[] = "KGMGATE1";
constexpr std::uint64_t ns_per_ms = 1'000'000;

} // namespace

std::unique_ptr<gate> gate::make(const std::string& path, std::string& error) {
    static_assert(sizeof(page) == 64);
    ::unlink(path.c_str());
    const unique_fd fd(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    void* mapped = MAP_FAILED;
    if (fd && ::ftruncate(fd.get(), sizeof(page)) == 0)
        mapped = ::mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (mapped == MAP_FAILED) {
        error = fmt::format("cannot make {}: {}", path, std::strerror(errno));
        return nullptr;
    }
    auto* const p = static_cast<page*>(mapped);
    std::memcpy(&p->magic, magic_text, sizeof p->magic);
    return std::unique_ptr<gate>(new gate(path, p));
}

gate::~gate() {
    page_->until_ns.store(0);
    ::munmap(page_, sizeof(page));
    ::unlink(path_.c_str());
}

void gate::set_until_ms(std::uint64_t until_ms) {
    page_->until_ns.store(until_ms > UINT64_MAX / ns_per_ms ? UINT64_MAX : until_ms * ns_per_ms);
}

} // namespace kagemusha::control
