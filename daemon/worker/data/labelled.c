/* daemon/worker/data/labelled.c: texts with classes, from tables (table.c) or made by polyd (sequences.c, pairs.c).
 *
 * All rows are read, then divided as pictures are, then the classes are found: the labels of the texts that
 * are trained on. Of each text that a part took, at most `context` tokens are kept; the texts themselves
 * are given back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/worker/data/pairs.h"
#include "daemon/worker/data/path.h"
#include "daemon/worker/data/sequences.h"
#include "daemon/worker/data/set.h"
#include "daemon/worker/data/table.h"
#include "daemon/worker/data/tokens.h"
#include "daemon/job/job.h"

#define LABEL_BYTES_MAX 200
#define FORMS 3
#define ENDINGS "train.tsv, train.csv or train.jsonl (optionally compressed (.gz))"

/* Names of a part's file before the ending, the first that is there. */
enum { TRAIN, VAL, TEST, PARTS };
static const char *const stems[PARTS][6] = {
    {"train", "basic_train", "new_aan_pairs.train", NULL},
    {"valid", "val", "validation", "basic_val", "new_aan_pairs.eval", NULL},
    {"test", "basic_test", "new_aan_pairs.test", NULL}};
static const char *const endings[FORMS] = {".tsv", ".csv", ".jsonl"};

bool data_labelled_named(const char *name)
{
    for (int part = 0; part < PARTS; part++)
        for (const char *const *stem = stems[part]; *stem; stem++)
            for (int form = 0; form < FORMS; form++) {
                char file[32];
                size_t n = (size_t)snprintf(file, sizeof file, "%s%s", *stem, endings[form]);

                if (!strncmp(name, file, n) && (!name[n] || !strcmp(name + n, ".gz")))
                    return true;
            }
    return false;
}

/* ---- rows ---- */

struct text {
    size_t at, len; /* in `bytes` */
    int64_t line;
    uint32_t label;
    uint8_t file; /* place of its name in struct reading; 0: the training file, or the only one */
};

struct label {
    size_t at; /* in `names` */
    uint32_t len;
    int32_t class; /* -1: no text that is trained on has it */
};

struct reading {
    struct text *texts;
    size_t count, size;
    struct pd_buf bytes, names, clean; /* clean: scratch */
    struct label *labels;
    size_t label_count, label_size;
    uint32_t *slot; /* hash of a label's bytes to its number and one; 0 = free */
    size_t mask;
    char file[PARTS][256]; /* names, for errors */
    bool listops;          /* texts are those of the Long Range Arena's ListOps */
    uint8_t reads;         /* which of them is read now */
};

static void reading_done(struct reading *r)
{
    pd_buf_done(&r->bytes);
    pd_buf_done(&r->names);
    pd_buf_done(&r->clean);
    free(r->texts);
    free(r->labels);
    free(r->slot);
}

static const char *text_bytes(const struct reading *r, const struct text *t)
{
    return r->bytes.data ? r->bytes.data + t->at : ""; /* all may be empty */
}

static const char *label_bytes(const struct reading *r, const struct label *l)
{
    return r->names.data + l->at;
}

/* Makes room for one more label; false if out of memory. */
static bool grow_labels(struct reading *r)
{
    size_t size = r->label_size ? 2 * r->label_size : 64;
    struct label *more;
    uint32_t *slot;

    if (r->label_count < r->label_size)
        return true;
    more = realloc(r->labels, size * sizeof *more);
    slot = calloc(2 * size, sizeof *slot);
    if (more)
        r->labels = more;
    if (!more || !slot) {
        free(slot);
        return false;
    }
    free(r->slot);
    r->slot = slot;
    r->label_size = size;
    r->mask = 2 * size - 1;
    for (size_t k = 0; k < r->label_count; k++) {
        size_t i = data_hash(label_bytes(r, &more[k]), more[k].len) & r->mask;

        while (slot[i])
            i = (i + 1) & r->mask;
        slot[i] = (uint32_t)k + 1;
    }
    return true;
}

/* The number of the label, which is added if it is new. */
static enum pd_err find_label(struct reading *r, const struct data_row *row, uint32_t *ret,
                              struct pd_why *why)
{
    size_t i;

    if (!grow_labels(r))
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the labels");
    for (i = data_hash(row->label, row->label_len) & r->mask; r->slot[i]; i = (i + 1) & r->mask) {
        const struct label *l = &r->labels[r->slot[i] - 1];

        if (l->len == row->label_len && !memcmp(label_bytes(r, l), row->label, l->len)) {
            *ret = r->slot[i] - 1;
            return PD_OK;
        }
    }
    if (r->label_count == DATA_CLASSES_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "'%s': line %lld: more than %d different labels", r->file[r->reads],
                       (long long)row->line, DATA_CLASSES_MAX);
    *ret = (uint32_t)r->label_count;
    r->labels[r->label_count++] = (struct label){r->names.len, (uint32_t)row->label_len, -1};
    r->slot[i] = *ret + 1;
    pd_buf_append(&r->names, row->label, row->label_len);
    return pd_buf_err(&r->names) == PD_OK ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the labels");
}

static enum pd_err add_row(void *user, const struct data_row *row, struct pd_why *why)
{
    struct reading *r = user;
    const char *odd = !row->label_len                    ? "is empty"
                      : row->label_len > LABEL_BYTES_MAX ? "has more than 200 bytes"
                                                         : data_class_odd(row->label, row->label_len);
    uint32_t label = 0;
    const char *text = row->text;
    size_t len = row->text_len;
    struct pd_why reason = {""};
    enum pd_err err = PD_OK;

    if (odd)
        return pd_fail(why, PD_ERR_INVALID, "'%s': line %lld: the label %s", r->file[r->reads],
                       (long long)row->line, odd);
    if (r->listops) {
        r->clean.len = 0;
        err = data_listops_clean(row->text, row->text_len, &r->clean, &reason);
        text = r->clean.data ? r->clean.data : "";
        len = r->clean.len;
    }
    if (err != PD_OK)
        return pd_fail(why, err, "'%s': line %lld: %s", r->file[r->reads], (long long)row->line, reason.text);
    err = find_label(r, row, &label, why);
    if (err != PD_OK)
        return err;
    if (r->count == r->size) {
        size_t size = r->size ? 2 * r->size : 1024;
        struct text *more = realloc(r->texts, size * sizeof *more);

        if (!more)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for %zu texts", size);
        r->texts = more;
        r->size = size;
    }
    r->texts[r->count++] = (struct text){r->bytes.len, len, row->line, label, r->reads};
    pd_buf_append(&r->bytes, text, len);
    err = pd_buf_err(r->clean.failed ? &r->clean : &r->bytes);
    return err == PD_OK ? PD_OK : pd_fail(why, err, "no memory for '%s'", r->file[r->reads]);
}

/* ---- files ---- */

/* Whether the set is only looked at, for a list of what there is, and the file too long to be read for
 * that. */
static bool too_long_to_look(const struct data_set *set, int fd)
{
    struct stat s;

    return set->options.until_us && fstat(fd, &s) == 0 && (uint64_t)s.st_size > DATA_COUNTED_BYTES_MAX;
}

/* Reads the file's rows behind those that are there. Takes the descriptor over. */
static enum pd_err read_file(struct data_set *set, struct reading *r, int fd, const char *name,
                             struct pd_why *why)
{
    const enum data_dataset kind = set->options.dataset;
    const struct data_table table = {.name = r->file[r->reads],
                                     .form = job_table_of(name),
                                     .label = kind == DATA_SET_LISTOPS ? "Target" : NULL,
                                     .text = kind == DATA_SET_LISTOPS ? "Source" : NULL,
                                     .columns = kind == DATA_SET_IMDB  ? 3
                                                : kind == DATA_SET_AAN ? 5
                                                                       : 0,
                                     .texts = kind == DATA_SET_AAN ? 2 : 1,
                                     .until_us = set->options.until_us,
                                     .row = add_row,
                                     .user = r};
    int64_t bytes = 0;
    enum pd_err err;

    snprintf(r->file[r->reads], sizeof r->file[0], "%s", name);
    if (too_long_to_look(set, fd)) {
        close(fd);
        return pd_fail(why, PD_ERR_TIMEOUT, "'%s' is too long to be searched", name);
    }
    err = data_text_append(set, fd, name, false, &bytes, why);
    if (err == PD_OK && set->text_packing)
        err = pd_fail(
            why, PD_ERR_INVALID,
            "'%s' is compressed with %s, which polyd does not read: decompress it, or compress it with gzip",
            name, set->text_packing);
    if (err == PD_OK && kind == DATA_SET_LABELLED && set->options.tokenizer != DATA_TOKENIZER_BYTES) {
        set->text_bytes += bytes;
        set->foreign_bytes += data_text_foreign(set->text, (size_t)bytes);
    }
    if (err == PD_OK)
        err = data_table_read(&table, set->text, (size_t)bytes, why);
    free(set->text);
    set->text = NULL;
    return err;
}

/* Opens the part's file; *ret_fd stays -1 if there is none. */
static enum pd_err open_part(int dir, int part, int *ret_fd, char name[32], struct pd_why *why)
{
    enum pd_err err = PD_OK;

    *ret_fd = -1;
    for (const char *const *stem = stems[part]; *stem && *ret_fd < 0 && err == PD_OK; stem++)
        for (int form = 0; form < FORMS && *ret_fd < 0 && err == PD_OK; form++) {
            snprintf(name, 32, "%s%s", *stem, endings[form]);
            err = data_part_open(dir, name, ret_fd, why);
        }
    return err;
}

/* The folder's second file: that of the part to be scored; test stands in where there is no validation. */
static enum pd_err read_second(struct data_set *set, const struct data_options *o, int dir, struct reading *r,
                               struct pd_why *why)
{
    const bool test = o->scored == DATA_SCORED_TEST && o->rule != DATA_SPLIT_FRACTION;
    char name[32];
    int fd = -1;
    enum pd_err err = open_part(dir, test ? TEST : VAL, &fd, name, why);

    if (err == PD_OK && fd < 0 && test)
        return pd_fail(why, PD_ERR_INVALID, "#/split: '%s' has no test file; set val or train", o->path);
    if (err == PD_OK && fd < 0)
        err = open_part(dir, TEST, &fd, name, why);
    r->reads = 1;
    return err == PD_OK && fd >= 0 ? read_file(set, r, fd, name, why) : err;
}

/* The files of validation and test, where they are. */
static enum pd_err read_others(struct data_set *set, int dir, struct reading *r, int64_t given[DATA_SPLITS],
                               struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (int part = VAL; part <= TEST && err == PD_OK; part++) {
        size_t before = r->count;
        char name[32];
        int fd = -1;

        err = open_part(dir, part, &fd, name, why);
        if (err != PD_OK || fd < 0)
            continue;
        r->reads++;
        err = read_file(set, r, fd, name, why);
        given[part] = (int64_t)(r->count - before);
    }
    return err;
}

static enum pd_err read_folder(struct data_set *set, const struct data_options *o, struct reading *r,
                               int64_t given[DATA_SPLITS], struct pd_why *why)
{
    char name[32];
    int dir = -1, fd = -1;
    enum pd_err err = data_path_open(o->roots, o->root_count, o->path, true, &dir, why);

    if (err == PD_ERR_INVALID)
        return pd_fail(why, err, "'%s' is neither a folder nor a .tsv, .csv or .jsonl file", o->path);
    if (err == PD_OK)
        err = open_part(dir, TRAIN, &fd, name, why);
    if (err == PD_OK && fd < 0)
        err = pd_fail(why, PD_ERR_NOT_FOUND, "'%s' has no " ENDINGS, o->path);
    if (err == PD_OK)
        err = read_file(set, r, fd, name, why);
    given[DATA_TRAIN] = (int64_t)r->count;
    if (err == PD_OK && o->rule == DATA_SPLIT_STANDARD)
        err = read_others(set, dir, r, given, why);
    else if (err == PD_OK) {
        err = read_second(set, o, dir, r, why);
        given[DATA_VAL] = (int64_t)r->count - given[DATA_TRAIN];
    }
    if (dir >= 0)
        close(dir);
    return err;
}

static enum pd_err read_all(struct data_set *set, const struct data_options *o, struct reading *r,
                            int64_t given[DATA_SPLITS], struct pd_why *why)
{
    int fd = -1;
    enum pd_err err;

    if (!o->path || job_table_of(o->path) == JOB_TABLE_NONE)
        return read_folder(set, o, r, given, why);
    err = data_path_open(o->roots, o->root_count, o->path, false, &fd, why);
    if (err == PD_OK)
        err = read_file(set, r, fd, o->path, why);
    given[0] = (int64_t)r->count;
    return err;
}

/* ---- sequences that polyd makes ---- */

#define MADE_MOST 1000000 /* of a part */
#define VAL_FIRST (1ll << 32)
#define TEST_FIRST (1ll << 33)

static bool is_made(enum data_dataset dataset)
{
    return dataset == DATA_SET_LISTOPS_GEN || dataset == DATA_SET_PATHFINDER_GEN;
}

static enum pd_err make_part(struct data_set *set, const struct data_sequences *s, struct reading *r,
                             int part, uint64_t first, struct pd_why *why)
{
    const int64_t count = set->info.count[part];
    struct pd_buf text;
    enum pd_err err = PD_OK;

    set->pick[part] = malloc((size_t)count * sizeof *set->pick[part]);
    if (!set->pick[part])
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the order of sequences");
    pd_buf_init(&text, 0);
    for (int64_t i = 0; i < count && err == PD_OK; i++) {
        char label[16];
        int class = 0;

        err = i % 1024 ? PD_OK : data_in_time(set->options.until_us, why);
        if (err == PD_OK)
            err = data_sequence_make(s, first + (uint64_t)i, &text, &class, why);
        if (err != PD_OK)
            break;
        snprintf(label, sizeof label, "%d", class);
        set->pick[part][i] = (uint32_t)r->count;
        err =
            add_row(r,
                    &(struct data_row){
                        .label = label, .label_len = strlen(label), .text = text.data, .text_len = text.len},
                    why);
    }
    pd_buf_done(&text);
    return err;
}

/* Fills the rows, or with headers_only the facts alone. */
static enum pd_err make_all(struct data_set *set, const struct data_options *o, bool headers_only,
                            struct reading *r, struct pd_why *why)
{
    static const int64_t usual[DATA_SPLITS] = {8000, 1000, 1000};
    static const uint64_t first[DATA_SPLITS] = {0, VAL_FIRST, TEST_FIRST};
    const struct data_sequences s = {.kind = o->dataset,
                                     .seed = o->seed,
                                     .context = o->context,
                                     .shortest = o->min_tokens,
                                     .depth = o->depth,
                                     .contour = o->contour};
    int64_t *count = set->info.count;
    enum pd_err err = data_sequences_check(&s, why);

    if (err == PD_OK)
        err = data_divide_made(o, usual, count, why);
    for (int part = 0; err == PD_OK && part < DATA_SPLITS; part++)
        if (count[part] > MADE_MOST)
            err = pd_fail(why, PD_ERR_LIMIT, "#/data/split: at most %d sequences are generated for one part",
                          MADE_MOST);
    if (err != PD_OK)
        return err;
    if (o->scored != DATA_SCORED_VAL) {
        count[DATA_VAL] = count[data_scored_part(o->scored)];
        count[DATA_TEST] = 0;
    }
    set->samples = count[DATA_TRAIN] + count[DATA_VAL] + count[DATA_TEST];
    for (int part = 0; part < DATA_SPLITS && err == PD_OK && !headers_only; part++)
        if (count[part])
            err = make_part(set, &s, r, part,
                            first[part == DATA_VAL ? (int)data_scored_part(o->scored) : part], why);
    return err;
}

/* The classes that the kind of a set knows: 0, 1, ... */
static enum pd_err name_classes(struct data_set *set, int32_t count, struct pd_why *why)
{
    set->names = calloc((size_t)count, sizeof *set->names);
    for (int32_t c = 0; set->names && c < count; c++) {
        char name[16];

        snprintf(name, sizeof name, "%d", c);
        set->names[c] = strdup(name);
        set->info.classes++;
        if (!set->names[c])
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the classes");
    }
    set->info.class_names = (const char *const *)set->names;
    return set->names ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the classes");
}

/* ---- pairs of pieces of documents ---- */

static enum pd_err make_pairs(struct data_set *set, const struct data_options *o, struct reading *r,
                              int64_t given[DATA_SPLITS], struct pd_why *why)
{
    static const int64_t usual[DATA_SPLITS] = {8000, 1000, 1000};
    struct data_pairs p = {.seed = o->seed, .length = o->context / 2};
    int64_t bytes[DATA_SPLITS] = {0};
    struct pd_buf text;
    enum pd_err err = data_documents_read(set, o, false, bytes, why);

    if (o->most > 0 && o->most < p.length)
        p.length = o->most;
    pd_buf_init(&text, 0);
    if (err == PD_OK) {
        p.text = set->text;
        p.ends = set->document.at;
        p.count = set->document.count;
        p.usable = malloc((p.count + 1) * sizeof *p.usable);
        err = p.usable ? data_pairs_check(&p, why) : pd_fail(why, PD_ERR_NOMEM, "no memory for pairs");
    }
    for (int part = 0; part < DATA_SPLITS; part++) {
        /* a part that the document wants longer than usual is */
        given[part] = o->amount[part] > (double)usual[part] ? (int64_t)o->amount[part] : usual[part];
        if (given[part] > MADE_MOST && err == PD_OK)
            err = pd_fail(why, PD_ERR_LIMIT, "#/data/split: at most %d pairs are generated for one part",
                          MADE_MOST);
        for (int64_t i = 0; i < given[part] && err == PD_OK; i++) {
            const int class = data_pair_make(&p, (uint64_t)i + ((uint64_t)part << 32), part, &text);

            err = i % 1024 ? PD_OK : data_in_time(set->options.until_us, why);
            if (err == PD_OK)
                err = add_row(
                    r,
                    &(struct data_row){
                        .label = class ? "1" : "0", .label_len = 1, .text = text.data, .text_len = text.len},
                    why);
        }
    }
    pd_buf_done(&text);
    free(p.usable);
    free(set->text);
    set->text = NULL;
    return err;
}

/* ---- classes ---- */

/* A whole number with at most 18 digits, so that it fits int64_t. */
static bool whole_number(const char *text, size_t len)
{
    size_t sign = len && *text == '-', digits = 0;

    while (sign + digits < len && text[sign + digits] >= '0' && text[sign + digits] <= '9')
        digits++;
    return digits && digits <= 18 && sign + digits == len;
}

static int64_t number_of(const char *text, size_t len)
{
    char digits[24];

    snprintf(digits, sizeof digits, "%.*s", (int)len, text);
    return strtoll(digits, NULL, 10);
}

static int by_bytes(const void *a, const void *b, void *user)
{
    const struct reading *r = user;
    const struct label *x = &r->labels[*(const uint32_t *)a], *y = &r->labels[*(const uint32_t *)b];
    int c = memcmp(label_bytes(r, x), label_bytes(r, y), x->len < y->len ? x->len : y->len);

    return c ? c : (x->len > y->len) - (x->len < y->len);
}

static int by_number(const void *a, const void *b, void *user)
{
    const struct reading *r = user;
    const struct label *x = &r->labels[*(const uint32_t *)a], *y = &r->labels[*(const uint32_t *)b];
    int64_t m = number_of(label_bytes(r, x), x->len), n = number_of(label_bytes(r, y), y->len);

    return m != n ? (m > n) - (m < n) : by_bytes(a, b, user);
}

/* The labels of the texts that are trained on, sorted; *ret_order is the caller's. */
static enum pd_err sort_labels(const struct data_set *set, struct reading *r, uint32_t **ret_order,
                               int32_t *ret_count, struct pd_why *why)
{
    uint32_t *order = malloc(r->label_count * sizeof *order);
    bool numbers = true;
    int32_t n = 0;

    if (!order)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the classes");
    for (int64_t i = 0; i < set->info.count[DATA_TRAIN]; i++) {
        uint32_t k = r->texts[set->pick[DATA_TRAIN][i]].label;
        struct label *l = &r->labels[k];

        if (l->class >= 0)
            continue;
        l->class = 0;
        order[n++] = k;
        numbers = numbers && whole_number(label_bytes(r, l), l->len);
    }
    qsort_r(order, (size_t)n, sizeof *order, numbers ? by_number : by_bytes, r);
    *ret_order = order;
    *ret_count = n;
    return PD_OK;
}

/* Fills names and the labels' classes; checks that the scored texts have no others. */
static enum pd_err find_classes(struct data_set *set, struct reading *r, struct pd_why *why)
{
    uint32_t *order = NULL;
    int32_t count = 0;
    enum pd_err err = sort_labels(set, r, &order, &count, why);

    if (err == PD_OK)
        set->names = calloc((size_t)count, sizeof *set->names);
    if (err == PD_OK && !set->names)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the classes");
    for (int32_t c = 0; err == PD_OK && c < count; c++) {
        struct label *l = &r->labels[order[c]];

        l->class = c;
        set->names[c] = strndup(label_bytes(r, l), l->len);
        set->info.classes++;
        if (!set->names[c])
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for the classes");
    }
    free(order);
    if (err == PD_OK && count < 2)
        err = pd_fail(
            why, PD_ERR_INVALID,
            "all %lld texts of the training part have the label '%s'; two classes are needed at least",
            (long long)set->info.count[DATA_TRAIN], set->names[0]);
    for (int part = DATA_VAL; part <= DATA_TEST; part++)
        for (int64_t i = 0; err == PD_OK && i < set->info.count[part]; i++) {
            const struct text *t = &r->texts[set->pick[part][i]];
            const struct label *l = &r->labels[t->label];

            if (l->class < 0)
                err = pd_fail(why, PD_ERR_INVALID,
                              "'%s': line %lld: no text of the training part has the label '%.*s'",
                              r->file[t->file], (long long)t->line, (int)l->len, label_bytes(r, l));
        }
    set->info.class_names = (const char *const *)set->names;
    return err;
}

/* ---- tokens ---- */

/* The texts that are trained on, as one: what a tokenizer is made of. */
static enum pd_err open_tokenizer(struct data_set *set, const struct data_options *o, const struct reading *r,
                                  struct pd_why *why)
{
    struct pd_buf all;
    enum pd_err err;

    pd_buf_init(&all, 0);
    if (o->tokenizer == DATA_TOKENIZER_CHARS || o->tokenizer == DATA_TOKENIZER_WORDS)
        for (int64_t i = 0; i < set->info.count[DATA_TRAIN]; i++) {
            const struct text *t = &r->texts[set->pick[DATA_TRAIN][i]];

            if (i && o->tokenizer == DATA_TOKENIZER_WORDS)
                pd_buf_str(&all, " "); /* the last word of one and the first of the next are two */
            pd_buf_append(&all, text_bytes(r, t), t->len);
        }
    err = pd_buf_err(&all) == PD_OK ? data_open_tokenizer(set, o, all.data, all.len, all.len, why)
                                    : pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
    pd_buf_done(&all);
    return err;
}

/* Appends the tokens of a text, at most `most`; *ret_cut: there were more. */
static enum pd_err keep_text(struct data_set *set, const char *text, size_t len, size_t most,
                             struct data_ids *ids, bool *ret_cut, struct pd_why *why)
{
    const size_t before = ids->count;
    enum pd_err err = data_tokenizer_encode(set->tokenizer, text, len, false, ids, why);

    if (ids->count - before > most) {
        ids->count = before + most;
        *ret_cut = true;
    }
    return err;
}

/* Both texts of a pair: the second begins where the first half of the context ends. */
static enum pd_err keep_pair(struct data_set *set, const char *text, size_t len, size_t most,
                             struct data_ids *ids, bool *ret_cut, struct pd_why *why)
{
    const char *tab = memchr(text, '\t', len);
    const size_t half = (size_t)set->info.context / 2, before = ids->count,
                 first = tab ? (size_t)(tab - text) : len;
    enum pd_err err = keep_text(set, text, first, most, ids, ret_cut, why);

    while (err == PD_OK && ids->count < before + half)
        err = data_ids_add(ids, 0);
    return err == PD_OK && tab ? keep_text(set, tab + 1, len - first - 1, most, ids, ret_cut, why) : err;
}

/* The texts of one part as tokens, at most `context` of each. */
static enum pd_err keep_part(struct data_set *set, const struct reading *r, int part, struct pd_why *why)
{
    const size_t count = (size_t)set->info.count[part],
                 fit = (size_t)set->info.context / (set->info.pairs ? 2 : 1),
                 most = set->options.most > 0 && (size_t)set->options.most < fit ? (size_t)set->options.most
                                                                                 : fit;
    struct data_labelled *to = &set->labelled[part];
    struct data_ids *ids = &set->made[part];
    enum pd_err err = PD_OK;

    to->start = calloc(count + 1, sizeof *to->start);
    to->classes = malloc(count * sizeof *to->classes);
    if (!to->start || !to->classes)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %zu texts", count);
    for (size_t i = 0; i < count && err == PD_OK; i++) {
        const struct text *t = &r->texts[set->pick[part][i]];
        struct pd_why reason = {""};
        bool cut = false;

        err = i % 1024 ? PD_OK : data_in_time(set->options.until_us, why);
        if (err != PD_OK)
            break;
        err = (set->info.pairs ? keep_pair : keep_text)(set, text_bytes(r, t), t->len, most, ids, &cut,
                                                        &reason);
        if (err == PD_ERR_INVALID)
            err =
                pd_fail(why, err, "#/data/tokenizer: '%s': line %lld: %s; the tokenizer bytes takes any text",
                        r->file[t->file], (long long)t->line, reason.text);
        else if (err != PD_OK)
            (void)pd_fail(why, err, "%s", reason.text);
        set->cut_texts += cut;
        to->start[i + 1] = (int64_t)ids->count;
        to->classes[i] = r->labels[t->label].class;
    }
    set->work.tokenised_bytes += (int64_t)r->bytes.len;
    set->info.tokens[part] = (int64_t)ids->count;
    return err;
}

void data_labelled_done(struct data_set *set)
{
    for (int i = 0; i < DATA_SPLITS; i++) {
        free(set->labelled[i].start);
        free(set->labelled[i].classes);
        set->labelled[i] = (struct data_labelled){NULL, NULL};
    }
}

/* The classes of sequences and pairs that polyd makes are known, whichever the training part has. */
static enum pd_err know_classes(struct data_set *set, struct reading *r, struct pd_why *why)
{
    for (size_t k = 0; k < r->label_count; k++)
        r->labels[k].class = (int32_t)number_of(label_bytes(r, &r->labels[k]), r->labels[k].len);
    return name_classes(set, set->options.dataset == DATA_SET_LISTOPS_GEN ? 10 : 2, why);
}

enum pd_err data_open_labelled(struct data_set *set, const struct data_options *o, bool headers_only,
                               struct pd_why *why)
{
    const bool made = is_made(o->dataset);
    struct reading r = {.texts = NULL};
    int64_t given[DATA_SPLITS] = {0};
    enum pd_err err;

    pd_buf_init(&r.bytes, 0);
    pd_buf_init(&r.names, 0);
    pd_buf_init(&r.clean, 0);
    r.listops = o->dataset == DATA_SET_LISTOPS;
    err = made                           ? make_all(set, o, headers_only, &r, why)
          : o->dataset == DATA_SET_PAIRS ? make_pairs(set, o, &r, given, why)
                                         : read_all(set, o, &r, given, why);
    if (err == PD_OK && !made)
        /* which texts are trained on decides the classes: also where headers alone are asked for */
        err = data_divide_samples(set, o, given, false, why);
    if (err == PD_OK)
        err = made || o->dataset == DATA_SET_PAIRS ? know_classes(set, &r, why) : find_classes(set, &r, why);
    if (err == PD_OK)
        err = made || r.listops                 ? data_sequences_tokenizer(o->dataset, &set->tokenizer, why)
              : o->dataset == DATA_SET_LABELLED ? open_tokenizer(set, o, &r, why)
                                                : data_tokenizer_padded_bytes_new(&set->tokenizer, why);
    if (err == PD_OK) {
        set->info.tokenizer = set->tokenizer;
        set->info.vocab = data_tokenizer_vocab(set->tokenizer);
        set->info.estimated = headers_only && (made || r.bytes.len > DATA_COUNTED_BYTES_MAX);
    }
    for (int part = 0; part < DATA_SPLITS && err == PD_OK && !set->info.estimated; part++)
        if (set->info.count[part])
            err = keep_part(set, &r, part, why);
    if (headers_only)
        data_labelled_done(set);
    reading_done(&r);
    return err;
}
