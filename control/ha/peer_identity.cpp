// SPDX-License-Identifier: GPL-2.0-or-later
//
// See peer_identity.hpp.
#include "control/ha/peer_identity.hpp"

#include "control/ha/guest_files.hpp"
#include "mirror/protocol/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string_view>

namespace kagemusha::ha {

namespace {

using mirror::description_part;
using mirror::part_rule;

constexpr std::size_t longest_shown = 200; // of a value, in a sentence that has room for two

std::string shortened(const std::string& text) {
    return text.size() <= longest_shown ? text : text.substr(0, longest_shown) + "…";
}

const description_part* find(const description_parts& parts, const std::string& name) {
    const auto found =
        std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.name == name; });
    return found == parts.end() ? nullptr : &*found;
}

std::vector<std::string> words_of(const std::string& list) {
    std::istringstream in(list);
    std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
    std::sort(words.begin(), words.end()); // the peer's may be in any order
    return words;
}

std::string only_in(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    std::vector<std::string> rest;
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
    return shortened(fmt::format("{}", fmt::join(rest, " ")));
}

// Of lists only what differs: they are long.
std::string difference(const std::string& name, const std::string& mine, const std::string& theirs) {
    const auto my_words = words_of(mine), their_words = words_of(theirs);
    if (my_words.size() < 4 || their_words.size() < 4)
        return fmt::format("{}: \"{}\" there, \"{}\" here", name, shortened(theirs), shortened(mine));
    const auto more = only_in(their_words, my_words), less = only_in(my_words, their_words);
    std::string text = name + ": ";
    if (!more.empty())
        text += fmt::format("\"{}\" only there", more);
    if (!less.empty())
        text += fmt::format("{}\"{}\" only here", more.empty() ? "" : ", ", less);
    return text;
}

const char* advice(const std::string& name) {
    if (name == "machine")
        return "name the same 'machine' in both hosts' description, one that the older QEMU has";
    if (name.starts_with("CPU"))
        return "name a model that both hosts have as 'cpu' in the description, and start the VM anew";
    if (name == "GPU limits")
        return "name these limits in [gpu.properties], the same on both hosts";
    if (is_guest_file(name))
        return "copy what the primary's host has kept of it (docs/packages.md, Upgrades), or start the VM "
               "anew with "
               "the same release and files on both";
    return "use the same files on both";
}

std::string refusal(const std::string& name, const std::string& what) {
    return fmt::format("both hosts describe the VM differently: {}: {}", what, advice(name));
}

std::string missing(const description_part& part, const char* where) {
    return refusal(part.name, fmt::format("{} is missing {}", part.name, where));
}

} // namespace

mirror::hello supervisor_hello(mirror::role role, const std::string& vm) {
    mirror::hello h;
    h.role = role;
    h.vm = vm;
    h.gpu = "supervisor";
    h.capabilities = {"supervision", mirror::supervision_2_capability, mirror::lineage_capability,
                      mirror::heartbeat_echo_capability};
    h.checkpoint_version = checkpoint_version;
    h.oldest_checkpoint_version = oldest_checkpoint_version;
    return h;
}

// Without a record that refuses one of two, who may run a VM that was handed over is settled by words that an
// older release does not say (RUNNING, TAKEOVER_FAILED, BELIEF), and it keeps no record of whom it cut off.
std::string why_not_paired(const mirror::hello& mine, const mirror::hello& theirs, bool shared_record) {
    auto why = mirror::disagreement(mine, theirs);
    if (why.empty() && !mirror::has_capability(theirs, "supervision"))
        why = "the peer is no supervisor of a VM: check the addresses";
    if (why.empty() && !shared_record && !mirror::has_capability(theirs, mirror::supervision_2_capability))
        why =
            fmt::format("the {}'s release is too old for a pair with the arbiter \"fence\": it does not say "
                        "whether it runs a VM that was handed over. Stop the VM, install this release there, "
                        "and start it again",
                        theirs.role == mirror::role::primary ? "primary" : "standby");
    return why;
}

std::string why_not_movable(const description_parts& mine, const description_parts& theirs) {
    for (const auto& part : mine) {
        if (part.rule == part_rule::shown)
            continue;
        const auto* other = find(theirs, part.name);
        if (!other && part.rule == part_rule::equal)
            return missing(part, "there");
        if (other && other->value != part.value)
            return refusal(part.name, difference(part.name, part.value, other->value));
    }
    for (const auto& part : theirs)
        if (part.rule == part_rule::equal && !find(mine, part.name))
            return missing(part, "here");
    return {};
}

std::string allowed_differences(const description_parts& mine, const description_parts& theirs) {
    std::string text;
    for (const auto& part : theirs) {
        const auto* ours = find(mine, part.name);
        if (part.rule == part_rule::shown && ours && ours->value != part.value)
            text += (text.empty() ? "" : "; ") + difference(part.name, ours->value, part.value);
    }
    return text;
}

void peer_identity::on_hello(const mirror::hello& mine, const mirror::hello& theirs) {
    version_ = mirror::common_version(mine, theirs);
    checkpoint_version_ = mirror::common_checkpoint_version(mine, theirs);
}

mirror::supervision peer_identity::description(const std::string& text,
                                               const description_parts& parts) const {
    mirror::supervision m{mirror::supervision_kind::description, 0, text};
    if (version_ >= parts_version)
        m.parts = parts;
    return m;
}

std::string peer_identity::on_description(const mirror::supervision& m, const std::string& text,
                                          const description_parts& parts) {
    if (version_ >= parts_version && !(parts.empty() && m.parts.empty())) {
        differences_ = allowed_differences(parts, m.parts);
        return why_not_movable(parts, m.parts);
    }
    if (!parts.empty())
        differences_ = "an older release there: only the description and the files were compared";
    return m.text == text ? std::string()
                          : "both hosts describe the VM differently (description, kernel or an image): use "
                            "the same files on both";
}

} // namespace kagemusha::ha
