/* Presets, recipes and data sets: what a document may call by name. */
#include <stddef.h>

#include "daemon/spec/internal.h"

/* ---- Presets (job.md 5, dnt.md 4) ---- */

#define I(p, v)                                                                                              \
    {                                                                                                        \
        "/model/" p, v                                                                                       \
    }
#define ITEMS(...)                                                                                           \
    (const struct spec_item[])                                                                               \
    {                                                                                                        \
        __VA_ARGS__,                                                                                         \
        {                                                                                                    \
            NULL, NULL                                                                                       \
        }                                                                                                    \
    }
#define SHAPE(w, d, h) I("width", w), I("depth", d), I("heads", h)
#define VIT_CLS(w, d, h) ITEMS(SHAPE(w, d, h), I("pool", "\"cls\""))
#define GPT(w, d, h, ctx, b) ITEMS(SHAPE(w, d, h), I("context", ctx), I("bias", b))
/* The published GPT-2: biases, and GELU by tanh. */
#define GPT2(w, d, h) ITEMS(SHAPE(w, d, h), I("context", "1024"), I("bias", "true"), I("gelu", "\"tanh\""))
#define DNT5                                                                                                 \
    {                                                                                                        \
        "/norm/placement", "\"S5\""                                                                          \
    }

const struct spec_preset spec_presets[] = {
    {"vit_micro", SPEC_ARCH_VIT, 0, 0, ITEMS(SHAPE("64", "4", "2"), I("pool", "\"mean\"")),
     "ViT 64 x 4 x 2, mean pooling"},
    {"deit_micro", SPEC_ARCH_DEIT, 0, 0, ITEMS(SHAPE("64", "4", "2"), I("pool", "\"cls\"")),
     "vit_micro with class and distillation tokens"},
    {"swin_micro", SPEC_ARCH_SWIN, 2, 2,
     ITEMS(I("widths", "[32,64]"), I("depths", "[2,2]"), I("head_counts", "[2,4]")),
     "Swin 32-64 x 2-2 x 2-4, patch 2, window 7"},
    {"xcit_micro", SPEC_ARCH_XCIT, 4, 4, ITEMS(SHAPE("64", "4", "4")), "XCiT 64 x 4 x 4, two class layers"},
    {"nystrom_micro", SPEC_ARCH_NYSTROM, 0, 0,
     ITEMS(SHAPE("64", "2", "2"), I("mlp_ratio", "2"), I("context", "128"), I("landmarks", "16")),
     "Nystromformer 64 x 2 x 2, 16 landmarks"},
    {"gpt_micro", SPEC_ARCH_GPT, 0, 0, GPT("128", "4", "4", "128", "false"),
     "GPT 128 x 4 x 4, context 128, no biases, tied head"},
    {"gpt_nano", SPEC_ARCH_GPT, 0, 0, GPT("384", "6", "6", "256", "false"),
     "GPT 384 x 6 x 6, context 256, no biases, tied head"},
    {"pinn_micro", SPEC_ARCH_PINNSFORMER, 0, 0, ITEMS(SHAPE("16", "1", "2")),
     "PINNsformer 16 x 1+1 x 2, grid 21 x 21"},
    {"maskrcnn_micro", SPEC_ARCH_MASKRCNN, 4, 4, ITEMS(SHAPE("64", "4", "4")),
     "Mask R-CNN on xcit_micro, canvases of 64 x 64"},
    {"vit_tiny", SPEC_ARCH_VIT, 16, 4, VIT_CLS("192", "12", "3"), "ViT-Tiny 192 x 12 x 3, class token"},
    {"vit_small", SPEC_ARCH_VIT, 16, 16, VIT_CLS("384", "12", "6"), "ViT-Small 384 x 12 x 6, class token"},
    {"vit_b", SPEC_ARCH_VIT, 16, 16, VIT_CLS("768", "12", "12"), "ViT-B 768 x 12 x 12, class token"},
    {"vit_l", SPEC_ARCH_VIT, 16, 16, VIT_CLS("1024", "24", "16"), "ViT-L 1024 x 24 x 16, class token"},
    {"vit_h", SPEC_ARCH_VIT, 14, 14, VIT_CLS("1280", "32", "16"), "ViT-H/14 1280 x 32 x 16, class token"},
    {"deit_b", SPEC_ARCH_VIT, 16, 16, VIT_CLS("768", "12", "12"),
     "DeiT-B without distillation: the body of ViT-B"},
    {"deit_b_distilled", SPEC_ARCH_DEIT, 16, 16, VIT_CLS("768", "12", "12"),
     "DeiT-B with a distillation token"},
    {"swin_b", SPEC_ARCH_SWIN, 4, 4,
     ITEMS(I("widths", "[128,256,512,1024]"), I("depths", "[2,2,18,2]"), I("head_counts", "[4,8,16,32]")),
     "Swin-B"},
    {"xcit_s12", SPEC_ARCH_XCIT, 16, 16, ITEMS(SHAPE("384", "12", "8"), I("layerscale", "1")), "XCiT-S12/16"},
    {"xcit_m24", SPEC_ARCH_XCIT, 16, 16, ITEMS(SHAPE("512", "24", "8"), I("layerscale", "1e-5")),
     "XCiT-M24/16"},
    {"nystrom_lra", SPEC_ARCH_NYSTROM, 0, 0, ITEMS(SHAPE("64", "2", "2"), I("mlp_ratio", "2")),
     "Nystromformer of the Long Range Arena"},
    {"pinnsformer", SPEC_ARCH_PINNSFORMER, 0, 0, ITEMS(SHAPE("32", "1", "2")),
     "PINNsformer 32 x 1+1 x 2, grid 51 x 51"},
    {"maskrcnn_xcit_s12", SPEC_ARCH_MASKRCNN, 16, 16, ITEMS(SHAPE("384", "12", "8"), I("layerscale", "1")),
     "Mask R-CNN on XCiT-S12/16"},
    {"gpt2", SPEC_ARCH_GPT, 0, 0, GPT2("768", "12", "12"), "GPT-2 124M: 768 x 12 x 12, context 1024, biases"},
    {"gpt2_medium", SPEC_ARCH_GPT, 0, 0, GPT2("1024", "24", "16"),
     "GPT-2 355M: 1024 x 24 x 16, context 1024, biases"},
    {"gpt2_large", SPEC_ARCH_GPT, 0, 0, GPT2("1280", "36", "20"),
     "GPT-2 774M: 1280 x 36 x 20, context 1024, biases"},
    {"gpt2_1436m", SPEC_ARCH_GPT, 0, 0, GPT2("1536", "48", "24"),
     "GPT-2 1436M, the XL of DNT: 1536 x 48 x 24, context 1024, biases"},
    {"gpt2_xl", SPEC_ARCH_GPT, 0, 0, GPT2("1600", "48", "25"),
     "GPT-2 1558M, the XL of OpenAI: 1600 x 48 x 25, context 1024, biases"},
    {"ldnt_small", SPEC_ARCH_GPT, 0, 0,
     ITEMS(SHAPE("768", "12", "12"), I("context", "1024"), I("bias", "false"), DNT5),
     "L-DNT-Small 768 x 12 x 12, S5"},
    {"ldnt_large", SPEC_ARCH_GPT, 0, 0,
     ITEMS(SHAPE("1280", "36", "20"), I("context", "1024"), I("bias", "false"), DNT5),
     "L-DNT-Large 1280 x 36 x 20, S5"},
    {"ldnt_xl", SPEC_ARCH_GPT, 0, 0,
     ITEMS(SHAPE("1536", "48", "24"), I("context", "1024"), I("bias", "false"), DNT5),
     "L-DNT-XL 1536 x 48 x 24, S5"},
    {"vdnt_large", SPEC_ARCH_VIT, 16, 16, ITEMS(SHAPE("1024", "24", "16"), I("pool", "\"cls\""), DNT5),
     "V-DNT-Large 1024 x 24 x 16, S5"},
    {"vdnt_huge", SPEC_ARCH_VIT, 14, 14, ITEMS(SHAPE("1280", "32", "16"), I("pool", "\"cls\""), DNT5),
     "V-DNT-Huge 1280 x 32 x 16, patch 14, S5"},
};
const size_t spec_preset_count = sizeof spec_presets / sizeof *spec_presets;

/* ---- Recipes (recipes.md): data, training and attention defaults of reference projects ----
 *
 * What a recipe asks for is checked like any value: what this build cannot do is refused with the
 * name of the recipe, unless the document says otherwise. */

#define T(p, v)                                                                                              \
    {                                                                                                        \
        "/train/" p, v                                                                                       \
    }
#define D(p, v)                                                                                              \
    {                                                                                                        \
        "/data/" p, v                                                                                        \
    }

/* The part that DeiT, Swin and XCiT share: the heavy augmentation. */
#define HEAVY                                                                                                \
    D("dataset", "\"imagenet1k\""), D("augment/crop", "\"rrc\""), D("augment/flip", "0.5"),                  \
        D("augment/randaugment", "{\"n\":2,\"m\":9,\"std\":0.5,\"inc\":true}"), D("augment/mixup", "0.8"),   \
        D("augment/cutmix", "1"), D("augment/erasing", "0.25"), D("augment/eval_crop", "0.875"),             \
        T("label_smoothing", "0.1"), T("optimizer/weight_decay", "0.05"), T("batch", "1024"),                \
        T("precision", "\"bf16\"")

const struct spec_recipe spec_recipes[] = {
    {"vit_b",
     ITEMS(HEAVY, T("epochs", "300"), T("optimizer/lr", "0.001"), T("schedule/warmup_epochs", "5"),
           T("schedule/warmup_lr", "1e-6"), T("schedule/min_lr", "1e-5"), T("schedule/shifted", "false"),
           T("schedule/per", "\"epoch\""), T("drop_path", "0.1"), T("ema", "0.99996"),
           D("augment/repeats", "3")),
     "ViT-B/16 on ImageNet-1k, DeiT style"},
    {"vit_b_augreg",
     ITEMS(D("dataset", "\"imagenet1k\""), D("augment/crop", "\"rrc\""), D("augment/flip", "0.5"),
           D("augment/eval_crop", "0.875"), T("epochs", "300"), T("batch", "4096"),
           T("optimizer/lr", "0.001"), T("optimizer/weight_decay", "0.1"),
           D("augment/interpolation", "\"bilinear\""), T("schedule/warmup_steps", "10000"),
           T("schedule/min_lr", "0"), T("clip_norm", "1"), T("precision", "\"bf16\"")),
     "ViT-B/16 on ImageNet-1k, AugReg style"},
    {"deit_b",
     ITEMS(HEAVY, T("epochs", "300"), T("optimizer/lr", "0.001"), T("schedule/warmup_epochs", "5"),
           T("schedule/warmup_lr", "1e-6"), T("schedule/min_lr", "1e-5"), T("schedule/shifted", "false"),
           T("schedule/per", "\"epoch\""), T("drop_path", "0.1"), T("ema", "0.99996"),
           D("augment/repeats", "3")),
     "DeiT-B/16 on ImageNet-1k"},
    {"swin_b",
     ITEMS(HEAVY, T("epochs", "300"), T("optimizer/lr", "0.001"), T("schedule/warmup_epochs", "20"),
           T("schedule/warmup_lr", "1e-6"), T("schedule/min_lr", "1e-5"), T("clip_norm", "5"),
           T("drop_path", "0.5")),
     "Swin-B on ImageNet-1k"},
    {"xcit_m24",
     ITEMS(HEAVY, T("epochs", "400"), T("optimizer/lr", "0.001"), T("schedule/warmup_epochs", "5"),
           T("schedule/warmup_lr", "1e-6"), T("schedule/min_lr", "1e-5"), T("schedule/shifted", "false"),
           T("schedule/per", "\"epoch\""), T("drop_path", "0.15"), T("drop_path_rule", "\"same\""),
           T("optimizer/decay_temperature", "true"), T("ema", "0.99996"), D("augment/repeats", "3")),
     "XCiT-M24/16 on ImageNet-1k"},
    {"vit_tiny_tin",
     ITEMS(D("dataset", "\"tiny_imagenet\""), D("augment/crop", "\"rrc\""), D("augment/rrc/scale", "[0.5,1]"),
           D("augment/flip", "0.5"), T("epochs", "200"), T("batch", "512"), T("optimizer/lr", "0.0005"),
           T("optimizer/weight_decay", "0.05"), T("schedule/warmup_epochs", "10"),
           T("schedule/min_lr", "1e-5"), T("label_smoothing", "0.1")),
     "ViT-Tiny on Tiny-ImageNet"},
    {"gpt2_owt",
     ITEMS(D("dataset", "\"openwebtext\""), D("tokenizer", "\"gpt2_bpe\""), T("steps", "600000"),
           T("batch", "480"), T("optimizer/lr", "0.0006"), T("optimizer/betas", "[0.9,0.95]"),
           T("optimizer/weight_decay", "0.1"), T("schedule/warmup_steps", "2000"),
           T("schedule/min_lr", "6e-5"), T("clip_norm", "1"), T("init", "\"normal\""),
           T("precision", "\"bf16\"")),
     "GPT-2 124M on OpenWebText, nanoGPT's settings"},
    {"gpt2_wt103",
     ITEMS(D("dataset", "\"wikitext103\""), D("tokenizer", "\"gpt2_bpe\""), D("eval", "[\"ptb\",\"pg19\"]"),
           T("epochs", "20"), T("batch", "64"), T("optimizer/lr", "0.0006"),
           T("optimizer/betas", "[0.9,0.95]"), T("optimizer/weight_decay", "0.1"),
           T("schedule/warmup_steps", "2000"), T("schedule/min_lr", "6e-5"), T("clip_norm", "1"),
           T("dropout", "0.1"), T("init", "\"normal\""), T("precision", "\"bf16\"")),
     "GPT-2 on WikiText-103"},
    {"deit_b_distilled", NULL, "DeiT-B/16 with a teacher"},
    {"xcit_s12", NULL, "XCiT-S12/16 on ImageNet-1k"},
    {"lra_listops", NULL, "Nystromformer on ListOps"},
    {"lra_text", NULL, "Nystromformer on Text"},
    {"lra_retrieval", NULL, "Nystromformer on Retrieval"},
    {"lra_image", NULL, "Nystromformer on Image"},
    {"lra_pathfinder", NULL, "Nystromformer on Pathfinder"},
    {"pinn_convection", NULL, "PINNsformer on the convection equation"},
    {"pinn_reaction", NULL, "PINNsformer on the reaction equation"},
    {"coco_xcit_s12", NULL, "Mask R-CNN with XCiT-S12/16 on COCO"},
    {"ldnt",
     ITEMS(D("dataset", "\"openwebtext\""), D("tokenizer", "\"gpt2_bpe\""), T("steps", "200000"),
           T("batch", "480"), T("optimizer/lr", "0.0006"), T("optimizer/betas", "[0.9,0.95]"),
           T("optimizer/weight_decay", "0.1"), T("schedule/warmup_steps", "2000"),
           T("schedule/min_lr", "6e-5"), T("clip_norm", "1"), T("init", "\"xavier\""),
           T("precision", "\"bf16\"")),
     "L-DNT on OpenWebText with AdamW"},
    {"vdnt",
     ITEMS(D("dataset", "\"imagenet1k\""), D("augment/crop", "\"rrc\""), D("augment/flip", "0.5"),
           D("augment/randaugment", "{\"n\":2,\"m\":9,\"std\":0.5,\"inc\":true}"), D("augment/mixup", "0.8"),
           D("augment/cutmix", "1"), D("augment/eval_crop", "0.875"), T("epochs", "150"), T("batch", "1024"),
           T("optimizer/lr", "0.001"), T("optimizer/betas", "[0.9,0.99]"), T("optimizer/weight_decay", "0.1"),
           T("schedule/warmup_epochs", "60"), T("schedule/min_lr", "1e-8"), T("label_smoothing", "0.1"),
           T("drop_path", "0.1"), T("init", "\"trunc_xavier\""), T("precision", "\"bf16\"")),
     "V-DNT on ImageNet-1k with AdamW"},
};
const size_t spec_recipe_count = sizeof spec_recipes / sizeof *spec_recipes;

/* ---- Data sets ---- */

#define FOLDERS                                                                                              \
    "a folder, .tar or .tar.gz: train/CLASS/*.jpg|.jpeg|.png and val/CLASS/... (valid, validation and, for " \
    "want of "                                                                                               \
    "those, test too), or CLASS/... alone with data.split fraction or count"
#define PARTS                                                                                                \
    "a folder with a training file (train.txt, ptb.train.txt, wiki.train.tokens, wiki.train.raw or "         \
    "train.tokens) and a "                                                                                   \
    "validation file (the same with valid, or val.txt, validation.txt), plain or with .gz behind"
#define IMAGES .image = true
#define TOKENS .text = true

static const struct spec_dataset_info datasets[] = {
    [SPEC_DATASET_MNIST] =
        {.name = "mnist",
         .available = true,
         IMAGES,
         .side = {28, 28},
         .channels = 1,
         .classes = 10,
         .layout =
             "a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
             "t10k-labels-idx1-ubyte, plain or with .gz behind"},
    [SPEC_DATASET_DIGITS_GEN] = {.name = "digits_gen",
                                 .available = true,
                                 IMAGES,
                                 .generated = true,
                                 .side = {28, 28},
                                 .channels = 1,
                                 .classes = 10,
                                 .train = 10000,
                                 .test = 2000},
    [SPEC_DATASET_CIFAR10] = {.name = "cifar10",
                              .available = true,
                              IMAGES,
                              .side = {32, 32},
                              .channels = 3,
                              .classes = 10,
                              .layout = "a folder with data_batch*.bin and test_batch*.bin (plain or .gz), "
                                        "or one such file; names of the classes "
                                        "from batches.meta.txt beside them"},
    [SPEC_DATASET_IMAGENET1K] = {.name = "imagenet1k",
                                 .available = true,
                                 IMAGES,
                                 .side = {224, 224},
                                 .channels = 3,
                                 .classes = 1000,
                                 .layout = FOLDERS},
    [SPEC_DATASET_TINY_IMAGENET] = {.name = "tiny_imagenet",
                                    .available = true,
                                    IMAGES,
                                    .side = {64, 64},
                                    .channels = 3,
                                    .classes = 200,
                                    .layout = FOLDERS "; val/images with val_annotations.txt is understood"},
    [SPEC_DATASET_IMAGE_FOLDER] = {.name = "image_folder",
                                   .available = true,
                                   IMAGES,
                                   .side = {224, 224},
                                   .channels = 3,
                                   .layout = FOLDERS},
    [SPEC_DATASET_COCO] = {.name = "coco", .channels = 3, .classes = 80},
    [SPEC_DATASET_DIGIT_CANVAS] =
        {.name = "digit_canvas", .generated = true, .side = {64, 64}, .channels = 1, .classes = 10},
    [SPEC_DATASET_LISTOPS] = {.name = "listops", .classes = 10},
    [SPEC_DATASET_LISTOPS_GEN] = {.name = "listops_gen", .generated = true, .classes = 10},
    [SPEC_DATASET_IMDB] = {.name = "imdb", .classes = 2},
    [SPEC_DATASET_AAN] = {.name = "aan", .classes = 2},
    [SPEC_DATASET_PATHFINDER_GEN] = {.name = "pathfinder_gen", .generated = true, .classes = 2},
    [SPEC_DATASET_LRA_IMAGE] = {.name = "lra_image", .classes = 10},
    [SPEC_DATASET_TEXT] = {.name = "text",
                           .available = true,
                           TOKENS,
                           .layout = "one file of text, plain or gzip'd"},
    [SPEC_DATASET_PTB] = {.name = "ptb", .available = true, TOKENS, .layout = PARTS},
    [SPEC_DATASET_WIKITEXT2] = {.name = "wikitext2", .available = true, TOKENS, .layout = PARTS},
    [SPEC_DATASET_WIKITEXT103] = {.name = "wikitext103", .available = true, TOKENS, .layout = PARTS},
    [SPEC_DATASET_PG19] = {.name = "pg19", TOKENS},
    [SPEC_DATASET_OPENWEBTEXT] = {.name = "openwebtext", TOKENS},
    [SPEC_DATASET_PDE_CONVECTION] = {.name = "pde_convection", .generated = true},
    [SPEC_DATASET_PDE_REACTION] = {.name = "pde_reaction", .generated = true},
};
const size_t spec_dataset_count = sizeof datasets / sizeof *datasets;

const struct spec_dataset_info *spec_dataset_info(enum spec_dataset dataset)
{
    return (size_t)dataset < spec_dataset_count ? &datasets[dataset] : NULL;
}
