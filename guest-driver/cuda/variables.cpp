// SPDX-License-Identifier: GPL-2.0-or-later
#include "variables.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace kagemusha::cuda {
namespace {

constexpr std::size_t most_variables = 65536;

class name_list {
public:
    void add(std::string name) {
        if (!name.empty() && names_.size() < most_variables && known_.insert(name).second)
            names_.push_back(std::move(name));
    }
    std::vector<std::string> take() { return std::move(names_); }

private:
    std::vector<std::string> names_;
    std::unordered_set<std::string> known_;
};

// ---- PTX

bool begins_name(char c) {
    return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}
bool in_name(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$';
}

// Its words one by one: names and directives whole, everything else a character; without comments.
class ptx_words {
public:
    explicit ptx_words(std::string_view text) : text_(text) {}

    std::string_view next() {
        skip();
        if (at_ == text_.size())
            return {};
        const std::size_t begin = at_++;
        if (text_[begin] == '"') {
            while (at_ < text_.size() && text_[at_] != '"')
                at_ += text_[at_] == '\\' ? 2 : 1;
            at_ = std::min(at_ + 1, text_.size());
        } else if (text_[begin] == '.' || begins_name(text_[begin]) ||
                   std::isdigit(static_cast<unsigned char>(text_[begin]))) {
            while (at_ < text_.size() && in_name(text_[at_]))
                ++at_;
        }
        return text_.substr(begin, at_ - begin);
    }

private:
    void skip() {
        for (;;) {
            while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])))
                ++at_;
            const std::string_view rest = text_.substr(at_);
            if (rest.starts_with("//")) {
                at_ = std::min(text_.find('\n', at_), text_.size());
            } else if (rest.starts_with("/*")) {
                const auto end = text_.find("*/", at_ + 2);
                at_ = end == text_.npos ? text_.size() : end + 2;
            } else {
                return;
            }
        }
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

// One statement outside of functions: `.visible .global .align 4 .u32 a[3] = {1, 2, 3}, b;`
struct declaration {
    bool is_variable = false, is_elsewhere = false, in_initialiser = false;
    int depth = 0; // of brackets
    std::string_view name;

    void take(std::string_view word, name_list& names) {
        const char c = word.front();
        if (c == '(' || c == '[' || c == '{')
            ++depth;
        else if (c == ')' || c == ']' || c == '}')
            --depth;
        else if (depth > 0)
            return;
        else if (c == ',')
            end_name(names);
        else if (c == '=')
            in_initialiser = true;
        else if (word == ".global" || word == ".const")
            begin_variable();
        else if (word == ".extern")
            is_elsewhere = true;
        else if (word == ".texref" || word == ".surfref" || word == ".samplerref")
            is_variable = false;
        else if (begins_name(c) && name.empty() && !in_initialiser)
            name = word;
    }
    void begin_variable() {
        is_variable = true;
        name = {}; // a line `.target sm_80` before it has no end
    }
    void end_name(name_list& names) {
        if (is_variable && !is_elsewhere)
            names.add(std::string(name));
        name = {};
        in_initialiser = false;
    }
};

void read_ptx(std::string_view text, name_list& names) {
    ptx_words words(text);
    int body = 0; // depth of braces of a function
    declaration statement;
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
        const char c = word.front();
        // An initialiser has braces too, and a function's body has none before it but those of parameters.
        const bool opens_body = c == '{' && !statement.is_variable && statement.depth == 0;
        if (body > 0 || opens_body) {
            body += c == '{' ? 1 : c == '}' ? -1 : 0;
            if (body == 0)
                statement = {};
        } else if (c == ';') {
            statement.end_name(names);
            statement = {};
        } else if (word == ".version" || word == ".target" || word == ".address_size" || word == ".file") {
            statement = {}; // a line without an end
        } else {
            statement.take(word, names);
        }
    }
}

// ---- ELF

template <class T>
std::optional<T> read(std::span<const std::byte> from, std::uint64_t at) {
    if (at > from.size() || from.size() - at < sizeof(T))
        return std::nullopt;
    T value;
    std::memcpy(&value, from.data() + at, sizeof value);
    return value;
}

std::string text_at(std::span<const std::byte> from, std::uint64_t at) {
    std::string text;
    for (; at < from.size() && from[at] != std::byte{0} && text.size() <= 4096; ++at)
        text += static_cast<char>(from[at]);
    return text;
}

void read_elf(std::span<const std::byte> image, name_list& names) {
    const auto header = read<Elf64_Ehdr>(image, 0);
    if (!header || header->e_shentsize != sizeof(Elf64_Shdr))
        return;
    std::vector<Elf64_Shdr> sections;
    for (unsigned i = 0; i < header->e_shnum; ++i) {
        const auto one = read<Elf64_Shdr>(image, header->e_shoff + std::uint64_t{i} * sizeof(Elf64_Shdr));
        if (!one)
            return;
        sections.push_back(*one);
    }
    const auto name_of = [&](const Elf64_Shdr& section, std::uint32_t at) {
        return at <= image.size() && section.sh_offset <= image.size() - at
                   ? text_at(image, section.sh_offset + at)
                   : std::string();
    };
    const auto holds_variables = [&](unsigned index) {
        if (index >= sections.size() || header->e_shstrndx >= sections.size())
            return false;
        const std::string name = name_of(sections[header->e_shstrndx], sections[index].sh_name);
        return name == ".nv.global" || name == ".nv.global.init" || name == ".nv.constant3";
    };
    for (const Elf64_Shdr& table : sections) {
        if (table.sh_type != SHT_SYMTAB || table.sh_link >= sections.size())
            continue;
        for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
            const auto symbol = read<Elf64_Sym>(image, table.sh_offset + at);
            if (!symbol)
                return;
            if (ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && holds_variables(symbol->st_shndx))
                names.add(name_of(sections[table.sh_link], symbol->st_name));
        }
    }
}

} // namespace

std::vector<std::string> variables_in(std::span<const std::byte> image) {
    name_list names;
    if (image.size() > SELFMAG && std::memcmp(image.data(), ELFMAG, SELFMAG) == 0)
        read_elf(image, names);
    else
        read_ptx({reinterpret_cast<const char*>(image.data()), image.size()}, names);
    return names.take();
}

bool is_fat_binary(std::span<const std::byte> image) {
    constexpr std::uint32_t fat_binary_magic = 0xba55ed50;
    const auto magic = read<std::uint32_t>(image, 0);
    return magic && *magic == fat_binary_magic;
}

bool is_literal(const std::string& variable) {
    return variable.find('$') != variable.npos || variable.starts_with("__unnamed");
}

} // namespace kagemusha::cuda
