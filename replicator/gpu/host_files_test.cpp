// SPDX-License-Identifier: GPL-2.0-or-later
// Programs that name files of the host, and those that only look so. Each text is C or options of a compiler.
#include "gpu/host_files.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kagemusha::gpu {
namespace {

std::string cleaned(const std::string& source) {
    const auto bytes = without_host_files(std::as_bytes(std::span(source)));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::string taken_out = "#error files of the host are not for programs";

TEST(host_files, an_honest_program_is_left_as_it_is) {
    for (const std::string source :
         {"", "\n", "kernel void k() {}", "a\r\nb\r\n", "#define X 1\n#if X\n#endif\n#pragma unroll\n",
          "#include \"inc_vendor.h\"\n#include <types/a.h>\n", "#include \"a.h\" // and not /b.h\n",
          "int included = 3; // # of things\n", "#define STR(x) #x\nSTR(include)\n",
          "x = a / b; /* ../x */\n", "#line 3 \"/usr/share/hashcat/OpenCL/inc.h\"\n",
          "a = b ? c : d; \\\n  e;\n", "printf(\"# %d\\n\", 3);\n", "#error /x\n#warning ../y\n"})
        EXPECT_EQ(cleaned(source), source);
}

TEST(host_files, what_names_the_hosts_files_is_an_error_in_its_line) {
    for (const std::string line : {"#include \"/etc/passwd\"",
                                   "#include </proc/self/maps>",
                                   "  #  include\t</x>",
                                   "#include</x>",
                                   "#/* a */include/* b */\"/x\"",
                                   "#include \"a/../../x\"",
                                   "#include <..>",
                                   "#include X",
                                   "#include X(y)",
                                   "#include",
                                   "#include_next </x>",
                                   "#import </x>",
                                   "#embed </x>",
                                   "%:include </x>",
                                   "?\?=include </x>",
                                   "*/ #include </x>",
                                   "*/ /* */ #include </x>",
                                   "#include < /x>",
                                   "#include \"\"",
                                   "# /* goes on",
                                   "#include /* goes on",
                                   "#include </x",
                                   "#include \"C:x\"",
                                   "#include \"a\\b\"",
                                   "#include __FILE__",
                                   "int a; #include </x>"})
        EXPECT_EQ(cleaned("a\n" + line + "\nb\n"), "a\n" + taken_out + "\nb\n") << line;
}

TEST(host_files, lines_that_go_on_are_one) {
    EXPECT_EQ(cleaned("#inc\\\nlude </x>\nb"), taken_out + "\n\nb");
    EXPECT_EQ(cleaned("\\\n#include </x>\nb"), taken_out + "\n\nb");
    EXPECT_EQ(cleaned("#inc\\ \t\nlude </x>\nb"), taken_out + "\n\nb");
    EXPECT_EQ(cleaned("#inc\\\r\nlude </x>\r\nb"), taken_out + "\n\r\nb");
    EXPECT_EQ(cleaned("#inc?\?/\nlude </x>\nb"), taken_out + "\n\nb");
    EXPECT_EQ(cleaned("#include \\\n\\\n</x>\nb"), taken_out + "\n\n\nb");
    EXPECT_EQ(cleaned("#include \\"), taken_out);
}

TEST(host_files, a_0_is_a_space_and_a_return_ends_a_line) {
    EXPECT_EQ(cleaned(std::string("#\0include\0</x>\nb", 16)), taken_out + "\nb");
    EXPECT_EQ(cleaned("int a;\r#include </x>\rb"), "int a;\r" + taken_out + "\rb");
}

TEST(host_files, options_that_name_no_file_stay) {
    for (const std::string options :
         {"", "-cl-std=CL3.0 -w", "-D A=1 -DB -D 'C=1 2' -U D", "-D XM2S(x)=#x -D PATH=/usr/share/x",
          "-cl-kernel-arg-info -g -O3 -Werror -Wno-unused", "-x spir -spir-std=1.2", "-D \"A=( -1 )\"",
          "-cl-nv-maxrregcount=64 -nv-line-info", "-create-library -enable-link-options",
          "-fno-bin-source -mwavefrontsize64"})
        EXPECT_EQ(without_host_files(options), options);
}

TEST(host_files, folders_of_headers_are_the_guests) {
    EXPECT_EQ(without_host_files("-I /usr/share/hashcat/OpenCL -w -IOpenCL/ -D A=1"), "-w -D A=1");
    EXPECT_EQ(without_host_files("-I \"a b\" -w"), "-w");
    EXPECT_EQ(without_host_files("-I"), "");
}

TEST(host_files, options_that_might_name_a_file_are_refused) {
    for (const std::string options : {"-include /etc/passwd",
                                      "-include/etc/passwd",
                                      "-imacros x",
                                      "-isystem /",
                                      "-iquote /",
                                      "-idirafter /",
                                      "--include=/x",
                                      "--sysroot=/",
                                      "-isysroot /",
                                      "@/etc/passwd",
                                      "-Xclang -load",
                                      "-Wp,-include,/x",
                                      "-Wl,/x",
                                      "-Wa,x",
                                      "-fplugin=/x",
                                      "-fmodule-map-file=/x",
                                      "-fprofile-use=/x",
                                      "-mllvm -x",
                                      "-o /x",
                                      "-MF /x",
                                      "-save-temps",
                                      "-resource-dir /",
                                      "-s /x",
                                      "/etc/passwd",
                                      "x.cl",
                                      "-x c",
                                      "-x",
                                      "-D",
                                      "-D -include",
                                      "-w \"-include\" x",
                                      "-w '-include' x",
                                      "-D 'A -include /x'",
                                      "-w -in\\clude x",
                                      "-D A=\\\" -include /x -D B=\\\"",
                                      "-w\t-include\n/x",
                                      "-w \"@/x\"",
                                      "-I -include /x"})
        EXPECT_EQ(without_host_files(options), std::nullopt) << options;
}

} // namespace
} // namespace kagemusha::gpu
