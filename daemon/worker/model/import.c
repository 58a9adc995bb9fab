/* daemon/worker/model/import.c: the network of a file that another program wrote. */
#include <limits.h>
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/worker/data/data.h"
#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/model/arch/arch.h"

struct tensors {
    const struct data_st_tensor *(*find)(void *user, const char *name);
    void *user;
};

/* 0: there is no such tensor, or no such axis. */
static int32_t extent(const struct tensors *t, const struct model_arch *arch, const struct model_extent *e)
{
    const size_t skip = arch->prefix ? strlen(arch->prefix) : 0;
    const struct data_st_tensor *found;

    if (!e->tensor)
        return 0;
    found = t->find(t->user, e->tensor);
    if (!found && skip && !strncmp(e->tensor, arch->prefix, skip))
        found = t->find(t->user, e->tensor + skip);
    if (!found &&
        arch->respelt.marker) { /* Swin's marker is the last layer's weight, which gives the classes */
        char name[MODEL_TENSOR_NAME];

        (void)arch->respelt.own_name(arch->respelt.marker, name, sizeof name);
        found = !strcmp(name, e->tensor) ? t->find(t->user, arch->respelt.marker) : NULL;
    }
    return found && e->axis < found->rank && found->dim[e->axis] <= INT32_MAX ? (int32_t)found->dim[e->axis]
                                                                              : 0;
}

enum pd_err model_spec_from_tensors(const struct job_config *c, const float *mean, const float *std,
                                    const struct data_st_tensor *(*find)(void *user, const char *name),
                                    void *user, struct model_spec *ret, struct pd_why *why)
{
    const struct model_arch *arch = model_arch_find(job_arch_name(c->model.arch));
    const struct tensors t = {find, user};
    struct data_info info = {.context = (int32_t)c->model.context};

    if (!arch)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "#/model/arch: %s is not available in this build",
                       job_arch_name(c->model.arch));
    model_fit_data(arch, &info);
    info.classes = extent(&t, arch, &arch->classes);
    info.vocab = extent(&t, arch, &arch->vocab);
    if (arch->class_id && c->model.pool == JOB_POOL_CLS && info.vocab > 0)
        info.vocab--; /* the file's table has the class token, of which data know nothing */
    info.channels = extent(&t, arch, &arch->channels);
    info.height = (int32_t)c->data.image_size[0];
    info.width = (int32_t)c->data.image_size[1];
    if (info.kind == DATA_POINTS) {
        info.equation = model_equation(c);
        info.coefficient = c->data.coefficient;
        info.step = c->data.pde_step;
        for (int i = 0; i < 2; i++) {
            info.grid[i] = (int32_t)c->data.grid[i];
            info.test_grid[i] = (int32_t)c->data.test_grid[i];
        }
    }
    data_normalisation(info.channels, info.mean, info.std);
    for (int i = 0; mean && i < info.channels && i < 3; i++) {
        info.mean[i] = mean[i];
        info.std[i] = std[i];
    }
    return model_spec_from_config(c, &info, ret, why);
}
