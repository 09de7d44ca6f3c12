// SPDX-License-Identifier: GPL-2.0-or-later
// lexer: see lexer.hpp.
#include "lexer.hpp"

#include "refusal.hpp"

#include <bit>
#include <charconv>

namespace kagemusha::ptx {

namespace {

bool digit(char c) {
    return c >= '0' && c <= '9';
}
bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool begins_word(char c) {
    return letter(c) || c == '_' || c == '$' || c == '%';
}
bool in_word(char c) {
    return letter(c) || digit(c) || c == '_' || c == '$';
}

int value_of(char c) {
    if (digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

} // namespace

void lexer::skip_blank() {
    while (position_ < text_.size()) {
        const char c = text_[position_];
        if (c == '\n') {
            line_++;
            position_++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f') {
            position_++;
        } else if ((c == '/' && at(1) == '/') || c == '#') { // a comment; the preprocessor's mark of a line
            while (position_ < text_.size() && text_[position_] != '\n')
                position_++;
        } else if (c == '/' && at(1) == '*') {
            const std::size_t end = text_.find("*/", position_ + 2);
            if (end == std::string_view::npos)
                refuse(line_, "a comment does not end");
            for (; position_ < end + 2; position_++)
                line_ += text_[position_] == '\n';
        } else {
            return;
        }
    }
}

// 0fXXXXXXXX and 0dXXXXXXXXXXXXXXXX: the bits of a float.
token lexer::exact_real(token t) {
    const bool wide = at(1) == 'd' || at(1) == 'D';
    const std::size_t digits = wide ? 16 : 8;
    for (std::size_t i = 0; i < digits; i++) {
        const int v = value_of(at(2 + i));
        if (v > 15)
            refuse(line_, "a float in hexadecimal has too few digits");
        t.bits = t.bits << 4 | static_cast<unsigned>(v);
    }
    t.kind = wide ? token_kind::real64 : token_kind::real32;
    t.text = text_.substr(position_, 2 + digits);
    position_ += 2 + digits;
    return t;
}

token lexer::decimal_real(token t, std::size_t end) {
    double value = 0;
    const auto [stop, fault] = std::from_chars(text_.data() + position_, text_.data() + end, value);
    if (fault != std::errc() || stop != text_.data() + end)
        refuse(line_, quoted(text_.substr(position_, end - position_)) + " is no number");
    t.kind = token_kind::real64;
    t.text = text_.substr(position_, end - position_);
    t.bits = std::bit_cast<std::uint64_t>(value);
    position_ = end;
    return t;
}

token lexer::number(token t) {
    if (at(0) == '0' && (at(1) == 'f' || at(1) == 'F' || at(1) == 'd' || at(1) == 'D'))
        return exact_real(t);
    int base = 10;
    std::size_t start = position_;
    if (at(0) == '0' && (at(1) == 'x' || at(1) == 'X' || at(1) == 'b' || at(1) == 'B')) {
        base = at(1) == 'x' || at(1) == 'X' ? 16 : 2;
        start += 2;
    } else if (at(0) == '0') {
        base = 8;
    }
    std::size_t end = start;
    while (end < text_.size() && value_of(text_[end]) < (base == 16 ? 16 : 10))
        end++;
    const char after = end < text_.size() ? text_[end] : '\0';
    const char second = end + 1 < text_.size() ? text_[end + 1] : '\0';
    if ((base == 10 || base == 8) && ((after == '.' && digit(second)) || after == 'e' || after == 'E')) {
        end++;
        while (end < text_.size() && (digit(text_[end]) || text_[end] == 'e' || text_[end] == 'E' ||
                                      ((text_[end] == '-' || text_[end] == '+') &&
                                       (text_[end - 1] == 'e' || text_[end - 1] == 'E')))) {
            end++;
        }
        return decimal_real(t, end);
    }
    const auto [stop, fault] = std::from_chars(text_.data() + start, text_.data() + end, t.bits, base);
    if (fault != std::errc() || stop != text_.data() + end || start == end)
        refuse(line_, quoted(text_.substr(position_, end - position_)) + " is no number of 64 bits");
    if (end < text_.size() && (text_[end] == 'U' || text_[end] == 'u'))
        end++;
    t.kind = token_kind::integer;
    t.text = text_.substr(position_, end - position_);
    position_ = end;
    return t;
}

token lexer::next() {
    skip_blank();
    token t;
    t.line = line_;
    if (position_ >= text_.size())
        return t;
    const char c = text_[position_];
    if (digit(c))
        return number(t);
    std::size_t end = position_ + 1;
    if (begins_word(c)) {
        while (end < text_.size() && in_word(text_[end]))
            end++;
        t.kind = token_kind::word;
        t.text = text_.substr(position_, end - position_);
    } else if (c == '.' && (in_word(at(1)))) {
        while (end < text_.size() && (in_word(text_[end]) || (text_.substr(end, 2) == "::")))
            end += text_[end] == ':' ? 2 : 1;
        t.kind = token_kind::dotted;
        t.text = text_.substr(position_ + 1, end - position_ - 1);
    } else if (c == '"') {
        while (end < text_.size() && text_[end] != '"' && text_[end] != '\n')
            end++;
        if (end >= text_.size() || text_[end] != '"')
            refuse(line_, "a string does not end");
        t.kind = token_kind::string;
        t.text = text_.substr(position_ + 1, end - position_ - 1);
        end++;
    } else {
        if (c < ' ' || c > '~')
            refuse(line_, "a byte that no PTX text has");
        t.kind = token_kind::mark;
        t.text = text_.substr(position_, 1);
    }
    position_ = end;
    return t;
}

} // namespace kagemusha::ptx
