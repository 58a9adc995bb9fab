/* Two ranks on one GPU: their sums go through the host, and the trajectory is that of one process.
 *
 * A child of a process that has begun with a GPU cannot use it: so each test is a process of its own, and in
 * it ranks come before the one process that they are compared with. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/device.h"
#include "tests/train/rig.h"

static const char *job(int ranks, const char *more)
{
    static char text[2][1024];
    static int next;
    char *to = text[next++ % 2];

    snprintf(to, sizeof text[0],
             "{\"model\":{\"preset\":\"vit_micro\",\"width\":16,\"depth\":1,\"heads\":1,\"patch\":14,"
             "\"mlp_ratio\":2},\"attention\":{\"activation\":\"poly\",\"degree\":3,\"scale\":\"learned\"},"
             "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":16,\"val\":5}},"
             "\"diagnostics\":{\"every\":0},\"resources\":{\"device\":\"cpu\",\"threads\":1,\"slots\":%d},"
             "\"train\":{\"steps\":5,\"batch\":4,\"eval_every\":5,\"clip_norm\":0.5%s}}",
             ranks, more);
    return to;
}

static void check(const char *one_more, const char *many_more)
{
    struct book one = {0}, many = {0};
    struct train_outcome out;
    struct pd_why why;

    clear();
    if (run_ranks(2, job(2, many_more), &many, NULL, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(out.result, TRAIN_DONE);
    clear();
    if (run(job(1, one_more), &one, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    near_points(&one, &many, 1e-3);
    close_book(&one);
    close_book(&many);
}

static void test_two_ranks_share_a_gpu(void **state)
{
    (void)state;
    check(",\"dropout\":0.1", ",\"dropout\":0.1");
}

static void test_two_ranks_share_a_gpu_and_the_moments(void **state)
{
    (void)state;
    check(",\"accumulation\":2", ",\"accumulation\":2,\"zero\":1");
}

#define TEST(f)                                                                                              \
    {                                                                                                        \
#f, f                                                                                                \
    }

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        CMUnitTestFunction f;
    } all[] = {TEST(test_two_ranks_share_a_gpu), TEST(test_two_ranks_share_a_gpu_and_the_moments)};
    int failed = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct CMUnitTest test[1] = {{.name = all[i].name, .test_func = all[i].f}};
        int status = 0;
        pid_t pid;

        if (argc > 1 && strcmp(argv[1], all[i].name) == 0) {
            run_api = gpu_api();
            return cmocka_run_group_tests(test, setup, teardown);
        }
        if (argc > 1)
            continue;
        fflush(NULL);
        pid = fork();
        if (!pid) {
            execl("/proc/self/exe", argv[0], all[i].name, (char *)NULL);
            _exit(127);
        }
        failed += pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
    }
    return failed;
}
