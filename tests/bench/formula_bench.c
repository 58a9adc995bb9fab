/* formula_bench [THREADS [ROUNDS [PATTERN]]]: attention by formulas (FORMULA, FORMULA_BWD), recognising off, against the
 * built-in softmax and x^3, and against s^3 / (1 + |s|) written by hand (rational/). Forward and backward, N 257 and
 * 1024, whole and causal. Subjects take turns in every round; of each the least time counts: CPU time of the process
 * with one thread, wall time with more. PATTERN: formulas that hold this text alone.
 *
 * formula_bench --turns THREADS: answers another program (peers/torch_formula.py) line by line.
 *   shape B N CAUSAL FILE  inputs: FILE has qkv (B, N, 3, 3, 64) and dY (B, N, 3, 64) as floats
 *   formula TEXT           runs it once; says the bytes that forward and backward need besides their inputs, then the norms
 *                          of Y and of the gradient of qkv, then the sum of each scalar's gradient
 *   run                    forward and backward once; says their CPU seconds */
#include <complex.h>
#undef I
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/backend.h"
#include "kernels/formula/formula.h"
#include "tests/bench/bench.h"
#include "tests/bench/rational/rational.h"
#include "tests/formula/gallery.h"

enum kind { BUILT_IN, HAND, FORMULA };

struct subject {
    const char *name;
    enum kind kind;
    enum pk_phi phi;
    int degree, passes;
    double bar; /* times softmax; 0: none */
    struct pk_formula_plan plan;
    struct pk_call call[2]; /* forward, backward */
    struct pk_attr attr;
    struct pk_view in[2][5], out[2][3];
    double best[2];
};

static struct pk_backend *backend;
static struct subject subject[GALLERY + 8];
static int subjects, threads = 1;

static struct subject *add(const char *name, enum kind kind)
{
    struct subject *s = &subject[subjects++];

    memset(s, 0, sizeof *s);
    s->name = name;
    s->kind = kind;
    s->passes = 1;
    return s;
}

static void add_formula(const char *text, double bar)
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
    struct subject *s = add(text, FORMULA);
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    struct pd_why why = {{0}};

    if (pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, true, params, 3, &f, &fault) != PD_OK) {
        fprintf(stderr, "formula_bench: %s: %s\n", text, fault.text);
        exit(1);
    }
    bench_check(pk_formula_plan(f, &s->plan, &why), &why);
    s->passes = s->plan.two_passes ? 2 : 1;
    s->bar = bar > 0 ? bar : s->passes == 2 ? 2.2 : 1.6;
    pk_formula_free(f);
}

/* All subjects use the same scratch, as calls of a plan do: where its pages happen to lie in the second cache level would
 * otherwise favour one of them by up to 5 %. */
static void *shared_workspace(size_t bytes)
{
    static const size_t size = 256u << 20;
    static void *memory;

    if (bytes > size) {
        fprintf(stderr, "formula_bench: %zu bytes of scratch\n", bytes);
        exit(1);
    }
    if (!memory)
        memory = bench_memory(size);
    return memory;
}

/* The calls of a subject at a shape; tensors are shared, but y and what it keeps of the rows. */
static void prepare(struct subject *s, struct pk_view qkv, struct pk_view dy, struct pk_view dqkv, int64_t b,
                    int64_t n, int64_t h, int64_t d, bool causal)
{
    static const double scalar[] = {0.4, 0.3, 1.7, 0.9, 1.5};
    const struct pk_backend_api *api = pk_backend_cpu();
    const bool formula = s->kind == FORMULA;
    const bool normalised = !formula && pk_phi_normalised(s->phi);
    int64_t kept = normalised;
    int in = 1;

    memset(&s->attr, 0, sizeof s->attr);
    if (formula) {
        s->attr.formula.plan = &s->plan;
        s->attr.formula.n = (double)n;
        s->attr.formula.layers = 1;
        kept = s->plan.rows + s->plan.shift;
        for (int k = 0; k < s->plan.rows; k++)
            kept += s->plan.row[k] == PK_ROW_MAX;
    }
    s->attr.attention.phi = formula ? PK_PHI_SIGMOID : s->phi;
    s->attr.attention.degree = s->degree;
    s->attr.attention.tau = 1 / sqrt((double)d);
    s->attr.attention.scale = formula ? 1 : 1 / sqrt((double)n);
    s->attr.attention.causal = causal;
    s->attr.attention.packed = true;
    s->attr.attention.has_scale = formula && s->plan.params > 0;
    s->in[0][0] = s->in[1][0] = qkv;
    if (s->attr.attention.has_scale) {
        struct pk_view v = bench_numbers(PK_SHAPE(s->plan.params, h));

        for (int64_t k = 0; k < s->plan.params * h; k++)
            ((float *)v.data)[k] = (float)scalar[k / h % 5];
        s->in[0][in] = s->in[1][in] = v;
        in++;
    }
    s->out[0][0] = bench_numbers(PK_SHAPE(b, n, h, d));
    s->out[0][1] =
        formula ? bench_numbers(PK_SHAPE(b, h, kept ? kept : 1, n)) : bench_numbers(PK_SHAPE(b, h, n));
    if (formula)
        s->out[0][1].shape.dim[2] = kept;
    s->in[1][in] = s->out[0][0];
    s->in[1][in + 1] = dy;
    s->in[1][in + 2] = s->out[0][1];
    s->out[1][0] = dqkv;
    if (s->attr.attention.has_scale)
        s->out[1][1] = bench_numbers(PK_SHAPE(s->plan.params, h));
    for (int way = 0; way < 2; way++) {
        struct pk_call *c = &s->call[way];

        *c = (struct pk_call){.op = formula ? way ? PK_OP_FORMULA_BWD : PK_OP_FORMULA
                                    : way   ? PK_OP_ATTENTION_BWD
                                            : PK_OP_ATTENTION,
                              .attr = &s->attr,
                              .n_in = way ? in + 2 + (kept > 0) : in,
                              .n_out = way ? 1 + s->attr.attention.has_scale : 1 + (kept > 0),
                              .in = s->in[way],
                              .out = s->out[way]};
        c->workspace_bytes =
            s->kind == HAND ? rational_workspace(backend, c) : api->workspace_bytes(backend, c);
        c->workspace = shared_workspace(c->workspace_bytes + 64);
        s->best[way] = INFINITY;
    }
}

static void release(struct subject *s)
{
    if (s->attr.attention.has_scale) {
        free(s->in[0][1].data);
        free(s->out[1][1].data);
    }
    free(s->out[0][0].data);
    free(s->out[0][1].data);
}

static void turn(struct subject *s, int way)
{
    const clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    struct pd_why why = {{0}};
    double t = bench_seconds(clock);
    enum pd_err err = s->kind != HAND ? pk_backend_cpu()->run(backend, &s->call[way], 1, &why)
                      : way           ? rational_backward(backend, &s->call[way], &why)
                                      : rational_forward(backend, &s->call[way], &why);

    t = bench_seconds(clock) - t;
    bench_check(err, &why);
    if (t < s->best[way])
        s->best[way] = t;
}

static const struct subject *named(const char *name)
{
    for (int k = 0; k < subjects; k++)
        if (!strcmp(subject[k].name, name))
            return &subject[k];
    return NULL;
}

static void shape(int64_t b, int64_t n, bool causal, int rounds)
{
    const int64_t h = 3, d = 64;
    struct pk_view qkv = bench_numbers(PK_SHAPE(b, n, 3, h, d)), dy = bench_numbers(PK_SHAPE(b, n, h, d)),
                   dqkv = bench_numbers(PK_SHAPE(b, n, 3, h, d));
    const struct subject *softmax = named("softmax"), *cubic = named("x^3"),
                         *hand = named("s^3/(1+|s|) by hand");

    for (int64_t i = 0; i < b * n * 3 * h * d; i++) /* logits of deviation about 1 */
        ((float *)qkv.data)[i] *= 3.4f;
    for (int k = 0; k < subjects; k++)
        prepare(&subject[k], qkv, dy, dqkv, b, n, h, d, causal);
    for (int r = 0; r < rounds; r++)
        for (int way = 0; way < 2; way++)
            for (int k = 0; k < subjects; k++)
                turn(&subject[k], way);
    printf("\nB %lld N %lld H %lld d %lld%s, %d thread%s, %d rounds\n", (long long)b, (long long)n,
           (long long)h, (long long)d, causal ? " causal" : "", threads, threads == 1 ? "" : "s", rounds);
    printf("%-46s %18s %20s %14s\n", "", "forward", "backward", "");
    for (int k = 0; k < subjects; k++) {
        const struct subject *s = &subject[k];

        printf("%-46s %8.2f ms %5.2f %10.2f ms %5.2f of softmax", s->name, 1e3 * s->best[0],
               s->best[0] / softmax->best[0], 1e3 * s->best[1], s->best[1] / softmax->best[1]);
        if (!strcmp(s->name, "s^3"))
            printf("; %.3f %.3f of x^3", s->best[0] / cubic->best[0], s->best[1] / cubic->best[1]);
        if (!strcmp(s->name, "s^3/(1+abs(s))") && hand)
            printf("; %.3f %.3f of the one by hand", s->best[0] / hand->best[0], s->best[1] / hand->best[1]);
        if (s->bar > 0 && (s->best[0] > s->bar * softmax->best[0] || s->best[1] > s->bar * softmax->best[1]))
            printf("; above %.1f", s->bar);
        printf("\n");
        release(&subject[k]);
    }
    free(qkv.data);
    free(dy.data);
    free(dqkv.data);
}

static void host_log(void *user, int level, const char *text)
{
    (void)user;
    (void)level;
    printf("%s\n", text);
}

static double norm(struct pk_view v)
{
    double sum = 0;

    for (int64_t i = 0; i < pk_shape_count(&v.shape); i++)
        sum += (double)((float *)v.data)[i] * (double)((float *)v.data)[i];
    return sqrt(sum);
}

static void read_floats(const char *path, struct pk_view *a, struct pk_view *b)
{
    FILE *f = fopen(path, "rb");
    const size_t n = (size_t)pk_shape_count(&a->shape), m = (size_t)pk_shape_count(&b->shape);

    if (!f || fread(a->data, sizeof(float), n, f) != n || fread(b->data, sizeof(float), m, f) != m) {
        fprintf(stderr, "formula_bench: cannot read %s\n", path);
        exit(1);
    }
    fclose(f);
}

static void take_turns(void)
{
    static char line[PK_FORMULA_TEXT + 64], path[PK_FORMULA_TEXT];
    struct pk_view qkv = {.data = NULL}, dy = qkv, dqkv = qkv;
    struct subject *s = NULL;
    const int64_t h = 3, d = 64;
    long long b = 0, n = 0;
    int causal = 0;

    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "shape %lld %lld %d %4000s", &b, &n, &causal, path) == 4) {
            free(qkv.data);
            free(dy.data);
            free(dqkv.data);
            qkv = bench_numbers(PK_SHAPE(b, n, 3, h, d));
            dy = bench_numbers(PK_SHAPE(b, n, h, d));
            dqkv = bench_numbers(PK_SHAPE(b, n, 3, h, d));
            read_floats(path, &qkv, &dy);
            printf("read\n");
        } else if (!strncmp(line, "formula ", 8) && b) {
            double bytes = 0;
            size_t workspace = 0;

            if (s)
                release(s);
            subjects = 0;
            add_formula(line + 8, 0);
            s = &subject[0];
            prepare(s, qkv, dy, dqkv, b, n, h, d, causal);
            turn(s, 0);
            turn(s, 1);
            for (int way = 0; way < 2; way++) {
                for (int k = 0; k < s->call[way].n_out; k++)
                    bytes += 4.0 * (double)pk_shape_count(&s->out[way][k].shape);
                workspace =
                    workspace > s->call[way].workspace_bytes ? workspace : s->call[way].workspace_bytes;
            }
            printf("%.0f %.9g %.9g", bytes + (double)workspace, norm(s->out[0][0]), norm(dqkv));
            for (int k = 0; s->attr.attention.has_scale && k < s->plan.params; k++) {
                double sum = 0;

                for (int64_t i = 0; i < h; i++)
                    sum += (double)((float *)s->out[1][1].data)[k * h + i];
                printf(" %.9g", sum);
            }
            printf("\n");
        } else if (!strcmp(line, "run") && s) {
            s->best[0] = s->best[1] = INFINITY;
            turn(s, 0);
            turn(s, 1);
            printf("%.9f\n", s->best[0] + s->best[1]);
        } else {
            fprintf(stderr, "formula_bench: '%s' is no command\n", line);
            exit(2);
        }
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    const bool turns = argc > 1 && !strcmp(argv[1], "--turns");
    static const struct pk_host host = {.log = host_log};
    const int rounds = argc > 2 ? atoi(argv[2]) : 7;
    const char *pattern = argc > 3 ? argv[3] : "";
    struct pd_why why;

    threads = argc > 1 + turns ? atoi(argv[1 + turns]) : 1;
    bench_check(pk_backend_cpu()->open(&host, 0, threads, &backend, &why), &why);
    if (turns) {
        take_turns();
        pk_backend_cpu()->close(backend);
        return 0;
    }
    add("softmax", BUILT_IN)->phi = PK_PHI_SOFTMAX;
    add("x^3", BUILT_IN)->degree = 3;
    subject[subjects - 1].phi = PK_PHI_POLY;
    add("periodic", BUILT_IN)->phi = PK_PHI_PERIODIC;
    subject[subjects - 1].bar = 1.6;
    if (rational_runs())
        add("s^3/(1+|s|) by hand", HAND)->phi = PK_PHI_SIGMOID;
    add_formula("s^3", 0);
    for (int m = 0; m < GALLERY; m++)
        if (strstr(gallery[m].text, pattern))
            add_formula(gallery[m].text, 0);
    shape(16, 257, false, rounds);
    shape(16, 257, true, rounds);
    shape(1, 1024, false, rounds);
    shape(1, 1024, true, rounds);
    pk_backend_cpu()->close(backend);
    return 0;
}
