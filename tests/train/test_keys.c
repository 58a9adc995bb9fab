/* tests/train/test_keys.c: which keys of layers and heads a run reports, and which the catalogue says that it does. */
#include <stdio.h>
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/job/metric.h"
#include "tests/train/rig.h"

#define LAYERS 8 /* more than any network here has */
#define HEADS 6

#define PICTURES(model, attention)                                                                           \
    "{\"model\":{" model ",\"mlp_ratio\":1},\"attention\":{" attention "},"                                  \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":16,\"val\":8}},"           \
    "\"diagnostics\":{\"every\":1,\"probe_batch\":2,\"heatmaps\":{\"every\":1}},"                            \
    "\"resources\":{\"device\":\"cpu\",\"threads\":1},\"train\":{\"steps\":1,\"batch\":8}}"
#define REST(model, data)                                                                                    \
    "{\"model\":{" model ",\"mlp_ratio\":1},\"attention\":{" POLY "},\"data\":{\"dataset\":" data "},"       \
    "\"diagnostics\":{\"every\":1,\"probe_batch\":1,\"heatmaps\":{\"every\":1}},"                            \
    "\"resources\":{\"device\":\"cpu\",\"threads\":1},\"train\":{\"steps\":1,\"batch\":1}}"
#define POLY "\"activation\":\"poly\",\"scale\":\"learned\",\"scale_share\":\"head\""
#define VIT "\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7"
#define SWIN "\"preset\":\"swin_micro\",\"widths\":[8,16],\"depths\":[1,2],\"head_counts\":[2,4]"
#define XCIT "\"preset\":\"xcit_micro\",\"width\":8,\"depth\":2,\"heads\":2"

static bool wrote(const struct book *b, const char *key)
{
    for (size_t i = 0; i < b->count; i++)
        if (!strcmp(b->points[i].key, key))
            return true;
    return false;
}

/* The row's key with a layer and, above 0, a head. False: it has no place for them. */
static bool key_of(const char *pattern, int layer, int head, char *out, size_t size)
{
    const char *at = strstr(pattern, "<layer>"), *rest = at ? at + strlen("<layer>") : NULL;

    if (!at || strstr(pattern, "<name>") || (head > 0 && strcmp(rest, "[/<head>]") != 0))
        return false;
    snprintf(out, size, head > 0 ? "%.*s%d/%d" : "%.*s%d", (int)(at - pattern), pattern, layer, head);
    return true;
}

static void test_keys_of_layers_are_those_that_the_catalogue_names(void **state)
{
    static const char *const jobs[] = {
        PICTURES(VIT, POLY),
        PICTURES(VIT, "\"qk_norm\":true"),
        PICTURES(SWIN, POLY),
        PICTURES(XCIT, POLY),
        PICTURES(XCIT, "\"activation\":\"poly\",\"class_attention\":\"softmax\""),
        REST("\"preset\":\"pinn_micro\",\"width\":4,\"head_width\":5",
             "\"pde_reaction\",\"pde\":{\"grid\":5,\"test_grid\":4}"),
        REST("\"preset\":\"gpt_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"context\":16",
             "\"text_gen\",\"split\":{\"train\":2000,\"val\":200,\"test\":200}"),
        REST("\"preset\":\"nystrom_micro\",\"width\":8,\"heads\":2,\"context\":32,\"landmarks\":8",
             "\"listops_gen\",\"split\":{\"train\":500,\"val\":20,\"test\":20}"),
    };

    (void)state;
    for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
        struct book b = {0};
        struct job_config *g = NULL;
        struct train_outcome out;
        struct pd_why why = {""};
        size_t seen = 0;

        clear();
        if (run(jobs[j], &b, NULL, 1, &out, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_int_equal(job_config_load(jobs[j], strlen(jobs[j]), &g, &why), PD_OK);
        for (size_t i = 0; i < job_metric_count; i++)
            for (int layer = 1; layer <= LAYERS; layer++)
                for (int head = 0; head <= HEADS; head++) {
                    char key[64];

                    if (!key_of(job_metrics[i].key, layer, head, key, sizeof key))
                        continue;
                    if (wrote(&b, key) != job_config_writes(g, key))
                        fail_msg("job %zu: %s is %s", j, key,
                                 wrote(&b, key) ? "reported, but not named" : "named, but not reported");
                    seen += wrote(&b, key);
                }
        assert_true(seen >= 30);
        job_config_free(g);
        close_book(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keys_of_layers_are_those_that_the_catalogue_names, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
