#include "tests/golden/network.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMS = 64, MAX_LAYERS = 4 };

enum phi { SOFTMAX, POWER, SIGMOID, RELU };

struct config {
    enum phi phi;
    int bits; /* of every operand and result of a product; 0: all that double has */
    bool gpt, gelu_tanh, layer_norm, input_norm, qk_norm, mid_norm, second_norm, causal, adamw, nesterov;
    size_t width, heads, layers, hidden, image, patch, channels;
    double eps, power, scale, shift, smoothing, max_norm, beta1, beta2, adam_eps, momentum, dampening, decay;
};

/* What one block keeps for its backward pass; rows of the batch times the width named. */
struct block {
    double *x, *normed1, *qkv, *qk, *logits, *weights, *heads, *a, *mid1, *x1, *normed2, *wide, *active, *m;
};

struct network {
    struct config c;
    const json_t *no_decay;
    struct network_param param[MAX_PARAMS];
    size_t params;
    bool missing;
    double *logits;    /* of the last pass */
    void *memory[256]; /* of one pass */
    size_t memories;
};

/* ---- memory and rounding ---- */

static void *checked(void *p)
{
    if (!p) {
        fprintf(stderr, "golden: no memory\n");
        exit(2);
    }
    return p;
}

static double *take(struct network *n, size_t count)
{
    double *p = checked(calloc(count + 1, sizeof *p));

    if (n->memories == sizeof n->memory / sizeof *n->memory) {
        fprintf(stderr, "golden: too many tensors in a network\n");
        exit(2);
    }
    n->memory[n->memories++] = p;
    return p;
}

static void release(struct network *n)
{
    while (n->memories > 0)
        free(n->memory[--n->memories]);
}

/* To the nearest number of so many significant bits, ties to even. */
static double round_if(const struct network *n, double x)
{
    int e;

    if (!n->c.bits || x == 0 || !isfinite(x))
        return x;
    (void)frexp(x, &e); /* 2^(e-1) <= |x| < 2^e */
    return ldexp(nearbyint(ldexp(x, n->c.bits - e)), e - n->c.bits);
}

/* c (m, p) [+]= a (m, k) b (k, p); a and b are read by strides, so that either may be transposed. */
struct matrix {
    const double *at;
    size_t row, column;
};

static void product(struct network *n, struct matrix a, struct matrix b, size_t m, size_t k, size_t p,
                    double *c, bool add)
{
    double *left = checked(malloc((m * k + 1) * sizeof *left));
    double *right = checked(malloc((k * p + 1) * sizeof *right)),
           *line = checked(malloc((p + 1) * sizeof *line));

    for (size_t i = 0; i < m; i++)
        for (size_t e = 0; e < k; e++)
            left[i * k + e] = round_if(n, a.at[i * a.row + e * a.column]);
    for (size_t e = 0; e < k; e++)
        for (size_t j = 0; j < p; j++)
            right[e * p + j] = round_if(n, b.at[e * b.row + j * b.column]);
    for (size_t i = 0; i < m; i++) {
        memset(line, 0, p * sizeof *line);
        for (size_t e = 0; e < k; e++)
            for (size_t j = 0; j < p; j++)
                line[j] += left[i * k + e] * right[e * p + j];
        for (size_t j = 0; j < p; j++)
            c[i * p + j] = (add ? c[i * p + j] : 0) + round_if(n, line[j]);
    }
    free(left);
    free(right);
    free(line);
}

static struct matrix rows_of(const double *at, size_t width)
{
    return (struct matrix){at, width, 1};
}

static struct matrix turned(struct matrix m)
{
    return (struct matrix){m.at, m.column, m.row};
}

/* ---- parameters ---- */

static struct network_param *find(struct network *n, const char *name)
{
    for (size_t i = 0; i < n->params; i++)
        if (!strcmp(n->param[i].name, name))
            return &n->param[i];
    return NULL;
}

/* The parameter called by its timm name, in a GPT-2 layout by the name that tests/golden/README.md 6 has
 * beside it. layer < 0: not of a block. */
static struct network_param *named(struct network *n, int layer, const char *part, const char *kind)
{
    static const char *const gpt[][2] = {
        {"norm1", "ln_1"},     {"norm2", "ln_2"}, {"attn.qkv", "attn.c_attn"}, {"attn.proj", "attn.c_proj"},
        {"mid1", "mid_1"},     {"mid2", "mid_2"}, {"mlp.fc1", "mlp.c_fc"},     {"mlp.fc2", "mlp.c_proj"},
        {"norm_pre", "ln_in"}, {"norm", "ln_f"}};
    char name[96];

    for (size_t i = 0; n->c.gpt && i < sizeof gpt / sizeof *gpt; i++)
        if (!strcmp(part, gpt[i][0])) {
            part = gpt[i][1];
            break;
        }
    if (layer < 0)
        snprintf(name, sizeof name, "%s%s%s%s", n->c.gpt ? "transformer." : "", part, *kind ? "." : "", kind);
    else
        snprintf(name, sizeof name, "%s.%d.%s%s%s", n->c.gpt ? "transformer.h" : "blocks", layer, part,
                 *kind ? "." : "", kind);
    return find(n, name);
}

static struct network_param *needed(struct network *n, int layer, const char *part, const char *kind)
{
    static double nothing[1 << 16];
    static struct network_param none = {.value = nothing, .grad = nothing};
    struct network_param *p = named(n, layer, part, kind);

    n->missing |= !p;
    return p ? p : &none;
}

/* ---- layers ---- */

/* Weights as (in, out), however the layout stores them. */
static struct matrix weight_of(const struct network *n, const double *w, size_t in, size_t out)
{
    return n->c.gpt ? rows_of(w, out) : turned(rows_of(w, in));
}

static void linear(struct network *n, int layer, const char *part, const double *x, size_t rows, size_t in,
                   size_t out, double *y)
{
    const struct network_param *bias = named(n, layer, part, "bias");

    product(n, rows_of(x, in), weight_of(n, needed(n, layer, part, "weight")->value, in, out), rows, in, out,
            y, false);
    for (size_t i = 0; bias && i < rows * out; i++)
        y[i] += bias->value[i % out];
}

/* dx may be NULL. */
static void linear_back(struct network *n, int layer, const char *part, const double *x, const double *dy,
                        size_t rows, size_t in, size_t out, double *dx)
{
    struct network_param *w = needed(n, layer, part, "weight"), *bias = named(n, layer, part, "bias");

    if (n->c.gpt)
        product(n, turned(rows_of(x, in)), rows_of(dy, out), in, rows, out, w->grad, true);
    else
        product(n, turned(rows_of(dy, out)), rows_of(x, in), out, rows, in, w->grad, true);
    for (size_t i = 0; bias && i < rows * out; i++)
        bias->grad[i % out] += dy[i];
    if (dx)
        product(n, rows_of(dy, out), turned(weight_of(n, w->value, in, out)), rows, out, in, dx, false);
}

/* Mean (0 for RMSNorm) and 1 / root of a row. */
static void moments(const struct network *n, const double *x, size_t width, bool centred, double ret[2])
{
    double mean = 0, square = 0;

    for (size_t e = 0; centred && e < width; e++)
        mean += x[e] / (double)width;
    for (size_t e = 0; e < width; e++)
        square += (x[e] - mean) * (x[e] - mean) / (double)width;
    ret[0] = mean;
    ret[1] = 1 / sqrt(square + n->c.eps);
}

static void norm(struct network *n, const struct network_param *gamma, const struct network_param *beta,
                 bool centred, const double *x, size_t rows, size_t width, double *y)
{
    for (size_t i = 0; i < rows; i++) {
        double m[2];

        moments(n, x + i * width, width, centred, m);
        for (size_t e = 0; e < width; e++)
            y[i * width + e] =
                (x[i * width + e] - m[0]) * m[1] * gamma->value[e] + (beta ? beta->value[e] : 0);
    }
}

/* dx = r (g - mean(g) [centred] - h mean(g h)), g = gamma dy, h = (x - mean) r. */
static void norm_back(struct network *n, struct network_param *gamma, struct network_param *beta,
                      bool centred, const double *x, const double *dy, size_t rows, size_t width, double *dx)
{
    for (size_t i = 0; i < rows; i++) {
        const double *xi = x + i * width, *dyi = dy + i * width;
        double m[2], sum = 0, product = 0;

        moments(n, xi, width, centred, m);
        for (size_t e = 0; e < width; e++) {
            double h = (xi[e] - m[0]) * m[1], g = gamma->value[e] * dyi[e];

            sum += centred ? g / (double)width : 0;
            product += g * h / (double)width;
            gamma->grad[e] += dyi[e] * h;
            if (beta)
                beta->grad[e] += dyi[e];
        }
        for (size_t e = 0; e < width; e++)
            dx[i * width + e] = m[1] * (gamma->value[e] * dyi[e] - sum - (xi[e] - m[0]) * m[1] * product);
    }
}

static void model_norm(struct network *n, int layer, const char *part, const double *x, size_t rows,
                       double *y)
{
    norm(n, needed(n, layer, part, "weight"), named(n, layer, part, "bias"), n->c.layer_norm, x, rows,
         n->c.width, y);
}

static void model_norm_back(struct network *n, int layer, const char *part, const double *x, const double *dy,
                            size_t rows, double *dx)
{
    norm_back(n, needed(n, layer, part, "weight"), named(n, layer, part, "bias"), n->c.layer_norm, x, dy,
              rows, n->c.width, dx);
}

/* GELU and its derivative. */
static void gelu(const struct network *n, double x, double ret[2])
{
    const double root = sqrt(2 / M_PI);

    if (n->c.gelu_tanh) {
        double t = tanh(root * (x + 0.044715 * x * x * x));

        ret[0] = 0.5 * x * (1 + t);
        ret[1] = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
    } else {
        double phi = 0.5 * erfc(-x / sqrt(2));

        ret[0] = x * phi;
        ret[1] = phi + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    }
}

/* ---- attention ---- */

/* Where one head's q, k and v lie: in qkv, but q and k where QKNorm has put them. */
struct head {
    struct matrix q, k, v;
    double tau, scale;
    size_t scale_at;
};

static struct head head_of(struct network *n, int layer, const struct block *b, size_t sample, size_t h,
                           size_t t)
{
    const size_t width = n->c.width, d = width / n->c.heads;
    const struct network_param *scale = named(n, layer, "attn.attn_scale", "");
    struct head r = {.tau = 1 / sqrt((double)d), .scale = n->c.scale};
    const double *qk = n->c.qk_norm ? b->qk : b->qkv;

    r.q = (struct matrix){qk + sample * t * 3 * width + h * d, 3 * width, 1};
    r.k = (struct matrix){r.q.at + width, 3 * width, 1};
    r.v = (struct matrix){b->qkv + sample * t * 3 * width + 2 * width + h * d, 3 * width, 1};
    if (scale) {
        r.scale_at = scale->count == 1 ? 0 : h;
        r.scale = scale->value[r.scale_at];
    }
    return r;
}

/* phi of a logit and its derivative, without the scale; of softmax, before it is divided by the sum. */
static void phi_of(const struct config *c, double z, double ret[2])
{
    const double s = 1 / (1 + exp(-z - c->shift));

    switch (c->phi) {
    case POWER:
        ret[0] = pow(z, c->power);
        ret[1] = c->power * pow(z, c->power - 1);
        break;
    case SIGMOID:
        ret[0] = s;
        ret[1] = s * (1 - s);
        break;
    case RELU:
        ret[0] = fmax(z, 0);
        ret[1] = z > 0;
        break;
    default:
        ret[0] = ret[1] = exp(z);
        break;
    }
}

/* One row of A from one of Z; what a causal mask hides is 0. */
static void weigh(const struct network *n, const struct head *h, const double *z, size_t seen, double *a)
{
    const bool softmax = n->c.phi == SOFTMAX;
    double most = softmax ? -INFINITY : 0, sum = 0;

    for (size_t j = 0; softmax && j < seen; j++)
        most = fmax(most, z[j]);
    for (size_t j = 0; j < seen; j++) {
        double phi[2];

        phi_of(&n->c, z[j] - most, phi);
        a[j] = h->scale * phi[0];
        sum += a[j];
    }
    for (size_t j = 0; softmax && j < seen; j++)
        a[j] /= sum;
}

static void attention(struct network *n, int layer, struct block *b, size_t batch, size_t t)
{
    const size_t width = n->c.width, heads = n->c.heads, d = width / heads;
    const int bits = n->c.bits;
    double *out = take(n, t * d), *left = take(n, t * d), *right = take(n, t * d);

    if (n->c.qk_norm)
        for (size_t i = 0; i < batch * t; i++)
            for (size_t part = 0; part < 2; part++)
                norm(n, needed(n, layer, part ? "attn.k_norm" : "attn.q_norm", "weight"), NULL, false,
                     b->qkv + i * 3 * width + part * width, heads, d, b->qk + i * 3 * width + part * width);
    for (size_t s = 0; s < batch; s++)
        for (size_t h = 0; h < heads; h++) {
            const struct head at = head_of(n, layer, b, s, h, t);
            double *z = b->logits + (s * heads + h) * t * t, *a = b->weights + (s * heads + h) * t * t;

            for (size_t i = 0; i < t * d; i++) { /* operands are rounded, logits are not */
                left[i] = round_if(n, at.q.at[i / d * at.q.row + i % d]);
                right[i] = round_if(n, at.k.at[i / d * at.k.row + i % d]);
            }
            n->c.bits = 0;
            product(n, rows_of(left, d), turned(rows_of(right, d)), t, d, t, z, false);
            n->c.bits = bits;
            for (size_t i = 0; i < t * t; i++)
                z[i] *= at.tau;
            for (size_t i = 0; i < t; i++)
                weigh(n, &at, z + i * t, n->c.causal ? i + 1 : t, a + i * t);
            product(n, rows_of(a, t), at.v, t, t, d, out, false);
            for (size_t i = 0; i < t * d; i++)
                b->heads[(s * t + i / d) * width + h * d + i % d] = out[i];
        }
}

/* dZ of one row in place of dA; adds to the gradient of the scale. */
static void weigh_back(const struct network *n, const struct head *h, struct network_param *scale,
                       const double *z, const double *a, size_t seen, size_t t, double *da)
{
    const bool softmax = n->c.phi == SOFTMAX;
    double mean = 0;

    for (size_t j = 0; softmax && j < seen; j++)
        mean += a[j] * da[j];
    for (size_t j = 0; j < t; j++) {
        const double dy = j < seen ? da[j] : 0;
        double phi[2];

        if (softmax) {
            da[j] = a[j] * (dy - mean); /* a is 0 where nothing is seen */
            continue;
        }
        phi_of(&n->c, z[j], phi);
        da[j] = h->scale * phi[1] * dy;
        if (scale)
            scale->grad[h->scale_at] += phi[0] * dy;
    }
}

static void attention_back(struct network *n, int layer, const struct block *b, const double *dheads,
                           size_t batch, size_t t, double *dqkv)
{
    const size_t width = n->c.width, heads = n->c.heads, d = width / heads;
    struct network_param *scale = named(n, layer, "attn.attn_scale", "");
    double *da = take(n, t * t), *part[3] = {take(n, t * d), take(n, t * d), take(n, t * d)};
    double *dqk = take(n, heads * d);

    for (size_t s = 0; s < batch; s++)
        for (size_t h = 0; h < heads; h++) {
            const struct head at = head_of(n, layer, b, s, h, t);
            const double *z = b->logits + (s * heads + h) * t * t, *a = b->weights + (s * heads + h) * t * t;
            const struct matrix dy = {dheads + s * t * width + h * d, width, 1};

            product(n, turned(rows_of(a, t)), dy, t, t, d, part[2], false);
            product(n, dy, turned(at.v), t, d, t, da, false);
            for (size_t i = 0; i < t; i++)
                weigh_back(n, &at, scale, z + i * t, a + i * t, n->c.causal ? i + 1 : t, t, da + i * t);
            product(n, rows_of(da, t), at.k, t, t, d, part[0], false);
            product(n, turned(rows_of(da, t)), at.q, t, t, d, part[1], false);
            for (size_t p = 0; p < 3; p++)
                for (size_t i = 0; i < t * d; i++)
                    dqkv[(s * t + i / d) * 3 * width + p * width + h * d + i % d] =
                        part[p][i] * (p < 2 ? at.tau : 1);
        }
    for (size_t i = 0; n->c.qk_norm && i < batch * t; i++)
        for (size_t p = 0; p < 2; p++) {
            double *at = dqkv + i * 3 * width + p * width;

            norm_back(n, needed(n, layer, p ? "attn.k_norm" : "attn.q_norm", "weight"), NULL, false,
                      b->qkv + i * 3 * width + p * width, at, heads, d, dqk);
            memcpy(at, dqk, heads * d * sizeof *at);
        }
}

/* ---- blocks ---- */

static double *forward_block(struct network *n, int layer, struct block *b, double *x, size_t batch, size_t t)
{
    const size_t rows = batch * t, width = n->c.width, all = rows * width, hidden = n->c.hidden;
    double *y = take(n, all), *branch;

    b->x = x;
    b->normed1 = take(n, all);
    b->qkv = take(n, 3 * all);
    b->qk = take(n, 3 * all);
    b->logits = take(n, batch * n->c.heads * t * t);
    b->weights = take(n, batch * n->c.heads * t * t);
    b->heads = take(n, all);
    b->a = take(n, all);
    b->mid1 = take(n, all);
    b->x1 = take(n, all);
    b->normed2 = take(n, all);
    b->wide = take(n, rows * hidden);
    b->active = take(n, rows * hidden);
    b->m = take(n, all);
    branch = take(n, all);
    model_norm(n, layer, "norm1", x, rows, b->normed1);
    linear(n, layer, "attn.qkv", b->normed1, rows, width, 3 * width, b->qkv);
    attention(n, layer, b, batch, t);
    linear(n, layer, "attn.proj", b->heads, rows, width, width, b->a);
    if (n->c.mid_norm)
        model_norm(n, layer, "mid1", b->a, rows, b->mid1);
    for (size_t i = 0; i < all; i++)
        b->x1[i] = x[i] + (n->c.mid_norm ? b->mid1 : b->a)[i];
    if (n->c.second_norm)
        model_norm(n, layer, "norm2", b->x1, rows, b->normed2);
    linear(n, layer, "mlp.fc1", n->c.second_norm ? b->normed2 : b->x1, rows, width, hidden, b->wide);
    for (size_t i = 0; i < rows * hidden; i++) {
        double g[2];

        gelu(n, b->wide[i], g);
        b->active[i] = g[0];
    }
    linear(n, layer, "mlp.fc2", b->active, rows, hidden, width, b->m);
    if (n->c.mid_norm)
        model_norm(n, layer, "mid2", b->m, rows, branch);
    for (size_t i = 0; i < all; i++)
        y[i] = b->x1[i] + (n->c.mid_norm ? branch : b->m)[i];
    return y;
}

/* dy becomes dx. */
static void backward_block(struct network *n, int layer, const struct block *b, double *dy, size_t batch,
                           size_t t)
{
    const size_t rows = batch * t, width = n->c.width, all = rows * width, hidden = n->c.hidden;
    double *d = take(n, all), *e = take(n, all), *wide = take(n, rows * hidden), *dqkv = take(n, 3 * all);

    memcpy(d, dy, all * sizeof *d);
    if (n->c.mid_norm)
        model_norm_back(n, layer, "mid2", b->m, dy, rows, d);
    linear_back(n, layer, "mlp.fc2", b->active, d, rows, hidden, width, wide);
    for (size_t i = 0; i < rows * hidden; i++) {
        double g[2];

        gelu(n, b->wide[i], g);
        wide[i] *= g[1];
    }
    linear_back(n, layer, "mlp.fc1", n->c.second_norm ? b->normed2 : b->x1, wide, rows, width, hidden, d);
    if (n->c.second_norm)
        model_norm_back(n, layer, "norm2", b->x1, d, rows, e);
    for (size_t i = 0; i < all; i++)
        dy[i] += (n->c.second_norm ? e : d)[i];
    memcpy(d, dy, all * sizeof *d);
    if (n->c.mid_norm)
        model_norm_back(n, layer, "mid1", b->a, dy, rows, d);
    linear_back(n, layer, "attn.proj", b->heads, d, rows, width, width, e);
    attention_back(n, layer, b, e, batch, t, dqkv);
    linear_back(n, layer, "attn.qkv", b->normed1, dqkv, rows, width, 3 * width, d);
    model_norm_back(n, layer, "norm1", b->x, d, rows, e);
    for (size_t i = 0; i < all; i++)
        dy[i] += e[i];
}

/* ---- whole networks ---- */

/* Patches row by row, each as (channel, row, column). */
static double *patches_of(struct network *n, const double *image, size_t batch)
{
    const size_t p = n->c.patch, side = n->c.image / p, channels = n->c.channels, size = n->c.image;
    double *to = take(n, batch * side * side * channels * p * p), *at = to;

    for (size_t s = 0; s < batch; s++)
        for (size_t row = 0; row < side; row++)
            for (size_t column = 0; column < side; column++)
                for (size_t c = 0; c < channels; c++)
                    for (size_t y = 0; y < p; y++)
                        for (size_t x = 0; x < p; x++)
                            *at++ = image[((s * channels + c) * size + row * p + y) * size + column * p + x];
    return to;
}

/* The mean loss over targets other than -100, and dlogits. */
static double cross_entropy(const struct network *n, const double *logits, const double *target, size_t rows,
                            size_t classes, double *dlogits)
{
    const double s = n->c.smoothing;
    double loss = 0, count = 0;

    for (size_t i = 0; i < rows; i++)
        count += target[i] >= 0;
    for (size_t i = 0; i < rows; i++) {
        const double *z = logits + i * classes;
        double most = -INFINITY, sum = 0;

        if (target[i] < 0)
            continue;
        for (size_t c = 0; c < classes; c++)
            most = fmax(most, z[c]);
        for (size_t c = 0; c < classes; c++)
            sum += exp(z[c] - most);
        for (size_t c = 0; c < classes; c++) {
            const double want = s / (double)classes + (c == (size_t)target[i] ? 1 - s : 0);
            const double log_p = z[c] - most - log(sum);

            loss -= want * log_p / count;
            dlogits[i * classes + c] = (exp(log_p) - want) / count;
        }
    }
    return loss;
}

double network_gradient(struct network *n, const double *input, const double *target, size_t batch)
{
    const size_t width = n->c.width;
    struct network_param *table = n->c.gpt ? needed(n, -1, "wte", "weight") : NULL;
    struct network_param *position =
        n->c.gpt ? needed(n, -1, "wpe", "weight") : needed(n, -1, "pos_embed", "");
    struct network_param *cls = n->c.gpt ? NULL : needed(n, -1, "cls_token", "");
    const struct network_param *head = n->c.gpt ? table : needed(n, -1, "head", "weight");
    const size_t t = position->count / width, rows = batch * t, all = rows * width;
    const size_t classes = head->count / width, pixels = n->c.channels * n->c.patch * n->c.patch;
    double *embedded = take(n, all), *x = embedded, *last, *dx = take(n, all), *dlast, *logits, *dlogits;
    double *patches = NULL, *tokens = NULL, *back = take(n, all), loss;
    struct block block[MAX_LAYERS];
    size_t scored = n->c.gpt ? rows : batch, step = n->c.gpt ? 1 : t;

    for (size_t i = 0; i < n->params; i++)
        memset(n->param[i].grad, 0, n->param[i].count * sizeof(double));
    if (n->missing || (!n->c.gpt && t < 2)) {
        release(n);
        return NAN;
    }
    if (n->c.gpt) {
        for (size_t i = 0; i < all; i++)
            x[i] = table->value[(size_t)input[i / width] * width + i % width];
    } else {
        patches = patches_of(n, input, batch);
        tokens = take(n, batch * (t - 1) * width);
        linear(n, -1, "patch_embed.proj", patches, batch * (t - 1), pixels, width, tokens);
        for (size_t i = 0; i < all; i++) {
            const size_t at = i / width % t, s = i / width / t;

            x[i] = at ? tokens[(s * (t - 1) + at - 1) * width + i % width] : cls->value[i % width];
        }
    }
    for (size_t i = 0; i < all; i++)
        x[i] += position->value[i % (t * width)];
    if (n->c.input_norm) {
        x = take(n, all);
        model_norm(n, -1, "norm_pre", embedded, rows, x);
    }
    for (size_t l = 0; l < n->c.layers; l++)
        x = forward_block(n, (int)l, &block[l], x, batch, t);
    last = take(n, all);
    model_norm(n, -1, "norm", x, rows, last);
    dlast = take(n, all);
    free(n->logits);
    logits = n->logits = checked(calloc(scored * classes + 1, sizeof *logits));
    dlogits = take(n, scored * classes);
    if (n->c.gpt) {
        product(n, rows_of(last, width), turned(rows_of(table->value, width)), rows, width, classes, logits,
                false);
        loss = cross_entropy(n, logits, target, rows, classes, dlogits);
        product(n, turned(rows_of(dlogits, classes)), rows_of(last, width), classes, rows, width, table->grad,
                true);
        product(n, rows_of(dlogits, classes), rows_of(table->value, width), rows, classes, width, dlast,
                false);
    } else { /* token 0 alone */
        double *first = take(n, batch * width), *dfirst = take(n, batch * width);

        for (size_t i = 0; i < batch * width; i++)
            first[i] = last[i / width * step * width + i % width];
        linear(n, -1, "head", first, batch, width, classes, logits);
        loss = cross_entropy(n, logits, target, batch, classes, dlogits);
        linear_back(n, -1, "head", first, dlogits, batch, width, classes, dfirst);
        for (size_t i = 0; i < batch * width; i++)
            dlast[i / width * step * width + i % width] = dfirst[i];
    }
    model_norm_back(n, -1, "norm", x, dlast, rows, dx);
    for (size_t l = n->c.layers; l-- > 0;)
        backward_block(n, (int)l, &block[l], dx, batch, t);
    memcpy(back, dx, all * sizeof *back);
    if (n->c.input_norm)
        model_norm_back(n, -1, "norm_pre", embedded, dx, rows, back);
    for (size_t i = 0; i < all; i++) {
        const size_t at = i / width % t, s = i / width / t;

        position->grad[i % (t * width)] += back[i];
        if (n->c.gpt)
            table->grad[(size_t)input[i / width] * width + i % width] += back[i];
        else if (at)
            tokens[(s * (t - 1) + at - 1) * width + i % width] = back[i];
        else
            cls->grad[i % width] += back[i];
    }
    if (!n->c.gpt)
        linear_back(n, -1, "patch_embed.proj", patches, tokens, batch * (t - 1), pixels, width, NULL);
    release(n);
    return n->missing ? NAN : loss;
}

const double *network_logits(const struct network *n)
{
    return n->logits;
}

/* ---- the optimiser: tests/golden/README.md 7 ---- */

double network_update(struct network *n, double lr, size_t step)
{
    const struct config *c = &n->c;
    double norm = 0, clip = 1;

    for (size_t i = 0; i < n->params; i++)
        for (size_t k = 0; k < n->param[i].count; k++)
            norm += n->param[i].grad[k] * n->param[i].grad[k];
    norm = sqrt(norm);
    if (c->max_norm > 0)
        clip = fmin(1, c->max_norm / (norm + 1e-6));
    for (size_t i = 0; i < n->params; i++) {
        struct network_param *p = &n->param[i];

        for (size_t k = 0; k < p->count; k++) {
            const double g = clip * p->grad[k];

            p->value[k] *= p->decayed ? 1 - lr * c->decay : 1;
            if (c->adamw) {
                p->first[k] = c->beta1 * p->first[k] + (1 - c->beta1) * g;
                p->second[k] = c->beta2 * p->second[k] + (1 - c->beta2) * g * g;
                p->value[k] -= lr / (1 - pow(c->beta1, (double)step + 1)) * p->first[k] /
                               (sqrt(p->second[k] / (1 - pow(c->beta2, (double)step + 1))) + c->adam_eps);
            } else {
                p->first[k] = step ? c->momentum * p->first[k] + (1 - c->dampening) * g : g;
                p->value[k] -= lr * (c->nesterov ? g + c->momentum * p->first[k] : p->first[k]);
            }
        }
    }
    return norm;
}

/* ---- making one ---- */

static double number(const json_t *config, const char *key, double otherwise)
{
    const json_t *v = json_object_get(config, key);

    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static bool is(const json_t *config, const char *key, const char *value)
{
    const char *text = json_string_value(json_object_get(config, key));

    return text && !strcmp(text, value);
}

static bool flag(const json_t *config, const char *key)
{
    return json_is_true(json_object_get(config, key));
}

struct network *network_new(const json_t *config, int bits)
{
    static const char *const phi[] = {"softmax", "poly", "sigmoid", "relu"};
    struct network *n;
    size_t at = 0;

    while (at < sizeof phi / sizeof *phi && !is(config, "activation", phi[at]))
        at++;
    if (at == sizeof phi / sizeof *phi || (!is(config, "arch", "gpt2") && !is(config, "arch", "vit")) ||
        number(config, "layers", 0) > MAX_LAYERS)
        return NULL;
    n = checked(calloc(1, sizeof *n));
    n->no_decay = json_object_get(config, "no_decay");
    n->c = (struct config){
        .gpt = is(config, "arch", "gpt2"),
        .bits = bits,
        .gelu_tanh = is(config, "gelu", "gelu_new"),
        .layer_norm = is(config, "norm", "layernorm"),
        .input_norm = flag(config, "inputnorm"),
        .qk_norm = flag(config, "qknorm"),
        .mid_norm = flag(config, "midnorm"),
        .second_norm = flag(config, "prenorm2"),
        .phi = (enum phi)at,
        .causal = flag(config, "causal"),
        .adamw = is(config, "optimizer", "adamw"),
        .nesterov = flag(config, "nesterov"),
        .width = (size_t)number(config, "D", 0),
        .heads = (size_t)number(config, "H", 1),
        .layers = (size_t)number(config, "layers", 0),
        .hidden = (size_t)(number(config, "mlp", 4) * number(config, "D", 0)),
        .image = (size_t)number(config, "image", 0),
        .patch = (size_t)number(config, "patch", 1),
        .channels = (size_t)number(config, "chans", 0),
        .eps = number(config, "norm_eps", 0),
        .power = number(config, "p", 1),
        .scale = number(config, "scale_value", 1),
        .shift = number(config, "logit_bias", 0),
        .smoothing = number(config, "label_smoothing", 0),
        .max_norm = number(config, "max_norm", 0),
        .beta1 = number(config, "beta1", 0),
        .beta2 = number(config, "beta2", 0),
        .adam_eps = number(config, "eps", 0),
        .momentum = number(config, "momentum", 0),
        .dampening = number(config, "dampening", 0),
        .decay = number(config, "weight_decay", 0),
    };
    if (n->c.phi == SIGMOID || n->c.phi == RELU)
        n->c.scale *= pow(number(config, "n_for_scale", 1), -number(config, "alpha", n->c.phi == RELU));
    return n;
}

struct network *network_free(struct network *n)
{
    if (n) {
        release(n);
        free(n->logits);
        for (size_t i = 0; i < n->params; i++) {
            free(n->param[i].value);
            free(n->param[i].grad);
            free(n->param[i].first);
            free(n->param[i].second);
        }
        free(n);
    }
    return NULL;
}

void network_add(struct network *n, const char *name, const double *value, size_t count)
{
    struct network_param *p = &n->param[n->params];
    const json_t *item;
    size_t i;

    if (n->params == MAX_PARAMS || strlen(name) >= sizeof p->name) {
        n->missing = true;
        return;
    }
    n->params++;
    strcpy(p->name, name);
    p->count = count;
    p->value = checked(malloc(count * sizeof *p->value));
    memcpy(p->value, value, count * sizeof *p->value);
    p->grad = checked(calloc(count, sizeof *p->grad));
    p->first = checked(calloc(count, sizeof *p->first));
    p->second = n->c.adamw ? checked(calloc(count, sizeof *p->second)) : NULL;
    p->decayed = true;
    json_array_foreach(n->no_decay, i, item)
    {
        if (json_is_string(item) && !strcmp(json_string_value(item), name))
            p->decayed = false;
    }
}

size_t network_param_count(const struct network *n)
{
    return n->params;
}

struct network_param *network_param(struct network *n, size_t i)
{
    return &n->param[i];
}

double network_distance(const double *a, const double *b, size_t count)
{
    double square = 0;

    for (size_t k = 0; k < count; k++)
        square += (a[k] - b[k]) * (a[k] - b[k]);
    return sqrt(square);
}
