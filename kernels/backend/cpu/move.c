/* Movement of elements: COPY (also casting), FILL, CONCAT, PAD, GATHER, ONE_HOT, CACHE_APPEND. */
#include <string.h>

#include "kernels/backend/cpu/cpu.h"
#include "kernels/backend/cpu/move.h"

#if defined __SSE2__
#include <xmmintrin.h>
#endif

#define TASK 65536 /* elements of one task */
#define PATCH 16   /* side of a square that is transposed in the first-level cache */

static int64_t count_of(const struct pk_shape *s)
{
    int64_t n = 1;

    for (int i = 0; i < s->rank; i++)
        n *= s->dim[i];
    return n;
}

/* A strided copy between two layouts of the same shape; strides in elements. */
struct move {
    int rank;
    int64_t dim[PK_MAX_RANK], from_stride[PK_MAX_RANK], to_stride[PK_MAX_RANK];
    size_t size; /* of an element */
    const char *from;
    char *to;
    int64_t outer, patch_axis; /* patch_axis >= 0: the source is dense along that axis */
    const struct cpu_ops *ops;
    bool past; /* lines are stored past the caches */
};

#define CACHE_LINE 64
#define LONG_RUN 16384 /* bytes */

static void move_line(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t n,
                      size_t size)
{
    if (to_stride == 1 && from_stride == 1) {
        memcpy(to, from, (size_t)n * size);
        return;
    }
#define LINE(type)                                                                                           \
    for (int64_t i = 0; i < n; i++)                                                                          \
    ((type *)(void *)to)[i * to_stride] = ((const type *)(const void *)from)[i * from_stride]
    switch (size) {
    case 1:
        LINE(uint8_t);
        break;
    case 2:
        LINE(uint16_t);
        break;
    case 4:
        LINE(uint32_t);
        break;
    default:
        LINE(uint64_t);
    }
#undef LINE
}

/* Lines one after the other: their offsets are carried along like the digits of a counter, because divisions for each
 * line would take as long as copying it. */
static void move_task(void *arg, int64_t task, int thread)
{
    const struct move *m = arg;
    const int last = m->rank - 1;
    const int64_t lines = cpu_max(1, TASK / cpu_max(1, m->dim[last])), first = task * lines,
                  end = cpu_min(m->outer, first + lines);
    int64_t digit[PK_MAX_RANK] = {0}, rest = first;
    int64_t to = cpu_offset(m->dim, m->to_stride, last, first),
            from = cpu_offset(m->dim, m->from_stride, last, first);

    (void)thread;
    for (int i = last - 1; i >= 0; rest /= m->dim[i--])
        digit[i] = rest % m->dim[i];
    for (int64_t o = first; o < end; o++) {
        if (m->past)
            m->ops->stream((size_t)m->dim[last] * m->size, m->from + (size_t)from * m->size,
                           m->to + (size_t)to * m->size);
        else
            move_line(m->to + (size_t)to * m->size, m->to_stride[last], m->from + (size_t)from * m->size,
                      m->from_stride[last], m->dim[last], m->size);
        for (int i = last - 1; i >= 0; i--) {
            to += m->to_stride[i];
            from += m->from_stride[i];
            if (++digit[i] < m->dim[i])
                break;
            to -= digit[i] * m->to_stride[i];
            from -= digit[i] * m->from_stride[i];
            digit[i] = 0;
        }
    }
#if defined __SSE2__
    if (m->past)
        _mm_sfence();
#endif
}

/* Whether each line is a run of whole, aligned cache lines, and all of them are more than the caches hold. The C library
 * does the same with long runs by itself, in the processor's own way. */
static bool goes_past(const struct move *m)
{
    const int last = m->rank - 1;
    bool whole = m->from_stride[last] == 1 && m->to_stride[last] == 1 && (uintptr_t)m->to % CACHE_LINE == 0 &&
                 (size_t)m->dim[last] * m->size % CACHE_LINE == 0 &&
                 (size_t)m->dim[last] * m->size <= LONG_RUN;

    for (int i = 0; i < last; i++)
        whole = whole && (size_t)m->to_stride[i] * m->size % CACHE_LINE == 0;
    return whole && (size_t)(m->outer * m->dim[last]) * m->size >= CPU_PAST_BYTES;
}

/* Tasks are rows of patches: positions of the axes other than the patch axis and the last. */
static void patch_task(void *arg, int64_t task, int thread)
{
    const struct move *m = arg;
    int last = m->rank - 1, a = (int)m->patch_axis;
    int64_t strips = cpu_div_up(m->dim[a], PATCH), a0 = task % strips * PATCH,
            na = cpu_min(PATCH, m->dim[a] - a0);
    int64_t o = task / strips, from = a0 * m->from_stride[a], to = a0 * m->to_stride[a];

    (void)thread;
    for (int i = last - 1; i >= 0; i--) {
        if (i == a)
            continue;
        from += o % m->dim[i] * m->from_stride[i];
        to += o % m->dim[i] * m->to_stride[i];
        o /= m->dim[i];
    }
    for (int64_t l = 0; l < m->dim[last]; l += PATCH) {
        int64_t nl = cpu_min(PATCH, m->dim[last] - l);

        for (int64_t r = 0; r < na; r++)
            move_line(m->to + (size_t)(to + r * m->to_stride[a] + l * m->to_stride[last]) * m->size,
                      m->to_stride[last],
                      m->from + (size_t)(from + r * m->from_stride[a] + l * m->from_stride[last]) * m->size,
                      m->from_stride[last], nl, m->size);
    }
}

static void move_strided(struct pk_backend *b, size_t size, const struct pk_shape *shape, const void *from,
                         const int64_t *from_stride, void *to, const int64_t *to_stride)
{
    struct move m = {.ops = cpu_ops_of(b->level, false),
                     .size = size,
                     .from = from,
                     .to = to,
                     .outer = 1,
                     .patch_axis = -1};
    int64_t others;

    if (count_of(shape) == 0)
        return;
    for (int i = 0; i < shape->rank; i++) {
        int64_t d = shape->dim[i];

        if (d == 1)
            continue;
        if (m.rank > 0 && m.from_stride[m.rank - 1] == d * from_stride[i] &&
            m.to_stride[m.rank - 1] == d * to_stride[i]) {
            m.dim[m.rank - 1] *= d;
            m.from_stride[m.rank - 1] = from_stride[i];
            m.to_stride[m.rank - 1] = to_stride[i];
        } else {
            m.dim[m.rank] = d;
            m.from_stride[m.rank] = from_stride[i];
            m.to_stride[m.rank++] = to_stride[i];
        }
    }
    if (m.rank == 0) {
        m.dim[0] = m.from_stride[0] = m.to_stride[0] = 1;
        m.rank = 1;
    }
    if (m.rank == 1 && m.from_stride[0] == 1 && m.to_stride[0] == 1 && m.dim[0] > TASK) {
        /* One long run: cut it, so that it is shared out. */
        int64_t tail = m.dim[0] % TASK, head = m.dim[0] - tail;

        if (tail)
            memcpy(m.to + (size_t)head * size, m.from + (size_t)head * size, (size_t)tail * size);
        m.rank = 2;
        m.dim[0] = head / TASK;
        m.dim[1] = TASK;
        m.from_stride[0] = m.to_stride[0] = TASK;
        m.from_stride[1] = m.to_stride[1] = 1;
    }
    for (int i = 0; i < m.rank - 1; i++) {
        m.outer *= m.dim[i];
        if (m.from_stride[m.rank - 1] > 1 && m.from_stride[i] == 1)
            m.patch_axis = i;
    }
    if (m.patch_axis >= 0 && m.dim[m.rank - 1] > 4) {
        others = m.outer / m.dim[m.patch_axis];
        cpu_pool_run(b->pool, others * cpu_div_up(m.dim[m.patch_axis], PATCH), patch_task, &m);
        return;
    }
    m.past = goes_past(&m);
    cpu_pool_run(b->pool, cpu_div_up(m.outer, cpu_max(1, TASK / cpu_max(1, m.dim[m.rank - 1]))), move_task,
                 &m);
}

static void dense_strides(const struct pk_shape *s, int64_t *stride)
{
    int64_t n = 1;

    for (int i = s->rank - 1; i >= 0; i--) {
        stride[i] = n;
        n *= s->dim[i];
    }
}

void cpu_copy_view(struct pk_backend *b, const struct pk_view *from, void *to)
{
    int64_t stride[PK_MAX_RANK];

    dense_strides(&from->shape, stride);
    move_strided(b, pk_dtype_size(from->dtype), &from->shape, from->data, from->stride, to, stride);
}

/* ---- casts ---- */

static double load(enum pk_dtype t, const void *p, int64_t i)
{
    uint32_t bits;
    float f;

    switch (t) {
    case PK_F32:
        return (double)((const float *)p)[i];
    case PK_F64:
        return ((const double *)p)[i];
    case PK_BF16:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    case PK_I32:
        return ((const int32_t *)p)[i];
    default:
        return ((const uint8_t *)p)[i];
    }
}

static void store(enum pk_dtype t, void *p, int64_t i, double v)
{
    uint32_t bits;
    float f;

    switch (t) {
    case PK_F32:
        ((float *)p)[i] = (float)v;
        break;
    case PK_F64:
        ((double *)p)[i] = v;
        break;
    case PK_BF16: /* to nearest, ties to even; a NaN stays one */
        f = (float)v;
        memcpy(&bits, &f, sizeof bits);
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            bits |= 0x00400000u;
        else
            bits += 0x7fffu + (bits >> 16 & 1u);
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
        break;
    case PK_I32: /* truncates; out of range saturates, NaN is 0 */
        ((int32_t *)p)[i] = v != v               ? 0
                            : v >= 2147483647.0  ? INT32_MAX
                            : v <= -2147483648.0 ? INT32_MIN
                                                 : (int32_t)v;
        break;
    default:
        ((uint8_t *)p)[i] = v != v || v <= 0 ? 0 : v >= 255 ? 255 : (uint8_t)v;
    }
}

/* bf16 to f32, as bits */
static void widen_line(uint32_t *to, const uint16_t *from, int64_t stride, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        to[k] = (uint32_t)from[k * stride] << 16;
}

struct cast {
    const struct pk_view *from, *to;
    int64_t count;
    const struct cpu_ops *ops;
};

static void cast_task(void *arg, int64_t task, int thread)
{
    const struct cast *c = arg;
    const struct pk_view *v = c->from;
    const int last = v->shape.rank - 1;
    int64_t run = last < 0 ? 1 : v->shape.dim[last], stride = last < 0 ? 0 : v->stride[last];

    (void)thread;
    for (int k = last - 1; k >= 0 && v->stride[k] == run * stride;
         k--) /* axes that continue each other are one run */
        run *= v->shape.dim[k];
    for (int64_t i = task * TASK; i < cpu_min(c->count, (task + 1) * TASK);) {
        int64_t n = cpu_min(run - i % run, cpu_min(c->count, (task + 1) * TASK) - i);
        int64_t off = cpu_offset(v->shape.dim, v->stride, last + 1, i);

        if (stride == 1 && v->dtype == PK_BF16 && c->to->dtype == PK_F32)
            c->ops->from_half(n, (const uint16_t *)v->data + off, (float *)c->to->data + i);
        else if (stride == 1 && v->dtype == PK_F32 && c->to->dtype == PK_BF16)
            c->ops->to_half(n, (const float *)v->data + off, (uint16_t *)c->to->data + i);
        else if (v->dtype == PK_BF16 && c->to->dtype == PK_F32)
            widen_line((uint32_t *)c->to->data + i, (const uint16_t *)v->data + off, stride, n);
        else
            for (int64_t k = 0; k < n; k++)
                store(c->to->dtype, c->to->data, i + k, load(v->dtype, v->data, off + k * stride));
        i += n;
    }
}

enum pd_err cpu_copy(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cast job = {&c->in[0], &c->out[0], count_of(&c->in[0].shape), cpu_ops_of(b->level, false)};

    (void)why;
    if (c->in[0].dtype == c->out[0].dtype)
        cpu_copy_view(b, &c->in[0], c->out[0].data);
    else
        cpu_pool_run(b->pool, cpu_div_up(job.count, TASK), cast_task, &job);
    return PD_OK;
}

struct fill {
    char *to;
    size_t size;
    int64_t count;
    uint8_t pattern[8];
};

static void fill_task(void *arg, int64_t task, int thread)
{
    const struct fill *f = arg;
    int64_t from = task * TASK, n = cpu_min(TASK, f->count - from);

    (void)thread;
    for (int64_t i = 0; i < n; i++)
        memcpy(f->to + (size_t)(from + i) * f->size, f->pattern, f->size);
}

enum pd_err cpu_fill(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct fill f = {
        .to = c->out[0].data, .size = pk_dtype_size(c->out[0].dtype), .count = count_of(&c->out[0].shape)};

    (void)why;
    store(c->out[0].dtype, f.pattern, 0, c->attr->fill.value);
    cpu_pool_run(b->pool, cpu_div_up(f.count, TASK), fill_task, &f);
    return PD_OK;
}

/* Copies x into the part of the output that starts at `start` along `axis`. */
static void place(struct pk_backend *b, const struct pk_view *x, const struct pk_view *o, int axis,
                  int64_t start)
{
    int64_t stride[PK_MAX_RANK];
    size_t size = pk_dtype_size(o->dtype);

    dense_strides(&o->shape, stride);
    move_strided(b, size, &x->shape, x->data, x->stride,
                 (char *)o->data + (size_t)(start * stride[axis]) * size, stride);
}

enum pd_err cpu_concat(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    int axis = c->attr->concat.axis;
    int64_t at = 0;

    (void)why;
    for (int i = 0; i < c->n_in; i++) {
        place(b, &c->in[i], &c->out[0], axis, at);
        at += c->in[i].shape.dim[axis];
    }
    return PD_OK;
}

enum pd_err cpu_pad(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *o = &c->out[0];
    int axis = c->attr->pad.axis;
    int64_t inner = 1, outer = 1, start = c->attr->pad.start, n = c->in[0].shape.dim[axis],
            d = o->shape.dim[axis];
    size_t size = pk_dtype_size(o->dtype);

    (void)why;
    for (int i = 0; i < axis; i++)
        outer *= o->shape.dim[i];
    for (int i = axis + 1; i < o->shape.rank; i++)
        inner *= o->shape.dim[i];
    for (int64_t i = 0; i < outer; i++) {
        char *at = (char *)o->data + (size_t)(i * d * inner) * size;

        memset(at, 0, (size_t)(start * inner) * size);
        memset(at + (size_t)((start + n) * inner) * size, 0, (size_t)((d - start - n) * inner) * size);
    }
    place(b, &c->in[0], o, axis, start);
    return PD_OK;
}

/* ---- by index ---- */

static int32_t index_at(const struct pk_view *v, int64_t i)
{
    return ((const int32_t *)v->data)[cpu_offset(v->shape.dim, v->stride, v->shape.rank, i)];
}

struct gather {
    const struct pk_call *c;
    int64_t count, group;
    size_t row;
};

static void gather_task(void *arg, int64_t task, int thread)
{
    const struct gather *g = arg;

    (void)thread;
    for (int64_t i = task * g->group; i < cpu_min(g->count, (task + 1) * g->group); i++)
        memcpy((char *)g->c->out[0].data + (size_t)i * g->row,
               (const char *)g->c->in[0].data + (size_t)index_at(&g->c->in[1], i) * g->row, g->row);
}

enum pd_err cpu_gather(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct gather g = {.c = c, .count = count_of(&c->in[1].shape)};
    int64_t rows = c->in[0].shape.dim[0], d = count_of(&c->in[0].shape) / cpu_max(1, rows);

    for (int64_t i = 0; i < g.count; i++) {
        int32_t at = index_at(&c->in[1], i);

        if (at < 0 || at >= rows)
            return pd_fail(why, PD_ERR_INVALID, "index %d (number %lld) is outside the %lld rows", at,
                           (long long)i, (long long)rows);
    }
    g.row = (size_t)d * pk_dtype_size(c->in[0].dtype);
    g.group = cpu_max(1, TASK / cpu_max(1, d));
    cpu_pool_run(b->pool, cpu_div_up(g.count, g.group), gather_task, &g);
    return PD_OK;
}

enum pd_err cpu_one_hot(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    int64_t count = count_of(&c->in[0].shape), classes = c->attr->one_hot.classes;
    const struct pk_view *o = &c->out[0];

    (void)b;
    (void)why;
    memset(o->data, 0, (size_t)(count * classes) * pk_dtype_size(o->dtype));
    for (int64_t i = 0; i < count; i++) {
        int32_t at = index_at(&c->in[0], i);

        if (at >= 0 && at < classes)
            store(o->dtype, o->data, i * classes + at, 1);
    }
    return PD_OK;
}

enum pd_err cpu_cache_append(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *cache = &c->in[0], *fresh = &c->in[1], *position = &c->in[2];
    int64_t batch = cache->shape.dim[0], t = cache->shape.dim[2], n = fresh->shape.dim[2];
    size_t size = pk_dtype_size(cache->dtype);

    for (int64_t i = 0; i < batch; i++) {
        int32_t at = index_at(position, position->shape.dim[0] == 1 ? 0 : i);

        if (at < 0 || at + n > t)
            return pd_fail(why, PD_ERR_INVALID, "position %d and %lld new tokens do not fit a cache of %lld",
                           at, (long long)n, (long long)t);
    }
    for (int64_t i = 0; i < batch; i++) {
        int32_t at = index_at(position, position->shape.dim[0] == 1 ? 0 : i);
        struct pk_shape one = fresh->shape;

        one.dim[0] = 1;
        move_strided(b, size, &one, (const char *)fresh->data + (size_t)(i * fresh->stride[0]) * size,
                     fresh->stride,
                     (char *)cache->data + (size_t)(i * cache->stride[0] + at * cache->stride[2]) * size,
                     cache->stride);
    }
    return PD_OK;
}
