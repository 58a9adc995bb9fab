/* daemon/worker/process/attempt.h: shared by the roles of an attempt: arguments, token, link, signals. */
#pragma once

#include "daemon/worker/process/link.h"

struct attempt {
    int64_t run;
    int number;
    int rank;
    const char *dir; /* of the attempt */
    const char *socket_path;
    struct link *link;
    const struct link_assign *assign;
};

/* Reads the arguments and the token, starts the link, routes SIGTERM to it and waits for the assignment.
 * Writes errors to standard error. */
PD_NODISCARD enum pd_err attempt_begin(int argc, char **argv, bool serving, struct attempt *ret);
/* Stops the link. */
void attempt_end(struct attempt *a);

struct role_result {
    const char *cause; /* done, diverged, failed, invalid, checkpointed; static */
    int64_t step;
    char text[512];
    bool silent; /* refused: exit without a report */
};

struct pk_comm_api;
/* The rendezvous id of the ranks of this attempt for `comm`: rank 0 creates it, the others wait for it.
 * `out` holds LINK_RENDEZVOUS_MAX. */
PD_NODISCARD enum pd_err attempt_rendezvous(struct attempt *a, const struct pk_comm_api *comm, void *out,
                                            struct pd_why *why);

struct model_tuned_store;
/* Stores measured choices of this attempt's back end in polyd. `a` is borrowed. */
struct model_tuned_store attempt_tuned(struct attempt *a);

/* role_serve.c */
int role_serve(struct attempt *a);
