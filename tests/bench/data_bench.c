/* data_bench [SECONDS]: how fast batches are prepared. Needs POLYD_SHARED for real pictures and texts;
 * without it the pictures are absent and it says so.
 *
 * Pictures: images/s of a loader that decodes (or maps) 224-pixel JPEGs, crops at random to 224 and
 * normalises, for one and two threads. Tokens: MB/s of GPT-2's tokenizer, and tokens/s of a loader over its
 * ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "daemon/worker/data/data.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"

static double seconds = 3;

static double cpu_s(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void loader(const char *what, const struct data_set *set, int32_t batch, int threads, int64_t units)
{
    struct data_loader *l = NULL;
    const struct data_batch *b;
    struct pd_why why = {""};
    int64_t began, now, n = 0;
    double cpu;

    if (data_loader_start(set, DATA_TRAIN, batch, 1, 0, threads, &l, &why) != PD_OK) {
        printf("%s: %s\n", what, why.text);
        exit(1);
    }
    if (data_loader_next(l, &b, &why) != PD_OK)
        exit(1);
    began = pd_clock_mono_us();
    cpu = cpu_s();
    do {
        if (data_loader_next(l, &b, &why) != PD_OK)
            exit(1);
        n += batch;
        now = pd_clock_mono_us();
    } while ((double)(now - began) < seconds * 1e6);
    cpu = cpu_s() - cpu;
    printf("%-44s %d threads %12.0f /s wall %12.0f /s of one core\n", what, threads,
           (double)(n * units) * 1e6 / (double)(now - began), (double)(n * units) / cpu);
    data_loader_free(l);
}

static struct data_set *open_set(const struct data_options *o)
{
    struct data_set *set = NULL;
    struct pd_why why = {""};

    if (data_open(o, false, &set, &why) != PD_OK) {
        printf("%s: %s\n", o->path, why.text);
        exit(1);
    }
    return set;
}

static void pictures(const struct data_root *root, const char *cache)
{
    struct data_options o = {.dataset = DATA_SET_PICTURES,
                             .path = "shared/data/imagenette224/imagenette224_subset.tar",
                             .roots = root,
                             .root_count = 1,
                             .height = 224,
                             .width = 224,
                             .crop = DATA_CROP_RRC,
                             .rrc_scale = {0.08, 1},
                             .rrc_ratio = {0.75, 1.3333},
                             .flip = 0.5};
    struct data_set *set;
    int64_t began;

    for (int kept = 0; kept < 2; kept++) {
        o.cache_dir = kept ? cache : NULL;
        began = pd_clock_mono_us();
        set = open_set(&o);
        printf("opening, %s: %.2f s\n", kept ? "decoding all into the cache" : "listing alone",
               (double)(pd_clock_mono_us() - began) * 1e-6);
        for (int threads = 1; threads <= 2; threads++)
            loader(kept ? "cache, crop to 224, flip, normalise" : "decode JPEG, crop to 224, flip, normalise",
                   set, 64, threads, 1);
        data_free(set);
    }
    began = pd_clock_mono_us();
    set = open_set(&o);
    printf("opening again: %.2f s\n", (double)(pd_clock_mono_us() - began) * 1e-6);
    data_free(set);
    o.cache_dir = NULL;
    o.filter = DATA_FILTER_BICUBIC;
    o.recipe = (struct data_recipe){
        .ra_n = 2, .ra_m = 9, .ra_std = 0.5, .ra_increasing = true, .erasing = 0.25};
    set = open_set(&o);
    for (int i = 0; i < 3; i++)
        loader("decode JPEG, DeiT's whole recipe", set, 64, 1, 1); /* peer: peers/pillow_recipe.py */
    data_free(set);
    memset(&o.recipe, 0, sizeof o.recipe);
    o.filter = DATA_FILTER_BILINEAR;
    o.height = o.width = 64;
    set = open_set(&o);
    loader("decode JPEG, crop to 64, flip, normalise", set, 64, 2, 1);
    data_free(set);
}

static void texts(const struct data_root *root, const char *cache)
{
    struct data_options o = {.dataset = DATA_SET_TEXT,
                             .path = "shared/data/ptb/ptb.train.txt",
                             .roots = root,
                             .root_count = 1,
                             .context = 256,
                             .tokenizer = DATA_TOKENIZER_GPT2_BPE,
                             .tokenizer_path = "shared/data/gpt2-bpe",
                             .cache_dir = cache};
    struct data_set *set;

    for (int again = 0; again < 2; again++) {
        int64_t began = pd_clock_mono_us();
        struct data_work work;

        set = open_set(&o);
        data_work(set, &work);
        printf("opening PTB as byte pairs: %.2f s, %.1f MB cut\n",
               (double)(pd_clock_mono_us() - began) * 1e-6, (double)work.tokenised_bytes * 1e-6);
        if (again)
            loader("windows of 256 tokens", set, 64, 1, 256);
        data_free(set);
    }
    for (int file = 0; file < 3; file++) {
        static const char *const names[] = {"ptb/ptb.train.txt", "books/war-and-peace-pg2600.txt",
                                            "tinyshakespeare/input.txt"};
        const struct data_tokenizer *t;
        struct data_ids ids = {0};
        struct pd_buf text;
        struct pd_why why;
        char path[4096];
        double cpu;

        set = open_set(&o);
        t = data_info(set)->tokenizer;
        pd_buf_init(&text, 0);
        snprintf(path, sizeof path, "%s/data/%s", root->path, names[file]);
        if (pd_file_read(path, 64u << 20, &text, &why) != PD_OK)
            exit(1);
        cpu = cpu_s();
        for (int i = 0; i < 5; i++) {
            ids.count = 0;
            if (data_tokenizer_encode(t, text.data, text.len, false, &ids, &why) != PD_OK)
                exit(1);
        }
        cpu = (cpu_s() - cpu) / 5;
        printf("encode %-34s %8.1f MB/s %10.2f M tokens/s, one thread's time\n", names[file],
               (double)text.len * 1e-6 / cpu, (double)ids.count * 1e-6 / cpu);
        free(ids.items);
        pd_buf_done(&text);
        data_free(set);
    }
}

int main(int argc, char **argv)
{
    const char *shared = getenv("POLYD_SHARED");
    char root_path[4096], cache[] = "/tmp/polyd-data-bench-XXXXXX", command[64];
    struct data_root root = {"shared", root_path};

    if (argc > 1)
        seconds = atof(argv[1]);
    if (!shared || !*shared) {
        printf("skip: POLYD_SHARED is not set\n");
        return 77;
    }
    if (!mkdtemp(cache))
        return 1;
    snprintf(root_path, sizeof root_path, "%s", shared);
    pictures(&root, cache);
    texts(&root, cache);
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command);
}
