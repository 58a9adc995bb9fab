/* Runs a check seed by seed, and writes its result. */
#include "daemon/worker/check/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/check/internal.h"
#include "kernels/base/json.h"

#define PARTS 100 /* of progress, for each seed */

#define ENTRY(name) [JOB_THEOREM_##name] = &check_##name,
static const struct check_theorem *const theorems[JOB_THEOREM_COUNT] = {JOB_THEOREMS(ENTRY)};
#undef ENTRY

void check_fail(struct check *c, enum pd_err err, const char *fmt, ...)
{
    va_list args;

    if (c->err != PD_OK)
        return;
    c->err = err;
    va_start(args, fmt);
    vsnprintf(c->why.text, sizeof c->why.text, fmt, args);
    va_end(args);
}

bool check_go(struct check *c, double share)
{
    if (c->err != PD_OK)
        return false;
    if (c->host && c->host->stop && c->host->stop(c->host->user)) {
        check_fail(c, PD_ERR_CANCELLED, "stopped");
        return false;
    }
    if (c->host && c->host->progress)
        c->host->progress(c->host->user, c->nth * PARTS + (int64_t)(share * PARTS), c->seeds * PARTS);
    return true;
}

double check_param(const struct check *c, const char *name)
{
    return job_param_find(&c->config->check.params, name)->items[0];
}

const double *check_list(const struct check *c, const char *name, size_t *ret_count)
{
    const struct job_param_value *v = job_param_find(&c->config->check.params, name);

    *ret_count = v->count;
    return v->items;
}

double *check_numbers(struct check *c, size_t count)
{
    double *memory =
        c->err == PD_OK ? pd_arena_alloc(c->scratch, (count ? count : 1) * sizeof *memory) : NULL;

    if (!memory)
        check_fail(c, PD_ERR_NOMEM, "no memory for the check");
    return memory;
}

void *check_alloc(struct check *c, size_t bytes)
{
    void *memory = c->err == PD_OK ? pd_arena_alloc(c->arena, bytes ? bytes : 1) : NULL;

    if (!memory)
        check_fail(c, PD_ERR_NOMEM, "no memory for the check");
    return memory;
}

static void write_result(struct check *c, struct pd_buf *b, struct check_summary *ret)
{
    const struct check_theorem *t = c->theorem;
    const int64_t first = (int64_t)check_param(c, "seed");

    pd_json_open(b, '{');
    pd_json_kv_str(b, "check", job_theorem_name((enum job_theorem)c->config->check.theorem));
    pd_json_kv_str(b, "source", t->source);
    pd_json_kv_str(b, "claimed", t->claimed);
    pd_json_kv_str(b, "correct", t->correct);
    pd_json_kv_bool(b, "wrong", t->wrong);
    pd_json_key(b, "seeds");
    pd_json_open(b, '[');
    for (int64_t i = 0; i < c->seeds; i++)
        pd_json_int(b, first + i);
    pd_json_close(b, ']');
    check_table_json(c, b, ret);
    pd_json_close(b, '}');
}

enum pd_err check_run(const struct job_config *config, const struct check_host *host,
                      struct check_summary *ret, struct pd_buf *ret_json, struct pd_why *why)
{
    struct check c = {
        .config = config, .host = host, .theorem = theorems[config->check.theorem], .arena = pd_arena_new()};
    struct pd_buf json;

    c.plot_tail = &c.plots;
    c.seeds = (int64_t)check_param(&c, "seeds");
    pd_buf_init(&c.evidence, CHECK_JSON_BYTES);
    pd_buf_init(&json, CHECK_JSON_BYTES);
    if (!c.arena)
        check_fail(&c, PD_ERR_NOMEM, "no memory for the check");
    for (c.nth = 0; c.nth < c.seeds && check_go(&c, 0); c.nth++) {
        c.seed = (uint64_t)check_param(&c, "seed") + (uint64_t)c.nth;
        c.scratch = pd_arena_new();
        if (c.scratch)
            c.theorem->seed(&c);
        else
            check_fail(&c, PD_ERR_NOMEM, "no memory for the check");
        c.scratch = pd_arena_free(c.scratch);
    }
    if (c.err == PD_OK && c.theorem->finish) {
        check_of_all(&c, true);
        c.nth = c.seeds - 1;
        c.theorem->finish(&c);
    }
    if (c.err == PD_OK) {
        write_result(&c, &json, ret);
        if (pd_buf_err(&json) != PD_OK)
            check_fail(&c, pd_buf_err(&json), "no memory for the result, or it is too large");
    }
    if (c.err == PD_OK) {
        pd_buf_append(ret_json, json.data, json.len);
        if (pd_buf_err(ret_json) != PD_OK)
            check_fail(&c, pd_buf_err(ret_json), "no memory for the result");
    }
    if (c.err == PD_OK && host && host->progress)
        host->progress(host->user, c.seeds * PARTS, c.seeds * PARTS);
    free(c.rows);
    pd_buf_done(&c.evidence);
    pd_buf_done(&json);
    pd_arena_free(c.arena);
    return c.err == PD_OK ? PD_OK : pd_fail(why, c.err, "%s", c.why.text);
}
