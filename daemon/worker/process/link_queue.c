/* Frames kept until polyd has committed them: in memory, beyond a limit in the spool. */
#include "daemon/worker/process/link_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/log.h"

bool link_full(const struct link *l)
{
    size_t memory = l->o.memory_bytes ? l->o.memory_bytes : LINK_MEMORY_BYTES;
    uint64_t spool = l->spool_fd < 0 ? 0 : l->o.spool_bytes ? l->o.spool_bytes : LINK_SPOOL_BYTES;

    return l->memory_bytes >= memory && l->spool_end >= spool;
}

struct link_entry *link_entry_at(struct link *l, size_t i)
{
    return &l->entries[(l->head + i) % l->capacity];
}

static bool entries_grow(struct link *l)
{
    size_t capacity = l->capacity ? 2 * l->capacity : 256;
    struct link_entry *more = malloc(capacity * sizeof *more);

    if (!more)
        return false;
    for (size_t i = 0; i < l->count; i++)
        more[i] = *link_entry_at(l, i);
    free(l->entries);
    l->entries = more;
    l->head = 0;
    l->capacity = capacity;
    return true;
}

/* Keeps one finished frame; mutex held. The bytes are copied. Once spooling has begun, everything goes to the
 * spool until it is empty, so that memory holds a prefix of the queue. */
static bool keep(struct link *l, const void *frame, size_t len, uint64_t seq)
{
    size_t memory = l->o.memory_bytes ? l->o.memory_bytes : LINK_MEMORY_BYTES;
    struct link_entry e = {.seq = seq, .len = (uint32_t)len};
    struct pd_why why;

    if (l->count == l->capacity && !entries_grow(l))
        return false;
    if (l->spool_fd >= 0 && (l->memory_bytes + len > memory || l->spool_held)) {
        if (lseek(l->spool_fd, (off_t)l->spool_end, SEEK_SET) >= 0 &&
            pd_file_write_all(l->spool_fd, frame, len, &why) == PD_OK) {
            e.spooled = true;
            e.offset = l->spool_end;
            l->spool_end += len;
            l->spool_held += len;
            l->spooled++;
        }
        /* A failing spool: memory it is, beyond its limit. Better than a lost point. */
    }
    if (!e.spooled) {
        e.bytes = malloc(len);
        if (!e.bytes)
            return false;
        memcpy(e.bytes, frame, len);
        l->memory_bytes += len;
    }
    *link_entry_at(l, l->count) = e;
    l->count++;
    return true;
}

/* Finishes `b` (begun with seq l->next_seq at 0) and keeps it. Mutex held. Waits while everything is full,
 * unless `may_drop`. */
void link_submit(struct link *l, struct pd_buf *b, bool may_drop)
{
    enum pd_err err = wire_end(b, 0);

    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "link", "frame=dropped error=%s", pd_err_name(err));
        return;
    }
    if (!keep(l, b->data, b->len, l->next_seq)) {
        /* No memory for the queue itself: nothing sensible is left but to say so. */
        pd_log(PD_LOG_ERROR, "link", "frame=dropped error=no_memory");
        if (may_drop)
            l->dropped_blobs++;
        return;
    }
    l->next_seq++;
    link_wake(l);
}

void link_wait_for_space(struct link *l)
{
    while (link_full(l) && !l->stop_thread && !l->refused)
        pthread_cond_wait(&l->changed, &l->mutex);
}

void link_acknowledge(struct link *l, uint64_t acked)
{
    while (l->count && link_entry_at(l, 0)->seq <= acked) {
        struct link_entry *e = link_entry_at(l, 0);

        if (e->spooled)
            l->spool_held -= e->len;
        else {
            l->memory_bytes -= e->len;
            free(e->bytes);
        }
        l->head = (l->head + 1) % l->capacity;
        l->count--;
        if (l->sent)
            l->sent--;
    }
    if (l->spool_fd >= 0 && !l->spool_held && l->spool_end) {
        if (ftruncate(l->spool_fd, 0) == 0)
            l->spool_end = 0;
    }
    if (acked > l->acked)
        l->acked = acked;
    pthread_cond_broadcast(&l->changed);
}
