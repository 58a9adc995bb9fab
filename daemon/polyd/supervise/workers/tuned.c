/* Measured choices of the workers' back ends: sent to a worker that requests those of its device, and stored
 * by the store as they come. They are a cache: a record that cannot be read or written costs a measurement.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/store/store.h"
#include "daemon/polyd/supervise/loop/loop.h"
#include "daemon/polyd/supervise/workers/conn.h"
#include "daemon/polyd/supervise/workers/tuned.h"
#include "kernels/base/log.h"

/* What the records of a frame are of. */
struct of {
    char gpu[128], driver[64], library[80];
};

static bool read_of(const uint8_t *p, size_t len, struct of *ret)
{
    return wire_get_text(p, len, WIRE_TAG_GPU, ret->gpu, sizeof ret->gpu) && ret->gpu[0] &&
           wire_get_text(p, len, WIRE_TAG_DRIVER, ret->driver, sizeof ret->driver) &&
           wire_get_text(p, len, WIRE_TAG_LIBRARY, ret->library, sizeof ret->library);
}

/* ---- asked for ------------------------------------------------------------------------------- */

struct answer {
    struct pd_buf *out;
    size_t at;
    unsigned in_frame;
    int received, bad;
};

static bool put_record(void *ctx, const struct store_tuned *t)
{
    struct answer *a = ctx;

    if (!t->size) {
        a->bad++;
        return true;
    }
    if (a->in_frame == WIRE_TUNED_MAX) {
        if (wire_end(a->out, a->at) != PD_OK)
            return false;
        a->at = wire_begin(a->out, WIRE_TUNED, 0, 0);
        a->in_frame = 0;
    }
    wire_put_tuned(a->out, t->key, t->value, t->size);
    a->in_frame++;
    a->received++;
    return true;
}

void tuned_ask(struct loop *l, struct conn *c, const uint8_t *p, size_t len)
{
    struct pd_buf out;
    struct answer a = {.out = &out};
    struct pd_why why = {""};
    struct of of = {.gpu = ""};
    enum pd_err err;

    pd_buf_init(&out, 0);
    a.at = wire_begin(&out, WIRE_TUNED, 0, 0);
    err = read_of(p, len, &of)
              ? store_tuned_list(loop_reader(l), of.gpu, of.driver, of.library, put_record, &a, &why)
              : pd_fail(&why, PD_ERR_CORRUPT, "the device is missing");
    wire_put_u32(&out, WIRE_TAG_LAST, 1); /* in any case: it waits */
    if (wire_end(&out, a.at) != PD_OK && err == PD_OK)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the records");
    if (err != PD_OK || a.bad)
        pd_log(PD_LOG_WARNING, "supervise", "measured_choices gpu=\"%s\" received=%d ignored=%d why=\"%s\"",
               of.gpu, a.received, a.bad, err == PD_OK ? "malformed records" : why.text);
    else
        pd_log(PD_LOG_DEBUG, "supervise", "measured_choices gpu=\"%s\" received=%d", of.gpu, a.received);
    conn_send(c, &out);
    conn_flush(c);
}

/* ---- sent ------------------------------------------------------------------------------------ */

struct tuned_op {
    struct loop_op op;
    struct of of;
    int64_t run, fresh, gone;
    int bad;
    size_t len;
    uint8_t *payload; /* owned copy */
};

static enum pd_err tuned_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct tuned_op *o = (struct tuned_op *)op;
    struct store_tuned t = {
        .device = o->of.gpu, .driver = o->of.driver, .library = o->of.library, .run_id = o->run};
    char key[WIRE_TUNED_KEY + 1];
    const uint8_t *value;
    enum pd_err err = PD_OK;
    size_t pos = 0, size;
    bool is_new;

    o->fresh = o->gone = o->bad = 0; /* it may run again */
    while (err == PD_OK && wire_next_tuned(o->payload, o->len, &pos, key, &value, &size, &o->bad)) {
        t.key = key;
        t.value = value;
        t.size = size;
        err = store_tuned_add(tx, &t, &is_new, why);
        o->fresh += err == PD_OK && is_new;
    }
    return err == PD_OK && o->fresh ? store_tuned_trim(tx, o->of.gpu, &o->gone, why) : err;
}

static void tuned_done(struct loop_op *op)
{
    struct tuned_op *o = (struct tuned_op *)op;

    if (op->err != PD_OK || o->bad || o->gone)
        pd_log(op->err != PD_OK || o->bad ? PD_LOG_WARNING : PD_LOG_INFO, "supervise",
               "measured_choices gpu=\"%s\" run=%lld kept=%lld ignored=%d oldest_dropped=%lld%s%s%s",
               o->of.gpu, (long long)o->run, (long long)(op->err == PD_OK ? o->fresh : 0), o->bad,
               (long long)o->gone, op->err != PD_OK ? " why=\"" : "", op->err != PD_OK ? op->why.text : "",
               op->err != PD_OK ? "\"" : "");
}

static void tuned_release(struct loop_op *op)
{
    free(((struct tuned_op *)op)->payload);
}

void tuned_take(struct loop *l, int64_t run, const uint8_t *p, size_t len)
{
    struct tuned_op *o = calloc(1, sizeof *o);
    bool ok = o && read_of(p, len, &o->of) && (o->payload = malloc(len + 1));

    if (!ok) {
        pd_log(PD_LOG_WARNING, "supervise", "run=%lld measured_choices=ignored why=\"%s\"", (long long)run,
               o && !o->of.gpu[0] ? "the device is missing" : "the records cannot be parsed");
        free(o);
        return;
    }
    memcpy(o->payload, p, len);
    o->len = len;
    o->run = run;
    o->op.rows = 2;
    o->op.apply = tuned_apply;
    o->op.done = tuned_done;
    o->op.release = tuned_release;
    loop_write(l, &o->op);
}
