/* The rows of the catalogue, in the order of a page. */
#include "daemon/job/metric.h"

#include <string.h>

#include "daemon/job/internal.h"

static const struct job_dataset_info *data_of(const struct job_config *g)
{
    return job_dataset_info((enum job_dataset)g->data.dataset);
}

static bool always(const struct job_config *g)
{
    (void)g;
    return true;
}

static bool text(const struct job_config *g)
{
    return !strcmp(job_config_task(g)->name, "language");
}

static bool classes(const struct job_config *g)
{
    return job_config_task(g)->classes;
}

static bool unmixed_classes(const struct job_config *g)
{
    return classes(g) && !(g->data.augment.mixup > 0) && !(g->data.augment.cutmix > 0);
}

static bool samples(const struct job_config *g)
{
    return !text(g);
}

static bool averaged(const struct job_config *g)
{
    return g->train.ema > 0;
}

static bool text_averaged(const struct job_config *g)
{
    return averaged(g) && text(g);
}

static bool classes_averaged(const struct job_config *g)
{
    return averaged(g) && classes(g);
}

static bool equation(const struct job_config *g)
{
    return !strcmp(job_config_task(g)->name, "equation");
}

static bool searches(const struct job_config *g)
{
    return job_optimiser(g->train.optimizer.name)->searches;
}

static bool equation_averaged(const struct job_config *g)
{
    return averaged(g) && equation(g);
}

/* Only pictures from files can be damaged. */
static bool decoded(const struct job_config *g)
{
    return data_of(g)->image && !data_of(g)->generated;
}

static bool checks(const struct job_config *g)
{
    return g->kind == JOB_KIND_CHECK;
}

/* Attention through fewer landmarks than tokens. */
static bool inverted(const struct job_config *g)
{
    return g->diagnostics.every > 0 && job_network(g->model.arch)->landmarks &&
           g->model.landmarks < g->model.context / (data_of(g)->pairs ? 2 : 1);
}

static bool ranks(const struct job_config *g)
{
    return g->resources.slots > 1;
}

static bool gpu(const struct job_config *g)
{
    return g->resources.device == JOB_DEVICE_CUDA;
}

static bool probed(const struct job_config *g)
{
    return g->diagnostics.every >= 1;
}

static bool mapped(const struct job_config *g)
{
    return g->diagnostics.heatmaps.present;
}

static bool channels(const struct job_config *g)
{
    return job_network(g->model.arch)->channel_attention;
}

/* Matrices between patches. */
static bool mapped_picture(const struct job_config *g)
{
    return mapped(g) && data_of(g)->image && !channels(g);
}

/* Blocks of channel attention report no output. */
static bool probed_block(const struct job_config *g)
{
    return probed(g) && !channels(g);
}

static bool has_histograms(const struct job_config *g)
{
    return g->diagnostics.histograms.present;
}

/* Behind a norm of queries the closed form does not hold. */
static bool probed_q(const struct job_config *g)
{
    return probed(g) && !g->attention.qk_norm;
}

/* The closed form is that of attention between tokens: of an xcit the class token's, in its last layers. */
static bool layers_q(const struct job_config *g, int64_t layer)
{
    return !channels(g) || layer > g->model.depth;
}

static bool scaled(const struct job_config *g)
{
    return probed(g) && g->attention.activation != JOB_ACTIVATION_SOFTMAX &&
           (g->attention.activation != JOB_ACTIVATION_FORMULA || job_formula_builtin(g));
}

static bool has_scalars(const struct job_config *g)
{
    return probed(g) && g->attention.activation == JOB_ACTIVATION_FORMULA && !job_formula_builtin(g);
}

static bool scaled_heads(const struct job_config *g)
{
    return g->attention.activation == JOB_ACTIVATION_POLY && g->attention.scale == JOB_SCALE_LEARNED &&
           g->attention.scale_share == JOB_SCALE_SHARE_HEAD && job_config_heads_most(g) > 1;
}

/* The class layers of an xcit may keep softmax, which has no scale. */
static bool scaled_layers(const struct job_config *g, int64_t layer)
{
    return !channels(g) || layer <= g->model.depth ||
           g->attention.class_attention != JOB_CLASS_ATTENTION_SOFTMAX;
}

/* Whether an evaluation scores these samples. */
static bool scores(const struct job_config *g, enum job_scored split)
{
    return g->evaluate.path && g->evaluate.split == (int)split;
}

/* A run that trains scores its test part at the end, if its data have one; an equation has none. */
static bool test(const struct job_config *g)
{
    return g->evaluate.path ? scores(g, JOB_SCORED_TEST)
                            : g->data.split == JOB_SPLIT_STANDARD && !equation(g);
}

static bool test_averaged(const struct job_config *g)
{
    return test(g) && averaged(g);
}

static bool test_text(const struct job_config *g)
{
    return test(g) && text(g);
}

static bool test_text_averaged(const struct job_config *g)
{
    return test(g) && text_averaged(g);
}

static bool test_classes(const struct job_config *g)
{
    return test(g) && classes(g);
}

static bool test_classes_averaged(const struct job_config *g)
{
    return test(g) && classes_averaged(g);
}

/* The sets of data.eval are scored at the end of a run, and by an evaluation that names some. */
static bool evals(const struct job_config *g)
{
    return text(g) && g->data.eval.count > 0;
}

static bool evals_averaged(const struct job_config *g)
{
    return evals(g) && averaged(g);
}

static bool val_text(const struct job_config *g)
{
    return text(g) && (!g->evaluate.path || scores(g, JOB_SCORED_VAL));
}

static bool val_text_averaged(const struct job_config *g)
{
    return val_text(g) && averaged(g);
}

static bool train_averaged(const struct job_config *g)
{
    return scores(g, JOB_SCORED_TRAIN) && averaged(g);
}

static bool train_text(const struct job_config *g)
{
    return scores(g, JOB_SCORED_TRAIN) && text(g);
}

static bool train_text_averaged(const struct job_config *g)
{
    return train_text(g) && averaged(g);
}

static bool train_equation(const struct job_config *g)
{
    return scores(g, JOB_SCORED_TRAIN) && equation(g);
}

static bool train_equation_averaged(const struct job_config *g)
{
    return train_equation(g) && averaged(g);
}

static bool train_classes_averaged(const struct job_config *g)
{
    return train_averaged(g) && classes(g);
}

/* Numbers of a job of kind evaluate. */
#define LOSS                                                                                                 \
    .title = "Loss", .panel = "loss", .unit = "nats", .better = JOB_METRIC_LESS, .group = JOB_METRIC_TRAINING
#define ACC                                                                                                  \
    .title = "Accuracy", .panel = "acc", .unit = "share", .better = JOB_METRIC_MORE,                         \
    .group = JOB_METRIC_TRAINING
#define PPL .title = "Perplexity", .panel = "ppl", .better = JOB_METRIC_LESS, .group = JOB_METRIC_TRAINING
#define OF(set, weights)                                                                                     \
    .text = "Over the whole " set ", with " weights ".", .source = "A job of kind evaluate."
#define ZERO_SHOT(weights)                                                                                   \
    .text = "A text of data.eval that the model was never trained on, tokenized by the model's own "         \
            "tokenizer, with " weights ".",                                                                  \
    .source = "Its test part, scored once with the selected checkpoint; Polynomial alternatives (v2), "      \
              "tables 6 to 8: "                                                                              \
              "a model of WikiText-103 on PTB and PG-19."
#define BY_POSITION(set, weights)                                                                            \
    .title = "Perplexity by position", .panel = "ppl_at", .better = JOB_METRIC_LESS,                         \
    .group = JOB_METRIC_POSITIONS, .exact = true,                                                            \
    .text = "Perplexity of the tokens in one range of positions, over the whole " set ", with " weights      \
            ": it shows how much a longer context helps. A range ends at <position> tokens of context and "  \
            "begins above "                                                                                  \
            "half of it.",                                                                                   \
    .source = "exp of the mean loss over the ranges 1, 2, 3-4, 5-8, 9-16, ... of each window."
#define AVERAGES "the running average of the weights"
#define TEST_SET "test part of the data"
#define TRAIN_SET "training part of the data, without augmentation"

#define WEIGHTS(X) X(w_q, "W_Q") X(w_k, "W_K") X(w_v, "W_V") X(w_o, "W_O") X(w_1, "W_1") X(w_2, "W_2")
#define GRADIENT(stat, heading, what, how, weight, name)                                                     \
    {.key = "grad/" stat "/" #weight,                                                                        \
     .title = heading,                                                                                       \
     .panel = "grad/" stat,                                                                                  \
     .series = name,                                                                                         \
     .group = JOB_METRIC_TRAINING,                                                                           \
     .text = what,                                                                                           \
     .source = how,                                                                                          \
     .written = has_histograms},
#define KURTOSIS(weight, name)                                                                               \
    GRADIENT("kurtosis", "Gradient kurtosis",                                                                \
             "How heavy the tails of a weight's gradient are, all blocks together: 3 for normal entries.",   \
             "Fourth central moment over the square of the second.", weight, name)
#define HILL(weight, name)                                                                                   \
    GRADIENT(                                                                                                \
        "hill", "Gradient tail index",                                                                       \
        "Hill's index of the largest 1 % of the gradient's entries: the smaller, the heavier the tail.",     \
        "1 / mean of log(|g| / the largest |g| not among them).", weight, name)
#define RATIO(weight, name)                                                                                  \
    GRADIENT("ratio", "Gradient outliers",                                                                   \
             "Where the largest thousandth of the gradient's entries begins, in multiples of the median.",   \
             "99.9 % quantile of |g| over its median.", weight, name)
#define TOP_SHARE(weight, name)                                                                              \
    GRADIENT("top_share", "Gradient concentration",                                                          \
             "Share of the gradient's squared norm in its largest 1 % of entries: 0.01 if all entries are "  \
             "equal.",                                                                                       \
             "Sum of their squares over the sum of all.", weight, name)
#define LAYER_RATIO(weight, name)                                                                            \
    GRADIENT("layer_ratio", "Gradient across layers",                                                        \
             "Largest ratio between the root mean square gradients of two blocks.",                          \
             "Largest over least RMS of a block.", weight, name)

#define PART(name)                                                                                           \
    .title = "Parts of the loss", .panel = "loss parts", .series = name, .better = JOB_METRIC_LESS,          \
    .group = JOB_METRIC_TRAINING, .written = equation
#define RMAE                                                                                                 \
    .title = "Relative error", .panel = "rmae", .better = JOB_METRIC_LESS, .group = JOB_METRIC_TRAINING,     \
    .text = "Sum of the absolute errors over the sum of the absolute values of the exact solution (rMAE).",  \
    .source =                                                                                                \
        "Relative mean absolute error at the first point of each sequence; polynomial papers, PDE table."
#define RRMSE                                                                                                \
    .title = "Relative root mean square error", .panel = "rrmse", .better = JOB_METRIC_LESS,                 \
    .group = JOB_METRIC_TRAINING,                                                                            \
    .text = "Root of the sum of the squared errors over that of the squares of the exact solution (rRMSE).", \
    .source = "What the polynomial papers print as rMSE in their PDE table."

const struct job_metric job_metrics[] = {
    {.key = "loss/train",
     .title = "Loss",
     .panel = "loss",
     .series = "training",
     .unit = "nats",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_TRAINING,
     .text = "Mean cross-entropy over the samples (or tokens) of this step’s training batch: lower means "
             "that the correct answer has more probability. For an equation, the sum of its mean squared "
             "residual and errors (loss/residual, loss/boundary, loss/initial), a number without unit.",
     .source = "Cross-entropy of one training step, in nats; of an equation, PINNsformer (arXiv:2307.11833), "
               "equation 6."},
    {.key = "loss/val",
     .title = "Loss",
     .panel = "loss",
     .series = "validation",
     .unit = "nats",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_TRAINING,
     .text = "Mean cross-entropy over the whole validation set, without augmentation or dropout; for an "
             "equation, the mean squared error over the evaluation grid.",
     .source = "Evaluation over the whole validation set, in nats."},
    {.key = "loss/val_ema",
     .title = "Loss",
     .panel = "loss",
     .series = "validation, averaged weights",
     .unit = "nats",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_TRAINING,
     .text = "Mean cross-entropy of the averaged weights over the validation set, evaluated in addition to "
             "the weights themselves; for an equation, the mean squared error.",
     .source = "Evaluation of the averaged weights (train.ema) over the validation set, in nats.",
     .written = averaged},
    {.key = "acc/train",
     .title = "Accuracy",
     .panel = "acc",
     .series = "training",
     .unit = "share",
     .better = JOB_METRIC_MORE,
     .group = JOB_METRIC_TRAINING,
     .text = "Share of the training batch whose most probable class is correct; not reported with mixup or "
             "cutmix, under which an image has two classes.",
     .source = "Top-1 of one training step.",
     .written = unmixed_classes},
    {.key = "acc/val",
     .title = "Accuracy",
     .panel = "acc",
     .series = "validation",
     .unit = "share",
     .better = JOB_METRIC_MORE,
     .group = JOB_METRIC_TRAINING,
     .text = "Share of the validation set whose most probable class is correct.",
     .source = "Top-1 over the validation set, as in the tables of the polynomial papers.",
     .written = classes},
    {.key = "acc/val_ema",
     .title = "Accuracy",
     .panel = "acc",
     .series = "validation, averaged weights",
     .unit = "share",
     .better = JOB_METRIC_MORE,
     .group = JOB_METRIC_TRAINING,
     .text = "Share of the validation set that the averaged weights classify correctly.",
     .source = "Top-1 of the averaged weights (train.ema) over the validation set.",
     .written = classes_averaged},
    {.key = "ppl/val",
     .title = "Perplexity",
     .panel = "ppl",
     .series = "validation",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_TRAINING,
     .text = "Effective number of equally likely next tokens on text that the model was not trained on.",
     .source = "exp(loss) over the validation set; Polynomial alternatives (v2), tables 6 to 8.",
     .written = text},
    {.key = "ppl/val_ema",
     .title = "Perplexity",
     .panel = "ppl",
     .series = "validation, averaged weights",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_TRAINING,
     .text = "Effective number of equally likely next tokens for the averaged weights, on text that they "
             "were not trained on.",
     .source = "exp(loss) of the averaged weights (train.ema) over the validation set.",
     .written = text_averaged},
    {.key = "loss/residual",
     PART("residual"),
     .text = "Mean squared residual of the equation over all points of the training grid.",
     .source = "PINNsformer (arXiv:2307.11833), equation 6: the first part of the loss."},
    {.key = "loss/boundary",
     PART("boundary"),
     .text = "Mean squared error in the boundary condition.",
     .source = "PINNsformer (arXiv:2307.11833), equation 6: the boundary part of the loss."},
    {.key = "loss/initial",
     PART("initial"),
     .text = "Mean squared error in the initial condition.",
     .source = "PINNsformer (arXiv:2307.11833), equation 6: the initial part of the loss."},
    {.key = "evaluations",
     .title = "Evaluations of a step",
     .better = JOB_METRIC_NEITHER,
     .group = JOB_METRIC_TRAINING,
     .exact = true,
     .text = "Evaluations of loss and gradient in a step of L-BFGS, line searches included.",
     .source = "At most 25 plus the rest of the last line search; a point that is evaluated again because it "
               "is taken counts once.",
     .written = searches},
    {.key = "rmae/val", RMAE, .series = "evaluation grid", .written = equation},
    {.key = "rmae/val_ema",
     RMAE,
     .series = "evaluation grid, averaged weights",
     .written = equation_averaged},
    {.key = "rmae/train", RMAE, .series = "training grid", .written = train_equation},
    {.key = "rmae/train_ema",
     RMAE,
     .series = "training grid, averaged weights",
     .written = train_equation_averaged},
    {.key = "rrmse/val", RRMSE, .series = "evaluation grid", .written = equation},
    {.key = "rrmse/val_ema",
     RRMSE,
     .series = "evaluation grid, averaged weights",
     .written = equation_averaged},
    {.key = "rrmse/train", RRMSE, .series = "training grid", .written = train_equation},
    {.key = "rrmse/train_ema",
     RRMSE,
     .series = "training grid, averaged weights",
     .written = train_equation_averaged},
    {.key = "loss/test", .series = "test", LOSS, OF(TEST_SET, "the weights"), .written = test},
    {.key = "loss/test_ema",
     .series = "test, averaged weights",
     LOSS,
     OF(TEST_SET, AVERAGES),
     .written = test_averaged},
    {.key = "acc/test", .series = "test", ACC, OF(TEST_SET, "the weights"), .written = test_classes},
    {.key = "acc/test_ema",
     .series = "test, averaged weights",
     ACC,
     OF(TEST_SET, AVERAGES),
     .written = test_classes_averaged},
    {.key = "ppl/test", .series = "test", PPL, OF(TEST_SET, "the weights"), .written = test_text},
    {.key = "ppl/test_ema",
     .series = "test, averaged weights",
     PPL,
     OF(TEST_SET, AVERAGES),
     .written = test_text_averaged},
    {.key = "loss/train_ema",
     .series = "training, averaged weights",
     LOSS,
     OF(TRAIN_SET, AVERAGES),
     .written = train_averaged},
    {.key = "acc/train_ema",
     .series = "training, averaged weights",
     ACC,
     OF(TRAIN_SET, AVERAGES),
     .written = train_classes_averaged},
    {.key = "ppl/train", .series = "training", PPL, OF(TRAIN_SET, "the weights"), .written = train_text},
    {.key = "ppl/train_ema",
     .series = "training, averaged weights",
     PPL,
     OF(TRAIN_SET, AVERAGES),
     .written = train_text_averaged},
    {.key = "loss/eval/<name>", .series = "zero-shot", LOSS, ZERO_SHOT("the weights"), .written = evals},
    {.key = "loss/eval_ema/<name>",
     .series = "zero-shot, averaged weights",
     LOSS,
     ZERO_SHOT(AVERAGES),
     .written = evals_averaged},
    {.key = "ppl/eval/<name>", .series = "zero-shot", PPL, ZERO_SHOT("the weights"), .written = evals},
    {.key = "ppl/eval_ema/<name>",
     .series = "zero-shot, averaged weights",
     PPL,
     ZERO_SHOT(AVERAGES),
     .written = evals_averaged},
    {.key = "ppl/val_at/<position>",
     .series = "validation",
     BY_POSITION("validation part of the data", "the weights"),
     .written = val_text},
    {.key = "ppl/val_ema_at/<position>",
     .series = "validation, averaged weights",
     BY_POSITION("validation part of the data", AVERAGES),
     .written = val_text_averaged},
    {.key = "ppl/test_at/<position>",
     .series = "test",
     BY_POSITION(TEST_SET, "the weights"),
     .written = test_text},
    {.key = "ppl/test_ema_at/<position>",
     .series = "test, averaged weights",
     BY_POSITION(TEST_SET, AVERAGES),
     .written = test_text_averaged},
    {.key = "ppl/train_at/<position>",
     .series = "training",
     BY_POSITION(TRAIN_SET, "the weights"),
     .written = train_text},
    {.key = "ppl/train_ema_at/<position>",
     .series = "training, averaged weights",
     BY_POSITION(TRAIN_SET, AVERAGES),
     .written = train_text_averaged},
    {.key = "ppl/eval_at/<name>/<position>",
     .series = "zero-shot",
     BY_POSITION("test part of a text of data.eval", "the weights"),
     .written = evals},
    {.key = "ppl/eval_ema_at/<name>/<position>",
     .series = "zero-shot, averaged weights",
     BY_POSITION("test part of a text of data.eval", AVERAGES),
     .written = evals_averaged},
    {.key = "lr",
     .title = "Learning rate",
     .group = JOB_METRIC_TRAINING,
     .exact = true,
     .text = "Learning rate of this step.",
     .source = "The schedule of the job: warm-up, then decay."},
    {.key = "grad/norm",
     .title = "Gradient norm",
     .group = JOB_METRIC_TRAINING,
     .text = "Euclidean norm of the whole gradient: spikes indicate steps that were clipped.",
     .source = "√Σg² over all parameters, before clipping."},
    {.key = "nonfinite",
     .title = "Skipped steps",
     .group = JOB_METRIC_TRAINING,
     .exact = true,
     .text =
         "Steps skipped so far because the loss or a gradient was not finite; past a limit the run "
         "counts as diverged. With L-BFGS also the trials of its line search whose loss counted as infinite.",
     .source = "Counter of the trainer; the job’s train.nonfinite_limit."},
    WEIGHTS(KURTOSIS) WEIGHTS(HILL) WEIGHTS(RATIO) WEIGHTS(TOP_SHARE) WEIGHTS(LAYER_RATIO){
        .key = "attn/fro/<layer>[/<head>]",
        .title = "Attention norm ‖A‖",
        .group = JOB_METRIC_LAYERS,
        .text = "Frobenius norm of the attention matrix A of a layer, mean over heads and probe samples: "
                "according to the papers, a polynomial works if this norm stays near that of softmax.",
        .source =
            "Polynomial alternatives, theorems 4.1 and 4.2, figures 2 and 6: ‖softmax‖ ≤ √N, while a raw "
            "xᵖ grows as N.",
        .written = probed,
        .heads = always},
    {.key = "attn/jac_fro/<layer>[/<head>]",
     .title = "Jacobian norm ‖∂A/∂S‖",
     .group = JOB_METRIC_LAYERS,
     .text = "Frobenius norm of the derivative of attention by its logits: the sensitivity of A to a change "
             "of S.",
     .source = "Polynomial alternatives, theorem 4.1 (second part), figures 3 and 7; the tight bound for "
               "softmax is √N/2.",
     .written = probed,
     .heads = always},
    {.key = "attn/jac_q_fro/<layer>[/<head>]",
     .title = "Jacobian norm ‖∂A/∂W_Q‖",
     .group = JOB_METRIC_LAYERS,
     .text = "Frobenius norm of the derivative of attention by the query weights: the sensitivity of A to a "
             "training step.",
     .source = "Polynomial alternatives, theorem 4.3.",
     .written = probed_q,
     .heads = always,
     .layers = layers_q},
    {.key = "attn/entropy/<layer>[/<head>]",
     .title = "Attention entropy",
     .unit = "nats",
     .group = JOB_METRIC_LAYERS,
     .text = "Entropy of the rows of |A|, each divided by its sum, averaged over rows and probe samples, for "
             "the heads with heat maps: 0 if a query attends to one key, log N if to all keys equally.",
     .source = "−Σ p log p with p = |A_ij| / Σ_j |A_ij|.",
     .written = mapped,
     .heads = mapped},
    {.key = "attn/rank/<layer>[/<head>]",
     .title = "Effective rank of attention",
     .group = JOB_METRIC_LAYERS,
     .text = "Effective number of dimensions of the attention matrix, averaged over probe samples, for the "
             "heads with heat maps: 1 if all queries attend alike, N for the identity.",
     .source = "(Σ σ²)² / Σ σ⁴ with the singular values σ of A.",
     .written = mapped,
     .heads = mapped},
    {.key = "attn/negative/<layer>[/<head>]",
     .title = "Negative attention",
     .unit = "share",
     .group = JOB_METRIC_LAYERS,
     .text = "Share of negative entries in the mean attention matrix, for the heads with heat maps: 0 for "
             "softmax, which has no negative weights.",
     .source = "Entries of the mean of A over the probe batch.",
     .written = mapped,
     .heads = mapped},
    {.key = "attn/same_row/<layer>[/<head>]",
     .title = "Attention within a row of patches",
     .group = JOB_METRIC_LAYERS,
     .text = "Mean |A| over pairs of patches in the same row of the image, divided by the mean over all "
             "pairs: above 1 if queries prefer their own row.",
     .source = "Polynomial alternatives, figure 4: bands about the diagonal.",
     .written = mapped_picture,
     .heads = mapped_picture},
    {.key = "attn/same_column/<layer>[/<head>]",
     .title = "Attention within a column of patches",
     .group = JOB_METRIC_LAYERS,
     .text = "Mean |A| over pairs of patches in the same column of the image, divided by the mean over all "
             "pairs.",
     .source = "Diagonals of the matrix at a distance of one row of patches.",
     .written = mapped_picture,
     .heads = mapped_picture},
    {.key = "nystrom/residual/<layer>",
     .title = "Residual of the pseudo-inverse",
     .group = JOB_METRIC_LAYERS,
     .better = JOB_METRIC_LESS,
     .text = "Relative difference between F F+ F and F, where F is the landmark matrix and F+ its "
             "pseudo-inverse after model.pinv_iterations iterations; above 0.01 the run logs a warning.",
     .source = "Nystromformer, section 3; Frobenius norm over the matrices of the whole probe batch.",
     .written = inverted},
    {.key = "act/rms/<layer>",
     .title = "Activations",
     .group = JOB_METRIC_LAYERS,
     .text = "Root mean square of a block's output, over samples, tokens and channels of the probe batch.",
     .source = "The residual stream after block <layer>.",
     .written = probed_block},
    {.key = "logit/std/<layer>[/<head>]",
     .title = "Logit spread",
     .group = JOB_METRIC_LAYERS,
     .text = "Standard deviation of a layer's attention logits; with the usual initialisation it is about "
             "0.08, where a cubic is nearly 0.",
     .source = "S = QKᵀ/√d, the argument of the activation.",
     .written = probed,
     .heads = always},
    {.key = "logit/max/<layer>[/<head>]",
     .title = "Largest logit",
     .group = JOB_METRIC_LAYERS,
     .text = "Largest absolute attention logit of a layer: xᵖ raises it to the power p, so growth can lead "
             "to overflow.",
     .source = "max |S| over the probe batch.",
     .written = probed,
     .heads = always},
    {.key = "scale/c/<layer>[/<head>]",
     .title = "Attention scale c",
     .group = JOB_METRIC_LAYERS,
     .text =
         "The factor c of c·xᵖ: constant if fixed, trained per layer or head if learned. Of "
         "the three of attention.nystrom_apply separate, that of the first matrix, while attn/fro is of the "
         "second.",
     .source = "Polynomial alternatives, corollaries 4.1 and 4.2: φ(x) = c·xᵖ with c = 1/√N, fixed or as the "
               "initial value of a learned scale.",
     .written = scaled,
     .heads = scaled_heads,
     .layers = scaled_layers},
    {.key = "formula/<name>/<layer>[/<head>]",
     .title = "Learned scalar of a formula",
     .group = JOB_METRIC_LAYERS,
     .text = "Value of a learned scalar of attention.formula; for a layer, the mean over its heads.",
     .source = "The trained parameter mapped by its form (exp, softplus or sigmoid).",
     .written = has_scalars,
     .heads = always},
    {.key = "formula_broken/<layer>",
     .title = "Entries of A that are not finite",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_LAYERS,
     .text = "Visible entries of the attention matrix of the probe batch for which the formula or its "
             "derivative is infinite or NaN.",
     .source = "Counted over heads and samples, with the logits of the step.",
     .written = has_scalars},
    {.key = "step_ms",
     .title = "Step time",
     .unit = "ms",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_SYSTEM,
     .text = "Wall time of one optimiser step, data loading included.",
     .source = "Clock of the worker; mean since the last report."},
    {.key = "samples_per_s",
     .title = "Samples per second",
     .unit = "samples/s",
     .better = JOB_METRIC_MORE,
     .group = JOB_METRIC_SYSTEM,
     .text =
         "Samples that training consumed per second: pictures or texts; of an equation, the whole grid is "
         "one sample.",
     .source = "Clock of the worker.",
     .written = samples},
    {.key = "tokens_per_s",
     .title = "Tokens per second",
     .unit = "tokens/s",
     .better = JOB_METRIC_MORE,
     .group = JOB_METRIC_SYSTEM,
     .text = "Tokens that training consumed per second.",
     .source = "Clock of the worker.",
     .written = text},
    {.key = "data_wait",
     .title = "Waiting for data",
     .unit = "share",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_SYSTEM,
     .text =
         "Share of a step spent waiting for its batch: above a few per cent the loader needs more threads.",
     .source = "Clock of the worker, share of the steps' time."},
    {.key = "comm/wait",
     .title = "Waiting for other ranks",
     .unit = "share",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_SYSTEM,
     .text = "Share of a step that rank 0 spent waiting for the all-reduce: the other ranks are slower, or "
             "share its processors. Not measured with NCCL, where GPUs wait by themselves.",
     .source = "Clock of rank 0, share of the steps' time.",
     .written = ranks},
    {.key = "data_bad",
     .title = "Skipped images",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_SYSTEM,
     .exact = true,
     .text = "Damaged images found so far; they are excluded from the loss, and too many end the run.",
     .source = "Counted when an image cannot be decoded; the log names each.",
     .written = decoded},
    {.key = "sys/flops",
     .title = "Operations per second",
     .unit = "flop/s",
     .better = JOB_METRIC_MORE,
     .group = JOB_METRIC_SYSTEM,
     .text =
         "Floating-point operations of a step, in all its evaluations, divided by its duration; recomputed "
         "operations count once.",
     .source = "Multiplications and additions of the planned step (products and attention), by the clock of "
               "the worker."},
    {.key = "sys/utilisation",
     .title = "Utilisation",
     .unit = "share",
     .better = JOB_METRIC_MORE,
     .group = JOB_METRIC_SYSTEM,
     .text = "Achieved share of the device's peak matrix product rate, 0 to 1. The peak is that of bf16, in "
             "fp32 and TF32 runs too.",
     .source = "sys/flops by the matmul peak that the worker measured on this GPU (bf16).",
     .written = gpu},
    {.key = "sys/peak_flops",
     .title = "Measured matmul peak",
     .unit = "flop/s",
     .group = JOB_METRIC_SYSTEM,
     .text = "The reference of utilisation.",
     .source = "Large square products in bf16, timed when the worker starts, or stored for the same GPU, "
               "driver and library.",
     .written = gpu},
    {.key = "sys/cpu",
     .title = "Processors busy",
     .group = JOB_METRIC_SYSTEM,
     .text =
         "Number of processors that the worker used; less than its number of threads means that it waited.",
     .source = "Processor time of the worker per second of the clock."},
    {.key = "mem/peak",
     .title = "Memory",
     .unit = "bytes",
     .group = JOB_METRIC_SYSTEM,
     .exact = true,
     .text = "Peak memory of the worker process so far.",
     .source = "Largest resident set of the worker."},
    {.key = "mem/arena",
     .title = "Planned memory",
     .unit = "bytes",
     .group = JOB_METRIC_SYSTEM,
     .exact = true,
     .text = "Bytes of the arena for gradients, activations and workspace.",
     .source = "The memory plan, made before the first step."},
    {.key = "mem/optimizer",
     .title = "Memory of the optimiser",
     .unit = "bytes",
     .group = JOB_METRIC_SYSTEM,
     .exact = true,
     .text = "Bytes allocated for the optimiser state: two numbers per parameter for AdamW, one for momentum "
             "SGD. With ZeRO-1, those of rank 0.",
     .source = "Sum over the memory that the worker allocated; DNT paper, table 2."},
    {.key = "mem/optimizer_per_parameter",
     .title = "Memory of the optimiser per parameter",
     .unit = "bytes",
     .group = JOB_METRIC_SYSTEM,
     .exact = true,
     .text = "Bytes allocated for the optimiser state, divided by the number of parameters: 8 "
             "for AdamW "
             "and 4 for momentum SGD in 32-bit numbers.",
     .source = "mem/optimizer divided by the number of parameters."},
    {.key = "system/gpu.<rank>/utilization",
     .title = "GPU busy",
     .unit = "share",
     .better = JOB_METRIC_MORE,
     .writer = JOB_METRIC_DAEMON,
     .group = JOB_METRIC_GPUS,
     .text = "Share of time in which a kernel ran on the GPU; far below 100 % the GPU waits for data, for "
             "other ranks or for the host.",
     .source = "The driver (NVML): share of its last sampling period in which a kernel ran; the mean between "
               "two points.",
     .written = gpu},
    {.key = "system/gpu.<rank>/memory",
     .title = "GPU memory",
     .unit = "bytes",
     .writer = JOB_METRIC_DAEMON,
     .group = JOB_METRIC_GPUS,
     .exact = true,
     .text = "Memory in use on the GPU, including memory reserved by the driver.",
     .source = "The driver (NVML): the maximum between two points, over all processes.",
     .written = gpu},
    {.key = "system/gpu.<rank>/power",
     .title = "GPU power",
     .unit = "watts",
     .writer = JOB_METRIC_DAEMON,
     .group = JOB_METRIC_GPUS,
     .text = "Power draw of the GPU; near its limit the clocks are reduced.",
     .source = "The driver (NVML): the mean between two points.",
     .written = gpu},
    {.key = "system/gpu.<rank>/temperature",
     .title = "GPU temperature",
     .unit = "celsius",
     .writer = JOB_METRIC_DAEMON,
     .group = JOB_METRIC_GPUS,
     .exact = true,
     .text = "Temperature of the GPU; near its limit the clocks are reduced.",
     .source = "The driver (NVML): the maximum between two points.",
     .written = gpu},
    {.key = "steps_per_epoch",
     .title = "Steps of an epoch",
     .group = JOB_METRIC_SYSTEM,
     .exact = true,
     .text = "Number of optimiser steps per pass over the training set.",
     .source = "Training samples divided by the batch."},
    {.key = "check/judged",
     .title = "Criteria of the check",
     .group = JOB_METRIC_TRAINING,
     .exact = true,
     .text = "Number of table entries with a criterion, over all seeds.",
     .source = "A job of kind check.",
     .written = checks},
    {.key = "check/failed",
     .title = "Criteria that fail",
     .better = JOB_METRIC_LESS,
     .group = JOB_METRIC_TRAINING,
     .exact = true,
     .text = "Number of table entries that violate their criterion; the check holds if there are none.",
     .source = "A job of kind check.",
     .written = checks},
};
const size_t job_metric_count = sizeof job_metrics / sizeof *job_metrics;
