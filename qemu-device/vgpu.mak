# SPDX-License-Identifier: GPL-2.0-or-later
#
# Devices of our QEMU (--with-devices-x86_64=vgpu): machines, what a Debian
# guest needs, our GPU, and bridges for hotplug. Everything else is left out, so
# that it builds in two minutes.
CONFIG_I440FX=y
CONFIG_Q35=y
CONFIG_PCIE_PORT=y
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_NET=y
CONFIG_VIRTIO_BLK=y
CONFIG_VIRTIO_RNG=y
CONFIG_VIRTIO_SERIAL=y
CONFIG_E1000_PCI=y
# A clock for guests without KVM's: ACPI's timer wraps after 4.7 s, and a guest
# whose vCPUs did not run for half of that stands still for ever.
CONFIG_HPET=y
CONFIG_VIRTIO_VGPU=y
# edu and friends, for tests of QEMU's own machinery
CONFIG_TEST_DEVICES=y
