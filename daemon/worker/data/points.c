/* daemon/worker/data/points.c: grids of points of differential equations, and their exact solutions. */
#include <math.h>
#include <string.h>

#include "daemon/worker/data/set.h"

#define PI 3.14159265358979323846

const char *data_equation_name(enum data_equation equation)
{
    static const char *const names[DATA_EQUATIONS] = {"none", "convection", "reaction", "wave"};

    return names[equation > DATA_EQUATION_NONE && equation < DATA_EQUATIONS ? equation : 0];
}

double data_equation_width(enum data_equation equation)
{
    return equation == DATA_EQUATION_WAVE ? 1 : 2 * PI;
}

double data_equation_exact(enum data_equation equation, double c, double x, double t)
{
    double h;

    switch (equation) {
    case DATA_EQUATION_CONVECTION:
        return sin(x - c * t);
    case DATA_EQUATION_REACTION: /* h e / (h e + 1 - h), divided by e so that a large c does not overflow */
        h = exp(-(x - PI) * (x - PI) / (2 * (PI / 4) * (PI / 4)));
        if (h >= 1) /* stays there, also where exp(-c t) is infinite */
            return 1;
        return h / (h + (1 - h) * exp(-c * t));
    case DATA_EQUATION_WAVE:
        return sin(PI * x) * cos(c * PI * t) + 0.5 * sin(3 * PI * x) * cos(3 * c * PI * t);
    default:
        return (double)NAN;
    }
}

enum pd_err data_open_points(struct data_set *set, const struct data_options *o, struct pd_why *why)
{
    struct data_info *i = &set->info;

    if (o->equation <= DATA_EQUATION_NONE || o->equation >= DATA_EQUATIONS)
        return pd_fail(why, PD_ERR_INVALID, "#/data/dataset: unknown equation");
    for (int k = 0; k < 2; k++)
        if (o->grid[k] < 2 || o->grid[k] > DATA_GRID_MAX || o->test_grid[k] < 2 ||
            o->test_grid[k] > DATA_GRID_MAX)
            return pd_fail(why, PD_ERR_INVALID, "#/data/pde: a grid has 2 to %d points along each axis",
                           DATA_GRID_MAX);
    if (!isfinite(o->coefficient) || !(o->step >= 0) || !isfinite(o->step))
        return pd_fail(why, PD_ERR_INVALID, "#/data/pde: the coefficient or the step is not finite");
    if (o->scored == DATA_SCORED_TEST)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/split: an equation has no test part: its evaluation grid is the part val");
    i->equation = o->equation;
    i->coefficient = o->coefficient;
    i->step = o->step;
    memcpy(i->grid, o->grid, sizeof i->grid);
    memcpy(i->test_grid, o->scored == DATA_SCORED_TRAIN ? o->grid : o->test_grid, sizeof i->test_grid);
    i->count[DATA_TRAIN] = i->count[DATA_VAL] = set->samples = 1;
    return PD_OK;
}

/* ---- samples ---- */

enum { X, T, EXACT };

static const int32_t *grid_of(const struct data_set *set, enum data_split split)
{
    return split == DATA_TRAIN ? set->info.grid : set->info.test_grid;
}

static int tensors(const struct data_set *set, enum data_split split, int32_t batch,
                   struct data_tensor ret[DATA_TENSORS_MAX])
{
    const int64_t points = (int64_t)grid_of(set, split)[0] * grid_of(set, split)[1];

    ret[X] = (struct data_tensor){
        .name = "x", .dtype = PK_F32, .shape = PK_SHAPE(batch, points, set->info.context)};
    ret[T] = ret[X];
    ret[T].name = "t";
    ret[EXACT] = (struct data_tensor){.name = "exact", .dtype = PK_F32, .shape = PK_SHAPE(batch, points)};
    return split == DATA_TRAIN ? EXACT : EXACT + 1;
}

static bool whole(const struct data_set *set, enum data_split split)
{
    return set->info.count[split] > 0;
}

static enum pd_err make(const struct data_set *set, enum data_split split, uint64_t seed, int64_t epoch,
                        int64_t position, uint32_t sample, int32_t row, void *scratch, void *const *to,
                        struct pd_why *why)
{
    const struct data_info *i = &set->info;
    const int32_t *grid = grid_of(set, split);
    float *x = to[X], *t = to[T], *exact = split == DATA_TRAIN ? NULL : to[EXACT];

    (void)seed;
    (void)epoch;
    (void)position;
    (void)sample;
    (void)row;
    (void)scratch;
    (void)why;
    for (int32_t a = 0; a < grid[0]; a++)
        for (int32_t b = 0; b < grid[1]; b++) {
            const double at_t = (double)a / (grid[0] - 1),
                         at_x = data_equation_width(i->equation) * b / (grid[1] - 1);

            for (int32_t k = 0; k < i->context; k++) {
                *x++ = (float)at_x;
                *t++ = (float)(at_t + k * i->step);
            }
            if (exact)
                *exact++ = (float)data_equation_exact(i->equation, i->coefficient, at_x, at_t);
        }
    return PD_OK;
}

static void none(const struct data_set *set, int32_t row, void *const *to)
{
    const size_t points = (size_t)set->info.test_grid[0] * (size_t)set->info.test_grid[1];

    (void)row;
    memset(to[X], 0, points * (size_t)set->info.context * sizeof(float));
    memset(to[T], 0, points * (size_t)set->info.context * sizeof(float));
    memset(to[EXACT], 0, points * sizeof(float));
}

const struct data_form data_form_points = {
    .kind = DATA_POINTS, .tensors = tensors, .whole = whole, .make = make, .none = none};
