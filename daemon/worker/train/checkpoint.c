/* daemon/worker/train/checkpoint.c: see checkpoint.h.
 *
 * The digest stands in front of what it covers, so tensors are read twice: once to hash, once to write.
 * Hashing is fast compared with a disk that must flush. */
#include "daemon/worker/train/checkpoint.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "kernels/base/file.h"

#define FORMAT "1"
#define META_MAX 192
#define DIGEST_KEY "\"polyd.sha256\":\""
#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"

const char *train_checkpoint_name(char out[TRAIN_CHECKPOINT_NAME_SIZE], int64_t step)
{
    snprintf(out, TRAIN_CHECKPOINT_NAME_SIZE, "step-%012lld.safetensors", (long long)step);
    return out;
}

int64_t train_checkpoint_step(const char *name)
{
    char again[TRAIN_CHECKPOINT_NAME_SIZE], *end;
    long long step;

    if (strncmp(name, "step-", 5) || !isdigit((unsigned char)name[5]))
        return -1;
    errno = 0;
    step = strtoll(name + 5, &end, 10);
    if (errno || step < 0 || strcmp(train_checkpoint_name(again, step), name))
        return -1;
    return step;
}

/* ---- state as metadata; numbers as hexadecimal floats, which are exact ---- */

struct state_text {
    char value[16][40];
};

static const char *const state_keys[] = {
    "polyd.step",       "polyd.applied",     "polyd.nonfinite",      "polyd.consecutive", "polyd.eval_due",
    "polyd.best_step",  "polyd.stop_waited", "polyd.applied_before", "polyd.loss_train",  "polyd.loss_val",
    "polyd.metric_val", "polyd.best_value",  "polyd.score",          "polyd.stop_best"};
#define STATE_KEYS (sizeof state_keys / sizeof state_keys[0])
#define STATE_INTS 8

static void state_to_meta(const struct train_state *s, struct state_text *text,
                          struct data_st_meta_item *items)
{
    const int64_t ints[] = {s->step,     s->applied,   s->nonfinite,   s->consecutive,
                            s->eval_due, s->best_step, s->stop_waited, s->applied_before};
    const double numbers[] = {s->loss_train, s->loss_val, s->metric_val,
                              s->best_value, s->score,    s->stop_best};

    for (size_t i = 0; i < STATE_KEYS; i++) {
        if (i < STATE_INTS)
            snprintf(text->value[i], sizeof text->value[i], "%lld", (long long)ints[i]);
        else
            snprintf(text->value[i], sizeof text->value[i], "%a", numbers[i - STATE_INTS]);
        items[i] = (struct data_st_meta_item){state_keys[i], text->value[i]};
    }
}

static enum pd_err state_from_meta(const struct data_st *st, struct train_state *ret, struct pd_why *why)
{
    int64_t ints[STATE_INTS];
    double numbers[STATE_KEYS - STATE_INTS];

    for (size_t i = 0; i < STATE_KEYS; i++) {
        const char *text = data_st_meta(st, state_keys[i]);
        char *end = NULL;

        /* a file from before train.stop, or train.start */
        if (!text &&
            (!strncmp(state_keys[i], "polyd.stop_", 11) || !strcmp(state_keys[i], "polyd.applied_before")))
            text = i < STATE_INTS ? "0" : "nan";
        if (text && i < STATE_INTS)
            ints[i] = strtoll(text, &end, 10);
        else if (text)
            numbers[i - STATE_INTS] = strtod(text, &end);
        if (!text || end == text || *end)
            return pd_fail(why, PD_ERR_CORRUPT, "the checkpoint lacks '%s'", state_keys[i]);
    }
    *ret = (struct train_state){.step = ints[0],
                                .applied = ints[1],
                                .nonfinite = ints[2],
                                .consecutive = ints[3],
                                .eval_due = ints[4] != 0,
                                .best_step = ints[5],
                                .stop_waited = ints[6],
                                .applied_before = ints[7],
                                .loss_train = numbers[0],
                                .loss_val = numbers[1],
                                .metric_val = numbers[2],
                                .best_value = numbers[3],
                                .score = numbers[4],
                                .stop_best = numbers[5]};
    /* nonfinite counts skipped steps, and the trials of a line search, of which a step may have many */
    if (ret->applied < 0 || ret->applied > ret->step || ret->applied + ret->nonfinite < ret->step)
        return pd_fail(why, PD_ERR_CORRUPT, "the checkpoint's counts contradict each other");
    return PD_OK;
}

/* ---- writing ---- */

struct sink {
    int fd; /* -1: hash only */
    struct digest_sha256 hash;
    uint64_t bytes;
};

static enum pd_err put(struct sink *s, const void *bytes, size_t len, struct pd_why *why)
{
    digest_sha256_update(&s->hash, bytes, len);
    s->bytes += len;
    return s->fd < 0 ? PD_OK : pd_file_write_all(s->fd, bytes, len, why);
}

/* The tensor as the file has it. */
static struct data_st_tensor written(const struct train_tensor *t)
{
    struct data_st_tensor st = t->st;

    if (t->whole) {
        st.dtype = DATA_ST_I64;
        st.bytes = st.count * data_st_dtype_size(DATA_ST_I64);
    }
    return st;
}

/* In place, from the last: an I64 is no smaller than what it was. */
static void make_whole(void *host, const struct data_st_tensor *st)
{
    for (uint64_t i = st->count; i-- > 0;) {
        const bool wide = st->dtype == DATA_ST_F64;
        double value = 0;
        float narrow = 0;
        int64_t whole;

        if (wide)
            memcpy(&value, (char *)host + 8 * i, sizeof value);
        else
            memcpy(&narrow, (char *)host + 4 * i, sizeof narrow);
        whole = llround(wide ? value : (double)narrow);
        memcpy((char *)host + 8 * i, &whole, sizeof whole);
    }
}

static enum pd_err
put_all(struct sink *s, const struct pd_buf *header, const struct train_tensor *tensors, size_t count,
        enum pd_err (*get)(void *user, void *to, const void *memory, size_t bytes, struct pd_why *why),
        void *user, void *host, struct pd_why *why)
{
    enum pd_err err;

    digest_sha256_init(&s->hash);
    s->bytes = 0;
    err = put(s, header->data, header->len, why);
    for (size_t i = 0; i < count && err == PD_OK; i++) {
        const void *bytes = tensors[i].st.data ? tensors[i].st.data : host;

        if (!tensors[i].st.data)
            err = get(user, host, tensors[i].memory, (size_t)tensors[i].st.bytes, why);
        if (err == PD_OK && tensors[i].whole)
            make_whole(host, &tensors[i].st);
        if (err == PD_OK)
            err = put(s, bytes, (size_t)written(&tensors[i]).bytes, why);
    }
    return err;
}

/* `digest`: of the file with ZEROS in its place; the header is as long with either. */
static enum pd_err build_header(const struct train_tensor *tensors, size_t count,
                                const struct train_state *state, const struct data_st_meta_item *meta,
                                size_t meta_count, const char *digest, struct pd_buf *header,
                                struct pd_why *why)
{
    struct data_st_meta_item items[META_MAX];
    struct data_st_tensor *st;
    struct state_text text;
    enum pd_err err;

    if (3 + STATE_KEYS + meta_count > META_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "too much metadata");
    st = calloc(count + 1, sizeof *st);
    if (!st)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a checkpoint");
    for (size_t i = 0; i < count; i++)
        st[i] = written(&tensors[i]);
    items[0] = (struct data_st_meta_item){"format", "pt"}; /* what other readers expect */
    items[1] = (struct data_st_meta_item){"polyd.format", FORMAT};
    items[2] = (struct data_st_meta_item){"polyd.sha256", digest};
    state_to_meta(state, &text, items + 3);
    memcpy(items + 3 + STATE_KEYS, meta, meta_count * sizeof *meta);
    err = data_st_header(st, count, items, 3 + STATE_KEYS + meta_count, header, why);
    free(st);
    return err;
}

static enum pd_err finish_file(int fd, const char *tmp, const char *path, struct pd_why *why)
{
    char dir[1100];
    const char *slash = strrchr(path, '/');

    if (fsync(fd) != 0)
        return pd_fail_errno(why, errno, "cannot flush '%s'", tmp);
    if (rename(tmp, path) != 0)
        return pd_fail_errno(why, errno, "cannot rename '%s'", tmp);
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) + (slash == path) : 1, slash ? path : ".");
    return pd_file_sync_dir(dir, why);
}

enum pd_err train_checkpoint_write(const char *path, const struct train_tensor *tensors, size_t count,
                                   const struct train_state *state, const struct data_st_meta_item *meta,
                                   size_t meta_count,
                                   enum pd_err (*get)(void *user, void *to, const void *memory, size_t bytes,
                                                      struct pd_why *why),
                                   void *user, struct train_file_info *ret, struct pd_why *why)
{
    struct sink sink = {.fd = -1};
    struct pd_buf header;
    uint8_t digest[32];
    char tmp[1100], hex[65];
    void *host = NULL;
    size_t most = 1;
    enum pd_err err;

    pd_buf_init(&header, 0);
    err = build_header(tensors, count, state, meta, meta_count, ZEROS, &header, why);
    if (err != PD_OK)
        goto out;
    for (size_t i = 0; i < count; i++)
        if (written(&tensors[i]).bytes > most)
            most = (size_t)written(&tensors[i]).bytes;
    host = malloc(most);
    if (!host) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a checkpoint");
        goto out;
    }
    err = put_all(&sink, &header, tensors, count, get, user, host, why);
    if (err != PD_OK)
        goto out;
    digest_sha256_final(&sink.hash, digest);
    pd_buf_done(&header);
    err = build_header(tensors, count, state, meta, meta_count, digest_hex(digest, 32, hex), &header, why);
    if (err != PD_OK)
        goto out;
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    sink.fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (sink.fd < 0) {
        err = pd_fail_errno(why, errno, "cannot create '%s'", tmp);
        goto out;
    }
    err = put_all(&sink, &header, tensors, count, get, user, host, why);
    if (err == PD_OK)
        err = finish_file(sink.fd, tmp, path, why);
    close(sink.fd);
    if (err != PD_OK) {
        (void)unlink(tmp);
        goto out;
    }
    ret->bytes = sink.bytes;
    digest_sha256_final(&sink.hash, ret->sha256);
out:
    free(host);
    pd_buf_done(&header);
    return err;
}

/* ---- reading ---- */

static enum pd_err check_digest(const struct data_st *st, const char *path, struct pd_why *why)
{
    const char *stored = data_st_meta(st, "polyd.sha256");
    struct digest_sha256 hash;
    uint8_t digest[32];
    char hex[65];
    size_t len, header = 8;
    const uint8_t *bytes = data_st_bytes(st, &len), *place;

    for (int i = 0; i < 8; i++)
        header += (size_t)bytes[i] << 8 * i;
    place = memmem(bytes + 8, header - 8, DIGEST_KEY, strlen(DIGEST_KEY));
    if (!stored || strlen(stored) != 64 || !place ||
        (size_t)(place - bytes) + strlen(DIGEST_KEY) + 64 > header)
        return pd_fail(why, PD_ERR_CORRUPT, "'%s' has no digest", path);
    place += strlen(DIGEST_KEY);
    digest_sha256_init(&hash);
    digest_sha256_update(&hash, bytes, (size_t)(place - bytes));
    digest_sha256_update(&hash, ZEROS, 64);
    digest_sha256_update(&hash, place + 64, len - (size_t)(place + 64 - bytes));
    digest_sha256_final(&hash, digest);
    if (memcmp(place, digest_hex(digest, 32, hex), 64))
        return pd_fail(why, PD_ERR_CORRUPT, "'%s' does not match its digest", path);
    return PD_OK;
}

enum pd_err train_checkpoint_open(const char *path, struct data_st **ret, struct train_state *ret_state,
                                  struct pd_why *why)
{
    struct data_st *st = NULL;
    const char *format;
    enum pd_err err = data_st_open(path, &st, why);

    if (err != PD_OK)
        return err;
    format = data_st_meta(st, "polyd.format");
    if (!format)
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is not a checkpoint of polyd", path);
    else if (strcmp(format, FORMAT))
        err = pd_fail(why, PD_ERR_VERSION, "'%s' has format %.20s, this build reads " FORMAT, path, format);
    else
        err = check_digest(st, path, why);
    if (err == PD_OK)
        err = state_from_meta(st, ret_state, why);
    if (err != PD_OK) {
        data_st_free(st);
        return err;
    }
    *ret = st;
    return PD_OK;
}
