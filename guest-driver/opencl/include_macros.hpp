// SPDX-License-Identifier: GPL-2.0-or-later
//
// The few rules of C's preprocessor that say which file an #include names: macros that expand to a name, from
// build options and from #define lines. Conditions are not evaluated, only the host's compiler can do that,
// so a macro whose meaning depends on one is unknown here.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::opencl {

// Build options as words; quotes and backslashes protect spaces.
std::vector<std::string> split_options(std::string_view options);

class macro_table {
public:
    // As an option says it: NAME, NAME=text, NAME(a,b)=text.
    void define_by_option(std::string_view definition);

    // What follows #define. `keeps_known`: the line is below an #ifndef of this very name, so it counts only
    // when the name is not known. `sure`: no condition is around it.
    void define(std::string_view definition, bool keeps_known, bool sure);
    void undefine(std::string_view name, bool sure);

    // The text with macros replaced; nothing when that can't be said, or has no end.
    std::optional<std::string> expand(std::string_view text) const;

private:
    struct macro {
        std::optional<std::vector<std::string>> parameters; // of a macro that looks like a function
        std::string body;
        bool unknown = false; // it depends on conditions
        bool operator==(const macro&) const = default;
    };

    void set(std::string name, macro fresh, bool sure);
    bool expand_into(std::string& out, std::string_view text, unsigned& budget, unsigned depth) const;
    bool expand_call(std::string& out, const macro& one, std::string_view text, std::size_t& at,
                     unsigned& budget, unsigned depth) const;

    std::map<std::string, macro, std::less<>> macros_;
};

// The name at the start of the text; empty if there is none.
std::string_view leading_name(std::string_view text);
std::string_view trimmed(std::string_view text);

} // namespace kagemusha::opencl
