/* daemon/worker/data/augment.c: see augment.h. */
#include "daemon/worker/data/augment.h"

#include <math.h>
#include <string.h>

#include "daemon/worker/data/philox.h"

void data_draw_init(struct data_draw *d, uint64_t seed, uint32_t stream, int64_t epoch, int64_t position)
{
    *d = (struct data_draw){
        .seed = seed, .position = (uint64_t)position, .stream = stream, .epoch = (uint32_t)epoch};
}

double data_draw_next(struct data_draw *d)
{
    if (d->recorded)
        return *d->recorded++;
    if (!d->left) {
        /* The block stands in the counter's position word above 2^40 samples. */
        data_random(d->seed, (enum data_stream)d->stream, d->epoch, d->position | (uint64_t)d->block << 40,
                    d->word);
        d->block++;
        d->left = 4;
    }
    return data_unit(d->word[4 - d->left--]);
}

double data_draw_normal(struct data_draw *d)
{
    const double radius = sqrt(-2 * log(1 - data_draw_next(d)));

    return radius * cos(6.283185307179586 * data_draw_next(d));
}

/* Gamma(alpha): for alpha below 1 by way of Gamma(alpha + 1). */
static double draw_gamma(struct data_draw *d, double alpha)
{
    const double boost = alpha < 1 ? pow(1 - data_draw_next(d), 1 / alpha) : 1;
    const double a = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3, c = 1 / sqrt(9 * a);

    for (;;) {
        const double x = data_draw_normal(d), u = 1 - data_draw_next(d), v = pow(1 + c * x, 3);

        if (v > 0 && log(u) < 0.5 * x * x + a - a * v + a * log(v))
            return boost * a * v;
    }
}

double data_draw_beta(struct data_draw *d, double alpha)
{
    const double x = draw_gamma(d, alpha), y = draw_gamma(d, alpha);

    return x + y > 0 ? x / (x + y) : 0.5;
}

struct data_box data_erase_box(struct data_draw *d, double probability, int32_t height, int32_t width)
{
    static const double least = 0.02, most = 1.0 / 3,
                        narrow = 0.3; /* areas; ratios from this to its inverse */
    struct data_box box = {0};

    if (data_draw_next(d) > probability)
        return box;
    for (int i = 0; i < 10; i++) {
        const double area = (least + (most - least) * data_draw_next(d)) * height * width;
        const double ratio = exp(log(narrow) + (log(1 / narrow) - log(narrow)) * data_draw_next(d));
        const int32_t h = (int32_t)rint(sqrt(area * ratio)), w = (int32_t)rint(sqrt(area / ratio));

        if (h >= height || w >= width)
            continue;
        box.top = (int32_t)(data_draw_next(d) * (height - h + 1));
        box.left = (int32_t)(data_draw_next(d) * (width - w + 1));
        box.height = h;
        box.width = w;
        break;
    }
    return box;
}

static int32_t between(int32_t x, int32_t most)
{
    return x < 0 ? 0 : x < most ? x : most;
}

struct data_box data_cutmix_box(struct data_draw *d, double share, int32_t height, int32_t width,
                                double *ret_share)
{
    const double side = sqrt(1 - share);
    const int32_t h = (int32_t)(height * side), w = (int32_t)(width * side);
    const int32_t y = (int32_t)(data_draw_next(d) * height), x = (int32_t)(data_draw_next(d) * width);
    const int32_t top = between(y - h / 2, height), bottom = between(y + h / 2, height);
    const int32_t left = between(x - w / 2, width), right = between(x + w / 2, width);

    *ret_share = 1 - (double)(bottom - top) * (right - left) / ((double)height * width);
    return (struct data_box){.top = top, .left = left, .height = bottom - top, .width = right - left};
}

struct data_box data_rrc_box(struct data_draw *d, int32_t height, int32_t width, const double scale[2],
                             const double ratio[2])
{
    double area = (double)height * width, low = log(ratio[0]), high = log(ratio[1]), whole;
    struct data_box box;

    for (int try = 0; try < 10; try++) {
        double part = area * (scale[0] + (scale[1] - scale[0]) * data_draw_next(d));
        double shape = exp(low + (high - low) * data_draw_next(d));

        box.width = (int32_t)lrint(sqrt(part * shape));
        box.height = (int32_t)lrint(sqrt(part / shape));
        if (box.width < 1 || box.width > width || box.height < 1 || box.height > height)
            continue;
        box.top = (int32_t)(data_draw_next(d) * (height - box.height + 1));
        box.left = (int32_t)(data_draw_next(d) * (width - box.width + 1));
        return box;
    }
    whole = (double)width / height;
    box.width = width;
    box.height = height;
    if (whole < ratio[0])
        box.height = (int32_t)lrint(width / ratio[0]);
    else if (whole > ratio[1])
        box.width = (int32_t)lrint(height * ratio[1]);
    /* A ratio beyond every picture of this side would leave nothing. */
    box.height = box.height < 1 ? 1 : box.height > height ? height : box.height;
    box.width = box.width < 1 ? 1 : box.width > width ? width : box.width;
    box.top = (height - box.height) / 2;
    box.left = (width - box.width) / 2;
    return box;
}

void data_flip(uint8_t *pixels, int32_t height, int32_t width, int32_t channels)
{
    for (int32_t y = 0; y < height; y++) {
        uint8_t *row = pixels + (size_t)y * (size_t)width * (size_t)channels;

        for (int32_t i = 0, j = width - 1; i < j; i++, j--)
            for (int32_t c = 0; c < channels; c++) {
                uint8_t t = row[i * channels + c];

                row[i * channels + c] = row[j * channels + c];
                row[j * channels + c] = t;
            }
    }
}

void data_planes(const uint8_t *pixels, int32_t height, int32_t width, int32_t channels, uint8_t *to)
{
    const size_t count = (size_t)height * (size_t)width;

    for (int32_t c = 0; c < channels; c++, to += count)
        for (size_t i = 0; i < count; i++)
            to[i] = pixels[i * (size_t)channels + (size_t)c];
}
