/* The table of fields: the fields of a job document, as data. Presets, recipes and data sets are in presets.c.
 *
 * Rows stand in the order in which they are resolved: a rule may use what stands above it. To
 * make something available: set its bit in `available`, or take JOB_F_ONLY away. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "daemon/job/internal.h"
#include "daemon/job/rules.h"

/* ---- Names of the enumerations, in the order of job.h ---- */

#define NAMES(var, ...)                                                                                      \
    static const char *const var##_list[] = {__VA_ARGS__};                                                   \
    static const struct job_names var = {sizeof var##_list / sizeof *var##_list, var##_list}

#define SHARED_NAMES(var, ...)                                                                               \
    static const char *const var##_list[] = {__VA_ARGS__};                                                   \
    const struct job_names var = {sizeof var##_list / sizeof *var##_list, var##_list}

NAMES(mlp_act, "gelu", "relu");
NAMES(gelu, "exact", "tanh");
NAMES(pool, "cls", "mean");
NAMES(pos, "learned", "none", "fourier");
#define WORD(constant, word, counted) #word,
NAMES(activation, JOB_ACTIVATIONS(WORD));
#undef WORD
NAMES(scale, "none", "fixed", "k", "learned");
NAMES(scale_share, "layer", "head", "global");
NAMES(scale_param, "direct", "log", "softplus");
NAMES(n_for_scale, "patches", "keys", "window", "channels", "context", "row", "a number");
NAMES(qk_gain, "shared", "per_head");
NAMES(form, "auto", "quadratic", "linear");
NAMES(class_attention, "same", "softmax");
NAMES(pinv, "matrix_abs", "global_abs", "global_colsum");
NAMES(nystrom_apply, "all", "F1F3", "separate");
NAMES(norm_kind, "layer", "rms");
NAMES(placement, "S1", "S2", "S3", "S4", "S5", "post");
NAMES(eps_mode, "mean", "sum");
SHARED_NAMES(job_names_dataset, "mnist", "digits_gen", "cifar10", "imagenet1k", "tiny_imagenet",
             "image_folder", "coco", "digit_canvas", "listops", "listops_gen", "imdb", "aan",
             "pathfinder_gen", "lra_image", "text", "ptb", "wikitext2", "wikitext103", "pg19", "openwebtext",
             "pde_convection", "pde_reaction", "text_labels", "text_gen", "pde_wave", "text_pairs");
NAMES(split_rule, "given", "fraction", "count", "standard");
NAMES(tokenizer, "bytes", "chars", "words", "gpt2_bpe");
NAMES(lra_len, "reference", "paper");
NAMES(crop, "none", "pad_crop", "rrc");
NAMES(interpolation, "bicubic", "bilinear");
NAMES(schedule, "cosine", "linear", "step", "one_cycle", "constant");
NAMES(per, "step", "epoch");
NAMES(warmup_form, "nanogpt", "timm");
NAMES(drop_path_rule, "linear", "same");
NAMES(precision, "fp32", "bf16", "fp16", "fp64", "tf32");
NAMES(recompute, "auto", "on", "off");
NAMES(init, "trunc_normal", "normal", "xavier", "trunc_xavier", "kaiming");
NAMES(init_fan, "separate", "fused");
NAMES(teacher_kind, "hard", "soft");
NAMES(pinn_derivative, "vjp_sum", "jvp_shift");
NAMES(device, "auto", "cpu", "cuda");
NAMES(where, "local", "slurm");
NAMES(method, "grid", "random", "asha");
NAMES(mode, "min", "max");
NAMES(variant, "small", "paper");
NAMES(scored, "val", "test", "train");
#define KIND(constant, name) #name,
NAMES(kind, JOB_WORKER_KINDS(KIND));
#undef KIND
#define THEOREM(name) #name,
NAMES(theorem, JOB_THEOREMS(THEOREM));
#undef THEOREM

#define BIT(i) (1u << (i))

/* ---- The table ---- */

#define ROW(ptr, ty, member) .pointer = ptr, .type = ty, .offset = offsetof(struct job_run, member)
#define BARE(ptr, ty) .pointer = ptr, .type = ty, .offset = JOB_NO_OFFSET
#define RANGE(lo, hi) .min = (lo), .max = (hi)
#define ANY .min = -HUGE_VAL, .max = HUGE_VAL
#define FROM(lo) .min = (lo), .max = HUGE_VAL
#define COUNTS .min = 1, .max = 1e9
#define DEF(json) .def = json
#define RULE(fn, text) .rule = fn, .rule_text = text
#define FLAGS(f) .flags = (f)
#define WITH(fn) .useful = fn, .useful_text = fn##_text
#define SINCE(n, fn, text) .since = (n), .before = fn, .before_text = text
#define SAYS(text, ref) .meaning = text, .reference = ref

#define NULLABLE JOB_F_NULLABLE
#define ONLY JOB_F_ONLY
#define LATER JOB_F_LATER
#define FIXED JOB_F_FIXED
#define NOPLAN JOB_F_NOPLAN
#define ASIDE JOB_F_OFF_TRAJECTORY
#define OPEN0 JOB_F_MIN_OPEN
#define BELOW JOB_F_MAX_OPEN

const struct job_field job_fields[] = {
    /* Head */
    {ROW("/schema", JOB_T_INT, schema), RANGE(1, JOB_SCHEMA), DEF("3"), FLAGS(ASIDE | FIXED),
     SAYS("version of this table; a document of an earlier one keeps the defaults it was computed with, and "
          "resolves to the present one",
          "")},
    {ROW("/kind", JOB_T_ENUM, config.kind), .names = &kind, DEF("\"train\""), FLAGS(ASIDE | FIXED),
     SAYS("what the job does; each kind takes members of its own", "")},
    {ROW("/template", JOB_T_STRING, template_name), RANGE(1, 32), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED), .check = job_check_template,
     SAYS("ready-made experiment, E01-E18 and T1-T20 (GET /api/v1/templates): what stands beside it changes "
          "it; "
          "read by POST /api/v1/jobs alone",
          "M86")},
    {ROW("/variant", JOB_T_ENUM, variant), .names = &variant, DEF("\"small\""), FLAGS(FIXED),
     WITH(job_use_template), SAYS("size of the template", "M86")},
    {ROW("/check", JOB_T_ENUM, config.check.theorem), .names = &theorem,
     RULE(job_rule_required, "to be named"), FLAGS(ASIDE | FIXED),
     SAYS("the statement of the theory that is examined; GET /api/v1/fields lists the parameters of each",
          "M81-M84")},
    {ROW("/params", JOB_T_PARAMS, config.check.params), DEF("{}"), FLAGS(ASIDE | FIXED),
     SAYS("parameters of the statement that is examined, and the seeds of its draws: each by its name, with "
          "a default; a job of kind train has none",
          "M81-M84")},
    {ROW("/recipe", JOB_T_STRING, config.recipe), RANGE(1, 64), DEF("null"), FLAGS(ASIDE | NULLABLE),
     .check = job_check_recipe,
     SAYS("defaults of data, training and attention from a reference project", "")},
    {ROW("/name", JOB_T_STRING, config.name), RANGE(1, 200), DEF("\"job\""), FLAGS(ASIDE | FIXED | NOPLAN),
     SAYS("shown everywhere", "")},
    {ROW("/experiment", JOB_T_STRING, config.experiment), RANGE(1, 128), DEF("\"default\""),
     FLAGS(ASIDE | FIXED | NOPLAN | JOB_F_WORD), SAYS("groups jobs; MLflow's experiment", "")},
    {ROW("/tags", JOB_T_TAGS, head.tags), RANGE(0, 100), DEF("{}"), FLAGS(ASIDE | FIXED | NOPLAN),
     SAYS("searchable words: key up to 250, value up to 5000 bytes", "")},
    {ROW("/notes", JOB_T_STRING, head.notes), RANGE(0, 65536), DEF("\"\""), FLAGS(ASIDE | FIXED | NOPLAN),
     SAYS("Markdown, shown escaped", "")},
    {BARE("/overrides", JOB_T_OVERRIDES), RANGE(0, 100), DEF("{}"), FLAGS(ASIDE | FIXED),
     SAYS("pointer to value; wins over everything, and removes a swept axis of that pointer", "")},
    {ROW("/trials", JOB_T_INT, head.trials), RANGE(1, 64), DEF("1"), FLAGS(ASIDE | FIXED),
     SAYS("repeats; trial t trains with seed + t", "M80")},
    {ROW("/depends_on", JOB_T_DEPENDS, head.depends_on), RANGE(0, 100), DEF("[]"),
     FLAGS(ASIDE | FIXED | NOPLAN | LATER),
     SAYS("jobs to wait for: {\"job\":\"12\",\"when\":\"afterok\"}, or afterany, afternotok", "")},
    {ROW("/register", JOB_T_STRING, head.register_name), RANGE(1, 128), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED | NOPLAN | JOB_F_WORD),
     SAYS("once all runs have ended and none failed, the best checkpoint of the best run (the one whose "
          "sweep.metric "
          "reached the best value) becomes a new version of this model",
          "M91")},

    /* The checkpoint of an evaluation. The daemon fills this in. */
    {ROW("/evaluate/model", JOB_T_STRING, config.evaluate.model), RANGE(1, 160), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED), SAYS("the version of a model that was named", "")},
    {ROW("/evaluate/run", JOB_T_STRING, config.evaluate.run), RANGE(1, 20),
     RULE(job_rule_required, "to be named"), FLAGS(ASIDE | FIXED), .check = job_check_run,
     SAYS("the run that wrote the checkpoint", "")},
    {ROW("/evaluate/step", JOB_T_INT, config.evaluate.step), RANGE(0, 1e9),
     RULE(job_rule_required, "to be named"), FLAGS(ASIDE | FIXED), SAYS("its step", "")},
    {ROW("/evaluate/path", JOB_T_STRING, config.evaluate.path), RANGE(1, 1024),
     RULE(job_rule_required, "to be named"), FLAGS(ASIDE | FIXED), .check = job_check_in_state,
     SAYS("its file, from the state folder on", "")},
    {ROW("/evaluate/sha256", JOB_T_STRING, config.evaluate.sha256), RANGE(64, 64),
     RULE(job_rule_required, "to be named"), FLAGS(ASIDE | FIXED), SAYS("the file's digest", "")},
    {ROW("/evaluate/split", JOB_T_ENUM, config.evaluate.split), .names = &scored, DEF("\"test\""),
     FLAGS(ASIDE | FIXED),
     SAYS("the samples that are scored; test: the data set's own test part, or what data.split leaves", "")},

    /* Model */
    {ROW("/model/preset", JOB_T_STRING, config.model.preset), RANGE(1, 64), DEF("null"),
     FLAGS(ASIDE | NULLABLE), .check = job_check_preset, SAYS("shape by name; see presets", "M35-M46")},
    {ROW("/model/arch", JOB_T_ENUM, config.model.arch), .names = &job_names_arch, .runs = job_network_runs,
     RULE(job_rule_arch, "the preset's"), SAYS("architecture", "M35-M44")},
    {ROW("/data/dataset", JOB_T_ENUM, config.data.dataset), .names = &job_names_dataset,
     .runs = job_dataset_runs, RULE(job_rule_dataset, "the recipe's; otherwise to be named"),
     SAYS(
         "what to train on; digits_gen (digits) and text_gen (text of 0.39105 nats a byte) are made by polyd "
         "itself and need no files",
         "M58-M65")},
    {ROW("/model/widths", JOB_T_INTS, config.model.widths), RANGE(1, 16384), DEF("null"), FLAGS(NULLABLE),
     WITH(job_use_swin), SAYS("width of each stage, twice that of the one before", "M37")},
    {ROW("/model/depths", JOB_T_INTS, config.model.depths), RANGE(1, 256), DEF("null"), FLAGS(NULLABLE),
     WITH(job_use_swin), SAYS("blocks of each stage", "M37")},
    {ROW("/model/head_counts", JOB_T_INTS, config.model.head_counts), RANGE(1, 256), DEF("null"),
     FLAGS(NULLABLE), WITH(job_use_swin), SAYS("heads of each stage", "M37")},
    {ROW("/model/width", JOB_T_INT, config.model.width), RANGE(1, 16384),
     RULE(job_rule_width, "the preset's; a swin: the first of widths; otherwise to be named"),
     SAYS("model width D", "M35")},
    {ROW("/model/depth", JOB_T_INT, config.model.depth), RANGE(1, 256),
     RULE(job_rule_depth, "the preset's; a swin: the sum of depths; otherwise to be named"),
     SAYS("blocks L", "M35")},
    {ROW("/model/heads", JOB_T_INT, config.model.heads), RANGE(1, 256),
     RULE(job_rule_heads, "the preset's; a swin: the first of head_counts; otherwise to be named"),
     SAYS("heads H; divides the width", "M35")},
    {ROW("/model/mlp_ratio", JOB_T_NUMBER, config.model.mlp_ratio), RANGE(0.25, 16), DEF("4"),
     SAYS("width of the feed-forward layer, in widths", "")},
    {ROW("/model/head_width", JOB_T_INT, config.model.head_width), RANGE(1, 16384),
     RULE(job_rule_head_width, "the preset's, else 16 times model.width"), WITH(job_use_pinn),
     SAYS("width of the hidden layers of a pinnsformer's head", "M44")},
    {ROW("/model/mlp_act", JOB_T_ENUM, config.model.mlp_act), .names = &mlp_act, DEF("\"gelu\""),
     SAYS("activation of the feed-forward layer", "M32")},
    {ROW("/model/bias", JOB_T_BOOL, config.model.bias), RULE(job_rule_bias, "the preset's, else true"),
     SAYS("biases of linear layers and norms", "M32")},
    {ROW("/model/gelu", JOB_T_ENUM, config.model.gelu), .names = &gelu,
     RULE(job_rule_gelu, "the preset's; a gpt without one: tanh; else exact"), WITH(job_use_gelu),
     SINCE(2, job_rule_gelu_1, "tanh for a gpt with biases, else exact"),
     SAYS("form of GELU: exact, or the approximation by tanh (Hugging Face's gelu_new)", "M32")},
    {ROW("/data/image_size", JOB_T_INT_PAIR, config.data.image_size), RANGE(4, 2048),
     RULE(job_rule_image_size, "the data set's"), FLAGS(NULLABLE), WITH(job_use_image),
     SAYS("side in pixels, or [rows, columns], after crop or resize", "M59")},
    {ROW("/model/patch", JOB_T_INT_PAIR, config.model.patch), RANGE(1, 2048),
     RULE(job_rule_patch,
          "vit_tiny 16 (4 at 64 pixels), larger ones 16; micro and custom shapes: the largest "
          "divisor of the side that is at most side/7"),
     FLAGS(NULLABLE), WITH(job_use_image), SAYS("side of a patch in pixels, or [rows, columns]", "M35")},
    {ROW("/model/pool", JOB_T_ENUM, config.model.pool), .names = &pool,
     RULE(job_rule_pool, "the preset's, else mean"), WITH(job_use_pool),
     SAYS("what the head reads: a class token or the mean; of a nystrom over all positions, padding included",
          "M35")},
    {ROW("/model/pos", JOB_T_ENUM, config.model.pos), .names = &pos,
     RULE(job_rule_pos, "learned; xcit: fourier"), WITH(job_use_pos),
     SAYS("position embedding: a table that is trained, or a code of sines and cosines of row and column, "
          "projected to the width; an xcit has the code alone, and no other network has it",
          "M38")},
    {ROW("/model/pos_after", JOB_T_BOOL, config.model.pos_after), DEF("false"), WITH(job_use_pos_after),
     SAYS("position embedding after the input norm", "M34")},
    {ROW("/data/lra_len", JOB_T_ENUM, config.data.lra_len), .names = &lra_len, DEF("\"reference\""),
     WITH(job_use_lra),
     SAYS("length of sequences of the Long Range Arena: the default of model.context, and with reference as "
          "many tokens of a "
          "sequence as the authors' preparation keeps (ListOps 2000, Text 1000, Retrieval 4000)",
          "M61")},
    {ROW("/model/context", JOB_T_INT, config.model.context), RANGE(1, 1048576),
     RULE(job_rule_context, "the preset's, else 256; equations: 5; of the Long Range Arena by data.lra_len"),
     FLAGS(NULLABLE), WITH(job_use_sequence),
     SAYS("longest sequence in tokens, of pairs both together; of an equation, the points of each sequence",
          "M41")},
    {ROW("/data/context", JOB_T_INT, config.data.context), RANGE(1, 1048576),
     RULE(job_rule_data_context, "model.context"), FLAGS(NULLABLE), WITH(job_use_sequence),
     SAYS("sequence length in training", "")},
    {ROW("/model/window", JOB_T_INT, config.model.window), RANGE(1, 64), DEF("7"), WITH(job_use_swin),
     SAYS("side of a window in patches; a grid with a shorter side has one window of that side", "M37")},
    {ROW("/model/layerscale", JOB_T_NUMBER, config.model.layerscale), FROM(0), DEF("null"),
     FLAGS(NULLABLE | OPEN0), WITH(job_use_xcit),
     SAYS("initial value of LayerScale, a gain for each channel of a branch; null: there is none", "M38")},
    {ROW("/model/landmarks", JOB_T_INT, config.model.landmarks), RANGE(1, 1048576), DEF("128"),
     WITH(job_use_nystrom),
     SAYS("landmarks m; they divide the context; a context of at most m has plain attention", "M39")},
    {ROW("/model/conv_kernel", JOB_T_INT, config.model.conv_kernel), RANGE(1, 1023), DEF("35"),
     WITH(job_use_nystrom), SAYS("width of the depthwise convolution along the sequence; odd", "M39")},
    {ROW("/model/pinv_iterations", JOB_T_INT, config.model.pinv_iterations), RANGE(1, 64), DEF("6"),
     WITH(job_use_nystrom),
     SAYS("steps towards the pseudo-inverse of the matrix between landmarks; the same in the whole run",
          "M39")},
    {ROW("/model/pinv_start", JOB_T_ENUM, config.model.pinv_start), .names = &pinv, DEF("\"matrix_abs\""),
     WITH(job_use_nystrom),
     SAYS("what they start from: the transpose over the largest absolute sums of a column and of a row, of "
          "each "
          "matrix or of the whole batch; or over the largest signed sum of a column of the batch, for "
          "softmax alone",
          "M39")},

    /* Norm: above attention, whose defaults look at the placement. */
    {ROW("/norm/placement", JOB_T_ENUM, config.norm.placement), .names = &placement, DEF("\"S1\""),
     SAYS("where norms stand", "M26-M31")},
    {ROW("/norm/kind", JOB_T_ENUM, config.norm.kind), .names = &norm_kind,
     RULE(job_rule_norm_kind, "layer; S2-S5 rms"), SAYS("LayerNorm or RMSNorm", "M24, M25")},
    {ROW("/norm/eps", JOB_T_NUMBER, config.norm.eps), FROM(0),
     RULE(job_rule_norm_eps, "1e-6; swin, gpt, nystrom 1e-5"), FLAGS(OPEN0),
     SAYS("added below the root", "M24")},
    {ROW("/norm/eps_mode", JOB_T_ENUM, config.norm.eps_mode), .names = &eps_mode, DEF("\"mean\""),
     SAYS("eps added to the mean or the sum of squares", "M24")},
    {ROW("/norm/final", JOB_T_BOOL, config.norm.final), DEF("true"), SAYS("norm before the head", "M34")},

    /* Optimiser's name: the defaults of the scale look at it. */
    {ROW("/train/optimizer/name", JOB_T_ENUM, config.train.optimizer.name), .names = &job_names_optimiser,
     .runs = job_optimiser_runs, DEF("\"adamw\""), SAYS("optimiser", "M47-M50")},

    /* Attention */
    {ROW("/attention/activation", JOB_T_ENUM, config.attention.activation), .names = &activation,
     DEF("\"softmax\""), SAYS("what turns logits into weights", "M1, M2, M7, M19, M20")},
    {ROW("/attention/formula", JOB_T_STRING, config.attention.formula), RANGE(1, 4096), DEF("null"),
     FLAGS(NULLABLE), WITH(job_use_formula),
     SAYS("the activation as text: a function of the logit s and of rowsum and rowmax over its row, as "
          "exp(s)/(1+rowsum(exp(s))); other names are learned scalars (POST /api/v1/formulas/check tells "
          "what is "
          "wrong with one)",
          "")},
    {ROW("/attention/params", JOB_T_SCALARS, config.attention.params), DEF("{}"), FLAGS(FIXED),
     WITH(job_use_formula),
     SAYS("learned scalars of the formula by name, each an object: init (a number or a formula of n, h, H, "
          "l, L, d; "
          "1), per (layer, head or global; layer), form (what is trained: direct, log, softplus or sigmoid; "
          "direct)",
          "")},
    {ROW("/attention/recognise", JOB_T_BOOL, config.attention.recognise), DEF("true"), WITH(job_use_formula),
     SAYS("run a formula that is a built-in activation (softmax, c s^p, sigmoid, relu, ...) as that", "")},
    {ROW("/attention/degree", JOB_T_INT, config.attention.degree), RANGE(1, 8), DEF("3"), WITH(job_use_poly),
     SAYS("power p", "M2")},
    {ROW("/attention/scale", JOB_T_ENUM, config.attention.scale), .names = &scale, DEF("\"fixed\""),
     WITH(job_use_poly), SAYS("c of c s^p: 1, 1/sqrt(N), 1/k, or trained from 1/sqrt(N)", "M3-M5")},
    {ROW("/attention/k", JOB_T_NUMBER, config.attention.k), FROM(0), DEF("null"), FLAGS(NULLABLE | OPEN0),
     WITH(job_use_k), SAYS("k of s^p/k; needed with scale k", "M4")},
    {ROW("/attention/alpha", JOB_T_NUMBER, config.attention.alpha), FROM(0),
     RULE(job_rule_alpha, "0.5; relu 1; sigmoid_bias 0"), WITH(job_use_alpha),
     SAYS("exponent of n^-alpha", "M7")},
    {ROW("/attention/scale_share", JOB_T_ENUM, config.attention.scale_share), .names = &scale_share,
     RULE(job_rule_scale_share, "layer; S4, S5: head"), WITH(job_use_share),
     SAYS("who shares one learned scale", "M6")},
    {ROW("/attention/scale_param", JOB_T_ENUM, config.attention.scale_param), .names = &scale_param,
     RULE(job_rule_scale_param, "direct; msgdw: log"), WITH(job_use_learned),
     SAYS("what is trained: c, log c, or the inverse of softplus", "M6")},
    {ROW("/attention/scale_decay", JOB_T_BOOL, config.attention.scale_decay), DEF("false"),
     WITH(job_use_scale_decay), SAYS("weight decay on the learned scale, or on a formula's scalars", "M6")},
    {ROW("/attention/scale_lr_mult", JOB_T_NUMBER, config.attention.scale_lr_mult), FROM(0), DEF("1"),
     FLAGS(NOPLAN), WITH(job_use_scale_lr),
     SAYS("learning rate of the scale, or of a formula's scalars, in rates", "M6")},
    {ROW("/attention/n_for_scale", JOB_T_ENUM_OR_NUM, config.attention.n_for_scale), .names = &n_for_scale,
     FROM(0),
     RULE(job_rule_n_for_scale, "vit, deit, xcit: patches; swin: window; gpt, nystrom, pinnsformer: context"),
     FLAGS(OPEN0), WITH(job_use_n),
     SAYS(
         "which number is N; of a swin, each block has its own: window and keys are the patches of one of "
         "its "
         "windows, patches those of its stage; of an xcit, keys and channels are the channels of a head, and "
         "the class layers have an N of their own, the patches and the class token",
         "M8")},
    {ROW("/attention/n", JOB_T_NUMBER, config.attention.n), ANY, RULE(job_rule_n, "computed"),
     FLAGS(JOB_F_COMPUTED | FIXED), WITH(job_use_n),
     SAYS("N as a number; of a swin, that of the first stage", "M8")},
    {ROW("/attention/c0", JOB_T_NUMBER, config.attention.c0), ANY, RULE(job_rule_c0, "computed"),
     FLAGS(JOB_F_COMPUTED | FIXED),
     SAYS("c of c s^p, or its start if learned; 1 without a scale; of a swin, that of the first stage",
          "M8")},
    {ROW("/attention/n_valid", JOB_T_BOOL, config.attention.n_valid), DEF("false"), FLAGS(ONLY),
     SAYS("padding is not counted in N", "M8")},
    {ROW("/attention/qk_norm", JOB_T_BOOL, config.attention.qk_norm),
     RULE(job_rule_qk_norm, "S2-S5: true, else false"),
     SAYS("RMSNorm on each head's queries and keys", "M30")},
    {ROW("/attention/qk_gain", JOB_T_ENUM, config.attention.qk_gain), .names = &qk_gain, DEF("\"shared\""),
     WITH(job_use_qk_gain), SAYS("gains of that norm", "M30")},
    {ROW("/attention/form", JOB_T_ENUM, config.attention.form), .names = &form, DEF("\"auto\""),
     WITH(job_use_form), SAYS("order of the products; linear needs degree 1 or 2", "M18, M103")},
    {ROW("/attention/init_logit_std", JOB_T_NUMBER, config.attention.init_logit_std), RANGE(0, 100),
     DEF("null"), FLAGS(NULLABLE), WITH(job_use_logits),
     SAYS("rescale W_Q and W_K to this standard deviation of the logits", "M21")},
    {ROW("/attention/dropout", JOB_T_NUMBER, config.attention.dropout), RANGE(0, 1), DEF("0"), FLAGS(BELOW),
     SAYS("dropout on the attention matrix", "M33")},
    {ROW("/attention/class_attention", JOB_T_ENUM, config.attention.class_attention),
     .names = &class_attention, DEF("\"same\""), WITH(job_use_xcit),
     SAYS("activation of the class layers: that of the others, or softmax", "M38")},
    {ROW("/attention/nystrom_apply", JOB_T_ENUM, config.attention.nystrom_apply), .names = &nystrom_apply,
     DEF("\"all\""), WITH(job_use_nystrom), SAYS("which of the three softmaxes is replaced", "M39")},

    /* Data */
    {ROW("/data/path", JOB_T_STRING, config.data.path), RANGE(1, 4096),
     RULE(job_rule_path, "the data root with the data set's name; text, text_labels: to be named"),
     FLAGS(NULLABLE), .check = job_check_path,
     /* what lies there decides sizes: it is part of a plan */ WITH(job_use_files),
     SAYS("<root>/<relative>: a place below a configured data root", "")},
    {ROW("/data/split/rule", JOB_T_ENUM, config.data.split), .names = &split_rule, DEF("\"standard\""),
     SINCE(3, job_rule_split, "given; text and one file of text_labels: fraction"),
     SAYS(
         "standard: training, validation and test are three parts; validation and test are files of their "
         "own "
         "where the data set has some (of imagenet1k and tiny_imagenet the folder val is the test part), "
         "else "
         "they are taken from the training files (text from their end, the rest after a seeded shuffle). The "
         "others make two parts, of which the second may be the data set's test files: given, as the files "
         "are; fraction and count, what train and val say",
         "")},
    {ROW("/data/split/train", JOB_T_NUMBER, config.data.split_train), FROM(0),
     RULE(job_rule_split_train, "where the rule is fraction by default: 0.9, else null"),
     FLAGS(NULLABLE | OPEN0), WITH(job_use_split),
     SAYS("fraction or count for training; standard: by default all that is left", "")},
    {ROW("/data/split/val", JOB_T_NUMBER, config.data.split_val), FROM(0),
     RULE(job_rule_split_val, "where the rule is fraction by default: 0.1, else null"),
     FLAGS(NULLABLE | OPEN0), WITH(job_use_split),
     SAYS("fraction or count for validation; standard: by default all files of its own, else a tenth of the "
          "training files",
          "")},
    {ROW("/data/split/test", JOB_T_NUMBER, config.data.split_test), FROM(0), DEF("null"),
     FLAGS(NULLABLE | OPEN0), WITH(job_use_split_test),
     SAYS(
         "fraction or count for the test, which is scored once, at the end, with the selected checkpoint; by "
         "default all test files, without such files none",
         "")},
    {ROW("/data/split_seed", JOB_T_INT, config.data.split_seed), RANGE(0, JOB_MAX_SEED), DEF("0"),
     FLAGS(NULLABLE | NOPLAN), WITH(job_use_split_seed), SINCE(2, job_rule_null, "null"),
     SAYS("of the shuffle that divides images or labelled texts, and of the digits and the text that polyd "
          "makes: the same for all trials; null: follows train.seed, another split in each trial",
          "M93")},
    {ROW("/data/eval", JOB_T_SETS, config.data.eval), .names = &job_names_dataset, .runs = job_set_runs,
     RANGE(0, 8), DEF("[]"), FLAGS(ASIDE | FIXED),
     SAYS("texts that a language model is scored on and never trained on, with its own tokenizer: at the end "
          "of the "
          "run with the selected checkpoint, as loss/eval/<name> and ppl/eval/<name>; a data set's name, or "
          "{dataset, "
          "path, name}: path by default the data root with the data set's name, name by default the data "
          "set's. The "
          "test part is scored, of text and of a folder without parts all of it",
          "E11")},
    {ROW("/data/tokenizer", JOB_T_ENUM, config.data.tokenizer), .names = &tokenizer, DEF("\"bytes\""),
     WITH(job_use_text),
     SAYS("text to tokens: bytes; chars and words of the text itself (of labelled texts: of those trained "
          "on); "
          "GPT-2's byte pairs",
          "M62")},
    {ROW("/data/tokenizer_path", JOB_T_STRING, config.data.tokenizer_path), RANGE(1, 4096),
     RULE(job_rule_tokenizer_path, "gpt2_bpe: gpt2-bpe below the data root of data.path, else null"),
     FLAGS(NULLABLE), .check = job_check_path, WITH(job_use_bpe),
     SAYS("<root>/<relative>: the folder with encoder.json and vocab.bpe, or vocab.json and merges.txt",
          "M62")},
    {ROW("/data/pde/grid", JOB_T_INT_PAIR, config.data.grid), RANGE(2, 1024), DEF("51"), WITH(job_use_pinn),
     SAYS("points of an axis that the residual is taken at, both ends included, or [of t, of x]", "M64")},
    {ROW("/data/pde/test_grid", JOB_T_INT_PAIR, config.data.test_grid), RANGE(2, 1024), DEF("101"),
     WITH(job_use_pinn),
     SAYS("the same of the grid on which the solution is compared with the exact one", "M64")},
    {ROW("/data/pde/step", JOB_T_NUMBER, config.data.pde_step), RANGE(0, 1), DEF("1e-4"), FLAGS(OPEN0),
     WITH(job_use_pinn),
     SAYS("in t, from a point of a sequence to the next; model.context says how many", "M64")},
    {ROW("/data/pde/coefficient", JOB_T_NUMBER, config.data.coefficient), RANGE(-1000, 1000),
     RULE(job_rule_coefficient, "convection 50, reaction 5, wave 2"), WITH(job_use_pinn),
     SAYS("beta of u_t + beta u_x = 0, rho of u_t = rho u (1 - u), c of u_tt = c^2 u_xx", "M64")},
    {ROW("/data/depth", JOB_T_INT, config.data.depth), RANGE(2, 20), DEF("3"), WITH(job_use_listops),
     SAYS("levels of a generated expression, at most; 10 in the Long Range Arena", "M61")},
    {ROW("/data/min_tokens", JOB_T_INT, config.data.min_tokens), RANGE(1, 1048576), DEF("1"),
     WITH(job_use_listops),
     SAYS("tokens of a generated expression, at least; at most data.context; 501 in the Long Range Arena",
          "M61")},
    {ROW("/data/zero_is_padding", JOB_T_BOOL, config.data.zero_is_padding),
     RULE(job_rule_zero_is_padding, "true; text_labels: false"), WITH(job_use_nystrom),
     SAYS("id 0 is padding wherever it stands, so black pixels are; false: only what stands behind the last "
          "token",
          "M61")},
    {ROW("/data/augment/crop", JOB_T_ENUM, config.data.augment.crop), .names = &crop, DEF("\"none\""),
     WITH(job_use_image), SAYS("kind of training crop", "M59")},
    {ROW("/data/augment/pad_crop/shift", JOB_T_INT, config.data.augment.pad_crop_shift), RANGE(0, 64),
     DEF("4"), WITH(job_use_pad_crop), SAYS("zero padding and largest random shift in pixels", "M59")},
    {ROW("/data/augment/rrc/scale", JOB_T_NUMBER_PAIR, config.data.augment.rrc_scale), RANGE(0, 1),
     DEF("[0.08,1]"), FLAGS(OPEN0), WITH(job_use_rrc), SAYS("area of the resized crop, in images", "M59")},
    {ROW("/data/augment/rrc/ratio", JOB_T_NUMBER_PAIR, config.data.augment.rrc_ratio), FROM(0),
     DEF("[0.75,1.3333]"), FLAGS(OPEN0), WITH(job_use_rrc), SAYS("its aspect ratio", "M59")},
    {ROW("/data/augment/flip", JOB_T_NUMBER, config.data.augment.flip), RANGE(0, 1), DEF("0"),
     WITH(job_use_image), SAYS("probability of a horizontal flip", "M59")},
    {ROW("/data/augment/randaugment", JOB_T_OBJECT, config.data.augment.randaugment.present), DEF("null"),
     FLAGS(NULLABLE), WITH(job_use_image),
     SAYS("RandAugment: random operations of each training picture, after crop and flip", "M59")},
    {ROW("/data/augment/randaugment/n", JOB_T_INT, config.data.augment.randaugment.n), RANGE(1, 16), DEF("2"),
     SAYS("operations per image", "M59")},
    {ROW("/data/augment/randaugment/m", JOB_T_NUMBER, config.data.augment.randaugment.m), RANGE(0, 30),
     DEF("9"), SAYS("level around which each operation's is drawn; what is drawn is cut to 0..10", "M59")},
    {ROW("/data/augment/randaugment/std", JOB_T_NUMBER, config.data.augment.randaugment.std), RANGE(0, 30),
     DEF("0.5"), SAYS("its standard deviation", "M59")},
    {ROW("/data/augment/randaugment/inc", JOB_T_BOOL, config.data.augment.randaugment.inc), DEF("true"),
     SAYS("all operations grow with the level (timm's inc1); false: some grow weaker", "M59")},
    {ROW("/data/augment/mixup", JOB_T_NUMBER, config.data.augment.mixup), RANGE(0, 10), DEF("0"),
     WITH(job_use_image), SAYS("alpha of mixup: two pictures and their labels are averaged; 0: not", "M59")},
    {ROW("/data/augment/cutmix", JOB_T_NUMBER, config.data.augment.cutmix), RANGE(0, 10), DEF("0"),
     WITH(job_use_image), SAYS("alpha of cutmix: a rectangle comes from another picture; 0: not", "M59")},
    {ROW("/data/augment/mix_prob", JOB_T_NUMBER, config.data.augment.mix_prob), RANGE(0, 1), DEF("1"),
     WITH(job_use_mix), SAYS("probability of mixing at all", "M59")},
    {ROW("/data/augment/switch_prob", JOB_T_NUMBER, config.data.augment.switch_prob), RANGE(0, 1), DEF("0.5"),
     WITH(job_use_switch), SAYS("probability of cutmix where both are on", "M59")},
    {ROW("/data/augment/erasing", JOB_T_NUMBER, config.data.augment.erasing), RANGE(0, 1), DEF("0"),
     WITH(job_use_image),
     SAYS("probability that a rectangle of a training picture becomes noise (random erasing, per pixel)",
          "M59")},
    {ROW("/data/augment/repeats", JOB_T_INT, config.data.augment.repeats), RANGE(1, 8), DEF("1"),
     WITH(job_use_image),
     SAYS("repeated augmentation: an epoch takes each picture so many times in a row, each time changed "
          "anew, and is "
          "as long as a multiple of 256 pictures allows; needs 256 training pictures",
          "M114")},
    {ROW("/data/augment/eval_crop", JOB_T_NUMBER, config.data.augment.eval_crop), RANGE(0, 1), DEF("1"),
     FLAGS(OPEN0), WITH(job_use_image), SAYS("side of the centre crop in evaluation, in images", "M59")},
    {ROW("/data/augment/interpolation", JOB_T_ENUM, config.data.augment.interpolation),
     .names = &interpolation, DEF("\"bicubic\""), WITH(job_use_resized),
     SAYS("how pictures change their size, in training and evaluation", "M59")},

    /* Training */
    {ROW("/train/steps", JOB_T_INT, config.train.steps), COUNTS,
     RULE(job_rule_length, "exactly one of steps and epochs; the recipe's or to be named"), FLAGS(NULLABLE),
     .group = JOB_GROUP_LENGTH, SAYS("length in optimiser steps", "")},
    {ROW("/train/epochs", JOB_T_INT, config.train.epochs), COUNTS, RULE(job_rule_null, "see steps"),
     FLAGS(NULLABLE), .group = JOB_GROUP_LENGTH, SAYS("length in passes over the training set", "")},
    {ROW("/train/batch", JOB_T_INT, config.train.batch), RANGE(1, 1048576),
     RULE(job_rule_batch, "64; equations: 1"),
     SAYS("images or sequences per optimiser step, over all slots; a step of an equation takes its whole "
          "grid, which "
          "is one sample",
          "")},
    {ROW("/train/accumulation", JOB_T_INT, config.train.accumulation), RANGE(1, 4096), DEF("1"),
     SAYS("micro-batches per optimiser step", "M54")},
    {ROW("/train/zero", JOB_T_INT, config.train.zero), RANGE(0, 1), DEF("0"), WITH(job_use_slots),
     FLAGS(ASIDE),
     SAYS(
         "1: with several slots each keeps the optimiser's moments of its share of the tensors (ZeRO-1); the "
         "result is the same but for rounding",
         "M88")},
    {ROW("/train/optimizer/lr", JOB_T_NUMBER, config.train.optimizer.lr), FROM(0),
     RULE(job_rule_lr, "1e-3; msgdw 0.3; lbfgs 1"), FLAGS(OPEN0 | NOPLAN),
     SAYS("peak learning rate; not scaled by the batch", "")},
    {ROW("/train/optimizer/betas", JOB_T_NUMBER_PAIR, config.train.optimizer.betas), RANGE(0, 1),
     RULE(job_rule_betas, "[0.9,0.999]; gpt [0.9,0.95]"), FLAGS(OPEN0 | BELOW), WITH(job_use_adamw),
     SAYS("AdamW's decay of the two moments", "M47")},
    {ROW("/train/optimizer/eps", JOB_T_NUMBER, config.train.optimizer.eps), FROM(0), DEF("1e-8"),
     FLAGS(OPEN0), WITH(job_use_adamw), SAYS("AdamW's epsilon", "M47")},
    {ROW("/train/optimizer/momentum", JOB_T_NUMBER, config.train.optimizer.momentum), RANGE(0, 1), DEF("0.9"),
     FLAGS(BELOW), WITH(job_use_momentum), SAYS("momentum", "M48")},
    {ROW("/train/optimizer/dampening", JOB_T_NUMBER, config.train.optimizer.dampening), RANGE(0, 1), DEF("0"),
     FLAGS(BELOW), WITH(job_use_dampening), SAYS("dampening of the momentum", "M48")},
    {ROW("/train/optimizer/nesterov", JOB_T_BOOL, config.train.optimizer.nesterov), DEF("false"),
     WITH(job_use_nesterov), SAYS("Nesterov's form", "M48")},
    {ROW("/train/optimizer/weight_decay", JOB_T_NUMBER, config.train.optimizer.weight_decay), FROM(0),
     RULE(job_rule_weight_decay, "0.05; gpt 0.1; pinnsformer and lbfgs 0; msgdw 1e-4"),
     SAYS("decay of tensors with two dimensions or more; decoupled but for msgd_l2", "M51")},
    {ROW("/train/optimizer/decay_temperature", JOB_T_BOOL, config.train.optimizer.decay_temperature),
     DEF("false"), WITH(job_use_xcit), SAYS("the temperatures of an xcit decay too", "M51")},
    {ROW("/train/schedule/name", JOB_T_ENUM, config.train.schedule.name), .names = &schedule,
     RULE(job_rule_schedule, "cosine; lbfgs: constant"), FLAGS(NOPLAN), WITH(job_use_falls),
     SAYS("how the rate falls; one_cycle rises by equal steps from warmup_lr to lr at the last step of the "
          "warm-up, then falls so "
          "to min_lr at the last step of all, as PyTorch's OneCycleLR does with anneal_strategy linear",
          "M52")},
    {ROW("/train/schedule/warmup_steps", JOB_T_INT, config.train.schedule.warmup_steps), RANGE(0, 1e9),
     RULE(job_rule_warmup_steps, "5 % of train.steps; lbfgs: 0"), FLAGS(NULLABLE | NOPLAN),
     .group = JOB_GROUP_WARMUP, SAYS("steps of linear warm-up", "M52")},
    {ROW("/train/schedule/warmup_epochs", JOB_T_NUMBER, config.train.schedule.warmup_epochs), RANGE(0, 1e9),
     RULE(job_rule_warmup_epochs, "5 % of train.epochs; lbfgs: 0"), FLAGS(NULLABLE | NOPLAN),
     .group = JOB_GROUP_WARMUP, SAYS("the same in epochs; parts of one are allowed", "M52")},
    {ROW("/train/schedule/warmup_lr", JOB_T_NUMBER, config.train.schedule.warmup_lr), FROM(0), DEF("0"),
     FLAGS(NOPLAN), WITH(job_use_warmup_lr),
     SAYS("rate at the start of the warm-up; under one_cycle 0 stands for lr/25", "M52")},
    {ROW("/train/schedule/warmup_form", JOB_T_ENUM, config.train.schedule.warmup_form), .names = &warmup_form,
     RULE(job_rule_warmup_form, "timm where warmup_lr is given, else nanogpt"), FLAGS(NOPLAN),
     WITH(job_use_warmup_form),
     SAYS("how a warm-up of w counts: nanogpt lr (t+1)/(w+1), which wastes no step; timm from warmup_lr at "
          "t = 0 to lr at t = w",
          "M52")},
    {ROW("/train/schedule/min_lr", JOB_T_NUMBER, config.train.schedule.min_lr), FROM(0),
     RULE(job_rule_min_lr, "lr/100; one_cycle: lr/250000"), FLAGS(NOPLAN), WITH(job_use_min_lr),
     SAYS("rate at the end", "M52")},
    {ROW("/train/schedule/beta1", JOB_T_NUMBER_PAIR, config.train.schedule.beta1), RANGE(0, 1),
     DEF("[0.95,0.85]"), FLAGS(OPEN0 | BELOW | NOPLAN), WITH(job_use_beta1),
     SAYS("under one_cycle AdamW's first beta at the ends and at the peak of the rate, against which it "
          "moves; it takes the "
          "place of the first of optimizer.betas",
          "M52")},
    {ROW("/train/schedule/shifted", JOB_T_BOOL, config.train.schedule.shifted), DEF("true"), FLAGS(NOPLAN),
     WITH(job_use_shifted), SAYS("the decay's clock starts after the warm-up", "M52")},
    {ROW("/train/schedule/per", JOB_T_ENUM, config.train.schedule.per), .names = &per, DEF("\"step\""),
     FLAGS(NOPLAN), WITH(job_use_per), SAYS("the rate changes each step or each epoch", "M52")},
    {ROW("/train/schedule/milestones", JOB_T_INTS, config.train.schedule.milestones), RANGE(1, 1e9),
     DEF("[]"), FLAGS(NOPLAN), WITH(job_use_step), SAYS("steps at which the rate falls", "M52")},
    {ROW("/train/schedule/factor", JOB_T_NUMBER, config.train.schedule.factor), RANGE(0, 1), DEF("0.1"),
     FLAGS(OPEN0 | BELOW | NOPLAN), WITH(job_use_factor), SAYS("what it is multiplied with", "M52")},
    {ROW("/train/clip_norm", JOB_T_NUMBER, config.train.clip_norm), FROM(0),
     RULE(job_rule_clip, "gpt 1, else null"), FLAGS(NULLABLE | OPEN0),
     SAYS("largest global norm of the gradient", "M53")},
    {ROW("/train/label_smoothing", JOB_T_NUMBER, config.train.label_smoothing), RANGE(0, 1), DEF("0"),
     FLAGS(BELOW), SAYS("label smoothing", "M59")},
    {ROW("/train/drop_path", JOB_T_NUMBER, config.train.drop_path), RANGE(0, 1), DEF("0"), FLAGS(BELOW),
     WITH(job_use_depth), SAYS("stochastic depth", "M33")},
    {ROW("/train/drop_path_rule", JOB_T_ENUM, config.train.drop_path_rule), .names = &drop_path_rule,
     DEF("\"linear\""), WITH(job_use_drop_path),
     SAYS("growing with the depth or the same everywhere", "M33")},
    {ROW("/train/dropout", JOB_T_NUMBER, config.train.dropout), RANGE(0, 1), DEF("0"), FLAGS(BELOW),
     SAYS("dropout behind embeddings and projections", "M33")},
    {ROW("/resources/device", JOB_T_ENUM, config.resources.device), .names = &device,
     RULE(job_rule_device, "cuda where present, else cpu"), FLAGS(ASIDE | FIXED),
     SAYS("where to compute; auto is decided when the job is accepted", "")},
    {ROW("/train/precision", JOB_T_ENUM, config.train.precision), .names = &precision,
     .available = BIT(JOB_PRECISION_FP32) | BIT(JOB_PRECISION_BF16) | BIT(JOB_PRECISION_FP64) |
                  BIT(JOB_PRECISION_TF32),
     RULE(job_rule_precision, "cpu fp32, cuda bf16; pinnsformer: fp32"),
     SAYS("numbers of activations and products; parameters are f32, or f64 (cpu); tf32 rounds what f32 "
          "products "
          "read (cuda); bf16 on a cpu is faster than fp32 only where the worker measures that its products "
          "are, which "
          "dry_run says",
          "M56")},
    {ROW("/train/recompute", JOB_T_ENUM, config.train.recompute), .names = &recompute, DEF("\"auto\""),
     FLAGS(ASIDE),
     SAYS("cheap activations (norms, elementwise, GELU) of the backward pass: on computes them again where "
          "that makes "
          "the plan smaller, off keeps them; auto is off where the forecast of a cuda job fits its device "
          "that way, else "
          "on; the result is the same but for rounding",
          "")},
    {ROW("/train/seed", JOB_T_INT, config.train.seed), RANGE(0, JOB_MAX_SEED), DEF("0"), FLAGS(NOPLAN),
     SAYS("of initial weights, order and augmentation", "M93")},
    {ROW("/train/deterministic", JOB_T_BOOL, config.train.deterministic), DEF("true"), FLAGS(ASIDE | ONLY),
     SAYS("bitwise the same from run to run", "M93")},
    {ROW("/train/init", JOB_T_ENUM, config.train.init), .names = &init,
     RULE(job_rule_init, "trunc_normal; gpt normal; nystrom kaiming; pinnsformer xavier"),
     SAYS("initial weights; kaiming: uniform within 1 / sqrt(inputs)", "M55")},
    {ROW("/train/init_fan", JOB_T_ENUM, config.train.init_fan), .names = &init_fan, DEF("\"separate\""),
     WITH(job_use_xavier), SAYS("fans of the fused query-key-value matrix", "M55")},
    {ROW("/train/start", JOB_T_OBJECT, config.train.start.present), DEF("null"), FLAGS(NULLABLE | FIXED),
     SAYS("weights that training begins with, instead of initial values: {\"model\": \"name:version\"} or "
          "{\"run\": "
          "\"12\", \"checkpoint\": \"best\"}; a document without a network takes that of the file",
          "")},
    {ROW("/train/start/model", JOB_T_STRING, config.train.start.model), RANGE(1, 160), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED), SAYS("the version of a model that was named", "")},
    {ROW("/train/start/run", JOB_T_STRING, config.train.start.run), RANGE(1, 20), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED), .check = job_check_run, SAYS("the run that wrote the checkpoint", "")},
    {ROW("/train/start/step", JOB_T_INT, config.train.start.step), RANGE(0, 1e9),
     RULE(job_rule_start, "filled in by polyd"), FLAGS(ASIDE | FIXED), SAYS("its step", "")},
    {ROW("/train/start/path", JOB_T_STRING, config.train.start.path), RANGE(1, 1024),
     RULE(job_rule_start, "filled in by polyd"), FLAGS(ASIDE | FIXED), .check = job_check_in_state,
     SAYS("its file, from the state folder on", "")},
    {ROW("/train/start/sha256", JOB_T_STRING, config.train.start.sha256), RANGE(64, 64),
     RULE(job_rule_start, "filled in by polyd"), FLAGS(FIXED), SAYS("the file's digest", "")},
    {ROW("/train/start/optimizer", JOB_T_BOOL, config.train.start.optimizer), DEF("false"), FLAGS(FIXED),
     SAYS("the optimiser's states are taken too: to go on with an own run for more epochs or on other data, "
          "with the "
          "same optimiser; schedule and steps begin anew",
          "")},
    {ROW("/train/start/reset", JOB_T_STRING, config.train.start.reset), RANGE(1, 4096), DEF("null"),
     FLAGS(NULLABLE | FIXED),
     SAYS("beginnings of names, with commas between: these parameters keep their initial values, such as the "
          "head for "
          "other classes: \"head.\"",
          "")},
    {ROW("/train/freeze", JOB_T_STRING, config.train.freeze), RANGE(1, 4096), DEF("null"), FLAGS(NULLABLE),
     SAYS("beginnings of names, with commas between: these parameters are not trained", "")},
    {ROW("/train/layer_decay", JOB_T_NUMBER, config.train.layer_decay), RANGE(0, 1), DEF("1"), FLAGS(OPEN0),
     SAYS("learning rate of a block, in rates of the block behind it: with L blocks that of the head times "
          "this to the "
          "power L + 1 for the embedding (timm)",
          "")},
    {ROW("/train/ema", JOB_T_NUMBER, config.train.ema), RANGE(0, 1), DEF("null"),
     FLAGS(NULLABLE | OPEN0 | BELOW), SAYS("decay of the averaged weights, which are scored apart", "M102")},
    {ROW("/train/ema_serve", JOB_T_BOOL, config.train.ema_serve), DEF("false"), WITH(job_use_ema),
     SAYS("the averaged weights tell which checkpoint is best, and are what a model made of it serves",
          "M102")},
    {ROW("/train/stop/patience", JOB_T_INT, config.train.stop.patience), COUNTS, DEF("null"),
     FLAGS(ASIDE | NULLABLE | NOPLAN),
     SAYS("evaluations in a row without a better value, after which training ends early; null: it does not",
          "")},
    {ROW("/train/stop/metric", JOB_T_STRING, config.train.stop.metric), RANGE(1, 250), DEF("null"),
     FLAGS(ASIDE | NULLABLE | NOPLAN), WITH(job_use_stop), .check = job_check_stop_metric,
     SAYS("the value: a key that an evaluation writes; null: the one that tells which checkpoint is best",
          "")},
    {ROW("/train/stop/min_change", JOB_T_NUMBER, config.train.stop.min_change), FROM(0), DEF("0"),
     FLAGS(ASIDE | NOPLAN), WITH(job_use_stop), SAYS("a value is better if it is so by more than this", "")},
    {ROW("/train/teacher", JOB_T_OBJECT, config.train.teacher.present), DEF("null"), FLAGS(NULLABLE | FIXED),
     SAYS("a registered model of the same pictures and classes, from which a deit's second head learns; it "
          "sees "
          "the images as they are after augmentation",
          "M36")},
    {ROW("/train/teacher/model", JOB_T_STRING, config.train.teacher.model), RANGE(1, 200),
     RULE(job_rule_required, "to be named"), FLAGS(ASIDE | FIXED),
     SAYS("a name (its highest version), name:3 or name:alias; resolved to the version when the job is "
          "accepted",
          "M36")},
    /* The daemon fills these in. */
    {ROW("/train/teacher/path", JOB_T_STRING, config.train.teacher.path), RANGE(1, 1024),
     RULE(job_rule_teacher, "the version's"), FLAGS(ASIDE | FIXED), .check = job_check_in_state,
     SAYS("the version's file, from the state folder on", "M36")},
    {ROW("/train/teacher/sha256", JOB_T_STRING, config.train.teacher.sha256), RANGE(64, 64),
     RULE(job_rule_teacher, "the version's"), FLAGS(FIXED), SAYS("that file's digest", "M36")},
    {ROW("/train/teacher/kind", JOB_T_ENUM, config.train.teacher.kind), .names = &teacher_kind,
     DEF("\"hard\""), SAYS("hard or soft targets", "M36")},
    {ROW("/train/teacher/alpha", JOB_T_NUMBER, config.train.teacher.alpha), RANGE(0, 1), DEF("0.5"),
     SAYS("share of the teacher in the loss", "M36")},
    {ROW("/train/teacher/tau", JOB_T_NUMBER, config.train.teacher.tau), FROM(0), DEF("1"), FLAGS(OPEN0),
     WITH(job_use_tau), SAYS("temperature of soft targets", "M36")},
    {ROW("/train/pinn_derivative", JOB_T_ENUM, config.train.pinn_derivative), .names = &pinn_derivative,
     DEF("\"vjp_sum\""), WITH(job_use_pinn),
     SAYS("how u of a sequence is differentiated by a coordinate: vjp_sum, the gradient of the sum over the "
          "sequence by "
          "each of its points, as in the reference implementation; jvp_shift, how u changes where the whole "
          "sequence is "
          "shifted",
          "M45")},
    {ROW("/train/nonfinite_limit", JOB_T_INT, config.train.nonfinite_limit), RANGE(1, 1e6), DEF("10"),
     FLAGS(ASIDE), SAYS("skipped steps before the run is diverged", "M16")},
    {ROW("/train/eval_every", JOB_T_INT, config.train.eval_every), COUNTS,
     RULE(job_rule_eval_every,
          "steps/20; null with a length in epochs: the worker takes steps/20 once it knows the data"),
     FLAGS(ASIDE | NULLABLE), SAYS("steps between evaluations", "")},
    {ROW("/train/checkpoint_every/steps", JOB_T_INT, config.train.checkpoint_every_steps), COUNTS,
     RULE(job_rule_null, "exactly one of steps and seconds"), FLAGS(ASIDE | NULLABLE),
     .group = JOB_GROUP_CHECKPOINT, SAYS("steps between checkpoints", "M90")},
    {ROW("/train/checkpoint_every/seconds", JOB_T_NUMBER, config.train.checkpoint_every_s), FROM(0),
     DEF("600"), FLAGS(ASIDE | NULLABLE | OPEN0), .group = JOB_GROUP_CHECKPOINT,
     SAYS("seconds between checkpoints", "M90")},
    {ROW("/train/keep/experiment", JOB_T_INT, config.train.keep_experiment), RANGE(0, 100), DEF("0"),
     FLAGS(ASIDE | FIXED | ONLY), SAYS("checkpoints kept of the experiment's best", "M90")},
    {ROW("/train/keep/best", JOB_T_INT, config.train.keep_best), RANGE(0, 100),
     RULE(job_rule_keep_best, "the daemon's, normally 1"), FLAGS(ASIDE | FIXED),
     SAYS("of the run's best", "M90")},
    {ROW("/train/keep/latest", JOB_T_INT, config.train.keep_latest), RANGE(0, 100),
     RULE(job_rule_keep_latest, "the daemon's, normally 1"), FLAGS(ASIDE | FIXED),
     SAYS("of the run's latest", "M90")},

    /* Diagnostics */
    {ROW("/diagnostics/every", JOB_T_INT, config.diagnostics.every), RANGE(0, 1e9), DEF("50"), FLAGS(ASIDE),
     SAYS("steps between norms and logits; 0 is off", "M12-M15")},
    {ROW("/diagnostics/probe_batch", JOB_T_INT, config.diagnostics.probe_batch), RANGE(1, 1024), DEF("32"),
     WITH(job_use_probe), FLAGS(ASIDE), SAYS("samples of the fixed batch they are taken from", "M12")},
    {ROW("/diagnostics/probe_cls", JOB_T_BOOL, config.diagnostics.probe_cls), DEF("true"),
     WITH(job_use_class_token), FLAGS(ASIDE),
     SAYS("the class token counts in norms and logits; false: without its row and column", "M12")},
    {ROW("/diagnostics/heatmaps", JOB_T_OBJECT, config.diagnostics.heatmaps.present), DEF("null"),
     FLAGS(ASIDE | NULLABLE),
     SAYS("attention matrices, mean over the probe batch, with logits, entropy and rank", "M22, M23")},
    {ROW("/diagnostics/heatmaps/layers", JOB_T_INTS, config.diagnostics.heatmaps.layers), RANGE(1, 256),
     DEF("[]"), FLAGS(ASIDE), SAYS("layers, from 1; empty: all", "M22")},
    {ROW("/diagnostics/heatmaps/heads", JOB_T_INTS, config.diagnostics.heatmaps.heads), RANGE(1, 256),
     DEF("[]"), FLAGS(ASIDE), SAYS("heads, from 1; empty: all", "M22")},
    {ROW("/diagnostics/heatmaps/every", JOB_T_INT, config.diagnostics.heatmaps.every), COUNTS, DEF("500"),
     FLAGS(ASIDE), SAYS("steps between two of a head; the last step has one too", "M22")},
    {ROW("/diagnostics/histograms", JOB_T_OBJECT, config.diagnostics.histograms.present), DEF("null"),
     FLAGS(ASIDE | NULLABLE),
     SAYS("distributions of the entries of a whole batch's gradient, without dropout", "M74")},
    {ROW("/diagnostics/histograms/tensors", JOB_T_STRINGS, config.diagnostics.histograms.tensors),
     RANGE(1, 256), DEF("[]"), FLAGS(ASIDE), SAYS("of w_q, w_k, w_v, w_o, w_1, w_2; empty: all", "M74")},
    {ROW("/diagnostics/histograms/at", JOB_T_NUMBERS, config.diagnostics.histograms.at), RANGE(0, 1),
     DEF("[0,0.5,1]"), FLAGS(ASIDE), SAYS("fractions of the run after which one is taken", "M74")},

    /* Resources */
    {ROW("/resources/placement", JOB_T_ENUM, config.resources.placement), .names = &where,
     .available = BIT(JOB_PLACEMENT_LOCAL), DEF("\"local\""), FLAGS(ASIDE | FIXED),
     SAYS("this machine or a cluster", "M111")},
    {ROW("/resources/slots", JOB_T_INT, config.resources.slots), RANGE(1, 1024), DEF("1"),
     FLAGS(ASIDE | FIXED),
     SAYS("ranks that train together, one device each; they divide the batch; gpus: n is device cuda and "
          "slots n",
          "M88")},
    {ROW("/data/augment/mix_group", JOB_T_INT, config.data.augment.mix_group), RANGE(2, 1048576),
     RULE(job_rule_mix_group, "batch/(slots x accumulation)"), FLAGS(NULLABLE), WITH(job_use_mix),
     SAYS("images that are mixed with each other and share what is drawn for it, each with the one at the "
          "mirrored "
          "place; even, and a divisor of batch/(slots x accumulation)",
          "M59")},
    {ROW("/resources/threads", JOB_T_INT, config.resources.threads), RANGE(1, 256),
     RULE(job_rule_threads, "the daemon's"), FLAGS(ASIDE | FIXED), WITH(job_use_cpu),
     SAYS("CPU threads of a slot", "")},
    {ROW("/resources/loader_threads", JOB_T_INT, config.resources.loader_threads), RANGE(1, 64),
     RULE(job_rule_loader_threads, "2 where pictures are decoded, else 1"), FLAGS(ASIDE | FIXED | NOPLAN),
     SAYS("threads that prepare batches; their number changes no result", "")},
    {ROW("/resources/memory_bytes", JOB_T_INT, config.resources.memory_bytes), RANGE(1, JOB_MAX_SEED),
     DEF("null"), FLAGS(ASIDE | NULLABLE | FIXED | ONLY),
     SAYS("limit of host memory; null: plan + 25 %", "")},
    {ROW("/resources/time_limit_s", JOB_T_INT, config.resources.time_limit_s), COUNTS, DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED | NOPLAN), SAYS("seconds of a run, all attempts together", "")},
    {ROW("/resources/warn_before_s", JOB_T_INT, config.resources.warn_before_s), COUNTS, DEF("60"),
     FLAGS(ASIDE | FIXED | NOPLAN), WITH(job_use_time_limit),
     SAYS("seconds of warning before the limit", "")},
    {ROW("/resources/max_restarts", JOB_T_INT, config.resources.max_restarts), RANGE(0, 100), DEF("3"),
     FLAGS(ASIDE | FIXED), SAYS("attempts after the first", "")},
    {ROW("/resources/priority", JOB_T_INT, config.resources.priority), RANGE(-100, 100), DEF("0"),
     FLAGS(ASIDE | FIXED | NOPLAN), SAYS("greater goes first; above 0 for operators", "M87")},

    /* Sweep: an object with these keys in a job, null in a resolved run. */
    {ROW("/sweep", JOB_T_OBJECT, sweep_present), DEF("null"), FLAGS(ASIDE | NULLABLE | FIXED),
     SAYS("one job, many runs", "M57")},
    {ROW("/sweep/method", JOB_T_ENUM, head.method), .names = &method,
     .available = BIT(JOB_METHOD_GRID) | BIT(JOB_METHOD_RANDOM), DEF("\"grid\""), FLAGS(ASIDE | FIXED),
     SAYS("every combination, random ones, or early stopping", "M57")},
    {BARE("/sweep/axes", JOB_T_AXES), RANGE(1, 8), RULE(job_rule_required, "to be named"),
     FLAGS(ASIDE | FIXED),
     SAYS("what varies: {\"pointer\"} with values [..], log or linear [lo,hi,n], or (random) uniform or "
          "loguniform [lo,hi]",
          "M57")},
    {ROW("/sweep/samples", JOB_T_INT, samples), RANGE(1, JOB_MAX_RUNS), DEF("16"), FLAGS(ASIDE | FIXED),
     WITH(job_use_drawn), SAYS("combinations drawn (random, asha)", "M57")},
    {ROW("/sweep/seed", JOB_T_INT, sweep_seed), RANGE(0, JOB_MAX_SEED), DEF("0"), FLAGS(ASIDE | FIXED),
     WITH(job_use_drawn), SAYS("of the drawing", "M57")},
    {ROW("/sweep/metric", JOB_T_STRING, head.metric), RANGE(1, 250), DEF("\"loss/val\""),
     FLAGS(ASIDE | FIXED), SAYS("ranks the runs", "M57")},
    {ROW("/sweep/mode", JOB_T_ENUM, head.mode), .names = &mode, DEF("\"min\""), FLAGS(ASIDE | FIXED),
     SAYS("whether less or more is better", "M57")},
    {ROW("/sweep/min_steps", JOB_T_INT, min_steps), COUNTS, DEF("null"), FLAGS(ASIDE | NULLABLE | FIXED),
     WITH(job_use_asha), SAYS("first rung (asha); null: steps/27", "M57")},
    {ROW("/sweep/reduction", JOB_T_INT, reduction), RANGE(2, 10), DEF("3"), FLAGS(ASIDE | FIXED),
     WITH(job_use_asha), SAYS("rungs grow by this (asha)", "M57")},
    {ROW("/sweep/concurrency", JOB_T_INT, head.concurrency), RANGE(0, 10000), DEF("0"), FLAGS(ASIDE | FIXED),
     SAYS("runs at once; 0 is no cap", "M57")},
};
const size_t job_field_count = sizeof job_fields / sizeof *job_fields;

_Static_assert(sizeof job_fields / sizeof *job_fields <= 256, "struct job_ctx has room for 256 fields");

bool job_field_runs(const struct job_field *f, unsigned i)
{
    return f->runs ? f->runs(i) : !f->available || f->available >> i & 1;
}
