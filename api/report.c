/* The report of an experiment: read from the store when asked for, as a page or as JSON. */
#include <stdio.h>
#include <string.h>

#include "api/experiment.h"
#include "api/handlers.h"
#include "api/report.h"
#include "api/server.h"

static bool names(const char *accept, const char *type)
{
    return accept && strstr(accept, type);
}

/* format=, else what Accept prefers: JSON only where it names it and not a page. */
static bool wants_json(struct api_req *r)
{
    const char *accept = api_header(r, "Accept");
    char format[8];

    if (api_query(r, "format", format, sizeof format)) {
        if (strcmp(format, "json") != 0 && strcmp(format, "html") != 0)
            api_fail(r, API_FAULT_MALFORMED, "format must be html or json");
        return !strcmp(format, "json");
    }
    return names(accept, "application/json") && !names(accept, "text/html");
}

static void disposition(struct api_req *r, bool download, const char *ending)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    char name[129], header[256];

    /* The label of a run that its client opened may hold any character. */
    snprintf(name, sizeof name, "%s", api_param(r, 0));
    for (char *c = name; *c; c++)
        *c = strchr(plain, *c) ? *c : '_';
    snprintf(header, sizeof header, "%s; filename=\"polyd-%s.%s\"", download ? "attachment" : "inline", name,
             ending);
    api_reply_header(r, "Content-Disposition", header);
}

void api_experiment_report(struct api_req *r)
{
    static const char *const known[] = {"format", "download", NULL};
    struct pd_buf b, page;
    bool json, download;
    json_t *tree = NULL;

    if (api_query_refuse_others(r, known))
        return;
    json = wants_json(r);
    download = api_query_flag(r, "download");
    if (api_failed(r))
        return;
    pd_buf_init(&b, 0);
    pd_buf_init(&page, 0);
    if (experiment_answer(r, true, &b)) {
        if (json) {
            api_reply_json(r, 200, &b);
        } else if (!(tree = json_loadb(b.data, b.len, 0, NULL))) {
            api_fail(r, PD_ERR_NOMEM, "no memory for the report");
        } else {
            report_html(&page, tree);
            api_reply_header(r, "Content-Security-Policy", REPORT_SECURITY_POLICY);
            api_reply(r, 200, "text/html; charset=utf-8", &page);
        }
        if (!api_failed(r))
            disposition(r, download, json ? "json" : "html");
    }
    json_decref(tree);
    pd_buf_done(&page);
    pd_buf_done(&b);
}
