// SPDX-License-Identifier: GPL-2.0-or-later
//
// See toml_table.hpp.
#include "control/vm/toml_table.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace kagemusha::control {

namespace fs = std::filesystem;

void toml_reader::complain(const toml::source_region& at, const std::string& what) {
    errors_.push_back(fmt::format("{}:{}:{}: {}", file_, at.begin.line, at.begin.column, what));
}

std::string toml_reader::absolute(const std::string& path) const {
    if (path.empty() || path.front() == '/' || directory_.empty())
        return path;
    return (fs::path(directory_) / path).lexically_normal().string();
}

std::string toml_reader::address(const std::string& text) const {
    return text.starts_with("unix:") ? "unix:" + absolute(text.substr(5)) : text;
}

toml_table::~toml_table() {
    for (const auto& [key, value] : table_)
        if (!known_.contains(std::string(key.str())))
            reader_.complain(value.source(), fmt::format("'{}' is no key of {}", key.str(), name_));
}

const toml::node* toml_table::find(const char* key) {
    known_.insert(key);
    return table_.get(key);
}

void toml_table::text(const char* key, std::string& out) {
    if (const auto* node = find(key)) {
        if (const auto value = node->value_exact<std::string>();
            value && value->find('\0') == std::string::npos)
            out = *value;
        else
            wrong(*node, key, "a text in quotes");
    }
}

void toml_table::path(const char* key, std::string& out) {
    text(key, out);
    out = reader_.absolute(out);
}

void toml_table::address(const char* key, std::string& out) {
    text(key, out);
    out = reader_.address(out);
}

void toml_table::flag(const char* key, bool& out) {
    if (const auto* node = find(key)) {
        if (const auto value = node->value_exact<bool>())
            out = *value;
        else
            wrong(*node, key, "true or false");
    }
}

void toml_table::choice(const char* key, std::string& out, std::initializer_list<const char*> allowed) {
    std::string chosen = out;
    text(key, chosen);
    if (std::find(allowed.begin(), allowed.end(), chosen) != allowed.end())
        out = chosen;
    else if (const auto* node = table_.get(key))
        wrong(*node, key, fmt::format("one of: {}", fmt::join(allowed, ", ")));
}

void toml_table::texts(const char* key, std::vector<std::string>& out) {
    const auto* node = find(key);
    if (!node)
        return;
    const auto* array = node->as_array();
    if (!array)
        return wrong(*node, key, "a list of texts");
    for (const auto& item : *array)
        if (const auto value = item.value_exact<std::string>())
            out.push_back(*value);
        else
            wrong(item, key, "a list of texts");
}

void toml_table::mebibytes(const char* key, std::uint64_t& out) {
    const auto* node = find(key);
    if (!node)
        return;
    std::uint64_t value = 0;
    if (const auto whole = node->value_exact<std::int64_t>(); whole && *whole > 0)
        value = static_cast<std::uint64_t>(*whole);
    else if (const auto size = node->value_exact<std::string>();
             size && size->size() >= 2 && size->size() <= 8) {
        const char unit = size->back();
        const auto digits = size->substr(0, size->size() - 1);
        if (std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c); }))
            value = (unit == 'G' ? 1024u : unit == 'M' ? 1u : 0u) * std::stoull(digits);
    }
    if (value >= 1 && value <= (std::uint64_t{1} << 22))
        out = value;
    else
        wrong(*node, key, "a size from 1M to 4096G, as \"512M\" or \"2G\"");
}

const toml::table* toml_table::child(const char* key) {
    const auto* node = find(key);
    if (node && !node->is_table())
        wrong(*node, key, fmt::format("a table: [{}]", key));
    return node ? node->as_table() : nullptr;
}

std::vector<const toml::table*> toml_table::children(const char* key) {
    std::vector<const toml::table*> found;
    const auto* node = find(key);
    if (!node)
        return found;
    const auto* array = node->as_array();
    for (std::size_t i = 0; array && i < array->size(); ++i)
        if (const auto* one = array->get(i)->as_table())
            found.push_back(one);
    if (!array || found.size() != array->size())
        wrong(*node, key, fmt::format("tables: [[{}]]", key));
    return found;
}

void toml_table::missing(const char* key, const std::string& why) {
    if (!table_.contains(key))
        reader_.complain(table_.source(), fmt::format("{} needs '{}'{}", name_, key, why));
}

void toml_table::complain(const char* key, const std::string& what) {
    const auto* node = table_.get(key);
    reader_.complain(node ? node->source() : table_.source(), what);
}

void toml_table::wrong(const toml::node& node, const char* key, const std::string& wanted) {
    reader_.complain(node.source(), fmt::format("'{}' must be {}", key, wanted));
}

} // namespace kagemusha::control
