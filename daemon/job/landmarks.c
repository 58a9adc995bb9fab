/* Networks that attend through landmarks, as the Nystromformer does: what a document may ask of one. */
#include "daemon/job/rules.h"

#include <math.h>

#include "daemon/job/internal.h"

static void check_sizes(struct job_ctx *c, const char *name)
{
    const struct job_model *m = &c->g->model;
    const int64_t context = c->g->data.context, length = m->context / (job_ctx_dataset(c)->pairs ? 2 : 1);

    if (!job_ctx_bad(c, "/data/context") && !job_ctx_bad(c, "/model/context") && context != m->context)
        job_ctx_error(
            c, "/data/context",
            "is %lld and model.context %lld; a %s averages over all its positions, so the two must be equal",
            (long long)context, (long long)m->context, name);
    if (!job_ctx_bad(c, "/model/landmarks") && !job_ctx_bad(c, "/model/context") && length > m->landmarks &&
        length % m->landmarks)
        job_ctx_error(c, "/model/landmarks", "must divide %s: %lld landmarks, %lld tokens",
                      job_ctx_dataset(c)->pairs
                          ? "half of model.context, the length of each sequence of a pair"
                          : "model.context",
                      (long long)m->landmarks, (long long)length);
    if (job_ctx_dataset(c)->pairs && m->context % 2 && !job_ctx_bad(c, "/model/context"))
        job_ctx_error(c, "/model/context", "must be even, half for each sequence of a pair, and is %lld",
                      (long long)m->context);
    if (!job_ctx_bad(c, "/model/conv_kernel") && m->conv_kernel % 2 == 0)
        job_ctx_error(c, "/model/conv_kernel", "must be odd, and is %lld", (long long)m->conv_kernel);
}

void job_check_landmarks(struct job_ctx *c)
{
    const struct job_config *g = c->g;
    const struct job_attention *a = &g->attention;
    const char *name = job_arch_name(g->model.arch);

    if (!job_network(g->model.arch)->landmarks) {
        if (job_ctx_dataset(c)->pairs)
            job_ctx_error(c, "/data/dataset", "\"%s\" holds pairs of texts, and a %s reads one text",
                          job_ctx_dataset(c)->name, name);
        return;
    }
    if (!job_ctx_dataset(c)->labels) {
        job_ctx_error(c, "/data/dataset", "\"%s\" has no classes, which a %s needs", job_ctx_dataset(c)->name,
                      name);
        return;
    }
    check_sizes(c, name);
    if (g->model.pinv_start == JOB_PINV_GLOBAL_COLSUM && a->activation != JOB_ACTIVATION_SOFTMAX &&
        a->nystrom_apply != JOB_NYSTROM_APPLY_F1F3 && !job_ctx_bad(c, "/model/pinv_start"))
        job_ctx_error(c, "/model/pinv_start",
                      "global_colsum needs rows that are probabilities, as with softmax; use matrix_abs");
    if (g->model.pinv_start != JOB_PINV_MATRIX_ABS && (g->resources.slots > 1 || g->train.accumulation > 1) &&
        !job_ctx_bad(c, "/model/pinv_start"))
        job_ctx_error(c, "/model/pinv_start",
                      "a value of the whole batch needs one slot and no accumulation");
    if (g->norm.placement != JOB_NORM_S1 && !job_ctx_bad(c, "/norm/placement"))
        job_ctx_error(c, "/norm/placement", "must be S1: a %s supports no other norm placement", name);
    if (a->qk_norm && !job_ctx_bad(c, "/attention/qk_norm"))
        job_ctx_error(c, "/attention/qk_norm", "a %s does not support norms of queries and keys", name);
    if (a->activation == JOB_ACTIVATION_SIMA && !job_ctx_bad(c, "/attention/activation"))
        job_ctx_error(c, "/attention/activation",
                      "a %s does not support sima, which divides by sums over tokens", name);
    if (!isnan(a->init_logit_std) && !job_ctx_bad(c, "/attention/init_logit_std"))
        job_ctx_error(c, "/attention/init_logit_std", "is not supported by a %s", name);
    if (a->n_valid && a->nystrom_apply == JOB_NYSTROM_APPLY_F1F3 && !job_ctx_bad(c, "/attention/n_valid"))
        job_ctx_error(c, "/attention/n_valid",
                      "is not for nystrom_apply F1F3, whose matrices do not all have a factor of N");
    if (a->dropout > 0 && !job_ctx_bad(c, "/attention/dropout"))
        job_ctx_error(c, "/attention/dropout", "a %s has no attention matrix between tokens", name);
    if (a->nystrom_apply == JOB_NYSTROM_APPLY_SEPARATE && a->activation == JOB_ACTIVATION_POLY &&
        a->scale == JOB_SCALE_LEARNED && a->scale_share == JOB_SCALE_SHARE_GLOBAL &&
        !job_ctx_bad(c, "/attention/scale_share"))
        job_ctx_error(c, "/attention/scale_share",
                      "separate factors are shared by a layer or a head: use layer or head");
}
