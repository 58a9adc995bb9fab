/* Experiments: the labels that jobs carry; list, one of them with its verdicts. */
#include <stdio.h>
#include <string.h>

#include "api/cursor.h"
#include "api/experiment.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"

struct page {
    struct pd_buf b;
    int count, limit;
    char last[129];
    bool more;
};

static bool list_row(void *ctx, const struct store_experiment *e)
{
    struct page *p = ctx;

    if (p->count == p->limit) {
        p->more = true;
        return false;
    }
    experiment_head_json(&p->b, e);
    api_json_close(&p->b, '}');
    snprintf(p->last, sizeof p->last, "%s", e->name);
    p->count++;
    return true;
}

void api_experiment_list(struct api_req *r)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    const uint8_t *key = api_core_cursor_key(api_core_of(api_of(r)));
    char cursor[API_CURSOR_AT_TEXT], after[STORE_PLACE_SIZE];
    struct page p = {.count = 0};
    struct pd_why why = {.text = ""};
    struct store *store;
    bool paged;
    int64_t unused;
    enum pd_err err;

    if (api_query_refuse_others(r, names))
        return;
    p.limit = (int)api_query_int(r, "limit", 1, STORE_PAGE_MAX, 100);
    paged = api_query(r, "cursor", cursor, sizeof cursor);
    if (paged && !api_cursor_read_at(key, "experiments", cursor, &unused, after, sizeof after))
        api_fail(r, API_FAULT_MALFORMED,
                 "the cursor does not belong to this list; start with the first page");
    if (api_failed(r) || !(store = api_reader(r)))
        return;
    pd_buf_init(&p.b, 0);
    api_json_open(&p.b, '{');
    api_json_key(&p.b, "experiments");
    api_json_open(&p.b, '[');
    err = store_experiment_list(store, paged ? after : NULL, p.limit + 1, list_row, &p, &why);
    if (p.more)
        api_cursor_write_at(key, "experiments", 0, p.last, cursor);
    api_page_close(r, &p.b, p.more ? cursor : NULL);
    api_answer(r, err, &why, &p.b);
}

bool experiment_answer(struct api_req *r, bool full, struct pd_buf *b)
{
    const char *name = api_param(r, 0);
    struct experiment *x = NULL;
    struct pd_why why = {.text = ""};
    struct store *store = api_reader(r);
    enum pd_err err;

    if (!store)
        return false;
    err = store_begin(store, &why);
    if (err == PD_OK)
        err = experiment_read(store, name, &x, &why);
    if (err == PD_OK)
        err = experiment_json(b, x, full, &why);
    store_end(store);
    experiment_free(x);
    if (err == PD_OK)
        err = pd_buf_err(b);
    if (err == PD_ERR_NOT_FOUND)
        api_fail(r, err, "there is no experiment '%.128s': no job has this label", name);
    else if (err != PD_OK)
        api_fail_why(r, err, &why);
    return err == PD_OK;
}

void api_experiment_get(struct api_req *r)
{
    struct pd_buf b;

    pd_buf_init(&b, 0);
    if (experiment_answer(r, false, &b))
        api_reply_json(r, 200, &b);
    pd_buf_done(&b);
}
