/* A formula for PyTorch's FlexAttention: a score_mod and what undoes the softmax around it.
 *
 * FlexAttention gives O = sum_j softmax(m)_j v_j and L = log sum_j exp(m_j) of a score_mod m. With m = log(F + c), F >= -c,
 *
 *     sum_j F_j v_j = O exp(L) - c sum_j v_j          sum_j F_j = exp(L) - c ni
 *
 * so that A = G F is had for every F of the entry alone and every G of the row's sum of F. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/formula/internal.h"

struct flex {
    ref f, factor; /* A = factor F; the factor reads ROW if `summed` */
    ref lift;      /* c; -1: 0 */
    bool summed;
};

static ref without_shift(void *arg, struct nf *f, ref a)
{
    (void)arg;
    return f->node[a].op == NF_LEAF && f->node[a].fn == PK_LEAF_SHIFT ? nf_int(f, 0) : -1;
}

static enum pd_err find(struct pk_formula *f, struct flex *ret, struct pd_why *why)
{
    static const char not_sum[] =
        "FlexAttention gives the row's sum of the function itself, and no other row function";
    struct nf *nf = &f->nf;
    struct interval range;
    struct split s;
    enum pd_err err = formula_split(f, &s, why);

    if (err != PD_OK)
        return err;
    if (s.two_passes || s.rows > 1 || (s.rows && s.row[0] != PK_ROW_SUM))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "%s", not_sum);
    *ret = (struct flex){.f = s.value, .factor = s.factor, .lift = -1, .summed = s.rows > 0};
    if (s.rows) {
        ref times = nf_div(nf, s.value, s.x[0]);

        if (times < 0 || nf->node[times].level == NF_PER_ENTRY)
            return pd_fail(why, PD_ERR_UNSUPPORTED, "%s", not_sum);
        ret->f = nf_map(nf, s.x[0], without_shift, NULL);
        ret->factor = nf_map(nf, nf_mul(nf, s.factor, times), without_shift, NULL);
    }
    if (ret->f < 0 || ret->factor < 0 || nf->full)
        return pd_fail(why, PD_ERR_LIMIT, "the formula becomes too long");
    range = nf_interval(nf, ret->f);
    if (range.fails)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "some logit may give no finite value");
    if (!isfinite(range.lo))
        return pd_fail(
            why, PD_ERR_UNSUPPORTED,
            "FlexAttention computes softmaxes, which reach only a function that is proven to lie above a "
            "constant; this one has no lower bound");
    if (range.lo < 0 || !range.nonzero) /* a margin, so that the logarithm and its slope stay finite */
        ret->lift = nf_add(nf, nf_num(nf, num_inexact(-range.lo)),
                           nf_power(nf, nf_leaf(nf, PK_LEAF_N), num_of(-1, 1)));
    return PD_OK;
}

/* ", a, b": the scalars; ", H, l": sizes that are read. */
static void arguments(const struct pk_formula *f, const struct flex *x, bool counts, bool head,
                      struct pd_buf *out)
{
    char space[PK_FORMULA_NAME + 16];

    for (int k = 0; k < f->n_param; k++)
        pd_buf_printf(out, ", %s", formula_torch_name(f, PK_LEAF_PARAM + k, space, sizeof space));
    for (int leaf = head ? PK_LEAF_HEAD : PK_LEAF_HEADS; leaf <= PK_LEAF_WIDTH; leaf++)
        if (pk_formula_reads(f, (enum pk_formula_leaf)leaf))
            pd_buf_printf(out, ", %s", pk_formula_leaf_name((enum pk_formula_leaf)leaf));
    if (counts && (pk_formula_reads(f, PK_LEAF_NI) || (x->lift >= 0 && x->summed)))
        pd_buf_str(out, ", counts");
}

static void write_score(struct pk_formula *f, const struct flex *x, struct pd_buf *out)
{
    struct nf *nf = &f->nf;
    char space[PK_FORMULA_NAME + 16];
    const bool exponential = nf_is_fn(nf, x->f, FN_EXP) && x->lift < 0;

    pd_buf_str(out, "def score_mod_of(n");
    arguments(f, x, true, false, out);
    pd_buf_str(out, ", offset=0):\n"
                    "    \"\"\"The score_mod of ");
    pk_formula_canonical(f, out);
    pd_buf_str(out,
               "\n\n    Scalars: a number, or a tensor of one number for each head. offset: position of the "
               "first query.");
    if (pk_formula_reads(f, PK_LEAF_NI) || (x->lift >= 0 && x->summed))
        pd_buf_str(out, " counts: keys that each query sees, (queries,).");
    pd_buf_str(out, "\n    \"\"\"\n    def term(s, h, i, j");
    if (pk_formula_reads(f, PK_LEAF_NI))
        pd_buf_str(out, ", ni");
    for (int k = 0; k < f->n_param; k++)
        pd_buf_printf(out, ", %s", formula_torch_name(f, PK_LEAF_PARAM + k, space, sizeof space));
    pd_buf_str(
        out,
        "):\n        _w = lambda x: torch.as_tensor(x, dtype=s.dtype, device=s.device)\n        return ");
    if (exponential) {
        pd_buf_str(out, "_w(");
        formula_print(f, nf_kid(nf, x->f, 0), STYLE_TORCH, out);
        pd_buf_str(out, ")");
    } else {
        pd_buf_str(out, "torch.log(_w(");
        formula_print(f, x->lift < 0 ? x->f : nf_add(nf, x->f, x->lift), STYLE_TORCH, out);
        pd_buf_str(out, "))");
    }
    pd_buf_str(out,
               "\n    pick = lambda x, h: x.flatten()[h] if torch.is_tensor(x) and x.numel() > 1 else x\n"
               "    return lambda s, _b, h, i, j: term(s, h, i + offset, ");
    /* a later key is hidden: it must not give a NaN, whose gradient would stay one */
    pd_buf_str(out, f->causal && pk_formula_reads(f, PK_LEAF_J) ? "torch.minimum(j, i + offset)" : "j");
    if (pk_formula_reads(f, PK_LEAF_NI))
        pd_buf_str(out, ", counts[i]");
    for (int k = 0; k < f->n_param; k++)
        pd_buf_printf(out, ", pick(%s, h)", formula_torch_name(f, PK_LEAF_PARAM + k, space, sizeof space));
    pd_buf_str(out, ")\n");
}

static void write_attention(struct pk_formula *f, const struct flex *x, struct pd_buf *out)
{
    pd_buf_str(out, "\n\ndef attention(query, key, value, n");
    arguments(f, x, true, false, out);
    if (x->lift >= 0)
        pd_buf_str(out, ", seen_values=None");
    pd_buf_str(
        out,
        ", block_mask=None, scale=None):\n"
        "    \"\"\"A value for query, key, value (batch, heads, tokens, width); block_mask and scale as in "
        "flex_attention.");
    if (x->lift >= 0)
        pd_buf_str(
            out,
            "\n\n    seen_values: with a mask, the sum of the values that each query sees (batch, heads, "
            "queries, width).");
    pd_buf_str(out,
               "\n    \"\"\"\n    _w = lambda x: torch.as_tensor(x, dtype=query.dtype, device=query.device)\n"
               "    offset = key.shape[-2] - query.shape[-2]\n"
               "    out, lse = flex_attention(query, key, value, score_mod=score_mod_of(n");
    arguments(f, x, true, false, out);
    pd_buf_str(out, ", offset=offset), block_mask=block_mask,\n"
                    "                              scale=scale, return_lse=True)\n");
    if (nf_reads(&f->nf, x->factor, PK_LEAF_HEAD, PK_LEAF_HEAD))
        pd_buf_str(out, "    h = torch.arange(query.shape[1], device=query.device)[:, None, None]\n");
    if (nf_reads(&f->nf, x->factor, PK_LEAF_I, PK_LEAF_I))
        pd_buf_str(out, "    i = torch.arange(query.shape[-2], device=query.device)[:, None] + offset\n");
    if (nf_reads(&f->nf, x->factor, PK_LEAF_NI, PK_LEAF_NI))
        pd_buf_str(out, "    ni = _w(counts)[:, None]\n");
    pd_buf_str(out, "    _r0 = torch.exp(lse)[..., None]\n    out = out * _r0\n");
    if (x->lift >= 0) {
        pd_buf_str(out, "    _c = ");
        formula_print(f, x->lift, STYLE_TORCH, out);
        pd_buf_str(out, "\n    out = out - _c * (value.sum(-2, keepdim=True) if seen_values is None else "
                        "seen_values)\n");
        if (x->summed)
            pd_buf_str(out, "    _r0 = _r0 - _c * _w(counts)[:, None]\n");
    }
    pd_buf_str(out, "    return out * (");
    formula_print(f, x->factor, STYLE_TORCH, out);
    pd_buf_str(out, ")\n");
}

enum pd_err pk_formula_flex(struct pk_formula *f, struct pd_buf *out, struct pd_why *why)
{
    struct flex x;
    enum pd_err err = find(f, &x, why);

    if (err != PD_OK)
        return err;
    pd_buf_str(out, "import math\n\nimport torch\nfrom torch.nn.attention.flex_attention import "
                    "flex_attention\n\n\n");
    write_score(f, &x, out);
    write_attention(f, &x, out);
    return pd_buf_err(out);
}
