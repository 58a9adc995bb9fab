/* Which samples are trained on and which validate: every picture is known by its pixels, so the parts can be
 * listed. */
#include "tests/data/box.h"

enum { SIDE = 8, PIXELS = SIDE * SIDE, TRAINING = 37, TESTING = 27 };

/* Picture i is lit in one pixel, the i-th; its label is i % 10. */
static void put_pictures(const char *images, const char *labels, int first, int count)
{
    uint8_t *x = calloc(1, 16 + (size_t)count * PIXELS),
            y[8 + PIXELS] = {0, 0, 8, 1, 0, 0, 0, (uint8_t)count};
    const uint8_t head[] = {0, 0, 8, 3, 0, 0, 0, (uint8_t)count, 0, 0, 0, SIDE, 0, 0, 0, SIDE};

    assert_non_null(x);
    memcpy(x, head, sizeof head);
    for (int i = 0; i < count; i++) {
        x[16 + i * PIXELS + first + i] = 255;
        y[8 + i] = (uint8_t)((first + i) % 10);
    }
    put(images, x, 16 + (size_t)count * PIXELS, false);
    put(labels, y, 8 + (size_t)count, false);
    free(x);
}

static struct data_options options(void)
{
    put_pictures("set/train-images-idx3-ubyte", "set/train-labels-idx1-ubyte", 0, TRAINING);
    put_pictures("set/t10k-images-idx3-ubyte", "set/t10k-labels-idx1-ubyte", TRAINING, TESTING);
    return (struct data_options){
        .dataset = DATA_SET_MNIST, .path = "box/set", .roots = &box_root, .root_count = 1};
}

/* The pictures of a part, each by its lit pixel, in the order of the loader; -1 for one that is not lit once.
 */
static void list_part(const struct data_options *o, enum data_split split, int64_t epoch, int *ret, int count)
{
    struct data_set *set = NULL;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    struct pd_why why = {""};

    want_open(o, &set);
    assert_int_equal(data_info(set)->count[split], count);
    assert_int_equal(data_loader_start(set, split, count, 1, epoch, 1, &l, &why), PD_OK);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    assert_int_equal(b->used, count);
    for (int i = 0; i < count; i++) {
        ret[i] = -1;
        for (int p = 0; p < PIXELS; p++)
            if (images_of(b)[i * PIXELS + p])
                ret[i] = ret[i] < 0 ? p : -1;
        assert_in_range(ret[i], 0, PIXELS - 1);
        if (!o->flip)
            assert_int_equal(targets_of(b)[i], ret[i] % 10);
    }
    data_loader_free(l);
    data_free(set);
}

/* How many of the pictures are in both lists. */
static int shared(const int *a, int n, const int *b, int m)
{
    int count = 0;

    for (int i = 0; i < n; i++)
        for (int k = 0; k < m; k++)
            count += a[i] == b[k];
    return count;
}

static int count_below(const int *a, int n, int limit)
{
    int count = 0;

    for (int i = 0; i < n; i++)
        count += a[i] < limit;
    return count;
}

static void test_given_parts_are_the_files_own(void **state)
{
    struct data_options o = options();
    int train[TRAINING], val[TESTING];

    (void)state;
    o.rule = DATA_SPLIT_GIVEN;
    list_part(&o, DATA_TRAIN, 0, train, TRAINING);
    list_part(&o, DATA_VAL, 0, val, TESTING);
    assert_int_equal(count_below(train, TRAINING, TRAINING), TRAINING);
    for (int i = 0; i < TESTING; i++)
        assert_int_equal(val[i], TRAINING + i);
    assert_int_equal(shared(train, TRAINING, train, TRAINING), TRAINING); /* each once */
}

static void test_fractions_share_no_picture_and_follow_the_seed(void **state)
{
    struct data_options o = options();
    int train[32], val[16], again[16];

    (void)state;
    o.rule = DATA_SPLIT_FRACTION;
    o.train_share = 0.5;
    o.val_share = 0.25;
    o.seed = 5;
    list_part(&o, DATA_TRAIN, 0, train, 32);
    list_part(&o, DATA_VAL, 0, val, 16);
    assert_int_equal(shared(train, 32, val, 16), 0);
    assert_int_equal(shared(train, 32, train, 32), 32);
    assert_int_equal(shared(val, 16, val, 16), 16);
    /* A choice among all pictures: neither part is the beginning of the set. */
    assert_in_range(count_below(train, 32, 32), 8, 24);
    assert_in_range(count_below(val, 16, 32), 1, 15);
    list_part(&o, DATA_VAL, 0, again, 16);
    assert_memory_equal(val, again, sizeof val);
    o.seed = 6;
    list_part(&o, DATA_VAL, 0, again, 16);
    assert_true(shared(val, 16, again, 16) < 16);
}

/* Of a pool the test part is what the others leave; of a set that tells its parts, the second one whole. */
static void test_scored_parts_are_test_training_or_validation(void **state)
{
    struct data_options o = options();
    int train[32], val[16], rest[16], test[TESTING], again[32];

    (void)state;
    o.rule = DATA_SPLIT_FRACTION;
    o.train_share = 0.5;
    o.val_share = 0.25;
    o.seed = 5;
    list_part(&o, DATA_TRAIN, 0, train, 32);
    list_part(&o, DATA_VAL, 0, val, 16);
    o.scored = DATA_SCORED_TEST;
    list_part(&o, DATA_VAL, 0, rest, 16);
    assert_int_equal(shared(rest, 16, train, 32) + shared(rest, 16, val, 16), 0);
    assert_int_equal(shared(rest, 16, rest, 16), 16);
    o.scored = DATA_SCORED_TRAIN;
    list_part(&o, DATA_VAL, 0, again, 32);
    assert_int_equal(shared(again, 32, train, 32), 32);
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = 10;
    o.val_count = 20;
    o.scored = DATA_SCORED_TEST;
    list_part(&o, DATA_VAL, 0, test, TESTING);
    for (int i = 0; i < TESTING; i++)
        assert_int_equal(test[i], TRAINING + i);
    o.rule = DATA_SPLIT_FRACTION;
    o.val_share = 0.5;
    want_refused(&o, PD_ERR_INVALID, "#/split");
}

static void test_counts_are_drawn_from_each_file_of_its_own(void **state)
{
    struct data_options o = options();
    int train[10], val[20];

    (void)state;
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = 10;
    o.val_count = 20;
    o.seed = 3;
    list_part(&o, DATA_TRAIN, 0, train, 10);
    list_part(&o, DATA_VAL, 0, val, 20);
    assert_int_equal(count_below(train, 10, TRAINING), 10);
    assert_int_equal(count_below(val, 20, TRAINING), 0);
    assert_int_equal(shared(train, 10, train, 10), 10);
    assert_true(count_below(train, 10, 10) < 10); /* not the first ten */
}

static void test_generated_parts_share_no_digit(void **state)
{
    struct data_options o = {.dataset = DATA_SET_DIGITS_GEN,
                             .rule = DATA_SPLIT_COUNT,
                             .train_count = 30,
                             .val_count = 30,
                             .seed = 9};
    struct data_set *set = NULL;
    size_t len[2];
    char *part[2];

    (void)state;
    want_open(&o, &set);
    part[0] = draw(set, DATA_TRAIN, 30, 0, 1, 1, &len[0]);
    part[1] = draw(set, DATA_VAL, 30, 0, 1, 1, &len[1]);
    for (int i = 0; i < 30; i++)
        for (int k = 0; k < 30; k++)
            assert_memory_not_equal(part[0] + i * 784, part[1] + k * 784, 784);
    free(part[0]);
    free(part[1]);
    data_free(set);
}

/* What is done to pictures in training is not done to them in validation. */
static void test_validation_is_not_augmented(void **state)
{
    struct data_options o = options();
    int plain[TESTING], val[TESTING];

    (void)state;
    o.rule = DATA_SPLIT_GIVEN;
    list_part(&o, DATA_VAL, 0, plain, TESTING);
    o.flip = 1;
    list_part(&o, DATA_VAL, 0, val, TESTING);
    assert_memory_equal(plain, val, sizeof val);
    o.flip = 0;
    o.crop = DATA_CROP_PAD;
    o.shift = 3;
    list_part(&o, DATA_VAL, 0, val, TESTING);
    assert_memory_equal(plain, val, sizeof val);
}

/* Flips with the probability asked for, drawn anew for each picture and each epoch. */
static void test_flips_come_as_often_as_asked_for(void **state)
{
    struct data_options o = options();
    int pattern[64][TRAINING], flipped = 0;

    (void)state;
    o.rule = DATA_SPLIT_GIVEN;
    o.flip = 0.25;
    for (int epoch = 0; epoch < 64; epoch++) {
        struct data_set *set = NULL;
        struct data_loader *l = NULL;
        const struct data_batch *b;
        struct pd_why why = {""};

        want_open(&o, &set);
        assert_int_equal(data_loader_start(set, DATA_TRAIN, TRAINING, 1, epoch, 1, &l, &why), PD_OK);
        assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
        for (int i = 0; i < TRAINING; i++) {
            int at = 0;

            while (!images_of(b)[i * PIXELS + at])
                at++;
            /* The label tells the picture up to tens, its row the rest: 8 rows of 8. */
            pattern[epoch][i] = at % 10 != targets_of(b)[i];
            flipped += pattern[epoch][i];
        }
        data_loader_free(l);
        data_free(set);
    }
    /* 2368 draws at 1/4: six standard deviations are 126. */
    assert_in_range(flipped, 592 - 126, 592 + 126);
    for (int epoch = 1; epoch < 64; epoch++)
        assert_memory_not_equal(pattern[0], pattern[epoch], sizeof pattern[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_given_parts_are_the_files_own, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fractions_share_no_picture_and_follow_the_seed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_scored_parts_are_test_training_or_validation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_counts_are_drawn_from_each_file_of_its_own, setup, teardown),
        cmocka_unit_test_setup_teardown(test_generated_parts_share_no_digit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_validation_is_not_augmented, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flips_come_as_often_as_asked_for, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
