/* tests/formula/test_torch.c: the Python texts of the gallery, run by PyTorch in f64 against the papers' formulas of
 * gallery.h: A, the gradients of logits and of learned scalars; and what FlexAttention is given, against A V.
 *
 * Needs Debian's python3-torch; skips without. torch_check.py beside this file runs the texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/job/gallery.h"
#include "kernels/base/json.h"
#include "kernels/formula/formula.h"
#include "tests/formula/gallery.h"

#define SKIPPED 77 /* exit status of torch_check.py without PyTorch */

static uint64_t noise = 88172645463325252ull;

static double uniform(double lo, double hi)
{
    noise ^= noise << 13;
    noise ^= noise >> 7;
    noise ^= noise << 17;
    return lo + (hi - lo) * ((double)(noise >> 11) + 0.5) / 9007199254740992.0;
}

static void put_matrix(struct pd_buf *b, const char *key, const double *x, int rows, int columns)
{
    pd_json_key(b, key);
    pd_json_open(b, '[');
    for (int i = 0; i < rows; i++) {
        pd_json_open(b, '[');
        for (int j = 0; j < columns; j++)
            pd_json_num(b, x[i * columns + j]);
        pd_json_close(b, ']');
    }
    pd_json_close(b, ']');
}

/* Formulas beside those of the papers: a row function in an exponent. */
static z whole_below_the_largest(const struct row *r, int k)
{
    z top = -INFINITY;

    for (int i = 0; i < r->n; i++)
        if (r->seen[i] && creal(r->s[i]) > creal(top))
            top = r->s[i];
    return 1 / (1 + 2 * cexp(top - r->s[k]));
}

TERM(sum_of_scales, cexp((r->a + r->t) * s))
TERM(scaled, cexp(r->t *s))
WHOLE(sum_of_scales, sum_of_scales(r, k) / total(r, sum_of_scales))
WHOLE(scaled_sink, scaled(r, k) / (cexp(r->b) + total(r, scaled)))

static const struct {
    const char *text;
    z (*f)(const struct row *, int);
} others[] = {
    {"t = s - rowmax(s); exp(t)/(2+exp(t))", whole_below_the_largest},
    /* scalars with names that the texts define or call, and with keywords of Python */
    {"softmax(attention*s + score_mod_of*s)", whole_sum_of_scales},
    {"t = exp(flex_attention*s); t/(exp(break)+rowsum(t))", whole_scaled_sink},
    {"softmax(attention_weights*s + torch*s)", whole_sum_of_scales},
    {"t = exp(lambda*s); t/(exp(block_mask)+rowsum(t))", whole_scaled_sink},
};

/* n queries of n keys, query i at position i: causal, or all; without every third key where `padding`. */
static void put_case(struct pd_buf *b, z (*f)(const struct row *, int), const struct pk_formula_param *name,
                     int names, int n, bool causal, bool padding)
{
    static struct row row;
    static double s[KEYS * KEYS], seen[KEYS * KEYS], w[KEYS * KEYS], a[KEYS * KEYS], ds[KEYS * KEYS];
    double dp[PK_FORMULA_PARAMS] = {0};

    memset(&row, 0, sizeof row);
    row.a = 0.4;
    row.b = 0.3;
    row.c = 1.7;
    row.g = 0.9;
    row.t = 1.5;
    row.n = n;
    for (row.i = 0; row.i < n; row.i++) {
        row.seen_keys = 0;
        for (int k = 0; k < n; k++) {
            row.seen[k] = (!causal || k <= row.i) && !(padding && k % 3 == 2);
            row.seen_keys += row.seen[k];
            row.s[k] = uniform(-2, 2);
            s[row.i * n + k] = creal(row.s[k]);
            seen[row.i * n + k] = row.seen[k];
            w[row.i * n + k] = uniform(-1, 1);
        }
        for (int k = 0; k < n; k++)
            a[row.i * n + k] = creal(pick(&row, k, f));
        for (int q = -names; q < n; q++) {
            z *moved = q < 0 ? scalar(&row, name[q + names].name) : &row.s[q];
            const z kept = *moved;
            double d = 0;

            *moved += _Complex_I * STEP;
            for (int k = 0; k < n; k++)
                d += w[row.i * n + k] * cimag(pick(&row, k, f)) / STEP;
            *moved = kept;
            if (q < 0)
                dp[q + names] += d;
            else
                ds[row.i * n + q] = d;
        }
    }
    pd_json_open(b, '{');
    put_matrix(b, "s", s, n, n);
    put_matrix(b, "seen", seen, n, n);
    put_matrix(b, "w", w, n, n);
    put_matrix(b, "a", a, n, n);
    put_matrix(b, "ds", ds, n, n);
    pd_json_key(b, "scalars");
    pd_json_open(b, '[');
    for (int k = 0; k < names; k++)
        pd_json_num(b, creal(*scalar(&row, name[k].name)));
    pd_json_close(b, ']');
    put_matrix(b, "dp", dp, 1, names);
    pd_json_close(b, '}');
}

static void put_formula(struct pd_buf *b, const char *text, z (*value)(const struct row *, int))
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
    const struct pk_formula_param *name;
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    struct pd_why why;
    struct pd_buf t;
    int names;

    assert_int_equal(pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, true, params, 3, &f, &fault),
                     PD_OK);
    names = pk_formula_params(f, &name);
    pd_json_open(b, '{');
    pd_json_kv_str(b, "text", text);
    pd_buf_init(&t, 0);
    pk_formula_torch(f, &t);
    pd_json_kv_str(b, "torch", t.data);
    pd_buf_done(&t);
    pd_buf_init(&t, 0);
    pd_json_kv_str(b, "flex", pk_formula_flex(f, &t, &why) == PD_OK ? t.data : "");
    pd_buf_done(&t);
    pd_json_key(b, "sizes");
    pd_json_open(b, '[');
    if (pk_formula_reads(f, PK_LEAF_HEAD))
        pd_json_num(b, head);
    if (pk_formula_reads(f, PK_LEAF_HEADS))
        pd_json_num(b, heads);
    pd_json_close(b, ']');
    pd_json_kv_num(b, "n", n_scale);
    pd_json_key(b, "cases");
    pd_json_open(b, '[');
    put_case(b, value, name, names, 1, true, false);
    put_case(b, value, name, names, 2, true, false);
    put_case(b, value, name, names, 17, true, true);
    if (!pk_formula_reads(f, PK_LEAF_J))
        put_case(b, value, name, names, 13, false, false);
    pd_json_close(b, ']');
    pd_json_close(b, '}');
    pk_formula_free(f);
}

static void test_torch_texts_of_the_gallery_agree_with_the_papers(void **state)
{
    char file[] = "/tmp/polyd-torch-XXXXXX", command[1200];
    const int fd = mkstemp(file);
    struct pd_buf b;
    FILE *to;
    int status;

    (void)state;
    assert_true(fd >= 0);
    pd_buf_init(&b, 0);
    pd_json_open(&b, '[');
    for (int m = 0; m < GALLERY; m++)
        put_formula(&b, gallery[m].text, gallery[m].f);
    for (size_t m = 0; m < sizeof others / sizeof *others; m++)
        put_formula(&b, others[m].text, others[m].f);
    pd_json_close(&b, ']');
    assert_int_equal(pd_buf_err(&b), PD_OK);
    to = fdopen(fd, "w");
    assert_non_null(to);
    assert_int_equal(fwrite(b.data, 1, b.len, to), b.len);
    assert_int_equal(fclose(to), 0);
    pd_buf_done(&b);
    snprintf(command, sizeof command, "/usr/bin/python3 '%s' %s", TORCH_CHECK, file);
    status = system(command);
    unlink(file);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED || WEXITSTATUS(status) == 127) {
        print_message("needs Debian's python3-torch\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The gallery that polyd serves has these formulas. */
static void test_torch_gallery_is_the_one_that_is_served(void **state)
{
    struct pd_buf b, quoted;

    (void)state;
    pd_buf_init(&b, 0);
    assert_int_equal(job_gallery_json(&b, NULL), PD_OK);
    for (int m = 0; m < GALLERY; m++) {
        pd_buf_init(&quoted, 0);
        pd_json_str(&quoted, gallery[m].text);
        if (!strstr(b.data, quoted.data))
            fail_msg("no %s", gallery[m].text);
        pd_buf_done(&quoted);
    }
    pd_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_gallery_is_the_one_that_is_served),
        cmocka_unit_test(test_torch_texts_of_the_gallery_agree_with_the_papers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
