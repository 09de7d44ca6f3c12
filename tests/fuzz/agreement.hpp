// SPDX-License-Identifier: GPL-2.0-or-later
// agreement: one stream through two decoders at once. They must give the same ops, one by one, and end the
// same way: with the same sentence about the same command, where a rule is broken.
#ifndef KAGEMUSHA_TESTS_FUZZ_AGREEMENT_HPP
#define KAGEMUSHA_TESTS_FUZZ_AGREEMENT_HPP

#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

#include "codec/decode.hpp"

namespace kagemusha::fuzz {

template <class T>
bool same_view(std::span<const T> a, std::span<const T> b) {
    return a.size() == b.size() && (a.empty() || a.data() == b.data());
}
inline bool same_view(std::string_view a, std::string_view b) {
    return a.size() == b.size() && (a.empty() || a.data() == b.data());
}
inline bool same_view(const codec::payload_source& a, const codec::payload_source& b) {
    return a.bytes == b.bytes && a.index == b.index && same_view(a.inline_bytes, b.inline_bytes);
}
inline bool same_view(const codec::argument_list& a, const codec::argument_list& b) {
    // The arguments' bytes are not shown, so what comes out of them is compared: by a sum over it all.
    const auto sum = [](const codec::argument_list& list) {
        std::uint64_t s = list.size();
        list.for_each([&s](const codec::launch_argument& x) {
            for (const std::uint64_t n :
                 {std::uint64_t{x.index}, static_cast<std::uint64_t>(x.kind), x.bytes, x.object,
                  static_cast<std::uint64_t>(x.value.size()),
                  static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(x.value.data()))}) {
                s = (s ^ n) * 0x9e3779b97f4a7c15;
            }
        });
        return s;
    };
    return sum(a) == sum(b);
}
inline bool same_view(const codec::run_list& a, const codec::run_list& b) {
    const auto sum = [](const codec::run_list& list) {
        std::uint64_t s = 0;
        list.for_each([&s](const codec::buffer_run& x) {
            for (const std::uint64_t n : {x.offset, std::uint64_t{x.from}, std::uint64_t{x.bytes}}) {
                s = (s ^ n) * 0x9e3779b97f4a7c15;
            }
        });
        return s;
    };
    return sum(a) == sum(b);
}

// Members that some ops have and others do not; an op that gets another one gets its line here.
template <class Op>
bool same_op(const Op& a, const Op& b) {
    bool same = true;
    if constexpr (std::is_pointer_v<decltype(a.c)>) {
        same = a.c == b.c;
    } else {
        same = std::memcmp(&a.c.value, &b.c.value, sizeof(a.c.value)) == 0 && a.end == b.end;
    }
#define KAGEMUSHA_COMPARE(member)                                                                            \
    if constexpr (requires { a.member; }) {                                                                  \
        same = same && same_view(a.member, b.member);                                                        \
    }
    KAGEMUSHA_COMPARE(waits)
    KAGEMUSHA_COMPARE(result)
    KAGEMUSHA_COMPARE(input)
    KAGEMUSHA_COMPARE(content)
    KAGEMUSHA_COMPARE(data)
    KAGEMUSHA_COMPARE(options)
    KAGEMUSHA_COMPARE(names)
    KAGEMUSHA_COMPARE(name)
    KAGEMUSHA_COMPARE(headers)
    KAGEMUSHA_COMPARE(inputs)
    KAGEMUSHA_COMPARE(events)
    KAGEMUSHA_COMPARE(objects)
    KAGEMUSHA_COMPARE(value)
    KAGEMUSHA_COMPARE(arguments)
    KAGEMUSHA_COMPARE(bytes)
    KAGEMUSHA_COMPARE(runs)
#undef KAGEMUSHA_COMPARE
    return same;
}

inline bool same_op(const codec::op& a, const codec::op& b) {
    return a.index() == b.index() &&
           std::visit([&b](const auto& x) { return same_op(x, std::get<std::decay_t<decltype(x)>>(b)); }, a);
}

struct walked {
    const char* difference = nullptr; // what the decoders do not agree about
    codec::decode_status status = codec::decode_status::end;
    codec::decode_error error; // when that is the status
};

// `on_op` gets each op that both gave.
template <class Decoder, class Other, class OnOp>
walked walk_both(std::span<const std::byte> stream, std::span<const kagemusha_payload> payloads,
                 OnOp&& on_op) {
    Decoder decoder(stream, {payloads});
    Other other(stream, {payloads});
    codec::op o, p;
    for (;;) {
        walked w;
        w.status = decoder.next(o);
        w.error = decoder.error();
        if (other.next(p) != w.status) {
            w.difference = "one decoder accepts what the other refuses";
        } else if (decoder.position() != other.position() || decoder.offset() != other.offset()) {
            w.difference = "the decoders are at different commands";
        } else if (w.status == codec::decode_status::op && !same_op(o, p)) {
            w.difference = "the decoders give different ops";
        } else if (w.status == codec::decode_status::error &&
                   (w.error.offset != other.error().offset ||
                    std::string_view(w.error.message) != other.error().message)) {
            w.difference = "the decoders refuse for different reasons";
        }
        if (w.difference || w.status != codec::decode_status::op) {
            return w;
        }
        on_op(o);
    }
}

} // namespace kagemusha::fuzz

#endif
