// SPDX-License-Identifier: GPL-2.0-or-later
//
// See out_archive.hpp. The formats are ustar and GNU's, in which busybox and GNU tar write by themselves.
#include "control/run/out_archive.hpp"

#include "control/base/json_text.hpp"
#include "control/base/write_all.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

constexpr std::size_t block_bytes = 512;
constexpr std::size_t max_name_bytes = 4096, max_part_bytes = 255, max_parts = 64;

struct field {
    std::size_t at, bytes;
};
constexpr field name_field{0, 100}, mode_field{100, 8}, size_field{124, 12}, checksum_field{148, 8},
    type_field{156, 1}, magic_field{257, 6}, prefix_field{345, 155};

std::string_view raw(std::string_view block, field f) {
    return block.substr(f.at, f.bytes);
}

std::string text(std::string_view block, field f) {
    const auto all = raw(block, f);
    return std::string(all.substr(0, all.find('\0')));
}

// Octal digits; or, when the first bit is set, a big-endian number.
std::optional<std::uint64_t> number(std::string_view block, field f) {
    const auto digits = raw(block, f);
    std::uint64_t value = 0;
    if ((static_cast<unsigned char>(digits[0]) & 0x80) != 0) {
        if (static_cast<unsigned char>(digits[0]) != 0x80)
            return std::nullopt; // negative, or beyond all bounds
        for (const char c : digits.substr(1)) {
            if (value >> 56 != 0)
                return std::nullopt;
            value = value << 8 | static_cast<unsigned char>(c);
        }
        return value;
    }
    bool any = false;
    for (const char c : digits) {
        if (c == '\0' || c == ' ') {
            if (any)
                break;
            continue;
        }
        if (c < '0' || c > '7')
            return std::nullopt;
        value = value << 3 | static_cast<unsigned>(c - '0'); // 12 digits: 36 bits
        any = true;
    }
    return any ? std::optional(value) : std::nullopt;
}

bool right_checksum(std::string_view block) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < block.size(); ++i)
        sum += i >= checksum_field.at && i < checksum_field.at + checksum_field.bytes
                   ? static_cast<unsigned char>(' ')
                   : static_cast<unsigned char>(block[i]);
    return number(block, checksum_field) == sum;
}

std::uint64_t padding_of(std::uint64_t bytes) {
    return (block_bytes - bytes % block_bytes) % block_bytes;
}

// For a person: a hostile name must not reach the terminal as it is.
std::string shown(std::string_view name) {
    auto out = as_log_line(std::string(name.substr(0, 80)));
    return name.size() > 80 ? out + "…" : out;
}

std::string what_it_is(char type) {
    switch (type) {
    case '1':
        return "a hard link";
    case '2':
        return "a symbolic link";
    case '3':
    case '4':
        return "a device node";
    case '6':
        return "a named pipe";
    default:
        return type > ' ' && type < 0x7f ? fmt::format("of the kind '{}'", type) : "of no known kind";
    }
}

} // namespace

std::optional<std::vector<std::string>> out_name_parts(std::string_view name) {
    std::vector<std::string> parts;
    if (name.empty() || name.front() == '/' || name.size() > max_name_bytes ||
        std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }))
        return std::nullopt;
    while (!name.empty()) {
        const auto part = name.substr(0, name.find('/'));
        name.remove_prefix(std::min(name.size(), part.size() + 1));
        if (part.empty() || part == ".")
            continue;
        if (part == ".." || part.size() > max_part_bytes || parts.size() == max_parts)
            return std::nullopt;
        parts.emplace_back(part);
    }
    return parts;
}

out_archive::out_archive(const std::string& directory, const out_limits& limits) : limits_(limits) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    directory_ = unique_fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory_)
        fail(fmt::format("{} cannot be written: {}", directory, std::strerror(errno)));
}

out_archive::~out_archive() = default;

void out_archive::fail(std::string why) {
    if (problem_.empty())
        problem_ = std::move(why);
    state_ = state::ended;
    file_.reset();
}

void out_archive::feed(std::string_view bytes) {
    while (!bytes.empty() && state_ != state::ended) {
        if (state_ == state::header) {
            const auto part = bytes.substr(0, block_bytes - block_.size());
            block_ += part;
            bytes.remove_prefix(part.size());
            if (block_.size() == block_bytes)
                header();
            continue;
        }
        auto& left = state_ == state::padding ? padding_ : left_;
        const auto part = bytes.substr(0, std::min<std::uint64_t>(left, bytes.size()));
        if (state_ == state::long_name)
            block_ += part;
        else if (state_ == state::content && !write_all(file_.get(), part))
            return fail(fmt::format("a file cannot be written: {}", std::strerror(errno)));
        bytes.remove_prefix(part.size());
        left -= part.size();
        if (left == 0)
            content_ended();
    }
}

// Of an entry's bytes, or of its padding.
void out_archive::content_ended() {
    if (state_ != state::padding) {
        if (state_ == state::long_name)
            long_name_ = block_.substr(0, block_.find('\0'));
        file_.reset();
        state_ = state::padding;
    }
    if (padding_ == 0) {
        block_.clear();
        state_ = state::header;
    }
}

void out_archive::header() {
    const std::string block = std::move(block_);
    block_.clear();
    if (block.find_first_not_of('\0') == block.npos) {
        if (++zero_blocks_ == 2)
            state_ = state::ended; // what follows fills the last record
        return;
    }
    zero_blocks_ = 0;
    const auto bytes = number(block, size_field);
    const auto mode = number(block, mode_field);
    if (!right_checksum(block) || !bytes || !mode)
        return fail("it is no tar archive of the formats ustar or gnu");
    if (++entries_ > limits_.max_entries)
        return fail(fmt::format("it has more than {} entries", limits_.max_entries));
    std::string name = text(block, name_field);
    if (const auto prefix = text(block, prefix_field);
        raw(block, magic_field) == std::string_view("ustar\0", 6) && !prefix.empty())
        name = prefix + "/" + name;
    if (!long_name_.empty())
        name = std::exchange(long_name_, {});
    padding_ = padding_of(*bytes);
    entry(block[type_field.at], name, *bytes, static_cast<unsigned>(*mode & 0777));
}

void out_archive::entry(char type, const std::string& name, std::uint64_t bytes, unsigned mode) {
    left_ = bytes;
    if (type == 'L') {
        if (bytes > max_name_bytes)
            return fail("a name is too long");
        state_ = state::long_name;
        if (bytes == 0)
            content_ended();
        return;
    }
    const auto parts = out_name_parts(name);
    if (!parts)
        return fail(fmt::format("the name '{}' is refused: absolute, with '..', too long, or not printable",
                                shown(name)));
    if (type == '5' && bytes == 0) {
        if (!open_directory(*parts, parts->size()))
            return;
        return;
    }
    if (type != '0' && type != '\0' && type != '7')
        return fail(fmt::format("'{}' is {}, and only files and directories are taken", shown(name),
                                what_it_is(type)));
    if (bytes > limits_.max_bytes - bytes_)
        return fail(
            fmt::format("its files have more than {} MiB together (--out-max)", limits_.max_bytes >> 20));
    bytes_ += bytes;
    if (parts->empty() || !make_file(*parts, mode)) {
        if (problem_.empty())
            fail(fmt::format("'{}' cannot be made: {}", shown(name), std::strerror(errno)));
        return;
    }
    state_ = state::content;
    if (bytes == 0)
        content_ended();
}

// Nothing that is there is followed: a link of the directory's owner stays his.
std::optional<unique_fd> out_archive::open_directory(const std::vector<std::string>& parts,
                                                     std::size_t count) {
    constexpr int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    unique_fd at(::openat(directory_.get(), ".", flags));
    for (std::size_t i = 0; at && i < count; ++i) {
        const char* name = parts[i].c_str();
        if (::mkdirat(at.get(), name, 0755) != 0 && errno != EEXIST) {
            at.reset();
            break;
        }
        at = unique_fd(::openat(at.get(), name, flags));
    }
    if (!at) {
        fail(fmt::format("a directory cannot be made: {}", std::strerror(errno)));
        return std::nullopt;
    }
    return at;
}

bool out_archive::make_file(const std::vector<std::string>& parts, unsigned mode) {
    const auto folder = open_directory(parts, parts.size() - 1);
    if (!folder)
        return false;
    const char* name = parts.back().c_str();
    ::unlinkat(folder->get(), name, 0); // of an earlier job, or a link
    file_ = unique_fd(::openat(folder->get(), name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                               (mode & 0111) != 0 ? 0755 : 0644));
    return static_cast<bool>(file_);
}

std::string out_archive::finish() {
    if (problem_.empty() && state_ != state::ended)
        fail(entries_ == 0 && block_.empty() ? "nothing came" : "it ends in the middle");
    return problem_;
}

} // namespace kagemusha::control
