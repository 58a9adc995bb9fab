/* daemon/worker/train/session.c: see session.h. */
#include "daemon/worker/train/session.h"

#include <string.h>

#include "daemon/worker/data/safetensors.h"

static void log_line(void *user, int level, const char *line)
{
    (void)level;
    reporter_log(user, "%s", line);
}

int session_threads(const struct session *s)
{
    int threads = s->dirs->threads > 0 ? s->dirs->threads : (int)s->config->resources.threads;

    return threads > 0 ? threads : 1;
}

bool session_cpu_bf16(const struct session *s)
{
    return s->config->train.precision == JOB_PRECISION_BF16 && !strcmp(s->api->name, "cpu");
}

/* On the CPU, a resumed run repeats the choice of bf16 products that its checkpoint stores, whatever a new
 * measurement would say. */
static enum pd_err hold_bf16(struct session *s, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    if (!session_cpu_bf16(s))
        return PD_OK;
    for (size_t n = 0; n < s->dirs->start_count; n++) {
        struct data_st *st = NULL;
        const char *how = NULL;

        if (data_st_open(s->dirs->starts[n], &st, NULL) == PD_OK) /* errors are reported when it is loaded */
            how = data_st_meta(st, SESSION_BF16);
        if (how)
            err = pk_cpu_bf16_hold(s->backend, strcmp(how, "products") == 0, why);
        data_st_free(st);
        if (!how)
            continue;
        if (err == PD_ERR_UNSUPPORTED) { /* another machine */
            reporter_event(s->reporter, "bf16", "",
                           "the run began with bf16 matrix products, which this machine does not support: it "
                           "continues with the reference implementation");
            err = pk_cpu_bf16_hold(s->backend, false, why);
        }
        return err;
    }
    return PD_OK;
}

/* All ranks compute bf16 products as rank 0, which alone reads checkpoints and stores the choice in them: each has
 * measured for itself. */
static enum pd_err share_bf16(struct session *s, struct pd_why *why)
{
    char note[200];
    int64_t products;
    enum pd_err err;

    if (!s->ranks || !session_cpu_bf16(s))
        return PD_OK;
    products = pk_cpu_bf16_of(s->backend, note, sizeof note);
    err = ranks_agree(s->ranks, &products, why);
    return err == PD_OK && s->setup.rank > 0 ? pk_cpu_bf16_hold(s->backend, products != 0, why) : err;
}

/* Whether activations are kept: as rank 0 decides, for all. A resumed run does as its checkpoint says, because the two
 * round differently in bf16. */
static enum pd_err choose_recompute(struct session *s, struct pd_why *why)
{
    const int64_t memory = s->device.memory_total > INT64_MAX ? 0 : (int64_t)s->device.memory_total;
    bool held = s->config->train.recompute != JOB_RECOMPUTE_AUTO;
    int64_t keep;
    enum pd_err err = PD_OK;

    for (size_t n = 0; n < s->dirs->start_count && !held; n++) {
        struct data_st *st = NULL;
        const char *how =
            data_st_open(s->dirs->starts[n], &st, NULL) == PD_OK ? data_st_meta(st, SESSION_RECOMPUTE) : NULL;

        held = how != NULL;
        s->setup.keep_activations = how && !strcmp(how, "off");
        data_st_free(st);
    }
    if (s->config->train.recompute != JOB_RECOMPUTE_AUTO || !held)
        err = train_recompute_choose(&s->setup, s->config, s->api, memory, why);
    keep = s->setup.keep_activations;
    if (err == PD_OK)
        err = ranks_agree(s->ranks, &keep, why);
    s->setup.keep_activations = keep != 0;
    return err;
}

static enum pd_err open_backend(struct session *s, struct pd_why *why)
{
    enum pd_err err = model_tuned_new(s->dirs->cache, s->host->tuned, log_line, s->reporter, &s->tuned, why);

    if (err != PD_OK)
        return err;
    s->arena = pk_arena_new();
    if (!s->arena)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a run");
    model_tuned_lend(s->tuned, &s->lent);
    err = s->api->open(&s->lent, 0, session_threads(s), &s->backend, why);
    if (err == PD_OK)
        err = hold_bf16(s, why);
    if (err == PD_OK)
        err = s->api->info(s->backend, &s->device, why);
    if (err == PD_OK)
        model_tuned_recall(s->tuned, &s->device);
    return err;
}

static enum pd_err measure_peak(struct session *s, struct pd_why *why)
{
    enum pd_err err = model_peak_measure(s->api, s->backend, &s->lent, &s->peak, why);

    if (err != PD_ERR_NOMEM)
        return err;
    /* memory may be freed later; otherwise the run itself fails with a better sentence */
    reporter_log(s->reporter, "the matmul peak was not measured: the device's memory is full");
    return PD_OK;
}

static enum pd_err set_math(struct session *s, struct pd_why *why)
{
    return s->api->set_math(
        s->backend, s->config->train.precision == JOB_PRECISION_TF32 ? PK_MATH_TF32 : PK_MATH_F32, why);
}

enum pd_err session_open(struct session *s, bool *ret_lasting, struct pd_why *why)
{
    enum pd_err err = reporter_new(s->host, &s->reporter, why);

    if (err == PD_OK)
        err = train_setup_init(&s->setup, s->config, s->dirs->roots, s->dirs->root_count, s->dirs->cache,
                               s->dirs->state, s->dirs->ranks.rank, false, why);
    *ret_lasting = pd_err_lasting(err);
    if (err == PD_OK)
        err = open_backend(s, why);
    if (err == PD_OK)
        err = measure_peak(s, why);
    if (err == PD_OK)
        err = set_math(s, why);
    if (err == PD_OK)
        err = ranks_open(&s->dirs->ranks, s->setup.ranks, s->api, s->backend, &s->ranks, why);
    if (err == PD_OK)
        ranks_lend(s->ranks, &s->lent);
    if (err == PD_OK)
        err = share_bf16(s, why);
    if (err == PD_OK)
        err = choose_recompute(s, why);
    if (err == PD_OK && s->setup.teacher.model)
        err = teacher_load(&s->setup.teacher, s->api, s->backend, &s->teacher, why);
    return err;
}

enum pd_err session_open_score(struct session *s, const struct data_st *st, bool *ret_lasting,
                               struct pd_why *why)
{
    enum pd_err err = reporter_new(s->host, &s->reporter, why);

    if (err == PD_OK)
        err = train_setup_score(&s->setup, s->config, st, s->dirs->roots, s->dirs->root_count, s->dirs->cache,
                                false, why);
    *ret_lasting = pd_err_lasting(err);
    if (err == PD_OK)
        err = open_backend(s, why);
    if (err == PD_OK)
        err = set_math(s, why);
    return err;
}

void session_leave(const struct session *s, const char *reason)
{
    if (reason)
        ranks_leave(s->ranks, reason);
}

/* A run that measures again what others have measured is slow to start for no reason: the log shows it. */
static void log_choices(struct session *s)
{
    size_t known = 0, fresh = 0;

    if (s->tuned)
        model_tuned_count(s->tuned, &known, &fresh);
    if (known || fresh)
        reporter_log(s->reporter, "measured choices: %zu read, %zu measured", known, fresh);
}

void session_close(struct session *s)
{
    s->ranks = ranks_close(s->ranks);
    s->arena = pk_arena_free(s->arena);
    s->teacher = model_store_free(s->teacher);
    if (s->backend)
        s->backend = s->api->close(s->backend);
    log_choices(s);
    s->tuned = model_tuned_free(s->tuned);
    train_setup_done(&s->setup);
    s->reporter = reporter_free(s->reporter);
}

enum pd_err session_executable(const struct session *s, const struct train_graph *graph,
                               const struct model_store *store, const struct executable *with,
                               struct executable *e, struct pd_why *why)
{
    const struct executable_place place = {.api = s->api,
                                           .backend = s->backend,
                                           .store = store,
                                           .teacher = s->teacher,
                                           .arena = s->arena,
                                           .with = with,
                                           .wide = model_spec(s->setup.model)->dtype == PK_F64};
    struct pk_graph *g = NULL;
    enum pd_err err = graph->build(&s->setup, &g, why);

    if (err == PD_OK)
        err = executable_init(e, g, &place, why);
    return err == PD_OK ? pk_exec_compile(e->exec, reporter_compiling, s->reporter, why) : err;
}

enum pd_err session_feed_probe(const struct session *s, struct executable *e, struct pd_why *why)
{
    struct data_loader *l = NULL;
    const struct data_batch *b;
    enum pd_err err = data_loader_start(s->setup.set, DATA_VAL, s->setup.probe_batch, 0, 0, 1, &l, why);

    if (err == PD_OK)
        err = data_loader_next(l, &b, why);
    if (err == PD_OK)
        err = executable_feed_batch(e, b, 0, why);
    data_loader_free(l);
    return err;
}

enum pd_err session_stop_asked(const struct session *s, enum train_stop *ret, struct pd_why *why)
{
    int64_t stop = s->setup.rank == 0 ? (int64_t)s->host->stop(s->host->user) : 0;
    enum pd_err err = ranks_agree(s->ranks, &stop, why);

    *ret = (enum train_stop)stop;
    return err;
}

bool session_data_bad(const struct session *s, enum pd_err err)
{
    return err == PD_ERR_CORRUPT && data_bad_count(s->setup.set) > DATA_BAD_MIN;
}
