# SPDX-License-Identifier: GPL-2.0-or-later
#
# How a test is declared, everywhere in the tree:
#
#   kagemusha_add_test(name LABEL unit SOURCES a_test.cpp [LIBS target…] [ALONE a_test.cpp] [DATA_DIR dir]
#                      [TIMEOUT seconds] [COST seconds] [SLOTS n])
#
# It builds one GoogleTest program and registers it with ctest under the label: unit, conformance, sim, fuzz, device,
# tidy, vm, vm-long, soak, packages or gpu. `./kage test` runs all but vm-long, soak, packages, gpu and what is SLOW. DATA_DIR
# becomes the working directory of the test. ALONE: kagemusha_compile_together.
#
#   kagemusha_add_script_test(name LABEL vm COMMAND program args… [TIMEOUT seconds] [COST seconds] [SLOTS n] [SERIAL] [SLOW])
#
# registers a program that is not GoogleTest (a fuzz smoke run, a whole VM). Exit status 77 means "not possible on this
# machine" and is shown as skipped. SERIAL keeps it from running beside another one (VMs share few cores). COST is about
# how long it takes: long ones that are not serial begin first, so that no core waits for the last of them.
#
# SLOTS: how much of a core it needs. `./kage test` gives each core three slots (ctest's -j is three times the cores), so
# that what a test does not use while it waits is used by another one:
#
#   3  computes all the time (the default)
#   2  computes two thirds of its time: guests
#   1  waits most of its time: for leases, time-outs, other processes
#
# Processor seconds by seconds on the clock decide it, on a machine that does nothing else.

find_package(GTest QUIET)
# Its macros are an `if` with an `else`, so gcc warns where one is all that an `if` of ours does.
if(TARGET GTest::gtest)
    set_property(TARGET GTest::gtest APPEND PROPERTY INTERFACE_COMPILE_OPTIONS -Wno-dangling-else)
endif()

# Tests that crash a child on purpose want to see its signal, not the sanitizer's exit. LLVM (in PoCL, which runs in the
# process of some tests) replaces a thread's stack for signals, which AddressSanitizer then can't give back.
set(KAGEMUSHA_TEST_ENVIRONMENT "")
if(KAGEMUSHA_SANITIZE MATCHES "address")
    list(APPEND KAGEMUSHA_TEST_ENVIRONMENT 
        "ASAN_OPTIONS=handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:use_sigaltstack=0"
        "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0")
elseif(KAGEMUSHA_SANITIZE MATCHES "thread")
    list(APPEND KAGEMUSHA_TEST_ENVIRONMENT 
        "TSAN_OPTIONS=handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
endif()

set(KAGEMUSHA_TEST_LABELS unit conformance sim fuzz device tidy vm vm-long soak upgrade packages gpu)

function(_kagemusha_check_label name label)
    if(NOT label IN_LIST KAGEMUSHA_TEST_LABELS)
        message(FATAL_ERROR "test ${name}: label '${label}' is not one of: ${KAGEMUSHA_TEST_LABELS}")
    endif()
endfunction()

function(_kagemusha_schedule name cost slots)
    if(cost)
        set_tests_properties(${name} PROPERTIES COST ${cost})
    endif()
    if(NOT slots)
        set(slots 3)
    endif()
    set_tests_properties(${name} PROPERTIES PROCESSORS ${slots})
endfunction()

function(kagemusha_add_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;DATA_DIR;TIMEOUT;COST;SLOTS" "SOURCES;LIBS;ALONE")
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "test ${name}: unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
    endif()
    if(NOT arg_LABEL)
        set(arg_LABEL unit)
    endif()
    _kagemusha_check_label(${name} ${arg_LABEL})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 300)
    endif()
    if(NOT TARGET GTest::gtest_main)
        message(FATAL_ERROR "GoogleTest is missing: install the package libgtest-dev (./kage build does it)")
    endif()

    add_executable(${name} ${arg_SOURCES})
    kagemusha_compile_together(${name} ALONE ${arg_ALONE})
    target_link_libraries(${name} PRIVATE ${arg_LIBS} GTest::gtest GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${KAGEMUSHA_TEST_ENVIRONMENT}")
    _kagemusha_schedule(${name} "${arg_COST}" "${arg_SLOTS}")
    if(arg_DATA_DIR)
        set_tests_properties(${name} PROPERTIES WORKING_DIRECTORY ${arg_DATA_DIR})
    endif()
endfunction()

function(kagemusha_add_script_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL;SLOW" "LABEL;TIMEOUT;COST;SLOTS" "COMMAND")
    if(arg_UNPARSED_ARGUMENTS OR NOT arg_COMMAND OR NOT arg_LABEL)
        message(FATAL_ERROR "test ${name}: needs LABEL and COMMAND; unknown: ${arg_UNPARSED_ARGUMENTS}")
    endif()
    _kagemusha_check_label(${name} ${arg_LABEL})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 600)
    endif()
    add_test(NAME ${name} COMMAND ${arg_COMMAND})
    if(arg_SLOW)
        list(APPEND arg_LABEL slow)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${KAGEMUSHA_TEST_ENVIRONMENT}")
    _kagemusha_schedule(${name} "${arg_COST}" "${arg_SLOTS}")
    if(arg_SERIAL)
        set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
    endif()
endfunction()
