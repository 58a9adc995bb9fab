/* Results of checks: of a run as JSON and CSV, of a submission as a verdict. */
#include "api/theory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "kernels/base/file.h"

#define RESULT_KEY "check"
#define RESULT_BYTES_MAX ((size_t)4 << 20) /* above what a worker sends */

/* ---- reading ----------------------------------------------------------------------------------- */

static bool newest(void *ctx, const struct store_blob *b)
{
    *(int64_t *)ctx = b->id;
    return true;
}

struct file {
    json_t *json;
    enum pd_err err;
    struct pd_why why;
};

static void read_file(void *ctx, const struct store_blob *blob, const char *path)
{
    struct file *f = ctx;
    struct pd_buf bytes;
    json_error_t error;

    (void)blob;
    pd_buf_init(&bytes, 0);
    f->err = pd_file_read(path, RESULT_BYTES_MAX, &bytes, &f->why);
    if (f->err == PD_OK) {
        f->json = json_loadb(bytes.data, bytes.len, 0, &error);
        if (!json_is_object(f->json))
            f->err = pd_fail(&f->why, PD_ERR_CORRUPT, "'%s' has no result of a check", path);
    }
    pd_buf_done(&bytes);
}

enum pd_err theory_read(struct store *store, int64_t run, json_t **ret, struct pd_why *why)
{
    struct file f = {.json = NULL, .err = PD_OK};
    int64_t id = 0;
    enum pd_err err = store_blob_list(store, run, RESULT_KEY, -1, 1, newest, &id, why);

    *ret = NULL;
    if (err != PD_OK || !id)
        return err;
    err = store_blob_get(store, run, id, read_file, &f, why);
    if (err == PD_OK && f.err != PD_OK)
        err = pd_fail(why, f.err, "%s", f.why.text);
    if (err != PD_OK) {
        json_decref(f.json);
        return err;
    }
    *ret = f.json;
    return PD_OK;
}

/* ---- one run ----------------------------------------------------------------------------------- */

/* Numbers keep 17 digits: a value that a criterion refuses by its last bit still shows it. */
static void result_json(struct pd_buf *b, const json_t *result)
{
    char *text = result ? json_dumps(result, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;

    if (result && !text)
        b->failed = true;
    api_json_raw(b, text); /* NULL is null */
    free(text);
}

static double number_of(const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);

    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static void result_csv(struct pd_buf *b, const json_t *result)
{
    static const char *const numbers[] = {"value",    "se",         "low",        "high",
                                          "expected", "accept_low", "accept_high"};
    const json_t *row;
    size_t i;

    pd_buf_str(b, "what,seed,value,se,low,high,expected,accept_low,accept_high,pass\n");
    json_array_foreach(json_object_get(result, "rows"), i, row)
    {
        const json_t *seed = json_object_get(row, "seed"), *pass = json_object_get(row, "pass");

        api_csv_str(b, json_string_value(json_object_get(row, "what")));
        api_csv_num(b, json_number_value(seed), !json_is_integer(seed));
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            api_csv_num(b, number_of(row, numbers[k]), !json_is_number(json_object_get(row, numbers[k])));
        api_csv_str(b, json_is_true(pass) ? "true" : json_is_false(pass) ? "false" : "");
        api_csv_line(b);
    }
}

/* False: the request has been failed. */
static bool wants_csv(struct api_req *r, bool *ret)
{
    char format[8] = "json";

    if (api_query(r, "format", format, sizeof format) && strcmp(format, "json") != 0 &&
        strcmp(format, "csv") != 0)
        api_fail_param(r, API_FAULT_MALFORMED, "format", "format must be json or csv");
    *ret = !strcmp(format, "csv");
    return !api_failed(r);
}

void api_run_check(struct api_req *r)
{
    static const char *const names[] = {"format", NULL};
    const int64_t id = api_param_id(r, 0);
    struct api_run_facts facts;
    struct pd_why why = {.text = ""};
    json_t *result = NULL;
    struct store *store;
    struct pd_buf b;
    bool csv;
    enum pd_err err;

    if (!id || api_query_refuse_others(r, names) || !wants_csv(r, &csv) || !(store = api_reader(r)) ||
        !api_run_exists(r, store, id, &facts))
        return;
    if (!job_kind_has(facts.kind, "check", 5)) {
        api_fail(r, PD_ERR_NOT_FOUND, "run %lld is of kind %s, which checks no statement", (long long)id,
                 job_kind_info(facts.kind)->name);
        return;
    }
    err = theory_read(store, id, &result, &why);
    pd_buf_init(&b, 0);
    if (err == PD_OK && csv) {
        result_csv(&b, result);
        if (pd_buf_err(&b) == PD_OK)
            api_reply(r, 200, "text/csv; charset=utf-8", &b);
        else
            api_fail(r, pd_buf_err(&b), "no memory for the table");
        pd_buf_done(&b);
    } else {
        api_json_open(&b, '{');
        api_json_kv_id(&b, "run_id", id);
        api_json_key(&b, "result");
        result_json(&b, result);
        api_json_close(&b, '}');
        api_answer(r, err, &why, &b);
    }
    json_decref(result);
}

/* ---- experiments ------------------------------------------------------------------------------- */

enum pd_err theory_results_json(struct pd_buf *b, struct store *store, const struct experiment_job *job,
                                bool full, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    api_json_open(b, '[');
    for (size_t i = 0; err == PD_OK && job_kind_has(job->kind, "check", 5) && i < job->run_count; i++) {
        json_t *result = NULL;

        err = theory_read(store, job->runs[i].id, &result, why);
        if (err == PD_OK && result) {
            if (!full) {
                json_object_del(result, "rows");
                json_object_del(result, "plots");
            }
            api_json_open(b, '{');
            api_json_kv_id(b, "run_id", job->runs[i].id);
            api_json_key(b, "result");
            result_json(b, result);
            api_json_close(b, '}');
        }
        json_decref(result);
    }
    api_json_close(b, ']');
    return err;
}

/* A check's word among the verdicts of claims. */
static enum claim_verdict verdict_of(const json_t *result)
{
    const char *word = json_string_value(json_object_get(result, "verdict"));

    return word && !strcmp(word, "holds")      ? CLAIM_HOLDS
           : word && !strcmp(word, "reported") ? CLAIM_REPORTED
                                               : CLAIM_FAILS;
}

enum pd_err theory_verdict(struct experiment *x, const struct experiment_set *set, enum claim_verdict *ret,
                           const char **ret_why, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    *ret = CLAIM_HOLDS;
    *ret_why = NULL;
    for (size_t k = 0; k < set->count; k++) {
        const struct experiment_job *job = &x->jobs[set->first + k];

        if (!job->run_count)
            *ret = CLAIM_OPEN;
        for (size_t i = 0; err == PD_OK && i < job->run_count; i++) {
            const struct experiment_run *run = &job->runs[i];
            enum claim_verdict one = CLAIM_OPEN;
            json_t *result = NULL;

            err = theory_read(x->store, run->id, &result, why);
            if (result)
                one = verdict_of(result);
            else if (run->state == JOB_RUN_ENDED)
                one = CLAIM_UNDECIDED;
            if (one == CLAIM_UNDECIDED)
                *ret_why = "a run ended without a result";
            if (one > *ret)
                *ret = one;
            json_decref(result);
        }
    }
    return err;
}
