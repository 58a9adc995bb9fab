/* CIFAR-10 records: every accepted label is one of ten, every pixel is the record's. */
#include <stdlib.h>

#include "daemon/worker/data/set.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    int64_t count = (int64_t)(len / DATA_CIFAR_RECORD);
    uint8_t *pixels = malloc((size_t)count * 3072 + 1);
    int32_t *labels = malloc((size_t)count * sizeof *labels + 1);
    struct pd_why why;

    if (pixels && labels && data_cifar_unpack(bytes, count, pixels, labels, &why) == PD_OK)
        for (int64_t i = 0; i < count; i++)
            if (labels[i] < 0 || labels[i] > 9 || pixels[i * 3072] != bytes[i * DATA_CIFAR_RECORD + 1] ||
                pixels[i * 3072 + 2] != bytes[i * DATA_CIFAR_RECORD + 2049])
                abort();
    free(pixels);
    free(labels);
    return 0;
}
