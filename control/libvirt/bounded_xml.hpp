// SPDX-License-Identifier: GPL-2.0-or-later
//
// XML of others as a tree: limited in size and depth before a parser sees it. Document types and entities of their own
// are not read. Pure.
#pragma once

#include <boost/property_tree/ptree.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control {

inline constexpr std::size_t longest_xml = 1 << 20, deepest_xml = 64;

// Nothing and a sentence, in which `what` is what it should be: "domain".
std::optional<boost::property_tree::ptree> read_bounded_xml(std::string_view xml, const char* what,
                                                            std::string& error);

} // namespace kagemusha::control
