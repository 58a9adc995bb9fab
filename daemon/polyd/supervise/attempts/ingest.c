/* Data frames of a worker: metrics, events, checkpoints, blobs. Each is stored with its number in one
 * transaction, and acknowledged after the commit: exactly once, whatever dies between. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/polyd/supervise/attempts/internal.h"
#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/log.h"

struct ingest {
    struct loop_op op;
    struct attempts *s;
    int64_t run, job, seq;
    int n;
    unsigned type;
    uint64_t conn;
    uint32_t len;
    uint8_t *payload;            /* owned copy */
    struct store_metric *points; /* owned; keys point into `keys` */
    size_t count;
    char *keys;
};

struct ingest *ingest_free(struct ingest *i)
{
    if (i) {
        free(i->payload);
        free(i->points);
        free(i->keys);
        free(i);
    }
    return NULL;
}

static void ingest_release(struct loop_op *op)
{
    struct ingest *i = (struct ingest *)op;

    free(i->payload);
    free(i->points);
    free(i->keys);
}

/* Keeps the digests of an event "inputs" in the run's row; other members are passed over. */
static enum pd_err write_inputs(struct store_tx *tx, const struct ingest *i, struct pd_why *why)
{
    static const char *const names[] = {"data=", "data_of=", "program="};
    char value[3][80] = {"", "", ""};
    struct wire_field f;
    size_t pos = 0;

    while (wire_next(i->payload, i->len, &pos, &f, NULL))
        for (int k = 0; f.tag == WIRE_TAG_PAIR && k < 3; k++) {
            const size_t n = strlen(names[k]);

            if (f.len >= n && f.len - n < sizeof value[k] && !memcmp(f.bytes, names[k], n))
                snprintf(value[k], sizeof value[k], "%.*s", (int)(f.len - n), (const char *)f.bytes + n);
        }
    return store_run_inputs(tx, i->run, value[0], value[1], value[2], why);
}

static enum pd_err write_event(struct store_tx *tx, struct ingest *i, struct pd_why *why)
{
    struct wire_field f;
    struct pd_buf data;
    char kind[64], event[80], text[4096], *pair = NULL;
    size_t pos = 0;
    bool began;
    enum pd_err err = PD_OK;

    wire_get_text(i->payload, i->len, WIRE_TAG_KEY, kind, sizeof kind);
    wire_get_text(i->payload, i->len, WIRE_TAG_TEXT, text, sizeof text);
    began = !strcmp(kind, "resume") || !strcmp(kind, "start");
    snprintf(event, sizeof event, "worker.%s", kind);
    pd_buf_init(&data, 0);
    pd_json_open(&data, '{');
    pd_json_kv_str(&data, "text", text);
    pd_json_key(&data, "fields");
    pd_json_open(&data, '{');
    while (err == PD_OK && wire_next(i->payload, i->len, &pos, &f, NULL)) {
        char *cut;

        if (f.tag != WIRE_TAG_PAIR)
            continue;
        free(pair);
        pair = strndup((const char *)f.bytes, f.len);
        if (!pair)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for an event");
        else if ((cut = strchr(pair, '='))) {
            *cut = '\0';
            pd_json_kv_str(&data, pair, cut + 1);
            /* Where the worker really began decides which earlier points are ghosts. */
            if (began && !strcmp(pair, "step"))
                err = store_attempt_set_start(tx, i->run, i->n, strtoll(cut + 1, NULL, 10), why);
            if (!strcmp(kind, "checkpoint_removed") && !strcmp(pair, "path"))
                err = store_checkpoint_delete_path(tx, i->run, cut + 1, why);
        }
    }
    free(pair);
    pd_json_close(&data, '}');
    pd_json_close(&data, '}');
    if (err == PD_OK && pd_buf_err(&data) != PD_OK)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for an event");
    if (err == PD_OK && !strcmp(kind, "inputs"))
        err = write_inputs(tx, i, why);
    if (err == PD_OK)
        err = store_event_add(tx, event, i->job, i->run, i->n, data.data, NULL, why);
    pd_buf_done(&data);
    return err;
}

static enum pd_err write_checkpoint(struct store_tx *tx, const struct ingest *i, struct pd_why *why)
{
    char kind[16], path[WORKERS_PATH_MAX], digest[STORE_DIGEST_HEX];
    struct store_checkpoint c = {.run_id = i->run,
                                 .attempt = i->n,
                                 .step = (int64_t)wire_get_u64(i->payload, i->len, WIRE_TAG_STEP, 0),
                                 .bytes = (int64_t)wire_get_u64(i->payload, i->len, WIRE_TAG_BYTES, 0),
                                 .value = wire_get_f64(i->payload, i->len, WIRE_TAG_VALUE, (double)NAN),
                                 .kind = kind,
                                 .path = path,
                                 .digest = digest};

    wire_get_text(i->payload, i->len, WIRE_TAG_KIND, kind, sizeof kind);
    wire_get_text(i->payload, i->len, WIRE_TAG_CHECKPOINT, path, sizeof path);
    wire_get_text(i->payload, i->len, WIRE_TAG_DIGEST, digest, sizeof digest);
    if (strcmp(kind, "best") != 0 && strcmp(kind, "final") != 0)
        strcpy(kind, "latest");
    return store_checkpoint_insert(tx, &c, NULL, why);
}

/* The file first, the row last: a row never names a file that is not there. */
static enum pd_err write_blob(struct store_tx *tx, const struct ingest *i, struct pd_why *why)
{
    char kind[32], key[STORE_KEY_MAX + 1], meta[4096], sha[STORE_DIGEST_HEX], path[WORKERS_PATH_MAX],
        dir[WORKERS_PATH_MAX];
    struct wire_field bytes;
    struct store_blob b = {.run_id = i->run,
                           .attempt = i->n,
                           .kind = kind,
                           .key = key,
                           .step = (int64_t)wire_get_u64(i->payload, i->len, WIRE_TAG_STEP, 0),
                           .time_us = (int64_t)wire_get_u64(i->payload, i->len, WIRE_TAG_TIME_US, 0),
                           .meta = meta,
                           .sha256 = sha};
    enum pd_err err = PD_OK;

    wire_get_text(i->payload, i->len, WIRE_TAG_KIND, kind, sizeof kind);
    wire_get_text(i->payload, i->len, WIRE_TAG_KEY, key, sizeof key);
    if (!wire_get_text(i->payload, i->len, WIRE_TAG_JSON, meta, sizeof meta))
        strcpy(meta, "{}");
    if (!wire_find(i->payload, i->len, WIRE_TAG_POINTS, &bytes))
        return pd_fail(why, PD_ERR_INVALID, "a blob has no bytes");
    b.bytes = bytes.len;
    digest_sha256_hex(bytes.bytes, bytes.len, sha);
    snprintf(dir, sizeof dir, "%s/blobs/%.2s", workers_state_dir(i->s->workers), sha);
    snprintf(path, sizeof path, "%s/blobs/%.2s/%s", workers_state_dir(i->s->workers), sha, sha);
    if (access(path, R_OK)) {
        err = pd_file_make_dirs(dir, why);
        if (err == PD_OK)
            err = pd_file_replace(path, bytes.bytes, bytes.len, 0600, why);
    }
    return err == PD_OK ? store_blob_insert(tx, &b, why) : err;
}

static enum pd_err ingest_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct ingest *i = (struct ingest *)op;
    enum pd_err err = store_attempt_ack(tx, i->run, i->n, i->seq, why);

    if (err == PD_ERR_EXISTS)
        return PD_OK; /* a repeat after a reconnection: acknowledged again, written once */
    if (err != PD_OK)
        return err;
    switch (i->type) {
    case WIRE_METRICS:
        return store_metric_append(tx, i->run, i->n, i->points, i->count, NULL, why);
    case WIRE_EVENT:
        return write_event(tx, i, why);
    case WIRE_CHECKPOINT_WRITTEN:
        return write_checkpoint(tx, i, why);
    case WIRE_BLOB:
        return write_blob(tx, i, why);
    default:
        return PD_OK;
    }
}

static void ingest_done(struct loop_op *op)
{
    struct attempts *s = op->owner;
    struct ingest *i = (struct ingest *)op;
    struct att *a = att_find(s, i->run, i->n);
    size_t at;

    if (a) {
        a->ingests--;
        att_write_end(a);
    }
    if (op->err != PD_OK) {
        struct conn *c = conn_find(s->workers, i->conn);

        pd_log(PD_LOG_ERROR, "supervise", "run=%lld attempt=%d seq=%lld frame=refused error=%s why=\"%s\"",
               (long long)i->run, i->n, (long long)i->seq, pd_err_name(op->err), op->why.text);
        if (c)
            conn_drop(c); /* it resends from what is committed */
        return;
    }
    if (!a)
        return;
    if (i->seq > a->acked)
        a->acked = i->seq;
    pthread_mutex_lock(&s->lock);
    s->stats.points_in += (int64_t)i->count;
    pthread_mutex_unlock(&s->lock);
    if (!a->conn)
        return;
    at = wire_begin(conn_out(a->conn), WIRE_ACK, 0, 0);
    wire_put_u64(conn_out(a->conn), WIRE_TAG_ACKED, (uint64_t)a->acked);
    conn_end(a->conn, at);
    conn_flush(a->conn);
}

/* Unpacks the points while we have them at hand: the writer's time is dearer. False if malformed. */
static bool unpack_points(struct ingest *i)
{
    const char *keys[WIRE_POINTS_MAX];
    struct wire_field f, points = {0};
    size_t pos = 0, key_count = 0;
    char *at = i->keys = malloc((size_t)i->len + 1);

    if (!at)
        return false;
    while (wire_next(i->payload, i->len, &pos, &f, NULL)) {
        if (f.tag == WIRE_TAG_KEY) {
            if (key_count == WIRE_POINTS_MAX || !f.len || f.len > STORE_KEY_MAX || memchr(f.bytes, 0, f.len))
                return false;
            keys[key_count++] = at;
            memcpy(at, f.bytes, f.len);
            at[f.len] = '\0';
            at += f.len + 1;
        } else if (f.tag == WIRE_TAG_POINTS)
            points = f;
    }
    i->count = points.len / WIRE_POINT_BYTES;
    if (points.len % WIRE_POINT_BYTES || i->count > WIRE_POINTS_MAX)
        return false;
    i->points = calloc(i->count + 1, sizeof *i->points);
    if (!i->points)
        return false;
    for (size_t k = 0; k < i->count; k++) {
        struct wire_point p = wire_point_at(&points, k);

        if (p.key >= key_count)
            return false;
        i->points[k] =
            (struct store_metric){.key = keys[p.key], .step = p.step, .time_us = p.time_us, .value = p.value};
    }
    return true;
}

void att_data(struct attempts *s, struct conn *c, struct att *a, const struct wire_header *h,
              const uint8_t *p)
{
    struct ingest *i = calloc(1, sizeof *i);
    struct wire_field bytes;
    bool ok = i != NULL;

    if (ok) {
        i->s = s;
        i->run = a->run;
        i->job = a->job;
        i->n = a->n;
        i->seq = (int64_t)h->seq;
        i->type = h->type;
        i->conn = conn_id(c);
        i->len = h->len;
        i->payload = malloc((size_t)h->len + 1);
        ok = i->payload != NULL;
        if (ok)
            memcpy(i->payload, p, h->len);
        if (ok && h->type == WIRE_METRICS)
            ok = unpack_points(i);
        else if (ok && h->type == WIRE_BLOB)
            ok = wire_find(i->payload, i->len, WIRE_TAG_POINTS, &bytes);
    }
    if (!ok) {
        pd_log(PD_LOG_WARNING, "supervise", "run=%lld frame=broken type=%s", (long long)a->run,
               wire_type_name(h->type));
        ingest_free(i);
        conn_drop(c);
        return;
    }
    i->op.rows = i->count ? (int)i->count : 4;
    i->op.apply = ingest_apply;
    i->op.owner = s;
    i->op.done = ingest_done;
    i->op.release = ingest_release;
    /* All data frames of an attempt go to one lane: their order is their number. While it is full, nothing is
     * read, and the worker buffers. */
    if (!loop_write_metrics(s->loop, &i->op)) {
        a->stalled = i;
        conn_stall(c);
    } else
        a->ingests++;
}

bool att_unstall(struct att *a)
{
    if (!loop_write_metrics(a->attempts->loop, &a->stalled->op))
        return false;
    a->stalled = NULL;
    a->ingests++;
    return true;
}
