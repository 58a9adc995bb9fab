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
