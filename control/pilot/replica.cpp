// SPDX-License-Identifier: GPL-2.0-or-later
//
// See replica.hpp.
#include "control/pilot/replica.hpp"

#include "control/base/host_clock.hpp"
#include "control/base/process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fcntl.h>
#include <fstream>
#include <random>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace kagemusha::control {

namespace {

constexpr std::string_view record_head = "kagemusha-replica 1";
constexpr std::size_t name_digits = 32, longest_record = 512;

bool is_name(std::string_view text) {
    return text.size() == name_digits && std::all_of(text.begin(), text.end(), [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

std::string new_name() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// The next word; empty at the end.
std::string_view word(std::string_view& text) {
    const auto end = std::min(text.find(' '), text.size());
    const auto found = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return found;
}

template <class T>
bool number(std::string_view text, T& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

std::string file_of(const std::string& image) {
    return image + ".kagemusha-replica";
}

std::int64_t ns_of(const timespec& t) {
    return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Nothing: it is no file, or can't be looked at.
std::optional<image_facts> facts_of(const std::string& image) {
    struct stat s{};
    if (::stat(image.c_str(), &s) != 0 || !S_ISREG(s.st_mode))
        return std::nullopt;
    return image_facts{s.st_dev, s.st_ino, static_cast<std::uint64_t>(s.st_size), ns_of(s.st_mtim),
                       ns_of(s.st_ctim)};
}

std::optional<std::vector<image_facts>> facts_of(const std::vector<std::string>& images) {
    std::vector<image_facts> out;
    for (const auto& image : images) {
        const auto facts = facts_of(image);
        if (!facts)
            return std::nullopt;
        out.push_back(*facts);
    }
    return out;
}

std::optional<replica_record> read_record(const std::string& file) {
    const unique_fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    std::array<char, longest_record> bytes{};
    const auto got = fd ? ::read(fd.get(), bytes.data(), bytes.size()) : -1;
    if (got <= 0)
        return std::nullopt;
    return parse_replica_record({bytes.data(), static_cast<std::size_t>(got)});
}

// Not durably: it counts in this boot only. One that is cut off is none.
void write_record(const std::string& file, const replica_record& r) {
    const unique_fd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
    const auto text = to_text(r) + "\n";
    if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        ::unlink(file.c_str());
}

} // namespace

std::string to_text(const replica& r) {
    return r.base.empty() ? r.name : r.name + " " + r.base;
}

std::optional<replica> parse_replica(std::string_view text) {
    const bool has_base = text.size() > name_digits;
    const auto name = word(text);
    if (!is_name(name) || (has_base && !is_name(text)))
        return std::nullopt;
    return replica{std::string(name), std::string(text)};
}

std::string to_text(const replica_record& r) {
    return fmt::format("{} {} {} {} {} {} {} {}", record_head, r.boot, r.name, r.image.device, r.image.inode,
                       r.image.size, r.image.modified_ns, r.image.changed_ns);
}

std::optional<replica_record> parse_replica_record(std::string_view text) {
    // The end of the line says that all of it is there.
    const auto end = text.find('\n');
    if (end == std::string_view::npos || !text.starts_with(record_head))
        return std::nullopt;
    text = text.substr(record_head.size(), end - record_head.size());
    replica_record r;
    if (!word(text).empty())
        return std::nullopt;
    r.boot = word(text);
    r.name = word(text);
    if (r.boot.empty() || !is_name(r.name) || !number(word(text), r.image.device) ||
        !number(word(text), r.image.inode) || !number(word(text), r.image.size) ||
        !number(word(text), r.image.modified_ns) || !number(word(text), r.image.changed_ns) || !text.empty())
        return std::nullopt;
    return r;
}

std::string base_of(const std::vector<std::optional<replica_record>>& records,
                    const std::vector<image_facts>& images, const std::string& boot) {
    if (records.empty() || records.size() != images.size() || boot.empty())
        return {};
    for (std::size_t i = 0; i < records.size(); ++i)
        if (!records[i] || records[i]->boot != boot || records[i]->image != images[i] ||
            records[i]->name != records[0]->name)
            return {};
    return records[0]->name;
}

replica replica_keeper::begin() {
    std::vector<std::optional<replica_record>> records;
    for (const auto& image : images_)
        records.push_back(read_record(file_of(image)));
    forget();
    const auto facts = facts_of(images_);
    usable_ = facts.has_value() && !images_.empty();
    found_ = facts.value_or(std::vector<image_facts>{});
    present_ = {new_name(), usable_ ? base_of(records, found_, boot_id()) : std::string()};
    return present_;
}

void replica_keeper::spoil() {
    usable_ = false;
}

void replica_keeper::leave() {
    const auto facts = std::exchange(usable_, false) ? facts_of(images_) : std::nullopt;
    if (!facts)
        return;
    // Nothing came: they have what they had.
    const auto name = *facts == found_ ? present_.base : present_.name;
    const auto boot = boot_id();
    if (name.empty() || boot.empty())
        return;
    for (std::size_t i = 0; i < images_.size(); ++i)
        write_record(file_of(images_[i]), {boot, name, (*facts)[i]});
}

void replica_keeper::forget() {
    for (const auto& image : images_)
        ::unlink(file_of(image).c_str());
}

} // namespace kagemusha::control
