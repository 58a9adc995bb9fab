#include "daemon/worker/serve/sample.h"

#include <math.h>
#include <stdlib.h>

enum pd_err serve_sampler_init(struct serve_sampler *s, int32_t count)
{
    s->count = count;
    s->weight = malloc((size_t)count * sizeof *s->weight);
    s->rank = malloc((size_t)count * sizeof *s->rank);
    if (!s->weight || !s->rank) {
        serve_sampler_done(s);
        return PD_ERR_NOMEM;
    }
    return PD_OK;
}

void serve_sampler_done(struct serve_sampler *s)
{
    free(s->weight);
    free(s->rank);
    *s = (struct serve_sampler){0};
}

/* SplitMix64's finaliser, applied twice with the index between: a counter-based generator. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

double serve_uniform(uint64_t seed, uint64_t index)
{
    return (double)(mix(mix(seed) ^ mix(~index)) >> 11) * 0x1p-53;
}

/* First largest, or -1 for logits that mean nothing. */
static int32_t argmax(const float *logits, int32_t count)
{
    int32_t best = -1;

    for (int32_t i = 0; i < count; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return -1;
        if (logits[i] != -INFINITY && (best < 0 || logits[i] > logits[best]))
            best = i;
    }
    return best;
}

/* Whether token a goes before token b: heavier, or as heavy with the smaller id. */
static bool before(const float *weight, int32_t a, int32_t b)
{
    return weight[a] > weight[b] || (weight[a] == weight[b] && a < b);
}

static void sift(const float *weight, int32_t *heap, int32_t count, int32_t at)
{
    for (;;) {
        int32_t child = 2 * at + 1;

        if (child >= count)
            return;
        if (child + 1 < count && before(weight, heap[child + 1], heap[child]))
            child++;
        if (!before(weight, heap[child], heap[at]))
            return;
        int32_t t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
        at = child;
    }
}

/* Of the tokens taken off the heap, likeliest first from n - 1 down to `heap`, the fewest that reach the
 * mass. */
static int32_t cut(const struct serve_sampler *s, int32_t n, int32_t heap, double reach, double *ret_mass)
{
    double mass = 0;

    for (int32_t i = n - 1; i >= heap; i--) {
        mass += (double)s->weight[s->rank[i]];
        if (mass >= reach) {
            heap = i;
            break;
        }
    }
    *ret_mass = mass;
    return heap;
}

int32_t serve_sample(struct serve_sampler *s, const float *logits, const struct serve_pick *pick)
{
    int32_t best = argmax(logits, s->count);
    double sum = 0, mass, left;
    int32_t n = 0, last = best, heap;

    if (best < 0 || pick->temperature <= 0)
        return best;
    for (int32_t i = 0; i < s->count; i++) {
        double w = exp(((double)logits[i] - (double)logits[best]) / pick->temperature);

        s->weight[i] = w >= pick->min_p ? (float)w : 0;
        if (s->weight[i] > 0) {
            s->rank[n++] = i;
            sum += (double)s->weight[i];
        }
    }
    if (pick->top_p >= 1 && (!pick->top_k || pick->top_k >= n)) {
        left = serve_uniform(pick->seed, pick->index) * sum;
        for (int32_t i = 0; i < n; i++) {
            last = s->rank[i];
            left -= (double)s->weight[last];
            if (left < 0)
                break;
        }
        return last;
    }
    /* A heap gives the likeliest tokens in order; usually a few of them already reach top_p, so the whole
     * vocabulary is never sorted. What is taken off goes behind the heap's end. */
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift(s->weight, s->rank, n, i);
    mass = 0;
    heap = n;
    while (heap > 0) {
        int32_t top = s->rank[0];

        s->rank[0] = s->rank[--heap];
        s->rank[heap] = top;
        sift(s->weight, s->rank, heap, 0);
        mass += (double)s->weight[top];
        if (pick->top_k ? n - heap == pick->top_k : mass >= pick->top_p * sum)
            break;
    }
    if (pick->top_k && pick->top_p < 1)
        heap = cut(s, n, heap, pick->top_p * mass, &mass);
    left = serve_uniform(pick->seed, pick->index) * mass;
    for (int32_t i = n - 1; i >= heap; i--) {
        last = s->rank[i];
        left -= (double)s->weight[last];
        if (left < 0)
            break;
    }
    return last;
}

double serve_logsumexp(const float *logits, int32_t count)
{
    double top = -INFINITY, sum = 0;

    for (int32_t i = 0; i < count; i++) {
        if (isnan(logits[i]))
            return NAN;
        if ((double)logits[i] > top)
            top = (double)logits[i];
    }
    if (isinf(top))
        return top;
    for (int32_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - top);
    return top + log(sum);
}

uint32_t serve_top(const float *logits, int32_t count, uint32_t most, int32_t *ret_ids)
{
    uint32_t n = 0;

    /* `most` is at most a handful: insertion beats anything cleverer. */
    for (int32_t i = 0; i < count; i++) {
        uint32_t at = n;

        while (at > 0 && logits[i] > logits[ret_ids[at - 1]])
            at--;
        if (at == most)
            continue;
        if (n < most)
            n++;
        for (uint32_t j = n - 1; j > at; j--)
            ret_ids[j] = ret_ids[j - 1];
        ret_ids[at] = i;
    }
    return n;
}
