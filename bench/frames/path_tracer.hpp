// SPDX-License-Identifier: GPL-2.0-or-later
// path_tracer: a renderer whose frames take the same time each: the same number of paths for each pixel, each with
// the same number of bounces. The workload of VMs that share a GPU and want a frame every 1/30 s.
//
// The scene: a room of two coloured walls, three balls that move with the frame's number, a lamp above them.
// Randomness is a hash of pixel, path and frame, and each pixel is one work-item's own: a frame is the same
// whenever and on whichever GPU of one kind it is rendered.
#pragma once

#include <cstdint>

namespace kagemusha::frames {

inline constexpr std::uint64_t width = 96, height = 64, pixels = width * height;
inline constexpr std::uint64_t image_bytes = pixels * 8; // a long for each pixel: 0xBBGGRR, 16 bits each
static_assert(pixels % 64 == 0, "work-groups of 64");

// The kernel's second argument.
inline constexpr std::int64_t argument(std::uint64_t frame, std::uint32_t paths) {
    return static_cast<std::int64_t>(frame << 16 | (paths & 0xffff));
}

inline constexpr char source[] = R"(
#define WIDTH 96
#define HEIGHT 64
#define BOUNCES 4

uint hash(uint x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

float next(uint* seed)
{
    *seed = hash(*seed + 0x9e3779b9u);
    return (*seed >> 8) * (1.0f / 16777216.0f);
}

// The nearer of a ball's surface and what was hit before; its colour and normal.
void ball(float3 from, float3 to, float3 centre, float radius, float3 colour, float* far, float3* normal, float3* is)
{
    const float3 away = from - centre;
    const float b = dot(away, to), c = dot(away, away) - radius * radius, d = b * b - c;
    if (d <= 0.0f)
        return;
    const float at = -b - sqrt(d);
    if (at > 0.001f && at < *far) {
        *far = at;
        *normal = (from + at * to - centre) / radius;
        *is = colour;
    }
}

// One of the room's six sides: `axis` is 0 at `where`.
void wall(float from, float to, float where, float3 facing, float3 colour, float* far, float3* normal, float3* is)
{
    const float at = (where - from) / to;
    if (at > 0.001f && at < *far) {
        *far = at;
        *normal = facing;
        *is = colour;
    }
}

float3 path(float3 from, float3 to, float time, uint* seed)
{
    float3 light = (float3)(0.0f), strength = (float3)(1.0f);
    for (int bounce = 0; bounce < BOUNCES; ++bounce) {
        float far = 1e9f;
        float3 normal = (float3)(0.0f, 1.0f, 0.0f), colour = (float3)(0.0f);
        const float3 grey = (float3)(0.7f);
        wall(from.x, to.x, -2.0f, (float3)(1, 0, 0), (float3)(0.8f, 0.2f, 0.2f), &far, &normal, &colour);
        wall(from.x, to.x, 2.0f, (float3)(-1, 0, 0), (float3)(0.2f, 0.8f, 0.2f), &far, &normal, &colour);
        wall(from.y, to.y, -1.0f, (float3)(0, 1, 0), grey, &far, &normal, &colour);
        wall(from.y, to.y, 1.5f, (float3)(0, -1, 0), grey, &far, &normal, &colour);
        wall(from.z, to.z, 2.0f, (float3)(0, 0, -1), grey, &far, &normal, &colour);
        wall(from.z, to.z, -4.0f, (float3)(0, 0, 1), grey, &far, &normal, &colour);
        ball(from, to, (float3)(-0.9f, -0.5f + 0.4f * fabs(sin(time)), 0.6f), 0.5f, (float3)(0.9f, 0.9f, 0.3f), &far, &normal, &colour);
        ball(from, to, (float3)(0.1f, -0.6f, 0.9f + 0.3f * cos(time)), 0.4f, (float3)(0.4f, 0.4f, 0.9f), &far, &normal, &colour);
        ball(from, to, (float3)(1.0f + 0.3f * sin(2 * time), -0.7f, 0.1f), 0.3f, grey, &far, &normal, &colour);
        from += far * to;
        // The lamp is a round part of the ceiling.
        if (from.y > 1.499f && from.x * from.x + from.z * from.z < 0.6f)
            light += strength * 6.0f;
        strength *= colour;
        // The next direction: the nearer to the normal the likelier.
        const float turn = 6.2831853f * next(seed), out = next(seed), side = sqrt(out);
        const float3 other = fabs(normal.x) > 0.5f ? (float3)(0, 1, 0) : (float3)(1, 0, 0);
        const float3 u = normalize(cross(other, normal)), v = cross(normal, u);
        to = normalize(u * (side * cos(turn)) + v * (side * sin(turn)) + normal * sqrt(1.0f - out));
        from += 0.001f * normal;
    }
    return light;
}

kernel void k(global long* image, long argument)
{
    const uint pixel = (uint)get_global_id(0), paths = (uint)argument & 0xffffu, frame = (uint)(argument >> 16);
    const float time = frame * (1.0f / 30.0f);
    float3 sum = (float3)(0.0f);
    for (uint p = 0; p < paths; ++p) {
        uint seed = hash(pixel ^ hash(p ^ hash(frame)));
        const float x = (pixel % WIDTH + next(&seed) - WIDTH / 2) / HEIGHT;
        const float y = (HEIGHT / 2 - (float)(pixel / WIDTH) - next(&seed)) / HEIGHT;
        sum += path((float3)(0.0f, 0.2f, -3.5f), normalize((float3)(x, y, 1.2f)), time, &seed);
    }
    const float3 shown = min(sqrt(sum / (float)max(paths, 1u)), 1.0f) * 65535.0f;
    image[pixel] = (long)shown.z << 32 | (long)shown.y << 16 | (long)shown.x;
}
)";

// When frames are due, and what became late. Pure.
class pacer {
public:
    pacer(std::uint64_t begin_ns, std::uint64_t frame_ns) : begin_ns_(begin_ns), frame_ns_(frame_ns) {}

    // The next frame to begin, at due_ns().
    std::uint64_t frame() const { return frame_; }
    std::uint64_t due_ns() const { return begin_ns_ + frame_ * frame_ns_; }
    // The frame is there. It was missed if that was later than the next one was due; those that were due
    // meanwhile are not begun any more, and are missed, too.
    void shown(std::uint64_t now_ns) {
        ++rendered_;
        if (now_ns <= due_ns() + frame_ns_) {
            ++frame_;
            return;
        }
        const std::uint64_t next =
            (now_ns - begin_ns_) / frame_ns_; // it begins late, and may still be in time
        missed_ += next - frame_;
        frame_ = next;
    }
    std::uint64_t frames() const { return frame_; } // that were due
    std::uint64_t missed() const { return missed_; }
    std::uint64_t rendered() const { return rendered_; } // in time or not

private:
    const std::uint64_t begin_ns_, frame_ns_;
    std::uint64_t frame_ = 0, missed_ = 0, rendered_ = 0;
};

} // namespace kagemusha::frames
