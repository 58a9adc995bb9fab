/* Data sets from tiny files made here: what is read, in which order, and what is refused. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/path.h"
#include "daemon/worker/data/philox.h"
#include "tests/lib/batch.h"

static char folder[64];
static struct data_root root = {"box", folder};

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/polyd-data-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void put(const char *name, const void *bytes, size_t len, bool zip)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (zip) {
        gzFile f = gzopen(path, "wb");

        assert_non_null(f);
        assert_int_equal(gzwrite(f, bytes, (unsigned)len), len);
        assert_int_equal(gzclose(f), Z_OK);
    } else {
        FILE *f = fopen(path, "wb");

        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, len, f), len);
        assert_int_equal(fclose(f), 0);
    }
}

/* count pictures of 4 x 3; pixel p of picture i is i * 12 + p, label i % 10 */
static void put_mnist(const char *images, const char *labels, int count, bool zip)
{
    uint8_t *x = calloc(1, 16 + 12 * (size_t)count), *y = calloc(1, 8 + (size_t)count);
    const uint8_t head[] = {0, 0, 8, 3, 0, 0, 0, (uint8_t)count, 0, 0, 0, 4, 0, 0, 0, 3};
    const uint8_t label_head[] = {0, 0, 8, 1, 0, 0, 0, (uint8_t)count};

    memcpy(x, head, sizeof head);
    memcpy(y, label_head, sizeof label_head);
    for (int i = 0; i < 12 * count; i++)
        x[16 + i] = (uint8_t)i;
    for (int i = 0; i < count; i++)
        y[8 + i] = (uint8_t)(i % 10);
    put(images, x, 16 + 12 * (size_t)count, zip);
    put(labels, y, 8 + (size_t)count, zip);
    free(x);
    free(y);
}

static struct data_options options(enum data_dataset dataset, const char *path)
{
    return (struct data_options){
        .dataset = dataset, .path = path, .roots = &root, .root_count = 1, .context = 8};
}

static void test_philox_known_answers(void **state)
{
    /* Random123's kat_vectors for philox4x32-10 */
    uint32_t out[4];
    const uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
    const uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    const uint32_t a[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t b[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    const uint32_t c[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};

    (void)state;
    pd_philox(0, zero, out);
    assert_memory_equal(out, a, sizeof a);
    pd_philox(~(uint64_t)0, ones, out);
    assert_memory_equal(out, b, sizeof b);
    pd_philox(0x299f31d0a4093822, pi, out);
    assert_memory_equal(out, c, sizeof c);
}

static void test_mnist_plain_and_gzip_read_alike(void **state)
{
    struct data_options o = options(DATA_SET_MNIST, "box");
    struct data_set *set = NULL;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    struct pd_why why;

    (void)state;
    put_mnist("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte", 20, true);
    put_mnist("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte", 20,
              true); /* labels gzip'd without .gz */
    put_mnist("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte", 5, false);
    assert_int_equal(data_open(&o, true, &set, &why), PD_OK);
    assert_int_equal(data_info(set)->count[0], 20);
    assert_int_equal(data_info(set)->count[1], 5);
    set = data_free(set);
    assert_int_equal(data_open(&o, false, &set, &why), PD_OK);
    assert_int_equal(data_info(set)->height, 4);
    assert_int_equal(data_info(set)->width, 3);
    assert_int_equal(data_loader_start(set, DATA_VAL, 3, 0, 0, 1, &l, &why), PD_OK);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    assert_int_equal(b->used, 3);
    for (int i = 0; i < 36; i++)
        assert_int_equal(images_of(b)[i], i);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    assert_int_equal(b->used, 2);
    assert_int_equal(targets_of(b)[0], 3);
    assert_int_equal(targets_of(b)[2], DATA_IGNORE);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    assert_int_equal(b->used, 0);
    data_loader_free(l);
    data_free(set);
}

static void test_mnist_damaged_files_refused(void **state)
{
    struct data_options o = options(DATA_SET_MNIST, "box");
    struct data_set *set = NULL;
    uint8_t x[16 + 24] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 3},
                   y[10] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 2};
    char path[128];
    struct pd_why why;

    (void)state;
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_NOT_FOUND);
    put_mnist("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 2, false);
    put("train-labels-idx1-ubyte", y, sizeof y, false);
    put("train-images-idx3-ubyte", x, sizeof x - 1, false); /* short */
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_CORRUPT);
    put("train-images-idx3-ubyte", x, sizeof x, false);
    assert_int_equal(data_open(&o, false, &set, &why), PD_OK);
    set = data_free(set);
    x[3] = 2;
    put("train-images-idx3-ubyte", x, sizeof x, false); /* wrong axes */
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_CORRUPT);
    x[3] = 3;
    x[4] = 0xff;
    put("train-images-idx3-ubyte", x, sizeof x, false); /* 4 billion images */
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_LIMIT);
    x[4] = 0;
    x[7] = 1;
    put("train-images-idx3-ubyte", x, sizeof x, false); /* more bytes than promised */
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_CORRUPT);
    x[7] = 2;
    y[9] = 10;
    put("train-images-idx3-ubyte", x, sizeof x, false);
    put("train-labels-idx1-ubyte", y, sizeof y, false); /* no digit */
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_CORRUPT);
    y[9] = 9;
    y[7] = 1;
    put("train-labels-idx1-ubyte", y, sizeof y - 1, false); /* fewer labels than images */
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_CORRUPT);
    y[7] = 2;
    put("train-labels-idx1-ubyte", y, sizeof y, false);
    put("train-images-idx3-ubyte", x, sizeof x, true);
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte", folder);
    {
        struct stat s;

        assert_int_equal(stat(path, &s), 0);
        assert_int_equal(truncate(path, s.st_size - 4), 0); /* gzip without its trailer */
    }
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_CORRUPT);
}

static void test_path_nothing_outside_the_root(void **state)
{
    struct data_root two[2] = {root, {"other", "/nonexistent"}};
    char path[256];
    struct pd_why why;
    int fd = -1, dir;

    (void)state;
    put("inside.txt", "x", 1, false);
    snprintf(path, sizeof path, "%s/out", folder);
    assert_int_equal(symlink("/etc", path), 0);
    snprintf(path, sizeof path, "%s/passwd", folder);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/sub", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(data_path_open(two, 2, "box/inside.txt", false, &fd, &why), PD_OK);
    close(fd);
    assert_int_equal(data_path_open(two, 2, "box//sub/", true, &fd, &why), PD_OK);
    close(fd);
    assert_int_equal(data_path_open(two, 2, "box", true, &fd, &why), PD_OK);
    close(fd);
    assert_int_equal(data_path_open(two, 2, "box/../x", false, &fd, &why), PD_ERR_DENIED);
    assert_int_equal(data_path_open(two, 2, "box/sub/..", true, &fd, &why), PD_ERR_DENIED);
    assert_int_equal(data_path_open(two, 2, "box/out/passwd", false, &fd, &why), PD_ERR_DENIED);
    assert_int_equal(data_path_open(two, 2, "box/passwd", false, &fd, &why), PD_ERR_DENIED);
    assert_int_equal(data_path_open(two, 2, "box/pipe", false, &fd, &why), PD_ERR_INVALID);
    assert_int_equal(data_path_open(two, 2, "box/sub", false, &fd, &why), PD_ERR_INVALID);
    assert_int_equal(data_path_open(two, 2, "box/none", false, &fd, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(data_path_open(two, 2, "other/x", false, &fd, &why), PD_ERR_IO);
    assert_int_equal(data_path_open(two, 2, "bo/x", false, &fd, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(data_path_open(two, 2, "/etc/passwd", false, &fd, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(data_path_open(two, 2, NULL, false, &fd, &why), PD_ERR_INVALID);
    /* the walk that stands in where openat2 is missing */
    dir = open(folder, O_PATH | O_DIRECTORY);
    fd = data_walk_beneath(dir, "inside.txt", O_RDONLY);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(data_walk_beneath(dir, "out/passwd", O_RDONLY), -1);
    assert_int_equal(errno, EXDEV);
    assert_int_equal(data_walk_beneath(dir, "passwd", O_RDONLY), -1);
    assert_int_equal(errno, EXDEV);
    assert_int_equal(data_walk_beneath(dir, "sub/../../x", O_RDONLY), -1);
    assert_int_equal(errno, EXDEV);
    close(dir);
}

static void test_order_each_sample_once_an_epoch_and_resumable(void **state)
{
    struct data_options o = options(DATA_SET_DIGITS_GEN, NULL);
    struct data_set *set = NULL;
    struct data_loader *l = NULL, *late = NULL;
    const struct data_batch *b, *c;
    int order[2][40], seen[2][10] = {{0}};
    struct pd_why why;

    (void)state;
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = 40;
    o.val_count = 10;
    o.crop = DATA_CROP_PAD;
    o.shift = 2;
    assert_int_equal(data_open(&o, false, &set, &why), PD_OK);
    assert_int_equal(data_steps_per_epoch(set, 8), 5);
    assert_int_equal(data_loader_start(set, DATA_TRAIN, 8, 7, 0, 1, &l, &why), PD_OK);
    assert_int_equal(data_loader_start(set, DATA_TRAIN, 8, 7, 6, 1, &late, &why), PD_OK);
    for (int k = 0; k < 10; k++) {
        assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
        assert_int_equal(b->used, 8);
        assert_int_equal(b->epoch, k / 5);
        for (int i = 0; i < 8; i++) {
            order[k / 5][k % 5 * 8 + i] = targets_of(b)[i];
            seen[k / 5][targets_of(b)[i]]++;
        }
        if (k >= 6) { /* what a resumed run gets */
            if (k == 7)
                usleep(20000); /* whatever the timing */
            assert_int_equal(data_loader_next(late, &c, &why), PD_OK);
            assert_memory_equal(images_of(b), images_of(c), 8 * 784);
            assert_memory_equal(targets_of(b), targets_of(c), 8 * sizeof(int32_t));
        }
    }
    for (int d = 0; d < 10; d++) {
        assert_int_equal(seen[0][d], 4);
        assert_int_equal(seen[1][d], 4);
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    data_loader_free(l);
    data_loader_free(late);
    assert_int_equal(data_loader_start(set, DATA_TRAIN, 41, 7, 0, 1, &l, &why), PD_ERR_INVALID);
    data_free(set);
}

static void test_shift_moves_and_pads_with_black(void **state)
{
    struct data_options o = options(DATA_SET_MNIST, "box");
    uint8_t x[16 + 12] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 3}, y[9] = {0, 0, 8, 1, 0, 0, 0, 1, 0};
    struct data_set *set = NULL;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    bool places[9] = {false};
    struct pd_why why;

    (void)state;
    x[16 + 4] = 255; /* row 1, column 1 */
    put("train-images-idx3-ubyte", x, sizeof x, false);
    put("train-labels-idx1-ubyte", y, sizeof y, false);
    put_mnist("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 2, false);
    o.crop = DATA_CROP_PAD;
    o.shift = 1;
    assert_int_equal(data_open(&o, false, &set, &why), PD_OK);
    assert_int_equal(data_loader_start(set, DATA_TRAIN, 1, 1, 0, 1, &l, &why), PD_OK);
    for (int k = 0; k < 200; k++) {
        int lit = -1;

        assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
        for (int i = 0; i < 12; i++)
            if (images_of(b)[i]) {
                assert_int_equal(lit, -1);
                lit = i;
            }
        assert_in_range(lit, 0, 8); /* rows 0..2, columns 0..2 */
        places[lit] = true;
    }
    for (int i = 0; i < 9; i++)
        assert_true(places[i]);
    data_loader_free(l);
    data_free(set);
}

static void test_text_windows_and_split(void **state)
{
    struct data_options o = options(DATA_SET_TEXT, "box/t");
    struct data_set *set = NULL;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    uint8_t text[250];
    struct pd_why why;
    int first = -1;
    bool moved = false;

    (void)state;
    for (int i = 0; i < 250; i++)
        text[i] = (uint8_t)i;
    put("t", text, sizeof text, false);
    o.rule = DATA_SPLIT_FRACTION;
    o.train_share = 0.8;
    o.val_share = 0.2;
    assert_int_equal(data_open(&o, false, &set, &why), PD_OK);
    assert_int_equal(data_info(set)->tokens[0], 200);
    assert_int_equal(data_info(set)->tokens[1], 50);
    assert_int_equal(data_info(set)->count[0], 199 / 8);
    assert_int_equal(data_info(set)->count[1], 49 / 8);
    assert_int_equal(data_loader_start(set, DATA_VAL, 4, 0, 0, 1, &l, &why), PD_OK);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    for (int i = 0; i < 32; i++) {
        assert_int_equal(tokens_of(b)[i], 200 + i);
        assert_int_equal(targets_of(b)[i], 201 + i);
    }
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    assert_int_equal(b->used, 2);
    assert_int_equal(targets_of(b)[16], DATA_IGNORE);
    l = data_loader_free(l);
    assert_int_equal(data_loader_start(set, DATA_TRAIN, 24, 3, 0, 1, &l, &why), PD_OK);
    for (int epoch = 0; epoch < 20; epoch++) {
        int low = 999;

        assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
        for (int w = 0; w < 24; w++)
            for (int i = 0; i < 8; i++) {
                assert_true(tokens_of(b)[8 * w + i] < 199);
                assert_int_equal(targets_of(b)[8 * w + i], tokens_of(b)[8 * w + i] + 1);
                if (i == 0 && tokens_of(b)[8 * w] < low)
                    low = tokens_of(b)[8 * w];
            }
        moved |= first >= 0 && low != first;
        first = low;
    }
    assert_true(moved); /* the grid begins elsewhere in other epochs */
    l = data_loader_free(l);
    set = data_free(set);
    o.val_share = 0.01;
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_INVALID); /* shorter than a window */
    o.val_share = 0.3;
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_INVALID); /* more than all */
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = 200;
    o.val_count = 51;
    assert_int_equal(data_open(&o, false, &set, &why), PD_ERR_INVALID);
}

static void test_digits_pure_function_and_distinct(void **state)
{
    uint8_t a[784], b[784];

    (void)state;
    for (int d = 0; d < 10; d++) {
        int lit = 0, edge = 0;

        data_digit_draw(1, d, d, a);
        data_digit_draw(1, d, d, b);
        assert_memory_equal(a, b, sizeof a);
        data_digit_draw(1, d + 10, d, b);
        assert_memory_not_equal(a, b, sizeof a);
        data_digit_draw(2, d, d, b);
        assert_memory_not_equal(a, b, sizeof a);
        for (int i = 0; i < 784; i++) {
            lit += a[i] > 127;
            edge += (i < 28 || i >= 756) && a[i];
        }
        assert_in_range(lit, 25, 260);
        assert_int_equal(edge, 0);
    }
}

static void test_mnist_real_set_first_labels(void **state)
{
    static const int32_t test[] = {7, 2, 1, 0, 4, 1, 4, 9, 5, 9};
    const char *shared = getenv("POLYD_SHARED");
    struct data_root real = {"shared", shared ? shared : ""};
    struct data_options o = {
        .dataset = DATA_SET_MNIST, .path = "shared/data/mnist", .roots = &real, .root_count = 1};
    struct data_set *set = NULL;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    struct pd_why why;

    (void)state;
    if (!shared || data_open(&o, false, &set, &why) != PD_OK) {
        print_message("skipped: POLYD_SHARED does not name a folder with data/mnist\n");
        skip();
    }
    assert_int_equal(data_info(set)->count[0], 10000);
    assert_int_equal(data_info(set)->count[1], 2000);
    assert_int_equal(data_loader_start(set, DATA_VAL, 10, 0, 0, 1, &l, &why), PD_OK);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    assert_memory_equal(targets_of(b), test, sizeof test);
    l = data_loader_free(l);
    set = data_free(set);
    o.rule = DATA_SPLIT_FRACTION; /* pooled */
    o.train_share = 0.5;
    o.val_share = 0.25;
    assert_int_equal(data_open(&o, false, &set, &why), PD_OK);
    assert_int_equal(data_info(set)->count[0], 6000);
    assert_int_equal(data_info(set)->count[1], 3000);
    data_free(set);
}

/* The reaction equation from its other end: u / (1 - u) grows by e^(c t). */
static void test_reaction_stays_a_number_whatever_its_coefficient(void **state)
{
    static const double c[] = {-1000, -5, 5, 1000};
    const double pi = acos(-1);

    (void)state;
    for (size_t k = 0; k < sizeof c / sizeof *c; k++)
        for (int b = 0; b <= 100; b++)
            for (int a = 0; a <= 100; a++) {
                const double x = 2 * pi * b / 100, t = a / 100.0,
                             u = data_equation_exact(DATA_EQUATION_REACTION, c[k], x, t),
                             odds = (x - pi) * (x - pi) / (2 * pi * pi / 16),
                             want = 1 / (1 + expm1(odds) * exp(-c[k] * t));

                if (b == 50)
                    assert_true(u == 1);
                else
                    assert_true(fabs(u - want) <= 1e-12);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_philox_known_answers),
        T(test_mnist_plain_and_gzip_read_alike),
        T(test_mnist_damaged_files_refused),
        T(test_path_nothing_outside_the_root),
        T(test_order_each_sample_once_an_epoch_and_resumable),
        T(test_shift_moves_and_pads_with_black),
        T(test_text_windows_and_split),
        T(test_reaction_stays_a_number_whatever_its_coefficient),
        T(test_digits_pure_function_and_distinct),
        T(test_mnist_real_set_first_labels),
#undef T
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
