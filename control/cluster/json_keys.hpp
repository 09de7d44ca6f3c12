// SPDX-License-Identifier: GPL-2.0-or-later
//
// json_keys: one JSON object all of whose keys are accounted for, as vm/toml_table.hpp does for a file: who
// reads it asks for what it knows, and the destructor reports the rest. A value of the wrong kind is reported
// and changes nothing.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control::cluster {

// What a person sent, in a sentence: short, and without what a terminal or a page would obey.
inline std::string shown(std::string_view text) {
    constexpr std::size_t longest = 40;
    std::string out;
    for (const char c : text.substr(0, longest))
        out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e ? '?' : c;
    return text.size() > longest ? out + "…" : out;
}

// The object outlives it.
class json_keys {
public:
    json_keys(const nlohmann::json& object, std::string name, std::vector<std::string>& errors)
        : object_(object), name_(std::move(name)), errors_(errors) {
        if (!object.is_object())
            errors_.push_back(name_ + " must be an object with keys");
    }
    ~json_keys() {
        if (!object_.is_object())
            return;
        for (const auto& [key, value] : object_.items())
            if (!known_.contains(key))
                errors_.push_back(fmt::format("'{}' is no key of {}", shown(key), name_));
    }
    json_keys(const json_keys&) = delete;
    json_keys& operator=(const json_keys&) = delete;

    const nlohmann::json* find(const char* key) {
        known_.insert(key);
        const auto found = object_.is_object() ? object_.find(key) : object_.end();
        return !object_.is_object() || found == object_.end() ? nullptr : &*found;
    }
    template <class Number>
    void number(const char* key, Number& out, std::int64_t least, std::int64_t most) {
        const auto* value = find(key);
        if (!value)
            return;
        // A number beyond int64 is unsigned in nlohmann's eyes, and wraps when it is taken for a signed one.
        const bool fits =
            value->is_number_integer() &&
            !(value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(most));
        if (fits && value->get<std::int64_t>() >= least && value->get<std::int64_t>() <= most)
            out = static_cast<Number>(value->get<std::int64_t>());
        else
            wrong(key, fmt::format("a whole number from {} to {}", least, most));
    }
    void flag(const char* key, bool& out) {
        const auto* value = find(key);
        if (value && value->is_boolean())
            out = value->get<bool>();
        else if (value)
            wrong(key, "true or false");
    }
    void text(const char* key, std::string& out, std::size_t longest) {
        const auto* value = find(key);
        if (!value)
            return;
        if (value->is_string() && value->get_ref<const std::string&>().size() <= longest &&
            is_plain(value->get_ref<const std::string&>()))
            out = value->get<std::string>();
        else
            wrong(key, fmt::format("a text of at most {} printable characters", longest));
    }
    void choice(const char* key, std::string& out, std::initializer_list<const char*> allowed) {
        const auto* value = find(key);
        if (!value)
            return;
        if (value->is_string() &&
            std::find(allowed.begin(), allowed.end(), value->get_ref<const std::string&>()) != allowed.end())
            out = value->get<std::string>();
        else
            wrong(key, fmt::format("one of: {}", fmt::join(allowed, ", ")));
    }
    // "2G", "512M", or a number of MiB.
    void mebibytes(const char* key, std::uint64_t& out, std::uint64_t least, std::uint64_t most);

    void complain(std::string what) { errors_.push_back(std::move(what)); }
    void wrong(const char* key, const std::string& wanted) {
        errors_.push_back(fmt::format("'{}' of {} must be {}", key, name_, wanted));
    }

private:
    static bool is_plain(std::string_view text) {
        return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
    }

    const nlohmann::json& object_;
    std::string name_;
    std::vector<std::string>& errors_;
    std::set<std::string> known_;
};

inline void json_keys::mebibytes(const char* key, std::uint64_t& out, std::uint64_t least,
                                 std::uint64_t most) {
    const auto* value = find(key);
    if (!value)
        return;
    std::uint64_t size = 0;
    if (value->is_number_unsigned()) {
        size = value->get<std::uint64_t>();
    } else if (value->is_string()) {
        const auto& text = value->get_ref<const std::string&>();
        const auto digits = text.substr(0, text.empty() ? 0 : text.size() - 1);
        if (!digits.empty() && digits.size() <= 8 &&
            digits.find_first_not_of("0123456789") == std::string::npos)
            size = std::stoull(digits) * (text.back() == 'G' ? 1024u : text.back() == 'M' ? 1u : 0u);
    }
    if (size >= least && size <= most)
        out = size;
    else
        wrong(key, fmt::format("a size from {}M to {}M, as \"512M\" or \"2G\"", least, most));
}

} // namespace kagemusha::control::cluster
