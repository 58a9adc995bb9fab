/* tests/job/test_idle.c: a known field without effect is never taken in silence. Every row of the table
 * either has a case here in which it has no effect, or stands in the list of those that always have one. */
#include "tests/job/help.h"

#define GEN                                                                                                  \
    "{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"},\"train\":{\"epochs\":1}}"
#define SWEEP(more) "{\"sweep\":{\"axes\":[{\"pointer\":\"/train/seed\",\"values\":[1,2]}]" more "}}"
#define LEARNED "\"activation\":\"poly\",\"scale\":\"learned\""
#define ATT(x) "{\"attention\":{" x "}}"
#define OPT(x) "{\"train\":{\"optimizer\":{" x "}}}"
#define SCHED(x) "{\"train\":{\"schedule\":{" x "}}}"
#define AUG(x) "{\"data\":{\"augment\":{" x "}}}"
#define DEIT                                                                                                 \
    "{\"model\":{\"preset\":\"deit_micro\"},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1,"       \
    "\"teacher\":" TEACHER "}}"
#define SWIN                                                                                                 \
    "{\"model\":{\"preset\":\"swin_micro\"},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}"
#define IMDB                                                                                                 \
    "{\"model\":{\"preset\":\"gpt_micro\"},\"data\":{\"dataset\":\"imdb\",\"path\":\"corpora/imdb\"},"       \
    "\"train\":{\"steps\":100}}"
#define NYSTROM                                                                                              \
    "{\"model\":{\"preset\":\"nystrom_micro\"},\"data\":{\"dataset\":\"listops_gen\"},\"train\":{\"steps\":" \
    "100,"                                                                                                   \
    "\"init\":\"xavier\"}}"
#define NONE "{}"
#define GIVEN "{\"data\":{\"split\":{\"rule\":\"given\"}}}"

/* In `doc` with `idle` merged, `value` at the pointer has no effect; with `busy` instead it has one (NULL: in
 * nothing that this build runs). */
static const struct {
    const char *pointer, *value, *doc, *idle, *what, *busy;
} cases[] = {
    {"/variant", "\"paper\"", VIT, NONE, "without a template", NULL},
    {"/model/widths", "[1]", VIT, NONE, "unless model.arch is swin", NULL},
    {"/model/depths", "[1]", VIT, NONE, "unless model.arch is swin", NULL},
    {"/model/head_counts", "[1]", VIT, NONE, "unless model.arch is swin", NULL},
    {"/model/window", "8", VIT, NONE, "unless model.arch is swin", NULL},
    {"/model/layerscale", "1", VIT, NONE, "unless model.arch is xcit", NULL},
    {"/model/landmarks", "8", GPT, NONE, "unless model.arch is nystrom", NULL},
    {"/model/conv_kernel", "3", GPT, NONE, "unless model.arch is nystrom", NULL},
    {"/model/pinv_iterations", "3", GPT, NONE, "unless model.arch is nystrom", NULL},
    {"/model/pinv_start", "\"global_abs\"", GPT, NONE, "unless model.arch is nystrom", NULL},
    {"/data/zero_is_padding", "false", GPT, NONE, "unless model.arch is nystrom", NULL},
    {"/data/depth", "4", GPT, NONE, "unless data.dataset is listops_gen", NULL},
    {"/attention/n_valid", "true", GPT, "{\"attention\":{\"activation\":\"poly\",\"degree\":3}}",
     "unless model.arch is nystrom and attention.activation poly with scale fixed or learned", NULL},
    {"/data/contour", "4", GPT, NONE, "unless data.dataset is pathfinder_gen", NULL},
    {"/data/min_tokens", "4", GPT, NONE, "unless data.dataset is listops_gen", NULL},
    {"/model/gelu", "\"tanh\"", VIT, "{\"model\":{\"mlp_act\":\"relu\"}}", "unless model.mlp_act is gelu",
     NONE},
    {"/data/image_size", "14", GPT, NONE, "unless the data are images", NULL},
    {"/model/patch", "7", GPT, NONE, "unless the data are images", NULL},
    {"/model/pool", "\"cls\"", GPT, NONE, "unless the data are images", NULL},
    {"/model/pos_after", "true", VIT, NONE, "unless norm.placement is S3",
     "{\"norm\":{\"placement\":\"S4\"}}"},
    {"/model/pos_after", "true", VIT, "{\"norm\":{\"placement\":\"S4\"},\"model\":{\"pos\":\"none\"}}",
     "model.pos is not none", "{\"norm\":{\"placement\":\"S5\"}}"},
    {"/model/context", "8", VIT, NONE, "unless the data are sequences", NULL},
    {"/data/context", "8", VIT, NONE, "unless the data are sequences", NULL},
    {"/attention/degree", "2", VIT, NONE, "unless attention.activation is poly",
     ATT("\"activation\":\"poly\"")},
    {"/attention/scale", "\"none\"", VIT, NONE, "unless attention.activation is poly",
     ATT("\"activation\":\"poly\"")},
    {"/attention/formula", "\"s^5\"", VIT, NONE, "unless attention.activation is formula",
     ATT("\"activation\":\"formula\"")},
    {"/attention/params", "{\"a\":{\"init\":2}}", VIT, NONE, "unless attention.activation is formula",
     ATT("\"activation\":\"formula\",\"formula\":\"a*s^3\"")},
    {"/attention/recognise", "false", VIT, NONE, "unless attention.activation is formula",
     ATT("\"activation\":\"formula\",\"formula\":\"s^3\"")},
    {"/attention/k", "3", VIT, ATT("\"activation\":\"poly\""), "poly with scale k",
     ATT("\"activation\":\"poly\",\"scale\":\"k\"")},
    {"/attention/alpha", "2", VIT, ATT("\"activation\":\"poly\""), "sigmoid, sigmoid_bias or relu",
     ATT("\"activation\":\"relu\"")},
    {"/attention/scale_share", "\"global\"", VIT, ATT("\"activation\":\"poly\""), "poly with scale learned",
     ATT(LEARNED)},
    {"/attention/scale_share", "\"global\"", VIT,
     "{\"model\":{\"depth\":1,\"heads\":1},\"attention\":{" LEARNED "}}", "in more than one layer or head",
     "{\"model\":{\"depth\":1},\"attention\":{" LEARNED "}}"},
    {"/attention/scale_share", "\"global\"", PINN, ATT("\"activation\":\"poly\""), "poly with scale learned",
     "{\"model\":{\"heads\":1},\"attention\":{" LEARNED "}}"}, /* encoder and decoder */
    {"/attention/scale_param", "\"log\"", VIT, ATT("\"activation\":\"poly\""), "poly with scale learned",
     ATT(LEARNED)},
    {"/attention/scale_decay", "true", VIT, ATT("\"activation\":\"poly\""), "poly with scale learned",
     ATT(LEARNED)},
    {"/attention/scale_decay", "true", VIT,
     "{\"train\":{\"optimizer\":{\"weight_decay\":0}},\"attention\":{" LEARNED "}}", "and weights decay",
     ATT(LEARNED)},
    {"/attention/scale_lr_mult", "2", VIT, ATT("\"activation\":\"poly\""), "poly with scale learned",
     ATT(LEARNED)},
    {"/attention/n_for_scale", "7", VIT, NONE, "scale fixed or learned", ATT("\"activation\":\"poly\"")},
    {"/attention/n_for_scale", "7", VIT, ATT("\"activation\":\"poly\",\"scale\":\"none\""),
     "scale fixed or learned", ATT(LEARNED)},
    {"/attention/n_for_scale", "7", VIT, ATT("\"activation\":\"taylor\""), "scale fixed or learned",
     ATT("\"activation\":\"sigmoid\"")},
    {"/attention/n_for_scale", "7", VIT, ATT("\"activation\":\"relu\",\"alpha\":0"), "an alpha above 0",
     ATT("\"activation\":\"relu\"")},
    {"/attention/n_for_scale", "\"row\"", GPT, ATT("\"activation\":\"periodic\""), "scale fixed or learned",
     ATT("\"activation\":\"relu\"")},
    {"/attention/n_for_scale", "7", VIT, ATT("\"activation\":\"sima\""), "scale fixed or learned",
     ATT("\"activation\":\"sigmoid_bias\"")},
    {"/attention/qk_gain", "\"per_head\"", VIT, NONE, "unless attention.qk_norm is on",
     ATT("\"qk_norm\":true")},
    {"/attention/qk_gain", "\"per_head\"", VIT, "{\"model\":{\"heads\":1},\"attention\":{\"qk_norm\":true}}",
     "with more than one head", ATT("\"qk_norm\":true")},
    {"/attention/qk_gain", "\"per_head\"", SWIN,
     "{\"model\":{\"head_counts\":[1,1]},\"attention\":{\"qk_norm\":true}}", "with more than one head",
     "{\"model\":{\"head_counts\":[1,2]},\"attention\":{\"qk_norm\":true}}"},
    {"/attention/form", "\"quadratic\"", VIT, NONE, "poly with a degree of 1 or 2",
     ATT("\"activation\":\"poly\",\"degree\":2")},
    {"/attention/form", "\"quadratic\"", VIT, ATT("\"activation\":\"poly\",\"degree\":3"),
     "poly with a degree of 1 or 2", ATT("\"activation\":\"sima\"")},
    {"/attention/form", "\"quadratic\"", VIT, ATT("\"activation\":\"poly\",\"degree\":1,\"dropout\":0.1"),
     "without dropout", ATT("\"activation\":\"poly\",\"degree\":1")},
    {"/attention/init_logit_std", "0.5", VIT, ATT("\"qk_norm\":true"), "with attention.qk_norm", NONE},
    {"/attention/class_attention", "\"softmax\"", VIT, NONE, "unless model.arch is xcit", NULL},
    {"/attention/nystrom_apply", "\"F1F3\"", VIT, NONE, "unless model.arch is nystrom", NULL},
    {"/data/path", "\"x\"", GEN, NONE, "because polyd generates these data", NULL},
    {"/data/path", "\"x\"", TEXT_GEN, NONE, "because polyd generates these data", NULL},
    {"/data/split/train", "0.5", VIT, GIVEN, "with data.split.rule given",
     "{\"data\":{\"split\":{\"rule\":\"fraction\",\"val\":0.1}}}"},
    {"/data/split/val", "0.5", VIT, GIVEN, "with data.split.rule given", NONE},
    {"/data/split/test", "0.5", VIT, GIVEN, "unless data.split.rule is standard", NONE},
    {"/data/split/test", "0.5", VIT,
     "{\"data\":{\"split\":{\"rule\":\"fraction\",\"train\":0.5,\"val\":0.1}}}",
     "unless data.split.rule is standard", NONE},
    {"/data/split_seed", "3", VIT, GIVEN, "unless images or labelled texts are divided",
     "{\"data\":{\"split\":{\"rule\":\"count\",\"train\":64,\"val\":8}}}"},
    {"/data/split_seed", "null", VIT, GIVEN, "unless images or labelled texts are divided", NONE},
    {"/data/split_seed", "3", GPT, NONE, "unless images",
     "{\"data\":{\"dataset\":\"text_gen\",\"path\":null}}"},
    {"/data/tokenizer", "\"chars\"", VIT, NONE, "unless the data are text", NULL},
    {"/data/tokenizer_path", "\"a/b\"", GPT, NONE, "unless data.tokenizer is gpt2_bpe",
     "{\"data\":{\"tokenizer\":\"gpt2_bpe\"}}"},
    {"/data/lra_len", "\"paper\"", VIT, NONE, "Long Range Arena", NULL},
    {"/data/lra_len", "\"paper\"", IMDB, "{\"model\":{\"context\":1000}}", "above the limit of reference",
     "{\"model\":{\"context\":1001}}"},
    {"/data/augment/crop", "\"pad_crop\"", GPT, NONE, "unless the data are images", NULL},
    {"/data/augment/pad_crop/shift", "2", VIT, NONE, "is pad_crop", AUG("\"crop\":\"pad_crop\"")},
    {"/data/augment/pad_crop/shift", "2", GPT, AUG("\"crop\":\"pad_crop\""), "crop of images", NULL},
    {"/data/augment/rrc/scale", "[0.5,1]", VIT, NONE, "is rrc", AUG("\"crop\":\"rrc\"")},
    {"/data/augment/rrc/ratio", "[0.5,1]", VIT, AUG("\"crop\":\"pad_crop\""), "is rrc",
     AUG("\"crop\":\"rrc\"")},
    {"/data/augment/rrc/ratio", "[0.5,1]", GPT, AUG("\"crop\":\"rrc\""), "crop of images", NULL},
    {"/data/augment/flip", "0.5", GPT, NONE, "unless the data are images", NULL},
    {"/data/augment/randaugment", "{}", GPT, NONE, "unless the data are images", NULL},
    {"/data/augment/mixup", "0.5", GPT, NONE, "unless the data are images", NULL},
    {"/data/augment/cutmix", "0.5", GPT, NONE, "unless the data are images", NULL},
    {"/data/augment/mix_prob", "0.5", VIT, NONE, "without mixup or cutmix", AUG("\"cutmix\":0.5")},
    {"/data/augment/mix_group", "2", VIT, NONE, "without mixup or cutmix", AUG("\"mixup\":0.5")},
    {"/data/augment/mix_prob", "0.5", GPT, AUG("\"mixup\":0.5"), "without mixup or cutmix", NULL},
    {"/data/augment/switch_prob", "0.25", VIT, AUG("\"mixup\":0.5"), "unless both mixup and cutmix are on",
     AUG("\"mixup\":0.5,\"cutmix\":1")},
    {"/data/augment/erasing", "0.5", GPT, NONE, "unless the data are images", NULL},
    {"/data/augment/repeats", "2", GPT, NONE, "unless the data are images", NULL},
    {"/data/augment/eval_crop", "0.5", GPT, NONE, "unless the data are images", NULL},
    {"/data/augment/interpolation", "\"bilinear\"", GPT, NONE, "unless images change their size", NULL},
    {"/data/augment/interpolation", "\"bilinear\"", GEN, NONE, "unless images change their size",
     AUG("\"eval_crop\":0.875")},
    {"/data/augment/interpolation", "\"bilinear\"", GEN, AUG("\"crop\":\"pad_crop\""),
     "unless images change their size", AUG("\"crop\":\"rrc\"")},
    {"/data/augment/interpolation", "\"bilinear\"", GEN, NONE, "or RandAugment moves their pixels",
     AUG("\"randaugment\":{}")},
    {"/data/augment/interpolation", "\"bilinear\"", VIT, "{\"data\":{\"dataset\":\"cifar10\"}}",
     "unless images change their size",
     "{\"data\":{\"dataset\":\"cifar10\",\"augment\":{\"randaugment\":{}}}}"},
    {"/data/augment/interpolation", "\"bilinear\"", VIT, "{\"data\":{\"dataset\":\"cifar10\"}}",
     "unless images change their size", "{\"data\":{\"dataset\":\"cifar10\",\"image_size\":64}}"},
    {"/train/zero", "1", VIT, NONE, "with one slot", "{\"resources\":{\"slots\":2}}"},
    {"/train/optimizer/betas", "[0.5,0.5]", VIT, OPT("\"name\":\"msgdw\""), "unless the optimizer is adamw",
     NONE},
    {"/train/optimizer/eps", "1", VIT, OPT("\"name\":\"msgd_l2\""), "unless the optimizer is adamw", NONE},
    {"/train/optimizer/momentum", "0.5", VIT, NONE, "unless the optimizer is msgdw",
     OPT("\"name\":\"msgdw\"")},
    {"/train/optimizer/dampening", "0.5", VIT, NONE, "unless the optimizer is msgdw",
     OPT("\"name\":\"msgdw\",\"momentum\":0")},
    {"/train/optimizer/dampening", "0.5", VIT, OPT("\"name\":\"msgdw\",\"momentum\":0,\"nesterov\":true"),
     "nesterov and a momentum of 0", OPT("\"name\":\"msgdw\",\"nesterov\":true")},
    {"/train/optimizer/nesterov", "true", VIT, NONE, "unless the optimizer is msgdw",
     OPT("\"name\":\"msgd_l2\"")},
    {"/train/optimizer/nesterov", "true", VIT, OPT("\"name\":\"msgdw\",\"momentum\":0"),
     "with a momentum or dampening above 0", OPT("\"name\":\"msgdw\",\"momentum\":0,\"dampening\":0.5")},
    {"/train/optimizer/decay_temperature", "true", VIT, NONE, "unless model.arch is xcit", NULL},
    {"/train/schedule/name", "\"step\"", VIT, NONE, "without train.schedule.milestones",
     SCHED("\"milestones\":[5]")},
    {"/train/schedule/warmup_lr", "1e-5", VIT, SCHED("\"warmup_form\":\"nanogpt\""), "has the form timm",
     NONE},
    {"/train/schedule/warmup_lr", "1e-5", VIT, SCHED("\"warmup_epochs\":0"), "has the form timm", NONE},
    {"/train/schedule/warmup_form", "\"timm\"", GPT, SCHED("\"warmup_steps\":0"), "without a warm-up", NONE},
    {"/train/schedule/warmup_form", "\"timm\"", VIT, SCHED("\"name\":\"one_cycle\""), "with one_cycle", NONE},
    {"/train/schedule/beta1", "[0.9,0.8]", VIT, NONE, "unless the schedule is one_cycle",
     SCHED("\"name\":\"one_cycle\"")},
    {"/train/schedule/shifted", "false", VIT, SCHED("\"name\":\"one_cycle\""), "nor with one_cycle", NONE},
    {"/train/schedule/min_lr", "1e-6", VIT, SCHED("\"name\":\"constant\""), "that is constant", NONE},
    {"/train/schedule/min_lr", "1e-6", VIT, SCHED("\"name\":\"step\""), "has no milestones",
     SCHED("\"name\":\"step\",\"milestones\":[5]")},
    {"/train/schedule/shifted", "false", VIT, SCHED("\"name\":\"constant\""), "the rate falls at each step",
     NONE},
    {"/train/schedule/shifted", "false", VIT, SCHED("\"name\":\"step\",\"milestones\":[5]"),
     "the rate falls at each step", SCHED("\"name\":\"linear\"")},
    {"/train/schedule/shifted", "false", VIT, SCHED("\"warmup_epochs\":0"), "unless there is a warm-up",
     NONE},
    {"/train/schedule/per", "\"epoch\"", VIT, SCHED("\"name\":\"constant\",\"warmup_epochs\":0"),
     "unless there is a warm-up", SCHED("\"name\":\"constant\"")},
    {"/train/schedule/per", "\"epoch\"", VIT,
     SCHED("\"name\":\"step\",\"milestones\":[5],\"warmup_epochs\":0"), "unless there is a warm-up",
     SCHED("\"warmup_epochs\":0")},
    {"/train/schedule/milestones", "[5]", VIT, NONE, "unless the schedule is step",
     SCHED("\"name\":\"step\"")},
    {"/train/schedule/factor", "0.5", VIT, NONE, "unless the schedule is step",
     SCHED("\"name\":\"step\",\"milestones\":[5]")},
    {"/train/schedule/factor", "0.5", VIT, SCHED("\"name\":\"step\""), "with milestones",
     SCHED("\"name\":\"step\",\"milestones\":[5]")},
    {"/train/drop_path", "0.1", VIT, "{\"model\":{\"depth\":1}}", "in one layer",
     "{\"model\":{\"depth\":1},\"train\":{\"drop_path_rule\":\"same\"}}"},
    {"/train/teacher/tau", "2", DEIT, NONE, "unless train.teacher.kind is soft",
     "{\"train\":{\"teacher\":{\"kind\":\"soft\"}}}"},
    {"/model/pos", "\"none\"", SWIN, NONE, "with model.arch swin", NULL},
    {"/model/pos", "\"none\"", PINN, NONE, "or pinnsformer, which reads coordinates", NULL},
    {"/model/mlp_act", "\"relu\"", PINN, NONE, "with model.arch pinnsformer", NULL},
    {"/model/gelu", "\"tanh\"", PINN, NONE, "nor with model.arch pinnsformer", NULL},
    {"/norm/kind", "\"rms\"", PINN, NONE, "with model.arch pinnsformer, which has no norms", NULL},
    {"/norm/eps", "0.5", PINN, NONE, "which has no norms", NULL},
    {"/norm/eps_mode", "\"sum\"", PINN, NONE, "which has no norms", NULL},
    {"/norm/final", "false", PINN, NONE, "which has no norms", NULL},
    {"/train/layer_decay", "0.5", PINN, NONE, "which has no blocks with rates of their own", NULL},
    {"/data/split/rule", "\"given\"", PINN, NONE, "with an equation", NULL},
    {"/data/split/train", "1", PINN, NONE, "or an equation", NULL},
    {"/data/split/val", "1", PINN, NONE, "or an equation", NULL},
    {"/data/split/test", "1", PINN, NONE, "nor with an equation", NULL},
    {"/data/split_seed", "3", PINN, NONE, "or polyd draws the data", NULL},
    {"/model/pos_after", "true", SWIN, "{\"norm\":{\"placement\":\"S4\"}}", "nor with model.arch swin", NULL},
    {"/data/zero_is_padding", "false", PAIRS, NONE, "nor with pairs of texts", NULL},
    {"/train/init_fan", "\"fused\"", NYSTROM, NONE, "nor with model.arch nystrom", NULL},
    {"/train/drop_path_rule", "\"same\"", VIT, NONE, "without drop_path", "{\"train\":{\"drop_path\":0.1}}"},
    {"/train/init_fan", "\"fused\"", VIT, NONE, "unless train.init is xavier",
     "{\"train\":{\"init\":\"trunc_xavier\"}}"},
    {"/train/ema_serve", "true", VIT, NONE, "without train.ema", "{\"train\":{\"ema\":0.9}}"},
    {"/train/stop/metric", "\"loss/val\"", VIT, NONE, "without train.stop.patience",
     "{\"train\":{\"stop\":{\"patience\":3}}}"},
    {"/train/stop/min_change", "0.5", VIT, NONE, "without train.stop.patience",
     "{\"train\":{\"stop\":{\"patience\":3}}}"},
    {"/train/pinn_derivative", "\"jvp_shift\"", VIT, NONE, "unless model.arch is pinnsformer", NULL},
    {"/model/head_width", "9", VIT, NONE, "unless model.arch is pinnsformer", NULL},
    {"/data/pde/grid", "9", VIT, NONE, "unless model.arch is pinnsformer", NULL},
    {"/data/pde/test_grid", "9", VIT, NONE, "unless model.arch is pinnsformer", NULL},
    {"/data/pde/step", "0.1", VIT, NONE, "unless model.arch is pinnsformer", NULL},
    {"/data/pde/coefficient", "9", VIT, NONE, "unless model.arch is pinnsformer", NULL},
    {"/diagnostics/probe_batch", "8", VIT, "{\"diagnostics\":{\"every\":0}}", "with diagnostics.every 0",
     "{\"diagnostics\":{\"every\":0,\"heatmaps\":{}}}"},
    {"/diagnostics/probe_cls", "false", VIT, NONE, "unless images are read with model.pool cls",
     "{\"model\":{\"pool\":\"cls\"}}"},
    {"/diagnostics/probe_cls", "false", VIT, "{\"model\":{\"pool\":\"cls\"},\"diagnostics\":{\"every\":0}}",
     "and diagnostics.every is not 0", "{\"model\":{\"pool\":\"cls\"}}"},
    {"/diagnostics/probe_cls", "false", GPT, "{\"model\":{}}", "unless images are read", NULL},
    {"/resources/threads", "3", VIT, "{\"resources\":{\"device\":\"cuda\"}}",
     "unless resources.device is cpu", NONE},
    {"/resources/warn_before_s", "9", VIT, NONE, "without resources.time_limit_s",
     "{\"resources\":{\"time_limit_s\":60}}"},
    {"/sweep/samples", "3", VIT, SWEEP(""), "unless sweep.method is random or asha",
     SWEEP(",\"method\":\"random\"")},
    {"/sweep/seed", "3", VIT, SWEEP(""), "unless sweep.method is random or asha",
     SWEEP(",\"method\":\"random\"")},
    {"/sweep/min_steps", "3", VIT, SWEEP(""), "unless sweep.method is asha", NULL},
    {"/sweep/min_steps", "3", VIT, SWEEP(",\"method\":\"random\""), "unless sweep.method is asha", NULL},
    {"/sweep/reduction", "4", VIT, SWEEP(""), "unless sweep.method is asha", NULL},
};
#define CASES (sizeof cases / sizeof *cases)

/* Rows that change something whatever the others say: most change the numbers; words and limits do what they
 * say for any run. A new row belongs here or gets a case above. */
static const char *const always[] = {
    "/schema",
    "/template", /* another error than "not available" is for a later version */
    "/params",   /* refused without a template */
    "/recipe",
    "/name",
    "/experiment",
    "/tags",
    "/notes",
    "/overrides",
    "/attention/formulas",
    "/trials",
    "/depends_on",
    "/register",
    "/model/preset",
    "/model/arch",
    "/data/dataset",
    "/model/width",
    "/model/depth",
    "/model/heads",
    "/model/mlp_ratio",
    "/model/bias",
    "/norm/placement",
    "/train/optimizer/name",
    "/attention/activation",
    "/attention/c0", /* computed: a given value is replaced, with a warning of its own */
    "/attention/n",  /* likewise */
    "/attention/qk_norm",
    "/attention/dropout",
    "/data/eval",
    "/data/augment/randaugment/n", /* there only in an object that is there */
    "/data/augment/randaugment/m",
    "/data/augment/randaugment/std",
    "/data/augment/randaugment/inc",
    "/train/steps",
    "/train/epochs",
    "/train/batch",
    "/train/accumulation",
    "/train/optimizer/lr",
    "/train/optimizer/weight_decay",
    "/train/schedule/warmup_steps",
    "/train/schedule/warmup_epochs",
    "/train/clip_norm",
    "/train/label_smoothing",
    "/train/dropout",
    "/resources/device",
    "/train/precision",
    "/train/recompute",
    "/train/seed",
    "/train/deterministic",
    "/train/init",
    "/train/ema",
    "/train/stop/patience",
    "/train/teacher",
    "/train/teacher/model",
    "/train/teacher/kind",
    "/train/teacher/path",
    "/train/teacher/sha256",
    "/train/teacher/alpha",
    "/train/start",
    "/train/start/model",
    "/train/start/run",
    "/train/start/step",
    "/train/start/path",
    "/train/start/sha256",
    "/train/start/optimizer",
    "/train/start/reset",
    "/train/freeze",
    "/train/nonfinite_limit",
    "/train/eval_every",
    "/train/checkpoint_every/steps",
    "/train/checkpoint_every/seconds",
    "/train/keep/experiment",
    "/train/keep/best",
    "/train/keep/latest",
    "/diagnostics/every",
    "/diagnostics/heatmaps",
    "/diagnostics/heatmaps/layers",
    "/diagnostics/heatmaps/heads",
    "/diagnostics/heatmaps/every",
    "/diagnostics/histograms",
    "/diagnostics/histograms/tensors",
    "/diagnostics/histograms/at",
    "/resources/placement",
    "/resources/slots",
    "/resources/loader_threads",
    "/resources/memory_bytes",
    "/resources/time_limit_s",
    "/resources/max_restarts",
    "/resources/priority",
    "/sweep",
    "/sweep/method",
    "/sweep/axes",
    "/sweep/metric",
    "/sweep/mode",
    "/sweep/concurrency",
    "/kind",
    "/check",
    "/evaluate/model",
    "/evaluate/run",
    "/evaluate/step",
    "/evaluate/path",
    "/evaluate/sha256",
    "/evaluate/split",
};

static bool listed(const char *pointer)
{
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) {
        if (strcmp(always[i], pointer) == 0)
            return true;
    }
    return false;
}

static void test_every_row_has_a_case_or_always_an_effect(void **state)
{
    (void)state;
    for (size_t i = 0; i < job_field_count; i++) {
        const char *pointer = job_fields[i].pointer;
        size_t k = 0;
        while (k < CASES && strcmp(cases[k].pointer, pointer) != 0)
            k++;
        if (k < CASES ? listed(pointer) || !job_fields[i].useful : !listed(pointer))
            fail_msg("%s: when does this field change nothing? Name a case, or list it as never so", pointer);
    }
}

/* The document with an object merged and the value set; the caller frees it. */
static char *with_both(const char *doc, const char *merge, const char *pointer, const char *value)
{
    char *merged, *out;
    json_t *to = json_loads(doc, 0, NULL), *from = json_loads(merge, 0, NULL);

    assert_non_null(to);
    assert_non_null(from);
    assert_true(job_json_merge(to, from));
    merged = json_dumps(to, 0);
    out = with(merged, pointer, value);
    free(merged);
    json_decref(to);
    json_decref(from);
    return out;
}

static void test_a_field_without_effect_is_warned_of(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        char place[128], *doc = with_both(cases[i].doc, cases[i].idle, cases[i].pointer, cases[i].value);
        struct parsed p;

        snprintf(place, sizeof place, "#%s", cases[i].pointer);
        want_warning(doc, place, "has no effect");
        want_warning(doc, place, cases[i].what);
        free(doc);
        /* not asked for: no word */
        doc = with_both(cases[i].doc, cases[i].idle, "/name", "\"x\"");
        p = parse(doc);
        if (told(p.report.warnings, p.report.warning_count, place, "has no effect"))
            fail_msg("%s: a warning where nothing is asked", doc);
        done(&p);
        free(doc);
        if (!cases[i].busy)
            continue;
        doc = with_both(cases[i].doc, cases[i].busy, cases[i].pointer, cases[i].value);
        p = parse(doc);
        if (p.err != PD_OK || told(p.report.warnings, p.report.warning_count, place, "has no effect")) {
            dump(&p);
            fail_msg("%s: should have an effect", doc);
        }
        done(&p);
        free(doc);
    }
}

/* What other data are warned of, an equation does not have: test files that could validate. */
static void test_the_division_of_an_equation_has_one_warning(void **state)
{
    char *doc = with(PINN, "/data/split", "{\"rule\":\"given\"}");
    struct parsed p = parse(doc);

    (void)state;
    assert_int_equal(p.err, PD_OK);
    assert_int_equal(p.report.warning_count, 1);
    assert_true(told(p.report.warnings, 1, "#/data/split/rule", "has no effect"));
    done(&p);
    free(doc);
}

/* Amounts that other data would refuse do not matter either. */
static void test_amounts_of_an_equation_are_warned_of_and_not_refused(void **state)
{
    static const struct {
        const char *split;
        size_t warnings;
    } splits[] = {
        {"{\"rule\":\"standard\",\"train\":10}", 1},
        {"{\"rule\":\"standard\",\"train\":0.5,\"test\":10}", 2},
        {"{\"rule\":\"count\",\"train\":10,\"val\":2.5}", 3},
        {"{\"rule\":\"count\"}", 1},
        {"{\"rule\":\"fraction\",\"train\":10}", 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        char *doc = with(PINN, "/data/split", splits[i].split);
        struct parsed p = parse(doc);

        if (p.err != PD_OK || p.report.warning_count != splits[i].warnings) {
            dump(&p);
            fail_msg("%s: should have %zu warnings alone", doc, splits[i].warnings);
        }
        for (size_t k = 0; k < p.report.warning_count; k++)
            assert_non_null(strstr(p.report.warnings[k].detail, "has no effect"));
        done(&p);
        free(doc);
    }
}

/* The axis of a field without effect is named, whatever its values. */
static void test_an_axis_without_effect_is_warned_of(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        const struct job_field *f = job_field_find(cases[i].pointer);
        char axis[512], words[256], *doc;
        struct parsed p;

        /* Of a schedule's name, one value alone has no effect. */
        if (f->flags & (JOB_F_FIXED | JOB_F_COMPUTED) || f->type == JOB_T_OBJECT ||
            strcmp(f->pointer, "/train/schedule/name") == 0)
            continue;
        snprintf(axis, sizeof axis,
                 "{\"axes\":[{\"pointer\":\"/train/seed\",\"values\":[1,2]},{\"pointer\":\"%s\",\"values\":"
                 "[%s,%s]}]}",
                 cases[i].pointer, f->def ? f->def : cases[i].value, cases[i].value);
        snprintf(words, sizeof words, "%s has no effect", cases[i].pointer);
        doc = with_both(cases[i].doc, cases[i].idle, "/sweep", axis);
        want_warning(doc, "#/sweep/axes/1", words);
        /* which of nesterov and dampening has no effect depends on the other one: they do not count as equal
         */
        if (!strstr(cases[i].idle, "nesterov"))
            want_warning(doc, "#/sweep", "2 of 4 runs are duplicates: run 1 computes the same as run 0");
        free(doc);
        if (!cases[i].busy || !f->def || !strcmp(f->def, cases[i].value) || !strcmp(f->def, "null"))
            continue;
        doc = with_both(cases[i].doc, cases[i].busy, "/sweep", axis);
        p = want_ok(doc);
        done(&p);
        free(doc);
    }
}

static void test_runs_that_compute_the_same_are_counted(void **state)
{
    static const struct {
        const char *set, *value, *trials, *what;
    } sweeps[] = {
        /* k without effect under fixed */
        {"/attention", "{\"activation\":\"poly\",\"scale\":\"fixed\"}|/attention/k|[1,2,3,4]", "3",
         "9 of 12 runs are duplicates: run 3 computes the same as run 0"},
        /* seeds 2 and 3 come twice */
        {"/name", "\"x\"|/train/seed|[1,2]", "3",
         "2 of 6 runs are duplicates: run 3 computes the same as run 1"},
        /* the same value twice */
        {"/name", "\"x\"|/train/batch|[8,16,8]", "1",
         "1 of 3 runs are duplicates: run 2 computes the same as run 0"},
        {"/name", "\"x\"|/train/batch|[8,16]", "64", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++) {
        char text[256], sweep[256], *value, *pointer, *values, *a, *b, *c;
        struct parsed p;

        snprintf(text, sizeof text, "%s", sweeps[i].value);
        value = strtok(text, "|");
        pointer = strtok(NULL, "|");
        values = strtok(NULL, "|");
        snprintf(sweep, sizeof sweep, "{\"axes\":[{\"pointer\":\"%s\",\"values\":%s}]}", pointer, values);
        a = with(VIT, sweeps[i].set, value);
        b = with(a, "/sweep", sweep);
        c = with(b, "/trials", sweeps[i].trials);
        if (sweeps[i].what) {
            want_warning(c, "#/sweep", sweeps[i].what);
        } else {
            p = want_ok(c);
            done(&p);
        }
        free(a);
        free(b);
        free(c);
    }
    {
        /* One axis makes another idle in some combinations: three times four of k, where k is read in four.
         */
        char *doc = with(VIT, "/attention/activation", "\"poly\""),
             *more =
                 with(doc, "/sweep",
                      "{\"axes\":[{\"pointer\":\"/attention/scale\",\"values\":[\"none\",\"fixed\",\"k\"]},"
                      "{\"pointer\":\"/attention/k\",\"values\":[1,2,3,4]}]}");
        struct parsed p = parse(more);

        assert_int_equal(p.err, PD_OK);
        assert_int_equal(p.report.warning_count, 1);
        assert_true(told(p.report.warnings, 1, "#/sweep", "6 of 12 runs are duplicates: run 1"));
        done(&p);
        free(doc);
        free(more);
    }
}

/* An entry of an axis of objects is a small document of its own. */
static void test_an_entry_without_effect_is_warned_of(void **state)
{
    static const char *const methods[] = {"grid", "random"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char sweep[512], *doc;
        struct parsed p;

        snprintf(sweep, sizeof sweep,
                 "{\"method\":\"%s\",\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[8,16]},{\"pointer\":"
                 "\"/attention\",\"values\":[{\"activation\":\"poly\",\"degree\":2},{\"activation\":"
                 "\"softmax\",\"degree\":2}]}]}",
                 methods[i]);
        doc = with(VIT, "/sweep", sweep);
        p = parse(doc);
        assert_int_equal(p.err, PD_OK);
        assert_true(told(p.report.warnings, p.report.warning_count, "#/sweep/axes/1/values/1/degree",
                         "has no effect unless attention.activation is poly"));
        for (size_t k = 0; k < p.report.warning_count; k++)
            assert_null(strstr(p.report.warnings[k].pointer, "values/0"));
        done(&p);
        free(doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_has_a_case_or_always_an_effect),
        cmocka_unit_test(test_a_field_without_effect_is_warned_of),
        cmocka_unit_test(test_the_division_of_an_equation_has_one_warning),
        cmocka_unit_test(test_amounts_of_an_equation_are_warned_of_and_not_refused),
        cmocka_unit_test(test_an_axis_without_effect_is_warned_of),
        cmocka_unit_test(test_runs_that_compute_the_same_are_counted),
        cmocka_unit_test(test_an_entry_without_effect_is_warned_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
