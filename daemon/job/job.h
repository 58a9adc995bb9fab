/* daemon/job/job.h: the job document (JSON), linked by both programs.
 *
 * One const table (fields.c) holds every field: pointer, type, place in struct job_config,
 * default, range, meaning, and what of it this build can run. It parses, fills in, checks and
 * documents. A document becomes a struct job_doc; each of its runs resolves to a complete
 * document, which is stored and handed to a worker; the worker loads it into struct job_config.
 *
 *   daemon:  job_parse -> job_doc_head, job_run_resolve (n = 0 .. run_count - 1)
 *   worker:  job_config_load -> job_config_bind (once the data set has been opened)
 *
 * Objects belong to the thread that made them; the functions keep no state of their own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/job/kind.h"
#include "daemon/job/theorem.h"
#include "kernels/base/buf.h"
#include "kernels/base/err.h"

/* Version of the table. A document that names none is of this one; documents of earlier ones are taken and
 * mean what they meant. 2: model.gelu and data.split_seed, which had followed model.bias and train.seed. 3: data are
 * divided by the rule standard, where it had been given or, of one file, fraction. */
#define JOB_SCHEMA 3

/* Limits with names: what a client can make us hold. */
#define JOB_MAX_BYTES ((size_t)256 * 1024)
#define JOB_MAX_DEPTH 16
#define JOB_MAX_STRING ((size_t)64 * 1024)
#define JOB_MAX_AXES 8
#define JOB_MAX_AXIS_VALUES 1000
#define JOB_MAX_RUNS 10000
#define JOB_MAX_PROBLEMS 100 /* errors, and likewise warnings, reported at once */

/* ---- Values of the enumerations. The names in the document are these, in lower case. ---- */

#define JOB_DIGEST_SIZE 65 /* SHA-256 in hexadecimal with its NUL */

enum job_mlp_act { JOB_MLP_ACT_GELU, JOB_MLP_ACT_RELU };
enum job_gelu { JOB_GELU_EXACT, JOB_GELU_TANH };
enum job_pool { JOB_POOL_CLS, JOB_POOL_MEAN };
enum job_pos { JOB_POS_LEARNED, JOB_POS_NONE, JOB_POS_FOURIER };
/* Of /attention/activation: constant, word, whether A is divided by N^alpha. A word is the row of its name in
 * kernels/graph/phi.h, but for those that are a row with an option (daemon/worker/model/spec.c), and for formula. */
/* clang-format off */
#define JOB_ACTIVATIONS(WORD)               \
    WORD(SOFTMAX,      softmax,      false) \
    WORD(POLY,         poly,         false) \
    WORD(SIGMOID,      sigmoid,      true)  \
    WORD(SIGMOID_BIAS, sigmoid_bias, true)  \
    WORD(RELU,         relu,         true)  \
    WORD(FORMULA,      formula,      false) \
    WORD(TAYLOR,       taylor,       false) \
    WORD(SIMA,         sima,         false) \
    WORD(PERIODIC,     periodic,     false) \
    /* add a word here */
/* clang-format on */
#define JOB_ACTIVATION_CONSTANT(constant, word, counted) JOB_ACTIVATION_##constant,
enum job_activation { JOB_ACTIVATIONS(JOB_ACTIVATION_CONSTANT) JOB_ACTIVATION_COUNT };
#undef JOB_ACTIVATION_CONSTANT
enum job_scale { JOB_SCALE_NONE, JOB_SCALE_FIXED, JOB_SCALE_K, JOB_SCALE_LEARNED };
enum job_scale_share { JOB_SCALE_SHARE_LAYER, JOB_SCALE_SHARE_HEAD, JOB_SCALE_SHARE_GLOBAL };
enum job_scale_param { JOB_SCALE_PARAM_DIRECT, JOB_SCALE_PARAM_LOG, JOB_SCALE_PARAM_SOFTPLUS };
enum job_n_for_scale {
    JOB_N_PATCHES,
    JOB_N_KEYS,
    JOB_N_WINDOW,
    JOB_N_CHANNELS,
    JOB_N_CONTEXT,
    JOB_N_ROW,
    JOB_N_NUMBER /* the document holds a number instead of a name */
};
enum job_qk_gain { JOB_QK_GAIN_SHARED, JOB_QK_GAIN_PER_HEAD };
enum job_recompute { JOB_RECOMPUTE_AUTO, JOB_RECOMPUTE_ON, JOB_RECOMPUTE_OFF };
enum job_form { JOB_FORM_AUTO, JOB_FORM_QUADRATIC, JOB_FORM_LINEAR };
enum job_class_attention { JOB_CLASS_ATTENTION_SAME, JOB_CLASS_ATTENTION_SOFTMAX };
enum job_pinv { JOB_PINV_MATRIX_ABS, JOB_PINV_GLOBAL_ABS, JOB_PINV_GLOBAL_COLSUM };
enum job_nystrom_apply { JOB_NYSTROM_APPLY_ALL, JOB_NYSTROM_APPLY_F1F3, JOB_NYSTROM_APPLY_SEPARATE };
enum job_norm { JOB_NORM_LAYER, JOB_NORM_RMS };
enum job_norm_placement { JOB_NORM_S1, JOB_NORM_S2, JOB_NORM_S3, JOB_NORM_S4, JOB_NORM_S5, JOB_NORM_POST };
enum job_eps_mode { JOB_EPS_MEAN, JOB_EPS_SUM };
enum job_dataset {
    JOB_DATASET_MNIST,
    JOB_DATASET_DIGITS_GEN, /* ours: digits drawn by polyd from (seed, index); needs no files */
    JOB_DATASET_CIFAR10,
    JOB_DATASET_IMAGENET1K,
    JOB_DATASET_TINY_IMAGENET,
    JOB_DATASET_IMAGE_FOLDER,
    JOB_DATASET_COCO,
    JOB_DATASET_DIGIT_CANVAS,
    JOB_DATASET_LISTOPS,
    JOB_DATASET_LISTOPS_GEN,
    JOB_DATASET_IMDB,
    JOB_DATASET_AAN,
    JOB_DATASET_PATHFINDER_GEN,
    JOB_DATASET_LRA_IMAGE,
    JOB_DATASET_TEXT,
    JOB_DATASET_PTB,
    JOB_DATASET_WIKITEXT2,
    JOB_DATASET_WIKITEXT103,
    JOB_DATASET_PG19,
    JOB_DATASET_OPENWEBTEXT,
    JOB_DATASET_PDE_CONVECTION,
    JOB_DATASET_PDE_REACTION,
    JOB_DATASET_TEXT_LABELS, /* texts with classes, from tables of one's own */
    JOB_DATASET_TEXT_GEN,    /* ours: sentences made by polyd from (seed, number); needs no files */
    JOB_DATASET_PDE_WAVE,
    JOB_DATASET_TEXT_PAIRS /* pairs of pieces of documents: of one document, or of two */
};
enum job_split { JOB_SPLIT_GIVEN, JOB_SPLIT_FRACTION, JOB_SPLIT_COUNT, JOB_SPLIT_STANDARD };
enum job_tokenizer { JOB_TOKENIZER_BYTES, JOB_TOKENIZER_CHARS, JOB_TOKENIZER_WORDS, JOB_TOKENIZER_GPT2_BPE };
enum job_lra_len { JOB_LRA_LEN_REFERENCE, JOB_LRA_LEN_PAPER };
enum job_crop { JOB_CROP_NONE, JOB_CROP_PAD_CROP, JOB_CROP_RRC };
enum job_interpolation { JOB_INTERPOLATION_BICUBIC, JOB_INTERPOLATION_BILINEAR };
enum job_schedule {
    JOB_SCHEDULE_COSINE,
    JOB_SCHEDULE_LINEAR,
    JOB_SCHEDULE_STEP,
    JOB_SCHEDULE_ONE_CYCLE,
    JOB_SCHEDULE_CONSTANT
};
enum job_per { JOB_PER_STEP, JOB_PER_EPOCH };
enum job_warmup_form { JOB_WARMUP_NANOGPT, JOB_WARMUP_TIMM };
enum job_drop_path_rule { JOB_DROP_PATH_LINEAR, JOB_DROP_PATH_SAME };
enum job_precision {
    JOB_PRECISION_FP32,
    JOB_PRECISION_BF16,
    JOB_PRECISION_FP16,
    JOB_PRECISION_FP64,
    JOB_PRECISION_TF32
};
enum job_init {
    JOB_INIT_TRUNC_NORMAL,
    JOB_INIT_NORMAL,
    JOB_INIT_XAVIER,
    JOB_INIT_TRUNC_XAVIER,
    JOB_INIT_KAIMING
};
enum job_init_fan { JOB_INIT_FAN_SEPARATE, JOB_INIT_FAN_FUSED };
enum job_teacher_kind { JOB_TEACHER_HARD, JOB_TEACHER_SOFT };
enum job_pinn_derivative { JOB_PINN_VJP_SUM, JOB_PINN_JVP_SHIFT };
enum job_device { JOB_DEVICE_AUTO, JOB_DEVICE_CPU, JOB_DEVICE_CUDA }; /* never AUTO once resolved */
enum job_placement { JOB_PLACEMENT_LOCAL, JOB_PLACEMENT_SLURM };
enum job_method { JOB_METHOD_GRID, JOB_METHOD_RANDOM, JOB_METHOD_ASHA };
enum job_mode { JOB_MODE_MIN, JOB_MODE_MAX };
enum job_when { JOB_WHEN_AFTEROK, JOB_WHEN_AFTERANY, JOB_WHEN_AFTERNOTOK };
enum job_variant { JOB_VARIANT_SMALL, JOB_VARIANT_PAPER };
enum job_scored { JOB_SCORED_VAL, JOB_SCORED_TEST, JOB_SCORED_TRAIN };

/* ---- One run, resolved: every value the worker needs. ----
 *
 * How null is kept: numbers NAN, strings NULL, whole numbers 0 (no field allows both null and
 * 0), objects `present` false. Enumerations hold the values above. Strings and lists are owned
 * by the config. Sections and names are those of the document. */

struct job_ints {
    size_t count;
    const int64_t *items;
};
struct job_numbers {
    size_t count;
    const double *items;
};
struct job_strings {
    size_t count;
    const char *const *items;
};

/* A text that is scored and not trained on. */
struct job_eval_set {
    int dataset;      /* enum job_dataset, of task language */
    const char *name; /* of its metrics; each once */
    const char *path; /* as job_data.path */
};
struct job_eval_sets {
    size_t count;
    const struct job_eval_set *items;
};

struct job_model {
    const char *preset;                          /* or NULL */
    int arch;                                    /* index of its network: job_arch_name */
    int64_t width;                               /* D */
    int64_t depth;                               /* L: blocks */
    int64_t heads;                               /* divides width */
    struct job_ints widths, depths, head_counts; /* of each stage of a Swin; else empty */
    int64_t head_width; /* of a solution of an equation: the hidden layers of its head */
    double mlp_ratio;   /* hidden width = mlp_ratio * width, see job_config_mlp_width */
    int mlp_act;        /* enum job_mlp_act */
    bool bias;          /* linear and norm biases */
    int gelu;           /* enum job_gelu; used with JOB_MLP_ACT_GELU */
    int64_t patch[2];   /* rows, columns in pixels; {0, 0} for text */
    int pool;           /* enum job_pool; the class token exists iff JOB_POOL_CLS */
    int pos;            /* enum job_pos */
    bool pos_after;
    int64_t context; /* longest sequence (gpt); 0 for images */
    int64_t window;
    double layerscale; /* NAN: none */
    int64_t landmarks;
    int64_t conv_kernel;
    int64_t pinv_iterations;
    int pinv_start; /* enum job_pinv */
};

/* A learned scalar of attention.formula. */
enum job_scalar_form { JOB_SCALAR_DIRECT, JOB_SCALAR_LOG, JOB_SCALAR_SOFTPLUS, JOB_SCALAR_SIGMOID };
struct job_scalar {
    const char *name;
    int per;          /* enum job_scale_share */
    int form;         /* enum job_scalar_form */
    const char *init; /* a number or a formula of n, h, H, l, L, d */
};
struct job_scalars {
    size_t count;
    const struct job_scalar *items; /* of the run's memory */
};

struct job_attention {
    const char *formula;       /* with JOB_ACTIVATION_FORMULA; NULL: not given */
    struct job_scalars params; /* of its learned scalars, those that are described */
    bool recognise;
    int activation; /* enum job_activation */
    int64_t degree; /* p; used by poly only */
    int scale;      /* enum job_scale */
    double k;       /* > 0 with JOB_SCALE_K, else NAN unless given */
    double alpha;
    int scale_share; /* enum job_scale_share */
    int scale_param; /* enum job_scale_param */
    bool scale_decay;
    double scale_lr_mult;
    int n_for_scale; /* enum job_n_for_scale */
    double n;        /* N that n_for_scale stands for */
    double c0;       /* c of c * s^p (its start if learned): 1, 1/sqrt(n), 1/k, 1/sqrt(n); 1 for softmax */
    bool n_valid;
    bool qk_norm;
    int qk_gain;           /* enum job_qk_gain */
    int form;              /* enum job_form */
    double init_logit_std; /* NAN: leave the initialiser's */
    double dropout;
    int class_attention; /* enum job_class_attention */
    int nystrom_apply;   /* enum job_nystrom_apply */
};

struct job_norms {
    int kind;      /* enum job_norm */
    int placement; /* enum job_norm_placement */
    double eps;
    int eps_mode; /* enum job_eps_mode */
    bool final;
};

struct job_randaugment {
    bool present;
    int64_t n;
    double m;
    double std;
    bool inc;
};

struct job_augment {
    int crop;               /* enum job_crop */
    int64_t pad_crop_shift; /* pixels of zero padding and largest shift; used with JOB_CROP_PAD_CROP */
    double rrc_scale[2];
    double rrc_ratio[2];
    double flip;
    struct job_randaugment randaugment;
    double mixup;
    double cutmix;
    double mix_prob;
    double switch_prob;
    int64_t mix_group; /* 0: nothing is mixed */
    double erasing;
    int64_t repeats;
    double eval_crop;
    int interpolation; /* enum job_interpolation: of every change of size */
};

struct job_data {
    int dataset;      /* enum job_dataset */
    const char *path; /* "<root>/<relative>" or "<root>"; checked to hold no ".."; NULL for generated data */
    int split;        /* enum job_split */
    /* each a fraction in (0,1) or a count; NAN: by default, with JOB_SPLIT_GIVEN always */
    double split_train, split_val;
    double split_test;             /* with JOB_SPLIT_STANDARD */
    int64_t split_seed;            /* -1: train.seed; see job_config_split_seed */
    struct job_eval_sets eval;     /* of language models */
    int tokenizer;                 /* enum job_tokenizer */
    const char *tokenizer_path;    /* as path: folder of the files of gpt2_bpe; else NULL */
    int64_t context;               /* training sequence length (gpt); 0 for images */
    int64_t image_size[2];         /* rows, columns; {0, 0} for text */
    int lra_len;                   /* enum job_lra_len */
    int64_t grid[2], test_grid[2]; /* of equations: points of t, of x */
    double pde_step, coefficient;
    bool zero_is_padding;      /* id 0 of a sequence that has classes */
    int64_t depth, min_tokens; /* of a generated expression: levels at most, tokens at least */
    int64_t contour;           /* dashes of a curve of a generated picture */
    struct job_augment augment;
};

struct job_optim {
    int name; /* index of its row: job_optimiser_name */
    double lr;
    double betas[2];
    double eps;
    double momentum;
    double dampening;
    bool nesterov;
    double weight_decay;
    bool decay_temperature;
};

struct job_sched {
    int name; /* enum job_schedule */
    /* Exactly one is set in the document: steps, or epochs (a number; 0.25 is allowed). -1 and
     * NAN stand for null. job_config_bind turns either into bound.warmup_steps. */
    int64_t warmup_steps;
    double warmup_epochs;
    double warmup_lr; /* rate at step 0 of the warm-up */
    int warmup_form;  /* enum job_warmup_form */
    double min_lr;    /* rate at the end */
    double beta1[2];  /* one_cycle: at both ends, at the peak */
    bool shifted;     /* true: the decay's clock starts after the warm-up (t-w over T-w); false: t over T */
    int per;          /* enum job_per */
    struct job_ints milestones;
    double factor;
};

/* The weights that training begins with, instead of initial values. The daemon fills in which file it is. */
struct job_start {
    bool present;
    const char *model; /* as it was named; NULL = by its run */
    const char *run;   /* that wrote the file; NULL = none did */
    int64_t step;
    const char *path;   /* from the state folder on */
    const char *sha256; /* of the file, hexadecimal */
    bool optimizer;     /* the optimiser's states are taken too */
    const char
        *reset; /* beginnings of names, with commas between, that keep their initial values; NULL = none */
};

struct job_teacher {
    bool present;
    const char *model;  /* "name:3" */
    const char *path;   /* of its checkpoint, from the state folder on */
    const char *sha256; /* of that file */
    int kind;           /* enum job_teacher_kind */
    double alpha;
    double tau;
};

/* When training ends before its last step. */
struct job_stop {
    int64_t patience;   /* evaluations in a row without a better value; 0: it never does */
    const char *metric; /* key of a number of an evaluation; NULL: the one that ranks checkpoints */
    double min_change;  /* a value is better if it is so by more than this */
};

struct job_train {
    int64_t steps; /* exactly one of the two; the other is 0 */
    int64_t epochs;
    int64_t batch; /* global */
    int64_t accumulation;
    int64_t zero; /* 1: moments are kept by one rank each */
    struct job_optim optimizer;
    struct job_sched schedule;
    double clip_norm; /* NAN: none */
    double label_smoothing;
    double drop_path;
    int drop_path_rule; /* enum job_drop_path_rule */
    double dropout;
    int precision; /* enum job_precision */
    int recompute; /* enum job_recompute */
    int64_t seed;
    bool deterministic;
    int init;     /* enum job_init */
    int init_fan; /* enum job_init_fan */
    double ema;   /* NAN: none */
    bool ema_serve;
    struct job_stop stop;
    struct job_teacher teacher;
    struct job_start start;
    const char *
        freeze; /* beginnings of names of parameters that are not trained, with commas between; NULL = none */
    double layer_decay;  /* of learning rates, from each block to the one before */
    int pinn_derivative; /* enum job_pinn_derivative */
    int64_t nonfinite_limit;
    int64_t eval_every; /* steps; 0: the length in steps was not known when resolving, see bound.eval_every */
    int64_t checkpoint_every_steps; /* exactly one is set; 0 = not this one */
    double checkpoint_every_s;      /* NAN = not this one */
    int64_t keep_experiment, keep_best, keep_latest;
};

struct job_heatmaps {
    bool present;
    struct job_ints layers, heads; /* 1-based */
    int64_t every;
};

struct job_histograms {
    bool present;
    struct job_strings tensors;
    struct job_numbers at;
};

/* The checkpoint that a document names, as the daemon found it when the job came. */
struct job_evaluate {
    const char *model; /* "mnist:3", or NULL where a run was named */
    const char *run;   /* id of the run that wrote it, digits only */
    int64_t step;
    const char *path;   /* of the file, from the state folder on */
    const char *sha256; /* of the file */
    int split;          /* enum job_scored: the samples that are scored */
};

/* The statement that a job of kind check examines. */
struct job_check {
    int theorem; /* enum job_theorem */
    struct job_params params;
};

struct job_diagnostics {
    int64_t every; /* steps; 0 = off */
    int64_t probe_batch;
    bool probe_cls;
    struct job_heatmaps heatmaps;
    struct job_histograms histograms;
};

struct job_resources {
    int device;    /* enum job_device */
    int placement; /* enum job_placement */
    int64_t slots;
    int64_t threads; /* CPU threads per slot */
    int64_t loader_threads;
    int64_t memory_bytes; /* 0: plan + 25 %, decided when the plan is known */
    int64_t time_limit_s; /* 0: none */
    int64_t warn_before_s;
    int64_t max_restarts;
    int64_t priority;
};

/* Values that need the size of the data set: job_config_bind fills them. All 0 before. */
struct job_bound {
    int64_t train_samples;   /* samples of one epoch: images, or windows of data.context tokens */
    int64_t steps_per_epoch; /* whole batches of an epoch; the last, smaller one is dropped */
    int64_t steps;           /* length of the run in steps */
    int64_t warmup_steps;
    int64_t eval_every;
    int64_t micro_batch; /* batch / (slots * accumulation) */
};

struct job_config {
    int kind; /* enum job_kind; sections that it does not have are zeros */
    const char *name;
    const char *experiment;
    const char *recipe; /* or NULL */
    struct job_model model;
    struct job_attention attention;
    struct job_norms norm;
    struct job_data data;
    struct job_evaluate evaluate;
    struct job_check check;
    struct job_train train;
    struct job_diagnostics diagnostics;
    struct job_resources resources;
    struct job_bound bound;
    /* SHA-256, hexadecimal, of all values that have an effect, are no defaults and decide the numbers of
     * training: each row of the table says whether it does. A checkpoint is continued only under the same. */
    char trajectory[JOB_DIGEST_SIZE];
    void *owner; /* private: what holds the strings and lists */
};

/* Loads a resolved document of one run, or any document with exactly one run. On failure
 * `why` holds the first error with its pointer. PD_ERR_LIMIT, PD_ERR_CORRUPT (not JSON),
 * PD_ERR_INVALID, PD_ERR_NOMEM. The caller owns *ret_config. */
PD_NODISCARD enum pd_err job_config_load(const char *json, size_t len, struct job_config **ret_config,
                                         struct pd_why *why);
/* A resolved document in the present schema, RFC 8785, appended: fields that came after it was written have
 * the values that were in force without them. Fails as job_config_load does. */
PD_NODISCARD enum pd_err job_config_complete(const char *json, size_t len, struct pd_buf *ret_json,
                                             struct pd_why *why);
struct job_config *job_config_free(struct job_config *config);

#define JOB_REPEATS_MULTIPLE 256 /* images that an epoch with repeats is a multiple of */
/* Fills config->bound from the number of training samples (>= 1) in an epoch. PD_ERR_INVALID if an
 * epoch holds less than one batch, or if warm-up or length make no sense for that size. For text the
 * length is normally given in steps; an epoch is floor((tokens - 1) / data.context) windows. */
PD_NODISCARD enum pd_err job_config_bind(struct job_config *config, int64_t train_samples,
                                         struct pd_why *why);

/* The metric key by which a run's evaluations and checkpoints are compared, and whether more is better.
 * Static. */
const char *job_config_best_metric(const struct job_config *config, bool *ret_maximise);

/* A task (daemon/worker/task), by name, and the metric that ranks its evaluations and checkpoints. */
struct job_task {
    const char *name;
    const char *best, *best_averaged; /* metric keys: of the weights, of their averages (/train/ema_serve) */
    bool classes;                     /* its targets are classes: runs write accuracies */
};
/* Of the data set's row; static, never NULL. */
const struct job_task *job_config_task(const struct job_config *config);
/* Does a run of this configuration, or polyd about it, write the metric key? Then it is no client's. */
bool job_config_writes(const struct job_config *config, const char *key);
/* round(mlp_ratio * width). */
int64_t job_config_mlp_width(const struct job_config *config);
/* Head dimension: width / heads. */
int64_t job_config_head_dim(const struct job_config *config);
/* Seed of the division into training and validation images, and of generated data. */
int64_t job_config_split_seed(const struct job_config *config);
/* Patches of an image, rows times columns; 0 for text. */
int64_t job_config_patches(const struct job_config *config);
/* Patches of one window of a network's first stage; 0 where attention sees all patches, and for text. */
int64_t job_config_window(const struct job_config *config);
/* Keys that a query sees: those of a window, the channels of a head where attention is between channels, patches
 * plus the class token, or data.context. */
int64_t job_config_keys(const struct job_config *config);
/* The number of tokens N of the scaling laws: patches of an image without the class token, those of a window
 * where attention stays within one, or data.context; 0 where there is none. Whatever attention.n_for_scale
 * says. */
int64_t job_config_tokens(const struct job_config *config);
/* Whether tokens see none that come later. */
bool job_config_causal(const struct job_config *config);
/* attention.formula, with the ranges of its described scalars, as pk_formula_parse. */
struct pk_formula;
struct pk_formula_fault;
PD_NODISCARD enum pd_err job_formula_parse(const struct job_config *config, struct pk_formula **ret,
                                           struct pk_formula_fault *fault);
/* SHA-256 of its normal form: two spellings of one function have one digest. */
PD_NODISCARD enum pd_err job_formula_digest(const struct job_config *config, char out[JOB_DIGEST_SIZE],
                                            struct pd_why *why);
/* Of /attention/activation: as in the document (static; NULL where there is none); whether A is divided by
 * N^alpha. */
const char *job_activation_word(int activation);
bool job_activation_counted(int activation);

/* Of /model/arch, as in the document: "vit". Static; NULL where there is none. */
const char *job_arch_name(int arch);
/* Of /train/optimizer/name: "adamw". */
const char *job_optimiser_name(int name);

/* ---- What is known of a data set without opening it ---- */

struct job_dataset_info {
    const char *name;
    const char *task;    /* what a network learns from it: a row of tasks.c; NULL: nothing in this build */
    bool available;      /* this build can read it */
    bool image;          /* images with classes */
    bool text;           /* tokens */
    bool labels;         /* texts with classes: rows of tables, see job_table_of */
    double equation;     /* a differential equation: its coefficient by default; 0: it is none */
    bool symbols;        /* with symbols of its own: data.tokenizer does not say them */
    bool pairs;          /* a sample is two sequences, each in half the context */
    int64_t lra[2];      /* of the Long Range Arena: positions by enum job_lra_len; else 0 */
    int64_t cut;         /* likewise: tokens that its preparation keeps of a sequence; 0: all that fit */
    bool generated;      /* needs no files, so data.path is null */
    bool val_is_test;    /* images whose published results are those of the folder val */
    int64_t side[2];     /* rows, columns of an image as stored; {0, 0} if they vary */
    int64_t channels;    /* 0 for text */
    int64_t classes;     /* 0 where there are none or the files decide */
    int64_t train, test; /* samples under split "given" of generated data; 0 where the files decide */
    int64_t most;        /* generated data: samples, of text bytes, of both parts together */
    double entropy;      /* generated text: nats a byte, the least mean loss of any model; else 0 */
    const char *layout;  /* which files data.path is to hold, for people; NULL where none are read */
};
/* Static; NULL outside the enum. */
const struct job_dataset_info *job_dataset_info(enum job_dataset dataset);

/* Forms of a file of labelled texts, told by the ending of its name: .tsv, .csv, .jsonl, each also with .gz
 * behind. */
enum job_table { JOB_TABLE_NONE, JOB_TABLE_TSV, JOB_TABLE_CSV, JOB_TABLE_JSONL };
enum job_table job_table_of(const char *name);

/* ---- The daemon's side ---- */

/* What resolving needs to know of this installation. Borrowed for the call (job_parse copies
 * what it keeps). A NULL env means: one thread, any data root, no CUDA. */
struct job_env {
    int64_t threads;     /* default of /resources/threads, >= 1 */
    bool cuda;           /* a CUDA device is usable: what device "auto" becomes */
    const char *no_cuda; /* why a job that asks for one is refused, a sentence; NULL = it is not */
    int64_t keep_best;   /* default of /train/keep/best; -1 = built in */
    int64_t keep_latest; /* likewise */
    size_t root_count;   /* names of the configured data roots, in the configured order */
    const char *const *roots;
    int64_t schema;   /* of a document that names none; 0 = JOB_SCHEMA */
    bool check_roots; /* refuse a path outside these roots; false accepts any */
};

struct job_problem {
    char *pointer; /* URI fragment: "#/attention/degree", "#" for the whole; owned by the report */
    char *detail;  /* one sentence without a full stop; owned by the report */
};

/* What a parse has to say. The caller owns the storage and calls job_report_done whatever the
 * result of the parse was. Errors are in document order of checking, at most JOB_MAX_PROBLEMS. */
struct job_report {
    struct job_problem *errors;
    size_t error_count;
    struct job_problem *warnings;
    size_t warning_count;
    bool truncated; /* more problems than are listed */
    bool failed;    /* private: memory ran out while reporting */
};

void job_report_init(struct job_report *report);
void job_report_done(struct job_report *report);
/* Adds what another module found out about the document; the same twice is reported once. */
void job_report_error(struct job_report *r, const char *pointer, const char *fmt, ...) PD_PRINTF(3, 4);
void job_report_warning(struct job_report *r, const char *pointer, const char *fmt, ...) PD_PRINTF(3, 4);

/* ---- A document that names a checkpoint ---- */

/* As the document names it. The caller owns the storage. */
struct job_wanted {
    bool present;    /* the document's kind works with a checkpoint */
    char model[160]; /* "mnist", "mnist:3" or "mnist:prod"; "" = a run was named */
    int64_t run;
    char checkpoint[24];          /* "best", "last" or a step, digits only */
    char sha256[JOB_DIGEST_SIZE]; /* a resolved document says which file it means; "" = any */
};
/* As the daemon found it. Borrowed for the call. */
struct job_found {
    const char *model; /* "mnist:3" or NULL */
    int64_t run, step;
    const char *path, *sha256;
    const char *document; /* the run's, resolved */
};
/* Reads which checkpoint the document names; errors go to the report. What is no JSON object, or names a kind
 * that there is not, is left to job_parse: nothing is present then. PD_ERR_INVALID, PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err job_checkpoint_wanted(const char *json, size_t len, struct job_wanted *ret,
                                               struct job_report *report);
/* Appends the complete document: what is computed comes from the checkpoint's run, and so does what the
 * document does not say of the data. */
PD_NODISCARD enum pd_err job_checkpoint_fold(const char *json, size_t len, const struct job_found *found,
                                             struct pd_buf *ret_json, struct job_report *report);

/* The same of the checkpoint or version that training begins with (train.start). present: it names one. */
PD_NODISCARD enum pd_err job_start_wanted(const char *json, size_t len, struct job_wanted *ret,
                                          struct job_report *report);
/* Appends the document with the file in train.start; one that describes no network takes that of the file. */
PD_NODISCARD enum pd_err job_start_fold(const char *json, size_t len, const struct job_found *found,
                                        struct pd_buf *ret_json, struct job_report *report);

/* The model that the document learns from (train.teacher): `model`, and `sha256` of a resolved document. Not
 * present where there is none, and where the document is wrong in another way, which is left to job_parse. */
PD_NODISCARD enum pd_err job_teacher_wanted(const char *json, size_t len, struct job_wanted *ret,
                                            struct job_report *report);
/* Appends the document with the version that was found, its file and digest. PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err job_teacher_fold(const char *json, size_t len, const struct job_found *found,
                                          struct pd_buf *ret_json);

/* Appends the members of a resolved document that describe its network and how data reach it, without paths and
 * without what belongs to a run: what a file of weights says about itself (polyd.document). PD_ERR_LIMIT,
 * PD_ERR_CORRUPT (not JSON), PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err job_weights_document(const char *json, size_t len, struct pd_buf *ret_json,
                                              struct pd_why *why);

/* A network as a request, or a file of weights (polyd.document), describes it. */
struct job_weights {
    struct pd_buf document; /* resolved, of a job that would train the network */
    float mean[3], std[3];  /* of each channel, to normalise images with */
    int mean_count, std_count;
    struct pd_buf class_names; /* a line each; empty: they have none */
    int64_t classes;           /* lines */
};
/* Reads a description: an object with the members model, attention, norm and data of a job document, preset as short
 * for model.preset, and mean, std and classes (of images). `tokenizer`: "<root>/<folder>" of the files of GPT-2's byte
 * pairs that the network reads; NULL: it has none. Data are only described: no file of a data set is named.
 * PD_ERR_INVALID: the report says what is wrong, PD_ERR_LIMIT, PD_ERR_NOMEM. On PD_OK the caller calls
 * job_weights_done. */
PD_NODISCARD enum pd_err job_weights_read(const char *json, size_t len, const char *tokenizer,
                                          struct job_weights *ret, struct job_report *report);
void job_weights_done(struct job_weights *w);

struct job_doc;

/* Parses, layers, fills in and checks a document and every one of its runs.
 *   PD_OK            a job; the report may hold warnings
 *   PD_ERR_LIMIT     more than JOB_MAX_BYTES                         (HTTP 413)
 *   PD_ERR_CORRUPT   not JSON, not an object, a key given twice, nested too deep (HTTP 400)
 *   PD_ERR_INVALID   well-formed but wrong: all errors in the report  (HTTP 422)
 *   PD_ERR_NOMEM
 * The report must be initialised. Except for PD_ERR_NOMEM a failure holds at least one error.
 * The caller owns *ret_job. */
PD_NODISCARD enum pd_err job_parse(const char *json, size_t len, const struct job_env *env,
                                   struct job_doc **ret_job, struct job_report *report);
/* The same for a text that job_document has written, by this version or an earlier one. */
PD_NODISCARD enum pd_err job_parse_kept(const char *json, size_t len, struct job_doc **ret_job,
                                        struct job_report *report);
struct job_doc *job_free(struct job_doc *job);

struct job_tag {
    const char *key;
    const char *value;
};
struct job_dependency {
    const char *job; /* id, digits only */
    int when;        /* enum job_when */
};

/* What holds for the job as a whole, whatever the sweep varies. */
struct job_head {
    enum job_kind kind;
    const char *name;
    const char *experiment;
    const char *notes;
    const char *register_name; /* or NULL */
    const struct job_tag *tags;
    size_t tag_count;
    const struct job_dependency *depends_on;
    size_t depends_on_count;
    int64_t trials;
    int64_t points;      /* combinations of the sweep; 1 without one */
    int64_t run_count;   /* points * trials */
    bool sweep;          /* the document has one */
    int method;          /* enum job_method */
    const char *metric;  /* ranks the runs; "loss/val" by default, with or without a sweep */
    int mode;            /* enum job_mode */
    int64_t concurrency; /* runs at once; 0 = no cap */
    struct job_resources resources;
};
/* Borrowed until job_free. */
const struct job_head *job_doc_head(const struct job_doc *job);

int64_t job_run_count(const struct job_doc *job);

/* The resolved document of run n (0 .. run_count - 1) in RFC 8785 form, appended to `ret_json`: every
 * key present, the swept values in place, seed + trial, no sweep, trials 1. Run n is combination
 * n / trials (the last axis varies fastest), trial n % trials. Deterministic. */
PD_NODISCARD enum pd_err job_run_resolve(const struct job_doc *job, int64_t n, struct pd_buf *ret_json,
                                         struct pd_why *why);
/* What sets run n apart: a JSON object of the swept pointers and their values, {} without a
 * sweep, in RFC 8785 form, appended. */
PD_NODISCARD enum pd_err job_run_params(const struct job_doc *job, int64_t n, struct pd_buf *ret_json,
                                        struct pd_why *why);
/* Trial (0-based) of run n: n % trials. */
int64_t job_run_trial(const struct job_doc *job, int64_t n);
/* The seed of run n. */
int64_t job_run_seed(const struct job_doc *job, int64_t n);

/* What the size of the training set, which a plan knows, says of a resolved document: errors where the run
 * cannot be (as job_config_bind; the worker would refuse it), warnings where its evaluations or the steps of
 * its schedule lie beyond its end. PD_OK with or without them; PD_ERR_NOMEM, and those of job_config_load.
 */
PD_NODISCARD enum pd_err job_run_judge(const char *json, size_t len, int64_t train_samples,
                                       struct job_report *report, struct pd_why *why);

/* The document to store with the job: overrides folded in and everything that came from `env`
 * written out, so that a later parse (with any env) makes the very same runs. RFC 8785, appended. */
PD_NODISCARD enum pd_err job_document(const struct job_doc *job, struct pd_buf *ret_json, struct pd_why *why);

/* ---- Digests of a resolved document (canonical or not); hexadecimal SHA-256 ---- */

/* SHA-256 of its RFC 8785 form. */
PD_NODISCARD enum pd_err job_config_digest(const char *json, size_t len, char out[JOB_DIGEST_SIZE],
                                           struct pd_why *why);
/* The same without what does not change the plan (name, experiment, tags, notes, seed, rates, schedule,
 * data path, priority, time limits, depends_on, register), with `facts` added: a text that names
 * data-derived sizes, worker build, back-end ABI and device, for example
 * "build=0.1.0 abi=1 device=cpu train=60000". */
PD_NODISCARD enum pd_err job_plan_digest(const char *json, size_t len, const char *facts,
                                         char out[JOB_DIGEST_SIZE], struct pd_why *why);

/* Any JSON text in RFC 8785 form, appended. The document's limits apply, except that any value may
 * be outermost. */
PD_NODISCARD enum pd_err job_canonical(const char *json, size_t len, struct pd_buf *ret_json,
                                       struct pd_why *why);

/* Appends the UTF-8 text as a JSON string with its quotes. */
void job_json_string(const char *s, size_t len, struct pd_buf *b);

/* ---- The table, documented by itself ---- */

/* A JSON object appended: {"schema":2,"fields":[{"pointer","type","default","default_rule"?,"nullable",
 * "values"?,"available"?,"minimum"?,"maximum"?,"exclusive_minimum"?,..., "meaning"}],
 * "presets":[{"name","available","values":{...}}],"recipes":[...],"datasets":[...],
 * "kinds":[{"name","meaning","takes":[...],"curves"}],
 * "checks":[{"name","params":[{"name","type","default","minimum","maximum","meaning"}]}]}. */
PD_NODISCARD enum pd_err job_fields_json(struct pd_buf *ret_json, struct pd_why *why);
/* Whether the pointer names a field that holds a value, not an object of fields. */
bool job_pointer_known(const char *pointer);
/* The fixed default of one field as JSON; NULL: no such field, or its default is computed. The caller frees.
 */
char *job_default_json(const char *pointer);
/* The same as a table of plain text for `polyd fields`, lines of at most 110 columns. */
PD_NODISCARD enum pd_err job_fields_text(struct pd_buf *ret_text, struct pd_why *why);

/* ---- Fuzzing ---- */

/* Parses, resolves the first and last run, and checks what must hold of them (idempotence, digests).
 * Never fails on any input; aborts if an invariant breaks. */
void job_fuzz(const uint8_t *bytes, size_t len);
