/* tests/data/test_data_sequences.c: expressions and pictures that polyd makes, each solved anew from what is written. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/worker/data/sequences.h"

/* ---- ListOps ---- */

static int less(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Reads one node from *at on; *depth becomes the most levels. */
static int value_of(char **at, int level, int *depth)
{
    char *word = strsep(at, " ");
    int x[16], n = 0, sum = 0;

    if (level > *depth)
        *depth = level;
    if (word[0] != '[')
        return atoi(word);
    while ((*at)[0] != ']')
        x[n++] = value_of(at, level + 1, depth);
    (void)strsep(at, " ");
    assert_in_range(n, 2, 10);
    qsort(x, (size_t)n, sizeof *x, less);
    for (int i = 0; i < n; i++)
        sum += x[i];
    if (!strcmp(word, "[MIN"))
        return x[0];
    if (!strcmp(word, "[MAX"))
        return x[n - 1];
    return strcmp(word, "[MED") ? sum % 10 : (x[(n - 1) / 2] + x[n / 2]) / 2;
}

static void test_listops_values_are_those_of_the_text(void **state)
{
    const struct data_sequences s = {
        .kind = DATA_SET_LISTOPS_GEN, .seed = 7, .context = 128, .shortest = 5, .depth = 3};
    struct pd_buf text;
    struct pd_why why;
    int deepest = 0, of_class[10] = {0};

    (void)state;
    pd_buf_init(&text, 0);
    for (uint64_t i = 0; i < 2000; i++) {
        int class = -1, depth = 0, words = 1;
        char *copy, *at;

        assert_int_equal(data_sequence_make(&s, i, &text, &class, &why), PD_OK);
        assert_int_equal(text.data[0], '['); /* the root is an operator */
        for (size_t k = 0; k < text.len; k++)
            words += text.data[k] == ' ';
        assert_in_range(words, 5, 128);
        at = copy = strndup(text.data, text.len);
        assert_int_equal(value_of(&at, 1, &depth), class);
        assert_true(depth <= 3);
        deepest = depth > deepest ? depth : deepest;
        of_class[class]++;
        free(copy);
    }
    assert_int_equal(deepest, 3);
    for (int c = 0; c < 10; c++)
        assert_in_range(of_class[c], 100, 500); /* none is rare, and none is most of them */
    pd_buf_done(&text);
}

static void test_listops_refuses_a_length_that_never_comes(void **state)
{
    const struct data_sequences s = {
        .kind = DATA_SET_LISTOPS_GEN, .seed = 7, .context = 128, .shortest = 100, .depth = 2};
    struct pd_buf text;
    struct pd_why why;
    int class;

    (void)state;
    pd_buf_init(&text, 0);
    assert_int_equal(data_sequence_make(&s, 0, &text, &class, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "#/data/depth: expressions of 2 levels do not have 100 to 128 tokens"));
    pd_buf_done(&text);
}

static void test_listops_words_have_id_0_for_padding(void **state)
{
    struct data_tokenizer *t = NULL;
    struct data_ids ids = {0};
    struct pd_why why;

    (void)state;
    assert_int_equal(data_sequences_tokenizer(DATA_SET_LISTOPS_GEN, &t, &why), PD_OK);
    assert_int_equal(data_tokenizer_encode(t, "[MIN [MAX [MED [SM ] 0 9", 24, false, &ids, &why), PD_OK);
    assert_int_equal(ids.count, 7);
    for (int i = 0; i < 6; i++)
        assert_int_equal(ids.items[i], i + 1);
    assert_int_equal(ids.items[6], 15);
    free(ids.items);
    data_tokenizer_free(t);
}

/* ---- Pathfinder ---- */

#define SIDE 16
#define CELLS (SIDE * SIDE)
#define MARK 255

struct shown {
    int pixel[CELLS], group[CELLS];
    int mark[8];   /* middles */
    int of[CELLS]; /* the mark to which a cell belongs, from 1 */
};

static int apart(int a, int b)
{
    const int dy = abs(a / SIDE - b / SIDE), dx = abs(a % SIDE - b % SIDE);

    return dy > dx ? dy : dx;
}

/* Whether two lit cells are of one curve. Dashes bridge one dark cell; places of different curves are at least three cells
 * apart, and the arms of a mark reach one cell further. strict: so a mark touches what is of its own curve alone. */
static bool joined(const struct shown *p, int a, int b, bool strict)
{
    if (!strict || (!p->of[a] && !p->of[b]))
        return apart(a, b) <= 2;
    return apart(a, b) <= 1 && (!p->of[a] || !p->of[b] || p->of[a] == p->of[b]);
}

static void flood(struct shown *p, int at, bool strict)
{
    p->group[at] = 1;
    for (int to = 0; to < CELLS; to++)
        if (p->pixel[to] && !p->group[to] && joined(p, at, to, strict))
            flood(p, to, strict);
}

/* Whether the second mark belongs to what the first one does. */
static bool marks_meet(struct shown *p, bool strict)
{
    memset(p->group, 0, sizeof p->group);
    flood(p, p->mark[0], strict);
    return p->group[p->mark[1]];
}

static void read_picture(const struct pd_buf *text, int pixel[CELLS])
{
    const char *at = text->data;
    char *end = NULL;

    for (int i = 0; i < CELLS; i++, at = end)
        pixel[i] = (int)strtol(at, &end, 10);
    assert_ptr_equal(end, text->data + text->len);
}

/* The middles of the two crosses; they may touch, which makes others possible: only two clear ones are taken. */
static int marks_of(const int *pixel, int ret[8])
{
    int n = 0;

    for (int y = 1; y < SIDE - 1; y++)
        for (int x = 1; x < SIDE - 1; x++) {
            const int at = y * SIDE + x;

            if (pixel[at] == MARK && pixel[at - 1] == MARK && pixel[at + 1] == MARK &&
                pixel[at - SIDE] == MARK && pixel[at + SIDE] == MARK && n < 8)
                ret[n++] = at;
        }
    return n;
}

/* Class 1: dashes lead from mark to mark. Class 0: none do, where a mark is not taken for a bridge. */
static void test_pathfinder_marks_of_class_1_alone_are_joined(void **state)
{
    static const int contours[] = {2, 4, 5};

    (void)state;
    for (size_t c = 0; c < sizeof contours / sizeof *contours; c++) {
        const struct data_sequences s = {
            .kind = DATA_SET_PATHFINDER_GEN, .seed = 3, .context = CELLS, .contour = contours[c]};
        int judged[2] = {0}, strictly = 0, ones = 0;
        struct pd_buf text;
        struct pd_why why;

        pd_buf_init(&text, 0);
        for (uint64_t i = 0; i < 1000; i++) {
            static const int arms[] = {0, 1, -1, SIDE, -SIDE};
            struct shown p;
            int class = -1;

            memset(&p, 0, sizeof p);
            assert_int_equal(data_sequence_make(&s, i, &text, &class, &why), PD_OK);
            assert_true(class == 0 || class == 1);
            ones += class;
            read_picture(&text, p.pixel);
            if (marks_of(p.pixel, p.mark) != 2)
                continue;
            for (int k = 0; k < 10; k++)
                p.of[p.mark[k / 5] + arms[k % 5]] = 1 + k / 5;
            judged[class]++;
            if (class)
                assert_true(marks_meet(&p, false));
            if (!class)
                assert_false(marks_meet(&p, true));
            strictly += class && marks_meet(&p, true);
        }
        print_message("%d dashes: %d and %d judged, %d of class 1 joined strictly\n", contours[c], judged[0],
                      judged[1], strictly);
        assert_true(judged[0] > 400 && judged[1] > 400);
        assert_true(10 * strictly > judged[1]); /* the strict reading does see some curves */
        assert_in_range(ones, 430, 570);        /* 4.4 deviations of a fair coin */
        pd_buf_done(&text);
    }
}

#define TRAINED 3000
#define HELD 2000
#define COUNTS (2 * SIDE + 1)
#define ROUNDS 200

/* Lit pixels of each row, each column and all; class, and for a check of the check which half has more. */
static void count_pixels(const struct data_sequences *s, uint64_t number, double x[COUNTS], int class[2])
{
    int pixel[CELLS], upper = 0;
    struct pd_buf text;
    struct pd_why why;

    pd_buf_init(&text, 0);
    assert_int_equal(data_sequence_make(s, number, &text, &class[0], &why), PD_OK);
    read_picture(&text, pixel);
    memset(x, 0, COUNTS * sizeof *x);
    for (int i = 0; i < CELLS; i++)
        if (pixel[i]) {
            x[i / SIDE]++;
            x[SIDE + i % SIDE]++;
            x[2 * SIDE]++;
            upper += i / SIDE < SIDE / 2 ? 1 : -1;
        }
    class[1] = upper > 0;
    pd_buf_done(&text);
}

/* The share of held-out pictures that a logistic regression gets right: gradient descent on standardised counts. */
static double judged_by_counts(double (*x)[COUNTS], int (*class)[2], int which)
{
    double w[COUNTS + 1] = {0}, mean[COUNTS] = {0}, dev[COUNTS] = {0};
    int right = 0;

    for (int c = 0; c < COUNTS; c++) {
        for (int i = 0; i < TRAINED; i++)
            mean[c] += x[i][c] / TRAINED;
        for (int i = 0; i < TRAINED; i++)
            dev[c] += (x[i][c] - mean[c]) * (x[i][c] - mean[c]) / TRAINED;
        dev[c] = dev[c] > 0 ? sqrt(dev[c]) : 1;
    }
    for (int i = 0; i < TRAINED + HELD; i++)
        for (int c = 0; c < COUNTS; c++)
            x[i][c] = (x[i][c] - mean[c]) / dev[c];
    for (int round = 0; round < ROUNDS; round++) {
        double g[COUNTS + 1] = {0};

        for (int i = 0; i < TRAINED; i++) {
            double z = w[COUNTS], off;

            for (int c = 0; c < COUNTS; c++)
                z += w[c] * x[i][c];
            off = 1 / (1 + exp(-z)) - class[i][which];
            for (int c = 0; c < COUNTS; c++)
                g[c] += off * x[i][c] / TRAINED;
            g[COUNTS] += off / TRAINED;
        }
        for (int c = 0; c <= COUNTS; c++)
            w[c] -= 0.5 * g[c];
    }
    for (int i = TRAINED; i < TRAINED + HELD; i++) {
        double z = w[COUNTS];

        for (int c = 0; c < COUNTS; c++)
            z += w[c] * x[i][c];
        right += (z > 0) == class[i][which];
    }
    return (double)right / HELD;
}

static void test_pathfinder_classes_are_not_told_by_counts(void **state)
{
    static double x[TRAINED + HELD][COUNTS];
    static int class[TRAINED + HELD][2];
    static const int contours[] = {2, 4};

    (void)state;
    for (size_t c = 0; c < sizeof contours / sizeof *contours; c++) {
        const struct data_sequences s = {
            .kind = DATA_SET_PATHFINDER_GEN, .seed = 11, .context = CELLS, .contour = contours[c]};
        double share, halves;

        for (int i = 0; i < TRAINED + HELD; i++)
            count_pixels(&s, (uint64_t)i + (i < TRAINED ? 0 : 1ull << 33), x[i], class[i]);
        share = judged_by_counts(x, class, 0);
        halves = judged_by_counts(x, class, 1);
        print_message("%d dashes: by counts %.4f, halves %.4f\n", contours[c], share, halves);
        assert_true(share < 0.53);
        assert_true(halves > 0.95); /* it does tell what counts tell */
    }
}

static void test_pathfinder_needs_a_square(void **state)
{
    struct data_sequences s = {.kind = DATA_SET_PATHFINDER_GEN, .context = 250, .contour = 4};
    struct pd_why why;

    (void)state;
    assert_int_equal(data_sequences_check(&s, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "#/data/context: 250 tokens are no square picture"));
    s.context = 1024;
    assert_int_equal(data_sequences_check(&s, &why), PD_OK);
    assert_int_equal(data_sequences_side(256), 16);
    assert_int_equal(data_sequences_side(225), 0);
}

static void test_pathfinder_refuses_curves_that_do_not_fit(void **state)
{
    struct data_sequences s = {.kind = DATA_SET_PATHFINDER_GEN, .context = CELLS, .contour = 1};
    struct pd_buf text;
    struct pd_why why;
    int class;

    (void)state;
    assert_int_equal(data_sequences_check(&s, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "#/data/contour: 1 dashes; must be 2 to 32"));
    s.contour = 32;
    assert_int_equal(data_sequences_check(&s, &why), PD_OK);
    pd_buf_init(&text, 0);
    assert_int_equal(data_sequence_make(&s, 0, &text, &class, &why), PD_ERR_INVALID);
    assert_non_null(
        strstr(why.text, "#/data/contour: two curves of 32 dashes do not fit a picture of 16 x 16"));
    pd_buf_done(&text);
}

/* A small training part lacks classes that others have: they are classes nevertheless, as in a dry run. */
static void test_made_sets_have_all_classes(void **state)
{
    struct data_options o = {.rule = DATA_SPLIT_STANDARD, .min_tokens = 5, .depth = 3, .contour = 2};
    struct pd_why why = {""};

    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (uint64_t seed = 0; seed < 20; seed++)
            for (int headers = 0; headers < 2; headers++) {
                struct data_set *set = NULL;
                char name[16];

                o.dataset = kind ? DATA_SET_PATHFINDER_GEN : DATA_SET_LISTOPS_GEN;
                o.context = kind ? 256 : 64;
                o.seed = seed;
                for (int part = 0; part < DATA_SPLITS; part++)
                    o.amount[part] = kind ? 2 : 32;
                if (data_open(&o, headers, &set, &why) != PD_OK)
                    fail_msg("seed %d: %s", (int)seed, why.text);
                assert_int_equal(data_info(set)->classes, kind ? 2 : 10);
                for (int c = 0; c < data_info(set)->classes; c++) {
                    snprintf(name, sizeof name, "%d", c);
                    assert_string_equal(data_info(set)->class_names[c], name);
                }
                data_free(set);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_listops_values_are_those_of_the_text),
        cmocka_unit_test(test_listops_refuses_a_length_that_never_comes),
        cmocka_unit_test(test_listops_words_have_id_0_for_padding),
        cmocka_unit_test(test_made_sets_have_all_classes),
        cmocka_unit_test(test_pathfinder_marks_of_class_1_alone_are_joined),
        cmocka_unit_test(test_pathfinder_classes_are_not_told_by_counts),
        cmocka_unit_test(test_pathfinder_needs_a_square),
        cmocka_unit_test(test_pathfinder_refuses_curves_that_do_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
