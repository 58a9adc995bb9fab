/* tests/fuzz/replay.c: runs a fuzz target without a fuzzer.
 *
 *   replay_NAME [-n MUTATIONS] [-s SEED] CORPUS_DIR|FILE...
 *
 * Every file of the corpus is given to the target, and after it MUTATIONS (default 2000) inputs made from
 * it and its neighbours by a generator that depends on SEED, the file's place and the mutation's number
 * alone. So the ordinary suite repeats old findings and looks a little further, the same way each time. A
 * crash leaves the input in `crash-input` in the working directory and names the file and mutation. */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define INPUT_MAX ((size_t)1 << 20)

struct file {
    char *path;
    struct pd_buf bytes;
};

static struct file *files;
static size_t file_count;

/* What is running now, for the report of a crash. */
static const uint8_t *now_bytes;
static size_t now_len;
static char now_text[512];

static void report(void)
{
    static const char tail[] = "replay: input kept in crash-input\n";
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ssize_t n = write(STDERR_FILENO, now_text, strlen(now_text));

    if (fd >= 0) {
        n = write(fd, now_bytes, now_len);
        close(fd);
    }
    n = write(STDERR_FILENO, tail, sizeof tail - 1);
    (void)n;
}

static void on_signal(int sig)
{
    report();
    signal(sig, SIG_DFL);
    raise(sig);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void __sanitizer_set_death_callback(void (*fn)(void));
#endif

static void catch_crashes(void)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        signal(signals[i], on_signal);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    __sanitizer_set_death_callback(report);
#endif
}

static uint64_t random_state;

static uint64_t random_next(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t n)
{
    return n ? (size_t)(random_next() % n) : 0;
}

/* One change in place; returns the new length, at most `size`. */
static size_t mutate(uint8_t *at, size_t len, size_t size)
{
    static const uint64_t special[] = {0,      1,          0x7f,       0x80,       0xff,      0x7fff,
                                       0xffff, 0x7fffffff, 0xffffffff, UINT64_MAX, INT64_MAX, 16u << 20};
    static const char *const words[] = {"null",
                                        "true",
                                        "-0",
                                        "1e999",
                                        "\"\\u0000\"",
                                        "[[[[[[[[",
                                        "{}",
                                        "\r\n\r\n",
                                        "NaN",
                                        "\xff\xfe",
                                        "%2e%2e/",
                                        "18446744073709551616",
                                        "Content-Length: 1\r\n"};
    size_t i = below(len), n, from;

    switch (below(9)) {
    case 0: /* a bit */
        if (len)
            at[i] ^= (uint8_t)(1u << below(8));
        return len;
    case 1: /* a byte */
        if (len)
            at[i] = (uint8_t)random_next();
        return len;
    case 2: /* cut out */
        n = below(len - i < 32 ? len - i + 1 : 32);
        memmove(at + i, at + i + n, len - i - n);
        return len - n;
    case 3: /* cut off */
        return i;
    case 4: /* doubled */
        n = below(len - i < 64 ? len - i + 1 : 64);
        if (len + n > size)
            return len;
        memmove(at + i + n, at + i, len - i);
        return len + n;
    case 5: { /* a number that is often mishandled, of 1, 2, 4 or 8 bytes */
        uint64_t v = special[below(sizeof special / sizeof special[0])];

        n = (size_t)1 << below(4);
        if (i + n <= len)
            memcpy(at + i, &v, n);
        return len;
    }
    case 6: { /* a word put in */
        const char *w = words[below(sizeof words / sizeof words[0])];

        n = strlen(w);
        if (len + n > size)
            return len;
        memmove(at + i + n, at + i, len - i);
        memcpy(at + i, w, n);
        return len + n;
    }
    case 7: { /* a piece of a neighbour over it */
        const struct file *f = &files[below(file_count)];

        from = below(f->bytes.len);
        n = below(f->bytes.len - from < len - i ? f->bytes.len - from + 1 : len - i + 1);
        if (n)
            memcpy(at + i, f->bytes.data + from, n);
        return len;
    }
    default: /* two bytes swapped */
        if (len) {
            size_t j = below(len);
            uint8_t t = at[i];

            at[i] = at[j];
            at[j] = t;
        }
        return len;
    }
}

/* Runs a copy of exactly this length, so that AddressSanitizer sees the first byte read beyond it. */
static void run_one(const void *bytes, size_t len)
{
    uint8_t *copy = malloc(len ? len : 1);

    if (!copy)
        exit(2);
    if (len)
        memcpy(copy, bytes, len);
    now_bytes = copy;
    now_len = len;
    LLVMFuzzerTestOneInput(copy, len);
    free(copy);
}

static void add_file(const char *path)
{
    struct file *f;
    struct pd_why why;

    files = realloc(files, (file_count + 1) * sizeof *files);
    if (!files)
        exit(2);
    f = &files[file_count++];
    f->path = strdup(path);
    pd_buf_init(&f->bytes, 0);
    if (!f->path || pd_file_read(path, INPUT_MAX, &f->bytes, &why) != PD_OK) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        exit(2);
    }
}

static void add_path(const char *path)
{
    struct dirent **entries;
    struct stat st;
    int n;

    if (stat(path, &st) != 0) {
        fprintf(stderr, "replay: no %s\n", path);
        exit(2);
    }
    if (!S_ISDIR(st.st_mode)) {
        add_file(path);
        return;
    }
    n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char full[4096];

        snprintf(full, sizeof full, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            add_file(full);
        free(entries[i]);
    }
    free(entries);
}

int main(int argc, char **argv)
{
    unsigned long mutations = 2000, seed = 1;
    uint8_t *work = malloc(INPUT_MAX);
    size_t runs = 0;
    int opt;

    while ((opt = getopt(argc, argv, "n:s:")) != -1) {
        if (opt == 'n')
            mutations = strtoul(optarg, NULL, 10);
        else if (opt == 's')
            seed = strtoul(optarg, NULL, 10);
        else
            return 2;
    }
    for (int i = optind; i < argc; i++)
        add_path(argv[i]);
    if (!work || file_count == 0) {
        fprintf(stderr, "replay: no corpus\n");
        return 2;
    }
    catch_crashes();
    for (size_t f = 0; f < file_count; f++) {
        const struct pd_buf *b = &files[f].bytes;

        snprintf(now_text, sizeof now_text, "replay: crash in %s\n", files[f].path);
        run_one(b->data, b->len);
        runs++;
        for (unsigned long m = 0; m < mutations; m++) {
            size_t len = b->len, times;

            random_state = seed * 0x2545f4914f6cdd1du + f * 1000003u + m;
            times = 1 + below(6);
            if (len)
                memcpy(work, b->data, len);
            while (times--)
                len = mutate(work, len, INPUT_MAX);
            snprintf(now_text, sizeof now_text, "replay: crash in mutation %lu of %s, seed %lu\n", m,
                     files[f].path, seed);
            run_one(work, len);
            runs++;
        }
    }
    printf("replay: %zu files, %zu inputs, seed %lu: none crashed\n", file_count, runs, seed);
    for (size_t f = 0; f < file_count; f++) {
        free(files[f].path);
        pd_buf_done(&files[f].bytes);
    }
    free(files);
    free(work);
    return 0;
}
