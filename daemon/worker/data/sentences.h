/* daemon/worker/data/sentences.h: private to this module: the text of text_gen.
 *
 * The source is a Markov chain of states. Each state draws one choice, which writes a word and leads to the next state
 * or ends the sentence. Within a state every choice writes a different word. The words of a sentence therefore
 * determine its states, and the entropy (struct job_dataset_info) follows from the table. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct data_choice {
    const char *word; /* NULL: the sentence ends */
    uint16_t weight;  /* of 256 */
    uint8_t next;     /* state */
};

#define DATA_CHOICE_WHOLE 256   /* the weights of a state sum to this */
#define DATA_SENTENCE_STATES 19 /* a sentence begins in state 0 */

/* The choices of a state, in the order in which they share 0 .. 255. Static. */
const struct data_choice *data_sentence_choices(int state, int *ret_count);

/* Writes `len` bytes to `to`: sentence number `first` and the following ones, with blanks between words and a newline
 * after each sentence. The space left by the first word that does not fit is filled with newlines. A pure function of
 * its arguments. */
void data_sentences_write(uint64_t seed, uint64_t first, uint8_t *to, size_t len);
