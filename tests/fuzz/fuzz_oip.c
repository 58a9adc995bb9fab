/* Requests of the Open Inference Protocol, JSON and binary (api/oip.h). */
#include "api/oip.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    api_oip_fuzz(bytes, len);
    return 0;
}
