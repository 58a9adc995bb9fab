/* daemon/worker/data/digits.c: digits drawn with a pen that never draws the same one twice.
 *
 * Each digit has one or more ways of writing it: strokes of control points in a unit box (x right, y down)
 * joined by a Catmull-Rom curve, or straight where the hand moves straight. A sample chooses a way, moves
 * every control point a little, bends the whole by a random affine map, picks a pen width and a pressure,
 * and is rendered by distance to the curve, so that edges are soft. All from (seed, index) by Philox. */
#include <math.h>
#include <string.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/philox.h"

#define SIDE 28
#define POINTS_MAX 12
#define STROKES_MAX 3
#define STEPS 10 /* pieces of a curve between two control points */
#define SEGMENTS_MAX (STROKES_MAX * POINTS_MAX * STEPS)

struct stroke {
    bool straight;
    int count;
    float p[POINTS_MAX][2];
};

struct way {
    int digit, strokes;
    struct stroke stroke[STROKES_MAX];
};

/* clang-format off */
static const struct way ways[] = {
    {0, 1, {{false, 9, {{.55f, .02f}, {.25f, .10f}, {.10f, .45f}, {.22f, .88f}, {.52f, .98f}, {.82f, .80f},
                        {.90f, .42f}, {.74f, .08f}, {.50f, .03f}}}}},
    {0, 1, {{false, 9, {{.40f, .05f}, {.14f, .30f}, {.12f, .70f}, {.40f, .97f}, {.72f, .92f}, {.88f, .58f},
                        {.80f, .20f}, {.55f, .02f}, {.36f, .08f}}}}},
    {1, 1, {{true, 2, {{.52f, .02f}, {.48f, .98f}}}}},
    {1, 1, {{true, 3, {{.28f, .24f}, {.54f, .02f}, {.52f, .98f}}}}},
    {1, 2, {{true, 3, {{.30f, .22f}, {.52f, .03f}, {.52f, .96f}}}, {true, 2, {{.26f, .97f}, {.78f, .97f}}}}},
    {2, 1, {{false, 8, {{.14f, .26f}, {.32f, .05f}, {.66f, .03f}, {.84f, .26f}, {.66f, .55f}, {.36f, .80f},
                        {.12f, .96f}, {.12f, .96f}}}, }},
    {2, 2, {{false, 7, {{.14f, .26f}, {.34f, .04f}, {.68f, .05f}, {.82f, .28f}, {.62f, .60f}, {.34f, .84f},
                        {.12f, .97f}}}, {true, 2, {{.12f, .97f}, {.90f, .95f}}}}},
    {2, 1, {{false, 10, {{.18f, .22f}, {.42f, .02f}, {.74f, .12f}, {.76f, .40f}, {.48f, .72f}, {.20f, .92f},
                         {.14f, .78f}, {.34f, .74f}, {.58f, .94f}, {.90f, .88f}}}}},
    {3, 1, {{false, 10, {{.16f, .14f}, {.44f, .02f}, {.76f, .12f}, {.74f, .36f}, {.44f, .47f}, {.78f, .56f},
                         {.88f, .76f}, {.66f, .96f}, {.34f, .97f}, {.12f, .84f}}}}},
    {3, 2, {{true, 3, {{.16f, .05f}, {.80f, .05f}, {.44f, .40f}}},
            {false, 6, {{.44f, .40f}, {.76f, .46f}, {.88f, .68f}, {.70f, .93f}, {.36f, .97f}, {.12f, .84f}}}}},
    {4, 2, {{true, 3, {{.46f, .03f}, {.12f, .62f}, {.90f, .60f}}}, {true, 2, {{.68f, .30f}, {.64f, .98f}}}}},
    {4, 2, {{false, 4, {{.20f, .06f}, {.14f, .34f}, {.22f, .54f}, {.80f, .48f}}},
            {true, 2, {{.78f, .04f}, {.70f, .98f}}}}},
    {4, 1, {{true, 4, {{.64f, .98f}, {.66f, .03f}, {.12f, .66f}, {.92f, .66f}}}}},
    {5, 2, {{false, 8, {{.30f, .05f}, {.24f, .30f}, {.20f, .46f}, {.50f, .38f}, {.82f, .54f}, {.82f, .80f},
                        {.52f, .98f}, {.14f, .90f}}}, {true, 2, {{.28f, .05f}, {.84f, .04f}}}}},
    {5, 2, {{true, 3, {{.82f, .04f}, {.26f, .06f}, {.22f, .44f}}},
            {false, 6, {{.22f, .44f}, {.56f, .36f}, {.86f, .58f}, {.76f, .88f}, {.44f, .98f}, {.12f, .88f}}}}},
    {6, 1, {{false, 10, {{.72f, .04f}, {.42f, .16f}, {.18f, .50f}, {.16f, .80f}, {.42f, .98f}, {.76f, .90f},
                         {.84f, .66f}, {.62f, .50f}, {.34f, .56f}, {.18f, .74f}}}}},
    {6, 1, {{false, 9, {{.50f, .02f}, {.24f, .34f}, {.14f, .70f}, {.34f, .97f}, {.68f, .94f}, {.80f, .72f},
                        {.62f, .56f}, {.34f, .62f}, {.22f, .80f}}}}},
    {7, 1, {{true, 3, {{.12f, .06f}, {.88f, .04f}, {.42f, .98f}}}}},
    {7, 2, {{true, 3, {{.12f, .06f}, {.86f, .05f}, {.40f, .98f}}}, {true, 2, {{.34f, .50f}, {.80f, .48f}}}}},
    {7, 1, {{false, 7, {{.10f, .16f}, {.20f, .05f}, {.52f, .10f}, {.88f, .04f}, {.70f, .36f}, {.52f, .66f},
                        {.46f, .98f}}}}},
    {8, 1, {{false, 11, {{.76f, .12f}, {.46f, .02f}, {.20f, .18f}, {.32f, .40f}, {.68f, .56f}, {.82f, .78f},
                         {.52f, .98f}, {.18f, .80f}, {.34f, .56f}, {.70f, .34f}, {.74f, .10f}}}}},
    {8, 2, {{false, 8, {{.50f, .02f}, {.24f, .12f}, {.26f, .36f}, {.50f, .46f}, {.74f, .36f}, {.76f, .12f},
                        {.52f, .02f}, {.44f, .04f}}},
            {false, 8, {{.50f, .46f}, {.20f, .60f}, {.18f, .86f}, {.50f, .98f}, {.82f, .86f}, {.80f, .60f},
                        {.52f, .46f}, {.44f, .48f}}}}},
    {9, 1, {{false, 10, {{.80f, .22f}, {.58f, .03f}, {.26f, .10f}, {.18f, .34f}, {.42f, .50f}, {.72f, .40f},
                         {.80f, .16f}, {.80f, .44f}, {.74f, .74f}, {.66f, .98f}}}}},
    {9, 2, {{false, 8, {{.78f, .20f}, {.54f, .02f}, {.22f, .14f}, {.20f, .38f}, {.46f, .50f}, {.74f, .38f},
                        {.78f, .20f}, {.72f, .10f}}},
            {false, 4, {{.80f, .14f}, {.82f, .48f}, {.66f, .86f}, {.30f, .98f}}}}},
};
/* clang-format on */
#define WAYS (sizeof ways / sizeof ways[0])

struct pen {
    uint64_t seed, index;
    uint32_t block, left;
    uint32_t word[4];
};

/* Uniform in [-1, 1). */
static float draw(struct pen *pen)
{
    if (!pen->left) {
        data_random(pen->seed, DATA_STREAM_DIGIT, pen->block++, pen->index, pen->word);
        pen->left = 4;
    }
    return (float)(data_unit(pen->word[--pen->left]) * 2 - 1);
}

static float along(float a, float b, float c, float d, float t)
{
    return .5f *
           (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t * t + (3 * b - a - 3 * c + d) * t * t * t);
}

static int flatten(const struct stroke *s, float segment[][4])
{
    int n = 0;

    for (int i = 0; i + 1 < s->count; i++) {
        const float *b = s->p[i], *c = s->p[i + 1];
        const float *a = i ? s->p[i - 1] : b, *d = i + 2 < s->count ? s->p[i + 2] : c;
        int steps = s->straight ? 1 : STEPS;
        float x = b[0], y = b[1];

        for (int k = 1; k <= steps; k++) {
            float t = (float)k / (float)steps;
            float u = s->straight ? c[0] : along(a[0], b[0], c[0], d[0], t);
            float v = s->straight ? c[1] : along(a[1], b[1], c[1], d[1], t);

            segment[n][0] = x;
            segment[n][1] = y;
            segment[n][2] = u;
            segment[n][3] = v;
            n++;
            x = u;
            y = v;
        }
    }
    return n;
}

static float distance2(const float s[4], float x, float y)
{
    float dx = s[2] - s[0], dy = s[3] - s[1], px = x - s[0], py = y - s[1];
    float l = dx * dx + dy * dy, t = l > 0 ? (px * dx + py * dy) / l : 0;

    t = t < 0 ? 0 : t > 1 ? 1 : t;
    px -= t * dx;
    py -= t * dy;
    return px * px + py * py;
}

void data_digit_draw(uint64_t seed, int64_t index, int digit, uint8_t pixels[SIDE * SIDE])
{
    struct pen pen = {.seed = seed, .index = (uint64_t)index};
    float segment[SEGMENTS_MAX][4], low[2] = {1e9f, 1e9f}, high[2] = {-1e9f, -1e9f};
    float turn, slant, wide, tall, radius, ink, dx, dy, cosine, sine, reach;
    const struct way *way = NULL;
    int count = 0, of_digit = 0, chosen;

    for (size_t i = 0; i < WAYS; i++)
        of_digit += ways[i].digit == digit;
    chosen = (int)((draw(&pen) + 1) * .5f * (float)of_digit);
    for (size_t i = 0; i < WAYS && !way; i++)
        if (ways[i].digit == digit && chosen-- <= 0)
            way = &ways[i];
    if (!way) { /* not a digit: an empty picture */
        memset(pixels, 0, SIDE * SIDE);
        return;
    }
    turn = draw(&pen) * .20f; /* radians */
    slant = draw(&pen) * .28f - .06f;
    wide = 12.5f + draw(&pen) * 3.5f; /* pixels */
    tall = 18.5f + draw(&pen) * 2.0f;
    radius = 1.15f + draw(&pen) * .55f;
    ink = 232 + draw(&pen) * 23;
    dx = draw(&pen) * 1.6f;
    dy = draw(&pen) * 1.6f;
    cosine = cosf(turn);
    sine = sinf(turn);
    for (int s = 0; s < way->strokes; s++) {
        struct stroke bent = way->stroke[s];

        for (int i = 0; i < bent.count; i++) {
            float x = bent.p[i][0] - .5f + draw(&pen) * .055f, y = bent.p[i][1] - .5f + draw(&pen) * .055f;

            x -= slant * y;
            x *= wide;
            y *= tall;
            bent.p[i][0] = cosine * x - sine * y;
            bent.p[i][1] = sine * x + cosine * y;
        }
        count += flatten(&bent, segment + count);
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 4; k++) {
            low[k & 1] = fminf(low[k & 1], segment[i][k]);
            high[k & 1] = fmaxf(high[k & 1], segment[i][k]);
        }
    /* The centre of its box is placed at the centre of the image, with a small offset. */
    dx += (SIDE - 1) * .5f - (low[0] + high[0]) * .5f;
    dy += (SIDE - 1) * .5f - (low[1] + high[1]) * .5f;
    reach = radius + .75f;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            float best = 1e9f, cover;

            for (int i = 0; i < count; i++)
                best = fminf(best, distance2(segment[i], (float)x - dx, (float)y - dy));
            cover = best >= reach * reach ? 0 : (reach - sqrtf(best)) / 1.3f;
            pixels[y * SIDE + x] = (uint8_t)lrintf(ink * (cover > 1 ? 1 : cover));
        }
}
