/* The configuration file (daemon/polyd/config). */
#include "daemon/polyd/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    config_fuzz(bytes, len);
    return 0;
}
