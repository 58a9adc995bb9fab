/* Folders and archives of pictures, CIFAR-10: what is read, how it is divided, what is refused, and that
 * neither threads nor caches change a batch. */
#include "tests/data/box.h"

#include <errno.h>
#include <fcntl.h>
#include <png.h>
#include <pthread.h>
#include <stdatomic.h>

#include "daemon/worker/data/path.h"
#include "daemon/worker/data/tar.h"

/* A PNG of one colour gradient that names itself: `n` is its first red byte. */
static size_t picture(uint8_t n, int height, int width, uint8_t *to, size_t size)
{
    uint8_t pixels[64 * 64 * 3];
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)width,
                       .height = (png_uint_32)height,
                       .format = PNG_FORMAT_RGB};
    png_alloc_size_t len = size;

    for (int i = 0; i < height * width; i++) {
        pixels[3 * i] = (uint8_t)(n + i);
        pixels[3 * i + 1] = (uint8_t)(3 * i);
        pixels[3 * i + 2] = n;
    }
    assert_true(png_image_write_to_memory(&image, to, &len, 0, pixels, 0, NULL));
    return len;
}

static void put_picture(const char *name, uint8_t n)
{
    uint8_t bytes[32768];

    put(name, bytes, picture(n, 12 + n % 5, 16 + n % 3, bytes, sizeof bytes), false);
}

/* train: 3 classes of 4, val: of 2; a stranger beside them. */
static void put_folder(void)
{
    static const char *const classes[] = {"cat", "ant", "bee"};
    char name[64];
    uint8_t n = 1;

    for (int part = 0; part < 2; part++)
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < (part ? 2 : 4); i++) {
                snprintf(name, sizeof name, "set/%s/%s/p%d.png", part ? "val" : "train", classes[c], i);
                put_picture(name, n++);
            }
    put("set/README.txt", "no picture", 10, false);
    put("set/train/ant/._p9.png", "left behind", 11, false);
}

static struct data_options options(const char *path)
{
    return (struct data_options){.dataset = DATA_SET_PICTURES,
                                 .path = path,
                                 .roots = &box_root,
                                 .root_count = 1,
                                 .height = 8,
                                 .width = 8,
                                 .seed = 5,
                                 .rrc_scale = {0.3, 1},
                                 .rrc_ratio = {0.75, 1.3333}};
}

static void test_folders_are_classes_in_byte_order(void **state)
{
    struct data_options o = options("box/set");
    struct data_set *set = NULL;
    const struct data_info *i;
    int count[3] = {0};
    size_t n;
    char *all;

    (void)state;
    put_folder();
    want_open(&o, &set);
    i = data_info(set);
    assert_int_equal(i->classes, 3);
    assert_string_equal(i->class_names[0], "ant");
    assert_string_equal(i->class_names[2], "cat");
    assert_int_equal(i->count[0], 12);
    assert_int_equal(i->count[1], 6);
    assert_int_equal(i->channels, 3);
    all = draw(set, DATA_VAL, 6, 0, 1, 1, &n);
    for (int k = 0; k < 6; k++)
        assert_int_equal(((int32_t *)(void *)(all + n - 24))[k], k / 2);
    free(all);
    all = draw(set, DATA_TRAIN, 12, 0, 1, 2, &n);
    for (int k = 0; k < 12; k++)
        count[((int32_t *)(void *)(all + n - 48))[k]]++;
    assert_int_equal(count[0], 4);
    assert_int_equal(count[2], 4);
    free(all);
    data_free(set);
    o.rule = DATA_SPLIT_FRACTION;
    o.train_share = 0.5;
    o.val_share = 0.25;
    want_open(&o, &set);
    assert_int_equal(data_info(set)->count[0], 9);
    assert_int_equal(data_info(set)->count[1], 4);
    set = data_free(set);
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = 7;
    o.val_count = 6;
    want_open(&o, &set);
    set = data_free(set);
    o.val_count = 7;
    want_refused(&o, PD_ERR_INVALID, "#/data/split/val: 7 samples are requested, only 6 exist");
    o = options("box/set");
    o.height = o.width = 0;
    want_refused(&o, PD_ERR_INVALID, "#/data/image_size");
}

static void test_pictures_of_other_kinds_are_counted_and_one_is_named(void **state)
{
    struct data_options o = options("box/set");
    struct data_set *set = NULL;

    (void)state;
    put_folder();
    want_open(&o, &set);
    assert_int_equal(data_info(set)->unread, 0);
    assert_null(data_info(set)->unread_name);
    set = data_free(set);
    put("set/train/ant/x.webp", "x", 1, false);
    put("set/train/ant/.z.webp", "x", 1, false);
    want_open(&o, &set);
    assert_int_equal(data_info(set)->unread, 1);
    assert_string_equal(data_info(set)->unread_name, "train/ant/x.webp");
    set = data_free(set);
    put("set/train/bee/y.BMP", "x", 1, false);
    want_open(&o, &set);
    assert_int_equal(data_info(set)->unread, 2);
    assert_int_equal(data_info(set)->count[DATA_TRAIN], 12);
    set = data_free(set);
}

static void test_set_without_parts_wants_a_rule(void **state)
{
    struct data_options o = options("box/set/train");
    struct data_set *set = NULL;
    bool seen[12] = {false};

    (void)state;
    put_folder();
    want_refused(&o, PD_ERR_INVALID, "use the rule standard, fraction or count");
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = 8;
    o.val_count = 4;
    want_open(&o, &set);
    for (int part = 0; part < 2; part++) /* no image is in both */
        for (int64_t k = 0; k < data_info(set)->count[part]; k++) {
            assert_false(seen[set->pick[part][k]]);
            seen[set->pick[part][k]] = true;
        }
    data_free(set);
    o.val_count = 5;
    want_refused(&o, PD_ERR_INVALID, "only 4 exist");
}

static void test_wrong_folders_are_refused_by_name(void **state)
{
    struct data_options o = options("box/set");
    char from[128], to[128];

    (void)state;
    put("empty/x.txt", "x", 1, false);
    o.path = "box/empty";
    want_refused(&o, PD_ERR_NOT_FOUND, "has no .jpg");
    o.path = "box/nowhere";
    want_refused(&o, PD_ERR_NOT_FOUND, "nowhere");
    put_folder();
    put_picture("set/val/dog/p.png", 9);
    o.path = "box/set";
    want_refused(&o, PD_ERR_INVALID, "the class 'dog'");
    put_picture("flat/p.png", 9);
    o.path = "box/flat";
    want_refused(&o, PD_ERR_INVALID, "not in a folder with the name of its class");
    put_picture("a/b/c/d/e/f/g/h/i/j/p.png", 9);
    o.path = "box/a";
    want_refused(&o, PD_ERR_LIMIT, "folders deep");
    put_picture("safe/train/x/p.png", 1);
    snprintf(from, sizeof from, "%s/set", folder);
    snprintf(to, sizeof to, "%s/safe/val", folder);
    assert_int_equal(symlink(from, to), 0);
    o.path = "box/safe";
    want_refused(&o, PD_ERR_DENIED, "leads outside");
}

static atomic_bool renames_end;

static void *rename_to_and_fro(void *path)
{
    char other[160];

    snprintf(other, sizeof other, "%s.moved", (const char *)path);
    while (!atomic_load(&renames_end)) {
        (void)rename(path, other);
        (void)rename(other, path);
    }
    return NULL;
}

/* The kernel gives up on a `..` if anything is renamed meanwhile, wherever it lies. */
static void test_links_are_followed_while_files_are_renamed(void **state)
{
    char link[128], moved[128];
    pthread_t thread;
    int dir;

    (void)state;
    put("set/train/ant/p.png", "x", 1, false);
    put("set/train/bee/q.png", "y", 1, false);
    put("elsewhere", "z", 1, false);
    snprintf(link, sizeof link, "%s/set/train/ant/link.png", folder);
    assert_int_equal(symlink("../ant/../ant/../ant/../ant/../ant/../ant/../bee/q.png", link), 0);
    snprintf(moved, sizeof moved, "%s/elsewhere", folder);
    dir = open(folder, O_PATH | O_DIRECTORY);
    assert_true(dir >= 0);
    assert_int_equal(pthread_create(&thread, NULL, rename_to_and_fro, moved), 0);
    for (int i = 0; i < 300000; i++) {
        int fd = data_open_beneath(dir, "set/train/ant/link.png", O_RDONLY);

        if (fd < 0)
            fail_msg("try %d: %s", i, strerror(errno));
        close(fd);
    }
    atomic_store(&renames_end, true);
    pthread_join(thread, NULL);
    close(dir);
}

/* A checkpoint could not be written, or would have another number of classes. */
static void test_class_that_a_checkpoint_cannot_name_is_refused(void **state)
{
    struct data_options o = options("box/set");
    struct data_set *set = NULL;

    (void)state;
    put_folder();
    put_picture("set/train/caf\xe9/p.png", 9); /* Latin-1 */
    want_refused(&o, PD_ERR_INVALID,
                 "#/data/path: the folder of 'train/caf\xe9/p.png' is no name of a class: it is "
                 "not UTF-8");
    put_picture("lines/train/a\nb/p.png", 9);
    o.path = "box/lines";
    want_refused(&o, PD_ERR_INVALID, "is no name of a class: it holds a control character");
    put_picture("words/train/caf\xc3\xa9 noir/p.png", 9);
    put_picture("words/val/caf\xc3\xa9 noir/p.png", 9);
    o.path = "box/words";
    want_open(&o, &set);
    data_free(set);
}

static void test_tiny_imagenet_notes_name_the_classes(void **state)
{
    struct data_options o = options("box/tiny");
    struct data_set *set = NULL;
    static const char notes[] = "val_1.png\tn2\t0\t0\t1\t1\nval_0.png\tn1\t0\t0\t1\t1\r\n";
    size_t n;
    char *all;

    (void)state;
    put_picture("tiny/train/n1/images/n1_0.png", 1);
    put_picture("tiny/train/n2/images/n2_0.png", 2);
    put_picture("tiny/val/images/val_0.png", 3);
    put_picture("tiny/val/images/val_1.png", 4);
    put("tiny/val/val_annotations.txt", notes, sizeof notes - 1, false);
    want_open(&o, &set);
    assert_int_equal(data_info(set)->classes, 2);
    all = draw(set, DATA_VAL, 2, 0, 1, 1, &n);
    assert_int_equal(((int32_t *)(void *)(all + n - 8))[0], 0);
    assert_int_equal(((int32_t *)(void *)(all + n - 8))[1], 1);
    free(all);
    data_free(set);
    put_picture("tiny/val/images/val_2.png", 5);
    want_refused(&o, PD_ERR_INVALID, "does not name");
}

static void test_threads_and_starts_change_no_batch(void **state)
{
    struct data_options o = options("box/set");
    struct data_set *set = NULL;
    size_t n, m;
    char *all, *late;

    (void)state;
    put_folder();
    o.crop = DATA_CROP_RRC;
    o.flip = 0.5;
    want_open(&o, &set);
    want_same(set, 1, set, 2, DATA_TRAIN, 8); /* three epochs of three batches */
    want_same(set, 1, set, 7, DATA_TRAIN, 8);
    want_same(set, 1, set, 3, DATA_VAL, 2);
    all = draw(set, DATA_TRAIN, 4, 0, 8, 2, &n);
    late = draw(set, DATA_TRAIN, 4, 5, 3, 2, &m);
    assert_memory_equal(all + n / 8 * 5, late, m);
    assert_memory_not_equal(all, all + n / 8 * 3, n / 8); /* epochs differ */
    free(all);
    free(late);
    data_free(set);
}

/* ---- archives ---- */

static void tar_header(uint8_t h[512], const char *name, size_t len, char type)
{
    unsigned sum = 0;

    memset(h, 0, 512);
    snprintf((char *)h, 100, "%s", name);
    memcpy(h + 100, "0000644", 8);
    snprintf((char *)h + 124, 12, "%011zo", len);
    h[156] = (uint8_t)type;
    memcpy(h + 257,
           "ustar\0"
           "00",
           8);
    memset(h + 148, ' ', 8);
    for (int i = 0; i < 512; i++)
        sum += h[i];
    snprintf((char *)h + 148, 8, "%06o", sum);
}

static void tar_add(struct pd_buf *b, const char *name, const void *bytes, size_t len, char type)
{
    uint8_t h[512];
    static const uint8_t zeros[512];

    tar_header(h, name, len, type);
    pd_buf_append(b, h, 512);
    pd_buf_append(b, bytes, len);
    if (len % 512)
        pd_buf_append(b, zeros, 512 - len % 512);
}

/* The archive of put_folder, with a long name, a pax name, a folder and a link among its entries. */
static void tar_of_folder(struct pd_buf *b)
{
    static const char *const classes[] = {"cat", "ant", "bee"};
    static const uint8_t zeros[1024];
    char name[64], pax[96];
    uint8_t bytes[32768], n = 1;

    tar_add(b, "./set/", "", 0, '5');
    tar_add(b, "./set/train/ant/link.png", "", 0, '2');
    for (int part = 0; part < 2; part++)
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < (part ? 2 : 4); i++, n++) {
                size_t len = picture(n, 12 + n % 5, 16 + n % 3, bytes, sizeof bytes);

                snprintf(name, sizeof name, "./set/%s/%s/p%d.png", part ? "val" : "train", classes[c], i);
                if (n == 3) {
                    tar_add(b, "././@LongLink", name, strlen(name) + 1, 'L');
                    tar_add(b, "cut", bytes, len, '0');
                } else if (n == 5) {
                    int body = snprintf(pax, sizeof pax, "00 path=%s\n", name);

                    pax[0] = (char)('0' + body / 10);
                    pax[1] = (char)('0' + body % 10);
                    tar_add(b, "PaxHeaders/x", pax, (size_t)body, 'x');
                    tar_add(b, "short", bytes, len, '0');
                } else {
                    tar_add(b, name, bytes, len, '0');
                }
            }
    pd_buf_append(b, zeros, sizeof zeros);
}

static void test_archive_is_as_its_folder(void **state)
{
    struct data_options o = options("box/set"), tar = options("box/all.tar"), zip = options("box/all.tar.gz");
    struct data_set *a = NULL, *b = NULL, *c = NULL;
    struct pd_buf bytes;

    (void)state;
    put_folder();
    pd_buf_init(&bytes, 0);
    tar_of_folder(&bytes);
    put("all.tar", bytes.data, bytes.len, false);
    put("all.tar.gz", bytes.data, bytes.len, true);
    o.crop = tar.crop = zip.crop = DATA_CROP_RRC;
    want_open(&o, &a);
    want_open(&tar, &b);
    want_open(&zip, &c);
    want_same(a, 1, b, 2, DATA_TRAIN, 4);
    want_same(a, 1, c, 2, DATA_TRAIN, 4);
    want_same(b, 2, c, 1, DATA_VAL, 2);
    data_free(a);
    data_free(b);
    data_free(c);
    put("all.tar", bytes.data, bytes.len - 1024 - 700, false); /* cut within a file */
    want_refused(&tar, PD_ERR_CORRUPT, "tar: ");
    put("all.tar", bytes.data, 100, false);
    want_refused(&tar, PD_ERR_CORRUPT, "not an archive");
    bytes.data[600] ^= 1;
    put("all.tar", bytes.data, bytes.len, false);
    want_refused(&tar, PD_ERR_CORRUPT, "no valid header");
    {
        char path[128];
        struct stat s;

        snprintf(path, sizeof path, "%s/all.tar.gz", folder);
        assert_int_equal(stat(path, &s), 0);
        assert_int_equal(truncate(path, s.st_size - 6), 0);
    }
    want_refused(&zip, PD_ERR_CORRUPT, "truncated");
    pd_buf_done(&bytes);
}

/* What unpacking leaves is the set: hidden folders are no classes, and the last of two files of one name counts. */
static void test_archive_has_what_its_folder_lists(void **state)
{
    static const uint8_t zeros[1024];
    struct data_options o = options("box/set"), tar = options("box/all.tar");
    struct data_set *a = NULL, *b = NULL;
    struct data_warning w[DATA_WARNINGS_MAX];
    struct pd_buf bytes;
    uint8_t other[32768], hidden[32768];
    const size_t len = picture(99, 12, 16, other, sizeof other),
                 hidden_len = picture(98, 12, 16, hidden, sizeof hidden);

    (void)state;
    put_folder();
    put("set/train/.ipynb_checkpoints/p0.png", hidden, hidden_len, false);
    pd_buf_init(&bytes, 0);
    tar_of_folder(&bytes);
    bytes.len -= sizeof zeros;
    tar_add(&bytes, "./set/train/.ipynb_checkpoints/p0.png", hidden, hidden_len, '0');
    tar_add(&bytes, "./set/train/.ipynb_checkpoints/p1.png", "", 0, '1');
    tar_add(&bytes, "set/train/bee/p1.png", other, len, '0');
    tar_add(&bytes, "./set/train/bee/again.png", "", 0, '1');
    pd_buf_append(&bytes, zeros, sizeof zeros);
    put("all.tar", bytes.data, bytes.len, false);
    put("set/train/bee/p1.png", other, len, false);
    want_open(&o, &a);
    want_open(&tar, &b);
    assert_int_equal(data_info(b)->classes, 3);
    for (int part = 0; part < 2; part++)
        assert_int_equal(data_info(b)->count[part], data_info(a)->count[part]);
    want_same(a, 1, b, 2, DATA_TRAIN, 4);
    want_same(a, 1, b, 2, DATA_VAL, 1);
    assert_int_equal(data_warnings(a, w), 0);
    assert_int_equal(data_warnings(b, w), 1);
    assert_string_equal(w[0].kind, "unread_links");
    assert_string_equal(w[0].fields, "files=2");
    assert_non_null(strstr(w[0].text, "set/train/ant/link.png"));
    data_free(a);
    data_free(b);
    pd_buf_done(&bytes);
}

/* ---- what cannot be decoded ---- */

static void test_bad_picture_is_named_counted_and_left_out(void **state)
{
    struct data_options o = options("box/set");
    struct data_set *set = NULL;
    char name[256], reason[256];
    size_t n;
    char *all;

    (void)state;
    put_folder();
    put("set/val/ant/p0.png", "\x89PNG\r\n\x1a\nbroken", 14, false);
    put("set/val/bee/p1.png", "GIF89a", 6, false);
    want_open(&o, &set);
    for (int again = 0; again < 2; again++) {
        all = draw(set, DATA_VAL, 6, 0, 1, 2, &n);
        assert_int_equal(((int32_t *)(void *)(all + n - 24))[0], DATA_IGNORE);
        assert_int_equal(((int32_t *)(void *)(all + n - 24))[1], 0);
        assert_int_equal(((int32_t *)(void *)(all + n - 24))[3], DATA_IGNORE);
        for (int i = 0; i < 3 * 64; i++)
            assert_int_equal(all[i], 0);
        free(all);
        assert_int_equal(data_bad_count(set), 2);
    }
    for (int i = 0; i < 2; i++) {
        assert_true(data_bad_next(set, name, reason));
        if (strcmp(name, "val/ant/p0.png") == 0)
            assert_non_null(strstr(reason, "PNG"));
        else
            assert_non_null(strstr(reason, "neither JPEG nor PNG"));
    }
    assert_false(data_bad_next(set, name, reason));
    data_free(set);
}

static void test_too_many_bad_pictures_fail_the_run(void **state)
{
    struct data_options o = options("box/bad");
    struct data_set *set = NULL;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    struct pd_why why = {""};
    char name[64];
    enum pd_err err = PD_OK;

    (void)state;
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "bad/train/x/%02d.jpg", i);
        put(name, "\xff\xd8\xff\xe0", 4, false);
    }
    put_picture("bad/val/x/1.png", 1);
    want_open(&o, &set);
    assert_int_equal(data_loader_start(set, DATA_TRAIN, 2, 1, 0, 2, &l, &why), PD_OK);
    for (int i = 0; i < 6 && err == PD_OK; i++)
        err = data_loader_next(l, &b, &why);
    assert_int_equal(err, PD_ERR_CORRUPT);
    assert_non_null(strstr(why.text, " of 13 pictures")); /* 11 or, with two threads, 12 by then */
    data_loader_free(l);
    data_free(set);
}

static void test_vanished_file_fails_the_run(void **state)
{
    struct data_options o = options("box/set");
    struct data_set *set = NULL;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    struct pd_why why = {""};
    char path[128];

    (void)state;
    put_folder();
    want_open(&o, &set);
    snprintf(path, sizeof path, "%s/set/val/ant/p0.png", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(data_loader_start(set, DATA_VAL, 2, 1, 0, 2, &l, &why), PD_OK);
    assert_int_equal(data_loader_next(l, &b, &why), PD_ERR_NOT_FOUND);
    assert_non_null(strstr(why.text, "p0.png"));
    data_loader_free(l);
    data_free(set);
}

/* ---- the cache of decoded pictures ---- */

static void one_cache_file(char out[256])
{
    char command[256];
    FILE *f;

    snprintf(command, sizeof command, "ls %s/*.cache", cache_folder);
    f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(out, 256, f));
    out[strcspn(out, "\n")] = 0;
    pclose(f);
}

static void flip_byte(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    uint8_t b;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= 0x55;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

static void test_decoded_cache_serves_the_same_pixels(void **state)
{
    struct data_options o = options("box/set"), kept;
    struct data_set *plain = NULL, *first = NULL, *second = NULL;
    struct data_work work;
    char path[256];
    struct stat s;

    (void)state;
    put_folder();
    put("set/train/bee/p9.png", "\x89PNG\r\n\x1a\n", 8, false); /* a bad one among them */
    o.crop = DATA_CROP_RRC;
    kept = o;
    kept.cache_dir = cache_folder;
    want_open(&o, &plain);
    want_open(&kept, &first);
    data_work(first, &work);
    assert_int_equal(work.decoded_pictures, 18);
    assert_int_equal(work.cache_misses, 1);
    want_open(&kept, &second);
    data_work(second, &work);
    assert_int_equal(work.decoded_pictures, 0);
    assert_int_equal(work.cache_hits, 1);
    want_same(plain, 1, first, 2, DATA_TRAIN, 5);
    want_same(plain, 1, second, 2, DATA_TRAIN, 5);
    want_same(plain, 1, second, 2, DATA_VAL, 2);
    assert_int_equal(data_bad_count(second), data_bad_count(plain));
    /* a pixel damaged on the disk: the original is decoded instead */
    one_cache_file(path);
    flip_byte(path, 200);
    want_same(plain, 1, second, 2, DATA_TRAIN, 5);
    data_free(first);
    data_free(second);
    /* a damaged table: the file goes, and is made anew */
    assert_int_equal(stat(path, &s), 0);
    flip_byte(path, s.st_size - 1);
    want_open(&kept, &first);
    data_work(first, &work);
    assert_int_equal(work.decoded_pictures, 18);
    want_same(plain, 1, first, 2, DATA_TRAIN, 5);
    data_free(first);
    /* other bytes are another content, though names and sizes are the same */
    put_picture("set/train/ant/p0.png", 77);
    want_open(&kept, &first);
    data_work(first, &work);
    assert_int_equal(work.decoded_pictures, 18);
    data_free(first);
    data_free(plain);
}

static void test_cache_that_cannot_be_made_is_done_without(void **state)
{
    struct data_options o = options("box/set");
    struct data_set *set = NULL;
    struct data_work work;

    (void)state;
    put_folder();
    put("kept", "a file where the folder should be", 33, false);
    o.cache_dir = cache_folder;
    want_open(&o, &set);
    data_work(set, &work);
    assert_int_equal(work.decoded_pictures, 0);
    want_same(set, 1, set, 2, DATA_TRAIN, 2);
    data_free(set);
}

/* ---- CIFAR-10 ---- */

static void put_cifar(const char *name, int count, uint8_t start, bool zip)
{
    uint8_t *records = malloc((size_t)count * DATA_CIFAR_RECORD);

    assert_non_null(records);
    for (int i = 0; i < count; i++) {
        uint8_t *r = records + i * DATA_CIFAR_RECORD;

        r[0] = (uint8_t)((start + i) % 10);
        memset(r + 1, start + i, 1024);
        memset(r + 1025, 100, 1024);
        memset(r + 2049, 200, 1024);
        r[1 + 1] = 7; /* red of the second pixel */
    }
    put(name, records, (size_t)count * DATA_CIFAR_RECORD, zip);
    free(records);
}

static void test_cifar_files_plain_and_gzip(void **state)
{
    struct data_options o = options("box/c10");
    struct data_set *set = NULL;
    const struct data_info *i;
    size_t n, area = 1024;
    char *all;
    const uint8_t *x;

    (void)state;
    o.dataset = DATA_SET_CIFAR10;
    o.height = o.width = 0;
    want_refused(&o, PD_ERR_NOT_FOUND, "c10");
    put_cifar("c10/data_batch_1.bin", 3, 0, false);
    put_cifar("c10/data_batch_2.bin.gz", 2, 3, true);
    put("c10/batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n", 21, false);
    want_refused(&o, PD_ERR_INVALID, "no validation part");
    put_cifar("c10/test_batch.bin", 2, 8, false);
    want_open(&o, &set);
    i = data_info(set);
    assert_int_equal(i->count[0], 5);
    assert_int_equal(i->count[1], 2);
    assert_string_equal(i->class_names[9], "j");
    all = draw(set, DATA_VAL, 2, 0, 1, 1, &n);
    x = (const uint8_t *)all;
    assert_int_equal(x[0], 8);
    assert_int_equal(x[1], 7);
    assert_int_equal(x[area], 100);
    assert_int_equal(x[2 * area + 5], 200);
    assert_int_equal(((int32_t *)(void *)(all + n - 8))[0], 8);
    free(all);
    set = data_free(set);
    put("c10/batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\n\xe9\n\n", 21, false); /* Latin-1 */
    want_open(&o, &set);
    assert_null(data_info(set)->class_names);
    set = data_free(set);
    o.path = "box/c10/data_batch_2.bin.gz";
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = o.val_count = 1;
    want_open(&o, &set);
    assert_null(data_info(set)->class_names);
    set = data_free(set);
    o.height = o.width = 20; /* another size than stored */
    o.crop = DATA_CROP_PAD;
    o.shift = 2;
    want_open(&o, &set);
    assert_int_equal(data_info(set)->width, 20);
    want_same(set, 1, set, 2, DATA_VAL, 1);
    data_free(set);
}

static void test_cifar_damage_is_refused(void **state)
{
    struct data_options o = options("box/c/data_batch_1.bin");
    char path[128];
    struct stat s;

    (void)state;
    o.dataset = DATA_SET_CIFAR10;
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = o.val_count = 1;
    put("c/data_batch_1.bin", "\1", 1, false);
    want_refused(&o, PD_ERR_CORRUPT, "not a multiple of a record");
    put_cifar("c/data_batch_1.bin", 2, 0, false);
    snprintf(path, sizeof path, "%s/c/data_batch_1.bin", folder);
    flip_byte(path, DATA_CIFAR_RECORD);
    want_refused(&o, PD_ERR_CORRUPT, "record 1 has the label");
    put_cifar("c/data_batch_1.bin.gz", 2, 0, true);
    snprintf(path, sizeof path, "%s/c/data_batch_1.bin.gz", folder);
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(truncate(path, s.st_size - 5), 0);
    o.path = "box/c/data_batch_1.bin.gz";
    want_refused(&o, PD_ERR_CORRUPT, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_folders_are_classes_in_byte_order),
        T(test_set_without_parts_wants_a_rule),
        T(test_wrong_folders_are_refused_by_name),
        T(test_links_are_followed_while_files_are_renamed),
        T(test_class_that_a_checkpoint_cannot_name_is_refused),
        T(test_tiny_imagenet_notes_name_the_classes),
        T(test_threads_and_starts_change_no_batch),
        T(test_archive_is_as_its_folder),
        T(test_archive_has_what_its_folder_lists),
        T(test_pictures_of_other_kinds_are_counted_and_one_is_named),
        T(test_bad_picture_is_named_counted_and_left_out),
        T(test_too_many_bad_pictures_fail_the_run),
        T(test_vanished_file_fails_the_run),
        T(test_decoded_cache_serves_the_same_pixels),
        T(test_cache_that_cannot_be_made_is_done_without),
        T(test_cifar_files_plain_and_gzip),
        T(test_cifar_damage_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
