# SPDX-License-Identifier: GPL-2.0-or-later
#
# What makes a mistake in our code harder to use for an attack; for every target. QEMU gets the same from
# scripts/build-qemu. tests/hardening reads it back from the finished files. What it costs: docs/results/hardening.md.
#
# Builds with a sanitizer have none of it: the sanitizers find more, and FORTIFY's functions hide calls from them.

if(KAGEMUSHA_SANITIZE)
    return()
endif()

# Return addresses: canaries in functions with arrays; no frame jumps over the guard page below a stack.
add_compile_options(-fstack-protector-strong -fstack-clash-protection)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    # Intel CET: where an indirect branch may land, and shadow stacks. A kernel and a C library that know it enforce it.
    add_compile_options(-fcf-protection=full)
endif()

# Lengths of memcpy(), read() and their like against the size of the object. FORTIFY needs an optimising compiler; a
# distribution's own level gives way to ours. Not the bounds of containers (_GLIBCXX_ASSERTIONS): that made the decoder
# of requests 16 % slower.
add_compile_options("$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")

# The dynamic linker resolves everything at the start and makes its tables read-only; no stack is executable; programs
# are loaded at random addresses.
add_link_options(LINKER:-z,relro,-z,now,-z,noexecstack)
include(CheckPIESupported)
check_pie_supported()
