/* The parameters of each theorem: name, range, default, meaning. */
#include "daemon/job/theorem.h"

#include <string.h>

#define MOST_NUMBERS 32

#define INT(n, lo, hi, d, text)                                                                              \
    {                                                                                                        \
        .name = n, .whole = true, .min = (lo), .max = (hi), .def = d, .meaning = text                        \
    }
#define NUM(n, lo, hi, d, text)                                                                              \
    {                                                                                                        \
        .name = n, .min = (lo), .max = (hi), .def = d, .meaning = text                                       \
    }
#define INTS(n, lo, hi, d, text)                                                                             \
    {                                                                                                        \
        .name = n, .whole = true, .min = (lo), .max = (hi), .most = MOST_NUMBERS, .rising = true, .def = d,  \
        .meaning = text                                                                                      \
    }
#define NUMS(n, lo, hi, d, text)                                                                             \
    {                                                                                                        \
        .name = n, .min = (lo), .max = (hi), .most = MOST_NUMBERS, .rising = true, .def = d, .meaning = text \
    }
#define ROWS static const struct job_param
#define END                                                                                                  \
    {                                                                                                        \
        .name = NULL                                                                                         \
    }

#define WIDTH(d) INT("D", 1, 1024, d, "model width D: columns of X")
#define HEAD(d) INT("d", 1, 256, d, "head dimension d: columns of Q and K")
#define TOKENS(d) INTS("N", 2, 1024, d, "numbers of tokens N")
#define DEGREES(d) INTS("p", 1, 6, d, "powers p")
#define DRAWS(d, text) INT("draws", 20, 1000000, d, text)
#define SIGMA_X NUM("sigma_x", 1e-3, 10, "1", "standard deviation of the entries of X")
#define SIGMA_T NUM("sigma_t", 1e-3, 10, "1", "standard deviation of the entries of Q and K")

static const struct job_param common[] = {
    INT("seed", 0, 9007199254740991.0, "0", "first seed of the random draws"),
    INT("seeds", 1, 16, "3", "number of consecutive seeds; a criterion must hold for each"),
};

ROWS t1[] = {INTS("N", 2, 4096, "[8,16,32,64,128,256,512,1024]", "numbers of tokens N"),
             NUMS("t", 0, 1000, "[0,0.1,1,3,10,100]", "factors t of the logits A = t G"), END};
ROWS t2[] = {INTS("N", 2, 512, "[2,3,8,32,128]", "lengths of rows"),
             INT("rows", 100, 100000, "4000", "rows per distribution and length"), END};
ROWS t3[] = {INTS("N", 16, 16384, "[16,64,256,1024,4096]", "numbers of tokens N"),
             NUMS("s", 0.01, 5, "[0.077,0.25,0.5,1,3]", "standard deviations s of the logits"),
             INT("rows", 100, 100000, "1000", "rows at each N and s"), END};
ROWS t4[] = {
    TOKENS("[16,32,64,128,256]"),
    WIDTH("24"),
    HEAD("8"),
    DEGREES("[1,2,3,4]"),
    DRAWS("1000", "draws at the greatest N; smaller N have more, (N / greatest)^(-3/2) times as many"),
    SIGMA_X,
    SIGMA_T,
    END};
ROWS t5[] = {TOKENS("[64,128,256]"),          WIDTH("16"), HEAD("8"), DEGREES("[1,2,3]"),
             DRAWS("400", "draws at each N"), END};
ROWS t6[] = {WIDTH("64"), DEGREES("[1,2,3,4]"),
             DRAWS("40000", "pairs of independent 8 x D and D x 8 matrices"), END};
ROWS t8[] = {TOKENS("[64,128,256,512,1024]"), DEGREES("[1,2,3,4,5]"),
             NUM("s", 0.01, 5, "0.5", "standard deviation s of the logits"),
             INT("entries", 10000, 100000000, "4000000", "logits drawn for each N"), END};
ROWS t9[] = {INT("N", 2, 1024, "256", "number of tokens N"),
             WIDTH("192"),
             HEAD("64"),
             NUM("std", 1e-4, 1, "0.02", "standard deviation of the initial weights"),
             DRAWS("40", "initialisations"),
             END};
ROWS t10[] = {INTS("patch", 4, 28, "[4,7,14]", "sides of the patches of a 28 x 28 image; each divides 28"),
              NUMS("k", 1e-4, 1e5, "[0.01,0.1,1,10,100,1000]", "divisors k of the cubic attention"),
              INT("steps", 1, 2000, "60", "steps of each training run"),
              INT("images", 32, 4096, "256", "validation images"), END};
ROWS t11[] = {INT("N", 2, 1024, "256", "number of tokens N"),
              WIDTH("192"),
              HEAD("64"),
              NUM("std", 1e-4, 1, "0.02", "standard deviation of the initial weights"),
              DEGREES("[1,2,3,4,5,6]"),
              DRAWS("40", "initialisations"),
              END};
ROWS t12[] = {
    INTS("n", 2, 65536, "[8,32,128,512,2048,8192,16384]", "numbers of tokens n"),
    INTS("d", 1, 128, "[1,32,64]", "dimensions d of the tokens"),
    NUMS("A", 0.01, 10, "[0.25,1,3]", "factors A of the logits A x_i.x_j / sqrt(d)"),
    INT("draws", 20, 100000, "4000", "number of sequences at the greatest n for d = 1; fewer for greater d"),
    NUM("mean", 0, 10, "0.5", "mean of the tokens in the last part, in standard deviations"),
    END};
ROWS t13[] = {INTS("n", 2, 65536, "[8,32,128,512,2048,8192]", "numbers of tokens n"),
              INT("d", 1, 256, "32", "dimension d of the values"),
              INTS("p", 1, 5, "[1,2,3,4,5]", "powers p"),
              NUM("s", 0.01, 5, "1", "standard deviation s of the logits"),
              DRAWS("100", "number of sequences at the greatest n"),
              END};
ROWS t14[] = {
    NUMS("kappa", 1e-4, 1e6, "[0.01,0.1,1,3,10,30,100,300,1000]", "factors kappa of the embeddings"),
    INT("depth", 1, 12, "4", "blocks"), INT("width", 8, 128, "32", "model width"), END};
ROWS t15[] = {NUM("g", 1.5, 1000, "10", "factor g of the input"), INT("N", 2, 16, "5", "number of tokens N"),
              INT("D", 2, 16, "6", "model width D"), END};
ROWS t16[] = {NUMS("c", 0.01, 1e6, "[0.1,1,10,100,1000]", "factors c of a weight matrix"),
              INT("D", 2, 64, "12", "model width D of the network"),
              INT("size", 8, 512, "256", "rows m and columns n of the random matrices"),
              INT("draws", 50, 1000, "50", "random matrices"), END};
ROWS t17[] = {
    NUMS("c", 0.01, 1e6, "[0.1,1,10,100,1000]", "factors c of the weights, and of the input's norm"),
    INTS("d", 2, 4096, "[16,64,256,1024]", "dimensions d of random vectors"),
    INT("draws", 1000, 1000000, "10000", "pairs of random vectors at each d"),
    INT("steps", 1, 1000, "60", "training steps before the residual branches are measured"), END};
ROWS t18[] = {INT("steps", 1, 2000, "60", "training steps before the gradient is taken"),
              INT("batch", 8, 512, "64", "images per step"), INT("depth", 1, 12, "4", "blocks"),
              INT("width", 8, 128, "48", "model width"), END};
ROWS t19[] = {NUMS("eps", 0, 1, "[1e-12,1e-9,1e-6,1e-3,0.1]", "epsilons of the norms"),
              INT("N", 2, 16, "6", "number of tokens N"), INT("D", 4, 64, "12", "model width D"), END};
ROWS t20[] = {INT("steps", 2, 1000, "10", "steps of each optimiser"),
              INT("parameters", 1, 100000, "37", "number of variables to optimise"), END};

static const struct {
    const char *name;
    const struct job_param *own;
} theorems[JOB_THEOREM_COUNT] = {
    [JOB_THEOREM_T1] = {"T1", t1},    [JOB_THEOREM_T2] = {"T2", t2},    [JOB_THEOREM_T3] = {"T3", t3},
    [JOB_THEOREM_T4] = {"T4", t4},    [JOB_THEOREM_T5] = {"T5", t5},    [JOB_THEOREM_T6] = {"T6", t6},
    [JOB_THEOREM_T7] = {"T7", t4},    [JOB_THEOREM_T8] = {"T8", t8},    [JOB_THEOREM_T9] = {"T9", t9},
    [JOB_THEOREM_T10] = {"T10", t10}, [JOB_THEOREM_T11] = {"T11", t11}, [JOB_THEOREM_T12] = {"T12", t12},
    [JOB_THEOREM_T13] = {"T13", t13}, [JOB_THEOREM_T14] = {"T14", t14}, [JOB_THEOREM_T15] = {"T15", t15},
    [JOB_THEOREM_T16] = {"T16", t16}, [JOB_THEOREM_T17] = {"T17", t17}, [JOB_THEOREM_T18] = {"T18", t18},
    [JOB_THEOREM_T19] = {"T19", t19}, [JOB_THEOREM_T20] = {"T20", t20},
};

#define COMMON (sizeof common / sizeof *common)

const char *job_theorem_name(enum job_theorem theorem)
{
    return theorems[theorem].name;
}

const struct job_param *job_theorem_param(enum job_theorem theorem, size_t i)
{
    const struct job_param *own = theorems[theorem].own;

    if (i < COMMON)
        return &common[i];
    for (i -= COMMON; i > 0 && own->name; i--)
        own++;
    return own->name ? own : NULL;
}

const struct job_param_value *job_param_find(const struct job_params *params, const char *name)
{
    for (size_t i = 0; i < params->count; i++)
        if (!strcmp(params->items[i].name, name))
            return &params->items[i];
    return NULL;
}
