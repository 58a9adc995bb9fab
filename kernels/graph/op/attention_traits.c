/* Types and cost of attention, its derivatives and its statistics. */
#include "kernels/graph/op/attention.h"

/* ---- types: q, k, v, y, dy and their derivatives have one type; all others are f32 ---- */

/* How many of the first inputs are q, k and v. */
static int32_t parts_of(const struct pk_attention_attr *a)
{
    return a->packed ? 1 : 3;
}

/* Index of the first input after ATTENTION's own: y in ATTENTION_BWD (dy follows), x in ATTENTION_STATS. */
static int32_t behind(const struct pk_attention_attr *a)
{
    return parts_of(a) + a->has_scale + a->has_bias + a->has_mask + a->has_length + a->has_rng;
}

enum pk_want pk_attention_want(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    (void)n_in;
    return k < parts_of(&attr->attention) ? PK_WANT_GROUP : PK_WANT_F32;
}

enum pk_want pk_attention_want_bwd(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    int32_t y = behind(&attr->attention);

    return k == y || k == y + 1 ? PK_WANT_AS_GROUP : pk_attention_want(attr, n_in, k);
}

enum pk_want pk_attention_want_stats(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    return k == behind(&attr->attention) ? PK_WANT_ANY : pk_attention_want(attr, n_in, k);
}

enum pk_makes pk_attention_makes(const struct pk_attr *attr, int32_t n_out, int32_t k)
{
    (void)attr;
    (void)n_out;
    return k == 0 ? PK_MAKES_GROUP : PK_MAKES_NUMBER;
}

enum pk_makes pk_attention_makes_bwd(const struct pk_attr *attr, int32_t n_out, int32_t k)
{
    (void)n_out;
    return k < parts_of(&attr->attention) ? PK_MAKES_GROUP : PK_MAKES_NUMBER;
}

/* ---- cost ---- */

/* FLOP (a multiply-add is two), in units of one product of all queries by all keys. */
static double flop_of(const struct pk_call *c, double products)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    const struct pk_view *q = &c->in[0], *k = &c->in[a->packed ? 0 : 1];
    double batch = (double)q->shape.dim[0], heads = (double)q->shape.dim[a->packed ? 3 : 1];
    double nq = (double)q->shape.dim[a->packed ? 1 : 2], nk = (double)k->shape.dim[a->packed ? 1 : 2];
    double d = pk_view_columns(q);
    double pairs = a->causal ? nk > nq ? nq * (nk - nq / 2) : nq * nk / 2 : nq * nk;

    if (a->form == PK_FORM_LINEAR) /* updates of the state by keys, and reads by queries */
        pairs = nq * (double)pk_attention_features(a->degree, (int64_t)d);
    return 2 * products * batch * heads * pairs * d;
}

void pk_attention_cost(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = flop_of(c, 2);
}

/* y is read only for rows that are divided by their sums, and for a learned scale. */
void pk_attention_cost_bwd(const struct pk_call *c, struct pk_cost *ret)
{
    const struct pk_attention_attr *a = &c->attr->attention;

    ret->flop = flop_of(c, 5);
    if (!pk_phi_normalised(a->phi) && !a->has_scale)
        ret->read -= pk_view_bytes(&c->in[c->n_in - 2]);
}

void pk_attention_cost_stats(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = flop_of(c, 1);
}

void pk_attention_cost_jvp(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = flop_of(c, 5);
}

void pk_attention_cost_bwd2(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = flop_of(c, 12);
}
