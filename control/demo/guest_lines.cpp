// SPDX-License-Identifier: GPL-2.0-or-later
//
// See guest_lines.hpp. hashcat's status comes in lines like
//
//   Speed.#1.........: 24228.4 kH/s (14.03ms) @ Accel:512 Loops:676 Thr:1 Vec:16
//   Recovered........: 2/12 (16.67%) Digests (total), 2/12 (16.67%) Digests (new)
//   Progress.........: 35995648/308915776 (11.65%)
//
// in this order; a word that it has found is a line HASH:WORD. The training (guest/train.cpp) prints lines of ours.
#include "control/demo/guest_lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace kagemusha::control {

namespace {

constexpr std::size_t longest_line = 1024;
constexpr std::string_view ours = "KAGEMUSHA-DEMO ";
constexpr std::size_t hash_digits = 32; // MD5

bool is_found(std::string_view line) {
    return line.size() > hash_digits + 1 && line[hash_digits] == ':' &&
           line.substr(0, hash_digits).find_first_not_of("0123456789abcdef") == line.npos &&
           line.substr(hash_digits + 1).find_first_not_of("abcdefghijklmnopqrstuvwxyz") == line.npos;
}

// STEP:BITS, in eight digits each.
bool is_loss(std::string_view line) {
    return line.size() == 17 && line[8] == ':' &&
           line.substr(0, 8).find_first_not_of("0123456789") == line.npos &&
           line.substr(9).find_first_not_of("0123456789abcdef") == line.npos;
}

// Escape sequences of a terminal are no text.
std::string plain(std::string_view line) {
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
        if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
            i += 2;
            while (i < line.size() && (line[i] < '@' || line[i] > '~'))
                ++i;
        } else if (static_cast<unsigned char>(line[i]) >= ' ') {
            out += line[i];
        }
    }
    return out;
}

template <class T>
std::optional<T> number(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// "Progress.........: 35995648/308915776 (11.65%)" → "35995648/308915776 (11.65%)"
std::optional<std::string_view> value_of(std::string_view line, std::string_view name) {
    const auto colon = line.find(": ");
    if (!line.starts_with(name) || colon == line.npos ||
        line.substr(name.size(), colon - name.size()).find_first_not_of(".#123456789*") != line.npos)
        return std::nullopt;
    return line.substr(colon + 2);
}

std::string_view first_word(std::string_view text) {
    return text.substr(0, text.find(' '));
}

std::string_view after_word(std::string_view text) {
    return text.substr(std::min(text.size(), first_word(text).size() + 1));
}

std::optional<double> fraction_of(std::string_view progress) {
    const auto word = first_word(progress);
    const auto slash = word.find('/');
    if (slash == word.npos)
        return std::nullopt;
    const auto done = number<std::uint64_t>(word.substr(0, slash)),
               all = number<std::uint64_t>(word.substr(slash + 1));
    if (!done || !all || *all == 0 || *done > *all)
        return std::nullopt;
    return static_cast<double>(*done) / static_cast<double>(*all);
}

// "24228.4 kH/s (14.03ms) @ …" → 24228400
double rate_of(std::string_view speed) {
    const auto value = number<double>(first_word(speed));
    const auto unit = after_word(speed);
    if (!value || *value < 0)
        return 0;
    constexpr std::string_view prefixes = " kMGTP";
    double factor = 1;
    for (const char prefix : prefixes.substr(1)) {
        factor *= 1000;
        if (unit.starts_with(std::string{prefix} + "H/s"))
            return *value * factor;
    }
    return unit.starts_with("H/s") ? *value : 0;
}

} // namespace

std::vector<guest_event> guest_lines::feed(std::string_view bytes) {
    std::vector<guest_event> out;
    for (const char c : bytes) {
        if (c == '\n' || c == '\r') {
            if (!too_long_)
                take(out);
            line_.clear();
            too_long_ = false;
        } else if (line_.size() < longest_line) {
            line_ += c;
        } else {
            too_long_ = true;
        }
    }
    return out;
}

void guest_lines::take(std::vector<guest_event>& out) {
    const auto text = plain(line_);
    const std::string_view line = text;
    using kind = guest_event::kind;
    if (is_found(line)) {
        out.push_back({kind::found, 0, 0, 0, 0, text});
    } else if (const auto speed = value_of(line, "Speed")) {
        const auto unit_end = speed->find("H/s");
        speed_ = unit_end == speed->npos ? std::string() : std::string(speed->substr(0, unit_end + 3));
        per_second_ = rate_of(*speed);
    } else if (const auto recovered = value_of(line, "Recovered")) {
        recovered_ = first_word(*recovered);
    } else if (const auto progress = value_of(line, "Progress")) {
        if (const auto fraction = fraction_of(*progress))
            out.push_back({kind::progress, 0, 0, *fraction, per_second_,
                           fmt::format("{} words, {}", recovered_, speed_)});
    } else if (line.starts_with(ours)) {
        take_ours(line.substr(ours.size()), out);
    }
}

void guest_lines::take_ours(std::string_view line, std::vector<guest_event>& out) const {
    using kind = guest_event::kind;
    const auto what = first_word(line);
    const auto arguments = after_word(line);
    const auto last = after_word(arguments);
    if (what == "step") {
        // The training's: DONE/ALL LOSS STEPS-PER-SECOND.
        const auto fraction = fraction_of(arguments);
        const auto loss = number<double>(first_word(last)), rate = number<double>(after_word(last));
        if (fraction && loss && rate && *loss >= 0 && *rate >= 0 && std::isfinite(*loss) &&
            std::isfinite(*rate))
            out.push_back({kind::progress, 0, 0, *fraction, *rate,
                           fmt::format("loss {:.6g}, {:.0f} steps/s", *loss, *rate), *loss});
        return;
    }
    const auto run = number<unsigned>(first_word(arguments));
    if (what == "ready")
        out.push_back({kind::ready, 0, 0, 0, 0, {}});
    else if (what == "begun" && run)
        out.push_back({kind::begun, *run, 0, 0, 0, {}});
    else if (what == "ended" && run && number<int>(last))
        out.push_back({kind::ended, *run, *number<int>(last), 0, 0, {}});
    else if (what == "result" && run && (is_found(last) || is_loss(last)))
        out.push_back({kind::result, *run, 0, 0, 0, std::string(last)});
    else if (what == "results-end" && run)
        out.push_back({kind::results_end, *run, 0, 0, 0, {}});
}

} // namespace kagemusha::control
