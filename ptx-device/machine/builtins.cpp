// SPDX-License-Identifier: GPL-2.0-or-later
// Functions that device code calls and the device gives: vprintf, __assertfail, malloc and free.
#include "schedule.hpp"

#include <cstdio>

namespace kagemusha::machine {

namespace {

constexpr std::size_t text_limit = 4096; // of one string, of one line

// A string of the device; stops where memory does.
std::string text_at(warp& w, const instruction& i, std::uint32_t lane, std::uint64_t address) {
    std::string out;
    while (out.size() < text_limit) {
        const std::uint8_t* p = w.memory(i, lane, address++, 1, false);
        if (p == nullptr || *p == 0)
            break;
        out += static_cast<char>(*p);
    }
    return out;
}

// One conversion of a format, `%` to its letter, with a value from the buffer of arguments.
std::string converted(warp& w, const instruction& i, std::uint32_t lane, std::string spec,
                      std::uint64_t& at) {
    const char letter = spec.back();
    const bool is_long = spec.find('l') != std::string::npos || letter == 'p' || letter == 's';
    const bool real = std::string_view("fFeEgGaA").find(letter) != std::string_view::npos;
    const std::uint32_t bytes = is_long || real ? 8 : 4;
    at = (at + bytes - 1) / bytes * bytes;
    const std::uint8_t* p = w.memory(i, lane, at, bytes, false);
    if (p == nullptr)
        return {};
    std::uint64_t bits = 0;
    std::memcpy(&bits, p, bytes);
    at += bytes;
    std::erase_if(spec, [](char c) { return c == 'l' || c == 'h' || c == 'j' || c == 'z'; });
    char out[512] = {};
    if (letter == 's')
        return text_at(w, i, lane, bits);
    if (letter == 'c')
        return {static_cast<char>(bits)};
    if (real) {
        std::snprintf(out, sizeof out, spec.c_str(), std::bit_cast<double>(bits));
    } else if (letter == 'p') {
        std::snprintf(out, sizeof out, "0x%llx", static_cast<unsigned long long>(bits));
    } else {
        const bool sign = letter == 'd' || letter == 'i';
        spec.insert(spec.size() - 1, "ll");
        const long long value =
            sign && bytes == 4 ? static_cast<std::int32_t>(bits) : static_cast<long long>(bits);
        std::snprintf(out, sizeof out, spec.c_str(), value);
    }
    return out;
}

std::string formatted(warp& w, const instruction& i, std::uint32_t lane, std::uint64_t format,
                      std::uint64_t at) {
    const std::string text = text_at(w, i, lane, format);
    std::string out;
    for (std::size_t k = 0; k < text.size() && out.size() < text_limit && !w.of->failed; k++) {
        if (text[k] != '%') {
            out += text[k];
            continue;
        }
        // Flags, width and precision of at most two digits: nothing that writes, or writes much.
        std::size_t end = k + 1;
        while (end < text.size() && end - k < 12 &&
               std::string_view("-+ #0123456789.lhjz").find(text[end]) != std::string_view::npos) {
            end++;
        }
        const char letter = end < text.size() ? text[end] : '\0';
        const std::string spec = text.substr(k, end - k + 1);
        std::size_t digits = 0;
        std::size_t run = 0;
        for (char c : spec) {
            run = c >= '0' && c <= '9' ? run + 1 : 0;
            digits = std::max(digits, run);
        }
        if (letter == '%') {
            out += '%';
        } else if (std::string_view("diouxXcspfFeEgGaA").find(letter) != std::string_view::npos &&
                   letter != '\0' && digits <= 2) {
            out += converted(w, i, lane, spec, at);
        } else {
            out += spec;
        }
        k = end;
    }
    return out;
}

std::uint64_t argument(const frame& f, std::uint32_t lane, std::size_t number) {
    std::uint64_t value = 0;
    const parameter& p = f.code->params[number];
    std::memcpy(&value, &f.params[lane * f.code->param_bytes + p.offset], std::min<std::size_t>(p.bytes, 8));
    return value;
}

void give(frame& f, std::uint32_t lane, std::uint64_t value) {
    for (const parameter& p : f.code->results) {
        std::memcpy(&f.params[lane * f.code->param_bytes + p.offset], &value,
                    std::min<std::size_t>(p.bytes, 8));
    }
}

// [x,y,z] of three special registers side by side.
std::string place_of(const warp& w, std::uint32_t lane, special_register x) {
    std::string out;
    for (std::size_t d = 0; d < 3; d++)
        out += (d == 0 ? "[" : ",") + std::to_string(w.special[static_cast<std::size_t>(x) + d].v[lane]);
    return out + "]";
}

} // namespace

void run_builtin(warp& w, const instruction& i, frame& callee, mask m) {
    device_heap* const heap = w.of->request->heap;
    for_lanes(m, [&](std::uint32_t l) {
        switch (callee.code->native) {
        case builtin::vprintf: {
            const std::string line = formatted(w, i, l, argument(callee, l, 0), argument(callee, l, 1));
            if (w.of->request->print && !w.of->failed)
                w.of->request->print(line);
            give(callee, l, line.size());
            break;
        }
        case builtin::assertfail:
            if (!w.of->failed) {
                const std::string file = text_at(w, i, l, argument(callee, l, 1));
                const std::string what = text_at(w, i, l, argument(callee, l, 0));
                const std::string where = text_at(w, i, l, argument(callee, l, 3));
                w.fail(fault_kind::assertion, i);
                // As NVIDIA's driver writes it.
                w.of->result.message =
                    file + ":" + std::to_string(static_cast<std::uint32_t>(argument(callee, l, 2))) + ": " +
                    where + ": block: " + place_of(w, l, special_register::ctaid_x) +
                    ", thread: " + place_of(w, l, special_register::tid_x) + " Assertion `" + what +
                    "` failed.";
            }
            break;
        case builtin::malloc:
            give(callee, l, heap != nullptr ? heap->allocate(argument(callee, l, 0)) : 0);
            break;
        case builtin::free:
            if (heap != nullptr)
                heap->release(argument(callee, l, 0));
            break;
        default:
            give(callee, l, 0);
            break;
        }
    });
}

} // namespace kagemusha::machine
