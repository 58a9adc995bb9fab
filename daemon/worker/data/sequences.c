/* daemon/worker/data/sequences.c: sequences with classes that polyd makes itself (arXiv:2011.04006 describes both).
 *
 *   ListOps     [MAX 4 3 [MIN 2 9 ] 1 ]      its value, here 4; the root is an operator
 *   Pathfinder  a picture of two dashed curves and two round marks, read row by row; 1: the marks are the ends of one curve
 *
 * Everything follows from (seed, number of the sample). */
#include "daemon/worker/data/sequences.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/philox.h"

/* ---- draws ---- */

struct dice {
    uint64_t seed, number;
    uint32_t at, word[4];
};

static uint32_t roll(struct dice *d, uint32_t bound)
{
    if (d->at % 4 == 0)
        data_random(d->seed, DATA_STREAM_SEQUENCE, d->at / 4, d->number, d->word);
    return data_bounded(d->word[d->at++ % 4], bound);
}

/* In [-1, 1). */
static double swing(struct dice *d)
{
    return roll(d, 1u << 24) * 0x1p-23 - 1;
}

/* ---- ListOps ---- */

#define ARGUMENTS_LEAST 2
#define ARGUMENTS_MOST 10
#define OPERATOR_OF 4 /* below the root one node in so many is an operator */

enum operator{ MIN, MAX, MED, SM, OPERATORS };
static const char *const operator_words[OPERATORS] = {"[MIN", "[MAX", "[MED", "[SM"};

struct expression {
    struct dice *dice;
    struct pd_buf *out;
    int64_t tokens, most;
    int32_t depth; /* levels, the root's included */
};

static int by_value(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static int apply(enum operator o, int *x, int count)
{
    int sum = 0;

    qsort(x, (size_t)count, sizeof *x, by_value);
    if (o == MIN || o == MAX)
        return o == MIN ? x[0] : x[count - 1];
    if (o == MED) /* truncated: the mean of the two in the middle */
        return count % 2 ? x[count / 2] : (x[count / 2 - 1] + x[count / 2]) / 2;
    for (int i = 0; i < count; i++)
        sum += x[i];
    return sum % 10;
}

static void put_token(struct expression *e, const char *token)
{
    if (e->tokens++ < e->most)
        pd_buf_printf(e->out, "%s%s", e->out->len ? " " : "", token);
}

/* Writes a node and returns its value. Too long an expression is not written on. */
static int write_node(struct expression *e, int32_t level)
{
    int value[ARGUMENTS_MOST], count;
    enum operator o;
    char digit[2] = "0";

    if (e->tokens > e->most)
        return 0;
    if (level == e->depth || (level > 1 && roll(e->dice, OPERATOR_OF))) {
        digit[0] = (char)('0' + roll(e->dice, 10));
        put_token(e, digit);
        return digit[0] - '0';
    }
    o = (enum operator)roll(e->dice, OPERATORS);
    count = ARGUMENTS_LEAST + (int)roll(e->dice, ARGUMENTS_MOST - ARGUMENTS_LEAST + 1);
    put_token(e, operator_words[o]);
    for (int i = 0; i < count; i++)
        value[i] = write_node(e, level + 1);
    put_token(e, "]");
    return apply(o, value, count);
}

#define TRIES 100000 /* until an expression has the wanted length */

static enum pd_err listops(const struct data_sequences *s, struct dice *dice, struct pd_buf *out, int *ret,
                           struct pd_why *why)
{
    for (int i = 0; i < TRIES; i++) {
        struct expression e = {.dice = dice, .out = out, .most = s->context, .depth = s->depth};

        out->len = 0;
        *ret = write_node(&e, 1);
        if (e.tokens <= e.most && e.tokens >= s->shortest)
            return pd_buf_err(out);
    }
    return pd_fail(
        why, PD_ERR_INVALID,
        "#/data/depth: expressions of %d levels do not have %lld to %lld tokens; change data.min_tokens or "
        "data.context",
        s->depth, (long long)s->shortest, (long long)s->context);
}

static const char *const words[] = {"<pad>", "[MIN", "[MAX", "[MED", "[SM", "]", "0", "1",
                                    "2",     "3",    "4",    "5",    "6",   "7", "8", "9"};
#define WORDS (sizeof words / sizeof *words)

/* Data sets have blanks and brackets between the words; what a client sends may come from a file with lines. */
static bool between_words(char c)
{
    return c == ' ' || c == '(' || c == ')' || (c >= '\t' && c <= '\r');
}

enum pd_err data_listops_clean(const char *text, size_t len, struct pd_buf *out, struct pd_why *why)
{
    for (size_t at = 0; at < len;) {
        const size_t from = at;
        bool known = false;

        if (between_words(text[at])) {
            at++;
            continue;
        }
        while (at < len && !between_words(text[at]))
            at++;
        for (size_t w = 1; w < WORDS && !known; w++)
            known = strlen(words[w]) == at - from && !memcmp(words[w], text + from, at - from);
        if (!known)
            return pd_fail(
                why, PD_ERR_INVALID,
                "'%.*s' is not a token of ListOps; the tokens are [MIN, [MAX, [MED, [SM, ] and digits",
                (int)(at - from < 40 ? at - from : 40), text + from);
        if (out->len)
            pd_buf_str(out, " ");
        pd_buf_append(out, text + from, at - from);
    }
    return PD_OK;
}

/* Every word, the one of id 0 first: the more often it stands there. */
static enum pd_err listops_words(struct data_tokenizer **ret, struct pd_why *why)
{
    const size_t count = WORDS;
    struct pd_buf text;
    enum pd_err err;

    pd_buf_init(&text, 0);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < count + 1 - i; k++)
            pd_buf_printf(&text, "%s ", words[i]);
    err = pd_buf_err(&text) == PD_OK ? data_tokenizer_words_new(text.data, text.len, 0, ret, why)
                                     : pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
    pd_buf_done(&text);
    return err;
}

/* ---- Pathfinder ---- */

#define SIDE_LEAST 16
#define SIDE_MOST 64
#define SIDE_USUAL 32 /* of the Long Range Arena */
#define DASH 2        /* places of a dash; one place parts it from the next */
#define BRIGHT 255
#define DIM 191  /* of dashes: three quarters of a mark's */
#define APART 2  /* dark places between two curves: more than within one */
#define TURN 0.6 /* radians, the most from place to place */
#define CURVES 2
#define DASHES_MOST 32
#define STARTS 200   /* of one curve */
#define REDRAWS 5000 /* of all */
#define TAU 6.283185307179586

struct field {
    int side;
    uint8_t owner[SIDE_MOST * SIDE_MOST]; /* 1 + curve, of all its places */
    uint8_t pixel[SIDE_MOST * SIDE_MOST];
};

/* Whether another curve is too close, or an earlier point of this one is there or adjacent. */
static bool taken(const struct field *f, int y, int x, int owner, const int *recent, int recents)
{
    for (int dy = -APART; dy <= APART; dy++)
        for (int dx = -APART; dx <= APART; dx++) {
            const int row = y + dy, column = x + dx, at = row * f->side + column;
            const bool adjacent = dy >= -1 && dy <= 1 && dx >= -1 && dx <= 1;
            bool own = false;

            if (row < 0 || column < 0 || row >= f->side || column >= f->side || !f->owner[at])
                continue;
            for (int i = 0; i < recents && !own; i++)
                own = recent[i] == at;
            if (f->owner[at] != owner || (adjacent && !own))
                return true;
        }
    return false;
}

/* A curve of so many places into `place`; false: it ran into something. */
static bool draw_curve(struct field *f, struct dice *d, int owner, int places, int *place)
{
    const int inner = f->side - 4;
    double y = 2 + roll(d, (uint32_t)inner), x = 2 + roll(d, (uint32_t)inner);
    double heading = TAU * (roll(d, 1u << 16) * 0x1p-16);
    int count = 0;

    while (count < places) {
        const int row = (int)floor(y + 0.5), column = (int)floor(x + 0.5), at = row * f->side + column;
        const int recents = count < 3 ? count : 3;

        if (row < 2 || column < 2 || row >= f->side - 2 || column >= f->side - 2)
            break;
        if (!count || place[count - 1] != at) {
            if (taken(f, row, column, owner, place + count - recents, recents))
                break;
            f->owner[at] = (uint8_t)owner;
            place[count++] = at;
        }
        heading += TURN * swing(d);
        y += sin(heading);
        x += cos(heading);
    }
    if (count == places)
        return true;
    for (int i = 0; i < count; i++)
        f->owner[place[i]] = 0;
    return false;
}

static bool draw_within(struct field *f, struct dice *d, int owner, int places, int *place)
{
    for (int i = 0; i < STARTS; i++)
        if (draw_curve(f, d, owner, places, place))
            return true;
    return false;
}

static void put_mark(struct field *f, int at)
{
    f->pixel[at] = f->pixel[at - 1] = f->pixel[at + 1] = BRIGHT;
    f->pixel[at - f->side] = f->pixel[at + f->side] = BRIGHT;
}

static void put_dashes(struct field *f, const int *place, int places)
{
    for (int i = 0; i < places; i++)
        if (i % (DASH + 1) < DASH)
            f->pixel[place[i]] = DIM;
}

static enum pd_err pathfinder(const struct data_sequences *s, struct dice *d, struct pd_buf *out, int *ret,
                              struct pd_why *why)
{
    const int side = data_sequences_side(s->context), places = s->contour * (DASH + 1) - 1,
              distractors = side / SIDE_LEAST, small = (s->contour > 3 ? 2 : 1) * (DASH + 1) - 1;
    struct field f;
    int place[CURVES][DASHES_MOST * (DASH + 1)], other[2 * (DASH + 1)];
    bool same = roll(d, 2), whole = false;

    for (int i = 0; i < REDRAWS && !whole; i++) {
        memset(&f, 0, sizeof f);
        f.side = side;
        whole = true;
        for (int c = 0; c < CURVES && whole; c++) {
            whole = draw_within(&f, d, 1 + c, places, place[c]);
            if (whole)
                put_dashes(&f, place[c], places);
        }
    }
    if (!whole)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/data/contour: two curves of %d dashes do not fit a picture of %d x %d pixels",
                       s->contour, side, side);
    for (int i = 0; i < distractors; i++)
        if (draw_within(&f, d, 1 + CURVES + i, small, other))
            put_dashes(&f, other, small);
    {
        const int first = (int)roll(d, CURVES), end = (int)roll(d, 2), second = same ? first : !first;
        const int opposite = same ? !end : (int)roll(d, 2);

        put_mark(&f, place[first][end ? places - 1 : 0]);
        put_mark(&f, place[second][opposite ? places - 1 : 0]);
    }
    out->len = 0;
    for (int i = 0; i < side * side; i++)
        pd_buf_printf(out, "%s%d", i ? " " : "", f.pixel[i]);
    *ret = same;
    return pd_buf_err(out);
}

int data_sequences_side(int64_t context)
{
    const int side = (int)floor(sqrt((double)context) + 0.5);

    if ((int64_t)side * side == context && side >= SIDE_LEAST && side <= SIDE_MOST)
        return side;
    return context > 0 && context % (SIDE_USUAL * SIDE_USUAL) == 0 ? SIDE_USUAL : 0;
}

/* ---- both ---- */

enum pd_err data_sequences_check(const struct data_sequences *s, struct pd_why *why)
{
    if (s->kind == DATA_SET_PATHFINDER_GEN && !data_sequences_side(s->context))
        return pd_fail(why, PD_ERR_INVALID,
                       "#/data/context: %lld tokens are no square picture of %d to %d pixels a side: 256, "
                       "1024, ...; a multiple "
                       "of 1024 begins with one of 1024",
                       (long long)s->context, SIDE_LEAST, SIDE_MOST);
    if (s->kind == DATA_SET_PATHFINDER_GEN && (s->contour < 2 || s->contour > DASHES_MOST))
        return pd_fail(why, PD_ERR_INVALID, "#/data/contour: %d dashes; must be 2 to %d", s->contour,
                       DASHES_MOST);
    return PD_OK;
}

enum pd_err data_sequences_tokenizer(enum data_dataset kind, struct data_tokenizer **ret, struct pd_why *why)
{
    return kind == DATA_SET_PATHFINDER_GEN ? data_tokenizer_ids_new(256, ret, why) : listops_words(ret, why);
}

enum pd_err data_sequence_make(const struct data_sequences *s, uint64_t number, struct pd_buf *out,
                               int *ret_class, struct pd_why *why)
{
    struct dice dice = {.seed = s->seed, .number = number};

    return s->kind == DATA_SET_LISTOPS_GEN ? listops(s, &dice, out, ret_class, why)
                                           : pathfinder(s, &dice, out, ret_class, why);
}
