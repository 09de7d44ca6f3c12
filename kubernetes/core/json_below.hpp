// SPDX-License-Identifier: GPL-2.0-or-later
//
// Objects of the API as they come: any part may be missing, or be something else. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include <initializer_list>
#include <string>

namespace kagemusha::kubernetes {

// A text that an object may have; "" if it has none there, or something else. Of what is no object, too.
inline std::string text_of(const nlohmann::json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// The value at this path of keys; null: there is none.
inline const nlohmann::json& below(const nlohmann::json& object, std::initializer_list<const char*> keys) {
    static const nlohmann::json none;
    const nlohmann::json* at = &object;
    for (const char* key : keys) {
        const auto found = at->is_object() ? at->find(key) : at->end();
        if (!at->is_object() || found == at->end())
            return none;
        at = &*found;
    }
    return *at;
}

} // namespace kagemusha::kubernetes
