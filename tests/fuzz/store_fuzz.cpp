// SPDX-License-Identifier: GPL-2.0-or-later
// Arbitrary instructions and registers into the tracer's decoder. What it plans must stay inside its bounds,
// and what it asks for too.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tracer/core/decode.h"

namespace {

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

bool read_vector(void* context, u32 index, u32 bytes, u8* to) {
    require(index < 32, "there are 32 vector registers");
    require(bytes == 16 || bytes == 32 || bytes == 64, "vector registers are read whole");
    std::memset(to, static_cast<int>(index), bytes);
    return *static_cast<const bool*>(context);
}

bool read_destination(void* context, u64, u32 bytes, u8* to) {
    require(bytes >= 1 && bytes <= 8, "at most 8 bytes of the destination are read");
    std::memset(to, 0x5a, bytes);
    return *static_cast<const bool*>(context);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8* data, std::size_t size) {
    kvt_cpu cpu{};
    u8 options = 0;
    if (size < 1)
        return 0;
    options = data[0];
    ++data;
    --size;
    const std::size_t code_bytes = std::min<std::size_t>(size, KVT_MAX_INSTRUCTION_BYTES);
    // exactly as long as it says, so that a read behind is seen
    const std::vector<u8> code(data, data + code_bytes);
    if (size > code_bytes)
        std::memcpy(cpu.gpr, data + code_bytes, std::min(size - code_bytes, sizeof cpu.gpr));
    cpu.is_64_bit = options & 1;
    cpu.flags = options & 4 ? 0x8d5 : 2;
    cpu.ip = options & 8 ? 0xfffffffffffffff0 : 0x400000;
    bool readable = options & 2;
    const kvt_access access{&readable, read_vector, read_destination};
    std::vector<u8> scratch(kvt_scratch_bytes());
    kvt_plan plan;
    kvt_decode(scratch.data(), code.data(), static_cast<u32>(code.size()), &cpu, &access, &plan);
    require(plan.length <= code.size(), "an instruction is not longer than its bytes");
    if (plan.what == KVT_OPEN) {
        require(plan.reason != KVT_REASON_NONE && plan.reason < KVT_REASON_COUNT, "there is a reason");
        return 0;
    }
    require(plan.bytes >= 1 && plan.bytes <= KVT_MAX_STORE_BYTES, "a store has a width");
    require(plan.reason == KVT_REASON_NONE, "what is carried out has no reason against it");
    if (plan.what != KVT_STORE) {
        require(plan.count >= 1 && plan.bytes <= 8, "a string instruction has iterations");
        const u64 count = plan.count;
        kvt_plan_advance(&plan, &cpu, 1);
        require((plan.after.ip != cpu.ip) == (count == 1), "it is over after its last iteration");
    }
    return 0;
}
