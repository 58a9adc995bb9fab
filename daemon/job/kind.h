/* daemon/job/kind.h: the kinds of jobs. A kind that polyd executes is an entry of JOB_WORKER_KINDS, a row of
 * kind.c and a file of daemon/worker/kinds. The store keeps the names, never the numbers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Constant, name. The first is the default. */
/* clang-format off */
#define JOB_WORKER_KINDS(KIND) \
    KIND(TRAIN,    train)      \
    KIND(EVALUATE, evaluate)   \
    KIND(SELFTEST, selftest)   \
    KIND(CHECK,    check)      \
    /* add a word here */
#define JOB_KINDS(KIND)    \
    JOB_WORKER_KINDS(KIND) \
    KIND(EXTERNAL, external)
/* clang-format on */

#define JOB_KIND_CONSTANT(constant, name) JOB_KIND_##constant,
enum job_kind { JOB_KINDS(JOB_KIND_CONSTANT) JOB_KIND_COUNT };
#undef JOB_KIND_CONSTANT

struct job_kind_info {
    const char *name; /* as the API and the store write it */
    /* polyd carries its runs out: they wait in the queue, get devices, and have attempts, each a worker. Runs
     * of the other kinds start immediately, and live as long as their client sends something. */
    bool worker;
    bool ranks;          /* a run may have several slots */
    bool curves;         /* its numbers change over the steps of a run; false: they are its result */
    bool cpu;            /* computes on the CPU, whatever other devices there are */
    const char *meaning; /* for people */
    /* Members of the document, in addition to schema and kind: "name, data". */
    const char *takes;
    /* Members that the daemon adds, because the document names a checkpoint: what is computed with it, from
     * its run. NULL: it names none. A resolved document has both. */
    const char *inherits;
};

/* Static. */
const struct job_kind_info *job_kind_info(enum job_kind kind);
/* False, leaving *ret alone, if `name` (not NULL) is no kind. */
bool job_kind_parse(const char *name, enum job_kind *ret);
/* Whether a resolved document of this kind has the outermost member `name` of `len` bytes. */
bool job_kind_has(enum job_kind kind, const char *name, size_t len);
/* Whether the comma-separated list `words` (`takes` or `inherits` of a row) holds `name`; false for NULL. */
bool job_kind_listed(const char *words, const char *name, size_t len);
