/* tests/train/rig.h: what the tests of whole runs share: a folder, a job, a host that writes everything down.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/train/setup.h"

#define DIGITS(train)                                                                                        \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7,\"mlp_ratio\":2}," \
    "\"attention\":{\"activation\":\"poly\",\"degree\":3,\"scale\":\"learned\",\"scale_share\":\"head\"},"   \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":11},"           \
    "\"augment\":{\"crop\":\"pad_crop\",\"pad_crop\":{\"shift\":2}}},"                                       \
    "\"diagnostics\":{\"every\":5,\"probe_batch\":3},\"resources\":{\"device\":\"cpu\",\"threads\":2},"      \
    "\"train\":{" train "}}"
#define PLAIN                                                                                                \
    "\"steps\":24,\"batch\":8,\"eval_every\":7,\"optimizer\":{\"lr\":0.01},\"clip_norm\":0.5,"               \
    "\"schedule\":{\"warmup_steps\":4},\"checkpoint_every\":{\"steps\":6}"

/* A small equation by L-BFGS. attention: the inside of that object; more: further fields of the optimiser. */
#define EQUATION(device, attention, steps, more)                                                             \
    "{\"model\":{\"preset\":\"pinn_micro\",\"width\":4,\"mlp_ratio\":1,\"head_width\":5},"                   \
    "\"data\":{\"dataset\":\"pde_convection\",\"pde\":{\"grid\":5,\"test_grid\":4,\"coefficient\":3}},"      \
    "\"attention\":{" attention "},\"diagnostics\":{\"every\":3},"                                           \
    "\"resources\":{\"device\":\"" device "\",\"threads\":1},"                                               \
    "\"train\":{\"steps\":" steps ",\"eval_every\":3,\"optimizer\":{\"name\":\"lbfgs\"" more "},"            \
    "\"checkpoint_every\":{\"steps\":3}}}"

/* Of the test that runs: made by setup. */
extern char folder[64], checkpoints[128];
extern struct data_root root;

int setup(void **state);
int teardown(void **state);

struct point {
    char key[40];
    int64_t step;
    double value;
};

struct book {
    struct point *points;
    size_t count;
    char events[4096];  /* "kind;" for each event, "phase:TEXT;" and "phase;" for a phase and its end */
    char compiled[200]; /* fields of event compiled */
    char bad[600];      /* "fields;" for each event bad_picture */
    int written, written_best;
    char last_path[1024];
    int64_t progress;
    double arena; /* the last mem/arena: like times it is no point, because it depends on the machine */
    /* stop when this step's points have come, or inside the evaluation after it */
    int64_t stop_at;
    enum train_stop how;
    int64_t asked; /* calls of stop */
    int64_t stop_after_calls;
    int want_checkpoint;
    bool from_seed;     /* no checkpoint is named, whatever lies in the folder */
    int64_t unrecorded; /* checkpoints from this step on are not recorded, until they are waited for; 0 = all
                           are */
    int waits;
    int comm_waits; /* points of comm/wait */
    bool lost;      /* polyd does not hear of checkpoints */
};

enum pd_err run(const char *json, struct book *book, const char *start, int threads,
                struct train_outcome *out, struct pd_why *why);
/* What runs compute on; NULL: as the document says. */
extern const struct pk_backend_api *run_api;
/* The same by several processes; this one is rank 0. Each of the others must end with `others`, PD_OK where
 * nothing else is said. */
enum pd_err run_ranks(int ranks, const char *json, struct book *book, const char *start,
                      struct train_outcome *out, struct pd_why *why);
extern enum pd_err others;
extern char last_rank_why[512]; /* the last rank's sentence */
/* What the other ranks are (tests of failures change it), and rank 0; NULL: pk_comm_local. */
extern const struct pk_comm_api *others_comm, *first_comm;
void close_book(struct book *b);
const struct point *find(const struct book *b, const char *key, int64_t step);
/* The digest that polyd has recorded of this file; "": none. Runs get it with the name of the file. */
const char *recorded_digest(const char *path);
/* Files in the run's folder, and forgetting them. */
size_t files(void);
void clear(void);
void read_whole(const char *path, uint8_t **ret, size_t *ret_len);
/* Compares two books by key and step, in order: every value has the same bits. */
void same_points(const struct book *a, const struct book *b);
/* The first point of `want` which `got` lacks, or whose value there is not within `tolerance` of the larger of 1
 * and its own; NULL: none. A NaN is near nothing. */
const struct point *far_point(const struct book *want, const struct book *got, double tolerance);
/* Fails the test if there is one, or if the books have not equally many points. */
void near_points(const struct book *want, const struct book *got, double tolerance);
/* Runs `json` whole, then `trials` times stopped at random moments: points and last file must be the same. */
void check_random_stops(const char *json, int trials);
