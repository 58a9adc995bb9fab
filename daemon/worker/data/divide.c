/* daemon/worker/data/divide.c: how a data set becomes a training, a validation and a test part. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/philox.h"
#include "daemon/worker/data/set.h"

#define STANDARD_VAL 0.1 /* of the training files, where there are none for validation */

static const char *const names[DATA_SPLITS] = {"train", "val", "test"};

enum data_split data_scored_part(enum data_scored scored)
{
    return scored == DATA_SCORED_TRAIN ? DATA_TRAIN : scored == DATA_SCORED_TEST ? DATA_TEST : DATA_VAL;
}

/* ---- sizes ---- */

static enum pd_err check_sizes(const int64_t ret[DATA_SPLITS], struct pd_why *why)
{
    return ret[DATA_TRAIN] < 1 || ret[DATA_VAL] < 1
               ? pd_fail(why, PD_ERR_INVALID, "#/data/split: leaves a part empty")
               : PD_OK;
}

/* `amount` of `whole` samples. The nudge makes a share such as 0.3, which is no binary number, of 10 samples 3. */
static int64_t size_of(double amount, int64_t whole)
{
    return amount < 1 ? (int64_t)floor((double)whole * amount + 1e-6) : (int64_t)amount;
}

static enum pd_err too_few(enum data_split part, int64_t wanted, int64_t there, struct pd_why *why)
{
    return pd_fail(why, PD_ERR_INVALID, "#/data/split/%s: %lld samples are requested, only %lld exist",
                   names[part], (long long)wanted, (long long)(there < 0 ? 0 : there));
}

/* Validation and test first: what is trained on is what is left. */
static enum pd_err divide_standard(const struct data_options *o, const int64_t given[DATA_SPLITS],
                                   int64_t ret[DATA_SPLITS], struct pd_why *why)
{
    int64_t left = given[DATA_TRAIN];

    for (int part = DATA_TEST; part >= DATA_TRAIN; part--) {
        bool own = part != DATA_TRAIN && given[part] > 0;
        int64_t there = own ? given[part] : left;
        double amount = o->amount[part];

        if (amount <= 0 && !own && part != DATA_TRAIN)
            amount = part == DATA_VAL ? STANDARD_VAL : 0;
        if (amount > 0)
            ret[part] = size_of(amount, own ? given[part] : given[DATA_TRAIN]);
        else
            ret[part] = own || part == DATA_TRAIN ? there : 0;
        if (ret[part] > there)
            return too_few((enum data_split)part, ret[part], there, why);
        if (part == DATA_TEST && amount > 0 && ret[part] < 1)
            return pd_fail(why, PD_ERR_INVALID, "#/data/split/test: leaves the part empty");
        left -= own ? 0 : ret[part];
    }
    return check_sizes(ret, why);
}

enum pd_err data_divide(const struct data_options *o, int64_t whole, const int64_t given[DATA_SPLITS],
                        int64_t ret[DATA_SPLITS], struct pd_why *why)
{
    ret[DATA_TEST] = 0;
    switch (o->rule) {
    case DATA_SPLIT_GIVEN:
        if (!given[0] || !given[1])
            return pd_fail(
                why, PD_ERR_INVALID,
                "#/data/split/rule: '%s' has no %s part of its own; use the rule standard, fraction or count",
                o->path ? o->path : "", given[0] ? "validation" : "training");
        ret[0] = given[0];
        ret[1] = given[1];
        break;
    case DATA_SPLIT_FRACTION:
        if (!(o->train_share > 0 && o->val_share > 0 && o->train_share + o->val_share <= 1 + 1e-9))
            return pd_fail(why, PD_ERR_INVALID, "#/data/split: shares must be positive and sum to at most 1");
        ret[0] = size_of(o->train_share, whole);
        ret[1] = (int64_t)floor((double)whole * o->val_share + 1e-6);
        if (ret[0] + ret[1] > whole)
            ret[1] = whole - ret[0];
        break;
    case DATA_SPLIT_COUNT:
        ret[0] = o->train_count;
        ret[1] = o->val_count;
        break;
    case DATA_SPLIT_STANDARD:
        return divide_standard(o, given, ret, why);
    }
    return check_sizes(ret, why);
}

enum pd_err data_divide_made(const struct data_options *o, const int64_t usual[DATA_SPLITS],
                             int64_t ret[DATA_SPLITS], struct pd_why *why)
{
    enum pd_err err = PD_OK;

    if (o->rule != DATA_SPLIT_STANDARD)
        err = data_divide(o, usual[DATA_TRAIN] + usual[DATA_VAL], usual, ret, why);
    for (int part = 0; part < DATA_SPLITS && o->rule == DATA_SPLIT_STANDARD; part++) {
        if (o->amount[part] > 0 && o->amount[part] < 1)
            return pd_fail(
                why, PD_ERR_INVALID,
                "#/data/split/%s: must be a count: generated data have no total that a share could refer to",
                names[part]);
        ret[part] = o->amount[part] > 0 ? (int64_t)o->amount[part] : usual[part];
    }
    if (err == PD_OK && o->rule != DATA_SPLIT_STANDARD && o->scored == DATA_SCORED_TEST)
        ret[DATA_TEST] = ret[DATA_VAL];
    return err;
}

enum pd_err data_no_test(const struct data_options *o, struct pd_why *why)
{
    return pd_fail(why, PD_ERR_INVALID,
                   "#/split: '%s' has no test part of its own, and data.split leaves none; set val or train",
                   o->path ? o->path : "");
}

/* ---- samples ---- */

static void shuffle(uint32_t *item, int64_t count, uint64_t seed, enum data_stream stream, uint64_t epoch)
{
    uint32_t word[4];

    for (int64_t i = count - 1; i > 0; i--) {
        uint32_t j, t;

        if ((count - 1 - i) % 4 == 0)
            data_random(seed, stream, epoch, (uint64_t)(count - 1 - i) / 4, word);
        j = data_bounded(word[(count - 1 - i) % 4], (uint32_t)i + 1);
        t = item[i];
        item[i] = item[j];
        item[j] = t;
    }
}

/* Of the samples first .. first+count-1, in a seeded order if `mixed`, those behind the first `skip`. */
struct choice {
    int64_t first, count, skip, take;
    bool mixed;
};

/* NULL without memory. */
static uint32_t *choose(const struct choice *c, uint64_t seed)
{
    uint32_t *all = malloc((size_t)c->count * sizeof *all), *some;

    if (!all)
        return NULL;
    for (int64_t i = 0; i < c->count; i++)
        all[i] = (uint32_t)(c->first + i);
    if (c->mixed)
        shuffle(all, c->count, seed, DATA_STREAM_SPLIT, (uint64_t)c->first);
    memmove(all, all + c->skip, (size_t)c->take * sizeof *all);
    some = realloc(all, (size_t)c->take * sizeof *all);
    return some ? some : all;
}

/* Two parts, of which the second may be the set's own test part. */
static enum pd_err choose_two(const struct data_options *o, const int64_t given[DATA_SPLITS],
                              const int64_t count[DATA_SPLITS], struct choice ret[DATA_SPLITS],
                              struct pd_why *why)
{
    const int64_t whole = given[0] + given[1];
    /* Where the set tells no parts, both come from one shuffle and share no sample. */
    const bool pooled = o->rule == DATA_SPLIT_FRACTION || !given[0] || !given[1],
               mixed = o->rule != DATA_SPLIT_GIVEN;

    for (int i = 0; i < 2 && o->rule == DATA_SPLIT_COUNT; i++) {
        int64_t there = pooled ? whole - (i ? count[0] : 0) : given[i];

        if (count[i] > there)
            return too_few((enum data_split)i, count[i], there, why);
    }
    ret[DATA_TRAIN] = (struct choice){0, pooled ? whole : given[0], 0, count[0], mixed};
    ret[DATA_VAL] = pooled ? (struct choice){0, whole, count[0], count[1], mixed}
                           : (struct choice){given[0], given[1], 0, count[1], mixed};
    ret[DATA_TEST] = pooled
                         ? (struct choice){0, whole, count[0] + count[1], whole - count[0] - count[1], mixed}
                         : (struct choice){given[0], given[1], 0, given[1], false};
    return PD_OK;
}

/* What the training files lend to the other parts is the same however much is trained on: it comes first. */
static void choose_three(const int64_t given[DATA_SPLITS], const int64_t count[DATA_SPLITS],
                         struct choice ret[DATA_SPLITS])
{
    int64_t first = given[DATA_TRAIN], lent = 0;

    for (int part = DATA_VAL; part <= DATA_TEST; part++) {
        if (given[part]) {
            ret[part] = (struct choice){first, given[part], 0, count[part], count[part] < given[part]};
            first += given[part];
        } else {
            ret[part] = (struct choice){0, given[DATA_TRAIN], lent, count[part], true};
            lent += count[part];
        }
    }
    ret[DATA_TRAIN] =
        (struct choice){0, given[DATA_TRAIN], lent, count[DATA_TRAIN], count[DATA_TRAIN] < given[DATA_TRAIN]};
}

enum pd_err data_divide_samples(struct data_set *set, const struct data_options *o,
                                const int64_t given[DATA_SPLITS], bool headers_only, struct pd_why *why)
{
    const int64_t whole = given[DATA_TRAIN] + given[DATA_VAL] + given[DATA_TEST];
    int64_t *count = set->info.count;
    struct choice taken[DATA_SPLITS];
    enum pd_err err;

    if (whole > UINT32_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "more than 2^32 samples");
    set->samples = whole;
    err = data_divide(o, whole, given, count, why);
    if (err == PD_OK && o->rule != DATA_SPLIT_STANDARD)
        err = choose_two(o, given, count, taken, why);
    else if (err == PD_OK)
        choose_three(given, count, taken);
    if (err != PD_OK)
        return err;
    taken[DATA_VAL] = taken[data_scored_part(o->scored)];
    if (taken[DATA_VAL].take < 1)
        return data_no_test(o, why);
    count[DATA_VAL] = taken[DATA_VAL].take;
    if (o->scored != DATA_SCORED_VAL)
        count[DATA_TEST] = 0;
    for (int i = 0; i < DATA_SPLITS && !headers_only; i++) {
        set->pick[i] = count[i] ? choose(&taken[i], o->seed) : NULL;
        if (count[i] && !set->pick[i])
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the order of samples");
    }
    return PD_OK;
}

void data_shuffle_epoch(uint32_t *item, int64_t count, uint64_t seed, int64_t epoch)
{
    for (int64_t i = 0; i < count; i++)
        item[i] = (uint32_t)i;
    shuffle(item, count, seed, DATA_STREAM_SHUFFLE, (uint64_t)epoch);
}
