/* daemon/worker/train/exchange.c: see exchange.h. */
#include "daemon/worker/train/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"

static enum pd_err hand_out(const struct session *s, const struct train_tensor *t,
                            const struct data_st *loaded, struct pd_why *why)
{
    size_t bytes = (size_t)t->st.bytes;
    void *host = malloc(bytes + 1);
    enum pd_err err = PD_OK;

    if (!host)
        return pd_fail(why, PD_ERR_NOMEM, "no memory to share '%s'", t->st.name);
    if (s->setup.rank == 0 && t->memory) {
        err = s->api->download(s->backend, host, t->memory, bytes, why);
    } else if (s->setup.rank == 0) {
        const struct data_st_tensor *from = loaded && !t->fresh ? data_st_find(loaded, t->st.name) : NULL;

        if (from)
            memcpy(host, from->data, bytes);
        else
            memset(host, 0, bytes); /* moments at the start */
    }
    if (err == PD_OK)
        err = ranks_share(s->ranks, host, bytes, 0, why);
    if (err == PD_OK && s->setup.rank > 0 && t->memory)
        err = s->api->upload(s->backend, t->memory, host, bytes, why);
    free(host);
    return err;
}

enum pd_err exchange_share(const struct session *s, const struct train_tensor *tensors, size_t count,
                           const struct data_st *loaded, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; s->ranks && i < count && err == PD_OK; i++)
        if (!tensors[i].st.data)
            err = hand_out(s, &tensors[i], loaded, why);
    return err;
}

enum pd_err exchange_compare(const struct session *s, const struct train_tensor *tensors, size_t count,
                             struct pd_why *why)
{
    uint8_t mine[DIGEST_SHA256_BYTES], first[DIGEST_SHA256_BYTES], other[DIGEST_SHA256_BYTES];
    struct digest_sha256 digest;
    int differs = 0;
    enum pd_err err = PD_OK;

    if (!s->ranks)
        return PD_OK;
    digest_sha256_init(&digest);
    for (size_t i = 0; i < count && err == PD_OK; i++) {
        size_t bytes = (size_t)tensors[i].st.bytes;
        void *host = malloc(bytes + 1);

        if (!host)
            return pd_fail(why, PD_ERR_NOMEM, "no memory to compare ranks");
        err = s->api->download(s->backend, host, tensors[i].memory, bytes, why);
        if (err == PD_OK)
            digest_sha256_update(&digest, host, bytes);
        free(host);
    }
    digest_sha256_final(&digest, mine);
    /* Every rank sees every digest, so that all of them fail: rank 0 writes no file of a network that is not the same
     * everywhere. */
    for (int rank = 0; rank < s->setup.ranks && err == PD_OK; rank++) {
        memcpy(other, mine, sizeof other);
        err = ranks_share(s->ranks, other, sizeof other, rank, why);
        if (rank == 0)
            memcpy(first, other, sizeof first);
        else if (!differs && memcmp(first, other, sizeof first) != 0)
            differs = rank;
    }
    if (err == PD_OK && differs)
        err = pd_fail(why, PD_ERR_CORRUPT, "the parameters of rank %d are not those of rank 0", differs);
    return err;
}

/* The tokenizer is no state of the optimiser, and averages are kept by all ranks. */
static bool is_moment(const struct train_tensor *t)
{
    return strncmp(t->st.name, "optim.", 6) == 0;
}

enum pd_err exchange_gather(const struct session *s, struct train_tensor *tensors, size_t count,
                            struct pd_why *why)
{
    const size_t params = model_param_count(s->setup.model), trained = model_trained_count(s->setup.model);
    enum pd_err err = PD_OK;

    if (!s->setup.options.zero)
        return PD_OK;
    for (size_t i = params; i < count && err == PD_OK; i++) {
        struct train_tensor *t = &tensors[i];
        size_t bytes = (size_t)t->st.bytes;
        int owner;
        void *host;

        if (t->st.data || !is_moment(t))
            continue;
        owner = model_param_owner(s->setup.model, (i - params) % trained, s->setup.ranks);
        if (owner == 0)
            continue;
        host = malloc(bytes + 1);
        if (!host)
            return pd_fail(why, PD_ERR_NOMEM, "no memory to gather '%s'", t->st.name);
        if (s->setup.rank == owner)
            err = s->api->download(s->backend, host, t->memory, bytes, why);
        if (err == PD_OK)
            err = ranks_share(s->ranks, host, bytes, owner, why);
        if (err == PD_OK && s->setup.rank == 0) {
            t->st.data = host;
            host = NULL; /* until exchange_ungather */
        }
        free(host);
    }
    return err;
}

void exchange_ungather(const struct session *s, struct train_tensor *tensors, size_t count)
{
    for (size_t i = model_param_count(s->setup.model); s->setup.options.zero && i < count; i++) {
        struct train_tensor *t = &tensors[i];

        if (t->st.data && !t->memory && is_moment(t)) {
            free((void *)(uintptr_t)t->st.data);
            t->st.data = NULL;
        }
    }
}
