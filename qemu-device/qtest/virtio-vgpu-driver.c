// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A small driver of virtio-vgpu on libqos, for the device's qtests
 *
 * Work is kept in flight without timing: a read that waits for a user event
 * stays until the event is set.
 */
#include "qemu/osdep.h"

#include "hw/pci/pci_regs.h"
#include "qobject/qdict.h"
#include "qobject/qjson.h"
#include "qobject/qnum.h"
#include "qobject/qstring.h"
#include "standard-headers/linux/virtio_config.h"
#include "standard-headers/linux/virtio_ring.h"
#include "virtio-vgpu-driver.h"

#define CL_DEVICE_NAME 0x102B
#define CL_MEM_READ_WRITE 1

/* ---- a driver ---------------------------------------------------------- */

static void driver_start_device(Driver *d)
{
    QVirtioDevice *vdev = &d->dev->vdev;
    uint64_t features;

    qvirtio_start_device(vdev);
    features = qvirtio_get_features(vdev);
    g_assert_cmphex(features & (1ULL << VIRTIO_F_VERSION_1), !=, 0);
    g_assert_cmphex(features & (1ULL << VIRTIO_F_RING_RESET), ==, 0);
    qvirtio_set_features(vdev, (1ULL << VIRTIO_F_VERSION_1) |
                               (1ULL << VIRTIO_RING_F_INDIRECT_DESC) |
                               (features & (1ULL << VGPU_F_STORE_LOG |
                                            1ULL << VGPU_F_PAGE_COPY)));
    d->requests = qvirtqueue_setup(vdev, &d->alloc, VGPU_QUEUE_REQUEST);
    d->events = qvirtqueue_setup(vdev, &d->alloc, VGPU_QUEUE_EVENT);
    qvirtio_set_driver_ok(vdev);
}

void driver_free_queues(Driver *d)
{
    qvirtqueue_cleanup(d->dev->vdev.bus, d->requests, &d->alloc);
    qvirtqueue_cleanup(d->dev->vdev.bus, d->events, &d->alloc);
}

/* What a driver does after an error: everything again from the reset on. */
void driver_restart_device(Driver *d)
{
    driver_free_queues(d);
    driver_start_device(d);
}

void driver_find_device(Driver *d)
{
    d->dev = virtio_pci_new(d->bus,
                            &(QPCIAddress) { .devfn = QPCI_DEVFN(SLOT, 0) });
    g_assert_nonnull(d->dev);
    qvirtio_pci_device_enable(d->dev);
    driver_start_device(d);
}

Driver *driver_new_without_device(const char *arguments)
{
    Driver *d = g_new0(Driver, 1);

    d->qts = qtest_init(arguments);
    pc_alloc_init(&d->alloc, d->qts, 0);
    d->bus = qpci_new_pc(d->qts, &d->alloc);
    return d;
}

Driver *driver_new(const char *properties)
{
    g_autofree char *arguments = g_strdup_printf(RAM "-device " VGPU "%s",
                                                 properties);
    Driver *d = driver_new_without_device(arguments);

    driver_find_device(d);
    return d;
}

void driver_forget_device(Driver *d)
{
    driver_free_queues(d);
    qpci_iounmap(d->dev->pdev, d->dev->bar);
    g_free(d->dev->pdev);
    g_free(d->dev);
    d->dev = NULL;
}

void driver_free(Driver *d)
{
    if (d->dev) {
        driver_forget_device(d);
    }
    qpci_free_pc(d->bus);
    alloc_destroy(&d->alloc);
    qtest_quit(d->qts); /* fails the test if QEMU did not end well */
    g_free(d);
}

uint64_t driver_stat(Driver *d, const char *name)
{
    QDict *answer = qtest_qmp(d->qts, "{'execute': 'qom-get', 'arguments': {"
                              "'path': '/machine/peripheral/vgpu0',"
                              "'property': 'stats'}}");
    QDict *stats;
    uint64_t value;

    g_assert(qdict_haskey(answer, "return"));
    stats = qdict_get_qdict(answer, "return");
    g_assert(qdict_haskey(stats, name));
    value = qdict_get_int(stats, name);
    qobject_unref(answer);
    return value;
}

void driver_wait_stat(Driver *d, const char *name, uint64_t value)
{
    gint64 start = g_get_monotonic_time();

    while (driver_stat(d, name) != value) {
        g_assert_cmpint(g_get_monotonic_time() - start, <, TIMEOUT_US);
    }
}

/* ---- requests ---------------------------------------------------------- */

void *stream_add(Stream *s, uint16_t opcode, uint32_t bytes)
{
    struct vgpu_cmd *cmd = (void *)(s->bytes + s->used);

    g_assert_cmpuint(s->used + bytes, <=, sizeof(s->bytes));
    memset(cmd, 0, bytes);
    cmd->opcode = opcode;
    cmd->bytes = bytes;
    s->used += bytes;
    return cmd;
}

void stream_payload(Stream *s, uint32_t flags, uint64_t bytes,
                           uint32_t segments)
{
    s->payload[s->payloads++] = (struct vgpu_payload) {
        .bytes = bytes, .first_segment = s->segments - segments,
        .segment_count = segments, .flags = flags,
    };
}

void stream_segment(Stream *s, uint64_t address, uint64_t bytes,
                           uint32_t flags)
{
    s->segment[s->segments++] = (struct vgpu_segment) {
        .address = address, .bytes = bytes, .flags = flags,
    };
}

/* Asks for the GPU's name; the result goes into payload 0, `bytes` long. */
void stream_device_name(Stream *s, uint64_t bytes)
{
    struct vgpu_cmd_info *info = stream_add(s, VGPU_CMD_INFO, sizeof(*info));

    info->subject = VGPU_INFO_DEVICE;
    info->name = CL_DEVICE_NAME;
    info->result = (struct vgpu_payload_ref) { .bytes = bytes, .index = 0 };
    info->input.index = VGPU_PAYLOAD_NONE;
}

Pending driver_put(Driver *d, const void *readable, uint32_t bytes,
                          uint32_t writable_bytes)
{
    Pending p = {
        .readable = guest_alloc(&d->alloc, MAX(bytes, 1)),
        .response = guest_alloc(&d->alloc, MAX(writable_bytes, 1)),
    };

    qtest_memwrite(d->qts, p.readable, readable, bytes);
    qtest_memset(d->qts, p.response, 0xee, writable_bytes);
    if (bytes) {
        p.head = qvirtqueue_add(d->qts, d->requests, p.readable, bytes, false,
                                writable_bytes);
    }
    if (writable_bytes) {
        uint32_t desc = qvirtqueue_add(d->qts, d->requests, p.response,
                                       writable_bytes, true, false);

        p.head = bytes ? p.head : desc;
    }
    qvirtqueue_kick(d->qts, &d->dev->vdev, d->requests, p.head);
    return p;
}

uint32_t stream_request(const Stream *s, uint32_t file, uint8_t *bytes,
                        uint32_t room)
{
    struct vgpu_request head = {
        .type = VGPU_REQUEST_SUBMIT, .file = file, .stream_bytes = s->used,
        .payload_count = s->payloads, .segment_count = s->segments,
        .completion_count = s->completions,
    };
    g_autoptr(GByteArray) all = g_byte_array_new();

    g_byte_array_append(all, (void *)&head, sizeof(head));
    g_byte_array_append(all, s->bytes, s->used);
    g_byte_array_append(all, (void *)s->payload,
                        s->payloads * sizeof(s->payload[0]));
    g_byte_array_append(all, (void *)s->segment,
                        s->segments * sizeof(s->segment[0]));
    g_assert_cmpuint(all->len, <=, room);
    memcpy(bytes, all->data, all->len);
    return all->len;
}

Pending driver_put_stream(Driver *d, uint32_t file, const Stream *s)
{
    uint8_t bytes[8192];
    uint32_t used = stream_request(s, file, bytes, sizeof(bytes));

    return driver_put(d, bytes, used, sizeof(struct vgpu_response));
}

/* Waits for the next answer of the ring; it must be that of `p`. */
uint32_t driver_wait_len(Driver *d, const Pending *p)
{
    gint64 start = g_get_monotonic_time();
    uint32_t head, len;

    while (!qvirtqueue_get_buf(d->qts, d->requests, &head, &len)) {
        g_assert_cmpint(g_get_monotonic_time() - start, <, TIMEOUT_US);
    }
    g_assert_cmpuint(head, ==, p->head);
    return len;
}

struct vgpu_response driver_wait(Driver *d, const Pending *p)
{
    struct vgpu_response response;

    g_assert_cmpuint(driver_wait_len(d, p), ==, sizeof(response));
    qtest_memread(d->qts, p->response, &response, sizeof(response));
    g_assert_cmpuint(response.pad, ==, 0);
    guest_free(&d->alloc, p->readable);
    guest_free(&d->alloc, p->response);
    return response;
}

/* Answers of one test come in order, so the descriptors can be used again. */
uint32_t driver_simple(Driver *d, uint32_t type, uint32_t file)
{
    struct vgpu_request request = { .type = type, .file = file };
    Pending p = driver_put(d, &request, sizeof(request),
                           sizeof(struct vgpu_response));

    return driver_wait(d, &p).status;
}

/* A call or silent command: it must be taken and succeed. */
struct vgpu_response driver_call(Driver *d, uint32_t file, Stream *s)
{
    Pending p = driver_put_stream(d, file, s);
    struct vgpu_response response = driver_wait(d, &p);

    g_assert_cmpuint(response.status, ==, VGPU_STATUS_OK);
    g_assert_cmpint(response.result, ==, 0);
    return response;
}

void driver_open(Driver *d, uint32_t file)
{
    g_assert_cmpuint(driver_simple(d, VGPU_REQUEST_OPEN, file), ==,
                     VGPU_STATUS_OK);
}

void driver_close(Driver *d, uint32_t file)
{
    g_assert_cmpuint(driver_simple(d, VGPU_REQUEST_CLOSE, file), ==,
                     VGPU_STATUS_OK);
}

/* ---- a session: context, queue, buffer, user event --------------------- */

void driver_make_objects(Driver *d, uint32_t file)
{
    Stream context = { 0 }, queue = { 0 }, buffer = { 0 }, event = { 0 };
    struct vgpu_cmd_create_context *c;
    struct vgpu_cmd_create_queue *q;
    struct vgpu_cmd_create_buffer *b;
    struct vgpu_cmd_create_user_event *e;

    c = stream_add(&context, VGPU_CMD_CREATE_CONTEXT, sizeof(*c));
    c->id = CONTEXT;
    driver_call(d, file, &context);
    q = stream_add(&queue, VGPU_CMD_CREATE_QUEUE, sizeof(*q));
    q->id = QUEUE;
    q->context = CONTEXT;
    driver_call(d, file, &queue);
    b = stream_add(&buffer, VGPU_CMD_CREATE_BUFFER, sizeof(*b));
    b->id = BUFFER;
    b->context = CONTEXT;
    b->flags = CL_MEM_READ_WRITE;
    b->bytes = 4096;
    b->content.index = VGPU_PAYLOAD_NONE;
    driver_call(d, file, &buffer);
    e = stream_add(&event, VGPU_CMD_CREATE_USER_EVENT, sizeof(*e));
    e->id = USER_EVENT;
    e->context = CONTEXT;
    driver_call(d, file, &event);
}

/* A read into `address` that stays in flight until USER_EVENT is set. */
Pending driver_put_waiting_read(Driver *d, uint32_t file,
                                       uint64_t address, uint64_t event)
{
    Stream s = { 0 };
    struct vgpu_cmd_transfer_buffer *read;
    uint64_t before = driver_stat(d, "requests");
    Pending p;

    read = stream_add(&s, VGPU_CMD_READ_BUFFER, sizeof(*read) + 8);
    read->enqueue.queue = QUEUE;
    read->enqueue.event = event;
    read->enqueue.wait_count = 1;
    read->buffer = BUFFER;
    read->data = (struct vgpu_payload_ref) { .bytes = 4096, .index = 0 };
    *(uint64_t *)(read + 1) = USER_EVENT;
    s.completions = event ? 1 : 0;
    stream_segment(&s, address, 4096, 0);
    stream_payload(&s, VGPU_PAYLOAD_WRITE, 4096, 1);
    p = driver_put_stream(d, file, &s);
    driver_wait_stat(d, "requests", before + 1);
    return p;
}

void driver_set_user_event(Driver *d, uint32_t file, Pending *set)
{
    Stream s = { 0 };
    struct vgpu_cmd_set_user_event *e;

    e = stream_add(&s, VGPU_CMD_SET_USER_EVENT, sizeof(*e));
    e->event = USER_EVENT;
    *set = driver_put_stream(d, file, &s);
}

/* Two answers whose order is open. */
void driver_wait_both(Driver *d, const Pending *a, const Pending *b)
{
    gint64 start = g_get_monotonic_time();
    unsigned got = 0;

    while (got != 3) {
        uint32_t head, len;

        if (qvirtqueue_get_buf(d->qts, d->requests, &head, &len)) {
            g_assert(head == a->head || head == b->head);
            g_assert_cmpuint(len, ==, sizeof(struct vgpu_response));
            got |= head == a->head ? 1 : 2;
        }
        g_assert_cmpint(g_get_monotonic_time() - start, <, TIMEOUT_US);
    }
    g_assert_cmpuint(qtest_readl(d->qts, a->response), ==, VGPU_STATUS_OK);
    g_assert_cmpuint(qtest_readl(d->qts, b->response), ==, VGPU_STATUS_OK);
}

uint64_t driver_post_event_buffer(Driver *d, uint32_t bytes)
{
    uint64_t buffer = guest_alloc(&d->alloc, bytes);
    uint32_t head = qvirtqueue_add(d->qts, d->events, buffer, bytes, true,
                                   false);

    qtest_memset(d->qts, buffer, 0xee, bytes);
    qvirtqueue_kick(d->qts, &d->dev->vdev, d->events, head);
    return buffer;
}

uint32_t driver_wait_event_buffer(Driver *d)
{
    gint64 start = g_get_monotonic_time();
    uint32_t head, len;

    while (!qvirtqueue_get_buf(d->qts, d->events, &head, &len)) {
        g_assert_cmpint(g_get_monotonic_time() - start, <, TIMEOUT_US);
    }
    return len;
}

void driver_put_window(Driver *d, uint64_t address)
{
    QPCIDevice *pdev = d->dev->pdev;

    qpci_config_writel(pdev, PCI_BASE_ADDRESS_4, (uint32_t)address);
    qpci_config_writel(pdev, PCI_BASE_ADDRESS_5, address >> 32);
}

static void driver_write_config(Driver *d, uint32_t place, uint32_t value)
{
    qpci_io_writel(d->dev->pdev, d->dev->bar,
                   d->dev->device_cfg_offset + place, value);
}

uint32_t driver_ask_log(Driver *d, uint64_t offset, uint32_t pages,
                        uint64_t address)
{
#define PLACE(field) (VGPU_CONFIG_STORE_LOG + \
                      offsetof(struct vgpu_store_log, field))
    driver_write_config(d, PLACE(offset), offset);
    driver_write_config(d, PLACE(offset) + 4, offset >> 32);
    driver_write_config(d, PLACE(address), address);
    driver_write_config(d, PLACE(address) + 4, address >> 32);
    driver_write_config(d, PLACE(pages), pages);
    return qvirtio_config_readl(&d->dev->vdev, PLACE(result));
#undef PLACE
}

#define PLACE(field) (VGPU_CONFIG_PAGE_COPIES + \
                      offsetof(struct vgpu_page_copies, field))
void driver_begin_copies(Driver *d, uint64_t address, uint32_t pages)
{
    driver_write_config(d, PLACE(address), address);
    driver_write_config(d, PLACE(address) + 4, address >> 32);
    driver_write_config(d, PLACE(pages), pages);
}

uint32_t driver_ask_copies(Driver *d, uint64_t address, uint32_t pages)
{
    driver_begin_copies(d, address, pages);
    return qvirtio_config_readl(&d->dev->vdev, PLACE(result));
}
#undef PLACE

uint32_t driver_copy_threads(Driver *d)
{
    return qvirtio_config_readl(&d->dev->vdev, VGPU_CONFIG_COPY_THREADS);
}

void driver_continue_in(Driver *d, QTestState *qts)
{
    d->qts = qts;
    d->bus->qts = qts;
}

/* ---- replication ------------------------------------------------------- */

char *standby_address_new(void)
{
    static unsigned made;

    return g_strdup_printf("unix:%s/virtio-vgpu-%d-%u", g_get_tmp_dir(),
                           (int)getpid(), made++);
}

static QDict *replication_status(QTestState *qts)
{
    QDict *answer = qtest_qmp(qts, "{'execute': 'qom-get', 'arguments': {"
                              "'path': '/machine/peripheral/vgpu0',"
                              "'property': 'replication'}}");

    g_assert(qdict_haskey(answer, "return"));
    return answer;
}

char *replication(QTestState *qts, const char *name)
{
    QDict *answer = replication_status(qts);
    QObject *value;
    char *text;

    value = qdict_get(qdict_get_qdict(answer, "return"), name);
    g_assert(value);
    text = qobject_type(value) == QTYPE_QSTRING
           ? g_strdup(qstring_get_str(qobject_to(QString, value)))
           : g_strdup_printf("%" PRIu64,
                             qnum_get_uint(qobject_to(QNum, value)));
    qobject_unref(answer);
    return text;
}

void wait_replication(QTestState *qts, const char *name, const char *wanted)
{
    GString *all;

    for (unsigned i = 0; i < 6000; i++) {
        g_autofree char *text = replication(qts, name);

        if (!strcmp(text, wanted)) {
            return;
        }
        g_usleep(10000);
    }
    all = qobject_to_json(QOBJECT(replication_status(qts)));
    g_error("replication: %s never was %s: %s", name, wanted, all->str);
}

void replicate_to(QTestState *primary, QTestState *standby)
{
    g_autofree char *address = replication(standby, "standby-address");

    replicate_to_address(primary, address);
}

void replicate_to_address(QTestState *primary, const char *address)
{
    QDict *answer;

    answer = qtest_qmp(primary, "{'execute': 'qom-set', 'arguments': {"
                       "'path': '/machine/peripheral/vgpu0',"
                       "'property': 'replicate-to', 'value': %s}}", address);
    g_assert(qdict_haskey(answer, "return"));
    qobject_unref(answer);
}

void expect_error(QDict *answer, const char *sentence)
{
    const char *desc;

    g_assert(qdict_haskey(answer, "error"));
    desc = qdict_get_str(qdict_get_qdict(answer, "error"), "desc");
    if (!strstr(desc, sentence)) {
        g_error("'%s' is not in '%s'", sentence, desc);
    }
    qobject_unref(answer);
}
