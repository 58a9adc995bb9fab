/* rtc_bench [--each] [ROUNDS [PATTERN]]: what NVRTC makes of the formulas of the gallery for sm 80 and sm 90a, in bf16,
 * without a device. sm_90a* are the kernels of sm 90 alone, of the formulas that have them, with the tiles of long rows. For each formula and architecture:
 *   forward, backward, diagnostics  CPU time of compiling the kernels of this part; of the process, NVRTC's threads included
 *   again    the longest wall time of one part that is found in the cache: its source is printed, its file read and checked
 *   stack    bytes of stack: registers that are spilled, and arrays; with the kernels that have some
 * Of ROUNDS (1) the median counts. PATTERN: formulas that hold this text alone.
 *
 * --each: every kernel by itself, each with the headers read anew: how long the slowest one takes. */
#include <complex.h>
#undef I
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/backend/cuda/rtc.h"
#include "kernels/base/tree.h"
#include "tests/formula/gallery.h"
#include "tests/gpu/cubin.h"

#define ROUNDS_MOST 32
#define KERNELS_MOST 16
#define LIMIT_MS INT64_C(600000) /* a loaded machine is no failure here */
#define PARTS 3

static const char *const part_name[PARTS] = {"forward", "backward", "diagnostics"};
/* sm 80; sm 90 by the kernels of any device; sm 90 by its own, which only some formulas have, and without diagnostics. */
enum { SM_80, SM_90, SM_90_OWN, ARCHS };
static const char *const arch_name[ARCHS] = {"sm_80", "sm_90a", "sm_90a*"};
static char folder[] = "/tmp/polyd-rtc-bench-XXXXXX";

static void die(const char *what, const char *why)
{
    fprintf(stderr, "rtc_bench: %s: %s\n", what, why);
    exit(1);
}

static double cpu_ms(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

static double wall_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static struct pk_formula_plan *plan_of(const char *text)
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
    struct pk_formula_plan *plan = calloc(1, sizeof *plan);
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    struct pd_why why = {""};

    if (!plan)
        die(text, "no memory");
    if (pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, true, params, 3, &f, &fault) != PD_OK)
        die(text, fault.text);
    if (pk_formula_plan(f, plan, &why) != PD_OK)
        die(text, why.text);
    pk_formula_free(f);
    return plan;
}

/* CPU time of NVRTC. where: the folder that receives the code; it has none of this source. NULL: none. */
static double compile_ms(const struct pd_buf *source, int sm, const char *where, struct pd_buf *code)
{
    struct pd_why why = {""};
    const double from = cpu_ms();

    code->len = 0;
    if (cuda_rtc_compile(source->data, sm, where, LIMIT_MS, code, NULL, &why) != PD_OK)
        die("NVRTC", why.text);
    return cpu_ms() - from;
}

struct part {
    int kernels, registers, stack_bytes;
    char spills[256];            /* " name bytes" of each kernel with a stack */
    double compile_ms, found_ms; /* CPU time; wall time */
};

/* The program of a part; whether there is one. */
static bool program_of(const struct pk_formula_plan *plan, int arch, int part, struct cuda_program *ret)
{
    const bool alone =
        !plan->rows && !plan->shift && !plan->two_passes && !plan->reads_j && !plan->reads_row_position;

    *ret = (struct cuda_program){
        .plan = plan, .math = "att_bf16", .head = 64, .part = (enum cuda_formula_part)part};
    if (arch != SM_90_OWN)
        return true;
    ret->tiles = part ? (struct cuda_tiles){64, 128, 2, 0} : (struct cuda_tiles){64, 96, 3, 4};
    ret->part = !part          ? CUDA_FORMULA_HOPPER_FORWARD
                : plan->params ? CUDA_FORMULA_HOPPER_SCALARS
                               : CUDA_FORMULA_HOPPER_BACKWARD;
    return alone && (part == 0 || (part == 1 && !plan->back_scalars));
}

static struct part measure(const struct cuda_program *program, int sm, int part, int rounds)
{
    struct cubin_kernel kernel[KERNELS_MOST];
    double took[ROUNDS_MOST], found[ROUNDS_MOST];
    struct part p = {0};
    struct pd_buf source, code;
    struct pd_why why = {""};
    bool cached = false;

    pd_buf_init(&source, 0);
    pd_buf_init(&code, 0);
    cuda_formula_source(program, &source);
    for (int k = 0; k < rounds; k++)
        took[k] = compile_ms(&source, sm, k == rounds - 1 ? folder : NULL, &code);
    p.kernels = cubin_kernels(code.data, code.len, kernel, KERNELS_MOST);
    if (p.kernels != cuda_formula_kernels(program->part))
        die(part_name[part], "the compiled code has other kernels than were asked for");
    for (int k = 0; k < p.kernels; k++) {
        p.registers = kernel[k].registers > p.registers ? kernel[k].registers : p.registers;
        p.stack_bytes += kernel[k].stack_bytes;
        if (kernel[k].stack_bytes)
            snprintf(p.spills + strlen(p.spills), sizeof p.spills - strlen(p.spills), " %s %d",
                     kernel[k].name + strlen("formula_"), kernel[k].stack_bytes);
    }
    for (int k = 0; k < rounds; k++) {
        const double from = wall_ms();

        source.len = code.len = 0;
        cuda_formula_source(program, &source);
        if (cuda_rtc_compile(source.data, sm, folder, LIMIT_MS, &code, &cached, &why) != PD_OK)
            die("NVRTC", why.text);
        found[k] = wall_ms() - from;
        if (!cached)
            die(part_name[part], "not found in the cache");
    }
    p.compile_ms = median(took, rounds);
    p.found_ms = median(found, rounds);
    pd_buf_done(&source);
    pd_buf_done(&code);
    return p;
}

/* What all formulas took, by architecture and part; PARTS: parts together. */
static double all_ms[ARCHS][PARTS + 1][GALLERY], found_most_ms;
static int measured[ARCHS][PARTS + 1];

static void note(int arch, int part, double ms)
{
    all_ms[arch][part][measured[arch][part]++] = ms;
}

static void bench_parts(const char *text, int rounds)
{
    struct pk_formula_plan *plan = plan_of(text);

    for (int a = 0; a < ARCHS; a++) {
        double together = 0, found = 0;
        char spills[256] = "";
        int kernels = 0, registers = 0, stack = 0;
        struct cuda_program program;

        if (!program_of(plan, a, 0, &program))
            continue;
        printf("%-44s %3d %-7s", text, plan->value.count - plan->value.per_row, arch_name[a]);
        for (int part = 0; part < PARTS; part++) {
            struct part p;

            if (!program_of(plan, a, part, &program)) {
                printf("      -");
                continue;
            }
            p = measure(&program, a == SM_80 ? 80 : 90, part, rounds);
            together += p.compile_ms;
            note(a, part, p.compile_ms);
            found = p.found_ms > found ? p.found_ms : found;
            kernels += p.kernels;
            registers = p.registers > registers ? p.registers : registers;
            stack += p.stack_bytes;
            snprintf(spills + strlen(spills), sizeof spills - strlen(spills), "%s", p.spills);
            printf(" %6.0f", p.compile_ms);
        }
        printf(" %6.0f ms %3d kernels, again %4.1f ms, %3d registers, stack %d%s%s\n", together, kernels,
               found, registers, stack, *spills ? ":" : "", spills);
        fflush(stdout);
        note(a, PARTS, together);
        found_most_ms = found > found_most_ms ? found : found_most_ms;
    }
    free(plan);
}

static void summarise(void)
{
    for (int a = 0; a < ARCHS; a++)
        for (int part = 0; part <= PARTS; part++) {
            double *x = all_ms[a][part];
            const int n = measured[a][part];

            if (n > 0) {
                const double middle = median(x, n); /* sorts */

                printf("%-7s %-12s median %5.0f ms, most %5.0f ms, of %d\n", arch_name[a],
                       part < PARTS ? part_name[part] : "together", middle, x[n - 1], n);
            }
        }
    printf("again, at most %.1f ms\n", found_most_ms);
}

/* ---- every kernel by itself ---- */

static double worst_kernel;

/* The kernels of a part are X(name, body) of a list: all but one become nothing. */
static void bench_kernels(const char *text, int rounds)
{
    struct pk_formula_plan *plan = plan_of(text);

    for (int a = SM_80; a <= SM_90; a++)
        for (int part = 0; part < PARTS; part++) {
            const int sm = a == SM_80 ? 80 : 90;
            struct cuda_program program;
            struct cubin_kernel kernel[KERNELS_MOST];
            struct pd_buf source, code, one;
            int n;

            pd_buf_init(&source, 0);
            pd_buf_init(&code, 0);
            pd_buf_init(&one, 0);
            (void)program_of(plan, a, part, &program);
            cuda_formula_source(&program, &source);
            (void)compile_ms(&source, sm, NULL, &code);
            n = cubin_kernels(code.data, code.len, kernel, KERNELS_MOST);
            for (int k = 0; k < n; k++) {
                const char *define = strstr(source.data, "#define X(name, body)");
                double took[ROUNDS_MOST], ms;

                if (!define)
                    die(text, "its source has changed its form");
                one.len = 0;
                pd_buf_append(&one, source.data, (size_t)(define - source.data));
                pd_buf_str(&one, "#define X(name, body) ONLY_##name(name, body)\n");
                for (int other = 0; other < n; other++)
                    if (other != k)
                        pd_buf_printf(&one, "#define ONLY_%s(name, body)\n",
                                      kernel[other].name + strlen("formula_"));
                pd_buf_printf(&one, "#define ONLY_%s(name, body)", kernel[k].name + strlen("formula_"));
                pd_buf_str(&one, define + strlen("#define X(name, body)"));
                for (int round = 0; round < rounds; round++)
                    took[round] = compile_ms(&one, sm, NULL, &code);
                ms = median(took, rounds);
                worst_kernel = ms > worst_kernel ? ms : worst_kernel;
                printf("%-46s %s  %-20s %5.0f ms\n", text, arch_name[a], kernel[k].name, ms);
                fflush(stdout);
            }
            pd_buf_done(&source);
            pd_buf_done(&code);
            pd_buf_done(&one);
        }
    free(plan);
}

int main(int argc, char **argv)
{
    const bool each = argc > 1 && !strcmp(argv[1], "--each");
    const int at = each ? 2 : 1;
    const int rounds = argc > at ? atoi(argv[at]) : 1;
    const char *pattern = argc > at + 1 ? argv[at + 1] : "";
    char version[32];
    struct pd_why why = {""};

    if (rounds < 1 || rounds > ROUNDS_MOST)
        die("ROUNDS", "from 1 to 32");
    if (cuda_rtc_version(version, sizeof version, &why) != PD_OK)
        die("NVRTC", why.text);
    if (!mkdtemp(folder))
        die(folder, "cannot be made");
    printf("NVRTC %s, bf16, heads of at most 64, median of %d\n", version, rounds);
    if (!each)
        printf("%-44s ops arch    forward backward diagnostics together\n", "formula");
    for (int m = 0; m < GALLERY; m++)
        if (strstr(gallery[m].text, pattern))
            (each ? bench_kernels : bench_parts)(gallery[m].text, rounds);
    if (each)
        printf("slowest kernel: %.0f ms\n", worst_kernel);
    else
        summarise();
    if (pd_tree_remove(folder, &why) != PD_OK)
        die(folder, why.text);
    return 0;
}
