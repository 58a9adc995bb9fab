/* Measured choices of a back end: requested once, reported as they are measured. */
#include "daemon/worker/process/link_internal.h"

#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/log.h"

static void put_of(struct pd_buf *b, const struct link_tuned *of)
{
    wire_put_text(b, WIRE_TAG_GPU, of->gpu);
    wire_put_text(b, WIRE_TAG_DRIVER, of->driver);
    wire_put_text(b, WIRE_TAG_LIBRARY, of->library);
}

void link_take_tuned(struct link *l, const uint8_t *p, size_t len)
{
    if (!l->tuned_asked || l->tuned_known)
        return; /* not requested */
    pd_buf_append(&l->tuned_in, p, len);
    if (wire_get_u32(p, len, WIRE_TAG_LAST, 0)) {
        l->tuned_known = true;
        pthread_cond_broadcast(&l->changed);
    }
}

void link_fill_tuned(struct link *l, struct pd_buf *out)
{
    if (l->tuned_ask.len && !l->tuned_asked && !l->tuned_known) {
        l->tuned_in.len = 0; /* half an answer of the last connection */
        pd_buf_append(out, l->tuned_ask.data, l->tuned_ask.len);
        l->tuned_asked = true;
    }
    if (l->tuned_sent < l->tuned_out.len) {
        pd_buf_append(out, l->tuned_out.data + l->tuned_sent, l->tuned_out.len - l->tuned_sent);
        l->tuned_sent = l->tuned_out.len;
    }
}

enum pd_err link_tuned_recall(struct link *l, const struct link_tuned *of, int timeout_ms,
                              void (*take)(void *to, const char *key, const void *value, size_t size),
                              void *to, struct pd_why *why)
{
    int64_t until_us = pd_clock_mono_us() + (int64_t)timeout_ms * 1000;
    enum pd_err err = PD_ERR_BUSY;
    char key[WIRE_TUNED_KEY + 1];
    const uint8_t *value;
    size_t pos = 0, size;
    struct pd_buf answer;
    int bad = 0;

    pd_buf_init(&answer, 0);
    pthread_mutex_lock(&l->mutex);
    l->tuned_asked = l->tuned_known = false;
    l->tuned_ask.len = l->tuned_in.len = 0;
    wire_begin(&l->tuned_ask, WIRE_TUNED_ASK, 0, 0);
    put_of(&l->tuned_ask, of);
    if (wire_end(&l->tuned_ask, 0) != PD_OK)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory to request measured choices");
    link_wake(l);
    while (err == PD_ERR_BUSY) {
        struct timespec soon;

        if (l->tuned_known) {
            answer = l->tuned_in; /* moved */
            pd_buf_init(&l->tuned_in, 0);
            err = pd_buf_err(&answer);
        } else if (link_stop_asked(l) != LINK_GO_ON) {
            err = pd_fail(why, PD_ERR_CANCELLED, "stopped before the measured choices arrived");
        } else if (pd_clock_mono_us() > until_us) {
            err = pd_fail(why, PD_ERR_TIMEOUT, "polyd did not send the measured choices within %d ms",
                          timeout_ms);
        } else { /* a stop requested by a signal does not wake a thread */
            link_deadline_after(&soon, 200000);
            pthread_cond_timedwait(&l->changed, &l->mutex, &soon);
        }
    }
    l->tuned_ask.len = 0;
    pthread_mutex_unlock(&l->mutex);
    while (err == PD_OK &&
           wire_next_tuned((const uint8_t *)answer.data, answer.len, &pos, key, &value, &size, &bad))
        take(to, key, value, size);
    if (bad)
        pd_log(PD_LOG_WARNING, "link", "measured_choices ignored=%d why=\"malformed records\"", bad);
    pd_buf_done(&answer);
    return err;
}

bool link_tuned_report(struct link *l, const struct link_tuned *of, const char *key, const void *value,
                       size_t size)
{
    bool kept = false;
    size_t at;

    pthread_mutex_lock(&l->mutex);
    if (key[0] && strlen(key) <= WIRE_TUNED_KEY && size && size <= WIRE_TUNED_VALUE &&
        l->tuned_out.len < LINK_TUNED_BYTES) {
        at = wire_begin(&l->tuned_out, WIRE_TUNED, 0, 0);
        put_of(&l->tuned_out, of);
        wire_put_tuned(&l->tuned_out, key, value, size);
        kept = wire_end(&l->tuned_out, at) == PD_OK;
    }
    pthread_mutex_unlock(&l->mutex);
    link_wake(l);
    return kept;
}
