/* What a plan says of a job: what was found odd about its data, and whether it is too large for this machine. */
#include <stdio.h>

#include "api/json.h"
#include "api/submit.h"

/* What the planner found odd about the data. */
static void plan_warnings(const json_t *facts, struct job_report *report)
{
    const json_t *list = json_object_get(facts, "warnings");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *pointer = json_string_value(json_object_get(json_array_get(list, i), "pointer"));
        const char *detail = json_string_value(json_object_get(json_array_get(list, i), "detail"));

        if (pointer && detail)
            job_report_warning(report, pointer, "%s", detail);
    }
}

const char *api_device_of(const struct job_head *head)
{
    return head->resources.device == JOB_DEVICE_CUDA ? "cuda" : "cpu";
}

/* Whether the plan is larger than what each slot can have of this machine; then the words for it. */
static bool too_large(struct sup *sup, const struct job_head *head, const json_t *facts, char *out,
                      size_t size)
{
    int64_t need = json_integer_value(json_object_get(facts, "total_bytes"));
    const json_t *less = json_object_get(facts, "accumulated");
    int64_t parts = json_integer_value(json_object_get(less, "accumulation"));
    int slots = (int)head->resources.slots;
    bool cpu = head->resources.device != JOB_DEVICE_CUDA;
    int64_t have = sup_memory(sup, api_device_of(head), slots);
    int times = cpu ? slots : 1;
    int n;

    if (!have || need <= have)
        return false;
    n = snprintf(out, size, "needs %.1f GB%s, %s has %.1f GB", 1e-9 * (double)need * times,
                 cpu && slots > 1 ? " in all slots" : "", cpu ? "this machine" : "the largest GPU",
                 1e-9 * (double)have * times);
    if (parts)
        snprintf(out + n, size - (size_t)n, "; with train.accumulation %lld it needs %.1f GB",
                 (long long)parts,
                 1e-9 * (double)json_integer_value(json_object_get(less, "total_bytes")) * times);
    return true;
}

enum pd_err api_plan_judge(struct sup *sup, const struct job_head *head, const struct expand_run *run,
                           const char *plan, struct plan_verdict *ret, struct job_report *report,
                           struct pd_why *why)
{
    json_t *facts = json_loads(plan, 0, NULL), *samples = json_object_get(facts, "train_samples");
    enum pd_err err = PD_OK;

    if (json_is_integer(samples))
        err = job_run_judge(run->document.data, run->document.len, json_integer_value(samples), report, why);
    plan_warnings(facts, report);
    ret->need_bytes = json_integer_value(json_object_get(facts, "total_bytes"));
    ret->too_large = too_large(sup, head, facts, ret->text, sizeof ret->text);
    json_decref(facts);
    return err;
}

bool api_plan_of_files(const struct expand_run *run)
{
    struct job_config *config = NULL;
    struct pd_why why;
    const bool known = job_config_load(run->document.data, run->document.len, &config, &why) == PD_OK;
    const bool files = !known || config->data.path || config->data.tokenizer_path;

    job_config_free(config);
    return files;
}

void api_problems_json(struct pd_buf *b, const struct job_problem *list, size_t count)
{
    api_json_open(b, '[');
    for (size_t i = 0; i < count; i++) {
        api_json_open(b, '{');
        api_json_kv_str(b, "pointer", list[i].pointer);
        api_json_kv_str(b, "detail", list[i].detail);
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
}
