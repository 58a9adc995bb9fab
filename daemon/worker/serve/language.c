/* The language model's graphs and their state for each sequence: keys and values of every position, or,
 * for x and x^2, a state of constant size (pk_attention_state).
 *
 * Every open stream owns a slot. The caches of all slots lie together, layer by layer (slot, head, position,
 * channel), so that a decoding graph of batch b sees any b neighbouring slots as one tensor. The slab grows
 * by doubling and goes when the last stream closes. A slot's stretch is a multiple of 64 positions: whatever
 * the width, each slot begins where a graph may be bound to.
 *
 * Two kinds of graphs: one sequence reading a chunk of tokens, and up to SERVE_DECODE_BATCH sequences reading
 * one token each. A row of a batch is computed by the same instructions whatever its neighbours: the products
 * of few rows are (kernels/backend/cpu/matmul.c), and nothing else looks beyond a row. So a completion is the
 * same, bit by bit, alone and in company. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/serve/internal.h"
#include "kernels/base/json.h"

#define COPY_BYTES (1u << 20)

static size_t slab_bytes(const struct serve *s, int32_t slots)
{
    return (size_t)s->slabs * (size_t)slots * s->slot_bytes;
}

/* A slot's stretch of slab number `n`: the keys of layer n / 2, or the values, or the state of layer n. */
static char *slot_at(const struct serve *s, int32_t slot, int32_t n)
{
    return (char *)s->slab + ((size_t)n * (size_t)s->slots + (size_t)slot) * s->slot_bytes;
}

/* Binds the caches of the slots from `slot` on, unless they are. */
static enum pd_err bind_slots(struct serve *s, struct serve_bucket *b, int32_t slot, struct pd_why *why)
{
    if (b->bound_slot == slot)
        return PD_OK;
    b->bound_slot = -1;
    for (int32_t n = 0; n < s->slabs; n++) {
        char name[32];
        enum pd_err err;

        if (s->state)
            snprintf(name, sizeof name, "state/%d", n);
        else
            snprintf(name, sizeof name, "cache_%c/%d", n % 2 ? 'v' : 'k', n / 2);
        err = pk_exec_bind(b->exec, name, slot_at(s, slot, n), why);
        if (err != PD_OK)
            return err;
    }
    b->bound_slot = slot;
    return PD_OK;
}

static enum pd_err copy_bytes(struct serve *s, char *to, const char *from, size_t bytes, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t at = 0; err == PD_OK && at < bytes; at += COPY_BYTES) {
        size_t n = bytes - at < COPY_BYTES ? bytes - at : COPY_BYTES;

        err = s->api->download(s->backend, s->copy, from + at, n, why);
        if (err == PD_OK)
            err = s->api->upload(s->backend, to + at, s->copy, n, why);
    }
    return err;
}

/* The first `used` positions of a slot (all of a state), from one slab's layout to another's. */
static enum pd_err copy_slot(struct serve *s, char *to, const char *from, size_t used, struct pd_why *why)
{
    size_t head = s->slot_bytes / (size_t)s->heads, row = head / (size_t)s->cache_length;
    enum pd_err err = PD_OK;

    if (s->state)
        return copy_bytes(s, to, from, used ? s->slot_bytes : 0, why);
    for (int32_t h = 0; err == PD_OK && h < s->heads; h++)
        err = copy_bytes(s, to + (size_t)h * head, from + (size_t)h * head, used * row, why);
    return err;
}

static enum pd_err clear_bytes(struct serve *s, char *at, size_t bytes, struct pd_why *why)
{
    static const char zeros[1 << 16];
    enum pd_err err = PD_OK;

    for (size_t done = 0; done < bytes && err == PD_OK; done += sizeof zeros)
        err = s->api->upload(s->backend, at + done, zeros,
                             bytes - done < sizeof zeros ? bytes - done : sizeof zeros, why);
    return err;
}

static void unbind_all(struct serve *s)
{
    for (size_t i = 0; i < s->buckets; i++)
        s->bucket[i].bound_slot = -1;
}

static enum pd_err grow(struct serve *s, struct pd_why *why)
{
    int32_t most = (int32_t)s->info.streams_max, slots = s->slots ? s->slots * 2 : 1;
    struct serve old = *s; /* its slab and number of slots, for the addresses */
    void *slab = NULL;
    enum pd_err err;

    /* As many as a decoding graph has rows, then by whole graphs of the largest size. */
    if (most <= SERVE_DECODE_BATCH && slots > most)
        slots = most;
    else if (s->slots >= SERVE_DECODE_BATCH)
        slots = s->slots + SERVE_DECODE_BATCH;
    err = serve_alloc(s, slab_bytes(s, slots), &s->memory.cache_bytes, &slab, why);
    if (err != PD_OK)
        return err;
    s->slab = slab;
    s->slots = slots;
    if (!s->api->host_memory) /* a kernel may multiply what lies beyond a text by zero: let it be a number */
        err = clear_bytes(s, slab, slab_bytes(s, slots), why);
    for (int32_t i = 0; i < old.slots && err == PD_OK; i++) {
        if (!s->slot[i].used)
            continue;
        for (int32_t n = 0; n < s->slabs && err == PD_OK; n++)
            err = copy_slot(s, slot_at(s, i, n), slot_at(&old, i, n), s->slot[i].used, why);
    }
    if (err != PD_OK) {
        s->slab = old.slab;
        s->slots = old.slots;
        s->api->free(s->backend, slab);
        s->memory.cache_bytes -= slab_bytes(s, slots);
        return err;
    }
    unbind_all(s);
    if (old.slab) {
        s->api->free(s->backend, old.slab);
        s->memory.cache_bytes -= slab_bytes(s, old.slots);
    }
    return PD_OK;
}

enum pd_err serve_slot_take(struct serve *s, struct serve_stream *owner, int32_t *ret, struct pd_why *why)
{
    int32_t i = 0;
    enum pd_err err = PD_OK;

    while (i < s->slots && s->slot[i].open)
        i++;
    if (i == s->slots)
        err = grow(s, why);
    if (err != PD_OK)
        return err;
    s->slot[i] = (struct serve_slot){.open = true, .owner = owner};
    *ret = i;
    return PD_OK;
}

void serve_slot_give(struct serve *s, int32_t slot)
{
    size_t head = s->slot_bytes / (size_t)s->heads;
    size_t used = s->slot[slot].used * (head / (size_t)s->cache_length);
    bool any = false;

    if (s->state)
        used = s->slot[slot].used ? s->slot_bytes : 0;

    s->slot[slot] = (struct serve_slot){.open = false};
    for (int32_t i = 0; i < s->slots; i++)
        any = any || s->slot[i].open;
    if (!any) {
        s->api->free(s->backend, s->slab);
        s->memory.cache_bytes -= slab_bytes(s, s->slots);
        s->slab = NULL;
        s->slots = 0;
        unbind_all(s);
        return;
    }
    /* A stream never reads beyond what it wrote itself. Zeros make sure that no bit of a client's text stays.
     */
    for (int32_t n = 0; n < s->slabs; n++) {
        for (int32_t h = 0; h < (s->state ? 1 : s->heads); h++) {
            char *at = slot_at(s, slot, n) + (size_t)h * head;

            /* Back-end memory that cannot be written fails the next run too. */
            if (clear_bytes(s, at, used, NULL) != PD_OK)
                return;
        }
    }
}

static void slot_wrote(struct serve *s, int32_t slot, size_t positions)
{
    if (s->slot[slot].used < positions)
        s->slot[slot].used = positions;
}

/* ---- running ---- */

static enum pd_err upload_inputs(struct serve *s, const struct serve_rows *rows, int32_t batch,
                                 int32_t tokens, int32_t picks, struct pd_why *why)
{
    size_t bytes = (size_t)batch * (size_t)tokens * sizeof(int32_t), one = (size_t)batch * sizeof(int32_t);
    const struct {
        void *to;
        const int32_t *from;
        size_t bytes;
    } inputs[] = {{s->input, rows->token, bytes},
                  {s->pos, rows->pos, bytes},
                  {s->position, rows->position, one},
                  {s->length, rows->length, one},
                  {s->pick, rows->pick, (size_t)picks * sizeof(int32_t)}};
    enum pd_err err = PD_OK;

    for (size_t i = 0; err == PD_OK && i < sizeof inputs / sizeof inputs[0]; i++)
        err = s->api->upload(s->backend, inputs[i].to, inputs[i].from, inputs[i].bytes, why);
    return err;
}

static enum pd_err run_bucket(struct serve *s, struct serve_bucket *b, int32_t slot,
                              const struct serve_rows *rows, struct pd_why *why)
{
    enum pd_err err = bind_slots(s, b, slot, why);

    if (err == PD_OK)
        err = upload_inputs(s, rows, b->batch, b->size, b->picks, why);
    if (err == PD_OK)
        err = pk_exec_run(b->exec, why);
    if (err == PD_OK)
        err = pk_exec_read(b->exec, "logits", s->staging,
                           (size_t)b->picks * (size_t)s->columns * sizeof(float), why);
    return err;
}

enum pd_err serve_chunk_read(struct serve *s, int32_t slot, const int32_t *tokens, int32_t left,
                             int32_t position, bool every, int32_t *ret_read, struct pd_why *why)
{
    struct serve_rows *rows = &s->rows;
    struct serve_bucket *b = NULL;
    int32_t count;
    enum pd_err err;

    /* The smallest chunk that reads all at once, else the largest; padding must not run past a cache. */
    for (size_t i = 0; i < s->buckets; i++) {
        struct serve_bucket *x = &s->bucket[i];

        if (x->batch > 1 || x->every != every || (!s->state && position + x->size > s->cache_length))
            continue;
        if (!b || b->size < left)
            b = x;
    }
    if (!b)
        return pd_fail(why, PD_ERR_INTERNAL, "no chunk size fits position %d", position);
    count = left < b->size ? left : b->size;
    for (int32_t i = 0; i < b->size; i++) {
        rows->token[i] = i < count ? tokens[i] : 0;
        rows->pos[i] = position + i < s->info.context ? position + i : (int32_t)s->info.context - 1;
    }
    rows->position[0] = position;
    /* A cache takes the padding too, where the next chunk overwrites it; a state must not. */
    rows->length[0] = position + (s->state ? count : b->size);
    for (int32_t i = 0; i < b->picks; i++)
        rows->pick[i] = b->every ? i : count - 1;
    err = run_bucket(s, b, slot, rows, why);
    if (err != PD_OK)
        return err;
    slot_wrote(s, slot, (size_t)(position + b->size));
    *ret_read = count;
    return PD_OK;
}

/* Rows that are computed for so many. */
static int32_t decode_size(const struct serve *s, int32_t rows)
{
    int32_t largest = 1;

    for (size_t i = 0; i < s->buckets; i++) {
        if (s->bucket[i].size != 1 || s->bucket[i].every)
            continue;
        if (s->bucket[i].batch >= rows)
            return s->bucket[i].batch;
        largest = s->bucket[i].batch;
    }
    /* Beyond the largest graph there are several runs: what matters then is how many. */
    return (rows + largest - 1) / largest * largest;
}

/* The highest slot in use moves down into a hole, if that makes a smaller graph do. */
static enum pd_err close_gaps(struct serve *s, struct pd_why *why)
{
    for (;;) {
        int32_t high = s->slots - 1, low = 0, open = 0;
        enum pd_err err = PD_OK;

        while (high >= 0 && !s->slot[high].open)
            high--;
        while (low < s->slots && s->slot[low].open)
            low++;
        for (int32_t i = 0; i <= high; i++)
            open += s->slot[i].open;
        if (low > high || decode_size(s, open) >= decode_size(s, high + 1))
            return PD_OK;
        for (int32_t n = 0; n < s->slabs && err == PD_OK; n++)
            err = copy_slot(s, slot_at(s, low, n), slot_at(s, high, n), s->slot[high].used, why);
        if (err != PD_OK)
            return err;
        s->slot[low] = s->slot[high];
        s->slot[high] = (struct serve_slot){.open = false};
        serve_stream_moved(s->slot[low].owner, low);
    }
}

enum pd_err serve_decode_begin(struct serve *s, struct pd_why *why)
{
    return close_gaps(s, why);
}

enum pd_err serve_decode_group(struct serve *s, int32_t first, const struct serve_next *next, int32_t count,
                               struct pd_why *why)
{
    struct serve_rows *rows = &s->rows;
    struct serve_bucket *b = NULL;
    enum pd_err err;

    for (size_t i = 0; i < s->buckets && !(b && b->batch >= count); i++) {
        if (s->bucket[i].size == 1 && !s->bucket[i].every && first + s->bucket[i].batch <= s->slots)
            b = &s->bucket[i];
    }
    for (int32_t r = 0; r < b->batch; r++) {
        const struct serve_next *n = r < count ? &next[r] : &(struct serve_next){.there = false};
        int32_t slot = first + r, position = n->position;

        /* A row without a stream, or of a stream that rests, reads a token too: where the slot's owner writes
         * next. A state takes none: its length says so. */
        if (!n->there)
            position = s->slot[slot].owner ? serve_stream_position(s->slot[slot].owner) : 0;
        if (!s->state && position >= s->cache_length)
            position = 0; /* full: its owner reads all of it again */
        rows->token[r] = n->there ? n->token : 0;
        rows->pos[r] = position < s->info.context ? position : (int32_t)s->info.context - 1;
        rows->position[r] = position;
        rows->length[r] = n->there ? position + 1 : s->state ? position : 1;
        rows->pick[r] = r;
    }
    err = run_bucket(s, b, first, rows, why);
    for (int32_t r = 0; err == PD_OK && r < b->batch; r++)
        slot_wrote(s, first + r, (size_t)rows->position[r] + 1);
    return err;
}

/* ---- opening ---- */

static enum pd_err read_tokenizer(struct serve *s, const struct data_st *st, const char *path,
                                  struct pd_why *why)
{
    (void)path;
    return serve_tokenizer_read(s, st, why);
}

static enum pd_err add_bucket(struct serve *s, int32_t batch, int32_t size, bool every, struct pd_why *why)
{
    const struct {
        const char *name;
        void *memory;
    } inputs[] = {{"input", s->input},
                  {"pos", s->pos},
                  {"position", s->position},
                  {"length", s->length},
                  {"pick", s->pick}};
    struct pk_graph *graph = NULL;
    struct serve_bucket *b;
    enum pd_err err = every ? model_graph_score(s->model, size, s->state ? 0 : s->cache_length, &graph, why)
                      : s->state ? model_graph_decode_state(s->model, batch, size, &graph, why)
                                 : model_graph_decode(s->model, batch, size, s->cache_length, &graph, why);

    if (err != PD_OK)
        return err;
    err = serve_bucket_add(s, graph, size, why);
    if (err == PD_OK)
        err = serve_fits(s, slab_bytes(s, (int32_t)s->info.streams_max), why);
    if (err != PD_OK)
        return err;
    b = &s->bucket[s->buckets - 1];
    b->batch = batch;
    b->every = every;
    b->picks = every ? size : batch;
    b->bound_slot = -1;
    for (size_t k = 0; err == PD_OK && k < sizeof inputs / sizeof inputs[0]; k++)
        err = pk_exec_bind(b->exec, inputs[k].name, inputs[k].memory, why);
    return err;
}

/* Each graph that one slot is enough for runs once: page faults and first-call costs are paid here. */
static enum pd_err warm_up(struct serve *s, struct pd_why *why)
{
    int32_t slot = 0, read;
    enum pd_err err = serve_slot_take(s, NULL, &slot, why);

    if (err != PD_OK)
        return err;
    for (size_t i = 0; err == PD_OK && i < s->buckets; i++) {
        int32_t tokens[SERVE_CHUNK] = {0};

        if (s->bucket[i].batch == 1)
            err = serve_chunk_read(s, slot, tokens, s->bucket[i].size, 0, s->bucket[i].every, &read, why);
    }
    serve_slot_give(s, slot);
    return err;
}

/* Cache or state: by the option, else what is smaller. The state of x is as large as the keys and values of d
 * / 2 positions, that of x^2 as those of d (d + 1) / 4. */
static enum pd_err choose_memory(struct serve *s, const struct model_spec *spec, struct pd_why *why)
{
    int64_t d = spec->width / spec->heads, features = pk_attention_features(spec->attention.degree, d);
    size_t bytes = (size_t)(spec->heads * features * d) * sizeof(float);
    bool can = model_has_state(spec) && bytes % 256 == 0; /* or a slot could not be bound to */

    s->cache_length = (spec->context + 63) / 64 * 64;
    if (s->memory_kind == SERVE_MEMORY_STATE && !can)
        return pd_fail(
            why, PD_ERR_UNSUPPORTED,
            "serve.decode state requires attention x or x^2 without a bias, which this model does not have");
    s->state = s->memory_kind == SERVE_MEMORY_STATE ||
               (s->memory_kind == SERVE_MEMORY_AUTO && can && features < 2 * (int64_t)s->cache_length);
    s->slabs = s->state ? spec->depth : 2 * spec->depth;
    s->slot_bytes = s->state ? bytes
                             : (size_t)s->cache_length * (size_t)spec->width *
                                   pk_dtype_size(spec->mixed ? PK_BF16 : PK_F32);
    s->info.stream_bytes = (size_t)s->slabs * s->slot_bytes;
    s->info.state = s->state;
    /* Without position embeddings nothing ends a state. */
    s->info.positions = s->state && !spec->pos ? SERVE_POSITIONS_MAX : spec->context;
    return PD_OK;
}

static enum pd_err open_graphs(struct serve *s, struct pd_why *why)
{
    static const int32_t chunks[] = {16, 64, SERVE_CHUNK};
    const struct model_spec *spec = model_spec(s->model);
    size_t bytes = SERVE_CHUNK * sizeof(int32_t), most = s->info.streams_max,
           *total = &s->memory.inputs_bytes;
    int32_t score;
    void **inputs[] = {&s->input, &s->pos, &s->position, &s->length, &s->pick};
    enum pd_err err = PD_OK;

    s->info.outputs = data_tokenizer_vocab(s->tokenizer);
    s->columns = spec->vocab; /* those beyond are padding: never chosen, never scored */
    s->info.context = spec->context;
    s->heads = spec->heads;
    err = choose_memory(s, spec, why);
    if (err != PD_OK)
        return err;
    if (most > SERVE_DECODE_BATCH)
        most = SERVE_DECODE_BATCH;
    score = spec->context < SERVE_SCORE ? spec->context : SERVE_SCORE;
    s->staging =
        calloc((size_t)spec->vocab * (most > (size_t)score ? most : (size_t)score), sizeof *s->staging);
    s->copy = malloc(COPY_BYTES);
    if (!s->staging || !s->copy)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the logits");
    for (size_t i = 0; err == PD_OK && i < sizeof inputs / sizeof inputs[0]; i++)
        err = serve_alloc(s, bytes, total, inputs[i], why);
    for (int32_t batch = 1; err == PD_OK;) {
        err = add_bucket(s, batch, 1, false, why);
        if (batch == (int32_t)most)
            break;
        batch = batch * 2 < (int32_t)most ? batch * 2 : (int32_t)most;
    }
    for (size_t i = 0; err == PD_OK && i < sizeof chunks / sizeof chunks[0]; i++) {
        if (chunks[i] <= s->info.context)
            err = add_bucket(s, 1, chunks[i], false, why);
    }
    if (err == PD_OK)
        err = add_bucket(s, 1, score, true, why);
    return err == PD_OK ? warm_up(s, why) : err;
}

static void put_signature(const struct serve *s, struct pd_buf *out)
{
    const struct serve_info *i = &s->info;

    pd_json_kv_str(out, "tokenizer", data_tokenizer_kind_name(data_tokenizer_kind(s->tokenizer)));
    pd_json_key(out, "inputs");
    pd_json_open(out, '[');
    serve_put_tensor(out, "prompt", "UINT8", NULL, 0);
    pd_json_close(out, ']');
    pd_json_key(out, "outputs");
    pd_json_open(out, '[');
    serve_put_tensor(out, "text", "UINT8", NULL, 0);
    serve_put_tensor(out, "tokens", "INT32", NULL, 0);
    pd_json_close(out, ']');
    pd_json_kv_int(out, "vocabulary", i->outputs);
    pd_json_kv_int(out, "context", i->context);
    pd_json_kv_uint(out, "streams_max", i->streams_max);
    pd_json_kv_str(out, "weights", pk_dtype_name(model_param_dtype(s->model, 0)));
    pd_json_kv_str(out, "decode", i->state ? "state" : "cache");
    pd_json_kv_uint(out, "stream_bytes", i->stream_bytes);
}

const struct serve_kind serve_kind_language = {.name = "language",
                                               .narrow = true,
                                               .read = read_tokenizer,
                                               .open = open_graphs,
                                               .signature = put_signature};
