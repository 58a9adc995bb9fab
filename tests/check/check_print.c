/* check_print [NAME [PARAMS]]: examines a statement as a job of kind check would, prints the result as JSON and, on standard error, the
 * verdict with the processor time. PARAMS is a JSON object. Without a name it examines all of them, and prints verdicts alone; the
 * exit status is 1 if one fails. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/worker/check/check.h"

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* False: it fails, or cannot be examined. */
static bool examine(const char *name, const char *params, bool print)
{
    struct job_config *config = NULL;
    struct check_summary s = {.verdict = CHECK_FAILS};
    struct pd_buf json;
    struct pd_why why = {""};
    const double begin = seconds();
    char text[4096];
    enum pd_err err;

    pd_buf_init(&json, CHECK_JSON_BYTES);
    snprintf(text, sizeof text, "{\"kind\":\"check\",\"check\":\"%s\",\"params\":%s}", name, params);
    err = job_config_load(text, strlen(text), &config, &why);
    if (err == PD_OK)
        err = check_run(config, NULL, &s, &json, &why);
    if (err == PD_OK && print)
        printf("%s\n", json.data);
    if (err == PD_OK)
        fprintf(stderr, "%s %s: %lld of %lld criteria hold, %lld numbers, %.1f s\n", name,
                check_verdict_name(s.verdict), (long long)(s.judged - s.failed), (long long)s.judged,
                (long long)s.rows, seconds() - begin);
    else
        fprintf(stderr, "%s: %s\n", name, why.text);
    job_config_free(config);
    pd_buf_done(&json);
    return err == PD_OK && s.verdict != CHECK_FAILS;
}

int main(int argc, char **argv)
{
    bool good = true;

    if (argc > 1)
        return examine(argv[1], argc > 2 ? argv[2] : "{}", true) ? 0 : 1;
    for (int t = 0; t < JOB_THEOREM_COUNT; t++)
        good = examine(job_theorem_name((enum job_theorem)t), "{}", false) && good;
    fprintf(stderr, "all: %s, %.1f s\n", good ? "hold or are reported" : "one fails", seconds());
    return good ? 0 : 1;
}
