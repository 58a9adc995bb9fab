/* Recipes and data sets: what a document may call by name. */
#include <stddef.h>
#include <string.h>

#include "daemon/job/internal.h"
#include "kernels/base/text.h"

/* ---- Recipes: data, training and attention defaults of reference projects ----
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

/* What M24 and S12 share; images are evaluated whole. */
#define XCIT                                                                                                 \
    D("augment/eval_crop", "1"), HEAVY, T("epochs", "400"), T("optimizer/lr", "0.001"),                      \
        T("schedule/warmup_epochs", "5"), T("schedule/warmup_lr", "1e-6"), T("schedule/min_lr", "1e-5"),     \
        T("schedule/shifted", "false"), T("schedule/per", "\"epoch\""), T("drop_path_rule", "\"same\""),     \
        T("optimizer/decay_temperature", "true"), T("ema", "0.99996"), D("augment/repeats", "3")

/* The reference implementation's: L-BFGS at rate 1, 500 outer steps. */
#define PINN                                                                                                 \
    T("optimizer/name", "\"lbfgs\""), T("steps", "500"), T("schedule/name", "\"constant\""),                 \
        T("schedule/warmup_steps", "0")

/* The Long Range Arena of the Nystromformer's authors, whose schedule moves beta1 too. */
#define LRA(set, batch_, warmup, steps_, every)                                                              \
    D("dataset", "\"" set "\""), T("batch", batch_), T("steps", steps_), T("eval_every", every),             \
        T("optimizer/lr", "0.0001"), T("optimizer/betas", "[0.9,0.999]"), T("optimizer/eps", "1e-6"),        \
        T("optimizer/weight_decay", "0"), T("schedule/name", "\"one_cycle\""),                               \
        T("schedule/warmup_steps", warmup), T("schedule/beta1", "[0.95,0.85]"), T("dropout", "0.1")

const struct job_recipe job_recipes[] = {
    {"vit_b",
     JOB_ITEMS(HEAVY, T("epochs", "300"), T("optimizer/lr", "0.001"), T("schedule/warmup_epochs", "5"),
               T("schedule/warmup_lr", "1e-6"), T("schedule/min_lr", "1e-5"), T("schedule/shifted", "false"),
               T("schedule/per", "\"epoch\""), T("drop_path", "0.1"), T("ema", "0.99996"),
               D("augment/repeats", "3")),
     "ViT-B/16 on ImageNet-1k, DeiT style"},
    {"vit_b_augreg",
     JOB_ITEMS(D("dataset", "\"imagenet1k\""), D("augment/crop", "\"rrc\""), D("augment/flip", "0.5"),
               D("augment/eval_crop", "0.875"), T("epochs", "300"), T("batch", "4096"),
               T("optimizer/lr", "0.001"), T("optimizer/weight_decay", "0.1"),
               D("augment/interpolation", "\"bilinear\""), T("schedule/warmup_steps", "10000"),
               T("schedule/min_lr", "0"), T("clip_norm", "1"), T("precision", "\"bf16\"")),
     "ViT-B/16 on ImageNet-1k, AugReg style"},
    {"deit_b",
     JOB_ITEMS(HEAVY, T("epochs", "300"), T("optimizer/lr", "0.001"), T("schedule/warmup_epochs", "5"),
               T("schedule/warmup_lr", "1e-6"), T("schedule/min_lr", "1e-5"), T("schedule/shifted", "false"),
               T("schedule/per", "\"epoch\""), T("drop_path", "0.1"), T("ema", "0.99996"),
               D("augment/repeats", "3")),
     "DeiT-B/16 on ImageNet-1k"},
    {"swin_b",
     JOB_ITEMS(HEAVY, T("epochs", "300"), T("optimizer/lr", "0.001"), T("schedule/warmup_epochs", "20"),
               T("schedule/warmup_lr", "1e-6"), T("schedule/min_lr", "1e-5"), T("clip_norm", "5"),
               T("drop_path", "0.5")),
     "Swin-B on ImageNet-1k"},
    {"xcit_m24", JOB_ITEMS(XCIT, T("drop_path", "0.15")), "XCiT-M24/16 on ImageNet-1k"},
    {"xcit_s12", JOB_ITEMS(XCIT, T("drop_path", "0.05")), "XCiT-S12/16 on ImageNet-1k"},
    {"vit_tiny_tin",
     JOB_ITEMS(D("dataset", "\"tiny_imagenet\""), D("augment/crop", "\"rrc\""),
               D("augment/rrc/scale", "[0.5,1]"), D("augment/flip", "0.5"), T("epochs", "200"),
               T("batch", "512"), T("optimizer/lr", "0.0005"), T("optimizer/weight_decay", "0.05"),
               T("schedule/warmup_epochs", "10"), T("schedule/min_lr", "1e-5"), T("label_smoothing", "0.1")),
     "ViT-Tiny on Tiny-ImageNet"},
    {"gpt2_owt",
     JOB_ITEMS(D("dataset", "\"openwebtext\""), D("tokenizer", "\"gpt2_bpe\""), D("split/val", "0.0005"),
               T("steps", "600000"), T("batch", "480"), T("optimizer/lr", "0.0006"),
               T("optimizer/betas", "[0.9,0.95]"), T("optimizer/weight_decay", "0.1"),
               T("schedule/warmup_steps", "2000"), T("schedule/min_lr", "6e-5"), T("clip_norm", "1"),
               T("init", "\"normal\""), T("precision", "\"bf16\"")),
     "GPT-2 124M on OpenWebText, nanoGPT's settings"},
    {"gpt2_wt103",
     JOB_ITEMS(
         D("dataset", "\"wikitext103\""), D("tokenizer", "\"gpt2_bpe\""), D("eval", "[\"ptb\",\"pg19\"]"),
         T("epochs", "20"), T("batch", "64"), T("optimizer/lr", "0.0006"), T("optimizer/betas", "[0.9,0.95]"),
         T("optimizer/weight_decay", "0.1"), T("schedule/warmup_steps", "2000"), T("schedule/min_lr", "6e-5"),
         T("clip_norm", "1"), T("dropout", "0.1"), T("init", "\"normal\""), T("precision", "\"bf16\"")),
     "GPT-2 on WikiText-103"},
    {"deit_b_distilled",
     JOB_ITEMS(HEAVY, T("epochs", "300"), T("optimizer/lr", "0.001"), T("schedule/warmup_epochs", "5"),
               T("schedule/warmup_lr", "1e-6"), T("schedule/min_lr", "1e-5"), T("schedule/shifted", "false"),
               T("schedule/per", "\"epoch\""), T("drop_path", "0.1"), T("ema", "0.99996"),
               D("augment/repeats", "3")),
     "DeiT-B/16 on ImageNet-1k with a teacher, which the document names"},
    {"lra_listops", JOB_ITEMS(LRA("listops", "32", "1000", "5000", "50")), "Nystromformer on ListOps"},
    {"lra_text", JOB_ITEMS(LRA("imdb", "32", "8000", "20000", "500")), "Nystromformer on Text"},
    {"lra_retrieval", JOB_ITEMS(LRA("aan", "32", "800", "30000", "300")), "Nystromformer on Retrieval"},
    {"lra_image", JOB_ITEMS(LRA("lra_image", "256", "175", "35000", "175")), "Nystromformer on Image"},
    {"lra_pathfinder", JOB_ITEMS(LRA("pathfinder_gen", "256", "312", "62400", "312")),
     "Nystromformer on Pathfinder"},
    {"pinn_convection", JOB_ITEMS(D("dataset", "\"pde_convection\""), PINN),
     "PINNsformer on the convection equation, beta 50"},
    {"pinn_reaction", JOB_ITEMS(D("dataset", "\"pde_reaction\""), PINN),
     "PINNsformer on the reaction equation, rho 5"},
    {"coco_xcit_s12", NULL, "Mask R-CNN with XCiT-S12/16 on COCO"},
    {"ldnt",
     JOB_ITEMS(D("dataset", "\"openwebtext\""), D("tokenizer", "\"gpt2_bpe\""), D("split/val", "0.0005"),
               T("steps", "200000"), T("batch", "480"), T("optimizer/lr", "0.0006"),
               T("optimizer/betas", "[0.9,0.95]"), T("optimizer/weight_decay", "0.1"),
               T("schedule/warmup_steps", "2000"), T("schedule/min_lr", "6e-5"), T("clip_norm", "1"),
               T("init", "\"xavier\""), T("precision", "\"bf16\"")),
     "L-DNT on OpenWebText with AdamW"},
    {"vdnt",
     JOB_ITEMS(D("dataset", "\"imagenet1k\""), D("augment/crop", "\"rrc\""), D("augment/flip", "0.5"),
               D("augment/randaugment", "{\"n\":2,\"m\":9,\"std\":0.5,\"inc\":true}"),
               D("augment/mixup", "0.8"), D("augment/cutmix", "1"), D("augment/eval_crop", "0.875"),
               T("epochs", "150"), T("batch", "1024"), T("optimizer/lr", "0.001"),
               T("optimizer/betas", "[0.9,0.99]"), T("optimizer/weight_decay", "0.1"),
               T("schedule/warmup_epochs", "60"), T("schedule/min_lr", "1e-8"), T("label_smoothing", "0.1"),
               T("drop_path", "0.1"), T("init", "\"trunc_xavier\""), T("precision", "\"bf16\"")),
     "V-DNT on ImageNet-1k with AdamW"},
};
const size_t job_recipe_count = sizeof job_recipes / sizeof *job_recipes;

/* ---- Data sets ---- */

#define FOLDERS                                                                                              \
    "a folder, .tar or .tar.gz: train/CLASS/*.jpg|.jpeg|.png and val/CLASS/... (also valid or validation; "  \
    "without "                                                                                               \
    "want of "                                                                                               \
    "these, test), or CLASS/... alone with data.split fraction or count"
#define PARTS                                                                                                \
    "a folder with a training file (train.txt, ptb.train.txt, wiki.train.tokens, wiki.train.raw or "         \
    "train.tokens) and a "                                                                                   \
    "validation file (the same with valid, or val.txt, validation.txt), uncompressed or .gz"
#define DOCUMENTS                                                                                            \
    "a folder of text files, one document each, with names ending in .txt or .txt.gz, in folders of any "    \
    "depth up "                                                                                              \
    "to 8; the files below train, validation (or valid, val) and test are these parts, where there are "     \
    "such "                                                                                                  \
    "folders"
#define GENERATED .generated = true, .most = 1000000
#define EQUATION .available = true, .task = "equation", .generated = true, .train = 1, .test = 1, .most = 1
#define IMAGES .image = true, .task = "classify"
#define TOKENS .text = true, .task = "language"
#define SEQUENCES .text = true, .labels = true, .symbols = true, .task = "classify_text"
#define TABLES                                                                                               \
    "one file, or a folder with train, valid (or val, validation; for want of those, test too) and test: "   \
    ".tsv, "                                                                                                 \
    ".csv (RFC 4180) with a header row that names the columns label and text, or .jsonl with objects that "  \
    "hold "                                                                                                  \
    "\"label\" and \"text\"; optionally compressed (.gz)"

static const struct job_dataset_info datasets[] = {
    [JOB_DATASET_MNIST] =
        {.name = "mnist",
         .available = true,
         IMAGES,
         .side = {28, 28},
         .channels = 1,
         .classes = 10,
         .layout =
             "a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
             "t10k-labels-idx1-ubyte, optionally compressed (.gz)"},
    [JOB_DATASET_DIGITS_GEN] = {.name = "digits_gen",
                                .available = true,
                                IMAGES,
                                GENERATED,
                                .side = {28, 28},
                                .channels = 1,
                                .classes = 10,
                                .train = 10000,
                                .test = 2000},
    [JOB_DATASET_CIFAR10] = {.name = "cifar10",
                             .available = true,
                             IMAGES,
                             .side = {32, 32},
                             .channels = 3,
                             .classes = 10,
                             .layout = "a folder with data_batch*.bin and test_batch*.bin (plain or .gz), "
                                       "or one such file; names of the classes "
                                       "from batches.meta.txt next to them"},
    [JOB_DATASET_IMAGENET1K] = {.name = "imagenet1k",
                                .available = true,
                                IMAGES,
                                .val_is_test = true,
                                .side = {224, 224},
                                .channels = 3,
                                .classes = 1000,
                                .layout = FOLDERS},
    [JOB_DATASET_TINY_IMAGENET] = {.name = "tiny_imagenet",
                                   .available = true,
                                   IMAGES,
                                   .val_is_test = true,
                                   .side = {64, 64},
                                   .channels = 3,
                                   .classes = 200,
                                   .layout = FOLDERS "; val/images with val_annotations.txt is supported"},
    [JOB_DATASET_IMAGE_FOLDER] = {.name = "image_folder",
                                  .available = true,
                                  IMAGES,
                                  .side = {224, 224},
                                  .channels = 3,
                                  .layout = FOLDERS},
    [JOB_DATASET_COCO] = {.name = "coco", .channels = 3, .classes = 80},
    [JOB_DATASET_DIGIT_CANVAS] =
        {.name = "digit_canvas", GENERATED, .side = {64, 64}, .channels = 1, .classes = 10},
    [JOB_DATASET_LISTOPS] =
        {.name = "listops",
         .available = true,
         SEQUENCES,
         .classes = 10,
         .lra = {2048, 512},
         .cut = 2000,
         .layout = "a .tsv with the columns Target and Source, or a folder with basic_train.tsv, "
                   "basic_val.tsv and basic_test.tsv (or train, valid, test); uncompressed or .gz; "
                   "parentheses are ignored"},
    [JOB_DATASET_LISTOPS_GEN] = {.name = "listops_gen",
                                 .available = true,
                                 SEQUENCES,
                                 GENERATED,
                                 .classes = 10,
                                 .lra = {2048, 512},
                                 .train = 9000,
                                 .test = 1000},
    [JOB_DATASET_IMDB] =
        {.name = "imdb",
         .available = true,
         SEQUENCES,
         .classes = 2,
         .lra = {1024, 1024},
         .cut = 1000,
         .layout = "a folder with train.tsv and test.tsv, or one such file, optionally compressed (.gz), "
                   "without a header row: label, id, text; bytes are tokens, from 1 on"},
    [JOB_DATASET_AAN] =
        {.name = "aan",
         .available = true,
         SEQUENCES,
         .pairs = true,
         .classes = 2,
         .lra = {8192, 4096},
         .cut = 4000,
         .layout = "a folder with new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and "
                   "new_aan_pairs.test.tsv (or train, valid, test), or one such file, without a header "
                   "row: label, id, id, text, text; bytes are tokens, from 1 on"},
    [JOB_DATASET_TEXT_PAIRS] = {.name = "text_pairs",
                                .available = true,
                                SEQUENCES,
                                .pairs = true,
                                .classes = 2,
                                .lra = {8192, 4096},
                                .cut = 4000,
                                .layout =
                                    "a folder of two text files or more (.txt or .txt.gz), a document each"},
    [JOB_DATASET_PATHFINDER_GEN] = {.name = "pathfinder_gen",
                                    .available = true,
                                    SEQUENCES,
                                    GENERATED,
                                    .classes = 2,
                                    .lra = {1024, 8192},
                                    .train = 9000,
                                    .test = 1000},
    [JOB_DATASET_LRA_IMAGE] =
        {.name = "lra_image",
         .available = true,
         SEQUENCES,
         .classes = 10,
         .lra = {1024, 4096},
         .layout = "as cifar10: a folder with data_batch*.bin and test_batch*.bin; or folders or "
                   "an archive of JPEG or PNG files, train/CLASS/... and test/CLASS/..."},
    [JOB_DATASET_TEXT] = {.name = "text",
                          .available = true,
                          TOKENS,
                          .layout = "one text file, uncompressed or .gz"},
    [JOB_DATASET_PTB] = {.name = "ptb", .available = true, TOKENS, .layout = PARTS},
    [JOB_DATASET_WIKITEXT2] = {.name = "wikitext2", .available = true, TOKENS, .layout = PARTS},
    [JOB_DATASET_WIKITEXT103] = {.name = "wikitext103", .available = true, TOKENS, .layout = PARTS},
    [JOB_DATASET_PG19] = {.name = "pg19", .available = true, TOKENS, .layout = DOCUMENTS},
    [JOB_DATASET_OPENWEBTEXT] = {.name = "openwebtext", .available = true, TOKENS, .layout = DOCUMENTS},
    [JOB_DATASET_PDE_CONVECTION] = {.name = "pde_convection", EQUATION, .equation = 50},
    [JOB_DATASET_PDE_REACTION] = {.name = "pde_reaction", EQUATION, .equation = 5},
    [JOB_DATASET_PDE_WAVE] = {.name = "pde_wave", EQUATION, .equation = 2},
    [JOB_DATASET_TEXT_LABELS] = {.name = "text_labels",
                                 .available = true,
                                 .text = true,
                                 .labels = true,
                                 .task = "classify_text",
                                 .layout = TABLES},
    [JOB_DATASET_TEXT_GEN] = {.name = "text_gen",
                              .available = true,
                              TOKENS,
                              .generated = true,
                              .train = 1000000,
                              .test = 100000,
                              .most = (int64_t)64 << 20,
                              .entropy = 0.391051258},
};
const size_t job_dataset_count = sizeof datasets / sizeof *datasets;

const struct job_dataset_info *job_dataset_info(enum job_dataset dataset)
{
    return (size_t)dataset < job_dataset_count ? &datasets[dataset] : NULL;
}

enum job_table job_table_of(const char *name)
{
    static const char *const endings[] = {
        [JOB_TABLE_TSV] = ".tsv", [JOB_TABLE_CSV] = ".csv", [JOB_TABLE_JSONL] = ".jsonl"};
    size_t len = strlen(name) - (pd_text_ends(name, ".gz") ? 3 : 0);

    for (int i = JOB_TABLE_TSV; i <= JOB_TABLE_JSONL; i++) {
        size_t n = strlen(endings[i]);

        if (len > n && !memcmp(name + len - n, endings[i], n))
            return (enum job_table)i;
    }
    return JOB_TABLE_NONE;
}

bool job_dataset_runs(unsigned dataset)
{
    return dataset < job_dataset_count && datasets[dataset].available;
}
