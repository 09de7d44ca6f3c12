// SPDX-License-Identifier: GPL-2.0-or-later
// Breaks what every row of the command table says about objects, one id or range at a time, in a command of
// the sample session that is right otherwise, and expects the validator's refusal. What needs no object is in
// codec/commands/rows_test.cpp.
//
// Nothing can be left out: the table gives the rows and parts, a kind of part without an overload does not
// compile, and a part that names something and is broken by nothing fails. By hand, in validator_test.cpp:
// what the validator checks by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "codec/cl_numbers.hpp"
#include "codec/commands/table.hpp"
#include "codec/decode.hpp"
#include "codec/sample_session.hpp"
#include "core/validator.hpp"

namespace kagemusha::core {

bool operator==(const verdict& a, const verdict& b) {
    return a.what == b.what && a.error == b.error &&
           std::string(a.message ? a.message : "") == (b.message ? b.message : "");
}
std::ostream& operator<<(std::ostream& out, const verdict& v) {
    return out << (v.message ? v.message : v.ok() ? "accepted" : "error ") << v.error;
}

namespace {

using namespace codec;
using commands::object;

// Objects of one context, one of each kind: another context of the file, and another file's.
constexpr object kinds[] = {object::context, object::queue,   object::buffer,
                            object::image,   object::sampler, object::program,
                            object::kernel,  object::event,   object::user_event};
constexpr guest_id other_context = 1000, other_file = 2000, absent = 9999;
constexpr guest_id unfetched = 3000; // of an event that was destroyed before it completed
constexpr guest_id id_of(object kind, guest_id whose) {
    return whose + static_cast<guest_id>(kind == object::memory ? object::buffer : kind);
}

struct kind_of_table {
    vgpu_object_kind kind;
    const char* missing;
};
kind_of_table kind_of(object kind) {
    switch (kind) {
    case object::context:
        return {VGPU_OBJECT_CONTEXT, "an id does not name a context of this file"};
    case object::queue:
        return {VGPU_OBJECT_QUEUE, "an id does not name a queue of this file"};
    case object::sampler:
        return {VGPU_OBJECT_SAMPLER, "an id does not name a sampler of this file"};
    case object::program:
        return {VGPU_OBJECT_PROGRAM, "an id does not name a program of this file"};
    case object::kernel:
        return {VGPU_OBJECT_KERNEL, "an id does not name a kernel of this file"};
    case object::event:
    case object::user_event:
        return {VGPU_OBJECT_EVENT, "an id does not name an event of this file"};
    default:
        return {VGPU_OBJECT_MEMORY, "an id does not name a memory object of this file"};
    }
}

// A command of the session, at the time when it is right.
struct sample {
    std::vector<std::uint64_t> words;
    std::vector<kagemusha_payload> payloads;
};

class file {
public:
    object_table table;
    event_credit events{1000, 0};

    file(device_usage& usage, guest_id objects) : table({1000, 1u << 30}, usage, 42) {
        const auto id = [&](object kind) { return id_of(kind, objects); };
        run([&](auto& b) { b.create_context(id(object::context)); });
        run([&](auto& b) { b.create_queue(id(object::queue), id(object::context)); });
        run([&](auto& b) { b.create_buffer(id(object::buffer), id(object::context), 65536); });
        run([&](auto& b) { b.create_image_2d(id(object::image), id(object::context), 64, 32); });
        run([&](auto& b) { b.create_sampler(id(object::sampler), id(object::context)); });
        run([&](auto& b) { b.create_program(id(object::program), id(object::context), "x"); });
        run([&](auto& b) { b.create_kernel(id(object::kernel), id(object::program), "k"); });
        run([&](auto& b) { b.create_user_event(id(object::user_event), id(object::context)); });
        run([&](auto& b) {
            b.marker({id(object::queue), id(object::event), {}});
            b.marker({id(object::queue), unfetched, {}}).destroy(VGPU_OBJECT_EVENT, unfetched);
        });
    }

    void run(const std::function<void(stream_builder&)>& build) {
        stream_builder b;
        build(b);
        each(b, [](const sample&) {});
    }
    // Runs a request; before each of its commands f(command).
    void each(const stream_builder& b, const std::function<void(const sample&)>& f) {
        stream_decoder decoder(b.stream(), {b.payloads()});
        for (op o; decoder.next(o) == decode_status::op;) {
            sample s;
            const std::byte* const command = b.stream().data() + decoder.offset();
            s.words.resize(command_bytes(*reinterpret_cast<const vgpu_cmd*>(command)) / 8);
            std::memcpy(s.words.data(), command, s.words.size() * 8);
            s.payloads.assign(b.payloads().begin(), b.payloads().end());
            f(s);
            table.begin();
            EXPECT_EQ(validator(table, events).check(o), verdict{});
            table.commit();
        }
    }
    // Of a command that is not executed.
    verdict check(const op& o, bool of_log) {
        event_credit credit = events;
        std::vector<awaited_event> awaited;
        table.begin(of_log);
        const verdict v = validator(table, credit, of_log ? &awaited : nullptr).check(o);
        table.rollback();
        return v;
    }
};

// Calls f(file, command) for each command of the sample session with this opcode.
void at_samples(std::uint16_t opcode, const std::function<void(file&, const sample&)>& f) {
    device_usage usage{1u << 20, std::uint64_t{1} << 41};
    file mine(usage, other_context);
    file others(usage, other_file);
    for (const object kind : kinds) {
        const vgpu_object_kind k = kind_of(kind).kind;
        ASSERT_TRUE(mine.table.find(id_of(kind, other_context), k));
        ASSERT_TRUE(others.table.find(id_of(kind, other_file), k));
    }
    for (const sample_request& r : sample_session()) {
        mine.each(r.builder, [&](const sample& s) {
            if (reinterpret_cast<const vgpu_cmd*>(s.words.data())->opcode == opcode)
                f(mine, s);
        });
    }
    if (opcode == VGPU_CMD_AWAIT) { // no guest's, so it is not in the session
        stream_builder b;
        b.await(std::array<std::uint64_t, 1>{7});
        sample s;
        s.words.resize(b.stream().size() / 8);
        std::memcpy(s.words.data(), b.stream().data(), b.stream().size());
        f(mine, s);
    }
    if (opcode == VGPU_CMD_TAKE_BUILT || opcode == VGPU_CMD_STORE_BUILT) {
        stream_builder b;
        const bool take = opcode == VGPU_CMD_TAKE_BUILT;
        const vgpu_payload_ref data = b.payload(take, 0, 0, 4096);
        take ? b.take_built(0, data) : b.store_built(data);
        sample s;
        s.words.resize(b.stream().size() / 8);
        std::memcpy(s.words.data(), b.stream().data(), b.stream().size());
        s.payloads.assign(b.payloads().begin(), b.payloads().end());
        f(mine, s);
    }
}

// Breaks one command.
template <class Row>
class row_breaker {
    using row_op = typename Row::op;
    using wire = typename Row::wire;

public:
    row_breaker(file& f, const sample& s) : file_(f), sample_(s) {
        if constexpr (Row::opcode == VGPU_CMD_TAKE_BUILT) {
            EXPECT_EQ(check({}), verdict::malformed("only the replication can use TAKE_BUILT"));
            EXPECT_EQ(check({}, false), verdict::malformed("only the replication can use TAKE_BUILT"));
        } else if constexpr (Row::opcode == VGPU_CMD_STORE_BUILT) {
            EXPECT_EQ(check({}), verdict{});
            EXPECT_EQ(check({}, false), verdict::malformed("a guest can't use STORE_BUILT"));
        } else {
            EXPECT_EQ(check({}), is_log ? verdict::refuse(cl_success) : verdict{});
        }
    }
    unsigned broken() const { return broken_; }

    // ---- ids

    template <class... A>
    void operator()(const commands::creates_part<A...>& p) {
        for (const guest_id taken : {id_of(object::buffer, other_context), unfetched})
            set(p.id, taken, verdict::malformed("a new object has an id that is in use"));
        set(p.id, absent | VGPU_HOST_ID_BIT,
            verdict::malformed("a new object has an id that belongs to the host (VGPU_HOST_ID_BIT)"));
    }
    template <class... A>
    void operator()(const commands::uses_part<A...>& p) {
        const auto to = [&](guest_id id, const verdict& v) { set(p.id, id, v); };
        wrong_objects(p.kind, to);
        if (p.kind == object::user_event) {
            to(id_of(object::event, other_context),
               verdict::malformed("an event that is set is not a user event or was set before"));
        }
        if (is_enqueued || named_before_)
            to(id_of(p.kind, other_context), verdict::refuse(cl_invalid_context));
        named_before_ = true;
    }
    // INFO's object, and the buffer of an image: as the sample has it.
    template <class... A>
    void operator()(const commands::may_use_part<A...>& p) {
        const auto to = [&](guest_id id, const verdict& v) { set(p.id, id, v); };
        const guest_id id = (*reinterpret_cast<const wire*>(sample_.words.data())).*p.id;
        for (const object kind : {object::context, object::memory, object::program, object::kernel}) {
            if (file_.table.find(id, kind_of(kind).kind)) {
                wrong_objects(kind, to);
                if (commands::creates_object<Row>)
                    to(id_of(kind, other_context), verdict::refuse(cl_invalid_context));
            }
        }
    }
    template <class... A>
    void operator()(const commands::destroys_part<A...>& p) {
        const auto victim = reinterpret_cast<const vgpu_cmd_destroy*>(sample_.words.data())->kind;
        const verdict none = verdict::malformed("an id does not name an object of this kind of this file");
        for (const object kind : kinds) {
            if (static_cast<std::uint32_t>(kind_of(kind).kind) != victim)
                set(p.id, id_of(kind, other_context), none);
            set(p.id, id_of(kind, other_file), none);
        }
        set(p.id, unfetched, none);
    }

    // ---- lists

    template <class... A>
    void operator()(const commands::ids_part<A...>& p) {
        const auto to = [&](guest_id id, const verdict& v) {
            change([&](row_op& o) { const_cast<guest_id&>((o.*p.view)[0]) = id; }, v);
        };
        if (is_log) { // what it waits for may have completed and be gone; the file's guest can't send it
            to(absent, verdict::refuse(cl_success));
            EXPECT_EQ(check({}, false), verdict::malformed("a guest can't use AWAIT"));
            return;
        }
        wrong_objects(p.kind, to);
        to(id_of(p.kind, other_context), verdict::refuse(cl_invalid_context));
    }
    template <class... A>
    void operator()(const commands::arguments_part<A...>& p) {
        for (const auto kind : {VGPU_ARGUMENT_MEMORY, VGPU_ARGUMENT_SAMPLER}) {
            const object of = kind == VGPU_ARGUMENT_MEMORY ? object::memory : object::sampler;
            const auto to = [&](guest_id id, const verdict& v) {
                change([&](row_op& o) { set_argument(o, p.view, kind, id); }, v);
            };
            if (has_argument(p.view, kind)) {
                wrong_objects(of, to);
                to(id_of(of, other_context), verdict::refuse(cl_invalid_context));
            }
        }
    }

    // ---- ranges: far behind the object's end, without an overflow

    template <class... A>
    void operator()(const commands::range_part<A...>& p) {
        set(p.offset, far, verdict::refuse(cl_invalid_value));
    }
    template <class... A>
    void operator()(const commands::rect_part<A...>& p) {
        outside(p);
    }
    template <class... A>
    void operator()(const commands::box_part<A...>& p) {
        outside(p);
    }

    // ---- the decoder has checked all of them

    template <class... A>
    void operator()(const commands::flags_part<A...>&) {}
    template <class... A>
    void operator()(const commands::pad_part<A...>&) {}
    template <class... A>
    void operator()(const commands::between_part<A...>&) {}
    template <class... A>
    void operator()(const commands::rule_part<A...>&) {}
    template <class... A>
    void operator()(const commands::rules_part<A...>&) {}
    template <class... A>
    void operator()(const commands::region_part<A...>&) {}
    template <class... A>
    void operator()(const commands::pitches_part<A...>&) {}
    template <class... A>
    void operator()(const commands::text_part<A...>&) {}
    template <class... A>
    void operator()(const commands::names_part<A...>&) {}
    template <class... A>
    void operator()(const commands::octets_part<A...>&) {}
    template <class... A>
    void operator()(const commands::payload_part<A...>&) {}

    // ---- what every enqueued command has

    void enqueue() {
        wrong_objects(object::queue, [&](guest_id id, const verdict& v) {
            change([&](row_op& o) { fixed(o).enqueue.queue = id; }, v);
        });
        if constexpr (!commands::is_packed<Row>) { // which has neither event nor wait list
            const auto event = [&](guest_id id, const char* why) {
                change([&](row_op& o) { fixed(o).enqueue.event = id; }, verdict::malformed(why));
            };
            event(id_of(object::buffer, other_context), "a new object has an id that is in use");
            event(unfetched, "a new object has an id that is in use");
            event(absent | VGPU_HOST_ID_BIT,
                  "a new object has an id that belongs to the host (VGPU_HOST_ID_BIT)");
            guest_id wait = 0;
            const auto wait_for = [&](guest_id id, const verdict& v) {
                wait = id;
                change([&](row_op& o) { o.waits = id_list(&wait, 1); }, v);
            };
            wrong_objects(object::event, wait_for);
            wait_for(id_of(object::event, other_context), verdict::refuse(cl_invalid_context));
        }
    }

private:
    static constexpr bool is_enqueued = Row::answers == commands::answer::enqueued;
    static constexpr bool is_log = Row::answers == commands::answer::log;
    static constexpr std::uint64_t far = std::uint64_t{1} << 40;

    static wire& fixed(row_op& o) { return const_cast<wire&>(*std::to_address(o.c)); }

    // The verdict about the command with a change of what it says. It points into the copy.
    verdict check(const std::function<void(row_op&)>& f, bool of_log = is_log) {
        sample s = sample_;
        stream_decoder decoder(std::as_bytes(std::span(s.words)), {s.payloads});
        op o;
        EXPECT_EQ(decoder.next(o), decode_status::op);
        if (f) {
            f(std::get<row_op>(o));
            stream_decoder again(std::as_bytes(std::span(s.words)), {s.payloads});
            op unused;
            EXPECT_EQ(again.next(unused), decode_status::op) << again.error().message;
        }
        return file_.check(o, of_log);
    }
    void change(const std::function<void(row_op&)>& f, const verdict& wanted) {
        EXPECT_EQ(check(f), wanted);
        ++broken_;
    }
    template <class Field>
    void set(Field field, std::uint64_t to, const verdict& wanted) {
        SCOPED_TRACE(to);
        change([=](row_op& o) { fixed(o).*field = to; }, wanted);
    }

    // Calls to(id, wanted) for ids that name nothing, another file's object, or one of another kind.
    template <class To>
    void wrong_objects(object wanted, const To& to) {
        const auto [table_kind, missing] = kind_of(wanted);
        to(absent, verdict::malformed(missing));
        to(unfetched, verdict::malformed(missing));
        to(id_of(wanted, other_file), verdict::malformed(missing));
        for (const object kind : kinds) {
            if (kind_of(kind).kind != table_kind) {
                to(id_of(kind, other_context), verdict::malformed(missing));
            } else if ((wanted == object::buffer && kind == object::image) ||
                       (wanted == object::image && kind == object::buffer)) {
                to(id_of(kind, other_context), verdict::refuse(cl_invalid_mem_object));
            }
        }
    }
    template <class Part>
    void outside(const Part& p) {
        for (const int side : {0, 1, 2})
            change([&](row_op& o) { (fixed(o).*p.origin)[side] = far; }, verdict::refuse(cl_invalid_value));
    }

    template <class View>
    bool has_argument(View view, vgpu_argument_kind kind) {
        bool found = false;
        (void)check([&](row_op& o) {
            (o.*view).for_each([&](const launch_argument& a) { found |= a.kind == kind && a.object != 0; });
        });
        return found;
    }
    // The first one of this kind.
    template <class View>
    static void set_argument(row_op& o, View view, vgpu_argument_kind kind, guest_id id) {
        auto* at = reinterpret_cast<std::byte*>(&fixed(o)) + sizeof(wire) + o_waits(o) * sizeof(guest_id);
        bool done = false;
        (o.*view).for_each([&](const launch_argument& a) {
            at += sizeof(vgpu_argument);
            if (a.kind == kind && !done) {
                std::memcpy(at, &id, sizeof(id));
                done = true;
            }
            const bool named = a.kind == VGPU_ARGUMENT_MEMORY || a.kind == VGPU_ARGUMENT_SAMPLER;
            at += named ? sizeof(guest_id) : (a.value.size() + 7) / 8 * 8;
        });
    }
    static std::size_t o_waits(const row_op& o) {
        if constexpr (is_enqueued)
            return o.waits.size();
        else
            return 0;
    }

    file& file_;
    const sample& sample_;
    bool named_before_ = false;
    unsigned broken_ = 0;
};

// Whether the validator looks at such a part, so that something must break it.
template <class Part>
constexpr bool names_something =
    requires(const Part& p) { p.kind; } || requires(const Part& p) { p.in; } || commands::is_arguments<Part>;
static_assert(names_something<decltype(commands::uses(object::queue, &vgpu_cmd_flush::queue))>);
static_assert(!names_something<decltype(commands::pad(&vgpu_cmd_destroy::pad))>);

TEST(validator_rows, every_id_and_range_of_every_row_is_checked) {
    unsigned rows = 0, parts = 0, broken = 0;
    commands::all_rows::for_each([&]<class Row>() {
        SCOPED_TRACE(Row::name);
        constexpr auto count = std::tuple_size_v<std::remove_cvref_t<decltype(Row::parts)>>;
        std::array<unsigned, count + 1> by_part{}; // the last: what every enqueued command has
        at_samples(Row::opcode, [&](file& f, const sample& s) {
            row_breaker<Row> row(f, s);
            const auto one = [&](std::size_t index, const auto& part) {
                const unsigned before = row.broken();
                row(part);
                by_part[index] += row.broken() - before;
            };
            [&]<std::size_t... I>(std::index_sequence<I...>) {
                (one(I, std::get<I>(Row::parts)), ...);
            }(std::make_index_sequence<count>());
            if constexpr (Row::answers == commands::answer::enqueued) {
                const unsigned before = row.broken();
                row.enqueue();
                by_part[count] += row.broken() - before;
            }
        });
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            const auto is_broken = [&](bool wanted, std::size_t index) {
                EXPECT_TRUE(by_part[index] > 0 || !wanted) << "nothing breaks part " << index;
                parts += wanted;
                broken += by_part[index];
            };
            (is_broken(names_something<std::remove_cvref_t<decltype(std::get<I>(Row::parts))>>, I), ...);
            is_broken(Row::answers == commands::answer::enqueued, count);
        }(std::make_index_sequence<count>());
        ++rows;
    });
    EXPECT_EQ(rows, commands::all_rows::count);
    std::printf("%u rows with %u parts that name objects: %u broken commands\n", rows, parts, broken);
}

} // namespace
} // namespace kagemusha::core
