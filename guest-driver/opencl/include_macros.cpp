// SPDX-License-Identifier: GPL-2.0-or-later
//
// See include_macros.hpp.
#include "include_macros.hpp"

#include <algorithm>

namespace kagemusha::opencl {
namespace {

// A name of a file takes a handful of steps; more is a mistake or an attack on the program's own patience.
constexpr unsigned max_expansions = 1000;
constexpr unsigned max_depth = 50;
constexpr std::size_t max_expanded_bytes = 64 << 10;

bool starts_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool continues_name(char c) {
    return starts_name(c) || (c >= '0' && c <= '9');
}

bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

// End of the string or character constant that begins at `at`.
std::size_t end_of_quoted(std::string_view text, std::size_t at) {
    const char quote = text[at];
    for (++at; at < text.size() && text[at] != quote; ++at)
        if (text[at] == '\\')
            ++at;
    return std::min(at + 1, text.size());
}

// What # makes of an argument.
std::string stringified(std::string_view text) {
    std::string out = "\"";
    bool space = false;
    for (const char c : trimmed(text)) {
        if (is_space(c)) {
            space = true;
            continue;
        }
        if (space)
            out.push_back(' ');
        space = false;
        if (c == '"' || c == '\\')
            out.push_back('\\');
        out.push_back(c);
    }
    return out + '"';
}

// The arguments of a call whose '(' is at `at`, which becomes the place behind its ')'.
std::optional<std::vector<std::string_view>> arguments_of(std::string_view text, std::size_t& at) {
    std::vector<std::string_view> found;
    std::size_t begin = ++at;
    for (unsigned open = 0; at < text.size(); ++at) {
        const char c = text[at];
        if (c == '"' || c == '\'') {
            at = end_of_quoted(text, at) - 1;
        } else if (c == '(') {
            ++open;
        } else if (c == ')' && open > 0) {
            --open;
        } else if (c == ')' || (c == ',' && open == 0)) {
            found.push_back(trimmed(text.substr(begin, at - begin)));
            begin = at + 1;
            if (c == ')') {
                ++at;
                return found;
            }
        }
    }
    return std::nullopt;
}

} // namespace

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_space(text.front()))
        text.remove_prefix(1);
    while (!text.empty() && is_space(text.back()))
        text.remove_suffix(1);
    return text;
}

std::string_view leading_name(std::string_view text) {
    if (text.empty() || !starts_name(text.front()))
        return {};
    std::size_t end = 1;
    while (end < text.size() && continues_name(text[end]))
        ++end;
    return text.substr(0, end);
}

std::vector<std::string> split_options(std::string_view options) {
    std::vector<std::string> words;
    std::string word;
    bool within = false;
    char quote = 0;
    for (std::size_t i = 0; i < options.size(); ++i) {
        const char c = options[i];
        if (c == '\\' && i + 1 < options.size() && quote != '\'') {
            word.push_back(options[++i]);
            within = true;
        } else if (quote != 0 ? c == quote : c == '"' || c == '\'') {
            quote = quote != 0 ? 0 : c;
            within = true;
        } else if (quote == 0 && is_space(c)) {
            if (within)
                words.push_back(std::move(word));
            word.clear();
            within = false;
        } else {
            word.push_back(c);
            within = true;
        }
    }
    if (within)
        words.push_back(std::move(word));
    return words;
}

void macro_table::define_by_option(std::string_view definition) {
    const std::string_view name = leading_name(definition);
    std::string text(definition);
    // NAME=text and NAME(a)=text are NAME text and NAME(a) text; NAME alone is 1.
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos)
        text += " 1";
    else
        text[equals] = ' ';
    if (!name.empty())
        define(text, false, true);
}

void macro_table::define(std::string_view definition, bool keeps_known, bool sure) {
    const std::string name(leading_name(definition));
    if (name.empty() || (keeps_known && macros_.contains(name)))
        return;
    macro fresh;
    std::size_t at = name.size();
    if (at < definition.size() && definition[at] == '(') {
        const auto parameters = arguments_of(definition, at);
        if (!parameters)
            return;
        fresh.parameters.emplace();
        for (const std::string_view parameter : *parameters) {
            if (parameter.empty() && parameters->size() == 1)
                break; // NAME()
            if (leading_name(parameter) != parameter || parameter.empty())
                fresh.unknown = true; // "..." names no file
            fresh.parameters->emplace_back(parameter);
        }
    }
    fresh.body = trimmed(definition.substr(at));
    set(name, std::move(fresh), sure);
}

void macro_table::set(std::string name, macro fresh, bool sure) {
    const auto known = macros_.find(name);
    if (known == macros_.end())
        macros_.emplace(std::move(name), std::move(fresh));
    else if (sure)
        known->second = std::move(fresh);
    else if (known->second != fresh)
        known->second.unknown = true;
}

void macro_table::undefine(std::string_view name, bool sure) {
    const auto known = macros_.find(name);
    if (known == macros_.end())
        return;
    if (sure)
        macros_.erase(known);
    else
        known->second.unknown = true;
}

std::optional<std::string> macro_table::expand(std::string_view text) const {
    std::string out;
    unsigned budget = max_expansions;
    if (!expand_into(out, text, budget, 0))
        return std::nullopt;
    return out;
}

// What comes out of a macro is looked through again by itself, not with what follows it: a name of a file is
// one macro, and that a macro's last word takes its arguments from behind it is no way to write one.
bool macro_table::expand_into(std::string& out, std::string_view text, unsigned& budget,
                              unsigned depth) const {
    if (depth > max_depth)
        return false;
    for (std::size_t at = 0; at < text.size();) {
        if (out.size() > max_expanded_bytes)
            return false;
        if (text[at] == '"' || text[at] == '\'') {
            const std::size_t end = end_of_quoted(text, at);
            out.append(text.substr(at, end - at));
            at = end;
            continue;
        }
        const std::string_view name = leading_name(text.substr(at));
        if (name.empty()) {
            // A number with letters in it is one word, too.
            const bool number = text[at] >= '0' && text[at] <= '9';
            do {
                out.push_back(text[at++]);
            } while (number && at < text.size() && continues_name(text[at]));
            continue;
        }
        at += name.size();
        const auto known = macros_.find(name);
        if (known == macros_.end()) {
            out.append(name);
            continue;
        }
        const macro& one = known->second;
        if (one.unknown || budget-- == 0)
            return false;
        if (!one.parameters) {
            if (!expand_into(out, one.body, budget, depth + 1))
                return false;
            continue;
        }
        std::size_t open = at;
        while (open < text.size() && is_space(text[open]))
            ++open;
        if (open == text.size() || text[open] != '(') {
            out.append(name); // without arguments it is no call
            continue;
        }
        at = open;
        if (!expand_call(out, one, text, at, budget, depth))
            return false;
    }
    return true;
}

bool macro_table::expand_call(std::string& out, const macro& one, std::string_view text, std::size_t& at,
                              unsigned& budget, unsigned depth) const {
    auto arguments = arguments_of(text, at);
    if (!arguments)
        return false;
    if (one.parameters->empty() && arguments->size() == 1 && arguments->front().empty())
        arguments->clear();
    if (arguments->size() != one.parameters->size())
        return false;
    std::string replaced;
    const std::string_view body = one.body;
    for (std::size_t i = 0; i < body.size();) {
        if (body[i] == '"' || body[i] == '\'') {
            const std::size_t end = end_of_quoted(body, i);
            replaced.append(body.substr(i, end - i));
            i = end;
            continue;
        }
        if (body.substr(i).starts_with("##"))
            return false; // pasted names are not worth their rules
        const bool as_string = body[i] == '#';
        std::size_t begin = i + (as_string ? 1 : 0);
        while (as_string && begin < body.size() && is_space(body[begin]))
            ++begin;
        const std::string_view name = leading_name(body.substr(begin));
        const auto place = std::find(one.parameters->begin(), one.parameters->end(), name);
        if (name.empty() || place == one.parameters->end()) {
            const std::size_t count = as_string || name.empty() ? 1 : name.size();
            replaced.append(body.substr(i, count));
            i += count;
            continue;
        }
        const std::string_view argument =
            (*arguments)[static_cast<std::size_t>(place - one.parameters->begin())];
        if (as_string)
            replaced += stringified(argument);
        else if (!expand_into(replaced, argument, budget, depth + 1))
            return false;
        i = begin + name.size();
    }
    return expand_into(out, replaced, budget, depth + 1);
}

} // namespace kagemusha::opencl
