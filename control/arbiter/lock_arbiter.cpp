// SPDX-License-Identifier: GPL-2.0-or-later
//
// See lock_arbiter.hpp.
#include "control/arbiter/lock_arbiter.hpp"

#include "control/base/host_clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

using ha::arbiter_answer;
using ha::arbiter_request;

constexpr std::uint64_t magic = 0x314b434f4c4d474b; // "KGMLOCK1"
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// term (22 bits) │ paired (1) │ end of the lease in ms (41 bits: 69 years)
constexpr unsigned lease_bits = 41, term_bits = 22;
constexpr std::uint64_t left = UINT64_MAX; // the page's users have another file; no record is like that

struct record {
    std::uint64_t term, until_ms;
    bool paired;
};

record unpack(std::uint64_t word) {
    return {word >> (lease_bits + 1), word & ((std::uint64_t{1} << lease_bits) - 1),
            ((word >> lease_bits) & 1) != 0};
}

std::uint64_t pack(const record& r) {
    return r.term << (lease_bits + 1) | std::uint64_t{r.paired} << lease_bits | r.until_ms;
}

// Of boots that are over.
void remove_old(const std::string& path, const std::string& present) {
    std::error_code failed;
    const auto prefix = fs::path(path).filename().string() + ".";
    for (fs::directory_iterator entry(fs::path(path).parent_path(), failed), end; !failed && entry != end;
         entry.increment(failed)) {
        const auto name = entry->path().filename().string();
        if (name.starts_with(prefix) && name.size() == prefix.size() + 36 &&
            entry->path().string() != present)
            ::unlink(entry->path().c_str());
    }
}

} // namespace

std::unique_ptr<lock_arbiter> lock_arbiter::open(const std::string& path, std::uint32_t lease_ms,
                                                 const arbiter_identity& identity, arbiter_answers answer,
                                                 std::string& error) {
    const auto id = boot_id();
    if (id.size() != 36) {
        error = "this system does not say which boot it is (/proc/sys/kernel/random/boot_id)";
        return nullptr;
    }
    const auto file = path + "." + id;
    const auto mapped = map(file, error);
    if (!mapped.at)
        return nullptr;
    remove_old(path, file);
    return std::unique_ptr<lock_arbiter>(
        new lock_arbiter(file, mapped, lease_ms, identity, std::move(answer)));
}

lock_arbiter::mapping lock_arbiter::map(const std::string& file, std::string& error) {
    const unique_fd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    struct stat found{};
    if (!fd || ::flock(fd.get(), LOCK_EX) != 0 || ::fstat(fd.get(), &found) != 0 ||
        (found.st_size == 0 && ::ftruncate(fd.get(), sizeof(page)) != 0)) {
        error = fmt::format("cannot open the arbiter's file {}: {}", file, std::strerror(errno));
        return {};
    }
    if ((found.st_size != 0 && found.st_size != sizeof(page)) || found.st_uid != ::geteuid()) {
        error = fmt::format("{} is no arbiter's file of this user", file);
        return {};
    }
    void* const mapped = ::mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (mapped == MAP_FAILED) {
        error = fmt::format("cannot map the arbiter's file {}: {}", file, std::strerror(errno));
        return {};
    }
    auto* const p = static_cast<page*>(mapped);
    if (found.st_size == 0)
        p->magic = magic;
    if (p->magic != magic) {
        error = fmt::format("{} is no arbiter's file", file);
        ::munmap(mapped, sizeof(page));
        return {};
    }
    ::flock(fd.get(), LOCK_UN); // the mapping keeps the file open, and with it the lock
    return {p, found.st_dev, found.st_ino};
}

bool lock_arbiter::is_unlinked() const {
    struct stat found{};
    if (::stat(file_.c_str(), &found) != 0)
        return errno == ENOENT;
    return found.st_dev != mapped_.device || found.st_ino != mapped_.inode;
}

std::string lock_arbiter::move_on() {
    page_->word.store(left);
    std::string error;
    const auto fresh = map(file_, error);
    if (!fresh.at)
        return error;
    ::munmap(page_, sizeof(page));
    mapped_ = fresh;
    page_ = fresh.at;
    return {};
}

lock_arbiter::~lock_arbiter() {
    ::munmap(page_, sizeof(page));
}

arbiter_answer lock_arbiter::decide(const arbiter_request& request, std::uint64_t now) {
    using kind = arbiter_request::kind;
    using verdict = arbiter_answer::verdict;
    auto word = page_->word.load();
    for (;;) {
        if (word == left || is_unlinked()) {
            if (auto why = move_on(); !why.empty())
                return {verdict::unreachable, request.number, 0, 0, std::move(why)};
            word = page_->word.load();
        }
        const record old = unpack(word);
        const bool free = now >= old.until_ms;
        record wanted = old;
        wanted.until_ms = now + lease_ms_;
        arbiter_answer answer{verdict::granted, request.number, 0, 0, {}};
        const auto refuse = [&](std::string why) {
            answer.what = verdict::refused;
            answer.why = std::move(why);
        };
        const auto other_term = [&] {
            refuse(fmt::format("term {} is over: {} has term {}", request.term,
                               std::string(page_->owner, ::strnlen(page_->owner, sizeof page_->owner)),
                               old.term));
        };
        const bool ours = identity_.owner.substr(0, sizeof page_->owner - 1) ==
                          std::string_view(page_->owner, ::strnlen(page_->owner, sizeof page_->owner));
        // Nobody has opened it since the former file was removed; or it was put back from a copy. A look
        // names a term that the record may not have yet.
        if ((old.term == 0 || (old.term < request.term && request.what != kind::look)) &&
            request.what != kind::open && request.what != kind::restore) {
            answer.what = verdict::gone;
            answer.why = old.term == 0 ? "the arbiter's file has no record of this VM any more"
                                       : fmt::format("the record in the arbiter's file is older than term {}",
                                                     request.term);
            return answer;
        }
        const auto held = [&] {
            answer.what = verdict::held;
            answer.until_ms = old.until_ms;
            answer.why = fmt::format("the primary's lease is valid for {} ms", old.until_ms - now);
        };
        switch (request.what) {
        case kind::open:
            if (!free)
                held();
            else if (old.paired && !request.anew)
                refuse("a standby holds the VM's last state and may take it over; if it is gone, start the "
                       "VM anew "
                       "with --force-new");
            wanted.term = old.term + 1;
            wanted.paired = false;
            break;
        case kind::claim:
            if (old.term != request.term)
                other_term();
            else if (!old.paired && !(request.proven_dead && request.unreleased))
                refuse("the primary goes on alone: what this standby has is out of date");
            else if (!free && !request.proven_dead)
                held();
            wanted.term = old.term + 1;
            wanted.paired = false;
            break;
        case kind::pair:
            if (old.term != request.term && !(old.term == request.new_term && old.paired))
                other_term();
            wanted.term = request.new_term;
            wanted.paired = true;
            break;
        case kind::look:
            answer.term = old.term;
            answer.paired = old.paired;
            answer.ours = ours;
            return answer;
        case kind::restore:
            if (old.term > request.term ||
                (old.term == request.term && (!ours || old.paired != request.paired)))
                other_term();
            else if (old.term < request.term && !free)
                held();
            wanted.term = request.term;
            wanted.paired = request.paired;
            break;
        case kind::renew:
        case kind::alone:
        case kind::release:
            if (old.term != request.term)
                other_term();
            if (request.what == kind::alone || request.alone)
                wanted.paired = false;
            if (request.what == kind::release)
                wanted.until_ms = std::min(old.until_ms, now);
            break;
        }
        if (wanted.term >= std::uint64_t{1} << term_bits)
            refuse("the arbiter's terms are used up: remove its file while no VM runs");
        if (answer.what != verdict::granted)
            return answer;
        if (!page_->word.compare_exchange_weak(word, pack(wanted)))
            continue; // somebody was faster: look again
        if (wanted.term != old.term) {
            std::memset(page_->owner, 0, sizeof page_->owner);
            identity_.owner.copy(page_->owner, sizeof page_->owner - 1);
        }
        answer.term = wanted.term;
        answer.until_ms = wanted.until_ms;
        return answer;
    }
}

void lock_arbiter::ask(const arbiter_request& request) {
    answer_(decide(request, boot_ms()));
}

} // namespace kagemusha::control
