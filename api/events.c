/* Server-sent events: what was committed, and logs as they grow.
 *
 * An event stream is a query that never ends: rows with an id above the last one sent, in pages. So replay
 * and live part are one, a slow reader only lags behind in the table, and nothing is kept for it in memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "kernels/base/clock.h"

#define PAGE_EVENTS 100
#define PENDING_MAX (256u * 1024u)
#define CHANGED_US 500000 /* points of runs are announced at most so often */
#define CHANGED_MAX 64    /* runs of one event */
#define VALUES_MAX 8      /* metrics whose values are sent */
#define LOG_PIECE 4096u
#define LOG_LIMIT 262144

struct events {
    struct api *api;
    int64_t last, job, run;
    uint64_t change_seq;
    int64_t change_us;
    int key_count;
    char keys[VALUES_MAX][STORE_KEY_MAX + 1]; /* of the values that metrics events carry */
    struct pd_buf out;
    size_t sent;
};

static bool event_row(void *ctx, const struct store_event *e)
{
    struct events *s = ctx;

    s->last = e->id;
    pd_buf_printf(&s->out, "id: %lld\nevent: %s\ndata: ", (long long)e->id, e->kind);
    api_row_event(&s->out, e);
    pd_buf_str(&s->out, "\n\n");
    return s->out.len < PENDING_MAX;
}

static bool value_row(void *ctx, const struct store_series *m)
{
    struct pd_buf *b = ctx;

    api_json_key(b, m->key);
    api_json_open(b, '{');
    api_json_kv_int(b, "step", m->step);
    api_json_kv_time(b, "time", m->time_us);
    api_json_kv_num(b, "value", m->value);
    api_json_close(b, '}');
    return false;
}

/* "values":{"12":{"loss/val":{...}}}: the latest points of the keys that were asked for. */
static bool put_values(struct events *s, const int64_t *runs, int count)
{
    struct pd_why why;
    struct store *store = api_reader_of(s->api, &why);
    enum pd_err err = store ? PD_OK : PD_ERR_IO;

    api_json_key(&s->out, "values");
    api_json_open(&s->out, '{');
    for (int i = 0; i < count && err == PD_OK; i++) {
        char id[24];

        snprintf(id, sizeof id, "%lld", (long long)runs[i]);
        api_json_key(&s->out, id);
        api_json_open(&s->out, '{');
        for (int k = 0; k < s->key_count && err == PD_OK; k++) {
            err = store_series_get(store, runs[i], s->keys[k], value_row, &s->out, &why);
            err = err == PD_ERR_NOT_FOUND ? PD_OK : err; /* it has no point of this key */
        }
        api_json_close(&s->out, '}');
    }
    api_json_close(&s->out, '}');
    return err == PD_OK;
}

/* False: the store cannot be read. */
static bool put_changed(struct events *s, const int64_t *runs, int count)
{
    bool fine;

    pd_buf_str(&s->out, "event: metrics\ndata: ");
    api_json_open(&s->out, '{');
    api_json_key(&s->out, "runs");
    api_json_open(&s->out, '[');
    for (int i = 0; i < count; i++)
        api_json_id(&s->out, runs[i]);
    api_json_close(&s->out, ']');
    fine = !s->key_count || put_values(s, runs, count);
    api_json_close(&s->out, '}');
    pd_buf_str(&s->out, "\n\n");
    return fine;
}

/* Several events if many runs have changed; what does not fit comes next time. False: the store cannot be read. */
static bool changed_runs(struct events *s)
{
    int64_t runs[CHANGED_MAX], now = pd_clock_mono_us();
    int n = CHANGED_MAX;
    bool fine = true;

    if (now - s->change_us < CHANGED_US)
        return true;
    while (fine && n == CHANGED_MAX && s->out.len < PENDING_MAX) {
        n = api_core_changed_runs(api_core_of(s->api), &s->change_seq, s->job, s->run, runs, CHANGED_MAX);
        if (!n)
            break;
        fine = put_changed(s, runs, n);
        s->change_us = now;
    }
    return fine;
}

static ssize_t copy_out(struct pd_buf *from, size_t *sent, char *out, size_t size)
{
    size_t n = from->len - *sent;

    if (n > size)
        n = size;
    memcpy(out, from->data + *sent, n);
    *sent += n;
    if (*sent == from->len) {
        *sent = 0;
        if (from->size > 65536)
            pd_buf_done(from);
        else
            from->len = 0;
    }
    return (ssize_t)n;
}

static ssize_t events_read(void *state, char *out, size_t size)
{
    struct events *s = state;
    struct pd_why why;

    if (s->sent == s->out.len) {
        int64_t newest = api_core_last_event(api_core_of(s->api));

        if (newest < 0 || newest > s->last) {
            struct store_event_query q = {
                .since_id = s->last, .job_id = s->job, .run_id = s->run, .limit = PAGE_EVENTS};
            struct store *store = api_reader_of(s->api, &why);

            if (!store || store_event_list(store, &q, event_row, s, &why) != PD_OK)
                return API_STREAM_ABORT;
            if (s->out.len == 0 && newest > s->last)
                s->last = newest; /* all new ones were of other jobs */
        }
        if (!changed_runs(s))
            return API_STREAM_ABORT;
        if (s->out.len == 0)
            return 0;
        if (pd_buf_err(&s->out) != PD_OK)
            return API_STREAM_ABORT;
    }
    return copy_out(&s->out, &s->sent, out, size);
}

static void events_done(void *state)
{
    struct events *s = state;

    pd_buf_done(&s->out);
    free(s);
}

static void nothing(void *state)
{
    (void)state; /* the stream is only woken: the server then finds the socket closed */
}

static const struct api_stream_ops events_ops = {
    .read = events_read, .done = events_done, .gone = nothing, .comments = true, .everything = true};

/* Whether the limit allows one more stream. */
static bool stream_allowed(struct api_req *r)
{
    if (atomic_load(&api_counters_of(api_of(r))->sse_clients) < api_settings_of(r)->sse_clients)
        return true;
    api_fail(r, PD_ERR_BUSY, "too many event streams are open (limits.sse_clients)");
    return false;
}

static void stream_headers(struct api_req *r)
{
    api_reply_header(r, "X-Accel-Buffering", "no");
    api_reply_header(r, "Cache-Control", "no-cache");
}

/* Last-Event-ID, else the query parameter; `missing` if neither is there. */
static int64_t start_id(struct api_req *r, const char *parameter, int64_t missing)
{
    const char *header = api_header(r, "Last-Event-ID");
    int64_t value = api_query_int(r, parameter, 0, INT64_MAX - 1, missing);

    if (header && *header && !api_parse_int(header, 0, INT64_MAX - 1, &value))
        api_fail(r, API_FAULT_MALFORMED, "Last-Event-ID is not an id of this stream");
    return value;
}

static int read_keys(struct api_req *r, char keys[VALUES_MAX][STORE_KEY_MAX + 1])
{
    for (int count = 0;; count++) {
        char key[STORE_KEY_MAX + 1];
        enum pd_err got = api_query_get(api_query_raw(r), "metric", count, key, sizeof key);

        if (got == PD_ERR_NOT_FOUND)
            return count;
        if (got != PD_OK || count == VALUES_MAX) {
            api_fail(r, API_FAULT_MALFORMED, "at most %d metric keys of at most %d bytes", VALUES_MAX,
                     STORE_KEY_MAX);
            return 0;
        }
        memcpy(keys[count], key, sizeof key);
    }
}

void api_event_stream(struct api_req *r)
{
    static const char *const names[] = {"since", "job", "run", "metric", NULL};
    struct pd_why why = {.text = ""};
    struct store *store;
    struct events *s;
    int64_t job = 0, run = 0, last;
    char text[32];
    enum pd_err err = PD_OK;

    if (api_query_refuse_others(r, names))
        return;
    if (api_query(r, "job", text, sizeof text) && !api_parse_id(text, &job))
        api_fail(r, API_FAULT_MALFORMED, "job must be an id");
    if (api_query(r, "run", text, sizeof text) && !api_parse_id(text, &run))
        api_fail(r, API_FAULT_MALFORMED, "run must be an id");
    last = start_id(r, "since", -1);
    if (api_failed(r) || !(store = api_reader(r)) || !stream_allowed(r))
        return;
    if (last < 0)
        err = store_event_last(store, &last, &why);
    if (err != PD_OK) {
        api_fail_why(r, err, &why);
        return;
    }
    s = calloc(1, sizeof *s);
    if (!s) {
        api_fail(r, PD_ERR_NOMEM, "no memory for a stream");
        return;
    }
    s->key_count = read_keys(r, s->keys);
    if (api_failed(r)) {
        free(s);
        return;
    }
    s->api = api_of(r);
    s->last = last;
    s->job = job;
    s->run = run;
    s->change_seq = api_core_change_seq(api_core_of(s->api));
    pd_buf_init(&s->out, 0);
    /* An id without data is not an event, but a client that breaks off now knows where to go on. */
    pd_buf_printf(&s->out, "retry: 1000\nid: %lld\n\n", (long long)last);
    stream_headers(r);
    api_reply_stream(r, 200, "text/event-stream", &events_ops, s, NULL);
}

/* ---- logs ------------------------------------------------------------------------------------- */

struct follow {
    struct api *api;
    int fd;
    int64_t run, offset;
    int attempt;
    bool ended;
    struct pd_buf out;
    size_t sent;
};

struct attempt_state {
    int n;
    bool ended;
};

static bool attempt_row(void *ctx, const struct store_attempt *a)
{
    struct attempt_state *s = ctx;

    if (a->n == s->n) {
        s->ended = a->state == JOB_ATTEMPT_ENDED;
        return false;
    }
    return true;
}

static bool run_row(void *ctx, const struct store_run *run)
{
    ((struct attempt_state *)ctx)->ended = run->state == JOB_RUN_ENDED;
    return false;
}

/* Attempt 0: the run itself. */
static enum pd_err log_state(struct store *store, int64_t run, struct attempt_state *ret, struct pd_why *why)
{
    return ret->n ? store_attempt_list(store, run, attempt_row, ret, why)
                  : store_run_get(store, run, run_row, ret, why);
}

static ssize_t follow_read(void *state, char *out, size_t size)
{
    struct follow *f = state;
    char piece[LOG_PIECE];
    struct pd_why why;

    if (f->sent == f->out.len && f->ended)
        return API_STREAM_END;
    if (f->sent == f->out.len) {
        struct attempt_state a = {.n = f->attempt};
        struct store *store = api_reader_of(f->api, &why);
        ssize_t n;
        size_t whole;

        /* Asked before reading: what an ended attempt wrote is all there. */
        if (!store || log_state(store, f->run, &a, &why) != PD_OK)
            return API_STREAM_ABORT;
        n = pread(f->fd, piece, sizeof piece, f->offset);
        if (n < 0)
            return API_STREAM_ABORT;
        whole = api_utf8_complete(piece, (size_t)n);
        if (a.ended && (size_t)n < sizeof piece)
            whole = (size_t)n;
        if (whole) {
            f->offset += (int64_t)whole;
            pd_buf_printf(&f->out, "id: %lld\nevent: log\ndata: ", (long long)f->offset);
            api_json_open(&f->out, '{');
            api_json_key(&f->out, "text");
            api_json_strn(&f->out, piece, whole);
            api_json_close(&f->out, '}');
            pd_buf_str(&f->out, "\n\n");
        } else if (a.ended) {
            f->ended = true;
            pd_buf_str(&f->out, "event: end\ndata: {}\n\n");
        } else {
            return 0;
        }
        if (pd_buf_err(&f->out) != PD_OK)
            return API_STREAM_ABORT;
    }
    return copy_out(&f->out, &f->sent, out, size);
}

static void follow_done(void *state)
{
    struct follow *f = state;

    close(f->fd);
    pd_buf_done(&f->out);
    free(f);
}

static const struct api_stream_ops follow_ops = {
    .read = follow_read, .done = follow_done, .gone = nothing, .comments = true, .everything = true};

/* Where the last `lines` lines of the file begin, looking back at most `most` bytes. */
static int64_t tail_offset(int fd, int64_t size, int64_t lines, int64_t most)
{
    char piece[LOG_PIECE];
    int64_t at = size, low = size > most ? size - most : 0;

    while (at > low) {
        int64_t n = at - low < (int64_t)sizeof piece ? at - low : (int64_t)sizeof piece;

        if (pread(fd, piece, (size_t)n, at - n) != n)
            return low;
        for (int64_t i = n - 1; i >= 0; i--)
            if (piece[i] == '\n' && at - n + i != size - 1 && --lines == 0)
                return at - n + i + 1;
        at -= n;
    }
    return low;
}

static void number_header(struct api_req *r, const char *name, int64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)value);
    api_reply_header(r, name, text);
}

void api_run_logs(struct api_req *r)
{
    static const char *const names[] = {"attempt", "offset", "limit", "tail", "follow", NULL};
    int64_t id = api_param_id(r, 0), offset, limit, tail;
    struct store *store;
    struct stat st;
    char path[4096];
    struct api_run_facts run;
    int attempt, fd;
    bool follow;

    if (!id || api_query_refuse_others(r, names))
        return;
    attempt = (int)api_query_int(r, "attempt", 1, 1000000, 0);
    offset = start_id(r, "offset", 0);
    limit = api_query_int(r, "limit", 1, 1048576, LOG_LIMIT);
    tail = api_query_int(r, "tail", 1, 10000, 0);
    follow = api_query_flag(r, "follow");
    if (api_failed(r) || !(store = api_reader(r)) || !api_run_exists(r, store, id, &run))
        return;
    if (attempt == 0)
        attempt = run.attempts;
    if (job_kind_info(run.kind)->worker ? attempt < 1 || attempt > run.attempts : attempt != 0) {
        api_fail(r, PD_ERR_NOT_FOUND,
                 run.attempts ? "run %lld has %d attempts" : "run %lld has not started yet (%d attempts)",
                 (long long)id, run.attempts);
        return;
    }
    if (follow && !stream_allowed(r))
        return;
    sup_log_path(api_deps_of(api_of(r))->sup, id, attempt, path, sizeof path);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0) {
        if (fd >= 0)
            close(fd);
        if (attempt)
            api_fail(r, PD_ERR_NOT_FOUND, "attempt %d of run %lld has no log yet", attempt, (long long)id);
        else
            api_fail(r, PD_ERR_NOT_FOUND, "run %lld has no log yet", (long long)id);
        return;
    }
    if (tail && !(follow && api_header(r, "Last-Event-ID")))
        offset = tail_offset(fd, st.st_size, tail, limit);
    if (follow) {
        struct follow *f = calloc(1, sizeof *f);

        if (!f) {
            close(fd);
            api_fail(r, PD_ERR_NOMEM, "no memory for a stream");
            return;
        }
        f->api = api_of(r);
        f->fd = fd; /* moved */
        f->run = id;
        f->attempt = attempt;
        f->offset = offset;
        pd_buf_init(&f->out, 0);
        pd_buf_str(&f->out, "retry: 1000\n\n");
        stream_headers(r);
        api_reply_stream(r, 200, "text/event-stream", &follow_ops, f, NULL);
        return;
    }
    {
        struct pd_buf b;
        int64_t n = st.st_size - offset;
        ssize_t got = 0;

        pd_buf_init(&b, 0);
        if (n < 0) {
            offset = st.st_size;
            n = 0;
        }
        if (n > limit)
            n = limit;
        if (n) {
            char *bytes = pd_buf_reserve(&b, (size_t)n);

            got = bytes ? pread(fd, bytes, (size_t)n, offset) : 0;
            if (got < 0)
                got = 0;
            if (bytes)
                b.len = (size_t)got;
        }
        close(fd);
        number_header(r, "X-Log-Offset", offset);
        number_header(r, "X-Log-Next", offset + got);
        number_header(r, "X-Log-Size", st.st_size);
        api_reply(r, 200, "text/plain; charset=utf-8", &b);
    }
}
