# SPDX-License-Identifier: GPL-2.0-or-later
#
# Compiler flags that hold for every target of ours: warnings are errors, the sanitizer of the chosen preset, ccache
# when the machine has it, and the include directory of the formats that two parties agree on (proto/).

set(KAGEMUSHA_SANITIZE "" CACHE STRING "Sanitizers for every target, as the compiler spells them: address,undefined or thread")
option(KAGEMUSHA_TOGETHER "Compile several files as one: once from scratch is faster, after a change slower" OFF)
set(KAGEMUSHA_SOURCE_ROOT "${CMAKE_SOURCE_DIR}" CACHE PATH "Where programs look for our scripts that are in no installation")
option(KAGEMUSHA_WERROR "Treat warnings as errors" ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

find_program(KAGEMUSHA_CCACHE ccache)
mark_as_advanced(KAGEMUSHA_CCACHE)
if(KAGEMUSHA_CCACHE)
    foreach(language IN ITEMS C CXX)
        if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
            # A clone elsewhere finds what this one compiled: paths are relative to the tree. What is not found is not
            # preprocessed twice: the compiler itself says which files it read.
            set(CMAKE_${language}_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
                CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 ${KAGEMUSHA_CCACHE})
        endif()
    endforeach()
endif()

# For what makes PTX of C and CUDA C++; whether it can, those who use it try.
find_program(KAGEMUSHA_NVPTX_CLANG NAMES clang-19 clang)

add_compile_options(-Wall -Wextra)
if(KAGEMUSHA_WERROR)
    add_compile_options(-Werror)
endif()

if(KAGEMUSHA_SANITIZE)
    add_compile_options(-fsanitize=${KAGEMUSHA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${KAGEMUSHA_SANITIZE})
endif()

include(${CMAKE_CURRENT_LIST_DIR}/KagemushaHardening.cmake)

# Exported symbols are chosen, not accidental: the C ABI marks its own.
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# Shared headers live at fixed places: "proto/abi/….h" and "guest-driver/kernel/uapi/….h" are included by these names.
include_directories(${CMAKE_SOURCE_DIR})

# kagemusha_compile_together(TARGET [ALONE file…] [JOINED "folder folder…"…]): with KAGEMUSHA_TOGETHER the files of each
# folder of this target are one for the compiler, which then reads the headers of libraries and makes their templates once
# and not for each file; those of folders that are JOINED, too. ALONE: files that have a name of their own twice, in two
# anonymous namespaces. A file's group is that of all targets of its directory, so each that has it says so.
function(kagemusha_compile_together target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ALONE;JOINED")
    if(NOT KAGEMUSHA_TOGETHER)
        return()
    endif()
    get_target_property(sources ${target} SOURCES)
    set(groups "")
    foreach(source IN LISTS sources)
        if(source MATCHES "\\.cpp$" AND NOT source IN_LIST arg_ALONE)
            get_filename_component(folder "${source}" DIRECTORY)
            if(folder STREQUAL "")
                set(folder .)
            endif()
            foreach(joined IN LISTS arg_JOINED)
                separate_arguments(folders UNIX_COMMAND "${joined}")
                if(folder IN_LIST folders)
                    list(GET folders 0 folder)
                endif()
            endforeach()
            string(MAKE_C_IDENTIFIER "folder_${folder}" group)
            list(APPEND groups ${group})
            list(APPEND files_of_${group} ${source})
        endif()
    endforeach()
    list(REMOVE_DUPLICATES groups)
    foreach(group IN LISTS groups)
        list(LENGTH files_of_${group} files)
        if(files GREATER 1)
            set_source_files_properties(${files_of_${group}} PROPERTIES UNITY_GROUP ${group})
        endif()
    endforeach()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
