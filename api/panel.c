#include "api/panel.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/base/philox.h"

static const char one_trial[] = "no point has more than one trial: nothing to resample";
static const char one_point[] = "there is one point: nothing to choose from";
static const char no_value[] = "no point without diverged runs has a value";

const char *api_panel_fault_name(enum api_panel_fault fault)
{
    static const char *const names[] = {NULL, "empty", "diverged", "nonfinite", "failed", "worse"};

    return names[fault];
}

void api_panel_done(struct api_panel *p)
{
    for (size_t i = 0; i < p->count; i++)
        free(p->points[i].values);
    free(p->points);
    free(p->picks);
    *p = (struct api_panel){.best = -1};
}

static bool is_candidate(const struct api_panel_point *p)
{
    return p->count && !p->runs.diverged && !p->nonfinite;
}

static bool is_better(double one, double other, bool maximise)
{
    return maximise ? one > other : one < other;
}

/* ---- the best ---------------------------------------------------------------------------------- */

static double resampled_mean(const struct api_panel_point *p, uint32_t resample)
{
    uint32_t words[4];
    double sum = 0;

    if (p->count == 1)
        return p->values[0];
    for (size_t i = 0; i < p->count; i++) {
        if (i % 4 == 0) {
            const uint32_t counter[4] = {resample, (uint32_t)p->point, (uint32_t)(i / 4), 0};

            pd_philox(API_PANEL_SEED, counter, words);
        }
        sum += p->values[(uint64_t)words[i % 4] * p->count >> 32];
    }
    return sum / (double)p->count;
}

/* Of a sorted list of resamples: the place of the quantile `share`, and how far it lies towards the next. */
static size_t place_of(double share, double *ret_part)
{
    const double place = share * (API_PANEL_RESAMPLES - 1), low = floor(place);

    *ret_part = place - low;
    return (size_t)low;
}

/* The quantile of x, from how often each point was picked: x ascends with the points. */
static double x_quantile(const struct api_panel *p, const size_t *counts, double share)
{
    double part, one, next;
    size_t at = place_of(share, &part), k = 0, after;

    while (at >= counts[k])
        at -= counts[k++];
    after = k;
    if (at + 1 == counts[k])
        do
            after++;
        while (after < p->count && !counts[after]);
    if (after == k || after == p->count) /* x itself: a logarithm and back would round it */
        return p->points[k].x;
    one = p->points[k].x;
    next = p->points[after].x;
    return p->positive ? exp(log(one) + part * (log(next) - log(one))) : one + part * (next - one);
}

static enum pd_err resample(struct api_panel *p, bool maximise, struct pd_why *why)
{
    size_t *counts = calloc(p->count, sizeof *counts);
    const double tail = (1 - API_PANEL_LEVEL) / 2;

    p->picks = calloc(API_PANEL_RESAMPLES, sizeof *p->picks);
    if (!counts || !p->picks) {
        free(counts);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the resamples");
    }
    for (uint32_t r = 0; r < API_PANEL_RESAMPLES; r++) {
        double best = 0;
        bool first = true;

        for (size_t i = 0; i < p->count; i++) {
            double mean;

            if (!is_candidate(&p->points[i]))
                continue;
            mean = resampled_mean(&p->points[i], r);
            if (first || is_better(mean, best, maximise)) {
                p->picks[r] = (uint32_t)i;
                best = mean;
            }
            first = false;
        }
        counts[p->picks[r]]++;
    }
    p->share = (double)counts[p->best] / API_PANEL_RESAMPLES;
    p->low = x_quantile(p, counts, tail);
    p->high = x_quantile(p, counts, 1 - tail);
    p->resampled = true;
    free(counts);
    return PD_OK;
}

enum pd_err api_panel_best(struct api_panel *p, bool maximise, struct pd_why *why)
{
    size_t candidates = 0, repeated = 0;

    p->best = -1;
    p->positive = true;
    for (size_t i = 0; i < p->count; i++) {
        const struct api_panel_point *at = &p->points[i];

        p->positive = p->positive && at->x > 0;
        if (!is_candidate(at))
            continue;
        candidates++;
        repeated += at->count > 1;
        if (p->best < 0 || is_better(at->stat.mean, p->points[p->best].stat.mean, maximise))
            p->best = (int)i;
    }
    p->why = !candidates ? no_value : candidates == 1 ? one_point : !repeated ? one_trial : NULL;
    return p->why ? PD_OK : resample(p, maximise, why);
}

/* ---- the usable range -------------------------------------------------------------------------- */

void api_panel_usable(struct api_panel *p, bool maximise)
{
    double best, worst, tolerance, deviation;

    p->from = p->to = -1;
    for (size_t i = 0; i < p->count; i++) {
        struct api_panel_point *at = &p->points[i];

        at->fault = at->runs.diverged ? API_PANEL_DIVERGED
                    : at->nonfinite   ? API_PANEL_NONFINITE
                    : !at->count      ? API_PANEL_EMPTY
                    : at->runs.failed ? API_PANEL_FAILED
                                      : API_PANEL_FINE;
    }
    if (p->best < 0) {
        p->range_why = no_value;
        return;
    }
    best = worst = p->points[p->best].stat.mean;
    for (size_t i = 0; i < p->count; i++)
        if (is_candidate(&p->points[i]) && is_better(worst, p->points[i].stat.mean, maximise))
            worst = p->points[i].stat.mean;
    tolerance = API_PANEL_TOLERANCE * fabs(worst - best);
    deviation = api_stat_sd(&p->points[p->best].stat);
    if (deviation > tolerance) /* not if it is NaN */
        tolerance = deviation;
    p->limit = maximise ? best - tolerance : best + tolerance;
    for (size_t i = 0; i < p->count; i++)
        if (p->points[i].fault == API_PANEL_FINE && is_better(p->limit, p->points[i].stat.mean, maximise))
            p->points[i].fault = API_PANEL_WORSE;
    if (p->points[p->best].fault != API_PANEL_FINE) {
        p->range_why = "a run of the best point failed";
        return;
    }
    p->from = p->to = p->best;
    while (p->from > 0 && p->points[p->from - 1].fault == API_PANEL_FINE)
        p->from--;
    while (p->to + 1 < (int)p->count && p->points[p->to + 1].fault == API_PANEL_FINE)
        p->to++;
}

/* ---- the slope --------------------------------------------------------------------------------- */

/* Through the best points of resample r; r < 0: of the means themselves. False: all tokens are equal. */
static bool fit(struct api_panel *const *panels, size_t count, int r, double *a, double *b)
{
    double u = 0, v = 0, uu = 0, uv = 0;

    for (size_t i = 0; i < count; i++) {
        const struct api_panel *p = panels[i];

        u += log((double)p->tokens) / (double)count;
        v += log(p->points[r >= 0 && p->resampled ? (int)p->picks[r] : p->best].x) / (double)count;
    }
    for (size_t i = 0; i < count; i++) {
        const struct api_panel *p = panels[i];
        const double du = log((double)p->tokens) - u;
        const double dv = log(p->points[r >= 0 && p->resampled ? (int)p->picks[r] : p->best].x) - v;

        uu += du * du;
        uv += du * dv;
    }
    *b = uv / uu;
    *a = v - *b * u;
    return uu > 0;
}

static int ascending(const void *a, const void *b)
{
    const double one = *(const double *)a, other = *(const double *)b;

    return (one > other) - (one < other);
}

static double quantile(const double *sorted, double share)
{
    double part;
    const size_t at = place_of(share, &part), next = at + (at + 1 < API_PANEL_RESAMPLES);

    return sorted[at] + part * (sorted[next] - sorted[at]);
}

enum pd_err api_slope_fit(struct api_panel *const *panels, size_t count, struct api_slope *ret,
                          struct pd_why *why)
{
    struct api_panel **used = calloc(count + 1, sizeof *used);
    double *slopes = calloc(API_PANEL_RESAMPLES, sizeof *slopes), unused;
    const double tail = (1 - API_PANEL_LEVEL) / 2;
    struct api_slope s = {0};
    bool differ = false, positive = true;
    enum pd_err err = PD_OK;

    if (!used || !slopes) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the slope");
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        if (!panels[i]->tokens || panels[i]->best < 0)
            continue;
        differ = differ || (s.panels && panels[i]->tokens != used[0]->tokens);
        positive = positive && panels[i]->positive;
        s.resampled += panels[i]->resampled;
        used[s.panels++] = panels[i];
    }
    s.why = !differ     ? "fewer than two panels of different numbers of tokens have a best value"
            : !positive ? "the axis has values that are not positive"
                        : NULL;
    s.there = !s.why && fit(used, s.panels, -1, &s.a, &s.b);
    s.interval_why = s.why ? s.why : !s.resampled ? one_trial : NULL;
    s.interval = s.there && s.resampled;
    for (int r = 0; s.interval && r < API_PANEL_RESAMPLES; r++)
        (void)fit(used, s.panels, r, &unused, &slopes[r]);
    if (s.interval) {
        qsort(slopes, API_PANEL_RESAMPLES, sizeof *slopes, ascending);
        s.low = quantile(slopes, tail);
        s.high = quantile(slopes, 1 - tail);
    }
    *ret = s;
out:
    free(slopes);
    free(used);
    return err;
}
