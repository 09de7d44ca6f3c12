// SPDX-License-Identifier: GPL-2.0-or-later
//
// See image_mark.hpp.
#include "control/vm/image_mark.hpp"

#include "control/base/process.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

constexpr std::size_t slot_bytes = 4096, slots = 2;
constexpr std::string_view head = "kagemusha-disk-mark ";

std::string file_of(const std::string& image) {
    return image + ".kagemusha";
}

std::string failed(const char* what, const std::string& file) {
    return fmt::format("cannot {} {}: {}", what, file, std::strerror(errno));
}

// CRC-32 as in IEEE 802.3.
std::uint32_t crc32_of(std::string_view text) {
    std::uint32_t crc = 0xffffffff;
    for (const char c : text) {
        crc ^= static_cast<unsigned char>(c);
        for (int bit = 0; bit < 8; ++bit)
            crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
    }
    return ~crc;
}

struct slot {
    std::uint64_t count = 0;
    ha::disk_mark mark;
};

std::string text_of(const slot& s) {
    const auto body = fmt::format("{} {}", s.count, ha::to_text(s.mark));
    const auto space = body.find(' ');
    auto text = fmt::format("{}{} {:08x}{}\n", head, s.count, crc32_of(body), body.substr(space));
    text.resize(slot_bytes, '\n');
    return text;
}

std::optional<slot> parse_slot(std::string_view text) {
    text = text.substr(0, text.find('\n'));
    if (!text.starts_with(head))
        return std::nullopt;
    text.remove_prefix(head.size());
    slot s;
    const auto [after_count, e1] = std::from_chars(text.data(), text.data() + text.size(), s.count);
    if (e1 != std::errc())
        return std::nullopt;
    const std::string count(text.data(), after_count);
    text.remove_prefix(count.size());
    std::uint32_t crc = 0;
    if (text.size() < 10 || text[0] != ' ' || text[9] != ' ' ||
        std::from_chars(text.data() + 1, text.data() + 9, crc, 16).ptr != text.data() + 9)
        return std::nullopt;
    const auto mark = text.substr(10);
    auto parsed = ha::parse_disk_mark(mark);
    if (!parsed || crc32_of(fmt::format("{} {}", count, mark)) != crc)
        return std::nullopt;
    s.mark = std::move(*parsed);
    return s;
}

struct contents {
    bool exists = false;
    bool has_slots = false; // both have room in the file
    std::optional<slot> newest;
    std::size_t in = 0; // which one that is
};

// Nothing: it can't be read, errno says why. EBADMSG: it is no mark.
std::optional<contents> read_file(const std::string& file) {
    const unique_fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    contents out;
    if (!fd && errno == ENOENT)
        return out;
    std::array<char, slots * slot_bytes> bytes{};
    const auto got = fd ? ::pread(fd.get(), bytes.data(), bytes.size(), 0) : -1;
    if (got < 0)
        return std::nullopt;
    out.exists = true;
    out.has_slots = got == static_cast<ssize_t>(bytes.size());
    const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
    for (std::size_t i = 0; out.has_slots && i < slots; ++i)
        if (auto s = parse_slot(text.substr(i * slot_bytes, slot_bytes));
            s && (!out.newest || s->count > out.newest->count)) {
            out.newest = std::move(s);
            out.in = i;
        }
    if (!out.newest && text.starts_with("copy: "))
        out.newest = slot{0, {ha::disk_state::copy, {}}};
    if (!out.newest && text.starts_with("protected: "))
        out.newest = slot{0, {ha::disk_state::protected_, {}}};
    if (!out.newest) {
        errno = EBADMSG;
        return std::nullopt;
    }
    return out;
}

bool write_all(int fd, std::string_view text, std::size_t at) {
    while (!text.empty()) {
        const auto n = ::pwrite(fd, text.data(), text.size(), static_cast<off_t>(at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += static_cast<std::size_t>(n);
        text.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
}

// So that a new file survives the host, too.
bool sync_directory_of(const std::string& file) {
    const auto parent = std::filesystem::path(file).parent_path();
    const unique_fd fd(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return fd && ::fsync(fd.get()) == 0;
}

bool make_file(const std::string& file, const slot& s) {
    const auto draft = file + ".new";
    {
        const unique_fd fd(
            ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
        const auto text = text_of(s);
        if (!fd || !write_all(fd.get(), text, 0) || !write_all(fd.get(), text, slot_bytes) ||
            ::fsync(fd.get()) != 0)
            return false;
    }
    return ::rename(draft.c_str(), file.c_str()) == 0 && sync_directory_of(file);
}

std::string write_one(const std::string& file, const ha::disk_mark& mark) {
    const auto old = read_file(file);
    // What can't be read is replaced: a person has said what the image is, or it is overwritten.
    if (!old && errno != EBADMSG)
        return failed("read", file);
    if (!old || !old->has_slots)
        return make_file(file, {1, mark}) ? std::string() : failed("write", file);
    const unique_fd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd || !write_all(fd.get(), text_of({old->newest->count + 1, mark}), (1 - old->in) * slot_bytes) ||
        ::fdatasync(fd.get()) != 0)
        return failed("write", file);
    return {};
}

} // namespace

ha::disk_mark read_marks(const std::vector<std::string>& images, std::string& error) {
    std::vector<ha::disk_mark> marks;
    for (const auto& image : images) {
        const auto file = file_of(image);
        const auto found = read_file(file);
        if (!found) {
            error =
                errno == EBADMSG
                    ? fmt::format("{} is no mark of a disk image that can be read. It says which host has "
                                  "the newest disks; remove it if {} is what is wanted",
                                  file, image)
                    : failed("read", file);
            return {};
        }
        if (found->newest)
            marks.push_back(found->newest->mark);
    }
    return ha::least(marks);
}

std::string flush_images(const std::vector<std::string>& images) {
    for (const auto& image : images) {
        const unique_fd fd(::open(image.c_str(), O_RDONLY | O_CLOEXEC));
        if (!fd || ::fsync(fd.get()) != 0)
            return failed("flush", image);
    }
    return {};
}

std::string write_marks(const std::vector<std::string>& images, const ha::disk_mark& mark) {
    for (const auto& image : images)
        if (auto why = write_one(file_of(image), mark); !why.empty())
            return why;
    return {};
}

} // namespace kagemusha::control
