/* JPEG and PNG as clients send them and folders hold them (daemon/worker/data/image.h): an accepted picture
 * has the size that its header says, and the evaluation transform takes it. */
#include <stdlib.h>

#include "daemon/worker/data/image.h"

#define PIXELS_MOST (1 << 18) /* a header may name 128 million: not in a fuzzer's time */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct data_eval_fit fit = {.channels = 3, .height = 8, .width = 8, .crop = 0.875};
    struct data_image image = {0};
    uint8_t planes[3 * 8 * 8];
    struct pd_why why;
    int32_t height, width;

    if (data_image_size(bytes, len, &height, &width, &why) != PD_OK)
        return 0;
    if (height < 1 || width < 1 || height > DATA_IMAGE_SIDE_MAX || width > DATA_IMAGE_SIDE_MAX)
        abort();
    if ((int64_t)height * width > PIXELS_MOST)
        return 0;
    for (int32_t channels = 1; channels <= 3; channels += 2)
        if (data_image_decode(bytes, len, channels, 0, &image, &why) == PD_OK) {
            if (image.height != height || image.width != width || image.channels != channels)
                abort();
            data_image_done(&image);
        }
    (void)!data_image_read_eval(bytes, len, &fit, planes, &why);
    return 0;
}
