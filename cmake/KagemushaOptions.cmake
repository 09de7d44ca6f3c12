# SPDX-License-Identifier: GPL-2.0-or-later
#
# Compiler flags that hold for every target of ours: warnings are errors, the sanitizer of the chosen preset, ccache
# when the machine has it, and the include directory of the formats that two parties agree on (proto/).

set(KAGEMUSHA_SANITIZE "" CACHE STRING "Sanitizers for every target, as the compiler spells them: address,undefined or thread")
option(KAGEMUSHA_WERROR "Treat warnings as errors" ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

find_program(KAGEMUSHA_CCACHE ccache)
mark_as_advanced(KAGEMUSHA_CCACHE)
if(KAGEMUSHA_CCACHE)
    foreach(language IN ITEMS C CXX)
        if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
            # A clone elsewhere finds what this one compiled: paths are relative to the tree.
            set(CMAKE_${language}_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
                CCACHE_NOHASHDIR=1 ${KAGEMUSHA_CCACHE})
        endif()
    endforeach()
endif()

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
