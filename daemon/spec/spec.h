/* daemon/spec/spec.h: the job document (JSON), linked by both programs.
 *
 * One const table (fields.c) holds every field: pointer, type, place in struct spec_config,
 * default, range, meaning, and what of it this build can run. It parses, fills in, checks and
 * documents. A document becomes a struct spec_job; each of its runs resolves to a complete
 * document, which is stored and handed to a worker; the worker loads it into struct spec_config.
 *
 *   daemon:  spec_job_parse -> spec_job_head, spec_job_run_resolve (n = 0 .. run_count - 1)
 *   worker:  spec_config_load -> spec_config_bind (once the data set has been opened)
 *
 * Objects belong to the thread that made them; the functions keep no state of their own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

/* Version of the table. A document that names none is of this one; documents of earlier ones are taken and
 * mean what they meant. 2: model.gelu and data.split_seed, which had followed model.bias and train.seed. */
#define SPEC_SCHEMA 2

/* Limits with names: what a client can make us hold. */
#define SPEC_MAX_BYTES ((size_t)256 * 1024)
#define SPEC_MAX_DEPTH 16
#define SPEC_MAX_STRING ((size_t)64 * 1024)
#define SPEC_MAX_AXES 8
#define SPEC_MAX_AXIS_VALUES 1000
#define SPEC_MAX_RUNS 10000
#define SPEC_MAX_PROBLEMS 100 /* errors, and likewise warnings, reported at once */

/* ---- Values of the enumerations. The names in the document are these, in lower case. ---- */

enum spec_arch {
    SPEC_ARCH_VIT,
    SPEC_ARCH_DEIT,
    SPEC_ARCH_SWIN,
    SPEC_ARCH_XCIT,
    SPEC_ARCH_NYSTROM,
    SPEC_ARCH_GPT,
    SPEC_ARCH_PINNSFORMER,
    SPEC_ARCH_MASKRCNN
};
enum spec_mlp_act { SPEC_MLP_ACT_GELU, SPEC_MLP_ACT_RELU };
enum spec_gelu { SPEC_GELU_EXACT, SPEC_GELU_TANH };
enum spec_pool { SPEC_POOL_CLS, SPEC_POOL_MEAN };
enum spec_pos { SPEC_POS_LEARNED, SPEC_POS_NONE, SPEC_POS_FOURIER };
enum spec_activation {
    SPEC_ACTIVATION_SOFTMAX,
    SPEC_ACTIVATION_POLY,
    SPEC_ACTIVATION_SIGMOID,
    SPEC_ACTIVATION_SIGMOID_BIAS,
    SPEC_ACTIVATION_RELU,
    SPEC_ACTIVATION_TAYLOR,
    SPEC_ACTIVATION_SIMA,
    SPEC_ACTIVATION_PERIODIC
};
enum spec_scale { SPEC_SCALE_NONE, SPEC_SCALE_FIXED, SPEC_SCALE_K, SPEC_SCALE_LEARNED };
enum spec_scale_share { SPEC_SCALE_SHARE_LAYER, SPEC_SCALE_SHARE_HEAD, SPEC_SCALE_SHARE_GLOBAL };
enum spec_scale_param { SPEC_SCALE_PARAM_DIRECT, SPEC_SCALE_PARAM_LOG, SPEC_SCALE_PARAM_SOFTPLUS };
enum spec_n_for_scale {
    SPEC_N_PATCHES,
    SPEC_N_KEYS,
    SPEC_N_WINDOW,
    SPEC_N_CHANNELS,
    SPEC_N_CONTEXT,
    SPEC_N_ROW,
    SPEC_N_NUMBER /* the document holds a number instead of a name */
};
enum spec_qk_gain { SPEC_QK_GAIN_SHARED, SPEC_QK_GAIN_PER_HEAD };
enum spec_form { SPEC_FORM_AUTO, SPEC_FORM_QUADRATIC, SPEC_FORM_LINEAR };
enum spec_class_attention { SPEC_CLASS_ATTENTION_SAME, SPEC_CLASS_ATTENTION_SOFTMAX };
enum spec_nystrom_apply { SPEC_NYSTROM_APPLY_ALL, SPEC_NYSTROM_APPLY_F1F3, SPEC_NYSTROM_APPLY_SEPARATE };
enum spec_norm { SPEC_NORM_LAYER, SPEC_NORM_RMS };
enum spec_norm_placement {
    SPEC_NORM_S1,
    SPEC_NORM_S2,
    SPEC_NORM_S3,
    SPEC_NORM_S4,
    SPEC_NORM_S5,
    SPEC_NORM_POST
};
enum spec_eps_mode { SPEC_EPS_MEAN, SPEC_EPS_SUM };
enum spec_dataset {
    SPEC_DATASET_MNIST,
    SPEC_DATASET_DIGITS_GEN, /* ours: digits drawn by polyd from (seed, index); needs no files */
    SPEC_DATASET_CIFAR10,
    SPEC_DATASET_IMAGENET1K,
    SPEC_DATASET_TINY_IMAGENET,
    SPEC_DATASET_IMAGE_FOLDER,
    SPEC_DATASET_COCO,
    SPEC_DATASET_DIGIT_CANVAS,
    SPEC_DATASET_LISTOPS,
    SPEC_DATASET_LISTOPS_GEN,
    SPEC_DATASET_IMDB,
    SPEC_DATASET_AAN,
    SPEC_DATASET_PATHFINDER_GEN,
    SPEC_DATASET_LRA_IMAGE,
    SPEC_DATASET_TEXT,
    SPEC_DATASET_PTB,
    SPEC_DATASET_WIKITEXT2,
    SPEC_DATASET_WIKITEXT103,
    SPEC_DATASET_PG19,
    SPEC_DATASET_OPENWEBTEXT,
    SPEC_DATASET_PDE_CONVECTION,
    SPEC_DATASET_PDE_REACTION
};
enum spec_split { SPEC_SPLIT_GIVEN, SPEC_SPLIT_FRACTION, SPEC_SPLIT_COUNT };
enum spec_tokenizer {
    SPEC_TOKENIZER_BYTES,
    SPEC_TOKENIZER_CHARS,
    SPEC_TOKENIZER_WORDS,
    SPEC_TOKENIZER_GPT2_BPE
};
enum spec_lra_len { SPEC_LRA_LEN_REFERENCE, SPEC_LRA_LEN_PAPER };
enum spec_crop { SPEC_CROP_NONE, SPEC_CROP_PAD_CROP, SPEC_CROP_RRC };
enum spec_interpolation { SPEC_INTERPOLATION_BICUBIC, SPEC_INTERPOLATION_BILINEAR };
enum spec_optimizer {
    SPEC_OPTIMIZER_ADAMW,
    SPEC_OPTIMIZER_MSGDW,
    SPEC_OPTIMIZER_MSGD_L2,
    SPEC_OPTIMIZER_LBFGS
};
enum spec_schedule {
    SPEC_SCHEDULE_COSINE,
    SPEC_SCHEDULE_LINEAR,
    SPEC_SCHEDULE_STEP,
    SPEC_SCHEDULE_ONE_CYCLE,
    SPEC_SCHEDULE_CONSTANT
};
enum spec_per { SPEC_PER_STEP, SPEC_PER_EPOCH };
enum spec_warmup_form { SPEC_WARMUP_NANOGPT, SPEC_WARMUP_TIMM };
enum spec_drop_path_rule { SPEC_DROP_PATH_LINEAR, SPEC_DROP_PATH_SAME };
enum spec_precision {
    SPEC_PRECISION_FP32,
    SPEC_PRECISION_BF16,
    SPEC_PRECISION_FP16,
    SPEC_PRECISION_FP64,
    SPEC_PRECISION_TF32
};
enum spec_init { SPEC_INIT_TRUNC_NORMAL, SPEC_INIT_NORMAL, SPEC_INIT_XAVIER, SPEC_INIT_TRUNC_XAVIER };
enum spec_init_fan { SPEC_INIT_FAN_SEPARATE, SPEC_INIT_FAN_FUSED };
enum spec_teacher_kind { SPEC_TEACHER_HARD, SPEC_TEACHER_SOFT };
enum spec_pinn_derivative { SPEC_PINN_VJP_SUM, SPEC_PINN_JVP_SHIFT };
enum spec_device { SPEC_DEVICE_AUTO, SPEC_DEVICE_CPU, SPEC_DEVICE_CUDA }; /* never AUTO once resolved */
enum spec_placement { SPEC_PLACEMENT_LOCAL, SPEC_PLACEMENT_SLURM };
enum spec_method { SPEC_METHOD_GRID, SPEC_METHOD_RANDOM, SPEC_METHOD_ASHA };
enum spec_mode { SPEC_MODE_MIN, SPEC_MODE_MAX };
enum spec_when { SPEC_WHEN_AFTEROK, SPEC_WHEN_AFTERANY, SPEC_WHEN_AFTERNOTOK };
enum spec_variant { SPEC_VARIANT_SMALL, SPEC_VARIANT_PAPER };

/* ---- One run, resolved: every value the worker needs. ----
 *
 * How null is kept: numbers NAN, strings NULL, whole numbers 0 (no field allows both null and
 * 0), objects `present` false. Enumerations hold the values above. Strings and lists are owned
 * by the config. Sections and names are those of the document. */

struct spec_ints {
    size_t count;
    const int64_t *items;
};
struct spec_numbers {
    size_t count;
    const double *items;
};
struct spec_strings {
    size_t count;
    const char *const *items;
};

struct spec_model {
    const char *preset;                           /* or NULL */
    int arch;                                     /* enum spec_arch */
    int64_t width;                                /* D */
    int64_t depth;                                /* L: blocks */
    int64_t heads;                                /* divides width */
    struct spec_ints widths, depths, head_counts; /* Swin only, else empty */
    double mlp_ratio; /* hidden width = mlp_ratio * width, see spec_config_mlp_width */
    int mlp_act;      /* enum spec_mlp_act */
    bool bias;        /* linear and norm biases */
    int gelu;         /* enum spec_gelu; used with SPEC_MLP_ACT_GELU */
    int64_t patch[2]; /* rows, columns in pixels; {0, 0} for text */
    int pool;         /* enum spec_pool; the class token exists iff SPEC_POOL_CLS */
    int pos;          /* enum spec_pos */
    bool pos_after;
    int64_t context; /* longest sequence (gpt); 0 for images */
    int64_t window;
    double layerscale; /* NAN: none */
    int64_t landmarks;
    int64_t conv_kernel;
};

struct spec_attention {
    int activation; /* enum spec_activation */
    int64_t degree; /* p; used by poly only */
    int scale;      /* enum spec_scale */
    double k;       /* > 0 with SPEC_SCALE_K, else NAN unless given */
    double alpha;
    int scale_share; /* enum spec_scale_share */
    int scale_param; /* enum spec_scale_param */
    bool scale_decay;
    double scale_lr_mult;
    int n_for_scale; /* enum spec_n_for_scale */
    double n;        /* N that n_for_scale stands for */
    double c0;       /* c of c * s^p (its start if learned): 1, 1/sqrt(n), 1/k, 1/sqrt(n); 1 for softmax */
    bool n_valid;
    bool qk_norm;
    int qk_gain;           /* enum spec_qk_gain */
    int form;              /* enum spec_form */
    double init_logit_std; /* NAN: leave the initialiser's */
    double dropout;
    int class_attention; /* enum spec_class_attention */
    int nystrom_apply;   /* enum spec_nystrom_apply */
};

struct spec_norms {
    int kind;      /* enum spec_norm */
    int placement; /* enum spec_norm_placement */
    double eps;
    int eps_mode; /* enum spec_eps_mode */
    bool final;
};

struct spec_randaugment {
    bool present;
    int64_t n;
    double m;
    double std;
    bool inc;
};

struct spec_augment {
    int crop;               /* enum spec_crop */
    int64_t pad_crop_shift; /* pixels of zero padding and largest shift; used with SPEC_CROP_PAD_CROP */
    double rrc_scale[2];
    double rrc_ratio[2];
    double flip;
    struct spec_randaugment randaugment;
    double mixup;
    double cutmix;
    double mix_prob;
    double switch_prob;
    double erasing;
    int64_t repeats;
    double eval_crop;
    int interpolation; /* enum spec_interpolation: of every change of size */
};

struct spec_data {
    int dataset;      /* enum spec_dataset */
    const char *path; /* "<root>/<relative>" or "<root>"; checked to hold no ".."; NULL for generated data */
    int split;        /* enum spec_split */
    double split_train; /* fraction in (0,1) or a count; NAN with SPEC_SPLIT_GIVEN */
    double split_val;
    int64_t split_seed;         /* -1: train.seed; see spec_config_split_seed */
    struct spec_ints eval;      /* enum spec_dataset */
    int tokenizer;              /* enum spec_tokenizer */
    const char *tokenizer_path; /* as path: folder of the files of gpt2_bpe; else NULL */
    int64_t context;            /* training sequence length (gpt); 0 for images */
    int64_t image_size[2];      /* rows, columns; {0, 0} for text */
    int lra_len;                /* enum spec_lra_len */
    struct spec_augment augment;
};

struct spec_optim {
    int name; /* enum spec_optimizer */
    double lr;
    double betas[2];
    double eps;
    double momentum;
    double dampening;
    bool nesterov;
    double weight_decay;
    bool decay_temperature;
};

struct spec_sched {
    int name; /* enum spec_schedule */
    /* Exactly one is set in the document: steps, or epochs (a number; 0.25 is allowed). -1 and
     * NAN stand for null. spec_config_bind turns either into bound.warmup_steps. */
    int64_t warmup_steps;
    double warmup_epochs;
    double warmup_lr; /* rate at step 0 of the warm-up */
    int warmup_form;  /* enum spec_warmup_form */
    double min_lr;    /* rate at the end */
    bool shifted;     /* true: the decay's clock starts after the warm-up (t-w over T-w); false: t over T */
    int per;          /* enum spec_per */
    struct spec_ints milestones;
    double factor;
};

struct spec_teacher {
    bool present;
    const char *model;
    int kind; /* enum spec_teacher_kind */
    double alpha;
    double tau;
};

struct spec_train {
    int64_t steps; /* exactly one of the two; the other is 0 */
    int64_t epochs;
    int64_t batch; /* global */
    int64_t accumulation;
    int64_t zero; /* 1: moments are kept by one rank each */
    struct spec_optim optimizer;
    struct spec_sched schedule;
    double clip_norm; /* NAN: none */
    double label_smoothing;
    double drop_path;
    int drop_path_rule; /* enum spec_drop_path_rule */
    double dropout;
    int precision; /* enum spec_precision */
    int64_t seed;
    bool deterministic;
    int init;     /* enum spec_init */
    int init_fan; /* enum spec_init_fan */
    double ema;   /* NAN: none */
    bool ema_serve;
    struct spec_teacher teacher;
    int pinn_derivative; /* enum spec_pinn_derivative */
    int64_t nonfinite_limit;
    int64_t eval_every; /* steps; 0: the length in steps was not known when resolving, see bound.eval_every */
    int64_t checkpoint_every_steps; /* exactly one is set; 0 = not this one */
    double checkpoint_every_s;      /* NAN = not this one */
    int64_t keep_experiment, keep_best, keep_latest;
};

struct spec_heatmaps {
    bool present;
    struct spec_ints layers, heads; /* 1-based */
    int64_t every;
};

struct spec_histograms {
    bool present;
    struct spec_strings tensors;
    struct spec_numbers at;
};

struct spec_diagnostics {
    int64_t every; /* steps; 0 = off */
    int64_t probe_batch;
    bool probe_cls;
    struct spec_heatmaps heatmaps;
    struct spec_histograms histograms;
};

struct spec_resources {
    int device;    /* enum spec_device */
    int placement; /* enum spec_placement */
    int64_t slots;
    int64_t threads; /* CPU threads per slot */
    int64_t loader_threads;
    int64_t memory_bytes; /* 0: plan + 25 %, decided when the plan is known */
    int64_t time_limit_s; /* 0: none */
    int64_t warn_before_s;
    int64_t max_restarts;
    int64_t priority;
};

/* Values that need the size of the data set: spec_config_bind fills them. All 0 before. */
struct spec_bound {
    int64_t train_samples;   /* samples of one epoch: images, or windows of data.context tokens */
    int64_t steps_per_epoch; /* whole batches of an epoch; the last, smaller one is dropped */
    int64_t steps;           /* length of the run in steps */
    int64_t warmup_steps;
    int64_t eval_every;
    int64_t micro_batch; /* batch / (slots * accumulation) */
};

struct spec_config {
    const char *name;
    const char *experiment;
    const char *recipe; /* or NULL */
    struct spec_model model;
    struct spec_attention attention;
    struct spec_norms norm;
    struct spec_data data;
    struct spec_train train;
    struct spec_diagnostics diagnostics;
    struct spec_resources resources;
    struct spec_bound bound;
    void *owner; /* private: what holds the strings and lists */
};

/* Loads a resolved document of one run, or any document with exactly one run. On failure
 * `why` holds the first error with its pointer. PD_ERR_LIMIT, PD_ERR_CORRUPT (not JSON),
 * PD_ERR_INVALID, PD_ERR_NOMEM. The caller owns *ret_config. */
PD_NODISCARD enum pd_err spec_config_load(const char *json, size_t len, struct spec_config **ret_config,
                                          struct pd_why *why);
/* A resolved document in the present schema, RFC 8785, appended: fields that came after it was written have
 * the values that were in force without them. Fails as spec_config_load does. */
PD_NODISCARD enum pd_err spec_config_complete(const char *json, size_t len, struct pd_buf *ret_json,
                                              struct pd_why *why);
struct spec_config *spec_config_free(struct spec_config *config);

/* Fills config->bound from the number of training samples (>= 1) in an epoch. PD_ERR_INVALID if an
 * epoch holds less than one batch, or if warm-up or length make no sense for that size. For text the
 * length is normally given in steps; an epoch is floor((tokens - 1) / data.context) windows. */
PD_NODISCARD enum pd_err spec_config_bind(struct spec_config *config, int64_t train_samples,
                                          struct pd_why *why);

/* The metric key by which a run's evaluations and checkpoints are compared, and whether more is better.
 * Static. */
const char *spec_config_best_metric(const struct spec_config *config, bool *ret_maximise);
/* Does a run of this configuration, or polyd about it, write the metric key? Then it is no client's. */
bool spec_config_writes(const struct spec_config *config, const char *key);
/* round(mlp_ratio * width). */
int64_t spec_config_mlp_width(const struct spec_config *config);
/* Head dimension: width / heads. */
int64_t spec_config_head_dim(const struct spec_config *config);
/* Seed of the division into training and validation images, and of generated pictures. */
int64_t spec_config_split_seed(const struct spec_config *config);
/* Patches of an image, rows times columns; 0 for text. */
int64_t spec_config_patches(const struct spec_config *config);
/* Keys that a query sees: patches plus the class token, or data.context. */
int64_t spec_config_keys(const struct spec_config *config);

/* ---- What is known of a data set without opening it ---- */

struct spec_dataset_info {
    const char *name;
    bool available;      /* this build can read it */
    bool image;          /* images with classes */
    bool text;           /* a stream of tokens */
    bool generated;      /* needs no files, so data.path is null */
    int64_t side[2];     /* rows, columns of an image as stored; {0, 0} if they vary */
    int64_t channels;    /* 0 for text */
    int64_t classes;     /* 0 for text or where the files decide */
    int64_t train, test; /* samples under split "given" of generated data; 0 where the files decide */
    const char *layout;  /* which files data.path is to hold, for people; NULL where none are read */
};
/* Static; NULL outside the enum. */
const struct spec_dataset_info *spec_dataset_info(enum spec_dataset dataset);

/* ---- The daemon's side ---- */

/* What resolving needs to know of this installation. Borrowed for the call (spec_job_parse copies
 * what it keeps). A NULL env means: one thread, any data root, no CUDA. */
struct spec_env {
    int64_t threads;     /* default of /resources/threads, >= 1 */
    bool cuda;           /* a CUDA device is usable: what device "auto" becomes */
    const char *no_cuda; /* why a job that asks for one is refused, a sentence; NULL = it is not */
    int64_t keep_best;   /* default of /train/keep/best; -1 = built in */
    int64_t keep_latest; /* likewise */
    size_t root_count;   /* names of the configured data roots, in the configured order */
    const char *const *roots;
    int64_t schema;   /* of a document that names none; 0 = SPEC_SCHEMA */
    bool check_roots; /* refuse a path outside these roots; false accepts any */
};

struct spec_problem {
    char *pointer; /* URI fragment: "#/attention/degree", "#" for the whole; owned by the report */
    char *detail;  /* one sentence without a full stop; owned by the report */
};

/* What a parse has to say. The caller owns the storage and calls spec_report_done whatever the
 * result of the parse was. Errors are in document order of checking, at most SPEC_MAX_PROBLEMS. */
struct spec_report {
    struct spec_problem *errors;
    size_t error_count;
    struct spec_problem *warnings;
    size_t warning_count;
    bool truncated; /* more problems than are listed */
    bool failed;    /* private: memory ran out while reporting */
};

void spec_report_init(struct spec_report *report);
void spec_report_done(struct spec_report *report);
/* Adds what another room found out about the document; the same twice is reported once. */
void spec_report_error(struct spec_report *r, const char *pointer, const char *fmt, ...) PD_PRINTF(3, 4);
void spec_report_warning(struct spec_report *r, const char *pointer, const char *fmt, ...) PD_PRINTF(3, 4);

struct spec_job;

/* Parses, layers, fills in and checks a document and every one of its runs.
 *   PD_OK            a job; the report may hold warnings
 *   PD_ERR_LIMIT     more than SPEC_MAX_BYTES                         (HTTP 413)
 *   PD_ERR_CORRUPT   not JSON, not an object, a key given twice, nested too deep (HTTP 400)
 *   PD_ERR_INVALID   well-formed but wrong: all errors in the report  (HTTP 422)
 *   PD_ERR_NOMEM
 * The report must be initialised. Except for PD_ERR_NOMEM a failure holds at least one error.
 * The caller owns *ret_job. */
PD_NODISCARD enum pd_err spec_job_parse(const char *json, size_t len, const struct spec_env *env,
                                        struct spec_job **ret_job, struct spec_report *report);
/* The same for a text that spec_job_document has written, by this version or an earlier one. */
PD_NODISCARD enum pd_err spec_job_parse_kept(const char *json, size_t len, struct spec_job **ret_job,
                                             struct spec_report *report);
struct spec_job *spec_job_free(struct spec_job *job);

struct spec_tag {
    const char *key;
    const char *value;
};
struct spec_dependency {
    const char *job; /* id, digits only */
    int when;        /* enum spec_when */
};

/* What holds for the job as a whole, whatever the sweep varies. */
struct spec_head {
    const char *name;
    const char *experiment;
    const char *notes;
    const char *register_name; /* or NULL */
    const struct spec_tag *tags;
    size_t tag_count;
    const struct spec_dependency *depends_on;
    size_t depends_on_count;
    int64_t trials;
    int64_t points;      /* combinations of the sweep; 1 without one */
    int64_t run_count;   /* points * trials */
    bool sweep;          /* the document has one */
    int method;          /* enum spec_method */
    const char *metric;  /* ranks the runs; "loss/val" by default, with or without a sweep */
    int mode;            /* enum spec_mode */
    int64_t concurrency; /* runs at once; 0 = no cap */
    struct spec_resources resources;
};
/* Borrowed until spec_job_free. */
const struct spec_head *spec_job_head(const struct spec_job *job);

int64_t spec_job_run_count(const struct spec_job *job);

/* The resolved document of run n (0 .. run_count - 1) in RFC 8785 form, appended to `ret_json`: every
 * key present, the swept values in place, seed + trial, no sweep, trials 1. Run n is combination
 * n / trials (the last axis varies fastest), trial n % trials. Deterministic. */
PD_NODISCARD enum pd_err spec_job_run_resolve(const struct spec_job *job, int64_t n, struct pd_buf *ret_json,
                                              struct pd_why *why);
/* What sets run n apart: a JSON object of the swept pointers and their values, {} without a
 * sweep, in RFC 8785 form, appended. */
PD_NODISCARD enum pd_err spec_job_run_params(const struct spec_job *job, int64_t n, struct pd_buf *ret_json,
                                             struct pd_why *why);
/* Trial (0-based) of run n: n % trials. */
int64_t spec_job_run_trial(const struct spec_job *job, int64_t n);
/* The seed of run n. */
int64_t spec_job_run_seed(const struct spec_job *job, int64_t n);
/* The configuration of run n; the caller owns it. */
PD_NODISCARD enum pd_err spec_job_run_config(const struct spec_job *job, int64_t n,
                                             struct spec_config **ret_config, struct pd_why *why);

/* What the size of the training set, which a plan knows, says of a resolved document: errors where the run
 * cannot be (as spec_config_bind; the worker would refuse it), warnings where its evaluations or the steps of
 * its schedule lie beyond its end. PD_OK with or without them; PD_ERR_NOMEM, and those of spec_config_load.
 */
PD_NODISCARD enum pd_err spec_run_judge(const char *json, size_t len, int64_t train_samples,
                                        struct spec_report *report, struct pd_why *why);

/* The document to store with the job: overrides folded in and everything that came from `env`
 * written out, so that a later parse (with any env) makes the very same runs. RFC 8785, appended. */
PD_NODISCARD enum pd_err spec_job_document(const struct spec_job *job, struct pd_buf *ret_json,
                                           struct pd_why *why);

/* ---- Digests of a resolved document (canonical or not); hexadecimal SHA-256 ---- */

#define SPEC_DIGEST_SIZE 65

/* SHA-256 of its RFC 8785 form. */
PD_NODISCARD enum pd_err spec_config_digest(const char *json, size_t len, char out[SPEC_DIGEST_SIZE],
                                            struct pd_why *why);
/* The same without what does not change the plan (name, experiment, tags, notes, seed, rates, schedule,
 * data path, priority, time limits, depends_on, register), with `facts` added: a text that names
 * data-derived sizes, worker build, back-end ABI and device, for example
 * "build=0.1.0 abi=1 device=cpu train=60000". */
PD_NODISCARD enum pd_err spec_plan_digest(const char *json, size_t len, const char *facts,
                                          char out[SPEC_DIGEST_SIZE], struct pd_why *why);

/* Any JSON text in RFC 8785 form, appended. The document's limits apply, except that any value may
 * be outermost. */
PD_NODISCARD enum pd_err spec_canonical(const char *json, size_t len, struct pd_buf *ret_json,
                                        struct pd_why *why);

/* Appends the UTF-8 text as a JSON string with its quotes. */
void spec_json_string(const char *s, size_t len, struct pd_buf *b);

/* ---- The table, documented by itself ---- */

/* A JSON object appended: {"schema":2,"fields":[{"pointer","type","default","default_rule"?,"nullable",
 * "values"?,"available"?,"minimum"?,"maximum"?,"exclusive_minimum"?,..., "meaning"}],
 * "presets":[{"name","available","values":{...}}],"recipes":[...],"datasets":[...]}. */
PD_NODISCARD enum pd_err spec_fields_json(struct pd_buf *ret_json, struct pd_why *why);
/* Whether the pointer names a field that holds a value, not an object of fields. */
bool spec_pointer_known(const char *pointer);
/* The fixed default of one field as JSON; NULL: no such field, or its default is computed. The caller frees.
 */
char *spec_default_json(const char *pointer);
/* The same as a table of plain text for `polyd fields`, lines of at most 110 columns. */
PD_NODISCARD enum pd_err spec_fields_text(struct pd_buf *ret_text, struct pd_why *why);

/* ---- Fuzzing ---- */

/* Parses, resolves the first and last run, and checks what must hold of them (idempotence, digests).
 * Never fails on any input; aborts if an invariant breaks. */
void spec_fuzz(const uint8_t *bytes, size_t len);
