// SPDX-License-Identifier: GPL-2.0-or-later
// lexer: the text of a PTX module as tokens. It copies nothing: tokens view the text, which must outlive
// them.
#pragma once

#include <cstdint>
#include <string_view>

namespace kagemusha::ptx {

enum class token_kind : std::uint8_t {
    end,
    word,    // add, %r1, $L__BB0_1
    dotted,  // .u32, .shared::cta; the text is without the dot
    integer, // bits
    real32,  // 0f3F800000; bits
    real64,  // 0d…, 1.5; bits
    string,  // without the quotes
    mark,    // one character; the text is it
};

struct token {
    token_kind kind = token_kind::end;
    std::uint32_t line = 1;
    std::string_view text;
    std::uint64_t bits = 0;

    bool is(char c) const { return kind == token_kind::mark && text[0] == c; }
    bool is_dotted(std::string_view name) const { return kind == token_kind::dotted && text == name; }
    bool is_word(std::string_view name) const { return kind == token_kind::word && text == name; }
};

class lexer {
public:
    explicit lexer(std::string_view text) : text_(text) {}

    // The next token. Throws refusal. After the end it gives `end` again.
    token next();

private:
    void skip_blank();
    token number(token t);
    token exact_real(token t);
    token decimal_real(token t, std::size_t end);
    char at(std::size_t offset) const {
        return position_ + offset < text_.size() ? text_[position_ + offset] : '\0';
    }

    std::string_view text_;
    std::size_t position_ = 0;
    std::uint32_t line_ = 1;
};

} // namespace kagemusha::ptx
