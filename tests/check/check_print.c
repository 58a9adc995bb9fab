/* check_print NAME [PARAMS]: examines one statement as a job of kind check would, prints the result as JSON and,
 * on standard error, the verdict and the processor time. PARAMS is a JSON object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/worker/check/check.h"

int main(int argc, char **argv)
{
    struct job_config *config = NULL;
    struct check_summary summary;
    struct pd_buf json;
    struct pd_why why = {""};
    char text[4096];
    clock_t begin = clock();
    enum pd_err err;

    if (argc < 2) {
        fprintf(stderr, "check_print NAME [PARAMS]\n");
        return 2;
    }
    pd_buf_init(&json, CHECK_JSON_BYTES);
    snprintf(text, sizeof text, "{\"kind\":\"check\",\"check\":\"%s\",\"params\":%s}", argv[1],
             argc > 2 ? argv[2] : "{}");
    err = job_config_load(text, strlen(text), &config, &why);
    if (err == PD_OK)
        err = check_run(config, NULL, &summary, &json, &why);
    if (err == PD_OK) {
        printf("%s\n", json.data);
        fprintf(stderr, "%s %s: %lld of %lld criteria hold, %lld rows, %.1f s\n", argv[1],
                check_verdict_name(summary.verdict), (long long)(summary.judged - summary.failed),
                (long long)summary.judged, (long long)summary.rows,
                (double)(clock() - begin) / CLOCKS_PER_SEC);
    } else {
        fprintf(stderr, "%s\n", why.text);
    }
    job_config_free(config);
    pd_buf_done(&json);
    return err == PD_OK ? 0 : 1;
}
