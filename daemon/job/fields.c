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
#define DIGEST(fn) .in_digest = fn
#define EARLIER(fn) .in_earlier = fn
#define SINCE(n, fn, text) .since = (n), .before = fn, .before_text = text
#define MEANS(text, ref) .meaning = text, .reference = ref

#define NULLABLE JOB_F_NULLABLE
#define ONLY JOB_F_ONLY
#define LATER JOB_F_LATER
#define FIXED JOB_F_FIXED
#define NOPLAN JOB_F_NOPLAN
#define ASIDE JOB_F_OFF_TRAJECTORY
#define OPEN0 JOB_F_MIN_OPEN
#define BELOW JOB_F_MAX_OPEN
#define RAISED JOB_F_MIN_RAISED

const struct job_field job_fields[] = {
    /* Head */
    {ROW("/schema", JOB_T_INT, schema), RANGE(1, JOB_SCHEMA), DEF("3"), FLAGS(ASIDE | FIXED),
     MEANS("version of the job document; a document of an earlier version keeps that version's defaults and "
           "is resolved to the current one",
           "daemon/job/JOB.md#how-a-document-is-resolved")},
    {ROW("/kind", JOB_T_ENUM, config.kind), .names = &kind, DEF("\"train\""), FLAGS(ASIDE | FIXED),
     MEANS("what the job does; each kind has its own members", "daemon/job/JOB.md#kinds")},
    {ROW("/template", JOB_T_STRING, template_name), RANGE(1, 32), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED), .check = job_check_template,
     MEANS("name of a ready-made experiment, E01 to E18 or T1 to T20 (GET /api/v1/templates); the other "
           "members of the document replace those of the template; accepted by POST /api/v1/jobs only",
           "api/USING.md#experiments-by-name")},
    {ROW("/variant", JOB_T_ENUM, variant), .names = &variant, DEF("\"small\""), FLAGS(FIXED),
     WITH(job_use_template), MEANS("size of the template", "api/USING.md#experiments-by-name")},
    {ROW("/check", JOB_T_ENUM, config.check.theorem), .names = &theorem, RULE(job_rule_required, "required"),
     FLAGS(ASIDE | FIXED),
     MEANS("statement of the theory to verify; GET /api/v1/fields lists the parameters of each",
           "daemon/job/JOB.md#kinds")},
    {ROW("/params", JOB_T_PARAMS, config.check.params), DEF("{}"), FLAGS(ASIDE | FIXED),
     MEANS("parameters of the statement and the seeds of its random draws, by name, each with a default; a "
           "job of kind train has none",
           "daemon/job/JOB.md#kinds")},
    {ROW("/recipe", JOB_T_STRING, config.recipe), RANGE(1, 64), DEF("null"), FLAGS(ASIDE | NULLABLE),
     .check = job_check_recipe,
     MEANS("named set of defaults for data, training and attention, taken from a reference project",
           "daemon/job/JOB.md#how-a-document-is-resolved")},
    {ROW("/name", JOB_T_STRING, config.name), RANGE(1, 200), DEF("\"job\""), FLAGS(ASIDE | FIXED | NOPLAN),
     MEANS("name of the job, shown in lists and on its page", "")},
    {ROW("/experiment", JOB_T_STRING, config.experiment), RANGE(1, 128), DEF("\"default\""),
     FLAGS(ASIDE | FIXED | NOPLAN | JOB_F_NAME),
     MEANS("groups jobs; corresponds to an experiment of MLflow", "")},
    {ROW("/tags", JOB_T_TAGS, head.tags), RANGE(0, 100), DEF("{}"), FLAGS(ASIDE | FIXED | NOPLAN),
     MEANS("key-value pairs to search by: keys of up to 250 bytes, values of up to 5000", "")},
    {ROW("/notes", JOB_T_STRING, head.notes), RANGE(0, 65536), DEF("\"\""), FLAGS(ASIDE | FIXED | NOPLAN),
     MEANS("notes in Markdown; shown as text, without HTML", "")},
    {BARE("/overrides", JOB_T_OVERRIDES), RANGE(0, 100), DEF("{}"), FLAGS(ASIDE | FIXED),
     MEANS("values by JSON pointer; they replace all other sources, and remove a sweep axis with the same "
           "pointer",
           "daemon/job/JOB.md#how-a-document-is-resolved")},
    {ROW("/trials", JOB_T_INT, head.trials), RANGE(1, 64), DEF("1"), FLAGS(ASIDE | FIXED),
     MEANS("number of repetitions; trial t uses train.seed + t", "daemon/job/JOB.md#sweeps-and-trials")},
    {ROW("/depends_on", JOB_T_DEPENDS, head.depends_on), RANGE(0, 100), DEF("[]"),
     FLAGS(ASIDE | FIXED | NOPLAN | LATER),
     MEANS("jobs to wait for: {\"job\":\"12\",\"when\":\"afterok\"}; also afterany and afternotok", "")},
    {ROW("/register", JOB_T_STRING, head.register_name), RANGE(1, 128), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED | NOPLAN | JOB_F_NAME),
     MEANS("name of a model: when all runs have ended and none has failed, the best checkpoint of the best "
           "run (by sweep.metric) becomes a new version of this model",
           "api/USING.md#serving")},

    /* The checkpoint of an evaluation. The daemon fills this in. */
    {ROW("/evaluate/model", JOB_T_STRING, config.evaluate.model), RANGE(1, 160), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED),
     MEANS("model version that the document named", "daemon/job/JOB.md#kinds")},
    {ROW("/evaluate/run", JOB_T_STRING, config.evaluate.run), RANGE(1, 20),
     RULE(job_rule_required, "required"), FLAGS(ASIDE | FIXED), .check = job_check_run,
     MEANS("run that wrote the checkpoint", "daemon/job/JOB.md#kinds")},
    {ROW("/evaluate/step", JOB_T_INT, config.evaluate.step), RANGE(0, 1e9),
     RULE(job_rule_required, "required"), FLAGS(ASIDE | FIXED),
     MEANS("training step of the checkpoint", "daemon/job/JOB.md#kinds")},
    {ROW("/evaluate/path", JOB_T_STRING, config.evaluate.path), RANGE(1, 1024),
     RULE(job_rule_required, "required"), FLAGS(ASIDE | FIXED), .check = job_check_in_state,
     MEANS("file of the checkpoint, relative to the state folder", "daemon/job/JOB.md#kinds")},
    {ROW("/evaluate/sha256", JOB_T_STRING, config.evaluate.sha256), RANGE(64, 64),
     RULE(job_rule_required, "required"), FLAGS(ASIDE | FIXED),
     MEANS("SHA-256 of the file", "daemon/job/JOB.md#kinds")},
    {ROW("/evaluate/split", JOB_T_ENUM, config.evaluate.split), .names = &scored, DEF("\"test\""),
     FLAGS(ASIDE | FIXED),
     MEANS("part of the data to score; test is the data set's own test part or the part that data.split "
           "reserves; an equation has none, so its default is val, the evaluation grid",
           "daemon/job/JOB.md#kinds")},

    /* Model */
    {ROW("/model/preset", JOB_T_STRING, config.model.preset), RANGE(1, 64), DEF("null"),
     FLAGS(ASIDE | NULLABLE), .check = job_check_preset,
     MEANS("named sizes of a network", "daemon/job/JOB.md#how-a-document-is-resolved")},
    {ROW("/model/arch", JOB_T_ENUM, config.model.arch), .names = &job_names_arch, .runs = job_network_runs,
     RULE(job_rule_arch, "the preset's"), MEANS("network architecture", "")},
    {ROW("/data/dataset", JOB_T_ENUM, config.data.dataset), .names = &job_names_dataset,
     .runs = job_dataset_runs, RULE(job_rule_dataset, "the recipe's; otherwise required"),
     MEANS("data set; digits_gen (digits) and text_gen (text with an entropy of 0.39105 nats per byte) are "
           "generated by polyd and need no files",
           "api/USING.md#data")},
    {ROW("/model/widths", JOB_T_INTS, config.model.widths), RANGE(1, 16384), DEF("null"), FLAGS(NULLABLE),
     WITH(job_use_swin), MEANS("width of each stage; each is twice the previous one", "")},
    {ROW("/model/depths", JOB_T_INTS, config.model.depths), RANGE(1, 256), DEF("null"), FLAGS(NULLABLE),
     WITH(job_use_swin), MEANS("number of blocks in each stage", "")},
    {ROW("/model/head_counts", JOB_T_INTS, config.model.head_counts), RANGE(1, 256), DEF("null"),
     FLAGS(NULLABLE), WITH(job_use_swin), MEANS("number of heads in each stage", "")},
    {ROW("/model/width", JOB_T_INT, config.model.width), RANGE(1, 16384),
     RULE(job_rule_width, "the preset's; a swin: the first of widths; otherwise required"),
     MEANS("model width D", "")},
    {ROW("/model/depth", JOB_T_INT, config.model.depth), RANGE(1, 256),
     RULE(job_rule_depth, "the preset's; a swin: the sum of depths; otherwise required"),
     MEANS("number of blocks L", "")},
    {ROW("/model/heads", JOB_T_INT, config.model.heads), RANGE(1, 256),
     RULE(job_rule_heads, "the preset's; a swin: the first of head_counts; otherwise required"),
     MEANS("number of heads H; must divide the width", "")},
    {ROW("/model/mlp_ratio", JOB_T_NUMBER, config.model.mlp_ratio), RANGE(0.25, 16), DEF("4"),
     MEANS("width of the feed-forward layer as a multiple of the model width", "")},
    {ROW("/model/head_width", JOB_T_INT, config.model.head_width), RANGE(1, 16384),
     RULE(job_rule_head_width, "the preset's, else 16 times model.width"), WITH(job_use_pinn),
     MEANS("width of the hidden layers in a pinnsformer's output head", "daemon/job/JOB.md#equations")},
    {ROW("/model/mlp_act", JOB_T_ENUM, config.model.mlp_act), .names = &mlp_act, DEF("\"gelu\""),
     WITH(job_use_mlp_act), DIGEST(job_digest_always),
     MEANS("activation function of the feed-forward layer", "")},
    {ROW("/model/bias", JOB_T_BOOL, config.model.bias), RULE(job_rule_bias, "the preset's, else true"),
     MEANS("whether linear layers and norms have biases", "")},
    {ROW("/model/gelu", JOB_T_ENUM, config.model.gelu), .names = &gelu,
     RULE(job_rule_gelu, "the preset's; otherwise tanh for a gpt without a preset, else exact"),
     WITH(job_use_gelu), DIGEST(job_digest_gelu),
     SINCE(2, job_rule_gelu_1, "tanh for a gpt with biases, else exact"),
     MEANS("form of GELU: exact, or the tanh approximation (gelu_new of Hugging Face)", "")},
    {ROW("/data/image_size", JOB_T_INT_PAIR, config.data.image_size), RANGE(4, 2048),
     RULE(job_rule_image_size, "the data set's"), FLAGS(NULLABLE), WITH(job_use_image),
     MEANS("side length of the image in pixels, or [rows, columns], after cropping or resizing", "")},
    {ROW("/model/patch", JOB_T_INT_PAIR, config.model.patch), RANGE(1, 2048),
     RULE(job_rule_patch,
          "vit_tiny 16 (4 at 64 pixels), larger ones 16; micro and custom shapes: the largest "
          "divisor of the side that is at most side/7"),
     FLAGS(NULLABLE), WITH(job_use_image), MEANS("side length of a patch in pixels, or [rows, columns]", "")},
    {ROW("/model/pool", JOB_T_ENUM, config.model.pool), .names = &pool,
     RULE(job_rule_pool, "the preset's, else mean"), WITH(job_use_pool),
     MEANS("input of the classification head: the class token, or the mean over all tokens; a nystrom "
           "averages over all positions, padding included",
           "")},
    {ROW("/model/pos", JOB_T_ENUM, config.model.pos), .names = &pos,
     RULE(job_rule_pos, "learned; xcit: fourier"), WITH(job_use_pos), DIGEST(job_digest_pos),
     MEANS("position embedding: learned is a trained table; fourier is sines and cosines of row and column, "
           "projected to the width; xcit supports fourier and none, other networks learned and none",
           "")},
    {ROW("/model/pos_after", JOB_T_BOOL, config.model.pos_after), DEF("false"), WITH(job_use_pos_after),
     DIGEST(job_digest_pos_after),
     MEANS("apply the position embedding after the input norm instead of before it",
           "kernels/ATTENTION.md#10-norms-and-their-placement")},
    {ROW("/data/lra_len", JOB_T_ENUM, config.data.lra_len), .names = &lra_len, DEF("\"reference\""),
     WITH(job_use_lra), EARLIER(job_digest_lra),
     MEANS("sequence length for data sets of the Long Range Arena: sets the default of model.context; "
           "reference also limits sequences to the lengths of the authors' preprocessing (ListOps 2000, Text "
           "1000, Retrieval 4000)",
           "daemon/job/JOB.md#sequences")},
    {ROW("/model/context", JOB_T_INT, config.model.context), RANGE(1, 1048576),
     RULE(job_rule_context, "the preset's, else 256; equations: 5; Long Range Arena: by data.lra_len"),
     FLAGS(NULLABLE), WITH(job_use_sequence),
     MEANS("maximum sequence length in tokens; for text pairs, of both texts together; for an equation, the "
           "number of points per sequence",
           "daemon/job/JOB.md#sequences")},
    {ROW("/data/context", JOB_T_INT, config.data.context), RANGE(1, 1048576),
     RULE(job_rule_data_context, "model.context"), FLAGS(NULLABLE), WITH(job_use_sequence),
     MEANS("sequence length in training", "daemon/job/JOB.md#sequences")},
    {ROW("/model/window", JOB_T_INT, config.model.window), RANGE(1, 64), DEF("7"), WITH(job_use_swin),
     MEANS(
         "side length of an attention window in patches; on a smaller grid the window is the grid's shorter "
         "side",
         "")},
    {ROW("/model/layerscale", JOB_T_NUMBER, config.model.layerscale), FROM(0), DEF("null"),
     FLAGS(NULLABLE | OPEN0), WITH(job_use_xcit),
     MEANS("initial value of LayerScale, a trained gain per channel of each residual branch; null: no "
           "LayerScale",
           "")},
    {ROW("/model/landmarks", JOB_T_INT, config.model.landmarks), RANGE(1, 1048576), DEF("128"),
     WITH(job_use_nystrom),
     MEANS("number of landmarks m; must divide the context; with a context of at most m tokens, attention is "
           "exact",
           "daemon/job/JOB.md#sequences")},
    {ROW("/model/conv_kernel", JOB_T_INT, config.model.conv_kernel), RANGE(1, 1023), DEF("35"),
     WITH(job_use_nystrom),
     MEANS("width of the depthwise convolution along the sequence; odd", "daemon/job/JOB.md#sequences")},
    {ROW("/model/pinv_iterations", JOB_T_INT, config.model.pinv_iterations), RANGE(1, 64), DEF("6"),
     WITH(job_use_nystrom),
     MEANS("iterations of the pseudo-inverse of the landmark matrix; the same number throughout the run",
           "daemon/job/JOB.md#sequences")},
    {ROW("/model/pinv_start", JOB_T_ENUM, config.model.pinv_start), .names = &pinv, DEF("\"matrix_abs\""),
     WITH(job_use_nystrom),
     MEANS(
         "initial value of the pseudo-inverse: the transpose divided by the largest absolute column sum and "
         "row sum, of each matrix (matrix_abs) or of the whole batch (global_abs), or by the largest column "
         "sum of the batch (global_colsum, softmax only)",
         "daemon/job/JOB.md#sequences")},

    /* Norm: above attention, whose defaults look at the placement. */
    {ROW("/norm/placement", JOB_T_ENUM, config.norm.placement), .names = &placement, DEF("\"S1\""),
     MEANS("position of the norms in a block", "kernels/ATTENTION.md#10-norms-and-their-placement")},
    {ROW("/norm/kind", JOB_T_ENUM, config.norm.kind), .names = &norm_kind,
     RULE(job_rule_norm_kind, "layer; S2-S5 rms"), WITH(job_use_norms), DIGEST(job_digest_always),
     MEANS("LayerNorm or RMSNorm", "kernels/ATTENTION.md#10-norms-and-their-placement")},
    {ROW("/norm/eps", JOB_T_NUMBER, config.norm.eps), FROM(0),
     RULE(job_rule_norm_eps, "1e-6; swin, gpt, nystrom 1e-5"), FLAGS(OPEN0), WITH(job_use_norms),
     DIGEST(job_digest_always),
     MEANS("epsilon under the square root", "kernels/ATTENTION.md#10-norms-and-their-placement")},
    {ROW("/norm/eps_mode", JOB_T_ENUM, config.norm.eps_mode), .names = &eps_mode, DEF("\"mean\""),
     WITH(job_use_norms), DIGEST(job_digest_always),
     MEANS("whether epsilon is added to the mean or to the sum of squares",
           "kernels/ATTENTION.md#10-norms-and-their-placement")},
    {ROW("/norm/final", JOB_T_BOOL, config.norm.final), DEF("true"), WITH(job_use_norms),
     DIGEST(job_digest_always),
     MEANS("apply a norm before the output head", "kernels/ATTENTION.md#10-norms-and-their-placement")},

    /* Optimiser's name: the defaults of the scale look at it. */
    {ROW("/train/optimizer/name", JOB_T_ENUM, config.train.optimizer.name), .names = &job_names_optimiser,
     .runs = job_optimiser_runs, DEF("\"adamw\""), MEANS("optimiser", "")},

    /* Attention */
    {ROW("/attention/activation", JOB_T_ENUM, config.attention.activation), .names = &activation,
     DEF("\"softmax\""),
     MEANS("function that maps attention logits to attention weights", "kernels/ATTENTION.md#1-activations")},
    {ROW("/attention/formula", JOB_T_STRING, config.attention.formula), RANGE(1, 4096), DEF("null"),
     FLAGS(NULLABLE), WITH(job_use_formula),
     MEANS("activation as text: a function of the logit s and of rowsum and rowmax over its row, such as "
           "exp(s)/(1+rowsum(exp(s))); any other name is a learned scalar (POST /api/v1/formulas/check "
           "explains errors)",
           "daemon/job/JOB.md#attention-by-formula")},
    {BARE("/attention/formulas", JOB_T_FORMULAS), RANGE(1, JOB_MAX_AXIS_VALUES), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED),
     MEANS("formulas to compare, in place of formula: each is a text, or an object with formula and params; "
           "they become the last axis of the sweep",
           "daemon/job/JOB.md#attention-by-formula")},
    {ROW("/attention/params", JOB_T_SCALARS, config.attention.params), DEF("{}"), FLAGS(FIXED),
     WITH(job_use_formula),
     MEANS("learned scalars of the formula by name; each is an object with init (a number or a formula of n, "
           "h, H, l, L, d; default 1), per (layer, head or global; default layer) and form (the trained "
           "quantity: direct, log, softplus or sigmoid; default direct)",
           "daemon/job/JOB.md#attention-by-formula")},
    {ROW("/attention/recognise", JOB_T_BOOL, config.attention.recognise), DEF("true"), WITH(job_use_formula),
     MEANS("run a formula that equals a built-in activation (softmax, c s^p, sigmoid, relu, ...) as that "
           "activation",
           "daemon/job/JOB.md#attention-by-formula")},
    {ROW("/attention/degree", JOB_T_INT, config.attention.degree), RANGE(1, 8), DEF("3"), WITH(job_use_poly),
     MEANS("power p", "kernels/ATTENTION.md#1-activations")},
    {ROW("/attention/scale", JOB_T_ENUM, config.attention.scale), .names = &scale, DEF("\"fixed\""),
     WITH(job_use_poly),
     MEANS("factor c of c s^p: 1, 1/sqrt(N), 1/k, or learned with the initial value 1/sqrt(N)",
           "kernels/ATTENTION.md#3-scales")},
    {ROW("/attention/k", JOB_T_NUMBER, config.attention.k), FROM(0), DEF("null"), FLAGS(NULLABLE | OPEN0),
     WITH(job_use_k), MEANS("divisor k of s^p/k; required with scale k", "kernels/ATTENTION.md#3-scales")},
    {ROW("/attention/alpha", JOB_T_NUMBER, config.attention.alpha), FROM(0),
     RULE(job_rule_alpha, "0.5; relu 1; sigmoid_bias 0"), WITH(job_use_alpha),
     MEANS("exponent alpha of the factor n^-alpha", "kernels/ATTENTION.md#3-scales")},
    {ROW("/attention/scale_share", JOB_T_ENUM, config.attention.scale_share), .names = &scale_share,
     RULE(job_rule_scale_share, "layer; S4, S5: head"), WITH(job_use_share),
     MEANS("parameters that share one learned scale: those of a layer, of a head, or all",
           "kernels/ATTENTION.md#3-scales")},
    {ROW("/attention/scale_param", JOB_T_ENUM, config.attention.scale_param), .names = &scale_param,
     RULE(job_rule_scale_param, "direct; msgdw: log"), WITH(job_use_learned),
     MEANS("trained quantity: c, log c, or the inverse of softplus at c", "kernels/ATTENTION.md#3-scales")},
    {ROW("/attention/scale_decay", JOB_T_BOOL, config.attention.scale_decay), DEF("false"),
     WITH(job_use_scale_decay),
     MEANS("apply weight decay to the learned scale or to a formula's scalars",
           "kernels/ATTENTION.md#9-weight-decay")},
    {ROW("/attention/scale_lr_mult", JOB_T_NUMBER, config.attention.scale_lr_mult), FROM(0), DEF("1"),
     FLAGS(NOPLAN), WITH(job_use_scale_lr),
     MEANS("learning rate of the scale or of a formula's scalars, as a multiple of the learning rate",
           "kernels/ATTENTION.md#3-scales")},
    {ROW("/attention/n_for_scale", JOB_T_ENUM_OR_NUM, config.attention.n_for_scale), .names = &n_for_scale,
     FROM(0),
     RULE(job_rule_n_for_scale, "vit, deit, xcit: patches; swin: window; gpt, nystrom, pinnsformer: context"),
     FLAGS(OPEN0), WITH(job_use_n),
     MEANS("definition of N. In a swin each block has its own N: window and keys count the patches of a "
           "window, patches those of the stage. In an xcit, keys and channels count the channels of a head; "
           "the class layers use the number of patches plus the class token. For pairs of texts, context and "
           "keys count the tokens of one text",
           "kernels/ATTENTION.md#4-n")},
    {ROW("/attention/n", JOB_T_NUMBER, config.attention.n), ANY, RULE(job_rule_n, "computed"),
     FLAGS(JOB_F_COMPUTED | FIXED), WITH(job_use_n),
     MEANS("N as a number; for a swin, that of the first stage", "kernels/ATTENTION.md#4-n")},
    {ROW("/attention/c0", JOB_T_NUMBER, config.attention.c0), ANY, RULE(job_rule_c0, "computed"),
     FLAGS(JOB_F_COMPUTED | FIXED),
     MEANS("factor c of c s^p, or its initial value if it is learned; 1 without a scale; for a swin, that of "
           "the first stage",
           "kernels/ATTENTION.md#3-scales")},
    {ROW("/attention/n_valid", JOB_T_BOOL, config.attention.n_valid), DEF("false"), WITH(job_use_n_valid),
     MEANS(
         "N of a sequence is the number of its tokens that are not padding: c is multiplied by sqrt(N / that "
         "number)",
         "kernels/ATTENTION.md#4-n")},
    {ROW("/attention/qk_norm", JOB_T_BOOL, config.attention.qk_norm),
     RULE(job_rule_qk_norm, "S2-S5: true, else false"),
     MEANS("apply RMSNorm to the queries and keys of each head",
           "kernels/ATTENTION.md#10-norms-and-their-placement")},
    {ROW("/attention/qk_gain", JOB_T_ENUM, config.attention.qk_gain), .names = &qk_gain, DEF("\"shared\""),
     WITH(job_use_qk_gain), EARLIER(job_digest_qk_gain),
     MEANS("gains of the norm of queries and keys: shared by all heads, or per head",
           "kernels/ATTENTION.md#10-norms-and-their-placement")},
    {ROW("/attention/form", JOB_T_ENUM, config.attention.form), .names = &form, DEF("\"auto\""),
     WITH(job_use_form),
     MEANS("order of the matrix products; linear (linear time) needs degree 1 or 2",
           "kernels/ENGINE.md#8-linear-time-forms-of-x-and-x²")},
    {ROW("/attention/init_logit_std", JOB_T_NUMBER, config.attention.init_logit_std), RANGE(0, 100),
     DEF("null"), FLAGS(NULLABLE), WITH(job_use_logits),
     MEANS("scale W_Q and W_K at initialisation so that the logits have this standard deviation",
           "kernels/ATTENTION.md#8-logits-at-initialisation")},
    {ROW("/attention/dropout", JOB_T_NUMBER, config.attention.dropout), RANGE(0, 1), DEF("0"), FLAGS(BELOW),
     MEANS("dropout probability of the attention matrix", "")},
    {ROW("/attention/class_attention", JOB_T_ENUM, config.attention.class_attention),
     .names = &class_attention, DEF("\"same\""), WITH(job_use_xcit),
     MEANS("activation in the class layers: the same as in the other layers, or softmax", "")},
    {ROW("/attention/nystrom_apply", JOB_T_ENUM, config.attention.nystrom_apply), .names = &nystrom_apply,
     DEF("\"all\""), WITH(job_use_nystrom),
     MEANS("which of the three softmax functions the activation replaces", "daemon/job/JOB.md#sequences")},

    /* Data */
    {ROW("/data/path", JOB_T_STRING, config.data.path), RANGE(1, 4096),
     RULE(job_rule_path, "the data root with the data set's name; required for text and text_labels"),
     FLAGS(NULLABLE), .check = job_check_path,
     /* what lies there decides sizes: it is part of a plan */ WITH(job_use_files),
     MEANS("location of the data as <root>/<relative path>, where root is a data root of the configuration",
           "api/USING.md#data")},
    {ROW("/data/split/rule", JOB_T_ENUM, config.data.split), .names = &split_rule, DEF("\"standard\""),
     WITH(job_use_split_rule), DIGEST(job_digest_always),
     SINCE(3, job_rule_split, "given; text and one file of text_labels: fraction"),
     MEANS("standard: training, validation and test parts; validation and test come from the data set's own "
           "files if it has them (for imagenet1k and tiny_imagenet the folder val is the test part), "
           "otherwise from the training files (from the end of a text, at random from other data). given, "
           "fraction and count make two parts, the second of which may be the data set's test files: given "
           "uses the files as they are, fraction and count use train and val",
           "daemon/job/JOB.md#training-validation-and-test-part")},
    {ROW("/data/split/train", JOB_T_NUMBER, config.data.split_train), FROM(0),
     RULE(job_rule_split_train, "where the rule is fraction by default: 0.9, else null"),
     FLAGS(NULLABLE | OPEN0), WITH(job_use_split), DIGEST(job_digest_split),
     MEANS("fraction or number of samples for training; with standard, everything that remains by default",
           "daemon/job/JOB.md#training-validation-and-test-part")},
    {ROW("/data/split/val", JOB_T_NUMBER, config.data.split_val), FROM(0),
     RULE(job_rule_split_val, "where the rule is fraction by default: 0.1, else null"),
     FLAGS(NULLABLE | OPEN0), WITH(job_use_split), DIGEST(job_digest_split),
     MEANS("fraction or number of samples for validation; with standard, the data set's validation files by "
           "default, otherwise a tenth of the training files",
           "daemon/job/JOB.md#training-validation-and-test-part")},
    {ROW("/data/split/test", JOB_T_NUMBER, config.data.split_test), FROM(0), DEF("null"),
     FLAGS(NULLABLE | OPEN0), WITH(job_use_split_test), DIGEST(job_digest_split_test),
     MEANS("fraction or number of samples for the test, which is scored once, at the end, with the selected "
           "checkpoint; all test files by default, or no test part if there are none",
           "daemon/job/JOB.md#training-validation-and-test-part")},
    {ROW("/data/split_seed", JOB_T_INT, config.data.split_seed), RANGE(0, JOB_MAX_SEED), DEF("0"),
     FLAGS(NULLABLE | NOPLAN), WITH(job_use_split_seed), DIGEST(job_digest_split_seed),
     SINCE(2, job_rule_null, "null"),
     MEANS(
         "seed of the random split of images and labelled texts, and of generated digits and text; the same "
         "for all trials; null: use train.seed, so that each trial has its own split",
         "daemon/job/JOB.md#training-validation-and-test-part")},
    {ROW("/data/eval", JOB_T_SETS, config.data.eval), .names = &job_names_dataset, .runs = job_set_runs,
     RANGE(0, 8), DEF("[]"), FLAGS(ASIDE | FIXED),
     MEANS(
         "texts for zero-shot evaluation of a language model, scored at the end of the run with the selected "
         "checkpoint and the model's own tokenizer, as loss/eval/<name> and ppl/eval/<name>. An entry is a "
         "data set's name or {dataset, path, name}; path is by default the data root with the data set's "
         "name, name the data set's. Scores the test part; for text and for folders without parts, all of it",
         "daemon/job/JOB.md#training-validation-and-test-part")},
    {ROW("/data/tokenizer", JOB_T_ENUM, config.data.tokenizer), .names = &tokenizer, DEF("\"bytes\""),
     WITH(job_use_text),
     MEANS("tokenizer: bytes; chars or words of the text itself (for labelled texts, of the training part); "
           "gpt2_bpe for GPT-2's byte pair encoding",
           "")},
    {ROW("/data/tokenizer_path", JOB_T_STRING, config.data.tokenizer_path), RANGE(1, 4096),
     RULE(job_rule_tokenizer_path, "gpt2_bpe: gpt2-bpe below the data root of data.path, else null"),
     FLAGS(NULLABLE), .check = job_check_path, WITH(job_use_bpe),
     MEANS("folder of the tokenizer's files, encoder.json and vocab.bpe or vocab.json and merges.txt, as "
           "<root>/<relative path>",
           "")},
    {ROW("/data/pde/grid", JOB_T_INT_PAIR, config.data.grid), RANGE(2, 1024), DEF("51"), WITH(job_use_pinn),
     MEANS("points per axis of the training grid, at which the residual is evaluated, both ends included; or "
           "[points in t, points in x]",
           "daemon/job/JOB.md#equations")},
    {ROW("/data/pde/test_grid", JOB_T_INT_PAIR, config.data.test_grid), RANGE(2, 1024), DEF("101"),
     WITH(job_use_pinn),
     MEANS("points per axis of the evaluation grid, on which the solution is compared with the exact one; or "
           "[points in t, points in x]. pde_wave, which is 0 at both ends of x, needs 3 points in x",
           "daemon/job/JOB.md#equations")},
    {ROW("/data/pde/step", JOB_T_NUMBER, config.data.pde_step), RANGE(1e-6, 1), DEF("1e-4"), FLAGS(RAISED),
     WITH(job_use_pinn),
     MEANS("distance in t between consecutive points of a sequence; model.context is the number of points. "
           "Points are f32, in which shorter steps vanish",
           "daemon/job/JOB.md#equations")},
    {ROW("/data/pde/coefficient", JOB_T_NUMBER, config.data.coefficient), RANGE(-1000, 1000),
     RULE(job_rule_coefficient, "convection 50, reaction 5, wave 2"), WITH(job_use_pinn),
     MEANS("coefficient of the equation: beta in u_t + beta u_x = 0, rho in u_t = rho u (1 - u), c in u_tt = "
           "c^2 u_xx",
           "daemon/job/JOB.md#equations")},
    {ROW("/data/depth", JOB_T_INT, config.data.depth), RANGE(2, 20), DEF("3"), WITH(job_use_listops),
     MEANS("maximum depth of a generated expression; 10 in the Long Range Arena",
           "daemon/job/JOB.md#sequences")},
    {ROW("/data/min_tokens", JOB_T_INT, config.data.min_tokens), RANGE(1, 1048576), DEF("1"),
     WITH(job_use_listops),
     MEANS("minimum length of a generated expression in tokens; at most data.context; 501 in the Long Range "
           "Arena",
           "daemon/job/JOB.md#sequences")},
    {ROW("/data/contour", JOB_T_INT, config.data.contour), RANGE(2, 32),
     RULE(job_rule_contour, "4 of 16 x 16 pixels, 12 of 32 x 32, 20 of 64 x 64"), WITH(job_use_pathfinder),
     MEANS("dashes of each of the two curves of a generated picture; the ends of shorter curves lie closer "
           "together",
           "daemon/job/JOB.md#sequences")},
    {ROW("/data/zero_is_padding", JOB_T_BOOL, config.data.zero_is_padding),
     RULE(job_rule_zero_is_padding, "true; text_labels: false"), WITH(job_use_zero), DIGEST(job_use_nystrom),
     MEANS("treat every token with id 0 as padding, black pixels included; false: only positions after the "
           "last token are padding",
           "daemon/job/JOB.md#sequences")},
    {ROW("/data/augment/crop", JOB_T_ENUM, config.data.augment.crop), .names = &crop, DEF("\"none\""),
     WITH(job_use_image), MEANS("type of crop in training", "")},
    {ROW("/data/augment/pad_crop/shift", JOB_T_INT, config.data.augment.pad_crop_shift), RANGE(0, 64),
     DEF("4"), WITH(job_use_pad_crop),
     MEANS("width of the zero padding and maximum random shift, in pixels", "")},
    {ROW("/data/augment/rrc/scale", JOB_T_NUMBER_PAIR, config.data.augment.rrc_scale), RANGE(0, 1),
     DEF("[0.08,1]"), FLAGS(OPEN0), WITH(job_use_rrc),
     MEANS("area of the random resized crop as a fraction of the image: [minimum, maximum]", "")},
    {ROW("/data/augment/rrc/ratio", JOB_T_NUMBER_PAIR, config.data.augment.rrc_ratio), FROM(0),
     DEF("[0.75,1.3333]"), FLAGS(OPEN0), WITH(job_use_rrc),
     MEANS("aspect ratio of the random resized crop: [minimum, maximum]", "")},
    {ROW("/data/augment/flip", JOB_T_NUMBER, config.data.augment.flip), RANGE(0, 1), DEF("0"),
     WITH(job_use_image), MEANS("probability of a horizontal flip", "")},
    {ROW("/data/augment/randaugment", JOB_T_OBJECT, config.data.augment.randaugment.present), DEF("null"),
     FLAGS(NULLABLE), WITH(job_use_image),
     MEANS("RandAugment: random operations on each training image, after crop and flip", "")},
    {ROW("/data/augment/randaugment/n", JOB_T_INT, config.data.augment.randaugment.n), RANGE(1, 16), DEF("2"),
     MEANS("number of operations per image", "")},
    {ROW("/data/augment/randaugment/m", JOB_T_NUMBER, config.data.augment.randaugment.m), RANGE(0, 30),
     DEF("9"),
     MEANS("mean magnitude of the operations; each magnitude is drawn around it and clipped to 0..10", "")},
    {ROW("/data/augment/randaugment/std", JOB_T_NUMBER, config.data.augment.randaugment.std), RANGE(0, 30),
     DEF("0.5"), MEANS("standard deviation of the magnitude", "")},
    {ROW("/data/augment/randaugment/inc", JOB_T_BOOL, config.data.augment.randaugment.inc), DEF("true"),
     MEANS("all operations become stronger with the magnitude (timm's inc1); false: some become weaker", "")},
    {ROW("/data/augment/mixup", JOB_T_NUMBER, config.data.augment.mixup), RANGE(0, 10), DEF("0"),
     WITH(job_use_image), MEANS("alpha of mixup, which averages two images and their labels; 0: off", "")},
    {ROW("/data/augment/cutmix", JOB_T_NUMBER, config.data.augment.cutmix), RANGE(0, 10), DEF("0"),
     WITH(job_use_image),
     MEANS("alpha of CutMix, which replaces a rectangle by that of another image; 0: off", "")},
    {ROW("/data/augment/mix_prob", JOB_T_NUMBER, config.data.augment.mix_prob), RANGE(0, 1), DEF("1"),
     WITH(job_use_mix), MEANS("probability that mixup or CutMix is applied", "")},
    {ROW("/data/augment/switch_prob", JOB_T_NUMBER, config.data.augment.switch_prob), RANGE(0, 1), DEF("0.5"),
     WITH(job_use_switch), MEANS("probability of CutMix if both mixup and CutMix are on", "")},
    {ROW("/data/augment/erasing", JOB_T_NUMBER, config.data.augment.erasing), RANGE(0, 1), DEF("0"),
     WITH(job_use_image),
     MEANS("probability of random erasing, which replaces a rectangle of a training image by noise per pixel",
           "")},
    {ROW("/data/augment/repeats", JOB_T_INT, config.data.augment.repeats), RANGE(1, 8), DEF("1"),
     WITH(job_use_image),
     MEANS("repeated augmentation: each image occurs this many times in succession, augmented independently; "
           "the length of an epoch is rounded down to a multiple of 256 images; needs at least 256 training "
           "images",
           "")},
    {ROW("/data/augment/eval_crop", JOB_T_NUMBER, config.data.augment.eval_crop), RANGE(0, 1), DEF("1"),
     FLAGS(OPEN0), WITH(job_use_image),
     MEANS("side length of the centre crop in evaluation, as a fraction of the image", "")},
    {ROW("/data/augment/interpolation", JOB_T_ENUM, config.data.augment.interpolation),
     .names = &interpolation, DEF("\"bicubic\""), WITH(job_use_resized), EARLIER(job_digest_resized),
     MEANS("interpolation for resizing, in training and evaluation, and for RandAugment", "")},

    /* Training */
    {ROW("/train/steps", JOB_T_INT, config.train.steps), COUNTS,
     RULE(job_rule_length, "exactly one of steps and epochs; the recipe's, otherwise required"),
     FLAGS(NULLABLE), .group = JOB_GROUP_LENGTH, MEANS("training length in optimiser steps", "")},
    {ROW("/train/epochs", JOB_T_INT, config.train.epochs), COUNTS, RULE(job_rule_null, "see steps"),
     FLAGS(NULLABLE), .group = JOB_GROUP_LENGTH,
     MEANS("training length in passes over the training set", "")},
    {ROW("/train/batch", JOB_T_INT, config.train.batch), RANGE(1, 1048576),
     RULE(job_rule_batch, "64; equations: 1"),
     MEANS("images or sequences per optimiser step, over all slots; an equation uses its whole grid in each "
           "step, which counts as one sample",
           "")},
    {ROW("/train/accumulation", JOB_T_INT, config.train.accumulation), RANGE(1, 4096), DEF("1"),
     MEANS("micro-batches per optimiser step", "")},
    {ROW("/train/zero", JOB_T_INT, config.train.zero), RANGE(0, 1), DEF("0"), WITH(job_use_slots),
     FLAGS(ASIDE),
     MEANS(
         "1: ZeRO-1, each slot stores the optimiser state of its share of the tensors; results are the same "
         "up to rounding",
         "kernels/ENGINE.md#7-ranks")},
    {ROW("/train/optimizer/lr", JOB_T_NUMBER, config.train.optimizer.lr), FROM(0),
     RULE(job_rule_lr, "1e-3; msgdw 0.3; lbfgs 1"), FLAGS(OPEN0 | NOPLAN),
     MEANS("peak learning rate; not scaled with the batch size", "")},
    {ROW("/train/optimizer/betas", JOB_T_NUMBER_PAIR, config.train.optimizer.betas), RANGE(0, 1),
     RULE(job_rule_betas, "[0.9,0.999]; gpt [0.9,0.95]"), FLAGS(OPEN0 | BELOW), WITH(job_use_adamw),
     MEANS("decay rates of AdamW's two moments", "")},
    {ROW("/train/optimizer/eps", JOB_T_NUMBER, config.train.optimizer.eps), FROM(0), DEF("1e-8"),
     FLAGS(OPEN0), WITH(job_use_adamw), MEANS("epsilon of AdamW", "")},
    {ROW("/train/optimizer/momentum", JOB_T_NUMBER, config.train.optimizer.momentum), RANGE(0, 1), DEF("0.9"),
     FLAGS(BELOW), WITH(job_use_momentum), MEANS("momentum", "")},
    {ROW("/train/optimizer/dampening", JOB_T_NUMBER, config.train.optimizer.dampening), RANGE(0, 1), DEF("0"),
     FLAGS(BELOW), WITH(job_use_dampening), MEANS("dampening of the momentum", "")},
    {ROW("/train/optimizer/nesterov", JOB_T_BOOL, config.train.optimizer.nesterov), DEF("false"),
     WITH(job_use_nesterov), MEANS("use Nesterov momentum", "")},
    {ROW("/train/optimizer/weight_decay", JOB_T_NUMBER, config.train.optimizer.weight_decay), FROM(0),
     RULE(job_rule_weight_decay, "0.05; gpt 0.1; pinnsformer and lbfgs 0; msgdw 1e-4"),
     MEANS("weight decay of tensors with two or more dimensions; decoupled, except with msgd_l2",
           "kernels/ATTENTION.md#9-weight-decay")},
    {ROW("/train/optimizer/decay_temperature", JOB_T_BOOL, config.train.optimizer.decay_temperature),
     DEF("false"), WITH(job_use_xcit),
     MEANS("apply weight decay to the temperatures of an xcit too", "kernels/ATTENTION.md#9-weight-decay")},
    {ROW("/train/schedule/name", JOB_T_ENUM, config.train.schedule.name), .names = &schedule,
     RULE(job_rule_schedule, "cosine; lbfgs: constant"), FLAGS(NOPLAN), WITH(job_use_falls),
     MEANS("learning rate schedule after the warm-up; one_cycle rises linearly from warmup_lr to lr during "
           "the warm-up and falls linearly to min_lr at the last step, like PyTorch's OneCycleLR with "
           "anneal_strategy linear",
           "")},
    {ROW("/train/schedule/warmup_steps", JOB_T_INT, config.train.schedule.warmup_steps), RANGE(0, 1e9),
     RULE(job_rule_warmup_steps, "5 % of train.steps; lbfgs: 0"), FLAGS(NULLABLE | NOPLAN),
     .group = JOB_GROUP_WARMUP, MEANS("steps of linear warm-up", "")},
    {ROW("/train/schedule/warmup_epochs", JOB_T_NUMBER, config.train.schedule.warmup_epochs), RANGE(0, 1e9),
     RULE(job_rule_warmup_epochs, "5 % of train.epochs; lbfgs: 0"), FLAGS(NULLABLE | NOPLAN),
     .group = JOB_GROUP_WARMUP, MEANS("length of the warm-up in epochs; fractions are allowed", "")},
    {ROW("/train/schedule/warmup_lr", JOB_T_NUMBER, config.train.schedule.warmup_lr), FROM(0), DEF("0"),
     FLAGS(NOPLAN), WITH(job_use_warmup_lr),
     MEANS("learning rate at the start of the warm-up; with one_cycle, 0 means lr/25", "")},
    {ROW("/train/schedule/warmup_form", JOB_T_ENUM, config.train.schedule.warmup_form), .names = &warmup_form,
     RULE(job_rule_warmup_form, "timm if warmup_lr is given, else nanogpt"), FLAGS(NOPLAN),
     WITH(job_use_warmup_form),
     MEANS("learning rate in a warm-up of w steps: nanogpt uses lr (t+1)/(w+1), which is above 0 at t = 0; "
           "timm rises from warmup_lr at t = 0 to lr at t = w",
           "")},
    {ROW("/train/schedule/min_lr", JOB_T_NUMBER, config.train.schedule.min_lr), FROM(0),
     RULE(job_rule_min_lr, "lr/100; one_cycle: lr/250000"), FLAGS(NOPLAN), WITH(job_use_min_lr),
     MEANS("learning rate at the end", "")},
    {ROW("/train/schedule/beta1", JOB_T_NUMBER_PAIR, config.train.schedule.beta1), RANGE(0, 1),
     DEF("[0.95,0.85]"), FLAGS(OPEN0 | BELOW | NOPLAN), WITH(job_use_beta1),
     MEANS("with one_cycle, AdamW's first beta as [at the ends, at the peak of the learning rate]; it falls "
           "while the rate rises, and replaces the first of optimizer.betas",
           "")},
    {ROW("/train/schedule/shifted", JOB_T_BOOL, config.train.schedule.shifted), DEF("true"), FLAGS(NOPLAN),
     WITH(job_use_shifted),
     MEANS("count the steps of the decay from the end of the warm-up instead of from the start", "")},
    {ROW("/train/schedule/per", JOB_T_ENUM, config.train.schedule.per), .names = &per, DEF("\"step\""),
     FLAGS(NOPLAN), WITH(job_use_per),
     MEANS("whether the learning rate changes at each step or at each epoch", "")},
    {ROW("/train/schedule/milestones", JOB_T_INTS, config.train.schedule.milestones), RANGE(1, 1e9),
     DEF("[]"), FLAGS(NOPLAN), WITH(job_use_step), MEANS("steps at which the learning rate is reduced", "")},
    {ROW("/train/schedule/factor", JOB_T_NUMBER, config.train.schedule.factor), RANGE(0, 1), DEF("0.1"),
     FLAGS(OPEN0 | BELOW | NOPLAN), WITH(job_use_factor), MEANS("factor of each reduction", "")},
    {ROW("/train/clip_norm", JOB_T_NUMBER, config.train.clip_norm), FROM(0),
     RULE(job_rule_clip, "gpt 1, else null"), FLAGS(NULLABLE | OPEN0),
     MEANS("maximum global norm of the gradient; null: no clipping", "")},
    {ROW("/train/label_smoothing", JOB_T_NUMBER, config.train.label_smoothing), RANGE(0, 1), DEF("0"),
     FLAGS(BELOW), MEANS("label smoothing", "")},
    {ROW("/train/drop_path", JOB_T_NUMBER, config.train.drop_path), RANGE(0, 1), DEF("0"), FLAGS(BELOW),
     WITH(job_use_depth),
     MEANS("probability that stochastic depth drops a residual branch; see drop_path_rule", "")},
    {ROW("/train/drop_path_rule", JOB_T_ENUM, config.train.drop_path_rule), .names = &drop_path_rule,
     DEF("\"linear\""), WITH(job_use_drop_path),
     MEANS("linear: the probability grows linearly from 0 in the first block to drop_path in the last; same: "
           "drop_path in every block",
           "")},
    {ROW("/train/dropout", JOB_T_NUMBER, config.train.dropout), RANGE(0, 1), DEF("0"), FLAGS(BELOW),
     MEANS("dropout probability after embeddings and projections", "")},
    {ROW("/resources/device", JOB_T_ENUM, config.resources.device), .names = &device,
     RULE(job_rule_device, "cuda if the machine has it, else cpu"), FLAGS(ASIDE | FIXED),
     MEANS("device type; auto is resolved when the job is accepted", "")},
    {ROW("/train/precision", JOB_T_ENUM, config.train.precision), .names = &precision,
     .available = BIT(JOB_PRECISION_FP32) | BIT(JOB_PRECISION_BF16) | BIT(JOB_PRECISION_FP64) |
                  BIT(JOB_PRECISION_TF32),
     RULE(job_rule_precision, "cpu fp32, cuda bf16; pinnsformer: fp32"),
     MEANS("number format of activations and matrix products; parameters are fp32, or fp64 with fp64 (cpu "
           "only); tf32 rounds the inputs of fp32 products (cuda only); on a cpu, bf16 is faster than fp32 "
           "only if its products are on that processor, which the worker measures and dry_run reports",
           "kernels/ENGINE.md#10-precision")},
    {ROW("/train/recompute", JOB_T_ENUM, config.train.recompute), .names = &recompute, DEF("\"auto\""),
     FLAGS(ASIDE),
     MEANS("whether the backward pass recomputes cheap activations (norms, elementwise operations, GELU): on "
           "recomputes them if the memory plan becomes smaller, off stores them; auto is off if the forecast "
           "of a cuda job fits its device without recomputing, else on; results are the same up to rounding",
           "daemon/job/JOB.md#memory-of-a-step")},
    {ROW("/train/seed", JOB_T_INT, config.train.seed), RANGE(0, JOB_MAX_SEED), DEF("0"), FLAGS(NOPLAN),
     MEANS("seed of initial weights, sample order and augmentation", "")},
    {ROW("/train/deterministic", JOB_T_BOOL, config.train.deterministic), DEF("true"), FLAGS(ASIDE | ONLY),
     MEANS("repeated runs give bitwise identical results", "")},
    {ROW("/train/init", JOB_T_ENUM, config.train.init), .names = &init,
     RULE(job_rule_init, "trunc_normal; gpt normal; nystrom kaiming; pinnsformer xavier"),
     MEANS("distribution of the initial weights; kaiming is uniform within 1 / sqrt(inputs)", "")},
    {ROW("/train/init_fan", JOB_T_ENUM, config.train.init_fan), .names = &init_fan, DEF("\"separate\""),
     WITH(job_use_fan), DIGEST(job_digest_fan),
     MEANS("fan-in and fan-out of the query-key-value matrix: those of its three parts (separate) or of the "
           "fused matrix (fused)",
           "")},
    {ROW("/train/start", JOB_T_OBJECT, config.train.start.present), DEF("null"), FLAGS(NULLABLE | FIXED),
     MEANS("checkpoint or model version whose weights replace the initial values: {\"model\": "
           "\"name:version\"} or {\"run\": \"12\", \"checkpoint\": \"best\"}; a document without a network "
           "uses the network of that file",
           "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/start/model", JOB_T_STRING, config.train.start.model), RANGE(1, 160), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED),
     MEANS("model version that the document named", "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/start/run", JOB_T_STRING, config.train.start.run), RANGE(1, 20), DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED), .check = job_check_run,
     MEANS("run that wrote the checkpoint", "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/start/step", JOB_T_INT, config.train.start.step), RANGE(0, 1e9),
     RULE(job_rule_start, "filled in by polyd"), FLAGS(ASIDE | FIXED),
     MEANS("training step of the checkpoint", "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/start/path", JOB_T_STRING, config.train.start.path), RANGE(1, 1024),
     RULE(job_rule_start, "filled in by polyd"), FLAGS(ASIDE | FIXED), .check = job_check_in_state,
     MEANS("file of the weights, relative to the state folder", "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/start/sha256", JOB_T_STRING, config.train.start.sha256), RANGE(64, 64),
     RULE(job_rule_start, "filled in by polyd"), FLAGS(FIXED),
     MEANS("SHA-256 of the file", "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/start/optimizer", JOB_T_BOOL, config.train.start.optimizer), DEF("false"), FLAGS(FIXED),
     MEANS("also load the optimiser state, to continue a run of your own for more epochs or on other data "
           "with the same optimiser; the schedule and the step count start at 0",
           "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/start/reset", JOB_T_STRING, config.train.start.reset), RANGE(1, 4096), DEF("null"),
     FLAGS(NULLABLE | FIXED),
     MEANS("comma-separated prefixes of parameter names; these parameters are initialised from the seed, for "
           "example \"head.\" for other classes",
           "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/freeze", JOB_T_STRING, config.train.freeze), RANGE(1, 4096), DEF("null"), FLAGS(NULLABLE),
     MEANS("comma-separated prefixes of parameter names; these parameters are not trained",
           "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/layer_decay", JOB_T_NUMBER, config.train.layer_decay), RANGE(0, 1), DEF("1"), FLAGS(OPEN0),
     WITH(job_use_blocks), DIGEST(job_digest_always),
     MEANS(
         "layer-wise decay of the learning rate (timm): each block has the rate of the block after it times "
         "this value; with L blocks the embedding has the head's rate times this value to the power L + 1",
         "daemon/job/JOB.md#weights-to-begin-with")},
    {ROW("/train/ema", JOB_T_NUMBER, config.train.ema), RANGE(0, 1), DEF("null"),
     FLAGS(NULLABLE | OPEN0 | BELOW),
     MEANS("decay of the exponential moving average of the weights, which is evaluated separately; null: no "
           "average",
           "")},
    {ROW("/train/ema_serve", JOB_T_BOOL, config.train.ema_serve), DEF("false"), WITH(job_use_ema),
     MEANS("select the best checkpoint by the averaged weights, and serve the averaged weights in a model "
           "made from it",
           "")},
    {ROW("/train/stop/patience", JOB_T_INT, config.train.stop.patience), COUNTS, DEF("null"),
     FLAGS(ASIDE | NULLABLE | NOPLAN),
     MEANS("stop early after this many consecutive evaluations without improvement; null: never",
           "daemon/job/JOB.md#training-validation-and-test-part")},
    {ROW("/train/stop/metric", JOB_T_STRING, config.train.stop.metric), RANGE(1, 250), DEF("null"),
     FLAGS(ASIDE | NULLABLE | NOPLAN), WITH(job_use_stop), .check = job_check_stop_metric,
     MEANS(
         "metric of early stopping, one that each evaluation writes; null: the metric that selects the best "
         "checkpoint",
         "daemon/job/JOB.md#training-validation-and-test-part")},
    {ROW("/train/stop/min_change", JOB_T_NUMBER, config.train.stop.min_change), FROM(0), DEF("0"),
     FLAGS(ASIDE | NOPLAN), WITH(job_use_stop),
     MEANS("minimum difference that counts as an improvement",
           "daemon/job/JOB.md#training-validation-and-test-part")},
    {ROW("/train/teacher", JOB_T_OBJECT, config.train.teacher.present), DEF("null"), FLAGS(NULLABLE | FIXED),
     MEANS("registered model with the same images and classes, from which the second head of a deit learns; "
           "its input is the augmented image",
           "")},
    {ROW("/train/teacher/model", JOB_T_STRING, config.train.teacher.model), RANGE(1, 200),
     RULE(job_rule_required, "required"), FLAGS(ASIDE | FIXED),
     MEANS("model as name (its highest version), name:3 or name:alias; resolved to a version when the job is "
           "accepted",
           "")},
    /* The daemon fills these in. */
    {ROW("/train/teacher/path", JOB_T_STRING, config.train.teacher.path), RANGE(1, 1024),
     RULE(job_rule_teacher, "the version's"), FLAGS(ASIDE | FIXED), .check = job_check_in_state,
     MEANS("file of the version, relative to the state folder", "")},
    {ROW("/train/teacher/sha256", JOB_T_STRING, config.train.teacher.sha256), RANGE(64, 64),
     RULE(job_rule_teacher, "the version's"), FLAGS(FIXED), MEANS("SHA-256 of the file", "")},
    {ROW("/train/teacher/kind", JOB_T_ENUM, config.train.teacher.kind), .names = &teacher_kind,
     DEF("\"hard\""), MEANS("whether the teacher's targets are hard labels or soft probabilities", "")},
    {ROW("/train/teacher/alpha", JOB_T_NUMBER, config.train.teacher.alpha), RANGE(0, 1), DEF("0.5"),
     MEANS("weight of the teacher's part of the loss", "")},
    {ROW("/train/teacher/tau", JOB_T_NUMBER, config.train.teacher.tau), FROM(0), DEF("1"), FLAGS(OPEN0),
     WITH(job_use_tau), MEANS("temperature of soft targets", "")},
    {ROW("/train/pinn_derivative", JOB_T_ENUM, config.train.pinn_derivative), .names = &pinn_derivative,
     DEF("\"vjp_sum\""), WITH(job_use_pinn),
     MEANS(
         "derivative of u by a coordinate: vjp_sum is the gradient of the sum over the sequence by each "
         "point, as in the reference implementation; jvp_shift is the derivative when the whole sequence is "
         "shifted",
         "daemon/job/JOB.md#equations")},
    {ROW("/train/nonfinite_limit", JOB_T_INT, config.train.nonfinite_limit), RANGE(1, 1e6), DEF("10"),
     FLAGS(ASIDE),
     MEANS("skipped steps (non-finite loss or gradient) after which the run ends as diverged", "")},
    {ROW("/train/eval_every", JOB_T_INT, config.train.eval_every), COUNTS,
     RULE(job_rule_eval_every, "steps/20; null if the length is in epochs: the worker then uses steps/20 "
                               "once the data size is known"),
     FLAGS(ASIDE | NULLABLE), MEANS("steps between evaluations", "")},
    {ROW("/train/checkpoint_every/steps", JOB_T_INT, config.train.checkpoint_every_steps), COUNTS,
     RULE(job_rule_null, "exactly one of steps and seconds"), FLAGS(ASIDE | NULLABLE),
     .group = JOB_GROUP_CHECKPOINT, MEANS("steps between checkpoints", "")},
    {ROW("/train/checkpoint_every/seconds", JOB_T_NUMBER, config.train.checkpoint_every_s), FROM(0),
     DEF("600"), FLAGS(ASIDE | NULLABLE | OPEN0), .group = JOB_GROUP_CHECKPOINT,
     MEANS("seconds between checkpoints", "")},
    {ROW("/train/keep/experiment", JOB_T_INT, config.train.keep_experiment), RANGE(0, 100), DEF("0"),
     FLAGS(ASIDE | FIXED | ONLY), MEANS("number of best checkpoints to retain per experiment", "")},
    {ROW("/train/keep/best", JOB_T_INT, config.train.keep_best), RANGE(0, 100),
     RULE(job_rule_keep_best, "the daemon's, normally 1"), FLAGS(ASIDE | FIXED),
     MEANS("number of best checkpoints to retain per run", "")},
    {ROW("/train/keep/latest", JOB_T_INT, config.train.keep_latest), RANGE(0, 100),
     RULE(job_rule_keep_latest, "the daemon's, normally 1"), FLAGS(ASIDE | FIXED),
     MEANS("number of latest checkpoints to retain per run", "")},

    /* Diagnostics */
    {ROW("/diagnostics/every", JOB_T_INT, config.diagnostics.every), RANGE(0, 1e9), DEF("50"), FLAGS(ASIDE),
     MEANS("steps between measurements of norms and logits; 0: off",
           "kernels/ATTENTION.md#2-gradients-and-jacobian-norms")},
    {ROW("/diagnostics/probe_batch", JOB_T_INT, config.diagnostics.probe_batch), RANGE(1, 1024), DEF("32"),
     WITH(job_use_probe), FLAGS(ASIDE),
     MEANS("samples in the fixed batch on which norms and logits are measured",
           "kernels/ATTENTION.md#2-gradients-and-jacobian-norms")},
    {ROW("/diagnostics/probe_cls", JOB_T_BOOL, config.diagnostics.probe_cls), DEF("true"),
     WITH(job_use_class_token), FLAGS(ASIDE),
     MEANS("include the class token in norms and logits; false: without its row and column",
           "kernels/ATTENTION.md#2-gradients-and-jacobian-norms")},
    {ROW("/diagnostics/heatmaps", JOB_T_OBJECT, config.diagnostics.heatmaps.present), DEF("null"),
     FLAGS(ASIDE | NULLABLE),
     MEANS("record attention matrices, averaged over the probe batch, with logits, entropy and rank; of an "
           "xcit between channels, of a nystrom between landmarks",
           "api/USING.md#heat-maps-and-gradients")},
    {ROW("/diagnostics/heatmaps/layers", JOB_T_INTS, config.diagnostics.heatmaps.layers), RANGE(1, 256),
     DEF("[]"), FLAGS(ASIDE),
     MEANS("layers to record, counted from 1; empty: all", "api/USING.md#heat-maps-and-gradients")},
    {ROW("/diagnostics/heatmaps/heads", JOB_T_INTS, config.diagnostics.heatmaps.heads), RANGE(1, 256),
     DEF("[]"), FLAGS(ASIDE),
     MEANS("heads to record, counted from 1; empty: all", "api/USING.md#heat-maps-and-gradients")},
    {ROW("/diagnostics/heatmaps/every", JOB_T_INT, config.diagnostics.heatmaps.every), COUNTS, DEF("500"),
     FLAGS(ASIDE),
     MEANS("steps between recordings of a head; the last step is always recorded",
           "api/USING.md#heat-maps-and-gradients")},
    {ROW("/diagnostics/histograms", JOB_T_OBJECT, config.diagnostics.histograms.present), DEF("null"),
     FLAGS(ASIDE | NULLABLE),
     MEANS("record histograms of the gradient of a whole batch, without dropout and without mixing images",
           "api/USING.md#heat-maps-and-gradients")},
    {ROW("/diagnostics/histograms/tensors", JOB_T_STRINGS, config.diagnostics.histograms.tensors),
     RANGE(1, 256), DEF("[]"), FLAGS(ASIDE),
     MEANS("weights to record, of w_q, w_k, w_v, w_o, w_1, w_2; empty: all",
           "api/USING.md#heat-maps-and-gradients")},
    {ROW("/diagnostics/histograms/at", JOB_T_NUMBERS, config.diagnostics.histograms.at), RANGE(0, 1),
     DEF("[0,0.5,1]"), FLAGS(ASIDE),
     MEANS("when to record, as fractions of the run", "api/USING.md#heat-maps-and-gradients")},

    /* Resources */
    {ROW("/resources/placement", JOB_T_ENUM, config.resources.placement), .names = &where,
     .available = BIT(JOB_PLACEMENT_LOCAL), DEF("\"local\""), FLAGS(ASIDE | FIXED),
     MEANS("this machine or a cluster", "")},
    {ROW("/resources/slots", JOB_T_INT, config.resources.slots), RANGE(1, 1024), DEF("1"),
     FLAGS(ASIDE | FIXED),
     MEANS("number of ranks that train together, each on its own device; they divide the batch; gpus: n is "
           "short for device cuda and slots n",
           "kernels/ENGINE.md#7-ranks")},
    {ROW("/data/augment/mix_group", JOB_T_INT, config.data.augment.mix_group), RANGE(2, 1048576),
     RULE(job_rule_mix_group, "batch/(slots x accumulation)"), FLAGS(NULLABLE), WITH(job_use_mix),
     MEANS("size of the groups in which images are mixed: image i with its mirror position, with the same "
           "random numbers for the whole group; even, and a divisor of batch/(slots x accumulation)",
           "")},
    {ROW("/resources/threads", JOB_T_INT, config.resources.threads), RANGE(1, 256),
     RULE(job_rule_threads, "the daemon's"), FLAGS(ASIDE | FIXED), WITH(job_use_cpu),
     MEANS("CPU threads per slot", "")},
    {ROW("/resources/loader_threads", JOB_T_INT, config.resources.loader_threads), RANGE(1, 64),
     RULE(job_rule_loader_threads, "2 for images from files, else 1"), FLAGS(ASIDE | FIXED | NOPLAN),
     MEANS("threads that prepare batches; the number does not change results", "")},
    {ROW("/resources/memory_bytes", JOB_T_INT, config.resources.memory_bytes), RANGE(1, JOB_MAX_SEED),
     DEF("null"), FLAGS(ASIDE | NULLABLE | FIXED | ONLY),
     MEANS("limit of host memory; null: the plan plus 25 %", "")},
    {ROW("/resources/time_limit_s", JOB_T_INT, config.resources.time_limit_s), COUNTS, DEF("null"),
     FLAGS(ASIDE | NULLABLE | FIXED | NOPLAN),
     MEANS("time limit of a run in seconds, over all its attempts", "")},
    {ROW("/resources/warn_before_s", JOB_T_INT, config.resources.warn_before_s), COUNTS, DEF("60"),
     FLAGS(ASIDE | FIXED | NOPLAN), WITH(job_use_time_limit),
     MEANS("seconds before the time limit at which the run is warned", "")},
    {ROW("/resources/max_restarts", JOB_T_INT, config.resources.max_restarts), RANGE(0, 100), DEF("3"),
     FLAGS(ASIDE | FIXED), MEANS("number of attempts after the first", "")},
    {ROW("/resources/priority", JOB_T_INT, config.resources.priority), RANGE(-100, 100), DEF("0"),
     FLAGS(ASIDE | FIXED | NOPLAN),
     MEANS("order in the queue, greater first; values above 0 are for operators", "")},

    /* Sweep: an object with these keys in a job, null in a resolved run. */
    {ROW("/sweep", JOB_T_OBJECT, sweep_present), DEF("null"), FLAGS(ASIDE | NULLABLE | FIXED),
     MEANS("runs over combinations of values: one job, many runs", "daemon/job/JOB.md#sweeps-and-trials")},
    {ROW("/sweep/method", JOB_T_ENUM, head.method), .names = &method,
     .available = BIT(JOB_METHOD_GRID) | BIT(JOB_METHOD_RANDOM), DEF("\"grid\""), FLAGS(ASIDE | FIXED),
     MEANS("every combination (grid), random combinations, or successive halving (asha)",
           "daemon/job/JOB.md#sweeps-and-trials")},
    {BARE("/sweep/axes", JOB_T_AXES), RANGE(1, 8), RULE(job_rule_required, "required"), FLAGS(ASIDE | FIXED),
     MEANS("fields to vary: {\"pointer\"} with values [..], log or linear [lo,hi,n], or (random) uniform or "
           "loguniform [lo,hi]",
           "daemon/job/JOB.md#sweeps-and-trials")},
    {ROW("/sweep/samples", JOB_T_INT, samples), RANGE(1, JOB_MAX_RUNS), DEF("16"), FLAGS(ASIDE | FIXED),
     WITH(job_use_drawn),
     MEANS("number of random combinations (random, asha)", "daemon/job/JOB.md#sweeps-and-trials")},
    {ROW("/sweep/seed", JOB_T_INT, sweep_seed), RANGE(0, JOB_MAX_SEED), DEF("0"), FLAGS(ASIDE | FIXED),
     WITH(job_use_drawn), MEANS("seed of the random combinations", "daemon/job/JOB.md#sweeps-and-trials")},
    {ROW("/sweep/metric", JOB_T_STRING, head.metric), RANGE(1, 250), DEF("\"loss/val\""),
     FLAGS(ASIDE | FIXED), MEANS("metric by which runs are ranked", "daemon/job/JOB.md#sweeps-and-trials")},
    {ROW("/sweep/mode", JOB_T_ENUM, head.mode), .names = &mode,
     RULE(job_rule_mode, "min; max for a metric of which more is better, such as acc/val"),
     FLAGS(ASIDE | FIXED),
     MEANS("whether a smaller or a greater value is better", "daemon/job/JOB.md#sweeps-and-trials")},
    {ROW("/sweep/min_steps", JOB_T_INT, min_steps), COUNTS, DEF("null"), FLAGS(ASIDE | NULLABLE | FIXED),
     WITH(job_use_asha),
     MEANS("steps at the first rung (asha); null: steps/27", "daemon/job/JOB.md#sweeps-and-trials")},
    {ROW("/sweep/reduction", JOB_T_INT, reduction), RANGE(2, 10), DEF("3"), FLAGS(ASIDE | FIXED),
     WITH(job_use_asha),
     MEANS("ratio between successive rungs (asha)", "daemon/job/JOB.md#sweeps-and-trials")},
    {ROW("/sweep/concurrency", JOB_T_INT, head.concurrency), RANGE(0, 10000), DEF("0"), FLAGS(ASIDE | FIXED),
     MEANS("maximum number of runs at the same time; 0: no limit", "daemon/job/JOB.md#sweeps-and-trials")},
};
const size_t job_field_count = sizeof job_fields / sizeof *job_fields;

_Static_assert(sizeof job_fields / sizeof *job_fields <= 256, "struct job_ctx has room for 256 fields");

bool job_field_runs(const struct job_field *f, unsigned i)
{
    return f->runs ? f->runs(i) : !f->available || f->available >> i & 1;
}
