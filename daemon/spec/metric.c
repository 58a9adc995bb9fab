/* Which metric keys a run writes (daemon/train/train.h describes them): for the name of a sweep's metric. */
#include <stdio.h>
#include <string.h>

#include "daemon/spec/internal.h"

/* The series of a kind of run, without those of layers. */
static size_t plain_keys(const struct spec_config *g, const char *out[32])
{
    static const char *const always[] = {"loss/train", "lr",        "grad/norm",       "loss/val",
                                         "step_ms",    "data_wait", "sys/flops",       "sys/cpu",
                                         "mem/peak",   "mem/arena", "steps_per_epoch", "nonfinite"};
    const struct spec_dataset_info *info = spec_dataset_info((enum spec_dataset)g->data.dataset);
    size_t n = sizeof always / sizeof *always;

    memcpy(out, always, sizeof always);
    out[n++] = info->text ? "ppl/val" : "acc/val";
    out[n++] = info->text ? "tokens_per_s" : "samples_per_s";
    if (!info->text)
        out[n++] = "acc/train";
    if (info->image && !info->generated)
        out[n++] = "data_bad";
    if (g->train.ema > 0) {
        out[n++] = "loss/val_ema";
        out[n++] = info->text ? "ppl/val_ema" : "acc/val_ema";
    }
    if (g->resources.slots > 1)
        out[n++] = "comm/wait";
    if (g->resources.device == SPEC_DEVICE_CUDA) {
        out[n++] = "sys/utilisation";
        out[n++] = "sys/peak_flops";
    }
    return n;
}

/* "/l", or "/l/h" where there are heads. */
static bool has_place(const struct spec_config *g, const char *text, bool heads)
{
    long long layer = 0, head = 1;
    char again[64];
    int n = sscanf(text, "/%lld/%lld", &layer, &head);

    snprintf(again, sizeof again, n > 1 ? "/%lld/%lld" : "/%lld", layer, head);
    return n >= 1 && (n == 1 || heads) && !strcmp(again, text) && layer >= 1 && layer <= g->model.depth &&
           head >= 1 && head <= g->model.heads;
}

bool spec_metric_known(const struct spec_config *g, const char *key)
{
    static const char *const probed[] = {"attn/fro", "attn/jac_fro", "attn/jac_q_fro", "logit/std",
                                         "logit/max"};
    const char *keys[32];
    size_t n = plain_keys(g, keys);

    for (size_t i = 0; i < n; i++) {
        if (!strcmp(keys[i], key))
            return true;
    }
    if (g->diagnostics.every < 1)
        return false;
    for (size_t i = 0; i < sizeof probed / sizeof *probed; i++) {
        size_t len = strlen(probed[i]);

        if (!strncmp(key, probed[i], len) && has_place(g, key + len, true))
            return !g->attention.qk_norm || strcmp(probed[i], "attn/jac_q_fro") != 0;
    }
    return g->attention.activation == SPEC_ACTIVATION_POLY && g->attention.scale == SPEC_SCALE_LEARNED &&
           !strncmp(key, "scale/c", 7) &&
           has_place(g, key + 7, g->attention.scale_share == SPEC_SCALE_SHARE_HEAD);
}

bool spec_config_writes(const struct spec_config *g, const char *key)
{
    return spec_metric_known(g, key) || !strncmp(key, "system/", 7); /* of its devices */
}

const char *spec_config_best_metric(const struct spec_config *g, bool *ret_maximise)
{
    bool averages = g->train.ema > 0 && g->train.ema_serve;

    *ret_maximise = spec_dataset_info((enum spec_dataset)g->data.dataset)->image;
    if (averages)
        return *ret_maximise ? "acc/val_ema" : "loss/val_ema";
    return *ret_maximise ? "acc/val" : "loss/val";
}

void spec_metric_warn(struct spec_report *report, const struct spec_config *g, const char *key)
{
    const char *keys[32];
    char near[64];
    size_t n = plain_keys(g, keys);
    bool text = spec_dataset_info((enum spec_dataset)g->data.dataset)->text;

    spec_report_warning(
        report, "#/sweep/metric",
        "no run writes \"%.100s\", so none ranks before another%s; an evaluation writes loss/val and %s", key,
        pd_did_you_mean(near, sizeof near, key, keys, n), text ? "ppl/val" : "acc/val");
}
