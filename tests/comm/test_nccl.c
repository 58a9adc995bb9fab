/* The plug-in for GPUs without any: against a stand-in for the library, which is put before the real one. */
#include "tests/comm/ranks.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>

#include "kernels/base/clock.h"

static const struct pk_comm_api *nccl;
static volatile int *flag;

static struct pk_comm *join(int rank, int ranks, const void *id)
{
    const struct pk_comm_options o = {.id = id, .rank = rank, .ranks = ranks, .open_us = 20000000};
    struct pk_comm *c = NULL;
    struct pd_why why;

    if (nccl->open(NULL, &o, &c, &why) != PD_OK)
        fprintf(stderr, "rank %d: %s\n", rank, why.text);
    return c;
}

static int sums(int rank, int ranks, const void *id)
{
    struct pk_comm *c = join(rank, ranks, id);
    float x[2000], rows[3 * 100];
    struct pd_why why;

    RANK_CHECK(c);
    for (int i = 0; i < 2000; i++)
        x[i] = (float)(i + rank);
    RANK_CHECK(nccl->all_reduce(c, x, x, 2000, PK_F32, -1, NULL, &why) == PD_OK);
    for (int i = 0; i < 2000; i++)
        RANK_CHECK(x[i] == (float)(3 * i + 3));
    RANK_CHECK(nccl->all_reduce(c, x, x, 2000, PK_F32, 2, NULL, &why) == PD_OK);
    RANK_CHECK(rank != 2 || x[1] == 18);
    RANK_CHECK(nccl->broadcast(c, x, 2000, PK_F32, 2, NULL, &why) == PD_OK);
    RANK_CHECK(x[1] == 18);
    RANK_CHECK(nccl->all_gather(c, x, rows, 100, PK_F32, NULL, &why) == PD_OK);
    RANK_CHECK(rows[201] == 18);
    RANK_CHECK(nccl->reduce_scatter(c, rows, x, 100, PK_F32, NULL, &why) == PD_OK);
    RANK_CHECK(x[1] == 54);
    RANK_CHECK(nccl->barrier(c, NULL, &why) == PD_OK);
    RANK_CHECK(nccl->check(c, &why) == PD_OK);
    RANK_CHECK(nccl->waited_us(c) < 0); /* not measured */
    RANK_CHECK(nccl->all_reduce(c, x, x, 1, PK_U8, -1, NULL, &why) == PD_ERR_INVALID);
    nccl->close(c);
    return 0;
}

static int lose(int rank, int ranks, const void *id)
{
    struct pk_comm *c = join(rank, ranks, id);
    struct pd_why why = {""};
    int64_t began;

    RANK_CHECK(c);
    if (rank == 1) {
        *flag = 1;
        pause();
    }
    began = pd_clock_mono_us();
    while (nccl->check(c, &why) == PD_OK && pd_clock_mono_us() - began < 10000000)
        usleep(1000);
    RANK_CHECK(strstr(why.text, "rank 1 (process"));
    RANK_CHECK(nccl->broadcast(c, &began, 1, PK_F64, 0, NULL, &why) != PD_OK);
    RANK_CHECK(strstr(why.text, "rank 1 (process"));
    nccl->close(c);
    return 0;
}

static int give_up(int rank, int ranks, const void *id)
{
    struct pk_comm *c = join(rank, ranks, id);
    struct pd_why why = {""};
    int64_t began = pd_clock_mono_us();

    RANK_CHECK(c);
    if (rank == 1)
        nccl->abort(c, "no bread");
    while (nccl->check(c, &why) == PD_OK && pd_clock_mono_us() - began < 10000000)
        usleep(1000);
    RANK_CHECK(strstr(why.text, "no bread"));
    nccl->close(c);
    return 0;
}

/* As a run ends: the reason, then what was recorded, then the communicator; or, without an order, just that.
 */
static int leave_recorded(int rank, int ranks, const void *id)
{
    struct pk_comm *c = join(rank, ranks, id);
    void (*recorded)(int) = NULL;
    void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), *symbol;
    struct pd_why why = {""};
    int64_t began;

    alarm(30); /* who waits for the recorded steps waits for ever */
    RANK_CHECK(c && lib);
    symbol = dlsym(lib, "fake_nccl_recorded");
    memcpy(&recorded, &symbol, sizeof recorded);
    recorded(1);
    if (rank == 1)
        nccl->abort(c, "no bread");
    began = pd_clock_mono_us();
    while (nccl->check(c, &why) == PD_OK && pd_clock_mono_us() - began < 10000000)
        usleep(1000);
    RANK_CHECK(strstr(why.text, "no bread"));
    if (rank == 1) /* the other forgets it */
        recorded(0);
    nccl->close(c);
    return 0;
}

static void go(int ranks, rank_fn *fn, pid_t *pid)
{
    static uint8_t id[PK_COMM_ID_MAX];
    struct pd_why why;

    if (nccl->make_id(id, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (int i = 0; i < ranks; i++) {
        pid[i] = fork();
        if (!pid[i]) {
            alarm(60);
            _exit(fn(i, ranks, id));
        }
    }
}

static void test_the_plugin_says_who_it_is(void **state)
{
    (void)state;
    assert_string_equal(nccl->name, "nccl");
    assert_true(nccl->enqueues);
    assert_true(nccl->id_bytes <= PK_COMM_ID_MAX);
}

static void test_calls_reach_the_library(void **state)
{
    pid_t pid[3];

    (void)state;
    go(3, sums, pid);
    join_ranks(3, pid, NULL);
}

static void test_the_watchdog_names_a_rank_that_died(void **state)
{
    static const int want[2] = {0, -1};
    pid_t pid[2];

    (void)state;
    *flag = 0;
    go(2, lose, pid);
    while (!*flag)
        usleep(1000);
    kill(pid[1], SIGKILL);
    join_ranks(2, pid, want);
}

static void test_the_reason_of_an_abort_reaches_all(void **state)
{
    pid_t pid[2];

    (void)state;
    go(2, give_up, pid);
    join_ranks(2, pid, NULL);
}

static void test_nobody_waits_for_recorded_steps(void **state)
{
    pid_t pid[2];

    (void)state;
    go(2, leave_recorded, pid);
    join_ranks(2, pid, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_plugin_says_who_it_is),
                                       cmocka_unit_test(test_calls_reach_the_library),
                                       cmocka_unit_test(test_the_watchdog_names_a_rank_that_died),
                                       cmocka_unit_test(test_the_reason_of_an_abort_reaches_all),
                                       cmocka_unit_test(test_nobody_waits_for_recorded_steps)};
    struct pd_why why;

    (void)argc;
    if (!getenv("POLYD_TEST_NCCL")) { /* the loader reads its path at the start alone */
        setenv("POLYD_TEST_NCCL", "1", 1);
        setenv("LD_LIBRARY_PATH", FAKE_DIR, 1);
        execv("/proc/self/exe", argv);
    }
    if (pk_comm_load_nccl(PLUGIN, &nccl, &why) != PD_OK) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    flag = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
