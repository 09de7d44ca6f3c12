// SPDX-License-Identifier: GPL-2.0-or-later
//
// See include_files.hpp.
#include "include_files.hpp"

#include "include_macros.hpp"

#include "proto/abi/vgpu_protocol.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::opencl {
namespace {

constexpr std::size_t max_depth = 100; // of files that include each other; compilers have limits like this

// One line as the preprocessor sees it: joined where a backslash ends it, comments replaced by a space.
struct logical_line {
    std::string text;
    std::size_t end = 0;   // offset behind it
    std::size_t lines = 0; // how many lines of the file it is
};

// Reads the logical line at `at`; `in_comment` says, before and after, whether a comment is open.
logical_line read_line(std::string_view source, std::size_t at, bool& in_comment) {
    logical_line line;
    char quote = 0;
    while (at < source.size()) {
        const char c = source[at];
        const char next = at + 1 < source.size() ? source[at + 1] : '\0';
        if (c == '\\' && (next == '\n' || (next == '\r' && source.substr(at + 2).starts_with('\n')))) {
            at += next == '\n' ? 2 : 3;
            ++line.lines;
        } else if (c == '\n') {
            ++at;
            break;
        } else if (in_comment) {
            in_comment = !(c == '*' && next == '/');
            at += in_comment ? 1 : 2;
        } else if (quote != 0) {
            line.text.push_back(c);
            ++at;
            if (c == '\\' && next != '\0' && next != '\n') {
                line.text.push_back(next);
                ++at;
            } else if (c == quote) {
                quote = 0;
            }
        } else if (c == '/' && next == '*') {
            in_comment = true;
            line.text.push_back(' ');
            at += 2;
        } else if (c == '/' && next == '/') {
            at = std::min(source.find('\n', at), source.size());
            while (at < source.size() && source[at - 1] == '\\') { // goes on in the next line
                at = std::min(source.find('\n', at + 1), source.size());
                ++line.lines;
            }
        } else {
            if (c == '"' || c == '\'')
                quote = c;
            line.text.push_back(c);
            ++at;
        }
    }
    ++line.lines;
    line.end = at;
    return line;
}

std::string directory_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// #line, so that messages are about the right place.
std::string line_mark(std::size_t line, std::string_view file) {
    std::string mark = "#line " + std::to_string(line) + " \"";
    for (const char c : file) {
        if (c == '"' || c == '\\')
            mark.push_back('\\');
        mark.push_back(static_cast<unsigned char>(c) < ' ' ? '?' : c);
    }
    return mark + "\"\n";
}

class includer {
public:
    includer(std::string_view options, const std::vector<std::string>& embedded, const file_reader& read)
        : embedded_(embedded), read_(read) {
        const std::vector<std::string> words = split_options(options);
        for (std::size_t i = 0; i < words.size(); ++i) {
            const std::string& word = words[i];
            const bool apart = word.size() == 2 && i + 1 < words.size();
            if (word.starts_with("-I"))
                directories_.push_back(apart ? words[++i] : word.substr(2));
            else if (word.starts_with("-D"))
                macros_.define_by_option(apart ? words[++i] : word.substr(2));
        }
    }

    std::optional<std::string> run(std::string_view source) {
        process(source, "", "program source");
        if (!replaced_ || full_)
            return std::nullopt;
        return std::move(out_);
    }

private:
    // A condition that is open; the name if it is an #ifndef.
    struct condition {
        std::string unless_defined;
    };

    void process(std::string_view source, const std::string& path, std::string_view shown_name) {
        const std::size_t conditions_outside = conditions_.size();
        bool in_comment = false;
        std::size_t line_number = 1;
        for (std::size_t at = 0; at < source.size() && !full_;) {
            const bool began_in_comment = in_comment;
            const logical_line line = read_line(source, at, in_comment);
            line_number += line.lines;
            const std::string_view text = trimmed(line.text);
            bool done = false;
            if (!began_in_comment && text.starts_with('#'))
                done = directive(trimmed(text.substr(1)), path, !in_comment);
            if (done)
                append(line_mark(line_number, shown_name));
            else
                append(source.substr(at, line.end - at));
            at = line.end;
        }
        conditions_.resize(std::min(conditions_.size(), conditions_outside));
    }

    // True if the line was an #include and its file is in the output.
    bool directive(std::string_view text, const std::string& path, bool replaceable) {
        const std::string_view word = leading_name(text);
        const std::string_view rest = trimmed(text.substr(word.size()));
        if (word == "include")
            return replaceable && include(rest, path);
        if (word == "if" || word == "ifdef") {
            conditions_.push_back({});
        } else if (word == "ifndef") {
            conditions_.push_back({std::string(leading_name(rest))});
        } else if (word == "elif" || word == "else") {
            if (!conditions_.empty())
                conditions_.back() = {};
        } else if (word == "endif") {
            if (!conditions_.empty())
                conditions_.pop_back();
        } else if (word == "define") {
            const std::string_view name = leading_name(rest);
            const bool keeps = std::any_of(conditions_.begin(), conditions_.end(),
                                           [&](const condition& one) { return one.unless_defined == name; });
            macros_.define(rest, keeps, conditions_.empty());
        } else if (word == "undef") {
            macros_.undefine(leading_name(rest), conditions_.empty());
        }
        return false;
    }

    bool include(std::string_view named, const std::string& path) {
        std::string name(named);
        if (!leading_name(named).empty()) {
            const auto expanded = macros_.expand(named);
            if (!expanded)
                return false;
            name = trimmed(*expanded);
        }
        const bool quoted = name.size() > 2 && name.front() == '"' && name.find('"', 1) == name.size() - 1;
        const bool angled = name.size() > 2 && name.front() == '<' && name.find('>') == name.size() - 1;
        if (!quoted && !angled)
            return false;
        name = name.substr(1, name.size() - 2);
        if (std::find(embedded_.begin(), embedded_.end(), name) != embedded_.end())
            return false;

        std::vector<std::string> places;
        if (name.front() == '/') {
            places.push_back(name);
        } else {
            if (quoted && !path.empty())
                places.push_back(directory_of(path) + "/" + name);
            for (const std::string& directory : directories_)
                places.push_back(directory + "/" + name);
            places.push_back(name);
        }
        for (const std::string& place : places) {
            // A file that includes itself is protected against it by a condition, so the second time is
            // empty.
            if (std::find(open_.begin(), open_.end(), place) != open_.end())
                return true;
            if (const auto content = read_(place)) {
                insert(*content, place);
                return !full_;
            }
        }
        return false;
    }

    void insert(const std::string& content, const std::string& path) {
        if (open_.size() >= max_depth) {
            full_ = true;
            return;
        }
        replaced_ = true;
        const bool once = content.find("#pragma once") != std::string::npos;
        if (once) {
            auto known = std::find(once_.begin(), once_.end(), path);
            if (known == once_.end())
                known = once_.insert(once_.end(), path);
            const std::string guard = "KAGEMUSHA_INCLUDED_" + std::to_string(known - once_.begin());
            append("#ifndef " + guard + "\n#define " + guard + "\n");
        }
        append(line_mark(1, path));
        open_.push_back(path);
        process(content, path, path);
        open_.pop_back();
        if (!out_.ends_with('\n'))
            append("\n");
        if (once)
            append("#endif\n");
    }

    void append(std::string_view text) {
        if (text.size() > VGPU_MAX_PROGRAM_BYTES - out_.size())
            full_ = true;
        else
            out_.append(text);
    }

    const std::vector<std::string>& embedded_;
    const file_reader& read_;
    std::vector<std::string> directories_;
    macro_table macros_;
    std::vector<condition> conditions_;
    std::vector<std::string> open_; // files that are being inserted, the innermost last
    std::vector<std::string> once_; // those with #pragma once; the place is the number of its guard
    std::string out_;
    bool replaced_ = false, full_ = false;
};

} // namespace

std::optional<std::string> read_regular_file(const std::string& path) {
    // Not blocking: what looks like a header might be a FIFO.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return std::nullopt;
    std::optional<std::string> content;
    struct stat about{};
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
        static_cast<unsigned long long>(about.st_size) <= VGPU_MAX_PROGRAM_BYTES) {
        content.emplace(static_cast<std::size_t>(about.st_size), '\0');
        std::size_t filled = 0;
        while (filled < content->size()) {
            const ssize_t got = read(fd, content->data() + filled, content->size() - filled);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                break;
            filled += static_cast<std::size_t>(got);
        }
        content->resize(filled);
    }
    close(fd);
    return content;
}

std::optional<std::string> with_included_files(std::string_view source, std::string_view options,
                                               const std::vector<std::string>& embedded,
                                               const file_reader& read) {
    if (source.find("include") == std::string_view::npos)
        return std::nullopt;
    return includer(options, embedded, read).run(source);
}

} // namespace kagemusha::opencl
