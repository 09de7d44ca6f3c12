# SPDX-License-Identifier: GPL-2.0-or-later
# Makes a C++ header that has files as text: cmake -DOUT=… -DNAMESPACE=… "-DFILES=NAME=FILE+FILE;…" -P embed.cmake
set(text "// Made by loop/embed.cmake.\n#pragma once\nnamespace ${NAMESPACE} {\n")
foreach(entry IN LISTS FILES)
    string(REGEX MATCH "^([^=]+)=(.*)$" _ "${entry}")
    string(APPEND text "inline constexpr char ${CMAKE_MATCH_1}[] =")
    string(REPLACE "+" ";" parts "${CMAKE_MATCH_2}")
    foreach(part IN LISTS parts)
        file(READ ${part} content)
        # A literal of more than 64 KiB is not portable; one piece for each file is far below that.
        string(APPEND text "\n    R\"kagemusha(${content})kagemusha\"")
    endforeach()
    string(APPEND text ";\n")
endforeach()
string(APPEND text "} // namespace ${NAMESPACE}\n")
file(WRITE ${OUT} "${text}")
