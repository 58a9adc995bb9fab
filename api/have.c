/* GET /api/v1/data: what the data roots hold. A worker looks (daemon/worker/data/have.h), since it is the
 * worker that reads data sets; a file system that hangs holds up that process alone. */
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/server.h"
#include "daemon/polyd/config/config.h"

struct have {
    struct api_wait *wait;
    enum pd_err err;
    struct pd_why why;
    struct pd_buf list;
};

static void have_done(void *data)
{
    pd_buf_done(&((struct have *)data)->list);
}

/* Any thread; the list is borrowed. */
static void have_listed(void *ctx, enum pd_err err, const struct pd_why *why, const char *list)
{
    struct have *h = ctx;

    h->err = err;
    if (err == PD_OK)
        pd_buf_str(&h->list, list);
    else
        h->why = *why;
    api_wait_end(h->wait);
}

static void have_answer(struct api_req *r)
{
    struct have *h = api_waited(r);

    if (h->err == PD_ERR_INVALID)
        api_fail(r, API_FAULT_MALFORMED, "query parameter 'path': %s", h->why.text);
    else if (h->err != PD_OK)
        api_fail_why(r, h->err, &h->why);
    else
        api_reply_json(r, 200, &h->list);
}

/* Fails the request unless `name` is a configured root. */
static bool root_known(struct api_req *r, const char *parameter, const char *name, size_t len)
{
    const struct config *config = api_config(api_of(r));
    struct pd_buf known;

    for (size_t i = 0; i < config->data.count; i++)
        if (strlen(config->data.roots[i].name) == len && !memcmp(config->data.roots[i].name, name, len))
            return true;
    pd_buf_init(&known, 300);
    for (size_t i = 0; i < config->data.count; i++)
        pd_buf_printf(&known, "%s%s", i ? ", " : "; there are ", config->data.roots[i].name);
    api_fail(r, API_FAULT_MALFORMED, "query parameter '%s': no data root named '%.*s' is configured%s",
             parameter, (int)(len < 100 ? len : 100), name, known.data ? known.data : "");
    pd_buf_done(&known);
    return false;
}

void api_data_list(struct api_req *r)
{
    static const char *const names[] = {"root", "path", NULL};
    char root[128], path[4097];
    struct sup_listing asked = {.done = have_listed};
    struct pd_why why = {.text = ""};
    struct api_wait *wait;
    struct have *h;
    enum pd_err err;

    if (api_query_refuse_others(r, names))
        return;
    if (api_query(r, "root", root, sizeof root) && root_known(r, "root", root, strlen(root)))
        asked.root = root;
    if (!api_failed(r) && api_query(r, "path", path, sizeof path) &&
        root_known(r, "path", path, strcspn(path, "/")))
        asked.path = path;
    if (!api_failed(r) && asked.path && !api_utf8_valid(path, strlen(path)))
        api_fail(r, API_FAULT_MALFORMED, "query parameter 'path' is not UTF-8");
    if (!api_failed(r) && asked.root && asked.path &&
        (strlen(root) != strcspn(path, "/") || memcmp(root, path, strlen(root)) != 0))
        api_fail(r, API_FAULT_MALFORMED, "query parameter 'path' is not below the data root '%s'", root);
    if (api_failed(r))
        return;
    wait = api_wait_begin(r, sizeof *h, have_done, have_answer);
    if (!wait)
        return;
    h = api_wait_data(wait);
    h->wait = wait;
    pd_buf_init(&h->list, 0);
    asked.ctx = h;
    err = sup_data_list(api_deps_of(api_of(r))->sup, &asked, &why);
    if (err != PD_OK)
        have_listed(h, err, &why, NULL);
}
