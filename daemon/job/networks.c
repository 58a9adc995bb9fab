/* The networks that a document may name, each with its presets: one block a network, and
 * its word in NETWORKS. Sizes and names only: the network itself is the worker's (daemon/worker/model/arch).
 */
#include <string.h>

#include "daemon/job/internal.h"

#define NETWORKS(X) X(vit) X(deit) X(swin) X(xcit) X(nystrom) X(gpt) X(pinnsformer) X(maskrcnn)

#define I(p, v)                                                                                              \
    {                                                                                                        \
        "/model/" p, v                                                                                       \
    }
#define SHAPE(w, d, h) I("width", w), I("depth", d), I("heads", h)
#define VIT_CLS(w, d, h) JOB_ITEMS(SHAPE(w, d, h), I("pool", "\"cls\""))
#define GPT(w, d, h, ctx, b) JOB_ITEMS(SHAPE(w, d, h), I("context", ctx), I("bias", b))
/* The published GPT-2: biases, and GELU by tanh. */
#define GPT2(w, d, h)                                                                                        \
    JOB_ITEMS(SHAPE(w, d, h), I("context", "1024"), I("bias", "true"), I("gelu", "\"tanh\""))
#define DNT5                                                                                                 \
    {                                                                                                        \
        "/norm/placement", "\"S5\""                                                                          \
    }
/* Defaults of timm. */
#define TIMM_TRAINING .beta2 = 0.999, .weight_decay = 0.05, .init = "trunc_normal"
#define TIMM .norm_eps = 1e-6, TIMM_TRAINING
#define END                                                                                                  \
    {                                                                                                        \
        .name = NULL                                                                                         \
    }

/* ---- ViT ---- */

static const struct job_preset vit_presets[] = {
    {"vit_micro", 0, 0, JOB_ITEMS(SHAPE("64", "4", "2"), I("pool", "\"mean\"")),
     "ViT 64 x 4 x 2, mean pooling"},
    {"vit_tiny", 16, 4, VIT_CLS("192", "12", "3"), "ViT-Tiny 192 x 12 x 3, class token"},
    {"vit_small", 16, 16, VIT_CLS("384", "12", "6"), "ViT-Small 384 x 12 x 6, class token"},
    {"vit_b", 16, 16, VIT_CLS("768", "12", "12"), "ViT-B 768 x 12 x 12, class token"},
    {"vit_l", 16, 16, VIT_CLS("1024", "24", "16"), "ViT-L 1024 x 24 x 16, class token"},
    {"vit_h", 14, 14, VIT_CLS("1280", "32", "16"), "ViT-H/14 1280 x 32 x 16, class token"},
    {"deit_b", 16, 16, VIT_CLS("768", "12", "12"), "DeiT-B without distillation: the body of ViT-B"},
    {"vdnt_large", 16, 16, JOB_ITEMS(SHAPE("1024", "24", "16"), I("pool", "\"cls\""), DNT5),
     "V-DNT-Large 1024 x 24 x 16, S5"},
    {"vdnt_huge", 14, 14, JOB_ITEMS(SHAPE("1280", "32", "16"), I("pool", "\"cls\""), DNT5),
     "V-DNT-Huge 1280 x 32 x 16, patch 14, S5"},
    END,
};
static const struct job_network vit = {.name = "vit",
                                       .available = true,
                                       .reads = JOB_READS_IMAGES,
                                       .n_for_scale = "patches",
                                       TIMM,
                                       .presets = vit_presets};

/* ---- DeiT ---- */

static const struct job_preset deit_presets[] = {
    {"deit_micro", 0, 0, JOB_ITEMS(SHAPE("64", "4", "2"), I("pool", "\"cls\"")),
     "vit_micro with class and distillation tokens"},
    {"deit_b_distilled", 16, 16, VIT_CLS("768", "12", "12"), "DeiT-B with a distillation token"},
    END,
};
static const struct job_network deit = {.name = "deit",
                                        .available = true,
                                        .reads = JOB_READS_IMAGES,
                                        .distils = true,
                                        .n_for_scale = "patches",
                                        TIMM,
                                        .presets = deit_presets};

/* ---- Swin ---- */

static const struct job_preset swin_presets[] = {
    {"swin_micro", 2, 2, JOB_ITEMS(I("widths", "[32,64]"), I("depths", "[2,2]"), I("head_counts", "[2,4]")),
     "Swin 32-64 x 2-2 x 2-4, patch 2, window 7"},
    {"swin_t", 4, 4,
     JOB_ITEMS(I("widths", "[96,192,384,768]"), I("depths", "[2,2,6,2]"), I("head_counts", "[3,6,12,24]")),
     "Swin-T"},
    {"swin_s", 4, 4,
     JOB_ITEMS(I("widths", "[96,192,384,768]"), I("depths", "[2,2,18,2]"), I("head_counts", "[3,6,12,24]")),
     "Swin-S"},
    {"swin_b", 4, 4,
     JOB_ITEMS(I("widths", "[128,256,512,1024]"), I("depths", "[2,2,18,2]"), I("head_counts", "[4,8,16,32]")),
     "Swin-B"},
    END,
};
static const struct job_network swin = {.name = "swin",
                                        .available = true,
                                        .reads = JOB_READS_IMAGES,
                                        .n_for_scale = "window",
                                        .stages = true,
                                        .windows = true,
                                        .norm_eps = 1e-5,
                                        TIMM_TRAINING,
                                        .presets = swin_presets};

/* ---- XCiT ---- */

static const struct job_preset xcit_presets[] = {
    {"xcit_micro", 4, 4, JOB_ITEMS(SHAPE("64", "4", "4")), "XCiT 64 x 4 x 4, two class layers"},
    {"xcit_s12", 16, 16, JOB_ITEMS(SHAPE("384", "12", "8"), I("layerscale", "1")), "XCiT-S12/16"},
    {"xcit_m24", 16, 16, JOB_ITEMS(SHAPE("512", "24", "8"), I("layerscale", "1e-5")), "XCiT-M24/16"},
    END,
};
static const struct job_network xcit = {.name = "xcit",
                                        .available = true,
                                        .reads = JOB_READS_IMAGES,
                                        .n_for_scale = "patches",
                                        .channel_attention = true,
                                        TIMM,
                                        .presets = xcit_presets};

/* ---- Nystromformer ---- */

static const struct job_preset nystrom_presets[] = {
    {"nystrom_micro", 0, 0,
     JOB_ITEMS(SHAPE("64", "2", "2"), I("mlp_ratio", "2"), I("context", "128"), I("landmarks", "16")),
     "Nystromformer 64 x 2 x 2, 16 landmarks"},
    {"nystrom_lra", 0, 0, JOB_ITEMS(SHAPE("64", "2", "2"), I("mlp_ratio", "2")),
     "Nystromformer of the Long Range Arena"},
    END,
};
static const struct job_network nystrom = {.name = "nystrom",
                                           .available = true,
                                           .reads = JOB_READS_TEXT,
                                           .n_for_scale = "context",
                                           .landmarks = true,
                                           .norm_eps = 1e-5,
                                           .beta2 = 0.999,
                                           .weight_decay = 0,
                                           .init = "kaiming",
                                           .presets = nystrom_presets};

/* ---- GPT-2 ---- */

static const struct job_preset gpt_presets[] = {
    {"gpt_micro", 0, 0, GPT("128", "4", "4", "128", "false"),
     "GPT 128 x 4 x 4, context 128, no biases, tied head"},
    {"gpt_nano", 0, 0, GPT("384", "6", "6", "256", "false"),
     "GPT 384 x 6 x 6, context 256, no biases, tied head"},
    {"gpt2", 0, 0, GPT2("768", "12", "12"), "GPT-2 124M: 768 x 12 x 12, context 1024, biases"},
    {"gpt2_medium", 0, 0, GPT2("1024", "24", "16"), "GPT-2 355M: 1024 x 24 x 16, context 1024, biases"},
    {"gpt2_large", 0, 0, GPT2("1280", "36", "20"), "GPT-2 774M: 1280 x 36 x 20, context 1024, biases"},
    {"gpt2_1436m", 0, 0, GPT2("1536", "48", "24"),
     "GPT-2 1436M, the XL of DNT: 1536 x 48 x 24, context 1024, biases"},
    {"gpt2_xl", 0, 0, GPT2("1600", "48", "25"),
     "GPT-2 1558M, the XL of OpenAI: 1600 x 48 x 25, context 1024, biases"},
    {"ldnt_small", 0, 0, JOB_ITEMS(SHAPE("768", "12", "12"), I("context", "1024"), I("bias", "false"), DNT5),
     "L-DNT-Small 768 x 12 x 12, S5"},
    {"ldnt_large", 0, 0, JOB_ITEMS(SHAPE("1280", "36", "20"), I("context", "1024"), I("bias", "false"), DNT5),
     "L-DNT-Large 1280 x 36 x 20, S5"},
    {"ldnt_xl", 0, 0, JOB_ITEMS(SHAPE("1536", "48", "24"), I("context", "1024"), I("bias", "false"), DNT5),
     "L-DNT-XL 1536 x 48 x 24, S5"},
    END,
};
static const struct job_network gpt = {.name = "gpt",
                                       .available = true,
                                       .reads = JOB_READS_TEXT,
                                       .causal = true,
                                       .n_for_scale = "context",
                                       .norm_eps = 1e-5,
                                       .beta2 = 0.95,
                                       .weight_decay = 0.1,
                                       .clip_norm = 1,
                                       .init = "normal",
                                       .gelu_tanh = true,
                                       .presets = gpt_presets};

/* ---- PINNsformer ---- */

/* Heads and layers are the same; N is the grid's edge, as the polynomial paper counts it. The fans of the packed
 * projection are the reference implementation's. */
#define PINN(w, ratio, head, edge)                                                                           \
    JOB_ITEMS(SHAPE(w, "1", "2"), I("mlp_ratio", ratio), I("head_width", head), I("context", "5"),           \
              {"/data/pde/grid", edge}, {"/attention/n_for_scale", edge}, {"/train/init_fan", "\"fused\""})
static const struct job_preset pinnsformer_presets[] = {
    {"pinn_micro", 0, 0, PINN("16", "4", "128", "21"), "PINNsformer 16 x 1+1 x 2, grid 21 x 21"},
    {"pinnsformer", 0, 0, PINN("32", "8", "512", "51"), "PINNsformer 32 x 1+1 x 2, grid 51 x 51"},
    END,
    END,
};
static const struct job_network pinnsformer = {.name = "pinnsformer",
                                               .available = true,
                                               .reads = JOB_READS_POINTS,
                                               .n_for_scale = "context",
                                               .equations = true,
                                               .norm_eps = 1e-6,
                                               .beta2 = 0.999,
                                               .weight_decay = 0,
                                               .init = "xavier",
                                               .presets = pinnsformer_presets};

/* ---- Mask R-CNN on XCiT ---- */

static const struct job_preset maskrcnn_presets[] = {
    {"maskrcnn_micro", 4, 4, JOB_ITEMS(SHAPE("64", "4", "4")),
     "Mask R-CNN on xcit_micro, canvases of 64 x 64"},
    {"maskrcnn_xcit_s12", 16, 16, JOB_ITEMS(SHAPE("384", "12", "8"), I("layerscale", "1")),
     "Mask R-CNN on XCiT-S12/16"},
    END,
};
static const struct job_network maskrcnn = {.name = "maskrcnn",
                                            .reads = JOB_READS_IMAGES,
                                            .n_for_scale = "patches",
                                            .channel_attention = true,
                                            TIMM,
                                            .presets = maskrcnn_presets};

/* ---- the table ---- */

#define ROW(name) &name,
#define NAME(name) #name,
static const struct job_network *const networks[] = {NETWORKS(ROW)};
static const char *const names[] = {NETWORKS(NAME)};
#define COUNT (sizeof networks / sizeof *networks)
const struct job_names job_names_arch = {COUNT, names};

const struct job_network *job_network(int arch)
{
    return networks[(unsigned)arch < COUNT ? arch : 0];
}

const char *job_arch_name(int arch)
{
    return (unsigned)arch < COUNT ? names[arch] : NULL;
}

bool job_network_runs(unsigned arch)
{
    return arch < COUNT && networks[arch]->available;
}

const struct job_preset *job_preset_at(size_t i, int *ret_arch)
{
    for (size_t n = 0; n < COUNT; n++)
        for (const struct job_preset *p = networks[n]->presets; p->name; p++)
            if (i-- == 0) {
                *ret_arch = (int)n;
                return p;
            }
    return NULL;
}
