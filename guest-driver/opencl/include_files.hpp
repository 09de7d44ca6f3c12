// SPDX-License-Identifier: GPL-2.0-or-later
//
// #include in a program's source means a file of the machine that the program runs on. The compiler is on the
// host and sees none of them (and if it sees one of that name, it is another one), so the driver puts them
// into the source before it goes there.
//
// Every #include line whose file is found is replaced by the file, with #line marks so that the compiler's
// messages name the right place. Lines in parts that a condition leaves out are replaced, too, and left out
// by the compiler as before. What is not found, or can't be named without the compiler (see
// include_macros.hpp), stays: then the compiler says so.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::opencl {

// The content of a regular file; nothing if there is none that can be read.
using file_reader = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_regular_file(const std::string& path);

// The source with the files that its #include lines name. Searched, as compilers do: for "name" the
// directory of the including file; then those of -I in `options`; then the current one. Names in `embedded`
// (headers that clCompileProgram was given) are not searched. Nothing when no line was replaced, or when the
// whole would be more than VGPU_MAX_PROGRAM_BYTES.
std::optional<std::string> with_included_files(std::string_view source, std::string_view options,
                                               const std::vector<std::string>& embedded,
                                               const file_reader& read);

} // namespace kagemusha::opencl
