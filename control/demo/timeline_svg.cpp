// SPDX-License-Identifier: GPL-2.0-or-later
//
// See timeline_svg.hpp.
#include "control/demo/timeline_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kagemusha::control {

namespace {

constexpr double width = 960, left = 70, right = 930;
constexpr double curve_top = 70, curve_bottom = 250; // of the upper part
constexpr double lanes_top = 330, lane_height = 26;  // of the lower one
constexpr double names_top = 440, name_height = 22;
constexpr const char* primary_colour = "#2b6cb0";
constexpr const char* standby_colour = "#c05621";
constexpr const char* kill_colour = "#c53030";
constexpr const char* text_colour = "#1a202c";

// Names of GPUs and kernels come from elsewhere.
std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text)
        if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '&')
            out += "&amp;";
        else if (c == '"')
            out += "&quot;";
        else if (static_cast<unsigned char>(c) >= ' ')
            out += c;
    return out;
}

std::string text(double x, double y, const std::string& what, const char* more = "") {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more, escaped(what));
}

std::string line(double x1, double y1, double x2, double y2, const char* colour, const char* more = "") {
    return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"{}/>\n",
                       x1, y1, x2, y2, colour, more);
}

// From times to places.
struct axis {
    double from = 0, to = 1; // seconds after the kill
    double at(double s) const {
        return left + (std::clamp(s, from, to) - from) / (to - from) * (right - left);
    }
    // A round step that gives five to ten of them.
    double step() const {
        const double rough = (to - from) / 7;
        const double power = std::pow(10, std::floor(std::log10(rough)));
        for (const double factor : {1.0, 2.0, 5.0})
            if (factor * power >= rough)
                return factor * power;
        return 10 * power;
    }
};

std::string ticks(const axis& a, double y, bool milliseconds) {
    std::string out;
    const double unit = milliseconds ? 1e3 : 1;
    for (double s = std::ceil(a.from / a.step()) * a.step(); s <= a.to; s += a.step()) {
        out += line(a.at(s), y, a.at(s), y + 5, "#718096");
        // No -0.
        const double value = std::abs(s) < a.step() / 2 ? 0 : s * unit;
        out += text(a.at(s), y + 19, fmt::format("{:g} {}", value, milliseconds ? "ms" : "s"),
                    " text-anchor=\"middle\" class=\"small\"");
    }
    return out;
}

double after_kill(const demo_story& s, std::uint64_t ns) {
    return (static_cast<double>(ns) - static_cast<double>(s.killed_ns)) * 1e-9;
}

// What the curve shows: how much is done, or a training's loss, in powers of ten.
struct scale {
    bool losses = false;
    double least = 0, most = 1; // at the bottom, at the top
    double at(double value) const {
        return curve_bottom - (value - least) / (most - least) * (curve_bottom - curve_top);
    }
    double at(const progress_sample& sample) const {
        return at(losses ? std::clamp(std::log10(std::max(sample.loss, 1e-30)), least, most)
                         : sample.fraction);
    }
};

scale scale_of(const demo_story& s) {
    if (s.program != demo_program::training)
        return {};
    double least = 0, most = 0;
    bool first = true;
    for (const auto& sample : s.progress) {
        if (!(sample.loss > 0))
            continue;
        const double power = std::log10(sample.loss);
        least = first ? power : std::min(least, power);
        most = first ? power : std::max(most, power);
        first = false;
    }
    return {true, std::floor(least), std::max(std::ceil(most), std::floor(least) + 1)};
}

std::string marks(const scale& of) {
    std::string out;
    const double step = of.losses ? 1 : 0.25;
    for (double value = of.least; value <= of.most + step / 2; value += step) {
        out += line(left, of.at(value), right, of.at(value), "#e2e8f0");
        out += text(left - 8, of.at(value) + 4,
                    of.losses ? fmt::format("{:g}", std::pow(10, value)) : fmt::format("{:g} %", value * 100),
                    " text-anchor=\"end\" class=\"small\"");
    }
    return out;
}

std::string curve(const demo_story& s, const axis& a) {
    const auto scale = scale_of(s);
    std::string out = marks(scale);
    for (const auto host : {demo_host::primary, demo_host::standby}) {
        const char* colour = host == demo_host::primary ? primary_colour : standby_colour;
        std::string points;
        for (const auto& sample : s.progress) {
            if (sample.host != host)
                continue;
            const double x = a.at(after_kill(s, sample.ns)), y = scale.at(sample);
            points += fmt::format("{:.1f},{:.1f} ", x, y);
            out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, colour);
        }
        out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                           points, colour);
    }
    out += line(a.at(0), curve_top - 12, a.at(0), curve_bottom, kill_colour, " stroke-dasharray=\"4 3\"");
    out += text(a.at(0) + 6, curve_top - 4, "kill -9", fmt::format(" fill=\"{}\"", kill_colour).c_str());
    return out + ticks(a, curve_bottom, false);
}

std::string bar(const axis& a, double from, double to, double y, const char* colour, const char* opacity) {
    return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
                       "fill-opacity=\"{}\"/>\n",
                       a.at(from), y, std::max(0.0, a.at(to) - a.at(from)), lane_height - 6, colour, opacity);
}

std::string moment(const demo_story& s, const axis& a) {
    const double standby_y = lanes_top + lane_height, bottom = lanes_top + 2 * lane_height;
    const double ran = after_kill(s, s.running_ns);
    std::string out;
    out += text(left - 8, lanes_top + 14, "primary", " text-anchor=\"end\" class=\"small\"");
    out += text(left - 8, standby_y + 14, "standby", " text-anchor=\"end\" class=\"small\"");
    out += bar(a, a.from, 0, lanes_top, primary_colour, "1");
    out += bar(a, a.from, ran, standby_y, standby_colour, "0.25");
    out += bar(a, ran, a.to, standby_y, standby_colour, "1");
    out += ticks(a, bottom, true);
    double y = names_top;
    for (const auto& point : timeline_of(s)) {
        const double at = after_kill(s, point.ns);
        if (at < a.from || at > a.to)
            continue;
        const bool kill = point.ns == s.killed_ns;
        out += line(a.at(at), lanes_top - 8, a.at(at), bottom, kill ? kill_colour : text_colour);
        out +=
            text(left, y,
                 fmt::format("{:>10}",
                             kill ? "0" : format_offset(static_cast<std::int64_t>(std::llround(at * 1e9)))),
                 " class=\"small\"");
        out += text(left + 90, y, point.text);
        y += name_height;
    }
    return out;
}

// What of the story is near the kill.
axis near_kill(const demo_story& s) {
    axis a{0, 0};
    for (const auto ns :
         {s.committed_ns, s.killed_ns, s.detected_ns, s.decided_ns, s.running_ns, s.first_command_ns}) {
        if (ns == 0)
            continue;
        a.from = std::min(a.from, after_kill(s, ns));
        a.to = std::max(a.to, after_kill(s, ns));
    }
    const double margin = std::max(0.002, (a.to - a.from) / 10);
    return {a.from - margin, a.to + margin};
}

// From when the program says how far it is.
axis whole_run(const demo_story& s) {
    const auto first = s.progress.empty() ? s.killed_ns : s.progress.front().ns;
    const double from = std::min(0.0, after_kill(s, first)) - 1;
    const double to = std::max(from + 1, after_kill(s, s.ended_ns ? s.ended_ns : s.killed_ns));
    return {from, to};
}

} // namespace

std::string timeline_svg(const demo_story& s) {
    const double height = names_top + 6 * name_height;
    auto out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"14\" fill=\"{2}\">\n"
        "<style>.small {{ font-size: 12px; }} .title {{ font-size: 17px; font-weight: bold; }}</style>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width, height, text_colour);
    out += text(left, 28, "A program on a GPU goes on when its host dies", " class=\"title\"");
    const char* const what = s.program == demo_program::training ? "loss of a training" : "hashcat";
    out += text(left, 48, fmt::format("{} in a VM, {}; {}", what, s.gpu, s.cpu), " class=\"small\"");
    if (s.killed_ns == 0)
        return out + text(left, curve_top + 20, "nothing was killed") + "</svg>\n";
    out += curve(s, whole_run(s));
    out += text(left, lanes_top - 20, "the moment of the kill");
    out += moment(s, near_kill(s));
    return out + "</svg>\n";
}

} // namespace kagemusha::control
