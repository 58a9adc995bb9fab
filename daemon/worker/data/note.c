/* daemon/worker/data/note.c: the digest of the files that a data set was read from.
 *
 * It is the SHA-256 of a list with a line for each file, in the order in which they are read, as sha256sum would print
 * it with the size between: "<sha256>  <bytes>  <name>\n". Files that are read whole when the set is opened are
 * summed as they are read, unpacked if they are gzip'd, and named without ".gz": the same text packed is the same text.
 * Of pictures, which are read one by one while training goes on, the list has names and sizes, and "-" for the sum. */
#include <stdio.h>
#include <string.h>

#include "daemon/worker/data/set.h"
#include "kernels/base/text.h"

static void add_line(struct data_set *set, const char *sum, uint64_t size, const char *name)
{
    struct data_note *n = &set->note;
    const size_t len = strlen(name) - (pd_text_ends(name, ".gz") ? 3 : 0);
    char head[DIGEST_SHA256_HEX_SIZE + 32];

    if (!n->files++)
        digest_sha256_init(&n->list);
    digest_sha256_update(&n->list, head,
                         (size_t)snprintf(head, sizeof head, "%s  %llu  ", sum, (unsigned long long)size));
    digest_sha256_update(&n->list, name, len);
    digest_sha256_update(&n->list, "\n", 1);
}

void data_note_file(struct data_set *set, const char *name, const void *head, size_t head_len,
                    const void *rest, size_t rest_len)
{
    struct digest_sha256 sum;
    uint8_t bytes[DIGEST_SHA256_BYTES];
    char hex[DIGEST_SHA256_HEX_SIZE];
    const char *slash = strrchr(name, '/');

    digest_sha256_init(&sum);
    digest_sha256_update(&sum, head, head_len);
    digest_sha256_update(&sum, rest, rest_len);
    digest_sha256_final(&sum, bytes);
    /* A single file is named by itself, wherever it lies; documents by their paths below the set's folder. */
    if (!data_of_documents(set) && slash)
        name = slash + 1;
    add_line(set, digest_hex(bytes, sizeof bytes, hex), head_len + rest_len, name);
}

void data_note_name(struct data_set *set, const char *name, uint64_t size)
{
    set->note.names = true;
    add_line(set, "-", size, name);
}

void data_note_end(struct data_set *set)
{
    uint8_t bytes[DIGEST_SHA256_BYTES];

    if (!set->note.files)
        return;
    digest_sha256_final(&set->note.list, bytes);
    digest_hex(bytes, sizeof bytes, set->info.digest);
    set->info.digest_of = set->note.names ? "names_and_sizes" : "contents";
}
