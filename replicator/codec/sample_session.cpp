// SPDX-License-Identifier: GPL-2.0-or-later
#include "codec/sample_session.hpp"

#include <array>
#include <deque>
#include <string_view>
#include <tuple>

#include "codec/cl_numbers.hpp"
#include "codec/commands/emit.hpp"

namespace kagemusha::codec {

namespace {

// Ids of the session's objects.
enum : std::uint64_t {
    context = 1,
    queue,
    queue_out_of_order,
    buffer,
    buffer_with_content,
    sub_buffer,
    image,
    image_3d,
    image_in_buffer,
    sampler,
    program,
    program_il,
    program_linked,
    header,
    kernel,
    user_event,
    first_event = 100,
};

std::uint64_t id_of(commands::object kind) {
    switch (kind) {
    case commands::object::context:
        return context;
    case commands::object::queue:
        return queue;
    case commands::object::image:
        return image;
    case commands::object::sampler:
        return sampler;
    case commands::object::program:
        return program;
    case commands::object::kernel:
        return kernel;
    case commands::object::user_event:
        return user_event;
    default:
        return buffer;
    }
}

template <class... Bytes>
std::vector<std::byte> octets(Bytes... b) {
    return {static_cast<std::byte>(b)...};
}

argument_builder arguments_of_all_kinds() {
    return argument_builder{}.memory(0, buffer).value(1, octets(1, 2, 3)).sampler(2, sampler).local(3, 1024);
}

// The object that the sample of a creating command makes: nothing else has its id.
constexpr guest_id made_by(std::uint32_t opcode) {
    return 1'000'000 + opcode;
}

// The views of a sample's parts, each as a tuple of one, or of none.
struct sample_views {
    stream_builder& builder; // gets the payloads
    argument_builder arguments = arguments_of_all_kinds();
    std::deque<guest_id> ids = {};

    template <class Wire, class... A>
    std::tuple<payload_source> of(const Wire& c, const commands::payload_part<A...>& p) {
        const auto ref = builder.payload(p.way == commands::direction::out, 0, 0, (c.*p.ref).bytes);
        return {payload_source{ref.bytes, ref.index, {}}};
    }
    template <class Wire, class... A>
    std::tuple<argument_list> of(const Wire&, const commands::arguments_part<A...>&) {
        return {arguments.list()};
    }
    template <class Wire, class... A>
    std::tuple<id_list> of(const Wire&, const commands::ids_part<A...>& p) {
        return {id_list(&ids.emplace_back(id_of(p.kind)), 1)};
    }
    template <class Wire, class... A>
    std::tuple<std::string_view> of(const Wire&, const commands::text_part<A...>&) {
        return {"name"};
    }
    template <class Wire, class Part>
    std::tuple<> of(const Wire&, const Part&) {
        return {}; // emit() does not compile if the part has one
    }
};

// A row with a sample says what the numbers of its command are; ids, payloads, lists and arguments follow from
// the parts. Rows without one need a history, or are there in several forms: the session has them by hand.
template <class Row>
void build_sample(stream_builder& b) {
    typename Row::wire c{};
    Row::sample(c);
    const auto name_objects = [&]<class Part>(const Part& part) {
        if constexpr (commands::is_creates<Part>)
            c.*part.id = made_by(Row::opcode);
        else if constexpr (requires { part.how; })
            c.*part.id = id_of(part.kind);
    };
    std::apply([&](const auto&... part) { (name_objects(part), ...); }, Row::parts);
    sample_views all{b};
    const auto views =
        std::apply([&](const auto&... part) { return std::tuple_cat(all.of(c, part)...); }, Row::parts);
    const auto add = [&](const auto&... view) {
        if constexpr (Row::answers == commands::answer::enqueued) {
            c.enqueue.queue = queue;
            commands::emit<Row>(b, c, id_list(), view...);
        } else {
            commands::emit<Row>(b, c, view...);
        }
    };
    std::apply(add, views);
}

} // namespace

std::vector<sample_request> sample_session() {
    std::vector<sample_request> all;
    const auto add = [&all](std::string name) -> stream_builder& {
        return all.emplace_back(sample_request{std::move(name), {}}).builder;
    };
    const std::vector<std::byte> data(100, std::byte{0x5a});

    const auto info = [&](std::string name, std::uint32_t subject, std::uint32_t what, std::uint64_t object,
                          std::uint64_t index) {
        stream_builder& b = add(std::move(name));
        const vgpu_payload_ref result = b.payload(true, 0, 0, 256);
        b.info(subject, what, object, index, result);
    };
    info("info platform", VGPU_INFO_PLATFORM, 0x0902, 0, 0);
    info("info device", VGPU_INFO_DEVICE, 0x102B, 0, 0);
    info("info timers", VGPU_INFO_TIMERS, 0, 0, 0);
    add("info size only").info(VGPU_INFO_DEVICE, 0x1030, 0, 0, no_payload);

    add("create context").create_context(context);
    info("info image formats", VGPU_INFO_IMAGE_FORMATS, cl_mem_object_image2d, context, cl_mem_read_only);
    add("create queue").create_queue(queue, context, cl_queue_profiling);
    add("create queue out of order").create_queue(queue_out_of_order, context, cl_queue_out_of_order);
    add("create buffer").create_buffer(buffer, context, 65536);
    add("create buffer with content").create_buffer_inline(buffer_with_content, context, data);
    add("create sub buffer").create_sub_buffer(sub_buffer, buffer, 4096, 8192);
    info("info memory", VGPU_INFO_MEMORY, 0x1102, buffer, 0);
    add("create image").create_image_2d(image, context, 64, 32);
    {
        vgpu_cmd_create_image body{};
        body.id = image_3d;
        body.context = context;
        body.flags = cl_mem_read_only;
        body.channel_order = 0x10B0; // CL_R
        body.channel_type = 0x10DE;  // CL_FLOAT
        body.image_type = cl_mem_object_image3d;
        body.width = 8;
        body.height = 4;
        body.depth = 2;
        body.row_pitch = 32;
        body.slice_pitch = 128;
        stream_builder& b = add("create image 3d with content");
        body.content = b.payload(false, 0, 4096, 256);
        b.create_image(body);
    }
    {
        vgpu_cmd_create_image body{};
        body.id = image_in_buffer;
        body.context = context;
        body.flags = cl_mem_read_write;
        body.channel_order = 0x10B5; // CL_RGBA
        body.channel_type = 0x10DE;  // CL_FLOAT
        body.image_type = cl_mem_object_image1d_buffer;
        body.width = 1024;
        body.buffer = buffer;
        body.content = no_payload;
        add("create image in buffer").create_image(body);
    }
    info("info image", VGPU_INFO_IMAGE, 0x1112, image, 0);
    add("create sampler").create_sampler(sampler, context);
    add("create program")
        .create_program(program, context, "kernel void f(global int* p, int n) { p[0] = n; }");
    {
        stream_builder& b = add("create program il");
        const vgpu_payload_ref content = b.payload(false, 0, 8192, 4096);
        b.create_program(program_il, context, VGPU_PROGRAM_IL, content);
    }
    add("create header").create_program(header, context, "#define N 1\n");
    add("set spec constant").set_spec_constant(program_il, 7, octets(1, 2, 3, 4));
    add("compile program")
        .compile_program(program, "-DX=1", std::array<std::uint64_t, 1>{header},
                         std::array<std::string_view, 1>{"n.h"});
    add("link program")
        .link_program(program_linked, context, std::array<std::uint64_t, 1>{program},
                      "-cl-fast-relaxed-math");
    add("build program").build_program(program, "-cl-std=CL3.0");
    info("info program", VGPU_INFO_PROGRAM, 0x1167, program, 0);
    info("info program build", VGPU_INFO_PROGRAM_BUILD, 0x1183, program, 0);
    add("create kernel").create_kernel(kernel, program, "f");
    info("info kernel", VGPU_INFO_KERNEL, 0x1191, kernel, 0);
    info("info kernel arg", VGPU_INFO_KERNEL_ARG, 0x1199, kernel, 0);
    info("info kernel work group", VGPU_INFO_KERNEL_WORK_GROUP, 0x11B0, kernel, 0);
    {
        stream_builder& b = add("info kernel sub group");
        const vgpu_payload_ref result = b.payload(true, 0, 0, 8);
        b.info(VGPU_INFO_KERNEL_SUB_GROUP, 0x2033, kernel, 0, result, octets(64, 0, 0, 0, 0, 0, 0, 0));
    }
    add("create user event").create_user_event(user_event, context);

    std::uint64_t event = first_event;
    add("write buffer inline").write_buffer({queue, event, {}}, buffer, 16, data);
    {
        stream_builder& b = add("write buffer scattered");
        const vgpu_payload_ref ref = b.payload(false, {{0, 4096, 0, 0}, {12288, 100, 0, 0}});
        b.write_buffer({queue, event + 1, {event}}, buffer, 0, ref);
    }
    {
        stream_builder& b = add("read buffer");
        const vgpu_payload_ref ref = b.payload(true, 0, 16384, 4096);
        b.read_buffer({queue, event + 2, {event, event + 1}}, sub_buffer, 0, ref);
    }
    add("fill buffer").fill_buffer({queue, event + 3, {}}, buffer, 64, 128, octets(1, 2, 3, 4));
    launch_size tiled;
    tiled.work_dim = 2;
    tiled.global[0] = tiled.global[1] = 64;
    tiled.local[0] = tiled.local[1] = 8;
    add("launch").launch({queue_out_of_order, event + 4, {user_event, event + 3}}, kernel, tiled,
                         argument_builder{}.memory(0, buffer).scalar(1, std::int32_t{7}));
    add("launch all argument kinds").launch({queue, 0, {}}, kernel, launch_size{}, arguments_of_all_kinds());
    add("launch with a null pointer")
        .launch({queue, 0, {}}, kernel, launch_size{}, argument_builder{}.memory(0, 0));
    add("marker").marker({queue_out_of_order, event + 5, {event + 4}});
    add("barrier").barrier({queue, event + 6, {}});
    add("write runs")
        .write_runs(queue, buffer,
                    std::array<written_run, 3>{
                        written_run{64, octets(1, 2, 3)}, {100, octets(4)}, {3000, octets(5, 6, 7, 8, 9)}})
        .marker({queue, event + 8, {}});

    stream_builder& batch = add("batch of launches");
    for (int i = 0; i < 64; ++i) {
        batch.launch({queue, i == 63 ? event + 7 : 0, {}}, kernel, tiled,
                     argument_builder{}.memory(0, buffer).scalar(1, std::int32_t{i}));
    }
    batch.flush(queue);

    commands::all_rows::for_each([&]<class Row>() {
        if constexpr (requires { &Row::sample; })
            build_sample<Row>(add(Row::name));
    });

    stream_builder& end = add("set user event and destroy everything");
    end.set_user_event(user_event, 0);
    end.destroy(VGPU_OBJECT_EVENT, user_event);
    for (std::uint64_t e = event; e <= event + 8; ++e)
        end.destroy(VGPU_OBJECT_EVENT, e);
    end.destroy(VGPU_OBJECT_KERNEL, kernel);
    for (const std::uint64_t id : {program, program_il, program_linked, header})
        end.destroy(VGPU_OBJECT_PROGRAM, id);
    end.destroy(VGPU_OBJECT_SAMPLER, sampler);
    for (const std::uint64_t id : {image, image_3d, image_in_buffer, sub_buffer, buffer, buffer_with_content})
        end.destroy(VGPU_OBJECT_MEMORY, id);
    commands::all_rows::for_each([&]<class Row>() {
        if constexpr (requires { &Row::sample; } && commands::creates_object<Row>)
            end.destroy(commands::created_kind<Row>, made_by(Row::opcode));
    });
    end.destroy(VGPU_OBJECT_QUEUE, queue).destroy(VGPU_OBJECT_QUEUE, queue_out_of_order);
    end.destroy(VGPU_OBJECT_CONTEXT, context);
    return all;
}

} // namespace kagemusha::codec
