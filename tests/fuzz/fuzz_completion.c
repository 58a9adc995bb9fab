/* Bodies of /v1/completions and /generate (api/completion.h). Whatever api takes it hands to a worker, and
 * the worker's own reader (daemon/worker/serve/params.h) must then take it too: the two agree on every name
 * and range. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "api/completion.h"
#include "daemon/worker/serve/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(struct api_completion *c)
{
    static struct serve_params p;
    struct pd_why why;

    for (int i = 0; i < c->prompts * c->n && i < API_COMPLETION_CHOICES_MAX; i++) {
        struct pd_buf json;
        enum pd_err err;

        pd_buf_init(&json, 0);
        api_completion_params(c, i, &json);
        err = pd_buf_err(&json) == PD_OK ? serve_params_complete(json.data, json.len, &p, &why) : PD_OK;
        /* Whether a token exists is the model's to know, and nothing to do is the worker's to refuse. */
        if (err == PD_OK && (p.sampling.max_tokens > 0 || p.sampling.echo))
            err = serve_sampling_check(&p.sampling, INT64_MAX, &why);
        if (err != PD_OK) {
            fprintf(stderr, "the worker refuses what api took: %s\n%s\n", why.text, json.data);
            abort();
        }
        pd_buf_done(&json);
    }
    api_completion_done(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    json_t *root = json_loadb((const char *)bytes, len, JSON_REJECT_DUPLICATES, NULL);
    struct api_completion c;
    struct pd_why why;
    char param[64];

    if (!json_is_object(root)) {
        json_decref(root);
        return 0;
    }
    if (api_completion_parse(root, &c, param, &why) == PD_OK)
        check(&c);
    if (api_generate_parse(root, &c, param, &why) == PD_OK)
        check(&c);
    json_decref(root);
    return 0;
}
