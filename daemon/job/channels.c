/* Networks that attend between channels, as XCiT does: what a document may ask of one. */
#include "daemon/job/rules.h"

#include <math.h>

#include "daemon/job/internal.h"

#define PATCH_MOST 64

/* The stem halves the image until a pixel is a patch, and doubles its width each time. */
static void check_stem(struct job_ctx *c, const char *name)
{
    const struct job_model *m = &c->g->model;
    const int64_t patch = m->patch[0];

    if (job_ctx_bad(c, "/model/patch") || !patch)
        return;
    if (patch != m->patch[1] || patch < 2 || patch > PATCH_MOST || patch & (patch - 1))
        job_ctx_error(c, "/model/patch",
                      "is %lldx%lld; the stem of a %s halves the image: 2, 4, 8, 16, 32 or 64",
                      (long long)patch, (long long)m->patch[1], name);
    else if (!job_ctx_bad(c, "/model/width") && m->width % (patch / 2))
        job_ctx_error(c, "/model/width", "is %lld; with patch %lld the stem of a %s needs a multiple of %lld",
                      (long long)m->width, (long long)patch, name, (long long)(patch / 2));
}

void job_check_channels(struct job_ctx *c)
{
    const struct job_config *g = c->g;
    const struct job_attention *a = &g->attention;
    const char *name = job_arch_name(g->model.arch);

    if (!job_network(g->model.arch)->channel_attention) {
        if (g->model.pos == JOB_POS_FOURIER && !job_ctx_bad(c, "/model/pos"))
            job_ctx_error(c, "/model/pos", "a %s has no fourier embedding; use learned or none", name);
        return;
    }
    check_stem(c, name);
    if (g->model.pos == JOB_POS_LEARNED && !job_ctx_bad(c, "/model/pos"))
        job_ctx_error(c, "/model/pos", "a %s has no learned position embedding; use fourier or none", name);
    if (g->model.pool != JOB_POOL_CLS && !job_ctx_bad(c, "/model/pool"))
        job_ctx_error(c, "/model/pool", "must be cls: the head of a %s reads its class token", name);
    if (g->norm.placement != JOB_NORM_S1 && !job_ctx_bad(c, "/norm/placement"))
        job_ctx_error(c, "/norm/placement", "must be S1: a %s supports no other norm placement", name);
    if (a->qk_norm && !job_ctx_bad(c, "/attention/qk_norm"))
        job_ctx_error(c, "/attention/qk_norm", "a %s already normalises queries and keys over tokens", name);
    if (a->activation == JOB_ACTIVATION_SIMA && !job_ctx_bad(c, "/attention/activation"))
        job_ctx_error(c, "/attention/activation",
                      "sima divides by sums over tokens, but a %s normalises over tokens itself", name);
    if (!isnan(a->init_logit_std) && !job_ctx_bad(c, "/attention/init_logit_std"))
        job_ctx_error(c, "/attention/init_logit_std",
                      "has no effect on the logits of a %s, which are cosines", name);
    if (a->activation == JOB_ACTIVATION_POLY && a->scale == JOB_SCALE_LEARNED &&
        a->scale_share == JOB_SCALE_SHARE_GLOBAL && !job_ctx_bad(c, "/attention/scale_share"))
        job_ctx_error(c, "/attention/scale_share",
                      "a %s has two types of attention, which cannot share a scale; use layer or head", name);
    if (a->form == JOB_FORM_LINEAR && !job_ctx_bad(c, "/attention/form"))
        job_ctx_error(c, "/attention/form", "a %s already takes time linear in the tokens; use auto", name);
}
