/* Shuffles, votes and sums of a warp: each gathers its lanes (block.cc) and is carried out by the last to
 * come. */
#include <cuda_runtime.h>

void __syncwarp(unsigned mask)
{
    pk_emu_warp(mask, "__syncwarp", nullptr, nullptr, nullptr);
}

namespace
{

struct shuffle {
    enum pk_emu_shuffle kind;
    void *value;
    size_t size;
    int arg, width;
};

/* Of one warp's width and four bytes each, all lanes there: nearly all shuffles. */
bool shuffle_plain(void *const *lane)
{
    uint32_t old[32];

    for (int i = 0; i < 32; i++) {
        const shuffle *s = (const shuffle *)lane[i];

        if (!s || s->size != 4 || s->width != 32 ||
            (s->kind != PK_EMU_SHFL_IDX && s->kind != PK_EMU_SHFL_XOR))
            return false;
        memcpy(&old[i], s->value, 4);
    }
    for (int i = 0; i < 32; i++) {
        const shuffle *s = (const shuffle *)lane[i];

        memcpy(s->value, &old[s->kind == PK_EMU_SHFL_IDX ? s->arg & 31 : (i ^ s->arg) & 31], 4);
    }
    return true;
}

void shuffle_act(void *const *lane, void *)
{
    unsigned char old[32][16];

    if (shuffle_plain(lane))
        return;

    for (int i = 0; i < 32; i++)
        if (lane[i]) {
            const shuffle *s = (const shuffle *)lane[i];

            memcpy(old[i], s->value, s->size);
        }
    for (int i = 0; i < 32; i++) {
        const shuffle *s = (const shuffle *)lane[i];
        int first, from;

        if (!s)
            continue;
        first = i & ~(s->width - 1);
        switch (s->kind) {
        case PK_EMU_SHFL_IDX:
            from = first + (s->arg & (s->width - 1));
            break;
        case PK_EMU_SHFL_UP:
            from = i - s->arg < first ? i : i - s->arg;
            break;
        case PK_EMU_SHFL_DOWN:
            from = i + s->arg >= first + s->width ? i : i + s->arg;
            break;
        default:
            from = i ^ s->arg;
            if (from >= first + s->width)
                from = i;
        }
        if (from < 32 && lane[from])
            memcpy(s->value, old[from], s->size);
        else
            memset(s->value, 0xff, s->size); /* a lane that is not there gives anything */
    }
}

struct vote {
    int value, kind;
    unsigned result;
};

void ballot_act(void *const *lane, void *)
{
    unsigned bits = 0;

    for (int i = 0; i < 32; i++)
        if (lane[i] && ((vote *)lane[i])->value)
            bits |= 1u << i;
    for (int i = 0; i < 32; i++)
        if (lane[i])
            ((vote *)lane[i])->result = bits;
}

void reduce_act(void *const *lane, void *)
{
    int r = 0;
    bool first = true;

    for (int i = 0; i < 32; i++) {
        const vote *v = (const vote *)lane[i];

        if (!v)
            continue;
        if (first)
            r = v->value;
        else
            r = v->kind == 0   ? (int)((unsigned)r + (unsigned)v->value)
                : v->kind == 1 ? std::min(r, v->value)
                : v->kind == 2 ? std::max(r, v->value)
                : v->kind == 3 ? r | v->value
                               : r & v->value;
        first = false;
    }
    for (int i = 0; i < 32; i++)
        if (lane[i])
            ((vote *)lane[i])->result = (unsigned)r;
}

} // namespace

void pk_emu_shfl(enum pk_emu_shuffle kind, unsigned mask, void *value, size_t size, int arg, int width)
{
    static const char *const name[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
                                       "__shfl_xor_sync"};
    shuffle s = {kind, value, size, arg, width};

    if (width <= 0 || width > 32 || (width & (width - 1)))
        pk_emu_fail("%s: width %d is no power of two up to 32", name[kind], width);
    if (size > 16)
        pk_emu_fail("%s: %zu bytes", name[kind], size);
    pk_emu_warp(mask, name[kind], &s, shuffle_act, nullptr);
}

unsigned __ballot_sync(unsigned mask, int predicate)
{
    vote v = {predicate, 0, 0};

    pk_emu_warp(mask, "vote", &v, ballot_act, nullptr);
    return v.result;
}

int pk_emu_reduce(unsigned mask, int x, int kind)
{
    vote v = {x, kind, 0};

    pk_emu_warp(mask, "__reduce_sync", &v, reduce_act, nullptr);
    return (int)v.result;
}
