// SPDX-License-Identifier: GPL-2.0-or-later
// kernel_signature: see kernel_signature.hpp. A scan over tokens: [__]kernel … name ( arguments ).
#include "gpu/null/kernel_signature.hpp"

#include <CL/cl.h>

#include <algorithm>

namespace kagemusha::gpu {

namespace {

bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Words and single characters; comments, strings and preprocessor lines are left out.
std::vector<std::string_view> tokens_of(std::string_view s) {
    std::vector<std::string_view> out;
    bool line_start = true;
    for (std::size_t i = 0; i < s.size();) {
        const char c = s[i];
        if (c == '\n') {
            line_start = true;
            ++i;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
            ++i;
        } else if (c == '#' && line_start) {
            while (i < s.size() && s[i] != '\n')
                i += s[i] == '\\' && i + 1 < s.size() ? 2 : 1;
        } else if (s.substr(i, 2) == "//") {
            i = std::min(s.find('\n', i), s.size());
        } else if (s.substr(i, 2) == "/*") {
            const auto end = s.find("*/", i + 2);
            i = end == s.npos ? s.size() : end + 2;
        } else if (c == '"' || c == '\'') {
            for (++i; i < s.size() && s[i] != c; ++i)
                i += s[i] == '\\' ? 1 : 0;
            ++i;
            line_start = false;
        } else {
            std::size_t n = 1;
            if (is_word(c))
                while (i + n < s.size() && is_word(s[i + n]))
                    ++n;
            out.push_back(s.substr(i, n));
            i += n;
            line_start = false;
        }
    }
    return out;
}

// Index behind the bracket that closes the one at `i`.
std::size_t skip_brackets(const std::vector<std::string_view>& t, std::size_t i) {
    std::size_t depth = 0;
    for (; i < t.size(); ++i) {
        depth += t[i] == "(" ? 1 : 0;
        if (t[i] == ")" && --depth == 0)
            return i + 1;
    }
    return i;
}

kernel_argument argument_of(const std::vector<std::string_view>& words) {
    kernel_argument a{
        CL_KERNEL_ARG_ADDRESS_PRIVATE, CL_KERNEL_ARG_ACCESS_NONE, CL_KERNEL_ARG_TYPE_NONE, {}, {}};
    bool pointer = false;
    for (const std::string_view w : words) {
        const std::string_view plain = w.substr(0, 2) == "__" ? w.substr(2) : w;
        if (plain == "global")
            a.address_qualifier = CL_KERNEL_ARG_ADDRESS_GLOBAL;
        else if (plain == "local")
            a.address_qualifier = CL_KERNEL_ARG_ADDRESS_LOCAL;
        else if (plain == "constant")
            a.address_qualifier = CL_KERNEL_ARG_ADDRESS_CONSTANT;
        else if (plain == "read_only")
            a.access_qualifier = CL_KERNEL_ARG_ACCESS_READ_ONLY;
        else if (plain == "write_only")
            a.access_qualifier = CL_KERNEL_ARG_ACCESS_WRITE_ONLY;
        else if (plain == "read_write")
            a.access_qualifier = CL_KERNEL_ARG_ACCESS_READ_WRITE;
        else if (w == "const")
            a.type_qualifier |= CL_KERNEL_ARG_TYPE_CONST;
        else if (plain == "restrict")
            a.type_qualifier |= CL_KERNEL_ARG_TYPE_RESTRICT;
        else if (w == "volatile")
            a.type_qualifier |= CL_KERNEL_ARG_TYPE_VOLATILE;
        else if (w == "*" || w == "[")
            pointer = true;
        else if (is_word(w[0]) && plain != "private") {
            if (!a.name.empty())
                a.type_name += (a.type_name.empty() ? "" : " ") + a.name;
            a.name = w;
        }
    }
    if (pointer)
        a.type_name += "*";
    if (a.type_name.starts_with("image")) {
        a.address_qualifier = CL_KERNEL_ARG_ADDRESS_GLOBAL;
        if (a.access_qualifier == CL_KERNEL_ARG_ACCESS_NONE)
            a.access_qualifier = CL_KERNEL_ARG_ACCESS_READ_ONLY;
    }
    return a;
}

} // namespace

std::vector<kernel_signature> find_kernels(std::string_view source) {
    std::vector<kernel_signature> out;
    const auto t = tokens_of(source);
    for (std::size_t i = 0; i < t.size(); ++i) {
        if (t[i] != "kernel" && t[i] != "__kernel")
            continue;
        // Attributes and the return type stand before the name; the name is the word before the first bracket
        // that does not belong to an attribute.
        std::size_t at = i + 1;
        while (at < t.size() && t[at] != "(" && t[at] != ";" && t[at] != "{")
            at = t[at] == "__attribute__" || t[at] == "__attribute" ? skip_brackets(t, at + 1) : at + 1;
        if (at >= t.size() || t[at] != "(" || !is_word(t[at - 1][0]))
            continue;
        const std::size_t end = skip_brackets(t, at);
        // A declaration without a body is not a kernel that can be launched.
        std::size_t after = end;
        while (after + 1 < t.size() && (t[after] == "__attribute__" || t[after] == "__attribute"))
            after = skip_brackets(t, after + 1);
        if (after >= t.size() || t[after] != "{")
            continue;
        kernel_signature kernel{std::string(t[at - 1]), {}};
        std::vector<std::string_view> words;
        std::size_t depth = 0;
        for (std::size_t k = at + 1; k < end; ++k) {
            if ((t[k] == "," && depth == 0) || k + 1 == end) {
                if (!words.empty() && !(words.size() == 1 && words[0] == "void"))
                    kernel.arguments.push_back(argument_of(words));
                words.clear();
            } else {
                depth += t[k] == "(" ? 1 : 0;
                depth -= t[k] == ")" ? 1 : 0;
                words.push_back(t[k]);
            }
        }
        out.push_back(std::move(kernel));
        i = end - 1;
    }
    return out;
}

} // namespace kagemusha::gpu
