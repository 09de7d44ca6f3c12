// SPDX-License-Identifier: GPL-2.0-or-later
// spec_table: what the command table says, for readers: the part of docs/spec/device.md between two marks.
//
//   spec_table FILE             fails if that part is not what the table says (a test)
//   spec_table FILE --rewrite   writes it anew
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "codec/commands/table.hpp"

using namespace kagemusha::codec;
using namespace kagemusha::codec::commands;

namespace {

constexpr std::string_view begin_mark =
    "<!-- Written by spec_table from replicator/codec/commands; begin. -->\n";
constexpr std::string_view end_mark = "<!-- Written by spec_table; end. -->\n";
constexpr std::size_t columns = 100;

struct description {
    std::string name, answers, objects, data;
    std::vector<std::string> rules;
};

void append(std::string& list, const std::string& item) {
    list += (list.empty() ? "" : ", ") + item;
}

std::string name_of(object kind) {
    switch (kind) {
    case object::any:
        return "any object";
    case object::context:
        return "context";
    case object::queue:
        return "queue";
    case object::buffer:
        return "buffer";
    case object::image:
        return "image";
    case object::memory:
        return "buffer or image";
    case object::sampler:
        return "sampler";
    case object::program:
        return "program";
    case object::kernel:
        return "kernel";
    case object::event:
        return "event";
    case object::user_event:
        return "user event";
    }
    return {};
}

std::string name_of(answer how) {
    switch (how) {
    case answer::call:
        return "call";
    case answer::silent:
        return "silent";
    case answer::log:
        return "log only";
    case answer::enqueued:
        return "enqueued";
    }
    return {};
}

// ---- parts: what they add to the description of their command

template <class... A>
void describe(description& d, const creates_part<A...>& p) {
    append(d.objects, "creates " + name_of(p.kind));
}
template <class... A>
void describe(description& d, const uses_part<A...>& p) {
    constexpr const char* verbs[] = {"uses ", "reads ", "writes ", "changes "}; // by enum access
    append(d.objects, verbs[static_cast<int>(p.how)] + name_of(p.kind));
}
template <class... A>
void describe(description& d, const may_use_part<A...>& p) {
    append(d.objects, "may use " + name_of(p.kind));
}
template <class... A>
void describe(description& d, const destroys_part<A...>&) {
    append(d.objects, "destroys " + name_of(object::any));
}
template <class... A>
void describe(description& d, const between_part<A...>& p) {
    d.rules.emplace_back(p.sentence);
}
template <class... A>
void describe(description& d, const rule_part<A...>& p) {
    d.rules.emplace_back(p.sentence);
}
template <class... A>
void describe(description& d, const range_part<A...>& p) {
    if (d.rules.empty() || d.rules.back() != p.sentence) // a copy has two
        d.rules.emplace_back(p.sentence);
}
template <class... A>
void describe(description& d, const ids_part<A...>& p) {
    append(d.data, name_of(p.kind) + " ids");
}
template <class... A>
void describe(description& d, const text_part<A...>&) {
    append(d.data, "text");
}
template <class... A>
void describe(description& d, const names_part<A...>& p) {
    append(d.data, "names");
    d.rules.emplace_back(p.sentence);
}
template <class... A>
void describe(description& d, const octets_part<A...>&) {
    append(d.data, "bytes");
}
template <class... A>
void describe(description& d, const payload_part<A...>& p) {
    append(d.data, p.way == direction::in ? "payload to read" : "payload to write");
}
template <class... A>
void describe(description& d, const arguments_part<A...>&) {
    append(d.data, "arguments");
}
// The same for every command, and described in the text around the table.
template <class... A>
void describe(description&, const flags_part<A...>&) {}
template <class... A>
void describe(description&, const pad_part<A...>&) {}
template <class... A>
void describe(description&, const region_part<A...>&) {}
template <class... A>
void describe(description&, const pitches_part<A...>&) {}
template <class... A>
void describe(description&, const rect_part<A...>&) {}
template <class... A>
void describe(description&, const box_part<A...>&) {}
// It has sentences of its own for what the header says at vgpu_cmd_launch.
template <class... A>
void describe(description&, const rules_part<A...>&) {}

std::map<std::uint16_t, description> descriptions() {
    std::map<std::uint16_t, description> all;
    all_rows::for_each([&]<class Row>() {
        description& d = all[Row::opcode];
        d.name = Row::name;
        d.answers = name_of(Row::answers);
        std::apply([&d](const auto&... part) { (describe(d, part), ...); }, Row::parts);
    });
    return all;
}

// `text` in lines of at most `columns`, the first one behind `begin`.
std::string wrapped(const std::string& begin, const std::string& text) {
    std::string out, line = begin;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        if (line.size() + 1 + end - at > columns) {
            out += line + "\n";
            line = " ";
        }
        line += " " + text.substr(at, end - at);
        at = end + 1;
    }
    return out + line + "\n";
}

std::string section() {
    const auto all = descriptions();
    std::string out = "\n| opcode | command | class | objects | data |\n|---|---|---|---|---|\n";
    for (const auto& [opcode, d] : all) {
        out += "| " + std::to_string(opcode) + " | " + d.name + " | " + d.answers + " | " + d.objects +
               " | " + d.data + " |\n";
    }
    out += "\nRules of single commands, each as the sentence about a command that breaks it:\n\n";
    for (const auto& [opcode, d] : all) {
        std::string rules;
        for (const std::string& rule : d.rules)
            rules += (rules.empty() ? "" : "; ") + rule;
        if (!rules.empty())
            out += wrapped("* " + d.name + ":", rules);
    }
    return out + "\n";
}

int fail(const char* path, const char* why) {
    std::fprintf(stderr, "%s: %s\n", path, why);
    return 1;
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 3 || (argc == 3 && std::string_view(argv[2]) != "--rewrite")) {
        std::fprintf(stderr, "usage: spec_table FILE [--rewrite]\n");
        return 2;
    }
    std::ifstream in(argv[1], std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in)
        return fail(argv[1], "can't be read");
    const std::size_t begin = text.find(begin_mark), end = text.find(end_mark);
    if (begin == text.npos || end == text.npos || end < begin)
        return fail(argv[1], "has no part for the command table; its two marks are in spec_table.cpp");
    const std::size_t from = begin + begin_mark.size();
    const std::string wanted = section();
    if (argc == 2) {
        return text.compare(from, end - from, wanted) == 0
                   ? 0
                   : fail(argv[1],
                          "is not what the command table says; `spec_table FILE --rewrite` writes it");
    }
    text.replace(from, end - from, wanted);
    std::ofstream out(argv[1], std::ios::binary | std::ios::trunc);
    out << text;
    return out.flush() ? 0 : fail(argv[1], "can't be written");
}
