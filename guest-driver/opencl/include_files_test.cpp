// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which files #include lines name, and what the source becomes with them.
#include "include_files.hpp"
#include "include_macros.hpp"

#include <gtest/gtest.h>

#include <map>

namespace kagemusha::opencl {
namespace {

using files = std::map<std::string, std::string>;

std::string with_files(const files& known, std::string_view source, std::string_view options = "",
                       const std::vector<std::string>& embedded = {}) {
    const file_reader read = [&](const std::string& path) -> std::optional<std::string> {
        const auto found = known.find(path);
        return found == known.end() ? std::nullopt : std::optional(found->second);
    };
    return with_included_files(source, options, embedded, read).value_or("unchanged");
}

TEST(include_files, a_file_takes_the_place_of_its_line) {
    EXPECT_EQ(with_files({{"dir/a.h", "int a;\n"}}, "int x;\n#include \"a.h\"\nint y;\n", "-I dir"),
              "int x;\n#line 1 \"dir/a.h\"\nint a;\n#line 3 \"program source\"\nint y;\n");
}

TEST(include_files, a_file_without_a_last_newline_does_not_swallow_the_next_line) {
    EXPECT_EQ(with_files({{"a.h", "int a;"}}, "# include <a.h>\nint y;"),
              "#line 1 \"a.h\"\nint a;\n#line 2 \"program source\"\nint y;");
}

TEST(include_files, what_is_not_found_stays) {
    EXPECT_EQ(with_files({{"b.h", ""}}, "#include \"a.h\"\n"), "unchanged");
    EXPECT_EQ(with_files({{"a.h", ""}}, "int no_include_here;\n"), "unchanged");
}

TEST(include_files, the_first_directory_that_has_the_file_counts) {
    const files known{{"one/a.h", "1"}, {"two/a.h", "2"}, {"a.h", "3"}};
    EXPECT_NE(with_files(known, "#include <a.h>\n", "-Itwo -I one").find("\n2\n"), std::string::npos);
    EXPECT_NE(with_files(known, "#include <a.h>\n").find("\n3\n"), std::string::npos);
}

TEST(include_files, a_file_is_searched_beside_the_one_that_names_it) {
    const files known{{"/x/a.h", "#include \"sub/b.h\"\n"},
                      {"/x/sub/b.h", "#include \"c.h\"\n"},
                      {"/x/sub/c.h", "right\n"}};
    EXPECT_NE(with_files(known, "#include \"/x/a.h\"\n").find("right"), std::string::npos);
}

TEST(include_files, a_name_in_angle_brackets_is_not_searched_there) {
    const files known{{"/x/a.h", "#include <b.h>\n"}, {"/x/b.h", "wrong\n"}};
    const std::string out = with_files(known, "#include \"/x/a.h\"\n");
    EXPECT_NE(out.find("#include <b.h>"), std::string::npos);
    EXPECT_EQ(out.find("wrong"), std::string::npos);
}

TEST(include_files, embedded_headers_are_left_to_the_compiler) {
    EXPECT_EQ(with_files({{"a.h", "wrong"}}, "#include \"a.h\"\n", "", {"a.h"}), "unchanged");
}

TEST(include_files, macros_of_options_name_a_file_as_hashcat_does) {
    EXPECT_NE(
        with_files(
            {{"/usr/share/some where/inc_vendor.h", "right\n"}},
            "#ifdef KERNEL_STATIC\n#include M2S(INCLUDE_PATH/inc_vendor.h)\n#endif\n",
            R"(-D KERNEL_STATIC -D INCLUDE_PATH="/usr/share/some where" -D XM2S(x)=#x -D M2S(x)=XM2S(x))")
            .find("right"),
        std::string::npos);
}

TEST(include_files, macros_of_the_source_name_a_file) {
    EXPECT_NE(with_files({{"d/a.h", "right\n"}}, "#define DIR d\n#define S_(x) #x\n#define S(x) "
                                                 "S_(x)\n#define FILE \\\n  S(DIR/a.h)\n#include FILE\n")
                  .find("right"),
              std::string::npos);
}

TEST(include_files, a_macro_whose_meaning_depends_on_a_condition_names_no_file) {
    const files known{{"a.h", "a\n"}, {"b.h", "b\n"}};
    EXPECT_EQ(
        with_files(known, "#ifdef X\n#define F \"a.h\"\n#else\n#define F \"b.h\"\n#endif\n#include F\n"),
        "unchanged");
    EXPECT_EQ(with_files(known, "#define F \"a.h\"\n#ifdef X\n#undef F\n#endif\n#include F\n"), "unchanged");
}

TEST(include_files, an_option_comes_before_a_default_in_the_source) {
    EXPECT_NE(with_files({{"a.h", "right\n"}, {"b.h", "wrong\n"}},
                         "#ifndef F\n#define F \"b.h\"\n#endif\n#include F\n", "-DF=\\\"a.h\\\"")
                  .find("right"),
              std::string::npos);
}

TEST(include_files, redefinition_without_a_condition_counts_from_there_on) {
    const std::string out =
        with_files({{"a.h", "first\n"}, {"b.h", "second\n"}},
                   "#define F \"a.h\"\n#include F\n#undef F\n#define F \"b.h\"\n#include F\n");
    EXPECT_LT(out.find("first"), out.find("second"));
    EXPECT_NE(out.find("second"), std::string::npos);
}

TEST(include_files, comments_and_strings_are_no_directives) {
    const files known{{"a.h", "wrong"}};
    EXPECT_EQ(with_files(known, "/*\n#include \"a.h\"\n*/\n"), "unchanged");
    EXPECT_EQ(with_files(known, "// \\\n#include \"a.h\"\n"), "unchanged");
    EXPECT_EQ(with_files(known, "#define X \\\n#include \"a.h\"\n"), "unchanged");
    EXPECT_EQ(with_files(known, "#include \"a.h\" /* goes\non */\n"), "unchanged");
    EXPECT_NE(with_files(known, "char* s = \"/*\";\n#include \"a.h\" // and a comment\n").find("wrong"),
              std::string::npos);
}

TEST(include_files, lines_are_counted_over_continuations_and_comments) {
    EXPECT_NE(with_files({{"a.h", ""}}, "int \\\nx; /*\n*/\n#include \"a.h\"\nint y;\n")
                  .find("#line 5 \"program source\"\nint y;"),
              std::string::npos);
}

TEST(include_files, files_that_include_each_other_end) {
    const files known{{"a.h", "#ifndef A\n#define A\n#include \"b.h\"\nin_a\n#endif\n"},
                      {"b.h", "#include \"a.h\"\nin_b\n"}};
    const std::string out = with_files(known, "#include \"a.h\"\n");
    EXPECT_NE(out.find("in_a"), std::string::npos);
    EXPECT_NE(out.find("in_b"), std::string::npos);
    EXPECT_EQ(out.find("#include"), std::string::npos);
}

TEST(include_files, once_is_once) {
    const std::string out =
        with_files({{"a.h", "#pragma once\nint a;\n"}}, "#include \"a.h\"\n#include \"a.h\"\n");
    EXPECT_NE(out.find("#ifndef KAGEMUSHA_INCLUDED_0\n#define KAGEMUSHA_INCLUDED_0\n"), std::string::npos);
    EXPECT_EQ(out.find("KAGEMUSHA_INCLUDED_1"), std::string::npos);
}

TEST(include_files, growth_without_bound_is_given_up) {
    // Each file names the next one twice: 2^60 times the last one.
    files known;
    for (int i = 0; i < 60; ++i) {
        const std::string next = "#include \"" + std::to_string(i + 1) + "\"\n";
        known[std::to_string(i)] = next + std::string(1 << 20, ' ') + "\n" + next;
    }
    EXPECT_EQ(with_files(known, "#include \"0\"\n"), "unchanged");
    EXPECT_EQ(with_files({}, "#define A A B\n#define B A A\n#include A\n"), "unchanged");
}

TEST(include_files, only_regular_files_are_read) {
    EXPECT_FALSE(read_regular_file("/dev/zero"));
    EXPECT_FALSE(read_regular_file("/"));
    EXPECT_FALSE(read_regular_file("/nowhere/at/all"));
}

TEST(include_files, options_are_words) {
    EXPECT_EQ(split_options("-D A=\"b c\"  -I'd e' f\\ g \"\""),
              (std::vector<std::string>{"-D", "A=b c", "-Id e", "f g", ""}));
}

} // namespace
} // namespace kagemusha::opencl
