// SPDX-License-Identifier: GPL-2.0-or-later
//
// See bounded_xml.hpp.
#include "control/libvirt/bounded_xml.hpp"

#include <boost/property_tree/xml_parser.hpp>
#include <fmt/format.h>

#include <sstream>

namespace kagemusha::control {

namespace {

// A parser that calls itself for each level must not get more levels than the stack has.
bool is_too_deep(std::string_view xml) {
    std::size_t depth = 0;
    for (std::size_t i = 0; i + 1 < xml.size(); ++i)
        if (xml[i] == '<' && xml[i + 1] == '/')
            depth -= depth > 0 ? 1 : 0;
        else if (xml[i] == '<' && xml[i + 1] != '!' && xml[i + 1] != '?' && ++depth > deepest_xml)
            return true;
        else if (xml[i] == '/' && xml[i + 1] == '>')
            depth -= depth > 0 ? 1 : 0;
    return false;
}

} // namespace

std::optional<boost::property_tree::ptree> read_bounded_xml(std::string_view xml, const char* what,
                                                            std::string& error) {
    if (xml.size() > longest_xml || is_too_deep(xml)) {
        error = fmt::format("this is no {}: more than {} MiB, or than {} levels", what, longest_xml >> 20,
                            deepest_xml);
        return std::nullopt;
    }
    boost::property_tree::ptree tree;
    try {
        std::istringstream text{std::string(xml)};
        boost::property_tree::read_xml(text, tree);
    } catch (const boost::property_tree::xml_parser_error& why) {
        error = fmt::format("this is no XML: {}, line {}", why.message(), why.line());
        return std::nullopt;
    }
    return tree;
}

} // namespace kagemusha::control
