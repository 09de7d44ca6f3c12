// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu on PCI
 *
 * Beside the usual virtio BARs, BAR 4 holds the VRAM window, which the guest
 * finds as a virtio shared-memory region.
 *
 * BAR 4 is larger than the window: firmware puts a BAR that fits below 4 GiB
 * there, where the guest's MTRRs make every mapping uncached, and programs that
 * map the window would crawl. One of 4 GiB can only go above. It costs address
 * space only.
 */
#include "qemu/osdep.h"

#include "hw/pci/pci_ids.h"
#include "hw/qdev-properties.h"
#include "hw/virtio/virtio-pci.h"
#include "qapi/error.h"
#include "qemu/module.h"
#include "qemu/units.h"
#include "virtio-vgpu.h"

#define TYPE_VIRTIO_VGPU_PCI "virtio-vgpu-pci-base"
OBJECT_DECLARE_SIMPLE_TYPE(VirtIOVGPUPCI, VIRTIO_VGPU_PCI)

#define VGPU_WINDOW_BAR 4
#define PCI_CLASS_PROCESSING_ACCELERATOR 0x1200

struct VirtIOVGPUPCI {
    VirtIOPCIProxy parent_obj;

    VirtIOVGPU vdev;
    MemoryRegion bar;
    uint64_t bar_bytes;
};

static bool virtio_vgpu_pci_add_window(VirtIOVGPUPCI *dev, Error **errp)
{
    VirtIOPCIProxy *proxy = VIRTIO_PCI(dev);
    uint64_t window_bytes = dev->vdev.window_bytes;
    uint64_t bytes = MAX(dev->bar_bytes, window_bytes);

    /* The window's own rules are checked by the device itself. */
    if (!window_bytes) {
        return true;
    }
    if (!is_power_of_2(bytes)) {
        error_setg(errp, "virtio-vgpu: window-size and window-bar-size must be"
                   " powers of two");
        return false;
    }
    proxy->msix_bar_idx = 1;
    proxy->modern_mem_bar_idx = 2;
    memory_region_init(&dev->bar, OBJECT(dev), "virtio-vgpu.bar", bytes);
    pci_register_bar(PCI_DEVICE(dev), VGPU_WINDOW_BAR,
                     PCI_BASE_ADDRESS_SPACE_MEMORY |
                     PCI_BASE_ADDRESS_MEM_PREFETCH |
                     PCI_BASE_ADDRESS_MEM_TYPE_64,
                     &dev->bar);
    virtio_pci_add_shm_cap(proxy, VGPU_WINDOW_BAR, 0, window_bytes,
                           VGPU_SHM_WINDOW);
    dev->vdev.window_container = &dev->bar;
    return true;
}

static void virtio_vgpu_pci_realize(VirtIOPCIProxy *proxy, Error **errp)
{
    VirtIOVGPUPCI *dev = VIRTIO_VGPU_PCI(proxy);

    if (proxy->nvectors == DEV_NVECTORS_UNSPECIFIED) {
        proxy->nvectors = VGPU_QUEUE_COUNT + 1; /* and configuration */
    }
    if (!virtio_vgpu_pci_add_window(dev, errp)) {
        return;
    }
    virtio_pci_force_virtio_1(proxy);
    qdev_realize(DEVICE(&dev->vdev), BUS(&proxy->bus), errp);
}

static const Property virtio_vgpu_pci_properties[] = {
    DEFINE_PROP_BIT("ioeventfd", VirtIOPCIProxy, flags,
                    VIRTIO_PCI_FLAG_USE_IOEVENTFD_BIT, true),
    DEFINE_PROP_UINT32("vectors", VirtIOPCIProxy, nvectors,
                       DEV_NVECTORS_UNSPECIFIED),
    /* For hotplug into a hole or bridge window that has no room for 4 GiB */
    DEFINE_PROP_SIZE("window-bar-size", VirtIOVGPUPCI, bar_bytes, 4 * GiB),
};

static void virtio_vgpu_pci_class_init(ObjectClass *klass, void *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);
    VirtioPCIClass *k = VIRTIO_PCI_CLASS(klass);
    PCIDeviceClass *pcidev_k = PCI_DEVICE_CLASS(klass);

    k->realize = virtio_vgpu_pci_realize;
    set_bit(DEVICE_CATEGORY_MISC, dc->categories);
    device_class_set_props(dc, virtio_vgpu_pci_properties);
    pcidev_k->class_id = PCI_CLASS_PROCESSING_ACCELERATOR;
    pcidev_k->revision = VIRTIO_PCI_ABI_VERSION;
}

static void virtio_vgpu_pci_instance_init(Object *obj)
{
    VirtIOVGPUPCI *dev = VIRTIO_VGPU_PCI(obj);

    virtio_instance_init_common(obj, &dev->vdev, sizeof(dev->vdev),
                                TYPE_VIRTIO_VGPU);
}

static const VirtioPCIDeviceTypeInfo virtio_vgpu_pci_info = {
    .base_name = TYPE_VIRTIO_VGPU_PCI,
    .generic_name = "virtio-vgpu-pci",
    .instance_size = sizeof(VirtIOVGPUPCI),
    .instance_init = virtio_vgpu_pci_instance_init,
    .class_init = virtio_vgpu_pci_class_init,
};

static void virtio_vgpu_pci_register(void)
{
    virtio_pci_types_register(&virtio_vgpu_pci_info);
}

type_init(virtio_vgpu_pci_register)
