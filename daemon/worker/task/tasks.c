/* The table of tasks. */
#include <string.h>

#include "daemon/worker/task/task.h"

#define TASK_ENTRY(name) &task_##name,
static const struct task *const tasks[] = {TASKS(TASK_ENTRY)};

const struct task *task_find(const char *name)
{
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        if (!strcmp(tasks[i]->name, name))
            return tasks[i];
    return NULL;
}

const struct task *task_of(const struct model_spec *spec)
{
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        if (tasks[i]->fits(spec))
            return tasks[i];
    return NULL;
}

enum pd_err task_number(const struct task *t, const char *key, size_t *ret, struct pd_why *why)
{
    for (size_t i = 0; t->numbers[i].key[0]; i++)
        if (!strcmp(t->numbers[i].key[DATA_SCORED_VAL], key) ||
            !strcmp(t->numbers[i].averaged[DATA_SCORED_VAL], key)) {
            *ret = i;
            return PD_OK;
        }
    return pd_fail(why, PD_ERR_INTERNAL, "task %s measures no %s", t->name, key);
}

enum pd_err task_check(const struct task *t, const struct data_set *set, struct pd_why *why)
{
    struct data_batch form;

    data_batch_form(set, DATA_VAL, 1, &form);
    for (size_t i = 0; t->inputs[i].name; i++) {
        const struct data_tensor *has = data_batch_find(&form, t->inputs[i].name);

        if (!has || has->dtype != t->inputs[i].dtype)
            return pd_fail(why, PD_ERR_UNSUPPORTED, "task %s reads '%s' of %s, the data set has %s", t->name,
                           t->inputs[i].name, pk_dtype_name(t->inputs[i].dtype),
                           has ? pk_dtype_name(has->dtype) : "none");
    }
    return PD_OK;
}
