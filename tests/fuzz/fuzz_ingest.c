/* A batch of metric points (api/ingest.h), against jansson: what one takes as JSON, the other does too. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "api/ingest.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct api_batch b;
    struct pd_why why;
    char pointer[96];
    enum pd_err err;

    err = api_batch_parse((const char *)bytes, len, 1000, &b, pointer, sizeof pointer, &why);
    if (err == PD_OK) {
        json_t *root = json_loadb((const char *)bytes, len, JSON_REJECT_DUPLICATES, NULL);

        if (!root || json_array_size(json_object_get(root, "points")) != b.count ||
            b.count > API_INGEST_POINTS_MAX)
            abort();
        for (size_t i = 0; i < b.count; i++) {
            const char *key =
                json_string_value(json_object_get(json_array_get(json_object_get(root, "points"), i), "key"));

            if (!key || strcmp(key, b.points[i].key) != 0 || !*key || strlen(key) > STORE_KEY_MAX)
                abort();
        }
        json_decref(root);
        api_batch_done(&b);
    } else if (err == PD_ERR_INVALID || err == PD_ERR_LIMIT) {
        if (strlen(pointer) >= sizeof pointer || pointer[0] != '#')
            abort();
    }
    return 0;
}
