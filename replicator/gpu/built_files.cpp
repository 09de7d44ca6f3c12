// SPDX-License-Identifier: GPL-2.0-or-later
#include "gpu/built_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "proto/replication/built_commands.h"

namespace kagemusha::gpu {

namespace {

// Programs that a look goes through: of older ones everything has been taken long ago.
constexpr std::size_t recent_programs = 16;
// Entries of folders that one look reads: some 10 ms.
constexpr unsigned entries_per_look = 16384;
constexpr unsigned max_depth = 6;
// A folder that changed less than this before it was read may change again without a later time.
constexpr std::int64_t time_step_ns = 100'000'000;
constexpr std::size_t max_known = 65536;

constexpr std::size_t padded(std::size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

std::int64_t ns_of(const timespec& t) {
    return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

bool is_component(std::string_view c) {
    return !c.empty() && c.front() != '.' && c.size() <= 255 && std::all_of(c.begin(), c.end(), [](char x) {
        return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') || x == '_' ||
               x == '-' || x == '.';
    });
}

struct folder_end {
    void operator()(DIR* d) const { ::closedir(d); }
};

template <class F>
void each_entry(const std::string& path, F&& f) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    const std::unique_ptr<DIR, folder_end> folder(::fdopendir(fd));
    if (!folder) {
        ::close(fd);
        return;
    }
    while (const dirent* e = ::readdir(folder.get()))
        if (is_component(e->d_name) && !f(std::string(e->d_name), e->d_type))
            return;
}

// A file's content, or nothing if it is none or too large.
std::vector<std::byte> content_of(const std::string& path) {
    std::vector<std::byte> content;
    const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat s;
    if (fd >= 0 && ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size > 0 &&
        static_cast<std::uint64_t>(s.st_size) <= max_built_file_bytes) {
        content.resize(static_cast<std::size_t>(s.st_size));
        std::size_t got = 0;
        while (got < content.size()) {
            const ssize_t n = ::read(fd, content.data() + got, content.size() - got);
            if (n <= 0)
                break;
            got += static_cast<std::size_t>(n);
        }
        if (got != content.size())
            content.clear();
    }
    if (fd >= 0)
        ::close(fd);
    return content;
}

bool write_all(int fd, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd, bytes.data(), bytes.size());
        if (n <= 0)
            return false;
        bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return true;
}

} // namespace

bool is_built_name(std::string_view name) {
    if (name.size() > max_built_name_bytes || !(name.ends_with(".so") || name.ends_with(".bc")))
        return false;
    unsigned folders = 0;
    for (std::size_t slash = name.find('/'); slash != name.npos; slash = name.find('/')) {
        if (!is_component(name.substr(0, slash)))
            return false;
        name.remove_prefix(slash + 1);
        ++folders;
    }
    return folders >= 2 && folders <= max_depth && is_component(name);
}

bool next_built_file(std::span<const std::byte>& rest, std::string_view& name,
                     std::span<const std::byte>& content) {
    vgpu_built_file head;
    if (rest.size() < sizeof(head))
        return false;
    std::memcpy(&head, rest.data(), sizeof(head));
    if (head.name_bytes == 0 || head.name_bytes > max_built_name_bytes || head.content_bytes == 0 ||
        head.content_bytes > max_built_file_bytes)
        return false;
    const std::size_t name_room = padded(head.name_bytes), room = name_room + padded(head.content_bytes);
    if (rest.size() - sizeof(head) < room)
        return false;
    name = {reinterpret_cast<const char*>(rest.data() + sizeof(head)), head.name_bytes};
    content = rest.subspan(sizeof(head) + name_room, head.content_bytes);
    rest = rest.subspan(sizeof(head) + room);
    return true;
}

// ---- from the directory

void built_files::note(const std::string& name) {
    if (known_.size() < max_known && is_built_name(name) && known_.insert(name).second)
        to_take_.push_back(name);
}

void built_files::look_at(const std::string& folder, unsigned depth, unsigned& budget) {
    each_entry(directory_ + '/' + folder, [&](const std::string& entry, unsigned char type) {
        if (budget == 0)
            return false;
        --budget;
        const std::string name = folder + '/' + entry;
        if (type == DT_DIR && depth < max_depth)
            look_at(name, depth + 1, budget);
        else if (type == DT_REG)
            note(name);
        return true;
    });
}

// XX/HASH is a program: PoCL 3.1 and 6.
void built_files::look(bool everything) {
    unsigned budget = entries_per_look;
    each_entry(directory_, [&](const std::string& group, unsigned char type) {
        struct stat s;
        if (budget == 0 || type != DT_DIR || ::lstat((directory_ + '/' + group).c_str(), &s) != 0)
            return budget != 0;
        --budget;
        const std::int64_t changed = ns_of(s.st_mtim);
        const auto seen = groups_.find(group);
        if (seen != groups_.end() && changed + time_step_ns < seen->second)
            return true;
        timespec now;
        ::clock_gettime(CLOCK_REALTIME, &now);
        groups_[group] = ns_of(now);
        each_entry(directory_ + '/' + group, [&](const std::string& entry, unsigned char kind) {
            if (kind == DT_DIR && programs_.size() < max_known &&
                programs_.insert(group + '/' + entry).second)
                recent_.push_front(group + '/' + entry);
            return budget != 0 && --budget != 0;
        });
        return true;
    });
    if (everything)
        for (const std::string& program : programs_)
            look_at(program, 2, budget);
    else
        for (const std::string& program : recent_)
            look_at(program, 2, budget);
    if (recent_.size() > recent_programs)
        recent_.resize(recent_programs);
}

std::vector<std::byte> built_files::take(bool everything, std::size_t room) {
    vgpu_built head{};
    if (room < sizeof(head))
        return {};
    std::vector<std::byte> pack(sizeof(head));
    if (everything) {
        known_.clear();
        to_take_.clear();
    }
    if (!directory_.empty() && (everything || to_take_.empty()))
        look(everything);
    while (!to_take_.empty()) {
        const std::string& name = to_take_.front();
        const std::vector<std::byte> content = content_of(directory_ + '/' + name);
        const std::size_t bytes = sizeof(vgpu_built_file) + padded(name.size()) + padded(content.size());
        if (!content.empty() && bytes <= room - sizeof(head)) {
            if (bytes > room - pack.size()) {
                head.more = 1;
                break;
            }
            const vgpu_built_file file{static_cast<std::uint32_t>(name.size()),
                                       static_cast<std::uint32_t>(content.size())};
            const std::size_t at = pack.size();
            pack.resize(at + bytes);
            std::memcpy(pack.data() + at, &file, sizeof(file));
            std::memcpy(pack.data() + at + sizeof(file), name.data(), name.size());
            std::memcpy(pack.data() + at + sizeof(file) + padded(name.size()), content.data(),
                        content.size());
            ++head.files;
        }
        to_take_.pop_front();
    }
    head.bytes = pack.size();
    std::memcpy(pack.data(), &head, sizeof(head));
    return pack;
}

// ---- into it

std::size_t built_files::store(std::span<const std::byte> pack) {
    vgpu_built head;
    if (directory_.empty() || pack.size() < sizeof(head))
        return 0;
    std::span<const std::byte> rest = pack.subspan(sizeof(head));
    std::string_view name;
    std::span<const std::byte> content;
    std::size_t stored = 0;
    while (next_built_file(rest, name, content))
        if (is_built_name(name))
            stored += store_one(name, content);
    return stored;
}

// Folders count as files do, also those of a file that then could not be made.
bool built_files::store_one(std::string_view name, std::span<const std::byte> content) {
    if (content.size() > max_built_bytes - stored_bytes_)
        return false;
    const std::string path = directory_ + '/' + std::string(name);
    struct stat s;
    const auto parts = static_cast<std::size_t>(std::count(name.begin(), name.end(), '/')) + 1;
    if (parts > max_built_entries - stored_entries_ || ::lstat(path.c_str(), &s) == 0)
        return false;
    for (std::size_t slash = directory_.size() + 1; (slash = path.find('/', slash)) != path.npos; ++slash)
        if (::mkdir(path.substr(0, slash).c_str(), 0700) == 0)
            ++stored_entries_; // open() says whether it is there
    const std::string temporary = path + ".part";
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0700);
    if (fd < 0)
        return false;
    const bool written = write_all(fd, content);
    ::close(fd);
    if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) {
        ::unlink(temporary.c_str());
        return false;
    }
    if (known_.size() < max_known)
        known_.insert(std::string(name));
    ++stored_entries_;
    stored_bytes_ += content.size();
    return true;
}

} // namespace kagemusha::gpu
