// SPDX-License-Identifier: GPL-2.0-or-later
//
// toml_table: one table of a TOML file, all of whose keys are accounted for. Its user asks for the keys that
// it knows; the destructor reports the others, so a misspelt key is never ignored. A value of the wrong kind
// is reported, too, and changes nothing.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <fmt/format.h>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

namespace kagemusha::control {

// The file: where paths begin, and the list of its errors ("FILE:LINE:COLUMN: what").
class toml_reader {
public:
    toml_reader(std::string file, std::string directory, std::vector<std::string>& errors)
        : file_(std::move(file)), directory_(std::move(directory)), errors_(errors) {}

    void complain(const toml::source_region& at, const std::string& what);

    std::string absolute(const std::string& path) const;
    // "unix:PATH" may be relative, too.
    std::string address(const std::string& text) const;

private:
    std::string file_, directory_;
    std::vector<std::string>& errors_;
};

// Reader and table outlive it.
class toml_table {
public:
    toml_table(toml_reader& r, const toml::table& t, std::string name)
        : reader_(r), table_(t), name_(std::move(name)) {}
    ~toml_table();
    toml_table(const toml_table&) = delete;
    toml_table& operator=(const toml_table&) = delete;

    const toml::node* find(const char* key);
    bool has(const char* key) const { return table_.contains(key); }

    void text(const char* key, std::string& out);
    void path(const char* key, std::string& out);
    void address(const char* key, std::string& out);
    template <class Number>
    void number(const char* key, Number& out, std::int64_t least, std::int64_t most) {
        if (const auto* node = find(key)) {
            const auto value = node->value_exact<std::int64_t>();
            if (value && *value >= least && *value <= most)
                out = static_cast<Number>(*value);
            else
                wrong(*node, key, fmt::format("a whole number from {} to {}", least, most));
        }
    }
    void flag(const char* key, bool& out);
    void choice(const char* key, std::string& out, std::initializer_list<const char*> allowed);
    void texts(const char* key, std::vector<std::string>& out);
    // A size: "2G", "512M", or a number of MiB.
    void mebibytes(const char* key, std::uint64_t& out);
    const toml::table* child(const char* key);
    std::vector<const toml::table*> children(const char* key);

    void missing(const char* key, const std::string& why); // an error if it is
    void complain(const char* key, const std::string& what);

private:
    void wrong(const toml::node& node, const char* key, const std::string& wanted);

    toml_reader& reader_;
    const toml::table& table_;
    std::string name_;
    std::set<std::string> known_;
};

} // namespace kagemusha::control
