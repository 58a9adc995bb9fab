/* Ranks as processes: what they compute, and what becomes of the others when one goes. */
#include "tests/comm/ranks.h"

#include <math.h>
#include <signal.h>
#include <sys/mman.h>

#include "kernels/base/clock.h"

static struct pk_comm *join(int rank, int ranks, const void *id, size_t chunk,
                            const struct pk_comm_host *host)
{
    const struct pk_comm_options o = {.id = id,
                                      .rank = rank,
                                      .ranks = ranks,
                                      .open_us = 20000000,
                                      .wait_us = 20000000,
                                      .stopped_us = 300000,
                                      .chunk_bytes = chunk};
    struct pk_comm *c = NULL;
    struct pd_why why;

    if (pk_comm_local()->open(host, &o, &c, &why) != PD_OK)
        fprintf(stderr, "rank %d: %s\n", rank, why.text);
    return c;
}

/* A number that differs by rank and place, with all its digits in use. */
static double number(int rank, int64_t i)
{
    return sin((double)(rank * 7919 + i)) * (double)(1 + i % 5);
}

static const int64_t counts[] = {0, 1, 3, 63, 1024, 1025, 5000, 40000};

static int sums(int rank, int ranks, const void *id)
{
    const struct pk_comm_api *api = pk_comm_local();
    struct pk_comm *c = join(rank, ranks, id, 16384, NULL);
    struct pd_why why;

    RANK_CHECK(c);
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        int64_t n = counts[k];
        float *x = malloc((size_t)n * 4 + 4), *y = malloc((size_t)n * 4 + 4);
        double *d = malloc((size_t)n * 8 + 8);
        int32_t *w = malloc((size_t)n * 4 + 4);
        uint16_t *h = malloc((size_t)n * 2 + 2);
        int root = (int)k % ranks;

        for (int64_t i = 0; i < n; i++) {
            x[i] = (float)number(rank, i);
            d[i] = number(rank, i);
            w[i] = (int32_t)(i * 3 + rank);
            h[i] = (uint16_t)(0x3f80 + (rank + i) % 16); /* 1, 1 + 1/128, .. */
        }
        y[n] = 12345;
        RANK_CHECK(api->all_reduce(c, x, y, n, PK_F32, -1, NULL, &why) == PD_OK);
        RANK_CHECK(y[n] == 12345);
        RANK_CHECK(api->all_reduce(c, d, d, n, PK_F64, -1, NULL, &why) == PD_OK); /* in place */
        RANK_CHECK(api->all_reduce(c, w, w, n, PK_I32, -1, NULL, &why) == PD_OK);
        RANK_CHECK(api->all_reduce(c, h, h, n, PK_BF16, -1, NULL, &why) == PD_OK);
        for (int64_t i = 0; i < n; i++) {
            float f = (float)number(0, i), wide = 0;
            double e = number(0, i);

            for (int r = 1; r < ranks; r++) {
                f += (float)number(r, i);
                e += number(r, i);
            }
            for (int r = 0; r < ranks; r++)
                wide += 1 + (float)((r + i) % 16) / 128;
            RANK_CHECK(y[i] == f); /* in the order of ranks, to the bit */
            RANK_CHECK(d[i] == e);
            RANK_CHECK(w[i] == ranks * i * 3 + ranks * (ranks - 1) / 2);
            RANK_CHECK(fabsf(ldexpf((float)(0x80 + (h[i] & 0x7f)), (h[i] >> 7) - 127 - 7) - wide) <=
                       wide / 256);
        }
        y[n] = 12345;
        RANK_CHECK(api->all_reduce(c, x, y, n, PK_F32, root, NULL, &why) == PD_OK);
        if (rank == root)
            for (int64_t i = 0; i < n; i++) {
                float f = (float)number(0, i);

                for (int r = 1; r < ranks; r++)
                    f += (float)number(r, i);
                RANK_CHECK(y[i] == f);
            }
        RANK_CHECK(y[n] == 12345);
        RANK_CHECK(api->broadcast(c, x, n, PK_F32, root, NULL, &why) == PD_OK);
        for (int64_t i = 0; i < n; i++)
            RANK_CHECK(x[i] == (float)number(root, i));
        RANK_CHECK(api->barrier(c, NULL, &why) == PD_OK);
        free(x);
        free(y);
        free(d);
        free(w);
        free(h);
    }
    RANK_CHECK(api->check(c, &why) == PD_OK);
    api->close(c);
    return 0;
}

static void test_sums_are_those_of_all_ranks_in_their_order(void **state)
{
    pid_t pid[5];

    (void)state;
    for (int ranks = 1; ranks <= 5; ranks++) {
        run_ranks(ranks, sums, pid);
        join_ranks(ranks, pid, NULL);
    }
}

static int rows(int rank, int ranks, const void *id)
{
    const struct pk_comm_api *api = pk_comm_local();
    struct pk_comm *c = join(rank, ranks, id, 8192, NULL);
    struct pd_why why;

    RANK_CHECK(c);
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        int64_t n = counts[k];
        float *all = malloc((size_t)(n * ranks) * 4 + 4), *one = malloc((size_t)n * 4 + 4);

        for (int64_t i = 0; i < n * ranks; i++)
            all[i] = (float)number(rank, i);
        RANK_CHECK(api->reduce_scatter(c, all, one, n, PK_F32, NULL, &why) == PD_OK);
        for (int64_t i = 0; i < n; i++) {
            float f = (float)number(0, rank * n + i);

            for (int r = 1; r < ranks; r++)
                f += (float)number(r, rank * n + i);
            RANK_CHECK(one[i] == f);
        }
        for (int64_t i = 0; i < n; i++)
            all[rank * n + i] = (float)(1000 * rank + i % 1000);
        RANK_CHECK(api->all_gather(c, all + rank * n, all, n, PK_F32, NULL, &why) == PD_OK); /* in place */
        for (int r = 0; r < ranks; r++)
            for (int64_t i = 0; i < n; i++)
                RANK_CHECK(all[r * n + i] == (float)(1000 * r + i % 1000));
        free(all);
        free(one);
    }
    api->close(c);
    return 0;
}

static void test_rows_scatter_and_gather(void **state)
{
    pid_t pid[4];

    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        run_ranks(ranks, rows, pid);
        join_ranks(ranks, pid, NULL);
    }
}

/* ---- buffers that only a back end can reach ---- */

/* "Device memory": every byte is stored inverted. */
static enum pd_err invert(void *user, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    (void)why;
    ++*(int *)user;
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = (uint8_t) ~((const uint8_t *)from)[i];
    return PD_OK;
}

static int staged(int rank, int ranks, const void *id)
{
    const struct pk_comm_api *api = pk_comm_local();
    int moved = 0;
    const struct pk_comm_host host = {.upload = invert, .download = invert, .user = &moved};
    struct pk_comm *c = join(rank, ranks, id, 4096, &host);
    enum { N = 9000 };
    uint32_t *x = malloc(N * 4);
    struct pd_why why;

    RANK_CHECK(c);
    for (uint32_t i = 0; i < N; i++)
        x[i] = ~(i + (uint32_t)rank);
    RANK_CHECK(api->all_reduce(c, x, x, N, PK_I32, -1, NULL, &why) == PD_OK);
    for (uint32_t i = 0; i < N; i++)
        RANK_CHECK(~x[i] == i * (uint32_t)ranks + (uint32_t)(ranks * (ranks - 1) / 2));
    RANK_CHECK(moved > 0);
    api->close(c);
    free(x);
    return 0;
}

static void test_buffers_of_a_device_go_by_way_of_the_host(void **state)
{
    pid_t pid[2];

    (void)state;
    run_ranks(2, staged, pid);
    join_ranks(2, pid, NULL);
}

/* ---- failures ---- */

static int *shared_flag; /* set by the test's process once the victim may go */
static int mode;         /* 0 killed, 1 stopped, 2 leaves, 3 aborts, 4 does something else */

static int survive(int rank, int ranks, const void *id)
{
    const struct pk_comm_api *api = pk_comm_local();
    struct pk_comm *c = join(rank, ranks, id, 4096, NULL);
    static const char *const says[] = {"rank 1 (process", "rank 1 (process", "rank 1 (process",
                                       "rank 1: no bread", "disagree"};
    float x[3000] = {0};
    struct pd_why why = {""};
    enum pd_err err = PD_OK;
    int64_t began;

    RANK_CHECK(c);
    for (int i = 0; i < 3; i++) {
        err = api->all_reduce(c, x, x, 3000, PK_F32, -1, NULL, &why);
        /* an abort may meet the others on their way out of the last one */
        RANK_CHECK(err == PD_OK || (mode == 3 && i == 2 && rank != 1));
    }
    if (rank == 1) {
        __atomic_store_n(shared_flag, 1, __ATOMIC_SEQ_CST);
        if (mode == 2) {
            api->close(c);
            return 0;
        }
        if (mode == 3) {
            api->abort(c, "no bread");
            api->close(c);
            return 0;
        }
        if (mode == 4) {
            err = api->all_reduce(c, x, x, 2999, PK_F32, -1, NULL, &why);
            RANK_CHECK(err == PD_ERR_INTERNAL || err == PD_ERR_CLOSED);
            RANK_CHECK(strstr(why.text, "disagree"));
            api->close(c);
            return 0;
        }
        pause();
        return 0;
    }
    began = pd_clock_mono_us();
    err = api->all_reduce(c, x, x, 3000, PK_F32, -1, NULL, &why);
    RANK_CHECK(err != PD_OK);
    RANK_CHECK(pd_clock_mono_us() - began < 5000000);
    if (!strstr(why.text, says[mode]))
        fprintf(stderr, "rank %d says: %s\n", rank, why.text);
    RANK_CHECK(strstr(why.text, says[mode]));
    RANK_CHECK(api->barrier(c, NULL, &why) != PD_OK &&
               strstr(why.text, says[mode])); /* and so will all others */
    RANK_CHECK(api->check(c, &why) != PD_OK);
    api->close(c);
    return 0;
}

static void lose_one(int how)
{
    static const int want[3] = {0, -1, 0};
    pid_t pid[3];

    mode = how;
    *shared_flag = 0;
    run_ranks(3, survive, pid);
    while (!__atomic_load_n(shared_flag, __ATOMIC_SEQ_CST))
        usleep(1000);
    if (how == 0)
        kill(pid[1], SIGKILL);
    if (how == 1)
        kill(pid[1], SIGSTOP);
    for (int i = 0; i < 3; i += 2) {
        int status;

        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    if (how == 1)
        kill(pid[1], SIGKILL);
    pid[0] = pid[1];
    join_ranks(1, pid, how >= 2 ? NULL : &want[1]);
}

static void test_a_killed_rank_is_noticed_and_named(void **state)
{
    (void)state;
    lose_one(0);
}

static void test_a_stopped_rank_is_noticed_and_named(void **state)
{
    (void)state;
    lose_one(1);
}

static void test_a_rank_that_leaves_is_noticed(void **state)
{
    (void)state;
    lose_one(2);
}

static void test_the_reason_of_an_abort_reaches_all(void **state)
{
    (void)state;
    lose_one(3);
}

static void test_ranks_that_do_different_things_are_told(void **state)
{
    (void)state;
    lose_one(4);
}

static int alone(int rank, int ranks, const void *id)
{
    const struct pk_comm_options o = {.id = id, .rank = rank, .ranks = ranks + 1, .open_us = 200000};
    struct pk_comm *c = NULL;
    struct pd_why why;

    RANK_CHECK(pk_comm_local()->open(NULL, &o, &c, &why) == PD_ERR_TIMEOUT);
    RANK_CHECK(strstr(why.text, "rank 1 did not arrive within 0.2 s"));
    RANK_CHECK(!c);
    return 0;
}

static void test_who_waits_for_a_rank_that_never_comes_gives_up(void **state)
{
    pid_t pid[1];

    (void)state;
    run_ranks(1, alone, pid);
    join_ranks(1, pid, NULL);
}

static void test_places_and_ids_are_checked(void **state)
{
    const struct pk_comm_api *api = pk_comm_local();
    uint8_t id[PK_COMM_ID_MAX], other[PK_COMM_ID_MAX];
    struct pk_comm_options o = {.id = id, .rank = 0, .ranks = 1, .open_us = 100000};
    struct pk_comm *c = NULL, *again = NULL;
    struct pd_why why;
    float x = 1;

    (void)state;
    assert_int_equal(api->make_id(id, &why), PD_OK);
    assert_true(api->id_bytes <= PK_COMM_ID_MAX);
    o.rank = 1;
    assert_int_equal(api->open(NULL, &o, &c, &why), PD_ERR_INVALID);
    o.rank = 0;
    o.ranks = PK_COMM_RANKS_MAX + 1;
    assert_int_equal(api->open(NULL, &o, &c, &why), PD_ERR_INVALID);
    memcpy(other, id, sizeof id);
    other[0] ^= 1;
    o = (struct pk_comm_options){.id = other, .rank = 0, .ranks = 1, .open_us = 100000};
    assert_int_equal(api->open(NULL, &o, &c, &why), PD_ERR_STALE);
    o.id = id;
    assert_int_equal(api->open(NULL, &o, &c, &why), PD_OK);
    assert_int_equal(api->all_reduce(c, &x, &x, 1, PK_U8, -1, NULL, &why), PD_ERR_INVALID);
    assert_int_equal(api->all_reduce(c, &x, &x, 1, PK_F32, 1, NULL, &why), PD_ERR_INVALID);
    assert_int_equal(api->broadcast(c, &x, 1, PK_F32, -1, NULL, &why), PD_ERR_INVALID);
    assert_int_equal(api->all_reduce(c, &x, &x, 1, PK_F32, -1, NULL, &why), PD_OK);
    assert_true(x == 1);
    /* The memory's maker has closed it: nobody can take a place any more. */
    assert_true(api->open(NULL, &o, &again, &why) != PD_OK);
    assert_null(api->close(c));
    assert_null(api->close(NULL));
}

static void test_a_plugin_that_is_missing_is_a_sentence(void **state)
{
    const struct pk_comm_api *api = NULL;
    struct pd_why why;

    (void)state;
    assert_int_equal(pk_comm_load_nccl("/nonexistent/comm_nccl.so", &api, &why), PD_ERR_NOT_FOUND);
    assert_non_null(strstr(why.text, "cannot run several ranks on GPUs"));
    assert_int_equal(pk_comm_load_nccl("/proc/self/exe", &api, &why), PD_ERR_UNSUPPORTED);
    assert_null(api);
}

/* An installed program: PREFIX/bin/test_comm --load prints why PREFIX/lib/polyd/comm_nccl.so does not open. */
static void test_a_plugin_is_found_where_it_is_installed(void **state)
{
    char folder[] = "/tmp/polyd-comm-XXXXXX", command[512], said[1024], want[128];
    FILE *p;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command,
             "cd %s && mkdir -p bin lib/polyd && cp /proc/%d/exe bin/test_comm && echo no library > "
             "lib/polyd/comm_nccl.so && "
             "bin/test_comm --load; cp lib/polyd/comm_nccl.so bin/ && bin/test_comm --load; rm -r %s",
             folder, (int)getpid(), folder);
    p = popen(command, "r");
    assert_non_null(p);
    for (int i = 0; i < 2; i++) { /* next to the program comes first */
        assert_non_null(fgets(said, sizeof said, p));
        snprintf(want, sizeof want, "cannot open '%s/bin/%scomm_nccl.so'", folder, i ? "" : "../lib/polyd/");
        if (!strstr(said, want))
            fail_msg("%s: %s", want, said);
    }
    assert_int_equal(pclose(p), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_those_of_all_ranks_in_their_order),
        cmocka_unit_test(test_rows_scatter_and_gather),
        cmocka_unit_test(test_buffers_of_a_device_go_by_way_of_the_host),
        cmocka_unit_test(test_a_killed_rank_is_noticed_and_named),
        cmocka_unit_test(test_a_stopped_rank_is_noticed_and_named),
        cmocka_unit_test(test_a_rank_that_leaves_is_noticed),
        cmocka_unit_test(test_the_reason_of_an_abort_reaches_all),
        cmocka_unit_test(test_ranks_that_do_different_things_are_told),
        cmocka_unit_test(test_who_waits_for_a_rank_that_never_comes_gives_up),
        cmocka_unit_test(test_places_and_ids_are_checked),
        cmocka_unit_test(test_a_plugin_that_is_missing_is_a_sentence),
        cmocka_unit_test(test_a_plugin_is_found_where_it_is_installed),
    };

    if (argc == 2 && strcmp(argv[1], "--load") == 0) {
        const struct pk_comm_api *api;
        struct pd_why why = {""};

        (void)!pk_comm_load_nccl(NULL, &api, &why);
        puts(why.text);
        return 0;
    }

    shared_flag = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
