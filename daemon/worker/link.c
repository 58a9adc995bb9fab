/* One mutex guards everything; the thread holds it except while it polls, reads, writes and spools. Entries
 * are a queue of finished frames, oldest first: `sent` of them have gone out on this connection, an
 * acknowledgement takes them off the front. A reconnection sets `sent` back to zero, and polyd skips what it
 * has committed. */
#include "daemon/worker/link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/wire/serve_host.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define RECONNECT_MIN_US 50000
#define RECONNECT_MAX_US 2000000
#define PROGRESS_US 500000
#define LOG_US 1000000
#define OUT_BYTES ((size_t)1 << 20) /* bytes handed to the socket's buffer ahead */
#define KEYS_OPEN 1024              /* distinct keys of one metrics frame; a power of two */
#define REQUESTS_MAX 4096           /* waiting inference requests; polyd's own limit is lower */
#define MORTAL_US 3000000           /* a serving worker looks for polyd so long at its start */

struct entry {
    uint64_t seq;
    uint32_t len;
    bool spooled;
    union {
        uint8_t *bytes;
        uint64_t offset;
    };
};

struct request {
    struct serve_request pub;
    uint8_t *payload; /* owned; tensors point into it */
    char *json;
    bool cancelled, answered, taken;
    struct request *next; /* all requests not yet done */
};

struct link {
    struct link_options o;
    char *socket_path, *spool_path, *log_path;
    pthread_t thread;
    bool started;
    int wake_fd, spool_fd;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* assignment, room, acknowledgement, bye, request */

    /* the queue of kept frames */
    struct entry *entries;
    size_t head, count, room, sent;
    uint64_t next_seq;
    size_t memory_bytes;
    uint64_t spool_end, spool_held; /* bytes written; bytes of entries still waiting */
    uint64_t acked, dropped_blobs, spooled, reconnects;

    /* the open metrics frame */
    struct wire_point points[WIRE_POINTS_MAX];
    size_t point_count;
    char *keys[KEYS_OPEN]; /* in order */
    size_t key_count;
    uint16_t key_slot[2 * KEYS_OPEN]; /* hash: index + 1 */
    int64_t open_since_us;

    /* state */
    int64_t step, total, step_sent, log_sent;
    bool checkpointing, progress_dirty;
    bool assigned, refused, stop_thread, welcomed;
    struct link_assign assign;
    char *assign_store; /* holds the text that assign points at */
    bool bye_wanted, bye_answered;
    char bye_cause[32];
    char *bye_text;
    int64_t bye_step;
    struct pd_buf ready; /* frames to send once connected: ready, load, results */
    struct request *requests, **requests_tail;
    int request_count;
    bool unloading;

    _Atomic int stop;
    _Atomic bool checkpoint_now;
    _Atomic bool signalled;
};

/* ---- small things --------------------------------------------------------------------------- */

static void wake(struct link *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake_fd, &one, sizeof one);

    (void)n; /* a full counter wakes as well */
}

static uint64_t pid_start(void)
{
    char text[1024], *at;
    uint64_t start = 0;
    FILE *f = fopen("/proc/self/stat", "re");

    if (f && fgets(text, sizeof text, f) && (at = strrchr(text, ')'))) {
        /* The name may hold blanks: count from its closing bracket. Field 22 is the 20th after it. */
        for (int i = 0; i < 20 && at; i++)
            at = strchr(at + 1, ' ');
        if (at)
            start = strtoull(at + 1, NULL, 10);
    }
    if (f)
        fclose(f);
    return start;
}

static bool full(const struct link *l)
{
    size_t memory = l->o.memory_bytes ? l->o.memory_bytes : LINK_MEMORY_BYTES;
    uint64_t spool = l->spool_fd < 0 ? 0 : l->o.spool_bytes ? l->o.spool_bytes : LINK_SPOOL_BYTES;

    return l->memory_bytes >= memory && l->spool_end >= spool;
}

static struct entry *entry_at(struct link *l, size_t i)
{
    return &l->entries[(l->head + i) % l->room];
}

static bool entries_grow(struct link *l)
{
    size_t room = l->room ? 2 * l->room : 256;
    struct entry *more = malloc(room * sizeof *more);

    if (!more)
        return false;
    for (size_t i = 0; i < l->count; i++)
        more[i] = *entry_at(l, i);
    free(l->entries);
    l->entries = more;
    l->head = 0;
    l->room = room;
    return true;
}

/* Keeps one finished frame; mutex held. The bytes are copied. Once spooling has begun, everything goes to the
 * spool until it is empty, so that memory holds a prefix of the queue. */
static bool keep(struct link *l, const void *frame, size_t len, uint64_t seq)
{
    size_t memory = l->o.memory_bytes ? l->o.memory_bytes : LINK_MEMORY_BYTES;
    struct entry e = {.seq = seq, .len = (uint32_t)len};
    struct pd_why why;

    if (l->count == l->room && !entries_grow(l))
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
    *entry_at(l, l->count) = e;
    l->count++;
    return true;
}

/* Finishes `b` (begun with seq l->next_seq at 0) and keeps it. Mutex held. Waits while everything is full,
 * unless `may_drop`. */
static void submit(struct link *l, struct pd_buf *b, bool may_drop)
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
    wake(l);
}

static void wait_for_room(struct link *l)
{
    while (full(l) && !l->stop_thread && !l->refused)
        pthread_cond_wait(&l->changed, &l->mutex);
}

/* ---- metrics -------------------------------------------------------------------------------- */

static void close_metrics(struct link *l)
{
    struct pd_buf b;

    if (!l->point_count)
        return;
    pd_buf_init(&b, 0);
    wire_begin(&b, WIRE_METRICS, 0, l->next_seq);
    for (size_t i = 0; i < l->key_count; i++)
        wire_put_text(&b, WIRE_TAG_KEY, l->keys[i]);
    wire_put_points(&b, l->points, l->point_count);
    submit(l, &b, false);
    pd_buf_done(&b);
    for (size_t i = 0; i < l->key_count; i++)
        free(l->keys[i]);
    memset(l->key_slot, 0, sizeof l->key_slot);
    l->key_count = l->point_count = 0;
}

static uint32_t key_index(struct link *l, const char *key)
{
    uint32_t h = 2166136261u;
    size_t at;

    for (const char *c = key; *c; c++)
        h = (h ^ (unsigned char)*c) * 16777619u;
    for (at = h % (2 * KEYS_OPEN); l->key_slot[at]; at = (at + 1) % (2 * KEYS_OPEN))
        if (!strcmp(l->keys[l->key_slot[at] - 1], key))
            return l->key_slot[at] - 1u;
    l->keys[l->key_count] = strndup(key, WIRE_NAME_MAX);
    if (!l->keys[l->key_count])
        return UINT32_MAX;
    l->key_slot[at] = (uint16_t)++l->key_count;
    return (uint32_t)l->key_count - 1;
}

void link_metric(struct link *l, const char *key, int64_t step, int64_t time_us, double value)
{
    uint32_t index;

    pthread_mutex_lock(&l->mutex);
    if (full(l))
        wait_for_room(l);
    if (l->key_count == KEYS_OPEN)
        close_metrics(l);
    index = key_index(l, key);
    if (index != UINT32_MAX) {
        if (!l->point_count)
            l->open_since_us = pd_clock_mono_us();
        l->points[l->point_count++] =
            (struct wire_point){.key = index, .step = step, .time_us = time_us, .value = value};
        if (l->point_count == WIRE_POINTS_MAX)
            close_metrics(l);
    }
    pthread_mutex_unlock(&l->mutex);
}

/* ---- other data ----------------------------------------------------------------------------- */

/* Metrics that came before go first, so that a checkpoint acknowledges its own points. */
static void begin_data(struct link *l, struct pd_buf *b, enum wire_type type)
{
    wait_for_room(l);
    close_metrics(l);
    pd_buf_init(b, 0);
    wire_begin(b, type, 0, l->next_seq);
    wire_put_u64(b, WIRE_TAG_TIME_US, (uint64_t)pd_clock_wall_us());
}

void link_event(struct link *l, const char *kind, const char *text, const char *pairs)
{
    struct pd_buf b;

    pthread_mutex_lock(&l->mutex);
    begin_data(l, &b, WIRE_EVENT);
    wire_put_text(&b, WIRE_TAG_KEY, kind);
    if (text)
        wire_put_text(&b, WIRE_TAG_TEXT, text);
    for (const char *at = pairs ? pairs : ""; *at;) {
        size_t len = strcspn(at, " ");

        if (len)
            wire_put_bytes(&b, WIRE_TAG_PAIR, at, len);
        at += len + (at[len] == ' ');
    }
    submit(l, &b, false);
    pthread_mutex_unlock(&l->mutex);
    pd_buf_done(&b);
}

void link_checkpoint(struct link *l, const char *kind, const char *path, int64_t step, uint64_t bytes,
                     const char *digest_hex, double value)
{
    struct pd_buf b;

    pthread_mutex_lock(&l->mutex);
    begin_data(l, &b, WIRE_CHECKPOINT_WRITTEN);
    wire_put_text(&b, WIRE_TAG_KIND, kind);
    wire_put_text(&b, WIRE_TAG_CHECKPOINT, path);
    wire_put_u64(&b, WIRE_TAG_STEP, (uint64_t)step);
    wire_put_u64(&b, WIRE_TAG_BYTES, bytes);
    wire_put_text(&b, WIRE_TAG_DIGEST, digest_hex);
    if (value == value)
        wire_put_f64(&b, WIRE_TAG_VALUE, value);
    submit(l, &b, false);
    pthread_mutex_unlock(&l->mutex);
    pd_buf_done(&b);
}

void link_blob(struct link *l, const char *kind, const char *key, int64_t step, const char *meta,
               const void *bytes, size_t len)
{
    struct pd_buf b;

    pthread_mutex_lock(&l->mutex);
    if (full(l)) {
        l->dropped_blobs++;
        pthread_mutex_unlock(&l->mutex);
        return;
    }
    begin_data(l, &b, WIRE_BLOB);
    wire_put_text(&b, WIRE_TAG_KIND, kind);
    wire_put_text(&b, WIRE_TAG_KEY, key);
    wire_put_u64(&b, WIRE_TAG_STEP, (uint64_t)step);
    wire_put_text(&b, WIRE_TAG_JSON, meta);
    wire_put_bytes(&b, WIRE_TAG_POINTS, bytes, len);
    submit(l, &b, true);
    pthread_mutex_unlock(&l->mutex);
    pd_buf_done(&b);
}

void link_progress(struct link *l, int64_t step, int64_t total, bool checkpointing)
{
    pthread_mutex_lock(&l->mutex);
    l->step = step;
    l->total = total;
    l->checkpointing = checkpointing;
    l->progress_dirty = true;
    pthread_mutex_unlock(&l->mutex);
}

void link_signal_stop(struct link *l)
{
    atomic_store(&l->signalled, true);
    wake(l);
}

enum link_stop link_stop_asked(struct link *l)
{
    int stop = atomic_load_explicit(&l->stop, memory_order_relaxed);

    if (stop == LINK_GO_ON && atomic_load_explicit(&l->signalled, memory_order_relaxed))
        return LINK_CHECKPOINT_AND_LEAVE;
    return (enum link_stop)stop;
}

bool link_checkpoint_asked(struct link *l)
{
    return atomic_exchange(&l->checkpoint_now, false);
}

void link_stats(struct link *l, struct link_stats *ret)
{
    pthread_mutex_lock(&l->mutex);
    *ret = (struct link_stats){.frames = l->next_seq - 1,
                               .acked = l->acked,
                               .dropped_blobs = l->dropped_blobs,
                               .spooled = l->spooled,
                               .reconnects = l->reconnects,
                               .memory_bytes = l->memory_bytes};
    pthread_mutex_unlock(&l->mutex);
}

/* ---- frames from polyd (mutex held) --------------------------------------------------------- */

static void acknowledge(struct link *l, uint64_t acked)
{
    while (l->count && entry_at(l, 0)->seq <= acked) {
        struct entry *e = entry_at(l, 0);

        if (e->spooled)
            l->spool_held -= e->len;
        else {
            l->memory_bytes -= e->len;
            free(e->bytes);
        }
        l->head = (l->head + 1) % l->room;
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

static const char *store_text(char **at, const struct wire_field *f)
{
    char *text = *at;

    memcpy(text, f->bytes, f->len);
    text[f->len] = '\0';
    *at += f->len + 1;
    return text;
}

static void take_assign(struct link *l, const uint8_t *p, size_t len)
{
    struct link_assign *a = &l->assign;
    struct wire_field f;
    size_t pos = 0;
    char *at;

    if (l->assigned)
        return; /* polyd was restarted and says it again */
    at = l->assign_store = malloc(2 * len + 64);
    if (!at)
        return; /* asked again at the next connection */
    a->job = a->run_dir = a->model = a->digest = "";
    while (wire_next(p, len, &pos, &f, NULL)) {
        const char *text;

        switch (f.tag) {
        case WIRE_TAG_JOB:
            a->job = store_text(&at, &f);
            a->job_len = f.len;
            break;
        case WIRE_TAG_RUN_DIR:
            a->run_dir = store_text(&at, &f);
            break;
        case WIRE_TAG_CHECKPOINT:
            a->checkpoint = store_text(&at, &f);
            break;
        case WIRE_TAG_MODEL:
            a->model = store_text(&at, &f);
            break;
        case WIRE_TAG_DIGEST:
            a->digest = store_text(&at, &f);
            break;
        case WIRE_TAG_DATA_ROOT:
            text = store_text(&at, &f);
            if (a->root_count < LINK_ROOTS_MAX && strchr(text, '=')) {
                char *cut = strchr(text, '=');

                *cut = '\0';
                a->roots[a->root_count].name = text;
                a->roots[a->root_count++].path = cut + 1;
            }
            break;
        default:
            break;
        }
    }
    wire_get_text(p, len, WIRE_TAG_ROLE, a->role, sizeof a->role);
    a->checkpoint_step = (int64_t)wire_get_u64(p, len, WIRE_TAG_STEP, 0);
    a->threads = (int)wire_get_u32(p, len, WIRE_TAG_THREADS, 1);
    a->restarts = (int)wire_get_u32(p, len, WIRE_TAG_RESTARTS, 0);
    l->assigned = true;
    pthread_cond_broadcast(&l->changed);
}

static void refuse(struct link *l)
{
    l->refused = true;
    atomic_store(&l->stop, LINK_LEAVE_NOW);
    pthread_cond_broadcast(&l->changed);
}

static void answer(struct link *l, uint64_t id, enum pd_err err, const char *text)
{
    size_t at = wire_begin(&l->ready, WIRE_INFER_RESULT, 0, id);

    wire_put_u32(&l->ready, WIRE_TAG_ERROR, (uint32_t)err);
    wire_put_text(&l->ready, WIRE_TAG_TEXT, text);
    wire_put_u32(&l->ready, WIRE_TAG_LAST, 1);
    if (wire_end(&l->ready, at) != PD_OK)
        pd_log(PD_LOG_ERROR, "link", "answer=dropped request=%llu", (unsigned long long)id);
}

static void take_infer(struct link *l, uint64_t id, const uint8_t *p, size_t len)
{
    struct request *r = calloc(1, sizeof *r);
    struct pd_why why = {"no memory for the request"};
    enum pd_err err = PD_ERR_NOMEM;
    uint64_t deadline_us = wire_get_u64(p, len, WIRE_TAG_DEADLINE_US, 0);
    struct wire_field f;
    size_t pos = 0;

    if (!r)
        goto refused;
    if (l->unloading || l->request_count >= REQUESTS_MAX) {
        err = pd_fail(&why, l->unloading ? PD_ERR_CLOSED : PD_ERR_BUSY, "the model takes no requests now");
        goto refused;
    }
    r->payload = malloc(len + 1);
    if (!r->payload)
        goto refused;
    memcpy(r->payload, p, len);
    r->pub.id = id;
    r->pub.deadline_us = deadline_us ? pd_clock_mono_us() + (int64_t)deadline_us : 0;
    wire_get_text(p, len, WIRE_TAG_KIND, r->pub.kind, sizeof r->pub.kind);
    while (wire_next(r->payload, len, &pos, &f, NULL)) {
        if (f.tag == WIRE_TAG_JSON && !r->json) {
            r->json = strndup((const char *)f.bytes, f.len);
            if (!r->json)
                goto refused;
            r->pub.json_len = f.len;
        } else if (f.tag == WIRE_TAG_TENSOR) {
            if (r->pub.count == WIRE_TENSORS_MAX) {
                err = pd_fail(&why, PD_ERR_LIMIT, "more than %d tensors", WIRE_TENSORS_MAX);
                goto refused;
            }
            err = wire_get_tensor(&f, &r->pub.tensors[r->pub.count++], &why);
            if (err != PD_OK)
                goto refused;
        }
    }
    if (!r->json) {
        r->json = strdup("{}");
        if (!r->json) {
            err = PD_ERR_NOMEM;
            goto refused;
        }
        r->pub.json_len = 2;
    }
    r->pub.json = r->json;
    *l->requests_tail = r;
    l->requests_tail = &r->next;
    l->request_count++;
    pthread_cond_broadcast(&l->changed);
    return;
refused:
    if (r) {
        free(r->payload);
        free(r->json);
        free(r);
    }
    answer(l, id, err, why.text);
}

static void take_cancel(struct link *l, const uint8_t *p, size_t len)
{
    uint64_t id = wire_get_u64(p, len, WIRE_TAG_REQUEST, 0);

    if (!id) {
        if (link_stop_asked(l) == LINK_GO_ON)
            atomic_store(&l->stop, LINK_CHECKPOINT_AND_LEAVE);
    } else
        for (struct request *r = l->requests; r; r = r->next)
            if (r->pub.id == id)
                r->cancelled = true;
    pthread_cond_broadcast(&l->changed);
}

/* False: close the connection. */
static bool take_frame(struct link *l, const struct wire_header *h, const uint8_t *p)
{
    char cause[32];

    switch (h->type) {
    case WIRE_WELCOME:
        acknowledge(l, wire_get_u64(p, h->len, WIRE_TAG_ACKED, 0));
        l->welcomed = true;
        l->sent = 0;
        l->step_sent = l->log_sent = -1;
        l->progress_dirty = true;
        return true;
    case WIRE_ASSIGN:
        take_assign(l, p, h->len);
        return true;
    case WIRE_ACK:
        acknowledge(l, wire_get_u64(p, h->len, WIRE_TAG_ACKED, 0));
        return true;
    case WIRE_CANCEL:
        take_cancel(l, p, h->len);
        return true;
    case WIRE_DRAIN:
        if (link_stop_asked(l) == LINK_GO_ON)
            atomic_store(&l->stop, LINK_CHECKPOINT_AND_LEAVE);
        pthread_cond_broadcast(&l->changed);
        return true;
    case WIRE_CHECKPOINT_NOW:
        atomic_store(&l->checkpoint_now, true);
        return true;
    case WIRE_INFER:
        take_infer(l, h->seq, p, h->len);
        return true;
    case WIRE_UNLOAD:
        l->unloading = true;
        atomic_store(&l->stop, LINK_CHECKPOINT_AND_LEAVE);
        pthread_cond_broadcast(&l->changed);
        return true;
    case WIRE_BYE:
        wire_get_text(p, h->len, WIRE_TAG_CAUSE, cause, sizeof cause);
        if (l->bye_wanted && !strcmp(cause, "recorded"))
            l->bye_answered = true;
        else if (!strcmp(
                     cause,
                     "version")) /* no common version: leave in order, the run goes on with another build */
            atomic_store(&l->stop, LINK_CHECKPOINT_AND_LEAVE);
        else
            refuse(l);
        pthread_cond_broadcast(&l->changed);
        return false;
    default:
        return true; /* heartbeat, and what a newer daemon may add */
    }
}

/* ---- the thread ----------------------------------------------------------------------------- */

static int dial(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof addr.sun_path)
        return -1;
    strcpy(addr.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr)) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0)
        fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void put_hello(struct link *l, struct pd_buf *out)
{
    size_t at = wire_begin(out, WIRE_HELLO, 0, 0);

    wire_put_u32(out, WIRE_TAG_VERSION_MIN, WIRE_VERSION_MIN);
    wire_put_u32(out, WIRE_TAG_VERSION_MAX, WIRE_VERSION);
    wire_put_u64(out, WIRE_TAG_RUN, (uint64_t)l->o.run);
    wire_put_u32(out, WIRE_TAG_ATTEMPT, (uint32_t)l->o.attempt);
    wire_put_u32(out, WIRE_TAG_RANK, 0);
    wire_put_bytes(out, WIRE_TAG_TOKEN, l->o.token, sizeof l->o.token);
    wire_put_u32(out, WIRE_TAG_PID, (uint32_t)getpid());
    wire_put_u64(out, WIRE_TAG_PID_START, pid_start());
    wire_put_text(out, WIRE_TAG_BUILD, POLYD_VERSION);
    wire_put_u64(out, WIRE_TAG_LOWEST_SEQ, l->count ? entry_at(l, 0)->seq : 0);
    if (wire_end(out, at) != PD_OK)
        pd_log(PD_LOG_ERROR, "link", "hello=dropped");
}

/* Moves frames into the connection's buffer: kept ones in order, then those of the moment. Mutex held. */
static void fill(struct link *l, struct pd_buf *out, int64_t now_us, int64_t *progress_us, int64_t *log_us)
{
    if (!l->welcomed)
        return;
    if (l->ready.len) {
        pd_buf_append(out, l->ready.data, l->ready.len);
        l->ready.len = 0;
        if (l->ready.size > OUT_BYTES)
            pd_buf_done(&l->ready);
    }
    if (l->point_count && now_us - l->open_since_us >= LINK_FLUSH_US)
        close_metrics(l);
    while (l->sent < l->count && out->len < OUT_BYTES) {
        struct entry *e = entry_at(l, l->sent);

        if (!e->spooled)
            pd_buf_append(out, e->bytes, e->len);
        else {
            void *at = pd_buf_reserve(out, e->len);

            if (!at || pread(l->spool_fd, at, e->len, (off_t)e->offset) != (ssize_t)e->len) {
                pd_log(PD_LOG_ERROR, "link", "spool=unreadable seq=%llu", (unsigned long long)e->seq);
                out->len -= at ? e->len : 0;
                return;
            }
        }
        l->sent++;
    }
    if (l->progress_dirty && now_us - *progress_us >= PROGRESS_US) {
        size_t at = wire_begin(out, WIRE_PROGRESS, 0, 0);

        wire_put_u64(out, WIRE_TAG_STEP, (uint64_t)l->step);
        wire_put_u64(out, WIRE_TAG_TOTAL, (uint64_t)l->total);
        wire_put_text(out, WIRE_TAG_STATE, l->checkpointing ? "checkpointing" : "running");
        if (wire_end(out, at) == PD_OK)
            l->progress_dirty = false;
        *progress_us = now_us;
    }
    if (l->log_path && (now_us - *log_us >= LOG_US || l->bye_wanted)) {
        struct stat st;

        *log_us = now_us;
        if (stat(l->log_path, &st) == 0 && st.st_size != l->log_sent) {
            size_t at = wire_begin(out, WIRE_LOG_OFFSET, 0, 0);

            wire_put_u64(out, WIRE_TAG_BYTES, (uint64_t)st.st_size);
            if (wire_end(out, at) == PD_OK)
                l->log_sent = st.st_size;
        }
    }
}

/* The bye goes last: when every data frame is acknowledged. Mutex held. */
static bool put_bye(struct link *l, struct pd_buf *out)
{
    size_t at;

    if (!l->welcomed || !l->bye_wanted || l->bye_answered || l->point_count || l->count)
        return false;
    at = wire_begin(out, WIRE_BYE, 0, 0);
    wire_put_text(out, WIRE_TAG_CAUSE, l->bye_cause);
    wire_put_u64(out, WIRE_TAG_STEP, (uint64_t)l->bye_step);
    wire_put_text(out, WIRE_TAG_TEXT, l->bye_text ? l->bye_text : "");
    return wire_end(out, at) == PD_OK;
}

static void put_heartbeat(struct pd_buf *out)
{
    size_t at = wire_begin(out, WIRE_HEARTBEAT, 0, 0);

    if (wire_end(out, at) != PD_OK)
        out->len = at;
}

/* One connection from hello to its end. The mutex is not held on entry. */
static void converse(struct link *l, int fd)
{
    struct wire_in in;
    struct pd_buf out;
    int64_t heard_us = pd_clock_mono_us(), beat_us = heard_us, progress_us = 0, log_us = 0;
    bool alive = true, bye_sent = false;

    wire_in_init(&in);
    pd_buf_init(&out, 0);
    pthread_mutex_lock(&l->mutex);
    put_hello(l, &out);
    l->welcomed = false;
    pthread_mutex_unlock(&l->mutex);
    while (alive) {
        struct pollfd poll_fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = l->wake_fd, .events = POLLIN}};
        int64_t now_us = pd_clock_mono_us();
        struct wire_header head;
        const uint8_t *payload;
        struct pd_why why;
        uint64_t count;
        enum pd_err err;

        pthread_mutex_lock(&l->mutex);
        if (l->stop_thread) {
            pthread_mutex_unlock(&l->mutex);
            break;
        }
        if (l->bye_wanted)
            close_metrics(l);
        fill(l, &out, now_us, &progress_us, &log_us);
        if (!bye_sent)
            bye_sent = put_bye(l, &out);
        pthread_mutex_unlock(&l->mutex);
        if (now_us - beat_us >= WIRE_HEARTBEAT_US) {
            put_heartbeat(&out);
            beat_us = now_us;
        }
        if (out.failed || (out.len && wire_out_write(&out, fd, &why) != PD_OK))
            break;
        if (now_us - heard_us > WIRE_SILENCE_US)
            break;
        if (out.len)
            poll_fds[0].events |= POLLOUT;
        if (poll(poll_fds, 2, 200) < 0 && errno != EINTR)
            break;
        if (poll_fds[1].revents & POLLIN) {
            ssize_t n = read(l->wake_fd, &count, sizeof count);

            (void)n;
        }
        if (!(poll_fds[0].revents & (POLLIN | POLLHUP | POLLERR)))
            continue;
        err = wire_in_read(&in, fd, OUT_BYTES, &why);
        heard_us = pd_clock_mono_us();
        alive = err == PD_OK;
        /* What came before the end still counts: a bye is followed by the close. */
        pthread_mutex_lock(&l->mutex);
        while ((err = wire_in_next(&in, &head, &payload, &why)) == PD_OK)
            if (!take_frame(l, &head, payload)) {
                alive = false;
                break;
            }
        pthread_mutex_unlock(&l->mutex);
        if (err != PD_OK && err != PD_ERR_NOT_FOUND) {
            pd_log(PD_LOG_WARNING, "link", "connection=broken why=\"%s\"", why.text);
            alive = false;
        }
    }
    wire_in_done(&in);
    pd_buf_done(&out);
}

static void *link_thread(void *arg)
{
    struct link *l = arg;
    int64_t pause_us = RECONNECT_MIN_US, alone_since_us = pd_clock_mono_us();
    bool over = false;

    while (!over) {
        int fd = dial(l->socket_path);
        int64_t now_us;

        if (fd >= 0) {
            bool welcomed;

            converse(l, fd);
            close(fd);
            pthread_mutex_lock(&l->mutex);
            welcomed = l->welcomed;
            l->welcomed = false;
            l->reconnects++;
            pthread_mutex_unlock(&l->mutex);
            if (welcomed) {
                pause_us = RECONNECT_MIN_US;
                alone_since_us = pd_clock_mono_us();
            }
        }
        now_us = pd_clock_mono_us();
        pthread_mutex_lock(&l->mutex);
        if (l->o.mortal && (l->assigned || now_us - alone_since_us > MORTAL_US))
            refuse(l); /* nobody can ask a serving worker anything any more */
        if (now_us - alone_since_us > LINK_ALONE_US && link_stop_asked(l) == LINK_GO_ON)
            atomic_store(&l->stop, LINK_CHECKPOINT_AND_LEAVE);
        if (l->bye_wanted || (l->point_count && now_us - l->open_since_us >= LINK_FLUSH_US))
            close_metrics(l);
        over = l->stop_thread || l->refused || l->bye_answered;
        pthread_mutex_unlock(&l->mutex);
        if (!over) {
            struct pollfd p = {.fd = l->wake_fd, .events = POLLIN};
            int64_t until_us = now_us + pause_us;

            /* Wakes are for frames that must wait anyway: only the stop matters here. */
            while (!over && (now_us = pd_clock_mono_us()) < until_us) {
                uint64_t count;

                if (poll(&p, 1, (int)((until_us - now_us) / 1000) + 1) > 0) {
                    ssize_t n = read(l->wake_fd, &count, sizeof count);
                    struct timespec breath = {.tv_nsec = 5000000};

                    (void)n;
                    nanosleep(&breath, NULL); /* a busy role must not turn the pause into a spin */
                }
                pthread_mutex_lock(&l->mutex);
                over = l->stop_thread;
                pthread_mutex_unlock(&l->mutex);
            }
            pause_us = pause_us * 2 < RECONNECT_MAX_US ? pause_us * 2 : RECONNECT_MAX_US;
        }
    }
    pthread_mutex_lock(&l->mutex);
    if (!l->bye_answered)
        refuse(l);
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

/* ---- start, stop, bye ----------------------------------------------------------------------- */

static struct link *link_free(struct link *l)
{
    while (l->count) {
        struct entry *e = entry_at(l, 0);

        if (!e->spooled)
            free(e->bytes);
        l->head = (l->head + 1) % l->room;
        l->count--;
    }
    while (l->requests) {
        struct request *r = l->requests;

        l->requests = r->next;
        free(r->payload);
        free(r->json);
        free(r);
    }
    for (size_t i = 0; i < l->key_count; i++)
        free(l->keys[i]);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    if (l->spool_fd >= 0) {
        close(l->spool_fd);
        unlink(l->spool_path);
    }
    free(l->entries);
    free(l->assign_store);
    free(l->bye_text);
    pd_buf_done(&l->ready);
    free(l->socket_path);
    free(l->spool_path);
    free(l->log_path);
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->changed);
    free(l);
    return NULL;
}

static void init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

enum pd_err link_start(const struct link_options *o, struct link **ret, struct pd_why *why)
{
    struct link *l = calloc(1, sizeof *l);
    int rc;

    if (!l)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the link");
    l->o = *o;
    l->next_seq = 1;
    l->step_sent = l->log_sent = -1;
    l->total = -1;
    l->requests_tail = &l->requests;
    l->spool_fd = -1;
    pthread_mutex_init(&l->mutex, NULL);
    init_cond(&l->changed);
    pd_buf_init(&l->ready, 0);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->socket_path = strdup(o->socket_path);
    l->spool_path = o->spool_path ? strdup(o->spool_path) : NULL;
    l->log_path = o->log_path ? strdup(o->log_path) : NULL;
    if (l->wake_fd < 0 || !l->socket_path || (o->spool_path && !l->spool_path) ||
        (o->log_path && !l->log_path)) {
        link_free(l);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the link");
    }
    if (strlen(o->socket_path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        link_free(l);
        return pd_fail(why, PD_ERR_LIMIT, "the socket's path is too long: '%s'", o->socket_path);
    }
    if (l->spool_path) {
        l->spool_fd = open(l->spool_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (l->spool_fd < 0) {
            enum pd_err err = pd_fail_errno(why, errno, "cannot make the spool '%s'", l->spool_path);

            link_free(l);
            return err;
        }
    }
    rc = pthread_create(&l->thread, NULL, link_thread, l);
    if (rc) {
        link_free(l);
        return pd_fail_errno(why, rc, "cannot start the link's thread");
    }
    l->started = true;
    *ret = l;
    return PD_OK;
}

struct link *link_stop(struct link *l)
{
    if (!l)
        return NULL;
    pthread_mutex_lock(&l->mutex);
    l->stop_thread = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    wake(l);
    pthread_join(l->thread, NULL);
    return link_free(l);
}

static void deadline_after(struct timespec *ts, int64_t us)
{
    clock_gettime(CLOCK_MONOTONIC, ts);
    ts->tv_sec += us / 1000000;
    ts->tv_nsec += us % 1000000 * 1000;
    if (ts->tv_nsec >= 1000000000L) {
        ts->tv_sec++;
        ts->tv_nsec -= 1000000000L;
    }
}

enum pd_err link_assigned(struct link *l, int timeout_ms, const struct link_assign **ret, struct pd_why *why)
{
    struct timespec until;
    enum pd_err err = PD_OK;
    int rc = 0;

    deadline_after(&until, (int64_t)timeout_ms * 1000);
    pthread_mutex_lock(&l->mutex);
    while (!l->assigned && !l->refused && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&l->changed, &l->mutex, &until);
    if (l->assigned)
        *ret = &l->assign;
    else if (l->refused)
        err = pd_fail(why, PD_ERR_CLOSED, "polyd refused this worker");
    else
        err = pd_fail(why, PD_ERR_TIMEOUT, "polyd gave no assignment within %d ms", timeout_ms);
    pthread_mutex_unlock(&l->mutex);
    return err;
}

enum pd_err link_bye(struct link *l, const char *cause, int64_t step, const char *text, int64_t timeout_us,
                     struct pd_why *why)
{
    struct timespec until;
    enum pd_err err = PD_OK;
    int rc = 0;

    deadline_after(&until, timeout_us ? timeout_us : LINK_ALONE_US);
    pthread_mutex_lock(&l->mutex);
    snprintf(l->bye_cause, sizeof l->bye_cause, "%s", cause);
    l->bye_step = step;
    free(l->bye_text);
    l->bye_text = text ? strdup(text) : NULL;
    l->bye_wanted = true;
    wake(l);
    while (!l->bye_answered && !l->refused && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&l->changed, &l->mutex, &until);
    if (l->bye_answered)
        err = PD_OK;
    else if (l->refused)
        err = pd_fail(why, PD_ERR_CLOSED, "polyd refused this worker");
    else
        err = pd_fail(why, PD_ERR_TIMEOUT, "polyd did not answer");
    pthread_mutex_unlock(&l->mutex);
    return err;
}

/* ---- serving -------------------------------------------------------------------------------- */

void link_send_ready(struct link *l, const char *signature, uint64_t memory_bytes)
{
    size_t at;

    pthread_mutex_lock(&l->mutex);
    at = wire_begin(&l->ready, WIRE_READY, 0, 0);
    wire_put_text(&l->ready, WIRE_TAG_JSON, signature);
    wire_put_u64(&l->ready, WIRE_TAG_MEMORY, memory_bytes);
    if (wire_end(&l->ready, at) != PD_OK)
        pd_log(PD_LOG_ERROR, "link", "ready=dropped");
    pthread_mutex_unlock(&l->mutex);
    wake(l);
}

void link_send_load(struct link *l, uint32_t waiting, uint32_t running)
{
    size_t at;

    pthread_mutex_lock(&l->mutex);
    at = wire_begin(&l->ready, WIRE_PROGRESS, 0, 0);
    wire_put_u64(&l->ready, WIRE_TAG_STEP, running);
    wire_put_u64(&l->ready, WIRE_TAG_TOTAL, waiting);
    if (wire_end(&l->ready, at) != PD_OK)
        pd_log(PD_LOG_ERROR, "link", "load=dropped");
    pthread_mutex_unlock(&l->mutex);
    wake(l);
}

static struct request *first_waiting(struct link *l)
{
    for (struct request *r = l->requests; r; r = r->next)
        if (!r->taken)
            return r;
    return NULL;
}

enum pd_err link_request_next(struct link *l, int timeout_ms, struct serve_request **ret)
{
    struct timespec until;
    struct request *r;
    enum pd_err err = PD_OK;
    int rc = 0;

    deadline_after(&until, timeout_ms < 0 ? INT64_C(3600) * 1000000 : (int64_t)timeout_ms * 1000);
    pthread_mutex_lock(&l->mutex);
    while (!(r = first_waiting(l)) && !l->refused && !l->unloading && link_stop_asked(l) == LINK_GO_ON &&
           rc != ETIMEDOUT) {
        if (!timeout_ms)
            break;
        rc = pthread_cond_timedwait(&l->changed, &l->mutex, &until);
        if (timeout_ms < 0)
            rc = 0;
    }
    if (l->refused)
        err = PD_ERR_CLOSED;
    else if (r) {
        r->taken = true;
        *ret = &r->pub;
    } else
        err = l->unloading || link_stop_asked(l) != LINK_GO_ON ? PD_ERR_CLOSED : PD_ERR_TIMEOUT;
    pthread_mutex_unlock(&l->mutex);
    return err;
}

bool link_request_cancelled(struct link *l, const struct serve_request *req)
{
    const struct request *r = (const struct request *)req;
    bool cancelled;

    pthread_mutex_lock(&l->mutex);
    cancelled = r->cancelled || l->refused;
    pthread_mutex_unlock(&l->mutex);
    return cancelled;
}

void link_request_reply(struct link *l, const struct serve_request *req, const struct serve_result *part)
{
    struct request *r = (struct request *)req;
    struct pd_buf *b = &l->ready;
    size_t at;

    pthread_mutex_lock(&l->mutex);
    if (!r->answered) {
        at = wire_begin(b, WIRE_INFER_RESULT, 0, r->pub.id);
        if (part->err != PD_OK) {
            wire_put_u32(b, WIRE_TAG_ERROR, (uint32_t)part->err);
            wire_put_text(b, WIRE_TAG_TEXT, part->text ? part->text : pd_err_name(part->err));
        }
        if (part->json)
            wire_put_text(b, WIRE_TAG_JSON, part->json);
        for (uint32_t i = 0; i < part->count; i++)
            wire_put_tensor(b, &part->tensors[i]);
        if (part->timing)
            wire_put_timing(b, part->timing);
        if (part->last || part->err != PD_OK)
            wire_put_u32(b, WIRE_TAG_LAST, 1);
        r->answered = part->last || part->err != PD_OK;
        if (wire_end(b, at) != PD_OK) {
            answer(l, r->pub.id, PD_ERR_LIMIT, "the answer is too large");
            r->answered = true;
        }
    }
    pthread_mutex_unlock(&l->mutex);
    wake(l);
}

void link_request_done(struct link *l, struct serve_request *req)
{
    struct request *r = (struct request *)req;

    pthread_mutex_lock(&l->mutex);
    if (!r->answered)
        answer(l, r->pub.id, PD_ERR_INTERNAL, "the model gave no answer");
    for (struct request **at = &l->requests; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            if (!r->next)
                l->requests_tail = at;
            break;
        }
    l->request_count--;
    pthread_mutex_unlock(&l->mutex);
    wake(l);
    free(r->payload);
    free(r->json);
    free(r);
}
