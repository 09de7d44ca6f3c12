// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of virtio-vgpu: copies of pages of the window, which the device makes
 * and compares (docs/spec/device.md, section 2)
 */

#include "qemu/osdep.h"
#include "proto/abi/vgpu_page_copy.h"
#include "virtio-vgpu-driver.h"
#include "virtio-vgpu-tests.h"

#define COPIED 3 /* pages of the lists of these tests */

typedef struct Copies {
    Driver *d;
    uint64_t list, before, copy; /* in guest memory */
    struct vgpu_page_copy entry[COPIED]; /* the list that is asked for */
} Copies;

/*
 * Pages 0, 1 and the last one of the window: all of it as before, one byte of
 * the third and of the last block not, and no byte as before.
 */
static Copies copies_new(Driver *d)
{
    static const uint32_t page[COPIED] = { 0, 1, WINDOW_BYTES / 4096 - 1 };
    Copies c = {
        .d = d,
        .list = guest_alloc(&d->alloc, 4096),
        .before = guest_alloc(&d->alloc, COPIED * 4096),
        .copy = guest_alloc(&d->alloc, COPIED * 4096),
    };

    driver_put_window(d, WINDOW_ADDRESS);
    qtest_memset(d->qts, c.before, 0x11, COPIED * 4096);
    for (int i = 0; i < COPIED; i++) {
        uint64_t address = WINDOW_ADDRESS + page[i] * 4096ULL;

        qtest_memset(d->qts, address, i == 2 ? 0x12 : 0x11, 4096);
        c.entry[i].page = page[i];
        c.entry[i].before = c.before + i * 4096;
        c.entry[i].copy = c.copy + i * 4096;
    }
    qtest_writeb(d->qts, WINDOW_ADDRESS + 4096 + 2 * 64 + 63, 0);
    qtest_writeb(d->qts, WINDOW_ADDRESS + 2 * 4096 - 64, 0);
    return c;
}

static uint32_t copies_ask(Copies *c, uint32_t pages)
{
    qtest_memset(c->d->qts, c->copy, 0xcc, COPIED * 4096);
    qtest_memwrite(c->d->qts, c->list, c->entry, sizeof(c->entry));
    return driver_ask_copies(c->d, c->list, pages);
}

static void assert_copy(Copies *c, int i, uint32_t answer, uint64_t changed)
{
    QTestState *qts = c->d->qts;
    uint8_t window[4096], copy[4096];
    struct vgpu_page_copy got;

    qtest_memread(qts, c->list + i * sizeof(got), &got, sizeof(got));
    g_assert_cmpuint(got.answer, ==, answer);
    g_assert_cmphex(got.changed, ==, changed);
    qtest_memread(qts, WINDOW_ADDRESS + c->entry[i].page * 4096ULL, window,
                  4096);
    qtest_memread(qts, c->entry[i].copy, copy, 4096);
    g_assert_cmpmem(copy, 4096, window, 4096);
}

/* Nothing was written, neither copies nor answers. */
static void assert_no_copies(Copies *c)
{
    uint8_t copies[COPIED * 4096], expected[COPIED * 4096];
    struct vgpu_page_copy got[COPIED];

    memset(expected, 0xcc, sizeof(expected));
    qtest_memread(c->d->qts, c->copy, copies, sizeof(copies));
    g_assert_cmpmem(copies, sizeof(copies), expected, sizeof(expected));
    qtest_memread(c->d->qts, c->list, got, sizeof(got));
    g_assert_cmpmem(got, sizeof(got), c->entry, sizeof(c->entry));
}

static void assert_copies(Copies *c)
{
    g_assert_cmpuint(copies_ask(c, COPIED), ==, VGPU_STATUS_OK);
    assert_copy(c, 0, VGPU_COPY_PARTS, 0);
    assert_copy(c, 1, VGPU_COPY_PARTS, 1ULL << 63 | 1 << 2);
    assert_copy(c, 2, VGPU_COPY_WHOLE, UINT64_MAX);
}

/* One equal byte, wherever it is, and the page is not changed as a whole. */
static void assert_whole_pages(Copies *c)
{
    uint64_t last = WINDOW_ADDRESS + WINDOW_BYTES - 4096;

    for (uint32_t at = 0; at < 4096; at = at * 2 + 1) {
        qtest_writeb(c->d->qts, last + at, 0x11);
        g_assert_cmpuint(copies_ask(c, COPIED), ==, VGPU_STATUS_OK);
        assert_copy(c, 2, VGPU_COPY_PARTS, UINT64_MAX);
        qtest_writeb(c->d->qts, last + at, 0x12);
    }
}

/* What a good driver asks is done; of what is wrong nothing is. */
static void test_page_copies(void)
{
    static const struct {
        int64_t page, before, copy; /* instead; 0: as it was */
    } wrong[] = {
        { .page = WINDOW_BYTES / 4096 },
        { .page = UINT32_MAX },
        { .before = RAM_BYTES },                /* nothing is there */
        { .before = RAM_BYTES - 2048 },         /* half of it */
        { .before = (1 << 20) + 1 },
        { .before = -4096 },
        { .before = 0xfee00000 },               /* a device's registers */
        { .copy = RAM_BYTES },
        { .copy = (1 << 20) + 64 },
        { .copy = -4096 },
        { .copy = 0xfee00000 },
        { .copy = 0xfffff000 },                 /* firmware */
    };
    Driver *d = driver_new(",window-size=16M");
    Copies c = copies_new(d);

    assert_copies(&c);
    assert_whole_pages(&c);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct vgpu_page_copy *last = &c.entry[COPIED - 1], good = *last;

        last->page = wrong[i].page ?: last->page;
        last->before = wrong[i].before ?: last->before;
        last->copy = wrong[i].copy ?: last->copy;
        g_assert_cmpuint(copies_ask(&c, COPIED), ==, VGPU_STATUS_MALFORMED);
        assert_no_copies(&c);
        *last = good;
    }
    g_assert_cmpuint(copies_ask(&c, VGPU_MAX_COPIES + 1), ==,
                     VGPU_STATUS_MALFORMED);
    g_assert_cmpuint(copies_ask(&c, UINT32_MAX), ==, VGPU_STATUS_MALFORMED);
    assert_no_copies(&c);
    /* A list that ends where memory does, and none at all */
    g_assert_cmpuint(driver_ask_copies(d, RAM_BYTES - 64, COPIED), ==,
                     VGPU_STATUS_MALFORMED);
    g_assert_cmpuint(driver_ask_copies(d, 0xfee00000, 1), ==,
                     VGPU_STATUS_MALFORMED);
    g_assert_cmpuint(driver_ask_copies(d, UINT64_MAX - 8, 1), ==,
                     VGPU_STATUS_MALFORMED);
    assert_copies(&c);

    /* A list that names itself spoils itself: all of a page, or the answers. */
    c.entry[0].copy = c.list;
    g_assert_cmpuint(copies_ask(&c, COPIED), ==, VGPU_STATUS_OK);
    c.entry[0].copy = c.entry[1].copy;
    c.entry[1].before = c.entry[1].copy;
    g_assert_cmpuint(copies_ask(&c, COPIED), ==, VGPU_STATUS_OK);
    /* Or the window, also onto itself. */
    c.entry[2].copy = WINDOW_ADDRESS + WINDOW_BYTES - 4096;
    g_assert_cmpuint(copies_ask(&c, COPIED), ==, VGPU_STATUS_OK);
    assert_copy(&c, 2, VGPU_COPY_WHOLE, UINT64_MAX);

    driver_open(d, 1);
    driver_free(d);

    /* Without a window there are no copies. */
    d = driver_new(",window-size=0");
    g_assert_cmpuint(driver_ask_copies(d, 1 << 20, 1), ==,
                     VGPU_STATUS_MALFORMED);
    driver_free(d);
}

/* A list as long as it may be; each page gets an answer of its own. */
#define PAGES VGPU_MAX_COPIES

typedef struct Many {
    Driver *d;
    uint64_t at, before, copies; /* in guest memory */
    struct vgpu_page_copy list[PAGES];
} Many;

static Many *many_new(Driver *d)
{
    const uint64_t first = 100; /* page of the window */
    Many *m = g_new0(Many, 1);

    m->d = d;
    m->at = guest_alloc(&d->alloc, sizeof(m->list));
    m->before = guest_alloc(&d->alloc, PAGES * 4096);
    m->copies = guest_alloc(&d->alloc, PAGES * 4096);
    driver_put_window(d, WINDOW_ADDRESS);
    qtest_memset(d->qts, m->before, 0x11, PAGES * 4096);
    qtest_memset(d->qts, WINDOW_ADDRESS + first * 4096, 0x11, PAGES * 4096);
    for (uint32_t i = 0; i < PAGES; i++) {
        m->list[i].page = first + i;
        m->list[i].before = m->before + i * 4096;
        /* not in the list's order */
        m->list[i].copy = m->copies + (PAGES - 1 - i) * 4096;
        if (i % 3) {
            qtest_writel(d->qts, WINDOW_ADDRESS + (first + i) * 4096 +
                         i % 64 * 64, i);
        }
    }
    return m;
}

static void many_put_list(Many *m)
{
    qtest_memset(m->d->qts, m->copies, 0xcc, PAGES * 4096);
    qtest_memwrite(m->d->qts, m->at, m->list, sizeof(m->list));
}

static void assert_many(Many *m)
{
    g_autofree struct vgpu_page_copy *got = g_new(struct vgpu_page_copy, PAGES);
    QTestState *qts = m->d->qts;

    qtest_memread(qts, m->at, got, sizeof(m->list));
    for (uint32_t i = 0; i < PAGES; i++) {
        g_assert_cmpuint(got[i].answer, ==, VGPU_COPY_PARTS);
        g_assert_cmphex(got[i].changed, ==, i % 3 ? 1ULL << i % 64 : 0);
        g_assert_cmphex(qtest_readl(qts, m->list[i].copy + i % 64 * 64), ==,
                        i % 3 ? i : 0x11111111);
    }
}

/* Several threads do parts. Twice, as they begin with the first question. */
static void test_page_copies_in_parts(void)
{
    Driver *d = driver_new(",window-size=16M,copy-threads=3");
    g_autofree Many *m = many_new(d);

    g_assert_cmpuint(driver_copy_threads(d), ==, 3);
    for (int round = 0; round < 2; round++) {
        many_put_list(m);
        g_assert_cmpuint(driver_ask_copies(d, m->at, PAGES), ==,
                         VGPU_STATUS_OK);
        assert_many(m);
    }
    driver_free(d);
}

/*
 * Nobody waits for the threads: what was begun is done when a driver looks long
 * enough, asks something, asks the next question, or when the VM stops.
 */
static void test_page_copies_begun(void)
{
    static const char *const threads[] = {
        ",window-size=16M,copy-threads=3", ",window-size=16M,copy-threads=0",
    };

    for (unsigned i = 0; i < ARRAY_SIZE(threads); i++) {
        Driver *d = driver_new(threads[i]);
        g_autofree Many *m = many_new(d);

        many_put_list(m);
        driver_begin_copies(d, m->at, PAGES | VGPU_COPIES_BEGIN);
        for (unsigned page = 0; page < PAGES; page++) {
            uint64_t answer = m->at + page * sizeof(m->list[0]) +
                              offsetof(struct vgpu_page_copy, answer);

            while (qtest_readl(d->qts, answer) == VGPU_COPY_PENDING) {
                g_usleep(100);
            }
        }
        assert_many(m);

        many_put_list(m);
        driver_begin_copies(d, m->at, PAGES | VGPU_COPIES_BEGIN);
        driver_copy_threads(d);
        assert_many(m);

        many_put_list(m);
        driver_begin_copies(d, m->at, PAGES | VGPU_COPIES_BEGIN);
        driver_begin_copies(d, m->at, PAGES + 1);
        assert_many(m);

        many_put_list(m);
        driver_begin_copies(d, m->at, PAGES | VGPU_COPIES_BEGIN);
        qtest_qmp_assert_success(d->qts, "{ 'execute': 'stop' }");
        assert_many(m);
        qtest_qmp_assert_success(d->qts, "{ 'execute': 'cont' }");

        /* Not the kind of list whose answers can be there one by one */
        many_put_list(m);
        qtest_memwrite(d->qts, m->before - 4, m->list, 100 * 32);
        g_assert_cmpuint(driver_ask_copies(d, m->before - 4,
                                           100 | VGPU_COPIES_BEGIN), ==,
                         VGPU_STATUS_OK);
        g_assert_cmpuint(driver_ask_copies(d, RAM_BYTES - 64,
                                           PAGES | VGPU_COPIES_BEGIN), ==,
                         VGPU_STATUS_MALFORMED);
        g_assert_cmpuint(driver_ask_copies(d, m->at, UINT32_MAX), ==,
                         VGPU_STATUS_MALFORMED);

        /* The device ends in the middle of it. */
        driver_begin_copies(d, m->at, PAGES | VGPU_COPIES_BEGIN);
        driver_free(d);
    }
}

void add_copies_tests(void)
{
    qtest_add_func("virtio-vgpu/copies", test_page_copies);
    qtest_add_func("virtio-vgpu/copies/in-parts", test_page_copies_in_parts);
    qtest_add_func("virtio-vgpu/copies/begun", test_page_copies_begun);
}
