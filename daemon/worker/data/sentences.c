/* daemon/worker/data/sentences.c: sentences that polyd makes itself.
 *
 *   the old dogs near our river see the child and follow the king today
 *            |                   |                 |
 *            +------ many -------+-----------------+
 *
 * The number of the subject decides the form of every verb, across any number of places and objects. Every state
 * behind the subject is in the table twice: for one and for many. */
#include "daemon/worker/data/sentences.h"

#include <string.h>

#include "daemon/worker/data/philox.h"

enum state {
    BEGIN,
    ANY, /* behind "the": the noun decides the number */
    ONE,
    MANY,
    END,
    /* The subject is one, or many: behind a noun, a preposition, its article, a verb, its article, the object, "and". */
    ONE_NOUN,
    ONE_AT,
    ONE_PLACE,
    ONE_VERB,
    ONE_OBJECT,
    ONE_TAIL,
    ONE_AND,
    MANY_NOUN,
    MANY_AT,
    MANY_PLACE,
    MANY_VERB,
    MANY_OBJECT,
    MANY_TAIL,
    MANY_AND
};
_Static_assert(MANY_AND + 1 == DATA_SENTENCE_STATES, "the states of the table");

/* clang-format off */
/* Lists of words, each weight times k. They sum to 8, 32, 32, 16, 16 and 4. */
#define ADJECTIVES(k, to) {"old", 3 * k, to}, {"small", 2 * k, to}, {"red", 2 * k, to}, {"quiet", k, to}
#define NOUNS_ONE(k, to) \
    {"dog", 8 * k, to}, {"child", 6 * k, to}, {"bird", 5 * k, to}, {"king", 4 * k, to}, {"ship", 3 * k, to}, \
    {"tree", 3 * k, to}, {"river", 2 * k, to}, {"stone", k, to}
#define NOUNS_MANY(k, to) \
    {"dogs", 8 * k, to}, {"children", 6 * k, to}, {"birds", 5 * k, to}, {"kings", 4 * k, to}, {"ships", 3 * k, to}, \
    {"trees", 3 * k, to}, {"rivers", 2 * k, to}, {"stones", k, to}
#define VERBS_ONE(k, to) \
    {"sees", 5 * k, to}, {"finds", 4 * k, to}, {"likes", 3 * k, to}, {"follows", 2 * k, to}, {"hears", k, to}, \
    {"leaves", k, to}
#define VERBS_MANY(k, to) \
    {"see", 5 * k, to}, {"find", 4 * k, to}, {"like", 3 * k, to}, {"follow", 2 * k, to}, {"hear", k, to}, \
    {"leave", k, to}
#define PREPOSITIONS(k, to) {"near", 2 * k, to}, {"behind", k, to}, {"under", k, to}

#define CHOICES(name, ...) static const struct data_choice name[] = {__VA_ARGS__}
CHOICES(begin, {"the", 128, ANY}, {"a", 64, ONE}, {"some", 64, MANY});
CHOICES(any, ADJECTIVES(8, ANY), NOUNS_ONE(3, ONE_NOUN), NOUNS_MANY(3, MANY_NOUN));
CHOICES(one, ADJECTIVES(8, ONE), NOUNS_ONE(6, ONE_NOUN));
CHOICES(many, ADJECTIVES(8, MANY), NOUNS_MANY(6, MANY_NOUN));
CHOICES(end, {NULL, 256, BEGIN});
/* What follows on a subject, by its number N. */
#define NUMBER(n, N) \
    CHOICES(n##_noun, PREPOSITIONS(24, N##_AT), VERBS_##N(10, N##_VERB)); \
    CHOICES(n##_at, {"the", 192, N##_PLACE}, {"our", 64, N##_PLACE}); \
    CHOICES(n##_place, ADJECTIVES(8, N##_PLACE), NOUNS_ONE(3, N##_NOUN), NOUNS_MANY(3, N##_NOUN)); \
    CHOICES(n##_verb, {"the", 192, N##_OBJECT}, {"our", 64, N##_OBJECT}); \
    CHOICES(n##_object, ADJECTIVES(8, N##_OBJECT), NOUNS_ONE(3, N##_TAIL), NOUNS_MANY(3, N##_TAIL)); \
    CHOICES(n##_tail, {NULL, 128, BEGIN}, {"and", 80, N##_AND}, {"today", 32, END}, {"again", 16, END}); \
    CHOICES(n##_and, VERBS_##N(16, N##_VERB))
NUMBER(one, ONE);
NUMBER(many, MANY);

static const struct {
    const struct data_choice *choices;
    int count;
} states[DATA_SENTENCE_STATES] = {
#define STATE(name, list) [name] = {list, sizeof list / sizeof *list}
    STATE(BEGIN, begin), STATE(ANY, any), STATE(ONE, one), STATE(MANY, many), STATE(END, end),
    STATE(ONE_NOUN, one_noun), STATE(ONE_AT, one_at), STATE(ONE_PLACE, one_place), STATE(ONE_VERB, one_verb),
    STATE(ONE_OBJECT, one_object), STATE(ONE_TAIL, one_tail), STATE(ONE_AND, one_and),
    STATE(MANY_NOUN, many_noun), STATE(MANY_AT, many_at), STATE(MANY_PLACE, many_place), STATE(MANY_VERB, many_verb),
    STATE(MANY_OBJECT, many_object), STATE(MANY_TAIL, many_tail), STATE(MANY_AND, many_and),
};
/* clang-format on */

const struct data_choice *data_sentence_choices(int state, int *ret_count)
{
    *ret_count = states[state].count;
    return states[state].choices;
}

/* Writes one sentence; returns its bytes. From the first word that does not fit on, the rest is filled with
 * line ends. */
static size_t write_sentence(uint64_t seed, uint64_t number, uint8_t *to, size_t size)
{
    uint32_t draws[4];
    size_t at = 0;
    int state = BEGIN;

    for (uint32_t n = 0;; n++) {
        const struct data_choice *c = states[state].choices;
        uint32_t drawn;
        size_t len;

        if (n % 4 == 0)
            data_random(seed, DATA_STREAM_SENTENCE, n / 4, number, draws);
        drawn = draws[n % 4] >> 24;
        while (drawn >= c->weight)
            drawn -= (c++)->weight;
        if (!c->word) {
            to[at - 1] = '\n';
            return at;
        }
        len = strlen(c->word);
        if (len >= size - at) {
            memset(to + at, '\n', size - at);
            return size;
        }
        memcpy(to + at, c->word, len);
        to[at + len] = ' ';
        at += len + 1;
        state = c->next;
    }
}

void data_sentences_write(uint64_t seed, uint64_t first, uint8_t *to, size_t len)
{
    size_t at = 0;

    for (uint64_t number = first; at < len; number++)
        at += write_sentence(seed, number, to + at, len - at);
}
