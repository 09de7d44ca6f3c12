// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/vm/takeover_queue.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace kagemusha::control {

namespace {

// Standbys of one host: share/core/limits.hpp has 32 VMs for a GPU, and hosts have several.
constexpr int most_pages = 256;

// Who looks whether the owner lives has the lock for a moment.
bool lock_page(int file) {
    for (int tries = 0; tries < 100; ++tries) {
        if (flock(file, LOCK_EX | LOCK_NB) == 0)
            return true;
        usleep(1000);
    }
    return false;
}

} // namespace

takeover_queue::takeover_queue(const std::string& directory, std::string name, std::uint32_t priority,
                               std::uint32_t heartbeat_ms, std::string& error)
    : directory_(directory + "/takeovers"), name_(std::move(name)), priority_(priority) {
    const auto path = directory_ + "/" + name_;
    if (mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
        error = "cannot make " + directory_ + ": " + std::strerror(errno);
        return;
    }
    file_ = unique_fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file_ || !lock_page(file_.get()) || ftruncate(file_.get(), sizeof(page)) != 0) {
        error = "cannot use " + path + ": " + std::strerror(errno);
        file_.reset();
        return;
    }
    void* const memory = mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (memory == MAP_FAILED) {
        error = "cannot map " + path + ": " + std::strerror(errno);
        file_.reset();
        return;
    }
    page_ = static_cast<page*>(memory);
    page_->phase = static_cast<std::uint64_t>(ha::takeover_phase::none);
    page_->heard_ns = 0;
    page_->heartbeat_ns = std::uint64_t{heartbeat_ms} * 1'000'000;
    page_->priority = priority;
    page_->magic = page_magic; // last: now it counts
}

takeover_queue::~takeover_queue() {
    if (page_ == nullptr)
        return;
    page_->magic = 0;
    unlink((directory_ + "/" + name_).c_str());
    munmap(page_, sizeof(page));
}

void takeover_queue::heard(std::uint64_t ns) {
    if (page_ != nullptr)
        page_->heard_ns = ns;
}

void takeover_queue::enter(ha::takeover_phase phase) {
    if (page_ != nullptr)
        page_->phase = static_cast<std::uint64_t>(phase);
}

ha::takeover_turn takeover_queue::turn(std::uint64_t decided_ns, std::uint64_t now_ns) const {
    if (page_ == nullptr || priority_ >= ha::most_takeover_priority)
        return {};
    return ha::turn_of(priority_, decided_ns, others(), now_ns);
}

std::vector<ha::other_standby> takeover_queue::others() const {
    std::vector<ha::other_standby> out;
    std::error_code error;
    int looked = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
        const auto name = entry.path().filename().string();
        if (name == name_)
            continue;
        if (++looked > most_pages)
            break;
        const unique_fd file(open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
        struct stat about{};
        // A lock that can be had is nobody's: its owner died.
        if (!file || fstat(file.get(), &about) != 0 || about.st_size < static_cast<off_t>(sizeof(page)) ||
            flock(file.get(), LOCK_SH | LOCK_NB) == 0)
            continue;
        void* const memory = mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
        if (memory == MAP_FAILED)
            continue;
        const page& theirs = *static_cast<const page*>(memory);
        const std::uint64_t phase = theirs.phase;
        if (theirs.magic == page_magic && phase <= static_cast<std::uint64_t>(ha::takeover_phase::runs))
            out.push_back({name,
                           static_cast<std::uint32_t>(
                               std::min<std::uint64_t>(theirs.priority, ha::most_takeover_priority)),
                           static_cast<ha::takeover_phase>(phase), theirs.heard_ns, theirs.heartbeat_ns});
        munmap(memory, sizeof(page));
    }
    return out;
}

} // namespace kagemusha::control
