/* What polyd says: the assignment, acknowledgements, requests, orders. */
#include "daemon/worker/process/link_internal.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"

#define REQUESTS_MAX 4096 /* waiting inference requests; polyd's own limit is lower */

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
    a->job = a->run_dir = a->model = a->digest = a->store = "";
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
            text = store_text(&at, &f);
            if (a->start_count < LINK_STARTS_MAX) {
                a->digests[a->start_count] = "";
                a->starts[a->start_count++] = text;
            }
            a->checkpoint = a->starts[0];
            break;
        case WIRE_TAG_STORE:
            a->store = store_text(&at, &f);
            break;
        case WIRE_TAG_MODEL:
            a->model = store_text(&at, &f);
            break;
        case WIRE_TAG_DIGEST:
            a->digest = store_text(&at, &f);
            if (a->start_count)
                a->digests[a->start_count - 1] = a->digest;
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
    a->ranks = (int)wire_get_u32(p, len, WIRE_TAG_RANKS, 1);
    l->assigned = true;
    pthread_cond_broadcast(&l->changed);
}

void link_refuse(struct link *l)
{
    l->refused = true;
    atomic_store(&l->stop, LINK_LEAVE_NOW);
    pthread_cond_broadcast(&l->changed);
}

static void take_infer(struct link *l, uint64_t id, const uint8_t *p, size_t len)
{
    struct link_request *r = calloc(1, sizeof *r);
    struct pd_why why = {"no memory for the request"};
    enum pd_err err = PD_ERR_NOMEM;
    uint64_t deadline_us = wire_get_u64(p, len, WIRE_TAG_DEADLINE_US, 0);
    struct wire_field f;
    size_t pos = 0;

    if (!r)
        goto refused;
    if (l->unloading || l->request_count >= REQUESTS_MAX) {
        err = pd_fail(&why, l->unloading ? PD_ERR_CLOSED : PD_ERR_BUSY,
                      "the model accepts no requests at present");
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
    link_answer(l, id, err, why.text);
}

static void take_rendezvous(struct link *l, const uint8_t *p, size_t len)
{
    struct wire_field f;

    if (l->rendezvous_ours || !wire_find(p, len, WIRE_TAG_COMM_ID, &f) || f.len > sizeof l->rendezvous)
        return;
    memcpy(l->rendezvous, f.bytes, f.len);
    l->rendezvous_len = f.len;
    pthread_cond_broadcast(&l->changed);
}

static void take_cancel(struct link *l, const uint8_t *p, size_t len)
{
    uint64_t id = wire_get_u64(p, len, WIRE_TAG_REQUEST, 0);

    if (!id) {
        if (link_stop_asked(l) == LINK_GO_ON)
            atomic_store(&l->stop, LINK_CHECKPOINT_AND_LEAVE);
    } else
        for (struct link_request *r = l->requests; r; r = r->next)
            if (r->pub.id == id)
                r->cancelled = true;
    pthread_cond_broadcast(&l->changed);
}

/* False: close the connection. */
bool link_take_frame(struct link *l, const struct wire_header *h, const uint8_t *p)
{
    char cause[32];

    switch (h->type) {
    case WIRE_WELCOME:
        link_acknowledge(l, wire_get_u64(p, h->len, WIRE_TAG_ACKED, 0));
        l->welcomed = true;
        l->sent = 0;
        l->rendezvous_sent = l->tuned_asked = false;
        l->tuned_sent = 0;
        l->step_sent = l->log_sent = -1;
        l->progress_dirty = true;
        return true;
    case WIRE_ASSIGN:
        take_assign(l, p, h->len);
        return true;
    case WIRE_RENDEZVOUS:
        take_rendezvous(l, p, h->len);
        return true;
    case WIRE_TUNED:
        link_take_tuned(l, p, h->len);
        return true;
    case WIRE_ACK:
        link_acknowledge(l, wire_get_u64(p, h->len, WIRE_TAG_ACKED, 0));
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
            link_refuse(l);
        pthread_cond_broadcast(&l->changed);
        return false;
    default:
        return true; /* heartbeat, and what a newer daemon may add */
    }
}
