// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of TCG: a guest's access to a device goes to that device, whatever
 * changes the memory map at that moment
 *
 * The guest, a boot sector, reads the version register of its local APIC in
 * pauses of irregular length, while the test takes the BARs of a PCI device out
 * of the map and puts them back. They lie below the APIC, so that the APIC's
 * number in the list of the map's sections is another one each time.
 */

#include "qemu/osdep.h"
#include "libqtest.h"

#define ROUNDS 20000

#define DEVICE_NUMBER 4
#define PCI_CONFIG_ADDRESS 0xcf8
#define PCI_CONFIG_DATA 0xcfc
#define PCI_COMMAND 4
#define PCI_COMMAND_MEMORY 2

/* Where the guest writes down what it saw */
#define GUEST_READS 0x8000
#define GUEST_WRONG_READS 0x8004
#define GUEST_WRONG_VALUE 0x8008

static const uint8_t guest[512] = {
    /* 16 bit, at 0x7c00 */
    0xfa,                               /* cli */
    0x31, 0xc0,                         /* xor %ax, %ax */
    0x8e, 0xd8,                         /* mov %ax, %ds */
    0x66, 0x0f, 0x01, 0x16, 0x70, 0x7c, /* lgdtl 0x7c70 */
    0x0f, 0x20, 0xc0,                   /* mov %cr0, %eax */
    0x0c, 0x01,                         /* or $1, %al */
    0x0f, 0x22, 0xc0,                   /* mov %eax, %cr0 */
    0x66, 0xea, 0x1b, 0x7c, 0, 0, 8, 0, /* ljmpl $8, $0x7c1b */
    /* 32 bit, at 0x7c1b */
    0x66, 0xb8, 0x10, 0x00,             /* mov $16, %ax */
    0x8e, 0xd8,                         /* mov %ax, %ds */
    0xbe, 0x30, 0x00, 0xe0, 0xfe,       /* mov $0xfee00030, %esi */
    0xbf, 0x00, 0x80, 0x00, 0x00,       /* mov $0x8000, %edi */
    0x8b, 0x1e,                         /* mov (%esi), %ebx */
    /* again: edx: pseudo-random numbers; a pause of 1 to 16,384 rounds */
    0x69, 0xd2, 0x6d, 0x4e, 0xc6, 0x41, /* imul $1103515245, %edx */
    0x81, 0xc2, 0x39, 0x30, 0x00, 0x00, /* add $12345, %edx */
    0x89, 0xd1,                         /* mov %edx, %ecx */
    0xc1, 0xe9, 0x12,                   /* shr $18, %ecx */
    0x41,                               /* inc %ecx */
    0x49,                               /* wait: dec %ecx */
    0x75, 0xfd,                         /* jnz wait */
    0x8b, 0x06,                         /* mov (%esi), %eax */
    0xff, 0x07,                         /* incl (%edi) */
    0x39, 0xd8,                         /* cmp %ebx, %eax */
    0x74, 0xe3,                         /* je again */
    0x89, 0x47, 0x08,                   /* mov %eax, 8(%edi) */
    0xff, 0x47, 0x04,                   /* incl 4(%edi) */
    0xeb, 0xdb,                         /* jmp again */
    /* at 0x7c60: flat segments for code and data */
    [0x60] = 0xff, 0xff, 0, 0, 0, 0x9a, 0xcf, 0,
    [0x68] = 0xff, 0xff, 0, 0, 0, 0x92, 0xcf, 0,
    [0x70] = 23, 0, 0x58, 0x7c, 0, 0,   /* limit and base of the table */
    [510] = 0x55, 0xaa,
};

static char *write_guest(void)
{
    g_autoptr(GError) error = NULL;
    char *path;
    int fd = g_file_open_tmp("memory-map-test-XXXXXX", &path, &error);

    g_assert_no_error(error);
    close(fd);
    g_assert_true(g_file_set_contents(path, (const char *)guest, sizeof(guest),
                                      NULL));
    return path;
}

static void set_device_memory(QTestState *qts, bool on)
{
    qtest_outl(qts, PCI_CONFIG_ADDRESS,
               0x80000000 | DEVICE_NUMBER << 11 | PCI_COMMAND);
    qtest_outw(qts, PCI_CONFIG_DATA, on ? PCI_COMMAND_MEMORY : 0);
}

/* Reads that the guest has begun before this call are over, and one more. */
static void wait_for_reads(QTestState *qts)
{
    uint32_t before = qtest_readl(qts, GUEST_READS);

    while (qtest_readl(qts, GUEST_READS) - before < 2) {
        g_usleep(1000);
    }
}

static void test_access(void)
{
    g_autofree char *path = write_guest();
    QTestState *qts = qtest_initf(
        "-accel tcg -machine pc -m 32 -device virtio-rng-pci,addr=%x "
        "-drive if=none,id=d0,file=%s,format=raw,snapshot=on "
        "-device ide-hd,drive=d0,secs=1,cyls=1,heads=1", DEVICE_NUMBER, path);

    wait_for_reads(qts);
    for (int i = 0; i < ROUNDS; i++) {
        set_device_memory(qts, i % 2);
    }
    wait_for_reads(qts);
    g_test_message("%u reads, %u of them wrong, the last one 0x%x",
                   qtest_readl(qts, GUEST_READS),
                   qtest_readl(qts, GUEST_WRONG_READS),
                   qtest_readl(qts, GUEST_WRONG_VALUE));
    g_assert_cmpuint(qtest_readl(qts, GUEST_WRONG_READS), ==, 0);
    qtest_quit(qts);
    unlink(path);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    qtest_add_func("/memory-map/access", test_access);
    return g_test_run();
}
