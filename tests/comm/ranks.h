/* tests/comm/ranks.h: runs a function as several processes, one a rank. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/comm/comm.h"

/* Returns 0 if all is well; anything else is shown. */
typedef int rank_fn(int rank, int ranks, const void *id);

#define RANK_CHECK(x)                                                                                        \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "rank %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #x);                           \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

static inline void run_ranks(int ranks, rank_fn *fn, pid_t *ret_pid)
{
    uint8_t id[PK_COMM_ID_MAX];
    struct pd_why why;

    if (pk_comm_local()->make_id(id, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (int i = 0; i < ranks; i++) {
        ret_pid[i] = fork();
        assert_true(ret_pid[i] >= 0);
        if (!ret_pid[i]) {
            alarm(60);
            _exit(fn(i, ranks, id));
        }
    }
}

/* Expects every rank to leave with `want` (one status a rank; -1 = not looked at). */
static inline void join_ranks(int ranks, const pid_t *pid, const int *want)
{
    for (int i = 0; i < ranks; i++) {
        int status = 0;

        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        if (want && want[i] < 0)
            continue;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != (want ? want[i] : 0))
            fail_msg("rank %d: status %x", i, (unsigned)status);
    }
}
