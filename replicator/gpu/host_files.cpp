// SPDX-License-Identifier: GPL-2.0-or-later
// host_files: see host_files.hpp.
//
// Nothing here follows comments, literals or conditions over lines: a reader of C that differs from the
// compiler's could be fooled. Each line is looked at by itself, and what might be a directive is one.
#include "gpu/host_files.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace kagemusha::gpu {

namespace {

constexpr std::string_view replacement = "#error files of the host are not for programs";

bool is_line_end(char c) {
    return c == '\n' || c == '\r';
}
// Compilers take a 0 byte for a space.
bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\0';
}
bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$';
}

// A line as the preprocessor sees it: what ends with a backslash goes on. `end` is behind the last character
// of its text, before the line's end.
struct logical_line {
    std::string text;
    std::size_t end;
};

// Bytes of a backslash (or its trigraph) that is followed by spaces and a line end, with that; 0: none here.
std::size_t splice_at(std::string_view source, std::size_t at) {
    std::size_t i = at;
    if (source[i] == '\\')
        ++i;
    else if (source.substr(i).starts_with("?\?/"))
        i += 3;
    else
        return 0;
    while (i < source.size() && is_space(source[i]))
        ++i;
    if (i == source.size() || !is_line_end(source[i]))
        return 0;
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n')
        ++i;
    return i + 1 - at;
}

logical_line line_at(std::string_view source, std::size_t at) {
    logical_line line{{}, at};
    while (line.end < source.size() && !is_line_end(source[line.end])) {
        if (const std::size_t splice = splice_at(source, line.end)) {
            line.end += splice;
            continue;
        }
        line.text += source[line.end++];
    }
    return line;
}

// Behind spaces and comments; npos: a comment that goes on in the next line.
std::size_t skip_blank(std::string_view text, std::size_t at) {
    for (;;) {
        while (at < text.size() && is_space(text[at]))
            ++at;
        if (!text.substr(std::min(at, text.size())).starts_with("/*"))
            return at;
        const std::size_t end = text.find("*/", at + 2);
        if (end == text.npos)
            return text.npos;
        at = end + 2;
    }
}

// Of what follows #: whether it might have the compiler read a file that is not the program's.
bool names_host_file(std::string_view text, std::size_t at) {
    at = skip_blank(text, at);
    if (at == text.npos)
        return true; // the directive's name is in the next line
    std::size_t end = at;
    while (end < text.size() && is_word(text[end]))
        ++end;
    const auto name = text.substr(at, end - at);
    if (name != "include" && name != "include_next" && name != "import" && name != "embed" &&
        name != "__include_macros")
        return false;
    at = skip_blank(text, end);
    if (at == text.npos || at >= text.size() || (text[at] != '"' && text[at] != '<'))
        return true; // a macro, or in the next line
    const char quote = text[at] == '<' ? '>' : '"';
    const std::size_t close = text.find(quote, at + 1);
    const auto file = text.substr(at + 1, close == text.npos ? text.npos : close - at - 1);
    // Spaces first: some compilers drop them.
    const auto first = std::find_if_not(file.begin(), file.end(), is_space);
    return first == file.end() || *first == '/' || file.find("..") != file.npos ||
           file.find('\\') != file.npos || file.find(':') != file.npos;
}

bool has_host_file(std::string_view text) {
    for (std::size_t at = 0; at < text.size(); ++at) {
        std::size_t length = 0;
        if (text[at] == '#')
            length = 1;
        else if (text.substr(at).starts_with("%:"))
            length = 2;
        else if (text.substr(at).starts_with("?\?="))
            length = 3;
        if (length != 0 && names_host_file(text, at + length))
            return true;
    }
    return false;
}

// An option that is known to name no file, by its first characters.
bool is_harmless(std::string_view option) {
    const auto starts = [&](std::string_view with) { return option.starts_with(with); };
    if (starts("-D") || starts("-U") || starts("-cl-") || starts("-nv-") || starts("-spir-std="))
        return true;
    if (option == "-w" || option == "-g" || option == "-create-library" || option == "-enable-link-options")
        return true;
    if (starts("-O"))
        return option.size() <= 3;
    // -Wp, -Wa and -Wl, carry options of other programs; a value may be a file.
    if (starts("-W") || starts("-f") || starts("-m"))
        return option.find_first_of("=,/") == option.npos && option != "-mllvm" && option != "-msave-temps";
    return false;
}

bool is_number_or_sign(std::string_view piece) {
    return piece.size() == 1 || !std::isalpha(static_cast<unsigned char>(piece[1]));
}

// The reading of a compiler that knows no quotes.
bool plain_reading_is_harmless(std::string_view options) {
    std::size_t at = 0;
    while (at < options.size()) {
        std::size_t end = at;
        while (end < options.size() && !std::isspace(static_cast<unsigned char>(options[end])))
            ++end;
        auto piece = options.substr(at, end - at);
        while (!piece.empty() && (piece.front() == '"' || piece.front() == '\'' || piece.front() == '\\'))
            piece.remove_prefix(1);
        if (!piece.empty() && (piece.front() == '@' || piece.starts_with("--")))
            return false;
        if (!piece.empty() && piece.front() == '-' && !is_number_or_sign(piece) && !is_harmless(piece) &&
            piece != "-x" && !piece.starts_with("-I"))
            return false;
        at = end + 1;
    }
    return true;
}

struct option {
    std::string text;       // without quotes and backslashes
    std::size_t begin, end; // in the options
};

// The reading of a compiler that knows quotes and backslashes.
std::vector<option> split(std::string_view options) {
    std::vector<option> found;
    std::size_t at = 0;
    while (at < options.size()) {
        if (std::isspace(static_cast<unsigned char>(options[at]))) {
            ++at;
            continue;
        }
        option one{{}, at, at};
        char quote = 0;
        for (; at < options.size(); ++at) {
            const char c = options[at];
            if (quote == 0 && std::isspace(static_cast<unsigned char>(c)))
                break;
            if (c == '\\' && quote != '\'' && at + 1 < options.size())
                one.text += options[++at];
            else if (quote == 0 && (c == '"' || c == '\''))
                quote = c;
            else if (c == quote)
                quote = 0;
            else
                one.text += c;
        }
        one.end = at;
        found.push_back(std::move(one));
    }
    return found;
}

} // namespace

std::vector<std::byte> without_host_files(std::span<const std::byte> source) {
    const std::string_view text(reinterpret_cast<const char*>(source.data()), source.size());
    std::vector<std::byte> out;
    out.reserve(source.size());
    const auto put = [&](std::string_view bytes) {
        const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
        out.insert(out.end(), first, first + bytes.size());
    };
    std::size_t at = 0;
    while (at < text.size()) {
        const logical_line line = line_at(text, at);
        const auto physical = text.substr(at, line.end - at);
        if (has_host_file(line.text)) {
            // In a line of its own, after the end of a comment that may have begun before, and with as many
            // lines as there were.
            put(replacement);
            for (const char c : physical)
                if (c == '\n')
                    put("\n");
        } else {
            put(physical);
        }
        at = line.end;
        if (at < text.size())
            put(text.substr(at++, 1));
    }
    return out;
}

std::optional<std::string> without_host_files(std::string_view options) {
    if (!plain_reading_is_harmless(options))
        return std::nullopt;
    const auto found = split(options);
    std::string out;
    for (std::size_t i = 0; i < found.size(); ++i) {
        const auto& one = found[i];
        if (one.text.starts_with("-I")) {
            if (one.text.size() == 2)
                ++i; // and its folder
            continue;
        }
        std::size_t end = one.end;
        if (one.text == "-D" || one.text == "-U" || one.text == "-x") {
            // Its argument is no option, whatever it looks like.
            if (i + 1 == found.size() || found[i + 1].text.starts_with('-'))
                return std::nullopt;
            if (one.text == "-x" && found[i + 1].text != "spir" && found[i + 1].text != "spirv" &&
                found[i + 1].text != "cl" && found[i + 1].text != "clc++")
                return std::nullopt;
            end = found[++i].end;
        } else if (!is_harmless(one.text)) {
            return std::nullopt;
        }
        if (!out.empty())
            out += ' ';
        out += options.substr(one.begin, end - one.begin);
    }
    return out;
}

} // namespace kagemusha::gpu
