// SPDX-License-Identifier: GPL-2.0-or-later
//
// Attributes of nodes that launch kernels. What changes a launch is in its shape; the rest are hints, which a
// program gets back and the host's driver does not.
#include "driver.hpp"
#include "graph_calls.hpp"
#include "node_work.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

bool is_hint(CUlaunchAttributeID id) {
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return true;
    default:
        return false;
    }
}

// The rest is of launches and streams alone.
CUresult unknown(CUlaunchAttributeID id) {
    return id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE ? CUDA_ERROR_NOT_SUPPORTED
                                                                  : CUDA_ERROR_INVALID_VALUE;
}

CUresult set_attribute(kernel_work& to, CUlaunchAttributeID id, const CUlaunchAttributeValue& value) {
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
        to.shape.cooperative = value.cooperative != 0;
        return CUDA_SUCCESS;
    }
    if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
        const unsigned size[] = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
        if (std::find(size, size + 3, 0U) != size + 3)
            return CUDA_ERROR_INVALID_VALUE;
        std::copy(size, size + 3, to.shape.cluster);
        return CUDA_SUCCESS;
    }
    if (!is_hint(id))
        return unknown(id);
    to.hints[id] = value;
    return CUDA_SUCCESS;
}

CUresult get_attribute(const kernel_work& of, CUlaunchAttributeID id, CUlaunchAttributeValue& value) {
    CUlaunchAttributeValue found{};
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        found.cooperative = of.shape.cooperative ? 1 : 0;
    else if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        found.clusterDim = {of.shape.cluster[0], of.shape.cluster[1], of.shape.cluster[2]};
    else if (!is_hint(id))
        return unknown(id);
    else if (const auto hint = of.hints.find(id); hint != of.hints.end())
        found = hint->second;
    value = found;
    return CUDA_SUCCESS;
}

template <class Body>
CUresult of_launch(CUgraphNode handle, Body&& body) noexcept {
    return of_node(handle, [&](const graph_node& node) {
        auto* const launch = dynamic_cast<kernel_work*>(node.what.get());
        return launch ? body(*launch) : CUDA_ERROR_INVALID_VALUE;
    });
}

} // namespace

void kernel_work::keep_attributes(const kernel_work& before) {
    shape.cooperative = before.shape.cooperative;
    std::copy(before.shape.cluster, before.shape.cluster + 3, shape.cluster);
    hints = before.hints;
}

KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUlaunchAttributeID id,
                                                          const CUlaunchAttributeValue* value) {
    return of_launch(node, [&](kernel_work& launch) {
        return value ? set_attribute(launch, id, *value) : CUDA_ERROR_INVALID_VALUE;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUlaunchAttributeID id,
                                                          CUlaunchAttributeValue* value) {
    return of_launch(node, [&](const kernel_work& launch) {
        return value ? get_attribute(launch, id, *value) : CUDA_ERROR_INVALID_VALUE;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
    return of_launch(to, [&](kernel_work& target) {
        const graph_node* const source = node_of(from);
        const auto* const launch = source ? dynamic_cast<const kernel_work*>(source->what.get()) : nullptr;
        if (!launch)
            return CUDA_ERROR_INVALID_VALUE;
        if (launch != &target)
            target.keep_attributes(*launch);
        return CUDA_SUCCESS;
    });
}

} // namespace kagemusha::cuda
