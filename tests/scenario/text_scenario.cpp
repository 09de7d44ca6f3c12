// SPDX-License-Identifier: GPL-2.0-or-later
#include "scenario/text_scenario.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace kagemusha::scenario {

arguments::arguments(const std::string& line) {
    std::istringstream in(line);
    for (std::string w; in >> w;) {
        const auto equals = w.find('=');
        if (equals == std::string::npos)
            words.push_back(w);
        else
            named[w.substr(0, equals)] = w.substr(equals + 1);
    }
}

bool arguments::has(const std::string& word) const {
    return std::find(words.begin(), words.end(), word) != words.end();
}

std::string arguments::rest(std::size_t from) const {
    std::string out;
    for (std::size_t i = from; i < words.size(); ++i)
        out += (out.empty() ? "" : " ") + words[i];
    return out;
}

std::uint64_t arguments::number(std::size_t i) const {
    return i < words.size() ? std::stoull(words[i]) : 0;
}

std::uint64_t arguments::number(const std::string& name, std::uint64_t otherwise) const {
    const auto n = named.find(name);
    return n == named.end() ? otherwise : std::stoull(n->second);
}

std::int32_t arguments::result(std::size_t i) const {
    return i < words.size() ? std::stoi(words[i]) : 0;
}

std::vector<std::uint64_t> arguments::numbers(std::size_t from) const {
    std::vector<std::uint64_t> out;
    for (std::size_t i = from; i < words.size(); ++i)
        out.push_back(std::stoull(words[i]));
    return out;
}

namespace {

std::string without_comment(const std::string& line) {
    std::string text = line.substr(0, line.find('#'));
    while (!text.empty() && text.back() == ' ')
        text.pop_back();
    return text;
}

// True: the file says what happens.
bool play(const std::string& path, player& p, bool rewrite) {
    std::ifstream in(path);
    if (!in) {
        std::fprintf(stderr, "can't read %s\n", path.c_str());
        return false;
    }
    std::string written, line;
    bool same = true;
    std::string output; // of the commands since the last ----
    bool commands = false, blocks = false;
    while (std::getline(in, line)) {
        if (line == "----") {
            if (output.empty())
                output = "nothing\n";
            std::string expected;
            while (std::getline(in, line) && !line.empty())
                expected += line + "\n";
            if (expected != output && !rewrite) {
                std::printf("%s\nexpected:\n%sgot:\n%s\n", (path + ", behind:\n" + written).c_str(),
                            expected.c_str(), output.c_str());
                same = false;
            }
            written += "----\n" + output + "\n";
            output.clear();
            blocks = true;
            commands = false;
            continue;
        }
        written += line + "\n";
        if (const std::string c = without_comment(line); !c.empty()) {
            output += p.execute(c);
            commands = true;
        }
    }
    if (commands) {
        written += "----\n" + (output.empty() ? "nothing\n" : output) + "\n";
        if (!rewrite) {
            std::printf("%s ends with a command and no ----\n", path.c_str());
            same = false;
        }
    } else if (!blocks) {
        std::printf("%s has no command\n", path.c_str());
        same = false;
    }
    while (written.size() > 1 && written.ends_with("\n\n"))
        written.pop_back();
    if (rewrite && (blocks || commands)) {
        in.close();
        std::ofstream(path) << written;
    }
    return same;
}

} // namespace

int play_files(int argc, char** argv, const std::function<std::unique_ptr<player>()>& make) {
    bool rewrite = false, good = true;
    int files = 0;
    for (int i = 1; i < argc; ++i) {
        if (std::string(argv[i]) == "--rewrite") {
            rewrite = true;
            continue;
        }
        ++files;
        good &= play(argv[i], *make(), rewrite);
    }
    if (files == 0) {
        std::printf("usage: %s [--rewrite] FILE…\n", argv[0]);
        return 2;
    }
    return good ? 0 : 1;
}

} // namespace kagemusha::scenario
